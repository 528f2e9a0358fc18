/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * No heartbeat and no claim waits for a person: every verb of operators and producers in a
 * transaction that stays open for longer than a lease, beside a worker with all that there is.
 * Promises 1, 2, 5.
 *
 * tests/pg/locks.sql has the cases, each with a queue of its own. One transaction holds the locks
 * of all of them.
 *
 *   test_pg_locks [NUMBER]   only this case
 */
#include "pg_work.h"

#define LEASE (6 * SECOND) /* shorter ones lapse on a busy machine */
#define STARTS 10000
#define WAITS 20

static int ending, starts[STARTS]; /* of each job, by its id */
static int deliveries;
static PGconn *person;
static char waits[WAITS][500]; /* what was seen to wait for the person */
static int wait_count, worker_count;
static const char *only = "NULL";

/* -- the worker -- */

static void counts(const jobq_call *call)
{
    if (call->job.id < STARTS) ADD(starts[call->job.id]);
}

static jobq_outcome quick(jobq_call *call)
{
    counts(call);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome ends(jobq_call *call)
{
    counts(call);
    while (!GET(ending)) nap_us(50000);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Tells how far it is until the locks are gone. */
static jobq_outcome lasts(jobq_call *call)
{
    int permille = 0;

    counts(call);
    for (; !GET(gate); nap_us(200000)) {
        jobq_call_progress(call, permille, jobq_str_from("on its way"), false);
        permille = (permille + 1) % 1000;
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_result hears(jobq_delivery *d, const jobq_message *m)
{
    (void)d;
    (void)m;
    ADD(deliveries);
    return JOBQ_RESULT_SUCCESS;
}

#define KINDS 4

static void start_worker(const char *const *queues, int count)
{
    static const char *const kinds[KINDS] = {"quick", "ends", "long", "parked"};
    static const jobq_handler run[KINDS] = {quick, ends, lasts, quick};
    jobq_pg_handler h[JOBQ_LOOP_QUEUES * KINDS];
    jobq_pg_receiver r[JOBQ_LOOP_QUEUES];
    jobq_pg_worker_desc d = work_of(h, (size_t)count * KINDS);
    int i;

    memset(r, 0, sizeof r);
    for (i = 0; i < count * KINDS; i++)
        h[i] = handler_of(queues[i / KINDS], kinds[i % KINDS], run[i % KINDS]);
    for (i = 0; i < count; i++) {
        r[i].queue = queues[i];
        r[i].each = hears;
    }
    d.receivers = r;
    d.receiver_count = (size_t)count;
    d.loop.lease_us = LEASE;
    d.loop.threads = 6 * count;
    d.loop.heartbeat_us = SECOND / 2;
    d.loop.prune_us = 3 * SECOND;
    start(&d);
    worker_count++;
}

/* Each serves some of the cases' queues, and those that are nobody's case. */
static void start_workers(void)
{
    PGresult *res = sql(db, "SELECT queue FROM jobq.lock_case ORDER BY place");
    const char *queues[JOBQ_LOOP_QUEUES] = {"free", "target"};
    int i, count = 2;

    for (i = 0; i < PQntuples(res); i++) {
        queues[count++] = PQgetvalue(res, i, 0);
        if (count < JOBQ_LOOP_QUEUES && i + 1 < PQntuples(res)) continue;
        start_worker(queues, count);
        count = 2;
    }
    PQclear(res);
}

/* -- the person -- */

static char *cases_file(void)
{
    FILE *file = fopen("tests/pg/locks.sql", "r");
    char *text = calloc(1, 100000);

    if (file == NULL)
        fail_msg("tests/pg/locks.sql cannot be read: run this in the project's folder");
    assert_true(fread(text, 1, 99999, file) < 99999);
    fclose(file);
    return text;
}

static void set_scene(void)
{
    char *generic = cases_file(), *text = for_schema(generic, schema);
    PGresult *res = PQexec(db, text);

    if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK)
        fail_msg("%s", PQerrorMessage(db));
    PQclear(res);
    free(generic);
    free(text);
    RUN("DELETE FROM jobq.lock_case WHERE place <> %s", only);
    RUN("SELECT jobq.queue_set('target'), jobq.outbox_register('target', 1)");
    RUN("SELECT jobq.lock_scene('free', true)");
    RUN("SELECT jobq.lock_scene(queue, verbs && '{queue_set(text)}') FROM jobq.lock_case");
    RUN("SELECT jobq.lock_victim()");
}

/* Does what the cases say, in a transaction that stays open. */
static void takes_locks(bool last)
{
    PGresult *res = sql(db, "SELECT queue, replace(statement, '@', queue) FROM jobq.lock_case"
                            " WHERE last = %s ORDER BY place", last ? "true" : "false");
    int i;

    for (i = 0; i < PQntuples(res); i++) {
        if (getenv("JOBQ_TEST_SHOW") != NULL)
            printf("%s: %s\n", PQgetvalue(res, i, 0), PQgetvalue(res, i, 1));
        PQclear(sql(person, "SELECT %s", PQgetvalue(res, i, 1)));
    }
    PQclear(res);
}

/* Notes what has waited for the person for longer than it takes to give up. */
static void look_for_waits(void)
{
    PGresult *res = sql(
        db, "SELECT left(a.query, 300) || ' | ' || l.locktype || ' ' || coalesce(("
            "SELECT string_agg(DISTINCT t.relation::regclass::text, ' ') FROM pg_locks t"
            " WHERE t.pid = a.pid AND t.locktype = 'tuple'), '')"
            " FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid"
            " WHERE NOT l.granted AND l.waitstart < clock_timestamp() - interval '0.4 s'"
            " AND %d = ANY (pg_blocking_pids(l.pid))", PQbackendPID(person));
    int i, k;

    for (i = 0; i < PQntuples(res); i++) {
        for (k = 0; k < wait_count && strcmp(waits[k], PQgetvalue(res, i, 0)) != 0;) k++;
        if (k == wait_count && k < WAITS)
            snprintf(waits[wait_count++], sizeof waits[0], "%s", PQgetvalue(res, i, 0));
    }
    PQclear(res);
}

static void nothing_waited(void)
{
    int i;

    for (i = 0; i < wait_count; i++) printf("waited for a person: %s\n", waits[i]);
    fflush(stdout);
    assert_int_equal(wait_count, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE id <> 7 AND dead_at IS NULL"
                            " AND expires_at > now()"), worker_count);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE id <> 7"), worker_count);
}

/* Jobs, messages and ends of jobs go on for longer than a lease. */
static void holds_locks(bool last)
{
    int64_t until = mono_us() + LEASE + SECOND;
    int i;

    for (i = 0; mono_us() < until; i++) {
        if (i == 10) SET(ending, 1);
        if (i % 20 == 0)
            RUN("SELECT jobq.lock_meanwhile(q.name, %s) FROM jobq.queue q"
                " WHERE q.name <> 'target'", last ? "false" : "true");
        look_for_waits();
        nap_us(50000);
    }
    nothing_waited();
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.live_jobs WHERE queue = 'free'"
                               " AND payload ->> 'n' IN ('meanwhile', 'ends', 'parked')"));
    all_hear();
    nothing_waited();
}

/* -- the tests -- */

static void a_verb_that_locks_has_a_case(void **unused)
{
    (void)unused;
    if (strcmp(only, "place") != 0) skip();
    expect_text("", "SELECT coalesce(string_agg(verb, ' '), '') FROM jobq.lock_lacks");
}

static void no_worker_waits_for_a_person(void **unused)
{
    int i;

    (void)unused;
    person = PQconnectdb(server());
    PQclear(sql(person, "BEGIN; SELECT FROM jobq.job WHERE payload ->> 'n' = 'parked' AND queue_id"
                        " IN (SELECT id FROM jobq.queue WHERE name <> 'free') FOR UPDATE"));
    start_workers(); /* with each heartbeat they look for those that are parked */
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.live_jobs"
                               " WHERE kind IN ('ends', 'long') AND state = 'ready'"));
    RUN("SELECT jobq.lock_follower(queue) FROM jobq.lock_case");
    takes_locks(false);
    RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 s' WHERE id = 7");
    holds_locks(false);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE id = 7 AND dead_at IS NULL"),
                     0);
    takes_locks(true);
    holds_locks(true);
    PQclear(sql(person, "COMMIT"));
    PQfinish(person);
    SET(gate, 1);
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.live_jobs WHERE state = 'running'"));
    for (i = 0; i < STARTS; i++) {
        if (GET(starts[i]) > 1) fail_msg("job %d ran %d times", i, GET(starts[i]));
    }
    RUN("SELECT jobq.prune(1000)");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static int set_up(void **state)
{
    int code = pg_up(state);

    set_scene();
    return code;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_verb_that_locks_has_a_case),
        cmocka_unit_test_teardown(no_worker_waits_for_a_person, all_stop),
    };

    only = argc > 1 ? argv[1] : "place";
    return cmocka_run_group_tests_name("locks", tests, set_up, pg_down);
}
