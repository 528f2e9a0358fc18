/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * batch.c -- readings of sensors, each a job, go into a table by one COPY for each batch, in the
 * transaction that also completes the jobs: each row is there once, whatever dies. One of them is
 * refused by the table; it fails alone, and the others are stored.
 *
 * Build   cc examples/batch.c -I. -lpq -o batch
 * Run     JOBQ_SERVER="host=... dbname=..." ./batch
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/batch
 * Prints    a COPY of 16 rows is refused
 *           15 of 16 rows are stored
 *           job 11 has failed in attempt 5, when it was alone:
 *           ERROR:  new row for relation "reading" violates check constraint "reading_value_check"
 *           a COPY of 100 rows is committed
 *           115 rows are stored
 *
 * Uses the schemas jobq_example_batch and jobq_example_readings, created anew and dropped at the
 * end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "jobq_example_batch"
#define DATA "jobq_example_readings"

static bool told; /* it has told of the first COPY */

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

/* A statement without a result. NULL: it worked; otherwise why not. */
static const char *run(PGconn *conn, const char *sql)
{
    PGresult *res = PQexec(conn, sql);
    bool good = PQresultStatus(res) == PGRES_COMMAND_OK || PQresultStatus(res) == PGRES_TUPLES_OK ||
                PQresultStatus(res) == PGRES_COPY_IN;

    PQclear(res);
    return good ? NULL : PQerrorMessage(conn);
}

static int number(PGconn *conn, const char *sql)
{
    PGresult *res = PQexec(conn, sql);
    int value = atoi(PQgetvalue(res, 0, 0));

    PQclear(res);
    return value;
}

/* Sends a row of the table for each job that is good in itself. Returns how many. */
static int send_rows(PGconn *conn, jobq_call *const *calls, int32_t count)
{
    int32_t i, rows = 0;
    double value;
    char row[80];

    for (i = 0; i < count; i++) {
        if (jobq_json_double(calls[i]->payload, "value", &value) != JOBQ_OK) {
            jobq_call_error(calls[i], jobq_str_from("it has no value"));
            calls[i]->outcome = JOBQ_OUTCOME_DISCARD; /* this one, and no other */
            continue;
        }
        snprintf(row, sizeof row, "%" PRId64 "\t%.17g\n", calls[i]->job.id, value);
        PQputCopyData(conn, row, (int)strlen(row));
        rows++;
    }
    return rows;
}

/* Stores all rows of a batch, or none. Which of them the table has refused is not worth finding
 * out: RETRY for all. They come again in batches of half the size, until the bad one is alone. */
static jobq_outcome store(jobq_call *const *calls, int32_t count)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(calls[0], &error);
    char why[300];
    PGresult *res;
    bool good;
    int32_t i, rows;

    if (conn == NULL || run(conn, "BEGIN") != NULL ||
        run(conn, "COPY " DATA ".reading FROM STDIN") != NULL) return JOBQ_OUTCOME_RETRY;
    rows = send_rows(conn, calls, count);
    PQputCopyEnd(conn, NULL);
    res = PQgetResult(conn);
    good = PQresultStatus(res) == PGRES_COMMAND_OK;
    snprintf(why, sizeof why, "%s", PQresultErrorMessage(res));
    PQclear(res);
    PQclear(PQgetResult(conn)); /* NULL: the COPY is over */
    if (!told) printf("  a COPY of %d rows is %s\n", (int)rows, good ? "committed" : "refused");
    told = true;
    if (good) return jobq_pg_call_commit_all(calls, count, conn);
    run(conn, "ROLLBACK");
    for (i = 0; i < count; i++) jobq_call_error(calls[i], jobq_str_from(why));
    return JOBQ_OUTCOME_RETRY;
}

/* A job for each reading. */
static void enqueue(jobq_pg *pg, int from, int count)
{
    static jobq_pg_job jobs[100];
    static char payloads[100][40];
    jobq_pg_error error;
    int i;

    for (i = 0; i < count; i++) {
        snprintf(payloads[i], sizeof payloads[i], "{\"value\": %d}", from + i == 11 ? -300 : 20);
        memset(&jobs[i], 0, sizeof jobs[i]);
        jobs[i].queue = "readings";
        jobs[i].kind = "reading";
        jobs[i].payload = jobq_str_from(payloads[i]);
    }
    must(jobq_pg_enqueue_many(pg, NULL, jobs, (size_t)count, NULL, &error) == JOBQ_OK,
         error.message);
}

/* What has failed, and why. */
static void tell_failed(PGconn *conn)
{
    PGresult *res = PQexec(conn, "SELECT id, attempt, replace(errors -> -1 ->> 'error',"
                                 " 'Max retries (5) exceeded: ', '') FROM " SCHEMA ".failed");
    int i;

    for (i = 0; i < PQntuples(res); i++)
        printf("  job %s has failed in attempt %s, when it was alone:\n  %.*s\n",
               PQgetvalue(res, i, 0), PQgetvalue(res, i, 1),
               (int)strcspn(PQgetvalue(res, i, 2), "\n"), PQgetvalue(res, i, 2));
    PQclear(res);
}

int main(void)
{
    static const jobq_pg_handler handler = {.queue = "readings", .kind = "reading",
                                            .batch = store, .batch_max = 100,
                                            .batch_wait_us = JOBQ_MILLISECONDS(50)};
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = SCHEMA};
    jobq_pg_worker_desc worker = {.handlers = &handler, .handler_count = 1};
    jobq_pg_handler small = handler;
    jobq_pg_error error;
    jobq_pg *pg;
    PGconn *conn;

    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    run(conn, "SET client_min_messages = warning");
    run(conn, "DROP SCHEMA IF EXISTS " SCHEMA ", " DATA " CASCADE");
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    must(run(conn, "CREATE SCHEMA " DATA) == NULL, "no schema");
    must(run(conn, "CREATE TABLE " DATA ".reading (job bigint PRIMARY KEY,"
                   " value double precision CHECK (value > -273.15))") == NULL, "no table");
    must(run(conn, "SELECT " SCHEMA ".queue_set('readings', max_attempts => 5,"
                   " backoff_base => '0.1 s')") == NULL, "no queue");
    worker.loop.threads = 1;
    worker.loop.until = JOBQ_UNTIL_ENDED;

    enqueue(pg, 1, 16);
    small.batch_max = 16;
    worker.handlers = &small;
    must(jobq_pg_work(pg, &worker, &error) == JOBQ_OK, error.message);
    printf("  %d of 16 rows are stored\n", number(conn, "SELECT count(*) FROM " DATA ".reading"));
    tell_failed(conn);

    told = false;
    worker.handlers = &handler;
    enqueue(pg, 17, 100);
    must(jobq_pg_work(pg, &worker, &error) == JOBQ_OK, error.message);
    printf("  %d rows are stored\n", number(conn, "SELECT count(*) FROM " DATA ".reading"));

    run(conn, "DROP SCHEMA " SCHEMA ", " DATA " CASCADE");
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return 0;
}
