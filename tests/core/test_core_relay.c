/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The relay: the loop's part for messages, step by step, and in random worlds.
 *
 * A random world has two or three workers, each a jobq_loop on a connection of its own, and one
 * jobq_memory with two partitions. A statement is sent, executed and answered in three steps, and
 * each step may fail: connections are cut, answers come late, a statement of a lost connection is
 * executed after all, processes crash or are stopped beyond their lease, messages are bad. These
 * laws are checked on the way:
 *
 *   (1) order      a handler gets contiguous messages, the first right after the acknowledged ones
 *   (2) no skip    each acknowledged message was handled, or is a dead letter by its own fault
 *   (3) no stale   a statement without the current token changes nothing
 *   (4) one holder no two handlers have one partition while both believe that they hold its lease
 *   (5) no block   when the faults stop, every partition is done within a bound
 */
#define JOBQ_LOOP_SLOTS 16
#define JOBQ_LOOP_LANES 16
#define JOBQ_LOOP_CLAIMS 16
#define JOBQ_LOOP_PARTITIONS 4
#define JOBQ_LOOP_BATCH 8
#define JOBQ_MEMORY_PARTITIONS 4
#define JOBQ_MEMORY_MESSAGES 256
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#define WIRE_PRIORITY 0
#include "check.h"
#include "told.h"
#include "wire.h"

#define MS ((int64_t)1000)
#define LEASE (2 * SECOND)

static jobq_loop loop;
static union {
    int64_t align;
    char bytes[1 << 18];
} block;
static jobq_memory *memory;

static jobq_loop_served served; /* of config_for_messages */

static jobq_loop_config config_for_messages(void)
{
    jobq_loop_config config;

    memset(&config, 0, sizeof config);
    memset(&served, 0, sizeof served);
    config.served = &served;
    config.threads = 2;
    served.listen = true;
    served.message_queues = 1;
    served.jobless_queues = 1;
    served.tuning[0].batch = 4;
    served.tuning[0].lease_us = LEASE;
    served.tuning[0].headroom_us = 200 * MS;
    served.tuning[0].budget_us = 10 * SECOND;
    served.tuning[0].retry.base_us = SECOND;
    served.tuning[0].retry.jitter_permille = JOBQ_NO_JITTER;
    served.tuning[0].retry.cap_us = 8 * SECOND;
    return config;
}

static void start(const jobq_loop_config *config)
{
    jobq_loop_init(&loop, config, 4711, 0);
    assert_true(jobq_memory_size(4, 16, 64) <= sizeof block);
    memory = jobq_memory_init(&block, 4, 16, 64);
    assert_int_equal(jobq__memory_outbox(memory, 1, 2), 1);
}

static int setup(void **unused)
{
    jobq_loop_config config = config_for_messages();

    (void)unused;
    start(&config);
    return 0;
}

static void send(int32_t number, int count)
{
    while (count-- > 0) {
        assert_true(jobq__memory_send(memory, 1, number, jobq_str_from("{}")));
    }
}

/* The next action that is no WAIT, carried out on the store. */
static jobq_request step(int64_t now)
{
    jobq_request a = asks(&loop, now);

    if (a.kind != JOBQ_REQUEST_WAIT) jobq__memory_perform(memory, &loop, &a, 2, 0, now, now);
    return a;
}

static int64_t settle_down(int64_t now)
{
    jobq_request a;
    int n;

    for (n = 0; n < 100; n++) {
        a = step(now);
        if (a.kind == JOBQ_REQUEST_WAIT || a.kind == JOBQ_REQUEST_EXIT) break;
    }
    assert_true(n < 100);
    return a.kind == JOBQ_REQUEST_EXIT ? JOBQ_NEVER : a.until_mono_us;
}

/* Does everything up to an instant, when it is due; no handler ends meanwhile. */
static void live_until(int64_t from, int64_t until)
{
    int64_t now = from;

    while (now < until) {
        int64_t next = settle_down(now);
        now = next <= now ? now + 1 : next;
    }
    settle_down(until);
}

/* A handler for all that a part has: the same result for each. */
static void handle(int32_t part, int64_t now, jobq_result result)
{
    jobq_part *p = &loop.relay.parts[part];
    uint8_t results[JOBQ_LOOP_BATCH];
    jobq_verdict v;

    memset(&v, 0, sizeof v);
    memset(results, (int)result, sizeof results);
    v.result = result;
    v.processed = result == JOBQ_RESULT_SUCCESS ? (uint32_t)p->given : 0;
    if (result == JOBQ_RESULT_RETRY) memset(results + 1, JOBQ_RESULT_LEFT, sizeof results - 1);
    assert_true(told_delivered(&loop, now, part, p->generation, &v, results, false));
}

static const jobq_memory_partition *row(int id) { return &memory->partitions[id - 1]; }

/* -- step by step -- */

static void it_reads_numbers_and_acknowledges(void **unused)
{
    int32_t part;

    (void)unused;
    send(0, 6);
    settle_down(0);
    assert_int_equal(row(1)->last, 6); /* numbered */
    assert_int_equal(row(1)->reading, 4);
    assert_int_equal(row(1)->cursor.tried[0], 4); /* the trace is there before the handler */
    part = jobq__take_messages(&loop, 0);
    assert_true(part >= 0);
    assert_int_equal(loop.relay.parts[part].given, 4);
    assert_int_equal(jobq__take_messages(&loop, 0), -1);
    handle(part, 1, JOBQ_RESULT_SUCCESS);
    assert_int_equal(asks(&loop, 1).kind, JOBQ_REQUEST_ACK);
    assert_true(loop.relay.parts[part].on); /* a full batch: reads on in the same statement */
}

static void the_last_batch_gives_the_partition_up(void **unused)
{
    int32_t part;

    (void)unused;
    send(0, 6);
    settle_down(0);
    part = jobq__take_messages(&loop, 0);
    handle(part, 1, JOBQ_RESULT_SUCCESS);
    settle_down(1);
    assert_int_equal(row(1)->cursor.acked, 4);
    assert_true(row(1)->holder.worker == loop.worker); /* read on under the same token */
    part = jobq__take_messages(&loop, 1);
    assert_int_equal(loop.relay.parts[part].given, 2);
    handle(part, 2, JOBQ_RESULT_SUCCESS);
    settle_down(2);
    assert_int_equal(row(1)->cursor.acked, 6);
    assert_int_equal(row(1)->cursor.tried_count, 0);
    assert_true(row(1)->holder.worker == 0);
    assert_int_equal(loop.relay.held, 0);
}

static void idle_looks_write_nothing(void **unused)
{
    jobq_memory_partition before;

    (void)unused;
    live_until(0, 20 * SECOND);
    before = *row(1);
    live_until(20 * SECOND, 60 * SECOND);
    assert_memory_equal(&before, row(1), sizeof before);
    assert_true(loop.relay.stats.looks < 40); /* looks at poll pace, no storm */
    assert_true(loop.sleep.asleep);
}

/* tuning.idle_us shortens the pause between two looks, for the queue that says so. */
static void an_idle_worker_looks_as_often_as_its_queue_says(void **unused)
{
    jobq_loop_config config = config_for_messages();
    int64_t looks;

    (void)unused;
    served.tuning[0].idle_us = 200 * MS;
    served.tuning[1].idle_us = 1 * MS; /* its messages are not handled here */
    start(&config);
    live_until(0, 20 * SECOND);
    looks = loop.relay.stats.looks;
    live_until(20 * SECOND, 30 * SECOND);
    assert_in_range(loop.relay.stats.looks - looks, 50, 67); /* a pause is 150 to 200 ms */
}

static void a_notified_sleeper_looks_at_once(void **unused)
{
    (void)unused;
    live_until(0, 20 * SECOND);
    send(1, 1);
    jobq_loop_notified(&loop, 20 * SECOND, "");
    settle_down(20 * SECOND);
    assert_true(jobq__take_messages(&loop, 20 * SECOND) >= 0);
}

/* A partition that was read before, and rests, is read again without a look. */
static void a_message_that_is_announced_is_read_first(void **unused)
{
    jobq_request a;

    (void)unused;
    send(0, 1);
    settle_down(0);
    handle(jobq__take_messages(&loop, 0), 1, JOBQ_RESULT_SUCCESS);
    live_until(0, 20 * SECOND);
    send(0, 1);
    jobq_loop_notified(&loop, 20 * SECOND, "2"); /* no such part */
    a = asks(&loop, 20 * SECOND);
    assert_int_equal(a.kind, JOBQ_REQUEST_LOOK);
    told_of(&loop, 20 * SECOND, &a, JOBQ_ERROR_RETRYABLE);
    jobq_loop_notified(&loop, 20 * SECOND, "1");
    a = asks(&loop, 20 * SECOND);
    assert_int_equal(a.kind, JOBQ_REQUEST_READ);
    assert_int_equal(a.partition_id, 1);
    jobq__memory_perform(memory, &loop, &a, 2, 0, 20 * SECOND, 20 * SECOND);
    handle(jobq__take_messages(&loop, 20 * SECOND), 1, JOBQ_RESULT_SUCCESS);
    live_until(20 * SECOND, 21 * SECOND);
    send(0, 1);
    ((jobq_memory_partition *)(uintptr_t)row(1))->run_at_us = 30 * SECOND; /* another's retry */
    live_until(21 * SECOND, 28 * SECOND);
    jobq_loop_notified(&loop, 28 * SECOND, "1");
    while ((a = asks(&loop, 28 * SECOND)).kind != JOBQ_REQUEST_WAIT) {
        assert_int_not_equal(a.kind, JOBQ_REQUEST_READ);
        jobq__memory_perform(memory, &loop, &a, 2, 0, 28 * SECOND, 28 * SECOND);
    }
}

static void a_retry_waits_by_the_stores_clock_for_every_worker(void **unused)
{
    int32_t part;

    (void)unused;
    send(0, 2);
    settle_down(0);
    part = jobq__take_messages(&loop, 0);
    handle(part, 1, JOBQ_RESULT_RETRY);
    settle_down(1);
    assert_true(row(1)->run_at_us > 700 * MS && row(1)->run_at_us < 1300 * MS);
    assert_true(row(1)->holder.worker == 0);
    live_until(1, row(1)->run_at_us - 1);
    assert_int_equal(jobq__take_messages(&loop, row(1)->run_at_us - 1), -1);
    live_until(row(1)->run_at_us - 1, row(1)->run_at_us + MS);
    part = jobq__take_messages(&loop, row(1)->run_at_us + MS);
    assert_true(part >= 0);
    assert_int_equal(jobq_cursor_attempts(&loop.relay.parts[part].cursor, 1), 1);
    assert_int_equal(jobq_cursor_attempts(&loop.relay.parts[part].cursor, 2), 0);
}

/* A worker that did not see the failure looks now and then, and leaves the partition alone. */
static void a_partition_that_rests_is_not_asked_for(void **unused)
{
    jobq_loop_config config = config_for_messages();
    int64_t now = MS, until;
    int looks = 0, reads = 0;
    jobq_request a;

    (void)unused;
    served.tuning[0].retry.base_us = 8 * SECOND;
    served.tuning[0].retry.jitter_permille = JOBQ_NO_JITTER;
    start(&config);
    send(0, 2);
    settle_down(0);
    handle(jobq__take_messages(&loop, 0), 1, JOBQ_RESULT_RETRY);
    settle_down(1);
    until = row(1)->run_at_us;
    assert_true(until > 5 * SECOND);
    jobq_loop_init(&loop, &config, 4712, now);
    while (now < until) {
        a = step(now);
        looks += a.kind == JOBQ_REQUEST_LOOK;
        reads += a.kind == JOBQ_REQUEST_READ;
        if (a.kind == JOBQ_REQUEST_WAIT) now = jobq__min(a.until_mono_us, until);
    }
    assert_int_equal(reads, 0);
    assert_in_range(looks, 5, 20);
    settle_down(until);
    assert_true(jobq__take_messages(&loop, until) >= 0);
}

static void a_lease_is_renewed_while_its_handler_has_time(void **unused)
{
    int32_t part;
    uint32_t generation;

    (void)unused;
    send(0, 1);
    settle_down(0);
    part = jobq__take_messages(&loop, 0);
    generation = loop.relay.parts[part].generation;
    live_until(0, 9 * SECOND);
    assert_true(loop.relay.stats.renewals >= 9);
    assert_true(row(1)->lease_until_us > 10 * SECOND);
    assert_int_equal(jobq__delivery_stop(&loop, 9 * SECOND, part, generation), 0);
    assert_int_equal(jobq__delivery_stop(&loop, 10 * SECOND, part, generation),
                     JOBQ_STOP_TIMEOUT);
    live_until(9 * SECOND, 10 * SECOND + 101 * MS); /* half the headroom later: given up */
    assert_int_equal(loop.stats.abandoned, 1);
    assert_int_equal(row(1)->cursor.acked, 0);
    assert_int_equal(jobq_cursor_attempts(&row(1)->cursor, 1), 1);
    assert_int_equal(jobq__delivery_stop(&loop, 11 * SECOND, part, generation),
                     JOBQ_STOP_LOST);
}

static void the_lease_counts_from_before_the_read(void **unused) /* X22, S26 */
{
    jobq_loop_config config = config_for_messages();
    jobq_request a;
    int32_t part;

    (void)unused;
    served.tuning[0].budget_us = 100 * MS; /* never renewed */
    start(&config);
    send(0, 1);
    while ((a = asks(&loop, 0)).kind != JOBQ_REQUEST_READ) {
        jobq__memory_perform(memory, &loop, &a, 2, 0, 0, 0);
    }
    jobq__memory_perform(memory, &loop, &a, 2, 0, SECOND, SECOND); /* the answer took a second */
    assert_true(loop.relay.parts[0].lease_mono_us == LEASE - 200 * MS);
    part = jobq__take_messages(&loop, LEASE - 200 * MS);
    assert_int_equal(part, -1); /* too late to begin */
    settle_down(LEASE - 200 * MS);
    assert_true(row(1)->cursor.tried_count <= 1); /* given back, and read again */
    assert_true(jobq__take_messages(&loop, LEASE - 200 * MS) >= 0);
}

/* Someone has its row locked: no storm of reads, though looks find its messages meanwhile. */
static void a_busy_partition_is_asked_for_again_in_5_ms(void **unused)
{
    static const jobq_reading busy = {.busy = true};
    int64_t now = 0;
    int reads, i;

    (void)unused;
    send(0, 1);
    for (i = 0; i < 20; i++) {
        jobq_request a;
        for (reads = 0; (a = asks(&loop, now)).kind != JOBQ_REQUEST_WAIT;) {
            if (a.kind == JOBQ_REQUEST_READ) {
                told_read(&loop, now, a.slot, JOBQ_OK, &busy);
                reads++;
            } else jobq__memory_perform(memory, &loop, &a, 2, 0, now, now);
        }
        assert_in_range(reads, 1, 2); /* a look finds it, too */
        now = loop.relay.parts[0].due_mono_us;
        assert_true(now == (i + 1) * 5 * MS);
        assert_true(a.until_mono_us <= now);
    }
    settle_down(now);
    assert_true(jobq__take_messages(&loop, now) >= 0);
}

static void a_stop_gives_back_what_no_handler_has(void **unused)
{
    int32_t part;

    (void)unused;
    send(0, 3);
    send(1, 3);
    settle_down(0);
    part = jobq__take_messages(&loop, 0);
    jobq_loop_stop(&loop, 1, SECOND);
    settle_down(1);
    assert_int_equal(loop.relay.held, 1);
    assert_int_equal(
        jobq__delivery_stop(&loop, 1, part, loop.relay.parts[part].generation),
        JOBQ_STOP_SHUTDOWN);
    handle(part, 2, JOBQ_RESULT_SUCCESS);
    assert_true(settle_down(2) == JOBQ_NEVER); /* the loop has ended */
    assert_int_equal(row(1)->cursor.acked + row(2)->cursor.acked, 3);
    assert_true(row(1)->holder.worker == 0 && row(2)->holder.worker == 0);
    assert_int_equal(row(1)->cursor.tried_count + row(2)->cursor.tried_count, 0);
}

static void a_handler_that_outlives_the_grace_is_given_up(void **unused)
{
    (void)unused;
    send(0, 3);
    settle_down(0);
    jobq__take_messages(&loop, 0);
    jobq_loop_stop(&loop, 1, SECOND);
    live_until(1, SECOND + 2);
    assert_int_equal(loop.phase, JOBQ_PHASE_EXITED);
    assert_int_equal(row(1)->cursor.tried_count, 0);
    assert_true(row(1)->holder.worker == 0);
}

static void until_empty_waits_for_messages(void **unused)
{
    jobq_loop_config config = config_for_messages();
    int32_t part;
    int64_t now = 0;

    (void)unused;
    config.until = JOBQ_UNTIL_EMPTY;
    start(&config);
    send(0, 9);
    send(1, 1);
    while (settle_down(now) != JOBQ_NEVER && now < 10 * SECOND) {
        now += MS;
        while ((part = jobq__take_messages(&loop, now)) >= 0) {
            handle(part, now, JOBQ_RESULT_SUCCESS);
        }
    }
    assert_int_equal(loop.phase, JOBQ_PHASE_EXITED);
    assert_int_equal(row(1)->cursor.acked, 9);
    assert_int_equal(row(2)->cursor.acked, 1);
    assert_true(now < SECOND);
}

/* A message that rests before its next attempt is none that is done. */
static void until_ended_waits_for_messages_that_rest(void **unused)
{
    jobq_loop_config config = config_for_messages();
    int64_t now = 0;
    int tries = 0;
    int32_t part;

    (void)unused;
    config.until = JOBQ_UNTIL_ENDED;
    start(&config);
    send(0, 1);
    while (loop.phase != JOBQ_PHASE_EXITED && now < 60 * SECOND) {
        settle_down(now);
        now += MS;
        while ((part = jobq__take_messages(&loop, now)) >= 0) {
            handle(part, now, ++tries < 3 ? JOBQ_RESULT_RETRY : JOBQ_RESULT_SUCCESS);
        }
    }
    assert_int_equal(tries, 3);
    assert_int_equal(row(1)->cursor.acked, 1);
    assert_int_equal(loop.phase, JOBQ_PHASE_EXITED);
}

static void a_paused_queue_is_left_alone(void **unused)
{
    (void)unused;
    jobq_memory_policy(memory, 1, NULL, true);
    send(0, 1);
    settle_down(0);
    assert_int_equal(row(1)->last, 0);
    jobq_memory_policy(memory, 1, NULL, false);
    live_until(0, 6 * SECOND);
    assert_true(jobq__take_messages(&loop, 6 * SECOND) >= 0);
}

static void bad_answers_are_refused_whole(void **unused)
{
    static const jobq_reading bad[] = {
        {.count = 5}, /* four were asked for */
        {.count = -1},
        {.count = 1, .lost = -1},
        {.count = 1, .cursor = {.acked = -1}},
    };
    jobq_request a;
    size_t i;

    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setup(unused);
        send(0, 1);
        while ((a = asks(&loop, 0)).kind != JOBQ_REQUEST_READ) {
            jobq__memory_perform(memory, &loop, &a, 2, 0, 0, 0);
        }
        told_read(&loop, 0, a.slot, JOBQ_OK, &bad[i]);
        assert_int_equal(loop.relay.parts[a.slot].state, JOBQ_PART_AWAY);
        assert_int_equal(loop.relay.held, 0);
        assert_true(loop.relay.parts[a.slot].due_mono_us == 50 * MS);
    }
}

/* An acknowledgement that read on more than was asked for, or less than nothing, is sent again. */
static void bad_counts_are_refused_whole(void **unused)
{
    static const int32_t bad[] = {-1, 5};
    jobq_request a;
    size_t i;

    for (i = 0; i < 2; i++) {
        setup(unused);
        send(0, 6);
        settle_down(0);
        handle(jobq__take_messages(&loop, 0), 1, JOBQ_RESULT_SUCCESS);
        a = asks(&loop, 1);
        assert_int_equal(a.kind, JOBQ_REQUEST_ACK);
        told_acked(&loop, 1, a.slot, JOBQ_OK, bad[i]);
        assert_int_equal(loop.relay.parts[a.slot].state, JOBQ_PART_FINISHED);
        assert_int_equal(loop.relay.stats.succeeded, 0);
    }
}

/* News about a queue that this worker does not serve, or about nothing. */
static void backlogs_of_others_are_nothing(void **unused)
{
    static const jobq_backlog none[] = {
        {.id = 1, .queue = 9, .waiting = 3},
        {.id = 1, .queue = 1, .waiting = 0},
    };
    int i;

    (void)unused;
    settle_down(0);
    for (i = 0; i < 2; i++) jobq__relay_backlog(&loop, 0, &none[i]);
    assert_int_equal(loop.relay.count, 0);
}

/* The store's room is what it was compiled with; a second outbox is stored after the first. */
static void an_outbox_takes_what_room_there_is(void **unused)
{
    int i;

    (void)unused; /* two partitions of queue 1 are there */
    send(0, 1);
    assert_true(jobq__memory_remains(memory, 0, 2));
    assert_false(jobq__memory_remains(memory, 0, 4));
    memset(memory->messages, 0, sizeof memory->messages);
    assert_int_equal(jobq__memory_outbox(memory, 2, 3), 0);
    assert_int_equal(jobq__memory_outbox(memory, 2, 2), 3);
    assert_false(jobq__memory_send(memory, 2, 2, jobq_str_from("{}")));
    assert_false(jobq__memory_send(memory, 3, 0, jobq_str_from("{}")));
    for (i = 0; i < JOBQ_MEMORY_MESSAGES; i++) {
        assert_true(jobq__memory_send(memory, 2, 1, jobq_str_from("{}")));
    }
    assert_false(jobq__memory_send(memory, 2, 1, jobq_str_from("{}")));
}

/* The plan of a handler that acknowledges in its own transaction. */
static void commit_step(jobq_error error, bool written)
{
    uint8_t results[JOBQ_LOOP_BATCH];
    jobq_verdict v;
    jobq_part *p;
    jobq_request *r;
    int32_t part;

    send(0, 2);
    settle_down(0);
    part = jobq__take_messages(&loop, 0);
    p = &loop.relay.parts[part];
    memset(&v, 0, sizeof v);
    memset(results, JOBQ_RESULT_SUCCESS, sizeof results);
    v.result = JOBQ_RESULT_SUCCESS;
    v.processed = 2;
    assert_true(told_delivered(&loop, 1, part, p->generation, &v, results, true));
    settle_down(1); /* nobody else acknowledges it */
    r = other_asks(JOBQ_REQUEST_ACK, p->worker, p->claim);
    r->partition_id = 1;
    jobq__ack_of(&loop, p, &r->ack);
    if (written) assert_int_equal(told_by(memory, r, 1)->error, JOBQ_OK);
    assert_int_equal(row(1)->cursor.acked, written ? 2 : 0);
    assert_true(told_committed(&loop, 2, part, p->generation, error));
    live_until(2, 200 * MS);
}

static void a_handlers_own_transaction_acknowledges(void **unused)
{
    (void)unused;
    commit_step(JOBQ_OK, true);
    assert_int_equal(loop.relay.stats.succeeded, 2);
    assert_int_equal(loop.relay.held, 0);
}

static void a_commit_that_nobody_knows_counts_when_it_was_none(void **unused)
{
    (void)unused;
    commit_step(JOBQ_ERROR_CONNECTION, false);
    assert_int_equal(loop.relay.parts[0].state, JOBQ_PART_QUEUED); /* read again, one at first */
    assert_int_equal(loop.relay.parts[0].count, 1);
    assert_int_equal(jobq_cursor_attempts(&loop.relay.parts[0].cursor, 1), 1);
}

static void a_commit_that_nobody_knows_is_found_done(void **unused)
{
    (void)unused;
    commit_step(JOBQ_ERROR_CONNECTION, true);
    assert_int_equal(loop.relay.held, 0);
    assert_int_equal(row(1)->cursor.acked, 2);
    assert_int_equal(row(1)->cursor.tried_count, 0);
}

static void a_transaction_rolled_back_is_an_attempt(void **unused)
{
    (void)unused;
    commit_step(JOBQ_ERROR_RETRYABLE, false);
    assert_int_equal(row(1)->cursor.acked, 0);
    assert_int_equal(jobq_cursor_attempts(&row(1)->cursor, 1), 1);
    assert_true(row(1)->run_at_us > 0);
}

/* The first action of a kind, the others on the way carried out. */
static jobq_request reach(jobq_request_kind kind, int64_t now)
{
    jobq_request a;
    int n;

    for (n = 0; n < 100; n++) {
        a = asks(&loop, now);
        if (a.kind == kind) return a;
        assert_int_not_equal(a.kind, JOBQ_REQUEST_WAIT);
        jobq__memory_perform(memory, &loop, &a, 2, 0, now, now);
    }
    fail_msg("it never comes");
    return a;
}

static void a_refused_acknowledgement_is_sent_again(void **unused)
{
    int32_t part;

    (void)unused;
    send(0, 2);
    settle_down(0);
    part = jobq__take_messages(&loop, 0);
    handle(part, 1, JOBQ_RESULT_SUCCESS);
    told_acked(&loop, 2, reach(JOBQ_REQUEST_ACK, 1).slot, JOBQ_ERROR_RETRYABLE, 0);
    assert_int_equal(loop.relay.parts[part].state, JOBQ_PART_FINISHED);
    live_until(2, 60 * MS);
    assert_int_equal(row(1)->cursor.acked, 2);
}

/* The error may be of what was read on: what is done is acknowledged all the same. */
static void after_an_error_an_acknowledgement_reads_on_no_more(void **unused)
{
    jobq_request a;

    (void)unused;
    send(0, 6);
    settle_down(0);
    handle(jobq__take_messages(&loop, 0), 1, JOBQ_RESULT_SUCCESS);
    a = reach(JOBQ_REQUEST_ACK, 1);
    assert_int_equal(a.limit, 4);
    told_acked(&loop, 2, a.slot, JOBQ_ERROR_DATABASE, 0);
    a = reach(JOBQ_REQUEST_ACK, 100 * MS);
    assert_int_equal(a.limit, 0);
    jobq__memory_perform(memory, &loop, &a, 2, 0, 100 * MS, 100 * MS);
    assert_int_equal(row(1)->cursor.acked, 4);
    live_until(100 * MS, 200 * MS);
    assert_true(jobq__take_messages(&loop, 200 * MS) >= 0); /* and the others come */
}

/* The part of a partition that a handler gets now. */
static int32_t part_of(int64_t partition, int64_t now)
{
    int32_t part = jobq__take_messages(&loop, now);

    while (part >= 0 && loop.relay.parts[part].id != partition) {
        part = jobq__take_messages(&loop, now);
    }
    assert_true(part >= 0);
    return part;
}

/* An ACK whose texts the server refuses is sent without them, and then no longer: what was handled
 * comes again as after a crash. */
static void an_acknowledgement_is_not_refused_for_ever(void **unused)
{
    int64_t now = 1;
    int32_t part;
    int i;

    (void)unused;
    send(0, 2);
    send(1, 1);
    settle_down(0);
    part = part_of(1, 0);
    handle(part, 1, JOBQ_RESULT_SUCCESS);
    for (i = 0; i < 4; i++) {
        jobq_request a = reach(JOBQ_REQUEST_ACK, now);
        assert_int_equal(a.limit, 0); /* there were fewer than a batch */
        assert_true(a.ack.bare == (i > 0));
        told_acked(&loop, now, a.slot, JOBQ_ERROR_DATABASE, 0);
        now = jobq__max(now, loop.relay.parts[part].due_mono_us);
    }
    assert_int_equal(loop.relay.parts[part].state, JOBQ_PART_AWAY);
    live_until(now, now + 10 * MS);
    assert_int_equal(loop.relay.parts[part].lost, 2);
    assert_int_equal(loop.relay.parts[part].count, 1); /* one at a time */
    assert_int_equal(jobq_cursor_attempts(&row(1)->cursor, 1), 2);
}

/* A lock is not the fault of what the ACK carries. */
static void an_acknowledgement_keeps_its_texts_while_rows_are_locked(void **unused)
{
    int64_t now = 1;
    jobq_request a;
    int i;

    (void)unused;
    send(0, 2);
    settle_down(0);
    handle(jobq__take_messages(&loop, 0), 1, JOBQ_RESULT_SUCCESS);
    for (i = 0; i < 9; i++) {
        a = reach(JOBQ_REQUEST_ACK, now);
        assert_false(a.ack.bare);
        told_acked(&loop, now, a.slot, JOBQ_ERROR_RETRYABLE, 0);
        now = loop.relay.parts[a.slot].due_mono_us;
    }
    live_until(now, now + MS);
    assert_int_equal(row(1)->cursor.acked, 2);
}

/* A read of many that fails is made smaller, by rows and by bytes, and grows again. */
static void a_read_that_fails_is_made_smaller(void **unused)
{
    int64_t now = 0, bytes = INT64_MAX;
    int32_t want = 4;
    jobq_request a;

    (void)unused;
    send(0, 40);
    for (; want > 0; want /= 2) {
        a = reach(JOBQ_REQUEST_READ, now);
        assert_int_equal(a.limit, want);
        assert_true(a.bytes < bytes && !a.aside);
        bytes = a.bytes;
        told_read(&loop, now, a.slot, JOBQ_ERROR_TIMEOUT, NULL);
        now = loop.relay.parts[a.slot].due_mono_us;
    }
    settle_down(now);
    for (want = 1; want <= 3; want++) {
        int32_t part = jobq__take_messages(&loop, now);
        assert_int_equal(loop.relay.parts[part].given, want);
        handle(part, now, JOBQ_RESULT_SUCCESS);
        settle_down(now);
    }
}

/* The backend of a read that was given up may hold the row's lock for seconds. Reads that find the
 * row locked carry nothing, so the next one that does not is smaller all the same. */
static void a_locked_row_makes_no_read_larger(void **unused)
{
    static const jobq_reading busy = {.busy = true};
    int64_t now = 0;
    jobq_request a;
    int i, want = 4;

    (void)unused;
    send(0, 40);
    for (; want > 0; want /= 2) {
        for (i = 0; i < 20; i++) {
            a = reach(JOBQ_REQUEST_READ, now);
            assert_int_equal(a.limit, want);
            told_read(&loop, now, a.slot, JOBQ_OK, &busy);
            now = loop.relay.parts[a.slot].due_mono_us;
        }
        a = reach(JOBQ_REQUEST_READ, now);
        told_read(&loop, now, a.slot, JOBQ_ERROR_TIMEOUT, NULL);
        now = loop.relay.parts[a.slot].due_mono_us;
    }
}

/* A read that fails waits, longer each time, though looks find the partition's messages. */
static void a_look_does_not_hurry_a_read_that_failed(void **unused)
{
    int64_t now = 0;
    int reads = 0;

    (void)unused;
    send(0, 2);
    while (now < 2 * SECOND) {
        jobq_request a = asks(&loop, now);
        if (a.kind == JOBQ_REQUEST_READ) {
            reads++;
            told_read(&loop, now, a.slot, JOBQ_ERROR_RETRYABLE, NULL);
        } else if (a.kind == JOBQ_REQUEST_WAIT) now = jobq__min(a.until_mono_us, now + 10 * MS);
        else jobq__memory_perform(memory, &loop, &a, 2, 0, now, now);
        if (now % (100 * MS) == 0) jobq_loop_notified(&loop, now, "");
    }
    assert_int_equal(reads, 6); /* after 0, 50, 150, 350, 750, 1550 ms */
    loop.relay.parts[0].due_mono_us = JOBQ_NEVER; /* another one had it meanwhile */
    live_until(now, now + 2 * SECOND);
    assert_int_equal(loop.relay.held, 1);
}

/* A message that is read alone is given up when that failed three times, while the server answered
 * other statements; not when it answered none. */
static void a_message_is_given_up_when_others_are_answered(void **unused)
{
    int64_t now = 0;
    jobq_request a;
    int i;

    (void)unused;
    send(0, 2);
    for (i = 0; i < 12; i++) { /* nothing else is answered */
        a = reach(JOBQ_REQUEST_READ, now);
        assert_false(a.aside);
        loop.wire.well = 0;
        told_read(&loop, now, a.slot, JOBQ_ERROR_DATABASE, NULL);
        now = loop.relay.parts[a.slot].due_mono_us;
        loop.wire.well = 0;
    }
    for (i = 0; i < 3; i++) {
        a = reach(JOBQ_REQUEST_READ, now);
        assert_false(a.aside);
        loop.wire.well = UINT32_MAX;
        told_read(&loop, now, a.slot, JOBQ_ERROR_DATABASE, NULL);
        now = loop.relay.parts[a.slot].due_mono_us;
    }
    a = reach(JOBQ_REQUEST_READ, now);
    assert_true(a.aside);
    jobq__memory_perform(memory, &loop, &a, 2, 0, now, now);
    assert_int_equal(row(1)->cursor.acked, 1);
    assert_true(jobq__memory_message_at(memory, 1, 1)->dead);
    settle_down(now);
    assert_int_equal(row(1)->reading, 2); /* and the next one comes */
}

/* A connection that ends while two partitions are read is held against the one that the server was
 * carrying out. */
static void only_the_first_statement_on_its_way_is_blamed(void **unused)
{
    int32_t first, second;

    (void)unused;
    send(0, 1);
    send(1, 1);
    first = reach(JOBQ_REQUEST_READ, 0).slot;
    second = reach(JOBQ_REQUEST_READ, 0).slot;
    loop.relay.parts[first].size = loop.relay.parts[second].size = 1;
    loop.wire.well = UINT32_MAX;
    loop.wire.inflight = 0;
    jobq_loop_disconnected(&loop, 1);
    assert_int_equal(loop.relay.parts[first].budget.single, 1);
    assert_int_equal(loop.relay.parts[second].budget.single, 0);
}

/* A look that leaves together with a read comes after it: the read is to blame for the silence. */
static void a_message_that_never_arrives_is_given_up(void **unused)
{
    jobq_memory_partition *other = &memory->partitions[1];
    int64_t now = 0;
    bool silent = false;
    int reads = 0;

    (void)unused;
    send(0, 1);
    send(1, 1);
    other->holder.worker = 99; /* the second partition is only there to be looked for */
    other->holder.lease_us = other->lease_until_us = 3600 * SECOND;
    while (reads < 20) {
        jobq_request a = asks(&loop, now);
        loop.wire.budgets[JOBQ_REQUEST_LOOK].rows = 1;
        if (a.kind == JOBQ_REQUEST_READ) reads++;
        if (a.kind == JOBQ_REQUEST_READ && a.aside) break;
        silent |= a.kind == JOBQ_REQUEST_READ;
        if (a.kind == JOBQ_REQUEST_WAIT) now = a.until_mono_us;
        else if (a.kind == JOBQ_REQUEST_DISCONNECT) jobq_loop_disconnected(&loop, now);
        else if (!silent) jobq__memory_perform(memory, &loop, &a, 2, 0, now, now);
        silent &= a.kind != JOBQ_REQUEST_DISCONNECT;
    }
    assert_true(reads < 20);
}

/* Of a worker and of a partition, and the pause of the latter: what the clock has not reached when
 * it began is over, because the clock ran back. */
static void a_lease_lasts_from_its_beginning_to_its_end(void **unused)
{
    static const struct { int64_t at_us; bool lasts; } times[] = {
        {99 * SECOND, false}, {100 * SECOND, true}, {110 * SECOND, true}, {111 * SECOND, false}};
    jobq_memory_worker w = {.lease_us = 10 * SECOND, .expires_at_us = 110 * SECOND};
    jobq_memory_partition p = {.queue = 1, .holder = {.worker = 9, .claim = 1, .beat = 1},
                               .lease_until_us = 110 * SECOND, .beat_at_us = 100 * SECOND};
    jobq_request r = {.worker = 8, .watched = {.worker = 9, .claim = 1, .beat = 1}};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(times); i++) {
        jobq_reading out = {0};
        jobq_backlog b;
        assert_int_equal(jobq__memory_lapsed(&w, times[i].at_us), !times[i].lasts);
        assert_int_equal(jobq__memory_takes(&p, &r, times[i].at_us, &out), !times[i].lasts);
        memory->partitions[0].beat_at_us = 100 * SECOND;
        memory->partitions[0].run_at_us = 110 * SECOND + 1;
        jobq__memory_backlog(memory, 1, times[i].at_us, &b);
        assert_int_equal(b.due_us > 0, times[i].lasts);
    }
}

/* From the beginning, whatever bounds a look has: at the start and once a minute. */
static void it_sweeps_at_the_start_and_every_minute(void **unused)
{
    int64_t now = 0;
    int sweeps = 0, looks = 0;

    (void)unused;
    while (now < 130 * SECOND) {
        jobq_request a = step(now);
        sweeps += a.kind == JOBQ_REQUEST_LOOK && a.sweep;
        looks += a.kind == JOBQ_REQUEST_LOOK;
        if (looks == 1) assert_int_equal(sweeps, 1);
        if (a.kind == JOBQ_REQUEST_WAIT) now = a.until_mono_us > now ? a.until_mono_us : now + 1;
    }
    assert_int_equal(sweeps, 3);
    assert_true(looks > 6);
}

/* Only a sweep finds messages below the bound, and only a read that sweeps, too, gets them. */
static void what_a_sweep_finds_is_read_by_a_sweep(void **unused)
{
    jobq_backlog b = {.id = 1, .queue = 1, .waiting = 1, .below = true};
    jobq_request a;

    (void)unused;
    settle_down(0);
    send(0, 6);
    jobq__relay_backlog(&loop, 1, &b);
    a = asks(&loop, 1);
    assert_int_equal(a.kind, JOBQ_REQUEST_READ);
    assert_true(a.sweep);
    jobq__memory_perform(memory, &loop, &a, 2, 0, 1, 1);
    jobq__relay_backlog(&loop, 1, &b); /* while it is held: the next read is one */
    handle(jobq__take_messages(&loop, 1), 1, JOBQ_RESULT_SUCCESS);
    a = reach(JOBQ_REQUEST_ACK, 1);
    assert_true(a.limit > 0 && a.sweep);
    jobq__memory_perform(memory, &loop, &a, 2, 0, 1, 1);
    handle(jobq__take_messages(&loop, 1), 1, JOBQ_RESULT_SUCCESS);
    assert_false(reach(JOBQ_REQUEST_ACK, 1).sweep);
}

static void a_stop_ends_though_acknowledgements_are_refused(void **unused)
{
    int64_t now = 1;

    (void)unused;
    send(0, 2);
    settle_down(0);
    handle(jobq__take_messages(&loop, 0), 1, JOBQ_RESULT_SUCCESS);
    jobq_loop_stop(&loop, 1, SECOND);
    while (loop.phase != JOBQ_PHASE_EXITED && now < 60 * SECOND) {
        jobq_request a = asks(&loop, now);
        if (a.kind == JOBQ_REQUEST_WAIT) now = jobq__max(now + 1, a.until_mono_us);
        else if (a.kind == JOBQ_REQUEST_ACK) {
            told_acked(&loop, now, a.slot, JOBQ_ERROR_RETRYABLE, 0);
        } else jobq__memory_perform(memory, &loop, &a, 2, 0, now, now);
    }
    assert_true(now <= SECOND + loop.config.answer_us + 1);
}

/* A LOOK costs a second for each million ids that it looks at below the bound, which is at five
 * million. */
static void a_sweep_that_costs_much_is_made_in_slices(void **unused)
{
    int64_t now = 0, most = 0, seen = 0;
    int slices = 0, rounds = 0, whole = 0;

    (void)unused;
    while (now < 3600 * SECOND && rounds < 2) {
        jobq_request a = asks(&loop, now);
        int64_t cost = 0;
        if (a.kind == JOBQ_REQUEST_LOOK && a.sweep) {
            cost = jobq__min(a.below_to == 0 ? INT64_MAX : a.below_to, 5000000) - a.below_from;
            cost = jobq__max(cost, 0);
            assert_int_equal(a.below_from, seen); /* no gap */
            seen = a.below_to;
            if (a.below_to == 0) whole++;
            else most = jobq__max(most, cost);
            slices += a.below_to != 0;
            if (seen == INT64_MAX) rounds++;
            if (seen == INT64_MAX) seen = 0;
        }
        now += cost;
        if (a.kind != JOBQ_REQUEST_WAIT) jobq__memory_perform(memory, &loop, &a, 2, 0, now, now);
        else now = a.until_mono_us > now ? a.until_mono_us : now + 1;
    }
    assert_int_equal(rounds, 2);
    assert_in_range(whole, 1, 2);
    assert_true(most <= SECOND / 2);
    assert_in_range(slices, 80, 140);
    assert_in_range(now, 2 * 5 * 50 * SECOND, 8 * 5 * 50 * SECOND); /* at most 1/50 of the time */
    for (slices = rounds = 0; rounds < 3; ) { /* what costs nothing is over soon */
        jobq_request a = step(now);
        if (a.kind == JOBQ_REQUEST_WAIT) now = a.until_mono_us > now ? a.until_mono_us : now + 1;
        if (a.kind != JOBQ_REQUEST_LOOK || !a.sweep) continue;
        assert_int_not_equal(a.below_to, 0);
        rounds += a.below_to == INT64_MAX;
        slices += rounds > 0 && rounds < 3;
    }
    assert_in_range(slices, 2, 40);
}

/* How often it sweeps in ten minutes when each sweep takes so long, or fails at its time limit. */
static int sweeps_that_take(int64_t cost, jobq_error error)
{
    int64_t now = 0;
    int sweeps = 0, looks = 0;

    setup(NULL);
    while (now < 600 * SECOND) {
        jobq_request a = asks(&loop, now);
        if (a.kind == JOBQ_REQUEST_LOOK && a.sweep) {
            sweeps++;
            now += error == JOBQ_OK ? cost : loop.config.answer_us;
            if (error == JOBQ_ERROR_CONNECTION) jobq_loop_disconnected(&loop, now);
            else if (error != JOBQ_OK) told_plain(&loop, now, JOBQ_REQUEST_LOOK, error);
            if (error != JOBQ_OK) continue;
        }
        looks += a.kind == JOBQ_REQUEST_LOOK && !a.sweep;
        if (a.kind != JOBQ_REQUEST_WAIT) jobq__memory_perform(memory, &loop, &a, 2, 0, now, now);
        else now = a.until_mono_us > now ? a.until_mono_us : now + 1;
    }
    assert_true(looks > 100);
    return sweeps;
}

/* Behind a held snapshot: a fiftieth of the time, also for those that never come to an end. */
static void costly_sweeps_are_seldom(void **unused)
{
    (void)unused;
    assert_int_equal(sweeps_that_take(SECOND, JOBQ_OK), 11);
    assert_int_equal(sweeps_that_take(3 * SECOND, JOBQ_OK), 4);
    assert_int_equal(sweeps_that_take(0, JOBQ_ERROR_TIMEOUT), 2);
    assert_int_equal(sweeps_that_take(0, JOBQ_ERROR_CONNECTION), 2);
}

static void a_refused_renewal_is_sent_again(void **unused)
{
    int32_t part;
    jobq_request a;

    (void)unused;
    send(0, 1);
    settle_down(0);
    part = jobq__take_messages(&loop, 0);
    a = reach(JOBQ_REQUEST_RENEW, LEASE / 3);
    told_renewed(&loop, LEASE / 3, part, loop.relay.parts[part].generation,
                      JOBQ_ERROR_RETRYABLE);
    assert_int_equal(a.slot, part);
    assert_true(loop.relay.parts[part].renew_mono_us == LEASE / 3 + 50 * MS);
    live_until(LEASE / 3, LEASE / 3 + 50 * MS);
    assert_int_equal(loop.relay.stats.renewals, 1);
}

static void a_queues_time_out_is_a_deliverys(void **unused)
{
    jobq_policy policy = jobq_policy_defaults(NULL);
    int32_t part;

    (void)unused;
    policy.timeout_us = 300 * MS;
    jobq_memory_policy(memory, 1, &policy, false);
    send(0, 1);
    settle_down(0);
    part = jobq__take_messages(&loop, 0);
    assert_int_equal(jobq__delivery_stop(&loop, 300 * MS, part,
                                                 loop.relay.parts[part].generation),
                     JOBQ_STOP_TIMEOUT);
}

/* A handler that overruns within its own transaction: nobody knows what became of that. */
static void a_commit_that_overruns_is_nobodys(void **unused)
{
    uint8_t results[JOBQ_LOOP_BATCH];
    jobq_verdict v;
    int32_t part;

    (void)unused;
    send(0, 1);
    settle_down(0);
    part = jobq__take_messages(&loop, 0);
    memset(&v, 0, sizeof v);
    memset(results, JOBQ_RESULT_SUCCESS, sizeof results);
    v.result = JOBQ_RESULT_SUCCESS;
    v.processed = 1;
    assert_true(told_delivered(&loop, 1, part, loop.relay.parts[part].generation, &v,
                                    results, true));
    live_until(1, 3 * LEASE);
    assert_int_equal(loop.stats.abandoned, 1);
    assert_int_equal(row(1)->cursor.acked, 0);
    assert_int_equal(jobq_cursor_attempts(&row(1)->cursor, 1), 2); /* and it is read again */
}

static void acknowledged_messages_give_their_places_back(void **unused)
{
    int32_t part;

    (void)unused;
    send(0, 2);
    send(1, 1);
    settle_down(0);
    part = jobq__take_messages(&loop, 0);
    assert_int_equal(loop.relay.parts[part].id, 1);
    handle(part, 1, JOBQ_RESULT_SUCCESS);
    settle_down(1);
    send(0, 1);
    live_until(1, 100 * MS);
    handle(part_of(1, 100 * MS), 100 * MS, JOBQ_RESULT_REJECT); /* a dead letter stays */
    settle_down(100 * MS);
    assert_null(jobq__memory_message_at(memory, 1, 1));
    assert_null(jobq__memory_message_at(memory, 1, 2));
    assert_non_null(jobq__memory_message_at(memory, 1, 3));
    assert_non_null(jobq__memory_message_at(memory, 2, 1)); /* not acknowledged */
}

/* A place that is free again does not let a message pass those that wait. */
static void what_is_sent_first_is_numbered_first(void **unused)
{
    (void)unused;
    send(0, 2);
    settle_down(0);
    assert_true(jobq__memory_send(memory, 1, 0, jobq_str_from("early")));
    handle(jobq__take_messages(&loop, 0), 1, JOBQ_RESULT_SUCCESS);
    settle_down(1); /* leaves two places */
    assert_true(jobq__memory_send(memory, 1, 0, jobq_str_from("late")));
    live_until(1, 10 * MS);
    assert_true(jobq_str_equal(jobq__memory_message_at(memory, 1, 3)->payload,
                               jobq_str_from("early")));
}

static jobq_holder token_of(int64_t worker, int64_t claim, int64_t beat)
{
    jobq_holder h;

    memset(&h, 0, sizeof h);
    h.worker = worker;
    h.claim = claim;
    h.beat = beat;
    h.lease_us = LEASE;
    return h;
}

static jobq_reading read_as(jobq_holder who, int64_t handed, jobq_holder watched, int64_t now)
{
    return other_reads(memory, 1, &who, handed, &watched, 4, now);
}

static jobq_error renew_as(jobq_holder who)
{
    jobq_request *r = other_asks(JOBQ_REQUEST_RENEW, who.worker, who.claim);

    r->partition_id = 1;
    r->lease_us = who.lease_us;
    return told_by(memory, r, 0)->error;
}

/* Numbers are given when all that were given are acknowledged, and then ahead of what is read. */
static void a_read_hands_out_what_is_numbered_first(void **unused)
{
    jobq_holder a = token_of(1, 1, 0), b = token_of(1, 2, 0), nobody = token_of(0, 0, 0);

    (void)unused;
    send(0, 9);
    assert_int_equal(read_as(a, 0, nobody, 0).count, 4);
    assert_int_equal(row(1)->last, JOBQ_LOOP_BATCH);
    send(0, 1);
    assert_int_equal(read_as(b, 0, nobody, 0).count, 4);
    assert_int_equal(row(1)->last, JOBQ_LOOP_BATCH);
}

/* A worker dies with two partitions. */
static void one_dies_with_two(void)
{
    jobq_holder dead;
    int32_t i;

    send(0, 2);
    send(1, 2);
    for (i = 0; i < 2; i++) {
        memset(&dead, 0, sizeof dead);
        dead.worker = 99;
        dead.claim = i + 1;
        dead.lease_us = LEASE;
        assert_int_equal(other_reads(memory, i + 1, &dead, 0, NULL, 4, 0).count, 2);
    }
}

/* Whose worker died, maybe of it: one at a time. */
static void partitions_of_the_dead_are_taken_one_at_a_time(void **unused)
{
    int32_t part;

    (void)unused;
    one_dies_with_two();
    live_until(0, 2 * LEASE);
    assert_int_equal(loop.relay.held, 1);
    part = jobq__take_messages(&loop, 2 * LEASE);
    assert_true(part >= 0 && loop.relay.parts[part].suspect);
    assert_int_equal(jobq__take_messages(&loop, 2 * LEASE), -1);
    handle(part, 2 * LEASE, JOBQ_RESULT_SUCCESS);
    settle_down(2 * LEASE);
    assert_int_equal(loop.relay.held, 2); /* the first one is no longer a suspect */
}

/* The server refuses to read one of them until the other one is taken. Then the first one waits for
 * the end of that. */
static void a_takeover_that_failed_waits_for_the_other_one(void **unused)
{
    bool taken = false;
    int64_t now = 0;

    (void)unused;
    one_dies_with_two();
    while (now < 2 * LEASE - 500 * MS) {
        jobq_request a = asks(&loop, now);
        if (a.kind == JOBQ_REQUEST_WAIT) now = jobq__min(a.until_mono_us, now + 10 * MS);
        else if (a.kind == JOBQ_REQUEST_READ && a.partition_id == 1) {
            assert_false(taken);
            told_of(&loop, now, &a, JOBQ_ERROR_DATABASE);
        } else jobq__memory_perform(memory, &loop, &a, 2, 0, now, now);
        taken = loop.relay.held == 1;
    }
    assert_true(taken);
    handle(jobq__take_messages(&loop, now), now, JOBQ_RESULT_SUCCESS);
    settle_down(now);
    assert_int_equal(loop.relay.held, 2);
}

/* -- what the store lets through -- */

static void only_a_holder_that_stands_still_and_has_expired_is_replaced(void **unused)
{
    jobq_holder a = token_of(1, 1, 0), b = token_of(2, 1, 0), seen = a, nobody = token_of(0, 0, 0);

    (void)unused;
    send(0, 5);
    assert_int_equal(read_as(a, 0, nobody, 0).count, 4);
    assert_int_equal(read_as(b, 0, nobody, 10 * LEASE).holder.worker, 1); /* expired, not watched */
    assert_int_equal(read_as(b, 0, seen, LEASE).count, 0);                /* watched, not expired */
    assert_int_equal(renew_as(a), JOBQ_OK);
    assert_int_equal(read_as(b, 0, seen, 10 * LEASE).holder.beat, 1); /* it moved since */
    seen.beat = 1;
    assert_int_equal(read_as(b, 0, seen, 10 * LEASE).lost, 4);
    assert_int_equal(row(1)->reading, 1); /* after a death one at first */
    assert_int_equal(renew_as(a), JOBQ_ERROR_LOST);
}

static void statements_that_come_too_late_do_nothing(void **unused)
{
    jobq_holder first = token_of(1, 7, 0), second = token_of(1, 8, 0), nobody = token_of(0, 0, 0);
    jobq_request *r = NULL;
    jobq_memory_partition before;

    (void)unused;
    send(0, 9);
    assert_int_equal(read_as(second, 0, nobody, 0).count, 4);
    before = *row(1);
    assert_true(read_as(first, 0, nobody, 0).busy);
    assert_memory_equal(&before, row(1), sizeof before);
    r = other_asks(JOBQ_REQUEST_ACK, second.worker, second.claim);
    r->partition_id = 1;
    r->limit = r->ack.given = r->ack.plan.done = 4;
    r->ack.plan.cursor.acked = 4;
    r->ack.plan.directive.kind = JOBQ_DIRECTIVE_PROCEED;
    memset(r->ack.results, JOBQ_RESULT_SUCCESS, 4);
    assert_int_equal(told_by(memory, r, 0)->reading.count, 4);
    before = *row(1);
    assert_int_equal(told_by(memory, r, 0)->error, JOBQ_ERROR_LOST); /* the same once more */
    assert_memory_equal(&before, row(1), sizeof before);
}

static void a_holder_is_watched_for_a_lease_by_our_own_clock(void **unused)
{
    jobq_holder other = token_of(99, 1, 0), nobody = token_of(0, 0, 0);

    (void)unused;
    live_until(0, 20 * SECOND);
    send(0, 1);
    assert_int_equal(read_as(other, 0, nobody, 0).count, 1); /* its lease ended long ago */
    jobq_loop_notified(&loop, 20 * SECOND, "");
    live_until(20 * SECOND, 20 * SECOND + LEASE - MS);
    assert_int_equal(loop.relay.held, 0);
    jobq_loop_disconnected(&loop, 20 * SECOND + LEASE - MS); /* an outage proves nobody dead */
    live_until(20 * SECOND + LEASE - MS, 20 * SECOND + 2 * LEASE - 100 * MS);
    assert_int_equal(loop.relay.held, 0);
    live_until(20 * SECOND + 2 * LEASE - 100 * MS, 20 * SECOND + 2 * LEASE + 100 * MS);
    assert_int_equal(loop.relay.held, 1);
    assert_int_equal(loop.relay.stats.takeovers, 1);
}

/* The loop sleeps no longer than until the lease is over, however late it looks again. */
static void a_partition_is_taken_over_when_the_lease_of_its_holder_ends(void **unused)
{
    jobq_holder other = token_of(99, 1, 0), nobody = token_of(0, 0, 0);
    int64_t now = 20 * SECOND, end = now + LEASE;
    int n;

    (void)unused;
    live_until(0, now);
    send(0, 1);
    assert_int_equal(read_as(other, 0, nobody, 0).count, 1);
    jobq_loop_notified(&loop, now, "");
    for (n = 0; n < 1000 && loop.relay.stats.takeovers == 0; n++) {
        int64_t next = settle_down(now);
        if (loop.relay.stats.takeovers > 0) break;
        assert_true(next > now && next <= end && jobq_loop_due(&loop, now) <= end);
        now = next;
    }
    assert_int_equal(loop.relay.stats.takeovers, 1);
    assert_true(now == end);
}

/* Carries out the loop's actions until one of a kind, which is executed but not answered. */
static void lose_answer_of(jobq_request_kind kind, int64_t now)
{
    static jobq_loop other;
    jobq_request a;
    int n;

    for (n = 0; n < 100; n++) {
        a = asks(&loop, now);
        if (a.kind == kind) break;
        assert_int_not_equal(a.kind, JOBQ_REQUEST_WAIT);
        jobq__memory_perform(memory, &loop, &a, 2, 0, now, now);
    }
    other = loop;
    jobq__memory_perform(memory, &other, &a, 2, 0, now, now);
    jobq_loop_disconnected(&loop, now);
}

static void a_read_whose_answer_was_lost_is_no_attempt(void **unused)
{
    int32_t part;

    (void)unused;
    send(0, 3);
    lose_answer_of(JOBQ_REQUEST_READ, 0);
    assert_int_equal(row(1)->cursor.tried_count, 1);
    live_until(0, SECOND);
    part = jobq__take_messages(&loop, SECOND);
    assert_int_equal(loop.relay.parts[part].given, 2); /* half of 4: it got no answer */
    assert_int_equal(loop.relay.parts[part].cursor.tried_count, 0);
    assert_int_equal(row(1)->cursor.tried_count, 1);
}

static void an_acknowledgement_whose_answer_was_lost_stands(void **unused)
{
    int32_t part;

    (void)unused;
    send(0, 7);
    settle_down(0);
    part = jobq__take_messages(&loop, 0);
    handle(part, 1, JOBQ_RESULT_SUCCESS);
    lose_answer_of(JOBQ_REQUEST_ACK, 1); /* it read on */
    assert_int_equal(row(1)->cursor.acked, 4);
    live_until(1, SECOND);
    part = jobq__take_messages(&loop, SECOND);
    assert_int_equal(loop.relay.parts[part].cursor.acked, 4);
    assert_int_equal(loop.relay.parts[part].given, 2);              /* half of 4 */
    assert_int_equal(loop.relay.parts[part].cursor.tried_count, 0); /* nobody had them */
    assert_int_equal(loop.relay.stats.lost, 0);                     /* LOST was expected */
}

static void the_death_before_a_batch_is_not_held_against_the_next(void **unused)
{
    jobq_holder other = token_of(99, 1, 0), nobody = token_of(0, 0, 0);
    jobq_policy policy = jobq_policy_defaults(NULL);
    int32_t part;

    (void)unused;
    policy.max_attempts = 1;
    jobq_memory_policy(memory, 1, &policy, false);
    send(0, 3);
    assert_int_equal(read_as(other, 0, nobody, 0).count, 3); /* dies with all three */
    live_until(0, 3 * LEASE);
    for (part = 0; part >= 0;) {
        part = jobq__take_messages(&loop, 3 * LEASE);
        if (part < 0) break;
        handle(part, 3 * LEASE, JOBQ_RESULT_SUCCESS);
        settle_down(3 * LEASE);
    }
    assert_int_equal(row(1)->cursor.acked, 3);
    assert_int_equal(loop.relay.stats.dead, 0);
}

/* -- random worlds -- */

/* TRIES: a good message is tried when a fault kills its process (6 times), and when a bad one
 * of the other partition kills for the first time; then the two are no longer read side by side. */
enum { NODES = 3, FLIGHT = 32, GHOSTS = 8, MESSAGES = 40, TRIES = 12 };

typedef struct node {
    bool up;
    int64_t paused_until;
    int32_t flying;
    jobq_loop loop;
    wire flight[FLIGHT];
} node;

typedef struct world {
    jobq_random random;
    int64_t now;
    int32_t nodes, faults, kills;
    bool each;
    int32_t ghosts;
    wire ghost[GHOSTS];
    node node[NODES];
    char nature[3][MESSAGES + 1]; /* by partition and seq: g, r, k, x, f (fails twice) */
    int32_t handled[3][MESSAGES + 1];
    int32_t tries[3][MESSAGES + 1];
    int32_t sent[3];
    uint64_t seed;
} world;

static world w;
static bool world_dies; /* the handler that runs is killed by its message */

static int64_t draw(int64_t low, int64_t high)
{
    return jobq_random_between(jobq_random_next(&w.random), low, high);
}

#define LAW(condition, text)                                                    \
    if (!(condition)) fail_msg("seed %llu: %s", (unsigned long long)w.seed, text)

static void node_start(node *n)
{
    jobq_loop_config config = config_for_messages();

    served.tuning[0].budget_us = 5 * SECOND;
    memset(n, 0, sizeof *n);
    n->up = true;
    jobq_loop_init(&n->loop, &config, jobq_random_next(&w.random), w.now);
}

static void send_off(node *n, const jobq_request *a)
{
    n->flying += wire_send_all(&n->flight[n->flying], a);
    LAW(n->flying + 1 < FLIGHT, "too many statements on their way");
}

/* Law 3: without its token a statement leaves the row as it was. */
static void check_fence(const wire *r, const jobq_memory_partition *before)
{
    const jobq_memory_partition *after = &memory->partitions[r->request.partition_id - 1];
    bool held = jobq__memory_holder(before, r->request.worker, r->request.claim);

    if (r->request.kind == JOBQ_REQUEST_READ) {
        LAW(after->cursor.acked == before->cursor.acked, "law 2: a read acknowledged");
        return;
    }
    LAW(held || memcmp(before, after, sizeof *before) == 0, "law 3: written without the token");
    LAW(held || r->answer.error == JOBQ_ERROR_LOST, "law 3: lost, and not told so");
    LAW(after->cursor.acked >= before->cursor.acked, "law 1: the cursor ran back");
}

static void execute(wire *r)
{
    bool fenced = wire_of_part(r->request.kind);
    jobq_memory_partition before = memory->partitions[fenced ? r->request.partition_id - 1 : 0];

    wire_execute(r, memory, 2, 0, w.now);
    if (fenced) check_fence(r, &before);
}

static void shift(node *n)
{
    n->flying--;
    memmove(n->flight, n->flight + 1, (size_t)n->flying * sizeof n->flight[0]);
}

/* The connection is gone; what was sent may yet be executed. */
static void lose(node *n)
{
    int32_t i;

    for (i = 0; i < n->flying; i++) {
        if (!n->flight[i].executed && w.ghosts < GHOSTS && draw(0, 2) == 0) {
            w.ghost[w.ghosts++] = n->flight[i];
        }
    }
    n->flying = 0;
}

static void drive(node *n)
{
    jobq_request a;
    int guard;

    for (guard = 0; guard < 200; guard++) {
        a = asks(&n->loop, w.now);
        if (a.kind == JOBQ_REQUEST_WAIT || a.kind == JOBQ_REQUEST_EXIT) return;
        if (a.kind == JOBQ_REQUEST_DISCONNECT) {
            lose(n);
            jobq_loop_disconnected(&n->loop, w.now);
        } else if (a.kind == JOBQ_REQUEST_ABANDON || a.kind == JOBQ_REQUEST_CONNECT) {
            jobq__memory_perform(memory, &n->loop, &a, 2, 0, w.now, w.now);
        } else send_off(n, &a);
    }
    LAW(false, "the loop finds no end");
}

/* -- its handlers -- */

static jobq_result world_message(jobq_delivery *d, const jobq_message *message)
{
    int64_t part = d->partition_id;
    char nature = w.nature[part][message->seq];

    w.tries[part][message->seq]++;
    if (nature == 'k') world_dies = true;
    if (nature == 'r' || nature == 'k') return JOBQ_RESULT_RETRY;
    if (nature == 'f' && w.tries[part][message->seq] <= 2) return JOBQ_RESULT_RETRY;
    if (nature == 'x') return JOBQ_RESULT_REJECT;
    w.handled[part][message->seq]++;
    return JOBQ_RESULT_SUCCESS;
}

static jobq_result world_batch(jobq_delivery *d)
{
    int32_t i;

    for (i = 0; i < d->count && !world_dies; i++) {
        jobq_result result = world_message(d, &d->messages[i]);
        if (result == JOBQ_RESULT_RETRY) return result;
        if (result == JOBQ_RESULT_REJECT) jobq_delivery_reject(d, i, jobq_str_from("no"));
    }
    return JOBQ_RESULT_SUCCESS;
}

static bool world_keep(jobq_delivery *d, int32_t index, jobq_str why)
{
    (void)d;
    (void)index;
    (void)why;
    return true;
}

static int world_stopping(const jobq_delivery *d, int64_t *remaining_us)
{
    (void)d;
    *remaining_us = JOBQ_NEVER;
    return world_dies ? JOBQ_STOP_LOST : JOBQ_STOP_NONE;
}

static const jobq_delivery_store world_store = {world_keep, world_stopping, NULL, NULL};

/* Law 4, when a handler begins. */
static void check_alone(const node *n, const jobq_part *p)
{
    int32_t i, k;

    for (i = 0; i < w.nodes; i++) {
        const node *other = &w.node[i];
        if (other == n || !other->up) continue;
        for (k = 0; k < other->loop.relay.count; k++) {
            const jobq_part *q = &other->loop.relay.parts[k];
            LAW(q->id != p->id || q->state != JOBQ_PART_RUNNING || w.now >= q->lease_mono_us,
                "law 4: two handlers on one partition");
        }
    }
}

static void finish(node *n, int32_t part)
{
    static jobq_delivery d;
    static jobq_message messages[JOBQ_LOOP_BATCH];
    uint8_t results[JOBQ_LOOP_BATCH];
    jobq_part *p = &n->loop.relay.parts[part];
    jobq_verdict v;
    int32_t i;

    memset(&d, 0, sizeof d);
    memset(&v, 0, sizeof v);
    memset(results, 0, sizeof results);
    for (i = 0; i < p->given; i++) messages[i].seq = p->cursor.acked + 1 + i;
    d.messages = messages;
    d.count = p->given;
    d.partition_id = p->id;
    d.results = results;
    d.store = &world_store;
    world_dies = false;
    jobq_delivery_run(&d, w.each ? world_message : NULL, w.each ? NULL : world_batch, &v);
    if (world_dies) { /* kill -9 in the middle */
        w.kills++;
        lose(n);
        node_start(n);
        return;
    }
    LAW(told_delivered(&n->loop, w.now, part, p->generation, &v, results, false),
        "a handler's result was not wanted");
}

/* Starts what waits, ends what runs, now and then. */
static void handlers(node *n)
{
    int32_t part;

    while ((part = jobq__take_messages(&n->loop, w.now)) >= 0) {
        const jobq_part *p = &n->loop.relay.parts[part];
        const jobq_memory_partition *store = &memory->partitions[p->id - 1];
        bool ours = store->holder.worker == p->worker && store->holder.claim == p->claim;
        check_alone(n, p);
        LAW(!ours || store->cursor.acked == p->cursor.acked, "law 1: not behind the acknowledged");
    }
    for (part = 0; part < n->loop.relay.count && n->up; part++) {
        if (n->loop.relay.parts[part].state == JOBQ_PART_RUNNING && draw(0, 2) == 0) {
            finish(n, part);
        }
    }
}

/* -- moves -- */

static void move_node(node *n)
{
    int64_t die = w.faults > 0 ? draw(0, 99) : 100;

    if (w.now < n->paused_until) return;
    if (die < 6) w.faults--;
    if (die < 2) { /* crash */
        lose(n);
        node_start(n);
    } else if (die < 4) { /* cut */
        lose(n);
        if (n->loop.session.connected) jobq_loop_disconnected(&n->loop, w.now);
    } else if (die < 5) n->paused_until = w.now + draw(LEASE / 2, 3 * LEASE); /* SIGSTOP */
    else if (die < 6 && n->flying > 0 && !n->flight[0].executed) execute(&n->flight[0]); /* late */
    drive(n);
    while (n->flying > 0 && draw(0, 3) != 0) {
        wire r = n->flight[0];
        if (!r.executed) execute(&r);
        shift(n);
        wire_answer(&r, &n->loop, w.now);
        drive(n);
    }
    handlers(n);
    drive(n);
}

static void produce(void)
{
    static const char natures[] = "gggggggggggggfrkx";
    int32_t part = (int32_t)draw(1, 2);

    if (w.sent[part] == MESSAGES) return;
    w.sent[part]++;
    w.nature[part][w.sent[part]] = natures[draw(0, (int64_t)sizeof natures - 2)];
    send(part - 1, 1);
}

static void world_move(int64_t moves)
{
    int32_t i;

    w.now += draw(0, 3) == 0 ? draw(0, LEASE / 4) : draw(0, 20 * MS);
    if (moves < 300) produce();
    if (w.ghosts > 0 && draw(0, 9) == 0) execute(&w.ghost[--w.ghosts]);
    for (i = 0; i < w.nodes; i++) move_node(&w.node[i]);
}

/* Law 2 and the numbers, when all is done. */
static void check_done(int32_t part)
{
    const jobq_memory_partition *p = &memory->partitions[part - 1];
    int32_t seq;

    LAW(p->last == w.sent[part] && p->cursor.acked == p->last, "law 5: a partition stands still");
    LAW(p->cursor.tried_count == 0, "deliveries are counted of messages that are gone");
    for (seq = 1; seq <= w.sent[part]; seq++) {
        const jobq_memory_message *m = jobq__memory_message_at(memory, part, seq);
        char nature = w.nature[part][seq];
        bool dead = m != NULL && m->dead;
        LAW(dead || nature == 'g' || nature == 'f', "law 2: a bad message was acknowledged");
        LAW(!dead || nature != 'g', "law 2: a good message is a dead letter");
        LAW(!dead || nature != 'f' || m->attempts >= TRIES, "law 2: given up before its time");
        LAW(dead || w.handled[part][seq] > 0, "law 2: acknowledged, and never handled");
        LAW(!dead || m->attempts <= TRIES + 6, "law 5: too many attempts");
    }
}

static bool world_done(void)
{
    return w.faults == 0 && memory->partitions[0].cursor.acked == w.sent[1] &&
           memory->partitions[1].cursor.acked == w.sent[2];
}

static void world_run(uint64_t seed)
{
    jobq_policy policy = jobq_policy_defaults(NULL);
    int64_t moves, i;

    memset(&w, 0, sizeof w);
    w.seed = seed;
    w.random.state = seed;
    memory = jobq_memory_init(&block, 4, 16, 64);
    jobq__memory_outbox(memory, 1, 2);
    policy.max_attempts = TRIES;
    jobq_memory_policy(memory, 1, &policy, false);
    w.nodes = (int32_t)draw(2, NODES);
    w.each = draw(0, 1) == 0;
    w.faults = (int32_t)draw(0, 6); /* fewer than the attempts: the other messages survive them */
    for (i = 0; i < w.nodes; i++) node_start(&w.node[i]);
    for (moves = 0; moves < 300 || (!world_done() && moves < 20000); moves++) {
        world_move(moves);
        if (moves == 2000) w.faults = 0;
        for (i = 0; i < memory->worker_max; i++) { /* the dead are swept up */
            jobq_memory_worker *row_of = &jobq__memory_workers(memory)[i];
            if (row_of->expires_at_us < w.now - 60 * SECOND) memset(row_of, 0, sizeof *row_of);
        }
    }
    check_done(1);
    check_done(2);
}

static void random_worlds_keep_the_laws(void **unused)
{
    const char *one = getenv("JOBQ_TEST_SEED");
    uint64_t seed, most = check_slow() ? 40 : getenv("JOBQ_TEST_LONG") != NULL ? 400 : 150;

    (void)unused;
    if (one != NULL) {
        world_run(strtoull(one, NULL, 10));
        return;
    }
    for (seed = 1; seed <= most; seed++) world_run(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(it_reads_numbers_and_acknowledges, setup),
        cmocka_unit_test_setup(the_last_batch_gives_the_partition_up, setup),
        cmocka_unit_test_setup(idle_looks_write_nothing, setup),
        cmocka_unit_test(an_idle_worker_looks_as_often_as_its_queue_says),
        cmocka_unit_test_setup(a_notified_sleeper_looks_at_once, setup),
        cmocka_unit_test_setup(a_message_that_is_announced_is_read_first, setup),
        cmocka_unit_test_setup(a_retry_waits_by_the_stores_clock_for_every_worker, setup),
        cmocka_unit_test_setup(a_partition_that_rests_is_not_asked_for, setup),
        cmocka_unit_test_setup(a_lease_is_renewed_while_its_handler_has_time, setup),
        cmocka_unit_test_setup(the_lease_counts_from_before_the_read, setup),
        cmocka_unit_test_setup(a_busy_partition_is_asked_for_again_in_5_ms, setup),
        cmocka_unit_test_setup(a_stop_gives_back_what_no_handler_has, setup),
        cmocka_unit_test_setup(a_handler_that_outlives_the_grace_is_given_up, setup),
        cmocka_unit_test_setup(until_empty_waits_for_messages, setup),
        cmocka_unit_test_setup(until_ended_waits_for_messages_that_rest, setup),
        cmocka_unit_test_setup(a_paused_queue_is_left_alone, setup),
        cmocka_unit_test_setup(bad_answers_are_refused_whole, setup),
        cmocka_unit_test_setup(bad_counts_are_refused_whole, setup),
        cmocka_unit_test_setup(backlogs_of_others_are_nothing, setup),
        cmocka_unit_test_setup(an_outbox_takes_what_room_there_is, setup),
        cmocka_unit_test_setup(a_handlers_own_transaction_acknowledges, setup),
        cmocka_unit_test_setup(a_commit_that_nobody_knows_counts_when_it_was_none, setup),
        cmocka_unit_test_setup(a_commit_that_nobody_knows_is_found_done, setup),
        cmocka_unit_test_setup(a_transaction_rolled_back_is_an_attempt, setup),
        cmocka_unit_test_setup(a_refused_acknowledgement_is_sent_again, setup),
        cmocka_unit_test_setup(after_an_error_an_acknowledgement_reads_on_no_more, setup),
        cmocka_unit_test_setup(an_acknowledgement_is_not_refused_for_ever, setup),
        cmocka_unit_test_setup(an_acknowledgement_keeps_its_texts_while_rows_are_locked, setup),
        cmocka_unit_test_setup(a_read_that_fails_is_made_smaller, setup),
        cmocka_unit_test_setup(a_locked_row_makes_no_read_larger, setup),
        cmocka_unit_test_setup(a_look_does_not_hurry_a_read_that_failed, setup),
        cmocka_unit_test_setup(a_message_is_given_up_when_others_are_answered, setup),
        cmocka_unit_test_setup(only_the_first_statement_on_its_way_is_blamed, setup),
        cmocka_unit_test_setup(a_message_that_never_arrives_is_given_up, setup),
        cmocka_unit_test_setup(what_a_sweep_finds_is_read_by_a_sweep, setup),
        cmocka_unit_test_setup(a_sweep_that_costs_much_is_made_in_slices, setup),
        cmocka_unit_test_setup(a_stop_ends_though_acknowledgements_are_refused, setup),
        cmocka_unit_test_setup(a_lease_lasts_from_its_beginning_to_its_end, setup),
        cmocka_unit_test_setup(it_sweeps_at_the_start_and_every_minute, setup),
        cmocka_unit_test_setup(costly_sweeps_are_seldom, setup),
        cmocka_unit_test_setup(a_refused_renewal_is_sent_again, setup),
        cmocka_unit_test_setup(a_queues_time_out_is_a_deliverys, setup),
        cmocka_unit_test_setup(a_commit_that_overruns_is_nobodys, setup),
        cmocka_unit_test_setup(acknowledged_messages_give_their_places_back, setup),
        cmocka_unit_test_setup(what_is_sent_first_is_numbered_first, setup),
        cmocka_unit_test_setup(a_read_hands_out_what_is_numbered_first, setup),
        cmocka_unit_test_setup(partitions_of_the_dead_are_taken_one_at_a_time, setup),
        cmocka_unit_test_setup(a_takeover_that_failed_waits_for_the_other_one, setup),
        cmocka_unit_test_setup(only_a_holder_that_stands_still_and_has_expired_is_replaced, setup),
        cmocka_unit_test_setup(statements_that_come_too_late_do_nothing, setup),
        cmocka_unit_test_setup(a_holder_is_watched_for_a_lease_by_our_own_clock, setup),
        cmocka_unit_test_setup(a_partition_is_taken_over_when_the_lease_of_its_holder_ends,
                               setup),
        cmocka_unit_test_setup(a_read_whose_answer_was_lost_is_no_attempt, setup),
        cmocka_unit_test_setup(an_acknowledgement_whose_answer_was_lost_stands, setup),
        cmocka_unit_test_setup(the_death_before_a_batch_is_not_held_against_the_next, setup),
        cmocka_unit_test_setup(random_worlds_keep_the_laws, setup),
    };

    return cmocka_run_group_tests_name("relay", tests, NULL, NULL);
}
