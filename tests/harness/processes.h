/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * processes.h -- what tests with workers in processes of their own share: what all of them count,
 * effects in the database, and a server that stops and starts.
 */
#ifndef PROCESSES_INCLUDED
#define PROCESSES_INCLUDED (1)

#include "pg_work.h"

/* Memory of all processes of a test. */
static struct {
    int runs, lost, held;
    int64_t target; /* the job that is special */
    int go;         /* handlers that hold go on */
    int relay;      /* what a relay is to do, and has done */
} * common;

/* Group setup. */
static inline int common_up(void **state)
{
    common = shared(sizeof *common);
    return pg_up(state);
}

/* Test setup: a table for effects. */
static inline int fresh_effects(void **state)
{
    memset(common, 0, sizeof *common);
    RUN("DROP TABLE IF EXISTS jobq.effect");
    RUN("CREATE TABLE jobq.effect (job bigint, stage int, pid int)");
    return fresh(state);
}

/* The same, and a queue that tries again at once. */
static inline int quick_queue(void **state)
{
    fresh_effects(state);
    RUN("INSERT INTO jobq.queue (name, backoff_base_us, backoff_cap_us) VALUES ('q', 1000, 2000)");
    return 0;
}

static inline void statement(PGconn *conn, const char *format, ...)
{
    char generic[300], *text;
    va_list args;

    va_start(args, format);
    vsnprintf(generic, sizeof generic, format, args);
    va_end(args);
    text = for_schema(generic, schema);
    PQclear(PQexec(conn, text));
    free(text);
}

static inline jobq_pg_worker_desc quick_death(const jobq_pg_handler *handlers, size_t count)
{
    jobq_pg_worker_desc d = work_of(handlers, count);

    d.loop.lease_us = check_slow() ? 5 * SECOND : 700000;
    d.loop.heartbeat_us = 100000;
    return d;
}

/* Writes an effect and completes the job, in one transaction. */
static inline jobq_outcome effect_once(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    PGresult *res;
    bool committed;

    ADD(common->runs);
    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    statement(conn, "BEGIN");
    statement(conn, "INSERT INTO jobq.effect VALUES (%lld, %d, %d)", (long long)call->job.id,
              (int)call->job.stage, (int)getpid());
    if (jobq_pg_call_complete(call, conn, &error) == JOBQ_ERROR_LOST) ADD(common->lost);
    res = PQexec(conn, "COMMIT");
    committed = res != NULL && strcmp(PQcmdStatus(res), "COMMIT") == 0;
    PQclear(res);
    if (committed) return JOBQ_OUTCOME_DONE;
    jobq_call_delay(call, 1000);
    return JOBQ_OUTCOME_RETRY;
}

static inline jobq_outcome slow_success(jobq_call *call)
{
    (void)call;
    ADD(common->runs);
    nap_us(20000);
    return JOBQ_OUTCOME_SUCCESS;
}

static inline void server_command(const char *arguments)
{
    char command[200];

    snprintf(command, sizeof command, "tests/server.sh %s </dev/null >/dev/null 2>&1", arguments);
    if (system(command) != 0) fail_msg("%s", command);
}

/* The look-around connection once more, after a restart. */
static inline void db_again(void)
{
    int64_t until = mono_us() + 20 * SECOND;

    do {
        PQfinish(db);
        db = connected();
    } while (PQstatus(db) != CONNECTION_OK && mono_us() < until);
    assert_int_equal(PQstatus(db), CONNECTION_OK);
    PQclear(PQexec(db, "SET client_min_messages = error"));
}

/* And the handle. */
static inline void look_again(void)
{
    db_again();
    jobq_pg_close(pg);
    pg = handle();
}

#endif
