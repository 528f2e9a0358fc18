/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * At each step of the worker in turn the process is killed, or its connection is cut. Another
 * worker finishes what was begun, every job and message ends once, and the counts are right.
 * Promises 1 to 4.
 *
 * The steps are named in jobq_pg.h (JOBQ_PG_POINT). A world is a schema of its own; worlds run side
 * by side, each with its share of the steps. JOBQ_TEST_LONG=1 runs all scenes; otherwise kills and
 * cuts alternate, one at each step of each statement.
 */
#define TEST_PRIVATE
#include <stdbool.h>
#include <stdlib.h>

struct pg_conn;
static void point(const char *step, int kind, struct pg_conn *conn);
#define JOBQ_PG_POINT(step, kind, conn) point(step, kind, conn)

#include "pg_work.h"

#include <sys/socket.h>

#define JOBS 6 /* of each kind */
#define WORLDS 4

typedef enum action { ACTION_NONE, ACTION_KILL, ACTION_CUT } action;

typedef struct scene {
    const char *step;
    int kind;
    action action;
} scene;

static struct {
    scene first, then;          /* what shall happen, in the process that is to suffer */
    int64_t lease_us;
    struct { int came, gone; } *board; /* shared: actions done */
} fault;

/* -- the action -- */

/* What has arrived is lost with the connection, and never heard. */
static void cut(PGconn *conn)
{
    char lost[4096];

    while (recv(PQsocket(conn), lost, sizeof lost, MSG_DONTWAIT) > 0) continue;
    shutdown(PQsocket(conn), SHUT_RDWR);
}

static bool here(const scene *s, const char *step, int kind)
{
    return s->action != ACTION_NONE && s->kind == kind && strcmp(s->step, step) == 0;
}

static void point(const char *step, int kind, PGconn *conn)
{
    bool first = here(&fault.first, step, kind);

    if (!first && (fault.first.action != ACTION_NONE || !here(&fault.then, step, kind))) return;
    if (!__sync_bool_compare_and_swap(first ? &fault.board->gone : &fault.board->came, 0, 1))
        return;
    if (conn != NULL) PQflush(conn);
    if (strcmp(step, "sent") == 0) nap_us(30000); /* the server has it */
    if ((first ? &fault.first : &fault.then)->action == ACTION_KILL) kill(getpid(), SIGKILL);
    cut(conn);
    if (first) fault.first.action = ACTION_NONE;
}

/* -- the work -- */

static jobq_outcome plain(jobq_call *call)
{
    (void)call;
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome late(jobq_call *call)
{
    if (call->job.attempt > 1) return JOBQ_OUTCOME_SUCCESS;
    jobq_call_delay(call, 1000);
    return JOBQ_OUTCOME_RETRY;
}

static void write_row(PGconn *conn, const char *table, int64_t id)
{
    char generic[100], *text;

    snprintf(generic, sizeof generic, "INSERT INTO jobq.%s VALUES (%lld)", table, (long long)id);
    text = for_schema(generic, schema);
    PQclear(PQexec(conn, text));
    free(text);
}

static jobq_outcome exact(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    jobq_call_delay(call, 1000);
    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    PQclear(PQexec(conn, "BEGIN"));
    write_row(conn, "ledger", call->job.id);
    return jobq_pg_call_commit(call, conn);
}

static jobq_result receive_in(jobq_delivery *d, const jobq_message *m)
{
    write_row(jobq_pg_delivery_conn(d), "inbox", m->seq);
    return JOBQ_RESULT_SUCCESS;
}

static jobq_result receive(jobq_delivery *d, const jobq_message *m)
{
    (void)d, (void)m;
    return JOBQ_RESULT_SUCCESS;
}

/* -- a process -- */

/* A worker in a process of its own that comes to grief as said. */
static pid_t works_until(const scene *first, const scene *then)
{
    static const scene none = {"", -1, ACTION_NONE};
    jobq_pg_handler h[] = {handler_of("q", "plain", plain), handler_of("q", "late", late),
                           handler_of("q", "exact", exact)};
    jobq_pg_receiver r[2];
    jobq_pg_worker_desc d = work_of(h, 3);
    int i;

    memset(r, 0, sizeof r);
    r[0].queue = "in";
    r[0].each = receive_in;
    r[0].transactional = true;
    r[1].queue = "out";
    r[1].each = receive;
    for (i = 0; i < 2; i++) {
        r[i].tuning.lease_us = SECOND;
        r[i].tuning.budget_us = SECOND;
        r[i].tuning.retry.base_us = r[i].tuning.retry.cap_us = 10000;
    }
    d.receivers = r;
    d.receiver_count = 2;
    d.loop.threads = 2;
    d.loop.batch_max = 4;
    d.loop.lease_us = fault.lease_us;
    d.loop.heartbeat_us = 100000;
    fault.first = first == NULL ? none : *first;
    fault.then = then == NULL ? none : *then;
    return spawn(&d);
}

/* Asked again: it may not have begun to listen. */
static void ends(pid_t pid)
{
    int64_t until = mono_us() + 30 * SECOND;

    do kill(pid, mono_us() < until ? SIGTERM : SIGKILL), nap_us(20000);
    while (!exited(pid));
}

/* -- a world -- */

/* In a world of its own no test framework may jump. */
static void bad(const scene *s, const char *what)
{
    fprintf(stderr, "%s at %s %d: %s\n", s->action == ACTION_KILL ? "killed" : "cut", s->step,
            s->kind,
            what);
    all_stop(NULL);
    _exit(1);
}

static bool all_done(double seconds)
{
    return becomes(seconds, 1,
                   "SELECT (NOT EXISTS (SELECT FROM jobq.job) AND sum(acked) = 12)::int"
                   " FROM jobq.partition");
}

static bool comes(double seconds, const int *flag)
{
    return reaches(seconds, flag, 1);
}

static void check(const scene *s)
{
    static const struct {
        const char *query;
        long wanted;
    } truths[] = {
        {"SELECT count(*) FROM jobq.history WHERE state = 's'", 3 * JOBS},
        {"SELECT count(DISTINCT id) FROM jobq.history", 3 * JOBS},
        {"SELECT count(*) FROM jobq.failed", 0},
        {"SELECT count(*) FROM jobq.history h JOIN jobq.kind k ON k.id = h.kind_id"
         " WHERE k.name = 'plain' AND h.attempt = 1 AND h.errors IS NULL", JOBS},
        {"SELECT count(*) FROM jobq.history h JOIN jobq.kind k ON k.id = h.kind_id"
         " WHERE k.name = 'late' AND h.attempt = 2", JOBS},
        {"SELECT count(*) FROM jobq.history WHERE crash > 0", 0},
        {"SELECT count(*) FROM jobq.ledger", JOBS},
        {"SELECT count(DISTINCT id) FROM jobq.ledger", JOBS},
        {"SELECT count(*) FROM jobq.inbox", 6},
        {"SELECT count(DISTINCT id) FROM jobq.inbox", 6},
        {"SELECT count(*) FROM jobq.dead_letter", 0},
        {"SELECT jobq.audit()", 0},
    };
    size_t i;

    for (i = 0; i < sizeof truths / sizeof truths[0]; i++) {
        if (number("%s", truths[i].query) != truths[i].wanted) bad(s, truths[i].query);
    }
}

/* A process that is to die does. */
static void falls_dead(pid_t pid, const scene *s)
{
    if (!comes(20, &fault.board->came)) bad(s, "nobody fell");
    reap(pid);
    fault.board->came = 0;
}

/* False: all was done without this step. */
static bool plays(const scene *s)
{
    static const scene falls = {"handle", -1, ACTION_KILL};
    static const scene unheard = {"sent", JOBQ_REQUEST_CLAIM, ACTION_CUT};
    pid_t worker;

    pg_empty(NULL);
    RUN("TRUNCATE jobq.ledger, jobq.inbox");
    fault.board->came = fault.board->gone = 0;
    RUN("SELECT jobq.outbox_register(q, 1) FROM unnest(ARRAY['in', 'out']) q");
    RUN("SELECT jobq.enqueue('q', k) FROM unnest(ARRAY['plain', 'late', 'exact']) k,"
        " generate_series(1, %d)", JOBS);
    RUN("SELECT jobq.outbox_enqueue(q, '1', 0) FROM unnest(ARRAY['in', 'out']) q,"
        " generate_series(1, 6)");
    if (s->kind == JOBQ_REQUEST_RESCUE) /* somebody has to be rescued */
        falls_dead(works_until(NULL, &falls), s);
    worker = works_until(s->kind == JOBQ_REQUEST_RECOVER ? &unheard : NULL, s);
    if (s->kind == JOBQ_REQUEST_DEREGISTER) {
        if (!all_done(30)) bad(s, "something is left");
        kill(worker, SIGTERM);
    }
    while (!comes(10, &fault.board->came)) {
        if (!all_done(0)) continue;
        ends(worker);
        return false;
    }
    if (s->action == ACTION_KILL) {
        reap(worker);
        worker = works_until(NULL, NULL);
    }
    if (!all_done(30)) bad(s, "something is left");
    ends(worker);
    check(s);
    return true;
}

/* On a loaded machine a worker may lose its lease before the step: then it starts again, and
 * nothing is recovered or told. With a longer lease it gets there. */
static void play(const scene *s)
{
    fault.lease_us = check_slow() ? 3 * SECOND : 700000;
    while (!plays(s)) {
        fault.lease_us *= 2;
        if (fault.lease_us > 30 * SECOND) bad(s, "this step was never made");
    }
}

/* -- all of them -- */

static const int kinds[] = {
    JOBQ_REQUEST_REGISTER, JOBQ_REQUEST_POLICIES, JOBQ_REQUEST_CLAIM,      JOBQ_REQUEST_RECOVER,
    JOBQ_REQUEST_COMPLETE, JOBQ_REQUEST_SETTLE,   JOBQ_REQUEST_HEARTBEAT,  JOBQ_REQUEST_RESCUE,
    JOBQ_REQUEST_SLEEP,    JOBQ_REQUEST_LOOK,     JOBQ_REQUEST_DEREGISTER, JOBQ_REQUEST_READ,
    JOBQ_REQUEST_ACK};

/* The scenes of the script, by number; false: that was the last. */
static bool scene_of(int n, scene *s)
{
    static const char *const steps[] = {"send", "sent", "answered"};
    static const scene rest[] = {
        {"handle", -1, ACTION_KILL},      {"handled", -1, ACTION_KILL},
        {"commit", -1, ACTION_KILL},      {"committed", -1, ACTION_KILL},
        {"acknowledge", -1, ACTION_KILL}, {"acknowledged", -1, ACTION_KILL},
        {"commit", -1, ACTION_CUT},       {"committed", -1, ACTION_CUT},
        {"acknowledge", -1, ACTION_CUT},  {"acknowledged", -1, ACTION_CUT}};
    int statements = (int)(sizeof kinds / sizeof kinds[0]) * 3 * 2;

    if (n >= statements + 10) return false;
    if (n >= statements) *s = rest[n - statements];
    else {
        s->action = n % 2 == 0 ? ACTION_KILL : ACTION_CUT;
        s->step = steps[n / 2 % 3];
        s->kind = kinds[n / 6];
    }
    return true;
}

static void world(int which)
{
    bool is_long = getenv("JOBQ_TEST_LONG") != NULL;
    jobq_pg_error error;
    scene s;
    int n;

    snprintf(schema, sizeof schema, "points_%d_%d", (int)getppid(), which);
    db = PQconnectdb(server());
    PQclear(PQexec(db, "SET client_min_messages = error"));
    RUN("DROP SCHEMA IF EXISTS jobq CASCADE");
    pg = handle();
    if (jobq_pg_migrate(pg, &error) != JOBQ_OK) {
        fprintf(stderr, "%s\n", error.message);
        _exit(2);
    }
    jobq_pg_close(pg);
    RUN("CREATE TABLE jobq.ledger (id bigint)");
    RUN("CREATE TABLE jobq.inbox (id bigint)");
    fault.board = shared(sizeof *fault.board);
    for (n = which; scene_of(n, &s); n += WORLDS) {
        if (is_long || s.kind < 0 || (n / 2 + n) % 2 == 0) play(&s);
    }
    RUN("DROP SCHEMA jobq CASCADE");
    PQfinish(db);
    _exit(0);
}

static void each_step_goes_wrong_once(void **unused)
{
    pid_t worlds[WORLDS];
    int i, status, good = 0;

    (void)unused;
    for (i = 0; i < WORLDS; i++) {
        worlds[i] = fork();
        assert_true(worlds[i] >= 0);
        if (worlds[i] == 0) world(i);
    }
    for (i = 0; i < WORLDS; i++) {
        waitpid(worlds[i], &status, 0);
        good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    assert_int_equal(good, WORLDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_step_goes_wrong_once)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
