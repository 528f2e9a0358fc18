/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* app.h -- what the programs of this folder share, whatever their event loop is: a worker that the
 * host steps, with a handler that squares a number at its second attempt. */
#define JOBQ_STATIC
#include "jobq_pg.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define APP_SCHEMA "jobq_example_loops"
#define APP_BUDGET_US 5000 /* for handlers, in each step */

static void app_must(bool good, const char *why)
{
    if (!good) fprintf(stderr, "%s\n", why), exit(1);
}

/* Runs within a step, so it must return soon. */
static jobq_outcome app_square(jobq_call *call)
{
    int64_t n;
    char result[32];

    if (jobq_json_int(call->payload, NULL, &n) != JOBQ_OK) return JOBQ_OUTCOME_DISCARD;
    printf("attempt %d\n", (int)call->job.attempt);
    if (call->job.attempt == 1) {
        jobq_call_delay(call, JOBQ_MILLISECONDS(200));
        return JOBQ_OUTCOME_RETRY;
    }
    snprintf(result, sizeof result, "%lld", (long long)(n * n));
    jobq_call_result(call, jobq_str_from(result), false);
    return JOBQ_OUTCOME_SUCCESS;
}

static void app_drop(jobq_pg *pg)
{
    jobq_pg_error error;
    PGconn *conn;

    app_must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    PQclear(PQexec(conn, "SET client_min_messages = warning;"
                         "DROP SCHEMA IF EXISTS " APP_SCHEMA " CASCADE"));
    jobq_pg_release(pg, conn);
}

/* The database of JOBQ_SERVER, with a fresh schema, and a worker. */
static jobq_pg_worker *app_open(jobq_pg **pg)
{
    jobq_pg_handler handler = {"sums", "square", {app_square}};
    jobq_pg_worker_desc work;
    jobq_pg_worker *worker;
    jobq_pg_error error;
    jobq_pg_desc desc;

    memset(&desc, 0, sizeof desc);
    desc.conninfo = getenv("JOBQ_SERVER");
    desc.schema = APP_SCHEMA;
    app_must(jobq_pg_open(pg, &desc, &error) == JOBQ_OK, error.message);
    app_drop(*pg);
    app_must(jobq_pg_migrate(*pg, &error) == JOBQ_OK, error.message);
    memset(&work, 0, sizeof work);
    work.handlers = &handler;
    work.handler_count = 1;
    app_must(jobq_pg_worker_open(*pg, &work, &worker, &error) == JOBQ_OK, error.message);
    return worker;
}

/* Asks, without waiting, for a job that squares n; done gets its id. */
static inline void app_enqueue(jobq_pg_worker *worker, int n, jobq_pg_done done, void *user)
{
    char payload[16];
    jobq_pg_job job;
    jobq_pg_question ask;
    jobq_pg_error error;

    snprintf(payload, sizeof payload, "%d", n);
    memset(&job, 0, sizeof job);
    job.queue = "sums";
    job.kind = "square";
    job.payload = jobq_str_from(payload);
    memset(&ask, 0, sizeof ask);
    ask.enqueue = &job;
    app_must(jobq_pg_worker_ask(worker, &ask, done, user, &error) == JOBQ_OK, error.message);
}

/* ... and for the result of a job. */
static inline void app_await(jobq_pg_worker *worker, int64_t id, jobq_pg_done done, void *user)
{
    jobq_pg_question ask;
    jobq_pg_error error;

    memset(&ask, 0, sizeof ask);
    ask.await = id;
    ask.timeout_us = JOBQ_SECONDS(20);
    app_must(jobq_pg_worker_ask(worker, &ask, done, user, &error) == JOBQ_OK, error.message);
}

/* What a program without coroutines does: the job, its result, and the end. user: the worker. */
static inline void app_ended(void *user, const jobq_pg_reply *reply)
{
    app_must(reply->code == JOBQ_OK, reply->error->message);
    printf("job %lld: %.*s\n", (long long)reply->id, (int)reply->result.len, reply->result.ptr);
    jobq_pg_worker_stop((jobq_pg_worker *)user);
}

static inline void app_enqueued(void *user, const jobq_pg_reply *reply)
{
    app_must(reply->code == JOBQ_OK, reply->error->message);
    printf("enqueued job %lld\n", (long long)reply->id);
    app_await((jobq_pg_worker *)user, reply->id, app_ended, user);
}

static void app_close(jobq_pg *pg, jobq_pg_worker *worker)
{
    jobq_pg_worker_free(worker);
    app_drop(pg);
    jobq_pg_close(pg);
}
