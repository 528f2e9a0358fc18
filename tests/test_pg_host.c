/*
 * A worker seen from its host program: statistics, health, hooks; and handlers that misbehave.
 */
#include "proxy.h"

static int runs, gate;

static int start_over(void **state)
{
    SET(runs, 0);
    SET(gate, 0);
    SET(proxy.refuse, 0);
    proxy_fault_at(PROXY_NONE, 0);
    pg_empty(state);
    RUN("INSERT INTO jobq.queue (name, backoff_base_us, backoff_cap_us) VALUES ('q', 1000, 2000)");
    return 0;
}

static jobq_pg *open_through_proxy(void)
{
    jobq_pg_desc d;
    jobq_pg_error error;
    jobq_pg *made;

    memset(&d, 0, sizeof d);
    d.conninfo = proxy.conninfo;
    d.schema = schema;
    d.log = quiet_log;
    if (jobq_pg_open(&made, &d, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return made;
}

/* Waits for a worker's end, and leaves it to be looked at and freed. */
static jobq_error ends(jobq_pg_worker *worker)
{
    int i;

    for (i = 0; i < WORKERS_MAX; i++) {
        if (workers[i] == worker) workers[i] = NULL;
    }
    return jobq_pg_worker_wait(worker, NULL);
}

/* -- handlers -- */

static jobq_outcome takes_10_ms(jobq_call *call)
{
    (void)call;
    ADD(runs);
    nap_us(10000);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Until the gate opens, whatever it is asked. */
static jobq_outcome holds(jobq_call *call)
{
    (void)call;
    ADD(runs);
    while (!GET(gate)) nap_us(2000);
    return JOBQ_OUTCOME_SUCCESS;
}

/* -- statistics -- */

static void work_fills_the_statistics(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", takes_10_ms);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_stats stats;
    jobq_pg_error error;

    (void)unused;
    memset(&stats, 0xff, sizeof stats);
    d.stats = &stats;
    enqueue_count(7);
    if (jobq_pg_work(pg, &d, &error) != JOBQ_OK) fail_msg("%s", error.message);
    assert_int_equal(stats.jobs.started, 7);
    assert_int_equal(stats.jobs.succeeded, 7);
    assert_int_equal(stats.messages.delivered, 0);
    assert_in_range(stats.handler_us, 70000, 7 * 10 * SECOND);
}

/* -- health -- */

/* Waits until the worker's health is this. */
static bool becomes_healthy(jobq_pg_worker *w, jobq_error wanted, jobq_pg_health *health)
{
    int64_t until = jobq_pg__mono_us() + 30 * SECOND;

    while (jobq_pg_worker_health(w, health) != wanted) {
        if (jobq_pg__mono_us() > until) return false;
        nap_us(5000);
    }
    return true;
}

static void health_tells_of_a_worker_that_works(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", holds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *w;
    jobq_pg_health health;

    (void)unused;
    enqueue_count(1);
    w = start(&d);
    assert_true(reaches(20, &runs, 1));
    assert_true(becomes_healthy(w, JOBQ_OK, &health));
    assert_int_equal(jobq_pg_worker_health(w, NULL), JOBQ_OK);
    assert_true(health.worker == number("SELECT id FROM jobq.worker"));
    assert_true(health.connected && health.hears && !health.stopping);
    assert_int_equal(health.running, 1);
    assert_int_equal(health.threads, 4);
    assert_int_equal(health.abandoned, 0);
    assert_int_equal(health.error_us, -1);
    assert_string_equal(health.error, "");
    assert_in_range(health.silent_us, 0, d.loop.lease_us);
    assert_in_range(health.lease_us, 1, d.loop.lease_us);
    assert_true(health.pool_open >= health.pool_idle && health.pool_open >= 1);
    SET(gate, 1);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
    jobq_pg_worker_stop(w);
    ends(w);
    assert_int_equal(jobq_pg_worker_health(w, &health), JOBQ_ERROR_DEAD);
    assert_true(health.stopping && !health.connected && !health.hears && health.worker == 0);
    jobq_pg_worker_free(w);
}

static void health_tells_of_a_server_that_is_away(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", takes_10_ms);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg *handle = open_through_proxy();
    jobq_pg_worker *w;
    jobq_pg_health health;

    (void)unused;
    d.name = "away";
    w = start_on(handle, &d);
    assert_true(becomes_healthy(w, JOBQ_OK, &health));
    SET(proxy.refuse, 1);
    RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'job_ away'");
    assert_true(becomes_healthy(w, JOBQ_ERROR_CONNECTION, &health)); /* its lease has run out */
    assert_true(health.lease_us == 0 && !health.connected && !health.hears);
    assert_true(health.silent_us < 0 || health.silent_us >= d.loop.lease_us);
    assert_true(strlen(health.error) > 0);
    assert_in_range(health.error_us, 0, 30 * SECOND);
    SET(proxy.refuse, 0);
    assert_true(becomes_healthy(w, JOBQ_OK, &health));
    assert_true(health.connected);
    assert_true(strlen(health.error) > 0); /* the last trouble is still told, with its age */
    stop(w);
    jobq_pg_close(handle);
}

static void *opens_the_gate(void *unused)
{
    nap_us(SECOND / 2);
    SET(gate, 1);
    return unused;
}

static void health_tells_of_handlers_that_are_stuck(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", holds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;
    jobq_pg_health health;
    pthread_t thread;

    (void)unused;
    job.timeout_us = 100000;
    job.max_attempts = 1;
    d.loop.threads = 2;
    enqueue_with(&job);
    enqueue_with(&job);
    w = start(&d);
    assert_true(becomes_healthy(w, JOBQ_ERROR_TIMEOUT, &health));
    assert_int_equal(health.abandoned, 2);
    assert_non_null(strstr(health.error, "stuck"));
    pthread_create(&thread, NULL, opens_the_gate, NULL);
    assert_int_equal(ends(w), JOBQ_ERROR_TIMEOUT);
    pthread_join(thread, NULL);
    do nap_us(10000);
    while (jobq_pg_worker_health(w, &health) == JOBQ_ERROR_TIMEOUT && health.abandoned > 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 2);
    jobq_pg_worker_free(w);
}

static int up(void **state)
{
    if (pg_up(state) != 0) return 1;
    proxy_up();
    return 0;
}

static int down(void **state)
{
    proxy_down();
    return pg_down(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_over, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(work_fills_the_statistics),
        TEST(health_tells_of_a_worker_that_works),
        TEST(health_tells_of_a_server_that_is_away),
        TEST(health_tells_of_handlers_that_are_stuck),
    };

    return cmocka_run_group_tests(tests, up, down);
}
