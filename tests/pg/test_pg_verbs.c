/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The verbs on the database: every verb in every state, from many sessions at once, at any
 * isolation level, in unusual schemas. Rows X4, X6, X7, X32; laws (1) to (8) of jobq.h; promises 1
 * and 3.
 */
#include "pg_work.h"
#include "sessions.h"

#define WORKER 900

/* Every row of every table but the workers', as one text. The caller frees it. */
static char *all_tables(void)
{
    return text_of(
        "SELECT (SELECT coalesce(string_agg(t::text, '|' ORDER BY id), '-') FROM jobq.job t) ||"
        " (SELECT coalesce(string_agg(t::text, '|' ORDER BY id), '-') FROM jobq.failed t) ||"
        " (SELECT coalesce(string_agg(t::text, '|' ORDER BY id), '-') FROM jobq.history t) ||"
        " (SELECT coalesce(string_agg(t::text, '|' ORDER BY id), '-') FROM jobq.kind t) ||"
        " (SELECT coalesce(string_agg(t::text, '|' ORDER BY id), '-') FROM jobq.queue t) ||"
        " (SELECT coalesce(string_agg(t::text, '|' ORDER BY key), '-') FROM jobq.idempotency t) ||"
        " (SELECT coalesce(string_agg(t::text, '|' ORDER BY worker, number), '-') FROM jobq.claim "
        "t)");
}

/* -- X6 -- */

enum { READY, SCHEDULED, PARKED, SUSPECT, RUNNING, SUCCEEDED, FAILED, CANCELLED, NOWHERE, STATES };

static const char *const state_names[STATES] = {"ready",   "scheduled", "parked",
                                                "suspect", "running",   "succeeded",
                                                "failed",  "cancelled", "nowhere"};

static int64_t next_claim;

/* A job in a state; its last token. */
static jobq_job job_in(int state)
{
    jobq_pg_job like = plain_job();
    jobq_pg_error error;
    jobq_job job;

    pg_empty(NULL);
    register_worker(WORKER, 600 * SECOND);
    like.key = "key";
    like.stages = 2;
    enqueue_with(&like);
    job = claim_one(WORKER, ++next_claim, false);
    if (state == RUNNING) return job;
    if (state == SUCCEEDED) {
        settle_with(&job, JOBQ_EVENT_SUCCESS, NULL);
        job = claim_one(WORKER, ++next_claim, false);
        settle_with(&job, JOBQ_EVENT_SUCCESS, NULL);
    }
    if (state == FAILED) settle_with(&job, JOBQ_EVENT_DISCARD, "no");
    if (state == CANCELLED) settle_with(&job, JOBQ_EVENT_CANCELLED, NULL);
    if (state == PARKED) settle_with(&job, JOBQ_EVENT_PARK, NULL);
    if (state == READY || state == SUSPECT) settle_with(&job, JOBQ_EVENT_RELEASE, NULL);
    if (state == SUSPECT) RUN("UPDATE jobq.job SET suspect = true");
    if (state == SCHEDULED) settle_with(&job, JOBQ_EVENT_RETRY, "later");
    if (state == NOWHERE) {
        assert_int_equal(settle_with(&job, JOBQ_EVENT_DISCARD, "gone"), JOBQ_OK);
        RUN("DELETE FROM jobq.failed");
        assert_int_equal(jobq_pg_get(pg, NULL, job.id, &job, &error), JOBQ_ERROR_NOT_FOUND);
    }
    return job;
}

static const jobq_event_kind verdicts[] = {
    JOBQ_EVENT_SUCCESS, JOBQ_EVENT_RETRY,     JOBQ_EVENT_TIMEOUT, JOBQ_EVENT_DISCARD,
    JOBQ_EVENT_SNOOZE,  JOBQ_EVENT_CANCELLED, JOBQ_EVENT_RELEASE, JOBQ_EVENT_PARK};

/* What a state answers to the verbs: 1 where the verb applies. */
static const struct {
    int claims, claims_suspects, settles, cancels, revives;
} wanted[STATES] = {
    {1, 0, 0, 1, 0}, /* ready */
    {0, 0, 0, 1, 0}, /* scheduled */
    {0, 0, 0, 1, 0}, /* parked */
    {0, 1, 0, 1, 0}, /* suspect */
    {0, 0, 1, 1, 0}, /* running */
    {0, 0, 0, 0, 0}, /* succeeded */
    {0, 0, 0, 0, 1}, /* failed */
    {0, 0, 0, 0, 0}, /* cancelled */
    {0, 0, 0, 0, 0}, /* nowhere */
};

/* Whether the verb did something must be whether it applies; if it does not, no row may differ. */
static void expect(int state, const char *verb, bool did, bool applies, char *before)
{
    char *after = all_tables();

    if (did != applies)
        fail_msg("%s of a %s job: %s", verb, state_names[state], did ? "done" : "refused");
    if ((strcmp(before, after) == 0) == applies) {
        fail_msg("%s of a %s job: %s\n%s\n%s", verb, state_names[state],
                 applies ? "changed nothing" : "wrote", before, after);
    }
    free(before);
    free(after);
}

static void every_verb_meets_every_state(void **unused)
{
    jobq_pg_error error;
    verb_batch batch;
    jobq_job job;
    char *before;
    bool did;
    int state, suspects;
    size_t i;

    (void)unused;
    for (state = 0; state < STATES; state++) {
        for (i = 0; i < COUNT(verdicts); i++) {
            job = job_in(state);
            job.state = JOBQ_STATE_RUNNING; /* as its last worker believes */
            if (job.worker == 0) {
                job.worker = WORKER;
                job.claim = next_claim;
                job.attempt = 1;
            }
            before = all_tables();
            did = settle_with(&job, verdicts[i], "said") == JOBQ_OK;
            expect(state, jobq_enum_name(JOBQ_ENUM_EVENT, verdicts[i]), did, wanted[state].settles,
                   before);
        }
        for (suspects = 0; suspects < 2; suspects++) {
            job_in(state);
            before = all_tables();
            assert_int_equal(claim_by(WORKER, ++next_claim, 5, suspects, &batch), JOBQ_OK);
            did = batch.count > 0;
            verb_batch_clear(&batch);
            expect(state, suspects ? "claim of suspects" : "claim", did,
                   suspects ? wanted[state].claims_suspects : wanted[state].claims, before);
        }
        job = job_in(state);
        before = all_tables();
        did = jobq_pg_cancel(pg, NULL, ONE(job.id), NULL, NULL, &error) == JOBQ_OK;
        expect(state, "cancel", did, wanted[state].cancels, before);
        job = job_in(state);
        before = all_tables();
        did = jobq_pg_revive(pg, NULL, ONE(job.id), NULL, &error) == JOBQ_OK;
        expect(state, "revive", did, wanted[state].revives, before);
        job_in(state);
        before = all_tables();
        did = verb_rescue(pg, NULL, WORKER, 0, NULL, &error) == JOBQ_OK; /* it lives */
        expect(state, "rescue", did, false, before);
    }
}

static void get_tells_every_state(void **unused)
{
    static const jobq_state states[STATES] = {
        JOBQ_STATE_READY,  JOBQ_STATE_READY,     JOBQ_STATE_READY,
        JOBQ_STATE_READY,  JOBQ_STATE_RUNNING,   JOBQ_STATE_SUCCEEDED,
        JOBQ_STATE_FAILED, JOBQ_STATE_CANCELLED, JOBQ_STATE_NONE};
    jobq_pg_error error;
    jobq_job job, got;
    int state;

    (void)unused;
    for (state = 0; state < NOWHERE; state++) {
        job = job_in(state);
        assert_int_equal(jobq_pg_get(pg, NULL, job.id, &got, &error), JOBQ_OK);
        assert_int_equal(got.state, states[state]);
        assert_int_equal(got.stages, 2);
        assert_int_equal(got.stage, state == SUCCEEDED ? 1 : 0);
        assert_int_equal(got.suspect, state == SUSPECT);
        assert_int_equal(got.worker, state == RUNNING ? WORKER : 0);
        assert_int_equal(got.claim, state == RUNNING ? next_claim : 0);
        assert_int_equal(got.run_at_us == JOBQ_NEVER, state == PARKED);
        assert_int_equal(jobq_job_check(&got), JOBQ_OK);
    }
}

/* -- one flush may hold a job twice: under a dead token, and under the one that came after -- */

/* -- the handler's transaction, in the stricter isolations, with the lease stolen in the middle
 * -- */

/* While the handler's COMMIT is on its way, nobody takes the job: not a rescuer, not a cancel. */
static void a_rescue_steps_over_a_job_that_is_being_completed(void **unused)
{
    jobq_pg_error error;
    PGconn *other = connected();
    jobq_job job;
    int32_t rescued = -1;

    (void)unused;
    enqueue_count(1);
    register_worker(101, 600 * SECOND);
    job = claim_one(101, 1, false);
    PQclear(PQexec(other, "BEGIN"));
    PQclear(sql(
        other,
        "SELECT jobq._settle_here(101, 1, %lld, 's', 0::int2, 1, 0, false, 0, NULL, NULL, NULL)",
        (long long)job.id));
    RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 s'");
    assert_int_equal(verb_rescue(pg, NULL, 101, 0, &rescued, &error), JOBQ_OK);
    assert_int_equal(rescued, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim WHERE jobs <> '{}'"),
                     1); /* to come back for */
    PQclear(PQexec(other, "COMMIT"));
    PQfinish(other);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), 1);
    assert_int_equal(verb_rescue(pg, NULL, 101, 0, &rescued, &error), JOBQ_OK);
    assert_int_equal(rescued, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim WHERE jobs <> '{}'"), 0);
}

/* -- from all sides -- */

#define SIDES 10

static int sides_stop, deadlocks, claimed_count, lost_count;
static char sides_error[600];
static int32_t side_queue;

static void side_failed(const char *what, const jobq_pg_error *error)
{
    if (error->code == JOBQ_ERROR_DEAD || error->code == JOBQ_ERROR_NOT_FOUND ||
        error->code == JOBQ_ERROR_TRANSITION || error->code == JOBQ_ERROR_BUSY)
        return;
    if (strcmp(error->sqlstate, "40P01") == 0) ADD(deadlocks);
    snprintf(sides_error, sizeof sides_error, "%s: %s %s", what, error->sqlstate, error->message);
}

static verb_result side_decides(jobq_random *random, const jobq_job *job)
{
    jobq_policy policy = jobq_policy_defaults(NULL);
    verb_result r;
    jobq_event event;

    memset(&r, 0, sizeof r);
    memset(&event, 0, sizeof event);
    event.kind =
        verdicts[jobq_random_between(jobq_random_next(random), 0, (int64_t)COUNT(verdicts) - 1)];
    if (event.kind == JOBQ_EVENT_PARK) event.kind = JOBQ_EVENT_SUCCESS;
    event.delay_named = true; /* retries come back at once */
    jobq_job_decide(&policy, job, &event, &r.decision);
    r.id = job->id;
    r.worker = job->worker;
    r.claim = job->claim;
    r.error = jobq_str_from("said");
    return r;
}

/* Until a verdict has come too late, those who pause do so until they are rescued, however long a
 * loaded machine takes for it. */
static void side_waits_for_its_death(PGconn *conn, int64_t worker)
{
    char query[200], *text;
    bool dead = false;

    snprintf(query, sizeof query, "SELECT FROM jobq.worker WHERE id = %lld AND dead_at IS NULL",
             (long long)worker);
    text = for_schema(query, schema);
    while (!dead && !GET(sides_stop)) {
        PGresult *res = PQexec(conn, text);
        dead = PQntuples(res) == 0;
        PQclear(res);
        nap_us(20000);
    }
    free(text);
}

/* A worker that forgets its jobs now and then, dies without a word, and is slow. */
static void side_works(jobq_random *random, PGconn *conn, int64_t *worker, int64_t *claim)
{
    static const char *const queues[] = {"q"};
    jobq_lane lanes[3] = {
        {0, 0, 2, false, INT64_MIN, 0, 0, 0}, {0, 0, 1, false, INT64_MIN, 0, 0, 0},
        {0, 0, 0, false, INT64_MIN, 0, 0, 0}};
    verb_result results[20];
    jobq_error answers[20];
    verb_claim_desc d;
    verb_batch batch;
    jobq_pg_error error;
    size_t i;

    memset(&d, 0, sizeof d);
    memset(&batch, 0, sizeof batch);
    if (*worker == 0 || jobq_random_next(random) % 20 == 0) { /* dies, and is born again */
        *worker = jobq_worker_id_from(jobq_random_next(random));
        if (verb_register(pg, conn, *worker, "side", 50000, queues, 1, NULL, &error))
            side_failed("register", &error);
    }
    for (i = 0; i < 3; i++) lanes[i].queue = side_queue;
    d.worker = *worker;
    d.number = ++*claim;
    d.limit = 20;
    d.lanes = lanes;
    d.lane_count = 3;
    d.suspects = jobq_random_next(random) % 2 == 0;
    if (verb_claim(pg, conn, &d, &batch, &error) != JOBQ_OK) {
        side_failed("claim", &error);
        *worker = 0;
        return;
    }
    for (i = 0; i < batch.count; i++) {
        ADD(claimed_count);
        results[i] = side_decides(random, &batch.jobs[i]);
    }
    if (jobq_random_next(random) % 8 == 0) { /* its lease ends meanwhile */
        nap_us(150000);
        if (GET(lost_count) == 0 && batch.count > 0) side_waits_for_its_death(conn, *worker);
    }
    if (jobq_random_next(random) % 10 != 0 && batch.count > 0) {
        if (verb_settle(pg, conn, results, batch.count, answers, &error))
            side_failed("settle", &error);
        else for (i = 0; i < batch.count; i++) if (answers[i] == JOBQ_ERROR_LOST) ADD(lost_count);
    }
    if (jobq_random_next(random) % 3 == 0 && verb_heartbeat(pg, conn, *worker, 50000, &error)) {
        side_failed("heartbeat", &error);
        *worker = 0;
    }
    verb_batch_clear(&batch);
}

/* An operator and rescuer of the last 400 jobs. There is no job 0: it would mean all of a queue. */
static void side_operates(jobq_random *random, PGconn *conn, int64_t last)
{
    int64_t first = last > 400 ? last - 400 : 1;
    int64_t id = jobq_random_between(jobq_random_next(random), first, last);
    jobq_pg_error error;
    PGresult *res;
    char *text;
    int i;

    if (jobq_pg_cancel(pg, conn, ONE(id), NULL, NULL, &error)) side_failed("cancel", &error);
    for (i = 0; i < 20; i++) {
        id = jobq_random_between(jobq_random_next(random), first, last);
        if (jobq_pg_revive(pg, conn, ONE(id), NULL, &error)) side_failed("revive", &error);
    }
    text = for_schema(
        "SELECT w.id, w.beat FROM jobq.worker w WHERE w.expires_at < statement_timestamp() AND"
        " EXISTS (SELECT FROM jobq.claim c WHERE c.worker = w.id)"
        " ORDER BY w.dead_at DESC NULLS FIRST LIMIT 20", /* the rows of the dead stay for a day */
        schema);
    res = PQexec(conn, text);
    free(text);
    for (i = 0; i < PQntuples(res); i++) {
        if (verb_rescue(pg, conn, atoll(PQgetvalue(res, i, 0)), atoll(PQgetvalue(res, i, 1)),
                           NULL, &error)) {
            side_failed("rescue", &error);
        }
    }
    PQclear(res);
}

static int64_t side_last_id;

static void *side(void *arg)
{
    intptr_t number_of_side = (intptr_t)arg;
    jobq_random random = {1000 + (uint64_t)number_of_side};
    PGconn *conn = connected();
    int64_t worker = 0, claim = 0;

    PQclear(PQexec(conn, "SET lock_timeout = '10s'; SET deadlock_timeout = '100ms'"));
    while (!GET(sides_stop)) {
        if (number_of_side < 3) side_operates(&random, conn, GET(side_last_id));
        else side_works(&random, conn, &worker, &claim);
    }
    PQfinish(conn);
    return NULL;
}

/* Claims, verdicts, deaths, rescues, cancels, revivals and enqueues at once: each job is in one
 * place, none is gone. */
static void verbs_from_all_sides_lose_no_job(void **unused)
{
    int64_t until = mono_us() + (check_slow() ? 15 : 8) * SECOND;
    pthread_t threads[SIDES];
    jobq_pg_job jobs[20];
    int64_t ids[20];
    jobq_pg_error error;
    long enqueued = 0;
    intptr_t i;

    (void)unused;
    sides_error[0] = '\0';
    SET(sides_stop, 0);
    SET(deadlocks, 0);
    SET(claimed_count, 0);
    SET(lost_count, 0);
    for (i = 0; i < 20; i++) {
        jobs[i] = plain_job();
        jobs[i].stages = (int)i % 3 + 1;
    }
    side_queue = register_worker(1, SECOND);
    SET(side_last_id, number("SELECT last_value FROM jobq.job_id"));
    for (i = 0; i < SIDES; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, side, (void *)i), 0);
    while (mono_us() < until || (GET(lost_count) == 0 && mono_us() < until + 60 * SECOND)) {
        if (number("SELECT count(*) FROM jobq.job") < 500) {
            assert_int_equal(jobq_pg_enqueue_many(pg, NULL, jobs, 20, ids, &error), JOBQ_OK);
            enqueued += 20;
            SET(side_last_id, ids[19]);
        }
        assert_int_equal(number("SELECT jobq.audit()"), 0);
        assert_int_equal(
            number(
                "SELECT count(*) FROM (SELECT id FROM jobq.job UNION ALL SELECT id FROM jobq.failed"
                " UNION ALL SELECT id FROM jobq.history) a"),
            enqueued);
    }
    SET(sides_stop, 1);
    for (i = 0; i < SIDES; i++) pthread_join(threads[i], NULL);
    assert_string_equal(sides_error, "");
    assert_int_equal(GET(deadlocks), 0);
    assert_int_equal(number("SELECT count(DISTINCT id) FROM (SELECT id FROM jobq.job UNION ALL "
                            "SELECT id FROM jobq.failed"
                            " UNION ALL SELECT id FROM jobq.history) a"),
                     enqueued);
    assert_int_equal(
        number("SELECT count(*) FROM jobq.job WHERE (state = 'x') <> (worker IS NOT NULL)"), 0);
    assert_true(GET(claimed_count) > 500);
    assert_true(GET(lost_count) > 0); /* the fence was needed */
}

/* -- X4 -- */

static void a_claim_of_100_is_one_statement(void **unused)
{
    PGresult *res = PQexec(db, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements");
    bool there = PQresultStatus(res) == PGRES_COMMAND_OK;
    verb_batch batch;

    (void)unused;
    PQclear(res);
    if (!there) skip();
    res = PQexec(db, "SELECT pg_stat_statements_reset()");
    there = PQresultStatus(res) == PGRES_TUPLES_OK;
    PQclear(res);
    if (!there) skip();
    enqueue_count(300);
    register_worker(WORKER, 600 * SECOND);
    RUN("SELECT pg_stat_statements_reset()");
    assert_int_equal(claim_by(WORKER, ++next_claim, 100, false, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 100);
    verb_batch_clear(&batch);
    assert_int_equal(number("SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query "
                            "LIKE '%%._claim($%%'"),
                     1);
    assert_int_equal(
        number("SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE query NOT LIKE "
               "'%%._claim($%%'"
               " AND query NOT LIKE '%%pg_stat%%' AND query NOT LIKE 'SELECT id FROM%%'"
               " AND query !~ '^(BEGIN|COMMIT)'"), /* of one flush, where sessions begin oddly */
        0);
}

/* -- odd schemas and sessions -- */

static jobq_pg *handle_on(const char *name)
{
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *made = NULL;

    memset(&desc, 0, sizeof desc);
    desc.conninfo = server();
    desc.schema = name;
    if (jobq_pg_open(&made, &desc, &error) != JOBQ_OK) return NULL;
    return made;
}

static void schemas_of_any_name_stand_side_by_side(void **unused)
{
    char upper[60], longest[60], command[200];
    const char *names[3];
    jobq_pg *handles[3];
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    size_t i;

    (void)unused;
    snprintf(upper, sizeof upper, "Select_%d", (int)getpid());
    snprintf(longest, sizeof longest, "x%047d", (int)getpid());
    names[0] = upper;
    names[1] = longest;
    names[2] = schema;
    assert_null(handle_on("semi;colon"));
    assert_null(handle_on("quo\"te"));
    assert_null(handle_on("1digit"));
    assert_null(handle_on(""));
    for (i = 0; i < 3; i++) {
        handles[i] = handle_on(names[i]);
        assert_non_null(handles[i]);
        if (i < 2)
            assert_int_equal(jobq_pg_enqueue(handles[i], NULL, &job, NULL, &error),
                             JOBQ_ERROR_VERSION);
        assert_int_equal(jobq_pg_migrate(handles[i], &error), JOBQ_OK);
        assert_int_equal(jobq_pg_migrate(handles[i], &error), JOBQ_OK); /* again */
    }
    PQclear(PQexec(db, "BEGIN")); /* three schemas on one connection of the caller's */
    for (i = 0; i < 9; i++)
        assert_int_equal(jobq_pg_enqueue(handles[i % 3], db, &job, NULL, &error), JOBQ_OK);
    PQclear(PQexec(db, "COMMIT"));
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 3);
    assert_int_equal(number("SELECT count(*) FROM \"%s\".job", upper), 3);
    assert_int_equal(number("SELECT count(*) FROM \"%s\".job", longest), 3);
    for (i = 0; i < 3; i++) jobq_pg_close(handles[i]);
    for (i = 0; i < 2; i++) {
        snprintf(command, sizeof command, "DROP SCHEMA \"%s\" CASCADE", names[i]);
        PQclear(PQexec(db, command));
    }
}

static void a_session_that_forgets_its_statements_recovers(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    int i, tries;

    (void)unused;
    for (i = 0; i < 3; i++) {
        assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), JOBQ_OK);
        assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), JOBQ_OK);
        PQclear(PQexec(db, i == 0 ? "DISCARD ALL" : i == 1 ? "DEALLOCATE ALL" : "SELECT 1"));
        suits(db);
        for (tries = 0; jobq_pg_enqueue(pg, db, &job, NULL, &error) != JOBQ_OK; tries++) {
            assert_int_equal(error.code, JOBQ_ERROR_RETRYABLE);
            assert_in_range(tries, 0, 1); /* one error for each forgotten statement */
        }
    }
    PQclear(PQexec(db, "SET client_min_messages = error"));
}

/* -- keys -- */

static int64_t enqueue_key(const char *key, jobq_error wanted_error)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    int64_t id = 0;

    job.key = key;
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, &id, &error), wanted_error);
    return id;
}

/* "One job per queue and key, until a day after its end": whether or not somebody has swept up
 * meanwhile. */
static void a_key_is_free_a_day_after_the_end_even_if_nobody_swept(void **unused)
{
    int64_t first, second;
    jobq_job job;

    (void)unused;
    first = enqueue_key("a", JOBQ_OK);
    register_worker(WORKER, 600 * SECOND);
    job = claim_one(WORKER, ++next_claim, false);
    settle_with(&job, JOBQ_EVENT_SUCCESS, NULL);
    assert_int_equal(enqueue_key("a", JOBQ_ERROR_EXISTS), first);
    RUN("UPDATE jobq.idempotency SET ended_at = now() - interval '25 hours'");
    second = enqueue_key("a", JOBQ_OK);
    assert_true(second != first);
    RUN("SELECT jobq.prune(100)");
    assert_int_equal(enqueue_key("a", JOBQ_ERROR_EXISTS), second);
}

/* A failed job whose key has long been another job's is not revived. One that a direct writer gave
 * the same key may end: the other job's window must not start. */
static void the_end_of_an_old_job_does_not_free_the_key_of_a_new_one(void **unused)
{
    int64_t first, second;
    jobq_pg_error error;
    jobq_job job;

    (void)unused;
    first = enqueue_key("a", JOBQ_OK);
    register_worker(WORKER, 600 * SECOND);
    job = claim_one(WORKER, ++next_claim, false);
    settle_with(&job, JOBQ_EVENT_DISCARD, "no");
    RUN("UPDATE jobq.idempotency SET ended_at = now() - interval '25 hours'");
    RUN("SELECT jobq.prune(100)");
    second = enqueue_key("a", JOBQ_OK);
    assert_true(second != first);
    assert_int_equal(jobq_pg_revive(pg, NULL, ONE(first), NULL, &error), JOBQ_ERROR_EXISTS);
    RUN("UPDATE jobq.job SET run_at = 'infinity'"); /* the new one waits */
    RUN("INSERT INTO jobq.job (queue_id, kind_id, key) SELECT queue_id, id, 'a' FROM jobq.kind");
    job = claim_one(WORKER, ++next_claim, false);
    assert_true(job.id != second);
    settle_with(&job, JOBQ_EVENT_SUCCESS, NULL);
    assert_int_equal(
        number("SELECT count(*) FROM jobq.idempotency WHERE ended_at IS NULL AND job_id = %lld",
               (long long)second),
        1);
}

/* Whatever the order of the pages. */
static void a_claim_answers_the_most_urgent_first(void **unused)
{
    static const int priorities[] = {2, 0, 1, 2, 0, 1};
    jobq_pg_job job = plain_job();
    jobq_lane lanes[3];
    verb_claim_desc d;
    verb_batch batch;
    jobq_pg_error error;
    char payload[8];
    size_t i;

    (void)unused;
    for (i = 0; i < 6; i++) {
        snprintf(payload, sizeof payload, "%d", priorities[i]);
        job.priority = priorities[i];
        job.payload = jobq_str_from(payload);
        enqueue_with(&job);
    }
    memset(lanes, 0, sizeof lanes);
    memset(&d, 0, sizeof d);
    for (i = 0; i < 3; i++) {
        lanes[i].queue = register_worker(WORKER + (int64_t)i, 600 * SECOND);
        lanes[i].priority = (int16_t)i;
        lanes[i].after_at_us = INT64_MIN;
    }
    d.worker = WORKER;
    d.number = ++next_claim;
    d.limit = 10;
    d.lanes = lanes;
    d.lane_count = 3;
    assert_int_equal(verb_claim(pg, NULL, &d, &batch, &error), JOBQ_OK);
    assert_int_equal(batch.count, 6);
    for (i = 0; i < 6; i++) {
        assert_int_equal(batch.jobs[i].priority, (int)i / 2);
        assert_true(i % 2 == 0 || batch.jobs[i].id > batch.jobs[i - 1].id);
        snprintf(payload, sizeof payload, "%d", (int)i / 2);
        assert_true(jobq_str_equal(verb_batch_payload(&batch, i, NULL), jobq_str_from(payload)));
    }
    verb_batch_clear(&batch);
}

static void a_worker_registers_once(void **unused)
{
    static const char *const queues[] = {"q"};
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(verb_register(pg, NULL, WORKER, "w", 0, queues, 1, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(verb_register(pg, NULL, WORKER, "w", SECOND, queues, 1, NULL, &error),
                     JOBQ_OK);
    assert_int_equal(verb_register(pg, NULL, WORKER, "w", SECOND, queues, 1, NULL, &error),
                     JOBQ_ERROR_EXISTS);
}

/* -- locks in one order -- */

static void keys_in_any_order_do_not_deadlock(void **unused)
{
    (void)unused;
    open_box(1);
    run_a("BEGIN");
    run_a("SELECT jobq.outbox_enqueue('o', '1', key => 'a')");
    b_asks("SELECT existed FROM jobq._outbox_enqueue_many('o', NULL, NULL, NULL,"
         " ARRAY['1', '2']::jsonb[], NULL, NULL, ARRAY['b', 'a'], 2, false)");
    run_a("SELECT jobq.outbox_enqueue('o', '1', key => 'b')");
    run_a("COMMIT");
    is_answered("{t,t}");
}

#define NULLS "NULL", "NULL", "NULL"
#define PARK "SELECT jobq._settle('{%s}', '{%s}', '{%s}', '{%s}', '{%s}', '{%s}', '{%s}', '{%s}'," \
             " '{%s}', '{%s}', '{%s}', '{%s}')"

/* Two workers find two kinds without handlers. */
static void kinds_parked_in_any_order_do_not_deadlock(void **unused)
{
    verb_batch batch;
    jobq_pg_job job = plain_job();
    char ids[4][40], both[100];
    PGresult *res;
    int i;

    (void)unused;
    for (i = 0; i < 4; i++) {
        job.kind = i % 2 == 0 ? "k1" : "k2";
        enqueue_with(&job);
    }
    register_worker(101, 60 * SECOND);
    register_worker(102, 60 * SECOND);
    for (i = 0; i < 4; i++) {
        assert_int_equal(claim_by(101 + i / 2, 1 + i % 2, 1, false, &batch), JOBQ_OK);
        snprintf(ids[i], sizeof ids[i], "%lld", (long long)batch.jobs[0].id);
        verb_batch_clear(&batch);
    }
    run_a("BEGIN");
    PQclear(sql(a, PARK, "101", "1", ids[0], "r", "0", "0", "0", "f", "-1", NULLS));
    snprintf(both, sizeof both, "%s,%s", ids[3], ids[2]);
    res = sql(b, PARK, "102,102", "2,1", both, "r,r", "0,0", "0,0", "0,0", "f,f", "-1,-1",
              "NULL,NULL", "NULL,NULL", "NULL,NULL");
    assert_int_equal(PQntuples(res), 1); /* the kind of the other one is locked */
    PQclear(res);
    PQclear(sql(a, PARK, "101", "2", ids[1], "r", "0", "0", "0", "f", "-1", NULLS));
    run_a("COMMIT");
    PQclear(sql(b, PARK, "102", "1", ids[2], "r", "0", "0", "0", "f", "-1", NULLS));
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE run_at = 'infinity'"), 4);
}

/* -- both at once -- */

/* A kind is unique by its queue's id and by its queue's name. The one that comes second by
 * either finds the other's. */
static void both_sessions_may_bring_the_same_new_kind(void **unused)
{
    char query[100], waiting[100], *text;
    int64_t until = mono_us() + 10 * SECOND; /* the race is a narrow one */
    int i;

    (void)unused;
    enqueue_count(1);
    snprintf(waiting, sizeof waiting, "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted "
             "AND pid IN (%d, %d)", PQbackendPID(a), PQbackendPID(b));
    for (i = 0; i < 300 || mono_us() < until; i++) {
        snprintf(query, sizeof query, "SELECT 1 FROM jobq.enqueue('q', 'new%d')", i);
        text = for_schema(query, schema);
        RUN("BEGIN; SELECT FROM jobq.queue FOR UPDATE"); /* both wait here, and go on at once */
        assert_int_equal(PQsendQuery(a, text), 1);
        assert_int_equal(PQsendQuery(b, text), 1);
        free(text);
        assert_true(becomes(20, 2, waiting));
        RUN("COMMIT");
        expect_answer(a, PQgetResult(a), "1");
        expect_answer(b, PQgetResult(b), "1");
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.kind WHERE name ~ '^new'"), i);
}

/* X2: which jobs a claim takes, in which order, and which it leaves. */
static void a_claim_takes_later_stages_then_age(void **unused)
{
    jobq_pg_job job = plain_job();
    verb_batch batch;
    int64_t ids[6];
    int i;

    (void)unused;
    job.stages = 2;
    for (i = 0; i < 4; i++) ids[i] = enqueue_with(&job);
    job.delay_us = 3600 * SECOND;
    ids[4] = enqueue_with(&job);
    RUN("UPDATE jobq.job SET stage = 1 WHERE id = %lld", (long long)ids[2]);
    RUN("UPDATE jobq.job SET run_at = run_at - interval '1 hour' WHERE id = %lld",
        (long long)ids[3]);
    register_worker(101, 60 * SECOND);
    assert_int_equal(claim_one(101, 1, false).id, ids[2]); /* started work first */
    assert_int_equal(claim_one(101, 2, false).id, ids[3]); /* then the oldest */
    assert_int_equal(claim_by(101, 3, 9, false, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 2);
    verb_batch_clear(&batch);
    assert_int_equal(claim_by(101, 4, 9, false, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 0);
    assert_in_range(batch.due_us, 3590 * SECOND, 3600 * SECOND);
    verb_batch_clear(&batch);
}

static void revive_runs_a_failed_job_again(void **unused)
{
    jobq_pg_error error;
    jobq_job job, got;

    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    job = claim_one(101, 1, false);
    assert_int_equal(settle_with(&job, JOBQ_EVENT_DISCARD, "first"), JOBQ_OK);
    assert_int_equal(jobq_pg_revive(pg, NULL, ONE(job.id), NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_revive(pg, NULL, ONE(job.id), NULL, &error), JOBQ_ERROR_TRANSITION);
    assert_int_equal(jobq_pg_get(pg, NULL, job.id, &got, &error), JOBQ_OK);
    assert_int_equal(got.state, JOBQ_STATE_READY);
    assert_int_equal(got.attempt, 0);
    job = claim_one(101, 2, false);
    assert_int_equal(settle_with(&job, JOBQ_EVENT_DISCARD, "second"), JOBQ_OK);
    assert_int_equal(number("SELECT jsonb_array_length(errors) FROM jobq.failed"),
                     2); /* all are kept */
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pg_empty, all_stop)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(every_verb_meets_every_state),
        TEST(get_tells_every_state),
        TEST(a_claim_answers_the_most_urgent_first),
        TEST(a_worker_registers_once),
        TEST(a_rescue_steps_over_a_job_that_is_being_completed),
        TEST(verbs_from_all_sides_lose_no_job),
        TEST(a_claim_of_100_is_one_statement),
        TEST(schemas_of_any_name_stand_side_by_side),
        TEST(a_session_that_forgets_its_statements_recovers),
        TEST(a_key_is_free_a_day_after_the_end_even_if_nobody_swept),
        TEST(the_end_of_an_old_job_does_not_free_the_key_of_a_new_one),
        TEST(a_claim_takes_later_stages_then_age),
        TEST(revive_runs_a_failed_job_again),
        WITH_TWO(both_sessions_may_bring_the_same_new_kind),
        WITH_TWO(keys_in_any_order_do_not_deadlock),
        WITH_TWO(kinds_parked_in_any_order_do_not_deadlock),
    };

    return cmocka_run_group_tests_name("verbs", tests, pg_up, pg_down);
}
