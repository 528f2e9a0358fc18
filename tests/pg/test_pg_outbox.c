/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The outbox's store: registering, enqueue, numbering, reading, space, figures. Rows X18, X20,
 * X21, X25 to X27, X29, X31; W-O12, W-O15, W-O22, W-O24 to W-O27, W-O31, W-O36, W-O37, W-O40.
 */
#include "outbox.h"

#define NUMBERED "SELECT numbered FROM jobq.partition WHERE id = %lld"

/* ---- registering ----------------------------------------------------------------------------- */

static void partitions_are_a_power_of_two(void **unused)
{
    static const struct { int partitions; jobq_error answer; } cases[] = {
        {1, JOBQ_OK}, {2, JOBQ_OK}, {4, JOBQ_OK}, {8, JOBQ_OK}, {16, JOBQ_OK}, {32, JOBQ_OK},
        {64, JOBQ_OK}, {1024, JOBQ_OK}, {0, JOBQ_OK}, {3, JOBQ_ERROR_INVALID},
        {-4, JOBQ_ERROR_INVALID}, {32768, JOBQ_ERROR_INVALID}};
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        jobq_pg_error error;
        int32_t id = 0;
        char name[16];
        snprintf(name, sizeof name, "n%d", (int)i);
        assert_int_equal(jobq_pg_outbox_register(pg, NULL, name, cases[i].partitions, &id, &error),
                         cases[i].answer);
        if (cases[i].answer != JOBQ_OK) {
            assert_non_null(strstr(error.message,
                                   "partitions: must be a power of 2, 1 to 16384 (it is "));
            continue;
        }
        assert_int_equal(number("SELECT count(*) FROM jobq.partition p WHERE p.queue_id = %d "
                                "AND p.acked = 0 AND p.numbered = 0 AND p.tried = '{}'",
                                (int)id), cases[i].partitions);
    }
}

static void registering_again_must_agree(void **unused)
{
    jobq_pg_error error;
    int32_t other;

    (void)unused;
    open_box(4);
    open_box(4);
    assert_int_equal(number("SELECT count(*) FROM jobq.partition"), 4);
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "o", 2, NULL, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message,
                           "partition count mismatch for queue 'o': expected 2, found 4"));
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "other", 2, &other, &error), JOBQ_OK);
    assert_int_not_equal(other, box);
    assert_int_equal(number("SELECT count(DISTINCT id) FROM jobq.partition"), 6);
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "-bad", 2, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.message, "invalid queue name: '-bad'");
}

static void a_queues_name_may_have_1024_bytes(void **unused)
{
    char name[1026];
    jobq_pg_error error;
    jobq_pg_message m;

    (void)unused;
    memset(name, 'n', 1025);
    name[1025] = '\0';
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, name, 2, NULL, &error), JOBQ_ERROR_INVALID);
    name[1024] = '\0';
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, name, 2, NULL, &error), JOBQ_OK);
    memset(&m, 0, sizeof m);
    m.queue = name;
    m.payload = jobq_str_from("{}");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.message i JOIN jobq.queue q "
                            "ON i.partition_id / 32768 = q.id WHERE length(q.name) = 1024"), 1);
}

/* W-O36. Growing waits for producers, and needs an empty queue unless told otherwise. */
static void a_queue_grows_when_it_is_empty(void **unused)
{
    jobq_pg_error error;
    verb_reading r;
    verb_read_desc d;

    (void)unused;
    open_box(1);
    put(NULL, 0, 3);
    assert_int_equal(jobq_pg_outbox_grow(pg, NULL, "o", 4, false, &error), JOBQ_ERROR_DATABASE);
    assert_non_null(strstr(error.message, "has 3 messages under way"));
    d = reader(1, 1, 0);
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(ack_all(&d, &r), JOBQ_OK);
    verb_reading_clear(&r);
    assert_int_equal(jobq_pg_outbox_grow(pg, NULL, "o", 4, false, &error), JOBQ_OK);
    put(NULL, 3, 1);
    assert_int_equal(jobq_pg_outbox_grow(pg, NULL, "o", 8, false, &error), JOBQ_ERROR_DATABASE);
    assert_int_equal(jobq_pg_outbox_grow(pg, NULL, "o", 8, true, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_grow(pg, NULL, "o", 2, true, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_outbox_grow(pg, NULL, "none", 2, true, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(number("SELECT count(*) FROM jobq.partition"), 8);
    put(NULL, 7, 1);
    assert_int_equal(drain(3) + drain(7), 2);
}

/* ---- enqueue --------------------------------------------------------------------------------- */

static void fields_arrive(void **unused)
{
    jobq_pg_message m = plain_message(1);
    verb_reading r;
    verb_read_desc d;
    jobq_pg_error error;
    int64_t id = 0;

    (void)unused;
    open_box(4);
    m.payload = (jobq_str){"\0\xff", 2};
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, &id, &error), JOBQ_OK);
    assert_true(id > 0);
    m.payload = jobq_str_from("{\"total\": 5}");
    m.payload_bytes = false;
    m.headers = jobq_str_from("{\"trace\": \"abc\"}");
    m.type = NULL;
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_OK);
    m.payload = (jobq_str){NULL, 0};
    m.headers = m.payload;
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, &m, 1, JOBQ_PG_BY_COPY, &error),
                     JOBQ_OK);
    d = reader(1, 1, 1);
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.count, 3);
    assert_true(r.messages[0].payload_bytes);
    assert_memory_equal(r.messages[0].payload.ptr, "\0\xff", 2);
    assert_true(jobq_str_equal(r.messages[0].type, jobq_str_from("text/plain")));
    assert_null(r.messages[0].headers.ptr);
    assert_false(r.messages[1].payload_bytes);
    assert_true(jobq_str_equal(r.messages[1].payload, jobq_str_from("{\"total\": 5}")));
    assert_true(jobq_str_equal(r.messages[1].headers, jobq_str_from("{\"trace\": \"abc\"}")));
    assert_null(r.messages[1].type.ptr);
    assert_null(r.messages[2].payload.ptr);
    assert_int_equal(r.messages[2].seq, 3);
    assert_int_equal(r.messages[2].attempts, 0);
    assert_true(r.messages[0].created_at_us > (int64_t)1600000000 * SECOND);
    verb_reading_clear(&r);
}

static void an_exact_message_is_kept_as_it_was_written(void **unused)
{
    static const char odd[] = "{\"b\":1, \"a\": 1, \"a\": 2}";
    jobq_pg_message m[2];
    verb_reading r;
    verb_read_desc d;
    jobq_pg_error error;
    int i;

    (void)unused;
    open_box(4);
    d = reader(1, 1, 1);
    m[0] = m[1] = plain_message(1);
    m[0].payload = m[1].payload = jobq_str_from(odd);
    m[0].payload_bytes = m[1].payload_bytes = false;
    m[0].payload_exact = m[1].payload_exact = true;
    m[1].headers = jobq_str_from("{\"trace\": \"abc\"}");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m[0], NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, m, 2, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, m, 2, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.count, 5);
    for (i = 0; i < 5; i++) {
        assert_true(r.messages[i].payload_bytes);
        assert_true(jobq_str_equal(r.messages[i].payload, jobq_str_from(odd)));
        assert_non_null(strstr(r.messages[i].headers.ptr, "\"application/json\""));
    }
    verb_reading_clear(&r);
    m[1].payload = jobq_str_from("{\"b\":");
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, m, 2, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.message,
                        "invalid payload: not JSON at byte 5: value expected, in messages[1]");
}

/* X26, first half. A refusal leaves the transaction as it was. */
static void a_message_lives_and_dies_with_the_callers_transaction(void **unused)
{
    jobq_pg_message m;
    jobq_pg_error error;

    (void)unused;
    open_box(4);
    m = plain_message(0);
    RUN("BEGIN");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, db, &m, NULL, &error), JOBQ_OK);
    RUN("ROLLBACK");
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 0);
    RUN("BEGIN");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, db, &m, NULL, &error), JOBQ_OK);
    m.partition = 5;
    assert_int_equal(jobq_pg_outbox_enqueue(pg, db, &m, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.message, "partition 5 is out of range for queue 'o' (max 4)");
    m.queue = "nobody";
    assert_int_equal(jobq_pg_outbox_enqueue(pg, db, &m, NULL, &error), JOBQ_ERROR_NOT_FOUND);
    assert_non_null(strstr(error.message, "queue 'nobody' is not registered"));
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, db, &m, 1, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_NOT_FOUND);
    m = plain_message(3);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, db, &m, 1, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    RUN("COMMIT");
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 2);
}

/* X27. */
static void limits_hold(void **unused)
{
    char *big = malloc(65537);
    static const struct { const char *type; jobq_error answer;
    } types[] = {{"json", JOBQ_OK},
                 {"application/json; charset=utf-8", JOBQ_OK},
                 {"", JOBQ_ERROR_INVALID},
                 {"a\nb", JOBQ_ERROR_INVALID},
                 {"\x01", JOBQ_ERROR_INVALID},
                 {"\xc3\xa9", JOBQ_ERROR_INVALID}};
    jobq_pg_message two[2];
    jobq_pg_error error;
    size_t i;

    (void)unused;
    open_box(4);
    memset(big, 'x', 65537);
    two[0] = two[1] = plain_message(0);
    two[1].payload = (jobq_str){big, 65537};
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &two[1], NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.message, "payload size 65537 exceeds maximum 65536");
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, two, 2, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, two, 2, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 0);
    two[1].payload.len = 65536;
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, two, 2, NULL, &error), JOBQ_OK);
    two[1].payload.len = 0;
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &two[1], NULL, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 3);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, two, 0, NULL, &error), JOBQ_OK);
    RUN("UPDATE jobq.queue SET message_max = 3 WHERE name = 'o'");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &two[0], NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.message, "payload size 5 exceeds maximum 3");
    RUN("UPDATE jobq.queue SET message_max = 65536 WHERE name = 'o'");
    for (i = 0; i < sizeof types / sizeof types[0]; i++) {
        two[0].type = types[i].type;
        assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, two, NULL, &error), types[i].answer);
    }
    two[0] = two[1] = plain_message(0);
    two[1].partition = 4;
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, two, 2, NULL, &error),
                     JOBQ_ERROR_INVALID);
    two[0].payload = jobq_str_from("{");
    two[0].payload_bytes = false;
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, two, NULL, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 5);
    free(big);
}

/* Keys choose the same partition in C and SQL, by each way of writing; W-O31: payloads go where
 * their key says. */
static void order_keys_choose_the_partition(void **unused)
{
    jobq_pg_message m[150];
    char keys[150][24];
    jobq_pg_error error;
    int64_t ids[150];
    int i;

    (void)unused;
    open_box(16);
    for (i = 0; i < 150; i++) {
        snprintf(keys[i], sizeof keys[i], "customer-%d", i);
        m[i] = plain_message(0);
        m[i].order_key = keys[i];
        m[i].payload = jobq_str_from(keys[i]);
    }
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, m, 150, ids, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, m, 150, JOBQ_PG_BY_COPY, &error),
                     JOBQ_OK);
    for (i = 0; i < 150; i++) {
        assert_true(i == 0 || ids[i] > ids[i - 1]);
        assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m[i], NULL, &error), JOBQ_OK);
        assert_int_equal(number("SELECT jobq._outbox_hash('%s') & 15", keys[i]),
                         (long)jobq_partition_of(jobq_str_from(keys[i]), 16));
    }
    RUN("SELECT jobq.outbox_enqueue('o', bytes => convert_to(format('customer-%%s', i), 'UTF8'), "
        "order_key => format('customer-%%s', i)) FROM generate_series(0, 149) i");
    assert_int_equal(number("SELECT count(*) FROM jobq.message i WHERE partition_id & 32767 = "
                            "jobq._outbox_hash(convert_from(bytes, 'UTF8')) & 15"), 600);
    assert_int_equal(number("SELECT count(DISTINCT partition_id) FROM jobq.message"), 16);
}

/* One message a transaction is a plain INSERT. Its transaction has an id before it draws the
 * message's, on which the bounds depend: see outbox_number. */
static void a_plain_insert_has_its_transactions_id_first(void **unused)
{
    jobq_pg_message m = plain_message(1);
    jobq_pg_error error;
    jobq_error codes[2];
    int64_t id = 0;

    (void)unused;
    open_box(4);
    RUN("CREATE FUNCTION jobq.probe() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN IF "
        "pg_current_xact_id_if_assigned() IS NULL THEN RAISE EXCEPTION 'no id yet'; END IF; RETURN "
        "nextval('jobq.message_id'); END $$");
    RUN("ALTER TABLE jobq.message ALTER id SET DEFAULT jobq.probe()");
    RUN("ALTER FUNCTION jobq._outbox_enqueue_one RENAME TO away"); /* it is not called */
    codes[0] = jobq_pg_outbox_enqueue(pg, NULL, &m, &id, &error);
    m.partition = 0;
    m.order_key = "customer-7";
    codes[1] = jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error);
    RUN("ALTER FUNCTION jobq.away RENAME TO _outbox_enqueue_one");
    RUN("ALTER TABLE jobq.message ALTER id SET DEFAULT nextval('jobq.message_id')");
    RUN("DROP FUNCTION jobq.probe");
    assert_int_equal(codes[0], JOBQ_OK);
    assert_int_equal(codes[1], JOBQ_OK);
    assert_true(id > 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.message m JOIN jobq.partition p ON p.id = "
                            "m.partition_id WHERE p.number = 1 OR p.number = jobq._outbox_hash("
                            "'customer-7') & 3"), 2);
}

/* The right to the plain INSERT is asked for each role, and one that is taken back is forgotten. */
static void a_plain_insert_asks_for_each_role(void **unused)
{
    jobq_pg_message m = plain_message(0);
    jobq_pg_error error;
    PGconn *conn = connected();

    (void)unused;
    open_box(1);
    RUN("CREATE ROLE jobq_taken LOGIN");
    RUN("SELECT jobq.grant_enqueue('jobq_taken')");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, conn, &m, NULL, &error), JOBQ_OK);
    PQclear(sql(conn, "SET SESSION AUTHORIZATION jobq_taken"));
    PQclear(sql(conn, "BEGIN"));
    if (jobq_pg_outbox_enqueue(pg, conn, &m, NULL, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    PQclear(sql(conn, "COMMIT"));
    PQfinish(conn);
    RUN("SELECT jobq.grant_enqueue('jobq_taken', fast => true)");
    conn = connected();
    PQclear(sql(conn, "SET SESSION AUTHORIZATION jobq_taken"));
    assert_int_equal(jobq_pg_outbox_enqueue(pg, conn, &m, NULL, &error), JOBQ_OK);
    RUN("SELECT jobq.grant_enqueue('jobq_taken')");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, conn, &m, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_enqueue(pg, conn, &m, NULL, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 5);
    PQfinish(conn);
    RUN("SELECT jobq.revoke('jobq_taken')");
    RUN("DROP ROLE jobq_taken");
}

/* A role that inserts by itself can neither break the view nor hide a message. */
static void odd_messages_break_and_hide_nothing(void **unused)
{
    PGresult *res;

    (void)unused;
    open_box(1);
    RUN("INSERT INTO jobq.message (partition_id, created_at) SELECT id, 'infinity' FROM "
        "jobq.partition");
    assert_int_equal(number("SELECT sum(lag)::int + count(age) FROM jobq.outbox"), 1);
    res = PQexec(db, for_schema("INSERT INTO jobq.message (partition_id, id) SELECT id, -5 FROM "
                                "jobq.partition", schema));
    assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "23514");
    PQclear(res);
}

/* A transaction with an older snapshot than the growth must not choose the partition. */
static void a_plain_insert_hears_of_the_growth(void **unused)
{
    jobq_pg_message m = plain_message(0);
    jobq_pg_error error;
    PGconn *own = NULL;
    jobq_error code;

    (void)unused;
    open_box(1);
    m.order_key = "customer-7";
    assert_int_equal(jobq_pg_acquire(pg, &own, &error), JOBQ_OK);
    PQclear(sql(own, "BEGIN ISOLATION LEVEL REPEATABLE READ"));
    PQclear(sql(own, "SELECT count(*) FROM jobq.meta"));
    RUN("SELECT jobq.outbox_grow('o', 8)");
    code = jobq_pg_outbox_enqueue(pg, own, &m, NULL, &error);
    PQclear(PQexec(own, "ROLLBACK"));
    assert_int_not_equal(code, JOBQ_OK);
    assert_string_equal(error.sqlstate, "40001");
    PQclear(sql(own, "BEGIN"));
    assert_int_equal(jobq_pg_outbox_enqueue(pg, own, &m, NULL, &error), JOBQ_OK);
    PQclear(sql(own, "COMMIT"));
    jobq_pg_release(pg, own);
    assert_int_equal(number("SELECT partition_id & 32767 FROM jobq.message"),
                     (long)jobq_partition_of(jobq_str_from("customer-7"), 8));
}

/* The functions measure messages themselves: JSON as jsonb prints it, headers too. */
static void sizes_are_measured(void **unused)
{
    (void)unused;
    open_box(1);
    RUN("UPDATE jobq.queue SET message_max = 10");
    assert_text("SELECT refused FROM jobq._outbox_enqueue_one('o', 0, NULL, NULL, NULL, "
                "E'\\\\x0102030405060708090a0b', NULL, NULL, true)",
                "payload size 11 exceeds maximum 10");
    assert_text("SELECT concat(refused, ' ', code) FROM jobq._outbox_enqueue_one('o', 0, NULL, "
                "NULL, '[1,2]', NULL, '[1,2]', NULL, true)",
                "payload size 12 exceeds maximum 10 22023");
    assert_text("SELECT refused FROM jobq._outbox_enqueue_many('o', NULL, NULL, NULL, NULL, "
                "ARRAY[E'\\\\x01', repeat('x', 11)::bytea], NULL, NULL, 2, true)",
                "payload size 11 exceeds maximum 10");
    assert_int_equal(WAITING, 0);
    assert_text("SELECT code FROM jobq._outbox_enqueue_one('none', 0, NULL, NULL, '1', NULL, NULL, "
                "NULL, true)", "JQ003");
}

/* W-O37. */
static void a_key_finds_the_first_message(void **unused)
{
    jobq_pg_message m[3];
    jobq_pg_error error;
    int64_t first = 0, again = 0, ids[3];

    (void)unused;
    open_box(2);
    m[0] = m[1] = m[2] = plain_message(0);
    m[0].key = "order-7";
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, m, &first, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, m, &again, &error), JOBQ_ERROR_EXISTS);
    assert_int_equal(first, again);
    assert_string_equal(error.message, "Already exists: message with key=order-7");
    assert_string_equal(error.entity, "message");
    assert_string_equal(error.field, "key");
    assert_string_equal(error.value, "order-7");
    m[2].key = "order-8";
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, m, 3, ids, &error), JOBQ_OK);
    assert_int_equal(ids[0], first);
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 3);
    RUN("UPDATE jobq.idempotency SET ended_at = now() - interval '25 hours'");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, m, &again, &error), JOBQ_OK);
    assert_int_not_equal(first, again);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, m, 3, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_INVALID);
}

static void refusals_from_sql_are_errors(void **unused)
{
    static const struct { const char *query, *wanted; } cases[] = {
        {"SELECT jobq.outbox_enqueue('o', '1', 4)",
         "partition 4 is out of range for queue 'o' (max 4)"},
        {"SELECT jobq.outbox_enqueue('o', '1', -1)",
         "partition -1 is out of range for queue 'o' (max 4)"},
        {"SELECT jobq.outbox_enqueue('p', '1')", "queue 'p' is not registered"},
        {"SELECT jobq.outbox_enqueue('o', '1', type => '')", "invalid payload type: ''"},
        {"SELECT jobq.outbox_enqueue('o', bytes => convert_to(repeat('x', 65537), 'UTF8'))",
         "payload size 65537 exceeds maximum 65536"}};
    size_t i;

    (void)unused;
    open_box(4);
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = for_schema(cases[i].query, schema);
        PGresult *res = PQexec(db, text);
        assert_string_equal(PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY), cases[i].wanted);
        PQclear(res);
        free(text);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 0);
}

/* ---- numbering: X25 -------------------------------------------------------------------------- */

static void numbers_are_contiguous_per_partition(void **unused)
{
    verb_read_desc d;
    verb_reading r;
    int i;

    (void)unused;
    open_box(4);
    put(NULL, 0, 3);
    put(NULL, 2, 2);
    RUN("BEGIN");
    put(db, 0, 5);
    RUN("ROLLBACK");
    assert_int_equal(drain(0), 3);
    assert_int_equal(drain(0), 0);
    put(NULL, 0, 4);
    d = reader(1, 1, 0);
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.count, 4);
    assert_int_equal(number(NUMBERED, (long long)d.partition), 7);
    for (i = 0; i < 4; i++) assert_int_equal(r.messages[i].seq, 4 + i);
    verb_reading_clear(&r);
    assert_text("SELECT string_agg(numbered::text, ' ' ORDER BY id) FROM jobq.partition",
                "7 0 0 0");
    assert_int_equal(drain(2), 2);
    assert_int_equal(WAITING, 4);
}

/* Numbers are given 1000 ahead and handed out from the row: the same ones for each reader, and an
 * acknowledgement among them leaves the list where it is. */
static void numbers_are_given_ahead(void **unused)
{
    verb_read_desc d;
    verb_reading r;
    verb_ack_desc ack;
    jobq_cursor after;
    jobq_pg_error error;
    PGconn *own = connected();
    int64_t toasted, acked = 0;
    int round;

    (void)unused;
    open_box(1);
    put(NULL, 0, 1500);
    d = reader(1, 1, 0);
    d.most = 100;
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.count, 100);
    assert_int_equal(number(NUMBERED, (long long)d.partition), 1000);
    PQclear(sql(own, "BEGIN"));
    for (round = 0; round < 9; round++) {
        memset(&ack, 0, sizeof ack);
        memset(&after, 0, sizeof after);
        ack.worker = ack.claim = 1;
        ack.partition = d.partition;
        ack.before = acked;
        after.acked = acked += 100;
        ack.after = &after;
        ack.most = 100;
        verb_reading_clear(&r);
        if (verb_ack(pg, own, &ack, &r, &error) != JOBQ_OK) fail_msg("%s", error.message);
        assert_int_equal(r.count, 100);
        assert_int_equal(r.messages[0].seq, acked + 1);
        assert_int_equal(number(NUMBERED, (long long)d.partition), 1000);
    }
    toasted = 0;
    {
        PGresult *res = sql(own, "SELECT n_tup_ins + n_tup_del FROM pg_stat_xact_all_tables WHERE "
                            "relid = (SELECT reltoastrelid FROM pg_class WHERE oid = "
                            "'jobq.partition'::regclass)");
        toasted = atol(PQgetvalue(res, 0, 0));
        PQclear(res);
    }
    PQclear(sql(own, "COMMIT"));
    PQfinish(own);
    assert_int_equal(toasted, 0);
    verb_reading_clear(&r);
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 600);
    d.again = true;
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.messages[0].seq, 901);
    assert_int_equal(ack_all(&d, &r), JOBQ_OK);
    verb_reading_clear(&r);
    assert_int_equal(drain(0), 500);
    assert_int_equal(BOX("acked"), 1500);
}

/* A transaction that began first and commits last: its ids are lower than all that was numbered
 * meanwhile. The bound must not pass it, also while another writer stays open. */
static void a_late_commit_is_numbered_late_and_never_skipped(void **unused)
{
    PGconn *late = connected(), *later = connected();
    long counts[7];
    int round;

    (void)unused;
    open_box(1);
    PQclear(sql(late, "BEGIN"));
    put(late, 0, 1);
    PQclear(sql(later, "BEGIN"));
    put(later, 0, 1);
    for (round = 0; round < 5; round++) {
        put(NULL, 0, 20);
        counts[round] = drain(0);
        if (round == 2) { /* so long that looks begin behind it */
            RUN("UPDATE jobq.partition SET mark_at = now() - interval '2 seconds'");
        }
    }
    PQclear(sql(late, "COMMIT"));
    RUN("UPDATE jobq.partition SET mark_at = now() - interval '2 seconds'");
    counts[5] = drain(0);
    put(NULL, 0, 20);
    counts[6] = drain(0);
    PQclear(sql(later, "COMMIT"));
    for (round = 0; round < 7; round++) assert_int_equal(counts[round], round == 5 ? 1 : 20);
    for (round = 0; round < 1000 && BOX("acked") < 122; round++) {
        drain(0);
        nap_us(5000);
    }
    put(NULL, 0, 5);
    assert_int_equal(drain(0), 5);
    assert_int_equal(BOX("acked"), 127);
    assert_int_equal(WAITING, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE settled > 0"), 1);
    PQfinish(late);
    PQfinish(later);
}

/* Without a long writer no short transaction waits for the next second. */
static void a_short_transaction_is_numbered_at_once(void **unused)
{
    PGconn *slow = connected();
    int round;

    (void)unused;
    open_box(1);
    for (round = 0; round < 20; round++) {
        PQclear(sql(slow, "BEGIN"));
        put(slow, 0, 1);
        put(NULL, 0, 1);
        assert_int_equal(drain(0), 1);
        PQclear(sql(slow, "COMMIT"));
        assert_int_equal(drain(0), 1);
    }
    PQfinish(slow);
}

static bool writes(const char *query)
{
    bool written;

    RUN("BEGIN");
    PQclear(sql(db, "%s", query));
    written = number("SELECT (pg_current_xact_id_if_assigned() IS NOT NULL)::int") != 0;
    RUN("COMMIT");
    return written;
}

#define LOOK(sweep) "SELECT count(*) FROM jobq._outbox_look(ARRAY(SELECT id FROM jobq.queue), 0, " \
    "1000, " #sweep ")"

/* Dead rows stay in the index while someone holds a snapshot. A partition that fell idle over many
 * of them is listed until a read has settled its bound; then looks and reads write nothing. The
 * bound passes no open writer. */
static void an_idle_look_leaves_dead_rows_behind(void **unused)
{
    PGconn *late = connected();
    long looks, settled;
    int round;

    (void)unused;
    open_box(2);
    PQclear(sql(late, "BEGIN"));
    put(late, 0, 1);
    for (round = 0; round < 6; round++) put(NULL, round % 2, 1000);
    assert_false(writes(LOOK(false)));
    assert_int_equal(drain(0) + drain(1), 6000);
    looks = number(LOOK(false));
    settled = number("SELECT max(settled) FROM jobq.partition");
    PQfinish(late);
    assert_int_equal(looks, 0);
    assert_int_equal(settled, 0);
    for (round = 0; round < 1000 && number("SELECT min(settled) FROM jobq.partition") < 5900;
         round++) {
        drain(0);
        drain(1);
        nap_us(5000);
    }
    assert_true(round < 1000);
    assert_int_equal(number(LOOK(false)), 0);
    assert_false(writes(LOOK(false)));
    assert_false(writes("SELECT jobq._outbox_read(1, 1, 1000, min(id), 10) FROM jobq.partition"));
    put(NULL, 0, 5);
    assert_int_equal(number(LOOK(false)), 1);
    assert_int_equal(drain(0), 5);
}

/* A look lists a limited number of partitions, by their ids, after the one it is told. */
static void a_look_lists_a_page(void **unused)
{
    int i;

    (void)unused;
    open_box(8);
    for (i = 0; i < 8; i++) put(NULL, i, 1);
    drain(5);
    assert_text("SELECT string_agg((partition_id & 32767)::text, ' ') FROM jobq._outbox_look("
                "ARRAY(SELECT id FROM jobq.queue), 0, 3, false)", "0 1 2");
    assert_text("SELECT string_agg((partition_id & 32767)::text, ' ') FROM jobq._outbox_look("
                "ARRAY(SELECT id FROM jobq.queue), (SELECT min(id) + 3 FROM jobq.partition), "
                "9, false)", "4 6 7");
    RUN("SELECT jobq.pause('o')");
    assert_int_equal(number(LOOK(true)), 0);
}

/* A paused queue's messages wait: nothing is listed, read, or read on. */
static void a_paused_queue_delivers_nothing(void **unused)
{
    verb_read_desc d;
    verb_reading r, next;
    verb_ack_desc ack;
    jobq_cursor after;
    jobq_pg_error error;

    (void)unused;
    open_box(1);
    put(NULL, 0, 30);
    d = reader(1, 1, 0);
    assert_int_equal(read_by(&d, &r), 'h');
    RUN("SELECT jobq.pause('o')");
    memset(&ack, 0, sizeof ack);
    memset(&after, 0, sizeof after);
    ack.worker = ack.claim = 1;
    ack.partition = d.partition;
    after.acked = 10;
    ack.after = &after;
    ack.most = 10;
    assert_int_equal(verb_ack(pg, NULL, &ack, &next, &error), JOBQ_OK);
    assert_int_equal(next.answer, 'i');
    verb_reading_clear(&next);
    verb_reading_clear(&r);
    assert_int_equal(number(LOOK(false)), 0);
    assert_int_equal(drain(0), 0);
    assert_int_equal(BOX("lag"), 20);
    RUN("SELECT jobq.resume('o')");
    assert_int_equal(number(LOOK(false)), 1);
    assert_int_equal(drain(0), 20);
}

/* One call may be more than any batch: nothing on the way to the numbers is bounded by 65535. */
static void seventy_thousand_messages_in_one_call_arrive_in_order(void **unused)
{
    enum { COUNT = 70000 };
    jobq_pg_message *m = calloc(COUNT, sizeof *m);
    char (*text)[8] = calloc(COUNT, sizeof *text);
    int64_t *ids = calloc(COUNT, sizeof *ids);
    jobq_pg_error error;
    verb_read_desc d;
    verb_reading r;
    jobq_error code;
    int i, disorder = 0;

    (void)unused;
    open_box(1);
    for (i = 0; i < COUNT; i++) {
        snprintf(text[i], sizeof text[i], "%d", i + 1);
        m[i] = plain_message(0);
        m[i].payload = jobq_str_from(text[i]);
    }
    code = jobq_pg_outbox_enqueue_many(pg, NULL, m, COUNT, ids, &error);
    for (i = 1; i < COUNT; i++) disorder += ids[i] <= ids[i - 1];
    free(ids);
    free(text);
    free(m);
    if (code != JOBQ_OK) fail_msg("%s", error.message);
    assert_int_equal(disorder, 0);
    assert_int_equal(BOX("lag"), 10000);
    assert_int_equal(BOX("(NOT exact)::int"), 1);
    d = reader(1, 1, 0);
    d.most = 1000;
    while (read_by(&d, &r) == 'h') {
        for (i = 0; i < r.count; i++) {
            disorder += strtol(r.messages[i].payload.ptr, NULL, 10) != r.messages[i].seq;
        }
        assert_int_equal(ack_all(&d, &r), JOBQ_OK);
        verb_reading_clear(&r);
    }
    verb_reading_clear(&r);
    assert_int_equal(disorder, 0);
    assert_int_equal(BOX("acked"), COUNT);
    assert_int_equal(WAITING, 0);
}

/* Two readers at once, producers beside them. */
static void two_readers_share_the_work(void **unused)
{
    pid_t children[3];
    int c, i, status;

    (void)unused;
    open_box(4);
    RUN("CREATE TABLE IF NOT EXISTS jobq.effect (partition bigint, seq bigint)");
    for (c = 0; c < 3; c++) {
        children[c] = fork();
        if (children[c] != 0) continue;
        pg = handle();
        if (c == 2) {
            for (i = 0; i < 300; i++) put(NULL, i % 4, 10);
        } else {
            PGconn *own = connected();
            for (i = 0; i < 1200; i++) {
                verb_read_desc d = reader(c + 1, i + 1, (i + c) % 4);
                verb_reading r;
                if (read_by(&d, &r) == 'h') {
                    PQclear(sql(own, "INSERT INTO jobq.effect SELECT %lld, s FROM "
                                "generate_series(%lld, %lld) s", (long long)d.partition,
                                (long long)r.messages[0].seq,
                                (long long)r.messages[r.count - 1].seq));
                    if (ack_all(&d, &r) != JOBQ_OK) _exit(2);
                }
                verb_reading_clear(&r);
            }
        }
        _exit(0);
    }
    for (c = 0; c < 3; c++) {
        assert_int_equal(waitpid(children[c], &status, 0), children[c]);
        assert_int_equal(status, 0);
    }
    for (c = 0; c < 4; c++) drain(c);
    assert_text("SELECT string_agg(acked::text, ' ') FROM jobq.partition", "750 750 750 750");
    assert_int_equal(number("SELECT count(*) - count(DISTINCT (partition, seq)) FROM jobq.effect"),
                     0);
    RUN("DROP TABLE jobq.effect");
}

/* Rows may move between read and acknowledgement: VACUUM FULL, CLUSTER. */
static void messages_may_move_while_they_are_read(void **unused)
{
    verb_read_desc d;
    verb_reading r;
    int round;

    (void)unused;
    open_box(2);
    for (round = 0; round < 3; round++) {
        put(NULL, 1, 3);
        put(NULL, 0, 20);
        d = reader(1, round + 1, 0);
        assert_int_equal(read_by(&d, &r), 'h');
        assert_int_equal(r.count, 10);
        assert_int_equal(drain(1), 3);
        if (round == 1) RUN("CLUSTER jobq.message USING message_pkey");
        else RUN("VACUUM FULL jobq.message");
        put(NULL, 0, 5);
        assert_int_equal(ack_all(&d, &r), JOBQ_OK);
        verb_reading_clear(&r);
        assert_int_equal(WAITING, 15);
        d.claim = 9;
        assert_int_equal(read_by(&d, &r), 'h');
        assert_int_equal(r.messages[0].seq, 25 * round + 11);
        assert_int_equal(ack_all(&d, &r), JOBQ_OK);
        verb_reading_clear(&r);
        assert_int_equal(drain(0), 5);
        assert_int_equal(WAITING, 0);
    }
}

/* A message that commits late has an id among those that are numbered: it is neither delivered nor
 * deleted with them, but gets a number of its own. */
static void a_late_message_is_none_of_those_around_it(void **unused)
{
    PGconn *late = connected();
    verb_read_desc d;
    verb_reading r;

    (void)unused;
    open_box(1);
    put(NULL, 0, 3);
    PQclear(sql(late, "BEGIN"));
    put(late, 0, 2);
    put(NULL, 0, 3);
    d = reader(1, 1, 0);
    d.most = 4;
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(number(NUMBERED, (long long)d.partition), 6);
    PQclear(sql(late, "COMMIT"));
    PQfinish(late);
    verb_reading_clear(&r);
    d.again = true;
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.count, 4);
    assert_int_equal(ack_all(&d, &r), JOBQ_OK);
    verb_reading_clear(&r);
    assert_int_equal(WAITING, 4);
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.count, 2);
    assert_int_equal(ack_all(&d, &r), JOBQ_OK);
    verb_reading_clear(&r);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq._outbox_look(ARRAY(SELECT id FROM "
                               "jobq.queue), 0, 10, false)"));
    assert_int_equal(drain(0), 2);
    assert_int_equal(BOX("acked"), 8);
}

/* W-O40: a locked message is delivered; its acknowledgement waits for the lock. */
static void a_locked_row_is_waited_for(void **unused)
{
    PGconn *other = connected();
    pid_t child;
    int status;

    (void)unused;
    open_box(1);
    put(NULL, 0, 3);
    PQclear(sql(other, "BEGIN"));
    PQclear(sql(other, "SELECT FROM jobq.message ORDER BY id LIMIT 1 FOR UPDATE"));
    child = fork();
    if (child == 0) {
        pg = handle();
        _exit(drain(0) == 3 ? 0 : 1);
    }
    assert_true(becomes(20, 1, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = "
                               "'Lock' AND query LIKE '%outbox_ack%'"));
    PQclear(sql(other, "COMMIT"));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(WAITING, 0);
    PQfinish(other);
}

#define SLICE                                                                                      \
    "SELECT count(*) FROM jobq._outbox_look(ARRAY(SELECT id FROM jobq.queue), 0, 1000, true, "     \
    "%ld, %ld)"

/* Rows that came by another way than the functions (a restore of tables without their sequence) lie
 * behind the bound. */
static void a_sweep_finds_what_lies_below_the_bound(void **unused)
{
    verb_read_desc d;
    verb_reading r;
    long bound;

    (void)unused;
    open_box(1);
    put(NULL, 0, 50);
    drain(0);
    put(NULL, 0, 1);
    drain(0);
    RUN("INSERT INTO jobq.message (partition_id, id) SELECT p.id, n FROM jobq.partition p, "
        "generate_series(1, 3) n");
    assert_int_equal(number(LOOK(false)), 0);
    assert_int_equal(drain(0), 0);
    assert_text("SELECT below::text FROM jobq._outbox_look(ARRAY(SELECT id FROM jobq.queue), 0, "
                "1000, true)", "true");
    bound = number("SELECT greatest(settled, swept) FROM jobq.partition");
    assert_int_equal(number(SLICE, 0L, bound - 3), 0); /* ids down to 4 */
    assert_int_equal(number(SLICE, 0L, bound - 2), 1);
    assert_int_equal(number(SLICE, bound - 1, bound), 1); /* id 1 */
    assert_int_equal(number(SLICE, bound, bound + 9), 0);
    d = reader(1, 1, 0);
    d.most = 1;
    d.sweep = true;
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.messages[0].seq, 52);
    assert_int_equal(ack_all(&d, &r), JOBQ_OK);
    verb_reading_clear(&r);
    assert_int_equal(drain(0), 2);
}

/* Promise 7: numbers go on after a dump and restore, whatever the transaction ids are there. */
static void numbers_survive_dump_and_restore(void **unused)
{
    char command[1024];
    verb_read_desc d;
    verb_reading r;

    (void)unused;
    /* Servers come without pg_dump in places; the system's serves those that are not newer. */
    if (getenv("JOBQ_SERVER_BIN") == NULL) skip();
    if (number("SELECT count(*) FROM pg_namespace WHERE nspname = '%s_own'", schema) > 0)
        skip(); /* hostile.sh has moved half of the functions into that one */
    if (system("PATH=\"$JOBQ_SERVER_BIN:$PATH\"; v=$(pg_dump --version) && v=${v##*) } && "
               "s=$(\"$JOBQ_SERVER_BIN\"/postgres --version) && s=${s##*) } && "
               "[ \"${v%%.*}\" -ge \"${s%%.*}\" ]") != 0) {
        print_message("skipped: no pg_dump as new as the server\n");
        skip();
    }
    open_box(2);
    put(NULL, 0, 1030);
    put(NULL, 1, 2);
    d = reader(1, 1, 0);
    d.most = 30;
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(ack_all(&d, &r), JOBQ_OK);
    verb_reading_clear(&r);
    put(NULL, 0, 7);
    RUN("UPDATE jobq.partition SET mark_xid = '900000000000', mark_at = now()");
    snprintf(command, sizeof command,
             "exec >/dev/null; export PGOPTIONS='-c default_transaction_read_only=off'; "
             "PATH=\"$JOBQ_SERVER_BIN:$PATH\"; f=$(mktemp) && pg_dump -d \"%s\" "
             "-n %s >$f && psql -qX -d \"%s\" -c 'SET client_min_messages = error; DROP SCHEMA %s "
             "CASCADE' && psql -qX -v ON_ERROR_STOP=1 -d \"%s\" -f $f && rm $f",
             server(), schema, server(), schema, server());
    assert_int_equal(system(command), 0);
    jobq_pg_close(pg);
    pg = handle();
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.messages[0].seq, 31);
    verb_reading_clear(&r);
    assert_int_equal(drain(0) + drain(1), 1009);
    put(NULL, 0, 3);
    assert_int_equal(drain(0), 3);
    assert_int_equal(BOX("acked"), 1040);
}

/* ---- reading: X18, X20, X21 ------------------------------------------------------------------ */

static void an_idle_read_writes_nothing(void **unused)
{
    verb_read_desc d;
    verb_reading r;
    char *before, *after;
    int i;

    (void)unused;
    open_box(1);
    before = text_of("SELECT string_agg(ctid::text || xmin::text || p::text, '|') "
                     "FROM jobq.partition p");
    for (i = 0; i < 5; i++) {
        d = reader(1, i + 1, 0);
        assert_int_equal(read_by(&d, &r), 'i');
        verb_reading_clear(&r);
        assert_int_equal(number(LOOK(true)), 0);
    }
    after = text_of("SELECT string_agg(ctid::text || xmin::text || p::text, '|') "
                    "FROM jobq.partition p");
    assert_string_equal(before, after);
    free(before);
    free(after);
}

static void a_missing_message_delivers_nothing(void **unused)
{
    verb_read_desc d;
    verb_reading r;
    jobq_pg_error error;

    (void)unused;
    open_box(1);
    put(NULL, 0, 4);
    d = reader(1, 1, 0);
    d.most = 1;
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(ack_all(&d, &r), JOBQ_OK);
    verb_reading_clear(&r);
    RUN("DELETE FROM jobq.message WHERE id = (SELECT ids[3] FROM jobq.partition)");
    d.most = 10;
    assert_int_equal(verb_read(pg, NULL, &d, &r, &error), JOBQ_ERROR_DATABASE);
    assert_non_null(strstr(error.message, "messages 2 to 4 of partition"));
    assert_non_null(strstr(error.message, "only 2 found"));
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE worker IS NULL AND "
                            "tried = '{}'"), 1);
    RUN("SELECT jobq.renew()");
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.count, 2);
    assert_int_equal(r.messages[1].seq, 3);
    verb_reading_clear(&r);
    RUN("UPDATE jobq.partition SET worker = NULL, claim = NULL, lease_us = NULL, lease_until = "
        "NULL, reading = 0");
    put(NULL, 0, 1);
    assert_int_equal(drain(0), 3);
}

/* A holder is taken over only when its lease is over by the database's clock and the taker has seen
 * this very beat; then it finds the trace of the crash, and gets one message. */
static void a_dead_holder_is_taken_over(void **unused)
{
    verb_read_desc first, second;
    verb_reading a, b, c;

    (void)unused;
    open_box(1);
    put(NULL, 0, 5);
    first = reader(1, 1, 0);
    assert_int_equal(read_by(&first, &a), 'h');
    assert_int_equal(a.count, 5);
    assert_int_equal(BOX("attempts"), 1);
    second = reader(2, 9, 0);
    assert_int_equal(read_by(&second, &b), 'o');
    assert_int_equal(b.worker, 1);
    assert_int_equal(b.wait_us, first.lease_us);
    second.watched_worker = b.worker;
    second.watched_claim = b.claim;
    second.watched_beat = b.beat;
    assert_int_equal(read_by(&second, &c), 'o'); /* its lease runs still */
    verb_reading_clear(&c);
    RUN("UPDATE jobq.partition SET lease_until = now() - interval '1 s'");
    second.watched_beat = b.beat - 1;
    assert_int_equal(read_by(&second, &c), 'o'); /* not watched */
    verb_reading_clear(&c);
    second.watched_beat = b.beat;
    assert_int_equal(read_by(&second, &c), 'h');
    assert_int_equal(c.lost, 5);
    assert_int_equal(c.count, 1);
    assert_int_equal(c.messages[0].attempts, 1);
    assert_int_equal(c.cursor.mode.effective, 1);
    assert_int_equal(ack_all(&first, &a), JOBQ_ERROR_LOST);
    assert_int_equal(BOX("acked"), 0);
    assert_int_equal(ack_all(&second, &c), JOBQ_OK);
    assert_int_equal(ack_all(&second, &c), JOBQ_ERROR_LOST); /* sent twice */
    assert_int_equal(BOX("acked"), 1);
    verb_reading_clear(&a);
    verb_reading_clear(&b);
    verb_reading_clear(&c);
}

/* W-O20: a later claim of the same worker is another holder. */
static void a_claim_of_the_same_worker_is_another_holder(void **unused)
{
    verb_read_desc d;
    verb_reading first, second;

    (void)unused;
    open_box(1);
    put(NULL, 0, 5);
    d = reader(1, 1, 0);
    d.lease_us = 1000;
    assert_int_equal(read_by(&d, &first), 'h');
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.partition WHERE lease_until < now()"));
    d.claim = 2;
    d.watched_worker = first.worker;
    d.watched_claim = first.claim;
    d.watched_beat = first.beat;
    assert_int_equal(read_by(&d, &second), 'h');
    d.claim = 1;
    assert_int_equal(ack_all(&d, &second), JOBQ_ERROR_LOST);
    assert_int_equal(BOX("acked"), 0);
    d.claim = 2;
    assert_int_equal(ack_all(&d, &second), JOBQ_OK);
    verb_reading_clear(&first);
    verb_reading_clear(&second);
}

/* A claim's request that comes late, behind a newer one of the same worker, takes nothing. */
static void a_late_request_of_an_older_claim_takes_nothing(void **unused)
{
    verb_read_desc d;
    verb_reading newer, older;

    (void)unused;
    open_box(1);
    put(NULL, 0, 5);
    d = reader(1, 5, 0);
    assert_int_equal(read_by(&d, &newer), 'h');
    newer.beat = number("SELECT beat FROM jobq.partition");
    d.claim = 4;
    assert_int_equal(read_by(&d, &older), 'b');
    assert_int_equal(older.count, 0);
    assert_int_equal(number("SELECT claim FROM jobq.partition"), 5);
    assert_int_equal(number("SELECT beat FROM jobq.partition"), newer.beat);
    d.claim = 5;
    assert_int_equal(ack_all(&d, &newer), JOBQ_OK);
    verb_reading_clear(&newer);
    verb_reading_clear(&older);
}

/* A read is stopped (by a lock) after it has seen the partition; meanwhile another delivers and
 * acknowledges. What it saw is old: it takes nothing, and delivers nothing a second time. */
static void a_read_that_saw_an_older_row_takes_nothing(void **unused)
{
    PGconn *slow = connected(), *lock = connected();
    PGresult *res;
    char *text;

    (void)unused;
    open_box(1);
    put(NULL, 0, 3);
    PQclear(sql(lock, "BEGIN; LOCK TABLE jobq.message"));
    text = for_schema("SELECT r.answer FROM jobq.partition p, "
                               "jobq._outbox_read(2, 1, 60000000, p.id, 10) r", schema);
    assert_int_equal(PQsendQuery(slow, text), 1);
    free(text);
    assert_true(becomes(20, 1, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = "
                               "'jobq.message'::regclass"));
    RUN("UPDATE jobq.partition SET base = 2, acked = 2, numbered = 2, beat = beat + 1");
    PQclear(sql(lock, "ROLLBACK"));
    res = PQgetResult(slow);
    PQfinish(slow);
    PQfinish(lock);
    assert_string_equal(PQgetvalue(res, 0, 0), "b");
    PQclear(res);
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE worker IS NULL"), 1);
}

/* The token gone, an acknowledgement inside its handler's transaction is an error there: what the
 * handler wrote cannot be committed. */
static void a_lost_acknowledgement_fails_its_transaction(void **unused)
{
    verb_read_desc d;
    verb_reading r;
    verb_ack_desc ack;
    jobq_cursor after;
    jobq_pg_error error;
    PGconn *own = connected();
    jobq_error codes[2];
    PGTransactionStatusType states[2];
    int i;

    (void)unused;
    open_box(1);
    put(NULL, 0, 2);
    RUN("CREATE TABLE IF NOT EXISTS jobq.effect (seq bigint)");
    d = reader(1, 1, 0);
    assert_int_equal(read_by(&d, &r), 'h');
    memset(&ack, 0, sizeof ack);
    memset(&after, 0, sizeof after);
    after.acked = 2;
    ack.worker = 1;
    ack.claim = 7; /* not its own */
    ack.partition = d.partition;
    ack.after = &after;
    ack.in_transaction = true;
    for (i = 0; i < 2; i++) { /* judged later: a failure must leave no lock behind */
        PQclear(sql(own, "BEGIN"));
        PQclear(sql(own, "INSERT INTO jobq.effect VALUES (%d)", i));
        codes[i] = verb_ack(pg, own, &ack, NULL, &error);
        states[i] = PQtransactionStatus(own);
        PQclear(PQexec(own, "COMMIT"));
        ack.claim = 1;
    }
    assert_int_equal(codes[0], JOBQ_ERROR_LOST);
    assert_int_equal(states[0], PQTRANS_INERROR);
    assert_int_equal(codes[1], JOBQ_OK);
    assert_int_equal(number("SELECT sum(seq) FROM jobq.effect"), 1);
    assert_int_equal(BOX("acked"), 2);
    verb_reading_clear(&r);
    RUN("DROP TABLE jobq.effect");
    PQfinish(own);
}

/* A read whose answer was lost is taken back when it is asked again; a delivery that was begun
 * counts. */
static void a_lost_answer_costs_no_attempt(void **unused)
{
    verb_read_desc d;
    verb_reading r;

    (void)unused;
    open_box(1);
    put(NULL, 0, 3);
    d = reader(1, 1, 0);
    assert_int_equal(read_by(&d, &r), 'h');
    verb_reading_clear(&r);
    d.again = true;
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.messages[2].attempts, 0);
    assert_int_equal(r.count, 3);
    assert_int_equal(BOX("attempts"), 1);
    verb_reading_clear(&r);
    d.again = false;
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.lost, 3);
    assert_int_equal(r.messages[0].attempts, 1);
    assert_int_equal(r.count, 1);
    verb_reading_clear(&r);
}

/* A step whose acknowledgement never came has had its handler: the next claim's read counts it. */
static void a_step_that_was_lost_counts_also_for_a_later_claim(void **unused)
{
    verb_read_desc d;
    verb_reading r;
    int64_t claim;

    (void)unused;
    open_box(1);
    put(NULL, 0, 1);
    for (claim = 1; claim <= 4; claim++) {
        d = reader(1, claim, 0);
        assert_int_equal(read_by(&d, &r), 'h');
        assert_int_equal(r.messages[0].attempts, claim - 1);
        verb_reading_clear(&r);
    }
}

/* What would abort the caller's transaction is refused before. */
static void outbox_nonsense_is_refused_unsent(void **unused)
{
    static const jobq_pg_scope bad[] = {{"-", false, 0, NULL, 0},
                                        {NULL, false, 0, "\xff", 0}};
    verb_dead dead = {1, 1, {"\xff", 1}};
    verb_ack_desc ack;
    jobq_cursor after;
    jobq_pg_rows letters;
    verb_read_desc d;
    verb_reading r;
    jobq_pg_error error;
    int64_t count;
    size_t i;

    (void)unused;
    open_box(1);
    RUN("BEGIN");
    for (i = 0; i < COUNT(bad); i++) {
        assert_int_equal(jobq_pg_dead_letter_discard(pg, db, &bad[i], &count, &error),
                         JOBQ_ERROR_INVALID);
        assert_int_equal(jobq_pg_dead_letter_replay(pg, db, 1, SECOND, &bad[i], &letters, &error),
                         JOBQ_ERROR_INVALID);
    }
    assert_int_equal(jobq_pg_dead_letter_end(pg, db, 1, NULL, 0, JOBQ_RESULT_REJECT, NULL, &count,
                                             &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "result");
    assert_int_equal(jobq_pg_dead_letter_end(pg, db, 1, NULL, 0, JOBQ_RESULT_SUCCESS, "why", &count,
                                             &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "why");
    assert_int_equal(jobq_pg_outbox_grow(pg, db, "o", 48, true, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(verb_renew(pg, db, 1, JOBQ_NEVER, NULL, NULL, 0, NULL, &error),
                     JOBQ_ERROR_INVALID);
    d = reader(1, 1, 0);
    d.lease_us = JOBQ_NEVER;
    assert_int_equal(verb_read(pg, db, &d, &r, &error), JOBQ_ERROR_INVALID);
    memset(&ack, 0, sizeof ack);
    memset(&after, 0, sizeof after);
    ack.after = &after;
    ack.dead = &dead;
    ack.dead_count = 1;
    assert_int_equal(verb_ack(pg, db, &ack, NULL, &error), JOBQ_ERROR_INVALID);
    ack.dead_count = 0;
    ack.error = dead.error;
    assert_int_equal(verb_ack(pg, db, &ack, NULL, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(PQtransactionStatus(db), PQTRANS_INTRANS);
    RUN("COMMIT");
}

/* Counts every statement of this connection, those inside functions too; false: the server or the
 * role does not allow it. */
static bool counts_statements(PGconn *conn)
{
    static const char *const steps[] = {"CREATE EXTENSION IF NOT EXISTS pg_stat_statements",
                                        "SELECT pg_stat_statements_reset()",
                                        "SET pg_stat_statements.track = 'all'"};
    bool good = true;
    size_t i;

    for (i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        PGresult *res = PQexec(conn, steps[i]);
        ExecStatusType status = PQresultStatus(res);
        good = good && (status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK);
        PQclear(res);
    }
    return good;
}

static int64_t touched(PGconn *conn, const char *column, const char *table)
{
    PGresult *res = sql(conn, "SELECT %s FROM pg_stat_xact_user_tables WHERE relid = "
                        "'jobq.%s'::regclass", column, table);
    int64_t count = atol(PQgetvalue(res, 0, 0));

    PQclear(res);
    return count;
}

/* Promise: however many messages, one request and one row; their dead letters are one INSERT. */
static void an_acknowledgement_of_100_is_one_statement(void **unused)
{
    verb_dead dead[3] = {{3, 1, {"a", 1}}, {50, 1, {"b", 1}}, {100, 1, {"c", 1}}};
    PGconn *own = connected();
    verb_read_desc d;
    verb_reading r, next;
    verb_ack_desc ack;
    jobq_cursor after;
    jobq_pg_error error;
    jobq_error code;
    int64_t rows[3];

    (void)unused;
    if (!counts_statements(own)) {
        PQfinish(own);
        skip();
    }
    open_box(1);
    put(NULL, 0, 250);
    d = reader(1, 1, 0);
    d.most = 100;
    assert_int_equal(read_by(&d, &r), 'h');
    memset(&ack, 0, sizeof ack);
    memset(&after, 0, sizeof after);
    after.acked = r.cursor.acked + r.count;
    ack.worker = ack.claim = 1;
    ack.partition = d.partition;
    ack.after = &after;
    ack.dead = dead;
    ack.dead_count = 3;
    ack.most = 100;
    PQclear(sql(own, "BEGIN"));
    RUN("SELECT pg_stat_statements_reset()");
    code = verb_ack(pg, own, &ack, &next, &error);
    rows[0] = touched(own, "n_tup_upd", "partition"); /* it ends the portal, which counts the ack */
    rows[1] = touched(own, "n_tup_ins", "dead_letter");
    rows[2] = touched(own, "n_tup_ins + n_tup_upd + n_tup_del", "message");
    PQclear(PQexec(own, "COMMIT"));
    PQfinish(own);
    assert_int_equal(code, JOBQ_OK);
    assert_int_equal(number("SELECT sum(calls) FROM pg_stat_statements WHERE toplevel AND query "
                            "NOT LIKE '%%pg_stat%%' AND query <> 'COMMIT'"), 1);
    assert_int_equal(number("SELECT sum(calls) FROM pg_stat_statements WHERE toplevel AND query "
                            "LIKE '%%._outbox_ack($%%'"), 1);
    assert_int_equal(number("SELECT sum(calls) FROM pg_stat_statements WHERE NOT toplevel AND "
                            "query LIKE 'INSERT INTO %%.dead_letter (%%'"), 1);
    assert_int_equal(rows[0], 1);
    assert_int_equal(rows[1], 3);
    assert_int_equal(rows[2], 100);
    assert_int_equal(next.answer, 'h');
    assert_int_equal(next.count, 100);
    assert_int_equal(next.messages[0].seq, 101);
    assert_text("SELECT string_agg(concat(seq, error), ' ' ORDER BY seq) FROM jobq.dead_letter",
                "3a 50b 100c");
    verb_reading_clear(&r);
    verb_reading_clear(&next);
}

/* Acknowledging reads on under the same lease; when there is nothing, the partition is free. */
static void an_acknowledgement_reads_on(void **unused)
{
    verb_read_desc d;
    verb_reading r, next;
    verb_ack_desc ack;
    jobq_cursor after;
    jobq_pg_error error;
    int64_t seq = 1;
    int i;

    (void)unused;
    open_box(1);
    put(NULL, 0, 25);
    d = reader(1, 1, 0);
    assert_int_equal(read_by(&d, &r), 'h');
    memset(&ack, 0, sizeof ack);
    memset(&after, 0, sizeof after);
    ack.worker = 1;
    ack.claim = 1;
    ack.partition = d.partition;
    ack.after = &after;
    ack.most = 10;
    while (r.answer == 'h') {
        for (i = 0; i < r.count; i++) assert_int_equal(r.messages[i].seq, seq++);
        ack.before = r.cursor.acked;
        after.acked = seq - 1;
        assert_int_equal(verb_ack(pg, NULL, &ack, &next, &error), JOBQ_OK);
        verb_reading_clear(&r);
        r = next;
    }
    assert_int_equal(seq, 26);
    assert_int_equal(r.answer, 'i');
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE worker IS NULL AND "
                            "lease_until IS NULL AND acked = 25 AND tried = '{}'"), 1);
    put(NULL, 0, 25);
    verb_reading_clear(&r);
    assert_int_equal(read_by(&d, &r), 'h');
    ack.before = 25;
    after.acked = 35;
    assert_int_equal(verb_ack(pg, NULL, &ack, &next, &error), JOBQ_OK);
    verb_reading_clear(&next);
    assert_int_equal(verb_ack(pg, NULL, &ack, &next, &error), JOBQ_ERROR_LOST);
    verb_reading_clear(&next);
    assert_int_equal(BOX("attempts"), 1); /* sent again, written once */
    ack.before = 35;
    after.acked = 46; /* more than was read */
    assert_int_equal(verb_ack(pg, NULL, &ack, &next, &error), JOBQ_ERROR_LOST);
    verb_reading_clear(&next);
    verb_reading_clear(&r);
}

/* W-O23. */
/* A relaxed acknowledgement relaxes its own transaction, and nothing after it. */
static void only_a_relaxed_commit_does_not_wait(void **unused)
{
    verb_read_desc d;
    verb_reading r;
    verb_ack_desc ack;
    jobq_cursor after;
    jobq_pg_error error;
    jobq_error code;
    char *waits;
    int relaxed;

    (void)unused;
    open_box(1);
    d = reader(1, 1, 0);
    for (relaxed = 0; relaxed < 2; relaxed++) {
        put(NULL, 0, 1);
        assert_int_equal(read_by(&d, &r), 'h');
        memset(&ack, 0, sizeof ack);
        memset(&after, 0, sizeof after);
        after.acked = r.cursor.acked + 1;
        ack.worker = ack.claim = 1;
        ack.partition = d.partition;
        ack.before = r.cursor.acked;
        ack.after = &after;
        ack.relaxed = relaxed == 1;
        RUN("BEGIN");
        code = verb_ack(pg, db, &ack, NULL, &error);
        waits = text_of("SHOW synchronous_commit");
        RUN("COMMIT");
        assert_int_equal(code, JOBQ_OK);
        assert_string_equal(waits, relaxed ? "off" : "on");
        free(waits);
        assert_text("SHOW synchronous_commit", "on");
        verb_reading_clear(&r);
    }
    assert_int_equal(BOX("acked"), 2);
}

/* A number must not change, so the commit that gives it waits for the disk; one that hands out what
 * the row has already need not. */
static void a_commit_that_gives_numbers_waits(void **unused)
{
    static const struct { int put, most; const char *wanted; } turns[] = {
        {0, 1, "off"}, {0, 1, "off"}, {2, 1, "on"}, {0, 0, "off"}};
    verb_read_desc d;
    verb_reading r, next;
    verb_ack_desc ack;
    jobq_cursor after;
    jobq_pg_error error;
    jobq_error code;
    char *waits;
    int i;

    (void)unused;
    open_box(1);
    put(NULL, 0, 3);
    d = reader(1, 1, 0);
    d.most = 1;
    RUN("BEGIN; SET LOCAL synchronous_commit = off");
    code = verb_read(pg, db, &d, &r, &error);
    waits = text_of("SHOW synchronous_commit");
    RUN("COMMIT");
    assert_int_equal(code, JOBQ_OK);
    assert_string_equal(waits, "on");
    free(waits);
    verb_reading_clear(&r);
    for (i = 0; i < 4; i++) {
        memset(&ack, 0, sizeof ack);
        memset(&after, 0, sizeof after);
        ack.worker = ack.claim = 1;
        ack.partition = d.partition;
        ack.after = &after;
        ack.relaxed = true;
        ack.before = i;
        after.acked = i + 1;
        ack.most = turns[i].most;
        put(NULL, 0, turns[i].put);
        RUN("BEGIN");
        code = verb_ack(pg, db, &ack, &next, &error);
        waits = text_of("SHOW synchronous_commit");
        RUN("COMMIT");
        assert_int_equal(code, JOBQ_OK);
        assert_string_equal(waits, turns[i].wanted);
        free(waits);
        assert_int_equal(next.answer, i < 3 ? 'h' : 'i');
        verb_reading_clear(&next);
    }
}

/* A handler's transaction acknowledges and releases: reading on there would hand messages out
 * before the COMMIT. */
static void a_handlers_transaction_does_not_read_on(void **unused)
{
    verb_read_desc d;
    verb_reading r, next;
    verb_ack_desc ack;
    jobq_cursor after;
    jobq_pg_error error;

    (void)unused;
    open_box(1);
    put(NULL, 0, 20);
    d = reader(1, 1, 0);
    assert_int_equal(read_by(&d, &r), 'h');
    verb_reading_clear(&r);
    memset(&ack, 0, sizeof ack);
    memset(&after, 0, sizeof after);
    ack.worker = ack.claim = 1;
    ack.partition = d.partition;
    ack.after = &after;
    after.acked = 10;
    ack.most = 10;
    ack.in_transaction = true;
    assert_int_equal(verb_ack(pg, NULL, &ack, &next, &error), JOBQ_OK);
    assert_int_equal(next.answer, 'i');
    verb_reading_clear(&next);
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE worker IS NULL"), 1);
    assert_int_equal(drain(0), 10);
}

/* A read stops before the messages have more bytes than were asked for; one is always read. */
static void a_read_has_a_budget_of_bytes(void **unused)
{
    verb_read_desc d;
    verb_reading r;

    (void)unused;
    open_box(1);
    RUN("UPDATE jobq.queue SET message_max = 100000000");
    put(NULL, 0, 3);
    RUN("SELECT jobq.outbox_enqueue('o', to_jsonb(repeat('x', 1000000)), headers => '{}')");
    RUN("SELECT jobq.outbox_enqueue('o', '{}', headers => jsonb_build_object('x',"
        " repeat('x', 1000000)))");
    d = reader(1, 1, 0);
    d.bytes = 12;
    d.again = true;
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.count, 2);
    assert_true(r.cut);
    verb_reading_clear(&r);
    d.bytes = 1000;
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.count, 3);
    assert_true(r.cut);
    assert_int_equal(ack_all(&d, &r), JOBQ_OK);
    verb_reading_clear(&r);
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.count, 1);
    assert_true(r.cut);
    verb_reading_clear(&r);
    d.bytes = 0;
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.count, 2);
    assert_false(r.cut);
    verb_reading_clear(&r);
}

/* A message that no worker can receive is given up without being sent; the next ones follow. */
static void a_message_that_cannot_be_sent_is_set_aside(void **unused)
{
    verb_read_desc d;
    verb_reading r;

    (void)unused;
    open_box(1);
    put(NULL, 0, 3);
    d = reader(1, 1, 0);
    d.aside = true;
    d.acked = 1; /* it is not the next any more */
    assert_int_equal(read_by(&d, &r), 'i');
    verb_reading_clear(&r);
    assert_int_equal(number("SELECT beat FROM jobq.partition"), 0);
    d.acked = 0;
    assert_int_equal(read_by(&d, &r), 'a');
    assert_int_equal(number("SELECT acked FROM jobq.partition"), 1);
    assert_int_equal(r.count, 0);
    verb_reading_clear(&r);
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE worker IS NULL"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter WHERE seq = 1 AND attempts = 0 "
                            "AND error LIKE '%%could not receive%%' AND bytes = 'hello'"), 1);
    assert_int_equal(WAITING, 2);
    d.aside = false;
    assert_int_equal(read_by(&d, &r), 'h');
    assert_int_equal(r.count, 2);
    assert_int_equal(r.messages[0].seq, 2);
    verb_reading_clear(&r);
}

static void renewing_moves_the_lease_and_says_what_is_lost(void **unused)
{
    verb_read_desc d;
    verb_reading r;
    int64_t partitions[3], claims[3] = {1, 1, 7};
    bool lost[3];
    jobq_pg_error error;
    int i;

    (void)unused;
    open_box(4);
    for (i = 0; i < 3; i++) {
        put(NULL, i, 1);
        partitions[i] = partition_id(box, 2 - i);
    }
    for (i = 0; i < 3; i++) {
        d = reader(1, 1, i);
        d.lease_us = 1000;
        assert_int_equal(read_by(&d, &r), 'h');
        verb_reading_clear(&r);
    }
    assert_int_equal(verb_renew(pg, NULL, 1, 60 * SECOND, partitions, claims, 3, lost,
                                          &error), JOBQ_OK);
    assert_false(lost[0]);
    assert_false(lost[1]);
    assert_true(lost[2]);
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE lease_until > now() + "
                            "interval '30 s' AND beat = 2"), 2);
}

/* A look says how long a partition rests, so that nobody asks for it sooner. */
static void a_look_says_how_long_a_partition_rests(void **unused)
{
    verb_read_desc d;
    verb_reading r;
    verb_ack_desc ack;
    jobq_cursor after;
    jobq_pg_error error;

    (void)unused;
    open_box(1);
    put(NULL, 0, 1);
    d = reader(1, 1, 0);
    assert_int_equal(read_by(&d, &r), 'h');
    memset(&ack, 0, sizeof ack);
    memset(&after, 0, sizeof after);
    ack.worker = ack.claim = 1;
    ack.partition = d.partition;
    ack.after = &after;
    ack.delay_us = 60 * SECOND;
    assert_int_equal(verb_ack(pg, NULL, &ack, NULL, &error), JOBQ_OK);
    put(NULL, 0, 1);
    assert_in_range(number("SELECT due_us FROM jobq._outbox_look(ARRAY[%d], 0, 10, false)", box),
                    30 * SECOND, 60 * SECOND);
    verb_reading_clear(&r);
}

/* X20: a row that another is just writing is not waited for. */
static void a_locked_partition_answers_at_once(void **unused)
{
    PGconn *other = connected();
    verb_read_desc d;
    verb_reading r;

    (void)unused;
    open_box(1);
    put(NULL, 0, 1);
    PQclear(sql(other, "BEGIN"));
    PQclear(sql(other, "SELECT FROM jobq.partition FOR UPDATE"));
    d = reader(1, 1, 0);
    assert_int_equal(read_by(&d, &r), 'b');
    verb_reading_clear(&r);
    PQclear(sql(other, "ROLLBACK"));
    assert_int_equal(read_by(&d, &r), 'h');
    verb_reading_clear(&r);
    PQfinish(other);
}

/* ---- space: X29 ------------------------------------------------------------------------------ */

/* What is acknowledged is gone, whatever other partitions do. */
static void a_partition_that_stands_still_keeps_only_its_own(void **unused)
{
    int round;

    (void)unused;
    open_box(2);
    put(NULL, 0, 3);
    for (round = 0; round < 6; round++) {
        put(NULL, 1, 31);
        assert_int_equal(drain(1), 31);
        assert_int_equal(WAITING, 3);
    }
    assert_int_equal(drain(0), 3);
    assert_int_equal(WAITING, 0);
}

/* ---- figures: X31 ---------------------------------------------------------------------------- */

static void the_figures_of_a_partition(void **unused)
{
    jobq_pg_rows s;
    verb_read_desc d;
    verb_reading r;

    (void)unused;
    open_box(4);
    put(NULL, 1, 15);
    RUN("UPDATE jobq.message SET created_at = created_at - interval '1 hour' WHERE id = "
        "(SELECT min(id) FROM jobq.message)");
    d = reader(77, 1, 1);
    assert_int_equal(read_by(&d, &r), 'h');
    verb_reading_clear(&r);
    put(NULL, 1, 5);
    s = rows_of_view(JOBQ_PG_VIEW_OUTBOX);
    assert_int_equal(s.count, 4);
    assert_int_equal(PARTITION(s, 1).partition, 1);
    assert_int_equal(PARTITION(s, 1).queue_id, box);
    assert_int_equal(PARTITION(s, 1).lag, 20);
    assert_true(PARTITION(s, 1).exact);
    assert_int_equal(PARTITION(s, 1).acked, 0);
    assert_int_equal(PARTITION(s, 1).attempts, 1);
    assert_int_equal(PARTITION(s, 1).worker, 77);
    assert_true(PARTITION(s, 1).age_us >= 3600 * SECOND && PARTITION(s, 1).age_us < 3700 * SECOND);
    assert_int_equal(PARTITION(s, 0).lag, 0);
    assert_int_equal(PARTITION(s, 0).age_us, 0);
    assert_int_equal(PARTITION(s, 0).worker, 0);
    jobq_pg_rows_clear(&s);
}

/* What no worker has seen yet waits, too, and ages. */
static void messages_that_nobody_read_have_an_age(void **unused)
{
    jobq_pg_rows s;

    (void)unused;
    open_box(2);
    put(NULL, 0, 2);
    RUN("UPDATE jobq.message SET created_at = created_at - interval '1 minute' WHERE id = "
        "(SELECT min(id) FROM jobq.message)");
    assert_text("SELECT format('%s %s %s', lag, acked, age >= '1 minute') "
                "FROM jobq.outbox WHERE partition = 0", "2 0 t");
    assert_text("SELECT coalesce(age::text, 'none') FROM jobq.outbox WHERE partition = 1", "none");
    s = rows_of_view(JOBQ_PG_VIEW_OUTBOX);
    assert_true(PARTITION(s, 0).age_us >= 60 * SECOND && PARTITION(s, 0).age_us < 600 * SECOND);
    assert_int_equal(PARTITION(s, 1).age_us, 0);
    jobq_pg_rows_clear(&s);
    drain(0);
    assert_text("SELECT format('%s %s %s', lag, acked, age) FROM jobq.outbox WHERE partition = 0",
                "0 2 ");
}

#define TEST(f) cmocka_unit_test_setup(f, pg_empty)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(partitions_are_a_power_of_two),
        TEST(registering_again_must_agree),
        TEST(a_queues_name_may_have_1024_bytes),
        TEST(a_queue_grows_when_it_is_empty),
        TEST(fields_arrive),
        TEST(an_exact_message_is_kept_as_it_was_written),
        TEST(a_message_lives_and_dies_with_the_callers_transaction),
        TEST(limits_hold),
        TEST(order_keys_choose_the_partition),
        TEST(a_plain_insert_has_its_transactions_id_first),
        TEST(a_plain_insert_asks_for_each_role),
        TEST(odd_messages_break_and_hide_nothing),
        TEST(a_plain_insert_hears_of_the_growth),
        TEST(sizes_are_measured),
        TEST(a_key_finds_the_first_message),
        TEST(refusals_from_sql_are_errors),
        TEST(numbers_are_contiguous_per_partition),
        TEST(numbers_are_given_ahead),
        TEST(a_late_commit_is_numbered_late_and_never_skipped),
        TEST(a_short_transaction_is_numbered_at_once),
        TEST(an_idle_look_leaves_dead_rows_behind),
        TEST(a_look_lists_a_page),
        TEST(a_paused_queue_delivers_nothing),
        TEST(seventy_thousand_messages_in_one_call_arrive_in_order),
        TEST(two_readers_share_the_work),
        TEST(messages_may_move_while_they_are_read),
        TEST(a_late_message_is_none_of_those_around_it),
        TEST(a_locked_row_is_waited_for),
        TEST(a_sweep_finds_what_lies_below_the_bound),
        TEST(an_idle_read_writes_nothing),
        TEST(a_missing_message_delivers_nothing),
        TEST(a_dead_holder_is_taken_over),
        TEST(a_claim_of_the_same_worker_is_another_holder),
        TEST(a_late_request_of_an_older_claim_takes_nothing),
        TEST(a_read_that_saw_an_older_row_takes_nothing),
        TEST(a_lost_acknowledgement_fails_its_transaction),
        TEST(a_lost_answer_costs_no_attempt),
        TEST(a_step_that_was_lost_counts_also_for_a_later_claim),
        TEST(outbox_nonsense_is_refused_unsent),
        TEST(an_acknowledgement_of_100_is_one_statement),
        TEST(an_acknowledgement_reads_on),
        TEST(only_a_relaxed_commit_does_not_wait),
        TEST(a_commit_that_gives_numbers_waits),
        TEST(a_handlers_transaction_does_not_read_on),
        TEST(a_read_has_a_budget_of_bytes),
        TEST(a_message_that_cannot_be_sent_is_set_aside),
        TEST(renewing_moves_the_lease_and_says_what_is_lost),
        TEST(a_look_says_how_long_a_partition_rests),
        TEST(a_locked_partition_answers_at_once),
        TEST(a_partition_that_stands_still_keeps_only_its_own),
        TEST(the_figures_of_a_partition),
        TEST(messages_that_nobody_read_have_an_age),
        TEST(numbers_survive_dump_and_restore),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
