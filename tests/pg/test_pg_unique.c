/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * What happens when a key is known: the newest accepted payload runs, or an older one is running
 * and the newest waits. Promises 1 and 3.
 */
#include "pg_work.h"

#include "rules.h"

static jobq_pg_job keyed(const char *payload, jobq_known on_known)
{
    jobq_pg_job j = plain_job();

    j.key = "a";
    j.payload = jobq_str_from(payload);
    j.on_known = on_known;
    return j;
}

static int64_t put(const char *payload, jobq_known on_known, jobq_error wanted)
{
    jobq_pg_job j = keyed(payload, on_known);
    int64_t id = 0;

    assert_int_equal(jobq_pg_enqueue(pg, NULL, &j, &id, NULL), wanted);
    return id;
}

/* Brings the job of key a into a state: r ready, s between two stages, x running, e ended. */
static int64_t in_state(char state)
{
    jobq_pg_job j = keyed("[1]", JOBQ_KNOWN_LEAVE);
    int64_t id;
    jobq_job job;

    RUN("TRUNCATE jobq.job, jobq.idempotency, jobq.edge, jobq.claim, jobq.history, jobq.worker");
    register_worker(7, 60 * SECOND);
    j.stages = 2;
    j.delay_us = state == 'r' ? 60 * SECOND : 0;
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &j, &id, NULL), JOBQ_OK);
    if (state == 'r') return id;
    job = claim_one(7, 1, 0);
    if (state == 's') assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    if (state == 'e') RUN("SELECT jobq._finish('{%lld}', 's', NULL)", (long long)id);
    return id;
}

/* The table of FEATURES: which payloads there are afterwards, and in which states. */
static void every_word_meets_every_state(void **unused)
{
    static const struct { jobq_known on_known; char state; const char *live; } rows[] = {
        {JOBQ_KNOWN_LEAVE, 'r', "r[1]"},        {JOBQ_KNOWN_LEAVE, 's', "r[1]"},
        {JOBQ_KNOWN_LEAVE, 'x', "x[1]"},        {JOBQ_KNOWN_LEAVE, 'e', ""},
        {JOBQ_KNOWN_REJECT, 'r', "r[1]"},       {JOBQ_KNOWN_REJECT, 'x', "x[1]"},
        {JOBQ_KNOWN_REJECT, 'e', ""},           {JOBQ_KNOWN_REPLACE, 'r', "r[2]"},
        {JOBQ_KNOWN_REPLACE, 's', "r[1] w[2]"}, {JOBQ_KNOWN_REPLACE, 'x', "x[1] w[2]"},
        {JOBQ_KNOWN_REPLACE, 'e', "r[2]"},      {JOBQ_KNOWN_MERGE, 'r', "r[1, 2]"},
        {JOBQ_KNOWN_MERGE, 'x', "x[1] w[2]"},   {JOBQ_KNOWN_MERGE, 'e', "r[2]"},
        {JOBQ_KNOWN_BUMP, 'r', "r[1]"},         {JOBQ_KNOWN_BUMP, 'x', "x[1]"},
        {JOBQ_KNOWN_BUMP, 'e', "r[2]"},         {JOBQ_KNOWN_CANCEL, 'r', "r[2]"},
        {JOBQ_KNOWN_CANCEL, 'x', "x[1] w[2]"},  {JOBQ_KNOWN_CANCEL, 'e', "r[2]"},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        jobq_known how = rows[i].on_known;
        bool begun = rows[i].state == 's' || rows[i].state == 'x';
        bool left = how == JOBQ_KNOWN_LEAVE || how == JOBQ_KNOWN_REJECT ||
                    (how == JOBQ_KNOWN_BUMP && begun);
        int64_t old = in_state(rows[i].state);
        int64_t id = put("[2]", how, left ? JOBQ_ERROR_EXISTS : JOBQ_OK);
        char *live = text_of("SELECT coalesce(string_agg(state::text || payload, ' ' ORDER BY id), "
                             "'') FROM jobq.job");
        if (strcmp(live, rows[i].live) != 0)
            fail_msg("%s in state %c: %s", jobq_enum_name(JOBQ_ENUM_KNOWN, how), rows[i].state,
                     live);
        assert_int_equal(id == old, left || (rows[i].state == 'r' && how != JOBQ_KNOWN_CANCEL));
        assert_int_equal(number("SELECT count(*) FROM jobq.edge"), strchr(live, 'w') != NULL);
        free(live);
    }
}

static void a_key_is_known_as_long_as_is_said(void **unused)
{
    static const struct { jobq_unique unique; char state; bool known; } rows[] = {
        {JOBQ_UNIQUE_DEFAULT, 'e', true}, {JOBQ_UNIQUE_PERIOD, 'e', true},
        {JOBQ_UNIQUE_LIVE, 'e', false},   {JOBQ_UNIQUE_LIVE, 'x', true},
        {JOBQ_UNIQUE_READY, 'e', false},  {JOBQ_UNIQUE_READY, 'x', false},
        {JOBQ_UNIQUE_READY, 's', false},  {JOBQ_UNIQUE_READY, 'r', true},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        jobq_pg_job j = keyed("[2]", JOBQ_KNOWN_LEAVE);
        int64_t old = in_state(rows[i].state), id;
        j.unique_for = rows[i].unique;
        assert_int_equal(jobq_pg_enqueue(pg, NULL, &j, &id, NULL),
                         rows[i].known ? JOBQ_ERROR_EXISTS : JOBQ_OK);
        assert_int_equal(id == old, rows[i].known);
        j.on_known = JOBQ_KNOWN_REJECT; /* the same, and the transaction goes on */
        RUN("BEGIN");
        assert_int_equal(jobq_pg_enqueue(pg, db, &j, &id, NULL), JOBQ_ERROR_EXISTS);
        assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE id = %lld", (long long)id),
                         rows[i].state != 'e' || !rows[i].known);
        RUN("COMMIT");
    }
}

/* jobq.h and SQL decide the same. */
static void both_decide_the_same(void **unused)
{
    static const struct { jobq_state state; bool begun; const char *letter; } states[] = {
        {JOBQ_STATE_READY, false, "r"},    {JOBQ_STATE_READY, true, "x"},
        {JOBQ_STATE_RUNNING, true, "x"},   {JOBQ_STATE_WAITING, false, "w"},
        {JOBQ_STATE_SUCCEEDED, true, "e"}, {JOBQ_STATE_FAILED, true, "e"},
    };
    int known, unique;
    size_t s;

    (void)unused;
    for (known = 0; known <= JOBQ_KNOWN_REJECT; known++) {
        for (unique = 0; unique <= JOBQ_UNIQUE_READY; unique++) {
            for (s = 0; s < sizeof states / sizeof states[0]; s++) {
                char query[200];
                snprintf(query, sizeof query, "SELECT jobq._known_decide('%s', nullif('%s', "
                         "'unknown'), '%s')", jobq_enum_name(JOBQ_ENUM_KNOWN, known),
                         jobq_enum_name(JOBQ_ENUM_UNIQUE, unique), states[s].letter);
                expect_text(model_known_name(model_known_decide((jobq_known)known,
                                                                (jobq_unique)unique,
                                                                states[s].state, states[s].begun)),
                            query);
            }
        }
    }
}

static void a_debounce_ends_at_the_latest(void **unused)
{
    jobq_pg_job j = keyed("[1]", JOBQ_KNOWN_REPLACE);
    int i;

    (void)unused;
    j.delay_us = JOBQ_SECONDS(10);
    j.at_latest_us = JOBQ_SECONDS(25);
    for (i = 0; i < 4; i++) {
        assert_int_equal(jobq_pg_enqueue(pg, NULL, &j, NULL, NULL), JOBQ_OK);
        assert_int_equal(number("SELECT floor(extract(epoch FROM run_at - enqueued_at) / 2)::int "
                                "FROM jobq.job"), i < 2 ? 5 + 4 * i : 12);
        RUN("UPDATE jobq.job SET enqueued_at = enqueued_at - interval '8 seconds'");
        if (i >= 1) j.delay_us = JOBQ_SECONDS(60);
    }
}

/* What was enqueued long ago runs now, and not before all others. */
static void a_bump_does_not_reach_the_past(void **unused)
{
    jobq_pg_job j = keyed("[1]", JOBQ_KNOWN_BUMP);

    (void)unused;
    j.delay_us = JOBQ_HOURS(1);
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &j, NULL, NULL), JOBQ_OK);
    RUN("UPDATE jobq.job SET enqueued_at = enqueued_at - interval '2 hours'");
    j.at_latest_us = JOBQ_MINUTES(1);
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &j, NULL, NULL), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE run_at BETWEEN "
                            "now() - interval '1 minute' AND now()"), 1);
}

/* Jobs and messages of a queue share its keys, but not their ids. */
static void a_message_with_the_key_is_no_job(void **unused)
{
    static const jobq_known words[] = {JOBQ_KNOWN_CANCEL, JOBQ_KNOWN_REPLACE, JOBQ_KNOWN_BUMP};
    size_t i;

    (void)unused;
    RUN("SELECT jobq.outbox_register('q', 1)");
    for (i = 0; i < sizeof words / sizeof words[0]; i++) {
        int64_t id;
        RUN("DELETE FROM jobq.idempotency; DELETE FROM jobq.job; "
            "SELECT jobq.outbox_enqueue('q', '1', key => 'a')");
        RUN("SELECT jobq.enqueue('q', 'k', '\"bystander\"', delay => '1 hour')");
        RUN("UPDATE jobq.job SET id = (SELECT max(id) FROM jobq.message)");
        id = put("[2]", words[i], JOBQ_OK);
        expect_text("\"bystander\" [2]", "SELECT string_agg(payload::text, ' ' ORDER BY run_at "
                                         "DESC) FROM jobq.job");
        assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE id = %lld AND key = 'a'",
                                (long long)id), 1);
    }
}

/* A chain of replacements behind a running job leaves one that waits, with the newest payload, and
 * it runs when the first has ended, however it ends. */
static void one_runs_and_one_waits(void **unused)
{
    static const jobq_event_kind ends[] = {JOBQ_EVENT_SUCCESS, JOBQ_EVENT_DISCARD,
                                           JOBQ_EVENT_CANCELLED};
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        jobq_job job;
        int64_t first;
        RUN("TRUNCATE jobq.job, jobq.idempotency, jobq.edge, jobq.claim, jobq.worker");
        register_worker(7, 60 * SECOND);
        put("[1]", JOBQ_KNOWN_REPLACE, JOBQ_OK);
        job = claim_one(7, 1, 0);
        first = put("[2]", JOBQ_KNOWN_REPLACE, JOBQ_OK);
        assert_int_equal(put("[3]", JOBQ_KNOWN_REPLACE, JOBQ_OK), first);
        assert_int_equal(put("[4]", JOBQ_KNOWN_MERGE, JOBQ_OK), first);
        assert_int_equal(put("[9]", JOBQ_KNOWN_LEAVE, JOBQ_ERROR_EXISTS), first);
        if (ends[i] == JOBQ_EVENT_CANCELLED) RUN("SELECT jobq.cancel(%lld)", (long long)job.id);
        assert_int_equal(settle_with(&job, ends[i], "no"), JOBQ_OK);
        expect_text("r[3, 4]", "SELECT string_agg(state::text || payload, ' ') FROM jobq.job");
        assert_int_equal(number("SELECT count(*) FROM jobq.edge WHERE holds"), 0);
        job = claim_one(7, 2, 0);
        assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
        assert_int_equal(number("SELECT count(*) FROM jobq.edge"), 0);
    }
    /* a retry is not an end */
    put("[1]", JOBQ_KNOWN_REPLACE, JOBQ_OK);
    {
        jobq_job job = claim_one(7, 3, 0);
        put("[2]", JOBQ_KNOWN_REPLACE, JOBQ_OK);
        assert_int_equal(settle_with(&job, JOBQ_EVENT_RETRY, "later"), JOBQ_OK);
        expect_text("r[1] w[2]",
                    "SELECT string_agg(state::text || payload, ' ' ORDER BY id) FROM jobq.job");
    }
}

/* A job that waits for one that it spawned has begun: its payload stays, and the newest one runs
 * after it, or in its place if it is cancelled. */
static void a_job_that_waits_for_its_child_has_begun(void **unused)
{
    static const char *const live = "SELECT string_agg(state::text || payload, ' ' ORDER BY id) "
                                    "FROM jobq.job WHERE key IS NOT NULL";
    jobq_job job;

    (void)unused;
    register_worker(7, 60 * SECOND);
    put("[1]", JOBQ_KNOWN_REPLACE, JOBQ_OK);
    job = claim_one(7, 1, 0);
    RUN("SELECT jobq._wait_here(7, 1, %lld, 0::smallint, 0, 0, false, NULL, "
        "ARRAY[jobq.enqueue('q', 'k')], '{NULL}', '{NULL}', '{any}')", (long long)job.id);
    put("[2]", JOBQ_KNOWN_BUMP, JOBQ_ERROR_EXISTS);
    expect_text("w[1]", live);
    put("[2]", JOBQ_KNOWN_REPLACE, JOBQ_OK);
    expect_text("w[1] w[2]", live);
    put("[3]", JOBQ_KNOWN_MERGE, JOBQ_OK);
    expect_text("w[1] w[2, 3]", live);
    RUN("SELECT jobq.cancel(max(id)) FROM jobq.job");
    expect_text("w[1]", live);
    put("[4]", JOBQ_KNOWN_CANCEL, JOBQ_OK);
    expect_text("r[4]", live);
}

/* What was done for the old payload is not done for the new one. */
static void a_payload_that_is_replaced_takes_its_steps_along(void **unused)
{
    jobq_job job;

    (void)unused;
    register_worker(7, 60 * SECOND);
    put("[1]", JOBQ_KNOWN_REPLACE, JOBQ_OK);
    job = claim_one(7, 1, 0);
    RUN("SELECT jobq._step_done_here(7, 1, %lld, 'charge', '1')", (long long)job.id);
    assert_int_equal(settle_with(&job, JOBQ_EVENT_RETRY, "later"), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE steps ? 'charge'"), 1);
    assert_int_equal(put("[2]", JOBQ_KNOWN_REPLACE, JOBQ_OK), job.id);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE steps IS NULL"), 1);
}

/* Operators meet a job that waits. */
static void a_waiting_job_can_be_cancelled_and_deleted(void **unused)
{
    int64_t waiting;
    jobq_job job;

    (void)unused;
    register_worker(7, 60 * SECOND);
    put("[1]", JOBQ_KNOWN_REPLACE, JOBQ_OK);
    job = claim_one(7, 1, 0);
    waiting = put("[2]", JOBQ_KNOWN_REPLACE, JOBQ_OK);
    expect_text("waiting", "SELECT state FROM jobq.jobs ORDER BY id DESC LIMIT 1");
    RUN("SELECT jobq.cancel(%lld)", (long long)waiting);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 1);
    assert_int_equal(put("[3]", JOBQ_KNOWN_LEAVE, JOBQ_ERROR_EXISTS), job.id);
    waiting = put("[3]", JOBQ_KNOWN_REPLACE, JOBQ_OK); /* waits, too */
    expect_text("x[1] w[3]",
                "SELECT string_agg(state::text || payload, ' ' ORDER BY id) FROM jobq.job");
    RUN("SELECT jobq.cancel(%lld)", (long long)waiting);
    assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.edge"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.idempotency WHERE ended_at IS NULL"), 0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void mistakes_are_refused_by_name(void **unused)
{
    jobq_pg_job j = keyed("[1]", JOBQ_KNOWN_REPLACE);
    jobq_pg_error error;

    (void)unused;
    j.key = NULL;
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &j, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "key");
    j.key = "a";
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &j, 1, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "on_known");
    j.at_latest_us = -1;
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &j, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "at_latest_us");
    put("[1]", JOBQ_KNOWN_LEAVE, JOBQ_OK);
    put("{\"a\": 1}", JOBQ_KNOWN_MERGE, JOBQ_ERROR_INVALID);
    j = keyed("[2]", JOBQ_KNOWN_REPLACE);
    j.kind = "other"; /* its handler would not expect this payload */
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &j, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "kind");
    expect_text("[1]", "SELECT payload::text FROM jobq.job");
}

/* -- 16 producers, 50 keys, kills -- */

static struct { int done, both; } *seen;

static jobq_outcome notes(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char *text = for_schema("SELECT count(*) FROM jobq.job r JOIN jobq.job s ON s.key = r.key "
                            "AND s.queue_id = r.queue_id AND s.id <> r.id AND s.state = 'x' "
                            "WHERE r.state = 'x'", schema);
    PGresult *res;

    if (conn != NULL) {
        res = PQexec(conn, text);
        if (PQntuples(res) == 1 && atoi(PQgetvalue(res, 0, 0)) > 0) ADD(seen->both);
        PQclear(res);
    }
    free(text);
    ADD(seen->done);
    return JOBQ_OUTCOME_SUCCESS;
}

static pid_t produces(int seed)
{
    pid_t pid = fork();
    jobq_pg *own;
    int n;

    if (pid != 0) return pid;
    own = handle();
    for (n = 0; ; n++) {
        char key[16], payload[40];
        jobq_pg_job j = plain_job();
        snprintf(key, sizeof key, "k%d", rand_r((unsigned *)&seed) % 50);
        snprintf(payload, sizeof payload, "[%d]", n);
        j.key = key;
        j.payload = jobq_str_from(payload);
        j.on_known = n % 5 == 0 ? JOBQ_KNOWN_CANCEL : n % 3 == 0 ? JOBQ_KNOWN_MERGE
                                                                 : JOBQ_KNOWN_REPLACE;
        jobq_pg_enqueue(own, NULL, &j, NULL, NULL);
        nap_us(2000);
    }
}

static void producers_and_workers_die_and_no_key_runs_twice_at_once(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", notes);
    jobq_pg_worker_desc d = work_of(&h, 1);
    pid_t producers[16], consumers[2];
    int i, n;

    (void)unused;
    seen = shared(sizeof *seen);
    h.queue = plain_job().queue;
    h.kind = plain_job().kind;
    d.loop.lease_us = SECOND;
    for (i = 0; i < 2; i++) consumers[i] = spawn(&d);
    for (i = 0; i < 16; i++) producers[i] = produces(i);
    for (n = 0; n < 8; n++) {
        nap_us(400000);
        kill(producers[n], SIGKILL);
        waitpid(producers[n], NULL, 0);
        producers[n] = produces(100 + n);
        if (n % 2 == 0) {
            kill_hard(consumers[n / 2 % 2]);
            consumers[n / 2 % 2] = spawn(&d);
        }
    }
    for (i = 0; i < 16; i++) {
        kill(producers[i], SIGKILL);
        waitpid(producers[i], NULL, 0);
    }
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job"));
    assert_int_equal(number("SELECT count(*) FROM jobq.edge"), 0);
    assert_true(GET(seen->done) > 100);
    assert_int_equal(GET(seen->both), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_word_meets_every_state, pg_empty, all_stop),
        cmocka_unit_test_setup_teardown(a_key_is_known_as_long_as_is_said, pg_empty, all_stop),
        cmocka_unit_test_setup_teardown(both_decide_the_same, pg_empty, all_stop),
        cmocka_unit_test_setup_teardown(a_debounce_ends_at_the_latest, pg_empty, all_stop),
        cmocka_unit_test_setup_teardown(a_bump_does_not_reach_the_past, pg_empty, all_stop),
        cmocka_unit_test_setup_teardown(a_message_with_the_key_is_no_job, pg_empty, all_stop),
        cmocka_unit_test_setup_teardown(one_runs_and_one_waits, pg_empty, all_stop),
        cmocka_unit_test_setup_teardown(a_waiting_job_can_be_cancelled_and_deleted, pg_empty,
                                        all_stop),
        cmocka_unit_test_setup_teardown(a_job_that_waits_for_its_child_has_begun, pg_empty,
                                        all_stop),
        cmocka_unit_test_setup_teardown(a_payload_that_is_replaced_takes_its_steps_along, pg_empty,
                                        all_stop),
        cmocka_unit_test_setup_teardown(mistakes_are_refused_by_name, pg_empty, all_stop),
        cmocka_unit_test_setup_teardown(producers_and_workers_die_and_no_key_runs_twice_at_once,
                                        pg_empty, all_stop),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
