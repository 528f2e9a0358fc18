/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Promise 6: the messages of a partition come as 1, 2, 3 ..., and none is skipped because another
 * transaction committed late. Rows X24, W-O36.
 *
 * The tests of exactness: producers' transactions are short, long, or rolled back, entirely or in
 * part. Two readers compete for each partition, acknowledge parts of what they read, and forget
 * what they hold. Backends are ended at random, and a snapshot is held. Afterwards every committed
 * message has been delivered, under one number, and none that was rolled back; the numbers in each
 * partition are 1, 2, 3 ..., and the messages of each producer have kept their order.
 *
 * With JOBQ_TEST_LONG the tests under load have their full size: 1.6 million messages twice.
 */
#include "relay.h"
#include "sessions.h"

#include <limits.h>
#include <sys/stat.h>

/* -- exactness -- */

enum { PARTS = 4, WRITERS = 6, READERS = 2, LEASE_US = 300000 };

static jobq_random dice;

static int between(int low, int high)
{
    return (int)jobq_random_between(jobq_random_next(&dice), low, high);
}

/* One statement on a connection that may have been ended. False: it failed, and *conn is new. */
static bool tell(PGconn **conn, const char *query)
{
    char *text = for_schema(query, schema);
    PGresult *res = PQexec(*conn, text);
    bool good = PQresultStatus(res) == PGRES_COMMAND_OK || PQresultStatus(res) == PGRES_TUPLES_OK;

    free(text);
    PQclear(res);
    if (good) return true;
    PQfinish(*conn);
    *conn = PQconnectdb(server());
    return false;
}

/* A message, and the line in the ledger that says that it was committed. */
static bool write_one(PGconn **conn, int me, int n)
{
    jobq_pg_message m = plain_message(between(0, PARTS - 1));
    char text[32], line[128];
    jobq_pg_error error;

    snprintf(text, sizeof text, "%d %d", me, n);
    snprintf(line, sizeof line, "INSERT INTO jobq.sent VALUES (%d, '%s')", m.partition, text);
    m.payload = jobq_str_from(text);
    return tell(conn, line) && jobq_pg_outbox_enqueue(pg, *conn, &m, NULL, &error) == JOBQ_OK;
}

static void write_on(int me)
{
    PGconn *conn = PQconnectdb(server());
    int n = 0, i, count;

    for (;;) {
        bool good = tell(&conn, "BEGIN");
        count = between(1, 20);
        if (me % 2 == 0) good = good && tell(&conn, "SET LOCAL synchronous_commit = off");
        for (i = 0; i < count && good; i++) good = write_one(&conn, me, ++n);
        if (good && between(0, 3) == 0) {
            good = tell(&conn, "SAVEPOINT s") && write_one(&conn, me, ++n) &&
                   tell(&conn, "ROLLBACK TO s");
        }
        if (between(0, 40) == 0) nap_us(between(100000, 1500000));
        if (!good || !tell(&conn, between(0, 9) == 0 ? "ROLLBACK" : "COMMIT")) {
            PQfinish(conn);
            conn = PQconnectdb(server());
        }
    }
}

/* Notes what was read, before it is acknowledged. */
static bool note(PGconn **conn, int part, const verb_reading *r)
{
    char line[8192];
    int used = snprintf(line, sizeof line, "INSERT INTO jobq.got VALUES "), i;

    for (i = 0; i < r->count; i++) {
        const jobq_message *m = &r->messages[i];
        used += snprintf(line + used, sizeof line - (size_t)used, "%s(%d, %lld, '%.*s')",
                         i == 0 ? "" : ", ", part, (long long)m->seq, (int)m->payload.len,
                         m->payload.ptr);
    }
    return tell(conn, line);
}

static void read_on(int me)
{
    struct { int64_t worker, claim, beat, since_us; } seen[PARTS];
    PGconn *conn = PQconnectdb(server());
    jobq_pg_error error;
    int64_t claim = 0;

    memset(seen, 0, sizeof seen);
    for (;;) {
        int part = between(0, PARTS - 1), rounds = between(1, 5);
        verb_read_desc d = reader(100 + me, ++claim, part);
        verb_reading r, next;
        verb_ack_desc ack;
        jobq_cursor after;
        d.lease_us = LEASE_US;
        d.most = between(1, 40);
        if (mono_us() - seen[part].since_us > LEASE_US) {
            d.watched_worker = seen[part].worker;
            d.watched_claim = seen[part].claim;
            d.watched_beat = seen[part].beat;
        }
        if (verb_read(pg, NULL, &d, &r, &error) != JOBQ_OK) continue;
        if (r.answer == 'o' && (r.worker != seen[part].worker || r.claim != seen[part].claim ||
                                r.beat != seen[part].beat)) {
            seen[part].worker = r.worker;
            seen[part].claim = r.claim;
            seen[part].beat = r.beat;
            seen[part].since_us = mono_us();
        }
        while (r.answer == 'h' && rounds-- > 0 && note(&conn, part, &r) && between(0, 30) > 0) {
            memset(&ack, 0, sizeof ack);
            memset(&after, 0, sizeof after);
            after.acked = r.cursor.acked + between(0, r.count);
            ack.worker = d.worker;
            ack.claim = claim;
            ack.lease_us = LEASE_US;
            ack.partition = d.partition;
            ack.before = r.cursor.acked;
            ack.after = &after;
            ack.most = rounds > 0 ? between(1, 40) : 0;
            ack.relaxed = true;
            if (verb_ack(pg, NULL, &ack, &next, &error) != JOBQ_OK) break;
            verb_reading_clear(&r);
            r = next;
        }
        verb_reading_clear(&r);
    }
}

static pid_t begin_child(void (*run)(int), int me)
{
    pid_t pid = fork();

    if (pid != 0) return pid;
    dice.state = (uint64_t)me * 77 + 5;
    pg = handle();
    run(me);
    _exit(0);
}

static void finish(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void run_for(int seconds, bool held)
{
    pid_t writers[WRITERS], readers[READERS];
    PGconn *holder = PQconnectdb(server());
    int64_t until = mono_us() + seconds * SECOND;
    long begun;
    int i;

    open_box(PARTS);
    RUN("CREATE TABLE IF NOT EXISTS jobq.sent (part int, text text)");
    RUN("CREATE TABLE IF NOT EXISTS jobq.got (part int, seq bigint, text text)");
    RUN("TRUNCATE jobq.sent, jobq.got");
    if (held) PQclear(sql(holder, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM jobq.meta"));
    begun = number("SELECT (extract(epoch FROM clock_timestamp()) * 1e6)::bigint");
    for (i = 0; i < WRITERS; i++) writers[i] = begin_child(write_on, i);
    for (i = 0; i < READERS; i++) readers[i] = begin_child(read_on, WRITERS + i);
    while (mono_us() < until) {
        nap_us(150000);
        number("SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity "
               "WHERE extract(epoch FROM backend_start) * 1e6 > %ld AND backend_type = "
               "'client backend' ORDER BY random() LIMIT 1) a", begun);
    }
    for (i = 0; i < WRITERS; i++) finish(writers[i]);
    assert_true(becomes(120, 0, "SELECT count(*) FROM jobq.message"));
    for (i = 0; i < READERS; i++) finish(readers[i]);
    PQfinish(holder);
}

static void all_is_exact(void)
{
    assert_true(number("SELECT count(*) FROM jobq.sent") > 100);
    assert_int_equal(number("SELECT count(*) FROM jobq.sent s WHERE NOT EXISTS (SELECT FROM "
                            "jobq.got g WHERE (g.part, g.text) = (s.part, s.text))"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.got g WHERE NOT EXISTS (SELECT FROM "
                            "jobq.sent s WHERE (g.part, g.text) = (s.part, s.text))"), 0);
    assert_int_equal(number("SELECT count(*) FROM (SELECT FROM jobq.got GROUP BY part, seq HAVING "
                            "count(DISTINCT text) > 1) x"), 0);
    assert_int_equal(number("SELECT count(*) FROM (SELECT FROM jobq.got GROUP BY text HAVING "
                            "count(DISTINCT seq) > 1) x"), 0);
    assert_int_equal(number("SELECT count(*) FROM (SELECT FROM jobq.got GROUP BY part HAVING "
                            "max(seq) <> count(DISTINCT seq)) x"), 0);
    assert_int_equal(number("SELECT count(*) FROM (SELECT n, lag(n) OVER (PARTITION BY part, me "
                            "ORDER BY seq) AS before FROM (SELECT DISTINCT part, seq, "
                            "split_part(text, ' ', 1) AS me, split_part(text, ' ', 2)::int AS n "
                            "FROM jobq.got) g) o WHERE n < before"), 0);
    RUN("DROP TABLE jobq.sent, jobq.got");
}

static void nothing_is_lost_or_changed(void **unused)
{
    (void)unused;
    run_for(check_slow() ? 6 : 8, false);
    all_is_exact();
}

static void nor_behind_a_held_snapshot(void **unused)
{
    (void)unused;
    run_for(check_slow() ? 6 : 8, true);
    all_is_exact();
}

static bool at_length(void) { return getenv("JOBQ_TEST_LONG") != NULL; }

/* A file that processes append to, at once and whole lines: what a killed one wrote counts. */
static char path[] = "/tmp/jobq_load_XXXXXX";
static int log_fd = -1;

/* A line a message: partition, seq, payload. Written under a lease only: who stood still until
 * another had the partition would write what is far behind. */
static jobq_result log_batch(jobq_delivery *d)
{
    char lines[JOBQ_LOOP_BATCH * 48];
    size_t at = 0;
    int32_t i;

    for (i = 0; i < d->count; i++) {
        const jobq_message *m = &d->messages[i];
        at += (size_t)snprintf(lines + at, sizeof lines - at, "%d %lld %.*s\n", (int)d->partition,
                               (long long)m->seq, (int)m->payload.len, m->payload.ptr);
    }
    if (jobq_delivery_stopping(d, NULL) != JOBQ_STOP_NONE) {
        jobq_delivery_done(d, 0);
        return JOBQ_RESULT_SUCCESS;
    }
    if (write(log_fd, lines, at) != (ssize_t)at) return JOBQ_RESULT_RETRY;
    nap_us(2000); /* a good moment to be killed */
    return JOBQ_RESULT_SUCCESS;
}

static jobq_pg_receiver logger(int32_t batch)
{
    jobq_pg_receiver r = receiver(NULL, log_batch);

    r.tuning.lease_us = 200000; /* a new worker watches the dead one's holds for that long */
    r.tuning.batch = batch;
    return r;
}

static long acked(void)
{
    return number("SELECT coalesce(sum(acked), 0) FROM jobq.partition");
}

static void await_producers(const pid_t *producers, int count)
{
    int i, status;

    for (i = 0; i < count; i++) {
        assert_int_equal(waitpid(producers[i], &status, 0), producers[i]);
        assert_int_equal(status, 0);
    }
}

/* -- X24: order under load -- */

#define PRODUCERS 16
#define BATCH 100

/* Its share, in transactions of 1 to 40 messages, of which every eighth is rolled back. */
static void produce(int me, int partitions, long share)
{
    jobq_random random = {(uint64_t)me};
    PGconn *conn = PQconnectdb(server());

    pg = handle();
    while (share > 0) {
        int count = (int)jobq_random_between(jobq_random_next(&random), 1, 40);
        int part = (int)jobq_random_between(jobq_random_next(&random), 0, partitions - 1);
        bool undo = jobq_random_between(jobq_random_next(&random), 0, 7) == 0;
        if (count > share) count = (int)share;
        PQclear(sql(conn, "BEGIN"));
        put(conn, part, count);
        PQclear(sql(conn, undo ? "ROLLBACK" : "COMMIT"));
        if (!undo) share -= count;
    }
    _exit(0);
}

/* Each partition's first deliveries are 1, 2, 3 ...; what comes again is of the batch that was cut
 * short, or of the one before, whose acknowledgement the kill forestalled. */
static void check_order(int partitions, long total)
{
    FILE *file = fopen(path, "r");
    long high[64] = {0}, again = 0, first = 0, seq;
    int part;

    assert_non_null(file);
    while (fscanf(file, "%d %ld hello\n", &part, &seq) == 2) {
        assert_in_range(part, 0, partitions - 1);
        if (seq > high[part] + 1) fail_msg("partition %d: %ld after %ld", part, seq, high[part]);
        if (seq <= high[part]) {
            again++;
            assert_true(high[part] - seq < 2 * BATCH);
            continue;
        }
        high[part] = seq;
        first++;
    }
    assert_true(feof(file));
    fclose(file);
    assert_int_equal(first, total);
    for (part = 0; part < partitions; part++) {
        assert_int_equal(high[part], number("SELECT acked FROM jobq.outbox WHERE "
                                            "partition = %d AND lag = 0", part));
    }
    print_message("%ld messages were delivered twice\n", again);
}

static void start_producers(pid_t *producers, int from, int to, int partitions, long share)
{
    int i;

    for (i = from; i < to; i++) {
        producers[i] = fork();
        if (producers[i] == 0) produce(i + 1, partitions, share);
    }
}

/* Half of the producers begin after the first kill, so that it comes before the end, however quick
 * the workers. Each further kill waits for some progress, however slow they are to start. */
static void workers_are_killed(int partitions)
{
    long share = at_length() ? 100000 : check_slow() ? 500 : 1500, total = PRODUCERS * share;
    long done, enough = total / 8;
    int64_t pause = at_length() || check_slow() ? SECOND : SECOND / 2, next = 0, until;
    jobq_pg_receiver r = logger(BATCH);
    pid_t producers[PRODUCERS], pids[2];
    int i, kills = 0;

    open_box(partitions);
    start_producers(producers, 0, PRODUCERS / 2, partitions, share);
    for (i = 0; i < 2; i++) pids[i] = child(&r, 4);
    until = mono_us() + (at_length() ? 1800 : 120) * SECOND;
    while ((done = acked()) < total) {
        assert_true(mono_us() < until);
        nap_us(20000);
        if (done < enough || mono_us() < next) continue;
        next = mono_us() + pause;
        enough = done + (at_length() ? 1 : total / 50);
        finish_child(pids[kills % 2], SIGKILL);
        pids[kills++ % 2] = child(&r, 4);
        if (kills > 1) continue;
        start_producers(producers, PRODUCERS / 2, PRODUCERS, partitions, share);
    }
    await_producers(producers, PRODUCERS);
    for (i = 0; i < 2; i++) finish_child(pids[i], SIGTERM);
    assert_true(kills > 0);
    print_message("%ld messages, %d kills, ", total, kills);
    check_order(partitions, total);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 0);
}

static void order_holds_with_4_partitions(void **unused)
{
    (void)unused;
    workers_are_killed(4);
}

static void order_holds_with_64_partitions(void **unused)
{
    (void)unused;
    workers_are_killed(64);
}

/* -- growth -- */

#define KEYS 40 /* of each of 4 producers, twice */

/* Messages "producer-key:number"; the numbers of a key rise by one. */
static void produce_keys(int me, int rounds)
{
    jobq_random random = {(uint64_t)me};
    int next[KEYS] = {0};

    pg = handle();
    while (rounds-- > 0) {
        int key = (int)jobq_random_between(jobq_random_next(&random), 0, KEYS - 1), i;
        int count = (int)jobq_random_between(jobq_random_next(&random), 1, 5);
        char name[16], texts[5][32];
        jobq_pg_message m[5];
        jobq_pg_error error;
        snprintf(name, sizeof name, "%d-%d", me, key);
        for (i = 0; i < count; i++) {
            snprintf(texts[i], sizeof texts[i], "%s:%d", name, ++next[key]);
            m[i] = plain_message(0);
            m[i].order_key = name;
            m[i].payload = jobq_str_from(texts[i]);
        }
        if (jobq_pg_outbox_enqueue_many(pg, NULL, m, (size_t)count, NULL, &error) != JOBQ_OK) {
            fprintf(stderr, "%s\n", error.message);
            _exit(1);
        }
        nap_us((int64_t)jobq_random_between(jobq_random_next(&random), 1000, 30000));
    }
    _exit(0);
}

/* Per key 1, 2, 3 ... over all partitions it ever fell to; what comes again comes from behind. Says
 * how many came for the first time. */
static long check_keys(int partitions, bool *used)
{
    static int last[9][KEYS];
    FILE *file = fopen(path, "r");
    int part, me, key, n;
    long seq, first = 0;

    memset(last, 0, sizeof last);
    assert_non_null(file);
    while (fscanf(file, "%d %ld %d-%d:%d\n", &part, &seq, &me, &key, &n) == 5) {
        assert_in_range(part, 0, partitions - 1);
        used[part] = true;
        if (n > last[me][key] + 1) fail_msg("key %d-%d: %d after %d", me, key, n, last[me][key]);
        if (n <= last[me][key]) continue;
        last[me][key] = n;
        first++;
    }
    assert_true(feof(file));
    fclose(file);
    return first;
}

/* By the manual: grow refuses while messages are under way, so it is tried until it finds the queue
 * empty; producers and workers go on, and none of them is told. */
static void grow_to(int partitions)
{
    int64_t until = mono_us() + 60 * SECOND;
    jobq_pg_error error;
    int refused = 0;

    while (jobq_pg_outbox_grow(pg, NULL, "o", partitions, false, &error) != JOBQ_OK) {
        if (strcmp(error.sqlstate, "55P03") != 0) { /* the lock was not free for a second */
            assert_string_equal(error.sqlstate, "55006");
            assert_non_null(strstr(error.message, "messages under way"));
        }
        assert_true(mono_us() < until);
        refused++;
        nap_us(1000);
    }
    print_message("grown to %d partitions, refused %d times\n", partitions, refused);
}

static void start_keys(pid_t *producers, int first, int rounds)
{
    int i;

    for (i = 0; i < 4; i++) {
        producers[i] = fork();
        if (producers[i] == 0) produce_keys(first + i, rounds);
    }
}

/* The first producers may end before the queue could grow; the second then use all of it. */
static void a_queue_grows_while_it_is_used(void **unused)
{
    int rounds = at_length() ? 2500 : check_slow() ? 60 : 100, i;
    jobq_pg_receiver r = logger(BATCH);
    pid_t producers[4], pids[2];
    bool used[16] = {false};
    jobq_pg_error error;

    (void)unused;
    open_box(2);
    start_keys(producers, 1, rounds);
    for (i = 0; i < 2; i++) pids[i] = child(&r, 4);
    assert_true(becomes(60, 1, "SELECT count(*) FROM jobq.partition WHERE number = 0 AND "
                               "acked > 20"));
    grow_to(8);
    await_producers(producers, 4);
    start_keys(producers, 5, rounds);
    assert_true(becomes(60, 8, "SELECT count(*) FROM jobq.partition WHERE acked > 0"));
    finish_child(pids[0], SIGKILL);
    pids[0] = child(&r, 4);
    grow_to(16);
    await_producers(producers, 4);
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.outbox WHERE lag > 0"));
    for (i = 0; i < 2; i++) finish_child(pids[i], SIGTERM);
    assert_int_equal(check_keys(16, used), number("SELECT sum(acked) FROM jobq.partition"));
    for (i = 0; i < 8; i++) assert_true(used[i]);
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "o", 2, NULL, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message,
                           "partition count mismatch for queue 'o': expected 2, found 16"));
}

#define RENEW "SELECT jobq._outbox_renew(1, 60000000, ARRAY[%lld], ARRAY[1])"

/* An acknowledgement gives up after 50 ms. A busy machine may take longer to let the other go. */
static void an_acknowledgement_that_waited_for_a_renewal_counts(void **unused)
{
    long long partition = held_partition(1);

    (void)unused;
    RUN("ALTER FUNCTION jobq._wait_briefly RENAME TO away");
    RUN("CREATE FUNCTION jobq._wait_briefly() RETURNS text LANGUAGE sql AS 'SELECT NULL::text'");
    run_a("BEGIN");
    PQclear(sql(a, RENEW, partition));
    b_asks(ACK, partition, 0, 1, 0);
    run_a("COMMIT");
    is_answered("i");
    assert_int_equal(BOX("acked"), 1);
    RUN("DROP FUNCTION jobq._wait_briefly; ALTER FUNCTION jobq.away RENAME TO _wait_briefly");
}

static void a_renewal_that_waited_for_an_acknowledgement_counts(void **unused)
{
    long long partition = held_partition(2);

    (void)unused;
    run_a("BEGIN");
    PQclear(sql(a, ACK, partition, 0, 1, 10)); /* and reads on, under its lease */
    b_asks(RENEW, partition);
    run_a("COMMIT");
    is_answered("{}");
}

/* -- old transactions -- */

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
                "jobq._outbox_read(1, 9, 60000000, p.id, 10) r",
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

/* -- X24: order while workers die -- */

enum { FEW_PRODUCERS = 4 };

/* Logs what it got, in the database and fenced by nothing: a line for each delivery. */
static jobq_result log_one_by_one(jobq_delivery *d)
{
    int fd = *(int *)d->user;
    char line[64];
    int32_t i;

    for (i = 0; i < d->count; i++) {
        int n = snprintf(line, sizeof line, "%d %lld\n", (int)d->partition,
                         (long long)d->messages[i].seq);
        if (write(fd, line, (size_t)n) != n) return JOBQ_RESULT_RETRY;
    }
    nap_us(20000);
    return JOBQ_RESULT_SUCCESS;
}

static pid_t producer(int count)
{
    pid_t pid = fork();

    if (pid == 0) {
        PGconn *conn = PQconnectdb(server());
        jobq_random random = {(uint64_t)getpid()};
        jobq_pg *mine = handle();
        pg = mine;
        while (count > 0) {
            int most = (int)jobq_random_between(jobq_random_next(&random), 1, 40);
            int part = (int)jobq_random_between(jobq_random_next(&random), 0, PARTS - 1);
            PQclear(PQexec(conn, "BEGIN"));
            put(conn, part, most);
            if (jobq_random_between(jobq_random_next(&random), 0, 9) == 0) {
                PQclear(PQexec(conn, "ROLLBACK")); /* leaves no hole */
                continue;
            }
            PQclear(PQexec(conn, "COMMIT"));
            count -= most;
        }
        _exit(0);
    }
    return pid;
}

/* Each partition's first deliveries are 1, 2, 3 ...; what comes again comes from behind. */
static long check_log(FILE *file)
{
    long long high[PARTS] = {0}, seq, again = 0;
    int part;

    while (fscanf(file, "%d %lld", &part, &seq) == 2) {
        assert_in_range(part, 0, PARTS - 1);
        if (seq > high[part] + 1) fail_msg("partition %d: %lld after %lld", part, seq, high[part]);
        if (seq <= high[part]) again++;
        else high[part] = seq;
    }
    for (part = 0; part < PARTS; part++) {
        assert_int_equal(number("SELECT acked FROM jobq.partition WHERE id = %lld",
                                (long long)partition_id(box, part)), high[part]);
    }
    return (long)again;
}

static void order_holds_while_workers_are_killed_and_stopped(void **unused)
{
    char name[] = "/tmp/jobq_relay_XXXXXX";
    int fd = mkstemp(name), n, each = check_slow() ? 2000 : 8000;
    int64_t start = mono_us();
    jobq_pg_receiver r = receiver(NULL, log_one_by_one);
    pid_t pids[2], producers[FEW_PRODUCERS];
    jobq_random random = {99};
    bool done = false;
    FILE *file;

    (void)unused;
    assert_true(fd >= 0);
    n = fcntl(fd, F_SETFL, O_APPEND);
    assert_int_equal(n, 0);
    open_box(PARTS);
    r.user = &fd;
    r.tuning.lease_us = 400000;
    r.tuning.batch = 50;
    for (n = 0; n < FEW_PRODUCERS; n++) producers[n] = producer(each);
    for (n = 0; n < 2; n++) pids[n] = child(&r, 2);
    while (!done && mono_us() - start < 120 * SECOND) {
        int victim = (int)jobq_random_between(jobq_random_next(&random), 0, 1);
        nap_us(300000);
        if (jobq_random_next(&random) >> 63 != 0) {
            finish_child(pids[victim], SIGKILL);
            pids[victim] = child(&r, 2);
        } else { /* longer than the lease, and than its watch */
            kill(pids[victim], SIGSTOP);
            nap_us(1000000);
            kill(pids[victim], SIGCONT);
        }
        done = number("SELECT count(*) FROM jobq.outbox WHERE lag > 0") == 0 &&
               number("SELECT coalesce(sum(acked), 0) FROM jobq.partition") >= FEW_PRODUCERS * each;
    }
    for (n = 0; n < FEW_PRODUCERS; n++) waitpid(producers[n], NULL, 0);
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.outbox WHERE lag > 0"));
    for (n = 0; n < 2; n++) finish_child(pids[n], SIGTERM);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 0);
    file = fopen(name, "r");
    assert_non_null(file);
    print_message("%ld messages were delivered twice\n", check_log(file));
    fclose(file);
    close(fd);
    unlink(name);
}

static int fresh_log(void **state)
{
    strcpy(path + sizeof path - 7, "XXXXXX");
    log_fd = mkstemp(path);
    return log_fd < 0 || fcntl(log_fd, F_SETFL, O_APPEND) != 0 ? 1 : pg_empty(state);
}

static int forget_log(void **unused)
{
    (void)unused;
    close(log_fd);
    return unlink(path);
}

#define WITH_LOG(test) cmocka_unit_test_setup_teardown(test, fresh_log, forget_log)
#define TEST(test, set_up) cmocka_unit_test_setup_teardown(test, set_up, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nothing_is_lost_or_changed, fresh),
        TEST(nor_behind_a_held_snapshot, fresh),
        WITH_LOG(order_holds_with_4_partitions),
        WITH_LOG(order_holds_with_64_partitions),
        WITH_LOG(a_queue_grows_while_it_is_used),
        WITH_TWO(an_acknowledgement_that_waited_for_a_renewal_counts),
        WITH_TWO(a_renewal_that_waited_for_an_acknowledgement_counts),
        WITH_TWO(a_sessions_messages_keep_their_order_beside_an_old_writer),
        WITH_TWO(each_partition_gets_its_marks),
        WITH_TWO(what_looks_twice_wants_a_new_snapshot_each_time),
        WITH_TWO(a_producer_with_an_old_snapshot_hears_of_the_growth),
        WITH_TWO(an_open_producer_holds_up_no_operator),
        WITH_TWO(growth_does_not_wait_for_an_open_producer),
        TEST(order_holds_while_workers_are_killed_and_stopped, pg_empty),
    };

    return cmocka_run_group_tests_name("order", tests, pg_up, pg_down);
}
