/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Behind a real pgbouncer in transaction mode: the self-check, work, wake-ups that bypass the
 * pooler, sessions with unusual defaults, other clients that spoil the sessions, and housekeeping
 * with a role's time-outs.
 */
#include "hasty.h"
#include "proxy.h"

#include <pwd.h>
#include <sys/stat.h>

static char folder[40], through[120];
static pid_t bouncer;

static void put(FILE *f, const char *mode)
{
    fprintf(f,
            "[databases]\n%s = host=%s port=%s dbname=%s user=%s\n"
            "hasty = host=%s port=%s dbname=%s user=jobq_hasty_%d\n"
            "far = host=%s port=%s dbname=%s user=%s\n[pgbouncer]\n"
            "unix_socket_dir = %s\nlisten_port = %s\nauth_type = any\npool_mode = %s\n"
            "default_pool_size = 4\nmax_client_conn = 200\nlogfile = %s/log\n",
            PQdb(db), PQhost(db), PQport(db), PQdb(db), PQuser(db), PQhost(db), PQport(db),
            PQdb(db), (int)getpid(), proxy.folder, PQport(db), PQdb(db), PQuser(db), folder,
            PQport(db), mode, folder);
}

static bool answers(void)
{
    PGconn *conn = PQconnectdb(through);
    bool good = PQstatus(conn) == CONNECTION_OK;

    PQfinish(conn);
    return good;
}

/* It refuses to run as root, and has to reach the server's socket. */
static void bouncer_run(const char *config)
{
    const char *name = getenv("JOBQ_SERVER_USER");
    const struct passwd *user = geteuid() == 0 ? getpwnam(name == NULL ? "nobody" : name) : NULL;
    FILE *silent = freopen("/dev/null", "w", stderr);

    if (silent == NULL) _exit(126);
    if (user != NULL && (setgid(user->pw_gid) != 0 || setuid(user->pw_uid) != 0)) _exit(126);
    execlp("pgbouncer", "pgbouncer", "-q", config, (char *)NULL);
    execl("/usr/sbin/pgbouncer", "pgbouncer", "-q", config, (char *)NULL);
    _exit(127);
}

static void bouncer_start(const char *mode)
{
    char config[60];
    int64_t until = mono_us() + 20 * SECOND;
    FILE *f;

    snprintf(config, sizeof config, "%s/ini", folder);
    f = fopen(config, "w");
    assert_non_null(f);
    put(f, mode);
    fclose(f);
    bouncer = fork();
    assert_true(bouncer >= 0);
    if (bouncer == 0) bouncer_run(config);
    while (!answers()) {
        assert_true(mono_us() < until);
        nap_us(20000);
    }
}

static void bouncer_end(void)
{
    if (bouncer == 0) return;
    kill(bouncer, SIGKILL);
    waitpid(bouncer, NULL, 0);
    bouncer = 0;
}

static jobq_pg_desc pooled_desc(void)
{
    jobq_pg_desc d = desc_of(through);

    d.behind_pooler = true;
    return d;
}

static jobq_outcome counts(jobq_call *call)
{
    ADD(runs);
    if (call->job.id % 3 == 0 && call->job.attempt == 1) {
        jobq_call_delay(call, 1000);
        return JOBQ_OUTCOME_RETRY;
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome commits(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    ADD(runs);
    PQclear(PQexec(conn, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")); /* spoilt ones */
    return jobq_pg_call_commit(call, conn);
}

/* -- the self-check -- */

static void a_missing_option_is_named(void **unused)
{
    jobq_pg_desc d = pooled_desc();
    jobq_pg_error error;
    jobq_pg *none;

    (void)unused;
    d.behind_pooler = false;
    assert_int_equal(jobq_pg_open(&none, &d, &error), JOBQ_ERROR_INVALID);
    assert_null(none);
    assert_string_equal(error.field, "behind_pooler");
    assert_non_null(strstr(error.message, "behind_pooler: must be set"));
}

static void a_line_for_listen_through_the_pooler_is_refused(void **unused)
{
    jobq_pg_desc d = pooled_desc();
    jobq_pg_error error;
    jobq_pg *none;

    (void)unused;
    d.listen_conninfo = through;
    assert_int_equal(jobq_pg_open(&none, &d, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "listen_conninfo");
    d.listen_conninfo = server();
    jobq_pg_close(open_on(&d));
}

/* Session mode keeps sessions: nothing to be said, everything works as without a pooler. */
static void session_mode_needs_nothing(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counts);
    jobq_pg_worker_desc w = work_of(&h, 1);
    jobq_pg_desc d = pooled_desc();
    jobq_pg *handle;

    (void)unused;
    bouncer_end();
    bouncer_start("session");
    d.behind_pooler = false;
    handle = open_on(&d);
    w.loop.threads = 1;
    start_on(handle, &w);
    enqueue_count(10);
    assert_true(becomes(30, 10, "SELECT count(*) FROM jobq.history"));
    all_stop(NULL);
    jobq_pg_close(handle);
    bouncer_end();
    bouncer_start("transaction");
}

/* -- work -- */

/* Everything through the pooler: migrate, the ways to enqueue, two workers, transactions. Clients
 * beside it leave the sessions as READ ONLY and SERIALIZABLE, as a pooler lets them. */
static void everything_works_behind_it(void **unused)
{
    jobq_pg_handler h[2];
    jobq_pg_worker_desc w;
    jobq_pg_desc d = pooled_desc();
    jobq_pg *handle = open_on(&d);
    jobq_pg_job jobs[60];
    jobq_pg_error error;
    PGconn *spoilers[4];
    int i;

    (void)unused;
    for (i = 0; i < 4; i++) spoilers[i] = PQconnectdb(through);
    for (i = 0; i < 4; i++) PQclear(PQexec(spoilers[i], "BEGIN"));
    for (i = 0; i < 4; i++)
        PQclear(PQexec(spoilers[i], "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL "
                                    "SERIALIZABLE, READ ONLY"));
    for (i = 0; i < 4; i++) PQclear(PQexec(spoilers[i], "COMMIT"));
    assert_int_equal(jobq_pg_migrate(handle, &error), JOBQ_OK);
    h[0] = handler_of("q", "k", counts);
    h[1] = handler_of("q", "tx", commits);
    w = work_of(h, 2);
    for (i = 0; i < 60; i++) {
        jobs[i] = plain_job();
        if (i >= 40) jobs[i].kind = "tx";
    }
    for (i = 0; i < 10; i++)
        assert_int_equal(jobq_pg_enqueue(handle, NULL, &jobs[i], NULL, &error), JOBQ_OK);
    if (jobq_pg_enqueue_many(handle, NULL, jobs + 10, 30, NULL, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    if (jobq_pg_enqueue_many(handle, NULL, jobs + 40, 20, JOBQ_PG_BY_COPY, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    start_on(handle, &w);
    start_on(handle, &w);
    assert_true(becomes(60, 60, "SELECT count(*) FROM jobq.history WHERE state = 's'"));
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    all_stop(NULL);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
    for (i = 0; i < 4; i++) PQfinish(spoilers[i]);
    jobq_pg_close(handle);
}

/* A statement that fails leaves its transaction aborted in the pipeline: what is behind it is sent
 * again, and nobody else pays. */
static void a_refused_statement_costs_no_neighbour(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counts);
    jobq_pg_worker_desc w = work_of(&h, 1);
    jobq_pg_desc d = pooled_desc();
    jobq_pg *handle = open_on(&d);

    (void)unused;
    RUN("CREATE FUNCTION jobq.refuses() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.id %% 5 = 0 THEN RAISE EXCEPTION 'no' USING ERRCODE = '22000'; END IF;"
        " RETURN NEW; END $$");
    RUN("CREATE TRIGGER refuses BEFORE INSERT ON jobq.history FOR EACH ROW"
        " EXECUTE FUNCTION jobq.refuses()");
    enqueue_count(50);
    RUN("UPDATE jobq.queue SET max_attempts = 1");
    RUN("UPDATE jobq.job SET id = id * 3 + 1000000 - 1000000 %% 3");
    start_on(handle, &w);
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job WHERE id % 5 <> 0"));
    RUN("DROP FUNCTION jobq.refuses() CASCADE");
    all_stop(NULL);
    jobq_pg_close(handle);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE id %% 5 <> 0 AND id %% 3 <> 0"),
                     0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* -- wake-ups -- */

static int64_t wait_for_sleep(void)
{
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.sleeper"));
    nap_us(300000);
    return mono_us();
}

/* LISTEN past the pooler: a sleeping worker is woken long before it would look by itself; and again
 * after the line was cut. */
static void a_line_past_the_pooler_wakes(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counts);
    jobq_pg_worker_desc w = work_of(&h, 1);
    jobq_pg_desc d = pooled_desc();
    jobq_pg *handle;
    int64_t began;
    int round;

    (void)unused;
    d.listen_conninfo = server();
    w.loop.lease_us = 60 * SECOND;
    w.loop.heartbeat_us = 10 * SECOND; /* so slow is a look by itself */
    handle = open_on(&d);
    start_on(handle, &w);
    wait_for_sleep();
    for (round = 1; round <= 3; round++) {
        assert_int_equal(number("SELECT setval('jobq.job_id', 1000 * %d + 1)", round),
                         1000 * round + 1);
        if (round == 3) nap_us(6 * SECOND); /* the doubling looks are over */
        began = mono_us();
        enqueue_count(1);
        assert_true(reaches(8, &runs, round));
        if (round == 3) assert_true(mono_us() - began < 3 * SECOND);
        nap_us(400000);
    }
    all_stop(NULL);
    jobq_pg_close(handle);
}

static void without_a_line_a_worker_polls(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counts);
    jobq_pg_worker_desc w = work_of(&h, 1);
    jobq_pg_desc d = pooled_desc();
    jobq_pg *handle = open_on(&d);

    (void)unused;
    start_on(handle, &w);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.worker"));
    nap_us(300000);
    enqueue_count(5);
    assert_true(becomes(20, 5, "SELECT count(*) FROM jobq.history"));
    assert_int_equal(number("SELECT count(*) FROM jobq.sleeper"), 0); /* nobody is to be woken */
    all_stop(NULL);
    jobq_pg_close(handle);
}

/* The pooler goes and comes back. */
static void a_pooler_that_restarts_is_waited_for(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counts);
    jobq_pg_worker_desc w = work_of(&h, 1);
    jobq_pg_desc d = pooled_desc();
    jobq_pg *handle = open_on(&d);

    (void)unused;
    w.loop.lease_us = 30 * SECOND;
    start_on(handle, &w);
    enqueue_count(200);
    assert_true(reaches(20, &runs, 20));
    bouncer_end();
    enqueue_count(100);
    bouncer_start("transaction");
    assert_true(becomes(60, 300, "SELECT count(*) FROM jobq.history"));
    all_stop(NULL);
    jobq_pg_close(handle);
}

/* The pooler says that its server has gone, with an SQLSTATE of its own. */
static void an_answer_lost_behind_the_pooler_leaves_it_open(void **unused)
{
    jobq_pg_desc d = pooled_desc();
    jobq_pg_job job = {.queue = "q", .kind = "k"};
    jobq_pg_error error;
    char far[200];
    jobq_pg *handle;

    (void)unused;
    snprintf(far, sizeof far, "%s dbname=far", through);
    d.conninfo = far;
    handle = open_on(&d);
    assert_int_equal(jobq_pg_enqueue(handle, NULL, &job, NULL, &error), JOBQ_OK);
    proxy_fault_at(PROXY_CUT_ANSWER, 1);
    assert_int_equal(jobq_pg_enqueue(handle, NULL, &job, NULL, &error), JOBQ_ERROR_CONNECTION);
    assert_int_equal(strncmp(error.sqlstate, "08", 2), 0);
    assert_non_null(strstr(error.message, "may have been carried out"));
    assert_true(becomes(10, 2, "SELECT count(*) FROM jobq.job"));
    jobq_pg_close(handle);
}

/* -- housekeeping -- */

static int complaints;

static void hears(void *user, jobq_level level, const char *message)
{
    if (strstr(message, "set listen_conninfo") != NULL) ADD(complaints);
    quiet_log(user, level, message);
}

/* A worker under the hasty role, until the old failed jobs are pruned. The caller stops it. */
static jobq_pg *hasty_work(const char *listen_conninfo, const jobq_pg_handler *h)
{
    jobq_pg_worker_desc w = work_of(h, 1);
    jobq_pg_desc d = pooled_desc();
    jobq_pg *handle;
    char conninfo[200];

    hasty_begin();
    bouncer_end(); /* its connections may have an earlier role of that name */
    bouncer_start("transaction");
    snprintf(conninfo, sizeof conninfo, "%s dbname=hasty", through);
    d.conninfo = conninfo;
    d.listen_conninfo = listen_conninfo;
    d.log = hears;
    w.loop.vacuum_rows = 1000;
    w.loop.prune_us = 200000;
    SET(complaints, 0);
    PQclear(sql(db, "SELECT pg_stat_reset_single_table_counters('jobq.job'::regclass)"));
    handle = open_on(&d);
    start_on(handle, &w);
    assert_true(becomes(60, 0, HASTY_LEFT));
    return handle;
}

static void vacuum_goes_past_the_pooler(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counts);
    jobq_pg *handle = hasty_work(hasty_conninfo, &h);

    (void)unused;
    assert_true(becomes(60, 1, HASTY_VACUUMED));
    assert_int_equal(GET(complaints), 0);
    all_stop(NULL);
    jobq_pg_close(handle);
    hasty_end();
}

/* No way past it: VACUUM fails under the role's time-out again and again, and the log says the fix
 * once. */
static void a_vacuum_that_a_pooler_bounds_is_told_once(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counts);
    jobq_pg *handle = hasty_work(NULL, &h);
    int round;

    (void)unused;
    for (round = 0; round < 3; round++) {
        enqueue_count(1500);
        assert_true(reaches(60, &complaints, 1));
        assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job"));
        assert_true(becomes(60, 0, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' "
                                   "AND query LIKE 'VACUUM%%'"));
    }
    assert_int_equal(GET(complaints), 1);
    all_stop(NULL);
    jobq_pg_close(handle);
    hasty_end();
}

static int up(void **state)
{
    mode_t before;

    if (pg_up(state) != 0) return 1;
    strcpy(folder, "/tmp/jobq_pool.XXXXXX");
    if (mkdtemp(folder) == NULL || chmod(folder, 0777) != 0) return 1;
    snprintf(through, sizeof through, "host=%s port=%s user=%s dbname=%s", folder, PQport(db),
             PQuser(db), PQdb(db));
    before = umask(0); /* the pooler runs as another user */
    proxy_up();
    umask(before);
    if (chmod(proxy.folder, 0777) != 0) return 1;
    bouncer_start("transaction");
    return 0;
}

static int down(void **state)
{
    char command[60];

    bouncer_end();
    proxy_down();
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0) return 1;
    return pg_down(state);
}

#define BINARY ".build/examples/jobq/jobq"

static void jobq_doctor_finds_it(void **unused)
{
    char command[400], out[4096];
    FILE *pipe;

    (void)unused;
    assert_int_equal(system("make -s " BINARY " >/dev/null"), 0);
    snprintf(command, sizeof command,
             "timeout 60 " BINARY " -d '%s' --schema %s doctor 2>&1", through, schema);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    out[fread(out, 1, sizeof out - 1, pipe)] = '\0';
    pclose(pipe);
    if (strstr(out, "listen: warning: notifications do not arrive: a pooler") == NULL ||
        strstr(out, "listen_conninfo") == NULL) fail_msg("%s", out);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_missing_option_is_named),
        TEST(a_line_for_listen_through_the_pooler_is_refused),
        TEST(everything_works_behind_it),
        TEST(a_refused_statement_costs_no_neighbour),
        TEST(a_line_past_the_pooler_wakes),
        TEST(without_a_line_a_worker_polls),
        TEST(a_pooler_that_restarts_is_waited_for),
        TEST(an_answer_lost_behind_the_pooler_leaves_it_open),
        TEST(vacuum_goes_past_the_pooler),
        TEST(a_vacuum_that_a_pooler_bounds_is_told_once),
        TEST(jobq_doctor_finds_it),
        TEST(session_mode_needs_nothing),
    };

    return cmocka_run_group_tests(tests, up, down);
}
