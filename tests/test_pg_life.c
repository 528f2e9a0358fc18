/*
 * Public workers on Postgres: results, stages, limits, cancel, pause, parking, time-outs,
 * stopping, statistics. Rows X3, X9, X13; W-M5, W-M12, W-M13, W-M22.
 */
#include "pg_work.h"

static int runs, others;  /* handlers' counters */
static int gate;          /* holding handlers go on when it is set */
static int stop_seen;     /* the last jobq_stop that a handler saw, plus 1 */
static char seen[4][300]; /* what handlers saw, by stage */

static int start_over(void **state)
{
    SET(runs, 0);
    SET(others, 0);
    SET(gate, 0);
    SET(stop_seen, 0);
    memset(seen, 0, sizeof seen);
    return pg_empty(state);
}

static int64_t enqueue_kind(const char *kind, const char *payload)
{
    jobq_pg_job job = plain_job();

    job.kind = kind;
    job.payload = jobq_str_from(payload);
    return enqueue_with(&job);
}

/* -- handlers -- */

static jobq_outcome succeeds(jobq_call *call)
{
    (void)call;
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome counts_others(jobq_call *call)
{
    (void)call;
    ADD(others);
    return JOBQ_OUTCOME_SUCCESS;
}

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
static jobq_outcome holds(jobq_call *call)
{
    (void)call;
    ADD(runs);
    while (!GET(gate)) nap_us(2000);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Until it is asked to stop. */
static jobq_outcome heeds(jobq_call *call)
{
    jobq_stop why;

    ADD(runs);
    while ((why = jobq_call_stopping(call)) == JOBQ_STOP_NONE) nap_us(2000);
    SET(stop_seen, (int)why + 1);
    return why == JOBQ_STOP_CANCEL ? JOBQ_OUTCOME_CANCELLED : JOBQ_OUTCOME_RETRY;
}

/* Until it is asked to cancel; then it would rather be run again. */
static jobq_outcome retries_when_cancelled(jobq_call *call)
{
    ADD(runs);
    while (jobq_call_stopping(call) != JOBQ_STOP_CANCEL) nap_us(2000);
    return JOBQ_OUTCOME_RETRY;
}

static jobq_outcome succeeds_when_cancelled(jobq_call *call)
{
    ADD(runs);
    while (jobq_call_stopping(call) != JOBQ_STOP_CANCEL) nap_us(2000);
    return JOBQ_OUTCOME_SUCCESS;
}

static void see(const jobq_call *call)
{
    snprintf(seen[call->job.stage], sizeof seen[0], "%s%.*s|%.*s|%d",
             call->payload_bytes ? "b:" : "", (int)call->payload.len,
             call->payload.len > 0 ? call->payload.ptr : "", (int)call->headers.len,
             call->headers.len > 0 ? call->headers.ptr : "", (int)call->job.attempt);
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
    h.run[0] = succeeds;
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
    if (!jobq_call_next(call, jobq_str_from("{\"made\": \"by 0\"}"), false))
        return JOBQ_OUTCOME_DISCARD;
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome second_stage(jobq_call *call)
{
    jobq_str bytes = {"\x01\0\xff", 3};

    see(call);
    if (jobq_call_next(call, jobq_str_from("{broken"), false)) return JOBQ_OUTCOME_DISCARD;
    bytes.len = 1048577; /* more than payload_max; not looked at */
    if (jobq_call_next(call, bytes, true)) return JOBQ_OUTCOME_DISCARD;
    bytes.len = 3;
    if (!jobq_call_next(call, bytes, true)) return JOBQ_OUTCOME_DISCARD;
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
    assert_string_equal(seen[0], "{\"n\": 1}|{\"h\": 1}|1");
    assert_string_equal(seen[1], "{\"made\": \"by 0\"}|{\"h\": 1}|1");
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
    if (!jobq_call_next(call, jobq_str_from("{\"made\": \"with a connection\"}"), false)) {
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
    assert_string_equal(seen[1], "{\"made\": \"with a connection\"}||1");
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

/* -- exactly once -- */

static jobq_outcome completes_here(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char *text = for_schema("INSERT INTO jobq.effect VALUES (1)", schema);
    PGresult *res;
    bool committed;

    ADD(runs);
    if (jobq_pg_call_complete(call, conn, &error) != JOBQ_ERROR_INVALID)
        ADD(others); /* not in a transaction */
    PQclear(PQexec(conn, "BEGIN"));
    PQclear(PQexec(conn, text));
    free(text);
    if (jobq_pg_call_complete(call, conn, &error) != JOBQ_OK) ADD(others);
    res = PQexec(conn, "COMMIT");
    committed = strcmp(PQcmdStatus(res), "COMMIT") == 0;
    PQclear(res);
    return committed ? JOBQ_OUTCOME_DONE : JOBQ_OUTCOME_RETRY;
}

static void completing_in_the_handlers_transaction_is_one_with_its_effects(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", completes_here);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;

    (void)unused;
    RUN("DROP TABLE IF EXISTS jobq.effect");
    RUN("CREATE TABLE jobq.effect (job bigint)");
    enqueue_count(100);
    d.loop.until = JOBQ_UNTIL_EMPTY;
    assert_int_equal(jobq_pg_work(pg, &d, &error), JOBQ_OK);
    assert_int_equal(GET(others), 0);
    assert_int_equal(GET(runs), 100);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 100);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's' AND attempt = 1"),
                     100);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim"), 0);
}

static jobq_outcome completes_with_next(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn;

    see(call);
    if (call->job.stage == 1) return JOBQ_OUTCOME_SUCCESS;
    conn = jobq_pg_call_conn(call, &error);
    jobq_call_next(call, jobq_str_from("\"next\""), false);
    PQclear(PQexec(conn, "BEGIN"));
    if (jobq_pg_call_complete(call, conn, &error) != JOBQ_OK) ADD(others);
    PQclear(PQexec(conn, "COMMIT"));
    return JOBQ_OUTCOME_DONE;
}

static void a_stage_completed_in_a_transaction_goes_on(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_handler h = handler_of("q", "k", completes_with_next);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    job.stages = 2;
    enqueue_with(&job);
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
    assert_int_equal(GET(others), 0);
    assert_string_equal(seen[1], "\"next\"||1");
}

static jobq_outcome completes_without_the_lease(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char *text = for_schema("INSERT INTO jobq.effect VALUES (2)", schema);
    PGresult *res;

    if (ADD(runs) > 1) {
        free(text);
        return JOBQ_OUTCOME_SUCCESS;
    }
    PQclear(PQexec(conn, "BEGIN"));
    PQclear(PQexec(conn, text));
    free(text);
    while (!GET(gate)) nap_us(1000); /* meanwhile the lease is taken away */
    if (jobq_pg_call_complete(call, conn, &error) == JOBQ_ERROR_LOST) ADD(others);
    res = PQexec(conn, "COMMIT");
    if (strcmp(PQcmdStatus(res), "ROLLBACK") == 0) ADD(others);
    PQclear(res);
    return JOBQ_OUTCOME_DONE; /* a lie, even */
}

static void a_lost_lease_rolls_the_handlers_transaction_back(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", completes_without_the_lease);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    RUN("DROP TABLE IF EXISTS jobq.effect");
    RUN("CREATE TABLE jobq.effect (job bigint)");
    enqueue_count(1);
    start(&d);
    assert_true(reaches(20, &runs, 1));
    RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 s', beat = beat + 1000000; "
        "SELECT jobq.rescue(id, beat, 10) FROM jobq.worker"); /* at once: a beat would renew it */
    SET(gate, 1);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
    assert_true(reaches(20, &others, 2)); /* the second run may end first */
    assert_int_equal(GET(runs), 2); /* the worker registered again and ran it */
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 1);
}

static jobq_outcome lies(jobq_call *call)
{
    (void)call;
    return ADD(runs) == 1 ? JOBQ_OUTCOME_DONE : JOBQ_OUTCOME_SUCCESS;
}

static void done_without_completing_is_a_failed_attempt(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", lies);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    enqueue_count(1);
    RUN("UPDATE jobq.queue SET backoff_base_us = 1000");
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
    expect_text("the handler said done, but its transaction did not complete the job",
                "SELECT errors->0->>'error' FROM jobq.history");
    assert_int_equal(GET(runs), 2);
}

static jobq_outcome leaves_a_transaction_open(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char *text = for_schema("INSERT INTO jobq.effect VALUES (3)", schema);

    ADD(runs);
    PQclear(PQexec(conn, "BEGIN"));
    PQclear(PQexec(conn, text));
    free(text);
    return JOBQ_OUTCOME_SUCCESS;
}

static void what_a_handler_leaves_open_is_rolled_back(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", leaves_a_transaction_open);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;

    (void)unused;
    RUN("DROP TABLE IF EXISTS jobq.effect");
    RUN("CREATE TABLE jobq.effect (job bigint)");
    enqueue_count(50);
    d.loop.until = JOBQ_UNTIL_EMPTY;
    assert_int_equal(jobq_pg_work(pg, &d, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 50);
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
        while (jobq_call_stopping(call) != JOBQ_STOP_CANCEL) nap_us(1000);
        return JOBQ_OUTCOME_DISCARD;
    }
    nap_us(1000000); /* revived: several heartbeats go by */
    why = jobq_call_stopping(call);
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
    jobq_pg_handler h = handler_of("q", "k", succeeds);
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
    jobq_pg_handler h = handler_of("q", "k", succeeds);
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
    jobq_pg_handler h = handler_of("q", "k", succeeds);
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

/* -- kinds -- */

static void a_kind_without_a_handler_waits_for_one(void **unused)
{
    jobq_pg_handler mine = handler_of("q", "k", succeeds),
                    theirs = handler_of("q", "other", counts_others);
    jobq_pg_worker_desc d = work_of(&mine, 1), e = work_of(&theirs, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;

    (void)unused;
    enqueue_count(5);
    job.kind = "other";
    enqueue_with(&job);
    enqueue_with(&job);
    w = start(&d);
    assert_true(
        becomes(20, 2,
                "SELECT count(*) FROM jobq.job WHERE run_at = 'infinity' AND state = 'r' AND"
                " attempt = 0"));
    assert_true(reaches(20, &runs, 5));
    enqueue_with(&job); /* comes later, is parked as well */
    assert_true(becomes(20, 3, "SELECT count(*) FROM jobq.job WHERE run_at = 'infinity'"));
    stop(w);
    start(&e);
    assert_true(reaches(20, &others, 3));
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.job"));
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE attempt = 1"), 8);
    assert_int_equal(number("SELECT count(*) FROM jobq.kind WHERE parked_at IS NOT NULL"), 0);
}

/* It ran when its worker died, and the worker that rescued it has no handler for it. */
static void a_parked_suspect_runs_once_its_kind_is_back(void **unused)
{
    jobq_pg_handler mine = handler_of("q", "k", succeeds),
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

/* Parking is a statement that takes time: meanwhile a worker with that kind may register and
 * look. */
static void a_job_parked_while_its_kind_comes_back_is_not_forgotten(void **unused)
{
    jobq_pg_handler theirs = handler_of("q", "other", counts_others);
    jobq_pg_worker_desc e = work_of(&theirs, 1);
    jobq_policy policy = jobq_policy_defaults(NULL);
    verb_batch batch;
    verb_result result;
    jobq_pg_error error;
    jobq_error answer;
    jobq_event event;
    PGconn *other = PQconnectdb(server());

    (void)unused;
    enqueue_kind("other", "1");
    enqueue_kind("other", "2");
    register_worker(101, 600 * SECOND);
    assert_int_equal(claim_by(101, 1, 2, false, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 2);
    assert_int_equal(settle_with(&batch.jobs[0], JOBQ_EVENT_PARK, NULL), JOBQ_OK);
    memset(&event, 0, sizeof event);
    memset(&result, 0, sizeof result);
    event.kind = JOBQ_EVENT_PARK;
    assert_int_equal(jobq_job_decide(&policy, &batch.jobs[1], &event, &result.decision), JOBQ_OK);
    result.id = batch.jobs[1].id;
    result.worker = 101;
    result.claim = 1;
    PQclear(PQexec(other, "BEGIN"));
    assert_int_equal(verb_settle(pg, other, &result, 1, &answer, &error), JOBQ_OK);
    start(&e);
    nap_us(1500000); /* it registers, and takes what it sees parked */
    PQclear(PQexec(other, "COMMIT"));
    PQfinish(other);
    verb_batch_clear(&batch);
    assert_true(reaches(10, &others, 2));
}

/* Someone looks at a parked job, or changes it, while its kind comes back. */
static void a_parked_job_that_is_locked_is_not_forgotten(void **unused)
{
    static const char *const unpark = "SELECT jobq.unpark(max(kind_id), 9) FROM jobq.job";
    static const char *const marked = "SELECT count(*) FROM jobq.kind WHERE parked_at IS NOT NULL";
    PGconn *other = PQconnectdb(server());
    verb_batch batch;
    long unparked, kinds;
    int i;

    (void)unused;
    for (i = 0; i < 2; i++) enqueue_kind("other", "1");
    register_worker(101, 600 * SECOND);
    assert_int_equal(claim_by(101, 1, 2, false, &batch), JOBQ_OK);
    for (i = 0; i < 2; i++) {
        assert_int_equal(settle_with(&batch.jobs[i], JOBQ_EVENT_PARK, NULL), JOBQ_OK);
    }
    verb_batch_clear(&batch);
    PQclear(sql(other, "BEGIN; SELECT FROM jobq.job ORDER BY id LIMIT 1 FOR UPDATE"));
    unparked = number(unpark);
    kinds = number(marked);
    PQclear(sql(other, "ROLLBACK")); /* before anything can fail */
    PQfinish(other);
    assert_int_equal(unparked, 1);
    assert_int_equal(kinds, 1);
    assert_int_equal(number(unpark), 1);
    assert_int_equal(number(marked), 0);
}

static void a_foreign_kind_is_left_to_its_own_workers(void **unused)
{
    jobq_pg_handler mine = handler_of("q", "k", succeeds),
                    theirs = handler_of("q", "other", counts_others);
    jobq_pg_worker_desc d = work_of(&mine, 1), e = work_of(&theirs, 1);
    jobq_pg_job job = plain_job();
    int i;

    (void)unused;
    start(&d);
    start(&e);
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.worker"));
    all_hear(); /* each of the other */
    for (i = 0; i < 200; i++) {
        job.kind = i % 2 ? "k" : "other";
        enqueue_with(&job);
    }
    assert_true(reaches(30, &runs, 100));
    assert_true(reaches(30, &others, 100));
    assert_true(becomes(20, 200, "SELECT count(*) FROM jobq.history WHERE attempt = 1"));
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.kind WHERE parked_at IS NOT NULL"));
}

/* -- more kinds than a loop could list -- */

enum { MANY = 100 };
static char many_names[MANY][8];
static jobq_pg_handler many[MANY];

/* Handlers for k0 to k99, and a job of each, or more. */
static void many_kinds(jobq_handler run)
{
    int i;

    for (i = 0; i < MANY; i++) {
        snprintf(many_names[i], sizeof many_names[i], "k%d", i % 1000);
        many[i] = handler_of("q", many_names[i], run);
    }
}

static void enqueue_many_kinds(int count)
{
    int i;

    for (i = 0; i < count; i++) enqueue_kind(many_names[i % MANY], "1");
}

/* All but k0, which runs alone: also right from the start of a worker. */
static void no_paused_kind_runs_however_many_there_are(void **unused)
{
    jobq_pg_worker_desc d = work_of(many, MANY);
    int i;

    (void)unused;
    many_kinds(succeeds);
    enqueue_many_kinds(MANY);
    RUN("UPDATE jobq.kind SET paused_at = now() WHERE name <> 'k0'");
    start(&d);
    for (i = 0; i < 5; i++) {
        all_hear();
        enqueue_kind("k0", "1");
        assert_true(reaches(20, &runs, i + 2));
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0 AND "
                            "run_at < 'infinity'"), MANY - 1);
    RUN("SELECT jobq.resume('q', name) FROM jobq.kind");
    assert_true(reaches(20, &runs, MANY + 5));
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.job"));
}

/* They wait for their own worker, which is busy: no other one takes them and gives them back. */
static void kinds_of_a_busy_worker_are_left_to_it(void **unused)
{
    jobq_pg_handler mine = handler_of("q", "k", counts_others);
    jobq_pg_worker_desc d = work_of(&mine, 1), e = work_of(many, MANY);
    jobq_pg_worker *idle;
    int64_t before;
    int i;

    (void)unused;
    many_kinds(holds);
    e.loop.threads = 1;
    idle = start(&d);
    start(&e);
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.worker"));
    all_hear();
    before = jobq_pg_worker_stats(idle).jobs.claimed;
    enqueue_many_kinds(4 * MANY);
    assert_true(reaches(20, &runs, 1));
    for (i = 1; i <= 5; i++) {
        all_hear();
        enqueue_kind("k", "1");
        assert_true(reaches(20, &others, i));
    }
    assert_int_equal(jobq_pg_worker_stats(idle).jobs.claimed - before, 5);
    assert_int_equal(jobq_pg_worker_stats(idle).jobs.released, 0);
    SET(gate, 1);
}

/* A kind without a handler anywhere is parked, and when a kind of another worker is there too. Ten
 * thousand take their turns. */
static void of_ten_thousand_kinds_each_is_parked_in_its_turn(void **unused)
{
    jobq_pg_handler mine = handler_of("q", "k", succeeds);
    jobq_pg_worker_desc d = work_of(&mine, 1);

    (void)unused;
    enqueue_kind("paused", "1");
    RUN("SELECT jobq.pause('q', 'paused')");
    RUN("INSERT INTO jobq.queue (name) SELECT 'q' || i FROM generate_series(1, 1000) i");
    RUN("INSERT INTO jobq.kind (queue_id, queue, payload_max, name) SELECT q.id, q.name, "
        "q.payload_max, 'k' || i FROM jobq.queue q, "
        "generate_series(1, 10) i");
    RUN("INSERT INTO jobq.kind (queue_id, queue, payload_max, name) SELECT q.id, q.name, "
        "q.payload_max, 'x' || i FROM jobq.queue q, "
        "generate_series(1, 600) i WHERE q.name = 'q'");
    RUN("INSERT INTO jobq.job (queue_id, kind_id) SELECT k.queue_id, k.id FROM jobq.kind k "
        "JOIN jobq.queue q ON q.id = k.queue_id WHERE q.name = 'q' AND k.paused_at IS NULL");
    d.loop.heartbeat_us = 50000;
    start(&d);
    enqueue_kind("k", "1");
    assert_true(reaches(20, &runs, 1));
    assert_true(becomes(240, 610, "SELECT count(*) FROM jobq.job WHERE run_at = 'infinity'"));
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 611);
    enqueue_kind("k", "1");
    assert_true(reaches(20, &runs, 2));
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
    assert_int_equal(jobq_pg_worker_stats(w).jobs.abandoned, 1);
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
        jobq_pg_worker_health(w, &health);
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
    jobq_pg_handler h = handler_of("q", "k", succeeds);
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

static int times[20001];
static int64_t first_id;

static jobq_outcome ticks_off(jobq_call *call)
{
    int64_t at = call->job.id - first_id;

    if (at >= 0 && at < (int64_t)COUNT(times)) ADD(times[at]);
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

/* X3 by public workers; their statistics add up, no claim row stays. */
static void sixteen_workers_do_each_of_10000_jobs_once(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", ticks_off);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *all[16];
    jobq_loop_stats sum, one;
    int count = check_slow() ? 1000 : 10000, i;

    (void)unused;
    memset(times, 0, sizeof times);
    memset(&sum, 0, sizeof sum);
    enqueue_count((size_t)count);
    first_id = number("SELECT min(id) FROM jobq.job");
    d.loop.threads = 1;
    d.loop.lease_us = 20 * SECOND;
    for (i = 0; i < 16; i++) all[i] = start(&d);
    while (!reaches(0.1, &runs, count)) {
        assert_int_equal(number("SELECT jobq.audit()"), 0);
        assert_true(GET(runs) <= count);
    }
    assert_true(becomes(30, count, "SELECT count(*) FROM jobq.history"));
    assert_true(becomes(30, 0, "SELECT count(*) FROM jobq.claim"));
    for (i = 0; i < 16; i++) {
        one = stop(all[i]);
        sum.claimed += one.claimed;
        sum.started += one.started;
        sum.flushed += one.flushed;
        sum.succeeded += one.succeeded;
        sum.released += one.released;
        sum.lost += one.lost;
        sum.retried += one.retried;
        sum.deaths += one.deaths;
        sum.reconnects += one.reconnects;
    }
    for (i = 0; i < count; i++) assert_int_equal(times[i], 1);
    assert_int_equal(GET(runs), count);
    assert_int_equal(sum.started, count);
    assert_int_equal(sum.succeeded, count);
    assert_int_equal(sum.claimed, sum.started + sum.released);
    assert_int_equal(sum.flushed, sum.claimed);
    assert_int_equal(sum.lost, 0);
    assert_int_equal(sum.retried, 0);
    assert_int_equal(sum.deaths, 0);
    assert_int_equal(sum.reconnects, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE attempt = 1"), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim"), 0);
}

/* Sessions whose defaults are unkind: serializable, and a handle without prepared statements. */
static void odd_session_defaults_do_no_harm(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", ticks_off);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc odd;
    jobq_pg_error error;
    jobq_pg *handles[2];
    char conninfo[600];
    int i;

    (void)unused;
    memset(times, 0, sizeof times);
    memset(&odd, 0, sizeof odd);
    snprintf(
        conninfo, sizeof conninfo,
        "%s options='-c default_transaction_isolation=serializable "
        "-c enable_indexscan=off -c search_path=nowhere -c DateStyle=SQL -c bytea_output=escape'",
        server());
    odd.conninfo = conninfo;
    odd.schema = schema;
    odd.log = quiet_log;
    assert_int_equal(jobq_pg_open(&handles[0], &odd, &error), JOBQ_OK);
    odd.behind_pooler = true;
    odd.conninfo = server();
    assert_int_equal(jobq_pg_open(&handles[1], &odd, &error), JOBQ_OK);
    enqueue_count(1000);
    first_id = number("SELECT min(id) FROM jobq.job");
    for (i = 0; i < 4; i++) start_on(handles[i % 2], &d);
    assert_true(reaches(30, &runs, 1000));
    assert_true(becomes(30, 1000, "SELECT count(*) FROM jobq.history WHERE attempt = 1"));
    for (i = 0; i < 1000; i++) assert_int_equal(times[i], 1);
    all_stop(NULL);
    jobq_pg_close(handles[0]);
    jobq_pg_close(handles[1]);
}

static jobq_outcome hands_on_what_is_refused(jobq_call *call)
{
    ADD(runs);
    if (call->job.stage == 1) return JOBQ_OUTCOME_SUCCESS;
    jobq_call_next(call,
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
    jobq_pg_handler h[] = {handler_of("q", "k", fails), handler_of("q", "quiet", succeeds),
                           handler_of("silent", "loud", succeeds)};
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
    jobq_pg_handler h = handler_of("q", "k", succeeds);
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
        TEST(a_discard_fails_at_once),
        TEST(no_outcome_counts_as_a_failed_attempt),
        TEST(long_and_broken_error_texts_are_kept_as_far_as_they_go),
        TEST(completing_in_the_handlers_transaction_is_one_with_its_effects),
        TEST(a_stage_completed_in_a_transaction_goes_on),
        TEST(a_lost_lease_rolls_the_handlers_transaction_back),
        TEST(done_without_completing_is_a_failed_attempt),
        TEST(what_a_handler_leaves_open_is_rolled_back),
        TEST(a_ready_job_is_cancelled_at_once),
        TEST(a_running_job_is_told_to_cancel),
        TEST(a_job_asked_to_cancel_is_not_retried),
        TEST(success_after_a_cancel_request_is_success),
        TEST(a_revived_job_is_not_cancelled_by_an_old_request),
        TEST(a_paused_queue_rests_until_it_is_resumed),
        TEST(working_until_empty_ends_on_a_paused_queue),
        TEST(a_new_policy_counts_after_a_heartbeat),
        TEST(a_queue_without_history_leaves_none),
        TEST(a_kind_without_a_handler_waits_for_one),
        TEST(a_parked_suspect_runs_once_its_kind_is_back),
        TEST(a_job_parked_while_its_kind_comes_back_is_not_forgotten),
        TEST(a_parked_job_that_is_locked_is_not_forgotten),
        TEST(a_foreign_kind_is_left_to_its_own_workers),
        TEST(no_paused_kind_runs_however_many_there_are),
        TEST(kinds_of_a_busy_worker_are_left_to_it),
        TEST(of_ten_thousand_kinds_each_is_parked_in_its_turn),
        TEST(an_endless_handler_is_abandoned_and_the_worker_goes_on),
        TEST(the_statement_of_an_overrunning_handler_is_cut_short),
        TEST(a_queues_time_limit_counts_and_the_handler_may_ask),
        TEST(a_scheduled_job_starts_within_50_ms_of_its_time),
        TEST(a_graceful_stop_gives_back_its_own_jobs_only),
        TEST(a_second_stop_ends_the_grace),
        TEST(a_handler_is_told_of_the_shutdown),
        TEST(a_worker_stops_after_so_many_jobs),
        TEST(sixteen_workers_do_each_of_10000_jobs_once),
        TEST(odd_session_defaults_do_no_harm),
        TEST(a_refused_result_holds_nobody_else_back),
        TEST(priorities_run_in_order),
        TEST(kinds_differ_from_their_queue),
    };

    return cmocka_run_group_tests_name("worker", tests, pg_up, pg_down);
}
