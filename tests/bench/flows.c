/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * flows.c -- the row flows: a chain, a fan out and in, a batch with a callback, diamonds. Each is
 * beside a drain of as many jobs that wait for nothing.
 */
#include "bench.h"

/* Works off what sql has enqueued, with two workers. Returns seconds from their start to the last
 * result. */
static double work_off(const char *sql, long jobs)
{
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    jobq_loop_config loop;
    bench_crew crew;
    double started, took;

    memset(&loop, 0, sizeof loop);
    loop.threads = 1;
    bench_sql(db, "%s", sql);
    bench_sql(db, "VACUUM ANALYZE jobq.job");
    bench_wal_reset(db);
    bench_seen_reset(jobs);
    started = bench_now();
    bench_crew_start(&crew, pg, 2, bench_noop, &loop);
    while (bench_crew_flushed(&crew) < jobs) {
        bench_sleep(0.0005);
        if (bench_now() - started > 300) bench_fail("flows: not finished after 5 minutes");
    }
    took = bench_now() - started;
    bench_crew_stop(&crew);
    if (bench_seen_wrong() != 0) bench_fail("flows: %ld jobs not run once", bench_seen_wrong());
    if (bench_number(db, "SELECT jobq.audit()") != 0) bench_fail("flows: audit");
    if (bench_number(db, "SELECT count(*) FROM jobq.nudge") != 0) bench_fail("flows: nudges left");
    jobq_pg_close(pg);
    PQfinish(db);
    return took;
}

/* As many jobs that wait for nothing. */
static double plain(long jobs)
{
    char sql[200];

    snprintf(sql, sizeof sql, "SELECT FROM jobq._enqueue_many('bench', '{noop}', NULL, array_fill("
             "'1'::jsonb, ARRAY[%ld]))", jobs);
    return work_off(sql, jobs);
}

/* Children in enqueue_linked: element i of the last arrays is an edge to child i. */
#define LINKED(count, children, parents)                                                           \
    "jobq._enqueue_linked('bench', '{noop}', NULL, array_fill('1'::jsonb, ARRAY[" count            \
    "]), NULL, "                                                                                   \
    "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, " count                                       \
    ", false, NULL, NULL, NULL, " children ", " parents                                            \
    ", NULL, NULL, array_fill('success'::text, ARRAY[cardinality(" parents ")]))"

void row_flows(void)
{
    long batch = bench_long ? 1000000 : 200000, diamonds = bench_long ? 100000 : 20000;
    char sql[1500];
    double took, floor;

    took = work_off("DO $$ DECLARE j bigint := jobq.enqueue('bench', 'noop'); BEGIN FOR i IN 2 .. "
                    "1000 LOOP j := jobq.enqueue('bench', 'noop', after => ARRAY[j]); END LOOP; "
                    "END $$", 1000);
    bench_figure("chain of 1,000 jobs, a link", took, "ms", "", 0, BENCH_AT_MOST, 2);
    floor = (plain(10000) + plain(10000)) / 2;
    took = work_off(
        "DO $$ DECLARE v bigint[]; BEGIN PERFORM jobq.enqueue('bench', 'noop'); "
        "v := (SELECT ids FROM " LINKED("9998", "ARRAY(SELECT generate_series(1, 9998))",
                                        "array_fill(1::bigint, ARRAY[9998])") "); "
        "PERFORM jobq.enqueue('bench', 'noop', after => v); END $$", 10000);
    bench_figure("one job, then 9,998, then one", took * 1000, "ms", "10,000 that wait for nothing",
                 floor * 1000, BENCH_RATIO_AT_MOST, 1.5);
    floor = plain(batch);
    snprintf(sql, sizeof sql, "SELECT jobq.batch('bench', 'noop', array_fill('1'::jsonb, "
             "ARRAY[%ld]), 'noop')", batch - 1);
    took = work_off(sql, batch);
    floor = (floor + plain(batch)) / 2;
    bench_figure("batch with a callback, 2 workers", (double)batch / took, "jobs/s",
                 "jobs in no flow", (double)batch / floor, BENCH_RATIO_AT_LEAST, 0.85);
    snprintf(sql, sizeof sql,
             "DO $$ DECLARE n bigint := %ld; a bigint[]; b bigint[]; c bigint[]; BEGIN "
             "a := (SELECT ids FROM jobq._enqueue_many('bench', '{noop}', NULL, array_fill("
             "'1'::jsonb, ARRAY[n::int]))); "
             "b := (SELECT ids FROM " LINKED("(n * 2)::int",
                 "ARRAY(SELECT generate_series(1, n * 2)::int)", "(a || a)") "); "
             "c := (SELECT ids FROM " LINKED("n::int",
                 "ARRAY(SELECT (i - 1) %% n + 1 FROM generate_series(1, n * 2) i)::int[]",
                 "b") "); "
             "END $$", diamonds);
    took = work_off(sql, diamonds * 4);
    bench_figure("diamonds of 4 jobs, 2 workers", (double)diamonds * 4 / took, "jobs/s", "", 0,
                 BENCH_AT_LEAST, 20000);
}
