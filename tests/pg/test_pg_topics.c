/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Topics: one message, several readers. Each subscription that takes a message has exactly one copy
 * of it, written by the producer's transaction; the seam is exact, and no reader disturbs another.
 * test_pg_pairs has the seam at every statement. Promises 1, 2 and 6.
 */
#include "pg_work.h"

static int32_t box_of(const char *queue, int partitions)
{
    jobq_pg_error error;
    int32_t id = 0;

    if (jobq_pg_outbox_register(pg, NULL, queue, partitions, &id, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    return id;
}

/* Topic t is read by queues a and b of messages, and by kind k of queue q. */
static void three_readers(void)
{
    box_of("t", 0);
    box_of("a", 4);
    box_of("b", 1);
    RUN("SELECT jobq.subscribe('a', 't', 'a'), jobq.subscribe('b', 't', 'b'), "
        "jobq.subscribe('q', 't', 'q', 'k')");
}

static jobq_pg_message message_of(const char *queue, const char *payload)
{
    jobq_pg_message m;

    memset(&m, 0, sizeof m);
    m.queue = queue;
    m.payload = jobq_str_from(payload);
    return m;
}

static void post(PGconn *conn, const jobq_pg_message *m, int64_t *id)
{
    jobq_pg_error error;

    if (jobq_pg_outbox_enqueue(pg, conn, m, id, &error) != JOBQ_OK) fail_msg("%s", error.message);
}

/* How many copies lie in a queue, and how many jobs there are. */
#define IN(queue) number("SELECT count(*) FROM jobq.message m JOIN jobq.queue q " \
                         "ON q.id = m.partition_id >> 15 WHERE q.name = '" queue "'")
#define JOBS number("SELECT count(*) FROM jobq.job")

/* -- what is copied -- */

static void each_reader_has_one_copy(void **unused)
{
    jobq_pg_message m = message_of("t", "{\"n\": 1}");
    int64_t id = 0;

    (void)unused;
    three_readers();
    m.order_key = "customer-7";
    m.type = "placed";
    m.headers = jobq_str_from("{\"tag\": 1}");
    post(NULL, &m, &id);
    assert_true(id > 0);
    assert_int_equal(IN("t"), 0);
    expect_text("placed {\"n\": 1} {\"tag\": 1}|placed {\"n\": 1} {\"tag\": 1}",
                "SELECT string_agg(concat_ws(' ', type, payload, headers), '|') FROM jobq.message");
    assert_int_equal(number("SELECT count(*) FROM jobq.message WHERE id = %lld", (long long)id), 2);
    assert_int_equal(number("SELECT partition_id & 32767 FROM jobq.message m JOIN jobq.queue q "
                            "ON q.id = m.partition_id >> 15 WHERE q.name = 'a'"),
                     (long)jobq_partition_of(jobq_str_from("customer-7"), 4));
    expect_text("k customer-7 {\"n\": 1}", "SELECT concat_ws(' ', kind, line, payload) "
                                           "FROM jobq.live_jobs");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE headers = jsonb_build_object("
                            "'tag', 1, 'type', 'placed', 'message', %lld) AND line IS NOT NULL "
                            "AND key IS NULL", (long long)id), 1);
    expect_text("a 1|b 1|q 1", "SELECT string_agg(concat_ws(' ', name, waiting), '|' ORDER BY name)"
                               " FROM jobq.subscriptions");
}

/* A queue of its own keeps its message; bytes, no type, no key of order. */
static void a_queue_with_readers_keeps_its_own(void **unused)
{
    jobq_pg_message m = message_of("o", "\001\377");

    (void)unused;
    box_of("o", 8);
    box_of("a", 2);
    RUN("SELECT jobq.subscribe('a', 'o', 'a'), jobq.subscribe('q', 'o', 'q', 'k')");
    m.payload_bytes = true;
    m.partition = 7;
    post(NULL, &m, NULL);
    expect_text("7 1", "SELECT string_agg((partition_id & 32767)::text, ' ' ORDER BY partition_id)"
                       " FROM jobq.message WHERE bytes = '\\x01ff' AND payload IS NULL");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE bytes = '\\x01ff' "
                            "AND line IS NULL AND line_name IS NULL AND headers ? 'message' "
                            "AND NOT headers ? 'type'"), 1);
    assert_int_equal(number("SELECT count(DISTINCT id) FROM jobq.message"), 1);
}

/* Arrays, COPY, SQL, schedules and batches of jobs write through the same door. */
static void every_way_of_sending_copies(void **unused)
{
    enum { COUNT_OF = 2500 };
    jobq_pg_message *m = calloc(COUNT_OF, sizeof *m);
    jobq_pg_error error;
    char keys[COUNT_OF][8];
    int i;

    (void)unused;
    three_readers();
    for (i = 0; i < COUNT_OF; i++) {
        snprintf(keys[i], sizeof keys[i], "%d", i % 10);
        m[i] = message_of("t", "[1]");
        m[i].order_key = keys[i];
    }
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, m, 10, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, m, COUNT_OF, JOBQ_PG_BY_COPY, &error),
                     JOBQ_OK);
    free(m);
    RUN("SELECT jobq.outbox_enqueue('t', '1', order_key => '0')");
    RUN("SELECT jobq.schedule('s', 't', every => '1 h', partition => 0), jobq.schedule_run('s')");
    assert_int_equal(IN("a"), COUNT_OF + 12);
    assert_int_equal(IN("b"), COUNT_OF + 12);
    assert_int_equal(JOBS, COUNT_OF + 12);
    assert_int_equal(number("SELECT count(DISTINCT line_name) FROM jobq.job"), 10);
    assert_int_equal(number("SELECT count(*) FROM (SELECT id, lag(id) OVER (PARTITION BY line_name "
                            "ORDER BY (headers ->> 'message')::bigint) AS before FROM jobq.job) j "
                            "WHERE id < before"), 0); /* a line's jobs are in their order */
    RUN("SELECT jobq.batch('q', 'k', '{1}', done_outbox => 't')");
    assert_int_equal(JOBS, COUNT_OF + 13);
}

static void types_choose(void **unused)
{
    (void)unused;
    three_readers();
    RUN("SELECT jobq.subscribe('a', 't', 'a', types => '{placed,order.*}'), "
        "jobq.subscribe('b', 't', 'b', types => '{*}'), "
        "jobq.subscribe('q', 't', 'q', 'k', '{}')");
    RUN("SELECT jobq.outbox_enqueue('t', to_jsonb(t), type => t) FROM unnest('{placed,placed2,"
        "order.,order.x,order,NULL}'::text[]) t");
    expect_text("order. order.x placed",
                "SELECT string_agg(type, ' ' ORDER BY type) FROM jobq.message m JOIN jobq.queue q "
                "ON q.id = m.partition_id >> 15 WHERE q.name = 'a'");
    assert_int_equal(IN("b"), 5);
    assert_int_equal(JOBS, 6);
    RUN("SELECT jobq.outbox_enqueue('t', bytes => ''), jobq.outbox_enqueue('t', type => 'order_')");
    assert_int_equal(IN("a"), 3);
    assert_int_equal(IN("b"), 6);
}

/* A known key has no copy; in an array only that one has none. */
static void a_known_key_is_not_copied_again(void **unused)
{
    jobq_pg_message m[3];
    jobq_pg_error error;
    int64_t first, again = 0;

    (void)unused;
    three_readers();
    m[0] = m[1] = m[2] = message_of("t", "1");
    m[0].key = m[2].key = "x";
    post(NULL, m, &first);
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, m, &again, &error), JOBQ_ERROR_EXISTS);
    assert_int_equal(first, again);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, m, 3, NULL, &error), JOBQ_OK);
    assert_int_equal(IN("a"), 2);
    assert_int_equal(IN("b"), 2);
    assert_int_equal(JOBS, 2);
}

/* A copy is not copied again, so a circle does no harm. */
static void copies_are_not_copied(void **unused)
{
    (void)unused;
    box_of("a", 1);
    box_of("b", 1);
    RUN("SELECT jobq.subscribe('ab', 'a', 'b'), jobq.subscribe('ba', 'b', 'a')");
    RUN("SELECT jobq.outbox_enqueue('a', '1')");
    assert_int_equal(IN("a"), 1);
    assert_int_equal(IN("b"), 1);
}

static void a_topic_that_nobody_reads_keeps_nothing(void **unused)
{
    jobq_pg_message m = message_of("t", "1");
    jobq_pg_error error;
    int32_t id = 0;

    (void)unused;
    box_of("t", 0);
    box_of("t", 0);
    post(NULL, &m, NULL);
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 0);
    m.partition = 1;
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.message, "partition 1 is out of range for queue 't' (max 1)");
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "t", 4, &id, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_outbox_grow(pg, NULL, "t", 4, true, &error), JOBQ_ERROR_INVALID);
    box_of("o", 4);
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "o", 0, &id, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(number("SELECT count(*) FROM jobq.queue WHERE topic"), 1);
}

/* -- the seam -- */

/* Copies live and die with the producer's transaction, which is on one side of a change. */
static void a_transaction_is_on_one_side_of_a_change(void **unused)
{
    jobq_pg_message m = message_of("t", "1");
    PGconn *producer = connected();
    jobq_pg_error error;
    const char *isolation[] = {"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"};
    size_t i;

    (void)unused;
    three_readers();
    for (i = 0; i < 3; i++) {
        PQclear(sql(producer, "BEGIN ISOLATION LEVEL %s", isolation[i]));
        PQclear(sql(producer, "SELECT count(*) FROM jobq.meta"));
        post(producer, &m, NULL);
        assert_int_equal(IN("b"), 0);
        expect_text("55P03", "SELECT public.sqlstate_of('SELECT jobq.unsubscribe(''b'')')");
        PQclear(sql(producer, "ROLLBACK"));
        assert_int_equal(number("SELECT count(*) FROM jobq.message"), 0);
        assert_int_equal(JOBS, 0);
    }
    for (i = 0; i < 3; i++) {
        long before = IN("b");
        PQclear(sql(producer, "BEGIN ISOLATION LEVEL %s", isolation[i]));
        PQclear(sql(producer, "SELECT count(*) FROM jobq.meta"));
        RUN("SELECT jobq.unsubscribe('a')");
        RUN("SELECT jobq.subscribe('a', 't', 'a')");
        if (i == 0) {
            post(producer, &m, NULL);
            PQclear(sql(producer, "COMMIT"));
        } else {
            assert_int_not_equal(jobq_pg_outbox_enqueue(pg, producer, &m, NULL, &error), JOBQ_OK);
            assert_string_equal(error.sqlstate, "40001");
            PQclear(sql(producer, "ROLLBACK"));
        }
        assert_int_equal(IN("b") - before, i == 0);
    }
    PQfinish(producer);
}

/* The first subscription of a queue ends the plain INSERT, in a session that has it prepared. */
static void a_plain_insert_hears_of_a_subscription(void **unused)
{
    jobq_pg_message m = message_of("o", "1");
    int i;

    (void)unused;
    box_of("o", 1);
    box_of("a", 1);
    for (i = 0; i < 3; i++) post(db, &m, NULL);
    RUN("SELECT jobq.subscribe('a', 'o', 'a')");
    for (i = 0; i < 3; i++) post(db, &m, NULL);
    assert_int_equal(IN("a"), 3);
    RUN("SELECT jobq.unsubscribe('a')");
    assert_int_equal(number("SELECT readers FROM jobq.queue WHERE name = 'o'"), 0);
    for (i = 0; i < 200; i++) post(db, &m, NULL);
    assert_int_equal(IN("a"), 3);
    assert_int_equal(IN("o"), 206);
    if (distributed()) return; /* there the function is always called */
    RUN("ALTER FUNCTION jobq._outbox_enqueue_one RENAME TO away"); /* it is not called any more */
    post(db, &m, NULL);
    RUN("ALTER FUNCTION jobq.away RENAME TO _outbox_enqueue_one");
}

/* A reader that grows: a producer whose snapshot is older would use the old partitions. */
static void a_reader_grows_beside_producers(void **unused)
{
    jobq_pg_message m = message_of("t", "1");
    PGconn *producer = connected();
    jobq_pg_error error;

    (void)unused;
    three_readers();
    m.order_key = "customer-7";
    PQclear(sql(producer, "BEGIN ISOLATION LEVEL REPEATABLE READ"));
    PQclear(sql(producer, "SELECT count(*) FROM jobq.meta"));
    RUN("SELECT jobq.outbox_grow('a', 64)");
    assert_int_not_equal(jobq_pg_outbox_enqueue(pg, producer, &m, NULL, &error), JOBQ_OK);
    assert_string_equal(error.sqlstate, "40001");
    PQclear(sql(producer, "ROLLBACK"));
    post(producer, &m, NULL);
    assert_int_equal(number("SELECT partition_id & 32767 FROM jobq.message m JOIN jobq.queue q "
                            "ON q.id = m.partition_id >> 15 WHERE q.name = 'a'"),
                     (long)jobq_partition_of(jobq_str_from("customer-7"), 64));
    PQfinish(producer);
}

/* -- readers -- */

static jobq_result take_in(jobq_delivery *d, const jobq_message *m)
{
    char text[100];
    PGresult *res;

    (void)m;
    snprintf(text, sizeof text, "INSERT INTO public.topic_effect VALUES ('%s', %lld)",
             (const char *)d->user, (long long)m->seq);
    res = PQexec(jobq_pg_delivery_conn(d), text);
    PQclear(res);
    ADD(runs);
    return JOBQ_RESULT_SUCCESS;
}

static jobq_outcome take_job(jobq_call *call)
{
    (void)call;
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static void until_effects(const char *reader, long wanted)
{
    int i;

    for (i = 0; i < 2000; i++) {
        if (number("SELECT count(*) FROM public.topic_effect WHERE reader = '%s'", reader) ==
            wanted) return;
        nap_us(10000);
    }
    fail_msg("reader %s has not had all", reader);
}

/* One reader is paused, and one has no worker: the others get everything. */
static void no_reader_delays_another(void **unused)
{
    jobq_pg_receiver r[] = {{.queue = "a", .each = take_in, .transactional = true, .user = "a"},
                            {.queue = "c", .each = take_in, .transactional = true, .user = "c"}};
    jobq_pg_handler h = handler_of("q", "k", take_job);
    jobq_pg_worker_desc d = work_of(&h, 1);
    int i;

    (void)unused;
    three_readers();
    box_of("c", 1);
    RUN("CREATE TABLE IF NOT EXISTS public.topic_effect (reader text, seq bigint)");
    RUN("TRUNCATE public.topic_effect");
    RUN("SELECT jobq.subscribe('c', 't', 'c'), jobq.pause('c')");
    d.receivers = r;
    d.receiver_count = 2;
    start(&d);
    for (i = 0; i < 50; i++) {
        jobq_pg_message m = message_of("t", "1");
        post(NULL, &m, NULL);
    }
    until_effects("a", 50);
    assert_true(reaches(20, &runs, 100)); /* and jobs */
    assert_int_equal(number("SELECT count(*) FROM public.topic_effect WHERE reader = 'c'"), 0);
    assert_int_equal(IN("b"), 50);
    assert_int_equal(IN("c"), 50);
    RUN("SELECT jobq.resume('c')");
    until_effects("c", 50);
    assert_int_equal(number("SELECT count(*) - count(DISTINCT (reader, seq)) "
                            "FROM public.topic_effect"), 0);
    RUN("DROP TABLE public.topic_effect");
}

/* Notifications that have come, as "payload payload". */
static const char *heard(PGconn *conn)
{
    static char text[200];
    PGnotify *n;

    text[0] = '\0';
    PQclear(sql(conn, "SELECT 1"));
    while ((n = PQnotifies(conn)) != NULL) {
        strcat(strcat(text, n->extra[0] == '\0' ? "work" : "partition"), " ");
        PQfreemem(n);
    }
    return text;
}

/* One reader of messages is told which partition to read; as many of jobs as there are jobs. */
static void copies_wake_their_readers(void **unused)
{
    jobq_pg_message m[2];
    PGconn *conn = connected();
    jobq_pg_error error;

    (void)unused;
    three_readers();
    m[0] = m[1] = message_of("t", "1");
    RUN("INSERT INTO jobq.sleeper SELECT q.id, w FROM jobq.queue q, unnest('{254, 255}'::int[]) w "
        "WHERE q.name IN ('a', 'q')");
    PQclear(PQexec(conn, "LISTEN jobq_fe; LISTEN jobq_ff"));
    post(NULL, m, NULL);
    assert_string_equal(heard(conn), "partition work ");
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, m, 2, NULL, &error), JOBQ_OK);
    assert_string_equal(heard(conn), "work work "); /* the same text to one worker comes once */
    m[0].quiet = true;
    post(NULL, m, NULL);
    RUN("SELECT jobq.subscribe('q', 't', 'q', 'k', types => '{none}'), jobq.unsubscribe('a')");
    post(NULL, &m[1], NULL);
    assert_string_equal(heard(conn), "");
    PQfinish(conn);
}

/* What was copied is still delivered; or it is dropped, and numbers go on. */
static void unsubscribing_leaves_or_drops(void **unused)
{
    (void)unused;
    three_readers();
    RUN("SELECT jobq.outbox_enqueue('t', '1'), jobq.outbox_enqueue('t', '2')");
    assert_int_equal(number("SELECT jobq.unsubscribe('a')::int"), 1);
    assert_int_equal(number("SELECT jobq.unsubscribe('a')::int"), 0);
    RUN("SELECT jobq.outbox_enqueue('t', '3')");
    assert_int_equal(IN("a"), 2);
    assert_int_equal(IN("b"), 3);
    RUN("SELECT jobq._outbox_read(7, 1, 60000000, p.id, 1) FROM jobq.outbox p "
        "WHERE p.queue = 'b'"); /* it is numbered, and being delivered */
    RUN("SELECT jobq.enqueue('q', 'k', '\"own\"')");
    RUN("SELECT jobq.unsubscribe('b', drop => true), jobq.unsubscribe('q', drop => true)");
    assert_int_equal(IN("b"), 0);
    assert_int_equal(IN("a"), 2);
    expect_text("\"own\"", "SELECT string_agg(payload::text, ' ') FROM jobq.job");
    expect_text("3 ", "SELECT concat_ws(' ', acked, '') || coalesce(holder, '') "
                      "FROM jobq.outbox WHERE queue = 'b'");
    RUN("SELECT jobq.outbox_enqueue('b', '4')");
    expect_text("3 4", "SELECT concat_ws(' ', (d.r).acked, (d.r).last) FROM (SELECT "
                       "jobq._outbox_read(8, 1, 60000000, p.id, 1) AS r FROM jobq.outbox p "
                       "WHERE p.queue = 'b') d");
}

static void a_shared_reader_is_not_dropped(void **unused)
{
    (void)unused;
    three_readers();
    box_of("o", 1);
    RUN("SELECT jobq.subscribe('o', 'o', 'b')");
    RUN("SELECT jobq.outbox_enqueue('t', '1'), jobq.outbox_enqueue('o', '2')");
    expect_text("55006", "SELECT public.sqlstate_of("
                         "'SELECT jobq.unsubscribe(''b'', drop => true)')");
    assert_int_equal(IN("b"), 2);
    RUN("SELECT jobq.unsubscribe('o')");
    RUN("SELECT jobq.unsubscribe('b', drop => true)");
    assert_int_equal(IN("b"), 0);
}

/* -- declared by a program -- */

static jobq_error declare(int64_t revision, const jobq_pg_subscription *list, size_t n,
                          jobq_pg_error *error)
{
    return jobq_pg_subscriptions_set(pg, NULL, "app", revision, list, n, error);
}

static void a_program_declares_its_set(void **unused)
{
    jobq_pg_subscription s[] = {
        {.name = "a", .source = "t", .queue = "a", .types = " placed , order.* "},
        {.name = "q", .source = "t", .queue = "q", .kind = "k"}};
    PGconn *producer = connected();
    jobq_pg_message m = message_of("t", "1");
    jobq_pg_error error;

    (void)unused;
    box_of("t", 0);
    box_of("a", 1);
    assert_int_equal(declare(1, s, 2, &error), JOBQ_OK);
    expect_text("a a {placed,order.*} app|q q app k",
                "SELECT string_agg(concat_ws(' ', name, queue, types::text, owner, kind), '|' "
                "ORDER BY name) FROM jobq.subscriptions");
    PQclear(sql(producer, "BEGIN"));
    post(producer, &m, NULL);
    assert_int_equal(declare(1, s, 2, &error), JOBQ_OK); /* nothing changes, so nobody waits */
    PQclear(sql(producer, "COMMIT"));
    PQfinish(producer);
    s[0].types = NULL;
    assert_int_equal(declare(2, s, 1, &error), JOBQ_OK);
    expect_text("a", "SELECT string_agg(concat_ws(' ', name, types::text), '|') "
                     "FROM jobq.subscriptions");
    assert_int_equal(declare(1, s, 2, &error), JOBQ_ERROR_VERSION);
    assert_string_equal(error.message, "a newer program has declared the subscriptions of app; "
                                       "revision 1 changes nothing");
    expect_text("55000", "SELECT public.sqlstate_of('SELECT jobq.subscribe(''a'', ''t'', ''a'')')");
    assert_int_equal(declare(3, NULL, 0, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.subscription"), 0);
    assert_int_equal(number("SELECT readers FROM jobq.queue WHERE name = 't'"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.operation WHERE verb ~ 'subscri'"), 0);
}

/* All or none, with the field. */
static void what_cannot_be_is_refused(void **unused)
{
    static const struct {
        const char *call, *field;
    } wrong[] = {
        {"'', 't', 'a'", "name"}, {"'x', 'nosuch', 'a'", "source"}, {"'x', 'q', 'a'", "source"},
        {"'x', 't', 'nosuch'", "queue"}, {"'x', 't', 'q'", "queue"}, {"'x', 't', 't'", "queue"},
        {"'x', 'a', 'a'", "queue"}, {"'x', 't', 'a'", "queue"}, {"'x', 't', 'q', 'a b'", "kind"},
        {"'x', 'b', 'a', types => '{a*b}'", "types"},
        {"'x', 'b', 'a', types => '{NULL}'", "types"},
        {"'x', 'b', 'small'", "message_max"}, {"'x', 'b', 'tight', 'k'", "payload_max"}};
    jobq_pg_subscription s = {.name = "x", .source = "t", .queue = "t"};
    jobq_pg_error error;
    size_t i;

    (void)unused;
    three_readers();
    box_of("small", 1);
    RUN("SELECT jobq.queue_set('small', message_max => 10), "
        "jobq.queue_set('tight', payload_max => 10)");
    for (i = 0; i < COUNT(wrong); i++) {
        PGresult *res = PQexec(db, "BEGIN");
        char text[200], *query;
        const char *field;

        PQclear(res);
        snprintf(text, sizeof text, "SELECT jobq.subscribe(%s)", wrong[i].call);
        query = for_schema(text, schema);
        res = PQexec(db, query);
        field = PQresultErrorField(res, PG_DIAG_COLUMN_NAME); /* Citus does not pass it on */
        if (PQresultStatus(res) != PGRES_FATAL_ERROR ||
            strcmp(PQresultErrorField(res, PG_DIAG_SQLSTATE), "22023") != 0 ||
            (field == NULL ? !distributed() : strcmp(field, wrong[i].field) != 0))
            fail_msg("%s: %s", text, PQresultErrorMessage(res));
        PQclear(res);
        free(query);
        PQclear(PQexec(db, "ROLLBACK"));
    }
    assert_int_equal(declare(1, &s, 1, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "queue");
    expect_text("22023", "SELECT public.sqlstate_of('SELECT jobq.queue_set(''a'', "
                         "message_max => 10)')");
    expect_text("22023", "SELECT public.sqlstate_of('SELECT jobq.queue_set(''t'', "
                         "message_max => 2000000)')");
    RUN("BEGIN ISOLATION LEVEL REPEATABLE READ");
    expect_text("25001", "SELECT public.sqlstate_of('SELECT jobq.unsubscribe(''a'')')");
    RUN("ROLLBACK");
    assert_int_equal(number("SELECT count(*) FROM jobq.subscription"), 3);
}

/* A queue that is deleted takes its subscriptions along, and producers go on. */
static void a_deleted_queue_is_read_no_more(void **unused)
{
    (void)unused;
    three_readers();
    RUN("DELETE FROM jobq.queue WHERE name = 'a'");
    RUN("SELECT jobq.outbox_enqueue('t', '1')");
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.subscriptions"), 2);
}

/* What a person's tags lead to is erased in every copy, and so is the key at the source. */
static void erasure_reaches_every_copy(void **unused)
{
    (void)unused;
    three_readers();
    RUN("SELECT jobq.outbox_enqueue('t', '{\"secret\": 1}', headers => '{\"person\": 7}', "
        "key => 'ann')");
    RUN("SELECT jobq.erase('{\"person\": 7}', dry => false, live => 'cancel')");
    RUN("SELECT jobq.erase('{\"person\": 7}', dry => false, live => 'cancel')");
    assert_int_equal(number("SELECT count(*) FROM jobq.message WHERE payload ? 'secret'"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE payload ? 'secret'"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.idempotency"), 0);
}

/* What a role gets when it calls this: an SQLSTATE, or none. Its copies lie in queues that it may
 * not write to. */
static void may(const char *role, const char *call, const char *wanted)
{
    char text[200];

    RUN("SET SESSION AUTHORIZATION %s_%s", schema, role);
    snprintf(text, sizeof text, "SELECT public.sqlstate_of('SELECT jobq.%s')", call);
    expect_text(wanted, text);
    RUN("RESET SESSION AUTHORIZATION");
}

static void roles_publish_and_subscribe(void **unused)
{
    (void)unused;
    three_readers();
    RUN("CREATE ROLE %s_shop; CREATE ROLE %s_tenant; CREATE ROLE %s_worker; CREATE ROLE %s_ops",
        schema, schema, schema, schema);
    RUN("SELECT jobq.grant_enqueue('%s_shop'), jobq.grant_work('%s_worker'), "
        "jobq.grant_operate('%s_ops'), "
        "jobq.grant_enqueue('%s_tenant', '{mail}', 'tenant-7', '{t}')",
        schema, schema, schema, schema);
    may("shop", "outbox_enqueue(''t'', ''1'')", "none");
    may("tenant", "outbox_enqueue(''t'', ''1'', order_key => ''tenant-8'')", "none");
    may("tenant", "outbox_enqueue(''a'', ''1'')", "42501");
    may("shop", "subscribe(''s'', ''t'', ''q'', ''l'')", "42501");
    may("worker", "subscribe(''s'', ''t'', ''q'', ''l'')", "42501");
    may("worker", "_subscriptions_set(''app'', 1, ''{s}'', ''{t}'', ''{q}'', ''{l}'', ''{NULL}'')",
        "none");
    may("ops", "unsubscribe(''b'')", "none");
    may("ops", "subscribe(''b'', ''t'', ''b'')", "none");
    may("ops", "_outbox_copy(1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "42501");
    assert_int_equal(IN("a"), 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.subscriptions"), 4);
    RUN("DROP OWNED BY %s_shop, %s_tenant, %s_worker, %s_ops", schema, schema, schema, schema);
    RUN("DROP ROLE %s_shop, %s_tenant, %s_worker, %s_ops", schema, schema, schema, schema);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh, all_stop)

/* sqlstate_of runs a statement that fails, and undoes it. */
static int topics_up(void **state)
{
    if (pg_up(state) != 0) return 1;
    RUN("CREATE OR REPLACE FUNCTION public.sqlstate_of(p text) "
        "RETURNS text LANGUAGE plpgsql AS $$ BEGIN EXECUTE p; RETURN 'none'; "
        "EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE; END $$");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_reader_has_one_copy),
        TEST(a_queue_with_readers_keeps_its_own),
        TEST(every_way_of_sending_copies),
        TEST(types_choose),
        TEST(a_known_key_is_not_copied_again),
        TEST(copies_are_not_copied),
        TEST(a_topic_that_nobody_reads_keeps_nothing),
        TEST(a_transaction_is_on_one_side_of_a_change),
        TEST(a_plain_insert_hears_of_a_subscription),
        TEST(a_reader_grows_beside_producers),
        TEST(no_reader_delays_another),
        TEST(copies_wake_their_readers),
        TEST(unsubscribing_leaves_or_drops),
        TEST(a_shared_reader_is_not_dropped),
        TEST(a_program_declares_its_set),
        TEST(what_cannot_be_is_refused),
        TEST(a_deleted_queue_is_read_no_more),
        TEST(erasure_reaches_every_copy),
        TEST(roles_publish_and_subscribe),
    };

    return cmocka_run_group_tests(tests, topics_up, pg_down);
}
