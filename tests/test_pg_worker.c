/*
 * The worker on Postgres when things go wrong: kills around a commit, poison, a dead worker, a
 * handler that outlasts the grace period. Rows X5, X13; promises 1 to 5. test_pg_life.c has the
 * life of a job when nothing goes wrong, test_pg_chaos.c lost connections and servers that crash.
 */
#include "pg_work.h"

/* ---- handlers -------------------------------------------------------------------------------- */

static int runs; /* handler calls in this process */

static jobq_outcome succeed(jobq_call *call)
{
    (void)call;
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Writes an effect and completes, in one transaction; before and after it may die. */
static int die_before, die_after;

static jobq_outcome effect(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char text[200];
    PGresult *res;
    bool committed;

    ADD(runs);
    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    PQclear(PQexec(conn, "BEGIN"));
    snprintf(text, sizeof text, "INSERT INTO %s.effect VALUES (%lld)", schema,
             (long long)call->job.id);
    PQclear(PQexec(conn, text));
    if (die_before) kill(getpid(), SIGKILL);
    if (jobq_pg_call_complete(call, conn, &error) != JOBQ_OK) {
        PQclear(PQexec(conn, "ROLLBACK"));
        jobq_call_error(call, jobq_str_from(error.message));
        return JOBQ_OUTCOME_RETRY;
    }
    res = PQexec(conn, "COMMIT");
    committed = res != NULL && strcmp(PQcmdStatus(res), "COMMIT") == 0;
    PQclear(res);
    if (die_after) kill(getpid(), SIGKILL);
    return committed ? JOBQ_OUTCOME_DONE : JOBQ_OUTCOME_RETRY;
}

static jobq_outcome kill_on_poison(jobq_call *call)
{
    if (memchr(call->payload.ptr, 'P', call->payload.len) != NULL) kill(getpid(), SIGKILL);
    return JOBQ_OUTCOME_SUCCESS;
}

static int deaf_must_return;

/* Does not listen to anybody, for a while. */
static jobq_outcome deaf(jobq_call *call)
{
    (void)call;
    if (ADD(runs) == 1) {
        while (!GET(deaf_must_return)) nap_us(2000);
    }
    return JOBQ_OUTCOME_SUCCESS;
}

/* ---- workers --------------------------------------------------------------------------------- */

static jobq_pg_worker_desc one_kind(jobq_pg_handler *h, jobq_handler run)
{
    jobq_pg_worker_desc d;

    *h = handler_of("q", "k", run);
    memset(&d, 0, sizeof d);
    d.handlers = h;
    d.handler_count = 1;
    d.loop.threads = 2;
    d.loop.lease_us = 2 * SECOND;
    return d;
}

/* Runs until nothing is due. */
static void work_off(const jobq_pg_worker_desc *desc)
{
    jobq_pg_worker_desc d = *desc;
    jobq_pg_error error;

    d.loop.until = JOBQ_UNTIL_EMPTY;
    if (jobq_pg_work(pg, &d, &error) != JOBQ_OK) fail_msg("%s", error.message);
}

static int worker_setup(void **state)
{
    runs = die_before = die_after = deaf_must_return = 0;
    pg_empty(state);
    RUN("DROP TABLE IF EXISTS jobq.effect");
    RUN("CREATE TABLE jobq.effect (job bigint)");
    RUN("INSERT INTO jobq.queue (name, backoff_base_us, backoff_cap_us) VALUES ('q', 1000, 2000)");
    return 0;
}

/* A worker in a process of its own; the pid. */
static pid_t spawn_one(jobq_handler run, int64_t lease_us)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, run);

    d.loop.lease_us = lease_us;
    return spawn(&d);
}

/* ---- effects exactly once -------------------------------------------------------------------- */

static void success_goes_to_history(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, succeed);
    int count = check_slow() ? 200 : 5000;

    (void)unused;
    enqueue_count((size_t)count);
    work_off(&d);
    assert_int_equal(GET(runs), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's' AND attempt = 1"),
                     count);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
}

static void effects_and_completion_commit_together(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, effect);
    int count = check_slow() ? 50 : 500;

    (void)unused;
    enqueue_count((size_t)count);
    work_off(&d);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), count);
    assert_int_equal(number("SELECT count(DISTINCT job) FROM jobq.effect"), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE errors IS NULL"), count);
}

/* Killed inside the transaction, or right after its COMMIT: once all the same. */
static void a_kill_around_the_commit_doubles_nothing(void **unused)
{
    int after;

    (void)unused;
    for (after = 0; after < 2; after++) {
        pid_t pid;
        worker_setup(NULL);
        enqueue_count(1);
        die_before = !after;
        die_after = after;
        pid = spawn_one(effect, SECOND);
        reap(pid);
        assert_int_equal(number("SELECT count(*) FROM jobq.effect"), after);
        die_before = die_after = 0;
        pid = spawn_one(effect, SECOND);
        assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
        kill_hard(pid);
        assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 1);
    }
}

/* ---- death ----------------------------------------------------------------------------------- */

/* The poison kills every worker that touches it; false: a neighbour was taken for one, because a
 * loaded machine let a worker lose its lease. */
static bool one_poison_fails_alone(int neighbours, int64_t lease_us)
{
    int64_t until = mono_us() + 60 * SECOND;
    jobq_pg_job poison = plain_job();
    pid_t pids[2] = {0, 0};
    int i, restarts = 0;

    worker_setup(NULL);
    enqueue_count((size_t)neighbours / 2);
    poison.payload = jobq_str_from("\"P\"");
    enqueue_with(&poison);
    enqueue_count((size_t)(neighbours - neighbours / 2));
    while (number("SELECT count(*) FROM jobq.job") > 0 && mono_us() < until) {
        for (i = 0; i < 2; i++) {
            if (pids[i] == 0 || exited(pids[i])) {
                pids[i] = spawn_one(kill_on_poison, lease_us);
                restarts++;
            }
        }
        nap_us(20000);
    }
    for (i = 0; i < 2; i++) kill_hard(pids[i]);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE crash = 3"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), neighbours);
    assert_in_range(restarts, 5, 12); /* two at first, one for each death */
    return number("SELECT count(*) FROM jobq.history WHERE crash > 0") == 0;
}

/* Promise 4, with real processes. */
static void one_poison_among_a_thousand_fails_alone(void **unused)
{
    int64_t lease_us = SECOND;

    (void)unused;
    while (!one_poison_fails_alone(check_slow() ? 99 : 999, lease_us)) {
        lease_us *= 2;
        assert_true(lease_us <= 4 * SECOND);
    }
}

/* How long a dead worker's jobs wait, in microseconds; its lease is a second. */
static int64_t a_death_is_noticed(void)
{
    verb_batch batch;
    int64_t died;
    pid_t heir;

    worker_setup(NULL);
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

/* ---- time ------------------------------------------------------------------------------------ */

static void an_enqueue_wakes_a_sleeper_and_quiet_does_not(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, succeed);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;
    int64_t asked;

    (void)unused;
    d.loop.lease_us = 60 * SECOND; /* the next look would be 10 s away */
    w = start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.sleeper"));
    nap_us(6 * SECOND); /* the doubling looks are over: 5 s and more from now */
    asked = mono_us();
    enqueue_with(&job);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
    assert_true(mono_us() - asked < 3 * SECOND);
    stop(w);
}

/* ---- stop ------------------------------------------------------------------------------------ */

static void a_handler_beyond_the_grace_is_left_behind(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, deaf);
    jobq_pg_worker *w;

    (void)unused;
    enqueue_count(1);
    d.loop.grace_us = SECOND / 5;
    w = start(&d);
    assert_true(reaches(20, &runs, 1));
    jobq_pg_worker_stop(w);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"));
    SET(deaf_must_return, 1);
    ended(w);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, worker_setup, all_stop)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(success_goes_to_history),
        TEST(effects_and_completion_commit_together),
        TEST(a_kill_around_the_commit_doubles_nothing),
        TEST(one_poison_among_a_thousand_fails_alone),
        TEST(a_killed_workers_jobs_are_taken_within_two_leases),
        TEST(an_enqueue_wakes_a_sleeper_and_quiet_does_not),
        TEST(a_handler_beyond_the_grace_is_left_behind),
    };

    return cmocka_run_group_tests_name("worker", tests, pg_up, pg_down);
}
