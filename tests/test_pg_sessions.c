/*
 * Two sessions at once, in an order given here: one waits for a lock while the other goes on, or
 * ends what the other had overlooked. Promises 1, 3, 6; laws 7 and 17.
 */
#include "outbox.h"

#define ACK "SELECT answer FROM jobq.outbox_ack(1, 1, 60000000, %lld, %d, %d, '{}', 0, 0, 0," \
            " NULL, 0, '{}', '{}', '{}', %d, true)"
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
    text = jobq_pg__for_schema(generic, schema);
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
    char *text = jobq_pg__for_schema(query, schema);
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
    jobq_pg_read_desc d;
    jobq_pg_reading r;

    open_box(1);
    put(NULL, 0, messages);
    number_all();
    d = reader(1, 1, 0);
    assert_int_equal(read_by(&d, &r), 'h');
    jobq_pg_reading_clear(&r);
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
    number_all();
    PQclear(sql(old, "BEGIN"));
    PQclear(sql(old, "SELECT pg_current_xact_id()"));
    run_a("BEGIN");
    run_a("SELECT jobq.outbox_enqueue('o', '\"first\"', 0)");
    for (i = 0; i < 3; i++) { /* marks are set, and settle no more */
        nap_us(1100000);
        put(NULL, 0, 1);
        assert_int_equal(number_all(), 1);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.counter WHERE swept > settled"), 1);
    put(NULL, 0, 1);
    assert_int_equal(number_all(), 1);
    run_a("COMMIT");
    run_a("SELECT jobq.outbox_enqueue('o', '\"second\"', 0)");
    assert_int_equal(number_all(), 2);
    PQfinish(old);
    assert_text("SELECT string_agg(payload::text, ' ' ORDER BY seq) FROM jobq.message"
                " WHERE payload IS NOT NULL", "\"first\" \"second\"");
}

static void each_queue_of_a_look_gets_its_marks(void **unused)
{
    jobq_pg_error error;
    int32_t other;
    int i;

    (void)unused;
    open_box(1);
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "p", 1, &other, &error), JOBQ_OK);
    for (i = 0; i < 20 && number("SELECT count(*) FROM jobq.counter WHERE settled > 0") < 2; i++) {
        put(NULL, 0, 5);
        RUN("SELECT jobq.outbox_enqueue('p', '1', 0)");
        RUN("SELECT FROM jobq.outbox_sequence(0, ARRAY[%d, %d], 1000, false)", (int)box,
            (int)other);
        nap_us(20000); /* somebody else's transaction may keep a mark from settling, for a moment */
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.counter WHERE mark > 0 AND settled > 0"), 2);
}

/* -- snapshots -- */

static void what_looks_twice_wants_a_new_snapshot_each_time(void **unused)
{
    (void)unused;
    open_box(1);
    run_a("BEGIN ISOLATION LEVEL REPEATABLE READ");
    says("25001", "SELECT jobq.outbox_reclaim(10)");
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

/* -- locks in one order -- */

static void keys_in_any_order_do_not_deadlock(void **unused)
{
    (void)unused;
    open_box(1);
    run_a("BEGIN");
    run_a("SELECT jobq.outbox_enqueue('o', '1', key => 'a')");
    asks("SELECT existed FROM jobq.outbox_enqueue_many('o', NULL, NULL, NULL,"
         " ARRAY['1', '2']::jsonb[], NULL, NULL, ARRAY['b', 'a'], 2, 1, false)");
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
    jobq_pg_batch batch;
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
        jobq_pg_batch_clear(&batch);
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
    put(NULL, 0, 1);
    snprintf(query, sizeof query, "SELECT FROM jobq.outbox_sequence(0, ARRAY[%d], 10, false)",
             (int)box);
    waits_all_the_same(query);
    snprintf(query, sizeof query, "SELECT FROM jobq.outbox_read(1, 2, 60000000, %lld, 10)",
             (long long)jobq_pg_partition(box, 0));
    waits_all_the_same(query);
    waits_all_the_same("SELECT FROM jobq.complete('{1}', '{1}', '{1}', '{1}')");
    waits_all_the_same("SELECT FROM jobq.settle('{1}', '{1}', '{1}', '{s}', '{0}', '{1}', '{0}',"
                       " '{f}', '{0}', '{NULL}', '{NULL}', '{NULL}')");
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
        TEST(a_sessions_messages_keep_their_order_beside_an_old_writer),
        TEST(each_queue_of_a_look_gets_its_marks),
        TEST(what_looks_twice_wants_a_new_snapshot_each_time),
        TEST(a_producer_with_an_old_snapshot_hears_of_the_growth),
        TEST(keys_in_any_order_do_not_deadlock),
        TEST(kinds_parked_in_any_order_do_not_deadlock),
        TEST(a_worker_that_ends_while_it_is_rescued_does_not_deadlock),
        TEST(what_others_forget_by_is_on_disk),
        TEST(a_dead_letters_id_is_not_given_twice),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
