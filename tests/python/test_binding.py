#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0 OR Unlicense
"""test_binding.py  tests examples/python/jobq.py: the library called from Python. Needs
JOBQ_SERVER: tests/server.sh.
"""
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import psycopg

os.environ.setdefault("JOBQ_BUILD", os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                 "..", "..", ".build", "python"))
from test_worker import SERVER, empty, install, one, sql, wait
import jobq  # noqa: E402


def state(job):
    rows = sql("SELECT state::text FROM jobq.history WHERE id = %(id)s UNION ALL SELECT 'f' FROM "
               "jobq.failed WHERE id = %(id)s UNION ALL SELECT state::text FROM jobq.job WHERE "
               "id = %(id)s".replace("%(id)s", str(job)))
    return rows[0][0] if rows else None


class Binding(unittest.TestCase):
    def setUp(self):
        empty()
        self.db = jobq.Database(SERVER)

    def test_migrates_a_schema_of_its_own(self):
        db = jobq.Database(SERVER, schema="from_python")
        db.migrate()
        job = db.enqueue("q", "k")
        self.assertEqual(one("SELECT id FROM from_python.job"), job)
        sql("DROP SCHEMA from_python CASCADE")

    def test_handlers_are_functions(self):
        seen, lock = [], threading.Lock()

        def work(call):
            with lock:
                seen.append((call.payload, call.headers, call.attempt))
            call.log("at work")
            if call.payload == "again" and call.attempt == 1:
                raise KeyError("once")
            if call.payload == "bad":
                raise jobq.Outcome("discard", "no — never")
            return {"got": call.payload} if isinstance(call.payload, str) else call.payload

        self.db.enqueue("q", "k", "ann", headers={"tag": "x"})
        self.db.enqueue("q", "k", b"\0\xff")
        again = self.db.enqueue("q", "k", "again")
        bad = self.db.enqueue("q", "k", "bad")
        sql("SELECT jobq.queue_set('q', backoff => 'constant', backoff_base => '10 ms')")
        self.db.work({("q", "k"): work}, until="ended", threads=3)
        self.assertEqual(sorted(map(str, seen)), sorted(map(str, [
            ("ann", {"tag": "x"}, 1), (b"\0\xff", None, 1), ("again", None, 1), ("again", None, 2),
            ("bad", None, 1)])))
        self.assertEqual(sql("SELECT result, result_bytes FROM jobq.history ORDER BY id"), [
            ({"got": "ann"}, None), (None, b"\0\xff"), ({"got": "again"}, None)])
        self.assertEqual(one("SELECT errors -> 0 ->> 'error' FROM jobq.history WHERE id = %s", again),
                         "KeyError: 'once'")
        self.assertEqual(one("SELECT errors -> 0 ->> 'error' FROM jobq.failed WHERE id = %s", bad),
                         "no — never")

    def test_stages_hand_on(self):
        def add(call):
            return {"n": call.payload["n"] + 1}

        self.db.enqueue("q", "k", {"n": 0}, stages=3)
        self.db.work({("q", "k"): add}, until="ended")
        self.assertEqual(sql("SELECT payload, result FROM jobq.history"), [({"n": 2}, {"n": 3})])

    def test_enqueue_in_a_transaction_of_psycopg(self):
        with psycopg.connect(SERVER) as connection:
            lost = self.db.enqueue("q", "k", connection=connection)
            connection.rollback()
            kept = self.db.enqueue("q", "k", connection=connection)
            self.assertIsNone(state(kept))
        self.assertEqual((state(lost), state(kept)), (None, "r"))

    def test_refusals_are_exceptions(self):
        with self.assertRaises(jobq.Error) as caught:
            self.db.enqueue("no queue", "k")
        self.assertEqual(caught.exception.code, "invalid")
        self.assertIn("queue", str(caught.exception))
        with self.assertRaises(AttributeError):
            self.db.enqueue("q", "k", no_such_field=1)
        with self.assertRaises(jobq.Error):
            jobq.Database("host=/nowhere", patience_us=0).migrate()
        self.assertEqual(one("SELECT count(*) FROM jobq.job"), 0)

    def test_an_exception_that_is_none_of_ours(self):
        def work(call):
            raise SystemExit(3)  # a BaseException: cffi prints it, and the job runs again

        sql("SELECT jobq.queue_set('q', max_attempts => 1)")
        job = self.db.enqueue("q", "k")
        self.db.work({("q", "k"): work}, until="ended")
        self.assertEqual(state(job), "f")

    def test_a_signal_stops_it(self):
        for n in range(20):
            self.db.enqueue("q", "k", n)
        process = subprocess.Popen([sys.executable, "-c", (
            "import sys, time; sys.path[:0] = %r; import jobq\n"
            "jobq.Database(%r).work({('q', 'k'): lambda call: time.sleep(0.2)}, threads=2)"
            % (sys.path[:3], SERVER))])
        wait(lambda: one("SELECT count(*) FROM jobq.history") >= 3, 60)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(30), 0)
        self.assertGreater(one("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"), 0)
        self.assertEqual(one("SELECT count(*) FROM jobq.job WHERE state <> 'r'"), 0)

    def test_memory(self):
        codes = [452, 250]

        def send(call):
            if codes.pop(0) != 250:
                raise RuntimeError("mailbox full")
            return call.payload

        test = jobq.Memory({("mail", "welcome"): send})
        job = test.enqueue("mail", "welcome", {"to": "ann"})
        late = test.enqueue("mail", "other", delay_us=10**12)
        began = time.monotonic()
        self.assertEqual(test.run(3600), 2)
        self.assertEqual((test.state(job), test.result(job)), ("succeeded", {"to": "ann"}))
        self.assertEqual(test.state(late), "ready")
        self.assertLess(time.monotonic() - began, 30)
        with self.assertRaises(ValueError):
            test.enqueue("no queue", "k")

    def test_declarations_come_from_the_headers(self):
        text = jobq.declarations()
        for name in ("jobq_pg_enqueue_many", "jobq_job_decide", "jobq_test_run"):
            self.assertIn(f"{name}(", text)
        self.assertNotIn("PQconnectdb", text)


if __name__ == "__main__":
    install()
    unittest.main(verbosity=2)
