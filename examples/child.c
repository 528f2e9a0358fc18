/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * child.c -- a handler in C that runs in a child process: if native code (GDAL, ffmpeg) crashes or
 * hangs there, that costs one attempt and not the worker.
 *
 * Build   cc examples/child.c -I. -lpq -o child
 * Run     JOBQ_SERVER="host=... dbname=..." ./child
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/child
 * Prints  (on standard output; the order varies)
 *         "answers", attempt 1: {"pixels": 42}
 *         "crashes", attempt 1: killed by signal 11
 *         "hangs", attempt 1: longer than 5.0 s
 *         "refuses", attempt 1: exit code 3
 *         "crashes", attempt 2: {"pixels": 42}
 *         "hangs", attempt 2: {"pixels": 42}
 *         started 6, succeeded 3, retried 2, failed 1
 *
 * The child is this program once more, with other arguments, and not a mere fork: a fork of a
 * program with threads may not even call malloc. A socket is the child's standard input, with the
 * payload, and its standard output, for the result. Uses the schema jobq_example_child, created
 * anew and dropped at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SCHEMA "jobq_example_child"
#define LIMIT_US JOBQ_SECONDS(5) /* for each attempt */

extern char **environ;

static const char *program;

/* ---- the child ------------------------------------------------------------------------------- */

/* What may crash or hang. Reads the payload, and prints the result. Exit code 0: success. */
static int child(int attempt)
{
    char payload[64];

    payload[fread(payload, 1, sizeof payload - 1, stdin)] = '\0';
    if (strcmp(payload, "\"refuses\"") == 0) return 3;
    if (strcmp(payload, "\"crashes\"") == 0 && attempt == 1) raise(SIGSEGV);
    if (strcmp(payload, "\"hangs\"") == 0 && attempt == 1) pause();
    printf("{\"pixels\": 42}");
    return 0;
}

/* ---- the handler ----------------------------------------------------------------------------- */

static int64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Starts the child. Returns our end of its socket, or -1. The lock keeps other children from
 * inheriting the socket between its two calls. */
static int start(pid_t *pid, int attempt)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    char number[16], *argv[] = {(char *)program, "--child", number, NULL};
    posix_spawn_file_actions_t files;
    int ends[2], code = -1;

    snprintf(number, sizeof number, "%d", attempt);
    pthread_mutex_lock(&lock);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) ends[0] = ends[1] = -1;
    else {
        fcntl(ends[0], F_SETFD, FD_CLOEXEC);
        fcntl(ends[1], F_SETFD, FD_CLOEXEC);
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_adddup2(&files, ends[1], STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
        code = posix_spawnp(pid, program, &files, NULL, argv, environ);
        posix_spawn_file_actions_destroy(&files);
        close(ends[1]);
        if (code != 0) close(ends[0]);
    }
    pthread_mutex_unlock(&lock);
    return code == 0 ? ends[0] : -1;
}

/* Sends the payload and reads the result, until the child closes its end. False: it took too long,
 * the result is too long, or the job must stop. */
static bool talk(const jobq_call *call, int fd, char *result, size_t room, size_t *len)
{
    int64_t until = now_us() + LIMIT_US;
    size_t sent = 0;
    bool open = true;

    while (now_us() < until && *len < room &&
           jobq_call_stopping(call, NULL) == JOBQ_STOP_NONE) {
        struct pollfd p = {fd, (short)(open ? POLLIN | POLLOUT : POLLIN), 0};
        ssize_t n;

        if (poll(&p, 1, 100) <= 0) continue;
        if (open) {
            n = send(fd, call->payload.ptr + sent, call->payload.len - sent,
                     MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n > 0) sent += (size_t)n;
            open = sent < call->payload.len && (n >= 0 || errno == EAGAIN || errno == EINTR);
            if (!open) shutdown(fd, SHUT_WR);
        }
        n = recv(fd, result + *len, room - *len, MSG_DONTWAIT);
        if (n > 0) *len += (size_t)n;
        else if (n == 0 || (errno != EAGAIN && errno != EINTR)) return true;
    }
    return false;
}

static jobq_outcome end(jobq_call *call, jobq_outcome outcome, const char *what)
{
    printf("%.*s, attempt %d: %s\n", (int)call->payload.len, call->payload.ptr,
           (int)call->job.attempt, what);
    if (outcome != JOBQ_OUTCOME_SUCCESS) jobq_call_error(call, jobq_str_from(what));
    jobq_call_delay(call, JOBQ_MILLISECONDS(100)); /* otherwise the queue's backoff applies */
    return outcome;
}

static jobq_outcome draw(jobq_call *call)
{
    char result[4096], what[64];
    size_t len = 0;
    bool closed;
    int status;
    pid_t pid;
    int fd = start(&pid, (int)call->job.attempt);

    if (fd < 0) return end(call, JOBQ_OUTCOME_RETRY, "cannot start the child");
    closed = talk(call, fd, result, sizeof result - 1, &len);
    if (!closed) kill(pid, SIGKILL);
    close(fd);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    result[len] = '\0';
    switch (jobq_call_stopping(call, NULL)) {
    case JOBQ_STOP_NONE: break;
    case JOBQ_STOP_CANCEL: return JOBQ_OUTCOME_CANCELLED;
    default: return JOBQ_OUTCOME_RELEASE; /* this attempt does not count */
    }
    if (!closed) {
        snprintf(what, sizeof what, "longer than %.1f s", (double)LIMIT_US / 1e6);
        return end(call, JOBQ_OUTCOME_RETRY,
                   len == sizeof result - 1 ? "the result is too long" : what);
    }
    if (WIFSIGNALED(status)) {
        snprintf(what, sizeof what, "killed by signal %d", WTERMSIG(status));
        return end(call, JOBQ_OUTCOME_RETRY, what);
    }
    snprintf(what, sizeof what, "exit code %d", WEXITSTATUS(status));
    if (WEXITSTATUS(status) != 0) return end(call, JOBQ_OUTCOME_DISCARD, what);
    if (!jobq_call_result(call, jobq_str_from(result), false))
        return end(call, JOBQ_OUTCOME_RETRY, "the result is no JSON");
    return end(call, JOBQ_OUTCOME_SUCCESS, result);
}

/* ---- the program around it ------------------------------------------------------------------- */

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void drop(const char *server)
{
    PGconn *conn = PQconnectdb(server);

    must(PQstatus(conn) == CONNECTION_OK, PQerrorMessage(conn));
    PQclear(PQexec(conn, "SET client_min_messages = warning; DROP SCHEMA IF EXISTS " SCHEMA
                         " CASCADE"));
    PQfinish(conn);
}

int main(int argc, char **argv)
{
    static const char *const payloads[] = {"\"answers\"", "\"crashes\"", "\"hangs\"",
                                           "\"refuses\""};
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = SCHEMA};
    jobq_pg_handler handler = {.queue = "maps", .kind = "draw", .run = {draw}};
    jobq_pg_stats stats;
    jobq_pg_worker_desc worker = {.handlers = &handler, .handler_count = 1, .stats = &stats,
                                  .loop = {.threads = 4, .until = JOBQ_UNTIL_ENDED},
                                  .stop_signals = {SIGINT, SIGTERM}};
    jobq_pg_error error;
    jobq_pg *pg;
    size_t i;

    if (argc == 3 && strcmp(argv[1], "--child") == 0) return child(atoi(argv[2]));
    program = argv[0];
    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    drop(desc.conninfo);
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    for (i = 0; i < sizeof payloads / sizeof payloads[0]; i++) {
        jobq_pg_job job = {.queue = "maps", .kind = "draw",
                           .payload = jobq_str_from(payloads[i])};
        must(jobq_pg_enqueue(pg, NULL, &job, NULL, &error) == JOBQ_OK, error.message);
    }
    must(jobq_pg_work(pg, &worker, &error) == JOBQ_OK, error.message);
    printf("started %d, succeeded %d, retried %d, failed %d\n", (int)stats.jobs.started,
           (int)stats.jobs.succeeded, (int)stats.jobs.retried, (int)stats.jobs.failed);
    jobq_pg_close(pg);
    drop(desc.conninfo);
    return 0;
}
