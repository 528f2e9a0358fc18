/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * fleet.h -- loops on one jobq_memory with a simulated clock. Their statements take time, arrive
 * late, or lose their answers; processes die, stop for a while, and lose their connections. A test
 * includes it after jobq.h and defines the two hooks.
 */
#ifndef FLEET_INCLUDED
#define FLEET_INCLUDED (1)

#include "check.h"
#include "model.h"

#define MS ((int64_t)1000)
#define LEASE (2 * SECOND)
enum { LOOPS = 6, FLIGHTS = 96, RUNS = 128, JOBS = 30000 };

/* Whether starts keep burst + rate * t + more, in any window: the same as a bucket that leaks at
 * the rate and never flows over. */
typedef struct leak {
    double level;
    int64_t at_us;
    int64_t count;
} leak;

static void leak_start(leak *b, const jobq_rate *rate, int32_t more, int64_t at_us)
{
    double most = (double)jobq__max(rate->burst, 1) + more;

    b->level -= (double)(at_us - b->at_us) * rate->count / (double)rate->us;
    if (b->level < 0 || b->at_us == 0) b->level = 0;
    b->at_us = at_us;
    b->level += 1;
    b->count++;
    if (b->level > most + 1e-6) fail_msg("%g starts at once of %g", b->level, most);
}

/* A statement on its way. */
typedef struct flight {
    jobq_request request;
    jobq_answer answer;
    int64_t due_us; /* when it reaches the store, or its answer the loop */
    int32_t loop;
    uint32_t life; /* of the loop's process */
    uint32_t line; /* the connection that it was sent on */
    bool used, executed;
} flight;

/* A handler that runs. */
typedef struct run {
    jobq_work work;
    int64_t ends_us;
    int32_t loop;
    uint32_t life;
    bool used;
} run;

typedef struct process {
    jobq_loop loop;
    int64_t wake_us, frozen_us, last_us; /* last_us: when its latest statement arrives */
    uint64_t queues, kinds;
    uint32_t life, line;
    int64_t ran;       /* handlers that it has started */
    int32_t most;      /* that ran at once */
    bool lives, exited;
} process;

static process all[LOOPS];
static flight flights[FLIGHTS];
static run runs[RUNS];
static jobq_memory *memory;
static void *block;
static int64_t now, handler_us, latency_us, lost_permille, late_permille;
static jobq_random dice;
static int64_t sent_heartbeats, sent_asks;

/* A statement was executed. */
static void fleet_executed(const jobq_request *request, const jobq_answer *answer);

/* A handler ends: how? */
static void fleet_handled(const jobq_work *work, jobq_handled *handled);

static int64_t throw_dice(int64_t low, int64_t high)
{
    return jobq_random_between(jobq_random_next(&dice), low, high);
}

static void fleet_reset(void)
{
    free(block);
    block = malloc(model_size(JOBS, 64, 4096));
    assert_non_null(block);
    memory = model_init(block, JOBS, 64, 4096);
    memset(all, 0, sizeof all);
    memset(flights, 0, sizeof flights);
    memset(runs, 0, sizeof runs);
    now = SECOND;
    handler_us = 20 * MS;
    latency_us = MS;
    lost_permille = late_permille = sent_heartbeats = sent_asks = 0;
    dice.state = 4711;
}

static void born(int32_t i, int32_t threads, uint64_t queues, uint64_t kinds, jobq_until until)
{
    process *p = &all[i];
    jobq_loop_config config;
    jobq_loop_served served = {.message_queues = 0};
    int32_t k, n = 0;

    memset(&config, 0, sizeof config);
    config.served = &served;
    config.threads = threads;
    config.lease_us = LEASE;
    config.heartbeat_us = 500 * MS;
    config.poll_us = 300 * MS;
    config.batch_max = 16;
    config.until = until;
    for (k = 1; k < 64 && n < JOBQ_LOOP_KINDS; k++) {
        if ((kinds >> k & 1) != 0) served.kind_queues[n++] = (k - 1) / 2 + 1;
    }
    p->life++;
    p->line++;
    p->lives = true;
    p->exited = false;
    p->queues = queues;
    p->kinds = kinds;
    p->wake_us = p->last_us = now;
    p->frozen_us = 0;
    jobq_loop_init(&p->loop, &config, jobq_random_next(&dice), now);
}

/* The process dies. What it has sent may still arrive. */
static void dies(int32_t i)
{
    int32_t k;

    all[i].lives = false;
    for (k = 0; k < RUNS; k++) {
        if (runs[k].loop == i) runs[k].used = false;
    }
}

static void sends(int32_t i, const jobq_request *request)
{
    process *p = &all[i];
    flight *f = flights;
    bool late = throw_dice(0, 999) < late_permille;

    while (f < flights + FLIGHTS && f->used) f++;
    assert_true(f < flights + FLIGHTS);
    f->request = *request;
    f->loop = i;
    f->life = p->life;
    f->line = p->line;
    f->used = true;
    f->executed = false;
    f->due_us = now + throw_dice(latency_us / 4, latency_us);
    if (late) f->due_us += throw_dice(0, 2 * LEASE);
    f->due_us = p->last_us = jobq__max(f->due_us, p->last_us); /* a connection keeps the order */
    sent_heartbeats += request->kind == JOBQ_REQUEST_HEARTBEAT;
    sent_asks += request->ask_count;
}

static void disconnect(int32_t i)
{
    all[i].line++;
    all[i].last_us = now;
    jobq_loop_disconnected(&all[i].loop, now);
    all[i].wake_us = now;
}

static void abandon(int32_t i, const jobq_request *a)
{
    int32_t k;

    for (k = 0; k < RUNS; k++) {
        if (runs[k].used && runs[k].loop == i && runs[k].work.slot == a->slot) runs[k].used = false;
    }
}

static void takes_work(int32_t i)
{
    process *p = &all[i];
    int32_t busy = 0;
    run *r;
    run one;

    while (memset(&one, 0, sizeof one), jobq_loop_take(&p->loop, now, &one.work)) {
        for (r = runs; r < runs + RUNS && r->used;) r++;
        assert_true(r < runs + RUNS);
        *r = one;
        r->used = true;
        r->loop = i;
        r->life = p->life;
        r->ends_us = now + throw_dice(handler_us / 2, handler_us * 3 / 2);
        p->ran++;
    }
    for (r = runs; r < runs + RUNS; r++) busy += r->used && r->loop == i;
    if (busy > p->most) p->most = busy;
}

static void pump(int32_t i)
{
    process *p = &all[i];
    static jobq_request request;
    int guard = 0;

    if (!p->lives || p->exited || p->frozen_us > now) return;
    do {
        jobq_loop_next(&p->loop, now, &request);
        assert_true(++guard < 1000); /* it comes to rest */
        switch ((int)request.kind) {
        case JOBQ_REQUEST_WAIT: break;
        case JOBQ_REQUEST_EXIT: p->exited = true; return;
        case JOBQ_REQUEST_DISCONNECT: disconnect(i); break;
        case JOBQ_REQUEST_ABANDON: abandon(i, &request); break;
        default: sends(i, &request);
        }
        if (request.kind == JOBQ_REQUEST_WAIT) takes_work(i);
    } while (request.kind != JOBQ_REQUEST_WAIT);
    p->wake_us = jobq__max(request.until_mono_us, now + 1);
    p->wake_us = jobq__min(p->wake_us, jobq__max(jobq_loop_due(&p->loop, now), now + 1));
}

/* A statement arrives at the store, or its answer at the loop. */
static void arrives(flight *f)
{
    process *p = &all[f->loop];
    bool aside = f->request.kind == JOBQ_REQUEST_PRUNE || f->request.kind == JOBQ_REQUEST_VACUUM;

    if (!f->executed) {
        f->executed = true;
        model_execute(memory, &f->request, p->queues, p->kinds, now, &f->answer);
        fleet_executed(&f->request, &f->answer);
        f->due_us = now + throw_dice(latency_us / 4, latency_us);
        if (throw_dice(0, 999) >= lost_permille) return;
        f->used = false;
        if (f->life == p->life && (f->line == p->line || aside) && p->lives && !p->exited) {
            disconnect(f->loop);
        }
        return;
    }
    if (p->frozen_us > now) {
        f->due_us = p->frozen_us;
        return;
    }
    f->used = false;
    if (f->life != p->life || !p->lives || p->exited || (f->line != p->line && !aside)) return;
    jobq_loop_tell(&p->loop, now, &f->answer);
    pump(f->loop);
}

static void ends(run *r)
{
    process *p = &all[r->loop];
    jobq_handled handled;

    if (p->frozen_us > now) {
        r->ends_us = p->frozen_us;
        return;
    }
    r->used = false;
    if (!p->lives || r->life != p->life || p->exited) return;
    memset(&handled, 0, sizeof handled);
    handled.outcome = JOBQ_OUTCOME_SUCCESS;
    fleet_handled(&r->work, &handled);
    jobq_loop_handled(&p->loop, now, &r->work, &handled, NULL);
    pump(r->loop);
}

/* Does what is due next, up to an instant. False: nothing is. */
static bool step(int64_t until)
{
    int64_t next = until;
    int32_t i;

    for (i = 0; i < FLIGHTS; i++) if (flights[i].used) next = jobq__min(next, flights[i].due_us);
    for (i = 0; i < RUNS; i++) if (runs[i].used) next = jobq__min(next, runs[i].ends_us);
    for (i = 0; i < LOOPS; i++) {
        int64_t at = jobq__max(all[i].wake_us, all[i].frozen_us);
        if (all[i].lives && !all[i].exited) next = jobq__min(next, at);
    }
    if (next >= until) {
        now = until;
        return false;
    }
    now = jobq__max(next, now);
    for (i = 0; i < FLIGHTS; i++) {
        if (flights[i].used && flights[i].due_us <= now) {
            arrives(&flights[i]);
            return true;
        }
    }
    for (i = 0; i < RUNS; i++) {
        if (runs[i].used && runs[i].ends_us <= now) {
            ends(&runs[i]);
            return true;
        }
    }
    for (i = 0; i < LOOPS; i++) {
        if (jobq__max(all[i].wake_us, all[i].frozen_us) <= now) pump(i);
    }
    return true;
}

static void pass(int64_t us)
{
    int64_t until = now + us;

    while (step(until)) {}
}

static int32_t in_state(jobq_state state, int32_t queue, int32_t kind)
{
    int32_t i, n = 0;

    for (i = 0; i < memory->job_count; i++) {
        const jobq_job *job = &jobq__memory_jobs(memory)[i].job;
        n += job->state == state && job->queue == queue && (kind == 0 || job->kind == kind);
    }
    return n;
}

#endif /* FLEET_INCLUDED */
