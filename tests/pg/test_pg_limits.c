/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Lines and their limits through real workers, which are threads and processes: never two at once
 * in a limited line, strict order with retries, turns for quiet tenants, jobs that come by COPY or
 * late, holds, pauses, full lines, a worker that is killed while it holds a line, ageing, and what
 * explain says. That a queue without lines costs nothing more: its worker sends NULL.
 */
#define TEST_PRIVATE
#include "processes.h"

#define STEPS 200

/* What handlers in all processes did, in the order in which they began. */
static struct {
    int count, inside, inside_most, done, refuse, go;
    int step[STEPS];       /* the number in the job's payload */
    int64_t at_us[STEPS];
} * log_of;

static int limits_up(void **state)
{
    log_of = shared(sizeof *log_of);
    return common_up(state);
}

static int clean(void **state)
{
    memset(log_of, 0, sizeof *log_of);
    return fresh_effects(state);
}

static int stop_all(void **state)
{
    SET(log_of->go, 1);
    return all_stop(state);
}

/* ---- jobs and handlers ----------------------------------------------------------------------- */

static int step_of(const jobq_call *call)
{
    return atoi(call->payload.ptr);
}

static int begin(const jobq_call *call)
{
    int at = ADD(log_of->count) - 1, inside = ADD(log_of->inside), most;

    if (at < STEPS) {
        SET(log_of->step[at], step_of(call));
        SET(log_of->at_us[at], mono_us());
    }
    for (most = GET(log_of->inside_most); most < inside; most = GET(log_of->inside_most)) {
        __atomic_compare_exchange_n(&log_of->inside_most, &most, inside, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST);
    }
    return step_of(call);
}

static jobq_outcome end(jobq_outcome outcome)
{
    __atomic_sub_fetch(&log_of->inside, 1, __ATOMIC_SEQ_CST);
    if (outcome == JOBQ_OUTCOME_SUCCESS) ADD(log_of->done);
    return outcome;
}

static jobq_outcome logs(jobq_call *call)
{
    begin(call);
    nap_us(3000);
    return end(JOBQ_OUTCOME_SUCCESS);
}

/* Every third job fails twice. */
static jobq_outcome fails_often(jobq_call *call)
{
    bool fails = begin(call) % 3 == 0 && call->job.attempt <= 2;

    nap_us(2000);
    jobq_call_delay(call, call->job.attempt == 1 ? 30000 : 0);
    return end(fails ? JOBQ_OUTCOME_RETRY : JOBQ_OUTCOME_SUCCESS);
}

static jobq_pg_job job_in(const char *line, const char *payload)
{
    jobq_pg_job job = plain_job();

    job.line = line;
    job.payload = jobq_str_from(payload);
    return job;
}

/* Jobs from, from + 1 ... of a line. */
static void fill(const char *line, int from, int count, int64_t delay_us, bool by_copy)
{
    jobq_pg_job jobs[STEPS];
    char payloads[STEPS][12];
    jobq_pg_error error;
    jobq_error code;
    int i;

    assert_true(count <= STEPS);
    for (i = 0; i < count; i++) {
        snprintf(payloads[i], sizeof payloads[i], "%d", from + i);
        jobs[i] = job_in(line, payloads[i]);
        jobs[i].delay_us = delay_us;
    }
    code = by_copy ? jobq_pg_enqueue_many(pg, NULL, jobs, (size_t)count, JOBQ_PG_BY_COPY, &error)
                   : jobq_pg_enqueue_many(pg, NULL, jobs, (size_t)count, NULL, &error);
    if (code != JOBQ_OK) fail_msg("%s", error.message);
}

static int64_t put(const char *line, int step)
{
    char payload[12];
    jobq_pg_job job;

    snprintf(payload, sizeof payload, "%d", step);
    job = job_in(line, payload);
    return enqueue_with(&job);
}

static void each_line(jobq_pg_queue_desc desc)
{
    jobq_pg_error error;

    if (jobq_pg_queue_set(pg, NULL, "q", &desc, &error)) fail_msg("%s", error.message);
}

static void line_set(const char *line, jobq_pg_line_desc desc)
{
    jobq_pg_error error;

    if (jobq_pg_line_set(pg, NULL, "q", line, &desc, &error)) fail_msg("%s", error.message);
}

static jobq_pg_handler the_handler;

static jobq_pg_worker_desc worker_of(jobq_handler run)
{
    the_handler = handler_of("q", "k", run);
    return work_of(&the_handler, 1);
}

/* Two processes of four threads each work until count jobs have succeeded. */
static void two_processes(jobq_handler run, int count)
{
    jobq_pg_worker_desc d = worker_of(run);

    spawn(&d);
    spawn(&d);
    assert_true(reaches(60, &log_of->done, count));
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.job"));
}

/* The place of a step in the log; -1: it has not begun. */
static int place_of(int step)
{
    int i;

    for (i = 0; i < GET(log_of->count) && i < STEPS; i++) {
        if (GET(log_of->step[i]) == step) return i;
    }
    return -1;
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void a_limited_line_never_runs_two_at_once(void **unused)
{
    (void)unused;
    each_line((jobq_pg_queue_desc){.line_running_max = 1});
    fill("a", 1, 40, 0, false);
    two_processes(logs, 40);
    assert_int_equal(log_of->inside_most, 1);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void a_line_of_its_own_limit_uses_it(void **unused)
{
    (void)unused;
    each_line((jobq_pg_queue_desc){.line_running_max = 1});
    line_set("a", (jobq_pg_line_desc){.running_max = 3});
    fill("a", 1, 60, 0, false);
    two_processes(logs, 60);
    assert_in_range(log_of->inside_most, 2, 3);
}

static void copied_and_delayed_jobs_keep_the_limit(void **unused)
{
    (void)unused;
    each_line((jobq_pg_queue_desc){.line_running_max = 1});
    fill("a", 1, 20, 0, true);
    fill("a", 21, 10, 300000, false);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE line IS NULL AND "
                            "line_name = 'a'"), 30);
    two_processes(logs, 30);
    assert_int_equal(log_of->inside_most, 1);
}

static void a_strict_line_keeps_its_order_through_retries(void **unused)
{
    int step, i, at = 0;

    (void)unused;
    each_line((jobq_pg_queue_desc){.line_strict = JOBQ_PG_ON});
    for (step = 1; step <= 9; step++) put("acct", step);
    two_processes(fails_often, 9);
    assert_int_equal(log_of->count, 15);
    assert_int_equal(log_of->inside_most, 1);
    for (step = 1; step <= 9; step++) {
        for (i = 0; i < (step % 3 == 0 ? 3 : 1); i++) assert_int_equal(log_of->step[at++], step);
    }
}

static void a_rate_spreads_the_starts_of_a_line(void **unused)
{
    jobq_pg_worker_desc d = worker_of(logs);
    int64_t took_us;

    (void)unused;
    each_line((jobq_pg_queue_desc){.line_rate = "20/s"});
    fill("api", 1, 11, 0, false);
    start(&d);
    assert_true(reaches(30, &log_of->done, 11));
    took_us = log_of->at_us[10] - log_of->at_us[0]; /* ten gaps of 50 ms */
    assert_in_range(took_us, 400000, 5 * SECOND);
}

/* ---- turns ----------------------------------------------------------------------------------- */

static jobq_outcome logs_slowly(jobq_call *call)
{
    begin(call);
    nap_us(5000);
    return end(JOBQ_OUTCOME_SUCCESS);
}

/* However many jobs the noisy tenant has, two claims bring the quiet one's first. */
static void a_quiet_tenant_comes_within_two_claims(void **unused)
{
    jobq_pg_worker_desc d = worker_of(logs_slowly);
    int before;

    (void)unused;
    d.loop.threads = 1;
    d.loop.batch_max = 10;
    fill("noisy", 1000, STEPS, 0, false);
    start(&d);
    assert_true(reaches(20, &log_of->done, 5));
    before = GET(log_of->count);
    put("quiet", 1);
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.job WHERE line_name = 'quiet'"));
    assert_true(place_of(1) >= 0);
    assert_in_range(place_of(1) - before, 0, 2 * 10);
}

static void every_16th_claim_of_an_ageing_queue_takes_the_oldest(void **unused)
{
    jobq_pg_worker_desc d = worker_of(logs);
    jobq_pg_job old = job_in(NULL, "1");
    int pass;

    (void)unused;
    d.loop.threads = 1;
    d.loop.batch_max = 1;
    for (pass = 0; pass < 2; pass++) {
        jobq_pg_worker *worker;
        memset(log_of, 0, sizeof *log_of);
        each_line((jobq_pg_queue_desc){.ageing = pass == 0 ? JOBQ_PG_OFF : JOBQ_PG_ON});
        old.priority = 9;
        enqueue_with(&old);
        fill(NULL, 1000, 100, 0, false);
        worker = start(&d);
        assert_true(reaches(60, &log_of->done, 101));
        stop(worker);
        if (pass == 0) assert_int_equal(place_of(1), 100);
        else assert_in_range(place_of(1), 0, 50);
    }
}

/* ---- holds, pauses, full lines --------------------------------------------------------------- */

static jobq_hold what_is_held;
static int hold_code;

/* The first job is refused by its server. */
static jobq_outcome is_refused_once(jobq_call *call)
{
    begin(call);
    if (ADD(log_of->refuse) > 1) return end(JOBQ_OUTCOME_SUCCESS);
    SET(hold_code, (int)jobq_call_hold(call, what_is_held, 600000, jobq_str_from("429 from x")));
    jobq_call_delay(call, 200000); /* longer than it takes until the worker hears of a hold */
    return end(JOBQ_OUTCOME_SNOOZE);
}

static void a_handler_holds_its_line(void **unused)
{
    jobq_pg_worker_desc d = worker_of(is_refused_once);
    int64_t gap_us;

    (void)unused;
    what_is_held = JOBQ_HOLD_LINE;
    each_line((jobq_pg_queue_desc){.line_running_max = 1});
    put("api", 1);
    put("api", 2);
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.line WHERE name = 'api' AND "
                               "hold_until > now() AND hold_why = '429 from x'"));
    put("other", 3);
    assert_true(reaches(20, &log_of->done, 3));
    assert_int_equal(GET(hold_code), JOBQ_OK);
    assert_int_equal(place_of(3), 1); /* the other line goes on meanwhile */
    gap_us = log_of->at_us[2] - log_of->at_us[0];
    assert_in_range(gap_us, 590000, 10 * SECOND);
}

static void a_handler_holds_its_queue(void **unused)
{
    jobq_pg_worker_desc d = worker_of(is_refused_once);

    (void)unused;
    what_is_held = JOBQ_HOLD_QUEUE;
    d.loop.threads = 1;
    d.loop.batch_max = 1;
    put(NULL, 1);
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.queue WHERE hold_until > now() AND "
                               "hold_why = '429 from x'"));
    nap_us(100000); /* until the worker has heard of it */
    put("api", 2);
    assert_true(reaches(20, &log_of->done, 2));
    assert_int_equal(GET(hold_code), JOBQ_OK);
    assert_in_range(log_of->at_us[1] - log_of->at_us[0], 590000, 10 * SECOND);
}

static void a_job_without_a_line_cannot_hold_one(void **unused)
{
    jobq_pg_worker_desc d = worker_of(is_refused_once);

    (void)unused;
    what_is_held = JOBQ_HOLD_LINE;
    put(NULL, 1);
    start(&d);
    assert_true(reaches(20, &log_of->done, 1));
    assert_int_equal(GET(hold_code), JOBQ_ERROR_INVALID);
}

/* A worker that lost its job has no say any more. */
static void a_stale_worker_holds_nothing(void **unused)
{
    jobq_pg__holding from;
    jobq_pg_error error;

    (void)unused;
    memset(&from, 0, sizeof from);
    from.job.id = put("api", 1);
    from.job.worker = 77;
    from.job.claim = 1;
    from.queue = true;
    from.delay_us = SECOND;
    assert_int_equal(jobq_pg__ask(pg, NULL, JOBQ_PG__HOLD_OF_CLAIM, &from, NULL, &error),
                     JOBQ_ERROR_LOST);
    assert_int_equal(number("SELECT count(*) FROM jobq.queue WHERE hold_until IS NOT NULL"), 0);
}

/* In C an operator names both. */
static void an_operator_holds_and_lets_go(void **unused)
{
    jobq_pg_worker_desc d = worker_of(logs);
    jobq_pg_error error;

    (void)unused;
    put("api", 1);
    assert_int_equal(jobq_pg_hold(pg, NULL, "q", "api", 5, NULL, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_hold(pg, NULL, "q", "", 0, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "line");
    if (jobq_pg_hold(pg, NULL, "q", "api", JOBQ_DAYS(366 * 80), "moving", &error))
        fail_msg("%s", error.message);
    start(&d);
    all_hear();
    assert_int_equal(GET(log_of->count), 0);
    if (jobq_pg_hold(pg, NULL, "q", "api", 0, NULL, &error)) fail_msg("%s", error.message);
    assert_true(reaches(20, &log_of->done, 1));
}

static void a_paused_line_waits(void **unused)
{
    jobq_pg_worker_desc d = worker_of(logs);

    (void)unused;
    line_set("a", (jobq_pg_line_desc){.paused = JOBQ_PG_ON});
    put("a", 1);
    put("b", 2);
    start(&d);
    assert_true(reaches(20, &log_of->done, 1));
    all_hear();
    assert_int_equal(place_of(1), -1);
    line_set("a", (jobq_pg_line_desc){.paused = JOBQ_PG_OFF});
    assert_true(reaches(20, &log_of->done, 2));
}

static void a_full_line_refuses_jobs(void **unused)
{
    jobq_pg_job job = job_in("a", "4");
    jobq_pg_error error;

    (void)unused;
    each_line((jobq_pg_queue_desc){.line_waiting_max = 3});
    fill("a", 1, 3, 0, false);
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_FULL);
    assert_string_equal(error.sqlstate, "JQ005");
    assert_non_null(strstr(error.message, "line a of queue q"));
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, NULL, &error), JOBQ_ERROR_FULL);
    put("b", 5);
    job.delay_us = SECOND; /* those that come later do not stand in it yet */
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_OK);
    each_line((jobq_pg_queue_desc){.line_waiting_max = JOBQ_PG_UNLIMITED});
    put("a", 4);
}

static void wrong_lines_are_refused_before_anything_is_sent(void **unused)
{
    char name[JOBQ_NAME_MAX + 2];
    jobq_pg_schedule tick = {.name = "s", .cron = "@daily"};
    jobq_pg_job job = job_in("", "1");
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "line");
    memset(name, 'x', sizeof name);
    name[JOBQ_NAME_MAX + 1] = '\0';
    job.line = name;
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, NULL, &error), JOBQ_ERROR_INVALID);
    name[JOBQ_NAME_MAX] = '\0';
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_OK);
    job.line = "any text, \xc3\xa9ven this";
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_OK);
    job.line = "\xff";
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "line");
    tick.job = job_in("a", "1");
    assert_int_equal(jobq_pg_schedules_set(pg, NULL, "o", 1, &tick, 1, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "line");
}

static void wrong_limits_are_refused(void **unused)
{
    static const jobq_pg_queue_desc bad[] = {
        {.running_max = -2}, {.line_running_max = -2}, {.line_waiting_max = -2},
        {.rate_burst = -1}, {.line_rate_burst = -1}, {.line_rate = "fast"}, {.rate = "1/fortnight"},
        {.kind = "k", .line_running_max = 1}, {.kind = "k", .ageing = JOBQ_PG_ON}};
    static const jobq_pg_line_desc wrong[] = {
        {.running_max = -2}, {.weight = 101}, {.rate_burst = -1}, {.rate = "often"}};
    jobq_pg_error error;
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &bad[i], &error), JOBQ_ERROR_INVALID);
    for (i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(jobq_pg_line_set(pg, NULL, "q", "a", &wrong[i], &error),
                         JOBQ_ERROR_INVALID);
}

/* ---- a worker that is killed ----------------------------------------------------------------- */

static jobq_outcome waits_for_go(jobq_call *call)
{
    begin(call);
    while (!GET(log_of->go)) nap_us(2000);
    return end(JOBQ_OUTCOME_SUCCESS);
}

static void a_killed_workers_line_stays_taken_until_its_job_has_run_again(void **unused)
{
    jobq_pg_worker_desc d;
    pid_t victim;

    (void)unused;
    each_line((jobq_pg_queue_desc){.line_running_max = 1});
    put("a", 1);
    put("a", 2);
    d = worker_of(waits_for_go);
    d.loop.lease_us = check_slow() ? 5 * SECOND : SECOND;
    victim = spawn(&d);
    assert_true(reaches(20, &log_of->count, 1));
    kill_hard(victim);
    SET(log_of->inside, 0);
    d = worker_of(logs);
    d.loop.lease_us = check_slow() ? 5 * SECOND : SECOND;
    spawn(&d);
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.worker"));
    nap_us(200000); /* it looks for jobs meanwhile */
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x' OR suspect"), 1);
    assert_int_equal(place_of(2), -1);
    assert_true(reaches(60, &log_of->done, 2));
    assert_int_equal(log_of->step[1], 1);
    assert_int_equal(log_of->step[2], 2);
    assert_int_equal(log_of->inside_most, 1);
}

/* ---- why a job does not run ------------------------------------------------------------------ */

static void explained(int64_t id, const char *wanted)
{
    char text[300];
    jobq_pg_error error;

    if (jobq_pg_explain(pg, NULL, id, text, sizeof text, &error)) fail_msg("%s", error.message);
    if (strstr(text, wanted) == NULL) fail_msg("not \"%s\" but \"%s\"", wanted, text);
}

static void it_is_told_that_a_queue_is_held(void **unused)
{
    int64_t id = put(NULL, 1);

    (void)unused;
    register_worker(7, 60 * SECOND);
    have_all_kinds();
    assert_int_equal(jobq_pg_hold(pg, NULL, "q", NULL, JOBQ_DAYS(366 * 80), "moving", NULL),
                     JOBQ_OK);
    explained(id, "its queue is held until 205");
    explained(id, ": moving");
    assert_int_equal(jobq_pg_hold(pg, NULL, "q", NULL, 0, NULL, NULL), JOBQ_OK);
    explained(id, "a worker may take it now");
}

static void it_is_told_what_a_line_waits_for(void **unused)
{
    int64_t first, id;

    (void)unused;
    first = put("a", 1);
    id = put("a", 2);
    register_worker(7, 60 * SECOND);
    have_all_kinds();
    explained(id, "1 job is ahead of it in its line");
    line_set("a", (jobq_pg_line_desc){.paused = JOBQ_PG_ON});
    explained(id, "its line is paused");
    line_set("a", (jobq_pg_line_desc){.reset = true, .rate = "1/day"});
    RUN("UPDATE jobq.line SET free_at = now()");
    explained(id, "the rate of its line is used up until ");
    line_set("a", (jobq_pg_line_desc){.reset = true, .running_max = 1});
    RUN("UPDATE jobq.line SET jobs = ARRAY[%lld]", (long long)first);
    RUN("UPDATE jobq.job SET state = 'x', worker = 7, claim = 1, claimed_at = now() "
        "WHERE id = %lld", (long long)first);
    explained(id, "its line is full: job ");
    assert_int_equal(jobq_pg_hold(pg, NULL, "q", "a", JOBQ_DAYS(366 * 80), "429", NULL), JOBQ_OK);
    explained(id, "its line is held until 205");
    explained(id, "\nits line is full"); /* each reason is a line */
}

static void it_is_told_whether_a_queues_limit_is_used_up(void **unused)
{
    int64_t id = put(NULL, 1);

    (void)unused;
    register_worker(7, 60 * SECOND);
    have_all_kinds();
    RUN("INSERT INTO jobq.quota (id, queue_id, running_max) "
        "SELECT 1, queue_id, 3 FROM jobq.job");
    RUN("INSERT INTO jobq.permit (quota_id, worker, held) VALUES (1, 7, 3)");
    explained(id, "the limit of its queue is used up, by same-name");
    RUN("UPDATE jobq.quota SET kind_id = (SELECT kind_id FROM jobq.job)");
    explained(id, "the limit of its kind is used up, by same-name");
    RUN("UPDATE jobq.permit SET held = 2");
    explained(id, "a worker may take it now");
}

/* ---- audit ----------------------------------------------------------------------------------- */

/* Breaks a rule of the tables by hand, and mends it. */
static void counted_by_audit(const char *breach, const char *mend, int64_t wanted)
{
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    RUN("%s", breach);
    assert_int_equal(number("SELECT jobq.audit()"), wanted);
    RUN("%s", mend);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void audit_finds_jobs_where_no_claim_looks(void **unused)
{
    (void)unused;
    fill("a", 1, 3, 0, false);
    counted_by_audit("UPDATE jobq.job SET line = line + 1 WHERE payload = '2'",
                     "UPDATE jobq.job SET line = jobq._line_no(line_name)", 1);
    counted_by_audit("UPDATE jobq.job SET line_name = NULL WHERE payload = '1'",
                     "UPDATE jobq.job SET line_name = 'a'", 1);
    counted_by_audit("UPDATE jobq.job SET run_at = 'infinity' WHERE payload = '1'",
                     "UPDATE jobq.job SET run_at = now()", 1);
    counted_by_audit("UPDATE jobq.job SET state = 'w' WHERE payload = '3'; "
                     "INSERT INTO jobq.nudge (job_id) SELECT id FROM jobq.job WHERE state = 'w'",
                     "UPDATE jobq.job SET state = 'r'; DELETE FROM jobq.nudge", 1);
    counted_by_audit("UPDATE jobq.queue SET lines = false", "UPDATE jobq.queue SET lines = true",
                     3);
}

static void audit_finds_rows_of_lines_under_a_wrong_number(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.line_set('q', 'a', running_max => 1)");
    counted_by_audit("UPDATE jobq.line SET no = no + 1", "UPDATE jobq.line SET no = no - 1", 1);
}

static void audit_finds_jobs_beyond_a_lines_limit(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', line_running_max => 1)");
    fill("a", 1, 3, 0, false);
    RUN("SELECT jobq._register(7, 'w', 60000000, '{q}', '{1}', '{k}', 7)");
    RUN("INSERT INTO jobq.claim (worker, number, claimed_at, jobs) "
        "SELECT 7, 1, now(), array_agg(id) FROM jobq.job");
    RUN("INSERT INTO jobq.line (queue_id, no, name, jobs) SELECT queue_id, line, line_name, "
        "ARRAY[id] FROM jobq.job WHERE payload = '1'");
    counted_by_audit("UPDATE jobq.job SET state = 'x', worker = 7, claim = 1, claimed_at = now()",
                     "UPDATE jobq.job SET state = 'r', worker = NULL, claim = NULL", 2);
}

/* A job that is too large, and cannot be deleted either, leaves its line. */
static void a_job_that_nobody_can_read_stands_in_no_line(void **unused)
{
    int64_t id = put("a", 1);

    (void)unused;
    RUN("CREATE FUNCTION jobq.stay() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN RAISE EXCEPTION ''damaged''; END'");
    RUN("CREATE TRIGGER stay BEFORE DELETE ON jobq.job FOR EACH ROW EXECUTE FUNCTION jobq.stay()");
    assert_int_equal(number("SELECT jobq._set_aside(%lld, 0, 'too large')::int", (long long)id), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE run_at = 'infinity' "
                            "AND line IS NULL"), 1);
    RUN("DROP FUNCTION jobq.stay CASCADE");
}

/* ---- what a worker sends --------------------------------------------------------------------- */

static void a_worker_of_a_queue_without_lines_sends_null(void **unused)
{
    jobq_request r;
    jobq_pg__params p;

    (void)unused;
    memset(&r, 0, sizeof r);
    r.kind = JOBQ_REQUEST_CLAIM;
    r.lane_count = 2;
    jobq_pg__params_init(&p);
    jobq_pg__put(&p, jobq_pg__claim_in, &r);
    assert_false(p.failed);
    assert_int_equal(p.count, 18);
    assert_true(p.offsets[14] == SIZE_MAX && p.offsets[15] == SIZE_MAX);
    assert_true(p.offsets[16] == SIZE_MAX && p.offsets[17] == SIZE_MAX); /* nor upper bounds */
    jobq_pg__params_clear(&p);
    r.lanes[1].lined = true;
    r.quantum = 7;
    jobq_pg__params_init(&p);
    jobq_pg__put(&p, jobq_pg__claim_in, &r);
    assert_int_equal(p.lengths[14], 20 + 2 * 5); /* neither of its two items is NULL */
    assert_int_equal(p.lengths[15], 4);
    jobq_pg__params_clear(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_limited_line_never_runs_two_at_once, clean, stop_all),
        cmocka_unit_test_setup_teardown(a_line_of_its_own_limit_uses_it, clean, stop_all),
        cmocka_unit_test_setup_teardown(copied_and_delayed_jobs_keep_the_limit, clean, stop_all),
        cmocka_unit_test_setup_teardown(a_strict_line_keeps_its_order_through_retries, clean,
                                        stop_all),
        cmocka_unit_test_setup_teardown(
            a_killed_workers_line_stays_taken_until_its_job_has_run_again, clean, stop_all),
        cmocka_unit_test_setup_teardown(a_rate_spreads_the_starts_of_a_line, clean, stop_all),
        cmocka_unit_test_setup_teardown(a_quiet_tenant_comes_within_two_claims, clean, stop_all),
        cmocka_unit_test_setup_teardown(every_16th_claim_of_an_ageing_queue_takes_the_oldest, clean,
                                        stop_all),
        cmocka_unit_test_setup_teardown(a_handler_holds_its_line, clean, stop_all),
        cmocka_unit_test_setup_teardown(a_handler_holds_its_queue, clean, stop_all),
        cmocka_unit_test_setup_teardown(a_job_without_a_line_cannot_hold_one, clean, stop_all),
        cmocka_unit_test_setup_teardown(a_stale_worker_holds_nothing, clean, stop_all),
        cmocka_unit_test_setup_teardown(an_operator_holds_and_lets_go, clean, stop_all),
        cmocka_unit_test_setup_teardown(a_paused_line_waits, clean, stop_all),
        cmocka_unit_test_setup_teardown(a_full_line_refuses_jobs, clean, stop_all),
        cmocka_unit_test_setup_teardown(wrong_lines_are_refused_before_anything_is_sent, clean,
                                        stop_all),
        cmocka_unit_test_setup_teardown(wrong_limits_are_refused, clean, stop_all),
        cmocka_unit_test_setup_teardown(it_is_told_that_a_queue_is_held, clean, stop_all),
        cmocka_unit_test_setup_teardown(it_is_told_what_a_line_waits_for, clean, stop_all),
        cmocka_unit_test_setup_teardown(it_is_told_whether_a_queues_limit_is_used_up, clean,
                                        stop_all),
        cmocka_unit_test_setup_teardown(audit_finds_jobs_where_no_claim_looks, clean, stop_all),
        cmocka_unit_test_setup_teardown(audit_finds_rows_of_lines_under_a_wrong_number, clean,
                                        stop_all),
        cmocka_unit_test_setup_teardown(audit_finds_jobs_beyond_a_lines_limit, clean, stop_all),
        cmocka_unit_test_setup_teardown(a_job_that_nobody_can_read_stands_in_no_line, clean,
                                        stop_all),
        cmocka_unit_test(a_worker_of_a_queue_without_lines_sends_null),
    };

    return cmocka_run_group_tests_name("limits", tests, limits_up, pg_down);
}
