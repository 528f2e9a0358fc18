/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * latency.c -- rows about time: latency, wait, schedule, snapshot, idle, outbox-latency.
 */
#include "bench.h"

#include <poll.h>

#define SAMPLES_MAX 5000

static double began;        /* when the handler last started */
static int64_t began_late;  /* its wall clock minus the job's run_at */
static int begun;

static jobq_outcome stamp(jobq_call *call)
{
    began = bench_now();
    began_late = bench_wall_us() - call->job.run_at_us;
    __atomic_store_n(&begun, 1, __ATOMIC_RELEASE);
    return JOBQ_OUTCOME_SUCCESS;
}

static void enqueue_one(jobq_pg *pg, PGconn *db, int64_t delay_us)
{
    char payload[BENCH_PAYLOAD + 1];
    jobq_pg_job job;
    jobq_pg_error error;

    memset(&job, 0, sizeof job);
    bench_payload(payload, 1);
    job.queue = BENCH_QUEUE;
    job.kind = BENCH_KIND;
    job.payload.ptr = payload;
    job.payload.len = BENCH_PAYLOAD;
    job.delay_us = delay_us;
    if (jobq_pg_enqueue(pg, db, &job, NULL, &error)) bench_fail("%s", error.message);
}

static void await(int *flag)
{
    double started = bench_now();

    while (!__atomic_load_n(flag, __ATOMIC_ACQUIRE)) {
        bench_sleep(0.0001);
        if (bench_now() - started > 60) bench_fail("latency: a job was not run within a minute");
    }
}

/* Milliseconds from just before the enqueue to the start of the handler. */
static void sample_worker(jobq_pg *pg, PGconn *db, double *ms, int count)
{
    double started;
    int i;

    for (i = 0; i < count; i++) {
        bench_sleep(0.001 * bench_chance(20, 40));
        __atomic_store_n(&begun, 0, __ATOMIC_RELEASE);
        started = bench_now();
        enqueue_one(pg, db, 0);
        await(&begun);
        ms[i] = 1000 * (began - started);
    }
}

/* -- the floor: insert + NOTIFY to receive -- */

static double received;
static int receipt;

static void *listener(void *arg)
{
    PGconn *db = bench_db();
    PGnotify *n;

    (void)arg;
    bench_sql(db, "LISTEN bench");
    __atomic_store_n(&receipt, 1, __ATOMIC_RELEASE);
    for (;;) {
        struct pollfd fd = {PQsocket(db), POLLIN, 0};
        poll(&fd, 1, -1);
        PQconsumeInput(db);
        while ((n = PQnotifies(db)) != NULL) {
            bool end = strcmp(n->extra, "end") == 0;
            received = bench_now();
            PQfreemem(n);
            if (end) PQfinish(db);
            if (end) return NULL;
            __atomic_store_n(&receipt, 1, __ATOMIC_RELEASE);
        }
    }
}

static void sample_floor(PGconn *db, double *ms, int count)
{
    char payload[BENCH_PAYLOAD + 1];
    const char *value = payload;
    pthread_t thread;
    double started;
    int i;

    memset(ms, 0, (size_t)count * sizeof *ms);
    if (bench_alone) return;
    bench_payload(payload, 1);
    bench_floor_table(db);
    PQclear(PQprepare(db, "tell", "WITH i AS (INSERT INTO floor.job (queue_id, kind_id, payload) "
                                  "VALUES (1, 1, $1)) SELECT pg_notify('bench', '')", 0, NULL));
    receipt = 0;
    pthread_create(&thread, NULL, listener, NULL);
    await(&receipt);
    for (i = 0; i < count; i++) {
        bench_sleep(0.001 * bench_chance(20, 40));
        __atomic_store_n(&receipt, 0, __ATOMIC_RELEASE);
        started = bench_now();
        PQclear(PQexecPrepared(db, "tell", 1, &value, NULL, NULL, 0));
        await(&receipt);
        ms[i] = 1000 * (received - started);
    }
    bench_sql(db, "NOTIFY bench, 'end'");
    pthread_join(thread, NULL);
    bench_sql(db, "DEALLOCATE tell");
}

static double select_one(PGconn *db)
{
    double us[1000], started;
    int i;

    PQclear(PQprepare(db, "one", "SELECT 1", 0, NULL));
    for (i = 0; i < 1000; i++) {
        started = bench_now();
        PQclear(PQexecPrepared(db, "one", 0, NULL, NULL, NULL, 1));
        us[i] = 1e6 * (bench_now() - started);
    }
    bench_sql(db, "DEALLOCATE one");
    return bench_quantile(us, 1000, 0.5);
}

void row_latency(void)
{
    int count = bench_setting("PEERS_SAMPLES", bench_long ? 2000 : 150), i;
    double worker[SAMPLES_MAX], floor[SAMPLES_MAX];
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    bench_crew crew;
    FILE *data = bench_data("latency");

    bench_wal_reset(db);
    sample_floor(db, floor, count);
    bench_crew_start(&crew, pg, 1, stamp, NULL);
    bench_sleep(0.5);
    sample_worker(pg, db, worker, 10);
    sample_worker(pg, db, worker, count);
    bench_crew_stop(&crew);
    jobq_pg_close(pg);
    bench_figure("(floor) SELECT 1, prepared, p50", select_one(db), "us", "", 0, BENCH_SHOWN, 0);
    bench_figure("idle enqueue to handler, p50", bench_quantile(worker, (size_t)count, 0.5), "ms",
                 "insert + NOTIFY to receive", bench_quantile(floor, (size_t)count, 0.5),
                 BENCH_RATIO_AT_MOST, 1.5);
    bench_figure("idle enqueue to handler, p99", bench_quantile(worker, (size_t)count, 0.99), "ms",
                 "insert + NOTIFY to receive", bench_quantile(floor, (size_t)count, 0.99),
                 BENCH_RATIO_AT_MOST, 1.5);
    bench_figure("  p50 alone", bench_quantile(worker, (size_t)count, 0.5), "ms", "", 0,
                 BENCH_AT_MOST, 1);
    for (i = 0; i < count; i++) {
        fprintf(data, "%g\t%g\t%g\n", (i + 0.5) / count, worker[i], floor[i]);
    }
    fclose(data);
    PQfinish(db);
}

/* -- waiting -- */

static jobq_outcome answer(jobq_call *call)
{
    jobq_call_result(call, call->payload, false);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Milliseconds from just before the enqueue to the result. */
static void sample_waits(jobq_pg *pg, PGconn *db, double *ms, int count)
{
    char payload[BENCH_PAYLOAD + 1];
    jobq_pg_job job;
    jobq_pg_error error;
    jobq_pg_rows rows;
    double started;
    int64_t id;
    int i;

    memset(&job, 0, sizeof job);
    bench_payload(payload, 1);
    job.queue = BENCH_QUEUE;
    job.kind = BENCH_KIND;
    job.payload.ptr = payload;
    job.payload.len = BENCH_PAYLOAD;
    for (i = 0; i < count; i++) {
        bench_sleep(0.001 * bench_chance(20, 40));
        started = bench_now();
        if (jobq_pg_enqueue(pg, db, &job, &id, &error) ||
            jobq_pg_wait(pg, NULL, &id, 1, JOBQ_SECONDS(60), &rows, &error))
            bench_fail("%s", error.message);
        ms[i] = 1000 * (bench_now() - started);
        if (((const jobq_pg_job_row *)rows.rows)->result.ptr == NULL) bench_fail("no result");
        jobq_pg_rows_clear(&rows);
    }
}

void row_wait(void)
{
    int count = bench_long ? 2000 : 150;
    double start[SAMPLES_MAX], end[SAMPLES_MAX];
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    bench_crew crew;

    bench_crew_start(&crew, pg, 1, stamp, NULL);
    bench_sleep(0.5);
    sample_worker(pg, db, start, 10);
    sample_worker(pg, db, start, count);
    bench_crew_stop(&crew);
    bench_crew_start(&crew, pg, 1, answer, NULL);
    bench_sleep(0.5);
    sample_waits(pg, db, end, 10);
    sample_waits(pg, db, end, count);
    bench_crew_stop(&crew);
    jobq_pg_close(pg);
    PQfinish(db);
    bench_figure("idle enqueue to result, p50", bench_quantile(end, (size_t)count, 0.5), "ms",
                 "enqueue to handler, and 1 ms more",
                 bench_quantile(start, (size_t)count, 0.5) + 1, BENCH_RATIO_AT_MOST, 1);
    bench_figure("idle enqueue to result, p99", bench_quantile(end, (size_t)count, 0.99), "ms",
                 "enqueue to handler", bench_quantile(start, (size_t)count, 0.99), BENCH_SHOWN, 0);
}

/* -- messages -- */

static jobq_result stamp_message(jobq_delivery *d, const jobq_message *m)
{
    (void)d;
    (void)m;
    began = bench_now();
    __atomic_store_n(&begun, 1, __ATOMIC_RELEASE);
    return JOBQ_RESULT_SUCCESS;
}

/* Milliseconds from just before the enqueue to the start of the handler, numbering included. */
static void sample_messages(jobq_pg *pg, PGconn *db, double *ms, int count)
{
    char payload[BENCH_PAYLOAD + 1];
    jobq_pg_message m;
    jobq_pg_error error;
    double started;
    int i;

    memset(&m, 0, sizeof m);
    bench_payload(payload, 1);
    m.queue = BENCH_QUEUE;
    m.payload.ptr = payload;
    m.payload.len = BENCH_PAYLOAD;
    for (i = 0; i < count; i++) {
        bench_sleep(0.001 * bench_chance(20, 40));
        __atomic_store_n(&begun, 0, __ATOMIC_RELEASE);
        m.partition = i % 64;
        started = bench_now();
        if (jobq_pg_outbox_enqueue(pg, db, &m, NULL, &error)) bench_fail("%s", error.message);
        await(&begun);
        ms[i] = 1000 * (began - started);
    }
}

void row_outbox_latency(void)
{
    int count = bench_setting("PEERS_SAMPLES", bench_long ? 2000 : 150);
    double ms[SAMPLES_MAX], floor[SAMPLES_MAX];
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    jobq_pg_worker_desc desc;
    jobq_pg_receiver r;
    jobq_pg_worker *worker = NULL;
    jobq_pg_error error;

    memset(&desc, 0, sizeof desc);
    memset(&r, 0, sizeof r);
    r.queue = BENCH_QUEUE;
    r.each = stamp_message;
    desc.receivers = &r;
    desc.receiver_count = 1;
    bench_wal_reset(db);
    sample_floor(db, floor, count);
    if (jobq_pg_outbox_register(pg, NULL, BENCH_QUEUE, 64, NULL, &error) ||
        jobq_pg_worker_start(pg, &desc, &worker, &error)) bench_fail("%s", error.message);
    bench_sleep(0.5);
    sample_messages(pg, db, ms, 10);
    sample_messages(pg, db, ms, count);
    jobq_pg_worker_stop(worker);
    jobq_pg_worker_wait(worker, NULL);
    jobq_pg_worker_free(worker);
    jobq_pg_close(pg);
    bench_figure("outbox: idle enqueue to handler, p50", bench_quantile(ms, (size_t)count, 0.5),
                 "ms", "insert + NOTIFY to receive", bench_quantile(floor, (size_t)count, 0.5),
                 BENCH_SHOWN, 0);
    bench_figure("outbox: idle enqueue to handler, p99", bench_quantile(ms, (size_t)count, 0.99),
                 "ms", "insert + NOTIFY to receive", bench_quantile(floor, (size_t)count, 0.99),
                 BENCH_SHOWN, 0);
    PQfinish(db);
}

/* -- scheduled jobs -- */

void row_schedule(void)
{
    int count = bench_long ? 500 : 30, i;
    double late[SAMPLES_MAX];
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    bench_crew crew;

    bench_crew_start(&crew, pg, 1, stamp, NULL);
    bench_sleep(0.5);
    for (i = 0; i < count; i++) {
        __atomic_store_n(&begun, 0, __ATOMIC_RELEASE);
        enqueue_one(pg, db, 1000 * bench_chance(20, 200));
        await(&begun);
        late[i] = (double)began_late / 1000;
    }
    bench_crew_stop(&crew);
    jobq_pg_close(pg);
    bench_figure("lateness of a scheduled job, idle, p50", bench_quantile(late, (size_t)count, 0.5),
                 "ms", "", 0, BENCH_AT_MOST, 5);
    bench_figure("  p99", bench_quantile(late, (size_t)count, 0.99), "ms", "", 0, BENCH_SHOWN, 0);
    PQfinish(db);
}

/* -- while a snapshot is held -- */

void row_snapshot(void)
{
    long count = bench_long ? 1000000 : 300000, flushed, mark = 0;
    int samples = bench_long ? 500 : 60;
    double ms[SAMPLES_MAX], without, first = 0, last = 0, started, t;
    PGconn *db = bench_db(), *holder = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    bench_crew crew;
    jobq_loop_config loop;
    FILE *data = bench_data("snapshot");

    bench_crew_start(&crew, pg, 1, stamp, NULL);
    bench_sleep(0.5);
    sample_worker(pg, db, ms, samples);
    bench_crew_stop(&crew);
    without = bench_quantile(ms, (size_t)samples, 0.5);
    bench_sql(db, "TRUNCATE jobq.job, jobq.history");
    bench_sql(db, "ALTER SEQUENCE jobq.job_id RESTART");
    bench_load(db, "jobq.job", count);
    bench_wal_reset(db);
    bench_sql(holder, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    bench_number(holder, "SELECT count(*) FROM jobq.meta");
    bench_seen_reset(count);
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
        fprintf(data, "%g\t%ld\n", t, flushed);
        bench_sleep(0.002);
        if (t > 600) bench_fail("snapshot: not finished after 10 minutes");
    }
    last = (double)(count - mark) / (bench_now() - started - last);
    bench_crew_stop(&crew);
    if (bench_seen_wrong() != 0) bench_fail("snapshot: %ld jobs not run once", bench_seen_wrong());
    bench_figure("held snapshot: last 10 % of the jobs", last, "jobs/s", "first 10 %", first,
                 BENCH_RATIO_AT_LEAST, 0.9);
    bench_crew_start(&crew, pg, 1, stamp, NULL);
    bench_sleep(0.5);
    sample_worker(pg, db, ms, 10);
    sample_worker(pg, db, ms, samples);
    bench_crew_stop(&crew);
    bench_figure("held snapshot: idle latency, p50", bench_quantile(ms, (size_t)samples, 0.5), "ms",
                 "without", without, BENCH_RATIO_AT_MOST, 1.5);
    bench_figure("  p99", bench_quantile(ms, (size_t)samples, 0.99), "ms", "", 0, BENCH_SHOWN, 0);
    PQfinish(holder);
    jobq_pg_close(pg);
    fclose(data);
    PQfinish(db);
}

/* -- idle workers -- */

/* Processor time of all processes of the server, background processes too, in seconds. */
static double server_cpu(PGconn *db)
{
    PGresult *res = PQexec(db, "SELECT pid FROM pg_stat_activity");
    double seconds = 0;
    int i;

    for (i = 0; i < PQntuples(res); i++)
        seconds += bench_cpu((pid_t)strtol(PQgetvalue(res, i, 0), NULL, 10));
    PQclear(res);
    return seconds;
}

#define IDLERS 64
#define BEAT 5.0 /* seconds between the statements of each */

/* The floor: the same number of connections, each of which updates its own row equally rarely.
 * Returns the share of a core. */
static double idle_floor(PGconn *db, double seconds)
{
    PGconn *idlers[IDLERS];
    double cpu = 0, started;
    int i, n, beats = (int)(seconds / BEAT);

    bench_sql(db, "DROP TABLE IF EXISTS bench_idle");
    bench_sql(db, "CREATE TABLE bench_idle AS SELECT i AS id, 0 AS beat "
                  "FROM generate_series(1, %d) i", IDLERS);
    bench_sql(db, "ALTER TABLE bench_idle ADD PRIMARY KEY (id)");
    for (i = 0; i < IDLERS; i++) {
        idlers[i] = bench_db();
        bench_sql(idlers[i], "SET synchronous_commit = off");
        bench_sql(idlers[i], "PREPARE beat (int) AS UPDATE bench_idle SET beat = beat + 1 "
                             "WHERE id = $1");
    }
    started = bench_now();
    for (n = 0; n < beats; n++) {
        for (i = 0; i < IDLERS; i++) {
            int pid = PQbackendPID(idlers[i]);
            bench_sleep(started + BEAT * (n + (double)i / IDLERS) - bench_now());
            cpu -= bench_cpu(pid);
            bench_sql(idlers[i], "EXECUTE beat(%d)", i + 1);
            cpu += bench_cpu(pid);
        }
    }
    for (i = 0; i < IDLERS; i++) PQfinish(idlers[i]);
    bench_sql(db, "DROP TABLE bench_idle");
    return cpu / (beats * BEAT);
}

void row_idle(void)
{
    double seconds = bench_long ? 60 : 10, cpu, alone, calls, started, floor;
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    bench_crew crew;

    alone = server_cpu(db); /* without workers: what an idle server uses */
    bench_sleep(5);
    alone = (server_cpu(db) - alone) / 5;
    floor = idle_floor(db, seconds);
    bench_crew_start(&crew, pg, IDLERS, bench_noop, NULL);
    bench_sleep(bench_long ? 30 : 15);
    bench_sql(db, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements");
    bench_sql(db, "SET pg_stat_statements.track = 'none'");
    cpu = server_cpu(db);
    calls = bench_number(db, "SELECT sum(calls) FROM pg_stat_statements");
    started = bench_now();
    bench_sleep(seconds);
    calls = bench_number(db, "SELECT sum(calls) FROM pg_stat_statements") - calls;
    seconds = bench_now() - started;
    cpu = server_cpu(db) - cpu;
    bench_figure("64 idle workers: statements of each", calls / seconds / IDLERS, "1/s", "", 0,
                 BENCH_AT_MOST, 0.2);
    bench_figure("64 idle workers: server CPU above an idle server's",
                 100 * (cpu / seconds - alone), "%", "bare updates, as seldom", 100 * floor,
                 BENCH_AT_MOST, 1);
    bench_crew_stop(&crew);
    jobq_pg_close(pg);
    PQfinish(db);
}
