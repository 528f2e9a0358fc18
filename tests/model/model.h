/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * model.h -- what Postgres has and the in-memory queue has not: quotas, schedules, all that a known
 * key may lead to, and waits of jobs that run. The explorer and tests of the loop need it. It is
 * stored after the rows of a jobq_memory, in the same block, so that a copy of the block has it,
 * too. A test includes it after the implementation of jobq.h.
 */
#ifndef MODEL_INCLUDED
#define MODEL_INCLUDED (1)

#include "calendar.h"
#include "rules.h"

#include <string.h> /* memset */

#ifndef MODEL_SCHEDULES
#define MODEL_SCHEDULES 4
#endif
#ifndef MODEL_QUOTAS
#define MODEL_QUOTAS 4
#endif
#ifndef MODEL_PERMITS
#define MODEL_PERMITS 32
#endif

/* A schedule on a jobq_memory. Its clock has no time zone. */
typedef struct model_schedule {
    jobq_cron cron;           /* by the store's clock; every_us must be 0 then */
    int64_t every_us;         /* at least a second, counted from time 0 */
    int64_t missed_within_us; /* how late a tick may be (default: LAST: without limit; ALL: a day;
                                 SKIP: a minute) */
    jobq_missed missed;
    jobq_overlap overlap;
    int32_t queue, kind;
    int16_t priority;
    jobq_str payload;         /* borrowed: must live as long as the store */
    int64_t tick_us;          /* the next tick; JOBQ_NEVER: none. model_schedule_add sets it and the
                                 next two */
    int64_t next_us;          /* when to fire it: later while there is no room for its job */
    int64_t last_id;          /* the job that it wrote last; 0: none */
} model_schedule;

/* Like the tables quota and permit. */
typedef struct model_quota {
    int32_t id; /* 0: free */
    int32_t queue, kind, most;
    jobq_rate rate;
    int64_t free_us;
} model_quota;

typedef struct model_permits {
    int64_t worker;
    int64_t number;
    int32_t quota; /* 0: free */
    int32_t held, wanted, tokens;
} model_permits;

/* What a job has beside its row. */
typedef struct model_job {
    int64_t key;     /* in its queue (0: none) */
    int64_t tick_us; /* the tick of the schedule that wrote it */
    int32_t merged;  /* payloads that MERGE has put in the place of an older one */
    bool marked;     /* while model_waits_for looks: it is waited for */
} model_job;

/* The model_jobs follow it. */
typedef struct model {
    int32_t schedule_count;
    int32_t quota_last; /* id */
    model_schedule schedules[MODEL_SCHEDULES];
    model_quota quotas[MODEL_QUOTAS];
    model_permits permits[MODEL_PERMITS];
} model;

/* Bytes of the model itself. */
static inline size_t model_used(int32_t jobs)
{
    return sizeof(model) + (size_t)jobs * sizeof(model_job);
}

static inline model *model_of(const jobq_memory *m)
{
    size_t at = jobq__memory_used(m->job_max, m->worker_max, m->claim_max);

    return (model *)(void *)((char *)(uintptr_t)m + at);
}

static inline model_job *model_job_of(const jobq_memory *m, int64_t id)
{
    return (model_job *)(void *)(model_of(m) + 1) + (id - 1);
}

/* As jobq_memory_size and jobq_memory_init. */
static inline size_t model_size(int32_t jobs, int32_t workers, int32_t claims)
{
    return jobq_memory_size(jobs, workers, claims) + model_used(jobs);
}

static inline jobq_memory *model_init(void *block, int32_t jobs, int32_t workers, int32_t claims)
{
    jobq_memory *m = jobq_memory_init(block, jobs, workers, claims);

    memset(model_of(m), 0, model_used(jobs));
    m->used += model_used(jobs);
    return m;
}

/* Pauses a kind, 1 to 63, or not. Workers that have it do not claim its jobs then. */
static inline void model_pause(jobq_memory *m, int32_t kind, bool paused)
{
    JOBQ_ASSERT(m != NULL && kind >= 1 && kind < 64);
    m->paused_kinds &= ~((uint64_t)1 << kind);
    m->paused_kinds |= (uint64_t)paused << kind;
}

/* Every 16th claim takes the oldest jobs of the queue, or not. */
static inline void model_ageing(jobq_memory *m, int32_t queue, bool on)
{
    uint64_t bit = (uint64_t)1 << (queue & 63);

    JOBQ_ASSERT(m != NULL && queue >= 1);
    m->ageing = on ? m->ageing | bit : m->ageing & ~bit;
    m->policy_version++;
}

/* Sets the rules of a line; line 0: of all lines of the queue that have none. NULL: it has none.
 * False: no room. */
static inline bool model_line(jobq_memory *m, int32_t queue, int64_t line, const jobq_line *rules)
{
    jobq_memory_line_row *row;
    int32_t i;

    JOBQ_ASSERT(m != NULL && queue >= 1);
    row = jobq__memory_line_of(m, queue, line);
    if (row == NULL && rules != NULL) row = jobq__memory_line_add(m, queue, line, INT64_MIN);
    if (row == NULL) return rules == NULL;
    row->own = rules != NULL;
    if (rules != NULL) row->rules = *rules;
    for (i = 0; i < m->job_count; i++) { /* those that run, and suspects, hold the line now */
        jobq_memory_job *mj = &jobq__memory_jobs(m)[i];
        bool of_it = mj->line != 0 && mj->job.queue == queue && (line == 0 || mj->line == line);
        mj->holds |= of_it && (mj->job.state == JOBQ_STATE_RUNNING || mj->job.suspect);
    }
    return true;
}

/* -- quotas -- */

/* The permits of a worker; worker 0 and quota 0: a free place. NULL: none. */
static inline model_permits *model_permit(jobq_memory *m, int32_t quota, int64_t worker)
{
    int32_t i;

    for (i = 0; i < MODEL_PERMITS; i++) {
        model_permits *p = &model_of(m)->permits[i];
        if (p->quota == quota && p->worker == worker) return p;
    }
    return NULL;
}

/* Finds or adds them; NULL: no room. */
static inline model_permits *model_permit_add(jobq_memory *m, int32_t quota, int64_t worker)
{
    model_permits *p = model_permit(m, quota, worker);

    if (p != NULL) return p;
    p = model_permit(m, 0, 0);
    if (p == NULL) return NULL;
    p->quota = quota;
    p->worker = worker;
    return p;
}

/* Like jobq.permits_free. */
static inline void model_permits_free(jobq_memory *m, int64_t worker)
{
    int32_t i;

    if (jobq__memory_left(m, worker)) return;
    for (i = 0; i < MODEL_PERMITS; i++) {
        model_permits *p = &model_of(m)->permits[i];
        if (p->quota != 0 && p->worker == worker) memset(p, 0, sizeof *p);
    }
}

/* Removes a quota with its permits. */
static inline void model_quota_drop(jobq_memory *m, model_quota *q)
{
    int32_t i;

    for (i = 0; i < MODEL_PERMITS; i++) {
        model_permits *p = &model_of(m)->permits[i];
        if (p->quota == q->id) memset(p, 0, sizeof *p);
    }
    memset(q, 0, sizeof *q);
}

/* Like jobq.quota_new. */
static inline bool model_quota_new(jobq_memory *m, model_quota *q, int32_t queue, int32_t kind)
{
    int32_t i;

    memset(q, 0, sizeof *q);
    q->id = ++model_of(m)->quota_last;
    q->queue = queue;
    q->kind = kind;
    for (i = 0; i < m->worker_max; i++) {
        const jobq_memory_worker *w = &jobq__memory_workers(m)[i];
        bool serves = (w->queues >> queue & 1) != 0 && (kind == 0 || (w->kinds >> kind & 1) != 0);
        if (w->id == 0 || !serves || (w->dead && !jobq__memory_left(m, w->id))) continue;
        if (model_permit_add(m, q->id, w->id) == NULL) return false;
    }
    return true;
}

/* Sets the quota of a queue, or of one of its kinds: a limit over all workers. kind 0: of the
 * queue. running_max 0: no limit; rate NULL: none; neither: removes it. False: no room. Loops
 * follow with their next heartbeat. */
static inline bool model_limit(jobq_memory *m, int32_t queue, int32_t kind, int32_t running_max,
                               const jobq_rate *rate)
{
    model_quota *q = NULL, *room = NULL;
    int64_t free_us = INT64_MIN / 2;
    int32_t i;

    JOBQ_ASSERT(m != NULL && queue >= 1 && kind >= 0 && running_max >= 0);
    for (i = 0; i < MODEL_QUOTAS; i++) {
        model_quota *one = &model_of(m)->quotas[i];
        if (one->id == 0) room = room == NULL ? one : room;
        else if (one->queue == queue && one->kind == kind) q = one;
    }
    if (running_max == 0 && rate == NULL) {
        if (q != NULL) model_quota_drop(m, q);
        return true;
    }
    /* A limit that was not there is new, because workers have not told what it needs. */
    if (q != NULL && ((q->most == 0 && running_max > 0) || (q->rate.us == 0 && rate != NULL))) {
        free_us = q->free_us;
        model_quota_drop(m, q);
        room = q;
        q = NULL;
    }
    if (q == NULL && room == NULL) return false;
    if (q == NULL && !model_quota_new(m, room, queue, kind)) {
        model_quota_drop(m, room);
        return false;
    }
    if (q == NULL) {
        q = room;
        q->free_us = free_us;
    }
    q->most = running_max;
    memset(&q->rate, 0, sizeof q->rate);
    if (rate != NULL) q->rate = *rate;
    return true;
}

/* What the others have of a quota. */
typedef struct model_others {
    int32_t wanting;
    int64_t held, reserved, tokens;
    bool unheard;
} model_others;

static inline model_others model_rest(const jobq_memory *m, const model_quota *q, int64_t worker)
{
    model_others rest = {0, 0, 0, 0, false};
    int32_t i;

    for (i = 0; i < MODEL_PERMITS; i++) {
        const model_permits *p = &model_of(m)->permits[i];
        if (p->quota != q->id || p->worker == worker) continue;
        rest.wanting += p->wanted > 0;
        rest.held += p->held;
        rest.tokens += p->tokens;
        rest.unheard |= p->number == 0;
    }
    for (i = 0; i < MODEL_PERMITS; i++) {
        const model_permits *p = &model_of(m)->permits[i];
        if (p->quota != q->id || p->worker == worker) continue;
        rest.reserved += jobq__max(
            p->held, jobq__min(p->wanted, model_permit_fair(q->most, rest.wanting + 1)));
    }
    return rest;
}

/* Like jobq.permit_one. */
static inline void model_permit_one(jobq_memory *m, model_quota *q, const jobq_request *r,
                                    const jobq_ask *ask, int64_t now_us, jobq_permit *answer)
{
    model_permits *p = model_permit_add(m, q->id, r->worker);
    model_others rest = model_rest(m, q, r->worker);

    if (p == NULL || p->number >= r->exchange) return; /* no room, or it arrived late */
    if (q->most > 0 && !rest.unheard) {
        answer->held = model_permit_share(q->most, rest.wanting + 1, rest.reserved, rest.held,
                                          ask->wanted);
    }
    if (q->rate.us > 0) {
        int64_t back = jobq__min(ask->returned, jobq__max(p->tokens - ask->tokens, 0));
        answer->tokens = model_tokens_move(&q->rate, &q->free_us, now_us, rest.tokens + p->tokens,
                                           (int32_t)back, rest.unheard ? 0 : ask->needed,
                                           &answer->wait_us);
    }
    p->number = r->exchange;
    p->held = (int32_t)jobq__max(ask->running, answer->held);
    p->wanted = ask->wanted;
    p->tokens = ask->tokens + answer->tokens;
}

/* Like jobq.permit_exchange. Quotas are answered in the order of their places. */
static inline void model_exchange(jobq_memory *m, const jobq_memory_worker *me,
                                  const jobq_request *r, int64_t now_us, jobq_news *n)
{
    int32_t i, k;

    for (i = 0; i < MODEL_QUOTAS && n->permit_count < JOBQ_LOOP_QUOTAS; i++) {
        model_quota *q = &model_of(m)->quotas[i];
        jobq_permit *answer = &n->permits[n->permit_count];
        if (q->id == 0 || (me->queues >> q->queue & 1) == 0) continue;
        if (q->kind != 0 && (me->kinds >> q->kind & 1) == 0) continue;
        memset(answer, 0, sizeof *answer);
        answer->quota = q->id;
        answer->queue = q->queue;
        answer->kind = q->kind;
        answer->most = q->most;
        answer->chunk = q->rate.us > 0 ? model_rate_chunk(&q->rate) : 0;
        n->permit_count++;
        for (k = 0; k < r->ask_count && r->asks[k].quota != q->id;) k++;
        if (k < r->ask_count) model_permit_one(m, q, r, &r->asks[k], now_us, answer);
    }
}

/* -- keys -- */

/* The key of an enqueue on a jobq_memory. A number, because the block is flat; not 0. */
typedef struct model_key {
    int64_t key;
    jobq_known on_known;   /* MERGE takes the newer payload, and counts it in merged */
    jobq_unique unique_for; /* PERIOD: for good, because a jobq_memory keeps every job */
    int64_t at_latest_us;  /* of REPLACE and BUMP: the job's run_at is at most this much after it
                              was added (default: no limit) */
} model_key;

/* The job that has a key: the newest one with it that has not ended, or else the newest. So if a
 * job that waits is cancelled, its predecessor has the key again. NULL: none. */
static inline jobq_memory_job *model_keyed(jobq_memory *m, int32_t queue, int64_t key)
{
    jobq_memory_job *ended = NULL;
    int32_t i;

    for (i = m->job_count - 1; i >= 0; i--) {
        jobq_memory_job *mj = &jobq__memory_jobs(m)[i];
        if (model_job_of(m, i + 1)->key != key || mj->job.queue != queue) continue;
        if (!jobq_state_final(mj->job.state)) return mj;
        if (ended == NULL) ended = mj;
    }
    return ended;
}

/* Like jobq.known_change. */
static inline void model_change(jobq_memory *m, jobq_memory_job *mj, int what, const jobq_job *like,
                                jobq_str payload, int64_t latest_us, int64_t now_us)
{
    int64_t run_at_us = jobq__max(jobq__min(like->run_at_us, latest_us), now_us);

    if (what == JOBQ_KNOWN_BUMP) {
        if (mj->job.state != JOBQ_STATE_READY || mj->job.run_at_us <= run_at_us) return;
        mj->job.run_at_us = run_at_us;
        return;
    }
    mj->payload = payload;
    model_job_of(m, mj->job.id)->merged += what == JOBQ_KNOWN_MERGE;
    if (what == JOBQ_KNOWN_MERGE) return;
    mj->job.priority = like->priority;
    mj->job.attempt = 0;
    if (mj->job.state == JOBQ_STATE_READY) mj->job.run_at_us = run_at_us;
    jobq__memory_lane(m, &mj->job);
}

/* Adds a job that waits for the end of another one; NULL: no room. */
static inline jobq_memory_job *model_follow(jobq_memory *m, const jobq_job *like, jobq_str payload,
                                            int64_t old, int64_t now_us)
{
    jobq_memory_job *mj = jobq_memory_get(m, jobq_memory_enqueue(m, like, payload, now_us));

    if (mj == NULL || old == 0) return mj;
    mj->job.state = JOBQ_STATE_WAITING;
    mj->job.run_at_us = JOBQ_NEVER;
    mj->follows = (int32_t)old;
    return mj;
}

/* As jobq_memory_enqueue, with a key; see model_known_decide. id: the job that has the key
 * afterwards; 0: no room, and nothing has changed. Returns what was done: LEAVE and REJECT add
 * nothing; NEW, CANCEL and FOLLOW added a job. One that waits becomes ready when the job that it
 * follows has ended, however it ended. */
static inline int model_enqueue_known(jobq_memory *m, const jobq_job *like, jobq_str payload,
                                      const model_key *key, int64_t now_us, int64_t *id)
{
    jobq_memory_job *mj;
    int what = MODEL_KNOWN_NEW;
    int64_t old = 0;

    JOBQ_ASSERT(m != NULL && like != NULL && key != NULL && key->key != 0 && id != NULL);
    mj = model_keyed(m, like->queue, key->key);
    if (mj != NULL) {
        bool begun = mj->job.state == JOBQ_STATE_RUNNING || mj->job.stage > 0;
        what = model_known_decide(key->on_known, key->unique_for, mj->job.state, begun);
        *id = mj->job.id;
        if (what == JOBQ_KNOWN_REPLACE || what == JOBQ_KNOWN_MERGE || what == JOBQ_KNOWN_BUMP) {
            int64_t latest_us = key->at_latest_us == 0
                ? JOBQ_NEVER : jobq__add(mj->job.enqueued_at_us, key->at_latest_us);
            model_change(m, mj, what, like, payload, latest_us, now_us);
        }
        if (what < MODEL_KNOWN_NEW && what != JOBQ_KNOWN_CANCEL) return what;
        *id = 0;
        if (m->job_count == m->job_max) return what;
        if (what == JOBQ_KNOWN_CANCEL) {
            jobq__memory_plain(m, mj, JOBQ_EVENT_CANCEL, now_us);
            if (mj->job.state == JOBQ_STATE_RUNNING) old = mj->job.id;
        }
        if (what == MODEL_KNOWN_FOLLOW) old = mj->job.id;
    }
    mj = model_follow(m, like, payload, old, now_us);
    *id = mj == NULL ? 0 : mj->job.id;
    if (mj != NULL) model_job_of(m, mj->job.id)->key = key->key;
    return what;
}

/* -- waits of jobs that run -- */

static inline bool *model_marked(const jobq_memory *m, int64_t id)
{
    return &model_job_of(m, id)->marked;
}

/* Whether a job holds the strict line of a marked job, so that the marked one waits for it. */
static inline bool model_in_the_way(const jobq_memory *m, const jobq_memory_job *mj)
{
    const jobq_memory_job *jobs = jobq__memory_jobs(m);
    int32_t queue = mj->job.queue, i;

    if (!mj->holds || jobq_state_final(mj->job.state)) return false;
    if (!jobq__memory_rules(m, queue, mj->line).strict) return false;
    for (i = 0; i < m->job_count; i++) {
        bool of_it = jobs[i].line == mj->line && jobs[i].job.queue == queue;
        if (!*model_marked(m, i + 1) || !of_it) continue;
        if (jobs[i].holds || jobs[i].job.state == JOBQ_STATE_RUNNING) continue;
        if (!jobq_state_final(jobs[i].job.state)) return true;
    }
    return false;
}

/* Marks what the marked jobs wait for. Returns whether any of it was not marked before. */
static inline bool model_mark_on(jobq_memory *m)
{
    bool more = false;
    int32_t i;

    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        const jobq_memory_edge *e = &m->edges[i];
        if (e->child == 0 || !e->holds || !*model_marked(m, e->child)) continue;
        more = more || !*model_marked(m, e->parent);
        *model_marked(m, e->parent) = true;
    }
    for (i = 0; i < m->job_count; i++) {
        if (*model_marked(m, i + 1) || !model_in_the_way(m, &jobq__memory_jobs(m)[i])) continue;
        *model_marked(m, i + 1) = more = true;
    }
    return more;
}

/* Whether a job waits for another one, directly or through others. As jobq._awaited in SQL. */
static inline bool model_waits_for(jobq_memory *m, int64_t id, int64_t other)
{
    bool found;
    int32_t i;

    *model_marked(m, id) = true;
    while (model_mark_on(m)) {}
    found = *model_marked(m, other);
    for (i = 0; i < m->job_count; i++) *model_marked(m, i + 1) = false;
    return found;
}

/* As jobq__memory_after, also for a job that runs: it waits when JOBQ_EVENT_WAIT comes. False then,
 * too: the parent waits for it, or is behind it in a strict line. */
static inline bool model_after(jobq_memory *m, int64_t child, int64_t parent, jobq_on_end on_end,
                               bool cascade, int64_t now_us)
{
    jobq_memory_edge *e;

    if (jobq_memory_get(m, child)->job.state != JOBQ_STATE_RUNNING)
        return jobq__memory_after(m, child, parent, on_end, cascade, now_us);
    JOBQ_ASSERT(parent != child);
    if (model_waits_for(m, parent, child)) return false;
    e = jobq__memory_edge_of(m, child, parent);
    if (e != NULL) jobq__memory_link(m, e, child, parent, on_end, cascade);
    return e != NULL;
}

/* -- schedules -- */

#define MODEL_TICKS_MAX 100 /* that one schedule fires in one TICK */

/* The first tick after an instant; JOBQ_NEVER: there is none. */
static inline int64_t model_schedule_after(const model_schedule *s, int64_t after_us)
{
    if (s->every_us == 0) return model_cron_next(&s->cron, after_us);
    return (jobq__floor_div(after_us, s->every_us) + 1) * s->every_us;
}

/* The last tick that is not after until_us. tick_us is one. Each step halves the time that is left
 * to search. */
static inline int64_t model_schedule_last(const model_schedule *s, int64_t tick_us,
                                          int64_t until_us)
{
    int64_t next;

    while ((next = model_schedule_after(s, tick_us)) <= until_us) {
        int64_t middle = next + (until_us - next) / 2;
        tick_us = model_schedule_after(s, middle);
        if (tick_us <= until_us) continue;
        tick_us = next;
        until_us = middle;
    }
    return tick_us;
}

/* Adds a schedule, which fires from the first tick after now_us on. Loops learn of it with their
 * next heartbeat. Returns it; NULL: no room. */
static inline model_schedule *model_schedule_add(jobq_memory *m, const model_schedule *schedule,
                                                 int64_t now_us)
{
    static const int64_t within[] = {JOBQ_NEVER, JOBQ__DAY, JOBQ__MINUTE};
    model *all = model_of(m);
    model_schedule *s;

    JOBQ_ASSERT(m != NULL && schedule != NULL && schedule->missed_within_us >= 0);
    JOBQ_ASSERT(schedule->every_us == 0 ? schedule->cron.minutes != 0
                                        : schedule->every_us >= JOBQ__SECOND);
    if (all->schedule_count == MODEL_SCHEDULES) return NULL;
    s = &all->schedules[all->schedule_count++];
    *s = *schedule;
    if (s->missed_within_us == 0) s->missed_within_us = within[s->missed];
    s->tick_us = s->next_us = model_schedule_after(s, now_us);
    s->last_id = 0;
    return s;
}

/* Writes the job of one tick. Like jobq._fire_job: while one waits for the job before it, it takes
 * over the newer tick. One that waits for other jobs has begun.
 * *written: whether it wrote one; not if overlap leaves this tick out. False: there is no room. */
static inline bool model_fire_job(jobq_memory *m, model_schedule *s, int64_t now_us, bool *written)
{
    jobq_memory_job *mj = s->overlap == JOBQ_OVERLAP_ALLOW ? NULL : jobq_memory_get(m, s->last_id);
    jobq_job like = jobq_job_new(0);
    int64_t old = mj == NULL || jobq_state_final(mj->job.state) ? 0 : mj->job.id;

    *written = false;
    if (old != 0 && mj->follows != 0) {
        model_job_of(m, mj->job.id)->tick_us = s->tick_us;
        return *written = true;
    }
    if (old != 0 && s->overlap == JOBQ_OVERLAP_SKIP) return true;
    if (m->job_count == m->job_max) return false;
    if (old != 0 && s->overlap == JOBQ_OVERLAP_CANCEL) {
        jobq__memory_plain(m, mj, JOBQ_EVENT_CANCEL, now_us);
        if (mj->job.state != JOBQ_STATE_RUNNING) old = 0;
    }
    like.queue = s->queue;
    like.kind = s->kind;
    like.priority = s->priority;
    mj = model_follow(m, &like, s->payload, old, now_us);
    model_job_of(m, mj->job.id)->tick_us = s->tick_us;
    s->last_id = mj->job.id;
    return *written = true;
}

/* Like jobq._fire: what is missed is decided here. Returns how many jobs it wrote. If there is no
 * room, the tick is fired again after a minute. */
static inline int32_t model_fire(jobq_memory *m, model_schedule *s, int64_t now_us)
{
    bool limited = s->missed_within_us != JOBQ_NEVER, written;
    int32_t count = 0, n;

    if (limited && s->tick_us < now_us - s->missed_within_us) {
        s->tick_us = model_schedule_after(s, now_us - s->missed_within_us - 1);
    }
    if (s->missed != JOBQ_MISSED_ALL && s->tick_us <= now_us) {
        s->tick_us = model_schedule_last(s, s->tick_us, now_us);
    }
    for (n = 0; s->tick_us <= now_us && n < MODEL_TICKS_MAX; n++) {
        if (!model_fire_job(m, s, now_us, &written)) {
            s->next_us = now_us + JOBQ__MINUTE;
            return count;
        }
        count += written;
        s->tick_us = model_schedule_after(s, s->tick_us);
    }
    s->next_us = s->tick_us;
    return count;
}

/* Whether a schedule fires here: it is of these queues, and neither its queue nor its kind is
 * paused. */
static inline bool model_fires(const jobq_memory *m, const model_schedule *s, uint64_t queues)
{
    return (queues >> s->queue & 1) != 0 && (m->paused >> s->queue & 1) == 0 &&
           (m->paused_kinds >> s->kind & 1) == 0;
}

/* 1 plus the microseconds until the next tick of these queues; 0: there is none. */
static inline int64_t model_next_tick(const jobq_memory *m, uint64_t queues, int64_t now_us)
{
    int64_t next = JOBQ_NEVER;
    int32_t i;

    for (i = 0; i < model_of(m)->schedule_count; i++) {
        const model_schedule *s = &model_of(m)->schedules[i];
        if (model_fires(m, s, queues)) next = jobq__min(next, s->next_us);
    }
    return next == JOBQ_NEVER ? 0 : jobq__max(next - now_us, 0) + 1;
}

/* Like jobq.tick. */
static inline void model_tick(jobq_memory *m, uint64_t queues, int32_t limit, int64_t now_us,
                              jobq_answer *a)
{
    int32_t i;

    for (i = 0; i < model_of(m)->schedule_count && limit > 0; i++) {
        model_schedule *s = &model_of(m)->schedules[i];
        if (s->next_us > now_us || !model_fires(m, s, queues)) continue;
        a->count += model_fire(m, s, now_us);
        limit--;
    }
    a->due_us = model_next_tick(m, queues, now_us);
}

/* -- statements -- */

/* Workers that are gone, and left no claims, have no permits. */
static inline void model_left(jobq_memory *m)
{
    int32_t i;

    for (i = 0; i < MODEL_PERMITS; i++) {
        const model_permits *p = &model_of(m)->permits[i];
        if (p->quota != 0 && jobq__memory_worker_of(m, p->worker) == NULL)
            model_permits_free(m, p->worker);
    }
}

/* As jobq__memory_execute. */
static inline void model_execute(jobq_memory *m, const jobq_request *r, uint64_t queues,
                                 uint64_t kinds, int64_t now_us, jobq_answer *a)
{
    jobq__memory_execute(m, r, queues, kinds, now_us, a);
    switch ((int)r->kind) {
    case JOBQ_REQUEST_HEARTBEAT:
        if (!a->news.alive) return;
        queues = jobq__memory_worker_of(m, r->worker)->queues;
        model_exchange(m, jobq__memory_worker_of(m, r->worker), r, now_us, &a->news);
        a->news.tick_us = model_next_tick(m, queues, now_us);
        return;
    case JOBQ_REQUEST_TICK:
        model_tick(m, jobq__memory_bits(r->queues, r->queue_count), r->limit, now_us, a);
        return;
    case JOBQ_REQUEST_RESCUE:
        if (a->done) model_permits_free(m, r->worker);
        return;
    case JOBQ_REQUEST_DEREGISTER: model_permits_free(m, r->worker); return; /* whatever it leaves */
    case JOBQ_REQUEST_REGISTER:
    case JOBQ_REQUEST_PRUNE: model_left(m); return;
    default: return;
    }
}

/* As jobq__memory_perform. */
static inline void model_perform(jobq_memory *m, jobq_loop *l, const jobq_request *r,
                                 uint64_t queues, uint64_t kinds, int64_t mono_us, int64_t now_us)
{
    jobq_answer *answer = &jobq__memory_scratch_of(m)->answer;

    model_execute(m, r, queues, kinds, now_us, answer);
    jobq_loop_tell(l, mono_us, answer);
}

#endif /* MODEL_INCLUDED */
