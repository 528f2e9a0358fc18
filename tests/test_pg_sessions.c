/*
 * Two sessions at once, in a given order: one waits for a lock while the other goes on, or finishes
 * what the other has overlooked. Promises 1, 3, 6; laws 7 and 17.
 */
#include "outbox.h"

#define ACK "SELECT answer FROM jobq.outbox_ack(1, 1, 60000000, %lld, %d, %d, '{}', 0, 0, 0," \
            " NULL, 0, '{}', '{}', '{}', %d, false)"
#define RENEW "SELECT jobq.outbox_renew(1, 60000000, ARRAY[%lld], ARRAY[1])"

static PGconn *a, *b;

/* -- one that waits -- */

/* b asks, and comes to a lock that a has. */
static void asks(const char *format, ...)
{
    char generic[1000], waits[200], *text;
    va_list args;

    va_start(args, format);
    vsnprintf(generic, sizeof generic, format, args);
    va_end(args);
    text = for_schema(generic, schema);
    assert_int_equal(PQsendQuery(b, text), 1);
    free(text);
    snprintf(waits, sizeof waits, "SELECT count(*) FROM pg_stat_activity WHERE pid = %d"
                                  " AND wait_event_type = 'Lock'", PQbackendPID(b));
    assert_true(becomes(20, 1, waits));
}

/* The one value, or the SQLSTATE of an error. */
static void expect_answer(PGconn *conn, PGresult *res, const char *wanted)
{
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    char got[100];

    snprintf(got, sizeof got, "%s", state != NULL        ? state
                                    : PQntuples(res) > 0 ? PQgetvalue(res, 0, 0)
                                                         : PQcmdStatus(res));
    PQclear(res);
    while ((res = PQgetResult(conn)) != NULL) PQclear(res);
    assert_string_equal(got, wanted);
}

static void is_answered(const char *wanted)
{
    expect_answer(b, PQgetResult(b), wanted);
}

/* a says something that may be refused. */
static void says(const char *wanted, const char *query)
{
    char *text = for_schema(query, schema);
    PGresult *res = PQexec(a, text);

    free(text);
    expect_answer(a, res, wanted);
}

static void run_a(const char *query)
{
    PQclear(sql(a, "%s", query));
}

/* -- holders -- */

static long long held_partition(int messages)
{
    verb_read_desc d;
    verb_reading r;

    open_box(1);
    put(NULL, 0, messages);
    d = reader(1, 1, 0);
    assert_int_equal(read_by(&d, &r), 'h');
    verb_reading_clear(&r);
    return (long long)d.partition;
}

static void an_acknowledgement_that_waited_for_a_renewal_counts(void **unused)
{
    long long partition = held_partition(1);

    (void)unused;
    run_a("BEGIN");
    PQclear(sql(a, RENEW, partition));
    asks(ACK, partition, 0, 1, 0);
    run_a("COMMIT");
    is_answered("i");
    assert_int_equal(BOX("acked"), 1);
}

static void a_renewal_that_waited_for_an_acknowledgement_counts(void **unused)
{
    long long partition = held_partition(2);

    (void)unused;
    run_a("BEGIN");
    PQclear(sql(a, ACK, partition, 0, 1, 10)); /* and reads on, under its lease */
    asks(RENEW, partition);
    run_a("COMMIT");
    is_answered("{}");
}

/* -- order -- */

/* A transaction that was open when a look took a shorter way, because of an older one: what the
 * same session commits next is numbered after it. */
static void a_sessions_messages_keep_their_order_beside_an_old_writer(void **unused)
{
    PGconn *old = PQconnectdb(server());
    int i;

    (void)unused;
    open_box(1);
    put(NULL, 0, 1);
    PQclear(sql(old, "BEGIN"));
    PQclear(sql(old, "SELECT pg_current_xact_id()"));
    run_a("BEGIN");
    run_a("SELECT jobq.outbox_enqueue('o', '\"first\"', 0)");
    for (i = 0; i < 3; i++) { /* marks are set, and no longer settle */
        nap_us(1100000);
        put(NULL, 0, 1);
        assert_int_equal(drain(0), i == 0 ? 2 : 1);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE swept > settled"), 1);
    put(NULL, 0, 1);
    assert_int_equal(drain(0), 1);
    RUN("UPDATE jobq.partition SET mark_at = now() + interval '1 hour'"); /* not over */
    run_a("COMMIT");
    run_a("SELECT jobq.outbox_enqueue('o', '\"second\"', 0)");
    assert_text("SELECT r.payloads::text FROM jobq.partition p, "
                "jobq.outbox_read(1, 9, 60000000, p.id, 10) r",
                "{\"\\\"first\\\"\",\"\\\"second\\\"\"}");
    PQfinish(old);
}

static void each_partition_gets_its_marks(void **unused)
{
    int i;

    (void)unused;
    open_box(2);
    for (i = 0; i < 20 && number("SELECT count(*) FROM jobq.partition WHERE settled > 0") < 2;
         i++) {
        put(NULL, 0, 5);
        put(NULL, 1, 1);
        assert_int_equal(drain(0) + drain(1), 6);
        nap_us(20000); /* somebody else's transaction may keep a mark from settling, for a moment */
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE mark > 0 AND settled > 0"),
                     2);
}

/* -- snapshots -- */

static void what_looks_twice_wants_a_new_snapshot_each_time(void **unused)
{
    (void)unused;
    open_box(1);
    run_a("BEGIN ISOLATION LEVEL REPEATABLE READ");
    says("25001", "SELECT jobq.outbox_grow('o', 2)");
    run_a("ROLLBACK");
    run_a("BEGIN ISOLATION LEVEL SERIALIZABLE");
    says("25001", "SELECT jobq.outbox_grow('o', 2)");
    run_a("ROLLBACK");
}

static void a_producer_with_an_old_snapshot_hears_of_the_growth(void **unused)
{
    jobq_pg_error error;

    (void)unused;
    open_box(1);
    run_a("BEGIN ISOLATION LEVEL REPEATABLE READ");
    run_a("SELECT jobq.outbox_enqueue('o', '1', order_key => 'before')");
    run_a("ROLLBACK");
    run_a("BEGIN ISOLATION LEVEL REPEATABLE READ");
    run_a("SELECT FROM jobq.queue");
    assert_int_equal(jobq_pg_outbox_grow(pg, NULL, "o", 4, false, &error), JOBQ_OK);
    says("40001", "SELECT jobq.outbox_enqueue('o', '1', order_key => 'k1')");
    run_a("ROLLBACK");
}

/* -- operators beside an open transaction -- */

static void an_open_producer_holds_up_no_operator(void **unused)
{
    (void)unused;
    open_box(1);
    run_a("BEGIN ISOLATION LEVEL REPEATABLE READ");
    run_a("SELECT jobq.outbox_enqueue('o', '1')");
    RUN("SET lock_timeout = '2s'");
    RUN("SELECT jobq.pause('o')");
    RUN("SELECT jobq.queue_set('o', max_attempts => 7)");
    RUN("SELECT jobq.resume('o')");
    RUN("RESET lock_timeout");
    run_a("COMMIT");
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 1);
}

/* Others would wait for the same transaction, in the queue for the lock. */
static void growth_does_not_wait_for_an_open_producer(void **unused)
{
    jobq_pg_error error;

    (void)unused;
    open_box(1);
    run_a("BEGIN");
    run_a("SELECT jobq.outbox_enqueue('o', '1')");
    RUN("SET statement_timeout = '20s'");
    assert_int_not_equal(jobq_pg_outbox_grow(pg, db, "o", 2, true, &error), JOBQ_OK);
    assert_string_equal(error.sqlstate, "55P03");
    RUN("RESET statement_timeout");
    run_a("COMMIT");
    assert_int_equal(jobq_pg_outbox_grow(pg, db, "o", 2, true, &error), JOBQ_OK);
}

/* -- locks in one order -- */

static void keys_in_any_order_do_not_deadlock(void **unused)
{
    (void)unused;
    open_box(1);
    run_a("BEGIN");
    run_a("SELECT jobq.outbox_enqueue('o', '1', key => 'a')");
    asks("SELECT existed FROM jobq.outbox_enqueue_many('o', NULL, NULL, NULL,"
         " ARRAY['1', '2']::jsonb[], NULL, NULL, ARRAY['b', 'a'], 2, false)");
    run_a("SELECT jobq.outbox_enqueue('o', '1', key => 'b')");
    run_a("COMMIT");
    is_answered("{t,t}");
}

#define NULLS "NULL", "NULL", "NULL"
#define PARK "SELECT jobq.settle('{%s}', '{%s}', '{%s}', '{%s}', '{%s}', '{%s}', '{%s}', '{%s}'," \
             " '{%s}', '{%s}', '{%s}', '{%s}')"

/* Two workers find two kinds without handlers. */
static void kinds_parked_in_any_order_do_not_deadlock(void **unused)
{
    verb_batch batch;
    jobq_pg_job job = plain_job();
    char ids[4][40], both[100];
    int i;

    (void)unused;
    for (i = 0; i < 4; i++) {
        job.kind = i % 2 == 0 ? "k1" : "k2";
        enqueue_with(&job);
    }
    register_worker(101, 60 * SECOND);
    register_worker(102, 60 * SECOND);
    for (i = 0; i < 4; i++) {
        assert_int_equal(claim_by(101 + i / 2, 1 + i % 2, 1, false, &batch), JOBQ_OK);
        snprintf(ids[i], sizeof ids[i], "%lld", (long long)batch.jobs[0].id);
        verb_batch_clear(&batch);
    }
    run_a("BEGIN");
    PQclear(sql(a, PARK, "101", "1", ids[0], "r", "0", "0", "0", "f", "-1", NULLS));
    snprintf(both, sizeof both, "%s,%s", ids[3], ids[2]);
    asks(PARK, "102,102", "2,1", both, "r,r", "0,0", "0,0", "0,0", "f,f", "-1,-1", "NULL,NULL",
         "NULL,NULL", "NULL,NULL");
    PQclear(sql(a, PARK, "101", "2", ids[1], "r", "0", "0", "0", "f", "-1", NULLS));
    run_a("COMMIT");
    is_answered("SELECT 0");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE run_at = 'infinity'"), 4);
}

static void a_worker_that_ends_while_it_is_rescued_does_not_deadlock(void **unused)
{
    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    RUN("SELECT jobq.sleep(101, ARRAY(SELECT id FROM jobq.queue), true)");
    run_a("BEGIN");
    run_a("SELECT FROM jobq.worker WHERE id = 101 FOR UPDATE");
    asks("SELECT jobq.deregister(101)");
    run_a("DELETE FROM jobq.sleeper WHERE worker = 101");
    run_a("COMMIT");
    is_answered("");
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
}

/* The lease counts from the UPDATE, not from when the client sent the heartbeat. */
static void a_heartbeat_that_waited_does_not_shorten_the_lease(void **unused)
{
    (void)unused;
    register_worker(101, 60 * SECOND);
    run_a("BEGIN");
    run_a("SELECT FROM jobq.worker WHERE id = 101 FOR UPDATE");
    asks("SELECT alive FROM jobq.heartbeat(101, 60000000, '{}')");
    run_a("SELECT FROM jobq.heartbeat(101, 60000000, '{}')");
    run_a("UPDATE jobq.worker SET name = expires_at::text"); /* kept, to be compared */
    run_a("COMMIT");
    is_answered("t");
    assert_int_equal(number("SELECT beat FROM jobq.worker"), 2);
    assert_int_equal(number("SELECT (expires_at > name::timestamptz)::int FROM jobq.worker"), 1);
}

/* -- a claim that comes late -- */

#define CLAIM "SELECT id FROM jobq.claim(101, 1, 9, ARRAY(SELECT id FROM jobq.queue), '{0}'," \
              " '{0}', '{-infinity}', '{0}', NULL, false, false, false, true)"

/* Its first statement has found the job; the second one waits. */
static void a_claim_waits(void)
{
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    run_a("BEGIN");
    run_a("LOCK TABLE jobq.job IN SHARE MODE"); /* CREATE INDEX does so */
    asks(CLAIM);
}

static void the_late_claim_takes_nothing(void)
{
    run_a("COMMIT");
    is_answered("JQ002");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim WHERE jobs <> '{}'"), 0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void a_claim_later_than_its_workers_end_takes_nothing(void **unused)
{
    (void)unused;
    a_claim_waits();
    RUN("SELECT FROM jobq.recover(101, 1, 9)");
    RUN("SELECT jobq.deregister(101)");
    assert_int_equal(number("SELECT count(*) FROM jobq.claim WHERE jobs = '{}'"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL"), 0);
    the_late_claim_takes_nothing();
}

static void a_claim_later_than_its_workers_row_takes_nothing(void **unused)
{
    (void)unused;
    a_claim_waits();
    RUN("SELECT jobq.deregister(101)");
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
    the_late_claim_takes_nothing();
}

static void a_claim_later_than_its_workers_death_takes_nothing(void **unused)
{
    (void)unused;
    a_claim_waits();
    RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 s'");
    assert_int_equal(number("SELECT dead::int FROM jobq.rescue(101, 0, 10)"), 1);
    the_late_claim_takes_nothing();
}

/* A claim that is long under way stops neither heartbeats nor rescue, and what it takes comes
 * back. */
static void a_rescuer_does_not_wait_for_a_claim_and_finds_it_later(void **unused)
{
    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    register_worker(102, 60 * SECOND);
    run_a("BEGIN");
    run_a(CLAIM);
    RUN("SET lock_timeout = '1s'");
    assert_int_equal(number("SELECT alive::int FROM jobq.heartbeat(101, 60000000, '{}')"), 1);
    RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 s' WHERE id = 101");
    assert_int_equal(number("SELECT dead::int FROM jobq.rescue(101, 1, 10)"), 1);
    RUN("RESET lock_timeout");
    run_a("COMMIT");
    assert_int_equal(
        number("SELECT (late = '{101}')::int FROM jobq.heartbeat(102, 60000000, '{}')"), 1);
    assert_int_equal(number("SELECT rescued FROM jobq.rescue(101, -1, 10)"), 1);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void a_worker_that_ends_waits_for_its_claim_and_leaves_it_to_be_rescued(void **unused)
{
    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    run_a("BEGIN");
    run_a(CLAIM);
    asks("SELECT jobq.deregister(101)");
    run_a("COMMIT");
    is_answered("");
    assert_int_equal(number("SELECT rescued FROM jobq.rescue(101, -1, 10)"), 1);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* Rows that a DBA deleted, or that a restored part of a copy lacks. */
static void a_running_job_without_a_worker_or_a_claim_row_comes_back(void **unused)
{
    static const char *const gone[] = {"DELETE FROM jobq.worker WHERE id = 101",
                                       "DELETE FROM jobq.claim",
                                       "DELETE FROM jobq.worker WHERE id = 101;"
                                       " DELETE FROM jobq.claim"};
    size_t i;

    (void)unused;
    register_worker(102, 600 * SECOND);
    for (i = 0; i < 3; i++) {
        RUN("DELETE FROM jobq.job; DELETE FROM jobq.claim; DELETE FROM jobq.worker WHERE id = 101");
        enqueue_count(2);
        if (i == 2) RUN("UPDATE jobq.job SET suspect = true"
                        " WHERE id = (SELECT max(id) FROM jobq.job)");
        register_worker(101, 60 * SECOND);
        run_a(CLAIM);
        RUN("%s", gone[i]);
        assert_int_equal(number("SELECT jobq.audit()"), i == 2 ? 1 : 2);
        RUN("SELECT jobq.prune(100)");
        assert_int_equal(number("SELECT jobq.audit()"), 0);
        RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 s' WHERE id = 101");
        assert_int_equal(
            number("SELECT (late = '{101}')::int FROM jobq.heartbeat(102, 600000000, '{}')"), 1);
        RUN("SELECT FROM jobq.rescue(101, 0, 10)");
        assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"),
                         2);
    }
}

/* -- the disk -- */

/* In a session that does not wait for the disk by default. */
static void waits_all_the_same(const char *query)
{
    run_a("BEGIN");
    run_a("SET LOCAL synchronous_commit = off");
    run_a(query);
    says("on", "SHOW synchronous_commit");
    run_a("ROLLBACK");
}

static void what_others_forget_by_is_on_disk(void **unused)
{
    char query[300];

    (void)unused;
    snprintf(query, sizeof query, ACK, held_partition(1), 0, 1, 0);
    waits_all_the_same(query);
    snprintf(query, sizeof query, "SELECT FROM jobq.outbox_read(1, 2, 60000000, %lld, 10)",
             (long long)jobq_pg_partition(box, 0));
    waits_all_the_same(query);
    waits_all_the_same("SELECT FROM jobq.complete('{1}', '{1}', '{1}', '{1}')");
    waits_all_the_same("SELECT FROM jobq.settle('{1}', '{1}', '{1}', '{s}', '{0}', '{1}', '{0}',"
                       " '{f}', '{0}', '{NULL}', '{NULL}', '{NULL}')");
}

/* -- both at once -- */

/* A kind is unique by its queue's id and by its queue's name. The one that comes second by
 * either finds the other's. */
static void both_sessions_may_bring_the_same_new_kind(void **unused)
{
    char query[100], *text;
    int i;

    (void)unused;
    for (i = 0; i < 300; i++) {
        snprintf(query, sizeof query, "SELECT 1 FROM jobq.enqueue('q', 'new%d')", i);
        text = for_schema(query, schema);
        assert_int_equal(PQsendQuery(a, text), 1);
        assert_int_equal(PQsendQuery(b, text), 1);
        free(text);
        expect_answer(a, PQgetResult(a), "1");
        expect_answer(b, PQgetResult(b), "1");
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.kind WHERE name ~ '^new'"), 300);
}

/* -- a copy of another server's tables -- */

static void a_dead_letters_id_is_not_given_twice(void **unused)
{
    long last;

    (void)unused;
    RUN("INSERT INTO jobq.dead_letter (queue_id, partition, seq, created_at, failed_at, attempts)"
        " VALUES (1, 32768, 1, now(), now(), 1)");
    number("SELECT nextval(pg_get_serial_sequence('jobq.dead_letter', 'id'))"); /* cleaned up */
    last = number("SELECT nextval(pg_get_serial_sequence('jobq.dead_letter', 'id'))");
    RUN("SELECT jobq.renew()");
    assert_true(number("SELECT nextval(pg_get_serial_sequence('jobq.dead_letter', 'id'))") > last);
}

static int two(void **state)
{
    a = PQconnectdb(server());
    b = PQconnectdb(server());
    return pg_empty(state);
}

static int none(void **state)
{
    (void)state;
    PQfinish(a);
    PQfinish(b);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, two, none)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_acknowledgement_that_waited_for_a_renewal_counts),
        TEST(a_renewal_that_waited_for_an_acknowledgement_counts),
        TEST(both_sessions_may_bring_the_same_new_kind),
        TEST(a_sessions_messages_keep_their_order_beside_an_old_writer),
        TEST(each_partition_gets_its_marks),
        TEST(what_looks_twice_wants_a_new_snapshot_each_time),
        TEST(a_producer_with_an_old_snapshot_hears_of_the_growth),
        TEST(an_open_producer_holds_up_no_operator),
        TEST(growth_does_not_wait_for_an_open_producer),
        TEST(keys_in_any_order_do_not_deadlock),
        TEST(kinds_parked_in_any_order_do_not_deadlock),
        TEST(a_worker_that_ends_while_it_is_rescued_does_not_deadlock),
        TEST(a_heartbeat_that_waited_does_not_shorten_the_lease),
        TEST(a_claim_later_than_its_workers_end_takes_nothing),
        TEST(a_claim_later_than_its_workers_row_takes_nothing),
        TEST(a_claim_later_than_its_workers_death_takes_nothing),
        TEST(a_rescuer_does_not_wait_for_a_claim_and_finds_it_later),
        TEST(a_worker_that_ends_waits_for_its_claim_and_leaves_it_to_be_rescued),
        TEST(a_running_job_without_a_worker_or_a_claim_row_comes_back),
        TEST(what_others_forget_by_is_on_disk),
        TEST(a_dead_letters_id_is_not_given_twice),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
