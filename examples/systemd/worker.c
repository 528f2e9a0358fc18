/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * worker.c -- a worker under systemd: it says when it works, feeds the watchdog while it does, and
 * stops gracefully. Needs no libsystemd.
 *
 * Build   cc examples/systemd/worker.c -I. -lpq -o jobq-worker
 * Run     with jobq-worker.service, whose head says how; or in a shell, where nobody is notified:
 *         JOBQ_SERVER="host=... dbname=..." ./jobq-worker
 *
 * Works the kind hello of the queue mail in the schema jobq, which must be there (jobq migrate).
 * SIGTERM or SIGINT: running handlers get GRACE; a second one: none.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define GRACE JOBQ_SECONDS(30) /* TimeoutStopSec of the unit is longer */
#define LEASE JOBQ_SECONDS(6)  /* after its last sign of life, others take its jobs */

/* ---- systemd --------------------------------------------------------------------------------- */

/* Sends systemd a line: READY=1, WATCHDOG=1, STOPPING=1 and others of sd_notify(3). Without systemd
 * nothing. False: it could not be sent. */
static bool notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t len = path == NULL ? 0 : strlen(path);
    ssize_t sent = -1;
    int fd;

    if (len == 0) return true;
    if ((path[0] != '/' && path[0] != '@') || len >= sizeof to.sun_path) return false;
    memcpy(to.sun_path, path, len);
    if (path[0] == '@') to.sun_path[0] = '\0'; /* a name that is in no file system */
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        sent = sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&to,
                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
        close(fd);
    }
    return sent == (ssize_t)strlen(state);
}

/* How often the watchdog is fed: twice in its time (WATCHDOG_USEC, from WatchdogSec). */
static int64_t feed_us(void)
{
    const char *text = getenv("WATCHDOG_USEC");
    long long us = text == NULL ? 0 : atoll(text) / 2;

    return us > 0 && us < JOBQ_SECONDS(1) ? us : JOBQ_SECONDS(1);
}

/* ---- the worker ------------------------------------------------------------------------------ */

static jobq_outcome hello(jobq_call *call)
{
    printf("job %lld: %.*s\n", (long long)call->job.id, (int)call->payload.len, call->payload.ptr);
    fflush(stdout);
    return JOBQ_OUTCOME_SUCCESS;
}

/* The journal reads <3> and the like as levels. */
static void log_line(void *user, jobq_level level, const char *message)
{
    static const int levels[] = {7, 6, 4, 3}; /* debug, info, warning, error */

    (void)user;
    fprintf(stderr, "<%d>%s\n", levels[level], message);
}

/* Until it has ended or given up. The watchdog is fed while the worker's thread does what is due,
 * also without a connection, because a restart would bring no server. */
static jobq_error watch(jobq_pg_worker *worker, const sigset_t *signals)
{
    struct timespec pause = {feed_us() / 1000000, feed_us() % 1000000 * 1000};
    bool ready = false;
    jobq_pg_health health;
    jobq_error code;

    while (code = jobq_pg_worker_health(worker, JOBQ_PG_ALL, &health),
           code == JOBQ_OK || code == JOBQ_ERROR_CONNECTION) {
        if (code == JOBQ_OK && !ready) ready = notify("READY=1");
        if (health.late_us < LEASE) notify("WATCHDOG=1");
        if (sigtimedwait(signals, NULL, &pause) <= 0) continue;
        notify("STOPPING=1");
        jobq_pg_worker_stop(worker);
    }
    return code;
}

static int failed(const char *why)
{
    fprintf(stderr, "<3>%s\n", why);
    return 1;
}

int main(void)
{
    jobq_pg_handler handlers[] = {{.queue = "mail", .kind = "hello", .run = {hello}}};
    jobq_pg_worker_desc desc = {.handlers = handlers, .handler_count = 1,
                                .loop = {.threads = 4, .lease_us = LEASE,
                                         .grace_us = GRACE}};
    jobq_pg_desc server = {.conninfo = getenv("JOBQ_SERVER"), .schema = getenv("JOBQ_SCHEMA"),
                           .log = log_line};
    jobq_pg_worker *worker;
    jobq_pg_error error;
    sigset_t signals;
    jobq_pg *pg;

    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL); /* before there are threads: watch takes them */
    if (server.conninfo == NULL) return failed("JOBQ_SERVER is not set");
    if (jobq_pg_open(&pg, &server, &error) != JOBQ_OK) return failed(error.message);
    if (jobq_pg_worker_start(pg, &desc, &worker, &error) != JOBQ_OK) return failed(error.message);
    if (watch(worker, &signals) == JOBQ_ERROR_TIMEOUT)
        _exit(failed("the worker gave up: its handlers hang")); /* they use it: free nothing */
    if (jobq_pg_worker_wait(worker, NULL) != JOBQ_OK)
        _exit(failed("a handler did not end within its time"));
    jobq_pg_worker_free(worker);
    jobq_pg_close(pg);
    return 0;
}
