/*
 * relay.h -- what the tests of messages in workers share: receivers of queue o, and workers in this
 * process and in processes of their own.
 */
#ifndef RELAY_INCLUDED
#define RELAY_INCLUDED (1)

#include "outbox.h"

static inline jobq_pg_receiver receiver(jobq_message_handler each, jobq_batch_handler all)
{
    jobq_pg_receiver r;

    memset(&r, 0, sizeof r);
    r.queue = "o";
    r.each = each;
    r.all = all;
    r.tuning.retry.base_us = 20000;
    r.tuning.retry.cap_us = 100000;
    return r;
}

static inline jobq_pg_worker *begin(jobq_pg *on, const jobq_pg_receiver *r, int threads)
{
    jobq_pg_worker_desc desc;
    jobq_pg_worker *worker;
    jobq_pg_error error;

    memset(&desc, 0, sizeof desc);
    desc.receivers = r;
    desc.receiver_count = 1;
    desc.loop.threads = threads;
    if (jobq_pg_worker_start(on, &desc, &worker, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return worker;
}

static inline jobq_relay_stats end(jobq_pg_worker *worker)
{
    jobq_relay_stats stats;

    jobq_pg_worker_stop(worker);
    jobq_pg_worker_wait(worker, NULL);
    stats = jobq_pg_worker_stats(worker).messages;
    jobq_pg_worker_free(worker);
    return stats;
}

static jobq_pg_worker *child_worker;
static volatile sig_atomic_t child_asked; /* to stop, perhaps before it had begun */

static inline void child_stop(int sig)
{
    (void)sig;
    child_asked = 1;
    if (child_worker != NULL) jobq_pg_worker_stop(child_worker);
}

static inline pid_t child(const jobq_pg_receiver *r, int threads)
{
    pid_t pid = fork();

    if (pid == 0) {
        struct sigaction act;
        memset(&act, 0, sizeof act);
        act.sa_handler = child_stop;
        sigaction(SIGTERM, &act, NULL);
        child_worker = begin(handle(), r, threads);
        if (child_asked) jobq_pg_worker_stop(child_worker);
        jobq_pg_worker_wait(child_worker, NULL);
        _exit(0);
    }
    return pid;
}

static inline void finish_child(pid_t pid, int sig)
{
    kill(pid, sig);
    waitpid(pid, NULL, 0);
}

#endif
