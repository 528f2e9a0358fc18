/*
 * The fence: a stale worker cannot write anything. Also claims, rescue, suspects, lost answers and
 * restore. Rows X2, X3, X5 to X7, X9 to X11; promises 1, 3 and 4.
 */
#include "pg.h"

#define LEASE (300 * 1000) /* a short one: 0.3 s */

static const jobq_event_kind worker_events[] = {JOBQ_EVENT_SUCCESS, JOBQ_EVENT_RETRY,
                                                JOBQ_EVENT_TIMEOUT, JOBQ_EVENT_DISCARD,
                                                JOBQ_EVENT_SNOOZE,  JOBQ_EVENT_CANCELLED,
                                                JOBQ_EVENT_RELEASE, JOBQ_EVENT_PARK};

static int64_t beat_of(int64_t worker)
{
    return number("SELECT beat FROM jobq.worker WHERE id = %lld", (long long)worker);
}

/* Rescues a worker whose lease has run out. */
static int32_t rescue(int64_t worker)
{
    jobq_pg_error error;
    int32_t rescued = -1;

    if (verb_rescue(pg, NULL, worker, beat_of(worker), &rescued, &error) != JOBQ_OK) {
        fail_msg("%s", error.message);
    }
    return rescued;
}

/* Settling in an open transaction, as a handler does. Whether the COMMIT was one. */
static bool settles_here(const jobq_job *job)
{
    PGresult *res;
    bool committed;

    RUN("BEGIN");
    res = PQexec(db, "SELECT 1");
    PQclear(res);
    {
        char generic[400], *text;
        snprintf(generic, sizeof generic,
                 "SELECT jobq.settle_here(%lld, %lld, %lld, 's', %d::int2, %d, 0, false, 0, NULL, "
                 "NULL, NULL)",
                 (long long)job->worker, (long long)job->claim, (long long)job->id, (int)job->stage,
                 (int)job->attempt);
        text = for_schema(generic, schema);
        res = PQexec(db, text);
        free(text);
    }
    if (PQresultStatus(res) == PGRES_FATAL_ERROR) {
        assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "JQ001");
    }
    PQclear(res);
    res = PQexec(db, "COMMIT");
    committed = strcmp(PQcmdStatus(res), "COMMIT") == 0;
    PQclear(res);
    return committed;
}

/* X7: A's lease ends, B has the job; whatever A says is lost, and B's row stays as it is. */
static void a_stale_worker_changes_nothing(void **unused)
{
    jobq_job mine, theirs;
    jobq_pg_error error;
    char *before, *after;
    size_t i;

    (void)unused;
    enqueue_count(1);
    register_worker(101, LEASE);
    register_worker(102, 60 * SECOND);
    mine = claim_one(101, 1, false);
    nap_us(LEASE + 50000);
    assert_int_equal(rescue(101), 1);
    theirs = claim_one(102, 1, true);
    assert_int_equal(theirs.id, mine.id);
    before = everything();
    for (i = 0; i < COUNT(worker_events); i++) {
        assert_int_equal(settle_with(&mine, worker_events[i], "late"), JOBQ_ERROR_LOST);
    }
    assert_false(settles_here(&mine));
    assert_int_equal(verb_heartbeat(pg, NULL, 101, LEASE, &error), JOBQ_ERROR_DEAD);
    after = everything();
    assert_string_equal(before, after);
    free(before);
    free(after);
    assert_int_equal(settle_with(&theirs, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE worker = 102"), 1);
}

/* The same after the job has ended, failed, or was claimed again by the same worker. */
static void a_late_word_about_an_ended_job_changes_nothing(void **unused)
{
    jobq_job first, second;
    char *before, *after;
    size_t i;

    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    first = claim_one(101, 1, false);
    assert_int_equal(settle_with(&first, JOBQ_EVENT_RELEASE, NULL), JOBQ_OK);
    second = claim_one(101, 2, false);
    before = everything();
    for (i = 0; i < COUNT(worker_events); i++) { /* an older claim of its own */
        assert_int_equal(settle_with(&first, worker_events[i], "late"), JOBQ_ERROR_LOST);
    }
    after = everything();
    assert_string_equal(before, after);
    free(before);
    free(after);
    assert_int_equal(settle_with(&second, JOBQ_EVENT_DISCARD, "broken"), JOBQ_OK);
    before = everything();
    for (i = 0; i < COUNT(worker_events); i++) {
        assert_int_equal(settle_with(&second, worker_events[i], "late"), JOBQ_ERROR_LOST);
    }
    assert_false(settles_here(&second));
    after = everything();
    assert_string_equal(before, after);
    free(before);
    free(after);
}

/* X6 on the database: each decision writes what jobq.h says. */
static void every_event_writes_what_was_decided(void **unused)
{
    jobq_pg_job wanted = plain_job();
    jobq_policy policy = jobq_policy_defaults(NULL);
    size_t i;

    (void)unused;
    wanted.stages = 2;
    register_worker(101, 60 * SECOND);
    for (i = 0; i < COUNT(worker_events); i++) {
        int64_t id = enqueue_with(&wanted);
        jobq_job model = claim_one(101, (int64_t)i + 1, false), real;
        jobq_event event;
        jobq_decision d;
        jobq_pg_error error;
        memset(&event, 0, sizeof event);
        event.kind = worker_events[i];
        assert_int_equal(model.id, id);
        assert_int_equal(settle_with(&model, event.kind, "why"), JOBQ_OK);
        assert_int_equal(jobq_job_decide(&policy, &model, &event, &d), JOBQ_OK);
        jobq_job_apply(&model, &d, 0);
        assert_int_equal(jobq_pg_get(pg, NULL, id, &real, &error), JOBQ_OK);
        assert_int_equal(real.state, model.state);
        assert_int_equal(real.stage, model.stage);
        assert_int_equal(real.attempt, model.attempt);
        assert_int_equal(real.crash, model.crash);
        assert_int_equal(real.suspect, model.suspect);
        assert_int_equal(real.alone, model.alone);
        assert_true(real.worker == model.worker && real.claim == model.claim);
        assert_int_equal(real.run_at_us == JOBQ_NEVER, event.kind == JOBQ_EVENT_PARK);
        RUN("TRUNCATE jobq.job");
    }
}

/* X2, without the explain (test_pg_schema): order, limit, what is left out. */
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

static void a_claim_number_works_once_and_a_dead_worker_not_at_all(void **unused)
{
    verb_batch batch;
    jobq_pg_error error;

    (void)unused;
    enqueue_count(3);
    register_worker(101, LEASE);
    claim_one(101, 1, false);
    assert_int_equal(claim_by(101, 1, 1, false, &batch), JOBQ_ERROR_EXISTS);
    assert_int_equal(claim_by(555, 1, 1, false, &batch), JOBQ_ERROR_DEAD); /* never registered */
    nap_us(LEASE + 50000);
    rescue(101);
    assert_int_equal(claim_by(101, 2, 1, false, &batch), JOBQ_ERROR_DEAD);
    assert_int_equal(verb_heartbeat(pg, NULL, 101, LEASE, &error), JOBQ_ERROR_DEAD);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x'"), 0);
}

/* Lost answers: the number is burned, or the jobs go back to their lanes. */
static void a_claim_without_answer_is_recovered_or_burned(void **unused)
{
    verb_batch batch;
    jobq_pg_error error;
    bool more = false;

    (void)unused;
    enqueue_count(5);
    register_worker(101, 60 * SECOND);
    assert_int_equal(claim_by(101, 1, 4, false, &batch), JOBQ_OK);
    settle_with(&batch.jobs[0], JOBQ_EVENT_SUCCESS, NULL);
    verb_batch_clear(&batch);
    assert_int_equal(verb_recover(pg, NULL, 101, 1, 2, &more, &error), JOBQ_OK);
    assert_true(more); /* of three that still bear the token */
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x'"), 1);
    assert_int_equal(verb_recover(pg, NULL, 101, 1, 2, &more, &error), JOBQ_OK);
    assert_false(more);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"), 4);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    assert_int_equal(verb_recover(pg, NULL, 101, 2, 2, &more, &error), JOBQ_OK);
    assert_false(more);
    assert_int_equal(claim_by(101, 1, 1, false, &batch), JOBQ_ERROR_EXISTS); /* too late: burned */
    assert_int_equal(claim_by(101, 2, 1, false, &batch), JOBQ_ERROR_EXISTS);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 4);
}

/* X11: only an expired lease, only an unchanged beat, is a death. */
static void a_living_worker_is_never_rescued(void **unused)
{
    jobq_pg_error error;
    int32_t rescued;
    int64_t beat;

    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    claim_one(101, 1, false);
    assert_int_equal(verb_rescue(pg, NULL, 101, beat_of(101), &rescued, &error),
                     JOBQ_ERROR_BUSY);
    assert_int_equal(verb_heartbeat(pg, NULL, 101, LEASE, &error), JOBQ_OK);
    nap_us(LEASE + 50000);
    beat = beat_of(101);
    assert_int_equal(verb_heartbeat(pg, NULL, 101, LEASE, &error),
                     JOBQ_OK); /* late, but in time */
    nap_us(LEASE + 50000);
    assert_int_equal(verb_rescue(pg, NULL, 101, beat, &rescued, &error), JOBQ_ERROR_BUSY);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x'"), 1);
    assert_int_equal(rescue(101), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE dead_at IS NOT NULL"), 1);
}

/* Expiry alone, noticed by nobody, takes nothing away. */
static void an_expired_lease_may_still_complete(void **unused)
{
    jobq_job job;

    (void)unused;
    enqueue_count(1);
    register_worker(101, LEASE);
    job = claim_one(101, 1, false);
    nap_us(LEASE + 50000);
    assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
}

/* Promise 4 on the database: 20 jobs, one poison. It kills as one of many, as a suspect, and three
 * times alone; the others lose nothing. */
static void suspects_run_alone_and_the_poison_fails(void **unused)
{
    verb_batch batch;
    int64_t worker = 201, poison;
    int deaths = 0;

    (void)unused;
    enqueue_count(20);
    register_worker(worker, LEASE);
    assert_int_equal(claim_by(worker, 1, 20, false, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 20);
    poison = batch.jobs[7].id;
    verb_batch_clear(&batch);
    nap_us(LEASE + 50000);
    assert_int_equal(rescue(worker), 20);
    assert_int_equal(
        number("SELECT count(*) FROM jobq.job WHERE suspect AND attempt = 0 AND crash = 0"), 20);
    register_worker(++worker, LEASE);
    assert_int_equal(claim_by(worker, 100, 20, false, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 0); /* no suspect among others */
    assert_true(batch.suspects);
    verb_batch_clear(&batch);
    for (;;) {
        static int64_t claim = 1000;
        jobq_error error = claim_by(worker, ++claim, 5, true, &batch);
        jobq_job job;
        if (error == JOBQ_OK && batch.count == 0 && batch.alone) {
            error = claim_by(worker, ++claim, 5, ALONE, &batch);
        }
        if (error == JOBQ_ERROR_DEAD) fail_msg("dead");
        if (batch.count == 0) break;
        assert_int_equal(batch.count, 1); /* one at a time, whatever the limit */
        job = batch.jobs[0];
        verb_batch_clear(&batch);
        if (job.id != poison) {
            assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
            continue;
        }
        assert_int_equal(job.alone, deaths++ > 0);
        assert_int_equal(job.crash, deaths > 2 ? deaths - 2 : 0);
        nap_us(LEASE + 50000);
        rescue(worker);
        register_worker(++worker, LEASE + 10 * SECOND);
        RUN("UPDATE jobq.worker SET lease_us = %d, expires_at = now() + interval '0.3 s' WHERE id "
            "= %lld",
            LEASE, (long long)worker);
    }
    verb_batch_clear(&batch);
    assert_int_equal(deaths, 4);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE attempt = 1 AND crash = 0"),
                     19);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE id = %lld AND crash = 3 AND "
                            "errors->-1->>'error' = 'Max crashes (3) exceeded: worker died'",
                            (long long)poison), 1);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void a_rescue_cancels_what_was_to_be_cancelled(void **unused)
{
    jobq_pg_error error;
    int64_t requested = 0;
    jobq_job job;

    (void)unused;
    enqueue_count(1);
    register_worker(101, LEASE);
    job = claim_one(101, 1, false);
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(job.id), NULL, &requested, &error), JOBQ_OK);
    assert_int_equal(requested, 1);
    nap_us(LEASE + 50000);
    assert_int_equal(rescue(101), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 'c'"), 1);
}

static void a_cancel_request_wins_over_a_put_back(void **unused)
{
    jobq_pg_error error;
    jobq_job job;

    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    job = claim_one(101, 1, false);
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(job.id), NULL, NULL, &error), JOBQ_OK);
    assert_int_equal(settle_with(&job, JOBQ_EVENT_RETRY, "asked meanwhile"), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 'c'"), 1);
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(job.id), NULL, NULL, &error),
                     JOBQ_ERROR_TRANSITION);
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

/* A locked row is busy, at once; the batch never waits for it. */
static void a_locked_job_is_answered_as_busy(void **unused)
{
    jobq_job job;

    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    job = claim_one(101, 1, false);
    RUN("BEGIN"); /* if one waited, it would wait for this thread */
    RUN("SELECT FROM jobq.job WHERE id = %lld FOR UPDATE", (long long)job.id);
    assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_ERROR_BUSY);
    assert_int_equal(settle_with(&job, JOBQ_EVENT_RETRY, "x"), JOBQ_ERROR_BUSY);
    RUN("COMMIT");
    assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
}

/* Promise 7 in small: the tables as they were before the claim are put back; the old token fits
 * nowhere. */
static void after_a_restore_the_stale_worker_is_refused(void **unused)
{
    jobq_job old, again;
    char *before, *after;
    size_t i;

    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    RUN("CREATE TABLE jobq.saved_job AS TABLE jobq.job");
    RUN("CREATE TABLE jobq.saved_worker AS TABLE jobq.worker");
    old = claim_one(101, 1, false);
    RUN("TRUNCATE jobq.job, jobq.worker, jobq.claim");
    RUN("INSERT INTO jobq.job SELECT * FROM jobq.saved_job");
    RUN("INSERT INTO jobq.worker SELECT * FROM jobq.saved_worker");
    RUN("DROP TABLE jobq.saved_job, jobq.saved_worker");
    before = everything();
    for (i = 0; i < COUNT(worker_events); i++) {
        assert_int_equal(settle_with(&old, worker_events[i], "from before"), JOBQ_ERROR_LOST);
    }
    assert_false(settles_here(&old));
    after = everything();
    assert_string_equal(before, after);
    free(before);
    free(after);
    register_worker(102, 60 * SECOND);
    again = claim_one(102, 1, false);
    assert_int_equal(again.id, old.id);
    assert_int_equal(settle_with(&old, JOBQ_EVENT_SUCCESS, NULL), JOBQ_ERROR_LOST);
    assert_int_equal(settle_with(&again, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
}

/* The copy holds a job as running that its living worker has finished elsewhere: renew takes it
 * back, and numbers no job as one that is there. */
static void renew_takes_running_jobs_back_and_moves_the_sequences(void **unused)
{
    int64_t epoch = number("SELECT epoch FROM jobq.meta");
    jobq_job old, again;

    (void)unused;
    enqueue_count(2);
    register_worker(101, 60 * SECOND);
    old = claim_one(101, 1, false);
    RUN("SELECT setval('jobq.job_id', 1), setval(pg_get_serial_sequence('jobq.queue', 'id'), 1),"
        " setval(pg_get_serial_sequence('jobq.kind', 'id'), 1)");
    RUN("SELECT jobq.renew()");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"), 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim"), 0);
    assert_int_not_equal(number("SELECT epoch FROM jobq.meta"), epoch);
    assert_int_equal(settle_with(&old, JOBQ_EVENT_SUCCESS, NULL), JOBQ_ERROR_LOST);
    claim_one(101, 2, false);
    again = claim_one(101, 3, false); /* the worker lives on, under its next numbers */
    assert_int_equal(again.id, old.id);
    assert_int_equal(settle_with(&again, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    enqueue_count(1);
    assert_true(number("SELECT max(id) FROM jobq.job") > old.id + 1000000);
    assert_true(number("SELECT jobq.queue_id('another')") >
                number("SELECT id FROM jobq.queue WHERE name = 'q'"));
}

/* X5: killed right after the claim, no heartbeat ever: claimable again after the lease. */
static void a_kill_right_after_the_claim_costs_one_lease(void **unused)
{
    jobq_job job;
    int status;
    pid_t pid;

    (void)unused;
    enqueue_count(1);
    register_worker(101, LEASE);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        pg = handle();
        db = PQconnectdb(server());
        claim_one(101, 1, false);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x'"), 1);
    nap_us(LEASE + 50000);
    assert_int_equal(rescue(101), 1);
    register_worker(102, 60 * SECOND);
    job = claim_one(102, 1, true);
    assert_int_equal(job.attempt, 1);
}

/* X3: an open claim is stepped over, at once. (A row that was ready in the claimer's snapshot and
 * has been claimed since may make it wait for a moment: Postgres locks the newer version before it
 * looks again.) */
static void a_claimer_never_waits_for_an_open_claim(void **unused)
{
    PGconn *other = PQconnectdb(server());
    jobq_lane lane = {0, 0, 0, INT64_MIN, 0};
    verb_claim_desc d;
    verb_batch first, second;
    jobq_pg_error error;

    (void)unused;
    enqueue_count(10);
    memset(&d, 0, sizeof d);
    lane.queue = register_worker(101, 60 * SECOND);
    register_worker(102, 60 * SECOND);
    d.worker = 101;
    d.number = 1;
    d.limit = 6;
    d.lanes = &lane;
    d.lane_count = 1;
    RUN("BEGIN");
    assert_int_equal(verb_claim(pg, db, &d, &first, &error), JOBQ_OK);
    assert_int_equal(first.count, 6);
    PQclear(PQexec(other, "SET lock_timeout = '1ms'"));
    d.worker = 102;
    assert_int_equal(verb_claim(pg, other, &d, &second, &error), JOBQ_OK);
    assert_int_equal(second.count, 4);
    RUN("COMMIT");
    verb_batch_clear(&first);
    verb_batch_clear(&second);
    PQfinish(other);
    assert_int_equal(number("SELECT count(DISTINCT id) FROM jobq.job WHERE state = 'x'"), 10);
}

/* ---- X3: 16 connections, 10,000 jobs, each once ---------------------------------------------- */

#define CLAIMERS 16

static int32_t x3_queue;
static int x3_seen[200000];

static void x3_die(const char *what, const jobq_pg_error *error)
{
    fprintf(stderr, "%s: %s %s\n", what, error ? error->sqlstate : "", error ? error->message : "");
    abort();
}

/* Another claimer may hold a row for a moment: it saw it ready, locked it, saw it running. Busy,
 * then. */
static void x3_settle(PGconn *conn, verb_result *results, size_t count)
{
    jobq_error answers[50];
    jobq_pg_error error;
    size_t i, busy;

    while (count > 0) {
        if (verb_settle(pg, conn, results, count, answers, &error)) x3_die("settle", &error);
        for (i = busy = 0; i < count; i++) {
            if (answers[i] == JOBQ_ERROR_BUSY) results[busy++] = results[i];
            else if (answers[i] != JOBQ_OK) x3_die(jobq_enum_name(JOBQ_ENUM_ERROR, answers[i]),
                                                   NULL);
        }
        count = busy;
    }
}

static void *claimer(void *arg)
{
    int64_t worker = 300 + (int64_t)(intptr_t)arg, claim = 0;
    PGconn *conn = PQconnectdb(server());
    jobq_pg_error error;
    bool more = true;

    PQclear(PQexec(conn, "SET lock_timeout = '60s'")); /* nobody waits for ever */
    while (more) {
        jobq_lane lane = {x3_queue, 0, 0, INT64_MIN, 0};
        verb_claim_desc d;
        verb_batch batch;
        verb_result results[50];
        size_t i;
        memset(&d, 0, sizeof d);
        memset(results, 0, sizeof results);
        d.worker = worker;
        d.number = ++claim;
        d.limit = 50;
        d.lanes = &lane;
        d.lane_count = 1;
        if (verb_claim(pg, conn, &d, &batch, &error) != JOBQ_OK) x3_die("claim", &error);
        for (i = 0; i < batch.count; i++) {
            __atomic_add_fetch(&x3_seen[batch.jobs[i].id % 200000], 1, __ATOMIC_RELAXED);
            results[i].id = batch.jobs[i].id;
            results[i].worker = worker;
            results[i].claim = claim;
            results[i].decision.state = JOBQ_STATE_SUCCEEDED;
        }
        x3_settle(conn, results, batch.count);
        more = batch.count > 0; /* short or none at the end: others have the rest */
        verb_batch_clear(&batch);
    }
    PQfinish(conn);
    return NULL;
}

static void sixteen_connections_do_each_of_10000_jobs_once(void **unused)
{
    pthread_t threads[CLAIMERS];
    size_t count = check_slow() ? 2000 : 10000, i, once = 0;

    (void)unused;
    memset(x3_seen, 0, sizeof x3_seen);
    enqueue_count(count);
    for (i = 0; i < CLAIMERS; i++) x3_queue = register_worker(300 + (int64_t)i, 600 * SECOND);
    do {
        for (i = 0; i < CLAIMERS; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, claimer, (void *)(intptr_t)i), 0);
        }
        for (i = 0; i < CLAIMERS; i++) pthread_join(threads[i], NULL);
        RUN("DELETE FROM jobq.claim");
    } while (number("SELECT count(*) FROM jobq.job") > 0);
    for (i = 0; i < COUNT(x3_seen); i++) {
        assert_true(x3_seen[i] <= 1);
        once += x3_seen[i] == 1;
    }
    assert_int_equal(once, count);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), count);
}

/* A direct writer may choose any id. Such ids stop no failover, do not use the range up, and their
 * jobs are like others. */
static void ids_at_the_end_of_the_range_are_survived(void **unused)
{
    static const long long far = 9223372036854775807LL;
    static const char *const looks[] = {"TABLE jobq.jobs",     "TABLE jobq.queues",
                                        "TABLE jobq.workers",  "TABLE jobq.failures",
                                        "SELECT jobq.audit()", "SELECT * FROM jobq.peek()"};
    jobq_pg_error error;
    jobq_job job;
    size_t i;

    (void)unused;
    enqueue_count(1);
    register_worker(101, 600 * SECOND);
    job = claim_one(101, 1, false);
    settle_with(&job, JOBQ_EVENT_SUCCESS, NULL);
    RUN("INSERT INTO jobq.job (id, queue_id, kind_id) SELECT %lld - i, k.queue_id, k.id FROM "
        "jobq.kind k, generate_series(0, 3) i", far);
    for (i = 0; i < 4; i++) {
        job = claim_one(101, (int64_t)i + 2, false);
        assert_true(job.id >= far - 3);
        if (i < 2) settle_with(&job, i == 0 ? JOBQ_EVENT_SUCCESS : JOBQ_EVENT_DISCARD, "no");
    }
    for (i = 0; i < COUNT(looks); i++) PQclear(sql(db, "%s", looks[i]));
    RUN("SELECT jobq.renew()");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 2);
    assert_int_equal(number("SELECT (last_value < 1::bigint << 62 AND last_value > 1000000)::int "
                            "FROM jobq.job_id"), 1);
    for (i = 0; i < COUNT(looks); i++) PQclear(sql(db, "%s", looks[i]));
    assert_int_equal(jobq_pg_revive(pg, NULL, ONE(number("SELECT id FROM jobq.failed")), NULL,
                                    &error),
                     JOBQ_OK);
    enqueue_count(1);
    RUN("SELECT setval('jobq.job_id', %lld)", far - 4);
    RUN("SELECT jobq.renew()"); /* a sequence at its end: no error */
    RUN("SELECT setval('jobq.job_id', 5000000)");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_stale_worker_changes_nothing, pg_empty),
        cmocka_unit_test_setup(a_late_word_about_an_ended_job_changes_nothing, pg_empty),
        cmocka_unit_test_setup(every_event_writes_what_was_decided, pg_empty),
        cmocka_unit_test_setup(a_claim_takes_later_stages_then_age, pg_empty),
        cmocka_unit_test_setup(a_claim_number_works_once_and_a_dead_worker_not_at_all, pg_empty),
        cmocka_unit_test_setup(a_claim_without_answer_is_recovered_or_burned, pg_empty),
        cmocka_unit_test_setup(a_living_worker_is_never_rescued, pg_empty),
        cmocka_unit_test_setup(an_expired_lease_may_still_complete, pg_empty),
        cmocka_unit_test_setup(suspects_run_alone_and_the_poison_fails, pg_empty),
        cmocka_unit_test_setup(a_rescue_cancels_what_was_to_be_cancelled, pg_empty),
        cmocka_unit_test_setup(a_cancel_request_wins_over_a_put_back, pg_empty),
        cmocka_unit_test_setup(revive_runs_a_failed_job_again, pg_empty),
        cmocka_unit_test_setup(ids_at_the_end_of_the_range_are_survived, pg_empty),
        cmocka_unit_test_setup(a_locked_job_is_answered_as_busy, pg_empty),
        cmocka_unit_test_setup(after_a_restore_the_stale_worker_is_refused, pg_empty),
        cmocka_unit_test_setup(renew_takes_running_jobs_back_and_moves_the_sequences, pg_empty),
        cmocka_unit_test_setup(a_kill_right_after_the_claim_costs_one_lease, pg_empty),
        cmocka_unit_test_setup(a_claimer_never_waits_for_an_open_claim, pg_empty),
        cmocka_unit_test_setup(sixteen_connections_do_each_of_10000_jobs_once, pg_empty),
    };

    return cmocka_run_group_tests_name("fence", tests, pg_up, pg_down);
}
