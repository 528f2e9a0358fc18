/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * A worker in the host's event loop: everything runs on the caller's thread and nothing blocks it;
 * lost, silent and refused connections; wake-ups through the fds; several workers side by side.
 */
#include "proxy.h"

#include <dirent.h>

#define OPEN_MAX 2

static jobq_pg_worker *open_workers[OPEN_MAX];
static pthread_t here;
static int elsewhere, stop_seen;
static int64_t longest_us; /* of a step */

/* ---- handlers -------------------------------------------------------------------------------- */

static jobq_outcome succeed_here(jobq_call *call)
{
    (void)call;
    runs++;
    if (!pthread_equal(pthread_self(), here)) elsewhere++;
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome retry_then_snooze(jobq_call *call)
{
    jobq_call_delay(call, 20000);
    runs++;
    if (runs == 1) return JOBQ_OUTCOME_RETRY;
    return runs == 2 ? JOBQ_OUTCOME_SNOOZE : JOBQ_OUTCOME_SUCCESS;
}

static int64_t patience_us;

/* Works for a time, and asks meanwhile. */
static jobq_outcome patient(jobq_call *call)
{
    int64_t until = mono_us() + patience_us;
    jobq_stop stop = JOBQ_STOP_NONE;

    runs++;
    while (stop == JOBQ_STOP_NONE && mono_us() < until) {
        nap_us(2000);
        stop = jobq_call_stopping(call, NULL);
    }
    stop_seen = (int)stop;
    return stop == JOBQ_STOP_NONE ? JOBQ_OUTCOME_SUCCESS : JOBQ_OUTCOME_RETRY;
}

static jobq_outcome complete_here(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    runs++;
    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    PQclear(PQexec(conn, "BEGIN"));
    return jobq_pg_call_commit(call, conn);
}

static jobq_result take_one(jobq_delivery *d, const jobq_message *m)
{
    PGconn *conn = jobq_pg_delivery_conn(d);

    (void)m;
    runs++;
    if (!pthread_equal(pthread_self(), here)) elsewhere++;
    if (conn != NULL) PQclear(PQexec(conn, "SELECT 1"));
    return JOBQ_RESULT_SUCCESS;
}

/* ---- the host -------------------------------------------------------------------------------- */

static jobq_pg_worker *open_worker(jobq_pg *handle, const jobq_pg_worker_desc *desc)
{
    jobq_pg_error error;
    jobq_pg_worker *worker;
    int i;

    if (jobq_pg_worker_open(handle, desc, &worker, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    for (i = 0; i < OPEN_MAX && open_workers[i] != NULL;) i++;
    assert_true(i < OPEN_MAX);
    open_workers[i] = worker;
    return worker;
}

static void freed(jobq_pg_worker *worker)
{
    int i;

    for (i = 0; i < OPEN_MAX; i++) {
        if (open_workers[i] == worker) open_workers[i] = NULL;
    }
    jobq_pg_worker_free(worker);
}

/* One turn of the host's loop over all workers; false: one of them has ended. */
static bool turn(int64_t wait_us)
{
    struct pollfd fds[OPEN_MAX * JOBQ_PG_FDS];
    int64_t now, next = mono_us() + wait_us;
    int count = 0, i;
    bool alive = true;

    for (i = 0; i < OPEN_MAX; i++) {
        int64_t left = 0, begun = mono_us();
        if (open_workers[i] == NULL) continue;
        alive = jobq_pg_worker_step(open_workers[i], 0) && alive;
        if (mono_us() - begun > longest_us) longest_us = mono_us() - begun;
        count += jobq_pg_worker_fds(open_workers[i], fds + count, &left);
        if (mono_us() + left < next) next = mono_us() + left;
    }
    now = mono_us();
    if (alive) poll(fds, (nfds_t)count, next > now ? (int)((next - now + 999) / 1000) : 0);
    return alive;
}

/* Turns until a counter has its value; false after this many seconds. */
static bool turns(double seconds, const int *counter, int wanted)
{
    int64_t until = mono_us() + (int64_t)(seconds * 1e6);

    while (__atomic_load_n(counter, __ATOMIC_SEQ_CST) < wanted) {
        if (mono_us() > until) return false;
        turn(50000);
    }
    return true;
}

/* Turns until a query gives a number. */
static bool turns_to(double seconds, long wanted, const char *query)
{
    int64_t until = mono_us() + (int64_t)(seconds * 1e6);

    while (number("%s", query) != wanted) {
        if (mono_us() > until) return false;
        turn(20000);
    }
    return true;
}

static void turn_to_the_end(void)
{
    int64_t until = mono_us() + 30 * SECOND;

    while (turn(50000)) assert_true(mono_us() < until);
}

static int threads_here(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;

    if (tasks == NULL) return 0;
    while (readdir(tasks) != NULL) count++;
    closedir(tasks);
    return count;
}

static const char ended_jobs[] = "SELECT count(*) FROM jobq.history WHERE state = 's'";

/* A handle through the proxy, whose connections can be cut. */
static jobq_pg *through_proxy(void)
{
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *made;

    memset(&desc, 0, sizeof desc);
    desc.conninfo = proxy.conninfo;
    desc.schema = schema;
    desc.log = quiet_log;
    if (jobq_pg_open(&made, &desc, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return made;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void jobs_run_on_the_callers_thread(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
    jobq_pg_worker_desc d = work_of(&h, 1);
    int threads = threads_here(), rounds = 0, waits;
    jobq_pg_worker *w;

    (void)unused;
    enqueue_count(100);
    d.loop.prune_us = 20000;
    d.loop.vacuum_rows = 1;
    w = open_worker(pg, &d);
    while (runs < 100 || rounds++ < 50) {
        turn(50000);
        for (waits = 0; threads_here() > threads + 1 && waits < 1000; waits++) nap_us(1000);
        assert_in_range(threads_here(), threads, threads + 1); /* which makes a connection */
    }
    assert_true(turns_to(20, 100, ended_jobs));
    assert_int_equal(elsewhere, 0);
    for (rounds = 0; threads_here() > threads && rounds < 1000; rounds++) turn(1000);
    assert_int_equal(threads_here(), threads);
    assert_int_equal(jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.started, 100);
    assert_int_equal(jobq_pg_worker_health(w, JOBQ_PG_ALL, NULL), JOBQ_OK);
    jobq_pg_worker_stop(w);
    turn_to_the_end();
    assert_false(jobq_pg_worker_step(w, 0));
    assert_int_equal(jobq_pg_worker_health(w, JOBQ_PG_ALL, NULL), JOBQ_ERROR_DEAD);
    freed(w);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
}

static void a_worker_that_nobody_steps_is_late(void **unused)
{
    jobq_pg_worker_desc d = work_of(NULL, 0);
    struct pollfd fds[JOBQ_PG_FDS];
    int64_t wait_us, until = mono_us() + 20 * SECOND;
    jobq_pg_health health;
    jobq_pg_worker *w;

    (void)unused;
    d.loop.poll_us = d.loop.heartbeat_us = SECOND / 2;
    d.loop.lease_us = 600 * SECOND;
    w = open_worker(pg, &d);
    do {
        turn(50000);
        assert_true(mono_us() < until);
    } while (jobq_pg_worker_health(w, JOBQ_PG_ALL, &health) != JOBQ_OK || health.late_us > 0);
    jobq_pg_worker_fds(w, fds, &wait_us);
    assert_in_range(wait_us, 0, SECOND / 2);
    nap_us(wait_us + 30000);
    jobq_pg_worker_health(w, 0, &health);
    assert_in_range(health.late_us, 30000, mono_us() - until + 20 * SECOND);
    jobq_pg_worker_health(w, JOBQ_PG_ALL, &health);
    assert_true(health.late_us >= 30000);
    do {
        turn(0);
        jobq_pg_worker_health(w, JOBQ_PG_ALL, &health);
        assert_true(mono_us() < until);
    } while (health.late_us > 0);
    jobq_pg_worker_stop(w);
    turn_to_the_end();
    jobq_pg_worker_health(w, JOBQ_PG_ALL, &health);
    assert_true(health.late_us == 0); /* it has ended */
    freed(w);
}

static void a_step_keeps_to_its_budget(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", patient);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *w;
    int before, tries = 0;

    (void)unused;
    enqueue_count(200);
    patience_us = 4000;
    w = open_worker(pg, &d);
    assert_true(turns(20, &runs, 2));
    before = runs;
    jobq_pg_worker_step(w, 0);
    assert_true(runs <= before + 1);
    do { /* as many as are there: after a handler that took long it is one, for a while */
        turn(50000);
        before = runs;
        jobq_pg_worker_step(w, 10 * SECOND);
    } while (runs <= before + 1 && ++tries < 50);
    assert_true(runs > before + 1);
    assert_true(turns(60, &runs, 200));
}

static void a_job_comes_again_after_retry_and_snooze(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", retry_then_snooze);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    enqueue_count(1);
    open_worker(pg, &d);
    assert_true(turns_to(20, 1, ended_jobs));
    assert_int_equal(runs, 3);
}

static void a_handler_completes_in_its_transaction(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", complete_here);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    enqueue_count(3);
    open_worker(pg, &d);
    assert_true(turns_to(20, 3, ended_jobs));
    assert_int_equal(runs, 3);
}

static void messages_are_delivered_too(void **unused)
{
    jobq_pg_receiver r[2];
    jobq_pg_worker_desc d = work_of(NULL, 0);
    jobq_pg_message m;
    jobq_pg_error error;
    int i;

    (void)unused;
    memset(r, 0, sizeof r);
    memset(&m, 0, sizeof m);
    r[0].queue = "leased";
    r[1].queue = "transactional";
    r[1].transactional = true;
    for (i = 0; i < 2; i++) {
        r[i].each = take_one;
        assert_int_equal(jobq_pg_outbox_register(pg, NULL, r[i].queue, 2, NULL, &error), JOBQ_OK);
    }
    d.receivers = r;
    d.receiver_count = 2;
    for (i = 0; i < 40; i++) {
        m.queue = r[i % 2].queue;
        m.partition = i / 2 % 2;
        m.type = "t";
        m.payload = jobq_str_from("{}");
        assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_OK);
    }
    open_worker(pg, &d);
    assert_true(turns(20, &runs, 40));
    assert_true(turns_to(20, 0, "SELECT coalesce(sum(lag), 0)::int FROM jobq.outbox"));
    assert_int_equal(elsewhere, 0);
}

static void an_enqueue_wakes_the_poll(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
    jobq_pg_worker_desc d = work_of(&h, 1);
    int64_t begun;
    int round;

    (void)unused;
    d.loop.lease_us = 120 * SECOND;
    d.loop.heartbeat_us = d.loop.poll_us = 20 * SECOND; /* only a notification is faster */
    open_worker(pg, &d);
    for (round = 1; round <= 3; round++) {
        assert_true(turns_to(20, 1, "SELECT count(*) FROM jobq.sleeper"));
        enqueue_count(1);
        begun = mono_us();
        while (runs < round) turn(30 * SECOND);
        assert_true(mono_us() - begun < 15 * SECOND);
    }
}

static void two_workers_share_one_thread(void **unused)
{
    jobq_pg_handler first = handler_of("q", "k", succeed_here),
                    second = handler_of("r", "k", succeed_here);
    jobq_pg_worker_desc a = work_of(&first, 1), b = work_of(&second, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *one, *two;
    int i;

    (void)unused;
    enqueue_count(50);
    job.queue = "r";
    for (i = 0; i < 50; i++) enqueue_with(&job);
    one = open_worker(pg, &a);
    two = open_worker(pg, &b);
    assert_true(turns_to(20, 100, ended_jobs));
    assert_int_equal(jobq_pg_worker_stats(one, JOBQ_PG_ALL).jobs.started, 50);
    assert_int_equal(jobq_pg_worker_stats(two, JOBQ_PG_ALL).jobs.started, 50);
}

/* Whatever the moment of the cut, and whichever half of the exchange is lost. */
static void a_cut_connection_is_made_again(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg *handle = through_proxy();
    jobq_pg_worker *w;
    int at, ended = 0;

    (void)unused;
    d.loop.heartbeat_us = 50000;
    w = open_worker(handle, &d);
    assert_true(turns_to(20, 1, "SELECT count(*) FROM jobq.worker"));
    for (at = 1; at <= 8; at++) {
        enqueue_count(5);
        ended += 5;
        proxy_fault_at(at % 2 == 0 ? PROXY_CUT_ANSWER : PROXY_CUT_REQUEST, at);
        assert_true(turns(30, &proxy.happened, 1));
        assert_true(turns_to(30, ended, ended_jobs));
    }
    assert_true(jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.reconnects >= 6);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    freed(w);
    jobq_pg_close(handle);
}

static int by_schema[2];
static char order[64]; /* which schema's jobs ran, one after the other */

static jobq_outcome note_schema(jobq_call *call)
{
    int which = *(const int *)call->user;

    if (runs < (int)sizeof order - 1) order[runs] = (char)('a' + which);
    runs++;
    by_schema[which]++;
    nap_us(2000); /* longer than a claim takes, so that both soon have jobs in hand */
    return JOBQ_OUTCOME_SUCCESS;
}

/* A second schema; its handle goes through the proxy. It is made past that. */
static jobq_pg *second_schema(char *name, size_t size)
{
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *made;

    snprintf(name, size, "%s_b", schema);
    memset(&desc, 0, sizeof desc);
    desc.conninfo = server();
    desc.schema = name;
    desc.log = quiet_log;
    assert_int_equal(jobq_pg_open(&made, &desc, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_migrate(made, &error), JOBQ_OK);
    jobq_pg_close(made);
    desc.conninfo = proxy.conninfo;
    assert_int_equal(jobq_pg_open(&made, &desc, &error), JOBQ_OK);
    return made;
}

static void enqueue_on(jobq_pg *handle, int count)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;

    while (count-- > 0) {
        assert_int_equal(jobq_pg_enqueue(handle, NULL, &job, NULL, &error), JOBQ_OK);
    }
}

/* 30 jobs for each of the two, after one of each: how many of the first 40 that run are a's. */
static int turns_of_a(jobq_pg *other)
{
    int i, count = 0;

    runs = 2;
    by_schema[0] = by_schema[1] = 1;
    memset(order, 0, sizeof order);
    enqueue_on(pg, 30);
    enqueue_on(other, 30);
    assert_true(turns(20, &runs, 62));
    assert_int_equal(by_schema[0], 31);
    for (i = 2; i < 42; i++) count += order[i] == 'a';
    return count;
}

/* Health, asked by another thread while desc.connect is called. */
static jobq_pg_worker *asked_worker;
static int answers, answered_late;

static void *asks_health(void *unused)
{
    jobq_pg_worker_health(asked_worker, JOBQ_PG_ALL, NULL);
    ADD(answers);
    return unused;
}

static bool connect_asks(void *user, jobq_pg_dial *dial)
{
    int before = GET(answers);
    pthread_t thread;

    (void)user;
    if (asked_worker == NULL || dial->worker == NULL) return true;
    pthread_create(&thread, NULL, asks_health, NULL);
    if (!reaches(5, &answers, before + 1)) ADD(answered_late);
    pthread_detach(thread);
    return true;
}

static void connect_may_ask_for_health(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc hooked;
    jobq_pg_error error;
    jobq_pg *handle;

    (void)unused;
    memset(&hooked, 0, sizeof hooked);
    hooked.conninfo = server();
    hooked.schema = schema;
    hooked.log = quiet_log;
    hooked.connect = connect_asks;
    if (jobq_pg_open(&handle, &hooked, &error) != JOBQ_OK) fail_msg("%s", error.message);
    asked_worker = open_worker(handle, &d);
    enqueue_count(1);
    while (runs == 0 && GET(answered_late) == 0) turn(100000);
    assert_int_equal(GET(answered_late), 0);
    assert_true(GET(answers) > 0);
    jobq_pg_worker_stop(asked_worker);
    assert_int_equal(jobq_pg_worker_wait(asked_worker, NULL), JOBQ_OK);
    freed(asked_worker);
    asked_worker = NULL;
    jobq_pg_close(handle);
}

/* One thread works two schemas in turn, and goes on with one while the other's server is away. */
static void schemas_share_a_thread_and_one_that_is_down_holds_nobody_up(void **unused)
{
    static int names[2] = {0, 1};
    jobq_pg_handler h = handler_of("q", "k", note_schema);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *a, *b;
    char name[64], text[160];
    jobq_pg *other = second_schema(name, sizeof name);
    int count = 0, rounds = 0;

    (void)unused;
    memset(by_schema, 0, sizeof by_schema);
    d.loop.answer_us = 300000;
    h.user = &names[0];
    a = open_worker(pg, &d);
    h.user = &names[1];
    b = open_worker(other, &d);
    enqueue_on(pg, 1);
    enqueue_on(other, 1);
    assert_true(turns(20, &by_schema[0], 1) && turns(20, &by_schema[1], 1)); /* both are up */
    /* Neither waits for the other's end: 30 and 10. A claim that comes late does the same, once. */
    while (rounds++ < 5 && (count < 11 || count > 29)) count = turns_of_a(other);
    assert_in_range(count, 11, 29);
    SET(proxy.refuse, 1); /* the second server goes down, in the middle of its silence */
    proxy_fault_at(PROXY_SILENT, 1);
    assert_true(turns(20, &proxy.happened, 1));
    longest_us = 0;
    enqueue_on(pg, 50);
    assert_true(turns(20, &by_schema[0], 81));
    assert_true(longest_us < 5 * SECOND); /* one that waits does for 10 s, or for ever */
    proxy_fault_at(PROXY_NONE, 0);
    SET(proxy.refuse, 0); /* and comes back */
    enqueue_on(other, 5);
    assert_true(turns(30, &by_schema[1], 36));
    jobq_pg_worker_stop(a);
    jobq_pg_worker_stop(b);
    turn_to_the_end();
    freed(a);
    freed(b);
    jobq_pg_close(other);
    snprintf(text, sizeof text, "DROP SCHEMA %s CASCADE", name);
    PQclear(PQexec(db, text));
}

/* Half-open, or refused: the host's own work goes on meanwhile. */
static void no_step_waits_for_a_silent_server(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg *handle = through_proxy();
    jobq_pg_worker *w;

    (void)unused;
    d.loop.answer_us = 300000;
    w = open_worker(handle, &d);
    enqueue_count(1);
    assert_true(turns_to(20, 1, ended_jobs));
    longest_us = 0;
    proxy_fault_at(PROXY_SILENT, 1);
    assert_true(turns(20, &proxy.happened, 1));
    SET(proxy.refuse, 1);
    assert_true(turns(20, &proxy.connections, GET(proxy.connections) + 2)); /* both refused */
    assert_int_not_equal(jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.reconnects, 0);
    enqueue_count(1);
    SET(proxy.refuse, 0);
    assert_true(turns_to(30, 2, ended_jobs));
    assert_true(longest_us < 5 * SECOND); /* one that waits does for 10 s, or for ever */
    freed(w);
    jobq_pg_close(handle);
}

/* A worker whose handler has worked for two and a half leases, and asked meanwhile. */
static jobq_pg_worker *asks_long(int64_t lease_us)
{
    jobq_pg_handler h = handler_of("q", "k", patient);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *w;

    pg_empty(NULL);
    runs = stop_seen = 0;
    enqueue_count(1);
    d.loop.lease_us = lease_us;
    d.loop.heartbeat_us = 100000;
    patience_us = 5 * lease_us / 2;
    w = open_worker(pg, &d);
    assert_true(turns(20, &runs, 1));
    return w;
}

static void a_handler_that_asks_keeps_the_lease(void **unused)
{
    int64_t lease_us = SECOND;
    jobq_pg_worker *w = asks_long(lease_us);

    (void)unused;
    while (stop_seen != JOBQ_STOP_NONE && lease_us < 4 * SECOND) {
        freed(w); /* a loaded machine may have paused for longer than the lease */
        w = asks_long(lease_us *= 2);
    }
    assert_true(turns_to(20, 1, ended_jobs));
    assert_int_equal(stop_seen, JOBQ_STOP_NONE);
    assert_int_equal(jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.deaths, 0);
    assert_true(jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.heartbeats >= 5);
}

static void a_handler_over_its_time_is_told(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", patient);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;

    (void)unused;
    job.timeout_us = 100000;
    job.max_attempts = 1;
    enqueue_with(&job);
    patience_us = 20 * SECOND;
    w = open_worker(pg, &d);
    assert_true(turns_to(20, 1, "SELECT count(*) FROM jobq.failed"));
    assert_int_equal(stop_seen, JOBQ_STOP_TIMEOUT);
    expect_text("t", "SELECT errors::text LIKE '%ran out of time%' FROM jobq.failed");
    assert_int_equal(jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.abandoned, 1);
    enqueue_count(1); /* and the worker works on */
    patience_us = 0;
    assert_true(turns_to(20, 1, ended_jobs));
}

static void a_stop_releases_what_has_not_begun(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *w;

    (void)unused;
    enqueue_count(200);
    w = open_worker(pg, &d);
    assert_true(turns(20, &runs, 2)); /* quick handlers: the next claim was a large one */
    while (jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.claimed < 20) turn(50000);
    jobq_pg_worker_stop(w);
    turn_to_the_end();
    assert_true(jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.released > 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state <> 'r' OR attempt <> 0"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.job") + runs, 200);
}

static void on_signal(int number)
{
    (void)number;
    jobq_pg_worker_stop(open_workers[0]);
}

/* The signal interrupts the poll, or the pipe ends it. */
static void a_signal_handler_may_stop_it(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
    jobq_pg_worker_desc d = work_of(&h, 1);
    struct sigaction action, old;

    (void)unused;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, &old);
    enqueue_count(1);
    open_worker(pg, &d);
    assert_true(turns_to(20, 1, ended_jobs));
    raise(SIGUSR1);
    turn_to_the_end();
    sigaction(SIGUSR1, &old, NULL);
}

static void waiting_runs_it_to_its_end(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_stats stats;
    jobq_pg_worker *w;

    (void)unused;
    enqueue_count(20);
    d.loop.until = JOBQ_UNTIL_EMPTY;
    w = open_worker(pg, &d);
    assert_int_equal(jobq_pg_worker_wait(w, &stats), JOBQ_OK);
    assert_int_equal(stats.jobs.succeeded, 20);
    assert_int_equal(elsewhere, 0);
}

static void one_freed_in_the_middle_loses_nothing(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *w;

    (void)unused;
    d.loop.lease_us = SECOND;
    d.loop.heartbeat_us = 100000;
    enqueue_count(50);
    w = open_worker(pg, &d);
    assert_true(turns(20, &runs, 2));
    freed(w);
    open_worker(pg, &d);
    assert_true(turns_to(30, 50, ended_jobs));
}

static void housekeeping_goes_on(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *w;

    (void)unused;
    RUN("SELECT pg_stat_reset()");
    enqueue_count(20);
    d.loop.vacuum_rows = 5;
    w = open_worker(pg, &d);
    assert_true(turns_to(30, 20, ended_jobs)); /* 14 may count a vacuum of before the reset */
    assert_true(turns_to(30, 1, "SELECT (sum(vacuum_count) > 0)::int FROM pg_stat_user_tables "
                                "WHERE schemaname = 'jobq' AND relname = 'job'"));
    RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name LIKE '%% test'");
    enqueue_count(20);
    assert_true(turns_to(30, 40, ended_jobs));
    /* A late answer costs one, too. */
    assert_true(jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.reconnects >= 1);
}

/* -- calls that do not wait -- */

static int replies, codes[JOBQ_ERROR_COUNT], in_handler;
static jobq_pg_reply latest;
static jobq_pg_error latest_error;
static int64_t replied[2000]; /* ids, in the order of the callbacks */

static void replies_forgotten(void)
{
    replies = in_handler = 0;
    memset(codes, 0, sizeof codes);
}

static void hears(void *user, const jobq_pg_reply *reply)
{
    assert_ptr_equal(user, &replies);
    assert_true(pthread_equal(pthread_self(), here));
    latest = *reply;
    latest_error = *reply->error;
    codes[reply->code]++;
    if (replies < (int)COUNT(replied)) replied[replies] = reply->id;
    replies++;
    if (in_handler) elsewhere++;
}

static jobq_outcome asks_and_waits(jobq_call *call)
{
    in_handler = 1;
    nap_us(2000);
    jobq_call_stopping(call, NULL); /* steps the worker */
    in_handler = 0;
    return succeed(call);
}

static void enqueues(jobq_pg_worker *w, const jobq_pg_job *job)
{
    jobq_pg_error error;

    if (jobq_pg_worker_ask(w, &(jobq_pg_question){.enqueue = job}, hears, &replies,
                           &error) != JOBQ_OK)
        fail_msg("%s", error.message);
}

/* What the latest call was answered, once it is. */
static jobq_error answered(int wanted)
{
    assert_true(turns(20, &replies, wanted));
    assert_int_equal(replies, wanted);
    return latest.code;
}

/* From the loop, a few at a time, while jobs run; the answers come in order, and never from within
 * a handler. */
static void a_thousand_are_enqueued_while_jobs_run(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", asks_and_waits);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w = open_worker(pg, &d);
    int i;

    (void)unused;
    replies_forgotten();
    for (i = 0; i < 1000; i++) {
        char key[20];
        snprintf(key, sizeof key, "%d", i);
        job.key = key;
        enqueues(w, &job);
        if (i % 100 == 0) turn(1000);
    }
    assert_int_equal(answered(1000), JOBQ_OK);
    assert_int_equal(codes[JOBQ_OK], 1000);
    for (i = 1; i < 1000; i++) assert_true(replied[i] > replied[i - 1]);
    assert_true(turns_to(120, 1000, ended_jobs));
    assert_int_equal(elsewhere, 0);
    assert_int_equal(runs, 1000);
}

/* The answers are those of the blocking functions. The worker only asks: it has no handlers. */
static void calls_answer_as_those_that_wait_do(void **unused)
{
    jobq_pg_worker_desc d = work_of(NULL, 0);
    jobq_pg_job job = plain_job();
    jobq_pg_filter which = {0};
    jobq_pg_error error;
    jobq_pg_worker *w;
    jobq_job facts;
    int64_t id;

    (void)unused;
    replies_forgotten();
    w = open_worker(pg, &d);
    job.key = "once";
    job.delay_us = JOBQ_HOURS(1);
    enqueues(w, &job);
    assert_int_equal(answered(1), JOBQ_OK);
    id = latest.id;
    enqueues(w, &job);
    assert_int_equal(answered(2), JOBQ_ERROR_EXISTS);
    assert_int_equal(latest.id, id);
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_EXISTS);
    assert_string_equal(latest_error.message, error.message);
    jobq_pg_worker_ask(w, &(jobq_pg_question){.get = id}, hears, &replies, NULL);
    assert_int_equal(answered(3), JOBQ_OK);
    assert_int_equal(jobq_pg_get(pg, NULL, id, &facts, &error), JOBQ_OK);
    assert_int_equal(latest.job.id, facts.id);
    assert_int_equal(latest.job.state, facts.state);
    assert_true(latest.job.run_at_us == facts.run_at_us && facts.run_at_us != 0);
    jobq_pg_worker_ask(w, &(jobq_pg_question){.get = 4711}, hears, &replies, NULL);
    assert_int_equal(answered(4), JOBQ_ERROR_NOT_FOUND);
    which.id = id;
    jobq_pg_worker_ask(w, &(jobq_pg_question){.cancel = &which}, hears, &replies, NULL);
    assert_int_equal(answered(5), JOBQ_OK);
    assert_int_equal(latest.count, 1);
    jobq_pg_worker_ask(w, &(jobq_pg_question){.cancel = &which}, hears, &replies, NULL);
    assert_int_equal(answered(6), JOBQ_ERROR_TRANSITION);
    assert_int_equal(jobq_pg_cancel(pg, NULL, &which, NULL, NULL, &error), JOBQ_ERROR_TRANSITION);
    assert_string_equal(latest_error.message, error.message);
    enqueue_count(3);
    memset(&which, 0, sizeof which);
    which.queue = "q";
    jobq_pg_worker_ask(w, &(jobq_pg_question){.cancel = &which}, hears, &replies, NULL);
    assert_int_equal(answered(7), JOBQ_OK);
    assert_int_equal(latest.count, 3);
    assert_int_equal(jobq_pg_worker_ask(w, &(jobq_pg_question){.get = 1, .await = 1}, hears,
                                        &replies, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "question");
    assert_int_equal(jobq_pg_worker_ask(w, &(jobq_pg_question){.get = 1, .timeout_us = 1000}, hears,
                                        &replies, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "timeout_us");
    job.payload = jobq_str_from("{");
    assert_int_equal(jobq_pg_worker_ask(w, &(jobq_pg_question){.enqueue = &job}, hears, &replies,
                                        &error),
                     JOBQ_ERROR_INVALID);
    RUN("UPDATE jobq.queue SET payload_max = 10");
    job.payload = jobq_str_from("\"too long to be taken\"");
    job.key = "another";
    enqueues(w, &job);
    assert_int_equal(answered(8), jobq_pg_enqueue(pg, NULL, &job, NULL, &error));
    assert_string_equal(latest_error.message, error.message);
    assert_int_not_equal(latest.code, JOBQ_OK);
    assert_int_equal(jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.reconnects, 0);
    assert_int_equal(jobq_pg_worker_start(pg, &d, &w, &error), JOBQ_ERROR_INVALID);
}

static jobq_outcome leaves_a_result(jobq_call *call)
{
    jobq_call_result(call, jobq_str_from("{\"done\": 1}"), false);
    return succeed(call);
}

static char left[40]; /* the latest result, as text */

static void hears_the_end(void *user, const jobq_pg_reply *reply)
{
    hears(user, reply);
    snprintf(left, sizeof left, "%.*s%s", (int)reply->result.len,
             reply->result.ptr == NULL ? "-" : reply->result.ptr,
             reply->result_bytes ? " bytes" : "");
}

static void awaits(jobq_pg_worker *w, int64_t id, int64_t timeout_us)
{
    jobq_pg_error error;

    if (jobq_pg_worker_ask(w, &(jobq_pg_question){.await = id, .timeout_us = timeout_us},
                           hears_the_end, &replies, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
}

/* The host awaits the end of a job as it awaits its sockets. */
static void a_job_is_awaited(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", leaves_a_result);
    jobq_pg_worker_desc d = work_of(NULL, 0), does = work_of(&h, 1);
    jobq_pg_worker *w;
    int64_t id, began;
    int i;

    (void)unused;
    replies_forgotten();
    w = open_worker(pg, &d);
    id = enqueue_kind("k", "1");
    awaits(w, 4711, JOBQ_NEVER);
    assert_int_equal(answered(1), JOBQ_ERROR_NOT_FOUND); /* so it is connected */
    for (i = -1; i < 2; i++) { /* also without any time, or with less */
        awaits(w, id, i * 30000);
        assert_int_equal(answered(i + 3), JOBQ_ERROR_TIMEOUT);
        assert_int_equal(latest.job.state, JOBQ_STATE_READY);
    }
    awaits(w, id, JOBQ_NEVER);
    assert_true(turns_to(20, 1, "SELECT count(*) FROM jobq.waiter"));
    start(&does);
    assert_int_equal(answered(5), JOBQ_OK);
    assert_int_equal(latest.job.state, JOBQ_STATE_SUCCEEDED);
    assert_string_equal(left, "{\"done\": 1}");
    id = enqueue_kind("later", "1"); /* nobody does it */
    awaits(w, id, JOBQ_NEVER);
    assert_false(turns(3.0, &replies, 6)); /* looks at 2 s and at 4 s: far from both */
    assert_int_equal(replies, 5);
    began = mono_us();
    RUN("SELECT jobq.cancel(%lld)", (long long)id);
    assert_int_equal(answered(6), JOBQ_OK);
    assert_true(mono_us() - began < 500000);
    assert_int_equal(latest.job.state, JOBQ_STATE_CANCELLED);
    awaits(w, enqueue_kind("later", "1"), JOBQ_NEVER);
    freed(w);
    assert_int_equal(replies, 7);
    assert_int_equal(latest.code, JOBQ_ERROR_DEAD);
}

/* A connection that is lost costs a look and no more. */
static void a_job_is_awaited_through_lost_connections(void **unused)
{
    jobq_pg_worker_desc d = work_of(NULL, 0);
    jobq_pg *handle = through_proxy();
    jobq_pg_worker *w = open_worker(handle, &d);
    int64_t id;
    int i;

    (void)unused;
    for (i = 0; i < 4; i++) {
        replies_forgotten();
        id = enqueue_kind("k", "1");
        proxy_fault_at(i % 2 == 0 ? PROXY_CUT_REQUEST : PROXY_CUT_ANSWER, 1 + i / 2);
        awaits(w, id, JOBQ_NEVER);
        assert_true(turns(20, &proxy.happened, 1));
        proxy_fault_at(PROXY_NONE, 0);
        RUN("SELECT jobq.cancel(%lld)", (long long)id);
        assert_int_equal(answered(1), JOBQ_OK);
        assert_int_equal(latest.job.state, JOBQ_STATE_CANCELLED);
    }
    freed(w);
    jobq_pg_close(handle);
}

/* A server that does not answer does not hold up the host. The outcome of the call is unknown; the
 * next call, on a new connection, works. */
static void calls_do_not_wait_for_a_server_that_stands_still(void **unused)
{
    jobq_pg_worker_desc d = work_of(NULL, 0);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;
    pid_t backend;

    (void)unused;
    if (getenv("JOBQ_SERVER_DIR") == NULL) skip();
    replies_forgotten();
    d.loop.answer_us = 3 * SECOND;
    w = open_worker(pg, &d);
    job.key = "k";
    enqueues(w, &job);
    assert_int_equal(answered(1), JOBQ_OK);
    backend = (pid_t)number("SELECT pid FROM pg_stat_activity "
                            "WHERE application_name LIKE '%% test'");
    assert_int_equal(kill(backend, SIGSTOP), 0);
    longest_us = 0;
    job.key = "l";
    enqueues(w, &job);
    assert_int_equal(answered(2), JOBQ_ERROR_CONNECTION);
    assert_non_null(strstr(latest_error.message, "it may have been carried out"));
    assert_true(longest_us < SECOND || check_slow());
    kill(backend, SIGCONT);
    enqueues(w, &job);
    answered(3);
    assert_true(latest.code == JOBQ_OK || latest.code == JOBQ_ERROR_EXISTS);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE key = 'l'"), 1);
}

/* Each call has one answer, also when the connection is lost with the request, or with the
 * answer. */
static void calls_are_answered_if_the_connection_is_cut(void **unused)
{
    static const proxy_fault faults[] = {PROXY_CUT_REQUEST, PROXY_CUT_ANSWER};
    jobq_pg_worker_desc d = work_of(NULL, 0);
    jobq_pg *handle = through_proxy();
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w = open_worker(handle, &d);
    int i, k, round, lost = 0;

    (void)unused;
    for (round = 0; round < 6; round++) {
        replies_forgotten();
        pg_empty(NULL);
        assert_true(turns_to(20, 1, "SELECT count(*) FROM jobq.worker"));
        proxy_fault_at(faults[round % 2], 1 + round / 2);
        for (i = 0; i < 50; i++) {
            char key[20];
            snprintf(key, sizeof key, "%d", i);
            job.key = key;
            enqueues(w, &job);
        }
        assert_true(turns(60, &replies, 50));
        assert_int_equal(codes[JOBQ_OK] + codes[JOBQ_ERROR_CONNECTION], 50);
        assert_int_not_equal(codes[JOBQ_OK], 0);
        lost += codes[JOBQ_ERROR_CONNECTION]; /* none if the cut met the worker's own statement */
        k = codes[JOBQ_OK];
        assert_true(number("SELECT count(*) FROM jobq.job") >= k);
        proxy_fault_at(PROXY_NONE, 0);
        for (i = 0; i < 50; i++) { /* with keys it is safe to repeat all of them */
            char key[20];
            snprintf(key, sizeof key, "%d", i);
            job.key = key;
            enqueues(w, &job);
        }
        assert_true(turns(60, &replies, 100));
        assert_int_equal(number("SELECT count(*) FROM jobq.job"), 50);
    }
    assert_true(lost > 0);
    freed(w);
    jobq_pg_close(handle);
}

/* Behind a pooler the calls and the loop's statements take turns, and an error does no harm. */
static void calls_pass_a_pooler_one_at_a_time(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc behind;
    jobq_pg_job job = plain_job(), large = plain_job();
    jobq_pg_error error;
    jobq_pg_worker *w;
    jobq_pg *handle;
    int i;

    (void)unused;
    replies_forgotten();
    memset(&behind, 0, sizeof behind);
    behind.conninfo = server();
    behind.schema = schema;
    behind.log = quiet_log;
    behind.behind_pooler = true;
    if (jobq_pg_open(&handle, &behind, &error) != JOBQ_OK) fail_msg("%s", error.message);
    enqueue_count(1);
    RUN("UPDATE jobq.queue SET payload_max = 10");
    large.payload = jobq_str_from("\"too long to be taken\"");
    w = open_worker(handle, &d);
    for (i = 0; i < 100; i++) enqueues(w, i % 10 == 5 ? &large : &job);
    answered(100);
    assert_int_equal(codes[JOBQ_OK], 90);
    assert_int_equal(codes[JOBQ_ERROR_CONNECTION], 0);
    assert_true(turns_to(60, 91, ended_jobs));
    assert_int_equal(jobq_pg_worker_stats(w, JOBQ_PG_ALL).jobs.reconnects, 0);
    freed(w);
    jobq_pg_close(handle);
}

/* The session loses its prepared statements at each enqueue, and the next one is sent again. */
static void calls_do_not_depend_on_prepared_statements(void **unused)
{
    jobq_pg_worker_desc d = work_of(NULL, 0);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;
    int i;

    (void)unused;
    replies_forgotten();
    RUN("CREATE OR REPLACE FUNCTION jobq.forgets() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN EXECUTE 'DEALLOCATE ALL'; RETURN NULL; END $$");
    RUN("CREATE TRIGGER forgets AFTER INSERT ON jobq.job EXECUTE FUNCTION jobq.forgets()");
    w = open_worker(pg, &d);
    for (i = 1; i <= 3; i++) {
        enqueues(w, &job);
        assert_int_equal(answered(i), JOBQ_OK);
    }
    RUN("DROP TRIGGER forgets ON jobq.job");
    RUN("DROP FUNCTION jobq.forgets()");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 3);
}

/* At a stop, and if the worker is freed before its end, every call is answered. */
static void calls_are_answered_before_the_worker_stops(void **unused)
{
    jobq_pg_worker_desc d = work_of(NULL, 0);
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    jobq_pg_worker *w;
    int i, round;

    (void)unused;
    for (round = 0; round < 2; round++) {
        replies_forgotten();
        pg_empty(NULL);
        w = open_worker(pg, &d);
        enqueues(w, &job);
        answered(1);
        for (i = 0; i < JOBQ_PG_ASYNC_MAX; i++) enqueues(w, &job);
        assert_int_equal(jobq_pg_worker_ask(w, &(jobq_pg_question){.enqueue = &job}, hears,
                                            &replies, &error),
                         JOBQ_ERROR_FULL);
        if (round == 0) {
            jobq_pg_worker_stop(w);
            turn_to_the_end();
            assert_int_equal(replies, JOBQ_PG_ASYNC_MAX + 1);
            assert_int_equal(jobq_pg_worker_ask(w, &(jobq_pg_question){.enqueue = &job}, hears,
                                                &replies, &error),
                             JOBQ_ERROR_DEAD);
        }
        freed(w);
        assert_true(becomes(30, 0, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' "
                            "AND datname = current_database() AND pid <> pg_backend_pid()"));
        assert_int_equal(replies, JOBQ_PG_ASYNC_MAX + 1);
        assert_int_equal(codes[JOBQ_OK] + codes[JOBQ_ERROR_CONNECTION] + codes[JOBQ_ERROR_DEAD],
                         replies);
        assert_true(number("SELECT count(*) FROM jobq.job") >= codes[JOBQ_OK]);
        assert_true(number("SELECT count(*) FROM jobq.job") <=
                    codes[JOBQ_OK] + codes[JOBQ_ERROR_CONNECTION]);
    }
}

/* ---- setup ----------------------------------------------------------------------------------- */

static int loop_up(void **state)
{
    if (pg_up(state) != 0) return 1;
    proxy_up();
    here = pthread_self();
    return 0;
}

static int loop_down(void **state)
{
    proxy_down();
    return pg_down(state);
}

static int empty(void **state)
{
    runs = elsewhere = stop_seen = 0;
    longest_us = patience_us = 0;
    proxy_fault_at(PROXY_NONE, 0);
    SET(proxy.refuse, 0);
    return pg_empty(state);
}

static int all_freed(void **state)
{
    int i;

    for (i = 0; i < OPEN_MAX; i++) freed(open_workers[i]);
    return all_stop(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, empty, all_freed)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(jobs_run_on_the_callers_thread),
        TEST(a_worker_that_nobody_steps_is_late),
        TEST(a_step_keeps_to_its_budget),
        TEST(a_job_comes_again_after_retry_and_snooze),
        TEST(a_handler_completes_in_its_transaction),
        TEST(messages_are_delivered_too),
        TEST(an_enqueue_wakes_the_poll),
        TEST(two_workers_share_one_thread),
        TEST(a_cut_connection_is_made_again),
        TEST(connect_may_ask_for_health),
        TEST(schemas_share_a_thread_and_one_that_is_down_holds_nobody_up),
        TEST(no_step_waits_for_a_silent_server),
        TEST(a_handler_that_asks_keeps_the_lease),
        TEST(a_handler_over_its_time_is_told),
        TEST(a_stop_releases_what_has_not_begun),
        TEST(a_signal_handler_may_stop_it),
        TEST(waiting_runs_it_to_its_end),
        TEST(one_freed_in_the_middle_loses_nothing),
        TEST(housekeeping_goes_on),
        TEST(a_thousand_are_enqueued_while_jobs_run),
        TEST(calls_answer_as_those_that_wait_do),
        TEST(calls_do_not_wait_for_a_server_that_stands_still),
        TEST(a_job_is_awaited),
        TEST(a_job_is_awaited_through_lost_connections),
        TEST(calls_are_answered_if_the_connection_is_cut),
        TEST(calls_pass_a_pooler_one_at_a_time),
        TEST(calls_do_not_depend_on_prepared_statements),
        TEST(calls_are_answered_before_the_worker_stops),
    };

    return cmocka_run_group_tests(tests, loop_up, loop_down);
}
