/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * explore_permits.h -- the laws of sql/permits.sql, over two workers. A part of explore.c.
 *
 * In the world "permits" one job of the queue may run at a time. An exchange is one step, with its
 * heartbeat: in SQL workers exchange one after the other, under the lock of the quota's row.
 */

static void begin_permits(world *w)
{
    if (set->permits > 0) model_limit(store(w), 1, 0, set->permits, NULL);
}

/* Law (1): a worker's jobs are at most what its row says. Law (2): the rows together have no more
 * than the limit. */
static void check_permits(world *w)
{
    const jobq_memory *m = store(w);
    int32_t sum = 0, i, k;

    for (i = 0; i < MODEL_PERMITS && set->permits > 0; i++) {
        const model_permits *p = &model_of(m)->permits[i];
        int32_t running = 0;
        if (p->quota == 0) continue;
        for (k = 0; k < m->job_count; k++) {
            const jobq_job *job = &jobq__memory_jobs(m)[k].job;
            running += job->state == JOBQ_STATE_RUNNING && job->worker == p->worker;
        }
        if (running > p->held) violate("a worker runs more jobs than it has permits");
        sum += p->held;
    }
    if (sum > set->permits) violate("more permits were given out than there are");
}

/* How far a number is behind that of the worker's row; 9: it has none. */
static int64_t behind_row(const digest *g, int64_t worker, int64_t number)
{
    const model_permits *p = model_permit(store(g->w), 1, worker);

    return p == NULL ? 9 : jobq__max(jobq__min(number - p->number, 3), -3);
}

static void put_permits(digest *g, const jobq_memory *m)
{
    uint64_t sum = 0;
    int i;

    if (set->permits == 0) return;
    for (i = 0; i < MODEL_PERMITS; i++) {
        const model_permits *p = &model_of(m)->permits[i];
        if (p->quota == 0) continue;
        sum += mix(mix(99, worker_label(g, p->worker)), p->held * 64 + p->wanted * 2 +
                                                            (p->number == 0));
    }
    put(g, (int64_t)sum);
}

/* What a loop knows of its share. */
static void put_share(digest *g, const jobq_loop *l)
{
    const jobq_share *p = &l->permits.shares[0];

    if (set->permits == 0) return;
    put(g, behind_row(g, l->worker, l->permits.exchange));
    put(g, ticks(g->w, l->permits.exchange_mono_us, -2) * 16 +
               ticks(g->w, l->permits.looked_mono_us, -2));
    put(g, l->pace.rest_next * 2 + l->pace.passed_by);
    if (l->permits.share_count == 0) return;
    put(g, p->held * 4096 + p->counted * 512 + p->running * 64 + p->asked * 8 + p->orphaned);
    put(g, p->fresh * 8 + p->skipped * 4 + p->blocked * 2 + p->passed);
    put(g, ticks(g->w, p->used_mono_us, -1) * 64 + ticks(g->w, p->ask_mono_us, 0));
    put(g, p->ask_us);
}

static void put_asks(digest *g, const jobq_request *a)
{
    int32_t i;

    if (set->permits == 0 || a->kind != JOBQ_REQUEST_HEARTBEAT) return;
    put(g, behind_row(g, a->worker, a->exchange));
    for (i = 0; i < a->ask_count; i++) put(g, a->asks[i].running * 8 + a->asks[i].wanted);
}

static void say_permits(const world *w)
{
    int32_t i;

    for (i = 0; i < MODEL_PERMITS && set->permits > 0; i++) {
        const model_permits *p = &model_of(store(w))->permits[i];
        const node *d = owner(w, p->worker);
        if (p->quota == 0) continue;
        if (d != NULL) printf("       worker %d", (int)(d - w->nodes) + 1);
        else printf("       someone gone");
        printf(" holds %d and wants %d\n", p->held, p->wanted);
    }
}
