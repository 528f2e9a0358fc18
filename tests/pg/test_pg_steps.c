/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_steps.c -- steps of a job, signals, and jobs that wait for what they have enqueued.
 */
#include "pg_work.h"

static int effects;         /* what steps did outside the database */
static int code_seen;       /* a jobq_error that a handler got */
static char value_seen[100];
static int64_t timeout_us;  /* of jobq_call_signal */
static int fails;           /* how many more attempts fail after their step */

static void keep_value(jobq_str value)
{
    snprintf(value_seen, sizeof value_seen, "%.*s", (int)value.len,
             value.ptr == NULL ? "" : value.ptr);
}

/* Runs SQL, in a handler too. A statement that fails shows in what follows. */
static void run_on_conn(PGconn *conn, const char *text)
{
    char *full = for_schema(text, schema);
    PGresult *res = PQexec(conn, full);

    if (PQresultStatus(res) == PGRES_FATAL_ERROR)
        fprintf(stderr, "%s: %s", full, PQresultErrorMessage(res));
    PQclear(res);
    free(full);
}

static int start_over(void **state)
{
    effects = fails = 0;
    code_seen = -1;
    value_seen[0] = '\0';
    timeout_us = JOBQ_HOURS(1);
    if (fresh(state) != 0) return 1;
    RUN("ALTER SEQUENCE jobq.job_id RESTART");
    return 0;
}

static void work_kind(jobq_handler run)
{
    jobq_pg_handler h = handler_of("q", "k", run);
    jobq_pg_worker_desc d = work_of(&h, 1);

    work_off(&d);
}

static void state_is(int64_t id, const char *state)
{
    char *text = text_of("SELECT state FROM jobq.jobs WHERE id = %lld", (long long)id);

    assert_string_equal(text, state);
    free(text);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Charges once, then fails as often as the test says. */
static jobq_outcome charges(jobq_call *call)
{
    jobq_str receipt;
    jobq_error code = jobq_call_step(call, "charge", &receipt);

    ADD(runs);
    SET(code_seen, (int)code);
    if (code == JOBQ_ERROR_NOT_FOUND) {
        ADD(effects);
        if (jobq_call_step_done(call, "charge", jobq_str_from("{\"receipt\": 7}")) != JOBQ_OK)
            return JOBQ_OUTCOME_DISCARD;
    } else if (code != JOBQ_OK) return JOBQ_OUTCOME_DISCARD;
    keep_value(receipt);
    if (GET(fails) == 0) return JOBQ_OUTCOME_SUCCESS;
    SET(fails, GET(fails) - 1);
    jobq_call_delay(call, 0);
    return JOBQ_OUTCOME_RETRY;
}

static void a_step_is_done_once(void **unused)
{
    (void)unused;
    enqueue_count(1);
    fails = 2;
    work_kind(charges);
    assert_int_equal(runs, 3);
    assert_int_equal(effects, 1);
    assert_int_equal(code_seen, JOBQ_OK);
    assert_string_equal(value_seen, "{\"receipt\": 7}");
    state_is(1, "succeeded");
}

/* A job that failed keeps its steps for its revival. */
static void a_revived_job_does_not_repeat_its_steps(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;

    (void)unused;
    job.max_attempts = 1;
    enqueue_with(&job);
    fails = 1;
    work_kind(charges);
    state_is(1, "failed");
    assert_int_equal(jobq_pg_revive(pg, NULL, ONE(1), NULL, &error), JOBQ_OK);
    work_kind(charges);
    state_is(1, "succeeded");
    assert_int_equal(runs, 2);
    assert_int_equal(effects, 1);
}

/* A step of one stage is known in the next. */
static void stages_share_steps(void **unused)
{
    jobq_pg_job job = plain_job();

    (void)unused;
    job.stages = 3;
    enqueue_with(&job);
    work_kind(charges);
    assert_int_equal(runs, 3);
    assert_int_equal(effects, 1);
}

static jobq_outcome many_steps(jobq_call *call)
{
    jobq_str first, second, none;
    char wrong[JOBQ_NAME_MAX + 2];

    memset(wrong, 'x', sizeof wrong);
    wrong[sizeof wrong - 1] = '\0';
    if (jobq_call_step_done(call, "a", jobq_str_from("\"\xc3\xa4 \\u0041\"")) != JOBQ_OK ||
        jobq_call_step_done(call, "b'\"", jobq_str_from(NULL)) != JOBQ_OK ||
        jobq_call_step_done(call, "c", jobq_str_from("null")) != JOBQ_OK ||
        jobq_call_step_done(call, "a", jobq_str_from("[1, 2]")) != JOBQ_OK)
        return JOBQ_OUTCOME_DISCARD;
    if (jobq_call_step(call, "a", &first) != JOBQ_OK ||
        jobq_call_step(call, "b'\"", &second) != JOBQ_OK ||
        jobq_call_step(call, "c", &none) != JOBQ_OK ||
        jobq_call_step(call, "d", NULL) != JOBQ_ERROR_NOT_FOUND ||
        jobq_call_step(call, "", NULL) != JOBQ_ERROR_INVALID ||
        jobq_call_step(call, wrong, NULL) != JOBQ_ERROR_INVALID ||
        jobq_call_step_done(call, "e", jobq_str_from("{")) != JOBQ_ERROR_INVALID ||
        second.ptr != NULL || none.ptr != NULL)
        return JOBQ_OUTCOME_DISCARD;
    keep_value(first); /* it is still there */
    return JOBQ_OUTCOME_SUCCESS;
}

static void steps_have_names_and_values(void **unused)
{
    (void)unused;
    enqueue_count(1);
    work_kind(many_steps);
    state_is(1, "succeeded");
    assert_string_equal(value_seen, "[1, 2]");
}

static jobq_outcome too_large(jobq_call *call)
{
    static char large[600000];
    jobq_str value = {large, sizeof large};

    memset(large, 'x', sizeof large);
    large[0] = large[sizeof large - 1] = '"';
    if (jobq_call_step_done(call, "a", value) != JOBQ_OK) return JOBQ_OUTCOME_DISCARD;
    SET(code_seen, (int)jobq_call_step_done(call, "b", value));
    return JOBQ_OUTCOME_SUCCESS;
}

static void the_steps_of_a_job_have_a_size(void **unused)
{
    (void)unused;
    enqueue_count(1);
    work_kind(too_large);
    state_is(1, "succeeded");
    assert_int_equal(code_seen, JOBQ_ERROR_INVALID);
}

/* A worker that has lost the job writes no step, and is told. */
static jobq_outcome is_robbed(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    if (ADD(runs) > 1) return JOBQ_OUTCOME_SUCCESS;
    run_on_conn(conn, "UPDATE jobq.job SET claim = claim + 100");
    SET(code_seen, (int)jobq_call_step_done(call, "x", jobq_str_from(NULL)));
    if (jobq_call_step(call, "x", NULL) != JOBQ_ERROR_LOST ||
        jobq_call_signal(call, "x", 1, NULL) != JOBQ_ERROR_LOST) SET(code_seen, -2);
    run_on_conn(conn, "UPDATE jobq.job SET claim = claim - 100");
    return JOBQ_OUTCOME_SUCCESS;
}

static void a_worker_without_the_job_writes_no_step(void **unused)
{
    (void)unused;
    enqueue_count(1);
    work_kind(is_robbed);
    assert_int_equal(code_seen, JOBQ_ERROR_LOST);
    state_is(1, "succeeded");
}

/* A step in the handler's own transaction, with what it writes; the first attempt rolls back. */
static jobq_outcome writes_a_row(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    jobq_error code = jobq_call_step(call, "row", NULL);

    ADD(runs);
    if (code == JOBQ_OK) return JOBQ_OUTCOME_SUCCESS;
    run_on_conn(conn, "BEGIN");
    run_on_conn(conn, "INSERT INTO jobq.effect VALUES (1)");
    code = jobq_pg_call_step_done(call, conn, "row", jobq_str_from("1"), &error);
    if (code != JOBQ_OK) SET(code_seen, (int)code);
    run_on_conn(conn, GET(runs) == 1 ? "ROLLBACK" : "COMMIT");
    jobq_call_delay(call, 0);
    return JOBQ_OUTCOME_RETRY;
}

static void a_step_in_a_transaction_happens_exactly_once(void **unused)
{
    (void)unused;
    RUN("CREATE TABLE jobq.effect (n int)");
    enqueue_count(1);
    work_kind(writes_a_row);
    assert_int_equal(code_seen, -1);
    assert_int_equal(runs, 3);
    state_is(1, "succeeded");
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 1);
    RUN("DROP TABLE jobq.effect");
}

/* Sleeps between two steps: in the database, so no thread and no worker is needed meanwhile. */
static jobq_outcome sleeps(jobq_call *call)
{
    ADD(runs);
    if (jobq_call_step(call, "slept", NULL) == JOBQ_OK)
        return jobq_call_step(call, "charge", NULL) == JOBQ_OK ? JOBQ_OUTCOME_SUCCESS
                                                               : JOBQ_OUTCOME_DISCARD;
    ADD(effects);
    if (jobq_call_step_done(call, "charge", jobq_str_from(NULL)) != JOBQ_OK ||
        jobq_call_step_done(call, "slept", jobq_str_from(NULL)) != JOBQ_OK)
        return JOBQ_OUTCOME_DISCARD;
    jobq_call_delay(call, JOBQ_DAYS(3));
    return JOBQ_OUTCOME_SNOOZE;
}

static void a_job_sleeps_between_its_steps(void **unused)
{
    (void)unused;
    enqueue_count(1);
    work_kind(sleeps);
    expect_text("ready 0 3", "SELECT concat_ws(' ', state, attempt, round(extract(epoch FROM "
                             "run_at - now()) / 86400)) FROM jobq.jobs");
    RUN("UPDATE jobq.job SET run_at = run_at - interval '73 hours'");
    work_kind(sleeps);
    state_is(1, "succeeded");
    assert_int_equal(runs, 2);
    assert_int_equal(effects, 1);
}

/* While its own transaction has the job's row, a handler may ask, but not write elsewhere. */
static jobq_outcome steps_beside_itself(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    if (jobq_pg_call_step_done(call, conn, "a", jobq_str_from("1"), &error) !=
        JOBQ_ERROR_INVALID) return JOBQ_OUTCOME_DISCARD; /* no transaction is open */
    run_on_conn(conn, "BEGIN");
    if (jobq_pg_call_step_done(call, conn, "a", jobq_str_from("1"), &error) != JOBQ_OK ||
        jobq_call_step(call, "a", NULL) != JOBQ_ERROR_NOT_FOUND ||
        jobq_call_step_done(call, "b", jobq_str_from("1")) == JOBQ_OK) return JOBQ_OUTCOME_DISCARD;
    run_on_conn(conn, "COMMIT");
    return jobq_call_step(call, "a", NULL) == JOBQ_OK ? JOBQ_OUTCOME_SUCCESS
                                                      : JOBQ_OUTCOME_DISCARD;
}

static void a_handler_does_not_wait_for_itself(void **unused)
{
    (void)unused;
    enqueue_count(1);
    work_kind(steps_beside_itself);
    state_is(1, "succeeded");
}

/* ---- signals --------------------------------------------------------------------------------- */

static jobq_outcome awaits(jobq_call *call)
{
    jobq_str payload;
    jobq_error code = jobq_call_signal(call, "order-7/paid", timeout_us, &payload);

    ADD(runs);
    SET(code_seen, (int)code);
    if (code == JOBQ_ERROR_NOT_FOUND) return JOBQ_OUTCOME_SNOOZE;
    keep_value(payload);
    return code == JOBQ_OK || code == JOBQ_ERROR_TIMEOUT ? JOBQ_OUTCOME_SUCCESS
                                                         : JOBQ_OUTCOME_DISCARD;
}

static bool send(jobq_str payload)
{
    jobq_pg_error error;
    bool first = false;

    if (jobq_pg_signal(pg, NULL, "order-7/paid", payload, &first, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    return first;
}

static void a_signal_wakes_the_job_that_waits_for_it(void **unused)
{
    (void)unused;
    enqueue_count(1);
    work_kind(awaits);
    assert_int_equal(code_seen, JOBQ_ERROR_NOT_FOUND);
    expect_text("ready 0", "SELECT state || ' ' || attempt FROM jobq.jobs");
    expect_text("it waits for the signal 'order-7/paid'",
                "SELECT reason FROM jobq.explain_job(1) LIMIT 1");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    assert_true(send(jobq_str_from("{\"cents\": 900}")));
    assert_false(send(jobq_str_from("{\"cents\": 1}")));
    work_kind(awaits);
    assert_int_equal(runs, 2);
    assert_string_equal(value_seen, "{\"cents\": 900}");
    state_is(1, "succeeded");
    assert_int_equal(number("SELECT count(*) FROM jobq.signal_wait"), 0);
}

/* A signal is part of the transaction that sends it. */
static void a_signal_that_was_rolled_back_was_not_sent(void **unused)
{
    jobq_pg_error error;
    PGconn *conn = NULL;
    bool first = false;
    int i;

    (void)unused;
    enqueue_count(1);
    work_kind(awaits);
    assert_int_equal(jobq_pg_acquire(pg, &conn, &error), JOBQ_OK);
    for (i = 0; i < 2; i++) {
        run_on_conn(conn, "BEGIN");
        assert_int_equal(jobq_pg_signal(pg, conn, "order-7/paid", jobq_str_from(i ? "2" : "1"),
                                        &first, &error), JOBQ_OK);
        assert_true(first);
        run_on_conn(conn, i == 0 ? "ROLLBACK" : "COMMIT");
        work_kind(awaits);
        assert_int_equal(runs, i + 1);
    }
    jobq_pg_release(pg, conn);
    assert_string_equal(value_seen, "2");
}

static void a_signal_that_came_before_is_there(void **unused)
{
    (void)unused;
    enqueue_count(1);
    send(jobq_str_from(NULL));
    work_kind(awaits);
    assert_int_equal(runs, 1);
    assert_int_equal(code_seen, JOBQ_OK);
    assert_string_equal(value_seen, "");
}

static void without_the_signal_the_time_ends(void **unused)
{
    (void)unused;
    timeout_us = 300000;
    enqueue_count(1);
    work_kind(awaits);
    assert_int_equal(code_seen, JOBQ_ERROR_NOT_FOUND);
    nap_us(320000);
    work_kind(awaits);
    assert_int_equal(runs, 2);
    assert_int_equal(code_seen, JOBQ_ERROR_TIMEOUT);
}

/* An operator who runs the job early does not end its time. */
static void the_time_counts_from_the_first_call(void **unused)
{
    jobq_pg_error error;
    int64_t until;

    (void)unused;
    enqueue_count(1);
    work_kind(awaits);
    until = number("SELECT extract(epoch FROM until)::bigint FROM jobq.signal_wait");
    assert_int_equal(jobq_pg_change(pg, NULL, ONE(1), &(jobq_pg_changes){.run_now = true}, NULL,
                                    &error), JOBQ_OK);
    nap_us(1100000);
    work_kind(awaits);
    assert_int_equal(code_seen, JOBQ_ERROR_NOT_FOUND);
    assert_int_equal(until, number("SELECT extract(epoch FROM until)::bigint "
                                   "FROM jobq.signal_wait"));
    assert_in_range(number("SELECT extract(epoch FROM run_at)::bigint FROM jobq.job"), until - 1,
                    until + 1);
}

/* The signal is sent while the handler, which has not found it, still runs. */
static jobq_outcome is_signalled_meanwhile(jobq_call *call)
{
    jobq_outcome outcome = awaits(call);

    if (GET(runs) == 1) {
        ADD(others);
        while (!GET(gate)) nap_us(1000);
    }
    return outcome;
}

static void a_signal_during_the_attempt_is_not_lost(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", is_signalled_meanwhile);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *w;

    (void)unused;
    enqueue_count(1);
    w = start(&d);
    assert_true(reaches(20, &others, 1));
    send(jobq_str_from("1"));
    RUN("SELECT jobq._promote(100)"); /* so that only the end of the attempt can see it */
    SET(gate, 1);
    assert_true(reaches(20, &runs, 2));
    stop(w);
    assert_string_equal(value_seen, "1");
}

/* The two transactions overlap, and commit in either order: neither sees the other. */
static void a_signal_beside_the_end_of_the_attempt(void **unused)
{
    PGconn *a = PQconnectdb(server()), *b = PQconnectdb(server());
    int order;

    (void)unused;
    for (order = 0; order < 2; order++) {
        RUN("DELETE FROM jobq.signal");
        RUN("DELETE FROM jobq.job");
        if (order == 0) register_worker(9, 60 * SECOND);
        enqueue_count(1);
        claim_one(9, order + 1, false);
        RUN("SELECT jobq._signal_of_claim(9, %d, (SELECT id FROM jobq.job), 's', 3600000000)",
            order + 1);
        run_on_conn(a, "BEGIN");
        run_on_conn(a, "SELECT jobq.signal('s')");
        run_on_conn(b, "BEGIN");
        run_on_conn(b, "SELECT jobq._settle('{9}', ARRAY[j.claim], ARRAY[j.id], '{r}', '{0}', "
                       "'{0}', '{0}', '{f}', '{3600000000}', '{NULL}', '{NULL}', '{NULL}') "
                       "FROM jobq.job j");
        run_on_conn(order == 0 ? a : b, "COMMIT");
        run_on_conn(order == 0 ? b : a, "COMMIT");
        assert_int_equal(number("SELECT (run_at > now())::int FROM jobq.job"), 1);
        RUN("SELECT jobq._promote(100)");
        assert_int_equal(number("SELECT (run_at > now())::int FROM jobq.job"), 0);
        assert_int_equal(number("SELECT count(*) FROM jobq.nudge"), 0);
    }
    PQfinish(a);
    PQfinish(b);
}

/* A transaction with an older snapshot looks at no job, so it wakes a worker that does. */
static void a_signal_of_repeatable_read_wakes_the_job(void **unused)
{
    PGconn *a = PQconnectdb(server()), *b = PQconnectdb(server());
    PGnotify *note = NULL;
    int64_t until = mono_us() + 20 * SECOND;

    (void)unused;
    enqueue_count(1);
    work_kind(awaits);
    RUN("INSERT INTO jobq.sleeper SELECT id, 17 FROM jobq.queue");
    run_on_conn(a, "LISTEN jobq_11");
    run_on_conn(b, "BEGIN ISOLATION LEVEL REPEATABLE READ");
    run_on_conn(b, "SELECT count(*) FROM jobq.signal");
    run_on_conn(b, "SELECT jobq.signal('order-7/paid', '1')");
    run_on_conn(b, "COMMIT");
    while (note == NULL && mono_us() < until) {
        assert_true(PQconsumeInput(a));
        note = PQnotifies(a);
        nap_us(10000);
    }
    assert_non_null(note);
    PQfreemem(note);
    PQfinish(a);
    PQfinish(b);
    work_kind(awaits);
    assert_int_equal(runs, 2);
    assert_string_equal(value_seen, "1");
}

/* A failed attempt after the signal was got takes its backoff. */
static jobq_outcome fails_after_the_signal(jobq_call *call)
{
    if (awaits(call) == JOBQ_OUTCOME_SNOOZE) return JOBQ_OUTCOME_SNOOZE;
    jobq_call_delay(call, JOBQ_HOURS(1));
    return JOBQ_OUTCOME_RETRY;
}

static void a_signal_that_was_got_ends_no_backoff(void **unused)
{
    (void)unused;
    enqueue_count(1);
    work_kind(fails_after_the_signal);
    send(jobq_str_from(NULL));
    work_kind(fails_after_the_signal);
    assert_int_equal(runs, 2);
    assert_int_equal(number("SELECT (run_at > now())::int FROM jobq.job"), 1);
}

static void a_row_that_somebody_holds_is_woken_later(void **unused)
{
    PGconn *a = PQconnectdb(server());

    (void)unused;
    enqueue_count(1);
    work_kind(awaits);
    run_on_conn(a, "BEGIN");
    run_on_conn(a, "SELECT FROM jobq.job FOR UPDATE");
    send(jobq_str_from(NULL));
    RUN("SELECT jobq._promote(100)");
    run_on_conn(a, "COMMIT");
    assert_int_equal(number("SELECT (run_at > now())::int FROM jobq.job"), 1);
    RUN("SELECT jobq._promote(100)");
    assert_int_equal(number("SELECT (run_at > now())::int FROM jobq.job"), 0);
    PQfinish(a);
}

static void old_signals_are_forgotten(void **unused)
{
    (void)unused;
    enqueue_count(1);
    work_kind(awaits);
    RUN("INSERT INTO jobq.signal VALUES ('order-7/paid', NULL, now() - interval '8 days'), "
        "('b', NULL, now() - interval '8 days'), ('c', NULL, now() - interval '6 days')");
    RUN("SELECT jobq.prune(100)");
    expect_text("c,order-7/paid", "SELECT string_agg(name, ',' ORDER BY name) FROM jobq.signal");
    RUN("SELECT jobq.cancel(1)");
    assert_int_equal(number("SELECT count(*) FROM jobq.signal_wait"), 0);
    RUN("SELECT jobq.prune(100)");
    expect_text("c", "SELECT string_agg(name, ',' ORDER BY name) FROM jobq.signal");
}

static void a_signal_has_a_name(void **unused)
{
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(jobq_pg_signal(pg, NULL, "", jobq_str_from(NULL), NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_signal(pg, NULL, "a", jobq_str_from("{"), NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_signal(pg, NULL, "a", jobq_str_from("1"), NULL, NULL), JOBQ_OK);
}

/* ---- jobs that wait for what they have enqueued ---------------------------------------------- */

static int child_fails;
static const char *child_line;

static jobq_outcome is_child(jobq_call *call)
{
    ADD(others);
    if (GET(child_fails) && call->payload.ptr[0] == '2') return JOBQ_OUTCOME_DISCARD;
    return jobq_call_result(call, call->payload, false) ? JOBQ_OUTCOME_SUCCESS
                                                        : JOBQ_OUTCOME_DISCARD;
}

static jobq_on_end wanted_end;

/* Enqueues two jobs, waits for them, and adds up their results. */
static jobq_outcome splits(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    jobq_pg_after after[2] = {{0, NULL, 0, JOBQ_ON_SUCCESS}, {0, NULL, 0, JOBQ_ON_SUCCESS}};
    jobq_pg_job job = plain_job();
    jobq_pg_rows parts;
    int i, sum = 0;

    ADD(runs);
    if (jobq_pg_parents(pg, conn, call->job.id, &parts, &error) != JOBQ_OK)
        return JOBQ_OUTCOME_DISCARD;
    for (i = 0; i < (int)parts.count; i++) {
        const jobq_pg_job_row *row = &((const jobq_pg_job_row *)parts.rows)[i];
        sum += row->facts.state == JOBQ_STATE_SUCCEEDED ? atoi(row->result.ptr) : 100;
    }
    i = (int)parts.count;
    jobq_pg_rows_clear(&parts);
    if (i > 0) {
        snprintf(value_seen, sizeof value_seen, "%d", sum);
        return JOBQ_OUTCOME_SUCCESS;
    }
    run_on_conn(conn, "BEGIN");
    for (i = 0; i < 2; i++) {
        job.kind = "child";
        job.line = child_line;
        job.payload = jobq_str_from(i == 0 ? "1" : "2");
        after[i].on_end = wanted_end;
        if (jobq_pg_enqueue(pg, conn, &job, &after[i].job, &error) != JOBQ_OK)
            return JOBQ_OUTCOME_DISCARD;
    }
    if (GET(fails)) { /* as if the worker had lost the job: nothing of this exists */
        SET(fails, 0);
        run_on_conn(conn, "SAVEPOINT s");
        run_on_conn(conn, "UPDATE jobq.job SET claim = claim + 100 WHERE id = 1");
    }
    return jobq_pg_call_wait(call, conn, after, 2);
}

static void work_both(jobq_handler run)
{
    jobq_pg_handler h[2];
    jobq_pg_worker_desc d;

    h[0] = handler_of("q", "k", run);
    h[1] = handler_of("q", "child", is_child);
    d = work_of(h, 2);
    work_off(&d);
}

static void a_job_waits_for_those_that_it_spawned(void **unused)
{
    (void)unused;
    wanted_end = JOBQ_ON_SUCCESS;
    child_fails = 0;
    enqueue_count(1);
    work_kind(splits);
    expect_text("waiting 0,ready 0,ready 0",
                "SELECT string_agg(state || ' ' || attempt, ',' ORDER BY id) FROM jobq.jobs");
    expect_text("it waits for the end of job 2, job 3", "SELECT reason FROM jobq.explain_job(1)");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    work_both(splits);
    assert_int_equal(runs, 2);
    assert_int_equal(others, 2);
    assert_string_equal(value_seen, "3");
    expect_text("succeeded", "SELECT string_agg(DISTINCT state, ',') FROM jobq.jobs");
    assert_int_equal(number("SELECT count(*) FROM jobq.edge"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.nudge"), 0);
}

/* A child that fails holds the job until it is revived, or lets it run, as it wants. */
static void a_spawned_job_that_fails(void **unused)
{
    jobq_pg_error error;

    (void)unused;
    wanted_end = JOBQ_ON_SUCCESS;
    child_fails = 1;
    enqueue_count(1);
    work_both(splits);
    expect_text("waiting,succeeded,failed",
                "SELECT string_agg(state, ',' ORDER BY id) FROM jobq.jobs");
    child_fails = 0;
    assert_int_equal(jobq_pg_revive(pg, NULL, ONE(3), NULL, &error), JOBQ_OK);
    work_both(splits);
    state_is(1, "succeeded");
    assert_string_equal(value_seen, "3");
}

static void any_end_lets_it_run(void **unused)
{
    (void)unused;
    wanted_end = JOBQ_ON_ANY;
    child_fails = 1;
    enqueue_count(1);
    work_both(splits);
    state_is(1, "succeeded");
    assert_string_equal(value_seen, "101");
}

static void what_is_not_accepted_spawns_nothing(void **unused)
{
    (void)unused;
    wanted_end = JOBQ_ON_SUCCESS;
    child_fails = 0;
    fails = 1;
    enqueue_count(1);
    RUN("UPDATE jobq.job SET max_attempts = 1");
    work_kind(splits);
    expect_text("failed", "SELECT string_agg(state, ',' ORDER BY id) FROM jobq.jobs");
    expect_text("Max retries (1) exceeded: lease lost on job 1",
                "SELECT errors -> 0 ->> 'error' FROM jobq.failed");
}

static void a_job_that_is_to_be_cancelled_does_not_wait(void **unused)
{
    jobq_pg_error error;

    (void)unused;
    register_worker(9, 60 * SECOND);
    enqueue_count(2);
    claim_one(9, 1, false);
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(1), NULL, NULL, &error), JOBQ_OK);
    RUN("SELECT jobq._wait_here(9, 1, 1, 0::smallint, 0, 0, false, NULL, '{2}', '{NULL}', "
        "'{NULL}', '{any}')");
    expect_text("cancelled,ready", "SELECT string_agg(state, ',' ORDER BY id) FROM jobq.jobs");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* Waiting for what has ended already is no wait; for what waits for it, however far, an error. */
static void what_a_job_may_wait_for(void **unused)
{
    static const char *const again = "SELECT jobq._wait_here(9, 1, 1, 0::smallint, 0, 0, false, "
                                     "NULL, '{%s}', '{NULL}', '{NULL}', '{any}')";
    jobq_pg_after after = {1, NULL, 0, JOBQ_ON_ANY};
    jobq_pg_job job = plain_job();
    char text[300];
    PGresult *res;
    int i;

    (void)unused;
    register_worker(9, 60 * SECOND);
    enqueue_count(1);
    claim_one(9, 1, false);
    job.after = &after;
    job.after_count = 1;
    enqueue_with(&job);  /* 2 waits for 1 */
    after.job = 2;
    enqueue_with(&job);  /* 3 waits for 2 */
    job.after_count = 0;
    enqueue_with(&job);  /* 4 */
    for (i = 1; i < 4; i++) {
        char id[2] = {(char)('0' + i), '\0'}, *full;
        snprintf(text, sizeof text, again, id);
        full = for_schema(text, schema);
        res = PQexec(db, full);
        free(full);
        assert_non_null(strstr(PQresultErrorMessage(res),
                               i == 1 ? "must not be the job itself"
                                      : "must not name a job that waits for job 1 itself"));
        PQclear(res);
    }
    RUN("SELECT jobq.cancel(4)");
    RUN(again, "4");
    state_is(1, "ready");
    assert_int_equal(number("SELECT count(*) FROM jobq.nudge"), 0);
}

/* A job waits, runs again because any end will do, and waits for the same one once more. */
static void a_wait_for_a_revived_job(void **unused)
{
    static const char *const wait = "SELECT jobq._wait_here(9, %d, 1, 0::smallint, 0, 0, false, "
                                    "NULL, '{2}', '{NULL}', '{NULL}', '{any}')";

    (void)unused;
    register_worker(9, 60 * SECOND);
    enqueue_count(2);
    claim_one(9, 1, false);
    RUN(wait, 1);
    claim_one(9, 2, false);
    RUN("SELECT jobq._settle('{9}', '{2}', '{2}', '{f}', '{0}', '{1}', '{0}', '{f}', '{0}', "
        "'{no}', '{NULL}', '{NULL}')");
    state_is(1, "ready");
    claim_one(9, 3, false);
    RUN("SELECT jobq.revive(2)");
    RUN(wait, 3);
    state_is(1, "waiting");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    RUN("SELECT jobq.cancel(2)");
    state_is(1, "ready");
}

/* The same, by its name in the flow. */
static void a_wait_for_a_revived_name(void **unused)
{
    static const char *const wait = "SELECT jobq._wait_here(9, %d, 1, 0::smallint, 0, 0, false, "
                                    "NULL, '{NULL}', '{part}', '{NULL}', '{any}')";

    (void)unused;
    restart_ids("flow");
    RUN("SELECT jobq.flow(), jobq.enqueue('q', 'k', flow => 1), "
        "jobq.enqueue('q', 'k', flow => 1, name => 'part')");
    register_worker(9, 60 * SECOND);
    claim_one(9, 1, false);
    RUN(wait, 1);
    claim_one(9, 2, false);
    RUN("SELECT jobq._settle('{9}', '{2}', '{2}', '{f}', '{0}', '{1}', '{0}', '{f}', '{0}', "
        "'{no}', '{NULL}', '{NULL}')");
    claim_one(9, 3, false);
    RUN("SELECT jobq.revive(2)");
    RUN(wait, 3);
    state_is(1, "waiting");
    claim_one(9, 4, false);
    RUN("SELECT FROM jobq._complete('{9}', '{4}', '{1}', '{2}')");
    state_is(1, "ready");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* Those that it spawned stand in its line, of which only one may run. */
static void a_waiting_job_leaves_its_line(void **unused)
{
    jobq_pg_job job = plain_job();

    (void)unused;
    wanted_end = JOBQ_ON_SUCCESS;
    child_fails = 0;
    child_line = "a";
    RUN("SELECT jobq.queue_set('q', line_running_max => 1)");
    job.line = "a";
    enqueue_with(&job);
    work_both(splits);
    child_line = NULL;
    assert_string_equal(value_seen, "3");
    expect_text("succeeded", "SELECT string_agg(DISTINCT state, ',') FROM jobq.jobs");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, start_over, all_stop)
        T(a_step_is_done_once),
        T(a_revived_job_does_not_repeat_its_steps),
        T(stages_share_steps),
        T(steps_have_names_and_values),
        T(the_steps_of_a_job_have_a_size),
        T(a_worker_without_the_job_writes_no_step),
        T(a_step_in_a_transaction_happens_exactly_once),
        T(a_job_sleeps_between_its_steps),
        T(a_handler_does_not_wait_for_itself),
        T(a_signal_wakes_the_job_that_waits_for_it),
        T(a_signal_that_was_rolled_back_was_not_sent),
        T(a_signal_that_came_before_is_there),
        T(without_the_signal_the_time_ends),
        T(the_time_counts_from_the_first_call),
        T(a_signal_during_the_attempt_is_not_lost),
        T(a_signal_beside_the_end_of_the_attempt),
        T(a_signal_of_repeatable_read_wakes_the_job),
        T(a_signal_that_was_got_ends_no_backoff),
        T(a_row_that_somebody_holds_is_woken_later),
        T(old_signals_are_forgotten),
        T(a_signal_has_a_name),
        T(a_job_waits_for_those_that_it_spawned),
        T(a_spawned_job_that_fails),
        T(any_end_lets_it_run),
        T(what_is_not_accepted_spawns_nothing),
        T(a_job_that_is_to_be_cancelled_does_not_wait),
        T(what_a_job_may_wait_for),
        T(a_wait_for_a_revived_job),
        T(a_wait_for_a_revived_name),
        T(a_waiting_job_leaves_its_line),
    };

    return cmocka_run_group_tests_name("steps", tests, pg_up, pg_down);
}
