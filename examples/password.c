/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * password.c -- one-time passwords are texted to people who log in. One that is ten minutes old is
 * worth nothing: it is not sent any more, and its user is told to ask for another.
 *
 * Build   cc examples/password.c -I. -lpq -o password
 * Run     JOBQ_SERVER="host=... dbname=..." ./password
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/password
 * Prints    (the order varies)
 *           sends 1234 to bob
 *           asks ann to try again
 *
 * Uses the schema jobq_example_password, created anew and dropped at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SCHEMA "jobq_example_password"
#define WORTH_US JOBQ_MINUTES(10)

static jobq_pg *pg;

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

/* A password for a user, who asked for it at this instant. Another job waits for the first one: it
 * runs only if that one has failed, or has expired. */
static void asked_by(const char *user, int64_t at_us)
{
    char payload[80];
    jobq_pg_job text = {.queue = "login", .kind = "password", .expires_at_us = at_us + WORTH_US};
    jobq_pg_after after = {.on_end = JOBQ_ON_FAILURE};
    jobq_pg_job sorry = {.queue = "login", .kind = "sorry", .after = &after, .after_count = 1};
    jobq_pg_error error;

    snprintf(payload, sizeof payload, "{\"user\": \"%s\", \"password\": 1234}", user);
    text.payload = sorry.payload = jobq_str_from(payload);
    must(jobq_pg_enqueue(pg, NULL, &text, &after.job, &error) == JOBQ_OK, error.message);
    must(jobq_pg_enqueue(pg, NULL, &sorry, NULL, &error) == JOBQ_OK, error.message);
}

static jobq_outcome send_password(jobq_call *call)
{
    char user[20];
    int64_t password;

    if (jobq_json_text(call->payload, "user", user, sizeof user) != JOBQ_OK ||
        jobq_json_int(call->payload, "password", &password) != JOBQ_OK)
        return JOBQ_OUTCOME_DISCARD;
    printf("  sends %d to %s\n", (int)password, user);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome say_sorry(jobq_call *call)
{
    char user[20];

    if (jobq_json_text(call->payload, "user", user, sizeof user) != JOBQ_OK)
        return JOBQ_OUTCOME_DISCARD;
    printf("  asks %s to try again\n", user);
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
    static const jobq_pg_handler handlers[] = {
        {.queue = "login", .kind = "password", .run = {send_password}},
        {.queue = "login", .kind = "sorry", .run = {say_sorry}}};
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = SCHEMA};
    jobq_pg_worker_desc worker = {.handlers = handlers, .handler_count = 2};
    int64_t now_us = JOBQ_SECONDS((int64_t)time(NULL));
    jobq_pg_error error;
    PGconn *conn;

    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    run(conn, "SET client_min_messages = warning");
    run(conn, "DROP SCHEMA IF EXISTS " SCHEMA " CASCADE");
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);

    asked_by("ann", now_us - JOBQ_MINUTES(11)); /* no worker ran since */
    asked_by("bob", now_us);
    worker.loop.until = JOBQ_UNTIL_EMPTY;
    must(jobq_pg_work(pg, &worker, &error) == JOBQ_OK, error.message);

    run(conn, "DROP SCHEMA " SCHEMA " CASCADE");
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return 0;
}
