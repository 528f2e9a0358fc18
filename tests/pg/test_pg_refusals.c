/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_refusals.c -- what the database refuses or cannot do in time: a job that cannot be sent,
 * a result that is not accepted, a claim or flush that is too large. The other jobs go on, each
 * case is recorded, and a stop ends.
 */
#include "pg_work.h"
#include "proxy.h"

#include <sys/resource.h>

/* Fails with a text that no encoding but UTF-8 holds. */
static jobq_outcome fail_oddly(jobq_call *call)
{
    ADD(runs);
    jobq_call_error(call, jobq_str_from("not for 5 \xe2\x82\xac"));
    return JOBQ_OUTCOME_RETRY;
}

static jobq_outcome until_stopped(jobq_call *call)
{
    ADD(runs);
    while (jobq_call_stopping(call, NULL) == JOBQ_STOP_NONE) nap_us(1000);
    return JOBQ_OUTCOME_SUCCESS;
}

/* A worker whose statements have a second. */
static jobq_pg_worker_desc hasty(const jobq_pg_handler *handler)
{
    jobq_pg_worker_desc d = work_of(handler, 1);

    d.loop.answer_us = SECOND;
    d.loop.grace_us = SECOND;
    SET(runs, 0);
    return d;
}

static const char left[] = "SELECT count(*) FROM jobq.job";

/* -- what cannot be sent -- */

static void the_first_job_is_set_aside(const char *because)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = hasty(&h);
    jobq_loop_stats stats;
    jobq_pg_worker *w;

    d.loop.answer_us = 0; /* the default: the server may need seconds to find out */
    d.loop.lease_us = 0;
    insert_jobs(20, "'1'");
    w = start(&d);
    assert_true(becomes(getenv("JOBQ_TEST_LONG") != NULL ? 600 : 120, 0, left));
    stats = stop(w);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), 20);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.failures WHERE error LIKE "
                            "'cannot be read: %s'", because), 1);
    assert_int_equal(stats.aside, 1);
    assert_int_equal(GET(runs), 20);
}

/* 200 MB in the table, 1.2 GB as text. */
static void a_payload_that_is_too_large_as_text(void **unused)
{
    (void)unused;
    if (getenv("JOBQ_TEST_LONG") == NULL) skip(); /* it costs a server minutes */
    insert_jobs(1, "to_jsonb(repeat(E'\\x01', 200000000))");
    the_first_job_is_set_aside("%");
}

static size_t large_seen;

static jobq_outcome measure(jobq_call *call)
{
    ADD(runs);
    if (call->payload.len > 1000) large_seen = call->payload.len;
    return JOBQ_OUTCOME_SUCCESS;
}

static long peak_mb(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss / 1024;
}

/* As a string: one limit after the other is named, and then it is enqueued and done, beside
 * others. */
static void a_payload_of_200_mb(void **unused)
{
    size_t size = 200000000;
    jobq_pg_handler h = handler_of("q", "k", measure);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *large;
    char *payload;
    int64_t begun;

    (void)unused;
    if (getenv("JOBQ_TEST_LONG") == NULL) skip(); /* it needs 3 GB */
    payload = malloc(size);
    assert_non_null(payload);
    memset(payload, 'x', size);
    payload[0] = payload[size - 1] = '"';
    job.payload.ptr = payload;
    job.payload.len = size;
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "raise jobq_pg_desc.payload_max"));
    memset(&desc, 0, sizeof desc);
    desc.conninfo = server();
    desc.schema = schema;
    desc.log = quiet_log;
    desc.payload_max = 2 * size;
    assert_int_equal(jobq_pg_open(&large, &desc, &error), JOBQ_OK);
    begun = mono_us();
    assert_int_equal(jobq_pg_enqueue(large, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "payload_max =>"));
    print_message("refused after %.1f s: %s\n", (double)(mono_us() - begun) / 1e6, error.message);
    RUN("SELECT jobq.queue_set('q', payload_max => 400000000)");
    begun = mono_us();
    if (jobq_pg_enqueue(large, NULL, &job, NULL, &error) != JOBQ_OK) fail_msg("%s", error.message);
    print_message("enqueued in %.1f s, at most %ld MB\n", (double)(mono_us() - begun) / 1e6,
                  peak_mb());
    insert_jobs(20, "'1'");
    d.loop.lease_us = 0; /* the default */
    SET(runs, 0);
    large_seen = 0;
    begun = mono_us();
    start_on(large, &d);
    assert_true(becomes(240, 0, left));
    print_message("all done in %.1f s, at most %ld MB\n", (double)(mono_us() - begun) / 1e6,
                  peak_mb());
    all_stop(NULL);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), 21);
    assert_int_equal(large_seen, size);
    assert_in_range(peak_mb(), 1, 1500);
    jobq_pg_close(large);
    free(payload);
}

/* A backend that outlives its client and its cancel, with a claim's jobs in its hands: the others
 * are claimed meanwhile, and its own when it has ended. */
static void a_backend_that_is_stuck_stops_nobody(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = hasty(&h);

    (void)unused;
    RUN("CREATE FUNCTION jobq.stuck() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN "
        "FOR i IN 1 .. 3000 LOOP BEGIN PERFORM pg_sleep(0.01); "
        "EXCEPTION WHEN query_canceled THEN NULL; END; EXIT WHEN EXISTS (SELECT FROM jobq.history "
        "OFFSET 14); END LOOP; RAISE EXCEPTION ''stuck''; END'");
    insert_jobs(1, "'1'");
    RUN("CREATE TRIGGER stuck BEFORE UPDATE ON jobq.job FOR EACH ROW "
        "WHEN (NEW.state = 'x' AND OLD.id = %ld) EXECUTE FUNCTION jobq.stuck()",
        number("SELECT id FROM jobq.job"));
    insert_jobs(20, "'1'");
    start(&d);
    assert_true(becomes(25, 0, left)); /* the first of them before the backend gives up */
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 20);
    all_stop(NULL);
    RUN("DROP TRIGGER stuck ON jobq.job");
    RUN("DROP FUNCTION jobq.stuck()");
}

/* A row whose claim fails for itself, whatever its size. */
static void an_attempt_that_cannot_be_counted(void **unused)
{
    (void)unused;
    insert_jobs(1, "'1'");
    RUN("UPDATE jobq.job SET attempt = 2147483647");
    the_first_job_is_set_aside("integer out of range");
}

/* What no job has is read as the default. */
static void odd_columns_are_mended(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = hasty(&h);

    (void)unused;
    insert_jobs(1, "'1'");
    RUN("UPDATE jobq.job SET attempt = -5, crash = -5, max_attempts = -5, timeout_us = -5, "
        "stages = 99");
    start(&d);
    assert_true(reaches(60, &runs, 1));
    assert_true(becomes(60, 1, "SELECT count(*) FROM jobq.job WHERE stage = 1"));
    RUN("DELETE FROM jobq.job");
}

/* 6 MB of jobs, 0.5 MB a second, a second for an answer. */
static void large_jobs_arrive_over_a_slow_network(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = hasty(&h);
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *slow;

    (void)unused;
    memset(&desc, 0, sizeof desc);
    proxy_up();
    desc.conninfo = proxy.conninfo;
    desc.schema = schema;
    desc.log = quiet_log;
    assert_int_equal(jobq_pg_open(&slow, &desc, &error), JOBQ_OK);
    insert_jobs(60, "to_jsonb((SELECT string_agg(md5(i::text), '') "
                    "FROM generate_series(1, 3200) i))");
    SET(proxy.rate, 500000);
    start_on(slow, &d);
    assert_true(becomes(60, 0, left));
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 60);
    SET(proxy.rate, 0);
    all_stop(NULL);
    jobq_pg_close(slow);
    proxy_down();
}

/* The same, with a first job that does not arrive in time at all. */
static void a_job_that_never_arrives_is_set_aside(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = hasty(&h);
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *slow;

    (void)unused;
    d.loop.answer_us = 3 * SECOND; /* the server has to move it in this time */
    memset(&desc, 0, sizeof desc);
    proxy_up();
    desc.conninfo = proxy.conninfo;
    desc.schema = schema;
    desc.log = quiet_log;
    assert_int_equal(jobq_pg_open(&slow, &desc, &error), JOBQ_OK);
    insert_jobs(1, "to_jsonb((SELECT string_agg(md5(i::text), '') "
                   "FROM generate_series(1, 160000) i))"); /* 5 MB */
    insert_jobs(20, "'1'");
    SET(proxy.rate, 500000);
    start_on(slow, &d);
    assert_true(becomes(60, 0, left));
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 20);
    assert_int_equal(number("SELECT count(*) FROM jobq.failures WHERE error = "
                            "'cannot be read: no answer in time'"), 1);
    SET(proxy.rate, 0);
    all_stop(NULL);
    jobq_pg_close(slow);
    proxy_down();
}

static void reads_few_entries(const char *query)
{
    static const char read[] =
        "SELECT pg_stat_get_xact_tuples_returned('jobq.job_pkey'::regclass)";
    long before;

    RUN("BEGIN");
    before = number(read);
    RUN("%s", query);
    if (number(read) - before > 1000) fail_msg("it reads all dead rows: %s", query);
    RUN("ROLLBACK");
}

/* While few jobs live in a large index, a look-up in it seems as dear as reading all of it. */
static void jobs_are_looked_up_one_by_one(void)
{
    static const char *const queries[] = {
        "SELECT FROM jobq._heartbeat(101, 60000000, '{}')",
        "SELECT jobq._edges_end(ARRAY[last_value - 2, last_value - 1], 's') FROM jobq.job_id",
        "SELECT jobq._promote_late(1000)",
        "INSERT INTO jobq.nudge (job_id) SELECT last_value FROM jobq.job_id;"
        " SELECT jobq._promote(1000)",
        "INSERT INTO jobq.signal VALUES ('s', '1', now());"
        " INSERT INTO jobq.signal_wait SELECT last_value, 's', now() FROM jobq.job_id;"
        " SELECT jobq._look_signals('{s}', '{s}')",
        "SELECT jobq._lock_kinds(ARRAY[last_value - 1, last_value], '{-1,-1}') FROM jobq.job_id",
        "SELECT jobq._line_holders(id) FROM jobq.queue",
        "SELECT jobq._strict_holders(id, 'line') FROM jobq.queue",
        "SELECT jobq._work_modes(w, w.queues, w.kinds) FROM jobq.worker w WHERE id = 101",
        "SELECT jobq.work_leave(101)"};
    verb_batch batch;
    size_t i;

    insert_jobs(3, "'1'");
    register_worker(101, 60 * SECOND);
    assert_int_equal(claim_by(101, 1, 1, false, &batch), JOBQ_OK);
    verb_batch_clear(&batch);
    RUN("INSERT INTO jobq.edge (parent, child) SELECT last_value - i, last_value - i + 1"
        " FROM jobq.job_id, generate_series(1, 2) i");
    RUN("VACUUM jobq.job");
    for (i = 0; i < COUNT(queries); i++) reads_few_entries(queries[i]);
    RUN("DELETE FROM jobq.edge; DELETE FROM jobq.job; DELETE FROM jobq.claim;"
        " DELETE FROM jobq.worker WHERE id = 101");
}

/* A count that passes dead rows for 20 ms does not look at what is older. Here it passes those of
 * 21 to 24 hours ago. expected: 100 for each hour that the first of two jobs is late, 10 if the
 * counts are exact, and how many are ready. */
static void counts_end_at_dead_rows(int expected)
{
    long got = -1;
    int tries;

    RUN("DELETE FROM jobq.job");
    insert_jobs(2, "'1'");
    RUN("UPDATE jobq.job SET run_at = now() - CASE id % 2 WHEN 0 THEN interval '1 hour'"
        " ELSE interval '40 hours' END");
    for (tries = 0; tries < 20 && got != expected; tries++) /* a busy machine may end one early */
        got = number("SELECT 100 * floor(extract(epoch FROM late) / 3600)"
                     " + CASE WHEN exact THEN 10 ELSE 0 END + ready FROM jobq.queues"
                     " WHERE queue = 'q'");
    assert_int_equal(got, expected);
    RUN("DELETE FROM jobq.job");
}

/* To look for running jobs without a claim, prune would have to pass the dead rows. */
static void prune_mends_later(PGconn *holder)
{
    verb_batch batch;

    insert_jobs(1, "'1'");
    register_worker(101, 60 * SECOND);
    assert_int_equal(claim_by(101, 1, 1, false, &batch), JOBQ_OK);
    verb_batch_clear(&batch);
    RUN("DELETE FROM jobq.claim");
    RUN("SELECT jobq.prune(100)");
    assert_int_equal(number("SELECT jobq.audit()"), 1);
    PQclear(PQexec(holder, "COMMIT"));
    PQfinish(holder);
    RUN("VACUUM jobq.job");
    RUN("SELECT jobq.prune(100)");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* A fresh worker's claim has no bound. Here it takes 0.2 s or more to pass the dead rows, and the
 * server gives it up long before. */
static void a_fresh_worker_gets_jobs_behind_an_old_snapshot(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = hasty(&h);
    PGconn *holder = PQconnectdb(server());

    (void)unused;
    d.loop.answer_us = 120000;
    insert_jobs(1000000, "'1'");
    RUN("UPDATE jobq.job SET run_at = now() - interval '1 day' + id * interval '10 ms'");
    PQclear(PQexec(holder, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT"));
    RUN("DELETE FROM jobq.job");
    insert_jobs(2, "'1'");
    RUN("UPDATE jobq.job SET run_at = now() - interval '1 hour' WHERE id % 2 = 0");
    start(&d);
    assert_true(becomes(60, 2, "SELECT count(*) FROM jobq.history"));
    all_stop(NULL);
    jobs_are_looked_up_one_by_one();
    assert_true(becomes(10, 1, "SELECT count(*) WHERE pg_stat_get_dead_tuples("
                               "'jobq.job'::regclass) >= 1000000"));
    counts_end_at_dead_rows(101);
    RUN("UPDATE jobq.queue SET lines = true");
    counts_end_at_dead_rows(4012); /* a queue with lines is counted as a whole */
    RUN("UPDATE jobq.queue SET lines = false");
    prune_mends_later(holder);
    counts_end_at_dead_rows(4012);
}

/* A claim by hand ends before its payloads are too large together; one job is always taken. */
static void a_claim_has_a_budget_of_bytes(void **unused)
{
    jobq_lane lane;
    verb_claim_desc d;
    verb_batch batch;
    jobq_pg_error error;

    (void)unused;
    insert_jobs(10, "to_jsonb((SELECT string_agg(md5(i::text), '') "
                    "FROM generate_series(1, 3200) i))"); /* 100 KB each, stored as such */
    memset(&lane, 0, sizeof lane);
    memset(&d, 0, sizeof d);
    lane.queue = register_worker(101, 60 * SECOND);
    lane.after_at_us = INT64_MIN;
    d.worker = 101;
    d.limit = 10;
    d.lanes = &lane;
    d.lane_count = 1;
    for (d.bytes = 1000; d.bytes < 1000000; d.bytes += 350000) {
        size_t wanted = d.bytes == 1000 ? 1 : d.bytes == 351000 ? 3 : 6;
        d.number++;
        assert_int_equal(verb_claim(pg, NULL, &d, &batch, &error), JOBQ_OK);
        assert_int_equal(batch.count, wanted);
        verb_batch_clear(&batch);
    }
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 0);
}

/* Nobody can claim while a DBA holds the table; its large jobs are not to blame. */
static void a_locked_table_condemns_nobody(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = hasty(&h);
    jobq_pg_worker *w;
    int64_t beats;

    (void)unused;
    insert_jobs(6, "to_jsonb((SELECT string_agg(md5(i::text), '') "
                   "FROM generate_series(1, 9600) i))");
    RUN("BEGIN; LOCK TABLE jobq.job IN SHARE MODE");
    w = start(&d);
    assert_true(becomes(60, 1, "SELECT count(*) FROM jobq.worker"));
    beats = number("SELECT max(beat) FROM jobq.worker");
    while (number("SELECT max(beat) FROM jobq.worker") < beats + 30) nap_us(10000);
    RUN("COMMIT");
    assert_true(becomes(60, 0, left));
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), 6);
    assert_int_equal(stop(w).aside, 0);
}

/* -- what is not taken -- */

/* Nothing of a refused result is sent again. */
static void a_refused_error_is_replaced(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", fail_oddly);
    jobq_pg_worker_desc d = hasty(&h);

    (void)unused;
    RUN("ALTER TABLE jobq.job ADD CONSTRAINT clean CHECK (errors::text NOT LIKE '%%not for%%')");
    insert_jobs(2, "'1'");
    start(&d);
    assert_true(becomes(60, 2, "SELECT count(*) FROM jobq.job WHERE attempt = 1 AND state = 'r' "
                               "AND errors -> 0 ->> 'error' LIKE "
                               "'the database refused the result: SQLSTATE 23514%%'"));
    all_stop(NULL);
    RUN("ALTER TABLE jobq.job DROP CONSTRAINT clean");
}

static int told_failed;
static char told_error[200];

static void hook_failed(void *user, const jobq_pg_report *r)
{
    (void)user;
    snprintf(told_error, sizeof told_error, "job %lld of %.*s %.*s: %.*s",
             (long long)r->call->job.id, (int)r->queue.len, r->queue.ptr, (int)r->call->kind.len,
             r->call->kind.ptr, (int)r->error.len, r->error.ptr);
    ADD(told_failed);
}

/* The handler's success is refused, so its only attempt has failed: the hook hears of that. */
static void the_hook_failed_hears_of_a_refused_success(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = hasty(&h);
    jobq_pg_job job = plain_job();
    char said[80];

    (void)unused;
    SET(told_failed, 0);
    RUN("ALTER TABLE jobq.history ADD CONSTRAINT none CHECK (state <> 's')");
    job.max_attempts = 1;
    snprintf(said, sizeof said, "job %lld of q k: Max retries (1) exceeded: the database refused",
             (long long)enqueue_with(&job));
    d.hooks.failed = hook_failed;
    start(&d);
    assert_true(becomes(60, 1, "SELECT count(*) FROM jobq.failed"));
    assert_true(reaches(20, &told_failed, 1));
    all_stop(NULL);
    RUN("ALTER TABLE jobq.history DROP CONSTRAINT none");
    assert_int_equal(told_failed, 1);
    assert_int_equal(strncmp(told_error, said, strlen(said)), 0);
}

/* A database that cannot hold every text is refused where it is opened. */
static void other_encodings_are_refused_at_open(void **unused)
{
    jobq_pg_desc desc;
    jobq_pg_error error;
    char conninfo[200];
    jobq_pg *latin;

    (void)unused;
    memset(&desc, 0, sizeof desc);
    RUN("CREATE DATABASE latin_refused ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' "
        "TEMPLATE template0");
    snprintf(conninfo, sizeof conninfo, "host=%s port=%s user=%s dbname=latin_refused", PQhost(db),
             PQport(db), PQuser(db));
    desc.conninfo = conninfo;
    desc.log = quiet_log;
    assert_int_equal(jobq_pg_open(&latin, &desc, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "ENCODING 'UTF8' TEMPLATE template0"));
    RUN("DROP DATABASE latin_refused");
}

/* The first and the last errors are kept. */
static void stored_errors_are_bounded(void **unused)
{
    jobq_job job;
    int64_t claim;

    (void)unused;
    insert_jobs(1, "'1'");
    register_worker(101, 600 * SECOND);
    for (claim = 1; claim <= 75; claim++) {
        char text[20];
        job = claim_one(101, claim, false);
        job.max_attempts = 1000;
        snprintf(text, sizeof text, "error %d", (int)claim);
        assert_int_equal(settle_with(&job, JOBQ_EVENT_RETRY, text), JOBQ_OK);
        RUN("UPDATE jobq.job SET run_at = now(), attempt = 1, max_attempts = 1000");
    }
    expect_text("51 error 1 error 10 25 error 36 error 75",
                "SELECT concat_ws(' ', jsonb_array_length(errors), errors -> 0 ->> 'error', "
                "errors -> 9 ->> 'error', errors -> 10 ->> 'dropped', errors -> 11 ->> 'error', "
                "errors -> 50 ->> 'error') FROM jobq.job");
    job = claim_one(101, claim, false);
    RUN("UPDATE jobq.job SET errors = (SELECT jsonb_agg(jsonb_build_object('error', repeat('x', "
        "4000))) FROM generate_series(1, 5000))");
    assert_int_equal(settle_with(&job, JOBQ_EVENT_DISCARD, "last"), JOBQ_OK);
    expect_text("51 4951 last",
                "SELECT concat_ws(' ', jsonb_array_length(errors), errors -> 10 ->> 'dropped', "
                "errors -> -1 ->> 'error') FROM jobq.failed");
    assert_int_equal(number("SELECT count(*) FROM jobq.failures WHERE errors LIKE "
                            "'%%... 4951 more%%'"), 1);
}

/* A text that comes past C is cut, too. */
static void a_long_error_is_cut(void **unused)
{
    jobq_job job;

    (void)unused;
    insert_jobs(1, "'1'");
    register_worker(101, 600 * SECOND);
    job = claim_one(101, 1, false);
    RUN("SELECT FROM jobq._settle('{101}', '{1}', '{%ld}', '{f}', '{0}', '{1}', '{0}', '{false}', "
        "'{0}', ARRAY[repeat(U&'\\20AC', 5000)], '{NULL}', '{NULL}')", (long)job.id);
    assert_in_range(number("SELECT octet_length(errors -> 0 ->> 'error') FROM jobq.failed"), 2000,
                    4096);
}

/* A flush that takes too long becomes smaller. Each row takes 20 ms. */
static void a_flush_that_is_too_slow_becomes_smaller(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = hasty(&h);

    (void)unused;
    RUN("CREATE FUNCTION jobq.slowly() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END'");
    RUN("CREATE TRIGGER slowly BEFORE INSERT ON jobq.history FOR EACH ROW "
        "EXECUTE FUNCTION jobq.slowly()");
    insert_jobs(300, "'1'");
    d.loop.flush_us = 2 * SECOND;
    start(&d);
    assert_true(becomes(60, 0, left));
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 300);
    all_stop(NULL);
    RUN("DROP TRIGGER slowly ON jobq.history");
    RUN("DROP FUNCTION jobq.slowly()");
}

/* An id that history has already ends alone, and the batch with it. */
static void an_id_that_is_in_history_stops_nobody(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = hasty(&h);

    (void)unused;
    insert_jobs(30, "'1'");
    RUN("INSERT INTO jobq.history (slot, id, run_at, enqueued_at, finished_at, queue_id, kind_id, "
        "attempt, crash, priority, stage, stages, state) SELECT r.slot, j.id, now(), "
        "now(), "
        "now(), j.queue_id, j.kind_id, 1, 0, 0, 0, 1, 's' "
        "FROM jobq.ring r, (SELECT * FROM jobq.job ORDER BY id OFFSET 11 LIMIT 1) j "
        "WHERE r.retention = 'medium'");
    start(&d);
    assert_true(becomes(60, 0, left));
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 30);
    assert_int_equal(GET(runs), 30);
}

/* -- what never ends -- */

/* Whether a worker's process ends by itself, within this many seconds of its stop. */
static bool ends_within(pid_t pid, double seconds)
{
    int64_t until = mono_us() + (int64_t)(seconds * 1e6);

    kill(pid, SIGTERM);
    while (mono_us() < until) {
        if (exited(pid)) return true;
        nap_us(10000);
    }
    return false;
}

/* An operator's open transaction cannot hold a stopping worker. */
static void an_open_cancel_does_not_hold_a_stop(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", until_stopped);
    jobq_pg_worker_desc d = hasty(&h);
    pid_t pid;

    (void)unused;
    insert_jobs(1, "'1'");
    pid = spawn(&d);
    assert_true(becomes(60, 1, "SELECT count(*) FROM jobq.job WHERE state = 'x'"));
    RUN("BEGIN; SELECT jobq.cancel(id) FROM jobq.job");
    assert_true(ends_within(pid, 20)); /* a second of grace, and one for the answer */
    RUN("COMMIT");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* No end of this job is taken: the others end, a stop does too, and the job comes back. */
static void a_job_without_an_end_is_left_to_its_rescuer(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = hasty(&h);
    pid_t pid;

    (void)unused;
    RUN("CREATE FUNCTION jobq.never() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN RAISE EXCEPTION ''never''; END'");
    insert_jobs(1, "'1'");
    RUN("CREATE TRIGGER never BEFORE UPDATE OR DELETE ON jobq.job FOR EACH ROW "
        "WHEN (OLD.state = 'x' AND OLD.id = %ld) EXECUTE FUNCTION jobq.never()",
        number("SELECT id FROM jobq.job"));
    insert_jobs(20, "'1'");
    d.loop.lease_us = 3 * SECOND;
    pid = spawn(&d);
    assert_true(becomes(60, 1, left));
    assert_true(ends_within(pid, 20));
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x'"), 1);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    RUN("DROP TRIGGER never ON jobq.job");
    RUN("DROP FUNCTION jobq.never()");
    start(&d);
    assert_true(becomes(60, 0, left));
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), 21);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, empty_queue, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* processes first: afterwards this one has threads */
        TEST(an_open_cancel_does_not_hold_a_stop),
        TEST(a_job_without_an_end_is_left_to_its_rescuer),
        TEST(a_payload_that_is_too_large_as_text),
        TEST(a_payload_of_200_mb),
        TEST(an_attempt_that_cannot_be_counted),
        TEST(a_backend_that_is_stuck_stops_nobody),
        TEST(odd_columns_are_mended),
        TEST(a_claim_has_a_budget_of_bytes),
        TEST(a_locked_table_condemns_nobody),
        TEST(a_refused_error_is_replaced),
        TEST(the_hook_failed_hears_of_a_refused_success),
        TEST(other_encodings_are_refused_at_open),
        TEST(stored_errors_are_bounded),
        TEST(a_long_error_is_cut),
        TEST(a_flush_that_is_too_slow_becomes_smaller),
        TEST(an_id_that_is_in_history_stops_nobody),
        TEST(large_jobs_arrive_over_a_slow_network),
        TEST(a_job_that_never_arrives_is_set_aside),
        TEST(a_fresh_worker_gets_jobs_behind_an_old_snapshot),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
