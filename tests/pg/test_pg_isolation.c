/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Transactions that keep one snapshot, and prepared ones: every function that a role may call and
 * that writes does its work there, or is refused.
 *
 * For each call there is a world of jobs, flows, workers and messages. A transaction above READ
 * COMMITTED takes its snapshot. Then others go on: rings turn and are exported, jobs get children,
 * flows get jobs, an outbox grows, a worker comes and takes jobs. Then the call is made, and
 * committed. Whatever it answered, all jobs must come to their ends, no flow ends before its jobs,
 * no job ends in a part that was exported, and audit is 0.
 */
#include "sessions.h"

/* A job by its key. */
#define ID(key) "(SELECT k.job_id FROM jobq.idempotency k WHERE k.key = '" key "')"
#define FLOW "(SELECT max(f.id) FROM jobq.flow f)"

/* -- the calls -- */

/* Of a function, named in the pattern of roles.sql that it is granted by. again: it can be called
 * again while a transaction of the same session that has called it is prepared. */
typedef struct call {
    const char *names, *text;
    bool again;
} call;

static const call calls[] = {
    {"enqueue", "jobq.enqueue('q', 'k')", true},
    {"enqueue_or_get|enqueue_one", "jobq.enqueue_or_get('q', 'k', key => 'new')", false},
    {"enqueue_many", "jobq._enqueue_many('q', '{k}', NULL, '{1, 2}')", true},
    {"enqueue_known",
     "jobq.enqueue_or_get('q', 'k', key => 'ready', on_known => 'replace')", false},
    {"", "jobq.enqueue_or_get('q', 'k', key => 'run', on_known => 'cancel')", false},
    {"enqueue_linked", "jobq.enqueue('q', 'k', after => ARRAY[" ID("parent") "])", false},
    {"", "jobq.enqueue('q', 'k', flow => " FLOW ")", true},
    {"", "jobq.enqueue('q', 'k', after_flow => " FLOW ")", true},
    {"", "jobq.enqueue('l', 'k', line => 'a')", true},
    {"flow", "jobq.flow('new')", true},
    {"flow_close", "jobq.flow_close(" FLOW ")", false},
    {"batch", "jobq.batch('q', 'k', '{1, 2}', 'k')", true},
    {"", "jobq.batch('q', 'k', NULL, 'k')", true},
    {"signal", "jobq.signal('s' || random())", true},
    {"outbox_enqueue|outbox_enqueue_one", "jobq.outbox_enqueue('o', '1', order_key => 'x')", true},
    {"outbox_enqueue_many",
     "jobq._outbox_enqueue_many('o', NULL, '{1, 2}', NULL, '{1, 2}', NULL, NULL, NULL, 2, true)",
     true},
    {"outbox_queue", "jobq._outbox_queue('o', 0, 0, 1)", true},
    {"bulk", "jobq._bulk('q', '{k}', 2::smallint)", false},
    {"wake|notify", "jobq._wake((SELECT id FROM jobq.queue WHERE name = 'q'), 1)", true},
    {"cancel", "jobq.cancel(" ID("parent") ")", false},
    {"", "jobq.cancel(" ID("run") ")", false},
    {"", "jobq.cancel('q')", false},
    {"revive", "jobq.revive(" ID("failed") ")", false},
    {"", "jobq.revive('q')", false},
    {"delete", "jobq.delete(" ID("parent") ")", false},
    {"", "jobq.delete('q', 'ready')", false},
    {"", "jobq.delete('q', 'failed')", false},
    {"reschedule", "jobq.reschedule(" ID("ready") ")", false},
    {"", "jobq.reschedule('q', now() + interval '1 second')", false},
    {"prioritize", "jobq.prioritize(" ID("ready") ", 5)", false},
    {"", "jobq.prioritize('q', -5)", false},
    {"move", "jobq.move(" ID("ready") ", 'l')", false},
    {"", "jobq.move('q', 'l')", false},
    {"pause|resume", "jobq.pause('q'), jobq.resume('q')", false},
    {"queue_set", "jobq.queue_set('q', max_attempts => 7, retention => 'short')", false},
    {"", "jobq.queue_set('q', running_max => 1)", false},
    {"", "jobq.queue_set('l', line_running_max => 1)", false},
    {"retention_set", "jobq.retention_set('medium', '2 days')", false},
    {"line_set", "jobq.line_set('l', 'a', running_max => 1)", false},
    {"hold", "jobq.hold('l', 'a', now())", false},
    {"outbox_register", "jobq.outbox_register('new', 1)", false},
    {"outbox_grow", "jobq.outbox_grow('o', 8, true)", false},
    {"erase", "jobq.erase('{\"person\": 1}', dry => false, live => 'cancel')", false},
    {"export_set", "jobq.export_set('medium', '1 day')", false},
    {"export_next", "jobq.export_next()", false},
    {"export_done", "jobq.export_done('medium', 8)", false},
    {"schedule", "jobq.schedule('s', 'q', 'k', every => '1 day')", false},
    {"schedule_pause|schedule_resume", "jobq.schedule_pause('old'), jobq.schedule_resume('old')",
     false},
    {"schedule_run", "jobq.schedule_run('old')", false},
    {"schedule_drop", "jobq.schedule_drop('old')", false},
    {"subscribe", "jobq.subscribe('new', 'o', 'q', 'k')", false},
    {"unsubscribe", "jobq.unsubscribe('old', drop => true)", false},
    {"subscriptions_set", "jobq._subscriptions_set('me', 1, '{n}', '{o}', '{q}', '{k}', '{NULL}')",
     false},
    {"tick", "jobq._tick(ARRAY(SELECT id FROM jobq.queue), 1)", false},
    {"flow_cancel", "jobq.flow_cancel(" FLOW ")", false},
    {"flow_revive", "jobq.flow_revive(" FLOW ")", false},
    {"dead_letter_replay", "jobq.dead_letter_replay(8, 1000000)", false},
    {"dead_letter_resolve",
     "jobq.dead_letter_resolve(7, ARRAY(SELECT id FROM jobq.dead_letter))", false},
    {"dead_letter_reject",
     "jobq.dead_letter_reject(7, ARRAY(SELECT id FROM jobq.dead_letter), 'no')", false},
    {"dead_letter_discard", "jobq.dead_letter_discard()", false},
    {"dead_letter_cleanup", "jobq.dead_letter_cleanup()", false},
    {"prune", "jobq.prune(100)", false},
    {"turn", "jobq.turn()", false},
    {"work_join|register", "jobq.work_join('{\"q\": [\"k\"]}')", true},
    {"work_take|claim|sleep", "jobq.work_take(1, 9, 2)", false},
    {"work_done|settle_here", "jobq.work_done(1, 1, " ID("run") ")", false},
    {"complete", "jobq._complete('{1}', '{1}', '{1}', ARRAY[" ID("run") "])", false},
    {"complete_with",
     "jobq._complete_with('{1}', '{1}', ARRAY[" ID("run") "], '{1}', '{NULL}')", false},
    {"settle_all_here",
     "jobq._settle_all_here('{1}', '{1}', ARRAY[" ID("run") "], '{s}', '{0}', '{1}', '{0}', '{f}',"
     " '{0}', NULL, NULL, NULL)", false},
    {"work_fail", "jobq.work_fail(1, 1, " ID("run") ", 'no', 'discard')", false},
    {"step_done_here", "jobq._step_done_here(1, 1, " ID("run") ", 's', '1')", false},
    {"signal_of_claim", "jobq._signal_of_claim(1, 1, " ID("run") ", 's', 1000000)", false},
    {"progress_of_claim", "jobq._progress_of_claim(1, 1, " ID("run") ", 500, 'half')", false},
    {"work_heartbeat|heartbeat|unpark", "jobq.work_heartbeat(1, 1000000)", false},
    {"work_recover|recover", "jobq.work_recover(1, 1)", false},
    {"work_rescue|rescue|rescue_jobs", "jobq._rescue(1, 0, 10)", false},
    {"work_leave|deregister", "jobq.work_leave(1)", false},
    {"", "jobq.renew()", false},
};

/* What only the library's worker calls, in sessions that it makes READ COMMITTED, and what writes
 * nothing. */
#define NOT_HERE                                                                                   \
    "policies|remains|settle|set_aside|hold_of_claim|wait_here|schedules_set|citus_apart|digest|"  \
    "parent_jobs|outbox_(hash|direct|partitions|look|read|ack|renew)|dead_letter_(list|count)"

/* A function that is granted to somebody has its call above. */
static void every_function_that_writes_is_called(void **unused)
{
    char names[2000] = NOT_HERE, *missing;
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(calls); i++) {
        if (calls[i].names[0] == '\0') continue;
        assert_true(strlen(names) + strlen(calls[i].names) + 2 < sizeof names);
        strcat(strcat(names, "|"), calls[i].names);
    }
    missing = text_of(
        "SELECT coalesce(string_agg(DISTINCT p.proname, ' '), '') FROM pg_proc p "
        "WHERE p.pronamespace = 'jobq'::regnamespace AND p.provolatile = 'v' AND p.proname ~ "
        "('^_?(' || concat_ws('|', jobq._doors('enqueue'), jobq._doors('fast'), "
        "jobq._doors('work'), jobq._doors('operate')) || ')$') AND p.proname !~ '^_?(%s)$'",
        names);
    assert_string_equal(missing, "");
    free(missing);
}

/* -- the world -- */

static void run_all(const char *const *texts, size_t count)
{
    size_t i;

    for (i = 0; i < count; i++) RUN("%s", texts[i]);
}

#define DEAD_LETTER                                                                                \
    "INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at, attempts) " \
    "SELECT queue_id, id, 1, now(), now(), 1 FROM jobq.partition LIMIT 1"

static void world_begins(void)
{
    static const char *const texts[] = {
        "SELECT jobq._register(1, 'w', 600000000, '{q, l}', '{1, 2}', '{k, k}', 12)",
        "SELECT jobq.enqueue('q', 'k', key => 'failed')",
        "SELECT count(*) FROM jobq.work_take(1, 7, 1)",
        "SELECT jobq.work_fail(1, 7, " ID("failed") ", 'no', 'discard')",
        "SELECT jobq.enqueue('q', 'k', key => 'in flow', flow => jobq.flow('f', open => true))",
        "SELECT count(*) FROM jobq.work_take(1, 8, 1)",
        "SELECT jobq.work_done(1, 8, " ID("in flow") ")",
        "SELECT jobq.enqueue('q', 'k', key => 'run')",
        "SELECT count(*) FROM jobq.work_take(1, 1, 1)",
        "SELECT jobq.enqueue('q', 'k', key => 'ready', headers => '{\"person\": 1}')",
        "SELECT jobq.enqueue('q', 'k', key => 'parent')",
        "SELECT jobq.enqueue('q', 'k', after => ARRAY[" ID("parent") ", " ID("run") "])",
        "SELECT jobq.enqueue('q', 'k', after => ARRAY[" ID("failed") "])",
        "SELECT jobq.enqueue('q', 'k', key => 'first', priority => -9)",
        "SELECT jobq.enqueue('l', 'k', line => 'a'), jobq.enqueue('l', 'k', line => 'a')",
        "SELECT jobq.outbox_register('o', 2), jobq.outbox_enqueue('o', '1')",
        "SELECT jobq.schedule('old', 'q', 'k', every => '1 day')",
        "SELECT jobq.subscribe('old', 'o', 'l', 'k')",
        DEAD_LETTER,
        "SELECT count(*) FROM jobq.dead_letter_replay(7, 60000000)",
    };

    assert_int_equal(pg_empty(NULL), 0);
    run_all(texts, COUNT(texts));
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE key = 'run' AND worker = 1"), 1);
}

/* What the snapshot does not see. Every part but the one that is written now is exported. */
static void rings_turn(void)
{
    static const char *const texts[] = {
        "UPDATE jobq.ring SET since = '-infinity'",
        "SELECT jobq.turn()",
        "UPDATE jobq.ring SET exported = turns - 1",
    };

    run_all(texts, COUNT(texts));
}

static void others_go_on(void)
{
    static const char *const texts[] = {
        "SELECT jobq.enqueue('q', 'k', after => ARRAY[" ID("parent") ", " ID("run") "])",
        "SELECT jobq.enqueue('q', 'k', after => ARRAY[" ID("failed") "])",
        "SELECT jobq.enqueue('q', 'k', flow => " FLOW ")",
        "SELECT jobq.outbox_grow('o', 4, true)",
        "SELECT jobq._register(2, 'w', 600000000, '{l}', '{1}', '{k}')",
        "SELECT jobq._register(3, 'w', 600000000, '{q}', '{1}', '{k}')",
        "SELECT count(*) FROM jobq.work_take(2, 1, 2)",
        "SELECT count(*) FROM jobq.work_take(3, 1, 1)",
    };

    run_all(texts, COUNT(texts));
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE worker IN (2, 3)"), 3);
}

static void all_at_once(void)
{
    rings_turn();
    others_go_on();
}

static int faults;

static void blame(const char *text, const char *format, ...)
{
    char fault[200];
    va_list args;

    va_start(args, format);
    vsnprintf(fault, sizeof fault, format, args);
    va_end(args);
    print_message("%s: %s\n", text, fault);
    faults++;
}

/* All that can end does, and nothing is lost. */
static void world_ends(const char *text)
{
    static const char left[] =
        "SELECT count(*) FROM jobq.job j WHERE NOT EXISTS (SELECT FROM jobq.edge e "
        "WHERE e.child = j.id AND e.holds AND e.came IS NOT NULL)";
    long audit = number("SELECT jobq.audit()");
    long exported = number("SELECT count(*) FROM jobq.history h JOIN jobq.ring r "
                           "ON h.slot BETWEEN r.first AND r.first + 7 WHERE h.slot <> r.slot "
                           "AND h.id NOT IN (SELECT a.id FROM archive a)");
    long early = number("SELECT count(*) FROM jobq.flow f JOIN jobq.job j ON j.flow_id = f.id "
                        "WHERE f.ended_at IS NOT NULL");

    if (audit + exported + early > 0)
        blame(text, "audit %ld, jobs in exported parts %ld, jobs of ended flows %ld", audit,
              exported, early);
    RUN("SELECT jobq.queue_set('q', running_max => 0), jobq.resume('q')");
    RUN("SELECT jobq.work_leave(w.id) FROM jobq.worker w");
    RUN("SELECT jobq.revive('q'), jobq.flow_close(f.id) FROM jobq.flow f WHERE f.ended_at IS NULL");
    RUN("DO $$ DECLARE v_worker bigint; BEGIN "
        "SELECT w.worker INTO v_worker FROM jobq.work_join('{\"q\": [\"k\"], \"l\": [\"k\"]}') w; "
        "FOR i IN 1 .. 20 LOOP "
        "  PERFORM jobq._promote(1000); COMMIT; "
        "  UPDATE jobq.job SET run_at = 'epoch' WHERE state = 'r'; COMMIT; "
        "  PERFORM jobq.work_done(v_worker, i, t.id) FROM jobq.work_take(v_worker, i, 100) t; "
        "  COMMIT; EXIT WHEN NOT EXISTS (SELECT FROM jobq.job); "
        "END LOOP; PERFORM jobq.work_leave(v_worker); END $$");
    if (number(left) > 0 || number("SELECT jobq.audit()") > 0)
        blame(text, "%ld jobs do not end, audit %ld", number(left), number("SELECT jobq.audit()"));
    RUN("DROP TABLE archive");
}

/* -- what the call answers -- */

/* An SQLSTATE; "": it went well. */
static const char *state_of(const char *format, const char *text)
{
    static char state[6];
    char generic[1000], *full;
    PGresult *res;

    snprintf(generic, sizeof generic, format, text);
    full = for_schema(generic, schema);
    res = PQexec(a, full);
    snprintf(state, sizeof state, "%s", PQresultStatus(res) == PGRES_TUPLES_OK ||
                                                PQresultStatus(res) == PGRES_COMMAND_OK
                                            ? "" : PQresultErrorField(res, PG_DIAG_SQLSTATE));
    PQclear(res);
    free(full);
    return state;
}

static void under(const char *level, void (*meanwhile)(void))
{
    size_t i;

    faults = 0;
    for (i = 0; i < COUNT(calls); i++) {
        char state[6];
        world_begins();
        RUN("CREATE TEMP TABLE archive AS SELECT h.id FROM jobq.history h");
        PQclear(sql(a, "BEGIN ISOLATION LEVEL %s; SELECT count(*) FROM jobq.meta", level));
        meanwhile();
        snprintf(state, sizeof state, "%s", state_of("SELECT %s", calls[i].text));
        if (state[0] == '\0') snprintf(state, sizeof state, "%s", state_of("%s", "COMMIT"));
        PQclear(PQexec(a, "ROLLBACK"));
        if (state[0] != '\0' && strcmp(state, "40001") != 0 && strcmp(state, "25001") != 0)
            blame(calls[i].text, "%s", state);
        world_ends(calls[i].text);
    }
    assert_int_equal(faults, 0);
}

static void in_repeatable_read_each_call_works_or_is_refused(void **unused)
{
    (void)unused;
    under("REPEATABLE READ", rings_turn);
    under("REPEATABLE READ", others_go_on);
}

static void serializable_each_call_works_or_is_refused(void **unused)
{
    (void)unused;
    under("SERIALIZABLE", all_at_once);
}

/* While notifications are off a transaction can be prepared, whatever it has called. The same
 * session may go on meanwhile: it waits for no row that it has written only for itself. */
static void what_is_prepared_waits_for_its_commit_and_nobody_for_it(void **unused)
{
    size_t i;

    (void)unused;
    faults = 0;
    for (i = 0; i < COUNT(calls); i++) {
        world_begins();
        RUN("CREATE TEMP TABLE archive AS SELECT h.id FROM jobq.history h");
        RUN("SELECT count(*) FROM jobq.work_take(1, 20, 100)"); /* so that it sleeps afterwards */
        RUN("SELECT count(*) FROM jobq.work_take(1, 21, 1)");
        PQclear(sql(a, "BEGIN; SET LOCAL jobq_settings.notify = off"));
        if (strcmp(state_of("SELECT %s", calls[i].text), "") != 0 ||
            strcmp(state_of("%s", "PREPARE TRANSACTION 'isolation'"), "") != 0)
            blame(calls[i].text, "cannot be prepared");
        if (calls[i].again && strcmp(state_of("SELECT %s", calls[i].text), "") != 0)
            blame(calls[i].text, "waits for itself");
        PQclear(PQexec(a, "ROLLBACK"));
        PQclear(PQexec(a, "COMMIT PREPARED 'isolation'"));
        world_ends(calls[i].text);
    }
    assert_int_equal(faults, 0);
}

static int sessions(void **state)
{
    if (two(state) != 0) return 1;
    RUN("DROP TABLE IF EXISTS archive"); /* of a test that failed */
    PQclear(sql(a, "SET statement_timeout = '20s'; SET client_min_messages = error"));
    return 0;
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, sessions, none)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(every_function_that_writes_is_called),
        TEST(in_repeatable_read_each_call_works_or_is_refused),
        TEST(serializable_each_call_works_or_is_refused),
        TEST(what_is_prepared_waits_for_its_commit_and_nobody_for_it),
    };

    return cmocka_run_group_tests_name("isolation", tests, pg_up, pg_down);
}
