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

/* What a claim of the lined lane got, and where its walk ended. */
typedef struct got {
    int count;
    jobq_job jobs[MANY];
    int64_t after, due_us; /* due_us 0: NULL */
} got;

static got claim_after(PGconn *conn, int64_t worker, int limit, int quantum, int64_t after)
{
    verb_call *v = verb_new(JOBQ_REQUEST_CLAIM);
    jobq_request *r = &v->request;
    const jobq_claimed *c = &v->answer.claimed;
    jobq_pg_error error;
    got g;

    memset(&g, 0, sizeof g);
    r->worker = worker;
    r->claim = ++last_claim;
    r->limit = limit;
    r->quantum = quantum;
    r->every_kind = r->look = true;
    r->bytes = INT64_MAX;
    r->lane_count = 2;
    r->lanes[0].queue = (int32_t)number("SELECT id FROM jobq.queue WHERE name = 'q'");
    r->lanes[1].queue = r->lanes[0].queue;
    r->lanes[0].after_at_us = r->lanes[1].after_at_us = INT64_MIN;
    r->lanes[0].lined = true;
    r->lanes[0].after_id = after;
    if (verb_run(v, pg, conn, &error) != JOBQ_OK) fail_msg("%s", error.message);
    assert_true(c->count <= MANY && c->walk_count == 1);
    g.count = c->count;
    memcpy(g.jobs, c->jobs, (size_t)c->count * sizeof *c->jobs);
    g.after = c->walks[0].after;
    g.due_us = c->walks[0].due_us;
    verb_end(v, JOBQ_OK);
    return g;
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
             "SELECT id FROM jobq.claim(%lld, %lld, %d, ARRAY(SELECT id FROM jobq.queue), '{0}', "
             "'{0}', '{-infinity}', '{-9223372036854775808}', NULL, false, false, true, false, "
             "p_lined => '{t}', p_quantum => 10) WHERE id IS NOT NULL",
             (long long)worker, (long long)++last_claim, limit);
    own = for_schema(text, schema);
    assert_int_equal(PQsendQuery(conn, own), 1);
    free(own);
}

/* The row of the line is counted anew once it is locked: what another claim has committed since the
 * statement began is seen. */
static void a_limit_is_counted_under_the_lock(void **unused)
{
    PGresult *res;

    (void)unused;
    put_some("a", 5);
    line_set("running_max => 2");
    RUN("CREATE FUNCTION jobq.wait_here(jobq.walk) RETURNS void LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM pg_advisory_lock(4711), pg_advisory_unlock(4711); END $$");
    RUN("SELECT pg_advisory_lock(4711)");
    /* lines_ready is what a claim looks at before it locks lines: this one lets others in then. */
    RUN("ALTER FUNCTION jobq.lines_ready RENAME TO lines_ready_before");
    RUN("CREATE FUNCTION jobq.lines_ready(w jobq.walk, r jobq.room[]) RETURNS bigint[] "
        "LANGUAGE plpgsql AS $$ DECLARE nos bigint[] := jobq.lines_ready_before(w, r); BEGIN "
        "PERFORM jobq.wait_here(w); RETURN nos; END $$");
    claim_is_sent(b, 8, 5);
    while (number("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == 0)
        nap_us(1000);
    RUN("CREATE OR REPLACE FUNCTION jobq.wait_here(jobq.walk) RETURNS void LANGUAGE plpgsql AS "
        "$$ BEGIN END $$");
    assert_int_equal(claim_lines(a, 7, MANY).count, 2);
    RUN("SELECT pg_advisory_unlock(4711)");
    res = PQgetResult(b);
    assert_int_equal(PQresultStatus(res), PGRES_TUPLES_OK);
    assert_int_equal(PQntuples(res), 0);
    PQclear(res);
    PQclear(PQgetResult(b));
    assert_int_equal(running(), 2);
    RUN("DROP FUNCTION jobq.lines_ready");
    RUN("ALTER FUNCTION jobq.lines_ready_before RENAME TO lines_ready");
    RUN("DROP FUNCTION jobq.wait_here");
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
    assert_int_equal(jobq_pg_move(pg, NULL, ONE(g.jobs[0].id + 1), "other", NULL, NULL), JOBQ_OK);
    assert_int_equal(jobq_pg_delete(pg, NULL, ONE(g.jobs[0].id + 2), NULL, NULL), JOBQ_OK);
    succeeds(NULL, &g.jobs[0]);
    g = claim_lines(a, 7, MANY);
    assert_int_equal(g.count, 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job j JOIN jobq.queue q ON q.id = "
                            "j.queue_id WHERE q.name = 'other' AND j.line_name = 'a'"), 1);
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
    RUN("UPDATE jobq.job SET line = jobq.line_no('a')");
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

#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh, leave)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(two_claims_at_once_share_a_limit),
        TEST(a_limit_is_counted_under_the_lock),
        TEST(what_ends_a_job_makes_room_and_locks_no_line),
        TEST(a_suspect_and_a_dead_workers_job_keep_their_place),
        TEST(operators_make_room_too),
        TEST(a_strict_line_runs_in_order),
        TEST(a_strict_line_waits_for_a_retry),
        TEST(the_head_of_a_strict_line_is_not_skipped),
        TEST(a_rate_gives_its_burst_and_then_one_after_the_other),
        TEST(weights_count_in_each_visit),
        TEST(weights_count_in_small_claims),
        TEST(nothing_comes_from_a_paused_or_held_line),
        TEST(walks_go_round),
        TEST(a_claim_visits_few_lines),
        TEST(jobs_line_up_when_they_are_due),
        TEST(the_lines_name_outlives_the_job),
        TEST(two_names_with_one_number_share_a_line),
        TEST(enqueue_writes_nothing_for_a_line),
        TEST(rows_that_are_not_needed_go)};

    return cmocka_run_group_tests_name("lines", tests, up, down);
}
