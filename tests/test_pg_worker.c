/*
 * The worker on Postgres, as a user runs it: outcomes, stages, exactly-once effects, poison, kills,
 * time-outs, cancel, kinds without handlers, stop, lost connections, a server that crashes. Rows
 * X5, X9, X13; promises 1 to 5.
 */
#include "pg.h"

/* ---- handlers -------------------------------------------------------------------------------- */

static int runs;       /* handler calls in this process */
static int stop_seen;  /* the jobq_stop that a patient handler saw */

static int add(int *counter) { return __atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST); }
static int get(const int *counter) { return __atomic_load_n(counter, __ATOMIC_SEQ_CST); }

static jobq_outcome succeed(jobq_call *call)
{
    (void)call;
    add(&runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome always_retry(jobq_call *call)
{
    add(&runs);
    jobq_call_error(call, jobq_str_from("no \xff luck"));
    jobq_call_delay(call, 1000);
    return JOBQ_OUTCOME_RETRY;
}

static jobq_outcome snooze_twice(jobq_call *call)
{
    if (add(&runs) > 2) return JOBQ_OUTCOME_SUCCESS;
    jobq_call_delay(call, 1000);
    return JOBQ_OUTCOME_SNOOZE;
}

static jobq_outcome discard(jobq_call *call)
{
    static char text[64 * 1024];

    memset(text, 'x', sizeof text);
    jobq_call_error(call, (jobq_str){text, sizeof text});
    return JOBQ_OUTCOME_DISCARD;
}

static jobq_outcome forgetful(jobq_call *call)
{
    (void)call;
    return JOBQ_OUTCOME_NONE;
}

static jobq_outcome first_stage(jobq_call *call)
{
    assert_int_equal(call->job.stage, 0);
    return jobq_call_next(call, jobq_str_from("{\"from\": \"first\"}"), false)
               ? JOBQ_OUTCOME_SUCCESS
               : JOBQ_OUTCOME_RETRY;
}

static jobq_outcome second_stage(jobq_call *call)
{
    bool good = call->job.stage == 1 &&
                jobq_str_equal(call->payload, jobq_str_from("{\"from\": \"first\"}"));

    add(&runs);
    return good ? JOBQ_OUTCOME_SUCCESS : JOBQ_OUTCOME_DISCARD;
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

    add(&runs);
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

static jobq_outcome say_done_without_doing(jobq_call *call)
{
    (void)call;
    return add(&runs) == 1 ? JOBQ_OUTCOME_DONE : JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome leave_a_transaction_open(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char text[200];

    PQclear(PQexec(conn, "BEGIN"));
    snprintf(text, sizeof text, "INSERT INTO %s.effect VALUES (%lld)", schema,
             (long long)call->job.id);
    PQclear(PQexec(conn, text));
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome kill_on_poison(jobq_call *call)
{
    if (memchr(call->payload.ptr, 'P', call->payload.len) != NULL) kill(getpid(), SIGKILL);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Works until told to stop, and says why. */
static jobq_outcome patient(jobq_call *call)
{
    jobq_stop stop;

    add(&runs);
    while ((stop = jobq_call_stopping(call)) == JOBQ_STOP_NONE) nap_us(2000);
    __atomic_store_n(&stop_seen, (int)stop, __ATOMIC_SEQ_CST);
    return stop == JOBQ_STOP_CANCEL ? JOBQ_OUTCOME_CANCELLED : JOBQ_OUTCOME_RETRY;
}

static int deaf_must_return;

/* Does not listen to anybody, for a while. */
static jobq_outcome deaf(jobq_call *call)
{
    (void)call;
    if (add(&runs) == 1) {
        while (!get(&deaf_must_return)) nap_us(2000);
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome slow(jobq_call *call)
{
    (void)call;
    add(&runs);
    nap_us(300000);
    return JOBQ_OUTCOME_SUCCESS;
}

/* ---- workers --------------------------------------------------------------------------------- */

static jobq_pg_worker_desc one_kind(jobq_pg_handler *h, const char *kind, jobq_handler run)
{
    jobq_pg_worker_desc d;

    memset(h, 0, sizeof *h);
    memset(&d, 0, sizeof d);
    h->queue = "q";
    h->kind = kind;
    h->run[0] = run;
    d.handlers = h;
    d.handler_count = 1;
    d.loop.threads = 2;
    d.loop.lease_us = 2 * SECOND;
    return d;
}

static jobq_pg_worker *start(const jobq_pg_worker_desc *d)
{
    jobq_pg_worker *w;
    jobq_pg_error error;

    if (jobq_pg_worker_start(pg, d, &w, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return w;
}

static jobq_loop_stats stop(jobq_pg_worker *w)
{
    jobq_pg_stats stats;

    jobq_pg_worker_stop(w);
    jobq_pg_worker_wait(w, &stats);
    jobq_pg_worker_free(w);
    return stats.jobs;
}

/* Runs until nothing is due. */
static void work_off(const jobq_pg_worker_desc *d)
{
    jobq_pg_error error;

    if (jobq_pg_work(pg, d, &error) != JOBQ_OK) fail_msg("%s", error.message);
}

static int worker_setup(void **state)
{
    runs = stop_seen = die_before = die_after = deaf_must_return = 0;
    pg_empty(state);
    RUN("DROP TABLE IF EXISTS jobq.effect");
    RUN("CREATE TABLE jobq.effect (job bigint)");
    RUN("INSERT INTO jobq.queue (name, backoff_base_us, backoff_cap_us) VALUES ('q', 1000, 2000)");
    return 0;
}

/* A worker in a process of its own; the pid. */
static pid_t spawn(jobq_handler run, int64_t lease_us)
{
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        jobq_pg_handler h;
        jobq_pg_worker_desc d = one_kind(&h, "k", run);
        jobq_pg_error error;
        d.loop.lease_us = lease_us;
        d.loop.until = JOBQ_UNTIL_STOPPED;
        d.loop.jobs_max = JOBQ_NEVER;
        pg = handle();
        _exit(jobq_pg_work(pg, &d, &error) == JOBQ_OK ? 0 : 1);
    }
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* ---- outcomes -------------------------------------------------------------------------------- */

static void success_goes_to_history(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", succeed);
    int count = check_slow() ? 200 : 5000;

    (void)unused;
    enqueue_count((size_t)count);
    work_off(&d);
    assert_int_equal(get(&runs), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's' AND attempt = 1"),
                     count);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
}

static void a_queue_may_keep_no_history(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", succeed);

    (void)unused;
    RUN("UPDATE jobq.queue SET history = false");
    enqueue_count(100);
    work_off(&d);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
}

/* X9. */
static void retries_end_with_the_text_and_all_errors_are_kept(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", always_retry);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;

    (void)unused;
    job.max_attempts = 4;
    enqueue_with(&job);
    w = start(&d);
    assert_true(becomes(10, 1, "SELECT count(*) FROM jobq.failed"));
    stop(w);
    assert_int_equal(get(&runs), 4);
    assert_int_equal(number("SELECT jsonb_array_length(errors) FROM jobq.failed"), 4);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE "
                            "errors->-1->>'error' = 'Max retries (4) exceeded: no ? luck' AND "
                            "errors->0->>'error' = 'no ? luck' AND errors->1->>'attempt' = '2'"),
                     1);
}

static void a_snooze_uses_up_no_attempt(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", snooze_twice);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;

    (void)unused;
    job.max_attempts = 1;
    enqueue_with(&job);
    w = start(&d);
    assert_true(becomes(10, 1, "SELECT count(*) FROM jobq.history WHERE attempt = 1"));
    stop(w);
    assert_int_equal(get(&runs), 3);
}

static void long_errors_are_cut_and_silence_is_a_retry(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", discard);
    jobq_pg_job job = plain_job();

    (void)unused;
    enqueue_with(&job);
    work_off(&d);
    assert_int_equal(number("SELECT length(errors->0->>'error') FROM jobq.failed"), JOBQ_ERROR_MAX);
    job.max_attempts = 1;
    enqueue_with(&job);
    d = one_kind(&h, "k", forgetful);
    work_off(&d);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE errors->0->>'error' LIKE "
                            "'%%returned no outcome'"), 1);
}

static void stages_hand_their_payload_on(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", first_stage);
    jobq_pg_job job = plain_job();
    int i;

    (void)unused;
    h.run[1] = second_stage;
    job.stages = 2;
    for (i = 0; i < 50; i++) enqueue_with(&job);
    work_off(&d);
    assert_int_equal(get(&runs), 50);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's' AND stage = 1"),
                     50);
}

/* ---- effects exactly once -------------------------------------------------------------------- */

static void effects_and_completion_commit_together(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", effect);
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
        pid = spawn(effect, SECOND / 2);
        waitpid(pid, NULL, 0);
        assert_int_equal(number("SELECT count(*) FROM jobq.effect"), after);
        die_before = die_after = 0;
        pid = spawn(effect, SECOND / 2);
        assert_true(becomes(15, 1, "SELECT count(*) FROM jobq.history"));
        end(pid);
        assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 1);
    }
}

static void who_says_done_without_doing_is_run_again(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", say_done_without_doing);
    jobq_pg_worker *w;

    (void)unused;
    enqueue_count(1);
    w = start(&d);
    assert_true(becomes(10, 1, "SELECT count(*) FROM jobq.history WHERE attempt = 2"));
    stop(w);
}

static void an_open_transaction_is_rolled_back(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", leave_a_transaction_open);

    (void)unused;
    enqueue_count(3);
    work_off(&d);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 3);
}

/* ---- death ----------------------------------------------------------------------------------- */

/* Promise 4, with real processes: the poison kills every worker that touches it. */
static void one_poison_among_a_thousand_fails_alone(void **unused)
{
    int neighbours = check_slow() ? 99 : 999, restarts = 0;
    jobq_pg_job poison = plain_job();
    int64_t until = jobq_pg__mono_us() + 60 * SECOND;
    pid_t pids[2] = {0, 0};
    int i;

    (void)unused;
    enqueue_count((size_t)neighbours / 2);
    poison.payload = jobq_str_from("\"P\"");
    enqueue_with(&poison);
    enqueue_count((size_t)(neighbours - neighbours / 2));
    while (number("SELECT count(*) FROM jobq.job") > 0 && jobq_pg__mono_us() < until) {
        for (i = 0; i < 2; i++) {
            if (pids[i] == 0 || waitpid(pids[i], NULL, WNOHANG) == pids[i]) {
                pids[i] = spawn(kill_on_poison, SECOND / 2);
                restarts++;
            }
        }
        nap_us(20000);
    }
    for (i = 0; i < 2; i++) end(pids[i]);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's' AND crash = 0"),
                     neighbours);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE crash = 3"), 1);
    assert_in_range(restarts, 5, 12); /* two at first, one for each death */
}

static void a_killed_workers_jobs_are_taken_within_two_leases(void **unused)
{
    int64_t killed;
    pid_t victim, heir;

    (void)unused;
    enqueue_count(20);
    heir = spawn(succeed, SECOND); /* has been alive for a lease when the other dies */
    assert_true(becomes(10, 0, "SELECT count(*) FROM jobq.job"));
    nap_us(SECOND);
    RUN("UPDATE jobq.queue SET paused_at = now()");
    nap_us(SECOND / 2);
    enqueue_count(20);
    register_worker(4242, SECOND); /* a victim that never beats again */
    victim = 0;
    {
        jobq_pg_batch batch;
        assert_int_equal(claim_by(4242, 1, 20, false, &batch), JOBQ_OK);
        assert_int_equal(batch.count, 20);
        jobq_pg_batch_clear(&batch);
    }
    (void)victim;
    RUN("UPDATE jobq.queue SET paused_at = NULL");
    killed = jobq_pg__mono_us();
    assert_true(becomes(10, 40, "SELECT count(*) FROM jobq.history WHERE state = 's'"));
    assert_in_range(jobq_pg__mono_us() - killed, 900 * 1000, 4 * SECOND);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    end(heir);
}

/* ---- operators ------------------------------------------------------------------------------- */

static void a_running_job_hears_of_its_cancel(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", patient);
    jobq_pg_error error;
    jobq_pg_job job = plain_job();
    bool requested = false;
    jobq_pg_worker *w;
    int64_t id, asked;

    (void)unused;
    id = enqueue_with(&job);
    d.loop.lease_us = 30 * SECOND;
    w = start(&d);
    assert_true(becomes(5, 1, "SELECT count(*) FROM jobq.job WHERE state = 'x'"));
    asked = jobq_pg__mono_us();
    assert_int_equal(jobq_pg_cancel(pg, NULL, id, &requested, &error), JOBQ_OK);
    assert_true(requested);
    assert_true(becomes(5, 1, "SELECT count(*) FROM jobq.history WHERE state = 'c'"));
    assert_true(jobq_pg__mono_us() - asked < SECOND); /* by NOTIFY: a heartbeat is 5 s away */
    assert_int_equal(get(&stop_seen), JOBQ_STOP_CANCEL);
    stop(w);
}

static void a_pause_holds_and_a_resume_lets_go(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", succeed);
    jobq_pg_worker *w;

    (void)unused;
    RUN("UPDATE jobq.queue SET paused_at = now()");
    d.loop.lease_us = SECOND;
    w = start(&d);
    enqueue_count(5);
    nap_us(SECOND);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 5);
    RUN("UPDATE jobq.queue SET paused_at = NULL");
    assert_true(becomes(5, 5, "SELECT count(*) FROM jobq.history"));
    stop(w);
}

/* ---- kinds ----------------------------------------------------------------------------------- */

static void a_kind_without_handler_waits_for_one(void **unused)
{
    jobq_pg_handler h, other;
    jobq_pg_worker_desc d = one_kind(&h, "k", succeed), e = one_kind(&other, "rare", succeed);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w, *v;

    (void)unused;
    job.kind = "rare";
    enqueue_with(&job);
    enqueue_with(&job);
    enqueue_count(10);
    w = start(&d);
    assert_true(becomes(5, 10, "SELECT count(*) FROM jobq.history"));
    assert_true(
        becomes(5, 2, "SELECT count(*) FROM jobq.job WHERE run_at = 'infinity' AND attempt = 0"));
    v = start(&e);
    assert_true(becomes(5, 12, "SELECT count(*) FROM jobq.history"));
    stop(w);
    stop(v);
    assert_int_equal(number("SELECT count(*) FROM jobq.kind WHERE parked_at IS NOT NULL"), 0);
}

static void kinds_of_another_worker_are_left_to_it(void **unused)
{
    jobq_pg_handler h, other;
    jobq_pg_worker_desc d = one_kind(&h, "k", succeed), e = one_kind(&other, "theirs", succeed);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w, *v;
    jobq_loop_stats stats;
    int i;

    (void)unused;
    w = start(&d);
    v = start(&e);
    nap_us(SECOND); /* each has heard of the other */
    job.kind = "theirs";
    for (i = 0; i < 20; i++) enqueue_with(&job);
    assert_true(becomes(5, 20, "SELECT count(*) FROM jobq.history"));
    stats = stop(w);
    assert_int_equal(stats.started, 0);
    assert_true(stats.released <= 20);
    stop(v);
}

/* ---- time ------------------------------------------------------------------------------------ */

static void an_endless_handler_is_abandoned(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", deaf);
    jobq_pg_job job = plain_job();
    jobq_loop_stats stats;
    jobq_pg_worker *w;

    (void)unused;
    job.timeout_us = SECOND / 5;
    enqueue_with(&job);
    w = start(&d);
    assert_true(becomes(5, 1, "SELECT count(*) FROM jobq.history WHERE attempt = 2 AND "
                              "errors->0->>'error' = 'the handler ran out of time'"));
    add(&deaf_must_return);
    nap_us(50000);
    stats = stop(w);
    assert_int_equal(stats.abandoned, 1);
}

static void scheduled_jobs_start_on_time(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", succeed);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;
    int i;

    (void)unused;
    d.loop.lease_us = 30 * SECOND;
    w = start(&d);
    nap_us(SECOND / 2); /* asleep */
    for (i = 1; i <= 5; i++) {
        job.delay_us = i * SECOND / 5;
        enqueue_with(&job);
    }
    assert_true(becomes(5, 5, "SELECT count(*) FROM jobq.history"));
    stop(w);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE claimed_at < run_at"), 0);
    assert_int_equal(
        number("SELECT count(*) FROM jobq.history WHERE claimed_at > run_at + interval "
               "'%s'",
               check_slow() ? "2 s" : "100 ms"),
        0);
}

static void an_enqueue_wakes_a_sleeper_and_quiet_does_not(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", succeed);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;
    int64_t asked;

    (void)unused;
    d.loop.lease_us = 60 * SECOND; /* the next look would be 10 s away */
    w = start(&d);
    assert_true(becomes(5, 1, "SELECT count(*) FROM jobq.sleeper"));
    nap_us(6 * SECOND); /* the doubling looks are over: 5 s and more from now */
    asked = jobq_pg__mono_us();
    enqueue_with(&job);
    assert_true(becomes(5, 1, "SELECT count(*) FROM jobq.history"));
    assert_true(jobq_pg__mono_us() - asked < (check_slow() ? SECOND : 100 * 1000));
    stop(w);
}

/* ---- stop and trouble ------------------------------------------------------------------------ */

/* X13. */
static void a_stop_finishes_what_runs_and_releases_the_rest(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", slow);
    jobq_pg_worker *w;
    jobq_loop_stats stats;

    (void)unused;
    enqueue_count(40);
    register_worker(4343, 60 * SECOND); /* somebody else's jobs stay theirs */
    claim_one(4343, 1, false);
    d.loop.threads = 3;
    w = start(&d);
    assert_true(becomes(5, 4, "SELECT count(*) FROM jobq.job WHERE state = 'x'"));
    stats = stop(w);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), stats.succeeded);
    assert_in_range(stats.succeeded, 3, 6);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"),
                     39 - stats.succeeded);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE worker = 4343"), 1);
}

static void a_handler_beyond_the_grace_is_left_behind(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", deaf);
    jobq_pg_worker *w;

    (void)unused;
    enqueue_count(1);
    d.loop.grace_us = SECOND / 5;
    w = start(&d);
    assert_true(becomes(5, 1, "SELECT count(*) FROM jobq.job WHERE state = 'x'"));
    jobq_pg_worker_stop(w);
    assert_true(becomes(5, 1, "SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"));
    add(&deaf_must_return);
    nap_us(100000);
    jobq_pg_worker_wait(w, NULL);
    jobq_pg_worker_free(w);
}

/* Every backend of the workers is killed again and again: nothing is lost, nothing ends twice. */
static void cut_connections_lose_nothing(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", succeed);
    int count = check_slow() ? 5000 : 20000, cuts = 0;
    jobq_pg_worker *w, *v;
    int64_t until = jobq_pg__mono_us() + 60 * SECOND;

    (void)unused;
    d.loop.batch_max = 50;
    enqueue_count((size_t)count);
    w = start(&d);
    v = start(&d);
    while (number("SELECT count(*) FROM jobq.job") > 0 && jobq_pg__mono_us() < until) {
        RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%%%s%%' "
            "AND pid <> pg_backend_pid() AND application_name LIKE 'jo%%'", schema);
        cuts++;
        nap_us(30000);
    }
    stop(w);
    stop(v);
    assert_true(cuts >= 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), count);
    assert_int_equal(number("SELECT count(DISTINCT id) FROM jobq.history"), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* The server crashes and comes back in the middle of the work. */
static void a_server_crash_loses_nothing(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, "k", effect);
    int count = check_slow() ? 200 : 3000;
    jobq_pg_worker *w;

    (void)unused;
    if (getenv("JOBQ_SERVER_DIR") == NULL) skip();
    enqueue_count((size_t)count);
    w = start(&d);
    assert_true(becomes(10, 1, "SELECT (count(*) > 20)::int FROM jobq.history"));
    assert_int_equal(system("tests/server.sh --ctl restart -m immediate -w >/dev/null 2>&1"), 0);
    PQfinish(db);
    db = PQconnectdb(server());
    PQclear(PQexec(db, "SET client_min_messages = error"));
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job"));
    stop(w);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), count);
    assert_int_equal(number("SELECT count(DISTINCT job) FROM jobq.effect"), count);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(success_goes_to_history, worker_setup),
        cmocka_unit_test_setup(a_queue_may_keep_no_history, worker_setup),
        cmocka_unit_test_setup(retries_end_with_the_text_and_all_errors_are_kept, worker_setup),
        cmocka_unit_test_setup(a_snooze_uses_up_no_attempt, worker_setup),
        cmocka_unit_test_setup(long_errors_are_cut_and_silence_is_a_retry, worker_setup),
        cmocka_unit_test_setup(stages_hand_their_payload_on, worker_setup),
        cmocka_unit_test_setup(effects_and_completion_commit_together, worker_setup),
        cmocka_unit_test_setup(a_kill_around_the_commit_doubles_nothing, worker_setup),
        cmocka_unit_test_setup(who_says_done_without_doing_is_run_again, worker_setup),
        cmocka_unit_test_setup(an_open_transaction_is_rolled_back, worker_setup),
        cmocka_unit_test_setup(one_poison_among_a_thousand_fails_alone, worker_setup),
        cmocka_unit_test_setup(a_killed_workers_jobs_are_taken_within_two_leases, worker_setup),
        cmocka_unit_test_setup(a_running_job_hears_of_its_cancel, worker_setup),
        cmocka_unit_test_setup(a_pause_holds_and_a_resume_lets_go, worker_setup),
        cmocka_unit_test_setup(a_kind_without_handler_waits_for_one, worker_setup),
        cmocka_unit_test_setup(kinds_of_another_worker_are_left_to_it, worker_setup),
        cmocka_unit_test_setup(an_endless_handler_is_abandoned, worker_setup),
        cmocka_unit_test_setup(scheduled_jobs_start_on_time, worker_setup),
        cmocka_unit_test_setup(an_enqueue_wakes_a_sleeper_and_quiet_does_not, worker_setup),
        cmocka_unit_test_setup(a_stop_finishes_what_runs_and_releases_the_rest, worker_setup),
        cmocka_unit_test_setup(a_handler_beyond_the_grace_is_left_behind, worker_setup),
        cmocka_unit_test_setup(cut_connections_lose_nothing, worker_setup),
        cmocka_unit_test_setup(a_server_crash_loses_nothing, worker_setup),
    };

    return cmocka_run_group_tests_name("worker", tests, pg_up, pg_down);
}
