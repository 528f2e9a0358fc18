#!/usr/bin/env python3
# SPDX-License-Identifier: MIT-0 OR Unlicense
"""pictures.py PROGRAM  makes the pictures of examples/jobq/README.md

JOBQ_SERVER_FSYNC=on tests/server.sh /usr/bin/python3 tests/web/pictures.py .build/jobq
"""
import os
import subprocess
import sys
import time

PROGRAM = os.path.abspath(sys.argv.pop(1))
import test_web as web  # noqa: E402

web.PROGRAM = PROGRAM
FLOW = """
    SELECT jobq.flow('import-7');
    SELECT jobq.enqueue('etl', 'extract', flow => 1, name => 'extract-' || n) FROM generate_series(1, 3) n;
    SELECT jobq.enqueue('etl', 'clean', jsonb_build_object('part', n), flow => 1, name => 'clean-' || n,
                        after_names => ARRAY['extract-' || n]) FROM generate_series(1, 3) n;
    SELECT jobq.enqueue('etl', 'merge', flow => 1, name => 'merge', after_names => '{clean-1,clean-2,clean-3}');
    SELECT jobq.enqueue('etl', 'publish', flow => 1, name => n, after_names => '{merge}')
    FROM unnest('{index,report,alarm}'::text[]) n;
    SELECT jobq.enqueue('etl', 'notify', flow => 1, name => 'notify', after_names => '{index,report}')"""
CLEAN = """read p; case $p in *1*) echo 'row 4711: no such customer' >&2; echo '  at clean.py:88' >&2; exit 75;; esac"""


def work(queue, command, *more):
    return subprocess.Popen([PROGRAM, "-d", web.SERVER, "work", "--queue", queue, "--exec", command, *more],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    subprocess.run([web.PSQL, "-Xq", web.SERVER, "-f", os.path.join(web.ROOT, "sql/install.sql")], check=True,
                   capture_output=True)
    web.sql("""
        SELECT jobq.queue_set('etl', max_attempts => 3, backoff_base => '1 s', backoff_jitter => 0);
        SELECT jobq.enqueue('mail', 'welcome', key => 'order-' || n) FROM generate_series(1, 2000) n;
        SELECT jobq.enqueue('mail', 'newsletter') FROM generate_series(1, 240);
        SELECT jobq.enqueue('video', 'encode') FROM generate_series(1, 120);
        SELECT jobq.enqueue('search', 'reindex', delay => n * interval '10 min') FROM generate_series(1, 12) n;
        SELECT jobq.pause('mail', 'newsletter');""" + FLOW)
    work("mail", "true", "--kind", "welcome", "--until-empty").wait()
    web.sql("""
        UPDATE jobq.history SET finished_at = finished_at - interval '59 min' * sqrt(random());
        SELECT jobq.enqueue('mail', 'welcome', key => 'order+' || n) FROM generate_series(1, 400) n""")
    workers = [work("mail", "sleep 1", "--kind", "welcome", "--threads", "2"), work("video", "sleep 20"),
               work("etl", CLEAN), work("search", "true")]
    dashboard = web.Dashboard("postgres", "--name", "shop, production", "--color", "red")
    chrome = web.browser()
    try:
        time.sleep(75)
        failed = web.sql("SELECT id FROM jobq.failures LIMIT 1")[0]
        for name, path, theme, height in [("overview", "/", "light", 1000), ("flow", "/flows/1", "dark", 900),
                                          ("job", f"/jobs/{failed}", "light", 1500)]:
            chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {
                "features": [{"name": "prefers-color-scheme", "value": theme}]})
            chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": 1200, "height": height, "deviceScaleFactor": 1, "mobile": True})
            chrome.get(dashboard.url + path)
            time.sleep(3)
            chrome.save_screenshot(os.path.join(web.ROOT, f"examples/jobq/{name}.png"))
    finally:
        chrome.quit()
        dashboard.stop()
        for worker in workers:
            worker.kill()


main()
