/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_roles.c -- what each role may do: real roles with the grants of sql/roles.sql, and
 * objects planted where a careless function would find them.
 */
#include "pg_work.h"

static const char *const roles[] = {"enqueue", "fast",  "work",  "operate",
                                    "read",    "watch", "nobody"};

static char role_name[64];

/* The role's name: of this program alone, with letters that need quotes. */
static const char *role_of(const char *role)
{
    snprintf(role_name, sizeof role_name, "Jobq Test \"%s\" %d", role, (int)getpid());
    return role_name;
}

/* A role's name as an identifier. */
static const char *quoted(const char *role)
{
    static char text[80];
    char *name = PQescapeIdentifier(db, role_of(role), strlen(role_of(role)));

    snprintf(text, sizeof text, "%s", name);
    PQfreemem(name);
    return text;
}

static void drop_roles(void)
{
    size_t i;

    for (i = 0; i < COUNT(roles); i++) {
        if (number("SELECT count(*) FROM pg_roles WHERE rolname = '%s'", role_of(roles[i])) == 0)
            continue;
        RUN("DROP OWNED BY %s", quoted(roles[i]));
        RUN("DROP ROLE %s", quoted(roles[i]));
    }
}

static int roles_up(void **state)
{
    size_t i;

    if (pg_up(state) != 0) return 1;
    for (i = 0; i < COUNT(roles); i++) RUN("CREATE ROLE %s LOGIN", quoted(roles[i]));
    RUN("SELECT jobq.grant_enqueue('%s', fast => true)", quoted("enqueue")); /* taken back */
    RUN("SELECT jobq.grant_enqueue('%s')", quoted("enqueue"));
    RUN("SELECT jobq.grant_enqueue('%s', fast => true)", quoted("fast"));
    RUN("SELECT jobq.grant_work('%s')", quoted("work"));
    RUN("SELECT jobq.grant_operate('%s')", quoted("operate"));
    RUN("SELECT jobq.grant_read('%s')", quoted("read"));
    RUN("SELECT jobq.grant_read('%s')", quoted("watch")); /* taken back */
    RUN("SELECT jobq.grant_read('%s', payloads => false)", quoted("watch"));
    return 0;
}

/* The SQLSTATE of a statement as that role, rolled back; empty: it was well. */
static const char *as(const char *role, const char *statement)
{
    static char answer[8];
    char *text = for_schema(statement, schema);
    PGresult *res;
    const char *sqlstate;

    RUN("BEGIN");
    RUN("SET LOCAL ROLE %s", quoted(role));
    res = PQexec(db, text);
    sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    snprintf(answer, sizeof answer, "%s", sqlstate == NULL ? "" : sqlstate);
    PQclear(res);
    free(text);
    RUN("ROLLBACK");
    return answer;
}

/* All that the role nobody may do here, as one text. The caller frees it. */
static char *rights(void)
{
    return text_of(
        "SELECT coalesce(string_agg(t.what, ' ' ORDER BY t.what), '-') FROM ("
        "SELECT p.oid::regprocedure || a.privilege_type AS what, a.grantee FROM pg_proc p, "
        "aclexplode(p.proacl) a WHERE p.pronamespace = 'jobq'::regnamespace UNION ALL "
        "SELECT c.oid::regclass || a.privilege_type, a.grantee FROM pg_class c, "
        "aclexplode(c.relacl) a WHERE c.relnamespace = 'jobq'::regnamespace UNION ALL "
        "SELECT c.oid::regclass || '.' || t.attname || a.privilege_type, a.grantee FROM pg_class c "
        "JOIN pg_attribute t ON t.attrelid = c.oid, aclexplode(t.attacl) a "
        "WHERE c.relnamespace = 'jobq'::regnamespace) t "
        "JOIN pg_roles r ON r.oid = t.grantee WHERE r.rolname = '%s'", role_of("nobody"));
}

/* The rights that these calls leave behind, one after the other, as one text. */
static char *rights_after(const char *const *calls)
{
    char *text;

    for (; *calls != NULL; calls++) RUN(*calls, quoted("nobody"));
    text = rights();
    RUN("SELECT jobq.revoke('%s')", quoted("nobody"));
    return text;
}

/* A narrower call takes back what a wider one gave, and nothing that another grant gives. */
static void a_narrower_grant_takes_back(void **unused)
{
    static const char read[] = "SELECT jobq.grant_read('%s')",
                      watch[] = "SELECT jobq.grant_read('%s', payloads => false)",
                      enqueue[] = "SELECT jobq.grant_enqueue('%s')",
                      fast[] = "SELECT jobq.grant_enqueue('%s', fast => true)",
                      work[] = "SELECT jobq.grant_work('%s')",
                      operate[] = "SELECT jobq.grant_operate('%s')";
    static const char *const pairs[][2][4] = {
        {{read, watch}, {watch}},
        {{fast, enqueue}, {enqueue}},
        {{work, read, watch}, {work, watch}},
        {{work, fast, enqueue}, {work, enqueue}},
        {{read, fast, enqueue}, {read, enqueue}},
        {{fast, read, watch}, {fast, watch}}};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(pairs); i++) {
        char *narrowed = rights_after(pairs[i][0]), *plain = rights_after(pairs[i][1]);
        assert_string_equal(narrowed, plain);
        free(narrowed);
        free(plain);
    }
    RUN(operate, quoted("nobody"));
    RUN(watch, quoted("nobody"));
    assert_string_equal(as("nobody", "SELECT payload FROM jobq.jobs"), "42501");
    assert_string_equal(as("nobody", "SELECT result FROM jobq.jobs"), "42501");
    assert_string_equal(as("nobody", "SELECT result_bytes FROM jobq.past_jobs"), "42501");
    assert_string_equal(as("nobody", "SELECT log FROM jobq.jobs"), "42501");
    assert_string_equal(as("nobody", "SELECT log FROM jobq.past_jobs"), "42501");
    assert_string_equal(as("nobody", "SELECT FROM jobq.peek()"), "42501");
    assert_string_equal(as("nobody", "SELECT FROM jobq._await('{1}')"), "42501");
    assert_string_equal(as("read", "SELECT FROM jobq._await('{1}', 7)"), "");
    assert_string_equal(as("read", "SELECT result, result_bytes, log FROM jobq.jobs"), "");
    assert_string_equal(as("work", "SELECT FROM jobq._await('{1}')"), "42501");
    assert_string_equal(as("nobody", "SELECT jobq.cancel(1)"), "");
    RUN("SELECT jobq.revoke('%s')", quoted("nobody"));
}

/* Rights are asked for when a statement runs, which is long since prepared then. */
static void a_missing_right_is_told_each_time(void **unused)
{
    jobq_pg_error first, again;
    PGconn *conn;
    int i;

    (void)unused;
    RUN("GRANT USAGE ON SCHEMA jobq TO %s", quoted("nobody"));
    conn = PQconnectdb(server());
    PQclear(sql(conn, "SET ROLE %s", quoted("nobody")));
    assert_int_equal(jobq_pg_delete(pg, conn, ONE(1), NULL, &first), JOBQ_ERROR_DATABASE);
    for (i = 0; i < 3; i++) {
        assert_int_equal(jobq_pg_delete(pg, conn, ONE(1), NULL, &again), first.code);
        assert_string_equal(again.message, first.message);
        assert_string_equal(again.sqlstate, first.sqlstate);
    }
    PQfinish(conn);
    RUN("REVOKE USAGE ON SCHEMA jobq FROM %s", quoted("nobody"));
}

static int roles_down(void **state)
{
    drop_roles();
    return pg_down(state);
}

/* Who may: letters of the roles above, in their order (enqueue, fast, work, operate, read, watch,
 * nobody); a dash where it is refused. */
static const struct {
    const char *statement, *may;
} doors[] = {
    {"SELECT jobq.enqueue('q', 'k', '1', key => 'x', stages => 2)", "ef-----"},
    {"SELECT jobq.enqueue('new', 'new', bytes => 'x')", "ef-----"},
    {"SELECT FROM jobq._enqueue_many('q', '{k}', NULL, '{1}')", "ef-----"},
    {"SELECT jobq.digest('{\"to\": 1}', '{to}')", "ef-----"},
    {"INSERT INTO jobq.job (queue_id, kind_id) VALUES (1, 1) RETURNING id", "-f-----"},
    {"SELECT payload FROM jobq.job", "-------"},
    {"SELECT payload FROM jobq.failed", "-------"},
    {"SELECT payload FROM jobq.history", "-------"},
    {"INSERT INTO jobq.job (queue_id, kind_id) VALUES (1, 1) RETURNING payload", "-------"},
    {"UPDATE jobq.job SET state = 'r'", "-------"},
    {"DELETE FROM jobq.job", "-------"},
    {"UPDATE jobq.queue SET max_attempts = 1", "-------"},
    {"UPDATE jobq.meta SET epoch = 1", "-------"},
    {"TRUNCATE jobq.history_0", "-------"},
    {"SELECT FROM jobq._claim(101, 9, 1, '{}', '{}', '{}', '{}', '{}', '{}', false, false, true,"
     " false)",
     "--w----"},
    {"SELECT FROM jobq._complete('{1}', '{1}', '{1}', '{1}')", "--w----"},
    {"SELECT FROM jobq._heartbeat(101, 1000000, '{}')", "--w----"},
    {"SELECT FROM jobq._rescue(101, 0, 10)", "--w----"},
    {"SELECT jobq.signal('a')", "ef-----"},
    {"SELECT FROM jobq._parent_jobs(1)", "--wor--"},
    {"SELECT jobq._edges_end('{1}', 's'), jobq._promote(1)", "-------"},
    {"SELECT jobq._finish('{1}', 's', NULL)", "-------"},
    {"SELECT jobq._delete_all('{1}', 'ready')", "-------"},
    {"SELECT jobq.prune(10), jobq.turn()", "--w----"},
    {"SELECT jobq.cancel(1)", "---o---"},
    {"SELECT jobq.cancel('q')", "---o---"},
    {"SELECT jobq.revive(1), jobq.delete(1), jobq.prioritize(1, 1)", "---o---"},
    {"SELECT jobq.pause('q'), jobq.queue_set('q', max_attempts => 3)", "---o---"},
    {"SELECT jobq.retention_set('short', '1 hour')", "---o---"},
    {"SELECT jobq.standing(1)", "---orw-"},
    {"SELECT FROM jobq.peek()", "---or--"},
    {"TABLE jobq.jobs", "---or--"},
    {"TABLE jobq.failures", "---or--"},
    {"SELECT id, queue, state, errors FROM jobq.jobs", "---orw-"},
    {"TABLE jobq.queues", "---orw-"},
    {"TABLE jobq.workers", "---orw-"},
    {"TABLE jobq.outbox", "---orw-"},
    {"TABLE jobq.running", "---orw-"},
    {"SELECT jobq._progress_write(101, NULL, NULL, NULL, NULL)", "-------"},
    {"TABLE jobq.times", "---orw-"},
    {"SELECT jobq.metrics()", "---orw-"},
    {"SELECT FROM jobq.doctor(true)", "---orw-"},
    {"SELECT FROM jobq.tally", "-------"},
    {"SELECT jobq._tally_fold('{1}')", "-------"},
    {"SELECT jobq._tally_take(1, 1, '{1}', '{0}', '{1}')", "-------"},
    {"SELECT jobq.outbox_enqueue('o', '1')", "efwo---"},
    {"SELECT jobq.outbox_enqueue('o', '1') FROM jobq.dead_letter_replay(7, 1000000, 'o')",
     "--wo---"},
    {"SELECT payload FROM jobq.message", "-------"},
    {"SELECT payload FROM jobq.dead_letter", "-------"},
    {"INSERT INTO jobq.message (partition_id, id) VALUES (1, 1)", "-f-----"},
    {"UPDATE jobq.partition SET acked = 0", "-------"},
    {"SELECT FROM jobq._outbox_store(NULL)", "-------"},
    {"SELECT FROM jobq._outbox_delete(1, '{1}')", "-------"},
    {"SELECT FROM jobq._outbox_ack(101, 1, 1, 1, 0, 0, '{}', 0, 0, 0, NULL, 0, '{}', '{}', '{}', "
     "0, false)", "--w----"},
    {"SELECT FROM jobq._outbox_look('{1}', 0, 1, false)", "--w----"},
    {"SELECT FROM jobq.dead_letter_list()", "--wor--"},
    {"SELECT FROM jobq.dead_letter_replay(7, 1000000)", "--wo---"},
    {"SELECT jobq.dead_letter_discard()", "---o---"},
    {"SELECT version FROM jobq.meta", "efworw-"},
    {"SELECT jobq.grant_operate(current_role::regrole)", "-------"},
    {"SELECT jobq._secure()", "-------"},
};

/* A view with payloads is closed as a whole in a distributed schema. */
static bool closed_there(const char *role, const char *statement)
{
    return distributed() && strcmp(role, "watch") == 0 && strstr(statement, "jobq.jobs") != NULL;
}

static void each_role_has_its_doors_and_no_other(void **unused)
{
    size_t d, r;

    (void)unused;
    pg_empty(NULL);
    enqueue_count(3);
    register_worker(101, 600 * SECOND);
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "o", 1, NULL, NULL), JOBQ_OK);
    for (d = 0; d < COUNT(doors); d++) {
        for (r = 0; r < COUNT(roles); r++) {
            bool closed = doors[d].may[r] == '-' || closed_there(roles[r], doors[d].statement);
            const char *wanted = closed ? "42501" : "";
            const char *got = as(roles[r], doors[d].statement);
            if (distributed() && strcmp(got, "2200H") == 0) got = ""; /* ids come from there */
            if (strcmp(got, wanted) != 0)
                fail_msg("%s as %s: '%s'", doors[d].statement, roles[r], got);
        }
    }
}

/* No function of the schema is open to the public, trusts the caller's search_path, or, but for
 * those that must not, runs as the caller. Expressions in SQL are the owner's alone, and name the
 * schema of everything in them. */
static void every_function_is_secured(void **unused)
{
    (void)unused;
    assert_int_equal(number(
        "SELECT count(*) FROM pg_proc p WHERE p.pronamespace = 'jobq'::regnamespace AND "
        "(NOT coalesce(p.proconfig::text ~ 'search_path=pg_catalog, pg_temp', p.proname = 'wait') "
        "OR p.proacl IS NULL OR p.proacl::text ~ '[{,]=X' OR NOT (p.prosecdef OR p.proname ~ "
        "'^(_outbox_direct|_secure|revoke|wait|_?grant.*|doctor|_lockers|_snapshots|"
        "_doctor_(locks|snapshot))$')) AND p.prolang <> "
        "(SELECT oid FROM pg_language WHERE lanname = 'sql')"), 0);
    assert_int_equal(number(
        "SELECT count(*) FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang "
        "WHERE p.pronamespace = 'jobq'::regnamespace AND l.lanname = 'sql' AND (p.prosecdef "
        "OR p.proacl IS NULL OR p.proacl::text ~ ',' OR p.proacl::text ~ '[{]=' "
        "OR p.prosrc ~ '(^|[^._a-z])[a-z_]+[(]' OR p.prosrc ~ ' [=<>|&~*/+-]+ ')"), 0);
}

/* Names of the schema in a hint that this role may not use; empty: it can do what it is told. */
static const char *out_of_reach(const char *role, const char *hint)
{
    static char names[200];
    char *text = PQescapeLiteral(db, hint, strlen(hint));
    PGresult *res = sql(db, "SELECT string_agg(n.name, ' ') FROM ("
        "SELECT p.proname AS name, has_function_privilege('%s', p.oid, 'EXECUTE') AS may "
        "FROM pg_proc p WHERE p.pronamespace = 'jobq'::regnamespace UNION ALL "
        "SELECT c.relname, has_any_column_privilege('%s', c.oid, 'SELECT') FROM pg_class c "
        "WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind IN ('r', 'v')) AS n "
        "WHERE NOT n.may AND %s ~ (CASE WHEN n.name LIKE '%%\\_%%' THEN '\\m' "
        "ELSE '([.]|\\mview |\\mtable )' END || n.name || '\\M')",
        role_of(role), role_of(role), text);

    PQfreemem(text);
    snprintf(names, sizeof names, "%s", PQgetvalue(res, 0, 0));
    PQclear(res);
    return names;
}

/* What an operator does wrong, and is told how to do right. */
static void hints_name_what_the_role_may_use(void **unused)
{
    static const char *const mistakes[] = {
        "SELECT jobq.pause('nope')", "SELECT jobq.pause('q', 'nope')", "SELECT jobq.cancel('nope')",
        "SELECT jobq.move(1, 'nope')", "SELECT jobq.schedule_run('nope')",
        "SELECT jobq.schedule_pause('nope')", "SELECT jobq.line_set('nope', 'l', weight => 2)",
        "SELECT jobq.hold('nope', 'l', now())", "SELECT jobq.outbox_grow('nope', 2)",
        "SELECT jobq.retention_set('nope', '1 day')", "SELECT jobq.flow_cancel(99)",
        "SELECT jobq.prioritize('q', kind => 'nope', priority => 1)"};
    size_t i;
    int hints = 0;

    (void)unused;
    pg_empty(NULL);
    enqueue_count(1);
    for (i = 0; i < COUNT(mistakes); i++) {
        char *text = for_schema(mistakes[i], schema), *hint;
        PGresult *res;
        RUN("BEGIN");
        RUN("SET LOCAL ROLE %s", quoted("operate"));
        res = PQexec(db, text);
        hint = text_copy(PQresultErrorField(res, PG_DIAG_MESSAGE_HINT) == NULL ? ""
                         : PQresultErrorField(res, PG_DIAG_MESSAGE_HINT));
        if (PQresultStatus(res) == PGRES_FATAL_ERROR &&
            strcmp(PQresultErrorField(res, PG_DIAG_SQLSTATE), "42501") == 0)
            fail_msg("%s: %s", mistakes[i], PQresultErrorMessage(res));
        PQclear(res);
        RUN("ROLLBACK");
        if (out_of_reach("operate", hint)[0] != '\0')
            fail_msg("%s: %s may not be used: %s", mistakes[i], out_of_reach("operate", hint),
                     hint);
        hints += hint[0] != '\0';
        free(text);
        free(hint);
    }
    assert_true(hints >= 4);
    assert_string_equal(out_of_reach("operate", "select name from jobq.queue"), "queue");
}

/* Whoever may look can have everything checked; findings about others' sessions may be fewer. */
static void doctor_checks_all_for_who_may_look(void **unused)
{
    static const char *const looks[] = {"operate", "read", "watch"};
    size_t i;

    (void)unused;
    pg_empty(NULL);
    enqueue_count(1);
    for (i = 0; i < COUNT(looks); i++) {
        char *said;
        RUN("SET ROLE %s", quoted(looks[i]));
        said = text_of("SELECT coalesce(string_agg(check_name || ': ' || sentence, '; '), '') FROM "
                       "jobq.doctor(true) WHERE sentence LIKE 'not checked%%'");
        RUN("RESET ROLE");
        assert_string_equal(said, "");
        free(said);
    }
}

/* A handle whose connections act as that role. */
static jobq_pg *handle_as(const char *role)
{
    char conninfo[512], option[256], *out = option;
    const char *in = role_of(role);
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *made;

    for (; *in != '\0'; in++) { /* once for the options' words, once for the conninfo's */
        if (*in == ' ') { *out++ = '\\'; *out++ = '\\'; }
        *out++ = *in;
    }
    *out = '\0';
    snprintf(conninfo, sizeof conninfo, "%s options='-c role=%s'", server(), option);
    memset(&desc, 0, sizeof desc);
    desc.conninfo = conninfo;
    desc.schema = schema;
    if (jobq_pg_open(&made, &desc, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return made;
}


static jobq_outcome run(jobq_call *call)
{
    (void)call;
    return ADD(runs) == 1 ? JOBQ_OUTCOME_RETRY : JOBQ_OUTCOME_SUCCESS;
}

/* The library itself, one handle for each role: one writes, one works, one operates. */
static void the_library_works_under_each_role(void **unused)
{
    jobq_pg *writer = handle_as("enqueue"), *fast = handle_as("fast");
    jobq_pg *worker = handle_as("work"), *boss = handle_as("operate");
    jobq_pg_handler h = handler_of("q", "k", run);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_queue_desc quick = {.backoff = {.base_us = 1000, .cap_us = 1000}};
    jobq_pg_job job = plain_job();
    jobq_pg_message message;
    jobq_pg_queue_row counts;
    jobq_pg_error error;
    int64_t id;
    int i;

    (void)unused;
    pg_empty(NULL);
    SET(runs, 0);
    memset(&message, 0, sizeof message);
    message.queue = "o";
    message.payload = jobq_str_from("1");
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "o", 1, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_queue_set(boss, NULL, "q", &quick, &error), JOBQ_OK);
    RUN("INSERT INTO jobq.sleeper SELECT id, 16 FROM jobq.queue");
    for (i = 0; i < 3; i++) {
        assert_int_equal(jobq_pg_enqueue(writer, NULL, &job, &id, &error), JOBQ_OK);
        assert_int_equal(jobq_pg_enqueue(fast, NULL, &job, &id, &error), JOBQ_OK);
        assert_int_equal(jobq_pg_outbox_enqueue(writer, NULL, &message, NULL, &error), JOBQ_OK);
        assert_int_equal(jobq_pg_outbox_enqueue(fast, NULL, &message, NULL, &error), JOBQ_OK);
    }
    /* The plain INSERT does not need it. */
    RUN("DO $$ BEGIN EXECUTE format('REVOKE EXECUTE ON FUNCTION jobq._outbox_enqueue_one FROM %%I',"
        " '%s'); END $$", role_of("fast"));
    assert_int_equal(jobq_pg_outbox_enqueue(fast, NULL, &message, NULL, &error), JOBQ_OK);
    RUN("DO $$ BEGIN EXECUTE format('GRANT EXECUTE ON FUNCTION jobq._outbox_enqueue_one TO %%I', "
        "'%s'); END $$", role_of("fast"));
    assert_int_equal(jobq_pg_enqueue_many(fast, NULL, &job, 1, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(writer, NULL, &job, 1, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_DATABASE);
    assert_string_equal(error.sqlstate, "42501");
    assert_non_null(strstr(error.message, "grant_enqueue"));
    assert_int_equal(jobq_pg_cancel(writer, NULL, ONE(id), NULL, NULL, &error),
                     JOBQ_ERROR_DATABASE);
    start_on(worker, &d);
    assert_true(becomes(30, 7, "SELECT count(*) FROM jobq.history"));
    all_stop(NULL);
    assert_int_equal(counts_by(boss, "q", &counts), JOBQ_OK);
    assert_int_equal(counts.ready, 0);
    assert_int_equal(jobq_pg_delete(boss, NULL, ONE(id), NULL, &error), JOBQ_OK);
    jobq_pg_close(writer);
    jobq_pg_close(fast);
    jobq_pg_close(worker);
    jobq_pg_close(boss);
}

/* Tables, functions, operators and types that lie in public, in pg_temp and first in the caller's
 * search_path are not found by anything of ours. */
static void what_is_planted_has_no_effect(void **unused)
{
    static const char *const types[] = {"text", "jsonb", "bytea", "timestamptz"};
    jobq_pg_job job = plain_job();
    jobq_pg_message message;
    jobq_pg_error error;
    int64_t id;
    size_t d;

    (void)unused;
    pg_empty(NULL);
    memset(&message, 0, sizeof message);
    message.queue = "o";
    message.payload = jobq_str_from("1");
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "o", 1, NULL, &error), JOBQ_OK);
    enqueue_with(&job); /* from now on a plain statement enqueues */
    RUN("INSERT INTO jobq.sleeper SELECT id, 16 FROM jobq.queue");
    RUN("DROP SCHEMA IF EXISTS planted CASCADE");
    RUN("CREATE SCHEMA planted");
    RUN("CREATE FUNCTION planted.statement_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'planted statement_timestamp'; END$$");
    RUN("CREATE FUNCTION planted.coalesced(int, int) RETURNS boolean LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'planted operator'; END$$");
    RUN("CREATE OPERATOR planted.= (LEFTARG = int, RIGHTARG = int, FUNCTION = planted.coalesced)");
    RUN("CREATE FUNCTION planted.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'planted pg_notify'; END$$");
    RUN("CREATE FUNCTION planted.format(text, text) RETURNS text LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'planted format'; END$$");
    for (d = 0; d < COUNT(types); d++) {
        RUN("CREATE DOMAIN planted.%s AS pg_catalog.%s CHECK (false)", types[d], types[d]);
    }
    RUN("CREATE TEMP TABLE job (id int)");
    RUN("CREATE TEMP TABLE pg_proc (oid int)");
    RUN("BEGIN");
    RUN("SET LOCAL search_path = planted, pg_temp, pg_catalog");
    job.key = "key";
    assert_int_equal(jobq_pg_enqueue(pg, db, &job, &id, &error), JOBQ_OK);
    job.key = NULL;
    assert_int_equal(jobq_pg_enqueue_many(pg, db, &job, 1, NULL, &error), JOBQ_OK);
    assert_int_equal(number("SELECT pg_catalog.count(*) FROM jobq.peek(at_most => 9)"), 3);
    assert_int_equal(jobq_pg_cancel(pg, db, ONE(id), NULL, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_change(pg, db, ONE(id + 1),
                                    &(jobq_pg_changes){.run_at_us = 4000000000 * SECOND}, NULL,
                                    &error), JOBQ_OK);
    if (jobq_pg_enqueue(pg, db, &job, &id, &error) != JOBQ_OK) fail_msg("%s", error.message);
    assert_int_equal(jobq_pg_outbox_enqueue(pg, db, &message, NULL, &error), JOBQ_OK);
    RUN("ROLLBACK");
    RUN("DROP TABLE pg_temp.job, pg_temp.pg_proc");
    RUN("DROP SCHEMA planted CASCADE");
}

/* A role that is taken back everything has nothing left. */
static void revoke_takes_everything_back(void **unused)
{
    size_t d;

    (void)unused;
    RUN("SELECT jobq.grant_enqueue('%s', true)", quoted("nobody"));
    RUN("SELECT jobq.grant_work('%s'), jobq.grant_operate('%s')", quoted("nobody"),
        quoted("nobody"));
    assert_string_equal(as("nobody", "SELECT jobq.cancel(1)"), "");
    RUN("SELECT jobq.revoke('%s')", quoted("nobody"));
    for (d = 0; d < COUNT(doors); d++)
        assert_string_equal(as("nobody", doors[d].statement), "42501");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_narrower_grant_takes_back),
        cmocka_unit_test(each_role_has_its_doors_and_no_other),
        cmocka_unit_test(every_function_is_secured),
        cmocka_unit_test(hints_name_what_the_role_may_use),
        cmocka_unit_test(doctor_checks_all_for_who_may_look),
        cmocka_unit_test_teardown(the_library_works_under_each_role, all_stop),
        cmocka_unit_test(a_missing_right_is_told_each_time),
        cmocka_unit_test(what_is_planted_has_no_effect),
        cmocka_unit_test(revoke_takes_everything_back),
    };

    return cmocka_run_group_tests_name("roles", tests, roles_up, roles_down);
}
