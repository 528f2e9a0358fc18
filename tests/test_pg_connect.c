/*
 * Connections that are lost at each moment in turn, half-open or refused; servers that are down,
 * full or read-only; the hooks of the descriptor. Rows X1 (a bad conninfo), X26 (lost wake-ups);
 * promise 7.
 */
#define TEST_PRIVATE
#include "proxy.h"

static int runs, dials, set_ups, told;
static int refused_dials, refused_set_ups;
static char application[100];

static int fresh(void **state)
{
    SET(runs, 0);
    SET(told, 0);
    SET(dials, 0);
    SET(set_ups, 0);
    SET(refused_dials, 0);
    SET(refused_set_ups, 0);
    SET(proxy.refuse, 0);
    proxy_fault_at(PROXY_NONE, 0);
    RUN("DROP TABLE IF EXISTS jobq.effect");
    RUN("CREATE TABLE jobq.effect (job bigint)");
    return pg_empty(state);
}

static jobq_pg_desc desc_of(const char *conninfo)
{
    jobq_pg_desc d;

    memset(&d, 0, sizeof d);
    d.conninfo = conninfo;
    d.schema = schema;
    d.log = quiet_log;
    return d;
}

static jobq_pg *open_on(const jobq_pg_desc *d)
{
    jobq_pg_error error;
    jobq_pg *made;

    if (jobq_pg_open(&made, d, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return made;
}

/* Every second job writes in its own transaction, which completes it; the others only return. */
static jobq_outcome works(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn;
    char *text, insert[100];

    ADD(runs);
    jobq_call_delay(call, 1000);
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
        fresh(NULL);
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

/* -- servers that will not have us -- */

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

/* Quick, so that much is fetched ahead, until the 200th, which works until it is told to stop. */
static jobq_outcome outlives_the_lease(jobq_call *call)
{
    if (ADD(runs) != 200) return JOBQ_OUTCOME_SUCCESS;
    while (!jobq_call_stopping(call)) nap_us(2000);
    ADD(told);
    return JOBQ_OUTCOME_SUCCESS;
}

static void jobs_in_hand_go_on_after_an_outage_longer_than_the_lease(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", outlives_the_lease);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc through = desc_of(proxy.conninfo);
    jobq_pg *handle = open_on(&through);
    jobq_pg_health health;
    jobq_pg_worker *w;

    (void)unused;
    d.loop.threads = 1;
    d.loop.lease_us = 2 * SECOND;
    enqueue_count(400);
    w = start_on(handle, &d);
    assert_true(reaches(20, &runs, 200));
    nap_us(300000); /* no claim is on its way, whose recovery would wake the thread */
    SET(proxy.refuse, 1);
    RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'job_ test'");
    assert_true(reaches(20, &told, 1)); /* its lease is over */
    nap_us(200000);                     /* the thread sleeps */
    SET(proxy.refuse, 0);
    if (!becomes(20, 0, "SELECT count(*) FROM jobq.job")) {
        jobq_pg_worker_health(w, &health);
        fail_msg("lease of %lld us", (long long)health.lease_us);
    }
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
        jobq_pg_worker_health(w, &health);
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

/* -- wake-ups -- */

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

static int up(void **state)
{
    if (pg_up(state) != 0) return 1;
    proxy_up();
    return 0;
}

static int down(void **state)
{
    proxy_down();
    return pg_down(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_request_lost_at_any_moment_costs_nothing),
        TEST(an_answer_lost_at_any_moment_costs_nothing),
        TEST(a_half_open_connection_is_noticed),
        TEST(a_bad_conninfo_is_an_error_and_leaves_nothing),
        TEST(patience_waits_for_a_server_that_is_away),
        TEST(a_worker_outlives_its_server),
        TEST(jobs_in_hand_go_on_after_an_outage_longer_than_the_lease),
        TEST(a_full_server_is_waited_for),
        TEST(no_error_need_be_asked_for_while_the_server_is_away),
        TEST(a_string_of_several_hosts_finds_the_one_that_works),
        TEST(the_hooks_see_every_connection),
        TEST(an_encoding_that_would_change_payloads_is_refused),
        TEST(a_workers_connection_in_another_encoding_is_refused),
        TEST(one_that_is_not_as_it_was_is_not_lent_again),
        TEST(a_statement_that_cannot_be_sent_leaves_the_connection_usable),
        TEST(a_pool_that_grows_tells_who_waits),
        TEST(a_dial_has_limits_and_wipes_its_secrets),
        TEST(a_rolled_back_job_never_was),
    };

    return cmocka_run_group_tests(tests, up, down);
}
