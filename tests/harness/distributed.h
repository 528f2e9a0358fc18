/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * distributed.h -- with JOBQ_TEST_CITUS=distributed, the tests of a program run in a schema that
 * Citus distributes (tests/harness/citus.sh). Statements of tests that write tables run at the node
 * that has the shards, because Citus refuses many of them; those of the library run at the
 * coordinator.
 */
#ifndef DISTRIBUTED_INCLUDED
#define DISTRIBUTED_INCLUDED (1)

static inline bool distributed(void)
{
    const char *how = getenv("JOBQ_TEST_CITUS");

    return how != NULL && strcmp(how, "distributed") == 0;
}

/* Whether a statement of db writes tables of the schema, or replaces functions of it, outside a
 * transaction. */
static inline bool goes_to_node(const PGconn *conn, const char *text)
{
    static const char *const verbs[] = {
        "INSERT ", "UPDATE ", "DELETE ", "ALTER TABLE ", "ALTER SEQUENCE ", "ALTER FUNCTION ",
        "CREATE FUNCTION ", "CREATE OR REPLACE FUNCTION ", "DROP FUNCTION "};
    size_t i;

    if (shards_at == NULL || conn != db || PQtransactionStatus(conn) != PQTRANS_IDLE ||
        strstr(text, schema) == NULL) return false;
    for (i = 0; i < COUNT(verbs); i++)
        if (strncmp(text, verbs[i], strlen(verbs[i])) == 0) return true;
    return false;
}

/* The statement with the names of the shards. */
static inline char *for_shards(const char *text)
{
    char *ask = for_schema("SELECT (jobq._citus_texts(ARRAY[$1]))[1]", schema), *there;
    PGresult *res = PQexecParams(db, ask, 1, NULL, &text, NULL, NULL, 0);

    if (PQresultStatus(res) != PGRES_TUPLES_OK) fail_msg("%s", PQerrorMessage(db));
    there = text_copy(PQgetvalue(res, 0, 0));
    PQclear(res);
    free(ask);
    return there;
}

/* Where the functions run. */
static inline PGconn *functions_at(void) { return shards_at != NULL ? shards_at : db; }

/* Connects to the node; the shards may have moved. */
static inline void find_node(void)
{
    char *conninfo = text_of(
        "SELECT 'host=' || min(p.nodename) || ' user=postgres dbname=postgres options=''-c "
        "citus.enable_manual_changes_to_shards=on -c lock_timeout=10s''' "
        "FROM pg_dist_shard s JOIN pg_dist_shard_placement p USING (shardid) "
        "WHERE s.logicalrelid = 'jobq.job'::regclass");

    PQfinish(shards_at);
    shards_at = PQconnectdb(conninfo);
    if (PQstatus(shards_at) != CONNECTION_OK) fail_msg("%s", PQerrorMessage(shards_at));
    PQclear(PQexec(shards_at, "SET client_min_messages = error; "
                         "SET citus.enable_ddl_propagation = off"));
    free(conninfo);
}

/* Ids begin with 1, as elsewhere. */
static inline void distribute(void)
{
    RUN("SELECT jobq.citus_distribute()");
    RUN("SELECT jobq.citus_place()");
    find_node();
    RUN("ALTER SEQUENCE jobq.job_id RESTART; ALTER SEQUENCE jobq.message_id RESTART");
}

static inline void empty_shards(void)
{
    char *statement;

    if (PQtransactionStatus(db) != PQTRANS_IDLE) RUN("ROLLBACK"); /* of a test that failed */
    statement = text_of(
        "SELECT 'TRUNCATE ' || string_agg(format('%%s.%%I', c.relnamespace::regnamespace, "
        "c.relname || '_' || s.shardid), ', ') || ' CASCADE' "
        "FROM pg_dist_shard s JOIN pg_class c ON c.oid = s.logicalrelid "
        "WHERE c.relnamespace = 'jobq'::regnamespace AND NOT c.relispartition "
        "AND c.relname NOT IN ('meta', 'ring', 'original')");
    find_node();
    PQclear(sql(shards_at,
                "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_class c ON c.oid = "
                "l.relation WHERE c.relnamespace = 'jobq'::regnamespace AND l.pid <> "
                "pg_backend_pid()"));
    PQclear(sql(shards_at, "%s", statement));
    free(statement);
}

/* How many sessions wait for a lock at the node. */
static inline int waiting_at_node(void)
{
    PGresult *res = sql(shards_at,
                        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
                        "AND query LIKE '%%jobq.%%' AND pid <> pg_backend_pid()");
    int count = PQntuples(res);

    PQclear(res);
    return count;
}

/* Waits until more sessions wait there than before, or conn has its answer. */
static inline bool answers_or_waits(PGconn *conn, int before)
{
    int64_t until = mono_us() + 20 * SECOND;

    while (mono_us() < until) {
        PQconsumeInput(conn);
        if (!PQisBusy(conn) || waiting_at_node() > before) return true;
        nap_us(5000);
    }
    return false;
}

/* ---- tests that cannot run there ------------------------------------------------------------- */

#define SERVER "looks at locks, settings or statistics of the server that it is connected to"
#define PLAIN "a plain INSERT at the coordinator, which the library does not make there"
#define NAMES "asks libpq for the name of a column, which Citus does not pass on with an error"
#define LOCKED_HERE "locks a table at the coordinator, which locks none at the node"
#define OWN_TRIGGER "has a trigger of its own on a table, which Citus does not take"
#define DETACHED "detaches a part of the history, which Citus does not do"
#define DUMPED "restores a dump at the coordinator: only a whole cluster is restored there"
#define POLLED "the node cannot notify: what is no enqueue is learned by a poll"

static const struct left_out {
    const char *test, *why;
} left_out[] = {
    /* verbs */
    {"both_sessions_may_bring_the_same_new_kind", SERVER},
    /* permits */
    {"an_exchange_waits_for_the_disk", SERVER},
    /* flows */
    {"a_revival_wakes_the_workers_of_each_queue", POLLED},
    /* steps */
    {"a_signal_of_repeatable_read_wakes_the_job", POLLED},
    /* topics */
    {"copies_wake_their_readers", POLLED},
    /* operators: auto_explain */
    {"no_verb_is_compiled", SERVER},
    /* lines */
    {"a_claim_without_lines_reads_none", SERVER},
    /* outbox */
    {"a_plain_insert_has_its_transactions_id_first", PLAIN},
    {"odd_messages_break_and_hide_nothing", PLAIN},
    {"numbers_survive_dump_and_restore", DUMPED},
    {"a_locked_row_is_waited_for", SERVER},
    {"only_a_relaxed_commit_does_not_wait", SERVER},
    {"a_commit_that_gives_numbers_waits", SERVER},
    {"a_read_that_saw_an_older_row_takes_nothing", SERVER},
    /* schedules */
    {"wrong_schedules_are_refused_by_name", NAMES},
    /* wait */
    {"an_end_is_heard_at_once", POLLED},
    /* keys */
    {"two_at_once_do_not_share_a_key", SERVER},
    /* running */
    {"a_call_waits_no_longer_than_it_may", LOCKED_HERE},
    /* stale_writers */
    {"a_claim_later_than_its_workers_end_takes_nothing", LOCKED_HERE},
    {"a_claim_later_than_its_workers_row_takes_nothing", LOCKED_HERE},
    {"a_claim_later_than_its_workers_death_takes_nothing", LOCKED_HERE},
    /* housekeeping */
    {"chores_have_bounds_of_their_own", OWN_TRIGGER},
    {"so_have_those_of_a_hosts_worker", OWN_TRIGGER},
    /* erase */
    {"no_message_is_passed_over", LOCKED_HERE},
    /* export */
    {"a_detached_part_is_waited_for", DETACHED},
    /* metrics */
    {"the_cost_grows_with_the_kinds_only", SERVER},
    /* retention */
    {"a_ring_that_cannot_turn_holds_up_no_other", DETACHED},
};

static inline void is_left_out(void **why)
{
    printf("left out: %s\n", (const char *)*why);
    skip();
}

/* cmocka's, without the tests that cannot run in a distributed schema. */
static inline int run_group(const char *name, const struct CMUnitTest *tests, size_t count,
                            CMFixtureFunction up, CMFixtureFunction down)
{
    struct CMUnitTest *copy = (struct CMUnitTest *)calloc(count, sizeof *copy);
    size_t i, j;
    int failed;

    assert_non_null(copy);
    memcpy(copy, tests, count * sizeof *copy);
    for (i = 0; distributed() && i < count * COUNT(left_out); i++) {
        struct CMUnitTest *test = &copy[i / COUNT(left_out)];

        j = i % COUNT(left_out);
        if (strcmp(test->name, left_out[j].test) != 0) continue;
        test->test_func = is_left_out;
        test->setup_func = test->teardown_func = NULL;
        test->initial_state = (void *)(uintptr_t)left_out[j].why;
    }
    failed = _cmocka_run_group_tests(name, copy, count, up, down);
    free(copy);
    return failed;
}

#undef cmocka_run_group_tests
#undef cmocka_run_group_tests_name
#define cmocka_run_group_tests(tests, up, down) run_group(#tests, tests, COUNT(tests), up, down)
#define cmocka_run_group_tests_name(name, tests, up, down)                                         \
    run_group(name, tests, COUNT(tests), up, down)

#endif
