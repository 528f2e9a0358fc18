/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * log_json.c -- prints the library's log as JSON lines, for a system that collects logs.
 *
 * Build   cc examples/log_json.c -I. -lpq -o log_json
 * Run     JOBQ_SERVER="host=... dbname=..." ./log_json
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/log_json
 * Prints  lines such as (cut into three here)
 *           {"level": "warning", "code": "hold_failed", "text": "jobq_example_log: job 1: ...",
 *            "schema": "jobq_example_log", "sqlstate": ..., "queue": "mail", "kind": "greet",
 *            "worker": ..., "job": 1, "attempt": 1, ...}
 *
 * Uses the schema jobq_example_log, created anew and dropped at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "jobq_example_log"

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

/* A line that is built up. What does not fit is left out, so that the line stays valid. */
typedef struct line {
    char text[4096];
    size_t at;
} line;

static void put_text(line *l, const char *name, jobq_str value)
{
    char quoted[2048], member[2200];
    int size;

    if (value.len == 0 || jobq_json_quote(quoted, sizeof quoted, value) == 0) return;
    size = snprintf(member, sizeof member, "%s\"%s\": %s", l->at > 1 ? ", " : "", name, quoted);
    if (l->at + (size_t)size + 2 > sizeof l->text) return;
    memcpy(l->text + l->at, member, (size_t)size);
    l->at += (size_t)size;
}

static void put_number(line *l, const char *name, int64_t value)
{
    if (value == 0 || l->at + 80 > sizeof l->text) return;
    l->at += (size_t)snprintf(l->text + l->at, sizeof l->text - l->at, ", \"%s\": %lld", name,
                              (long long)value);
}

/* It is called with locks held, by several threads: one write for each line, and no jobq calls. */
static void log_json(void *user, const jobq_pg_event *e)
{
    static const char *const levels[] = {"debug", "info", "warning", "error"};
    char worker[24];
    line l = {"{", 1};

    if (e->level == JOBQ_LEVEL_DEBUG) return;
    put_text(&l, "level", jobq_str_from(levels[e->level]));
    put_text(&l, "code", jobq_str_from(e->code));
    put_text(&l, "text", jobq_str_from(e->text));
    put_text(&l, "schema", jobq_str_from(e->schema));
    put_text(&l, "sqlstate", jobq_str_from(e->sqlstate));
    put_text(&l, "queue", e->queue);
    put_text(&l, "kind", e->kind);
    /* 64 random bits: as text they survive readers that take numbers for doubles. */
    snprintf(worker, sizeof worker, "%lld", (long long)e->worker);
    if (e->worker != 0) put_text(&l, "worker", jobq_str_from(worker));
    put_number(&l, "job", e->job);
    put_number(&l, "partition_id", e->partition_id);
    put_number(&l, "attempt", e->attempt);
    put_number(&l, "duration_us", e->duration_us);
    fprintf((FILE *)user, "%.*s}\n", (int)l.at, l.text);
}

/* Holds its line, but has none: the log says so. */
static jobq_outcome greet(jobq_call *call)
{
    jobq_call_hold(call, JOBQ_HOLD_LINE, JOBQ_SECONDS(1), jobq_str_from("429"));
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
    jobq_pg_handler handler = {.queue = "mail", .kind = "greet", .run = {greet}};
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = SCHEMA,
                         .log_event = log_json, .user = stdout};
    jobq_pg_worker_desc work = {.handlers = &handler, .handler_count = 1,
                                .loop = {.until = JOBQ_UNTIL_ENDED}};
    jobq_pg_job job = {.queue = "mail", .kind = "greet"};
    PGconn *conn;
    jobq_pg *pg;
    jobq_pg_error error;

    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    conn = PQconnectdb(desc.conninfo);
    run(conn, "SET client_min_messages = warning");
    run(conn, "DROP SCHEMA IF EXISTS " SCHEMA " CASCADE");
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    must(jobq_pg_enqueue(pg, NULL, &job, NULL, &error) == JOBQ_OK, error.message);
    must(jobq_pg_work(pg, &work, &error) == JOBQ_OK, error.message);
    jobq_pg_close(pg);
    run(conn, "DROP SCHEMA " SCHEMA " CASCADE");
    PQfinish(conn);
    return 0;
}
