/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Deploys: many processes migrate at once; a program of this version goes on working while the
 * next one, of tests/pg/next/, migrates its schema; a program that the schema does not serve is
 * refused, with both versions. Row X32 (without a way down).
 */
#define TEST_PRIVATE
#include "pg_work.h"

static int delivered, errors;

/* With a schema of this version, which a test may have changed. */
static int start_over(void **state)
{
    jobq_pg_error error;

    SET(runs, 0);
    SET(delivered, 0);
    SET(errors, 0);
    if (number("SELECT version FROM jobq.meta") == jobq_pg__newest()) return pg_empty(state);
    RUN("DROP SCHEMA jobq CASCADE");
    if (jobq_pg_migrate(pg, &error)) fail_msg("%s", error.message);
    return 0;
}

/* -- sixteen at once -- */

static int *applied; /* shared: migrations that were applied, by all processes */

static void counts_migrations(void *user, jobq_level level, const char *message)
{
    (void)user, (void)level;
    if (strstr(message, ": migration ") != NULL) ADD(*applied);
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
    assert_int_equal(GET(*applied), files); /* each once, by the process that came first */
    assert_int_equal(number("SELECT version FROM %s.meta", name), jobq_pg__newest());
    RUN("DROP SCHEMA %s CASCADE", name);
}

/* -- the schema changes under a program that runs -- */

static void counts_errors(void *user, jobq_level level, const char *message)
{
    (void)user;
    quiet_log(NULL, level, message);
    if (level == JOBQ_LEVEL_ERROR && strstr(message, "deadlock") == NULL &&
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

/* What a later version might do: columns, an index, all functions again. Workers hold locks in
 * another order, so that it may have to be tried again: as a whole, as every migration. */
static void migrate_to_a_later_one(void)
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

    snprintf(version, sizeof version, "%d", jobq_pg__newest() + 2);
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

/* What psql -f sql/install.sql does with a schema of this version: the whole text, in one
 * transaction. */
static jobq_error install_text(jobq_pg *mine, PGconn *conn, jobq_pg_error *error)
{
    const jobq_pg__migration *file;
    jobq_error code = jobq_pg__command(conn, "BEGIN", error);
    size_t i;

    for (i = 1; code == JOBQ_OK && (file = jobq_pg__file(i)) != NULL; i++)
        code = jobq_pg__apply(mine, conn, file, error);
    PQclear(PQexec(conn, code == JOBQ_OK ? "COMMIT" : "ROLLBACK"));
    return code;
}

static void install_again(void)
{
    jobq_pg_error error;
    jobq_error code;

    do code = install_text(pg, db, &error);
    while (code == JOBQ_ERROR_RETRYABLE); /* a deadlock with a worker */
    if (code != JOBQ_OK) fail_msg("%s", error.message);
}

/* The program of the next version migrates a schema. Its exit status: see tests/pg/next/migrate.c.
 * */
static int next_migrates(const char *conninfo, const char *name)
{
    char command[700];
    int status;

    snprintf(command, sizeof command, ".build/next/migrate '%s' %s", conninfo, name);
    status = system(command);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* This version's program works on, restarts, and goes on working; while its own text is installed
 * again, the next version migrates, and then what a later one might be. */
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
    for (round = 0; round < 3; round++) {
        jobq_pg_worker *w = start_on(old, &d);
        int before = GET(runs);
        assert_true(reaches(20, &runs, before + 50));
        if (round == 0) install_again();
        else if (round == 1) assert_int_equal(next_migrates(server(), schema), 0);
        else migrate_to_a_later_one();
        before = GET(runs);
        assert_true(reaches(20, &runs, before + 50));
        if (round < 2) stop(w);
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
    assert_int_equal(number("SELECT version FROM jobq.meta"), jobq_pg__newest() + 2);
    assert_int_equal(jobq_pg_check(pg, NULL, &error), JOBQ_OK); /* it still serves this version */
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
    char ours[24], theirs[24];
    jobq_pg_error error;
    long library_min = number("SELECT library_min FROM jobq.meta");

    (void)unused;
    snprintf(ours, sizeof ours, "%d", jobq_pg__newest());
    snprintf(theirs, sizeof theirs, "from %d on", jobq_pg__newest() + 1);
    RUN("UPDATE jobq.meta SET version = %d, library_min = %d", jobq_pg__newest() + 1,
        jobq_pg__newest() + 1);
    expect_refused(theirs, ours, "update the program");
    RUN("UPDATE jobq.meta SET version = 0, library_min = 1");
    expect_refused("version 0", ours, "run jobq_pg_migrate");
    RUN("UPDATE jobq.meta SET version = 11, library_min = 5"); /* the last one before 12 */
    expect_refused("version 11", ours, "examples/carry.sql");
    assert_int_equal(jobq_pg_check(pg, NULL, &error), JOBQ_ERROR_VERSION);
    assert_int_equal(jobq_pg_migrate(pg, &error), JOBQ_ERROR_VERSION);
    assert_non_null(strstr(error.message, "version 11, which was never released"));
    assert_int_equal(number("SELECT version FROM jobq.meta"), 11);
    RUN("UPDATE jobq.meta SET version = %d, library_min = %ld", jobq_pg__newest(), library_min);
    RUN("CREATE TABLE jobq._kept AS TABLE jobq.meta");
    RUN("DELETE FROM jobq.meta");
    assert_int_equal(jobq_pg_migrate(pg, &error), JOBQ_ERROR_DATABASE);
    assert_non_null(strstr(error.message, "restore it from a backup"));
    RUN("INSERT INTO jobq.meta TABLE jobq._kept");
    RUN("DROP TABLE jobq._kept");
}

/* -- the whole text -- */

/* The catalogue of the schema jobq in one text: functions with their settings and grants, but
 * without the comments that the library leaves out; columns, constraints, indexes, the version. Two
 * schemas are alike when their texts are equal. The caller frees it. */
static char *catalogue(PGconn *conn, const char *name)
{
    static const char query[] =
        "WITH s AS (SELECT 'jobq'::regnamespace AS oid)"
        "SELECT string_agg(line, E'\\n' ORDER BY line) FROM ("
        "  SELECT regexp_replace(pg_get_functiondef(p.oid), '\\n *--[^\\n]*', '', 'g')"
        "   || (SELECT string_agg(a::text, ' ' ORDER BY a::text)"
        "   FROM aclexplode(p.proacl) a) || coalesce(obj_description(p.oid, 'pg_proc'), '') AS line"
        "  FROM pg_proc p, s WHERE p.pronamespace = s.oid"
        " UNION ALL SELECT c.relname || (SELECT count(*) FROM pg_attribute b"
        "   WHERE b.attrelid = c.oid AND b.attnum BETWEEN 1 AND a.attnum AND NOT b.attisdropped)"
        "   || a.attname"
        "   || format_type(a.atttypid, a.atttypmod) || a.attnotnull"
        "   || coalesce(a.attacl::text, '') || coalesce(c.relacl::text, '')"
        "   || coalesce(pg_get_expr(d.adbin, d.adrelid), '')"
        "  FROM s, pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
        "  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum"
        "  WHERE c.relnamespace = s.oid AND NOT a.attisdropped"
        " UNION ALL SELECT pg_get_constraintdef(k.oid) FROM pg_constraint k, s"
        "  WHERE k.connamespace = s.oid"
        " UNION ALL SELECT pg_get_indexdef(i.indexrelid) FROM s, pg_index i JOIN pg_class c"
        "  ON c.oid = i.indrelid WHERE c.relnamespace = s.oid"
        " UNION ALL SELECT pg_get_viewdef(c.oid) FROM pg_class c, s"
        "  WHERE c.relnamespace = s.oid AND c.relkind = 'v'"
        " UNION ALL SELECT format('version %s %s', m.version, m.library_min) FROM jobq.meta m) t";
    char *generic = for_schema(query, name), *text;
    PGresult *res = PQexec(conn, generic);

    if (PQresultStatus(res) != PGRES_TUPLES_OK) fail_msg("%s", PQerrorMessage(conn));
    text = text_copy(PQgetvalue(res, 0, 0));
    PQclear(res);
    free(generic);
    return text;
}

static void expect_catalogue(PGconn *conn, const char *name, const char *wanted)
{
    char *text = catalogue(conn, name);
    size_t i;

    for (i = 0; text[i] != '\0' && text[i] == wanted[i]; i++) continue;
    if (text[i] != wanted[i]) {
        fail_msg("the schemas differ at: %.300s\nwanted: %.300s", text + (i > 80 ? i - 80 : 0),
                 wanted + (i > 80 ? i - 80 : 0));
    }
    free(text);
}

static long may_call(const char *role, const char *function)
{
    return number("SELECT bool_and(has_function_privilege('%s_%d', p.oid, 'EXECUTE'))::int "
                  "FROM pg_proc p WHERE p.pronamespace = 'jobq'::regnamespace AND p.proname = '%s'",
                  role, (int)getpid(), function);
}

/* Functions and views that were lost or changed come back, and a next version adds some; grants
 * stay. What one role lost by hand it does not get again. */
static void a_version_installs_all_of_its_text_and_keeps_grants(void **unused)
{
    char *before;

    (void)unused;
    RUN("CREATE ROLE jobq_works_%d; CREATE ROLE jobq_reads_%d; CREATE ROLE jobq_watches_%d",
        (int)getpid(), (int)getpid(), (int)getpid());
    RUN("SELECT jobq.grant_work('jobq_works_%d'), jobq.grant_enqueue('jobq_works_%d')",
        (int)getpid(), (int)getpid());
    RUN("SELECT jobq.grant_operate('jobq_reads_%d')", (int)getpid());
    RUN("SELECT jobq.grant_read('jobq_watches_%d', payloads => false)", (int)getpid());
    RUN("REVOKE EXECUTE ON FUNCTION jobq._set_aside FROM jobq_works_%d", (int)getpid());
    RUN("REVOKE SELECT (failed) ON jobq.queues FROM jobq_watches_%d", (int)getpid());
    RUN("COMMENT ON FUNCTION jobq.renew(boolean) IS 'ours'");
    before = catalogue(db, schema);
    RUN("DROP FUNCTION jobq._recover, jobq.dead_letter_count, jobq.enqueue, jobq._add_error;"
        " DROP VIEW jobq.failures;"
        " ALTER FUNCTION jobq._complete RESET ALL; ALTER FUNCTION jobq.prune SECURITY INVOKER;"
        " CREATE OR REPLACE FUNCTION jobq.audit() RETURNS bigint LANGUAGE sql AS 'SELECT 1::int8';"
        " CREATE OR REPLACE VIEW jobq.dead_letters AS"
        "  SELECT d.*, 1 AS more FROM (SELECT * FROM jobq.dead_letters) d LIMIT 0");
    /* A view keeps its columns. */
    assert_int_equal(install_text(pg, db, NULL), JOBQ_ERROR_DATABASE);
    RUN("DROP VIEW jobq.dead_letters");
    install_again();
    expect_catalogue(db, schema, before);
    install_again();
    expect_catalogue(db, schema, before);
    free(before);
    assert_int_equal(next_migrates(server(), schema), 0);
    assert_int_equal(may_call("jobq_works", "_set_aside"), 0);
    assert_int_equal(may_call("jobq_works", "work_note"), 1);   /* added to the right */
    assert_int_equal(may_call("jobq_reads", "audit"), 1);       /* has another argument now */
    assert_int_equal(may_call("jobq_works", "audit"), 0);
    RUN("DROP OWNED BY jobq_works_%d, jobq_reads_%d, jobq_watches_%d", (int)getpid(),
        (int)getpid(), (int)getpid());
    RUN("DROP ROLE jobq_works_%d, jobq_reads_%d, jobq_watches_%d", (int)getpid(), (int)getpid(),
        (int)getpid());
    RUN("COMMENT ON FUNCTION jobq.renew(boolean) IS NULL");
}

/* A role that owns the schema, and may not even create one. */
static void the_owner_of_the_schema_migrates_it(void **unused)
{
    jobq_pg_job job = plain_job();
    char conninfo[300], role[60];
    jobq_pg_desc d;
    jobq_pg_error error;
    jobq_pg *mine;

    (void)unused;
    snprintf(role, sizeof role, "jobq_owner_%d", (int)getpid());
    snprintf(conninfo, sizeof conninfo, "%s user=%s", server(), role);
    RUN("CREATE ROLE %s LOGIN; CREATE SCHEMA %s AUTHORIZATION %s", role, role, role);
    memset(&d, 0, sizeof d);
    d.conninfo = conninfo;
    d.schema = role;
    if (jobq_pg_open(&mine, &d, &error)) fail_msg("%s", error.message);
    if (jobq_pg_migrate(mine, &error)) fail_msg("%s", error.message);
    if (jobq_pg_check(mine, NULL, &error)) fail_msg("%s", error.message);
    assert_int_equal(next_migrates(conninfo, role), 0);
    if (jobq_pg_check(mine, NULL, &error)) fail_msg("%s", error.message);
    if (jobq_pg_enqueue(mine, NULL, &job, NULL, &error)) fail_msg("%s", error.message);
    jobq_pg_close(mine);
    RUN("DROP SCHEMA %s CASCADE; DROP ROLE %s", role, role);
}

/* -- databases of their own -- */

static char database_conninfo[300];

static PGconn *database(void)
{
    PGconn *conn;

    RUN("CREATE DATABASE jobq_deploy_%d", (int)getpid());
    snprintf(database_conninfo, sizeof database_conninfo, "%s dbname=jobq_deploy_%d", server(),
             (int)getpid());
    conn = PQconnectdb(database_conninfo);
    assert_int_equal(PQstatus(conn), CONNECTION_OK);
    PQclear(PQexec(conn, "SET client_min_messages = error"));
    return conn;
}

static void database_drop(PGconn *conn)
{
    PQfinish(conn);
    RUN("DROP DATABASE jobq_deploy_%d WITH (FORCE)", (int)getpid());
}

static jobq_error database_migrate(jobq_pg_error *error)
{
    jobq_pg_desc d;
    jobq_pg *other;
    jobq_error code;

    memset(&d, 0, sizeof d);
    d.conninfo = database_conninfo;
    if (jobq_pg_open(&other, &d, error)) fail_msg("%s", error->message);
    code = jobq_pg_migrate(other, error);
    if (code == JOBQ_OK) code = jobq_pg_check(other, NULL, error);
    jobq_pg_close(other);
    return code;
}

static void run_on(PGconn *conn, const char *text)
{
    PGresult *res = PQexec(conn, text);

    if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK) {
        fail_msg("%s: %s", text, PQerrorMessage(conn));
    }
    PQclear(res);
}

/* The server hangs up after the n-th command that changes its catalogue; 0: after none. */
static void cut_at(PGconn *conn, int n)
{
    char text[100];

    snprintf(text, sizeof text, "ALTER DATABASE jobq_deploy_%d SET cut.at = %d", (int)getpid(), n);
    run_on(conn, text);
}

static bool schema_is_there(PGconn *conn)
{
    PGresult *res = PQexec(conn, "SELECT to_regnamespace('jobq') IS NOT NULL");
    bool there = PQgetvalue(res, 0, 0)[0] == 't';

    PQclear(res);
    return there;
}

static bool this_one_migrates(void)
{
    jobq_pg_error error;

    if (database_migrate(&error) == JOBQ_OK) return true;
    assert_true(error.code == JOBQ_ERROR_RETRYABLE || error.code == JOBQ_ERROR_CONNECTION);
    return false;
}

static bool next_one_migrates(void)
{
    int status = next_migrates(database_conninfo, "jobq 2>/dev/null");

    assert_true(status == 0 || status == 3);
    return status == 0;
}

/* Every step-th command of a migration is the last one. How many migrations were cut. */
static int cut_everywhere(PGconn *conn, int step, bool (*migrates)(void), const char *before)
{
    int n = 1;

    for (cut_at(conn, n); !migrates(); cut_at(conn, n += step)) {
        assert_int_equal(schema_is_there(conn), before != NULL);
        if (before != NULL) expect_catalogue(conn, "jobq", before);
    }
    return n / step;
}

static void a_migration_that_is_cut_leaves_nothing(void **unused)
{
    PGconn *conn = database();
    int step = getenv("JOBQ_TEST_LONG") != NULL ? 1 : 29;
    char *whole, *before;

    (void)unused;
    run_on(conn, "CREATE FUNCTION public.cut() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN"
                 " PERFORM set_config('cut.n', (1 + coalesce(nullif(current_setting('cut.n', true),"
                 "  ''), '0')::integer)::text, false);"
                 " IF current_setting('cut.n') = current_setting('cut.at', true) THEN"
                 "  PERFORM pg_terminate_backend(pg_backend_pid()); END IF; END $$");
    run_on(conn, "CREATE EVENT TRIGGER cut ON ddl_command_end EXECUTE FUNCTION public.cut()");
    assert_true(cut_everywhere(conn, step, this_one_migrates, NULL) > 300 / step);
    before = catalogue(conn, "jobq");
    assert_true(cut_everywhere(conn, step, next_one_migrates, before) > 200 / step);
    whole = catalogue(conn, "jobq");
    assert_string_not_equal(whole, before);
    run_on(conn, "DROP SCHEMA jobq CASCADE");
    cut_at(conn, 0);
    assert_true(next_one_migrates());
    expect_catalogue(conn, "jobq", whole);
    free(before);
    free(whole);
    database_drop(conn);
}

/* -- psql -- */

/* Runs a file by the server's own psql, or by another one where it has none. */
static int run_file(const char *name, const char *after)
{
    const char *bin = getenv("JOBQ_SERVER_BIN");
    char command[700];

    snprintf(command, sizeof command, "PATH=\"%s:$PATH\" psql -X -q -f sql/%s.sql '%s' %s",
             bin != NULL ? bin : "", name, database_conninfo, after);
    return system(command);
}

static int install(const char *after) { return run_file("install", after); }

/* Run by itself on a schema that has it all, as nobody should, a file sets no version back. The
 * next installation repairs what roles.sql would have done after it. */
static void a_file_again_sets_no_version_back(void **unused)
{
    static const char *const files[] = {"001_tables", "version",   "names", "end",   "workers",
                                        "outbox",     "operators", "roles", "comments"};
    PGconn *conn = database();
    char *whole;
    size_t i;

    (void)unused;
    assert_int_equal(install(""), 0);
    whole = catalogue(conn, "jobq");
    for (i = 0; i < COUNT(files); i++) {
        PGresult *res;
        assert_int_equal(run_file(files[i], "2>/dev/null"), 0);
        res = PQexec(conn, "SELECT count(*), min(version) FROM jobq.meta");
        assert_string_equal(PQgetvalue(res, 0, 0), "1");
        assert_int_equal(atoi(PQgetvalue(res, 0, 1)), jobq_pg__newest());
        PQclear(res);
    }
    assert_int_equal(install(""), 0);
    expect_catalogue(conn, "jobq", whole);
    free(whole);
    database_drop(conn);
}

/* What psql makes is what the library makes; again, or over what is newer, it changes nothing. */
static void a_dba_installs_by_psql(void **unused)
{
    PGconn *conn = database();
    char *whole, version[80];
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(install(""), 0);
    whole = catalogue(conn, "jobq");
    assert_int_equal(install(""), 0);
    expect_catalogue(conn, "jobq", whole);
    if (database_migrate(&error)) fail_msg("%s", error.message);
    expect_catalogue(conn, "jobq", whole);
    run_on(conn, "DROP SCHEMA jobq CASCADE");
    if (database_migrate(&error)) fail_msg("%s", error.message);
    expect_catalogue(conn, "jobq", whole);
    run_on(conn, "DROP FUNCTION jobq.audit");
    assert_int_equal(install(""), 0);
    expect_catalogue(conn, "jobq", whole);
    run_on(conn, "DROP FUNCTION jobq.audit");
    snprintf(version, sizeof version, "UPDATE jobq.meta SET version = %d", jobq_pg__newest() + 1);
    run_on(conn, version);
    free(whole);
    whole = catalogue(conn, "jobq");
    assert_int_not_equal(install("2>/dev/null"), 0);
    expect_catalogue(conn, "jobq", whole);
    free(whole);
    run_on(conn, "UPDATE jobq.meta SET version = 11, library_min = 5");
    whole = catalogue(conn, "jobq");
    assert_int_equal(install("2>&1 | grep -q 'version 11, which was never released'"), 0);
    expect_catalogue(conn, "jobq", whole);
    free(whole);
    database_drop(conn);
}

/* How many locks of this type somebody waits for. */
static int ungranted(PGconn *conn, const char *type)
{
    PGresult *res = PQexecParams(
        conn, "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
              "WHERE l.locktype = $1 AND NOT l.granted AND d.datname = current_database()",
        1, NULL, &type, NULL, NULL, 0);
    int count = atoi(PQgetvalue(res, 0, 0));

    PQclear(res);
    return count;
}

static void *migrates(void *arg)
{
    jobq_pg_error error;

    (void)arg;
    if (database_migrate(&error) != JOBQ_OK) ADD(errors);
    return NULL;
}

/* psql and the library wait for the same lock. */
static void psql_and_a_program_wait_for_each_other(void **unused)
{
    PGconn *conn = database();
    int64_t until = mono_us() + 30 * SECOND;
    pthread_t program;
    PGresult *res;

    (void)unused;
    run_on(conn, "BEGIN; SELECT pg_advisory_xact_lock(29958816140483506)");
    pthread_create(&program, NULL, migrates, NULL);
    assert_int_equal(install("2>&1 >/dev/null &"), 0);
    while (ungranted(conn, "advisory") < 2 && mono_us() < until) nap_us(5000);
    assert_int_equal(ungranted(conn, "advisory"), 2);
    assert_false(schema_is_there(conn));
    run_on(conn, "COMMIT");
    pthread_join(program, NULL);
    assert_int_equal(GET(errors), 0);
    do res = PQexec(conn, "SELECT version FROM jobq.meta"), PQclear(res), nap_us(5000);
    while (ungranted(conn, "advisory") > 0 && mono_us() < until);
    assert_int_equal(install(""), 0);
    database_drop(conn);
}

static void *next_program(void *arg)
{
    (void)arg;
    if (next_migrates(database_conninfo, "jobq") != 0) ADD(errors);
    return NULL;
}

/* Somebody who reads the view jobs and asks for ring, while a migration has ring and asks for the
 * view. The server ends the migration's transaction, because it has waited for longer. */
static void a_migration_that_deadlocks_with_a_worker_is_tried_again(void **unused)
{
    PGconn *conn = database();
    int64_t until = mono_us() + 30 * SECOND;
    pthread_t program;

    (void)unused;
    assert_int_equal(install(""), 0);
    run_on(conn, "SET deadlock_timeout = '1min'; BEGIN; SELECT FROM jobq.jobs");
    pthread_create(&program, NULL, next_program, NULL);
    while (ungranted(conn, "relation") < 1 && mono_us() < until) nap_us(5000);
    assert_int_equal(ungranted(conn, "relation"), 1);
    run_on(conn, "SELECT FROM jobq.ring; COMMIT");
    pthread_join(program, NULL);
    assert_int_equal(GET(errors), 0);
    database_drop(conn);
}

/* Before Citus takes the tables, the views are dropped and made again, with what was granted. What
 * others have built on them could not be, so it has to go first. */
static void views_that_others_use_are_not_dropped(void **unused)
{
    char *before, *text = for_schema("SELECT jobq._citus_drop_views()", schema);
    PGresult *res;

    (void)unused;
    RUN("CREATE ROLE jobq_watches_%d", (int)getpid());
    RUN("SELECT jobq.grant_read('jobq_watches_%d', payloads => false)", (int)getpid());
    RUN("SELECT jobq._citus_run(jobq._citus_drop_views())"); /* some words of theirs change once */
    before = catalogue(db, schema);
    RUN("CREATE VIEW public.of_mine AS SELECT id FROM jobq.jobs");
    res = PQexec(db, text);
    RUN("DROP VIEW public.of_mine");
    assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "2BP01");
    assert_non_null(strstr(PQresultErrorField(res, PG_DIAG_MESSAGE_DETAIL), "of_mine"));
    PQclear(res);
    RUN("SELECT jobq._citus_run(jobq._citus_drop_views())");
    expect_catalogue(db, schema, before);
    RUN("DROP OWNED BY jobq_watches_%d; DROP ROLE jobq_watches_%d", (int)getpid(), (int)getpid());
    free(before);
    free(text);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start_over, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sixteen_processes_migrate_at_once),
        TEST(what_does_not_serve_is_refused_with_both_numbers),
        TEST(a_version_installs_all_of_its_text_and_keeps_grants),
        TEST(a_newer_schema_is_worked_on), /* leaves the schema changed */
        TEST(the_owner_of_the_schema_migrates_it),
        TEST(a_migration_that_is_cut_leaves_nothing),
        TEST(a_file_again_sets_no_version_back),
        TEST(a_dba_installs_by_psql),
        TEST(psql_and_a_program_wait_for_each_other),
        TEST(a_migration_that_deadlocks_with_a_worker_is_tried_again),
        TEST(views_that_others_use_are_not_dropped),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
