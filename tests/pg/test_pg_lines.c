/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The SQL of lines, claim by claim on connections that hold their transactions open: limits under
 * concurrent claims, strict order, who locks what, rates, weights, walks, and how jobs come into
 * their lines and leave them. test_pg_limits has the same with real workers.
 */
#include "pg.h"

enum { MANY = 64 };

static PGconn *a, *b; /* claims on these may stay open */
static int64_t last_claim;

static int up(void **state)
{
    if (pg_up(state)) return 1;
    a = PQconnectdb(server());
    b = PQconnectdb(server());
    PQclear(PQexec(a, "SET lock_timeout = '5s'"));
    PQclear(PQexec(b, "SET lock_timeout = '5s'"));
    return PQstatus(a) != CONNECTION_OK || PQstatus(b) != CONNECTION_OK;
}

static int down(void **state)
{
    PQfinish(a);
    PQfinish(b);
    return pg_down(state);
}

static int fresh(void **state)
{
    if (pg_empty(state)) return 1;
    RUN("SELECT jobq.queue_set('q', kinds => '{k}')");
    register_worker(7, 600 * SECOND);
    register_worker(8, 600 * SECOND);
    return 0;
}

static int leave(void **state)
{
    (void)state;
    if (PQtransactionStatus(a) != PQTRANS_IDLE) PQclear(PQexec(a, "ROLLBACK"));
    if (PQtransactionStatus(b) != PQTRANS_IDLE) PQclear(PQexec(b, "ROLLBACK"));
    return 0;
}

/* ---- claims ---------------------------------------------------------------------------------- */

/* What a claim of lined lanes got, and where its walk ended. */
typedef struct got {
    int count, walks;
    jobq_job jobs[MANY];
    int64_t after, due_us; /* due_us 0: NULL */
} got;

/* May be called by a thread: it fails no test. */
static jobq_error claim_of(PGconn *conn, int64_t worker, int64_t claim, int limit, int quantum,
                           const jobq_lane *lanes, int count, got *g, jobq_pg_error *error)
{
    verb_call *v = verb_new(JOBQ_REQUEST_CLAIM);
    jobq_request *r = &v->request;
    const jobq_claimed *c = &v->answer.claimed;
    jobq_error code;

    memset(g, 0, sizeof *g);
    r->worker = worker;
    r->claim = claim;
    r->limit = limit;
    r->quantum = quantum;
    r->every_kind = r->look = true;
    r->bytes = INT64_MAX;
    r->lane_count = count;
    memcpy(r->lanes, lanes, (size_t)count * sizeof *lanes);
    code = verb_run(v, pg, conn, error);
    if (code != JOBQ_OK) return verb_end(v, code);
    g->count = c->count < MANY ? c->count : MANY;
    memcpy(g->jobs, c->jobs, (size_t)g->count * sizeof *c->jobs);
    g->walks = c->walk_count;
    g->after = c->walks[0].after;
    g->due_us = c->walks[0].due_us;
    return verb_end(v, JOBQ_OK);
}

static jobq_lane lane_of(const char *queue, int priority, int stage, bool lined, int64_t after)
{
    jobq_lane lane;

    memset(&lane, 0, sizeof lane);
    lane.queue = (int32_t)number("SELECT id FROM jobq.queue WHERE name = '%s'", queue);
    lane.priority = (int16_t)priority;
    lane.stage = (int16_t)stage;
    lane.lined = lined;
    lane.after_at_us = INT64_MIN;
    lane.after_id = after;
    return lane;
}

/* Of one or two lanes of one queue. */
static got claim_lanes(PGconn *conn, int64_t worker, int limit, int quantum,
                       const jobq_lane *lanes, int count)
{
    jobq_pg_error error;
    got g;

    if (claim_of(conn, worker, ++last_claim, limit, quantum, lanes, count, &g, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    assert_int_equal(g.walks, 1);
    return g;
}

static got claim_after(PGconn *conn, int64_t worker, int limit, int quantum, int64_t after)
{
    jobq_lane lanes[2] = {lane_of("q", 0, 0, true, after), lane_of("q", 0, 0, false, 0)};

    return claim_lanes(conn, worker, limit, quantum, lanes, 2);
}

static got claim_lines(PGconn *conn, int64_t worker, int limit)
{
    return claim_after(conn, worker, limit, MANY, INT64_MIN);
}

static int64_t put(const char *line)
{
    jobq_pg_job job = plain_job();

    job.line = line;
    return enqueue_with(&job);
}

static void put_some(const char *line, int count)
{
    while (count-- > 0) put(line);
}

static void succeeds(PGconn *conn, const jobq_job *job)
{
    assert_int_equal(settle_on(conn, job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
}

static void line_set(const char *settings)
{
    RUN("SELECT jobq.line_set('q', 'a', %s)", settings);
}

/* The jobs of a line that run. */
static long running(void) { return number("SELECT count(*) FROM jobq.job WHERE state = 'x'"); }

/* The first arguments of a claim of one lane, after its limit. */
#define LANE                                                                                       \
    "ARRAY(SELECT id FROM jobq.queue WHERE name = 'q'), '{0}', '{0}', '{-infinity}', "             \
    "'{-9223372036854775808}', "

/* How many jobs the function claim takes with these arguments. */
static long taken(const char *arguments)
{
    return number("SELECT count(id) FROM jobq._claim(8, %lld, 10, %s)", (long long)++last_claim,
                  arguments);
}

/* The SQLSTATE of a statement; "" if nothing is wrong. */
static const char *refused(const char *generic)
{
    static char code[6];
    char *text = for_schema(generic, schema);
    PGresult *res = PQexec(db, text);
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);

    snprintf(code, sizeof code, "%s", state != NULL ? state : "");
    PQclear(res);
    free(text);
    return code;
}

/* The worker 7 dies; how many jobs it had. */
static int32_t dies(void)
{
    RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 hour' WHERE id = 7");
    return rescue(7);
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* A second claim, while the first has not committed, passes the line by; it does not wait. */
static void two_claims_at_once_share_a_limit(void **unused)
{
    got g;

    (void)unused;
    put_some("a", 5);
    line_set("running_max => 2");
    PQclear(sql(a, "BEGIN"));
    assert_int_equal(claim_lines(a, 7, MANY).count, 2);
    g = claim_lines(b, 8, MANY);
    assert_int_equal(g.count, 0);
    assert_true(g.due_us > 0);
    PQclear(sql(a, "COMMIT"));
    assert_int_equal(claim_lines(b, 8, MANY).count, 0);
    assert_int_equal(running(), 2);
}

/* Sends a claim of the lined lane, without waiting for it. */
static void claim_is_sent(PGconn *conn, int64_t worker, int limit)
{
    char text[400], *own;

    snprintf(text, sizeof text,
             "SELECT id FROM jobq._claim(%lld, %lld, %d, ARRAY(SELECT id FROM jobq.queue), '{0}', "
             "'{0}', '{-infinity}', '{-9223372036854775808}', NULL, false, false, true, false, "
             "p_lined => '{t}', p_quantum => 10) WHERE id IS NOT NULL",
             (long long)worker, (long long)++last_claim, limit);
    own = for_schema(text, schema);
    assert_int_equal(PQsendQuery(conn, own), 1);
    free(own);
}

/* From now on a claim waits between its first look at lines and the lock of their rows. */
static void claims_wait_to_lock(void)
{
    RUN("CREATE FUNCTION jobq.claim_waits(jobq.walk) RETURNS void LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM pg_advisory_lock(4711), pg_advisory_unlock(4711); END $$");
    PQclear(sql(functions_at(), "SELECT pg_advisory_lock(4711)"));
    RUN("ALTER FUNCTION jobq._lines_ready RENAME TO lines_ready_before");
    RUN("CREATE FUNCTION jobq._lines_ready(w jobq.walk, r jobq.room[], t timestamptz[], i bigint[])"
        " RETURNS bigint[] LANGUAGE plpgsql AS $$ "
        "DECLARE nos bigint[] := jobq.lines_ready_before(w, r, t, i); BEGIN "
        "PERFORM jobq.claim_waits(w); RETURN nos; END $$");
}

/* One claim waits; others do not. */
static void one_waits(void)
{
    int waits;

    do {
        PGresult *res = sql(functions_at(), "SELECT FROM pg_locks WHERE locktype = 'advisory' "
                                            "AND objid = 4711 AND NOT granted");

        waits = PQntuples(res);
        PQclear(res);
        nap_us(1000);
    } while (waits == 0);
    RUN("CREATE OR REPLACE FUNCTION jobq.claim_waits(jobq.walk) RETURNS void LANGUAGE plpgsql AS "
        "$$ BEGIN END $$");
}

/* It goes on; how many jobs it takes. */
static int it_takes(PGconn *conn)
{
    PGresult *res;
    int count;

    PQclear(sql(functions_at(), "SELECT pg_advisory_unlock(4711)"));
    res = PQgetResult(conn);
    assert_int_equal(PQresultStatus(res), PGRES_TUPLES_OK);
    count = PQntuples(res);
    PQclear(res);
    PQclear(PQgetResult(conn));
    RUN("DROP FUNCTION jobq._lines_ready");
    RUN("ALTER FUNCTION jobq.lines_ready_before RENAME TO _lines_ready");
    RUN("DROP FUNCTION jobq.claim_waits");
    return count;
}

/* The row of the line is counted anew once it is locked: what another claim has committed since the
 * statement began is seen. */
static void a_limit_is_counted_under_the_lock(void **unused)
{
    (void)unused;
    put_some("a", 5);
    line_set("running_max => 2");
    claims_wait_to_lock();
    claim_is_sent(b, 8, 5);
    one_waits();
    assert_int_equal(claim_lines(a, 7, MANY).count, 2);
    assert_int_equal(it_takes(b), 0);
    assert_int_equal(running(), 2);
}

/* So is what has ended since. */
static void room_is_counted_under_the_lock(void **unused)
{
    got g;

    (void)unused;
    put_some("a", 5);
    line_set("running_max => 2");
    g = claim_lines(a, 7, 1);
    claims_wait_to_lock();
    claim_is_sent(b, 8, 5);
    one_waits();
    succeeds(NULL, &g.jobs[0]);
    assert_int_equal(it_takes(b), 2);
    assert_int_equal(running(), 2);
}

/* A limit that is set while a claim is under way counts for it, too. */
static void a_limit_that_comes_before_the_lock_is_kept(void **unused)
{
    (void)unused;
    put_some("a", 5);
    line_set("running_max => 4");
    claims_wait_to_lock();
    claim_is_sent(b, 8, 5);
    one_waits();
    line_set("running_max => 1");
    assert_int_equal(it_takes(b), 1);
}

/* Where a caller keeps one snapshot for all of its transaction, a claim fails, or takes less. */
static void an_old_snapshot_passes_no_limit(void **unused)
{
    jobq_lane lane = lane_of("q", 0, 0, true, INT64_MIN);
    jobq_pg_error error;
    got g, late;

    (void)unused;
    put_some("a", 5);
    line_set("running_max => 2");
    PQclear(sql(b, "BEGIN ISOLATION LEVEL REPEATABLE READ"));
    PQclear(sql(b, "SELECT count(*) FROM jobq.job"));
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 2);
    assert_int_not_equal(claim_of(b, 8, ++last_claim, 5, 5, &lane, 1, &late, &error), JOBQ_OK);
    assert_string_equal(error.sqlstate, "40001");
    PQclear(sql(b, "ROLLBACK"));
    PQclear(sql(b, "BEGIN ISOLATION LEVEL REPEATABLE READ"));
    PQclear(sql(b, "SELECT count(*) FROM jobq.job"));
    succeeds(NULL, &g.jobs[0]);
    assert_int_equal(claim_lines(b, 8, MANY).count, 0);
    PQclear(sql(b, "ROLLBACK"));
    assert_int_equal(claim_lines(b, 8, MANY).count, 1);
}

/* A line has jobs of several priorities, and a claim walks through the lines of each. */
static void the_lanes_of_a_claim_share_a_limit(void **unused)
{
    static const char *const limits[] = {"running_max => 3", "strict => true",
                                         "rate => '1/h', rate_burst => 3"};
    static const int most[] = {3, 1, 3};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(limits); i++) {
        jobq_lane lanes[2];
        RUN("DELETE FROM jobq.job");
        RUN("DELETE FROM jobq.line");
        RUN("SELECT jobq.enqueue('q', 'k', line => 'a', priority => n %% 2) "
            "FROM generate_series(1, 4) n");
        line_set(limits[i]);
        lanes[0] = lane_of("q", 0, 0, true, INT64_MIN);
        lanes[1] = lane_of("q", 1, 0, true, INT64_MIN);
        assert_int_equal(claim_lanes(a, 7, MANY, MANY, lanes, 2).count, most[i]);
    }
}

/* Ends of all kinds make room. None of them waits for the row of the line, or locks it. */
static void what_ends_a_job_makes_room_and_locks_no_line(void **unused)
{
    static const jobq_event_kind ends[] = {
        JOBQ_EVENT_SUCCESS, JOBQ_EVENT_DISCARD, JOBQ_EVENT_CANCELLED, JOBQ_EVENT_RELEASE,
        JOBQ_EVENT_RETRY, JOBQ_EVENT_SNOOZE, JOBQ_EVENT_PARK};
    size_t i;

    (void)unused;
    put_some("a", 20);
    line_set("running_max => 1");
    for (i = 0; i < COUNT(ends); i++) {
        got g = claim_lines(a, 7, MANY);
        assert_int_equal(g.count, 1);
        PQclear(sql(b, "BEGIN"));
        PQclear(sql(b, "SELECT FROM jobq.line FOR UPDATE"));
        assert_int_equal(settle_on(a, &g.jobs[0], ends[i], NULL), JOBQ_OK);
        PQclear(sql(b, "COMMIT"));
    }
    assert_int_equal(claim_lines(a, 7, MANY).count, 1);
}

static void a_suspect_and_a_dead_workers_job_keep_their_place(void **unused)
{
    got g;
    jobq_job again;

    (void)unused;
    put_some("a", 3);
    line_set("running_max => 1");
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 1);
    RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 hour' WHERE id = 7");
    assert_int_equal(claim_lines(a, 8, MANY).count, 0); /* it may still run */
    assert_int_equal(rescue(7), 1);
    assert_int_equal(claim_lines(a, 8, MANY).count, 0);
    again = claim_one(8, ++last_claim, true);
    assert_int_equal(again.id, g.jobs[0].id);
    assert_int_equal(claim_lines(a, 8, MANY).count, 0);
    succeeds(NULL, &again);
    assert_int_equal(claim_lines(a, 8, MANY).count, 1);
}

static void operators_make_room_too(void **unused)
{
    got g;

    (void)unused;
    RUN("SELECT jobq.queue_set('other', kinds => '{k}')");
    put_some("a", 4);
    line_set("running_max => 1");
    g = claim_lines(a, 7, MANY);
    assert_int_equal(jobq_pg_change(pg, NULL, ONE(g.jobs[0].id + 1),
                                    &(jobq_pg_changes){.target = "other"}, NULL, NULL), JOBQ_OK);
    assert_int_equal(jobq_pg_delete(pg, NULL, ONE(g.jobs[0].id + 2), NULL, NULL), JOBQ_OK);
    succeeds(NULL, &g.jobs[0]);
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job j JOIN jobq.queue q ON q.id = "
                            "j.queue_id WHERE q.name = 'other' AND j.line_name = 'a'"), 1);
}

/* Connection a gives up after five seconds. */
static void nobody_but_claims_waits_for_a_line(void **unused)
{
    static const char *const does[] = {
        "SELECT jobq.cancel(%lld)", "SELECT jobq.delete(%lld)", "SELECT jobq.move(%lld, 'other')",
        "SELECT jobq.reschedule(%lld, now() + interval '1 hour')",
        "SELECT jobq.prioritize(%lld, 3)", "SELECT jobq._set_aside(%lld, 0, 'too large')",
        "SELECT jobq.revive(%lld - 1)"};
    int64_t first = put("a");
    size_t i;

    (void)unused;
    RUN("SELECT jobq.queue_set('other', kinds => '{k}')");
    put_some("a", 10);
    line_set("running_max => 1");
    assert_int_equal(claim_lines(a, 7, MANY).jobs[0].id, first);
    PQclear(sql(b, "BEGIN"));
    PQclear(sql(b, "SELECT FROM jobq.line FOR UPDATE"));
    for (i = 0; i < COUNT(does); i++) PQclear(sql(a, does[i], (long long)first + 1 + (long long)i));
    PQclear(sql(a, "SELECT jobq.enqueue('q', 'k', line => 'a')"));
    PQclear(sql(a, "SELECT jobq.cancel(%lld)", (long long)first));
    RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 hour' WHERE id = 7");
    PQclear(sql(a, "SELECT jobq._rescue(7, beat, 10) FROM jobq.worker WHERE id = 7"));
    PQclear(sql(a, "SELECT jobq.prune(1000)"));
    PQclear(sql(b, "COMMIT"));
    assert_int_equal(claim_lines(a, 8, MANY).count, 1);
    PQclear(sql(b, "BEGIN"));
    PQclear(sql(b, "SELECT FROM jobq.line FOR UPDATE"));
    PQclear(sql(a, "SELECT jobq._recover(8, %lld, 10)", (long long)last_claim));
    PQclear(sql(b, "COMMIT"));
    assert_int_equal(claim_lines(a, 8, MANY).count, 1);
}

static void ends_in_one_line_do_not_wait_for_each_other(void **unused)
{
    got g;

    (void)unused;
    put_some("a", 5);
    line_set("running_max => 3");
    g = claim_lines(a, 7, MANY);
    PQclear(sql(a, "BEGIN"));
    PQclear(sql(b, "BEGIN"));
    succeeds(a, &g.jobs[0]);
    succeeds(b, &g.jobs[1]);
    assert_int_equal(settle_on(a, &g.jobs[2], JOBQ_EVENT_RETRY, "x"), JOBQ_OK);
    PQclear(sql(b, "COMMIT"));
    assert_int_equal(claim_lines(b, 8, MANY).count, 1); /* the other two have not ended yet */
    PQclear(sql(a, "COMMIT"));
    assert_int_equal(claim_lines(b, 8, MANY).count, 1);
}

static void jobs_that_run_count_for_a_limit_that_is_new(void **unused)
{
    static const char *const limits[] = {
        "SELECT jobq.line_set('q', 'a', running_max => 1)",
        "SELECT jobq.queue_set('q', line_running_max => 1)",
        "SELECT jobq.queue_set('q', line_strict => true)"};
    size_t i;

    for (i = 0; i < COUNT(limits); i++) {
        got g;
        assert_int_equal(fresh(unused), 0);
        put_some("a", 3);
        g = claim_lines(a, 7, 1);
        RUN("%s", limits[i]);
        assert_int_equal(claim_lines(a, 8, MANY).count, 0);
        succeeds(NULL, &g.jobs[0]);
        assert_int_equal(claim_lines(a, 8, MANY).count, 1);
    }
}

/* The limit is newer than the death of the worker. */
static void a_suspect_counts_for_a_limit_that_is_new(void **unused)
{
    static const char *const limits[] = {
        "SELECT jobq.line_set('q', 'a', running_max => 1)",
        "SELECT jobq.queue_set('q', line_running_max => 1)",
        "SELECT jobq.queue_set('q', line_strict => true)"};
    size_t i;

    for (i = 0; i < COUNT(limits); i++) {
        jobq_job again;
        assert_int_equal(fresh(unused), 0);
        put_some("a", 3);
        assert_int_equal(claim_lines(a, 7, 1).count, 1);
        assert_int_equal(dies(), 1);
        RUN("%s", limits[i]);
        assert_int_equal(claim_lines(a, 8, MANY).count, 0);
        again = claim_one(8, ++last_claim, true);
        assert_int_equal(claim_lines(a, 8, MANY).count, 0);
        assert_int_equal(number("SELECT jobq.audit()"), 0);
        succeeds(NULL, &again);
        assert_int_equal(claim_lines(a, 8, MANY).count, 1);
    }
}

/* To another queue, or to another line by an enqueue with its key. */
static void a_suspect_that_moves_counts_where_it_goes(void **unused)
{
    jobq_lane lane;

    (void)unused;
    RUN("SELECT jobq.queue_set('q', line_running_max => 1)");
    RUN("SELECT jobq.queue_set('other', kinds => '{k}', line_running_max => 1)");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'a', key => 'one')");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'c')");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'b'), jobq.enqueue('other', 'k', line => 'c')");
    RUN("UPDATE jobq.job SET run_at = now() + interval '1 hour', line = NULL "
        "WHERE line_name = 'b' OR queue_id <> (SELECT id FROM jobq.queue WHERE name = 'q')");
    assert_int_equal(claim_after(a, 7, MANY, 1, INT64_MIN).count, 2);
    assert_int_equal(dies(), 2);
    RUN("SELECT jobq.enqueue('q', 'k', line => 'b', key => 'one', on_known => 'replace')");
    RUN("SELECT jobq.move(id, 'other') FROM jobq.job WHERE suspect AND line_name = 'c'");
    RUN("UPDATE jobq.job SET run_at = now(), line = jobq._line_no(line_name) WHERE NOT suspect");
    assert_int_equal(claim_lines(a, 8, MANY).count, 0);
    lane = lane_of("other", 0, 0, true, INT64_MIN);
    assert_int_equal(claim_lanes(a, 8, MANY, MANY, &lane, 1).count, 0);
}

/* A suspect that comes into a line which is full, paused, held or out of tokens waits for it. */
static void a_suspect_waits_for_its_line(void **unused)
{
    static const char *const stops[] = {"running_max => 1", "strict => true", "rate => '1/h'",
                                        "paused => true"};
    jobq_job runs, again;
    size_t i;

    for (i = 0; i < COUNT(stops); i++) {
        assert_int_equal(fresh(unused), 0);
        RUN("SELECT jobq.enqueue('q', 'k', line => 'b', key => 'one')");
        assert_int_equal(claim_lines(a, 7, MANY).count, 1);
        assert_int_equal(dies(), 1);
        put("a");
        if (i < 3) line_set(stops[i]);
        runs = claim_lines(a, 8, MANY).jobs[0];
        line_set(stops[i]);
        RUN("SELECT jobq.enqueue('q', 'k', line => 'a', key => 'one', on_known => 'replace')");
        assert_int_equal(taken(LANE "NULL, true, false, true, false"), 0);
        if (i == 3) line_set("paused => false");
        else if (i == 2) RUN("UPDATE jobq.line SET free_at = now() - interval '1 h'");
        else succeeds(NULL, &runs);
        again = claim_one(8, ++last_claim, true);
        assert_int_equal(again.line, runs.line);
        put("a");
        assert_int_equal(claim_lines(a, 8, MANY).count, i == 3);
        succeeds(NULL, &again);
    }
}

/* ---- strict lines ---------------------------------------------------------------------------- */

static void a_strict_line_runs_in_order(void **unused)
{
    int64_t first;
    int i;

    (void)unused;
    first = put("a");
    put_some("a", 3);
    line_set("strict => true");
    for (i = 0; i < 4; i++) {
        got g = claim_lines(a, 7, MANY);
        assert_int_equal(g.count, 1);
        assert_int_equal(g.jobs[0].id, first + i);
        assert_int_equal(claim_lines(b, 8, MANY).count, 0);
        succeeds(NULL, &g.jobs[0]);
    }
}

/* The job that has begun keeps the line while it waits for its next attempt, however long. */
static void a_strict_line_waits_for_a_retry(void **unused)
{
    got g;
    int64_t first = put("a");

    (void)unused;
    put_some("a", 2);
    line_set("strict => true");
    g = claim_lines(a, 7, MANY);
    assert_int_equal(settle_with(&g.jobs[0], JOBQ_EVENT_RETRY, "x"), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE id = %lld AND line IS NULL "
                            "AND run_at > now()", (long long)first), 1);
    assert_int_equal(claim_lines(b, 8, MANY).count, 0);
    RUN("UPDATE jobq.job SET run_at = now() WHERE id = %lld", (long long)first);
    g = claim_lines(b, 8, MANY);
    if (g.count == 0) g = claim_lines(b, 8, MANY); /* the first one moved it into its line */
    assert_int_equal(g.count, 1);
    assert_int_equal(g.jobs[0].id, first);
    succeeds(NULL, &g.jobs[0]);
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.jobs[0].id, first + 1);
}

/* It has begun anew, and those that stood behind it are before it now. */
static void a_job_that_is_revived_stands_at_the_end_of_its_strict_line(void **unused)
{
    int64_t first = put("a");
    got g;

    (void)unused;
    put_some("a", 1);
    line_set("strict => true");
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.jobs[0].id, first);
    assert_int_equal(settle_with(&g.jobs[0], JOBQ_EVENT_DISCARD, "x"), JOBQ_OK);
    RUN("SELECT jobq.revive(%lld)", (long long)first);
    g = claim_lines(b, 8, MANY);
    assert_int_equal(g.count, 1);
    assert_int_equal(g.jobs[0].id, first + 1);
    succeeds(NULL, &g.jobs[0]);
    assert_int_equal(claim_lines(b, 8, MANY).jobs[0].id, first);
}

/* While somebody else has the first job locked, nobody gets the second one. */
static void the_head_of_a_strict_line_is_not_skipped(void **unused)
{
    int64_t first = put("a");

    (void)unused;
    put_some("a", 2);
    line_set("strict => true");
    PQclear(sql(b, "BEGIN"));
    PQclear(sql(b, "SELECT FROM jobq.job WHERE id = %lld FOR UPDATE", (long long)first));
    assert_int_equal(claim_lines(a, 7, MANY).count, 0);
    PQclear(sql(b, "COMMIT"));
    assert_int_equal(claim_lines(a, 7, MANY).jobs[0].id, first);
}

/* A suspect does: neither its worker's death, nor its next attempt, lets another one begin. */
static void a_suspect_keeps_its_strict_line(void **unused)
{
    int64_t first = put("a");
    jobq_job again;
    got g;

    (void)unused;
    put_some("a", 2);
    line_set("strict => true");
    assert_int_equal(claim_lines(a, 7, MANY).count, 1);
    assert_int_equal(dies(), 1);
    assert_int_equal(claim_lines(a, 8, MANY).count, 0);
    again = claim_one(8, ++last_claim, true);
    assert_int_equal(again.id, first);
    assert_int_equal(claim_lines(a, 8, MANY).count, 0);
    assert_int_equal(settle_with(&again, JOBQ_EVENT_RETRY, "x"), JOBQ_OK);
    assert_int_equal(claim_lines(a, 8, MANY).count, 0);
    RUN("UPDATE jobq.job SET run_at = now(), suspect = false, line = jobq._line_no('a') "
        "WHERE id = %lld", (long long)first);
    g = claim_lines(a, 8, MANY);
    assert_int_equal(g.count, 1);
    assert_int_equal(g.jobs[0].id, first);
}

/* Who has no handler for the first job's kind gets none of the line. */
static void a_strict_line_waits_for_who_can_run_its_head(void **unused)
{
    (void)unused;
    line_set("strict => true");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'a')");
    RUN("SELECT jobq.enqueue('q', 'l', line => 'a')");
    assert_int_equal(taken(LANE "ARRAY(SELECT id FROM jobq.kind WHERE name = 'l'), false, false, "
                           "true, false, p_lined => '{t}', p_quantum => 5"), 0);
    assert_int_equal(taken(LANE "ARRAY(SELECT id FROM jobq.kind WHERE name = 'k'), false, false, "
                           "true, false, p_lined => '{t}', p_quantum => 5"), 1);
}

/* The job that has begun is found where it stands now, and nothing elsewhere is taken meanwhile. */
static void a_strict_line_is_held_from_another_lane(void **unused)
{
    jobq_lane lanes[2] = {lane_of("q", 0, 0, true, INT64_MIN), lane_of("q", 3, 0, true, INT64_MIN)};
    int64_t first = put("a");
    got g;

    (void)unused;
    put_some("a", 2);
    line_set("strict => true");
    g = claim_lines(a, 7, MANY);
    assert_int_equal(settle_with(&g.jobs[0], JOBQ_EVENT_RELEASE, NULL), JOBQ_OK);
    RUN("SELECT jobq.prioritize(%lld, 3)", (long long)first);
    assert_int_equal(claim_lanes(a, 7, MANY, MANY, lanes, 1).count, 0);
    g = claim_lanes(a, 7, MANY, MANY, lanes, 2);
    assert_int_equal(g.count, 1);
    assert_int_equal(g.jobs[0].id, first);
}

static void a_strict_line_is_held_through_all_stages(void **unused)
{
    jobq_lane lanes[2] = {lane_of("q", 0, 1, true, INT64_MIN), lane_of("q", 0, 0, true, INT64_MIN)};
    got g;

    (void)unused;
    line_set("strict => true");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'a', stages => 2) FROM generate_series(1, 2)");
    g = claim_lanes(a, 7, MANY, MANY, lanes, 2);
    assert_int_equal(g.count, 1);
    assert_int_equal(settle_with(&g.jobs[0], JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    assert_int_equal(claim_lanes(a, 7, MANY, MANY, lanes + 1, 1).count, 0);
    g = claim_lanes(a, 7, MANY, MANY, lanes, 2);
    assert_int_equal(g.count, 1);
    assert_int_equal(g.jobs[0].stage, 1);
    succeeds(NULL, &g.jobs[0]);
    g = claim_lanes(a, 7, MANY, MANY, lanes, 2);
    assert_int_equal(g.count, 1);
    assert_int_equal(g.jobs[0].stage, 0);
}

/* However it ends or leaves, the next one begins. */
static void a_strict_line_goes_on_without_its_job(void **unused)
{
    static const char *const ends[] = {"SELECT jobq.cancel(%lld)", "SELECT jobq.delete(%lld)",
                                       "SELECT jobq.move(%lld, 'other')"};
    size_t i;

    (void)unused;
    RUN("SELECT jobq.queue_set('other', kinds => '{k}')");
    put_some("a", COUNT(ends) + 1);
    line_set("strict => true");
    for (i = 0; i < COUNT(ends); i++) {
        got g = claim_lines(a, 7, MANY);
        assert_int_equal(g.count, 1);
        assert_int_equal(settle_with(&g.jobs[0], JOBQ_EVENT_RETRY, "x"), JOBQ_OK);
        assert_int_equal(claim_lines(a, 7, MANY).count, 0);
        PQclear(sql(db, ends[i], (long long)g.jobs[0].id));
    }
    assert_int_equal(claim_lines(a, 7, MANY).count, 1);
}

/* What the server says to a job that runs in its own attempt 1, and begins to wait: for a job, or
 * for the end of a flow. "": it waits. */
static const char *waits_for(const jobq_job *job, int64_t parent, int64_t flow)
{
    static char message[300];
    char generic[400], *text;
    PGresult *res;

    snprintf(generic, sizeof generic, "SELECT jobq._wait_here(%lld, %lld, %lld, 0::smallint, 0, 0, "
             "false, NULL, ARRAY[nullif(%lld, 0)], '{NULL}', ARRAY[nullif(%lld, 0)], '{any}')",
             (long long)job->worker, (long long)job->claim, (long long)job->id,
             (long long)parent, (long long)flow);
    text = for_schema(generic, schema);
    res = PQexec(db, text);
    free(text);
    snprintf(message, sizeof message, "%s", PQresultErrorMessage(res));
    PQclear(res);
    return message;
}

static void expect_refusal(const char *message, const char *words)
{
    if (strstr(message, words) == NULL) fail_msg("%s, not: %s", words, message);
}

static void is_explained(int64_t id, const char *wanted)
{
    have_all_kinds();
    assert_string_equal(text_of("SELECT string_agg(reason, ',') FROM jobq.explain_job(%lld)",
                                (long long)id), wanted);
}

/* The first job of a strict line keeps it until its end. So it cannot wait for one behind it: not
 * for that itself, nor for one that waits for that, nor for the flow of that. */
static void the_head_of_a_strict_line_waits_for_none_behind_it(void **unused)
{
    int64_t first = put("a"), second = put("a"), flow;
    jobq_job head, other;
    char words[120];

    (void)unused;
    line_set("strict => true");
    head = claim_lines(a, 7, 1).jobs[0];
    assert_int_equal(head.id, first);
    snprintf(words, sizeof words, "must not name job %lld: it is behind job %lld in a strict line",
             (long long)second, (long long)first);
    expect_refusal(waits_for(&head, second, 0), words);
    expect_refusal(waits_for(&head, second, 0), "Give it no line, or another one.");
    RUN("SELECT jobq.enqueue('q', 'k')");
    other = claim_one(8, ++last_claim, false);
    assert_string_equal(waits_for(&other, second, 0), "");
    expect_refusal(waits_for(&head, other.id, 0), "must not name a job that waits for job");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'a', flow => jobq.flow())");
    flow = number("SELECT max(id) FROM jobq.flow");
    expect_refusal(waits_for(&head, 0, flow), "must not name a job that waits for job");
    assert_int_equal(number("SELECT count(*) FROM jobq.edge WHERE child = %lld",
                            (long long)first), 0);
    assert_string_equal(waits_for(&head, put("b"), 0), "");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* One that comes to stand behind it later is not refused, but both say what is wrong. */
static void two_jobs_that_wait_for_each_other_say_so(void **unused)
{
    int64_t first = put("a"), second;
    const char *circle = "that waits for this job itself, so neither ends: cancel one of them";
    jobq_job head;
    char text[300];

    (void)unused;
    line_set("strict => true");
    RUN("SELECT jobq.queue_set('other', kinds => '{k}')");
    second = number("SELECT jobq.enqueue('other', 'k', line => 'a')");
    head = claim_lines(a, 7, 1).jobs[0];
    assert_string_equal(waits_for(&head, second, 0), "");
    snprintf(text, sizeof text, "it waits for the end of job %lld", (long long)second);
    is_explained(first, text);
    RUN("SELECT jobq.move(%lld, 'q')", (long long)second);
    snprintf(text, sizeof text, "it waits for the end of job %lld,%s", (long long)second, circle);
    is_explained(first, text);
    snprintf(text, sizeof text, "its line is full: job %lld,job %lld: it waits for the end of job "
             "%lld,job %lld: %s", (long long)first, (long long)first, (long long)second,
             (long long)first, circle);
    is_explained(second, text);
    assert_int_equal(claim_lines(a, 7, MANY).count, 0);
    RUN("SELECT jobq.cancel(%lld)", (long long)first);
    assert_int_equal(claim_lines(a, 7, MANY).jobs[0].id, second);
}

/* A strict line waits for a signal with its first job; those behind it say so. */
static void a_strict_line_waits_for_a_signal(void **unused)
{
    int64_t first = put("a"), second = put("a");
    char text[200];
    got g;

    (void)unused;
    line_set("strict => true");
    g = claim_lines(a, 7, 1);
    RUN("SELECT jobq._signal_of_claim(7, %lld, %lld, 's', 3600000000)", (long long)g.jobs[0].claim,
        (long long)first);
    g.jobs[0].attempt = 1;
    assert_int_equal(settle_with(&g.jobs[0], JOBQ_EVENT_SNOOZE, NULL), JOBQ_OK);
    RUN("UPDATE jobq.job SET run_at = now() + interval '1 hour' WHERE id = %lld",
        (long long)first);
    assert_int_equal(claim_lines(b, 8, MANY).count, 0);
    snprintf(text, sizeof text, "its line is full: job %lld,job %lld: it waits for the signal 's'",
             (long long)first, (long long)first);
    is_explained(second, text);
    RUN("SELECT jobq.signal('s')");
    g = claim_lines(b, 8, MANY);
    if (g.count == 0) g = claim_lines(b, 8, MANY); /* the first one moved it into its line */
    assert_int_equal(g.jobs[0].id, first);
}

/* ---- rates, weights, pauses ------------------------------------------------------------------ */

static void a_rate_gives_its_burst_and_then_one_after_the_other(void **unused)
{
    got g;

    (void)unused;
    put_some("a", 20);
    line_set("rate => '1/h', rate_burst => 3");
    assert_int_equal(claim_lines(a, 7, MANY).count, 3);
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 0);
    assert_true(g.due_us > 3500 * SECOND && g.due_us <= 3600 * SECOND);
    RUN("UPDATE jobq.line SET free_at = free_at - interval '1 hour'");
    assert_int_equal(claim_lines(a, 7, MANY).count, 1);
    RUN("UPDATE jobq.line SET free_at = free_at - interval '10 hours'"); /* no more than a burst */
    assert_int_equal(claim_lines(a, 7, MANY).count, 3);
    RUN("UPDATE jobq.line SET free_at = now() + interval '1 day'"); /* the clock went back */
    assert_int_equal(claim_lines(a, 7, MANY).count, 3);
}

/* After each pause exactly what a bucket of three tokens, one an hour, holds: so never more than
 * three and one an hour in any time. */
static void a_rate_gives_what_its_bucket_holds(void **unused)
{
    enum { TOKEN_S = 3600, BURST = 3 };
    jobq_random random = {9};
    long now = 0, free_at = -BURST * TOKEN_S;
    int i;

    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k', line => 'a') FROM generate_series(1, 300)");
    line_set("rate => '1/h', rate_burst => 3");
    for (i = 0; i < 60; i++) {
        long pause = TOKEN_S / 4 * (long)(jobq_random_next(&random) % 12);
        long most = 1 + (long)(jobq_random_next(&random) % 4), wanted;
        RUN("UPDATE jobq.line SET free_at = free_at - interval '%ld s'", pause);
        now += pause;
        if (free_at < now - BURST * TOKEN_S) free_at = now - BURST * TOKEN_S;
        wanted = (now - free_at) / TOKEN_S < most ? (now - free_at) / TOKEN_S : most;
        free_at += wanted * TOKEN_S;
        assert_int_equal(claim_lines(a, 7, (int)most).count, wanted);
    }
}

static void a_rate_that_changes_counts_at_once(void **unused)
{
    got g;

    (void)unused;
    put_some("a", 20);
    line_set("rate => '1/h'");
    assert_int_equal(claim_lines(a, 7, MANY).count, 1);
    RUN("UPDATE jobq.line SET free_at = free_at - interval '15 min'");
    assert_int_equal(claim_lines(a, 7, MANY).count, 0);
    line_set("rate => '6/h'");
    assert_int_equal(claim_lines(a, 7, MANY).count, 1); /* burst is 1 */
    RUN("UPDATE jobq.line SET free_at = free_at - interval '15 min'");
    line_set("rate => '1/day'");
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 0);
    assert_true(g.due_us > 23 * 3600 * SECOND && g.due_us <= 24 * 3600 * SECOND);
    line_set("rate_burst => 2"); /* of the last day and before it: none is left over */
    assert_int_equal(claim_lines(a, 7, MANY).count, 0);
    line_set("rate => '0'");
    assert_int_equal(claim_lines(a, 7, 5).count, 5);
}

/* What the line has of its own wins; 0 lifts what the queue has. */
static void a_line_differs_from_its_queue(void **unused)
{
    (void)unused;
    put_some("a", 20);
    RUN("SELECT jobq.queue_set('q', line_running_max => 1)");
    line_set("running_max => 3");
    assert_int_equal(claim_lines(a, 7, MANY).count, 3);
    line_set("running_max => 0");
    assert_int_equal(claim_lines(a, 7, 4).count, 4);
    RUN("SELECT jobq.queue_set('q', line_running_max => 0, line_strict => true)");
    assert_int_equal(claim_lines(a, 7, 4).count, 0);
    line_set("strict => false");
    assert_int_equal(claim_lines(a, 7, 4).count, 4);
    RUN("SELECT jobq.queue_set('q', line_strict => false, line_rate => '1/day')");
    line_set("rate => '0'");
    assert_int_equal(claim_lines(a, 7, 4).count, 4);
    line_set("reset => true");
    assert_int_equal(claim_lines(a, 7, 4).count, 1);
    assert_int_equal(claim_lines(a, 7, 4).count, 0);
}

static void reset_drops_all_that_a_line_has(void **unused)
{
    (void)unused;
    line_set("running_max => 2, weight => 7, strict => true, rate => '5/s', rate_burst => 4, "
             "paused => true, hold => '1 hour'");
    RUN("SELECT jobq.hold('q', 'a', now() + interval '1 day', 'why')");
    line_set("weight => 5");
    assert_int_equal(number("SELECT count(*) FROM jobq.line WHERE running_max = 2 AND weight = 5 "
                            "AND strict AND rate_count = 5 AND rate_us = 1000000 AND "
                            "rate_burst = 4 AND paused_at IS NOT NULL AND hold_why = 'why'"), 1);
    line_set("reset => true, running_max => 9");
    assert_int_equal(number("SELECT count(*) FROM jobq.line WHERE running_max = 9 AND weight = 1 "
                            "AND num_nonnulls(strict, rate_count, rate_us, rate_burst, paused_at, "
                            "hold_until, hold_why) = 0"), 1);
}

static int of_a(const got *g)
{
    int i, count = 0;

    for (i = 0; i < g->count; i++) {
        count += number("SELECT (line_name = 'a')::int FROM jobq.job WHERE id = %lld",
                        (long long)g->jobs[i].id) == 1;
    }
    return count;
}

/* A visit to b gives two jobs, and one to a gives up to six. */
static void weights_count_in_each_visit(void **unused)
{
    int64_t b_no;
    got g;

    (void)unused;
    put_some("a", 30);
    put_some("b", 30);
    line_set("weight => 3");
    b_no = number("SELECT line FROM jobq.job WHERE line_name = 'b' LIMIT 1");
    g = claim_after(a, 7, 4, 2, b_no);
    assert_int_equal(g.count, 4);
    assert_int_equal(of_a(&g), 4);
}

/* The same on average, if a claim takes less than a visit gives. */
static void weights_count_in_small_claims(void **unused)
{
    int64_t after = INT64_MIN;
    int i, count = 0;

    (void)unused;
    put_some("a", 200);
    put_some("b", 200);
    line_set("weight => 3");
    PQclear(sql(a, "SELECT setseed(0.5)"));
    for (i = 0; i < 200; i++) {
        got g = claim_after(a, 7, 1, 1, after);
        assert_int_equal(g.count, 1);
        count += of_a(&g);
        after = g.after;
    }
    assert_in_range(count, 130, 170); /* 150 */
}

static void nothing_comes_from_a_paused_or_held_line(void **unused)
{
    got g;

    (void)unused;
    put_some("a", 2);
    line_set("paused => true");
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count + (g.due_us != 0), 0);
    line_set("paused => false, hold => '1 hour'");
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 0);
    assert_true(g.due_us > 3500 * SECOND);
    line_set("hold => '0'");
    assert_int_equal(claim_lines(a, 7, MANY).count, 2);
}

/* ---- walks ----------------------------------------------------------------------------------- */

/* Turns go round: a walk begins after the line at which the one before has stopped. */
static void walks_go_round(void **unused)
{
    long seen = 0;
    int64_t after = INT64_MIN;
    int i;

    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k', line => 'l' || n %% 5) FROM generate_series(1, 20) n");
    for (i = 0; i < 10; i++) {
        got g = claim_after(a, 7, 2, 1, after);
        assert_int_equal(g.count, 2);
        assert_true(g.jobs[0].line != g.jobs[1].line);
        assert_true(g.after == g.jobs[0].line || g.after == g.jobs[1].line);
        after = g.after;
        if (i == 4) seen = number("SELECT min(n) * 10 + max(n) FROM (SELECT count(*) AS n FROM "
                                  "jobq.job WHERE state = 'x' GROUP BY line_name) AS lines");
    }
    assert_int_equal(seen, 22); /* after 10 of 20 jobs, two of each line */
}

/* One claim visits no more than 500 lines; the next one goes on. */
static void a_claim_visits_few_lines(void **unused)
{
    got g;
    int claims = 1;

    (void)unused;
    RUN("SELECT jobq.queue_set('q', line_rate => '1/day')");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'l' || n) FROM generate_series(1, 1200) n");
    RUN("INSERT INTO jobq.line (queue_id, no, name, free_at) SELECT queue_id, line, line_name, "
        "now() FROM jobq.job WHERE line <> (SELECT max(line) FROM jobq.job)");
    for (g = claim_lines(a, 7, MANY); g.count == 0; claims++) {
        assert_int_equal(g.due_us, 1);
        g = claim_after(a, 7, MANY, MANY, g.after);
    }
    assert_int_equal(claims, 3);
    assert_true(g.jobs[0].line == number("SELECT max(line) FROM jobq.job"));
}

/* Which give less than their share, so that the claim asks more of them. None has a row yet. */
static void a_claim_takes_from_many_new_lines(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', line_running_max => 1)");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'l' || n) FROM generate_series(1, 2 * %d) n", MANY);
    assert_int_equal(claim_lines(a, 7, MANY).count, MANY);
    assert_int_equal(claim_lines(a, 7, MANY).count, MANY);
}

/* A walk begins after the smallest of all numbers, and ends with the largest. */
static void the_first_and_the_last_number_are_reached(void **unused)
{
    int64_t afters[] = {INT64_MIN, 0, INT64_MAX, INT64_MIN + 1};
    size_t i;

    (void)unused;
    assert_int_equal(number("SELECT count(*) FROM generate_series(1, 2000) n WHERE "
                            "jobq._line_no(n::text) IN (0, -9223372036854775808)"), 0);
    for (i = 0; i < COUNT(afters); i++) {
        RUN("DELETE FROM jobq.job");
        put("a");
        put("b");
        RUN("UPDATE jobq.job SET line = CASE line_name WHEN 'a' THEN 9223372036854775807 "
            "ELSE -9223372036854775807 END");
        assert_int_equal(claim_after(a, 7, MANY, MANY, afters[i]).count, 2);
    }
}

/* The soonest of the lines that were passed by; a paused one opens when somebody says so. */
static void the_answer_says_when_a_line_opens(void **unused)
{
    got g;

    (void)unused;
    put_some("a", 2);
    put_some("b", 2);
    put("c");
    RUN("SELECT jobq.line_set('q', 'a', hold => '1 hour')");
    RUN("SELECT jobq.line_set('q', 'b', rate => '1/20 min')");
    RUN("SELECT jobq.line_set('q', 'c', paused => true)");
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 1);
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 0);
    assert_true(g.due_us > 19 * 60 * SECOND && g.due_us <= 20 * 60 * SECOND);
    RUN("SELECT jobq.line_set('q', 'a', hold => '5 min')");
    g = claim_lines(a, 7, MANY);
    assert_true(g.due_us > 4 * 60 * SECOND && g.due_us <= 5 * 60 * SECOND);
    RUN("DELETE FROM jobq.job WHERE line_name <> 'c'");
    assert_int_equal(claim_lines(a, 7, MANY).due_us, 0);
    RUN("SELECT jobq.line_set('q', 'c', paused => false, running_max => 1)");
    put("c");
    assert_int_equal(claim_lines(a, 7, MANY).count, 1);
    g = claim_lines(a, 7, MANY); /* a full one, just in case: nothing tells when its job ends */
    assert_true(g.due_us > 0 && g.due_us <= 60 * SECOND);
}

/* A walk for each queue with a lane of lines, whether it gave jobs or not. */
static void the_answer_has_a_walk_for_each_queue(void **unused)
{
    static const char two[] =
        "SELECT coalesce(max(cardinality(walks)), 0) FROM jobq._claim(8, %lld, %d, "
        "ARRAY(SELECT id FROM jobq.queue ORDER BY name), '{0,0}', '{0,0}', "
        "'{-infinity,-infinity}', '{0,0}', NULL, false, false, false, false, %s, %s, 5) c "
        "WHERE id IS NULL AND walks[1] > 0 AND walks[2] IS NOT NULL";

    (void)unused;
    RUN("SELECT jobq.queue_set('r', kinds => '{k}')");
    put("a");
    assert_int_equal(number(two, (long long)++last_claim, 10, "NULL", "'{t,t}'"), 2 * 3);
    assert_int_equal(number(two, (long long)++last_claim, 10, "NULL", "'{t,t}'"), 2 * 3);
    assert_int_equal(number(two, (long long)++last_claim, 10, "NULL", "'{t,f}'"), 1 * 3);
    assert_int_equal(number(two, (long long)++last_claim, 10, "NULL", "'{f,t}'"), 1 * 3);
    assert_int_equal(number(two, (long long)++last_claim, 10, "NULL", "NULL"), 0);
    put("a");
    assert_int_equal(number(two, (long long)++last_claim, 10, "0", "'{t,t}'"), 0);
}

/* ---- into lines and out of them -------------------------------------------------------------- */

/* Jobs that are not due stand in their lanes. The claim that finds them due moves them; so does one
 * of a worker that knows of no lines, and neither takes them from there. */
static void jobs_line_up_when_they_are_due(void **unused)
{
    verb_batch batch;
    got g;

    (void)unused;
    line_set("running_max => 1");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'a', delay => '1 hour') FROM generate_series(1, 3)");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE line IS NULL"), 3);
    RUN("UPDATE jobq.job SET run_at = now() - interval '1 s'");
    assert_int_equal(claim_by(7, ++last_claim, 10, 0, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 0);
    verb_batch_clear(&batch);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE line IS NOT NULL"), 3);
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 1);
}

/* It moves all that are due, and takes none of them, but those between them that name no line. */
static void a_claim_moves_more_than_it_takes(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k', delay => '1 hour', line => CASE WHEN n %% 4 > 0 THEN "
        "'l' || n END) FROM generate_series(1, 40) n");
    RUN("UPDATE jobq.job SET run_at = now() - interval '1 s'");
    assert_int_equal(taken(LANE "NULL, false, false, true, false"), 2); /* of the first ten */
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE line IS NOT NULL"), 30);
    assert_int_equal(taken(LANE "NULL, false, false, true, false"), 8);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x' AND line_name IS "
                            "NOT NULL"), 0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* A worker that was built before there were lines sends no more than these arguments. Its claims
 * tell workers that know them that the queue has lines. */
static void an_older_library_takes_nothing_from_lines(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', line_running_max => 1)");
    put_some("a", 3);
    put(NULL);
    assert_int_equal(taken(LANE "NULL, false, false, true, false"), 1);
    assert_int_equal(taken(LANE "NULL, false, false, true, false"), 0);
    RUN("UPDATE jobq.queue SET lines = false");
    RUN("UPDATE jobq.job SET line = NULL WHERE line_name = 'a'"); /* as COPY writes them */
    assert_int_equal(taken(LANE "NULL, false, false, true, false"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE line IS NOT NULL"), 3);
    assert_int_equal(number("SELECT count(*) FROM jobq.queue WHERE lines"), 1);
}

/* A ready job stands in its line if it is due, whatever is done to it. */
static void who_is_due_stands_in_a_line(void **unused)
{
    static const struct {
        const char *does;
        long lined;
    } steps[] = {
        {"jobq.reschedule(%lld, now() + interval '1 hour')", 0}, {"jobq.prioritize(%lld, 4)", 0},
        {"jobq.enqueue('q', 'k', key => 'one', on_known => 'bump')", 1},
        {"jobq.reschedule(%lld, now() + interval '1 hour')", 0},
        {"jobq.reschedule(%lld, now() - interval '1 hour')", 1}, {"jobq.prioritize(%lld, 5)", 1},
        {"jobq.enqueue('q', 'k', key => 'one', on_known => 'replace', delay => '1 hour', "
         "line => 'a')", 0},
        {"jobq.move(%lld, 'r')", 0}, {"jobq.reschedule(%lld)", 1}, {"jobq.move(%lld, 's')", 1},
        {"jobq.move(%lld, 'q')", 1},
        {"jobq.enqueue('q', 'k', key => 'one', on_known => 'replace', line => 'b')", 1},
        {"jobq.enqueue('q', 'k', key => 'one', on_known => 'replace')", 0}};
    int64_t id;
    size_t i;

    (void)unused;
    RUN("SELECT jobq.queue_set('r', kinds => '{k}'), jobq.queue_set('s', kinds => '{k}')");
    id = number("SELECT jobq.enqueue('q', 'k', line => 'a', key => 'one')");
    for (i = 0; i < COUNT(steps); i++) {
        char text[300];
        snprintf(text, sizeof text, "SELECT %s", steps[i].does);
        PQclear(sql(db, text, (long long)id));
        if (number("SELECT count(line) FROM jobq.job WHERE id = %lld", (long long)id) !=
            steps[i].lined)
            fail_msg("%s", steps[i].does);
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE line_name IS NULL"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.queue WHERE lines"), 3);
}

/* Also what a worker does to it. */
static void who_waits_stands_in_its_lane(void **unused)
{
    static const struct {
        jobq_event_kind event;
        long lined;
    } ends[] = {{JOBQ_EVENT_RELEASE, 1}, {JOBQ_EVENT_RETRY, 0}, {JOBQ_EVENT_PARK, 0}};
    int64_t id = put("a");
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(ends); i++) {
        got g = claim_lines(a, 7, MANY);
        assert_int_equal(g.count, 1);
        assert_int_equal(settle_with(&g.jobs[0], ends[i].event, "x"), JOBQ_OK);
        assert_int_equal(number("SELECT count(line) FROM jobq.job WHERE id = %lld AND "
                                "line_name = 'a'", (long long)id), ends[i].lined);
        assert_int_equal(number("SELECT jobq.audit()"), 0);
        if (ends[i].event == JOBQ_EVENT_PARK) RUN("SELECT jobq._unpark(id, 10) FROM jobq.kind");
        else RUN("UPDATE jobq.job SET run_at = now() - interval '1 s'");
        taken(LANE "NULL, false, false, true, false");
        assert_int_equal(number("SELECT count(line) FROM jobq.job"), 1);
    }
}

static void names_have_1_to_1024_bytes(void **unused)
{
    static const struct {
        const char *name, *code;
    } names[] = {{"''", "22023"},
                 {"repeat('x', 1025)", "22023"},
                 {"repeat(U&'\\00E9', 513)", "22023"},
                 {"'x'", ""},
                 {"repeat('x', 1024)", ""},
                 {"repeat(U&'\\00E9', 512)", ""}};
    static const char *const takes[] = {
        "SELECT jobq.enqueue('q', 'k', line => %s)",
        "SELECT jobq.enqueue('q', 'k', line => %s, key => md5(random()::text))",
        "SELECT jobq.enqueue('q', 'k', line => %s, delay => '1 day')",
        "SELECT jobq._enqueue_many('q', '{k}', NULL, '{1,2}', p_lines => ARRAY[NULL, %s])",
        "SELECT jobq.line_set('q', %s, weight => 2)",
        "SELECT jobq.hold('q', %s, now() + interval '1 day')"};
    size_t i, k;

    (void)unused;
    for (i = 0; i < COUNT(names); i++) {
        for (k = 0; k < COUNT(takes); k++) {
            char text[300];
            snprintf(text, sizeof text, takes[k], names[i].name);
            if (strcmp(refused(text), names[i].code) != 0) fail_msg("%s", text);
        }
    }
    assert_string_equal(refused("SELECT jobq.line_set('q', NULL, weight => 2)"), "22023");
    assert_string_equal(refused("SELECT jobq.line_set('q', 'a', rate => '1/day', "
                                "rate_burst => 1000001)"), "22023"); /* since before Christ */
    assert_string_equal(refused("SELECT jobq.queue_set('q', line_rate_burst => 1000001)"), "22023");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 5 * 3);
}

/* Those count that are due and have not begun: not those that run, come later, or exist. */
static void a_full_line_takes_no_more(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', line_waiting_max => 3)");
    assert_string_equal(refused("SELECT jobq._enqueue_many('q', '{k}', NULL, '{1,2,3,4}', "
                                "p_lines => '{a,a,a,a}')"), "JQ005");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    RUN("SELECT jobq._enqueue_many('q', '{k}', NULL, '{1,2,3,4,5}', p_lines => '{a,b,a,b,a}', "
        "p_keys => '{one}')");
    assert_string_equal(refused("SELECT jobq.enqueue('q', 'k', line => 'a')"), "JQ005");
    assert_string_equal(refused("SELECT jobq.enqueue('q', 'k', line => 'a', priority => -3)"),
                        "JQ005");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'a', key => 'one')");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'a', delay => '1 hour')");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'b'), jobq.enqueue('q', 'k')");
    assert_int_equal(claim_lines(a, 7, 1).count, 1);
    RUN("SELECT jobq.enqueue('q', 'k', line => line_name) FROM jobq.job WHERE state = 'x'");
    assert_string_equal(refused("SELECT jobq.enqueue('q', 'k', line => 'a')"), "JQ005");
    assert_string_equal(refused("SELECT jobq.enqueue('q', 'k', line => 'b')"), "JQ005");
}

static void the_lines_name_outlives_the_job(void **unused)
{
    got g;
    int64_t id = put("a");

    (void)unused;
    g = claim_lines(a, 7, MANY);
    assert_int_equal(settle_with(&g.jobs[0], JOBQ_EVENT_DISCARD, "x"), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE line_name = 'a'"), 1);
    assert_int_equal(jobq_pg_revive(pg, NULL, ONE(id), NULL, NULL), JOBQ_OK);
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 1);
    succeeds(NULL, &g.jobs[0]);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE line_name = 'a'"), 1);
}

/* Names with one number share their line, and nothing gets stuck. */
static void two_names_with_one_number_share_a_line(void **unused)
{
    got g;

    (void)unused;
    put("a");
    put("b");
    RUN("UPDATE jobq.job SET line = jobq._line_no('a')");
    line_set("strict => true");
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 1);
    succeeds(NULL, &g.jobs[0]);
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 1);
    succeeds(NULL, &g.jobs[0]);
}

/* ---- what it costs, and housekeeping --------------------------------------------------------- */

static void enqueue_writes_nothing_for_a_line(void **unused)
{
    (void)unused;
    put_some("a", 3);
    assert_int_equal(number("SELECT count(*) FROM jobq.line"), 0);
    claim_lines(a, 7, MANY); /* no limit: no row */
    assert_int_equal(number("SELECT count(*) FROM jobq.line"), 0);
    RUN("SELECT jobq.queue_set('q', line_running_max => 5)");
    put_some("a", 3);
    claim_lines(a, 7, MANY);
    assert_int_equal(number("SELECT count(*) FROM jobq.line"), 1);
}

static void rows_that_are_not_needed_go(void **unused)
{
    got g;

    (void)unused;
    RUN("SELECT jobq.queue_set('q', line_running_max => 5)");
    put_some("a", 1);
    put_some("b", 1);
    RUN("SELECT jobq.line_set('q', 'b', weight => 2)");
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 2);
    succeeds(NULL, &g.jobs[0]);
    succeeds(NULL, &g.jobs[1]);
    RUN("UPDATE jobq.line SET used_at = now() - interval '3 days', "
        "free_at = now() - interval '3 days'");
    RUN("SELECT jobq.prune(1000)");
    expect_text("b", "SELECT string_agg(name, ',') FROM jobq.line");
}

/* Nobody misses them: all those that are missing below. */
static void rows_that_are_needed_stay(void **unused)
{
    int64_t first = put(NULL);

    (void)unused;
    put_some(NULL, 2);
    RUN("SELECT jobq.queue_set('rated', line_rate => '1/day', line_rate_burst => 3), "
        "jobq.queue_set('strict', line_strict => true)");
    RUN("UPDATE jobq.job SET state = 'x', worker = 7, claim = 1, claimed_at = now() "
        "WHERE id = %lld", (long long)first);
    RUN("UPDATE jobq.job SET suspect = true WHERE id = %lld", (long long)first + 1);
    RUN("INSERT INTO jobq.line (queue_id, no, name, used_at, free_at) "
        "SELECT q.id, jobq._line_no(u.name), u.name, now() - interval '2 days', "
        "now() - interval '5 days' FROM (VALUES ('q', '{plain,max,weight,strict,rate,burst,"
        "paused,held,was held,today,runs,suspect,ready}'::text[]), ('rated', '{full,spent}'), "
        "('strict', '{begun,over}')) AS v (queue, names) JOIN jobq.queue q ON q.name = v.queue "
        "CROSS JOIN unnest(v.names) AS u (name)");
    RUN("INSERT INTO jobq.line (queue_id, no, name, weight) VALUES (-1, 1, 'deleted', 5)");
    RUN("UPDATE jobq.line SET running_max = CASE name WHEN 'max' THEN 0 END, "
        "weight = CASE name WHEN 'weight' THEN 2 ELSE weight END, "
        "strict = CASE name WHEN 'strict' THEN false END, "
        "rate_count = CASE name WHEN 'rate' THEN 0 END, "
        "rate_burst = CASE name WHEN 'burst' THEN 1 END, "
        "paused_at = CASE name WHEN 'paused' THEN now() END, "
        "hold_until = CASE name WHEN 'held' THEN now() + interval '1 h' "
        " WHEN 'was held' THEN now() END, "
        "used_at = CASE name WHEN 'today' THEN now() - interval '23 h' ELSE used_at END, "
        "free_at = CASE name WHEN 'spent' THEN now() - interval '2 days' ELSE free_at END, "
        "jobs = CASE name WHEN 'runs' THEN ARRAY[%lld] WHEN 'suspect' THEN ARRAY[%lld] "
        " WHEN 'ready' THEN ARRAY[%lld] WHEN 'begun' THEN ARRAY[%lld] ELSE '{}' END::bigint[]",
        (long long)first, (long long)first + 1, (long long)first + 2, (long long)first + 2);
    RUN("SELECT jobq._prune_lines(1000)");
    expect_text("begun,burst,held,max,paused,rate,runs,spent,strict,suspect,today,weight",
                "SELECT string_agg(name, ',' ORDER BY name) FROM jobq.line");
}

/* How often this session has read what belongs to lines; counts since it last reported. */
static long line_reads(void)
{
    return number("SELECT sum(pg_stat_get_xact_numscans(o)) FROM unnest(ARRAY["
                  "'jobq.job_line', 'jobq.line', 'jobq.line_pkey']::regclass[]) o");
}

/* A claim of lanes without lines does what it did before there were lines. */
static void a_claim_without_lines_reads_none(void **unused)
{
    long before;

    (void)unused;
    RUN("SELECT jobq.queue_set('q', line_running_max => 1)");
    put_some("a", 3);
    put_some(NULL, 2);
    RUN("BEGIN");
    before = line_reads();
    assert_int_equal(taken(LANE "NULL, false, false, true, false"), 2);
    assert_int_equal(line_reads(), before);
    assert_int_equal(claim_lines(db, 7, MANY).count, 1);
    assert_true(line_reads() > before);
    RUN("COMMIT");
}

/* ---- the bound of a lane's lines ------------------------------------------------------------- */

/* A claim of jobs from (run_at of the job low, low) on; low 0: from all. */
#define BOUNDED(columns)                                                                           \
    "SELECT " columns " FROM jobq._claim(7, %lld, %d, ARRAY(SELECT id FROM jobq.queue), '{0}', "   \
    "'{0}', ARRAY[coalesce((SELECT j.run_at FROM jobq.job j WHERE j.id = %lld), '-infinity')], "   \
    "'{-9223372036854775808}', %s, false, false, false, false, p_lined => '{t}', "                 \
    "p_quantum => 10, p_low_ids => '{%lld}') c"

/* The bound that a claim answers, if its walk came round; 0: it told of no ready job. */
static int64_t low_after(int64_t low, int limit, bool whole, const char *kinds)
{
    return number(BOUNDED("coalesce(max(c.stretches[7]) FILTER (WHERE c.id IS NULL AND "
                          "c.stretches[6] = (SELECT extract(epoch FROM j.run_at) * 1000000 "
                          "FROM jobq.job j WHERE j.id = c.stretches[7]) "
                          "AND c.stretches[4] = %d), 0)"),
                  (int)whole, (long long)++last_claim, limit, (long long)low, kinds,
                  (long long)(low > 0 ? low : 1));
}

static void a_claim_begins_at_its_bound(void **unused)
{
    int64_t early = put("a"), low = put("a"), last = put("a"), other = put("b");

    (void)unused;
    assert_true(early < low && low < last && last < other);
    assert_int_equal(number(BOUNDED("sum(c.id)"), (long long)++last_claim, 10, (long long)low,
                            "NULL", (long long)low), low + last + other);
    assert_int_equal(low_after(low, 10, true, "NULL"), 0);
    assert_int_equal(low_after(0, 10, true, "NULL"), early);
    put("a");
    low = put("a");
    low_after(low, 1, true, "NULL");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE id = %lld AND state = 'x'",
                            (long long)low), 1);
}

/* A walk that did not come round says so. A library that knows of no bounds is not told. */
static void a_claim_tells_how_far_its_walk_came(void **unused)
{
    int64_t first = put("a");

    (void)unused;
    put("b");
    put("c");
    assert_int_equal(low_after(0, 1, false, "NULL") != 0, true);
    put("a");
    assert_int_equal(number("SELECT count(*) FROM jobq._claim(7, %lld, 10, %s NULL, false, false, "
                            "false, false, p_lined => '{t}', p_quantum => 10) WHERE id IS NULL "
                            "AND stretches IS NULL", (long long)++last_claim, LANE), 1);
    assert_true(number("SELECT count(*) FROM jobq.job WHERE state = 'x' AND id >= %lld",
                       (long long)first) == 4);
}

/* Whatever keeps a line from giving: its ready jobs are not passed by the bound. */
static void no_bound_passes_a_job_that_is_ready(void **unused)
{
    static const char *const closed[] = {
        "SELECT jobq.line_set('q', 'a', running_max => 1)",
        "SELECT jobq.line_set('q', 'a', strict => true)",
        "SELECT jobq.line_set('q', 'a', paused => true)",
        "SELECT jobq.line_set('q', 'a', hold => '1 h')",
        "SELECT jobq.line_set('q', 'a', rate => '1/day')"};
    int64_t waits;
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(closed); i++) {
        fresh(NULL);
        put("a");
        RUN(closed[i]);
        low_after(0, 10, true, "NULL"); /* takes the first, if there is room */
        waits = number("SELECT coalesce(min(id) FILTER (WHERE state = 'r'), 0) FROM jobq.job");
        if (waits == 0) waits = put("a");
        put("b");
        put("a");
        assert_int_equal(low_after(0, 10, true, "NULL"), waits);
        put("b");
        assert_int_equal(low_after(0, 10, true, "NULL"), waits);
        assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE line_name = 'b' AND "
                                "state = 'x'"), 2);
    }
    fresh(NULL);
    RUN("SELECT jobq.line_set('q', 'a', running_max => 1)");
    waits = put("a");
    put("b");
    PQclear(sql(b, "BEGIN"));
    PQclear(sql(b, "SELECT FROM jobq.line WHERE name = 'a' FOR UPDATE"));
    assert_int_equal(low_after(0, 10, true, "NULL"), waits);
    PQclear(sql(b, "COMMIT"));
    put("b");
    assert_int_equal(low_after(0, 10, true, "'{}'"), waits); /* of a kind that it does not take */
}

/* A job that runs for long, or whose time has not come by a clock that ran back, does not keep the
 * bound from moving. */
static void a_bound_passes_jobs_that_are_not_ready(void **unused)
{
    int64_t next;

    (void)unused;
    put("a");
    claim_lines(a, 7, 1);
    next = put("b");
    put("a");
    assert_int_equal(low_after(0, 1, false, "NULL") != 0, true);
    RUN("UPDATE jobq.job SET run_at = run_at + interval '1 hour' WHERE state = 'r'");
    assert_int_equal(low_after(0, 10, true, "NULL"), 0);
    assert_true(next > 0);
}

/* An earlier job may have been committed since: it is the next one all the same. */
static void a_strict_line_gives_its_first_job_whatever_the_bound(void **unused)
{
    int64_t first = put("a"), second;

    (void)unused;
    RUN("SELECT jobq.line_set('q', 'a', strict => true)");
    second = put("a");
    low_after(second, 10, true, "NULL");
    assert_int_equal(number("SELECT id FROM jobq.job WHERE state = 'x'"), first);
}

/* Blocks that one claim of a job of each line reads. */
static long blocks_read(int64_t low)
{
    char text[700], *own, *at;
    PGresult *res;
    long blocks = 0;
    int i;

    snprintf(text, sizeof text, "EXPLAIN (ANALYZE, BUFFERS, TIMING off) " BOUNDED("count(*)"),
             (long long)++last_claim, 10, (long long)low, "NULL", (long long)(low > 0 ? low : 1));
    own = for_schema(text, schema);
    res = PQexec(db, own);
    free(own);
    for (i = 0; i < PQntuples(res) && blocks == 0; i++) {
        at = strstr(PQgetvalue(res, i, 0), "shared hit=");
        if (at != NULL) blocks = strtol(at + strlen("shared hit="), NULL, 10);
    }
    PQclear(res);
    assert_true(blocks > 0);
    return blocks;
}

/* Jobs that have ended cannot be removed while a snapshot is held. With a bound a claim skips
 * them, also in lines in which nothing else is left, and so it does with rows of the table line
 * that were written over. */
static void a_claim_skips_dead_rows_of_a_held_snapshot(void **unused)
{
    static const char load[] =
        "INSERT INTO jobq.job (queue_id, kind_id, payload, line, line_name) "
        "SELECT q.id, k.id, '{}', jobq._line_no(l.name), l.name FROM jobq.queue q, jobq.kind k, "
        "generate_series(1, %d) n CROSS JOIN LATERAL (SELECT 'l' || n %% 10 AS name) l "
        "WHERE q.name = 'q' AND k.queue_id = q.id";
    long clean, dead, bounded;
    int limit, i;

    (void)unused;
    for (limit = 0; limit < 2; limit++) {
        int64_t low;
        fresh(NULL);
        put("l0");
        if (limit == 1) RUN("SELECT jobq.queue_set('q', line_running_max => 10)");
        RUN("DELETE FROM jobq.job");
        RUN(load, 40);
        blocks_read(0);
        clean = blocks_read(0);
        PQclear(sql(b, "BEGIN ISOLATION LEVEL REPEATABLE READ"));
        PQclear(sql(b, "SELECT count(*) FROM jobq.job"));
        for (i = 0; i < 10; i++) {
            RUN("DELETE FROM jobq.job");
            RUN(load, 500);
            if (limit == 1) RUN("UPDATE jobq.line SET used_at = now(), jobs = '{}'");
        }
        RUN("DELETE FROM jobq.job");
        RUN(load, 40);
        low = number("SELECT min(id) FROM jobq.job");
        dead = blocks_read(0);
        bounded = blocks_read(low);
        PQclear(sql(b, "COMMIT"));
        if (dead < 2 * clean || bounded > 2 * clean) {
            fail_msg("limit %d: %ld blocks, beside dead rows %ld, with a bound %ld", limit, clean,
                     dead, bounded);
        }
    }
}

/* A count of those that wait begins with the newest, and ends at dead rows, which are older, after
 * some milliseconds. Here a job is older than they are. */
static void a_count_of_a_line_ends_at_dead_rows(void **unused)
{
    static const char waiting[] = "SELECT jobq._line_waiting(q, 'a', 10) FROM jobq.queue q";
    static const char load[] =
        "INSERT INTO jobq.job (queue_id, kind_id, payload, line, line_name, run_at) "
        "SELECT q.id, k.id, '{}', jobq._line_no('a'), 'a', now() - interval '%s' FROM jobq.queue q "
        "JOIN jobq.kind k ON k.queue_id = q.id, generate_series(1, %d)";

    (void)unused;
    RUN("SELECT jobq.queue_set('q', line_waiting_max => 2)");
    PQclear(sql(b, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT"));
    RUN(load, "1 hour", 200000);
    RUN("DELETE FROM jobq.job");
    assert_true(becomes(10, 1, "SELECT count(*) WHERE pg_stat_get_dead_tuples("
                               "'jobq.job'::regclass) >= 200000"));
    RUN(load, "2 days", 1);
    put("a");
    assert_int_equal(number(waiting), 1);
    PQclear(sql(b, "COMMIT"));
    RUN("VACUUM jobq.job");
    assert_int_equal(number(waiting), 2);
    assert_string_equal(refused("SELECT jobq.enqueue('q', 'k', line => 'a')"), "JQ005");
}

/* ---- many at once ---------------------------------------------------------------------------- */

/* Somebody's transaction with a line_set may last long. */
static void claims_wait_for_no_line_set(void **unused)
{
    got g;

    (void)unused;
    RUN("SELECT jobq.queue_set('q', line_running_max => 1)");
    put("a"); /* has no row yet */
    PQclear(sql(b, "BEGIN"));
    PQclear(sql(b, "SELECT jobq.line_set('q', 'a', weight => 2)"));
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 0);
    assert_true(g.due_us > 0 && g.due_us <= 1000);
    PQclear(sql(b, "COMMIT"));
    assert_int_equal(claim_lines(a, 7, 1).count, 1);
    put("b");
    PQclear(sql(b, "BEGIN"));
    PQclear(sql(b, "SELECT jobq.line_set('q', 'a', weight => 3)"));
    assert_int_equal(claim_lines(a, 7, MANY).count, 1);
    PQclear(sql(b, "COMMIT"));
}

enum { LINES = 5, SESSIONS = 4, JOBS = 400 };

/* What the threads share. The last line is strict; the others run two jobs at once. */
static struct {
    int passed, errors, ended;
    jobq_lane lane;
} all;

typedef struct session {
    PGconn *conn;
    int64_t worker, claim;
    jobq_random random;
} session;

/* How many lines run more than they may, in one snapshot; -1: an error. */
static int lines_passed(PGconn *conn)
{
    char *text = for_schema(
        "SELECT count(*) FROM (SELECT line_name, count(*) AS jobs FROM jobq.job WHERE state = 'x' "
        "GROUP BY line_name) l WHERE jobs > CASE line_name WHEN 'l4' THEN 1 ELSE 2 END", schema);
    PGresult *res = PQexec(conn, text);
    int count = PQresultStatus(res) == PGRES_TUPLES_OK ? atoi(PQgetvalue(res, 0, 0)) : -1;

    PQclear(res);
    free(text);
    return count;
}

/* Three of four jobs end; the others are given back. Sent again as long as some are busy. */
static bool end_at_random(session *s, const got *g)
{
    jobq_policy policy = jobq_policy_defaults(NULL);
    verb_result results[MANY];
    jobq_error answers[MANY], code = JOBQ_OK;
    jobq_event event;
    jobq_pg_error error;
    size_t i, count = (size_t)g->count, busy;

    memset(results, 0, sizeof results);
    memset(&event, 0, sizeof event);
    for (i = 0; i < count; i++) {
        const jobq_job *job = &g->jobs[i];
        event.kind = jobq_random_next(&s->random) % 4 > 0 ? JOBQ_EVENT_SUCCESS
                                                          : JOBQ_EVENT_RELEASE;
        if (event.kind == JOBQ_EVENT_SUCCESS) __atomic_add_fetch(&all.ended, 1, __ATOMIC_SEQ_CST);
        jobq_job_decide(&policy, job, &event, &results[i].decision);
        results[i].id = job->id;
        results[i].worker = job->worker;
        results[i].claim = job->claim;
    }
    while (count > 0 && code == JOBQ_OK) {
        code = verb_settle(pg, s->conn, results, count, answers, &error);
        for (i = busy = 0; i < count && code == JOBQ_OK; i++) {
            if (answers[i] == JOBQ_ERROR_BUSY) results[busy++] = results[i];
            else code = answers[i];
        }
        count = busy;
    }
    return code == JOBQ_OK;
}

static void *claims_and_ends(void *arg)
{
    session *s = (session *)arg;
    int round, rounds = check_slow() ? 20 : 150;

    for (round = 0; round < rounds; round++) {
        int most = 1 + (int)(jobq_random_next(&s->random) % 6);
        jobq_pg_error error;
        bool fine;
        got g;

        fine = claim_of(s->conn, s->worker, ++s->claim, most, 2, &all.lane, 1, &g, &error) ==
               JOBQ_OK;
        if (lines_passed(s->conn) != 0) __atomic_add_fetch(&all.passed, 1, __ATOMIC_SEQ_CST);
        fine = fine && end_at_random(s, &g);
        if (!fine) __atomic_add_fetch(&all.errors, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

/* No deadlock, no limit passed, nothing lost. */
static void many_claim_and_end_in_few_lines(void **unused)
{
    pthread_t threads[SESSIONS];
    session sessions[SESSIONS];
    int i;

    (void)unused;
    memset(&all, 0, sizeof all);
    memset(sessions, 0, sizeof sessions);
    RUN("SELECT jobq.queue_set('q', line_running_max => 2)");
    RUN("SELECT jobq.line_set('q', 'l4', strict => true)");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'l' || n %% %d) FROM generate_series(1, %d) n",
        LINES, JOBS);
    all.lane = lane_of("q", 0, 0, true, INT64_MIN);
    for (i = 0; i < SESSIONS; i++) {
        sessions[i].conn = PQconnectdb(server());
        sessions[i].worker = 20 + i;
        sessions[i].random = (jobq_random){(uint64_t)i + 1};
        register_worker(20 + i, 600 * SECOND);
    }
    for (i = 0; i < SESSIONS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, claims_and_ends, &sessions[i]), 0);
    for (i = 0; i < SESSIONS; i++) {
        pthread_join(threads[i], NULL);
        PQfinish(sessions[i].conn);
    }
    assert_int_equal(all.errors, 0);
    assert_int_equal(all.passed, 0);
    assert_true(all.ended > 20);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), JOBS - all.ended);
    assert_int_equal(running(), 0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh, leave)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(two_claims_at_once_share_a_limit),
        TEST(a_limit_is_counted_under_the_lock),
        TEST(room_is_counted_under_the_lock),
        TEST(a_limit_that_comes_before_the_lock_is_kept),
        TEST(an_old_snapshot_passes_no_limit),
        TEST(the_lanes_of_a_claim_share_a_limit),
        TEST(what_ends_a_job_makes_room_and_locks_no_line),
        TEST(a_suspect_and_a_dead_workers_job_keep_their_place),
        TEST(operators_make_room_too),
        TEST(nobody_but_claims_waits_for_a_line),
        TEST(ends_in_one_line_do_not_wait_for_each_other),
        TEST(jobs_that_run_count_for_a_limit_that_is_new),
        TEST(a_suspect_counts_for_a_limit_that_is_new),
        TEST(a_suspect_that_moves_counts_where_it_goes),
        TEST(a_suspect_waits_for_its_line),
        TEST(a_strict_line_runs_in_order),
        TEST(a_strict_line_waits_for_a_retry),
        TEST(a_job_that_is_revived_stands_at_the_end_of_its_strict_line),
        TEST(the_head_of_a_strict_line_is_not_skipped),
        TEST(a_suspect_keeps_its_strict_line),
        TEST(a_strict_line_waits_for_who_can_run_its_head),
        TEST(a_strict_line_is_held_from_another_lane),
        TEST(a_strict_line_is_held_through_all_stages),
        TEST(a_strict_line_goes_on_without_its_job),
        TEST(the_head_of_a_strict_line_waits_for_none_behind_it),
        TEST(two_jobs_that_wait_for_each_other_say_so),
        TEST(a_strict_line_waits_for_a_signal),
        TEST(a_rate_gives_its_burst_and_then_one_after_the_other),
        TEST(a_rate_gives_what_its_bucket_holds),
        TEST(a_rate_that_changes_counts_at_once),
        TEST(a_line_differs_from_its_queue),
        TEST(reset_drops_all_that_a_line_has),
        TEST(weights_count_in_each_visit),
        TEST(weights_count_in_small_claims),
        TEST(nothing_comes_from_a_paused_or_held_line),
        TEST(walks_go_round),
        TEST(a_claim_visits_few_lines),
        TEST(a_claim_takes_from_many_new_lines),
        TEST(the_first_and_the_last_number_are_reached),
        TEST(the_answer_says_when_a_line_opens),
        TEST(the_answer_has_a_walk_for_each_queue),
        TEST(jobs_line_up_when_they_are_due),
        TEST(a_claim_moves_more_than_it_takes),
        TEST(an_older_library_takes_nothing_from_lines),
        TEST(who_is_due_stands_in_a_line),
        TEST(who_waits_stands_in_its_lane),
        TEST(names_have_1_to_1024_bytes),
        TEST(a_full_line_takes_no_more),
        TEST(the_lines_name_outlives_the_job),
        TEST(two_names_with_one_number_share_a_line),
        TEST(enqueue_writes_nothing_for_a_line),
        TEST(rows_that_are_not_needed_go),
        TEST(rows_that_are_needed_stay),
        TEST(a_claim_begins_at_its_bound),
        TEST(a_claim_tells_how_far_its_walk_came),
        TEST(no_bound_passes_a_job_that_is_ready),
        TEST(a_bound_passes_jobs_that_are_not_ready),
        TEST(a_strict_line_gives_its_first_job_whatever_the_bound),
        TEST(a_claim_skips_dead_rows_of_a_held_snapshot),
        TEST(a_count_of_a_line_ends_at_dead_rows),
        TEST(a_claim_without_lines_reads_none),
        TEST(claims_wait_for_no_line_set),
        TEST(many_claim_and_end_in_few_lines)};

    return cmocka_run_group_tests_name("lines", tests, up, down);
}
