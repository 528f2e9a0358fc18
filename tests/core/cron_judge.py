# SPDX-License-Identifier: MIT-0 OR Unlicense
"""cron_judge.py -- compares jobq._cron_next with two libraries of Python, cronsim and croniter.

    make judge

runs it with a Postgres of its own. In UTC all three get the same random expressions and instants;
around changes of the clocks cronsim gets the schedules of five fields, because it follows Debian's
cron, as jobq does. A difference that is not in this list fails:

  gap      A local time that is missing: cronsim runs all of them at the end of the gap, as Debian
           does. jobq keeps their distance: 02:30 becomes 03:30. So inside a gap only jobq runs.
  half     After a change by half an hour cronsim, which looks for the hour in steps of an hour, may
           pass over the first half of an hour that matches. jobq runs in it.
  weekday  To croniter a list that has all days, or all weekdays, is `*`, so that the other field
           decides alone. To jobq, cronsim and Debian only the field's first character counts.

Left out, because jobq refuses them, or gives them a meaning of its own: 5/15, which is 5-59/15 to
both; 5-5/15, which is that to cronsim; FRI-SUN, which cronsim refuses; steps that exceed the range.
In zones, also the schedules of six fields: cronsim lets them all follow elapsed time.
"""

import os
import random
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from croniter import croniter
from cronsim import CronSim

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
UTC = timezone.utc
MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
DAYS = "SUN MON TUE WED THU FRI SAT".split()
dice = random.Random(18)


def sql(text):
    """The rows of a query, or of several statements."""
    psql = os.environ["JOBQ_SERVER_BIN"] + "/psql"
    out = subprocess.run([psql, os.environ["JOBQ_SERVER"], "-XqAtv", "ON_ERROR_STOP=1"],
                         input="SET timezone = 'UTC';\n" + text, capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit(out.stderr)
    return out.stdout.splitlines()


def name(value, names, low):
    if names and dice.random() < 0.5 and value - low < len(names):
        return names[value - low]
    return str(value)


def item(low, high, names):
    how = dice.randrange(5)
    if how == 0:
        return "*"
    if how == 1:
        return "*/%d" % dice.randint(1, high)
    first = dice.randint(low, high - 1)
    if how == 2:
        return name(first, names, low)
    last = dice.randint(first + 1, high)
    # SUN at the end of a range is 0 to the others.
    text = name(first, names, low) + "-" + (str(last) if last == 7 else name(last, names, low))
    return text if how == 3 else text + "/%d" % dice.randint(1, high)


def field(low, high, names=None):
    return ",".join(item(low, high, names) for _ in range(dice.choice((1, 1, 1, 2, 3))))


def expression(seconds):
    day = dice.choice(("*", "*", field(1, 31), field(1, 31), "L"))
    month = dice.choice(("*", field(1, 12, MONTHS)))
    weekday = dice.choice(("*", "*", field(0, 7, DAYS)))
    fields = [field(0, 59), field(0, 23), day, month, weekday]
    return " ".join(([field(0, 59)] if seconds else []) + fields)


def instant(low=2000, high=2060):
    start = datetime(low, 1, 1, tzinfo=UTC)
    return start + timedelta(seconds=dice.randrange((high - low) * 365 * 86400))


def literal(text):
    return "'" + text.replace("'", "''") + "'"


def in_utc(found):
    asked = []
    while len(asked) < COUNT:
        text = expression(dice.random() < 0.25)
        try:
            CronSim(text, instant())
        except Exception:  # a date that never comes
            continue
        asked.append((text, instant()))
    values = ",\n".join("(%d, %s, '%s'::timestamptz)" % (i, literal(text), at.isoformat())
                        for i, (text, at) in enumerate(asked))
    rows = sql("SELECT jobq._cron_next(jobq._cron_parse(v.text), 'UTC', v.at) AT TIME ZONE 'UTC' "
               "FROM (VALUES " + values + ") v (i, text, at) ORDER BY i")
    for (text, at), row in zip(asked, rows, strict=True):
        ours = datetime.fromisoformat(row).replace(tzinfo=UTC) if row else None
        theirs = next(CronSim(text, at))
        if ours != theirs:
            found("", "cronsim", text, at, ours, theirs)
        theirs = croniter(text, at, ret_type=datetime, second_at_beginning=True,
                          implement_cron_bug=True).get_next(datetime)
        if ours != theirs:
            sim = CronSim(text, at)
            whole = len(sim.days) == 31 or len({day % 7 for day in sim.weekdays}) == 7
            whole = whole and not sim.day_and
            found("weekday" if whole else "", "croniter", text, at, ours, theirs)


def changes(zone):
    """When the clocks change, and by how much they are set forward."""
    at, end = datetime(2005, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)
    while at < end:
        later = at + timedelta(minutes=30)
        gap = later.astimezone(zone).utcoffset() - at.astimezone(zone).utcoffset()
        if gap:
            yield later, gap
            later += timedelta(days=5)
        at = later


def around_changes(found):
    day = timedelta(days=1)
    compared = 0
    for key in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo",
                "Pacific/Apia", "Africa/Casablanca", "Asia/Beirut", "Asia/Kathmandu"):
        zone = ZoneInfo(key)
        all_changes = list(changes(zone)) or [(instant(2005, 2025), timedelta())]
        for at, gap in dice.choices(all_changes, k=COUNT // 100):
            weekday = dice.choice(("*", "*", field(0, 6)))
            text = "%s %s * * %s" % (field(0, 59), field(0, 23), weekday)
            first, last = at - 2 * day, at + 2 * day
            rows = sql("""WITH RECURSIVE c AS (SELECT jobq._cron_parse(%s) AS cron), r AS (
                SELECT jobq._cron_next(cron, '%s', '%s') AS t FROM c UNION ALL
                SELECT jobq._cron_next(cron, '%s', t) FROM r, c WHERE t < '%s')
                SELECT t AT TIME ZONE 'UTC' FROM r WHERE t < '%s'""" % (
                    literal(text), key, first.isoformat(), key, last.isoformat(),
                    last.isoformat()))
            ours = {datetime.fromisoformat(row).replace(tzinfo=UTC) for row in rows}
            theirs = set()
            for run in CronSim(text, first.astimezone(zone)):
                if run.astimezone(UTC) >= last:
                    break
                theirs.add(run.astimezone(UTC))
            compared += 1
            if ours == theirs:
                continue
            fixed = not any(f.startswith("*") for f in text.split()[:2])
            outside = [{t for t in runs if not at <= t < at + gap} for runs in (ours, theirs)]
            explained = fixed and gap > timedelta() and outside[0] == outside[1]
            half = not fixed and gap % timedelta(hours=1) and theirs < ours
            found("gap" if explained else "half" if half else "", "cronsim", text + " " + key, at,
                  sorted(ours - theirs)[:3], sorted(theirs - ours)[:3])
    return compared


def main():
    counts = {}

    def found(why, library, text, at, ours, theirs):
        counts[why] = counts.get(why, 0) + 1
        if not why:
            print("%s: %s after %s: jobq %s, %s" % (library, text, at, ours, theirs))

    sql("\\i sql/install.sql")
    in_utc(found)
    compared = around_changes(found)
    differences = ["%d %s" % (n, why or "NOT EXPLAINED") for why, n in sorted(counts.items())]
    print("%d instants in UTC by both, %d changes by cronsim; differences: %s" % (
        COUNT, compared, ", ".join(differences)))
    sys.exit(1 if counts.get("") else 0)


main()
