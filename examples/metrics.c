/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * metrics.c -- a worker that serves metrics to Prometheus, of the fleet and of itself.
 *
 * Build   cc examples/metrics.c -I. -lpq -o metrics
 * Run     JOBQ_SERVER="host=... dbname=..." ./metrics [SECONDS [PORT]]
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/metrics 60
 * Prints  http://127.0.0.1:9464/metrics          the fleet, by jobq.metrics()
 *         http://127.0.0.1:9464/metrics/process  this process, by jobq_pg_metrics
 *
 * One process of a fleet that serves /metrics is enough: workers deliver their counts with their
 * heartbeats. With it come a dashboard for Grafana, examples/metrics/dashboard.json, and alerts for
 * Prometheus, examples/metrics/alerts.yml. The role that asks needs jobq.grant_read.
 *
 * The HTTP loop answers one request at a time, on 127.0.0.1 alone. It has no TLS and no login: put
 * a proxy in front of it if others are to reach it.
 *
 * Drops and creates the schema jobq_example_metrics, and drops it at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SCHEMA "jobq_example_metrics"
#define TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

static volatile sig_atomic_t asked_to_stop;

static void stops(int signal_number)
{
    (void)signal_number;
    asked_to_stop = 1;
}

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

/* ---- something to measure -------------------------------------------------------------------- */

/* Takes up to 40 ms; one in eight fails at first. */
static jobq_outcome thumbnail(jobq_call *call)
{
    struct timespec nap = {0, (long)(call->job.id % 5) * 10000000};

    nanosleep(&nap, NULL);
    return call->job.id % 8 == 0 && call->job.attempt == 1 ? JOBQ_OUTCOME_RETRY
                                                           : JOBQ_OUTCOME_SUCCESS;
}

static void enqueue_some(jobq_pg *pg)
{
    jobq_pg_job job = {.queue = "pictures", .kind = "thumbnail"};
    jobq_pg_error error;
    int i;

    job.payload = jobq_str_from("{}");
    for (i = 0; i < 10; i++)
        must(jobq_pg_enqueue(pg, NULL, &job, NULL, &error) == JOBQ_OK, error.message);
}

/* ---- HTTP ------------------------------------------------------------------------------------ */

static void send_all(int client, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = send(client, bytes, size, MSG_NOSIGNAL);
        if (sent <= 0) return;
        bytes += sent;
        size -= (size_t)sent;
    }
}

static void answer(int client, const char *status, const char *type, const char *body)
{
    char head[300];

    snprintf(head, sizeof head,
             "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
             status, type, strlen(body));
    send_all(client, head, strlen(head));
    send_all(client, body, strlen(body));
}

static void answer_fleet(int client, PGconn *conn)
{
    PGresult *res;

    if (PQstatus(conn) != CONNECTION_OK) PQreset(conn);
    res = PQexec(conn, "SELECT " SCHEMA ".metrics()");
    if (PQresultStatus(res) == PGRES_TUPLES_OK) answer(client, "200 OK", TYPE,
                                                       PQgetvalue(res, 0, 0));
    else answer(client, "503 Service Unavailable", "text/plain", PQerrorMessage(conn));
    PQclear(res);
}

/* Counts grow between the two calls; there is room for some digits more. */
static void answer_process(int client, jobq_pg_worker *worker)
{
    size_t size = jobq_pg_metrics(worker, NULL, 0) + 4096;
    char *text = (char *)malloc(size);

    if (text != NULL && jobq_pg_metrics(worker, text, size) < size) {
        answer(client, "200 OK", TYPE, text);
    } else answer(client, "503 Service Unavailable", "text/plain", "try again\n");
    free(text);
}

/* Reads a request up to its empty line, for at most a second. False: there was none. */
static bool read_request(int client, char *request, size_t size)
{
    struct timeval second = {1, 0};
    size_t len = 0;

    setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
    setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
    while (len + 1 < size) {
        ssize_t got = recv(client, request + len, size - 1 - len, 0);
        if (got <= 0) return false;
        len += (size_t)got;
        request[len] = '\0';
        if (strstr(request, "\r\n\r\n") != NULL) return true;
    }
    return false;
}

static void serve_one(int client, PGconn *conn, jobq_pg_worker *worker)
{
    char request[8192];

    if (!read_request(client, request, sizeof request)) return;
    if (strncmp(request, "GET /metrics/process ", 21) == 0) answer_process(client, worker);
    else if (strncmp(request, "GET /metrics ", 13) == 0) answer_fleet(client, conn);
    else answer(client, "404 Not Found", "text/plain", "try /metrics\n");
}

static int listen_on(int port)
{
    struct sockaddr_in address;
    int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;

    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    must(fd >= 0, "no socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    must(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 16) == 0,
         "the port is in use: give another one as the second argument");
    return fd;
}

/* ---- the program ----------------------------------------------------------------------------- */

static jobq_pg *open_fresh(PGconn *conn)
{
    jobq_pg_desc desc = {0};
    jobq_pg_error error;
    jobq_pg *pg;

    desc.conninfo = getenv("JOBQ_SERVER");
    desc.schema = SCHEMA;
    must(PQstatus(conn) == CONNECTION_OK, PQerrorMessage(conn));
    PQclear(PQexec(conn, "SET client_min_messages = warning"));
    PQclear(PQexec(conn, "DROP SCHEMA IF EXISTS " SCHEMA " CASCADE"));
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    return pg;
}

static void serve(int fd, double seconds, jobq_pg *pg, PGconn *conn, jobq_pg_worker *worker)
{
    struct pollfd listener = {.fd = fd, .events = POLLIN};
    time_t begin = time(NULL);

    while (!asked_to_stop && (seconds <= 0 || difftime(time(NULL), begin) < seconds)) {
        int client = poll(&listener, 1, 500) > 0 ? accept(fd, NULL, NULL) : -1;
        if (client < 0) {
            enqueue_some(pg);
            continue;
        }
        serve_one(client, conn, worker);
        close(client);
    }
}

int main(int argc, char **argv)
{
    jobq_pg_handler handler = {.queue = "pictures", .kind = "thumbnail", .run = {thumbnail}};
    jobq_pg_worker_desc desc = {.handlers = &handler, .handler_count = 1};
    int port = argc > 2 ? atoi(argv[2]) : 9464, fd = listen_on(port);
    jobq_pg_worker *worker;
    jobq_pg_error error;
    PGconn *conn;
    jobq_pg *pg;

    must(getenv("JOBQ_SERVER") != NULL, "JOBQ_SERVER is not set; see the top of this example");
    signal(SIGINT, stops);
    signal(SIGTERM, stops);
    conn = PQconnectdb(getenv("JOBQ_SERVER"));
    pg = open_fresh(conn);
    desc.loop.heartbeat_us = JOBQ_SECONDS(1);
    must(jobq_pg_worker_start(pg, &desc, &worker, &error) == JOBQ_OK, error.message);
    printf("http://127.0.0.1:%d/metrics          the fleet, by jobq.metrics()\n", port);
    printf("http://127.0.0.1:%d/metrics/process  this process, by jobq_pg_metrics\n", port);
    fflush(stdout);
    serve(fd, argc > 1 ? atof(argv[1]) : 0, pg, conn, worker);
    jobq_pg_worker_stop(worker);
    must(jobq_pg_worker_wait(worker, NULL) == JOBQ_OK, "a handler did not return");
    jobq_pg_worker_free(worker);
    jobq_pg_close(pg);
    PQclear(PQexec(conn, "DROP SCHEMA " SCHEMA " CASCADE"));
    PQfinish(conn);
    close(fd);
    return 0;
}
