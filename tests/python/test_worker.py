#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0 OR Unlicense
"""test_worker.py [TEST...]  tests examples/python/worker.py as processes that are killed, stopped,
cut off and late. Needs JOBQ_SERVER and its psql: tests/server.sh.
"""
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import psycopg

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "examples", "python"))
import worker  # noqa: E402

SERVER = os.environ["JOBQ_SERVER"]
PSQL = os.path.join(os.environ["JOBQ_SERVER_BIN"], "psql")


def sql(text, *values):
    with psycopg.connect(SERVER, autocommit=True) as connection:
        cursor = connection.execute(text, values or None)
        return cursor.fetchall() if cursor.description else []


def one(text, *values):
    return sql(text, *values)[0][0]


def install():
    subprocess.run([PSQL, "-Xq", "-v", "ON_ERROR_STOP=1", SERVER, "-f",
                    os.path.join(ROOT, "sql/install.sql")], check=True, capture_output=True)
    sql("CREATE TABLE IF NOT EXISTS effect (job bigint, what text)")


def empty():
    """A worker that was killed may leave a statement under way, which locks in another order."""
    for tries_left in range(9, -1, -1):
        try:
            return sql("TRUNCATE jobq.job, jobq.failed, jobq.history, jobq.claim, jobq.worker, "
                       "jobq.sleeper, jobq.kind, jobq.queue, jobq.schedule, jobq.idempotency, "
                       "effect CASCADE")
        except psycopg.errors.DeadlockDetected:
            if tries_left == 0:
                raise


def wait(what, seconds=120):
    """Until it is true."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise AssertionError("not within %s s" % seconds)
        time.sleep(0.02)


# -- the worker that the tests start: test_worker.py --work LEASE ---------------------------------

def did(job, what):
    sql("INSERT INTO effect VALUES (%s, %s)", job.id, what)


def plain(job):
    did(job, "ran")
    return {"seen": job.payload}


def flaky(job):
    did(job, "try")
    if job.attempt < 3:
        raise ValueError("not yet")


def once(job):
    with job.transaction({"by": "transaction"}) as cursor:
        cursor.execute("INSERT INTO effect VALUES (%s, 'once')", (job.id,))
        if job.payload and job.payload.get("hang"):
            os.write(1, b"inside\n")
            time.sleep(job.payload["hang"])


def hang(job):
    os.write(1, b"hanging\n")
    job.stop.wait(60)
    did(job, "stopped" if job.stop.is_set() else "slept")


def slow(job):
    os.write(1, b"slow\n")  # in one piece, beside other threads
    time.sleep(1)
    did(job, "ran")


def die(job):
    os.kill(os.getpid(), signal.SIGKILL)


def ends(job):
    raise worker.End(job.payload["outcome"], "said so", job.payload.get("delay"))


class Unprintable(Exception):
    def __str__(self):
        raise ValueError


def refused(job):
    """What neither the server nor psycopg accepts."""
    if job.payload == "error":
        raise ValueError("a \0 in it")
    if job.payload == "unprintable":
        raise Unprintable()
    if job.payload == "in a transaction":
        with job.transaction("\0") as cursor:
            cursor.execute("INSERT INTO effect VALUES (%s, 'refused')", (job.id,))
    return {"zero": "\0", "surrogate": "\ud800", "set": {1}}[job.payload]


def gives_up(job):
    os.write(1, b"waiting\n")
    if job.attempt == 1:
        job.stop.wait(60)
        raise RuntimeError("stopped")


def leaves(job):
    raise SystemExit("not yet")


def undoes(job):
    with job.transaction("undone") as cursor:
        cursor.execute("INSERT INTO effect VALUES (%s, 'undone')", (job.id,))
        raise psycopg.Rollback
    if job.payload == "again":
        with job.transaction("again") as cursor:
            cursor.execute("INSERT INTO effect VALUES (%s, 'again')", (job.id,))
    return "returned"


def prepared(job):
    with job.transaction() as cursor:
        cursor.execute("INSERT INTO effect SELECT %s, count(*) FROM pg_prepared_statements",
                       (job.id,))


def changes(job):
    with job.transaction() as cursor:
        pass
    cursor.connection.execute(
        "SET app.tenant = 'a tenant'; LISTEN other; SELECT pg_advisory_lock(77); "
        "CREATE TEMP TABLE left_over (i int); DECLARE held CURSOR WITH HOLD FOR SELECT 1; "
        "SET default_transaction_isolation = serializable; SET ROLE python_other")


def sees(job):
    """What is not as in a new session."""
    with job.transaction() as cursor:
        cursor.execute(
            "INSERT INTO effect SELECT %s, concat_ws(', ', "
            "nullif(current_setting('app.tenant', true), ''), "
            "nullif(current_setting('transaction_isolation'), 'read committed'), "
            "nullif(current_user, session_user), to_regclass('left_over')::text, "
            "(SELECT name FROM pg_cursors WHERE is_holdable), "
            "(SELECT c FROM pg_listening_channels() c WHERE c = 'other'), "
            "(SELECT locktype FROM pg_locks WHERE pid = pg_backend_pid() AND objid = 77))",
            (job.id,))


def store(jobs):
    """The job \"bad\" fails the whole batch, and the one that is \"odd\" only itself."""
    for job in jobs:
        did(job, len(jobs))
    if any(job.payload == "bad" for job in jobs):
        raise ValueError("one of you is bad")
    for job in jobs:
        if job.payload == "odd":
            job.end = worker.End("discard", "odd")
    good = [job for job in jobs if not job.end]
    if good and good[0].payload == "own":
        with worker.transaction(good, [job.id for job in good]) as cursor:
            for job in good:
                cursor.execute("INSERT INTO effect VALUES (%s, 'own')", (job.id,))
    return [job.id for job in jobs]


BATCHES = {"q": {"store": worker.Batch(store, most=8), "plain": plain}}
HANDLERS = {"q": {f.__name__: f for f in (plain, flaky, once, hang, slow, die, ends, refused,
                                          leaves, gives_up, undoes, prepared, changes, sees)}}


class Proxy:
    """Carries connections to the server. freeze: those that are there carry nothing any more, and
    stay open.
    """
    def __init__(self):
        self.frozen = threading.Event()
        with psycopg.connect(SERVER) as connection:
            self.server = f"{connection.info.host}/.s.PGSQL.{connection.info.port}"
        self.folder = tempfile.TemporaryDirectory()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.folder.name + "/.s.PGSQL.5432")
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, server = self.listener.accept()[0], socket.socket(socket.AF_UNIX)
            server.connect(self.server)
            for ends in (client, server), (server, client):
                threading.Thread(target=self.carry, args=(*ends, self.frozen), daemon=True).start()

    def carry(self, source, target, frozen):
        with source, target, contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not frozen.is_set():
                    target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def freeze(self):
        self.frozen.set()
        self.frozen = threading.Event()


def through(proxy):
    with psycopg.connect(SERVER) as connection:
        user, name = connection.info.user, connection.info.dbname
    return f"host={proxy.folder.name} port=5432 user={user} dbname={name}"


def start(lease=2, conninfo=SERVER, poll=1, work="--work"):
    process = subprocess.Popen([sys.executable, __file__, work, str(lease), conninfo, str(poll)],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout.readline() == "joined\n"
    return process


class Test(unittest.TestCase):
    def setUp(self):
        empty()
        self.processes = []

    def tearDown(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
            process.stdout.close()
        self.assertEqual(one("SELECT jobq.audit()"), 0)

    def start(self, *arguments):
        self.processes.append(start(*arguments))
        return self.processes[-1]

    def enqueue(self, kind, payload=None, **more):
        names = "".join(f", {name} => %s" for name in more)
        return one(f"SELECT jobq.enqueue('q', %s, %s{names})", kind,
                   None if payload is None else json.dumps(payload), *more.values())

    def states(self):
        return {row[0]: row[1] for row in sql(
            "SELECT id, state::text FROM jobq.history UNION ALL SELECT id, 'f' FROM jobq.failed "
            "UNION ALL SELECT id, state::text FROM jobq.job")}

    def test_jobs_run_and_leave_results(self):
        jobs = [self.enqueue("plain", {"n": n}) for n in range(40)]
        process = self.start()
        wait(lambda: list(self.states().values()) == ["s"] * 40)
        self.assertEqual(sql("SELECT count(*), count(DISTINCT job) FROM effect"), [(40, 40)])
        self.assertEqual(one("SELECT result FROM jobq.history WHERE id = %s", jobs[7]),
                         {"seen": {"n": 7}})
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(one("SELECT count(*) FROM jobq.worker"), 0)
        self.assertEqual(one("SELECT count(*) FROM jobq.claim"), 0)

    def test_policy_of_the_queue(self):
        sql("SELECT jobq.queue_set('q', max_attempts => 4, backoff => 'constant', "
            "backoff_base => '100 ms', backoff_jitter => 0)")
        good = self.enqueue("flaky")
        bad = self.enqueue("flaky", max_attempts=2)
        kept = self.enqueue("ends", {"outcome": "snooze", "delay": "1 hour"})
        gone = self.enqueue("ends", {"outcome": "discard"})
        self.start()
        wait(lambda: self.states() == {good: "s", bad: "f", kept: "r", gone: "f"})
        self.assertEqual(sql("SELECT errors -> -1 ->> 'error' FROM jobq.failed ORDER BY id"), [
            ("Max retries (2) exceeded: ValueError: not yet",), ("said so",)])
        self.assertEqual(one("SELECT jsonb_array_length(errors) FROM jobq.history"), 2)
        self.assertEqual(one("SELECT attempt FROM jobq.job"), 0)

    def test_an_end_that_is_refused_fails_its_job(self):
        sql("SELECT jobq.queue_set('q', max_attempts => 2, backoff => 'constant', "
            "backoff_base => '10 ms')")
        jobs = [self.enqueue("refused", what)
                for what in ("zero", "surrogate", "set", "error", "in a transaction",
                             "unprintable")]
        jobs += [self.enqueue("ends", {"outcome": "no such outcome"}),
                 self.enqueue("ends", {"outcome": "snooze", "delay": "no such delay"}),
                 self.enqueue("leaves")]
        self.start()
        wait(lambda: self.states() == {job: "f" for job in jobs})
        errors = sql("SELECT errors -> -1 ->> 'error' FROM jobq.failed ORDER BY id")
        parts = ("0000", "d800", "set", "NUL", "0000", "Unprintable", "outcome",
                 "no such delay", "SystemExit: not yet")
        for (error,), part in zip(errors, parts, strict=True):
            self.assertRegex(error, "(?s)^Max retries .2. exceeded: .*" + part)
        self.assertEqual(sql("SELECT * FROM effect"), [])
        after = self.enqueue("plain")
        wait(lambda: self.states()[after] == "s")

    def test_what_python_cannot_load_fails_its_job(self):
        sql("SELECT jobq.queue_set('q', max_attempts => 2, backoff => 'constant', "
            "backoff_base => '10 ms')")
        large, deep = "'[' || repeat('9', 5001) || ']'", "repeat('[', 1500) || repeat(']', 1500)"
        jobs = [one(f"SELECT jobq.enqueue('q', 'plain', ({text})::jsonb)")
                for text in (large, deep) * 4]
        jobs.append(one("SELECT jobq.enqueue('q', 'plain', headers => "
                        f"jsonb_build_object('n', ({large})::jsonb))"))
        self.start()
        wait(lambda: self.states() == {job: "f" for job in jobs})
        for (error,), part in zip(sql("SELECT errors -> -1 ->> 'error' FROM jobq.failed "
                                      "ORDER BY id"), ("ValueError", "RecursionError") * 5):
            self.assertRegex(error, "^Max retries .2. exceeded: " + part)
        self.assertEqual(sql("SELECT * FROM effect"), [])

    def test_a_rollback_undoes_the_transaction_alone(self):
        again, no_more = self.enqueue("undoes", "again"), self.enqueue("undoes")
        self.start()
        wait(lambda: self.states() == {again: "s", no_more: "s"})
        self.assertEqual(sql("SELECT * FROM effect"), [(again, "again")])
        self.assertEqual(sql("SELECT result FROM jobq.history ORDER BY id"),
                         [("again",), ("returned",)])

    def test_nothing_is_prepared_that_a_pooler_would_lose(self):
        jobs = [self.enqueue("prepared") for _ in range(40)]
        self.start()
        wait(lambda: self.states() == {job: "s" for job in jobs})
        self.assertEqual(sql("SELECT what, count(*) FROM effect GROUP BY 1"), [("0", 40)])

    def test_a_style_of_intervals_does_not_matter(self):
        sql("SELECT jobq.queue_set('q', timeout => '90 seconds')")
        job = self.enqueue("plain")
        self.start(2, SERVER + " options='-c IntervalStyle=iso_8601'")
        wait(lambda: self.states() == {job: "s"})

    def test_half_open_connections_are_left(self):
        proxy = Proxy()
        self.start(2, through(proxy))
        first = self.enqueue("once")
        wait(lambda: self.states() == {first: "s"})
        proxy.freeze()
        second = self.enqueue("once")
        wait(lambda: self.states() == {first: "s", second: "s"})

    def run_here(self, made):
        thread = threading.Thread(target=made.run)
        thread.start()
        self.addCleanup(lambda: (made.stop(), thread.join()))
        return made, thread

    def in_this_process(self, conninfo=SERVER, **more):
        return self.run_here(worker.Worker(conninfo, HANDLERS, **more))

    def test_read_only_connections_are_left(self):
        """As after a failover: what the old connections lead to is read-only from now on."""
        made, opened = worker.Worker(SERVER, HANDLERS, lease=2), []
        connect = made.connect
        made.connect = lambda: opened.append(connect()) or opened[-1]
        self.run_here(made)
        wait(lambda: one("SELECT count(*) FROM jobq.sleeper") == 1)
        for connection in opened[:]:
            connection.execute("SET default_transaction_read_only = on")
        job = self.enqueue("once")
        wait(lambda: self.states() == {job: "s"})

    def test_settings_of_the_database_do_not_matter(self):
        process = self.start(2, SERVER + " options='-c default_transaction_read_only=on "
                                         "-c default_transaction_isolation=serializable'")
        jobs = [self.enqueue(kind) for kind in ("plain", "sees") * 9]
        wait(lambda: self.states() == {job: "s" for job in jobs})
        self.assertEqual(sql("SELECT what, count(*) FROM effect GROUP BY 1 ORDER BY 1"),
                         [("", 9), ("ran", 9)])
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(one("SELECT count(*) FROM jobq.worker"), 0)

    def test_what_a_handler_changes_in_its_session_is_reset(self):
        sql("DROP ROLE IF EXISTS python_other; CREATE ROLE python_other SUPERUSER")
        self.addCleanup(sql, "DROP ROLE python_other")
        made, thread = self.in_this_process(threads=1)
        jobs = [self.enqueue(kind) for kind in ("changes", "sees") * 2]
        wait(lambda: self.states() == {job: "s" for job in jobs})
        self.assertEqual(sql("SELECT what FROM effect"), [("",), ("",)])
        made.stop()
        thread.join()

    def test_nothing_is_taken_again_and_again(self):
        made, thread = self.in_this_process(lease=2)
        wait(lambda: made.number > 0)
        with psycopg.connect(SERVER) as connection:  # heartbeats wait, and claims do not
            connection.execute("SELECT FROM jobq.worker FOR NO KEY UPDATE")
            wait(lambda: time.monotonic() > made.alive_until)
            began = made.number
            job = self.enqueue("plain")
            time.sleep(2)
            self.assertLess(made.number - began, 9)  # without a lease
        wait(lambda: self.states() == {job: "s"})
        sql("ALTER FUNCTION jobq.work_take RENAME TO gone")
        try:
            began = made.number
            time.sleep(2)
            self.assertLess(made.number - began, 20)  # and each attempt fails
        finally:
            sql("ALTER FUNCTION jobq.gone RENAME TO work_take")
        job = self.enqueue("plain")
        wait(lambda: self.states()[job] == "s")
        made.stop()
        thread.join()

    def test_a_stop_ends_a_worker_that_cannot_connect(self):
        made, thread = self.in_this_process("host=/nowhere")
        made.stop()
        thread.join(60)
        self.assertFalse(thread.is_alive())

    def test_a_notification_wakes(self):
        self.start(2, SERVER, 60)
        waits = []
        for _ in range(3):
            wait(lambda: one("SELECT count(*) FROM jobq.sleeper") == 1)
            time.sleep(6)  # its looks are 0.01, 0.03, ... 5.11 and 10.23 s after the last job
            began = time.monotonic()
            job = self.enqueue("plain")
            wait(lambda: self.states()[job] == "s")
            waits.append(time.monotonic() - began)
        self.assertLess(sorted(waits)[1], 2, waits)  # a look alone would take 4 s

    def test_a_long_queue_of_notifications_is_not_read(self):
        with psycopg.connect(SERVER, autocommit=True) as mine:
            with psycopg.connect(SERVER, autocommit=True) as holder:
                holder.execute("LISTEN filler")
                holder.execute("BEGIN")
                holder.execute("SELECT 1")
                while one("SELECT pg_notification_queue_usage()") < 0.011:
                    sql("SELECT pg_notify('filler', i || repeat('x', 7900)) "
                        "FROM generate_series(1, 500) i")
                mine.execute(worker.LISTEN.format("jobq_0"))
                self.assertEqual(mine.execute("SELECT pg_listening_channels()").fetchall(), [])
                self.start()
                job = self.enqueue("plain")
                wait(lambda: self.states()[job] == "s")
            mine.execute(worker.LISTEN.format("jobq_0"))
            self.assertEqual(mine.execute("SELECT pg_listening_channels()").fetchall(),
                             [("jobq_0",)])

    def test_killed(self):
        jobs = [self.enqueue("slow") for _ in range(3)]
        victim = self.start()
        self.assertEqual(victim.stdout.readline(), "slow\n")
        victim.kill()
        self.start()
        wait(lambda: [self.states()[job] for job in jobs] == ["s"] * 3)
        self.assertEqual(one("SELECT max(crash) FROM jobq.history"), 0)

    def test_a_job_that_kills_its_worker_ends_alone(self):
        bad = self.enqueue("die")
        good = [self.enqueue("slow") for _ in range(3)]
        end = time.monotonic() + 300
        while self.states()[bad] != "f":
            self.assertLess(time.monotonic(), end)
            for process in [self.start(1) for _ in range(2)]:
                try:
                    process.wait(8)
                except subprocess.TimeoutExpired:
                    pass
        wait(lambda: [self.states()[job] for job in good] == ["s"] * 3)
        self.assertEqual(one("SELECT errors -> -1 ->> 'error' FROM jobq.failed"),
                         "Max crashes (3) exceeded: worker died")

    def test_a_frozen_worker_changes_nothing(self):
        job = self.enqueue("once", {"hang": 1})
        frozen = self.start(1)
        self.assertEqual(frozen.stdout.readline(), "inside\n")
        frozen.send_signal(signal.SIGSTOP)
        self.start(1)
        # The frozen one's transaction holds only what it has written itself, so the job moves on.
        wait(lambda: self.states()[job] == "s")
        frozen.send_signal(signal.SIGCONT)
        time.sleep(2)
        self.assertEqual(sql("SELECT * FROM effect"), [(job, "once")])
        after = self.enqueue("plain")
        wait(lambda: self.states()[after] == "s")

    def test_killed_before_the_commit(self):
        job = self.enqueue("once", {"hang": 1})
        victim = self.start(1)
        self.assertEqual(victim.stdout.readline(), "inside\n")
        victim.kill()
        wait(lambda: one("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%%'") == 0)
        self.assertEqual(sql("SELECT * FROM effect"), [])
        self.start(1)
        wait(lambda: self.states()[job] == "s")
        self.assertEqual(sql("SELECT * FROM effect"), [(job, "once")])

    def test_connections_are_cut(self):
        sql("SELECT jobq.queue_set('q', backoff => 'constant', backoff_base => '100 ms')")
        stop = threading.Event()

        def cut():
            while not stop.wait(0.3):
                sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")

        self.start(5)
        thread = threading.Thread(target=cut)
        jobs = [self.enqueue("once", {}) for _ in range(150)]
        thread.start()
        try:
            time.sleep(4)
        finally:
            stop.set()
            thread.join()
        wait(lambda: all(self.states()[job] == "s" for job in jobs))
        self.assertEqual(sql("SELECT count(*), count(DISTINCT job) FROM effect"), [(150, 150)])

    def test_an_outage_proves_no_worker_dead(self):
        watcher = worker.Worker(SERVER, HANDLERS, lease=3)
        watcher.join()
        beats = threading.Thread(target=watcher.beats)
        beats.start()
        try:
            wait(lambda: "since" in watcher.watched)
            since = watcher.watched["since"]
            sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
            wait(lambda: watcher.watched.get("since", since) > since)  # it begins anew
        finally:
            watcher.left.set()
            beats.join()
        watcher.call(watcher.connect(), "work_leave", watcher.worker)

    def test_nor_does_one_between_a_heartbeat_and_its_rescue(self):
        watcher = worker.Worker(SERVER, HANDLERS, lease=3)
        watcher.join()
        call, left = watcher.call, iter([False, True])

        def cut_at_the_rescue(connection, function, *values):
            if function == "work_rescue":
                connection.close()
            return call(connection, function, *values)

        watcher.call, watcher.left.wait = cut_at_the_rescue, lambda _: next(left)
        watcher.beats()
        self.assertEqual(watcher.watched, {})
        call(watcher.connect(), "work_leave", watcher.worker)

    def test_cancel(self):
        job = self.enqueue("hang")
        process = self.start()
        self.assertEqual(process.stdout.readline(), "hanging\n")
        sql("SELECT jobq.cancel(%s)", job)
        wait(lambda: self.states()[job] == "s")  # success after a request is success
        self.assertEqual(sql("SELECT what FROM effect"), [("stopped",)])

    def test_a_late_heartbeat_stops_handlers_and_cancels_nothing(self):
        job = self.enqueue("gives_up")
        process = self.start(1)
        self.assertEqual(process.stdout.readline(), "waiting\n")
        with psycopg.connect(SERVER) as connection:
            connection.execute("SELECT FROM jobq.worker FOR UPDATE")  # heartbeats wait
            wait(lambda: one("SELECT state FROM jobq.jobs WHERE id = %s", job) != "running")
        wait(lambda: self.states()[job] == "s")

    def test_a_batch_ends_job_by_job(self):
        jobs = [self.enqueue("store", "odd" if n == 3 else "good") for n in range(7)]
        plains = [self.enqueue("plain", n) for n in range(5)]
        self.start(2, SERVER, 1, "--batch")
        wait(lambda: sorted(self.states().values()) == ["f"] + ["s"] * 11)
        self.assertEqual(self.states()[jobs[3]], "f")
        self.assertEqual(one("SELECT errors->-1->>'error' FROM jobq.failed"), "odd")
        self.assertGreater(one("SELECT max(what::int) FROM effect WHERE what <> 'ran'"), 1)
        self.assertEqual(one("SELECT count(*) FROM jobq.history WHERE result = to_jsonb(id)"), 6)
        self.assertEqual(one("SELECT count(*) FROM effect WHERE what = 'ran'"), len(plains))

    def test_a_bad_job_is_alone_in_the_end(self):
        jobs = [self.enqueue("store", "bad" if n == 3 else "good", max_attempts=5)
                for n in range(8)]
        sql("SELECT jobq.queue_set('q', backoff_base => '10 ms', backoff_cap => '20 ms')")
        self.start(2, SERVER, 1, "--batch")
        wait(lambda: sorted(self.states().values()) == ["f"] + ["s"] * 7)
        self.assertEqual(self.states()[jobs[3]], "f")
        self.assertGreaterEqual(one("SELECT count(*) FROM effect WHERE job = %s AND what = '1'",
                                    jobs[3]), 2)  # in attempts 4 and 5
        self.assertLessEqual(one("SELECT max(attempt) FROM jobq.history"), 4)

    def test_a_batch_commits_with_all_its_ends(self):
        for _ in range(20):
            self.enqueue("store", "own")
        self.start(2, SERVER, 1, "--batch")
        wait(lambda: list(self.states().values()) == ["s"] * 20)
        self.assertEqual(sql("SELECT count(*), count(DISTINCT job) FROM effect "
                             "WHERE what = 'own'"), [(20, 20)])
        self.assertEqual(one("SELECT count(*) FROM jobq.history WHERE result = to_jsonb(id)"), 20)

    def test_a_stop_waits_for_handlers_and_gives_the_rest_back(self):
        jobs = [self.enqueue("slow") for _ in range(6)]
        process = self.start()
        for _ in range(4):
            self.assertEqual(process.stdout.readline(), "slow\n")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)
        states = sorted(self.states()[job] for job in jobs)
        self.assertEqual(states, ["r", "r", "s", "s", "s", "s"])
        self.assertEqual(one("SELECT max(attempt) FROM jobq.job"), 0)
        self.assertEqual(one("SELECT count(*) FROM jobq.worker"), 0)


if __name__ == "__main__":
    if sys.argv[1:2] in (["--work"], ["--batch"]):
        handlers = HANDLERS if sys.argv[1] == "--work" else BATCHES
        made = worker.Worker(sys.argv[3], handlers, lease=float(sys.argv[2]))
        made.poll = float(sys.argv[4])
        joined = made.join

        def join():
            joined()
            if not made.jobs:
                print("joined", flush=True)
        made.join = join
        made.run()
    else:
        install()
        unittest.main(verbosity=2)
