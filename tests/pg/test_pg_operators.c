/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_operators.c -- what a person does to a live queue, from C and from SQL: every verb
 * against every state, filters in steps, pauses, policies, counts, and the peek (X12).
 */
#include "pg_work.h"

/* ---- one job --------------------------------------------------------------------------------- */

#define WORKER 101

static int64_t next_claim;

static void one_queue(void)
{
    pg_empty(NULL);
    register_worker(WORKER, 600 * SECOND);
    next_claim = 0;
}

/* A job of queue q in a state of that name; its id. */
static int64_t job_in(const char *state)
{
    jobq_pg_job plain = plain_job();
    jobq_job job;
    int64_t id;

    plain.key = "a-key";
    if (strcmp(state, "scheduled") == 0) plain.delay_us = 3600 * SECOND;
    id = enqueue_with(&plain);
    if (strcmp(state, "gone") == 0) {
        RUN("DELETE FROM jobq.job");
        RUN("DELETE FROM jobq.idempotency");
    }
    if (strcmp(state, "suspect") == 0) RUN("UPDATE jobq.job SET suspect = true");
    if (strcmp(state, "cancelled") == 0) jobq_pg_cancel(pg, NULL, ONE(id), NULL, NULL, NULL);
    if (strstr("running failed succeeded", state) == NULL) return id;
    job = claim_one(WORKER, ++next_claim, false);
    if (strcmp(state, "failed") == 0) settle_with(&job, JOBQ_EVENT_DISCARD, "broken");
    if (strcmp(state, "succeeded") == 0) settle_with(&job, JOBQ_EVENT_SUCCESS, NULL);
    return id;
}

static const char *const states[] = {"ready",  "scheduled", "suspect",   "running",
                                     "failed", "succeeded", "cancelled", "gone"};

/* The answer of each verb to a job in each of the states above; "-": a refusal, that names the
 * state. */
static const struct {
    const char *call;
    const char *answers[COUNT(states)];
} by_id[] = {
    {"cancel(%lld::int8)", {"cancelled", "cancelled", "cancelled", "requested", "-", "-",
                            "cancelled before", "-"}},
    {"revive(%lld::int8)", {"-", "-", "-", "-", "revived", "-", "-", "-"}},
    {"delete(%lld::int8)", {"deleted", "deleted", "deleted", "-", "deleted", "deleted", "deleted",
                            "-"}},
    {"reschedule(%lld::int8, now() + '1 day')", {"rescheduled", "rescheduled", "rescheduled",
                                                 "-", "-", "-", "-", "-"}},
    {"reschedule(%lld::int8)", {"rescheduled", "rescheduled", "rescheduled", "-", "-", "-", "-",
                                "-"}},
    {"prioritize(%lld::int8, 3)", {"prioritized", "prioritized", "prioritized", "-", "-", "-",
                                   "-", "-"}},
    {"move(%lld::int8, 'other')", {"moved", "moved", "moved", "-", "-", "-", "-", "-"}}};

/* A refused verb changes no row at all. */
static void every_verb_answers_every_state(void **unused)
{
    char call[64], query[96], *before, *after, *answer;
    size_t verb, s;

    (void)unused;
    for (verb = 0; verb < COUNT(by_id); verb++) {
        for (s = 0; s < COUNT(states); s++) {
            const char *wanted = by_id[verb].answers[s];
            bool refused = wanted[0] == '-' || strcmp(wanted, "cancelled before") == 0;
            one_queue();
            RUN("SELECT jobq.queue_set('other')");
            snprintf(call, sizeof call, by_id[verb].call, (long long)job_in(states[s]));
            if (wanted[0] == '-') {
                wanted = s == 1 || s == 2 ? "ready" : states[s];
            }
            before = everything();
            snprintf(query, sizeof query, "SELECT jobq.%s", call);
            answer = text_of("%s", query);
            after = everything();
            if (strcmp(answer, wanted) != 0 || (strcmp(before, after) == 0) != refused) {
                if (!(strstr(call, "reschedule") && !refused)) /* to now may be what it was */
                    fail_msg("%s of a %s job: %s", call, states[s], answer);
            }
            assert_string_equal(answer, wanted);
            assert_int_equal(number("SELECT jobq.audit()"), 0);
            free(before);
            free(after);
            free(answer);
        }
    }
}

/* The same through C: codes instead of words. */
static void c_says_what_sql_says(void **unused)
{
    jobq_pg_error error;
    int64_t id, count, requested;
    size_t s;

    (void)unused;
    for (s = 0; s < COUNT(states); s++) {
        bool ready = s < 3;
        jobq_error other = strcmp(states[s], "gone") ? JOBQ_ERROR_TRANSITION : JOBQ_ERROR_NOT_FOUND;
        jobq_error if_ready = ready ? JOBQ_OK : other;
        one_queue();
        assert_int_equal(jobq_pg_queue_set(pg, NULL, "other", NULL, &error), JOBQ_OK);
        id = job_in(states[s]);
        assert_int_equal(jobq_pg_change(pg, NULL, ONE(id), &(jobq_pg_changes){.run_now = true},
                                        NULL,
                                        &error), if_ready);
        if (!ready && s < 7) assert_string_equal(error.value, states[s]);
        assert_int_equal(jobq_pg_change(pg, NULL, ONE(id),
                                        &(jobq_pg_changes){.set_priority = true,
                                                           .priority = 9}, NULL, &error), if_ready);
        assert_int_equal(jobq_pg_change(pg, NULL, ONE(id), &(jobq_pg_changes){.target = "other"},
                                        NULL, &error), if_ready);
        count = requested = 7; /* untouched by an error */
        assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(id), &count, &requested, &error),
                         s < 4 ? JOBQ_OK : other);
        assert_int_equal(count, s < 3 ? 1 : s == 3 ? 0 : 7);
        assert_int_equal(requested, s < 3 ? 0 : s == 3 ? 1 : 7);
        assert_int_equal(jobq_pg_revive(pg, NULL, ONE(id), NULL, &error), s == 4 ? JOBQ_OK : other);
        count = 7;
        assert_int_equal(jobq_pg_delete(pg, NULL, ONE(id), &count, &error),
                         s == 3 || s == 7 ? other : JOBQ_OK);
        assert_int_equal(count, s == 3 || s == 7 ? 7 : 1);
        if (s == 3) assert_non_null(strstr(error.message, "cancel asks"));
    }
    assert_int_equal(jobq_pg_change(pg, NULL, ONE(1), &(jobq_pg_changes){.target = "nowhere"}, NULL,
                                    &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "no queue is called 'nowhere'"));
}

/* A key follows its job to another queue, or keeps it where it is; deleting frees it. */
static void a_key_moves_with_its_job(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    int64_t first, second;

    (void)unused;
    one_queue();
    first = job_in("ready");
    job.queue = "other";
    job.key = "a-key";
    second = enqueue_with(&job);
    assert_int_equal(jobq_pg_change(pg, NULL, ONE(first), &(jobq_pg_changes){.target = "other"},
                                    NULL, &error), JOBQ_ERROR_EXISTS);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE queue = 'q'"), 1);
    assert_int_equal(jobq_pg_delete(pg, NULL, ONE(second), NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_change(pg, NULL, ONE(first), &(jobq_pg_changes){.target = "other"},
                                    NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, &second, &error), JOBQ_ERROR_EXISTS);
    assert_int_equal(second, first);
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(first), NULL, NULL, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.idempotency WHERE ended_at IS NULL"), 0);
    assert_int_equal(jobq_pg_delete(pg, NULL, ONE(first), NULL, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.idempotency"), 0);
}

/* ---- many jobs ------------------------------------------------------------------------------- */

/* 200 jobs of queue q: even ones of kind k, odd ones of l; every fourth with a tag; ten are old.
 * And 50 of another queue, which nothing here may touch. */
static void two_queues(void)
{
    one_queue();
    RUN("SELECT jobq.enqueue('q', CASE WHEN n %% 2 = 0 THEN 'k' ELSE 'l' END, to_jsonb(n), headers "
        "=> CASE WHEN n %% 4 = 0 THEN '{\"tenant\": \"a\", \"x\": 1}'::jsonb END, stages => 1 + n "
        "%% 3, priority => n %% 5 - 2) FROM generate_series(1, 200) n");
    RUN("UPDATE jobq.job SET enqueued_at = now() - interval '1 day' WHERE payload <= '10'");
    RUN("SELECT jobq.enqueue('calm', 'k') FROM generate_series(1, 50)");
}

static jobq_pg_filter filter_of(const char *kind, int32_t at_most)
{
    jobq_pg_filter f;

    memset(&f, 0, sizeof f);
    f.queue = "q";
    f.kind = kind;
    f.at_most = at_most;
    return f;
}

/* Calls until it says 0; the sum. */
#define ALL(call)                                                                                  \
    do {                                                                                           \
        sum = 0;                                                                                   \
        calls = 0;                                                                                 \
        do {                                                                                       \
            assert_int_equal(call, JOBQ_OK);                                                       \
            assert_true(count <= f.at_most && ++calls < 100);                                      \
            sum += count;                                                                          \
        } while (count > 0);                                                                       \
    } while (0)

static void filters_take_what_matches_in_steps(void **unused)
{
    jobq_pg_filter f = filter_of("k", 30);
    int64_t count, sum, requested = 7;
    jobq_pg_error error;
    int calls;

    (void)unused;
    two_queues();
    ALL(jobq_pg_change(pg, NULL, &f, &(jobq_pg_changes){.set_priority = true, .priority = 9},
                       &count, &error));
    assert_int_equal(sum, 100);
    assert_int_equal(calls, 5);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE priority = 9 AND kind = 'k' AND "
                            "queue = 'q'"), 100);
    ALL(jobq_pg_change(pg, NULL, &f, &(jobq_pg_changes){.run_at_us = 4102444800 * SECOND}, &count,
                       &error));
    assert_int_equal(sum, 100);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE run_at = '2100-01-01 UTC'"), 100);
    ALL(jobq_pg_change(pg, NULL, &f, &(jobq_pg_changes){.run_now = true}, &count, &error));
    assert_int_equal(sum, 100);
    f.tags = jobq_str_from("{\"tenant\": \"a\"}");
    ALL(jobq_pg_change(pg, NULL, &f, &(jobq_pg_changes){.target = "calm"}, &count, &error));
    assert_int_equal(sum, 50);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs j JOIN jobq.kind k ON k.id = j.kind_id "
                            "JOIN jobq.queue q ON q.id = k.queue_id WHERE q.name = 'calm' AND "
                            "j.queue = 'calm' AND j.kind = 'k' AND k.queue_id = j.queue_id"), 100);
    assert_int_equal(number("SELECT stages_max FROM jobq.queue WHERE name = 'calm'"), 3);
    f = filter_of(NULL, 30);
    f.older_us = 3600 * SECOND;
    ALL(jobq_pg_cancel(pg, NULL, &f, &count, &requested, &error));
    assert_int_equal(sum, 8); /* of ten, two were moved */
    assert_int_equal(requested, 0);
    f.older_us = 0;
    f.state = JOBQ_STATE_CANCELLED;
    ALL(jobq_pg_delete(pg, NULL, &f, &count, &error));
    assert_int_equal(sum, 8);
    f.state = JOBQ_STATE_READY;
    ALL(jobq_pg_delete(pg, NULL, &f, &count, &error));
    assert_int_equal(sum, 142);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE queue <> 'calm'"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE queue = 'calm' AND priority < 9"),
                     50);
}

static void running_jobs_are_asked_once_and_failed_ones_revived(void **unused)
{
    jobq_pg_filter f = filter_of(NULL, 1000);
    int64_t count, requested;
    jobq_pg_error error;
    verb_batch batch;
    size_t i;

    (void)unused;
    one_queue();
    enqueue_count(30);
    assert_int_equal(claim_by(WORKER, 1, 20, false, &batch), JOBQ_OK);
    f.state = JOBQ_STATE_RUNNING;
    assert_int_equal(jobq_pg_cancel(pg, NULL, &f, &count, &requested, &error), JOBQ_OK);
    assert_int_equal(count, 0);
    assert_int_equal(requested, 20);
    f.state = JOBQ_STATE_NONE;
    assert_int_equal(jobq_pg_cancel(pg, NULL, &f, &count, &requested, &error), JOBQ_OK);
    assert_int_equal(count, 10);
    assert_int_equal(requested, 0);
    assert_int_equal(number("SELECT cardinality(cancel) FROM jobq.claim"), 20);
    assert_int_equal(number("SELECT cardinality(cancel) FROM jobq._heartbeat(%d, 1000000, '{}')",
                            WORKER), 20);
    for (i = 0; i < batch.count; i++) settle_with(&batch.jobs[i], JOBQ_EVENT_DISCARD, "no");
    verb_batch_clear(&batch);
    f.at_most = 15;
    assert_int_equal(jobq_pg_revive(pg, NULL, &f, &count, &error), JOBQ_OK);
    assert_int_equal(count, 15);
    assert_int_equal(jobq_pg_revive(pg, NULL, &f, &count, &error), JOBQ_OK);
    assert_int_equal(count, 5);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE state = 'ready' AND attempt = 0"),
                     20);
}

/* A row that someone holds is left; nobody waits. */
static void what_others_hold_is_skipped(void **unused)
{
    static const char *const calls[] = {
        "(jobq.cancel('q')).cancelled", "jobq.prioritize('q', 5)", "jobq.move('q', 'calm')",
        "jobq.reschedule('q', now() + '1 day')", "jobq.delete('q', 'ready')"};
    PGconn *other = connected();
    size_t i;

    (void)unused;
    one_queue();
    RUN("SELECT jobq.queue_set('calm')");
    enqueue_count(10);
    PQclear(sql(other, "BEGIN"));
    PQclear(sql(other, "SELECT FROM jobq.job ORDER BY id LIMIT 4 FOR UPDATE"));
    for (i = 0; i < COUNT(calls); i++) {
        RUN("BEGIN");
        RUN("SET LOCAL statement_timeout = '20s'");
        assert_int_equal(number("SELECT %s", calls[i]), 6);
        RUN("ROLLBACK");
    }
    PQfinish(other);
}

/* Unknown names and states are errors with a hint, not new queues. */
static void misspelt_names_are_refused(void **unused)
{
    static const char *const calls[] = {"cancel('mali')",
                                        "revive('mali')",
                                        "delete('mali', 'failed')",
                                        "delete('q', NULL)",
                                        "delete('q', 'running')",
                                        "cancel('q', state => 'failed')",
                                        "cancel(NULL::text)",
                                        "cancel('q', kind => 'typo')",
                                        "prioritize('q', 10)",
                                        "prioritize('q', NULL)",
                                        "prioritize(1::int8, NULL)",
                                        "move('q', 'nowhere')",
                                        "move('q', 'q')",
                                        "reschedule('q', 'infinity')",
                                        "pause('mali')",
                                        "pause('q', 'typo')",
                                        "resume('mali')",
                                        "queue_set('-bad-')",
                                        "queue_set('q', max_attempts => 0)",
                                        "queue_set('q', backoff => 'wild')",
                                        "queue_set('q', reset => true)",
                                        "queue_set('q', kind => 'k', max_crashes => 1)",
                                        "queue_set('q', kind => 'k', failed_keep => '1 s')",
                                        "queue_set('q', kind => 'k', key_keep => '1 s')",
                                        "queue_set('q', kind => 'k', message_max => 1)",
                                        "queue_set('q', kind => 'k', payload_max => 1)",
                                        "queue_set('q', kind => 'k', kinds => '{l}')",
                                        "queue_set('q', kind => 'k', attempts_span_stages => true)",
                                        "queue_set('q', kind => 'k', max_attempts => 0)",
                                        "queue_set('q', kind => 'k', backoff => 'wild')",
                                        "queue_set('q', kind => 'k', backoff_floor => '2 h')"};
    size_t i;

    (void)unused;
    one_queue();
    enqueue_count(1);
    for (i = 0; i < COUNT(calls); i++) {
        char call[128], *text;
        PGresult *res;
        snprintf(call, sizeof call, "SELECT jobq.%s", calls[i]);
        text = for_schema(call, schema);
        res = PQexec(db, text);
        if (PQresultStatus(res) != PGRES_FATAL_ERROR) fail_msg("taken: %s", calls[i]);
        if (jobq_pg_classify(PQresultErrorField(res, PG_DIAG_SQLSTATE)) != JOBQ_ERROR_INVALID)
            fail_msg("%s: %s", calls[i], PQresultErrorMessage(res));
        PQclear(res);
        free(text);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.queue"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE state = 'ready'"), 1);
}

/* ---- on a live system ------------------------------------------------------------------------ */

static int runs_k, runs_l;

static jobq_outcome run_k(jobq_call *call)
{
    (void)call;
    ADD(runs_k);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome run_l(jobq_call *call)
{
    (void)call;
    ADD(runs_l);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_pg_worker_desc two_kinds(jobq_pg_handler *handlers)
{
    handlers[0] = handler_of("q", "k", run_k);
    handlers[1] = handler_of("q", "l", run_l);
    SET(runs_k, 0);
    SET(runs_l, 0);
    return work_of(handlers, 2);
}

/* Workers drain while operators push every verb at the same jobs, from two sides. Nobody fails, the
 * server counts no deadlock, and every job is somewhere. */
static void operators_and_workers_do_not_stand_in_each_others_way(void **unused)
{
    static const char *const calls[] = {
        "jobq.prioritize('q', %d, at_most => 300)", "jobq.move('q', 'side', at_most => %d00)",
        "jobq.move('side', 'q', at_most => %d50)", "jobq.cancel('q', kind => 'l', at_most => %d)",
        "jobq.reschedule('q', now() + '%d ms', at_most => 300)", "jobq.revive('q', at_most => %d)"};
    jobq_pg_handler handlers[2];
    jobq_pg_worker_desc d = two_kinds(handlers);
    pid_t pids[2];
    long deadlocks;
    int i, n, status, count = check_slow() ? 1000 : 8000;

    (void)unused;
    pg_empty(NULL);
    RUN("SELECT jobq.queue_set('q'), jobq.queue_set('side')");
    RUN("SELECT jobq.enqueue('q', CASE WHEN n %% 2 = 0 THEN 'k' ELSE 'l' END, to_jsonb(n)) "
        "FROM generate_series(1, %d) n", count);
    deadlocks = number("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()");
    for (i = 0; i < 2; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            PGconn *conn = connected();
            for (n = 0; n < 60; n++) {
                char call[128], query[160], *text;
                PGresult *res;
                snprintf(call, sizeof call, calls[(n + i) % (int)COUNT(calls)], 1 + n % 9);
                snprintf(query, sizeof query, "SELECT %s", call);
                text = for_schema(query, schema);
                res = PQexec(conn, text);
                if (PQresultStatus(res) != PGRES_TUPLES_OK) {
                    fprintf(stderr, "%s: %s\n", text, PQerrorMessage(conn));
                    _exit(1);
                }
                PQclear(res);
                free(text);
            }
            _exit(0);
        }
    }
    start(&d);
    start(&d);
    for (i = 0; i < 2; i++) {
        waitpid(pids[i], &status, 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    RUN("SELECT jobq.move('side', 'q', at_most => 100000)");
    RUN("SELECT jobq.reschedule('q', at_most => 100000)");
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job"));
    all_stop(NULL);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), count);
    assert_int_equal(GET(runs_k) + GET(runs_l),
                     number("SELECT count(*) FROM jobq.history WHERE state = 's'"));
    assert_int_equal(number("SELECT deadlocks FROM pg_stat_database WHERE datname = "
                            "current_database()"), deadlocks);
}

/* Whoever cancels many jobs may hold the row of a claim whose jobs have ended since. */
static void a_heartbeat_does_not_wait_for_an_operator(void **unused)
{
    PGconn *operator_ = connected();
    PGresult *res;
    jobq_job job;

    (void)unused;
    pg_empty(NULL);
    RUN("SELECT jobq.enqueue('q', 'k')");
    register_worker(101, 60 * SECOND);
    job = claim_one(101, 1, false);
    PQclear(sql(operator_, "BEGIN"));
    PQclear(sql(operator_, "SELECT FROM jobq.claim WHERE worker = 101 FOR UPDATE"));
    assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    RUN("SET lock_timeout = '2s'");
    res = sql(db, "SELECT alive FROM jobq._heartbeat(101, 60000000, '{1}')");
    assert_string_equal(PQgetvalue(res, 0, 0), "t");
    PQclear(res);
    PQclear(sql(operator_, "ROLLBACK"));
    PQfinish(operator_);
    RUN("SELECT jobq._deregister(101)"); /* which takes the row along */
    assert_int_equal(number("SELECT count(*) FROM jobq.claim"), 0);
}

/* Without a number, no job is left out. */
static void at_most_may_be_null(void **unused)
{
    (void)unused;
    pg_empty(NULL);
    RUN("SELECT jobq.enqueue('q', 'k'), jobq.enqueue('q', 'k', line => 'a')");
    register_worker(101, 60 * SECOND);
    claim_one(101, 1, false);
    RUN("SELECT jobq.enqueue('q', 'k')");
    assert_int_equal(number("SELECT 10 * cancelled + requested FROM jobq.cancel("
                            "'q', at_most => NULL)"), 21);
}

static void a_paused_queue_and_a_paused_kind_stand_still(void **unused)
{
    jobq_pg_handler handlers[2];
    jobq_pg_worker_desc d = two_kinds(handlers);
    jobq_pg_queue_desc desc = {.paused = JOBQ_PG_ON};
    jobq_pg_error error;

    (void)unused;
    pg_empty(NULL);
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &desc, &error), JOBQ_OK);
    RUN("SELECT jobq.enqueue('q', 'k')");
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.sleeper")); /* it looked, and sleeps */
    assert_int_equal(GET(runs_k), 0);
    desc.paused = JOBQ_PG_OFF;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &desc, &error), JOBQ_OK);
    assert_true(reaches(20, &runs_k, 1));
    desc = (jobq_pg_queue_desc){.kind = "k", .paused = JOBQ_PG_ON};
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &desc, &error), JOBQ_OK);
    assert_int_equal(number("SELECT cardinality(paused_kinds) FROM jobq.queues"), 1);
    all_hear();
    RUN("SELECT jobq.enqueue('q', 'k') FROM generate_series(1, 20)");
    RUN("SELECT jobq.enqueue('q', 'l') FROM generate_series(1, 20)");
    assert_true(reaches(20, &runs_l, 20));
    assert_int_equal(GET(runs_k), 1);
    assert_int_equal(number("SELECT ready FROM jobq.queues WHERE queue = 'q'"), 20);
    assert_int_equal(number("SELECT count(*) FROM jobq.peek()"), 0);
    desc.paused = JOBQ_PG_OFF;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &desc, &error), JOBQ_OK);
    assert_true(reaches(20, &runs_k, 21));
}

/* ---- policies -------------------------------------------------------------------------------- */

static void what_is_kept_for_ever_stops_no_housekeeping(void **unused)
{
    (void)unused;
    pg_empty(NULL);
    RUN("SELECT jobq.queue_set('q', failed_keep => '10000 years', key_keep => '100000 years')");
    assert_int_equal(number("SELECT jobq.prune(10)"), 0);
}

static void zero_leaves_a_policy_as_it_is(void **unused)
{
    static const char *const kinds[] = {"one", "two"};
    jobq_pg_queue_desc d;
    jobq_pg_error error;

    (void)unused;
    pg_empty(NULL);
    memset(&d, 0, sizeof d);
    d.max_attempts = 7;
    d.backoff = jobq_backoff_seed();
    d.timeout_us = 30 * SECOND;
    d.history = JOBQ_PG_OFF;
    d.attempts_span_stages = JOBQ_PG_ON;
    d.key_keep_us = 60 * SECOND;
    d.kinds = kinds;
    d.kind_count = 2;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_OK);
    memset(&d, 0, sizeof d);
    d.max_crashes = 9;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_OK);
    expect_text("(7,9,exponential,60000000,3600000000,60000000,250,30000000,1,t,f,\"30 days\","
                "00:01:00)",
                "SELECT ROW(max_attempts, max_crashes, backoff_curve, backoff_base_us, "
                "backoff_cap_us, backoff_floor_us, backoff_jitter_permille, timeout_us, "
                "stages_max, attempts_span_stages, history, failed_keep, key_keep)::text "
                "FROM jobq.queue");
    assert_int_equal(number("SELECT count(*) FROM jobq.kind"), 2);
    d.timeout_us = JOBQ_NEVER;
    d.history = JOBQ_PG_ON;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.queue WHERE timeout_us IS NULL AND history"),
                     1);
    RUN("SELECT jobq.queue_set('q', backoff => 'linear', backoff_base => '1 second', "
        "backoff_floor => '0', backoff_jitter => 0.1, timeout => '5 minutes')");
    assert_int_equal(number("SELECT count(*) FROM jobq.queue WHERE backoff_curve = 'linear' AND "
                            "backoff_base_us = 1000000 AND backoff_jitter_permille = 100 AND "
                            "timeout_us = 300000000 AND max_attempts = 7"), 1);
    d.message_max = -1;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "message_max");
}

/* Of a queue and of a kind; JOBQ_PG_UNLIMITED takes it away, for a kind also its queue's. */
static void snoozes_have_a_limit(void **unused)
{
    static const char policies[] =
        "SELECT string_agg(concat_ws(' ', snoozes_max, kind_id), ', ') FROM "
        "jobq._policies('{1}', 4711)";
    jobq_pg_queue_desc d;
    jobq_pg_error error;

    (void)unused;
    pg_empty(NULL);
    RUN("INSERT INTO jobq.queue (id, name) VALUES (1, 'q')");
    RUN("INSERT INTO jobq.kind (id, queue_id, queue, payload_max, name) "
        "VALUES (7, 1, 'q', 1048576, 'k')");
    RUN("SELECT jobq._register(4711, 'w', 60000000, '{q}', '{1}', '{k}')");
    expect_text("0", policies);
    memset(&d, 0, sizeof d);
    d.snoozes_max = 5;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_OK);
    expect_text("5", policies);
    d.kind = "k";
    d.snoozes_max = JOBQ_PG_UNLIMITED;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_OK);
    expect_text("5, 0 7", policies);
    d.snoozes_max = 3;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_OK);
    expect_text("5, 3 7", policies);
    d.snoozes_max = 0;
    d.reset = true;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_OK);
    expect_text("5", policies);
    RUN("SELECT jobq.queue_set('q', snoozes_max => 0)");
    expect_text("0", policies);
    d.snoozes_max = -2;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "snoozes_max");
}

/* From C and from SQL; what is not set is as the queue has it, also when that changes later. */
static void a_kind_has_what_differs_from_its_queue(void **unused)
{
    static const char row[] =
        "SELECT ROW(max_attempts, timeout_us, history, backoff_curve, backoff_base_us, "
        "backoff_cap_us, backoff_floor_us, backoff_jitter_permille)::text FROM jobq.kind "
        "WHERE name = 'k'";
    static const char policies[] =
        "SELECT string_agg(concat_ws(' ', max_attempts, backoff_base_us, timeout_us, kind_id), "
        "', ') FROM jobq._policies('{1}', 4711)";
    jobq_pg_queue_desc d;
    jobq_pg_error error;

    (void)unused;
    pg_empty(NULL);
    RUN("INSERT INTO jobq.queue (id, name) VALUES (1, 'q')");
    memset(&d, 0, sizeof d);
    d.kind = "k";
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_OK);
    RUN("UPDATE jobq.kind SET id = 7");
    RUN("SELECT jobq._register(4711, 'w', 60000000, '{q}', '{1}', '{k}')");
    expect_text("(,,,,,,,)", row);
    expect_text("20 5000000 0", policies);
    d.max_attempts = 3;
    d.timeout_us = JOBQ_NEVER;
    d.history = JOBQ_PG_OFF;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_OK);
    expect_text("(3,0,f,,,,,)", row);
    RUN("SELECT jobq.queue_set('q', timeout => '1 minute', backoff_base => '2 seconds')");
    expect_text("20 2000000 60000000, 3 2000000 0 7", policies);
    RUN("SELECT jobq.queue_set('q', kind => 'k', backoff => 'linear', timeout => '2 seconds')");
    RUN("SELECT jobq.queue_set('q', backoff_base => '1 second')");
    expect_text("(3,2000000,f,linear,2000000,3600000000,0,250)", row);
    expect_text("20 1000000 60000000, 3 2000000 2000000 7", policies);
    RUN("SELECT jobq.queue_set('q', kind => 'other', max_attempts => 1)"); /* of another worker */
    expect_text("20 1000000 60000000, 3 2000000 2000000 7", policies);
    memset(&d, 0, sizeof d);
    d.kind = "k";
    d.reset = true;
    d.max_attempts = 4;
    d.history = JOBQ_PG_ON;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_OK);
    expect_text("(4,,t,,,,,)", row);
    RUN("SELECT jobq.queue_set('q', kind => 'k', reset => true)");
    expect_text("(,,,,,,,)", row);
}

/* Workers read policies again when the number changes that a heartbeat brings. */
static void the_policy_of_a_kind_is_news(void **unused)
{
    static const char *const changes[] = {
        "max_attempts => 5", "max_attempts => 6", "timeout => '5 seconds'", "timeout => '0'",
        "backoff => 'constant'", "backoff_jitter => 0.5", "snoozes_max => 5", "reset => true"};
    int64_t before, after, first;
    size_t i;

    (void)unused;
    pg_empty(NULL);
    RUN("SELECT jobq._register(4711, 'w', 60000000, '{q}', '{1}', '{k}')");
    RUN("SELECT jobq.queue_set('q', kind => 'other', max_attempts => 1)");
    first = before = number("SELECT policy FROM jobq._heartbeat(4711, 60000000, '{}')");
    for (i = 0; i < COUNT(changes); i++, before = after) {
        RUN("SELECT jobq.queue_set('q', kind => 'k', %s)", changes[i]);
        after = number("SELECT policy FROM jobq._heartbeat(4711, 60000000, '{}')");
        assert_true(after != before);
    }
    assert_true(after == first);
    RUN("SELECT jobq.queue_set('q', kind => 'other', max_attempts => 2)");
    assert_true(number("SELECT policy FROM jobq._heartbeat(4711, 60000000, '{}')") == first);
}

static void what_is_the_queues_is_no_kinds(void **unused)
{
    static const jobq_pg_queue_desc wrong[] = {
        {.kind = "k", .max_crashes = 1}, {.kind = "k", .attempts_span_stages = JOBQ_PG_OFF},
        {.kind = "k", .failed_keep_us = 1}, {.kind = "k", .key_keep_us = 1},
        {.kind = "k", .message_max = 1}, {.kind = "k", .payload_max = 1},
        {.kind = "-"}, {.reset = true}};
    static const char *const fields[] = {"max_crashes", "attempts_span_stages", "failed_keep_us",
                                         "key_keep_us", "message_max", "payload_max", "kind",
                                         "reset"};
    jobq_pg_error error;
    size_t i;

    (void)unused;
    one_queue();
    for (i = 0; i < COUNT(wrong); i++) {
        assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &wrong[i], &error), JOBQ_ERROR_INVALID);
        assert_string_equal(error.field, fields[i]);
    }
}

/* The window of an idempotency key is its queue's. */
static void a_queue_says_how_long_a_key_is_remembered(void **unused)
{
    jobq_pg_error error;
    int64_t id;

    (void)unused;
    one_queue();
    RUN("SELECT jobq.queue_set('q', key_keep => '1 hour')");
    id = job_in("succeeded");
    assert_int_equal(number("SELECT jobq.enqueue('q', 'k', key => 'a-key')"), id);
    RUN("UPDATE jobq.idempotency SET ended_at = now() - interval '61 minutes'");
    assert_true(number("SELECT jobq.enqueue('q', 'k', key => 'a-key')") != id);
    assert_int_equal(jobq_pg_cancel(pg, NULL, &(jobq_pg_filter){.queue = "q"}, NULL, NULL,
                                         &error), JOBQ_OK);
    RUN("UPDATE jobq.idempotency SET ended_at = now() - interval '61 minutes'");
    RUN("SELECT jobq.prune(100)");
    assert_int_equal(number("SELECT count(*) FROM jobq.idempotency"), 0);
}

/* ---- looking --------------------------------------------------------------------------------- */

static void the_views_tell_what_is(void **unused)
{
    jobq_pg_queue_row c;
    verb_batch batch;
    jobq_job job;
    int i;

    (void)unused;
    one_queue();
    RUN("UPDATE jobq.ring SET since = now()"); /* two jobs in a whole minute would round to 0 */
    enqueue_count(40);
    RUN("UPDATE jobq.job SET run_at = now() - interval '1 hour'");
    RUN("SELECT jobq.enqueue('q', 'k', delay => '1 hour') FROM generate_series(1, 7)");
    RUN("SELECT jobq.enqueue('q', 'k', stages => 3)");
    RUN("UPDATE jobq.job SET run_at = 'infinity' WHERE stages = 3");
    for (i = 0; i < 5; i++) {
        job = claim_one(WORKER, ++next_claim, false);
        settle_with(&job, i < 2 ? JOBQ_EVENT_SUCCESS : JOBQ_EVENT_DISCARD, "broken");
    }
    job = claim_one(WORKER, ++next_claim, false);
    settle_with(&job, JOBQ_EVENT_RETRY, "first trouble");
    RUN("UPDATE jobq.job SET run_at = now() - interval '2 hours' WHERE id = %lld",
        (long long)job.id);
    job = claim_one(WORKER, ++next_claim, false);
    settle_with(&job, JOBQ_EVENT_DISCARD, "second trouble");
    assert_int_equal(claim_by(WORKER, ++next_claim, 4, false, &batch), JOBQ_OK);
    RUN("UPDATE jobq.job SET suspect = true WHERE id = (SELECT max(id) FROM jobq.job WHERE state = "
        "'r' AND run_at < now())");
    assert_int_equal(counts_of("q", &c), JOBQ_OK);
    assert_int_equal(c.ready, 29);
    assert_int_equal(c.running, 4);
    assert_int_equal(c.scheduled, 7);
    assert_int_equal(c.parked, 1);
    assert_int_equal(c.suspects, 1);
    assert_int_equal(c.failed, 4);
    assert_int_equal(c.failed_1h, 4);
    assert_int_equal(c.workers, 1);
    assert_in_range(c.late_us, 3600 * SECOND, 3700 * SECOND);
    assert_true(c.done_per_s > 0 && c.exact && !c.paused);
    assert_int_equal(number("SELECT running FROM jobq.workers"), 4);
    assert_int_equal(number("SELECT jobs[1] FROM jobq.workers"), batch.jobs[0].id);
    assert_int_equal(number("SELECT count(*) FROM jobq.failures WHERE error = 'second trouble' AND "
                            "errors ~ 'stage 0, attempt 1: first trouble\n.*stage 0, attempt 2: "
                            "second trouble$'"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs"), 48);
    assert_int_equal(counts_of("p", &c), JOBQ_ERROR_NOT_FOUND);
    verb_batch_clear(&batch);
}

/* Beyond 10,000 it is the planner's estimate, and says so; and the cost does not grow. */
static void counts_beyond_ten_thousand_are_estimates(void **unused)
{
    int tries = 0;
    jobq_pg_queue_row c;

    (void)unused;
    one_queue();
    RUN("INSERT INTO jobq.kind (queue_id, queue, payload_max, name) SELECT id, name, "
        "payload_max, 'k' FROM jobq.queue WHERE name = 'q'");
    RUN("INSERT INTO jobq.job (queue_id, kind_id) SELECT q.id, k.id FROM jobq.queue q, jobq.kind k,"
        " generate_series(1, 60000)");
    RUN("ANALYZE jobq.job");
    do { /* statistics come when the server likes */
        nap_us(10000);
        assert_int_equal(counts_of("q", &c), JOBQ_OK);
    } while (c.exact && ++tries < 2000);
    assert_false(c.exact);
    assert_in_range(c.ready, 50000, 70000);
    assert_int_equal(c.scheduled, 0);
}

/* ---- peek (X12) ------------------------------------------------------------------------------ */

/* Claims n jobs of queue q the way a loop does: priorities, then later stages. */
static size_t claimed_ids(int64_t *ids, int32_t n, bool suspects)
{
    jobq_lane lanes[57];
    verb_claim_desc d;
    verb_batch batch;
    jobq_pg_error error;
    size_t i, count;

    memset(&d, 0, sizeof d);
    memset(lanes, 0, sizeof lanes);
    for (i = 0; i < COUNT(lanes); i++) {
        lanes[i].queue = (int32_t)number("SELECT id FROM jobq.queue WHERE name = 'q'");
        lanes[i].priority = (int16_t)((int)i / 3 - 9);
        lanes[i].stage = (int16_t)(2 - i % 3);
        lanes[i].after_at_us = INT64_MIN;
    }
    d.worker = WORKER;
    d.number = ++next_claim;
    d.limit = n;
    d.lanes = lanes;
    d.lane_count = COUNT(lanes);
    d.suspects = suspects;
    assert_int_equal(verb_claim(pg, NULL, &d, &batch, &error), JOBQ_OK);
    count = batch.count;
    for (i = 0; i < count; i++) ids[i] = batch.jobs[i].id;
    verb_batch_clear(&batch);
    return count;
}

/* The id in a row of peek. */
static int64_t peeked(const PGresult *res, int row) { return atoll(PQgetvalue(res, row, 0)); }

static int by_value(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;

    return left < right ? -1 : left > right;
}

/* A motley crowd; peek foretells the claims, of which the last ones are suspects, one by one. */
static void peek_foretells_the_claim(void **unused)
{
    int64_t seen[100], taken[100];
    PGresult *res;
    size_t count, i, n;
    int round;

    (void)unused;
    for (round = 0; round < 5; round++) {
        one_queue();
        RUN("SELECT setseed(%g)", round / 10.0);
        RUN("SELECT jobq.enqueue('q', CASE WHEN n %% 3 = 0 THEN 'k' ELSE 'l' END, to_jsonb(n), "
            "priority => (random() * 18)::int - 9, stages => 3, delay => CASE WHEN random() < 0.2 "
            "THEN interval '1 h' END) FROM generate_series(1, 60) n");
        RUN("UPDATE jobq.job SET stage = (random() * 2)::int, run_at = CASE WHEN random() < 0.5 "
            "THEN run_at - interval '1 min' * (random() * 5)::int ELSE run_at END, suspect = "
            "random() < 0.1");
        res = sql(db, "SELECT id, payload, queue, kind FROM jobq.peek(at_most => 100)");
        count = (size_t)PQntuples(res);
        assert_in_range(count, 20, 60);
        for (i = 0; i < count; i++) {
            seen[i] = peeked(res, (int)i);
            assert_string_equal(PQgetvalue(res, (int)i, 2), "q");
            assert_string_equal(PQgetvalue(res, (int)i, 3),
                                atoi(PQgetvalue(res, (int)i, 1)) % 3 == 0 ? "k" : "l");
        }
        PQclear(res);
        n = claimed_ids(taken, 100, false);
        for (i = n; claimed_ids(taken + i, 100, true) == 1;) i++;
        assert_int_equal(i, count);
        /* One claim answers its rows in the table's order: as sets here, in order below. */
        qsort(seen, n, sizeof *seen, by_value);
        qsort(taken, n, sizeof *taken, by_value);
        assert_memory_equal(seen, taken, count * sizeof *seen);
    }
}

static void peek_is_in_claiming_order(void **unused)
{
    int64_t taken;
    long next;
    int n;

    (void)unused;
    two_queues();
    RUN("SELECT jobq.pause('calm')");
    for (n = 0; n < 40; n++) {
        next = number("SELECT id FROM jobq.peek(at_most => 1)");
        assert_int_equal(claimed_ids(&taken, 1, false), 1);
        assert_int_equal(next, taken);
    }
}

static void peek_only_reads(void **unused)
{
    char *before, *after, *five;

    (void)unused;
    two_queues();
    before = everything();
    RUN("BEGIN");
    RUN("SET TRANSACTION READ ONLY");
    five = text_of("SELECT array_agg(id) FROM jobq.peek('{q}', 5)");
    assert_int_equal(number("SELECT cardinality('%s'::bigint[])", five), 5);
    assert_int_equal(number("SELECT count(*) FILTER (WHERE id <> ALL ('%s')) FROM"
                            " jobq.peek('{q}', 195, '%s')", five, five), 195);
    assert_int_equal(number("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND "
                            "(mode <> 'AccessShareLock' AND locktype <> 'virtualxid')"), 0);
    RUN("COMMIT");
    assert_int_equal(number("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND "
                            "relation = 'jobq.job'::regclass"), 0);
    after = everything();
    assert_string_equal(before, after);
    free(before);
    free(after);
    free(five);
}

/* -- why a job does not run -- */

static const char *explained(int64_t id)
{
    static char text[300];
    jobq_pg_error error;

    if (jobq_pg_explain(pg, NULL, id, text, sizeof text, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    return text;
}

static void explain_names_what_is_in_the_way(void **unused)
{
    jobq_pg_job plain = plain_job(), keyed = plain;
    int64_t first, second;
    char text[80];

    (void)unused;
    one_queue();
    first = job_in("ready");
    assert_string_equal(explained(first), "no living worker has its kind");
    have_all_kinds();
    assert_string_equal(explained(first), "a worker may take it now");
    second = enqueue_with(&plain);
    assert_string_equal(explained(second), "1 job is ahead of it");
    RUN("SELECT jobq.pause('q')");
    assert_string_equal(explained(second), "its queue is paused");
    RUN("SELECT jobq.pause('q', 'k')");
    assert_string_equal(explained(second), "its queue is paused\nits kind is paused");
    RUN("SELECT jobq.resume('q'), jobq.resume('q', 'k')");
    RUN("UPDATE jobq.job SET run_at = 'infinity' WHERE id = %lld", (long long)second);
    assert_string_equal(explained(second), "it is parked: no living worker has its kind");
    RUN("UPDATE jobq.job SET run_at = '2100-01-01 00:00Z' WHERE id = %lld", (long long)second);
    assert_memory_equal(explained(second), "it is not due before 2100-01-01", 31);
    assert_int_equal(number("SELECT count(*) FROM jobq.explain_job(%lld) WHERE until ="
                            " '2100-01-01 00:00Z'", (long long)second), 1);
    RUN("UPDATE jobq.job SET run_at = enqueued_at, suspect = true, alone = true WHERE id = %lld",
        (long long)second);
    assert_memory_equal(explained(second), "it runs only on a worker that holds no other job", 48);
    RUN("UPDATE jobq.worker SET dead_at = now()");
    assert_string_equal(explained(first), "no living worker serves its queue");
    RUN("UPDATE jobq.worker SET dead_at = NULL");
    claim_one(WORKER, ++next_claim, false);
    assert_memory_equal(explained(first), "it runs, since ", 15);
    keyed.key = "a-key";
    keyed.on_known = JOBQ_KNOWN_REPLACE;
    second = enqueue_with(&keyed);
    snprintf(text, sizeof text, "it waits for the end of job %lld", (long long)first);
    assert_string_equal(explained(second), text);
}

/* The row of a job that runs, or its key, locked by somebody who does not commit. */
static void explain_names_who_keeps_a_result_waiting(void **unused)
{
    static const char *const locks[] = {"SELECT FROM jobq.job FOR UPDATE",
                                        "SELECT FROM jobq.idempotency FOR UPDATE",
                                        "SAVEPOINT a; SELECT FROM jobq.job FOR UPDATE"};
    PGconn *holder = connected();
    jobq_pg_job keyed = plain_job();
    char text[160];
    int64_t id;
    size_t i;

    (void)unused;
    one_queue();
    have_all_kinds();
    keyed.key = "a-key";
    id = enqueue_with(&keyed);
    claim_one(WORKER, ++next_claim, false);
    PQclear(sql(holder, "SET application_name = 'producer'"));
    snprintf(text, sizeof text, "\nits result cannot be written before the transaction of session "
             "%d (producer) ends, which has locked its row or key", PQbackendPID(holder));
    for (i = 0; i < COUNT(locks); i++) {
        PQclear(sql(holder, "BEGIN; %s", locks[i]));
        assert_non_null(strstr(explained(id), text));
        PQclear(PQexec(holder, "ROLLBACK"));
        assert_null(strchr(explained(id), '\n'));
    }
    PQfinish(holder);
}

static void explain_tells_what_became_of_a_job(void **unused)
{
    static const char *const ends[][2] = {
        {"failed", "it has ended: failed"}, {"succeeded", "it has ended: succeeded"},
        {"cancelled", "it has ended: cancelled"},
        {"gone", "it has ended and is no longer kept, or it was deleted or never committed"}};
    char text[4];
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(ends); i++) {
        one_queue();
        assert_string_equal(explained(job_in(ends[i][0])), ends[i][1]);
    }
    assert_string_equal(explained(INT64_MAX), "no job has this id");
    assert_int_equal(jobq_pg_explain(pg, NULL, INT64_MAX, text, 0, NULL), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_explain(pg, NULL, INT64_MAX, text, sizeof text, NULL), JOBQ_OK);
    assert_string_equal(text, "no ");
}

/* The number of jobs ahead is the job's place in the order in which peek lists them. */
static void explain_counts_the_jobs_ahead(void **unused)
{
    PGresult *res;
    int i;

    (void)unused;
    one_queue();
    RUN("SELECT setseed(0.5)");
    RUN("SELECT jobq.enqueue('q', 'k', priority => (random() * 18)::int - 9, stages => 3)"
        " FROM generate_series(1, 60) n");
    have_all_kinds();
    RUN("UPDATE jobq.job SET stage = (random() * 2)::int,"
        " run_at = run_at - interval '1 min' * (random() * 5)::int");
    res = sql(db, "SELECT id FROM jobq.peek(at_most => 100)");
    assert_int_equal(PQntuples(res), 60);
    for (i = 0; i < 60; i++) {
        char text[80];
        snprintf(text, sizeof text, i == 0 ? "a worker may take it now"
                 : i == 1 ? "1 job is ahead of it" : "%d jobs are ahead of it", i);
        assert_string_equal(explained(peeked(res, i)), text);
    }
    PQclear(res);
    RUN("SELECT jobq._enqueue_many('p', '{k}', NULL, NULL, p_count => 10001)");
    RUN("UPDATE jobq.worker SET queues = queues || (SELECT id FROM jobq.queue WHERE name = 'p')");
    have_all_kinds();
    assert_string_equal(explained(number("SELECT max(id) FROM jobq.job")),
                        "at least 10000 jobs are ahead of it");
}

static void counts_compiled(void *count, const char *message)
{
    if (strstr(message, "JIT:") != NULL) ++*(int *)count;
}

/* Postgres compiles no statement of a verb: that takes seconds. A plan looks dear enough for it if
 * it has what the function's settings forbid. Nor does it compile a look at lines. */
static void no_verb_is_compiled(void **unused)
{
    static const char *const verbs[] = {
        "cancel(%lld::int8)", "revive(%lld::int8)", "reschedule(%lld::int8)",
        "prioritize(%lld::int8, 1)",
        "standing(%lld)", "move(%lld::int8, 'q')", "enqueue('q', 'k', after => '{%lld}')",
        "flow_cancel(jobq.flow())", "flow_revive(jobq.flow())", "delete(%lld::int8)"};
    PGconn *conn = connected();
    int compiled = 0, had = 0;
    size_t i;
    long id;

    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k'), jobq.enqueue('q', 'k')");
    id = number("SELECT min(id) FROM jobq.job");
    RUN("SELECT jobq.cancel(%ld::int8)", id);
    PQsetNoticeProcessor(conn, counts_compiled, &compiled);
    PQclear(sql(conn, "LOAD 'auto_explain'; SET jit = on; SET client_min_messages = log; "
                      "SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on; "
                      "SET auto_explain.log_nested_statements = on"));
    PQclear(sql(conn, "SET jit_above_cost = 0; SELECT count(*) FROM jobq.job; "
                      "SET jit_above_cost = 100000"));
    had = compiled;
    for (i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        char text[100];
        snprintf(text, sizeof text, verbs[i], (long long)id);
        PQclear(sql(conn, "SELECT jobq.%s", text));
        if (compiled > had) fail_msg("%s", text);
    }
    RUN("INSERT INTO jobq.queue (name) "
        "SELECT format('queue-%%s', i) FROM generate_series(1, 100) i");
    PQclear(sql(conn, "TABLE jobq.lines"));
    if (compiled > had) fail_msg("lines");
    PQfinish(conn);
    if (had == 0) skip(); /* this server compiles nothing */
}

/* What a session may have set; tests/harness/hostile.sh has more. */
static void a_callers_settings_change_nothing(void **unused)
{
    (void)unused;
    enqueue_count(3);
    RUN("SET standard_conforming_strings = off; SELECT jobq.queue_set('q', rate => '100/min');"
        "SELECT jobq.schedule('s', 'q', 'k', cron => '*/5 3 * * *'); SELECT jobq.metrics();"
        "SET standard_conforming_strings = on");
    expect_text("100/min", "SELECT rate FROM jobq.limits");
    RUN("SET DateStyle = German; SET TimeZone = 'Asia/Jakarta'");
    assert_in_range(number("SELECT jobs FROM jobq._count_ready((SELECT id FROM jobq.queue),"
                           " now() - interval '1 day', now(), 1)"), 1, 1000000);
    RUN("SET DateStyle = ISO; SET TimeZone = 'UTC'; SET session_replication_role = replica");
    RUN("INSERT INTO jobq.permit (quota_id, worker) SELECT id, 1 FROM jobq.quota");
    RUN("SELECT jobq.queue_set('q', payload_max => 10, rate => '0')");
    RUN("SET session_replication_role = origin");
    assert_int_equal(number("SELECT payload_max FROM jobq.kind"), 10);
    assert_int_equal(number("SELECT count(*) FROM jobq.permit"), 0);
}

/* A program declares what it needs at each start, for years, and ids of 32 bits must last. */
static void declaring_again_uses_up_no_id(void **unused)
{
    static const char *const declarations[] = {
        "jobq.queue_set('d', running_max => 5, rate => '9/s', max_attempts => 3)",
        "jobq.queue_set('d', kind => 'k', running_max => 5)",
        "jobq.line_set('d', 'l', running_max => 2, weight => 3)",
        "jobq.schedule('cron', 'd', 'k', cron => '0 0 1 1 *')",
        "jobq.schedule('every', 'd', 'k', every => '1 hour')",
        "jobq.outbox_register('o', 4)",
        "jobq.schedule('messages', 'o', every => '1 hour', partition => 1)",
        "jobq.pause('d', 'k')",
        "jobq.resume('d', 'k')"};
    jobq_pg_schedule set = {.name = "set", .every_us = JOBQ_HOURS(1)};
    jobq_pg_error error;
    char *before = NULL, *after = NULL;
    int round, times;
    size_t i;

    (void)unused;
    set.job.queue = "d";
    set.job.kind = "k";
    for (round = 0; round < 2; round++) {
        times = round == 0 ? 1 : 1000;
        for (i = 0; i < COUNT(declarations); i++)
            RUN("SELECT %s FROM generate_series(1, %d)", declarations[i], times);
        while (times-- > 0) {
            if (jobq_pg_schedules_set(pg, NULL, "me", 1, &set, 1, &error) != JOBQ_OK)
                fail_msg("%s", error.message);
        }
        free(before);
        before = after;
        after = text_of("SELECT string_agg(sequencename || ' ' || last_value::text, ', ' ORDER BY"
                        " sequencename) FROM pg_sequences WHERE schemaname = '%s'"
                        " AND data_type = 'integer'::regtype", schema);
    }
    assert_string_equal(before, after);
    free(before);
    free(after);
}

/* Blocks that a statement reads. */
static long blocks_of(const char *generic)
{
    char text[700], *own;
    PGresult *res;
    long blocks = 0;
    int i;

    snprintf(text, sizeof text, "EXPLAIN (ANALYZE, BUFFERS, TIMING off, COSTS off) %s", generic);
    own = for_schema(text, schema);
    PQclear(PQexec(db, own)); /* what a function reads when it is first called */
    res = PQexec(db, own);
    free(own);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) fail_msg("%s", PQresultErrorMessage(res));
    for (i = 0; i < PQntuples(res) && blocks == 0; i++) {
        const char *at = strstr(PQgetvalue(res, i, 0), "shared hit=");
        const char *read = at == NULL ? NULL : strstr(at, "read=");
        if (at != NULL) blocks = atol(at + 11) + (read == NULL ? 0 : atol(read + 5));
    }
    PQclear(res);
    assert_true(blocks > 0);
    return blocks;
}

static void fail_many(int from, int to)
{
    RUN("INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt,"
        " crash, priority, stage, stages) SELECT n, now(), now(), now() - n * interval '1 s',"
        " k.queue_id, k.id, 1, 0, 0, 0, 1 FROM generate_series(%d, %d) n JOIN jobq.kind k"
        " ON k.name = CASE WHEN n %% 99 = 0 AND n < 2000 THEN 'rare' WHEN n %% 7 = 0 THEN 'other'"
        " ELSE 'k' END", from, to);
}

/* However many have failed, also of other queues; statistics or none. */
static void a_page_of_failed_jobs_reads_no_more_than_it_shows(void **unused)
{
    static const char *const pages[] = {
        "SELECT id, queue, kind, error FROM jobq.failures WHERE queue_id = jobq._known_queue('q') "
        "AND id < 1000000 ORDER BY id DESC LIMIT 20",
        "SELECT id, queue, kind, error FROM jobq.failures WHERE kind_id = "
        "jobq._known_kind(jobq._known_queue('q'), 'rare') AND id < 1000000 ORDER BY id DESC "
        "LIMIT 20"};
    long few[2], many;
    int i;

    (void)unused;
    pg_empty(NULL);
    RUN("TRUNCATE jobq.failed"); /* no statistics of earlier tests */
    RUN("SELECT jobq.queue_set('q', kinds => '{k,rare}'), jobq.queue_set('r', kinds => '{other}')");
    RUN("SELECT jobq.prune(10)");
    assert_int_equal(number("SELECT count(*) FROM pg_class WHERE relnamespace = "
                            "'jobq'::regnamespace AND relname IN ('queue', 'kind') AND "
                            "reltuples > 0"), 2); /* statistics, as soon as they have rows */
    fail_many(1, 3000);
    RUN("SELECT jobq.prune(10)");
    for (i = 0; i < 2; i++) few[i] = blocks_of(pages[i]);
    fail_many(3001, 60000);
    for (i = 0; i < 2; i++) {
        many = blocks_of(pages[i]);
        if (many > 2 * few[i]) fail_msg("%ld blocks, and of few %ld: %s", many, few[i], pages[i]);
    }
    RUN("ANALYZE jobq.failed");
    for (i = 0; i < 2; i++) assert_true(blocks_of(pages[i]) <= 2 * few[i]);
}

#define TEST(f) cmocka_unit_test_teardown(f, all_stop)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(a_callers_settings_change_nothing),
        TEST(declaring_again_uses_up_no_id),
        TEST(every_verb_answers_every_state),
        TEST(c_says_what_sql_says),
        TEST(a_key_moves_with_its_job),
        TEST(filters_take_what_matches_in_steps),
        TEST(running_jobs_are_asked_once_and_failed_ones_revived),
        TEST(what_others_hold_is_skipped),
        TEST(misspelt_names_are_refused),
        TEST(operators_and_workers_do_not_stand_in_each_others_way),
        TEST(a_heartbeat_does_not_wait_for_an_operator),
        TEST(at_most_may_be_null),
        TEST(a_paused_queue_and_a_paused_kind_stand_still),
        TEST(what_is_kept_for_ever_stops_no_housekeeping),
        TEST(zero_leaves_a_policy_as_it_is),
        TEST(snoozes_have_a_limit),
        TEST(a_kind_has_what_differs_from_its_queue),
        TEST(the_policy_of_a_kind_is_news),
        TEST(what_is_the_queues_is_no_kinds),
        TEST(a_queue_says_how_long_a_key_is_remembered),
        TEST(the_views_tell_what_is),
        TEST(counts_beyond_ten_thousand_are_estimates),
        TEST(peek_foretells_the_claim),
        TEST(peek_is_in_claiming_order),
        TEST(peek_only_reads),
        TEST(explain_names_what_is_in_the_way),
        TEST(explain_names_who_keeps_a_result_waiting),
        TEST(explain_tells_what_became_of_a_job),
        TEST(explain_counts_the_jobs_ahead),
        TEST(no_verb_is_compiled),
        TEST(a_page_of_failed_jobs_reads_no_more_than_it_shows),
    };

    return cmocka_run_group_tests_name("operators", tests, pg_up, pg_down);
}
