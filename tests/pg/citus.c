/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * On Citus, a coordinator and two nodes, which tests/harness/citus.sh starts: schemas of each
 * server, from many processes at once, and transactions that also write distributed tables while a
 * node dies.
 */
#include "processes.h"
#include "relay.h"

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
    assert_int_equal(number("SELECT jobq._citus_apart()::int"), 0);
}

/* A schema that was there before the first distributed table. New schemas are distributed here, but
 * that of the joint table must not be. */
static void a_schema_joins_later(void **unused)
{
    (void)unused;
    RUN("DROP TRIGGER joint ON jobq.job");
    RUN("DROP SCHEMA jobq_citus CASCADE");
    RUN("SET citus.enable_schema_based_sharding = on");
    assert_int_equal(number("SELECT jobq._citus_apart()::int"), 1);
    RUN("DROP TRIGGER joint ON jobq.message");
    RUN("DROP TRIGGER joint ON jobq.partition");
    assert_int_equal(number("SELECT jobq.citus_join()::int"), 1);
    assert_int_equal(number("SELECT jobq._citus_apart()::int"), 0);
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
    RUN("DO $$ DECLARE t text; BEGIN FOR t IN SELECT 'dist_too.' || relname FROM pg_class WHERE "
        "relkind = 'v' AND relnamespace = 'dist_too'::regnamespace LOOP "
        "EXECUTE 'DROP VIEW IF EXISTS ' || t || ' CASCADE'; END LOOP; "
        "FOR t IN SELECT tgrelid::regclass FROM pg_trigger WHERE tgname = 'joint' AND"
        "  tgrelid::regclass::text ~ 'dist_too' LOOP "
        "EXECUTE 'DROP TRIGGER joint ON ' || t;"
        " END LOOP; END $$");
    RUN("SELECT citus_schema_distribute('dist_too')");
    assert_int_equal(jobq_pg_migrate(made, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_check(made, NULL, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_worker_start(made, &d, &worker, &error), JOBQ_ERROR_INVALID);
    jobq_pg_close(made);
    RUN("DROP SCHEMA dist_too CASCADE");
}

/* "ok", or the SQLSTATE, of a statement that is rolled back. */
static const char *state_of(const char *statement, char state[6])
{
    PGresult *res;
    const char *code;

    RUN("BEGIN");
    res = PQexec(db, statement);
    code = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    snprintf(state, 6, "%s", code == NULL ? "ok" : code);
    if (code != NULL) snprintf(seen_by_stage[0], 300, "%s", PQresultErrorMessage(res));
    PQclear(res);
    RUN("ROLLBACK");
    return state;
}

/* The same, of a statement about this test's schema. */
static const char *answer_of(const char *statement)
{
    static char state[6];
    char *text = for_schema(statement, schema);

    state_of(text, state);
    free(text);
    return state;
}

/* Its functions would end the server on distributed tables. */
static void no_worker_lives_while_a_schema_is_distributed(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    start(&d);
    assert_true(becomes(30, 1, "SELECT count(*) FROM jobq.worker"));
    assert_string_equal(answer_of("SELECT jobq.citus_distribute()"), "55006");
    all_stop(NULL);
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

/* Jobs at the coordinator, or in a distributed schema, and effects in a distributed table, in one
 * transaction. */
static void a_dead_node_loses_and_repeats_nothing(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", does);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    RUN("SELECT jobq.queue_set('q', max_attempts => 1000)");
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

/* What jobq doctor says at a server. */
static const char *doctor_at(const char *conninfo)
{
    static char out[16000];
    char command[600];
    FILE *pipe;

    snprintf(command, sizeof command, "timeout 60 .build/jobq -d \"%s\" --schema %s doctor 2>&1",
             conninfo, schema);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    out[fread(out, 1, sizeof out - 1, pipe)] = '\0';
    pclose(pipe);
    return out;
}

/* A server was lost between the phases of a commit: the node holds rows of the schema, or of other
 * tables. Doctor tells so at the coordinator and at the node. */
static void doctor_sees_what_is_in_doubt(void **unused)
{
    static const char doubt[] = "transaction citus_0_999999_5_1 is in doubt at ";
    PGconn *there = PQconnectdb(far_end);

    (void)unused;
    if (access(".build/jobq", X_OK) != 0) fail_msg("make .build/jobq");
    RUN("ALTER SYSTEM SET citus.recover_2pc_interval = '10min'");
    RUN("SELECT pg_reload_conf()");
    PQclear(sql(there, "CREATE TABLE IF NOT EXISTS public.doubt (n int)"));
    PQclear(sql(there, "BEGIN"));
    PQclear(sql(there, "INSERT INTO public.doubt VALUES (1)"));
    PQclear(sql(there, "PREPARE TRANSACTION 'citus_0_999999_5_1'"));
    nap_us(6 * SECOND); /* younger ones are on their way */
    assert_non_null(strstr(doctor_at(server()), doubt));
    assert_non_null(strstr(doctor_at(server()), "Citus ends it within 00:10:00"));
    assert_null(strstr(doctor_at(server()), "not checked"));
    PQclear(sql(there, "ROLLBACK PREPARED 'citus_0_999999_5_1'"));
    assert_null(strstr(doctor_at(server()), doubt));
    PQclear(sql(there, "DROP TABLE public.doubt"));
    RUN("ALTER SYSTEM RESET citus.recover_2pc_interval");
    RUN("SELECT pg_reload_conf()");
    PQfinish(there);
}

/* ---- a distributed schema -------------------------------------------------------------------- */

static jobq_outcome fails_once(jobq_call *call)
{
    ADD(runs);
    if (call->job.attempt > 1) return JOBQ_OUTCOME_SUCCESS;
    jobq_call_error(call, jobq_str_from("no"));
    call->delay_named = true;
    return JOBQ_OUTCOME_RETRY;
}

/* A worker at the coordinator hears of jobs, and each ends once. A retry ended the whole server
 * where Citus planned it. */
static void jobs_run_at_their_node(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", fails_once);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    int64_t id, other;

    (void)unused;
    start(&d);
    assert_true(becomes(30, 1, "SELECT count(*) FROM jobq.sleeper"));
    job.key = "once";
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, &id, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, &other, &error), JOBQ_ERROR_EXISTS);
    assert_int_equal(id, other);
    assert_true(reaches(20, &runs, 2));
    enqueue_count(2000);
    assert_true(becomes(60, 2001, "SELECT count(*) FROM jobq.history"));
    assert_int_equal(GET(runs), 4002);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE state = 'succeeded'"), 2001);
}

/* Also where the call is not a statement of its own. */
static void calls_join_the_transaction(void **unused)
{
    static const char job[] = "SELECT jobq.enqueue('q', 'k')",
                      effect[] = "INSERT INTO public.effect "
                                 "SELECT i, 1 FROM generate_series(1, 50) i";

    (void)unused;
    RUN("BEGIN");
    RUN("%s", job);
    RUN("ROLLBACK");
    RUN("DO $$ BEGIN PERFORM jobq.enqueue('q', 'k'); RAISE division_by_zero; "
        "EXCEPTION WHEN division_by_zero THEN NULL; END $$");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    PQsetNoticeProcessor(db, counts_prepared, NULL);
    RUN("SET client_min_messages = notice");
    RUN("SET citus.log_remote_commands = on");
    assert_true(prepares(job, effect) >= 2);
    assert_true(prepares(effect, job) >= 2);
    RUN("RESET citus.log_remote_commands");
    RUN("SET client_min_messages = error");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 2);
}

/* A worker sleeps, whom the enqueue would notify: a transaction that has notified at the node could
 * not be prepared there. */
static void a_sleeping_worker_is_in_nobodys_way(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    start(&d);
    assert_true(becomes(30, 1, "SELECT count(*) FROM jobq.sleeper"));
    RUN("BEGIN");
    RUN("SELECT jobq.enqueue('q', 'k')");
    RUN("INSERT INTO public.effect SELECT i, 1 FROM generate_series(1, 50) i");
    RUN("COMMIT");
    assert_true(reaches(20, &runs, 1));
}

static void effects_at_another_node_come_once(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", does);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    enqueue_count(300);
    start(&d);
    assert_true(becomes(60, 300, "SELECT count(*) FROM jobq.history"));
    assert_int_equal(number("SELECT count(*) FROM public.effect"), 300);
    assert_int_equal(number("SELECT count(DISTINCT key) FROM public.effect"), 300);
}

static int64_t last_of[4];
static int disorder;

/* A delivery may come again when its end was lost. */
static jobq_result in_order(jobq_delivery *delivery, const jobq_message *message)
{
    int64_t *last = &last_of[delivery->partition % 4];

    if (message->seq <= *last) return JOBQ_RESULT_SUCCESS;
    if (message->seq != *last + 1) ADD(disorder);
    *last = message->seq;
    ADD(runs);
    return JOBQ_RESULT_SUCCESS;
}

static void at_the_home(const char *arguments)
{
    char command[300];

    snprintf(command, sizeof command, "JOBQ_SERVER_DIR='%s' tests/server.sh %s </dev/null "
             ">/dev/null 2>&1", PQhost(shards_at), arguments);
    if (system(command) != 0) fail_msg("%s", command);
}

/* The key makes it one message, however often an answer was lost. */
static void sends(int i)
{
    int64_t until = mono_us() + 120 * SECOND;
    jobq_error code = JOBQ_ERROR_RETRYABLE;
    jobq_pg_error error;
    jobq_pg_message m;
    char key[20], order[20];

    memset(&m, 0, sizeof m);
    snprintf(key, sizeof key, "%d", i);
    snprintf(order, sizeof order, "%d", i % 7);
    m.queue = "o";
    m.key = key;
    m.order_key = order;
    while (code != JOBQ_OK && code != JOBQ_ERROR_EXISTS) {
        if (mono_us() > until) fail_msg("%s", error.message);
        code = jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error);
        if (code != JOBQ_OK) nap_us(50000);
    }
}

/* The node that has them is killed meanwhile. */
static void messages_come_in_order(void **unused)
{
    jobq_pg_receiver r = receiver(in_order, NULL);
    jobq_pg_worker *worker;
    int i;

    (void)unused;
    memset(last_of, 0, sizeof last_of);
    RUN("SELECT jobq.outbox_register('o', 4)");
    worker = begin(pg, &r, 2);
    for (i = 0; i < 100; i++) sends(i);
    assert_true(reaches(30, &runs, 50));
    at_the_home("--crash");
    nap_us(SECOND / 2);
    at_the_home("--ctl start");
    find_node();
    for (; i < 200; i++) sends(i);
    assert_true(reaches(60, &runs, 200));
    end(worker);
    assert_int_equal(GET(runs), 200);
    assert_int_equal(GET(disorder), 0);
    assert_int_equal(number("SELECT sum(lag) FROM jobq.outbox"), 0);
}

static int at_once, most_at_once;

static jobq_outcome counts_at_once(jobq_call *call)
{
    int now = ADD(at_once);

    (void)call;
    if (now > GET(most_at_once)) SET(most_at_once, now);
    nap_us(10000);
    __atomic_sub_fetch(&at_once, 1, __ATOMIC_SEQ_CST);
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static void a_quota_holds(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counts_at_once);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    SET(most_at_once, 0);
    RUN("SELECT jobq.queue_set('q', running_max => 3)");
    enqueue_count(150);
    d.loop.threads = 8;
    start(&d);
    start(&d);
    assert_true(becomes(60, 150, "SELECT count(*) FROM jobq.history"));
    assert_in_range(GET(most_at_once), 2, 3);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

#define TEN "xxxxxxxxxx"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
#define PADDING HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED HUNDRED

/* Who connects to the node by mistake is not sent astray. */
static void doctor_works_at_the_node(void **unused)
{
    char conninfo[200];

    (void)unused;
    snprintf(conninfo, sizeof conninfo, "host=%s user=postgres dbname=postgres",
             PQhost(shards_at));
    if (strstr(doctor_at(conninfo), "not checked") != NULL ||
        strstr(doctor_at(conninfo), "citus: ") != NULL) fail_msg("%s", doctor_at(conninfo));
    if (strstr(doctor_at(server()), "not checked") != NULL) fail_msg("%s", doctor_at(server()));
}

/* Calls each view and function, with all arguments NULL, here and in a schema of the coordinator.
 * The answers must be the same; prints those that are not. outbox_hand is called by other functions
 * only, at the node; request only notifies, which nobody hears from there; bulk and outbox_queue
 * answer nothing. */
static void every_view_and_function_answers(void **unused)
{
    static const char each[] =
        "SELECT replace(q, '%%s', 'jobq.'), replace(q, '%%s', 'near.') "
        "FROM (SELECT format('SELECT count(*) "
        "FROM (SELECT * FROM %%%%s%%I) o', relname) AS q FROM pg_class WHERE relkind = 'v' AND "
        "relnamespace = 'jobq'::regnamespace UNION ALL SELECT format('SELECT FROM %%%%s%%I(%%s)', "
        "p.proname, (SELECT string_agg('NULL::' || replace(format_type(t, NULL), 'jobq.', '%%s'), "
        "', ' ORDER BY n) FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS u (t, n))) "
        "FROM pg_proc p WHERE pronamespace = 'jobq'::regnamespace AND prokind = 'f' "
        "AND provolatile <> 'i' AND proname !~ '^_?(citus_|grant|revoke|secure|bulk$|renew|"
        "outbox_(hand|queue)$|request$)') o";
    jobq_pg_desc desc = desc_of(server());
    char far_state[6], near_state[6];
    jobq_pg_error error;
    PGresult *res;
    jobq_pg *near;
    int i, failed = 0;

    (void)unused;
    desc.schema = "near";
    near = open_on(&desc);
    assert_int_equal(jobq_pg_migrate(near, &error), JOBQ_OK);
    jobq_pg_close(near);
    res = sql(db, each);
    for (i = 0; i < PQntuples(res); i++) {
        state_of(PQgetvalue(res, i, 1), near_state);
        if (strcmp(state_of(PQgetvalue(res, i, 0), far_state), near_state) == 0) continue;
        printf("%s: %s, not %s: %s\n", PQgetvalue(res, i, 0), far_state, near_state,
               seen_by_stage[0]);
        failed++;
    }
    assert_in_range(PQntuples(res), 200, 1000);
    PQclear(res);
    RUN("DROP SCHEMA near CASCADE");
    assert_int_equal(failed, 0);
}

/* At the coordinator, where RUN might go to the node. */
static void rename_here(const char *from, const char *to)
{
    char text[200];
    PGresult *res;

    snprintf(text, sizeof text, "ALTER FUNCTION %s.%s RENAME TO %s", schema, from, to);
    res = PQexec(db, text);
    assert_int_equal(PQresultStatus(res), PGRES_COMMAND_OK);
    PQclear(res);
}

/* Of a distributed schema names are compared. */
static void a_version_is_kept(void **unused)
{
    jobq_pg_error error;

    (void)unused;
    if (jobq_pg_migrate(pg, &error)) fail_msg("%s", error.message);
    if (jobq_pg_check(pg, NULL, &error)) fail_msg("%s", error.message);
    rename_here("_settle", "away");
    assert_int_equal(jobq_pg_check(pg, NULL, &error), JOBQ_ERROR_VERSION);
    rename_here("away", "_settle");
    assert_non_null(strstr(error.message, "function _settle is missing"));
}

/* Citus passes on the text of a refusal, but no name of a column or a constraint. */
static void a_refusal_names_the_field(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;

    (void)unused;
    job.flow = 7;
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.message, "invalid flow: not the id of a flow");
    assert_string_equal(error.field, "flow");
    RUN("SELECT jobq.queue_set('q', payload_max => 1000)");
    job.flow = 0;
    job.payload = jobq_str_from("\"" PADDING "\"");
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "payload");
    RUN("ALTER TABLE jobq.job ADD CONSTRAINT choosy CHECK (priority <> 7)");
    job = plain_job();
    job.priority = 7;
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    RUN("ALTER TABLE jobq.job DROP CONSTRAINT choosy");
    assert_string_equal(error.constraint, "choosy");
}

/* Arrays are sent in its place, in the caller's transaction too. */
static void what_cannot_be_copied_is_sent_in_arrays(void **unused)
{
    jobq_pg_message messages[2];
    jobq_pg_job jobs[3];
    jobq_pg_error error;
    size_t i;

    (void)unused;
    RUN("SELECT jobq.outbox_register('o', 4)");
    memset(messages, 0, sizeof messages);
    for (i = 0; i < COUNT(jobs); i++) jobs[i] = plain_job();
    for (i = 0; i < COUNT(messages); i++) {
        messages[i].queue = "o";
        messages[i].order_key = "a";
        messages[i].payload = jobq_str_from("{}");
    }
    jobs[1].kind = "other";
    jobs[2].delay_us = 3600 * SECOND;
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, jobs, 3, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, messages, 2, JOBQ_PG_BY_COPY, &error),
                     JOBQ_OK);
    RUN("BEGIN");
    assert_int_equal(jobq_pg_enqueue_many(pg, db, jobs, 3, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, db, messages, 2, JOBQ_PG_BY_COPY, &error),
                     JOBQ_OK);
    RUN("ROLLBACK");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 3);
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE run_at > now()"), 1);
}

/* ---- roles ----------------------------------------------------------------------------------- */

/* The SQLSTATE of a statement that a role runs, or "ok". */
static const char *as_role(const char *role, const char *statement, char state[6])
{
    char *text = for_schema(statement, schema);

    RUN("SET ROLE %s", role);
    state_of(text, state);
    RUN("RESET ROLE");
    free(text);
    return state;
}

/* A role calls what it was granted, at the coordinator, and reaches no table. */
static void roles_call_what_they_are_granted(void **unused)
{
    char state[6];

    (void)unused;
    RUN("CREATE ROLE jobq_producer");
    RUN("CREATE ROLE jobq_worker");
    RUN("SELECT jobq.grant_enqueue('jobq_producer')");
    RUN("SELECT jobq.grant_work('jobq_worker')");
    RUN("SELECT jobq.outbox_register('o', 4)");
    assert_string_equal(as_role("jobq_producer", "SELECT jobq.enqueue('q', 'k')", state), "ok");
    assert_string_equal(as_role("jobq_producer", "SELECT jobq.outbox_enqueue('o')", state), "ok");
    assert_string_equal(as_role("jobq_producer", "SELECT jobq._outbox_direct()", state), "ok");
    assert_string_equal(as_role("jobq_producer", "SELECT jobq.prune(1)", state), "42501");
    assert_string_equal(
        as_role("jobq_producer", "SELECT jobq._bulk('q', '{k}', 1::smallint)", state), "42501");
    assert_string_equal(as_role("jobq_producer", "SELECT FROM jobq.job", state), "42501");
    assert_string_equal(as_role("jobq_worker", "SELECT jobq.prune(1)", state), "ok");
    assert_string_equal(as_role("jobq_worker", "SELECT FROM jobq.job", state), "42501");
    RUN("SELECT jobq.revoke('jobq_producer')");
    RUN("SELECT jobq.revoke('jobq_worker')");
    assert_string_equal(as_role("jobq_producer", "SELECT jobq.enqueue('q', 'k')", state), "42501");
    RUN("DROP ROLE jobq_producer, jobq_worker");
}

static void may(const char *role, const char *statement, const char *wanted)
{
    char state[6];

    if (strcmp(as_role(role, statement, state), wanted) != 0)
        fail_msg("%s as %s: %s: %s", statement, role, state, seen_by_stage[0]);
}

/* Views are read at the node as the caller. Each test has roles of other names, because Citus keeps
 * the connections of a role that is gone. */
static void roles_read_and_operate(void **unused)
{
    static const char *const roles[] = {"jobq_reader", "jobq_watch", "jobq_boss"};
    jobq_pg_job job = plain_job();
    char cancel[60];
    int64_t id;
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(roles); i++) RUN("CREATE ROLE %s LOGIN", roles[i]);
    RUN("SELECT jobq.grant_read('jobq_reader')");
    RUN("SELECT jobq.grant_read('jobq_watch', payloads => false)");
    RUN("SELECT jobq.grant_operate('jobq_boss')");
    id = enqueue_with(&job);
    snprintf(cancel, sizeof cancel, "SELECT jobq.cancel(%lld)", (long long)id);
    may("jobq_reader", "SELECT payload FROM jobq.jobs", "ok");
    may("jobq_reader", "SELECT FROM jobq.peek()", "ok");
    may("jobq_reader", cancel, "42501");
    may("jobq_reader", "SELECT FROM jobq.job", "42501");
    may("jobq_watch", "TABLE jobq.queues", "ok");
    may("jobq_watch", "SELECT payload FROM jobq.jobs", "42501");
    may("jobq_boss", cancel, "ok");
    may("jobq_boss", "TABLE jobq.jobs", "ok");
    for (i = 0; i < COUNT(roles); i++) RUN("SELECT jobq.revoke('%s')", roles[i]);
    may("jobq_reader", "TABLE jobq.queues", "42501");
    RUN("DROP ROLE jobq_reader, jobq_watch, jobq_boss");
}

/* The limits of a tenant are those of the role that logged in at the coordinator. */
static void a_tenant_keeps_to_its_lines(void **unused)
{
    char conninfo[1024];
    PGconn *own = db;

    (void)unused;
    RUN("CREATE ROLE jobq_tenant LOGIN");
    RUN("SELECT jobq.grant_enqueue('jobq_tenant', queues => '{q}', lines => 'a-%%')");
    snprintf(conninfo, sizeof conninfo, "%s user=jobq_tenant", server());
    db = PQconnectdb(conninfo);
    may("jobq_tenant", "SELECT jobq.enqueue('q', 'k', line => 'a-1')", "ok");
    may("jobq_tenant", "SELECT jobq.enqueue('q', 'k', line => 'b-1')", "42501");
    may("jobq_tenant", "SELECT jobq.enqueue('q', 'k')", "42501");
    PQfinish(db);
    db = own;
    RUN("SELECT jobq.revoke('jobq_tenant')");
    RUN("DROP ROLE jobq_tenant");
    assert_int_equal(number("SELECT count(*) FROM jobq.tenant"), 0);
}

/* A role that may connect to the coordinator may send statements to the nodes. */
static void nothing_more_is_open_at_the_node(void **unused)
{
    static const char prune[] = "SELECT count(*) FROM run_command_on_workers($$SELECT "
                                "jobq.prune(1)$$) WHERE success";

    (void)unused;
    RUN("CREATE ROLE jobq_producer LOGIN");
    RUN("SELECT jobq.grant_enqueue('jobq_producer')");
    assert_int_equal(number(prune), 1);
    RUN("SET ROLE jobq_producer");
    assert_int_equal(number(prune), 0);
    RUN("RESET ROLE");
    RUN("SELECT jobq.revoke('jobq_producer')");
    RUN("DROP ROLE jobq_producer");
}

/* ---- another name ---------------------------------------------------------------------------- */

/* A name that needs quotes everywhere. Grants of before stay. */
static void a_name_may_need_quotes(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", fails_once);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc desc = desc_of(server());
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    jobq_pg *mine;
    int i;

    (void)unused;
    desc.schema = "Mx";
    mine = open_on(&desc);
    assert_int_equal(jobq_pg_migrate(mine, &error), JOBQ_OK);
    RUN("CREATE ROLE jobq_other LOGIN");
    RUN("SELECT \"Mx\".grant_read('jobq_other')");
    RUN("SELECT \"Mx\".grant_enqueue('jobq_other', queues => '{q}')");
    RUN("SELECT \"Mx\".citus_distribute()");
    assert_int_equal(jobq_pg_enqueue(mine, NULL, &job, NULL, &error), JOBQ_ERROR_RETRYABLE);
    RUN("SELECT \"Mx\".citus_place()");
    assert_int_equal(jobq_pg_check(mine, NULL, &error), JOBQ_OK);
    may("jobq_other", "TABLE \"Mx\".jobs", "ok");
    may("jobq_other", "SELECT \"Mx\".enqueue('q', 'k')", "ok");
    for (i = 0; i < 3; i++)
        assert_int_equal(jobq_pg_enqueue(mine, NULL, &job, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_worker_start(mine, &d, &workers[0], &error), JOBQ_OK);
    assert_true(becomes(30, 3, "SELECT count(*) FROM \"Mx\".history"));
    all_stop(NULL);
    assert_int_equal(GET(runs), 6);
    assert_int_equal(number("SELECT \"Mx\".audit()"), 0);
    RUN("SELECT \"Mx\".citus_close()");
    RUN("SELECT \"Mx\".citus_undistribute()");
    if (jobq_pg_check(mine, NULL, &error)) fail_msg("%s", error.message);
    assert_int_equal(jobq_pg_enqueue(mine, NULL, &job, NULL, &error), JOBQ_OK);
    may("jobq_other", "TABLE \"Mx\".jobs", "ok");
    may("jobq_other", "SELECT \"Mx\".enqueue('q', 'k')", "ok");
    assert_int_equal(number("SELECT count(*) FROM \"Mx\".tenant WHERE role::text = "
                            "'jobq_other'"), 1);
    jobq_pg_close(mine);
    RUN("DROP SCHEMA \"Mx\" CASCADE");
    RUN("DROP ROLE jobq_other");
}

/* psql -f sql/install.sql makes, and refuses, the schema jobq. */
static void psql_refuses_it_too(void **unused)
{
    static const char install[] = "psql -Xqf sql/install.sql \"$JOBQ_SERVER\" 2>&1 | "
                                  "grep -q 'schema jobq is distributed by Citus'";

    (void)unused;
    assert_int_not_equal(system(install), 0);
    PQclear(PQexec(db, "SELECT jobq.citus_distribute()"));
    assert_int_equal(system(install), 0);
    PQclear(PQexec(db, "DROP SCHEMA jobq CASCADE"));
}

/* Moves the shards to the other node. Citus refuses that while what an earlier move has left behind
 * is still in use there; then it wants to be asked again. */
static void moves(void)
{
    static const char move[] =
        "SELECT citus_move_shard_placement(s.shardid, p.nodename, p.nodeport::int, n.nodename, "
        "n.nodeport, 'force_logical') FROM pg_dist_shard s JOIN pg_dist_shard_placement p USING "
        "(shardid), pg_dist_node n WHERE s.logicalrelid = 'jobq.job'::regclass AND n.groupid <> 0 "
        "AND (n.nodename, n.nodeport) <> (p.nodename, p.nodeport::int)";
    int64_t until = mono_us() + 20 * SECOND;
    char *text = for_schema(move, schema);
    PGresult *res = PQexec(db, text);

    while (strstr(PQresultErrorMessage(res), "orphaned") != NULL && mono_us() < until) {
        PQclear(res);
        nap_us(500000);
        res = PQexec(db, text);
    }
    if (PQresultStatus(res) != PGRES_TUPLES_OK) fail_msg("%s", PQresultErrorMessage(res));
    PQclear(res);
    free(text);
}

/* What the steps of a move meet: producers of keyed jobs, who repeat each until they are told that
 * it is there. They may go on as far as *allowed, so that some of them are left for each step. */
enum { PRODUCERS = 3, PRODUCED = 800, PLACES = 4 };

static pid_t producer(int which, const int *allowed)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    char key[30];
    pid_t pid;
    int i;

    fflush(NULL);
    pid = fork();
    if (pid != 0) return pid;
    pg = handle();
    job.key = key;
    for (i = 0; i < PRODUCED; i++) {
        jobq_error code = JOBQ_ERROR_RETRYABLE;

        snprintf(key, sizeof key, "\"%d-%d\"", which, i);
        job.payload = jobq_str_from(key);
        while (i >= GET(*allowed)) nap_us(10000);
        while (code != JOBQ_OK && code != JOBQ_ERROR_EXISTS) {
            code = jobq_pg_enqueue(pg, NULL, &job, NULL, &error);
            if (code == JOBQ_ERROR_INVALID || code == JOBQ_ERROR_DATABASE) {
                fprintf(stderr, "%s\n", error.message);
                _exit(1); /* an id that was given twice, say */
            }
        }
    }
    _exit(0);
}

/* A step of a move, which is ended now and then, and repeated until it has succeeded. */
static void steps(const char *statement, uint64_t *chance)
{
    char text[200], *resolved = for_schema(statement, schema);
    int64_t until = mono_us() + 120 * SECOND;
    PGresult *res = NULL;

    do {
        PGconn *other = PQconnectdb(server());

        if (mono_us() > until) fail_msg("%s: %s", statement, PQresultErrorMessage(res));
        PQclear(res);
        *chance = *chance * 6364136223846793005u + 1442695040888963407u;
        assert_int_equal(PQsendQuery(db, resolved), 1);
        if (*chance >> 62 == 0) {
            nap_us((int64_t)(*chance >> 44 & 0x3ffff));
            snprintf(text, sizeof text, "SELECT pg_terminate_backend(%d)", PQbackendPID(db));
            PQclear(sql(other, text));
        }
        PQfinish(other);
        res = PQgetResult(db);
        while (PQstatus(db) == CONNECTION_OK && PQtransactionStatus(db) == PQTRANS_ACTIVE)
            PQclear(PQgetResult(db));
        if (PQresultStatus(res) != PGRES_TUPLES_OK) db_again();
    } while (PQresultStatus(res) != PGRES_TUPLES_OK);
    PQclear(res);
    PQclear(PQgetResult(db));
    free(resolved);
}

/* Jobs come and run while the schema is closed, moved, to nodes that had it, too, and placed, and
 * while steps end half-way. */
static void a_move_loses_nothing(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    pid_t pids[PRODUCERS];
    uint64_t chance = 42;
    int i, *allowed = shared(sizeof *allowed);

    (void)unused;
    RUN("CREATE ROLE jobq_mover LOGIN");
    RUN("SELECT jobq.grant_read('jobq_mover')");
    for (i = 0; i < PRODUCERS; i++) pids[i] = producer(i, allowed);
    start(&d);
    start(&d);
    for (i = 0; i < PLACES; i++) {
        SET(*allowed, PRODUCED * (i + 1) / PLACES);
        nap_us(200000);
        steps("SELECT jobq.citus_close()", &chance);
        if (i % 3 == 0) moves();
        steps("SELECT jobq.citus_place()", &chance);
        may("jobq_mover", "TABLE jobq.jobs", "ok");
    }
    for (i = 0; i < PRODUCERS; i++) assert_int_equal(reap(pids[i]), 0);
    assert_true(becomes(120, PRODUCERS * PRODUCED, "SELECT count(*) FROM jobq.history"));
    assert_int_equal(number("SELECT count(DISTINCT payload) FROM jobq.history"),
                     PRODUCERS * PRODUCED);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    all_stop(NULL);
    RUN("SELECT jobq.revoke('jobq_mover')");
    RUN("DROP ROLE jobq_mover");
}

/* The steps are in order, or refused. Ids go on, also where none was given between two places. */
static void steps_come_in_order(void **unused)
{
    jobq_pg_job job = plain_job();
    int64_t id = enqueue_with(&job), other;

    (void)unused;
    assert_string_equal(answer_of("SELECT jobq.citus_place()"), "55000");
    assert_string_equal(answer_of("SELECT jobq.citus_undistribute()"), "55000");
    assert_string_equal(answer_of("SELECT jobq.citus_distribute()"), "55000");
    RUN("SELECT jobq.citus_close()");
    assert_string_equal(answer_of("SELECT jobq.enqueue('q', 'k')"), "57P03");
    RUN("SELECT jobq.citus_place()");
    RUN("SELECT jobq.citus_close()");
    RUN("SELECT jobq.citus_place()");
    other = enqueue_with(&job);
    assert_int_equal(other, id + 1);
}

/* The last test: the schema is an ordinary one from then on. */
static void a_schema_comes_back(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    long last;

    (void)unused;
    enqueue_count(20);
    last = number("SELECT max(id) FROM jobq.job");
    RUN("SELECT jobq.citus_close()");
    RUN("SELECT jobq.citus_undistribute()");
    assert_int_equal(number("SELECT count(*) FROM citus_schemas"), 0);
    enqueue_count(1);
    assert_true(number("SELECT max(id) FROM jobq.job") > last);
    start(&d);
    assert_true(becomes(60, 21, "SELECT count(*) FROM jobq.history"));
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    unsetenv("JOBQ_TEST_CITUS");
    PQfinish(shards_at);
    shards_at = NULL;
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

/* The second group: the schema is distributed. */
static int far_up(void **state)
{
    setenv("JOBQ_TEST_CITUS", "distributed", 1);
    return pg_up(state);
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
        TEST(doctor_sees_what_is_in_doubt),
        TEST(no_worker_lives_while_a_schema_is_distributed),
    };

    const struct CMUnitTest far[] = {
        TEST(jobs_run_at_their_node),
        TEST(calls_join_the_transaction),
        TEST(a_sleeping_worker_is_in_nobodys_way),
        TEST(effects_at_another_node_come_once),
        TEST(a_dead_node_loses_and_repeats_nothing),
        TEST(messages_come_in_order),
        TEST(a_quota_holds),
        TEST(every_view_and_function_answers),
        TEST(doctor_works_at_the_node),
        TEST(a_version_is_kept),
        TEST(a_refusal_names_the_field),
        TEST(what_cannot_be_copied_is_sent_in_arrays),
        TEST(a_name_may_need_quotes),
        TEST(roles_call_what_they_are_granted),
        TEST(roles_read_and_operate),
        TEST(a_tenant_keeps_to_its_lines),
        TEST(nothing_more_is_open_at_the_node),
        TEST(psql_refuses_it_too),
        TEST(steps_come_in_order),
        TEST(a_move_loses_nothing),
        TEST(a_schema_comes_back),
    };
    int failed = cmocka_run_group_tests(tests, up, pg_down);

    return failed + cmocka_run_group_tests(far, far_up, pg_down);
}
