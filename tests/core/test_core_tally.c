/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * What a loop counts: buckets of times, outcomes by kind, and the deliveries with its heartbeats,
 * whose answers are lost and which arrive late. The store is a table like jobq.tally.
 */
#define JOBQ_LOOP_SLOTS 64
#define JOBQ_LOOP_QUEUES 2
#define JOBQ_LOOP_KINDS 80
#define JOBQ_LOOP_LANES 32
#define JOBQ_LOOP_PARTITIONS 2
#define JOBQ_LOOP_BATCH 16
#define JOBQ_STRAYS_MAX 8
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"
#include "told.h"

#define MS ((int64_t)1000)
#define LEASE (30 * SECOND)

static jobq_loop loop;
static union {
    int64_t align;
    char bytes[1 << 20];
} block;
static jobq_memory *memory;
static int64_t now;

static int setup(void **unused)
{
    jobq_loop_config config;
    jobq_loop_served served = {.message_queues = 0};

    (void)unused;
    memset(&config, 0, sizeof config);
    config.served = &served;
    config.threads = 2;
    config.lease_us = LEASE;
    served.listen = true;
    jobq_loop_init(&loop, &config, 12345, 0);
    memory = jobq_memory_init(&block, 100, 8, 100);
    now = 5 * SECOND;
    return 0;
}

/* Until nothing is due. The store's clock is an hour ahead of the loop's. */
static jobq_request settle_down(void)
{
    jobq_request a, beat;
    int n;

    memset(&beat, 0, sizeof beat);
    for (n = 0; n < 100 && (a = asks(&loop, now)).kind != JOBQ_REQUEST_WAIT; n++) {
        if (a.kind == JOBQ_REQUEST_EXIT) break;
        if (a.kind == JOBQ_REQUEST_HEARTBEAT) beat = a;
        jobq__memory_perform(memory, &loop, &a, 2, 6, now, now + 3600 * SECOND);
    }
    assert_true(n < 100);
    return beat;
}

static jobq_tally tally_of(int32_t kind)
{
    jobq_tally t;
    int32_t i;

    for (i = 0; jobq_loop_tally(&loop, i, &t); i++) {
        if (t.queue == 1 && t.kind == kind) return t;
    }
    memset(&t, 0, sizeof t);
    return t;
}

static int64_t waits_in(const jobq_tally *t, int64_t us)
{
    return t->counts[JOBQ_TALLY_WAITING + jobq_times_bucket(us)];
}

static int64_t runs_in(const jobq_tally *t, int64_t us)
{
    return t->counts[JOBQ_TALLY_RUNNING + jobq_times_bucket(us)];
}

static void a_bucket_ends_at_its_bound(void **unused)
{
    int32_t i;

    (void)unused;
    assert_int_equal(jobq_times_bound(0), 5 * MS);
    assert_int_equal(jobq_times_bound(JOBQ_TIMES_BUCKETS - 2), 3600 * SECOND);
    assert_true(jobq_times_bound(JOBQ_TIMES_BUCKETS - 1) == JOBQ_NEVER);
    for (i = 0; i < JOBQ_TIMES_BUCKETS - 1; i++) {
        assert_true(jobq_times_bound(i) < jobq_times_bound(i + 1));
        assert_int_equal(jobq_times_bucket(jobq_times_bound(i)), i);
        assert_int_equal(jobq_times_bucket(jobq_times_bound(i) + 1), i + 1);
    }
    assert_int_equal(jobq_times_bucket(-1), 0);
    assert_int_equal(jobq_times_bucket(INT64_MIN), 0);
    assert_int_equal(jobq_times_bucket(JOBQ_NEVER), JOBQ_TIMES_BUCKETS - 1);
}

/* Enqueues a job that is due `before` ago by the store's clock, runs it, and says how it ended. */
static void run_one(int32_t kind, int64_t before, int64_t took, jobq_outcome outcome)
{
    jobq_job like = jobq_job_new(0);
    int64_t id;
    int32_t slot;

    now += 100 * MS; /* claims linger */
    settle_down();
    like.queue = 1;
    like.kind = kind;
    id = jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now + 3600 * SECOND - before);
    assert_true(id > 0);
    jobq_loop_notified(&loop, now, "");
    settle_down();
    slot = jobq__take_job(&loop, now);
    assert_true(slot >= 0);
    assert_int_equal(loop.slots[slot].job.id, id);
    now += took;
    assert_true(told_handled(&loop, now, slot, loop.slots[slot].generation, outcome,
                             1000000 * SECOND, true));
    settle_down();
}

static void outcomes_and_times_are_counted_by_kind(void **unused)
{
    jobq_tally t;

    (void)unused;
    settle_down();
    run_one(2, 20 * SECOND, 40 * MS, JOBQ_OUTCOME_DISCARD); /* first: it is not behind a bound */
    run_one(1, 30 * MS, 7 * MS, JOBQ_OUTCOME_SUCCESS);
    run_one(1, 0, 7 * MS, JOBQ_OUTCOME_RETRY);
    run_one(2, 0, 0, JOBQ_OUTCOME_CANCELLED);
    run_one(2, 0, 0, JOBQ_OUTCOME_SNOOZE);
    t = tally_of(1);
    assert_int_equal(t.counts[JOBQ_TALLY_SUCCEEDED], 1);
    assert_int_equal(t.counts[JOBQ_TALLY_RETRIED], 1);
    assert_int_equal(t.counts[JOBQ_TALLY_FAILED], 0);
    assert_int_equal(waits_in(&t, 30 * MS), 1);
    assert_int_equal(waits_in(&t, 0), 1);
    assert_int_equal(t.counts[JOBQ_TALLY_WAITING + JOBQ_TIMES_BUCKETS], 30 * MS);
    assert_int_equal(runs_in(&t, 7 * MS), 2);
    assert_int_equal(t.counts[JOBQ_TALLY_RUNNING + JOBQ_TIMES_BUCKETS], 14 * MS);
    t = tally_of(2);
    assert_int_equal(t.counts[JOBQ_TALLY_FAILED], 1);
    assert_int_equal(t.counts[JOBQ_TALLY_CANCELLED], 1);
    assert_int_equal(t.counts[JOBQ_TALLY_RETRIED], 0);
    assert_int_equal(t.counts[JOBQ_TALLY_SNOOZED], 1);
    assert_int_equal(jobq_loop_status_of(&loop).jobs.snoozed, 1);
    assert_int_equal(waits_in(&t, 20 * SECOND), 1);
    assert_int_equal(runs_in(&t, 40 * MS), 1);
    assert_int_equal(runs_in(&t, 0), 2);
    assert_false(jobq_loop_tally(&loop, 2, &t));
}

/* The sums do not depend on which event was counted: they are those of the statistics. */
static void what_is_counted_is_what_the_statistics_say(void **unused)
{
    jobq_loop_stats s;
    jobq_job like = jobq_job_new(0);
    jobq_tally t;

    (void)unused;
    settle_down();
    run_one(1, 0, 0, JOBQ_OUTCOME_SUCCESS);
    now += 100 * MS;
    like.queue = like.kind = 1;
    jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now + 3600 * SECOND);
    jobq_loop_notified(&loop, now, "");
    settle_down();
    jobq_loop_stop(&loop, now, -1); /* releases it */
    settle_down();
    s = jobq_loop_status_of(&loop).jobs;
    t = tally_of(1);
    assert_int_equal(s.released, 1);
    assert_int_equal(t.counts[JOBQ_TALLY_RELEASED], s.released);
    assert_int_equal(t.counts[JOBQ_TALLY_SUCCEEDED], s.succeeded);
}

static void a_handler_that_is_abandoned_has_run(void **unused)
{
    jobq_job like = jobq_job_new(0);
    jobq_request a;
    jobq_tally t;

    (void)unused;
    settle_down();
    like.queue = like.kind = 1;
    like.timeout_us = 2 * SECOND;
    jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now);
    jobq_loop_notified(&loop, now, "");
    settle_down();
    assert_true(jobq__take_job(&loop, now) >= 0);
    now += 2 * SECOND;
    a = asks(&loop, now);
    assert_int_equal(a.kind, JOBQ_REQUEST_ABANDON);
    t = tally_of(1);
    assert_int_equal(t.counts[JOBQ_TALLY_RETRIED], 1);
    assert_int_equal(runs_in(&t, 2 * SECOND), 1);
}

static void the_sixty_fifth_kind_is_one_of_the_rest(void **unused)
{
    static jobq_tallies t;
    int32_t i;

    (void)unused;
    memset(&t, 0, sizeof t);
    for (i = 1; i <= JOBQ_TALLY_KINDS; i++) jobq__tally_add(&t, 1, i, JOBQ_TALLY_SUCCEEDED, 1);
    for (i = 65; i <= 80; i++) jobq__tally_add(&t, 1, i, JOBQ_TALLY_SUCCEEDED, 1);
    jobq__tally_add(&t, 2, 65, JOBQ_TALLY_SUCCEEDED, 1);
    jobq__tally_add(&t, 1, 64, JOBQ_TALLY_SUCCEEDED, 1);
    assert_int_equal(t.count, JOBQ_TALLY_KINDS + 2);
    assert_int_equal(t.now[63][JOBQ_TALLY_SUCCEEDED], 2);
    assert_int_equal(t.kinds[64], 0);
    assert_int_equal(t.queues[64], 1);
    assert_int_equal(t.now[64][JOBQ_TALLY_SUCCEEDED], 16);
    assert_int_equal(t.queues[65], 2);
    assert_int_equal(t.now[65][JOBQ_TALLY_SUCCEEDED], 1);
    jobq__tally_add(&t, 3, 65, JOBQ_TALLY_SUCCEEDED, 1); /* no room: not counted */
    jobq__tally_time(&t, 3, 65, JOBQ_TALLY_RUNNING, SECOND);
    assert_int_equal(t.count, JOBQ_LOOP_TALLIES);
    assert_int_equal(t.now[0][JOBQ_TALLY_SUCCEEDED], 1);
}

/* A heartbeat carries totals that have changed, and only those. */
static void a_heartbeat_carries_what_is_new(void **unused)
{
    jobq_request beat;

    (void)unused;
    settle_down();
    run_one(1, 0, 0, JOBQ_OUTCOME_SUCCESS);
    run_one(2, 0, 0, JOBQ_OUTCOME_SUCCESS);
    now += LEASE / 4;
    beat = settle_down();
    assert_int_equal(beat.kind, JOBQ_REQUEST_HEARTBEAT);
    assert_int_equal(beat.tally_count, 2);
    assert_int_equal(beat.total_count, 2 * JOBQ_TALLY_COUNT);
    run_one(2, 0, 0, JOBQ_OUTCOME_SUCCESS);
    now += LEASE / 4;
    beat = settle_down();
    assert_int_equal(beat.tally_count, 1);
    assert_int_equal(beat.tally_kinds[0], 2);
    assert_int_equal(beat.totals[JOBQ_TALLY_SUCCEEDED], 2);
    now += LEASE / 4;
    beat = settle_down();
    assert_int_equal(beat.kind, JOBQ_REQUEST_HEARTBEAT);
    assert_int_equal(beat.tally_count + beat.total_count, 0);
    assert_int_equal(beat.tally, 0);
}

static void a_stop_delivers_the_rest(void **unused)
{
    jobq_request a;
    int n;

    (void)unused;
    settle_down();
    run_one(1, 0, 0, JOBQ_OUTCOME_SUCCESS);
    jobq_loop_stop(&loop, now, -1);
    for (n = 0; n < 100 && (a = asks(&loop, now)).kind != JOBQ_REQUEST_DEREGISTER; n++)
        jobq__memory_perform(memory, &loop, &a, 2, 6, now, now + 3600 * SECOND);
    assert_int_equal(a.kind, JOBQ_REQUEST_DEREGISTER);
    assert_int_equal(a.tally_count, 1);
    assert_int_equal(a.totals[JOBQ_TALLY_SUCCEEDED], 1);
}

/* -- deliveries under faults -- */

enum { IDS = 60, LATE = 4 };

/* The rows of a queue's two kinds, by worker id; and deliveries that are still under way. */
static int64_t rows[IDS][2], numbers[IDS][2];
static bool dead[IDS];
static struct {
    jobq_request a;
    int id;
    bool used;
} late[LATE];

/* As jobq.heartbeat. */
static bool arrives(const jobq_request *a, int id)
{
    int32_t i;

    if (dead[id]) return false;
    for (i = 0; i < a->tally_count; i++) {
        int32_t kind = a->tally_kinds[i];
        if (numbers[id][kind] >= a->tally) continue;
        numbers[id][kind] = a->tally;
        rows[id][kind] = a->totals[i * JOBQ_TALLY_COUNT + JOBQ_TALLY_SUCCEEDED];
    }
    return true;
}

static int64_t total(int32_t kind)
{
    int64_t sum = 0;
    int i;

    for (i = 0; i < IDS; i++) sum += rows[i][kind];
    return sum;
}

static int64_t counted(const jobq_tallies *t, int32_t kind)
{
    int32_t i = jobq__tally_find(t, 1, kind);

    return i < t->count ? t->now[i][JOBQ_TALLY_SUCCEEDED] : 0;
}

/* Delivers, and learns whether the worker lives. Returns its id, a new one if not. */
static int answered(jobq_tallies *t, int id)
{
    static jobq_request a;

    memset(&a, 0, sizeof a);
    jobq__tally_send(t, &a);
    if (arrives(&a, id)) {
        if (t->tries > 0) jobq__tally_took(t);
        return id;
    }
    jobq__tally_die(t, true);
    return id + 1;
}

/* A worker that counts, whose heartbeats are lost before or after they arrive, or come late, and
 * that is declared dead now and then. Totals never fall and are never more than were counted; at
 * the end they are all, unless a death came while a delivery was in doubt. */
static void deliver(uint64_t seed, bool doubted_deaths)
{
    static jobq_tallies t;
    static jobq_request a;
    jobq_random random = {seed};
    int64_t before[2] = {0, 0};
    int id = 0, step, kind;

    memset(&t, 0, sizeof t);
    memset(rows, 0, sizeof rows);
    memset(numbers, 0, sizeof numbers);
    memset(dead, 0, sizeof dead);
    memset(late, 0, sizeof late);
    for (step = 0; step < 400; step++) {
        uint64_t dice = jobq_random_next(&random) % 100;
        int at = (int)(jobq_random_next(&random) % LATE);
        if (dice < 40) {
            jobq__tally_add(&t, 1, (int32_t)(dice % 2), JOBQ_TALLY_SUCCEEDED, 1);
        } else if (dice < 55) {
            id = answered(&t, id);
        } else if (dice < 75) { /* not answered: it arrived, will arrive, or never does */
            memset(&a, 0, sizeof a);
            jobq__tally_send(&t, &a);
            if (dice < 60) arrives(&a, id);
            else if (dice < 70) late[at].a = a, late[at].id = id, late[at].used = true;
        } else if (dice < 90 && late[at].used) {
            arrives(&late[at].a, late[at].id);
            late[at].used = dice < 80; /* or once more */
        } else if (dice >= 98 && id < IDS - 2 && (doubted_deaths || t.tries == 0)) {
            dead[id] = true;
            if (!doubted_deaths) id = answered(&t, id);
        }
        for (kind = 0; kind < 2; kind++) {
            assert_true(total(kind) >= before[kind]);
            before[kind] = total(kind);
            assert_true(total(kind) <= counted(&t, kind));
        }
    }
    for (step = 0; step < 3; step++) id = answered(&t, id); /* an orderly end */
    if (doubted_deaths) return;
    for (kind = 0; kind < 2; kind++) assert_int_equal(total(kind), counted(&t, kind));
}

static void deliveries_count_once(void **unused)
{
    uint64_t seed;

    (void)unused;
    for (seed = 1; seed <= 500; seed++) {
        deliver(seed, false);
        deliver(seed, true);
    }
}

/* The worker died while a delivery was in doubt: that one is lost, what came after it is not. */
static void a_death_loses_at_most_one_delivery(void **unused)
{
    static jobq_tallies t;
    static jobq_request a;

    (void)unused;
    memset(&t, 0, sizeof t);
    jobq__tally_add(&t, 1, 1, JOBQ_TALLY_SUCCEEDED, 5);
    memset(&a, 0, sizeof a);
    jobq__tally_send(&t, &a); /* no answer */
    jobq__tally_add(&t, 1, 1, JOBQ_TALLY_SUCCEEDED, 2);
    memset(&a, 0, sizeof a);
    jobq__tally_send(&t, &a);
    assert_int_equal(a.totals[JOBQ_TALLY_SUCCEEDED], 5); /* the same, as long as it is in doubt */
    assert_int_equal(a.tally, 1);
    jobq__tally_die(&t, true);
    memset(&a, 0, sizeof a);
    jobq__tally_send(&t, &a);
    assert_int_equal(a.totals[JOBQ_TALLY_SUCCEEDED], 2);
    jobq__tally_die(&t, true); /* refused, and nothing was in doubt: nothing is lost */
    memset(&a, 0, sizeof a);
    jobq__tally_send(&t, &a);
    assert_int_equal(a.totals[JOBQ_TALLY_SUCCEEDED], 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bucket_ends_at_its_bound),
        cmocka_unit_test_setup(outcomes_and_times_are_counted_by_kind, setup),
        cmocka_unit_test_setup(what_is_counted_is_what_the_statistics_say, setup),
        cmocka_unit_test_setup(a_handler_that_is_abandoned_has_run, setup),
        cmocka_unit_test(the_sixty_fifth_kind_is_one_of_the_rest),
        cmocka_unit_test_setup(a_heartbeat_carries_what_is_new, setup),
        cmocka_unit_test_setup(a_stop_delivers_the_rest, setup),
        cmocka_unit_test(deliveries_count_once),
        cmocka_unit_test(a_death_loses_at_most_one_delivery),
    };

    return cmocka_run_group_tests_name("tally", tests, NULL, NULL);
}
