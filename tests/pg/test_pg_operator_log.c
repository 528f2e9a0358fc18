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
    RUN("SELECT jobq.queue_set('r')");
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
    RUN("SELECT jobq.queue_set('r')");
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
    RUN("SELECT jobq.cancel('r', older => '0')");
    logged("cancel {\"older\": \"00:00:00\", \"queue\": \"r\"} 6");
    RUN("SELECT jobq.delete('r', 'cancelled')");
    logged("delete {\"queue\": \"r\", \"state\": \"cancelled\"} 6");
    RUN("SELECT jobq.pause('r'), jobq.resume('r', 'k')");
    logged("pause {\"queue\": \"r\"}; resume {\"kind\": \"k\", \"queue\": \"r\"}");
    RUN("SELECT jobq.queue_set('r', kind => 'k', paused => true)");
    RUN("SELECT jobq.queue_set('r', paused => false)");
    logged("pause {\"kind\": \"k\", \"queue\": \"r\"}; resume {\"queue\": \"r\"}");
}

/* A statement that calls a verb for each of many jobs is one call. */
static void the_calls_of_a_statement_are_one_row(void **unused)
{
    (void)unused;
    RUN("ALTER SEQUENCE jobq.job_id RESTART 101");
    enqueue_count(4);
    RUN("SELECT jobq.cancel(id) FROM unnest('{101,102,7,103}'::bigint[]) AS u (id)");
    logged("cancel {\"ids\": [101, 102, 103]} 3");
    RUN("SELECT jobq.prioritize(104, 3), jobq.prioritize(104, 4), jobq.prioritize(104, 4)");
    logged("prioritize {\"id\": 104, \"priority\": 3} 1; "
           "prioritize {\"ids\": [104, 104], \"priority\": 4} 2");
    RUN("BEGIN; SELECT jobq.prioritize(104, 3)");
    RUN("SELECT jobq.prioritize(104, 3); COMMIT");
    assert_int_equal(number("SELECT count(*) FROM jobq.operation"), 2);
    RUN("TRUNCATE jobq.operation");
    enqueue_count(1500);
    RUN("SELECT jobq.delete(id) FROM jobq.job");
    expect_text("1000 501", "SELECT string_agg(jobs::text, ' ' ORDER BY id) FROM jobq.operation");
}

/* A step of an operation, in a transaction of its own. last: what the step before left. */
static const char *step(const char *verb, const char *last)
{
    static char operation[24];

    RUN("BEGIN; SELECT set_config('jobq_log.bulk', '{\"of\": \"all\"}', true), "
        "set_config('jobq_log.operation', '%s', true)", last);
    RUN("SELECT %s", verb);
    snprintf(operation, sizeof operation, "%lld",
             (long long)number("SELECT current_setting('jobq_log.operation')"));
    RUN("COMMIT");
    return operation;
}

/* What a program does in steps is one row, but not together with what others do. */
static void the_steps_of_a_bulk_are_one_row(void **unused)
{
    const char *last;

    (void)unused;
    enqueue_count(7);
    last = step("jobq.prioritize(id, 3) FROM (SELECT id FROM jobq.job ORDER BY id LIMIT 3) d", "");
    last = step("jobq.prioritize(id, 3) FROM jobq.job WHERE priority = 0", last);
    logged("prioritize {\"of\": \"all\", \"priority\": 3} 7");
    last = step("jobq.cancel('q', at_most => 2)", last);
    last = step("jobq.cancel('q', at_most => 2)", last);
    RUN("SELECT jobq.cancel('q', at_most => 1)");
    RUN("SET application_name = 'another'");
    last = step("jobq.cancel('q', at_most => 1)", last);
    RUN("RESET application_name");
    last = step("jobq.delete('q', 'cancelled', at_most => 1)", last);
    logged("cancel {\"of\": \"all\", \"queue\": \"q\"} 4; cancel {\"queue\": \"q\"} 1; "
           "cancel {\"of\": \"all\", \"queue\": \"q\"} 1; "
           "delete {\"of\": \"all\", \"queue\": \"q\", \"state\": \"cancelled\"} 1");
}

/* What is new, and nothing if nothing is. */
static void settings_are_logged(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', kinds => '{k}')");
    RUN("TRUNCATE jobq.operation");
    RUN("SELECT jobq.queue_set('q', max_attempts => 20, kinds => '{k}')");
    logged("");
    RUN("SELECT jobq.queue_set('q', max_attempts => 2, running_max => 3)");
    logged("queue_set {\"queue\": \"q\", \"running_max\": 3, \"max_attempts\": 2}");
    RUN("SELECT jobq.queue_set('q', kind => 'k', timeout => '1 s', running_max => 3)");
    logged("queue_set {\"kind\": \"k\", \"queue\": \"q\", \"timeout_us\": 1000000, "
           "\"running_max\": 3}");
    RUN("SELECT jobq.queue_set('q', kind => 'k', reset => true)");
    logged("queue_set {\"kind\": \"k\", \"queue\": \"q\", \"timeout_us\": null, "
           "\"running_max\": null}");
    RUN("SELECT jobq.line_set('q', 'ann', weight => 3)");
    logged("line_set {\"line\": \"ann\", \"queue\": \"q\", \"weight\": 3}");
    RUN("SELECT jobq.line_set('q', 'ann', weight => 3)");
    logged("");
    RUN("SELECT jobq.retention_set('short', '2 hours')");
    logged("retention_set {\"keep\": \"02:00:00\", \"retention\": \"short\"}");
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 hour', payload => '{\"secret\": 1}')");
    expect_text("schedule s 3600000000 changed t", "SELECT concat_ws(' ', verb, arguments ->> "
                "'name', arguments ->> 'every_us', arguments ->> 'payload', jobs IS NULL) "
                "FROM jobq.operation");
    RUN("TRUNCATE jobq.operation");
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 hour', payload => '{\"secret\": 1}')");
    RUN("SELECT jobq.schedule('o', 'q', 'k', every => '1 hour', owner => 'program')");
    logged("");
    RUN("SELECT jobq.schedule_pause('s'), jobq.schedule_pause('s')");
    RUN("SELECT jobq.schedule_resume('s'), jobq.schedule_resume('s')");
    RUN("SELECT jobq.schedule_drop('s'), jobq.schedule_drop('s')");
    logged("schedule_pause {\"name\": \"s\"}; schedule_resume {\"name\": \"s\"}; "
           "schedule_drop {\"name\": \"s\"}");
    RUN("SELECT jobq.schedule_run('o')");
    assert_int_equal(number("SELECT (arguments -> 'wrote')::bigint - (SELECT max(id) FROM jobq.job)"
                            " FROM jobq.operation WHERE verb = 'schedule_run'"), 0);
}

static void what_becomes_of_dead_letters_is_logged(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.outbox_register('o', 1)");
    RUN("INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at, "
        "attempts) SELECT queue_id, id, n, now(), now(), 3 FROM jobq.partition, "
        "generate_series(1, 5) n");
    RUN("SELECT jobq.dead_letter_replay(7, 1000000, 'o', at_most => 2)");
    logged("");
    RUN("SELECT jobq.dead_letter_resolve(7, ARRAY(SELECT id FROM jobq.dead_letter))");
    logged("dead_letter_resolve {\"queue\": \"o\"} 2");
    RUN("SELECT jobq.dead_letter_discard('o', id => max(id)) FROM jobq.dead_letter");
    expect_text("1 {\"queue\": \"o\"} t", "SELECT concat_ws(' ', jobs, arguments - 'id', "
                "(arguments ->> 'id')::bigint = (SELECT max(id) FROM jobq.dead_letter)) "
                "FROM jobq.operator_log");
    RUN("TRUNCATE jobq.operation");
    RUN("SELECT jobq.dead_letter_discard('o'), jobq.dead_letter_discard('o')");
    logged("dead_letter_discard {\"queue\": \"o\"} 2");
    RUN("SELECT jobq.dead_letter_cleanup('o')");
    logged("dead_letter_cleanup {\"queue\": \"o\"} 5");
    RUN("SELECT jobq.outbox_grow('o', 2), jobq.outbox_grow('o', 2)");
    logged("outbox_grow {\"queue\": \"o\", \"partitions\": 2}");
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
        TEST(the_calls_of_a_statement_are_one_row),
        TEST(the_steps_of_a_bulk_are_one_row),
        TEST(settings_are_logged),
        TEST(what_becomes_of_dead_letters_is_logged),
        TEST(what_changed_nothing_is_not_logged),
        TEST(it_tells_who_and_from_where),
        TEST(readers_may_read_it_and_nobody_may_write_it),
        TEST(prune_keeps_the_newest),
    };

    return cmocka_run_group_tests_name("operator_log", tests, pg_up, pg_down);
}
