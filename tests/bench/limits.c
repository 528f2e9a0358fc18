/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * limits.c -- rows about lines and limits: lines, lines-many, lines-late, lines-held, line-first,
 * permits. Most compare drains of full queues in one run: with lines or limits, and without.
 */
#include "bench.h"

static const char jobs_of[] =
    "INSERT INTO jobq.job (queue_id, kind_id, payload, line, line_name) "
    "SELECT 1, 1, '%s'::jsonb, jobq._line_no(l.name), l.name "
    "FROM generate_series(1, %ld) n CROSS JOIN LATERAL (SELECT 'tenant-' || n %% %ld AS name) l";

/* Loads count jobs of so many lines. */
static void load(PGconn *db, long count, long lines)
{
    char payload[BENCH_PAYLOAD + 1];

    bench_payload(payload, 0);
    bench_sql(db, jobs_of, payload, count, lines);
    bench_sql(db, "UPDATE jobq.queue SET lines = true");
    bench_sql(db, "ANALYZE jobq.job");
}

/* Two workers drain count jobs of some lines (0: jobs without lines), after these settings, and
 * beside closed jobs of lines that give none. Returns jobs a second. */
static double drain(long count, long lines, const char *settings, long closed)
{
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, false);
    jobq_loop_config loop;
    bench_crew crew;
    double started, took;

    bench_wal_reset(db);
    if (lines > 0) load(db, count, lines);
    else bench_load(db, "jobq.job", count);
    if (closed > 0) load(db, closed, closed);
    if (settings != NULL) bench_sql(db, "%s", settings);
    bench_seen_reset(count);
    memset(&loop, 0, sizeof loop);
    loop.threads = 1;
    started = bench_now();
    bench_crew_start(&crew, pg, 2, bench_noop, &loop);
    while (bench_crew_flushed(&crew) < count) {
        bench_sleep(0.0005);
        if (bench_now() - started > 600) bench_fail("limits: not finished after 10 minutes");
    }
    took = bench_now() - started;
    bench_crew_stop(&crew);
    if (bench_seen_wrong() != 0) bench_fail("limits: %ld jobs not run once", bench_seen_wrong());
    jobq_pg_close(pg);
    PQfinish(db);
    return (double)count / took;
}

/* The drain before and after it, because speed varies. */
static void compare(const char *label, long lines, const char *settings, long closed,
                    double target)
{
    long count = bench_long ? 1000000 : 200000;
    double floor = drain(count, 0, NULL, 0), rate = drain(count, lines, settings, closed);

    floor = (floor + drain(count, 0, NULL, 0)) / 2;
    bench_figure(label, rate, "jobs/s", "drain without lines", floor, BENCH_RATIO_AT_LEAST,
                 target);
}

void row_lines(void)
{
    compare("1,000 lines", 1000, NULL, 0, 0.70);
    compare("  10 at a time in each", 1000,
            "SELECT jobq.queue_set('" BENCH_QUEUE "', line_running_max => 10)", 0, 0.40);
}

void row_lines_many(void)
{
    compare("100,000 lines", 100000, NULL, 0, 0.30);
    compare("  1 at a time in each", 100000,
            "SELECT jobq.queue_set('" BENCH_QUEUE "', line_running_max => 1)", 0, 0.20);
}

/* Each of these lines has given its one job of the day. */
void row_lines_late(void)
{
    compare("jobs without lines beside 100,000 lines over their rate", 0,
            "SELECT jobq.queue_set('" BENCH_QUEUE "', line_rate => '1/day'); "
            "INSERT INTO jobq.line (queue_id, no, name, free_at) "
            "SELECT j.queue_id, j.line, j.line_name, now() FROM jobq.job j "
            "WHERE j.line IS NOT NULL; ANALYZE jobq.line", 100000, 0.80);
}

/* How fast the last tenth of the jobs goes beside the first, when no dead row can be removed. */
static void held(const char *label, long lines, const char *settings)
{
    long count = bench_long ? 1000000 : 300000, flushed, mark = 0;
    PGconn *db = bench_db(), *holder = bench_db();
    jobq_pg *pg = bench_schema(db, false);
    double first = 0, last = 0, started, t = 0;
    jobq_loop_config loop;
    bench_crew crew;

    load(db, count, lines);
    if (settings != NULL) bench_sql(db, "%s", settings);
    bench_sql(holder, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    bench_number(holder, "SELECT count(*) FROM jobq.meta");
    memset(&loop, 0, sizeof loop);
    loop.threads = 1;
    started = bench_now();
    bench_crew_start(&crew, pg, 2, bench_noop, &loop);
    while ((flushed = bench_crew_flushed(&crew)) < count) {
        t = bench_now() - started;
        if (first == 0 && flushed >= count / 10) first = (double)flushed / t;
        if (last == 0 && flushed >= count - count / 10) {
            last = t;
            mark = flushed;
        }
        bench_sleep(0.002);
        if (t > 1800) bench_fail("lines-held: not finished after half an hour");
    }
    last = (double)(count - mark) / (bench_now() - started - last);
    bench_crew_stop(&crew);
    bench_figure(label, last, "jobs/s", "first 10 %", first, BENCH_RATIO_AT_LEAST, 0.8);
    PQfinish(holder);
    jobq_pg_close(pg);
    PQfinish(db);
}

void row_lines_held(void)
{
    held("1,000 lines and a held snapshot: last 10 % of the jobs", 1000, NULL);
    held("  10 at a time in each", 1000,
         "SELECT jobq.queue_set('" BENCH_QUEUE "', line_running_max => 10)");
}

void row_permits(void)
{
    compare("a queue with a limit that is never reached", 0,
            "SELECT jobq.queue_set('" BENCH_QUEUE "', running_max => 1000000)", 0, 0.98);
}

/* -- a quiet tenant behind a noisy one -- */

static long noisy_jobs; /* the ids after these are quiet ones' */
static long quiet_runs;

static jobq_outcome noting(jobq_call *call)
{
    if (call->job.id > noisy_jobs) __atomic_add_fetch(&quiet_runs, 1, __ATOMIC_SEQ_CST);
    return JOBQ_OUTCOME_SUCCESS;
}

/* The noisy one's jobs are being drained when the quiet one enqueues its only job. */
void row_line_first(void)
{
    long count = bench_long ? 1000000 : 300000;
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, false);
    double late[21], put;
    jobq_loop_config loop;
    bench_crew crew;
    int i;

    load(db, count, 1);
    noisy_jobs = count;
    memset(&loop, 0, sizeof loop);
    loop.threads = 1;
    bench_crew_start(&crew, pg, 2, noting, &loop);
    while (bench_crew_flushed(&crew) < 10000) bench_sleep(0.001);
    for (i = 0; i < 21; i++) {
        put = bench_now();
        bench_sql(db, "SELECT jobq.enqueue('" BENCH_QUEUE "', '" BENCH_KIND "', line => 'quiet')");
        while (__atomic_load_n(&quiet_runs, __ATOMIC_SEQ_CST) == i) {
            bench_sleep(0.0002);
            if (bench_now() - put > 60) bench_fail("line-first: the quiet line waits");
        }
        late[i] = (bench_now() - put) * 1000;
    }
    if (bench_crew_flushed(&crew) >= count) bench_fail("line-first: the noisy line has ended");
    bench_crew_stop(&crew);
    bench_figure("a job of a quiet line behind a million of a noisy one starts after, p50",
                 bench_quantile(late, 21, 0.5), "ms", "", 0, BENCH_SHOWN, 0);
    jobq_pg_close(pg);
    PQfinish(db);
}
