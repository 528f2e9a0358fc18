/*
 * The outbox in workers under load: order while workers are killed (X24), a queue that gets more
 * partitions while it is used (W-O36), tables that stay small (X29).
 *
 * With JOBQ_TEST_LONG the tests have their full size: 1.6 million messages twice, and ten minutes.
 */
#include "relay.h"

#include <limits.h>
#include <sys/stat.h>

static bool at_length(void) { return getenv("JOBQ_TEST_LONG") != NULL; }

/* A file that processes append to, at once and whole lines: what a killed one wrote counts. */
static char path[] = "/tmp/jobq_load_XXXXXX";
static int log_fd = -1;

static int empty(void **state)
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
    if (jobq_delivery_stopping(d) != JOBQ_STOP_NONE) {
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

/* -- X24 -- */

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
        enough = done + total / 50;
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

/* -- X29: tables stay small -- */

/* As fast as it can, but never more than a limit ahead of the workers. */
static void produce_on(int me)
{
    pg = handle();
    db = PQconnectdb(server());
    for (;;) {
        int i;
        for (i = 0; i < 10; i++) put(NULL, me, 100);
        while (number("SELECT lag FROM jobq.outbox WHERE partition = %d", me) > 5000) {
            nap_us(1000);
        }
    }
}

/* Bytes on disk. */
static long size_now(void)
{
    return number("SELECT pg_total_relation_size('jobq.message') + "
                  "pg_total_relation_size('jobq.partition')");
}

static jobq_result nod(jobq_delivery *d)
{
    (void)d;
    return JOBQ_RESULT_SUCCESS;
}

static pid_t housekeeper(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        jobq_pg_receiver r = receiver(NULL, nod);
        jobq_pg_worker_desc desc;
        jobq_pg_error error;
        memset(&desc, 0, sizeof desc);
        desc.receivers = &r;
        desc.receiver_count = 1;
        if (!at_length()) desc.loop.vacuum_rows = 5000;
        if (jobq_pg_worker_start(handle(), &desc, &child_worker, &error) != JOBQ_OK) _exit(1);
        jobq_pg_worker_wait(child_worker, NULL);
    }
    return pid;
}

/* The worker vacuums by itself. One vacuum may find a page in use, so it is the smallest size of
 * the last quarter that tells whether all grows. */
static void tables_stay_small_under_load(void **unused)
{
    int64_t start, span = (at_length() ? 600 : check_slow() ? 15 : 5) * SECOND;
    long early = 0, late = 0, least = LONG_MAX, done = 0;
    pid_t producers[4], worker;
    int i;

    (void)unused;
    open_box(4);
    RUN("ALTER TABLE jobq.message SET (autovacuum_enabled = off)"); /* the worker must do it */
    RUN("ALTER TABLE jobq.partition SET (autovacuum_enabled = off)");
    for (i = 0; i < 4; i++) {
        producers[i] = fork();
        if (producers[i] == 0) produce_on(i);
    }
    worker = housekeeper();
    assert_true(becomes(60, 1, "SELECT (sum(acked) > 20000)::int FROM jobq.partition"));
    start = mono_us();
    while (mono_us() - start < span) {
        int64_t passed = mono_us() - start;
        long size = size_now();
        if (passed < span / 2) early = size > early ? size : early;
        else late = size > late ? size : late;
        if (passed > 3 * span / 4 && size < least) least = size;
        nap_us(span / 80);
    }
    for (i = 0; i < 4; i++) finish_child(producers[i], SIGKILL);
    done = acked();
    print_message("%ld messages; at most %ld KiB in the first half, %ld in the second; "
                  "at last down to %ld\n", done, early / 1024, late / 1024, least / 1024);
    assert_true(least < 2 * early + 16 * 1024 * 1024);
    assert_true(!at_length() || late < done * 20); /* of 250 bytes written for each message */
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.message"));
    assert_true(becomes(20, 2, "SELECT count(*) FROM pg_stat_all_tables WHERE relname IN "
                               "('message', 'partition') AND schemaname = 'jobq' AND "
                               "vacuum_count > 0"));
    finish_child(worker, SIGTERM);
    RUN("ALTER TABLE jobq.message RESET (autovacuum_enabled)");
    RUN("ALTER TABLE jobq.partition RESET (autovacuum_enabled)");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, empty, forget_log)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(order_holds_with_4_partitions),
        TEST(order_holds_with_64_partitions),
        TEST(a_queue_grows_while_it_is_used),
        TEST(tables_stay_small_under_load),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
