/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Promise 7: an outage, a lost or refused connection, a server that is full, read-only or in
 * recovery, a restore and a lost NOTIFY delay or repeat work, and lose none. The log says once what
 * is wrong, with the fix. Rows X1 (a bad conninfo), X26.
 *
 * test_pg_pooler.c has the pooler, test_pg_upheaval.c dumps, upgrades and a promoted standby.
 */
#define TEST_PRIVATE
#include "processes.h"
#include "outbox.h"
#include "proxy.h"

static int dials, set_ups, told;
static int refused_dials, refused_set_ups;
static char application[100];

static int fresh_connections(void **state)
{
    SET(dials, 0);
    SET(told, 0);
    SET(set_ups, 0);
    SET(refused_dials, 0);
    SET(refused_set_ups, 0);
    SET(proxy.refuse, 0);
    proxy_fault_at(PROXY_NONE, 0);
    return fresh_effects(state);
}

/* Every second job writes in its own transaction, which completes it; the others only return. */
static jobq_outcome works(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn;
    char *text, insert[100];

    ADD(runs);
    jobq_call_delay(call, 50000);
    if (call->job.id % 2 != 0) return JOBQ_OUTCOME_SUCCESS;
    conn = jobq_pg_call_conn(call, &error);
    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    PQclear(PQexec(conn, "BEGIN"));
    snprintf(insert, sizeof insert, "INSERT INTO jobq.effect VALUES (%lld)",
             (long long)call->job.id);
    text = for_schema(insert, schema);
    PQclear(PQexec(conn, text));
    free(text);
    return jobq_pg_call_commit(call, conn);
}

/* All jobs ended well, all effects are there once. */
static void expect_done(long jobs)
{
    assert_true(becomes(60, jobs, "SELECT count(*) FROM jobq.history WHERE state = 's'"));
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), jobs / 2);
    assert_int_equal(number("SELECT count(DISTINCT job) FROM jobq.effect"), jobs / 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static jobq_pg_worker_desc drain_of(const jobq_pg_handler *h)
{
    jobq_pg_worker_desc d = work_of(h, 1);

    d.loop.threads = 2;
    d.loop.batch_max = 3;
    d.loop.lease_us = 20 * SECOND; /* nothing may wait for a rescue */
    return d;
}

/* The fault at each piece that clients send, one drain each, until a drain passes without it. */
static void cut_at_each_moment(proxy_fault fault)
{
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = drain_of(&h);
    jobq_pg_desc through = desc_of(proxy.conninfo);
    int at, most = check_slow() ? 12 : 40, faults = 0;

    for (at = 1; at <= most; at++) {
        jobq_pg *handle;
        jobq_pg_worker *w;
        fresh_connections(NULL);
        handle = open_on(&through);
        w = start_on(handle, &d);
        proxy_fault_at(fault, at);
        enqueue_count(6);
        expect_done(6);
        faults += GET(proxy.happened);
        proxy_fault_at(PROXY_NONE, 0);
        stop(w);
        /* a registration whose answer was lost stays, with nothing in hand, until it expires */
        assert_true(number("SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL") <= 1);
        jobq_pg_close(handle);
    }
    assert_true(faults >= most / 3);
}

static void a_request_lost_at_any_moment_costs_nothing(void **unused)
{
    (void)unused;
    cut_at_each_moment(PROXY_CUT_REQUEST);
}

static void an_answer_lost_at_any_moment_costs_nothing(void **unused)
{
    (void)unused;
    cut_at_each_moment(PROXY_CUT_ANSWER);
}

/* Nothing passes, no end is told: the loop's own patience notices, long before TCP would. */
static void a_half_open_connection_is_noticed(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = drain_of(&h);
    jobq_pg_desc through = desc_of(proxy.conninfo);
    jobq_pg *handle = open_on(&through);
    jobq_pg_worker *w;
    jobq_loop_stats stats;

    (void)unused;
    d.loop.answer_us = 500000;
    w = start_on(handle, &d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.worker"));
    nap_us(100000);
    proxy_fault_at(PROXY_SILENT, 1);
    assert_true(reaches(20, &proxy.happened, 1)); /* a heartbeat fell into the silence */
    enqueue_count(6);
    expect_done(6);
    stats = stop(w);
    assert_true(stats.reconnects >= 1);
    assert_int_equal(stats.deaths, 0);
    jobq_pg_close(handle);
}

/* Behind a pooler one answer is awaited at a time. A time limit that ends meanwhile is noticed. */
static void a_time_limit_ends_while_an_answer_is_awaited(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", holds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc through = desc_of(proxy.conninfo);
    jobq_pg_job job = plain_job();
    jobq_pg_health health;
    jobq_pg_worker *w;
    jobq_pg *handle;
    int64_t until;

    (void)unused;
    through.behind_pooler = true;
    handle = open_on(&through);
    d.loop.lease_us = 60 * SECOND;
    d.loop.answer_us = 8 * SECOND;
    job.timeout_us = 2 * SECOND;
    enqueue_with(&job);
    w = start_on(handle, &d);
    assert_true(reaches(20, &runs, 1));
    proxy_fault_at(PROXY_SILENT, 1);
    until = mono_us() + 6 * SECOND; /* before the answer is overdue */
    while (jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.abandoned == 0 && mono_us() < until)
        nap_us(10000);
    assert_int_equal(jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.abandoned, 1);
    SET(gate, 1);
    do nap_us(10000);
    while (jobq_pg_worker_health(w, JOBQ_PG_ALL, &health) != JOBQ_OK && health.abandoned > 0);
    proxy_fault_at(PROXY_NONE, 0);
    stop(w);
    jobq_pg_close(handle);
}

/* -- servers that refuse -- */

static void a_bad_conninfo_is_an_error_and_leaves_nothing(void **unused)
{
    jobq_pg_desc d = desc_of("host=/nowhere/at/all");
    jobq_pg_error error;
    jobq_pg *none = (jobq_pg *)&d;

    (void)unused;
    assert_int_equal(jobq_pg_open(&none, &d, &error), JOBQ_ERROR_CONNECTION);
    assert_null(none);
    assert_true(strlen(error.message) > 0);
    d.conninfo = "no such = keyword ' of libpq";
    assert_int_equal(jobq_pg_open(&none, &d, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "conninfo");
    assert_null(none);
    d.listen_conninfo = d.conninfo;
    d.behind_pooler = true;
    d.conninfo = "host=/nowhere/at/all";
    assert_int_equal(jobq_pg_open(&none, &d, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "listen_conninfo");
}

static void *lets_in(void *unused)
{
    nap_us(700000);
    SET(proxy.refuse, 0);
    return unused;
}

static void patience_waits_for_a_server_that_is_away(void **unused)
{
    jobq_pg_desc d = desc_of(proxy.conninfo);
    jobq_pg_error error;
    jobq_pg *handle;
    pthread_t thread;
    int64_t began = mono_us();

    (void)unused;
    SET(proxy.refuse, 1);
    d.patience_us = 300000;
    assert_int_equal(jobq_pg_open(&handle, &d, &error), JOBQ_ERROR_CONNECTION);
    assert_true(mono_us() - began >= 300000);
    d.patience_us = 60 * SECOND;
    pthread_create(&thread, NULL, lets_in, NULL);
    handle = open_on(&d);
    pthread_join(thread, NULL);
    jobq_pg_close(handle);
}

/* A worker whose server goes away tries again, ever more slowly, and works on when it is back. */
static void a_worker_outlives_its_server(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = drain_of(&h);
    jobq_pg_desc through = desc_of(proxy.conninfo);
    jobq_pg *handle = open_on(&through);
    jobq_pg_worker *w = start_on(handle, &d);
    int before;

    (void)unused;
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.worker"));
    SET(proxy.refuse, 1);
    before = GET(proxy.connections);
    RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'job_ test'");
    nap_us(2 * SECOND);
    assert_true(reaches(20, &proxy.connections, before + 2));
    assert_true(GET(proxy.connections) - before <= 12); /* backoff: no storm */
    enqueue_count(6);
    SET(proxy.refuse, 0);
    expect_done(6);
    stop(w);
    jobq_pg_close(handle);
}

/* The role may not have one more connection: the worker waits, and takes its turn later. */
static void a_full_server_is_waited_for(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = drain_of(&h);
    jobq_pg_desc limited;
    char conninfo[200];
    jobq_pg *handle;
    PGconn *taken[2];
    jobq_pg_worker *w;
    int i;

    (void)unused;
    RUN("DROP ROLE IF EXISTS jobq_few");
    RUN("CREATE ROLE jobq_few LOGIN CONNECTION LIMIT 3");
    RUN("GRANT ALL ON SCHEMA jobq TO jobq_few");
    RUN("GRANT ALL ON ALL TABLES IN SCHEMA jobq TO jobq_few");
    RUN("GRANT ALL ON ALL SEQUENCES IN SCHEMA jobq TO jobq_few");
    RUN("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA jobq TO jobq_few");
    snprintf(conninfo, sizeof conninfo, "%s user=jobq_few", server());
    limited = desc_of(conninfo);
    handle = open_on(&limited);
    for (i = 0; i < 2; i++) taken[i] = PQconnectdb(conninfo);
    w = start_on(handle, &d);
    enqueue_count(6);
    nap_us(500000);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0); /* it is not in */
    for (i = 0; i < 2; i++) PQfinish(taken[i]);
    expect_done(6);
    stop(w);
    jobq_pg_close(handle);
    RUN("DROP OWNED BY jobq_few");
    RUN("DROP ROLE jobq_few");
}

static void no_error_need_be_asked_for_while_the_server_is_away(void **unused)
{
    jobq_pg_desc through = desc_of(proxy.conninfo);
    jobq_pg *handle = open_on(&through);
    jobq_pg_job job = plain_job();
    PGconn *taken, *conn;

    (void)unused;
    assert_int_equal(jobq_pg_acquire(handle, &taken, NULL), JOBQ_OK);
    SET(proxy.refuse, 1);
    assert_int_equal(jobq_pg_acquire(handle, &conn, NULL), JOBQ_ERROR_CONNECTION);
    assert_null(conn);
    assert_int_equal(jobq_pg_enqueue(handle, NULL, &job, NULL, NULL), JOBQ_ERROR_CONNECTION);
    jobq_pg_release(handle, taken);
    jobq_pg_close(handle);
}

/* Hosts are tried in turn. */
static void a_string_of_several_hosts_finds_the_one_that_works(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = drain_of(&h);
    char conninfo[300];
    jobq_pg_desc several;
    jobq_pg *handle;

    (void)unused;
    snprintf(conninfo, sizeof conninfo, "host=/nowhere,/tmp,%s port=%s user=%s dbname=%s",
             PQhost(db), PQport(db), PQuser(db), PQdb(db));
    several = desc_of(conninfo);
    handle = open_on(&several);
    start_on(handle, &d);
    enqueue_count(6);
    expect_done(6);
    all_stop(NULL);
    jobq_pg_close(handle);
}

/* -- hooks -- */

static bool dial_in(void *user, jobq_pg_dial *dial)
{
    (void)user;
    ADD(dials);
    if (dial->worker != NULL && GET(refused_dials) > 0 && ADD(refused_dials) < 4) return false;
    return jobq_pg_dial_set(dial, "host", PQhost(db)) &&
           jobq_pg_dial_set(dial, "password", "of today");
}

static bool dial_by_hand(void *user, jobq_pg_dial *dial)
{
    (void)user;
    ADD(dials);
    dial->conn = PQconnectdb(server());
    return true;
}

static void an_encoding_that_would_change_payloads_is_refused(void **unused)
{
    jobq_pg_error error;
    char conninfo[200];
    jobq_pg_desc latin;
    jobq_pg *none;

    (void)unused;
    snprintf(conninfo, sizeof conninfo, "%s client_encoding=LATIN1", server());
    latin = desc_of(conninfo);
    assert_int_equal(jobq_pg_open(&none, &latin, &error), JOBQ_ERROR_INVALID);
    assert_null(none);
    assert_non_null(strstr(error.message, "UTF8"));
}

/* -- what is lent comes back as it was -- */

#define SESSION                                                                                    \
    "SELECT concat_ws(' ', pg_backend_pid(), current_user, session_user,"                          \
    " nullif(current_setting('app.tenant', true), ''), current_setting('statement_timeout'),"      \
    " current_setting('DateStyle'), current_setting('standard_conforming_strings'),"               \
    " current_setting('session_replication_role'), current_setting('transaction_isolation'),"      \
    " current_setting('work_mem'), to_regclass('pg_temp.spoilt'),"                                 \
    " (SELECT count(*) FROM pg_cursors WHERE name = 'spoilt'),"                                    \
    " (SELECT count(*) FROM pg_listening_channels()),"                                             \
    " (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()))"

#define SPOILS                                                                                     \
    "CREATE TEMP TABLE spoilt (n int); DECLARE spoilt CURSOR WITH HOLD FOR SELECT 1;"              \
    " LISTEN spoilt; SELECT pg_advisory_lock(4711); SET app.tenant = '7'; SET DateStyle = German;" \
    " SET standard_conforming_strings = off; SET session_replication_role = replica;"              \
    " SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE;"                    \
    " SET work_mem = '1MB'; SET ROLE pg_monitor; SET statement_timeout = '10s'"

static char session[300]; /* as the first one found it */
static int notices;

static void hears_notice(void *arg, const PGresult *res)
{
    (void)arg;
    (void)res;
    ADD(notices);
}

/* False: it is not as the first one found it. */
static bool spoils(PGconn *conn)
{
    PGresult *res = PQexec(conn, SESSION);
    bool same;

    if (session[0] == '\0') snprintf(session, sizeof session, "%s", PQgetvalue(res, 0, 0));
    same = strcmp(PQgetvalue(res, 0, 0), session) == 0;
    if (!same) print_error("%s\nnot\n%s\n", PQgetvalue(res, 0, 0), session);
    PQclear(res);
    PQclear(PQexec(conn, "DO $$ BEGIN RAISE WARNING 'to whom?'; END $$"));
    PQsetNoticeReceiver(conn, hears_notice, NULL);
    PQsetErrorVerbosity(conn, PQERRORS_VERBOSE);
    res = PQexec(conn, SPOILS);
    if (PQresultStatus(res) != PGRES_COMMAND_OK) print_error("%s", PQerrorMessage(conn));
    PQclear(res);
    return same;
}

static jobq_outcome spoils_its_session(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    if (conn != NULL && spoils(conn)) ADD(told);
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static bool sets_work_mem(void *user, PGconn *conn)
{
    PGresult *res = PQexec(conn, "SET work_mem = '9MB'");
    bool good = PQresultStatus(res) == PGRES_COMMAND_OK;

    (void)user;
    PQclear(res);
    return good;
}

static void nothing_that_a_handler_sets_reaches_the_next(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", spoils_its_session);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc desc = desc_of(server());
    jobq_pg_error error;
    jobq_pg *handle;
    PGconn *conn;
    int set_up, i;

    (void)unused;
    d.loop.threads = 1;
    d.loop.until = JOBQ_UNTIL_EMPTY;
    for (set_up = 0; set_up < 2; set_up++) {
        session[0] = '\0';
        SET(told, 0);
        SET(notices, 0);
        desc.set_up = set_up ? sets_work_mem : NULL;
        handle = open_on(&desc);
        enqueue_count(5);
        assert_int_equal(jobq_pg_work(handle, &d, &error), JOBQ_OK);
        assert_int_equal(GET(told), 5);
        for (i = 0; i < 5; i++) {
            assert_int_equal(jobq_pg_acquire(handle, &conn, &error), JOBQ_OK);
            assert_true(spoils(conn));
            jobq_pg_release(handle, conn);
            assert_int_equal(jobq_pg_check(handle, NULL, &error), JOBQ_OK);
        }
        assert_int_equal(strstr(session, "9MB") != NULL, set_up);
        assert_int_equal(GET(notices), 0);
        jobq_pg_close(handle);
    }
}

/* The worker's own connection, in another encoding than the pool's. */
static bool dial_by_hand_in_latin(void *user, jobq_pg_dial *dial)
{
    (void)user;
    if (dial->worker == NULL) return true;
    dial->conn = PQconnectdb(server());
    return PQsetClientEncoding(dial->conn, "LATIN1") == 0;
}

static void a_workers_connection_in_another_encoding_is_refused(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = drain_of(&h);
    jobq_pg_desc hooked = desc_of(server());
    int64_t until = mono_us() + 20 * SECOND;
    jobq_pg_health health;
    jobq_pg *handle;
    jobq_pg_worker *w;

    (void)unused;
    hooked.connect = dial_by_hand_in_latin;
    handle = open_on(&hooked);
    w = start_on(handle, &d);
    do {
        nap_us(5000);
        jobq_pg_worker_health(w, JOBQ_PG_ALL, &health);
    } while (strstr(health.error, "UTF8") == NULL && mono_us() < until);
    assert_non_null(strstr(health.error, "UTF8"));
    assert_false(health.connected);
    stop(w);
    jobq_pg_close(handle);
}

static void one_that_is_not_as_it_was_is_not_lent_again(void **unused)
{
    jobq_pg_error error;
    PGconn *conn;
    int way, before;

    (void)unused;
    for (way = 0; way < 3; way++) {
        assert_int_equal(jobq_pg_acquire(pg, &conn, &error), JOBQ_OK);
        before = PQbackendPID(conn);
        if (way == 0) assert_int_equal(PQsetClientEncoding(conn, "LATIN1"), 0);
        if (way == 1) assert_true(PQenterPipelineMode(conn));
        if (way == 2) PQclear(PQexec(conn, "BEGIN")); /* which is only rolled back */
        jobq_pg_release(pg, conn);
        assert_int_equal(jobq_pg_acquire(pg, &conn, &error), JOBQ_OK);
        assert_int_equal(PQbackendPID(conn) == before, way == 2);
        assert_int_equal(PQtransactionStatus(conn), PQTRANS_IDLE);
        assert_int_equal(PQpipelineStatus(conn), PQ_PIPELINE_OFF);
        assert_string_equal(PQparameterStatus(conn, "client_encoding"), "UTF8");
        jobq_pg_release(pg, conn);
    }
}

/* In the middle of a transaction that would have been sent in one piece. */
static void a_statement_that_cannot_be_sent_leaves_the_connection_usable(void **unused)
{
    jobq_pg_desc d = desc_of(server());
    jobq_pg_error error;
    jobq_pg *handle;
    char *text;

    (void)unused;
    d.behind_pooler = true;
    handle = open_on(&d);
    text = handle->texts[JOBQ_PG__DELETE].sql;
    handle->texts[JOBQ_PG__DELETE].sql = NULL; /* which libpq refuses */
    assert_int_equal(jobq_pg_delete(handle, db, ONE(1), NULL, &error), JOBQ_ERROR_CONNECTION);
    handle->texts[JOBQ_PG__DELETE].sql = text;
    assert_int_equal(PQpipelineStatus(db), PQ_PIPELINE_OFF);
    assert_int_equal(PQtransactionStatus(db), PQTRANS_IDLE);
    assert_int_equal(jobq_pg_delete(handle, db, ONE(1), NULL, &error), JOBQ_ERROR_NOT_FOUND);
    jobq_pg_close(handle);
}

static void *takes_one(void *arg)
{
    jobq_pg *handle = (jobq_pg *)arg;
    PGconn *conn;

    if (jobq_pg_acquire(handle, &conn, NULL) == JOBQ_OK) ADD(told);
    jobq_pg_release(handle, conn);
    return NULL;
}

/* Who waits for a connection has one when a worker makes room, not when the next is released. */
static void a_pool_that_grows_tells_who_waits(void **unused)
{
    jobq_pg_desc d = desc_of(server());
    jobq_pg_worker none;
    jobq_pg_error error;
    pthread_t thread;
    PGconn *conn;
    bool soon;

    (void)unused;
    memset(&none, 0, sizeof none);
    d.pool_max = 1;
    d.acquire_us = 20 * SECOND;
    none.pg = open_on(&d);
    assert_int_equal(jobq_pg_acquire(none.pg, &conn, &error), JOBQ_OK);
    pthread_create(&thread, NULL, takes_one, none.pg);
    nap_us(200000);
    jobq_pg__pool_add(&none, 1);
    soon = reaches(10, &told, 1);
    pthread_join(thread, NULL);
    jobq_pg_release(none.pg, conn);
    jobq_pg_close(none.pg);
    assert_true(soon);
}

static bool sets_up(void *user, PGconn *conn)
{
    (void)user;
    if (GET(refused_set_ups) > 0) return false;
    ADD(set_ups);
    PQclear(PQexec(conn, "SET application_name = 'set up'"));
    return true;
}

static jobq_outcome asks_its_name(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    PGresult *res = PQexec(conn, "SHOW application_name");

    snprintf(application, sizeof application, "%s", PQgetvalue(res, 0, 0));
    PQclear(res);
    return JOBQ_OUTCOME_SUCCESS;
}

static void the_hooks_see_every_connection(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", asks_its_name);
    jobq_pg_worker_desc d = drain_of(&h);
    jobq_pg_desc hooked = desc_of("host=/nowhere user=postgres dbname=postgres");
    jobq_pg_error error;
    jobq_pg *handle;

    (void)unused;
    hooked.connect = dial_in;
    hooked.set_up = sets_up;
    handle = open_on(&hooked);
    assert_int_equal(GET(dials), 1);
    assert_int_equal(GET(set_ups), 1);
    SET(refused_dials, 1); /* the worker's, three times: it comes again */
    start_on(handle, &d);
    assert_true(reaches(20, &refused_dials, 4));
    assert_true(becomes(20, 1, "SELECT count(*) FROM pg_stat_activity"
                               " WHERE application_name LIKE 'job_ test'"));
    enqueue_count(1);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
    assert_string_equal(application, "set up");
    all_stop(NULL);
    jobq_pg_close(handle);
    SET(refused_set_ups, 1);
    assert_int_equal(jobq_pg_open(&handle, &hooked, &error), JOBQ_ERROR_CONNECTION);
    assert_non_null(strstr(error.message, "set_up"));
    hooked.set_up = NULL;
    hooked.connect = dial_by_hand;
    SET(dials, 0);
    handle = open_on(&hooked);
    assert_int_equal(GET(dials), 1);
    jobq_pg_close(handle);
}

static void a_dial_has_limits_and_wipes_its_secrets(void **unused)
{
    jobq_pg_dial dial;
    char copy[9];
    int i;

    (void)unused;
    memset(&dial, 0, sizeof dial);
    for (i = 0; i < 31; i++) assert_true(jobq_pg_dial_set(&dial, "password", "secret!!"));
    assert_false(jobq_pg_dial_set(&dial, "password", "secret!!"));
    assert_null(dial.keywords[31]); /* libpq's end of the list */
    memcpy(copy, dial.values[0], sizeof copy);
    assert_string_equal(copy, "secret!!");
    jobq_pg__dial_clear(&dial);
    assert_int_equal(dial.count, 0);
    assert_null(dial.values[0]);
}

/* -- what was logged -- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char logged[200][700];
static int logged_count;

static void keeps_warnings(void *user, jobq_level level, const char *message)
{
    (void)user;
    quiet_log(NULL, level, message);
    if (level < JOBQ_LEVEL_INFO) return;
    pthread_mutex_lock(&log_lock);
    if (logged_count < 200) snprintf(logged[logged_count++], sizeof logged[0], "%s", message);
    pthread_mutex_unlock(&log_lock);
}

/* How many lines have both words. */
static int lines_with(const char *a, const char *b)
{
    int found = 0, i;

    pthread_mutex_lock(&log_lock);
    for (i = 0; i < logged_count; i++) {
        found += strstr(logged[i], a) != NULL && strstr(logged[i], b) != NULL;
    }
    pthread_mutex_unlock(&log_lock);
    return found;
}

static bool logs(const char *a, const char *b)
{
    int64_t until = mono_us() + 30 * SECOND;

    while (lines_with(a, b) == 0 && mono_us() < until) nap_us(10000);
    return lines_with(a, b) > 0;
}

static jobq_pg_desc heard_desc(const char *conninfo)
{
    jobq_pg_desc d = desc_of(conninfo);

    d.log = keeps_warnings;
    return d;
}

/* -- wake-ups -- */

#define ALL_NOTIFY                                                                                 \
    "SELECT jobq.enqueue('q', 'k'), jobq.outbox_enqueue('o', '1'), jobq.pause('q', 'k'),"          \
    " jobq.resume('q', 'k'), jobq.signal('s'), jobq.queue_set('q', max_attempts => 7)"

/* A job and a message, by plain INSERTs. */
static void enqueues_from_c(void)
{
    jobq_pg_message message = {.queue = "o", .payload = {"1", 1}};
    jobq_pg_job job = plain_job();
    jobq_pg_error error;

    if (jobq_pg_enqueue(pg, db, &job, NULL, &error) != JOBQ_OK ||
        jobq_pg_outbox_enqueue(pg, db, &message, NULL, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
}

static void a_worker_sleeps(jobq_pg_handler *h)
{
    jobq_pg_worker_desc d;

    *h = handler_of("q", "k", holds);
    d = work_of(h, 1);
    SET(gate, 1);
    enqueue_count(1);
    RUN("SELECT jobq.outbox_register('o', 1)");
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.sleeper"));
}

/* A transaction that has notified cannot be prepared. */
static void what_notifies_can_be_prepared(void **unused)
{
    jobq_pg_handler h;
    PGresult *res;

    (void)unused;
    a_worker_sleeps(&h);
    RUN("BEGIN; " ALL_NOTIFY);
    res = PQexec(db, "PREPARE TRANSACTION 'jobq_notifies'");
    assert_int_equal(PQresultStatus(res), PGRES_FATAL_ERROR);
    PQclear(res);
    RUN("ROLLBACK");
    RUN("BEGIN; SET LOCAL jobq_settings.notify = off; " ALL_NOTIFY);
    enqueues_from_c();
    RUN("PREPARE TRANSACTION 'jobq_silent'");
    RUN("COMMIT PREPARED 'jobq_silent'");
    assert_true(becomes(20, 3, "SELECT count(*) FROM jobq.history"));
}

/* A listener that does not read lets the server's queue of notifications grow. Once it is full, a
 * COMMIT with a notification fails; ours must not. */
static void a_full_queue_of_notifications_stops_nobody(void **unused)
{
    PGconn *deaf = PQconnectdb(server());
    jobq_pg_handler h;
    PGresult *res;
    bool full;

    (void)unused;
    if (PQserverVersion(deaf) < 170000) { /* it cannot be made small */
        PQfinish(deaf);
        skip();
    }
    PQclear(PQexec(deaf, "LISTEN filler"));
    PQclear(PQexec(deaf, "BEGIN; SELECT 1"));
    a_worker_sleeps(&h);
    do {
        res = PQexec(db, "SELECT pg_notify('filler', i || repeat('x', 7900))"
                         " FROM generate_series(1, 50) i");
        full = PQresultStatus(res) != PGRES_TUPLES_OK;
        PQclear(res);
    } while (!full);
    RUN("BEGIN; " ALL_NOTIFY);
    enqueues_from_c();
    RUN("COMMIT");
    assert_true(becomes(20, 3, "SELECT count(*) FROM jobq.history"));
    PQfinish(deaf);
}

static void is_told(void *user, const jobq_pg_reply *reply)
{
    (void)reply;
    ADD(*(int *)user);
}

/* A host that does not hear of the end of a job looks four times a second, not ever more seldom. */
static void awaits_without_notifications(jobq_pg *handle, int64_t id)
{
    jobq_pg_question ask = {.await = id, .timeout_us = 60 * SECOND};
    jobq_pg_worker_desc d;
    jobq_pg_worker *hosted;
    const jobq_pg__async *n;
    int answers = 0;

    memset(&d, 0, sizeof d);
    assert_int_equal(jobq_pg_worker_open(handle, &d, &hosted, NULL), JOBQ_OK);
    assert_int_equal(jobq_pg_worker_ask(hosted, &ask, is_told, &answers, NULL), JOBQ_OK);
    do {
        assert_true(jobq_pg_worker_step(hosted, 1000));
        nap_us(1000);
        n = hosted->awaiting.head;
    } while (n == NULL || n->nap_us < 250000);
    assert_int_equal(n->nap_us, 250000);
    jobq_pg_worker_free(hosted);
    assert_int_equal(answers, 1);
}

/* LISTEN reads the server's whole queue of notifications. A worker that starts while that is long
 * works without, says so once, and listens when it has become short. A wait does, too. */
static void works_beside_a_long_queue(bool past)
{
    PGconn *deaf = PQconnectdb(server());
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc heard = heard_desc(server());
    jobq_pg_worker *worker;
    jobq_pg_health health;
    jobq_pg_job job = plain_job();
    jobq_pg *handle;
    int64_t id;

    PQclear(PQexec(deaf, "LISTEN filler"));
    PQclear(PQexec(deaf, "BEGIN; SELECT 1"));
    while (!number("SELECT (pg_notification_queue_usage() > 0.011)::int"))
        RUN("SELECT pg_notify('filler', i || repeat('x', 7900)) FROM generate_series(1, 500) i");
    heard.behind_pooler = past;
    heard.listen_conninfo = past ? server() : NULL;
    handle = open_on(&heard);
    d.loop.heartbeat_us = 200000;
    worker = start_on(handle, &d);
    id = enqueue_with(&job);
    assert_int_equal(jobq_pg_wait(handle, NULL, &id, 1, 30 * SECOND, NULL, NULL), JOBQ_OK);
    job.queue = "no_worker";
    id = enqueue_with(&job);
    assert_int_equal(jobq_pg_wait(handle, NULL, &id, 1, 3 * SECOND, NULL, NULL),
                     JOBQ_ERROR_TIMEOUT); /* it tries again meanwhile, once a second */
    awaits_without_notifications(handle, id);
    assert_true(logs("LISTEN: the server's queue of notifications is long: jobq doctor says",
                     "meanwhile the worker looks for work every second"));
    assert_int_equal(jobq_pg_worker_health(worker, JOBQ_PG_ALL, &health), JOBQ_OK);
    assert_false(health.hears);
    assert_int_equal(number("SELECT count(*) FROM jobq.sleeper"), 0);
    PQfinish(deaf);
    assert_true(logs("LISTEN: notifications arrive again", ""));
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.sleeper"));
    enqueue_count(1);
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.history"));
    /* once for each worker */
    assert_int_equal(lines_with("LISTEN: the server's queue", "every second"), 2);
    assert_int_equal(lines_with("LISTEN: the server's queue", "four times a second"), 1);
    all_stop(NULL);
    jobq_pg_close(handle);
}

static void a_long_queue_of_notifications_keeps_nobody_from_work(void **unused)
{
    (void)unused;
    works_beside_a_long_queue(false);
}

static void nor_past_a_pooler(void **unused)
{
    (void)unused;
    works_beside_a_long_queue(true);
}

/* X26: a producer in a transaction: nothing before COMMIT, nothing after ROLLBACK. */
static void a_rolled_back_job_never_was(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = drain_of(&h);
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    int64_t id;

    (void)unused;
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.worker"));
    RUN("BEGIN");
    assert_int_equal(jobq_pg_enqueue(pg, db, &job, &id, &error), JOBQ_OK);
    RUN("ROLLBACK");
    RUN("BEGIN");
    assert_int_equal(jobq_pg_enqueue(pg, db, &job, &id, &error), JOBQ_OK);
    nap_us(300000);
    assert_int_equal(GET(runs), 0);
    RUN("COMMIT");
    assert_true(reaches(20, &runs, 1));
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
}

/* -- states of the server: down, full, in recovery, read-only -- */

static void enqueue_six(jobq_pg *on)
{
    jobq_pg_job jobs[6];
    jobq_pg_error error;
    int i;

    for (i = 0; i < 6; i++) jobs[i] = plain_job();
    if (jobq_pg_enqueue_many(on, NULL, jobs, 6, NULL, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
}

/* -- the server of the tests, if it is ours -- */

static bool ours(void)
{
    return getenv("JOBQ_SERVER_DIR") != NULL;
}

static void standby_signal(bool there)
{
    char command[300];

    snprintf(command, sizeof command, "%s \"$JOBQ_SERVER_DIR/data/standby.signal\"",
             there ? "touch" : "rm -f");
    assert_int_equal(system(command), 0);
}

/* A server that stops, comes back as a standby, and is promoted. */
static void a_standby_is_waited_for_until_it_is_promoted(void **unused)
{
    char several[400];
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc desc = heard_desc(server()), hosts = heard_desc(several),
                 third = heard_desc(server());
    jobq_pg_error error;
    jobq_pg_health health;
    jobq_pg *handles[3];
    jobq_pg_worker *w, *v;
    int64_t until = mono_us() + 60 * SECOND;
    int i;

    (void)unused;
    if (!ours()) skip();
    snprintf(several, sizeof several,
             "host=/nowhere,%s port=%s,%s user=%s dbname=%s target_session_attrs=read-write",
             PQhost(db), PQport(db), PQport(db), PQuser(db), PQdb(db));
    handles[0] = open_on(&desc);
    handles[1] = open_on(&hosts);
    d.name = "one";
    w = start_on(handles[0], &d);
    d.name = "several";
    v = start_on(handles[1], &d);
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.worker"));
    server_command("--ctl stop -m fast");
    assert_true(logs("connect", "No such file") || logs("connect", "refused"));
    standby_signal(true);
    server_command("--ctl start");
    assert_true(logs("hot standby", "promote it"));
    assert_int_equal(jobq_pg_open(&handles[2], &third, &error), JOBQ_ERROR_CONNECTION);
    assert_non_null(strstr(error.message, "promote it"));
    nap_us(2 * SECOND); /* they go on trying */
    assert_in_range(lines_with("hot standby", "promote it"), 1, 4); /* and say so once each */
    while (jobq_pg_worker_health(w, JOBQ_PG_ALL, &health) != JOBQ_ERROR_CONNECTION ||
           strstr(health.error, "promote it") == NULL) {
        assert_true(mono_us() < until);
        nap_us(10000);
    }
    server_command("--ctl promote");
    db_again();
    handles[2] = open_on(&third);
    for (i = 0; i < 3; i++) enqueue_six(handles[i]);
    expect_done(18);
    assert_true(logs("connected again", ""));
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL"));
    stop(w);
    stop(v);
    for (i = 0; i < 3; i++) jobq_pg_close(handles[i]);
}

/* Sessions that begin read-only, by the database's setting, from the start and from now on. */
static void sessions_that_begin_read_only_work(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc desc = heard_desc(server());
    jobq_pg *before = open_on(&desc), *after;
    jobq_pg_worker *w = start_on(before, &d), *v;
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    PGconn *mine;

    (void)unused;
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.worker"));
    RUN("ALTER DATABASE %s SET default_transaction_read_only = on", PQdb(db));
    after = open_on(&desc);
    enqueue_six(after);
    expect_done(6);
    stop(w);
    v = start_on(after, &d); /* its handlers' transactions too */
    enqueue_six(after);
    expect_done(12);
    RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'jobq%%' AND pid <> pg_backend_pid()");
    enqueue_six(after);
    expect_done(18);
    mine = PQconnectdb(server());
    assert_int_equal(jobq_pg_enqueue(after, mine, &job, NULL, &error), JOBQ_OK);
    PQclear(PQexec(mine, "BEGIN"));
    assert_int_equal(jobq_pg_enqueue(after, mine, &job, NULL, &error), JOBQ_ERROR_RETRYABLE);
    assert_non_null(strstr(error.message, "read-only"));
    PQfinish(mine);
    stop(v);
    db_again();
    RUN("SET default_transaction_read_only = off");
    RUN("ALTER DATABASE %s RESET default_transaction_read_only", PQdb(db));
    db_again();
    jobq_pg_close(before);
    jobq_pg_close(after);
}

/* Behind a pooler nothing is said to the session: each statement says it, housekeeping too. */
static void housekeeping_works_in_sessions_that_begin_read_only(void **unused)
{
    char conninfo[300] = "";
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc desc = heard_desc(conninfo);
    jobq_pg_worker *w;
    jobq_pg_error error;
    jobq_pg *odd;
    int hosted;

    (void)unused;
    snprintf(conninfo, sizeof conninfo,
             "%s options='-c default_transaction_read_only=on"
             " -c default_transaction_isolation=serializable'", server());
    desc.behind_pooler = true;
    odd = open_on(&desc);
    d.loop.prune_us = 200000;
    d.loop.vacuum_rows = 1;
    for (hosted = 0; hosted < 2; hosted++) {
        int64_t until = mono_us() + 30 * SECOND;
        RUN("INSERT INTO jobq.queue (name) VALUES ('q') ON CONFLICT DO NOTHING");
        RUN("INSERT INTO jobq.idempotency SELECT id, 'k', 1, '2000-01-01' FROM jobq.queue");
        if (hosted == 0) {
            w = start_on(odd, &d);
            assert_true(becomes(30, 0, "SELECT count(*) FROM jobq.idempotency"));
            stop(w);
            continue;
        }
        if (jobq_pg_worker_open(odd, &d, &w, &error) != JOBQ_OK) fail_msg("%s", error.message);
        while (number("SELECT count(*) FROM jobq.idempotency") != 0) {
            assert_true(mono_us() < until);
            jobq_pg_worker_step(w, 0);
        }
        jobq_pg_worker_stop(w);
        jobq_pg_worker_wait(w, NULL);
        jobq_pg_worker_free(w);
    }
    assert_int_equal(lines_with("prune", ""), 0);
    assert_int_equal(lines_with("vacuum", ""), 0);
    jobq_pg_close(odd);
}

/* The role may not have one more connection. */
static void a_full_server_is_named_once(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = work_of(&h, 1);
    char conninfo[200] = "";
    jobq_pg_desc desc = heard_desc(conninfo);
    jobq_pg_error error;
    jobq_pg *handle, *second;
    PGconn *taken;
    jobq_pg_worker *w;

    (void)unused;
    RUN("DROP ROLE IF EXISTS jobq_full");
    RUN("CREATE ROLE jobq_full LOGIN CONNECTION LIMIT 2");
    RUN("SELECT jobq.grant_work('jobq_full')");
    snprintf(conninfo, sizeof conninfo, "%s user=jobq_full", server());
    handle = open_on(&desc);
    taken = PQconnectdb(conninfo);
    assert_int_equal(jobq_pg_open(&second, &desc, &error), JOBQ_ERROR_CONNECTION);
    assert_non_null(strstr(error.message, "raise max_connections"));
    w = start_on(handle, &d);
    assert_true(logs("too many connections", "raise max_connections"));
    nap_us(2 * SECOND);
    assert_int_equal(lines_with("too many connections", "raise max_connections"), 1);
    PQfinish(taken);
    assert_true(logs("connected again", ""));
    stop(w);
    jobq_pg_close(handle);
    RUN("DROP OWNED BY jobq_full");
    RUN("DROP ROLE jobq_full");
}

/* A program that starts before its server. */
static void *starts_the_server(void *unused)
{
    nap_us(SECOND / 2);
    server_command("--ctl start");
    return unused;
}

static void a_server_that_starts_later_is_waited_for(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc desc = heard_desc(server());
    jobq_pg_error error;
    jobq_pg *handle;
    pthread_t thread;

    (void)unused;
    if (!ours()) skip();
    server_command("--ctl stop -m fast");
    assert_int_equal(jobq_pg_open(&handle, &desc, &error), JOBQ_ERROR_CONNECTION);
    desc.patience_us = 60 * SECOND;
    pthread_create(&thread, NULL, starts_the_server, NULL);
    handle = open_on(&desc);
    pthread_join(thread, NULL);
    db_again();
    start_on(handle, &d);
    enqueue_six(handle);
    expect_done(6);
    all_stop(NULL);
    jobq_pg_close(handle);
}

/* Law 17. A number that was handed out stays its message's over a crash, though the acknowledgement
 * that read on to it is relaxed. The message of a transaction that commits after the crash has a
 * lower id: were the numbers forgotten, it would get this one. */
static void a_number_handed_out_outlives_a_crash(void **unused)
{
    verb_read_desc d;
    verb_ack_desc ack;
    verb_reading r, next;
    jobq_cursor after;
    jobq_pg_error error;

    (void)unused;
    if (getenv("JOBQ_SERVER_DIR") == NULL) skip();
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "o", 1, &box, &error), JOBQ_OK);
    memset(&d, 0, sizeof d);
    memset(&ack, 0, sizeof ack);
    memset(&after, 0, sizeof after);
    d.worker = d.claim = ack.worker = ack.claim = 1;
    d.partition = ack.partition = partition_id(box, 0);
    ack.after = &after;
    ack.most = 10;
    ack.relaxed = true;
    after.acked = 1;
    RUN("SELECT jobq.outbox_enqueue('o', '1')");
    assert_int_equal(verb_read(pg, NULL, &d, &r, &error), JOBQ_OK);
    assert_int_equal(r.answer, 'h');
    RUN("BEGIN; SELECT jobq.outbox_enqueue('o', '\"late\"'); PREPARE TRANSACTION 'late'");
    RUN("SELECT jobq.outbox_enqueue('o', '2')");
    assert_int_equal(verb_ack(pg, db, &ack, &next, &error), JOBQ_OK);
    server_command("--ctl restart -m immediate");
    assert_int_equal(next.answer, 'h');
    assert_int_equal(next.messages[0].seq, 2);
    look_again();
    RUN("COMMIT PREPARED 'late'");
    verb_reading_clear(&next);
    verb_reading_clear(&r);
    d.again = true;
    assert_int_equal(verb_read(pg, NULL, &d, &r, &error), JOBQ_OK);
    assert_int_equal(r.answer, 'h');
    assert_int_equal(r.messages[0].seq, 2);
    assert_true(jobq_str_equal(r.messages[0].payload, jobq_str_from("2")));
    verb_reading_clear(&r);
}

/* What the pool holds may have been closed by the server meanwhile. */
static void a_pooled_connection_that_the_server_closed_is_replaced(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    PGconn *conns[3];
    int i;

    (void)unused;
    for (i = 0; i < 3; i++) assert_int_equal(jobq_pg_acquire(pg, &conns[i], &error), JOBQ_OK);
    for (i = 0; i < 3; i++) jobq_pg_release(pg, conns[i]);
    RUN("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND application_name LIKE 'jo%%'");
    for (i = 0; i < 3; i++)
        assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 3);
}

/* A worker's listening connection is idle for long; a wake-up reaches it within 100 ms all the same
 * (X26). */
static void a_wake_up_reaches_another_process_within_100_ms(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    int i, in_a_row = 0;
    int64_t start_us;

    (void)unused;
    d.loop.lease_us = 30 * SECOND;
    d.loop.heartbeat_us = 0; /* as in production: it looks every 5 s */
    spawn(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.sleeper"));
    for (i = 1; in_a_row < 5; i++) { /* an early look may find one by chance, not five */
        assert_true(i <= 40);
        nap_us(1500000);
        enqueue_count(1);
        start_us = mono_us();
        while (number("SELECT count(*) FROM jobq.history") < i &&
               mono_us() - start_us < 8 * SECOND)
            nap_us(2000);
        start_us = mono_us() - start_us;
        in_a_row = start_us < (check_slow() ? SECOND : 100000) ? in_a_row + 1 : 0;
    }
}

/* The copy holds a job as running that its living worker has finished elsewhere: renew takes it
 * back, and numbers no job as one that is there. */
static void renew_takes_running_jobs_back_and_moves_the_sequences(void **unused)
{
    int64_t epoch = number("SELECT epoch FROM jobq.meta");
    jobq_job old, again;

    (void)unused;
    enqueue_count(2);
    register_worker(101, 60 * SECOND);
    old = claim_one(101, 1, false);
    RUN("SELECT jobq.schedule('first', 'q', 'k', every => '1 year'),"
        " jobq.schedule('second', 'q', 'k', every => '1 year')");
    RUN("SELECT setval('jobq.job_id', 1), setval(pg_get_serial_sequence('jobq.queue', 'id'), 1),"
        " setval(pg_get_serial_sequence('jobq.kind', 'id'), 1),"
        " setval(pg_get_serial_sequence('jobq.schedule', 'id'), 1)");
    RUN("SELECT jobq.renew()");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"), 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim"), 0);
    assert_int_not_equal(number("SELECT epoch FROM jobq.meta"), epoch);
    assert_int_equal(settle_with(&old, JOBQ_EVENT_SUCCESS, NULL), JOBQ_ERROR_LOST);
    claim_one(101, 2, false);
    again = claim_one(101, 3, false); /* the worker lives on, under its next numbers */
    assert_int_equal(again.id, old.id);
    assert_int_equal(settle_with(&again, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    enqueue_count(1);
    assert_true(number("SELECT max(id) FROM jobq.job") > old.id + 1000000);
    assert_true(number("SELECT jobq._queue_id('another')") >
                number("SELECT id FROM jobq.queue WHERE name = 'q'"));
    RUN("SELECT jobq.schedule('third', 'q', 'k', every => '1 year')");
}

/* -- a copy of another server's tables -- */

static void a_dead_letters_id_is_not_given_twice(void **unused)
{
    long last;

    (void)unused;
    RUN("INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at,"
        " attempts) VALUES (1, 32768, 1, now(), now(), 1)");
    number("SELECT nextval(pg_get_serial_sequence('jobq.dead_letter', 'id'))"); /* cleaned up */
    last = number("SELECT nextval(pg_get_serial_sequence('jobq.dead_letter', 'id'))");
    RUN("SELECT jobq.renew()");
    assert_true(number("SELECT nextval(pg_get_serial_sequence('jobq.dead_letter', 'id'))") > last);
}

static int fresh_states(void **state)
{
    logged_count = 0;
    return fresh_effects(state);
}

static int up(void **state)
{
    if (common_up(state) != 0) return 1;
    proxy_up();
    return 0;
}

/* The handler that ships, in a unit test that has a database for its own tables only. */
static void a_handler_with_a_transaction_runs_in_a_unit_test(void **unused)
{
    static const jobq_pg_handler handlers[] = {{.queue = "q", .kind = "k", .run = {works}}};
    const jobq_test_job job = {.queue = "q", .kind = "k", .max_attempts = 1};
    jobq_test *test = jobq_test_init(malloc(jobq_test_size()), handlers, 1);
    jobq_call call;

    (void)unused;
    jobq_test_conn(test, db);
    assert_int_equal(jobq_test_enqueue(test, &job), 1);
    assert_int_equal(jobq_test_enqueue(test, &job), 2);
    assert_int_equal(jobq_test_run(test, JOBQ_MINUTES(1)), 2);
    assert_string_equal(jobq_test_get(test, 2)->error, "");
    assert_int_equal(jobq_test_get(test, 2)->job.state, JOBQ_STATE_SUCCEEDED);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 1);
    assert_int_equal(PQtransactionStatus(db), PQTRANS_IDLE);
    RUN("DROP TABLE jobq.effect"); /* its transaction fails: PQcmdStatus is ROLLBACK */
    assert_int_equal(jobq_test_enqueue(test, &job), 3);
    assert_int_equal(jobq_test_enqueue(test, &job), 4);
    assert_int_equal(jobq_test_run(test, JOBQ_MINUTES(1)), 2);
    assert_int_equal(jobq_test_get(test, 4)->job.state, JOBQ_STATE_FAILED);
    assert_non_null(strstr(jobq_test_get(test, 4)->error, "exceeded: COMMIT failed"));
    free(test);
    memset(&call, 0, sizeof call); /* and a call made by hand */
    call.job.id = 2;
    assert_int_equal(works(&call), JOBQ_OUTCOME_RETRY); /* it has no connection */
    call.conn = db;
    RUN("CREATE TABLE jobq.effect (job bigint)");
    assert_int_equal(works(&call), JOBQ_OUTCOME_DONE);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 1);
}

#define TEST(test, set_up) cmocka_unit_test_setup_teardown(test, set_up, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_wake_up_reaches_another_process_within_100_ms, fresh), /* first: it forks */
        TEST(a_request_lost_at_any_moment_costs_nothing, fresh_connections),
        TEST(an_answer_lost_at_any_moment_costs_nothing, fresh_connections),
        TEST(a_half_open_connection_is_noticed, fresh_connections),
        TEST(a_time_limit_ends_while_an_answer_is_awaited, fresh_connections),
        TEST(a_bad_conninfo_is_an_error_and_leaves_nothing, fresh_connections),
        TEST(patience_waits_for_a_server_that_is_away, fresh_connections),
        TEST(a_worker_outlives_its_server, fresh_connections),
        TEST(a_full_server_is_waited_for, fresh_connections),
        TEST(no_error_need_be_asked_for_while_the_server_is_away, fresh_connections),
        TEST(a_string_of_several_hosts_finds_the_one_that_works, fresh_connections),
        TEST(the_hooks_see_every_connection, fresh_connections),
        TEST(an_encoding_that_would_change_payloads_is_refused, fresh_connections),
        TEST(nothing_that_a_handler_sets_reaches_the_next, fresh_connections),
        TEST(a_workers_connection_in_another_encoding_is_refused, fresh_connections),
        TEST(one_that_is_not_as_it_was_is_not_lent_again, fresh_connections),
        TEST(a_statement_that_cannot_be_sent_leaves_the_connection_usable, fresh_connections),
        TEST(a_pool_that_grows_tells_who_waits, fresh_connections),
        TEST(a_dial_has_limits_and_wipes_its_secrets, fresh_connections),
        TEST(what_notifies_can_be_prepared, fresh_connections),
        TEST(a_full_queue_of_notifications_stops_nobody, fresh_connections),
        TEST(a_long_queue_of_notifications_keeps_nobody_from_work, fresh_states),
        TEST(nor_past_a_pooler, fresh_states),
        TEST(a_rolled_back_job_never_was, fresh_connections),
        TEST(a_standby_is_waited_for_until_it_is_promoted, fresh_states),
        TEST(sessions_that_begin_read_only_work, fresh_states),
        TEST(housekeeping_works_in_sessions_that_begin_read_only, fresh_states),
        TEST(a_full_server_is_named_once, fresh_states),
        TEST(a_server_that_starts_later_is_waited_for, fresh_states),
        TEST(a_number_handed_out_outlives_a_crash, fresh_effects),
        TEST(a_pooled_connection_that_the_server_closed_is_replaced, fresh_effects),
        TEST(renew_takes_running_jobs_back_and_moves_the_sequences, fresh),
        TEST(a_dead_letters_id_is_not_given_twice, fresh),
        TEST(a_handler_with_a_transaction_runs_in_a_unit_test, fresh_effects),
    };

    return cmocka_run_group_tests_name("outages", tests, up, pg_and_proxy_down);
}
