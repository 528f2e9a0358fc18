/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The job machine: every state with every event, limits, stages, suspects, cancel requests, status
 * names. Rows X6, X8 (decisions), X9; laws (1) to (9) of jobq.h.
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"

static jobq_policy policy_of(int32_t max_attempts, int32_t max_crashes)
{
    jobq_policy p;

    memset(&p, 0, sizeof p);
    p.max_attempts = max_attempts;
    p.max_crashes = max_crashes;
    p.backoff.base_us = SECOND;
    p.backoff.jitter_permille = JOBQ_NO_JITTER;
    p.backoff.cap_us = 60 * SECOND;
    return jobq_policy_defaults(&p);
}

static jobq_event event_of(jobq_event_kind kind)
{
    jobq_event e;

    memset(&e, 0, sizeof e);
    e.kind = kind;
    e.worker = 7;
    e.claim = 3;
    return e;
}

/* A job in a state, lawful. */
static jobq_job job_in(jobq_state state)
{
    jobq_job j = jobq_job_new(1);

    j.state = state;
    j.stages = 3;
    j.stage = 1;
    j.attempt = 2;
    if (state == JOBQ_STATE_RUNNING) {
        j.worker = 7;
        j.claim = 3;
    }
    return j;
}

/* Decides and applies one event. */
static jobq_error step(const jobq_policy *p, jobq_job *j, jobq_event e)
{
    jobq_decision d;
    jobq_error error = jobq_job_decide(p, j, &e, &d);

    if (error == JOBQ_OK) jobq_job_apply(j, &d, 100 * SECOND);
    return error;
}

static jobq_error step_kind(const jobq_policy *p, jobq_job *j, jobq_event_kind kind)
{
    return step(p, j, event_of(kind));
}

/* What the matrix allows, said once more and by hand: the state after, from a job in stage 2 of 3
 * with attempts left. */
static const struct {
    jobq_state from;
    jobq_event_kind event;
    jobq_state to;
} allowed[] = {
    {JOBQ_STATE_READY, JOBQ_EVENT_CLAIM, JOBQ_STATE_RUNNING},
    {JOBQ_STATE_READY, JOBQ_EVENT_CANCEL, JOBQ_STATE_CANCELLED},
    {JOBQ_STATE_READY, JOBQ_EVENT_EXPIRE, JOBQ_STATE_CANCELLED},
    {JOBQ_STATE_RUNNING, JOBQ_EVENT_SUCCESS, JOBQ_STATE_READY},
    {JOBQ_STATE_RUNNING, JOBQ_EVENT_RETRY, JOBQ_STATE_READY},
    {JOBQ_STATE_RUNNING, JOBQ_EVENT_TIMEOUT, JOBQ_STATE_READY},
    {JOBQ_STATE_RUNNING, JOBQ_EVENT_DISCARD, JOBQ_STATE_FAILED},
    {JOBQ_STATE_RUNNING, JOBQ_EVENT_SNOOZE, JOBQ_STATE_READY},
    {JOBQ_STATE_RUNNING, JOBQ_EVENT_CANCELLED, JOBQ_STATE_CANCELLED},
    {JOBQ_STATE_RUNNING, JOBQ_EVENT_RELEASE, JOBQ_STATE_READY},
    {JOBQ_STATE_RUNNING, JOBQ_EVENT_PARK, JOBQ_STATE_READY},
    {JOBQ_STATE_RUNNING, JOBQ_EVENT_WAIT, JOBQ_STATE_WAITING},
    {JOBQ_STATE_RUNNING, JOBQ_EVENT_CRASH, JOBQ_STATE_READY},
    {JOBQ_STATE_RUNNING, JOBQ_EVENT_CANCEL, JOBQ_STATE_RUNNING},
    {JOBQ_STATE_FAILED, JOBQ_EVENT_REVIVE, JOBQ_STATE_READY},
    {JOBQ_STATE_WAITING, JOBQ_EVENT_CANCEL, JOBQ_STATE_CANCELLED},
    {JOBQ_STATE_WAITING, JOBQ_EVENT_READY, JOBQ_STATE_READY},
};

static void every_state_meets_every_event(void **unused)
{
    jobq_policy p = policy_of(5, 3);
    int state, event;
    size_t i, cells = 0;

    (void)unused;
    for (state = JOBQ_STATE_NONE + 1; state < JOBQ_STATE_COUNT; state++) {
        for (event = JOBQ_EVENT_NONE; event < JOBQ_EVENT_COUNT; event++) {
            jobq_job job = job_in((jobq_state)state), before = job;
            jobq_decision d, untouched;
            jobq_event e = event_of((jobq_event_kind)event);
            memset(&d, 0x5a, sizeof d);
            untouched = d;
            for (i = 0; i < COUNT(allowed); i++) {
                if (allowed[i].from == (jobq_state)state && allowed[i].event == e.kind) break;
            }
            if (i < COUNT(allowed)) {
                assert_int_equal(step(&p, &job, e), JOBQ_OK);
                assert_int_equal(job.state, allowed[i].to);
                assert_int_equal(jobq_job_check(&job), JOBQ_OK);
                cells++;
            } else {
                assert_int_equal(jobq_job_decide(&p, &job, &e, &d), JOBQ_ERROR_TRANSITION);
                assert_memory_equal(&d, &untouched, sizeof d);
                assert_memory_equal(&job, &before, sizeof job);
            }
        }
    }
    assert_int_equal(cells, COUNT(allowed));
}

static void a_claim_takes_the_token_and_raises_the_attempt(void **unused)
{
    jobq_policy p = policy_of(5, 3);
    jobq_job j = jobq_job_new(9);
    jobq_event e = event_of(JOBQ_EVENT_CLAIM);

    (void)unused;
    assert_int_equal(step(&p, &j, e), JOBQ_OK);
    assert_true(jobq_job_holds(&j, 7, 3));
    assert_false(jobq_job_holds(&j, 7, 4));
    assert_false(jobq_job_holds(&j, 8, 3));
    assert_int_equal(j.attempt, 1);
    j = jobq_job_new(9);
    e.worker = 0;
    assert_int_equal(step(&p, &j, e), JOBQ_ERROR_INVALID);
    e.worker = 7;
    e.claim = 0;
    assert_int_equal(step(&p, &j, e), JOBQ_ERROR_INVALID);
    assert_int_equal(j.state, JOBQ_STATE_READY);
}

static void the_nth_failed_attempt_is_the_last(void **unused)
{
    jobq_policy p = policy_of(3, 3);
    jobq_job j = jobq_job_new(1);
    jobq_event e = event_of(JOBQ_EVENT_RETRY);
    jobq_decision d;
    char text[JOBQ_ERROR_MAX + 1];
    int n;

    (void)unused;
    for (n = 1; n <= 3; n++) {
        assert_int_equal(step_kind(&p, &j, JOBQ_EVENT_CLAIM), JOBQ_OK);
        assert_int_equal(j.attempt, n);
        assert_int_equal(jobq_job_decide(&p, &j, &e, &d), JOBQ_OK);
        jobq_job_apply(&j, &d, 0);
        if (n < 3) assert_int_equal(j.run_at_us, n * SECOND); /* 1 s, 2 s: doubling from the base */
    }
    assert_int_equal(j.state, JOBQ_STATE_FAILED);
    assert_int_equal(d.reason, JOBQ_REASON_ATTEMPTS);
    jobq_reason_format(text, &d, jobq_str_from("disk full"));
    assert_string_equal(text, "Max retries (3) exceeded: disk full");
}

static void a_job_may_carry_its_own_limit(void **unused)
{
    jobq_policy p = policy_of(20, 3);
    jobq_job j = jobq_job_new(1);

    (void)unused;
    j.max_attempts = 1;
    step_kind(&p, &j, JOBQ_EVENT_CLAIM);
    step_kind(&p, &j, JOBQ_EVENT_TIMEOUT);
    assert_int_equal(j.state, JOBQ_STATE_FAILED);
}

static void a_handler_may_name_its_delay(void **unused)
{
    jobq_policy p = policy_of(5, 3);
    jobq_job j = job_in(JOBQ_STATE_RUNNING);
    jobq_event e = event_of(JOBQ_EVENT_RETRY);

    (void)unused;
    e.delay_named = true;
    e.delay_us = 7 * SECOND;
    assert_int_equal(step(&p, &j, e), JOBQ_OK);
    assert_int_equal(j.run_at_us, 107 * SECOND);
    assert_int_equal(j.attempt, 2);
    j = job_in(JOBQ_STATE_RUNNING);
    e.delay_us = -1;
    assert_int_equal(step(&p, &j, e), JOBQ_ERROR_INVALID);
}

static void success_advances_stage_by_stage(void **unused)
{
    jobq_policy p = policy_of(5, 3), spanning = p;
    jobq_job j = jobq_job_new(1);
    int stage;

    (void)unused;
    j.stages = 3;
    for (stage = 0; stage < 3; stage++) {
        assert_int_equal(j.stage, stage);
        assert_int_equal(j.attempt, 0);
        step_kind(&p, &j, JOBQ_EVENT_CLAIM);
        step_kind(&p, &j, JOBQ_EVENT_SUCCESS);
    }
    assert_int_equal(j.state, JOBQ_STATE_SUCCEEDED);
    j = job_in(JOBQ_STATE_RUNNING);
    spanning.attempts_span_stages = true;
    step_kind(&spanning, &j, JOBQ_EVENT_SUCCESS);
    assert_int_equal(j.stage, 2);
    assert_int_equal(j.attempt, 2);
}

static void a_retry_stays_in_its_stage(void **unused)
{
    jobq_policy p = policy_of(5, 3);
    jobq_job j = job_in(JOBQ_STATE_RUNNING);

    (void)unused;
    step_kind(&p, &j, JOBQ_EVENT_RETRY);
    assert_int_equal(j.stage, 1);
}

static void snooze_release_and_park_give_the_attempt_back(void **unused)
{
    static const jobq_event_kind kinds[] = {JOBQ_EVENT_SNOOZE, JOBQ_EVENT_RELEASE, JOBQ_EVENT_PARK};
    jobq_policy p = policy_of(2, 3);
    size_t i;
    int n;

    (void)unused;
    for (i = 0; i < COUNT(kinds); i++) {
        jobq_job j = jobq_job_new(1);
        for (n = 0; n < 10; n++) { /* ten times, with two attempts only */
            jobq_event e = event_of(kinds[i]);
            e.delay_us = kinds[i] == JOBQ_EVENT_SNOOZE ? 4 * SECOND : 0;
            e.delay_named = kinds[i] == JOBQ_EVENT_SNOOZE;
            assert_int_equal(step_kind(&p, &j, JOBQ_EVENT_CLAIM), JOBQ_OK);
            assert_int_equal(step(&p, &j, e), JOBQ_OK);
            assert_int_equal(j.attempt, 0);
            assert_int_equal(j.state, JOBQ_STATE_READY);
        }
        assert_true(j.run_at_us == (kinds[i] == JOBQ_EVENT_PARK     ? JOBQ_NEVER
                                    : kinds[i] == JOBQ_EVENT_SNOOZE ? 104 * SECOND : 100 * SECOND));
    }
}

/* Otherwise a handler that always snoozes would run without a pause. */
static void a_snooze_without_a_delay_waits_like_a_first_retry(void **unused)
{
    jobq_policy p = policy_of(20, 3);
    jobq_job j = jobq_job_new(1);
    int n;

    (void)unused;
    for (n = 0; n < 5; n++) {
        jobq_event e = event_of(JOBQ_EVENT_SNOOZE);
        assert_int_equal(step_kind(&p, &j, JOBQ_EVENT_CLAIM), JOBQ_OK);
        assert_int_equal(step(&p, &j, e), JOBQ_OK);
        assert_int_equal(j.run_at_us, 100 * SECOND + p.backoff.base_us);
    }
}

/* Law (9): two snoozes in a stage, and the third fails the job, unless its cancel was asked for. */
static void snoozes_are_counted_and_limited(void **unused)
{
    static const jobq_event_kind keep[] = {JOBQ_EVENT_RETRY, JOBQ_EVENT_RELEASE, JOBQ_EVENT_PARK,
                                           JOBQ_EVENT_CRASH, JOBQ_EVENT_WAIT};
    jobq_policy p = policy_of(20, 3);
    jobq_job j = jobq_job_new(1), one;
    jobq_event e = event_of(JOBQ_EVENT_SNOOZE);
    jobq_decision d;
    char text[JOBQ_ERROR_MAX + 1];
    size_t i;
    int n;

    (void)unused;
    j.stages = 2;
    for (n = 1; n <= 5; n++) { /* no limit */
        step_kind(&p, &j, JOBQ_EVENT_CLAIM);
        step(&p, &j, e);
        assert_int_equal(j.snoozes, n);
    }
    p.snoozes_max = 2;
    step_kind(&p, &j, JOBQ_EVENT_CLAIM);
    for (i = 0; i < COUNT(keep); i++) {
        one = j;
        step_kind(&p, &one, keep[i]);
        assert_int_equal(one.snoozes, 5);
    }
    step_kind(&p, &j, JOBQ_EVENT_SUCCESS);
    assert_int_equal(j.snoozes, 0); /* another stage */
    for (n = 1; n <= 2; n++) {
        step_kind(&p, &j, JOBQ_EVENT_CLAIM);
        step(&p, &j, e);
        assert_int_equal(j.state, JOBQ_STATE_READY);
    }
    step_kind(&p, &j, JOBQ_EVENT_CLAIM);
    one = j;
    step_kind(&p, &one, JOBQ_EVENT_CANCEL);
    step(&p, &one, e);
    assert_int_equal(one.state, JOBQ_STATE_CANCELLED);
    assert_int_equal(jobq_job_decide(&p, &j, &e, &d), JOBQ_OK);
    assert_int_equal(d.state, JOBQ_STATE_FAILED);
    assert_int_equal(d.snoozes, 2);
    assert_int_equal(d.attempt, 1);
    assert_int_equal(d.reason, JOBQ_REASON_SNOOZES);
    jobq_reason_format(text, &d, jobq_str_from("429"));
    assert_string_equal(text, "Max snoozes (2) exceeded: 429");
    jobq_job_apply(&j, &d, 0);
    step_kind(&p, &j, JOBQ_EVENT_REVIVE);
    assert_int_equal(j.snoozes, 0);
    j.snoozes = -1;
    assert_int_equal(jobq_job_check(&j), JOBQ_ERROR_INVALID);
}

/* Law (6), with a job that kills its worker among a thousand: decisions only. */
static void one_crashing_job_fails_and_its_999_neighbours_succeed(void **unused)
{
    jobq_policy p = policy_of(20, 3);
    static jobq_job jobs[1000];
    const int crashing = 417;
    int i, deaths = 0;

    (void)unused;
    for (i = 0; i < 1000; i++) {
        jobs[i] = jobq_job_new(i + 1);
        step_kind(&p, &jobs[i], JOBQ_EVENT_CLAIM);
    }
    for (i = 0; i < 1000; i++) step_kind(&p, &jobs[i], JOBQ_EVENT_CRASH); /* it kills its worker */
    for (i = 0; i < 1000; i++) {
        assert_true(jobs[i].suspect);
        assert_int_equal(jobs[i].attempt, 0);
        assert_int_equal(jobs[i].crash, 0);
    }
    for (i = 0; i < 1000; i++) { /* each as a suspect, the crashing one then alone */
        while (jobs[i].state == JOBQ_STATE_READY) {
            step_kind(&p, &jobs[i], JOBQ_EVENT_CLAIM);
            deaths += i == crashing;
            step_kind(&p, &jobs[i], i == crashing ? JOBQ_EVENT_CRASH : JOBQ_EVENT_SUCCESS);
        }
        assert_int_equal(jobs[i].state, i == crashing ? JOBQ_STATE_FAILED : JOBQ_STATE_SUCCEEDED);
        assert_int_equal(jobs[i].attempt, i == crashing ? 3 : 1);
        assert_int_equal(jobs[i].crash, i == crashing ? 3 : 0);
    }
    assert_int_equal(deaths, 4); /* the first tells nothing: others ran beside it */
}

/* Whatever kills its workers beside a suspect: it fails by its own deaths only. */
static void a_suspect_answers_for_no_death_beside_others(void **unused)
{
    jobq_policy p = policy_of(20, 1);
    jobq_job j = jobq_job_new(1);
    int i;

    (void)unused;
    for (i = 0; i < 50; i++) {
        assert_int_equal(step_kind(&p, &j, JOBQ_EVENT_CLAIM), JOBQ_OK);
        assert_int_equal(step_kind(&p, &j, JOBQ_EVENT_CRASH), JOBQ_OK);
        assert_true(j.suspect && j.alone == (i % 2 == 1));
        assert_int_equal(j.attempt + j.crash, 0);
        if (!j.alone) continue;
        assert_int_equal(step_kind(&p, &j, JOBQ_EVENT_CLAIM), JOBQ_OK); /* alone: it ends */
        assert_int_equal(step_kind(&p, &j, JOBQ_EVENT_SNOOZE), JOBQ_OK);
        assert_true(!j.suspect && !j.alone);
    }
}

static void a_suspect_that_ends_otherwise_is_none_any_more(void **unused)
{
    static const struct {
        jobq_event_kind event;
        bool still;
    } cases[] = {{JOBQ_EVENT_RETRY, false}, {JOBQ_EVENT_TIMEOUT, false}, {JOBQ_EVENT_SNOOZE, false},
                 {JOBQ_EVENT_SUCCESS, false}, {JOBQ_EVENT_RELEASE, true}, {JOBQ_EVENT_PARK, true},
                 {JOBQ_EVENT_CRASH, true}};
    jobq_policy p = policy_of(9, 9);
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(cases); i++) {
        jobq_job j = job_in(JOBQ_STATE_RUNNING);
        j.suspect = j.alone = true;
        assert_int_equal(step_kind(&p, &j, cases[i].event), JOBQ_OK);
        assert_int_equal(j.suspect, cases[i].still);
        assert_int_equal(j.alone, cases[i].still);
    }
}

static void a_crash_at_the_attempt_limit_fails(void **unused)
{
    jobq_policy p = policy_of(2, 9);
    jobq_job j = job_in(JOBQ_STATE_RUNNING);
    jobq_event e = event_of(JOBQ_EVENT_CRASH);
    jobq_decision d;

    (void)unused;
    j.suspect = j.alone = true;
    assert_int_equal(jobq_job_decide(&p, &j, &e, &d), JOBQ_OK);
    assert_int_equal(d.state, JOBQ_STATE_FAILED);
    assert_int_equal(d.reason, JOBQ_REASON_ATTEMPTS);
    assert_int_equal(d.crash, 1);
}

/* Law (7). */
static void what_would_go_back_after_a_cancel_request_is_cancelled(void **unused)
{
    static const jobq_event_kind back[] = {
        JOBQ_EVENT_RETRY, JOBQ_EVENT_TIMEOUT, JOBQ_EVENT_SNOOZE, JOBQ_EVENT_RELEASE,
        JOBQ_EVENT_PARK,  JOBQ_EVENT_CRASH,   JOBQ_EVENT_SUCCESS};
    jobq_policy p = policy_of(5, 3);
    jobq_job j;
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(back); i++) {
        j = job_in(JOBQ_STATE_RUNNING);
        step_kind(&p, &j, JOBQ_EVENT_CANCEL);
        assert_true(j.cancel_requested);
        assert_true(jobq_job_holds(&j, 7, 3));
        step_kind(&p, &j, back[i]);
        assert_int_equal(j.state, JOBQ_STATE_CANCELLED);
    }
    j = job_in(JOBQ_STATE_RUNNING);
    j.stage = 2;
    step_kind(&p, &j, JOBQ_EVENT_CANCEL);
    step_kind(&p, &j, JOBQ_EVENT_SUCCESS);
    assert_int_equal(j.state, JOBQ_STATE_SUCCEEDED); /* success is success */
}

static void revive_starts_the_count_anew(void **unused)
{
    jobq_policy p = policy_of(5, 3);
    jobq_job j = job_in(JOBQ_STATE_FAILED);

    (void)unused;
    j.crash = 3;
    step_kind(&p, &j, JOBQ_EVENT_REVIVE);
    assert_int_equal(j.state, JOBQ_STATE_READY);
    assert_int_equal(j.stage, 1);
    assert_int_equal(j.attempt + j.crash, 0);
}

static void check_sees_every_broken_law(void **unused)
{
    jobq_job good = job_in(JOBQ_STATE_RUNNING), j;

    (void)unused;
    assert_int_equal(jobq_job_check(&good), JOBQ_OK);
#define BREAKS(field, value)                                                                       \
    j = good;                                                                                      \
    j.field = value;                                                                               \
    assert_int_equal(jobq_job_check(&j), JOBQ_ERROR_INVALID)
    BREAKS(stage, -1);
    BREAKS(stage, 3);
    BREAKS(stages, JOBQ_STAGES_MAX + 1);
    BREAKS(worker, 0);
    BREAKS(claim, 0);
    BREAKS(claim, -1);
    BREAKS(attempt, 0);
    BREAKS(crash, -1);
    BREAKS(priority, 10);
    BREAKS(priority, -10);
    BREAKS(state, JOBQ_STATE_READY); /* still bears a token */
    BREAKS(state, JOBQ_STATE_NONE);
    good = job_in(JOBQ_STATE_READY);
    BREAKS(cancel_requested, true);
    BREAKS(attempt, -1);
#undef BREAKS
}

static void a_million_random_events_keep_the_laws(void **unused)
{
    jobq_policy p = policy_of(4, 2);
    jobq_random r = {20261121};
    jobq_job j = jobq_job_new(1);
    int n, count = check_slow() ? 50000 : 1000000, changed = 0;

    (void)unused;
    j.stages = 3;
    for (n = 0; n < count; n++) {
        jobq_event e =
            event_of((jobq_event_kind)(1 + jobq_random_next(&r) % (JOBQ_EVENT_COUNT - 1)));
        jobq_job before = j;
        e.random = jobq_random_next(&r);
        e.delay_us = (int64_t)(e.random % 1000);
        if (step(&p, &j, e) == JOBQ_OK) changed++;
        else assert_memory_equal(&before, &j, sizeof j);
        assert_int_equal(jobq_job_check(&j), JOBQ_OK);
        assert_true(j.attempt <= 4);
        assert_true(j.crash <= 2);
        if (jobq_state_final(j.state) && j.state != JOBQ_STATE_FAILED) {
            j = jobq_job_new(n);
            j.stages = 3;
        }
    }
    assert_true(changed > count / 10);
}

/* Every value has a name of its own, and the name leads back to it. Nothing else does. */
static void names_go_round(void **unused)
{
    static const struct {
        int first, end;
    } values[JOBQ_ENUM_COUNT] = {
        {JOBQ_OK, JOBQ_ERROR_COUNT},
        {JOBQ_CURVE_EXPONENTIAL, JOBQ_CURVE_COUNT},
        {JOBQ_STATE_NONE + 1, JOBQ_STATE_COUNT},
        {JOBQ_STATE_NONE + 1, JOBQ_STATE_COUNT},
        {JOBQ_EVENT_NONE + 1, JOBQ_EVENT_COUNT},
        {JOBQ_OUTCOME_NONE, JOBQ_OUTCOME_COUNT},
        {JOBQ_PROFILE_QUICK, JOBQ_PROFILE_COUNT},
        {JOBQ_REQUEST_WAIT, JOBQ_REQUEST_COUNT},
        {JOBQ_KNOWN_LEAVE, JOBQ_KNOWN_REJECT + 1},
        {JOBQ_UNIQUE_PERIOD, JOBQ_UNIQUE_READY + 1},
        {JOBQ_MISSED_LAST, JOBQ_MISSED_SKIP + 1},
        {JOBQ_OVERLAP_ALLOW, JOBQ_OVERLAP_CANCEL + 1},
        {JOBQ_ON_SUCCESS, JOBQ_ON_ANY + 1},
        {JOBQ_LEVEL_DEBUG, JOBQ_LEVEL_ERROR + 1},
        {JOBQ_ENTRY_SNAPSHOT, JOBQ_ENTRY_COUNT},
    };
    int of, i;

    (void)unused;
    for (of = 0; of < JOBQ_ENUM_COUNT; of++) {
        for (i = -1; i <= values[of].end + 1; i++) {
            const char *name = jobq_enum_name((jobq_enum)of, i);
            bool named = i >= values[of].first && i < values[of].end;
            assert_int_equal(strcmp(name, "unknown") != 0, named);
            assert_int_equal(jobq_enum_from((jobq_enum)of, jobq_str_from(name)), named ? i : -1);
        }
        assert_string_equal(jobq_enum_name((jobq_enum)of, INT64_MAX), "unknown");
        assert_int_equal(jobq_enum_from((jobq_enum)of, jobq_str_from("")), -1);
        assert_int_equal(jobq_enum_from((jobq_enum)of, jobq_str_from(NULL)), -1);
        assert_int_equal(jobq_enum_from((jobq_enum)of, jobq_str_from("READY")), -1);
    }
    assert_string_equal(jobq_enum_name(JOBQ_ENUM_STATE, JOBQ_STATE_CANCELLED), "cancelled");
    assert_string_equal(jobq_enum_name(JOBQ_ENUM_STATE_LETTER, JOBQ_STATE_RUNNING), "x");
    assert_string_equal(jobq_enum_name(JOBQ_ENUM_EVENT, JOBQ_EVENT_REVIVE), "revive");
    assert_string_equal(jobq_enum_name(JOBQ_ENUM_OUTCOME, JOBQ_OUTCOME_DONE), "done");
    assert_string_equal(jobq_enum_name(JOBQ_ENUM_PROFILE, JOBQ_PROFILE_RELAXED), "relaxed");
    assert_string_equal(jobq_enum_name(JOBQ_ENUM_REQUEST, JOBQ_REQUEST_SET_ASIDE), "set aside");
    assert_string_equal(jobq_enum_name(JOBQ_ENUM_CURVE, JOBQ_CURVE_CONSTANT), "constant");
}

/* SEED_FACTS 1.1: the six words of a two-stage table. */
static void stage_and_state_spell_the_documents_status_words(void **unused)
{
    static const char *const names[] = {"EXTRACTION", "EMBEDDING"};
    static const struct {
        const char *word;
        int stage;
        jobq_state state;
    } words[] = {{"PENDING", 0, JOBQ_STATE_READY},
                 {"EXTRACTION_IN_PROGRESS", 0, JOBQ_STATE_RUNNING},
                 {"EXTRACTION_COMPLETE", 1, JOBQ_STATE_READY},
                 {"EMBEDDING_IN_PROGRESS", 1, JOBQ_STATE_RUNNING},
                 {"SUCCEEDED", 1, JOBQ_STATE_SUCCEEDED},
                 {"FAILED", 1, JOBQ_STATE_FAILED},
                 {"CANCELLED", 1, JOBQ_STATE_CANCELLED}};
    char out[32];
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(words); i++) {
        int stage = -1;
        jobq_state state = JOBQ_STATE_NONE;
        assert_int_equal(
            jobq_status_format(out, sizeof out, names, 2, words[i].stage, words[i].state), JOBQ_OK);
        assert_string_equal(out, words[i].word);
        assert_int_equal(jobq_status_from(jobq_str_from(out), names, 2, &stage, &state), JOBQ_OK);
        assert_int_equal(stage, words[i].stage);
        assert_int_equal(state, words[i].state);
    }
    {
        int stage = 5;
        jobq_state state = JOBQ_STATE_READY;
        assert_int_equal(jobq_status_from(jobq_str_from("PENDNIG"), names, 2, &stage, &state),
                         JOBQ_ERROR_INVALID);
        assert_int_equal(stage, 5);
        assert_int_equal(jobq_status_format(out, 5, names, 2, 0, JOBQ_STATE_READY),
                         JOBQ_ERROR_FULL);
        assert_int_equal(jobq_status_format(out, 32, names, 2, 2, JOBQ_STATE_READY),
                         JOBQ_ERROR_INVALID);
    }
}

static void long_error_texts_are_cut_at_a_character(void **unused)
{
    static char message[3 * JOBQ_ERROR_MAX];
    char out[JOBQ_ERROR_MAX + 1];
    jobq_decision d;
    jobq_str text = {message, sizeof message};
    size_t i, size;

    (void)unused;
    memset(&d, 0, sizeof d);
    for (i = 0; i + 1 < sizeof message; i += 2) memcpy(message + i, "\xc3\xa4", 2);
    d.reason = JOBQ_REASON_CRASHES;
    d.limit = 3;
    size = jobq_reason_format(out, &d, text);
    assert_true(size <= JOBQ_ERROR_MAX && size >= JOBQ_ERROR_MAX - 1);
    text.ptr = out;
    text.len = size;
    assert_true(jobq_utf8_valid(text));
    assert_memory_equal(out, "Max crashes (3) exceeded: ", 26);
}

static void the_policys_defaults(void **unused)
{
    jobq_policy p = jobq_policy_defaults(NULL);

    (void)unused;
    assert_int_equal(p.max_attempts, 20);
    assert_int_equal(p.max_crashes, 3);
    assert_int_equal(p.timeout_us, 0); /* none */
    assert_int_equal(p.backoff.curve, JOBQ_CURVE_EXPONENTIAL);
    assert_int_equal(p.backoff.base_us, JOBQ_SECONDS(5));
    assert_true(p.backoff.cap_us == JOBQ_HOURS(1));
    assert_int_equal(p.backoff.jitter_permille, 250);
    assert_false(p.attempts_span_stages);
}

/* Counters that can count no further stay; limits that high are none. */
static void counters_saturate(void **unused)
{
    jobq_policy policy = jobq_policy_defaults(NULL);
    jobq_job job = jobq_job_new(1);
    jobq_event event;
    jobq_decision d;

    (void)unused;
    memset(&event, 0, sizeof event);
    event.kind = JOBQ_EVENT_CLAIM;
    event.worker = event.claim = 1;
    job.attempt = INT32_MAX;
    assert_int_equal(jobq_job_decide(&policy, &job, &event, &d), JOBQ_OK);
    assert_int_equal(d.attempt, INT32_MAX);
    jobq_job_apply(&job, &d, 0);
    job.suspect = job.alone = true;
    job.crash = INT32_MAX;
    event.kind = JOBQ_EVENT_CRASH;
    assert_int_equal(jobq_job_decide(&policy, &job, &event, &d), JOBQ_OK);
    assert_int_equal(d.state, JOBQ_STATE_FAILED);
    assert_int_equal(d.crash, INT32_MAX);
}

static void states_without_a_word_are_refused(void **unused)
{
    static const char *const stages[] = {"EXTRACTION", "EMBEDDING"};
    jobq_state state = JOBQ_STATE_READY;
    char out[64];
    int i, stage = 7;

    (void)unused;
    for (i = 0; i <= JOBQ_STATE_COUNT; i++) {
        bool named = i > JOBQ_STATE_NONE && i < JOBQ_STATE_COUNT;
        assert_int_equal(jobq_status_format(out, sizeof out, stages, 2, 1, (jobq_state)i),
                         named ? JOBQ_OK : JOBQ_ERROR_INVALID);
    }
    assert_int_equal(jobq_status_format(out, sizeof out, stages, 2, -1, JOBQ_STATE_READY),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_status_from(jobq_str_from("EXTRACTION_"), stages, 2, &stage, &state),
                     JOBQ_ERROR_INVALID);
    assert_true(state == JOBQ_STATE_READY && stage == 7);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_policys_defaults),
        cmocka_unit_test(counters_saturate),
        cmocka_unit_test(states_without_a_word_are_refused),
        cmocka_unit_test(every_state_meets_every_event),
        cmocka_unit_test(a_claim_takes_the_token_and_raises_the_attempt),
        cmocka_unit_test(the_nth_failed_attempt_is_the_last),
        cmocka_unit_test(a_job_may_carry_its_own_limit),
        cmocka_unit_test(a_handler_may_name_its_delay),
        cmocka_unit_test(success_advances_stage_by_stage),
        cmocka_unit_test(a_retry_stays_in_its_stage),
        cmocka_unit_test(snooze_release_and_park_give_the_attempt_back),
        cmocka_unit_test(a_snooze_without_a_delay_waits_like_a_first_retry),
        cmocka_unit_test(snoozes_are_counted_and_limited),
        cmocka_unit_test(one_crashing_job_fails_and_its_999_neighbours_succeed),
        cmocka_unit_test(a_suspect_answers_for_no_death_beside_others),
        cmocka_unit_test(a_suspect_that_ends_otherwise_is_none_any_more),
        cmocka_unit_test(a_crash_at_the_attempt_limit_fails),
        cmocka_unit_test(what_would_go_back_after_a_cancel_request_is_cancelled),
        cmocka_unit_test(revive_starts_the_count_anew),
        cmocka_unit_test(check_sees_every_broken_law),
        cmocka_unit_test(a_million_random_events_keep_the_laws),
        cmocka_unit_test(names_go_round),
        cmocka_unit_test(stage_and_state_spell_the_documents_status_words),
        cmocka_unit_test(long_error_texts_are_cut_at_a_character),
    };

    return cmocka_run_group_tests_name("machine", tests, NULL, NULL);
}
