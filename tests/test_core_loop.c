/*
 * The worker's loop, step by step, and on the in-memory queue: what it asks for and when. Promise
 * 5; the explorer and the simulator walk the rest.
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"

#define LEASE (30 * SECOND)

static jobq_loop loop;
static jobq_call call;
static union {
    int64_t align;
    char bytes[1 << 20];
} block;
static jobq_memory *memory;

static int setup(void **unused)
{
    jobq_loop_config config;

    (void)unused;
    memset(&config, 0, sizeof config);
    config.threads = 2;
    config.lease_us = LEASE;
    config.listen = true;
    jobq_loop_init(&loop, &config, 12345, 0);
    assert_true(jobq_memory_size(100, 8, 600) <= sizeof block);
    memory = jobq_memory_init(&block, 100, 8, 600);
    return 0;
}

/* The next action that is no WAIT, carried out on the store. */
static jobq_action step(int64_t now)
{
    jobq_action a = jobq_loop_next(&loop, now);

    if (a.kind != JOBQ_ACTION_WAIT) jobq_memory_perform(memory, &loop, &a, 2, 2, now, now);
    return a;
}

static void settle_down(int64_t now)
{
    int n;

    for (n = 0; n < 100 && step(now).kind != JOBQ_ACTION_WAIT; n++) {}
    assert_true(n < 100);
}

static int64_t add_job(int64_t now)
{
    jobq_job like = jobq_job_new(0);

    like.queue = like.kind = 1;
    return jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now);
}

static void it_connects_and_registers_before_anything_else(void **unused)
{
    jobq_action a = jobq_loop_next(&loop, 0);

    (void)unused;
    assert_int_equal(a.kind, JOBQ_ACTION_CONNECT);
    assert_int_equal(jobq_loop_next(&loop, 0).kind, JOBQ_ACTION_WAIT);
    jobq_loop_connected(&loop, 1);
    assert_int_equal(jobq_loop_next(&loop, 1).kind, JOBQ_ACTION_REGISTER);
    assert_int_equal(jobq_loop_next(&loop, 1).kind,
                     JOBQ_ACTION_WAIT); /* no news of an unknown worker */
    assert_int_equal(jobq_loop_next(&loop, LEASE).kind, JOBQ_ACTION_DISCONNECT); /* no answer */
}

static void no_job_starts_when_the_lease_may_be_over(void **unused)
{
    (void)unused;
    add_job(0);
    add_job(0);
    settle_down(0);
    assert_int_equal(loop.queued.count, 2);
    assert_true(jobq_loop_take(&loop, LEASE - 1) >= 0);
    assert_int_equal(jobq_loop_take(&loop, LEASE),
                     -1); /* counted from before the statement was sent */
    assert_int_equal(jobq_loop_stopping(&loop, LEASE, loop.running[0],
                                        loop.slots[loop.running[0]].generation), JOBQ_STOP_LOST);
}

static void the_lease_is_counted_from_before_the_heartbeat(void **unused)
{
    jobq_action a;
    int actions = 0;

    (void)unused;
    settle_down(0);
    while ((a = jobq_loop_next(&loop, 6 * SECOND)).kind != JOBQ_ACTION_HEARTBEAT) {
        assert_true(++actions < 1000);
        assert_int_not_equal(a.kind, JOBQ_ACTION_WAIT);
        jobq_memory_perform(memory, &loop, &a, 2, 2, 6 * SECOND, 6 * SECOND);
    }
    jobq_memory_perform(memory, &loop, &a, 2, 2, 9 * SECOND, 9 * SECOND); /* the answer took 4 s */
    assert_true(loop.lease_mono_us == 6 * SECOND + LEASE);
}

/* A worker that is late is rescued after a whole lease of watching, and an outage does not
 * count. */
static void an_outage_proves_nobody_dead(void **unused)
{
    int64_t now = 0, rescued_at = 0, cut = 35 * SECOND;

    (void)unused;
    assert_int_equal(jobq_memory_register(memory, 77, LEASE, 2, 2, 0), JOBQ_OK); /* never beats */
    for (; now < 200 * SECOND && rescued_at == 0; now += SECOND) {
        jobq_action a;
        int actions = 0;

        if (now == cut) jobq_loop_disconnected(&loop, now);
        while ((a = step(now)).kind != JOBQ_ACTION_WAIT) {
            assert_true(++actions < 1000);
            if (a.kind == JOBQ_ACTION_RESCUE) rescued_at = now;
        }
    }
    assert_in_range(rescued_at, cut + LEASE, cut + LEASE + 10 * SECOND);
}

static void a_minute_of_idleness_costs_a_statement_every_five_seconds(void **unused)
{
    int64_t now = 0, until = 180 * SECOND;
    int statements = 0, sleeps = 0;

    (void)unused;
    while (now < until) {
        jobq_action a = step(now);
        if (a.kind == JOBQ_ACTION_WAIT) {
            assert_true(a.until_mono_us > now);
            now = a.until_mono_us;
        } else if (now > 120 * SECOND && a.kind != JOBQ_ACTION_PRUNE) {
            statements++;
        }
        sleeps += a.kind == JOBQ_ACTION_SLEEP;
    }
    assert_in_range(statements, 11, 13); /* heartbeats, which look for jobs as well */
    assert_int_equal(sleeps, 1);
}

static void a_wake_up_is_followed_by_a_claim_at_once(void **unused)
{
    int64_t now = 100 * SECOND;
    jobq_action a;

    (void)unused;
    settle_down(0);
    for (now = 0; now < 20 * SECOND; now += 100000) settle_down(now);
    add_job(now);
    jobq_loop_notified(&loop, now, false);
    a = step(now);
    while (a.kind == JOBQ_ACTION_HEARTBEAT || a.kind == JOBQ_ACTION_SLEEP) a = step(now);
    assert_int_equal(a.kind, JOBQ_ACTION_CLAIM);
    assert_int_equal(loop.queued.count, 1);
}

/* Four wake-ups close together: producers are paying for them. A few a second are no burden. */
static void a_sleeper_that_is_woken_often_withdraws(void **unused)
{
    int64_t now = 100 * SECOND;
    int i;

    (void)unused;
    settle_down(0);
    for (now = 0; now < 20 * SECOND; now += 100000) settle_down(now);
    assert_true(loop.asleep);
    for (i = 0; i < 20; i++, now += 100000) {
        jobq_loop_notified(&loop, now, false);
        settle_down(now);
        assert_true(loop.asleep);
    }
    for (i = 0; i < 4; i++) jobq_loop_notified(&loop, now + i, false);
    settle_down(now + 4);
    assert_false(loop.asleep);
    settle_down(now + SECOND / 2);
    assert_false(loop.asleep); /* at most one announcement a second */
    settle_down(now + 2 * SECOND);
    settle_down(now + 3 * SECOND);
    assert_true(loop.asleep);
}

/* A result whose answer was lost is sent again, and "lost" is then no surprise. */
static void results_survive_a_cut_connection(void **unused)
{
    static jobq_loop answered;
    jobq_action a;
    int32_t slot;

    (void)unused;
    add_job(0);
    settle_down(0);
    slot = jobq_loop_take(&loop, 1);
    assert_true(jobq_loop_handled(&loop, 2, slot, loop.slots[slot].generation, JOBQ_OUTCOME_SUCCESS,
                                  0, false));
    a = jobq_loop_next(&loop, 3);
    assert_int_equal(a.kind, JOBQ_ACTION_COMPLETE);
    answered = loop;
    jobq_memory_perform(memory, &answered, &a, 2, 2, 3, 3); /* it happened, but nobody says so */
    jobq_loop_disconnected(&loop, 4);
    assert_int_equal(loop.done.count, 1);
    settle_down(SECOND);
    assert_int_equal(loop.done.count + loop.sent_done.count, 0);
    assert_int_equal(loop.stats.lost, 0);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_SUCCEEDED);
}

static jobq_outcome run(jobq_call *c)
{
    int *runs = (int *)c->user;

    (*runs)++;
    if (c->job.kind == 2 && c->job.attempt < 3) return JOBQ_OUTCOME_RETRY;
    return c->job.kind == 3 ? JOBQ_OUTCOME_DISCARD : JOBQ_OUTCOME_SUCCESS;
}

static void handlers_run_on_memory_with_a_clock_of_ones_own(void **unused)
{
    static int runs;
    jobq_memory_handler handlers[3];
    jobq_job like = jobq_job_new(0);
    int64_t now = 0;
    int i;

    (void)unused;
    runs = 0;
    memset(handlers, 0, sizeof handlers);
    for (i = 0; i < 3; i++) {
        handlers[i].queue = like.queue = 1;
        handlers[i].kind = like.kind = i + 1;
        handlers[i].run[0] = run;
        handlers[i].user = &runs;
        like.stages = i == 0 ? 2 : 1;
        assert_int_equal(jobq_memory_enqueue(memory, &like, jobq_str_from("1"), 0), i + 1);
    }
    like.kind = 9; /* nobody's */
    jobq_memory_enqueue(memory, &like, jobq_str_from("1"), 0);
    while (now < 3600 * SECOND) now = jobq_memory_work(memory, &loop, handlers, 3, &call, now);
    assert_int_equal(runs, 2 + 3 + 1);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_SUCCEEDED);
    assert_int_equal(jobq_memory_get(memory, 2)->job.state, JOBQ_STATE_SUCCEEDED);
    assert_int_equal(jobq_memory_get(memory, 3)->job.state, JOBQ_STATE_FAILED);
    assert_int_equal(jobq_memory_get(memory, 4)->job.state, JOBQ_STATE_READY);
    assert_true(jobq_memory_get(memory, 4)->job.run_at_us == JOBQ_NEVER);
    assert_int_equal(jobq_memory_get(memory, 4)->job.attempt, 0);
}

/* A job that was parked before this worker came is asked back with its first news, and runs. */
static void parked_jobs_of_its_kinds_are_asked_back(void **unused)
{
    (void)unused;
    jobq_memory_get(memory, add_job(0))->job.run_at_us = JOBQ_NEVER;
    settle_down(SECOND);
    assert_int_equal(loop.queued.count, 1);
}

/* The store's clock runs back: what is enqueued then stands before the bounds, so they fall. */
static void bounds_fall_when_the_stores_clock_runs_back(void **unused)
{
    jobq_action a;
    int actions = 0;

    (void)unused;
    add_job(100 * SECOND);
    settle_down(100 * SECOND);
    assert_true(loop.queues[0].bounds[0][0].claim != 0);
    while ((a = jobq_loop_next(&loop, 106 * SECOND)).kind != JOBQ_ACTION_HEARTBEAT) {
        assert_true(++actions < 1000);
        assert_int_not_equal(a.kind, JOBQ_ACTION_WAIT);
        jobq_memory_perform(memory, &loop, &a, 2, 2, 106 * SECOND, 106 * SECOND);
    }
    jobq_memory_perform(memory, &loop, &a, 2, 2, 106 * SECOND, 50 * SECOND);
    assert_true(loop.queues[0].bounds[0][0].claim == 0);
}

/* Between a worker's last look and its announcement a producer may have seen nobody asleep. */
static void it_looks_again_when_its_sleep_is_announced(void **unused)
{
    jobq_action a;
    int64_t now;

    (void)unused;
    for (now = 0, a.kind = JOBQ_ACTION_WAIT; a.kind != JOBQ_ACTION_SLEEP; now += 1000) {
        assert_true(now < 10 * SECOND);
        a = step(now);
    }
    assert_int_equal(jobq_loop_next(&loop, now).kind, JOBQ_ACTION_CLAIM);
}

/* The dead make room, the one longest dead first; a dead one with jobs and the living do not. */
static void dead_workers_make_room(void **unused)
{
    int32_t rescued, i;
    bool more;

    (void)unused;
    add_job(0);
    settle_down(0);
    for (i = 1; i <= 7; i++) {
        assert_int_equal(jobq_memory_register(memory, i, LEASE, 2, 2, 0), JOBQ_OK);
    }
    assert_int_equal(jobq_memory_register(memory, 8, LEASE, 2, 2, 0), JOBQ_ERROR_FULL);
    jobq_memory_deregister(memory, loop.worker, SECOND); /* dead, and holds a job */
    assert_int_equal(jobq_memory_register(memory, 8, LEASE, 2, 2, 0), JOBQ_ERROR_FULL);
    assert_true(jobq_memory_rescue(memory, 5, 0, 1, 2 * LEASE, &rescued, &more));
    assert_true(jobq_memory_rescue(memory, 3, 0, 1, 3 * LEASE, &rescued, &more));
    assert_int_equal(jobq_memory_register(memory, 8, LEASE, 2, 2, 3 * LEASE), JOBQ_OK);
    assert_false(jobq_memory_heartbeat(memory, 5, NULL, 0, 3 * LEASE)); /* its place is gone */
    assert_int_equal(jobq_memory_register(memory, 9, LEASE, 2, 2, 3 * LEASE), JOBQ_OK);
    assert_int_equal(jobq_memory_register(memory, 10, LEASE, 2, 2, 3 * LEASE), JOBQ_ERROR_FULL);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_RUNNING);
}

/* A loop that ends by itself lives from an instant on, with handlers of one outcome, a millisecond
 * at a time; when it ended. */
static int64_t ends_at(jobq_until until, int64_t now, int64_t last, jobq_outcome outcome)
{
    jobq_loop_config config;
    int32_t slot;

    memset(&config, 0, sizeof config);
    config.until = until;
    jobq_loop_init(&loop, &config, 7, now);
    for (; now < last && loop.phase != JOBQ_PHASE_EXITED; now += 1000) {
        while (step(now).kind != JOBQ_ACTION_WAIT && loop.phase != JOBQ_PHASE_EXITED) {}
        while ((slot = jobq_loop_take(&loop, now)) >= 0) {
            jobq_loop_handled(&loop, now, slot, loop.slots[slot].generation, outcome, 2 * SECOND,
                              true);
        }
    }
    return now;
}

static void until_empty_leaves_what_comes_later(void **unused)
{
    jobq_job like = jobq_job_new(0);

    (void)unused;
    add_job(0);
    like.queue = like.kind = 1;
    like.run_at_us = 60 * SECOND;
    jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), 0);
    assert_true(ends_at(JOBQ_UNTIL_EMPTY, 0, 100 * SECOND, JOBQ_OUTCOME_RETRY) < SECOND);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_READY);
    assert_int_equal(jobq_memory_get(memory, 1)->job.attempt, 1);
    assert_int_equal(jobq_memory_get(memory, 2)->job.attempt, 0);
}

static void until_ended_waits_for_what_comes_later(void **unused)
{
    jobq_job like = jobq_job_new(0);
    int64_t now;

    (void)unused;
    like.queue = like.kind = 1;
    like.run_at_us = 60 * SECOND;
    jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), 0);
    now = ends_at(JOBQ_UNTIL_ENDED, 0, 100 * SECOND, JOBQ_OUTCOME_SUCCESS);
    assert_true(now >= 60 * SECOND && now < 70 * SECOND);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_SUCCEEDED);
    like.run_at_us = 0; /* and for each attempt, to the last one */
    like.max_attempts = 3;
    jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now);
    now = ends_at(JOBQ_UNTIL_ENDED, now, now + 100 * SECOND, JOBQ_OUTCOME_RETRY) - now;
    assert_true(now >= 4 * SECOND && now < 20 * SECOND);
    assert_int_equal(jobq_memory_get(memory, 2)->job.state, JOBQ_STATE_FAILED);
    assert_int_equal(jobq_memory_get(memory, 2)->job.attempt, 3);
}

/* What another worker has, whom nobody here watches end. */
static void until_ended_waits_for_other_workers(void **unused)
{
    int32_t place, count;
    jobq_lane lane;
    jobq_job *job;

    (void)unused;
    memset(&lane, 0, sizeof lane);
    lane.queue = 1;
    lane.after_at_us = INT64_MIN;
    add_job(0);
    jobq_memory_register(memory, 99, 1000 * SECOND, 2, 2, 0);
    assert_int_equal(
        jobq_memory_claim_jobs(memory, 99, 1, 1, &lane, 1, 0, false, 0, &place, &count), JOBQ_OK);
    assert_int_equal(count, 1);
    assert_true(ends_at(JOBQ_UNTIL_EMPTY, 0, 20 * SECOND, JOBQ_OUTCOME_SUCCESS) < SECOND);
    assert_int_equal(ends_at(JOBQ_UNTIL_ENDED, 0, 20 * SECOND, JOBQ_OUTCOME_SUCCESS), 20 * SECOND);
    job = &jobq_memory_jobs(memory)[place].job;
    job->state = JOBQ_STATE_SUCCEEDED;
    assert_true(ends_at(JOBQ_UNTIL_ENDED, 0, 20 * SECOND, JOBQ_OUTCOME_SUCCESS) < SECOND);
}

static void until_ended_waits_for_a_paused_queue(void **unused)
{
    (void)unused;
    jobq_memory_policy(memory, 1, NULL, true);
    add_job(0);
    assert_true(ends_at(JOBQ_UNTIL_EMPTY, 0, 20 * SECOND, JOBQ_OUTCOME_SUCCESS) < SECOND);
    assert_int_equal(ends_at(JOBQ_UNTIL_ENDED, 0, 20 * SECOND, JOBQ_OUTCOME_SUCCESS), 20 * SECOND);
    jobq_memory_policy(memory, 1, NULL, false);
    assert_true(ends_at(JOBQ_UNTIL_ENDED, 20 * SECOND, 60 * SECOND, JOBQ_OUTCOME_SUCCESS) <
                21 * SECOND);
    assert_int_equal(jobq_memory_get(memory, 1)->job.state, JOBQ_STATE_SUCCEEDED);
}

/* A question a day would do no harm, a thousand a second would. */
static void what_remains_is_asked_ever_more_seldom(void **unused)
{
    jobq_loop_config config;
    int64_t now = 0;
    int asked = 0;

    (void)unused;
    jobq_memory_policy(memory, 1, NULL, true);
    add_job(0);
    memset(&config, 0, sizeof config);
    config.until = JOBQ_UNTIL_ENDED;
    jobq_loop_init(&loop, &config, 7, 0);
    for (; now < 60 * SECOND; now += 1000) {
        int kind;
        do {
            kind = (int)step(now).kind;
            asked += kind == JOBQ_ACTION_REMAIN;
        } while (kind != JOBQ_ACTION_WAIT);
    }
    assert_in_range(asked, 50, 90); /* poll_us is 1 s without listen */
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(it_connects_and_registers_before_anything_else, setup),
        cmocka_unit_test_setup(no_job_starts_when_the_lease_may_be_over, setup),
        cmocka_unit_test_setup(the_lease_is_counted_from_before_the_heartbeat, setup),
        cmocka_unit_test_setup(an_outage_proves_nobody_dead, setup),
        cmocka_unit_test_setup(a_minute_of_idleness_costs_a_statement_every_five_seconds, setup),
        cmocka_unit_test_setup(a_wake_up_is_followed_by_a_claim_at_once, setup),
        cmocka_unit_test_setup(a_sleeper_that_is_woken_often_withdraws, setup),
        cmocka_unit_test_setup(results_survive_a_cut_connection, setup),
        cmocka_unit_test_setup(parked_jobs_of_its_kinds_are_asked_back, setup),
        cmocka_unit_test_setup(bounds_fall_when_the_stores_clock_runs_back, setup),
        cmocka_unit_test_setup(it_looks_again_when_its_sleep_is_announced, setup),
        cmocka_unit_test_setup(dead_workers_make_room, setup),
        cmocka_unit_test_setup(handlers_run_on_memory_with_a_clock_of_ones_own, setup),
        cmocka_unit_test_setup(until_empty_leaves_what_comes_later, setup),
        cmocka_unit_test_setup(until_ended_waits_for_what_comes_later, setup),
        cmocka_unit_test_setup(until_ended_waits_for_other_workers, setup),
        cmocka_unit_test_setup(until_ended_waits_for_a_paused_queue, setup),
        cmocka_unit_test_setup(what_remains_is_asked_ever_more_seldom, setup),
    };

    return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
