/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * explore_expiry.h -- jobs that expire: the statements of jobq._claim_fresh, and laws (33) and
 * (34). A part of explore.c; see explore_steps.h, also for this table.
 *
 *   function      statements  locks  skip  conflict  steps
 *   claim_fresh       6         1     1       0        1
 *   late_front        1         0     0       0        0
 *
 * What late_front has read without a lock, claim_fresh reads again under one. So they are one step,
 * and so is the rest: it touches only what is locked.
 *
 * In the world "expiry" each job expires after two or three ticks.
 */

static bool late_at(const jobq_memory_job *mj, int64_t now_us)
{
    return mj->job.state == JOBQ_STATE_READY && mj->expires_at_us != 0 &&
           mj->expires_at_us <= now_us;
}

/* Notes the late ones of those that a claim has locked. */
static bool note_late(txn *t, int i)
{
    if (!late_at(&jobq__memory_jobs(t->last)[i], t->b->now_us)) return false;
    t->b->walk.late |= bit(i);
    return true;
}

/* Whether a claim of these lanes would look at a job, however late it is. */
static bool in_front(const txn *t, int i, int to)
{
    const jobq_request *r = &t->s->request;
    int n;

    for (n = t->b->walk.lane; n < to; n++) {
        jobq_lane lane = r->lanes[n];
        lane.after_at_us = INT64_MIN;
        lane.until_at_us = 0;
        if (jobq__memory_eligible(&jobq__memory_jobs(t->seen)[i].job, &lane, wire_kinds(r), false,
                                  false, t->b->now_us)) return true;
    }
    return false;
}

/* The late ones that the claim has locked, and those at the front of its lanes up to this one. */
static uint8_t end_late(txn *t, int to)
{
    jobq_memory *m = (jobq_memory *)(uintptr_t)t->last;
    uint8_t late = t->b->walk.late;
    int i;

    for (i = 0; i < t->seen->job_count; i++) {
        if (!late_at(&jobq__memory_jobs(t->seen)[i], t->b->now_us) || !in_front(t, i, to)) continue;
        if (!lock(t, JOB_ROW + i, UPDATE)) continue;
        if (late_at(&jobq__memory_jobs(t->last)[i], t->b->now_us)) late |= bit(i);
    }
    for (i = 0; i < t->seen->job_count; i++) {
        if ((late & bit(i)) == 0) continue;
        jobq__memory_ends(m, write_job(t, i), t->b->now_us, &t->s->answer.claimed);
    }
    t->b->walk.late = 0;
    return late;
}

/* ---- the laws -------------------------------------------------------------------------------- */

/* Law (33), of the watch: by then the instant has come, counted from the claim. */
static void note_limits(world *w, const backend *b, const wire *s)
{
    int i;

    for (i = 0; i < s->answer.claimed.count; i++) {
        const jobq_job *job = &s->answer.claimed.jobs[i];
        w->begin_by[job->id - 1] =
            job->expires_us == 0 ? 0 : b->tick + (int32_t)(job->expires_us / TICK);
    }
}

static void check_on_time(const world *w, const jobq_job *job)
{
    int32_t by = w->begin_by[job->id - 1];

    if (by != 0 && w->tick >= by) violate("law 33: job %d begins late", (int)job->id);
}

/* Law (34): a claim tells how many jobs it has ended, and each of them is late. */
static void check_ended(const world *w, const jobq_memory *before, const wire *s)
{
    const jobq_claimed *c = &s->answer.claimed;
    int i, ended = 0, told = 0;

    if (s->request.kind != JOBQ_REQUEST_CLAIM || s->answer.error != JOBQ_OK) return;
    for (i = 0; i < before->job_count; i++) {
        ended += jobq__memory_jobs(before)[i].job.state == JOBQ_STATE_READY &&
                 job_at(w, i)->state == JOBQ_STATE_CANCELLED;
    }
    for (i = 0; i < c->ended_count; i++) told += c->ended[i].count;
    if (told != ended) violate("law 34: a claim ended %d late jobs and tells of %d", ended, told);
    if (told > 0 && c->due_us == 0 && c->count == 0) {
        violate("law 34: a claim that ended late jobs says that there is nothing to do");
    }
}

/* Clocks and what is lost on the way. */
static void bound_expiry(world *w)
{
    if (set->expires == NULL) return;
    w->left[MOVE_BUSY] = w->left[MOVE_HOLD] = w->left[MOVE_NOTIFY] = 0;
    w->left[MOVE_STOP] = w->left[MOVE_PAUSE] = 0;
}
