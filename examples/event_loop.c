/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * event_loop.c -- a program runs jobs in its own event loop, without threads and without blocking.
 *
 * Build   cc examples/event_loop.c -I. -lpq -o event_loop
 * Run     JOBQ_SERVER="host=... dbname=..." ./event_loop [SECONDS]
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/event_loop
 * Prints  (times vary a little)
 *           0.20 s  enqueued "a.png" as job 1
 *           0.20 s  enqueued "b.png" as job 2
 *           0.20 s  resize a.png
 *           0.20 s  resize b.png: no memory, again in 0.3 s
 *           0.50 s  resize b.png
 *         frames ..., jobs 3, worst wait for a frame ... ms
 *
 * The loop draws a frame every 20 ms, as a game does, and runs jobs in between. It also enqueues
 * them, without waiting for the server; their NOTIFY wakes the poll. Ctrl-C stops it gracefully.
 *
 * Drops and creates the schema jobq_example_event_loop, and drops it at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32
#include <winsock2.h>
#define poll WSAPoll
typedef ULONG nfds_t;
#else
#include <poll.h>
#endif

#define SCHEMA "jobq_example_event_loop"
#define FRAME_US 20000
#define BUDGET_US 5000 /* for handlers, in each turn of the loop */

static int64_t begin_us;
static jobq_pg_worker *worker;

static int64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Must take a few milliseconds at most, because the next frame waits for it. */
static jobq_outcome resize(jobq_call *call)
{
    char picture[80];
    bool fails;

    if (jobq_json_text(call->payload, NULL, picture, sizeof picture) != JOBQ_OK)
        return JOBQ_OUTCOME_DISCARD;
    fails = call->job.attempt == 1 && strcmp(picture, "b.png") == 0;
    printf("%6.2f s  resize %s%s\n", (double)(now_us() - begin_us) / 1e6, picture,
           fails ? ": no memory, again in 0.3 s" : "");
    if (!fails) return JOBQ_OUTCOME_SUCCESS;
    jobq_call_delay(call, JOBQ_MILLISECONDS(300));
    return JOBQ_OUTCOME_RETRY;
}

static void on_signal(int number)
{
    (void)number;
    jobq_pg_worker_stop(worker); /* safe in a signal handler */
}

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

/* The answer to an enqueue, from within a step. A lost connection leaves open whether the job was
 * enqueued; because it has a key, it can be enqueued again. */
static void enqueued(void *user, const jobq_pg_reply *reply)
{
    if (reply->code == JOBQ_OK) {
        printf("%6.2f s  enqueued \"%s\" as job %lld\n", (double)(now_us() - begin_us) / 1e6,
               (const char *)user, (long long)reply->id);
    } else if (reply->code != JOBQ_ERROR_EXISTS) printf("%s\n", reply->error->message);
}

/* Does not wait; picture: a literal, because the callback gets it. */
static void enqueue(const char *picture)
{
    jobq_pg_job job = {.queue = "pictures", .kind = "resize", .key = picture};
    jobq_pg_question ask = {.enqueue = &job};
    jobq_pg_error error;
    char payload[80];

    must(jobq_json_quote(payload, sizeof payload, jobq_str_from(picture)) > 0, "too long");
    job.payload = jobq_str_from(payload);
    must(jobq_pg_worker_ask(worker, &ask, enqueued, (void *)picture, &error) == JOBQ_OK,
         error.message);
}

static jobq_pg *open_fresh(void)
{
    jobq_pg_desc desc = {0};
    jobq_pg_error error;
    PGconn *conn;
    jobq_pg *pg;

    desc.conninfo = getenv("JOBQ_SERVER");
    desc.schema = SCHEMA;
    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    PQclear(PQexec(conn, "SET client_min_messages = warning"));
    PQclear(PQexec(conn, "DROP SCHEMA IF EXISTS " SCHEMA " CASCADE"));
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    jobq_pg_release(pg, conn);
    return pg;
}

/* Waits for the worker's sockets, but no longer than until the next frame. A real program would add
 * its own sockets to fds. */
static void wait_until(int64_t frame_us)
{
    struct pollfd fds[JOBQ_PG_FDS];
    int64_t wait_us, left_us = frame_us - now_us();
    int count = jobq_pg_worker_fds(worker, fds, &wait_us);

    if (left_us < wait_us) wait_us = left_us > 0 ? left_us : 0;
    poll(fds, (nfds_t)count, (int)((wait_us + 999) / 1000));
}

/* Draws frames on time and runs jobs in between. */
static void run(int64_t end_us)
{
    int64_t frame_us = now_us(), late_us = 0;
    int frames = 0;

    while (jobq_pg_worker_step(worker, BUDGET_US)) {
        if (now_us() >= frame_us) {
            if (now_us() - frame_us > late_us) late_us = now_us() - frame_us;
            frames++; /* a real program would draw here */
            frame_us += FRAME_US;
            if (frames == 10) enqueue("a.png");
            if (frames == 10) enqueue("b.png");
            if (now_us() >= end_us) jobq_pg_worker_stop(worker);
        }
        wait_until(frame_us);
    }
    printf("frames %d, jobs %d, worst wait for a frame %d ms\n", frames,
           (int)jobq_pg_worker_stats(worker, JOBQ_PG_ALL).jobs.started, (int)(late_us / 1000));
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 0.6;
    jobq_pg_handler handler = {.queue = "pictures", .kind = "resize", .run = {resize}};
    jobq_pg_worker_desc desc = {0};
    jobq_pg *pg = open_fresh();
    jobq_pg_error error;
    PGconn *conn;

    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    desc.handlers = &handler;
    desc.handler_count = 1;
    must(jobq_pg_worker_open(pg, &desc, &worker, &error) == JOBQ_OK, error.message);
    signal(SIGINT, on_signal);
    begin_us = now_us();
    run(begin_us + (int64_t)(seconds * 1e6));
    signal(SIGINT, SIG_DFL);
    jobq_pg_worker_free(worker);
    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    PQclear(PQexec(conn, "DROP SCHEMA " SCHEMA " CASCADE"));
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return 0;
}
