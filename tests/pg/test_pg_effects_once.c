/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Promise 2: a handler runs at least once, and effects in the transaction that completes its job
 * happen once. Rows X3, X5. test_pg_outbox_steps.c and test_pg_relay.c have the same of messages.
 */
#include "processes.h"
#include "proxy.h"

/* -- kills -- */

/* Writes an effect and completes, in one transaction; before and after it may die. */
static int die_before, die_after;

static jobq_outcome effect(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char text[200];
    PGresult *res;
    bool committed;

    ADD(runs);
    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    PQclear(PQexec(conn, "BEGIN"));
    snprintf(text, sizeof text, "INSERT INTO %s.effect VALUES (%lld)", schema,
             (long long)call->job.id);
    PQclear(PQexec(conn, text));
    if (die_before) kill(getpid(), SIGKILL);
    if (jobq_pg_call_complete(call, conn, &error) != JOBQ_OK) {
        PQclear(PQexec(conn, "ROLLBACK"));
        jobq_call_error(call, jobq_str_from(error.message));
        return JOBQ_OUTCOME_RETRY;
    }
    res = PQexec(conn, "COMMIT");
    committed = res != NULL && strcmp(PQcmdStatus(res), "COMMIT") == 0;
    PQclear(res);
    if (die_after) kill(getpid(), SIGKILL);
    return committed ? JOBQ_OUTCOME_DONE : JOBQ_OUTCOME_RETRY;
}

static void effects_and_completion_commit_together(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, effect);
    int count = check_slow() ? 50 : 500;

    (void)unused;
    enqueue_count((size_t)count);
    work_off(&d);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), count);
    assert_int_equal(number("SELECT count(DISTINCT job) FROM jobq.effect"), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE errors IS NULL"), count);
}

/* Killed inside the transaction, or right after its COMMIT: once all the same. */
static void a_kill_around_the_commit_doubles_nothing(void **unused)
{
    int after;

    (void)unused;
    for (after = 0; after < 2; after++) {
        pid_t pid;
        quick_queue(NULL);
        enqueue_count(1);
        die_before = !after;
        die_after = after;
        pid = spawn_one(effect, SECOND);
        reap(pid);
        assert_int_equal(number("SELECT count(*) FROM jobq.effect"), after);
        die_before = die_after = 0;
        pid = spawn_one(effect, SECOND);
        assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
        kill_hard(pid);
        assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 1);
    }
}

/* Waits for the children's work; starts each again that has died. Fails after that many seconds. */
static void keep_alive(pid_t *pids, int count, const jobq_pg_worker_desc *d, double seconds,
                       long wanted, const char *query)
{
    int64_t until = mono_us() + (int64_t)(seconds * 1e6);
    int i, status;

    while (number("%s", query) != wanted) {
        if (mono_us() > until)
            fail_msg("%ld instead of %ld: %s", number("%s", query), wanted, query);
        assert_int_equal(number("SELECT jobq.audit()"), 0);
        for (i = 0; i < count; i++) {
            if (waitpid(pids[i], &status, WNOHANG) != pids[i]) continue;
            children[i] = 0;
            pids[i] = spawn(d);
        }
        nap_us(20000);
    }
}

/* Workers fall like flies, two stages, effects in the completing transaction: each effect once. */
static void random_kills_leave_each_effect_once(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", effect_once);
    jobq_pg_worker_desc d = quick_death(&h, 1);
    jobq_random random = {4711};
    int64_t until = mono_us() + (check_slow() ? 20 : 8) * SECOND;
    pid_t pids[3];
    jobq_pg_job job = plain_job();
    int i, kills = 0, count = check_slow() ? 200 : 2000;

    (void)unused;
    job.stages = 2;
    for (i = 0; i < count; i++) enqueue_with(&job);
    RUN("UPDATE jobq.queue SET max_crashes = 1000, max_attempts = 1000");
    for (i = 0; i < 3; i++) pids[i] = spawn(&d);
    while (mono_us() < until || kills <= 5) {
        nap_us(jobq_random_between(jobq_random_next(&random), 50000, 600000));
        i = (int)jobq_random_between(jobq_random_next(&random), 0, 2);
        kill_hard(pids[i]);
        pids[i] = spawn(&d);
        kills++;
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
    keep_alive(pids, 3, &d, 240, count, "SELECT count(*) FROM jobq.history");
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 2 * count);
    assert_int_equal(number("SELECT count(*) FROM (SELECT DISTINCT job, stage FROM jobq.effect) e"),
                     2 * count);
    assert_int_equal(number("SELECT count(DISTINCT id) FROM jobq.history"), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
}

/* -- X3: 16 connections, 10,000 jobs, each once -- */

#define CLAIMERS 16

static int32_t x3_queue;
static int x3_seen[200000];

static void x3_die(const char *what, const jobq_pg_error *error)
{
    fprintf(stderr, "%s: %s %s\n", what, error ? error->sqlstate : "", error ? error->message : "");
    abort();
}

/* Another claimer may hold a row for a moment: it saw it ready, locked it, saw it running. Busy,
 * then. */
static void x3_settle(PGconn *conn, verb_result *results, size_t count)
{
    jobq_error answers[50];
    jobq_pg_error error;
    size_t i, busy;

    while (count > 0) {
        if (verb_settle(pg, conn, results, count, answers, &error)) x3_die("settle", &error);
        for (i = busy = 0; i < count; i++) {
            if (answers[i] == JOBQ_ERROR_BUSY) results[busy++] = results[i];
            else if (answers[i] != JOBQ_OK) x3_die(jobq_enum_name(JOBQ_ENUM_ERROR, answers[i]),
                                                   NULL);
        }
        count = busy;
    }
}

static void *claimer(void *arg)
{
    int64_t worker = 300 + (int64_t)(intptr_t)arg, claim = 0;
    PGconn *conn = PQconnectdb(server());
    jobq_pg_error error;
    bool more = true;

    PQclear(PQexec(conn, "SET lock_timeout = '60s'")); /* nobody waits for ever */
    while (more) {
        jobq_lane lane = {x3_queue, 0, 0, false, INT64_MIN, 0, 0, 0};
        verb_claim_desc d;
        verb_batch batch;
        verb_result results[50];
        size_t i;
        memset(&d, 0, sizeof d);
        memset(results, 0, sizeof results);
        d.worker = worker;
        d.number = ++claim;
        d.limit = 50;
        d.lanes = &lane;
        d.lane_count = 1;
        if (verb_claim(pg, conn, &d, &batch, &error) != JOBQ_OK) x3_die("claim", &error);
        for (i = 0; i < batch.count; i++) {
            __atomic_add_fetch(&x3_seen[batch.jobs[i].id % 200000], 1, __ATOMIC_RELAXED);
            results[i].id = batch.jobs[i].id;
            results[i].worker = worker;
            results[i].claim = claim;
            results[i].decision.state = JOBQ_STATE_SUCCEEDED;
        }
        x3_settle(conn, results, batch.count);
        more = batch.count > 0; /* short or none at the end: others have the rest */
        verb_batch_clear(&batch);
    }
    PQfinish(conn);
    return NULL;
}

static void sixteen_connections_do_each_of_10000_jobs_once(void **unused)
{
    pthread_t threads[CLAIMERS];
    size_t count = check_slow() ? 2000 : 10000, i, once = 0;

    (void)unused;
    memset(x3_seen, 0, sizeof x3_seen);
    enqueue_count(count);
    for (i = 0; i < CLAIMERS; i++) x3_queue = register_worker(300 + (int64_t)i, 600 * SECOND);
    do {
        for (i = 0; i < CLAIMERS; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, claimer, (void *)(intptr_t)i), 0);
        }
        for (i = 0; i < CLAIMERS; i++) pthread_join(threads[i], NULL);
        RUN("DELETE FROM jobq.claim");
    } while (number("SELECT count(*) FROM jobq.job") > 0);
    for (i = 0; i < COUNT(x3_seen); i++) {
        assert_true(x3_seen[i] <= 1);
        once += x3_seen[i] == 1;
    }
    assert_int_equal(once, count);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), count);
}

/* -- the handler's transaction -- */

static int called; /* which call the handler makes */

/* A statement fails, which aborts the transaction, and the handler goes on. */
static jobq_outcome goes_on_in_an_aborted_transaction(jobq_call *call)
{
    static const jobq_pg_after after = {1, NULL, 0, JOBQ_ON_ANY};
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    ADD(runs);
    PQclear(PQexec(conn, "BEGIN"));
    PQclear(PQexec(conn, "SELECT 1 / 0"));
    switch (GET(called)) {
    case 0: return jobq_pg_call_commit(call, conn);
    case 1: return jobq_pg_call_wait(call, conn, &after, 1);
    case 2: jobq_pg_call_complete(call, conn, &error); break;
    case 3: jobq_pg_call_step_done(call, conn, "s", jobq_str_from("1"), &error); break;
    default: jobq_pg_enqueue(jobq_pg_call_handle(call), conn, &job, NULL, &error); break;
    }
    PQclear(PQexec(conn, "ROLLBACK"));
    jobq_call_error(call, jobq_str_from(error.message));
    return JOBQ_OUTCOME_DISCARD;
}

static jobq_error goes_on_after_an_error(PGconn *conn, void *user, jobq_pg_error *error)
{
    (void)user;
    (void)error;
    PQclear(PQexec(conn, "SELECT 1 / 0"));
    return JOBQ_OK;
}

/* Each call says which error it was, and not only that there was one. */
static void an_aborted_transaction_keeps_its_error(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, goes_on_in_an_aborted_transaction);
    jobq_pg_error error;
    int i;

    (void)unused;
    for (i = 0; i < 5; i++) {
        SET(called, i);
        enqueue_count(1);
        assert_true(work_one(&d));
        if (number("SELECT (SELECT count(*) FROM jobq.job WHERE errors::text LIKE "
                   "'%%division by zero%%') + (SELECT count(*) FROM jobq.failed WHERE errors::text "
                   "LIKE '%%division by zero%%')") != 1) fail_msg("call %d hides the error", i);
        RUN("DELETE FROM jobq.job");
        RUN("DELETE FROM jobq.failed");
    }
    assert_int_equal(jobq_pg_transact(NULL, db, goes_on_after_an_error, NULL, &error),
                     JOBQ_ERROR_DATABASE);
    assert_non_null(strstr(error.message, "division by zero"));
}

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
    jobq_call_result(call, jobq_str_from("\"next\""), false);
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
    assert_string_equal(seen_by_stage[1], "\"next\"||1");
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
        "SELECT jobq._rescue(id, beat, 10) FROM jobq.worker"); /* at once: a beat would renew it */
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

/* -- a lost answer -- */

/* Completes and commits, and never hears of it: pool connections go through the proxy. */
static jobq_outcome commits_unheard(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char *text = for_schema("BEGIN; INSERT INTO jobq.effect VALUES (1)", schema);

    ADD(runs);
    PQclear(PQexec(conn, text));
    free(text);
    if (jobq_pg_call_complete(call, conn, &error) != JOBQ_OK) return JOBQ_OUTCOME_RETRY;
    proxy_fault_at(PROXY_CUT_ANSWER, 1);
    PQclear(PQexec(conn, "COMMIT"));
    if (PQstatus(conn) == CONNECTION_OK) SET(gate, 1);
    return JOBQ_OUTCOME_RETRY; /* as the manual says: the fence knows */
}

static bool pool_through_proxy(void *user, jobq_pg_dial *dial)
{
    (void)user;
    return dial->worker != NULL || jobq_pg_dial_set(dial, "host", proxy.folder);
}

static void a_commit_whose_answer_is_lost_is_not_repeated(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", commits_unheard);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc on;
    jobq_pg_error error;
    jobq_pg *handle;
    jobq_pg_worker *w;

    (void)unused;
    memset(&on, 0, sizeof on);
    on.conninfo = server();
    on.schema = schema;
    on.log = quiet_log;
    on.connect = pool_through_proxy;
    if (jobq_pg_open(&handle, &on, &error) != JOBQ_OK) fail_msg("%s", error.message);
    RUN("DROP TABLE IF EXISTS jobq.effect");
    RUN("CREATE TABLE jobq.effect (job bigint)");
    enqueue_count(1);
    w = start_on(handle, &d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
    nap_us(100000);
    assert_int_equal(stop(w).lost, 1); /* its retry met the fence */
    assert_int_equal(GET(runs), 1);
    assert_int_equal(GET(gate), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE errors IS NULL"), 1);
    jobq_pg_close(handle);
}

/* -- the same handlers in a test, with a fault at each point and two connections -- */

static PGconn *conns[2];
static jobq_test *test_of;

static void *conn_of(void *user, int number_of)
{
    (void)user;
    PQclear(PQexec(conns[number_of], "ROLLBACK"));
    return conns[number_of];
}

static void rolls_back(void *user, int number_of) { conn_of(user, number_of); }

static bool executes(PGconn *conn, const char *generic)
{
    char *text = for_schema(generic, schema);
    PGresult *res = PQexec(conn, text);
    bool good = PQresultStatus(res) == PGRES_COMMAND_OK;

    PQclear(res);
    free(text);
    return good;
}

/* A debit of 10. reads: what it writes it has computed from what it had read. NULL: it fails. */
static PGconn *debits(jobq_call *call, bool reads)
{
    PGconn *conn = jobq_pg_call_conn(call, NULL);
    char text[100] = "UPDATE jobq.account SET balance = balance - 10";
    bool good = executes(conn, "BEGIN");

    if (reads) snprintf(text, sizeof text, "UPDATE jobq.account SET balance = %ld - 10",
                        number("SELECT balance FROM jobq.account"));
    if (!reads) good = good && executes(conn, text);
    good = good && jobq_test_point(test_of, "the bank is asked") == JOBQ_OK;
    if (reads) good = good && executes(conn, text);
    return good ? conn : NULL;
}

static jobq_outcome debits_by_less(jobq_call *call)
{
    PGconn *conn = debits(call, false);

    return conn == NULL ? JOBQ_OUTCOME_RETRY : jobq_pg_call_commit(call, conn);
}

static jobq_outcome debits_as_read(jobq_call *call)
{
    PGconn *conn = debits(call, true);

    return conn == NULL ? JOBQ_OUTCOME_RETRY : jobq_pg_call_commit(call, conn);
}

static jobq_outcome debits_and_completes(jobq_call *call)
{
    PGconn *conn = debits(call, false);
    jobq_pg_error error;

    if (conn == NULL || jobq_pg_call_complete(call, conn, &error) != JOBQ_OK ||
        jobq_test_point(test_of, "the bank is told") != JOBQ_OK || !executes(conn, "COMMIT"))
        return JOBQ_OUTCOME_RETRY;
    return JOBQ_OUTCOME_DONE;
}

/* In two transactions: a step, then the end. */
static jobq_outcome debits_in_a_step(jobq_call *call)
{
    jobq_pg_error error;
    jobq_error known = jobq_call_step(call, "debit", NULL);
    PGconn *conn;

    if (known != JOBQ_OK && known != JOBQ_ERROR_NOT_FOUND) return JOBQ_OUTCOME_RETRY;
    if (known == JOBQ_ERROR_NOT_FOUND &&
        ((conn = debits(call, false)) == NULL ||
         jobq_pg_call_step_done(call, conn, "debit", jobq_str_from(NULL), &error) != JOBQ_OK ||
         !executes(conn, "COMMIT"))) return JOBQ_OUTCOME_RETRY;
    return jobq_test_point(test_of, "a mail is sent") == JOBQ_OK ? JOBQ_OUTCOME_SUCCESS
                                                                 : JOBQ_OUTCOME_RETRY;
}

/* The job's end is not in its transaction. */
static jobq_outcome debits_apart(jobq_call *call)
{
    PGconn *conn = debits(call, false);

    return conn != NULL && executes(conn, "COMMIT") ? JOBQ_OUTCOME_SUCCESS : JOBQ_OUTCOME_RETRY;
}

static bool balances(jobq_test *test, void *user)
{
    jobq_test_job job = {.queue = "q", .kind = "k"};
    int i, ended = 0;

    (void)user;
    test_of = test;
    RUN("UPDATE jobq.account SET balance = 100");
    for (i = 0; i < 2; i++) jobq_test_enqueue(test, &job);
    jobq_test_run(test, JOBQ_DAYS(1));
    for (i = 0; i < 2; i++) PQclear(PQexec(conns[i], "ROLLBACK"));
    for (i = 1; i <= 2; i++)
        ended += jobq_test_get(test, i)->job.state == JOBQ_STATE_SUCCEEDED;
    return number("SELECT balance FROM jobq.account") == 100 - 10 * ended;
}

static jobq_test_faults faults;

static int64_t debited(jobq_handler handler)
{
    static jobq_job_handler debit = {.queue = "q", .kind = "k"};
    void *block = malloc(jobq_test_size());
    int64_t failed;

    memset(&faults, 0, sizeof faults);
    debit.run[0] = handler;
    faults.handlers = &debit;
    faults.handler_count = 1;
    faults.scenario = balances;
    faults.conn = conn_of;
    faults.died = rolls_back;
    failed = jobq_test_each_fault(block, &faults);
    free(block);
    return failed;
}

static void a_transaction_is_fenced_and_faulted_in_a_test(void **unused)
{
    int i;

    (void)unused;
    RUN("CREATE TABLE jobq.account AS SELECT 100 AS balance");
    for (i = 0; i < 2; i++) {
        conns[i] = connected();
        PQclear(sql(conns[i], "SET lock_timeout = '2ms'; SET client_min_messages = error"));
    }
    if (debited(debits_by_less) != 0) fail_msg("%s", faults.text);
    assert_true(faults.stories > 50);
    if (debited(debits_and_completes) != 0) fail_msg("%s", faults.text);
    if (debited(debits_in_a_step) != 0) fail_msg("%s", faults.text);
    assert_int_equal(debited(debits_as_read), 308); /* another thread has written meanwhile */
    assert_int_equal(debited(debits_apart), 401);   /* it dies when it has committed */
    for (i = 0; i < 2; i++) PQfinish(conns[i]);
}

static int fresh_proxy(void **state)
{
    proxy_up();
    return fresh(state);
}

static int proxy_stop(void **state)
{
    all_stop(state);
    proxy_down();
    return 0;
}

#define TEST(test, set_up) cmocka_unit_test_setup_teardown(test, set_up, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(effects_and_completion_commit_together, quick_queue),
        TEST(a_kill_around_the_commit_doubles_nothing, quick_queue),
        TEST(random_kills_leave_each_effect_once, fresh_effects),
        TEST(sixteen_connections_do_each_of_10000_jobs_once, fresh),
        TEST(completing_in_the_handlers_transaction_is_one_with_its_effects, fresh),
        TEST(an_aborted_transaction_keeps_its_error, fresh),
        TEST(a_stage_completed_in_a_transaction_goes_on, fresh),
        TEST(a_lost_lease_rolls_the_handlers_transaction_back, fresh),
        TEST(done_without_completing_is_a_failed_attempt, fresh),
        TEST(what_a_handler_leaves_open_is_rolled_back, fresh),
        TEST(sixteen_workers_do_each_of_10000_jobs_once, fresh),
        TEST(odd_session_defaults_do_no_harm, fresh),
        TEST(a_transaction_is_fenced_and_faulted_in_a_test, fresh),
        /* last, because the proxy has threads */
        cmocka_unit_test_setup_teardown(a_commit_whose_answer_is_lost_is_not_repeated, fresh_proxy,
                                        proxy_stop),
    };

    return cmocka_run_group_tests_name("effects once", tests, common_up, pg_down);
}
