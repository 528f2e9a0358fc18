/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_thresholds.c -- the limits and times of the SQL are exact. A value just inside a limit is
 * accepted, and one just outside it is refused.
 */
#include "pg.h"

static int queue_id;

static int set_up(void **state)
{
    int failed = pg_up(state);

    if (failed) return failed;
    RUN("SELECT jobq.enqueue('q', 'k')");
    RUN("DELETE FROM jobq.job");
    queue_id = (int)number("SELECT id FROM jobq.queue WHERE name = 'q'");
    return 0;
}

/* What prune deletes of what is 23 and 25 hours old, where a day is kept. */
static void prune_keeps_for_as_long_as_it_says(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', key_keep => '1 day', failed_keep => '1 day')");
    RUN("INSERT INTO jobq.idempotency (queue_id, key, job_id, ended_at)"
        " SELECT %d, 'key ' || h, h, now() - h * interval '1 hour'"
        " FROM unnest('{23, 25}'::int[]) h",
        queue_id);
    RUN("INSERT INTO jobq.worker (id, name, lease_us, expires_at, dead_at, queues, kinds)"
        " SELECT h, 'w', 1000000, now(), now() - h * interval '1 hour', '{}', '{}'"
        " FROM unnest('{23, 25}'::int[]) h");
    RUN("SELECT jobq.prune(1000)");
    assert_int_equal(number("SELECT job_id FROM jobq.idempotency"), 23);
    assert_int_equal(number("SELECT id FROM jobq.worker"), 23);
    RUN("DELETE FROM jobq.idempotency");
    RUN("DELETE FROM jobq.worker");
}

/* A job that ends does not begin the window of a key that a newer job has. */
static void a_key_ends_with_the_job_that_has_it(void **unused)
{
    (void)unused;
    RUN("INSERT INTO jobq.idempotency (queue_id, key, job_id) VALUES (%d, 'k', 2)", queue_id);
    RUN("SELECT jobq._end_keys('{1}', '{%d}', '{k}')", queue_id);
    assert_int_equal(number("SELECT count(ended_at) FROM jobq.idempotency"), 0);
    RUN("SELECT jobq._end_keys('{2}', '{%d}', '{k}')", queue_id);
    assert_int_equal(number("SELECT count(ended_at) FROM jobq.idempotency"), 1);
    RUN("DELETE FROM jobq.idempotency");
}

/* Of errors 50, and an entry that counts the others, at each number of them. */
static void as_many_are_kept_as_it_says(void **unused)
{
    static const char after[] =
        "WITH RECURSIVE e (n, errors) AS (SELECT 0, '[]'::jsonb UNION ALL SELECT n + 1,"
        " jobq._add_error(errors, jsonb_build_object('error', n)) FROM e WHERE n < %d)"
        " SELECT count(i -> 'error') * 1000 + coalesce(sum((i ->> 'dropped')::int), 0)"
        " FROM e, jsonb_array_elements(errors) AS i WHERE n = %d";
    char query[500];
    int n;

    (void)unused;
    for (n = 48; n <= 60; n++) {
        snprintf(query, sizeof query, after, n, n);
        assert_int_equal(number(query), n <= 50 ? n * 1000 : 50000 + n - 50);
    }
    assert_int_equal(number("SELECT cardinality(jobq._outbox_tried(ARRAY(SELECT generate_series(1,"
                            " 150)::bigint), 0, 151))"), 100);
}

static void a_payload_may_be_as_large_as_it_says(void **unused)
{
    static const char check[] =
        "SELECT jobq._check_job(%d, to_jsonb(repeat('x', %d)), NULL, NULL, NULL, NULL, NULL, NULL,"
        " NULL, NULL)";
    char generic[300], *text;
    PGresult *res;

    (void)unused;
    RUN("SELECT jobq.queue_set('q', payload_max => 1000)");
    RUN(check, queue_id, 998); /* and two quotation marks */
    snprintf(generic, sizeof generic, check, queue_id, 999);
    text = for_schema(generic, schema);
    res = PQexec(db, text);
    assert_non_null(strstr(PQresultErrorMessage(res), "payload"));
    PQclear(res);
    free(text);
    RUN("SELECT jobq.queue_set('q', payload_max => 100000)");
}

/* A tick exactly at the first or the last instant of a schedule fires. */
static void a_tick_at_the_edge_of_a_schedule_fires(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.schedule('every', 'q', 'k', every => '1 hour',"
        " starts_at => '2030-01-01 00:00Z', ends_at => '2030-01-01 02:00Z')");
    RUN("SELECT jobq.schedule('cron', 'q', 'k', cron => '0 * * * *',"
        " starts_at => '2030-01-01 00:00Z', ends_at => '2030-01-01 02:00Z')");
    assert_int_equal(number("SELECT count(*) FROM jobq.schedule s"
                            " WHERE jobq._schedule_after(s, now()) = s.starts_at"
                            " AND jobq._schedule_after(s, s.ends_at - interval '1 us') = s.ends_at"
                            " AND jobq._schedule_after(s, s.ends_at) IS NULL"), 2);
    RUN("SELECT jobq.schedule_drop('every'), jobq.schedule_drop('cron')");
}

static void the_oldest_suspect_is_first(void **unused)
{
    (void)unused;
    enqueue_count(3);
    RUN("UPDATE jobq.job SET suspect = true, run_at = now() - (id %% 3) * interval '1 minute'");
    assert_int_equal(number("SELECT (ids[1] = (SELECT id FROM jobq.job"
                            " ORDER BY run_at LIMIT 1))::int"
                            " FROM jobq._claim_suspect('{%d}', '{0}', '{0}', NULL, false)",
                            queue_id), 1);
    RUN("DELETE FROM jobq.job");
}

/* The next stage of a job is work for a worker that sleeps. */
static void the_next_stage_wakes_a_sleeper(void **unused)
{
    jobq_pg_job plain = plain_job();
    jobq_job job;
    PGnotify *heard;

    (void)unused;
    plain.stages = 2;
    register_worker(101, 600 * SECOND);
    enqueue_with(&plain);
    have_all_kinds();
    job = claim_one(101, 1, false);
    RUN("INSERT INTO jobq.sleeper (queue_id, worker) VALUES (%d, 77)", queue_id);
    RUN("LISTEN jobq_4d");
    assert_int_equal(settle_with(&job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    RUN("SELECT 1");
    heard = PQnotifies(db);
    assert_non_null(heard);
    assert_string_equal(heard->relname, "jobq_4d");
    PQfreemem(heard);
    RUN("UNLISTEN *");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(prune_keeps_for_as_long_as_it_says),
        cmocka_unit_test(a_key_ends_with_the_job_that_has_it),
        cmocka_unit_test(as_many_are_kept_as_it_says),
        cmocka_unit_test(a_payload_may_be_as_large_as_it_says),
        cmocka_unit_test(a_tick_at_the_edge_of_a_schedule_fires),
        cmocka_unit_test(the_oldest_suspect_is_first),
        cmocka_unit_test(the_next_stage_wakes_a_sleeper),
    };

    return cmocka_run_group_tests(tests, set_up, pg_down);
}
