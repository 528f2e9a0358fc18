/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * A worker from its start to its end: what it refuses with a reason, what it says, what its
 * handlers can ask, how long it works (until nothing is due, until all jobs have ended, for one
 * job, until a signal), and workers in a process that forks.
 */
#include <string.h>

static int under_way, under_way_most; /* statements of a worker without an answer */

#define JOBQ_PG_POINT(step, kind, conn) point(step)

static void point(const char *step);

#define TEST_PRIVATE
#include "pg_work.h"

#include <fcntl.h>
#include <sys/time.h>

static void point(const char *step)
{
    int now = GET(under_way);

    if (strcmp(step, "answered") == 0 && now > 0) SET(under_way, now - 1); /* without LISTEN */
    if (strcmp(step, "send") != 0) return;
    SET(under_way, now + 1);
    if (now + 1 > GET(under_way_most)) SET(under_way_most, now + 1);
}

static int64_t remaining;

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
    assert_string_equal(error.field, "handlers.kind");
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
        jobq_pg_worker_health(worker, JOBQ_PG_ALL, health);
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
    jobq_call_stopping(call, &remaining);
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_result asks_for_its_time_too(jobq_delivery *d, const jobq_message *m)
{
    (void)m;
    jobq_delivery_stopping(d, &remaining);
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
    while (jobq_call_stopping(call, NULL) == JOBQ_STOP_NONE) nap_us(1000);
    return jobq_call_stopping(call, NULL) == JOBQ_STOP_SHUTDOWN ? JOBQ_OUTCOME_RELEASE
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
            assert_int_not_equal(jobq_pg_worker_health(w, JOBQ_PG_ALL, &health),
                                 JOBQ_ERROR_TIMEOUT);
        } while (health.abandoned < i);
        pthread_mutex_lock(&w->group->lock); /* an hour goes by */
        for (run = w->group->runs; run != NULL; run = run->link)
            run->abandoned_mono_us -= JOBQ_HOURS(1) + 1;
        pthread_mutex_unlock(&w->group->lock);
    }
    SET(gate, 1);
    do nap_us(5000);
    while (jobq_pg_worker_health(w, JOBQ_PG_ALL, &health) == JOBQ_OK && health.abandoned > 0);
    stop(w);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 4);
}

static int64_t pause_us; /* between the runs of third_time */
static pthread_t here;
static int elsewhere;

/* ---- handlers -------------------------------------------------------------------------------- */

static jobq_outcome succeed_here(jobq_call *call)
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
    jobq_pg_handler mine = handler_of("q", "k", succeed_here), other = handler_of("q", "k", slow);
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
    static const char asked[] =
        "SELECT jobq._remains(ARRAY[(SELECT id FROM jobq.queue WHERE name = "
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
    assert_int_equal(number("SELECT jobq._remains('{0}', '{}')::int"), 0);
    RUN("DELETE FROM jobq.job");
    assert_int_equal(number("%s", asked), 0);
}

/* ---- one job --------------------------------------------------------------------------------- */

static void one_job_is_run_here(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    enqueue_count(2);
    assert_true(work_one(&d));
    assert_int_equal(runs, 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"), 1);
    assert_true(work_one(&d));
    assert_false(work_one(&d));
    assert_int_equal(runs, 2);
    assert_int_equal(elsewhere, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
}

static void one_job_that_fails_is_settled_too(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", third_time);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    enqueue_count(1);
    assert_true(work_one(&d));
    assert_int_equal(number("SELECT attempt FROM jobq.job WHERE state = 'r'"), 1);
}

/* ---- many ------------------------------------------------------------------------------------ */

static void many_workers_live_in_one_process(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
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
    CHECK(jobq_pg_worker_health(threaded, JOBQ_PG_ALL, NULL) == JOBQ_ERROR_INVALID);
    CHECK(jobq_pg_worker_stats(threaded, JOBQ_PG_ALL).jobs.started == 0);
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

/* Turns the hosted worker, which may hold one of the jobs, until the history has so many. */
static void hosted_turns_until(long ended)
{
    int64_t until = mono_us() + 60 * SECOND;

    while (number("SELECT count(*) FROM jobq.history") < ended && mono_us() < until)
        jobq_pg_worker_step(hosted, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), ended);
}

static void a_child_leaves_its_parents_connections_alone(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *threaded = start(&d);
    jobq_pg_error error;
    PGconn *conn, *idle;
    int round, status, backend;
    int64_t until;

    (void)unused;
    d.loop.lease_us = 60 * SECOND; /* nobody turns the hosted one meanwhile */
    assert_int_equal(jobq_pg_worker_open(pg, &d, &hosted, &error), JOBQ_OK);
    enqueue_count(1);
    while (jobq_pg_worker_health(hosted, JOBQ_PG_ALL, NULL) != JOBQ_OK) jobq_pg_worker_step(hosted,
                                                                                            0);
    hosted_turns_until(1);
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
    hosted_turns_until(3);
    until = mono_us() + 60 * SECOND;
    while (jobq_pg_worker_stats(hosted, JOBQ_PG_ALL).jobs.heartbeats == 0 && mono_us() < until) {
        jobq_pg_worker_step(hosted, 0);
        nap_us(1000);
    }
    assert_true(jobq_pg_worker_stats(hosted, JOBQ_PG_ALL).jobs.heartbeats > 0);
    assert_int_equal(jobq_pg_worker_stats(hosted, JOBQ_PG_ALL).jobs.reconnects, 0);
    jobq_pg_worker_free(hosted);
    assert_int_equal(stop(threaded).reconnects, 0);
}

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
    assert_int_equal(jobq_pg_worker_health(third, JOBQ_PG_ALL, NULL) == JOBQ_ERROR_DEAD, false);
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
        jobq_pg_worker_health(worker, JOBQ_PG_ALL, &health);
    } while (health.abandoned > 0);
    workers[0] = NULL;
    jobq_pg_worker_free(worker);
}

static void a_childs_signal_is_its_own(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
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
    jobq_pg_handler other = handler_of("other", "k", succeed_here);
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
    assert_int_equal(jobq_pg_worker_health(worker, JOBQ_PG_ALL, NULL), JOBQ_OK);
    stop(worker);
}

/* Without a worker of its own, whatever it freed, and whether it had one before. */
static void a_child_without_a_worker_dies_of_its_signal(void **unused)
{
    jobq_pg_handler other = handler_of("other", "k", succeed_here);
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
    struct sigaction action;
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
    sigaction(SIGUSR1, NULL, &action);
    assert_true(action.sa_handler == SIG_DFL);
    SET(gate, 1);
    do { /* until its handler comes back */
        nap_us(20000);
        jobq_pg_worker_health(worker, JOBQ_PG_ALL, &health);
    } while (health.abandoned > 0);
    jobq_pg_worker_free(worker);
}

static void a_signal_that_is_none_is_refused(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
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
    jobq_pg_handler h = handler_of("q", "k", succeed_here);
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

static bool work_failed;

static void *works_until_stuck(void *arg)
{
    jobq_pg_error error;

    work_failed = jobq_pg_work(pg, (const jobq_pg_worker_desc *)arg, &error) != JOBQ_OK;
    ADD(others);
    return NULL;
}

/* A process with too many stuck handlers ends with an error, not with a success. */
static void a_worker_full_of_stuck_handlers_ends_with_an_error(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", holds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    pthread_t thread;
    int i;

    (void)unused;
    job.timeout_us = 100000;
    job.max_attempts = 1;
    for (i = 0; i < 10; i++) enqueue_with(&job);
    d.loop.threads = 4;
    d.loop.jobs_max = 1000;
    assert_int_equal(pthread_create(&thread, NULL, works_until_stuck, &d), 0);
    assert_true(reaches(20, &others, 1));
    pthread_join(thread, NULL);
    assert_true(GET(runs) >= 3);
    assert_true(number("SELECT count(*) FROM jobq.failed") >= 3);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x'"), 0);
    assert_true(work_failed);
}

static void a_worker_wants_a_schema(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *none = NULL;
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *bare;

    (void)unused;
    memset(&desc, 0, sizeof desc);
    desc.conninfo = server();
    desc.schema = "not_there";
    assert_int_equal(jobq_pg_open(&bare, &desc, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_worker_start(bare, &d, &none, &error), JOBQ_ERROR_VERSION);
    assert_null(none);
    jobq_pg_close(bare);
}

/* LOGGING: default silent. What libpq would print about a lost connection or a notice goes to the
 * log, or nowhere. */
static void the_library_prints_nothing(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    char path[64], since_query[400], *since;
    FILE *kept;
    long size;
    int saved, i;

    (void)unused;
    snprintf(path, sizeof path, ".build/stderr.%d", (int)getpid());
    since = text_of("SELECT clock_timestamp()");
    fflush(stderr);
    saved = dup(2);
    kept = freopen(path, "w", stderr);
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.worker"));
    nap_us(300000);
    snprintf(since_query, sizeof since_query,
             "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE"
             " pid <> pg_backend_pid() AND application_name LIKE 'jo%%%%' AND backend_start > '%s'",
             since);
    free(since);
    for (i = 0; i < 5; i++) {
        number(since_query);
        nap_us(150000);
    }
    enqueue_count(1);
    reaches(20, &runs, 1);
    all_stop(NULL);
    fflush(stderr);
    size = kept == NULL ? -1 : ftell(stderr);
    dup2(saved, 2);
    close(saved);
    clearerr(stderr);
    if (size == 0) {
        FILE *written = fopen(path, "r"); /* also by others than stdio */
        if (written != NULL) {
            fseek(written, 0, SEEK_END);
            size = ftell(written);
            fclose(written);
        }
    }
    remove(path);
    assert_int_equal(GET(runs), 1);
    assert_int_equal(size, 0);
}

static int fresh_here(void **state)
{
    elsewhere = 0;
    pause_us = 100000;
    here = pthread_self();
    return fresh(state);
}

/* -- a kind that not every thread may run -- */

static int slow_runs, slow_most, slow_gate;

static jobq_outcome waits_at_the_gate(jobq_call *call)
{
    int count = ADD(slow_runs);

    if (count > GET(slow_most)) SET(slow_most, count);
    while (!GET(slow_gate) && jobq_call_stopping(call, NULL) == JOBQ_STOP_NONE) nap_us(1000);
    __atomic_sub_fetch(&slow_runs, 1, __ATOMIC_SEQ_CST);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Four threads, a slow kind limited to one of them, and a quick kind behind it in the same queue:
 * the quick jobs all end while a slow one runs, and never two slow ones run at once. The worker
 * holds no other slow job, so other workers may have them. */
static void quick_jobs_do_not_wait_for_a_slow_kind(void **unused)
{
    jobq_pg_handler h[2] = {handler_of("q", "slow", waits_at_the_gate),
                            handler_of("q", "k", succeed)};
    jobq_pg_worker_desc d = work_of(h, 2);
    jobq_pg_worker *worker;
    jobq_pg_error error;

    (void)unused;
    SET(slow_gate, 0);
    SET(slow_most, 0);
    h[0].threads_max = -1;
    assert_int_equal(jobq_pg_worker_start(pg, &d, &worker, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "threads_max: must be 0 (no limit) or more (it is -1)"));
    h[0].threads_max = 1;
    RUN("SELECT jobq.enqueue('q', 'slow', '{}') FROM generate_series(1, 6)");
    enqueue_count(200);
    worker = start(&d);
    assert_true(reaches(60, &runs, 200));
    assert_int_equal(GET(slow_runs), 1);
    assert_true(becomes(60, 1, "SELECT count(*) FROM jobq.job WHERE state = 'x'"));
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 5);
    SET(slow_gate, 1);
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job"));
    assert_int_equal(GET(slow_most), 1);
    assert_true(stop(worker).released <= 50);
}

/* -- statistics in the log -- */

static int told_of;
static char told_last[700];

static void keeps_statistics(void *user, jobq_level level, const char *message)
{
    (void)user;
    if (strstr(message, ": statistics of worker") == NULL || level != JOBQ_LEVEL_INFO) return;
    if (told_of < 2) snprintf(told_last, sizeof told_last, "%s", message);
    ADD(told_of);
}

static void a_worker_logs_its_statistics_if_asked(void **unused)
{
    jobq_pg_desc desc = {.conninfo = server(), .schema = schema, .log = keeps_statistics};
    jobq_pg_handler h = handler_of("q", "k", succeed);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *worker;
    jobq_pg_error error;
    jobq_pg *other;

    (void)unused;
    SET(told_of, 0);
    assert_int_equal(jobq_pg_open(&other, &desc, &error), JOBQ_OK);
    d.stats_us = -1;
    assert_int_equal(jobq_pg_worker_start(other, &d, &worker, &error), JOBQ_ERROR_INVALID);
    d.stats_us = 0;
    enqueue_count(1);
    worker = start_on(other, &d);
    assert_true(reaches(20, &runs, 1));
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.job"));
    stop(worker);
    assert_int_equal(told_of, 0);
    d.stats_us = JOBQ_MILLISECONDS(300);
    d.loop.lease_us = JOBQ_SECONDS(120); /* it wakes for its statistics, not for heartbeats */
    enqueue_count(1);
    worker = start_on(other, &d);
    assert_true(reaches(10, &told_of, 3));
    stop(worker);
    assert_non_null(strstr(told_last, " (1), retried 0 (0),"));
    assert_non_null(strstr(told_last, "messages: delivered 0 (0),"));
    assert_null(strchr(told_last, '\n'));
    jobq_pg_close(other);
}

#define TEST(test, set_up) cmocka_unit_test_setup_teardown(test, set_up, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(quick_jobs_do_not_wait_for_a_slow_kind, fresh),
        TEST(work_goes_on_until_it_is_stopped, fresh),
        TEST(a_caller_can_wait_until_a_worker_is_ready, fresh),
        TEST(a_role_that_may_not_work_is_refused_at_the_start, fresh),
        TEST(what_is_certainly_a_mistake_is_refused, fresh),
        TEST(a_handle_can_do_without_connections, fresh),
        TEST(a_call_waits_no_longer_than_it_may, fresh),
        TEST(the_system_has_random_bits, fresh),
        TEST(durations_are_of_64_bits, fresh),
        TEST(a_backoff_has_jitter_unless_it_is_turned_off, fresh),
        TEST(sql_tells_whether_a_key_existed, fresh),
        TEST(errors_go_to_stderr_in_single_lines_unless_a_log_is_given, fresh),
        TEST(an_old_trouble_is_forgotten, fresh),
        TEST(a_worker_logs_its_statistics_if_asked, fresh),
        TEST(handlers_know_how_much_time_is_left, fresh),
        TEST(behind_a_pooler_one_statement_is_under_way, fresh),
        TEST(a_stop_costs_no_attempt, fresh),
        TEST(single_stuck_handlers_do_not_stop_a_worker, fresh),
        TEST(empty_leaves_what_comes_later, fresh_here),
        TEST(ended_waits_for_retries_snoozes_and_schedules, fresh_here),
        TEST(ended_waits_for_other_workers, fresh_here),
        TEST(ended_waits_for_messages, fresh_here),
        TEST(remains_sees_all_that_is_unfinished, fresh_here),
        TEST(one_job_is_run_here, fresh_here),
        TEST(one_job_that_fails_is_settled_too, fresh_here),
        TEST(many_workers_live_in_one_process, fresh_here),
        TEST(a_child_leaves_its_parents_connections_alone, fresh_here),
        TEST(a_signal_stops_those_who_asked_for_it, fresh_here),
        TEST(a_second_signal_ends_the_grace, fresh_here),
        TEST(a_childs_signal_is_its_own, fresh_here),
        TEST(a_childs_own_worker_hears_its_signal, fresh_here),
        TEST(a_child_without_a_worker_dies_of_its_signal, fresh_here),
        TEST(a_wait_tells_of_a_handler_that_never_returned, fresh_here),
        TEST(a_signal_that_is_none_is_refused, fresh_here),
        TEST(stops_from_signal_handlers_are_safe, fresh_here),
        TEST(a_worker_wants_a_schema, fresh),
        TEST(the_library_prints_nothing, fresh),
        TEST(a_worker_full_of_stuck_handlers_ends_with_an_error, fresh),
    };

    return cmocka_run_group_tests_name("running", tests, pg_up, pg_down);
}
