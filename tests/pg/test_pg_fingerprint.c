/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The fingerprint: a schema of this version that is not as it was installed is refused, and what is
 * missing or was changed is named. It is the same on all versions of Postgres, so this program runs
 * on each server of `make test`.
 *
 *   test_pg_fingerprint --list   prints what sql/fingerprint.txt must contain
 */
#define TEST_PRIVATE
#define TEST_AS_INSTALLED
#include "pg_work.h"

/* Prints the list: its first line is the sum of the files, which the caller knows. */
static int print_fingerprint(void)
{
    char *query = jobq_pg__join(jobq_pg__fingerprint(false)), ordered[8192], kind[80] = "";
    const char *name = schema;
    PGresult *res;
    int i;

    if (pg_up(NULL) != 0) return 1;
    PQclear(PQexec(db, "BEGIN; " JOBQ_PG__FINGERPRINT_SETS "; SET LOCAL client_encoding = 'UTF8'"));
    snprintf(ordered, sizeof ordered, "%s ORDER BY 1, 2", query);
    res = PQexecParams(db, ordered, 1, NULL, &name, NULL, NULL, 0);
    printf("%s", getenv("JOBQ_TEST_SUM"));
    for (i = 0; i < PQntuples(res); i++) {
        if (strcmp(kind, PQgetvalue(res, i, 0)) != 0) {
            snprintf(kind, sizeof kind, "%s", PQgetvalue(res, i, 0));
            printf("\n%s:", kind);
        } else {
            printf(" ");
        }
        printf("%s=%s", PQgetvalue(res, i, 1), PQgetvalue(res, i, 2));
    }
    printf("\n");
    PQclear(res);
    free(query);
    RUN("ROLLBACK");
    return pg_down(NULL);
}

static char added[700]; /* the last warning of what was added */

static void hears_added(void *user, jobq_level level, const char *message)
{
    (void)user;
    if (level == JOBQ_LEVEL_WARNING && strstr(message, "did not install") != NULL)
        snprintf(added, sizeof added, "%s", message);
}

/* `make verify` refuses a header without a list. */
static void needs_list(void)
{
    if (jobq_pg__fingerprint(true)[0] == NULL) skip();
}

static jobq_pg *listener(const char *name)
{
    jobq_pg_desc d;
    jobq_pg_error error;
    jobq_pg *mine;

    memset(&d, 0, sizeof d);
    d.conninfo = server();
    d.schema = name;
    d.log = hears_added;
    if (jobq_pg_open(&mine, &d, &error)) fail_msg("%s", error.message);
    added[0] = '\0';
    return mine;
}

/* Names that also are key words, columns, aliases, or need quotes; and whatever the server's
 * settings make of names, intervals and strings. */
static void a_fresh_schema_of_any_name_is_as_expected(void **unused)
{
    static const char *const names[] = {"j", "Mail", "queue", "char", "user"};
    jobq_pg_error error;
    size_t i;

    (void)unused;
    needs_list();
    for (i = 0; i < COUNT(names); i++) {
        jobq_pg *mine = listener(names[i]);
        if (jobq_pg_migrate(mine, &error)) fail_msg("%s: %s", names[i], error.message);
        if (jobq_pg_check(mine, NULL, &error)) fail_msg("%s: %s", names[i], error.message);
        RUN("SET IntervalStyle = iso_8601; SET quote_all_identifiers = on;"
            " SET DateStyle = German; SET standard_conforming_strings = off;"
            " SET search_path = \"%s\", public", names[i]);
        if (jobq_pg_check(mine, db, &error)) fail_msg("%s: %s", names[i], error.message);
        assert_int_equal(number("SELECT (current_setting('search_path') LIKE '%%public%%'"
                                " AND current_setting('IntervalStyle') = 'iso_8601')::int"), 1);
        RUN("RESET ALL; SET client_min_messages = error");
        suits(db);
        RUN("DROP SCHEMA \"%s\" CASCADE", names[i]);
        assert_string_equal(added, "");
        jobq_pg_close(mine);
    }
}

/* By the server's own psql, or by another one where it has none: by that name, and by another. */
static void a_schema_that_psql_installed_is_as_expected(void **unused)
{
    static const char *const names[] = {"jobq", "by_psql"};
    const char *bin = getenv("JOBQ_SERVER_BIN");
    char command[900], conninfo[300], folder[60];
    jobq_pg_desc d;
    jobq_pg_error error;
    jobq_pg *mine;
    size_t i;

    (void)unused;
    needs_list();
    RUN("CREATE DATABASE jobq_psql_%d", (int)getpid());
    RUN("INSERT INTO pg_db_role_setting SELECT d.oid, s.setrole, s.setconfig "
        "FROM pg_db_role_setting s, pg_database d, pg_database mine WHERE d.datname = "
        "'jobq_psql_%d' AND mine.datname = current_database() AND s.setdatabase = mine.oid",
        (int)getpid());
    snprintf(folder, sizeof folder, ".build/by_psql.%d", (int)getpid());
    snprintf(conninfo, sizeof conninfo, "%s dbname=jobq_psql_%d", server(), (int)getpid());
    for (i = 0; i < COUNT(names); i++) {
        snprintf(command, sizeof command,
                 "folder=%s; mkdir -p $folder/optional; for file in sql/*.sql sql/*/*.sql; do "
                 "sed 's/\\bjobq\\b/%s/g' $file >$folder/${file#sql/}; done; "
                 "PATH=\"%s:$PATH\" psql -X -q -f $folder/install.sql '%s'; status=$?; "
                 "rm -r $folder; exit $status",
                 folder, names[i], bin != NULL ? bin : "", conninfo);
        assert_int_equal(system(command), 0);
        memset(&d, 0, sizeof d);
        d.conninfo = conninfo;
        d.schema = names[i];
        d.log = hears_added;
        added[0] = '\0';
        if (jobq_pg_open(&mine, &d, &error)) fail_msg("%s", error.message);
        if (jobq_pg_check(mine, NULL, &error)) fail_msg("%s: %s", names[i], error.message);
        if (jobq_pg_migrate(mine, &error)) fail_msg("%s: %s", names[i], error.message);
        assert_string_equal(added, "");
        jobq_pg_close(mine);
    }
    RUN("DROP DATABASE jobq_psql_%d WITH (FORCE)", (int)getpid());
}

/* Each change, and what the error says of it. */
static const struct {
    const char *change, *said;
} changes[] = {
    {"DROP FUNCTION jobq._recover", "function _recover is missing"},
    {"CREATE OR REPLACE FUNCTION jobq.audit() RETURNS bigint LANGUAGE sql AS 'SELECT 1::int8'",
     "function audit is changed"},
    {"ALTER FUNCTION jobq._complete RESET ALL", "function _complete is changed"},
    {"ALTER FUNCTION jobq.prune SECURITY INVOKER", "function prune is changed"},
    {"CREATE FUNCTION jobq._claim(integer) RETURNS integer LANGUAGE sql AS 'SELECT 1'",
     "function _claim is changed"},
    {"ALTER TABLE jobq.signal DROP COLUMN payload CASCADE", "column signal.payload is missing"},
    {"ALTER TABLE jobq.nudge ALTER signal TYPE varchar(99)", "column nudge.signal is changed"},
    {"ALTER TABLE jobq.edge ALTER wanted DROP NOT NULL", "column edge.wanted is changed"},
    {"DROP TABLE jobq.history_7", "table history_7 is missing"},
    {"DROP TABLE jobq.nudge", "column nudge.by is missing, column nudge.cancel is missing, column "
     "nudge.id is missing and 4 more"},
    {"ALTER TYPE jobq.walk DROP ATTRIBUTE whole", "type walk is changed"},
    {"DROP INDEX jobq.job_flow", "index job_flow is missing"},
    {"DROP INDEX jobq.job_flow; CREATE INDEX job_flow ON jobq.job (flow_id)",
     "index job_flow is changed"},
    {"ALTER TABLE jobq.job DROP CONSTRAINT job_law", "constraint job_law is missing"},
    {"DROP VIEW jobq.failures", "view failures is missing"},
    {"DROP SEQUENCE jobq.message_id CASCADE",
     "column message.id is changed, sequence message_id is missing"}};

static void what_is_missing_or_changed_is_refused_by_name(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *w = NULL;
    jobq_pg_error error;
    size_t i;

    (void)unused;
    needs_list();
    for (i = 0; i < COUNT(changes); i++) {
        RUN("BEGIN; SET LOCAL search_path = public");
        RUN("%s", changes[i].change);
        assert_int_equal(jobq_pg_check(pg, db, &error), JOBQ_ERROR_VERSION);
        if (strstr(error.message, changes[i].said) == NULL)
            fail_msg("%s: %s", changes[i].said, error.message);
        assert_non_null(strstr(error.message, "psql -f sql/install.sql"));
        assert_int_equal(PQtransactionStatus(db), PQTRANS_INTRANS);
        assert_int_equal(number("SELECT (current_setting('search_path') = 'public')::int"), 1);
        RUN("ROLLBACK");
    }
    assert_int_equal(jobq_pg_check(pg, db, &error), JOBQ_OK);
    RUN("DROP INDEX jobq.job_flow");
    assert_int_equal(jobq_pg_worker_start(pg, &d, &w, &error), JOBQ_ERROR_VERSION);
    assert_non_null(strstr(error.message, "not as this library installs it: "
                                          "index job_flow is missing"));
    assert_int_equal(jobq_pg_migrate(pg, &error), JOBQ_ERROR_VERSION);
    RUN("CREATE INDEX job_flow ON jobq.job (flow_id) WHERE flow_id > 0");
    assert_int_equal(jobq_pg_migrate(pg, &error), JOBQ_OK);
}

static void what_was_added_only_warns(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg *mine = listener(schema);
    jobq_pg_error error;

    (void)unused;
    needs_list();
    RUN("ALTER TABLE jobq.job SET (fillfactor = 60);"
        "ALTER INDEX jobq.job_lane SET (fillfactor = 80);"
        "ALTER TABLE jobq.queue ALTER max_attempts SET DEFAULT 5;"
        "ALTER TABLE jobq.job ALTER payload SET STORAGE EXTERNAL;"
        "COMMENT ON FUNCTION jobq.audit() IS 'ours'");
    if (jobq_pg_check(mine, NULL, &error)) fail_msg("%s", error.message);
    assert_string_equal(added, "");
    RUN("CREATE TABLE jobq.theirs (id int); ALTER TABLE jobq.job ADD tenant text;"
        "CREATE INDEX by_tenant ON jobq.job (tenant);"
        "CREATE FUNCTION jobq.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'");
    if (jobq_pg_check(mine, NULL, &error)) fail_msg("%s", error.message);
    assert_non_null(strstr(added, "column job.tenant, column theirs.id, function mine and 2 more"));
    added[0] = '\0';
    stop(start_on(mine, &d));
    assert_non_null(strstr(added, "column job.tenant"));
    RUN("DROP TABLE jobq.theirs; ALTER TABLE jobq.job DROP tenant; DROP FUNCTION jobq.mine();"
        "COMMENT ON FUNCTION jobq.audit() IS NULL");
    jobq_pg_close(mine);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pg_empty, all_stop)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(a_fresh_schema_of_any_name_is_as_expected),
        TEST(a_schema_that_psql_installed_is_as_expected),
        TEST(what_is_missing_or_changed_is_refused_by_name),
        TEST(what_was_added_only_warns),
    };

    if (argc > 1 && strcmp(argv[1], "--list") == 0) return print_fingerprint();
    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
