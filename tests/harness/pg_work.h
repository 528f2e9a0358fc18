/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * pg_work.h -- workers in tests: started in this process or in processes of their own, and always
 * ended, whatever happens.
 */
#ifndef PG_WORK_INCLUDED
#define PG_WORK_INCLUDED (1)

#include "pg.h"

#include <sys/mman.h>

#define WORKERS_MAX 32

/* Handlers run in threads, where no assertion may fail: they count, the test looks. */
#define ADD(counter) __atomic_add_fetch(&(counter), 1, __ATOMIC_SEQ_CST)
#define GET(counter) __atomic_load_n(&(counter), __ATOMIC_SEQ_CST)
#define SET(counter, value) __atomic_store_n(&(counter), (value), __ATOMIC_SEQ_CST)

static jobq_pg_worker *workers[WORKERS_MAX]; /* running in this process */
static pid_t children[WORKERS_MAX];          /* running as processes */

/* -- the usual handlers -- */

static int runs, others;  /* calls of handlers: of those under test, and of others */
static int gate;          /* handlers that hold go on when it is set */
static char seen_by_stage[4][300]; /* what handlers saw */

static inline jobq_outcome succeed(jobq_call *call)
{
    (void)call;
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static inline jobq_outcome counts_others(jobq_call *call)
{
    (void)call;
    ADD(others);
    return JOBQ_OUTCOME_SUCCESS;
}

static inline jobq_outcome holds(jobq_call *call)
{
    (void)call;
    ADD(runs);
    while (!GET(gate)) nap_us(2000);
    return JOBQ_OUTCOME_SUCCESS;
}

static inline void see(const jobq_call *call)
{
    snprintf(seen_by_stage[call->job.stage], sizeof seen_by_stage[0], "%s%.*s|%.*s|%d",
             call->payload_bytes ? "b:" : "", (int)call->payload.len,
             call->payload.len > 0 ? call->payload.ptr : "", (int)call->headers.len,
             call->headers.len > 0 ? call->headers.ptr : "", (int)call->job.attempt);
}

/* Test setup: empty tables, and nothing counted. */
static inline int fresh(void **state)
{
    SET(runs, 0);
    SET(others, 0);
    SET(gate, 0);
    memset(seen_by_stage, 0, sizeof seen_by_stage);
    return pg_empty(state);
}

/* Puts jobs of kind k into the table, whatever enqueue would say of them. */
static inline void insert_jobs(int count, const char *payload)
{
    RUN("INSERT INTO jobq.job (queue_id, kind_id, payload) SELECT q.id, k.id, %s "
        "FROM jobq.queue q JOIN jobq.kind k ON k.queue_id = q.id, generate_series(1, %d) "
        "WHERE q.name = 'q' AND k.name = 'k'",
        payload, count);
}

/* Test setup: a queue and its kind are there, and empty. */
static inline int empty_queue(void **state)
{
    fresh(state);
    enqueue_count(1);
    RUN("DELETE FROM jobq.job");
    return 0;
}

static inline int64_t enqueue_kind(const char *kind, const char *payload)
{
    jobq_pg_job job = plain_job();

    job.kind = kind;
    job.payload = jobq_str_from(payload);
    return enqueue_with(&job);
}

/* -- handles -- */

static inline jobq_pg_desc desc_of(const char *conninfo)
{
    jobq_pg_desc d;

    memset(&d, 0, sizeof d);
    d.conninfo = conninfo;
    d.schema = schema;
    d.log = quiet_log;
    return d;
}

static inline jobq_pg *open_on(const jobq_pg_desc *d)
{
    jobq_pg_error error;
    jobq_pg *made;

    if (jobq_pg_open(&made, d, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return made;
}

/* -- workers -- */

/* Waits until a counter of the handlers reaches a value. */
static inline bool reaches(double seconds, const int *counter, int wanted)
{
    int64_t until = mono_us() + (int64_t)(seconds * 1e6);

    while (GET(*counter) < wanted) {
        if (mono_us() > until) return false;
        nap_us(1000);
    }
    return true;
}

/* Waits until each worker has heard of what was written before: its first beat from now on may have
 * been under way, and the third brings the news of the second. */
static inline void all_hear(void)
{
    char query[100];

    snprintf(query, sizeof query, "SELECT (min(beat) >= %ld)::int FROM jobq.worker"
                                  " WHERE dead_at IS NULL",
             number("SELECT max(beat) FROM jobq.worker WHERE dead_at IS NULL") + 3);
    assert_true(becomes(60, 1, query));
}

static inline jobq_pg_handler handler_of(const char *queue, const char *kind, jobq_handler run)
{
    jobq_pg_handler h;

    memset(&h, 0, sizeof h);
    h.queue = queue;
    h.kind = kind;
    h.run[0] = run;
    return h;
}

/* A short heartbeat: tests wait for it. A lease that a loaded machine does not lose. */
static inline jobq_pg_worker_desc work_of(const jobq_pg_handler *handlers, size_t count)
{
    jobq_pg_worker_desc d;

    memset(&d, 0, sizeof d);
    d.name = "test";
    d.handlers = handlers;
    d.handler_count = count;
    d.loop.threads = 4;
    d.loop.lease_us = 10 * SECOND;
    d.loop.heartbeat_us = 200000;
    if (getenv("JOBQ_TEST_RECORD") != NULL) { /* a folder: what the latest worker did stays there */
        static char recording[200];
        snprintf(recording, sizeof recording, "%s/%s.rec", getenv("JOBQ_TEST_RECORD"), schema);
        d.record = recording;
        d.record_bytes = 1;
    }
    return d;
}

/* A worker of queue q and kind k, which is soon given up when it has died. *h must stay. */
static inline jobq_pg_worker_desc one_kind(jobq_pg_handler *h, jobq_handler run)
{
    jobq_pg_worker_desc d;

    *h = handler_of("q", "k", run);
    memset(&d, 0, sizeof d);
    d.handlers = h;
    d.handler_count = 1;
    d.loop.threads = 2;
    d.loop.lease_us = 2 * SECOND;
    return d;
}

/* Runs a worker until nothing is due. */
static inline void work_off(const jobq_pg_worker_desc *desc)
{
    jobq_pg_worker_desc d = *desc;
    jobq_pg_error error;

    d.loop.until = JOBQ_UNTIL_EMPTY;
    if (jobq_pg_work(pg, &d, &error) != JOBQ_OK) fail_msg("%s", error.message);
}

/* Runs one job on this thread. Whether there was one. */
static inline bool work_one(const jobq_pg_worker_desc *desc)
{
    jobq_pg_worker_desc one = *desc;
    jobq_pg_worker *worker;
    jobq_pg_error error;
    jobq_pg_stats stats;

    one.loop.jobs_max = 1;
    one.loop.until = JOBQ_UNTIL_EMPTY;
    if (jobq_pg_worker_open(pg, &one, &worker, &error) != JOBQ_OK) fail_msg("%s", error.message);
    assert_int_equal(jobq_pg_worker_wait(worker, &stats), JOBQ_OK);
    jobq_pg_worker_free(worker);
    return stats.jobs.started > 0;
}

static inline jobq_pg_worker *start_on(jobq_pg *handle, const jobq_pg_worker_desc *desc)
{
    jobq_pg_error error;
    jobq_pg_worker *worker;
    int i;

    if (jobq_pg_worker_start(handle, desc, &worker, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    for (i = 0; i < WORKERS_MAX && workers[i] != NULL;) i++;
    assert_true(i < WORKERS_MAX);
    workers[i] = worker;
    return worker;
}

static inline jobq_pg_worker *start(const jobq_pg_worker_desc *desc)
{
    return start_on(pg, desc);
}

/* Waits for a worker to end. */
static inline jobq_pg_stats ended_with(jobq_pg_worker *worker)
{
    jobq_pg_stats stats;
    int i;

    for (i = 0; i < WORKERS_MAX; i++) {
        if (workers[i] == worker) workers[i] = NULL;
    }
    jobq_pg_worker_wait(worker, &stats);
    jobq_pg_worker_free(worker);
    return stats;
}

static inline jobq_loop_stats ended(jobq_pg_worker *worker)
{
    return ended_with(worker).jobs;
}

static inline jobq_loop_stats stop(jobq_pg_worker *worker)
{
    jobq_pg_worker_stop(worker);
    return ended(worker);
}

/* -- as processes -- */

static jobq_pg_worker *child_worker;
static volatile sig_atomic_t child_asked; /* to stop, perhaps before the worker has begun */

static inline void child_stops(int signal_number)
{
    (void)signal_number;
    child_asked = 1;
    if (child_worker != NULL) jobq_pg_worker_stop(child_worker);
}

static inline void child_runs(const jobq_pg_worker_desc *desc)
{
    struct sigaction action;
    jobq_pg_error error;

    memset(&action, 0, sizeof action);
    action.sa_handler = child_stops;
    sigaction(SIGTERM, &action, NULL);
    if (jobq_pg_worker_start(handle(), desc, &child_worker, &error) != JOBQ_OK) {
        fprintf(stderr, "%s\n", error.message);
        _exit(3);
    }
    if (child_asked) jobq_pg_worker_stop(child_worker);
    jobq_pg_worker_wait(child_worker, NULL);
    _exit(0);
}

/* A worker in a process of its own. Not while this process has threads. */
static inline pid_t spawn(const jobq_pg_worker_desc *desc)
{
    pid_t pid;
    int i;

    for (i = 0; i < WORKERS_MAX && children[i] != 0;) i++;
    assert_true(i < WORKERS_MAX);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) child_runs(desc);
    children[i] = pid;
    return pid;
}

static inline pid_t spawn_one(jobq_handler run, int64_t lease_us)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, run);

    d.loop.lease_us = lease_us;
    return spawn(&d);
}

static inline void forget(pid_t pid)
{
    int i;

    for (i = 0; i < WORKERS_MAX; i++) {
        if (children[i] == pid) children[i] = 0;
    }
}

static inline int reap(pid_t pid)
{
    int status = 0;

    waitpid(pid, &status, 0);
    forget(pid);
    return status;
}

/* Without waiting. */
static inline bool exited(pid_t pid)
{
    if (waitpid(pid, NULL, WNOHANG) == 0) return false;
    forget(pid);
    return true;
}

static inline void kill_hard(pid_t pid)
{
    kill(pid, SIGKILL);
    reap(pid);
}

/* Memory that processes share, zeroed. */
static inline void *shared(size_t size)
{
    FILE *file = tmpfile();
    void *p;

    assert_non_null(file);
    assert_int_equal(ftruncate(fileno(file), (off_t)size), 0);
    p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    assert_true(p != MAP_FAILED);
    fclose(file);
    return p;
}

/* Test teardown: nothing of a test outlives it. */
static inline int all_stop(void **state)
{
    int i;

    (void)state;
    for (i = 0; i < WORKERS_MAX; i++) {
        if (workers[i] == NULL) continue;
        jobq_pg_worker_stop(workers[i]);
        jobq_pg_worker_stop(workers[i]);
    }
    for (i = 0; i < WORKERS_MAX; i++) {
        if (workers[i] != NULL) ended(workers[i]);
        if (children[i] != 0) kill_hard(children[i]);
    }
    if (PQstatus(db) != CONNECTION_OK) PQreset(db);
    PQclear(PQexec(db, "ROLLBACK"));
    PQclear(PQexec(db, "SET client_min_messages = error"));
    return 0;
}

#endif
