#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0 OR Unlicense
"""worker.py ROLE LOG NAME SECONDS  a worker of the chaos run, on examples/python/worker.py. It does
what the worker of actor.c does with jobs, and logs as log.h does. It knows nothing of flows and
messages, and serves no queue that has a quota: work_join refuses them. It ends on SIGTERM.
"""
import functools
import os
import random
import signal
import sys
import time

import psycopg

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "..", "examples", "python"))
import worker  # noqa: E402

ROLE, LOG, NAME = sys.argv[1:4]
QUEUES = "chaos", "lines", "strict"
log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
stop_inside = []  # times of SIGUSR1: within 3 s of the last one a handler stops the process


def note(event, job, detail=""):
    fields = (time.monotonic_ns() // 1000, time.time_ns() // 1000, os.getpid(), ROLE, event,
              job and job.id or 0, job and job.stage or 0, *(job.token if job else (0, 0)), detail)
    os.write(log, ("\t".join(map(str, fields)) + "\n").encode())


def noted(handler):
    """Logs the start of each run and its end. The trail knows which jobs must run alone."""
    @functools.wraps(handler)
    def run(job):
        note("start", job, "sql")
        try:
            result = handler(job)
        except worker.End as end:
            note("end", job, end.outcome)
            raise
        except Exception as error:
            note("end", job, f"retry {type(error).__name__}")
            raise
        note("end", job, "done" if job.ended else "success")
        return result
    return run


def result_of(job):
    """Names the job and the claim that it was run in. Only the last stage has a result."""
    return [job.id, job.token[1]] if job.stage + 1 == job.stages else None


@noted
def ledger(job):
    """Effects in the database, in the transaction that completes the job."""
    if random.random() < 0.05:
        with job.transaction("undone") as cursor:
            cursor.execute("INSERT INTO jobq_chaos_watch.ledger (job, stage, worker, claim) "
                           "VALUES (%s, %s, %s, %s)", (job.id, job.stage, *job.token))
            raise psycopg.Rollback
    with job.transaction(result_of(job)) as cursor:
        cursor.execute("INSERT INTO jobq_chaos_watch.ledger (job, stage, worker, claim) "
                       "VALUES (%s, %s, %s, %s)", (job.id, job.stage, *job.token))
        if stop_inside and time.monotonic() < stop_inside.pop() + 3:
            note("stopped_inside", job)
            os.kill(os.getpid(), signal.SIGSTOP)
        if random.random() < 0.05:
            time.sleep(0.4)


@noted
def outside(job):
    """Effects elsewhere: the log is the outside world."""
    time.sleep(0.7 if random.random() < 0.03 else random.random() / 100)
    if os.path.exists(os.environ["CHAOS_SLOWLY"]):
        time.sleep(2)
    if job.stop.is_set():
        raise worker.End("release")  # it is cancelled if somebody asked for that
    note("effect", job)
    return result_of(job)


def flaky(job):
    if random.random() < 0.6:
        return ledger(job)
    return fails(job)


@noted
def fails(job):
    raise worker.End(random.choice(["retry", "snooze"]), "flaky", "20 milliseconds")


@noted
def hopeless(job):
    raise worker.End("retry", "hopeless", "5 milliseconds")


@noted
def crashing(job):
    os.kill(os.getpid(), signal.SIGKILL)


KINDS = {f.__name__: f for f in (ledger, outside, flaky, hopeless, crashing)}
KINDS["python"] = ledger  # kinds that no other worker has
KINDS["unloadable"] = ledger

if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: stop_inside.append(time.monotonic()))
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a step of the clock: it reads no wall clock
    note("begin", None, NAME)
    worker.Worker.poll = 0.05  # else it gets few other jobs, beside workers that claim in batches
    worker.Worker(f"{os.environ['JOBQ_SERVER']} application_name={NAME}",
                  {queue: KINDS for queue in QUEUES}, lease=1.5, grace=3, schema="jobq_chaos",
                  name=NAME).run()
    note("end", None, NAME)
