/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Vacuum and prune: when a worker runs them, and with a role whose time-outs are too short for
 * them. test_pg_pooler.c does the same behind a pooler.
 */
#include "hasty.h"

/* -- a role with short time-outs -- */

static jobq_pg_worker_desc busy_worker(const jobq_pg_handler *h)
{
    jobq_pg_worker_desc d = work_of(h, 1);

    d.loop.vacuum_rows = 1000;
    d.loop.prune_us = 200000;
    return d;
}

/* What the pool lends afterwards has the role's own time-outs again. */
static void expect_own_bounds(jobq_pg *handle)
{
    jobq_pg_error error;
    PGconn *conn[5];
    int i;

    for (i = 0; i < 5; i++) {
        PGresult *res;
        assert_int_equal(jobq_pg_acquire(handle, &conn[i], &error), JOBQ_OK);
        res = PQexec(conn[i], "SHOW statement_timeout");
        assert_string_equal(PQgetvalue(res, 0, 0), "200ms");
        PQclear(res);
    }
    for (i = 0; i < 5; i++) jobq_pg_release(handle, conn[i]);
}

static void chores_have_bounds_of_their_own(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = busy_worker(&h);
    jobq_pg_desc hasty = desc_of(hasty_conninfo);
    jobq_pg *handle;

    (void)unused;
    hasty_begin();
    handle = open_on(&hasty);
    start_on(handle, &d);
    assert_true(becomes(60, 0, HASTY_LEFT));
    assert_true(becomes(60, 1, HASTY_VACUUMED));
    all_stop(NULL);
    expect_own_bounds(handle);
    jobq_pg_close(handle);
    hasty_end();
}

static void so_have_those_of_a_hosts_worker(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = busy_worker(&h);
    jobq_pg_desc hasty = desc_of(hasty_conninfo);
    int64_t until = mono_us() + 60 * SECOND;
    jobq_pg_worker *worker;
    jobq_pg_error error;
    jobq_pg *handle;

    (void)unused;
    hasty_begin();
    handle = open_on(&hasty);
    if (jobq_pg_worker_open(handle, &d, &worker, &error) != JOBQ_OK) fail_msg("%s", error.message);
    while (number(HASTY_LEFT) > 0 || number(HASTY_VACUUMED) == 0) {
        assert_true(mono_us() < until);
        jobq_pg_worker_step(worker, 20000);
    }
    jobq_pg_worker_stop(worker);
    while (jobq_pg_worker_step(worker, 20000)) {}
    jobq_pg_worker_free(worker);
    jobq_pg_close(handle);
    hasty_end();
}

/* -- when -- */

static void the_table_is_vacuumed_by_the_rows_that_ended(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    char vacuums[] = "SELECT count(*) FROM pg_stat_user_tables WHERE relid = 'jobq.job'::regclass "
                     "AND vacuum_count > 0";

    (void)unused;
    enqueue_count(3000);
    d.loop.vacuum_rows = 1000;
    start(&d);
    assert_true(reaches(20, &runs, 3000));
    assert_true(becomes(20, 1, vacuums));
}

/* A cancel may arrive late, so the connection is closed, not lent again. */
static void a_vacuum_is_cut_short_by_the_end(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    char slow[1000], backends[100];
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg_worker *w;
    jobq_pg *handle;
    int64_t asked;
    long pid;

    (void)unused;
    snprintf(slow, sizeof slow,
             "%s options='-c vacuum_cost_delay=100 -c vacuum_cost_limit=1 "
             "-c vacuum_cost_page_hit=10'", server());
    memset(&desc, 0, sizeof desc);
    desc.conninfo = slow;
    desc.schema = schema;
    desc.log = quiet_log;
    assert_int_equal(jobq_pg_open(&handle, &desc, &error), JOBQ_OK);
    enqueue_count(3000);
    d.loop.vacuum_rows = 1000;
    w = start_on(handle, &d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM pg_stat_activity"
                               " WHERE state = 'active' AND query LIKE 'VACUUM%%'"));
    pid = number("SELECT pid FROM pg_stat_activity"
                 " WHERE state = 'active' AND query LIKE 'VACUUM%%'");
    asked = mono_us();
    stop(w);
    assert_true(mono_us() - asked < 10 * SECOND); /* it would take a minute and more */
    snprintf(backends, sizeof backends, "SELECT count(*) FROM pg_stat_activity WHERE pid = %ld",
             pid);
    assert_true(becomes(20, 0, backends));
    jobq_pg_close(handle);
}

static int fresh_counters(void **state)
{
    fresh(state);
    PQclear(sql(db, "SELECT pg_stat_reset_single_table_counters('jobq.job'::regclass)"));
    return 0;
}

#define TEST(test, set_up) cmocka_unit_test_setup_teardown(test, set_up, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(chores_have_bounds_of_their_own, fresh_counters),
        TEST(so_have_those_of_a_hosts_worker, fresh_counters),
        TEST(the_table_is_vacuumed_by_the_rows_that_ended, fresh),
        TEST(a_vacuum_is_cut_short_by_the_end, fresh),
    };

    return cmocka_run_group_tests_name("housekeeping", tests, pg_up, pg_down);
}
