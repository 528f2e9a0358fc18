/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Batches: laws (30) to (32), step by step on the loop, then with handlers on the in-memory queue
 * and in jobq_test. The explorer's worlds together and gather try the interleavings.
 */
#define JOBQ_LOOP_SLOTS 256
#define JOBQ_LOOP_LANES 32
#define JOBQ_LOOP_QUEUES 2
#define JOBQ_LOOP_PARTITIONS 8
#define JOBQ_TALLY_KINDS 4
#define JOBQ_MEMORY_BATCH 32
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"
#include "told.h"

#define MS ((int64_t)1000)
#define LEASE (30 * SECOND)
#define KINDS (1 << 1 | 1 << 2 | 1 << 3)

/* Kind 1: up to 4 jobs in a call. Kind 2: single jobs. Kind 3: up to 8, which wait for each other,
 * on one thread. */
enum { FOUR = 1, SINGLE, WAITS };
#define WAIT (100 * MS)

static jobq_loop loop;
static union {
    int64_t align;
    char bytes[2 << 20];
} block;
static jobq_memory *memory;
static jobq_loop_config config;
static jobq_loop_served served;
static jobq_policy policy;

static void begin(int32_t threads, int64_t jobs_max)
{
    memset(&config, 0, sizeof config);
    config.threads = threads;
    config.lease_us = LEASE;
    config.jobs_max = jobs_max;
    config.served = &served;
    jobq_loop_init(&loop, &config, 12345, 0);
}

static int setup(void **unused)
{
    (void)unused;
    memset(&served, 0, sizeof served);
    memset(&policy, 0, sizeof policy);
    policy.backoff.base_us = SECOND;
    policy.backoff.jitter_permille = -1;
    policy = jobq_policy_defaults(&policy);
    served.kind_batches[FOUR - 1] = 4;
    served.kind_batches[WAITS - 1] = 8;
    served.kind_waits_us[WAITS - 1] = WAIT;
    served.kind_threads[WAITS - 1] = 1;
    assert_true(jobq_memory_size(240, 8, 600) <= sizeof block);
    memory = jobq_memory_init(&block, 240, 8, 600);
    jobq_memory_policy(memory, 1, &policy, false);
    begin(4, 0);
    return 0;
}

/* Does what is due at this time; returns when something is due next. */
static int64_t serve(int64_t now)
{
    int n;

    for (n = 0; n < 300; n++) {
        jobq_request a = asks(&loop, now);
        if (a.kind == JOBQ_REQUEST_WAIT) return a.until_mono_us;
        if (a.kind == JOBQ_REQUEST_EXIT) return JOBQ_NEVER;
        jobq__memory_perform(memory, &loop, &a, 2, KINDS, now, now);
    }
    fail_msg("the loop spins");
    return 0;
}

static int64_t add(int32_t kind, int64_t now)
{
    jobq_job like = jobq_job_new(0);

    like.queue = 1;
    like.kind = kind;
    return jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now);
}

static jobq_job *job_of(int64_t id) { return &jobq_memory_get(memory, id)->job; }

/* The calls that can begin now: their jobs, one call after the other. */
static jobq_work got[64];

static int32_t take(int64_t now)
{
    int32_t n = 0;

    if (!jobq_loop_take(&loop, now, &got[0])) return 0;
    do {
        n++;
        got[n] = got[n - 1];
    } while (jobq_loop_mate(&loop, &got[n]));
    assert_int_equal(got[0].together, n);
    return n;
}

static bool handled(const jobq_work *work, jobq_outcome outcome, int64_t now, jobq_decision *d)
{
    jobq_handled h;

    memset(&h, 0, sizeof h);
    h.outcome = outcome;
    return jobq_loop_handled(&loop, now, work, &h, d);
}

/* -- law (30) -- */

static void a_batch_is_what_is_there(void **unused)
{
    int32_t i;

    (void)unused;
    for (i = 0; i < 6; i++) add(FOUR, 0);
    serve(0);
    assert_int_equal(take(0), 4);
    for (i = 0; i < 4; i++) assert_int_equal(got[i].job.id, i + 1);
    assert_int_equal(jobq_loop_status_of(&loop).running, 1);
    assert_int_equal(take(0), 2);
    assert_int_equal(got[0].job.id, 5);
    assert_int_equal(jobq_loop_status_of(&loop).running, 2);
    assert_int_equal(loop.running_count, 6);
    assert_int_equal(take(0), 0);
}

/* Each pair differs in one thing. The third job of the first stage has a mate: the first. */
static void only_equal_jobs_are_together(void **unused)
{
    jobq_job like = jobq_job_new(0);
    int64_t id;

    (void)unused;
    begin(8, 0);
    like.queue = 1;
    like.kind = FOUR;
    for (id = 1; id <= 7; id++) {
        like.stages = id > 5 ? 2 : 1;
        assert_int_equal(jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), 0), id);
    }
    job_of(2)->kind = SINGLE;
    job_of(4)->timeout_us = 9 * SECOND;
    job_of(5)->attempt = 1;
    job_of(6)->stage = 1;
    serve(0);
    serve(SECOND);
    assert_int_equal(loop.queued.count, 7);
    assert_int_equal(take(SECOND), 1); /* a later stage comes first */
    assert_int_equal(got[0].job.id, 6);
    assert_int_equal(take(SECOND), 3);
    assert_true(got[0].job.id == 1 && got[1].job.id == 3 && got[2].job.id == 7);
    assert_int_equal(take(SECOND), 1);
    assert_int_equal(got[0].job.id, 2);
    assert_int_equal(take(SECOND), 1);
    assert_int_equal(got[0].job.id, 4);
    assert_int_equal(take(SECOND), 1);
    assert_int_equal(got[0].job.id, 5);
}

static void each_attempt_is_in_half_as_many(void **unused)
{
    int32_t attempt, i, n;

    (void)unused;
    for (attempt = 1; attempt <= 40; attempt++) {
        int32_t room = attempt == 1 ? 4 : attempt == 2 ? 2 : 1;
        setup(NULL);
        for (i = 0; i < 4; i++) job_of(add(FOUR, 0))->attempt = attempt - 1;
        serve(0);
        for (i = 0; i < 4; i += n) {
            n = take(0);
            assert_int_equal(n, room);
            assert_int_equal(got[0].job.attempt, attempt);
        }
    }
}

static void a_suspect_is_alone(void **unused)
{
    int64_t id;
    int32_t n = 0, alone = 0;

    (void)unused;
    for (id = 1; id <= 5; id++) add(FOUR, 0);
    job_of(2)->suspect = true;
    serve(0);
    serve(SECOND);
    while (n < 5) {
        int32_t took = take(SECOND), i;
        assert_in_range(took, 1, 4);
        for (i = 0; i < took; i++) {
            if (!got[i].job.suspect) continue;
            assert_int_equal(took, 1);
            alone++;
        }
        n += took;
    }
    assert_int_equal(alone, 1);
}

/* -- waiting for others -- */

static void a_lone_job_waits_for_others_but_not_long(void **unused)
{
    int64_t until;

    (void)unused;
    serve(0);
    add(WAITS, 0);
    jobq_loop_notified(&loop, 0, "");
    until = serve(0);
    assert_int_equal(loop.queued.count, 1);
    assert_true(until <= WAIT && jobq_loop_due(&loop, 0) <= WAIT);
    assert_int_equal(take(WAIT - 1), 0);
    assert_int_equal(take(WAIT), 1);
}

/* The one that a thread could take now is no reason to wake up: the thread is awake. */
static void what_has_waited_enough_is_no_reason_to_wake(void **unused)
{
    (void)unused;
    serve(0);
    add(WAITS, 0);
    jobq_loop_notified(&loop, 0, "");
    serve(0);
    assert_true(jobq__due_batch(&loop, WAIT - 1) == WAIT);
    assert_true(jobq__due_batch(&loop, WAIT) == JOBQ_NEVER);
    assert_true(serve(WAIT) > WAIT);
}

static void a_full_batch_does_not_wait(void **unused)
{
    int32_t i;

    (void)unused;
    loop.batch.per_call = 8;
    for (i = 0; i < 9; i++) add(WAITS, 0);
    serve(0);
    serve(MS);
    assert_int_equal(take(MS), 8);
    assert_int_equal(take(MS), 0); /* it has one thread, and waits */
}

/* While it waits, claims go on, and what comes joins it. */
static void others_join_what_waits(void **unused)
{
    int64_t now;

    (void)unused;
    serve(0);
    for (now = 0; now < WAIT; now += 20 * MS) {
        add(WAITS, now);
        jobq_loop_notified(&loop, now, "");
        serve(now);
        assert_int_equal(take(now), 0);
    }
    serve(WAIT);
    assert_int_equal(take(WAIT), 5);
}

/* Other kinds do not wait behind those that do. */
static void who_waits_keeps_nobody(void **unused)
{
    (void)unused;
    add(WAITS, 0);
    add(SINGLE, 0);
    serve(0);
    assert_int_equal(take(0), 1);
    assert_int_equal(got[0].job.kind, SINGLE);
    assert_int_equal(take(0), 0);
}

/* Law (19): on one thread, though eight of its jobs may be here. */
static void a_limit_of_threads_counts_calls(void **unused)
{
    int64_t now = WAIT;
    int32_t i, n;

    (void)unused;
    for (i = 0; i < 3; i++) add(WAITS, 0);
    serve(0);
    serve(now);
    n = take(now);
    assert_in_range(n, 1, 3);
    for (i = 0; i < 20; i++) add(WAITS, now);
    for (i = 0; i < 10; i++, now += 50 * MS) {
        jobq_loop_notified(&loop, now, "");
        serve(now);
        assert_int_equal(take(now), 0);
        assert_in_range(loop.queued.count + loop.running_count, 0, 8);
    }
    while (n-- > 0) assert_true(handled(&got[n], JOBQ_OUTCOME_SUCCESS, now, NULL));
    assert_true(take(now) > 0);
}

/* -- law (31) -- */

static void each_job_ends_by_its_own_outcome(void **unused)
{
    static const jobq_outcome outcomes[] = {JOBQ_OUTCOME_SUCCESS, JOBQ_OUTCOME_RETRY,
                                            JOBQ_OUTCOME_DISCARD, JOBQ_OUTCOME_SNOOZE};
    static const jobq_state states[] = {JOBQ_STATE_SUCCEEDED, JOBQ_STATE_READY, JOBQ_STATE_FAILED,
                                        JOBQ_STATE_READY};
    jobq_decision d;
    int32_t i;

    (void)unused;
    for (i = 0; i < 4; i++) add(FOUR, 0);
    serve(0);
    assert_int_equal(take(0), 4);
    for (i = 3; i >= 0; i--) {
        assert_int_equal(jobq_loop_status_of(&loop).running, 1); /* until the last one */
        assert_true(handled(&got[i], outcomes[i], SECOND, &d));
        assert_int_equal(d.state, states[i]);
        assert_false(handled(&got[i], JOBQ_OUTCOME_DISCARD, SECOND, &d));
    }
    assert_int_equal(jobq_loop_status_of(&loop).running, 0);
    serve(SECOND);
    for (i = 0; i < 4; i++) assert_int_equal(job_of(i + 1)->state, states[i]);
    assert_int_equal(job_of(2)->attempt, 1);
    assert_int_equal(job_of(4)->attempt, 0);
    assert_int_equal(loop.stats.succeeded + loop.stats.failed, 2);
}

static void a_cancel_request_reaches_one(void **unused)
{
    int64_t left;
    int32_t i;

    (void)unused;
    for (i = 0; i < 4; i++) add(FOUR, 0);
    serve(0);
    assert_int_equal(take(0), 4);
    jobq_memory_event(memory, 3, JOBQ_EVENT_CANCEL, 0);
    jobq_loop_notified(&loop, MS, "cancel");
    serve(MS);
    for (i = 0; i < 4; i++)
        assert_int_equal(jobq_loop_stopping(&loop, MS, &got[i], &left),
                         i == 2 ? JOBQ_STOP_CANCEL : JOBQ_STOP_NONE);
    jobq_loop_stop(&loop, MS, SECOND);
    for (i = 0; i < 4; i++)
        assert_int_equal(jobq_loop_stopping(&loop, MS, &got[i], &left),
                         i == 2 ? JOBQ_STOP_CANCEL : JOBQ_STOP_SHUTDOWN);
}

/* -- law (32) -- */

static void add_timed(int32_t count)
{
    while (count-- > 0) job_of(add(FOUR, 0))->timeout_us = 2 * SECOND;
}

static void overrun(int32_t count, bool returns)
{
    jobq_decision d;
    int32_t i;

    add_timed(count);
    serve(0);
    assert_int_equal(take(0), count);
    if (returns) {
        for (i = 0; i < count; i++)
            assert_true(handled(&got[i], JOBQ_OUTCOME_SUCCESS, 3 * SECOND, &d));
    } else {
        for (i = 0; i < count; i++) {
            jobq_request a = asks(&loop, 3 * SECOND);
            assert_int_equal(a.kind, JOBQ_REQUEST_ABANDON);
            assert_false(a.stopping);
        }
        assert_false(handled(&got[0], JOBQ_OUTCOME_SUCCESS, 3 * SECOND, &d));
        assert_int_equal(loop.stats.abandoned, 1);
    }
    assert_int_equal(jobq_loop_status_of(&loop).running, 0);
    serve(3 * SECOND);
    for (i = 0; i < count; i++) {
        const jobq_job *job = job_of(i + 1);
        assert_false(jobq_state_final(job->state));
        assert_int_equal(job->attempt, count == 1 || job->state == JOBQ_STATE_RUNNING);
        assert_int_equal(job->suspect, count > 1);
        assert_int_equal(job->crash, 0);
    }
}

static void an_overrun_of_several_is_no_evidence(void **unused)
{
    (void)unused;
    overrun(3, false);
}

static void nor_is_one_that_returns_too_late(void **unused)
{
    (void)unused;
    overrun(3, true);
}

static void an_overrun_of_one_is_its_own(void **unused)
{
    (void)unused;
    overrun(1, false);
}

static void at_the_end_of_the_grace_all_go_back(void **unused)
{
    int32_t i;

    (void)unused;
    add_timed(4);
    serve(0);
    assert_int_equal(take(0), 4);
    jobq_loop_stop(&loop, MS, SECOND / 2);
    serve(SECOND);
    for (i = 1; i <= 4; i++) {
        assert_int_equal(job_of(i)->state, JOBQ_STATE_READY);
        assert_int_equal(job_of(i)->attempt, 0);
        assert_false(job_of(i)->suspect);
    }
    assert_int_equal(loop.stats.abandoned, 1);
}

/* -- how much is claimed -- */

static void jobs_max_cuts_a_batch(void **unused)
{
    int32_t i;

    (void)unused;
    begin(4, 3);
    for (i = 0; i < 8; i++) add(FOUR, 0);
    serve(0);
    assert_int_equal(take(0), 3);
    assert_int_equal(take(0), 0);
    for (i = 0; i < 3; i++) assert_true(handled(&got[i], JOBQ_OUTCOME_SUCCESS, MS, NULL));
    serve(MS);
    assert_int_equal(loop.stats.started, 3);
}

/* Runs calls that take 20 ms each, between these times. Returns how many jobs ended, and how many
 * have waited for a thread at most in *held. */
static int32_t run_calls(int32_t kind, int32_t most, int64_t from, int64_t until, int32_t *held)
{
    static jobq_work works[64][64];
    int32_t counts[64] = {0}, ended = 0, c, i;
    int64_t ends[64] = {0}, now;

    for (now = from; now < until; now += MS) {
        while (memory->job_count < 240) add(kind, now);
        for (i = 1; i <= memory->job_count; i++) { /* it has more than it has room for */
            if (job_of(i)->state != JOBQ_STATE_SUCCEEDED) continue;
            job_of(i)->state = JOBQ_STATE_READY;
            job_of(i)->attempt = 0;
            job_of(i)->run_at_us = now;
        }
        for (c = 0; c < config.threads; c++) {
            if (counts[c] == 0 || now < ends[c]) continue;
            ended += counts[c];
            while (counts[c] > 0) handled(&works[c][--counts[c]], JOBQ_OUTCOME_SUCCESS, now, NULL);
        }
        serve(now);
        for (c = 0; c < config.threads; c++) {
            if (counts[c] > 0 || (counts[c] = take(now)) == 0) continue;
            assert_in_range(counts[c], 1, most);
            memcpy(works[c], got, sizeof works[c]);
            ends[c] = now + 20 * MS;
        }
        if (loop.queued.count > *held) *held = loop.queued.count;
        jobq_loop_notified(&loop, now, "");
    }
    for (c = 0; c < config.threads; c++)
        while (counts[c] > 0) handled(&works[c][--counts[c]], JOBQ_OUTCOME_SUCCESS, now, NULL);
    return ended;
}

static void claims_become_large_enough_for_batches(void **unused)
{
    int32_t held = 0, ended;

    (void)unused;
    served.kind_batches[FOUR - 1] = 32;
    begin(2, 0);
    ended = run_calls(FOUR, 32, 0, 2 * SECOND, &held);
    assert_in_range(ended, 2 * 32 * 100 * 9 / 10, 2 * 32 * 100);
}

/* A kind that gets single jobs is not hoarded because another one gets batches. */
static void single_jobs_are_not_hoarded(void **unused)
{
    int32_t held = 0;

    (void)unused;
    served.kind_batches[FOUR - 1] = 32;
    served.kind_waits_us[WAITS - 1] = 0;
    begin(2, 0);
    loop.batch.per_call = 32;
    run_calls(SINGLE, 1, 0, 2 * SECOND, &held);
    assert_int_equal(loop.batch.per_call, 1);
    held = 0;
    run_calls(SINGLE, 1, 2 * SECOND, 3 * SECOND, &held);
    assert_in_range(held, 1, 2 + 2 * 50 / 20 + 2);
}

/* -- handlers on the in-memory queue -- */

static int32_t calls_made, largest;
static int64_t bad_job;

/* Fails as a whole if the bad job is in the batch. */
static jobq_outcome all_or_none(jobq_call *const *calls, int32_t count)
{
    int32_t i;

    calls_made++;
    if (count > largest) largest = count;
    for (i = 0; i < count; i++) {
        assert_int_equal(calls[i]->together, count);
        assert_true(jobq_str_equal(calls[i]->payload, jobq_str_from("{}")));
        assert_int_equal(jobq_call_stopping(calls[i], NULL), JOBQ_STOP_NONE);
        if (calls[i]->job.id == bad_job) return JOBQ_OUTCOME_RETRY;
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static void work(const jobq_memory_handler *handler, int64_t until)
{
    int64_t now = 0;

    while (now < until) now = jobq_memory_work(memory, &loop, handler, 1, now);
}

/* Among 32 one is bad: it is alone from attempt 6 on, and fails at its limit. */
static void one_bad_job_does_not_fail_the_others(void **unused)
{
    const jobq_memory_handler handler = {.queue = 1, .kind = 1, .batch = all_or_none};
    int64_t id;

    (void)unused;
    policy.max_attempts = 7;
    jobq_memory_policy(memory, 1, &policy, false);
    served.kind_batches[0] = 32;
    begin(1, 0);
    loop.batch.per_call = 32;
    bad_job = 21;
    calls_made = largest = 0;
    for (id = 1; id <= 32; id++) add(1, 0);
    work(&handler, 1000 * SECOND);
    assert_int_equal(largest, 32);
    for (id = 1; id <= 32; id++) {
        assert_int_equal(job_of(id)->state, id == bad_job ? JOBQ_STATE_FAILED
                                                          : JOBQ_STATE_SUCCEEDED);
        assert_in_range(job_of(id)->attempt, 2, id == bad_job ? 7 : 6);
    }
    assert_in_range(calls_made, 12, 24); /* 1 + 2 + 2 + 2 + 2 + 2 + 1 at least */
}

/* -- in jobq_test -- */

enum { ROWS = 32 };
static jobq_test *test;
static int rows[ROWS + 1];
static int crashes;

static int test_setup(void **unused)
{
    static void *test_block;

    (void)unused;
    if (test_block == NULL) test_block = malloc(jobq_test_size());
    test = test_block;
    memset(rows, 0, sizeof rows);
    crashes = 0;
    return test_block == NULL;
}

static void enqueue(int count)
{
    const jobq_test_job job = {.queue = "rows", .kind = "row"};

    while (count-- > 0) assert_true(jobq_test_enqueue(test, &job) > 0);
}

/* The worker that runs job 13 dies. */
static jobq_outcome deadly(jobq_call *const *calls, int32_t count)
{
    int32_t i;

    for (i = 0; i < count; i++) {
        if (calls[i]->job.id != 13) continue;
        crashes++;
        jobq_test_fault(test, JOBQ_TEST_CRASH);
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static void a_job_that_kills_its_worker_fails_alone(void **unused)
{
    const jobq_job_handler handler = {.queue = "rows", .kind = "row", .batch = deadly,
                                      .batch_max = 32, .batch_wait_us = JOBQ_MILLISECONDS(1)};
    int64_t id;

    (void)unused;
    jobq_test_init(test, &handler, 1);
    enqueue(ROWS);
    jobq_test_run(test, JOBQ_HOURS(10));
    assert_in_range(crashes, 3, 2 + jobq_policy_defaults(NULL).max_crashes);
    for (id = 1; id <= ROWS; id++)
        assert_int_equal(jobq_test_get(test, id)->job.state,
                         id == 13 ? JOBQ_STATE_FAILED : JOBQ_STATE_SUCCEEDED);
    assert_non_null(strstr(jobq_test_get(test, 13)->error, "Max crashes (3) exceeded"));
}

/* Each leaves something else. */
static jobq_outcome talks(jobq_call *const *calls, int32_t count)
{
    char text[32];
    int32_t i;

    for (i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%lld", (long long)calls[i]->job.id);
        assert_int_equal(jobq_call_progress(calls[i], (int)calls[i]->job.id, jobq_str_from(""),
                                            false), JOBQ_OK);
        jobq_call_log(calls[i], JOBQ_LEVEL_INFO, jobq_str_from(text));
        assert_int_equal(jobq_call_step_done(calls[i], "step", jobq_str_from(text)), JOBQ_OK);
        if (i % 2 == 0) assert_true(jobq_call_result(calls[i], jobq_str_from(text), false));
        else {
            jobq_call_error(calls[i], jobq_str_from(text));
            calls[i]->outcome = JOBQ_OUTCOME_DISCARD;
        }
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static void each_job_leaves_its_own(void **unused)
{
    const jobq_job_handler handler = {.queue = "rows", .kind = "row", .batch = talks};
    int64_t id;
    char text[32];

    (void)unused;
    jobq_test_init(test, &handler, 1);
    enqueue(4);
    assert_int_equal(jobq_test_run(test, JOBQ_HOURS(1)), 1); /* a batch is a run */
    for (id = 1; id <= 4; id++) {
        const jobq_test_view *view = jobq_test_get(test, id);
        jobq_str value;
        snprintf(text, sizeof text, "%lld", (long long)id);
        assert_int_equal(view->permille, id);
        assert_non_null(strstr(view->log, text));
        assert_int_equal(view->job.state, id % 2 == 1 ? JOBQ_STATE_SUCCEEDED : JOBQ_STATE_FAILED);
        if (id % 2 == 1) assert_true(jobq_str_equal(view->result, jobq_str_from(text)));
        else assert_string_equal(view->error, text);
        assert_true(jobq_test_step(test, id, "step", &value));
        assert_true(jobq_str_equal(value, jobq_str_from(text)));
    }
}

/* What it does not say of a job is what it returns. */
static jobq_outcome says_little(jobq_call *const *calls, int32_t count)
{
    assert_int_equal(count, 3);
    calls[1]->outcome = JOBQ_OUTCOME_SUCCESS;
    return JOBQ_OUTCOME_DISCARD;
}

static void what_it_returns_is_for_those_that_it_left(void **unused)
{
    const jobq_job_handler handler = {.queue = "rows", .kind = "row", .batch = says_little};
    jobq_call alone[3], *calls[3] = {&alone[0], &alone[1], &alone[2]};

    (void)unused;
    memset(alone, 0, sizeof alone);
    jobq_calls_run(calls, 3, says_little); /* by hand */
    assert_int_equal(alone[0].outcome, JOBQ_OUTCOME_DISCARD);
    assert_int_equal(alone[1].outcome, JOBQ_OUTCOME_SUCCESS);
    assert_int_equal(alone[2].outcome, JOBQ_OUTCOME_DISCARD);
    jobq_test_init(test, &handler, 1);
    enqueue(3);
    jobq_test_run(test, JOBQ_HOURS(1));
    assert_int_equal(jobq_test_get(test, 2)->job.state, JOBQ_STATE_SUCCEEDED);
    assert_int_equal(jobq_test_get(test, 3)->job.state, JOBQ_STATE_FAILED);
}

/* -- under every fault -- */

/* A fake database: rows that the transaction has written, and those that are committed. */
static int written[ROWS + 1];
static bool careless; /* it commits before it says so */

static jobq_outcome copies(jobq_call *const *calls, int32_t count)
{
    jobq_error error;
    int32_t i;

    memset(written, 0, sizeof written);
    for (i = 0; i < count; i++) {
        if (jobq_call_stopping(calls[i], NULL) == JOBQ_STOP_CANCEL)
            calls[i]->outcome = JOBQ_OUTCOME_CANCELLED;
        else written[calls[i]->job.id]++;
    }
    if (careless) {
        for (i = 0; i <= ROWS; i++) rows[i] += written[i];
        return JOBQ_OUTCOME_SUCCESS;
    }
    error = jobq_test_commit_all(calls, count);
    if (error == JOBQ_OK || error == JOBQ_ERROR_CONNECTION)
        for (i = 0; i <= ROWS; i++) rows[i] += written[i];
    for (i = 0; i < count; i++)
        if (calls[i]->outcome == JOBQ_OUTCOME_NONE)
            calls[i]->outcome = error == JOBQ_OK ? JOBQ_OUTCOME_DONE : JOBQ_OUTCOME_RETRY;
    return JOBQ_OUTCOME_SUCCESS;
}

static void died(void *user, int number)
{
    (void)user;
    (void)number;
    memset(written, 0, sizeof written);
}

static bool rows_are_there_once(jobq_test *t, void *user)
{
    int64_t id;
    bool good = true;

    (void)user;
    test = t;
    memset(rows, 0, sizeof rows);
    enqueue(3);
    jobq_test_run(t, JOBQ_HOURS(5));
    for (id = 1; id <= 3; id++) {
        const jobq_test_view *view = jobq_test_get(t, id);
        if (!jobq_state_final(view->job.state)) good = false;
        if (rows[id] != (view->job.state == JOBQ_STATE_SUCCEEDED)) good = false;
    }
    return good;
}

static int64_t tell_stories(bool carelessly)
{
    const jobq_job_handler handler = {.queue = "rows", .kind = "row", .batch = copies};
    static jobq_test_faults faults;
    int64_t failed;

    careless = carelessly;
    memset(&faults, 0, sizeof faults);
    faults.handlers = &handler;
    faults.handler_count = 1;
    faults.scenario = rows_are_there_once;
    faults.died = died;
    faults.pairs = true;
    faults.stories_max = 100000;
    failed = jobq_test_each_fault(test, &faults);
    if (!carelessly && failed != 0) print_message("%s", faults.text);
    assert_in_range(faults.stories, carelessly ? 2 : 100, 99999);
    if (carelessly) assert_non_null(strstr(faults.text, "job 1 of a batch of 3"));
    return failed;
}

static void one_commit_for_all_under_every_fault(void **unused)
{
    (void)unused;
    assert_int_equal(tell_stories(false), 0);
}

static void a_careless_batch_is_found_out(void **unused)
{
    (void)unused;
    assert_int_not_equal(tell_stories(true), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_batch_is_what_is_there, setup),
        cmocka_unit_test_setup(only_equal_jobs_are_together, setup),
        cmocka_unit_test_setup(each_attempt_is_in_half_as_many, setup),
        cmocka_unit_test_setup(a_suspect_is_alone, setup),
        cmocka_unit_test_setup(a_lone_job_waits_for_others_but_not_long, setup),
        cmocka_unit_test_setup(what_has_waited_enough_is_no_reason_to_wake, setup),
        cmocka_unit_test_setup(a_full_batch_does_not_wait, setup),
        cmocka_unit_test_setup(others_join_what_waits, setup),
        cmocka_unit_test_setup(who_waits_keeps_nobody, setup),
        cmocka_unit_test_setup(a_limit_of_threads_counts_calls, setup),
        cmocka_unit_test_setup(each_job_ends_by_its_own_outcome, setup),
        cmocka_unit_test_setup(a_cancel_request_reaches_one, setup),
        cmocka_unit_test_setup(an_overrun_of_several_is_no_evidence, setup),
        cmocka_unit_test_setup(nor_is_one_that_returns_too_late, setup),
        cmocka_unit_test_setup(an_overrun_of_one_is_its_own, setup),
        cmocka_unit_test_setup(at_the_end_of_the_grace_all_go_back, setup),
        cmocka_unit_test_setup(jobs_max_cuts_a_batch, setup),
        cmocka_unit_test_setup(claims_become_large_enough_for_batches, setup),
        cmocka_unit_test_setup(single_jobs_are_not_hoarded, setup),
        cmocka_unit_test_setup(one_bad_job_does_not_fail_the_others, setup),
        cmocka_unit_test_setup(a_job_that_kills_its_worker_fails_alone, test_setup),
        cmocka_unit_test_setup(each_job_leaves_its_own, test_setup),
        cmocka_unit_test_setup(what_it_returns_is_for_those_that_it_left, test_setup),
        cmocka_unit_test_setup(one_commit_for_all_under_every_fault, test_setup),
        cmocka_unit_test_setup(a_careless_batch_is_found_out, test_setup)};

    return cmocka_run_group_tests_name("batch", tests, NULL, NULL);
}
