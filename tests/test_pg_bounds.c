/*
 * Vacuum and prune with a role whose time-outs are too short for them: with threads, and in the
 * host's loop. test_pg_pooler.c does the same behind a pooler.
 */
#include "hasty.h"

static int runs;

static jobq_outcome counts(jobq_call *call)
{
    (void)call;
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_pg *hasty_handle(void)
{
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *made;

    memset(&desc, 0, sizeof desc);
    desc.conninfo = hasty_conninfo;
    desc.schema = schema;
    desc.log = quiet_log;
    if (jobq_pg_open(&made, &desc, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return made;
}

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
    jobq_pg_handler h = handler_of("q", "k", counts);
    jobq_pg_worker_desc d = busy_worker(&h);
    jobq_pg *handle;

    (void)unused;
    hasty_begin();
    handle = hasty_handle();
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
    jobq_pg_handler h = handler_of("q", "k", counts);
    jobq_pg_worker_desc d = busy_worker(&h);
    int64_t until = mono_us() + 60 * SECOND;
    jobq_pg_worker *worker;
    jobq_pg_error error;
    jobq_pg *handle;

    (void)unused;
    hasty_begin();
    handle = hasty_handle();
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

static int fresh(void **state)
{
    pg_empty(state);
    PQclear(sql(db, "SELECT pg_stat_reset_single_table_counters('jobq.job'::regclass)"));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(chores_have_bounds_of_their_own, fresh, all_stop),
        cmocka_unit_test_setup_teardown(so_have_those_of_a_hosts_worker, fresh, all_stop),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
