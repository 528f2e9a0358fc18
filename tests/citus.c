/*
 * On Citus, a coordinator and two nodes, which tests/citus.sh starts: schemas of each server, from
 * many processes at once, and transactions that also write distributed tables while a node dies.
 */
#include "processes.h"

static const char *far_end; /* a node's conninfo */

static void migrate_at(const char *conninfo, const char *name)
{
    jobq_pg_desc d = desc_of(conninfo);
    jobq_pg_error error;
    jobq_pg *mine;

    d.schema = name;
    if (jobq_pg_open(&mine, &d, &error) == JOBQ_OK && jobq_pg_migrate(mine, &error) == JOBQ_OK &&
        jobq_pg_check(mine, NULL, &error) == JOBQ_OK) _exit(0);
    fprintf(stderr, "%s\n", error.message);
    _exit(1);
}

/* Six processes for each of two names, at the coordinator and at a node. */
static void many_migrate(const char *sharding)
{
    static const char *const names[] = {"jobq", "Mx"};
    char conninfo[300];
    pid_t pids[24];
    int i;

    fflush(NULL);
    for (i = 0; i < 24; i++) {
        snprintf(conninfo, sizeof conninfo,
                 "%s options='-c citus.enable_schema_based_sharding=%s'", i / 2 % 2 == 0 ? server()
                 : far_end, sharding);
        pids[i] = fork();
        if (pids[i] == 0) migrate_at(conninfo, names[i % 2]);
    }
    for (i = 0; i < 24; i++) assert_int_equal(reap(pids[i]), 0);
    assert_int_equal(number("SELECT count(*) FROM citus_schemas"), 0);
    assert_int_equal(number("SELECT count(*) FROM pg_dist_object "
                            "WHERE classid = 'pg_proc'::regclass AND objid <> ALL ("
                            "SELECT objid FROM pg_depend WHERE deptype = 'e')"), 0);
    RUN("SET citus.enable_ddl_propagation = off");
    RUN("DROP SCHEMA \"Mx\" CASCADE");
    PQclear(PQexec(db, "DROP SCHEMA jobq CASCADE")); /* not this program's */
    RUN("RESET citus.enable_ddl_propagation");
}

static void at_the_node(const char *statement)
{
    PGconn *conn = PQconnectdb(far_end);
    PGresult *res = PQexec(conn, statement);

    if (PQresultStatus(res) != PGRES_COMMAND_OK) fail_msg("%s", PQerrorMessage(conn));
    PQclear(res);
    PQfinish(conn);
}

static void each_server_has_its_schemas(void **unused)
{
    const char *gone = "SET client_min_messages = error; SET citus.enable_ddl_propagation = off; "
                       "DROP SCHEMA jobq CASCADE; DROP SCHEMA \"Mx\" CASCADE";

    (void)unused;
    many_migrate("on");
    at_the_node(gone);
    many_migrate("off");
    at_the_node(gone);
}

/* ---- in two phases --------------------------------------------------------------------------- */

static int prepared;

static void counts_prepared(void *unused, const char *message)
{
    (void)unused;
    if (strstr(message, "PREPARE TRANSACTION") != NULL) prepared++;
}

/* How often a transaction of these two statements was prepared at a node. */
static int prepares(const char *one, const char *other)
{
    prepared = 0;
    RUN("BEGIN");
    RUN("%s", one);
    RUN("%s", other);
    RUN("COMMIT");
    return prepared;
}

static void distributed_effects(void)
{
    RUN("DROP TABLE IF EXISTS public.effect");
    RUN("CREATE TABLE public.effect (key bigint, pid int)");
    RUN("SELECT create_distributed_table('public.effect', 'key')");
}

/* A worker sleeps meanwhile, so it is notified. */
static void what_spans_servers_is_prepared(void **unused)
{
    static const char effect[] = "INSERT INTO public.effect VALUES (1, 1)",
                      job[] = "SELECT jobq.enqueue('q', 'k')",
                      message[] = "SELECT jobq.outbox_enqueue('o')";
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    RUN("SELECT jobq.outbox_register('o', 1)");
    start(&d);
    assert_true(becomes(30, 1, "SELECT count(*) FROM jobq.sleeper"));
    PQsetNoticeProcessor(db, counts_prepared, NULL);
    RUN("SET client_min_messages = notice");
    RUN("SET citus.log_remote_commands = on");
    assert_int_equal(prepares(effect, "SELECT 1"), 0);
    assert_int_equal(prepares(job, effect), 1);
    assert_int_equal(prepares(effect, job), 1);
    assert_int_equal(prepares(effect, message), 1);
    RUN("RESET citus.log_remote_commands");
    RUN("SET client_min_messages = error");
    assert_true(reaches(20, &runs, 2));
    assert_int_equal(number("SELECT jobq.citus_apart()::int"), 0);
}

/* A schema that was there before the first distributed table. New schemas are distributed here, but
 * that of the joint table must not be. */
static void a_schema_joins_later(void **unused)
{
    (void)unused;
    RUN("DROP TRIGGER joint ON jobq.job");
    RUN("DROP SCHEMA jobq_citus CASCADE");
    RUN("SET citus.enable_schema_based_sharding = on");
    assert_int_equal(number("SELECT jobq.citus_apart()::int"), 1);
    RUN("DROP TRIGGER joint ON jobq.message");
    RUN("DROP TRIGGER joint ON jobq.partition");
    assert_int_equal(number("SELECT jobq.citus_join()::int"), 1);
    assert_int_equal(number("SELECT jobq.citus_apart()::int"), 0);
    assert_int_equal(number("SELECT count(*) FROM pg_trigger WHERE tgname = 'joint'"), 3);
    assert_int_equal(number("SELECT count(*) FROM citus_schemas"), 0);
    RUN("RESET citus.enable_schema_based_sharding");
}

/* Such a schema is refused, before a retry ends the server. The views are in the way of Citus. */
static void a_distributed_schema_is_refused(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc desc = desc_of(server());
    jobq_pg_worker *worker;
    jobq_pg_error error;
    jobq_pg *made;

    (void)unused;
    desc.schema = "dist_too";
    made = open_on(&desc);
    assert_int_equal(jobq_pg_migrate(made, &error), JOBQ_OK);
    RUN("DO $$ DECLARE t text; BEGIN FOR t IN SELECT oid::regclass FROM pg_class WHERE relkind = "
        "'v' AND relnamespace = 'dist_too'::regnamespace LOOP EXECUTE 'DROP VIEW IF EXISTS ' || t "
        "|| ' CASCADE'; END LOOP; FOR t IN SELECT tgrelid::regclass FROM pg_trigger WHERE tgname = "
        "'joint' AND tgrelid::regclass::text ~ 'dist_too' LOOP "
        "EXECUTE 'DROP TRIGGER joint ON ' || t;"
        " END LOOP; END $$");
    RUN("SELECT citus_schema_distribute('dist_too')");
    assert_int_equal(jobq_pg_migrate(made, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_check(made, NULL, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_worker_start(made, &d, &worker, &error), JOBQ_ERROR_INVALID);
    jobq_pg_close(made);
    RUN("DROP SCHEMA dist_too CASCADE");
}

/* ---- a node that dies ------------------------------------------------------------------------ */

#define KEYS 1500

static jobq_outcome does(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char text[100];
    PGresult *res;
    bool good;

    call->delay_named = true;
    call->delay_us = 50000;
    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    snprintf(text, sizeof text, "INSERT INTO public.effect VALUES (%lld, 1)",
             (long long)call->job.id);
    PQclear(PQexec(conn, "BEGIN"));
    res = PQexec(conn, text);
    good = PQresultStatus(res) == PGRES_COMMAND_OK;
    PQclear(res);
    return good ? jobq_pg_call_commit(call, conn) : JOBQ_OUTCOME_RETRY;
}

static void at_the_second_node(const char *arguments)
{
    char command[300];

    snprintf(command, sizeof command, "JOBQ_SERVER_DIR=\"$JOBQ_NODE_2_DIR\" tests/server.sh %s "
             "</dev/null >/dev/null 2>&1", arguments);
    if (system(command) != 0) fail_msg("%s", command);
}

/* Jobs at the coordinator, effects in a distributed table, in one transaction. */
static void a_dead_node_loses_and_repeats_nothing(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", does);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    RUN("INSERT INTO jobq.queue (name, max_attempts) VALUES ('q', 1000)");
    enqueue_count(KEYS);
    start(&d);
    assert_true(becomes(60, 1, "SELECT (count(*) > 300)::int FROM jobq.history"));
    at_the_second_node("--crash");
    nap_us(2 * SECOND);
    at_the_second_node("--ctl start");
    assert_true(becomes(60, KEYS, "SELECT count(*) FROM jobq.history"));
    db_again(); /* its session knows the dead node */
    RUN("SELECT recover_prepared_transactions()");
    assert_true(becomes(30, KEYS, "SELECT count(*) FROM public.effect"));
    assert_int_equal(number("SELECT count(DISTINCT key) FROM public.effect"), KEYS);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* ---- setup ----------------------------------------------------------------------------------- */

static int up(void **state)
{
    far_end = getenv("JOBQ_NODE_1");
    if (far_end == NULL) return 1;
    db = PQconnectdb(server());
    strcpy(schema, "none");
    distributed_effects(); /* before the schema, so that its installation joins */
    PQfinish(db);
    return pg_up(state);
}

static int empty(void **state)
{
    int code = fresh(state);

    distributed_effects();
    return code;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, empty, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_server_has_its_schemas),
        TEST(what_spans_servers_is_prepared),
        TEST(a_schema_joins_later),
        TEST(a_distributed_schema_is_refused),
        TEST(a_dead_node_loses_and_repeats_nothing),
    };

    return cmocka_run_group_tests(tests, up, pg_down);
}
