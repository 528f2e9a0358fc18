/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * against.c -- against SCENARIO: for each line on the standard input it runs the scenario once, on
 * the server of JOBQ_SERVER, and prints one figure; less is better. Without arguments it lists the
 * scenarios and the units of their figures.
 *
 * against.sh builds this file twice, with the headers of two commits. So it uses only the public
 * API, and little of it. It runs a scenario many times in one process. The schema, the connections
 * and the plans are then those of a program in use, and a run may be short.
 *
 * The figure of a throughput scenario is processor time per job, of the client and the server. The
 * time on the clock also includes the disk and what other programs do, so it varies much more
 * between two equal runs.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define QUEUE "bench"
#define BATCH 1000
#define CONNECTIONS 8

static jobq_pg *pg;
static PGconn *db;

static void fail(const char *text)
{
    fprintf(stderr, "against: %s\n", text);
    exit(1);
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void nap(double seconds)
{
    struct timespec t;

    t.tv_sec = (time_t)seconds;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

static void sql(const char *text)
{
    PGresult *res = PQexec(db, text);

    if (PQresultStatus(res) != PGRES_COMMAND_OK) fail(PQerrorMessage(db));
    PQclear(res);
}

static long number(const char *query)
{
    PGresult *res = PQexec(db, query);
    long value;

    if (PQresultStatus(res) != PGRES_TUPLES_OK) fail(PQerrorMessage(db));
    value = strtol(PQgetvalue(res, 0, 0), NULL, 10);
    PQclear(res);
    return value;
}

/* -- processor time -- */

static double cpu_of(clockid_t clock)
{
    struct timespec t;

    if (clock_gettime(clock, &t) != 0) return 0;
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Of this process and of the server's processes that serve this database or all databases, in
 * seconds. The other side's idle connections are left out. The caller ends no connection between
 * two calls, so no process takes its time away with it. */
static double cpu(void)
{
    PGresult *res = PQexec(db, "SELECT pid FROM pg_stat_activity "
                               "WHERE coalesce(datname, current_database()) = current_database()");
    double seconds = cpu_of(CLOCK_PROCESS_CPUTIME_ID);
    clockid_t clock;
    int i;

    if (PQntuples(res) == 0) fail(PQerrorMessage(db));
    for (i = 0; i < PQntuples(res); i++) {
        pid_t pid = (pid_t)strtol(PQgetvalue(res, i, 0), NULL, 10);
        if (clock_getcpuclockid(pid, &clock) == 0) seconds += cpu_of(clock);
    }
    PQclear(res);
    return seconds;
}

/* -- producers: threads with a connection each, which share the steps -- */

static PGconn *links[CONNECTIONS];
static void (*step)(PGconn *conn, int number);
static int steps, next_step;

static void *produce(void *conn)
{
    int number;

    while ((number = __atomic_fetch_add(&next_step, 1, __ATOMIC_RELAXED)) < steps) {
        step((PGconn *)conn, number);
    }
    return NULL;
}

static void all_steps(int connections, void (*one)(PGconn *, int), int count)
{
    pthread_t threads[CONNECTIONS];
    int i;

    step = one;
    steps = count;
    next_step = 0;
    for (i = 0; i < connections; i++) {
        if (links[i] == NULL) links[i] = PQconnectdb(getenv("JOBQ_SERVER"));
        if (PQstatus(links[i]) != CONNECTION_OK) fail(PQerrorMessage(links[i]));
        if (pthread_create(&threads[i], NULL, produce, links[i])) fail("no thread");
    }
    for (i = 0; i < connections; i++) pthread_join(threads[i], NULL);
}

static const char payload[] =
    "{\"n\": 100000001, \"text\": \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}";

static void put_jobs(PGconn *conn, int count)
{
    static const jobq_pg_job none;
    jobq_pg_job jobs[BATCH];
    int64_t ids[BATCH];
    jobq_pg_error error;
    int i;

    for (i = 0; i < count; i++) {
        jobs[i] = none;
        jobs[i].queue = QUEUE;
        jobs[i].kind = "noop";
        jobs[i].payload = jobq_str_from(payload);
    }
    if (count == 1 ? jobq_pg_enqueue(pg, conn, jobs, ids, &error)
                   : jobq_pg_enqueue_many(pg, conn, jobs, (size_t)count, ids, &error)) {
        fail(error.message);
    }
}

static void put_messages(PGconn *conn, int number, int count)
{
    static const jobq_pg_message none;
    jobq_pg_message messages[BATCH];
    jobq_pg_error error;
    int i;

    for (i = 0; i < count; i++) {
        messages[i] = none;
        messages[i].queue = QUEUE;
        messages[i].partition = (number + i) % 64;
        messages[i].payload = jobq_str_from(payload);
    }
    if (count == 1 ? jobq_pg_outbox_enqueue(pg, conn, messages, NULL, &error)
                   : jobq_pg_outbox_enqueue_many(pg, conn, messages, (size_t)count, NULL, &error)) {
        fail(error.message);
    }
}

static void job_step(PGconn *conn, int number) { (void)number, put_jobs(conn, 1); }
static void array_step(PGconn *conn, int number) { (void)number, put_jobs(conn, BATCH); }
static void message_step(PGconn *conn, int number) { put_messages(conn, number, 1); }
static void messages_step(PGconn *conn, int number) { put_messages(conn, number, 100); }

/* -- consumers -- */

static long handled;   /* atomic */
static double handled_at;

/* pause: between two looks, in seconds. Looks cost processor time. */
static void await(long count, double pause)
{
    double started = now();

    while (__atomic_load_n(&handled, __ATOMIC_ACQUIRE) < count) {
        nap(pause);
        if (now() - started > 60) fail("not all was handled within a minute");
    }
}

static jobq_outcome job_handler(jobq_call *call)
{
    (void)call;
    handled_at = now();
    __atomic_fetch_add(&handled, 1, __ATOMIC_RELEASE);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome result_handler(jobq_call *call)
{
    if (!jobq_call_result(call, call->payload, false)) fail("no result");
    return job_handler(call);
}

/* Writes a row of its own, and completes the job in the same transaction. */
static jobq_outcome tx_handler(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char id[24];
    const char *value = id;
    PGresult *res;
    jobq_outcome outcome;

    if (conn == NULL) fail(error.message);
    snprintf(id, sizeof id, "%lld", (long long)call->job.id);
    PQclear(PQexec(conn, "BEGIN"));
    res = PQexecParams(conn, "INSERT INTO effect VALUES ($1)", 1, NULL, &value, NULL, NULL, 0);
    if (PQresultStatus(res) != PGRES_COMMAND_OK) fail(PQerrorMessage(conn));
    PQclear(res);
    outcome = jobq_pg_call_commit(call, conn);
    if (outcome != JOBQ_OUTCOME_DONE) fail("handler_tx: a COMMIT failed");
    __atomic_fetch_add(&handled, 1, __ATOMIC_RELEASE);
    return outcome;
}

static jobq_result message_handler(jobq_delivery *d)
{
    handled_at = now();
    __atomic_fetch_add(&handled, d->count, __ATOMIC_RELEASE);
    return JOBQ_RESULT_SUCCESS;
}

/* A worker of jobs, with this handler; NULL: of messages. */
static jobq_pg_worker *worker_start(jobq_handler run, int threads)
{
    static const jobq_pg_worker_desc none;
    static const jobq_pg_handler no_handler;
    static const jobq_pg_receiver no_receiver;
    jobq_pg_worker_desc desc = none;
    jobq_pg_handler handler = no_handler;
    jobq_pg_receiver receiver = no_receiver;
    jobq_pg_worker *worker;
    jobq_pg_error error;

    handler.queue = receiver.queue = QUEUE;
    handler.kind = "noop";
    handler.run[0] = run;
    receiver.all = message_handler;
    desc.handlers = &handler;
    desc.handler_count = run == NULL ? 0 : 1;
    desc.receivers = &receiver;
    desc.receiver_count = run == NULL ? 1 : 0;
    desc.loop.threads = threads;
    if (jobq_pg_worker_start(pg, &desc, &worker, &error)) fail(error.message);
    return worker;
}

/* -- scenarios: each returns its figure -- */

#define SINGLES 1500
#define ARRAYS 30
#define DRAINED 30

static double enqueue_run(int connections, void (*one)(PGconn *, int), int count, int batch)
{
    double used;

    sql("TRUNCATE jobq.job");
    used = cpu();
    all_steps(connections, one, count);
    return 1e6 * (cpu() - used) / ((double)count * batch);
}

static double single_run(void) { return enqueue_run(CONNECTIONS, job_step, SINGLES, 1); }
static double arrays_run(void) { return enqueue_run(2, array_step, ARRAYS, BATCH); }

/* Claims, runs and completes jobs. The workers keep running, because a start costs as much as some
 * thousand jobs. The pause gives them nothing to do until all jobs are there. */
static double drain_run(int workers, jobq_handler run)
{
    static jobq_pg_worker *crew[2];
    static long flushed; /* since the first run */
    long all = flushed + DRAINED * BATCH;
    jobq_pg_error error;
    double used, started;
    int i;

    sql("TRUNCATE jobq.job, jobq.history");
    all_steps(2, array_step, DRAINED);
    for (i = 0; i < workers; i++) {
        if (crew[i] == NULL) crew[i] = worker_start(run, 1);
    }
    used = cpu();
    started = now();
    if (jobq_pg_queue_set(pg, db, QUEUE, &(jobq_pg_queue_desc){.paused = JOBQ_PG_OFF},
                          &error)) fail(error.message);
    while (flushed < all) {
        nap(0.0005);
        for (flushed = 0, i = 0; i < workers; i++) {
            flushed += (long)jobq_pg_worker_stats(crew[i], JOBQ_PG_ALL).jobs.flushed;
        }
        if (now() - started > 60) fail("drain: not done within a minute");
    }
    used = cpu() - used;
    if (jobq_pg_queue_set(pg, db, QUEUE, &(jobq_pg_queue_desc){.paused = JOBQ_PG_ON},
                          &error)) fail(error.message);
    return 1e6 * used / (DRAINED * BATCH);
}

static double drain1_run(void) { return drain_run(1, job_handler); }
static double drain2_run(void) { return drain_run(2, job_handler); }

/* Drains also write history, but that is only a fifth of their figure. Here each job leaves a
 * result, which is half of the figure with its row of history. */
static double history_run(void)
{
    double figure = drain_run(1, result_handler);
    long kept = number("SELECT count(*) FROM jobq.history WHERE result IS NOT NULL");

    if (kept != DRAINED * BATCH) fail("history: not all jobs are kept with their results");
    return figure;
}

/* One worker keeps running, and used is read, as in messages_run. */
static double handler_tx_run(void)
{
    static double used;
    double before = used;

    if (used == 0) {
        sql("DROP TABLE IF EXISTS effect; CREATE TABLE effect (job bigint NOT NULL)");
        worker_start(tx_handler, 4);
        before = cpu();
    }
    handled = 0;
    put_jobs(db, BATCH);
    await(BATCH, 0.005);
    used = cpu();
    return 1e6 * (used - before) / BATCH;
}

/* From the producers to the handler of one worker, which keeps running. What it does afterwards
 * (acknowledge, reclaim space) is included in the next run: used is read where the last one ended,
 * and begins with the first. */
static double messages_run(void (*one)(PGconn *, int), int count, int batch)
{
    static double used;
    double before = used;
    jobq_pg_error error;

    if (used == 0) {
        if (jobq_pg_outbox_register(pg, NULL, QUEUE, 64, NULL, &error)) fail(error.message);
        worker_start(NULL, 0);
        before = cpu();
    }
    handled = 0;
    all_steps(CONNECTIONS, one, count);
    await((long)count * batch, 0.0002);
    used = cpu();
    return 1e6 * (used - before) / ((double)count * batch);
}

static double messages100_run(void) { return messages_run(messages_step, 60, 100); }
static double messages1_run(void) { return messages_run(message_step, 600, 1); }

/* From before the enqueue to the handler's start, with an idle worker: the median of 15, in us. */
static double latency_run(bool messages)
{
    static bool running;
    double us[15], started, t;
    jobq_pg_error error;
    int i, k, n = (int)(sizeof us / sizeof us[0]);

    if (!running) {
        if (messages && jobq_pg_outbox_register(pg, NULL, QUEUE, 64, NULL, &error)) {
            fail(error.message);
        }
        worker_start(messages ? NULL : job_handler, 0);
        nap(0.5);
    }
    running = true;
    for (i = 0; i < n; i++) {
        nap(0.02 + 0.001 * (i * 7 % 20));
        handled = 0;
        started = now();
        if (messages) put_messages(db, i, 1);
        else put_jobs(db, 1);
        await(1, 0.0002);
        t = 1e6 * (handled_at - started);
        for (k = i; k > 0 && us[k - 1] > t; k--) us[k] = us[k - 1];
        us[k] = t;
    }
    return us[n / 2];
}

static double latency_job_run(void) { return latency_run(false); }
static double latency_message_run(void) { return latency_run(true); }

/* The unit begins with "cpu" where the figure is processor time. */
static const struct {
    const char *name, *unit;
    double (*run)(void);
} scenarios[] = {
    {"single", "cpu-us/job", single_run},           /* one job a transaction */
    {"arrays", "cpu-us/job", arrays_run},           /* 1000 jobs a statement */
    {"drain1", "cpu-us/job", drain1_run},           /* claim and complete, 1 worker */
    {"drain2", "cpu-us/job", drain2_run},           /* 2 workers */
    {"history", "cpu-us/job", history_run},         /* drain1 with results, which are kept */
    {"handler_tx", "cpu-us/job", handler_tx_run},   /* ended in the handler's transaction */
    {"messages100", "cpu-us/msg", messages100_run}, /* end to end, 100 a transaction */
    {"messages1", "cpu-us/msg", messages1_run},     /* end to end, 1 a transaction */
    {"latency-job", "us", latency_job_run},         /* idle enqueue to handler */
    {"latency-message", "us", latency_message_run},
};

static void open_schema(void)
{
    static const jobq_pg_desc none;
    jobq_pg_desc desc = none;
    jobq_pg_error error;

    desc.conninfo = getenv("JOBQ_SERVER");
    if (desc.conninfo == NULL) fail("JOBQ_SERVER is not set: run make bench-against REF=COMMIT");
    db = PQconnectdb(desc.conninfo);
    if (PQstatus(db) != CONNECTION_OK) fail(PQerrorMessage(db));
    sql("SET client_min_messages = warning");
    sql("DROP SCHEMA IF EXISTS jobq CASCADE");
    if (jobq_pg_open(&pg, &desc, &error) || jobq_pg_migrate(pg, &error)) fail(error.message);
}

int main(int argc, char **argv)
{
    char line[16];
    size_t i, n = sizeof scenarios / sizeof scenarios[0];

    for (i = 0; argc == 1 && i < n; i++) printf("%s %s\n", scenarios[i].name, scenarios[i].unit);
    if (argc == 1) return 0;
    for (i = 0; i < n && strcmp(scenarios[i].name, argv[1]) != 0; i++) continue;
    if (i == n) fail("no such scenario");
    open_schema();
    scenarios[i].run(); /* warms up */
    while (fgets(line, sizeof line, stdin) != NULL) {
        printf("%.6f\n", scenarios[i].run());
        fflush(stdout);
    }
    _exit(0); /* the worker may still run */
}
