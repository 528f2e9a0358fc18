/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_retention.c -- how long ended jobs are kept: three rings that turn by their own times,
 * queues and kinds that choose one or none, and what is said of a job that is no longer kept.
 */
#include "pg_work.h"

#define WORKER 101

/* Test setup: empty tables, and rings as they were installed. */
static int rings_as_new(void **state)
{
    int code = pg_empty(state);

    RUN("UPDATE jobq.ring SET slot = first, since = now(), varies = false, keep = CASE retention "
        "WHEN 'short' THEN '1 hour' WHEN 'medium' THEN '1 day' ELSE '30 days' END::interval");
    return code;
}

/* Another session. If the test fails in its transaction, it must not hold up what follows. */
static PGconn *beside(void)
{
    PGconn *conn = PQconnectdb(server());

    PQclear(sql(conn, "SET idle_in_transaction_session_timeout = '20 s'"));
    return conn;
}

/* -- the rings -- */

static const char *const classes[] = {"short", "medium", "long"};

/* A job that ends now, in the part of this class that is written. */
static void ends_in(const char *retention, long id)
{
    RUN("INSERT INTO jobq.history (slot, id, run_at, enqueued_at, finished_at, queue_id, kind_id, "
        "attempt, crash, priority, stage, stages, state) SELECT slot, %ld, now(), now(), now(), 1, "
        "1, 1, 0, 0, 0, 1, 's' FROM jobq.ring WHERE retention = '%s'", id, retention);
}

static void written_for(const char *retention, const char *age)
{
    RUN("UPDATE jobq.ring SET since = now() - interval '%s' WHERE retention = '%s'", age,
        retention);
}

static long turns(void)
{
    return number("SELECT jobq.turn()::int");
}

static void expect_slots(const char *wanted)
{
    expect_text(wanted, "SELECT string_agg(slot::text, ' ' ORDER BY first) FROM jobq.ring");
}

static void each_ring_turns_by_its_own_time(void **unused)
{
    static const struct {
        const char *young, *old, *slots;
    } ages[] = {{"8 minutes", "9 minutes", "1 8 16"},
                {"205 minutes", "206 minutes", "1 9 16"},
                {"4 days 6 hours", "4 days 7 hours", "1 9 17"}};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(ages); i++) {
        written_for(classes[i], ages[i].young);
        assert_int_equal(turns(), 0);
        written_for(classes[i], ages[i].old);
        assert_int_equal(turns(), 1);
        expect_slots(ages[i].slots);
        assert_int_equal(turns(), 0);
    }
    RUN("SELECT jobq.retention_set('short', '7 hours')");
    RUN("SELECT jobq.retention_set('long', '70 minutes')");
    written_for("short", "59 minutes");
    written_for("long", "9 minutes");
    assert_int_equal(turns(), 0);
    written_for("short", "61 minutes");
    written_for("long", "11 minutes");
    assert_int_equal(turns(), 1);
    expect_slots("2 9 18");
}

/* A job outlasts seven turns of its ring, goes with the eighth, and does not see those of the
 * other rings. */
static void a_ring_empties_only_its_own_parts(void **unused)
{
    long kept;
    size_t c;
    int i;

    (void)unused;
    for (c = 0; c < 3; c++) {
        for (i = 0; i < 3; i++) ends_in(classes[i], (long)c * 100 + i);
        kept = number("SELECT count(*) FROM jobq.history");
        for (i = 1; i <= 8; i++) {
            assert_int_equal(number("SELECT count(*) FROM jobq.history"), kept + i - 1);
            written_for(classes[c], "32 days");
            assert_int_equal(turns(), 1);
            if (i < 8) ends_in(classes[c], (long)c * 100 + 10 + i);
        }
        assert_int_equal(number("SELECT count(*) FROM jobq.history"), kept + 7 - (long)c - 1);
        expect_slots("0 8 16");
    }
}

/* The part that comes next in one ring is being read, or an operator has detached it. */
static void a_ring_that_cannot_turn_holds_up_no_other(void **unused)
{
    static const char *const slots[] = {"0 9 17", "1 8 17", "1 9 16"};
    PGconn *reader = beside();
    size_t c;

    (void)unused;
    for (c = 0; c < 3; c++) {
        int part = (int)c * 8 + 1;
        rings_as_new(NULL);
        RUN("UPDATE jobq.ring SET since = '-infinity'");
        PQclear(sql(reader, "BEGIN; TABLE jobq.history_%d", part));
        assert_int_equal(turns(), 1);
        expect_slots(slots[c]);
        assert_int_equal(turns(), 0);
        PQclear(sql(reader, "ROLLBACK"));
        assert_int_equal(turns(), 1);
        expect_slots("1 9 17");

        rings_as_new(NULL);
        RUN("UPDATE jobq.ring SET slot = first + 1");
        ends_in(classes[c], 1);
        RUN("ALTER TABLE jobq.history DETACH PARTITION jobq.history_%d", part);
        RUN("UPDATE jobq.ring SET slot = first, since = '-infinity'");
        assert_int_equal(turns(), 1);
        expect_slots(slots[c]);
        assert_int_equal(number("SELECT count(*) FROM jobq.history_%d", part), 1);
        RUN("ALTER TABLE jobq.history ATTACH PARTITION jobq.history_%d FOR VALUES IN (%d)", part,
            part);
        assert_int_equal(turns(), 1);
        expect_slots("1 9 17");
        assert_int_equal(number("SELECT count(*) FROM jobq.history"), 0);
    }
    PQfinish(reader);
}

/* -- who chooses -- */

static const char kept[] =
    "SELECT string_agg(concat_ws(' ', r.retention, k.queue, k.name, h.state, h.n), ', ' ORDER BY "
    "r.first, k.queue, k.name, h.state) FROM (SELECT slot, kind_id, state, count(*) AS n FROM "
    "jobq.history GROUP BY 1, 2, 3) h JOIN jobq.kind k ON k.id = h.kind_id JOIN jobq.ring r ON "
    "h.slot BETWEEN r.first AND r.first + 7";

/* Queue q keeps for a day, brief for an hour; of each, some kinds differ. */
static void choose(void)
{
    static const char *const kinds[] = {"as_queue"};
    jobq_pg_queue_desc d;
    jobq_pg_error error;

    RUN("SELECT jobq.queue_set('q', kinds => '{as_queue}')");
    RUN("SELECT jobq.queue_set('q', kind => 'longer', retention => 'long')");
    RUN("SELECT jobq.queue_set('q', kind => 'none', history => false, retention => 'long')");
    memset(&d, 0, sizeof d);
    d.retention = "short";
    d.kinds = kinds;
    d.kind_count = 1;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "brief", &d, &error), JOBQ_OK);
    memset(&d, 0, sizeof d);
    d.kind = "longer";
    d.retention = "medium";
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "brief", &d, &error), JOBQ_OK);
    d.kind = "none";
    d.retention = NULL;
    d.history = JOBQ_PG_OFF;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "brief", &d, &error), JOBQ_OK);
    RUN("SELECT jobq.enqueue(k.queue, k.name, key => CASE WHEN n < 3 THEN k.name || n END) "
        "FROM jobq.kind k, generate_series(1, 4) n ORDER BY n");
}

/* One batch, of two claims, ends jobs of all classes and of none, some with keys. */
static void a_batch_goes_where_its_kinds_say(void **unused)
{
    (void)unused;
    choose();
    RUN("UPDATE jobq.job SET state = 'x', worker = 7, claim = id %% 2 + 1, attempt = 1");
    assert_int_equal(number(
        "SELECT count(*) FROM (SELECT array_agg(id ORDER BY claim, id) AS ids FROM jobq.job) j, "
        "jobq._complete('{7, 7}', '{1, 2}', '{12, 12}', j.ids)"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    expect_text("short brief as_queue s 4, medium brief longer s 4, medium q as_queue s 4, "
                "long q longer s 4", kept);
    assert_int_equal(number("SELECT count(*) FROM jobq.idempotency WHERE ended_at IS NOT NULL"),
                     12);
    assert_int_equal(number("SELECT count(*) FROM jobq.past_jobs"), 16);
}

static void cancelled_jobs_go_where_their_kinds_say(void **unused)
{
    (void)unused;
    choose();
    RUN("SELECT jobq.cancel('q'), jobq.cancel('brief')");
    expect_text("short brief as_queue c 4, medium brief longer c 4, medium q as_queue c 4, "
                "long q longer c 4", kept);
}

/* A choice counts for what ends after it, and a reset takes a kind's back. */
static void a_choice_can_be_changed(void **unused)
{
    static const char *const choices[] = {
        "'q', retention => 'long'", "'q', kind => 'k', retention => 'short'",
        "'q', retention => 'medium'", "'q', kind => 'k', max_attempts => 2",
        "'q', kind => 'k', reset => true"};
    char *first;
    size_t i;

    (void)unused;
    register_worker(WORKER, 600 * SECOND);
    for (i = 0; i < COUNT(choices); i++) {
        jobq_job job;
        jobq_pg_job plain = plain_job();
        RUN("SELECT jobq.queue_set(%s)", choices[i]);
        enqueue_with(&plain);
        job = claim_one(WORKER, (int64_t)i + 1, false);
        assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    }
    expect_text("short q k s 3, medium q k s 1, long q k s 1", kept);
    assert_int_equal(number("SELECT (done_per_s > 0)::int FROM jobq.queues"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.queues"), 1);
    first = text_of("SELECT retention FROM jobq.queue");
    assert_string_equal(first, "medium");
    free(first);
}

static void refused_in_sql(const char *call, const char *told)
{
    char text[128];
    PGresult *res;

    snprintf(text, sizeof text, "SELECT %s.%s", schema, call);
    res = PQexec(db, text);
    assert_int_equal(PQresultStatus(res), PGRES_FATAL_ERROR);
    assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "22023");
    assert_string_equal(PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY), told);
    PQclear(res);
}

static void a_wrong_class_is_refused_by_name(void **unused)
{
    static const char *const calls[] = {
        "queue_set('q', retention => 'forever')", "queue_set('q', kind => 'k', retention => '')",
        "retention_set('week', '7 days')", "retention_set(NULL, '7 days')"};
    static const char told[] = "invalid retention: must be short, medium or long";
    jobq_pg_queue_desc d;
    jobq_pg_error error;
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(calls); i++) refused_in_sql(calls[i], told);
    refused_in_sql("retention_set('short', '-1 hour')",
                   "invalid keep: must be a finite interval, at least a millisecond");
    memset(&d, 0, sizeof d);
    d.retention = "day";
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_ERROR_INVALID);
    assert_memory_equal(error.message, told, sizeof told - 1); /* and then the value */
    assert_string_equal(error.value, "day");
    assert_string_equal(error.field, "retention");
    d.kind = "k";
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_ERROR_INVALID);
    refused_in_sql("retention_set('day', '1 s')", told);
    refused_in_sql("retention_set(NULL, '1 s')", told);
    refused_in_sql("retention_set('short', '0')",
                   "invalid keep: must be a finite interval, at least a millisecond");
    assert_int_equal(number("SELECT count(*) FROM jobq.queue"), 0);
    assert_int_equal(number("SELECT varies::int FROM jobq.ring WHERE first = 8"), 0);
}

/* -- what is said of a job that is in no table -- */

static const char gone[] = "gone", never[] = "";

/* word: the name of its state. */
static void expect_standing(int64_t id, const char *word)
{
    bool there = word != gone && word != never;
    jobq_error wanted = there ? JOBQ_OK : JOBQ_ERROR_NOT_FOUND;
    char told[64], *standing = text_of("SELECT jobq.standing(%lld)", (long long)id);
    jobq_pg_error error;
    jobq_job job;

    assert_string_equal(standing, word == never ? "none" : word);
    free(standing);
    assert_int_equal(jobq_pg_get(pg, NULL, id, &job, &error), wanted);
    if (there) {
        assert_string_equal(jobq_enum_name(JOBQ_ENUM_STATE, job.state), word);
        return;
    }
    snprintf(told, sizeof told, word == gone ? "Gone: job with id=%lld; it ended"
             : "Not found: job with id=%lld", (long long)id);
    assert_memory_equal(error.message, told, strlen(told));
    assert_string_equal(error.value, word == gone ? gone : strchr(told, '=') + 1);
    if (id == 0) return; /* names no job */
    assert_int_equal(jobq_pg_revive(pg, NULL, ONE(id), NULL, &error), JOBQ_ERROR_NOT_FOUND);
    assert_memory_equal(error.message, told, strlen(told));
}

static void an_id_tells_whether_its_job_existed(void **unused)
{
    jobq_pg_job job = plain_job();
    PGconn *other = beside();
    jobq_pg_error error;
    int64_t id;

    (void)unused;
    id = enqueue_with(&job);
    expect_standing(id, "ready");
    expect_standing(id + 1, never);
    expect_standing(0, never);
    expect_standing(-1, never);
    expect_standing(INT64_MAX, never);
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(id), NULL, NULL, &error), JOBQ_OK);
    expect_standing(id, "cancelled");
    RUN("UPDATE jobq.ring SET slot = first + 7, since = '-infinity'");
    RUN("SELECT jobq.turn()");
    expect_standing(id, gone);

    id = enqueue_with(&job);
    assert_int_equal(jobq_pg_delete(pg, NULL, ONE(id), NULL, &error), JOBQ_OK);
    expect_standing(id, gone);
    PQclear(sql(other, "BEGIN"));
    assert_int_equal(jobq_pg_enqueue(pg, other, &job, &id, &error), JOBQ_OK);
    expect_standing(id, gone);
    PQclear(sql(other, "COMMIT"));
    expect_standing(id, "ready");
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    expect_standing(id + 1, "ready");
    RUN("DELETE FROM jobq.job");
    expect_standing(id + 1, gone);
    expect_standing(id + 2, never);
    PQfinish(other);
}

/* Nothing was given out yet, and sequences that start at 1 say 1. */
static void the_first_id_never_existed(void **unused)
{
    (void)unused;
    RUN("ALTER SEQUENCE jobq.job_id RESTART");
    expect_standing(1, never);
    assert_int_equal(number("SELECT jobq.enqueue('q', 'k')"), 1);
    expect_standing(1, "ready");
    RUN("DELETE FROM jobq.job");
    expect_standing(1, gone);
    expect_standing(2, never);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(each_ring_turns_by_its_own_time, rings_as_new),
        cmocka_unit_test_setup(a_ring_empties_only_its_own_parts, rings_as_new),
        cmocka_unit_test_setup(a_ring_that_cannot_turn_holds_up_no_other, rings_as_new),
        cmocka_unit_test_setup(a_batch_goes_where_its_kinds_say, rings_as_new),
        cmocka_unit_test_setup(cancelled_jobs_go_where_their_kinds_say, rings_as_new),
        cmocka_unit_test_setup(a_choice_can_be_changed, rings_as_new),
        cmocka_unit_test_setup(a_wrong_class_is_refused_by_name, rings_as_new),
        cmocka_unit_test_setup(an_id_tells_whether_its_job_existed, rings_as_new),
        cmocka_unit_test_setup(the_first_id_never_existed, rings_as_new),
    };

    return cmocka_run_group_tests_name("retention", tests, pg_up, pg_down);
}
