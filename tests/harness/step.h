/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * step.h -- one batch of one partition, at once: reads it, runs the handler, acknowledges. It is a
 * small worker, made of jobq_pg_execute and of the private functions that run a handler in the
 * transaction that acknowledges.
 */
#ifndef STEP_INCLUDED
#define STEP_INCLUDED (1)

#include "verbs.h"

typedef struct step_desc_of {
    verb_read_desc read;        /* worker, claim, partition; lease_us and most are the tuning's */
    const char *queue;          /* told to the handler */
    bool transactional;         /* the handler runs in the transaction that acknowledges */
    jobq_message_handler each;  /* one of the two */
    jobq_batch_handler all;
    void *user;
    jobq_tuning tuning;
    const jobq_policy *policy;  /* (default: asked from the queue's row) */
    uint64_t random;            /* bits for the backoff */
} step_desc_of;

typedef struct step_done {
    char answer;                /* of the read; 'l': the lease was lost meanwhile */
    int32_t count;              /* messages read */
    int64_t wait_us;
    int64_t worker, claim, beat;
    jobq_verdict verdict;
    jobq_plan plan;
} step_done;

typedef struct step_work {
    jobq_pg *pg;
    PGconn *conn;
    const step_desc_of *desc;
    verb_read_desc read;
    jobq_tuning tuning;
    jobq_policy policy;
    verb_reading reading;
    jobq_pg__delivering delivering;
    jobq_delivery delivery;
    uint8_t results[JOBQ_LOOP_BATCH];
    verb_dead dead[JOBQ_LOOP_BATCH];
    char *reasons[JOBQ_LOOP_BATCH];
    step_done *out;
} step_work;

static inline jobq_error step_policy(step_work *s, jobq_pg_error *error)
{
    verb_call *v;
    jobq_error code;

    s->policy = jobq_policy_defaults(s->desc->policy);
    if (s->desc->policy != NULL) return JOBQ_OK;
    v = verb_new(JOBQ_REQUEST_POLICIES);
    v->request.queues[0] = (int32_t)(s->read.partition / 32768);
    v->request.queue_count = 1;
    code = verb_run(v, s->pg, s->conn, error);
    if (code == JOBQ_OK && v->answer.count == 1) s->policy = v->answer.policies[0].policy;
    return verb_end(v, code);
}

/* The handler's turn. False: its transaction is gone. */
static inline bool step_handler(step_work *s)
{
    jobq_delivery *d = &s->delivery;
    const step_desc_of *desc = s->desc;
    jobq_verdict *verdict = &s->out->verdict;

    verdict->count = s->reading.count;
    verdict->size = jobq__cursor_size(&s->reading.cursor, s->read.most, s->reading.lost);
    d->count = jobq__outbox_open(&s->policy, &s->reading.cursor, s->reading.lost, s->reading.count,
                                s->results);
    d->messages = s->reading.messages;
    d->partition = (int32_t)(s->read.partition % 32768);
    d->partition_id = s->read.partition;
    d->queue = jobq_str_from(desc->queue);
    d->user = desc->user;
    d->results = s->results;
    d->context = &s->delivering;
    if (d->count == 0) {
        verdict->result = JOBQ_RESULT_SUCCESS;
        verdict->processed = 0;
    } else if (desc->transactional) {
        return jobq_pg__deliver_in(s->conn, d, desc->each, desc->all, verdict);
    } else {
        d->store = &jobq_pg__leased;
        jobq_delivery_run(d, desc->each, desc->all, verdict);
    }
    return true;
}

/* What is said of a message that was delivered once too often. */
static inline jobq_str step_exceeded(step_work *s, int32_t i, jobq_str why)
{
    char *text = (char *)malloc(JOBQ_ERROR_MAX + 1);
    jobq_decision decision;

    if (text == NULL) return why;
    memset(&decision, 0, sizeof decision);
    decision.reason = JOBQ_REASON_ATTEMPTS;
    decision.limit = s->policy.max_attempts;
    jobq_reason_format(text, &decision, why);
    free(s->reasons[i]);
    s->reasons[i] = text;
    return jobq_str_from(text);
}

/* The messages to be given up, with what is said of them. */
static inline size_t step_dead(step_work *s)
{
    size_t count = 0;
    int32_t i;

    for (i = 0; i < s->out->plan.done; i++) {
        bool exceeded = s->results[i] == JOBQ_RESULT_EXCEEDED;
        verb_dead *dead = &s->dead[count];
        jobq_str why = {s->delivery.error, s->delivery.error_size};
        if (!exceeded && s->results[i] != JOBQ_RESULT_REJECT) continue;
        dead->seq = s->reading.messages[i].seq;
        dead->attempts = s->reading.messages[i].attempts + (i < s->delivery.count);
        if (s->reasons[i] != NULL) why = jobq_str_from(s->reasons[i]);
        else if (s->delivery.count == 0) why = s->reading.error;
        dead->error = exceeded ? step_exceeded(s, i, why) : why;
        count++;
    }
    return count;
}

/* Writes what became of it: in the handler's transaction, or by itself. */
static inline jobq_error step_ack(step_work *s, bool in_transaction, jobq_pg_error *error)
{
    jobq_plan *plan = &s->out->plan;
    verb_ack_desc ack;

    jobq_outbox_plan(&s->policy, &s->tuning, &s->reading.cursor, &s->out->verdict, s->results,
                     s->desc->random, plan);
    memset(&ack, 0, sizeof ack);
    ack.worker = s->read.worker;
    ack.claim = s->read.claim;
    ack.lease_us = s->read.lease_us;
    ack.partition = s->read.partition;
    ack.before = s->reading.cursor.acked;
    ack.after = &plan->cursor;
    ack.delay_us = plan->directive.kind == JOBQ_DIRECTIVE_SLEEP ? plan->directive.delay_us : 0;
    if (s->out->verdict.result == JOBQ_RESULT_RETRY && plan->done < s->reading.count) {
        ack.error.ptr = s->delivery.error;
        ack.error.len = s->delivery.error_size;
    }
    ack.dead = s->dead;
    ack.dead_count = step_dead(s);
    ack.in_transaction = in_transaction;
    ack.relaxed = !in_transaction;
    return verb_ack(s->pg, s->conn, &ack, NULL, error);
}

/* What was read goes to the handler and is acknowledged. */
static inline jobq_error step_deliver(step_work *s, jobq_pg_error *error)
{
    bool tx = s->desc->transactional, open;
    jobq_error code = tx ? jobq_pg__command(s->conn, JOBQ_PG__BEGIN, error) : JOBQ_OK;

    if (code != JOBQ_OK) return code;
    open = step_handler(s) && tx;
    if (tx && !open) PQclear(PQexec(s->conn, "ROLLBACK"));
    code = step_ack(s, open, error);
    if (open && code == JOBQ_OK) return jobq_pg__command(s->conn, "COMMIT", error);
    if (open) PQclear(PQexec(s->conn, "ROLLBACK"));
    return code;
}

static inline jobq_error step_on(step_work *s, jobq_pg_error *error)
{
    int64_t start = jobq_pg__mono_us();
    jobq_error code = verb_read(s->pg, s->conn, &s->read, &s->reading, error);

    if (code != JOBQ_OK) return code;
    s->delivering.deadline_mono_us = start + s->tuning.lease_us - s->tuning.headroom_us;
    s->delivering.conn = s->desc->transactional ? s->conn : NULL;
    s->delivering.reasons = s->reasons;
    s->out->answer = s->reading.answer;
    s->out->count = s->reading.count;
    s->out->wait_us = s->reading.wait_us;
    s->out->worker = s->reading.worker;
    s->out->claim = s->reading.claim;
    s->out->beat = s->reading.beat;
    if (s->reading.answer != 'h') {
        s->out->plan.cursor = s->reading.cursor;
        s->out->plan.failed = -1;
        s->out->plan.directive.kind = JOBQ_DIRECTIVE_IDLE;
        return JOBQ_OK;
    }
    code = step_policy(s, error);
    if (code == JOBQ_OK) code = step_deliver(s, error);
    if (code == JOBQ_ERROR_LOST) s->out->answer = 'l';
    return code;
}

/* On a connection of the pool; done may be NULL. */
static inline jobq_error step_run(jobq_pg *handle, const step_desc_of *desc, step_done *done,
                                  jobq_pg_error *error)
{
    step_work *s = (step_work *)calloc(1, sizeof *s);
    jobq_pg_error local;
    step_done unasked;
    PGconn *conn;
    jobq_error code;
    size_t i;

    if (s == NULL) abort();
    if (error == NULL) error = &local;
    s->tuning = desc->tuning;
    if (desc->read.lease_us > 0) s->tuning.lease_us = desc->read.lease_us;
    s->tuning = jobq_tuning_defaults(&s->tuning);
    s->pg = handle;
    s->desc = desc;
    s->read = desc->read;
    s->read.lease_us = s->tuning.lease_us;
    if (s->read.most <= 0) s->read.most = s->tuning.batch;
    s->out = done == NULL ? &unasked : done;
    memset(s->out, 0, sizeof *s->out);
    code = jobq_pg_acquire(handle, &conn, error);
    if (code == JOBQ_OK) {
        s->conn = conn;
        code = step_on(s, error);
        jobq_pg_release(handle, conn);
    }
    for (i = 0; i < JOBQ_LOOP_BATCH; i++) free(s->reasons[i]);
    verb_reading_clear(&s->reading);
    free(s);
    return code;
}

#endif /* STEP_INCLUDED */
