/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * debounce.c -- a document is indexed once it has been left alone for a while, not after each
 * keystroke; it is never indexed twice at a time, and the last change is never missed.
 *
 * Build   cc examples/debounce.c -I. -lpq -o debounce
 * Run     JOBQ_SERVER="host=... dbname=..." ./debounce
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/debounce
 * Prints    edited 5 times
 *           indexes version 5
 *           edited while it is indexed: version 6
 *           edited while it is indexed: version 7
 *           indexes version 7
 *
 * Uses the schema jobq_example_debounce, created anew and dropped at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "jobq_example_debounce"

static jobq_pg *pg;

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

/* An edit of document 7. It replaces the job of an edit that has not been indexed yet; if that job
 * runs, the new one waits for its end. */
static void edited(int version)
{
    char payload[20];
    jobq_pg_job job = {.queue = "search", .kind = "index", .key = "document-7",
                       .on_known = JOBQ_KNOWN_REPLACE, .delay_us = JOBQ_MILLISECONDS(300),
                       .at_latest_us = JOBQ_SECONDS(10)};
    jobq_pg_error error;

    snprintf(payload, sizeof payload, "%d", version);
    job.payload = jobq_str_from(payload);
    must(jobq_pg_enqueue(pg, NULL, &job, NULL, &error) == JOBQ_OK, error.message);
}

static jobq_outcome index_document(jobq_call *call)
{
    int64_t version;
    int i;

    if (jobq_json_int(call->payload, NULL, &version) != JOBQ_OK) return JOBQ_OUTCOME_DISCARD;
    printf("  indexes version %d\n", (int)version);
    for (i = 6; version == 5 && i <= 7; i++) {
        printf("  edited while it is indexed: version %d\n", i);
        edited(i);
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static void run(PGconn *conn, const char *sql)
{
    PGresult *res = PQexec(conn, sql);

    must(PQresultStatus(res) == PGRES_COMMAND_OK, PQerrorMessage(conn));
    PQclear(res);
}

int main(void)
{
    static const jobq_pg_handler handler = {.queue = "search", .kind = "index",
                                            .run = {index_document}};
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = SCHEMA};
    jobq_pg_worker_desc worker = {.handlers = &handler, .handler_count = 1};
    jobq_pg_error error;
    PGconn *conn;
    int i;

    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    run(conn, "SET client_min_messages = warning");
    run(conn, "DROP SCHEMA IF EXISTS " SCHEMA " CASCADE");
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);

    for (i = 1; i <= 5; i++) edited(i);
    printf("  edited 5 times\n");
    worker.loop.until = JOBQ_UNTIL_ENDED;
    must(jobq_pg_work(pg, &worker, &error) == JOBQ_OK, error.message);

    run(conn, "DROP SCHEMA " SCHEMA " CASCADE");
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return 0;
}
