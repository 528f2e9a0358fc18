/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Quotas of queues and kinds: the pure functions; loops on a jobq_memory with a simulated clock,
 * whose statements take time, arrive late, or lose their answers; and random schedules of faults.
 * After each step the laws of sql/permits.sql are checked against the store.
 */
#define JOBQ_LOOP_SLOTS 64
#define JOBQ_LOOP_CLAIMS 32
#define JOBQ_LOOP_QUEUES 4
#define JOBQ_LOOP_KINDS 8
#define JOBQ_LOOP_LANES 32
#define JOBQ_LOOP_THREADS 16
#define JOBQ_LOOP_WATCHED 8
#define JOBQ_LOOP_PARTITIONS 2
#define JOBQ_LOOP_BATCH 16
#define JOBQ_STRAYS_MAX 8
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "fleet.h"

/* ---- pure functions -------------------------------------------------------------------------- */

static void shares_are_fair_and_never_too_many(void **unused)
{
    jobq_random random = {7};
    int i, n;

    (void)unused;
    assert_int_equal(model_permit_share(10, 1, 0, 0, 4), 4);
    assert_int_equal(model_permit_share(10, 1, 0, 0, 40), 10);
    assert_int_equal(model_permit_share(10, 2, 5, 10, 40), 0); /* the other one must shrink first */
    assert_int_equal(model_permit_share(10, 2, 5, 0, 40), 5);
    assert_int_equal(model_permit_share(10, 2, 2, 2, 40), 8); /* the other one wants no more */
    assert_int_equal(model_permit_share(1, 5, 4, 0, 40), 1);
    for (i = 0; i < 20000; i++) {
        int32_t held[5] = {0}, wanted[5], most = (int32_t)(jobq_random_next(&random) % 20 + 1);
        int32_t round, sum = 0, wanting = 0;
        for (n = 0; n < 5; n++) wanted[n] = (int32_t)(jobq_random_next(&random) % 12);
        for (round = 0; round < 4; round++) {
            for (n = 0; n < 5; n++) {
                int64_t others = 0, reserved = 0;
                int32_t k;
                for (k = wanting = 0; k < 5; k++) wanting += k == n || wanted[k] > 0;
                for (k = 0; k < 5; k++) {
                    if (k == n) continue;
                    others += held[k];
                    reserved += jobq__max(
                        held[k], jobq__min(wanted[k], model_permit_fair(most, wanting)));
                }
                held[n] = model_permit_share(most, wanting, reserved, others, wanted[n]);
                assert_true(held[n] >= 0 && held[n] <= wanted[n] && others + held[n] <= most);
            }
        }
        for (n = wanting = sum = 0; n < 5; n++) wanting += wanted[n] > 0;
        for (n = 0; n < 5; n++) {
            sum += held[n];
            if (wanting <= most) assert_true(held[n] >= jobq__min(wanted[n], most / wanting));
        }
        assert_true(sum <= most);
    }
}

static void tokens_are_never_more_than_the_rate(void **unused)
{
    static const jobq_rate rates[] = {{SECOND, 20, 1}, {60 * SECOND, 1, 1}, {SECOND, 100000, 1},
                                      {SECOND, 3, 7}, {3600 * SECOND, 999999, 1000000}};
    jobq_random random = {11};
    size_t r;

    (void)unused;
    for (r = 0; r < COUNT(rates); r++) {
        const jobq_rate *rate = &rates[r];
        int32_t told[4] = {0}, has[4] = {0}, i, n, w;
        int64_t free_us = INT64_MIN / 2, at_us = SECOND, wait, first;
        leak starts = {0, 0, 0};
        for (i = 0; i < 20000; i++) {
            int64_t held = 0;
            int32_t back, kept, spent, got;
            at_us += jobq_random_between(jobq_random_next(&random), 0,
                                       jobq__min(rate->us / rate->count, 100 * MS));
            n = (int32_t)(jobq_random_next(&random) % 4);
            spent = (int32_t)jobq_random_between(jobq_random_next(&random), 0, has[n]);
            has[n] -= spent;
            while (spent-- > 0) leak_start(&starts, rate, model_rate_chunk(rate), at_us);
            if (jobq_random_next(&random) % 3 != 0) continue;
            kept = (int32_t)jobq_random_between(jobq_random_next(&random), 0, has[n]);
            back = jobq_random_next(&random) % 2 == 0 ? has[n] - kept : 0; /* or it is lost */
            for (w = 0; w < 4; w++) held += told[w];
            got = model_tokens_move(rate, &free_us, at_us, held, back,
                                   (int32_t)(jobq_random_next(&random) % 2000), &wait);
            assert_true(got >= 0 && got <= model_rate_chunk(rate) && wait >= 0);
            told[n] = kept + got;
            has[n] = jobq_random_next(&random) % 8 == 0 ? kept : told[n]; /* the answer is lost */
        }
        /* One worker that uses all it gets comes up to the rate. */
        memset(told, 0, sizeof told);
        memset(has, 0, sizeof has);
        first = at_us;
        starts.count = 0;
        while (at_us - first < 200 * rate->us / rate->count || at_us - first < SECOND) {
            has[0] = model_tokens_move(rate, &free_us, at_us, told[0], 0, 1 << 30, &wait);
            told[0] = has[0];
            while (has[0]-- > 0) leak_start(&starts, rate, model_rate_chunk(rate), at_us);
            at_us += jobq__max(wait, 50 * MS);
        }
        assert_true((double)starts.count >
                    0.95 * (double)(at_us - first) * rate->count / (double)rate->us - rate->burst);
    }
}

/* After the clock has run back by an hour the bucket is empty, but the rate goes on at once. */
static void a_rate_goes_on_after_the_clock_ran_back(void **unused)
{
    static const jobq_rate rate = {SECOND, 20, 10};
    int64_t now_us = 1000 * SECOND, free_us = now_us + 3600 * SECOND, wait_us;

    (void)unused;
    assert_int_equal(model_tokens_move(&rate, &free_us, now_us, 0, 0, 5, &wait_us), 0);
    assert_int_equal(wait_us, 50 * MS);
    assert_int_equal(model_tokens_move(&rate, &free_us, now_us + wait_us, 0, 0, 5, &wait_us), 1);
}

/* ---- the world ------------------------------------------------------------------------------- */

static leak leaks[MODEL_QUOTAS];
static int32_t quota_seen[MODEL_QUOTAS]; /* id */
static int64_t excess[MODEL_QUOTAS];     /* above the limit since it was lowered, or added */
static int32_t peak[MODEL_QUOTAS];

static int setup(void **unused)
{
    (void)unused;
    fleet_reset();
    memset(leaks, 0, sizeof leaks);
    memset(excess, 0, sizeof excess);
    memset(quota_seen, 0, sizeof quota_seen);
    memset(peak, 0, sizeof peak);
    return 0;
}

static bool counts(const model_quota *q, const jobq_job *job)
{
    return job->queue == q->queue && (q->kind == 0 || q->kind == job->kind);
}

/* Law (1): jobs that run under a worker's token are at most what its row says. Law (2): the sum of
 * the rows is at most the limit. Above it, it only falls. */
static void check_laws(void)
{
    int32_t i, k;

    for (i = 0; i < MODEL_QUOTAS; i++) {
        const model_quota *q = &model_of(memory)->quotas[i];
        int64_t sum = 0, running = 0;
        bool unheard = false;
        if (q->id == 0 || q->most == 0) continue;
        for (k = 0; k < MODEL_PERMITS; k++) {
            if (model_of(memory)->permits[k].quota != q->id) continue;
            sum += model_of(memory)->permits[k].held;
            unheard |= model_of(memory)->permits[k].number == 0;
        }
        for (k = 0; k < memory->job_count; k++) {
            const jobq_job *job = &jobq__memory_jobs(memory)[k].job;
            running += job->state == JOBQ_STATE_RUNNING && counts(q, job);
        }
        if (running > peak[i]) peak[i] = (int32_t)running;
        if (sum > jobq__max(q->most, excess[i])) {
            fail_msg("quota %d: %lld held of %d", q->id, (long long)sum, q->most);
        }
        if (running > jobq__max(q->most, excess[i])) {
            fail_msg("quota %d: %lld run of %d", q->id, (long long)running, q->most);
        }
        if (unheard) continue; /* the quota is new, and a worker does not know of it */
        excess[i] = jobq__max(sum, running);
        if (excess[i] <= q->most) excess[i] = 0;
    }
}

/* The same for each worker. */
static void check_workers(void)
{
    int32_t i, k, n;

    for (i = 0; i < MODEL_PERMITS; i++) {
        const model_permits *p = &model_of(memory)->permits[i];
        const model_quota *q = NULL;
        int32_t running = 0;
        if (p->quota == 0 || p->number == 0) continue;
        for (n = 0; n < MODEL_QUOTAS; n++) {
            if (model_of(memory)->quotas[n].id == p->quota) q = &model_of(memory)->quotas[n];
        }
        assert_non_null(q);
        for (k = 0; k < memory->job_count; k++) {
            const jobq_job *job = &jobq__memory_jobs(memory)[k].job;
            running += job->state == JOBQ_STATE_RUNNING && job->worker == p->worker &&
                       counts(q, job);
        }
        if (q->most > 0 && running > p->held) {
            fail_msg("worker %lld runs %d and holds %d", (long long)p->worker, running, p->held);
        }
    }
}

/* A limit was set: what is above it now may stay, and a new quota may meet running jobs. */
static void limit(int32_t queue, int32_t kind, int32_t most, const jobq_rate *rate)
{
    int32_t i;

    assert_true(model_limit(memory, queue, kind, most, rate));
    for (i = 0; i < MODEL_QUOTAS; i++) {
        const model_quota *q = &model_of(memory)->quotas[i];
        if (q->queue != queue || q->kind != kind) continue;
        if (quota_seen[i] != q->id) memset(&leaks[i], 0, sizeof leaks[i]);
        quota_seen[i] = q->id;
        excess[i] = INT32_MAX;
    }
}

/* Starts are claims that take jobs. */
static void count_starts(const jobq_answer *answer)
{
    int32_t i, k;

    for (i = 0; i < answer->claimed.count && answer->error == JOBQ_OK; i++) {
        for (k = 0; k < MODEL_QUOTAS; k++) {
            const model_quota *q = &model_of(memory)->quotas[k];
            const model_permits *p;
            if (q->id == 0 || q->rate.us == 0 || !counts(q, &answer->claimed.jobs[i])) continue;
            p = model_permit(memory, q->id, answer->worker);
            if (p == NULL || p->number == 0) continue; /* it does not know of the rate yet */
            leak_start(&leaks[k], &q->rate, model_rate_chunk(&q->rate), now);
        }
    }
}

static void fleet_executed(const jobq_request *request, const jobq_answer *answer)
{
    (void)request;
    count_starts(answer);
    check_laws();
    check_workers();
}

static void fleet_handled(const jobq_work *work, jobq_handled *handled)
{
    (void)work, (void)handled;
}

static void enqueue(int32_t queue, int32_t kind, int32_t count)
{
    jobq_job like = jobq_job_new(0);

    like.queue = queue;
    like.kind = kind;
    while (count-- > 0) {
        assert_true(jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now) > 0);
    }
}

static int32_t held(void)
{
    int32_t i, sum = 0;

    for (i = 0; i < MODEL_PERMITS; i++) {
        sum += model_of(memory)->permits[i].held + model_of(memory)->permits[i].tokens;
    }
    return sum;
}

static void two(int32_t threads)
{
    born(0, threads, 2, 2, JOBQ_UNTIL_STOPPED);
    born(1, threads, 2, 2, JOBQ_UNTIL_STOPPED);
}

/* ---- loops ----------------------------------------------------------------------------------- */

static void without_quotas_nothing_is_asked(void **unused)
{
    (void)unused;
    two(4);
    enqueue(1, 1, 200);
    pass(5 * SECOND);
    assert_int_equal(in_state(JOBQ_STATE_SUCCEEDED, 1, 0), 200);
    assert_int_equal(sent_asks, 0);
    assert_in_range(sent_heartbeats, 18, 26);
}

static void a_limit_holds_and_both_workers_work(void **unused)
{
    (void)unused;
    limit(1, 0, 10, NULL);
    two(10);
    enqueue(1, 1, 2000);
    pass(3 * SECOND);
    assert_int_equal(peak[0], 10);
    assert_true(all[0].ran > 200 && all[1].ran > 200);
    assert_true(in_state(JOBQ_STATE_SUCCEEDED, 1, 0) > 900);
}

static void one_at_a_time(void **unused)
{
    (void)unused;
    limit(1, 0, 1, NULL);
    two(4);
    enqueue(1, 1, 50);
    pass(5 * SECOND);
    assert_int_equal(peak[0], 1);
    assert_int_equal(in_state(JOBQ_STATE_SUCCEEDED, 1, 0), 50);
}

static void idle_workers_hold_nothing(void **unused)
{
    int32_t i;

    (void)unused;
    limit(1, 0, 5, NULL);
    limit(1, 1, 3, &(jobq_rate){SECOND, 100, 5});
    two(4);
    enqueue(1, 1, 20);
    pass(3 * SECOND);
    assert_int_equal(in_state(JOBQ_STATE_SUCCEEDED, 1, 0), 20);
    for (i = 0; i < 1000 && held() > 0; i++) {
        int64_t latest =
            jobq__max(all[0].loop.permits.exchange_mono_us, all[1].loop.permits.exchange_mono_us);
        assert_true(now - latest < 60 * MS); /* they have just looked for jobs */
        pass(10 * MS);
    }
    assert_true(i < 1000);
}

static void a_free_queue_is_not_held_up(void **unused)
{
    (void)unused;
    limit(1, 0, 1, NULL);
    born(0, 8, 6, 2 | 8, JOBQ_UNTIL_STOPPED);
    handler_us = 10 * MS;
    enqueue(1, 1, 1000);
    enqueue(2, 3, 1000);
    pass(2 * SECOND);
    assert_int_equal(peak[0], 1);
    assert_true(in_state(JOBQ_STATE_SUCCEEDED, 2, 0) > 700);
    assert_true(in_state(JOBQ_STATE_SUCCEEDED, 1, 0) > 40);
}

static void a_free_kind_is_not_held_up(void **unused)
{
    (void)unused;
    limit(1, 1, 1, NULL);
    born(0, 8, 2, 2 | 4, JOBQ_UNTIL_STOPPED);
    handler_us = 10 * MS;
    enqueue(1, 1, 500);
    enqueue(1, 2, 1000);
    enqueue(1, 1, 500);
    pass(2 * SECOND);
    assert_int_equal(peak[0], 1);
    assert_true(in_state(JOBQ_STATE_SUCCEEDED, 1, 2) > 600);
    assert_true(in_state(JOBQ_STATE_SUCCEEDED, 1, 1) > 20);
}

/* The permit comes while the claim is under way that did without it. That claim brings nothing, so
 * the next one comes at once: later it might come beside the next exchange, and so on for ever. */
static void a_permit_that_comes_during_a_claim_is_used(void **unused)
{
    static jobq_answer claimed;
    jobq_request exchange, r;
    jobq_loop_config config;
    jobq_loop_served served = {.kind_queues = {1, 1}};
    int64_t at_us = SECOND, granted_us = 0;
    jobq_loop *l = &all[0].loop;

    (void)unused;
    memset(&config, 0, sizeof config);
    config.threads = 8;
    config.heartbeat_us = 200 * MS;
    config.served = &served;
    jobq_loop_init(l, &config, 4711, at_us);
    limit(1, 1, 1, NULL);
    enqueue(1, 1, 1);
    for (exchange.kind = JOBQ_REQUEST_WAIT; in_state(JOBQ_STATE_RUNNING, 1, 1) == 0;) {
        assert_true(at_us < 20 * SECOND);
        r = asks(l, at_us);
        if (r.kind == JOBQ_REQUEST_HEARTBEAT && r.ask_count > 0 && r.claim == 0) {
            exchange = r;
            continue;
        }
        if (r.kind == JOBQ_REQUEST_CLAIM) jobq__memory_execute(memory, &r, 2, 6, at_us, &claimed);
        if (exchange.kind != JOBQ_REQUEST_WAIT) {
            model_perform(memory, l, &exchange, 2, 6, at_us, at_us);
            exchange.kind = JOBQ_REQUEST_WAIT;
            if (l->permits.shares[0].held == 1 && granted_us == 0) granted_us = at_us;
        }
        if (r.kind == JOBQ_REQUEST_CLAIM) jobq_loop_tell(l, at_us, &claimed);
        else if (r.kind != JOBQ_REQUEST_WAIT)
            model_perform(memory, l, &r, 2, 6, at_us, at_us);
        else at_us = jobq__max(jobq__min(r.until_mono_us, at_us + SECOND), at_us + 1);
    }
    assert_true(at_us - granted_us <= MS);
}

static void a_lowered_limit_starts_none_above_it(void **unused)
{
    int64_t ran;

    (void)unused;
    limit(1, 0, 8, NULL);
    two(8);
    handler_us = 400 * MS;
    enqueue(1, 1, 500);
    pass(3 * SECOND);
    assert_int_equal(in_state(JOBQ_STATE_RUNNING, 1, 0), 8);
    limit(1, 0, 2, NULL);
    pass(600 * MS); /* a heartbeat */
    peak[0] = 0;
    pass(500 * MS);
    ran = all[0].ran + all[1].ran;
    peak[0] = 0;
    pass(2 * SECOND);
    assert_int_equal(peak[0], 2);
    assert_in_range(all[0].ran + all[1].ran - ran, 6, 16);
    limit(1, 0, 0, NULL);
    pass(2 * SECOND);
    assert_true(in_state(JOBQ_STATE_RUNNING, 1, 0) >= 16);
}

static void a_new_limit_counts_what_runs(void **unused)
{
    int64_t ran;

    (void)unused;
    two(4);
    handler_us = SECOND;
    enqueue(1, 1, 100);
    pass(300 * MS);
    assert_int_equal(in_state(JOBQ_STATE_RUNNING, 1, 0), 8);
    limit(1, 0, 5, NULL);
    pass(600 * MS);
    ran = in_state(JOBQ_STATE_RUNNING, 1, 0);
    assert_true(ran <= 8);
    pass(3 * SECOND);
    peak[0] = 0;
    pass(3 * SECOND);
    assert_int_equal(peak[0], 5);
}

static void a_rate_is_kept_and_used(void **unused)
{
    (void)unused;
    limit(1, 0, 0, &(jobq_rate){SECOND, 20, 1});
    two(8);
    enqueue(1, 1, 500);
    pass(5 * SECOND);
    assert_in_range(in_state(JOBQ_STATE_SUCCEEDED, 1, 0), 90, 104);
}

static void a_slow_rate_is_used(void **unused)
{
    (void)unused;
    limit(1, 0, 0, &(jobq_rate){10 * SECOND, 1, 1});
    two(4);
    pass(2 * SECOND); /* they look and find nothing */
    enqueue(1, 1, 100);
    pass(101 * SECOND);
    assert_in_range(in_state(JOBQ_STATE_SUCCEEDED, 1, 0), 9, 12);
}

static void a_dead_workers_permits_come_back(void **unused)
{
    int64_t ran;

    (void)unused;
    limit(1, 0, 2, NULL);
    two(4);
    handler_us = 200 * MS;
    enqueue(1, 1, 200);
    pass(2 * SECOND);
    ran = all[1].ran;
    dies(0);
    pass(10 * SECOND);
    assert_true(all[1].ran - ran > 50);
    assert_int_equal(peak[0], 2);
}

static void an_empty_worker_waits_for_permits(void **unused)
{
    (void)unused;
    limit(1, 0, 1, NULL);
    born(0, 4, 2, 2, JOBQ_UNTIL_STOPPED);
    handler_us = 3 * SECOND;
    enqueue(1, 1, 2);
    pass(SECOND);
    born(1, 4, 2, 2, JOBQ_UNTIL_EMPTY);
    born(2, 4, 2, 2, JOBQ_UNTIL_ENDED);
    pass(SECOND);
    assert_false(all[1].exited || all[2].exited); /* a job is due */
    pass(20 * SECOND);
    assert_true(all[1].exited && all[2].exited);
    assert_int_equal(in_state(JOBQ_STATE_SUCCEEDED, 1, 0), 2);
}

static void suspects_need_permits(void **unused)
{
    (void)unused;
    limit(1, 0, 1, NULL);
    two(4);
    handler_us = 500 * MS;
    enqueue(1, 1, 6);
    pass(2 * SECOND);
    dies(all[0].ran > 0 ? 0 : 1);
    dies(all[0].lives ? 0 : 1);
    born(2, 4, 2, 2, JOBQ_UNTIL_STOPPED);
    born(3, 4, 2, 2, JOBQ_UNTIL_STOPPED);
    pass(20 * SECOND);
    assert_int_equal(in_state(JOBQ_STATE_SUCCEEDED, 1, 0), 6);
    assert_int_equal(peak[0], 1);
}

/* The heartbeat that shrinks the permits is executed, but its answer is lost: the loop must not use
 * what it had. */
static void an_answer_that_is_lost_gives_nothing_away(void **unused)
{
    int32_t i;

    (void)unused;
    limit(1, 0, 8, NULL);
    two(8);
    handler_us = 30 * MS;
    enqueue(1, 1, 3000);
    for (i = 0; i < 40; i++) {
        pass(97 * MS);
        disconnect(i % 2);
    }
    assert_int_equal(peak[0], 8);
}

/* ---- random schedules ------------------------------------------------------------------------ */

static void fault(void)
{
    static const jobq_rate rate = {SECOND, 40, 2};
    int32_t i = (int32_t)throw_dice(0, LOOPS - 1);

    switch (throw_dice(0, 11)) {
    case 0: if (all[i].lives && !all[i].exited && all[i].frozen_us < now) disconnect(i); break;
    case 1: if (all[i].lives) dies(i); break;
    case 2: all[i].frozen_us = now + throw_dice(MS, 2 * LEASE); break;
    case 3: limit(1, 0, (int32_t)throw_dice(0, 6), NULL); break;
    case 4: limit(1, 1, 0, NULL); break;
    case 8: limit(1, 1, (int32_t)throw_dice(0, 3), &rate); break;
    case 5: limit(2, 0, (int32_t)throw_dice(0, 2), NULL); break;
    case 6: handler_us = throw_dice(MS, SECOND); break;
    case 7: latency_us = throw_dice(MS / 10, 30 * MS); break;
    default: enqueue((int32_t)throw_dice(1, 2), 0, 0); break;
    }
    for (i = 0; i < LOOPS; i++) {
        if (all[i].lives && !all[i].exited) continue;
        born(i, (int32_t)throw_dice(1, 6), 6, 2 | 4 | 8,
             throw_dice(0, 3) == 0 ? JOBQ_UNTIL_EMPTY : JOBQ_UNTIL_STOPPED);
    }
}

static void schedule(uint64_t seed)
{
    int32_t i, round;

    setup(NULL);
    dice.state = seed;
    lost_permille = throw_dice(0, 2) == 0 ? 0 : 10;
    late_permille = throw_dice(0, 2) == 0 ? 0 : 5;
    limit(1, 0, 3, NULL);
    limit(2, 0, 1, NULL);
    for (round = 0; round < 60; round++) {
        enqueue(1, (int32_t)throw_dice(1, 2), (int32_t)throw_dice(0, 12));
        enqueue(2, 3, (int32_t)throw_dice(0, 3));
        pass(throw_dice(MS, 600 * MS));
        fault();
    }
    lost_permille = late_permille = 0;
    handler_us = 5 * MS;
    latency_us = MS;
    limit(1, 0, 4, NULL);
    limit(2, 0, 1, NULL);
    limit(1, 1, 0, NULL);
    limit(1, 1, 2, NULL);
    for (i = 0; i < LOOPS; i++) {
        all[i].frozen_us = 0;
        if (!all[i].lives || all[i].exited) born(i, 4, 6, 2 | 4 | 8, JOBQ_UNTIL_STOPPED);
    }
    for (i = 0; i < 120; i++) {
        if (in_state(JOBQ_STATE_READY, 1, 0) + in_state(JOBQ_STATE_READY, 2, 0) +
            in_state(JOBQ_STATE_RUNNING, 1, 0) + in_state(JOBQ_STATE_RUNNING, 2, 0) == 0) break;
        pass(SECOND);
    }
    if (i == 120) fail_msg("seed %llu: jobs are left", (unsigned long long)seed);
}

static void laws_hold_whatever_fails(void **unused)
{
    const char *only = getenv("JOBQ_SEED");
    uint64_t seed = only != NULL ? strtoull(only, NULL, 10) : 1;
    uint64_t last = only != NULL ? seed : check_slow() ? 3 : 30;

    (void)unused;
    for (; seed <= last; seed++) schedule(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_fair_and_never_too_many),
        cmocka_unit_test(tokens_are_never_more_than_the_rate),
        cmocka_unit_test(a_rate_goes_on_after_the_clock_ran_back),
        cmocka_unit_test_setup(without_quotas_nothing_is_asked, setup),
        cmocka_unit_test_setup(a_limit_holds_and_both_workers_work, setup),
        cmocka_unit_test_setup(one_at_a_time, setup),
        cmocka_unit_test_setup(idle_workers_hold_nothing, setup),
        cmocka_unit_test_setup(a_free_queue_is_not_held_up, setup),
        cmocka_unit_test_setup(a_free_kind_is_not_held_up, setup),
        cmocka_unit_test_setup(a_permit_that_comes_during_a_claim_is_used, setup),
        cmocka_unit_test_setup(a_lowered_limit_starts_none_above_it, setup),
        cmocka_unit_test_setup(a_new_limit_counts_what_runs, setup),
        cmocka_unit_test_setup(a_rate_is_kept_and_used, setup),
        cmocka_unit_test_setup(a_slow_rate_is_used, setup),
        cmocka_unit_test_setup(a_dead_workers_permits_come_back, setup),
        cmocka_unit_test_setup(an_empty_worker_waits_for_permits, setup),
        cmocka_unit_test_setup(suspects_need_permits, setup),
        cmocka_unit_test_setup(an_answer_that_is_lost_gives_nothing_away, setup),
        cmocka_unit_test(laws_hold_whatever_fails),
    };

    return cmocka_run_group_tests_name("permits", tests, NULL, NULL);
}
