/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Batches on Postgres: each job of a call ends by itself; jobq_pg_call_commit_all ends all or none;
 * whatever one of them does to the call, the others succeed.
 */
#include "processes.h"

static jobq_pg_handler batch_of(jobq_jobs_handler run, int32_t most)
{
    jobq_pg_handler h;

    memset(&h, 0, sizeof h);
    h.queue = "q";
    h.kind = "k";
    h.batch = run;
    h.batch_max = most;
    return h;
}

static int largest, calls_made; /* the most jobs of a call */

static int begin(void **state)
{
    SET(largest, 0);
    SET(calls_made, 0);
    fresh(state);
    RUN("INSERT INTO jobq.queue (name, backoff_base_us, backoff_cap_us, backoff_jitter_permille)"
        " VALUES ('q', 1000, 2000, 0)");
    RUN("DROP TABLE IF EXISTS jobq.rows; CREATE TABLE jobq.rows (job bigint)");
    return 0;
}

static void saw(int32_t count)
{
    ADD(calls_made);
    if (count > GET(largest)) SET(largest, count);
}

/* Jobs with the payloads 1, 2, 3 ... */
static void enqueue_numbers(int count, int stages)
{
    RUN("SELECT jobq.enqueue('q', 'k', to_jsonb(n), stages => %d::int2)"
        " FROM generate_series(1, %d) n", stages, count);
}

static int number_of(const jobq_call *call)
{
    return atoi(call->payload.ptr); /* the strings of a result are terminated */
}

static void runs_off(jobq_jobs_handler run, int32_t most)
{
    jobq_pg_handler h = batch_of(run, most);
    jobq_pg_worker_desc d = work_of(&h, 1);

    d.loop.threads = 1;
    work_off(&d);
}

/* -- each by itself -- */

static jobq_outcome various(jobq_call *const *calls, int32_t count)
{
    char text[40];
    int32_t i;

    saw(count);
    for (i = 0; i < count; i++) {
        int n = number_of(calls[i]);
        snprintf(text, sizeof text, "%d", 10 * n);
        jobq_call_log(calls[i], JOBQ_LEVEL_INFO, jobq_str_from(text));
        jobq_call_result(calls[i], jobq_str_from(text), false);
        if (n == 2) calls[i]->outcome = JOBQ_OUTCOME_DISCARD;
        if (n == 2) jobq_call_error(calls[i], jobq_str_from("no such thing"));
        if (n == 3) calls[i]->outcome = JOBQ_OUTCOME_SNOOZE;
        if (n == 3) jobq_call_delay(calls[i], JOBQ_HOURS(1));
        if (n == 4) calls[i]->outcome = JOBQ_OUTCOME_CANCELLED;
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static void each_job_ends_by_itself(void **unused)
{
    (void)unused;
    enqueue_numbers(6, 1);
    runs_off(various, 10);
    assert_int_equal(GET(largest), 6);
    expect_text("1 10 \"10\", 5 50 \"50\", 6 60 \"60\"",
                "SELECT string_agg(format('%s %s %s', payload, result, log -> 0 -> 2), ', ' "
                "ORDER BY id) FROM jobq.history WHERE state = 's'");
    expect_text("2 no such thing", "SELECT format('%s %s', payload, errors -> -1 ->> 'error')"
                                   " FROM jobq.failed");
    expect_text("4", "SELECT payload FROM jobq.history WHERE state = 'c'");
    expect_text("3 0 1", "SELECT format('%s %s %s', payload, attempt, (run_at > now())::int)"
                         " FROM jobq.job");
}

static void calls_are_counted(void **unused)
{
    (void)unused;
    enqueue_numbers(6, 1);
    runs_off(various, 10);
    expect_text("6 1", "SELECT format('%s %s', started, calls) FROM jobq.times WHERE kind = 'k'");
    assert_int_equal(number("SELECT count(*) FROM regexp_split_to_table(jobq.metrics(), '\n') t "
                            "WHERE t LIKE 'jobq_calls_total{%%\"q\",kind=\"k\"} 1'"), 1);
}

static jobq_outcome counts_up(jobq_call *const *calls, int32_t count)
{
    char text[40];
    int32_t i;

    saw(count);
    for (i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%d", number_of(calls[i]) + 100);
        jobq_call_result(calls[i], jobq_str_from(text), false);
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static void each_hands_its_payload_to_its_next_stage(void **unused)
{
    (void)unused;
    enqueue_numbers(5, 3);
    runs_off(counts_up, 10);
    assert_int_equal(GET(largest), 5);
    expect_text("301 302 303 304 305", "SELECT string_agg(result::text, ' ' ORDER BY id)"
                                       " FROM jobq.history WHERE state = 's' AND stage = 2");
}

/* -- one commit -- */

/* Inserts the job's row. */
static bool writes(PGconn *conn, const jobq_call *call)
{
    PGresult *res;
    char query[160];
    bool good;

    snprintf(query, sizeof query, "INSERT INTO %s.rows VALUES (%lld)", schema,
             (long long)call->job.id);
    res = PQexec(conn, query);
    good = PQresultStatus(res) == PGRES_COMMAND_OK;
    PQclear(res);
    return good;
}

static int steals; /* the job whose lease is lost meanwhile; 0: none */

static jobq_outcome all_in_one(jobq_call *const *calls, int32_t count)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(calls[0], &error);
    char query[200];
    jobq_outcome outcome;
    int32_t i;

    saw(count);
    if (conn == NULL || jobq_pg_call_conn(calls[count - 1], &error) != conn)
        return JOBQ_OUTCOME_DISCARD;
    PQclear(PQexec(conn, "BEGIN"));
    for (i = 0; i < count; i++) {
        char text[40];
        if (number_of(calls[i]) % 7 == 5) calls[i]->outcome = JOBQ_OUTCOME_DISCARD;
        else if (!writes(conn, calls[i])) return JOBQ_OUTCOME_DISCARD;
        snprintf(text, sizeof text, "%d", number_of(calls[i]));
        if (i % 2 == 0) jobq_call_result(calls[i], jobq_str_from(text), false);
        if (i % 3 == 0) jobq_call_log(calls[i], JOBQ_LEVEL_INFO, jobq_str_from("here"));
        if (GET(steals) == number_of(calls[i])) {
            PGconn *other = connected();
            snprintf(query, sizeof query, "UPDATE %s.job SET claim = claim + 1 WHERE id = %lld",
                     schema, (long long)calls[i]->job.id);
            PQclear(PQexec(other, query));
            PQfinish(other);
        }
    }
    outcome = jobq_pg_call_commit_all(calls, count, conn);
    for (i = 0; i < count; i++)
        if (calls[i]->outcome != outcome && calls[i]->outcome != JOBQ_OUTCOME_DISCARD) ADD(others);
    return outcome;
}

static void all_end_with_their_rows(void **unused)
{
    (void)unused;
    enqueue_numbers(20, 1);
    runs_off(all_in_one, 32);
    assert_int_equal(GET(largest), 20);
    assert_int_equal(GET(others), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.rows"), 17); /* without 5, 12, 19 */
    assert_int_equal(number("SELECT count(*) FROM jobq.history h JOIN jobq.rows r ON r.job = h.id"
                            " WHERE h.state = 's'"), 17);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE result ="
                            " payload"), 8);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE log -> 0 ->> 2 = 'here'"), 6);
    expect_text("5 12 19", "SELECT string_agg(payload::text, ' ' ORDER BY id) FROM jobq.failed");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* The next stage of each begins with the same commit. */
static void all_go_on_with_their_rows(void **unused)
{
    (void)unused;
    enqueue_numbers(4, 2);
    runs_off(all_in_one, 32);
    assert_int_equal(number("SELECT count(*) FROM jobq.rows"), 8);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's' AND stage = 1"),
                     4);
}

/* Nothing of the others is written if the lease of one is lost; all succeed later. */
static void none_ends_if_one_is_lost(void **unused)
{
    jobq_pg_handler h = batch_of(all_in_one, 4);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;

    (void)unused;
    SET(steals, 3);
    enqueue_numbers(4, 1);
    d.loop.threads = 1;
    worker = start(&d);
    assert_true(becomes(20, 1, "SELECT (count(*) = 3)::int FROM jobq.history WHERE state = 's'"));
    stop(worker);
    SET(steals, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.rows"), 3);
    assert_int_equal(number("SELECT count(*) FROM jobq.rows r"
                            " JOIN jobq.history h ON h.id = r.job"), 3);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE attempt > 1 AND"
                            " errors -> 0 ->> 'error' LIKE 'lease lost on job %%'"), 3);
}

/* The COMMIT itself fails: nothing is written, and each attempt says why. */
static void none_ends_if_the_commit_fails(void **unused)
{
    (void)unused;
    RUN("CREATE OR REPLACE FUNCTION jobq.refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF nextval('jobq.refusals') < 4 THEN RAISE 'not yet'; END IF;"
        " RETURN NULL; END $$");
    RUN("DROP SEQUENCE IF EXISTS jobq.refusals; CREATE SEQUENCE jobq.refusals");
    RUN("CREATE CONSTRAINT TRIGGER refuses AFTER INSERT ON jobq.rows"
        " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION jobq.refuse()");
    enqueue_numbers(4, 1);
    runs_off(all_in_one, 4);
    while (number("SELECT count(*) FROM jobq.job") > 0) runs_off(all_in_one, 4);
    assert_int_equal(number("SELECT count(*) FROM jobq.rows"), 4);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's' AND"
                            " errors::text LIKE '%%COMMIT failed%%not yet%%'"), 4);
}

/* Two such transactions have locked no job in another order. */
static void jobs_are_locked_in_the_order_of_their_ids(void **unused)
{
    jobq_job jobs[3];
    PGconn *first = connected(), *second = connected();
    char query[700];
    int i;

    (void)unused;
    enqueue_count(3);
    register_worker(101, 30 * SECOND);
    for (i = 0; i < 3; i++) jobs[i] = claim_one(101, i + 1, false);
    PQclear(PQexec(first, "BEGIN"));
    snprintf(query, sizeof query, "SELECT FROM %s.job WHERE id = %lld FOR UPDATE", schema,
             (long long)jobs[0].id);
    PQclear(PQexec(first, query));
    snprintf(query, sizeof query,
             "SELECT %s._settle_all_here('{101,101,101}', '{3,2,1}', '{%lld,%lld,%lld}', '{s,s,s}',"
             " '{0,0,0}', '{1,1,1}', '{0,0,0}', '{f,f,f}', '{0,0,0}', '{NULL,NULL,NULL}',"
             " '{NULL,NULL,NULL}', '{NULL,NULL,NULL}')",
             schema, (long long)jobs[2].id, (long long)jobs[1].id, (long long)jobs[0].id);
    assert_int_equal(PQsendQuery(second, query), 1);
    assert_true(becomes(20, 1, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type ="
                               " 'Lock' AND query LIKE '%settle_all_here%' AND pid <>"
                               " pg_backend_pid()"));
    assert_int_equal(number("SELECT count(*) FROM (SELECT FROM jobq.job FOR UPDATE SKIP LOCKED) j"),
                     2);
    PQclear(PQexec(first, "COMMIT"));
    PQclear(PQgetResult(second));
    PQfinish(first);
    PQfinish(second);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), 3);
}

/* -- what one of them does to the call -- */

static jobq_outcome kills_on_7(jobq_call *const *calls, int32_t count)
{
    int32_t i;

    for (i = 0; i < count; i++)
        if (number_of(calls[i]) == 7) kill(getpid(), SIGKILL);
    return JOBQ_OUTCOME_SUCCESS;
}

static void one_that_kills_its_worker_fails_alone(void **unused)
{
    jobq_pg_handler h = batch_of(kills_on_7, 32);
    jobq_pg_worker_desc d = one_kind(&h, succeed);
    int64_t until = mono_us() + 100 * SECOND;
    int deaths = -1;
    pid_t pid = 0;

    (void)unused;
    h = batch_of(kills_on_7, 32);
    d.loop.lease_us = 5 * SECOND;
    d.loop.threads = 1;
    enqueue_numbers(32, 1);
    while (number("SELECT count(*) FROM jobq.job") > 0 && mono_us() < until) {
        if (pid == 0 || exited(pid)) {
            pid = spawn(&d);
            deaths++;
        }
        nap_us(20000);
    }
    kill_hard(pid);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), 31);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE payload = '7' AND crash = 3"),
                     1);
    assert_in_range(deaths, 3, 5); /* 2 + max_crashes */
    assert_int_equal(number("SELECT max(attempt) FROM jobq.history"), 1);
}

static jobq_outcome hangs_on_7(jobq_call *const *calls, int32_t count)
{
    int32_t i;

    for (i = 0; i < count; i++)
        while (number_of(calls[i]) == 7 && !GET(gate)) nap_us(2000);
    return JOBQ_OUTCOME_SUCCESS;
}

/* It loses attempts, alone; the others lose none. */
static void one_that_hangs_fails_alone(void **unused)
{
    jobq_pg_handler h = batch_of(hangs_on_7, 32);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;

    (void)unused;
    RUN("UPDATE jobq.queue SET max_attempts = 2, timeout_us = 300000");
    enqueue_numbers(10, 1);
    d.loop.threads = 8;
    worker = start(&d);
    assert_true(becomes(60, 10, "SELECT (SELECT count(*) FROM jobq.history) +"
                                " (SELECT count(*) FROM jobq.failed)"));
    SET(gate, 1);
    stop(worker);
    expect_text("7", "SELECT string_agg(payload::text, ' ') FROM jobq.failed");
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE crash = 0 AND attempt = 2 AND"
                            " errors -> -1 ->> 'error' LIKE '%%ran out of time'"), 1);
    assert_int_equal(number("SELECT max(attempt) FROM jobq.history WHERE state = 's'"), 1);
}

static jobq_outcome retries_all_for_7(jobq_call *const *calls, int32_t count)
{
    int32_t i;

    saw(count);
    for (i = 0; i < count; i++)
        if (number_of(calls[i]) == 7) return JOBQ_OUTCOME_RETRY;
    return JOBQ_OUTCOME_SUCCESS;
}

static void one_that_fails_the_batch_fails_alone(void **unused)
{
    jobq_pg_handler h = batch_of(retries_all_for_7, 16);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;

    (void)unused;
    RUN("UPDATE jobq.queue SET max_attempts = 6");
    enqueue_numbers(16, 1);
    worker = start(&d);
    assert_true(becomes(60, 16, "SELECT (SELECT count(*) FROM jobq.history) +"
                                " (SELECT count(*) FROM jobq.failed)"));
    stop(worker);
    expect_text("7", "SELECT string_agg(payload::text, ' ') FROM jobq.failed");
    assert_in_range(number("SELECT max(attempt) FROM jobq.history WHERE state = 's'"), 1, 5);
}

/* The thread ends: what was said of a job is kept, the others have failed. */
static jobq_outcome quits(jobq_call *const *calls, int32_t count)
{
    int32_t i;

    for (i = 0; i < count; i++)
        if (number_of(calls[i]) == 1) calls[i]->outcome = JOBQ_OUTCOME_SUCCESS;
    if (ADD(runs) == 1) pthread_exit(NULL);
    return JOBQ_OUTCOME_SUCCESS;
}

static void a_batch_that_ends_its_thread_fails(void **unused)
{
    jobq_pg_handler h = batch_of(quits, 4);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;

    (void)unused;
    enqueue_numbers(3, 1);
    d.loop.threads = 1;
    worker = start(&d);
    assert_true(becomes(20, 3, "SELECT count(*) FROM jobq.history WHERE state = 's'"));
    stop(worker);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE attempt = 1"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE attempt = 2 AND"
                            " errors -> 0 ->> 'error' = 'the handler ended its thread'"), 2);
}

static jobq_outcome until_cancelled(jobq_call *const *calls, int32_t count)
{
    int32_t i, asked = -1;

    saw(count);
    for (i = 0; i < count; i++)
        jobq_call_progress(calls[i], number_of(calls[i]), jobq_str_from("waits"), i == 0);
    while (asked < 0) {
        for (i = 0; i < count && asked < 0; i++) {
            jobq_stop stop = jobq_call_stopping(calls[i], NULL);
            if (stop == JOBQ_STOP_CANCEL) asked = i;
            else if (stop != JOBQ_STOP_NONE) return JOBQ_OUTCOME_DISCARD;
        }
        nap_us(2000);
    }
    calls[asked]->outcome = JOBQ_OUTCOME_CANCELLED;
    return JOBQ_OUTCOME_SUCCESS;
}

static void a_cancel_request_reaches_one(void **unused)
{
    jobq_pg_handler h = batch_of(until_cancelled, 4);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;

    (void)unused;
    enqueue_numbers(4, 1);
    d.loop.threads = 1;
    worker = start(&d);
    assert_true(becomes(20, 10, "SELECT coalesce(sum(percent * 10), 0)::int FROM jobq.running"));
    RUN("SELECT jobq.cancel(id) FROM jobq.job WHERE payload = '3'");
    assert_true(becomes(20, 4, "SELECT count(*) FROM jobq.history"));
    stop(worker);
    expect_text("3", "SELECT string_agg(payload::text, ' ') FROM jobq.history WHERE state = 'c'");
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), 3);
}

/* -- what surrounds it -- */

static int befores, afters, fails, togethers;

static void before(void *user, const jobq_pg_report *report)
{
    (void)user;
    if (report->call != NULL) ADD(befores);
}

static void after(void *user, const jobq_pg_report *report)
{
    (void)user;
    ADD(afters);
    if (report->together == 6) ADD(togethers);
    if (number_of(report->call) == 1 && (report->outcome != JOBQ_OUTCOME_SUCCESS ||
                                         report->state != JOBQ_STATE_SUCCEEDED)) ADD(others);
    if (number_of(report->call) == 4 && report->state != JOBQ_STATE_CANCELLED) ADD(others);
}

static void failed(void *user, const jobq_pg_report *report)
{
    (void)user;
    if (number_of(report->call) == 2 &&
        jobq_str_equal(report->error, jobq_str_from("no such thing"))) ADD(fails);
}

static void succeeds_after(void *user, const jobq_pg_report *report)
{
    (void)user;
    if (report->state == JOBQ_STATE_SUCCEEDED && report->error.len == 0) ADD(afters);
}

static void counts_fails(void *user, const jobq_pg_report *report)
{
    (void)user;
    (void)report;
    ADD(fails);
}

static void hooks_hear_of_each_job(void **unused)
{
    jobq_pg_handler h = batch_of(various, 10);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    befores = afters = fails = togethers = 0;
    d.hooks.before = before;
    d.hooks.after = after;
    d.hooks.failed = failed;
    d.loop.threads = 1;
    enqueue_numbers(6, 1);
    work_off(&d);
    assert_int_equal(befores, 6);
    assert_int_equal(afters, 6);
    assert_int_equal(togethers, 6);
    assert_int_equal(fails, 1);
    assert_int_equal(GET(others), 0);
}

/* What it has completed itself has not failed, even in its last attempt. */
static void what_is_committed_in_the_last_attempt_has_not_failed(void **unused)
{
    jobq_pg_handler h = batch_of(all_in_one, 10);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    afters = fails = 0;
    d.hooks.after = succeeds_after;
    d.hooks.failed = counts_fails;
    RUN("UPDATE jobq.queue SET max_attempts = 1");
    enqueue_numbers(4, 1);
    work_off(&d);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), 4);
    assert_int_equal(afters, 4);
    assert_int_equal(fails, 0);
}

/* A host's event loop runs a batch as one handler; a lone job does not wait for ever. */
static void a_host_runs_batches(void **unused)
{
    jobq_pg_handler h = batch_of(all_in_one, 8);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;
    jobq_pg_error error;
    jobq_pg_stats stats;

    (void)unused;
    h.batch_wait_us = JOBQ_MILLISECONDS(20);
    d.loop.until = JOBQ_UNTIL_EMPTY;
    enqueue_numbers(9, 1);
    assert_int_equal(jobq_pg_worker_open(pg, &d, &worker, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_worker_wait(worker, &stats), JOBQ_OK);
    jobq_pg_worker_free(worker);
    assert_int_equal(stats.jobs.started, 9);
    assert_true(GET(calls_made) < 9 && GET(largest) > 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.rows"), 8); /* without 5 */
}

/* One that waits wakes a thread when its time has come, though nothing else happens. */
static void a_lone_job_is_run_after_its_wait(void **unused)
{
    jobq_pg_handler h = batch_of(various, 8);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;

    (void)unused;
    h.batch_wait_us = JOBQ_BATCH_WAIT_MAX;
    d.loop.heartbeat_us = 3 * SECOND;
    worker = start(&d);
    enqueue_numbers(1, 1);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history WHERE state = 's'"));
    stop(worker);
    assert_int_equal(GET(largest), 1);
}

static jobq_outcome waits_here(jobq_call *const *calls, int32_t count)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(calls[0], &error);
    jobq_pg_after other = {.job = 1};
    int32_t i;

    PQclear(PQexec(conn, "BEGIN"));
    for (i = 0; i < count; i++) calls[i]->outcome = jobq_pg_call_wait(calls[i], conn, &other, 1);
    return JOBQ_OUTCOME_SUCCESS;
}

static void who_is_in_a_batch_cannot_wait_for_others(void **unused)
{
    (void)unused;
    RUN("UPDATE jobq.queue SET max_attempts = 1");
    enqueue_numbers(2, 1);
    runs_off(waits_here, 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE errors::text LIKE"
                            " '%%it is in a batch%%'"), 2);
}

static jobq_error starts(jobq_pg_handler h, jobq_pg_error *error)
{
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;
    jobq_error code;

    d.loop.batch_max = 200;
    code = jobq_pg_worker_start(pg, &d, &worker, error);
    if (code == JOBQ_OK) jobq_pg_worker_stop(worker);
    if (code == JOBQ_OK) jobq_pg_worker_wait(worker, NULL);
    if (code == JOBQ_OK) jobq_pg_worker_free(worker);
    return code;
}

static void wrong_settings_are_refused(void **unused)
{
    jobq_pg_handler h = batch_of(various, 0);
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(starts(h, &error), JOBQ_OK);
    h.batch_max = 201;
    assert_int_equal(starts(h, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "batch_max: must not be more than loop.batch_max"));
    h.batch_max = 1001;
    assert_int_equal(starts(h, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "batch_max: must be from 1 to 1000"));
    h = batch_of(various, 0);
    h.batch_wait_us = JOBQ_BATCH_WAIT_MAX + 1;
    assert_int_equal(starts(h, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "batch_wait_us"));
    h = batch_of(various, 0);
    h.run[0] = succeed;
    assert_int_equal(starts(h, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "batch: must be given, or run; but not both"));
    h = handler_of("q", "k", succeed);
    h.batch_max = 2;
    assert_int_equal(starts(h, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "batch_max: needs batch"));
}

/* In a test of handlers, on a connection to a database. */
static void a_test_commits_for_all(void **unused)
{
    static const jobq_test_event events[] = {JOBQ_TEST_NOTHING, JOBQ_TEST_REFUSED,
                                             JOBQ_TEST_UNSURE, JOBQ_TEST_CRASH};
    const jobq_job_handler h = batch_of(all_in_one, 8);
    void *test_block = malloc(jobq_test_size());
    size_t e;
    int i;

    (void)unused;
    for (e = 0; e < COUNT(events); e++) {
        jobq_test *test = jobq_test_init(test_block, &h, 1);
        jobq_test_job job = {.queue = "q", .kind = "k", .payload = {"1", 1}};
        PGconn *conn = connected();
        RUN("DELETE FROM jobq.rows");
        jobq_test_conn(test, conn);
        for (i = 0; i < 4; i++) assert_true(jobq_test_enqueue(test, &job) > 0);
        jobq_test_fault(test, events[e]);
        jobq_test_run(test, JOBQ_HOURS(1));
        for (i = 1; i <= 4; i++)
            assert_int_equal(jobq_test_get(test, i)->job.state, JOBQ_STATE_SUCCEEDED);
        PQfinish(conn);
        assert_int_equal(number("SELECT count(*) FROM jobq.rows"), 4);
    }
    free(test_block);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_job_ends_by_itself, begin, all_stop),
        cmocka_unit_test_setup_teardown(calls_are_counted, begin, all_stop),
        cmocka_unit_test_setup_teardown(each_hands_its_payload_to_its_next_stage, begin, all_stop),
        cmocka_unit_test_setup_teardown(all_end_with_their_rows, begin, all_stop),
        cmocka_unit_test_setup_teardown(all_go_on_with_their_rows, begin, all_stop),
        cmocka_unit_test_setup_teardown(none_ends_if_one_is_lost, begin, all_stop),
        cmocka_unit_test_setup_teardown(none_ends_if_the_commit_fails, begin, all_stop),
        cmocka_unit_test_setup_teardown(jobs_are_locked_in_the_order_of_their_ids, begin, all_stop),
        cmocka_unit_test_setup_teardown(one_that_kills_its_worker_fails_alone, begin, all_stop),
        cmocka_unit_test_setup_teardown(one_that_hangs_fails_alone, begin, all_stop),
        cmocka_unit_test_setup_teardown(one_that_fails_the_batch_fails_alone, begin, all_stop),
        cmocka_unit_test_setup_teardown(a_batch_that_ends_its_thread_fails, begin, all_stop),
        cmocka_unit_test_setup_teardown(a_cancel_request_reaches_one, begin, all_stop),
        cmocka_unit_test_setup_teardown(hooks_hear_of_each_job, begin, all_stop),
        cmocka_unit_test_setup_teardown(what_is_committed_in_the_last_attempt_has_not_failed, begin,
                                        all_stop),
        cmocka_unit_test_setup_teardown(a_host_runs_batches, begin, all_stop),
        cmocka_unit_test_setup_teardown(a_lone_job_is_run_after_its_wait, begin, all_stop),
        cmocka_unit_test_setup_teardown(who_is_in_a_batch_cannot_wait_for_others, begin, all_stop),
        cmocka_unit_test_setup_teardown(wrong_settings_are_refused, begin, all_stop),
        cmocka_unit_test_setup_teardown(a_test_commits_for_all, begin, all_stop)};

    return cmocka_run_group_tests_name("batch", tests, pg_up, pg_down);
}
