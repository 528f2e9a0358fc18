/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * worker.c -- a worker with two kinds of jobs: retries, snoozing, a log, a graceful stop.
 *
 * Build   cc examples/worker.c -I. -lpq -o worker
 * Run     JOBQ_SERVER="host=... dbname=..." ./worker [--forever]
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/worker
 * Prints  (times and order vary a little)
 *           0.02 s  fetch a.example: attempt 1: 503, to be tried again in 0.2 s
 *           0.02 s  fetch b.example: attempt 1: no address
 *           0.02 s  report: too early, snoozes
 *           0.28 s  fetch a.example: attempt 2: fetched
 *           0.33 s  report: too early, snoozes
 *           0.64 s  report: written
 *         started 6, succeeded 2, retried 1, failed 1
 *
 * Without --forever the program ends when all jobs have ended. With --forever it works until Ctrl-C
 * or SIGTERM, and lets running handlers finish; a second Ctrl-C does not wait for them. While it
 * runs, you can enqueue more:
 *         psql -c "select jobq_example_worker.enqueue('web', 'fetch', '\"c.example\"')"
 * Drops and creates the schema jobq_example_worker, and drops it at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SCHEMA "jobq_example_worker"

static struct timespec begin;

static double elapsed(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - begin.tv_sec) + (double)(now.tv_nsec - begin.tv_nsec) / 1e9;
}

static void say(const jobq_call *call, const char *host, const char *what)
{
    printf("%6.2f s  fetch %s: attempt %d: %s\n", elapsed(), host, (int)call->job.attempt, what);
}

/* ---- two kinds of jobs ----------------------------------------------------------------------- */

/* Pretends to read a page, for 50 ms. False: the worker is about to stop. */
static bool read_page(const jobq_call *call)
{
    struct timespec nap = {0, 5000000};
    int part;

    for (part = 0; part < 10; part++) {
        if (jobq_call_stopping(call, NULL) != JOBQ_STOP_NONE) return false;
        nanosleep(&nap, NULL);
    }
    return true;
}

/* Fetches a page. */
static jobq_outcome fetch(jobq_call *call)
{
    char host[256];

    if (jobq_json_text(call->payload, NULL, host, sizeof host) != JOBQ_OK) {
        jobq_call_error(call, jobq_str_from("the payload is not the name of a host"));
        return JOBQ_OUTCOME_DISCARD; /* another attempt would not help: the job fails */
    }
    if (strcmp(host, "b.example") == 0) {
        say(call, host, "no address");
        jobq_call_error(call, jobq_str_from("no such host"));
        return JOBQ_OUTCOME_DISCARD;
    }
    if (call->job.attempt == 1) {
        say(call, host, "503, to be tried again in 0.2 s");
        jobq_call_error(call, jobq_str_from("503 Service Unavailable"));
        jobq_call_delay(call, JOBQ_MILLISECONDS(200)); /* otherwise the queue's backoff applies */
        return JOBQ_OUTCOME_RETRY;
    }
    if (!read_page(call)) {
        say(call, host, "given back, because the worker stops");
        return JOBQ_OUTCOME_RELEASE; /* another worker runs it; this attempt does not count */
    }
    say(call, host, "fetched");
    return JOBQ_OUTCOME_SUCCESS;
}

/* Writes a report, but only at the third look. A snooze uses up no attempt. */
static jobq_outcome report(jobq_call *call)
{
    static int looked;

    if (looked++ < 2) {
        printf("%6.2f s  report: too early, snoozes\n", elapsed());
        jobq_call_delay(call, JOBQ_MILLISECONDS(300));
        return JOBQ_OUTCOME_SNOOZE;
    }
    printf("%6.2f s  report: written\n", elapsed());
    return JOBQ_OUTCOME_SUCCESS;
}

static const jobq_pg_handler handlers[] = {
    {.queue = "web", .kind = "fetch", .run = {fetch}},
    {.queue = "web", .kind = "report", .run = {report}, .threads_max = 1}}; /* one at a time */

/* ---- the program around them ----------------------------------------------------------------- */

/* The library logs its own troubles here. The error of a failed job is not logged; it is in the
 * job's row. */
static void log_line(void *user, jobq_level level, const char *message)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};

    (void)user;
    if (level >= JOBQ_LEVEL_WARNING) fprintf(stderr, "%s: %s\n", names[level], message);
}

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void tell(PGconn *conn, const char *sql)
{
    PGresult *res = PQexec(conn, sql);

    must(PQresultStatus(res) == PGRES_COMMAND_OK, PQerrorMessage(conn));
    PQclear(res);
}

static jobq_pg *open_fresh(PGconn **conn)
{
    jobq_pg_desc desc = {0};
    jobq_pg_error error;
    jobq_pg *pg;

    desc.conninfo = getenv("JOBQ_SERVER");
    desc.schema = SCHEMA;
    desc.log = log_line;
    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_acquire(pg, conn, &error) == JOBQ_OK, error.message);
    tell(*conn, "SET client_min_messages = warning");
    tell(*conn, "DROP SCHEMA IF EXISTS " SCHEMA " CASCADE");
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    return pg;
}

static void enqueue(jobq_pg *pg, const char *kind, const char *payload)
{
    jobq_pg_job job = {0};
    jobq_pg_error error;

    job.queue = "web";
    job.kind = kind;
    job.payload = jobq_str_from(payload);
    must(jobq_pg_enqueue(pg, NULL, &job, NULL, &error) == JOBQ_OK, error.message);
}

/* Works until all jobs have ended, or for ever. A signal stops it early in both cases. */
static jobq_pg_stats work(jobq_pg *pg, bool forever)
{
    jobq_pg_worker_desc desc = {0};
    jobq_pg_stats stats;
    jobq_pg_error error;

    desc.handlers = handlers;
    desc.handler_count = sizeof handlers / sizeof handlers[0];
    desc.loop.threads = 2;
    desc.loop.until = forever ? JOBQ_UNTIL_STOPPED : JOBQ_UNTIL_ENDED;
    desc.loop.grace_us = JOBQ_SECONDS(10); /* after a signal, for running handlers */
    desc.stop_signals[0] = SIGINT;
    desc.stop_signals[1] = SIGTERM;
    desc.stats = &stats;
    must(jobq_pg_work(pg, &desc, &error) == JOBQ_OK, error.message);
    return stats;
}

int main(int argc, char **argv)
{
    bool forever = argc > 1 && strcmp(argv[1], "--forever") == 0;
    jobq_loop_stats stats;
    PGconn *conn;
    jobq_pg *pg = open_fresh(&conn);

    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    enqueue(pg, "fetch", "\"a.example\"");
    enqueue(pg, "fetch", "\"b.example\"");
    enqueue(pg, "report", NULL);
    stats = work(pg, forever).jobs;
    printf("started %d, succeeded %d, retried %d, failed %d\n", (int)stats.started,
           (int)stats.succeeded, (int)stats.retried, (int)stats.failed);
    tell(conn, "DROP SCHEMA " SCHEMA " CASCADE");
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return 0;
}
