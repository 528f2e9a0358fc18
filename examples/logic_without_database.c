/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * logic_without_database.c -- unit tests of a retry policy, of a flow with two stages and of the
 * batches of an outbox, without a database, a clock or randomness.
 *
 * Build   cc examples/logic_without_database.c -I. -o logic_without_database
 * Run     ./logic_without_database
 * Prints  one line for each test, then "5 tests passed"
 *
 * jobq_job_decide says what an event makes of a job, and jobq_job_apply changes the job. Time and
 * random bits are arguments, so a test can produce any case, as often as it likes. Unit tests of
 * handlers are in test_handlers.c.
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include <stdio.h>
#include <stdlib.h>

#define MINUTE JOBQ_MINUTES(1)

/* Like assert, but NDEBUG does not remove it. */
#define CHECK(good)                                                                                \
    do {                                                                                           \
        if (!(good)) fail_at(__LINE__, #good);                                                     \
    } while (0)

static void fail_at(int line, const char *what)
{
    fprintf(stderr, "line %d: %s is false\n", line, what);
    exit(1);
}

/* The policy under test: three attempts, with pauses of one and two minutes. */
static jobq_policy mail_policy(void)
{
    jobq_policy policy = {0};

    policy.max_attempts = 3;
    policy.backoff.base_us = MINUTE;
    policy.backoff.cap_us = 60 * MINUTE;
    policy.backoff.jitter_permille = 100;
    return jobq_policy_defaults(&policy);
}

/* A worker takes the job. */
static void claim(const jobq_policy *policy, jobq_job *job, int64_t number)
{
    jobq_event event = {JOBQ_EVENT_CLAIM, 0, 0, 0, false, 0};
    jobq_decision decision;

    event.worker = 42;
    event.claim = number;
    CHECK(jobq_job_decide(policy, job, &event, &decision) == JOBQ_OK);
    jobq_job_apply(job, &decision, 0);
    CHECK(jobq_job_holds(job, 42, number));
}

/* Applies an event to the job, at this instant and with these random bits. */
static jobq_decision happen(const jobq_policy *policy, jobq_job *job, jobq_event_kind kind,
                            int64_t now_us, uint64_t random)
{
    jobq_event event = {JOBQ_EVENT_NONE, 0, 0, 0, false, 0};
    jobq_decision decision;

    event.kind = kind;
    event.random = random;
    CHECK(jobq_job_decide(policy, job, &event, &decision) == JOBQ_OK);
    jobq_job_apply(job, &decision, now_us);
    CHECK(jobq_job_check(job) == JOBQ_OK);
    return decision;
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void test_retries_wait_longer_and_end(void)
{
    jobq_policy policy = mail_policy();
    jobq_job job = jobq_job_new(1);
    jobq_decision last;
    char text[JOBQ_ERROR_MAX + 1];

    claim(&policy, &job, 1);
    happen(&policy, &job, JOBQ_EVENT_RETRY, 1000, UINT64_MAX / 2); /* the middle of the jitter */
    CHECK(job.state == JOBQ_STATE_READY && job.attempt == 1);
    CHECK(job.run_at_us >= 1000 + MINUTE - 1 && job.run_at_us <= 1000 + MINUTE + 1);

    claim(&policy, &job, 2);
    happen(&policy, &job, JOBQ_EVENT_RETRY, 0, UINT64_MAX / 2);
    CHECK(job.run_at_us >= 2 * MINUTE - 1 && job.run_at_us <= 2 * MINUTE + 1);

    claim(&policy, &job, 3);
    last = happen(&policy, &job, JOBQ_EVENT_RETRY, 0, 0);
    CHECK(job.state == JOBQ_STATE_FAILED && last.reason == JOBQ_REASON_ATTEMPTS);
    jobq_reason_format(text, &last, jobq_str_from("mailbox full"));
    CHECK(jobq_str_equal(jobq_str_from(text),
                         jobq_str_from("Max retries (3) exceeded: mailbox full")));
}

static void test_jitter_stays_within_ten_percent(void)
{
    jobq_policy policy = mail_policy();
    jobq_random random = {2024};
    int i;

    for (i = 0; i < 1000; i++) {
        jobq_job job = jobq_job_new(1);
        claim(&policy, &job, 1);
        happen(&policy, &job, JOBQ_EVENT_RETRY, 0, jobq_random_next(&random));
        CHECK(job.run_at_us >= MINUTE * 9 / 10 && job.run_at_us <= MINUTE * 11 / 10);
    }
}

static void test_two_stages_in_a_status_column(void)
{
    static const char *const stages[] = {"EXTRACTION", "EMBEDDING"};
    static const struct {
        jobq_event_kind event; /* NONE: a claim */
        const char *status;
    } flow[] = {
        {JOBQ_EVENT_NONE, "EXTRACTION_IN_PROGRESS"}, {JOBQ_EVENT_RETRY, "PENDING"},
        {JOBQ_EVENT_NONE, "EXTRACTION_IN_PROGRESS"}, {JOBQ_EVENT_SUCCESS, "EXTRACTION_COMPLETE"},
        {JOBQ_EVENT_NONE, "EMBEDDING_IN_PROGRESS"},  {JOBQ_EVENT_CRASH, "EXTRACTION_COMPLETE"},
        {JOBQ_EVENT_NONE, "EMBEDDING_IN_PROGRESS"},  {JOBQ_EVENT_SUCCESS, "SUCCEEDED"}};
    jobq_policy policy = mail_policy();
    jobq_job job = jobq_job_new(1);
    char status[64];
    size_t i;

    job.stages = 2;
    for (i = 0; i < sizeof flow / sizeof flow[0]; i++) {
        if (flow[i].event == JOBQ_EVENT_NONE) claim(&policy, &job, (int64_t)i + 1);
        else happen(&policy, &job, flow[i].event, 0, 0);
        CHECK(jobq_status_format(status, sizeof status, stages, 2, job.stage, job.state) ==
              JOBQ_OK);
        CHECK(jobq_str_equal(jobq_str_from(status), jobq_str_from(flow[i].status)));
    }
}

/* Promise 3: a result that comes after the end, or twice, changes nothing. */
static void test_a_second_success_is_refused(void)
{
    jobq_policy policy = mail_policy();
    jobq_job job = jobq_job_new(1), before;
    jobq_event success = {JOBQ_EVENT_SUCCESS, 0, 0, 0, false, 0};
    jobq_decision decision;

    claim(&policy, &job, 1);
    happen(&policy, &job, JOBQ_EVENT_SUCCESS, 0, 0);
    CHECK(job.state == JOBQ_STATE_SUCCEEDED);
    before = job;
    CHECK(jobq_job_decide(&policy, &job, &success, &decision) == JOBQ_ERROR_TRANSITION);
    CHECK(before.state == job.state && before.attempt == job.attempt);
    CHECK(!jobq_job_holds(&job, 42, 1));
}

/* A bad message among fifty: after two failures it is searched for with small batches, which then
 * double until the partition is back to its size. */
static void test_a_bad_message_makes_batches_small(void)
{
    static const uint32_t sizes[] = {50, 7, 14, 28, 50};
    jobq_backoff backoff = {JOBQ_CURVE_EXPONENTIAL, JOBQ_NO_JITTER, JOBQ_SECONDS(1), MINUTE, 0};
    jobq_partition_mode mode = {JOBQ_PARTITION_NORMAL, 0, 0, 0};
    jobq_directive then;
    size_t i;

    mode = jobq_partition_next(mode, JOBQ_RESULT_RETRY, 50, 7, 2); /* seven went well, one failed */
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        jobq_result result = i == 0 ? JOBQ_RESULT_RETRY : JOBQ_RESULT_SUCCESS;
        CHECK(jobq_partition_size(&mode, 50) == sizes[i]);
        mode = jobq_partition_next(mode, result, 50, 7, 2);
        then = jobq_partition_directive(&mode, result, sizes[i], sizes[i], &backoff, 0);
        CHECK(then.kind == (i == 0 ? JOBQ_DIRECTIVE_SLEEP : JOBQ_DIRECTIVE_PROCEED));
        CHECK(then.delay_us == (i == 0 ? JOBQ_SECONDS(2) : 0)); /* the second failure */
    }
    CHECK(mode.state == JOBQ_PARTITION_NORMAL);
}

int main(void)
{
    test_retries_wait_longer_and_end();
    printf("ok  retries wait longer each time, and end at the third attempt\n");
    test_jitter_stays_within_ten_percent();
    printf("ok  jitter stays within ten percent\n");
    test_two_stages_in_a_status_column();
    printf("ok  two stages, as words of a status column\n");
    test_a_second_success_is_refused();
    printf("ok  a second success is refused\n");
    test_a_bad_message_makes_batches_small();
    printf("ok  a bad message makes batches small, and success lets them grow again\n");
    printf("5 tests passed\n");
    return 0;
}
