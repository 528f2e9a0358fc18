/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * nightly.c -- a report at 02:30 Berlin time, every night; what that means when the clocks change.
 *
 * Build   cc examples/nightly.c -I. -lpq -o nightly
 * Run     JOBQ_SERVER="host=... dbname=..." ./nightly [--forever]
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/nightly
 * Prints  the nights around the last Sunday of March 2027, when 02:30 does not exist:
 *           Fri 02:30 CET
 *           Sat 02:30 CET
 *           Sun 03:30 CEST
 *           Mon 02:30 CEST
 *         the report of the night of ...
 *
 * A program declares all its schedules when it starts. Workers of the queue fire them, each tick
 * once, however many run; what was missed while none ran is fired when one comes. Without --forever
 * the program fires the schedule by hand, runs the job and ends.
 * Uses the schema jobq_example_nightly, created anew and dropped at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "jobq_example_nightly"

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static PGresult *ask(PGconn *conn, const char *sql)
{
    PGresult *res = PQexec(conn, sql);

    must(PQresultStatus(res) == PGRES_TUPLES_OK || PQresultStatus(res) == PGRES_COMMAND_OK,
         PQerrorMessage(conn));
    return res;
}

/* The headers of the job say which night it is for, also if it runs late. */
static jobq_outcome report(jobq_call *call)
{
    char tick[40] = "?";

    jobq_json_text(call->headers, "tick", tick, sizeof tick);
    printf("the report of the night of %.10s\n", tick);
    return JOBQ_OUTCOME_SUCCESS;
}

static void preview(PGconn *conn)
{
    PGresult *res = ask(conn,
                        "SET timezone = 'Europe/Berlin';"
                        "SELECT to_char(at, 'Dy HH24:MI TZ') FROM " SCHEMA ".schedule_preview("
                        "'30 2 * * *', 'Europe/Berlin', 4, '2027-03-26')");
    int i;

    printf("the nights around the last Sunday of March 2027, when 02:30 does not exist:\n");
    for (i = 0; i < PQntuples(res); i++) printf("  %s\n", PQgetvalue(res, i, 0));
    PQclear(res);
}

/* Raise the revision when the set changes: then an older program that starts later, in a rolling
 * deploy, cannot write its set back. */
static void declare(jobq_pg *pg)
{
    jobq_pg_schedule nightly = {.name = "nightly-report", .cron = "30 2 * * *",
                                .zone = "Europe/Berlin", .overlap = JOBQ_OVERLAP_SKIP,
                                .job = {.queue = "reports", .kind = "nightly"}};
    jobq_pg_error error;
    jobq_error code = jobq_pg_schedules_set(pg, NULL, "nightly-example", 1, &nightly, 1, &error);

    must(code == JOBQ_OK || code == JOBQ_ERROR_VERSION, error.message);
}

int main(int argc, char **argv)
{
    static const jobq_pg_handler handler = {.queue = "reports", .kind = "nightly", .run = {report}};
    bool forever = argc > 1 && strcmp(argv[1], "--forever") == 0;
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = SCHEMA};
    jobq_pg_worker_desc worker = {.handlers = &handler, .handler_count = 1,
                                  .stop_signals = {SIGINT, SIGTERM}};
    jobq_pg_error error;
    PGconn *conn;
    jobq_pg *pg;

    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    PQclear(ask(conn, "SET client_min_messages = warning; DROP SCHEMA IF EXISTS " SCHEMA
                      " CASCADE"));
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    preview(conn);
    declare(pg);
    if (!forever) PQclear(ask(conn, "SELECT " SCHEMA ".schedule_run('nightly-report')"));
    worker.loop.until = forever ? JOBQ_UNTIL_STOPPED : JOBQ_UNTIL_EMPTY;
    must(jobq_pg_work(pg, &worker, &error) == JOBQ_OK, error.message);
    PQclear(ask(conn, "DROP SCHEMA " SCHEMA " CASCADE"));
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return 0;
}
