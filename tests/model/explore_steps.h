/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * explore_steps.h -- the statements of the SQL functions, one step function each: step_claim_mark
 * is the statement of jobq.claim that marks the jobs. Read it beside sql/. A part of explore.c.
 *
 * A step does what its statement does, and names the step that comes next. Between any two steps
 * other transactions may run and commit; only rows that a transaction has locked do not change.
 * What a function computes without a table has no step. Two statements of one function share a step
 * if nothing that others do can come between them, because both touch only rows that the
 * transaction has locked. Some things are left out, because the worlds do not have them:
 * idempotency keys, quotas, what workers count, queues that are deleted or keep no history, history
 * itself, results and who waits for them, progress, old failed jobs, old dead letters. NOTIFY is
 * not a step but a move. jobq._tick is done at once: see explore_known.h. So is jobq._promote, with
 * the commit, but not in the worlds of explore_graphs.h.
 *
 * The steps of a function that another function calls are named after the caller:
 * step_settle_mark is the statement of jobq.park.
 *
 * The table counts what is in sql/ (statements, clauses that lock rows, SKIP LOCKED, ON CONFLICT)
 * and the steps here. `make verify` compares them (tests/tools/steps.awk). If it sent you here,
 * first add the step of the new statement (or make sure that it needs none), then correct the
 * table.
 *
 *   function      statements  locks  skip  conflict  steps
 *   claim             4         2     1       0        7
 *   claim_suspect     2         1     1       0        0
 *   claim_look        4         0     0       0        0
 *   refuse_dead       1         0     0       0        0
 *   rows_within       1         0     0       0        0
 *   recover           7         1     1       1        6
 *   set_aside         5         1     1       0        2
 *   finish            5         0     0       2        0
 *   end_keys          1         0     0       0        0
 *   kept              3         0     0       0        0
 *   succeeded         2         0     0       0        0
 *   complete_unkept   1         1     1       0        0
 *   complete          7         1     1       0        2
 *   settle           10         2     1       0        6
 *   settle_end        3         0     0       0        0
 *   busy_or_lost      1         0     0       0        0
 *   lock_kinds        1         1     1       0        0
 *   park              1         0     0       0        0
 *   settle_here       1         0     0       0        0
 *   register          3         0     0       0        1
 *   heartbeat_kinds   4         0     0       0        0
 *   heartbeat_suspects 2        0     0       0        0
 *   heartbeat        12         1     1       0       10
 *   strays            1         0     0       0        0
 *   deregister        9         1     0       0        5
 *   sleep             3         1     0       1        3
 *   rescue           11         2     2       0        9
 *   rescue_singly     5         1     1       0        0
 *   kind_lives        1         0     0       0        0
 *   unpark            4         2     2       0        4
 *   mend              3         0     0       2        2
 *   prune            16         4     4       0        2
 *   cancel_one        6         2     0       0        4
 *   request           3         0     0       0        0
 */
#define STEPS(X)                                                                                   \
    X(claim_lock)                                                                                  \
    X(claim_lines_lane)                                                                            \
    X(claim_fresh_end)                                                                             \
    X(claim_lanes_lock)                                                                            \
    X(line_up_move)                                                                                \
    X(line_fronts_count)                                                                           \
    X(line_fronts_find)                                                                            \
    X(line_rooms_guess)                                                                            \
    X(lines_ready_look)                                                                            \
    X(lock_lines_lock)                                                                             \
    X(line_rooms_count)                                                                            \
    X(strict_job_choose)                                                                           \
    X(take_lines_lock)                                                                             \
    X(claim_mark)                                                                                  \
    X(claim_alive)                                                                                 \
    X(claim_suspects)                                                                              \
    X(claim_alone)                                                                                 \
    X(claim_due)                                                                                   \
    X(recover_burn)                                                                                \
    X(recover_read)                                                                                \
    X(recover_hold)                                                                                \
    X(recover_back)                                                                                \
    X(recover_rest)                                                                                \
    X(recover_empty)                                                                               \
    X(set_aside_lock)                                                                              \
    X(set_aside_end)                                                                               \
    X(complete_move)                                                                               \
    X(complete_rest)                                                                               \
    X(settle_kinds)                                                                                \
    X(settle_lock)                                                                                 \
    X(settle_rest)                                                                                 \
    X(settle_mark)                                                                                 \
    X(settle_lives)                                                                                \
    X(settle_write)                                                                                \
    X(register_insert)                                                                             \
    X(heartbeat_renew)                                                                             \
    X(heartbeat_claims)                                                                            \
    X(heartbeat_cancel)                                                                            \
    X(heartbeat_policy)                                                                            \
    X(heartbeat_kinds)                                                                             \
    X(heartbeat_every)                                                                             \
    X(heartbeat_strays)                                                                            \
    X(heartbeat_suspects)                                                                          \
    X(heartbeat_alone)                                                                             \
    X(heartbeat_late)                                                                              \
    X(deregister_lock)                                                                             \
    X(deregister_sleeper)                                                                          \
    X(deregister_claims)                                                                           \
    X(deregister_worker)                                                                           \
    X(deregister_dead)                                                                             \
    X(sleep_check)                                                                                 \
    X(sleep_insert)                                                                                \
    X(sleep_delete)                                                                                \
    X(rescue_mark)                                                                                 \
    X(rescue_check)                                                                                \
    X(rescue_sleeper)                                                                              \
    X(rescue_claims)                                                                               \
    X(rescue_suspects)                                                                             \
    X(rescue_suspect)                                                                              \
    X(rescue_back)                                                                                 \
    X(rescue_forget)                                                                               \
    X(rescue_more)                                                                                 \
    X(unpark_kind)                                                                                 \
    X(unpark_find)                                                                                 \
    X(unpark_jobs)                                                                                 \
    X(unpark_mark)                                                                                 \
    X(mend_claims)                                                                                 \
    X(mend_workers)                                                                                \
    X(prune_workers)                                                                               \
    X(prune_claims)                                                                                \
    X(cancel_one_lock)                                                                             \
    X(cancel_one_end)                                                                              \
    X(cancel_one_claim)                                                                            \
    X(cancel_one_request)                                                                          \
    X(edges_end_mark)                                                                              \
    X(edges_end_forget)                                                                            \
    X(ended_edges)                                                                                 \
    X(ended_waits)                                                                                 \
    X(promote_take)                                                                                \
    X(look_jobs_lock)                                                                              \
    X(look_jobs_skipped)                                                                           \
    X(look_jobs_forget)                                                                            \
    X(look_jobs_decide)                                                                            \
    X(look_jobs_cancel)                                                                            \
    X(make_ready_write)                                                                            \
    X(promote_delete)                                                                              \
    X(claim_decided)                                                                               \
    X(revive_lock)                                                                                 \
    X(revive_all_move)                                                                             \
    X(edges_revive_hold)                                                                           \
    X(wait_here_enqueue)                                                                           \
    X(wait_here_link)                                                                              \
    X(signal_insert)                                                                               \
    X(signal_nudge)                                                                                \
    X(lock_claimed_row)                                                                            \
    X(signal_of_claim_look)                                                                        \
    X(signal_of_claim_wait)                                                                        \
    X(signal_look_nudge)                                                                           \
    X(look_signals_find)                                                                           \
    X(look_signals_lock)

typedef enum step {
    STEP_NONE,
#define X(name) STEP_##name,
    STEPS(X)
#undef X
    STEP_COMMIT,
    STEP_WAIT, /* for a lock: the statement is executed again */
    STEP_RAISE /* an error, in s->answer.error: the transaction is rolled back */
} step;

static const jobq_ending *item(const txn *t) { return &t->s->request.endings[t->b->at]; }

#include "explore_flows.h"

#include "explore_expiry.h"

/* ---- claim ----------------------------------------------------------------------------------- */

/* Whether a row, locked and read again, is still one that the claim wants. */
static bool claimable(const txn *t, int i)
{
    const jobq_request *r = &t->s->request;
    int n;

    for (n = 0; n < r->lane_count; n++) {
        if (jobq__memory_eligible(&jobq__memory_jobs(t->last)[i].job, &r->lanes[n], wire_kinds(r),
                                  r->suspects, r->alone, t->b->now_us)) {
            return true;
        }
    }
    return false;
}

/* A row that fails when it is read again stays locked: for a moment others find it busy. */
static step step_claim_lock(txn *t)
{
    const jobq_request *r = &t->s->request;
    int limit = r->suspects ? 1 : r->limit, i;

    t->b->count = 0;
    while (t->b->count < limit) {
        i = jobq__memory_first(t->seen, r, 0, r->lane_count, wire_kinds(r), t->b->now_us);
        if (i < 0) break;
        jobq__memory_jobs(t->seen)[i].job.state = JOBQ_STATE_SUCCEEDED; /* looked at */
        if (t->s->busy == i + 1 || !lock(t, JOB_ROW + i, UPDATE)) continue;
        if (claimable(t, i)) t->b->jobs[t->b->count++] = (uint8_t)i;
    }
    for (i = 0; i < t->b->count; i++) note_late(t, t->b->jobs[i]);
    if (t->b->walk.late != 0) { /* it goes apart, and its lanes are read again */
        t->b->count = 0;
        return r->suspects ? STEP_claim_fresh_end : STEP_claim_lines_lane;
    }
    if (t->b->count == 0) return STEP_claim_alive;
    if (r->bytes > 0) return STEP_claim_mark;
    t->s->answer.claimed.named = jobq__memory_jobs(t->last)[t->b->jobs[0]].job.id;
    return STEP_COMMIT;
}

#include "explore_lines.h"

/* SELECT FROM worker .. FOR KEY SHARE. Postgres does not look again at a row that another
 * transaction has updated, but not its key, unless it had to wait: so a rescuer may have marked the
 * worker dead since our snapshot. */
static lock_end lock_claimer(txn *t)
{
    int place = worker_place(t->seen, t->s->request.worker);

    if (place < 0 || jobq__memory_workers(t->seen)[place].dead) return LOCK_GONE;
    if (!lock(t, WORKER_ROW + place, KEY_SHARE)) return LOCK_WAITS;
    if (worker_again(t, place, t->s->request.worker) == NULL) return LOCK_GONE;
    return t->b->waited && jobq__memory_workers(t->last)[place].dead ? LOCK_GONE : LOCK_HELD;
}

/* A job that the server cannot send: an error, with whatever is claimed beside it. */
static bool sends_stuck(const txn *t)
{
    int i;

    for (i = 0; i < t->b->count && t->b->jobs[i] + 1 != t->s->stuck;) i++;
    return i < t->b->count;
}

static step step_claim_mark(txn *t)
{
    jobq_claimed *claimed = &t->s->answer.claimed;
    lock_end worker = lock_claimer(t);
    insert_end end;
    jobq_event event;
    int i;

    if (worker != LOCK_HELD) return worker == LOCK_WAITS ? STEP_WAIT : STEP_claim_alive;
    end = insert_claim(t, t->s->request.worker, t->s->request.claim, 0);
    if (end == WAITS) return STEP_WAIT;
    t->s->answer.error = end == KNOWN ? JOBQ_ERROR_EXISTS : JOBQ_OK;
    if (end != KNOWN && sends_stuck(t)) t->s->answer.error = JOBQ_ERROR_DATABASE;
    if (t->s->answer.error != JOBQ_OK) return STEP_RAISE;
    memset(&event, 0, sizeof event);
    event.kind = JOBQ_EVENT_CLAIM;
    event.worker = t->s->request.worker;
    event.claim = t->s->request.claim;
    for (i = 0; i < t->b->count; i++) {
        jobq_memory_job *mj = write_job(t, t->b->jobs[i]);
        jobq__memory_happens((jobq_memory *)(uintptr_t)t->last, mj, &event, t->b->now_us);
        if (mj->job.line != 0 && t->b->walk.walks) {
            mj->holds = (t->b->walk.limited >> t->b->jobs[i] & 1) != 0;
        }
        claimed->jobs[claimed->count] = mj->job;
        if (mj->expires_at_us != 0) {
            claimed->jobs[claimed->count].expires_us = mj->expires_at_us - t->b->now_us;
        }
        claimed->count++;
    }
    return STEP_COMMIT;
}

static step step_claim_alive(txn *t)
{
    int place = worker_place(t->seen, t->s->request.worker);

    t->s->answer.error = JOBQ_ERROR_DEAD;
    if (t->b->count > 0 || place < 0) return STEP_RAISE;
    if (jobq__memory_workers(t->seen)[place].dead) return STEP_RAISE;
    t->s->answer.error = JOBQ_OK;
    return t->s->request.look && t->s->answer.claimed.ended_count == 0 ? STEP_claim_suspects
                                                                       : STEP_COMMIT;
}

static int64_t look(const txn *t, bool *suspects, bool *alone)
{
    const jobq_request *r = &t->s->request;

    return jobq__memory_look(t->seen, r, wire_kinds(r), t->b->now_us, suspects, alone);
}

static step step_claim_suspects(txn *t)
{
    bool alone;

    look(t, &t->s->answer.claimed.suspects, &alone);
    return STEP_claim_alone;
}

static step step_claim_alone(txn *t)
{
    bool suspects;

    look(t, &suspects, &t->s->answer.claimed.alone);
    return STEP_claim_due;
}

static step step_claim_due(txn *t)
{
    bool suspects, alone;

    t->s->answer.claimed.due_us = look(t, &suspects, &alone);
    return claim_promoted(t);
}

static step step_recover_burn(txn *t)
{
    switch (insert_claim(t, t->s->request.worker, t->s->request.claim, t->b->now_us)) {
    case INSERTED: return STEP_COMMIT;
    case WAITS: return STEP_WAIT;
    case KNOWN: break;
    }
    return STEP_recover_read;
}

/* The row of the claim: here its jobs are those that bear its token. */
static step step_recover_read(txn *t)
{
    const jobq_memory_claim *c =
        jobq__memory_claim_of(t->seen, t->s->request.worker, t->s->request.claim);

    t->b->count = 0;
    return c == NULL || c->burned_at_us != 0 ? STEP_recover_rest : STEP_recover_hold;
}

static step step_recover_hold(txn *t)
{
    int64_t worker = t->s->request.worker, number = t->s->request.claim;
    int i;

    for (i = 0; i < t->seen->job_count && t->b->count < t->s->request.limit; i++) {
        if (!job_holds(t->seen, i, worker, number) || !lock(t, JOB_ROW + i, UPDATE)) continue;
        if (job_holds(t->last, i, worker, number)) t->b->jobs[t->b->count++] = (uint8_t)i;
    }
    return STEP_recover_back;
}

/* The rows are ours: what finish and UPDATE do to them is one step. */
static step step_recover_back(txn *t)
{
    uint8_t cancelled = 0;
    int n;

    for (n = 0; n < t->b->count; n++) {
        jobq_memory_job *mj = write_job(t, t->b->jobs[n]);
        jobq__memory_plain((jobq_memory *)(uintptr_t)t->last, mj, JOBQ_EVENT_RELEASE,
                           t->b->now_us);
        if (jobq_state_final(mj->job.state)) cancelled |= bit(t->b->jobs[n]);
    }
    return end_jobs(t, cancelled, JOBQ_STATE_CANCELLED, STEP_recover_rest);
}

static step step_recover_rest(txn *t)
{
    int i;

    for (i = 0; i < t->seen->job_count && !t->s->answer.more; i++) {
        t->s->answer.more = job_holds(t->seen, i, t->s->request.worker, t->s->request.claim);
    }
    return t->s->answer.more ? STEP_COMMIT : STEP_recover_empty;
}

static step step_recover_empty(txn *t)
{
    const jobq_memory_claim *c =
        jobq__memory_claim_of(t->seen, t->s->request.worker, t->s->request.claim);
    int i = c == NULL ? -1 : (int)(c - jobq__memory_claims(t->seen));

    if (i < 0) return STEP_COMMIT;
    if (!lock(t, CLAIM_ROW + i, NO_KEY_UPDATE)) return STEP_WAIT;
    c = &jobq__memory_claims(t->last)[i];
    if (c->worker != t->s->request.worker || c->number != t->s->request.claim) return STEP_COMMIT;
    write_claim(t, i)->burned_at_us = t->b->now_us;
    return STEP_COMMIT;
}

static step step_set_aside_lock(txn *t)
{
    int i = (int)t->s->request.id - 1;

    t->s->answer.done = false;
    if (jobq__memory_jobs(t->seen)[i].job.state != JOBQ_STATE_READY) return STEP_COMMIT;
    if (!lock(t, JOB_ROW + i, UPDATE)) return STEP_COMMIT;
    return jobq__memory_jobs(t->last)[i].job.state == JOBQ_STATE_READY ? STEP_set_aside_end
                                                                      : STEP_COMMIT;
}

/* The row is ours: the claim that it tries and takes back, and its end, are one step. */
static step step_set_aside_end(txn *t)
{
    int64_t id = t->s->request.id;
    jobq_memory_job *mj;
    jobq_decision d;

    t->s->answer.done = id == t->s->stuck;
    if (!t->s->answer.done) return STEP_COMMIT;
    mj = write_job(t, (int)id - 1);
    d = jobq__end(&mj->job, JOBQ_STATE_FAILED);
    jobq__memory_apply(mj, &d, t->b->now_us);
    return end_job(t, &mj->job, STEP_COMMIT);
}

/* ---- the end of a job ------------------------------------------------------------------------ */

/* SELECT .. FOR UPDATE SKIP LOCKED of an item's job, by its token. */
static bool lock_item(txn *t, const jobq_ending *it)
{
    int i = (int)it->job - 1;

    if (!job_holds(t->seen, i, it->worker, it->claim)) return false;
    if (t->s->busy == it->job || !lock(t, JOB_ROW + i, UPDATE)) return false;
    return job_holds(t->last, i, it->worker, it->claim);
}

/* The items of one claim follow each other. */
static int group_end(const txn *t)
{
    const jobq_ending *items = t->s->request.endings;
    int i = t->b->at;

    while (i < t->s->request.ending_count && items[i].worker == items[t->b->at].worker &&
           items[i].claim == items[t->b->at].claim) {
        i++;
    }
    return i;
}

static step next_group(txn *t)
{
    t->b->at = (uint8_t)group_end(t);
    t->b->done = 0;
    if (t->b->at < t->s->request.ending_count) return STEP_complete_move;
    if (t->b->flow.ended == 0) return STEP_COMMIT;
    return end_jobs(t, t->b->flow.ended, JOBQ_STATE_SUCCEEDED, promote(t, STEP_COMMIT));
}

static step step_complete_move(txn *t)
{
    bool all = true;
    int n;

    for (n = t->b->at; n < group_end(t); n++) {
        const jobq_ending *it = &t->s->request.endings[n];
        if (lock_item(t, it)) {
            jobq__memory_apply(write_job(t, (int)it->job - 1), &it->decision, t->b->now_us);
            t->s->errors[n] = JOBQ_OK;
            t->b->done |= (uint8_t)(1 << n);
            t->b->flow.ended |= bit((int)it->job - 1);
        } else all = false;
    }
    return all ? next_group(t) : STEP_complete_rest;
}

static jobq_error why_not(const txn *t, const jobq_ending *it)
{
    return job_holds(t->seen, (int)it->job - 1, it->worker, it->claim) ? JOBQ_ERROR_BUSY
                                                                       : JOBQ_ERROR_LOST;
}

static step step_complete_rest(txn *t)
{
    int n;

    for (n = t->b->at; n < group_end(t); n++) {
        if ((t->b->done >> n & 1) != 0) continue;
        t->s->errors[n] = why_not(t, &t->s->request.endings[n]);
    }
    return next_group(t);
}

static step next_item(txn *t)
{
    if (++t->b->at < t->s->request.ending_count) return STEP_settle_lock;
    return t->b->flow.linked ? promote_as(t, is_spawn(t->s), STEP_COMMIT) : STEP_COMMIT;
}

/* Only if a job is parked. Kinds that somebody has locked are left out. */
static step step_settle_kinds(txn *t)
{
    uint32_t kinds = 0;
    int n;

    for (n = 0; n < t->s->request.ending_count; n++) {
        const jobq_ending *it = &t->s->request.endings[n];
        const jobq_job *job = &jobq__memory_jobs(t->seen)[it->job - 1].job;
        if (it->decision.delay_us == JOBQ_NEVER && !jobq_state_final(job->state)) {
            kinds |= (uint32_t)1 << job->kind;
        }
    }
    t->b->free = 0;
    for (n = 0; n < KINDS; n++) {
        if ((kinds >> n & 1) != 0 && lock(t, KIND_ROW + n, NO_KEY_UPDATE))
            t->b->free |= (uint32_t)1 << n;
    }
    return STEP_settle_lock;
}

/* With p_wait. An error if the lease is lost. */
static step settle_here_lock(txn *t)
{
    const jobq_ending *it = item(t);
    int i = (int)it->job - 1;

    t->s->errors[t->b->at] = JOBQ_ERROR_LOST;
    if (!job_holds(t->seen, i, it->worker, it->claim)) return STEP_RAISE;
    if (!lock(t, JOB_ROW + i, UPDATE)) return STEP_WAIT;
    return job_holds(t->last, i, it->worker, it->claim) ? STEP_settle_write : STEP_RAISE;
}

static step step_settle_lock(txn *t)
{
    const jobq_decision *d = &item(t)->decision;

    if (is_spawn(t->s)) return settle_here_lock(t);
    if (!lock_item(t, item(t))) return STEP_settle_rest;
    if (d->state != JOBQ_STATE_READY || d->delay_us != JOBQ_NEVER) return STEP_settle_write;
    if ((t->b->free >> jobq__memory_jobs(t->last)[item(t)->job - 1].job.kind & 1) == 0)
        return STEP_settle_rest;
    if (jobq__memory_jobs(t->last)[item(t)->job - 1].job.cancel_requested) return STEP_settle_write;
    return STEP_settle_mark;
}

static step step_settle_rest(txn *t)
{
    t->s->errors[t->b->at] = why_not(t, item(t));
    return next_item(t);
}

static step step_settle_mark(txn *t)
{
    int kind = jobq__memory_jobs(t->last)[item(t)->job - 1].job.kind;

    if (!lock(t, KIND_ROW + kind, NO_KEY_UPDATE)) return STEP_WAIT;
    write_mark(t, KIND_ROW + kind, true);
    return STEP_settle_lives;
}

static step step_settle_lives(txn *t)
{
    int kind = jobq__memory_jobs(t->last)[item(t)->job - 1].job.kind;

    t->b->lives = jobq__memory_lives(t->seen, kind, t->b->now_us);
    return STEP_settle_write;
}

/* The job's row is ours: what finish and UPDATE do to it is one step. */
static step step_settle_write(txn *t)
{
    jobq_memory_job *mj = write_job(t, (int)item(t)->job - 1);
    jobq_decision d = item(t)->decision;
    bool back = d.state == JOBQ_STATE_READY || d.state == JOBQ_STATE_WAITING;

    if (d.delay_us == JOBQ_NEVER && t->b->lives) d.delay_us = 0;
    if (back && mj->job.cancel_requested) {
        d = jobq__end(&mj->job, JOBQ_STATE_CANCELLED);
    }
    if (mj->expires_at_us != 0 && d.delay_us != JOBQ_NEVER) {
        d.delay_us = jobq__max(jobq__min(d.delay_us, mj->expires_at_us - t->b->now_us), 0);
    }
    jobq__memory_apply(mj, &d, t->b->now_us);
    if (item(t)->decision.delay_us == JOBQ_NEVER) mj->job.line = 0;
    t->s->errors[t->b->at] = JOBQ_OK;
    t->b->flow.linked |= is_linked(t, mj->job.id);
    if (jobq_state_final(mj->job.state)) return end_job(t, &mj->job, next_item(t));
    return put_back(t, (int)mj->job.id - 1, next_item(t));
}

/* ---- workers --------------------------------------------------------------------------------- */

static void list_bits(uint64_t bits, int32_t *ids, int32_t most, int32_t *count)
{
    int32_t i;

    for (*count = 0, i = 1; i < 64 && *count < most; i++) {
        if ((bits >> i & 1) != 0) ids[(*count)++] = i;
    }
}

static step step_register_insert(txn *t)
{
    bool known = worker_place(t->last, t->s->request.worker) >= 0;
    jobq_memory_worker *row;

    t->s->answer.error = known ? JOBQ_ERROR_EXISTS : JOBQ_OK;
    if (known) return STEP_RAISE;
    row = write_worker(t, insert_worker(t, t->s->request.worker));
    row->lease_us = t->s->request.lease_us;
    row->expires_at_us = t->b->now_us + row->lease_us;
    row->queues = QUEUE_BITS;
    row->kinds = kinds_of(t->b->node);
    t->s->answer.queues[t->s->answer.count++] = 1;
    list_bits(row->kinds, t->s->answer.kinds, JOBQ_LOOP_KINDS, &t->s->answer.kind_count);
    return STEP_COMMIT;
}

static step step_heartbeat_renew(txn *t)
{
    int place = worker_place(t->seen, t->s->request.worker);
    jobq_memory_worker *row;

    t->s->answer.news.store_now_us = t->b->now_us;
    t->s->answer.news.alive = false;
    if (place < 0 || jobq__memory_workers(t->seen)[place].dead) return STEP_COMMIT;
    if (!lock(t, WORKER_ROW + place, NO_KEY_UPDATE)) return STEP_WAIT;
    t->s->answer.news.alive = worker_again(t, place, t->s->request.worker) != NULL &&
                              !jobq__memory_workers(t->last)[place].dead;
    if (!t->s->answer.news.alive) return STEP_COMMIT;
    row = write_worker(t, place);
    row->beat++;
    row->expires_at_us = store_us(t->w) + row->lease_us; /* clock_timestamp() */
    t->b->tick = t->w->tick;
    return STEP_heartbeat_claims;
}

static step step_heartbeat_claims(txn *t)
{
    int i, n;

    for (i = 0; i < CLAIM_ROWS; i++) {
        const jobq_memory_claim *c = &jobq__memory_claims(t->seen)[i];
        for (n = 0; n < t->s->request.settled_count && c->number != t->s->request.settled[n];) n++;
        if (c->worker != t->s->request.worker || n == t->s->request.settled_count) continue;
        if (!lock(t, CLAIM_ROW + i, UPDATE)) continue;
        if (jobq__memory_claims(t->last)[i].worker != c->worker) continue;
        memset(write_claim(t, i), 0, sizeof *c);
    }
    return STEP_heartbeat_cancel;
}

/* The row of the job's claim brings the request: without it nobody is told. */
static step step_heartbeat_cancel(txn *t)
{
    jobq_news *news = &t->s->answer.news;
    int i;

    for (i = 0; i < t->seen->job_count; i++) {
        const jobq_job *job = &jobq__memory_jobs(t->seen)[i].job;
        if (job->worker != t->s->request.worker || !job->cancel_requested) continue;
        if (jobq__memory_claim_of(t->seen, job->worker, job->claim) == NULL) continue;
        news->cancels[news->cancel_count++] = job->id;
    }
    return STEP_heartbeat_policy;
}

static step step_heartbeat_policy(txn *t)
{
    t->s->answer.news.policy = t->seen->policy_version;
    return STEP_heartbeat_kinds;
}

static const jobq_memory_worker *me(const txn *t)
{
    return jobq__memory_worker_of(t->seen, t->s->request.worker);
}

/* Bits as a list of ids, as far as there is room. */
static void list_kinds(jobq_news *news, uint64_t kinds)
{
    list_bits(kinds, news->kinds, JOBQ_LOOP_KINDS + JOBQ_STRAYS_MAX, &news->kind_count);
}

/* Of its own kinds: those that are not paused, and one that is marked. */
static step step_heartbeat_kinds(txn *t)
{
    int kind;

    list_kinds(&t->s->answer.news, me(t)->kinds & ~t->seen->paused_kinds);
    for (kind = 0; kind < KINDS; kind++) {
        if ((t->parked & me(t)->kinds) >> kind & 1) t->s->answer.news.parked_kind = kind;
    }
    return STEP_heartbeat_every;
}

/* As the in-memory queue, which has no table of kinds, sees it: a kind that nobody living has is
 * left out of the question. */
static step step_heartbeat_every(txn *t)
{
    bool *every = &t->s->answer.news.every_kind;

    jobq__memory_kinds(t->seen, me(t), t->b->now_us, every);
    return *every ? STEP_heartbeat_suspects : STEP_heartbeat_strays;
}

static step step_heartbeat_strays(txn *t)
{
    jobq_news *news = &t->s->answer.news;
    uint64_t own = jobq__memory_bits(news->kinds, news->kind_count), kinds;
    bool every;

    kinds = jobq__memory_kinds(t->seen, me(t), t->b->now_us, &every);
    list_kinds(news, own | ((every ? UINT64_MAX : kinds) & ~me(t)->kinds));
    return STEP_heartbeat_suspects;
}

static uint64_t suspects(const txn *t, bool alone)
{
    const jobq_news *news = &t->s->answer.news;
    uint64_t kinds = jobq__memory_bits(news->kinds, news->kind_count);

    return jobq__memory_suspects(t->seen, me(t)->queues, news->every_kind ? UINT64_MAX : kinds,
                                 alone, t->b->now_us);
}

static step step_heartbeat_suspects(txn *t)
{
    t->s->answer.news.tick_us = model_next_tick(t->seen, me(t)->queues, t->b->now_us);
    t->s->answer.news.suspects = suspects(t, false) != 0;
    return STEP_heartbeat_alone;
}

static step step_heartbeat_alone(txn *t)
{
    jobq_news *news = &t->s->answer.news;

    list_bits(suspects(t, true), news->alone, JOBQ_LOOP_QUEUES, &news->alone_count);
    return promote(t, STEP_heartbeat_late);
}

static step step_heartbeat_late(txn *t)
{
    jobq__memory_others(t->seen, me(t), store_us(t->w), &t->s->answer.news);
    return STEP_COMMIT;
}

/* DELETE FROM sleeper of one worker. */
static bool delete_sleeper(txn *t, int64_t worker)
{
    int place = worker_place(t->seen, worker);

    if (place < 0 || !jobq__memory_workers(t->seen)[place].asleep) return true;
    if (!lock(t, SLEEPER_ROW + place, UPDATE)) return false;
    write_mark(t, SLEEPER_ROW + place, false);
    return true;
}

static step step_deregister_lock(txn *t)
{
    int place = worker_place(t->seen, t->s->request.worker);

    return place < 0 || lock(t, WORKER_ROW + place, UPDATE) ? STEP_deregister_sleeper : STEP_WAIT;
}

static step step_deregister_sleeper(txn *t)
{
    return delete_sleeper(t, t->s->request.worker) ? STEP_deregister_claims : STEP_WAIT;
}

static step step_deregister_claims(txn *t)
{
    int i;

    for (i = 0; i < CLAIM_ROWS; i++) {
        const jobq_memory_claim *c = &jobq__memory_claims(t->seen)[i];
        if (c->worker != t->s->request.worker || c->burned_at_us != 0) continue;
        if (claim_held(t->seen, c)) continue;
        if (!lock(t, CLAIM_ROW + i, UPDATE)) return STEP_WAIT;
        memset(write_claim(t, i), 0, sizeof *c);
    }
    return STEP_deregister_worker;
}

static step step_deregister_worker(txn *t)
{
    int place = worker_place(t->seen, t->s->request.worker), i;

    for (i = 0; i < CLAIM_ROWS; i++) {
        if (jobq__memory_claims(t->seen)[i].worker == t->s->request.worker) {
            return STEP_deregister_dead;
        }
    }
    if (place < 0) return STEP_deregister_dead;
    if (!lock(t, WORKER_ROW + place, UPDATE)) return STEP_WAIT;
    memset(write_worker(t, place), 0, sizeof(jobq_memory_worker));
    return STEP_deregister_dead;
}

static void mark_dead(txn *t, int place)
{
    jobq_memory_worker *row = write_worker(t, place);

    row->dead = true;
    row->dead_at_us = t->b->now_us;
}

static step step_deregister_dead(txn *t)
{
    int place = worker_place(t->seen, t->s->request.worker);

    if (place < 0 || jobq__memory_workers(t->seen)[place].dead) return STEP_COMMIT;
    if (!lock(t, WORKER_ROW + place, NO_KEY_UPDATE)) return STEP_WAIT;
    mark_dead(t, place);
    return STEP_COMMIT;
}

static step step_sleep_check(txn *t)
{
    int64_t id = t->s->request.worker;
    int place = worker_place(t->seen, id);

    if (place < 0 || jobq__memory_workers(t->seen)[place].dead) return STEP_COMMIT;
    if (!lock(t, WORKER_ROW + place, SHARE)) return STEP_WAIT;
    if (worker_again(t, place, id) == NULL) return STEP_COMMIT;
    return jobq__memory_workers(t->last)[place].dead ? STEP_COMMIT : STEP_sleep_insert;
}

static step step_sleep_insert(txn *t)
{
    int place = worker_place(t->seen, t->s->request.worker);

    if (!lock(t, SLEEPER_ROW + place, UPDATE)) return STEP_WAIT;
    write_mark(t, SLEEPER_ROW + place, true);
    return STEP_COMMIT;
}

static step step_sleep_delete(txn *t)
{
    return delete_sleeper(t, t->s->request.worker) ? STEP_COMMIT : STEP_WAIT;
}

/* ---- rescue ---------------------------------------------------------------------------------- */

static bool expired(const txn *t, const jobq_memory_worker *row)
{
    return row != NULL && !row->dead && row->beat == t->s->request.beat &&
           jobq__memory_lapsed(row, store_us(t->w)); /* clock_timestamp() */
}

static step step_rescue_mark(txn *t)
{
    int64_t victim = t->s->request.worker;
    int place = worker_place(t->seen, victim);

    if (place < 0 || !expired(t, &jobq__memory_workers(t->seen)[place])) return STEP_rescue_check;
    if (!lock(t, WORKER_ROW + place, NO_KEY_UPDATE)) return STEP_WAIT;
    if (expired(t, worker_again(t, place, victim))) mark_dead(t, place);
    return STEP_rescue_check;
}

static step step_rescue_check(txn *t)
{
    const jobq_memory_worker *row = jobq__memory_worker_of(t->seen, t->s->request.worker);
    jobq_answer *a = &t->s->answer;

    a->count = 0;
    a->more = false;
    a->done = t->s->request.worker == 0 || row == NULL || row->dead;
    return a->done && t->s->request.worker != 0 ? STEP_rescue_sleeper : STEP_COMMIT;
}

static step step_rescue_sleeper(txn *t)
{
    return delete_sleeper(t, t->s->request.worker) ? STEP_rescue_claims : STEP_WAIT;
}

/* The cursor of the loop has locked and read its rows before the first of them is looked at. */
static step step_rescue_claims(txn *t)
{
    int limit = (int)jobq__min(t->s->portion, t->s->request.limit), i;
    jobq_memory_claim *c;

    t->b->claim_count = t->b->at = 0;
    while ((c = jobq__memory_oldest(t->seen, t->s->request.worker)) != NULL &&
           t->b->claim_count < limit) {
        i = (int)(c - jobq__memory_claims(t->seen));
        memset(c, 0, sizeof *c); /* looked at */
        if (!lock(t, CLAIM_ROW + i, UPDATE)) continue;
        if (jobq__memory_claims(t->last)[i].worker != t->s->request.worker) continue;
        t->b->claims[t->b->claim_count++] = (uint8_t)i;
    }
    return t->b->claim_count > 0 ? STEP_rescue_suspects : STEP_rescue_more;
}

static const jobq_memory_claim *rescued_claim(const txn *t)
{
    return &jobq__memory_claims(t->last)[t->b->claims[t->b->at]];
}

/* Jobs that ran alone or are to be cancelled, or the others. */
static bool rescue_wants(const jobq_memory *m, int i, const jobq_memory_claim *c, bool special)
{
    const jobq_job *job = &jobq__memory_jobs(m)[i].job;

    return jobq_job_holds(job, c->worker, c->number) &&
           (job->alone || job->cancel_requested) == special;
}

static step step_rescue_suspects(txn *t)
{
    const jobq_memory_claim *c = rescued_claim(t);
    int i;

    t->b->count = 0;
    for (i = 0; i < t->seen->job_count; i++) {
        if (!rescue_wants(t->seen, i, c, true) || !lock(t, JOB_ROW + i, UPDATE)) continue;
        if (rescue_wants(t->last, i, c, true)) t->b->jobs[t->b->count++] = (uint8_t)i;
    }
    return t->b->count > 0 ? STEP_rescue_suspect : STEP_rescue_back;
}

static void take_back(txn *t, int i)
{
    jobq_memory_job *mj = write_job(t, i);

    jobq__memory_plain((jobq_memory *)(uintptr_t)t->last, mj, JOBQ_EVENT_CRASH, t->b->now_us);
    if (mj->job.state == JOBQ_STATE_READY) t->s->answer.count++;
}

/* One job of the inner loop: cancelled, failed, or ready with one crash more. */
static step step_rescue_suspect(txn *t)
{
    int i = t->b->jobs[--t->b->count];

    take_back(t, i);
    return end_job(t, &t->w->rows.jobs[i].job,
                   t->b->count > 0 ? STEP_rescue_suspect : STEP_rescue_back);
}

static step step_rescue_back(txn *t)
{
    const jobq_memory_claim *c = rescued_claim(t);
    int i;

    for (i = 0; i < t->seen->job_count; i++) {
        if (!rescue_wants(t->seen, i, c, false) || !lock(t, JOB_ROW + i, UPDATE)) continue;
        if (rescue_wants(t->last, i, c, false)) take_back(t, i);
    }
    return STEP_rescue_forget;
}

static step step_rescue_forget(txn *t)
{
    if (!claim_held(t->seen, rescued_claim(t))) {
        memset(write_claim(t, t->b->claims[t->b->at]), 0, sizeof(jobq_memory_claim));
    }
    return ++t->b->at < t->b->claim_count ? STEP_rescue_suspects : STEP_rescue_more;
}

static step step_rescue_more(txn *t)
{
    t->s->answer.more = jobq__memory_oldest(t->seen, t->s->request.worker) != NULL;
    return STEP_COMMIT;
}

/* ---- kinds without a handler ----------------------------------------------------------------- */

static bool parked(const jobq_memory *m, int i, int64_t kind)
{
    const jobq_job *job = &jobq__memory_jobs(m)[i].job;

    return job->kind == kind && job->state == JOBQ_STATE_READY && job->run_at_us == JOBQ_NEVER;
}

static step step_unpark_kind(txn *t)
{
    t->b->free = lock(t, KIND_ROW + (int)t->s->request.id, UPDATE);
    return STEP_unpark_find;
}

static step step_unpark_find(txn *t)
{
    int i;

    t->b->count = 0;
    for (i = 0; i < t->seen->job_count; i++) {
        if (parked(t->seen, i, t->s->request.id)) t->b->jobs[t->b->count++] = (uint8_t)i;
    }
    return STEP_unpark_jobs;
}

static step step_unpark_jobs(txn *t)
{
    int n;

    t->s->answer.count = 0;
    for (n = 0; n < t->b->count; n++) {
        int i = t->b->jobs[n];
        if (!parked(t->seen, i, t->s->request.id) || t->s->busy == i + 1) continue;
        if (!lock(t, JOB_ROW + i, UPDATE)) continue;
        if (!parked(t->last, i, t->s->request.id)) continue;
        write_job(t, i)->job.run_at_us = t->b->now_us;
        t->s->answer.count++;
    }
    return t->b->free != 0 && t->s->answer.count == t->b->count ? STEP_unpark_mark : STEP_COMMIT;
}

static step step_unpark_mark(txn *t)
{
    if (!lock(t, KIND_ROW + (int)t->s->request.id, NO_KEY_UPDATE)) return STEP_WAIT;
    write_mark(t, KIND_ROW + (int)t->s->request.id, false);
    return STEP_COMMIT;
}

/* ---- housekeeping ---------------------------------------------------------------------------- */

/* For each running job without a claim's row. ON CONFLICT DO UPDATE SET jobs: only to lock
 * the row here, where a claim's jobs are those that bear its token. */
static step step_mend_claims(txn *t)
{
    int i;

    for (i = 0; i < t->seen->job_count; i++) {
        const jobq_job *job = &jobq__memory_jobs(t->seen)[i].job;
        const jobq_memory_claim *c = jobq__memory_claim_of(t->seen, job->worker, job->claim);
        if (job->state != JOBQ_STATE_RUNNING || (c != NULL && c->burned_at_us == 0)) continue;
        if (insert_claim(t, job->worker, job->claim, 0) == WAITS) return STEP_WAIT;
    }
    return STEP_mend_workers;
}

static step step_mend_workers(txn *t)
{
    int i, place;

    for (i = 0; i < CLAIM_ROWS; i++) {
        const jobq_memory_claim *c = &jobq__memory_claims(t->seen)[i];
        if (c->worker == 0 || c->burned_at_us != 0 || worker_place(t->seen, c->worker) >= 0) {
            continue;
        }
        if (worker_place(t->last, c->worker) >= 0) continue;
        place = insert_worker(t, c->worker);
        mark_dead(t, place);
    }
    return STEP_prune_workers;
}

static bool long_dead(const txn *t, const jobq_memory_worker *row)
{
    return row->dead && row->dead_at_us < t->b->now_us - JOBQ__DAY;
}

static step step_prune_workers(txn *t)
{
    int i;

    for (i = 0; i < ROWS; i++) {
        const jobq_memory_worker *row = &jobq__memory_workers(t->seen)[i];
        if (row->id == 0 || !long_dead(t, row) || jobq__memory_left(t->seen, row->id)) continue;
        if (!lock(t, WORKER_ROW + i, UPDATE)) continue;
        if (long_dead(t, &jobq__memory_workers(t->last)[i])) {
            memset(write_worker(t, i), 0, sizeof *row);
        }
    }
    return STEP_prune_claims;
}

static step step_prune_claims(txn *t)
{
    int i;

    for (i = 0; i < CLAIM_ROWS; i++) {
        const jobq_memory_claim *c = &jobq__memory_claims(t->seen)[i];
        if (c->burned_at_us == 0 || c->burned_at_us >= t->b->now_us - JOBQ__DAY) continue;
        if (worker_place(t->seen, c->worker) >= 0) continue;
        if (!lock(t, CLAIM_ROW + i, UPDATE)) return STEP_WAIT;
        memset(write_claim(t, i), 0, sizeof *c);
    }
    return STEP_COMMIT;
}

/* ---- an operator's cancel -------------------------------------------------------------------- */

static step step_cancel_one_lock(txn *t)
{
    int i = (int)t->s->request.id - 1;

    if (jobq_state_final(jobq__memory_jobs(t->seen)[i].job.state)) return STEP_COMMIT;
    if (!lock(t, JOB_ROW + i, UPDATE)) return STEP_WAIT;
    if (jobq_state_final(jobq__memory_jobs(t->last)[i].job.state)) return STEP_COMMIT;
    return jobq__memory_jobs(t->last)[i].job.state == JOBQ_STATE_RUNNING ? STEP_cancel_one_claim
                                                                        : STEP_cancel_one_end;
}

static void cancel_job(txn *t)
{
    jobq__memory_plain((jobq_memory *)(uintptr_t)t->last,
                       write_job(t, (int)t->s->request.id - 1), JOBQ_EVENT_CANCEL,
                       t->b->now_us);
}

static step step_cancel_one_end(txn *t)
{
    cancel_job(t);
    return end_jobs(t, bit((int)t->s->request.id - 1), JOBQ_STATE_CANCELLED,
                    promote_here(t, STEP_COMMIT));
}

static step step_cancel_one_claim(txn *t)
{
    const jobq_job *job = &jobq__memory_jobs(t->last)[t->s->request.id - 1].job;
    const jobq_memory_claim *c = jobq__memory_claim_of(t->seen, job->worker, job->claim);

    if (c != NULL && !lock(t, CLAIM_ROW + (int)(c - jobq__memory_claims(t->seen)), UPDATE)) {
        return STEP_WAIT;
    }
    return STEP_cancel_one_request;
}

static step step_cancel_one_request(txn *t)
{
    cancel_job(t);
    return STEP_COMMIT;
}

/* ---- which step is first --------------------------------------------------------------------- */

/* A claim of lanes in which jobs name lines. */
static bool walks_lines(const wire *s) { return set->lines != NULL && !s->request.suspects; }

/* The statement that begins an operation; STEP_NONE: it is one statement, and is executed whole. */
static step first_step(const wire *s)
{
    if (set->permits > 0) return STEP_NONE; /* explore_permits.h */
    int count = s->request.ending_count, i;

    if (is_spawn(s)) return STEP_wait_here_enqueue;
    switch ((int)s->request.kind) {
    case JOBQ_REQUEST_REGISTER: return STEP_register_insert;
    case JOBQ_REQUEST_CLAIM: return walks_lines(s) ? STEP_claim_lines_lane : STEP_claim_lock;
    case JOBQ_REQUEST_RECOVER: return STEP_recover_burn;
    case JOBQ_REQUEST_SET_ASIDE: return STEP_set_aside_lock;
    case JOBQ_REQUEST_COMPLETE:
    case JOBQ_REQUEST_SETTLE: break;
    case JOBQ_REQUEST_HEARTBEAT: return STEP_heartbeat_renew;
    case JOBQ_REQUEST_RESCUE: return STEP_rescue_mark;
    case JOBQ_REQUEST_SLEEP: return s->request.asleep ? STEP_sleep_check : STEP_sleep_delete;
    case JOBQ_REQUEST_UNPARK: return STEP_unpark_kind;
    case JOBQ_REQUEST_DEREGISTER: return STEP_deregister_lock;
    case JOBQ_REQUEST_PRUNE: return STEP_mend_claims;
    case OPERATOR_CANCEL: return STEP_cancel_one_lock;
    case OPERATOR_REVIVE: return STEP_revive_lock;
    case SENDER: return STEP_signal_insert;
    case HANDLER_LOOKS: return STEP_lock_claimed_row;
    default: return STEP_NONE;
    }
    for (i = 0; i < count; i++) { /* what a handler settles in its own transaction is no end */
        if (s->request.endings[i].decision.delay_us == JOBQ_NEVER) return STEP_settle_kinds;
    }
    if (count == 0) return STEP_NONE;
    for (i = 0; i < count; i++) {
        if (s->request.endings[i].decision.state != JOBQ_STATE_SUCCEEDED) return STEP_settle_lock;
    }
    return s->request.kind == JOBQ_REQUEST_COMPLETE ? STEP_complete_move : STEP_settle_lock;
}

static const struct {
    const char *name;
    step (*run)(txn *t);
} steps[] = {
    {"", NULL},
#define X(name) {#name, step_##name},
    STEPS(X)
#undef X
    {"commit", NULL},
};

/* ---- a function executes --------------------------------------------------------------------- */

/* Its next statement. Snapshot and newest versions are the same, unless it has waited. */
static step next_statement(world *w, int id, wire *s)
{
    static image seen, last;
    backend *b = &w->backends[id];
    txn t = {w, s, b, id, memory_of(&seen), memory_of(&last), 0};
    uint32_t newest = w->parked;
    step next;

    seen = b->snapped ? b->snapshot : w->store;
    t.parked = b->snapped ? b->parked : w->parked;
    last = w->store;
    overlay(w, id, &seen, &t.parked);
    overlay(w, id, &last, &newest);
    next = steps[b->step].run(&t);
    if (next == STEP_WAIT && !b->snapped) {
        b->snapped = true;
        b->snapshot = w->store;
        b->parked = w->parked;
    }
    b->waited = next == STEP_WAIT;
    if (next == STEP_WAIT) return next;
    b->waits = 0;
    b->snapped = b->waited = false;
    b->parked = 0;
    memset(&b->snapshot, 0, sizeof b->snapshot);
    return next;
}

/* Up to most statements, the commit among them. True: the transaction has ended, as was. */
static bool go_on(world *w, int id, wire *s, int most, backend *was)
{
    backend *b = &w->backends[id];
    step next;

    while (most-- > 0) {
        if (telling) printf("       . %s\n", steps[b->step].name);
        *was = *b;
        if (b->step == STEP_COMMIT) {
            publish(w, id, s);
            return true;
        }
        next = next_statement(w, id, s);
        if (next == STEP_WAIT) {
            if (telling) printf("       . it waits for a lock\n");
            check_deadlock(w, id);
            return false;
        }
        if (next == STEP_RAISE) {
            close_backend(w, id);
            return true;
        }
        b->step = (uint8_t)next;
    }
    return false;
}
