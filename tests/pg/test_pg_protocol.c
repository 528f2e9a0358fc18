/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_protocol.c -- the worker in SQL, sql/optional/protocol.sql: what it may take, the fence,
 * lost answers, suspects and jobs that must run alone, who may be rescued, and the end of a worker.
 * test_pg_differential compares its decisions; tests/python/ runs a whole worker.
 */
#include "pg.h"

/* A worker of queue q, kind k; its lease is never over unless a test says so. */
static long long join(const char *kinds)
{
    char *text = text_of("SELECT worker FROM jobq.work_join('%s', lease => '10 s')", kinds);
    long long worker = atoll(text);

    free(text);
    return worker;
}

#define JOIN() join("{\"q\": [\"k\"]}")

/* Ids in the order of the answer. The caller frees it. */
static char *take(long long worker, int n, int most)
{
    return text_of("SELECT coalesce(string_agg(id::text, ' '), '') FROM jobq.work_take(%lld, %d, "
                   "%d)", worker, n, most);
}

static void takes(const char *wanted, long long worker, int n, int most)
{
    char *got = take(worker, n, most);

    assert_string_equal(got, wanted);
    free(got);
}

/* Runs a statement that must be refused with this SQLSTATE, and must change nothing. */
static void refused(const char *sqlstate, const char *format, ...)
{
    char generic[600], *text, *before = everything(), *after;
    PGresult *res;
    va_list args;

    va_start(args, format);
    vsnprintf(generic, sizeof generic, format, args);
    va_end(args);
    text = for_schema(generic, schema);
    res = PQexec(db, text);
    assert_int_equal(PQresultStatus(res), PGRES_FATAL_ERROR);
    assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), sqlstate);
    after = everything();
    assert_string_equal(before, after);
    free(before);
    free(after);
    free(text);
    PQclear(res);
}

#define ENQUEUE(n) RUN("ALTER SEQUENCE jobq.job_id RESTART; " \
                       "SELECT jobq.enqueue('q', 'k', '{\"n\": 1}') FROM generate_series(1, %d)", n)

static void a_take_hides_the_lanes(void **unused)
{
    long long worker;

    (void)unused;
    RUN("ALTER SEQUENCE jobq.job_id RESTART; SELECT jobq.enqueue('q', 'k', priority => 5); "
        "SELECT jobq.enqueue('q', 'k', priority => -3); SELECT jobq.enqueue('q', 'k', stages => 3);"
        "SELECT jobq.enqueue('q', 'other'); SELECT jobq.enqueue('q', 'k', delay => '1 h'); "
        "SELECT jobq.enqueue('q', 'k', line => 'a'); SELECT jobq.enqueue('q2', 'k')");
    worker = JOIN();
    takes("2", worker, 1, 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.work_take(%lld, 2, 9)", worker), 3);
    takes("", worker, 3, 9); /* another kind, another queue, not due */
    assert_int_equal(number("SELECT count(*) FROM jobq.work_take(%lld, 4, 9)",
                            join("{\"q\": [\"other\"], \"q2\": [\"k\"]}")), 2);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void what_is_paused_or_held_is_left(void **unused)
{
    long long worker;

    (void)unused;
    ENQUEUE(1);
    worker = JOIN();
    RUN("SELECT jobq.pause('q')");
    takes("", worker, 1, 1);
    RUN("SELECT jobq.resume('q'); SELECT jobq.pause('q', 'k')");
    takes("", worker, 2, 1);
    RUN("SELECT jobq.resume('q', 'k'); SELECT jobq.hold('q', NULL, now() + interval '1 h')");
    takes("", worker, 3, 1);
    RUN("UPDATE jobq.queue SET hold_until = NULL");
    takes("1", worker, 4, 1);
}

static void lines_keep_their_limits(void **unused)
{
    long long worker;
    int n;

    (void)unused;
    RUN("ALTER SEQUENCE jobq.job_id RESTART; SELECT jobq.queue_set('q', line_running_max => 1); "
        "SELECT jobq.enqueue('q', 'k', line => chr(97 + n %% 2)) FROM generate_series(1, 6) n");
    worker = JOIN();
    for (n = 1; n < 5; n++) { /* the first may make rows for only some of the lines */
        assert_true(number("SELECT count(*) FROM jobq.work_take(%lld, %d, 9)", worker, n) <= 2);
    }
    expect_text("a b", "SELECT string_agg(line_name, ' ' ORDER BY line_name) FROM jobq.job "
                       "WHERE state = 'x'");
    RUN("SELECT jobq.work_done(j.worker, j.claim, j.id) FROM jobq.job j WHERE j.state = 'x'");
    assert_int_equal(number("SELECT count(*) FROM jobq.work_take(%lld, 5, 9)", worker), 2);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void a_stale_token_changes_nothing(void **unused)
{
    long long worker, other;

    (void)unused;
    ENQUEUE(1);
    worker = JOIN();
    other = JOIN();
    takes("1", worker, 1, 1);
    refused("JQ001", "SELECT jobq.work_done(%lld, 1, 1)", other);
    refused("JQ001", "SELECT jobq.work_done(%lld, 2, 1)", worker);
    refused("JQ001", "SELECT jobq.work_fail(%lld, 2, 1, 'no')", worker);
    refused("JQ001", "SELECT jobq.work_fail(%lld, 1, 2, 'no')", worker);
    RUN("SELECT jobq.work_done(%lld, 1, 1, '7')", worker);
    refused("JQ001", "SELECT jobq.work_done(%lld, 1, 1)", worker);
    refused("JQ001", "SELECT jobq.work_fail(%lld, 1, 1, 'no')", worker);
    expect_text("s 7 0", "SELECT concat_ws(' ', state, result, (SELECT count(*) FROM jobq.claim)) "
                         "FROM jobq.history");
}

static void wrong_arguments_are_refused(void **unused)
{
    long long worker;

    (void)unused;
    ENQUEUE(2);
    worker = JOIN();
    refused("22023", "SELECT jobq.work_join('{}')");
    refused("22023", "SELECT jobq.work_join(NULL)");
    refused("22023", "SELECT jobq.work_join('[\"q\"]')");
    refused("22023", "SELECT jobq.work_join('{\"q\": \"k\"}')");
    refused("22023", "SELECT jobq.work_join('{\"q\": [1]}')");
    refused("22023", "SELECT jobq.work_join('{\"q\": []}')");
    refused("22023", "SELECT jobq.work_join('{\"q\": [\"-\"]}')");
    refused("22023", "SELECT jobq.work_join('{\"q\": [\"k\"]}', lease => '1 ms')");
    refused("22023", "SELECT jobq.work_join('{\"q\": [\"k\"]}', lease => NULL)");
    refused("22023", "SELECT jobq.work_take(%lld, 1, 0)", worker);
    refused("22023", "SELECT jobq.work_take(%lld, 1, NULL)", worker);
    refused("22023", "SELECT jobq.work_take(%lld, 0, 1)", worker);
    takes("1", worker, 1, 1);
    refused("23505", "SELECT jobq.work_take(%lld, 1, 1)", worker);
    refused("JQ002", "SELECT jobq.work_take(12345, 1, 1)");
    refused("22023", "SELECT jobq.work_fail(%lld, 1, 1, 'x', 'success')", worker);
    refused("22023", "SELECT jobq.work_fail(%lld, 1, 1, 'x', 'park')", worker);
    refused("22023", "SELECT jobq.work_fail(%lld, 1, 1, 'x', NULL)", worker);
    refused("22023", "SELECT jobq.work_fail(%lld, 1, 1, 'x', delay => '-1 s')", worker);
    refused("22023", "SELECT jobq.work_fail(%lld, 1, 1, 'x', delay => '1000000 years')", worker);
    RUN("SELECT jobq.work_leave(%lld); SELECT jobq.queue_set('q', running_max => 3)", worker);
    refused("JQ004", "SELECT jobq.work_join('{\"q\": [\"k\"]}')");
}

static void each_end_is_written(void **unused)
{
    long long worker;

    (void)unused;
    ENQUEUE(5);
    RUN("SELECT jobq.queue_set('q', backoff_jitter => 0)");
    worker = JOIN();
    takes("1 2 3 4 5", worker, 1, 5);
    RUN("SELECT jobq.work_fail(%lld, 1, 1, 'once'); SELECT jobq.work_fail(%lld, 1, 2, 'never', "
        "'discard'); SELECT jobq.work_fail(%lld, 1, 3, outcome => 'snooze', delay => '1 min'); "
        "SELECT jobq.work_fail(%lld, 1, 4, outcome => 'release'); SELECT jobq.work_fail(%lld, 1, "
        "5, outcome => 'cancelled')", worker, worker, worker, worker, worker);
    expect_text("1 r 1 5 once, 3 r 0 60 -, 4 r 0 0 -",
                "SELECT string_agg(concat_ws(' ', id, state, attempt, round(extract(epoch FROM "
                "run_at - now())), coalesce(errors -> 0 ->> 'error', '-')), ', ' ORDER BY id) "
                "FROM jobq.job");
    expect_text("2 never", "SELECT concat_ws(' ', id, errors -> 0 ->> 'error') FROM jobq.failed");
    expect_text("5 c", "SELECT concat_ws(' ', id, state) FROM jobq.history");
    assert_int_equal(number("SELECT count(*) FROM jobq.claim"), 0);
}

static void a_handlers_transaction_counts_once(void **unused)
{
    long long worker, n;

    (void)unused;
    RUN("CREATE TABLE IF NOT EXISTS jobq.effect (n int); TRUNCATE jobq.effect");
    ENQUEUE(1);
    worker = JOIN();
    takes("1", worker, 1, 1);
    for (n = 1; n <= 2; n++) { /* the second finds its lease lost */
        PGresult *res;
        char generic[100], *text;
        RUN("BEGIN; INSERT INTO jobq.effect VALUES (1)");
        snprintf(generic, sizeof generic, "SELECT jobq.work_done(%lld, 1, 1)", worker);
        text = for_schema(generic, schema);
        res = PQexec(db, text);
        assert_int_equal(PQresultStatus(res), n == 1 ? PGRES_TUPLES_OK : PGRES_FATAL_ERROR);
        PQclear(res);
        free(text);
        res = PQexec(db, "COMMIT");
        assert_string_equal(PQcmdStatus(res), n == 1 ? "COMMIT" : "ROLLBACK");
        PQclear(res);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 1);
}

static void a_claim_whose_answer_was_lost_goes_back(void **unused)
{
    long long worker;

    (void)unused;
    ENQUEUE(2);
    worker = JOIN();
    takes("1 2", worker, 1, 2);
    RUN("SELECT jobq.work_recover(%lld, 1)", worker);
    refused("JQ001", "SELECT jobq.work_done(%lld, 1, 1)", worker);
    RUN("SELECT jobq.work_recover(%lld, 2)", worker); /* it never arrived; now it never may */
    refused("23505", "SELECT jobq.work_take(%lld, 2, 2)", worker);
    takes("1 2", worker, 3, 2);
    expect_text("1 1", "SELECT string_agg(attempt::text, ' ') FROM jobq.job");
}

/* -- rescue: `mono` is the caller's clock, in seconds -- */

static char watched[2000];

static void beat(long long worker, int mono)
{
    char *text = text_of("SELECT watched FROM jobq.work_heartbeat(%lld, %d000000, '%s')", worker,
                         mono, watched);

    snprintf(watched, sizeof watched, "%s", text);
    free(text);
}

static long rescues(long long worker, int mono)
{
    return number("SELECT jobq.work_rescue(%lld, %d000000, '%s')", worker, mono, watched);
}

/* What was watched was watched on a server that started earlier. */
static void server_restarts(void)
{
    char *text = text_of("SELECT jsonb_set('%s', '{boot}', '1')", watched);

    snprintf(watched, sizeof watched, "%s", text);
    free(text);
}

static void expire(long long worker)
{
    RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 s' WHERE id = %lld", worker);
}

static void only_a_watched_worker_is_rescued(void **unused)
{
    long long victim, rescuer;

    (void)unused;
    ENQUEUE(1);
    victim = JOIN();
    rescuer = JOIN();
    takes("1", victim, 1, 1);
    expire(victim);
    strcpy(watched, "{}");
    beat(rescuer, 100);
    assert_int_equal(rescues(rescuer, 100), 0);
    beat(rescuer, 105);
    assert_int_equal(rescues(rescuer, 109), 0); /* 9 s of its lease of 10 */
    RUN("SELECT jobq.work_heartbeat(%lld, 1)", victim); /* it lives after all */
    expire(victim);
    beat(rescuer, 110);
    assert_int_equal(rescues(rescuer, 110), 0);
    beat(rescuer, 118);
    assert_int_equal(rescues(rescuer, 119), 0);
    beat(rescuer, 130); /* 12 s of silence of its own: it has seen nothing */
    assert_int_equal(rescues(rescuer, 130), 0);
    beat(rescuer, 131);
    RUN("UPDATE jobq.worker SET expires_at = now() + interval '1 min' WHERE id = %lld", victim);
    assert_int_equal(rescues(rescuer, 141), 0); /* the server's clock says that it lives */
    expire(victim);
    beat(rescuer, 139);
    assert_int_equal(rescues(rescuer, 150), 0); /* its own beat is too old */
    server_restarts();                          /* and a pooler has hidden it */
    assert_int_equal(rescues(rescuer, 140), 0);
    beat(rescuer, 140);
    assert_int_equal(rescues(rescuer, 140), 0);
    beat(rescuer, 145);
    assert_int_equal(rescues(rescuer, 149), 0);
    beat(rescuer, 150);
    assert_int_equal(rescues(rescuer, 150), 1);
    refused("JQ001", "SELECT jobq.work_done(%lld, 1, 1)", victim);
    refused("JQ002", "SELECT jobq.work_take(%lld, 2, 1)", victim);
    assert_int_equal(number("SELECT count(*) FROM jobq.work_heartbeat(%lld, 1) WHERE NOT alive",
                            victim), 1);
    expect_text("t f 0", "SELECT concat_ws(' ', suspect, alone, attempt) FROM jobq.job");
}

/* Ends a worker without a word. */
static long kill_worker(long long victim, long long rescuer)
{
    expire(victim);
    strcpy(watched, "{}");
    beat(rescuer, 100);
    beat(rescuer, 105);
    beat(rescuer, 110);
    return rescues(rescuer, 111);
}

static void suspects_come_one_by_one_and_then_alone(void **unused)
{
    long long first, w, rescuer;

    (void)unused;
    ENQUEUE(3);
    first = JOIN();
    rescuer = JOIN();
    takes("1 2 3", first, 1, 3);
    assert_int_equal(kill_worker(first, rescuer), 3);
    w = JOIN();
    takes("1", w, 1, 9); /* a suspect, in a claim of its own */
    takes("", w, 2, 9);  /* and no second one */
    RUN("SELECT jobq.work_done(%lld, 1, 1)", w);
    takes("2", w, 3, 9);
    assert_int_equal(kill_worker(w, rescuer), 1);
    expect_text("2 t, 3 f", "SELECT string_agg(concat_ws(' ', id, alone), ', ' ORDER BY id) FROM "
                            "jobq.job");
    w = JOIN();
    RUN("SELECT jobq.enqueue('q', 'k')");
    takes("2", w, 1, 9); /* it must run alone */
    takes("", w, 2, 9);
    assert_int_equal(kill_worker(w, rescuer), 1);
    w = JOIN();
    takes("2", w, 1, 9);
    assert_int_equal(kill_worker(w, rescuer), 1);
    w = JOIN();
    takes("2", w, 1, 9);
    assert_int_equal(kill_worker(w, rescuer), 0);
    expect_text("2 Max crashes (3) exceeded: worker died",
                "SELECT concat_ws(' ', id, errors -> -1 ->> 'error') FROM jobq.failed");
    w = JOIN();
    takes("3", w, 1, 9);
    takes("4", w, 2, 9);
}

/* Another session's take is under way, and slow: a heartbeat passes it, a second take waits. */
static void a_slow_take_holds_up_no_heartbeat(void **unused)
{
    PGconn *slow = PQconnectdb(server());
    long long w;

    (void)unused;
    ENQUEUE(2);
    w = JOIN();
    PQclear(sql(slow, "BEGIN; SELECT * FROM jobq.work_take(%lld, 1)", w));
    RUN("SET lock_timeout = '1s'");
    assert_int_equal(number("SELECT alive::int FROM jobq.work_heartbeat(%lld, 1)", w), 1);
    refused("55P03", "SELECT * FROM jobq.work_take(%lld, 2)", w);
    RUN("RESET lock_timeout");
    PQclear(sql(slow, "COMMIT"));
    PQfinish(slow);
    takes("2", w, 2, 9);
}

static void one_that_must_run_alone_is_waited_for(void **unused)
{
    long long w;

    (void)unused;
    ENQUEUE(3);
    w = JOIN();
    takes("1", w, 1, 1);
    RUN("UPDATE jobq.job SET suspect = true, alone = true WHERE id = 2");
    takes("3", w, 2, 9); /* it has not waited for a lease */
    RUN("UPDATE jobq.job SET run_at = now() - interval '11 s' WHERE id = 2; "
        "SELECT jobq.enqueue('q', 'k')");
    takes("", w, 3, 9);
    RUN("SELECT jobq.work_done(%lld, 1, 1), jobq.work_done(%lld, 2, 3)", w, w);
    takes("2", w, 4, 9);
    RUN("SELECT jobq.work_done(%lld, 4, 2)", w);
    takes("4", w, 5, 9);
}

static void one_of_a_paused_queue_is_not_waited_for(void **unused)
{
    long long w;

    (void)unused;
    RUN("ALTER SEQUENCE jobq.job_id RESTART; SELECT jobq.enqueue('paused', 'k'); "
        "SELECT jobq.enqueue('q', 'k') FROM generate_series(1, 3)");
    w = join("{\"paused\": [\"k\"], \"q\": [\"k\"]}");
    RUN("UPDATE jobq.job SET suspect = true, alone = true, run_at = now() - interval '11 s' "
        "WHERE id = 1; SELECT jobq.pause('paused')");
    takes("2", w, 1, 1);
    takes("3", w, 2, 1);
    RUN("SELECT jobq.resume('paused'); SELECT jobq.hold('paused', NULL, now() + interval '1 h')");
    takes("4", w, 3, 1);
    RUN("UPDATE jobq.queue SET hold_until = NULL; SELECT jobq.enqueue('q', 'k')");
    takes("", w, 4, 1);
}

/* Of two queues that are never empty each gives jobs in lines, and others. */
static void queues_and_lines_take_turns(void **unused)
{
    long long w;
    int queues, n;

    (void)unused;
    for (queues = 1; queues <= 4; queues++) {
        pg_empty(NULL);
        RUN("SELECT jobq.enqueue('q' || q, 'k', line => nullif(l, '-')) FROM "
            "generate_series(1, %d) q, unnest('{-,a}'::text[]) l, generate_series(1, 20)", queues);
        RUN("SELECT jobq.queue_set('q' || q, line_running_max => 99) FROM generate_series(1, %d) q",
            queues);
        w = join(queues == 1 ? "{\"q1\": [\"k\"]}"
                 : queues == 2 ? "{\"q1\": [\"k\"], \"q2\": [\"k\"]}"
                 : queues == 3 ? "{\"q1\": [\"k\"], \"q2\": [\"k\"], \"q3\": [\"k\"]}"
                 : "{\"q1\": [\"k\"], \"q2\": [\"k\"], \"q3\": [\"k\"], \"q4\": [\"k\"]}");
        for (n = 1; n <= 4 * queues; n++) {
            assert_int_equal(number("SELECT count(*) FROM jobq.work_take(%lld, %d)", w, n), 1);
        }
        expect_text("2 2", "SELECT concat_ws(' ', min(n), max(n)) FROM (SELECT count(*) FILTER "
                    "(WHERE state = 'x') AS n FROM jobq.job GROUP BY queue_id, line_name) l");
    }
}

/* Its lease was over when the limit was set, so the setting did not wait for it. */
static void a_worker_that_slept_while_a_limit_was_set_is_dead(void **unused)
{
    static const char *const how[] = {
        "SELECT jobq.queue_set('q', running_max => 1)",
        "SELECT jobq.queue_set('q', kind => 'k', rate => '1/min')"};
    long long w;
    size_t i;

    (void)unused;
    for (i = 0; i < 2; i++) {
        pg_empty(NULL);
        ENQUEUE(3);
        w = JOIN();
        takes("1", w, 1, 1);
        expire(w);
        RUN("%s", how[i]);
        refused("JQ002", "SELECT jobq.work_take(%lld, 2, 1)", w);
        RUN("SELECT jobq.work_done(%lld, 1, 1)", w); /* what it had is its own */
        assert_int_equal(number("SELECT count(*) FROM jobq.permit"), 1);
        assert_int_equal(number("SELECT count(*) FROM jobq.work_heartbeat(%lld, 1) WHERE alive", w),
                         0);
        refused("JQ004", "SELECT jobq.work_join('{\"q\": [\"k\"]}')");
        assert_int_equal(number("SELECT count(*) FROM jobq.permit"), 0); /* nobody waits for it */
    }
}

static void cancels_are_told(void **unused)
{
    long long w;

    (void)unused;
    ENQUEUE(1);
    w = JOIN();
    takes("1", w, 1, 1);
    RUN("SELECT jobq.cancel(1)");
    assert_int_equal(number("SELECT cancel[1] FROM jobq.work_heartbeat(%lld, 1)", w), 1);
    RUN("SELECT jobq.work_fail(%lld, 1, 1, 'again')", w);
    expect_text("c", "SELECT state FROM jobq.history");
}

static void a_sleeper_is_notified(void **unused)
{
    long long w;
    PGnotify *note;
    int64_t until = mono_us() + 20000000;

    (void)unused;
    w = JOIN();
    RUN("DO $$ BEGIN EXECUTE format('LISTEN %%I', "
        "(SELECT 'jobq_' || to_hex(id) FROM jobq.worker)); "
        "END $$");
    takes("", w, 1, 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.sleeper"), 1);
    ENQUEUE(1);
    do {
        PQconsumeInput(db);
        note = PQnotifies(db);
        if (note == NULL) RUN("SELECT 1");
    } while (note == NULL && mono_us() < until);
    assert_non_null(note);
    PQfreemem(note);
    RUN("UNLISTEN *");
    takes("1", w, 2, 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.sleeper"), 0);
}

static void leaving_gives_back(void **unused)
{
    long long w;

    (void)unused;
    ENQUEUE(2);
    w = JOIN();
    takes("1 2", w, 1, 2);
    RUN("SELECT jobq.work_done(%lld, 1, 1)", w);
    RUN("SELECT jobq.work_leave(%lld)", w);
    expect_text("2 r 0", "SELECT concat_ws(' ', id, state, attempt) FROM jobq.job");
    assert_int_equal(number("SELECT count(*) FROM jobq.claim"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
    RUN("SELECT jobq.work_leave(%lld)", w);
}

/* A role of a worker in another language needs no table. */
static void a_role_may_work_by_these_alone(void **unused)
{
    long long w;

    (void)unused;
    ENQUEUE(1);
    RUN("CREATE ROLE %s_works; SELECT jobq.grant_work('%s_works'); SET ROLE %s_works", schema,
        schema, schema);
    w = JOIN();
    takes("1", w, 1, 1);
    RUN("SELECT jobq.work_heartbeat(%lld, 1); SELECT jobq.work_rescue(%lld, 1, '{}'); "
        "SELECT jobq.work_recover(%lld, 2); SELECT jobq.work_done(%lld, 1, 1); "
        "SELECT jobq.work_leave(%lld)", w, w, w, w, w);
    assert_int_equal(number("SELECT has_function_privilege('jobq._work_settle(bigint, bigint, "
                            "bigint, text, interval, text, jsonb, bytea)', 'EXECUTE')::int"), 0);
    RUN("RESET ROLE; SELECT jobq.revoke('%s_works'); DROP ROLE %s_works", schema, schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_take_hides_the_lanes, pg_empty),
        cmocka_unit_test_setup(what_is_paused_or_held_is_left, pg_empty),
        cmocka_unit_test_setup(lines_keep_their_limits, pg_empty),
        cmocka_unit_test_setup(a_stale_token_changes_nothing, pg_empty),
        cmocka_unit_test_setup(wrong_arguments_are_refused, pg_empty),
        cmocka_unit_test_setup(each_end_is_written, pg_empty),
        cmocka_unit_test_setup(a_handlers_transaction_counts_once, pg_empty),
        cmocka_unit_test_setup(a_claim_whose_answer_was_lost_goes_back, pg_empty),
        cmocka_unit_test_setup(only_a_watched_worker_is_rescued, pg_empty),
        cmocka_unit_test_setup(suspects_come_one_by_one_and_then_alone, pg_empty),
        cmocka_unit_test_setup(a_slow_take_holds_up_no_heartbeat, pg_empty),
        cmocka_unit_test_setup(one_that_must_run_alone_is_waited_for, pg_empty),
        cmocka_unit_test_setup(one_of_a_paused_queue_is_not_waited_for, pg_empty),
        cmocka_unit_test_setup(queues_and_lines_take_turns, pg_empty),
        cmocka_unit_test_setup(a_worker_that_slept_while_a_limit_was_set_is_dead, pg_empty),
        cmocka_unit_test_setup(cancels_are_told, pg_empty),
        cmocka_unit_test_setup(a_sleeper_is_notified, pg_empty),
        cmocka_unit_test_setup(leaving_gives_back, pg_empty),
        cmocka_unit_test_setup(a_role_may_work_by_these_alone, pg_empty),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
