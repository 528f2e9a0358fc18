/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * explore_lines.h -- lines: the statements of sql/lines.sql, one step function each, and the laws
 * of lines. A part of explore.c; see explore_steps.h, also for this table.
 *
 *   function      statements  locks  skip  conflict  steps
 *   line_up           2         2     2       0        1
 *   claim_sift        3         0     0       0        0
 *   claim_lanes       2         1     1       0        1
 *   line_rooms        1         0     0       0        2
 *   line_fronts       1         0     0       0        2
 *   lock_lines        3         1     1       1        1
 *   strict_job        4         0     0       0        1
 *   take_lines        2         2     2       0        1
 *   lines_ready       1         0     0       0        1
 *   claim_visit      10         0     0       0        0
 *   claim_walk        5         0     0       0        0
 *   claim_lines       0         0     0       0        1
 *
 * In SQL the array line.jobs names the jobs that were claimed from a line. Here each of those jobs
 * says so itself, in `holds`. That is the same, because a claim writes both in one transaction, and
 * a job that has left counts in neither. So a line's row is only its lock. The rows exist already,
 * and lines have no rates and no holds.
 *
 * In the world "lines" jobs 1 and 2 are in a line of which one may run, and job 3 is in a line
 * without a limit. In the world "strict" all jobs are in one strict line.
 */

static jobq_line rules_of(const txn *t, int64_t line)
{
    return jobq__memory_rules((jobq_memory *)(uintptr_t)t->seen, 1, line);
}

static bool is_limited(const jobq_line *rules) { return rules->strict || rules->running_max > 0; }

static const jobq_lane *lane_now(const txn *t) { return &t->s->request.lanes[t->b->walk.lane]; }

static bool may_take(const txn *t, const jobq_memory *m, int i)
{
    const jobq_memory_job *mj = &jobq__memory_jobs(m)[i];
    jobq_lane lane = *lane_now(t);

    if (rules_of(t, mj->line).strict) lane.after_at_us = INT64_MIN; /* see jobq._strict_job */
    return jobq__memory_eligible(&mj->job, &lane, wire_kinds(&t->s->request), false,
                                 t->s->request.alone, t->b->now_us);
}

static void due_at_most(txn *t, int64_t due_us)
{
    line_walk *v = &t->b->walk;

    if (due_us > 0) v->due_us = v->due_us == 0 ? due_us : jobq__min(v->due_us, due_us);
}

/* What the claim answers about the walk; then it goes on as any claim. */
static step lanes_end(txn *t)
{
    const jobq_request *r = &t->s->request;
    jobq_claimed *c = &t->s->answer.claimed;
    line_walk *v = &t->b->walk;

    if (v->moved && t->b->count < r->limit) v->due_us = 1;
    if (v->walks && r->bytes > 0) {
        c->walk_count = 1;
        c->walks[0].queue = 1;
        c->walks[0].after = v->after;
        c->walks[0].due_us = v->due_us;
    }
    if (t->b->count == 0) return STEP_claim_alive;
    if (r->bytes > 0) return STEP_claim_mark;
    c->named = jobq__memory_jobs(t->last)[t->b->jobs[0]].job.id;
    return STEP_COMMIT;
}

/* The next lane of the claim; no statement. */
static step step_claim_lines_lane(txn *t)
{
    const jobq_request *r = &t->s->request;
    line_walk *v = &t->b->walk;
    int most = r->limit - t->b->count;

    if (v->lane == r->lane_count || most == 0) return lanes_end(t);
    if (!r->lanes[v->lane].lined) {
        v->round = 0;
        v->had = t->b->count;
        return STEP_claim_lanes_lock;
    }
    if (!v->walks) v->after = r->lanes[v->lane].after_id;
    v->walks = true;
    v->from = v->at = v->after;
    v->round = 0;
    memset(&v->low, 0, sizeof v->low);
    v->page = (uint8_t)((most + r->quantum - 1) / r->quantum);
    v->more = false;
    return STEP_line_fronts_count;
}

static step next_lane(txn *t, bool whole)
{
    line_walk *v = &t->b->walk;

    if (t->s->request.bytes > 0) {
        jobq__memory_stretch(&t->s->answer.claimed, lane_now(t), &v->low, v->after, whole);
    }
    if (v->more && t->b->count < t->s->request.limit) v->due_us = 1;
    v->lane++;
    return STEP_claim_lines_lane;
}

/* A page of lines was visited. */
static step walk_on(txn *t)
{
    line_walk *v = &t->b->walk;

    if (t->b->count == t->s->request.limit) return next_lane(t, false);
    if (v->lines == v->page) {
        v->at = v->line[v->lines - 1];
    } else if (v->round == 0) {
        v->round = 1;
        v->at = INT64_MIN;
    } else return next_lane(t, true);
    v->page = (uint8_t)(2 * v->page);
    return STEP_line_fronts_find;
}

static step step_line_fronts_count(txn *t)
{
    const jobq_request *r = &t->s->request;

    t->b->walk.quantum =
        (uint8_t)jobq__memory_quantum(t->seen, r, lane_now(t), r->limit - t->b->count,
                                      t->b->now_us);
    return STEP_line_fronts_find;
}

static step step_line_fronts_find(txn *t)
{
    line_walk *v = &t->b->walk;
    int64_t at = v->at;

    v->lines = 0;
    while (v->lines < v->page) {
        at = jobq__memory_next_line(t->seen, lane_now(t), at, t->b->now_us, &v->low);
        if (at == 0 || (v->round == 1 && at > v->from)) break;
        v->line[v->lines++] = (uint8_t)at;
    }
    return v->lines > 0 ? STEP_line_rooms_guess : walk_on(t);
}

/* Jobs of a line that this claim has locked count, too. */
static int32_t room_of(txn *t, int n)
{
    line_walk *v = &t->b->walk;
    int64_t line = v->line[n];
    jobq_line rules = rules_of(t, line);
    int32_t held = jobq__memory_line_held(t->seen, 1, line, true), room;
    int64_t due_us;
    int i;

    for (i = 0; i < t->b->count; i++) {
        held += jobq__memory_jobs(t->seen)[t->b->jobs[i]].line == line && is_limited(&rules);
    }
    room = jobq__line_room(&rules, INT64_MIN, INT64_MIN, t->b->now_us, held, v->quantum, &due_us);
    due_at_most(t, due_us);
    v->spare &= (uint8_t)~(1 << n);
    if (!is_limited(&rules) || (!rules.strict && room < rules.running_max - held)) {
        v->spare |= (uint8_t)(1 << n);
    }
    return room;
}

static step step_line_rooms_guess(txn *t)
{
    line_walk *v = &t->b->walk;
    int n;

    for (n = 0; n < v->lines; n++) v->room[n] = (uint8_t)room_of(t, n);
    return STEP_lines_ready_look;
}

/* A line without a limit needs no lock; one without a ready job is not worth it. */
static step step_lines_ready_look(txn *t)
{
    line_walk *v = &t->b->walk;
    int n, i, wanted = 0;

    for (n = 0; n < v->lines; n++) {
        jobq_line rules = rules_of(t, v->line[n]);
        v->state[n] = is_limited(&rules) ? LINE_LEFT : LINE_FREE;
        if (v->room[n] == 0) v->state[n] = LINE_LEFT;
        if (v->room[n] == 0 || !is_limited(&rules)) continue;
        for (i = 0; i < t->seen->job_count; i++) {
            const jobq_job *job = &jobq__memory_jobs(t->seen)[i].job;
            if (job->line == v->line[n] && may_take(t, t->seen, i)) v->state[n] = LINE_WANTED;
        }
        wanted += v->state[n] == LINE_WANTED;
    }
    return wanted > 0 ? STEP_lock_lines_lock : STEP_line_rooms_count;
}

static step step_lock_lines_lock(txn *t)
{
    line_walk *v = &t->b->walk;
    int n;

    for (n = 0; n < v->lines; n++) {
        if (v->state[n] != LINE_WANTED) continue;
        if (lock(t, LINE_ROW + v->line[n] - 1, UPDATE)) {
            v->state[n] = LINE_LOCKED;
        } else {
            v->state[n] = LINE_LEFT;
            due_at_most(t, 1000);
        }
    }
    return STEP_line_rooms_count;
}

/* Again, by a snapshot that was taken under the locks. */
static step step_line_rooms_count(txn *t)
{
    line_walk *v = &t->b->walk;
    int n, strict = 0, open = 0;

    for (n = 0; n < v->lines; n++) {
        v->room[n] = (uint8_t)(v->state[n] == LINE_LEFT ? 0 : room_of(t, n));
        open += v->room[n] > 0;
        strict += v->room[n] > 0 && rules_of(t, v->line[n]).strict;
    }
    if (open == 0) return walk_on(t);
    return strict > 0 ? STEP_strict_job_choose : STEP_take_lines_lock;
}

/* Without a lock on the job. */
static step step_strict_job_choose(txn *t)
{
    line_walk *v = &t->b->walk;
    int n;

    for (n = 0; n < v->lines; n++) {
        if (v->room[n] == 0 || !rules_of(t, v->line[n]).strict) continue;
        v->head[n] = (uint8_t)(jobq__memory_strict_job(t->seen, lane_now(t), v->line[n]) + 1);
    }
    return STEP_take_lines_lock;
}

/* SELECT .. FOR UPDATE SKIP LOCKED of one job. */
static bool take_of_line(txn *t, int i)
{
    if (!may_take(t, t->seen, i) || !lock(t, JOB_ROW + i, UPDATE)) return false;
    if (!may_take(t, t->last, i)) return false;
    t->b->jobs[t->b->count++] = (uint8_t)i;
    return true;
}

static step step_take_lines_lock(txn *t)
{
    line_walk *v = &t->b->walk;
    int n, i, got;

    for (n = 0; n < v->lines; n++) {
        jobq_line rules = rules_of(t, v->line[n]);
        for (got = 0; got < v->room[n] && t->b->count < t->s->request.limit;) {
            i = rules.strict ? v->head[n] - 1
                             : jobq__memory_line_first(t->seen, &t->s->request, lane_now(t),
                                                       v->line[n], wire_kinds(&t->s->request),
                                                       t->b->now_us);
            if (i < 0) break;
            if (take_of_line(t, i)) {
                if (is_limited(&rules)) v->limited |= (uint8_t)(1 << i);
                v->after = v->line[n];
                got++;
            }
            if (rules.strict) break;
            jobq__memory_jobs(t->seen)[i].job.state = JOBQ_STATE_SUCCEEDED; /* looked at */
        }
        if (got > 0 && got == v->room[n] && (v->spare >> n & 1) != 0) v->more = true;
    }
    return walk_on(t);
}

/* ---- lanes beside lines ---------------------------------------------------------------------- */

/* The end of a run of lanes without lines. */
static int run_end(const txn *t)
{
    const jobq_request *r = &t->s->request;
    int to = t->b->walk.lane;

    while (to < r->lane_count && !r->lanes[to].lined) to++;
    return to;
}

static step run_over(txn *t)
{
    t->b->walk.lane = (uint8_t)run_end(t);
    return STEP_claim_lines_lane;
}

/* Nothing was claimed in this round: there may be more behind what was moved or ended. */
static step lanes_again(txn *t)
{
    line_walk *v = &t->b->walk;

    return t->b->count == v->had && ++v->round < 4 ? STEP_claim_lanes_lock : run_over(t);
}

static step step_claim_lanes_lock(txn *t)
{
    const jobq_request *r = &t->s->request;
    line_walk *v = &t->b->walk;
    int most = r->limit - v->had, met = 0, i, n;

    v->met = 0;
    while (met < most) {
        i = jobq__memory_first(t->seen, r, v->lane, run_end(t), wire_kinds(r), t->b->now_us);
        if (i < 0) break;
        jobq__memory_jobs(t->seen)[i].job.state = JOBQ_STATE_SUCCEEDED; /* looked at */
        if (!lock(t, JOB_ROW + i, UPDATE)) continue;
        for (n = v->lane; n < run_end(t); n++) {
            if (jobq__memory_eligible(&jobq__memory_jobs(t->last)[i].job, &r->lanes[n],
                                      wire_kinds(r), false, r->alone, t->b->now_us)) break;
        }
        if (n == run_end(t)) continue;
        met++;
        if (note_late(t, i)) continue;
        if (jobq__memory_jobs(t->last)[i].line != 0) v->met |= (uint8_t)(1 << i);
        else t->b->jobs[t->b->count++] = (uint8_t)i;
    }
    if (v->late != 0) return STEP_claim_fresh_end;
    return v->met != 0 ? STEP_line_up_move : run_over(t);
}

static step step_claim_fresh_end(txn *t)
{
    bool suspects = t->s->request.suspects, moves = t->b->walk.met != 0;
    uint8_t ended = end_late(t, suspects ? 0 : run_end(t));
    step then = suspects ? STEP_claim_alive : moves ? STEP_line_up_move : lanes_again(t);

    return end_jobs(t, ended, JOBQ_STATE_CANCELLED, then);
}

static bool to_move(const txn *t, const jobq_memory *m, int i)
{
    const jobq_memory_job *mj = &jobq__memory_jobs(m)[i];
    bool moves = false;
    int n;

    for (n = t->b->walk.lane; n < run_end(t) && mj->line != 0; n++) {
        jobq_lane lane = t->s->request.lanes[n];
        lane.after_at_us = INT64_MIN;
        moves |= jobq__memory_eligible(&mj->job, &lane, UINT64_MAX, false, false, t->b->now_us) &&
                 mj->job.state == JOBQ_STATE_READY;
    }
    return moves;
}

static step step_line_up_move(txn *t)
{
    line_walk *v = &t->b->walk;
    int i;

    for (i = 0; i < t->seen->job_count; i++) {
        if (!to_move(t, t->seen, i) || !lock(t, JOB_ROW + i, UPDATE)) continue;
        if (!to_move(t, t->last, i)) continue;
        jobq__memory_line_up((jobq_memory *)(uintptr_t)t->last, write_job(t, i), t->b->now_us);
        v->moved = true;
    }
    return lanes_again(t);
}

/* ---- the laws -------------------------------------------------------------------------------- */

/* Never more jobs of a line than its limit run, or are suspects. A strict line's job begins only
 * when all that come before it have ended. */
static void check_lines(world *w)
{
    int i, k, held[LINES + 1] = {0};

    if (set->lines == NULL) return;
    for (i = 0; i < store(w)->job_count; i++) {
        const jobq_memory_job *mj = &jobq__memory_jobs(store(w))[i];
        const jobq_job *job = &mj->job;
        jobq_line rules = jobq__memory_rules(store(w), 1, mj->line);
        if (jobq_state_final(job->state)) continue;
        held[mj->line] += job->state == JOBQ_STATE_RUNNING || job->suspect;
        if (job->state == JOBQ_STATE_RUNNING) w->begun |= (uint8_t)(1 << i);
        for (k = 0; k < i && rules.strict && (w->begun >> i & 1) != 0; k++) {
            if (jobq_state_final(job_at(w, k)->state)) continue;
            violate("job %d of a strict line began before job %d had ended", i + 1, k + 1);
        }
        if (is_limited(&rules) && held[mj->line] > (rules.strict ? 1 : rules.running_max)) {
            violate("too many jobs of line %d run or are suspects", (int)mj->line);
        }
    }
}

/* Which functions are held up in these worlds. */
static bool touches_lines(jobq_request_kind kind)
{
    return kind == JOBQ_REQUEST_CLAIM || kind == JOBQ_REQUEST_COMPLETE ||
           kind == JOBQ_REQUEST_SETTLE || kind == JOBQ_REQUEST_RESCUE ||
           kind == JOBQ_REQUEST_RECOVER;
}

/* Time to the store's steps, and switches: what else goes wrong, other worlds show. */
static void bound_lines(world *w)
{
    if (set->lines == NULL) return;
    w->left[MOVE_BUSY] = w->left[MOVE_HOLD] = w->left[MOVE_NOTIFY] = 0;
    w->left[MOVE_STEP] = w->left[MOVE_STOP] = w->left[MOVE_SLOW] = w->left[MOVE_PAUSE] = 0;
}

static void begin_lines(world *w)
{
    jobq_line rules;

    if (set->lines == NULL) return;
    memset(&rules, 0, sizeof rules);
    rules.running_max = set->strict ? 0 : 1;
    rules.strict = set->strict;
    model_line(store(w), 1, 1, &rules);
}

/* How many lines a walk has behind it. */
static int64_t walk_label(int64_t after) { return (after >= 1) + (after >= 2); }
