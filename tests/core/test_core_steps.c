/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_core_steps.c -- steps, signals and waits in tests without a database, and in memory.
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"
#include "model.h"

#include <stdlib.h>

static jobq_test *test;
static int effects, runs;
static jobq_error code;
static jobq_str got;
static int64_t timeout_us;
static bool sends; /* the handler itself, after it has looked */

static jobq_outcome charges(jobq_call *call)
{
    runs++;
    code = jobq_call_step(call, "charge", &got);
    if (code == JOBQ_ERROR_NOT_FOUND) {
        effects++;
        if (jobq_call_step_done(call, "charge", jobq_str_from("7")) != JOBQ_OK)
            return JOBQ_OUTCOME_DISCARD;
    }
    return call->job.attempt < 3 ? JOBQ_OUTCOME_RETRY : JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome awaits(jobq_call *call)
{
    runs++;
    code = jobq_call_signal(call, "paid", timeout_us, &got);
    if (sends) jobq_test_signal(test, "paid", jobq_str_from("1"));
    return code == JOBQ_ERROR_NOT_FOUND ? JOBQ_OUTCOME_SNOOZE : JOBQ_OUTCOME_SUCCESS;
}

/* As jobq_pg_call_wait does it. */
static jobq_outcome waits(jobq_call *call)
{
    call->waits = ++runs == 1;
    return JOBQ_OUTCOME_DONE;
}

static jobq_outcome is_late(jobq_call *call)
{
    jobq_memory_job *mj = jobq_memory_get(test->memory, call->job.id);

    mj->job.claim++;
    code = jobq_call_step_done(call, "x", jobq_str_from(NULL));
    assert_int_equal(jobq_call_step(call, "x", NULL), JOBQ_ERROR_LOST);
    assert_int_equal(jobq_call_signal(call, "x", 1, NULL), JOBQ_ERROR_LOST);
    mj->job.claim--;
    return JOBQ_OUTCOME_SUCCESS;
}

static int setup(void **unused)
{
    static const jobq_job_handler handlers[] = {{.queue = "q", .kind = "charges", .run = {charges}},
                                                {.queue = "q", .kind = "awaits", .run = {awaits}},
                                                {.queue = "q", .kind = "waits", .run = {waits}},
                                                {.queue = "q", .kind = "late", .run = {is_late}}};

    (void)unused;
    test = jobq_test_init(malloc(jobq_test_size()), handlers, 4);
    effects = runs = 0;
    sends = false;
    timeout_us = JOBQ_HOURS(1);
    return 0;
}

static int teardown(void **unused)
{
    (void)unused;
    free(test);
    return 0;
}

static int64_t add(const char *kind)
{
    jobq_test_job job;

    memset(&job, 0, sizeof job);
    job.queue = "q";
    job.kind = kind;
    return jobq_test_enqueue(test, &job);
}

static void a_step_is_done_once(void **unused)
{
    int64_t id = add("charges"), other;
    jobq_str value;

    (void)unused;
    jobq_test_run(test, JOBQ_HOURS(1));
    assert_int_equal(runs, 3);
    assert_int_equal(effects, 1);
    assert_true(jobq_str_equal(got, jobq_str_from("7")));
    assert_true(jobq_test_step(test, id, "charge", &value));
    assert_true(jobq_str_equal(value, jobq_str_from("7")));
    assert_false(jobq_test_step(test, id, "other", NULL));
    other = add("charges");
    assert_false(jobq_test_step(test, other, "charge", NULL));
    jobq_test_run(test, JOBQ_HOURS(1));
    assert_int_equal(effects, 2);
}

static void a_signal_ends_the_snooze(void **unused)
{
    int64_t id = add("awaits");

    (void)unused;
    jobq_test_run(test, JOBQ_MINUTES(1));
    assert_int_equal(runs, 1);
    assert_int_equal(jobq_test_get(test, id)->job.attempt, 0);
    assert_true(jobq_test_signal(test, "paid", jobq_str_from("{\"cents\": 9}")));
    assert_false(jobq_test_signal(test, "paid", jobq_str_from("1")));
    jobq_test_run(test, JOBQ_MINUTES(1));
    assert_int_equal(runs, 2);
    assert_int_equal(code, JOBQ_OK);
    assert_true(jobq_str_equal(got, jobq_str_from("{\"cents\": 9}")));
}

static void a_signal_during_the_attempt_counts(void **unused)
{
    (void)unused;
    sends = true;
    add("awaits");
    jobq_test_run(test, JOBQ_MINUTES(1));
    assert_int_equal(runs, 2);
    assert_int_equal(code, JOBQ_OK);
}

static void its_time_ends(void **unused)
{
    (void)unused;
    add("awaits");
    jobq_test_run(test, JOBQ_HOURS(1) - 1);
    assert_int_equal(runs, 1);
    jobq_test_run(test, JOBQ_SECONDS(10));
    assert_int_equal(runs, 2);
    assert_int_equal(code, JOBQ_ERROR_TIMEOUT);
}

static void a_time_limit_that_is_over_is_none_left(void **unused)
{
    (void)unused;
    timeout_us = -1;
    add("awaits");
    assert_int_equal(jobq_test_run(test, -1), 1);
    assert_int_equal(code, JOBQ_ERROR_TIMEOUT);
    jobq_test_sleep(test, INT64_MIN);
    assert_int_equal(jobq_test_now(test), 0);
}

static void fill(size_t left)
{
    static char digits[JOBQ_TEST_BYTES];
    jobq_test_job job;

    memset(&job, 0, sizeof job);
    job.queue = "q";
    job.kind = "nobody";
    job.payload_bytes = true;
    job.payload.ptr = memset(digits, '1', sizeof digits);
    job.payload.len = JOBQ_TEST_BYTES - test->used - 1 - left;
    assert_true(jobq_test_enqueue(test, &job) > 0);
}

static void without_room_nothing_is_kept(void **unused)
{
    jobq_test_job job = {.queue = "q", .kind = "k", .payload = {"1", 1}, .headers = {"{}", 2}};
    size_t used;

    (void)unused;
    timeout_us = JOBQ_NEVER;
    add("awaits");
    fill(4);
    used = test->used;
    assert_int_equal(jobq_test_enqueue(test, &job), 0);
    assert_int_equal(test->used, used);
    assert_false(jobq_test_signal(test, "a", jobq_str_from("[]")));
    assert_int_equal(test->used, used);
    jobq_test_run(test, JOBQ_SECONDS(1));
    assert_int_equal(code, JOBQ_ERROR_FULL);
    assert_null(test->kept[0].signal.ptr);
    assert_true(jobq_test_signal(test, "a", jobq_str_from("1"))); /* what fits */
}

static void without_a_time_limit_it_waits_on(void **unused)
{
    (void)unused;
    timeout_us = JOBQ_NEVER;
    add("awaits");
    jobq_test_run(test, JOBQ_DAYS(2));
    assert_int_equal(runs, 1);
    jobq_test_signal(test, "paid", jobq_str_from(NULL));
    jobq_test_run(test, JOBQ_SECONDS(10));
    assert_int_equal(code, JOBQ_OK);
    assert_null(got.ptr);
}

static void a_job_waits_until_the_test_lets_it_run(void **unused)
{
    int64_t id = add("waits");

    (void)unused;
    assert_false(jobq_test_ready(test, id));
    jobq_test_run(test, JOBQ_HOURS(1));
    assert_int_equal(runs, 1);
    assert_int_equal(jobq_test_get(test, id)->job.state, JOBQ_STATE_WAITING);
    assert_int_equal(jobq_test_get(test, id)->job.attempt, 0);
    assert_true(jobq_test_ready(test, id));
    jobq_test_run(test, JOBQ_HOURS(1));
    assert_int_equal(runs, 2);
    assert_int_equal(jobq_test_get(test, id)->job.state, JOBQ_STATE_SUCCEEDED);
}

static void a_worker_without_the_job_is_told(void **unused)
{
    (void)unused;
    add("late");
    jobq_test_run(test, JOBQ_HOURS(1));
    assert_int_equal(code, JOBQ_ERROR_LOST);
}

static void a_call_without_a_store_has_done_nothing(void **unused)
{
    jobq_call call;

    (void)unused;
    memset(&call, 0, sizeof call);
    assert_int_equal(jobq_call_step(&call, "a", &got), JOBQ_ERROR_NOT_FOUND);
    assert_int_equal(jobq_call_step_done(&call, "a", jobq_str_from("1")), JOBQ_OK);
    assert_int_equal(jobq_call_step_done(&call, "a", jobq_str_from("{")), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_call_step(&call, "", &got), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_call_signal(&call, "a", 1, &got), JOBQ_ERROR_NOT_FOUND);
    assert_int_equal(jobq_call_signal(&call, "\xff", 1, &got), JOBQ_ERROR_INVALID);
}

/* ---- waits of the in-memory queue ------------------------------------------------------------ */

static jobq_memory *memory;

static int64_t enqueue(void)
{
    jobq_job like = jobq_job_new(0);

    like.queue = like.kind = 1;
    return jobq_memory_enqueue(memory, &like, jobq_str_from("1"), 0);
}

static jobq_job *job(int64_t id) { return &jobq_memory_get(memory, id)->job; }

static void runs_now(int64_t id)
{
    job(id)->state = JOBQ_STATE_RUNNING;
    job(id)->worker = 1;
    job(id)->claim = 1;
    job(id)->attempt = 1;
}

static void event(int64_t id, jobq_event_kind kind)
{
    assert_int_equal(jobq_memory_event(memory, id, kind, 0), JOBQ_OK);
}

/* A job that waits for younger ones; the cancel of one goes through it to an older one. */
static void a_running_job_waits_for_younger_ones(void **unused)
{
    static union {
        int64_t align;
        char bytes[1 << 20];
    } block;
    int64_t first, second, third;

    (void)unused;
    memory = model_init(&block, 16, 8, 60);
    first = enqueue();
    second = enqueue();
    third = enqueue();
    runs_now(first);
    runs_now(second);
    assert_true(model_after(memory, first, second, JOBQ_ON_SUCCESS, true, 0));
    assert_true(model_after(memory, second, third, JOBQ_ON_SUCCESS, true, 0));
    assert_int_equal(job(first)->state, JOBQ_STATE_RUNNING);
    event(first, JOBQ_EVENT_WAIT);
    event(second, JOBQ_EVENT_WAIT);
    assert_int_equal(job(first)->state, JOBQ_STATE_WAITING);
    assert_int_equal(job(first)->attempt, 0);
    assert_int_equal(jobq_memory_event(memory, third, JOBQ_EVENT_WAIT, 0), JOBQ_ERROR_TRANSITION);
    event(third, JOBQ_EVENT_CANCEL);
    assert_int_equal(job(second)->state, JOBQ_STATE_CANCELLED);
    assert_int_equal(job(first)->state, JOBQ_STATE_CANCELLED);
}

static void nothing_to_wait_for_is_no_wait(void **unused)
{
    static union {
        int64_t align;
        char bytes[1 << 20];
    } block;
    int64_t id;

    (void)unused;
    memory = model_init(&block, 16, 8, 60);
    id = enqueue();
    runs_now(id);
    event(id, JOBQ_EVENT_WAIT);
    assert_int_equal(job(id)->state, JOBQ_STATE_READY);
    runs_now(id);
    job(id)->cancel_requested = true;
    event(id, JOBQ_EVENT_WAIT);
    assert_int_equal(job(id)->state, JOBQ_STATE_CANCELLED);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    static const struct CMUnitTest tests[] = {
        T(a_step_is_done_once),
        T(a_signal_ends_the_snooze),
        T(a_signal_during_the_attempt_counts),
        T(its_time_ends),
        T(a_time_limit_that_is_over_is_none_left),
        T(without_room_nothing_is_kept),
        T(without_a_time_limit_it_waits_on),
        T(a_job_waits_until_the_test_lets_it_run),
        T(a_worker_without_the_job_is_told),
        cmocka_unit_test(a_call_without_a_store_has_done_nothing),
        cmocka_unit_test(a_running_job_waits_for_younger_ones),
        cmocka_unit_test(nothing_to_wait_for_is_no_wait),
    };

    return cmocka_run_group_tests_name("steps", tests, NULL, NULL);
}
