/*
 * Exactness. Producers' transactions are short, long, or rolled back, entirely or in part. Two
 * readers compete for each partition, acknowledge parts of what they read, and forget what they
 * hold. Backends are ended at random, and a snapshot is held. Afterwards every committed message
 * has been delivered, under one number, and none that was rolled back; the numbers in each
 * partition are 1, 2, 3 ..., and the messages of each producer have kept their order.
 */
#include <signal.h>
#include <sys/wait.h>

#include "outbox.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(nothing_is_lost_or_changed, pg_empty),
        cmocka_unit_test_setup(nor_behind_a_held_snapshot, pg_empty),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
