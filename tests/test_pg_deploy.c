/*
 * Deploys: many processes migrate at once; a program of the version before works on while a newer
 * one migrates its schema; what does not serve is refused with both numbers. Row X32 (without
 * down).
 */
#define TEST_PRIVATE
#include "pg_work.h"

static int runs, delivered, errors, migrations;

static int start_over(void **state)
{
    SET(runs, 0);
    SET(delivered, 0);
    SET(errors, 0);
    return pg_empty(state);
}

/* -- sixteen at once -- */

static int *applied; /* shared: migrations that were applied, by all processes */

static void counts_migrations(void *user, jobq_pg_level level, const char *message)
{
    (void)user, (void)level;
    if (strncmp(message, "migration ", 10) == 0) ADD(*applied);
}

static void migrate_in_a_child(const char *name)
{
    jobq_pg_desc d;
    jobq_pg_error error;
    jobq_pg *mine;

    memset(&d, 0, sizeof d);
    d.conninfo = server();
    d.schema = name;
    d.log = counts_migrations;
    if (jobq_pg_open(&mine, &d, &error) != JOBQ_OK || jobq_pg_migrate(mine, &error) != JOBQ_OK ||
        jobq_pg_check(mine, NULL, &error) != JOBQ_OK) {
        fprintf(stderr, "%s\n", error.message);
        _exit(1);
    }
    _exit(0);
}

static void sixteen_processes_migrate_at_once(void **unused)
{
    char name[60];
    pid_t pids[16];
    int i, status, files = (int)(sizeof jobq_pg__migrations / sizeof jobq_pg__migrations[0]);

    (void)unused;
    snprintf(name, sizeof name, "%s_deploy", schema);
    applied = shared(sizeof *applied);
    for (i = 0; i < 16; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) migrate_in_a_child(name);
    }
    for (i = 0; i < 16; i++) {
        waitpid(pids[i], &status, 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(GET(*applied), files); /* each once, by whoever came first */
    assert_int_equal(number("SELECT version FROM %s.meta", name), JOBQ_PG__VERSION);
    RUN("DROP SCHEMA %s CASCADE", name);
}

/* -- the schema changes under a program that runs -- */

static void counts_errors(void *user, jobq_pg_level level, const char *message)
{
    (void)user;
    quiet_log(NULL, level, message);
    if (level == JOBQ_PG_ERROR && strstr(message, "deadlock") == NULL &&
        strstr(message, "lock timeout") == NULL) ADD(errors);
}

static jobq_outcome three_ways(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn;

    ADD(runs);
    if (call->job.id % 3 == 0) return JOBQ_OUTCOME_SUCCESS;
    if (call->job.id % 3 == 1) {
        if (call->job.attempt > 1) return JOBQ_OUTCOME_SUCCESS;
        jobq_call_delay(call, 1000);
        return JOBQ_OUTCOME_RETRY;
    }
    conn = jobq_pg_call_conn(call, &error);
    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    PQclear(PQexec(conn, "BEGIN"));
    return jobq_pg_call_commit(call, conn);
}

static jobq_result takes(jobq_delivery *delivery, const jobq_message *message)
{
    (void)delivery, (void)message;
    ADD(delivered);
    return JOBQ_RESULT_SUCCESS;
}

/* What a later version might do: columns, an index, every function anew. Workers hold locks in
 * another order, so that it may have to be tried again: as a whole, as every migration. */
static void migrate_to_the_next(void)
{
    static const char script[] =
        "BEGIN;"
        "DO $do$ DECLARE r record; BEGIN"
        " FOR r IN SELECT c.oid::regclass AS name FROM pg_class c WHERE c.relkind = 'r'"
        "  AND c.relnamespace = 'jobq'::regnamespace AND NOT c.relispartition LOOP"
        "  EXECUTE format('ALTER TABLE %s ADD COLUMN later_VERSION text', r.name);"
        " END LOOP;"
        " FOR r IN SELECT pg_get_functiondef(p.oid) AS text FROM pg_proc p"
        "  WHERE p.pronamespace = 'jobq'::regnamespace LOOP EXECUTE r.text; END LOOP;"
        "END $do$;"
        "CREATE INDEX ON jobq.failed (later_VERSION);"
        "UPDATE jobq.meta SET version = VERSION;"
        "COMMIT";
    char version[12], text[2000], *sql_text, *at;
    PGresult *res;
    bool good = false;

    snprintf(version, sizeof version, "%d", JOBQ_PG__VERSION + ADD(migrations));
    snprintf(text, sizeof text, "%s", script);
    while ((at = strstr(text, "VERSION")) != NULL) {
        memmove(at + strlen(version), at + 7, strlen(at + 7) + 1);
        memcpy(at, version, strlen(version));
    }
    sql_text = for_schema(text, schema);
    while (!good) {
        res = PQexec(db, sql_text);
        good = PQresultStatus(res) == PGRES_COMMAND_OK;
        if (!good && strcmp(PQresultErrorField(res, PG_DIAG_SQLSTATE), "40P01") != 0) {
            fail_msg("%s", PQerrorMessage(db));
        }
        PQclear(res);
        if (!good) RUN("ROLLBACK");
    }
    free(sql_text);
}

static int stop_producing, produced;

/* Jobs and messages, until it is told to stop. */
static void *produces(void *arg)
{
    jobq_pg *old = (jobq_pg *)arg;
    jobq_pg_message m;
    jobq_pg_job jobs[4];
    jobq_pg_error error;
    jobq_error code;
    int i;

    memset(&m, 0, sizeof m);
    m.queue = "o";
    for (i = 0; i < 4; i++) jobs[i] = plain_job();
    while (!GET(stop_producing)) {
        do code = jobq_pg_enqueue_many(old, NULL, jobs, 4, NULL, &error);
        while (code == JOBQ_ERROR_RETRYABLE); /* a deadlock with the migration */
        if (code == JOBQ_OK) {
            do code = jobq_pg_outbox_enqueue(old, NULL, &m, NULL, &error);
            while (code == JOBQ_ERROR_RETRYABLE);
        }
        if (code != JOBQ_OK) {
            fprintf(stderr, "%s\n", error.message);
            ADD(errors);
        }
        ADD(produced);
        nap_us(2000);
    }
    return NULL;
}

static jobq_pg *old_program(void)
{
    jobq_pg_desc d;
    jobq_pg_error error;
    jobq_pg *old;

    memset(&d, 0, sizeof d);
    d.conninfo = server();
    d.schema = schema;
    d.log = counts_errors;
    if (jobq_pg_open(&old, &d, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return old;
}

/* The old program works on, restarts, and goes on working. */
static void a_newer_schema_is_worked_on(void **unused)
{
    jobq_pg *old = old_program();
    jobq_pg_handler h = handler_of("q", "k", three_ways);
    jobq_pg_receiver r;
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;
    pthread_t producer;
    int round;

    (void)unused;
    memset(&r, 0, sizeof r);
    r.queue = "o";
    r.each = takes;
    d.receivers = &r;
    d.receiver_count = 1;
    SET(stop_producing, 0);
    SET(produced, 0);
    if (jobq_pg_outbox_register(old, NULL, "o", 2, NULL, &error)) fail_msg("%s", error.message);
    pthread_create(&producer, NULL, produces, old);
    for (round = 0; round < 2; round++) {
        jobq_pg_worker *w = start_on(old, &d);
        int before = GET(runs);
        assert_true(reaches(20, &runs, before + 50));
        migrate_to_the_next();
        before = GET(runs);
        assert_true(reaches(20, &runs, before + 50));
        if (round == 0) stop(w);
    }
    SET(stop_producing, 1);
    pthread_join(producer, NULL);
    assert_true(becomes(20, 4 * (long)GET(produced), "SELECT count(*) FROM jobq.history"));
    assert_true(becomes(20, GET(produced), "SELECT sum(acked) FROM jobq.partition"));
    all_stop(NULL);
    jobq_pg_close(old);
    assert_int_equal(GET(errors), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 0);
    assert_int_equal(number("SELECT count(DISTINCT id) FROM jobq.history"), 4 * GET(produced));
    assert_int_equal(number("SELECT version FROM jobq.meta"), JOBQ_PG__VERSION + 2);
}

/* -- what does not serve -- */

static void expect_refused(const char *first, const char *second, const char *fix)
{
    jobq_pg_handler h = handler_of("q", "k", three_ways);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;
    jobq_pg_worker *w = (jobq_pg_worker *)&d;

    assert_int_equal(jobq_pg_worker_start(pg, &d, &w, &error), JOBQ_ERROR_VERSION);
    assert_null(w);
    assert_non_null(strstr(error.message, first));
    assert_non_null(strstr(error.message, second));
    assert_non_null(strstr(error.message, fix));
}

static void what_does_not_serve_is_refused_with_both_numbers(void **unused)
{
    char ours[12], theirs[12];

    (void)unused;
    snprintf(ours, sizeof ours, "%d", JOBQ_PG__VERSION);
    snprintf(theirs, sizeof theirs, "from %d on", JOBQ_PG__VERSION + 1);
    RUN("UPDATE jobq.meta SET version = %d, library_min = %d", JOBQ_PG__VERSION + 1,
        JOBQ_PG__VERSION + 1);
    expect_refused(theirs, ours, "update the program");
    RUN("UPDATE jobq.meta SET version = %d, library_min = 1", JOBQ_PG__VERSION - 1);
    snprintf(theirs, sizeof theirs, "version %d", JOBQ_PG__VERSION - 1);
    expect_refused(theirs, ours, "run jobq_pg_migrate");
    RUN("UPDATE jobq.meta SET version = %d, library_min = 1", JOBQ_PG__VERSION);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start_over, all_stop)

/* -- psql -- */

/* The server's own psql, or another one where it has none. */
static int files_psql(const char *conninfo, const char *file)
{
    const char *bin = getenv("JOBQ_SERVER_BIN");
    char command[500];

    snprintf(command, sizeof command, "PATH=\"%s:$PATH\" psql -qX -f sql/%s '%s' >/dev/null 2>&1",
             bin != NULL ? bin : "", file, conninfo);
    return system(command);
}

/* The catalogue of the schema jobq, with the version, as one text. The caller frees it. */
static char *schema_of(PGconn *conn)
{
    PGresult *res = PQexec(
        conn, "SELECT (SELECT string_agg(p.oid::regprocedure || md5(p.prosrc) || p.prosecdef, ' ' "
              "ORDER BY 1) FROM pg_proc p WHERE p.pronamespace = 'jobq'::regnamespace) || "
              "(SELECT string_agg(c.relname, ' ' ORDER BY 1) FROM pg_class c WHERE c.relnamespace "
              "= 'jobq'::regnamespace) || (SELECT format(' %s %s', m.version, m.epoch) FROM "
              "jobq.meta m)");
    char *text;

    if (PQresultStatus(res) != PGRES_TUPLES_OK) fail_msg("%s", PQerrorMessage(conn));
    text = text_copy(PQgetvalue(res, 0, 0));
    PQclear(res);
    return text;
}

/* A file that does not follow on the schema's version changes nothing, as a whole. */
static void a_file_runs_once_by_psql(void **unused)
{
    static const char *const files[] = {"001_tables.sql", "002_functions.sql", "003_outbox.sql",
                                        "004_operators.sql"};
    char name[60], conninfo[300];
    jobq_pg_desc d;
    jobq_pg_error error;
    jobq_pg *other;
    PGconn *conn;
    size_t i, k;

    (void)unused;
    snprintf(name, sizeof name, "jobq_psql_%d", (int)getpid());
    snprintf(conninfo, sizeof conninfo, "%s dbname=%s", server(), name);
    RUN("CREATE DATABASE %s", name);
    conn = PQconnectdb(conninfo);
    for (i = 0; i < COUNT(files); i++) {
        char *once, *again;
        if (i > 0 && i < 3) files_psql(conninfo, files[i + 1]); /* too early */
        files_psql(conninfo, files[i]);
        once = schema_of(conn);
        for (k = 0; k <= i; k++) files_psql(conninfo, files[k]);
        again = schema_of(conn);
        assert_string_equal(once, again);
        free(once);
        free(again);
    }
    memset(&d, 0, sizeof d);
    d.conninfo = conninfo;
    if (jobq_pg_open(&other, &d, &error)) fail_msg("%s", error.message);
    if (jobq_pg_check(other, NULL, &error)) fail_msg("%s", error.message);
    if (jobq_pg_migrate(other, &error)) fail_msg("%s", error.message);
    jobq_pg_close(other);
    PQfinish(conn);
    RUN("DROP DATABASE %s", name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sixteen_processes_migrate_at_once),
        TEST(what_does_not_serve_is_refused_with_both_numbers),
        TEST(a_newer_schema_is_worked_on),
        TEST(a_file_runs_once_by_psql),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
