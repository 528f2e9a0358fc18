/*
 * How long a worker works, and where: until nothing is due, until all has ended, one job; in a
 * process that forks; until a signal.
 */
#include "pg_work.h"

static int runs;
static pthread_t here;
static int elsewhere;

/* ---- handlers -------------------------------------------------------------------------------- */

static jobq_outcome succeed(jobq_call *call)
{
    (void)call;
    ADD(runs);
    if (!pthread_equal(pthread_self(), here)) ADD(elsewhere);
    return JOBQ_OUTCOME_SUCCESS;
}

/* A retry, a snooze, and then done, 100 ms apart. */
static jobq_outcome third_time(jobq_call *call)
{
    int run = ADD(runs);

    jobq_call_delay(call, 100000);
    if (run == 1) return JOBQ_OUTCOME_RETRY;
    return run == 2 ? JOBQ_OUTCOME_SNOOZE : JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome slow(jobq_call *call)
{
    (void)call;
    ADD(runs);
    nap_us(500000);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_result second_time(jobq_delivery *d, const jobq_message *m)
{
    (void)d;
    (void)m;
    return ADD(runs) < 2 ? JOBQ_RESULT_RETRY : JOBQ_RESULT_SUCCESS;
}

static void work_until(jobq_pg_worker_desc *d, jobq_until until)
{
    jobq_pg_error error;

    d->loop.until = until;
    if (jobq_pg_work(pg, d, &error) != JOBQ_OK) fail_msg("%s", error.message);
}

/* ---- until ----------------------------------------------------------------------------------- */

static void empty_leaves_what_comes_later(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", third_time);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();

    (void)unused;
    enqueue_count(1);
    job.delay_us = 3600 * SECOND;
    enqueue_with(&job);
    work_until(&d, JOBQ_UNTIL_STOPPED); /* which is empty, here */
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 2);
}

static void ended_waits_for_retries_snoozes_and_schedules(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", third_time);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();

    (void)unused;
    job.delay_us = 200000;
    enqueue_with(&job);
    work_until(&d, JOBQ_UNTIL_ENDED);
    assert_int_equal(runs, 3);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
}

static void ended_waits_for_other_workers(void **unused)
{
    jobq_pg_handler mine = handler_of("q", "k", succeed), other = handler_of("q", "k", slow);
    jobq_pg_worker_desc d = work_of(&mine, 1), o = work_of(&other, 1);
    jobq_pg_worker *worker = start(&o);

    (void)unused;
    enqueue_count(1);
    assert_true(reaches(20, &runs, 1));
    work_until(&d, JOBQ_UNTIL_ENDED);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 1);
    stop(worker);
}

static void ended_waits_for_messages(void **unused)
{
    jobq_pg_worker_desc d = work_of(NULL, 0);
    jobq_pg_receiver r;
    jobq_pg_message m;
    jobq_pg_error error;

    (void)unused;
    memset(&r, 0, sizeof r);
    memset(&m, 0, sizeof m);
    r.queue = m.queue = "news";
    r.each = second_time;
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "news", 2, NULL, &error), JOBQ_OK);
    RUN("UPDATE jobq.queue SET backoff_base_us = 300000, backoff_cap_us = 300000");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_OK);
    d.receivers = &r;
    d.receiver_count = 1;
    work_until(&d, JOBQ_UNTIL_ENDED);
    assert_int_equal(runs, 2);
    assert_int_equal(number("SELECT sum(lag) FROM jobq.outbox"), 0);
}

/* Every place where something unfinished can be, and none where it is not. */
static void remains_sees_all_that_is_unfinished(void **unused)
{
    static const char asked[] = "SELECT jobq.remains(ARRAY[(SELECT id FROM jobq.queue WHERE name = "
                                "'q')], '{}')::int";

    (void)unused;
    enqueue_count(1);
    assert_int_equal(number("%s", asked), 1);
    RUN("UPDATE jobq.job SET run_at = 'infinity'");
    assert_int_equal(number("%s", asked), 1);
    RUN("UPDATE jobq.job SET suspect = true");
    assert_int_equal(number("%s", asked), 1);
    RUN("UPDATE jobq.job SET suspect = false, run_at = now()");
    register_worker(7, 60 * SECOND);
    claim_one(7, 1, false);
    assert_int_equal(number("%s", asked), 1);
    assert_int_equal(number("SELECT jobq.remains('{0}', '{}')::int"), 0);
    RUN("DELETE FROM jobq.job");
    assert_int_equal(number("%s", asked), 0);
}

/* ---- one job --------------------------------------------------------------------------------- */

static void one_job_is_run_here(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;
    bool ran;

    (void)unused;
    enqueue_count(2);
    assert_int_equal(jobq_pg_work_one(pg, &d, &ran, &error), JOBQ_OK);
    assert_true(ran);
    assert_int_equal(runs, 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"), 1);
    assert_int_equal(jobq_pg_work_one(pg, &d, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_work_one(pg, &d, &ran, &error), JOBQ_OK);
    assert_false(ran);
    assert_int_equal(runs, 2);
    assert_int_equal(elsewhere, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
}

static void one_job_that_fails_is_settled_too(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", third_time);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_receiver r;
    jobq_pg_error error;
    bool ran;

    (void)unused;
    enqueue_count(1);
    assert_int_equal(jobq_pg_work_one(pg, &d, &ran, &error), JOBQ_OK);
    assert_true(ran);
    assert_int_equal(number("SELECT attempt FROM jobq.job WHERE state = 'r'"), 1);
    memset(&r, 0, sizeof r);
    d.receivers = &r;
    d.receiver_count = 1;
    assert_int_equal(jobq_pg_work_one(pg, &d, &ran, &error), JOBQ_ERROR_INVALID);
    assert_false(ran);
    assert_string_equal(error.field, "receivers");
}

/* ---- setup ----------------------------------------------------------------------------------- */

static int empty(void **state)
{
    runs = elsewhere = 0;
    here = pthread_self();
    return pg_empty(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, empty, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(empty_leaves_what_comes_later),
        TEST(ended_waits_for_retries_snoozes_and_schedules),
        TEST(ended_waits_for_other_workers),
        TEST(ended_waits_for_messages),
        TEST(remains_sees_all_that_is_unfinished),
        TEST(one_job_is_run_here),
        TEST(one_job_that_fails_is_settled_too),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
