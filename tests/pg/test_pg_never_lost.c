/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Promise 1: nothing that is committed is lost. Workers and the server die, connections are cut,
 * claims stay without an answer, commits come late, kinds have no handler: every job is done in
 * the end. Rows X2, X3, X5, X11, X13.
 *
 * test_pg_points.c and test_pg_faults.c try the same at every step and call; test_pg_pairs.c with
 * each pair of SQL functions; test_pg_upheaval.c while tables, servers and disks change.
 */
#include <stdint.h>
static int64_t slice_cost_us = 50000;
static int slices; /* made in this process */
#define JOBQ_LOOP_SLICE_COST_US slice_cost_us
#define JOBQ_LOOP_SLICE_US 1000000 /* less than the job below is late */
/* One in five is the last of its sweep, so a sweep is over soon, however long a slice takes. */
#define JOBQ_LOOP_SLICE_MAX_US                                                                     \
    (__atomic_add_fetch(&slices, 1, __ATOMIC_SEQ_CST) % 5 == 0 ? 0 : INT64_MAX)
#define TEST_PRIVATE
#include "processes.h"
#include "sessions.h"

/* -- a worker dies or stops -- */

/* How long a dead worker's jobs wait, in microseconds; its lease is a second. */
static int64_t a_death_is_noticed(void)
{
    verb_batch batch;
    int64_t died;
    pid_t heir;

    quick_queue(NULL);
    enqueue_count(20);
    heir = spawn_one(succeed, SECOND); /* has been alive for a lease when the other dies */
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.job"));
    RUN("UPDATE jobq.queue SET paused_at = now()");
    all_hear();
    enqueue_count(20);
    died = mono_us();
    register_worker(4242, SECOND); /* never beats again */
    assert_int_equal(claim_by(4242, 1, 20, false, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 20);
    verb_batch_clear(&batch);
    RUN("UPDATE jobq.queue SET paused_at = NULL");
    assert_true(becomes(20, 40, "SELECT count(*) FROM jobq.history WHERE state = 's'"));
    died = mono_us() - died;
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    kill_hard(heir);
    return died;
}

static void a_killed_workers_jobs_are_taken_within_two_leases(void **unused)
{
    int64_t waited = JOBQ_NEVER;
    int round;

    (void)unused;
    /* The next worker may have paused, too. */
    for (round = 0; round < 3 && waited > 4 * SECOND; round++) {
        waited = a_death_is_noticed();
        assert_true(waited >= SECOND);
    }
    assert_true(waited <= 4 * SECOND);
}

/* X13: SIGTERM while working, another process beside it. */
static void sigterm_releases_a_process_own_jobs(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", slow_success);
    jobq_pg_worker_desc d = work_of(&h, 1);
    pid_t first, second;

    (void)unused;
    first = spawn(&d);
    second = spawn(&d);
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.worker"));
    enqueue_count(400);
    assert_true(reaches(20, &common->runs, 40));
    kill(first, SIGTERM);
    assert_int_equal(reap(first), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job j WHERE state = 'x' AND NOT EXISTS"
                            " (SELECT FROM jobq.worker w WHERE w.id = j.worker)"), 0);
    assert_true(becomes(30, 400, "SELECT count(*) FROM jobq.history"));
    kill(second, SIGTERM);
    assert_int_equal(reap(second), 0);
    assert_int_equal(GET(common->runs), 400);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE attempt = 1"), 400);
}

/* -- connections and the server -- */

static jobq_outcome counted(jobq_call *call)
{
    (void)call;
    ADD(common->runs);
    nap_us(2000);
    return JOBQ_OUTCOME_SUCCESS;
}

/* All connections of all workers, again and again. (The word jobq would be the schema here.) */
static void cut_connections_lose_nothing_and_leave_nothing_behind(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counted);
    jobq_pg_worker_desc d = work_of(&h, 1);
    long count = check_slow() ? 2000 : 20000, cut = 0;
    pid_t pids[3];
    int i, round;
    char *since;

    (void)unused;
    enqueue_count((size_t)count);
    since = text_of("SELECT clock_timestamp()");
    for (i = 0; i < 3; i++) pids[i] = spawn(&d);
    assert_true(becomes(20, 3, "SELECT count(*) FROM jobq.worker"));
    for (round = 0; round < 500 && number("SELECT count(*) FROM jobq.history") < count; round++) {
        cut += number("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> "
                      "pg_backend_pid()"
                      " AND application_name LIKE 'jo%%' AND backend_start > '%s'",
                      since);
        if (cut <= 20) { /* enough work that a quick machine is not through before */
            enqueue_count(1000);
            count += 1000;
        }
        nap_us(10000 + round % 7 * 15000);
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
    free(since);
    assert_true(cut > 20);
    assert_true(becomes(30, 0, "SELECT count(*) FROM jobq.job"));
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), count);
    assert_int_equal(number("SELECT count(DISTINCT id) FROM jobq.history WHERE state = 's'"),
                     count);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 0);
    assert_true(GET(common->runs) >= count); /* at least once */
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.claim WHERE jobs <> '{}'"));
    for (i = 0; i < 3; i++) {
        kill(pids[i], SIGTERM);
        assert_int_equal(reap(pids[i]), 0);
    }
    assert_true(becomes(30, 0, "SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL"));
}

/* The server dies and comes back, twice; an outage rescues nobody. */
static void a_server_crash_loses_nothing(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", effect_once);
    jobq_pg_worker_desc d = work_of(&h, 1);
    long count = check_slow() ? 500 : 4000;
    pid_t pids[2];
    int i;

    (void)unused;
    if (getenv("JOBQ_SERVER_DIR") == NULL) skip();
    d.loop.lease_us = 30 * SECOND; /* they may be back seconds apart */
    enqueue_count((size_t)count);
    for (i = 0; i < 2; i++) pids[i] = spawn(&d);
    assert_true(reaches(20, &common->runs, (int)count / 8));
    server_command("--ctl restart -m immediate");
    look_again();
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    assert_true(reaches(30, &common->runs, (int)count / 3));
    server_command("--ctl restart -m fast");
    look_again();
    assert_true(becomes(60, count, "SELECT count(*) FROM jobq.history"));
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), count);
    assert_int_equal(number("SELECT count(DISTINCT job) FROM jobq.effect"), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE dead_at IS NOT NULL"), 0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    for (i = 0; i < 2; i++) {
        kill(pids[i], SIGTERM);
        assert_int_equal(reap(pids[i]), 0);
    }
}

/* -- claims -- */

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

/* X5: killed right after the claim, no heartbeat ever: claimable again after the lease. */
static void a_kill_right_after_the_claim_costs_one_lease(void **unused)
{
    jobq_job job;
    int status;
    pid_t pid;

    (void)unused;
    enqueue_count(1);
    register_worker(101, SHORT_LEASE);
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
    nap_us(SHORT_LEASE + 50000);
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
    jobq_lane lane = {0, 0, 0, false, INT64_MIN, 0, 0, 0};
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

/* Law (7): a job that somebody asked to cancel does not run again. */
static void renew_cancels_what_was_asked_to(void **unused)
{
    (void)unused;
    enqueue_count(2);
    register_worker(101, 600 * SECOND);
    claim_one(101, 1, false);
    claim_one(101, 2, false);
    RUN("SELECT jobq.cancel(min(id)) FROM jobq.job");
    RUN("SELECT jobq.renew()");
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 'c'"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' "
                            "AND cancel_requested_at IS NULL"), 1);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* A queue that was deleted leaves its failed jobs: no later queue or kind may get its number. */
static void renew_gives_no_number_of_a_queue_again(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('first', kinds => '{k}'), jobq.enqueue('deleted', 'secret')");
    RUN("SELECT jobq._finish(array_agg(id), 'f', NULL) FROM jobq.job");
    RUN("DELETE FROM jobq.queue WHERE name = 'deleted'");
    RUN("SELECT jobq.renew()");
    RUN("SELECT jobq.queue_set('later', kinds => '{other}')");
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 1);
}

/* -- two sessions -- */

/* A claim that is long under way stops neither heartbeats nor rescue, and what it takes comes
 * back. */
static void a_rescuer_does_not_wait_for_a_claim_and_finds_it_later(void **unused)
{
    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    register_worker(102, 60 * SECOND);
    run_a("BEGIN");
    run_a(CLAIM);
    RUN("SET lock_timeout = '1s'");
    assert_int_equal(number("SELECT alive::int FROM jobq._heartbeat(101, 60000000, '{}')"), 1);
    RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 s' WHERE id = 101");
    assert_int_equal(number("SELECT dead::int FROM jobq._rescue(101, 1, 10)"), 1);
    RUN("RESET lock_timeout");
    run_a("COMMIT");
    assert_int_equal(
        number("SELECT (late = '{101}')::int FROM jobq._heartbeat(102, 60000000, '{}')"), 1);
    assert_int_equal(number("SELECT rescued FROM jobq._rescue(101, -1, 10)"), 1);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void a_worker_that_ends_waits_for_its_claim_and_leaves_it_to_be_rescued(void **unused)
{
    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    run_a("BEGIN");
    run_a(CLAIM);
    b_asks("SELECT jobq._deregister(101)");
    run_a("COMMIT");
    is_answered("");
    assert_int_equal(number("SELECT rescued FROM jobq._rescue(101, -1, 10)"), 1);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* Rows that a DBA deleted, or that a restored part of a copy lacks. */
static void a_running_job_without_a_worker_or_a_claim_row_comes_back(void **unused)
{
    static const char *const gone[] = {
        "DELETE FROM jobq.worker WHERE id = 101",
        "DELETE FROM jobq.claim",
        "DELETE FROM jobq.worker WHERE id = 101; DELETE FROM jobq.claim",
    };
    size_t i;

    (void)unused;
    register_worker(102, 600 * SECOND);
    for (i = 0; i < 3; i++) {
        RUN("DELETE FROM jobq.job; DELETE FROM jobq.claim; DELETE FROM jobq.worker WHERE id = 101");
        enqueue_count(2);
        if (i == 2) RUN("UPDATE jobq.job SET suspect = true"
                        " WHERE id = (SELECT max(id) FROM jobq.job)");
        register_worker(101, 60 * SECOND);
        run_a(CLAIM);
        RUN("%s", gone[i]);
        assert_int_equal(number("SELECT jobq.audit()"), i == 2 ? 1 : 2);
        RUN("SELECT jobq.prune(100)");
        assert_int_equal(number("SELECT jobq.audit()"), 0);
        RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 s' WHERE id = 101");
        assert_int_equal(
            number("SELECT (late = '{101}')::int FROM jobq._heartbeat(102, 600000000, '{}')"), 1);
        RUN("SELECT FROM jobq._rescue(101, 0, 10)");
        assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"),
                         2);
    }
}

/* -- the disk -- */

/* In a session that does not wait for the disk by default. */
static void waits_all_the_same(const char *query)
{
    run_a("BEGIN");
    run_a("SET LOCAL synchronous_commit = off");
    run_a(query);
    says("on", "SHOW synchronous_commit");
    run_a("ROLLBACK");
}

static void what_others_forget_by_is_on_disk(void **unused)
{
    char query[300];

    (void)unused;
    snprintf(query, sizeof query, ACK, held_partition(1), 0, 1, 0);
    waits_all_the_same(query);
    snprintf(query, sizeof query, "SELECT FROM jobq._outbox_read(1, 2, 60000000, %lld, 10)",
             (long long)partition_id(box, 0));
    waits_all_the_same(query);
    waits_all_the_same("SELECT FROM jobq._complete('{1}', '{1}', '{1}', '{1}')");
    waits_all_the_same("SELECT FROM jobq._settle('{1}', '{1}', '{1}', '{s}', '{0}', '{1}', '{0}',"
                       " '{f}', '{0}', '{NULL}', '{NULL}', '{NULL}')");
}

/* -- a job that commits late, behind the bound of a worker that never has an empty lane -- */

static int64_t target;

static jobq_outcome succeed_slowly(jobq_call *call)
{
    if (call->job.id == GET(target)) ADD(others);
    nap_us(500);
    return succeed(call);
}

static int producing;

static void *produces(void *arg)
{
    jobq_pg_job jobs[200];
    size_t i;

    for (i = 0; i < COUNT(jobs); i++) {
        jobs[i] = plain_job();
        jobs[i].line = (const char *)arg;
    }
    while (GET(producing)) {
        jobq_pg_enqueue_many(pg, NULL, jobs, COUNT(jobs), NULL, NULL);
        nap_us(20000);
    }
    return NULL;
}

/* All jobs are of this line (NULL: of none). */
static void commits_late(char *line)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_slowly);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    PGconn *other = PQconnectdb(server());
    jobq_pg_error error;
    pthread_t producer;
    int64_t id = 0, start_us;
    char done[100];

    job.line = line;
    d.loop.lease_us = 30 * SECOND;
    d.loop.heartbeat_us = 0;
    /* Queue, kind and that there are lines are known: nobody waits for the transaction below. */
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_OK);
    start(&d);
    assert_true(reaches(20, &runs, 1));
    PQclear(PQexec(other, "BEGIN"));
    assert_int_equal(jobq_pg_enqueue(pg, other, &job, &id, &error), JOBQ_OK);
    SET(target, id);
    SET(producing, 1);
    assert_int_equal(pthread_create(&producer, NULL, produces, line), 0);
    nap_us(2 * SECOND);
    PQclear(PQexec(other, "COMMIT"));
    start_us = mono_us();
    if (!reaches(20, &others, 1)) ADD(others);
    start_us = mono_us() - start_us;
    SET(producing, 0);
    pthread_join(producer, NULL);
    PQfinish(other);
    assert_true(GET(runs) > 100);
    snprintf(done, sizeof done, "SELECT count(*) FROM jobq.history WHERE id = %lld", (long long)id);
    assert_true(becomes(5, 1, done));
    assert_true(start_us < 15 * SECOND);
}

static void a_job_that_commits_late_is_not_hidden_for_long(void **unused)
{
    (void)unused;
    commits_late(NULL);
}

/* As while an old snapshot makes sweeps expensive. */
static void nor_where_sweeps_are_made_in_slices(void **unused)
{
    (void)unused;
    SET(slices, 0);
    slice_cost_us = -1; /* so each sweep costs too much for one piece */
    commits_late(NULL);
    slice_cost_us = 50000;
    assert_true(GET(slices) > 0);
}

static void nor_is_one_in_a_line(void **unused)
{
    char line[] = "a";

    (void)unused;
    commits_late(line);
}

/* -- more queues than threads, one of them paused; more foreign kinds than a loop remembers -- */

static void a_paused_queue_holds_no_other_back(void **unused)
{
    static const char *const names[] = {"q", "q1", "q2", "q3", "q4", "q5"};
    jobq_pg_handler h[COUNT(names)] = {{0}};
    jobq_pg_worker_desc d = work_of(h, COUNT(names));
    jobq_pg_job job = plain_job();
    size_t i, j;

    (void)unused;
    for (i = 0; i < COUNT(names); i++) {
        h[i] = handler_of(names[i], "k", succeed);
        job.queue = names[i];
        for (j = 0; j < 50; j++) enqueue_with(&job);
    }
    RUN("UPDATE jobq.queue SET paused_at = now() WHERE name = 'q2'");
    start(&d);
    assert_true(becomes(20, 250, "SELECT count(*) FROM jobq.history"));
    nap_us(500000);
    assert_int_equal(GET(runs), 250);
    RUN("UPDATE jobq.queue SET paused_at = NULL");
    assert_true(becomes(20, 300, "SELECT count(*) FROM jobq.history"));
}

static void more_foreign_kinds_than_a_loop_remembers_all_run(void **unused)
{
    static char names[100][8];
    static jobq_pg_handler many[100];
    jobq_pg_handler one = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&one, 1), e = work_of(many, 100);
    jobq_pg_job job = plain_job();
    int i;

    (void)unused;
    for (i = 0; i < 100; i++) {
        snprintf(names[i], sizeof names[i], "k%d", i % 1000);
        many[i] = handler_of("q", names[i], succeed);
    }
    start(&d);
    start(&e);
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.worker"));
    nap_us(600000); /* each has news of the other */
    for (i = 0; i < 500; i++) {
        job.kind = i % 5 == 0 ? "k" : names[i % 100];
        enqueue_with(&job);
    }
    assert_true(becomes(20, 500, "SELECT count(*) FROM jobq.history WHERE attempt = 1"));
    assert_int_equal(GET(runs), 500);
}

/* -- kinds -- */

static void a_kind_without_a_handler_waits_for_one(void **unused)
{
    jobq_pg_handler mine = handler_of("q", "k", succeed),
                    theirs = handler_of("q", "other", counts_others);
    jobq_pg_worker_desc d = work_of(&mine, 1), e = work_of(&theirs, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;

    (void)unused;
    enqueue_count(5);
    job.kind = "other";
    enqueue_with(&job);
    enqueue_with(&job);
    w = start(&d);
    assert_true(
        becomes(20, 2,
                "SELECT count(*) FROM jobq.job WHERE run_at = 'infinity' AND state = 'r' AND"
                " attempt = 0"));
    assert_true(reaches(20, &runs, 5));
    enqueue_with(&job); /* comes later, is parked as well */
    assert_true(becomes(20, 3, "SELECT count(*) FROM jobq.job WHERE run_at = 'infinity'"));
    stop(w);
    start(&e);
    assert_true(reaches(20, &others, 3));
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.job"));
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE attempt = 1"), 8);
    assert_int_equal(number("SELECT count(*) FROM jobq.kind WHERE parked_at IS NOT NULL"), 0);
}

/* Parking is a statement that takes time: meanwhile a worker with that kind may register and
 * look. */
static void a_job_parked_while_its_kind_comes_back_is_not_forgotten(void **unused)
{
    jobq_pg_handler theirs = handler_of("q", "other", counts_others);
    jobq_pg_worker_desc e = work_of(&theirs, 1);
    jobq_policy policy = jobq_policy_defaults(NULL);
    verb_batch batch;
    verb_result result;
    jobq_pg_error error;
    jobq_error answer;
    jobq_event event;
    PGconn *other = PQconnectdb(server());

    (void)unused;
    enqueue_kind("other", "1");
    enqueue_kind("other", "2");
    register_worker(101, 600 * SECOND);
    assert_int_equal(claim_by(101, 1, 2, false, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 2);
    assert_int_equal(settle_with(&batch.jobs[0], JOBQ_EVENT_PARK, NULL), JOBQ_OK);
    memset(&event, 0, sizeof event);
    memset(&result, 0, sizeof result);
    event.kind = JOBQ_EVENT_PARK;
    assert_int_equal(jobq_job_decide(&policy, &batch.jobs[1], &event, &result.decision), JOBQ_OK);
    result.id = batch.jobs[1].id;
    result.worker = 101;
    result.claim = 1;
    PQclear(PQexec(other, "BEGIN"));
    assert_int_equal(verb_settle(pg, other, &result, 1, &answer, &error), JOBQ_OK);
    start(&e);
    nap_us(1500000); /* it registers, and takes what it sees parked */
    PQclear(PQexec(other, "COMMIT"));
    PQfinish(other);
    verb_batch_clear(&batch);
    assert_true(reaches(10, &others, 2));
}

/* Someone looks at a parked job, or changes it, while its kind comes back. */
static void a_parked_job_that_is_locked_is_not_forgotten(void **unused)
{
    static const char *const unpark = "SELECT jobq._unpark(max(kind_id), 9) FROM jobq.job";
    static const char *const marked = "SELECT count(*) FROM jobq.kind WHERE parked_at IS NOT NULL";
    PGconn *other = PQconnectdb(server());
    verb_batch batch;
    long unparked, kinds;
    int i;

    (void)unused;
    for (i = 0; i < 2; i++) enqueue_kind("other", "1");
    register_worker(101, 600 * SECOND);
    assert_int_equal(claim_by(101, 1, 2, false, &batch), JOBQ_OK);
    for (i = 0; i < 2; i++) {
        assert_int_equal(settle_with(&batch.jobs[i], JOBQ_EVENT_PARK, NULL), JOBQ_OK);
    }
    verb_batch_clear(&batch);
    PQclear(sql(other, "BEGIN; SELECT FROM jobq.job ORDER BY id LIMIT 1 FOR UPDATE"));
    unparked = number(unpark);
    kinds = number(marked);
    PQclear(sql(other, "ROLLBACK")); /* before anything can fail */
    PQfinish(other);
    assert_int_equal(unparked, 1);
    assert_int_equal(kinds, 1);
    assert_int_equal(number(unpark), 1);
    assert_int_equal(number(marked), 0);
}

static void a_foreign_kind_is_left_to_its_own_workers(void **unused)
{
    jobq_pg_handler mine = handler_of("q", "k", succeed),
                    theirs = handler_of("q", "other", counts_others);
    jobq_pg_worker_desc d = work_of(&mine, 1), e = work_of(&theirs, 1);
    jobq_pg_job job = plain_job();
    int i;

    (void)unused;
    start(&d);
    start(&e);
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.worker"));
    all_hear(); /* each of the other */
    for (i = 0; i < 200; i++) {
        job.kind = i % 2 ? "k" : "other";
        enqueue_with(&job);
    }
    assert_true(reaches(30, &runs, 100));
    assert_true(reaches(30, &others, 100));
    assert_true(becomes(20, 200, "SELECT count(*) FROM jobq.history WHERE attempt = 1"));
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.kind WHERE parked_at IS NOT NULL"));
}

/* -- more kinds than a loop could list -- */

enum { MANY = 100 };
static char many_names[MANY][8];
static jobq_pg_handler many[MANY];

/* Handlers for k0 to k99, and a job of each, or more. */
static void many_kinds(jobq_handler run)
{
    int i;

    for (i = 0; i < MANY; i++) {
        snprintf(many_names[i], sizeof many_names[i], "k%d", i % 1000);
        many[i] = handler_of("q", many_names[i], run);
    }
}

static void enqueue_many_kinds(int count)
{
    int i;

    for (i = 0; i < count; i++) enqueue_kind(many_names[i % MANY], "1");
}

/* All but k0, which runs alone: also right from the start of a worker. */
static void no_paused_kind_runs_however_many_there_are(void **unused)
{
    jobq_pg_worker_desc d = work_of(many, MANY);
    int i;

    (void)unused;
    many_kinds(succeed);
    enqueue_many_kinds(MANY);
    RUN("UPDATE jobq.kind SET paused_at = now() WHERE name <> 'k0'");
    start(&d);
    for (i = 0; i < 5; i++) {
        all_hear();
        enqueue_kind("k0", "1");
        assert_true(reaches(20, &runs, i + 2));
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0 AND "
                            "run_at < 'infinity'"), MANY - 1);
    RUN("SELECT jobq.resume('q', name) FROM jobq.kind");
    assert_true(reaches(20, &runs, MANY + 5));
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.job"));
}

/* They wait for their own worker, which is busy: no other one takes them and gives them back. */
static void kinds_of_a_busy_worker_are_left_to_it(void **unused)
{
    jobq_pg_handler mine = handler_of("q", "k", counts_others);
    jobq_pg_worker_desc d = work_of(&mine, 1), e = work_of(many, MANY);
    jobq_pg_worker *idle;
    int64_t before;
    int i;

    (void)unused;
    many_kinds(holds);
    e.loop.threads = 1;
    idle = start(&d);
    start(&e);
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.worker"));
    all_hear();
    before = jobq_pg_worker_stats(idle, JOBQ_PG_ALL).jobs.claimed;
    enqueue_many_kinds(4 * MANY);
    assert_true(reaches(20, &runs, 1));
    for (i = 1; i <= 5; i++) {
        all_hear();
        enqueue_kind("k", "1");
        assert_true(reaches(20, &others, i));
    }
    assert_int_equal(jobq_pg_worker_stats(idle, JOBQ_PG_ALL).jobs.claimed - before, 5);
    assert_int_equal(jobq_pg_worker_stats(idle, JOBQ_PG_ALL).jobs.released, 0);
    SET(gate, 1);
}

/* A kind without a handler anywhere is parked, and when a kind of another worker is there too. Ten
 * thousand take their turns. */
static void of_ten_thousand_kinds_each_is_parked_in_its_turn(void **unused)
{
    jobq_pg_handler mine = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&mine, 1);

    (void)unused;
    enqueue_kind("paused", "1");
    RUN("SELECT jobq.pause('q', 'paused')");
    RUN("INSERT INTO jobq.queue (name) SELECT 'q' || i FROM generate_series(1, 1000) i");
    RUN("INSERT INTO jobq.kind (queue_id, queue, payload_max, name) SELECT q.id, q.name, "
        "q.payload_max, 'k' || i FROM jobq.queue q, "
        "generate_series(1, 10) i");
    RUN("INSERT INTO jobq.kind (queue_id, queue, payload_max, name) SELECT q.id, q.name, "
        "q.payload_max, 'x' || i FROM jobq.queue q, "
        "generate_series(1, 600) i WHERE q.name = 'q'");
    RUN("INSERT INTO jobq.job (queue_id, kind_id) SELECT k.queue_id, k.id FROM jobq.kind k "
        "JOIN jobq.queue q ON q.id = k.queue_id WHERE q.name = 'q' AND k.paused_at IS NULL");
    d.loop.heartbeat_us = 50000;
    start(&d);
    enqueue_kind("k", "1");
    assert_true(reaches(20, &runs, 1));
    assert_true(becomes(240, 610, "SELECT count(*) FROM jobq.job WHERE run_at = 'infinity'"));
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 611);
    enqueue_kind("k", "1");
    assert_true(reaches(20, &runs, 2));
}

#define FALLEN 110

/* Dead workers with a job each. The odd ones are already marked dead, and the others have only an
 * expired lease. Those that died first have claims that somebody has locked: more of them than a
 * worker watches at a time. They must not hide the others. */
static void many_dead_workers_are_all_rescued_although_some_are_locked(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    PGconn *other = PQconnectdb(server());
    int locked = JOBQ_LOOP_WATCHED + 8;
    int64_t id;
    bool others_rescued;

    (void)unused;
    enqueue_count(FALLEN);
    for (id = 1; id <= FALLEN; id++) {
        register_worker(id, 600 * SECOND);
        claim_one(id, 1, false);
    }
    RUN("UPDATE jobq.worker SET lease_us = 500000, expires_at = now() - interval '1 hour' + id *"
        " interval '1 s', dead_at = CASE WHEN id % 2 = 1 THEN now() END");
    PQclear(sql(other, "BEGIN; SELECT FROM jobq.claim WHERE worker <= %d FOR UPDATE", locked));
    start(&d);
    others_rescued = reaches(20, &runs, FALLEN - locked);
    PQfinish(other);
    assert_true(others_rescued);
    assert_true(reaches(20, &runs, FALLEN));
    assert_true(becomes(20, FALLEN, "SELECT count(*) FROM jobq.history WHERE attempt = 1"));
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

#define TEST(test, set_up) cmocka_unit_test_setup_teardown(test, set_up, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_killed_workers_jobs_are_taken_within_two_leases, quick_queue),
        TEST(sigterm_releases_a_process_own_jobs, fresh_effects),
        TEST(cut_connections_lose_nothing_and_leave_nothing_behind, fresh_effects),
        TEST(a_server_crash_loses_nothing, fresh_effects),
        TEST(a_claim_without_answer_is_recovered_or_burned, fresh),
        TEST(ids_at_the_end_of_the_range_are_survived, fresh),
        TEST(renew_gives_no_number_of_a_queue_again, fresh),
        TEST(renew_cancels_what_was_asked_to, fresh),
        TEST(a_locked_job_is_answered_as_busy, fresh),
        TEST(a_kill_right_after_the_claim_costs_one_lease, fresh),
        TEST(a_claimer_never_waits_for_an_open_claim, fresh),
        WITH_TWO(a_rescuer_does_not_wait_for_a_claim_and_finds_it_later),
        WITH_TWO(a_worker_that_ends_waits_for_its_claim_and_leaves_it_to_be_rescued),
        WITH_TWO(a_running_job_without_a_worker_or_a_claim_row_comes_back),
        WITH_TWO(what_others_forget_by_is_on_disk),
        TEST(a_job_that_commits_late_is_not_hidden_for_long, fresh),
        TEST(nor_where_sweeps_are_made_in_slices, fresh),
        TEST(nor_is_one_in_a_line, fresh),
        TEST(a_paused_queue_holds_no_other_back, fresh),
        TEST(more_foreign_kinds_than_a_loop_remembers_all_run, fresh),
        TEST(a_kind_without_a_handler_waits_for_one, fresh),
        TEST(a_job_parked_while_its_kind_comes_back_is_not_forgotten, fresh),
        TEST(a_parked_job_that_is_locked_is_not_forgotten, fresh),
        TEST(a_foreign_kind_is_left_to_its_own_workers, fresh),
        TEST(no_paused_kind_runs_however_many_there_are, fresh),
        TEST(kinds_of_a_busy_worker_are_left_to_it, fresh),
        TEST(of_ten_thousand_kinds_each_is_parked_in_its_turn, fresh),
        TEST(many_dead_workers_are_all_rescued_although_some_are_locked, fresh),
    };

    return cmocka_run_group_tests_name("never lost", tests, common_up, pg_down);
}
