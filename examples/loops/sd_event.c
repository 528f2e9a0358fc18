/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * sd_event.c -- a worker in the event loop of libsystemd. SIGTERM and SIGINT stop it gracefully.
 *
 * Build   cc examples/loops/sd_event.c -I. -lpq -lsystemd -o sd_event
 * Run     JOBQ_SERVER="host=... dbname=..." ./sd_event
 * Prints
 *         enqueued job 1
 *         attempt 1
 *         attempt 2
 *         job 1: 49
 *
 * Drops and creates the schema jobq_example_loops, and drops it at the end.
 */
#include "app.h"

#include <signal.h>
#include <sys/epoll.h>
#include <systemd/sd-event.h>

typedef struct host {
    sd_event *loop;
    jobq_pg_worker *worker;
    sd_event_source *sockets[JOBQ_PG_FDS], *timer;
} host;

static void good(int answer)
{
    app_must(answer >= 0, answer >= 0 ? "" : strerror(-answer));
}

static int on_socket(sd_event_source *source, int fd, uint32_t events, void *user);

/* Sockets come and go in a step. Before it all are forgotten, and afterwards those are watched that
 * there are then. */
static int step(host *h)
{
    struct pollfd fds[JOBQ_PG_FDS];
    int64_t wait_us;
    uint64_t now;
    int count, i;

    for (i = 0; i < JOBQ_PG_FDS; i++)
        h->sockets[i] = sd_event_source_disable_unref(h->sockets[i]);
    if (!jobq_pg_worker_step(h->worker, APP_BUDGET_US)) return sd_event_exit(h->loop, 0);
    count = jobq_pg_worker_fds(h->worker, fds, &wait_us);
    for (i = 0; i < count; i++) {
        uint32_t events = EPOLLIN | ((fds[i].events & POLLOUT) != 0 ? EPOLLOUT : 0);
        good(sd_event_add_io(h->loop, &h->sockets[i], fds[i].fd, events, on_socket, h));
    }
    good(sd_event_now(h->loop, CLOCK_MONOTONIC, &now));
    good(sd_event_source_set_time(h->timer, now + (uint64_t)wait_us));
    return sd_event_source_set_enabled(h->timer, SD_EVENT_ONESHOT);
}

static int on_socket(sd_event_source *source, int fd, uint32_t events, void *user)
{
    (void)source;
    (void)fd;
    (void)events;
    return step((host *)user);
}

static int on_time(sd_event_source *source, uint64_t us, void *user)
{
    (void)source;
    (void)us;
    return step((host *)user);
}

/* The worker's own socket is then ready. */
static int on_signal(sd_event_source *source, const struct signalfd_siginfo *info, void *user)
{
    (void)source;
    (void)info;
    jobq_pg_worker_stop(((host *)user)->worker);
    return 0;
}

int main(void)
{
    jobq_pg *pg;
    host h = {.worker = app_open(&pg)};
    sigset_t signals;

    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL); /* sd-event takes them */
    good(sd_event_default(&h.loop));
    good(sd_event_add_signal(h.loop, NULL, SIGTERM, on_signal, &h));
    good(sd_event_add_signal(h.loop, NULL, SIGINT, on_signal, &h));
    good(sd_event_add_time(h.loop, &h.timer, CLOCK_MONOTONIC, 0, 1000, on_time, &h));
    app_enqueue(h.worker, 7, app_enqueued, h.worker);
    good(sd_event_loop(h.loop));
    sd_event_source_unref(h.timer);
    sd_event_unref(h.loop);
    app_close(pg, h.worker);
    return 0;
}
