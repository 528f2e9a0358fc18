#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0 OR Unlicense
"""test_languages.py [TEST...]  runs the smallest workers, examples/node/ and examples/go/, where their
toolchains and packages are present; exit status 77: one was skipped. Needs JOBQ_SERVER:
tests/server.sh.
"""
import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

import psycopg

from test_worker import ROOT, SERVER, empty, install, one, sql, wait

BUILD = os.path.join(ROOT, ".build")


def prepared(name, *commands):
    """A copy of the example with its packages, or None if they cannot be had."""
    folder = os.path.join(BUILD, name)
    shutil.copytree(os.path.join(ROOT, "examples", name), folder, dirs_exist_ok=True)
    for command in commands:
        if shutil.which(command[0]) is None:
            return None, f"{command[0]} is not installed"
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
        if done.returncode:
            return None, f"{' '.join(command)}: {done.stderr.strip()[-200:]}"
    return folder, ""


class Languages(unittest.TestCase):
    def works(self, folder, why, *command):
        if folder is None:
            self.skipTest(why)
        empty()
        sql("SELECT jobq.queue_set('mail', max_attempts => 2, backoff => 'constant', "
            "backoff_base => '10 ms')")
        sql("SELECT jobq.enqueue('mail', 'welcome', jsonb_build_object('to', n)), "
            "jobq.enqueue('mail', 'bounce', '{}') FROM generate_series(1, 5) n")
        sql("SELECT jobq.enqueue('mail', 'other')")  # for which it has no handler
        process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        try:
            wait(lambda: one("SELECT count(*) FROM jobq.job") == 1 or process.poll() is not None, 60)
            process.send_signal(signal.SIGTERM)
            self.assertEqual((process.wait(20), process.stderr.read()), (0, ""))
        finally:
            process.kill()
            process.stderr.close()
        self.assertEqual(sql("SELECT state::text, attempt, count(*), count(result ->> 'greeted') "
                             "FROM jobq.history GROUP BY 1, 2"), [("s", 1, 5, 5)])
        self.assertEqual(sql("SELECT attempt, count(*) FROM jobq.failed WHERE errors -> -1 ->> "
                             "'error' LIKE 'Max retries (2) exceeded: no such user%' GROUP BY 1"),
                         [(2, 5)])
        self.assertEqual(sql("SELECT count(*) FROM jobq.worker"), [(0,)])
        self.assertEqual(one("SELECT jobq.audit()"), 0)

    def test_sizes(self):
        """What examples/README.md says of them."""
        with open(os.path.join(ROOT, "examples/README.md"), encoding="utf-8") as file:
            text = " ".join(file.read().split())
        self.assertIn("in 265 lines (blank ones not counted)", text)
        self.assertIn("have 50 and 60, and run one job at a time", text)
        for name, most in ("python/worker.py", 265), ("node/worker.mjs", 50), ("go/worker.go", 60):
            with open(os.path.join(ROOT, "examples", name), encoding="utf-8") as file:
                self.assertLessEqual(sum(not line.isspace() for line in file), most, name)

    def test_node(self):
        folder, why = prepared("node", ["npm", "install", "--no-audit", "--no-fund"])
        with psycopg.connect(SERVER) as connection:
            where = {"host": connection.info.host, "port": connection.info.port,
                     "user": connection.info.user, "database": connection.info.dbname}
        self.works(folder, why, "node", "worker.mjs", json.dumps(where))

    def test_go(self):
        folder, why = prepared("go", ["go", "mod", "tidy"], ["go", "build", "-o", "worker", "."])
        self.works(folder, why, "./worker", SERVER)


if __name__ == "__main__":
    install()
    result = unittest.main(verbosity=2, exit=False).result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
