/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The worker's loop, step by step and on the in-memory queue: what it requests, and when. Promise
 * 5. The explorer and the simulator test the rest.
 */
#define JOBQ_LOOP_SLOTS 256 /* requests are copied a lot here: smaller ones are faster */
#define JOBQ_LOOP_LANES 32
#define JOBQ_LOOP_QUEUES 2
#define JOBQ_LOOP_PARTITIONS 8
#define JOBQ_TALLY_KINDS 4
#define JOBQ_STRAYS_MAX 8
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"
#include "model.h"
#include "told.h"

#define LEASE (30 * SECOND)

static jobq_loop loop;
static union {
    int64_t align;
    char bytes[1 << 20];
} block;
static jobq_memory *memory;
static uint64_t has_handlers; /* a bit for each that the worker has a handler for */

static int setup(void **unused)
{
    jobq_loop_config config;
    jobq_loop_served served = {.listen = true};

    (void)unused;
    has_handlers = 2;
    memset(&config, 0, sizeof config);
    config.threads = 2;
    config.lease_us = LEASE;
    config.served = &served;
    jobq_loop_init(&loop, &config, 12345, 0);
    assert_true(model_size(100, 8, 600) <= sizeof block);
    memory = model_init(&block, 100, 8, 600);
    return 0;
}

/* The next action that is no WAIT, carried out on the store. */
static jobq_request step(int64_t now)
{
    jobq_request a = asks(&loop, now);

    if (a.kind != JOBQ_REQUEST_WAIT)
        jobq__memory_perform(memory, &loop, &a, 2, has_handlers, now, now);
    return a;
}

static void settle_down(int64_t now)
{
    int n;

    for (n = 0; n < 100 && step(now).kind != JOBQ_REQUEST_WAIT; n++) {}
    assert_true(n < 100);
}

static int64_t add_job(int64_t now)
{
    jobq_job like = jobq_job_new(0);

    like.queue = like.kind = 1;
    return jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now);
}

/* Claims list the lanes of negative priorities only when a queue has some, and then at once. */
static void negative_priorities_run_first_once_there_are_some(void **unused)
{
    jobq_job like = jobq_job_new(0);
    jobq_request a;
    int64_t now = 0;
    int32_t slot;

    (void)unused;
    add_job(now);
    while ((a = step(now)).kind != JOBQ_REQUEST_CLAIM) {}
    assert_int_equal(a.lane_count, JOBQ_PRIORITY_MAX + 1);
    assert_int_equal(a.lanes[0].priority, 0);
    settle_down(now);
    slot = jobq__take_job(&loop, now);
    assert_int_equal(loop.slots[slot].job.id, 1);
    add_job(now);
    like.queue = like.kind = 1;
    like.priority = -2;
    assert_int_equal(jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now), 3);
    told_handled(&loop, now, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS, 0, true);
    jobq_loop_notified(&loop, now, "cancel"); /* as the store does when it widens the range */
    do a = step(now);
    while (a.kind != JOBQ_REQUEST_POLICIES && a.kind != JOBQ_REQUEST_WAIT);
    assert_int_equal(a.kind, JOBQ_REQUEST_POLICIES);
    while ((a = step(now)).kind != JOBQ_REQUEST_CLAIM) {}
    assert_int_equal(a.lane_count, JOBQ_PRIORITY_MAX + 3);
    assert_int_equal(a.lanes[0].priority, -2);
    slot = jobq__take_job(&loop, now);
    assert_int_equal(loop.slots[slot].job.id, 3);
}

/* There are 160 lanes, and room for 32 in a claim: five claims list all of them. */
static void lanes_without_room_come_with_the_next_claim(void **unused)
{
    jobq_job like = jobq_job_new(0);
    jobq_request a;
    int32_t claims = 0, lanes = 0, slot;
    int64_t now = 0;

    (void)unused;
    like.queue = like.kind = 1;
    like.stages = JOBQ_STAGES_MAX;
    like.run_at_us = 1000 * SECOND;
    jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now);
    like.stages = 1;
    like.run_at_us = 0;
    like.priority = JOBQ_PRIORITY_MAX; /* the last lane */
    assert_int_equal(jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now), 2);
    while (loop.stats.claimed == 0) {
        a = step(now);
        if (a.kind == JOBQ_REQUEST_WAIT) now = a.until_mono_us;
        if (a.kind != JOBQ_REQUEST_CLAIM) continue;
        claims++;
        lanes += a.lane_count;
        assert_int_equal(loop.stats.empty_claims, 0); /* it does not know yet */
        assert_in_range(now, 0, SECOND);
    }
    assert_int_equal(claims, 5);
    assert_int_equal(lanes, 160);
    slot = jobq__take_job(&loop, now);
    told_handled(&loop, now, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS, 0, true);
    for (claims = 0; loop.pace.due_mono_us == JOBQ_NEVER;) {
        a = step(now);
        if (a.kind == JOBQ_REQUEST_WAIT) now = a.until_mono_us;
        claims += a.kind == JOBQ_REQUEST_CLAIM;
        assert_in_range(claims, 0, 10);
    }
    assert_true(loop.stats.empty_claims > 0);
    assert_in_range(loop.pace.due_mono_us, 999 * SECOND, 1000 * SECOND);
}

static void it_connects_and_registers_before_anything_else(void **unused)
{
    jobq_request a = asks(&loop, 0);

    (void)unused;
    assert_int_equal(a.kind, JOBQ_REQUEST_CONNECT);
    assert_int_equal(asks(&loop, 0).kind, JOBQ_REQUEST_WAIT);
    told_plain(&loop, 1, JOBQ_REQUEST_CONNECT, JOBQ_OK);
    assert_int_equal(asks(&loop, 1).kind, JOBQ_REQUEST_REGISTER);
    assert_int_equal(asks(&loop, 1).kind,
                     JOBQ_REQUEST_WAIT); /* no news of an unknown worker */
    assert_int_equal(asks(&loop, LEASE).kind, JOBQ_REQUEST_DISCONNECT); /* no answer */
}

/* What a driver of its own needs: requests, answers and work, by public functions alone. */
static void requests_and_answers_are_all_that_a_driver_needs(void **unused)
{
    static jobq_request request;
    static jobq_answer answer;
    jobq_work work;
    int64_t left;
    jobq_handled handled;
    jobq_decision decision;
    int64_t now = 0;
    int i, ran = 0;

    (void)unused;
    assert_true(jobq_loop_size() == sizeof loop);
    for (i = 0; i < 3; i++) add_job(0);
    for (i = 0; i < 200 && jobq_loop_status_of(&loop).phase != JOBQ_PHASE_EXITED; i++) {
        jobq_loop_next(&loop, now, &request);
        if (request.kind == JOBQ_REQUEST_WAIT) now = jobq__min(request.until_mono_us, now + SECOND);
        else if (i == 0) { /* nobody answers the first time */
            jobq_answer_start(&answer, &request);
            answer.error = JOBQ_ERROR_CONNECTION;
            jobq_loop_tell(&loop, now, &answer);
            assert_false(jobq_loop_status_of(&loop).connected);
        } else {
            jobq__memory_execute(memory, &request, 2, 2, now, &answer);
            jobq_loop_tell(&loop, now, &answer);
        }
        while (jobq_loop_take(&loop, now, &work)) {
            assert_int_equal(jobq_loop_stopping(&loop, now, &work, &left), JOBQ_STOP_NONE);
            assert_true(left == JOBQ_NEVER);
            assert_int_equal(jobq_loop_status_of(&loop).running, 1);
            memset(&handled, 0, sizeof handled);
            handled.outcome = JOBQ_OUTCOME_SUCCESS;
            assert_true(jobq_loop_handled(&loop, now, &work, &handled, &decision));
            assert_int_equal(decision.state, JOBQ_STATE_SUCCEEDED);
            assert_false(jobq_loop_handled(&loop, now, &work, &handled, &decision));
            if (++ran == 3) jobq_loop_stop(&loop, now, -1);
        }
    }
    assert_int_equal(jobq_loop_status_of(&loop).phase, JOBQ_PHASE_EXITED);
    assert_int_equal(jobq_loop_status_of(&loop).jobs.started, 3);
    assert_int_equal(jobq_loop_status_of(&loop).messages.reads, 0);
}

/* A connection that the loop itself gave up is told like any other. */
static void a_disconnect_is_a_request_too(void **unused)
{
    jobq_request a;

    (void)unused;
    step(0);
    assert_int_equal(asks(&loop, 0).kind, JOBQ_REQUEST_REGISTER);
    a = asks(&loop, LEASE);
    assert_int_equal(a.kind, JOBQ_REQUEST_DISCONNECT);
    jobq__memory_perform(memory, &loop, &a, 2, 2, LEASE, LEASE);
    assert_false(jobq_loop_status_of(&loop).connected);
}

static void each_request_has_a_name(void **unused)
{
    int i, k;

    (void)unused;
    for (i = 0; i < JOBQ_REQUEST_COUNT; i++) {
        for (k = 0; k < i; k++) {
            assert_string_not_equal(jobq_enum_name(JOBQ_ENUM_REQUEST, i),
                                    jobq_enum_name(JOBQ_ENUM_REQUEST, k));
        }
    }
    assert_string_equal(jobq_enum_name(JOBQ_ENUM_REQUEST, JOBQ_REQUEST_COUNT), "unknown");
}

/* Hands out what may start; returns how many jobs ended until all four suspects had. */
static int work_until_suspects_end(void)
{
    int ended = 0, suspects = 0;
    int64_t now = 0;

    for (; suspects < 4 && ended < 100; now += SECOND / 1000) {
        settle_down(now);
        while (jobq__take_job(&loop, now) >= 0) {}
        if (loop.running_count > 0) {
            int32_t slot = loop.running[0];
            suspects += loop.slots[slot].job.suspect;
            ended++;
            told_handled(&loop, now, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS,
                              0, false);
            while (jobq__take_job(&loop, now) >= 0) {} /* its thread asks again at once */
        }
    }
    return ended;
}

static void a_suspect_does_not_wait_behind_what_is_fetched_ahead(void **unused)
{
    int i;

    (void)unused;
    for (i = 0; i < 100; i++) add_job(0);
    for (i = 0; i < 4; i++) jobq__memory_jobs(memory)[i].job.suspect = true;
    assert_true(work_until_suspects_end() < 40);
    assert_true(loop.queued.count > 0);
}

/* -- what must run alone: law (6) -- */

static void must_run_alone(int64_t id)
{
    jobq_job *job = &jobq_memory_get(memory, id)->job;

    job->suspect = job->alone = true;
}

static void succeeds(int32_t slot, int64_t now)
{
    assert_true(told_handled(&loop, now, slot, loop.slots[slot].generation,
                                  JOBQ_OUTCOME_SUCCESS, 0, false));
}

/* It is the first that a fresh worker runs, and until it has ended nothing else is claimed or
 * read. */
static void what_must_run_alone_runs_first_and_alone(void **unused)
{
    jobq_loop_config config;
    jobq_loop_served served = {.message_queues = 1};
    int32_t slot, i;

    (void)unused;
    memset(&config, 0, sizeof config);
    config.threads = 4;
    config.lease_us = LEASE;
    config.served = &served;
    jobq_loop_init(&loop, &config, 12345, 0);
    jobq__memory_outbox(memory, 1, 1);
    for (i = 0; i < 10; i++) add_job(0);
    must_run_alone(7);
    must_run_alone(9);
    for (i = 0; i < 2; i++) {
        settle_down(i * SECOND);
        assert_int_equal(loop.queued.count, 1);
        slot = jobq__take_job(&loop, i * SECOND);
        assert_int_equal(loop.slots[slot].job.id, i == 0 ? 7 : 9);
        if (i == 0) assert_true(jobq__memory_send(memory, 1, 0, jobq_str_from("{}")));
        jobq_loop_notified(&loop, i * SECOND, "");
        settle_down(i * SECOND + SECOND / 2);
        assert_int_equal(loop.queued.count + loop.relay.held, 0);
        succeeds(slot, i * SECOND + SECOND * 3 / 4);
        settle_down(i * SECOND + SECOND * 3 / 4);
    }
    settle_down(2 * SECOND);
    assert_true(loop.queued.count > 0 && loop.relay.held == 1);
}

/* Its claim is lost: until it is known what became of it, nothing else is claimed. */
static void a_lost_claim_may_hold_what_must_run_alone(void **unused)
{
    jobq_request a;
    int i;

    (void)unused;
    add_job(0);
    must_run_alone(add_job(0));
    while ((a = asks(&loop, 0)).kind != JOBQ_REQUEST_CLAIM) {
        jobq__memory_perform(memory, &loop, &a, 2, 2, 0, 0);
    }
    assert_true(a.alone && a.suspects);
    jobq_loop_disconnected(&loop, 1);
    for (i = 0; i < 100; i++) {
        a = asks(&loop, 2 * SECOND);
        if (a.kind == JOBQ_REQUEST_RECOVER) break;
        assert_false(claims(&a));
        if (a.kind != JOBQ_REQUEST_WAIT) {
            jobq__memory_perform(memory, &loop, &a, 2, 2, 2 * SECOND, 2 * SECOND);
        }
    }
    assert_int_equal(a.kind, JOBQ_REQUEST_RECOVER);
}

/* Two threads that are never idle at once: after a lease nothing new is taken. */
static void a_busy_worker_makes_room_for_what_must_run_alone(void **unused)
{
    int64_t now = 0, begun = 0, ends[JOBQ_LOOP_SLOTS] = {0};
    int32_t slot, i;

    (void)unused;
    for (i = 0; i < 90; i++) add_job(0);
    for (; now < 3 * LEASE && begun == 0; now += SECOND / 10) {
        if (now == 2 * SECOND) must_run_alone(add_job(now));
        settle_down(now);
        while ((slot = jobq__take_job(&loop, now)) >= 0) {
            ends[slot] = now + SECOND + slot % 2 * SECOND / 2;
            if (loop.slots[slot].job.alone) begun = now;
        }
        for (i = loop.running_count - 1; i >= 0; i--) {
            slot = loop.running[i];
            if (now >= ends[slot]) succeeds(slot, now);
        }
    }
    assert_in_range(begun, 2 * SECOND + LEASE, 10 * SECOND + LEASE);
    assert_int_equal(loop.running_count, 1);
    assert_in_range(loop.stats.succeeded, 30, 80); /* nobody was idle before, and more is left */
}

static void until_empty_does_what_must_run_alone(void **unused)
{
    jobq_loop_config config;
    int64_t now = 0;
    int32_t slot;

    (void)unused;
    add_job(0);
    must_run_alone(add_job(0));
    memset(&config, 0, sizeof config);
    config.until = JOBQ_UNTIL_EMPTY;
    jobq_loop_init(&loop, &config, 7, now);
    for (; now < 60 * SECOND && loop.phase != JOBQ_PHASE_EXITED; now += 1000) {
        while (step(now).kind != JOBQ_REQUEST_WAIT && loop.phase != JOBQ_PHASE_EXITED) {}
        if (now == SECOND) must_run_alone(add_job(now)); /* or it comes later */
        while ((slot = jobq__take_job(&loop, now)) >= 0 && now > 2 * SECOND) succeeds(slot, now);
        if (loop.running_count > 0 && now >= 2 * SECOND) succeeds(loop.running[0], now);
    }
    assert_true(now < 10 * SECOND);
    assert_int_equal(loop.stats.succeeded, 3);
}

/* -- the end by jobs_max -- */

/* A worker that may run one more job, with handlers of ten seconds; after a second a job is there
 * that was running when its worker died. When it ended. */
static void what_counts_for_jobs_max_is_started(void **unused)
{
    jobq_loop_config config;
    int32_t slot = -1;
    int64_t now;

    (void)unused;
    add_job(0);
    memset(&config, 0, sizeof config);
    config.jobs_max = 1;
    config.threads = 2;
    jobq_loop_init(&loop, &config, 7, 0);
    for (now = 0; now < 60 * SECOND && loop.phase != JOBQ_PHASE_EXITED; now += 1000) {
        while (step(now).kind != JOBQ_REQUEST_WAIT && loop.phase != JOBQ_PHASE_EXITED) {}
        if (now == SECOND) jobq_memory_get(memory, add_job(now))->job.suspect = true;
        if (slot < 0) slot = jobq__take_job(&loop, now);
        if (now == 10 * SECOND) succeeds(slot, now);
    }
    assert_true(now < 12 * SECOND);
    assert_int_equal(loop.stats.started, 1);
    assert_int_equal(jobq_memory_get(memory, 2)->job.state, JOBQ_STATE_READY);
}

/* No handler was started for a job that was parked. */
static void a_stray_does_not_count_for_jobs_max(void **unused)
{
    int32_t slot;

    (void)unused;
    add_job(0);
    settle_down(0);
    slot = jobq__take_job(&loop, 0);
    assert_int_equal(loop.stats.started, 1);
    jobq__job_unhandled(&loop, 0, slot);
    assert_int_equal(loop.stats.started, 0);
}

static void messages_do_not_put_off_the_end(void **unused)
{
    int32_t slot;

    (void)unused;
    add_job(0);
    settle_down(0);
    slot = jobq__take_job(&loop, 0);
    succeeds(slot, 0);
    settle_down(0);
    loop.config.jobs_max = 1;
    loop.relay.held = 1; /* a partition whose messages are being handled */
    jobq__phase_move(&loop, 0);
    assert_int_equal(loop.phase, JOBQ_PHASE_STOPPING);
    loop.relay.held = 0;
}

static void a_suspect_is_claimed_only_into_a_free_slot(void **unused)
{
    int32_t count, fresh;

    (void)unused;
    settle_down(0);
    loop.suspects.ready = true;
    assert_true(jobq__suspect_wanted(&loop));
    count = loop.free.count;
    fresh = loop.fresh;
    loop.free.count = loop.fresh = 0; /* results that the server does not take */
    assert_false(jobq__suspect_wanted(&loop));
    loop.free.count = count;
    loop.fresh = fresh;
}

/* NEVER would park the job, and then it would run at once. */
static void a_delay_of_never_is_a_long_one(void **unused)
{
    int32_t slot;

    (void)unused;
    add_job(0);
    settle_down(0);
    slot = jobq__take_job(&loop, 0);
    told_handled(&loop, 0, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SNOOZE, JOBQ_NEVER,
                 true);
    settle_down(0);
    assert_true(jobq_memory_get(memory, 1)->job.run_at_us == JOBQ_DAYS(365250));
}

/* A paused queue, or one whose jobs are not this worker's, stops nobody. */
static void what_cannot_be_claimed_makes_nobody_wait(void **unused)
{
    jobq_loop_config config;
    jobq_loop_served served = {.message_queues = 1, .jobless_queues = 1};
    int64_t now;

    (void)unused;
    memset(&config, 0, sizeof config);
    config.lease_us = LEASE;
    config.served = &served;
    jobq_loop_init(&loop, &config, 7, 0);
    must_run_alone(add_job(0));
    for (now = 0; now < 3 * LEASE; now += SECOND) {
        settle_down(now);
        assert_false(loop.suspects.halts);
    }
}

/* -- rescue where everybody dies young: law (18) -- */

/* When a fresh worker claims first, beside workers that died with a job each, counted from its
 * start. Rescues may be refused; the others may beat a second later. */
static int64_t first_claim_beside(int dead, bool refused, bool beat)
{
    const int64_t begin = LEASE + SECOND;
    int64_t now;
    jobq_request a;
    int32_t i;

    setup(NULL);
    for (i = 0; i < dead; i++) {
        add_job(0);
        jobq__memory_register(memory, 71 + i, LEASE, 2, 2, 0);
        assert_int_equal(other_claims(memory, 71 + i, 0), 1);
    }
    add_job(0);
    for (now = begin; now < begin + 5 * LEASE; now += SECOND / 10) {
        for (i = 0; i < dead && beat && now == begin + SECOND; i++) {
            assert_true(jobq__memory_heartbeat(memory, 71 + i, NULL, 0, now));
        }
        while ((a = asks(&loop, now)).kind != JOBQ_REQUEST_WAIT) {
            if (claims(&a)) return now - begin;
            if (a.kind == JOBQ_REQUEST_RESCUE && refused) {
                told_of(&loop, now, &a, JOBQ_ERROR_DATABASE);
            } else jobq__memory_perform(memory, &loop, &a, 2, 2, now, now);
        }
    }
    return now - begin;
}

static void a_fresh_worker_rescues_before_it_claims(void **unused)
{
    (void)unused;
    assert_int_equal(first_claim_beside(2, false, false), 0);
    assert_in_range(first_claim_beside(3, false, false), LEASE, LEASE + SECOND);
    assert_int_equal(loop.stats.rescued, 3);
    assert_in_range(first_claim_beside(5, false, true), SECOND, 10 * SECOND);
    assert_int_equal(loop.stats.rescued, 0);
    assert_in_range(first_claim_beside(3, true, false), LEASE, 2 * LEASE + SECOND);
}

static void no_job_starts_when_the_lease_may_be_over(void **unused)
{
    (void)unused;
    add_job(0);
    add_job(0);
    settle_down(0);
    assert_int_equal(loop.queued.count, 2);
    assert_true(jobq__take_job(&loop, LEASE - 1) >= 0);
    assert_int_equal(jobq__take_job(&loop, LEASE),
                     -1); /* counted from before the statement was sent */
    assert_int_equal(jobq__job_stopping(&loop, LEASE, loop.running[0],
                                        loop.slots[loop.running[0]].generation), JOBQ_STOP_LOST);
}

static void the_lease_is_counted_from_before_the_heartbeat(void **unused)
{
    jobq_request a;
    int actions = 0;

    (void)unused;
    settle_down(0);
    while ((a = asks(&loop, 6 * SECOND)).kind != JOBQ_REQUEST_HEARTBEAT) {
        assert_true(++actions < 1000);
        assert_int_not_equal(a.kind, JOBQ_REQUEST_WAIT);
        jobq__memory_perform(memory, &loop, &a, 2, 2, 6 * SECOND, 6 * SECOND);
    }
    jobq__memory_perform(memory, &loop, &a, 2, 2, 9 * SECOND, 9 * SECOND); /* the answer took 4 s */
    assert_true(loop.lease.end_mono_us == 6 * SECOND + LEASE);
}

/* A worker that is late is rescued after a whole lease of watching, and an outage does not
 * count. */
static void an_outage_proves_nobody_dead(void **unused)
{
    int64_t now = 0, rescued_at = 0, cut = 35 * SECOND;

    (void)unused;
    assert_int_equal(jobq__memory_register(memory, 77, LEASE, 2, 2, 0), JOBQ_OK); /* never beats */
    for (; now < 200 * SECOND && rescued_at == 0; now += SECOND) {
        jobq_request a;
        int actions = 0;

        if (now == cut) jobq_loop_disconnected(&loop, now);
        while ((a = step(now)).kind != JOBQ_REQUEST_WAIT) {
            assert_true(++actions < 1000);
            if (a.kind == JOBQ_REQUEST_RESCUE) rescued_at = now;
        }
    }
    assert_in_range(rescued_at, cut + LEASE, cut + LEASE + 10 * SECOND);
}

static void a_minute_of_idleness_costs_a_statement_every_five_seconds(void **unused)
{
    int64_t now = 0, until = 180 * SECOND;
    int statements = 0, sleeps = 0;

    (void)unused;
    while (now < until) {
        jobq_request a = step(now);
        if (a.kind == JOBQ_REQUEST_WAIT) {
            assert_true(a.until_mono_us > now);
            now = a.until_mono_us;
        } else if (now > 120 * SECOND && a.kind != JOBQ_REQUEST_PRUNE) {
            statements++;
        }
        sleeps += a.kind == JOBQ_REQUEST_SLEEP;
    }
    assert_in_range(statements, 11, 13); /* heartbeats, which look for jobs as well */
    assert_int_equal(sleeps, 1);
}

/* Steps an idle worker up to an instant. Returns its statements since another one. */
static int idles(int64_t *now, int64_t since, int64_t until)
{
    int statements = 0;

    while (*now < until) {
        jobq_request a = step(*now);
        if (a.kind == JOBQ_REQUEST_WAIT) {
            assert_true(a.until_mono_us > *now);
            *now = jobq__min(a.until_mono_us, until);
        } else if (*now > since && a.kind != JOBQ_REQUEST_PRUNE) statements++;
        assert_false(jobq__memory_lapsed(jobq__memory_worker_of(memory, loop.worker), *now));
    }
    return statements;
}

static void runs_a_job(int64_t now)
{
    int32_t slot = jobq__take_job(&loop, now);

    assert_true(told_handled(&loop, now, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS,
                             0, false));
}

static void rests(void)
{
    loop.config.rest_us = 60 * SECOND;
    add_job(0);
    settle_down(0);
    runs_a_job(0);
}

static void a_worker_that_rests_slows_down_to_a_statement_a_minute(void **unused)
{
    int64_t now = 1;

    (void)unused;
    rests();
    assert_in_range(idles(&now, 30 * SECOND, 60 * SECOND), 5, 7);
    idles(&now, 0, 300 * SECOND);
    assert_in_range(idles(&now, 300 * SECOND, 900 * SECOND), 9, 11);
    assert_in_range(loop.lease.end_mono_us - now, LEASE, LEASE + 60 * SECOND);
}

/* A notification ends the rest: the claim is sent at once, and the lease is short again soon. */
static void a_notification_ends_a_rest(void **unused)
{
    int64_t now = 1, beats;
    jobq_request a;

    (void)unused;
    rests();
    idles(&now, 0, 600 * SECOND);
    add_job(now);
    jobq_loop_notified(&loop, now, "");
    a = step(now);
    assert_int_equal(a.kind, JOBQ_REQUEST_CLAIM);
    assert_int_equal(loop.queued.count, 1);
    runs_a_job(now);
    beats = loop.stats.heartbeats;
    idles(&now, 0, now + 4 * SECOND);
    assert_int_equal(loop.stats.heartbeats, beats);
    idles(&now, 0, now + 2 * SECOND);
    assert_int_equal(loop.stats.heartbeats, beats + 1);
    assert_true(loop.lease.end_mono_us <= now + LEASE);
    idles(&now, 0, now + 50 * SECOND);
    assert_in_range(loop.stats.heartbeats, beats + 10, beats + 12); /* it has worked just now */
}

/* The answer of the heartbeat that makes the lease short may be lost. */
static void a_rest_that_ends_shortens_the_lease_before_the_store_does(void **unused)
{
    int64_t now = 1;
    jobq_request a;

    (void)unused;
    rests();
    idles(&now, 0, 600 * SECOND);
    jobq_loop_notified(&loop, now, "");
    now += 6 * SECOND;
    do a = asks(&loop, now);
    while (a.kind != JOBQ_REQUEST_HEARTBEAT);
    assert_int_equal(a.rest_us, 0);
    assert_true(loop.lease.end_mono_us <= now + LEASE);
}

/* Somebody must look after a worker that holds jobs. */
static void nobody_rests_while_another_worker_holds_jobs(void **unused)
{
    int64_t now = 1;

    (void)unused;
    rests();
    assert_int_equal(jobq__memory_register(memory, 77, 2000 * SECOND, 2, 2, 0), JOBQ_OK);
    add_job(0);
    assert_int_equal(other_claims(memory, 77, 0), 1);
    idles(&now, 0, 300 * SECOND);
    assert_in_range(idles(&now, 300 * SECOND, 360 * SECOND), 11, 13);
    assert_in_range(loop.lease.end_mono_us - now, LEASE - 6 * SECOND, LEASE);
}

static void a_worker_that_nobody_would_wake_does_not_rest(void **unused)
{
    int64_t now = 1;

    (void)unused;
    rests();
    jobq_loop_hears(&loop, 1, false);
    idles(&now, 0, 300 * SECOND);
    assert_true(idles(&now, 300 * SECOND, 360 * SECOND) > 11);
}

static void a_wake_up_is_followed_by_a_claim_at_once(void **unused)
{
    int64_t now = 100 * SECOND;
    jobq_request a;

    (void)unused;
    settle_down(0);
    for (now = 0; now < 20 * SECOND; now += 100000) settle_down(now);
    add_job(now);
    jobq_loop_notified(&loop, now, "");
    a = step(now);
    while (a.kind == JOBQ_REQUEST_HEARTBEAT || a.kind == JOBQ_REQUEST_SLEEP) a = step(now);
    assert_int_equal(a.kind, JOBQ_REQUEST_CLAIM);
    assert_int_equal(loop.queued.count, 1);
}

/* Four wake-ups close together: producers are paying for them. A few a second are no burden. */
static void a_sleeper_that_is_woken_often_withdraws(void **unused)
{
    int64_t now = 100 * SECOND;
    int i;

    (void)unused;
    settle_down(0);
    for (now = 0; now < 20 * SECOND; now += 100000) settle_down(now);
    assert_true(loop.sleep.asleep);
    for (i = 0; i < 20; i++, now += 100000) {
        jobq_loop_notified(&loop, now, "");
        settle_down(now);
        assert_true(loop.sleep.asleep);
    }
    for (i = 0; i < 4; i++) jobq_loop_notified(&loop, now + i, "");
    settle_down(now + 4);
    assert_false(loop.sleep.asleep);
    settle_down(now + SECOND / 2);
    assert_false(loop.sleep.asleep); /* at most one announcement a second */
    settle_down(now + 2 * SECOND);
    settle_down(now + 3 * SECOND);
    assert_true(loop.sleep.asleep);
}

/* A decision whose answer was lost is sent again, and then lost is an expected answer. */
static void results_survive_a_cut_connection(void **unused)
{
    static jobq_loop answered;
    jobq_request a;
    int32_t slot;

    (void)unused;
    add_job(0);
    settle_down(0);
    slot = jobq__take_job(&loop, 1);
    assert_true(told_handled(&loop, 2, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS,
                                  0, false));
    a = asks(&loop, 3);
    assert_int_equal(a.kind, JOBQ_REQUEST_COMPLETE);
    answered = loop;
    jobq__memory_perform(memory, &answered, &a, 2, 2, 3, 3); /* it happened, but nobody says so */
    jobq_loop_disconnected(&loop, 4);
    assert_int_equal(loop.done.count, 1);
    settle_down(SECOND);
    assert_int_equal(loop.done.count + loop.sent_done.count, 0);
    assert_int_equal(loop.stats.lost, 0);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_SUCCEEDED);
}

static jobq_outcome run(jobq_call *c)
{
    int *runs = (int *)c->user;

    (*runs)++;
    if (c->job.kind == 2 && c->job.attempt < 3) return JOBQ_OUTCOME_RETRY;
    return c->job.kind == 3 ? JOBQ_OUTCOME_DISCARD : JOBQ_OUTCOME_SUCCESS;
}

static void handlers_run_on_memory_with_a_clock_of_ones_own(void **unused)
{
    static int runs;
    jobq_memory_handler handlers[3];
    jobq_job like = jobq_job_new(0);
    int64_t now = 0;
    int i;

    (void)unused;
    runs = 0;
    memset(handlers, 0, sizeof handlers);
    for (i = 0; i < 3; i++) {
        handlers[i].queue = like.queue = 1;
        handlers[i].kind = like.kind = i + 1;
        handlers[i].run[0] = run;
        handlers[i].user = &runs;
        like.stages = i == 0 ? 2 : 1;
        assert_int_equal(jobq_memory_enqueue(memory, &like, jobq_str_from("1"), 0), i + 1);
    }
    like.kind = 9; /* nobody's */
    jobq_memory_enqueue(memory, &like, jobq_str_from("1"), 0);
    while (now < 3600 * SECOND) now = jobq_memory_work(memory, &loop, handlers, 3, now);
    assert_int_equal(runs, 2 + 3 + 1);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_SUCCEEDED);
    assert_int_equal(jobq_memory_get(memory, 2)->job.state, JOBQ_STATE_SUCCEEDED);
    assert_int_equal(jobq_memory_get(memory, 3)->job.state, JOBQ_STATE_FAILED);
    assert_int_equal(jobq_memory_get(memory, 4)->job.state, JOBQ_STATE_READY);
    assert_true(jobq_memory_get(memory, 4)->job.run_at_us == JOBQ_NEVER);
    assert_int_equal(jobq_memory_get(memory, 4)->job.attempt, 0);
}

/* A job that was parked before this worker came is asked back with its first news, and runs. */
static void parked_jobs_of_its_kinds_are_asked_back(void **unused)
{
    (void)unused;
    jobq_memory_get(memory, add_job(0))->job.run_at_us = JOBQ_NEVER;
    settle_down(SECOND);
    assert_int_equal(loop.queued.count, 1);
}

/* The store's clock runs back: what is enqueued then comes before the bounds, so they fall. */
static void bounds_fall_when_the_stores_clock_runs_back(void **unused)
{
    jobq_request a;
    int actions = 0;

    (void)unused;
    add_job(100 * SECOND);
    settle_down(100 * SECOND);
    assert_true(loop.queues[0].bounds[-JOBQ_PRIORITY_MIN][0][0].claim != 0);
    while ((a = asks(&loop, 106 * SECOND)).kind != JOBQ_REQUEST_HEARTBEAT) {
        assert_true(++actions < 1000);
        assert_int_not_equal(a.kind, JOBQ_REQUEST_WAIT);
        jobq__memory_perform(memory, &loop, &a, 2, 2, 106 * SECOND, 106 * SECOND);
    }
    jobq__memory_perform(memory, &loop, &a, 2, 2, 106 * SECOND, 50 * SECOND);
    assert_true(loop.queues[0].bounds[-JOBQ_PRIORITY_MIN][0][0].claim == 0);
}

/* Between a worker's last look and its announcement a producer may have seen nobody asleep. */
static void it_looks_again_when_its_sleep_is_announced(void **unused)
{
    jobq_request a;
    int64_t now;

    (void)unused;
    for (now = 0, a.kind = JOBQ_REQUEST_WAIT; a.kind != JOBQ_REQUEST_SLEEP; now += 1000) {
        assert_true(now < 10 * SECOND);
        a = step(now);
    }
    assert_int_equal(asks(&loop, now).kind, JOBQ_REQUEST_CLAIM);
}

/* The dead make room, the one longest dead first; a dead one with jobs and the living do not. */
static void dead_workers_make_room(void **unused)
{
    int32_t rescued, i;
    bool more;

    (void)unused;
    add_job(0);
    settle_down(0);
    for (i = 1; i <= 7; i++) {
        assert_int_equal(jobq__memory_register(memory, i, LEASE, 2, 2, 0), JOBQ_OK);
    }
    assert_int_equal(jobq__memory_register(memory, 8, LEASE, 2, 2, 0), JOBQ_ERROR_FULL);
    jobq__memory_deregister(memory, loop.worker, SECOND); /* dead, and holds a job */
    assert_int_equal(jobq__memory_register(memory, 8, LEASE, 2, 2, 0), JOBQ_ERROR_FULL);
    assert_true(jobq__memory_rescue(memory, 5, 0, 1, 2 * LEASE, &rescued, &more));
    assert_true(jobq__memory_rescue(memory, 3, 0, 1, 3 * LEASE, &rescued, &more));
    assert_int_equal(jobq__memory_register(memory, 8, LEASE, 2, 2, 3 * LEASE), JOBQ_OK);
    assert_false(jobq__memory_heartbeat(memory, 5, NULL, 0, 3 * LEASE)); /* its place is gone */
    assert_int_equal(jobq__memory_register(memory, 9, LEASE, 2, 2, 3 * LEASE), JOBQ_OK);
    assert_int_equal(jobq__memory_register(memory, 10, LEASE, 2, 2, 3 * LEASE), JOBQ_ERROR_FULL);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_RUNNING);
}

/* A loop that ends by itself lives from an instant on, with handlers of one outcome, a millisecond
 * at a time; when it ended. */
static int64_t ends_at(jobq_until until, int64_t now, int64_t last, jobq_outcome outcome)
{
    jobq_loop_config config;
    int32_t slot;

    memset(&config, 0, sizeof config);
    config.until = until;
    jobq_loop_init(&loop, &config, 7, now);
    for (; now < last && loop.phase != JOBQ_PHASE_EXITED; now += 1000) {
        while (step(now).kind != JOBQ_REQUEST_WAIT && loop.phase != JOBQ_PHASE_EXITED) {}
        while ((slot = jobq__take_job(&loop, now)) >= 0) {
            told_handled(&loop, now, slot, loop.slots[slot].generation, outcome, 2 * SECOND,
                              true);
        }
    }
    return now;
}

static void until_empty_leaves_what_comes_later(void **unused)
{
    jobq_job like = jobq_job_new(0);

    (void)unused;
    add_job(0);
    like.queue = like.kind = 1;
    like.run_at_us = 60 * SECOND;
    jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), 0);
    assert_true(ends_at(JOBQ_UNTIL_EMPTY, 0, 100 * SECOND, JOBQ_OUTCOME_RETRY) < SECOND);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_READY);
    assert_int_equal(jobq_memory_get(memory, 1)->job.attempt, 1);
    assert_int_equal(jobq_memory_get(memory, 2)->job.attempt, 0);
}

/* A handler of some seconds, during which nothing else is there, makes a job; and so does that
 * one's. */
static void until_empty_does_what_its_handlers_make(void **unused)
{
    jobq_loop_config config;
    int64_t now = 0, done = JOBQ_NEVER;
    int32_t slot = -1, made = 1;

    (void)unused;
    add_job(0);
    memset(&config, 0, sizeof config);
    config.until = JOBQ_UNTIL_EMPTY;
    jobq_loop_init(&loop, &config, 7, now);
    for (; now < 60 * SECOND && loop.phase != JOBQ_PHASE_EXITED; now += 1000) {
        while (step(now).kind != JOBQ_REQUEST_WAIT && loop.phase != JOBQ_PHASE_EXITED) {}
        if (done == JOBQ_NEVER && (slot = jobq__take_job(&loop, now)) >= 0) done = now + 3 * SECOND;
        if (now < done) continue;
        if (made++ < 3) add_job(0);
        told_handled(&loop, now, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS, 0,
                          true);
        done = JOBQ_NEVER;
    }
    assert_int_equal(made, 4);
    assert_int_equal(jobq_memory_get(memory, 3)->job.state, JOBQ_STATE_SUCCEEDED);
    assert_true(now < 10 * SECOND);
    assert_true(loop.stats.claims < 60); /* and it did not look all the time */
}

/* News name one kind at a time that has parked jobs. */
static void until_empty_does_what_was_parked(void **unused)
{
    (void)unused;
    add_job(0);
    add_job(0);
    jobq_memory_get(memory, 2)->job.kind = 2;
    jobq_memory_get(memory, 1)->job.run_at_us = JOBQ_NEVER;
    jobq_memory_get(memory, 2)->job.run_at_us = JOBQ_NEVER;
    has_handlers = 2 | 4;
    assert_true(ends_at(JOBQ_UNTIL_EMPTY, 0, 100 * SECOND, JOBQ_OUTCOME_SUCCESS) < 2 * SECOND);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_SUCCEEDED);
    assert_int_equal(jobq_memory_get(memory, 2)->job.state, JOBQ_STATE_SUCCEEDED);
}

/* A tick of a schedule is answered after all other statements. */
static void until_empty_waits_for_a_tick_under_way(void **unused)
{
    static const int64_t hour = 3600 * SECOND;
    static jobq_request tick;
    model_schedule hourly = {.every_us = hour, .queue = 1, .kind = 1};
    jobq_loop_config config;
    bool ticks = false;
    int32_t slot;
    int n;

    (void)unused;
    assert_non_null(model_schedule_add(memory, &hourly, 0));
    memset(&config, 0, sizeof config);
    config.until = JOBQ_UNTIL_EMPTY;
    jobq_loop_init(&loop, &config, 7, hour);
    for (n = 0; n < 200 && loop.phase != JOBQ_PHASE_EXITED; n++) {
        jobq_request a = asks(&loop, hour);
        bool late = a.kind == JOBQ_REQUEST_WAIT && ticks;
        if (a.kind == JOBQ_REQUEST_TICK) tick = a, ticks = true;
        else if (late) model_perform(memory, &loop, &tick, 2, 2, hour, hour);
        else if (a.kind != JOBQ_REQUEST_WAIT) model_perform(memory, &loop, &a, 2, 2, hour, hour);
        if (late) ticks = false;
        slot = jobq__take_job(&loop, hour);
        if (slot >= 0) succeeds(slot, hour);
    }
    assert_int_equal(loop.stats.succeeded, 1);
}

/* A hold of a queue that is paused, or whose jobs are not this worker's, keeps nobody here. */
static void until_empty_waits_only_for_holds_of_its_jobs(void **unused)
{
    (void)unused;
    settle_down(0);
    assert_true(jobq__empty_here(&loop));
    loop.queues[0].hold_mono_us = LEASE;
    assert_false(jobq__empty_here(&loop));
    loop.queues[0].paused = true;
    assert_true(jobq__empty_here(&loop));
    loop.queues[0].paused = false;
    loop.served.jobless_queues = 1;
    assert_true(jobq__empty_here(&loop));
}

static void until_ended_waits_for_what_comes_later(void **unused)
{
    jobq_job like = jobq_job_new(0);
    int64_t now;

    (void)unused;
    like.queue = like.kind = 1;
    like.run_at_us = 60 * SECOND;
    jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), 0);
    now = ends_at(JOBQ_UNTIL_ENDED, 0, 100 * SECOND, JOBQ_OUTCOME_SUCCESS);
    assert_true(now >= 60 * SECOND && now < 70 * SECOND);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_SUCCEEDED);
    like.run_at_us = 0; /* and for each attempt, to the last one */
    like.max_attempts = 3;
    jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now);
    now = ends_at(JOBQ_UNTIL_ENDED, now, now + 100 * SECOND, JOBQ_OUTCOME_RETRY) - now;
    assert_true(now >= 4 * SECOND && now < 20 * SECOND);
    assert_int_equal(jobq_memory_get(memory, 2)->job.state, JOBQ_STATE_FAILED);
    assert_int_equal(jobq_memory_get(memory, 2)->job.attempt, 3);
}

/* What another worker has, whom nobody here watches end. */
static void until_ended_waits_for_other_workers(void **unused)
{
    int64_t id = add_job(0);

    (void)unused;
    jobq__memory_register(memory, 99, 1000 * SECOND, 2, 2, 0);
    assert_int_equal(other_claims(memory, 99, 0), 1);
    assert_true(ends_at(JOBQ_UNTIL_EMPTY, 0, 20 * SECOND, JOBQ_OUTCOME_SUCCESS) < SECOND);
    assert_int_equal(ends_at(JOBQ_UNTIL_ENDED, 0, 20 * SECOND, JOBQ_OUTCOME_SUCCESS), 20 * SECOND);
    jobq_memory_get(memory, id)->job.state = JOBQ_STATE_SUCCEEDED;
    assert_true(ends_at(JOBQ_UNTIL_ENDED, 0, 20 * SECOND, JOBQ_OUTCOME_SUCCESS) < SECOND);
}

static void until_ended_waits_for_a_paused_queue(void **unused)
{
    (void)unused;
    jobq_memory_policy(memory, 1, NULL, true);
    add_job(0);
    assert_true(ends_at(JOBQ_UNTIL_EMPTY, 0, 20 * SECOND, JOBQ_OUTCOME_SUCCESS) < SECOND);
    assert_int_equal(ends_at(JOBQ_UNTIL_ENDED, 0, 20 * SECOND, JOBQ_OUTCOME_SUCCESS), 20 * SECOND);
    jobq_memory_policy(memory, 1, NULL, false);
    assert_true(ends_at(JOBQ_UNTIL_ENDED, 20 * SECOND, 60 * SECOND, JOBQ_OUTCOME_SUCCESS) <
                21 * SECOND);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_SUCCEEDED);
}

/* A question a day would do no harm, a thousand a second would. */
static void what_remains_is_asked_ever_more_seldom(void **unused)
{
    jobq_loop_config config;
    int64_t now = 0;
    int asked = 0;

    (void)unused;
    jobq_memory_policy(memory, 1, NULL, true);
    add_job(0);
    memset(&config, 0, sizeof config);
    config.until = JOBQ_UNTIL_ENDED;
    jobq_loop_init(&loop, &config, 7, 0);
    for (; now < 60 * SECOND; now += 1000) {
        int kind;
        do {
            kind = (int)step(now).kind;
            asked += kind == JOBQ_REQUEST_REMAIN;
        } while (kind != JOBQ_REQUEST_WAIT);
    }
    assert_in_range(asked, 50, 90); /* poll_us is 1 s without listen */
}

/* ---- what seldom happens --------------------------------------------------------------------- */

static void perform(jobq_request_kind kind, int64_t worker, int64_t number, int64_t now)
{
    jobq_request a;

    memset(&a, 0, sizeof a);
    a.kind = kind;
    a.worker = worker;
    a.claim = number;
    a.slot = -1;
    jobq__memory_perform(memory, &loop, &a, 2, 2, now, now);
}

/* A cancel request reaches jobs that wait for a thread, wherever they stand in the line. */
static void queued_jobs_are_cancelled_where_they_stand(void **unused)
{
    int i;

    (void)unused;
    for (i = 0; i < 2; i++) add_job(0);
    settle_down(0);
    assert_int_equal(loop.queued.count, 2);
    jobq__cancel(&loop, 99);
    jobq__cancel(&loop, 2); /* the last, and the first */
    jobq__cancel(&loop, 1);
    assert_int_equal(loop.queued.count, 0);
    settle_down(SECOND);
    for (i = 1; i <= 2; i++) {
        assert_int_equal(jobq_memory_get(memory, i)->job.state, JOBQ_STATE_CANCELLED);
    }
}

static void a_wake_up_about_a_cancel_request_brings_the_news(void **unused)
{
    jobq_request a;

    (void)unused;
    settle_down(0);
    jobq_loop_notified(&loop, 1000, "cancel");
    a = asks(&loop, 1000);
    assert_int_equal(a.kind, JOBQ_REQUEST_HEARTBEAT);
}

/* Deaf, it looks every second; what was said meanwhile is looked for when it hears again. */
static void a_worker_that_hears_nothing_looks_more_often(void **unused)
{
    int64_t now;
    int heard = 0, deaf = 0;

    (void)unused;
    for (now = 0; now < 60 * SECOND; now += 50000) settle_down(now);
    for (; now < 80 * SECOND; now += 50000) {
        while (step(now).kind != JOBQ_REQUEST_WAIT) heard++;
    }
    jobq_loop_hears(&loop, now, true); /* no news */
    jobq_loop_hears(&loop, now, false);
    for (; now < 100 * SECOND; now += 50000) {
        while (step(now).kind != JOBQ_REQUEST_WAIT) deaf++;
    }
    assert_true(deaf > 2 * heard);
    jobq_loop_hears(&loop, now, true);
    assert_int_equal(loop.pace.claim_mono_us <= now, true);
}

/* -- servers that do not do as they are told -- */

typedef enum mood { WELL, REFUSES, BUSY, SILENT } mood;

static int64_t stuck;      /* the job that the server cannot send */
static mood stuck_mood;    /* what becomes of a claim that would hand it out */
static bool recovers_late; /* a RECOVER is answered after the next claim */
static jobq_request late;
static int64_t faulty;     /* the job whose result it does not take */
static int32_t most_rows;  /* answers no larger claim in time */
static int64_t ill_from, ill_until;
static mood ill_mood;
static int asked[JOBQ_REQUEST_COUNT];

static bool carries(const jobq_request *a, int64_t job, bool plain)
{
    int32_t i;

    for (i = 0; i < a->ending_count; i++) {
        const jobq_ending *ending = &a->endings[i];
        if (ending->job == job && (plain || ending->refused == 0)) return true;
    }
    return false;
}

static mood mood_of_claim(const jobq_request *a)
{
    const jobq_memory_job *mj = jobq_memory_get(memory, stuck);

    if (a->limit > most_rows) return SILENT;
    if (mj == NULL || mj->job.state != JOBQ_STATE_READY || mj->job.suspect != a->suspects) {
        return WELL;
    }
    return a->bytes > 0 ? stuck_mood : WELL;
}

/* What the server makes of a statement. always: it does not even take a plain result of faulty. */
static mood mood_of(const jobq_request *a, int64_t now, bool always)
{
    if (now >= ill_from && now < ill_until) return ill_mood;
    if (a->kind == JOBQ_REQUEST_CLAIM) return mood_of_claim(a);
    if (a->kind != JOBQ_REQUEST_COMPLETE && a->kind != JOBQ_REQUEST_SETTLE) return WELL;
    return carries(a, faulty, always) ? REFUSES : WELL;
}

/* A claim that failed keeps its jobs locked for this time; others find none meanwhile. */
static int64_t locked_for, locked_until;

static void refuse(const jobq_request *a, int64_t now)
{
    switch ((int)a->kind) {
    case JOBQ_REQUEST_CLAIM:
        told_claimed(&loop, now, JOBQ_ERROR_DATABASE);
        locked_until = now + locked_for;
        break;
    case JOBQ_REQUEST_DISCONNECT:
    case JOBQ_REQUEST_CONNECT: jobq_loop_disconnected(&loop, now); break;
    default: told_of(&loop, now, a, JOBQ_ERROR_DATABASE); break;
    }
}

/* Every row of the flush is locked by somebody. */
static void answer_busy(const jobq_request *a, int64_t now)
{
    jobq_answer *busy = told(a->kind, JOBQ_OK);
    int32_t i;

    for (i = 0; i < a->ending_count; i++) {
        const jobq_ending *e = &a->endings[i];
        jobq_exception *x = &busy->exceptions[busy->count++];
        x->job = e->job;
        x->worker = e->worker;
        x->claim = e->claim;
        x->error = JOBQ_ERROR_BUSY;
    }
    jobq_loop_tell(&loop, now, busy);
}

static void answer(const jobq_request *a, int64_t now, bool always)
{
    mood m = mood_of(a, now, always);
    bool flush = a->kind == JOBQ_REQUEST_COMPLETE || a->kind == JOBQ_REQUEST_SETTLE;

    asked[a->kind]++;
    if (a->kind == JOBQ_REQUEST_DISCONNECT) jobq_loop_disconnected(&loop, now);
    else if (a->kind == JOBQ_REQUEST_CLAIM && now < locked_until)
        told_claimed(&loop, now, JOBQ_OK);
    else if (m == REFUSES) refuse(a, now);
    else if (m == BUSY && flush) answer_busy(a, now);
    else if (m == SILENT) return;
    else if (a->kind == JOBQ_REQUEST_RECOVER && recovers_late && late.kind != a->kind) late = *a;
    else if (a->kind == JOBQ_REQUEST_SET_ASIDE) {
        jobq_answer *moved = told(a->kind, JOBQ_OK);
        moved->done = jobq__memory_set_aside(memory, a->id, now);
        jobq_loop_tell(&loop, now, moved);
    } else jobq__memory_perform(memory, &loop, a, 2, 2, now, now);
}

/* Runs the loop and its handlers from one instant to the next, every 10 ms. */
static void live(int64_t from, int64_t until, bool always)
{
    int64_t now;
    int32_t slot;

    for (now = from; now < until && loop.phase != JOBQ_PHASE_EXITED; now += 10000) {
        jobq_request a;
        if (late.kind == JOBQ_REQUEST_RECOVER) answer(&late, now, always);
        memset(&late, 0, sizeof late);
        while ((a = asks(&loop, now)).kind != JOBQ_REQUEST_WAIT &&
               a.kind != JOBQ_REQUEST_EXIT) {
            answer(&a, now, always);
        }
        while ((slot = jobq__take_job(&loop, now)) >= 0) {
            told_handled(&loop, now, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS,
                              0, false);
        }
    }
}

static int32_t count_state(jobq_state state)
{
    int32_t i, n = 0;

    for (i = 0; i < memory->job_count; i++) n += jobq__memory_jobs(memory)[i].job.state == state;
    return n;
}

static int well(void **unused)
{
    stuck = faulty = ill_from = ill_until = locked_until = locked_for = 0;
    stuck_mood = REFUSES;
    recovers_late = false;
    memset(&late, 0, sizeof late);
    most_rows = INT32_MAX;
    memset(asked, 0, sizeof asked);
    return setup(unused);
}

/* The database refuses a batch: halves of it find the job to blame. It gets a failed attempt,
 * without the text and payload of its handler. */
static void the_job_that_the_database_refuses_is_found(void **unused)
{
    int i;

    (void)unused;
    for (i = 0; i < 20; i++) add_job(0);
    faulty = 7;
    live(0, 4 * SECOND, false);
    assert_int_equal(count_state(JOBQ_STATE_SUCCEEDED), 19);
    assert_int_equal(jobq_memory_get(memory, 7)->job.state, JOBQ_STATE_READY);
    assert_int_equal(jobq_memory_get(memory, 7)->job.attempt, 1);
    assert_int_equal(loop.stats.refused, 1);
}

/* Not even a plain failure is taken: the job is left to its rescuer, its claim's row stays. */
static void a_job_without_an_end_is_left_to_its_rescuer(void **unused)
{
    int64_t claim;
    int i;

    (void)unused;
    add_job(0);
    settle_down(0);
    faulty = 1;
    claim = jobq_memory_get(memory, 1)->job.claim;
    live(SECOND, 60 * SECOND, true);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_RUNNING);
    assert_int_equal(loop.stats.refused, 2);
    assert_int_equal(loop.stats.left, 1);
    assert_int_equal(loop.done.count + loop.others.count + loop.sent_done.count, 0);
    assert_non_null(jobq__memory_claim_of(memory, loop.worker, claim));
    faulty = 0;
    for (i = 0; i < 9; i++) add_job(60 * SECOND);
    live(60 * SECOND, 70 * SECOND, true);
    assert_int_equal(count_state(JOBQ_STATE_SUCCEEDED), 9);
}

/* One job that cannot be sent, first in its lane. */
static void a_job_that_cannot_be_sent_is_set_aside(void **unused)
{
    int i;

    (void)unused;
    for (i = 0; i < 21; i++) add_job(0);
    stuck = 1;
    live(0, 10 * SECOND, false);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_FAILED);
    assert_int_equal(count_state(JOBQ_STATE_SUCCEEDED), 20);
    assert_int_equal(loop.stats.aside, 1);
}

/* The backend of a claim that got no answer may hold its locks for seconds. A claim that finds no
 * job meanwhile proves nothing, and names nobody. */
static void a_job_that_failed_claims_keep_locked_is_set_aside(void **unused)
{
    int i;

    for (locked_for = SECOND / 10; locked_for <= 10 * SECOND; locked_for *= 10) {
        int64_t kept = locked_for;
        well(unused);
        locked_for = kept;
        for (i = 0; i < 21; i++) add_job(0);
        stuck = 1;
        live(0, 30 * SECOND + 20 * locked_for, false);
        assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_FAILED);
        assert_int_equal(count_state(JOBQ_STATE_SUCCEEDED), 20);
        assert_int_equal(loop.stats.aside, 1);
    }
}

/* It was claimed once, and its worker died. Other claims are answered between those that fail. */
static void a_suspect_that_never_arrives_is_set_aside(void **unused)
{
    int i;

    (void)unused;
    for (i = 0; i < 21; i++) add_job(0);
    jobq_memory_get(memory, 1)->job.suspect = true;
    stuck = 1;
    stuck_mood = SILENT;
    recovers_late = true;
    live(0, 120 * SECOND, false);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_FAILED);
    assert_int_equal(count_state(JOBQ_STATE_SUCCEEDED), 20);
    assert_int_equal(loop.stats.aside, 1);
}

/* Claims of a suspect get no answer, while others are ready all the time. Claims of others work,
 * so they stay as large as they were. */
static void a_suspect_that_never_arrives_makes_no_other_claim_smaller(void **unused)
{
    int64_t now;

    (void)unused;
    add_job(0);
    jobq_memory_get(memory, 1)->job.suspect = true;
    stuck = 1;
    stuck_mood = SILENT;
    for (now = 0; now < 60 * SECOND; now += SECOND) {
        add_job(now);
        live(now, now + SECOND, false);
        assert_int_equal(loop.wire.budgets[JOBQ_REQUEST_CLAIM].rows, loop.config.batch_max);
    }
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_FAILED);
    assert_int_equal(count_state(JOBQ_STATE_SUCCEEDED), 60);
}

/* A job that ran alone and was left does not run any longer: its worker takes others again. */
static void a_job_that_was_left_keeps_nobody_alone(void **unused)
{
    int i;

    (void)unused;
    add_job(0);
    jobq_memory_get(memory, 1)->job.suspect = jobq_memory_get(memory, 1)->job.alone = true;
    faulty = 1;
    live(0, 60 * SECOND, true);
    assert_int_equal(loop.stats.left, 1);
    for (i = 0; i < 9; i++) add_job(60 * SECOND);
    live(60 * SECOND, 70 * SECOND, true);
    assert_int_equal(count_state(JOBQ_STATE_SUCCEEDED), 9);
}

/* A server that refuses a statement for hours is asked again within five seconds. */
static void an_error_holds_a_statement_back_for_five_seconds_at_most(void **unused)
{
    int64_t now = 0;
    int refused = 0;

    (void)unused;
    settle_down(0);
    while (refused < 30) {
        jobq_request a = asks(&loop, now);
        if (a.kind == JOBQ_REQUEST_HEARTBEAT) {
            told_plain(&loop, now, JOBQ_REQUEST_HEARTBEAT, JOBQ_ERROR_RETRYABLE);
            refused++;
            assert_true(loop.wire.hold_mono_us[a.kind] - now <= 5 * SECOND);
        } else if (a.kind == JOBQ_REQUEST_WAIT) now = a.until_mono_us;
        else jobq__memory_perform(memory, &loop, &a, 2, 2, now, now);
    }
    assert_int_equal(loop.wire.hold_mono_us[JOBQ_REQUEST_HEARTBEAT] - now, 5 * SECOND);
}

/* A claim of more than three jobs does not arrive in time. */
static void a_claim_that_is_too_large_becomes_smaller(void **unused)
{
    int i;

    (void)unused;
    for (i = 0; i < 60; i++) add_job(0);
    loop.config.threads = 64;
    most_rows = 3;
    live(0, 300 * SECOND, false);
    assert_int_equal(count_state(JOBQ_STATE_SUCCEEDED), 60);
}

/* A server that was ill, and is well again at any moment: no job is to blame. */
static void an_outage_condemns_nobody(void **unused)
{
    int64_t until;
    int i;

    for (ill_mood = REFUSES; ill_mood <= SILENT; ill_mood = (mood)(ill_mood + 2)) {
        for (until = 10000; until < 40 * SECOND; until += until < SECOND ? 10000 : 250000) {
            well(unused);
            for (i = 0; i < 5; i++) add_job(0);
            settle_down(0);
            for (i = 0; i < 15; i++) add_job(0);
            ill_from = 1;
            ill_until = until;
            live(1, until + 30 * SECOND, false);
            assert_int_equal(count_state(JOBQ_STATE_SUCCEEDED), 20);
            assert_int_equal(loop.stats.aside + loop.stats.refused + loop.stats.left, 0);
        }
    }
}

/* Whatever the server says for ever: a stop ends after the grace and the time of one answer; if all
 * is said, and rows are locked, after the grace. */
static void a_stop_ends_whatever_the_server_says(void **unused)
{
    int64_t now = 3 * SECOND, latest;

    for (ill_mood = REFUSES; ill_mood <= SILENT; ill_mood = (mood)(ill_mood + 1)) {
        mood m = ill_mood;
        latest = now + 2 * SECOND + (m == BUSY ? 0 : LEASE / 3);
        well(unused);
        ill_mood = m;
        add_job(0);
        add_job(0);
        settle_down(0);
        ill_from = 1;
        ill_until = INT64_MAX;
        live(SECOND, now, false); /* results are there, and cannot be settled */
        assert_true(loop.done.count + loop.others.count + loop.sent_done.count > 0);
        jobq_loop_stop(&loop, now, 2 * SECOND);
        live(now, latest, false);
        assert_int_not_equal(loop.phase, JOBQ_PHASE_WORKING);
        live(latest, latest + (m == BUSY ? 10000 : SECOND), false);
        assert_int_equal(loop.phase, JOBQ_PHASE_EXITED);
    }
}

/* A row that an operator holds is asked for ever more seldom, and holds up no other result. */
static void a_locked_row_is_asked_for_ever_more_seldom(void **unused)
{
    (void)unused;
    add_job(0);
    settle_down(0);
    ill_from = 1;
    ill_until = 100 * SECOND;
    ill_mood = BUSY;
    live(SECOND, 61 * SECOND, false);
    assert_in_range(asked[JOBQ_REQUEST_COMPLETE], 60, 70);
    ill_from = ill_until;
    add_job(61 * SECOND);
    jobq_loop_notified(&loop, 61 * SECOND, "");
    live(61 * SECOND, 61 * SECOND + 50000, false);
    assert_int_equal(count_state(JOBQ_STATE_SUCCEEDED), 2); /* the new one took it along */
}

/* The server could not just now: the results stay, and are sent again. */
static void a_flush_that_failed_is_sent_again(void **unused)
{
    int32_t slot;
    jobq_request a;

    (void)unused;
    add_job(0);
    settle_down(0);
    slot = jobq__take_job(&loop, 1);
    told_handled(&loop, 1, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS, 0, false);
    while ((a = asks(&loop, 10000)).kind != JOBQ_REQUEST_COMPLETE) {
        assert_int_not_equal(a.kind, JOBQ_REQUEST_WAIT);
        jobq__memory_perform(memory, &loop, &a, 2, 2, 10000, 10000);
    }
    told_plain(&loop, 10000, a.kind, JOBQ_ERROR_RETRYABLE);
    assert_int_equal(jobq__list_of(&loop, a.kind, true)->count, 0);
    assert_int_equal(loop.stats.flushed, 0);
    settle_down(10 * SECOND);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_SUCCEEDED);
}

static void the_configurations_defaults(void **unused)
{
    jobq_loop_config c = jobq_loop_config_defaults(NULL), full;

    (void)unused;
    assert_int_equal(c.threads, 4);
    assert_int_equal(c.batch_max, JOBQ_LOOP_SLOTS / 2 < 1000 ? JOBQ_LOOP_SLOTS / 2 : 1000);
    assert_int_equal(c.lease_us, JOBQ_SECONDS(30));
    assert_int_equal(c.heartbeat_us, JOBQ_SECONDS(5));
    assert_int_equal(c.poll_us, JOBQ_SECONDS(1));
    assert_int_equal(c.flush_us, JOBQ_MILLISECONDS(5));
    assert_int_equal(c.linger_us, JOBQ_MILLISECONDS(20));
    assert_int_equal(c.sweep_us, JOBQ_SECONDS(5));
    assert_int_equal(c.grace_us, JOBQ_SECONDS(30));
    assert_int_equal(c.answer_us, JOBQ_SECONDS(10));
    assert_int_equal(c.prune_us, JOBQ_MINUTES(10));
    assert_int_equal(c.vacuum_rows, 100000);
    assert_true(c.jobs_max == JOBQ_NEVER);
    assert_int_equal(c.until, JOBQ_UNTIL_STOPPED);
    c = jobq_loop_config_defaults(
        &(jobq_loop_config){.served = &(jobq_loop_served){.listen = true}});
    assert_int_equal(c.poll_us, JOBQ_SECONDS(5));
    full = jobq_loop_config_defaults(&c);
    assert_memory_equal(&full, &c, sizeof c);
}

/* A queue that came after this worker registered: its policy is not known yet. */
static void a_job_of_an_unknown_queue_is_worked_by_the_defaults(void **unused)
{
    jobq_job job = jobq_job_new(1);
    jobq_request a;
    int32_t slot;

    (void)unused;
    while ((a = asks(&loop, 0)).kind != JOBQ_REQUEST_CLAIM) {
        assert_int_not_equal(a.kind, JOBQ_REQUEST_WAIT);
        jobq__memory_perform(memory, &loop, &a, 2, 2, 0, 0);
    }
    job.queue = 9;
    job.state = JOBQ_STATE_RUNNING;
    job.worker = a.worker;
    job.claim = a.claim;
    job.attempt = 1;
    assert_true(jobq__claimed_job(&loop, 0, &job) >= 0);
    told_claimed(&loop, 0, JOBQ_OK);
    slot = jobq__take_job(&loop, 1);
    assert_true(loop.slots[slot].deadline_mono_us == JOBQ_NEVER);
    told_handled(&loop, 2, slot, loop.slots[slot].generation, JOBQ_OUTCOME_RETRY, 0, false);
    assert_in_range(loop.slots[slot].decision.delay_us, 3750 * 1000, 6250 * 1000);
}

static void a_handler_is_told_why_to_stop(void **unused)
{
    int64_t worker;
    uint32_t generation;
    int32_t slot;

    (void)unused;
    add_job(0);
    settle_down(0);
    slot = jobq__take_job(&loop, 1);
    generation = loop.slots[slot].generation;
    worker = loop.worker;
    assert_int_equal(jobq__job_stopping(&loop, 2, slot, generation), JOBQ_STOP_NONE);
    assert_int_equal(jobq__job_stopping(&loop, 2, slot, generation + 1), JOBQ_STOP_TIMEOUT);
    loop.slots[slot].deadline_mono_us = 2;
    assert_int_equal(jobq__job_stopping(&loop, 2, slot, generation), JOBQ_STOP_TIMEOUT);
    loop.slots[slot].deadline_mono_us = JOBQ_NEVER;
    loop.worker = worker + 1; /* it died, and started again */
    assert_int_equal(jobq__job_stopping(&loop, 2, slot, generation), JOBQ_STOP_LOST);
    loop.worker = worker;
    jobq_loop_stop(&loop, 2, -1);
    assert_int_equal(jobq__job_stopping(&loop, 2, slot, generation), JOBQ_STOP_SHUTDOWN);
    jobq__cancel(&loop, 1);
    assert_int_equal(jobq__job_stopping(&loop, 2, slot, generation), JOBQ_STOP_CANCEL);
    told_handled(&loop, 3, slot, generation, JOBQ_OUTCOME_SUCCESS, 0, false);
    assert_int_equal(jobq__job_stopping(&loop, 3, slot, generation), JOBQ_STOP_TIMEOUT);
}

/* Many small batches: their rows go when they fill half of the table, not at the next beat. */
static void settled_claims_go_before_they_fill_the_table(void **unused)
{
    int64_t beats;
    int32_t slot;

    (void)unused;
    add_job(0);
    settle_down(0);
    beats = loop.stats.heartbeats;
    loop.lease.settled_count = JOBQ_LOOP_CLAIMS / 2 - 1;
    slot = jobq__take_job(&loop, 1);
    told_handled(&loop, 1, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS, 0, false);
    settle_down(1);
    settle_down(10000);
    assert_int_equal(loop.stats.heartbeats, beats + 1);
    assert_null(jobq__memory_claim_of(memory, loop.worker, 1)); /* its row is gone */
}

static void queues_beyond_those_with_a_policy_have_the_defaults(void **unused)
{
    jobq_job like = jobq_job_new(0);

    (void)unused;
    like.queue = JOBQ_MEMORY_QUEUES + 1;
    assert_int_equal(jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), 0), 1);
    assert_int_equal(jobq__memory_policy_of(memory, like.queue)->max_attempts, 20);
    assert_int_equal(jobq__memory_policy_of(memory, 0)->max_attempts, 20);
    assert_int_equal(jobq_memory_event(memory, 1, JOBQ_EVENT_CANCEL, 0), JOBQ_OK);
}

/* Each claim of one slow job holds a place of the table until it is settled. */
static void a_full_table_of_claims_waits(void **unused)
{
    int i;

    (void)unused;
    settle_down(0);
    for (i = 0; i < JOBQ_LOOP_CLAIMS; i++) loop.claims[i].state = JOBQ_CLAIM_LIVE;
    add_job(1);
    jobq_loop_notified(&loop, 1, "");
    settle_down(1);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_READY);
    loop.claims[7].state = JOBQ_CLAIM_NONE;
    settle_down(2);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_RUNNING);
}

static void a_vacuum_is_wanted_after_enough_jobs(void **unused)
{
    int64_t now = SECOND;
    jobq_request a;
    int pass;

    (void)unused;
    settle_down(0);
    for (pass = 0; pass < 3; pass++) { /* done, done slowly, and refused */
        loop.vacuum_rows = loop.config.vacuum_rows;
        now = jobq__max(now, loop.wire.hold_mono_us[JOBQ_REQUEST_VACUUM]);
        while ((a = asks(&loop, now)).kind != JOBQ_REQUEST_VACUUM) {
            assert_int_not_equal(a.kind, JOBQ_REQUEST_WAIT);
            jobq__memory_perform(memory, &loop, &a, 2, 2, now, now);
        }
        if (pass == 1) now += 5 * SECOND;
        if (pass < 2) jobq__memory_perform(memory, &loop, &a, 2, 2, now, now);
        else told_plain(&loop, now, a.kind, JOBQ_ERROR_DATABASE);
        assert_true(loop.wire.hold_mono_us[JOBQ_REQUEST_VACUUM] > now && loop.vacuum_rows == 0);
        if (pass == 1)
            assert_int_equal(loop.wire.hold_mono_us[JOBQ_REQUEST_VACUUM], now + 45 * SECOND);
    }
    assert_true(loop.wire.hold_mono_us[JOBQ_REQUEST_VACUUM] >= now + 60 * SECOND); /* it may not */
}

/* In a fleet that leaves housekeeping to others. Of workers that soon end, one in eight prunes. */
static void never_is_no_housekeeping_at_all(void **unused)
{
    jobq_loop_config config = loop.config;
    jobq_request a;
    int i;

    (void)unused;
    config.prune_us = config.vacuum_rows = JOBQ_NEVER;
    config.until = JOBQ_UNTIL_EMPTY;
    for (i = 0; i < 64; i++) {
        int64_t now = 0;
        jobq_loop_init(&loop, &config, (uint64_t)i, now);
        do {
            a = step(now);
            assert_int_not_equal(a.kind, JOBQ_REQUEST_PRUNE);
            assert_int_not_equal(a.kind, JOBQ_REQUEST_VACUUM);
            if (a.kind == JOBQ_REQUEST_WAIT) now = a.until_mono_us;
            loop.vacuum_rows = 1000000;
        } while (a.kind != JOBQ_REQUEST_EXIT);
    }
}

/* A caller that waits for threads learns when something is due. */
static void it_tells_when_something_is_due(void **unused)
{
    int32_t slot;

    (void)unused;
    assert_true(jobq_loop_due(&loop, 0) == JOBQ_NEVER); /* not connected */
    add_job(0);
    settle_down(0);
    slot = jobq__take_job(&loop, 1);
    told_handled(&loop, 1, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS, 0, false);
    assert_true(jobq_loop_due(&loop, 1) <= 1 + 5000);
}

/* The answer of a claim is lost; its jobs go back, and are claimed again. */
static void a_lost_claim_is_recovered(void **unused)
{
    static jobq_loop told;
    jobq_request a;

    (void)unused;
    add_job(0);
    while ((a = asks(&loop, 0)).kind != JOBQ_REQUEST_CLAIM) {
        jobq__memory_perform(memory, &loop, &a, 2, 2, 0, 0);
    }
    told = loop;
    jobq__memory_perform(memory, &told, &a, 2, 2, 0, 0);
    jobq_loop_disconnected(&loop, 1);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_RUNNING);
    settle_down(SECOND);
    assert_int_equal(loop.queued.count, 1); /* it went back, and was claimed again */
    assert_int_equal(loop.slots[loop.queued.head].job.claim, a.claim + 1);
    assert_int_equal(jobq_memory_get(memory, 1)->job.attempt, 1);
}

/* Declared dead by somebody: it registers again, under another id. */
static void a_dead_worker_registers_anew(void **unused)
{
    int64_t before;
    int32_t rescued;
    bool more;

    (void)unused;
    settle_down(0);
    before = loop.worker;
    /* it beats */
    assert_false(jobq__memory_rescue(memory, before, 99, 1, 2 * LEASE, &rescued, &more));
    assert_true(jobq__memory_rescue(memory, before, jobq__memory_workers(memory)[0].beat, 1,
                                    2 * LEASE, &rescued, &more));
    settle_down(6 * SECOND);
    assert_int_equal(loop.stats.deaths, 1);
    assert_true(loop.worker != before && loop.worker != 0);
    perform(JOBQ_REQUEST_SLEEP, before, 0, 6 * SECOND); /* of the dead: nobody there to sleep */
}

/* Asked to stop while the database is away: it leaves after the grace; what it holds is rescued. */
static void a_stop_does_not_wait_for_a_database_that_is_away(void **unused)
{
    int64_t now = SECOND;
    jobq_request a;

    (void)unused;
    add_job(0);
    settle_down(0);
    jobq_loop_disconnected(&loop, SECOND);
    jobq_loop_stop(&loop, SECOND, SECOND);
    jobq_loop_stop(&loop, SECOND, -1);
    do {
        a = asks(&loop, now);
        if (a.kind == JOBQ_REQUEST_CONNECT) jobq_loop_disconnected(&loop, now);
        else if (a.kind == JOBQ_REQUEST_WAIT) now = a.until_mono_us;
        assert_true(now < 100 * SECOND);
    } while (a.kind != JOBQ_REQUEST_EXIT);
    jobq_loop_stop(&loop, now, 0); /* too late to matter */
    assert_int_equal(loop.phase, JOBQ_PHASE_EXITED);
}

/* Handlers that overrun: given up, and their connection cut. */
static void a_handler_that_overruns_is_given_up(void **unused)
{
    jobq_policy policy = jobq_policy_defaults(NULL);
    int32_t slot, n;

    (void)unused;
    policy.timeout_us = SECOND;
    jobq_memory_policy(memory, 1, &policy, false);
    add_job(0);
    settle_down(0);
    slot = jobq__take_job(&loop, 0);
    assert_true(slot >= 0);
    for (n = 0; n < 10 && loop.stats.abandoned == 0; n++) step(SECOND + 1);
    assert_int_equal(loop.stats.abandoned, 1);
    assert_false(told_handled(&loop, 2 * SECOND, slot, loop.slots[slot].generation - 1,
                                   JOBQ_OUTCOME_SUCCESS, 0, false));
    settle_down(2 * SECOND);
    assert_int_equal(jobq_memory_get(memory, 1)->job.attempt, 1);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_READY);
}

/* A handler that returns after its time limit has failed, and one that was told that its job is
 * lost gives it back, whatever it says. Nothing is sent to abandon it: it has returned. */
static void what_a_handler_says_too_late_changes_nothing(void **unused)
{
    jobq_policy policy = jobq_policy_defaults(NULL);
    const jobq_job *job;
    jobq_handled handled = {.outcome = JOBQ_OUTCOME_SUCCESS};
    jobq_decision decision;
    jobq_work work;
    int64_t left;

    (void)unused;
    policy.timeout_us = SECOND;
    jobq_memory_policy(memory, 1, &policy, false);
    add_job(0);
    settle_down(0);
    assert_true(jobq_loop_take(&loop, 0, &work));
    assert_true(jobq_loop_due(&loop, 0) <= SECOND);
    assert_int_equal(jobq_loop_stopping(&loop, SECOND, &work, &left), JOBQ_STOP_TIMEOUT);
    assert_true(jobq_loop_handled(&loop, SECOND, &work, &handled, &decision));
    assert_int_equal(decision.state, JOBQ_STATE_READY);
    settle_down(SECOND + 5000);
    job = &jobq_memory_get(memory, 1)->job;
    assert_int_equal(job->state, JOBQ_STATE_READY);
    assert_int_equal(job->attempt, 1);
    assert_int_equal(loop.stats.abandoned, 0);
    add_job(2 * SECOND);
    settle_down(2 * SECOND);
    assert_true(jobq_loop_take(&loop, 2 * SECOND, &work));
    assert_int_equal(work.job.id, 2);
    handled.lost = true;
    assert_true(jobq_loop_handled(&loop, 2 * SECOND, &work, &handled, &decision));
    settle_down(2 * SECOND + 5000);
    job = &jobq_memory_get(memory, 2)->job;
    assert_int_equal(decision.state, JOBQ_STATE_READY);
    assert_int_not_equal(job->state, JOBQ_STATE_SUCCEEDED);
    assert_int_equal(decision.attempt, 0);
}

/* Without a connection, and while an answer is awaited, a time limit ends as well. */
static void a_time_limit_ends_while_no_statement_can_be_sent(void **unused)
{
    jobq_policy policy = jobq_policy_defaults(NULL);
    jobq_request a;

    (void)unused;
    policy.timeout_us = SECOND;
    jobq_memory_policy(memory, 1, &policy, false);
    add_job(0);
    settle_down(0);
    jobq_loop_disconnected(&loop, 0);
    assert_true(jobq__take_job(&loop, 0) >= 0);
    assert_int_equal(jobq_loop_due(&loop, 0), SECOND);
    jobq_loop_abandon(&loop, SECOND - 1, &a);
    assert_int_equal(a.kind, JOBQ_REQUEST_WAIT);
    assert_int_equal(a.until_mono_us, SECOND);
    jobq_loop_abandon(&loop, SECOND, &a);
    assert_int_equal(a.kind, JOBQ_REQUEST_ABANDON);
    jobq_loop_abandon(&loop, SECOND, &a);
    assert_int_equal(a.kind, JOBQ_REQUEST_WAIT);
}

/* A kind's policy wins over its queue's, for as long as it has one; a job's own limits win over
 * both. */
static void a_kind_may_have_a_policy_of_its_own(void **unused)
{
    jobq_policy policy = jobq_policy_defaults(NULL);
    jobq_work work;
    int32_t n;

    (void)unused;
    policy.timeout_us = 60 * SECOND;
    jobq_memory_policy(memory, 1, &policy, false);
    policy.timeout_us = 7 * SECOND;
    policy.max_attempts = 1;
    jobq__memory_kind_policy(memory, 1, &policy);
    jobq__memory_kind_policy(memory, 2, &policy); /* which this worker does not have */
    for (n = 0; n < 2; n++) add_job(0);
    jobq_memory_get(memory, 2)->job.timeout_us = 9 * SECOND;
    jobq_memory_get(memory, 2)->job.max_attempts = 2;
    settle_down(0);
    assert_int_equal(loop.kind_policy_count, 1);
    for (n = 0; n < 2; n++) {
        assert_true(jobq_loop_take(&loop, 0, &work));
        assert_int_equal(work.policy.max_attempts, 1);
        assert_int_equal(loop.slots[work.slot].deadline_mono_us, (7 + 2 * n) * SECOND);
        told_handled(&loop, 0, work.slot, work.generation, JOBQ_OUTCOME_RETRY, 0, true);
    }
    settle_down(SECOND);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_FAILED);
    assert_int_equal(jobq_memory_get(memory, 1)->limit, 1);
    assert_int_not_equal(jobq_memory_get(memory, 2)->job.state, JOBQ_STATE_FAILED);
    jobq__memory_kind_policy(memory, 1, NULL);
    add_job(10 * SECOND);
    settle_down(10 * SECOND);
    assert_int_equal(loop.kind_policy_count, 0);
    while (jobq_loop_take(&loop, 10 * SECOND, &work) && work.job.id != 3) {}
    assert_int_equal(work.policy.max_attempts, 20);
    assert_int_equal(loop.slots[work.slot].deadline_mono_us, 70 * SECOND);
}

/* Answers about what is not there, or does not fit, change nothing. */
/* Jobs claimed ahead for quick handlers are given back when the handlers become slow. */
static void jobs_behind_slow_handlers_are_given_back(void **unused)
{
    int64_t id, at;
    int i;

    (void)unused;
    loop.pace.handler_us = 0; /* so quick were those before */
    for (i = 0; i < 50; i++) add_job(0);
    settle_down(0);
    for (i = 0; i < 2; i++) assert_true(jobq__take_job(&loop, 0) >= 0);
    settle_down(SECOND - 1);
    assert_int_equal(loop.queued.count, 48);
    settle_down(SECOND);
    assert_int_equal(loop.queued.count, 2); /* one for each thread */
    settle_down(SECOND + 5000);             /* when results are due */
    for (id = 1; id <= 50; id++) {
        const jobq_job *job = &jobq_memory_get(memory, id)->job;
        assert_int_equal(job->state, id <= 4 ? JOBQ_STATE_RUNNING : JOBQ_STATE_READY);
        assert_int_equal(job->attempt, id <= 4);
    }
    for (at = 2; at < 60; at++) settle_down(at * SECOND); /* nor are they fetched again */
    assert_int_equal(loop.queued.count, 2);
    assert_int_equal(loop.stats.claimed, 50);
}

/* Handlers take 20 ms. */
static void a_worker_fetches_more_where_answers_take_long(void **unused)
{
    int64_t now = 0;
    int i;

    (void)unused;
    for (i = 0; i < 50; i++) {
        jobq_request a;
        now += SECOND;
        jobq_loop_notified(&loop, now, "");
        do {
            a = asks(&loop, now);
            if (a.kind == JOBQ_REQUEST_CLAIM) now += a.sweep ? SECOND : 30000; /* sweeps apart */
            if (a.kind != JOBQ_REQUEST_WAIT)
                jobq__memory_perform(memory, &loop, &a, 2, 2, now, now);
        } while (a.kind != JOBQ_REQUEST_WAIT);
    }
    assert_in_range(loop.pace.trip_us, 29000, 30000);
    loop.pace.handler_us = 20000;
    assert_in_range(jobq__claim_want(&loop), 2 + 2 * 116 / 20, 2 + 2 * 120 / 20);
    loop.pace.trip_us = 1000;
    assert_int_equal(jobq__claim_want(&loop), 2 + 2 * 50 / 20);
    loop.pace.trip_us = 2 * SECOND;
    assert_int_equal(jobq__claim_want(&loop), 2 + 2 * 500 / 20);
}

/* Behind millions of dead rows a sweep finds no end: what lies behind the bounds goes on. */
static void a_sweep_that_overruns_is_put_off(void **unused)
{
    int64_t now = 0, next = 7 * SECOND;
    int sweeps = 0, others = 0, i;

    (void)unused;
    add_job(0);
    settle_down(0);
    while (now < 600 * SECOND) {
        jobq_request a = asks(&loop, now);
        if (a.kind == JOBQ_REQUEST_WAIT) {
            now = jobq__take_job(&loop, now) >= 0 ? now : now + SECOND / 100;
            for (i = 0; i < loop.running_count; i++) {
                int32_t slot = loop.running[i];
                told_handled(&loop, now, slot, loop.slots[slot].generation,
                                  JOBQ_OUTCOME_SUCCESS, 0, false);
            }
            if (now >= next) add_job(now);
            if (now >= next) next = now + 7 * SECOND;
        } else if (a.kind == JOBQ_REQUEST_CLAIM && a.sweep) {
            now += loop.config.answer_us;
            if (sweeps++ % 2 == 0) told_claimed(&loop, now, JOBQ_ERROR_TIMEOUT);
            else jobq_loop_disconnected(&loop, now);
        } else {
            others += a.kind == JOBQ_REQUEST_CLAIM;
            jobq__memory_perform(memory, &loop, &a, 2, 2, now, now);
        }
    }
    assert_in_range(sweeps, 4, 7); /* after 20, 40, 80 ... s */
    assert_true(others > 400);
    assert_true(loop.stats.succeeded > 70);
    assert_int_equal(loop.sweep.overrun_count, 4);
    loop.sweep.next_mono_us = now;
    for (; loop.sweep.overrun_count > 0 && now < 700 * SECOND; now += SECOND) settle_down(now);
    assert_int_equal(loop.sweep.overrun_count, 0);
}

/* Sweeps in slices. A sweep costs a second for each hour of run_at that it looks at, and the dead
 * rows go back by four hours. */
typedef struct sweeps {
    int64_t now;
    int64_t hours;       /* of dead rows */
    int64_t marked_us;   /* dead rows from here on cost nothing; 0: all cost the same */
    int whole, slices;   /* sweeps in one piece; slices */
    int given_up;        /* claims that the store gave up */
    int64_t most_us;     /* cost of the most expensive slice */
    int64_t seen_us;     /* this sweep has looked at everything from here on */
    int64_t ended_us;    /* when the last slice ended */
    int64_t cost_us;     /* of the last slice */
} sweeps;

static sweeps sweeps_of(int64_t hours)
{
    sweeps s;

    memset(&s, 0, sizeof s);
    s.now = 100 * 3600 * SECOND;
    s.hours = hours;
    s.seen_us = INT64_MAX;
    return s;
}

/* Counts a claim. Returns what it costs. */
static int64_t sweeps_claim(sweeps *s, const jobq_request *a)
{
    int64_t cost = 0, dead = s->now - s->hours * 3600 * SECOND;
    bool slice = a->lane_count > 0 && a->lanes[0].until_at_us != 0;
    int32_t i;

    for (i = 0; i < a->lane_count; i++) {
        const jobq_lane *lane = &a->lanes[i];
        int64_t from = jobq__max(lane->after_at_us, dead), until = s->now;
        if (slice && lane->priority == 0 && lane->until_at_us != INT64_MAX) {
            until = lane->until_at_us;
            if (s->seen_us != INT64_MAX) assert_int_equal(until, s->seen_us); /* no gap */
            s->seen_us = lane->after_at_us;
        }
        if (s->marked_us > 0) { /* the others are to be removed, at a second for each minute */
            until = jobq__min(until, s->marked_us);
            if (a->sweep && lane->priority == 0 && until > from) cost += (until - from) / 60;
            continue;
        }
        bool walks = a->sweep || until - from > 3600 * SECOND; /* a claim is seldom far behind */
        if (walks && lane->priority == 0 && until > from) cost += (until - from) / 3600;
    }
    s->whole += a->sweep && !slice;
    s->slices += slice;
    if (!slice) return cost;
    s->most_us = jobq__max(s->most_us, cost);
    assert_true(s->now >= s->ended_us + 2 * s->cost_us); /* other statements have their turn */
    s->ended_us = s->now + cost;
    s->cost_us = cost;
    return cost;
}

#define SWEEPS_GIVEN_UP (9 * SECOND) /* the store gives up a statement after this time */

/* Until a job has been claimed, or nothing is left to do for five minutes. */
static void sweeps_go_on(sweeps *s)
{
    int64_t had = loop.stats.claimed, until = s->now + 300 * SECOND, cost;

    while (loop.stats.claimed == had && s->now < until) {
        jobq_request a = asks(&loop, s->now);
        int32_t slot = a.kind == JOBQ_REQUEST_WAIT ? jobq__take_job(&loop, s->now) : -1;
        if (slot >= 0) {
            told_handled(&loop, s->now, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS, 0,
                         false);
        } else if (a.kind == JOBQ_REQUEST_WAIT) {
            s->now = jobq__max(s->now + JOBQ__MS, jobq__min(a.until_mono_us, s->now + SECOND));
        } else {
            bool ended = loop.sweep.sliced_us == INT64_MAX, empty = loop.sweep.empty;
            bool claims = a.kind == JOBQ_REQUEST_CLAIM || a.kind == JOBQ_REQUEST_HEARTBEAT;
            cost = claims && a.claim != 0 ? sweeps_claim(s, &a) : 0;
            if (cost > SWEEPS_GIVEN_UP) {
                s->now += SWEEPS_GIVEN_UP;
                s->given_up++;
                told_of(&loop, s->now, &a, JOBQ_ERROR_TIMEOUT);
                continue;
            }
            s->now += cost;
            jobq__memory_perform(memory, &loop, &a, 2, 2, s->now, s->now);
            if (!ended && loop.sweep.sliced_us == INT64_MAX) { /* the sweep has ended */
                assert_int_equal(s->seen_us, INT64_MIN);
                s->seen_us = INT64_MAX;
            }
            if (!empty && loop.sweep.empty) assert_true(loop.sweep.sliced_us == INT64_MAX);
        }
    }
}

static void add_late_job(const sweeps *s, int64_t seconds)
{
    int64_t id = add_job(s->now);

    ((jobq_memory_job *)(uintptr_t)jobq_memory_get(memory, id))->job.run_at_us =
        s->now - seconds * SECOND;
}

static void a_sweep_that_costs_much_is_made_in_slices(void **unused)
{
    sweeps s = sweeps_of(4);
    int64_t started;

    (void)unused;
    add_job(s.now);
    sweeps_go_on(&s);
    sweeps_go_on(&s);
    assert_true(loop.sweep.empty);
    assert_in_range(s.whole, 1, 2);
    add_job(s.now); /* sweeps begin again */
    sweeps_go_on(&s);
    loop.sweep.sliced_us = s.seen_us = INT64_MAX; /* the next slice is the first of a sweep */
    add_late_job(&s, 3 * 3600);             /* in the last slices */
    s.whole = s.slices = 0;
    started = s.now;
    sweeps_go_on(&s);
    assert_int_equal(loop.stats.claimed, 3);
    assert_in_range(s.now - started, SECOND, 20 * SECOND);
    assert_int_equal(s.whole, 0);
    assert_in_range(s.slices, 60, 120);
    assert_true(s.most_us <= SECOND / 4);
    add_job(s.now);
    sweeps_go_on(&s);
    add_late_job(&s, 3); /* just below the bound: the next look there brings it */
    started = s.now;
    sweeps_go_on(&s);
    assert_int_equal(loop.stats.claimed, 5);
    assert_true(s.now - started <= 2 * SECOND);
    sweeps_go_on(&s);
    assert_true(loop.sweep.empty);
    s.hours = 0; /* the snapshot has ended, and the dead rows have gone */
    add_job(s.now);
    sweeps_go_on(&s);
    sweeps_go_on(&s);
    s.slices = 0;
    add_job(s.now);
    sweeps_go_on(&s);
    sweeps_go_on(&s);
    assert_int_equal(loop.stats.claimed, 7);
    assert_int_equal(s.slices, 0);
    assert_true(loop.sweep.empty);
}

/* The old snapshot has just ended. */
static void a_slice_is_not_much_longer_than_what_was_cheap(void **unused)
{
    sweeps s = sweeps_of(1);

    (void)unused;
    add_job(s.now);
    sweeps_go_on(&s);
    s.marked_us = s.now - 36 * SECOND;
    loop.sweep.slice_us = JOBQ_LOOP_SLICE_US;
    loop.sweep.sliced_us = s.seen_us = INT64_MAX;
    sweeps_go_on(&s);
    assert_true(s.slices > 100);
    assert_in_range(s.most_us, SECOND / 20, SECOND / 2);
}

/* There are more dead rows before the first job than a claim can pass in its time. */
static void a_fresh_worker_gets_jobs_behind_an_old_snapshot(void **unused)
{
    sweeps s = sweeps_of(40);
    int64_t started = s.now;

    (void)unused;
    add_late_job(&s, 3 * 3600);
    add_job(s.now);
    sweeps_go_on(&s);
    assert_int_equal(loop.stats.claimed, 1);
    assert_true(s.now - started < SWEEPS_GIVEN_UP + SECOND);
    started = s.now;
    sweeps_go_on(&s);
    assert_int_equal(loop.stats.claimed, 2); /* slices bring what is hidden */
    assert_true(s.now - started < 20 * SECOND);
    assert_int_equal(s.given_up, 1);
    assert_true(s.most_us <= SECOND / 4);
    assert_int_equal(loop.stats.reconnects, 0);
}

/* For 20 hours it had no thread for another job, and others have claimed meanwhile. */
static void nor_does_a_bound_that_is_far_behind_stop_it(void **unused)
{
    jobq_bound *b = &loop.queues[0].bounds[-JOBQ_PRIORITY_MIN][0][0];
    sweeps s = sweeps_of(0);

    (void)unused;
    add_job(s.now - 20 * 3600 * SECOND);
    sweeps_go_on(&s);
    assert_int_equal(loop.stats.claimed, 1);
    sweeps_go_on(&s);
    assert_true(loop.sweep.empty);
    s.hours = 40;
    b->run_at_us = s.now - 20 * 3600 * SECOND;
    loop.sweep.next_mono_us = s.now + 60 * SECOND;
    loop.sweep.slice_us = JOBQ_LOOP_SLICE_US;
    loop.sweep.sliced_us = s.now - 3 * 3600 * SECOND; /* a sweep is under way */
    s.seen_us = INT64_MAX;
    add_late_job(&s, 3600);
    sweeps_go_on(&s);
    assert_int_equal(s.given_up, 1);
    assert_int_equal(loop.stats.claimed, 2); /* by the first slices of a new sweep */
    assert_true(loop.sweep.sliced_us > s.now - 2 * 3600 * SECOND);
    assert_true(b->run_at_us > s.now - 3600 * SECOND);
}

/* The handler's transaction began hours ago, and commits a job when slices have passed its time. */
static void until_empty_sees_what_a_slice_has_passed(void **unused)
{
    sweeps s = sweeps_of(0);
    int32_t slot;

    (void)unused;
    loop.config.until = JOBQ_UNTIL_EMPTY;
    add_job(s.now);
    settle_down(s.now);
    slot = jobq__take_job(&loop, s.now);
    assert_true(slot >= 0);
    loop.sweep.slice_us = JOBQ_LOOP_SLICE_US; /* as if sweeps cost much */
    loop.sweep.sliced_us = s.now - 3 * 3600 * SECOND;
    loop.sweep.found = false;
    add_late_job(&s, 2 * 3600);
    told_handled(&loop, s.now, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS, 0, false);
    for (; loop.phase != JOBQ_PHASE_EXITED && loop.stats.claimed < 2; s.now += SECOND) {
        settle_down(s.now);
        assert_true(s.now < 101 * 3600 * SECOND);
    }
    assert_int_equal(loop.stats.claimed, 2);
}

/* Each slice costs a second, however short it is. */
static void a_sweep_in_slices_ends_on_a_busy_server(void **unused)
{
    int64_t now = 48 * 3600 * SECOND;
    int ended = 0, slices = 0;

    (void)unused;
    add_job(now);
    for (; ended == 0; now += JOBQ__MS) {
        jobq_request a = asks(&loop, now);
        int32_t slot = a.kind == JOBQ_REQUEST_WAIT ? jobq__take_job(&loop, now) : -1;
        bool claims = a.kind == JOBQ_REQUEST_CLAIM || a.kind == JOBQ_REQUEST_HEARTBEAT;
        bool slice = claims && a.claim != 0 && loop.claim.slice;
        if (claims && a.claim != 0 && a.sweep) now += SECOND;
        if (slot >= 0) {
            told_handled(&loop, now, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS, 0,
                         false);
        } else if (a.kind != JOBQ_REQUEST_WAIT) {
            jobq__memory_perform(memory, &loop, &a, 2, 2, now, now);
        } else now = jobq__max(now, jobq__min(a.until_mono_us, now + SECOND));
        slices += slice;
        ended += slice && !loop.claim.just_below && loop.sweep.sliced_us == INT64_MAX;
        assert_true(slices < 3000);
        if (loop.sweep.slice_us != 0) assert_true(loop.sweep.slice_us >= JOBQ_LOOP_SLICE_US);
        if (loop.sweep.empty) add_job(now);
    }
    assert_in_range(slices, 700, 2500);
}

/* A slow network makes each claim slow, and slices would be as slow. */
static void slow_claims_alone_make_no_slices(void **unused)
{
    int64_t now = 48 * 3600 * SECOND;
    int i, swept = 0;

    (void)unused;
    for (i = 0; i < 300; i++) {
        jobq_request a = asks(&loop, now);
        int32_t slot = a.kind == JOBQ_REQUEST_WAIT ? jobq__take_job(&loop, now) : -1;
        if (a.kind == JOBQ_REQUEST_CLAIM) now += 300 * JOBQ__MS;
        if (slot >= 0) {
            told_handled(&loop, now, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS, 0,
                         false);
        } else if (a.kind != JOBQ_REQUEST_WAIT) {
            jobq__memory_perform(memory, &loop, &a, 2, 2, now, now);
            swept += a.kind == JOBQ_REQUEST_CLAIM && a.sweep;
        } else now = jobq__max(now + JOBQ__MS, jobq__min(a.until_mono_us, now + SECOND));
        if (i % 10 == 0) add_job(now);
        assert_int_equal(loop.sweep.slice_us, 0);
    }
    assert_true(swept > 5);
}

/* The store refuses one result until it is given up; the next one, which fails once, is not. */
static void the_blame_ends_with_the_culprit(void **unused)
{
    int64_t now = 1, bad = 0;
    bool other = false;
    int32_t slot;

    (void)unused;
    add_job(0);
    add_job(0);
    settle_down(0);
    while ((slot = jobq__take_job(&loop, now)) >= 0) {
        if (bad == 0) bad = loop.slots[slot].job.id;
        told_handled(&loop, now, slot, loop.slots[slot].generation, JOBQ_OUTCOME_RETRY, 0, false);
    }
    while (now < 60 * SECOND && !other) {
        jobq_request a = asks(&loop, now);
        bool settles = a.kind == JOBQ_REQUEST_SETTLE;
        other = settles && loop.stats.refused == 1 && a.endings[0].job != bad;
        if (a.kind == JOBQ_REQUEST_WAIT) now = a.until_mono_us;
        else if (settles) told_of(&loop, now, &a, JOBQ_ERROR_DATABASE);
        else jobq__memory_perform(memory, &loop, &a, 2, 2, now, now);
    }
    assert_true(other);
    assert_int_equal(loop.stats.refused, 1);
}

/* The news list these kinds, and nothing else. */
static void news_of_kinds(const int32_t *kinds, int32_t count, bool every, int64_t now)
{
    jobq_answer *a = told(JOBQ_REQUEST_HEARTBEAT, JOBQ_OK);

    a->news.alive = true;
    a->news.policy = loop.session.policy;
    a->news.store_now_us = now;
    a->news.every_kind = every;
    a->news.kind_count = count;
    if (count > 0) memcpy(a->news.kinds, kinds, (size_t)count * sizeof *kinds);
    jobq_loop_tell(&loop, now, a);
}

static void as_many_kinds_are_claimed_as_the_news_list(void **unused)
{
    int32_t kinds[JOBQ_LOOP_KINDS + JOBQ_STRAYS_MAX], slot, met, i;

    (void)unused;
    for (i = 0; i < (int32_t)COUNT(kinds); i++) kinds[i] = i + 1;
    settle_down(0);
    news_of_kinds(kinds, (int32_t)COUNT(kinds), false, 0);
    assert_int_equal(loop.kind_count, COUNT(kinds));
    assert_memory_equal(loop.kinds, kinds, sizeof kinds);
    news_of_kinds(kinds, 3, true, 0);
    assert_true(loop.session.every_kind);
    add_job(0); /* of kind 1, for which there is no handler */
    settle_down(SECOND);
    slot = jobq__take_job(&loop, SECOND);
    assert_true(slot >= 0);
    jobq__job_unhandled(&loop, SECOND, slot);
    assert_false(loop.session.every_kind);
    assert_int_equal(loop.kind_count, 2);
    met = loop.slots[slot].job.kind;
    for (i = 0; i < loop.kind_count; i++) assert_int_not_equal(loop.kinds[i], met);
}

/* -- law (19): kind 1 is slow and has a limit, kind 2 is quick -- */

#define KINDS (1 << 1 | 1 << 2)
#define QUEUES (1 << 1 | 1 << 2)

static int limited_in(int32_t queue_of_1, int32_t queue_of_2)
{
    jobq_loop_config config;
    jobq_loop_served served = {.listen = true, .kind_threads = {1}};

    setup(NULL);
    memset(&config, 0, sizeof config);
    config.threads = 4;
    config.served = &served;
    served.kind_queues[0] = queue_of_1;
    served.kind_queues[1] = queue_of_2;
    jobq_loop_init(&loop, &config, 12345, 0);
    return 0;
}

static int limited(void **unused)
{
    (void)unused;
    return limited_in(1, 1);
}

static int limited_apart(void **unused)
{
    (void)unused;
    return limited_in(1, 2);
}

static void add_of(int32_t queue, int32_t kind, int count, int64_t now)
{
    jobq_job like = jobq_job_new(0);

    like.queue = queue;
    like.kind = kind;
    while (count-- > 0) {
        assert_true(jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now) > 0);
    }
}

/* Does all that is due, hands out all jobs; returns the claims, the last of them in *claim. */
static int limited_step(int64_t now, jobq_request *claim)
{
    int32_t slow = 0, i;
    int count = 0, n;

    for (n = 0; n < 200; n++) {
        jobq_request a = asks(&loop, now);
        if (a.kind == JOBQ_REQUEST_WAIT) break;
        jobq__memory_perform(memory, &loop, &a, QUEUES, KINDS, now, now);
        while (jobq__take_job(&loop, now) >= 0) {}
        count += claims(&a);
        if (claims(&a) && claim != NULL) *claim = a;
    }
    assert_true(n < 200);
    for (i = 0; i < loop.running_count; i++) slow += loop.slots[loop.running[i]].job.kind == 1;
    assert_true(slow <= 1);
    return count;
}

/* How many jobs of a kind this worker runs. *slot: one of them. */
static int32_t running_of(int32_t kind, int32_t *slot)
{
    int32_t i, count = 0;

    for (i = 0; i < loop.running_count; i++) {
        if (loop.slots[loop.running[i]].job.kind != kind) continue;
        if (slot != NULL) *slot = loop.running[i];
        count++;
    }
    return count;
}

static void end_one(int32_t kind, int64_t now)
{
    int32_t slot = -1;

    assert_true(running_of(kind, &slot) > 0);
    told_handled(&loop, now, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS, 0, false);
}

static int32_t in_state(int32_t kind, jobq_state state)
{
    int32_t i, count = 0;

    for (i = 1; i <= memory->job_count; i++) {
        const jobq_memory_job *mj = jobq_memory_get(memory, i);
        count += mj->job.kind == kind && mj->job.state == state;
    }
    return count;
}

/* Quick jobs behind many slow ones in one lane all run while the first slow one does. The other
 * slow ones are not held meanwhile, so other workers may have them. */
static void quick_jobs_pass_a_kind_at_its_limit(void **unused)
{
    int64_t now = 0;
    int i;

    (void)unused;
    add_of(1, 1, 20, 0);
    add_of(1, 2, 40, 0);
    for (i = 0; i < 400 && in_state(2, JOBQ_STATE_SUCCEEDED) < 40; i++, now += SECOND / 1000) {
        limited_step(now, NULL);
        assert_int_equal(running_of(1, NULL), 1);
        while (running_of(2, NULL) > 0) end_one(2, now);
    }
    assert_int_equal(in_state(2, JOBQ_STATE_SUCCEEDED), 40);
    assert_int_equal(in_state(1, JOBQ_STATE_SUCCEEDED), 0);
    limited_step(now, NULL);
    assert_int_equal(in_state(1, JOBQ_STATE_RUNNING), 1);
    assert_int_equal(in_state(1, JOBQ_STATE_READY), 19);
}

/* How many jobs are given back until 40 of a kind have ended, of which 4 may run at once in 10
 * threads. kinds: those of the worker. */
static int64_t given_back_of_40(uint64_t kinds)
{
    jobq_loop_config config;
    jobq_loop_served served = {.listen = true, .kind_threads = {4}, .kind_queues = {1, 1}};
    int64_t now = 0;

    setup(NULL);
    memset(&config, 0, sizeof config);
    config.threads = 10;
    config.served = &served;
    jobq_loop_init(&loop, &config, 12345, 0);
    add_of(1, 1, 40, 0);
    while (in_state(1, JOBQ_STATE_SUCCEEDED) < 40 && now < SECOND) {
        jobq_request a = asks(&loop, now);
        if (a.kind != JOBQ_REQUEST_WAIT) {
            jobq__memory_perform(memory, &loop, &a, QUEUES, kinds, now, now);
            while (jobq__take_job(&loop, now) >= 0) {}
            continue;
        }
        assert_in_range(running_of(1, NULL), 0, 4);
        if (running_of(1, NULL) > 0) end_one(1, now);
        now += SECOND / 1000;
    }
    assert_int_equal(in_state(1, JOBQ_STATE_SUCCEEDED), 40);
    return loop.stats.released;
}

/* A claim asks for what can be kept, as far as it is known before. */
static void few_jobs_of_a_limited_kind_are_given_back(void **unused)
{
    (void)unused;
    assert_int_equal(given_back_of_40(1 << 1), 0);
    assert_in_range(given_back_of_40(KINDS), 0, 6); /* of the first claim: others might come */
}

/* The bound of its lane has passed the kind's next job. It starts when the one before it ends, and
 * not at the next sweep. */
static void jobs_that_claims_have_passed_start_at_once(void **unused)
{
    jobq_request claim;

    (void)unused;
    add_of(1, 1, 1, 0);
    limited_step(0, NULL);
    assert_int_equal(running_of(1, NULL), 1);
    add_of(1, 1, 1, 10);
    add_of(1, 2, 2, 20);
    jobq_loop_notified(&loop, 10 * JOBQ__MS, "");
    limited_step(10 * JOBQ__MS, &claim);
    assert_false(claim.every_kind);
    assert_int_equal(running_of(2, NULL), 2);
    end_one(1, 20 * JOBQ__MS);
    limited_step(20 * JOBQ__MS, NULL);
    assert_int_equal(running_of(1, NULL), 1);
    assert_int_equal(in_state(1, JOBQ_STATE_SUCCEEDED), 1);
}

/* A queue whose kinds are all at their limits costs the claims of others nothing, and no claims if
 * there are no others. */
static void a_queue_of_full_kinds_is_left_out(void **unused)
{
    jobq_policy policy = jobq_policy_defaults(NULL);
    jobq_request claim;
    int32_t i;

    (void)unused;
    add_of(1, 1, 5, 0);
    add_of(2, 2, 1, 0);
    limited_step(0, NULL);
    assert_int_equal(running_of(1, NULL), 1);
    assert_int_equal(limited_step(SECOND, &claim), 1);
    assert_true(claim.lane_count > 0);
    for (i = 0; i < claim.lane_count; i++) assert_int_equal(claim.lanes[i].queue, 2);
    end_one(2, SECOND);
    jobq_memory_policy(memory, 2, &policy, true);
    loop.lease.beat_mono_us = SECOND;
    limited_step(SECOND, NULL);
    assert_true(loop.queues[1].paused);
    assert_int_equal(limited_step(20 * SECOND, NULL), 0);
    end_one(1, 21 * SECOND);
    assert_true(limited_step(21 * SECOND, NULL) > 0);
    assert_int_equal(running_of(1, NULL), 1);
}

/* A job that must run alone, in a queue that was paused before or after this worker heard of it. */
static void a_paused_job_that_must_run_alone_keeps_nobody_busy(void **unused)
{
    jobq_policy policy = jobq_policy_defaults(NULL);
    int64_t now = 0;

    (void)unused;
    add_of(2, 2, 4, 0);
    limited_step(0, NULL);
    add_of(1, 1, 1, 0);
    must_run_alone(5);
    for (; now < 4 * LEASE; now += 4 * SECOND) {
        if (now == 12 * SECOND) jobq_memory_policy(memory, 1, &policy, true);
        assert_int_equal(running_of(2, NULL), 4);
        end_one(2, now);
        add_of(2, 2, 1, now);
        jobq_loop_notified(&loop, now, "");
        limited_step(now, NULL);
    }
    assert_int_equal(in_state(1, JOBQ_STATE_READY), 1);
}

/* A claim that brought one job lets the next one wait, but not if the end of a job made others
 * ready. */
static void a_link_of_a_chain_is_claimed_at_once(void **unused)
{
    int32_t slot, i;

    (void)unused;
    for (i = 1; i <= 5; i++) {
        assert_int_equal(add_job(0), i);
        if (i > 1) assert_true(jobq__memory_after(memory, i, i - 1, JOBQ_ON_SUCCESS, false, 0));
    }
    for (i = 1; i <= 5; i++) {
        settle_down(0);
        assert_int_equal(loop.queued.count, 1);
        slot = jobq__take_job(&loop, 0);
        assert_int_equal(loop.slots[slot].job.id, i);
        succeeds(slot, 0);
    }
}

/* A backlog of slow jobs: a claim brings about as many as may run, although handlers that are quick
 * on average would allow a large one. */
static void few_jobs_are_claimed_only_to_be_given_back(void **unused)
{
    int64_t now = 0;
    int i;

    (void)unused;
    add_of(1, 1, 90, 0);
    loop.pace.handler_us = 0;
    for (i = 0; i < 60; i++, now += 10 * JOBQ__MS) {
        limited_step(now, NULL);
        end_one(1, now);
        loop.pace.handler_us = 0;
    }
    assert_int_equal(loop.stats.succeeded, 60);
    assert_in_range(loop.stats.released, 1, 90 + 60);
}

static void strange_answers_are_ignored(void **unused)
{
    static jobq_loop before;
    jobq_job odd = jobq_job_new(7);
    jobq_exception unknown = {4711, 1, 1, JOBQ_ERROR_LOST};

    (void)unused;
    settle_down(0);
    news_of_kinds(NULL, 0, true, 0);
    before = loop;
    jobq__unsettled(&loop, 1, JOBQ_REQUEST_COMPLETE, &unknown);
    assert_int_equal(jobq__claimed_job(&loop, 1, &odd), -1); /* no token */
    perform(JOBQ_REQUEST_WAIT, 0, 0, 1);
    perform(JOBQ_REQUEST_EXIT, 0, 0, 1);
    perform(JOBQ_REQUEST_ABANDON, 0, 0, 1);
    assert_memory_equal(before.slots, loop.slots, sizeof loop.slots);
    assert_memory_equal(&before.stats, &loop.stats, sizeof loop.stats);
    perform(JOBQ_REQUEST_DISCONNECT, 0, 0, 2);
    assert_false(loop.session.connected);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(it_connects_and_registers_before_anything_else, setup),
        cmocka_unit_test_setup(lanes_without_room_come_with_the_next_claim, setup),
        cmocka_unit_test_setup(requests_and_answers_are_all_that_a_driver_needs, setup),
        cmocka_unit_test_setup(a_disconnect_is_a_request_too, setup),
        cmocka_unit_test(each_request_has_a_name),
        cmocka_unit_test_setup(a_suspect_does_not_wait_behind_what_is_fetched_ahead, setup),
        cmocka_unit_test_setup(what_counts_for_jobs_max_is_started, setup),
        cmocka_unit_test_setup(a_stray_does_not_count_for_jobs_max, setup),
        cmocka_unit_test_setup(messages_do_not_put_off_the_end, setup),
        cmocka_unit_test_setup(a_suspect_is_claimed_only_into_a_free_slot, setup),
        cmocka_unit_test_setup(a_delay_of_never_is_a_long_one, setup),
        cmocka_unit_test_setup(until_empty_does_what_was_parked, setup),
        cmocka_unit_test_setup(until_empty_waits_only_for_holds_of_its_jobs, setup),
        cmocka_unit_test_setup(until_empty_waits_for_a_tick_under_way, setup),
        cmocka_unit_test_setup(negative_priorities_run_first_once_there_are_some, setup),
        cmocka_unit_test_setup(what_must_run_alone_runs_first_and_alone, setup),
        cmocka_unit_test_setup(a_lost_claim_may_hold_what_must_run_alone, setup),
        cmocka_unit_test_setup(a_busy_worker_makes_room_for_what_must_run_alone, setup),
        cmocka_unit_test_setup(until_empty_does_what_must_run_alone, setup),
        cmocka_unit_test_setup(what_cannot_be_claimed_makes_nobody_wait, setup),
        cmocka_unit_test_setup(a_fresh_worker_rescues_before_it_claims, setup),
        cmocka_unit_test_setup(no_job_starts_when_the_lease_may_be_over, setup),
        cmocka_unit_test_setup(the_lease_is_counted_from_before_the_heartbeat, setup),
        cmocka_unit_test_setup(an_outage_proves_nobody_dead, setup),
        cmocka_unit_test_setup(a_minute_of_idleness_costs_a_statement_every_five_seconds, setup),
        cmocka_unit_test_setup(a_worker_that_rests_slows_down_to_a_statement_a_minute, setup),
        cmocka_unit_test_setup(a_notification_ends_a_rest, setup),
        cmocka_unit_test_setup(a_rest_that_ends_shortens_the_lease_before_the_store_does, setup),
        cmocka_unit_test_setup(nobody_rests_while_another_worker_holds_jobs, setup),
        cmocka_unit_test_setup(a_worker_that_nobody_would_wake_does_not_rest, setup),
        cmocka_unit_test_setup(a_wake_up_is_followed_by_a_claim_at_once, setup),
        cmocka_unit_test_setup(a_sleeper_that_is_woken_often_withdraws, setup),
        cmocka_unit_test_setup(results_survive_a_cut_connection, setup),
        cmocka_unit_test_setup(parked_jobs_of_its_kinds_are_asked_back, setup),
        cmocka_unit_test_setup(bounds_fall_when_the_stores_clock_runs_back, setup),
        cmocka_unit_test_setup(queued_jobs_are_cancelled_where_they_stand, setup),
        cmocka_unit_test_setup(a_wake_up_about_a_cancel_request_brings_the_news, setup),
        cmocka_unit_test_setup(a_worker_that_hears_nothing_looks_more_often, setup),
        cmocka_unit_test_setup(the_job_that_the_database_refuses_is_found, well),
        cmocka_unit_test_setup(a_job_without_an_end_is_left_to_its_rescuer, well),
        cmocka_unit_test_setup(a_job_that_cannot_be_sent_is_set_aside, well),
        cmocka_unit_test_setup(a_job_that_failed_claims_keep_locked_is_set_aside, well),
        cmocka_unit_test_setup(a_suspect_that_never_arrives_is_set_aside, well),
        cmocka_unit_test_setup(a_suspect_that_never_arrives_makes_no_other_claim_smaller, well),
        cmocka_unit_test_setup(a_job_that_was_left_keeps_nobody_alone, well),
        cmocka_unit_test_setup(an_error_holds_a_statement_back_for_five_seconds_at_most, setup),
        cmocka_unit_test_setup(a_claim_that_is_too_large_becomes_smaller, well),
        cmocka_unit_test_setup(an_outage_condemns_nobody, well),
        cmocka_unit_test_setup(a_stop_ends_whatever_the_server_says, well),
        cmocka_unit_test_setup(a_locked_row_is_asked_for_ever_more_seldom, well),
        cmocka_unit_test_setup(a_flush_that_failed_is_sent_again, setup),
        cmocka_unit_test(the_configurations_defaults),
        cmocka_unit_test_setup(a_job_of_an_unknown_queue_is_worked_by_the_defaults, setup),
        cmocka_unit_test_setup(a_handler_is_told_why_to_stop, setup),
        cmocka_unit_test_setup(settled_claims_go_before_they_fill_the_table, setup),
        cmocka_unit_test_setup(queues_beyond_those_with_a_policy_have_the_defaults, setup),
        cmocka_unit_test_setup(a_full_table_of_claims_waits, setup),
        cmocka_unit_test_setup(a_vacuum_is_wanted_after_enough_jobs, setup),
        cmocka_unit_test_setup(never_is_no_housekeeping_at_all, setup),
        cmocka_unit_test_setup(it_tells_when_something_is_due, setup),
        cmocka_unit_test_setup(a_lost_claim_is_recovered, setup),
        cmocka_unit_test_setup(a_dead_worker_registers_anew, setup),
        cmocka_unit_test_setup(a_stop_does_not_wait_for_a_database_that_is_away, setup),
        cmocka_unit_test_setup(a_handler_that_overruns_is_given_up, setup),
        cmocka_unit_test_setup(what_a_handler_says_too_late_changes_nothing, setup),
        cmocka_unit_test_setup(a_time_limit_ends_while_no_statement_can_be_sent, setup),
        cmocka_unit_test_setup(a_kind_may_have_a_policy_of_its_own, setup),
        cmocka_unit_test_setup(jobs_behind_slow_handlers_are_given_back, setup),
        cmocka_unit_test_setup(a_worker_fetches_more_where_answers_take_long, setup),
        cmocka_unit_test_setup(a_sweep_that_overruns_is_put_off, setup),
        cmocka_unit_test_setup(a_sweep_that_costs_much_is_made_in_slices, setup),
        cmocka_unit_test_setup(a_slice_is_not_much_longer_than_what_was_cheap, setup),
        cmocka_unit_test_setup(a_fresh_worker_gets_jobs_behind_an_old_snapshot, setup),
        cmocka_unit_test_setup(nor_does_a_bound_that_is_far_behind_stop_it, setup),
        cmocka_unit_test_setup(a_sweep_in_slices_ends_on_a_busy_server, setup),
        cmocka_unit_test_setup(slow_claims_alone_make_no_slices, setup),
        cmocka_unit_test_setup(until_empty_sees_what_a_slice_has_passed, setup),
        cmocka_unit_test_setup(a_link_of_a_chain_is_claimed_at_once, setup),
        cmocka_unit_test_setup(the_blame_ends_with_the_culprit, setup),
        cmocka_unit_test_setup(as_many_kinds_are_claimed_as_the_news_list, setup),
        cmocka_unit_test_setup(quick_jobs_pass_a_kind_at_its_limit, limited),
        cmocka_unit_test(few_jobs_of_a_limited_kind_are_given_back),
        cmocka_unit_test_setup(jobs_that_claims_have_passed_start_at_once, limited),
        cmocka_unit_test_setup(a_queue_of_full_kinds_is_left_out, limited_apart),
        cmocka_unit_test_setup(a_paused_job_that_must_run_alone_keeps_nobody_busy, limited_apart),
        cmocka_unit_test_setup(few_jobs_are_claimed_only_to_be_given_back, limited),
        cmocka_unit_test_setup(strange_answers_are_ignored, setup),
        cmocka_unit_test_setup(it_looks_again_when_its_sleep_is_announced, setup),
        cmocka_unit_test_setup(dead_workers_make_room, setup),
        cmocka_unit_test_setup(handlers_run_on_memory_with_a_clock_of_ones_own, setup),
        cmocka_unit_test_setup(until_empty_leaves_what_comes_later, setup),
        cmocka_unit_test_setup(until_empty_does_what_its_handlers_make, setup),
        cmocka_unit_test_setup(until_ended_waits_for_what_comes_later, setup),
        cmocka_unit_test_setup(until_ended_waits_for_other_workers, setup),
        cmocka_unit_test_setup(until_ended_waits_for_a_paused_queue, setup),
        cmocka_unit_test_setup(what_remains_is_asked_ever_more_seldom, setup),
    };

    return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
