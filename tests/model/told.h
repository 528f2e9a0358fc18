/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* told.h -- one call for each answer and each result of a thread, for tests that make them up. */
#ifndef JOBQ_TEST_TOLD_H
#define JOBQ_TEST_TOLD_H

#include "punctual.h"

#include <string.h>

static inline jobq_answer *told(jobq_request_kind kind, jobq_error error)
{
    static jobq_answer answer;
    static jobq_request request;

    request.kind = kind;
    jobq_answer_start(&answer, &request);
    answer.error = error;
    return &answer;
}

/* One that says nothing but whether it worked. */
static inline void told_plain(jobq_loop *l, int64_t now, jobq_request_kind kind, jobq_error error)
{
    jobq_loop_tell(l, now, told(kind, error));
}

static inline void told_claimed(jobq_loop *l, int64_t now, jobq_error error)
{
    jobq_answer *a = told(JOBQ_REQUEST_CLAIM, error);

    a->claimed.due_us = -1;
    jobq_loop_tell(l, now, a);
}

/* This request failed, or worked and did nothing. */
static inline void told_of(jobq_loop *l, int64_t now, const jobq_request *request, jobq_error error)
{
    static jobq_answer answer;

    jobq_answer_start(&answer, request);
    answer.error = error;
    jobq_loop_tell(l, now, &answer);
}

static inline void told_read(jobq_loop *l, int64_t now, int32_t part, jobq_error error,
                             const jobq_reading *reading)
{
    jobq_answer *a = told(JOBQ_REQUEST_READ, error);

    a->slot = part;
    if (reading != NULL) a->reading = *reading;
    jobq_loop_tell(l, now, a);
}

static inline void told_acked(jobq_loop *l, int64_t now, int32_t part, jobq_error error,
                              int32_t count)
{
    jobq_answer *a = told(JOBQ_REQUEST_ACK, error);

    a->slot = part;
    a->reading.count = count;
    jobq_loop_tell(l, now, a);
}

static inline void told_renewed(jobq_loop *l, int64_t now, int32_t part, uint32_t generation,
                                jobq_error error)
{
    jobq_answer *a = told(JOBQ_REQUEST_RENEW, error);

    a->slot = part;
    a->generation = generation;
    jobq_loop_tell(l, now, a);
}

static inline bool told_handled(jobq_loop *l, int64_t now, int32_t slot, uint32_t generation,
                                jobq_outcome outcome, int64_t delay_us, bool delay_named)
{
    static jobq_work work;
    jobq_handled handled;

    memset(&handled, 0, sizeof handled);
    work.slot = slot;
    work.generation = generation;
    handled.outcome = outcome;
    handled.delay_us = delay_us;
    handled.delay_named = delay_named;
    return jobq_loop_handled(l, now, &work, &handled, NULL);
}

static inline jobq_work *told_work(int32_t part, uint32_t generation)
{
    static jobq_work work;

    work.partition_id = 1;
    work.slot = part;
    work.generation = generation;
    return &work;
}

static inline bool told_delivered(jobq_loop *l, int64_t now, int32_t part, uint32_t generation,
                                  const jobq_verdict *verdict, const uint8_t *outcomes, bool own)
{
    jobq_work *work = told_work(part, generation);
    static jobq_ack ack;

    memcpy(work->results, outcomes, sizeof work->results);
    work->given = l->relay.parts[part].given;
    return jobq_loop_delivered(l, now, work, verdict, own, &ack);
}

static inline bool told_committed(jobq_loop *l, int64_t now, int32_t part, uint32_t generation,
                                  jobq_error error)
{
    return jobq_loop_committed(l, now, told_work(part, generation), error);
}

/* Whether a statement claims jobs. */
static inline bool claims(const jobq_request *r)
{
    return r->kind == JOBQ_REQUEST_CLAIM || (r->kind == JOBQ_REQUEST_HEARTBEAT && r->claim != 0);
}

/* What another worker, made up by a test, asks of a jobq_memory. */
static inline jobq_request *other_asks(jobq_request_kind kind, int64_t worker, int64_t claim)
{
    static jobq_request request;

    memset(&request, 0, sizeof request);
    request.kind = kind;
    request.worker = worker;
    request.claim = claim;
    request.bytes = JOBQ_NEVER;
    return &request;
}

static inline jobq_answer *told_by(jobq_memory *memory, const jobq_request *r, int64_t now)
{
    static jobq_answer answer;

    jobq__memory_execute(memory, r, 0, 0, now, &answer);
    return &answer;
}

/* It claims one job of queue 1, in the first lane. */
static inline int32_t other_claims(jobq_memory *memory, int64_t worker, int64_t now)
{
    jobq_request *r = other_asks(JOBQ_REQUEST_CLAIM, worker, 1);

    r->limit = r->lane_count = 1;
    r->lanes[0].queue = 1;
    r->lanes[0].after_at_us = INT64_MIN;
    r->every_kind = true;
    return told_by(memory, r, now)->claimed.count;
}

/* It reads from a partition. */
static inline jobq_reading other_reads(jobq_memory *memory, int64_t partition_id,
                                       const jobq_holder *who, int64_t handed,
                                       const jobq_holder *watched, int32_t limit, int64_t now)
{
    jobq_request *r = other_asks(JOBQ_REQUEST_READ, who->worker, who->claim);

    r->partition_id = partition_id;
    r->lease_us = who->lease_us;
    r->handed = handed;
    if (watched != NULL) r->watched = *watched;
    r->limit = limit;
    return told_by(memory, r, now)->reading;
}

#endif
