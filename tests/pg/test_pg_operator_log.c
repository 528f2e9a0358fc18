/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_operator_log.c -- the view operator_log: who changed what with the verbs of operators.
 */
#include "pg.h"

#define LOG                                                                                        \
    "SELECT coalesce(string_agg(concat_ws(' ', verb, arguments, jobs), '; ' ORDER BY id), '')"     \
    " FROM jobq.operator_log"

/* What the log says since the latest call. */
static void logged(const char *wanted)
{
    expect_text(wanted, LOG);
    RUN("TRUNCATE jobq.operation");
}

static void fail_all(void)
{
    RUN("SELECT jobq._finish(ARRAY(SELECT id FROM jobq.job), 'f', '{}')");
}

static void a_verb_on_one_job_is_logged(void **unused)
{
    int64_t id;
    char wanted[160];

    (void)unused;
    RUN("ALTER SEQUENCE jobq.job_id RESTART 101");
    RUN("SELECT jobq.queue_set('r', max_attempts => 2)");
    enqueue_count(1);
    id = number("SELECT id FROM jobq.job");
    assert_int_equal(id, 101);
    RUN("SELECT jobq.prioritize(101, 3)");
    logged("prioritize {\"id\": 101, \"priority\": 3} 1");
    RUN("SELECT jobq.reschedule(101)");
    logged("reschedule {\"id\": 101} 1");
    RUN("SELECT jobq.move(101, 'r')");
    logged("move {\"id\": 101, \"target\": \"r\"} 1");
    fail_all();
    RUN("SELECT jobq.revive(101)");
    logged("revive {\"id\": 101} 1");
    RUN("SELECT jobq.cancel(101)");
    logged("cancel {\"id\": 101} 1");
    RUN("SELECT jobq.delete(101)");
    snprintf(wanted, sizeof wanted, "delete {\"id\": %lld} 1", (long long)id);
    logged(wanted);
}

static void a_verb_on_many_jobs_is_logged(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('r', max_attempts => 2)");
    enqueue_count(7);
    RUN("SELECT jobq.prioritize('q', 3, at_most => 2)");
    logged("prioritize {\"queue\": \"q\", \"priority\": 3} 2");
    RUN("SELECT jobq.reschedule('q', '2031-01-01 00:00Z', kind => 'k')");
    assert_int_equal(number("SELECT jobs FROM jobq.operator_log"), 7);
    RUN("TRUNCATE jobq.operation");
    RUN("SELECT jobq.move('q', 'r')");
    logged("move {\"queue\": \"q\", \"target\": \"r\"} 7");
    fail_all();
    RUN("SELECT jobq.revive('r', at_most => 6)");
    logged("revive {\"queue\": \"r\"} 6");
    RUN("SELECT jobq.cancel('r', older => '-1 day')");
    logged("cancel {\"older\": \"-1 days\", \"queue\": \"r\"} 6");
    RUN("SELECT jobq.delete('r', 'cancelled')");
    logged("delete {\"queue\": \"r\", \"state\": \"cancelled\"} 6");
    RUN("SELECT jobq.pause('r'), jobq.resume('r', 'k')");
    logged("pause {\"queue\": \"r\"}; resume {\"kind\": \"k\", \"queue\": \"r\"}");
    RUN("SELECT jobq.queue_set('r', kind => 'k', paused => true)");
    RUN("SELECT jobq.queue_set('r', paused => false)");
    logged("pause {\"kind\": \"k\", \"queue\": \"r\"}; resume {\"queue\": \"r\"}");
}

/* Refusals, steps that find nothing more, and what producers and schedules do. */
static void what_changed_nothing_is_not_logged(void **unused)
{
    (void)unused;
    enqueue_count(1);
    RUN("SELECT jobq.revive(id), jobq.revive(123456), jobq.cancel(123456) FROM jobq.job");
    RUN("SELECT jobq.revive('q'), jobq.cancel('q', tags => '{\"a\": 1}')");
    logged("");
    RUN("SELECT jobq.cancel('q')");
    RUN("TRUNCATE jobq.operation");
    RUN("SELECT jobq.cancel(h.id), jobq.revive(h.id), jobq.move(h.id, 'q') FROM jobq.history h");
    logged("");
    RUN("SELECT jobq.enqueue('q', 'k', key => 'a')");
    RUN("SELECT jobq.enqueue('q', 'k', key => 'a', on_known => 'cancel')");
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 2);
    logged("");
}

/* The role that logged in, although the verbs run with the rights of the schema's owner. */
static void it_tells_who_and_from_where(void **unused)
{
    char role[40];

    (void)unused;
    snprintf(role, sizeof role, "jobq_log_%d", (int)getpid());
    RUN("CREATE ROLE %s LOGIN", role);
    RUN("SELECT jobq.grant_operate('%s')", role);
    enqueue_count(1);
    RUN("SET application_name = 'the console'");
    RUN("SET SESSION AUTHORIZATION %s", role);
    RUN("SELECT jobq.cancel('q')");
    RUN("RESET SESSION AUTHORIZATION; RESET application_name");
    RUN("UPDATE jobq.operation SET role = 'the operator' WHERE role = '%s'", role);
    expect_text("the operator the console t", "SELECT concat_ws(' ', role, application,"
                                              " now() - at < '1 min') FROM jobq.operator_log");
    RUN("DROP OWNED BY %s; DROP ROLE %s", role, role);
}

/* The SQLSTATE of a statement as a role; empty: it was well. */
static const char *as(const char *role, const char *statement)
{
    static char state[6];
    char *text = for_schema(statement, schema);
    PGresult *res;

    RUN("BEGIN; SET LOCAL ROLE %s", role);
    res = PQexec(db, text);
    snprintf(state, sizeof state, "%s",
             PQresultStatus(res) == PGRES_FATAL_ERROR ? PQresultErrorField(res, PG_DIAG_SQLSTATE)
                                                      : "");
    PQclear(res);
    free(text);
    RUN("ROLLBACK");
    return state;
}

static void readers_may_read_it_and_nobody_may_write_it(void **unused)
{
    char role[40];

    (void)unused;
    snprintf(role, sizeof role, "jobq_log_%d", (int)getpid());
    RUN("CREATE ROLE %s LOGIN", role);
    RUN("SELECT jobq.grant_enqueue('%s')", role);
    assert_string_equal(as(role, "SELECT * FROM jobq.operator_log"), "42501");
    RUN("SELECT jobq.grant_read('%s', payloads => false)", role);
    assert_string_equal(as(role, "SELECT * FROM jobq.operator_log"), "");
    RUN("SELECT jobq.grant_operate('%s')", role);
    assert_string_equal(as(role, "SELECT jobq._operated('x', '{}', 1)"), "42501");
    assert_string_equal(as(role, "DELETE FROM jobq.operator_log"), "42501");
    assert_string_equal(as(role, "DELETE FROM jobq.operation"), "42501");
    RUN("DROP OWNED BY %s; DROP ROLE %s", role, role);
}

static void prune_keeps_the_newest(void **unused)
{
    (void)unused;
    RUN("SELECT count(jobq._operated('x', '{}', n)) FROM generate_series(1, 10025) AS n");
    RUN("SELECT jobq.prune(10)");
    assert_int_equal(number("SELECT count(*) FROM jobq.operator_log"), 10015);
    RUN("SELECT jobq.prune(1000)");
    assert_int_equal(number("SELECT count(*) FROM jobq.operator_log"), 10000);
    assert_int_equal(number("SELECT max(jobs) FROM jobq.operator_log"), 10025);
}

#define TEST(f) cmocka_unit_test_setup(f, pg_empty)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(a_verb_on_one_job_is_logged),
        TEST(a_verb_on_many_jobs_is_logged),
        TEST(what_changed_nothing_is_not_logged),
        TEST(it_tells_who_and_from_where),
        TEST(readers_may_read_it_and_nobody_may_write_it),
        TEST(prune_keeps_the_newest),
    };

    return cmocka_run_group_tests_name("operator_log", tests, pg_up, pg_down);
}
