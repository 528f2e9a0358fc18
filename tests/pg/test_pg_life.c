/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Public workers on Postgres: results, stages, limits, cancel, pause, parking, time-outs,
 * stopping, statistics. Rows X3, X9, X13; W-M5, W-M12, W-M13, W-M22.
 */
#include "pg_work.h"

static int stop_seen; /* the last jobq_stop that a handler saw, plus 1 */

static int start_over(void **state)
{
    SET(stop_seen, 0);
    return fresh(state);
}

/* -- handlers -- */

static jobq_outcome fails(jobq_call *call)
{
    char text[40];

    snprintf(text, sizeof text, "no luck %d", ADD(runs));
    jobq_call_error(call, jobq_str_from(text));
    jobq_call_delay(call, 1000);
    return JOBQ_OUTCOME_RETRY;
}

static jobq_outcome discards(jobq_call *call)
{
    ADD(runs);
    jobq_call_error(call, jobq_str_from("hopeless"));
    return JOBQ_OUTCOME_DISCARD;
}

/* Until the gate opens, whatever it is asked. */
/* Until it is asked to stop. */
static jobq_outcome heeds(jobq_call *call)
{
    jobq_stop why;

    ADD(runs);
    while ((why = jobq_call_stopping(call, NULL)) == JOBQ_STOP_NONE) nap_us(2000);
    SET(stop_seen, (int)why + 1);
    return why == JOBQ_STOP_CANCEL ? JOBQ_OUTCOME_CANCELLED : JOBQ_OUTCOME_RETRY;
}

/* Until it is asked to cancel; then it would rather be run again. */
static jobq_outcome retries_when_cancelled(jobq_call *call)
{
    ADD(runs);
    while (jobq_call_stopping(call, NULL) != JOBQ_STOP_CANCEL) nap_us(2000);
    return JOBQ_OUTCOME_RETRY;
}

static jobq_outcome succeeds_when_cancelled(jobq_call *call)
{
    ADD(runs);
    while (jobq_call_stopping(call, NULL) != JOBQ_STOP_CANCEL) nap_us(2000);
    return JOBQ_OUTCOME_SUCCESS;
}

/* -- jobs run -- */

static void a_handler_sees_its_job(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_handler h = handler_of("q", "k", NULL);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;
    jobq_pg_worker *none;

    (void)unused;
    assert_int_equal(jobq_pg_worker_start(pg, &d, &none, &error),
                     JOBQ_ERROR_INVALID); /* run[0] is missing */
    assert_null(none);
    h.run[0] = succeed;
    job.headers = jobq_str_from("{\"trace\": \"7\"}");
    enqueue_with(&job);
    d.loop.until = JOBQ_UNTIL_EMPTY;
    assert_int_equal(jobq_pg_work(pg, &d, &error), JOBQ_OK);
    assert_int_equal(GET(runs), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's' AND attempt = 1"),
                     1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0); /* it said good-bye */
}

static jobq_outcome first_stage(jobq_call *call)
{
    see(call);
    if (!jobq_call_result(call, jobq_str_from("{\"made\": \"by 0\"}"), false))
        return JOBQ_OUTCOME_DISCARD;
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome second_stage(jobq_call *call)
{
    jobq_str bytes = {"\x01\0\xff", 3};

    see(call);
    if (jobq_call_result(call, jobq_str_from("{broken"), false)) return JOBQ_OUTCOME_DISCARD;
    bytes.len = 1048577; /* more than payload_max; not looked at */
    if (jobq_call_result(call, bytes, true)) return JOBQ_OUTCOME_DISCARD;
    bytes.len = 3;
    if (!jobq_call_result(call, bytes, true)) return JOBQ_OUTCOME_DISCARD;
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome third_stage(jobq_call *call)
{
    see(call);
    if (!call->payload_bytes || call->payload.len != 3 ||
        memcmp(call->payload.ptr, "\x01\0\xff", 3) != 0) {
        return JOBQ_OUTCOME_DISCARD;
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static void stages_hand_their_payload_on(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_handler h = handler_of("q", "k", first_stage);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;

    (void)unused;
    h.run[1] = second_stage;
    h.run[2] = third_stage;
    job.stages = 3;
    job.headers = jobq_str_from("{\"h\": 1}");
    enqueue_with(&job);
    d.loop.until = JOBQ_UNTIL_EMPTY;
    assert_int_equal(jobq_pg_work(pg, &d, &error), JOBQ_OK);
    assert_string_equal(seen_by_stage[0], "{\"n\": 1}|{\"h\": 1}|1");
    assert_string_equal(seen_by_stage[1], "{\"made\": \"by 0\"}|{\"h\": 1}|1");
    assert_int_equal(
        number(
            "SELECT count(*) FROM jobq.history WHERE state = 's' AND stage = 2 AND payload IS NULL"
            " AND bytes = '\\x0100ff'"),
        1);
}

static jobq_outcome first_stage_with_a_connection(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    see(call);
    PQclear(PQexec(conn, "SELECT 1"));
    if (!jobq_call_result(call, jobq_str_from("{\"made\": \"with a connection\"}"), false)) {
        return JOBQ_OUTCOME_DISCARD;
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome sees(jobq_call *call)
{
    see(call);
    return JOBQ_OUTCOME_SUCCESS;
}

static void a_stage_that_used_a_connection_hands_its_payload_on_too(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_handler h = handler_of("q", "k", first_stage_with_a_connection);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;

    (void)unused;
    h.run[1] = sees;
    job.stages = 2;
    enqueue_with(&job);
    d.loop.until = JOBQ_UNTIL_EMPTY;
    assert_int_equal(jobq_pg_work(pg, &d, &error), JOBQ_OK);
    assert_string_equal(seen_by_stage[1], "{\"made\": \"with a connection\"}||1");
}

static jobq_outcome fails_in_stage_one(jobq_call *call)
{
    if (call->job.stage == 0) return JOBQ_OUTCOME_SUCCESS;
    return fails(call);
}

/* W-M21: attempts count per stage, a retry stays in its stage. */
static void a_retry_stays_in_its_stage_and_each_stage_has_its_attempts(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_handler h = handler_of("q", "k", fails);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    h.run[0] = fails_in_stage_one;
    job.stages = 2;
    job.max_attempts = 2;
    enqueue_with(&job);
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.failed"));
    assert_int_equal(GET(runs), 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE stage = 1 AND attempt = 2"), 1);
}

/* X9. */
static void the_last_retry_ends_failed_and_all_errors_are_kept(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_handler h = handler_of("q", "k", fails);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    job.max_attempts = 3;
    enqueue_with(&job);
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.failed"));
    assert_int_equal(GET(runs), 3);
    expect_text("no luck 1;no luck 2;Max retries (3) exceeded: no luck 3",
                "SELECT string_agg(e->>'error', ';' ORDER BY e->'attempt') FROM jobq.failed,"
                " jsonb_array_elements(errors) e");
    assert_int_equal(
        number("SELECT count(*) FROM jobq.failed WHERE attempt = 3 AND payload->>'n' = '1'"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 0);
}

static jobq_outcome fails_plainly(jobq_call *call)
{
    ADD(runs);
    jobq_call_error(call, jobq_str_from("plain"));
    return JOBQ_OUTCOME_RETRY;
}

/* X8: n = attempt - 1; 5 s with a jitter of a quarter. */
static void the_first_delay_is_the_base(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", fails_plainly);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    enqueue_count(40);
    start(&d);
    assert_true(becomes(20, 40, "SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 1"));
    assert_int_equal(
        number("SELECT count(*) FROM jobq.job WHERE run_at - (errors->0->>'at')::timestamptz"
               " NOT BETWEEN '3.75 s' AND '6.25 s'"),
        0);
    assert_true(
        number("SELECT count(DISTINCT run_at - (errors->0->>'at')::timestamptz) FROM jobq.job") >
        30);
}

static jobq_outcome snoozes_twice(jobq_call *call)
{
    see(call);
    jobq_call_delay(call, 1000);
    return ADD(runs) < 3 ? JOBQ_OUTCOME_SNOOZE : JOBQ_OUTCOME_SUCCESS;
}

static void a_snooze_uses_up_no_attempt(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_handler h = handler_of("q", "k", snoozes_twice);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    job.max_attempts = 1;
    enqueue_with(&job);
    start(&d);
    assert_true(
        becomes(20, 1, "SELECT count(*) FROM jobq.history WHERE attempt = 1 AND errors IS NULL"));
    assert_int_equal(GET(runs), 3);
}

/* The limit reaches the worker, the count its row, and the text says why. */
static void snoozes_are_counted_until_their_limit(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", snoozes_twice);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    RUN("SELECT jobq.queue_set('q', snoozes_max => 1)");
    enqueue_kind("k", "1");
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.failures WHERE attempt = 1 AND "
                               "error = 'Max snoozes (1) exceeded: snooze'"));
    assert_int_equal(number("SELECT snoozes FROM jobq.jobs"), 1);
    assert_int_equal(GET(runs), 2);
    RUN("SELECT jobq.queue_set('q', snoozes_max => 0), jobq.revive(id) FROM jobq.failed");
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.jobs WHERE state = 'succeeded'"));
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE snoozes IS NULL"), 1);
}

static void a_discard_fails_at_once(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", discards);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    enqueue_count(1);
    start(&d);
    assert_true(
        becomes(20, 1, "SELECT count(*) FROM jobq.failed WHERE errors->0->>'error' = 'hopeless'"));
    assert_int_equal(GET(runs), 1);
}

static jobq_outcome says_nothing(jobq_call *call)
{
    (void)call;
    return ADD(runs) == 1 ? JOBQ_OUTCOME_NONE : (jobq_outcome)77;
}

static void no_outcome_counts_as_a_failed_attempt(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_handler h = handler_of("q", "k", says_nothing);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    job.max_attempts = 2;
    enqueue_with(&job);
    RUN("UPDATE jobq.queue SET backoff_base_us = 1000");
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.failed"));
    assert_int_equal(number("SELECT count(*) FROM jobq.failed, jsonb_array_elements(errors) e"
                            " WHERE e->>'error' LIKE '%%the handler returned no outcome'"), 2);
}

static char long_error[100000];

static jobq_outcome tells_at_length(jobq_call *call)
{
    jobq_str text = {long_error, sizeof long_error};

    jobq_call_error(call, text);
    jobq_call_delay(call, 0);
    return JOBQ_OUTCOME_RETRY;
}

static void long_and_broken_error_texts_are_kept_as_far_as_they_go(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_handler h = handler_of("q", "k", tells_at_length);
    jobq_pg_worker_desc d = work_of(&h, 1);
    size_t i;

    (void)unused;
    for (i = 0; i + 1 < sizeof long_error; i += 2) memcpy(long_error + i, "\xc3\xa4", 2);
    memcpy(long_error, "a\0b\xff\xed\xa0\x80", 7); /* NUL, no UTF-8, a surrogate */
    job.max_attempts = 2;
    enqueue_with(&job);
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.failed"));
    assert_int_equal(number("SELECT count(*) FROM jobq.failed, jsonb_array_elements(errors) e WHERE"
                            " octet_length(e->>'error') BETWEEN 4090 AND 4096"), 2);
    assert_int_equal(
        number("SELECT count(*) FROM jobq.failed WHERE errors->0->>'error' LIKE 'a?b????%%'"), 1);
}

/* -- cancel, pause, policy -- */

static void a_ready_job_is_cancelled_at_once(void **unused)
{
    jobq_pg_error error;
    int64_t requested = 7;
    int64_t id;

    (void)unused;
    id = enqueue_kind("k", "1");
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(id), NULL, &requested, &error), JOBQ_OK);
    assert_int_equal(requested, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 'c'"), 1);
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(id), NULL, &requested, &error),
                     JOBQ_ERROR_TRANSITION);
}

/* How one running job ends that is asked to cancel. */
static void cancel_running(jobq_handler run, const char *ends)
{
    jobq_pg_handler h = handler_of("q", "k", run);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;
    int64_t requested = 0;
    int64_t id;
    jobq_job got;

    id = enqueue_kind("k", "1");
    start(&d);
    assert_true(reaches(20, &runs, 1));
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(id), NULL, &requested, &error), JOBQ_OK);
    assert_int_equal(requested, 1);
    assert_true(becomes(20, 1, ends));
    assert_int_equal(jobq_pg_get(pg, NULL, id, &got, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(GET(runs), 1);
}

static void a_running_job_is_told_to_cancel(void **unused)
{
    (void)unused;
    cancel_running(heeds, "SELECT count(*) FROM jobq.history WHERE state = 'c'");
    assert_int_equal(GET(stop_seen), JOBQ_STOP_CANCEL + 1);
}

static void a_job_asked_to_cancel_is_not_retried(void **unused)
{
    (void)unused;
    cancel_running(retries_when_cancelled, "SELECT count(*) FROM jobq.history WHERE state = 'c'");
}

static void success_after_a_cancel_request_is_success(void **unused)
{
    (void)unused;
    cancel_running(succeeds_when_cancelled, "SELECT count(*) FROM jobq.history WHERE state = 's'");
}

static int64_t cancel_target;

static jobq_outcome discards_or_holds(jobq_call *call)
{
    jobq_stop why;

    if (call->job.id != cancel_target) return holds(call);
    if (ADD(others) == 1) {
        while (jobq_call_stopping(call, NULL) != JOBQ_STOP_CANCEL) nap_us(1000);
        return JOBQ_OUTCOME_DISCARD;
    }
    nap_us(1000000); /* revived: several heartbeats go by */
    why = jobq_call_stopping(call, NULL);
    SET(stop_seen, (int)why + 1);
    return JOBQ_OUTCOME_RETRY;
}

/* The request was about the run before; its claim's row is still there, because another job of it
 * runs on. */
static void a_revived_job_is_not_cancelled_by_an_old_request(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", discards_or_holds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;

    (void)unused;
    enqueue_count(2);
    cancel_target = number("SELECT max(id) FROM jobq.job");
    start(&d);
    assert_true(reaches(20, &runs, 1));
    assert_true(reaches(20, &others, 1));
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(cancel_target), NULL, NULL, &error), JOBQ_OK);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.failed"));
    assert_int_equal(jobq_pg_revive(pg, NULL, ONE(cancel_target), NULL, &error), JOBQ_OK);
    assert_true(reaches(20, &stop_seen, 1));
    assert_int_equal(GET(stop_seen), JOBQ_STOP_NONE + 1);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.job WHERE state = 'r'"));
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 'c'"), 0);
    SET(gate, 1);
}

static void a_paused_queue_rests_until_it_is_resumed(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    int before;

    (void)unused;
    enqueue_count(1);
    start(&d);
    assert_true(reaches(20, &runs, 1));
    RUN("UPDATE jobq.queue SET paused_at = now()");
    all_hear();
    before = GET(runs);
    enqueue_count(10);
    nap_us(700000);
    assert_int_equal(GET(runs), before);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 10);
    RUN("UPDATE jobq.queue SET paused_at = NULL");
    assert_true(reaches(20, &runs, before + 10));
}

static void working_until_empty_ends_on_a_paused_queue(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;

    (void)unused;
    enqueue_count(3);
    RUN("UPDATE jobq.queue SET paused_at = now()");
    d.loop.until = JOBQ_UNTIL_EMPTY;
    assert_int_equal(jobq_pg_work(pg, &d, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 3);
}

static void a_new_policy_counts_after_a_heartbeat(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", fails);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    enqueue_count(1);
    RUN("UPDATE jobq.queue SET max_attempts = 1000000"); /* it fails every other millisecond */
    start(&d);
    assert_true(reaches(20, &runs, 2));
    RUN("UPDATE jobq.queue SET max_attempts = 1");
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.failed"));
    assert_int_equal(
        number(
            "SELECT count(*) FROM jobq.failed WHERE errors->-1->>'error' LIKE 'Max retries (1)%%'"),
        1);
}

static void a_queue_without_history_leaves_none(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;

    (void)unused;
    enqueue_count(100);
    RUN("UPDATE jobq.queue SET history = false");
    d.loop.until = JOBQ_UNTIL_EMPTY;
    assert_int_equal(jobq_pg_work(pg, &d, &error), JOBQ_OK);
    assert_int_equal(GET(runs), 100);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
}

/* -- time -- */

static void an_endless_handler_is_abandoned_and_the_worker_goes_on(void **unused)
{
    jobq_pg_handler h[] = {handler_of("q", "k", holds), handler_of("q", "quick", counts_others)};
    jobq_pg_worker_desc d = work_of(h, 2);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;

    (void)unused;
    job.timeout_us = 200000;
    job.max_attempts = 1;
    enqueue_with(&job);
    w = start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.failed"));
    expect_text("Max retries (1) exceeded: the handler ran out of time",
                "SELECT errors->0->>'error' FROM jobq.failed");
    enqueue_kind("quick", "1");
    assert_true(reaches(20, &others, 1));
    assert_int_equal(jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.abandoned, 1);
    SET(gate, 1); /* it comes back after all: what it says no longer counts */
    nap_us(50000);
    stop(w);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 1);
}

static int backend; /* the server's process for a handler's connection */

static jobq_outcome sleeps_in_the_database(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    PGresult *res;

    SET(backend, PQbackendPID(conn));
    ADD(runs);
    res = PQexec(conn, "SELECT pg_sleep(60)");
    if (PQresultStatus(res) != PGRES_TUPLES_OK) ADD(others);
    PQclear(res);
    return JOBQ_OUTCOME_SUCCESS;
}

static void the_statement_of_an_overrunning_handler_is_cut_short(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", sleeps_in_the_database);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    char backends[100];

    (void)unused;
    job.timeout_us = 2 * SECOND;
    job.max_attempts = 1;
    enqueue_with(&job);
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.failed"));
    assert_true(reaches(20, &others, 1));
    snprintf(backends, sizeof backends, "SELECT count(*) FROM pg_stat_activity WHERE pid = %d",
             GET(backend));
    assert_true(becomes(20, 0, backends)); /* a cancel may arrive late: it is not lent again */
}

static void a_queues_time_limit_counts_and_the_handler_may_ask(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", heeds);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    enqueue_count(1);
    RUN("UPDATE jobq.queue SET timeout_us = 150000, max_attempts = 1");
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.failed"));
    assert_true(reaches(5, &stop_seen, JOBQ_STOP_TIMEOUT + 1));
}

static int64_t began_us;

static jobq_outcome notes_and_holds(jobq_call *call)
{
    SET(began_us, mono_us());
    return holds(call);
}

/* With a heartbeat of 5 s, as in production, the worker sleeps when a handler begins. */
static void a_time_limit_ends_a_workers_sleep(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", notes_and_holds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    int64_t late, least = JOBQ_NEVER;
    int i;

    (void)unused;
    d.loop.lease_us = 30 * SECOND;
    d.loop.heartbeat_us = 0;
    d.loop.threads = 8;
    job.timeout_us = SECOND;
    job.max_attempts = 1;
    enqueue_with(&job); /* it is there before the worker */
    start(&d);
    for (i = 1; i <= 3 && least > 2 * SECOND; i++) {
        assert_true(becomes(20, i, "SELECT count(*) FROM jobq.failed"));
        late = mono_us() - GET(began_us) - job.timeout_us;
        if (late < least) least = late;
        if (i < 3) enqueue_with(&job);
    }
    assert_true(least < 2 * SECOND);
    SET(gate, 1);
}

static jobq_outcome returns_late(jobq_call *call)
{
    int64_t left_us;

    ADD(runs);
    while (jobq_call_stopping(call, &left_us), left_us > 0) nap_us(1000);
    jobq_call_error(call, jobq_str_from("its own words"));
    return JOBQ_OUTCOME_SUCCESS;
}

static void success_after_the_time_limit_is_a_failure(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", returns_late);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;
    int i;

    (void)unused;
    d.loop.lease_us = 30 * SECOND;
    d.loop.heartbeat_us = 0;
    d.loop.threads = 16; /* more than are abandoned: a worker with many stuck handlers gives up */
    job.timeout_us = 300000;
    job.max_attempts = 1;
    for (i = 0; i < 6; i++) enqueue_with(&job);
    w = start(&d);
    assert_true(becomes(20, 6, "SELECT count(*) FROM jobq.failed"
                                " WHERE errors->0->>'error' LIKE '%the handler ran out of time'"));
    assert_int_equal(stop(w).succeeded, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), 0);
}

static int64_t started_at_us;

static jobq_outcome notes_the_time(jobq_call *call)
{
    struct timespec t;

    (void)call;
    clock_gettime(CLOCK_REALTIME, &t);
    SET(started_at_us, (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000);
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static void a_scheduled_job_starts_within_50_ms_of_its_time(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", notes_the_time);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    struct timespec t;
    int64_t late, least = JOBQ_NEVER;
    int i;

    (void)unused;
    d.loop.lease_us = 30 * SECOND;
    d.loop.heartbeat_us = 0; /* as in production: 5 s */
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.worker"));
    nap_us(500000);
    for (i = 1; i <= 3; i++) {
        clock_gettime(CLOCK_REALTIME, &t);
        job.run_at_us = (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000 + 700000 * i;
        enqueue_with(&job);
        assert_true(reaches(20, &runs, i));
        late = GET(started_at_us) - job.run_at_us;
        assert_true(late >= 0);
        assert_true(late < 3 * SECOND); /* the next look would be 5 s away */
        if (late < least) least = late;
    }
    assert_true(least < (check_slow() ? SECOND : 50000)); /* a loaded machine may wake late, once */
}

/* -- stopping -- */

static void take_the_stop(jobq_pg_worker *w)
{
    jobq_pg_health health;

    do {
        nap_us(1000);
        jobq_pg_worker_health(w, JOBQ_PG_ALL, &health);
    } while (!health.stopping);
}

/* X13, W-M13: what runs ends, what waits goes back with its attempt, other workers' jobs stay
 * theirs. */
static void a_graceful_stop_gives_back_its_own_jobs_only(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", holds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *w;
    verb_batch batch;
    jobq_loop_stats stats;
    char *before, *after;

    (void)unused;
    enqueue_count(3);
    register_worker(77, 600 * SECOND);
    assert_int_equal(claim_by(77, 1, 3, false, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 3);
    verb_batch_clear(&batch);
    before =
        text_of("SELECT string_agg(j::text, ' ' ORDER BY id) FROM jobq.job j WHERE worker = 77");
    enqueue_count(40);
    w = start(&d);
    assert_true(reaches(20, &runs, 4));
    jobq_pg_worker_stop(w);
    take_the_stop(w);
    nap_us(200000);
    assert_true(becomes(20, 3 + 4, "SELECT count(*) FROM jobq.job WHERE state = 'x'")); /* grace */
    SET(gate, 1);
    stats = ended(w);
    after =
        text_of("SELECT string_agg(j::text, ' ' ORDER BY id) FROM jobq.job j WHERE worker = 77");
    assert_string_equal(before, after);
    free(before);
    free(after);
    assert_int_equal(stats.succeeded, 4);
    assert_int_equal(GET(runs), 4);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 4);
    assert_int_equal(
        number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0 AND NOT suspect AND"
               " worker IS NULL AND errors IS NULL"),
        36);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 1);
}

static void a_second_stop_ends_the_grace(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", heeds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *w;
    int64_t start_us;

    (void)unused;
    h.run[0] = holds;
    enqueue_count(2);
    w = start(&d);
    assert_true(reaches(20, &runs, 2));
    start_us = mono_us();
    jobq_pg_worker_stop(w);
    take_the_stop(w);
    jobq_pg_worker_stop(w);
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"));
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.worker"));
    assert_true(mono_us() - start_us < 20 * SECOND); /* the grace is 30 s */
    SET(gate, 1);
    ended(w);
}

static void a_handler_is_told_of_the_shutdown(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", heeds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *w;

    (void)unused;
    enqueue_count(1);
    w = start(&d);
    assert_true(reaches(20, &runs, 1));
    stop(w);
    assert_int_equal(GET(stop_seen), JOBQ_STOP_SHUTDOWN + 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 1"), 1);
}

static void a_worker_stops_after_so_many_jobs(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;

    (void)unused;
    enqueue_count(50);
    d.loop.jobs_max = 7;
    assert_int_equal(jobq_pg_work(pg, &d, &error), JOBQ_OK);
    assert_int_equal(GET(runs), 7);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 7);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"), 43);
}

/* -- many -- */

static jobq_outcome hands_on_what_is_refused(jobq_call *call)
{
    ADD(runs);
    if (call->job.stage == 1) return JOBQ_OUTCOME_SUCCESS;
    jobq_call_result(call,
                   jobq_str_from(call->job.id == cancel_target ? "{\"bad\": 1}" : "{\"good\": 1}"),
                   false);
    return JOBQ_OUTCOME_SUCCESS;
}

/* The database may refuse one decision of a batch; the others go on, and that job fails with a
 * reason. */
static void a_refused_result_holds_nobody_else_back(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", hands_on_what_is_refused);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    int i;

    (void)unused;
    job.stages = 2;
    job.max_attempts = 1;
    for (i = 0; i < 60; i++) enqueue_with(&job);
    cancel_target = number("SELECT min(id) + 30 FROM jobq.job");
    RUN("ALTER TABLE jobq.job ADD CONSTRAINT nothing_bad CHECK (NOT coalesce(payload ? 'bad', "
        "false))");
    start(&d);
    assert_true(becomes(30, 59, "SELECT count(*) FROM jobq.history"));
    assert_true(becomes(30, 1, "SELECT count(*) FROM jobq.failed"));
    RUN("ALTER TABLE jobq.job DROP CONSTRAINT nothing_bad");
    assert_int_equal(
        number(
            "SELECT count(*) FROM jobq.failed WHERE errors->-1->>'error' LIKE 'Max retries (1)%%'"),
        1);
}

/* A worker follows the policies of its kinds, and history is kept by kind, too. */
static void kinds_differ_from_their_queue(void **unused)
{
    jobq_pg_handler h[] = {handler_of("q", "k", fails), handler_of("q", "quiet", succeed),
                           handler_of("silent", "loud", succeed)};
    jobq_pg_worker_desc d = work_of(h, 3);
    jobq_pg_error error;

    (void)unused;
    RUN("SELECT jobq.queue_set('q', max_attempts => 3)");
    RUN("SELECT jobq.queue_set('q', kind => 'k', max_attempts => 1)");
    RUN("SELECT jobq.queue_set('q', kind => 'quiet', history => false)");
    RUN("SELECT jobq.queue_set('silent', history => false, kinds => '{other}')");
    RUN("SELECT jobq.queue_set('silent', kind => 'loud', history => true)");
    enqueue_kind("k", "1");
    RUN("SELECT jobq.enqueue('q', 'quiet', key => CASE WHEN n = 3 THEN 'x' END) FROM "
        "generate_series(1, 5) n");
    RUN("SELECT jobq.enqueue('silent', 'loud') FROM generate_series(1, 3)");
    RUN("SELECT jobq.enqueue('q', 'late') FROM generate_series(1, 2)");
    RUN("SELECT jobq.enqueue('silent', 'other') FROM generate_series(1, 2)");
    RUN("SELECT jobq.cancel('q', kind => 'quiet', at_most => 1)");
    RUN("SELECT jobq.cancel('silent', kind => 'loud', at_most => 1)");
    RUN("SELECT jobq.cancel('q', kind => 'late'), jobq.cancel('silent', kind => 'other')");
    d.loop.until = JOBQ_UNTIL_EMPTY;
    assert_int_equal(jobq_pg_work(pg, &d, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.failures WHERE kind = 'k' AND attempt = 1 "
                            "AND error LIKE 'Max retries (1)%%'"), 1);
    expect_text("late c 2, loud c 1, loud s 2",
                "SELECT string_agg(concat_ws(' ', g.name, g.state, g.n), ', ' ORDER BY g.name, "
                "g.state) FROM (SELECT k.name, h.state, count(*) AS n FROM jobq.history h JOIN "
                "jobq.kind k ON k.id = h.kind_id GROUP BY 1, 2) g");
    assert_int_equal(number("SELECT count(*) FROM jobq.idempotency WHERE ended_at IS NOT NULL"), 1);
}

/* Many queues, priorities and stages at once: nothing is starved, order holds where it can be
 * seen. */
static void priorities_run_in_order(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    int i;

    (void)unused;
    for (i = 0; i < 100; i++) {
        job.priority = (i * 7) % 19 - 9;
        enqueue_with(&job);
    }
    d.loop.threads = 1;
    d.loop.batch_max = 1;
    d.loop.until = JOBQ_UNTIL_EMPTY;
    assert_int_equal(jobq_pg_work(pg, &d, &error), JOBQ_OK);
    assert_int_equal(
        number("SELECT count(*) FROM (SELECT priority, id, row_number() OVER (ORDER BY claimed_at) "
               "AS a,"
               " row_number() OVER (ORDER BY priority, id) AS b FROM jobq.history) o WHERE a <> b"),
        0);
}

static int deaf_must_return;

/* Does not listen to anybody, for a while. */
static jobq_outcome deaf(jobq_call *call)
{
    (void)call;
    if (ADD(runs) == 1) {
        while (!GET(deaf_must_return)) nap_us(2000);
    }
    return JOBQ_OUTCOME_SUCCESS;
}

/* ---- effects exactly once -------------------------------------------------------------------- */

static void success_goes_to_history(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, succeed);
    int count = check_slow() ? 200 : 5000;

    (void)unused;
    enqueue_count((size_t)count);
    work_off(&d);
    assert_int_equal(GET(runs), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's' AND attempt = 1"),
                     count);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
}

/* ---- time ------------------------------------------------------------------------------------ */

static void an_enqueue_wakes_a_sleeper_and_quiet_does_not(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, succeed);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;
    int64_t asked;

    (void)unused;
    d.loop.lease_us = 60 * SECOND; /* the next look would be 10 s away */
    w = start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.sleeper"));
    nap_us(6 * SECOND); /* the doubling looks are over: 5 s and more from now */
    asked = mono_us();
    enqueue_with(&job);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
    assert_true(mono_us() - asked < 3 * SECOND);
    stop(w);
}

/* While it rests its lease is longer, because nobody hears of it. */
#define RESTS "SELECT count(*) FROM jobq.worker WHERE name = 'test' AND expires_at - beat_at "

static void a_worker_rests_until_there_is_something(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    int64_t asked;

    (void)unused;
    d.loop.rest_us = 5 * SECOND;
    start(&d);
    assert_true(becomes(60, 1, RESTS "> '14 s'"));
    asked = mono_us();
    enqueue_count(1);
    assert_true(becomes(60, 1, "SELECT count(*) FROM jobq.history"));
    assert_true(mono_us() - asked < 3 * SECOND);
    assert_true(becomes(60, 1, RESTS "< '10.1 s'"));
    assert_true(becomes(60, 1, RESTS "> '14 s'"));
}

/* Somebody must see it if that one dies. */
static void nobody_rests_beside_a_worker_that_holds_a_job(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    char *joined;

    (void)unused;
    RUN("SELECT jobq.enqueue('elsewhere', 'e')");
    d.loop.rest_us = 5 * SECOND;
    start(&d);
    assert_true(becomes(60, 1, RESTS "> '14 s'"));
    joined = text_of("SELECT worker FROM jobq.work_join('{\"elsewhere\": [\"e\"]}', "
                     "lease => '1 min')");
    assert_int_equal(number("SELECT count(*) FROM jobq.work_take(%s, 1)", joined), 1);
    free(joined);
    assert_true(becomes(60, 1, RESTS "< '10.5 s'"));
    nap_us(SECOND);
    assert_int_equal(number(RESTS "> '14 s'"), 0);
}

/* ---- stop ------------------------------------------------------------------------------------ */

static void a_handler_beyond_the_grace_is_left_behind(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, deaf);
    jobq_pg_worker *w;

    (void)unused;
    enqueue_count(1);
    d.loop.grace_us = SECOND / 5;
    w = start(&d);
    assert_true(reaches(20, &runs, 1));
    jobq_pg_worker_stop(w);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"));
    SET(deaf_must_return, 1);
    ended(w);
}

static int delivered;

static jobq_result takes(jobq_delivery *d, const jobq_message *m)
{
    (void)d, (void)m;
    ADD(delivered);
    return JOBQ_RESULT_SUCCESS;
}

static void send_messages(int count)
{
    jobq_pg_error error;
    jobq_pg_message m;
    int i;

    memset(&m, 0, sizeof m);
    m.queue = "o";
    if (jobq_pg_outbox_register(pg, NULL, "o", 4, NULL, &error)) fail_msg("%s", error.message);
    for (i = 0; i < count; i++) {
        m.partition = i % 4;
        if (jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error)) fail_msg("%s", error.message);
    }
}

/* Each round the ids are new. Other queues of the worker go on. */
static void a_queue_made_anew_is_served(void **unused)
{
    jobq_pg_handler h[2];
    jobq_pg_receiver r;
    jobq_pg_worker_desc d;
    int round;

    (void)unused;
    memset(&r, 0, sizeof r);
    h[0] = handler_of("q", "k", succeed);
    h[1] = handler_of("other", "k", succeed);
    r.queue = "o";
    r.each = takes;
    d = work_of(h, 2);
    d.receivers = &r;
    d.receiver_count = 1;
    send_messages(4);
    start(&d);
    for (round = 1; round <= 3; round++) {
        enqueue_count(5);
        RUN("SELECT jobq.enqueue('other', 'k')");
        assert_true(reaches(60, &runs, 6 * round));
        assert_true(reaches(60, &delivered, 4 * round));
        assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job"));
        RUN("DELETE FROM jobq.queue WHERE name IN ('q', 'o')");
        send_messages(4);
    }
    assert_true(reaches(60, &delivered, 16));
    assert_true(becomes(60, 1, "SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL"));
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start_over, all_stop)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(a_handler_sees_its_job),
        TEST(stages_hand_their_payload_on),
        TEST(a_stage_that_used_a_connection_hands_its_payload_on_too),
        TEST(a_retry_stays_in_its_stage_and_each_stage_has_its_attempts),
        TEST(the_last_retry_ends_failed_and_all_errors_are_kept),
        TEST(the_first_delay_is_the_base),
        TEST(a_snooze_uses_up_no_attempt),
        TEST(snoozes_are_counted_until_their_limit),
        TEST(a_discard_fails_at_once),
        TEST(no_outcome_counts_as_a_failed_attempt),
        TEST(long_and_broken_error_texts_are_kept_as_far_as_they_go),
        TEST(a_ready_job_is_cancelled_at_once),
        TEST(a_running_job_is_told_to_cancel),
        TEST(a_job_asked_to_cancel_is_not_retried),
        TEST(success_after_a_cancel_request_is_success),
        TEST(a_revived_job_is_not_cancelled_by_an_old_request),
        TEST(a_paused_queue_rests_until_it_is_resumed),
        TEST(working_until_empty_ends_on_a_paused_queue),
        TEST(a_new_policy_counts_after_a_heartbeat),
        TEST(a_queue_without_history_leaves_none),
        TEST(an_endless_handler_is_abandoned_and_the_worker_goes_on),
        TEST(the_statement_of_an_overrunning_handler_is_cut_short),
        TEST(a_queues_time_limit_counts_and_the_handler_may_ask),
        TEST(a_time_limit_ends_a_workers_sleep),
        TEST(success_after_the_time_limit_is_a_failure),
        TEST(a_scheduled_job_starts_within_50_ms_of_its_time),
        TEST(a_graceful_stop_gives_back_its_own_jobs_only),
        TEST(a_second_stop_ends_the_grace),
        TEST(a_handler_is_told_of_the_shutdown),
        TEST(a_worker_stops_after_so_many_jobs),
        TEST(a_refused_result_holds_nobody_else_back),
        TEST(priorities_run_in_order),
        TEST(kinds_differ_from_their_queue),
        TEST(success_goes_to_history),
        TEST(an_enqueue_wakes_a_sleeper_and_quiet_does_not),
        TEST(a_worker_rests_until_there_is_something),
        TEST(nobody_rests_beside_a_worker_that_holds_a_job),
        TEST(a_handler_beyond_the_grace_is_left_behind),
        TEST(a_queue_made_anew_is_served),
    };

    return cmocka_run_group_tests_name("worker", tests, pg_up, pg_down);
}
