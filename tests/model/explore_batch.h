/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * explore_batch.h -- worlds whose handlers get batches: laws (30) to (32), and the loop's books of
 * its calls. The jobs of a call end one by one, so everything can happen between two ends.
 */

/* Whether a call has a job that kills its worker: none of the others ends before. */
static bool call_kills(const jobq_loop *l, int32_t slot)
{
    int i;

    for (i = 0; i < l->running_count; i++) {
        const jobq_slot *s = &l->slots[l->running[i]];
        if (s->call == l->slots[slot].call && kills(&s->job)) return true;
    }
    return false;
}

/* Law (30), of two jobs of one call. */
static void check_mates(const jobq_slot *a, const jobq_slot *b)
{
    if (a->job.suspect || b->job.suspect)
        violate("law 30: suspect %d is not alone in its call", (int)a->job.id);
    if (a->job.queue != b->job.queue || a->job.kind != b->job.kind ||
        a->job.stage != b->job.stage || a->job.attempt != b->job.attempt ||
        a->deadline_mono_us != b->deadline_mono_us || a->together != b->together)
        violate("law 30: jobs %d and %d are in one call", (int)a->job.id, (int)b->job.id);
}

static void check_calls(const jobq_loop *l)
{
    int32_t left[JOBQ_LOOP_THREADS] = {0}, calls = 0, i, k;

    for (i = 0; i < l->running_count; i++) {
        const jobq_slot *s = &l->slots[l->running[i]];
        int32_t room = set->together >> (s->job.attempt - 1);
        if (s->together > (room > 1 ? room : 1))
            violate("law 30: job %d is in a batch of %d in attempt %d", (int)s->job.id,
                    (int)s->together, (int)s->job.attempt);
        left[s->call]++;
        for (k = 0; k < i; k++) {
            const jobq_slot *o = &l->slots[l->running[k]];
            if (o->call == s->call) check_mates(o, s);
        }
    }
    for (i = 0; i < JOBQ_LOOP_THREADS; i++) {
        calls += left[i] > 0;
        if (left[i] != l->calls[i].left) violate("the loop miscounts the jobs of a call");
    }
    if (calls != l->call_count) violate("the loop miscounts its calls");
    if (calls + l->relay.running > set->threads) violate("more handlers run than threads");
}

/* Law (32), and that a job with a time limit of its own is blamed for it. */
static void check_abandon(const jobq_loop *l, const jobq_request *a)
{
    const jobq_slot *s = &l->slots[a->slot];
    const jobq_decision *d = &a->endings[0].decision;
    bool several = s->together > 1, back = a->stopping || several;

    if (d->attempt != s->job.attempt - (back && !s->cancel) &&
        d->attempt != s->job.attempt - back)
        violate("laws 9, 32: job %d overran, and its attempt is wrong", (int)s->job.id);
    if (!a->stopping && several && !s->cancel && (!d->suspect || d->state != JOBQ_STATE_READY))
        violate("law 32: job %d of a batch that overran is no suspect", (int)s->job.id);
    if (!several && !a->stopping && d->suspect)
        violate("law 32: job %d overran alone, and is a suspect", (int)s->job.id);
    if (d->crash != s->job.crash) violate("law 32: a crash of job %d counts", (int)s->job.id);
}

static void put_calls(digest *g, const jobq_loop *l)
{
    int i, k;

    put(g, l->batch.per_call);
    for (i = 0; i < l->running_count; i++) {
        const jobq_slot *s = &l->slots[l->running[i]];
        for (k = 0; l->slots[l->running[k]].call != s->call;) k++;
        put(g, k * 8 + s->together);
    }
    for (i = l->queued.head; set->gather > 0 && i >= 0; i = l->slots[i].next)
        put(g, ticks(g->w, l->slots[i].since_mono_us, -set->gather));
}
