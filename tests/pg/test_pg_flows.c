/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_flows.c -- jobs that wait for others: every end of a parent, every policy of a flow,
 * parents that end at the same time, batches, cancel and revive of whole flows.
 */
#include "pg_work.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char ran[400]; /* the payloads of the jobs that have run, in order */

static jobq_outcome notes(jobq_call *call)
{
    pthread_mutex_lock(&lock);
    if (strlen(ran) + call->payload.len + 2 < sizeof ran) {
        strncat(ran, call->payload.ptr, call->payload.len);
        strcat(ran, " ");
    }
    pthread_mutex_unlock(&lock);
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static int broken; /* while it is 1, jobs of this kind fail */

static jobq_outcome fails_while_broken(jobq_call *call)
{
    if (!GET(broken)) return notes(call);
    jobq_call_error(call, jobq_str_from("broken"));
    return JOBQ_OUTCOME_DISCARD;
}

static PGconn *opened[4]; /* by this test */
static int opened_count;

static PGconn *another(void)
{
    return opened[opened_count++] = connected();
}

/* Test setup: as fresh, and ids begin at 1. A test that failed may have left a transaction open. */
static int start_over(void **state)
{
    while (opened_count > 0) PQfinish(opened[--opened_count]);
    ran[0] = '\0';
    broken = 0;
    if (fresh(state) != 0) return 1;
    RUN("ALTER SEQUENCE jobq.job_id RESTART");
    restart_ids("flow");
    return 0;
}

static void run_on(PGconn *conn, const char *text) { PQclear(sql(conn, "%s", text)); }

/* SQL that is refused with these words. */
static void is_refused(const char *text, const char *words)
{
    char *full = for_schema(text, schema);
    PGresult *res = PQexec(db, full);

    if (strstr(PQresultErrorMessage(res), words) == NULL)
        fail_msg("%s: %s", text, PQresultErrorMessage(res));
    PQclear(res);
    free(full);
}

static int64_t flow_of(jobq_pg_on_failure on_failure)
{
    jobq_pg_flow_desc d = {"f", JOBQ_PG_FLOW_HOLD, false};
    jobq_pg_error error;
    int64_t id = 0;

    d.on_failure = on_failure;
    if (jobq_pg_flow_begin(pg, NULL, &d, &id, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return id;
}

/* A job of kind k that waits for count others. */
static int64_t waits_for(int64_t flow, const jobq_pg_after *after, int count)
{
    jobq_pg_job job = plain_job();

    job.flow = flow;
    job.after = after;
    job.after_count = count;
    return enqueue_with(&job);
}

static void expect_states(const char *wanted)
{
    expect_text(wanted, "SELECT string_agg(left(replace(state, 'running', 'x'), 1), '' "
                        "ORDER BY id) FROM jobq.jobs");
}

static void finds_nothing(int64_t claim)
{
    verb_batch batch;

    assert_int_equal(claim_by(9, claim, 1, false, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 0);
    verb_batch_clear(&batch);
}

/* Ends a job as event says. */
static void ends(int64_t id, jobq_event_kind event)
{
    static int64_t claim;
    jobq_job job;

    if (event == JOBQ_EVENT_CANCEL) {
        jobq_pg_error error;
        assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(id), NULL, NULL, &error), JOBQ_OK);
        return;
    }
    if (number("SELECT count(*) FROM jobq.worker") == 0) register_worker(9, 60 * SECOND);
    job = claim_one(9, ++claim, false);
    assert_int_equal(job.id, id);
    assert_int_equal(settle_with(&job, event, "no"), JOBQ_OK);
}

/* Each end of a parent, with each wish of its child, in each kind of flow: what becomes of it. */
static void each_end_does_what_the_edge_says(void **state)
{
    static const jobq_event_kind events[] = {JOBQ_EVENT_SUCCESS, JOBQ_EVENT_DISCARD,
                                             JOBQ_EVENT_CANCEL};
    static const char *const wanted[3][3] = {/* [on_failure][event], by on_end */
                                             {"rcr", "wrr", "wrr"},
                                             {"rcr", "crr", "crr"},
                                             {"rcr", "rrr", "rrr"}};
    jobq_pg_after after = {0, NULL, 0, JOBQ_ON_SUCCESS};
    int of, on, e, before;

    for (of = 0; of < 3; of++) {
        for (e = 0; e < 3; e++) {
            for (on = 0; on < 3; on++) {
                for (before = 0; before < 2; before++) {
                    jobq_pg_job parent = plain_job();
                    int64_t child = 0;
                    pg_empty(state);
                    parent.flow = flow_of((jobq_pg_on_failure)of);
                    after.job = enqueue_with(&parent);
                    after.on_end = (jobq_on_end)on;
                    if (before) child = waits_for(parent.flow, &after, 1);
                    if (before) assert_string_equal(text_of(
                        "SELECT state FROM jobq.jobs WHERE id = %lld", (long long)child),
                        "waiting");
                    ends(after.job, events[e]);
                    if (!before && e == 0) {
                        jobq_pg_job job = plain_job(); /* the flow has ended */
                        jobq_pg_error error;
                        job.flow = parent.flow;
                        assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error),
                                         JOBQ_ERROR_DATABASE);
                        assert_non_null(strstr(error.message, "has ended"));
                        continue;
                    }
                    if (!before) continue;
                    number("SELECT jobq._promote(100)");
                    assert_int_equal(text_of("SELECT state FROM jobq.jobs WHERE id = %lld",
                                             (long long)child)[0], wanted[of][e][on]);
                }
            }
        }
    }
}

/* What has ended before the child was written counts as well; what nobody knows is refused. */
static void a_parent_may_have_ended_before(void **unused)
{
    jobq_pg_after after[2] = {{0, NULL, 0, JOBQ_ON_SUCCESS}, {0, NULL, 0, JOBQ_ON_FAILURE}};
    jobq_pg_job job = plain_job();
    jobq_pg_error error;

    (void)unused;
    after[0].job = enqueue_with(&job);
    ends(after[0].job, JOBQ_EVENT_SUCCESS);
    after[1].job = enqueue_with(&job);
    ends(after[1].job, JOBQ_EVENT_DISCARD);
    waits_for(0, after, 2);
    expect_states("sfr");
    after[1].on_end = JOBQ_ON_SUCCESS;
    waits_for(0, after, 2);
    expect_states("sfrw");
    expect_text("it does not run, because job 2 failed: revive it",
                "SELECT reason FROM jobq.explain_job(4)");
    assert_int_equal(jobq_pg_delete(pg, NULL, ONE(after[1].job), NULL, &error), JOBQ_OK);
    job.after = &after[1];
    job.after_count = 1;
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_NOT_FOUND);
    assert_non_null(strstr(error.message, "job 2 is gone"));
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 2);
}

/* Two parents end in transactions that overlap: neither sees the other, and the child runs. */
static void parents_that_end_at_the_same_time(void **unused)
{
    PGconn *a = another(), *b = another();
    jobq_pg_after after[2] = {{0, NULL, 0, JOBQ_ON_SUCCESS}, {0, NULL, 0, JOBQ_ON_SUCCESS}};
    jobq_pg_job job = plain_job();
    int64_t child;

    (void)unused;
    register_worker(9, 60 * SECOND);
    after[0].job = enqueue_with(&job);
    claim_one(9, 1, false);
    after[1].job = enqueue_with(&job);
    claim_one(9, 2, false);
    child = waits_for(0, after, 2);
    run_on(a, "BEGIN; SELECT FROM jobq._complete('{9}', '{1}', '{1}', '{1}')");
    run_on(b, "BEGIN; SELECT FROM jobq._complete('{9}', '{2}', '{1}', '{2}')");
    run_on(a, "COMMIT");
    assert_int_equal(number("SELECT jobq._promote(100)"), 0);
    expect_states("sxw");
    run_on(b, "COMMIT");
    assert_int_equal(number("SELECT count(*) FROM jobq.nudge"), 1);
    finds_nothing(3); /* but looks */
    assert_int_equal(claim_one(9, 4, false).id, child);
    assert_int_equal(number("SELECT count(*) FROM jobq.nudge"), 0);
}

/* While a producer's transaction is open, a job that it waits for cannot end: its end would not
 * see the edge. */
static void a_parent_ends_after_the_edge_is_written(void **unused)
{
    PGconn *a = another();
    jobq_pg_job job = plain_job();

    (void)unused;
    register_worker(9, 60 * SECOND);
    enqueue_with(&job);
    claim_one(9, 1, false);
    run_on(a, "BEGIN; SELECT jobq.enqueue('q', 'k', after => '{1}')");
    expect_text("b", "SELECT answer FROM jobq._complete('{9}', '{1}', '{1}', '{1}')");
    run_on(a, "COMMIT");
    expect_text("r", "SELECT answer FROM jobq._complete('{9}', '{1}', '{1}', '{1}')"); /* ready */
    expect_states("sr");
}

/* A job and the one that it waits for end in transactions that overlap: neither sees the other, and
 * the edge goes with the next look. Found by the explorer. */
static void no_edge_outlives_its_jobs(void **unused)
{
    static const jobq_pg_after after[] = {{3, NULL, 0, JOBQ_ON_FAILURE}, {4, NULL, 0, JOBQ_ON_ANY}};
    PGconn *a = connected();

    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k')");
    RUN("SELECT jobq.enqueue('q', 'k', after => '{1}')");
    run_on(a, "BEGIN; SELECT jobq.cancel(2::int8)");
    RUN("SELECT jobq.cancel(1::int8)");
    run_on(a, "COMMIT");
    expect_states("cc");
    RUN("SELECT jobq._promote(100)");
    assert_int_equal(number("SELECT count(*) FROM jobq.nudge"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.edge"), 0);
    RUN("SELECT jobq.enqueue('q', 'k'), jobq.enqueue('q', 'k')");
    waits_for(0, after, 2);
    register_worker(9, 60 * SECOND);
    assert_int_equal(claim_one(9, 1, false).id, 3);
    run_on(a, "BEGIN; SELECT jobq.work_done(9, 1, 3)"); /* 5 is cancelled */
    RUN("SELECT jobq.cancel(4::int8)");
    RUN("SELECT jobq._promote(100)"); /* as it looks, 3 still holds 5 */
    run_on(a, "COMMIT");
    RUN("SELECT jobq._promote(100)");
    assert_int_equal(number("SELECT count(*) FROM jobq.nudge"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.edge"), 0);
    PQfinish(a);
}

static void a_diamond_runs_in_order(void **unused)
{
    static const jobq_pg_after top[] = {{0, "a", 0, JOBQ_ON_SUCCESS}};
    static const jobq_pg_after sides[] = {{0, "b", 0, JOBQ_ON_SUCCESS},
                                          {0, "c", 0, JOBQ_ON_SUCCESS}};
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, notes);
    jobq_pg_job jobs[4];
    jobq_pg_error error;
    int64_t flow = flow_of(JOBQ_PG_FLOW_HOLD);
    int i;

    (void)unused;
    for (i = 0; i < 4; i++) {
        static const char *const names[] = {"a", "b", "c", "d"};
        static const char *const payloads[] = {"1", "2", "2", "3"};
        jobs[i] = plain_job();
        jobs[i].payload = jobq_str_from(payloads[i]);
        jobs[i].flow = flow;
        jobs[i].name = names[i];
        jobs[i].after = i == 3 ? sides : top;
        jobs[i].after_count = i == 3 ? 2 : i > 0;
    }
    if (jobq_pg_enqueue_many(pg, NULL, jobs, 4, NULL, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    expect_states("rwww");
    RUN("UPDATE jobq.job SET steps = '{\"charge\": null}' WHERE id = 3");
    expect_text("flow -1 running,after 1 a ready,before 4 d waiting,step charge",
                "SELECT string_agg(concat_ws(' ', tie, id, nullif(name, 'f'), state), ',' ORDER BY "
                "array_position('{flow,after,before,step}', tie)) FROM jobq._job_ties(3)");
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.flow WHERE ended_at IS NOT NULL"));
    assert_string_equal(ran, "1 2 2 3 ");
    expect_text("-1 ended,1 succeeded,4 succeeded", "SELECT string_agg(concat_ws(' ', id, state), "
                "',' ORDER BY id) FROM jobq._job_ties(3)");
    expect_text("f ended 4 4 0 0", "SELECT concat_ws(' ', name, state, jobs, succeeded, failed, "
                                   "cancelled) FROM jobq.flows");
    expect_text("b succeeded,c succeeded", "SELECT string_agg(name || ' ' || state, ',' "
                "ORDER BY job_id) FROM jobq._parents(4)");
    expect_text("1:-,2:1,3:1,4:2 3", "SELECT string_agg(format('%s:%s', job_id, coalesce("
                "array_to_string(after, ' '), '-')), ',' ORDER BY job_id) FROM jobq.flow_graph(1)");
}

/* A failure holds what waits for it; a revive continues the flow. */
static void a_flow_that_is_held_goes_on(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, fails_while_broken);
    jobq_pg_after after = {0, NULL, 0, JOBQ_ON_SUCCESS};
    jobq_pg_filter whole = {0};
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    int64_t count;

    (void)unused;
    broken = 1;
    whole.flow = job.flow = flow_of(JOBQ_PG_FLOW_HOLD);
    after.job = enqueue_with(&job);
    after.job = waits_for(job.flow, &after, 1);
    waits_for(job.flow, &after, 1);
    start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.failed"));
    expect_states("fww");
    expect_text("held 3 0 1 0", "SELECT concat_ws(' ', state, jobs, succeeded, failed, cancelled) "
                                "FROM jobq.flows");
    __atomic_store_n(&broken, 0, __ATOMIC_SEQ_CST);
    assert_int_equal(jobq_pg_revive(pg, NULL, &whole, &count, &error), JOBQ_OK);
    assert_int_equal(count, 1);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.flow WHERE ended_at IS NOT NULL"));
    expect_text("ended 3 3 0 0", "SELECT concat_ws(' ', state, jobs, succeeded, failed, "
                                 "cancelled) FROM jobq.flows");
}

/* What waits for one that was cancelled, or for one outside of the flow that failed, waits on. */
static void a_flow_that_waits_in_vain_is_held(void **unused)
{
    static const char *const states = "SELECT string_agg(state, ' ' ORDER BY id) FROM jobq.flows";
    long id;

    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k', flow => jobq.flow('f'))");
    RUN("SELECT jobq.enqueue('q', 'k', flow => 1), jobq.enqueue('q', 'k', flow => 1, "
        "after => '{2}')");
    expect_text("running", states);
    RUN("SELECT jobq.cancel(1::int8)");
    expect_text("running", states); /* nothing waits for it */
    RUN("SELECT jobq.cancel(2::int8)");
    expect_text("held", states);
    assert_int_equal(number("SELECT jobq.flow_revive(1)"), 0);
    RUN("SELECT jobq.cancel(3::int8)");
    expect_text("ended", states);
    id = number("SELECT jobq.enqueue('q', 'k')");
    RUN("SELECT jobq.enqueue('q', 'k', flow => jobq.flow('g'), after => '{%ld}')", id);
    expect_text("ended running", states);
    RUN("SELECT jobq._finish('{%ld}', 'f', NULL)", id);
    expect_text("ended held", states);
    RUN("SELECT jobq.revive(%ld)", id);
    expect_text("ended running", states);
    RUN("SELECT jobq.flow_cancel(2)");
}

/* Cancelling goes down a chain of any depth, in bounded steps. */
static void a_failure_cancels_a_deep_chain(void **unused)
{
    (void)unused;
    RUN("DO $$ DECLARE f bigint; j bigint; BEGIN f := jobq.flow('deep', 'cancel'); "
        "j := jobq.enqueue('q', 'k', flow => f); "
        "FOR i IN 1 .. 300 LOOP j := jobq.enqueue('q', 'k', flow => f, after => ARRAY[j]); "
        "END LOOP; PERFORM jobq.enqueue('q', 'k', after_flow => f, on_end => 'failure'); END $$");
    ends(1, JOBQ_EVENT_DISCARD);
    RUN("DO $$ BEGIN FOR i IN 1 .. 400 LOOP EXIT WHEN jobq._promote(100) = 0; END LOOP; END $$");
    expect_text("ended 301 0 1 300", "SELECT concat_ws(' ', state, jobs, succeeded, failed, "
                                     "cancelled) FROM jobq.flows");
    expect_text("302 r", "SELECT concat(id, ' ', state) FROM jobq.job");
    assert_int_equal(number("SELECT count(*) FROM jobq.nudge"), 0);
}

/* conn asks, and has its answer unless somebody holds what it needs. */
static void asks(PGconn *conn, const char *text)
{
    char *full = for_schema(text, schema), waits[400];
    int before = shards_at == NULL ? 0 : waiting_at_node();

    assert_int_equal(PQsendQuery(conn, full), 1);
    if (shards_at != NULL) {
        free(full);
        assert_true(answers_or_waits(conn, before));
        return;
    }
    snprintf(waits, sizeof waits, "SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND "
             "query = $q$%s$q$ AND (state LIKE 'idle%%' OR wait_event_type = 'Lock')",
             PQbackendPID(conn), full);
    free(full);
    assert_true(becomes(20, 1, waits));
}

static void is_answered(PGconn *conn, const char *wanted)
{
    PGresult *res = PQgetResult(conn);

    if (PQntuples(res) != 1) fail_msg("%s", PQresultErrorMessage(res));
    assert_string_equal(PQgetvalue(res, 0, 0), wanted);
    while (PQclear(res), (res = PQgetResult(conn)) != NULL) ;
}

static void refuses(PGconn *conn, const char *words)
{
    PGresult *res = PQgetResult(conn);

    assert_non_null(strstr(PQresultErrorMessage(res), words));
    while (PQclear(res), (res = PQgetResult(conn)) != NULL) ;
}

/* A chain of 60 that is held, 120 that failed beside it: revived and cancelled, 25 at a call. */
static void a_deep_flow_is_revived_and_cancelled_in_steps(void **unused)
{
    jobq_pg_filter whole = {0};
    jobq_pg_error error;
    char calls[100] = "";
    int64_t count;
    int cancel;

    (void)unused;
    whole.flow = 1;
    whole.at_most = 25;
    RUN("DO $$ DECLARE j bigint; f bigint := jobq.flow(); BEGIN "
        "PERFORM jobq._enqueue_many('q', '{k}', NULL, array_fill('1'::jsonb, '{120}'), "
        "p_flow => f); "
        "j := 1; FOR i IN 1 .. 60 LOOP "
        "j := jobq.enqueue('q', 'k', flow => f, after => ARRAY[j]); END LOOP; END $$");
    RUN("SELECT jobq._finish(array_agg(id), 'f', NULL) FROM jobq.job WHERE state = 'r'");
    for (cancel = 0; cancel < 2; cancel++) {
        do {
            assert_int_equal(cancel ? jobq_pg_cancel(pg, NULL, &whole, &count, NULL, &error)
                                    : jobq_pg_revive(pg, NULL, &whole, &count, &error), JOBQ_OK);
            snprintf(calls + strlen(calls), sizeof calls - strlen(calls), "%d ", (int)count);
        } while (count > 0);
        if (cancel) continue;
        expect_text("running 180 0 0", "SELECT concat_ws(' ', state, jobs, failed, cancelled) "
                                       "FROM jobq.flows");
        assert_int_equal(number("SELECT count(*) FROM jobq.edge WHERE holds"), 60);
    }
    assert_string_equal(calls, "25 25 25 25 20 0 25 25 25 25 25 25 25 5 0 ");
    expect_text("ended 180 0 180", "SELECT concat_ws(' ', state, jobs, failed, cancelled) "
                                   "FROM jobq.flows");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* What a caller may do in a transaction of its own that then stays open, and that ends something
 * that others wait for: job 1, which runs, or job 2, which does not, or their flow. */
static const char *const ends_here[] = {
    "SELECT jobq._settle_here(9, 1, 1, 's', 0::int2, 1, 0, false, 0, NULL, NULL, NULL)",
    "SELECT jobq._settle_here(9, 1, 1, 's', 0::int2, 1, 0, false, 0, NULL, '1', NULL)",
    "SELECT jobq._settle_here(9, 1, 1, 'f', 0::int2, 1, 0, false, 0, 'no', NULL, NULL)",
    "SELECT jobq.work_done(9, 1, 1)",
    "SELECT jobq.work_fail(9, 1, 1, 'no', 'discard')",
    "SELECT jobq.cancel(2::int8)",
    "SELECT jobq.cancel('q', 'other')",
    "SELECT jobq.delete(2::int8)",
    "SELECT jobq.delete('q', 'ready', 'other')",
    "SELECT jobq.signal('s')",
    "SELECT jobq.flow_close(1)",
    "SELECT jobq.flow_cancel(1)",
    "SELECT jobq.batch('q', 'k', NULL)",
};

/* While it is open, what waits for jobs and flows of others becomes ready and is claimed, whether
 * its parents have ended before (at once, so that neither saw the other) or end meanwhile. */
static void an_open_transaction_keeps_no_others(void **unused)
{
    size_t i;
    int before;

    for (i = 0; i < sizeof ends_here / sizeof ends_here[0] * 2; i++) {
        PGconn *a, *b;
        before = i % 2;
        assert_int_equal(start_over(unused), 0);
        a = another();
        b = another();
        RUN("SELECT jobq.flow(open => true), jobq.flow()");
        RUN("SELECT jobq.enqueue('q', 'k', flow => 1), "
            "jobq.enqueue('q', 'other', flow => 1, priority => 1), "
            "jobq.enqueue('q', 'k', flow => 2), jobq.enqueue('q', 'k', flow => 2)");
        RUN("SELECT jobq.enqueue('q', 'k', after => '{3, 4}')");
        RUN("SELECT jobq.enqueue('q', 'k', after_flow => 2)");
        register_worker(9, 60 * SECOND);
        have_all_kinds();
        claim_one(9, 1, false);
        claim_one(9, 2, false);
        claim_one(9, 3, false);
        run_on(b, "BEGIN; SELECT FROM jobq._complete('{9}', '{2}', '{1}', '{3}')");
        if (before) RUN("SELECT FROM jobq._complete('{9}', '{3}', '{1}', '{4}')");
        run_on(b, "COMMIT");
        run_on(a, "BEGIN");
        run_on(a, ends_here[i / 2]);
        if (before) finds_nothing(4); /* but looks */
        else RUN("SELECT FROM jobq._complete('{9}', '{3}', '{1}', '{4}')");
        assert_int_equal(claim_one(9, 5, false).id, 5);
        assert_int_equal(claim_one(9, 6, false).id, 6);
        run_on(a, "COMMIT");
        RUN("SELECT jobq._promote(100)");
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
}

/* Two handlers share something of the user's, here an advisory lock. One has it, and enqueues into
 * a flow, or behind a job. The other has ended its own job, and now wants it. */
static void handlers_that_share_a_row_do_not_deadlock(void **unused)
{
    static const struct {
        int flow; /* of the job that ends */
        const char *enqueue;
    } rows[] = {
        {1, "SELECT jobq.enqueue('q', 'k', flow => 1)"},
        {2, "SELECT jobq.enqueue('q', 'k', flow => 1)"},
        {2, "SELECT jobq.enqueue('q', 'k', after => '{4}')"},
    };
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        PGconn *a, *b;
        assert_int_equal(start_over(unused), 0);
        a = another();
        b = another();
        RUN("SELECT jobq.flow(), jobq.flow()");
        RUN("SELECT jobq.enqueue('q', 'k', flow => 1), jobq.enqueue('q', 'k', flow => 1), "
            "jobq.enqueue('q', 'k', flow => %d)", rows[i].flow);
        RUN("SELECT jobq.enqueue('q', 'k', after => '{2, 3}')");
        register_worker(9, 60 * SECOND);
        claim_one(9, 1, false);
        claim_one(9, 2, false);
        claim_one(9, 3, false);
        RUN("SELECT FROM jobq._complete('{9}', '{1}', '{1}', '{1}')"); /* leaves a nudge */
        run_on(a, "BEGIN; SELECT pg_advisory_xact_lock(77)");
        run_on(b, "BEGIN; SELECT jobq.work_done(9, 3, 3)");
        asks(a, rows[i].enqueue);
        asks(b, "SELECT pg_advisory_xact_lock(77)");
        is_answered(a, "5");
        run_on(a, "COMMIT");
        is_answered(b, "");
        run_on(b, "COMMIT");
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
}

/* What such a transaction leaves, because it could not know, a claim that finds nothing or the next
 * heartbeat does. And a backlog of them leaves no pile of nudges. */
static void what_an_open_transaction_leaves_is_found(void **unused)
{
    int i;

    for (i = 0; i < 2; i++) {
        PGconn *a, *b;
        assert_int_equal(start_over(unused), 0);
        a = another();
        b = another();
        RUN("SELECT jobq.enqueue('q', 'k'), jobq.enqueue('q', 'k')");
        RUN("SELECT jobq.enqueue('q', 'k', after => '{1, 2}')");
        register_worker(9, 60 * SECOND);
        claim_one(9, 1, false);
        claim_one(9, 2, false);
        run_on(a, "BEGIN; SELECT jobq.work_done(9, 1, 1)");
        run_on(b, "BEGIN; SELECT jobq.work_done(9, 2, 2)");
        run_on(a, "COMMIT");
        run_on(b, "COMMIT");
        RUN("SELECT jobq.signal('others')"); /* leaves it, too */
        expect_states("ssw");
        if (i == 0) finds_nothing(3);
        else RUN("SELECT jobq._heartbeat(9, 60000000, '{}')");
        assert_int_equal(claim_one(9, 4, false).id, 3);
    }
    RUN("SELECT jobq.batch('q', 'k', array_fill('1'::jsonb, '{30}'))");
    for (i = 5; i < 25; i++) RUN("SELECT jobq.work_done(9, %d, %d)", i,
                                 (int)claim_one(9, i, false).id);
    assert_in_range(number("SELECT count(*) FROM jobq.nudge"), 1, 2);
}

/* Two transactions that end jobs of one flow do not wait for each other. */
static void ends_share_no_row_of_the_flow(void **unused)
{
    PGconn *a = another(), *b = another();
    int i;

    (void)unused;
    RUN("SELECT jobq.batch('q', 'k', '{1, 2, 3, 4}', 'done')");
    register_worker(9, 60 * SECOND);
    for (i = 1; i <= 4; i++) claim_one(9, i, false);
    for (i = 1; i <= 2; i++) {
        run_on(a, "BEGIN");
        run_on(b, "BEGIN");
        run_on(a, i == 1 ? "SELECT FROM jobq._complete('{9}', '{1}', '{1}', '{1}')"
                         : "SELECT FROM jobq._complete('{9}', '{3}', '{1}', '{3}')");
        asks(b, i == 1 ? "SELECT count(*) FROM jobq._complete('{9}', '{2}', '{1}', '{2}')"
                       : "SELECT count(*) FROM jobq._complete('{9}', '{4}', '{1}', '{4}')");
        assert_int_equal(number("SELECT count(*) FROM pg_locks WHERE NOT granted"), 0);
        is_answered(b, "0");
        run_on(b, "COMMIT");
        expect_text(i == 1 ? "4 1" : "4 3", "SELECT concat(jobs, ' ', succeeded) FROM jobq.flows");
        run_on(a, "COMMIT");
    }
    RUN("SELECT jobq._promote(100)");
    expect_text("ended 4 4", "SELECT concat_ws(' ', state, jobs, succeeded) FROM jobq.flows");
    expect_states("ssssr");
    assert_true(number("SELECT count(*) FROM jobq.flow_part") > 1);
}

static void a_batch_has_one_callback(void **unused)
{
    jobq_pg_handler h[] = {handler_of("q", "k", notes), handler_of("q", "done", notes)};
    jobq_pg_worker_desc d = work_of(h, 2);

    (void)unused;
    RUN("SELECT jobq.batch('q', 'k', array_agg(to_jsonb(n)), 'done', '\"done\"') "
        "FROM generate_series(1, 3000) n");
    start(&d);
    start(&d);
    assert_true(reaches(60, &runs, 3001));
    assert_true(becomes(20, 3001, "SELECT count(*) FROM jobq.history"));
    expect_text("ended 3000 3000", "SELECT concat_ws(' ', state, jobs, succeeded) FROM jobq.flows");
    expect_text("t", "SELECT min(claimed_at) FILTER (WHERE flow_id = 0) >= "
                     "max(finished_at) FILTER (WHERE flow_id > 0) FROM jobq.history");
    assert_int_equal(number("SELECT count(*) FROM jobq.edge"), 0);
}

/* What waits for a flow's end comes, too, if no job's end looks at the flow. */
static void a_flow_without_jobs_ends(void **unused)
{
    static const char *const none[] = {"NULL", "'{}'"};
    jobq_pg_error error;
    int i;

    (void)unused;
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "events", 1, NULL, &error), JOBQ_OK);
    for (i = 0; i < 2; i++) {
        RUN("SELECT jobq.batch('q', 'k', %s, 'done', done_outbox => 'events')", none[i]);
        expect_text("ready done", "SELECT string_agg(state || ' ' || kind, ',') FROM jobq.jobs");
        expect_text("0", "SELECT string_agg(headers ->> 'succeeded', ',') FROM jobq.message");
        RUN("DELETE FROM jobq.job; DELETE FROM jobq.message");
    }
    RUN("SELECT jobq.enqueue('q', 'k', after_flow => jobq.flow(open => true))");
    RUN("SELECT jobq.flow_close(max(id)) FROM jobq.flow");
    expect_text("ready", "SELECT state FROM jobq.jobs");
    RUN("SELECT jobq.flow()");
    RUN("SELECT jobq.renew()");
    RUN("SELECT jobq._promote(100)");
    RUN("SELECT jobq.enqueue('q', 'k', flow => max(id)) FROM jobq.flow");
}

/* No job can be added to it, so no later end of a job would end the flow. */
static void an_open_flow_that_is_cancelled_ends(void **unused)
{
    int i;

    (void)unused;
    for (i = 0; i < 3; i++) { /* no job; one that has not ended; one that has */
        long flow = number("SELECT jobq.flow(open => true)");
        if (i > 0) {
            long id = number("SELECT jobq.enqueue('q', 'k', flow => %ld)", flow);
            if (i == 2) RUN("SELECT jobq.cancel(%ld::int8)", id);
        }
        RUN("SELECT jobq.enqueue('q', 'k', after_flow => %ld, on_end => 'any')", flow);
        RUN("SELECT jobq.flow_cancel(%ld)", flow);
        expect_text("ready", "SELECT state FROM jobq.live_jobs");
        expect_text("ended", "SELECT state FROM jobq.flows ORDER BY id DESC LIMIT 1");
        RUN("DELETE FROM jobq.job");
    }
}

/* The end of a batch writes a message, once, although the flow is revived and ends again. While the
 * outbox does not take it, the flow has not ended. */
static void a_batch_ends_with_a_message(void **unused)
{
    static const char *const messages = "SELECT string_agg(payload::text || headers::text, ';') "
                                        "FROM jobq.message";
    jobq_pg_filter whole = {0};
    jobq_pg_error error;

    (void)unused;
    whole.flow = 1;
    is_refused("SELECT jobq.batch('q', 'k', '{1}', done_outbox => 'none')", "is not registered");
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "events", 1, NULL, &error), JOBQ_OK);
    RUN("UPDATE jobq.queue SET message_max = 1000 WHERE name = 'events'");
    is_refused("SELECT jobq.batch('q', 'k', '{1}', done_outbox => 'events', "
               "done_payload => to_jsonb(repeat('x', 900)))", "exceeds"); /* with its headers */
    restart_ids("flow");
    RUN("SELECT jobq.batch('q', 'k', '{1, 2}', done_outbox => 'events', done_payload => '{}')");
    ends(number("SELECT min(id) FROM jobq.job"), JOBQ_EVENT_SUCCESS);
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 0);
    RUN("UPDATE jobq.queue SET message_max = 1 WHERE name = 'events'");
    RUN("SET client_min_messages = error");
    ends(number("SELECT min(id) FROM jobq.job"), JOBQ_EVENT_DISCARD);
    expect_text("held", "SELECT state FROM jobq.flows");
    RUN("SELECT jobq._promote(100)"); /* refused again, in a transaction of its own */
    assert_true(number("SELECT count(*) FROM jobq.nudge") > 0);
    RUN("UPDATE jobq.queue SET message_max = 1000 WHERE name = 'events'");
    RUN("SELECT jobq._promote(100)");
    expect_text("ended", "SELECT state FROM jobq.flows");
    expect_text("{}{\"flow\": 1, \"failed\": 1, \"cancelled\": 0, \"succeeded\": 1}", messages);
    assert_int_equal(jobq_pg_revive(pg, NULL, &whole, NULL, &error), JOBQ_OK);
    ends(number("SELECT min(id) FROM jobq.job"), JOBQ_EVENT_SUCCESS);
    expect_text("ended 2", "SELECT concat(state, ' ', succeeded) FROM jobq.flows");
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 1);
}

/* Flows that cannot end now do not keep others waiting. */
static void what_cannot_be_decided_makes_way(void **unused)
{
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "events", 1, NULL, &error), JOBQ_OK);
    RUN("SET client_min_messages = error");
    RUN("SELECT jobq.batch('q', 'k', '{1}', done_outbox => 'events', done_payload => '{}'), "
        "jobq.batch('q', 'k', '{2}', done_outbox => 'events', done_payload => '{}')");
    RUN("UPDATE jobq.queue SET message_max = 1 WHERE name = 'events'");
    RUN("SELECT jobq.cancel(id) FROM jobq.job");
    assert_int_equal(number("SELECT count(*) FROM jobq.nudge"), 2);
    RUN("INSERT INTO jobq.flow (name, on_failure, open) VALUES ('empty', 'h', false)");
    RUN("INSERT INTO jobq.nudge (job_id) SELECT -max(id) FROM jobq.flow");
    RUN("SELECT jobq._promote(2)");
    RUN("SELECT jobq._promote(2)");
    assert_int_equal(number("SELECT count(*) FROM jobq.flow WHERE name = 'empty' "
                            "AND ended_at IS NOT NULL"), 1);
    RUN("UPDATE jobq.queue SET message_max = 1000 WHERE name = 'events'");
    RUN("SELECT jobq._promote(2)");
    RUN("SELECT jobq._promote(2)");
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.nudge"), 0);
}

static void a_whole_flow_is_cancelled(void **unused)
{
    jobq_pg_filter whole = {0};
    jobq_pg_error error;
    int64_t count, sum = 0;

    (void)unused;
    RUN("SELECT jobq.batch('q', 'k', array_agg(to_jsonb(n)), 'done', '\"done\"') "
        "FROM generate_series(1, 250) n");
    register_worker(9, 60 * SECOND);
    claim_one(9, 1, false);
    whole.flow = 1;
    whole.at_most = 100;
    do {
        assert_int_equal(jobq_pg_cancel(pg, NULL, &whole, &count, NULL, &error), JOBQ_OK);
        sum += count;
    } while (count > 0);
    assert_int_equal(sum, 250);
    expect_text("cancelled 250 0 0 249", "SELECT concat_ws(' ', state, jobs, succeeded, failed, "
                                         "cancelled) FROM jobq.flows");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE cancel_requested_at IS NOT NULL"),
                     1);
    RUN("SELECT FROM jobq._complete('{9}', '{1}', '{1}', '{1}')");
    expect_text("done ready", "SELECT kind || ' ' || state FROM jobq.jobs WHERE state = 'ready'");
}

/* The answer 0 means that nothing is left, also if somebody holds the rows. */
static void the_rows_of_a_flow_are_locked(void **unused)
{
    PGconn *a = another(), *b = another();
    int i;

    (void)unused;
    RUN("SELECT jobq.flow(), jobq.enqueue('q', 'k', flow => 1), jobq.enqueue('q', 'k', flow => 1), "
        "jobq.enqueue('q', 'k', flow => 1)");
    ends(1, JOBQ_EVENT_DISCARD);
    for (i = 0; i < 2; i++) {
        run_on(a, i == 0 ? "BEGIN; SELECT FROM jobq.failed FOR UPDATE"
                         : "BEGIN; SELECT FROM jobq.job WHERE id > 1 FOR UPDATE");
        if (i == 1)
            assert_int_equal(number("SELECT jobq.flow_cancel(1, 9)"), 1);
        asks(b, i == 0 ? "SELECT jobq.flow_revive(1, 9)" : "SELECT jobq.flow_cancel(1, 9)");
        run_on(a, "COMMIT");
        is_answered(b, i == 0 ? "1" : "2");
        if (i == 0) expect_states("rrr");
    }
    expect_states("ccc");
}

/* Jobs that are enqueued while a flow is cancelled are cancelled as well. */
static void a_flow_is_cancelled_under_a_producer(void **unused)
{
    PGconn *a = another(), *b = another();

    (void)unused;
    RUN("SELECT jobq.flow(open => true)");
    run_on(a, "BEGIN; SELECT jobq.enqueue('q', 'k', flow => 1)");
    asks(b, "SELECT jobq.flow_cancel(1)");
    run_on(a, "COMMIT");
    is_answered(b, "1");
    expect_states("c");
    is_refused("SELECT jobq.enqueue('q', 'k', flow => 1)", "it was cancelled");
}

/* A running job is given back while the cancel of its flow waits for it. */
static void a_flow_is_cancelled_while_a_job_is_given_back(void **unused)
{
    PGconn *a = another(), *b = another();
    jobq_job job;

    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k', flow => jobq.flow(open => true))");
    register_worker(9, 60 * SECOND);
    job = claim_one(9, 1000, false);
    run_on(a, "BEGIN; SELECT FROM jobq.job FOR UPDATE");
    asks(b, "SELECT jobq.flow_cancel(1)");
    assert_int_equal(settle_on(a, &job, JOBQ_EVENT_RETRY, "no"), JOBQ_OK);
    run_on(a, "COMMIT");
    is_answered(b, "1");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
}

/* A handler's transaction locks its job, and then enqueues into the job's flow. Meanwhile the flow
 * is cancelled: that waits for the job, and then cancels whatever there is. */
static void a_flow_is_cancelled_under_a_handler(void **unused)
{
    static const struct {
        const char *first, *answer;
    } rows[] = {
        {"SELECT jobq._settle_here(9, 1, 1, 's', 0::int2, 1, 0, false, 0, NULL, NULL, NULL)", "1"},
        {"SELECT jobq.work_done(9, 1, 1)", "1"},
        {"SELECT jobq._step_done_here(9, 1, 1, 's', '1')", "2"},
        {"SELECT jobq._signal_of_claim(9, 1, 1, 's', 1000000)", "2"},
    };
    PGconn *a, *b;
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(start_over(unused), 0);
        a = another();
        b = another();
        RUN("SELECT jobq.enqueue('q', 'k', flow => jobq.flow(open => true))");
        register_worker(9, 60 * SECOND);
        claim_one(9, 1, false);
        run_on(a, "BEGIN");
        run_on(a, rows[i].first);
        asks(b, "SELECT jobq.flow_cancel(1)");
        run_on(a, "SELECT jobq.enqueue('q', 'k', flow => 1)");
        run_on(a, "COMMIT");
        is_answered(b, rows[i].answer);
        assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE cancel_requested_at IS NULL"),
                         0);
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
}

/* A job that is enqueued after its parent failed runs when that was revived. */
static void a_failed_parent_is_revived(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k')");
    ends(1, JOBQ_EVENT_DISCARD);
    RUN("SELECT jobq.enqueue('q', 'k', after => '{1}')");
    RUN("SELECT jobq.revive(1::int8)");
    expect_states("rw");
    ends(1, JOBQ_EVENT_SUCCESS);
    expect_states("sr");
}

/* Of a job that is enqueued and the revive of the failed job that it waits for, either may commit
 * first. */
static void a_failed_parent_is_revived_meanwhile(void **unused)
{
    static const char *const texts[2] = {"SELECT jobq.enqueue('q', 'k', after => '{1}')",
                                         "SELECT jobq.revive(1::int8)"};
    PGconn *a, *b;
    int first;

    for (first = 0; first < 2; first++) {
        assert_int_equal(start_over(unused), 0);
        a = another();
        b = another();
        RUN("SELECT jobq.enqueue('q', 'k')");
        ends(1, JOBQ_EVENT_DISCARD);
        run_on(a, "BEGIN");
        run_on(a, texts[first]);
        asks(b, texts[!first]);
        run_on(a, "COMMIT");
        is_answered(b, first == 0 ? "revived" : "2");
        expect_states("rw");
        ends(1, JOBQ_EVENT_SUCCESS);
        expect_states("sr");
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
}

/* Sleeping workers hear of jobs of their queue, and a flow may have jobs in several. */
static void a_revival_wakes_the_workers_of_each_queue(void **unused)
{
    PGconn *a = another();
    int64_t until = mono_us() + 20 * SECOND;
    int heard = 0;

    (void)unused;
    RUN("SELECT jobq.flow()");
    RUN("SELECT jobq.enqueue(u, 'k', flow => 1) FROM unnest('{q,r}'::text[]) u");
    RUN("SELECT jobq._finish('{1,2}', 'f', NULL)");
    RUN("INSERT INTO jobq.sleeper SELECT id, 16 + row_number() OVER (ORDER BY id) FROM jobq.queue");
    run_on(a, "LISTEN jobq_11; LISTEN jobq_12");
    assert_int_equal(number("SELECT jobq.flow_revive(1)"), 2);
    while (heard != 3 && mono_us() < until) {
        PGnotify *note;
        assert_true(PQconsumeInput(a));
        while ((note = PQnotifies(a)) != NULL) {
            heard |= strcmp(note->relname, "jobq_11") == 0 ? 1 : 2;
            PQfreemem(note);
        }
        nap_us(10000);
    }
    assert_int_equal(heard, 3);
}

/* Flows are locked before jobs. a enqueues into a flow, waits for its end, or names a job of it,
 * and then does another of these; between the two b changes that job, or the flow. Neither meets
 * the other in a deadlock. Many are revived without waiting: those of a flow that a has locked are
 * left. */
static void a_producer_and_an_operator_of_a_flow(void **unused)
{
    static const char into[] = "SELECT jobq.enqueue('q', 'k', flow => 1)",
                      named[] = "SELECT jobq.enqueue('q', 'k', flow => 1, after_names => '{a}')",
                      end[] = "SELECT jobq.enqueue('q', 'k', after_flow => 1)",
                      failed[] = "SELECT jobq.enqueue('q', 'k', after => '{1}')",
                      ready[] = "SELECT jobq.enqueue('q', 'k', after => '{2}')";
    static const struct {
        const char *first, *operator, *second, *answer;
    } rows[] = {
        {into, "SELECT jobq.revive(1::int8)", named, "revived"},
        {into, "SELECT jobq.flow_revive(1)", named, "1"},
        {into, "SELECT jobq.revive('q')", named, "1"},
        {end, "SELECT jobq.revive(1::int8)", failed, "revived"},
        {end, "SELECT jobq.flow_revive(1)", failed, "1"},
        {end, "SELECT jobq.revive('q')", failed, "0"},
        {failed, "SELECT jobq.revive(1::int8)", end, "revived"},
        {failed, "SELECT jobq.flow_revive(1)", end, "1"},
        {failed, "SELECT jobq.revive('q')", end, "0"},
        {ready, "SELECT jobq.flow_cancel(1)", into, "2"},
    };
    PGconn *a, *b;
    size_t i;

    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(start_over(unused), 0);
        a = another();
        b = another();
        RUN("SELECT jobq.flow(open => true), jobq.enqueue('q', 'k', flow => 1, name => 'a')");
        ends(1, JOBQ_EVENT_DISCARD);
        RUN("SELECT jobq.enqueue('q', 'k', flow => 1)");
        run_on(a, "BEGIN");
        run_on(a, rows[i].first);
        asks(b, rows[i].operator);
        run_on(a, rows[i].second);
        run_on(a, "COMMIT");
        is_answered(b, rows[i].answer);
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
}

/* A job that waits for a flow's end waits also if the flow was revived at the same time. */
static void a_flow_is_revived_under_one_that_waits(void **unused)
{
    PGconn *a = another(), *b = another();

    (void)unused;
    RUN("SELECT jobq.flow(), jobq.enqueue('q', 'k', flow => 1)");
    ends(1, JOBQ_EVENT_DISCARD);
    RUN("SELECT jobq._promote(100)");
    RUN("SELECT jobq.enqueue('q', 'k')");
    run_on(a, "BEGIN");
    run_on(a, "SELECT jobq.enqueue('q', 'k', after_flow => 1, after => '{2}', on_end => 'any')");
    asks(b, "SELECT jobq.revive(1::int8)");
    run_on(a, "COMMIT");
    is_answered(b, "revived");
    ends(2, JOBQ_EVENT_SUCCESS);
    expect_states("rsw");
    ends(1, JOBQ_EVENT_SUCCESS);
    RUN("SELECT jobq._promote(100)");
    expect_states("ssr");
}

/* A flow that is open does not end while more is to come. */
static void an_open_flow_ends_when_it_is_closed(void **unused)
{
    jobq_pg_flow_desc d = {NULL, JOBQ_PG_FLOW_HOLD, true};
    jobq_pg_job job = plain_job();
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(jobq_pg_flow_begin(pg, NULL, &d, &job.flow, &error), JOBQ_OK);
    ends(enqueue_with(&job), JOBQ_EVENT_SUCCESS);
    ends(enqueue_with(&job), JOBQ_EVENT_SUCCESS);
    expect_text("running 2 2", "SELECT concat_ws(' ', state, jobs, succeeded) FROM jobq.flows");
    assert_int_equal(jobq_pg_flow_close(pg, NULL, job.flow, &error), JOBQ_OK);
    expect_text("ended 2 2", "SELECT concat_ws(' ', state, jobs, succeeded) FROM jobq.flows");
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_DATABASE);
    assert_int_equal(jobq_pg_flow_close(pg, NULL, 99, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "flow");
}

/* A job that is added while the others end keeps the flow from ending before. */
static void a_flow_does_not_end_under_a_producer(void **unused)
{
    PGconn *a = another();
    jobq_pg_job job = plain_job();

    (void)unused;
    job.flow = flow_of(JOBQ_PG_FLOW_HOLD);
    job.payload = jobq_str_from("1");
    enqueue_with(&job);
    RUN("SELECT jobq.enqueue('q', 'done', after_flow => 1)");
    run_on(a, "BEGIN; SELECT jobq.enqueue('q', 'k', flow => 1)");
    ends(1, JOBQ_EVENT_SUCCESS);
    RUN("SELECT jobq._promote(100)");
    expect_states("sw");
    run_on(a, "COMMIT");
    RUN("SELECT jobq._promote(100)");
    expect_states("swr");
    ends(3, JOBQ_EVENT_SUCCESS);
    RUN("SELECT jobq._promote(100)");
    expect_states("srs");
}

/* A child keeps its delay and its line. */
static void a_child_has_its_own_time_and_line(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k')");
    RUN("SELECT jobq.enqueue('q', 'k', after => '{1}', delay => '1 hour', line => 'a'), "
        "jobq.enqueue('q', 'k', after => '{1}', line => 'a')");
    ends(1, JOBQ_EVENT_SUCCESS);
    expect_states("srr");
    expect_text("f t", "SELECT string_agg(left((line IS NOT NULL)::text, 1), ' ' ORDER BY id) "
                       "FROM jobq.job");
    expect_text("t", "SELECT run_at > now() + interval '50 min' FROM jobq.job WHERE id = 2");
}

static void what_cannot_be_is_refused(void **unused)
{
    static const struct {
        const char *sql, *says;
    } rows[] = {
        {"enqueue('q', 'k', flow => 7)", "flow: not the id of a flow"},
        {"enqueue('q', 'k', name => 'x')", "name: needs a flow"},
        {"enqueue('q', 'k', flow => 1, name => 'a')", "not the only one of its flow (it is 'a')"},
        {"enqueue('q', 'k', flow => 1, name => '')", "must be 1 to 1024 bytes"},
        {"enqueue('q', 'k', flow => 1, after_names => '{z}')",
         "after: not the name of a job of the flow (it is 'z')"},
        {"enqueue('q', 'k', after => '{NULL}')", "after: must not have an id of NULL"},
        {"enqueue('q', 'k', after_names => '{z}')", "after: needs a flow, because it names 'z'"},
        {"enqueue('q', 'k', after => '{99}')", "after: not the id of a job (it is '99')"},
        {"enqueue('q', 'k', after_flow => 99)", "flow 99 is gone"},
        {"enqueue('q', 'k', flow => 1, after_flow => 1)", "must not be the job's own flow"},
        {"enqueue('q', 'k', after => '{1}', on_end => 'never')",
         "must be success, failure or any (it is 'never')"},
        {"enqueue('q', 'k', after => '{1}', key => 'x', on_known => 'replace')",
         "on_known: not allowed with flow"},
        {"enqueue('q', 'k', after => '{1}', key => 'known')", "has the key known"},
        {"flow('f', 'stop')", "must be hold, cancel or run (it is 'stop')"},
    };
    jobq_pg_after bad[] = {{1, "a", 0, JOBQ_ON_ANY}, {0, NULL, 0, JOBQ_ON_ANY},
                           {-1, NULL, 0, JOBQ_ON_ANY}, {1, NULL, 0, (jobq_on_end)9}};
    jobq_pg_error error;
    jobq_pg_job job = plain_job();
    size_t i;

    (void)unused;
    RUN("SELECT jobq.flow(), jobq.enqueue('q', 'k', key => 'known')");
    RUN("SELECT jobq.enqueue('q', 'k', flow => 1, name => 'a')");
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[200];
        snprintf(text, sizeof text, "SELECT jobq.%s", rows[i].sql);
        is_refused(text, rows[i].says);
    }
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        job.after = &bad[i];
        job.after_count = 1;
        assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    }
    job.after_count = 0;
    job.name = "x";
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    job.flow = 1;
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "flow");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 2);
}

#define WAIT "SELECT jobq._wait_here(9, %s, %s, 0::smallint, 0, 0, false, NULL, " \
             "ARRAY[%s]::bigint[], '{NULL}', ARRAY[%s]::bigint[], '{any}')"

/* A flow's end waits for what its jobs wait for. */
static void no_job_waits_for_a_flow_that_waits_for_it(void **unused)
{
    char text[300];

    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k', flow => jobq.flow())");
    register_worker(9, 60 * SECOND);
    claim_one(9, 1, false);
    RUN("SELECT jobq.flow(), jobq.flow()");
    RUN("SELECT jobq.enqueue('q', 'k', flow => 2, after => '{1}')");
    RUN("SELECT jobq.enqueue('q', 'k', flow => 3, after_flow => 1)");
    snprintf(text, sizeof text, WAIT, "1", "1", "NULL", "2");
    is_refused(text, "waits for job 1 itself");
    snprintf(text, sizeof text, WAIT, "1", "1", "NULL", "3");
    is_refused(text, "waits for job 1 itself");
    RUN("SELECT jobq.cancel(3::int8)");
    run_on(db, text);
    assert_int_equal(number("SELECT count(*) FROM jobq.live_jobs WHERE id = 1 AND "
                            "state <> 'running'"), 1);
}

/* Nor a new job of a flow for one that waits for the end of that flow. */
static void a_flow_waits_for_none_that_waits_for_it(void **unused)
{
    static const char wanted[] = "waits for the end of its flow";

    (void)unused;
    RUN("SELECT jobq.flow(), jobq.enqueue('q', 'k', flow => 1), jobq.flow()");
    RUN("SELECT jobq.enqueue('q', 'k', after_flow => 1)");
    is_refused("SELECT jobq.enqueue('q', 'k', flow => 1, after => '{2}')", wanted);
    RUN("SELECT jobq.enqueue('q', 'k', flow => 2, after_flow => 1)");
    is_refused("SELECT jobq.enqueue('q', 'k', flow => 1, after_flow => 2)", wanted);
    RUN("SELECT jobq.enqueue('q', 'k', flow => 1, after => '{1}')");
    RUN("SELECT jobq.cancel(2::int8), jobq.cancel(4::int8)");
    RUN("SELECT jobq.enqueue('q', 'k', flow => 1, after => '{2}', on_end => 'any')");
}

/* 3 waits for 1 and 4 for 2. Then 1 waits for 4 and 2 for 3, at the same time; or 2 for 1 and 1 for
 * the flow of 2. The second one is refused. */
static void two_jobs_begin_to_wait_in_a_circle(void **unused)
{
    static const char *const to[][4] = {{"4", "NULL", "3", "NULL"}, {"4", "NULL", "NULL", "1"}};
    PGconn *a, *b;
    char text[300], begun[320];
    int i;

    for (i = 0; i < 2; i++) {
        assert_int_equal(start_over(unused), 0);
        a = another();
        b = another();
        RUN("SELECT jobq.flow(), jobq.enqueue('q', 'k', flow => %s)", i == 0 ? "NULL" : "1");
        RUN("SELECT jobq.enqueue('q', 'k')");
        register_worker(9, 60 * SECOND);
        claim_one(9, 1, false);
        claim_one(9, 2, false);
        RUN("SELECT jobq.enqueue('q', 'k', after => ARRAY[i]) FROM generate_series(1, 2) i");
        snprintf(text, sizeof text, WAIT, "1", "1", to[i][0], to[i][1]);
        snprintf(begun, sizeof begun, "BEGIN; %s", text);
        run_on(a, begun);
        snprintf(text, sizeof text, WAIT, "2", "2", to[i][2], to[i][3]);
        asks(b, text);
        run_on(a, "COMMIT");
        refuses(b, "waits for job 2 itself");
        expect_states("wxww");
    }
}

/* The same through flows, of which each transaction knows one half. */
static void two_begin_to_wait_in_a_circle_of_flows(void **unused)
{
    PGconn *a, *b;
    char text[300], begun[320];
    bool waits_first;
    int i;

    assert_int_equal(start_over(unused), 0);
    a = another();
    b = another();
    RUN("SELECT jobq.flow(), jobq.flow()");
    run_on(a, "BEGIN; SELECT jobq.enqueue('q', 'k', flow => 1, after_flow => 2)");
    asks(b, "SELECT jobq.enqueue('q', 'k', flow => 2, after_flow => 1)");
    run_on(a, "COMMIT");
    refuses(b, "waits for the end of its flow");
    for (i = 0; i < 2; i++) {
        waits_first = i == 0;
        assert_int_equal(start_over(unused), 0);
        a = another();
        b = another();
        RUN("SELECT jobq.flow(open => true), jobq.enqueue('q', 'k')");
        register_worker(9, 60 * SECOND);
        claim_one(9, 1, false);
        RUN("SELECT jobq.enqueue('q', 'k', after => '{1}')");
        snprintf(text, sizeof text, WAIT, "1", "1", "NULL", "1");
        snprintf(begun, sizeof begun, "BEGIN; %s",
                 waits_first ? text : "SELECT jobq.enqueue('q', 'k', flow => 1, after => '{2}')");
        run_on(a, begun);
        asks(b, waits_first ? "SELECT jobq.enqueue('q', 'k', flow => 1, after => '{2}')" : text);
        run_on(a, "COMMIT");
        refuses(b, waits_first ? "waits for the end of its flow" : "waits for job 1 itself");
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
}

/* A statement looks at a thousand of them, and at what waits for their ends; workers go on with the
 * others. Before, it looked at all, and no worker ever got done with it. */
static void flows_that_end_in_one_commit_are_taken_in_turn(void **unused)
{
    int left = 1200, before;

    (void)unused;
    RUN("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT jobq.flow_close(jobq.flow(open => true))"
        " FROM generate_series(1, %d); COMMIT", left);
    assert_int_equal(number("SELECT count(*) FROM jobq.nudge"), left);
    while (left > 0) {
        before = left;
        RUN("SELECT jobq._promote(500)");
        left = (int)number("SELECT count(*) FROM jobq.nudge");
        assert_in_range(before - left, 1, 1000);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.flow WHERE ended_at IS NULL"), 0);
}

/* The same, when the second transaction has its snapshot from before: it sees nothing of the first
 * one, and is to be tried again. If it has begun afterwards, it is refused. */
static void in_repeatable_read_no_circle_comes_about(void **unused)
{
    PGconn *b = another();
    char text[300];

    (void)unused;
    register_worker(9, 60 * SECOND);
    RUN("SELECT jobq.enqueue('q', 'k'), jobq.enqueue('q', 'k')");
    claim_one(9, 1, false);
    claim_one(9, 2, false);
    RUN("SELECT jobq.enqueue('q', 'k', after => ARRAY[i]) FROM generate_series(1, 2) i");
    run_on(b, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobq.job");
    snprintf(text, sizeof text, WAIT, "1", "1", "4", "NULL");
    run_on(db, text);
    snprintf(text, sizeof text, WAIT, "2", "2", "3", "NULL");
    asks(b, text);
    refuses(b, "could not serialize access");
    run_on(b, "ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ");
    asks(b, text);
    refuses(b, "waits for job 2 itself");
    expect_states("wxww");
}

/* 1 waits for 2. Then 2 begins to wait for 3 while 3 begins to wait for 1. */
static void the_last_job_of_a_circle_looks_after_the_one_before(void **unused)
{
    PGconn *a = another(), *b = another();
    char text[300], begun[320];
    int i;

    (void)unused;
    register_worker(9, 60 * SECOND);
    RUN("SELECT jobq.enqueue('q', 'k') FROM generate_series(1, 3)");
    for (i = 1; i <= 3; i++) claim_one(9, i, false);
    snprintf(text, sizeof text, WAIT, "1", "1", "2", "NULL");
    run_on(a, text);
    snprintf(text, sizeof text, WAIT, "2", "2", "3", "NULL");
    snprintf(begun, sizeof begun, "BEGIN; %s", text);
    run_on(a, begun);
    snprintf(text, sizeof text, WAIT, "3", "3", "1", "NULL");
    asks(b, text);
    run_on(a, "COMMIT");
    refuses(b, "waits for job 3 itself");
    expect_states("wwx");
}

/* A parent that is deleted, by the verb or by hand, counts as cancelled. */
static void a_parent_that_is_deleted(void **unused)
{
    jobq_pg_error error;

    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k'), jobq.enqueue('q', 'k')");
    RUN("SELECT jobq.enqueue('q', 'k', after => ARRAY[i], on_end => 'failure') "
        "FROM generate_series(1, 2) i");
    expect_states("rrww");
    assert_int_equal(jobq_pg_delete(pg, NULL, ONE(1), NULL, &error), JOBQ_OK);
    expect_states("rrw");
    RUN("DELETE FROM jobq.job WHERE id = 2");
    RUN("SELECT jobq._promote_late(100)");
    RUN("SELECT jobq._promote(100)");
    expect_states("rr");
    assert_int_equal(number("SELECT count(*) FROM jobq.nudge"), 0);
    RUN("SELECT jobq.enqueue('q', 'k', after => '{4}'), jobq.cancel(4::int8)");
    expect_text("it does not run, because job 4 was cancelled, deleted or erased: cancel the job "
                "that waits", "SELECT reason FROM jobq.explain_job(5)");
}

/* Its producer found nothing to do, and what waits for the flow would wait for ever. */
static void a_flow_without_a_job_is_named(void **unused)
{
    char *text;

    (void)unused;
    RUN("SELECT jobq.flow('x')");
    RUN("SELECT jobq.enqueue('q', 'k', after_flow => 1)");
    text = text_of("SELECT string_agg(reason, ';') FROM jobq.explain_job(1)");
    assert_memory_equal(text, "it waits for the end of flow 1;flow 1 has no job yet: add one", 60);
    assert_non_null(strstr(text, "flow_close(1)"));
    free(text);
    RUN("SELECT jobq.enqueue('q', 'k', flow => 1)");
    expect_text("it waits for the end of flow 1", "SELECT reason FROM jobq.explain_job(1)");
    RUN("SELECT jobq.flow('y'), jobq.enqueue('q', 'k', after_flow => 2)");
    RUN("SELECT jobq.flow_close(2)");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE id = 3 AND state = 'r'"), 1);
}

/* Another job that waits is locked meanwhile: only what jobs that are gone have left is dropped. */
static void edges_of_jobs_that_live_stay(void **unused)
{
    PGconn *other = connected();

    (void)unused;
    enqueue_count(1);
    RUN("SELECT jobq.enqueue('q', 'k', after => '{1}') FROM generate_series(1, 2)");
    PQclear(sql(other, "BEGIN"));
    PQclear(sql(other, "SELECT FROM jobq.job WHERE id = 3 FOR UPDATE"));
    RUN("SELECT jobq.cancel(id => 1)");
    expect_states("cww");
    PQclear(sql(other, "COMMIT"));
    PQfinish(other);
    RUN("SELECT jobq._promote(100)");
    expect_states("cww");
    assert_int_equal(number("SELECT count(*) FROM jobq.edge WHERE holds"), 2);
}

/* So does one that has failed and is deleted, erased, or no longer kept. */
static void a_failed_parent_that_is_deleted(void **unused)
{
    static const char *const ways[] = {"SELECT jobq.delete(1::int8)",
                                       "SELECT jobq.delete('q', 'failed')",
                                       "SELECT jobq.erase('{\"a\": 1}', dry => false)",
                                       "SELECT jobq.prune(100)"};
    size_t i;

    for (i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        assert_int_equal(start_over(unused), 0);
        RUN("SELECT jobq.enqueue('q', 'k', headers => '{\"a\": 1}')");
        RUN("SELECT jobq.enqueue('q', 'k', after => '{1}')");
        ends(1, JOBQ_EVENT_DISCARD);
        expect_text("it does not run, because job 1 failed: revive it",
                    "SELECT reason FROM jobq.explain_job(2)");
        RUN("UPDATE jobq.failed SET finished_at = now() - interval '1 year'");
        RUN("%s", ways[i]);
        expect_text("it does not run, because job 1 was cancelled, deleted or erased: cancel the "
                    "job that waits", "SELECT reason FROM jobq.explain_job(2)");
        expect_text("cancelled", "SELECT state FROM jobq._parents(2)");
        assert_int_equal(number("SELECT jobq.audit()"), 0);
        RUN("SELECT jobq.cancel(2::int8)");
        assert_int_equal(number("SELECT count(*) FROM jobq.edge"), 0);
    }
}

/* A failed job knows what it has waited for, also when it is revived, in no flow. The edges go with
 * the job. */
static void a_failed_job_keeps_its_parents(void **unused)
{
    static const char *const ways[] = {"SELECT jobq.delete(3::int8)", "SELECT jobq.prune(100)",
                                       NULL};
    jobq_pg_error error;
    jobq_pg_rows rows;
    size_t i;

    for (i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        assert_int_equal(start_over(unused), 0);
        RUN("SELECT jobq.enqueue('q', 'k'), jobq.enqueue('q', 'k')");
        RUN("SELECT jobq.enqueue('q', 'k', after => '{1,2}', on_end => 'any')");
        ends(1, JOBQ_EVENT_SUCCESS);
        ends(2, JOBQ_EVENT_DISCARD);
        ends(3, JOBQ_EVENT_DISCARD);
        RUN("SELECT jobq.revive(2::int8)");
        ends(2, JOBQ_EVENT_SUCCESS); /* nobody waits for it now */
        RUN("SELECT jobq._promote(100)");
        if (ways[i] != NULL) {
            RUN("UPDATE jobq.failed SET finished_at = now() - interval '1 year'");
            RUN("%s", ways[i]);
        } else {
            RUN("SELECT jobq.revive(3::int8)");
            expect_states("ssr");
            assert_int_equal(jobq_pg_parents(pg, NULL, 3, &rows, &error), JOBQ_OK);
            assert_int_equal(rows.count, 2);
            jobq_pg_rows_clear(&rows);
            assert_int_equal(number("SELECT jobq.audit()"), 0);
            ends(3, JOBQ_EVENT_SUCCESS);
        }
        assert_int_equal(number("SELECT count(*) FROM jobq.edge"), 0);
    }
}

static void old_flows_are_forgotten(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.flow(), jobq.enqueue('q', 'k', flow => 1, name => 'a')");
    RUN("SELECT jobq.enqueue('q', 'k', flow => 1, after_names => '{a}')");
    ends(1, JOBQ_EVENT_SUCCESS);
    ends(2, JOBQ_EVENT_SUCCESS);
    RUN("SELECT jobq._promote(100)");
    RUN("SELECT jobq.prune(100)");
    assert_int_equal(number("SELECT count(*) FROM jobq.flow"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.edge"), 1);
    RUN("UPDATE jobq.flow SET ended_at = now() - interval '8 days'");
    RUN("SELECT jobq.prune(100)");
    assert_int_equal(number("SELECT (SELECT count(*) FROM jobq.flow) + (SELECT count(*) FROM "
                            "jobq.edge) + (SELECT count(*) FROM jobq.flow_job) + "
                            "(SELECT count(*) FROM jobq.flow_part)"), 0);
}

/* Failed jobs are kept longer than flows that have ended. */
static void a_job_outlives_its_flow(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.flow(), jobq.enqueue('q', 'k', flow => 1)");
    ends(1, JOBQ_EVENT_DISCARD);
    RUN("SELECT jobq._promote(100)");
    RUN("UPDATE jobq.flow SET ended_at = now() - interval '8 days'");
    RUN("SELECT jobq.prune(100)");
    RUN("SELECT jobq.revive(1::int8)");
    ends(1, JOBQ_EVENT_SUCCESS);
    expect_states("s");
    assert_int_equal(number("SELECT count(*) FROM jobq.flow_part"), 0);
}

/* A copy that lacks the sequences gives no new flow the id of an old one with a failed job. */
static void a_forgotten_flows_id_is_not_given_again(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.flow(), jobq.enqueue('q', 'k', flow => 1)");
    ends(1, JOBQ_EVENT_DISCARD);
    RUN("UPDATE jobq.failed SET flow_id = 5000000");
    restart_ids("flow");
    RUN("SELECT jobq.renew()");
    assert_true(number("SELECT jobq.flow()") > 5000000);
}

/* In a copy, ids that were given out are not given again, and what waits is looked at. */
static void a_copy_of_a_flow_goes_on(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.flow(), jobq.enqueue('q', 'k', flow => 1), jobq.enqueue('q', 'k')");
    RUN("SELECT jobq.enqueue('q', 'k', flow => 1, after => '{1,2}')");
    ends(1, JOBQ_EVENT_SUCCESS);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    RUN("DELETE FROM jobq.nudge");
    restart_ids("flow");
    restart_ids("nudge");
    RUN("UPDATE jobq.edge SET came = 's', holds = false");
    assert_int_equal(number("SELECT jobq.audit()"), 1);
    RUN("SELECT jobq.renew()");
    assert_true(number("SELECT jobq.flow()") > 1);
    RUN("SELECT jobq._promote(100)");
    expect_states("srr");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start_over, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_end_does_what_the_edge_says),
        TEST(a_parent_may_have_ended_before),
        TEST(parents_that_end_at_the_same_time),
        TEST(a_parent_ends_after_the_edge_is_written),
        TEST(no_edge_outlives_its_jobs),
        TEST(a_diamond_runs_in_order),
        TEST(a_flow_that_is_held_goes_on),
        TEST(a_flow_that_waits_in_vain_is_held),
        TEST(a_failure_cancels_a_deep_chain),
        TEST(a_deep_flow_is_revived_and_cancelled_in_steps),
        TEST(an_open_transaction_keeps_no_others),
        TEST(handlers_that_share_a_row_do_not_deadlock),
        TEST(what_an_open_transaction_leaves_is_found),
        TEST(ends_share_no_row_of_the_flow),
        TEST(a_batch_has_one_callback),
        TEST(a_flow_without_jobs_ends),
        TEST(an_open_flow_that_is_cancelled_ends),
        TEST(a_batch_ends_with_a_message),
        TEST(what_cannot_be_decided_makes_way),
        TEST(a_whole_flow_is_cancelled),
        TEST(the_rows_of_a_flow_are_locked),
        TEST(a_flow_is_cancelled_under_a_producer),
        TEST(a_flow_is_cancelled_while_a_job_is_given_back),
        TEST(a_flow_is_cancelled_under_a_handler),
        TEST(a_failed_parent_is_revived),
        TEST(a_failed_parent_is_revived_meanwhile),
        TEST(a_revival_wakes_the_workers_of_each_queue),
        TEST(a_producer_and_an_operator_of_a_flow),
        TEST(a_flow_is_revived_under_one_that_waits),
        TEST(an_open_flow_ends_when_it_is_closed),
        TEST(a_flow_does_not_end_under_a_producer),
        TEST(a_child_has_its_own_time_and_line),
        TEST(what_cannot_be_is_refused),
        TEST(no_job_waits_for_a_flow_that_waits_for_it),
        TEST(a_flow_waits_for_none_that_waits_for_it),
        TEST(two_jobs_begin_to_wait_in_a_circle),
        TEST(two_begin_to_wait_in_a_circle_of_flows),
        TEST(flows_that_end_in_one_commit_are_taken_in_turn),
        TEST(in_repeatable_read_no_circle_comes_about),
        TEST(the_last_job_of_a_circle_looks_after_the_one_before),
        TEST(a_parent_that_is_deleted),
        TEST(a_flow_without_a_job_is_named),
        TEST(edges_of_jobs_that_live_stay),
        TEST(a_failed_parent_that_is_deleted),
        TEST(a_failed_job_keeps_its_parents),
        TEST(old_flows_are_forgotten),
        TEST(a_job_outlives_its_flow),
        TEST(a_forgotten_flows_id_is_not_given_again),
        TEST(a_copy_of_a_flow_goes_on),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
