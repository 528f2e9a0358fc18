/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Messages in the worker: both strategies, handlers of a message and of a batch, retries and dead
 * letters, time limits, wake-ups across processes (X26), renewal, and tables that stay small (X29,
 * with JOBQ_TEST_LONG for ten minutes). test_pg_order.c has the order of messages.
 */
#include "relay.h"

#include <limits.h>
#include <sys/mman.h>

/* What handlers in all processes see and count. */
typedef struct board {
    volatile int handled, failures, deaths, wrong;
    volatile int64_t at_us;
    int64_t last[64]; /* by partition: the highest seq that was handled */
} board;

static board *seen;

static int board_up(void **state)
{
    int fd = open("/dev/zero", O_RDWR);

    seen = (board *)mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return seen == (board *)MAP_FAILED ? 1 : pg_up(state);
}

static int empty(void **state)
{
    pg_empty(state);
    RUN("CREATE TABLE IF NOT EXISTS jobq.effect (partition int, seq bigint)");
    RUN("TRUNCATE jobq.effect");
    memset(seen, 0, sizeof *seen);
    return 0;
}

/* Works until there is nothing left. */
static void receive_all(const jobq_pg_receiver *r)
{
    jobq_pg_worker_desc desc;
    jobq_pg_error error;

    memset(&desc, 0, sizeof desc);
    desc.receivers = r;
    desc.receiver_count = 1;
    desc.loop.until = JOBQ_UNTIL_EMPTY;
    if (jobq_pg_work(pg, &desc, &error) != JOBQ_OK) fail_msg("%s", error.message);
}

/* -- handlers -- */

static jobq_result take_each(jobq_delivery *d, const jobq_message *m)
{
    if (m->seq != seen->last[d->partition] + 1) seen->wrong++;
    seen->last[d->partition] = m->seq;
    seen->at_us = mono_us();
    __sync_fetch_and_add(&seen->handled, 1);
    return JOBQ_RESULT_SUCCESS;
}

static jobq_result take_all(jobq_delivery *d)
{
    int32_t i;

    for (i = 0; i < d->count; i++) take_each(d, &d->messages[i]);
    return JOBQ_RESULT_SUCCESS;
}

/* Message 2 fails twice, 4 is refused, 5 for ever. */
static jobq_result fuss(jobq_delivery *d, const jobq_message *m)
{
    seen->handled++;
    if (m->seq == 4) {
        jobq_delivery_error(d, jobq_str_from("never this one"));
        return JOBQ_RESULT_REJECT;
    }
    if ((m->seq == 2 && m->attempts < 2) || m->seq == 5) {
        jobq_delivery_error(d, jobq_str_from("not now"));
        return JOBQ_RESULT_RETRY;
    }
    return JOBQ_RESULT_SUCCESS;
}

/* Leaves its mark in the database, and then does as fuss. */
static jobq_result mark(jobq_delivery *d, const jobq_message *m)
{
    char text[200];
    char *statement;

    snprintf(text, sizeof text, "INSERT INTO jobq.effect VALUES (%d, %lld)", (int)d->partition,
             (long long)m->seq);
    statement = for_schema(text, schema);
    PQclear(PQexec(jobq_pg_delivery_conn(d), statement));
    free(statement);
    return fuss(d, m);
}

static jobq_result mark_broken(jobq_delivery *d, const jobq_message *m)
{
    if (m->seq == 3 && m->attempts == 0) {
        PQclear(PQexec(jobq_pg_delivery_conn(d), "SELECT 1 / 0"));
        return JOBQ_RESULT_SUCCESS; /* it does not even look */
    }
    return mark(d, m);
}

static jobq_result dawdle(jobq_delivery *d, const jobq_message *m)
{
    (void)m;
    __sync_fetch_and_add(&seen->handled, 1);
    while (__sync_fetch_and_add(&seen->failures, 0) == 0) {
        if (__sync_fetch_and_add(&seen->deaths, 0) == 0 &&
            jobq_delivery_stopping(d, NULL) != JOBQ_STOP_NONE)
            break;
        nap_us(1000);
    }
    return JOBQ_RESULT_SUCCESS;
}

static jobq_result kill_itself(jobq_delivery *d, const jobq_message *m)
{
    (void)d;
    __sync_fetch_and_add(&seen->handled, 1);
    if (m->seq == 2) {
        __sync_fetch_and_add(&seen->deaths, 1);
        raise(SIGKILL);
    }
    return JOBQ_RESULT_SUCCESS;
}

/* -- what comes of it -- */

static void each_and_batch_handlers_get_messages_in_order(void **unused)
{
    jobq_pg_receiver r = receiver(take_each, NULL);

    (void)unused;
    open_box(4);
    put(NULL, 0, 250);
    put(NULL, 3, 30);
    receive_all(&r);
    assert_int_equal(seen->handled, 280);
    put(NULL, 0, 1234);
    r = receiver(NULL, take_all);
    receive_all(&r);
    assert_int_equal(seen->handled, 280 + 1234);
    assert_int_equal(seen->wrong, 0);
    assert_int_equal(seen->last[0], 250 + 1234);
    assert_int_equal(number("SELECT count(*) FROM jobq.outbox WHERE lag > 0"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE worker IS NOT NULL"), 0);
}

static void retries_and_refusals_under_the_lease(void **unused)
{
    jobq_pg_receiver r = receiver(fuss, NULL);
    jobq_pg_worker *worker;

    (void)unused;
    open_box(1);
    RUN("UPDATE jobq.queue SET max_attempts = 4");
    put(NULL, 0, 7);
    worker = begin(pg, &r, 2);
    assert_true(becomes(20, 7, "SELECT acked FROM jobq.partition"));
    end(worker);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 2);
    assert_text("SELECT error FROM jobq.dead_letter WHERE seq = 4", "never this one");
    assert_int_equal(number("SELECT attempts FROM jobq.dead_letter WHERE seq = 4"), 1);
    assert_text("SELECT error FROM jobq.dead_letter WHERE seq = 5",
                "Max retries (4) exceeded: not now");
    assert_int_equal(number("SELECT attempts FROM jobq.dead_letter WHERE seq = 5"), 4);
    assert_int_equal(number("SELECT cardinality(tried) FROM jobq.partition"), 0);
}

static void transactional_effects_are_exactly_once(void **unused)
{
    jobq_pg_receiver r = receiver(mark, NULL);
    jobq_pg_worker *worker;

    (void)unused;
    open_box(1);
    RUN("UPDATE jobq.queue SET max_attempts = 4");
    put(NULL, 0, 7);
    r.transactional = true;
    worker = begin(pg, &r, 2);
    assert_true(becomes(20, 7, "SELECT acked FROM jobq.partition"));
    end(worker);
    assert_text("SELECT string_agg(seq::text, ' ' ORDER BY seq) FROM jobq.effect", "1 2 3 6 7");
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE worker IS NOT NULL"), 0);
}

static void an_aborted_transaction_is_an_attempt(void **unused)
{
    jobq_pg_receiver r = receiver(mark_broken, NULL);
    jobq_pg_worker *worker;

    (void)unused;
    open_box(1);
    put(NULL, 0, 3);
    r.transactional = true;
    worker = begin(pg, &r, 1);
    assert_true(becomes(20, 3, "SELECT acked FROM jobq.partition"));
    end(worker);
    assert_text("SELECT string_agg(seq::text, ' ' ORDER BY seq) FROM jobq.effect", "1 2 3");
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 0);
}

/* Whether a handler that runs for several leases keeps its own. */
static bool keeps(int64_t lease_us)
{
    jobq_pg_receiver r = receiver(dawdle, NULL);
    jobq_pg_worker *worker;
    jobq_relay_stats stats;

    empty(NULL);
    open_box(1);
    put(NULL, 0, 1);
    r.tuning.lease_us = lease_us;
    worker = begin(pg, &r, 1);
    assert_true(becomes(30, 1, "SELECT count(*) FROM jobq.partition WHERE beat > 8 OR acked > 0 "
                               "OR error IS NOT NULL"));
    __sync_fetch_and_add(&seen->failures, 1);
    assert_true(becomes(20, 1, "SELECT acked FROM jobq.partition"));
    stats = end(worker);
    return stats.renewals >= 5 && stats.lost == 0 && seen->handled == 1;
}

static void a_long_handler_keeps_its_lease(void **unused)
{
    int64_t lease_us = 300000; /* less than a second: W-O22 */

    (void)unused; /* a loaded machine may renew too late: then with a longer one */
    while (lease_us <= 2400000 && !keeps(lease_us)) lease_us *= 2;
    assert_true(lease_us <= 2400000);
}

static void a_handler_out_of_time_is_asked_to_stop(void **unused)
{
    jobq_pg_receiver r = receiver(dawdle, NULL);
    jobq_pg_worker *worker;

    (void)unused;
    open_box(1);
    put(NULL, 0, 3);
    r.tuning.lease_us = 70 * SECOND; /* so it is the budget that ends */
    r.tuning.headroom_us = 10 * SECOND; /* half of it is there to obey in */
    r.tuning.budget_us = 150000;
    worker = begin(pg, &r, 1); /* each message takes all the time: one a delivery */
    assert_true(becomes(20, 3, "SELECT acked FROM jobq.partition"));
    end(worker);
    assert_int_equal(seen->handled, 3);
}

static void a_handler_that_does_not_listen_is_abandoned(void **unused)
{
    jobq_pg_receiver r = receiver(dawdle, NULL);
    jobq_pg_worker *worker;

    (void)unused;
    open_box(1);
    put(NULL, 0, 1);
    seen->deaths = 1; /* deaf */
    r.tuning.lease_us = 600000;
    r.tuning.budget_us = 150000;
    r.tuning.retry.base_us = r.tuning.retry.cap_us = 500000;
    worker = begin(pg, &r, 32); /* the retries are deaf too: not so many that it gives up */
    assert_true(
        becomes(20, 1, "SELECT count(*) FROM jobq.partition WHERE error = 'lease expired'"));
    assert_int_equal(number("SELECT acked FROM jobq.partition"), 0);
    assert_true(number("SELECT cardinality(tried) FROM jobq.partition") >= 1);
    __sync_fetch_and_add(&seen->failures, 1); /* the deaf one comes back, too late */
    assert_true(becomes(20, 1, "SELECT acked FROM jobq.partition"));
    end(worker);
}

/* Two queues, each with its own handler, and one message is one delivery. */
static jobq_result take_other(jobq_delivery *d, const jobq_message *m)
{
    if (!jobq_str_equal(d->queue, jobq_str_from("other")) || m->payload.len != 1) seen->wrong++;
    __sync_fetch_and_add(&seen->failures, 1);
    return JOBQ_RESULT_SUCCESS;
}

/* A paused queue's messages wait, those of another do not. */
static void a_paused_queues_messages_wait(void **unused)
{
    jobq_pg_receiver r[2];
    jobq_pg_worker_desc desc;
    jobq_pg_worker *worker;
    jobq_pg_error error;

    (void)unused;
    open_box(1);
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "p", 1, NULL, &error), JOBQ_OK);
    RUN("SELECT jobq.pause('o')");
    put(NULL, 0, 32);
    RUN("SELECT jobq.outbox_enqueue('p', '1')");
    r[0] = r[1] = receiver(take_each, NULL);
    r[1].queue = "p";
    memset(&desc, 0, sizeof desc);
    desc.receivers = r;
    desc.receiver_count = 2;
    if (jobq_pg_worker_start(pg, &desc, &worker, &error) != JOBQ_OK) fail_msg("%s", error.message);
    assert_true(becomes(20, 1, "SELECT sum(acked) FROM jobq.partition"));
    nap_us(300000);
    assert_int_equal(BOX("lag"), 32);
    RUN("SELECT jobq.resume('o')");
    assert_true(becomes(20, 33, "SELECT sum(acked) FROM jobq.partition"));
    end(worker);
}

static void two_queues_have_a_receiver_each(void **unused)
{
    jobq_pg_receiver r[2];
    jobq_pg_worker_desc desc;
    jobq_pg_worker *worker;
    jobq_pg_error error;
    jobq_pg_message m = plain_message(1);

    (void)unused;
    open_box(4);
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "other", 2, NULL, &error), JOBQ_OK);
    m.queue = "other";
    m.payload = jobq_str_from("x");
    r[0] = receiver(take_each, NULL);
    r[1] = receiver(take_other, NULL);
    r[1].queue = "other";
    r[1].transactional = true;
    memset(&desc, 0, sizeof desc);
    desc.receivers = r;
    desc.receiver_count = 2;
    assert_int_equal(jobq_pg_worker_start(pg, &desc, &worker, &error), JOBQ_OK);
    put(NULL, 2, 5);
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_OK);
    assert_true(becomes(20, 6, "SELECT sum(acked) FROM jobq.partition"));
    put(NULL, 2, 1); /* one that comes later is seen too */
    assert_true(becomes(20, 7, "SELECT sum(acked) FROM jobq.partition"));
    nap_us(200000);
    end(worker);
    assert_int_equal(seen->handled, 6);
    assert_int_equal(seen->failures, 1);
    assert_int_equal(seen->wrong, 0);
}

/* A stop in the middle: what was handled is acknowledged, nothing is handled after it, nobody holds
 * anything, and the rest comes to the next worker without an attempt. */
static jobq_result take_slowly(jobq_delivery *d, const jobq_message *m)
{
    nap_us(20000);
    return take_each(d, m);
}

static void a_stop_leaves_the_rest_to_the_next(void **unused)
{
    jobq_pg_receiver r = receiver(take_slowly, NULL);
    jobq_pg_worker *worker;
    int64_t start;
    int handled;

    (void)unused;
    open_box(1);
    put(NULL, 0, 1000);
    worker = begin(pg, &r, 1);
    start = mono_us();
    while (__sync_fetch_and_add(&seen->handled, 0) < 5 &&
           mono_us() - start < 20 * SECOND) nap_us(1000);
    start = mono_us();
    end(worker);
    assert_true(mono_us() - start < 20 * SECOND);
    handled = seen->handled;
    assert_in_range(handled, 5, 900);
    assert_int_equal(number("SELECT acked FROM jobq.partition"), handled);
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE worker IS NULL "
                            "AND tried = '{}'"), 1);
    nap_us(100000);
    assert_int_equal(seen->handled, handled);
    r = receiver(NULL, take_all);
    receive_all(&r);
    assert_int_equal(seen->handled, 1000);
    assert_int_equal(seen->wrong, 0);
}

/* -- waking -- */

/* Until that many were handled; false after that many seconds. */
static bool handled(int count, double seconds)
{
    int64_t until = mono_us() + (int64_t)(seconds * 1e6);

    while (__sync_fetch_and_add(&seen->handled, 0) < count) {
        if (mono_us() > until) return false;
        nap_us(1000);
    }
    return true;
}

/* The worker waits to be woken, past its first looks, which follow each other quickly. */
static void fall_asleep(void)
{
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.sleeper"));
    nap_us(300000);
}

static void nothing_is_handled_before_the_commit_that_wakes(void **unused)
{
    static const char *const ends[] = {"ROLLBACK", "COMMIT", "ROLLBACK", "COMMIT"};
    jobq_pg_receiver r = receiver(take_each, NULL);
    jobq_pg_worker *worker;
    int i, done = 0;

    (void)unused;
    open_box(2);
    worker = begin(pg, &r, 2);
    for (i = 0; i < 4; i++) {
        fall_asleep();
        RUN("BEGIN");
        put(db, i / 2, 1);
        nap_us(50000);
        assert_int_equal(seen->handled, done);
        RUN("%s", ends[i]);
        if (ends[i][0] == 'C') assert_true(handled(++done, 20));
        else nap_us(50000);
        assert_int_equal(seen->handled, done);
    }
    end(worker);
    assert_int_equal(seen->handled, 2);
    assert_int_equal(seen->wrong, 0); /* what was undone took no number */
}

/* Whether a quiet message, the count-th of all, is found soon after a long silence. */
static bool found_soon(const jobq_pg_message *m, int count)
{
    jobq_pg_error error;
    int64_t start;

    nap_us(4300000); /* looks only ever twice as late as the one before would come after 8 s */
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, m, NULL, &error), JOBQ_OK);
    start = mono_us();
    assert_true(handled(count, 20));
    return mono_us() - start < (check_slow() ? 20 : 2) * SECOND;
}

/* A listener of the test's own, entered as a sleeper, is told of a message, and not of a quiet one;
 * which the worker finds all the same. */
static void a_quiet_message_wakes_nobody_and_is_found_by_the_poll(void **unused)
{
    jobq_pg_receiver r = receiver(take_each, NULL);
    jobq_pg_message m;
    jobq_pg_worker_desc desc;
    jobq_pg_worker *worker;
    jobq_pg_error error;
    PGconn *own = PQconnectdb(server());
    int told[2] = {0, 0}, quiet, count = 7;

    (void)unused;
    open_box(1);
    m = plain_message(0);
    PQclear(sql(own, "LISTEN jobq_abc"));
    RUN("INSERT INTO jobq.sleeper VALUES (%d, %d)", (int)box, 0xabc);
    for (quiet = 0; quiet < 2; quiet++) {
        PGnotify *note;
        m.quiet = quiet != 0;
        assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_OK);
        assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, &m, 1, NULL, &error), JOBQ_OK);
        assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, &m, 1, JOBQ_PG_BY_COPY, &error),
                         JOBQ_OK);
        PQclear(sql(own, "SELECT 1"));
        while ((note = PQnotifies(own)) != NULL) {
            if (told[quiet]++ == 0) assert_int_equal(atoll(note->extra), box * 32768); /* its id */
            else assert_string_equal(note->extra, "");
            PQfreemem(note);
        }
    }
    PQfinish(own);
    assert_int_equal(told[0], 3);
    assert_int_equal(told[1], 0);
    RUN("DELETE FROM jobq.sleeper");
    memset(&desc, 0, sizeof desc);
    desc.receivers = &r;
    desc.receiver_count = 1;
    desc.loop.threads = 1;
    desc.loop.poll_us = 200000;
    assert_int_equal(jobq_pg_worker_start(pg, &desc, &worker, &error), JOBQ_OK);
    assert_true(handled(6, 20));
    while (count < 10 && !found_soon(&m, count)) count++; /* a loaded machine may look late */
    assert_true(count < 10);
    end(worker);
    assert_int_equal(seen->wrong, 0);
}

/* The worker is there first, and the queue has no partitions yet. */
static void a_queue_registered_after_the_worker_started_is_worked(void **unused)
{
    jobq_pg_receiver r = receiver(take_each, NULL);
    jobq_pg_worker_desc desc;
    jobq_pg_worker *worker;
    jobq_pg_error error;

    (void)unused;
    memset(&desc, 0, sizeof desc);
    desc.receivers = &r;
    desc.receiver_count = 1;
    desc.loop.threads = 1;
    desc.loop.poll_us = 200000;
    assert_int_equal(jobq_pg_worker_start(pg, &desc, &worker, &error), JOBQ_OK);
    nap_us(500000);
    open_box(4);
    put(NULL, 0, 3);
    put(NULL, 3, 2);
    assert_true(handled(5, 20));
    assert_true(becomes(20, 5, "SELECT sum(acked) FROM jobq.partition"));
    end(worker);
    assert_int_equal(seen->handled, 5);
    assert_int_equal(seen->wrong, 0);
}

/* More than a loop holds at once: each gets its turn. */
enum { MANY = 2 * JOBQ_LOOP_PARTITIONS };

static int turns[MANY];

static jobq_result take_turn(jobq_delivery *d, const jobq_message *m)
{
    bool known = d->partition >= 0 && d->partition < MANY && m->seq == 1;

    __sync_fetch_and_add(known ? &turns[d->partition] : (int *)&seen->wrong, 1);
    __sync_fetch_and_add(&seen->handled, 1);
    return JOBQ_RESULT_SUCCESS;
}

static void more_partitions_than_a_loop_holds_are_all_served(void **unused)
{
    jobq_pg_receiver r = receiver(take_turn, NULL);
    jobq_pg_worker *worker;
    int i;

    (void)unused;
    open_box(MANY);
    memset(turns, 0, sizeof turns);
    for (i = 0; i < MANY; i++) put(NULL, i, 1);
    worker = begin(pg, &r, 4);
    assert_true(becomes(30, MANY, "SELECT sum(acked) FROM jobq.partition"));
    end(worker);
    assert_int_equal(seen->handled, MANY);
    assert_int_equal(seen->wrong, 0);
    for (i = 0; i < MANY; i++) assert_int_equal(turns[i], 1);
}

/* -- processes -- */

static void a_message_wakes_another_process_at_once(void **unused)
{
    jobq_pg_receiver r = receiver(take_each, NULL);
    pid_t pid;
    int64_t start, took[5];
    int n, i;

    (void)unused;
    open_box(4);
    pid = child(&r, 2);
    for (n = 1; n <= 5; n++) {
        assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.sleeper"));
        nap_us(300000); /* long past the looks at 1, 2, 4 ... ms: the next one is seconds away */
        start = mono_us();
        put(NULL, n % 4, 1);
        while (__sync_fetch_and_add(&seen->handled, 0) < n &&
               mono_us() - start < 5 * SECOND) nap_us(200);
        assert_int_equal(__sync_fetch_and_add(&seen->handled, 0), n);
        for (i = n - 1; i > 0 && took[i - 1] > seen->at_us - start; i--) took[i] = took[i - 1];
        took[i] = seen->at_us - start;
        assert_true(becomes(20, n, "SELECT sum(acked) FROM jobq.partition"));
    }
    finish_child(pid, SIGTERM);
    print_message("wake-up: %.1f ms, at most %.1f\n", (double)took[2] / 1000,
                  (double)took[4] / 1000);
    assert_true(took[0] < (check_slow() ? 2000000 : 100000)); /* a busy machine may miss some */
}

static void a_message_that_kills_its_process_becomes_a_dead_letter(void **unused)
{
    jobq_pg_receiver r = receiver(kill_itself, NULL);
    int64_t until = mono_us() + 60 * SECOND;
    pid_t pid = 0;

    (void)unused;
    open_box(1);
    RUN("UPDATE jobq.queue SET max_attempts = 2");
    put(NULL, 0, 4);
    r.tuning.lease_us = 300000;
    while (mono_us() < until && number("SELECT acked FROM jobq.partition") < 4) {
        if (pid == 0) pid = child(&r, 1);
        if (waitpid(pid, NULL, WNOHANG) == pid) pid = 0; /* started again, as by its supervisor */
        nap_us(10000);
    }
    assert_int_equal(number("SELECT acked FROM jobq.partition"), 4);
    if (pid != 0) finish_child(pid, SIGTERM);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 1);
    assert_int_equal(number("SELECT attempts FROM jobq.dead_letter WHERE seq = 2"), seen->deaths);
    assert_true(seen->deaths >= 2 && seen->deaths <= 3); /* one more when it died in company */
    assert_text("SELECT error FROM jobq.dead_letter",
                "Max retries (2) exceeded: its worker died each time");
}

/* -- with jobs -- */

static jobq_outcome count_job(jobq_call *call)
{
    (void)call;
    __sync_fetch_and_add(&seen->failures, 1);
    return JOBQ_OUTCOME_SUCCESS;
}

static void jobs_and_messages_share_a_worker(void **unused)
{
    jobq_pg_handler handler;
    jobq_pg_receiver r = receiver(take_each, NULL);
    jobq_pg_worker_desc desc;
    jobq_pg_error error;

    (void)unused;
    open_box(2);
    put(NULL, 0, 500);
    put(NULL, 1, 500);
    enqueue_count(300);
    memset(&handler, 0, sizeof handler);
    memset(&desc, 0, sizeof desc);
    handler.queue = "q";
    handler.kind = "k";
    handler.run[0] = count_job;
    desc.handlers = &handler;
    desc.handler_count = 1;
    desc.receivers = &r;
    desc.receiver_count = 1;
    desc.loop.threads = 1; /* neither starves the other */
    desc.loop.until = JOBQ_UNTIL_EMPTY;
    if (jobq_pg_work(pg, &desc, &error) != JOBQ_OK) fail_msg("%s", error.message);
    assert_int_equal(seen->handled, 1000);
    assert_int_equal(seen->failures, 300);
    assert_int_equal(seen->wrong, 0);
}

static void a_worker_of_messages_leaves_jobs_alone(void **unused)
{
    jobq_pg_receiver r = receiver(take_each, NULL);
    jobq_pg_job job = plain_job();

    (void)unused;
    open_box(1);
    job.queue = "o";
    enqueue_with(&job);
    put(NULL, 0, 1);
    receive_all(&r);
    assert_int_equal(seen->handled, 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0 AND "
                            "run_at < now() + interval '1 s'"), 1);
}

static void bad_receivers_are_refused(void **unused)
{
    jobq_pg_receiver r[2];
    jobq_pg_worker_desc desc;
    jobq_pg_worker *worker;
    jobq_pg_error error;

    (void)unused;
    r[0] = r[1] = receiver(take_each, NULL);
    memset(&desc, 0, sizeof desc);
    assert_int_equal(jobq_pg_worker_start(pg, &desc, &worker, &error), JOBQ_ERROR_INVALID);
    desc.receivers = r;
    desc.receiver_count = 2; /* twice the same queue */
    assert_int_equal(jobq_pg_worker_start(pg, &desc, &worker, &error), JOBQ_ERROR_INVALID);
    desc.receiver_count = 1;
    r[0].all = take_all;
    assert_int_equal(jobq_pg_worker_start(pg, &desc, &worker, &error), JOBQ_ERROR_INVALID);
    r[0] = receiver(take_each, NULL);
    r[0].queue = "no good";
    assert_int_equal(jobq_pg_worker_start(pg, &desc, &worker, &error), JOBQ_ERROR_INVALID);
    r[0] = receiver(take_each, NULL);
    r[0].tuning.batch = JOBQ_LOOP_BATCH + 1;
    assert_int_equal(jobq_pg_worker_start(pg, &desc, &worker, &error), JOBQ_ERROR_INVALID);
}

/* 100 KB in the table, 1.1 GB as text: no server can send it. It becomes a dead letter, and the
 * others are delivered. */
static void a_message_too_large_to_send_stops_nobody(void **unused)
{
    jobq_pg_receiver r = receiver(take_each, NULL);
    jobq_pg_worker *worker;

    (void)unused;
    open_box(1);
    RUN("INSERT INTO jobq.message (partition_id, payload) SELECT id, (SELECT jsonb_agg("
        "'1e131071'::numeric) FROM generate_series(1, 8300)) FROM jobq.partition");
    put(NULL, 0, 20);
    r.tuning.batch = 4; /* each attempt costs the server seconds */
    worker = begin(pg, &r, 0);
    assert_true(becomes(600, 21, "SELECT acked FROM jobq.partition"));
    end(worker);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter WHERE seq = 1"), 1);
    RUN("TRUNCATE jobq.dead_letter");
}

static bool at_length(void) { return getenv("JOBQ_TEST_LONG") != NULL; }

static long acked(void)
{
    return number("SELECT coalesce(sum(acked), 0) FROM jobq.partition");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(each_and_batch_handlers_get_messages_in_order, empty),
        cmocka_unit_test_setup(retries_and_refusals_under_the_lease, empty),
        cmocka_unit_test_setup(transactional_effects_are_exactly_once, empty),
        cmocka_unit_test_setup(an_aborted_transaction_is_an_attempt, empty),
        cmocka_unit_test_setup(a_long_handler_keeps_its_lease, empty),
        cmocka_unit_test_setup(a_handler_out_of_time_is_asked_to_stop, empty),
        cmocka_unit_test_setup(a_handler_that_does_not_listen_is_abandoned, empty),
        cmocka_unit_test_setup(a_paused_queues_messages_wait, empty),
        cmocka_unit_test_setup(two_queues_have_a_receiver_each, empty),
        cmocka_unit_test_setup(a_stop_leaves_the_rest_to_the_next, empty),
        cmocka_unit_test_setup(nothing_is_handled_before_the_commit_that_wakes, empty),
        cmocka_unit_test_setup(a_quiet_message_wakes_nobody_and_is_found_by_the_poll, empty),
        cmocka_unit_test_setup(a_queue_registered_after_the_worker_started_is_worked, empty),
        cmocka_unit_test_setup(more_partitions_than_a_loop_holds_are_all_served, empty),
        cmocka_unit_test_setup(jobs_and_messages_share_a_worker, empty),
        cmocka_unit_test_setup(a_worker_of_messages_leaves_jobs_alone, empty),
        cmocka_unit_test_setup(bad_receivers_are_refused, empty),
        cmocka_unit_test_setup(a_message_wakes_another_process_at_once, empty),
        cmocka_unit_test_setup(a_message_that_kills_its_process_becomes_a_dead_letter, empty),
        cmocka_unit_test_setup(a_message_too_large_to_send_stops_nobody, empty),
        cmocka_unit_test_setup(tables_stay_small_under_load, empty),
    };

    return cmocka_run_group_tests_name("relay", tests, board_up, pg_down);
}
