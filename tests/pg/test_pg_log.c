/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The log as lines and as events: each line comes in both forms, with the same text, and an event
 * names what it is about.
 */
#include "relay.h"

/* ---- what was logged ------------------------------------------------------------------------- */

#define EVENTS_MAX 200

/* An event, copied. */
typedef struct heard_event {
    jobq_pg_event e;
    char code[40], text[700], sqlstate[8], queue[40], kind[40];
} heard_event;

static heard_event heard[EVENTS_MAX];
static int heard_count, unequal, lines;
static pthread_mutex_t hearing = PTHREAD_MUTEX_INITIALIZER;
static __thread char last_line[700];
static __thread jobq_level last_level;

static void hears_line(void *user, jobq_level level, const char *message)
{
    (void)user;
    ADD(lines);
    snprintf(last_line, sizeof last_line, "%s", message);
    last_level = level;
}

/* The line of the same text came just before, on the same thread. It begins with the schema's name,
 * which is not kept here. */
static void hears_event(void *user, const jobq_pg_event *e)
{
    size_t named = strlen(schema);
    heard_event *h;

    (void)user;
    pthread_mutex_lock(&hearing);
    if (strcmp(e->text, last_line) != 0 || e->level != last_level) unequal++;
    if (strcmp(e->schema, schema) != 0 || strncmp(e->text, schema, named) != 0 ||
        strncmp(e->text + named, ": ", 2) != 0) unequal++;
    if (heard_count < EVENTS_MAX) {
        h = &heard[heard_count];
        h->e = *e;
        snprintf(h->code, sizeof h->code, "%s", e->code);
        snprintf(h->text, sizeof h->text, "%s", e->text + named + 2);
        snprintf(h->sqlstate, sizeof h->sqlstate, "%s", e->sqlstate == NULL ? "" : e->sqlstate);
        snprintf(h->queue, sizeof h->queue, "%.*s", (int)e->queue.len,
                 e->queue.len > 0 ? e->queue.ptr : "");
        snprintf(h->kind, sizeof h->kind, "%.*s", (int)e->kind.len,
                 e->kind.len > 0 ? e->kind.ptr : "");
    }
    ADD(heard_count);
    pthread_mutex_unlock(&hearing);
}

/* The first event with a code; NULL: none within a time. */
static const heard_event *event_of(const char *code, double seconds)
{
    int64_t until = mono_us() + (int64_t)(seconds * 1e6);
    int i, count;

    do {
        count = GET(heard_count);
        for (i = 0; i < count && i < EVENTS_MAX; i++) {
            if (strcmp(heard[i].code, code) == 0) return &heard[i];
        }
        nap_us(5000);
    } while (mono_us() < until);
    return NULL;
}

static const heard_event *must_hear(const char *code)
{
    const heard_event *h = event_of(code, 30);

    if (h == NULL) fail_msg("no event %s", code);
    return h;
}

static jobq_pg *loud; /* a handle that is listened to */
static int hung_up;   /* while it is 1, loud makes no new connection */

static bool dials(void *user, jobq_pg_dial *dial)
{
    (void)user;
    (void)dial;
    return !GET(hung_up);
}

static int listen_in(void **state)
{
    jobq_pg_desc d = desc_of(server());

    fresh(state);
    heard_count = unequal = lines = hung_up = 0;
    memset(heard, 0, sizeof heard);
    d.log = hears_line;
    d.log_event = hears_event;
    d.connect = dials;
    loud = open_on(&d);
    return 0;
}

/* Each line was one event. */
static int both_forms(void **state)
{
    SET(gate, 1);
    all_stop(state);
    jobq_pg_close(loud);
    assert_int_equal(unequal, 0);
    assert_int_equal(lines, heard_count);
    return 0;
}

static void is_about(const heard_event *h, const char *queue, const char *kind, int64_t job,
                     int32_t attempt)
{
    assert_string_equal(h->queue, queue);
    assert_string_equal(h->kind, kind);
    assert_int_equal(h->e.job, job);
    assert_int_equal(h->e.attempt, attempt);
}

/* ---- the handle ------------------------------------------------------------------------------ */

static void lines_of_the_pool(void **unused)
{
    const heard_event *h;
    jobq_pg_error error;
    PGconn *conn;

    (void)unused;
    assert_int_equal(jobq_pg_acquire(loud, &conn, &error), JOBQ_OK);
    PQclear(PQexec(conn, "DO $$ BEGIN RAISE WARNING USING MESSAGE = 'noticed', "
                         "ERRCODE = '01ABC'; END $$"));
    PQclear(PQexec(conn, "BEGIN"));
    jobq_pg_release(loud, conn);
    h = must_hear("transaction_left");
    assert_string_equal(h->text, "a transaction was left open; rolled back");
    assert_int_equal(h->e.level, JOBQ_LEVEL_WARNING);
    is_about(h, "", "", 0, 0);
    assert_int_equal(h->e.worker, 0);
    assert_string_equal(h->sqlstate, "");
    h = must_hear("notice");
    assert_string_equal(h->text, "noticed");
    assert_string_equal(h->sqlstate, "01ABC");
    assert_int_equal(h->e.level, JOBQ_LEVEL_DEBUG);
    assert_int_equal(jobq_pg_acquire(loud, &conn, &error), JOBQ_OK);
    PQclear(PQexec(conn, "SET client_encoding = 'LATIN1'"));
    jobq_pg_release(loud, conn);
    h = must_hear("connection_closed");
    assert_non_null(strstr(h->text, "a released connection was closed: "));
}

static void lines_of_an_open_that_waits(void **unused)
{
    jobq_pg_desc d = desc_of("host=127.0.0.1 port=1 connect_timeout=1");
    jobq_pg_error error;
    jobq_pg *none;

    (void)unused;
    d.log = hears_line;
    d.log_event = hears_event;
    d.patience_us = 300000;
    assert_int_equal(jobq_pg_open(&none, &d, &error), JOBQ_ERROR_CONNECTION);
    assert_int_equal(must_hear("server_unreachable")->e.level, JOBQ_LEVEL_WARNING);
}

static void lines_of_a_migration(void **unused)
{
    const heard_event *h;
    jobq_pg_error error;

    (void)unused;
    RUN("DROP SCHEMA jobq CASCADE");
    assert_int_equal(jobq_pg_migrate(loud, &error), JOBQ_OK);
    h = must_hear("migrated");
    assert_int_equal(h->e.level, JOBQ_LEVEL_INFO);
    assert_non_null(strstr(h->text, "applied"));
}

/* A check warns of a set-up that may commit in half; migrate and calls do not. */
static void a_line_of_a_check_on_citus(void **unused)
{
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(jobq_pg_check(loud, NULL, &error), JOBQ_OK);
    assert_null(event_of("commit_unsafe", 0));
    RUN(CITUS_IS_THERE);
    assert_int_equal(jobq_pg_check(loud, NULL, &error), JOBQ_OK);
    RUN("INSERT INTO pg_dist_partition VALUES ('jobq.job', 'n', 2, 's')");
    assert_int_equal(jobq_pg_check(loud, NULL, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "is distributed by Citus"));
    assert_int_equal(jobq_pg_migrate(loud, &error), JOBQ_ERROR_INVALID);
    RUN(CITUS_IS_GONE);
    assert_int_equal(must_hear("commit_unsafe")->e.level, JOBQ_LEVEL_WARNING);
    assert_non_null(strstr(must_hear("commit_unsafe")->text, ".citus_join()"));
}

static void a_line_of_a_copy_that_wakes_nobody(void **unused)
{
    jobq_pg_job job = plain_job();
    const heard_event *h;
    jobq_pg_error error;

    (void)unused;
    enqueue_with(&job);
    RUN("ALTER FUNCTION jobq._wake(integer, integer) RENAME TO away");
    assert_int_equal(jobq_pg_enqueue_many(loud, NULL, &job, 1, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    RUN("ALTER FUNCTION jobq.away(integer, integer) RENAME TO _wake");
    h = must_hear("wake_failed");
    is_about(h, "q", "", 0, 0);
    assert_string_equal(h->sqlstate, "42883");
}

/* ---- the worker ------------------------------------------------------------------------------ */

static int64_t worker_id(void)
{
    PGresult *res;
    int64_t id;

    assert_true(becomes(30, 1, "SELECT count(*) FROM jobq.worker"));
    res = sql(db, "SELECT id FROM jobq.worker");
    id = strtoll(PQgetvalue(res, 0, 0), NULL, 10);
    PQclear(res);
    return id;
}

static void lines_of_a_cut_and_of_statistics(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", succeed);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    const heard_event *h;
    int64_t id;

    (void)unused;
    work.stats_us = 100000;
    start_on(loud, &work);
    id = worker_id();
    h = must_hear("statistics");
    assert_int_equal(h->e.level, JOBQ_LEVEL_INFO);
    RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'job_ test'");
    h = event_of("connection_lost", 30);
    if (h == NULL) h = must_hear("statement_failed"); /* if the server could still say why */
    assert_int_equal(h->e.worker, id);
    must_hear("connected");
}

/* What was counted since the last line, and since the start. */
static void statistics_are_of_an_interval(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", succeed);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    int64_t until = mono_us() + 30 * SECOND;
    int i, then = 0, later = 0;

    (void)unused;
    work.stats_us = 300000;
    enqueue_count(3);
    start_on(loud, &work);
    while (later == 0 && mono_us() < until) {
        nap_us(10000);
        for (i = 0; i < GET(heard_count) && i < EVENTS_MAX; i++) {
            if (strcmp(heard[i].code, "statistics") != 0) continue;
            if (strstr(heard[i].text, "(since its start): jobs: started 3 (3), ")) then = 1;
            if (strstr(heard[i].text, "(since its start): jobs: started 0 (3), succeeded 0 (3), "))
                later = then;
        }
    }
    assert_int_equal(later, 1);
}

static jobq_outcome takes_a_while(jobq_call *call)
{
    (void)call;
    nap_us(20000);
    return JOBQ_OUTCOME_SUCCESS;
}

static void lines_of_a_worker_that_falls_asleep_and_wakes(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", takes_a_while);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    const heard_event *h;

    (void)unused;
    work.loop.threads = 1;
    start_on(loud, &work);
    h = must_hear("asleep");
    assert_int_equal(h->e.level, JOBQ_LEVEL_DEBUG);
    assert_int_equal(h->e.worker, worker_id());
    assert_null(event_of("awake", 0));
    enqueue_count(200);
    assert_int_equal(must_hear("awake")->e.level, JOBQ_LEVEL_DEBUG);
}

static void lines_of_a_worker_that_cannot_connect(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", succeed);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    const heard_event *h;
    int64_t id;

    (void)unused;
    start_on(loud, &work);
    id = worker_id();
    SET(hung_up, 1);
    RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'job_ test'");
    h = event_of("connect_failed", 30);
    SET(hung_up, 0);
    assert_non_null(h);
    assert_int_equal(h->e.level, JOBQ_LEVEL_WARNING);
    assert_int_equal(h->e.worker, id);
    assert_string_equal(must_hear("connected")->text, "connected again");
}

static void a_line_of_housekeeping_that_fails(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", succeed);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    const heard_event *h;

    (void)unused;
    work.loop.prune_us = 100000;
    RUN(WITHOUT("prune"));
    start_on(loud, &work);
    h = event_of("maintenance_failed", 30);
    RUN(WITH_AGAIN("prune"));
    assert_non_null(h);
    assert_memory_equal(h->text, "prune: ", 7);
    assert_string_equal(h->sqlstate, "42883");
    assert_int_equal(h->e.worker, worker_id());
}

/* The server's processes stand still. */
static void a_line_of_an_answer_that_does_not_come(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", succeed);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    const heard_event *h;
    char *pids, command[300];
    int64_t id;

    (void)unused;
    if (getenv("JOBQ_SERVER_DIR") == NULL) skip();
    work.loop.heartbeat_us = 200000;
    work.loop.answer_us = SECOND;
    start_on(loud, &work);
    id = worker_id();
    pids = text_of("SELECT string_agg(pid::text, ' ') FROM pg_stat_activity"
                   " WHERE application_name LIKE 'job_ test'");
    snprintf(command, sizeof command, "kill -STOP %s", pids);
    assert_int_equal(system(command), 0);
    h = event_of("answer_missing", 30);
    snprintf(command, sizeof command, "kill -CONT %s", pids);
    assert_int_equal(system(command), 0);
    free(pids);
    assert_non_null(h);
    assert_string_equal(h->text, "no answer in time: reconnecting");
    assert_int_equal(h->e.level, JOBQ_LEVEL_WARNING);
    assert_int_equal(h->e.worker, id);
    assert_string_equal(must_hear("connected")->text, "connected again");
}

static void lines_of_a_job(const heard_event *h, int64_t job)
{
    is_about(h, "q", "k", job, 1);
    assert_true(h->e.worker == worker_id());
    assert_int_equal(h->e.partition_id, 0);
}

static void a_line_of_an_abandoned_handler(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", holds);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    jobq_pg_job job = plain_job();
    const heard_event *h;
    char text[100];
    int64_t id;

    (void)unused;
    job.timeout_us = 200000;
    job.max_attempts = 1;
    id = enqueue_with(&job);
    start_on(loud, &work);
    h = must_hear("handler_abandoned");
    snprintf(text, sizeof text, "job %lld: its handler ran out of time and was abandoned",
             (long long)id);
    assert_string_equal(h->text, text);
    lines_of_a_job(h, id);
    assert_in_range(h->e.duration_us, 200000, 30 * SECOND);
}

/* It had no time limit: the worker was stopped twice. */
static void a_line_of_a_handler_that_outlasts_the_grace(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", holds);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    jobq_pg_worker *worker;
    jobq_pg_health health;
    char text[100];
    int64_t id;

    (void)unused;
    id = enqueue_kind("k", "1");
    worker = start_on(loud, &work);
    workers[0] = NULL;
    while (GET(runs) == 0) nap_us(2000); /* a job that is only claimed is given back */
    jobq_pg_worker_stop(worker);
    jobq_pg_worker_stop(worker);
    snprintf(text, sizeof text, "job %lld: its handler did not return before the grace ended and "
             "was abandoned", (long long)id);
    assert_string_equal(must_hear("handler_abandoned")->text, text);
    SET(gate, 1);
    do {
        nap_us(20000);
        jobq_pg_worker_health(worker, JOBQ_PG_ALL, &health);
    } while (health.abandoned > 0);
    jobq_pg_worker_wait(worker, NULL);
    jobq_pg_worker_free(worker);
}

static jobq_result stays(jobq_delivery *d, const jobq_message *m)
{
    (void)d;
    (void)m;
    while (!GET(gate)) nap_us(2000);
    return JOBQ_RESULT_SUCCESS;
}

static void a_line_of_an_abandoned_delivery(void **unused)
{
    jobq_pg_receiver r = receiver(stays, NULL);
    jobq_pg_worker_desc work = receive_by(&r, 32);
    const heard_event *h;

    (void)unused;
    open_box(1);
    put(NULL, 0, 1);
    r.tuning.lease_us = 600000;
    r.tuning.budget_us = 150000;
    r.tuning.retry.base_us = r.tuning.retry.cap_us = 500000;
    start_on(loud, &work);
    h = must_hear("handler_abandoned");
    is_about(h, "o", "", 0, 0);
    assert_int_equal(h->e.partition_id, partition_id(box, 0));
    assert_int_equal(h->e.worker, worker_id());
    assert_true(h->e.duration_us > 100000);
}

static jobq_outcome ends_its_thread(jobq_call *call)
{
    (void)call;
    ADD(runs);
    nap_us(20000);
    pthread_exit(NULL);
}

static void a_line_of_a_handler_that_ends_its_thread(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", ends_its_thread);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    jobq_pg_job job = plain_job();
    const heard_event *h;
    int64_t id;

    (void)unused;
    job.max_attempts = 1;
    id = enqueue_with(&job);
    start_on(loud, &work);
    h = must_hear("thread_ended");
    assert_string_equal(h->text, "the handler ended its thread: return from handlers");
    lines_of_a_job(h, id);
    assert_true(h->e.duration_us >= 20000);
}

static jobq_outcome holds_no_line(jobq_call *call)
{
    return jobq_call_hold(call, JOBQ_HOLD_LINE, SECOND, jobq_str_from("busy")) == JOBQ_OK
               ? JOBQ_OUTCOME_DISCARD : JOBQ_OUTCOME_SUCCESS;
}

static void a_line_of_a_hold_that_fails(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", holds_no_line);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    jobq_pg_job job = plain_job();
    const heard_event *h;
    int64_t id;

    (void)unused;
    id = enqueue_with(&job);
    start_on(loud, &work);
    h = must_hear("hold_failed");
    lines_of_a_job(h, id);
    assert_true(strlen(h->sqlstate) == 5);
}

/* More than the steps of a job may have, and a function that is not there. */
static jobq_outcome leaves_too_much(jobq_call *call)
{
    static char value[1100000];

    memset(value, ' ', sizeof value);
    value[0] = '"';
    value[sizeof value - 1] = '"';
    if (jobq_call_progress(call, 5, jobq_str_from("begins"), true) == JOBQ_OK)
        return JOBQ_OUTCOME_DISCARD;
    return jobq_call_step_done(call, "large", (jobq_str){value, sizeof value}) == JOBQ_OK
               ? JOBQ_OUTCOME_DISCARD : JOBQ_OUTCOME_SUCCESS;
}

static void lines_of_a_step_and_of_progress_that_fail(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", leaves_too_much);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    jobq_pg_job job = plain_job();
    const heard_event *h;
    int64_t id;

    (void)unused;
    id = enqueue_with(&job);
    RUN(WITHOUT("_progress_of_claim"));
    start_on(loud, &work);
    h = event_of("step_failed", 30);
    RUN(WITH_AGAIN("_progress_of_claim"));
    assert_non_null(h);
    lines_of_a_job(h, id);
    assert_string_equal(h->sqlstate, "22023");
    h = must_hear("progress_failed");
    lines_of_a_job(h, id);
    assert_string_equal(h->sqlstate, "42883");
}

static void a_line_of_a_payload_that_cannot_be_opened(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", succeed);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    const heard_event *h;
    int64_t id;

    (void)unused;
    id = number("SELECT jobq.enqueue('q', 'k', bytes => 'x', headers => '{\"seal\": \"mine\"}')");
    start_on(loud, &work);
    h = must_hear("open_failed");
    lines_of_a_job(h, id);
    assert_non_null(strstr(h->text, "cannot be opened by 'mine'"));
    assert_int_equal(h->e.level, JOBQ_LEVEL_ERROR);
}

/* Its only thread is lost. It is not freed before its handler has returned. */
static void lines_of_a_worker_that_gives_up(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", holds);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_health health;
    jobq_pg_worker *worker;
    const heard_event *h;

    (void)unused;
    work.loop.threads = 1;
    job.timeout_us = 100000;
    enqueue_with(&job);
    worker = start_on(loud, &work);
    workers[0] = NULL;
    h = must_hear("worker_gave_up");
    assert_non_null(strstr(h->text, "too many handlers are stuck"));
    assert_int_equal(h->e.level, JOBQ_LEVEL_ERROR);
    assert_int_equal(jobq_pg_worker_wait(worker, NULL), JOBQ_ERROR_TIMEOUT);
    jobq_pg_worker_free(worker);
    h = must_hear("handlers_stuck");
    assert_non_null(strstr(h->text, "handlers that never returned: "));
    assert_int_equal(h->e.level, JOBQ_LEVEL_ERROR);
    SET(gate, 1);
    do {
        nap_us(2000);
        jobq_pg_worker_health(worker, JOBQ_PG_ALL, &health);
    } while (health.abandoned > 0);
    jobq_pg_worker_free(worker);
}

static void lines_of_a_refused_result(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", succeed);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    jobq_pg_job job = plain_job();
    const heard_event *h;
    int64_t id;

    (void)unused;
    RUN("ALTER TABLE jobq.history ADD CONSTRAINT none CHECK (state <> 's')");
    job.max_attempts = 1;
    id = enqueue_with(&job);
    start_on(loud, &work);
    h = must_hear("result_refused");
    is_about(h, "q", "k", id, 0);
    assert_string_equal(h->sqlstate, "23514");
    h = must_hear("statement_failed");
    assert_string_equal(h->sqlstate, "23514");
    assert_int_equal(h->e.level, JOBQ_LEVEL_ERROR);
    all_stop(NULL);
    RUN("ALTER TABLE jobq.history DROP CONSTRAINT none");
}

/* ---- where lines go -------------------------------------------------------------------------- */

static void count_event(void *user, const jobq_pg_event *event)
{
    (void)event;
    ADD(*(int *)user);
}

/* What a handle with this descriptor prints on stderr of a warning. */
static void warns(const jobq_pg_desc *d, char *printed, size_t size)
{
    FILE *to = tmpfile();
    int kept = dup(2);
    jobq_pg *made;
    PGconn *conn;
    size_t n;

    assert_non_null(to);
    made = open_on(d);
    assert_int_equal(jobq_pg_acquire(made, &conn, NULL), JOBQ_OK);
    PQclear(PQexec(conn, "BEGIN"));
    fflush(stderr);
    dup2(fileno(to), 2);
    jobq_pg_release(made, conn);
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
    jobq_pg_close(made);
    rewind(to);
    n = fread(printed, 1, size - 1, to);
    printed[n] = '\0';
    fclose(to);
}

static void stderr_gets_what_nobody_takes(void **unused)
{
    jobq_pg_desc d = desc_of(server());
    char printed[300], line[200];
    int events = 0;

    (void)unused;
    d.log = NULL;
    warns(&d, printed, sizeof printed);
    snprintf(line, sizeof line, "jobq: warning: %s: a transaction was left open; rolled back\n",
             schema);
    assert_string_equal(printed, line);
    d.log_event = count_event;
    d.user = &events;
    warns(&d, printed, sizeof printed);
    assert_string_equal(printed, "");
    assert_int_equal(events, 1);
}

/* ---- the manual ------------------------------------------------------------------------------ */

/* Every code that the library uses is in the manual, and no other. */
static void the_manual_lists_the_codes(void **unused)
{
    static char text[2 * 1024 * 1024];
    static const char here[] = __FILE__; /* the header that this test was compiled with */
    FILE *f;
    const char *from, *to, *at;
    int used = 0, listed = 0;
    char path[300], code[60], list[2000], *word;
    size_t n;

    (void)unused;
    snprintf(path, sizeof path, "%.*s../../jobq_pg.h", (int)(strrchr(here, '/') + 1 - here), here);
    f = fopen(path, "rb");
    if (f == NULL) fail_msg("jobq_pg.h cannot be read: run this from the project's folder");
    n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    fclose(f);
    from = strstr(text, "change when a text does:");
    to = strstr(from, " * FORK ");
    assert_true(from != NULL && to != NULL);
    snprintf(list, sizeof list, "%.*s", (int)(to - strchr(from, ':') - 1), strchr(from, ':') + 1);
    for (word = strtok(list, " *\n"); word != NULL; word = strtok(NULL, " *\n")) {
        if (strstr(" connections statements jobs handlers workers (also of messages) ", word))
            continue;
        snprintf(code, sizeof code, "\"%s\"", word);
        if (strstr(text, code) == NULL) fail_msg("listed, but not used: %s", code);
        listed++;
    }
    for (at = text; (at = strstr(at, "event")) != NULL; at++) {
        const char *end = strchr(at, ';'), *level = strstr(at, "JOBQ_LEVEL_"), *quote;
        if (strchr("(_", at[5]) == NULL || at[-1] != '_' || level == NULL || level > end) continue;
        /* There may be several: one of them is chosen. */
        for (quote = strchr(level, '"'); quote != NULL && quote < end;
             quote = strchr(quote + n + 2, '"')) {
            n = strcspn(quote + 1, "\"");
            if (strspn(quote + 1, "abcdefghijklmnopqrstuvwxyz_") != n || n == 0) continue;
            snprintf(code, sizeof code, " %.*s", (int)n, quote + 1);
            used++;
            if (strstr(from, code) == NULL || strstr(from, code) > to)
                fail_msg("not listed:%s", code);
        }
    }
    assert_int_equal(listed, 37);
    assert_true(used >= listed);
}

static jobq_outcome breaks(jobq_call *call)
{
    jobq_call_error(call, jobq_str_from("the card is broken"));
    return JOBQ_OUTCOME_DISCARD;
}

static int events_of(const char *code)
{
    int i, count = 0;

    for (i = 0; i < GET(heard_count) && i < EVENTS_MAX; i++) count += !strcmp(heard[i].code, code);
    return count;
}

/* Five a second; those that are left out are counted. */
static void failures_are_logged_but_not_all(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", breaks);
    jobq_pg_worker_desc d = work_of(&h, 1);
    const heard_event *first;
    jobq_pg_error error;
    int64_t began;
    int most;

    (void)unused;
    d.loop.until = JOBQ_UNTIL_EMPTY;
    d.no_failed_log = true;
    enqueue_count(1);
    assert_int_equal(jobq_pg_work(loud, &d, &error), JOBQ_OK);
    assert_int_equal(events_of("job_failed"), 0);
    d.no_failed_log = false;
    enqueue_count(100);
    began = mono_us();
    assert_int_equal(jobq_pg_work(loud, &d, &error), JOBQ_OK);
    most = 5 * (int)((mono_us() - began) / SECOND + 2);
    first = must_hear("job_failed");
    assert_int_equal(first->e.level, JOBQ_LEVEL_WARNING);
    is_about(first, "q", "k", first->e.job, 1);
    assert_non_null(strstr(first->text, ", kind k, has failed for good: the card is broken"));
    assert_true(events_of("job_failed") >= 5);
    assert_true(events_of("job_failed") <= (most < 100 ? most : 100));
}

/* A handler that leaves a transaction open is named. */
static jobq_outcome leaves_a_transaction(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    PQclear(PQexec(conn, "BEGIN"));
    return JOBQ_OUTCOME_SUCCESS;
}

static void a_transaction_that_is_left_open_has_a_name(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", leaves_a_transaction);
    jobq_pg_worker_desc d = work_of(&h, 1);
    const heard_event *left;
    jobq_pg_error error;
    char text[100];

    (void)unused;
    d.loop.until = JOBQ_UNTIL_EMPTY;
    enqueue_count(1);
    assert_int_equal(jobq_pg_work(loud, &d, &error), JOBQ_OK);
    left = must_hear("transaction_left");
    is_about(left, "q", "k", left->e.job, 1);
    snprintf(text, sizeof text, "queue q, job %lld: a transaction was left open; rolled back",
             (long long)left->e.job);
    assert_string_equal(left->text, text);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, listen_in, both_forms)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(lines_of_the_pool),
        TEST(lines_of_an_open_that_waits),
        TEST(lines_of_a_migration),
        TEST(a_line_of_a_check_on_citus),
        TEST(a_line_of_a_copy_that_wakes_nobody),
        TEST(lines_of_a_cut_and_of_statistics),
        TEST(statistics_are_of_an_interval),
        TEST(lines_of_a_worker_that_falls_asleep_and_wakes),
        TEST(lines_of_a_worker_that_cannot_connect),
        TEST(a_line_of_housekeeping_that_fails),
        TEST(a_line_of_an_answer_that_does_not_come),
        TEST(a_line_of_an_abandoned_handler),
        TEST(a_line_of_a_handler_that_outlasts_the_grace),
        TEST(a_line_of_an_abandoned_delivery),
        TEST(a_line_of_a_handler_that_ends_its_thread),
        TEST(a_line_of_a_hold_that_fails),
        TEST(lines_of_a_step_and_of_progress_that_fail),
        TEST(a_line_of_a_payload_that_cannot_be_opened),
        TEST(lines_of_a_worker_that_gives_up),
        TEST(failures_are_logged_but_not_all),
        TEST(a_transaction_that_is_left_open_has_a_name),
        TEST(lines_of_a_refused_result),
        cmocka_unit_test(stderr_gets_what_nobody_takes),
        cmocka_unit_test(the_manual_lists_the_codes),
    };

    return cmocka_run_group_tests_name("log", tests, pg_up, pg_down);
}
