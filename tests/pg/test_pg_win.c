/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_win.c -- what jobq_pg.h does with the system, end to end: threads, sockets, processes
 * that are killed, Ctrl-C. It needs no POSIX, so that tests/compile/windows.sh also runs it under
 * wine.
 */
#ifdef _WIN32
#include <winsock2.h>
#include <windows.h> /* first: its macros must not meet our names */
#define poll WSAPoll
typedef ULONG nfds_t;
#else
#include <poll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#endif

#include "jobq_pg.h"

#include "check.h"

#include <signal.h>

static jobq_pg *pg;
static PGconn *db;
static char schema[40], program[1000];

/* ---- the system ------------------------------------------------------------------------------ */

#ifdef _WIN32
typedef HANDLE process;

static void nap_us(int64_t us) { Sleep((DWORD)(us / 1000 + 1)); }
static int64_t mono_us(void) { return (int64_t)GetTickCount64() * 1000; }
static int pid_here(void) { return (int)GetCurrentProcessId(); }
static void put(const char *name, const char *value) { SetEnvironmentVariableA(name, value); }

/* Starts this program in a role; Ctrl-C reaches it. */
static process starts(const char *role)
{
    STARTUPINFOA info;
    PROCESS_INFORMATION made;
    char line[1200];

    memset(&info, 0, sizeof info);
    info.cb = sizeof info;
    GetModuleFileNameA(NULL, program, sizeof program);
    snprintf(line, sizeof line, "\"%s\" %s", program, role);
    assert_true(CreateProcessA(program, line, NULL, NULL, FALSE, 0, NULL, NULL, &info, &made));
    CloseHandle(made.hThread);
    return made.hProcess;
}

static void kills(process p) { assert_true(TerminateProcess(p, 9)); }

/* Its exit code. */
static int ends(process p)
{
    DWORD code = 99;

    WaitForSingleObject(p, 60000);
    GetExitCodeProcess(p, &code);
    CloseHandle(p);
    return (int)code;
}

/* Ctrl-C, which the console gives to all its processes; this one ignores it. */
static void interrupts(process p)
{
    (void)p;
    SetConsoleCtrlHandler(NULL, TRUE);
    assert_true(GenerateConsoleCtrlEvent(CTRL_C_EVENT, 0));
}
#else
typedef pid_t process;

static void nap_us(int64_t us)
{
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000 * 1000)};

    nanosleep(&t, NULL);
}

static int64_t mono_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int pid_here(void) { return (int)getpid(); }
static void put(const char *name, const char *value) { setenv(name, value, 1); }

static process starts(const char *role)
{
    process p = fork();

    assert_true(p >= 0);
    if (p > 0) return p;
    execl(program, program, role, (char *)NULL);
    _exit(98);
}

static void kills(process p) { assert_int_equal(kill(p, SIGKILL), 0); }

static int ends(process p)
{
    int status = 0;

    assert_int_equal(waitpid(p, &status, 0), p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 9;
}

static void interrupts(process p) { assert_int_equal(kill(p, SIGINT), 0); }
#endif

/* ---- the database ---------------------------------------------------------------------------- */

static void quiet_log(void *user, jobq_level level, const char *message)
{
    (void)user;
    if (getenv("JOBQ_TEST_LOG") != NULL) fprintf(stderr, "[%d] %s\n", (int)level, message);
}

static jobq_pg *handle(void)
{
    jobq_pg_desc desc = {.schema = schema, .log = quiet_log};
    char conninfo[1000];
    jobq_pg_error error;
    jobq_pg *made;

    snprintf(conninfo, sizeof conninfo, "%s application_name=%s", getenv("JOBQ_SERVER"), schema);
    desc.conninfo = conninfo;
    if (jobq_pg_open(&made, &desc, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return made;
}

/* The word SCHEMA. stands for this program's schema; the tables of the tests are in it, too.
 * *value (may be NULL): the first one. False: it failed. */
static bool runs(PGconn *conn, long *value, const char *format, ...)
{
    char generic[1000], text[1400];
    const char *from = generic, *at;
    size_t size = 0;
    PGresult *res;
    va_list args;
    bool good;

    va_start(args, format);
    vsnprintf(generic, sizeof generic, format, args);
    va_end(args);
    for (; (at = strstr(from, "SCHEMA.")) != NULL; from = at + 6)
        size += (size_t)snprintf(text + size, sizeof text - size, "%.*s%s", (int)(at - from), from,
                                 schema);
    snprintf(text + size, sizeof text - size, "%s", from);
    res = PQexec(conn, text);
    good = PQresultStatus(res) == PGRES_TUPLES_OK || PQresultStatus(res) == PGRES_COMMAND_OK;
    if (good && value != NULL) *value = atol(PQgetvalue(res, 0, 0));
    PQclear(res);
    return good;
}

#define RUN(...)                                                             \
    do {                                                                     \
        if (!runs(db, NULL, __VA_ARGS__)) fail_msg("%s", PQerrorMessage(db)); \
    } while (0)

static long number(const char *query)
{
    long value = 0;

    if (!runs(db, &value, "%s", query)) fail_msg("%s", PQerrorMessage(db));
    return value;
}

/* Waits until a number is what it should be; false when nothing has moved for a minute. */
static bool becomes(long wanted, const char *query)
{
    int64_t until = mono_us() + 60 * SECOND;
    long before = wanted, now;

    while ((now = number(query)) != wanted) {
        if (now != before) until = mono_us() + 60 * SECOND;
        if (mono_us() > until) return false;
        before = now;
        nap_us(5000);
    }
    return true;
}

/* ---- handlers -------------------------------------------------------------------------------- */


/* Notes the job, in the transaction that completes it. A tenth fails at first. */
static jobq_outcome effect(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn;

    if (call->job.attempt == 1 && call->job.id % 10 == 0) {
        jobq_call_error(call, jobq_str_from("not today"));
        jobq_call_delay(call, 1000);
        return JOBQ_OUTCOME_RETRY;
    }
    conn = jobq_pg_call_conn(call, &error);
    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    PQclear(PQexec(conn, "BEGIN"));
    runs(conn, NULL, "INSERT INTO SCHEMA.effect VALUES (%lld)", (long long)call->job.id);
    return jobq_pg_call_commit(call, conn); /* if the INSERT has failed, it does, too */
}

static jobq_outcome doubles(jobq_call *call)
{
    int64_t n;
    char text[32];

    if (jobq_json_int(call->payload, NULL, &n) != JOBQ_OK) return JOBQ_OUTCOME_DISCARD;
    snprintf(text, sizeof text, "%lld", (long long)(2 * n));
    jobq_call_result(call, jobq_str_from(text), false);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Until it is told to stop, or its process ends; the second attempt succeeds. */
static jobq_outcome holds(jobq_call *call)
{
    if (call->job.attempt + call->job.crash > 1 || call->job.suspect) return JOBQ_OUTCOME_SUCCESS;
    while (jobq_call_stopping(call, NULL) == JOBQ_STOP_NONE) nap_us(5000);
    return JOBQ_OUTCOME_RELEASE;
}

/* Does not hear of its time limit, and goes on for a while. */
static jobq_outcome overruns(jobq_call *call)
{
    if (call->job.attempt == 1) nap_us(2 * SECOND);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_result delivered(jobq_delivery *d, const jobq_message *m)
{
    return runs((PGconn *)d->user, NULL, "INSERT INTO SCHEMA.letter VALUES (%lld, %lld, '%.*s')",
                (long long)d->partition_id, (long long)m->seq, (int)m->payload.len, m->payload.ptr)
               ? JOBQ_RESULT_SUCCESS : JOBQ_RESULT_RETRY;
}

#define HANDLER(kind_, run_) {.queue = "q", .kind = kind_, .run = {run_}}
static const jobq_pg_handler handlers[] = {HANDLER("effect", effect), HANDLER("double", doubles),
                                           HANDLER("hold", holds), HANDLER("overrun", overruns)};

static jobq_pg_worker_desc work(int threads)
{
    jobq_pg_worker_desc d = {.handlers = handlers, .handler_count = COUNT(handlers)};

    d.loop.threads = threads;
    return d;
}

static void must(jobq_error code, const jobq_pg_error *error)
{
    if (code != JOBQ_OK) fail_msg("%s", error->message);
}

static jobq_pg_worker *begins(const jobq_pg_worker_desc *d)
{
    jobq_pg_worker *worker;
    jobq_pg_error error;

    must(jobq_pg_worker_start(pg, d, &worker, &error), &error);
    return worker;
}

static void stops(jobq_pg_worker *worker)
{
    jobq_pg_worker_stop(worker);
    assert_int_equal(jobq_pg_worker_wait(worker, NULL), JOBQ_OK);
    jobq_pg_worker_free(worker);
}

static int64_t enqueued(const char *kind, const char *payload, int64_t timeout_us)
{
    jobq_pg_job job = {.queue = "q", .kind = kind, .timeout_us = timeout_us};
    jobq_pg_error error;
    int64_t id;

    job.payload = jobq_str_from(payload);
    must(jobq_pg_enqueue(pg, NULL, &job, &id, &error), &error);
    return id;
}

/* ---- tests ----------------------------------------------------------------------------------- */

#define LIVE "SELECT count(*) FROM SCHEMA.job"
#define EFFECTS "SELECT count(*) FROM SCHEMA.effect"
#define TWICE "SELECT count(*) - count(DISTINCT job) FROM SCHEMA.effect"
#define AT_WORK "SELECT count(*) FROM SCHEMA.live_jobs WHERE state = 'running'"

static void enqueue_many(PGconn *conn, size_t count, int64_t *ids)
{
    static jobq_pg_job jobs[200];
    jobq_pg_error error;
    size_t i;

    for (i = 0; i < count; i++) {
        jobs[i].queue = "q";
        jobs[i].kind = "effect";
    }
    must(jobq_pg_enqueue_many(pg, conn, jobs, count, ids, &error), &error);
}

static void threads_do_each_job_once(void **unused)
{
    jobq_pg_worker_desc d = work(4);
    int64_t ids[100];
    jobq_pg_error error;
    jobq_pg_stats stats;

    (void)unused;
    enqueue_many(NULL, 100, ids);
    enqueue_many(NULL, 100, JOBQ_PG_BY_COPY);
    d.loop.until = JOBQ_UNTIL_ENDED;
    d.stats = &stats;
    must(jobq_pg_work(pg, &d, &error), &error);
    assert_int_equal(stats.jobs.succeeded, 200);
    assert_int_equal(number(EFFECTS), 200);
    assert_int_equal(number(TWICE), 0);
    assert_int_equal(number(LIVE), 0);
}

static void a_transaction_has_its_jobs_or_not(void **unused)
{
    jobq_pg_job job = {.queue = "q", .kind = "effect"};
    jobq_pg_error error;

    (void)unused;
    RUN("BEGIN");
    must(jobq_pg_enqueue(pg, db, &job, NULL, &error), &error);
    RUN("ROLLBACK");
    assert_int_equal(number(LIVE), 0);
    job.queue = "\xff";
    assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), JOBQ_ERROR_INVALID);
}

/* It sleeps until it hears of the job; the waiter until it hears of the end. */
static void a_worker_hears_of_a_job(void **unused)
{
    jobq_pg_worker_desc d = work(2);
    jobq_pg_worker *worker = begins(&d);
    jobq_pg_health health;
    jobq_pg_error error;
    jobq_pg_rows rows;
    int64_t begun, id;

    (void)unused;
    assert_int_equal(jobq_pg_worker_ready(worker, 60 * SECOND), JOBQ_OK);
    do {
        nap_us(10000);
        jobq_pg_worker_health(worker, 0, &health);
    } while (!health.hears);
    begun = mono_us();
    id = enqueued("double", "21", 0);
    must(jobq_pg_wait(pg, NULL, &id, 1, 60 * SECOND, &rows, &error), &error);
    print_message("heard and done after %d ms\n", (int)((mono_us() - begun) / 1000));
    assert_true(jobq_str_equal(((const jobq_pg_job_row *)rows.rows)->result, jobq_str_from("42")));
    jobq_pg_rows_clear(&rows);
    begun = mono_us();
    stops(worker);
    print_message("stopped after %d ms\n", (int)((mono_us() - begun) / 1000));
}

static void a_stop_gives_jobs_back(void **unused)
{
    jobq_pg_worker_desc d = work(2);
    jobq_pg_worker *worker = begins(&d);

    (void)unused;
    enqueued("hold", "1", 0);
    assert_true(becomes(1, AT_WORK));
    stops(worker);
    assert_int_equal(number("SELECT count(*) FROM SCHEMA.live_jobs WHERE state = 'ready'"
                            " AND attempt = 0"), 1);
    RUN("DELETE FROM SCHEMA.job");
}

static void a_handler_that_overruns_is_replaced(void **unused)
{
    jobq_pg_worker_desc d = work(2);
    jobq_pg_worker *worker = begins(&d);
    int64_t id = enqueued("overrun", "1", SECOND / 4);

    (void)unused;
    assert_true(becomes(1, "SELECT count(*) FROM SCHEMA.jobs WHERE state = 'ready'"));
    RUN("SELECT SCHEMA.reschedule(%lld, now())", (long long)id);
    assert_true(becomes(0, LIVE));
    nap_us(2 * SECOND); /* until it has returned */
    stops(worker);
}

static void connections_may_be_lost(void **unused)
{
    jobq_pg_worker_desc d = work(4);
    jobq_pg_worker *worker;
    int i;

    (void)unused;
    RUN("DELETE FROM SCHEMA.effect");
    worker = begins(&d);
    for (i = 0; i < 10; i++) {
        enqueue_many(db, 50, JOBQ_PG_BY_COPY);
        RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = '%s'", schema);
        nap_us(50000);
    }
    assert_true(becomes(0, LIVE));
    assert_int_equal(number(EFFECTS), 500);
    assert_int_equal(number(TWICE), 0);
    stops(worker);
}

static void told(void *user, const jobq_pg_reply *reply)
{
    if (reply->code == JOBQ_OK) *(int64_t *)user = reply->id;
}

static void an_event_loop_steps_a_worker(void **unused)
{
    jobq_pg_worker_desc d = work(1);
    jobq_pg_job job = {.queue = "q", .kind = "double", .payload = jobq_str_from("4")};
    jobq_pg_question enqueue = {.enqueue = &job}, await = {0};
    int64_t id = 0, ended = 0, wait_us, until = mono_us() + 60 * SECOND;
    jobq_pg_worker *worker;
    jobq_pg_error error;

    (void)unused;
    must(jobq_pg_worker_open(pg, &d, &worker, &error), &error);
    must(jobq_pg_worker_ask(worker, &enqueue, told, &id, &error), &error);
    while (jobq_pg_worker_step(worker, 1000)) {
        struct pollfd fds[JOBQ_PG_FDS];
        int count = jobq_pg_worker_fds(worker, fds, &wait_us);

        assert_true(count >= 1 && wait_us >= 0 && mono_us() < until);
        poll(fds, (nfds_t)count, (int)((wait_us + 999) / 1000));
        if (id != 0 && await.await == 0) {
            await.await = id;
            await.timeout_us = 60 * SECOND;
            must(jobq_pg_worker_ask(worker, &await, told, &ended, &error), &error);
        }
        if (ended != 0) jobq_pg_worker_stop(worker);
    }
    assert_true(ended == id);
    jobq_pg_worker_free(worker);
}

static void messages_come_in_order(void **unused)
{
    PGconn *conn = PQconnectdb(getenv("JOBQ_SERVER"));
    jobq_pg_receiver receiver = {.queue = "letters", .each = delivered, .user = conn};
    jobq_pg_worker_desc d = {.receivers = &receiver, .receiver_count = 1};
    jobq_pg_message message = {.queue = "letters"};
    jobq_pg_worker *worker;
    jobq_pg_error error;
    char payload[16];
    int i;

    (void)unused;
    d.loop.threads = 1;
    must(jobq_pg_outbox_register(pg, NULL, "letters", 4, NULL, &error), &error);
    worker = begins(&d);
    for (i = 0; i < 100; i++) {
        snprintf(payload, sizeof payload, "%d", i);
        message.payload = jobq_str_from(payload);
        message.partition = i % 4;
        must(jobq_pg_outbox_enqueue(pg, NULL, &message, NULL, &error), &error);
    }
    assert_true(becomes(100, "SELECT count(*) FROM SCHEMA.letter"));
    stops(worker);
    PQfinish(conn);
    assert_int_equal(number("SELECT count(*) FROM (SELECT n, lag(n) OVER w AS before, seq,"
                            " row_number() OVER w AS place FROM SCHEMA.letter"
                            " WINDOW w AS (PARTITION BY part ORDER BY seq)) AS l"
                            " WHERE n <> before + 4 OR seq <> place"), 0);
}

/* Each decision of its loop can be made again from the file. */
static void a_recording_is_replayed(void **unused)
{
    char path[1100];
    jobq_pg_worker_desc d = work(4);
    static char bytes[4 << 20];
    jobq_replay *replay = (jobq_replay *)calloc(1, jobq_replay_size());
    jobq_pg_error error;
    const char *why = "";
    jobq_entry entry;
    size_t size;
    int entries = 0;
    FILE *file;

    (void)unused;
    snprintf(path, sizeof path, "%s.rec", program);
    remove(path);
    d.record = path;
    d.record_bytes = sizeof bytes;
    d.loop.until = JOBQ_UNTIL_ENDED;
    enqueue_many(NULL, 100, JOBQ_PG_BY_COPY);
    must(jobq_pg_work(pg, &d, &error), &error);
    file = fopen(path, "rb");
    assert_non_null(file);
    size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    if (jobq_replay_init(replay, bytes, size, &why) != JOBQ_OK) fail_msg("%s", why);
    for (; jobq_replay_step(replay, &entry); entries++) assert_true(entry.same);
    assert_true(entries > 100);
    free(replay); /* the file stays: windows.sh has the program jobq replay it */
}

/* TerminateProcess, kill -9: another worker takes its jobs over once the lease has ended. */
static void jobs_of_a_killed_process_run_again(void **unused)
{
    process victim = starts("quick");
    jobq_pg_worker_desc d = work(2);
    jobq_pg_worker *worker;

    (void)unused;
    d.loop.lease_us = 4 * SECOND;
    enqueued("hold", "1", 0);
    enqueued("hold", "2", 0);
    assert_true(becomes(2, AT_WORK));
    kills(victim);
    assert_int_equal(ends(victim), 9);
    worker = begins(&d);
    assert_true(becomes(0, LIVE));
    stops(worker);
}

/* The worker of the process stops, gives its job back, and the process ends by itself. */
static void ctrl_c_stops_a_process(void **unused)
{
    process child;

    (void)unused;
    if (getenv("JOBQ_TEST_NO_CONSOLE") != NULL) skip();
    child = starts("works");
    enqueued("hold", "1", 0);
    assert_true(becomes(1, AT_WORK));
    interrupts(child);
    assert_int_equal(ends(child), 3);
    assert_int_equal(number("SELECT count(*) FROM SCHEMA.live_jobs WHERE state = 'ready'"
                            " AND attempt = 0"), 1);
    RUN("DELETE FROM SCHEMA.job");
}

/* ---- the program ----------------------------------------------------------------------------- */

/* A worker in a process of its own, until Ctrl-C; quick: with a short lease. */
static int works(bool quick)
{
    jobq_pg_worker_desc d = work(2);
    jobq_pg_error error;

    snprintf(schema, sizeof schema, "%s", getenv("JOBQ_TEST_SCHEMA"));
    pg = handle();
    if (quick) d.loop.lease_us = 4 * SECOND;
    d.stop_signals[0] = SIGTERM;
    d.stop_signals[1] = SIGINT;
    if (jobq_pg_work(pg, &d, &error) != JOBQ_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    jobq_pg_close(pg);
    return 3;
}

static int up(void **state)
{
    jobq_pg_error error;

    (void)state;
    snprintf(schema, sizeof schema, "jobq_win_%d", pid_here());
    put("JOBQ_TEST_SCHEMA", schema);
    pg = handle();
    must(jobq_pg_migrate(pg, &error), &error);
    db = PQconnectdb(getenv("JOBQ_SERVER"));
    RUN("SET client_min_messages = warning");
    RUN("CREATE TABLE SCHEMA.effect (job bigint)");
    RUN("CREATE TABLE SCHEMA.letter (part bigint, seq bigint, n integer)");
    return 0;
}

static int down(void **state)
{
    (void)state;
    RUN("DROP SCHEMA %s CASCADE", schema);
    PQfinish(db);
    jobq_pg_close(pg);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_do_each_job_once),
        cmocka_unit_test(a_transaction_has_its_jobs_or_not),
        cmocka_unit_test(a_worker_hears_of_a_job),
        cmocka_unit_test(a_stop_gives_jobs_back),
        cmocka_unit_test(a_handler_that_overruns_is_replaced),
        cmocka_unit_test(connections_may_be_lost),
        cmocka_unit_test(an_event_loop_steps_a_worker),
        cmocka_unit_test(messages_come_in_order),
        cmocka_unit_test(a_recording_is_replayed),
        cmocka_unit_test(jobs_of_a_killed_process_run_again),
        cmocka_unit_test(ctrl_c_stops_a_process),
    };

    if (getenv("JOBQ_SERVER") == NULL) {
        fprintf(stderr, "JOBQ_SERVER is not set: run this through tests/server.sh\n");
        return 2;
    }
    snprintf(program, sizeof program, "%s", argv[0]);
    if (argc > 1) return works(strcmp(argv[1], "quick") == 0);
    return cmocka_run_group_tests_name("win", tests, up, down);
}
