#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0 OR Unlicense
"""test_export.py PROGRAM  reads back what jobq export --parts writes, with pyarrow. Needs
JOBQ_SERVER: tests/server.sh.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import pyarrow.csv
import pyarrow.json

from test_worker import SERVER, install, one, sql

PROGRAM = ""
ODD = ['a "quoted", text', "two\nlines\r\n", "\u00e4\u2014\U0001f337", "", "\\N", "x" * 70000, "{}",
       "\u0001\u0002", None]


def export(folder, *arguments, ok=0):
    done = subprocess.run([PROGRAM, "-d", SERVER, *arguments, "export", "--parts", folder],
                          capture_output=True, text=True, timeout=60)
    if done.returncode != ok:
        raise AssertionError((done.returncode, done.stdout, done.stderr))
    return done.stdout.split()


def run_jobs(first, count):
    sql("DO $$ DECLARE w bigint; BEGIN PERFORM jobq.enqueue('q', 'k', jsonb_build_object('n', n)) "
        f"FROM generate_series({first}, {first + count - 1}) n; w := (SELECT worker FROM "
        "jobq.work_join('{\"q\": [\"k\"]}')); FOR i IN 1 .. 20 LOOP PERFORM jobq.work_done(w, i, "
        "t.id, t.payload) FROM jobq.work_take(w, i, 1000) t; END LOOP; PERFORM jobq.work_leave(w); "
        "END $$")


def turn():
    sql("UPDATE jobq.ring SET since = now() - keep WHERE retention = 'medium'; SELECT jobq.turn()")
    sql("UPDATE jobq.ring SET since = now() - interval '2 min'")


class Export(unittest.TestCase):
    def setUp(self):
        sql("TRUNCATE jobq.job, jobq.history; UPDATE jobq.ring SET slot = first, turns = 8, "
            "exported = 0")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def odd(self):
        with_text = json.dumps
        for n, text in enumerate(ODD):
            sql("SELECT jobq.enqueue('q', 'k', %s, headers => %s)", with_text({"text": text}),
                with_text({"no": n, "tag": text}))
        sql("SELECT jobq.enqueue('q', 'k', bytes => '\\x00ff0a22'::bytea)")
        run_jobs(1, 1)
        turn()

    def test_json_lines(self):
        self.odd()
        path, = export(self.folder.name, "--json")
        self.assertEqual(os.path.basename(path), "jobq-medium-8.jsonl")
        table = pyarrow.json.read_json(path, read_options=pyarrow.json.ReadOptions(
            block_size=1 << 24)).sort_by("id")
        with open(path, encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        self.assertEqual(table.num_rows, len(ODD) + 2)
        self.assertEqual(table["id"].to_pylist(), sorted(row["id"] for row in rows))
        rows.sort(key=lambda row: row["id"])
        self.assertEqual([row["payload"] and row["payload"].get("text") for row in rows[:len(ODD)]],
                         ODD)
        self.assertEqual(table["headers"].combine_chunks().field("no").to_pylist()[:len(ODD)],
                         list(range(len(ODD))))
        self.assertEqual(table["state"].to_pylist(), ["succeeded"] * table.num_rows)
        self.assertEqual(rows[len(ODD)]["bytes"], "\\x00ff0a22")

    def test_csv(self):
        self.odd()
        path, = export(self.folder.name)
        self.assertEqual(os.path.basename(path), "jobq-medium-8.csv")
        table = pyarrow.csv.read_csv(
            path, read_options=pyarrow.csv.ReadOptions(block_size=1 << 24),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={"payload": pyarrow.string(), "headers": pyarrow.string()},
                strings_can_be_null=True, quoted_strings_can_be_null=False)).sort_by("id")
        payloads = [text and json.loads(text) for text in table["payload"].to_pylist()]
        self.assertEqual([payload["text"] for payload in payloads[:len(ODD)]], ODD)
        self.assertIsNone(payloads[len(ODD)])
        self.assertEqual(table["bytes"].to_pylist()[len(ODD)], "\\x00ff0a22")
        self.assertEqual(set(table["queue"].to_pylist()), {"q"})

    def test_each_job_is_in_one_file(self):
        written = []
        for n in range(5):
            run_jobs(n * 100 + 1, 100)
            turn()
            if n % 2 == 0:
                written += export(self.folder.name, "--json")
        written += export(self.folder.name, "--json")
        self.assertEqual(len(written), 5)
        self.assertEqual(export(self.folder.name, "--json"), [])
        seen = [row for path in written
                for row in pyarrow.json.read_json(path)["payload"].combine_chunks().field("n").to_pylist()]
        self.assertEqual(sorted(seen), list(range(1, 501)))

    def test_a_file_has_its_name_when_it_is_complete(self):
        run_jobs(1, 2000)
        sql("UPDATE jobq.history SET payload = jsonb_build_object('n', payload -> 'n', 'x', "
            "repeat('x', 9000))")
        turn()
        for wait in (0.02, 0.05, 0.1, 0.2, 0.3):
            process = subprocess.Popen([PROGRAM, "-d", SERVER, "--json", "export", "--parts",
                                        self.folder.name], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
            time.sleep(wait)
            process.send_signal(signal.SIGKILL)
            process.wait()
            for name in os.listdir(self.folder.name):
                if name.endswith(".jsonl"):
                    self.assertEqual(pyarrow.json.read_json(
                        os.path.join(self.folder.name, name)).num_rows, 2000)
            if one("SELECT exported FROM jobq.ring WHERE retention = 'medium'") >= 8:
                break
            end = time.monotonic() + 30
            while one("SELECT count(*) FROM pg_locks WHERE mode = 'ShareRowExclusiveLock'") > 0:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.05)
        export(self.folder.name, "--json")
        self.assertEqual(os.listdir(self.folder.name), ["jobq-medium-8.jsonl"])
        self.assertEqual(pyarrow.json.read_json(os.path.join(
            self.folder.name, "jobq-medium-8.jsonl")).num_rows, 2000)

    def test_what_cannot_be_written_is_not_exported(self):
        run_jobs(1, 10)
        turn()
        export("/nowhere/at/all", ok=1)
        self.assertEqual(one("SELECT exported FROM jobq.ring WHERE retention = 'medium'"), 0)
        self.assertEqual(len(export(self.folder.name)), 1)
        export(self.folder.name, ok=0)
        done = subprocess.run([PROGRAM, "-d", SERVER, "export", "--parts", self.folder.name,
                               "--queue", "q"], capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    install()
    unittest.main(verbosity=2)
