/*
 * wire.h -- a statement of a loop in three steps: sent, executed, answered.
 *
 * jobq_memory_perform does all three at once. On a real connection time passes in between, and any
 * of them may fail to come. So the explorer and the simulator carry each statement as data: the
 * request as it left the loop, then what the store answered, then the loop is told.
 *
 * Limits are the includer's: WIRE_JOBS jobs a batch, WIRE_LANES lanes, WIRE_QUEUES queues,
 * WIRE_PRIORITY the last priority that jobs have (lanes of the others are left out).
 */
#ifndef WIRE_INCLUDED
#define WIRE_INCLUDED (1)

#include "jobq.h"

#include <string.h> /* memset */

/* A result of a flush on its way. */
typedef struct wire_item {
    int64_t id, worker, claim;
    jobq_decision decision;
    jobq_error error; /* the answer about it */
    int32_t refused;  /* how often the store did not take its result: it is plainer each time */
} wire_item;

typedef struct wire_late {
    int64_t worker, beat, lease_us;
} wire_late;

/* About messages: what the statement needs, and what the store answered to it. */
typedef struct wire_part {
    int64_t partition, acked_before;
    bool cut;
    uint32_t generation;
    int32_t given;
    jobq_holder token, watched;
    uint8_t outcomes[JOBQ_LOOP_BATCH];
    union {
        jobq_plan plan;                               /* of an acknowledgement */
        jobq_reading reading;                         /* the answer of a read */
        jobq_backlog backlogs[JOBQ_MEMORY_PARTITIONS]; /* ... of a look */
    } u;
} wire_part;

typedef struct wire {
    jobq_action action;
    bool executed;
    bool own; /* ACK: in the transaction of its handler */
    jobq_error error;
    int32_t count; /* flush: items; claim: jobs of the answer; policies: queues */
    /* the request */
    int64_t lease_us;
    int64_t busy; /* a job that someone else has locked; 0: none. Messages: their partitions are */
    int64_t stuck;   /* a job whose content cannot be sent; 0: none */
    int64_t refused; /* a job whose result the store does not take; 0: none */
    int32_t portion; /* rescue: claims that it gets hold of; the others' jobs are locked */
    int64_t bytes;   /* flush: of its jobs and their results */
    int32_t lane_count, settled_count;
    uint64_t kinds; /* bit i: kind i. Of a claim, or the answer of a heartbeat */
    /* the answer */
    int32_t late_count, cancel_count, rescued, parked;
    int64_t due_us, policy, store_now_us, named;
    bool suspects, alive, dead, more, every_kind;
    uint64_t alone; /* queues with a job that must run alone */
    int32_t overdue;
    int16_t stages_max;
    bool paused[WIRE_QUEUES];
    int32_t queues[WIRE_QUEUES];
    jobq_policy policies[WIRE_QUEUES];
    int64_t settled[JOBQ_LOOP_CLAIMS];
    int64_t cancels[WIRE_JOBS];
    wire_late late[JOBQ_LOOP_WATCHED];
    jobq_lane lanes[WIRE_LANES];
    union {
        wire_item items[WIRE_JOBS];
        jobq_job jobs[WIRE_JOBS];
        wire_part part;
    } u;
} wire;

static inline bool wire_of_part(jobq_action_kind kind)
{
    return kind == JOBQ_ACTION_READ || kind == JOBQ_ACTION_ACK || kind == JOBQ_ACTION_RENEW;
}

/* -- sent -- */

static void wire__lanes(wire *w, const jobq_loop *l)
{
    static const int32_t most = JOBQ_LOOP_QUEUES * JOBQ_PRIORITIES * JOBQ_STAGES_MAX;
    jobq_lane all[JOBQ_LOOP_QUEUES * JOBQ_PRIORITIES * JOBQ_STAGES_MAX];
    int32_t count = jobq_loop_lanes(l, all, most), i;

    for (i = 0; i < count && all[i].priority <= WIRE_PRIORITY; i++) {
        JOBQ_ASSERT(w->lane_count < WIRE_LANES);
        w->lanes[w->lane_count++] = all[i];
    }
    w->kinds = jobq__memory_asked(l);
}

static void wire__items(wire *w, const jobq_loop *l)
{
    int32_t slots[WIRE_JOBS], i;

    w->count = jobq_loop_sent(l, w->action.kind, slots, WIRE_JOBS);
    for (i = 0; i < w->count; i++) {
        const jobq_slot *s = &l->slots[slots[i]];
        w->u.items[i].id = s->job.id;
        w->u.items[i].worker = s->job.worker;
        w->u.items[i].claim = s->job.claim;
        w->u.items[i].decision = s->decision;
        w->u.items[i].refused = s->refused;
        w->bytes += s->bytes;
    }
}

static void wire__part(wire *w, const jobq_loop *l)
{
    const jobq_part *p = &l->relay.parts[w->action.slot];
    wire_part *to = &w->u.part;

    to->partition = p->id;
    to->acked_before = p->cursor.acked;
    to->generation = p->generation;
    to->given = p->given;
    to->token.worker = w->action.worker;
    to->token.claim = w->action.number;
    to->token.lease_us = l->config.tuning[p->queue].lease_us;
    to->watched = p->holder;
    memcpy(to->outcomes, p->outcomes, sizeof to->outcomes);
    if (w->action.kind == JOBQ_ACTION_ACK) to->u.plan = p->plan;
}

/* The request leaves the loop: everything that the statement will need. */
static inline void wire_send(wire *w, jobq_loop *l, const jobq_action *a)
{
    int32_t i;

    memset(w, 0, sizeof *w);
    w->action = *a;
    w->lease_us = l->config.lease_us;
    w->portion = INT32_MAX;
    if (a->kind == JOBQ_ACTION_CLAIM) wire__lanes(w, l);
    if (a->kind == JOBQ_ACTION_COMPLETE || a->kind == JOBQ_ACTION_SETTLE) wire__items(w, l);
    if (wire_of_part(a->kind)) wire__part(w, l);
    if (a->kind == JOBQ_ACTION_HEARTBEAT) {
        w->settled_count = jobq_loop_settled(l, w->settled, JOBQ_LOOP_CLAIMS);
    }
    if (a->kind == JOBQ_ACTION_POLICIES || a->kind == JOBQ_ACTION_REMAIN) {
        w->count = l->queue_count;
        for (i = 0; i < w->count; i++) w->queues[i] = l->queues[i].id;
    }
}

/* A heartbeat that looks for jobs, too, travels as two statements: whatever holds when they may be
 * torn apart holds when they are one. Returns how many. */
static inline int wire_send_all(wire *two, jobq_loop *l, const jobq_action *a)
{
    jobq_action one = *a;

    one.claim = false;
    wire_send(&two[0], l, &one);
    if (!a->claim) return 1;
    one.kind = JOBQ_ACTION_CLAIM;
    wire_send(&two[1], l, &one);
    return 2;
}

/* -- executed -- */

/* A locked job is skipped, and what is behind it taken: hidden, then shown again. */
static jobq_state wire__lock(const wire *w, jobq_memory *m, jobq_state as)
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
    while (w->count > kept) {
        jobq_job *job = &jobq_memory_get(m, w->u.jobs[--w->count].id)->job;
        job->state = JOBQ_STATE_READY;
        job->attempt--;
        job->worker = job->claim = 0;
    }
}

/* A claim ends before the job with which its payloads would be larger than its bytes. */
static void wire__cut_claim(wire *w, jobq_memory *m)
{
    int64_t bytes = 0;
    int32_t i;

    for (i = 0; i < w->count; i++) {
        bytes += w->u.jobs[i].bytes;
        if (i > 0 && bytes > w->action.bytes) break;
    }
    wire__unclaim(w, m, i);
}

/* A claim that would have to send the stuck job is rolled back. */
static bool wire__stuck_claim(wire *w, jobq_memory *m)
{
    jobq_memory_claim *claim = jobq__memory_claim(m, w->action.worker, w->action.number);
    int32_t i;

    for (i = 0; i < w->count && w->u.jobs[i].id != w->stuck;) i++;
    if (i == w->count) return false;
    wire__unclaim(w, m, 0);
    memset(claim, 0, sizeof *claim);
    w->error = JOBQ_ERROR_DATABASE;
    return true;
}

static void wire__claim(wire *w, jobq_memory *m, int64_t now_us)
{
    const jobq_action *a = &w->action;
    int32_t places[JOBQ_LOOP_SLOTS], i;
    jobq_state state;
    bool alone;

    JOBQ_ASSERT(a->limit <= WIRE_JOBS);
    w->due_us = -1;
    state = wire__lock(w, m, JOBQ_STATE_SUCCEEDED);
    i = a->bytes > 0 ? -1 : jobq__memory_first(m, w->lanes, w->lane_count, w->kinds, a->suspects,
                                               a->alone, now_us);
    if (i >= 0) {
        w->named = jobq_memory_jobs(m)[i].job.id;
        wire__lock(w, m, state);
        return;
    }
    w->error = jobq_memory_claim_jobs(m, a->worker, a->number, a->limit, w->lanes, w->lane_count,
                                      w->kinds, a->suspects, a->alone, now_us, places, &w->count);
    wire__lock(w, m, state);
    for (i = 0; i < w->count; i++) w->u.jobs[i] = jobq_memory_jobs(m)[places[i]].job;
    wire__cut_claim(w, m);
    if (wire__stuck_claim(w, m)) return;
    if (!a->look || w->count > 0) return;
    w->due_us =
        jobq_memory_look(m, w->lanes, w->lane_count, w->kinds, now_us, &w->suspects, &alone);
    w->alone = alone;
}

static void wire__unpark(wire *w, jobq_memory *m, int64_t now_us)
{
    jobq_state state = wire__lock(w, m, JOBQ_STATE_SUCCEEDED);

    w->rescued = jobq_memory_unpark(m, (int32_t)w->action.number, now_us);
    wire__lock(w, m, state);
}

static void wire__recover(wire *w, jobq_memory *m, int64_t now_us)
{
    w->more = jobq_memory_recover(m, w->action.worker, w->action.number, w->action.limit, now_us);
}

static void wire__flush(wire *w, jobq_memory *m, int64_t now_us)
{
    int32_t i;

    for (i = 0; i < w->count; i++) {
        if (w->u.items[i].id == w->refused) w->error = JOBQ_ERROR_DATABASE;
    }
    if (w->error != JOBQ_OK) return;
    for (i = 0; i < w->count; i++) {
        wire_item *it = &w->u.items[i];
        if (it->id == w->busy) {
            const jobq_memory_job *mj = jobq_memory_get(m, it->id);
            it->error = jobq_job_holds(&mj->job, it->worker, it->claim) ? JOBQ_ERROR_BUSY
                                                                        : JOBQ_ERROR_LOST;
            continue;
        }
        it->error = jobq_memory_settle(m, it->id, it->worker, it->claim, &it->decision, now_us);
    }
}

/* News about the other workers. */
static void wire__others(wire *w, const jobq_memory *m, const jobq_memory_worker *me,
                         int64_t now_us)
{
    int32_t i;

    for (i = 0; i < m->worker_max; i++) {
        const jobq_memory_worker *o = &jobq_memory_workers(m)[i];
        if (o->id == 0 || o->id == me->id) continue;
        w->overdue += jobq__memory_overdue(m, o, now_us);
        if (o->dead ? !jobq__memory_left(m, o->id)
                    : o->expires_at_us >= now_us + o->lease_us * 6 / 10) {
            continue;
        }
        if (w->late_count == JOBQ_LOOP_WATCHED) continue;
        w->late[w->late_count].worker = o->id;
        w->late[w->late_count].beat = o->dead ? -1 : o->beat;
        w->late[w->late_count++].lease_us = o->lease_us;
    }
}

static void wire__heartbeat(wire *w, jobq_memory *m, int64_t now_us)
{
    const jobq_memory_worker *me;
    int32_t i;

    w->store_now_us = now_us;
    w->alive = jobq_memory_heartbeat(m, w->action.worker, w->settled, w->settled_count, now_us);
    if (!w->alive) return;
    me = jobq__memory_worker(m, w->action.worker);
    for (i = 0; i < m->job_count; i++) {
        const jobq_job *job = &jobq_memory_jobs(m)[i].job;
        if (job->worker == me->id && job->cancel_requested && w->cancel_count < WIRE_JOBS) {
            w->cancels[w->cancel_count++] = job->id;
        }
        if (job->run_at_us == JOBQ_NEVER && job->state == JOBQ_STATE_READY &&
            (me->kinds >> job->kind & 1) != 0) {
            w->parked = job->kind;
        }
    }
    wire__others(w, m, me, now_us);
    w->policy = m->policy_version;
    w->kinds = jobq__memory_kinds(m, me, now_us, &w->every_kind);
    w->suspects = jobq__memory_suspects(m, me->queues, w->every_kind ? UINT64_MAX : w->kinds,
                                        false, now_us) != 0;
    w->alone = jobq__memory_suspects(m, me->queues, w->every_kind ? UINT64_MAX : w->kinds, true,
                                     now_us);
}

static void wire__remains(wire *w, const jobq_memory *m)
{
    uint64_t queues = 0;
    int32_t i;

    for (i = 0; i < w->count; i++) queues |= (uint64_t)1 << w->queues[i];
    w->more = jobq_memory_remains(m, queues, 0);
}

static void wire__policies(wire *w, const jobq_memory *m)
{
    int32_t i;

    w->stages_max = m->stages_max;
    for (i = 0; i < w->count; i++) {
        w->policies[i] = *jobq__memory_policy(m, w->queues[i]);
        w->paused[i] = (m->paused >> w->queues[i] & 1) != 0;
    }
}

static void wire__look(wire *w, const jobq_memory *m, uint64_t queues, int64_t now_us)
{
    wire_part *p = &w->u.part;
    int64_t id = w->action.number;

    while (w->count < w->action.limit && ++id <= JOBQ_MEMORY_PARTITIONS) {
        jobq_backlog *b = &p->u.backlogs[w->count];
        if (m->partitions[id - 1].queue == 0) continue;
        if (jobq_memory_backlog(m, id, now_us, b) && (queues >> b->queue & 1) != 0) w->count++;
        else memset(b, 0, sizeof *b);
    }
    w->more = id < JOBQ_MEMORY_PARTITIONS;
}

static void wire__execute_part(wire *w, jobq_memory *m, int64_t now_us)
{
    const jobq_action *a = &w->action;
    wire_part *p = &w->u.part;

    if (a->kind == JOBQ_ACTION_READ && w->busy != 0) p->u.reading.busy = true;
    else if (a->kind == JOBQ_ACTION_READ && a->aside) {
        jobq_memory_aside(m, p->partition, &p->token, a->handed, &p->watched, a->acked, now_us,
                          &p->u.reading);
    } else if (a->kind == JOBQ_ACTION_READ) {
        jobq_memory_read(m, p->partition, &p->token, a->handed, &p->watched, a->limit, a->bytes,
                         now_us, &p->u.reading);
    } else if (a->kind == JOBQ_ACTION_ACK) {
        w->error = jobq_memory_ack(m, p->partition, &p->token, p->acked_before, &p->u.plan,
                                   p->outcomes, p->given, a->limit, a->bytes, now_us, &w->count,
                                   &p->cut);
    } else w->error = jobq_memory_renew(m, p->partition, &p->token, now_us);
}

/* The store carries the statement out, in one transaction. */
static inline void wire_execute(wire *w, jobq_memory *m, uint64_t queues, uint64_t kinds,
                                int64_t now_us)
{
    const jobq_action *a = &w->action;

    w->executed = true;
    switch (a->kind) {
    case JOBQ_ACTION_REGISTER:
        w->error = jobq_memory_register(m, a->worker, w->lease_us, queues, kinds, now_us);
        break;
    case JOBQ_ACTION_POLICIES: wire__policies(w, m); break;
    case JOBQ_ACTION_CLAIM: wire__claim(w, m, now_us); break;
    case JOBQ_ACTION_RECOVER: wire__recover(w, m, now_us); break;
    case JOBQ_ACTION_COMPLETE:
    case JOBQ_ACTION_SETTLE: wire__flush(w, m, now_us); break;
    case JOBQ_ACTION_HEARTBEAT: wire__heartbeat(w, m, now_us); break;
    case JOBQ_ACTION_RESCUE:
        w->dead = jobq_memory_rescue(m, a->worker, a->beat, w->portion, now_us, &w->rescued,
                                     &w->more);
        break;
    case JOBQ_ACTION_SLEEP: jobq__memory_sleep(m, a->worker, a->asleep); break;
    case JOBQ_ACTION_UNPARK: wire__unpark(w, m, now_us); break;
    case JOBQ_ACTION_DEREGISTER: jobq_memory_deregister(m, a->worker, now_us); break;
    case JOBQ_ACTION_REMAIN: wire__remains(w, m); break;
    case JOBQ_ACTION_SET_ASIDE:
        w->dead = a->number == w->stuck && jobq_memory_set_aside(m, a->number, now_us);
        break;
    case JOBQ_ACTION_PRUNE: jobq_memory_prune(m, now_us); break;
    case JOBQ_ACTION_LOOK: wire__look(w, m, queues, now_us); break;
    case JOBQ_ACTION_READ:
    case JOBQ_ACTION_ACK:
    case JOBQ_ACTION_RENEW: wire__execute_part(w, m, now_us); break;
    case JOBQ_ACTION_CONNECT:
    case JOBQ_ACTION_VACUUM:
    case JOBQ_ACTION_WAIT:
    case JOBQ_ACTION_DISCONNECT:
    case JOBQ_ACTION_ABANDON:
    case JOBQ_ACTION_EXIT:
    case JOBQ_ACTION_COUNT: break;
    }
}

/* -- answered -- */

static void wire__tell_jobs(const wire *w, jobq_loop *l, int64_t mono_us)
{
    int32_t i;

    for (i = 0; i < w->count && w->error == JOBQ_OK; i++) {
        jobq_loop_job(l, mono_us, &w->u.jobs[i]);
    }
    if (w->error == JOBQ_OK && w->named != 0) jobq_loop_named(l, w->named);
    if (w->alone != 0) jobq_loop_alone(l, mono_us, 0);
    jobq_loop_claimed(l, mono_us, w->error, w->due_us, w->suspects);
}

static void wire__tell_flush(const wire *w, jobq_loop *l, int64_t mono_us)
{
    int32_t i;

    for (i = 0; i < w->count && w->error == JOBQ_OK; i++) {
        const wire_item *it = &w->u.items[i];
        if (it->error == JOBQ_OK) continue;
        jobq_loop_unsettled(l, mono_us, w->action.kind, it->id, it->worker, it->claim, it->error);
    }
    jobq_loop_flushed(l, mono_us, w->action.kind, w->error);
}

static void wire__tell_beat(const wire *w, jobq_loop *l, int64_t mono_us)
{
    int32_t i;

    if (w->error != JOBQ_OK || !w->alive) {
        jobq_loop_beat(l, mono_us, w->error, false, 0, false, 0, w->store_now_us);
        return;
    }
    for (i = 0; i < w->cancel_count; i++) jobq_loop_cancel(l, w->cancels[i]);
    for (i = 0; i < w->late_count; i++) {
        const wire_late *late = &w->late[i];
        jobq_loop_late(l, mono_us, late->worker, late->beat, late->lease_us);
    }
    for (i = 0; i < 64; i++) {
        if ((w->alone >> i & 1) != 0) jobq_loop_alone(l, mono_us, i);
    }
    jobq_loop_overdue(l, w->overdue);
    jobq__memory_tell_kinds(l, w->kinds, w->every_kind);
    jobq_loop_beat(l, mono_us, JOBQ_OK, true, w->policy, w->suspects, w->parked, w->store_now_us);
}

static void wire__tell_register(const wire *w, jobq_loop *l, uint64_t queues, int64_t mono_us)
{
    int32_t ids[JOBQ_LOOP_QUEUES], count = 0, queue;

    for (queue = 1; queue < 64 && count < JOBQ_LOOP_QUEUES; queue++) {
        if ((queues >> queue & 1) != 0) ids[count++] = queue;
    }
    jobq_loop_registered(l, mono_us, w->error, ids, count);
}

static void wire__tell_part(const wire *w, jobq_loop *l, int64_t mono_us)
{
    const wire_part *p = &w->u.part;
    int32_t i;

    switch ((int)w->action.kind) {
    case JOBQ_ACTION_LOOK:
        for (i = 0; i < w->count && w->error == JOBQ_OK; i++) {
            jobq_loop_backlog(l, mono_us, &p->u.backlogs[i]);
        }
        jobq_loop_looked(l, mono_us, w->error, w->more);
        break;
    case JOBQ_ACTION_READ:
        jobq_loop_read(l, mono_us, w->action.slot, w->error, &p->u.reading);
        break;
    case JOBQ_ACTION_ACK:
        jobq_loop_acked(l, mono_us, w->action.slot, w->error, w->count, p->cut);
        break;
    default: jobq_loop_renewed(l, mono_us, w->action.slot, p->generation, w->error);
    }
}

/* The loop is told. error in w: the store refused, and did nothing. */
static inline void wire_answer(const wire *w, jobq_loop *l, uint64_t queues, int64_t mono_us)
{
    const jobq_action *a = &w->action;
    int32_t i;

    switch (a->kind) {
    case JOBQ_ACTION_CONNECT: jobq_loop_connected(l, mono_us); break;
    case JOBQ_ACTION_REGISTER: wire__tell_register(w, l, queues, mono_us); break;
    case JOBQ_ACTION_POLICIES:
        for (i = 0; i < w->count && w->error == JOBQ_OK && i < l->queue_count; i++) {
            jobq_loop_policy(l, i, &w->policies[i], w->stages_max, w->paused[i]);
        }
        jobq_loop_answered(l, mono_us, a->kind, w->error);
        break;
    case JOBQ_ACTION_CLAIM: wire__tell_jobs(w, l, mono_us); break;
    case JOBQ_ACTION_RECOVER:
        jobq_loop_recovered(l, mono_us, w->error, w->action.number, w->more);
        break;
    case JOBQ_ACTION_COMPLETE:
    case JOBQ_ACTION_SETTLE: wire__tell_flush(w, l, mono_us); break;
    case JOBQ_ACTION_HEARTBEAT: wire__tell_beat(w, l, mono_us); break;
    case JOBQ_ACTION_RESCUE:
        jobq_loop_rescued(l, mono_us, w->error, a->worker, w->dead, w->more, w->rescued);
        break;
    case JOBQ_ACTION_UNPARK:
        jobq_loop_unparked(l, mono_us, w->error, w->rescued, false);
        break;
    case JOBQ_ACTION_REMAIN: jobq_loop_remains(l, mono_us, w->error, w->more); break;
    case JOBQ_ACTION_SET_ASIDE: jobq_loop_set_aside(l, mono_us, w->error, w->dead); break;
    case JOBQ_ACTION_SLEEP:
    case JOBQ_ACTION_PRUNE:
    case JOBQ_ACTION_VACUUM:
    case JOBQ_ACTION_DEREGISTER: jobq_loop_answered(l, mono_us, a->kind, w->error); break;
    case JOBQ_ACTION_LOOK:
    case JOBQ_ACTION_READ:
    case JOBQ_ACTION_ACK:
    case JOBQ_ACTION_RENEW: wire__tell_part(w, l, mono_us); break;
    case JOBQ_ACTION_WAIT:
    case JOBQ_ACTION_DISCONNECT:
    case JOBQ_ACTION_ABANDON:
    case JOBQ_ACTION_EXIT:
    case JOBQ_ACTION_COUNT: break;
    }
}

/* -- words for stories -- */

static inline const char *wire_name(jobq_action_kind kind)
{
    static const char *const names[] = {"wait",     "connect",  "disconnect", "register",
                                        "policies", "claim",    "recover",    "complete",
                                        "settle",   "heartbeat", "rescue",    "sleep",
                                        "unpark",   "prune",    "vacuum",     "deregister",
                                        "remain",   "set aside",
                                        "look",     "read",     "ack",        "renew",
                                        "abandon",  "exit"};

    return kind < (int)(sizeof names / sizeof names[0]) ? names[kind] : "?";
}

#endif /* WIRE_INCLUDED */
