/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_reference.c -- the comments on functions, tables and views: all have one, and the
 * examples run, in the order of sql/README.md.
 */
#define TEST_PRIVATE
#include "pg_work.h"

static const char *const roles[] = {"web_app", "tenant_7", "worker_app", "dashboard",
                                    "operator_ann"};

static void drop_roles(void)
{
    size_t i;

    for (i = 0; i < COUNT(roles); i++) {
        if (number("SELECT count(*) FROM pg_roles WHERE rolname = '%s'", roles[i]) == 0) continue;
        RUN("DROP OWNED BY %s", roles[i]);
        RUN("DROP ROLE %s", roles[i]);
    }
}

/* The names that a query finds must be none. */
static void none(const char *what, const char *query)
{
    char *names = text_of("%s", query);

    if (names[0] != '\0') fail_msg("%s: %s", what, names);
    free(names);
}

static void each_has_a_comment(void **unused)
{
    (void)unused;
    none("without a comment, an example or its errors",
         "SELECT coalesce(string_agg(p.oid::regprocedure::text, ' '), '') FROM pg_proc p "
         "WHERE p.pronamespace = 'jobq'::regnamespace AND p.proname !~ '^_' AND NOT coalesce("
         "obj_description(p.oid, 'pg_proc') ~ (E'\\nWho may call it: the owner[^\\n]*\\n' || "
         "'    .*(select|call).*' || p.proname || '.*;') AND (obj_description(p.oid, 'pg_proc') ~ "
         "'Errors: ' OR obj_description(p.oid, 'pg_proc') ~ 'rrors are those'), false)");
    none("without a comment",
         "SELECT coalesce(string_agg(c.relname, ' '), '') FROM pg_class c "
         "WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind IN ('r', 'p', 'v') "
         "AND NOT c.relispartition AND obj_description(c.oid, 'pg_class') IS NULL");
}

/* An administrator's own comment stays when a version is installed; one of ours does not. */
static void an_own_comment_stays(void **unused)
{
    char *text = jobq_pg__join(jobq_pg__sql_reference), *install = for_schema(text, schema);

    (void)unused;
    RUN("COMMENT ON FUNCTION jobq.audit() IS 'ask Ann'");
    RUN("COMMENT ON FUNCTION jobq.turn() IS 'older text'\n'\nWho may call it: the owner.'");
    PQclear(PQexec(db, install));
    assert_int_equal(
        number("SELECT count(*) FROM pg_proc p WHERE p.pronamespace = "
               "'jobq'::regnamespace AND (p.proname = 'audit' AND obj_description(p.oid) "
               "= 'ask Ann' OR p.proname = 'turn' AND obj_description(p.oid) ~ "
               "'ring')"),
        2);
    RUN("COMMENT ON FUNCTION jobq.audit() IS NULL");
    free(install);
    free(text);
}

/* Replaces :flow, :worker and :job, which a program would know. The caller frees it. */
static char *filled(const char *example)
{
    static const char *const known[][2] = {
        {":flow", "(SELECT max(f.id) FROM jobq.flow f)"},
        {":worker", "(SELECT max(w.id) FROM jobq.worker w)"},
        {":job", "(SELECT min(j.id) FROM jobq.job j WHERE j.state = 'x')"}};
    char *text = text_copy(example), *at, *longer;
    size_t i, size;

    for (i = 0; i < COUNT(known); i++) {
        if ((at = strstr(text, known[i][0])) == NULL) continue;
        size = strlen(text) + strlen(known[i][1]) + 1;
        longer = malloc(size);
        assert_non_null(longer);
        snprintf(longer, size, "%.*s%s%s", (int)(at - text), text, known[i][1],
                 at + strlen(known[i][0]));
        free(text);
        text = longer;
    }
    return text;
}

/* Runs a statement; what fails must be an error that the comment names, and only on Citus. */
static void run_example(const char *name, const char *errors, const char *example)
{
    char *text = filled(example), *mine = for_schema(text, schema);
    PGresult *res = PQexec(db, mine);
    const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);

    if (sqlstate != NULL && !(strncmp(name, "citus_", 6) == 0 && strstr(errors, sqlstate) != NULL))
        fail_msg("%s: %s\n%s", name, example, PQresultErrorMessage(res));
    PQclear(res);
    free(mine);
    free(text);
}

/* The examples of the text of reference.sql, whose order is that of the page. */
static void the_examples_run(void **unused)
{
    PGresult *res;
    char *query;
    size_t i;
    int row;

    (void)unused;
    drop_roles();
    for (i = 0; i < COUNT(roles); i++) RUN("CREATE ROLE %s", roles[i]);
    RUN("CREATE TEMP TABLE customer AS SELECT 1 AS id, 'ann' AS name");
    RUN("SELECT jobq.outbox_register('orders', 4), jobq.outbox_register('events', 1)");
    RUN("SELECT jobq.queue_set('mail', kinds => '{welcome,goodbye}')");
    RUN("SELECT jobq.queue_set('reports')");
    query = for_schema(
        "SELECT p.proname, d.description, s.statement FROM pg_proc p "
        "JOIN pg_description d ON d.objoid = p.oid AND d.classoid = 'pg_proc'::regclass, "
        "regexp_split_to_table(substring(d.description FROM "
        "E'\\nWho may call it:[^\\n]*\\n(    .*)$'), E';[^\\n]*(\\n|$)') "
        "WITH ORDINALITY AS s (statement, n) "
        "WHERE p.pronamespace = 'jobq'::regnamespace AND p.proname !~ '^_' "
        "AND s.statement <> '' ORDER BY p.proname ~ '^work_', p.proname ~ '^(citus|grant|revoke)', "
        "p.oid, s.n", schema);
    res = PQexec(db, query);
    free(query);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) fail_msg("%s", PQresultErrorMessage(res));
    assert_true(PQntuples(res) > 70);
    for (row = 0; row < PQntuples(res); row++) {
        RUN("SELECT jobq.enqueue('mail', 'welcome')"); /* something to work on */
        run_example(PQgetvalue(res, row, 0), PQgetvalue(res, row, 1), PQgetvalue(res, row, 2));
    }
    PQclear(res);
    drop_roles();
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_has_a_comment),
        cmocka_unit_test(an_own_comment_stays),
        cmocka_unit_test(the_examples_run),
    };

    return cmocka_run_group_tests_name("reference", tests, pg_up, pg_down);
}
