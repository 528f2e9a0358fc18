/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * drain.c -- rows in which workers empty a full queue: drain, drain-history, results, one,
 * sleepers.
 */
#include "bench.h"

/* Drains count loaded jobs. Returns jobs a second, from the start of the workers to the last
 * result. */
static double drain(bool history, long count, int workers, jobq_handler handler,
                    const jobq_loop_config *loop)
{
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, history);
    bench_crew crew;
    double started, took;

    bench_wal_reset(db);
    bench_load(db, "jobq.job", count);
    bench_seen_reset(count);
    started = bench_now();
    bench_crew_start(&crew, pg, workers, handler, loop);
    while (bench_crew_flushed(&crew) < count) {
        bench_sleep(0.0005);
        if (bench_now() - started > 600) bench_fail("drain: not finished after 10 minutes");
    }
    took = bench_now() - started;
    bench_crew_stop(&crew);
    if (bench_seen_wrong() != 0) bench_fail("drain: %ld jobs not run once", bench_seen_wrong());
    if (bench_number(db, "SELECT count(*) FROM jobq.job") != 0) bench_fail("drain: jobs left");
    if (bench_number(db, "SELECT count(*) FROM jobq.history") != (history ? (double)count : 0)) {
        bench_fail("drain: history is wrong");
    }
    jobq_pg_close(pg);
    PQfinish(db);
    return (double)count / took;
}

static void drain_row(bool history, double target)
{
    long count = bench_setting("PEERS_JOBS", bench_long ? 2000000 : 300000);
    double floor = bench_floor_delete(bench_many(), count), rate;
    char label[64], floor_label[64];
    jobq_loop_config loop;

    memset(&loop, 0, sizeof loop);
    loop.threads = 1;
    rate = drain(history, count, bench_many(), bench_noop, &loop);
    floor = (floor + bench_floor_delete(bench_many(), count)) / 2; /* speed varies */
    snprintf(label, sizeof label, "drain, history %s, %d workers", history ? "on" : "off",
             bench_many());
    snprintf(floor_label, sizeof floor_label, "DELETE ... RETURNING, %d connections", bench_many());
    bench_figure(label, rate, "jobs/s", floor_label, floor, BENCH_RATIO_AT_LEAST, target);
}

void row_drain(void) { drain_row(false, 0.40); }
void row_drain_history(void) { drain_row(true, 0.25); }

static jobq_outcome leaves_a_result(jobq_call *call)
{
    jobq_call_result(call, call->payload, false);
    return bench_noop(call);
}

void row_results(void)
{
    long count = bench_long ? 1000000 : 200000;
    jobq_loop_config loop;
    double without, with;

    memset(&loop, 0, sizeof loop);
    loop.threads = 1;
    without = drain(true, count, 2, bench_noop, &loop);
    with = drain(true, count, 2, leaves_a_result, &loop);
    without = (without + drain(true, count, 2, bench_noop, &loop)) / 2;
    bench_figure("drain, a result of 100 bytes each, 2 workers", with, "jobs/s",
                 "without results", without, BENCH_RATIO_AT_LEAST, 0.75);
}

/* -- one job at a time -- */

static long floor_commit_step(PGconn *db, void *state, long step)
{
    char payload[BENCH_PAYLOAD + 1];
    const char *value = payload;
    PGresult *res;

    (void)state;
    bench_payload(payload, step);
    res = PQexecPrepared(db, "ins", 1, &value, NULL, NULL, 0);
    if (PQresultStatus(res) != PGRES_COMMAND_OK) {
        PQclear(res);
        PQclear(PQprepare(db, "ins", "INSERT INTO floor.job (queue_id, kind_id, payload) "
                                     "VALUES (1, 1, $1)", 0, NULL));
        res = PQexecPrepared(db, "ins", 1, &value, NULL, NULL, 0);
    }
    if (PQresultStatus(res) != PGRES_COMMAND_OK) bench_fail("%s", PQerrorMessage(db));
    PQclear(res);
    return 1;
}

void row_one(void)
{
    long count = bench_long ? 50000 : 8000;
    jobq_loop_config loop;
    PGconn *db = bench_db();
    double floor, rate;

    memset(&loop, 0, sizeof loop);
    loop.threads = 1;
    loop.batch_max = 1;
    rate = drain(false, count, 2, bench_noop, &loop);
    bench_floor_table(db);
    bench_wal_reset(db);
    floor = bench_gang_run(2, floor_commit_step, NULL, count, 600);
    bench_figure("one job at a time, 2 workers", rate, "jobs/s", "one-row commits, 2 connections",
                 floor, BENCH_RATIO_AT_LEAST, 0.45);
    PQfinish(db);
}

/* -- handlers that sleep 1 ms -- */

static jobq_outcome sleeper(jobq_call *call)
{
    bench_sleep(0.001);
    return bench_noop(call);
}

static long bare_left;

static void *bare_sleeper(void *arg)
{
    (void)arg;
    while (__atomic_sub_fetch(&bare_left, 1, __ATOMIC_RELAXED) >= 0) bench_sleep(0.001);
    return NULL;
}

void row_sleepers(void)
{
    long count = bench_long ? 1000000 : 150000;
    pthread_t threads[64];
    jobq_loop_config loop;
    double started = bench_now(), floor;
    int i;

    bare_left = count;
    for (i = 0; i < 64; i++) pthread_create(&threads[i], NULL, bare_sleeper, NULL);
    for (i = 0; i < 64; i++) pthread_join(threads[i], NULL);
    floor = (double)count / (bench_now() - started);
    memset(&loop, 0, sizeof loop);
    loop.threads = 64;
    bench_figure("handler sleeps 1 ms, 64 threads", drain(true, count, 1, sleeper, &loop), "jobs/s",
                 "bare threads", floor, BENCH_RATIO_AT_LEAST, 0.9);
}
