/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_faults.c -- every allocation, every start of a thread and every call of libpq fails once,
 * one after the other, while a worker drains a queue: all jobs are done once, all effects are there
 * once, nothing hangs.
 *
 * The implementation is compiled in this file, so that macros can replace calls of libc and libpq.
 * A cut shuts down the socket of the connection, before the call (it fails, or its statement never
 * arrives) or after it (what was sent may have happened, but the answer never arrives).
 */
#define TEST_PRIVATE
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#if defined(__has_include) && __has_include(<libpq-fe.h>)
#include <libpq-fe.h>
#else
#include <postgresql/libpq-fe.h>
#endif

typedef enum fault_kind {
    FAULT_NONE,
    FAULT_MEMORY,
    FAULT_THREAD,
    FAULT_CUT_BEFORE,
    FAULT_CUT_AFTER
} fault_kind;

static fault_kind fault_armed; /* what fails */
static long fault_left;        /* calls until it does */
static bool fault_lasts;       /* ... and all later ones */
static __thread bool fault_spared; /* this thread is the test's own just now */

/* Whether this call of a kind is the one. */
static bool fault_now(fault_kind kind)
{
    if (fault_spared || __atomic_load_n(&fault_armed, __ATOMIC_SEQ_CST) != kind) return false;
    return fault_lasts ? __atomic_fetch_sub(&fault_left, 1, __ATOMIC_SEQ_CST) <= 1
                       : __atomic_fetch_sub(&fault_left, 1, __ATOMIC_SEQ_CST) == 1;
}

static void *fault_malloc(size_t size) { return fault_now(FAULT_MEMORY) ? NULL : malloc(size); }

static void *fault_calloc(size_t count, size_t size)
{
    return fault_now(FAULT_MEMORY) ? NULL : calloc(count, size);
}

static void *fault_realloc(void *old, size_t size)
{
    return fault_now(FAULT_MEMORY) ? NULL : realloc(old, size);
}

static int fault_thread(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                        void *arg)
{
    return fault_now(FAULT_THREAD) ? EAGAIN : pthread_create(thread, attr, run, arg);
}

static void fault_cut(fault_kind kind, PGconn *conn)
{
    if (conn != NULL && fault_now(kind)) shutdown(PQsocket(conn), SHUT_RDWR);
}

static PGresult *fault_result(PGresult *res, PGconn *conn)
{
    fault_cut(FAULT_CUT_AFTER, conn);
    return res;
}

static int fault_int(int answer, PGconn *conn)
{
    fault_cut(FAULT_CUT_AFTER, conn);
    return answer;
}

static PGconn *fault_connect(const char *const *names, const char *const *values, int expand)
{
    PGconn *conn = PQconnectdbParams(names, values, expand);

    fault_cut(FAULT_CUT_AFTER, conn);
    return conn;
}

/* A worker that starts compares its schema with a fresh one, which takes the server a fourth of the
 * time of a point. Another statement, which finds no difference either, takes its place. */
static const char *fault_text(const char *sql)
{
    return strstr(sql, "string_to_table($2, E'\\n')") != NULL
               ? "SELECT $1::text, $2::text WHERE false" : sql;
}

#define FAULT_RESULT(conn, call) (fault_cut(FAULT_CUT_BEFORE, conn), fault_result(call, conn))
#define FAULT_INT(conn, call) (fault_cut(FAULT_CUT_BEFORE, conn), fault_int(call, conn))

#define malloc(size) fault_malloc(size)
#define calloc(count, size) fault_calloc(count, size)
#define realloc(old, size) fault_realloc(old, size)
#define pthread_create(thread, attr, run, arg) fault_thread(thread, attr, run, arg)
#define PQexec(c, text) FAULT_RESULT(c, PQexec(c, text))
#define PQexecParams(c, s, n, t, v, l, f, r)                                                       \
    FAULT_RESULT(c, PQexecParams(c, fault_text(s), n, t, v, l, f, r))
#define PQexecPrepared(c, s, n, v, l, f, r) FAULT_RESULT(c, PQexecPrepared(c, s, n, v, l, f, r))
#define PQprepare(c, s, q, n, t) FAULT_RESULT(c, PQprepare(c, s, q, n, t))
#define PQgetResult(c) FAULT_RESULT(c, PQgetResult(c))
#define PQsendQueryParams(c, s, n, t, v, l, f, r)                                                  \
    FAULT_INT(c, PQsendQueryParams(c, s, n, t, v, l, f, r))
#define PQsendQueryPrepared(c, s, n, v, l, f, r)                                                   \
    FAULT_INT(c, PQsendQueryPrepared(c, s, n, v, l, f, r))
#define PQsendQuery(c, text) FAULT_INT(c, PQsendQuery(c, text))
#define PQsendPrepare(c, s, q, n, t) FAULT_INT(c, PQsendPrepare(c, s, q, n, t))
#define PQpipelineSync(c) FAULT_INT(c, PQpipelineSync(c))
#define PQflush(c) FAULT_INT(c, PQflush(c))
#define PQconsumeInput(c) FAULT_INT(c, PQconsumeInput(c))
#define PQputCopyData(c, b, n) FAULT_INT(c, PQputCopyData(c, b, n))
#define PQputCopyEnd(c, e) FAULT_INT(c, PQputCopyEnd(c, e))
#define PQconnectdbParams fault_connect

#include "pg.h"

#define JOBS 8      /* of each kind */
#define CHILDREN 12 /* share the points among them, each in a schema of its own */
#define POINTS 2000 /* a fault that never comes up ends the series before */

/* -- the work -- */

static jobq_outcome plain(jobq_call *call)
{
    (void)call;
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome first_fails(jobq_call *call)
{
    if (call->job.attempt > 1) return JOBQ_OUTCOME_SUCCESS;
    jobq_call_error(call, jobq_str_from("not yet"));
    return JOBQ_OUTCOME_RETRY;
}

/* One row in the ledger, with the job's completion. */
static jobq_outcome writes(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char id[24], text[100];
    const char *value = id;
    PGresult *res;
    bool good;

    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    snprintf(id, sizeof id, "%lld", (long long)call->job.id);
    snprintf(text, sizeof text, "INSERT INTO %s.ledger VALUES ($1)", schema);
    PQclear(PQexec(conn, "BEGIN"));
    res = PQexecParams(conn, text, 1, NULL, &value, NULL, NULL, 0);
    good = PQresultStatus(res) == PGRES_COMMAND_OK;
    PQclear(res);
    return good ? jobq_pg_call_commit(call, conn) : JOBQ_OUTCOME_RETRY;
}

/* -- what is logged -- */

static int warnings;
static char heard[4][700]; /* the last lines that a test looks for */
static const char *const looked_for[] = {"ulimit -u", "cannot be cancelled", "goes on with",
                                         "no memory"};
static int counts[4];

static void hears(void *user, jobq_level level, const char *message)
{
    int i;

    (void)user;
    if (level < JOBQ_LEVEL_WARNING) return;
    __atomic_add_fetch(&warnings, 1, __ATOMIC_SEQ_CST);
    for (i = 0; i < 4; i++) {
        if (strstr(message, looked_for[i]) == NULL) continue;
        snprintf(heard[i], sizeof heard[i], "%s", message);
        __atomic_add_fetch(&counts[i], 1, __ATOMIC_SEQ_CST);
    }
}

/* -- one point: a fault, a drain, what must be true afterwards -- */

/* In a child no test framework may jump: say it and end. */
static void bad(const char *what, long point)
{
    fprintf(stderr, "fault %d at call %ld: %s\n", (int)fault_armed, point, what);
    _exit(1);
}

static jobq_pg *open_without_fault(void)
{
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *made = NULL;

    memset(&desc, 0, sizeof desc);
    desc.conninfo = server();
    desc.schema = schema;
    desc.log = hears;
    if (jobq_pg_open(&made, &desc, &error) != JOBQ_OK) {
        if (made != NULL) bad("a handle in spite of an error", 0);
        if (jobq_pg_open(&made, &desc, &error) != JOBQ_OK) bad(error.message, 0);
    }
    return made;
}

static void arm(fault_kind kind, long point)
{
    fault_left = point;
    __atomic_store_n(&fault_armed, kind, __ATOMIC_SEQ_CST);
}

static void disarm(void) { __atomic_store_n(&fault_armed, FAULT_NONE, __ATOMIC_SEQ_CST); }

static bool jobs_left(void)
{
    bool left;

    fault_spared = true;
    left = number("SELECT count(*) FROM jobq.job") > 0;
    fault_spared = false;
    return left;
}

/* A worker never goes on without a connection, or a thread, that it had, or wanted, and says
 * nothing. */
static void works_and_tells(jobq_pg *mine, jobq_pg_worker_desc *desc, long point)
{
    long before = __atomic_load_n(&fault_left, __ATOMIC_SEQ_CST);
    jobq_pg_error error;
    jobq_pg_stats stats;
    jobq_error code;
    bool missed;

    memset(&stats, 0, sizeof stats);
    desc->stats = &stats;
    __atomic_store_n(&warnings, 0, __ATOMIC_SEQ_CST);
    code = jobq_pg_work(mine, desc, &error);
    missed = fault_armed == FAULT_THREAD && before >= 1 && fault_left < 1 && code == JOBQ_OK;
    if (missed && warnings == 0) bad("a thread was missing, and nobody was told", point);
    if (stats.jobs.reconnects > 0 && warnings == 0)
        bad("a connection was given up, and nobody was told", point);
}

/* A drain, again and again until all is done; the fault comes in the first. True: it came. */
static bool drain(fault_kind kind, long point)
{
    static const struct {
        const char *kind;
        jobq_handler run;
    } kinds[] = {{"plain", plain}, {"late", first_fails}, {"ledger", writes}};
    jobq_pg_handler handlers[3];
    jobq_pg_worker_desc desc;
    jobq_pg *mine;
    int tries, i;

    RUN("SELECT jobq.enqueue('q', k) FROM unnest(ARRAY['plain', 'late', 'ledger']) k, "
        "generate_series(1, %d)", JOBS);
    memset(handlers, 0, sizeof handlers);
    memset(&desc, 0, sizeof desc);
    for (i = 0; i < 3; i++) {
        handlers[i].queue = "q";
        handlers[i].kind = kinds[i].kind;
        handlers[i].run[0] = kinds[i].run;
    }
    desc.handlers = handlers;
    desc.handler_count = 3;
    desc.loop.threads = 2;
    desc.loop.until = JOBQ_UNTIL_EMPTY;
    arm(kind, point);
    mine = open_without_fault();
    for (tries = 0; jobs_left(); tries++) {
        if (tries == 100) bad("jobs are left after a hundred drains", point);
        works_and_tells(mine, &desc, point); /* may fail: the fault */
    }
    jobq_pg_close(mine);
    disarm();
    return fault_left < 1;
}

static void check(long point)
{
    if (number("SELECT count(*) FROM jobq.history") != 3 * JOBS) bad("a job is lost", point);
    if (number("SELECT count(*) FROM jobq.failed") != 0) bad("a job failed", point);
    if (number("SELECT count(*) FROM jobq.ledger") != JOBS) bad("effects not once", point);
    if (number("SELECT count(DISTINCT id) FROM jobq.ledger") != JOBS) bad("effects twice", point);
    RUN("DELETE FROM jobq.history; DELETE FROM jobq.ledger; DELETE FROM jobq.claim;"
        " DELETE FROM jobq.worker; DELETE FROM jobq.sleeper");
}

static int fault_series(fault_kind kind, int child)
{
    /* Every seventh call; with JOBQ_TEST_LONG=1 (make nightly) each. Threads are few: one child
     * tries each. */
    long every = kind == FAULT_THREAD || getenv("JOBQ_TEST_LONG") != NULL ? 1 : 7;
    long step = kind == FAULT_THREAD ? 1 : CHILDREN * every, point;

    db = PQconnectdb(server());
    snprintf(schema, sizeof schema, "faults_%d_%d", (int)kind, child);
    PQclear(PQexec(db, "SET client_min_messages = error"));
    RUN("DROP SCHEMA IF EXISTS jobq CASCADE");
    pg = open_without_fault();
    if (jobq_pg_migrate(pg, NULL) != JOBQ_OK) bad("migrate", 0);
    RUN("CREATE TABLE jobq.ledger (id bigint)");
    RUN("INSERT INTO jobq.queue (name, max_attempts, backoff_base_us, backoff_cap_us) "
        "VALUES ('q', 1000, 1000, 1000)");
    for (point = 1 + child; point < POINTS; point += step) {
        bool came = drain(kind, point);
        check(point);
        if (!came) break;
    }
    jobq_pg_close(pg);
    RUN("DROP SCHEMA jobq CASCADE");
    PQfinish(db);
    if (child == 0) printf("some %ld calls could fail\n", point - 1);
    fflush(stdout);
    return point < POINTS ? (point > CHILDREN ? 0 : 2) : 3;
}

static void each_fails_once(fault_kind kind)
{
    pid_t children[CHILDREN];
    int i, status;

    for (i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        if (children[i] == 0) _exit(fault_series(kind, i));
    }
    for (i = 0; i < CHILDREN; i++) {
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0); /* 2: no fault came; 3: they never ended */
    }
}

static void every_allocation_fails_once(void **unused)
{
    (void)unused;
    each_fails_once(FAULT_MEMORY);
}

static void every_thread_fails_once(void **unused)
{
    pid_t child = fork();
    int status;

    (void)unused;
    if (child == 0) { /* there are but a few */
        db = PQconnectdb(server());
        _exit(fault_series(FAULT_THREAD, 0));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_in_range(WEXITSTATUS(status), 0, 2);
}

/* Past a pooler, too: a thread for handlers, one that steps. The third makes a connection, which is
 * tried again. */
static int starts_without_a_thread(void)
{
    jobq_pg_handler handler;
    jobq_pg_worker_desc work;
    jobq_pg_worker *worker;
    jobq_pg_desc desc;
    long point;

    memset(&handler, 0, sizeof handler);
    memset(&work, 0, sizeof work);
    memset(&desc, 0, sizeof desc);
    db = PQconnectdb(server());
    PQclear(PQexec(db, "SET client_min_messages = error"));
    snprintf(schema, sizeof schema, "faults_ear");
    desc.conninfo = desc.listen_conninfo = server();
    desc.log = hears;
    desc.behind_pooler = true;
    desc.schema = schema;
    handler.queue = "q";
    handler.kind = "plain";
    handler.run[0] = plain;
    work.handlers = &handler;
    work.handler_count = 1;
    work.loop.threads = 1;
    if (jobq_pg_open(&pg, &desc, NULL) != JOBQ_OK) bad("open", 0);
    if (jobq_pg_migrate(pg, NULL) != JOBQ_OK) bad("migrate", 0);
    for (point = 1; point <= 3; point++) {
        jobq_error wanted = point <= 2 ? JOBQ_ERROR_MEMORY : JOBQ_OK;
        arm(FAULT_THREAD, point);
        if (jobq_pg_worker_start(pg, &work, &worker, NULL) != wanted)
            bad("a worker without one of its threads", point);
        while (worker != NULL && jobq_pg_worker_health(worker, JOBQ_PG_ALL,
                                                       NULL) != JOBQ_OK) nap_us(1000);
        disarm();
        if (worker != NULL && fault_left >= 1) bad("the third thread was never asked for", point);
    }
    jobq_pg_worker_stop(worker);
    if (jobq_pg_worker_wait(worker, NULL) != JOBQ_OK) bad("wait", 0);
    jobq_pg_worker_free(worker);
    jobq_pg_close(pg);
    RUN("DROP SCHEMA jobq CASCADE");
    return 0;
}

/* -- no thread can be started, until the test allows it -- */

static bool comes(int *counter, int count)
{
    int tries;

    for (tries = 0; tries < 3000; tries++) {
        if (__atomic_load_n(counter, __ATOMIC_SEQ_CST) >= count) return true;
        nap_us(10000);
    }
    return false;
}

static int sleeps; /* handlers that wait for the server */

/* Until its backend is ended. */
static jobq_outcome sleeps_there(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    if (call->job.attempt > 1) return JOBQ_OUTCOME_SUCCESS;
    __atomic_add_fetch(&sleeps, 1, __ATOMIC_SEQ_CST);
    PQclear(PQexec(conn, "SELECT 'never', pg_sleep(1000)"));
    return JOBQ_OUTCOME_SUCCESS;
}

#define BACKENDS(which) \
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE " which

/* A worker that can start no thread any more: it says so once, works with those that it has, and
 * gets on when threads can be started again. */
static int works_without_more_threads(void)
{
    jobq_pg_handler handler;
    jobq_pg_worker_desc work;
    jobq_pg_worker *worker;

    memset(&handler, 0, sizeof handler);
    memset(&work, 0, sizeof work);
    db = PQconnectdb(server());
    PQclear(PQexec(db, "SET client_min_messages = error"));
    snprintf(schema, sizeof schema, "faults_threads");
    pg = open_without_fault();
    if (jobq_pg_migrate(pg, NULL) != JOBQ_OK) bad("migrate", 0);
    handler.queue = "q";
    handler.kind = "k";
    handler.run[0] = sleeps_there;
    work.handlers = &handler;
    work.handler_count = 1;
    work.name = "no_threads";
    work.loop.threads = 3;
    if (jobq_pg_worker_start(pg, &work, &worker, NULL) != JOBQ_OK) bad("start", 0);
    RUN("SELECT jobq.enqueue('q', 'k', timeout => '1 s', delay => '0')");
    if (!comes(&sleeps, 1)) bad("no job began", 0);
    fault_lasts = true;
    arm(FAULT_THREAD, 1);
    if (!comes(&counts[1], 1)) bad("a cancel is dropped, and nobody is told", 0);
    if (!comes(&counts[2], 1) || strstr(heard[2], "with 2 threads") == NULL)
        bad("a thread is not replaced, and nobody is told", 0);
    counts[0] = 0;
    fault_left = 0;
    RUN(BACKENDS("application_name LIKE '%%no_threads'"));
    while (__atomic_load_n(&fault_left, __ATOMIC_SEQ_CST) > -5) nap_us(10000); /* attempts */
    if (__atomic_load_n(&counts[0], __ATOMIC_SEQ_CST) != 1)
        bad("no thread for a connection: it is not told once", counts[0]);
    disarm();
    RUN(BACKENDS("query LIKE 'SELECT ''never''%%' AND pid <> pg_backend_pid()"));
    while (number("SELECT count(*) FROM jobq.history") == 0) nap_us(10000);
    jobq_pg_worker_stop(worker);
    if (jobq_pg_worker_wait(worker, NULL) != JOBQ_OK) bad("wait", 0);
    jobq_pg_worker_free(worker);
    jobq_pg_close(pg);
    RUN("DROP SCHEMA jobq CASCADE");
    return 0;
}

static int held, released, served;

static jobq_outcome holds_its_thread(jobq_call *call)
{
    (void)call;
    __atomic_add_fetch(&held, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&released, __ATOMIC_SEQ_CST) == 0) nap_us(10000);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome is_served(jobq_call *call)
{
    (void)call;
    __atomic_add_fetch(&served, 1, __ATOMIC_SEQ_CST);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Of two schemas one is cut off while its handlers hold all threads. The other one's job needs a
 * thread in their place, which cannot be started. */
static int works_without_others(void)
{
    jobq_pg_handler handlers[2];
    jobq_pg_desc desc;
    jobq_pg_worker_desc work;
    jobq_pg_worker *worker;
    jobq_pg *far;
    char conninfo[300];
    long left;

    memset(handlers, 0, sizeof handlers);
    memset(&desc, 0, sizeof desc);
    memset(&work, 0, sizeof work);
    db = PQconnectdb(server());
    PQclear(PQexec(db, "SET client_min_messages = error"));
    snprintf(schema, sizeof schema, "faults_far");
    snprintf(conninfo, sizeof conninfo, "%s application_name=far", server());
    desc.conninfo = conninfo;
    desc.schema = schema;
    desc.log = hears;
    if (jobq_pg_open(&far, &desc, NULL) != JOBQ_OK) bad("open", 0);
    if (jobq_pg_migrate(far, NULL) != JOBQ_OK) bad("migrate", 0);
    RUN("SELECT jobq.enqueue('q', 'long'), jobq.enqueue('q', 'long')");
    snprintf(schema, sizeof schema, "faults_near");
    pg = open_without_fault();
    if (jobq_pg_migrate(pg, NULL) != JOBQ_OK) bad("migrate", 0);
    handlers[0].queue = handlers[1].queue = "q";
    handlers[0].kind = "long";
    handlers[0].run[0] = holds_its_thread;
    handlers[1].kind = "k";
    handlers[1].run[0] = is_served;
    work.handlers = handlers;
    work.handler_count = 2;
    work.also = &far;
    work.also_count = 1;
    work.loop.threads = 2;
    if (jobq_pg_worker_start(pg, &work, &worker, NULL) != JOBQ_OK) bad("start", 0);
    if (!comes(&held, 2)) bad("no job began", 0);
    fault_lasts = true;
    arm(FAULT_THREAD, 1); /* so the far one is not connected again, either */
    RUN(BACKENDS("application_name = 'far'"));
    RUN("SELECT jobq.enqueue('q', 'k')");
    if (!comes(&counts[2], 1)) bad("a thread cannot be started, and nobody is told", 0);
    left = __atomic_load_n(&fault_left, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&fault_left, __ATOMIC_SEQ_CST) > left - 12) nap_us(10000);
    if (counts[2] != 1) bad("a thread cannot be started: it is not told once", counts[2]);
    disarm();
    __atomic_store_n(&released, 1, __ATOMIC_SEQ_CST);
    if (!comes(&served, 1)) bad("a job is never run", 0);
    jobq_pg_worker_stop(worker);
    if (jobq_pg_worker_wait(worker, NULL) != JOBQ_OK) bad("wait", 0);
    jobq_pg_worker_free(worker);
    jobq_pg_close(far);
    jobq_pg_close(pg);
    RUN("DROP SCHEMA jobq, faults_far CASCADE");
    return 0;
}

/* A worker that has to give up its connection for want of memory: it says so, and gets on later. */
static int works_without_more_memory(void)
{
    jobq_pg_handler handler;
    jobq_pg_worker_desc work;
    jobq_pg_worker *worker;

    memset(&handler, 0, sizeof handler);
    memset(&work, 0, sizeof work);
    db = PQconnectdb(server());
    PQclear(PQexec(db, "SET client_min_messages = error"));
    snprintf(schema, sizeof schema, "faults_memory");
    pg = open_without_fault();
    if (jobq_pg_migrate(pg, NULL) != JOBQ_OK) bad("migrate", 0);
    handler.queue = "q";
    handler.kind = "k";
    handler.run[0] = plain;
    work.handlers = &handler;
    work.handler_count = 1;
    if (jobq_pg_worker_start(pg, &work, &worker, NULL) != JOBQ_OK) bad("start", 0);
    while (number("SELECT count(*) FROM jobq.sleeper") == 0) nap_us(10000);
    fault_lasts = fault_spared = true;
    arm(FAULT_MEMORY, 1);
    RUN("SELECT jobq.enqueue('q', 'k')");
    if (!comes(&counts[3], 1)) bad("a connection is given up, and nobody is told", 0);
    disarm();
    while (number("SELECT count(*) FROM jobq.history") == 0) nap_us(10000);
    jobq_pg_worker_stop(worker);
    if (jobq_pg_worker_wait(worker, NULL) != JOBQ_OK) bad("wait", 0);
    jobq_pg_worker_free(worker);
    jobq_pg_close(pg);
    RUN("DROP SCHEMA jobq CASCADE");
    return 0;
}

static void in_a_child(int (*test)(void))
{
    pid_t child = fork();
    int status;

    if (child == 0) _exit(test());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void no_worker_starts_without_one_of_its_threads(void **unused)
{
    (void)unused;
    in_a_child(starts_without_a_thread);
}

static void a_worker_without_more_threads_says_so_once(void **unused)
{
    (void)unused;
    in_a_child(works_without_more_threads);
}

static void so_does_one_whose_threads_wait_for_a_server(void **unused)
{
    (void)unused;
    in_a_child(works_without_others);
}

static void a_worker_without_more_memory_says_so(void **unused)
{
    (void)unused;
    in_a_child(works_without_more_memory);
}

static void every_call_of_libpq_finds_the_connection_cut(void **unused)
{
    (void)unused;
    each_fails_once(FAULT_CUT_BEFORE);
}

static void every_call_of_libpq_is_followed_by_a_cut(void **unused)
{
    (void)unused;
    each_fails_once(FAULT_CUT_AFTER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_fails_once),
        cmocka_unit_test(every_thread_fails_once),
        cmocka_unit_test(no_worker_starts_without_one_of_its_threads),
        cmocka_unit_test(a_worker_without_more_threads_says_so_once),
        cmocka_unit_test(so_does_one_whose_threads_wait_for_a_server),
        cmocka_unit_test(a_worker_without_more_memory_says_so),
        cmocka_unit_test(every_call_of_libpq_finds_the_connection_cut),
        cmocka_unit_test(every_call_of_libpq_is_followed_by_a_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
