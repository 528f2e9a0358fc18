/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_wait.c -- results, and waiting for jobs: every way in which a job ends, ids that are not
 * there, time limits, transactions that are still open, many waiters and one connection.
 */
#include "pg_work.h"

#define ROW(of, i) (((const jobq_pg_job_row *)(of).rows)[i])

static bool takes; /* whether the store took the result */

static jobq_outcome leaves_json(jobq_call *call)
{
    ADD(runs);
    takes = jobq_call_result(call, call->payload, false);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome leaves_bytes(jobq_call *call)
{
    static const jobq_str bytes = {"\0\xff\x01", 3};

    takes = jobq_call_result(call, bytes, true);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome leaves_it_in_a_transaction(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    PQclear(PQexec(conn, "BEGIN"));
    takes = jobq_call_result(call, jobq_str_from("\"own\""), false);
    return jobq_pg_call_commit(call, conn);
}

static jobq_outcome leaves_what_is_refused(jobq_call *call)
{
    ADD(runs);
    takes = jobq_call_result(call, jobq_str_from("\"bad\""), false);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Its result is that of the latest attempt. */
static jobq_outcome fails_at_first(jobq_call *call)
{
    jobq_call_result(call, jobq_str_from(call->job.attempt == 1 ? "1" : "2"), false);
    if (call->job.attempt > 1) return JOBQ_OUTCOME_SUCCESS;
    jobq_call_delay(call, 0);
    return JOBQ_OUTCOME_RETRY;
}

static jobq_outcome leaves_but_discards(jobq_call *call)
{
    jobq_call_result(call, jobq_str_from("1"), false);
    jobq_call_error(call, jobq_str_from("hopeless"));
    return JOBQ_OUTCOME_DISCARD;
}

static jobq_outcome skips(jobq_call *call)
{
    (void)call;
    return JOBQ_OUTCOME_CANCELLED;
}

static jobq_error wait_for(int64_t id, int64_t timeout_us, jobq_pg_rows *rows,
                           jobq_pg_error *error)
{
    return jobq_pg_wait(pg, NULL, &id, 1, timeout_us, rows, error);
}

/* Waits for a job of this kind, and compares what it leaves behind. */
static void leaves(int64_t id, const char *json, const char *bytes_hex)
{
    jobq_pg_rows rows;
    jobq_pg_error error;
    char hex[20] = "";
    size_t i;

    assert_int_equal(wait_for(id, 20 * SECOND, &rows, &error), JOBQ_OK);
    assert_int_equal(rows.count, 1);
    assert_int_equal(ROW(rows, 0).facts.id, id);
    if (json == NULL) assert_null(ROW(rows, 0).result.ptr);
    else assert_string_equal(ROW(rows, 0).result.ptr, json);
    for (i = 0; i < ROW(rows, 0).result_bytes.len; i++)
        sprintf(hex + 2 * i, "%02x", (unsigned char)ROW(rows, 0).result_bytes.ptr[i]);
    assert_string_equal(hex, bytes_hex);
    jobq_pg_rows_clear(&rows);
}

static void results_come_back(void **unused)
{
    jobq_pg_handler h[] = {
        handler_of("q", "json", leaves_json),    handler_of("q", "bytes", leaves_bytes),
        handler_of("q", "none", succeed),        handler_of("q", "retry", fails_at_first),
        handler_of("q", "own", leaves_it_in_a_transaction),
        handler_of("q", "bad", leaves_but_discards)};
    jobq_pg_worker_desc d = work_of(h, 6);

    (void)unused;
    start(&d);
    leaves(enqueue_kind("json", "{\"a\": [1, 2]}"), "{\"a\": [1, 2]}", "");
    leaves(enqueue_kind("bytes", "1"), NULL, "00ff01");
    leaves(enqueue_kind("none", "1"), NULL, "");
    leaves(enqueue_kind("retry", "1"), "2", "");
    leaves(enqueue_kind("own", "1"), "\"own\"", "");
    leaves(enqueue_kind("bad", "1"), NULL, "");
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE result IS NOT NULL"), 3);
    expect_text("{\"a\": [1, 2]}", "SELECT result FROM jobq.past_jobs WHERE kind = 'json'");
}

/* Of a batch, each job has its own, and those without one have none. */
static void each_job_has_its_own_result(void **unused)
{
    jobq_pg_handler h[] = {handler_of("q", "k", leaves_json), handler_of("q", "none", succeed)};
    jobq_pg_worker_desc d = work_of(h, 2);
    int64_t id;

    (void)unused;
    d.loop.threads = 1;
    d.loop.flush_us = SECOND;
    enqueue_kind("none", "7");
    id = enqueue_kind("k", "7");
    start(&d);
    leaves(id, "7", ""); /* the first job of its flush has none */
    all_stop(NULL);
    RUN("DELETE FROM jobq.history");
    d = work_of(h, 2);
    RUN("SELECT jobq.enqueue('q', CASE n %% 3 WHEN 0 THEN 'none' ELSE 'k' END, to_jsonb(n)) "
        "FROM generate_series(1, 2000) n");
    start(&d);
    assert_true(becomes(20, 2000, "SELECT count(*) FROM jobq.history"));
    assert_int_equal(number("SELECT count(*) FROM jobq.past_jobs "
                            "WHERE (kind = 'k' AND result = payload) "
                            "OR (kind = 'none' AND result IS NULL)"), 2000);
}

static void a_result_is_kept_without_history(void **unused)
{
    jobq_pg_handler h[] = {handler_of("q", "k", leaves_json), handler_of("q", "none", succeed)};
    jobq_pg_worker_desc d = work_of(h, 2);
    int64_t id, gone;

    (void)unused;
    RUN("SELECT jobq.queue_set('q', history => false)");
    id = enqueue_kind("k", "7");
    gone = enqueue_kind("none", "7");
    start(&d); /* its first claim takes both, and one flush ends them */
    leaves(id, "7", "");
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.job"));
    assert_int_equal(number("SELECT count(*) FROM jobq._complete_with('{5,5}', '{6,6}', '{7,8}', "
                            "'{1,NULL}', '{NULL,NULL}')"), 2); /* lost */
    RUN("INSERT INTO jobq.job (id, queue_id, kind_id, state, worker, claim, claimed_at) SELECT n, "
        "k.queue_id, k.id, 'x', 5, 6, now() FROM jobq.kind k, generate_series(70001, 70002) n "
        "WHERE k.name = 'none'");
    assert_int_equal(number("SELECT count(*) FROM jobq._complete_with('{5,5}', '{6,6}', "
                            "'{70001,70002}', '{NULL,2}', '{NULL,NULL}')"), 0);
    expect_text("70002", "SELECT string_agg(id::text, ' ') FROM jobq.history WHERE id > 70000");
    RUN("DELETE FROM jobq.history WHERE id > 70000");
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE id = %lld", (long long)gone),
                     0);
}

/* The worker lost the job meanwhile: what it would leave behind is not written. */
static void a_result_is_fenced(void **unused)
{
    int64_t id = enqueue_kind("k", "1");
    char *answer;

    (void)unused;
    RUN("UPDATE jobq.job SET state = 'x', worker = 5, claim = 6, claimed_at = now(), attempt = 1");
    answer = text_of("SELECT answer FROM jobq._complete_with('{4}', '{6}', '{%lld}', '{1}', "
                     "ARRAY[NULL::bytea])", (long long)id);
    assert_string_equal(answer, "l");
    free(answer);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq._complete_with('{5}', '{6}', "
                            "ARRAY[(SELECT id FROM jobq.job)], '{1}', ARRAY[NULL::bytea])"), 0);
    expect_text("1", "SELECT result FROM jobq.history");
}

/* As a next stage's payload: the attempt fails, and the error says why. */
static void a_result_that_postgres_refuses_fails_the_attempt(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", leaves_what_is_refused);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_rows rows;
    jobq_pg_error error;
    int64_t id;

    (void)unused;
    id = enqueue_kind("k", "1");
    RUN("UPDATE jobq.job SET max_attempts = 1");
    RUN("ALTER TABLE jobq.history ADD CONSTRAINT choosy CHECK (result <> '\"bad\"')");
    start(&d);
    assert_int_equal(wait_for(id, 20 * SECOND, &rows, &error), JOBQ_OK);
    RUN("ALTER TABLE jobq.history DROP CONSTRAINT choosy");
    assert_int_equal(ROW(rows, 0).facts.state, JOBQ_STATE_FAILED);
    assert_non_null(strstr(ROW(rows, 0).errors.ptr, "the database refused the result"));
    jobq_pg_rows_clear(&rows);
}

static void a_wait_ends_when_all_its_jobs_have(void **unused)
{
    static const jobq_state states[] = {JOBQ_STATE_SUCCEEDED, JOBQ_STATE_FAILED,
                                        JOBQ_STATE_CANCELLED};
    jobq_pg_handler h[] = {handler_of("q", "good", holds),
                           handler_of("q", "bad", leaves_but_discards),
                           handler_of("q", "none", skips)};
    jobq_pg_worker_desc d = work_of(h, 3);
    jobq_pg_rows rows;
    jobq_pg_error error;
    int64_t ids[3];
    int i;

    (void)unused;
    ids[0] = enqueue_kind("good", "1");
    ids[1] = enqueue_kind("bad", "2");
    ids[2] = enqueue_kind("none", "3");
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.job"));
    assert_int_equal(jobq_pg_wait(pg, NULL, ids, 3, 20000, &rows, &error), JOBQ_ERROR_TIMEOUT);
    assert_int_equal(rows.count, 3);
    assert_int_equal(ROW(rows, 0).facts.state, JOBQ_STATE_RUNNING);
    assert_int_equal(ROW(rows, 1).facts.state, JOBQ_STATE_FAILED);
    jobq_pg_rows_clear(&rows);
    SET(gate, 1);
    assert_int_equal(jobq_pg_wait(pg, NULL, ids, 3, 20 * SECOND, &rows, &error), JOBQ_OK);
    for (i = 0; i < 3; i++) {
        assert_int_equal(ROW(rows, i).facts.id, ids[i]);
        assert_int_equal(ROW(rows, i).facts.state, states[i]);
    }
    jobq_pg_rows_clear(&rows);
    assert_int_equal(jobq_pg_wait(pg, NULL, ids, 3, JOBQ_NEVER, NULL, NULL), JOBQ_OK);
}

static void what_is_not_there_is_answered_so(void **unused)
{
    int64_t ids[3], ended = enqueue_kind("k", "1"), gone = enqueue_kind("k", "2");
    jobq_pg_rows rows;
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(ended), NULL, NULL, &error), JOBQ_OK);
    RUN("DELETE FROM jobq.job");
    ids[0] = gone, ids[1] = ended, ids[2] = 999999999;
    assert_int_equal(jobq_pg_wait(pg, NULL, ids, 2, JOBQ_NEVER, &rows, &error),
                     JOBQ_ERROR_NOT_FOUND);
    assert_int_equal((int)ROW(rows, 0).facts.state, 0);
    assert_int_equal(ROW(rows, 0).facts.id, gone);
    assert_int_equal(ROW(rows, 1).facts.state, JOBQ_STATE_CANCELLED);
    assert_string_equal(error.value, "gone");
    jobq_pg_rows_clear(&rows);
    assert_int_equal(wait_for(ids[2], JOBQ_NEVER, NULL, &error), JOBQ_ERROR_NOT_FOUND);
    assert_string_equal(error.value, "999999999");
    ids[1] = enqueue_kind("k", "3");
    assert_int_equal(jobq_pg_wait(pg, NULL, ids, 2, 20000, NULL, &error), JOBQ_ERROR_TIMEOUT);
}

static void a_wait_takes_any_numbers(void **unused)
{
    int64_t id = enqueue_kind("k", "1");
    jobq_pg_rows rows;
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(wait_for(id, -1, &rows, &error), JOBQ_ERROR_TIMEOUT);
    assert_int_equal(rows.count, 1);
    jobq_pg_rows_clear(&rows);
    assert_int_equal(wait_for(id, INT64_MIN, NULL, &error), JOBQ_ERROR_TIMEOUT);
    assert_int_equal(jobq_pg_wait(pg, NULL, NULL, 0, SECOND, &rows, &error), JOBQ_OK);
    assert_int_equal(rows.count, 0);
    assert_int_equal(jobq_pg_wait(pg, NULL, &id, -1, SECOND, &rows, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "count");
}

/* When the wait has begun: it has made the connection that listens. */
static void *frees_the_pool(void *conn)
{
    while (number("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'busy pool'") < 2)
        nap_us(1000);
    jobq_pg_release(pg, (PGconn *)conn);
    return NULL;
}

/* It says so, and not that the job has not ended; and it goes on when a connection is free. */
static void a_busy_pool_is_no_end_that_did_not_come(void **unused)
{
    char conninfo[300];
    jobq_pg_desc desc = {.conninfo = conninfo, .schema = schema, .pool_max = 1,
                         .acquire_us = 1000};
    int64_t id = enqueue_kind("k", "1");
    jobq_pg *usual = pg;
    jobq_pg_error error;
    jobq_pg_rows rows;
    pthread_t thread;
    PGconn *conn;

    (void)unused;
    snprintf(conninfo, sizeof conninfo, "%s application_name='busy pool'", server());
    RUN("SELECT jobq.cancel(%lld)", (long long)id);
    assert_int_equal(jobq_pg_open(&pg, &desc, NULL), JOBQ_OK);
    assert_int_equal(jobq_pg_acquire(pg, &conn, NULL), JOBQ_OK);
    assert_int_equal(wait_for(id, 0, &rows, &error), JOBQ_ERROR_FULL);
    assert_int_equal(wait_for(id, 50000, &rows, &error), JOBQ_ERROR_FULL);
    assert_non_null(strstr(error.message, "pool_max"));
    assert_int_equal(pthread_create(&thread, NULL, frees_the_pool, conn), 0);
    assert_int_equal(wait_for(id, 60 * SECOND, &rows, &error), JOBQ_OK);
    assert_int_equal(ROW(rows, 0).facts.state, JOBQ_STATE_CANCELLED);
    jobq_pg_rows_clear(&rows);
    pthread_join(thread, NULL);
    jobq_pg_close(pg);
    pg = usual;
}

static void a_wait_inside_a_transaction_is_refused(void **unused)
{
    PGconn *conn = PQconnectdb(server());
    int64_t id = enqueue_kind("k", "1");
    jobq_pg_error error;

    (void)unused;
    PQclear(sql(conn, "BEGIN"));
    assert_int_equal(jobq_pg_wait(pg, conn, &id, 1, 0, NULL, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "commit it first"));
    PQclear(sql(conn, "COMMIT"));
    assert_int_equal(jobq_pg_wait(pg, conn, &id, 1, 0, NULL, &error), JOBQ_ERROR_TIMEOUT);
    PQfinish(conn);
}

/* -- notifications -- */

typedef struct waiter {
    int64_t id;
    jobq_error code;
    int64_t ended_mono_us;
    jobq_state state;
} waiter;

static void *waits(void *arg)
{
    waiter *w = (waiter *)arg;
    jobq_pg_rows rows;

    w->code = wait_for(w->id, 60 * SECOND, &rows, NULL);
    w->ended_mono_us = mono_us();
    if (rows.count == 1 && ROW(rows, 0).facts.id == w->id) w->state = ROW(rows, 0).facts.state;
    jobq_pg_rows_clear(&rows);
    return NULL;
}

/* The first wait makes the handle listen. Later ones write at their first look that they wait. */
static void a_wait_has_a_limit(void **unused)
{
    waiter first = {enqueue_kind("k", "2"), JOBQ_OK, 0, JOBQ_STATE_READY};
    int64_t id = enqueue_kind("k", "1"), began;
    jobq_pg_rows rows;
    jobq_pg_error error;
    pthread_t thread;

    (void)unused;
    assert_int_equal(pthread_create(&thread, NULL, waits, &first), 0);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.waiter")); /* the handle listens now */
    RUN("SELECT jobq.cancel(%lld)", (long long)first.id);
    pthread_join(thread, NULL);
    began = mono_us();
    assert_int_equal(wait_for(id, 0, &rows, &error), JOBQ_ERROR_TIMEOUT);
    jobq_pg_rows_clear(&rows);
    assert_int_equal(wait_for(id, 100000, &rows, &error), JOBQ_ERROR_TIMEOUT);
    assert_true(mono_us() - began >= 100000);
    assert_int_equal(ROW(rows, 0).facts.state, JOBQ_STATE_READY);
    assert_int_equal(error.code, JOBQ_ERROR_TIMEOUT);
    assert_non_null(strstr(error.message, "1 of 1 jobs have not ended"));
    jobq_pg_rows_clear(&rows);
    assert_int_equal(number("SELECT count(*) FROM jobq.waiter"), 0);
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(id), NULL, NULL, &error), JOBQ_OK);
    assert_int_equal(wait_for(id, 0, &rows, &error), JOBQ_OK);
    assert_int_equal(ROW(rows, 0).facts.state, JOBQ_STATE_CANCELLED);
    jobq_pg_rows_clear(&rows);
}

/* The looks are seconds apart by then, so only a notification ends the wait this soon. */
static void an_end_is_heard_at_once(void **unused)
{
    static const char *const ends[] = {
        "SELECT jobq.cancel(%lld)", "SELECT jobq.delete(%lld)",
        "SELECT jobq._complete('{5}', '{6}', '{1}', '{%lld}')",
        "SELECT jobq._complete_with('{5}', '{6}', '{%lld}', '{1}', ARRAY[NULL::bytea])"};
    int i;

    (void)unused;
    for (i = 0; i < 4; i++) {
        waiter w = {enqueue_kind("k", "1"), JOBQ_OK, 0, JOBQ_STATE_READY};
        pthread_t thread;
        int64_t ended;
        if (i >= 2) RUN("UPDATE jobq.job SET state = 'x', worker = 5, claim = 6, attempt = 1, "
                        "claimed_at = now()");
        assert_int_equal(pthread_create(&thread, NULL, waits, &w), 0);
        assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.waiter"));
        nap_us(3 * SECOND); /* looks at 2 s and at 4 s, later on a slow machine: far from both */
        RUN(ends[i], (long long)w.id);
        ended = mono_us();
        pthread_join(thread, NULL);
        assert_true(w.ended_mono_us - ended < 500000);
        assert_int_equal(w.code, i == 1 ? JOBQ_ERROR_NOT_FOUND : JOBQ_OK);
        assert_int_equal(number("SELECT count(*) FROM jobq.waiter"), 0);
    }
}

/* Other programs listen too. */
#define LISTENS                                          \
    "query = 'LISTEN job' || 'q_' || to_hex(" \
    "(SELECT DISTINCT channel FROM jobq.waiter))"

static void many_waiters_share_one_connection(void **unused)
{
    enum { MANY = 1000 };
    static waiter all[MANY];
    jobq_pg_desc desc = {.conninfo = server(), .schema = schema, .pool_max = 20,
                         .acquire_us = 60 * SECOND}; /* they look through 20 connections */
    jobq_pg *usual = pg;
    pthread_t threads[MANY];
    pthread_attr_t small;
    int i;

    (void)unused;
    assert_int_equal(jobq_pg_open(&pg, &desc, NULL), JOBQ_OK);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 * 1024);
    for (i = 0; i < MANY; i++) {
        memset(&all[i], 0, sizeof all[i]);
        all[i].id = enqueue_kind("k", "1");
        assert_int_equal(pthread_create(&threads[i], &small, waits, &all[i]), 0);
    }
    assert_true(becomes(20, MANY, "SELECT count(*) FROM jobq.waiter"));
    assert_int_equal(number("SELECT count(DISTINCT channel) FROM jobq.waiter"), 1);
    assert_int_equal(number("SELECT count(*) FROM pg_stat_activity WHERE " LISTENS), 1);
    RUN("SELECT jobq.cancel('q', at_most => %d)", MANY / 2);
    RUN("SELECT jobq.cancel(id) FROM jobq.job");
    for (i = 0; i < MANY; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(all[i].code, JOBQ_OK);
        assert_int_equal(all[i].state, JOBQ_STATE_CANCELLED);
    }
    pthread_attr_destroy(&small);
    jobq_pg_close(pg);
    pg = usual;
}

/* Cancels the job and joins the thread that waits for it. It hears nothing, but its looks are at
 * most four seconds apart. At the end of its minute it looks once more; that is not tested here. */
static void ends_by_a_look(waiter *w, pthread_t thread)
{
    int64_t cancelled;

    RUN("SELECT jobq.cancel(%lld)", (long long)w->id);
    cancelled = mono_us();
    pthread_join(thread, NULL);
    assert_int_equal(w->code, JOBQ_OK);
    assert_int_equal(w->state, JOBQ_STATE_CANCELLED);
    assert_true(w->ended_mono_us - cancelled < 20 * SECOND);
}

/* The connection that listens is killed, and notifications are lost: waits only end later. */
static void a_lost_notification_only_delays(void **unused)
{
    waiter w = {enqueue_kind("k", "1"), JOBQ_OK, 0, JOBQ_STATE_READY};
    pthread_t thread;

    (void)unused;
    assert_int_equal(pthread_create(&thread, NULL, waits, &w), 0);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.waiter"));
    RUN("DELETE FROM jobq.waiter");
    ends_by_a_look(&w, thread);

    w.id = enqueue_kind("k", "1");
    assert_int_equal(pthread_create(&thread, NULL, waits, &w), 0);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.waiter"));
    assert_int_equal(number("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE "
                            LISTENS), 1);
    ends_by_a_look(&w, thread);
}

static void waiters_that_are_gone_are_pruned(void **unused)
{
    int64_t id = enqueue_kind("k", "1");

    (void)unused;
    RUN("SELECT jobq._await('{%lld}', 7)", (long long)id);
    RUN("SELECT jobq._await('{%lld}', 8)", (long long)id);
    RUN("UPDATE jobq.waiter SET since = now() - interval '25 hours' WHERE channel = 7");
    RUN("SELECT jobq.prune(10)");
    assert_int_equal(number("SELECT channel FROM jobq.waiter"), 8);
}

/* -- from SQL -- */

static void psql_can_wait(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", leaves_json);
    jobq_pg_worker_desc d = work_of(&h, 1);
    int64_t id = enqueue_kind("k", "[1]");
    PGconn *conn = PQconnectdb(server());
    PGresult *res;
    char call[200];

    (void)unused;
    snprintf(call, sizeof call, "CALL %s.wait(%lld, '30 ms')", schema, (long long)id);
    res = PQexec(conn, call);
    assert_string_equal(PQgetvalue(res, 0, 0), "ready");
    PQclear(res);
    start(&d);
    snprintf(call, sizeof call, "CALL %s.wait(%lld)", schema, (long long)id);
    res = PQexec(conn, call);
    assert_string_equal(PQgetvalue(res, 0, 0), "succeeded");
    assert_string_equal(PQgetvalue(res, 0, 1), "[1]");
    PQclear(res);
    snprintf(call, sizeof call, "CALL %s.wait(999999)", schema);
    res = PQexec(conn, call);
    assert_string_equal(PQgetvalue(res, 0, 0), "none");
    PQclear(res);
    PQclear(PQexec(conn, "BEGIN"));
    res = PQexec(conn, call);
    assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "2D000");
    PQclear(res);
    PQfinish(conn);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh, all_stop)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(results_come_back),
        TEST(each_job_has_its_own_result),
        TEST(a_result_is_kept_without_history),
        TEST(a_result_is_fenced),
        TEST(a_result_that_postgres_refuses_fails_the_attempt),
        TEST(a_wait_ends_when_all_its_jobs_have),
        TEST(a_wait_has_a_limit),
        TEST(what_is_not_there_is_answered_so),
        TEST(a_wait_takes_any_numbers),
        TEST(a_busy_pool_is_no_end_that_did_not_come),
        TEST(a_wait_inside_a_transaction_is_refused),
        TEST(an_end_is_heard_at_once),
        TEST(many_waiters_share_one_connection),
        TEST(a_lost_notification_only_delays),
        TEST(waiters_that_are_gone_are_pruned),
        TEST(psql_can_wait),
    };

    return cmocka_run_group_tests_name("wait", tests, pg_up, pg_down);
}
