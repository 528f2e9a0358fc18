/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * libuv.c -- a worker in libuv's loop, with Ctrl-C as libuv tells of it.
 *
 * Build   cc examples/loops/libuv.c -I. -lpq -luv -o libuv
 * Run     JOBQ_SERVER="host=... dbname=..." ./libuv
 * Prints
 *         enqueued job 1
 *         attempt 1
 *         attempt 2
 *         job 1: 49
 *
 * Drops and creates the schema jobq_example_loops, and drops it at the end.
 */
#include "app.h"

#include <uv.h>

typedef struct host {
    uv_loop_t *loop;
    jobq_pg_worker *worker;
    uv_timer_t timer;
    uv_signal_t ctrl_c;
    uv_poll_t *sockets[JOBQ_PG_FDS];
    int fds[JOBQ_PG_FDS]; /* theirs */
} host;

static void step(host *h);

static void on_socket(uv_poll_t *socket, int status, int events)
{
    (void)status;
    (void)events;
    step((host *)socket->data);
}

static void on_time(uv_timer_t *timer) { step((host *)timer->data); }

/* The worker's own socket is then ready. */
static void on_signal(uv_signal_t *signal, int number)
{
    (void)number;
    jobq_pg_worker_stop(((host *)signal->data)->worker);
}

static void on_close(uv_handle_t *handle) { free(handle); }

/* A handle of libuv's belongs to one descriptor for its life. */
static void drop(host *h, int i)
{
    if (h->sockets[i] != NULL) uv_close((uv_handle_t *)h->sockets[i], on_close);
    h->sockets[i] = NULL;
}

static void watch(host *h, int i, const struct pollfd *fd)
{
    int events = UV_READABLE | ((fd->events & POLLOUT) != 0 ? UV_WRITABLE : 0);

    if (h->sockets[i] == NULL || h->fds[i] != fd->fd) {
        drop(h, i);
        h->sockets[i] = (uv_poll_t *)malloc(sizeof(uv_poll_t));
        app_must(h->sockets[i] != NULL, "out of memory");
        uv_poll_init(h->loop, h->sockets[i], fd->fd); /* on Windows uv_poll_init_socket */
        h->sockets[i]->data = h;
        h->fds[i] = fd->fd;
    }
    uv_poll_start(h->sockets[i], events, on_socket);
}

/* Sockets come and go in a step. Before it all are forgotten, and afterwards those are watched that
 * there are then. */
static void step(host *h)
{
    struct pollfd fds[JOBQ_PG_FDS];
    int64_t wait_us;
    int count, i;

    for (i = 0; i < JOBQ_PG_FDS; i++) {
        if (h->sockets[i] != NULL) uv_poll_stop(h->sockets[i]);
    }
    if (!jobq_pg_worker_step(h->worker, APP_BUDGET_US)) {
        for (i = 0; i < JOBQ_PG_FDS; i++) drop(h, i);
        uv_close((uv_handle_t *)&h->timer, NULL);
        uv_close((uv_handle_t *)&h->ctrl_c, NULL);
        return; /* nothing is left to wait for, so that uv_run returns */
    }
    count = jobq_pg_worker_fds(h->worker, fds, &wait_us);
    for (i = 0; i < count; i++) watch(h, i, &fds[i]);
    for (; i < JOBQ_PG_FDS; i++) drop(h, i);
    uv_timer_start(&h->timer, on_time, (uint64_t)(wait_us + 999) / 1000, 0);
}

int main(void)
{
    jobq_pg *pg;
    host h = {.loop = uv_default_loop(), .worker = app_open(&pg)};

    uv_timer_init(h.loop, &h.timer);
    uv_signal_init(h.loop, &h.ctrl_c);
    h.timer.data = h.ctrl_c.data = &h;
    uv_signal_start(&h.ctrl_c, on_signal, SIGINT);
    uv_timer_start(&h.timer, on_time, 0, 0); /* the first step */
    app_enqueue(h.worker, 7, app_enqueued, h.worker);
    uv_run(h.loop, UV_RUN_DEFAULT);
    uv_loop_close(h.loop);
    app_close(pg, h.worker);
    return 0;
}
