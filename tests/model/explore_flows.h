/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * explore_flows.h -- the statements of sql/flows.sql and sql/steps.sql by which jobs wait for
 * others and for signals, one step function each. A part of explore.c; see explore_steps.h, also
 * for this table.
 *
 *   function      statements  locks  skip  conflict  steps
 *   edges_end         2         0     0       0        2
 *   ended             6         0     0       0        2
 *   look_jobs        10         1     1       0        5
 *   make_ready        2         0     0       0        1
 *   nudges_take       1         1     1       0        0
 *   promote           8         1     1       0        2
 *   promote_late      3         0     0       0        0
 *   edges_revive      3         0     0       0        1
 *   revive_all        4         1     0       0        1
 *   revive            2         0     0       0        1
 *   revive_free       2         2     1       0        0
 *   link              9         0     0       1        0
 *   lock_parents      6         3     0       0        0
 *   wait_here         5         1     0       0        2
 *   signal            4         0     0       1        2
 *   signal_of_claim   5         0     0       1        2
 *   lock_claimed      2         1     0       0        1
 *   signal_look       1         0     0       0        1
 *   look_signals      3         1     1       0        2
 *
 * Edges are those of jobq_memory: `ended` is SQL's came, and no edge has a flow_id. So there are no
 * flows, and no counts of them. Nudges, waits for the one signal, and the signal are rows of their
 * own. A nudge bears the backend that wrote it; after the commit it bears none. promote_late looks
 * only at nudges, because nobody deletes jobs by hand here. promote takes all nudges at
 * once here, so it moves none behind others. What wait_here calls to enqueue and to link is one
 * step each, because it touches only rows that are new, and the job's own.
 */

static bool flows(void) { return set->graph != NULL || set->spawn || set->signal; }

/* Rows beside those of jobq_memory, at the end of an image. */
static tables *tables_of(const jobq_memory *m)
{
    return (tables *)(void *)((char *)(uintptr_t)m + MEMORY_SIZE);
}

static uint8_t bit(int i) { return (uint8_t)(1 << i); }

static const jobq_job *seen_job(const txn *t, int i) { return &jobq__memory_jobs(t->seen)[i].job; }

static bool exists(const jobq_job *job) { return job->id != 0 && !jobq_state_final(job->state); }

static bool failed(const jobq_memory *m, int i)
{
    return jobq__memory_jobs(m)[i].job.state == JOBQ_STATE_FAILED;
}

/* -- rows -- */

static jobq_memory_edge *write_edge(txn *t, int i)
{
    jobq_memory_edge *row = &t->w->rows.edges[i];

    if (!wrote(t->w, t->id, EDGE_ROW + i)) *row = t->last->edges[i];
    note_write(t, EDGE_ROW + i);
    return row;
}

static nudge *write_nudge(txn *t, int i)
{
    nudge *row = &t->w->rows.nudges[i];

    if (!wrote(t->w, t->id, NUDGE_ROW + i)) *row = tables_of(t->last)->nudges[i];
    note_write(t, NUDGE_ROW + i);
    return row;
}

static void insert_nudge(txn *t, int job, bool cancel)
{
    nudge *row;
    int i = 0;

    for (; i < NUDGES; i++) {
        int writer = t->w->rows.writer[NUDGE_ROW + i];
        bool ours = writer == t->id + 1;
        row = ours ? &t->w->rows.nudges[i] : &tables_of(&t->w->store.memory)->nudges[i];
        if (!row->used && (ours || unlocked(t->w, NUDGE_ROW + i))) break;
    }
    JOBQ_ASSERT(i < NUDGES); /* else the world needs more NUDGES */
    lock(t, NUDGE_ROW + i, UPDATE);
    row = write_nudge(t, i);
    row->used = 1;
    row->job = (uint8_t)job;
    row->cancel = cancel;
    row->by = (uint8_t)(t->id + 1);
}

static void insert_edge(txn *t, int parent, int child, jobq_on_end on_end, bool cascade)
{
    jobq_memory_edge *row;
    int i = 0;

    while (i < JOBQ_MEMORY_EDGES &&
           (t->last->edges[i].child != 0 || !unlocked(t->w, EDGE_ROW + i))) {
        i++;
    }
    JOBQ_ASSERT(i < JOBQ_MEMORY_EDGES); /* else the world needs more edges */
    lock(t, EDGE_ROW + i, UPDATE);
    row = write_edge(t, i);
    memset(row, 0, sizeof *row);
    row->parent = parent;
    row->child = child;
    row->on_end = on_end;
    row->cascade = cascade;
    row->holds = true;
}

/* The rows of this part of the world that a transaction has written, as it alone sees them. */
static void overlay_flows(const world *w, int id, jobq_memory *m)
{
    tables *to = tables_of(m);
    int i;

    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        if (wrote(w, id, EDGE_ROW + i)) m->edges[i] = w->rows.edges[i];
    }
    for (i = 0; i < NUDGES; i++) {
        if (wrote(w, id, NUDGE_ROW + i)) to->nudges[i] = w->rows.nudges[i];
    }
    for (i = 0; i < JOBS; i++) {
        if (wrote(w, id, WAIT_ROW + i)) to->until_us[i] = w->rows.until_us[i];
    }
    if (wrote(w, id, SIGNAL_ROW)) to->sent = w->rows.marks[SIGNAL_ROW];
}

static void clear_flow_row(rows *r, int row)
{
    if (row >= EDGE_ROW && row < NUDGE_ROW) {
        memset(&r->edges[row - EDGE_ROW], 0, sizeof r->edges[0]);
    } else if (row >= NUDGE_ROW && row < WAIT_ROW) {
        memset(&r->nudges[row - NUDGE_ROW], 0, sizeof r->nudges[0]);
    } else if (row >= WAIT_ROW && row < SIGNAL_ROW) r->until_us[row - WAIT_ROW] = 0;
}

/* After the commit nobody has the id of the transaction that wrote a nudge. */
static void own_no_nudges(world *w, int id)
{
    tables *own = tables_of(&w->store.memory);
    int i;

    for (i = 0; i < NUDGES; i++) {
        if (own->nudges[i].by == id + 1) own->nudges[i].by = 0;
        if (!own->nudges[i].used) memset(&own->nudges[i], 0, sizeof own->nudges[0]);
    }
}

/* -- the end of jobs that others wait for -- */

/* These jobs have ended: what follows from that, and then this step. */
static step end_jobs(txn *t, uint8_t ended, jobq_state state, step then)
{
    if (!flows()) return then;
    t->b->flow.ended = ended;
    t->b->flow.state = (uint8_t)state;
    t->b->flow.then = (uint8_t)then;
    return STEP_edges_end_mark;
}

/* The end of a job, if it has ended. */
static step end_job(txn *t, const jobq_job *job, step then)
{
    if (!jobq_state_final(job->state)) return then;
    return end_jobs(t, bit((int)job->id - 1), job->state, then);
}

/* jobq._promote, here or not, and then this step. */
static step promote_as(txn *t, bool here, step after)
{
    if (!flows()) return after;
    t->b->flow.here = here;
    t->b->flow.after = (uint8_t)after;
    t->b->flow.decided = 0;
    t->b->flow.jobs = t->b->flow.ready = 0;
    return STEP_promote_take;
}

static step promote(txn *t, step after) { return promote_as(t, false, after); }

static step promote_here(txn *t, step after) { return promote_as(t, true, after); }

static bool of_jobs(uint8_t jobs, int64_t id) { return id > 0 && (jobs >> (id - 1) & 1) != 0; }

static bool to_mark(const jobq_memory_edge *e, uint8_t ended)
{
    return e->child != 0 && of_jobs(ended, e->parent) && !e->ended;
}

/* The UPDATE of the edges, and the INSERT of the nudges. */
static step step_edges_end_mark(txn *t)
{
    flow_work *f = &t->b->flow;
    uint8_t children = 0, cancel = 0;
    int i;

    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        jobq_memory_edge *e = &t->seen->edges[i];
        if (!to_mark(e, f->ended)) continue;
        if (!lock(t, EDGE_ROW + i, NO_KEY_UPDATE)) return STEP_WAIT;
        if (!to_mark(&t->last->edges[i], f->ended)) continue;
        e = write_edge(t, i);
        e->ended = true;
        e->holds = !jobq__end_serves(e->on_end, (jobq_state)f->state);
        children |= bit(e->child - 1);
        if (e->holds && e->cascade) cancel |= bit(e->child - 1);
    }
    for (i = 0; i < JOBS; i++) {
        if ((children >> i & 1) != 0) insert_nudge(t, i + 1, (cancel >> i & 1) != 0);
    }
    return STEP_edges_end_forget;
}

/* DELETE of edges that a snapshot shows; what another transaction deletes meanwhile is gone. */
static bool delete_edge(txn *t, int i)
{
    if (!lock(t, EDGE_ROW + i, UPDATE)) return false;
    memset(write_edge(t, i), 0, sizeof(jobq_memory_edge));
    return true;
}

static step step_edges_end_forget(txn *t)
{
    int i;

    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        const jobq_memory_edge *e = &t->seen->edges[i];
        if (e->child == 0 || !of_jobs(t->b->flow.ended, e->parent)) continue;
        if (exists(seen_job(t, e->child - 1)) || failed(t->seen, e->child - 1)) continue;
        if (!delete_edge(t, i)) return STEP_WAIT;
    }
    return STEP_ended_edges;
}

static bool is_over(const jobq_memory_edge *e, uint8_t ended)
{
    return e->child != 0 && of_jobs(ended, e->child) && e->ended;
}

static step step_ended_edges(txn *t)
{
    int i;

    for (i = 0; i < JOBQ_MEMORY_EDGES && t->b->flow.state != JOBQ_STATE_FAILED; i++) {
        if (!is_over(&t->seen->edges[i], t->b->flow.ended)) continue;
        if (!lock(t, EDGE_ROW + i, UPDATE)) return STEP_WAIT;
        if (is_over(&t->last->edges[i], t->b->flow.ended)) delete_edge(t, i);
    }
    return STEP_ended_waits;
}

/* DELETE FROM signal_wait of one job. */
static bool delete_wait(txn *t, int i)
{
    if (tables_of(t->seen)->until_us[i] == 0) return true;
    if (!lock(t, WAIT_ROW + i, UPDATE)) return false;
    t->w->rows.until_us[i] = 0;
    note_write(t, WAIT_ROW + i);
    return true;
}

/* And the INSERT of the nudges before it. */
static step step_ended_waits(txn *t)
{
    uint8_t left = 0;
    int i;

    for (i = 0; i < JOBS; i++) {
        if ((t->b->flow.ended >> i & 1) != 0 && !delete_wait(t, i)) return STEP_WAIT;
    }
    for (i = 0; i < JOBQ_MEMORY_EDGES && t->b->flow.state != JOBQ_STATE_FAILED; i++) {
        int child = t->seen->edges[i].child;
        if (child != 0 && of_jobs(t->b->flow.ended, child)) left |= bit(child - 1);
    }
    for (i = 0; i < JOBS; i++) {
        if ((left >> i & 1) != 0) insert_nudge(t, i + 1, false);
    }
    t->b->flow.ended = 0;
    return (step)t->b->flow.then;
}

/* Whether a job has a flow_id. */
static bool is_linked(const txn *t, int64_t id)
{
    int i;

    for (i = 0; i < JOBQ_MEMORY_EDGES && set->spawn; i++) {
        const jobq_memory_edge *e = &t->last->edges[i];
        if (e->child != 0 && (e->child == id || e->parent == id)) return true;
    }
    return flows() && !set->spawn;
}

/* -- promote -- */

static step step_promote_take(txn *t)
{
    flow_work *f = &t->b->flow;
    int i;

    f->nudges = f->jobs = f->own = f->cancel = f->skipped = f->undecided = 0;
    f->signal = f->signal_own = f->signal_skipped = false;
    for (i = 0; i < NUDGES; i++) {
        const nudge *n = &tables_of(t->seen)->nudges[i];
        bool own = !f->here || n->by == t->id + 1;
        if (!n->used || (!f->here && !lock(t, NUDGE_ROW + i, UPDATE))) continue;
        if (!f->here && !tables_of(t->last)->nudges[i].used) continue;
        f->nudges |= bit(i);
        if (n->job == 0) {
            f->signal = true;
            f->signal_own |= own;
            continue;
        }
        f->jobs |= bit(n->job - 1);
        if (own) f->own |= bit(n->job - 1);
        if (n->cancel) f->cancel |= bit(n->job - 1);
    }
    if (f->nudges == 0) return (step)f->after;
    return f->jobs != 0 ? STEP_look_jobs_lock
                        : f->signal ? STEP_look_signals_find : STEP_promote_delete;
}

static bool waits(const jobq_memory *m, int i)
{
    return jobq__memory_jobs(m)[i].job.state == JOBQ_STATE_WAITING;
}

/* Nothing can be decided about it: an edge holds it, and it is not to be cancelled. */
static bool waits_on(const txn *t, int i)
{
    int e;

    for (e = 0; e < JOBQ_MEMORY_EDGES && (t->b->flow.cancel >> i & 1) == 0; e++) {
        if (t->seen->edges[e].child == i + 1 && t->seen->edges[e].holds) return true;
    }
    return false;
}

static step step_look_jobs_lock(txn *t)
{
    flow_work *f = &t->b->flow;
    int i;

    f->held = 0;
    for (i = 0; i < JOBS; i++) {
        if ((f->own >> i & 1) == 0 || !waits(t->seen, i) || waits_on(t, i)) continue;
        if (lock(t, JOB_ROW + i, UPDATE) && waits(t->last, i)) f->held |= bit(i);
    }
    return f->held != f->jobs ? STEP_look_jobs_skipped : STEP_look_jobs_decide;
}

static step step_look_jobs_skipped(txn *t)
{
    flow_work *f = &t->b->flow;
    int i;

    for (i = 0; i < JOBS; i++) {
        if (((f->jobs & ~f->held) >> i & 1) == 0 || !waits(t->seen, i)) continue;
        if (waits_on(t, i)) f->undecided |= bit(i);
        else f->skipped |= bit(i);
    }
    return (f->held | f->skipped | f->undecided) == f->jobs ? STEP_look_jobs_decide
                                                            : STEP_look_jobs_forget;
}

/* Edges of jobs that are gone, whose end did not see the end of the other. */
static step step_look_jobs_forget(txn *t)
{
    int i;

    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        int child = t->seen->edges[i].child;
        if (child == 0 || !of_jobs(t->b->flow.jobs, child)) continue;
        if (exists(seen_job(t, child - 1)) || failed(t->seen, child - 1)) continue;
        if (!t->seen->edges[i].ended) t->b->flow.undecided |= bit(child - 1);
        if (!is_over(&t->seen->edges[i], t->b->flow.jobs)) continue;
        if (!lock(t, EDGE_ROW + i, UPDATE)) return STEP_WAIT;
        if (is_over(&t->last->edges[i], t->b->flow.jobs)) delete_edge(t, i);
    }
    return STEP_look_jobs_decide;
}

static step look_on(const txn *t)
{
    if (t->b->flow.ready != 0) return STEP_make_ready_write;
    return t->b->flow.signal ? STEP_look_signals_find : STEP_promote_delete;
}

static step step_look_jobs_decide(txn *t)
{
    flow_work *f = &t->b->flow;
    int i;

    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        const jobq_memory_edge *e = &t->seen->edges[i];
        if (e->child != 0 && e->holds && of_jobs(f->held, e->child)) {
            f->undecided |= bit(e->child - 1);
        }
    }
    f->ready = f->held & (uint8_t)~f->undecided;
    f->decided |= f->ready;
    return (f->cancel & f->undecided) != 0 ? STEP_look_jobs_cancel : look_on(t);
}

/* The rows of the jobs are ours: the look, and what finish does to them, are one step. */
static step step_look_jobs_cancel(txn *t)
{
    flow_work *f = &t->b->flow;
    uint8_t over = 0;
    int i;

    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        const jobq_memory_edge *e = &t->seen->edges[i];
        if (e->child != 0 && e->holds && e->cascade && e->ended &&
            of_jobs(f->cancel & f->undecided, e->child)) {
            over |= bit(e->child - 1);
        }
    }
    for (i = 0; i < JOBS; i++) {
        jobq_decision d;
        if ((over >> i & 1) == 0) continue;
        d = jobq__end(&jobq__memory_jobs(t->last)[i].job, JOBQ_STATE_CANCELLED);
        jobq__memory_apply(write_job(t, i), &d, t->b->now_us);
    }
    f->undecided &= (uint8_t)~over;
    f->decided |= over;
    return over == 0 ? look_on(t) : end_jobs(t, over, JOBQ_STATE_CANCELLED, look_on(t));
}

/* Jobs that waited run at their own time; those that were ready become due. */
static step step_make_ready_write(txn *t)
{
    flow_work *f = &t->b->flow;
    int i;

    for (i = 0; i < JOBS; i++) {
        jobq_job *job;
        int64_t due_us = t->b->now_us;
        if ((f->ready >> i & 1) == 0) continue;
        job = &write_job(t, i)->job;
        if (job->state == JOBQ_STATE_WAITING && job->run_at_us != JOBQ_NEVER) {
            due_us = job->run_at_us;
        }
        job->state = JOBQ_STATE_READY;
        job->run_at_us = jobq__max(due_us, t->b->now_us);
    }
    f->ready = 0;
    return look_on(t);
}

static bool is_left(const flow_work *f, const nudge *n)
{
    return n->job == 0 ? f->signal_skipped : of_jobs(f->skipped, n->job);
}

/* Deletes the nudges that it took and looked at. Those of its own are written anew, unless all is
 * decided. */
static step step_promote_delete(txn *t)
{
    flow_work *f = &t->b->flow;
    uint8_t again = 0;
    bool signal = false;
    int i;

    for (i = 0; i < NUDGES; i++) {
        const nudge *n = &tables_of(t->last)->nudges[i];
        if ((f->nudges >> i & 1) == 0 || is_left(f, n)) continue;
        if (!n->used || (f->here && !lock(t, NUDGE_ROW + i, UPDATE))) continue;
        if (n->by == t->id + 1) {
            if (n->job == 0) signal = true;
            else if (of_jobs(f->undecided, n->job)) again |= bit(n->job - 1);
        }
        memset(write_nudge(t, i), 0, sizeof *n);
    }
    for (i = 0; i < JOBS; i++) {
        if ((again >> i & 1) != 0) insert_nudge(t, i + 1, false);
    }
    if (signal) insert_nudge(t, 0, false);
    return (step)f->after;
}

/* A claim that has made something ready asks again at once. */
static step claim_promoted(txn *t)
{
    int i;

    for (i = 0; i < NUDGES && flows(); i++) {
        if (tables_of(t->seen)->nudges[i].used) return promote(t, STEP_claim_decided);
    }
    return STEP_COMMIT;
}

static step step_claim_decided(txn *t)
{
    if (t->b->flow.decided != 0) t->s->answer.claimed.due_us = 1;
    return STEP_COMMIT;
}

/* -- an operator's revive -- */

static step step_revive_lock(txn *t)
{
    int i = (int)t->s->request.id - 1;

    if (!failed(t->seen, i)) return STEP_COMMIT;
    if (!lock(t, JOB_ROW + i, UPDATE)) return STEP_WAIT;
    return failed(t->last, i) ? STEP_revive_all_move : STEP_COMMIT;
}

/* The row is ours: out of failed and into job. */
static step step_revive_all_move(txn *t)
{
    jobq_event event;

    memset(&event, 0, sizeof event);
    event.kind = JOBQ_EVENT_REVIVE;
    jobq__memory_decide((jobq_memory *)(uintptr_t)t->last,
                        write_job(t, (int)t->s->request.id - 1), &event, t->b->now_us);
    return STEP_edges_revive_hold;
}

static bool holds_again(const txn *t, const jobq_memory_edge *e)
{
    return e->child != 0 && e->parent == t->s->request.id && e->ended &&
           seen_job(t, e->child - 1)->state == JOBQ_STATE_WAITING;
}

static step step_edges_revive_hold(txn *t)
{
    jobq_memory_edge *e;
    int i;

    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        if (!holds_again(t, &t->seen->edges[i])) continue;
        if (!lock(t, EDGE_ROW + i, NO_KEY_UPDATE)) return STEP_WAIT;
        if (!holds_again(t, &t->last->edges[i])) continue;
        e = write_edge(t, i);
        e->ended = false;
        e->holds = true;
    }
    return STEP_COMMIT;
}

/* -- a job that enqueues others and waits for them -- */

static bool is_spawn(const wire *s)
{
    return set->spawn && s->own && s->request.kind == JOBQ_REQUEST_SETTLE;
}

/* The new jobs. Nobody else can have their rows. */
static step step_wait_here_enqueue(txn *t)
{
    int i;

    t->b->count = 0;
    for (i = 1; i < JOBS && t->b->count < SPAWNED; i++) {
        jobq_memory_job *mj;
        if (jobq__memory_jobs(t->last)[i].job.id != 0 || !unlocked(t->w, JOB_ROW + i)) continue;
        lock(t, JOB_ROW + i, UPDATE);
        mj = write_job(t, i);
        mj->job = jobq_job_new(i + 1);
        mj->job.queue = mj->job.kind = 1;
        mj->job.enqueued_at_us = mj->job.run_at_us = t->b->now_us;
        t->b->jobs[t->b->count++] = (uint8_t)i;
    }
    JOBQ_ASSERT(t->b->count == SPAWNED); /* else the world needs more JOBS */
    return STEP_wait_here_link;
}

/* Writes the edges, and flow_id into the row of the job itself: a row that others may have. */
static step step_wait_here_link(txn *t)
{
    int child = (int)item(t)->job, i;

    if (exists(seen_job(t, child - 1)) && !lock(t, JOB_ROW + child - 1, NO_KEY_UPDATE)) {
        return STEP_WAIT;
    }
    for (i = 0; i < t->b->count; i++) insert_edge(t, t->b->jobs[i] + 1, child, JOBQ_ON_ANY, false);
    return STEP_settle_lock;
}

/* -- signals -- */

/* ON CONFLICT DO NOTHING: there is one sender. */
static step step_signal_insert(txn *t)
{
    if (!lock(t, SIGNAL_ROW, UPDATE)) return STEP_WAIT;
    write_mark(t, SIGNAL_ROW, true);
    return STEP_signal_nudge;
}

static step step_signal_nudge(txn *t)
{
    insert_nudge(t, 0, false);
    return promote_here(t, STEP_COMMIT);
}

static step step_lock_claimed_row(txn *t)
{
    const jobq_request *r = &t->s->request;
    int i = (int)r->id - 1;

    t->s->answer.error = JOBQ_ERROR_LOST;
    if (!job_holds(t->seen, i, r->worker, r->claim)) return STEP_RAISE;
    if (!lock(t, JOB_ROW + i, NO_KEY_UPDATE)) return STEP_WAIT;
    if (!job_holds(t->last, i, r->worker, r->claim)) return STEP_RAISE;
    t->s->answer.error = JOBQ_OK;
    return STEP_signal_of_claim_look;
}

static step step_signal_of_claim_look(txn *t)
{
    t->s->answer.done = tables_of(t->seen)->sent;
    if (!t->s->answer.done) return STEP_signal_of_claim_wait;
    return delete_wait(t, (int)t->s->request.id - 1) ? STEP_COMMIT : STEP_WAIT;
}

/* ON CONFLICT DO UPDATE: the time limit of the first call stays. */
static step step_signal_of_claim_wait(txn *t)
{
    int i = (int)t->s->request.id - 1;
    int64_t until_us = tables_of(t->last)->until_us[i];

    if (!lock(t, WAIT_ROW + i, UPDATE)) return STEP_WAIT;
    if (until_us == 0) until_us = t->b->now_us + TIME_LIMIT * TICK;
    t->w->rows.until_us[i] = until_us;
    note_write(t, WAIT_ROW + i);
    t->s->answer.due_us = jobq__max(until_us - t->b->now_us, 0);
    return STEP_COMMIT;
}

/* A job that was put back, and then this step. */
static step put_back(txn *t, int i, step then)
{
    if (!flows()) return then;
    t->b->flow.ended = bit(i);
    t->b->flow.then = (uint8_t)then;
    return STEP_signal_look_nudge;
}

static step step_signal_look_nudge(txn *t)
{
    flow_work *f = &t->b->flow;
    int i;

    for (i = 0; i < JOBS; i++) {
        if ((f->ended >> i & 1) == 0 || tables_of(t->seen)->until_us[i] == 0) continue;
        insert_nudge(t, 0, false);
    }
    f->ended = 0;
    return (step)f->then;
}

static bool awaits(const txn *t, const jobq_memory *m, int i)
{
    const jobq_job *job = &jobq__memory_jobs(m)[i].job;

    return job->state == JOBQ_STATE_READY && job->run_at_us > t->b->now_us;
}

static step step_look_signals_find(txn *t)
{
    flow_work *f = &t->b->flow;
    int i;

    f->signal = false;
    f->jobs = 0;
    for (i = 0; i < JOBS && tables_of(t->seen)->sent; i++) {
        if (tables_of(t->seen)->until_us[i] != 0 && awaits(t, t->seen, i)) f->jobs |= bit(i);
    }
    return f->jobs != 0 ? STEP_look_signals_lock : STEP_promote_delete;
}

static step step_look_signals_lock(txn *t)
{
    flow_work *f = &t->b->flow;
    int i;

    f->held = 0;
    for (i = 0; i < JOBS; i++) {
        if ((f->jobs >> i & 1) == 0 || seen_job(t, i)->state != JOBQ_STATE_READY) continue;
        if (!f->signal_own || !lock(t, JOB_ROW + i, UPDATE)) continue;
        if (jobq__memory_jobs(t->last)[i].job.state == JOBQ_STATE_READY) f->held |= bit(i);
    }
    f->signal_skipped = f->held != f->jobs;
    f->ready = f->held;
    f->decided |= f->held;
    return look_on(t);
}
