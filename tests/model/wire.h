/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * wire.h -- a statement of a loop in three steps: sent, executed, answered.
 *
 * jobq__memory_perform does all three at once. On a real connection time passes in between, and
 * each step may fail. So the explorer and the simulator keep the request and the answer together
 * with what shall go wrong: a row that others have locked, a row that cannot be sent, a result that
 * the store refuses.
 *
 * WIRE_PRIORITY is the highest priority number of jobs here; lanes above it are left out.
 * WIRE_EXECUTE executes a statement (default: jobq__memory_execute).
 */
#ifndef WIRE_INCLUDED
#define WIRE_INCLUDED (1)

#include "jobq.h"

#include <string.h> /* memset, memcpy */

#ifndef WIRE_EXECUTE
#define WIRE_EXECUTE jobq__memory_execute
#endif

typedef struct wire {
    jobq_request request;
    jobq_answer answer;
    bool executed;
    bool own;        /* ACK: in the transaction of its handler */
    int64_t busy;    /* a job that someone else has locked; 0: none. READ: the partition is */
    int64_t stuck;   /* a job whose content cannot be sent; 0: none */
    int64_t refused; /* a job whose result the store does not take; 0: none */
    int32_t portion; /* rescue: claims that it gets hold of; the others' jobs are locked */
    jobq_error errors[JOBQ_ENDINGS_MAX]; /* of a flush: what the store says of each ending */
} wire;

static inline bool wire_of_part(jobq_request_kind kind)
{
    return kind == JOBQ_REQUEST_READ || kind == JOBQ_REQUEST_ACK || kind == JOBQ_REQUEST_RENEW;
}

static inline bool wire_is_flush(jobq_request_kind kind)
{
    return kind == JOBQ_REQUEST_COMPLETE || kind == JOBQ_REQUEST_SETTLE;
}

/* Bit i: kind i may be claimed. */
static inline uint64_t wire_kinds(const jobq_request *r)
{
    return r->every_kind ? UINT64_MAX : jobq__memory_bits(r->kinds, r->kind_count);
}

/* -- sent -- */

/* Only what is filled is copied: the rest is zero, so that equal statements are equal bytes. */
static inline void wire_send(wire *w, const jobq_request *r)
{
    jobq_request *to = &w->request;

    memset(w, 0, sizeof *w);
    memcpy(to, r, offsetof(jobq_request, queues));
    to->tally = to->tally_count = to->total_count = 0; /* no decision depends on them */
    while (to->lane_count > 0 && r->lanes[to->lane_count - 1].priority > WIRE_PRIORITY) {
        to->lane_count--;
    }
#define WIRE__COPY(part, count, fields)                                                            \
    memcpy(to->part, r->part, (size_t)to->count * sizeof *r->part);
    JOBQ__REQUEST_PARTS(WIRE__COPY)
    if (r->kind == JOBQ_REQUEST_ACK) {
        memcpy(&to->ack, &r->ack, offsetof(jobq_ack, results) + (size_t)r->ack.given);
    }
    jobq_answer_start(&w->answer, to);
    w->portion = INT32_MAX;
}

/* A heartbeat that looks for jobs, too, travels as two statements: whatever holds when they may be
 * torn apart holds when they are one. Returns how many. */
static inline int wire_send_all(wire *two, const jobq_request *r)
{
    jobq_request *beat = &two[0].request, *claim = &two[1].request;

    wire_send(&two[0], r);
    if (r->kind != JOBQ_REQUEST_HEARTBEAT || r->claim == 0) return 1;
    wire_send(&two[1], r);
    beat->claim = two[0].answer.claim = 0;
    beat->lane_count = beat->kind_count = claim->settled_count = 0;
    claim->kind = two[1].answer.kind = JOBQ_REQUEST_CLAIM;
    return 2;
}

/* -- executed -- */

/* A locked job is skipped, and the next one taken: hidden, then shown again. */
static jobq_state wire__hide(const wire *w, jobq_memory *m, jobq_state as)
{
    jobq_memory_job *locked = w->busy == 0 ? NULL : jobq_memory_get(m, w->busy);
    jobq_state state = as;

    if (locked == NULL) return as;
    state = locked->job.state;
    locked->job.state = as;
    return state;
}

/* What a claim took after its first `kept` jobs is ready again, as if it had not been claimed. */
static void wire__unclaim(wire *w, jobq_memory *m, int32_t kept)
{
    jobq_claimed *c = &w->answer.claimed;

    while (c->count > kept) {
        jobq_job *job = &jobq_memory_get(m, c->jobs[--c->count].id)->job;
        job->state = JOBQ_STATE_READY;
        job->attempt--;
        job->worker = job->claim = 0;
    }
}

/* A claim ends before the job with which its payloads would be larger than its bytes. */
static void wire__cut_claim(wire *w, jobq_memory *m)
{
    const jobq_claimed *c = &w->answer.claimed;
    int64_t bytes = 0;
    int32_t i;

    for (i = 0; i < c->count; i++) {
        bytes += c->jobs[i].bytes;
        if (i > 0 && bytes > w->request.bytes) break;
    }
    wire__unclaim(w, m, i);
}

/* A claim that would have to send the stuck job is rolled back. */
static bool wire__stuck_claim(wire *w, jobq_memory *m)
{
    jobq_memory_claim *claim = jobq__memory_claim_of(m, w->request.worker, w->request.claim);
    const jobq_claimed *c = &w->answer.claimed;
    int32_t i;

    for (i = 0; i < c->count && c->jobs[i].id != w->stuck;) i++;
    if (i == c->count) return false;
    wire__unclaim(w, m, 0);
    memset(claim, 0, sizeof *claim);
    w->answer.error = JOBQ_ERROR_DATABASE;
    return true;
}

static bool wire__refuses(const wire *w)
{
    int32_t i;

    for (i = 0; i < w->request.ending_count; i++) {
        if (w->request.endings[i].job == w->refused) return true;
    }
    return false;
}

static void wire__flush(wire *w, jobq_memory *m, int64_t now_us)
{
    int32_t i;

    if (wire__refuses(w)) {
        w->answer.error = JOBQ_ERROR_DATABASE;
        return;
    }
    for (i = 0; i < w->request.ending_count; i++) {
        const jobq_ending *e = &w->request.endings[i];
        if (e->job == w->busy) {
            bool held = jobq_job_holds(&jobq_memory_get(m, e->job)->job, e->worker, e->claim);
            w->errors[i] = held ? JOBQ_ERROR_BUSY : JOBQ_ERROR_LOST;
        } else {
            w->errors[i] = jobq__memory_settle(m, e->job, e->worker, e->claim, &e->decision,
                                               now_us, &w->answer.more);
        }
    }
}

/* An empty claim looks at all jobs, locked or not. */
static void wire__look(wire *w, const jobq_memory *m, int64_t now_us)
{
    const jobq_request *r = &w->request;
    jobq_claimed *c = &w->answer.claimed;

    if (!r->look || c->count > 0 || c->named != 0 || w->answer.error != JOBQ_OK) return;
    c->due_us = jobq__memory_look(m, r, wire_kinds(r), now_us, &c->suspects, &c->alone);
}

/* A statement that meets a job locked by others, or gets hold of a portion of the claims only. */
static void wire__execute(wire *w, jobq_memory *m, uint64_t queues, uint64_t kinds, int64_t now_us)
{
    jobq_state state = wire__hide(w, m, JOBQ_STATE_SUCCEEDED);
    jobq_request r = w->request;

    r.limit = (int32_t)jobq__min(r.limit, w->portion);
    r.look = r.look && w->busy == 0;
    WIRE_EXECUTE(m, &r, queues, kinds, now_us, &w->answer);
    wire__hide(w, m, state);
    if (r.kind != JOBQ_REQUEST_CLAIM) return;
    wire__cut_claim(w, m);
    if (!wire__stuck_claim(w, m) && w->busy != 0) wire__look(w, m, now_us);
}

/* The store carries the statement out, in one transaction. */
static inline void wire_execute(wire *w, jobq_memory *m, uint64_t queues, uint64_t kinds,
                                int64_t now_us)
{
    jobq_request_kind kind = w->request.kind;

    w->executed = true;
    if (wire_is_flush(kind)) wire__flush(w, m, now_us);
    else if (kind == JOBQ_REQUEST_READ && w->busy != 0) w->answer.reading.busy = true;
    else if (kind == JOBQ_REQUEST_SET_ASIDE) {
        w->answer.done = w->request.id == w->stuck &&
                         jobq__memory_set_aside(m, w->request.id, now_us);
    } else wire__execute(w, m, queues, kinds, now_us);
}

/* -- answered -- */

static void wire__except(wire *w)
{
    jobq_answer *a = &w->answer;
    int32_t i;

    for (i = a->count = 0; i < w->request.ending_count; i++) {
        const jobq_ending *e = &w->request.endings[i];
        jobq_exception *x = &a->exceptions[a->count];
        if (w->errors[i] == JOBQ_OK) continue;
        x->job = e->job;
        x->worker = e->worker;
        x->claim = e->claim;
        x->error = w->errors[i];
        a->count++;
    }
}

/* The loop is told. */
static inline void wire_answer(wire *w, jobq_loop *l, int64_t mono_us)
{
    if (wire_is_flush(w->request.kind)) wire__except(w);
    jobq_loop_tell(l, mono_us, &w->answer);
}

#endif /* WIRE_INCLUDED */
