#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0 OR Unlicense
"""test_web.py PROGRAM [TEST...]  tests jobq web in a headless Chromium, and by plain HTTP

Needs JOBQ_SERVER and its psql: tests/server.sh.
"""
import base64
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SERVER = os.environ["JOBQ_SERVER"]
PSQL = os.path.join(os.environ["JOBQ_SERVER_BIN"], "psql")
AXE = os.path.join(ROOT, ".build/axe/node_modules/axe-core/axe.min.js")
PROGRAM = ""
SCHEMA = "jobq"
PAGES = ["/", "/jobs", "/jobs/1", "/flows", "/flows/1", "/queues", "/workers", "/schedules", "/outbox",
         "/failures", "/audit", "/letters/1"]
SCRIPT = "<script>document.title=7</script>"


def sql(text):
    """The first column of each row."""
    done = subprocess.run([PSQL, "-XqAt", "-v", "ON_ERROR_STOP=1", SERVER], input=text, text=True,
                          capture_output=True, timeout=120)
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout.split("\n")[:-1]


def seed():
    subprocess.run([PSQL, "-Xq", SERVER, "-f", os.path.join(ROOT, "sql/install.sql")], check=True,
                   capture_output=True)
    sql(f"""
        SET client_min_messages = error;
        CREATE EXTENSION IF NOT EXISTS pg_stat_statements;
        CREATE ROLE web_operator LOGIN; SELECT jobq.grant_operate('web_operator');
        SELECT jobq.grant_enqueue('web_operator');
        CREATE ROLE web_reader LOGIN;
        SELECT jobq.grant_read('web_reader', payloads => false);
        SELECT jobq.enqueue('mail', 'welcome', '{{"to": "{SCRIPT}"}}', key => '{SCRIPT}'),
               jobq.enqueue('video', 'encode', '{{"secret": "tulip"}}', delay => '1 hour');
        SELECT jobq.enqueue('five', 'one', jsonb_build_object('no', n)) FROM generate_series(1, 5) n;
        SELECT jobq.schedule('nightly', 'mail', 'digest', cron => '0 3 * * *');
        SELECT jobq.schedule('poll', 'mail', 'poll', every => '5 min');
        SELECT jobq.outbox_register('orders', 2);
        SELECT jobq.outbox_enqueue('orders', '{{"total": 5}}', order_key => 'c', type => 'placed');
        INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt,
                                 crash, priority, stage, stages, payload, errors)
        SELECT nextval('jobq.job_id'), now() - interval '3 min', now() - interval '9 min', now(),
               k.queue_id, k.id, 2, 0, 0, 0, 1, '{{"n": 1}}', jsonb_build_array(jsonb_build_object(
               'at', now() - interval '5 min', 'stage', 0, 'attempt', 1, 'log',
               '[["2026-11-24", "info", "tried twice"]]'::jsonb, 'error',
               format('no answer from host %s <b>', n)))
        FROM generate_series(1, 4) n, jobq.kind k WHERE k.name = 'welcome';
        INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at, attempts,
                                      type, error, payload)
        SELECT p.queue_id, p.id, 900 + n, now(), now(), 3, 'placed', 'no such address', '{{"d": 1}}'
        FROM jobq.partition p, generate_series(1, 2) n WHERE p.number = 1;
        SELECT jobq.flow('import <b>');
        SELECT jobq.enqueue('etl', 'load', flow => 1, name => 'load-' || n) FROM generate_series(1, 2) n;
        SELECT jobq.enqueue('etl', 'merge', flow => 1, name => 'merge',
                            after_names => '{{load-1,load-2}}');
        SELECT jobq.enqueue('big', 'row');
        INSERT INTO jobq.job (queue_id, kind_id, payload)
        SELECT k.queue_id, k.id, '{{"a": 1}}' FROM jobq.kind k, generate_series(1, 100000)
        WHERE k.queue = 'big';
        ANALYZE""")


class Dashboard:
    """A running jobq web."""

    def __init__(self, role, *args, log=None):
        conninfo = SERVER.replace("user=postgres", f"user={role}")
        self.process = subprocess.Popen([PROGRAM, "-d", conninfo, "--schema", SCHEMA, "web", "--listen", "127.0.0.1:0",
                                         *args], stdout=subprocess.PIPE, stderr=log, text=True)
        self.url = self.process.stdout.readline().strip().rstrip("/")
        self.port = int(self.url.rsplit(":", 1)[1])

    def ask(self, path, method="GET", body=None, **headers):
        """Answers status, headers and text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers, text

    def form(self, path):
        """The fields of a page's form, and its cookie."""
        _, headers, text = self.ask(path)
        fields = dict(re.findall(r'<input type=hidden name="?(\w+)"? value="([^"]*)">', text))
        return fields, headers["Set-Cookie"].split(";")[0]

    def stop(self):
        self.process.terminate()
        self.process.stdout.close()
        return self.process.wait(timeout=10)


def browser(script=True):
    options = webdriver.ChromeOptions()
    for option in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                   "--window-size=1200,900", "--force-color-profile=srgb"]:
        options.add_argument(option)
    if not script:
        options.add_experimental_option(
            "prefs", {"profile.managed_default_content_settings.javascript": 2})
    return webdriver.Chrome(options=options)


class Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile("w", delete=False) as users:
            users.write("# who: password\nada:love lace\nbob:x\n")
        cls.users = users.name
        cls.login = Dashboard("web_operator", "--basic", cls.users)
        cls.operator = Dashboard("web_operator")
        cls.reader = Dashboard("web_reader")
        cls.chrome = browser()

    @classmethod
    def tearDownClass(cls):
        cls.chrome.quit()
        codes = [dashboard.stop() for dashboard in (cls.login, cls.operator, cls.reader)]
        os.unlink(cls.users)
        assert codes == [0, 0, 0], codes

    def all(self, selector):
        return self.chrome.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.chrome.find_element(By.CSS_SELECTOR, selector)

    def wait(self, condition):
        return WebDriverWait(self.chrome, 10, ignored_exceptions=[StaleElementReferenceException]) \
            .until(lambda _: condition())

    def dashboard(self, *args, **more):
        """One more, which a test that fails does not leave behind."""
        dashboard = Dashboard(*args, **more)
        self.addCleanup(lambda: dashboard.process.poll() is None and dashboard.process.kill())
        return dashboard

    def until(self, condition, seconds=20):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end)

    def press(self, selector):
        """Clicks in a section that may be replaced at any time."""
        self.wait(lambda: [self.one(selector).click()])

    def press_and_accept(self, selector):
        """Presses a button, and the one of the page that asks whether to."""
        self.press(selector)
        self.wait(lambda: self.all("input[name=sure]"))
        question = self.one("main").text
        self.one("button.main[name=do]").click()
        self.wait(lambda: self.all(".said:not(.warn)"))
        return question

    # -- plain HTTP ----------------------------------------------------------------------------

    def test_headers(self):
        for path in PAGES + ["/style.css", "/script.js", "/icon.svg", "/none"]:
            status, headers, _ = self.operator.ask(path)
            self.assertEqual(status, 404 if path == "/none" else 200, path)
            self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
            self.assertNotIn("unsafe", headers["Content-Security-Policy"])
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
            self.assertIsNone(headers["Access-Control-Allow-Origin"])
        self.assertLess(len(self.operator.ask("/script.js")[2]), 4096)
        cookie = self.operator.ask("/")[1]["Set-Cookie"]
        self.assertIn("SameSite=Strict", cookie)
        self.assertIn("HttpOnly", cookie)
        self.assertEqual(self.operator.ask("/", "HEAD")[0], 200)

    def test_methods(self):
        for method, path in [("GET", "/do"), ("POST", "/jobs"), ("PUT", "/"), ("DELETE", "/jobs/1"),
                             ("OPTIONS", "/")]:
            self.assertEqual(self.operator.ask(path, method)[0], 405, (method, path))

    def test_login(self):
        status, headers, text = self.login.ask("/jobs")
        self.assertEqual((status, "mail" in text), (401, False))
        self.assertIn("Basic", headers["WWW-Authenticate"])
        for pair, want in [("ada:love lace", 200), ("bob:x", 200), ("ada:love", 401), ("ada:x", 401),
                           ("# who: password", 401), ("ada:", 401), (":", 401), ("", 401)]:
            value = "Basic " + base64.b64encode(pair.encode()).decode()
            self.assertEqual(self.login.ask("/jobs", Authorization=value)[0], want, pair)

    def test_user_header(self):
        proxy = Dashboard("web_reader", "--user-header", "X-User")
        self.assertEqual(proxy.ask("/")[0], 401)
        status, _, text = proxy.ask("/", X_User="eve<i>")
        self.assertEqual((status, "eve&lt;i&gt;" in text), (200, True))
        self.assertEqual(proxy.stop(), 0)

    def test_listen_beyond_this_machine_needs_users(self):
        done = subprocess.run([PROGRAM, "-d", SERVER, "web", "--listen", "0.0.0.0:0"],
                              capture_output=True, text=True, timeout=20)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--basic", done.stderr)

    def test_wrong_passwords(self):
        """They cost a second each, and are told to whoever reads standard error."""
        with tempfile.TemporaryFile("w+") as log:
            dashboard = self.dashboard("web_reader", "--basic", self.users, log=log)
            login = lambda pair: {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
            start = time.monotonic()
            for n in range(4):
                self.assertEqual(dashboard.ask("/", **login(f"eve{n}\x1b:x"))[0], 401)
            self.assertGreater(time.monotonic() - start, 2.9)
            self.assertEqual(dashboard.ask("/", **login("bob:x"))[0], 200)
            self.assertEqual(dashboard.stop(), 0)
            log.seek(0)
            self.assertEqual(re.findall("log-in refused: .*", log.read()),
                             [f"log-in refused: 'eve{n}\\x1b' from 127.0.0.1" for n in range(4)])

    def test_half_open_connections(self):
        """One address gets a hundred connections, and each has ten seconds to send its headers."""
        dashboard = self.dashboard("web_reader")
        sockets, start = [], time.monotonic()
        for _ in range(110):
            s = socket.create_connection(("127.0.0.1", dashboard.port))
            self.addCleanup(s.close)
            s.sendall(b"GET / HTTP/1.1\r\n")
            sockets.append(s)
        left = set(sockets)
        def cut():
            for s in list(left):
                try:
                    s.settimeout(0.001)
                    if s.recv(100) == b"":
                        left.remove(s)
                    continue
                except TimeoutError:
                    pass
                except ConnectionResetError:
                    left.remove(s)
            return len(left)
        self.until(lambda: cut() <= 100, 5)
        self.assertEqual(cut(), 100)
        while cut() > 0:  # though each sends a byte a second
            self.assertLess(time.monotonic() - start, 30)
            for s in left:
                try:
                    s.sendall(b"X")
                except OSError:
                    pass
            time.sleep(0.5)
        self.assertEqual(dashboard.ask("/workers")[0], 200)
        self.assertEqual(dashboard.stop(), 0)

    def test_foreign_host(self):
        for host, want in [("localhost", 200), ("127.0.0.1:80", 200), ("evil.example", 421),
                           ("127.0.0.1.evil.example", 421)]:
            self.assertEqual(self.operator.ask("/", Host=host)[0], want, host)

    def send(self, change=None, cookie=True, **headers):
        """Sends a form that would cancel job 2, with a change. Answers the status."""
        fields, session = self.operator.form("/jobs?queue=video")
        fields.update({"id": "2", "do": "cancel"}, **(change or {}))
        headers = {"Origin": self.operator.url, **({"Cookie": session} if cookie else {}), **headers}
        status = self.operator.ask("/do", "POST", urllib.parse.urlencode(fields), **headers)[0]
        self.assertEqual(sql("SELECT state FROM jobq.jobs WHERE id = 2"), ["ready"])
        return status

    def test_forged_forms(self):
        self.assertEqual(self.send(Origin="http://evil.example"), 403)
        self.assertEqual(self.send(Origin="null"), 403)
        self.assertEqual(self.send(Origin=""), 403)
        self.assertEqual(self.send(Sec_Fetch_Site="cross-site"), 403)
        self.assertEqual(self.send({"token": "1-00"}), 403)
        self.assertEqual(self.send({"token": ""}), 403)
        self.assertEqual(self.send(cookie=False), 403)
        self.assertEqual(self.send(Cookie="jobq_session=" + "0" * 32), 403)
        self.assertEqual(self.send({"form": "queues", "do": "pause video"}), 403)
        self.assertEqual(self.send({"do": "pause video"}), 400)
        self.assertEqual(self.send({"do": "drop"}), 400)
        self.assertEqual(self.send({"pad": "x" * 70000}), 413)

    def test_back_stays_here(self):
        for back, want in [("//evil.example/", "/"), ("http://evil.example", "/"),
                           ("/jobs?queue=a", "/jobs?queue=a"), ("/\\evil.example", "/")]:
            fields, session = self.operator.form("/jobs?queue=none&key=none")
            body = urllib.parse.urlencode({**fields, "id": "999999", "do": "cancel", "back": back, "sure": "1"})
            status, headers, _ = self.operator.ask("/do", "POST", body, Cookie=session,
                                                   Origin=self.operator.url)
            self.assertEqual(status, 303)
            self.assertEqual(headers["Location"], want)

    def post(self, path, back=None, dashboard=None, form=None, **fields):
        """Presses a button of a page. Answers status, headers, text, and a way to press it again."""
        dashboard = dashboard or self.operator
        shown, session = form or dashboard.form(path)
        body = urllib.parse.urlencode({**shown, "back": back or path, **fields})
        return (*dashboard.ask("/do", "POST", body, Cookie=session, Origin=dashboard.url),
                (shown, session))

    def said(self, form, path, dashboard=None):
        """What a page says of the last press, and then no more."""
        say = lambda: re.findall(r"<p class=said role=status>([^<]*)</p>", (
            dashboard or self.operator).ask(path, Cookie=form[1])[2])
        text = say()
        self.assertEqual(say(), [])
        return text

    def test_form_works_once(self):
        """A second press of the same form, as by a double click or the back button, does nothing."""
        status, headers, _, form = self.post("/schedules", do="schedule_run poll")
        self.assertEqual((status, headers["Location"]), (303, "/schedules"))
        status, _, text, _ = self.post("/schedules", form=form, do="schedule_run poll")
        self.assertEqual((status, "used before" in text), (409, True))
        self.assertEqual(sql("SELECT count(*) FROM jobq.jobs WHERE kind = 'poll'"), ["1"])
        sql("SELECT jobq.delete('mail', 'ready', kind => 'poll')")

    def test_answers_come_from_the_server(self):
        """No address makes a page say that something was done, and no other session learns it."""
        lie = "/queues?done=delete_all&n=1000000&of=anything"
        self.assertNotIn("class=said", self.operator.ask(lie)[2])
        *_, form = self.post("/queues", do="pause orders")
        self.assertNotIn("class=said", self.operator.ask("/queues")[2])
        self.assertNotIn("class=said", self.operator.ask("/workers", Cookie=form[1])[2])
        self.assertEqual(self.said(form, "/queues"), ["Pause orders: done"])
        *_, form = self.post("/queues", do="pause orders")
        self.assertEqual(self.said(form, "/queues"),
                         ["Pause orders: nothing was done: it was paused before"])
        *_, form = self.post("/queues", do="resume orders")
        self.assertEqual(self.said(form, "/queues"), ["Resume orders: done"])

    def test_nothing_was_done(self):
        """A schedule whose last run has not ended does not run; a queue without letters has none."""
        sql("SELECT jobq.schedule('lazy', 'mail', 'lazy', every => '1 day', overlap => 'skip')")
        said = []
        for _ in range(2):
            *_, form = self.post("/schedules", do="schedule_run lazy")
            said += self.said(form, "/schedules")
        self.assertRegex(said[0], r"^Run now lazy: \d+$")
        self.assertEqual(said[1], "Run now lazy: nothing was done: its last job has not ended, and "
                         "overlap is skip")
        *_, form = self.post("/outbox", do="discard five")
        self.assertEqual(self.said(form, "/outbox"), ["Discard five: nothing was done: there is none"])
        job = sql("SELECT id FROM jobq.jobs WHERE kind = 'lazy'")[0]
        *_, form = self.post("/jobs", do="revive", id=job)
        self.assertEqual(self.said(form, "/jobs"), ["Revive: 0 of 1 (ready)"])
        sql("SELECT jobq.schedule_drop('lazy'), jobq.delete('mail', 'ready', kind => 'lazy')")

    def test_all_means_all(self):
        """2,050 of 2,053 failed jobs are revived; three others have taken their keys."""
        sql("""SELECT jobq.enqueue('all', 'a', key => 'k' || n) FROM generate_series(1, 3) n;
            INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt,
                                     crash, priority, stage, stages, key, errors)
            SELECT nextval('jobq.job_id'), now(), now(), now(), k.queue_id, k.id, 2, 0, 0, 0, 1,
                   CASE WHEN n < 4 THEN 'k' || n END,
                   jsonb_build_array(jsonb_build_object('at', now(), 'error', format('disk %s full', n)))
            FROM generate_series(1, 2053) n, jobq.kind k WHERE k.queue = 'all'""")
        path = "/jobs?state=failed&queue=all"
        status, _, text, form = self.post(path, do="revive_all")
        self.assertEqual((status, "Revive 2053 jobs" in text), (200, True))
        self.assertEqual(sql("SELECT failed FROM jobq.queues WHERE queue = 'all'"), ["2053"])
        status, headers, *_ = self.post(path, form=form, do="revive_all", sure=1)
        end = time.monotonic() + 60
        while sql("SELECT failed FROM jobq.queues WHERE queue = 'all'") != ["3"]:
            self.assertLess(time.monotonic(), end)
        self.assertEqual(status, 303)
        want = "2050 of 2053; 3 left as they were (exists)"
        while want not in self.operator.ask("/bulk")[2]:
            self.assertLess(time.monotonic(), end)
        if headers["Location"] != "/bulk":
            self.assertIn(want, self.said(form, "/jobs")[0])
        self.assertEqual(sql("SELECT arguments ->> 'what', jobs FROM jobq.operator_log "
                             "WHERE verb = 'revive' AND arguments::text ~ 'Queue all'"),
                         ["Revive all that match: State failed, Queue all|2050"])
        sql("SELECT jobq.delete('all', 'failed'), jobq.delete('all', 'ready', at_most => 3000)")

    def test_server_refuses_reader(self):
        """The form of a reader, signed as it should be: Postgres says no."""
        fields, session = self.operator.form("/queues")
        sql("REVOKE EXECUTE ON FUNCTION jobq.pause(text, text) FROM web_operator")
        body = urllib.parse.urlencode({**fields, "do": "pause mail"})
        status, _, text = self.operator.ask("/do", "POST", body, Cookie=session,
                                            Origin=self.operator.url)
        sql("GRANT EXECUTE ON FUNCTION jobq.pause(text, text) TO web_operator")
        self.assertEqual((status, "permission denied" in text), (403, True))
        self.assertEqual(sql("SELECT paused FROM jobq.queues WHERE queue = 'mail'"), ["f"])

    def test_bad_values(self):
        for path, want in [("/jobs?older=soon", 400), ("/jobs?tags=%7B", 400), ("/jobs/0x1", 404),
                           ("/jobs?before=x", 400), ("/jobs/99999999", 404),
                           ("/jobs?state=%27%3B--", 200), ("/jobs/", 404)]:
            self.assertEqual(self.operator.ask(path)[0], want, path)

    def test_last_has_one_meaning(self):
        for state, head in [("ready", "Due"), ("running", "Started"), ("failed", "Failed"), ("any", None),
                            ("succeeded", "Ended")]:
            if sql(f"SELECT count(*) FROM (SELECT FROM jobq.jobs WHERE state = '{state}' LIMIT 1) j") == ["1"]:
                text = self.operator.ask("/jobs?state=" + state)[2]
                self.assertIn(f"<th scope=col>{head}</th>", text)
                self.assertNotIn("<th scope=col>Last</th>", text)

    def test_refused_filter_keeps_its_form(self):
        for path in ["/jobs?older=soon", "/failures?newer=soon"]:
            status, _, text = self.operator.ask(path)
            self.assertEqual((status, 'value="soon"' in text, "invalid input syntax" in text),
                             (400, True, True))

    def test_refused_value_keeps_what_was_typed(self):
        """A signal or an instant that the server refuses: what was typed stays, and works once mended."""
        job = sql("SELECT jobq.enqueue('typed', 't', delay => '1 hour')")[0]
        path = f"/jobs/{job}"
        status, _, text, form = self.post(path, do=f"reschedule {job}", run_at="the day <after>")
        self.assertEqual((status, "invalid input syntax" in text), (400, True))
        self.assertIn('name="run_at" value="the day &lt;after&gt;"', text)
        token = re.search(r'name=token value="([^"]*)"', text).group(1)
        *_, form = self.post(path, form=({**form[0], "token": token}, form[1]), do=f"reschedule {job}",
                             run_at="2031-01-01 00:00Z")
        self.assertEqual(self.said(form, path), [f"Reschedule {job}: rescheduled"])
        sql("SELECT jobq.delete('typed', 'ready')")

    def test_schedules_say_when_and_where(self):
        """The next runs have their zone, are not past, and differ; a run that is late is called so."""
        sql("SELECT jobq.schedule('tokyo', 'mail', 'tick', cron => '30 9 * * *', zone => 'Asia/Tokyo'); "
            "SELECT jobq.schedule('often', 'mail', 'tick', every => '10 s'); "
            "UPDATE jobq.schedule SET next_at = now() - interval '23 min' WHERE name IN ('tokyo', 'often')")
        page = self.reader.ask("/schedules")[2]
        rows = {name: re.search(rf'<tr data-k="{name}">.*?</tr>', page).group() for name in ["tokyo", "often"]}
        self.assertRegex(rows["tokyo"], r"(\w+ \d+ \w+ 09:30(, )?){5} Asia/Tokyo<")
        self.assertIn(">due 23 min ago<", rows["tokyo"])
        runs = re.search(r"((?:\w+ \d+ \w+ \d\d:\d\d(?::\d\d)?(?:, )?){5})", rows["often"]).group().split(", ")
        self.assertEqual(len(set(runs)), 5, runs)
        future = sql("SELECT to_char(now() AT TIME ZONE 'UTC', 'Dy DD Mon HH24:MI')")[0]
        self.assertIn(future[:10], runs[0])
        self.assertGreaterEqual(runs[0][11:] + ":00", future[11:])
        sql("SELECT jobq.schedule_drop('tokyo'), jobq.schedule_drop('often')")

    def test_what_is_named_is_linked(self):
        """Queues and kinds lead to their jobs, and numbers of the overview to what they count."""
        job = sql("SELECT jobq.enqueue('mail', 'welcome')")[0]
        self.break_job(job)
        for path in ["/failures", "/jobs?state=failed"]:
            text = self.reader.ask(path)[2]
            self.assertIn('<a href="/jobs?queue=mail&amp;">mail</a>', text, path)
            self.assertIn('<a href="/jobs?queue=mail&amp;kind=welcome&amp;">welcome</a>', text, path)
        self.assertIn('<a href="/jobs?queue=mail&amp;kind=digest&amp;">', self.reader.ask("/schedules")[2])
        cards = re.search(r'<section id="now".*?</section>', self.reader.ask("/")[2]).group()
        for path in re.findall(r'<dt><a href="([^"]*)"', cards) or self.fail(cards):
            self.assertEqual(self.reader.ask(path.split("#")[0].replace("&amp;", "&"))[0], 200, path)
        self.assertEqual(cards.count("<dt>"), cards.count("<dt><a href"))
        sql(f"SELECT jobq.delete({job})")

    def test_search(self):
        """From every page, by id, key, flow, queue, line or worker; also for a job that has ended."""
        find = lambda q: (lambda a: a[1]["Location"] or a[2])(
            self.reader.ask("/find?" + urllib.parse.urlencode({"q": q})))
        job = sql("SELECT jobq.enqueue('sought', 's', key => 'a/b <c>', line => 'a line')")[0]
        flow = sql("SELECT jobq.flow('sought & found')")[0]
        sql("""INSERT INTO jobq.worker (id, name, lease_us, expires_at, queues, kinds)
            SELECT 7, 'host:7', 30000000, now() + interval '10 min', '{}', '{}'""")
        for q, want in [("a/b <c>", f"/jobs/{job}"), (job, f"/jobs/{job}"), ("sought", "/jobs?queue=sought"),
                        ("sought & found", f"/flows/{flow}"), ("a line", "/jobs?line=a%20line"),
                        ("host:7", "/jobs?worker=host%3A7")]:
            self.assertEqual(find(q), want)
        for path in ["/jobs?key=a/b%20%3Cc%3E", "/jobs?state=ready&line=a+line", f"/jobs?flow={flow}"]:
            self.assertEqual(f'href="/jobs/{job}"' in self.reader.ask(path)[2], "flow" not in path, path)
        sql(f"SELECT jobq.cancel({job}); DELETE FROM jobq.worker")
        self.assertEqual(find("a/b <c>"), f"/jobs/{job}")
        self.assertIn("Nothing has the id", find("nothing"))
        self.assertIn('<input name=q', self.reader.ask("/audit")[2])

    def test_viewers(self):
        """50 viewers: one query a second for all of them, and little memory."""
        sockets = []
        for _ in range(50):
            s = socket.create_connection(("127.0.0.1", self.operator.port))
            self.addCleanup(s.close)
            s.sendall(b"GET /events?of=now,queues&at=/flows/1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            sockets.append(s)
        looks = ("SELECT sum(calls) FROM pg_stat_statements JOIN pg_roles r ON r.oid = userid "
                 "WHERE query LIKE '%.queues%UNION ALL%' AND rolname = 'web_operator'")
        before, start = int(sql(looks)[0] or 0), time.monotonic()
        for s in sockets:
            s.settimeout(10)
            self.assertIn(b"text/event-stream", s.recv(65536))
        time.sleep(6)
        while int(sql(looks)[0]) - before < 2:  # however slow the machine is, they look
            time.sleep(1)
        calls = int(sql(looks)[0]) - before
        # Once a second, and two other dashboards look each 10 s.
        self.assertLessEqual(calls, (time.monotonic() - start) * 1.4 + 4)
        for s in sockets:
            text = b""
            while b"data: graph <h2" not in text or b"data: now <h2" not in text:
                text += s.recv(1 << 20)
            self.assertNotIn(b"data: running ", text)
        with open(f"/proc/{self.operator.process.pid}/status") as status:
            size = int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))
        self.assertLess(size, 20 * 1024)
        for s in sockets:
            s.close()
        self.assertEqual(self.operator.ask("/")[0], 200)

    def test_overview_says_what_is_wrong(self):
        text = re.search(r'<section id="trouble".*?</section>', self.reader.ask("/")[2]).group()
        self.assertRegex(text, r'<a href="/jobs\?queue=big">queue big</a>.*?worker')
        self.assertIn('<a href="/outbox#orders">queue orders</a>', text)
        sql("""SELECT jobq.queue_set('sick', kinds => '{s}'), jobq.pause('five', 'one');
            INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt, crash,
                                     priority, stage, stages, errors)
            SELECT nextval('jobq.job_id'), now(), now(), now(), k.queue_id, k.id, 2, 0, 0, 0, 1, '[{"error": "x"}]'
            FROM generate_series(1, 10) n, jobq.kind k WHERE k.queue = 'sick'""")
        text = self.reader.ask("/")[2]
        self.assertIn('<a href="/failures?queue=sick">queue sick</a>', text)
        self.assertIn('<a href="/jobs?queue=five&amp;kind=one">kind five one</a>', text)
        self.assertIn('<span class="state ">paused: one</span>', text)
        sql("SELECT jobq.resume('five', 'one'), jobq.delete('sick', 'failed')")

    def test_lock_is_named(self):
        """While a session has locked a table, the overview says which one, and what ends it."""
        with subprocess.Popen([PSQL, "-Xq", SERVER], stdin=subprocess.PIPE, text=True) as locker:
            locker.stdin.write("BEGIN; LOCK TABLE jobq.job IN ACCESS EXCLUSIVE MODE;\n")
            locker.stdin.flush()
            self.until(lambda: sql("SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' "
                                   "AND relation = 'jobq.job'::regclass")[0] != "0")
            status, _, text = self.operator.ask("/")
            locker.stdin.close()
        self.assertEqual((status, "has locked table" in text, "pg_terminate_backend" in text),
                         (504, True, True), text[-1000:])

    def events(self, query, beats):
        """The names of the events that a page gets until so many looks have been made."""
        with socket.create_connection(("127.0.0.1", self.operator.port), timeout=60) as s:
            s.sendall(f"GET /events?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            text = b""
            while text.count(b"data: . ") < beats:
                text += s.recv(1 << 20)
        return re.findall(r"data: (\S+) ", text.decode())

    def test_only_what_changed_is_sent(self):
        """A page gets the sections that it has, and again only those that are different."""
        found = self.events("of=audit,bulk,plots&at=/bulk", 4)
        self.assertEqual((found.count("bulk"), set(found)), (1, {".", "bulk", "plots"}))
        self.assertLessEqual(found.count("plots"), 2)  # a sample each 10 s

    def test_slow_looks_are_rare(self):
        """A look that takes more than a second is not repeated before ten have passed."""
        count = lambda: int(sql("SELECT sum(calls) FROM pg_stat_statements JOIN pg_roles r ON r.oid = userid "
                                "WHERE query LIKE '%.flows%' AND rolname = 'web_operator'")[0] or 0)
        waits = lambda: sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'web_operator' "
                            "AND query LIKE '%.flows%' AND wait_event_type = 'Lock'") != ["0"]
        dashboard = self.dashboard("web_operator")
        with subprocess.Popen([PSQL, "-Xq", SERVER], stdin=subprocess.PIPE, text=True) as locker, \
                socket.create_connection(("127.0.0.1", dashboard.port)) as s:
            locker.stdin.write("BEGIN; LOCK TABLE jobq.flow IN ACCESS EXCLUSIVE MODE;\n")
            locker.stdin.flush()
            self.until(lambda: sql("SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' "
                                   "AND relation = 'jobq.flow'::regclass")[0] != "0")
            before = count()
            s.sendall(b"GET /events?of=flows HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.until(waits)
            time.sleep(1)  # of the two that a look waits for a lock
            locker.stdin.close()
            self.until(lambda: count() > before)
            after = count()
            time.sleep(5)
            self.assertEqual(count(), after)
        self.assertEqual(dashboard.stop(), 0)

    def test_stops_beside_viewers(self):
        dashboard = Dashboard("web_reader")
        with socket.create_connection(("127.0.0.1", dashboard.port)) as s:
            s.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            s.recv(65536)
            self.assertEqual(dashboard.stop(), 0)

    def test_many_jobs(self):
        for path in ["/jobs", "/jobs?state=ready", "/jobs?queue=big", "/jobs?queue=big&before=50000",
                     "/jobs?queue=big&kind=row"]:
            times = []
            for _ in range(8):
                start = time.monotonic()
                status, _, text = self.reader.ask(path)
                times.append(time.monotonic() - start)
                self.assertEqual((status, text.count("<tr data-k=")), (200, 50), path)
            self.assertLess(min(times), 0.1, (path, times))

    def test_failed_jobs_of_a_queue_are_found_by_an_index(self):
        """However many jobs of other queues have failed since."""
        sql("""SELECT jobq.queue_set('few', kinds => '{f,g}'), jobq.queue_set('many', kinds => '{m}');
            INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt, crash,
                                     priority, stage, stages, errors)
            SELECT nextval('jobq.job_id'), now(), now(), now(), k.queue_id, k.id, 2, 0, 0, 0, 1, '[{"error": "x"}]'
            FROM (SELECT * FROM generate_series(1, 40000) n, jobq.kind k
                  WHERE k.queue IN ('few', 'many') AND (n <= 20000) = (k.queue = 'few') ORDER BY n) k;
            ANALYZE jobq.failed""")
        try:
            for path in ["/jobs?state=failed&queue=few", "/jobs?state=failed&queue=few&kind=g"]:
                sql("SELECT pg_stat_statements_reset()")
                self.assertIn(">few</a>", self.reader.ask(path)[2])
                pages = int(sql("SELECT sum(shared_blks_hit + shared_blks_read) FROM pg_stat_statements s "
                                "JOIN pg_roles r ON r.oid = s.userid WHERE rolname = 'web_reader' "
                                "AND query ~ 'WITH hit' AND query ~ 'failures'")[0])
                self.assertLess(pages, 300, path)
        finally:
            sql("DELETE FROM jobq.failed f USING jobq.queue q WHERE q.id = f.queue_id AND q.name IN ('few', 'many')")
        status, _, text = self.reader.ask("/jobs?state=failed&queue=fwe")
        self.assertEqual((status, "no queue is called" in text, 'value="fwe"' in text), (400, True, True))

    def test_odd_jobs(self):
        """A role that may insert can write anything; looking still works."""
        odd = sql("""INSERT INTO jobq.failed (id, run_at, enqueued_at, claimed_at, finished_at,
                  queue_id, kind_id, attempt, crash, priority, stage, stages, errors) SELECT
                  nextval('jobq.job_id'), 'infinity', at, at, at, k.queue_id, k.id, 1, 0, 0, 0, 1,
                  e::jsonb FROM jobq.kind k, unnest(ARRAY['infinity', '-infinity', now()]) at,
                  unnest(ARRAY['{"a": 1}', '[5, {"at": "x", "log": "y"}, {"at": 7}, null]', '7',
                  '[]']) e WHERE k.name = 'encode' RETURNING id""")
        for path in ["/jobs/" + job for job in odd] + ["/", "/jobs?state=failed", "/failures"]:
            self.assertEqual(self.operator.ask(path)[0], 200, path)
        sql("SELECT jobq.delete('video', 'failed')")

    def row(self, path, section, key):
        """The texts of the cells of a row."""
        text = re.search(rf'<section id="{section}".*?</section>', self.reader.ask(path)[2]).group()
        row = re.search(rf'<tr data-k="{key}">(.*?)</tr>', text).group(1).replace("&nbsp;", " ")
        return [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]

    def card(self, name):
        text = self.reader.ask("/")[2].replace("&nbsp;", " ")
        return re.sub("<[^>]+>", "", re.search(rf">{name}</a></dt><dd[^>]*>(.*?)</dd>", text).group(1))

    def test_numbers_say_what_they_are(self):
        """Estimates, numbers that were cut, and sums of them say so; others are exact."""
        try:
            sql("""SELECT jobq.enqueue('deep', 'd') FROM generate_series(1, 7);
                INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt,
                                         crash, priority, stage, stages)
                SELECT nextval('jobq.job_id'), now(), now(), now(), k.queue_id, k.id, 2, 0, 0, 0, 1
                FROM generate_series(1, 10005) n, jobq.kind k WHERE k.queue = 'deep';
                INSERT INTO jobq.worker (id, name, lease_us, expires_at, queues, kinds) SELECT n, 'w' || n,
                    30000000, now() + interval '10 min', '{}', '{}' FROM generate_series(1, 205) n""")
            self.assertEqual(self.row("/queues", "queues", "deep")[2:7], ["7", "0", "0", "≥ 10000", "≥ 10000"])
            self.assertRegex(self.row("/queues", "queues", "big")[2], r"^≈ [19]\d{4,5}$")
            self.assertRegex(self.card("Failed in 1 h"), r"^≥ 1\d{4}$")
            self.assertRegex(self.card("Ready"), r"^≈ [19]\d{4,5}$")
            self.assertEqual((self.card("Running"), self.card("Workers")), ("0", "≥ 200"))
        finally:
            sql("""DELETE FROM jobq.worker; DELETE FROM jobq.failed f USING jobq.queue q
                   WHERE q.id = f.queue_id AND q.name = 'deep'; SELECT jobq.delete('deep', 'ready')""")

    def test_longest_lines_first(self):
        names = sql("""SELECT 'l' || n FROM generate_series(1, 300) n ORDER BY jobq._line_no('l' || n)""")
        for line, jobs in [(names[0], 9), (names[-1], 8)]:
            sql(f"SELECT jobq.enqueue('lined', 'l', line => '{line}') FROM generate_series(1, {jobs})")
        sql("SELECT jobq.enqueue('lined', 'l', line => 'l' || n) FROM generate_series(1, 300) n")
        text = re.search(r'<section id="lines".*?</section>', self.reader.ask("/queues")[2]).group()
        self.assertEqual(re.findall(r'data-k="(\w+) lined"', text)[:2], [names[0], names[-1]])
        self.assertIn("Only 200 are shown.", text)
        sql("SELECT jobq.delete('lined', 'ready')")

    def test_cut_flow_says_so(self):
        flow = sql("SELECT jobq.flow('wide')")[0]
        sql(f"SELECT jobq.enqueue('wide', 'w', flow => {flow}) FROM generate_series(1, 501)")
        self.assertIn("Only 500 are shown.", self.reader.ask(f"/flows/{flow}")[2])
        sql(f"SELECT jobq.flow_cancel({flow})")

    def test_timeline(self):
        """It tells waiting, running, backing off and waiting for a signal apart."""
        line = lambda job: re.search(r'<svg class=line.*? aria-label="([^"]*)"',
                                     self.reader.ask(f"/jobs/{job}")[2]).group(1)
        ago = lambda t: f"statement_timestamp() - interval '{t}'"
        jobs = sql("SELECT jobq.enqueue('timeline', 't') FROM generate_series(1, 3)")
        sql(f"""UPDATE jobq.job SET enqueued_at = {ago('30 min')}, claimed_at = {ago('10 min')}, attempt = 1,
                run_at = now() + interval '1 hour', errors = jsonb_build_array(jsonb_build_object(
                'at', {ago('7 min')}, 'attempt', 1, 'stage', 0, 'error', 'x')) WHERE id = {jobs[0]};
            UPDATE jobq.job SET enqueued_at = {ago('9 min')}, run_at = now() + interval '1 hour',
                flow_id = 0 WHERE id = {jobs[1]};
            INSERT INTO jobq.signal_wait VALUES ({jobs[1]}, 'go', now() + interval '1 hour');
            UPDATE jobq.job SET enqueued_at = {ago('7 min')} WHERE id = {jobs[2]}""")
        self.assertEqual(line(jobs[0]), "waited 20 min, ran 3 min, backed off 7 min, failed attempts: 1")
        page = self.reader.ask(f"/jobs/{jobs[0]}")[2]
        tried = re.search(r'<section id="tried".*?</section>', page).group()
        cells = [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<t[dh] ?[^>]*>.*?</t[dh]>", tried)]
        self.assertEqual(cells[:5], ["Attempt", "Started", "Ended", "Ran", "Outcome"])
        self.assertEqual((cells[6], cells[9:]), ("1", ["3 min", "failed", "x"]))
        self.assertIn("No worker has taken it yet.", self.reader.ask(f"/jobs/{jobs[2]}")[2])
        self.assertEqual(line(jobs[1]), "waited for a signal 9 min")
        self.assertEqual(line(jobs[2]), "waited 7 min")
        sql("SELECT jobq.delete('timeline', 'ready'); DELETE FROM jobq.signal_wait")

    def test_pages_of_jobs(self):
        """The links lead through all jobs of a queue, each once."""
        path, seen = "/jobs?queue=five", []
        sql("SELECT jobq.enqueue('pages', 'p') FROM generate_series(1, 120)")
        path = "/jobs?queue=pages&state=ready"
        while path:
            text = self.reader.ask(path)[2]
            seen += re.findall(r'<tr[^>]*><th scope=row><a href="/jobs/(\d+)">', text)
            more = re.search(r'<a rel=next href="([^"]+)">', text)
            path = more and more.group(1).replace("&amp;", "&")
        self.assertEqual(seen, sql("SELECT id FROM jobq.jobs WHERE queue = 'pages' ORDER BY id DESC"))
        sql("SELECT jobq.delete('pages', 'ready')")

    def test_plots(self):
        """The plots of the overview have a sample each 10 s: the newest one, and the largest."""
        def failed(most, now):
            found = re.search(r'"Failed in 1 h, last hour: at most ([\d.]+), now ([\d.]+)">.*?'
                              r'<path class=curve d="([^"]+)"', dashboard.ask("/")[2])
            if found and (float(found.group(1)), float(found.group(2))) == (most, now):
                lines.append(found.group(3))
            return bool(lines)

        def wait(most, now):
            end = time.monotonic() + 40
            lines.clear()
            while not failed(most, now):
                self.assertLess(time.monotonic(), end, (most, now))
                time.sleep(0.5)
            return lines[0]

        lines = []
        before = int(sql("SELECT sum(failed_1h) FROM jobq.queues")[0])
        dashboard = Dashboard("web_reader")
        try:
            jobs = sql("SELECT jobq.enqueue('plots', 'p') FROM generate_series(1, 4)")
            for job in jobs:
                self.break_job(job)
            most = before + 4
            self.assertTrue(wait(most, most).endswith("L360.0 4.0"))  # the top of the plot
            sql("SELECT jobq.delete('plots', 'failed', at_most => 3)")
            y = 62 - 58 * (before + 1) / most
            self.assertTrue(wait(most, before + 1).endswith(f"L360.0 {y:.1f}"), lines)
            page = re.search(r'<figcaption>Failed in 1 h<.*?</figure>', dashboard.ask("/")[2]).group()
            page = re.sub("</?i>", "", page)
            self.assertIn(f"<span>{most} jobs</span>", page)
            self.assertIn("<span>0</span>", page)
            times = [int(h) * 60 + int(m) for h, m in re.findall(r">(\d\d):(\d\d) UTC</time>", page)]
            self.assertEqual(len(times), 3)
            self.assertEqual((times[2] - times[0]) % 1440, 60)
        finally:
            sql("SELECT jobq.delete('plots', 'failed')")
            dashboard.stop()

    def test_plots_survive_a_restart(self):
        """What ended and failed in the last hour is drawn by a dashboard that has just started."""
        sql("""SELECT jobq.queue_set('past', kinds => '{p}');
            INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt, crash,
                                     priority, stage, stages)
            SELECT nextval('jobq.job_id'), now(), now(), now() - interval '100 min', k.queue_id, k.id, 2, 0, 0, 0, 1
            FROM generate_series(1, 50) n, jobq.kind k WHERE k.queue = 'past'""")
        sql("SELECT jobq.enqueue('past', 'p') FROM generate_series(1, 600)")
        sql("SELECT jobq.cancel('past'); UPDATE jobq.history h SET finished_at = now() - "
            "interval '30 min' FROM jobq.queue q WHERE q.id = h.queue_id AND q.name = 'past'")
        dashboard = self.dashboard("web_reader")
        page = dashboard.ask("/")[2]
        most, curve = re.search(r'"Done per second, last hour: at most ([\d.]+).*?class=curve d="([^"]*)"', page).groups()
        points = [tuple(map(float, p.split())) for p in re.split("[ML]", curve)[1:]]
        then = max(float(most) * (62 - y) / 58 for x, y in points if 172 < x < 188)  # half an hour ago
        self.assertGreater(then, 8)
        curve = re.search(r'"Failed in 1 h, last hour: .*?class=curve d="([^"]*)"', page).group(1)
        first = float(curve[1:].split("L")[0].split()[1])
        self.assertLess(first, 62 - 1)  # an hour ago 50 jobs had failed within an hour
        self.assertNotIn("nan", page)
        dashboard.stop()
        sql("SELECT jobq.delete('past', 'failed'), jobq.delete('past', 'cancelled', at_most => 600)")

    def test_demo(self):
        """make demo ARGS=--web says where to look, shows the pipeline as it works, and ends by Ctrl-C."""
        demo = subprocess.Popen(["sh", "examples/jobq/demo.sh", ".build/examples/pipeline", "/usr/include",
                                 "--limit", "500"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
                                stdin=subprocess.DEVNULL, start_new_session=True,
                                env={**os.environ, "JOBQ_DEMO_LISTEN": "127.0.0.1:0"})
        try:
            lines = iter(demo.stdout.readline, "")
            port = next(re.search(r":(\d+)", line).group(1) for line in lines if "http://" in line)
            page = lambda path: urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").read().decode()
            end = time.monotonic() + 20
            while "documents" not in page("/queues"):
                self.assertLess(time.monotonic(), end)
            self.assertTrue(any(line.startswith("PASS") for line in lines))
            failed = re.findall(r'<th scope=row><a href="/jobs/(\d+)">', page("/jobs?state=failed"))
            self.assertEqual(failed, sql("SELECT id FROM jobq_demo_queue.failures ORDER BY id DESC"))
            self.assertGreater(len(failed), 0)
        finally:
            os.killpg(demo.pid, signal.SIGINT)
            rest = demo.stdout.read()
            demo.stdout.close()
            code = demo.wait(30)
        self.assertEqual((code, "FAIL" in rest), (0, False))

    def test_connection_comes_back(self):
        sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'web_reader'")
        self.assertEqual([self.reader.ask("/queues")[0] for _ in range(2)], [503, 200])

    # -- in the browser --------------------------------------------------------------------------

    def test_tabs_count(self):
        """Each state has a tab, with how many of its jobs match the filter; ≥ if not all were seen."""
        jobs = sql("SELECT jobq.enqueue('tabs', k) FROM unnest(ARRAY['a', 'a', 'a', 'b', 'a']) k")
        self.break_job(jobs[0])
        sql(f"SELECT jobq.cancel({jobs[1]})")
        def tabs(path):
            nav = re.search(r'<nav class=tabs .*?</nav>', self.reader.ask(path)[2]).group()
            return [re.sub("<[^>]*>", "", tab) for tab in re.findall(r"<a .*?</a>", nav)], nav
        self.assertEqual(tabs("/jobs?queue=tabs&kind=a")[0], [
            "live", "ready 2", "running 0", "waiting 0", "failed 1", "succeeded 0", "cancelled 1", "any"])
        _, nav = tabs("/jobs?queue=tabs&kind=a&state=ready")
        self.assertIn('<a aria-current=true href="/jobs?state=ready&amp;queue=tabs&amp;kind=a&amp;">', nav)
        self.assertIn("ready ≥&nbsp;", tabs("/jobs")[0][1])
        sql("SELECT jobq.delete('tabs', 'ready'), jobq.delete('tabs', 'failed')")

    def test_instance_has_a_name_and_a_color(self):
        """So that production is not mistaken for a copy of it: also in the title of the tab."""
        page = self.operator.ask("/queues")[2]
        self.assertRegex(page, r"<title>Queues · (\w+)[^<]*</title>.*<span id=instance>\1")
        production = self.dashboard("web_reader", "--name", "Shop <production>", "--color", "red")
        for path in ["/", "/none"]:
            page = production.ask(path)[2]
            self.assertIn("· Shop &lt;production&gt;</title>", page)
            self.assertIn("<span id=instance>Shop &lt;production&gt;</span>", page)
        self.chrome.get(production.url)
        color = self.one("#instance").value_of_css_property("background-color")
        self.assertEqual(color, "rgba(179, 38, 30, 1)")
        self.assertIn(color.replace("rgba", "rgb").replace(", 1)", ")"),
                      self.one("header").value_of_css_property("border-top"))
        self.chrome.get(self.operator.url)
        self.assertNotEqual(self.one("#instance").value_of_css_property("background-color"), color)
        production.stop()
        refused = subprocess.run([PROGRAM, "-d", SERVER, "web", "--color", "rad"], text=True, capture_output=True)
        self.assertEqual((refused.returncode, "did you mean 'red'?" in refused.stderr), (2, True))

    def test_cards_on_a_narrow_screen(self):
        """Below 600 px a row is a card, which names its values; nothing scrolls sideways."""
        try:
            self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": False})
            for path in ["/", "/queues", "/schedules", "/jobs?queue=mail", "/jobs?state=failed", "/workers",
                         "/failures", "/outbox"]:
                self.chrome.get(self.operator.url + path)
                wide = self.chrome.execute_script(
                    "return all('.table').filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.ariaLabel)")
                self.assertEqual(wide, [], path)
            self.chrome.get(self.operator.url + "/queues")
            labels = self.chrome.execute_script("""return all("#queues tr[data-k=mail] td[data-h]").map(
                e => getComputedStyle(e, "::before").content)""")
            self.assertIn("Ready", labels[1])
            self.assertIn("Workers", labels[-2])
        finally:
            self.chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def test_audit(self):
        """A verb of a person who logged in is written down under this name."""
        login = {"Authorization": "Basic " + base64.b64encode(b"bob:x").decode()}
        _, headers, text = self.login.ask("/queues", **login)
        fields = dict(re.findall(r'<input type=hidden name="?(\w+)"? value="([^"]*)">', text))
        body = urllib.parse.urlencode({**fields, "do": "pause orders"})
        status, _, _ = self.login.ask("/do", "POST", body, Origin=self.login.url,
                                      Cookie=headers["Set-Cookie"].split(";")[0], **login)
        self.assertEqual(status, 303)
        text = self.login.ask("/audit", **login)[2]
        self.assertIn(">jobq web bob</td><td data-h=\"Verb\">pause</td>", text)
        self.assertNotIn("<th scope=col>Arguments", self.reader.ask("/audit")[2])
        sql("SELECT jobq.resume('orders')")

    def test_browser_login(self):
        self.chrome.get(self.login.url.replace("//", "//ada:love%20lace@") + "/")
        self.assertEqual(self.one("#user").text, "ada")
        self.one("nav a[href='/jobs']").click()
        self.wait(lambda: self.one("h1").text == "Jobs")
        self.assertEqual(self.one("nav a[aria-current]").text, "Jobs")

    def test_filter_and_bulk(self):
        """Filters, cancels 3 of 5, and goes back."""
        self.chrome.get(self.operator.url + "/jobs")
        self.one("input[name=queue]").send_keys("five")
        self.one("form.filter button").click()
        self.wait(lambda: "queue=five" in self.chrome.current_url)
        self.wait(lambda: [self.one(".tabs a[href*='state=ready']").click()])
        self.wait(lambda: len(self.all("input[name=id]")) == 5)
        boxes = self.all("input[name=id]")
        first = boxes[0].get_attribute("value")
        for box in boxes[:3]:
            box.click()
        shown = self.one("button[value=cancel] + code").text
        self.assertIn(f"jobq.cancel(id) FROM unnest('{{{first},", shown)
        question = self.press_and_accept("button[value=cancel]")
        for part in ["Cancel 3 jobs", "asked to stop", first, "five", "one"]:
            self.assertIn(part, question)
        self.assertEqual(self.one(".said").text, "Cancel: 3 of 3")
        self.chrome.refresh()
        self.assertEqual(self.all(".said"), [])
        self.assertEqual(len(self.all("input[name=id]")), 2)
        self.assertEqual(sql("SELECT count(*) FROM jobq.past_jobs WHERE queue = 'five' "
                             "AND state = 'cancelled'"), ["3"])
        self.one("tbody th a").click()
        self.wait(lambda: "Job " in self.one("h1").text)
        self.chrome.back()
        self.wait(lambda: self.one("input[name=queue]").get_attribute("value") == "five")
        self.assertEqual(len(self.all("input[name=id]")), 2)

    def test_stale_form(self):
        self.chrome.get(self.operator.url + "/jobs?queue=video")
        self.one("input[name=id]").click()
        self.chrome.delete_all_cookies()
        self.one("button[value=delete]").click()
        self.wait(lambda: "stale" in self.one("main").text)
        self.assertIn("403", self.one("h1").text)
        self.assertEqual(sql("SELECT state FROM jobq.jobs WHERE id = 2"), ["ready"])

    def test_reader_sees_no_buttons(self):
        for path in PAGES + ["/jobs?queue=video", "/jobs?state=failed", "/jobs/2"]:
            self.chrome.get(self.reader.url + path)
            self.assertEqual(self.all("button[name=do], input[type=checkbox], form[method=post]"), [])
            self.assertNotIn("tulip", self.chrome.page_source)
        self.assertIn("may not read payloads", self.one("main").text)
        self.chrome.get(self.operator.url + "/jobs/2")
        self.assertIn("tulip", self.one("main").text)
        self.assertTrue(self.all("button[value=cancel]"))

    def test_counter_moves(self):
        self.chrome.get(self.operator.url + "/")
        self.chrome.execute_script("window.kept = 1")
        row = "//section[@id='queues']//tr[th[contains(., 'moves')]]"
        self.assertEqual(self.chrome.find_elements(By.XPATH, row), [])
        sql("SELECT jobq.enqueue('moves', 'm') FROM generate_series(1, 7)")
        cell = lambda: [e.text for e in self.chrome.find_elements(By.XPATH, row + "/td[2]")]
        self.wait(lambda: cell() == ["7"])
        sql("SELECT jobq.enqueue('moves', 'm') FROM generate_series(1, 5)")
        self.wait(lambda: cell() == ["12"])
        self.assertEqual(self.chrome.execute_script("return window.kept"), 1)
        sql("SELECT jobq.delete('moves', 'ready')")

    def test_pause(self):
        """A button in a live section works after the section was replaced."""
        self.chrome.get(self.operator.url + "/queues")
        time.sleep(2.5)
        self.press("button[value='pause video']")
        self.wait(lambda: self.all("button[value='resume video']"))
        self.assertEqual(sql("SELECT paused FROM jobq.queues WHERE queue = 'video'"), ["t"])
        self.press("button[value='resume video']")
        self.wait(lambda: self.all("button[value='pause video']"))

    def news(self, count=None):
        """The server's news: the queue aaa, which sorts above all others, and a count of mail."""
        self.chrome.execute_script("""
            const s = document.getElementById("queues").cloneNode(true), body = s.querySelector("tbody"),
                row = body.rows[0].cloneNode(true);
            if (arguments[0]) for (const r of body.rows)
                if (/mail/.test(r.textContent)) r.cells[2].textContent = arguments[0];
            row.innerHTML = row.innerHTML.replaceAll(row.querySelector("a").textContent, "aaa");
            row.dataset.k = "aaa"; body.prepend(row);
            es.onmessage({data: "queues " + s.innerHTML})""", count)

    def paused(self):
        return sql("SELECT queue FROM jobq.queues WHERE paused")

    def queues_at_rest(self, path="/queues"):
        """The page of queues, which gets its news from the test alone from now on."""
        self.chrome.get(self.operator.url + path)
        self.wait(lambda: self.chrome.execute_script(
            "if (!es || es.readyState !== 1) return false; es.onmessage = (f => e => e.data.length && "
            "!e.isTrusted && f(e))(es.onmessage); return true"))

    def test_presses_hit_their_row(self):
        """A row appears above while the mouse is down, for 50 ms to 1.2 s: 16 of 16 presses hit; with
        JOBQ_TEST_LONG 100 of 100."""
        hits, holds = 0, [0.05] * 8 + [0.1, 0.15, 0.2, 0.3] + [0.5, 1.2] * 2
        if os.environ.get("JOBQ_TEST_LONG"):
            holds += [0.05] * 52 + [0.1, 0.15, 0.2, 0.3] * 6 + [0.5, 1.2] * 4
        for hold in holds:
            self.queues_at_rest()
            mouse = ActionChains(self.chrome, duration=0)
            mouse.move_to_element(self.one("button[value='pause mail']")).click_and_hold().perform()
            self.news()
            time.sleep(hold)
            ActionChains(self.chrome, duration=0).release().perform()
            self.wait(lambda: self.all(".said, [role=alert]"))
            hits += self.paused() == ["mail"]
            sql("SELECT jobq.resume('mail')")
        self.assertEqual(hits, len(holds))

    def test_buttons_are_in_view(self):
        """However wide a table is, the buttons of its rows are on the screen."""
        long = "q" * 60
        sql(f"SELECT jobq.enqueue('{long}', 'k'); SELECT jobq.schedule('s{long}', '{long}', 'k', every => '1 h')")
        try:
            for width in [1440, 1000, 360]:
                self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                    "width": width, "height": 700, "deviceScaleFactor": 1, "mobile": False})
                for path in ["/queues", "/schedules", "/flows", "/failures"]:
                    self.chrome.get(self.operator.url + path)
                    right = self.chrome.execute_script("""return Math.max(...all("main td button").map(
                        e => e.getBoundingClientRect().right))""")
                    self.assertTrue(0 < right <= width, (path, width, right))
        finally:
            self.chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            sql(f"SELECT jobq.delete('{long}', 'ready'); SELECT jobq.schedule_drop('s{long}')")

    def test_focus_stays_on_its_row(self):
        """A queue appears above the focused button, as the server tells it: Enter hits its row."""
        self.chrome.get(self.operator.url + "/queues")
        for n in range(5):
            self.chrome.execute_script("""document.querySelector("button[value='pause mail']").focus()""")
            sql(f"SELECT jobq.enqueue('aaa-{n}', 'a')")
            self.wait(lambda: self.all(f"button[value='pause aaa-{n}']"))
            self.chrome.switch_to.active_element.send_keys(Keys.ENTER)
            self.wait(lambda: self.all(".said"))
            self.assertEqual(self.paused(), ["mail"])
            sql(f"SELECT jobq.resume('mail'), jobq.delete('aaa-{n}', 'ready')")
            self.chrome.get(self.operator.url + "/queues")

    def test_verb_that_changed_is_not_pressed(self):
        """Somebody else paused the queue: the focused button is gone, and Enter resumes nothing."""
        self.queues_at_rest()
        self.chrome.execute_script("""document.querySelector("button[value='pause mail']").focus();
            es.onmessage({data: "queues " + document.getElementById("queues").innerHTML.replace(
                "pause mail", "resume mail").replace("Pause", "Resume")})""")
        self.assertTrue(self.all("button[value='resume mail']"))
        self.assertEqual(self.chrome.switch_to.active_element.tag_name, "body")

    def test_moved_under_a_resting_mouse(self):
        """The row that has just come under the mouse is not pressed."""
        late = False
        while not late:  # the machine took longer than the half second that protects the row
            sql("SELECT jobq.resume('mail')")
            self.queues_at_rest()
            mouse = ActionChains(self.chrome, duration=0)
            mouse.move_to_element(self.one("button[value='pause mail']")).perform()
            self.wait(lambda: self.chrome.execute_script("return Date.now() - aim > 600"))
            self.news()
            self.assertTrue(self.all("[data-k=aaa]"))
            ActionChains(self.chrome, duration=0).click().perform()
            late = self.chrome.execute_script("return late")
        self.assertEqual((self.all(".said, [role=alert]"), self.paused()), ([], []))

    def test_news_keep_scroll_and_selection(self):
        try:
            self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": 620, "height": 700, "deviceScaleFactor": 1, "mobile": False})
            self.queues_at_rest()
            self.chrome.execute_script("""document.querySelector("#queues .table").scrollLeft = 90;
                getSelection().selectAllChildren(all("#queues th[scope=row] a").find(
                    a => a.textContent === "mail"))""")
            self.news("4711")
            self.assertIn("4711", self.one("#queues").text)
            self.assertEqual(self.chrome.execute_script("""
                return [document.querySelector("#queues .table").scrollLeft, getSelection().toString()]"""),
                [90, "mail"])
        finally:
            self.chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def test_revive_group(self):
        self.chrome.get(self.operator.url + "/failures")
        row = self.one("tbody tr").text
        self.assertIn("no answer from host", row)
        self.assertIn("<b>", row)
        self.assertEqual(self.one("tbody td.n").text, "4")
        self.one("tbody a").click()
        self.wait(lambda: len(self.all("input[name=id]")) == 4)
        self.one("#every").click()
        self.one("button[value=revive]").click()
        self.wait(lambda: self.all(".said"))
        self.assertEqual(self.one(".said").text, "Revive: 4 of 4")
        self.assertEqual(sql("SELECT count(*) FROM jobq.failures"), ["0"])

    def test_revive_all_of_an_error(self):
        """Failures are grouped, counted and found by a part of the error and by time."""
        sql("""SELECT jobq.enqueue('grp', 'g');
            INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt,
                                     crash, priority, stage, stages, errors)
            SELECT nextval('jobq.job_id'), now(), now(), now() - CASE WHEN n > 9 THEN '3 hours' ELSE '0'
                   END::interval, k.queue_id, k.id, 2, 0, 0, 0, 1, jsonb_build_array(jsonb_build_object(
                   'at', now(), 'error', format('%s %s', CASE WHEN n > 12 THEN 'Net' ELSE 'Disk' END, n)))
            FROM generate_series(1, 15) n, jobq.kind k WHERE k.queue = 'grp'""")
        def shown(**query):
            self.chrome.get(f"{self.operator.url}/failures?{urllib.parse.urlencode(query)}")
            return [(row.find_element(By.CSS_SELECTOR, "th").text.split()[0],
                     row.find_element(By.CSS_SELECTOR, "td.n").text) for row in self.all("tbody tr")]
        self.assertEqual(shown(queue="grp"), [("Disk", "12"), ("Net", "3")])
        self.assertEqual(shown(queue="grp", newer="1 hour"), [("Disk", "9")])
        self.assertEqual(shown(queue="grp", text="net"), [("Net", "3")])
        self.assertEqual(shown(queue="grp", text="disk"), [("Disk", "12")])
        self.assertEqual(self.one("svg.bars").get_attribute("aria-label"), "12, at most 9 at once")
        question = self.press_and_accept("button[value=revive_all]")
        for part in ["Revive 12 jobs", "Queue grp", "Disk #"]:
            self.assertIn(part, question)
        self.assertIn("12 of 12", self.one(".said").text)
        self.assertEqual(sql("SELECT failed FROM jobq.queues WHERE queue = 'grp'"), ["3"])
        sql("SELECT jobq.delete('grp', 'failed'), jobq.delete('grp', 'ready')")

    def test_job_page(self):
        failed = sql("SELECT id FROM jobq.jobs WHERE kind = 'welcome' AND errors IS NOT NULL LIMIT 1")[0]
        self.chrome.get(self.operator.url + "/jobs/" + failed)
        text = self.one("main").text
        for part in ["Timeline", "no answer from host", "info", "tried twice", "Facts",
                     "Why it runs or does not", "What happened", "enqueued", "Payload"]:
            self.assertIn(part, text)
        self.chrome.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
        try:
            self.chrome.refresh()
            instant, local = self.chrome.execute_script("""const e = one("#steps time.at");
                return [e.dateTime, getComputedStyle(e, "::after").content]""")
            hour = (int(instant[11:13]) + 9) % 24
            self.assertRegex(local, rf"\b0?{hour % 12 or 12}:{instant[14:19]} [AP]M GMT\+9")
        finally:
            self.chrome.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})

    def test_job_page_is_live(self):
        """It shows an end as it happens, with instants and differences; the focus stays."""
        job = sql("SELECT jobq.enqueue('alive', 'a', '{\"n\": 1}', delay => '1 hour')")[0]
        self.chrome.get(self.operator.url + "/jobs/" + job)
        self.chrome.execute_script("window.kept = 1; document.querySelector('input[name=q]').focus()")
        self.assertRegex(self.one("#steps").text, r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC")
        self.one("#acts input[name=priority]").send_keys("-3")
        sql(f"SELECT jobq.reschedule({job}, now() + interval '2 hours')")
        self.wait(lambda: "in 2 h" in self.one("#facts").text or "in 120 min" in self.one("#facts").text)
        self.assertIn(f"'{{{job}}}'", self.one("button[value=cancel] + code").text)
        self.assertEqual(self.one("#acts input[name=priority]").get_attribute("value"), "-3")
        self.one("button[value^=prioritize]").click()
        self.wait(lambda: self.all(".said"))
        self.assertEqual(self.one(".said").text, f"Set priority {job}: prioritized")
        self.assertEqual(sql(f"SELECT priority FROM jobq.jobs WHERE id = {job}"), ["-3"])
        self.one("button[value^=copy]").click()
        self.wait(lambda: self.all(".said"))
        copy = self.one(".said").text.rsplit(" ", 1)[1]
        self.assertEqual(sql(f"SELECT payload, priority FROM jobq.jobs WHERE id = {copy}"), ['{"n": 1}|-3'])
        self.one("button[value^=reschedule]").click()
        self.wait(lambda: self.all(".said"))
        self.assertEqual(sql(f"SELECT run_at <= now() FROM jobq.jobs WHERE id = {job}"), ["t"])
        self.assertTrue(self.all("#facts a[href^='/jobs?queue=alive']"))
        sql(f"SELECT jobq.cancel({job}), jobq.delete('alive', 'ready')")
        self.wait(lambda: "cancelled" in self.one("#facts").text and "cancelled" in self.one("#steps").text)
        self.assertEqual(self.all("button[value=cancel]"), [])

    def test_what_is_cut_says_so(self):
        jobs = sql("""SELECT jobq.enqueue('cut', 'c', to_jsonb(repeat('x', 70000)));
            SELECT jobq.enqueue('cut', 'c', bytes => decode(repeat('ab', 2001), 'hex'));
            SELECT jobq.enqueue('cut', 'c', bytes => decode(repeat('ab', 2000), 'hex'))""")
        for job, want in zip(jobs, ["the first 65536 of 70002 characters", "the first 2000 of 2001 bytes", None]):
            text = self.operator.ask(f"/jobs/{job}")[2]
            self.assertIn(want or "abab", text)
            self.assertEqual("the first" in text, want is not None)
        sql("SELECT jobq.delete('cut', 'ready')")

    def test_direction_of_writing(self):
        """A key cannot pretend to be another one."""
        job = sql("SELECT jobq.enqueue('rtl', 'r', key => U&'rtl\\202Egpj.exe')")[0]
        for path in [f"/jobs/{job}", "/jobs?queue=rtl"]:
            text = self.reader.ask(path)[2]
            self.assertEqual(("rtl\ufffdgpj.exe" in text, "\u202e" in text), (True, False), path)
        sql("SELECT jobq.delete('rtl', 'ready')")

    def test_cancel_on_the_page_of_a_job(self):
        job = sql("SELECT jobq.enqueue('single', 's')")[0]
        self.chrome.get(self.operator.url + "/jobs/" + job)
        self.assertIn(f"'{{{job}}}'", self.one("button[value=cancel] + code").text)
        question = self.press_and_accept("button[value=cancel]")
        self.assertIn("Cancel 1 job", question)
        self.assertIn("single", question)
        self.assertEqual(self.one(".said").text, "Cancel: 1 of 1")
        self.assertIn("cancelled", self.one(".facts").text)

    def test_cancel_all_that_match(self):
        sql("SELECT jobq.enqueue('crowd', k) FROM unnest(ARRAY['a', 'a', 'b']) k")
        self.chrome.get(self.operator.url + "/jobs?queue=crowd&kind=a")
        self.assertIn("FROM jobq.live_jobs WHERE queue = 'crowd' AND kind = 'a'",
                      self.one("button[value=cancel_all] + code").text)
        question = self.press_and_accept("button[value=cancel_all]")
        self.assertIn("Cancel 2 jobs", question)
        self.assertIn("Queue crowd, Kind a", question)
        self.assertRegex(self.one(".said").text,  # it waits a second for the end
                         "^Cancel all that match: Queue crowd, Kind a: 2 of 2(, works)?$")
        self.assertEqual(sql("SELECT kind FROM jobq.live_jobs WHERE queue = 'crowd'"), ["b"])

    def test_schedules(self):
        self.chrome.get(self.operator.url + "/schedules")
        runs = self.chrome.find_element(By.XPATH, "//tr[th='nightly']/td[@class='w']").text
        self.assertEqual(runs.count("03:00"), 5, runs)
        self.one("button[value='schedule_pause nightly']").click()
        self.wait(lambda: self.all("button[value='schedule_resume nightly']"))
        self.one("button[value='schedule_resume nightly']").click()
        self.wait(lambda: self.all("button[value='schedule_pause nightly']"))

    def test_outbox(self):
        self.chrome.get(self.operator.url + "/outbox")
        self.assertIn("no such address", self.one("main").text)
        self.assertIn("Send 2 dead letters", self.press_and_accept("button[value='replay orders']"))
        self.assertEqual(self.one(".said").text, "Send again orders: 2 of 2")
        self.assertEqual(sql("SELECT status, count(*) FROM jobq.dead_letters GROUP BY 1"),
                         ["resolved|2"])
        self.assertEqual(sql("SELECT sum(lag) FROM jobq.outbox WHERE queue = 'orders'"), ["3"])

    def test_subscriptions(self):
        """A topic gets a reader by a form, which is on the page then, and is dropped with what waits."""
        sql("SELECT jobq.outbox_register('news', 0), jobq.outbox_register('readers', 1)")
        sql("SELECT jobq.subscribe('first', 'news', 'mail', 'news')")
        self.chrome.get(self.operator.url + "/outbox")
        self.press("button[value='subscribe news']")
        self.wait(lambda: self.all("input[name=types]"))
        self.one("input[name=name]").send_keys("second")
        self.one("input[name=queue]").send_keys("readers")
        self.one("input[name=types]").send_keys("placed,order.*")
        self.one("button.main[name=do]").click()
        self.wait(lambda: self.all("button[value='drop second']"))
        self.assertEqual(sql("SELECT types FROM jobq.subscriptions WHERE name = 'second'"),
                         ["{placed,order.*}"])
        sql("SELECT jobq.outbox_enqueue('news', '1', type => 'placed')")
        self.assertIn("nobody receives what waits", self.press_and_accept("button[value='drop second']"))
        self.assertEqual(sql("SELECT sum(lag) FROM jobq.outbox WHERE queue = 'readers'"), ["0"])
        self.press_and_accept("button[value='unsubscribe first']")
        self.assertEqual(sql("SELECT name FROM jobq.subscriptions"), [])
        sql("SELECT jobq.delete('mail', 'ready', kind => 'news')")

    def test_dead_letters_one_by_one(self):
        """Each has a page with its payload, and can be sent again or given up alone."""
        sql("SELECT jobq.outbox_register('letters', 1)")
        letters = sql("""INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at,
                attempts, type, error, payload, headers)
            SELECT p.queue_id, p.id, n, now(), now() - interval '5 min', 3, 'placed', E'no such\naddress',
                   format('{"total": "tulip %s"}', n)::jsonb, '{"to": "ann"}'
            FROM jobq.partition p JOIN jobq.queue q ON q.id = p.queue_id AND q.name = 'letters',
                 generate_series(1, 3) n RETURNING id""")
        self.assertIn(f'<a href="/letters/{letters[0]}">', self.reader.ask("/outbox")[2])
        text = self.reader.ask(f"/letters/{letters[0]}")[2]
        self.assertEqual(("tulip" in text, "do value" in text, "may not read payloads" in text),
                         (False, False, True))
        self.assertEqual(self.reader.ask("/letters/999999")[0], 404)
        self.chrome.get(f"{self.operator.url}/letters/{letters[1]}")
        for part in ["tulip 2", "ann", "placed", "5 min ago", "no such"]:
            self.assertIn(part, self.one("main").text)
        self.assertIn("Send 1 dead letter", self.press_and_accept("button[value^=letter_replay]"))
        self.assertEqual(self.one(".said").text, f"Send again {letters[1]}: 1 of 1")
        self.wait(lambda: "resolved" in self.one("#letter").text)
        self.assertEqual(self.all("button[name=do]"), [])
        self.chrome.get(f"{self.operator.url}/letters/{letters[0]}")
        self.assertIn("Discard 1 dead letter", self.press_and_accept("button[value^=letter_discard]"))
        self.assertEqual(sql("SELECT status FROM jobq.dead_letters WHERE queue = 'letters' ORDER BY id"),
                         ["discarded", "resolved", "pending"])
        self.assertEqual(sql("SELECT payload FROM jobq.message m JOIN jobq.partition p ON p.id = m.partition_id "
                             "JOIN jobq.queue q ON q.id = p.queue_id WHERE q.name = 'letters'"),
                         ['{"total": "tulip 2"}'])
        sql("SELECT jobq.dead_letter_discard('letters'), jobq.dead_letter_cleanup('letters')")

    def flow(self, name):
        """A new flow: two loads, and a merge that waits for them. Answers its id and theirs."""
        flow = sql(f"SELECT jobq.flow('{name}')")[0]
        loads = sql(f"SELECT jobq.enqueue('{name}', 'load', flow => {flow}, name => 'load-' || n) "
                    "FROM generate_series(1, 2) n")
        return flow, loads + sql(f"SELECT jobq.enqueue('{name}', 'merge', flow => {flow}, "
                                 "name => 'merge', after_names => '{load-1,load-2}')")

    def break_job(self, job):
        sql(f"""SELECT jobq._finish(ARRAY[{job}], 'f', '{{"at": "now", "stage": 0, "attempt": 1,
                "error": "no host"}}'); SELECT jobq._promote(100)""")

    def test_flow_is_drawn(self):
        """Layers from left to right, states as they change, links to the jobs."""
        flow, jobs = self.flow("drawn")
        self.chrome.get(f"{self.operator.url}/flows")
        self.press(f"a[href='/flows/{flow}']")
        self.wait(lambda: self.all(".graph a"))
        boxes = self.chrome.execute_script("""return all(".graph a").map(a => [a.getAttribute("href"),
            +a.firstChild.getAttribute("x"), a.querySelector("text").textContent])""")
        self.assertEqual([box[0] for box in boxes], ["/jobs/" + job for job in jobs])
        self.assertEqual([box[2] for box in boxes], ["load-1", "load-2", "merge"])
        self.assertTrue(boxes[0][1] == boxes[1][1] < boxes[2][1], boxes)
        self.assertEqual(len(self.all(".graph path.edge")), 2)
        self.assertEqual(len(self.all(".box.waiting")), 1)
        self.chrome.execute_script("window.kept = 1")
        self.break_job(jobs[0])
        self.wait(lambda: self.all(".box.failed"))
        self.assertEqual(self.chrome.execute_script("return window.kept"), 1)
        self.assertIn(jobs[0], self.one("section[id^=graph] tbody tr:last-child").text)
        self.press(".graph a")
        self.wait(lambda: self.one("h1").text == "Job " + jobs[0])
        sql(f"SELECT jobq.flow_cancel({flow}); SELECT jobq.delete({jobs[0]})")

    def test_flow_is_revived_and_cancelled(self):
        flow, jobs = self.flow("revived")
        self.break_job(jobs[1])
        self.chrome.get(f"{self.operator.url}/flows/{flow}")
        self.assertIn("held", self.one(".facts").text)
        self.assertEqual(self.one("button[value^=flow_revive] + code").text,
                         f"SELECT jobq.flow_revive('{flow}'::bigint)")
        self.one("button[value^=flow_revive]").click()
        self.wait(lambda: self.all(".said"))
        self.assertEqual(self.one(".said").text, f"Revive failed jobs {flow}: 1 of 1")
        self.assertEqual(sql(f"SELECT state FROM jobq.flows WHERE id = {flow}"), ["running"])
        self.chrome.get(f"{self.operator.url}/flows")
        self.assertIn("Cancel 3 jobs of the flow",
                      self.press_and_accept(f"button[value='flow_cancel {flow}']"))
        self.assertEqual(self.one(".said").text, f"Cancel flow {flow}: 3 of 3")
        self.assertEqual(sql(f"SELECT DISTINCT state FROM jobq.flow_graph({flow})"), ["cancelled"])

    def test_crowded_flow(self):
        """300 jobs that wait for one are one box; the graph stays small."""
        flow = sql("SELECT jobq.flow('crowd')")[0]
        first = sql(f"SELECT jobq.enqueue('crowd2', 'split', flow => {flow}, name => 'split')")[0]
        sql(f"SELECT jobq.enqueue('crowd2', 'part', flow => {flow}, after => '{{{first}}}') "
            "FROM generate_series(1, 300)")
        text = self.reader.ask(f"/flows/{flow}")[2]
        self.assertEqual((text.count('class="box'), text.count("class=edge")), (2, 1))
        self.assertIn("300 waiting", text)
        sql(f"SELECT jobq.flow_cancel({flow})")

    def test_edges_of_a_job(self):
        flow, jobs = self.flow("edges")
        sql(f"UPDATE jobq.job SET steps = '{{\"charge <i>\": 1}}' WHERE id = {jobs[2]}")
        text = self.reader.ask("/jobs/" + jobs[2])[2]
        for part in [f'"/flows/{flow}">flow {flow}<', f'"/jobs/{jobs[0]}">job {jobs[0]}<',
                     "charge &lt;i&gt;", "waits for the end of job"]:
            self.assertIn(part, text)
        text = self.reader.ask("/jobs/" + jobs[0])[2]
        self.assertIn(f'is waited for by</th><td data-h="Which"><a href="/jobs/{jobs[2]}">', text)
        sql(f"SELECT jobq.flow_cancel({flow})")

    def test_signal(self):
        job = sql("SELECT jobq.enqueue('signals', 's', delay => '1 hour')")[0]
        name = "order 7/<paid> 'now'"
        sql(f"UPDATE jobq.job SET flow_id = 0 WHERE id = {job}; INSERT INTO jobq.signal_wait "
            f"(job_id, name, until) VALUES ({job}, $q${name}$q$, now() + interval '1 hour')")
        self.assertNotIn("do value", self.reader.ask("/jobs/" + job)[2])
        self.chrome.get(self.operator.url + "/jobs/" + job)
        self.one("input[name=payload]").send_keys('{"cents": 900}')
        self.one("button[value^=signal]").click()
        self.wait(lambda: self.all(".said"))
        self.assertEqual(self.one(".said").text, f"Send signal {name}: done")
        self.assertEqual(sql("SELECT name, payload FROM jobq.signal"), [name + '|{"cents": 900}'])
        self.assertEqual(sql(f"SELECT run_at <= now() FROM jobq.job WHERE id = {job}"), ["t"])
        sql("SELECT jobq.delete('signals', 'ready')")

    def test_log_of_success_needs_the_right(self):
        job = sql("SELECT jobq.enqueue('logged', 'l')")[0]
        sql(f"SELECT jobq.cancel({job}); UPDATE jobq.history SET log = "
            f"""'[["2026-11-24T10:00:00Z", "info", "lilac"]]' WHERE id = {job}""")
        self.assertIn(">lilac<", self.operator.ask("/jobs/" + job)[2])
        self.assertNotIn("lilac", self.reader.ask("/jobs/" + job)[2])

    def test_payload_stays_text(self):
        for path in ["/jobs/1", "/jobs?queue=mail", "/jobs?queue=mail&key=" + urllib.parse.quote(SCRIPT)]:
            self.chrome.get(self.operator.url + path)
            self.assertIn(SCRIPT, self.one("main").text, path)
            self.assertNotEqual(self.chrome.title, "7")
            self.assertEqual(self.all("main script"), [])

    def test_no_script(self):
        with browser(script=False) as plain:
            plain.implicitly_wait(10)  # a click does not wait for the next page
            plain.get(self.operator.url + "/jobs?queue=video&state=ready")
            plain.find_element(By.CSS_SELECTOR, "input[name=id]").click()
            plain.find_element(By.CSS_SELECTOR, "button[value=delete] + code")
            plain.find_element(By.CSS_SELECTOR, "button[value=delete]").click()
            self.assertIn("cannot be undone", plain.find_element(By.CSS_SELECTOR, ".warn").text)
            self.assertEqual(plain.find_element(By.CSS_SELECTOR, "h1").text, "Delete 1 job")
            self.assertIn("video", plain.find_element(By.CSS_SELECTOR, "main table").text)
            plain.find_element(By.LINK_TEXT, "Do nothing").click()
            self.assertTrue(plain.find_element(By.CSS_SELECTOR, "button[value=delete]"))
            plain.find_element(By.CSS_SELECTOR, "button[value=cancel]").click()
            self.assertEqual(plain.find_element(By.CSS_SELECTOR, ".said").text,
                             "Cancel: nothing was done: no job was selected")
            plain.get(self.operator.url + "/queues")
            plain.find_element(By.CSS_SELECTOR, "button[value='pause five']").click()
            self.assertEqual(plain.find_element(By.CSS_SELECTOR, ".said").text, "Pause five: done")
        sql("SELECT jobq.resume('five')")

    def test_narrow(self):
        try:
            for width in [320, 1200]:
                self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                    "width": width, "height": 700, "deviceScaleFactor": 1, "mobile": False})
                for path in PAGES + ["/jobs?queue=mail", "/jobs?state=failed"]:
                    self.chrome.get(self.operator.url + path)
                    wide = self.chrome.execute_script("return document.documentElement.scrollWidth")
                    self.assertLessEqual(wide, width, path + self.chrome.execute_script(
                        "return [...document.querySelectorAll('main *')].filter(e => "
                        "e.getBoundingClientRect().right > innerWidth).map(e => "
                        "e.outerHTML.slice(0, 200)).slice(-1).join()"))
        finally:
            self.chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    @unittest.skipUnless(os.path.exists(AXE), "no axe-core: make test-web installs it")
    def test_accessibility(self):
        """axe-core finds nothing on any page, in both themes, at three widths; with JOBQ_TEST_LONG
        in each theme at each width."""
        with open(AXE) as file:
            axe = file.read()
        job = sql("SELECT jobq.enqueue('axe', 'a', delay => '1 hour')")[0]
        try:
            looks = [("dark", 360), ("light", 768), ("dark", 1200)]
            if os.environ.get("JOBQ_TEST_LONG"):
                looks += [("light", 360), ("dark", 768), ("light", 1200)]
            for theme, width in looks:
                self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {
                    "features": [{"name": "prefers-color-scheme", "value": theme}]})
                self.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                    "width": width, "height": 700, "deviceScaleFactor": 1, "mobile": False})
                for path in PAGES + ["/bulk", "/jobs?state=failed", "/find?q=none", f"/jobs/{job}"]:
                    self.chrome.get(self.operator.url + path)
                    self.chrome.execute_script("rest();" + axe)
                    found = self.chrome.execute_async_script("""const done = arguments[0];
                        axe.run().then(r => done(r.violations.map(v => [v.id, v.nodes.map(n => n.html)])))""")
                    self.assertEqual(found, [], (path, theme, width))
        finally:
            self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
            self.chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            sql("SELECT jobq.delete('axe', 'ready')")

    def test_edges_can_be_seen(self):
        """What can be pressed or filled in has an edge with a contrast of 3:1, as links have."""
        try:
            for theme in ["light", "dark"]:
                self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {
                    "features": [{"name": "prefers-color-scheme", "value": theme}]})
                self.chrome.get(self.operator.url + "/jobs")
                least = self.chrome.execute_script("""
                    const light = c => { const [r, g, b] = c.match(/\\d+/g).map(v => (v /= 255) <= 0.03928
                            ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05 };
                    const ratio = (a, b) => Math.max(light(a), light(b)) / Math.min(light(a), light(b));
                    const ground = getComputedStyle(document.documentElement).backgroundColor;
                    return Math.min(...all("main input:not([type=hidden]), select, main button").map(e => {
                        const s = getComputedStyle(e); return ratio(s.borderTopColor, ground) }),
                        ...all("main a").map(e => ratio(getComputedStyle(e).textDecorationColor, ground)))""")
                self.assertGreaterEqual(least, 3, theme)
        finally:
            self.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def test_keyboard_and_labels(self):
        """Everything that can be used has a name, and the first stop of Tab skips the links."""
        for path in PAGES + ["/jobs?queue=mail"]:
            self.chrome.get(self.operator.url + path)
            self.assertEqual(len(self.all("h1")), 1, path)
            self.chrome.execute_script("rest()")
            names = [(e.tag_name, e.accessible_name.strip()) for e in self.all(
                "main a, button:not([hidden]), input:not([type=hidden]), select, svg[role=img], [role=region]")]
            self.assertTrue(names and all(name for _, name in names), (path, names))
            self.assertEqual(self.all("th:not([scope])"), [])
        self.one("body").send_keys(Keys.TAB)
        self.assertEqual(self.chrome.switch_to.active_element.text, "Skip to content")

    def test_nothing_is_refused_by_the_policy(self):
        self.chrome.get_log("browser")
        for path in PAGES:
            self.chrome.get(self.operator.url + path)
            time.sleep(0.2)
            self.assertEqual(self.chrome.get_log("browser"), [], path)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    seed()
    unittest.main(verbosity=1)
