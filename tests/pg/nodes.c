/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Many servers: eight schemas on two of them, one worker for all, producers that spread keys; a
 * server that is killed and comes back; a schema that moves to the other server.
 *
 * tests/harness/nodes.sh starts the servers. Each key is a job; its handler writes an effect and
 * enqueues a message, both in the transaction that completes the job; the receiver writes what it
 * hears in the transaction that acknowledges. So in the end there is one effect and one message for
 * each key, whatever happened on the way.
 */
#include "processes.h"

#define SCHEMAS 8
#define PRODUCERS 2
#define KEYS_MAX 20000

/* Memory of all processes. */
static struct {
    int node_of[SCHEMAS];  /* the server of each schema */
    int misled;            /* handlers whose handle is not that of the key's schema */
    int produced;          /* keys that are known to be enqueued */
    int put_off;           /* enqueues that failed */
    int keys;              /* to enqueue */
    int slowly;            /* producers take their time, so that they produce during a move */
    int until;             /* if not 0: they wait at this key */
} * all;

static const char *conninfo_of(int node)
{
    return node == 0 ? getenv("JOBQ_NODE") : server();
}

static void name_of(char *name, int which) { sprintf(name, "jq%d", which); }

static jobq_pg *open_schema(int which)
{
    char name[8];
    jobq_pg_desc d = desc_of(conninfo_of(GET(all->node_of[which])));
    jobq_pg_error error;
    jobq_pg *made;

    name_of(name, which);
    d.schema = name;
    d.may_be_down = true;
    if (jobq_pg_open(&made, &d, &error) == JOBQ_OK) return made;
    fprintf(stderr, "%s\n", error.message);
    _exit(1);
}

/* A number of one server. -1: it does not answer. */
static long number_on(int node, const char *query)
{
    PGconn *conn = PQconnectdb(conninfo_of(node));
    PGresult *res = PQexec(conn, query);
    long value = PQresultStatus(res) == PGRES_TUPLES_OK ? atol(PQgetvalue(res, 0, 0)) : -1;

    PQclear(res);
    PQfinish(conn);
    return value;
}

/* A number of both. */
static long number_of_both(const char *query)
{
    return number_on(0, query) + number_on(1, query);
}

static void run_on(int node, const char *statements)
{
    PGconn *conn = PQconnectdb(conninfo_of(node));
    PGresult *res = PQexec(conn, statements);
    ExecStatusType status = PQresultStatus(res);

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        fail_msg("%s: %s", statements, PQerrorMessage(conn));
    PQclear(res);
    PQfinish(conn);
}

/* ---- the worker ------------------------------------------------------------------------------ */

static bool runs_well(PGconn *conn, const char *statement)
{
    PGresult *res = PQexec(conn, statement);
    bool good = PQresultStatus(res) == PGRES_COMMAND_OK;

    PQclear(res);
    return good;
}

static jobq_outcome does(jobq_call *call)
{
    int key = atoi(call->payload.ptr), which;
    char text[100], name[12];
    jobq_pg_message message;
    jobq_pg_error error;
    jobq_pg *from = jobq_pg_call_handle(call);
    PGconn *conn = jobq_pg_call_conn(call, &error);

    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    snprintf(text, sizeof text, "key-%d", key);
    which = jobq_schema_of(jobq_str_from(text), SCHEMAS);
    snprintf(name, sizeof name, "\"jq%d\"", which);
    if (strcmp(jobq_pg_schema(from), name) != 0) ADD(all->misled);
    memset(&message, 0, sizeof message);
    message.queue = "news";
    message.order_key = text;
    message.payload = call->payload;
    snprintf(text, sizeof text, "INSERT INTO public.effect VALUES (%d)", key);
    call->delay_named = true; /* at once */
    if (!runs_well(conn, "BEGIN") || !runs_well(conn, text)) return JOBQ_OUTCOME_RETRY;
    snprintf(text, sizeof text, "key-%d", key);
    if (jobq_pg_outbox_enqueue(from, conn, &message, NULL, &error) != JOBQ_OK)
        return JOBQ_OUTCOME_RETRY;
    return jobq_pg_call_commit(call, conn);
}

static jobq_result hears(jobq_delivery *d, const jobq_message *m)
{
    PGconn *conn = jobq_pg_delivery_conn(d);
    char text[100];

    snprintf(text, sizeof text, "INSERT INTO public.heard VALUES (%d)", atoi(m->payload.ptr));
    return runs_well(conn, text) ? JOBQ_RESULT_SUCCESS : JOBQ_RESULT_RETRY;
}

static pid_t fork_child(void)
{
    pid_t pid;
    int i;

    for (i = 0; i < WORKERS_MAX && children[i] != 0;) i++;
    assert_true(i < WORKERS_MAX);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid != 0) children[i] = pid;
    return pid;
}

/* One worker for all schemas, in a process of its own. */
static pid_t worker_starts(void)
{
    jobq_pg_handler h = handler_of("q", "k", does);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_receiver r;
    jobq_pg *handles[SCHEMAS];
    jobq_pg_error error;
    pid_t pid = fork_child();
    int i;

    if (pid != 0) return pid;
    memset(&r, 0, sizeof r);
    r.queue = "news";
    r.each = hears;
    r.transactional = true;
    d.receivers = &r;
    d.receiver_count = 1;
    for (i = 0; i < SCHEMAS; i++) handles[i] = open_schema(i);
    d.also = handles + 1;
    d.also_count = SCHEMAS - 1;
    d.loop.lease_us = 3 * SECOND;
    d.stop_signals[0] = SIGTERM;
    if (jobq_pg_work(handles[0], &d, &error) == JOBQ_OK) _exit(0);
    fprintf(stderr, "%s\n", error.message);
    _exit(1);
}

static void worker_stops(pid_t pid)
{
    kill(pid, SIGTERM);
    assert_int_equal(reap(pid), 0);
}

/* ---- producers ------------------------------------------------------------------------------- */

/* Enqueues a key in its schema, wherever that is now. */
static bool produces(jobq_pg **handles, int *nodes, int k)
{
    char key[32], payload[32];
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    jobq_error code;
    int which;

    snprintf(key, sizeof key, "key-%d", k);
    snprintf(payload, sizeof payload, "%d", k);
    which = jobq_schema_of(jobq_str_from(key), SCHEMAS);
    job.key = key;
    job.payload = jobq_str_from(payload);
    if (handles[which] == NULL || nodes[which] != GET(all->node_of[which])) {
        jobq_pg_close(handles[which]);
        handles[which] = open_schema(which);
        nodes[which] = GET(all->node_of[which]);
    }
    code = jobq_pg_enqueue(handles[which], NULL, &job, NULL, &error);
    return code == JOBQ_OK || code == JOBQ_ERROR_EXISTS;
}

/* A key that fails is put off, so that a server that is down does not hold up the keys of the
 * others. */
static void producer(int me)
{
    static bool done[KEYS_MAX];
    jobq_pg *handles[SCHEMAS] = {NULL};
    int nodes[SCHEMAS], k, left;

    do {
        left = 0;
        for (k = me; k < all->keys; k += PRODUCERS) {
            while (GET(all->until) != 0 && k >= GET(all->until)) nap_us(10000);
            if (done[k]) continue;
            done[k] = produces(handles, nodes, k);
            if (done[k]) ADD(all->produced);
            else ADD(all->put_off), left++;
            if (!done[k] || GET(all->slowly)) nap_us(GET(all->slowly) ? 20000 : 2000);
        }
    } while (left > 0);
    _exit(0);
}

static void producers_start(pid_t *pids)
{
    int i;

    for (i = 0; i < PRODUCERS; i++) {
        pids[i] = fork_child();
        if (pids[i] == 0) producer(i);
    }
}

/* Waits until both servers together have so many rows; as long as something moves. */
static void await(const char *what, long wanted)
{
    int64_t until = mono_us() + 60 * SECOND;
    long before = -1, now;

    while ((now = number_of_both(what)) < wanted) {
        if (now > before) until = mono_us() + 60 * SECOND;
        if (mono_us() > until) fail_msg("%s: %ld of %ld", what, now, wanted);
        before = now;
        nap_us(50000);
    }
}

#define EFFECTS "SELECT count(*) FROM public.effect"
#define HEARD "SELECT count(*) FROM public.heard"

/* Everything has happened, once. */
static void all_came_once(const pid_t *pids)
{
    char text[100];
    int i;

    await(EFFECTS, all->keys);
    await(HEARD, all->keys);
    for (i = 0; i < PRODUCERS; i++) assert_int_equal(reap(pids[i]), 0);
    assert_int_equal(GET(all->produced), all->keys);
    assert_int_equal(number_of_both(EFFECTS), all->keys);
    assert_int_equal(number_of_both("SELECT count(DISTINCT key) FROM public.effect"), all->keys);
    assert_int_equal(number_of_both("SELECT sum(key) FROM public.effect"),
                     (long)all->keys * (all->keys - 1) / 2);
    assert_int_equal(number_of_both(HEARD), all->keys);
    assert_int_equal(number_of_both("SELECT sum(key) FROM public.heard"),
                     (long)all->keys * (all->keys - 1) / 2);
    assert_int_equal(number_of_both("SELECT count(DISTINCT key) FROM public.heard"), all->keys);
    assert_int_equal(all->misled, 0);
    for (i = 0; i < SCHEMAS; i++) {
        snprintf(text, sizeof text, "SELECT jq%d.audit()", i);
        assert_int_equal(number_on(all->node_of[i], text), 0);
        snprintf(text, sizeof text, "SELECT count(*) FROM jq%d.failed", i);
        assert_int_equal(number_on(all->node_of[i], text), 0);
    }
}

/* ---- a server that dies ---------------------------------------------------------------------- */

/* kill -9 of all its processes. What the other one has goes on; so does a worker that is started
 * meanwhile. */
static void a_killed_server_loses_and_repeats_nothing(void **unused)
{
    pid_t pids[PRODUCERS], first = worker_starts(), second;
    long before;

    (void)unused;
    all->until = all->keys / 2; /* so they produce for the dead server, however fast they are */
    producers_start(pids);
    await(EFFECTS, all->keys * 3 / 10);
    server_command("--crash");
    SET(all->until, 0);
    before = number_on(0, EFFECTS);
    second = worker_starts();
    while (number_on(0, EFFECTS) < before + all->keys / 20 || GET(all->put_off) == 0) nap_us(20000);
    kill_hard(first); /* so the second one, which has never seen the other server, must do it */
    server_command("--ctl start");
    all_came_once(pids);
    worker_stops(second);
}

/* ---- a server that freezes ------------------------------------------------------------------- */

/* SIGSTOP or SIGCONT for all its processes; one of them may just have ended. */
static void second_server(const char *signal)
{
    char command[200];

    snprintf(command, sizeof command, "p=$(head -1 \"$JOBQ_SERVER_DIR/data/postmaster.pid\"); "
             "kill -%s $p && { kill -%s $(pgrep -P $p) 2>/dev/null || :; }", signal, signal);
    assert_int_equal(system(command), 0);
}

static void enqueue_on(int node, int first, int count)
{
    char text[300];

    snprintf(text, sizeof text, "SELECT jq%d.enqueue('q', 'k', to_jsonb(i), key => 'k' || i, "
             "notify => i %% 100 = 0) FROM generate_series(%d, %d) i", node, first,
             first + count - 1);
    run_on(node, text);
}

/* How many effects the first server gets while jobs trickle, or wait in great number. */
static long pace(int *next, bool saturated, double seconds)
{
    int64_t until = mono_us() + (int64_t)(seconds * 1e6);
    long before = number_on(0, EFFECTS);

    while (mono_us() < until) {
        if (!saturated) enqueue_on(0, *next, 5), *next += 5;
        nap_us(100000);
    }
    return number_on(0, EFFECTS) - before;
}

/* Handlers take 20 ms, so the pace is that of threads and not of the processor. */
static jobq_outcome does_slowly(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char text[100];

    call->delay_named = true;
    snprintf(text, sizeof text, "INSERT INTO public.effect VALUES (%d)", atoi(call->payload.ptr));
    nap_us(20000);
    if (conn == NULL || !runs_well(conn, "BEGIN") || !runs_well(conn, text))
        return JOBQ_OUTCOME_RETRY;
    return jobq_pg_call_commit(call, conn);
}

static void schemas_of_both(jobq_pg **handles)
{
    handles[0] = open_schema(0);
    handles[1] = open_schema(1);
}

/* Of two servers one freezes: the other keeps its pace, also while every thread could hang in the
 * frozen one. Health tells which. The other goes on when it is back; every effect comes once. */
static void one_freezes(bool saturated, const char *timeout)
{
    jobq_pg_handler h = handler_of("q", "k", does_slowly);
    jobq_pg_worker_desc d = work_of(&h, 1);
    bool longer = getenv("JOBQ_TEST_LONG") != NULL;
    int next = 0, total = longer ? 40000 : 8000; /* more than it does meanwhile */
    int rounds = 4; /* other programs may take the machine in one of them, hardly in all */
    jobq_pg *handles[2];
    jobq_pg_worker *worker;
    jobq_pg_health health;
    jobq_pg_error error;
    long before = 0, during = 0, there;
    char text[100];

    schemas_of_both(handles);
    for (next = 0; next < 2; next++) {
        snprintf(text, sizeof text, "SELECT jq%d.queue_set('q', timeout => %s, max_attempts => 99)",
                 next, timeout);
        run_on(next, text);
    }
    next = 0;
    enqueue_on(1, 0, total);
    if (saturated) enqueue_on(0, 0, total), next = total;
    d.also = handles + 1;
    d.also_count = 1;
    d.loop.threads = 4;
    d.loop.lease_us = 3 * SECOND;
    d.loop.answer_us = 2 * SECOND;
    assert_int_equal(jobq_pg_worker_start(handles[0], &d, &worker, &error), JOBQ_OK);
    pace(&next, saturated, 2);
    do {
        before += pace(&next, saturated, longer ? 60 : 4);
        second_server("STOP");
        during += pace(&next, saturated, longer ? 60 : 4);
        assert_int_equal(jobq_pg_worker_health(worker, 0, &health), JOBQ_OK);
        assert_int_equal(jobq_pg_worker_health(worker, 1, &health), JOBQ_ERROR_CONNECTION);
        second_server("CONT");
        there = number_on(1, EFFECTS);
        while (number_on(1, EFFECTS) < there + 100) nap_us(50000);
    } while (during * 10 < before * 8 && --rounds > 0);
    print_message("%s, timeout %s: %ld effects before, %ld while the other one is frozen\n",
                  saturated ? "saturated" : "low load", timeout, before, during);
    assert_true(during * 10 >= before * 8);
    jobq_pg_worker_stop(worker);
    assert_int_equal(jobq_pg_worker_wait(worker, NULL), JOBQ_OK);
    jobq_pg_worker_free(worker);
    assert_int_equal(number_of_both("SELECT count(*) - count(DISTINCT key) FROM public.effect"), 0);
    jobq_pg_close(handles[0]);
    jobq_pg_close(handles[1]);
}

static void a_frozen_server_delays_only_itself(void **unused)
{
    (void)unused;
    one_freezes(false, "NULL");
}

static void also_where_all_threads_could_hang(void **unused)
{
    (void)unused;
    one_freezes(true, "NULL");
}

static void also_with_a_time_limit(void **unused)
{
    (void)unused;
    one_freezes(true, "'1 second'");
}

/* ---- a schema that moves --------------------------------------------------------------------- */

/* Moves a schema from the second server to the first, as examples/jobq/README.md says. */
static void moves(int which, const char *by)
{
    char command[1500];

    snprintf(command, sizeof command,
             "cd '%s' && PATH=\"$JOBQ_SERVER_BIN:$PATH\" psql -X -v schema=jq%d "
             "-v to=\"$JOBQ_NODE\" "
             "%s -f '%s/examples/move.sql' \"$JOBQ_SERVER\" 2>&1",
             getenv("JOBQ_SERVER_DIR"), which, by, getenv("PWD"));
    if (system(command) != 0) fail_msg("jq%d was not moved", which);
    SET(all->node_of[which], 0);
}

static void a_schema_moves(int which, const char *by)
{
    pid_t pids[PRODUCERS], worker = worker_starts();
    char text[100];
    long there;

    SET(all->slowly, 1);
    SET(all->until, all->keys * 9 / 10); /* the rest is produced after the move */
    producers_start(pids);
    await(EFFECTS, all->keys / 10);
    snprintf(text, sizeof text, "SELECT count(*) FROM jq%d.history", which);
    there = number_on(1, text);
    assert_true(there > 0);
    moves(which, by);
    assert_true(GET(all->produced) < all->keys);
    SET(all->slowly, 0);
    SET(all->until, 0);
    assert_true(number_on(0, text) >= there);
    assert_int_equal(number_on(1, text), -1);
    worker_stops(worker);
    worker = worker_starts();
    all_came_once(pids);
    worker_stops(worker);
}

static void a_schema_moves_by_a_dump(void **unused)
{
    (void)unused;
    a_schema_moves(1, "");
}

static void a_schema_moves_by_replication(void **unused)
{
    (void)unused;
    a_schema_moves(3, "-v from=\"$JOBQ_SERVER\"");
}

/* The other server has a schema of that name: all stays as it was. */
static void a_move_that_fails_moves_nothing(void **unused)
{
    char command[1500];

    (void)unused;
    run_on(0, "CREATE SCHEMA jq5");
    snprintf(command, sizeof command,
             "cd '%s' && PATH=\"$JOBQ_SERVER_BIN:$PATH\" psql -X -v schema=jq5 "
             "-v to=\"$JOBQ_NODE\" "
             "-f '%s/examples/move.sql' \"$JOBQ_SERVER\" >/dev/null 2>&1",
             getenv("JOBQ_SERVER_DIR"), getenv("PWD"));
    assert_int_not_equal(system(command), 0);
    run_on(0, "DROP SCHEMA jq5");
    assert_int_equal(number_on(1, "SELECT count(*) FROM jq5.queue WHERE paused_at IS NOT NULL"), 0);
    assert_int_equal(number_on(1, "SELECT count(*) FROM pg_namespace WHERE nspname ~ 'moved'"), 0);
}

/* ---- setup ----------------------------------------------------------------------------------- */

static int up(void **state)
{
    (void)state;
    test_process = getpid();
    all = shared(sizeof *all);
    all->keys = getenv("JOBQ_TEST_LONG") != NULL ? KEYS_MAX : 600;
    db = PQconnectdb(server());
    return getenv("JOBQ_NODE") == NULL;
}

static int down(void **state)
{
    (void)state;
    PQfinish(db);
    return 0;
}

static int empty(void **state)
{
    jobq_pg *made;
    jobq_pg_error error;
    int i, node;
    char text[200];

    (void)state;
    end_child();
    memset(all->node_of, 0, sizeof all->node_of);
    all->misled = all->produced = all->put_off = all->slowly = all->until = 0;
    for (node = 0; node < 2; node++) {
        run_on(node, "SET client_min_messages = error; DROP TABLE IF EXISTS effect, heard; "
                     "CREATE TABLE effect (key int); CREATE TABLE heard (key int)");
        for (i = 0; i < SCHEMAS; i++) {
            snprintf(text, sizeof text, "SET client_min_messages = error; "
                     "DROP SCHEMA IF EXISTS jq%d CASCADE; DROP SCHEMA IF EXISTS jq%d_moved CASCADE",
                     i, i);
            run_on(node, text);
        }
    }
    for (i = 0; i < SCHEMAS; i++) {
        all->node_of[i] = i % 2;
        made = open_schema(i);
        if (jobq_pg_migrate(made, &error) != JOBQ_OK ||
            jobq_pg_outbox_register(made, NULL, "news", 2, NULL, &error) != JOBQ_OK)
            fail_msg("%s", error.message);
        jobq_pg_close(made);
    }
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, empty, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_killed_server_loses_and_repeats_nothing),
        TEST(a_frozen_server_delays_only_itself),
        TEST(also_where_all_threads_could_hang),
        TEST(also_with_a_time_limit),
        TEST(a_schema_moves_by_a_dump),
        TEST(a_schema_moves_by_replication),
        TEST(a_move_that_fails_moves_nothing),
    };

    return cmocka_run_group_tests(tests, up, down);
}
