/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * pg.h -- what the tests on Postgres share: a schema for each program on $JOBQ_SERVER, one-line
 * SQL, and waiting with a deadline.
 *
 * All programs link one build of the library (tests/pg/library.c), so that a changed line of a
 * header is compiled once. A program that tests private functions, or changes the library with
 * macros of its own, defines TEST_PRIVATE first and compiles the library itself.
 */
#ifndef PG_INCLUDED
#define PG_INCLUDED (1)

#ifdef TEST_PRIVATE
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#endif
#include "jobq_pg.h"

#include "check.h"
#include "verbs.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static jobq_pg *pg;     /* the handle, in a schema of this program's own */
static PGconn *db;      /* a connection for looking around */
static char schema[40];

/* A schema of another version is not compared with a fresh one, so a function may be missing. */
#define WITHOUT(function)                                                                          \
    "UPDATE jobq.meta SET version = version + 1; ALTER FUNCTION jobq." function " RENAME TO away"
#define WITH_AGAIN(function)                                                                       \
    "UPDATE jobq.meta SET version = version - 1; ALTER FUNCTION jobq.away RENAME TO " function

/* Lets the server look as if it had Citus and a distributed table: only the catalogue of that. */
#define CITUS_IS_THERE                                                                             \
    "SET allow_system_table_mods = on;"                                                            \
    "DROP TABLE IF EXISTS pg_catalog.pg_dist_partition, public.far;"                               \
    "CREATE TABLE public.far (n int);"                                                             \
    "CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass, partmethod \"char\","       \
    " colocationid int, repmodel \"char\");"                                                       \
    "INSERT INTO pg_dist_partition VALUES ('public.far', 'h', 1, 's');"
#define CITUS_IS_GONE "DROP TABLE IF EXISTS pg_catalog.pg_dist_partition, public.far"

#define ONE(job) (&(jobq_pg_filter){.id = (job)}) /* for the verbs of operators */
#define PARTITION(of, i) (((const jobq_pg_partition_row *)(of).rows)[i]) /* of a jobq_pg_rows */
#define LETTER(of, i) (((const jobq_pg_dead_letter_row *)(of).rows)[i])

static inline int64_t mono_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static inline void nap_us(int64_t us)
{
    struct timespec t;

    t.tv_sec = (time_t)(us / 1000000);
    t.tv_nsec = (long)(us % 1000000 * 1000);
    nanosleep(&t, NULL);
}

/* Whether the machine has something, found by a command; if not, says so, and the caller skips.
 * Some containers have no /dev/pts, which terminals need, or no /dev/shm, which faketime needs. */
static inline bool machine_has(const char *what, const char *command)
{
    if (system(command) == 0) return true;
    print_message("skipped: no %s\n", what);
    return false;
}

#define HAS_PTY machine_has("pty", "script -qec true /dev/null >/dev/null 2>&1")
#define HAS_FAKETIME machine_has("faketime", "faketime -f +0 true >/dev/null 2>&1")

static inline char *text_copy(const char *text)
{
    char *copy = (char *)malloc(strlen(text) + 1);

    assert_non_null(copy);
    return strcpy(copy, text);
}

static inline bool in_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* SQL with the name of a schema in place of the word jobq. The caller frees it. */
static inline char *for_schema(const char *generic, const char *name)
{
    char *out = (char *)malloc(strlen(generic) * 12 + 1), *to = out;
    const char *from = generic;

    assert_non_null(out);
    assert_true(strlen(name) <= 48); /* four bytes become at most 48 */
    while (*from != '\0') {
        bool alone = strncmp(from, "jobq", 4) == 0 && !in_word(from[4]) &&
                     (from == generic || !in_word(from[-1]));
        if (alone) to += sprintf(to, "%s", name);
        else *to++ = *from;
        from += alone ? 4 : 1;
    }
    *to = '\0';
    return out;
}

static inline const char *server(void)
{
    const char *conninfo = getenv("JOBQ_SERVER");

    if (conninfo == NULL) {
        fprintf(stderr, "JOBQ_SERVER is not set: run this through tests/server.sh\n");
        exit(2);
    }
    return conninfo;
}

/* The test's own statements write, count on the isolation and the styles that a server has by
 * default, and must not take seconds each. All else is as the database has it: see hostile.sh. */
static inline PGconn *suits(PGconn *conn)
{
    PQclear(PQexec(conn, "SELECT set_config(s.name, s.boot_val, false) FROM pg_settings s "
                         "WHERE s.source = 'database' AND s.name ~* '_transaction_|style|zone|jit|"
                         "enable|collapse|array|bytea|quote|replication'"));
    return conn;
}

static inline PGconn *connected(void) { return suits(PQconnectdb(server())); }

static PGconn *shards_at; /* distributed.h: the node that has the shards, if there are any */
static inline bool goes_to_node(const PGconn *conn, const char *text);
static inline char *for_shards(const char *text);

/* Runs SQL in which the word jobq is this program's schema; fails the test on an error. */
static inline PGresult *sql(PGconn *conn, const char *format, ...)
{
    char generic[4096], *text;
    PGresult *res;
    va_list args;

    va_start(args, format);
    vsnprintf(generic, sizeof generic, format, args);
    va_end(args);
    text = for_schema(generic, schema);
    assert_non_null(text);
    if (goes_to_node(conn, text)) {
        char *there = for_shards(text);

        free(text);
        text = there;
        conn = shards_at;
    }
    res = PQexec(conn, text);
    if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK) {
        fail_msg("%s: %s", text, PQerrorMessage(conn));
    }
    free(text);
    return res;
}

#define RUN(...) PQclear(sql(db, __VA_ARGS__))

/* One number, in one row. */
static inline long number(const char *format, ...)
{
    char generic[2048];
    PGresult *res;
    va_list args;
    long value;

    va_start(args, format);
    vsnprintf(generic, sizeof generic, format, args);
    va_end(args);
    res = sql(db, "%s", generic);
    assert_int_equal(PQntuples(res), 1);
    value = atol(PQgetvalue(res, 0, 0));
    PQclear(res);
    return value;
}

/* One text, in one row. The caller frees it. */
static inline char *text_of(const char *format, ...)
{
    char generic[2048], *text;
    PGresult *res;
    va_list args;

    va_start(args, format);
    vsnprintf(generic, sizeof generic, format, args);
    va_end(args);
    res = sql(db, "%s", generic);
    assert_int_equal(PQntuples(res), 1);
    text = text_copy(PQgetvalue(res, 0, 0));
    PQclear(res);
    return text;
}

/* One text, compared. */
static inline void expect_text(const char *wanted, const char *query)
{
    char *text = text_of("%s", query);

    assert_string_equal(text, wanted);
    free(text);
}

/* All live and ended rows as one text: two of them are equal when nothing changed. The caller frees
 * it. */
static inline char *everything(void)
{
    PGresult *res = sql(
        db, "SELECT coalesce((SELECT string_agg(t::text, '|' ORDER BY t.id) FROM jobq.job t), '-') "
            "|| '#' ||"
            " coalesce((SELECT string_agg(t::text, '|' ORDER BY t.id) FROM jobq.failed t), '-') || "
            "'#' ||"
            " coalesce((SELECT string_agg(t::text, '|' ORDER BY t.id) FROM jobq.history t), '-')");
    char *text = text_copy(PQgetvalue(res, 0, 0));

    PQclear(res);
    return text;
}

/* Waits until a number is what it should be; false when nothing has moved for this many seconds. */
static inline bool becomes(double seconds, long wanted, const char *query)
{
    int64_t until = mono_us() + (int64_t)(seconds * 1e6);
    long before = wanted, now;

    while ((now = number("%s", query)) != wanted) {
        if (now != before) until = mono_us() + (int64_t)(seconds * 1e6);
        if (mono_us() > until) return false;
        before = now;
        nap_us(5000);
    }
    return true;
}

static inline void quiet_log(void *user, jobq_level level, const char *message)
{
    (void)user;
    if (getenv("JOBQ_TEST_LOG") != NULL) fprintf(stderr, "[%d] %s\n", (int)level, message);
}

/* A handle on this program's schema; for child processes too. */
static inline jobq_pg *handle(void)
{
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *made;

    memset(&desc, 0, sizeof desc);
    desc.conninfo = server();
    desc.schema = schema;
    desc.pool_max = 20;
    desc.log = quiet_log;
    if (jobq_pg_open(&made, &desc, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return made;
}

static pid_t test_process; /* 0: the program forks worlds of its own */

/* A failed assertion in a forked child ends the child at its next test: cmocka has jumped back into
 * the list of tests, and would run the rest of them a second time, beside the parent. */
static inline void end_child(void)
{
    if (test_process != 0 && getpid() != test_process) _exit(1);
}

#include "distributed.h"

/* Group setup and teardown. */
static inline int pg_up(void **state)
{
    jobq_pg_error error;

    (void)state;
    test_process = getpid();
    snprintf(schema, sizeof schema, "jobq_test_%d", (int)getpid());
    pg = handle();
    if (jobq_pg_migrate(pg, &error) != JOBQ_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    db = connected();
    PQclear(PQexec(db, "SET client_min_messages = error"));
    if (PQstatus(db) != CONNECTION_OK) return 1;
    if (distributed()) distribute();
#ifndef TEST_AS_INSTALLED /* but with what hostile.sh has for it */
    if (number("SELECT count(*) FROM pg_proc WHERE proname = 'own_collations'") > 0)
        RUN("SELECT public.own_collations('jobq')");
#endif
    return 0;
}

/* Runs a statement that needs the tables for itself. A backend that outlives its client may still
 * be at work in them; a session that a failed test left in a transaction is ended. */
static inline int run_alone(const char *generic)
{
    char *text = for_schema(generic, schema), state[6] = "40P01";
    int tries;

    if (PQtransactionStatus(db) != PQTRANS_IDLE) RUN("ROLLBACK"); /* of a test that failed */
    RUN("SET lock_timeout = '5s'");
    for (tries = 0; strcmp(state, "40P01") == 0 || strcmp(state, "55P03") == 0; tries++) {
        PGresult *res = PQexec(db, text);

        snprintf(state, sizeof state, "%s", PQresultStatus(res) == PGRES_COMMAND_OK
                                                ? "" : PQresultErrorField(res, PG_DIAG_SQLSTATE));
        PQclear(res);
        if (state[0] != '\0') fprintf(stderr, "%s: %s", text, PQerrorMessage(db));
        if (tries == 10) break;
        if (strcmp(state, "55P03") != 0) continue;
        RUN("SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a WHERE a.pid IN ("
            "SELECT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation "
            "WHERE c.relnamespace = 'jobq'::regnamespace AND l.pid <> pg_backend_pid()) "
            "AND a.state LIKE 'idle in transaction%%'");
    }
    RUN("RESET lock_timeout");
    free(text);
    return state[0] != '\0';
}

static inline int pg_down(void **state)
{
    (void)state;
    end_child();
    if (run_alone("DROP SCHEMA jobq CASCADE") != 0) return 1;
    PQfinish(db);
    PQfinish(shards_at);
    shards_at = NULL;
    jobq_pg_close(pg);
    return 0;
}

/* Test setup: empty tables. */
static inline int pg_empty(void **state)
{
    (void)state;
    end_child();
    if (distributed()) {
        empty_shards();
        return 0;
    }
    return run_alone(
        "DO $$ DECLARE v_full text; BEGIN"
        " LOCK TABLE jobq.job, jobq.failed, jobq.history, jobq.claim, jobq.worker, jobq.sleeper,"
        "  jobq.kind, jobq.queue, jobq.schedule, jobq.schedule_owner, jobq.subscription, jobq.edge,"
        "  jobq.line,"
        "  jobq.quota, jobq.permit, jobq.waiter, jobq.tally, jobq.flow, jobq.flow_part,"
        "  jobq.flow_job, jobq.nudge, jobq.operation, jobq.signal, jobq.signal_wait,"
        "  jobq.idempotency, jobq.message, jobq.partition, jobq.dead_letter, jobq.tenant;"
        " SELECT string_agg(l.relation::regclass::text, ', ') INTO v_full FROM pg_locks l"
        "  JOIN pg_class c ON c.oid = l.relation AND c.relkind = 'r'"
        "   AND c.relnamespace = 'jobq'::regnamespace"
        "  WHERE l.pid = pg_backend_pid() AND l.mode = 'AccessExclusiveLock'"
        "   AND (pg_relation_size(c.oid) > 0"
        "    OR c.relname IN ('kind', 'schedule', 'quota', 'permit', 'subscription'));"
        " EXECUTE 'TRUNCATE ' || v_full; END $$"); /* the five refer to others */
}

/* The ids of a table begin with 1 again. */
static inline void restart_ids(const char *table)
{
    if (shards_at == NULL) RUN("ALTER TABLE jobq.%s ALTER id RESTART", table);
    else RUN("ALTER SEQUENCE jobq.%s_id_seq RESTART", table);
}

static inline int64_t enqueue_with(const jobq_pg_job *job)
{
    jobq_pg_error error;
    int64_t id = 0;

    if (jobq_pg_enqueue(pg, NULL, job, &id, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return id;
}

static inline jobq_pg_job plain_job(void)
{
    jobq_pg_job job;

    memset(&job, 0, sizeof job);
    job.queue = "q";
    job.kind = "k";
    job.payload = jobq_str_from("{\"n\": 1}");
    return job;
}

static inline void enqueue_count(size_t count)
{
    jobq_pg_job *jobs = calloc(count, sizeof *jobs);
    jobq_pg_error error;
    size_t i;

    for (i = 0; i < count; i++) jobs[i] = plain_job();
    if (jobq_pg_enqueue_many(pg, NULL, jobs, count, NULL, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    free(jobs);
}

/* The id of a queue's partition. */
static inline int64_t partition_id(int32_t queue, int number)
{
    return (int64_t)queue * 32768 + number;
}

#ifndef JOBQ_PG_NO_TABLES
/* The row of a queue in the view queues, without its texts. */
static inline jobq_error counts_by(jobq_pg *handle, const char *queue, jobq_pg_queue_row *row)
{
    jobq_pg_queue_row like = {.queue = jobq_str_from(queue)};
    const jobq_pg_table_desc *desc = jobq_pg_view_desc(JOBQ_PG_VIEW_QUEUES, false);
    jobq_pg_table *queues;
    jobq_pg_rows rows;
    jobq_error code = jobq_pg_table_open(&queues, handle, NULL, desc, NULL);

    if (code != JOBQ_OK) return code;
    code = jobq_pg_table_get(queues, NULL, NULL, &like, &rows, NULL);
    if (code == JOBQ_OK) *row = *(const jobq_pg_queue_row *)rows.rows;
    jobq_pg_rows_clear(&rows);
    jobq_pg_table_close(queues);
    return code;
}

static inline jobq_error counts_of(const char *queue, jobq_pg_queue_row *row)
{
    return counts_by(pg, queue, row);
}

/* All rows of a view. */
static inline jobq_pg_rows rows_of_view(jobq_pg_view view)
{
    jobq_pg_table *table;
    jobq_pg_error error;
    jobq_pg_rows rows = {NULL, 0, false};

    if (jobq_pg_table_open(&table, pg, NULL, jobq_pg_view_desc(view, true), &error) ||
        jobq_pg_table_list(table, NULL, NULL, &rows, &error)) fail_msg("%s", error.message);
    jobq_pg_table_close(table);
    return rows;
}
#endif

/* Registers a worker for queue q by hand; returns the queue's id. */
static inline int32_t register_worker(int64_t worker, int64_t lease_us)
{
    static const char *const queues[] = {"q"};
    jobq_pg_error error;
    int32_t queue = 0;

    if (verb_register(pg, NULL, worker, "same-name", lease_us, queues, 1, &queue, &error) !=
        JOBQ_OK) {
        fail_msg("%s", error.message);
    }
    return queue;
}

/* Workers that were registered by hand have every kind that there is. */
static inline void have_all_kinds(void)
{
    RUN("UPDATE jobq.worker SET kinds = ARRAY(SELECT id FROM jobq.kind)");
}

#define SHORT_LEASE (300 * 1000) /* 0.3 s */

static inline int64_t beat_of(int64_t worker)
{
    return number("SELECT beat FROM jobq.worker WHERE id = %lld", (long long)worker);
}

/* Rescues a worker whose lease has run out; how many jobs it had. */
static inline int32_t rescue(int64_t worker)
{
    jobq_pg_error error;
    int32_t rescued = -1;

    if (verb_rescue(pg, NULL, worker, beat_of(worker), &rescued, &error) != JOBQ_OK) {
        fail_msg("%s", error.message);
    }
    return rescued;
}

#define ALONE 2

/* Claims up to limit jobs of queue q, priority 0, stage 0 to 2: others (0), suspects (1), or what
 * must run ALONE. */
static inline jobq_error claim_on(PGconn *conn, int64_t worker, int64_t claim, int32_t limit,
                                  int suspects, verb_batch *batch)
{
    jobq_lane lanes[3];
    verb_claim_desc d;
    jobq_pg_error error;
    int16_t stage;

    memset(lanes, 0, sizeof lanes);
    memset(&d, 0, sizeof d);
    for (stage = 2; stage >= 0; stage--) {
        jobq_lane *lane = &lanes[2 - stage];
        lane->queue = (int32_t)number("SELECT id FROM jobq.queue WHERE name = 'q'");
        lane->stage = stage;
        lane->after_at_us = INT64_MIN;
    }
    d.worker = worker;
    d.number = claim;
    d.limit = limit;
    d.lanes = lanes;
    d.lane_count = 3;
    d.suspects = suspects > 0;
    d.alone = suspects == ALONE;
    d.look = true;
    return verb_claim(pg, conn, &d, batch, &error);
}

static inline jobq_error claim_by(int64_t worker, int64_t claim, int32_t limit, int suspects,
                                  verb_batch *batch)
{
    return claim_on(NULL, worker, claim, limit, suspects, batch);
}

/* One job claimed; it must be there. */
static inline jobq_job claim_one(int64_t worker, int64_t claim, int suspects)
{
    verb_batch batch;
    jobq_job job;

    assert_int_equal(claim_by(worker, claim, 1, suspects, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 1);
    job = batch.jobs[0];
    verb_batch_clear(&batch);
    return job;
}

/* Writes what an event makes of a claimed job; the fence's answer. */
static inline jobq_error settle_on(PGconn *conn, const jobq_job *job, jobq_event_kind kind,
                                   const char *text)
{
    jobq_policy policy = jobq_policy_defaults(NULL);
    verb_result result;
    jobq_pg_error error;
    jobq_error answer = JOBQ_ERROR_DATABASE;
    jobq_event event;

    memset(&event, 0, sizeof event);
    memset(&result, 0, sizeof result);
    event.kind = kind;
    assert_int_equal(jobq_job_decide(&policy, job, &event, &result.decision), JOBQ_OK);
    result.id = job->id;
    result.worker = job->worker;
    result.claim = job->claim;
    result.error = jobq_str_from(text);
    if (verb_settle(pg, conn, &result, 1, &answer, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    return answer;
}

static inline jobq_error settle_with(const jobq_job *job, jobq_event_kind kind, const char *text)
{
    return settle_on(NULL, job, kind, text);
}

#endif
