/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Every public function, from eight threads at once: on one handle, one worker, one table and one
 * work table. make sanitize runs it under the thread sanitizer; without it, a call may fail only
 * because of what others do to the same rows. The list of functions is that of the header: a new
 * one that is not called here fails the first test.
 */
#include "pg_work.h"

enum { THREADS = 8 };

static jobq_pg_worker *one_worker;
static jobq_pg_table *table;
static jobq_pg_worktable *work;
static int surprises;       /* errors that other threads do not explain */
static char surprise[1000]; /* the first one */

/* -- what may come of a call -- */

static void judge(const char *call, jobq_error code, const jobq_pg_error *error)
{
    switch ((int)code) {
    case JOBQ_ERROR_INVALID:
    case JOBQ_ERROR_MEMORY:
    case JOBQ_ERROR_VERSION:
    case JOBQ_ERROR_CONNECTION: break;
    case JOBQ_ERROR_DATABASE: /* messages are under way */
        if (strncmp(error->sqlstate, "55", 2) == 0) return;
        break;
    default: return;
    }
    if (ADD(surprises) == 1)
        snprintf(surprise, sizeof surprise, "%s: %s", call, error != NULL ? error->message : "");
}

static void sure(bool holds, const char *what)
{
    if (!holds && ADD(surprises) == 1) snprintf(surprise, sizeof surprise, "%s", what);
}

#define TRY(call) judge(#call, call, &error)
#define SURE(condition) sure(condition, #condition)

/* -- handlers -- */

static jobq_outcome commits(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    if (conn == NULL || jobq_pg_call_handle(call) != pg) return JOBQ_OUTCOME_RETRY;
    jobq_call_progress(call, 500, jobq_str_from("half"), false);
    jobq_call_log(call, JOBQ_LEVEL_INFO, jobq_str_from("a line"));
    PQclear(PQexec(conn, "BEGIN"));
    return jobq_pg_call_commit(call, conn);
}

static jobq_outcome commits_all(jobq_call *const *calls, int32_t count)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(calls[0], &error);

    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    PQclear(PQexec(conn, "BEGIN"));
    return jobq_pg_call_commit_all(calls, count, conn);
}

static jobq_outcome completes(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    bool done;

    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    PQclear(PQexec(conn, "BEGIN"));
    TRY(jobq_pg_call_step_done(call, conn, "step", jobq_str_from("1"), &error));
    done = jobq_pg_call_complete(call, conn, &error) == JOBQ_OK;
    PQclear(PQexec(conn, done ? "COMMIT" : "ROLLBACK"));
    return done ? JOBQ_OUTCOME_DONE : JOBQ_OUTCOME_RETRY;
}

static jobq_outcome spawns(jobq_call *call)
{
    jobq_pg_job child = {.queue = "q", .kind = "k"};
    jobq_pg_after after = {.job = 0};
    jobq_pg_error error;
    jobq_pg_rows rows;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    TRY(jobq_pg_parents(pg, conn, call->job.id, &rows, &error));
    jobq_pg_rows_clear(&rows);
    if (rows.count > 0) return JOBQ_OUTCOME_SUCCESS;
    PQclear(PQexec(conn, "BEGIN"));
    TRY(jobq_pg_enqueue(pg, conn, &child, &after.job, &error));
    return jobq_pg_call_wait(call, conn, &after, 1);
}

static jobq_result delivers(jobq_delivery *d, const jobq_message *message)
{
    bool good = jobq_pg_delivery_conn(d) != NULL && jobq_pg_delivery_handle(d) == pg;

    if (message->seq % 3 == 0) return JOBQ_RESULT_REJECT;
    return good ? JOBQ_RESULT_SUCCESS : JOBQ_RESULT_RETRY;
}

static const jobq_pg_handler handlers[] = {{.queue = "q", .kind = "k", .run = {commits}},
                                           {.queue = "q", .kind = "own", .run = {completes}},
                                           {.queue = "q", .kind = "spawns", .run = {spawns}},
                                           {.queue = "q", .kind = "many", .batch = commits_all,
                                            .batch_wait_us = 1000}};
static const jobq_pg_receiver receiver = {.queue = "out", .each = delivers, .transactional = true};

/* ---- calls: each in some order, by each thread ----------------------------------------------- */


static const char *const kinds[] = {"k", "own", "spawns", "many"};

static void enqueues(int64_t n)
{
    jobq_pg_job jobs[4] = {{.queue = "q"}, {.queue = "q"}, {.queue = "q"}, {.queue = "q"}};
    jobq_pg_error error;
    int64_t ids[3];
    size_t i;

    for (i = 0; i < 4; i++) jobs[i].kind = kinds[i];
    jobs[0].payload = jobq_str_from("{\"a\": 1}");
    jobs[0].key = n % 2 == 0 ? "key" : NULL;
    jobs[0].line = "line";
    TRY(jobq_pg_enqueue(pg, NULL, &jobs[0], &ids[0], &error));
    TRY(jobq_pg_enqueue_many(pg, NULL, jobs + 1, 3, ids, &error));
    TRY(jobq_pg_enqueue_many(pg, NULL, jobs + 1, 3, JOBQ_PG_BY_COPY, &error));
}

/* A job of a kind that nobody handles, so that it is still there. */
static int64_t stays(void)
{
    jobq_pg_job job = {.queue = "q", .kind = "stays"};
    jobq_pg_error error;
    int64_t id = 0;

    TRY(jobq_pg_enqueue(pg, NULL, &job, &id, &error));
    return id;
}

static void looks(int64_t n)
{
    int64_t id = stays();
    char text[200], *opened;
    jobq_pg_error error;
    jobq_pg_rows rows;
    bool bytes = false;
    size_t size;
    jobq_job job;

    TRY(jobq_pg_get(pg, NULL, id, &job, &error));
    TRY(jobq_pg_explain(pg, NULL, id, text, sizeof text, &error));
    TRY(jobq_pg_wait(pg, NULL, &id, 1, n % 2 * 20000, &rows, &error));
    jobq_pg_rows_clear(&rows);
    TRY(jobq_pg_parents(pg, NULL, id, &rows, &error));
    jobq_pg_rows_clear(&rows);
    TRY(jobq_pg_unseal(pg, "q", "k", jobq_str_from(NULL), jobq_str_from("1"), &bytes, &opened,
                       &size, &error));
    free(opened);
}

static void operates(int64_t n)
{
    jobq_pg_filter one = {.id = stays()}, some = {.queue = "q", .kind = "stays", .at_most = 3};
    jobq_pg_filter failed = {.queue = "q", .state = JOBQ_STATE_FAILED, .at_most = 3};
    jobq_pg_error error;
    int64_t count;

    TRY(jobq_pg_change(pg, NULL, &one,
                       &(jobq_pg_changes){.run_at_us = JOBQ_SECONDS(2000000000) + n}, &count,
                       &error));
    TRY(jobq_pg_change(pg, NULL, &one, &(jobq_pg_changes){.set_priority = true, .priority = 3},
                       &count, &error));
    TRY(jobq_pg_change(pg, NULL, &one, &(jobq_pg_changes){.target = "aside"}, &count, &error));
    TRY(jobq_pg_cancel(pg, NULL, &some, &count, NULL, &error));
    TRY(jobq_pg_revive(pg, NULL, &failed, &count, &error));
    TRY(jobq_pg_delete(pg, NULL, &failed, &count, &error));
    TRY(jobq_pg_queue_set(pg, NULL, "aside", &(jobq_pg_queue_desc){.paused = JOBQ_PG_ON}, &error));
    TRY(jobq_pg_queue_set(pg, NULL, "aside", &(jobq_pg_queue_desc){.paused = JOBQ_PG_OFF}, &error));
    TRY(jobq_pg_hold(pg, NULL, "aside", "line", 0, NULL, &error));
}

static void sets(int64_t n)
{
    jobq_pg_schedule schedule = {.name = "s", .cron = "@daily", .job = {.queue = "q", .kind = "k"}};
    jobq_pg_queue_desc queue = {.max_attempts = 3};
    jobq_pg_line_desc line = {.weight = 2};
    jobq_pg_error error;

    TRY(jobq_pg_queue_set(pg, NULL, "aside", &queue, &error));
    TRY(jobq_pg_line_set(pg, NULL, "aside", "line", &line, &error));
    TRY(jobq_pg_schedules_set(pg, NULL, "program", 1, &schedule, 1, &error));
    TRY(jobq_pg_check(pg, NULL, &error));
    TRY(jobq_pg_migrate(pg, &error));
    (void)n;
}

static void flows(int64_t n)
{
    jobq_pg_flow_desc desc = {.name = "f", .open = true};
    jobq_pg_error error;
    char name[40];
    bool first;
    int64_t id = 0;

    TRY(jobq_pg_flow_begin(pg, NULL, &desc, &id, &error));
    TRY(jobq_pg_flow_close(pg, NULL, id, &error));
    snprintf(name, sizeof name, "signal %d", (int)(n % 3));
    TRY(jobq_pg_signal(pg, NULL, name, jobq_str_from("1"), &first, &error));
}

static void sends(int64_t n)
{
    jobq_pg_message m[2] = {{.queue = "out", .order_key = "a"}, {.queue = "out", .partition = 1}};
    jobq_pg_subscription copied = {.name = "copied", .source = "news", .queue = "copied"};
    jobq_pg_error error;

    (void)n;
    TRY(jobq_pg_outbox_enqueue(pg, NULL, &m[0], NULL, &error));
    TRY(jobq_pg_outbox_enqueue_many(pg, NULL, m, 2, NULL, &error));
    TRY(jobq_pg_outbox_enqueue_many(pg, NULL, m, 2, JOBQ_PG_BY_COPY, &error));
    TRY(jobq_pg_outbox_register(pg, NULL, "out", 2, NULL, &error));
    TRY(jobq_pg_outbox_grow(pg, NULL, "out", 2, false, &error));
    TRY(jobq_pg_subscriptions_set(pg, NULL, "program", 1, &copied, 1, &error));
}

static void reads_dead_letters(int64_t n)
{
    jobq_pg_scope scope = {.queue = "out", .limit = 2};
    const jobq_pg_dead_letter_row *letters;
    int64_t token = n + 1, count;
    jobq_pg_error error;
    jobq_pg_rows rows;

    TRY(jobq_pg_dead_letter_replay(pg, NULL, token, SECOND, &scope, &rows, &error));
    letters = (const jobq_pg_dead_letter_row *)rows.rows;
    if (rows.count > 0)
        TRY(jobq_pg_dead_letter_end(pg, NULL, token, &letters[0].id, 1, JOBQ_RESULT_SUCCESS, NULL,
                                    &count, &error));
    if (rows.count > 1)
        TRY(jobq_pg_dead_letter_end(pg, NULL, token, &letters[1].id, 1, JOBQ_RESULT_RETRY, "no",
                                    &count, &error));
    jobq_pg_rows_clear(&rows);
    scope.limit = 1;
    TRY(jobq_pg_dead_letter_discard(pg, NULL, &scope, &count, &error));
}

/* -- connections -- */

static jobq_error selects(PGconn *conn, void *user, jobq_pg_error *error)
{
    (void)user, (void)error;
    PQclear(PQexec(conn, "SELECT 1"));
    return JOBQ_OK;
}

static void borrows(int64_t n)
{
    jobq_pg_error error;
    uint64_t bits;
    PGconn *conn;

    (void)n;
    TRY(jobq_pg_transact(pg, NULL, selects, NULL, &error));
    TRY(jobq_pg_acquire(pg, &conn, &error));
    if (conn == NULL) return;
    TRY(jobq_pg_transact(pg, conn, selects, NULL, &error));
    jobq_pg_release(pg, conn);
    SURE(jobq_pg_random(&bits));
    SURE(strstr(jobq_pg_schema(pg), schema) != NULL);
    SURE(jobq_pg_classify("23505") == JOBQ_ERROR_EXISTS);
}

static bool dials(void *user, jobq_pg_dial *dial)
{
    (void)user;
    return jobq_pg_dial_set(dial, "application_name", "any thread");
}

/* A handle of its own, and what needs one. */
static void opens(int64_t n)
{
    jobq_pg_desc desc = desc_of(server());
    jobq_pg_worker_desc few = work_of(handlers, 1);
    jobq_request claim;
    jobq_pg_content content;
    jobq_answer answer;
    jobq_pg_error error;
    jobq_pg *own;

    (void)n;
    desc.connect = dials;
    TRY(jobq_pg_open(&own, &desc, &error));
    if (own == NULL) return;
    few.loop.until = JOBQ_UNTIL_EMPTY;
    few.loop.jobs_max = 3;
    TRY(jobq_pg_work(own, &few, &error));
    memset(&claim, 0, sizeof claim);
    memset(&content, 0, sizeof content);
    memset(&answer, 0, sizeof answer);
    claim.kind = JOBQ_REQUEST_REMAIN;
    TRY(jobq_pg_execute(own, NULL, &claim, &content, &answer, &error));
    if (content.result != NULL && PQntuples(content.result) > 99)
        (void)jobq_pg_payload(content.result, 0, NULL);
    jobq_pg_content_clear(&content);
    jobq_pg_close(own);
}

/* -- workers -- */

static void watch(jobq_pg_worker *w)
{
    jobq_pg_health health;
    char text[4000];

    SURE(jobq_pg_metrics(w, text, sizeof text) > 0);
    jobq_pg_worker_stats(w, JOBQ_PG_ALL);
    jobq_pg_worker_stats(w, 0);
    jobq_pg_worker_health(w, JOBQ_PG_ALL, &health);
    jobq_pg_worker_health(w, 0, &health);
    jobq_pg_worker_ready(w, 1000);
}

static void watches(int64_t n)
{
    (void)n;
    watch(one_worker);
}

static void starts(int64_t n)
{
    jobq_pg_worker_desc d = work_of(handlers, COUNT(handlers));
    jobq_pg_worker *w;
    jobq_pg_stats stats;
    jobq_pg_error error;

    (void)n;
    d.stop_signals[0] = SIGUSR1;
    TRY(jobq_pg_worker_start(pg, &d, &w, &error));
    if (w == NULL) return;
    jobq_pg_worker_ready(w, SECOND);
    jobq_pg_worker_stop(w);
    while (jobq_pg_worker_health(w, JOBQ_PG_ALL,
                                 NULL) != JOBQ_ERROR_DEAD) watch(w); /* its threads end */
    jobq_pg_worker_wait(w, &stats);
    jobq_pg_worker_free(w);
}

static void replies(void *user, const jobq_pg_reply *reply)
{
    SURE(reply->code != JOBQ_ERROR_INVALID);
    ++*(int *)user;
}

static void hosts(int64_t n)
{
    jobq_pg_worker_desc d = work_of(NULL, 0);
    jobq_pg_job job = {.queue = "q", .kind = "k"};
    jobq_pg_filter which = {.id = stays()};
    struct pollfd fds[JOBQ_PG_FDS];
    int64_t wait_us;
    jobq_pg_worker *w;
    jobq_pg_error error;
    int told = 0;

    TRY(jobq_pg_worker_open(pg, &d, &w, &error));
    if (w == NULL) return;
    TRY(jobq_pg_worker_ask(w, &(jobq_pg_question){.enqueue = &job}, replies, &told, &error));
    TRY(jobq_pg_worker_ask(w, &(jobq_pg_question){.get = which.id}, replies, &told, &error));
    TRY(jobq_pg_worker_ask(w, &(jobq_pg_question){.await = which.id, .timeout_us = n % 2 * 20000},
                           replies, &told, &error));
    TRY(jobq_pg_worker_ask(w, &(jobq_pg_question){.cancel = &which}, replies, &told, &error));
    TRY(jobq_pg_worker_ask(w, &(jobq_pg_question){.await = which.id, .timeout_us = JOBQ_NEVER},
                           replies, &told, &error));
    while (jobq_pg_worker_step(w, 0)) {
        poll(fds, (nfds_t)jobq_pg_worker_fds(w, fds, &wait_us), 10);
        if (told == 5) jobq_pg_worker_stop(w);
    }
    jobq_pg_worker_free(w);
    SURE(told == 5);
}

/* -- tables -- */

typedef struct note {
    int64_t id;
    jobq_str name;
    int32_t n;
} note;

static const jobq_pg_column note_columns[] = {
    JOBQ_PG_COLUMN(note, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(note, name, TEXT, 0), JOBQ_PG_COLUMN(note, n, INT32, 0), JOBQ_PG_COLUMNS_END};
static char note_name[60], task_name[60];
static jobq_pg_table_desc note_desc = {note_name, sizeof(note), note_columns, NULL, NULL, false};

static void writes_rows(int64_t n)
{
    char name[40];
    note one, none;
    jobq_pg_query query = {.limit = 3};
    jobq_pg_error error;
    jobq_pg_rows rows;
    int64_t count;

    memset(&one, 0, sizeof one);
    snprintf(name, sizeof name, "n%d", (int)(n % 20));
    one.name = jobq_str_from(name);
    none = one;
    TRY(jobq_pg_table_create(table, NULL, "name n", &one, NULL, NULL, &error));
    TRY(jobq_pg_table_create_many(table, NULL, "name n", &one, 1, &error));
    TRY(jobq_pg_table_create(table, NULL, "name n", &one, "name", &rows, &error));
    if (rows.count > 0) one.id = ((const note *)rows.rows)->id;
    jobq_pg_rows_clear(&rows);
    one.n = (int32_t)n;
    TRY(jobq_pg_table_update(table, NULL, "n", &one, NULL, NULL, NULL, &error));
    none.id = one.id;
    TRY(jobq_pg_table_update(table, NULL, "n", &one, "id n", &none, NULL, &error));
    TRY(jobq_pg_table_update(table, NULL, "n", &one, "name", &one, NULL, &error));
    TRY(jobq_pg_table_get(table, NULL, "name", &one, &rows, &error));
    jobq_pg_rows_clear(&rows);
    TRY(jobq_pg_table_list(table, NULL, &query, &rows, &error));
    jobq_pg_rows_clear(&rows);
    TRY(jobq_pg_table_count(table, NULL, NULL, &count, &error));
    TRY(jobq_pg_table_get(table, NULL, "name", &one, NULL, &error));
    TRY(jobq_pg_table_delete(table, NULL, "name", &one, &count, &error));
}

typedef struct task {
    int64_t id;
    jobq_str status, error_message;
    int32_t retry_count;
    jobq_pg_maybe_int64 retry_after, heartbeat, worker, lease;
    int64_t created_at;
} task;

static const jobq_pg_column task_columns[] = {
    JOBQ_PG_COLUMN(task, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(task, status, TEXT, 0),
    JOBQ_PG_COLUMN(task, error_message, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(task, retry_count, INT32, 0),
    JOBQ_PG_COLUMN(task, retry_after, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(task, heartbeat, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(task, worker, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(task, lease, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(task, created_at, TIMESTAMPTZ, JOBQ_PG_READ_ONLY), JOBQ_PG_COLUMNS_END};
static jobq_pg_table_desc task_desc = {task_name, sizeof(task), task_columns, NULL, NULL, false};
static const char *const stages[] = {"PART"};
static jobq_pg_worktable_desc work_desc = {.stages = stages, .stage_count = 1, .worker = "worker",
                                           .lease = "lease"};
static jobq_pg_table *tasks;

static void works_rows(int64_t n)
{
    jobq_pg_verdict verdicts[] = {{JOBQ_OUTCOME_RETRY, "why", JOBQ_STATE_NONE, JOBQ_OK},
                                  {JOBQ_OUTCOME_RELEASE, NULL, JOBQ_STATE_NONE, JOBQ_OK}};
    jobq_pg_error error;
    jobq_pg_rows rows;
    int64_t count;
    task *row;

    TRY(jobq_pg_worktable_look(work, NULL, 2, NULL, 0, &rows, &error));
    jobq_pg_rows_clear(&rows);
    TRY(jobq_pg_worktable_claim(work, NULL, 3, 1, n + 1, &rows, &error));
    row = (task *)rows.rows;
    if (rows.count == 3) {
        SURE(jobq_pg_worktable_stage(work, row) == 0);
        TRY(jobq_pg_worktable_heartbeat(work, NULL, row, NULL, 3, &error));
        TRY(jobq_pg_worktable_settle(work, NULL, row, verdicts, 2, &error));
    }
    jobq_pg_rows_clear(&rows);
    TRY(jobq_pg_worktable_reset(work, NULL, &count, &error));
}

static void opens_tables(int64_t n)
{
    jobq_pg_table *view, *own;
    jobq_pg_worktable *works;
    jobq_pg_error error;

    (void)n;
    TRY(jobq_pg_table_open(&view, pg, NULL, jobq_pg_view_desc(JOBQ_PG_VIEW_QUEUES, false), &error));
    jobq_pg_table_close(view);
    TRY(jobq_pg_table_open(&own, pg, NULL, &task_desc, &error));
    if (own == NULL) return;
    TRY(jobq_pg_worktable_open(&works, own, NULL, &work_desc, &error));
    jobq_pg_worktable_close(works);
    jobq_pg_table_close(own);
}

static void (*const calls[])(int64_t) = {
    enqueues, looks, operates, sets, flows, sends, reads_dead_letters, borrows, opens, watches,
    starts, hosts, writes_rows, works_rows, opens_tables};

/* ---- tests ----------------------------------------------------------------------------------- */

/* The text of a file. The caller frees it. */
static char *file_text(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text;
    long size;

    if (file == NULL) fail_msg("%s: run this in the folder of the repository", path);
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    rewind(file);
    text = (char *)calloc(1, (size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, file), size);
    fclose(file);
    return text;
}

static void each_public_function_is_called_here(void **unused)
{
    char *header = file_text("jobq_pg.h"), *here = file_text("tests/pg/test_pg_any_thread.c");
    char call[80];
    const char *end = strstr(header, "/* Stop here if you only want the API. */"), *at = header;
    int functions = 0;

    (void)unused;
    assert_non_null(end);
    while ((at = strstr(at, "\nJOBQ_API ")) != NULL && at < end) {
        const char *name = strstr(at, "jobq_pg_"), *open = strchr(at, '(');
        while (name < open && open - name != (ptrdiff_t)strcspn(name, "( *")) {
            name = strstr(name + 1, "jobq_pg_"); /* that was the type */
        }
        assert_true(name < open);
        snprintf(call, sizeof call, "%.*s", (int)(open - name) + 1, name);
        if (strstr(here, call) == NULL) fail_msg("%s...) is not called", call);
        functions++;
        at = open;
    }
    assert_true(functions > 60);
    free(header);
    free(here);
}

static void *runs_all(void *which)
{
    int64_t thread = *(int *)which, n;
    jobq_random random = {(uint64_t)thread + 1};
    int rounds = check_slow() ? 20 : 40;

    for (n = 0; n < rounds; n++) {
        int64_t i = jobq_random_between(jobq_random_next(&random), 0, (int64_t)COUNT(calls) - 1);
        calls[n < (int64_t)COUNT(calls) ? (size_t)(thread + n) % COUNT(calls) : (size_t)i](
            n * THREADS + thread);
    }
    return NULL;
}

static void anything_may_be_called_by_any_thread(void **unused)
{
    jobq_pg_worker_desc d = work_of(handlers, COUNT(handlers));
    jobq_pg_error error;
    pthread_t threads[THREADS];
    int which[THREADS], i;

    (void)unused;
    d.receivers = &receiver;
    d.receiver_count = 1;
    d.loop.threads = 4;
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "out", 2, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "news", 0, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "copied", 1, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "aside", NULL, &error), JOBQ_OK);
    if (jobq_pg_table_open(&table, pg, NULL, &note_desc, &error) != JOBQ_OK ||
        jobq_pg_table_open(&tasks, pg, NULL, &task_desc, &error) != JOBQ_OK ||
        jobq_pg_worktable_open(&work, tasks, NULL, &work_desc, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    one_worker = start(&d);
    for (i = 0; i < THREADS; i++) {
        which[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, runs_all, &which[i]), 0);
    }
    for (i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    stop(one_worker);
    jobq_pg_worktable_close(work);
    jobq_pg_table_close(tasks);
    jobq_pg_table_close(table);
    if (surprises > 0) fail_msg("%d, the first: %s", surprises, surprise);
}

static int up(void **state)
{
    jobq_pg_desc d;

    if (pg_up(state) != 0) return 1;
    jobq_pg_close(pg);
    d = desc_of(server());
    d.pool_max = 2 * THREADS;
    d.acquire_us = 60 * SECOND;
    pg = open_on(&d);
    snprintf(note_name, sizeof note_name, "%s.note", schema);
    snprintf(task_name, sizeof task_name, "%s.task", schema);
    RUN("CREATE TABLE jobq.note (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, name text NOT "
        "NULL UNIQUE, n int NOT NULL);"
        "CREATE TABLE jobq.task (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, status text "
        "NOT NULL, error_message text, retry_count int NOT NULL DEFAULT 0, retry_after "
        "timestamptz, heartbeat timestamptz, worker bigint, lease bigint, created_at timestamptz "
        "NOT NULL DEFAULT now());"
        "INSERT INTO jobq.task (status) SELECT 'PENDING' FROM generate_series(1, 300)");
    return 0;
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_public_function_is_called_here),
        cmocka_unit_test_setup_teardown(anything_may_be_called_by_any_thread, fresh, all_stop),
    };

    return cmocka_run_group_tests(tests, up, pg_down);
}
