/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * explore_graphs.h -- jobs that wait for others, for a signal, or for jobs that they enqueue: the
 * worlds, what happens in them, and the laws 22 to 25 of jobq.h. A part of explore.c; the
 * statements are in explore_flows.h.
 *
 * In the world "diamond" jobs 2 and 3 wait for job 1, and job 4 for both. Its graph lists the
 * edges: "34c" is one from job 3 to job 4, which lets it run after a success; any other end cancels
 * it. s: any other end holds it; a: any end lets it run. In the world "signal" the handler of job 1
 * asks for a signal, with a time limit, and someone sends it at any moment, or never. In the world
 * "spawn" the handler of job 1 enqueues two jobs and waits for them, in one transaction of its own;
 * when it runs again, it succeeds.
 *
 * What somebody else does (a cancel, a revive, the signal) is a statement of a connection of its
 * own: it is executed whole, or in parts, or given up.
 */
enum { OUTSIDE = NODES - 1 };

/* What a handler knows of the signal: nothing yet; it did not come; it came, or will not. */
enum { ASKS, WAITS_ON, KNOWS };

static int open_edges(const jobq_memory *m, int64_t child)
{
    int i, count = 0;

    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) count += child != 0 && m->edges[i].child == child;
    return count;
}

static void begin_graph(world *w)
{
    const char *at = set->graph;

    for (; at != NULL && *at != '\0'; at += at[3] == '\0' ? 3 : 4) {
        jobq__memory_after(store(w), at[1] - '0', at[0] - '0',
                          at[2] == 'a' ? JOBQ_ON_ANY : JOBQ_ON_SUCCESS, at[2] == 'c', store_us(w));
    }
}

/* Time and what a server may refuse matter little here, and have worlds of their own. */
static void bound_flows(world *w)
{
    if (!flows()) return;
    w->left[MOVE_HOLD] = w->left[MOVE_STOP] = w->left[MOVE_BUSY] = w->left[MOVE_NOTIFY] = 0;
    w->left[MOVE_SLOW] = w->left[MOVE_PAUSE] = w->left[MOVE_STEP] = w->left[MOVE_REFUSE] = 0;
    w->left[MOVE_SEND] = set->signal;
    w->left[MOVE_REVIVE] = set->graph != NULL;
}

/* ---- what happens ---------------------------------------------------------------------------- */

static void somebody(world *w, int kind, int64_t job)
{
    wire s;

    memset(&s, 0, sizeof s);
    s.request.kind = (jobq_request_kind)kind;
    s.request.id = job;
    haunt(w, OUTSIDE, &s);
}

/* Whether somebody else is not busy. */
static bool at_leisure(const world *w)
{
    int i;

    for (i = 0; i < w->zombies && w->ghosts[i].node != OUTSIDE;) i++;
    return i == w->zombies && w->zombies < ZOMBIES;
}

static void list_somebody(const world *w, moves *all)
{
    int i;

    if (!flows() || !at_leisure(w)) return;
    if (w->left[MOVE_SEND] > 0) add(all, MOVE_SEND, 0, 0, 0);
    for (i = 0; i < store(w)->job_count && w->left[MOVE_REVIVE] > 0; i++) {
        if (failed(store(w), i)) add(all, MOVE_REVIVE, 0, i + 1, 0);
    }
}

/* Its own transaction, beside the loop's connection. */
static void look_for_signal(world *w, int n, int32_t slot)
{
    const jobq_job *job = &w->nodes[n].loop.slots[slot].job;
    wire s;

    memset(&s, 0, sizeof s);
    s.request.kind = (jobq_request_kind)HANDLER_LOOKS;
    s.request.id = job->id;
    s.request.worker = job->worker;
    s.request.claim = job->claim;
    s.answer.error = JOBQ_ERROR_RETRYABLE;
    execute(w, n, &s, true);
    w->delays_us[n] = s.answer.error == JOBQ_OK ? s.answer.due_us : TICK;
    w->looked[n] = s.answer.error == JOBQ_OK && (s.answer.done || s.answer.due_us == 0) ? KNOWS
                                                                                       : WAITS_ON;
}

/* Whether a handler is the one that spawns, and has not yet. */
static bool spawns(const world *w, const jobq_job *job)
{
    return set->spawn && job->id == 1 && open_edges(store(w), 1) == 0;
}

static void spawn(world *w, int n, int32_t slot, own_end end)
{
    const jobq_slot *s = &w->nodes[n].loop.slots[slot];
    jobq_event event;
    wire own;

    memset(&event, 0, sizeof event);
    event.kind = JOBQ_EVENT_WAIT;
    memset(&own, 0, sizeof own);
    own.own = true;
    own.request.kind = JOBQ_REQUEST_SETTLE;
    own.request.ending_count = 1;
    own.request.endings[0].job = s->job.id;
    own.request.endings[0].worker = s->job.worker;
    own.request.endings[0].claim = s->job.claim;
    jobq_job_decide(&policy, &s->job, &event, &own.request.endings[0].decision);
    if (own.request.endings[0].decision.attempt != s->job.attempt - 1) {
        violate("law 4: a job that waits has used up an attempt");
    }
    own.errors[0] = JOBQ_ERROR_RETRYABLE;
    if (end == OWN_LATE) haunt(w, n, &own);
    else if (end != OWN_ROLLED_BACK) execute(w, n, &own, true);
    finish(w, n, slot, end == OWN_COMMITTED && own.errors[0] == JOBQ_OK ? JOBQ_OUTCOME_DONE
                                                                        : JOBQ_OUTCOME_RETRY);
}

/* The handler ends well: with what it has come to know, in this world. */
static void finish_well(world *w, int n, int32_t slot)
{
    jobq_loop *l = &w->nodes[n].loop;

    if (spawns(w, &l->slots[slot].job)) {
        spawn(w, n, slot, OWN_COMMITTED);
    } else if (set->signal && w->looked[n] == WAITS_ON) {
        fix_chance(w, n);
        told_handled(l, mono_us(w), slot, l->slots[slot].generation, JOBQ_OUTCOME_SNOOZE,
                     w->delays_us[n], true);
        check_decision(&l->slots[slot], JOBQ_OUTCOME_SNOOZE);
    } else {
        finish(w, n, slot, JOBQ_OUTCOME_SUCCESS);
    }
}

/* ---- the laws -------------------------------------------------------------------------------- */

static laws_fate fate_of(const world *w, int i) { return laws_fate_of(store(w), store(w), i); }

static bool is_held(laws_fate fate) { return fate == LAWS_HELD || fate == LAWS_CANCELLED; }

static bool held_by_parents(const world *w, int i) { return laws_held(store(w), i); }

/* Whether a nudge that is committed names a job, and if it must, says that it cannot run. */
static bool nudged(const world *w, int job, bool cancel)
{
    const nudge *n = tables_of(store(w))->nudges;
    int i;

    for (i = 0; i < NUDGES; i++) {
        if (n[i].used && n[i].job == job && (n[i].cancel || !cancel)) return true;
    }
    return false;
}

/* A job that waits for the signal, which was sent. */
static bool is_signalled(const world *w, int i)
{
    const jobq_job *job = job_at(w, i);

    return tables_of(store(w))->sent && tables_of(store(w))->until_us[i] != 0 &&
           job->state == JOBQ_STATE_READY && job->run_at_us > store_us(w);
}

/* What is decided, but not yet done. */
static bool is_decided(const world *w, int i)
{
    if (is_signalled(w, i)) return true;
    return job_at(w, i)->state == JOBQ_STATE_WAITING && !is_held(fate_of(w, i));
}

/* Law (22), at any moment: whoever decides about a job leaves a nudge. */
static void check_waits(const world *w, int i)
{
    if (is_signalled(w, i) && !nudged(w, 0, false)) {
        violate("law 22: the signal was sent, job %d waits for it, and nobody will look", i + 1);
    }
    if (job_at(w, i)->state != JOBQ_STATE_WAITING || is_held(fate_of(w, i))) return;
    if (nudged(w, i + 1, fate_of(w, i) == LAWS_OVER)) return;
    violate("law 22: job %d waits for nothing, and nobody will look", i + 1);
}

/* Law (24), and no edge or wait outlives its jobs. */
static void check_edges(const world *w)
{
    bool busy = open_count(w) > 0;
    int i;

    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        const jobq_memory_edge *e = &store(w)->edges[i];
        const jobq_job *child = e->child == 0 ? NULL : job_at(w, e->child - 1);
        if (child == NULL) continue;
        if (child->state == JOBQ_STATE_RUNNING && e->on_end == JOBQ_ON_SUCCESS &&
            job_at(w, e->parent - 1)->state == JOBQ_STATE_CANCELLED) {
            violate("law 24: job %d runs, but what it waited for was cancelled", e->child);
        }
        if (exists(child) || exists(job_at(w, e->parent - 1)) || busy) continue;
        if (failed(store(w), e->child - 1)) continue; /* it may be revived, and ask for them */
        if (!nudged(w, e->child, false)) violate("an edge is left, though its jobs are gone");
    }
    for (i = 0; i < JOBS; i++) {
        if (tables_of(store(w))->until_us[i] == 0 || exists(job_at(w, i))) continue;
        violate("job %d has ended, but still waits for the signal", i + 1);
    }
}

static void check_flows(const world *w)
{
    int i, jobs = 0;

    if (!flows()) return;
    for (i = 0; i < store(w)->job_count; i++) {
        check_waits(w, i);
        jobs += job_at(w, i)->id != 0;
    }
    check_edges(w);
    if (set->spawn && jobs != 1 + SPAWNED * w->spawned) {
        violate("law 25: %d jobs were spawned, and %d ends that named two were accepted", jobs - 1,
                w->spawned);
    }
}

/* A revive that commits beside a promote comes before it, or after. */
static bool may_be_early(const backend *b, const jobq_memory *before, int64_t job,
                         const char *wrong)
{
    int i;

    if (wrong == laws_instant) {
        return set->signal && tables_of(before)->until_us[job - 1] != 0 &&
               tables_of(before)->sent + b->flow.signal + b->flow.decided > 0;
    }
    for (i = 0; i < JOBQ_MEMORY_EDGES && wrong == laws_early; i++) {
        if (before->edges[i].child == job && of_jobs(b->flow.revived, before->edges[i].parent)) {
            return true;
        }
    }
    return false;
}

/* Law (22), for good: two heartbeats that nothing disturbs. */
static void check_heartbeat(world *w)
{
    int i;

    for (i = 0; i < JOBS; i++) {
        if (is_decided(w, i) && ++w->late[i] == 2) {
            violate("law 22: job %d is left to wait by two heartbeats", i + 1);
        }
    }
}

static void check_flows_written(world *w, const backend *b, const wire *s, const image *before,
                                bool alone)
{
    const jobq_memory *was = &before->memory;
    const jobq_ending *e = s->request.endings;
    int i;

    if (!flows()) return;
    (void)b;
    if (s->request.kind == (jobq_request_kind)OPERATOR_REVIVE) {
        for (i = 0; i < BACKENDS; i++) {
            if (w->backends[i].step == 0) continue;
            w->backends[i].flow.revived |= bit((int)s->request.id - 1);
        }
    }
    if (is_spawn(s) && job_holds(was, (int)e->job - 1, e->worker, e->claim) &&
        !job_holds(store(w), (int)e->job - 1, e->worker, e->claim)) {
        w->spawned++;
    }
    if (alone && s->request.kind == JOBQ_REQUEST_HEARTBEAT && s->answer.news.alive) {
        check_heartbeat(w);
    }
    for (i = 0; i < JOBS; i++) {
        if (!is_decided(w, i)) w->late[i] = 0;
    }
}

/* ---- beside the in-memory queue -------------------------------------------------------------- */

/* promote, until no nudge is left. False: one stays for ever. */
static bool drain(world *w)
{
    backend *b = w->backends, was;
    int rounds, i;
    wire s;

    for (rounds = 0; rounds < 6; rounds++) {
        for (i = 0; i < NUDGES && !tables_of(store(w))->nudges[i].used;) i++;
        if (i == NUDGES) return true;
        memset(&s, 0, sizeof s);
        b->step = STEP_promote_take;
        b->flow.here = false;
        b->flow.after = STEP_COMMIT;
        b->now_us = store_us(w);
        if (!go_on(w, 0, &s, INT32_MAX, &was)) return false;
    }
    return false;
}

static bool same_edge(const jobq_memory *m, const jobq_memory_edge *e)
{
    int i;

    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        const jobq_memory_edge *o = &m->edges[i];
        if (o->child != e->child || o->parent != e->parent) continue;
        return o->ended == e->ended && o->holds == e->holds;
    }
    return false;
}

/* Nobody disturbs a function, and nothing is left to look at. Then it, and the promotes after it,
 * write what the in-memory queue writes at once. */
static void check_twin_flows(const world *w, const wire *s, const image *before,
                             const image *twin)
{
    static world calmed;
    int i;

    if (set->signal || is_spawn(s)) return;
    for (i = 0; i < NUDGES; i++) {
        if (tables_of(&before->memory)->nudges[i].used) return;
    }
    copy_world(&calmed, w);
    if (!drain(&calmed)) violate("a nudge stays for ever");
    if (memcmp(jobq__memory_jobs(store(&calmed)), jobq__memory_jobs(&twin->memory),
               MEMORY_SIZE - sizeof(jobq_memory)) != 0) {
        violate("the steps of %s and the in-memory queue write different rows",
                jobq_enum_name(JOBQ_ENUM_REQUEST, s->request.kind));
    }
    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        const jobq_memory_edge *e = &store(&calmed)->edges[i];
        if (e->child == 0 || !exists(job_at(&calmed, e->child - 1))) continue;
        if (!same_edge(&twin->memory, e)) {
            violate("the steps and the in-memory queue write different edges");
        }
    }
}

/* ---- what a state means ---------------------------------------------------------------------- */

static void put_flows(digest *g, const jobq_memory *m)
{
    const tables *own = tables_of(m);
    uint64_t sum = 0;
    int i;

    if (!flows()) return;
    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        const jobq_memory_edge *e = &m->edges[i];
        if (e->child == 0) continue;
        sum += mix(mix(31, e->parent * 16 + e->child), e->ended * 2 + e->holds);
    }
    for (i = 0; i < NUDGES; i++) {
        const nudge *n = &own->nudges[i];
        if (n->used) sum += mix(37, n->job * 64 + n->cancel * 32 + n->by);
    }
    put(g, (int64_t)sum);
    put(g, own->sent);
    for (i = 0; i < JOBS && set->signal; i++) put(g, jobq__max(instant(g, own->until_us[i]), 0));
}

static void put_flow_work(digest *g, const flow_work *f)
{
    if (!flows()) return;
    put(g, f->ended * 65536 + f->jobs * 256 + f->cancel);
    put(g, f->held * 65536 + f->skipped * 256 + f->undecided);
    put(g, f->ready * 65536 + f->decided * 256 + f->revived);
    put(g, f->nudges * 65536 + f->then * 256 + f->after);
    put(g, f->state * 8 + f->signal * 4 + f->signal_skipped * 2 + f->linked);
    put(g, f->own * 4 + f->here * 2 + f->signal_own);
}

static void put_waits(digest *g)
{
    const world *w = g->w;
    int i;

    if (!flows()) return;
    put(g, w->left[MOVE_SEND] * 4096 + w->left[MOVE_REVIVE] * 256 + w->spawned);
    for (i = 0; i < JOBS; i++) put(g, w->late[i]);
    for (i = 0; i < set->nodes && set->signal; i++) {
        put(g, w->looked[i] * 64 + (w->delays_us[i] + TICK - 1) / TICK);
    }
}

static void say_flows(const world *w)
{
    const tables *own = tables_of(store(w));
    int i;

    if (!flows()) return;
    printf("      ");
    for (i = 0; i < JOBQ_MEMORY_EDGES; i++) {
        const jobq_memory_edge *e = &store(w)->edges[i];
        if (e->child == 0) continue;
        printf(" %d->%d%s%s", e->parent, e->child, e->ended ? " ended" : "",
               e->holds ? "" : " free");
    }
    for (i = 0; i < NUDGES; i++) {
        if (!own->nudges[i].used) continue;
        printf(" nudge %d%s", own->nudges[i].job, own->nudges[i].cancel ? " cancel" : "");
    }
    if (own->sent) printf(" sent");
    printf("\n");
}

/* Whether a statement has locked or written what these worlds are about. The jobs of a claim are of
 * no interest, nor are the rows of workers. */
static bool touched_flows(const rows *before, const rows *after, int kind)
{
    bool jobs = kind != JOBQ_REQUEST_CLAIM;
    int i;

    for (i = jobs ? JOB_ROW : EDGE_ROW; i < LOCKS; i++) {
        if (i == WORKER_ROW) i = EDGE_ROW;
        if (before->writer[i] != after->writer[i]) return true;
        if (memcmp(before->locks[i], after->locks[i], sizeof before->locks[i]) != 0) return true;
    }
    return memcmp(before->nudges, after->nudges, sizeof before->nudges) != 0;
}
