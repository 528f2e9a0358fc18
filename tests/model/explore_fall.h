/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * explore_fall.h -- the server crashes and forgets the last commits that did not wait for the disk:
 * law 17 of jobq.h. A part of explore.c.
 *
 * Postgres has one log, so a commit that waits for the disk also makes all earlier commits durable.
 * Until then the world keeps the store as it was before each of the last RELAXED commits that did
 * not wait. A crash undoes any number of them, the last ones first.
 */

/* What is on the disk no crash takes away. */
static void flushed(world *w)
{
    memset(w->disk, 0, (size_t)w->relaxed * sizeof w->disk[0]);
    w->relaxed = 0;
}

/* The operating system writes in the end, waited for or not. */
static void flush_oldest(world *w)
{
    memmove(&w->disk[0], &w->disk[1], (RELAXED - 1) * sizeof w->disk[0]);
    w->relaxed--;
}

/* Whether a statement gave numbers: then its commit waits. */
static bool numbered(const world *w, const image *before)
{
    const jobq_memory *was = (const jobq_memory *)(const void *)before->bytes;
    int i;

    for (i = 0; i < set->partitions; i++) {
        if (store(w)->partitions[i].last != was->partitions[i].last) return true;
    }
    return false;
}

static void committed(world *w, const image *before, bool relaxed)
{
    if (memcmp(before, &w->store, sizeof *before) == 0) return;
    if (!relaxed || numbered(w, before) || !may(w, MOVE_FALL)) {
        flushed(w);
        return;
    }
    if (w->relaxed == RELAXED) flush_oldest(w);
    w->disk[w->relaxed++] = *before;
}

static bool is_forgotten(const world *w, int64_t worker, int64_t claim)
{
    int i;

    for (i = 0; i < w->forgotten_count; i++) {
        if (w->forgotten[i].worker == worker && w->forgotten[i].claim == claim) return true;
    }
    return false;
}

static void forget(world *w, int64_t worker, int64_t claim)
{
    if (claim == 0 || is_forgotten(w, worker, claim)) return;
    JOBQ_ASSERT(w->forgotten_count < FORGOTTEN);
    w->forgotten[w->forgotten_count].worker = worker;
    w->forgotten[w->forgotten_count++].claim = claim;
}

/* Whether a living worker still believes in a token. */
static bool borne(const world *w, const token *t)
{
    int n, i;

    for (n = 0; n < set->nodes; n++) {
        const jobq_loop *l = &w->nodes[n].loop;
        for (i = 0; i < JOBQ_LOOP_SLOTS && w->nodes[n].up; i++) {
            const jobq_job *job = &l->slots[i].job;
            if (l->slots[i].state == JOBQ_SLOT_FREE) continue;
            if (jobq_job_holds(job, t->worker, t->claim)) return true;
        }
        for (i = 0; i < l->relay.count && w->nodes[n].up; i++) {
            const jobq_part *p = &l->relay.parts[i];
            if (jobq__relay_held(p) && p->worker == t->worker && p->claim == t->claim) return true;
        }
    }
    return false;
}

/* What nobody bears any more need not be remembered; nor the past of a server that stays up. */
static void tidy_fall(world *w)
{
    int i;

    if (!may(w, MOVE_FALL)) flushed(w);
    for (i = w->forgotten_count - 1; i >= 0; i--) {
        if (borne(w, &w->forgotten[i])) continue;
        w->forgotten[i] = w->forgotten[--w->forgotten_count];
        memset(&w->forgotten[w->forgotten_count], 0, sizeof w->forgotten[0]);
    }
}

/* The store is again as it was; who had got something since does not know. */
static void undo(world *w, const image *was)
{
    const jobq_memory *m = (const jobq_memory *)(const void *)was->bytes;
    int i;

    for (i = 0; i < store(w)->claim_max; i++) {
        const jobq_memory_claim *c = &jobq__memory_claims(store(w))[i];
        if (jobq__memory_claim_of(m, c->worker, c->number) == NULL) forget(w, c->worker, c->number);
    }
    for (i = 0; i < set->partitions; i++) {
        const jobq_memory_partition *p = &store(w)->partitions[i];
        if (memcmp(p, &m->partitions[i], sizeof *p) == 0) continue;
        forget(w, p->holder.worker, p->holder.claim);
    }
    w->store = *was;
}

/* A connection ends; a process that is stopped learns of it when it goes on. */
static void sever(world *w, int n)
{
    node *d = &w->nodes[n];
    bool had = d->loop.session.connected || d->flying > 0;

    drop_flight(w, n);
    d->severed = d->severed || (had && d->paused);
    if (!had || d->paused) return;
    fix_chance(w, n);
    jobq_loop_disconnected(&d->loop, mono_us(w));
    d->severed = false;
}

static void resume(world *w, int n)
{
    node *d = &w->nodes[n];

    d->paused = false;
    if (!d->severed) return;
    d->severed = false;
    fix_chance(w, n);
    jobq_loop_disconnected(&d->loop, mono_us(w));
}

/* What a living worker has in hand keeps its numbers. */
static void check_numbers(const world *w)
{
    int n, i;

    for (n = 0; n < set->nodes; n++) {
        const jobq_relay *r = &w->nodes[n].loop.relay;
        for (i = 0; i < r->count && w->nodes[n].up; i++) {
            const jobq_part *p = &r->parts[i];
            if (jobq__relay_held(p) && p->state != JOBQ_PART_READING &&
                p->cursor.acked + p->count > store(w)->partitions[p->id - 1].last) {
                violate("law 17: a number is forgotten, but its message was handed out");
            }
        }
    }
}

static void fall(world *w, int lost)
{
    int i;

    if (lost > 0) {
        image was = w->disk[w->relaxed - lost];
        undo(w, &was);
        check_numbers(w);
    }
    flushed(w);
    for (i = 0; i < set->nodes; i++) {
        if (w->nodes[i].up) sever(w, i);
    }
    while (w->zombies > 0) remove_ghost(w, 0);
    for (i = 0; i < set->partitions; i++) w->held[i] = w->tick; /* a whole lease from now on */
    for (i = 0; i < set->nodes; i++) pump(w, i);
}
