/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * store_memory.h -- the operations of store.h on a jobq_memory.
 */
#ifndef STORE_MEMORY_INCLUDED
#define STORE_MEMORY_INCLUDED (1)

#include "model.h"
#include "store.h"

static jobq_memory *memory;

static void memory_reset(void)
{
    static int64_t block[1 << 17];

    assert_true(model_size(SHOWN, SHOWN, SHOWN * 4) <= sizeof block);
    memory = model_init(block, SHOWN, SHOWN, SHOWN * 4);
    assert_int_equal(jobq__memory_outbox(memory, 1, PARTS), 1); /* ids are numbers plus 1 */
}

static void memory_policy(int32_t queue, const jobq_policy *policy, bool paused)
{
    jobq_memory_policy(memory, queue, policy, paused);
}

static void memory_kind_policy(int32_t kind, const jobq_policy *whole)
{
    jobq__memory_kind_policy(memory, kind, whole);
}

static void memory_pause(int32_t kind, bool paused) { model_pause(memory, kind, paused); }

static int64_t memory_enqueue(const jobq_job *like, jobq_str payload, int64_t now_us)
{
    return jobq_memory_enqueue(memory, like, payload, now_us);
}

static jobq_error memory_enroll(int64_t worker, uint64_t queues, uint64_t kinds, int64_t now_us)
{
    return jobq__memory_register(memory, worker, LEASE_US, queues, kinds, now_us);
}

/* The request that these tests fill and the answer to it, as a loop and a store exchange them. */
static jobq_request asked;
static jobq_answer answered;

static void memory_ask(jobq_request_kind kind, int64_t worker, int64_t claim)
{
    memset(&asked, 0, sizeof asked);
    asked.kind = kind;
    asked.worker = worker;
    asked.claim = claim;
}

static jobq_error memory_answer(int64_t now_us)
{
    jobq__memory_execute(memory, &asked, 0, 0, now_us, &answered);
    return answered.error;
}

static jobq_error memory_claim(taking *t, int64_t now_us)
{
    const jobq_claimed *c = &answered.claimed;
    int32_t kind, i;

    memory_ask(JOBQ_REQUEST_CLAIM, t->worker, t->number);
    asked.limit = t->limit;
    asked.quantum = t->quantum;
    asked.bytes = JOBQ_NEVER;
    asked.lane_count = t->lane_count;
    memcpy(asked.lanes, t->lanes, (size_t)t->lane_count * sizeof *t->lanes);
    asked.every_kind = t->kinds == 0;
    for (kind = 0; kind < 64; kind++) {
        if ((t->kinds >> kind & 1) != 0) asked.kinds[asked.kind_count++] = kind;
    }
    asked.suspects = t->suspects;
    asked.alone = t->alone;
    asked.look = true;
    memory_answer(now_us);
    t->count = c->count;
    memcpy(t->jobs, c->jobs, (size_t)c->count * sizeof *c->jobs);
    t->walk_count = c->walk_count;
    memcpy(t->walks, c->walks, (size_t)c->walk_count * sizeof *c->walks);
    for (i = 0; i < c->ended_count; i++) t->ended += c->ended[i].count;
    if (answered.error != JOBQ_OK || t->count > 0) return answered.error;
    t->due_us = c->due_us;
    t->suspect_ready = c->suspects;
    t->alone_ready = c->alone;
    return JOBQ_OK;
}

static bool memory_recover(int64_t worker, int64_t number, int32_t limit, int64_t now_us)
{
    return jobq__memory_recover(memory, worker, number, limit, now_us);
}

static jobq_error memory_settle(const jobq_job *held, const jobq_event *event,
                                const jobq_decision *decision, jobq_str next, int64_t now_us)
{
    (void)event;
    if (next.ptr != NULL) {
        jobq_memory_job *mj = jobq_memory_get(memory, held->id);
        if (mj == NULL || !jobq_job_holds(&mj->job, held->worker, held->claim))
            return JOBQ_ERROR_LOST;
        mj->next = next;
    }
    return jobq__memory_settle(memory, held->id, held->worker, held->claim, decision, now_us,
                               NULL);
}

static news memory_heartbeat(int64_t worker, const int64_t *settled, int32_t count, int64_t now_us)
{
    const jobq_news *told = &answered.news;
    news n;
    int32_t i;

    memset(&n, 0, sizeof n);
    memory_ask(JOBQ_REQUEST_HEARTBEAT, worker, 0);
    asked.settled_count = count;
    memcpy(asked.settled, settled, (size_t)count * sizeof *settled);
    memory_answer(now_us);
    n.alive = told->alive;
    n.suspects = told->suspects;
    for (i = 0; i < told->cancel_count; i++) n.cancel |= (uint64_t)1 << told->cancels[i];
    if (n.alive && !told->every_kind) {
        uint64_t queues = jobq__memory_worker_of(memory, worker)->queues;
        uint64_t kinds = jobq__memory_bits(told->kinds, told->kind_count);
        n.spared = ~kinds & ((queues & 2 ? 6u : 0u) | (queues & 4 ? 8u : 0u));
    }
    for (i = 0; i < told->late_count; i++) n.late |= (uint64_t)1 << told->late[i].worker;
    n.parked = told->parked_kind != 0;
    n.alone = jobq__memory_bits(told->alone, told->alone_count);
    n.overdue = told->overdue;
    return n;
}

static bool memory_rescue(int64_t victim, int64_t beat, int32_t limit, int64_t now_us,
                          int32_t *rescued, bool *more)
{
    return jobq__memory_rescue(memory, victim, beat, limit, now_us, rescued, more);
}

static void memory_deregister(int64_t worker, int64_t now_us)
{
    jobq__memory_deregister(memory, worker, now_us);
}

static jobq_error memory_cancel(int64_t job, int64_t now_us)
{
    return jobq_memory_event(memory, job, JOBQ_EVENT_CANCEL, now_us);
}

static jobq_error memory_revive(int64_t job, int64_t now_us)
{
    return jobq_memory_event(memory, job, JOBQ_EVENT_REVIVE, now_us);
}

static void memory_after(int64_t child, int64_t parent, jobq_on_end on_end, bool cascade,
                         int64_t now_us)
{
    if (!jobq__memory_after(memory, child, parent, on_end, cascade, now_us)) fail_msg("no room");
}

static bool memory_await(const jobq_job *held, int64_t parent, jobq_on_end on_end,
                         const jobq_decision *decision, int64_t now_us)
{
    (void)decision;
    if (!model_after(memory, held->id, parent, on_end, on_end == JOBQ_ON_FAILURE, now_us))
        return false;
    assert_int_equal(jobq_memory_event(memory, held->id, JOBQ_EVENT_WAIT, now_us), JOBQ_OK);
    return true;
}

static int32_t memory_unpark(int32_t kind, int64_t now_us)
{
    return jobq__memory_unpark(memory, kind, now_us);
}

static void memory_sleep(int64_t worker, bool asleep, int64_t now_us)
{
    (void)now_us;
    jobq__memory_sleep(memory, worker, asleep);
}

static void memory_prune(int64_t now_us) { jobq__memory_prune(memory, now_us); }

static void memory_send(int32_t part, int64_t now_us)
{
    (void)now_us;
    assert_true(jobq__memory_send(memory, 1, part, jobq_str_from("{}")));
}

static void memory_ask_part(jobq_request_kind kind, const delivered *r)
{
    memory_ask(kind, r->holder.worker, r->holder.claim);
    asked.partition_id = r->part + 1;
    asked.lease_us = r->holder.lease_us;
}

static void memory_read(delivered *r, int64_t now_us)
{
    const jobq_reading *got = &answered.reading;

    memory_ask_part(JOBQ_REQUEST_READ, r);
    asked.limit = r->most;
    asked.bytes = r->bytes;
    asked.handed = r->handed;
    asked.watched = r->watched;
    asked.aside = r->aside;
    asked.acked = r->before;
    memory_answer(now_us);
    r->answer = got->busy                 ? 'b'
                : got->aside              ? 'a'
                : got->holder.worker != 0 ? 'o'
                : got->due_us > 0         ? 'w'
                : got->count > 0          ? 'h'
                                          : 'i';
    r->cursor = got->cursor;
    r->lost = got->lost;
    r->due_us = got->due_us;
    r->other = got->holder;
    r->count = got->count;
    r->cut = got->cut;
}

static jobq_error memory_ack(settling *k, int64_t now_us)
{
    memory_ask_part(JOBQ_REQUEST_ACK, k->of);
    asked.limit = k->most;
    asked.bytes = k->bytes;
    asked.ack.before = k->before;
    asked.ack.given = k->given;
    asked.ack.plan = *k->plan;
    memcpy(asked.ack.results, k->results, (size_t)k->plan->done);
    memory_answer(now_us);
    k->count = answered.reading.count;
    k->cut = answered.reading.cut;
    return answered.error;
}

static jobq_error memory_renew(const delivered *r, int64_t now_us)
{
    memory_ask_part(JOBQ_REQUEST_RENEW, r);
    return memory_answer(now_us);
}

static void memory_look_parts(view *v)
{
    int32_t i, seq;

    v->letters = 0;
    for (i = 0; i < PARTS; i++) {
        const jobq_memory_partition *p = &memory->partitions[i];
        shown_part *to = &v->part[i];
        to->cursor = p->cursor;
        to->last = p->last;
        to->worker = p->holder.worker;
        to->claim = p->holder.claim;
        to->lease_until_us = p->lease_until_us;
        to->reading = p->reading;
        to->run_at_us = p->run_at_us;
        for (seq = 1; seq <= p->last; seq++) {
            const jobq_memory_message *m = jobq__memory_message_at(memory, i + 1, seq);
            if (m == NULL || !m->dead) continue;
            v->letter[v->letters].part = i;
            v->letter[v->letters].seq = seq;
            v->letter[v->letters++].attempts = m->attempts;
        }
    }
}

static void memory_look_job(const jobq_memory_job *mj, shown_job *shown)
{
    jobq_decision d;
    char text[JOBQ_ERROR_MAX + 1];

    shown->job = mj->job;
    shown->line = mj->line;
    snprintf(shown->payload, sizeof shown->payload, "%.*s", (int)mj->payload.len, mj->payload.ptr);
    memset(&d, 0, sizeof d);
    d.reason = mj->reason;
    d.limit = mj->limit;
    jobq_reason_format(text, &d, jobq_str_from(""));
    snprintf(shown->why, sizeof shown->why, "%.*s", (int)strcspn(text, ":"), text);
}

static int worker_by_id(const void *a, const void *b)
{
    const shown_worker *x = (const shown_worker *)a, *y = (const shown_worker *)b;

    return (x->id > y->id) - (x->id < y->id);
}

static int claim_by_number(const void *a, const void *b)
{
    const shown_claim *x = (const shown_claim *)a, *y = (const shown_claim *)b;

    if (x->worker != y->worker) return x->worker < y->worker ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

static void memory_look(view *v)
{
    int32_t i;

    v->jobs = memory->job_count;
    v->workers = v->claims = 0;
    for (i = 0; i < v->jobs; i++) memory_look_job(&jobq__memory_jobs(memory)[i], &v->job[i]);
    for (i = 0; i < memory->worker_max; i++) {
        const jobq_memory_worker *w = &jobq__memory_workers(memory)[i];
        shown_worker *to = &v->worker[v->workers];
        if (w->id == 0) continue;
        to->id = w->id;
        to->beat = w->beat;
        to->expires_at_us = w->expires_at_us;
        to->dead = w->dead;
        to->asleep = w->asleep;
        v->workers++;
    }
    for (i = 0; i < memory->claim_max; i++) {
        const jobq_memory_claim *c = &jobq__memory_claims(memory)[i];
        if (c->worker == 0) continue;
        v->claim[v->claims].worker = c->worker;
        v->claim[v->claims++].number = c->number;
    }
    qsort(v->worker, (size_t)v->workers, sizeof v->worker[0], worker_by_id);
    qsort(v->claim, (size_t)v->claims, sizeof v->claim[0], claim_by_number);
    memory_look_parts(v);
}

static void memory_line(int64_t line, const jobq_line *rules, int64_t until_us, int64_t now_us)
{
    assert_true(model_line(memory, 1, line, rules));
    if (line > 0) jobq__memory_line_add(memory, 1, line, now_us)->until_us = until_us;
}

static const store store_memory = {
    "memory", memory_reset, memory_policy, memory_kind_policy, memory_pause, memory_enqueue,
    memory_enroll, memory_claim, memory_recover, memory_settle, memory_heartbeat, memory_rescue,
    memory_deregister, memory_cancel, memory_revive, memory_after, memory_await, memory_unpark,
    memory_sleep, memory_prune, memory_send, memory_read, memory_ack, memory_renew, memory_look,
    memory_line};

#endif /* STORE_MEMORY_INCLUDED */
