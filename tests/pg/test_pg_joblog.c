/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_joblog.c -- the log of an attempt: with a success, with each other end, in a transaction
 * of the handler's own, its bounds, who may write it, and that it costs nothing without lines.
 */
#include "pg_work.h"

/* Says what it does and then does it: its payload names an outcome. */
static jobq_outcome says(jobq_call *call)
{
    char does = call->payload.ptr[1];
    bool first = ADD(runs) == 1;

    jobq_call_delay(call, 0);
    jobq_call_log(call, JOBQ_LEVEL_DEBUG, call->payload);
    jobq_call_log(call, JOBQ_LEVEL_WARNING, jobq_str_from(call->job.attempt > 1 ? "more" : "one"));
    if (does == 'r' && call->job.attempt == 1) return JOBQ_OUTCOME_RETRY;
    if (does == 's' && first) return JOBQ_OUTCOME_SNOOZE;
    if (does == 'c') return JOBQ_OUTCOME_CANCELLED;
    if (does == 'd') jobq_call_error(call, jobq_str_from("hopeless"));
    return does == 'd' ? JOBQ_OUTCOME_DISCARD : JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome says_with_a_result(jobq_call *call)
{
    jobq_call_log(call, JOBQ_LEVEL_INFO, jobq_str_from("left 7"));
    return jobq_call_result(call, jobq_str_from("7"), false) ? JOBQ_OUTCOME_SUCCESS
                                                             : JOBQ_OUTCOME_RETRY;
}

static jobq_outcome says_in_a_transaction(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    PQclear(PQexec(conn, "BEGIN"));
    jobq_call_log(call, JOBQ_LEVEL_ERROR, jobq_str_from("own"));
    return jobq_pg_call_commit(call, conn);
}

/* Two in three log, each what its payload holds. */
static jobq_outcome says_its_number(jobq_call *call)
{
    if (atoi(call->payload.ptr) % 3 > 0) jobq_call_log(call, JOBQ_LEVEL_INFO, call->payload);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome says_and_hangs(jobq_call *call)
{
    jobq_call_log(call, JOBQ_LEVEL_INFO, jobq_str_from("in time"));
    ADD(runs);
    while (!GET(gate)) nap_us(2000);
    jobq_call_log(call, JOBQ_LEVEL_INFO, jobq_str_from("too late"));
    ADD(others);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome says_too_much(jobq_call *call)
{
    char text[2 * JOBQ_LOG_LINE_MAX];
    jobq_str bad = {"a\xff\0\"\\z", 6}, all = {text, sizeof text};
    int i;

    for (i = 1; i <= 500; i++) {
        snprintf(text, sizeof text, "line %d", i);
        jobq_call_log(call, JOBQ_LEVEL_INFO, jobq_str_from(text));
    }
    memset(text, '\x01', sizeof text); /* takes six bytes in JSON, each */
    memcpy(text, "wide", 4);
    text[100] = '\n';
    if (call->payload.ptr[0] == '2') jobq_call_log(call, JOBQ_LEVEL_INFO, all);
    jobq_call_log(call, JOBQ_LEVEL_INFO, bad);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Level and text of all lines. */
#define LINES(log) "(SELECT string_agg(l ->> 1 || ':' || (l ->> 2), ' ') FROM " \
                   "jsonb_array_elements(" log ") l)"
#define ENTRIES "(SELECT string_agg(concat_ws('/', e ->> 'stage', e ->> 'attempt', " \
                "coalesce(e ->> 'error', '-'), " LINES("e -> 'log'") "), ' + ' ORDER BY n) " \
                "FROM jsonb_array_elements(errors) WITH ORDINALITY AS u (e, n))"
#define WHAT_IS_LEFT "SELECT concat_ws(' ', state, " ENTRIES ", 'log', " LINES("log") ") " \
                     "FROM jobq.jobs"

static void run_all(const jobq_pg_handler *h)
{
    jobq_pg_worker_desc d = work_of(h, 1);

    work_off(&d);
}

/* Runs one job of says. */
static void ends(const char *payload, int16_t stages, const char *wanted)
{
    jobq_pg_handler h = handler_of("q", "k", says);
    jobq_pg_job job = plain_job();

    RUN("TRUNCATE jobq.job, jobq.failed, jobq.history");
    SET(runs, 0);
    job.payload = jobq_str_from(payload);
    job.stages = stages;
    enqueue_with(&job);
    run_all(&h);
    expect_text(wanted, WHAT_IS_LEFT);
}

static void each_end_keeps_the_lines(void **unused)
{
    (void)unused;
    ends("\"good\"", 1, "succeeded log debug:\"good\" warning:one");
    ends("\"discard\"", 1, "failed 0/1/hopeless/debug:\"discard\" warning:one log");
    ends("\"retry\"", 1, "succeeded 0/1/retry/debug:\"retry\" warning:one log "
                         "debug:\"retry\" warning:more");
    ends("\"snooze\"", 1, "succeeded 0/1/-/debug:\"snooze\" warning:one log debug:\"snooze\" "
                          "warning:one");
    ends("\"cancel\"", 1, "cancelled 0/1/-/debug:\"cancel\" warning:one log");
    ends("\"good\"", 2, "succeeded 0/1/-/debug:\"good\" warning:one log debug:\"good\" "
                        "warning:one");
}

static void lines_have_times(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", says);

    (void)unused;
    enqueue_kind("k", "\"x\"");
    run_all(&h);
    assert_int_equal(number("SELECT bool_and((l ->> 0)::timestamptz BETWEEN "
                            "now() - interval '1 minute' AND now() + interval '1 second')::int "
                            "FROM jobq.past_jobs, jsonb_array_elements(log) l"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE log IS NOT NULL"), 1);
}

static void a_result_goes_beside_it(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", says_with_a_result);

    (void)unused;
    enqueue_count(1);
    run_all(&h);
    expect_text("7 info:left 7", "SELECT result::text || ' ' || " LINES("log") " FROM jobq.jobs");
}

static void a_transaction_of_its_own_takes_it_along(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", says_in_a_transaction);

    (void)unused;
    enqueue_count(1);
    run_all(&h);
    expect_text("succeeded log error:own", WHAT_IS_LEFT);
}

/* Of a batch, each job has its own, and those that said nothing have none. */
static void each_job_has_its_own_log(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", says_its_number);

    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k', to_jsonb(n)) FROM generate_series(1, 2000) n");
    run_all(&h);
    assert_int_equal(number("SELECT count(*) FROM jobq.past_jobs "
                            "WHERE (payload::int %% 3 > 0 AND log -> 0 ->> 2 = payload::text "
                            "AND jsonb_array_length(log) = 1) "
                            "OR (payload::int %% 3 = 0 AND log IS NULL)"), 2000);
}

static void without_lines_the_plain_statement_ends_jobs(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    int64_t until = mono_us() + 30 * SECOND;
    long ended;

    (void)unused;
    RUN(WITHOUT("_complete_with"));
    enqueue_count(50);
    start(&d); /* without that function it would end one job every few seconds */
    while ((ended = number("SELECT count(*) FROM jobq.history WHERE log IS NULL")) < 50 &&
           mono_us() < until)
        nap_us(5000);
    RUN(WITH_AGAIN("_complete_with"));
    assert_int_equal(ended, 50);
    assert_int_equal(GET(runs), 50);
}

static void a_log_alone_keeps_no_job(void **unused)
{
    jobq_pg_handler h[] = {handler_of("q", "k", says), handler_of("q", "kept", says_with_a_result)};
    jobq_pg_worker_desc d = work_of(h, 2);

    (void)unused;
    RUN("SELECT jobq.queue_set('q', history => false)");
    enqueue_kind("k", "\"x\"");
    enqueue_kind("kept", "\"x\"");
    work_off(&d);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    expect_text("kept info:left 7", "SELECT kind || ' ' || " LINES("log") " FROM jobq.jobs");
}

/* The handler is given up: what it had said until then is kept, and nothing of what follows. */
static void an_attempt_out_of_time_keeps_what_it_said(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", says_and_hangs);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();

    (void)unused;
    job.timeout_us = SECOND;
    job.max_attempts = 1;
    enqueue_with(&job);
    start(&d);
    assert_true(becomes(40, 1, "SELECT count(*) FROM jobq.failed"));
    SET(gate, 1);
    assert_true(reaches(20, &others, 1));
    assert_int_equal(number("SELECT jsonb_array_length(errors) FROM jobq.failed"), 1);
    expect_text("info:in time", "SELECT " LINES("errors -> 0 -> 'log'") " FROM jobq.failed");
}

static void a_worker_that_lost_the_job_writes_nothing(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", says_and_hangs);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    enqueue_count(1);
    start(&d);
    assert_true(reaches(20, &runs, 1));
    RUN("UPDATE jobq.job SET worker = 77, claim = 1, attempt = 2");
    SET(gate, 1);
    assert_true(reaches(20, &others, 1));
    assert_int_equal(stop(workers[0]).lost, 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE worker = 77 AND errors IS NULL"),
                     1);
    expect_text("l", "SELECT answer FROM jobq._complete_with('{77}', '{2}', ARRAY[(SELECT id FROM "
                     "jobq.job)], '{NULL}', '{NULL}', '{[]}')");
    expect_text("l", "SELECT answer FROM jobq._settle('{77}', '{2}', ARRAY[(SELECT id FROM "
                     "jobq.job)], '{f}', '{0}', '{1}', '{0}', '{f}', '{0}', '{x}', '{NULL}', "
                     "'{NULL}', p_logs => '{[]}')");
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE state = 'running'"), 1);
}

static void the_oldest_lines_make_room(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", says_too_much);

    (void)unused;
    enqueue_kind("k", "1");
    enqueue_kind("k", "2");
    run_all(&h);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE octet_length(log::text) "
                            "BETWEEN 4000 AND 9000"), 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE log -> -1 ->> 2 = "
                            "E'a\?\?\"\\\\z'"), 2);
    assert_int_equal(number("SELECT jsonb_array_length(log) + split_part(log -> 0 ->> 2, ' ', "
                            "1)::int FROM jobq.past_jobs WHERE payload = '1'"), 502);
    assert_int_equal(number("SELECT octet_length(log -> -2 ->> 2) FROM jobq.past_jobs "
                            "WHERE payload = '2'"), JOBQ_LOG_LINE_MAX);
    expect_text("lines dropped", "SELECT DISTINCT substr(log -> 0 ->> 2, 5) FROM jobq.past_jobs "
                                 "WHERE log -> 0 ->> 1 = 'warning'");
}

/* As a result: the attempt fails, and what the database refused goes. */
static void a_log_that_postgres_refuses_is_dropped(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", says);

    (void)unused;
    enqueue_kind("k", "\"good\"");
    RUN("UPDATE jobq.job SET max_attempts = 1");
    RUN("ALTER TABLE jobq.history ADD CONSTRAINT choosy CHECK (log IS NULL)");
    run_all(&h);
    RUN("ALTER TABLE jobq.history DROP CONSTRAINT choosy");
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE errors -> 0 ->> 'error' LIKE "
                            "'%%the database refused the result%%' "
                            "AND NOT errors -> 0 ? 'log'"), 1);
}

/* Adds entries to none: n says how many, entry is SQL that may use n. */
#define ADDED(n, entry) \
    "WITH RECURSIVE e (n, errors) AS (SELECT 0, NULL::jsonb UNION ALL SELECT n + 1, " \
    "jobq._add_error(errors, " entry ") FROM e WHERE n < " #n ") " \
    "SELECT %s FROM e ORDER BY n DESC LIMIT 1"
#define LOGGED "jsonb_build_object('error', n, 'log', jsonb_build_array(n))"
#define SAID "jsonb_build_object('n', n, 'log', jsonb_build_array(n))"
#define WITH_LOGS "(SELECT string_agg(x -> 'log' ->> 0, ' ') FROM jsonb_array_elements(errors) x)"

static void expect_added(const char *wanted, const char *query, const char *what)
{
    char text[1000];

    snprintf(text, sizeof text, query, what);
    expect_text(wanted, text);
}

static void the_last_ten_entries_keep_their_logs(void **unused)
{
    (void)unused;
    expect_added("0 1 2 3 4 5 6 7 8 9", ADDED(10, LOGGED), WITH_LOGS);
    expect_added("1 2 3 4 5 6 7 8 9 10", ADDED(11, LOGGED), WITH_LOGS);
    expect_added("11", ADDED(11, LOGGED), "jsonb_array_length(errors)");
    expect_added("0", ADDED(11, LOGGED), "errors -> 0 ->> 'error'");
    expect_added("190 191 192 193 194 195 196 197 198 199", ADDED(200, LOGGED), WITH_LOGS);
    expect_added("150", ADDED(200, LOGGED), "errors -> 10 ->> 'dropped'");
    expect_added("51", ADDED(200, LOGGED), "jsonb_array_length(errors)");
    expect_added("190 191 192 193 194 195 196 197 198 199", ADDED(200, SAID), WITH_LOGS);
    expect_added("10", ADDED(200, SAID), "jsonb_array_length(errors)");
    expect_added("{\"error\": 1}", ADDED(1, "jsonb_build_object('error', 1, 'log', "
                                            "jsonb_build_array(repeat('x', 17000)))"),
                 "errors -> 0");
}

static void operators_read_failures_with_lines(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", says);

    (void)unused;
    enqueue_kind("k", "\"snooze, discard\"");
    RUN("UPDATE jobq.job SET payload = '\"discard\"', errors = '[{\"at\": \"then\", \"stage\": 0, "
        "\"attempt\": 1, \"log\": []}]'");
    run_all(&h);
    expect_text("then  stage 0, attempt 1: no error",
                "SELECT split_part(errors, E'\\n', 1) FROM jobq.failures");
    expect_text("hopeless", "SELECT error FROM jobq.failures");
}

#undef TEST
#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh, all_stop)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(each_end_keeps_the_lines),
        TEST(lines_have_times),
        TEST(a_result_goes_beside_it),
        TEST(a_transaction_of_its_own_takes_it_along),
        TEST(each_job_has_its_own_log),
        TEST(without_lines_the_plain_statement_ends_jobs),
        TEST(a_log_alone_keeps_no_job),
        TEST(an_attempt_out_of_time_keeps_what_it_said),
        TEST(a_worker_that_lost_the_job_writes_nothing),
        TEST(the_oldest_lines_make_room),
        TEST(a_log_that_postgres_refuses_is_dropped),
        TEST(the_last_ten_entries_keep_their_logs),
        TEST(operators_read_failures_with_lines),
    };

    return cmocka_run_group_tests_name("joblog", tests, pg_up, pg_down);
}
