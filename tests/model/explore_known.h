/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * explore_known.h -- schedules, and jobs with a key. A part of explore.c.
 *
 * The world "schedule" has one schedule, which fires every other tick and misses nothing. It ends
 * after two of them. In the world "known" producers enqueue jobs with one key
 * that is known while its job lives. Firing and enqueueing are one step each here. In SQL the lock
 * of the schedule's row, and of the key's, makes them so. The job that waits becomes ready with the
 * commit of the function that ends its predecessor, in whose transaction jobq._promote runs.
 */
enum { EVERY = 2, FIRED = 2, KEY = 5 };

/* The payload of the n-th enqueue is the n-th of them. */
static const char payloads[] = "0123456789";

static int payload_of(const jobq_memory_job *mj)
{
    return mj->payload.ptr == NULL ? 0 : (int)(mj->payload.ptr - payloads);
}

static void begin_schedule(world *w)
{
    model_schedule s;

    if (!set->schedule) return;
    memset(&s, 0, sizeof s);
    s.every_us = EVERY * TICK;
    s.missed = JOBQ_MISSED_ALL;
    s.queue = s.kind = 1;
    model_schedule_add(store(w), &s, store_us(w));
}

/* Promise 1, of ticks: never two jobs of one, never none, and none too early. */
static void check_fired(world *w, const jobq_memory *before, int64_t now_us)
{
    jobq_memory *m = store(w);
    int i;

    if (!set->schedule) return;
    for (i = before->job_count; i < m->job_count; i++) {
        int64_t tick_us = model_job_of(m, i + 1)->tick_us;
        int64_t want_us = (2000 + EVERY * (i + 1)) * TICK;
        if (tick_us < want_us) violate("promise 1: a tick has two jobs");
        if (tick_us > want_us) violate("promise 1: a tick has no job");
        if (tick_us > now_us) violate("a tick was fired before its time");
    }
    if (m->job_count < FIRED) return;
    model_of(m)->schedules[0].tick_us = model_of(m)->schedules[0].next_us = JOBQ_NEVER;
}

/* Whether a tick is still to fire. */
static bool waiting(const world *w)
{
    return set->schedule && store(w)->job_count < FIRED;
}

/* Whatever is accepted takes the place of what has not begun. */
static void produce(world *w, jobq_known how)
{
    model_key key = {.key = KEY, .on_known = how, .unique_for = JOBQ_UNIQUE_LIVE};
    jobq_job like = jobq_job_new(0);
    bool live = false, accepted;
    int64_t id;
    int i, did;

    for (i = 0; i < store(w)->job_count; i++) live |= !jobq_state_final(job_at(w, i)->state);
    accepted = !live || how == JOBQ_KNOWN_REPLACE || how == JOBQ_KNOWN_MERGE ||
               how == JOBQ_KNOWN_CANCEL;
    like.queue = like.kind = 1;
    w->produced++;
    did = model_enqueue_known(store(w), &like, (jobq_str){&payloads[w->produced], 1}, &key,
                              store_us(w), &id);
    if (accepted) w->newest = w->produced;
    if (accepted == (did == JOBQ_KNOWN_LEAVE || did == JOBQ_KNOWN_REJECT ||
                     did == JOBQ_KNOWN_BUMP)) {
        violate("a producer is told otherwise than what became of its job");
    }
}

/* The newest accepted payload runs, waits or has ended. If it waits, then for the one other job of
 * the key that lives. */
static void check_known(const world *w)
{
    const jobq_memory_job *jobs = jobq__memory_jobs(store(w));
    int i, begun = 0, count = store(w)->job_count, running = 0;
    bool found = false;

    if (!set->known) return;
    for (i = 0; i < count; i++) {
        const jobq_memory_job *mj = &jobs[i];
        found |= payload_of(mj) == w->newest;
        running += mj->job.state == JOBQ_STATE_RUNNING;
        if (jobq_state_final(mj->job.state)) continue;
        if (mj->job.state != JOBQ_STATE_WAITING) {
            begun++;
        } else if (mj->follows == 0 || jobq_state_final(jobs[mj->follows - 1].job.state)) {
            violate("job %d waits, but its predecessor is gone", i + 1);
        } else if (i != count - 1) {
            violate("job %d waits, but it is not the newest of its key", i + 1);
        }
    }
    if (!found) violate("the newest accepted payload of the key is lost");
    if (running > 1) violate("two jobs of one key run at once");
    if (begun > 1) violate("two jobs of one key live, and neither waits for the other");
}

static void list_producers(const world *w, moves *all)
{
    int how;

    if (w->left[MOVE_PRODUCE] == 0 || store(w)->job_count == JOBS || open_count(w) > 0) return;
    for (how = JOBQ_KNOWN_LEAVE; how <= JOBQ_KNOWN_REJECT; how++) {
        add(all, MOVE_PRODUCE, 0, how, 0);
    }
}

/* A payload may change only while its job has not begun. */
static void check_begun(const world *w, const jobq_memory *before)
{
    int i;

    for (i = 0; i < before->job_count; i++) {
        const jobq_memory_job *a = &jobq__memory_jobs(before)[i];
        if (a->job.state != JOBQ_STATE_RUNNING) continue;
        if (payload_of(a) != payload_of(&jobq__memory_jobs(store(w))[i])) {
            violate("the payload of job %d changes while it runs", i + 1);
        }
    }
}

static void put_known(digest *g)
{
    const model_schedule *s = &model_of(store(g->w))->schedules[0];
    int i;

    if (set->schedule) {
        put(g, s->tick_us == JOBQ_NEVER
                   ? 99 : jobq__max((s->tick_us - store_us(g->w)) / TICK, -4 * EVERY));
    }
    if (!set->known) return;
    put(g, g->w->left[MOVE_PRODUCE] * 256 + g->w->produced * 16 + g->w->newest);
    for (i = 0; i < store(g->w)->job_count; i++) {
        const jobq_memory_job *mj = &jobq__memory_jobs(store(g->w))[i];
        put(g, payload_of(mj) * 16 + mj->follows);
    }
}
