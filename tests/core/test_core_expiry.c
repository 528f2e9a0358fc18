/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Jobs that expire, in the worker's loop and on the in-memory queue: laws (33) and (34) of jobq.h.
 * What a claim makes of a late job is in model/conform.h, for both stores.
 */
#define JOBQ_LOOP_SLOTS 64
#define JOBQ_LOOP_CLAIMS 64
#define JOBQ_LOOP_LANES 32
#define JOBQ_LOOP_QUEUES 2
#define JOBQ_LOOP_PARTITIONS 8
#define JOBQ_TALLY_KINDS 4
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"
#include "told.h"

#include <stdlib.h>

static jobq_loop loop;
static union {
    int64_t align;
    char bytes[1 << 20];
} block;
static jobq_memory *memory;

static void start(int threads, jobq_until until)
{
    jobq_loop_config config;

    memset(&config, 0, sizeof config);
    config.threads = threads;
    config.until = until;
    jobq_loop_init(&loop, &config, 99, 0);
    assert_true(jobq_memory_size(600, 4, 64) <= sizeof block);
    memory = jobq_memory_init(&block, 600, 4, 64);
}

static int64_t add(int64_t expires_us, int64_t now)
{
    jobq_job like = jobq_job_new(0);

    like.queue = like.kind = 1;
    like.expires_us = expires_us;
    return jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now);
}

static const jobq_job *job(int64_t id) { return &jobq_memory_get(memory, id)->job; }

/* The next request that is no WAIT, carried out on the store. */
static jobq_request step(int64_t now)
{
    jobq_request a = asks(&loop, now);

    if (a.kind != JOBQ_REQUEST_WAIT) jobq__memory_perform(memory, &loop, &a, 2, 2, now, now);
    return a;
}

static void settle_down(int64_t now)
{
    int n;

    for (n = 0; n < 100 && step(now).kind != JOBQ_REQUEST_WAIT; n++) {}
    assert_true(n < 100);
}

/* Steps until the loop asks for this. */
static jobq_request until(jobq_request_kind kind, int64_t now)
{
    jobq_request a;
    int n = 0;

    do a = asks(&loop, now);
    while (a.kind != kind && a.kind != JOBQ_REQUEST_WAIT && ++n < 100 &&
           (jobq__memory_perform(memory, &loop, &a, 2, 2, now, now), true));
    assert_int_equal(a.kind, kind);
    return a;
}

static int64_t count_of(jobq_tally_place place)
{
    int64_t sum = 0;
    int32_t i;

    for (i = 0; i < loop.tallies.count; i++) sum += loop.tallies.now[i][place];
    return sum;
}

static int runs;

static jobq_outcome once(jobq_call *call)
{
    (void)call;
    runs++;
    return JOBQ_OUTCOME_SUCCESS;
}

/* 500 late jobs stand before one that is not. They end without a pause, without a run, and a worker
 * that works until its queue is empty does not take the answers without jobs for an empty queue. */
static void late_jobs_end_one_claim_after_the_other(void **unused)
{
    jobq_memory_handler h;
    int64_t now = 10 * SECOND, id;
    int i;

    (void)unused;
    start(1, JOBQ_UNTIL_EMPTY);
    for (i = 0; i < 500; i++) add(SECOND, 0);
    id = add(0, now);
    memset(&h, 0, sizeof h);
    h.queue = h.kind = 1;
    h.run[0] = once;
    for (i = runs = 0; i < 1000 && jobq_loop_status_of(&loop).phase != JOBQ_PHASE_EXITED; i++) {
        int64_t next = jobq_memory_work(memory, &loop, &h, 1, now);
        if (loop.stats.expired < 500) assert_true(next <= now + JOBQ__MS);
        now = next;
    }
    assert_int_equal(runs, 1);
    assert_int_equal(job(id)->state, JOBQ_STATE_SUCCEEDED);
    for (i = 1; i <= 500; i++) {
        assert_int_equal(job(i)->state, JOBQ_STATE_CANCELLED);
        assert_int_equal(job(i)->attempt, 0);
        assert_int_equal(jobq_memory_get(memory, i)->reason, JOBQ_REASON_EXPIRED);
    }
    assert_int_equal(loop.stats.expired, 500);
    assert_int_equal(loop.stats.claimed, 1);
    assert_int_equal(loop.stats.started, 1);
    assert_int_equal(loop.stats.cancelled, 0);
    assert_int_equal(count_of(JOBQ_TALLY_EXPIRED), 500);
    assert_int_equal(count_of(JOBQ_TALLY_CANCELLED), 0);
}

/* A job waits in the worker until a thread asks for it, and is late by then. It is given back, with
 * its attempt, and the store ends it. To ask for work changes nothing, so recordings need not tell
 * of that. */
static void a_job_that_waits_too_long_for_a_thread_does_not_begin(void **unused)
{
    static jobq_loop before;
    jobq_request a;
    int32_t slot;

    (void)unused;
    start(2, JOBQ_UNTIL_STOPPED);
    assert_int_equal(add(0, 0), 1);
    assert_int_equal(add(SECOND, 0), 2);
    settle_down(0);
    assert_int_equal(loop.stats.claimed, 2);
    slot = jobq__take_job(&loop, 0);
    assert_int_equal(loop.slots[slot].job.id, 1);
    settle_down(0);
    assert_true(jobq_loop_due(&loop, 0) <= SECOND);
    told_handled(&loop, SECOND, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS, 0, true);
    before = loop;
    assert_int_equal(jobq__take_job(&loop, SECOND), -1);
    assert_memory_equal(&before, &loop, sizeof loop);
    assert_true(jobq_loop_due(&loop, SECOND) <= SECOND);
    a = until(JOBQ_REQUEST_SETTLE, SECOND);
    assert_int_equal(a.ending_count, 1);
    assert_int_equal(a.endings[0].job, 2);
    assert_int_equal(a.endings[0].decision.state, JOBQ_STATE_READY);
    assert_int_equal(a.endings[0].decision.attempt, 0);
    jobq__memory_perform(memory, &loop, &a, 2, 2, SECOND, SECOND);
    settle_down(SECOND);
    assert_int_equal(job(2)->state, JOBQ_STATE_CANCELLED);
    assert_int_equal(loop.stats.started, 1);
    assert_int_equal(loop.stats.released, 1);
    assert_int_equal(loop.stats.expired, 1);
    assert_int_equal(loop.late_mono_us, JOBQ_NEVER);
}

/* An answer that is under way for long says how much time was left when the claim ran. It ran after
 * it was sent, so counted from there nobody begins late. */
static void the_time_counts_from_when_the_claim_was_sent(void **unused)
{
    jobq_request a;
    int64_t sent = SECOND, came = sent + 400 * JOBQ__MS;

    (void)unused;
    start(2, JOBQ_UNTIL_STOPPED);
    settle_down(0);
    add(500 * JOBQ__MS, sent);
    jobq_loop_notified(&loop, sent, "");
    a = until(JOBQ_REQUEST_CLAIM, sent);
    jobq__memory_perform(memory, &loop, &a, 2, 2, came, sent); /* the store had it at once */
    assert_int_equal(loop.stats.claimed, 1);
    assert_int_equal(loop.late_mono_us, sent + 500 * JOBQ__MS);
    assert_int_equal(jobq__take_job(&loop, sent + 500 * JOBQ__MS), -1);
    assert_true(jobq__take_job(&loop, sent + 500 * JOBQ__MS - 1) >= 0);
}

/* Only late jobs are passed by, and the order of the others stays. */
static void late_jobs_keep_no_other_one_from_a_thread(void **unused)
{
    static const int64_t expires[] = {2 * SECOND, SECOND, 0, SECOND, 3 * SECOND};
    static const int64_t order[] = {1, 3, 5};
    size_t i;

    (void)unused;
    start(8, JOBQ_UNTIL_STOPPED);
    for (i = 0; i < COUNT(expires); i++) add(expires[i], 0);
    settle_down(0);
    assert_int_equal(loop.queued.count, 5);
    for (i = 0; i < COUNT(order); i++) {
        int32_t slot = jobq__take_job(&loop, SECOND);
        assert_true(slot >= 0);
        assert_int_equal(loop.slots[slot].job.id, order[i]);
    }
    assert_int_equal(jobq__take_job(&loop, SECOND), -1);
    settle_down(SECOND);
    assert_int_equal(loop.queued.count, 0);
    assert_int_equal(job(2)->state, JOBQ_STATE_CANCELLED);
    assert_int_equal(job(4)->state, JOBQ_STATE_CANCELLED);
    assert_int_equal(loop.running_count, 3);
}

/* -- in tests of handlers -- */

static int sends;

static jobq_outcome send_code(jobq_call *call)
{
    sends++;
    jobq_call_error(call, jobq_str_from("the gateway is busy"));
    return JOBQ_OUTCOME_RETRY;
}

static jobq_outcome tell(jobq_call *call)
{
    (void)call;
    runs++;
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_test *begin(void)
{
    static const jobq_job_handler handlers[] = {
        {.queue = "mail", .kind = "code", .run = {send_code}},
        {.queue = "mail", .kind = "late", .run = {tell}}};

    sends = runs = 0;
    return jobq_test_init(malloc(jobq_test_size()), handlers, 2);
}

/* A one-time password: it is tried until it is worth nothing any more. */
static void a_password_is_not_sent_after_it_has_expired(void **unused)
{
    jobq_test *test = begin();
    jobq_test_job code = {.queue = "mail", .kind = "code", .expires_us = 60 * SECOND};
    jobq_test_job late = {.queue = "mail", .kind = "late"};
    jobq_test_after after;
    int64_t id = jobq_test_enqueue(test, &code);

    (void)unused;
    after.job = id;
    after.on_end = JOBQ_ON_FAILURE;
    late.after = &after;
    late.after_count = 1;
    late.key = "told";
    assert_true(jobq_test_enqueue(test, &late) > id);
    jobq_test_run(test, 3600 * SECOND);
    assert_in_range(sends, 3, 5); /* after 0, 5, 15 and 35 s, more or less */
    assert_int_equal(runs, 1);
    assert_int_equal(jobq_test_now(test), 60 * SECOND);
    assert_int_equal(jobq_test_get(test, id)->job.state, JOBQ_STATE_CANCELLED);
    assert_string_equal(jobq_test_get(test, id)->error, "expired: it had not begun in time");
    free(test);
}

static void a_test_refuses_what_the_database_refuses(void **unused)
{
    static const int64_t bad[] = {-1, 1, 999};
    jobq_test *test = begin();
    jobq_test_job code = {.queue = "mail", .kind = "code"};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(bad); i++) {
        code.expires_us = bad[i];
        assert_int_equal(jobq_test_enqueue(test, &code), 0);
        assert_string_equal(jobq_test_get(test, 0)->error,
                            "invalid expires_us: must be at least a millisecond");
    }
    code.expires_us = 1000;
    assert_int_equal(jobq_test_enqueue(test, &code), 1);
    free(test);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_jobs_end_one_claim_after_the_other),
        cmocka_unit_test(a_job_that_waits_too_long_for_a_thread_does_not_begin),
        cmocka_unit_test(the_time_counts_from_when_the_claim_was_sent),
        cmocka_unit_test(late_jobs_keep_no_other_one_from_a_thread),
        cmocka_unit_test(a_password_is_not_sent_after_it_has_expired),
        cmocka_unit_test(a_test_refuses_what_the_database_refuses),
    };

    return cmocka_run_group_tests_name("expiry", tests, NULL, NULL);
}
