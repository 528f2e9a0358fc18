/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Promise 5: only the database's clock lets a lease expire, and only a rescuer that has watched the
 * victim takes it away. Row X11. test_core_loop.c has the rescuer's and the worker's own clocks,
 * test_pg_upheaval.c a server whose clock jumps.
 */
#include "proxy.h"
#include "sessions.h"

/* X11: only an expired lease, only an unchanged beat, is a death. */
static void a_living_worker_is_never_rescued(void **unused)
{
    jobq_pg_error error;
    int32_t rescued;
    int64_t beat;

    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    claim_one(101, 1, false);
    assert_int_equal(verb_rescue(pg, NULL, 101, beat_of(101), &rescued, &error),
                     JOBQ_ERROR_BUSY);
    assert_int_equal(verb_heartbeat(pg, NULL, 101, SHORT_LEASE, &error), JOBQ_OK);
    nap_us(SHORT_LEASE + 50000);
    beat = beat_of(101);
    assert_int_equal(verb_heartbeat(pg, NULL, 101, SHORT_LEASE, &error),
                     JOBQ_OK); /* late, but in time */
    nap_us(SHORT_LEASE + 50000);
    assert_int_equal(verb_rescue(pg, NULL, 101, beat, &rescued, &error), JOBQ_ERROR_BUSY);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x'"), 1);
    assert_int_equal(rescue(101), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE dead_at IS NOT NULL"), 1);
}

/* Expiry alone, noticed by nobody, takes nothing away. */
static void an_expired_lease_may_still_complete(void **unused)
{
    jobq_job job;

    (void)unused;
    enqueue_count(1);
    register_worker(101, SHORT_LEASE);
    job = claim_one(101, 1, false);
    nap_us(SHORT_LEASE + 50000);
    assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
}

static void a_worker_that_ends_while_it_is_rescued_does_not_deadlock(void **unused)
{
    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    RUN("SELECT jobq._sleep(101, ARRAY(SELECT id FROM jobq.queue), true)");
    run_a("BEGIN");
    run_a("SELECT FROM jobq.worker WHERE id = 101 FOR UPDATE");
    b_asks("SELECT jobq._deregister(101)");
    run_a("DELETE FROM jobq.sleeper WHERE worker = 101");
    run_a("COMMIT");
    is_answered("");
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
}

/* The lease counts from the UPDATE, not from when the client sent the heartbeat. */
static void a_heartbeat_that_waited_does_not_shorten_the_lease(void **unused)
{
    (void)unused;
    register_worker(101, 60 * SECOND);
    run_a("BEGIN");
    run_a("SELECT FROM jobq.worker WHERE id = 101 FOR UPDATE");
    b_asks("SELECT alive FROM jobq._heartbeat(101, 60000000, '{}')");
    run_a("SELECT FROM jobq._heartbeat(101, 60000000, '{}')");
    run_a("UPDATE jobq.worker SET name = expires_at::text"); /* kept, to be compared */
    run_a("COMMIT");
    is_answered("t");
    assert_int_equal(number("SELECT beat FROM jobq.worker"), 2);
    assert_int_equal(number("SELECT (expires_at > name::timestamptz)::int FROM jobq.worker"), 1);
}

static int told; /* handlers that were told to stop */

/* Quick, so that much is fetched ahead, until the 200th, which works until it is told to stop. */
static jobq_outcome outlives_the_lease(jobq_call *call)
{
    if (ADD(runs) != 200) return JOBQ_OUTCOME_SUCCESS;
    while (!jobq_call_stopping(call, NULL)) nap_us(2000);
    ADD(told);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome stops_when_lost(jobq_call *call)
{
    if (ADD(runs) > 1) {
        while (!GET(gate)) nap_us(2000);
        return JOBQ_OUTCOME_SUCCESS;
    }
    while (jobq_call_stopping(call, NULL) != JOBQ_STOP_LOST) nap_us(2000);
    ADD(told);
    while (GET(proxy.refuse)) nap_us(2000);
    nap_us(SECOND); /* the lease may be renewed meanwhile */
    return JOBQ_OUTCOME_SUCCESS;
}

static void jobs_in_hand_go_on_after_an_outage_longer_than_the_lease(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", outlives_the_lease);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc through = desc_of(proxy.conninfo);
    jobq_pg *handle = open_on(&through);
    jobq_pg_health health;
    jobq_pg_worker *w;

    (void)unused;
    d.loop.threads = 1;
    d.loop.lease_us = 2 * SECOND;
    enqueue_count(400);
    w = start_on(handle, &d);
    assert_true(reaches(20, &runs, 200));
    nap_us(300000); /* no claim is on its way, whose recovery would wake the thread */
    SET(proxy.refuse, 1);
    RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'job_ test'");
    assert_true(reaches(20, &told, 1)); /* its lease is over */
    nap_us(200000);                     /* the thread sleeps */
    SET(proxy.refuse, 0);
    if (!becomes(20, 0, "SELECT count(*) FROM jobq.job")) {
        jobq_pg_worker_health(w, JOBQ_PG_ALL, &health);
        fail_msg("lease of %lld us", (long long)health.lease_us);
    }
    stop(w);
    jobq_pg_close(handle);
}

/* What a handler says that was told LOST is void, even if the lease turns out to last: it may have
 * stopped halfway. Its job runs again, and its attempt does not count. */
static void a_job_that_was_called_lost_is_given_back(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", stops_when_lost);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc through = desc_of(proxy.conninfo);
    jobq_pg *handle = open_on(&through);
    jobq_pg_worker *w;

    (void)unused;
    SET(told, 0);
    d.loop.lease_us = 6 * SECOND; /* shorter ones lapse on a busy machine */
    enqueue_count(1);
    w = start_on(handle, &d);
    assert_true(reaches(20, &runs, 1));
    SET(proxy.refuse, 1);
    RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'job_ test'");
    assert_true(reaches(40, &told, 1));
    SET(proxy.refuse, 0);
    assert_true(reaches(60, &runs, 2));
    assert_int_equal(number("SELECT attempt FROM jobq.job"), 1); /* this one */
    SET(gate, 1);
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.job"));
    stop(w);
    jobq_pg_close(handle);
}

#define TEST(test, set_up) cmocka_unit_test_setup_teardown(test, set_up, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_living_worker_is_never_rescued, fresh),
        TEST(an_expired_lease_may_still_complete, fresh),
        WITH_TWO(a_worker_that_ends_while_it_is_rescued_does_not_deadlock),
        WITH_TWO(a_heartbeat_that_waited_does_not_shorten_the_lease),
        TEST(jobs_in_hand_go_on_after_an_outage_longer_than_the_lease, fresh),
        TEST(a_job_that_was_called_lost_is_given_back, fresh),
    };

    return cmocka_run_group_tests_name("leases", tests, pg_and_proxy_up, pg_and_proxy_down);
}
