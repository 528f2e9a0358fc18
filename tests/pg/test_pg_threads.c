/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The threads of a worker: how many there are, and that nothing that may hang (desc.connect, a name
 * server, a prune) delays handlers, heartbeats or the end.
 */
#include "pg_work.h"

#include <dirent.h>
#include <netdb.h>

#define HANDLERS 3

typedef enum trouble { NONE, CONNECT_HANGS, NAMES_HANG } trouble;

static int hanging; /* hanging: calls that wait for the gate */
static int trouble_now, trouble_past; /* past: at connections past the pooler, not at others */
static pthread_t here;
static int elsewhere;

static void wait_for_the_gate(void)
{
    ADD(hanging);
    while (!GET(gate)) nap_us(1000);
    __atomic_sub_fetch(&hanging, 1, __ATOMIC_SEQ_CST);
}

/* In place of libc's: no name server answers. Only connections in trouble ask for a name. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **found)
{
    (void)name, (void)service, (void)hints;
    *found = NULL;
    wait_for_the_gate();
    return EAI_AGAIN;
}

static bool connects(void *user, jobq_pg_dial *dial)
{
    bool past = strstr(dial->conninfo, "keepalives_count=9") != NULL;

    (void)user;
    if (dial->worker == NULL || past != (GET(trouble_past) != 0)) return true;
    if (GET(trouble_now) == NAMES_HANG) return jobq_pg_dial_set(dial, "host", "jobq.invalid");
    if (GET(trouble_now) == CONNECT_HANGS) wait_for_the_gate();
    return true;
}

static int threads_here(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;

    assert_non_null(tasks);
    while (readdir(tasks) != NULL) count++;
    closedir(tasks);
    return count;
}

static jobq_outcome succeeds(jobq_call *call)
{
    (void)call;
    if (!pthread_equal(pthread_self(), here)) ADD(elsewhere);
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

/* ---- workers --------------------------------------------------------------------------------- */

static const jobq_pg_handler handler = {.queue = "q", .kind = "k", .run = {succeeds}};

static jobq_pg_worker_desc work_here(void)
{
    jobq_pg_worker_desc d = work_of(&handler, 1);

    d.loop.threads = HANDLERS;
    d.loop.grace_us = d.loop.answer_us = SECOND;
    d.loop.lease_us = 30 * SECOND;
    return d;
}

/* A handle; past: as behind a pooler, with a connection past it. */
static jobq_pg *open_here(bool past)
{
    static char conninfo[200];
    jobq_pg_desc d;
    jobq_pg_error error;
    jobq_pg *made;

    memset(&d, 0, sizeof d);
    snprintf(conninfo, sizeof conninfo, "%s keepalives_count=9", server());
    d.conninfo = server();
    d.schema = schema;
    d.log = quiet_log;
    d.connect = connects;
    d.behind_pooler = past;
    d.listen_conninfo = past ? conninfo : NULL;
    if (jobq_pg_open(&made, &d, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return made;
}

static bool hears(jobq_pg_worker *w)
{
    int64_t until = mono_us() + 20 * SECOND;
    jobq_pg_health health;

    do {
        if (mono_us() > until) return false;
        nap_us(2000);
        jobq_pg_worker_health(w, JOBQ_PG_ALL, &health);
    } while (!health.connected || !health.hears);
    return true;
}

/* So many threads more than before, for 20 looks in a row; meanwhile one beyond that, which makes a
 * connection, and never two. */
static void expect_threads(int before, int more)
{
    int64_t until = mono_us() + 20 * SECOND;
    int looks = 0;

    while (looks < 20) {
        int now = threads_here();
        assert_in_range(now, before, before + more + 1);
        assert_true(mono_us() < until);
        looks = now == before + more ? looks + 1 : 0;
        nap_us(500);
    }
}

static void kill_backends(void)
{
    RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'job_ test'");
}

static long beat(void) { return number("SELECT max(beat) FROM jobq.worker"); }

/* Jobs are run, and heartbeats accepted. */
static void expect_work(void)
{
    long heard = beat();
    int before = GET(runs);

    enqueue_count(6);
    assert_true(reaches(10, &runs, before + 6));
    assert_true(becomes(10, 1, "SELECT 1 - count(*) FROM jobq.job"));
    while (beat() < heard + 2) nap_us(5000);
}

/* ---- how many -------------------------------------------------------------------------------- */

static void one_thread_steps_beside_those_of_handlers(void **unused)
{
    jobq_pg_worker_desc d = work_here();
    int before = threads_here();
    jobq_pg_worker *w = start(&d);

    (void)unused;
    assert_true(hears(w));
    expect_threads(before, 1 + HANDLERS);
    expect_work();
    expect_threads(before, 1 + HANDLERS);
    kill_backends();
    assert_true(hears(w));
    expect_threads(before, 1 + HANDLERS);
    stop(w);
    expect_threads(before, 0);
}

static void listening_past_a_pooler_takes_no_thread(void **unused)
{
    jobq_pg_worker_desc d = work_here();
    jobq_pg *handle = open_here(true);
    int before = threads_here();
    jobq_pg_worker *w = start_on(handle, &d);

    (void)unused;
    assert_true(hears(w));
    expect_threads(before, 1 + HANDLERS);
    kill_backends(); /* that one too: they are replaced one after the other */
    expect_work();
    assert_true(hears(w));
    expect_threads(before, 1 + HANDLERS);
    stop(w);
    jobq_pg_close(handle);
}

#define PRUNES "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND " \
               "query LIKE '%%.prune(%%' AND pid <> pg_backend_pid()"

/* Deleting an old failed job takes half a minute, and there is one. */
static void prune_slowly(void)
{
    enqueue_count(1);
    RUN("INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt,"
        " crash, priority, stage, stages) SELECT 9000000, now(), now(), now() - interval '31 days',"
        " k.queue_id, k.id, 1, 0, 0, 0, 1 FROM jobq.kind k");
    RUN("CREATE FUNCTION jobq.dawdle() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(30); RETURN NULL; END $$");
    RUN("CREATE TRIGGER dawdle AFTER DELETE ON jobq.failed FOR EACH STATEMENT"
        " EXECUTE FUNCTION jobq.dawdle()");
}

static void a_long_prune_takes_no_thread_and_delays_nothing(void **unused)
{
    jobq_pg_worker_desc d = work_here();
    int before = threads_here();
    int64_t began;
    jobq_pg_worker *w;

    (void)unused;
    prune_slowly();
    d.loop.prune_us = 100000;
    w = start(&d);
    assert_true(becomes(20, 1, PRUNES));
    expect_threads(before, 1 + HANDLERS);
    expect_work();
    assert_int_equal(number(PRUNES), 1);
    began = mono_us();
    stop(w); /* cuts it short */
    assert_true(mono_us() - began < 10 * SECOND);
    assert_int_equal(number(PRUNES), 0);
    RUN("DROP FUNCTION jobq.dawdle() CASCADE");
}

/* ---- what hangs ------------------------------------------------------------------------------ */

static void begin_trouble(trouble what, bool past)
{
    SET(trouble_past, past);
    SET(trouble_now, (int)what);
}

/* The worker ends by its grace and its patience; true: it says that something has not returned. */
static bool ends_in_time(jobq_pg_worker *w)
{
    int64_t began = mono_us();
    jobq_error code;

    workers[0] = NULL;
    jobq_pg_worker_stop(w);
    code = jobq_pg_worker_wait(w, NULL);
    assert_true(mono_us() - began < 10 * SECOND);
    assert_true(code == JOBQ_OK || code == JOBQ_ERROR_TIMEOUT);
    return code == JOBQ_ERROR_TIMEOUT;
}

/* Nothing used the worker meanwhile; what hung has come back. */
static void free_after_the_gate(jobq_pg_worker *w, bool stuck, jobq_pg *handle)
{
    jobq_pg_health health;

    jobq_pg_worker_free(w); /* frees nothing if it is in use */
    if (stuck) {
        jobq_pg_worker_health(w, JOBQ_PG_ALL, &health);
        assert_int_equal(health.abandoned, 1);
    }
    SET(gate, 1);
    while (stuck && health.abandoned > 0) {
        nap_us(2000);
        jobq_pg_worker_health(w, JOBQ_PG_ALL, &health);
    }
    if (stuck) jobq_pg_worker_free(w);
    while (GET(hanging) > 0) nap_us(1000);
    jobq_pg_close(handle);
}

/* The connection for LISTEN hangs: all the rest goes on. */
static void listener_hangs(trouble what)
{
    jobq_pg_worker_desc d = work_here();
    jobq_pg *handle = open_here(true);
    int before = threads_here();
    jobq_pg_worker *w;
    bool stuck;

    begin_trouble(what, true);
    w = start_on(handle, &d);
    assert_true(reaches(20, &hanging, 1));
    expect_work();
    expect_threads(before, 1 + HANDLERS + 1);
    kill_backends();
    expect_work(); /* on a new connection, made beside the one that hangs */
    stuck = ends_in_time(w);
    assert_int_equal(stuck, what == CONNECT_HANGS);
    free_after_the_gate(w, stuck, handle);
}

static void connect_that_hangs_for_listen_delays_nothing(void **unused)
{
    (void)unused;
    listener_hangs(CONNECT_HANGS);
}

static void a_name_server_that_hangs_for_listen_delays_nothing(void **unused)
{
    (void)unused;
    listener_hangs(NAMES_HANG);
}

static jobq_outcome outlasts(jobq_call *call)
{
    ADD(runs);
    while (!GET(trouble_now) || GET(hanging) == 0) nap_us(1000);
    return jobq_call_stopping(call, NULL) == JOBQ_STOP_NONE ? JOBQ_OUTCOME_SUCCESS
                                                            : JOBQ_OUTCOME_RETRY;
}

/* The connection for statements hangs: handlers go on, and so does the worker once it is back. */
static void statements_hang(trouble what, bool stops)
{
    jobq_pg_handler h = handler_of("q", "k", outlasts);
    jobq_pg_worker_desc d = work_here();
    jobq_pg *handle = open_here(false);
    int before = threads_here();
    jobq_pg_worker *w;
    bool stuck;

    d.handlers = &h;
    enqueue_count(1);
    w = start_on(handle, &d);
    assert_true(reaches(20, &runs, 1));
    begin_trouble(what, false);
    kill_backends();
    assert_true(reaches(20, &hanging, 1));
    expect_threads(before, 1 + HANDLERS + 1);
    nap_us(1500000); /* longer than the worker's patience: it begins no second attempt beside it */
    assert_int_equal(GET(hanging), 1);
    expect_threads(before, 1 + HANDLERS + 1);
    if (stops) {
        stuck = ends_in_time(w);
        assert_int_equal(stuck, what == CONNECT_HANGS);
        free_after_the_gate(w, stuck, handle);
        return;
    }
    begin_trouble(NONE, false);
    SET(gate, 1);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
    stop(w);
    jobq_pg_close(handle);
}

static void connect_that_hangs_is_waited_for(void **unused)
{
    (void)unused;
    statements_hang(CONNECT_HANGS, false);
}

static void a_name_server_that_hangs_is_waited_for(void **unused)
{
    (void)unused;
    statements_hang(NAMES_HANG, false);
}

static void connect_that_hangs_delays_no_stop(void **unused)
{
    (void)unused;
    statements_hang(CONNECT_HANGS, true);
}

static void a_name_server_that_hangs_delays_no_stop(void **unused)
{
    (void)unused;
    statements_hang(NAMES_HANG, true);
}

/* A desc.connect that is merely slow is waited for at the end: nothing uses the handle after it. */
static void *opens_the_gate(void *unused)
{
    nap_us(300000);
    SET(gate, 1);
    return unused;
}

static void a_slow_connect_has_returned_when_the_worker_has_ended(void **unused)
{
    jobq_pg_worker_desc d = work_here();
    jobq_pg *handle = open_here(false);
    jobq_pg_worker *w;
    pthread_t thread;

    (void)unused;
    d.loop.answer_us = 20 * SECOND;
    begin_trouble(CONNECT_HANGS, false);
    w = start_on(handle, &d);
    assert_true(reaches(20, &hanging, 1));
    pthread_create(&thread, NULL, opens_the_gate, NULL);
    workers[0] = NULL;
    jobq_pg_worker_stop(w);
    assert_int_equal(jobq_pg_worker_wait(w, NULL), JOBQ_OK);
    assert_int_equal(GET(hanging), 0);
    pthread_join(thread, NULL);
    jobq_pg_worker_free(w);
    jobq_pg_close(handle);
}

/* ---- in the host's loop ---------------------------------------------------------------------- */

/* Steps until a counter has its value; the longest step. */
static int64_t steps(jobq_pg_worker *w, const int *counter, int wanted)
{
    int64_t until = mono_us() + 20 * SECOND, longest = 0;

    while (GET(*counter) < wanted) {
        struct pollfd fds[JOBQ_PG_FDS];
        int64_t began = mono_us();
        assert_true(began < until);
        assert_true(jobq_pg_worker_step(w, 0));
        if (mono_us() - began > longest) longest = mono_us() - began;
        poll(fds, (nfds_t)jobq_pg_worker_fds(w, fds, NULL), 20);
    }
    return longest;
}

static jobq_pg_worker *open_worker(jobq_pg *handle, const jobq_pg_worker_desc *d)
{
    jobq_pg_error error;
    jobq_pg_worker *w;

    if (jobq_pg_worker_open(handle, d, &w, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return w;
}

/* LISTEN past the pooler, as with threads; and a host that is freed while names are asked for. */
static void a_hosted_worker_listens_past_a_pooler(void **unused)
{
    jobq_pg_worker_desc d = work_here();
    jobq_pg *handle = open_here(true);
    jobq_pg_worker *w;
    jobq_pg_health health;
    int64_t began, until;
    int before = threads_here();

    (void)unused;
    d.loop.heartbeat_us = 20 * SECOND; /* only a notification is faster */
    d.loop.lease_us = 120 * SECOND;
    w = open_worker(handle, &d);
    do {
        jobq_pg_worker_step(w, 0);
        nap_us(1000);
        jobq_pg_worker_health(w, JOBQ_PG_ALL, &health);
    } while (!health.hears || number("SELECT count(*) FROM jobq.sleeper") == 0);
    expect_threads(before, 0);
    until = mono_us() + 7 * SECOND; /* the looks after its sleep are over */
    while (mono_us() < until) {
        jobq_pg_worker_step(w, 0);
        nap_us(10000);
    }
    enqueue_count(1);
    began = mono_us();
    steps(w, &runs, 1);
    assert_true(mono_us() - began < 5 * SECOND);
    assert_int_equal(elsewhere, 0);
    jobq_pg_worker_free(w);
    jobq_pg_close(handle);
}

static void no_step_waits_for_what_hangs(void **unused)
{
    jobq_pg_worker_desc d = work_here();
    int what;

    (void)unused;
    for (what = CONNECT_HANGS; what <= NAMES_HANG; what++) {
        jobq_pg *handle = open_here(false);
        int before = threads_here();
        jobq_pg_worker *w = open_worker(handle, &d);
        int64_t began;
        SET(runs, 0);
        SET(gate, 0);
        begin_trouble(NONE, false);
        enqueue_count(1);
        steps(w, &runs, 1);
        begin_trouble((trouble)what, false);
        kill_backends();
        assert_true(steps(w, &hanging, 1) < 5 * SECOND);
        expect_threads(before, 1);
        began = mono_us();
        while (mono_us() - began < SECOND) assert_true(jobq_pg_worker_step(w, 0));
        began = mono_us();
        free_after_the_gate(w, what == CONNECT_HANGS, handle);
        assert_true(mono_us() - began < 5 * SECOND);
    }
}

/* ---- setup ----------------------------------------------------------------------------------- */

static void *ends_at_once(void *unused) { return unused; }

/* A sanitizer adds a thread of its own to the first one. */
static int up(void **state)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, ends_at_once, NULL) != 0) return 1;
    pthread_join(thread, NULL);
    return pg_up(state);
}

static int empty(void **state)
{
    SET(gate, 1); /* of a test that failed */
    while (GET(hanging) > 0) nap_us(1000);
    SET(runs, 0);
    SET(gate, 0);
    SET(elsewhere, 0);
    begin_trouble(NONE, false);
    here = pthread_self();
    return pg_empty(state);
}

static int quit(void **state)
{
    SET(gate, 1);
    begin_trouble(NONE, false);
    return all_stop(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, empty, quit)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_thread_steps_beside_those_of_handlers),
        TEST(listening_past_a_pooler_takes_no_thread),
        TEST(a_long_prune_takes_no_thread_and_delays_nothing),
        TEST(connect_that_hangs_for_listen_delays_nothing),
        TEST(a_name_server_that_hangs_for_listen_delays_nothing),
        TEST(connect_that_hangs_is_waited_for),
        TEST(a_name_server_that_hangs_is_waited_for),
        TEST(connect_that_hangs_delays_no_stop),
        TEST(a_name_server_that_hangs_delays_no_stop),
        TEST(a_slow_connect_has_returned_when_the_worker_has_ended),
        TEST(a_hosted_worker_listens_past_a_pooler),
        TEST(no_step_waits_for_what_hangs),
    };

    return cmocka_run_group_tests(tests, up, pg_down);
}
