/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * More partitions than a loop has places: each partition that has messages and may be read is
 * served within a bound. A loop of the default size works on up to 16,384 partitions of a store
 * made for this test, which has a row for each partition and no messages. Time is virtual; a
 * statement takes 100 us.
 */
#define JOBQ_LOOP_SLOTS 16
#define JOBQ_LOOP_CLAIMS 16
#define JOBQ_LOOP_BATCH 16
#define JOBQ_LOOP_LANES 16
#define JOBQ_STRAYS_MAX 8
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"
#include "told.h"

#include <stdlib.h>

enum { MOST = 16384, THREADS = 8, ENDLESS = 1000000 };
#define MS ((int64_t)1000)
#define SECOND ((int64_t)1000000)
#define LEASE (6 * SECOND)
#define STATEMENT ((int64_t)100)

typedef struct row {
    int64_t waiting, acked, run_at_us, lease_until_us;
    int64_t first_us; /* first acknowledged, or taken over; -1: not yet */
    jobq_holder holder;
    jobq_partition_mode mode;
    bool fails; /* its handler, each time */
    bool moves; /* another worker has it, and goes on */
    bool broken; /* its messages cannot be read */
} row;

static jobq_loop loop;
static row rows[MOST];
static int32_t count, running[THREADS];
static int64_t now, ends_us[THREADS], handler_us, looks, reads, listed;
static jobq_request sent[THREADS + 8]; /* on their way, first sent first */
static int32_t flying;
static int32_t most_read; /* a READ of a broken partition asked lately for at most this many */
static union {
    int64_t align;
    char bytes[1 << 21];
} block;
static jobq_memory *memory; /* for what is not about messages */

static void begin(int32_t partitions, int64_t waiting)
{
    jobq_loop_config config;
    jobq_loop_served served = {.message_queues = 0};
    int32_t i;

    memset(&config, 0, sizeof config);
    config.served = &served;
    config.threads = THREADS;
    served.message_queues = served.jobless_queues = 1;
    now = handler_us = looks = reads = listed = 0;
    most_read = flying = 0;
    jobq_loop_init(&loop, &config, 4711, now);
    assert_true(jobq_memory_size(4, 4, 4) <= sizeof block);
    memory = jobq_memory_init(&block, 4, 4, 4);
    count = partitions;
    memset(rows, 0, sizeof rows);
    for (i = 0; i < THREADS; i++) running[i] = -1;
    for (i = 0; i < count; i++) {
        rows[i].waiting = waiting;
        rows[i].first_us = -1;
    }
}

static void hold(row *r, int64_t worker)
{
    r->holder.worker = worker;
    r->holder.claim = 1;
    r->holder.lease_us = LEASE;
    r->lease_until_us = now + LEASE;
}

/* -- the store -- */

static void look(const jobq_request *a)
{
    jobq_answer *seen = told(JOBQ_REQUEST_LOOK, JOBQ_OK);
    int64_t id = a->id;

    looks++;
    while (seen->count < a->limit && ++id <= count) {
        row *r = &rows[id - 1];
        jobq_backlog *b = &seen->backlogs[seen->count];
        if (r->waiting == 0) continue;
        seen->count++;
        memset(b, 0, sizeof *b);
        if (r->moves) r->holder.beat++;
        b->id = id;
        b->queue = 1;
        b->acked = r->acked;
        b->waiting = 1;
        b->due_us = jobq__max(r->run_at_us - now, 0);
        b->holder = r->holder;
    }
    listed += seen->count;
    seen->more = id < count;
    jobq_loop_tell(&loop, now, seen);
}

static bool taken(const row *r, const jobq_holder *watched)
{
    return r->holder.worker != 0 && r->holder.worker != loop.worker &&
           (memcmp(&r->holder, watched, sizeof r->holder) != 0 || r->lease_until_us >= now);
}

static void read(const jobq_request *a)
{
    const jobq_part *p = &loop.relay.parts[a->slot];
    row *r = &rows[p->id - 1];
    jobq_reading got;
    jobq_error error = JOBQ_OK;

    reads++;
    memset(&got, 0, sizeof got);
    got.cursor.acked = r->acked;
    got.cursor.mode = r->mode;
    if (taken(r, &p->holder)) got.holder = r->holder;
    else if (r->run_at_us > now) got.due_us = r->run_at_us - now;
    else if (a->aside && a->acked == r->acked) {
        got.aside = true;
        r->acked++;
        r->waiting--;
        r->broken = false;
    } else if (r->broken) {
        error = JOBQ_ERROR_DATABASE;
        most_read = a->limit;
    } else if (r->waiting > 0) {
        got.count = (int32_t)jobq__min(r->waiting, a->limit);
        if (r->holder.worker != 0 && r->first_us < 0) r->first_us = now;
        hold(r, a->worker);
    }
    told_read(&loop, now, a->slot, error, &got);
}

static void ack(const jobq_request *a)
{
    const jobq_part *p = &loop.relay.parts[a->slot];
    row *r = &rows[p->id - 1];
    int32_t on = 0;

    r->acked += p->plan.done;
    if (r->waiting < ENDLESS) r->waiting -= p->plan.done;
    r->mode = p->plan.cursor.mode;
    if (p->plan.done > 0 && r->first_us < 0) r->first_us = now;
    if (p->plan.directive.kind == JOBQ_DIRECTIVE_SLEEP) {
        r->run_at_us = now + p->plan.directive.delay_us;
    }
    on = (int32_t)jobq__min(r->waiting, a->limit);
    if (on == 0) memset(&r->holder, 0, sizeof r->holder);
    told_acked(&loop, now, a->slot, JOBQ_OK, on);
}

/* -- the worker -- */

static void handle(int32_t part)
{
    jobq_part *p = &loop.relay.parts[part];
    uint8_t results[JOBQ_LOOP_BATCH];
    bool fails = rows[p->id - 1].fails;
    jobq_verdict v;

    memset(&v, 0, sizeof v);
    memset(results, fails ? JOBQ_RESULT_RETRY : JOBQ_RESULT_SUCCESS, sizeof results);
    v.result = fails ? JOBQ_RESULT_RETRY : JOBQ_RESULT_SUCCESS;
    v.processed = fails ? JOBQ_COUNT_UNKNOWN : (uint32_t)p->given;
    told_delivered(&loop, now, part, p->generation, &v, results, false);
}

static void handlers(void)
{
    int32_t i;

    for (i = 0; i < THREADS; i++) {
        if (running[i] >= 0 && ends_us[i] <= now) {
            handle(running[i]);
            running[i] = -1;
        }
        if (running[i] >= 0) continue;
        running[i] = jobq__take_messages(&loop, now);
        ends_us[i] = now + handler_us;
    }
}

static void answer(const jobq_request *a)
{
    now += STATEMENT;
    if (a->kind == JOBQ_REQUEST_LOOK) look(a);
    else if (a->kind == JOBQ_REQUEST_READ) read(a);
    else if (a->kind == JOBQ_REQUEST_ACK) ack(a);
    else if (a->kind == JOBQ_REQUEST_RENEW) {
        told_renewed(&loop, now, a->slot, loop.relay.parts[a->slot].generation, JOBQ_OK);
    } else jobq__memory_perform(memory, &loop, a, 2, 0, now, now);
}

/* All that is due is sent; then the first of it is answered, or time passes. */
static void step(int64_t until)
{
    jobq_request a;
    int32_t i;

    handlers();
    while ((a = asks(&loop, now)).kind != JOBQ_REQUEST_WAIT) {
        assert_true(flying < (int32_t)(sizeof sent / sizeof sent[0]));
        sent[flying++] = a;
    }
    if (flying > 0) {
        a = sent[0];
        memmove(sent, sent + 1, (size_t)--flying * sizeof sent[0]);
        answer(&a);
        return;
    }
    for (i = 0; i < THREADS; i++) {
        if (running[i] >= 0) a.until_mono_us = jobq__min(a.until_mono_us, ends_us[i]);
    }
    now = jobq__max(now, jobq__min(a.until_mono_us, until));
}

static void live(int64_t until)
{
    while (now < until) step(until);
}

/* Lives on until all messages are gone. */
static void finish(int64_t until)
{
    int32_t i = 0;

    while (now < until && i < count) {
        step(until);
        for (i = 0; i < count && rows[i].waiting == 0;) i++;
    }
}

/* When the last of the partitions with a remainder was served, or fails. */
static int64_t last_served(int32_t of, int32_t rest)
{
    int64_t last = 0;
    int32_t i;

    for (i = 0; i < count; i++) {
        if (i % of != rest) continue;
        if (rows[i].first_us < 0) fail_msg("partition %d was never served", i + 1);
        last = jobq__max(last, rows[i].first_us);
    }
    return last;
}

/* -- tests -- */

/* Half of the tenants are away, and all their partitions wait for their next attempt. */
static void those_in_backoff_keep_no_place(void **unused)
{
    int32_t i;

    (void)unused;
    begin(2 * JOBQ_LOOP_PARTITIONS, 3);
    handler_us = 10 * MS;
    for (i = 0; i < JOBQ_LOOP_PARTITIONS; i++) rows[i].fails = true;
    live(2 * SECOND); /* all of these have failed, and have places */
    for (i = JOBQ_LOOP_PARTITIONS; i < count; i++) {
        rows[i].waiting = ENDLESS;
        rows[i].acked = 0;
        rows[i].first_us = -1;
    }
    live(5 * SECOND);
    for (i = JOBQ_LOOP_PARTITIONS; i < count; i++) {
        assert_true(rows[i].first_us >= 0 && rows[i].first_us < 4 * SECOND);
    }
    live(40 * SECOND);
    for (i = 0; i < JOBQ_LOOP_PARTITIONS; i++) { /* and these are tried again all the time */
        assert_true(rows[i].mode.failures >= 4);
    }
}

/* Nobody fails; there is always more than the threads can do. */
static void all_that_are_busy_get_their_turn(void **unused)
{
    int64_t least = INT64_MAX, most = 0;
    int32_t i;

    (void)unused;
    begin(4 * JOBQ_LOOP_PARTITIONS, ENDLESS);
    handler_us = 5 * MS;
    live(20 * SECOND);
    for (i = 0; i < count; i++) {
        least = jobq__min(least, rows[i].acked);
        most = jobq__max(most, rows[i].acked);
    }
    assert_true(least > 0 && most <= 3 * least);
    assert_true(loop.relay.stats.crowded > 0);
}

/* A partition keeps its thread while no other one waits. Now and then a look finds out. */
static void a_partition_alone_reads_on(void **unused)
{
    (void)unused;
    begin(1, ENDLESS);
    handler_us = 4 * MS;
    live(5 * SECOND);
    assert_int_equal(reads, 1);
    assert_true(loop.relay.stats.reads > 1000);
    begin(THREADS, ENDLESS);
    handler_us = 4 * MS;
    live(5 * SECOND);
    assert_in_range(reads, THREADS, 2 * THREADS);
    assert_in_range(looks, 3, 12);
}

static void sixteen_thousand_are_all_served(void **unused)
{
    int32_t i;

    (void)unused;
    begin(MOST, 1);
    for (i = 0; i < MOST; i += 2) rows[i].run_at_us = 3600 * SECOND; /* half of them rest */
    live(20 * SECOND);
    assert_true(last_served(2, 1) < 10 * SECOND);
    assert_true(rows[0].first_us < 0);
    looks = 0;
    live(80 * SECOND); /* then a round of looks a second, which nobody needs a place for */
    assert_in_range(looks, 60, 80 * (MOST / 2 / JOBQ_BACKLOGS_MAX + 2));
    looks = 0;
    rows[MOST - 1].waiting = 1;
    rows[MOST - 1].first_us = -1;
    live(83 * SECOND);
    assert_true(rows[MOST - 1].first_us >= 0);
}

static void four_thousand_that_are_always_busy_are_all_served(void **unused)
{
    (void)unused;
    begin(MOST / 4, ENDLESS);
    handler_us = 50 * MS;
    live(100 * SECOND);
    last_served(1, 0); /* three handlers a turn, eight threads: 77 s */
    assert_true(listed < 8 * (int64_t)count); /* and looks list little more than they need */
}

/* A part in backoff that gave its place away is read soon after its time all the same. */
static void a_rest_that_has_no_place_ends_in_time(void **unused)
{
    int32_t i;

    (void)unused;
    begin(1000, 1);
    for (i = 0; i < count; i++) rows[i].run_at_us = 10 * SECOND + i * 10 * MS;
    live(30 * SECOND);
    for (i = 0; i < count; i++) {
        assert_true(rows[i].first_us >= rows[i].run_at_us);
        assert_true(rows[i].first_us < rows[i].run_at_us + 500 * MS);
    }
}

/* A worker died with more partitions than can be watched at once. Others are busy all the time. */
static void the_partitions_of_the_dead_are_all_taken_over(void **unused)
{
    int32_t i;

    (void)unused;
    begin(400, ENDLESS);
    handler_us = 20 * MS;
    for (i = 0; i < count; i += 2) hold(&rows[i], 99);
    for (i = 0; i < count; i += 2) rows[i].waiting = 1;
    live(120 * SECOND);
    assert_true(last_served(2, 0) < 120 * SECOND);
    assert_true(loop.relay.stats.takeovers >= count / 2);
    assert_true(last_served(2, 1) < 10 * SECOND);
}

/* Those whose holders live do not keep the watch from the one whose holder is dead. */
static void the_living_do_not_hide_the_dead(void **unused)
{
    int32_t i;

    (void)unused;
    begin(2000, ENDLESS);
    for (i = 0; i < count; i++) {
        hold(&rows[i], 98);
        rows[i].moves = true;
    }
    rows[1500].moves = false;
    live(60 * SECOND);
    assert_true(rows[1500].first_us > LEASE && rows[1500].first_us < 40 * SECOND);
    for (i = 0; i < count; i++) assert_true(i == 1500 || rows[i].first_us < 0);
}

/* A message that cannot be read costs its partition a while, and no other one anything. */
static void a_message_that_cannot_be_read_is_given_up(void **unused)
{
    (void)unused;
    begin(2, 1000);
    rows[0].broken = true;
    live(SECOND);
    assert_int_equal(rows[1].waiting, 0);
    finish(200 * SECOND);
    assert_int_equal(rows[0].waiting, 0);
    assert_int_equal(most_read, 1);
    assert_int_equal(loop.relay.stats.aside, 1);
    assert_int_equal(loop.relay.stats.dead, 1);
}

/* Many partitions that fail at once do not keep the places of others for long. */
static void many_that_cannot_be_read_do_not_stop_the_others(void **unused)
{
    int32_t i;

    (void)unused;
    begin(4 * JOBQ_LOOP_PARTITIONS, 10);
    for (i = 0; i < count; i += 2) rows[i].broken = true;
    finish(600 * SECOND);
    assert_true(last_served(2, 1) < 300 * SECOND);
    assert_true(last_served(2, 0) < 600 * SECOND);
    assert_int_equal(loop.relay.stats.aside, count / 2);
}

/* Where no partition can be read, looks for those without a place leave a pause. While a job must
 * run alone nothing may be read, and so nobody looks. */
static void looks_leave_a_pause(void **unused)
{
    int32_t i;

    (void)unused;
    begin(4 * JOBQ_LOOP_PARTITIONS, 10);
    for (i = 0; i < count; i++) rows[i].broken = true;
    live(10 * SECOND);
    assert_true(looks < 500);
    loop.suspects.halts = true;
    assert_true(jobq__due_look(&loop, JOBQ_REQUEST_LOOK, now) == JOBQ_NEVER);
    loop.suspects.halts = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(looks_leave_a_pause),
        cmocka_unit_test(those_in_backoff_keep_no_place),
        cmocka_unit_test(all_that_are_busy_get_their_turn),
        cmocka_unit_test(a_partition_alone_reads_on),
        cmocka_unit_test(sixteen_thousand_are_all_served),
        cmocka_unit_test(four_thousand_that_are_always_busy_are_all_served),
        cmocka_unit_test(a_rest_that_has_no_place_ends_in_time),
        cmocka_unit_test(the_partitions_of_the_dead_are_all_taken_over),
        cmocka_unit_test(the_living_do_not_hide_the_dead),
        cmocka_unit_test(a_message_that_cannot_be_read_is_given_up),
        cmocka_unit_test(many_that_cannot_be_read_do_not_stop_the_others),
    };

    return cmocka_run_group_tests_name("crowd", tests, NULL, NULL);
}
