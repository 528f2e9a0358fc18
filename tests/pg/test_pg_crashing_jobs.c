/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Promise 4: a job that kills its worker fails by a limit of its own, and its neighbours do not.
 * Rows X9, X10. test_pg_relay.c and test_pg_outbox_steps.c have the same of messages.
 */
#include "processes.h"

/* On the database: one of 20 jobs kills its worker, as one of many, as a suspect, and three times
 * alone; the others lose nothing. */
static void suspects_run_alone_and_the_crashing_one_fails(void **unused)
{
    verb_batch batch;
    int64_t worker = 201, crashing;
    int deaths = 0;

    (void)unused;
    enqueue_count(20);
    register_worker(worker, SHORT_LEASE);
    assert_int_equal(claim_by(worker, 1, 20, false, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 20);
    crashing = batch.jobs[7].id;
    verb_batch_clear(&batch);
    nap_us(SHORT_LEASE + 50000);
    assert_int_equal(rescue(worker), 20);
    assert_int_equal(
        number("SELECT count(*) FROM jobq.job WHERE suspect AND attempt = 0 AND crash = 0"), 20);
    register_worker(++worker, SHORT_LEASE);
    assert_int_equal(claim_by(worker, 100, 20, false, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 0); /* no suspect among others */
    assert_true(batch.suspects);
    verb_batch_clear(&batch);
    for (;;) {
        static int64_t claim = 1000;
        jobq_error error = claim_by(worker, ++claim, 5, true, &batch);
        jobq_job job;
        if (error == JOBQ_OK && batch.count == 0 && batch.alone) {
            error = claim_by(worker, ++claim, 5, ALONE, &batch);
        }
        if (error == JOBQ_ERROR_DEAD) fail_msg("dead");
        if (batch.count == 0) break;
        assert_int_equal(batch.count, 1); /* one at a time, whatever the limit */
        job = batch.jobs[0];
        verb_batch_clear(&batch);
        if (job.id != crashing) {
            assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
            continue;
        }
        assert_int_equal(job.alone, deaths++ > 0);
        assert_int_equal(job.crash, deaths > 2 ? deaths - 2 : 0);
        nap_us(SHORT_LEASE + 50000);
        rescue(worker);
        register_worker(++worker, SHORT_LEASE + 10 * SECOND);
        RUN("UPDATE jobq.worker SET lease_us = %d, expires_at = now() + interval '0.3 s' WHERE id "
            "= %lld",
            SHORT_LEASE, (long long)worker);
    }
    verb_batch_clear(&batch);
    assert_int_equal(deaths, 4);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE attempt = 1 AND crash = 0"),
                     19);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE id = %lld AND crash = 3 AND "
                            "errors->-1->>'error' = 'Max crashes (3) exceeded: worker died'",
                            (long long)crashing), 1);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void a_rescue_cancels_what_was_to_be_cancelled(void **unused)
{
    jobq_pg_error error;
    int64_t requested = 0;
    jobq_job job;

    (void)unused;
    enqueue_count(1);
    register_worker(101, SHORT_LEASE);
    job = claim_one(101, 1, false);
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(job.id), NULL, &requested, &error), JOBQ_OK);
    assert_int_equal(requested, 1);
    nap_us(SHORT_LEASE + 50000);
    assert_int_equal(rescue(101), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 'c'"), 1);
}

static jobq_outcome kill_on_p(jobq_call *call)
{
    if (memchr(call->payload.ptr, 'P', call->payload.len) != NULL) kill(getpid(), SIGKILL);
    return JOBQ_OUTCOME_SUCCESS;
}

/* The job kills every worker that runs it; false: a neighbour was taken for one, because a
 * loaded machine let a worker lose its lease. */
static bool one_crashing_job_fails_alone(int neighbours, int64_t lease_us)
{
    int64_t until = mono_us() + 60 * SECOND;
    jobq_pg_job crashing = plain_job();
    pid_t pids[2] = {0, 0};
    int i, restarts = 0;

    quick_queue(NULL);
    enqueue_count((size_t)neighbours / 2);
    crashing.payload = jobq_str_from("\"P\"");
    enqueue_with(&crashing);
    enqueue_count((size_t)(neighbours - neighbours / 2));
    while (number("SELECT count(*) FROM jobq.job") > 0 && mono_us() < until) {
        for (i = 0; i < 2; i++) {
            if (pids[i] == 0 || exited(pids[i])) {
                pids[i] = spawn_one(kill_on_p, lease_us);
                restarts++;
            }
        }
        nap_us(20000);
    }
    for (i = 0; i < 2; i++) kill_hard(pids[i]);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE crash = 3"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), neighbours);
    assert_in_range(restarts, 5, 12); /* two at first, one for each death */
    return number("SELECT count(*) FROM jobq.history WHERE crash > 0") == 0;
}

/* With real processes. */
static void one_crashing_job_among_a_thousand_fails_alone(void **unused)
{
    int64_t lease_us = SECOND;

    (void)unused;
    while (!one_crashing_job_fails_alone(check_slow() ? 99 : 999, lease_us)) {
        lease_us *= 2;
        assert_true(lease_us <= 4 * SECOND);
    }
}

/* It ran when its worker died, and the worker that rescued it has no handler for it. */
static void a_parked_suspect_runs_once_its_kind_is_back(void **unused)
{
    jobq_pg_handler mine = handler_of("q", "k", succeed),
                    theirs = handler_of("q", "other", counts_others);
    jobq_pg_worker_desc d = work_of(&mine, 1), e = work_of(&theirs, 1);
    jobq_pg_worker *w;

    (void)unused;
    enqueue_kind("other", "1");
    RUN("UPDATE jobq.job SET suspect = true");
    w = start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.job WHERE run_at = 'infinity'"));
    stop(w);
    start(&e);
    assert_true(reaches(10, &others, 1));
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
}

/* A rescue that fails for one job would leave it running for ever. */
static void a_crash_that_cannot_be_counted(void **unused)
{
    (void)unused;
    insert_jobs(1, "'1'");
    RUN("INSERT INTO jobq.worker (id, name, lease_us, expires_at, queues, kinds) VALUES "
        "(77, 'gone', 1, now() - interval '1 minute', '{}', '{}')");
    RUN("INSERT INTO jobq.claim SELECT 77, 1, now(), array_agg(id) FROM jobq.job");
    RUN("UPDATE jobq.job SET state = 'x', worker = 77, claim = 1, suspect = true, alone = true, "
        "crash = 2147483647");
    assert_int_equal(number("SELECT failed FROM jobq._rescue(77, 0, 10)"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE crash = 2147483647"), 1);
}

/* What hooks were told, in all processes. */
typedef struct obituary {
    int others, failed;
    jobq_call call;
    char queue[8], kind[8], error[80];
} obituary;

static void hook_other(void *user, const jobq_pg_report *r)
{
    (void)r;
    ADD(((obituary *)user)->others);
}

static void hook_failed(void *user, const jobq_pg_report *r)
{
    obituary *o = (obituary *)user;

    o->call = *r->call;
    snprintf(o->queue, sizeof o->queue, "%.*s", (int)r->queue.len, r->queue.ptr);
    snprintf(o->kind, sizeof o->kind, "%.*s", (int)r->call->kind.len, r->call->kind.ptr);
    snprintf(o->error, sizeof o->error, "%.*s", (int)r->error.len, r->error.ptr);
    if (r->state != JOBQ_STATE_FAILED || r->outcome != JOBQ_OUTCOME_NONE) ADD(o->others);
    ADD(o->failed);
}

/* A job kills its worker until it is failed. The worker that finds that calls its hook failed, once
 * among all workers, even if it serves another queue. */
static void the_hook_failed_hears_of_crashes(void **unused)
{
    obituary *o = (obituary *)shared(sizeof *o);
    jobq_pg_handler h = handler_of("other", "kind", succeed), k;
    jobq_pg_worker_desc d = work_of(&h, 1), dies = one_kind(&k, kill_on_p);
    jobq_pg_job job = plain_job();
    int64_t id, until = mono_us() + 120 * SECOND;
    pid_t victim = 0;

    (void)unused;
    RUN("UPDATE jobq.queue SET max_crashes = 2");
    job.payload = jobq_str_from("\"P\"");
    id = enqueue_with(&job);
    d.hooks.before = d.hooks.after = hook_other;
    d.hooks.failed = dies.hooks.failed = hook_failed;
    d.hooks.user = dies.hooks.user = o;
    dies.loop.lease_us = SECOND;
    spawn(&d);
    while (number("SELECT count(*) FROM jobq.failed") == 0 && mono_us() < until) {
        if (victim == 0 || exited(victim)) victim = spawn(&dies);
        nap_us(20000);
    }
    assert_true(reaches(20, &o->failed, 1));
    nap_us(SECOND);
    assert_int_equal(GET(o->failed), 1);
    assert_int_equal(GET(o->others), 0);
    assert_int_equal(o->call.job.id, id);
    assert_int_equal(o->call.job.state, JOBQ_STATE_FAILED);
    assert_int_equal(o->call.job.crash, 2);
    assert_int_equal(o->call.job.attempt, 2);
    assert_int_equal(o->call.payload.len, 0);
    assert_string_equal(o->queue, "q");
    assert_string_equal(o->kind, "k");
    assert_string_equal(o->error, "Max crashes (2) exceeded: worker died");
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE errors -> -1 ->> 'error' = "
                            "'Max crashes (2) exceeded: worker died'"), 1);
    munmap(o, sizeof *o);
}

#define TEST(test, set_up) cmocka_unit_test_setup_teardown(test, set_up, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(suspects_run_alone_and_the_crashing_one_fails, fresh),
        TEST(a_rescue_cancels_what_was_to_be_cancelled, fresh),
        TEST(one_crashing_job_among_a_thousand_fails_alone, quick_queue),
        TEST(the_hook_failed_hears_of_crashes, quick_queue),
        TEST(a_parked_suspect_runs_once_its_kind_is_back, fresh),
        TEST(a_crash_that_cannot_be_counted, empty_queue),
    };

    return cmocka_run_group_tests_name("crashing jobs", tests, common_up, pg_down);
}
