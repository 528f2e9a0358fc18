/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * trace.c -- joins a web request with the job that it enqueues, and with that job's own child: all
 * are spans of one trace, which travels as W3C's traceparent.
 *
 * Build   cc examples/trace.c -I. -lpq -o trace
 * Run     JOBQ_SERVER="host=... dbname=..." ./trace
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/trace
 * Prints    4bf92f3577b34da6a3ce929d0e0e4736  00f067aa0ba902b7 -> 0000000000000001  POST /orders
 *           4bf92f3577b34da6a3ce929d0e0e4736  0000000000000001 -> 0000000000000002  accept
 *           4bf92f3577b34da6a3ce929d0e0e4736  0000000000000002 -> 0000000000000003  receipt
 *
 * A span is printed as: its trace, the span that caused it, itself, its name. In a program of your
 * own a tracer such as OpenTelemetry's makes the spans; jobq only carries the text.
 * Uses the schema jobq_example_trace, created anew and dropped at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "jobq_example_trace"

static jobq_pg *pg;

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

/* ---- a tracer, as small as it can be --------------------------------------------------------- */

typedef struct span {
    char parent[56]; /* the traceparent of what this span causes */
} span;

/* Begins a span within a trace; without a trace a new one. */
static span begin(jobq_trace trace, const char *name)
{
    static int count;
    span s;

    if (trace.parent.ptr == NULL)
        trace.parent = jobq_str_from("00-00000000000000000000000000000001-0000000000000000-01");
    snprintf(s.parent, sizeof s.parent, "00-%.32s-%016x-01", trace.parent.ptr + 3, ++count);
    printf("%.32s  %.16s -> %.16s  %s\n", trace.parent.ptr + 3, trace.parent.ptr + 36,
           s.parent + 36, name);
    return s;
}

/* What a span enqueues belongs to it. The state of other vendors is passed on as it came. */
static jobq_trace within(const span *s, jobq_trace outer)
{
    jobq_trace trace = {{NULL, 0}, {NULL, 0}};

    trace.parent = jobq_str_from(s->parent);
    trace.state = outer.state;
    return trace;
}

/* ---- the web server -------------------------------------------------------------------------- */

/* The value of a header; {NULL, 0}: none. */
static jobq_str header_of(const char *request, const char *name)
{
    const char *line = strstr(request, name);
    jobq_str value = {NULL, 0};

    if (line == NULL) return value;
    value.ptr = line + strlen(name);
    value.len = strcspn(value.ptr, "\r\n");
    return value;
}

/* A traceparent from outside may be anything: jobq ignores one that is not valid. */
static void serve(const char *request)
{
    jobq_trace outer = {header_of(request, "\ntraceparent: "),
                        header_of(request, "\ntracestate: ")};
    span s = begin(outer, "POST /orders");
    jobq_pg_job job = {.queue = "orders", .kind = "accept"};
    jobq_pg_error error;

    job.payload = jobq_str_from("{\"order\": 7}");
    job.trace = within(&s, outer);
    must(jobq_pg_enqueue(pg, NULL, &job, NULL, &error) == JOBQ_OK, error.message);
}

/* ---- the worker ------------------------------------------------------------------------------ */

static jobq_outcome accept_order(jobq_call *call)
{
    span s = begin(jobq_trace_of(call->headers), "accept");
    jobq_pg_job child = {.queue = "orders", .kind = "receipt"};
    jobq_pg_error error;

    child.payload = call->payload;
    child.trace = within(&s, jobq_trace_of(call->headers));
    if (jobq_pg_enqueue(pg, NULL, &child, NULL, &error) == JOBQ_OK) return JOBQ_OUTCOME_SUCCESS;
    jobq_call_error(call, jobq_str_from(error.message));
    return JOBQ_OUTCOME_RETRY;
}

static jobq_outcome send_receipt(jobq_call *call)
{
    begin(jobq_trace_of(call->headers), "receipt");
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
    jobq_pg_handler handlers[] = {{.queue = "orders", .kind = "accept", .run = {accept_order}},
                                  {.queue = "orders", .kind = "receipt", .run = {send_receipt}}};
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = SCHEMA};
    jobq_pg_worker_desc work = {.handlers = handlers, .handler_count = 2,
                                .loop = {.threads = 1, .until = JOBQ_UNTIL_EMPTY}};
    PGconn *conn;
    jobq_pg_error error;

    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    conn = PQconnectdb(desc.conninfo);
    run(conn, "SET client_min_messages = warning");
    run(conn, "DROP SCHEMA IF EXISTS " SCHEMA " CASCADE");
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);

    serve("POST /orders HTTP/1.1\r\n"
          "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
          "tracestate: congo=t61rcWkgMzE\r\n\r\n");
    must(jobq_pg_work(pg, &work, &error) == JOBQ_OK, error.message);

    jobq_pg_close(pg);
    run(conn, "DROP SCHEMA " SCHEMA " CASCADE");
    PQfinish(conn);
    return 0;
}
