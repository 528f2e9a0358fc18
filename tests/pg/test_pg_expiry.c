/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Jobs that expire: by whichever way they were enqueued, none begins late, and each late one ends
 * once, cancelled, at no one's expense. Laws (33) and (34) of jobq.h. What a claim makes of a late
 * job is also in model/conform.h, for both stores.
 */
#include "pg_work.h"

static jobq_pg_job expiring(int64_t us)
{
    jobq_pg_job job = plain_job();

    job.expires_us = us;
    return job;
}

/* Makes jobs late, as if time had passed. */
static void make_late(const char *which)
{
    RUN("UPDATE jobq.job SET expires_at = statement_timestamp() "
        "WHERE expires_at IS NOT NULL AND %s", which);
}

static void shows(int64_t id, const char *state)
{
    char *text = text_of("SELECT concat_ws(' ', state, errors -> -1 ->> 'error') FROM jobq.jobs "
                         "WHERE id = %lld", (long long)id);

    assert_string_equal(text, state);
    free(text);
}

#define EXPIRED "cancelled expired: it had not begun in time"

/* -- enqueue -- */

#define AFTER_RUN_AT "SELECT expires_at - run_at FROM jobq.job WHERE id = %lld"

static void counts_from_run_at(int64_t id, const char *wanted)
{
    char *text = text_of(AFTER_RUN_AT, (long long)id);

    assert_string_equal(text, wanted);
    free(text);
}

static void every_way_to_enqueue_says_when_a_job_expires(void **unused)
{
    jobq_pg_job jobs[4];
    jobq_pg_after after;
    int64_t ids[4], id;
    int i;

    (void)unused;
    jobs[0] = expiring(5 * SECOND);
    counts_from_run_at(enqueue_with(&jobs[0]), "00:00:05"); /* the kind is new, */
    counts_from_run_at(enqueue_with(&jobs[0]), "00:00:05"); /* and then it is known */
    jobs[0].delay_us = 60 * SECOND;
    id = enqueue_with(&jobs[0]);
    counts_from_run_at(id, "00:00:05");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE id = %lld AND run_at > "
                            "enqueued_at + interval '59 s'", (long long)id), 1);
    jobs[0] = expiring(0);
    jobs[0].expires_at_us = 2000000000 * SECOND;
    id = enqueue_with(&jobs[0]);
    assert_int_equal(number("SELECT extract(epoch FROM expires_at) FROM jobq.job WHERE id = %lld",
                            (long long)id), 2000000000);
    for (i = 0; i < 4; i++) jobs[i] = expiring(i * SECOND);
    jobs[3].delay_us = 60 * SECOND;
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, jobs, 4, ids, NULL), JOBQ_OK);
    counts_from_run_at(ids[0], "");
    counts_from_run_at(ids[2], "00:00:02");
    counts_from_run_at(ids[3], "00:00:03");
    RUN("DELETE FROM jobq.job");
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, jobs, 4, JOBQ_PG_BY_COPY, NULL), JOBQ_OK);
    expect_text(", 00:00:01, 00:00:02, 00:00:03",
                "SELECT string_agg(coalesce((expires_at - run_at)::text, ''), ', ' ORDER BY id) "
                "FROM jobq.job");
    jobs[0] = expiring(7 * SECOND);
    memset(&after, 0, sizeof after);
    after.job = number("SELECT min(id) FROM jobq.job");
    jobs[0].after = &after;
    jobs[0].after_count = 1;
    id = enqueue_with(&jobs[0]);
    assert_int_equal(number("SELECT extract(epoch FROM expires_at - enqueued_at) FROM jobq.job "
                            "WHERE id = %lld AND state = 'w'", (long long)id), 7);
}

static void in_sql_it_is_an_interval(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k', expires => '5 min'), "
        "jobq.enqueue('q', 'k', expires => '5 min', delay => '1 h'), "
        "jobq.enqueue('q', 'k', expires => '5 min', key => 'a'), "
        "jobq.enqueue('q', 'k', expires => '5 min', key => 'b', on_known => 'replace'), "
        "jobq.enqueue('q', 'k', expires => '5 min', line => 't')");
    assert_int_equal(number("SELECT count(*) FROM jobq.job "
                            "WHERE expires_at - run_at = interval '5 min'"), 5);
    RUN("SELECT jobq.enqueue('q', 'k', expires => '5 min', after => ARRAY[(SELECT min(id) "
        "FROM jobq.job)])");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'w' "
                            "AND expires_at - enqueued_at = interval '5 min'"), 1);
}

#define TOO_EARLY                                                                                  \
    "jobq._enqueue_many('q', '{k}', NULL, '{1}', NULL, NULL, '{2100-01-01}', p_expires_ats => "    \
    "'{2100-01-01}')"

/* Refused by its name before anything is sent; in SQL with 22023. */
static void what_cannot_be_meant_is_refused(void **unused)
{
    static const jobq_pg_job bad[] = {
        {.queue = "q", .kind = "k", .expires_us = -1},
        {.queue = "q", .kind = "k", .expires_us = 1},
        {.queue = "q", .kind = "k", .expires_us = 999},
        {.queue = "q", .kind = "k", .expires_us = SECOND, .expires_at_us = 2000000000 * SECOND},
        {.queue = "q", .kind = "k", .expires_at_us = 2000000000},
        {.queue = "q", .kind = "k", .expires_at_us = 2000000000 * SECOND,
         .run_at_us = 2000000000 * SECOND}};
    static const char *const fields[] = {"expires_us", "expires_us", "expires_us", "expires_us",
                                         "expires_at_us", "expires_at_us"};
    static const char *const refused[] = {
        "jobq.enqueue('q', 'k', expires => '0')", "jobq.enqueue('q', 'k', expires => '999 us')",
        "jobq.enqueue('q', 'k', expires => '-1 s')",
        "jobq.enqueue('q', 'k', expires => '2000 years')",
        "jobq._enqueue_many('q', '{k}', NULL, '{1}', p_expires_us => '{999}')",
        "jobq._enqueue_many('q', '{k}', NULL, '{1}', p_expires_ats => '{infinity}')",
        TOO_EARLY,
        "jobq.schedule('s', 'q', 'k', every => '1 h', expires => '999 us')",
        "jobq.schedule('s', 'q', every => '1 h', partition => 0, expires => '1 min')"};
    jobq_pg_error error;
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(bad); i++) {
        assert_int_equal(jobq_pg_enqueue(pg, NULL, &bad[i], NULL, &error), JOBQ_ERROR_INVALID);
        assert_string_equal(error.field, fields[i]);
        assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &bad[i], 1, JOBQ_PG_BY_COPY, &error),
                         JOBQ_ERROR_INVALID);
    }
    for (i = 0; i < COUNT(refused); i++) {
        char *text = for_schema("SELECT ", schema), statement[300];
        char *call = for_schema(refused[i], schema);
        PGresult *res;
        snprintf(statement, sizeof statement, "%s%s", text, call);
        res = PQexec(db, statement);
        if (strcmp(PQresultErrorField(res, PG_DIAG_SQLSTATE) == NULL
                       ? "" : PQresultErrorField(res, PG_DIAG_SQLSTATE), "22023") != 0)
            fail_msg("%s: %s", statement, PQresultErrorMessage(res));
        assert_string_equal(PQresultErrorField(res, PG_DIAG_COLUMN_NAME), "expires");
        PQclear(res);
        free(text);
        free(call);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
}

/* A producer's clock, or its way to the server, may be slow: that is no error. */
static void an_instant_that_has_passed_is_taken_and_the_job_ends(void **unused)
{
    jobq_pg_job job = expiring(0);
    verb_batch batch;
    int64_t id;

    (void)unused;
    job.expires_at_us = JOBQ_DAYS(11000);
    id = enqueue_with(&job);
    register_worker(7, 60 * SECOND);
    assert_int_equal(claim_by(7, 1, 5, 0, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 0);
    verb_batch_clear(&batch);
    shows(id, EXPIRED);
}

/* -- what a worker makes of it -- */

#define COUNTED "jobq_jobs_total{queue=\"q\",kind=\"k\",outcome="

static void a_worker_ends_late_jobs_unrun_and_tells_of_them(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *w;
    jobq_loop_stats stats;
    jobq_pg_rows rows;
    const jobq_pg_job_row *row;
    jobq_pg_job job = expiring(60 * SECOND);
    int64_t ids[2];
    static char page[65536];

    (void)unused;
    ids[0] = enqueue_with(&job);
    make_late("true");
    ids[1] = enqueue_with(&job);
    w = start(&d);
    assert_int_equal(jobq_pg_wait(pg, NULL, ids, 2, 60 * SECOND, &rows, NULL), JOBQ_OK);
    row = (const jobq_pg_job_row *)rows.rows;
    assert_int_equal(row[0].facts.state, JOBQ_STATE_CANCELLED);
    assert_non_null(strstr(row[0].errors.ptr, "expired: it had not begun in time"));
    assert_int_equal(row[0].facts.attempt, 0);
    assert_int_equal(row[0].expires_at_us, 0);
    assert_int_equal(row[1].facts.state, JOBQ_STATE_SUCCEEDED);
    jobq_pg_rows_clear(&rows);
    assert_int_equal(GET(runs), 1);
    jobq_pg_metrics(w, page, sizeof page);
    assert_non_null(strstr(page, COUNTED "\"expired\"} 1\n"));
    assert_non_null(strstr(page, COUNTED "\"cancelled\"} 0\n"));
    stats = stop(w);
    assert_int_equal(stats.expired, 1);
    assert_int_equal(stats.started, 1);
    assert_int_equal(number("SELECT expired FROM jobq.times WHERE kind = 'k'"), 1);
    assert_int_equal(number("SELECT cancelled FROM jobq.times WHERE kind = 'k'"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.metrics() m WHERE m ~ "
                            "'jobq_jobs_total[{][^}]*outcome=\"expired\"[}] 1'"), 1);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* A claim that ends jobs waits for the disk, and no other one does. */
static void a_claim_that_ends_jobs_waits_for_the_disk(void **unused)
{
    static const char *const lane =
        "SELECT count(*) FROM jobq._claim(7, %d, 5, ARRAY(SELECT id FROM jobq.queue), '{0}', "
        "'{0}', '{-infinity}', '{0}', NULL, false, false, false, true)";
    jobq_pg_job job = expiring(60 * SECOND);

    (void)unused;
    register_worker(7, 60 * SECOND);
    enqueue_with(&job);
    RUN("BEGIN");
    assert_int_equal(number(lane, 1), 1);
    expect_text("off", "SELECT current_setting('synchronous_commit')");
    RUN("COMMIT");
    enqueue_with(&job);
    make_late("state = 'r'");
    RUN("BEGIN");
    assert_int_equal(number(lane, 2), 1); /* the row that says what it has ended */
    expect_text("on", "SELECT current_setting('synchronous_commit')");
    RUN("COMMIT");
}

/* A thousand late heads of a line that may give one job a minute cost it no token, and the job
 * after them begins at once. */
static void late_jobs_cost_their_line_nothing(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_loop_stats stats;
    jobq_pg_worker *w;

    (void)unused;
    RUN("SELECT jobq.line_set('q', 't', rate => '1/min')");
    RUN("SELECT jobq.enqueue('q', 'k', line => 't', expires => '1 min') "
        "FROM generate_series(1, 1000)");
    make_late("true");
    RUN("SELECT jobq.enqueue('q', 'k', line => 't')");
    w = start(&d);
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job"));
    stats = stop(w);
    assert_int_equal(stats.started, 1);
    assert_int_equal(stats.expired, 1000);
    assert_int_equal(number("SELECT count(*) FROM jobq.past_jobs WHERE state = 'cancelled'"), 1000);
}

/* Nobody looks at what nobody claims from. */
static void late_jobs_of_a_paused_queue_stay_until_it_is_resumed(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = expiring(60 * SECOND);
    int64_t id = enqueue_with(&job);

    (void)unused;
    RUN("SELECT jobq.pause('q')");
    make_late("true");
    start(&d);
    nap_us(200000);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 1);
    expect_text("it is late: it ends, unrun, when a worker next claims from its lane",
                "SELECT reason FROM jobq.explain_job((SELECT id FROM jobq.job)) "
                "WHERE reason LIKE 'it is late%'");
    RUN("SELECT jobq.resume('q')");
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job"));
    shows(id, EXPIRED);
    assert_int_equal(GET(runs), 0);
    expect_text("it has ended: cancelled (expired)", "SELECT reason FROM jobq.explain_job("
                "(SELECT max(id) FROM jobq.past_jobs))");
}

/* -- keys, flows, schedules, operators -- */

/* A key is free when its job has expired, as at any end. Of a known one, REPLACE brings its own
 * time, and the others leave that of the job which has the key. */
static void keys_and_expiry(void **unused)
{
    static const struct { jobq_known on_known; const char *left; } rows[] = {
        {JOBQ_KNOWN_LEAVE, "00:01:00"},   {JOBQ_KNOWN_REPLACE, "00:02:00"},
        {JOBQ_KNOWN_MERGE, "00:01:00"},   {JOBQ_KNOWN_BUMP, "00:01:00"},
        {JOBQ_KNOWN_CANCEL, "00:02:00"},  {JOBQ_KNOWN_REJECT, "00:01:00"}};
    jobq_pg_job job;
    verb_batch batch;
    int64_t id = 0, again = 0;
    size_t i;

    (void)unused;
    register_worker(7, 60 * SECOND);
    for (i = 0; i < COUNT(rows); i++) {
        RUN("TRUNCATE jobq.job, jobq.idempotency");
        job = expiring(60 * SECOND);
        job.key = "a";
        enqueue_with(&job);
        job.expires_us = 120 * SECOND;
        job.on_known = rows[i].on_known;
        jobq_pg_enqueue(pg, NULL, &job, &id, NULL);
        RUN("UPDATE jobq.job SET run_at = run_at"); /* one version more changes nothing */
        assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE round(extract(epoch FROM "
                                "expires_at - run_at)) = extract(epoch FROM interval '%s')",
                                rows[i].left), 1);
        assert_int_equal(number("SELECT count(*) FROM jobq.job"), 1);
    }
    make_late("true");
    assert_int_equal(claim_by(7, 1, 5, 0, &batch), JOBQ_OK);
    verb_batch_clear(&batch);
    job.on_known = JOBQ_KNOWN_LEAVE; /* kept for key_keep from now on, */
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, &again, NULL), JOBQ_ERROR_EXISTS);
    job.unique_for = JOBQ_UNIQUE_LIVE; /* or free at once */
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, &again, NULL), JOBQ_OK);
    assert_true(again > id);
}

/* It ends as a parent that was cancelled. */
static void flows_see_a_late_job_as_a_cancelled_one(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    RUN("SELECT jobq.flow('f', on_failure => 'cancel'), jobq.enqueue('q', 'k', expires => '1 min', "
        "flow => 1, name => 'late')");
    RUN("SELECT jobq.enqueue('q', 'k', flow => 1, name => 'good', after_names => '{late}'), "
        "jobq.enqueue('q', 'k', flow => 1, name => 'bad', after_names => '{late}', "
        "on_end => 'failure'), jobq.enqueue('q', 'k', flow => 1, name => 'any', "
        "after_names => '{late}', on_end => 'any')");
    make_late("true");
    start(&d);
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job"));
    assert_true(becomes(60, 1, "SELECT count(*) FROM jobq.flow WHERE ended_at IS NOT NULL"));
    expect_text("late cancelled, good cancelled, bad succeeded, any succeeded",
                "SELECT string_agg(concat(n.name, ' ', j.state), ', ' ORDER BY j.id) "
                "FROM jobq.past_jobs j JOIN jobq.flow_job n ON n.job_id = j.id");
    expect_text("2 2", "SELECT concat(sum(succeeded), ' ', sum(cancelled)) FROM jobq.flow_part");
}

#define TICK "SELECT fired FROM jobq._tick(ARRAY(SELECT id FROM jobq.queue), 9)"

/* Counted from the tick, not from when it fires; a tick that would be late already writes
 * nothing. */
static void a_schedule_gives_its_jobs_a_time(void **unused)
{
    jobq_pg_schedule s;

    (void)unused;
    memset(&s, 0, sizeof s);
    s.name = "s";
    s.every_us = 60 * SECOND;
    s.job = expiring(90 * SECOND);
    s.job.payload = jobq_str_from("{}");
    assert_int_equal(jobq_pg_schedules_set(pg, NULL, "me", 1, &s, 1, NULL), JOBQ_OK);
    expect_text("00:01:30", "SELECT expires FROM jobq.schedules");
    RUN("UPDATE jobq.schedule SET tick_at = tick_at - interval '61 s', next_at = next_at "
        "- interval '61 s'");
    assert_int_equal(number(TICK), 1);
    expect_text("00:01:30", "SELECT expires_at - (headers ->> 'tick')::timestamptz FROM jobq.job");
    RUN("DELETE FROM jobq.job");
    RUN("UPDATE jobq.schedule SET expires_us = 1000000, last_at = NULL, tick_at = now() "
        "- interval '10 s', next_at = now() - interval '10 s'");
    assert_int_equal(number(TICK), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.schedule WHERE skipped_at IS NOT NULL"), 1);
}

static void an_operator_may_let_a_late_job_run(void **unused)
{
    jobq_pg_job job = expiring(60 * SECOND);
    int64_t id = enqueue_with(&job);

    (void)unused;
    RUN("SELECT jobq.queue_set('r'), jobq.prioritize(%lld, 3), jobq.move(%lld, 'r'), "
        "jobq.reschedule(%lld, now() + interval '30 s')", (long long)id, (long long)id,
        (long long)id);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE expires_at IS NOT NULL"), 1);
    make_late("true");
    assert_int_equal(number("SELECT count(*) FROM jobq.peek()"), 0);
    RUN("SELECT jobq.reschedule(%lld)", (long long)id);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE expires_at IS NULL"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.peek()"), 1);
}

/* -- overload -- */

/* Many jobs that expire soon, few threads: none is claimed at or after its instant, and each has
 * one end. (That none waits in the worker beyond it, either, is in test_core_expiry.) */
static jobq_outcome takes_a_moment(jobq_call *call)
{
    (void)call;
    nap_us(2000);
    return JOBQ_OUTCOME_SUCCESS;
}

static void none_begins_late_under_overload(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", takes_a_moment);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_loop_stats stats;
    jobq_pg_worker *w;

    (void)unused;
    w = start(&d);
    RUN("SELECT jobq.enqueue('q', 'k', expires => '400 ms') FROM generate_series(1, 2000)");
    assert_true(becomes(120, 0, "SELECT count(*) FROM jobq.job"));
    stats = stop(w);
    assert_int_equal(stats.started + stats.expired, 2000);
    assert_int_equal(number("SELECT count(DISTINCT id) FROM jobq.past_jobs"), 2000);
    assert_int_equal(number("SELECT count(*) FROM jobq.past_jobs WHERE state = 'succeeded' "
                            "AND claimed_at >= enqueued_at + interval '400 ms'"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.past_jobs WHERE state = 'cancelled' "
                            "AND finished_at < enqueued_at + interval '400 ms'"), 0);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, fresh, all_stop)
    const struct CMUnitTest tests[] = {
        T(every_way_to_enqueue_says_when_a_job_expires),
        T(in_sql_it_is_an_interval),
        T(what_cannot_be_meant_is_refused),
        T(an_instant_that_has_passed_is_taken_and_the_job_ends),
        T(a_worker_ends_late_jobs_unrun_and_tells_of_them),
        T(a_claim_that_ends_jobs_waits_for_the_disk),
        T(late_jobs_cost_their_line_nothing),
        T(late_jobs_of_a_paused_queue_stay_until_it_is_resumed),
        T(keys_and_expiry),
        T(flows_see_a_late_job_as_a_cancelled_one),
        T(a_schedule_gives_its_jobs_a_time),
        T(an_operator_may_let_a_late_job_run),
        T(none_begins_late_under_overload),
    };

    return cmocka_run_group_tests_name("expiry on Postgres", tests, pg_up, pg_down);
}
