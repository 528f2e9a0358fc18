/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Schedules: whatever happens to workers, each tick fires once, and what was missed is decided by
 * the schedule. Promises 1 and 5. test_pg_calendar has the calendar.
 */
#include "pg_work.h"

static jobq_outcome takes_its_time(jobq_call *call)
{
    ADD(runs);
    while (jobq_call_stopping(call, NULL) == JOBQ_STOP_NONE) nap_us(1000);
    return JOBQ_OUTCOME_RELEASE;
}

/* Fires what is due in queue q, and answers how many jobs or messages that wrote. */
static long tick(void)
{
    return number("SELECT fired FROM jobq._tick(ARRAY(SELECT id FROM jobq.queue), 100)");
}

/* As if this much time had passed since the schedule was made. */
static void back(const char *interval)
{
    RUN("UPDATE jobq.schedule SET tick_at = tick_at - interval '%s', "
        "next_at = next_at - interval '%s', starts_at = starts_at - interval '%s'",
        interval, interval, interval);
}

static jobq_pg_schedule every(const char *name, int64_t us)
{
    jobq_pg_schedule s;

    memset(&s, 0, sizeof s);
    s.name = name;
    s.every_us = us;
    s.job.queue = "q";
    s.job.kind = "k";
    return s;
}

static jobq_error declare(const char *owner, int64_t revision, const jobq_pg_schedule *s, size_t n)
{
    return jobq_pg_schedules_set(pg, NULL, owner, revision, s, n, NULL);
}

/* -- a worker fires -- */

static void a_worker_fires_each_tick_in_time(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    start(&d);
    nap_us(300000);
    RUN("SELECT jobq.schedule('s', 'q', 'k', '{\"n\": 1}', every => '1 second', priority => -2, "
        "headers => '{\"tag\": \"t\"}')");
    assert_true(reaches(20, &runs, 3));
    expect_text("true", "SELECT (headers @> '{\"tag\": \"t\", \"schedule\": \"s\"}' "
                        "AND payload = '{\"n\": 1}' AND priority = -2)::text "
                        "FROM jobq.history LIMIT 1");
    assert_int_equal(number("SELECT count(*) FROM jobq.history "
                            "WHERE date_trunc('second', (headers ->> 'tick')::timestamptz) <> "
                            "(headers ->> 'tick')::timestamptz"), 0);
    /* the first second may have begun before the worker heard of the schedule */
    assert_true(number("SELECT (1000 * min(extract(epoch FROM enqueued_at - "
                       "(headers ->> 'tick')::timestamptz)))::int FROM jobq.history") < 500);
    RUN("SELECT jobq.schedule_drop('s')");
    nap_us(100000);
    SET(runs, 0);
    nap_us(1500000);
    assert_int_equal(GET(runs), 0);
}

static void a_worker_until_empty_fires_what_is_due_first(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 hour')");
    back("1 hour");
    d.loop.until = JOBQ_UNTIL_EMPTY;
    ended(start(&d));
    assert_int_equal(GET(runs), 1);
}

/* Workers come and are killed; each second of their time has one job. */
static void each_tick_fires_once_whoever_dies(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    pid_t pids[3];
    int i, n;

    (void)unused;
    RUN("SELECT jobq.schedule(format('s%%s', n), 'q', 'k', every => '1 second', missed => 'all') "
        "FROM generate_series(1, 20) n");
    for (i = 0; i < 3; i++) pids[i] = spawn(&d);
    for (n = 0; n < 12; n++) {
        nap_us(400000);
        kill_hard(pids[n % 3]);
        pids[n % 3] = spawn(&d);
    }
    nap_us(1500000);
    RUN("SELECT jobq.schedule_pause(name) FROM jobq.schedules");
    for (i = 0; i < 3; i++) kill_hard(pids[i]);
    RUN("CREATE TEMP VIEW fired AS SELECT headers ->> 'schedule' AS name, "
        "(headers ->> 'tick')::timestamptz AS tick FROM jobq.jobs");
    assert_int_equal(number("SELECT count(DISTINCT name) FROM fired"), 20);
    assert_int_equal(number("SELECT count(*) - count(DISTINCT (name, tick)) FROM fired"), 0);
    assert_int_equal(number("SELECT count(*) FROM (SELECT tick - lag(tick) OVER "
                            "(PARTITION BY name ORDER BY tick) AS gap FROM fired) g "
                            "WHERE gap <> '1 second'"), 0);
    assert_true(number("SELECT count(*) FROM fired") >= 20 * 5);
    RUN("DROP VIEW fired");
}

/* Two sessions look at the same moment: the second passes over what the first fires. */
static void a_tick_under_way_is_left_to_who_has_it(void **unused)
{
    PGconn *other = connected();

    (void)unused;
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 hour')");
    back("1 hour");
    PQclear(sql(other, "SET idle_in_transaction_session_timeout = '10s'")); /* if this fails */
    PQclear(sql(other, "BEGIN"));
    PQclear(sql(other, "SELECT jobq._tick(ARRAY(SELECT id FROM jobq.queue), 100)"));
    assert_int_equal(tick(), 0);
    assert_in_range(number("SELECT due_us FROM jobq._tick(ARRAY(SELECT id FROM jobq.queue), 100)"),
                    1000, 100000); /* it looks again soon, in case the first one rolls back */
    PQclear(sql(other, "ROLLBACK"));
    assert_int_equal(tick(), 1);
    assert_int_equal(tick(), 0);
    PQfinish(other);
}

/* A tick that comes in 5 ms is told as such. (It may be tried again: the server may be slower.) */
static void a_tick_that_comes_soon_is_not_put_off(void **unused)
{
    int64_t due_us = 0;
    int tries;

    (void)unused;
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 hour')");
    for (tries = 0; tries < 100 && (due_us < 1 || due_us > 5000); tries++) {
        RUN("UPDATE jobq.schedule SET next_at = clock_timestamp() + interval '5 ms'");
        due_us = number("SELECT due_us FROM jobq._tick(ARRAY(SELECT id FROM jobq.queue), 100)");
    }
    assert_in_range(due_us, 1, 5000);
}

/* -- what was missed -- */

static void missed_ticks_fire_as_the_schedule_says(void **unused)
{
    static const struct { const char *how; const char *late; long fired; } rows[] = {
        {"missed => 'last'", "0 hours", 1},        {"missed => 'last'", "5 hours", 1},
        {"missed => 'last'", "30000 hours", 1},        {"missed => 'all'", "5 hours", 6},
        {"missed => 'all'", "30000 hours", 24},        {"missed => 'skip'", "5 hours", 0},
        {"missed => 'all', missed_within => '90 minutes'", "5 hours", 1},
        {"missed => 'last', missed_within => '10 minutes'", "5 hours", 0},
        {"missed => 'skip', missed_within => '2 hours'", "5 hours", 1},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        /* a tick half an hour ago, and each hour before */
        RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 hour', "
            "starts_at => now() - interval '40000 hours 30 minutes', %s)", rows[i].how);
        RUN("UPDATE jobq.schedule SET tick_at = tick_at - interval '1 hour' - interval "
            "'%s', next_at = next_at - interval '1 hour' - interval '%s'",
            rows[i].late, rows[i].late);
        assert_int_equal(tick(), rows[i].fired);
        assert_int_equal(tick(), 0);
        if (rows[i].fired == 1) /* the last one */
            assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE (headers ->> 'tick')"
                                    "::timestamptz > now() - interval '59 minutes'"), 1);
        assert_int_equal(number("SELECT (next_at - now() BETWEEN '29 minutes' AND '30 minutes')"
                                "::int FROM jobq.schedules"), 1);
        RUN("SELECT jobq.schedule_drop('s')");
        RUN("DELETE FROM jobq.job");
    }
}

/* A schedule that is far behind catches up in steps of 100 ticks. */
static void many_missed_ticks_fire_in_steps(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 second', missed => 'all')");
    back("250 seconds");
    assert_int_equal(tick(), 100);
    assert_int_equal(number("SELECT jobq._next_tick(ARRAY(SELECT id FROM jobq.queue))"), 1);
    assert_int_equal(tick(), 100);
    assert_in_range(tick(), 49, 60);
    assert_int_equal(number("SELECT count(*) - count(DISTINCT headers ->> 'tick') FROM jobq.job"),
                     0);
}

static void a_clock_that_goes_back_fires_nothing_twice(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 hour')");
    back("1 hour");
    assert_int_equal(tick(), 1);
    RUN("UPDATE jobq.schedule SET tick_at = tick_at + interval '1 hour', "
        "next_at = next_at + interval '1 hour'"); /* as if the clock were an hour back */
    assert_int_equal(tick(), 0);
}

/* -- overlap -- */

/* Makes the schedule fire once more. */
static long again(void)
{
    RUN("UPDATE jobq.schedule SET tick_at = tick_at - interval '1 hour', "
        "next_at = next_at - interval '1 hour'");
    return tick();
}

static void overlap_is_as_the_schedule_says(void **unused)
{
    jobq_job job;

    (void)unused;
    RUN("SELECT jobq.schedule('a', 'q', 'k', every => '1 hour')");
    again();
    assert_int_equal(again(), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 2);
    RUN("DELETE FROM jobq.job; SELECT jobq.schedule_drop('a')");

    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 hour', overlap => 'skip')");
    assert_int_equal(again(), 1);
    assert_int_equal(again(), 0);
    expect_text("true",
                "SELECT (why LIKE 'the job of % has not ended')::text FROM jobq.schedules");
    RUN("SELECT jobq.cancel(last_id) FROM jobq.schedules");
    expect_text("no", "SELECT CASE WHEN why LIKE '%%not ended' THEN 'yes' ELSE 'no' END "
                      "FROM jobq.schedules");
    assert_int_equal(again(), 1);
    RUN("DELETE FROM jobq.job; SELECT jobq.schedule_drop('s')");

    RUN("SELECT jobq.schedule('w', 'q', 'k', every => '1 hour', overlap => 'wait')");
    assert_int_equal(again(), 1);
    register_worker(7, 60 * SECOND);
    job = claim_one(7, 1, 0);
    assert_int_equal(again(), 1);
    expect_text("waiting", "SELECT state FROM jobq.jobs ORDER BY id DESC LIMIT 1");
    assert_int_equal(again(), 1); /* takes over the newer tick */
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 2);
    assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    expect_text("ready", "SELECT state FROM jobq.jobs ORDER BY id DESC LIMIT 1");
    assert_int_equal(number("SELECT count(*) FROM jobq.edge WHERE holds"), 0);
    RUN("DELETE FROM jobq.job; SELECT jobq.schedule_drop('w')");

    RUN("SELECT jobq.schedule('c', 'q', 'k', every => '1 hour', overlap => 'cancel')");
    assert_int_equal(again(), 1);
    assert_int_equal(again(), 1); /* a ready one is cancelled at once */
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 1);
    job = claim_one(7, 2, 0);
    assert_int_equal(again(), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE cancel_requested_at IS NOT NULL"),
                     1);
    expect_text("waiting", "SELECT state FROM jobq.jobs ORDER BY id DESC LIMIT 1");
    assert_int_equal(settle_with(&job, JOBQ_EVENT_CANCELLED, NULL), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 1);
}

/* A job of a schedule that has begun, and waits for jobs that it spawned, counts as one that runs.
 * What it waits for is not the schedule's, also when it was cancelled. */
static void a_job_that_waits_for_its_children_has_begun(void **unused)
{
    static const char *const overlaps[] = {"skip", "wait", "cancel"};
    static const char *const states[] = {"waiting", "waiting,waiting", "ready"};
    long first, child;
    int i;

    (void)unused;
    register_worker(7, 60 * SECOND);
    first = number("SELECT jobq.enqueue('q', 'child', '0', delay => '1 hour')");
    child = number("SELECT jobq.enqueue('q', 'child', '0', after => '{%ld}')", first);
    for (i = 0; i < 3; i++) {
        RUN("SELECT jobq.schedule('s', 'q', 'k', '1', every => '1 hour', overlap => '%s')",
            overlaps[i]);
        assert_int_equal(again(), 1);
        claim_one(7, i + 1, 0);
        RUN("SELECT jobq._wait_here(7, %d, last_id, 0::smallint, 0, 0, false, NULL, '{%ld}', "
            "'{NULL}', '{NULL}', '{any}') FROM jobq.schedules", i + 1, child);
        assert_int_equal(again(), i > 0);
        expect_text(states[i], "SELECT string_agg(state, ',' ORDER BY id) FROM jobq.live_jobs "
                               "WHERE kind = 'k'");
        RUN("SELECT jobq.cancel(id) FROM jobq.job WHERE id > %ld ORDER BY id DESC", child);
        assert_int_equal(again(), 1);
        expect_text("0,0", "SELECT string_agg(payload::text, ',') FROM jobq.live_jobs "
                           "WHERE kind = 'child'");
        RUN("DELETE FROM jobq.job WHERE id > %ld; SELECT jobq.schedule_drop('s')", child);
    }
}

/* A waiting job that is cancelled leaves the one before it, which has not ended. */
static void a_cancelled_successor_lets_none_run_beside_its_predecessor(void **unused)
{
    jobq_job job;

    (void)unused;
    RUN("SELECT jobq.schedule('w', 'q', 'k', every => '1 hour', overlap => 'wait')");
    again();
    register_worker(7, 60 * SECOND);
    job = claim_one(7, 1, 0);
    again();
    RUN("SELECT jobq.cancel(last_id) FROM jobq.schedules");
    assert_int_equal(again(), 1);
    expect_text("xw", "SELECT string_agg(state::text, '' ORDER BY id) FROM jobq.job");
    RUN("SELECT jobq.cancel(last_id) FROM jobq.schedules");
    RUN("SELECT jobq.schedule('w', 'q', 'k', every => '1 hour', overlap => 'skip')");
    assert_int_equal(again(), 0);
    assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    assert_int_equal(again(), 1);
}

/* A waiting job becomes that of the newer tick, also when the schedule has changed since. */
static void a_waiting_job_is_that_of_the_newest_definition(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.schedule('w', 'q', 'k', '1', every => '1 hour', overlap => 'wait')");
    again();
    register_worker(7, 60 * SECOND);
    claim_one(7, 1, 0);
    again();
    RUN("SELECT jobq.schedule('w', 'q', 'new', '2', every => '1 hour', overlap => 'wait')");
    again();
    expect_text("new2", "SELECT string_agg(kind || payload::text, ' ') FROM jobq.jobs "
                        "WHERE state = 'waiting'");
}

/* Messages have ids of their own: the last one is no job. */
static void a_schedule_that_wrote_messages_touches_no_job(void **unused)
{
    (void)unused;
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "q", 1, NULL, NULL), JOBQ_OK);
    RUN("SELECT jobq.schedule('s', 'q', every => '1 hour', partition => 0)");
    again();
    RUN("SELECT setval('jobq.job_id', last_id, false) FROM jobq.schedules");
    RUN("SELECT jobq.enqueue('q', 'k')");
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 hour', overlap => 'cancel')");
    again();
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 2);
}

/* An interval that is no whole number of seconds, counted from long ago. */
static void every_tick_is_later_than_the_one_before(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1.000001 seconds', "
        "starts_at => '0001-01-01')");
    assert_int_equal(number(
        "SELECT count(*) FROM jobq.schedule s, generate_series(1, 1000) n, "
        "LATERAL jobq._schedule_after(s, now() + n * interval '0.3 seconds') AS t (at) "
        "WHERE jobq._us(jobq._schedule_after(s, t.at) - t.at) <> 1000001"), 0);
}

/* A kind or queue that is deleted by hand takes its schedules with it: a job of no kind would never
 * run, nor be seen. */
static void a_schedule_goes_with_its_kind(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 hour')");
    RUN("SELECT jobq.schedule('t', 'gone', 'k', every => '1 hour')");
    RUN("DELETE FROM jobq.kind WHERE queue_id = jobq._queue_id('q')");
    RUN("DELETE FROM jobq.queue WHERE name = 'gone'");
    assert_int_equal(number("SELECT count(*) FROM jobq.schedule"), 0);
}

/* A restored copy may have its sequences at their start. */
static void a_renewed_copy_takes_new_schedules(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 hour')");
    RUN("SELECT setval(pg_get_serial_sequence('jobq.schedule', 'id'), 1, false)");
    RUN("SELECT jobq.renew()");
    RUN("SELECT jobq.schedule('t', 'q', 'k', every => '1 hour')");
    assert_int_equal(number("SELECT count(*) FROM jobq.schedules"), 2);
}

/* The end of a job never waits for an operator who has its successor locked; the next heartbeat
 * makes the successor ready. */
static void a_locked_successor_becomes_ready_later(void **unused)
{
    PGconn *other = connected();
    jobq_job job;

    (void)unused;
    RUN("SELECT jobq.schedule('w', 'q', 'k', every => '1 hour', overlap => 'wait')");
    again();
    register_worker(7, 60 * SECOND);
    job = claim_one(7, 1, 0);
    again();
    PQclear(sql(other, "SET idle_in_transaction_session_timeout = '10s'")); /* if this fails */
    PQclear(sql(other, "BEGIN"));
    PQclear(sql(other, "SELECT FROM jobq.job WHERE state = 'w' FOR UPDATE"));
    assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'w'"), 1);
    PQclear(sql(other, "ROLLBACK"));
    RUN("SELECT jobq._heartbeat(7, 60000000, '{}')");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.edge WHERE holds"), 0);
    job = claim_one(7, 2, 0);
    assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.edge"), 0);
    PQfinish(other);
}

/* -- declaring -- */

/* Two programs of a rolling deploy start in every order, some of them again: the newer set wins. */
static void the_newer_program_wins_in_every_order(void **unused)
{
    static const int orders[][4] = {{1, 2, 1, 2}, {2, 1, 1, 1}, {1, 1, 2, 1}, {2, 2, 1, 2}};
    jobq_pg_schedule old[] = {every("gone", JOBQ_HOURS(1)), every("kept", JOBQ_HOURS(1))};
    jobq_pg_schedule new[] = {every("kept", JOBQ_HOURS(2)), every("new", JOBQ_HOURS(1))};
    size_t i, k;

    (void)unused;
    for (i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        int newest = 0;
        for (k = 0; k < 4; k++) {
            bool is_new = orders[i][k] == 2;
            jobq_error code = declare("billing", orders[i][k], is_new ? new : old, 2);
            assert_int_equal(code, orders[i][k] < newest ? JOBQ_ERROR_VERSION : JOBQ_OK);
            if (orders[i][k] > newest) newest = orders[i][k];
        }
        expect_text("kept every 02:00:00, new every 01:00:00",
                    "SELECT string_agg(name || ' ' || calendar, ', ' ORDER BY name) "
                    "FROM jobq.schedules");
        RUN("DELETE FROM jobq.schedule; DELETE FROM jobq.schedule_owner");
    }
}

/* The same program starts again: pauses, last runs and next ticks stay. */
static void declaring_the_same_changes_nothing(void **unused)
{
    jobq_pg_schedule s = every("s", JOBQ_HOURS(1));
    char *before, *after;

    (void)unused;
    s.overlap = JOBQ_OVERLAP_WAIT;
    s.job.payload = jobq_str_from("[1]");
    assert_int_equal(declare("me", 1, &s, 1), JOBQ_OK);
    again();
    RUN("SELECT jobq.schedule_pause('s')");
    before = text_of("SELECT s::text FROM jobq.schedule s");
    nap_us(2000);
    assert_int_equal(declare("me", 1, &s, 1), JOBQ_OK);
    after = text_of("SELECT s::text FROM jobq.schedule s");
    assert_string_equal(before, after);
    free(before);
    free(after);
    s.every_us = JOBQ_HOURS(3);
    assert_int_equal(declare("me", 1, &s, 1), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.schedules WHERE paused_at IS NOT NULL AND "
                            "last_at IS NOT NULL AND calendar = 'every 03:00:00'"), 1);
    assert_int_equal(declare("me", 2, NULL, 0), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.schedules"), 0);
}

static void every_field_arrives(void **unused)
{
    jobq_pg_schedule s[2];

    (void)unused;
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "out", 4, NULL, NULL), JOBQ_OK);
    memset(s, 0, sizeof s);
    s[0] = (jobq_pg_schedule){
        .name = "s", .cron = "30 2 * * *", .zone = "Europe/Berlin", .missed = JOBQ_MISSED_ALL,
        .missed_within_us = JOBQ_HOURS(2), .overlap = JOBQ_OVERLAP_SKIP,
        .spread_us = JOBQ_MINUTES(5),
        .starts_at_us = JOBQ_DAYS(20000), .ends_at_us = JOBQ_DAYS(40000),
        .job = {.queue = "q", .kind = "k", .payload = {"\x01\x02", 2}, .payload_bytes = true,
                .headers = jobq_str_from("{\"a\": 1}"), .priority = -3, .max_attempts = 4,
                .timeout_us = JOBQ_SECONDS(9)}};
    s[1] = (jobq_pg_schedule){.name = "m", .every_us = JOBQ_HOURS(1), .partition = 3, .type = "t",
                              .job = {.queue = "out", .payload = jobq_str_from("{}")}};
    assert_int_equal(declare("me", 5, s, 2), JOBQ_OK);
    expect_text("s q k 30 2 * * * Europe/Berlin all 02:00:00 skip -3 4 00:00:09 me 5 \\x0102 "
                "{\"a\": 1} 2024-10-04 2079-07-08",
                "SELECT concat_ws(' ', name, queue, kind, calendar, zone, missed, missed_within, "
                "overlap, priority, max_attempts, timeout, owner, revision, bytes, headers, "
                "(starts_at AT TIME ZONE 'UTC')::date, (ends_at AT TIME ZONE 'UTC')::date) "
                "FROM jobq.schedules WHERE name = 's'");
    assert_int_equal(number("SELECT count(*) FROM jobq.schedules "
                            "WHERE spread_by > '0' AND spread_by < '5 minutes'"), 1);
    RUN("UPDATE jobq.schedule SET tick_at = tick_at - interval '1 hour', "
        "next_at = next_at - interval '1 hour' WHERE name = 'm'");
    assert_int_equal(tick(), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.message WHERE partition_id & 32767 = 3 "
                            "AND type = 't' AND headers ->> 'schedule' = 'm'"), 1);
}

static void wrong_schedules_are_refused_by_name(void **unused)
{
    static const struct { const char *how, *field; } rows[] = {
        {"every => '1 hour', cron => '@daily'", "cron"},   {"zone => 'UTC'", "cron"},
        {"every => '0.5 seconds'", "every"},               {"every => '-1 hour'", "every"},
        {"every => '2000 years'", "every"},                {"cron => '61 * * * *'", "cron"},
        {"cron => '@daily', zone => 'Mars/Base'", "zone"}, {"cron => '@daily', zone => 'Berlin+1'",
                                                            "zone"},
        {"cron => '@daily', zone => NULL", "zone"},        {"cron => '@daily', zone => 'PST'",
                                                            "zone"},
        {"every => '1 day', partition => 40000", "partition"}, {"every => '1 day', missed => 'x'",
                                                            "missed"},
        {"every => '1 day', overlap => 'x'", "overlap"},
        {"every => '1 day', missed_within => '-1 s'", "missed_within"},
        {"every => '1 day', spread => '2 years'", "spread"},
        {"every => '1 day', starts_at => 'infinity'", "starts_at"},
        {"every => '1 day', starts_at => '2030-01-02', ends_at => '2030-01-01'", "ends_at"},
        {"every => '1 day', priority => 12", "priority"},
        {"every => '1 day', payload => '1', bytes => 'x'", "payload"},
        {"every => '1 day', partition => 0", "kind"},
        {"every => '1 day', timeout => '-1 s'", "timeout"},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char query[300], *text;
        PGresult *res;
        snprintf(query, sizeof query, "SELECT jobq.schedule('s', 'q', 'k', %s)", rows[i].how);
        text = for_schema(query, schema);
        res = PQexec(db, text);
        free(text);
        if (PQresultErrorField(res, PG_DIAG_SQLSTATE) == NULL) fail_msg("%s", rows[i].how);
        assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "22023");
        if (strcmp(PQresultErrorField(res, PG_DIAG_COLUMN_NAME), rows[i].field) != 0)
            fail_msg("%s: %s", rows[i].how, PQresultErrorMessage(res));
        PQclear(res);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.schedules"), 0);
}

/* A set is taken whole or not at all; the error names the field. */
static void a_set_with_a_mistake_is_not_taken(void **unused)
{
    jobq_pg_schedule s[] = {every("a", JOBQ_HOURS(1)), every("b", JOBQ_HOURS(1))};
    jobq_pg_error error;

    (void)unused;
    s[1].every_us = 10;
    assert_int_equal(jobq_pg_schedules_set(pg, NULL, "me", 1, s, 2, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "every"));
    s[1].every_us = JOBQ_HOURS(1);
    s[1].job.delay_us = 1;
    assert_int_equal(jobq_pg_schedules_set(pg, NULL, "me", 1, s, 2, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "delay_us");
    s[1].job.delay_us = 0;
    s[1].job.key = "x";
    assert_int_equal(jobq_pg_schedules_set(pg, NULL, "me", 1, s, 2, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(number("SELECT count(*) FROM jobq.schedules"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.schedule_owner"), 0);
    /* somebody else's name */
    RUN("SELECT jobq.schedule('a', 'q', 'k', every => '1 day')");
    s[1].job.key = NULL;
    assert_int_not_equal(jobq_pg_schedules_set(pg, NULL, "me", 1, s, 2, &error), JOBQ_OK);
    assert_non_null(strstr(error.message, "schedule a belongs to no program"));
    assert_int_equal(number("SELECT count(*) FROM jobq.schedules"), 1);
}

/* Nothing has been sent, so the caller's transaction goes on. */
static void a_wrong_calendar_is_refused_before_it_is_sent(void **unused)
{
    jobq_pg_schedule s = {.name = "a", .cron = "0 0 30 2 *", .zone = "UTC",
                          .job = {.queue = "q", .kind = "k"}};
    jobq_pg_error error;

    (void)unused;
    RUN("BEGIN");
    assert_int_equal(jobq_pg_schedules_set(pg, db, "me", 1, &s, 1, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "cron");
    assert_non_null(strstr(error.message, "must match a date that exists"));
    s.cron = "61 * * * *";
    assert_int_equal(jobq_pg_schedules_set(pg, db, "me", 1, &s, 1, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "a minute of 0 to 59"));
    assert_int_equal(PQtransactionStatus(db), PQTRANS_INTRANS);
    s.cron = "59 * * * *";
    assert_int_equal(jobq_pg_schedules_set(pg, db, "me", 1, &s, 1, &error), JOBQ_OK);
    RUN("ROLLBACK");
}

/* -- operators -- */

static void operators_pause_run_and_look(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 hour')");
    back("1 hour");
    RUN("SELECT jobq.schedule_pause('s')");
    assert_int_equal(tick(), 0);
    expect_text("it is paused", "SELECT why FROM jobq.schedules");
    RUN("SELECT jobq.schedule_run('s')");
    assert_int_equal(number("SELECT count(*) FROM jobq.schedules s JOIN jobq.job j "
                            "ON j.id = s.last_id WHERE s.last_at > now() - interval '9 s'"), 1);
    RUN("SELECT jobq.schedule_resume('s')");
    assert_int_equal(tick(), 0); /* what a pause left out is not missed */
    RUN("SELECT jobq.pause('q')");
    back("1 hour");
    assert_int_equal(tick(), 0);
    expect_text("its queue is paused", "SELECT why FROM jobq.schedules");
    assert_int_equal(number("SELECT coalesce(due_us, -1) FROM jobq._tick(ARRAY(SELECT id "
                            "FROM jobq.queue), 9)"), -1);
    RUN("SELECT jobq.resume('q')");
    RUN("SELECT jobq.pause('q', 'k')");
    assert_int_equal(tick(), 0);
    expect_text("its kind is paused", "SELECT why FROM jobq.schedules");
    RUN("SELECT jobq.resume('q', 'k')");
    assert_int_equal(tick(), 1);
    expect_text("no living worker has a handler for its kind", "SELECT why FROM jobq.schedules");
    RUN("UPDATE jobq.schedule SET ends_at = now()");
    back("1 hour");
    tick();
    expect_text("it has ended", "SELECT why FROM jobq.schedules");
    assert_int_equal(number("SELECT jobq.schedule_drop('s')::int"), 1);
    assert_int_equal(number("SELECT jobq.schedule_drop('s')::int"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.schedule_preview('30 2 * * *', "
                            "'Europe/Berlin', 3, '2026-03-27') WHERE local::time = '03:30'"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.schedule_preview(every => '1 day')"), 10);
}

/* One that cannot fire says why, is tried again, and holds up no other. */
static void a_schedule_that_fails_says_why(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.schedule('bad', 'nowhere', every => '1 hour', partition => 0)");
    RUN("SELECT jobq.schedule(format('s%%s', n), 'q', 'k', every => '1 hour') "
        "FROM generate_series(1, 9) n");
    back("1 hour");
    assert_int_equal(tick(), 9);
    expect_text("queue 'nowhere' is not registered",
                "SELECT why FROM jobq.schedules WHERE name = 'bad'");
    assert_int_equal(tick(), 0);
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "nowhere", 1, NULL, NULL), JOBQ_OK);
    RUN("UPDATE jobq.schedule SET next_at = now() WHERE name = 'bad'");
    assert_int_equal(tick(), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.schedule WHERE error IS NOT NULL"), 0);
}

/* Workers in SQL fire nothing, whatever kinds they have. */
static void a_schedule_that_only_sql_serves_says_why(void **unused)
{
    static const char nobody[] =
        "no living worker in C serves its queue: those in SQL fire no schedules";

    (void)unused;
    RUN("SELECT jobq.schedule('job', 'q', 'k', every => '1 hour')");
    RUN("SELECT jobq.schedule('message', 'q', every => '1 hour', partition => 0)");
    RUN("SELECT jobq.work_join('{\"q\": [\"k\"]}')");
    expect_text(nobody, "SELECT why FROM jobq.schedules WHERE name = 'job'");
    expect_text(nobody, "SELECT why FROM jobq.schedules WHERE name = 'message'");
    RUN("UPDATE jobq.worker SET library = 12");
    assert_int_equal(number("SELECT count(*) FROM jobq.schedules WHERE why IS NULL"), 2);
}

/* A fire that failed is no missed tick, unless it fails for as long as a tick may be late. Then the
 * schedule says why until it has fired again. */
static void a_tick_that_failed_once_is_not_missed(void **unused)
{
    static const char *const within[] = {"NULL", "'100 seconds'", "'1 hour'"};
    size_t i;

    (void)unused;
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "nowhere", 1, NULL, NULL), JOBQ_OK);
    for (i = 0; i < COUNT(within); i++) {
        RUN("SELECT jobq.schedule('bad', 'nowhere', every => '1 day', partition => 0, "
            "missed => 'skip', missed_within => %s)", within[i]);
        RUN("UPDATE jobq.queue SET partitions = 0 WHERE name = 'nowhere'");
        RUN("UPDATE jobq.schedule SET tick_at = now(), next_at = now()");
        assert_int_equal(tick(), 0);
        assert_int_equal(number("SELECT count(*) FROM jobq.schedule WHERE error IS NOT NULL"), 1);
        RUN("UPDATE jobq.schedule SET tick_at = now() - (next_at - tick_at), next_at = now()");
        RUN("UPDATE jobq.queue SET partitions = 1 WHERE name = 'nowhere'");
        assert_int_equal(tick(), 1);
        assert_int_equal(number("SELECT count(*) FROM jobq.schedule WHERE error IS NOT NULL"), 0);
    }
    RUN("UPDATE jobq.queue SET partitions = 0 WHERE name = 'nowhere'");
    RUN("UPDATE jobq.schedule SET tick_at = now(), next_at = now()");
    assert_int_equal(tick(), 0);
    RUN("UPDATE jobq.schedule SET tick_at = now() - interval '2 hours', next_at = now()");
    assert_int_equal(tick(), 0);
    expect_text("queue 'nowhere' is not registered", "SELECT why FROM jobq.schedules");
}

static void a_stopped_job_lets_its_schedule_go_on(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", takes_its_time);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;

    (void)unused;
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 second', overlap => 'cancel')");
    worker = start(&d);
    assert_true(reaches(30, &runs, 3)); /* each cancels the one before */
    stop(worker);
    assert_true(number("SELECT count(*) FROM jobq.history WHERE state = 'c'") >= 2);
}

/* -- a copy of a database -- */

/* A worker that is already at work when its connection leads to a copy (here the copy is made by
 * changing what the database remembers of itself), and one that starts there. */
static void a_copy_claims_and_fires_nothing(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    static const char alive[] = "SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL AND "
                                "expires_at > now()";

    (void)unused;
    d.loop.lease_us = 2 * SECOND;
    start(&d);
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 second')");
    assert_true(reaches(20, &runs, 1));
    RUN("UPDATE jobq.meta SET home = '1/1'");
    assert_true(becomes(20, 0, alive));
    start(&d);
    SET(runs, 0);
    RUN("SELECT jobq.enqueue('q', 'k')");
    RUN("SELECT jobq.renew()"); /* alone it does not make this database the home */
    nap_us(1500000);
    assert_int_equal(tick(), 0);
    assert_int_equal(GET(runs), 0);
    assert_int_equal(number("%s", alive), 0);
    RUN("SELECT jobq.renew(home => true)");
    assert_true(reaches(30, &runs, 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_worker_fires_each_tick_in_time, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_worker_until_empty_fires_what_is_due_first, fresh,
                                        all_stop),
        cmocka_unit_test_setup_teardown(each_tick_fires_once_whoever_dies, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_tick_under_way_is_left_to_who_has_it, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_tick_that_comes_soon_is_not_put_off, fresh, all_stop),
        cmocka_unit_test_setup_teardown(missed_ticks_fire_as_the_schedule_says, fresh, all_stop),
        cmocka_unit_test_setup_teardown(many_missed_ticks_fire_in_steps, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_clock_that_goes_back_fires_nothing_twice, fresh,
                                        all_stop),
        cmocka_unit_test_setup_teardown(overlap_is_as_the_schedule_says, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_job_that_waits_for_its_children_has_begun, fresh,
                                        all_stop),
        cmocka_unit_test_setup_teardown(
            a_cancelled_successor_lets_none_run_beside_its_predecessor, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_waiting_job_is_that_of_the_newest_definition, fresh,
                                        all_stop),
        cmocka_unit_test_setup_teardown(a_schedule_that_wrote_messages_touches_no_job, fresh,
                                        all_stop),
        cmocka_unit_test_setup_teardown(every_tick_is_later_than_the_one_before, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_schedule_goes_with_its_kind, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_renewed_copy_takes_new_schedules, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_locked_successor_becomes_ready_later, fresh, all_stop),
        cmocka_unit_test_setup_teardown(the_newer_program_wins_in_every_order, fresh, all_stop),
        cmocka_unit_test_setup_teardown(declaring_the_same_changes_nothing, fresh, all_stop),
        cmocka_unit_test_setup_teardown(every_field_arrives, fresh, all_stop),
        cmocka_unit_test_setup_teardown(wrong_schedules_are_refused_by_name, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_set_with_a_mistake_is_not_taken, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_wrong_calendar_is_refused_before_it_is_sent, fresh,
                                        all_stop),
        cmocka_unit_test_setup_teardown(operators_pause_run_and_look, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_schedule_that_fails_says_why, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_schedule_that_only_sql_serves_says_why, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_tick_that_failed_once_is_not_missed, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_stopped_job_lets_its_schedule_go_on, fresh, all_stop),
        cmocka_unit_test_setup_teardown(a_copy_claims_and_fires_nothing, fresh, all_stop),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
