/*
 * Workers under load and in unusual situations: late commits below the lower bounds of claims, many
 * queues and kinds, stuck handlers, vacuum, silence. Promises 1 and 7. With the defaults nothing
 * stays hidden for longer than 5 s.
 */
#include "pg_work.h"

static int runs, others;
static int64_t target;

static int start_over(void **state)
{
    SET(runs, 0);
    SET(others, 0);
    SET(target, -1);
    return pg_empty(state);
}

static jobq_outcome counts(jobq_call *call)
{
    if (call->job.id == GET(target)) ADD(others);
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome counts_slowly(jobq_call *call)
{
    nap_us(500);
    return counts(call);
}

/* -- a job that commits late, behind the bound of a worker that never has an empty lane -- */

static int producing;

static void *produces(void *arg)
{
    jobq_pg_job jobs[200];
    size_t i;

    (void)arg;
    for (i = 0; i < COUNT(jobs); i++) jobs[i] = plain_job();
    while (GET(producing)) {
        jobq_pg_enqueue_many(pg, NULL, jobs, COUNT(jobs), NULL, NULL);
        nap_us(20000);
    }
    return NULL;
}

static void a_job_that_commits_late_is_not_hidden_for_long(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counts_slowly);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    PGconn *other = PQconnectdb(server());
    jobq_pg_error error;
    pthread_t producer;
    int64_t id = 0, start_us;
    char done[100];

    (void)unused;
    d.loop.lease_us = 30 * SECOND;
    d.loop.heartbeat_us = 0;
    enqueue_count(1);
    start(&d);
    assert_true(reaches(20, &runs,
                        1)); /* queue and kind are known: nobody waits for the transaction below */
    PQclear(PQexec(other, "BEGIN"));
    assert_int_equal(jobq_pg_enqueue(pg, other, &job, &id, &error), JOBQ_OK);
    SET(target, id);
    SET(producing, 1);
    assert_int_equal(pthread_create(&producer, NULL, produces, NULL), 0);
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
        h[i] = handler_of(names[i], "k", counts);
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
    jobq_pg_handler one = handler_of("q", "k", counts);
    jobq_pg_worker_desc d = work_of(&one, 1), e = work_of(many, 100);
    jobq_pg_job job = plain_job();
    int i;

    (void)unused;
    for (i = 0; i < 100; i++) {
        snprintf(names[i], sizeof names[i], "k%d", i % 1000);
        many[i] = handler_of("q", names[i], counts);
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

/* -- stuck handlers -- */

/* They never come back: what is theirs stays theirs until the process ends. */
static jobq_outcome holds_for_ever(jobq_call *call)
{
    (void)call;
    ADD(runs);
    while (GET(runs) >= 0) nap_us(SECOND);
    return JOBQ_OUTCOME_SUCCESS;
}

static bool work_failed;

static void *works(void *arg)
{
    jobq_pg_error error;

    work_failed = jobq_pg_work(pg, (const jobq_pg_worker_desc *)arg, &error) != JOBQ_OK;
    ADD(others);
    return NULL;
}

/* A process with too many stuck handlers ends with an error, not with a success. */
static void a_worker_full_of_stuck_handlers_ends_with_an_error(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", holds_for_ever);
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
    assert_int_equal(pthread_create(&thread, NULL, works, &d), 0);
    assert_true(reaches(20, &others, 1));
    pthread_join(thread, NULL);
    assert_true(GET(runs) >= 3);
    assert_true(number("SELECT count(*) FROM jobq.failed") >= 3);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x'"), 0);
    assert_true(work_failed);
}

/* -- housekeeping -- */

static void the_table_is_vacuumed_by_the_rows_that_ended(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counts);
    jobq_pg_worker_desc d = work_of(&h, 1);
    char vacuums[] = "SELECT count(*) FROM pg_stat_user_tables WHERE relid = 'jobq.job'::regclass "
                     "AND vacuum_count > 0";

    (void)unused;
    enqueue_count(3000);
    d.loop.vacuum_rows = 1000;
    start(&d);
    assert_true(reaches(20, &runs, 3000));
    assert_true(becomes(20, 1, vacuums));
}

/* A cancel may arrive late, so the connection is closed, not lent again. */
static void a_vacuum_is_cut_short_by_the_end(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counts);
    jobq_pg_worker_desc d = work_of(&h, 1);
    char slow[1000], backends[100];
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg_worker *w;
    jobq_pg *handle;
    int64_t asked;
    long pid;

    (void)unused;
    snprintf(slow, sizeof slow,
             "%s options='-c vacuum_cost_delay=100 -c vacuum_cost_limit=1 "
             "-c vacuum_cost_page_hit=10'", server());
    memset(&desc, 0, sizeof desc);
    desc.conninfo = slow;
    desc.schema = schema;
    desc.log = quiet_log;
    assert_int_equal(jobq_pg_open(&handle, &desc, &error), JOBQ_OK);
    enqueue_count(3000);
    d.loop.vacuum_rows = 1000;
    w = start_on(handle, &d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM pg_stat_activity"
                               " WHERE state = 'active' AND query LIKE 'VACUUM%%'"));
    pid = number("SELECT pid FROM pg_stat_activity"
                 " WHERE state = 'active' AND query LIKE 'VACUUM%%'");
    asked = mono_us();
    stop(w);
    assert_true(mono_us() - asked < 10 * SECOND); /* it would take a minute and more */
    snprintf(backends, sizeof backends, "SELECT count(*) FROM pg_stat_activity WHERE pid = %ld",
             pid);
    assert_true(becomes(20, 0, backends));
    jobq_pg_close(handle);
}

static void a_worker_wants_a_schema(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counts);
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
    jobq_pg_handler h = handler_of("q", "k", counts);
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

/* A worker's listening connection is idle for long; a wake-up reaches it within 100 ms all the same
 * (X26). */
static void a_wake_up_reaches_another_process_within_100_ms(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counts);
    jobq_pg_worker_desc d = work_of(&h, 1);
    int i, in_a_row = 0;
    int64_t start_us;

    (void)unused;
    d.loop.lease_us = 30 * SECOND;
    d.loop.heartbeat_us = 0; /* as in production: it looks every 5 s */
    spawn(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.sleeper"));
    for (i = 1; in_a_row < 5; i++) { /* an early look may find one by chance, not five */
        assert_true(i <= 40);
        nap_us(1500000);
        enqueue_count(1);
        start_us = mono_us();
        while (number("SELECT count(*) FROM jobq.history") < i &&
               mono_us() - start_us < 8 * SECOND)
            nap_us(2000);
        start_us = mono_us() - start_us;
        in_a_row = start_us < (check_slow() ? SECOND : 100000) ? in_a_row + 1 : 0;
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start_over, all_stop)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(a_wake_up_reaches_another_process_within_100_ms), /* first: it forks */
        TEST(a_job_that_commits_late_is_not_hidden_for_long),
        TEST(a_paused_queue_holds_no_other_back),
        TEST(more_foreign_kinds_than_a_loop_remembers_all_run),
        TEST(the_table_is_vacuumed_by_the_rows_that_ended),
        TEST(a_vacuum_is_cut_short_by_the_end),
        TEST(a_worker_wants_a_schema),
        TEST(the_library_prints_nothing),
        TEST(a_worker_full_of_stuck_handlers_ends_with_an_error), /* last: its threads stay */
    };

    return cmocka_run_group_tests_name("load", tests, pg_up, pg_down);
}
