/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * verbs.h -- a worker's requests as single calls for tests and benchmarks: plain arguments instead
 * of a jobq_request. jobq_pg_execute carries each of them out.
 */
#ifndef VERBS_INCLUDED
#define VERBS_INCLUDED (1)

#include "jobq_pg.h"

#include <stdlib.h>
#include <string.h>

/* A request on its way; both are large. */
typedef struct verb_call {
    jobq_request request;
    jobq_answer answer;
    jobq_pg_content content;
} verb_call;

static inline verb_call *verb_new(jobq_request_kind kind)
{
    verb_call *v = (verb_call *)calloc(1, sizeof *v);

    if (v == NULL) abort();
    v->request.kind = kind;
    return v;
}

static inline jobq_error verb_run(verb_call *v, jobq_pg *pg, PGconn *conn, jobq_pg_error *error)
{
    return jobq_pg_execute(pg, conn, &v->request, &v->content, &v->answer, error);
}

static inline jobq_error verb_end(verb_call *v, jobq_error code)
{
    jobq_pg_content_clear(&v->content);
    free(v);
    return code;
}

/* Only what C would see to be wrong. */
static inline jobq_error verb_fail(jobq_pg_error *error, jobq_error code, const char *text)
{
    if (error == NULL) return code;
    memset(error, 0, sizeof *error);
    error->code = code;
    snprintf(error->message, sizeof error->message, "%s", text);
    return code;
}

static inline jobq_error verb_register(jobq_pg *pg, PGconn *conn, int64_t worker, const char *name,
                                       int64_t lease_us, const char *const *queues, size_t count,
                                       int32_t *queue_ids, jobq_pg_error *error)
{
    verb_call *v = verb_new(JOBQ_REQUEST_REGISTER);
    jobq_error code;

    v->request.worker = worker;
    v->request.lease_us = lease_us;
    v->content.name = name;
    v->content.queues = queues;
    v->content.queue_count = (int32_t)count;
    code = verb_run(v, pg, conn, error);
    if (code == JOBQ_OK && queue_ids != NULL)
        memcpy(queue_ids, v->answer.queues, count * sizeof *queue_ids);
    return verb_end(v, code);
}

/* -- jobs -- */

typedef struct verb_claim_desc {
    int64_t worker, number;
    int32_t limit, quantum;
    const jobq_lane *lanes;
    size_t lane_count;
    const int32_t *kinds; /* NULL: every kind */
    size_t kind_count;
    bool suspects, alone, look, relaxed;
    int64_t bytes;        /* 0: no limit */
} verb_claim_desc;

typedef struct verb_batch {
    size_t count;
    jobq_job *jobs;
    PGresult *result;
    int *rows;
    int64_t due_us;
    bool suspects, alone;
    verb_call *of;
} verb_batch;

static inline jobq_error verb_claim(jobq_pg *pg, PGconn *conn, const verb_claim_desc *d,
                                    verb_batch *batch, jobq_pg_error *error)
{
    verb_call *v = verb_new(JOBQ_REQUEST_CLAIM);
    const jobq_claimed *c = &v->answer.claimed;
    jobq_request *r = &v->request;
    jobq_error code;

    memset(batch, 0, sizeof *batch);
    r->worker = d->worker;
    r->claim = d->number;
    r->limit = d->limit;
    r->quantum = d->quantum;
    r->lane_count = (int32_t)d->lane_count;
    if (d->lanes == NULL && d->lane_count > 0) r->lane_count = -1;
    else if (d->lane_count > 0) memcpy(r->lanes, d->lanes, d->lane_count * sizeof *d->lanes);
    r->every_kind = d->kinds == NULL;
    r->kind_count = (int32_t)d->kind_count;
    if (d->kind_count > 0) memcpy(r->kinds, d->kinds, d->kind_count * sizeof *d->kinds);
    r->suspects = d->suspects;
    r->alone = d->alone;
    r->look = d->look;
    r->relaxed = d->relaxed;
    r->bytes = d->bytes > 0 ? d->bytes : INT64_MAX;
    code = verb_run(v, pg, conn, error);
    if (code != JOBQ_OK) return verb_end(v, code);
    batch->of = v;
    batch->count = (size_t)c->count;
    batch->jobs = v->answer.claimed.jobs;
    batch->result = v->content.result;
    batch->rows = v->content.rows;
    batch->due_us = c->due_us == 0 ? -1 : c->due_us;
    batch->suspects = c->suspects;
    batch->alone = c->alone;
    return JOBQ_OK;
}

static inline jobq_str verb_batch_payload(const verb_batch *batch, size_t i, bool *bytes)
{
    return jobq_pg_payload(batch->result, batch->rows[i], bytes);
}

static inline void verb_batch_clear(verb_batch *batch)
{
    if (batch->of != NULL) verb_end(batch->of, JOBQ_OK);
    memset(batch, 0, sizeof *batch);
}

static inline jobq_error verb_recover(jobq_pg *pg, PGconn *conn, int64_t worker, int64_t number,
                                      int32_t limit, bool *more, jobq_pg_error *error)
{
    verb_call *v = verb_new(JOBQ_REQUEST_RECOVER);
    jobq_error code;

    v->request.worker = worker;
    v->request.claim = number;
    v->request.limit = limit;
    code = verb_run(v, pg, conn, error);
    *more = v->answer.more;
    return verb_end(v, code);
}

/* An ending, and what goes with it. */
typedef struct verb_result {
    int64_t id, worker, claim;
    jobq_decision decision;
    jobq_str error, payload;
    bool payload_bytes;
} verb_result;

/* Up to JOBQ_ENDINGS_MAX of one sort. */
static inline jobq_error verb_settle_some(jobq_pg *pg, PGconn *conn, bool successes,
                                          const verb_result *results, size_t count,
                                          jobq_error *answers, jobq_pg_error *error)
{
    verb_call *v = verb_new(successes ? JOBQ_REQUEST_COMPLETE : JOBQ_REQUEST_SETTLE);
    jobq_pg_ending with[JOBQ_ENDINGS_MAX];
    jobq_error code = JOBQ_OK;
    int32_t k, n = 0;
    size_t i;

    memset(with, 0, sizeof with);
    for (i = 0; i < count; i++) {
        const verb_result *r = &results[i];
        if ((r->decision.state == JOBQ_STATE_SUCCEEDED) != successes) continue;
        v->request.endings[n].job = r->id;
        v->request.endings[n].worker = r->worker;
        v->request.endings[n].claim = r->claim;
        v->request.endings[n].decision = r->decision;
        with[n].error = r->error;
        with[n].payload = r->payload;
        with[n++].payload_bytes = r->payload_bytes;
    }
    v->request.ending_count = n;
    v->content.endings = with;
    if (n > 0) code = verb_run(v, pg, conn, error);
    for (i = 0; i < count && code == JOBQ_OK && answers != NULL; i++) {
        const verb_result *r = &results[i];
        if ((r->decision.state == JOBQ_STATE_SUCCEEDED) != successes) continue;
        answers[i] = JOBQ_OK;
        for (k = 0; k < v->answer.count; k++) {
            const jobq_exception *x = &v->answer.exceptions[k];
            if (x->job == r->id && x->worker == r->worker && x->claim == r->claim)
                answers[i] = x->error;
        }
    }
    return verb_end(v, code);
}

static inline jobq_error verb_settle(jobq_pg *pg, PGconn *conn, const verb_result *results,
                                     size_t count, jobq_error *answers, jobq_pg_error *error)
{
    jobq_error code = JOBQ_OK;
    size_t at, n;

    for (at = 0; at < count && code == JOBQ_OK; at += n) {
        n = count - at < JOBQ_ENDINGS_MAX ? count - at : JOBQ_ENDINGS_MAX;
        code = verb_settle_some(pg, conn, true, results + at, n,
                                answers == NULL ? NULL : answers + at, error);
        if (code == JOBQ_OK)
            code = verb_settle_some(pg, conn, false, results + at, n,
                                    answers == NULL ? NULL : answers + at, error);
    }
    return code;
}

static inline jobq_error verb_heartbeat(jobq_pg *pg, PGconn *conn, int64_t worker, int64_t lease_us,
                                        jobq_pg_error *error)
{
    verb_call *v = verb_new(JOBQ_REQUEST_HEARTBEAT);
    jobq_error code;

    v->request.worker = worker;
    v->request.lease_us = lease_us;
    code = verb_run(v, pg, conn, error);
    if (code == JOBQ_OK && !v->answer.news.alive)
        code = verb_fail(error, JOBQ_ERROR_DEAD, "declared dead");
    return verb_end(v, code);
}

static inline jobq_error verb_rescue(jobq_pg *pg, PGconn *conn, int64_t victim, int64_t beat,
                                     int32_t *rescued, jobq_pg_error *error)
{
    verb_call *v = verb_new(JOBQ_REQUEST_RESCUE);
    jobq_error code;

    v->request.worker = victim;
    v->request.beat = beat;
    v->request.limit = 1000;
    code = verb_run(v, pg, conn, error);
    if (code == JOBQ_OK && rescued != NULL) *rescued = v->answer.count;
    if (code == JOBQ_OK && !v->answer.done) code = verb_fail(error, JOBQ_ERROR_BUSY, "it lives");
    return verb_end(v, code);
}

/* -- messages -- */

typedef struct verb_read_desc {
    int64_t worker, claim, lease_us, partition;
    int32_t most;   /* 0: 100 */
    bool again;     /* what this worker read and may not have got is taken back, but not what */
    int64_t handed; /* ... this claim read */
    int64_t watched_worker, watched_claim, watched_beat;
    int64_t bytes;
    bool aside;
    int64_t acked;
    bool sweep;
} verb_read_desc;

typedef struct verb_dead {
    int64_t seq;
    int32_t attempts;
    jobq_str error;
} verb_dead;

typedef struct verb_ack_desc {
    int64_t worker, claim, lease_us, partition, before;
    const jobq_cursor *after;
    jobq_str error;
    int64_t delay_us;
    const verb_dead *dead;
    size_t dead_count;
    int32_t most;
    int64_t bytes;
    bool sweep, in_transaction, relaxed;
} verb_ack_desc;

/* answer: 'h' held, messages follow; 'i' nothing to read; 'o' another holds it; 'w' not due yet;
 * 'b' busy; 'l' lost; 'a' set aside. */
typedef struct verb_reading {
    char answer;
    jobq_cursor cursor;
    int64_t lost, worker, claim, beat, wait_us;
    jobq_str error;
    int32_t count;
    bool cut;
    const jobq_message *messages;
    verb_call *of;
} verb_reading;

static inline void verb_reading_clear(verb_reading *r)
{
    if (r == NULL) return;
    if (r->of != NULL) verb_end(r->of, JOBQ_OK);
    memset(r, 0, sizeof *r);
}

/* Takes the answer over. */
static inline void verb_reading_of(verb_reading *to, verb_call *v)
{
    const jobq_reading *r = &v->answer.reading;

    memset(to, 0, sizeof *to);
    to->of = v;
    to->answer = r->busy              ? 'b'
                 : r->aside           ? 'a'
                 : r->due_us > 0      ? 'w'
                 : r->holder.worker   ? 'o'
                 : v->content.messages ? 'h' : 'i';
    to->cursor = r->cursor;
    to->lost = r->lost;
    to->worker = r->holder.worker;
    to->claim = r->holder.claim;
    to->beat = r->holder.beat;
    to->wait_us = r->due_us > 0 ? r->due_us : r->holder.lease_us;
    to->error = v->content.last_error;
    to->count = r->count;
    to->cut = r->cut;
    to->messages = v->content.messages;
}

static inline void verb_token(jobq_request *r, int64_t worker, int64_t claim, int64_t lease_us)
{
    r->worker = worker;
    r->claim = claim;
    r->lease_us = lease_us > 0 ? lease_us : jobq_tuning_defaults(NULL).lease_us;
}

/* The claim that last had a partition for this worker, so that its read counts. */
static inline int64_t *verb_last(int64_t worker, int64_t partition)
{
    static struct {
        int64_t worker, partition, claim;
    } last[4096];
    size_t i = (size_t)((uint64_t)(worker * 31 + partition) * 2654435761u % 4096);

    while (last[i].worker != 0 && (last[i].worker != worker || last[i].partition != partition))
        i = (i + 1) % 4096;
    last[i].worker = worker;
    last[i].partition = partition;
    return &last[i].claim;
}

static inline jobq_error verb_read(jobq_pg *pg, PGconn *conn, const verb_read_desc *d,
                                   verb_reading *reading, jobq_pg_error *error)
{
    verb_call *v = verb_new(JOBQ_REQUEST_READ);
    jobq_request *r = &v->request;
    jobq_error code;

    memset(reading, 0, sizeof *reading);
    verb_token(r, d->worker, d->claim, d->lease_us);
    r->partition_id = d->partition;
    r->limit = d->most > 0 ? d->most : jobq_tuning_defaults(NULL).batch;
    r->handed = d->again ? d->handed : d->worker == 0 ? 0 : *verb_last(d->worker, d->partition);
    r->watched.worker = d->watched_worker;
    r->watched.claim = d->watched_claim;
    r->watched.beat = d->watched_beat;
    r->bytes = d->bytes;
    r->aside = d->aside;
    r->acked = d->acked;
    r->sweep = d->sweep;
    code = verb_run(v, pg, conn, error);
    if (code != JOBQ_OK) return verb_end(v, code);
    verb_reading_of(reading, v);
    if (reading->answer == 'h') *verb_last(d->worker, d->partition) = d->claim;
    return JOBQ_OK;
}

/* The dead letters are all that a delivery is said to have had. */
static inline jobq_error verb_ack(jobq_pg *pg, PGconn *conn, const verb_ack_desc *d,
                                  verb_reading *reading, jobq_pg_error *error)
{
    verb_call *v = verb_new(JOBQ_REQUEST_ACK);
    jobq_message *messages = (jobq_message *)calloc(d->dead_count + 1, sizeof *messages);
    char **reasons = (char **)calloc(d->dead_count + 1, sizeof *reasons);
    jobq_request *r = &v->request;
    jobq_plan *plan = &r->ack.plan;
    jobq_error code;
    size_t i;

    if (messages == NULL || reasons == NULL) abort();
    if (reading != NULL) memset(reading, 0, sizeof *reading);
    verb_token(r, d->worker, d->claim, d->lease_us);
    r->partition_id = d->partition;
    r->ack.before = d->before;
    plan->cursor = *d->after;
    plan->done = (int32_t)d->dead_count;
    plan->failed = d->error.ptr == NULL ? -1 : 0;
    if (d->delay_us > 0) plan->directive.kind = JOBQ_DIRECTIVE_SLEEP;
    plan->directive.delay_us = d->delay_us;
    for (i = 0; i < d->dead_count; i++) {
        r->ack.results[i] = JOBQ_RESULT_EXCEEDED;
        messages[i].seq = d->dead[i].seq;
        messages[i].attempts = d->dead[i].attempts;
        if (d->dead[i].error.ptr == NULL) continue;
        reasons[i] = (char *)calloc(d->dead[i].error.len + 1, 1);
        if (reasons[i] == NULL) abort();
        memcpy(reasons[i], d->dead[i].error.ptr, d->dead[i].error.len);
    }
    r->limit = d->most;
    r->bytes = d->bytes;
    r->sweep = d->sweep;
    r->relaxed = d->relaxed;
    v->content.in_transaction = d->in_transaction;
    v->content.error = d->error;
    v->content.messages = messages;
    v->content.reasons = (const char *const *)reasons;
    code = verb_run(v, pg, conn, error);
    for (i = 0; i < d->dead_count; i++) free(reasons[i]);
    free(reasons);
    free(messages);
    if (reading != NULL && code == JOBQ_ERROR_LOST) reading->answer = 'l';
    if (reading == NULL || code != JOBQ_OK) return verb_end(v, code);
    verb_reading_of(reading, v);
    return JOBQ_OK;
}

static inline jobq_error verb_renew(jobq_pg *pg, PGconn *conn, int64_t worker, int64_t lease_us,
                                    const int64_t *partitions, const int64_t *claims, size_t count,
                                    bool *lost, jobq_pg_error *error)
{
    jobq_error code = JOBQ_OK;
    size_t i;

    for (i = 0; (i == 0 || i < count) && code == JOBQ_OK; i++) {
        verb_call *v = verb_new(JOBQ_REQUEST_RENEW);
        v->request.worker = worker;
        v->request.lease_us = lease_us;
        if (count == 0) return verb_end(v, verb_run(v, pg, conn, error));
        v->request.claim = claims[i];
        v->request.partition_id = partitions[i];
        code = verb_run(v, pg, conn, error);
        if (lost != NULL) lost[i] = code == JOBQ_ERROR_LOST;
        if (code == JOBQ_ERROR_LOST) code = JOBQ_OK;
        verb_end(v, code);
    }
    return code;
}

#endif /* VERBS_INCLUDED */
