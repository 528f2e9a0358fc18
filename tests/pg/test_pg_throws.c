/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The library compiled as C++ (tests/pg/throws.cc): a handler that throws has failed, and nothing
 * else happens. pthread_exit, which glibc carries out by an exception, still ends the thread.
 */
#include "pg_work.h"

#include "throws.h"

#define NOT_STD "the handler threw something else than a std::exception"

static int errors_heard;

static void after(void *user, const jobq_pg_report *report)
{
    (void)user;
    if (report->error.len > 0) ADD(errors_heard);
}

static int start_over(void **state)
{
    SET(errors_heard, 0);
    SET(throws_calls, 0);
    SET(throws_cleaned, 0);
    pg_empty(state);
    RUN("INSERT INTO jobq.queue (name, backoff_base_us, backoff_cap_us) VALUES ('q', 1000, 2000)");
    return 0;
}

static jobq_pg_worker_desc one_thread(const jobq_pg_handler *handlers, size_t count)
{
    jobq_pg_worker_desc d = work_of(handlers, count);

    d.loop.threads = 1;
    d.hooks.after = after;
    return d;
}

static void a_job_that_throws_has_failed(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", throws);
    jobq_pg_worker_desc d = one_thread(&h, 1);
    jobq_pg_worker *w;

    (void)unused;
    h.user = &h; /* it opens a transaction, too */
    enqueue_count(1);
    w = start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history WHERE attempt = 4"));
    expect_text("no such host", "SELECT errors->0->>'error' FROM jobq.history");
    expect_text(NOT_STD, "SELECT errors->1->>'error' FROM jobq.history");
    expect_text("the handler ended its thread", "SELECT errors->2->>'error' FROM jobq.history");
    assert_int_equal(number("SELECT count(*) FROM pg_stat_activity"
                            " WHERE state LIKE 'idle in%%' AND backend_xid IS NOT NULL"), 0);
    assert_int_equal(jobq_pg_worker_health(w, JOBQ_PG_ALL, NULL), JOBQ_OK);
    stop(w);
    assert_int_equal(GET(throws_cleaned), 4);
    assert_int_equal(GET(errors_heard), 3);
}

static void open_box(int messages)
{
    jobq_pg_message m;
    jobq_pg_error error;

    memset(&m, 0, sizeof m);
    m.queue = "o";
    if (jobq_pg_outbox_register(pg, NULL, "o", 1, NULL, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    while (messages-- > 0) {
        if (jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error) != JOBQ_OK)
            fail_msg("%s", error.message);
    }
}

/* own: the handler's transaction acknowledges. */
static void expect_messages_in_order(jobq_message_handler each, jobq_batch_handler all, bool own)
{
    jobq_pg_worker_desc d = one_thread(NULL, 0);
    jobq_pg_receiver r;
    jobq_pg_worker *w;

    memset(&r, 0, sizeof r);
    r.queue = "o";
    r.each = each;
    r.all = all;
    r.transactional = own;
    d.receivers = &r;
    d.receiver_count = 1;
    open_box(3);
    w = start(&d);
    assert_true(becomes(20, 3, "SELECT acked FROM jobq.partition"));
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 0);
    assert_int_equal(jobq_pg_worker_health(w, JOBQ_PG_ALL, NULL), JOBQ_OK);
    stop(w);
    assert_true(GET(throws_calls) >= 4);
    assert_int_equal(GET(throws_cleaned), GET(throws_calls));
    assert_int_equal(GET(errors_heard), 3);
}

static void a_message_whose_handler_throws_comes_again(void **state)
{
    expect_messages_in_order(throws_each, NULL, false);
    all_stop(state);
    start_over(state);
    expect_messages_in_order(throws_each, NULL, true);
}

static void a_batch_whose_handler_throws_comes_again(void **state)
{
    expect_messages_in_order(NULL, throws_all, false);
    all_stop(state);
    start_over(state);
    expect_messages_in_order(NULL, throws_all, true);
}

/* The in-memory queue's runner. The third attempt would end this thread: it is left out. */
static void in_memory_it_has_failed_as_well(void **unused)
{
    jobq_memory_handler h;
    jobq_job like = jobq_job_new(0);
    jobq_loop *loop = (jobq_loop *)malloc(jobq_loop_size());
    void *block = malloc(jobq_memory_size(4, 4, 16));
    jobq_memory *memory = jobq_memory_init(block, 4, 4, 16);
    jobq_call call;
    int64_t now = 0, id;

    (void)unused;
    memset(&call, 0, sizeof call);
    assert_int_equal(jobq_call_run(&call, throws), JOBQ_OUTCOME_RETRY);
    assert_string_equal(call.error, "no such host");
    assert_int_equal(jobq_call_run(&call, throws), JOBQ_OUTCOME_RETRY);
    assert_string_equal(call.error, NOT_STD);
    SET(throws_calls, 0);
    memset(&h, 0, sizeof h);
    h.queue = like.queue = 1;
    h.kind = like.kind = 1;
    h.run[0] = throws;
    jobq_loop_init(loop, NULL, 99, 0);
    id = jobq_memory_enqueue(memory, &like, jobq_str_from("1"), 0);
    while (jobq_memory_get(memory, id)->job.attempt < 2 && now < 60 * SECOND)
        now = jobq_memory_work(memory, loop, &h, 1, now);
    assert_int_equal(jobq_memory_get(memory, id)->job.attempt, 2);
    free(block);
    free(loop);
}

/* Of a batch those that it had not ended have failed. */
static void a_batch_that_throws_fails_what_it_left(void **unused)
{
    static jobq_call jobs[3];
    jobq_call *calls[3] = {&jobs[0], &jobs[1], &jobs[2]};
    int i;

    (void)unused;
    jobq_calls_run(calls, 3, throws_jobs);
    assert_int_equal(jobs[0].outcome, JOBQ_OUTCOME_SUCCESS);
    assert_int_equal(jobs[0].error_size, 0);
    for (i = 1; i < 3; i++) {
        assert_int_equal(jobs[i].outcome, JOBQ_OUTCOME_RETRY);
        assert_string_equal(jobs[i].error, "no such host");
    }
}

static bool succeeds(jobq_test *test, void *user)
{
    jobq_test_job job = {.queue = "q", .kind = "k"};

    (void)user;
    SET(throws_calls, 0);
    SET(throws_cleaned, 0);
    jobq_test_enqueue(test, &job);
    jobq_test_run(test, JOBQ_DAYS(1));
    return jobq_state_final(jobq_test_get(test, 1)->job.state);
}

/* In a test the process of a handler dies by an exception: its destructors run, but nothing else of
 * it does, even if it catches its death. */
static void a_handler_that_dies_is_left(void **unused)
{
    static const jobq_job_handler handler = {.queue = "q", .kind = "k", .run = {throws_nothing}};
    jobq_test_faults faults = {.handlers = &handler, .handler_count = 1, .scenario = succeeds};
    void *block = malloc(jobq_test_size());

    (void)unused;
    if (jobq_test_each_fault(block, &faults) != 0) fail_msg("%s", faults.text);
    assert_true(faults.stories > 20);
    faults.number = 201; /* it dies in jobq_call_step_done, and then in jobq_call_stopping */
    assert_int_equal(jobq_test_each_fault(block, &faults), 0);
    assert_int_equal(throws_calls, 1);
    assert_int_equal(throws_cleaned, 2);
    free(block);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_over, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_job_that_throws_has_failed),
        TEST(a_message_whose_handler_throws_comes_again),
        TEST(a_batch_whose_handler_throws_comes_again),
        TEST(in_memory_it_has_failed_as_well),
        TEST(a_batch_that_throws_fails_what_it_left),
        TEST(a_handler_that_dies_is_left),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
