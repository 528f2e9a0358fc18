/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * relay.h -- what the tests of messages in workers share: receivers of queue o, and workers in this
 * process and in processes of their own.
 */
#ifndef RELAY_INCLUDED
#define RELAY_INCLUDED (1)

#include "outbox.h"
#include "pg_work.h"

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

static inline jobq_pg_worker_desc receive_by(const jobq_pg_receiver *r, int threads)
{
    jobq_pg_worker_desc desc;

    memset(&desc, 0, sizeof desc);
    desc.receivers = r;
    desc.receiver_count = 1;
    desc.loop.threads = threads;
    return desc;
}

static inline jobq_pg_worker *begin(jobq_pg *on, const jobq_pg_receiver *r, int threads)
{
    jobq_pg_worker_desc desc = receive_by(r, threads);

    return start_on(on, &desc);
}

static inline jobq_relay_stats end(jobq_pg_worker *worker)
{
    jobq_pg_worker_stop(worker);
    return ended_with(worker).messages;
}

static inline pid_t child(const jobq_pg_receiver *r, int threads)
{
    jobq_pg_worker_desc desc = receive_by(r, threads);

    return spawn(&desc);
}

static inline void finish_child(pid_t pid, int sig)
{
    kill(pid, sig);
    reap(pid);
}

#endif
