#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0 OR Unlicense
"""operations.py SCHEMA  does operations of tests/model/store.h with examples/python/worker.py, for
tests/model/store_python.h: a line with the time, a word and numbers comes in, a line goes out.

    30000000 take 1 2 9      worker 1, claim 2, up to 9 jobs; 30 s after the test's first instant
    ok 7 1 8 2               job 7 at attempt 1, job 8 at attempt 2
    JQ002 worker 1 is dead   a refusal: its SQLSTATE and text

Only the clock, the connection and the worker's id are the test's: the schema SCHEMA_clock has
functions for them, which this session finds before those of the server.
"""
import logging
import os
import sys
import time

import psycopg
from psycopg.types.json import Jsonb

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "..", "examples", "python"))
import worker  # noqa: E402

SCHEMA = sys.argv[1]
EPOCH_US = 1700000000 * 10**6
LEASE = 30
RESCUER = 99
connection = psycopg.connect(os.environ["JOBQ_SERVER"], autocommit=True)
connection.execute(f"SET search_path = {SCHEMA}_clock, pg_catalog, pg_temp")
logging.disable()  # the answers say what is refused


class Clock:
    """The module time, as worker.py sees it."""
    us, sleep = 0, staticmethod(time.sleep)

    def monotonic(self):
        return self.us / 1e6

    def set(self, us):
        self.us = us
        connection.execute("SELECT set_config('jobq_test.now_us', %s, false)",
                           (str(EPOCH_US + us),))


worker.time = clock = Clock()


class Worker(worker.Worker):
    """On the one connection. It keeps the last answers, and what was refused first."""
    def __init__(self, number, handlers=None):
        super().__init__("", handlers or {}, lease=LEASE, schema=SCHEMA, name=f"w{number}")
        self.worker, self.watched, self.answers, self.refusal = number, {}, {}, None

    def connection(self):
        return connection

    def call(self, on, function, *values):
        try:
            self.answers[function] = super().call(on, function, *values)
        except psycopg.Error as error:
            self.refusal = self.refusal or error
            raise
        return self.answers[function]

    def join(self):
        """It is dead: the test decides whether it joins again."""
        self.alive_until = 0

    def join_as(self, number):
        connection.execute("SELECT set_config('jobq_test.worker', %s, false)", (str(number),))
        super().join()


def handler(job):
    """Ends as the operation says."""
    event, delay_us, result = job.script
    if event == "success":
        return {"n": 2} if result else None
    if event == "retry" and delay_us is None:
        raise RuntimeError("boom")
    if event == "timeout":
        raise TimeoutError("boom")
    raise worker.End(event, "boom", None if delay_us is None else f"{delay_us} microseconds")


KINDS = {"q1": {"k1": handler, "k2": handler}, "q2": {"k3": handler}}
workers = {}


def known(number):
    """A worker that did not join gets a stranger's answers."""
    if number not in workers:
        workers[number] = Worker(number)
    workers[number].refusal = None
    return workers[number]


def one(function, *values):
    marks = ", ".join(["%s"] * len(values))
    return connection.execute(f"SELECT {SCHEMA}.{function}({marks})", values).fetchone()[0]


def enqueue(queue, kind, priority, stages, max_attempts, run_at_us, expires_us, line):
    return [connection.execute(
        f"SELECT {SCHEMA}.enqueue(%s, %s, %s, priority => %s, stages => %s, max_attempts => %s, "
        "line => %s, run_at => timestamptz 'epoch' + %s * interval '1 microsecond', "
        "expires => %s * interval '1 microsecond')",
        (f"q{queue}", f"k{kind}", Jsonb({"n": 1}), int(priority), int(stages),
         int(max_attempts) or None, None if line == "-" else line, int(run_at_us),
         int(expires_us) or None)).fetchone()[0]]


def join(number, *kinds):
    """kinds: those that it has handlers for, as q1:k1."""
    handlers = {}
    for queue, kind in (name.split(":") for name in kinds):
        handlers.setdefault(queue, {})[kind] = handler
    new = Worker(int(number), handlers)
    new.join_as(int(number))
    workers[int(number)] = new
    return []


def take(number, claim, most):
    on = known(int(number))
    on.number = int(claim) - 1
    return [value for job in on.take(int(most)) for value in (job.id, job.attempt)]


def settle(number, claim, job_id, event, delay_us, result):
    """Runs the job that the worker was given, or one that it was not."""
    on, token = known(int(number)), (int(number), int(claim))
    on.handlers = KINDS
    job = next((job for job in on.jobs if (job.token, job.id) == (token, int(job_id))), None)
    if job is None:
        job = worker.Job(on, token, (int(job_id), "q1", "k1", 1, 0, 0, 1, None, None, None, None))
        on.jobs.add(job)
    job.script = event, None if delay_us == "-" else int(delay_us), result == "1"
    on.alive_until = clock.monotonic() + LEASE  # the handler began when the job was taken
    on.handle(job)
    if on.refusal:
        raise on.refusal
    return []


def beat(number):
    """Jobs that are to stop, and after a slash the workers whose leases run out."""
    on = known(int(number))
    on.beat()
    alive = on.alive_until > clock.monotonic()
    if not alive:
        return ["dead"]
    late = sorted(map(int, on.watched["seen"]))
    return ["alive", *sorted(job.id for job in on.jobs if job.stop.is_set()), "/", *late]


def rescue(victim, beat_number):
    """By a worker that has watched this beat of the victim for a lease, and then leaves."""
    now, lease_us = clock.us, LEASE * 10**6
    rescuer = Worker(RESCUER, KINDS)
    rescuer.join_as(RESCUER)
    [(boot,)] = connection.execute("SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)"
                                   "::bigint").fetchall()
    rescuer.watched = {"at": now, "since": now - lease_us, "boot": boot,
                       "seen": {victim: [int(beat_number), lease_us, now - lease_us]}}
    rescuer.beat()
    rescuer.call(connection, "work_leave", RESCUER)
    return [rescuer.answers["work_rescue"][0][0]]


def recover(number, claim):
    """The claim's answer did not come: the worker has none of its jobs."""
    on, token = known(int(number)), (int(number), int(claim))
    on.jobs = {job for job in on.jobs if job.token != token}
    on.until_answered("work_recover", *token)
    return []


def leave(number):
    on = known(int(number))
    on.call(connection, "work_leave", on.worker)
    return []


def cancel(job):
    return [one("cancel", int(job))]


def revive(job):
    return [one("revive", int(job))]


def reset():
    workers.clear()
    return []


OPERATIONS = {f.__name__: f for f in (enqueue, join, take, settle, beat, rescue, recover, leave,
                                      cancel, revive, reset)}


def main():
    for line in sys.stdin:
        now, word, *values = line.split()
        if int(now) != clock.us:
            clock.set(int(now))
        try:
            answer = " ".join(map(str, ["ok", *OPERATIONS[word](*values)]))
        except psycopg.Error as error:
            answer = f"{error.sqlstate} {error.diag.message_primary or error}"
        print(" ".join(answer.split())[:300], flush=True)


if __name__ == "__main__":
    clock.set(0)
    main()
