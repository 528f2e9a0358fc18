/*
 * States of the server: down, full, in recovery, read-only by default, starting; when a program
 * starts and while it runs. The log says once what is wrong, with the fix.
 */
#include "pg_work.h"

static int runs;

/* -- what is logged -- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char logged[200][700];
static int logged_count;

static void keeps_warnings(void *user, jobq_pg_level level, const char *message)
{
    (void)user;
    quiet_log(NULL, level, message);
    if (level > JOBQ_PG_INFO) return;
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

static int start_over(void **state)
{
    SET(runs, 0);
    logged_count = 0;
    RUN("DROP TABLE IF EXISTS jobq.effect");
    RUN("CREATE TABLE jobq.effect (job bigint)");
    return pg_empty(state);
}

/* -- work -- */

/* Every second one in a transaction of its own. */
static jobq_outcome works(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn;
    char *text;

    ADD(runs);
    jobq_call_delay(call, 50000);
    if (call->job.id % 2 != 0) return JOBQ_OUTCOME_SUCCESS;
    conn = jobq_pg_call_conn(call, &error);
    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    text = for_schema("BEGIN; INSERT INTO jobq.effect VALUES (1)", schema);
    PQclear(PQexec(conn, text));
    free(text);
    return jobq_pg_call_commit(call, conn);
}

static jobq_pg_desc desc_of(const char *conninfo)
{
    jobq_pg_desc d;

    memset(&d, 0, sizeof d);
    d.conninfo = conninfo;
    d.schema = schema;
    d.log = keeps_warnings;
    return d;
}

static jobq_pg *open_on(const jobq_pg_desc *d)
{
    jobq_pg_error error;
    jobq_pg *made;

    if (jobq_pg_open(&made, d, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return made;
}

static void enqueue_six(jobq_pg *on)
{
    jobq_pg_job jobs[6];
    jobq_pg_error error;
    int i;

    for (i = 0; i < 6; i++) jobs[i] = plain_job();
    if (jobq_pg_enqueue_many(on, NULL, jobs, 6, NULL, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
}

static void expect_done(long jobs)
{
    assert_true(becomes(60, jobs, "SELECT count(*) FROM jobq.history"));
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), jobs / 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 0);
}

/* -- the server of the tests, if it is ours -- */

static bool ours(void)
{
    return getenv("JOBQ_SERVER_DIR") != NULL;
}

static void ctl(const char *what)
{
    char command[300];

    snprintf(command, sizeof command, "tests/server.sh --ctl %s >/dev/null 2>&1", what);
    assert_int_equal(system(command), 0);
}

static void standby_signal(bool there)
{
    char command[300];

    snprintf(command, sizeof command, "%s \"$JOBQ_SERVER_DIR/data/standby.signal\"",
             there ? "touch" : "rm -f");
    assert_int_equal(system(command), 0);
}

static void db_anew(void)
{
    PQfinish(db);
    db = PQconnectdb(server());
    PQclear(PQexec(db, "SET client_min_messages = error"));
}

/* A server that stops, comes back as a standby, and is promoted. */
static void a_standby_is_waited_for_until_it_is_promoted(void **unused)
{
    char several[400];
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc desc = desc_of(server()), hosts = desc_of(several), fresh = desc_of(server());
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
    ctl("stop -m fast");
    assert_true(logs("connect", "No such file") || logs("connect", "refused"));
    standby_signal(true);
    ctl("start");
    assert_true(logs("hot standby", "promote it"));
    assert_int_equal(jobq_pg_open(&handles[2], &fresh, &error), JOBQ_ERROR_CONNECTION);
    assert_non_null(strstr(error.message, "promote it"));
    nap_us(2 * SECOND); /* they go on trying */
    assert_in_range(lines_with("hot standby", "promote it"), 1, 4); /* and say so once each */
    while (jobq_pg_worker_health(w, &health) != JOBQ_ERROR_CONNECTION ||
           strstr(health.error, "promote it") == NULL) {
        assert_true(mono_us() < until);
        nap_us(10000);
    }
    ctl("promote");
    db_anew();
    handles[2] = open_on(&fresh);
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
    jobq_pg_desc desc = desc_of(server());
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
    db_anew();
    RUN("SET default_transaction_read_only = off");
    RUN("ALTER DATABASE %s RESET default_transaction_read_only", PQdb(db));
    db_anew();
    jobq_pg_close(before);
    jobq_pg_close(after);
}

/* Behind a pooler nothing is said to the session: each statement says it, housekeeping too. */
static void housekeeping_works_in_sessions_that_begin_read_only(void **unused)
{
    char conninfo[300] = "";
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc desc = desc_of(conninfo);
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
    jobq_pg_desc desc = desc_of(conninfo);
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
    ctl("start");
    return unused;
}

static void a_server_that_starts_later_is_waited_for(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", works);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc desc = desc_of(server());
    jobq_pg_error error;
    jobq_pg *handle;
    pthread_t thread;

    (void)unused;
    if (!ours()) skip();
    ctl("stop -m fast");
    assert_int_equal(jobq_pg_open(&handle, &desc, &error), JOBQ_ERROR_CONNECTION);
    desc.patience_us = 60 * SECOND;
    pthread_create(&thread, NULL, starts_the_server, NULL);
    handle = open_on(&desc);
    pthread_join(thread, NULL);
    db_anew();
    start_on(handle, &d);
    enqueue_six(handle);
    expect_done(6);
    all_stop(NULL);
    jobq_pg_close(handle);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_over, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_standby_is_waited_for_until_it_is_promoted),
        TEST(sessions_that_begin_read_only_work),
        TEST(housekeeping_works_in_sessions_that_begin_read_only),
        TEST(a_full_server_is_named_once),
        TEST(a_server_that_starts_later_is_waited_for),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
