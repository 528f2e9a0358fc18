/*
 * test_pg_start.c -- what somebody meets on the first day: the way a worker starts and stops, what
 * it refuses with a reason, what it says, and what its handlers can ask.
 */
#include <string.h>

static int under_way, under_way_most; /* statements of a worker without an answer */

#define JOBQ_PG_POINT(step, kind, conn) point(step)

static void point(const char *step);

#define TEST_PRIVATE
#include "pg_work.h"

#include <fcntl.h>

static void point(const char *step)
{
    if (strcmp(step, "answered") == 0 && under_way > 0) under_way--; /* LISTEN is not counted */
    if (strcmp(step, "send") == 0 && ++under_way > under_way_most) under_way_most = under_way;
}

static int runs;
static int64_t remaining;

static jobq_outcome succeed(jobq_call *call)
{
    (void)call;
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

/* ---- starting -------------------------------------------------------------------------------- */

static void *works(void *desc)
{
    jobq_pg_error error;

    if (jobq_pg_work(pg, (const jobq_pg_worker_desc *)desc, &error)) fail_msg("%s", error.message);
    return NULL;
}

static void work_goes_on_until_it_is_stopped(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    pthread_t thread;

    (void)unused;
    d.stop_signals[0] = SIGUSR2;
    assert_int_equal(pthread_create(&thread, NULL, works, &d), 0);
    enqueue_count(1);
    assert_true(reaches(20, &runs, 1));
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.job"));
    enqueue_count(1); /* the queue was empty meanwhile */
    assert_true(reaches(20, &runs, 2));
    kill(getpid(), SIGUSR2);
    pthread_join(thread, NULL);
}

static void a_caller_can_wait_until_a_worker_is_ready(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker = start(&d), *hosted;
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(jobq_pg_worker_ready(worker, 20 * SECOND), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.workers WHERE alive AND host <> '' AND "
                            "pid = %d", (int)getpid()), 1);
    stop(worker);
    d.loop.threads = 1;
    assert_int_equal(jobq_pg_worker_open(pg, &d, &hosted, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_worker_ready(hosted, 0), JOBQ_ERROR_CONNECTION);
    assert_int_equal(jobq_pg_worker_ready(hosted, 20 * SECOND), JOBQ_OK);
    jobq_pg_worker_stop(hosted);
    assert_int_equal(jobq_pg_worker_wait(hosted, NULL), JOBQ_OK);
    assert_int_equal(jobq_pg_worker_ready(hosted, SECOND), JOBQ_ERROR_DEAD);
    jobq_pg_worker_free(hosted);
}

/* It would only be told so by the server again and again. */
static void a_role_that_may_not_work_is_refused_at_the_start(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    char role[64], conninfo[1200];
    jobq_pg_desc desc;
    jobq_pg *other;
    jobq_pg_worker *worker;
    jobq_pg_error error;

    (void)unused;
    snprintf(role, sizeof role, "jobq_start_%d", (int)getpid());
    RUN("CREATE ROLE %s LOGIN PASSWORD 'secret'", role);
    RUN("SELECT jobq.grant_enqueue('%s')", role);
    memset(&desc, 0, sizeof desc);
    snprintf(conninfo, sizeof conninfo, "%s user=%s password=secret", server(), role);
    desc.conninfo = conninfo;
    desc.schema = schema;
    if (jobq_pg_open(&other, &desc, &error) != JOBQ_OK) fail_msg("%s", error.message);
    assert_int_equal(jobq_pg_worker_start(other, &d, &worker, &error), JOBQ_ERROR_DATABASE);
    assert_string_equal(error.sqlstate, "42501");
    assert_non_null(strstr(error.message, "grant_work('jobq_start_"));
    RUN("SELECT jobq.grant_work('%s')", role);
    if (jobq_pg_worker_start(other, &d, &worker, &error) != JOBQ_OK) fail_msg("%s", error.message);
    assert_int_equal(jobq_pg_worker_ready(worker, 20 * SECOND), JOBQ_OK);
    jobq_pg_worker_stop(worker);
    assert_int_equal(jobq_pg_worker_wait(worker, NULL), JOBQ_OK);
    jobq_pg_worker_free(worker);
    jobq_pg_close(other);
    RUN("DROP OWNED BY %s", role);
    RUN("DROP ROLE %s", role);
}

static void what_is_certainly_a_mistake_is_refused(void **unused)
{
    static const struct {
        const char *field;
        jobq_loop_config loop;
    } cases[] = {
        {"loop.lease_us", {.lease_us = 5}},
        {"loop.lease_us", {.lease_us = -JOBQ_SECONDS(30)}},
        {"loop.heartbeat_us", {.lease_us = JOBQ_SECONDS(10), .heartbeat_us = JOBQ_SECONDS(11)}},
        {"loop.poll_us", {.poll_us = -1}},
        {"loop.grace_us", {.grace_us = -1}},
        {"loop.answer_us", {.answer_us = -1}},
        {"loop.jobs_max", {.jobs_max = -1}},
        {"loop.batch_max", {.batch_max = -1}},
        {"loop.threads", {.threads = 5000}},
        {"loop.threads", {.threads = -1}},
    };
    jobq_pg_handler h[2] = {handler_of("q", "k", succeed), handler_of("q", "k", succeed)};
    jobq_pg_worker_desc d = work_of(h, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *worker;
    jobq_pg_error error;
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(cases); i++) {
        d.loop = cases[i].loop;
        assert_int_equal(jobq_pg_worker_start(pg, &d, &worker, &error), JOBQ_ERROR_INVALID);
        assert_string_equal(error.field, cases[i].field);
    }
    d = work_of(h, 2);
    assert_int_equal(jobq_pg_worker_start(pg, &d, &worker, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "handlers");
    job.run_at_us = time(NULL) + 60; /* seconds, not microseconds */
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "run_at_us");
    job.run_at_us = JOBQ_SECONDS(time(NULL) + 60);
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_OK);
}

/* For modules and servers whose only connection is the caller's. */
static void a_handle_can_do_without_connections(void **unused)
{
    jobq_pg_desc desc = {.schema = schema, .no_pool = true, .conninfo = "host=/nowhere"};
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job(), bad = plain_job();
    jobq_pg_worker *worker;
    jobq_pg_error error;
    jobq_pg *other;
    int64_t id;

    (void)unused;
    assert_int_equal(jobq_pg_open(&other, &desc, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue(other, db, &job, &id, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 1);
    bad.kind = "no blanks";
    assert_int_equal(jobq_pg_enqueue(other, db, &bad, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "kind");
    assert_int_equal(jobq_pg_enqueue(other, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "conn");
    assert_int_equal(jobq_pg_worker_start(other, &d, &worker, &error), JOBQ_ERROR_INVALID);
    jobq_pg_close(other);
}

/* A stopped server must not hold a request of somebody else's program. */
static void a_call_waits_no_longer_than_it_may(void **unused)
{
    jobq_pg_desc desc = {.conninfo = server(), .schema = schema, .log = quiet_log,
                         .call_us = JOBQ_MILLISECONDS(300)};
    jobq_pg_job job = plain_job();
    PGconn *conn = PQconnectdb(server());
    jobq_pg_error error;
    jobq_pg *other;
    int64_t began;

    (void)unused;
    enqueue_count(1); /* the queue and the kind are there */
    assert_int_equal(jobq_pg_open(&other, &desc, &error), JOBQ_OK);
    RUN("BEGIN");
    RUN("LOCK TABLE jobq.job");
    began = mono_us();
    assert_int_equal(jobq_pg_enqueue(other, NULL, &job, NULL, &error), JOBQ_ERROR_TIMEOUT);
    assert_int_equal(jobq_pg_enqueue(other, conn, &job, NULL, &error), JOBQ_ERROR_TIMEOUT);
    assert_true(mono_us() - began >= JOBQ_MILLISECONDS(600));
    RUN("ROLLBACK");
    assert_int_equal(jobq_pg_enqueue(other, conn, &job, NULL, &error), JOBQ_ERROR_CONNECTION);
    assert_int_equal(jobq_pg_enqueue(other, NULL, &job, NULL, &error), JOBQ_OK);
    PQfinish(conn);
    jobq_pg_close(other);
}

static void the_system_has_random_bits(void **unused)
{
    uint64_t a = 0, b = 0;

    (void)unused;
    assert_true(jobq_pg_random(&a) && jobq_pg_random(&b));
    assert_true(a != b);
}

/* An int would overflow after 35 minutes. */
static void durations_are_of_64_bits(void **unused)
{
    int days = 30;

    (void)unused;
    assert_true(JOBQ_DAYS(days) == (int64_t)2592000 * 1000000);
    assert_true(JOBQ_DAYS(1) == JOBQ_HOURS(24) && JOBQ_HOURS(1) == JOBQ_MINUTES(60));
    assert_true(JOBQ_MINUTES(1) == JOBQ_SECONDS(60) && JOBQ_SECONDS(1) == JOBQ_MILLISECONDS(1000));
}

/* As in SQL, a caller that names only a part of the backoff keeps the default jitter. */
static void a_backoff_has_jitter_unless_it_is_turned_off(void **unused)
{
    jobq_pg_queue_desc some = {.backoff = {.base_us = JOBQ_SECONDS(5)}},
                       none = {.backoff = {.base_us = JOBQ_SECONDS(5),
                                           .jitter_permille = JOBQ_NO_JITTER}};
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &some, &error), JOBQ_OK);
    assert_int_equal(number("SELECT backoff_jitter_permille FROM jobq.queue"), 250);
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &none, &error), JOBQ_OK);
    assert_int_equal(number("SELECT backoff_jitter_permille FROM jobq.queue"), 0);
}

/* SQL, too, says whether the key was known. */
static void sql_tells_whether_a_key_existed(void **unused)
{
    long id;

    (void)unused;
    id = number("SELECT id FROM jobq.enqueue_or_get('q', 'k', key => 'one') WHERE NOT existed");
    assert_true(id > 0);
    assert_int_equal(number("SELECT id FROM jobq.enqueue_or_get('q', 'k', key => 'one') "
                            "WHERE existed"), id);
    assert_int_equal(number("SELECT jobq.enqueue('q', 'k', key => 'one')"), id);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 1);
}

/* ---- what it says ---------------------------------------------------------------------------- */

/* What a child process writes to stderr while it tries to reach a server that is not there. */
static void errors_go_to_stderr_in_single_lines_unless_a_log_is_given(void **unused)
{
    char text[8000] = "";
    const char *line;
    int ends[2], n, size = 0;
    pid_t pid;

    (void)unused;
    assert_int_equal(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
        jobq_pg_desc desc = {.conninfo = "host=127.0.0.1,127.0.0.1 port=1 connect_timeout=1",
                             .patience_us = JOBQ_MILLISECONDS(300)};
        jobq_pg_error error;
        jobq_pg *none;
        dup2(ends[1], 2);
        if (jobq_pg_open(&none, &desc, &error) != JOBQ_ERROR_CONNECTION) _exit(1);
        _exit(strchr(error.message, '\n') == NULL ? 0 : 2);
    }
    close(ends[1]);
    while ((n = (int)read(ends[0], text + size, sizeof text - 1 - (size_t)size)) > 0) size += n;
    close(ends[0]);
    waitpid(pid, &n, 0);
    assert_int_equal(n, 0);
    assert_true(size > 0);
    for (line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        assert_int_equal(strncmp(line, "jobq: warning: ", 15), 0);
        assert_non_null(strchr(line, '\n'));
    }
}

static int unreachable;

static bool connects(void *user, jobq_pg_dial *dial)
{
    (void)user;
    (void)dial;
    return !GET(unreachable);
}

/* Waits until health reports a trouble, or none. */
static bool troubled(jobq_pg_worker *worker, bool wanted, jobq_pg_health *health)
{
    int64_t until = mono_us() + 20 * SECOND;

    do {
        nap_us(5000);
        jobq_pg_worker_health(worker, health);
    } while ((health->error[0] != '\0') != wanted && mono_us() < until);
    return (health->error[0] != '\0') == wanted;
}

static void an_old_trouble_is_forgotten(void **unused)
{
    jobq_pg_desc desc = {.conninfo = server(), .schema = schema, .log = quiet_log,
                         .connect = connects};
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;
    jobq_pg_health health;
    jobq_pg_error error;
    jobq_pg *other;

    (void)unused;
    d.name = "troubled";
    assert_int_equal(jobq_pg_open(&other, &desc, &error), JOBQ_OK);
    worker = start_on(other, &d);
    assert_int_equal(jobq_pg_worker_ready(worker, 20 * SECOND), JOBQ_OK);
    SET(unreachable, 1);
    PQclear(sql(db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name LIKE '%% troubled'"));
    assert_true(troubled(worker, true, &health));
    assert_true(health.error_us >= 0);
    SET(unreachable, 0);
    assert_true(troubled(worker, false, &health));
    assert_int_equal(health.error_us, -1);
    stop(worker);
    jobq_pg_close(other);
}

/* ---- what a handler can ask and say ---------------------------------------------------------- */

static jobq_outcome asks_for_its_time(jobq_call *call)
{
    remaining = jobq_call_remaining(call);
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_result asks_for_its_time_too(jobq_delivery *d, const jobq_message *m)
{
    (void)m;
    remaining = jobq_delivery_remaining(d);
    ADD(runs);
    return JOBQ_RESULT_SUCCESS;
}

static void handlers_know_how_much_time_is_left(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", asks_for_its_time);
    jobq_pg_receiver r = {.queue = "box", .each = asks_for_its_time_too};
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_message m = {.queue = "box"};
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    jobq_pg_worker *worker;

    (void)unused;
    r.tuning.budget_us = 20 * SECOND;
    d.receivers = &r;
    d.receiver_count = 1;
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "box", 1, NULL, &error), JOBQ_OK);
    worker = start(&d);
    enqueue_with(&job);
    assert_true(reaches(20, &runs, 1));
    assert_true(remaining == JOBQ_NEVER);
    job.timeout_us = JOBQ_SECONDS(60);
    enqueue_with(&job);
    assert_true(reaches(20, &runs, 2));
    assert_in_range(remaining, JOBQ_SECONDS(30), JOBQ_SECONDS(60));
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_OK);
    assert_true(reaches(20, &runs, 3));
    assert_in_range(remaining, SECOND, 20 * SECOND);
    stop(worker);
}

static jobq_outcome releases_when_asked(jobq_call *call)
{
    ADD(runs);
    while (jobq_call_stopping(call) == JOBQ_STOP_NONE) nap_us(1000);
    return jobq_call_stopping(call) == JOBQ_STOP_SHUTDOWN ? JOBQ_OUTCOME_RELEASE
                                                          : JOBQ_OUTCOME_DISCARD;
}

/* A deploy must not use up the attempts of long jobs. */
static void a_stop_costs_no_attempt(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", releases_when_asked);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;

    (void)unused;
    enqueue_count(1);
    worker = start(&d);
    assert_true(reaches(20, &runs, 1));
    assert_int_equal(stop(worker).released, 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0 AND "
                            "run_at <= now() AND errors IS NULL"), 1);
}

/* Drains jobs; returns the most statements that were under way at once. */
static int most_under_way(bool behind_pooler)
{
    jobq_pg_desc desc = {.conninfo = server(), .schema = schema, .log = quiet_log,
                         .behind_pooler = behind_pooler};
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;
    jobq_pg *other;

    enqueue_count(3000);
    under_way = under_way_most = 0;
    d.loop.until = JOBQ_UNTIL_EMPTY;
    d.loop.batch_max = 100;
    if (jobq_pg_open(&other, &desc, &error) != JOBQ_OK) fail_msg("%s", error.message);
    if (jobq_pg_work(other, &d, &error) != JOBQ_OK) fail_msg("%s", error.message);
    jobq_pg_close(other);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    return under_way_most;
}

/* pgbouncer 1.18 may mix up the answers to two. */
static void behind_a_pooler_one_statement_is_under_way(void **unused)
{
    (void)unused;
    assert_true(most_under_way(false) > 1);
    assert_int_equal(most_under_way(true), 1);
}

static int gate;

static jobq_outcome holds(jobq_call *call)
{
    (void)call;
    while (!GET(gate)) nap_us(1000);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Hung handlers that are months apart do not add up. */
static void single_stuck_handlers_do_not_stop_a_worker(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", holds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_health health;
    jobq_pg__run *run;
    jobq_pg_worker *w;
    int i;

    (void)unused;
    job.timeout_us = 100000;
    job.max_attempts = 1;
    d.loop.threads = 2;
    w = start(&d);
    for (i = 1; i <= 4; i++) {
        enqueue_with(&job);
        do {
            nap_us(5000);
            assert_int_not_equal(jobq_pg_worker_health(w, &health), JOBQ_ERROR_TIMEOUT);
        } while (health.abandoned < i);
        pthread_mutex_lock(&w->group->lock); /* an hour goes by */
        for (run = w->group->runs; run != NULL; run = run->link)
            run->abandoned_mono_us -= JOBQ_HOURS(1) + 1;
        pthread_mutex_unlock(&w->group->lock);
    }
    SET(gate, 1);
    do nap_us(5000);
    while (jobq_pg_worker_health(w, &health) == JOBQ_OK && health.abandoned > 0);
    stop(w);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 4);
}

static int empty(void **state)
{
    SET(runs, 0);
    SET(gate, 0);
    return pg_empty(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, empty, all_stop)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(work_goes_on_until_it_is_stopped),
        TEST(a_caller_can_wait_until_a_worker_is_ready),
        TEST(a_role_that_may_not_work_is_refused_at_the_start),
        TEST(what_is_certainly_a_mistake_is_refused),
        TEST(a_handle_can_do_without_connections),
        TEST(a_call_waits_no_longer_than_it_may),
        TEST(the_system_has_random_bits),
        TEST(durations_are_of_64_bits),
        TEST(a_backoff_has_jitter_unless_it_is_turned_off),
        TEST(sql_tells_whether_a_key_existed),
        TEST(errors_go_to_stderr_in_single_lines_unless_a_log_is_given),
        TEST(an_old_trouble_is_forgotten),
        TEST(handlers_know_how_much_time_is_left),
        TEST(behind_a_pooler_one_statement_is_under_way),
        TEST(a_stop_costs_no_attempt),
        TEST(single_stuck_handlers_do_not_stop_a_worker),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
