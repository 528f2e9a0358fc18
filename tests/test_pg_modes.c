/*
 * How long a worker works: until nothing is due, until all jobs have ended, for one job, until a
 * signal. And workers in a process that forks.
 */
#define TEST_PRIVATE
#include "pg_work.h"

#include <sys/time.h>

static int runs;
static int gate;         /* holding handlers go on when it is set */
static int64_t pause_us; /* between the runs of third_time */
static pthread_t here;
static int elsewhere;

/* ---- handlers -------------------------------------------------------------------------------- */

static jobq_outcome succeed(jobq_call *call)
{
    (void)call;
    ADD(runs);
    if (!pthread_equal(pthread_self(), here)) ADD(elsewhere);
    return JOBQ_OUTCOME_SUCCESS;
}

/* A retry, a snooze, and then done. */
static jobq_outcome third_time(jobq_call *call)
{
    int run = ADD(runs);

    jobq_call_delay(call, pause_us);
    if (run == 1) return JOBQ_OUTCOME_RETRY;
    return run == 2 ? JOBQ_OUTCOME_SNOOZE : JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome slow(jobq_call *call)
{
    (void)call;
    ADD(runs);
    nap_us(500000);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome holds(jobq_call *call)
{
    (void)call;
    ADD(runs);
    while (!GET(gate)) nap_us(1000);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_result second_time(jobq_delivery *d, const jobq_message *m)
{
    (void)d;
    (void)m;
    return ADD(runs) < 2 ? JOBQ_RESULT_RETRY : JOBQ_RESULT_SUCCESS;
}

static void work_until(jobq_pg_worker_desc *d, jobq_until until)
{
    jobq_pg_error error;

    d->loop.until = until;
    if (jobq_pg_work(pg, d, &error) != JOBQ_OK) fail_msg("%s", error.message);
}

/* ---- until ----------------------------------------------------------------------------------- */

static void empty_leaves_what_comes_later(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", third_time);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();

    (void)unused;
    enqueue_count(1);
    pause_us = job.delay_us = 3600 * SECOND;
    enqueue_with(&job);
    work_until(&d, JOBQ_UNTIL_EMPTY);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 2);
}

static void ended_waits_for_retries_snoozes_and_schedules(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", third_time);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();

    (void)unused;
    job.delay_us = 200000;
    enqueue_with(&job);
    work_until(&d, JOBQ_UNTIL_ENDED);
    assert_int_equal(runs, 3);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
}

static void ended_waits_for_other_workers(void **unused)
{
    jobq_pg_handler mine = handler_of("q", "k", succeed), other = handler_of("q", "k", slow);
    jobq_pg_worker_desc d = work_of(&mine, 1), o = work_of(&other, 1);
    jobq_pg_worker *worker = start(&o);

    (void)unused;
    enqueue_count(1);
    assert_true(reaches(20, &runs, 1));
    work_until(&d, JOBQ_UNTIL_ENDED);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 1);
    stop(worker);
}

static void ended_waits_for_messages(void **unused)
{
    jobq_pg_worker_desc d = work_of(NULL, 0);
    jobq_pg_receiver r;
    jobq_pg_message m;
    jobq_pg_error error;

    (void)unused;
    memset(&r, 0, sizeof r);
    memset(&m, 0, sizeof m);
    r.queue = m.queue = "news";
    r.each = second_time;
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "news", 2, NULL, &error), JOBQ_OK);
    RUN("UPDATE jobq.queue SET backoff_base_us = 300000, backoff_cap_us = 300000");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_OK);
    d.receivers = &r;
    d.receiver_count = 1;
    work_until(&d, JOBQ_UNTIL_ENDED);
    assert_int_equal(runs, 2);
    assert_int_equal(number("SELECT sum(lag) FROM jobq.outbox"), 0);
}

/* Every place where something unfinished can be, and none where it is not. */
static void remains_sees_all_that_is_unfinished(void **unused)
{
    static const char asked[] = "SELECT jobq.remains(ARRAY[(SELECT id FROM jobq.queue WHERE name = "
                                "'q')], '{}')::int";

    (void)unused;
    enqueue_count(1);
    assert_int_equal(number("%s", asked), 1);
    RUN("UPDATE jobq.job SET run_at = 'infinity'");
    assert_int_equal(number("%s", asked), 1);
    RUN("UPDATE jobq.job SET suspect = true");
    assert_int_equal(number("%s", asked), 1);
    RUN("UPDATE jobq.job SET suspect = false, run_at = now()");
    register_worker(7, 60 * SECOND);
    claim_one(7, 1, false);
    assert_int_equal(number("%s", asked), 1);
    assert_int_equal(number("SELECT jobq.remains('{0}', '{}')::int"), 0);
    RUN("DELETE FROM jobq.job");
    assert_int_equal(number("%s", asked), 0);
}

/* ---- one job --------------------------------------------------------------------------------- */

static void one_job_is_run_here(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;
    bool ran;

    (void)unused;
    enqueue_count(2);
    assert_int_equal(jobq_pg_work_one(pg, &d, &ran, &error), JOBQ_OK);
    assert_true(ran);
    assert_int_equal(runs, 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"), 1);
    assert_int_equal(jobq_pg_work_one(pg, &d, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_work_one(pg, &d, &ran, &error), JOBQ_OK);
    assert_false(ran);
    assert_int_equal(runs, 2);
    assert_int_equal(elsewhere, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
}

static void one_job_that_fails_is_settled_too(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", third_time);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_receiver r;
    jobq_pg_error error;
    bool ran;

    (void)unused;
    enqueue_count(1);
    assert_int_equal(jobq_pg_work_one(pg, &d, &ran, &error), JOBQ_OK);
    assert_true(ran);
    assert_int_equal(number("SELECT attempt FROM jobq.job WHERE state = 'r'"), 1);
    memset(&r, 0, sizeof r);
    d.receivers = &r;
    d.receiver_count = 1;
    assert_int_equal(jobq_pg_work_one(pg, &d, &ran, &error), JOBQ_ERROR_INVALID);
    assert_false(ran);
    assert_string_equal(error.field, "receivers");
}

/* ---- many ------------------------------------------------------------------------------------ */

static void many_workers_live_in_one_process(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    int64_t started = 0;
    int i;

    (void)unused;
    d.loop.threads = 2;
    d.loop.lease_us = 30 * SECOND;
    for (i = 0; i < 16; i++) start(&d);
    assert_true(becomes(30, 16, "SELECT count(*) FROM jobq.worker"));
    enqueue_count(2000);
    assert_true(becomes(60, 2000, "SELECT count(*) FROM jobq.history"));
    assert_int_equal(GET(runs), 2000);
    for (i = 0; i < 16; i++) jobq_pg_worker_stop(workers[i]);
    for (i = 0; i < 16; i++) started += ended(workers[i]).started;
    assert_int_equal(started, 2000);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
}

/* ---- fork ------------------------------------------------------------------------------------ */

static jobq_pg_worker *hosted;

/* In a child: the first check that fails, by its number. */
#define CHECK(good) do { if (!(good)) return __LINE__ % 256; } while (0)

/* What a child may try with the parent's handle and workers, all refused. */
static int child_tries(jobq_pg_worker *threaded, PGconn *parents, int round)
{
    struct pollfd fds[JOBQ_PG_FDS];
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    PGconn *conn = NULL, *own = PQconnectdb(server());
    jobq_pg *mine;

    CHECK(jobq_pg_enqueue(pg, NULL, &job, NULL, &error) == JOBQ_ERROR_INVALID);
    CHECK(strstr(error.message, "open a handle in the child") != NULL);
    CHECK(jobq_pg_enqueue(pg, own, &job, NULL, &error) == JOBQ_ERROR_INVALID);
    CHECK(jobq_pg_acquire(pg, &conn, &error) == JOBQ_ERROR_INVALID && conn == NULL);
    CHECK(jobq_pg_migrate(pg, &error) == JOBQ_ERROR_INVALID);
    CHECK(!jobq_pg_worker_step(hosted, 0));
    CHECK(jobq_pg_worker_fds(hosted, fds, NULL) == 0);
    CHECK(jobq_pg_worker_wait(threaded, NULL) == JOBQ_ERROR_INVALID);
    CHECK(jobq_pg_worker_health(threaded, NULL) == JOBQ_ERROR_INVALID);
    CHECK(jobq_pg_worker_stats(threaded).jobs.started == 0);
    jobq_pg_worker_stop(threaded);
    jobq_pg_worker_stop(hosted);
    jobq_pg_release(pg, parents);
    if (round == 0) return 0; /* it just leaves */
    jobq_pg_worker_free(threaded);
    jobq_pg_worker_free(hosted);
    jobq_pg_close(pg);
    mine = handle();
    CHECK(jobq_pg_enqueue(mine, NULL, &job, NULL, &error) == JOBQ_OK);
    jobq_pg_close(mine);
    PQfinish(own);
    return 0;
}

static void a_child_leaves_its_parents_connections_alone(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *threaded = start(&d);
    jobq_pg_error error;
    PGconn *conn, *idle;
    int round, status, backend;

    (void)unused;
    d.loop.lease_us = 60 * SECOND; /* nobody turns the hosted one meanwhile */
    assert_int_equal(jobq_pg_worker_open(pg, &d, &hosted, &error), JOBQ_OK);
    enqueue_count(1);
    while (GET(runs) == 0 || jobq_pg_worker_health(hosted, NULL) != JOBQ_OK) {
        jobq_pg_worker_step(hosted, 0);
    }
    assert_int_equal(jobq_pg_acquire(pg, &conn, &error), JOBQ_OK);
    PQclear(PQexec(conn, "BEGIN"));
    assert_int_equal(jobq_pg_acquire(pg, &idle, &error), JOBQ_OK);
    backend = PQbackendPID(idle);
    jobq_pg_release(pg, idle); /* the one on top of the pool */
    for (round = 0; round < 2; round++) {
        pid_t pid = fork();
        if (pid == 0) _exit(child_tries(threaded, conn, round));
        waitpid(pid, &status, 0);
        assert_int_equal(status, 0);
        assert_int_equal(PQtransactionStatus(conn), PQTRANS_INTRANS);
        PQclear(PQexec(conn, "SELECT 1"));
        assert_int_equal(PQtransactionStatus(conn), PQTRANS_INTRANS);
    }
    assert_int_equal(number("SELECT count(*) FROM pg_stat_activity WHERE pid = %d", backend), 1);
    jobq_pg_release(pg, conn);
    enqueue_count(1);
    assert_true(becomes(20, 3, "SELECT count(*) FROM jobq.history"));
    for (round = 0; round < 50; round++) jobq_pg_worker_step(hosted, 0);
    assert_int_equal(jobq_pg_worker_stats(hosted).jobs.reconnects, 0);
    assert_false(jobq_pg_worker_stats(hosted).jobs.heartbeats == 0);
    jobq_pg_worker_free(hosted);
    assert_int_equal(stop(threaded).reconnects, 0);
}

/* ---- signals --------------------------------------------------------------------------------- */

static int others; /* signals that came to the program's own handler */

static void on_other(int number)
{
    (void)number;
    others++;
}

static void a_signal_stops_those_who_asked_for_it(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", slow);
    jobq_pg_worker_desc d = work_of(&h, 1), deaf = work_of(&h, 1);
    jobq_pg_worker *first, *second, *third;
    struct sigaction action, former;
    jobq_loop_stats stats;

    (void)unused;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_other;
    sigaction(SIGUSR1, &action, &former);
    d.stop_signals[0] = SIGUSR1;
    d.stop_signals[1] = SIGUSR2;
    first = start(&d);
    enqueue_count(1);
    assert_true(reaches(20, &runs, 1));
    second = start(&d);
    third = start(&deaf);
    raise(SIGUSR1);
    stats = ended(first); /* its handler has been let finish */
    assert_int_equal(stats.succeeded, 1);
    ended(second);
    assert_int_equal(others, 0);
    raise(SIGUSR1); /* nobody left who asked for it: the program's own handler is back */
    assert_int_equal(others, 1);
    assert_int_equal(jobq_pg_worker_health(third, NULL) == JOBQ_ERROR_DEAD, false);
    stop(third);
    sigaction(SIGUSR1, &former, NULL);
}

/* The grace ends with a second one, as with a second stop. */
static void a_second_signal_ends_the_grace(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", holds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    int64_t begun = mono_us();
    jobq_pg_worker *worker;
    jobq_pg_stats stats;
    jobq_pg_health health;

    (void)unused;
    d.stop_signals[0] = SIGUSR1;
    worker = start(&d);
    enqueue_count(1);
    assert_true(reaches(20, &runs, 1));
    raise(SIGUSR1);
    raise(SIGUSR1);
    jobq_pg_worker_wait(worker, &stats);
    assert_int_equal(stats.jobs.abandoned, 1);
    assert_true(mono_us() - begun < 30 * SECOND);
    SET(gate, 1);
    do { /* until its handler comes back */
        nap_us(20000);
        jobq_pg_worker_health(worker, &health);
    } while (health.abandoned > 0);
    workers[0] = NULL;
    jobq_pg_worker_free(worker);
}

static void a_childs_signal_is_its_own(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;
    int status = 0;
    pid_t pid;

    (void)unused;
    if (CHILDREN_ARE_DEAF) skip();
    d.stop_signals[0] = SIGTERM;
    worker = start(&d);
    pid = fork();
    if (pid == 0) {
        for (;;) pause();
    }
    kill(pid, SIGTERM);
    waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    enqueue_count(1);
    assert_true(reaches(20, &runs, 1)); /* and the parent's worker works on */
    stop(worker);
}

/* Its parent's worker is left, or freed, or freed with its handle: it has workers of its own. */
static int child_works(jobq_pg_worker *parents, int round)
{
    jobq_pg_handler h = handler_of("q", "k", slow);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;
    jobq_pg_worker *worker;
    jobq_pg_stats stats;
    jobq_pg *mine;

    if (round > 0) jobq_pg_worker_free(parents);
    if (round > 1) jobq_pg_close(pg);
    mine = handle();
    d.stop_signals[0] = SIGTERM;
    runs = 0;
    CHECK(jobq_pg_worker_start(mine, &d, &worker, &error) == JOBQ_OK);
    CHECK(reaches(20, &runs, 1));
    raise(SIGTERM);
    CHECK(jobq_pg_worker_wait(worker, &stats) == JOBQ_OK);
    CHECK(stats.jobs.succeeded == 1);
    jobq_pg_worker_free(worker);
    jobq_pg_close(mine);
    return 0;
}

/* Waits for a child; 1000 and the signal that killed it, or its exit status. */
static int end_of(pid_t pid)
{
    int status = 0;

    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void a_childs_own_worker_hears_its_signal(void **unused)
{
    jobq_pg_handler other = handler_of("other", "k", succeed);
    jobq_pg_worker_desc d = work_of(&other, 1);
    jobq_pg_worker *worker;
    int round;

    (void)unused;
    if (CHILDREN_ARE_DEAF) skip();
    d.stop_signals[0] = SIGTERM;
    worker = start(&d);
    for (round = 0; round < 3; round++) {
        pid_t pid;
        enqueue_count(1);
        pid = fork();
        if (pid == 0) _exit(child_works(worker, round));
        assert_int_equal(end_of(pid), 0);
        assert_int_equal(number("SELECT count(*) FROM jobq.history"), round + 1);
    }
    assert_int_equal(jobq_pg_worker_health(worker, NULL), JOBQ_OK);
    stop(worker);
}

/* Without a worker of its own, whatever it freed, and whether it had one before. */
static void a_child_without_a_worker_dies_of_its_signal(void **unused)
{
    jobq_pg_handler other = handler_of("other", "k", succeed);
    jobq_pg_worker_desc d = work_of(&other, 1);
    jobq_pg_worker *worker;
    int round;

    (void)unused;
    if (CHILDREN_ARE_DEAF) skip();
    d.stop_signals[0] = SIGTERM;
    worker = start(&d);
    for (round = 0; round < 3; round++) {
        pid_t pid;
        if (round == 2) enqueue_count(1);
        pid = fork();
        if (pid == 0) {
            if (round < 2) jobq_pg_worker_free(worker);
            if (round == 1) jobq_pg_close(pg);
            if (round == 2 && child_works(worker, 2) != 0) _exit(1);
            raise(SIGTERM);
            _exit(0);
        }
        assert_int_equal(end_of(pid), 1000 + SIGTERM);
    }
    stop(worker);
}

/* The end of the grace is no end of the handler: only then may the handle go. */
static void a_wait_tells_of_a_handler_that_never_returned(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", holds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_health health;
    jobq_pg_worker *worker;

    (void)unused;
    d.stop_signals[0] = SIGUSR1;
    enqueue_count(1);
    worker = start(&d);
    assert_true(reaches(20, &runs, 1));
    workers[0] = NULL;
    jobq_pg_worker_stop(worker);
    jobq_pg_worker_stop(worker);
    assert_int_equal(jobq_pg_worker_wait(worker, NULL), JOBQ_ERROR_TIMEOUT);
    jobq_pg_worker_free(worker); /* not yet: but no signal comes to it any more */
    assert_false(jobq_pg__signal_used(SIGUSR1));
    SET(gate, 1);
    do { /* until its handler comes back */
        nap_us(20000);
        jobq_pg_worker_health(worker, &health);
    } while (health.abandoned > 0);
    jobq_pg_worker_free(worker);
}

static void a_signal_that_is_none_is_refused(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;
    jobq_pg_error error;

    (void)unused;
    d.stop_signals[0] = SIGKILL;
    assert_int_equal(jobq_pg_worker_start(pg, &d, &worker, &error), JOBQ_ERROR_INVALID);
    assert_null(worker);
    assert_string_equal(error.field, "stop_signals");
    d.stop_signals[0] = 9999;
    assert_int_equal(jobq_pg_worker_open(pg, &d, &worker, &error), JOBQ_ERROR_INVALID);
}

/* Stops asked for in a signal handler, in the middle of everything. */
static void stops_from_signal_handlers_are_safe(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    int round;

    (void)unused;
    d.stop_signals[0] = SIGALRM;
    for (round = 0; round < 10; round++) {
        struct itimerval soon;
        jobq_pg_worker *worker = start(&d);
        memset(&soon, 0, sizeof soon);
        soon.it_value.tv_usec = 1 + round * 3000;
        setitimer(ITIMER_REAL, &soon, NULL);
        enqueue_count(20);
        ended(worker);
    }
}

/* ---- setup ----------------------------------------------------------------------------------- */

static int empty(void **state)
{
    runs = elsewhere = others = gate = 0;
    pause_us = 100000;
    here = pthread_self();
    return pg_empty(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, empty, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(empty_leaves_what_comes_later),
        TEST(ended_waits_for_retries_snoozes_and_schedules),
        TEST(ended_waits_for_other_workers),
        TEST(ended_waits_for_messages),
        TEST(remains_sees_all_that_is_unfinished),
        TEST(one_job_is_run_here),
        TEST(one_job_that_fails_is_settled_too),
        TEST(many_workers_live_in_one_process),
        TEST(a_child_leaves_its_parents_connections_alone),
        TEST(a_signal_stops_those_who_asked_for_it),
        TEST(a_second_signal_ends_the_grace),
        TEST(a_childs_signal_is_its_own),
        TEST(a_childs_own_worker_hears_its_signal),
        TEST(a_child_without_a_worker_dies_of_its_signal),
        TEST(a_wait_tells_of_a_handler_that_never_returned),
        TEST(a_signal_that_is_none_is_refused),
        TEST(stops_from_signal_handlers_are_safe),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
