/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * simulate_graphs.h -- random graphs of jobs that wait for others: 1,000 for each seed, GRAPHS in a
 * world. A part of simulate.c.
 *
 * A graph has three to seven jobs. Each waits for up to two that came before it: for a success, a
 * failure or any end; another end holds it, or cancels it. Workers run them under the same faults
 * as in the first world of a seed. Some handlers enqueue two jobs more and wait for them. Operators
 * cancel jobs and revive those that failed. After each statement, and after each operator, the laws
 * 22 to 24 must hold. When the faults have stopped, what failed is revived once more, and every job
 * ends, unless one above it was cancelled or has failed again.
 */
enum { GRAPHS = 25, GRAPH_WORLDS = 1000 / GRAPHS, GRAPH_JOBS = GRAPHS * 14 };

/* Law (22): in memory it is done at once. */
static void check_graphs(void)
{
    int i;

    for (i = 0; i < store->job_count; i++) {
        laws_fate fate = laws_fate_of(store, store, i);
        if (jobq__memory_jobs(store)[i].job.state != JOBQ_STATE_WAITING) continue;
        if (fate == LAWS_READY || fate == LAWS_OVER) {
            violate("law 22: job %d waits for nothing", i + 1);
        }
    }
}

/* What somebody does with one job, between two looks at the others. */
static void touch(int64_t id, jobq_event_kind kind)
{
    wire s;
    int64_t job = 0;
    const char *wrong;

    memcpy(before, store, sizeof *store + (size_t)store->job_count * sizeof(jobq_memory_job));
    jobq_memory_event(store, id, kind, store_us());
    memset(&s, 0, sizeof s);
    s.request.kind = JOBQ_REQUEST_COUNT;
    s.request.id = id;
    wrong = laws_written(before, store, &s, store_us(), &job);
    if (wrong != NULL) violate("%s (job %d)", wrong, (int)job);
    check_graphs();
    trace("somebody touches job %d: %s", (int)id,
          jobq_enum_name(JOBQ_ENUM_STATE, job_of(id)->state));
}

static int64_t graph_job(void)
{
    jobq_job like = jobq_job_new(0);

    like.queue = 1;
    like.kind = (int32_t)between(1, 2);
    like.max_attempts = (int32_t)between(1, 3);
    if (chance(100)) like.run_at_us = store_us() + between(0, 20 * SECOND);
    if (w->crashing > 0 && chance(20)) {
        w->crashing--;
        like.kind = KIND_CRASHING;
    }
    return jobq_memory_enqueue(store, &like, jobq_str_from(NULL), store_us());
}

static jobq_on_end some_end(void)
{
    if (chance(600)) return JOBQ_ON_SUCCESS;
    return chance(600) ? JOBQ_ON_ANY : JOBQ_ON_FAILURE;
}

static void enqueue_graph(void)
{
    int64_t first = store->job_count + 1, id;
    int32_t count = (int32_t)between(3, 7), i, parents;
    int64_t cascade = between(0, 2) * 500; /* none, some, all */

    w->graphs++;
    for (i = 0; i < count; i++) {
        id = graph_job();
        for (parents = i == 0 ? 0 : (int32_t)between(0, 2); parents > 0; parents--) {
            jobq_on_end on_end = some_end();
            bool cascades = chance(cascade);
            if (jobq_state_final(job_of(id)->state)) break;
            jobq__memory_after(store, id, between(first, id - 1), on_end, cascades, store_us());
        }
    }
    check_graphs();
    trace("graph %d is enqueued: jobs %d to %d", (int)w->graphs, (int)first, store->job_count);
    wake_sleepers(count);
}

/* The handler's own transaction: two jobs, and its own waits for them. Whether it has committed. */
static bool spawn(const jobq_job *job)
{
    int32_t i;

    if (!jobq_job_holds(job_of(job->id), job->worker, job->claim)) return false;
    if (store->job_count + 2 > GRAPH_JOBS) return false;
    for (i = 0; i < 2; i++) {
        jobq_on_end on_end = some_end();
        bool cascades = chance(300);
        model_after(store, job->id, graph_job(), on_end, cascades, store_us());
    }
    touch(job->id, JOBQ_EVENT_WAIT);
    wake_sleepers(2);
    return true;
}

static void operate_graphs(void)
{
    int64_t id = store->job_count > 0 ? between(1, store->job_count) : 0;

    if (id == 0) return;
    if (job_of(id)->state == JOBQ_STATE_FAILED) touch(id, JOBQ_EVENT_REVIVE);
    else if (!jobq_state_final(job_of(id)->state) && chance(100)) touch(id, JOBQ_EVENT_CANCEL);
}

static void calm_graphs(void)
{
    int64_t id;

    while (w->graphs < GRAPHS) enqueue_graph();
    for (id = 1; id <= store->job_count; id++) {
        if (job_of(id)->state == JOBQ_STATE_FAILED) touch(id, JOBQ_EVENT_REVIVE);
    }
}

static bool graphs_ended(void)
{
    int i;

    if (!w->calm) return false;
    for (i = 0; i < store->job_count; i++) {
        jobq_state state = jobq__memory_jobs(store)[i].job.state;
        if (!jobq_state_final(state) && !laws_held(store, i)) return false;
    }
    return true;
}

static void handle_graphs(const event *e)
{
    if (w->calm) return;
    if (e->kind == EVENT_GRAPH && w->graphs < GRAPHS) enqueue_graph();
    if (e->kind == EVENT_TOUCH) operate_graphs();
    plan(w->now_us + between(0, e->kind == EVENT_GRAPH ? 2 * w->calm_us / GRAPHS : 4 * SECOND),
         e->kind, -1);
}

static void settle_graphs(void)
{
    int n;

    w->config.lease_us = between(1, 3) * 6 * SECOND;
    w->config.prune_us = 60 * SECOND;
    w->config = jobq_loop_config_defaults(&w->config);
    w->crashing = 2;
    w->waits = true;
    w->calm_us = 200 * SECOND;
    node_count = (int)between(2, 5);
    for (n = 1; n <= OUTBOX; n++) hold(n, false);
    for (n = 0; n < node_count; n++) {
        w->nodes[n].base_us = between(1, 1000) * HOUR;
        w->nodes[n].drift_ppm = between(-200, 200);
        plan(between(0, SECOND), EVENT_START, n);
    }
    plan(0, EVENT_GRAPH, -1);
    plan(0, EVENT_TOUCH, -1);
    plan(0, EVENT_FAULT, -1);
}
