/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_export.c -- which part of history is exported next, who waits for whom, and how long a
 * ring waits. tests/python/test_export.py reads back what jobq export writes.
 */
#include "pg_work.h"

static int with_ring(void **state)
{
    fresh(state);
    RUN("UPDATE jobq.ring SET slot = first, turns = 8, exported = 0, export_wait = NULL, since = "
        "now() - interval '1 h', keep = '7 h'");
    return 0;
}

static void put(int first, int count)
{
    RUN("SELECT jobq.enqueue('q', 'k', jsonb_build_object('n', n)) FROM generate_series(%d, %d) n; "
        "DO $$ DECLARE w bigint := (SELECT worker FROM jobq.work_join('{\"q\": [\"k\"]}')); BEGIN "
        "PERFORM jobq.work_done(w, 1, t.id) FROM jobq.work_take(w, 1, 1000) t; "
        "PERFORM jobq.work_leave(w); END $$", first, first + count - 1);
}

/* Time passes until the ring of medium may turn, and it does, or waits. */
static bool turns(const char *later)
{
    long before = number("SELECT turns FROM jobq.ring WHERE retention = 'medium'");

    RUN("UPDATE jobq.ring SET since = now() - interval '%s' WHERE retention = 'medium'", later);
    RUN("SELECT jobq.turn()");
    return number("SELECT turns FROM jobq.ring WHERE retention = 'medium'") == before + 1;
}

/* What is exported next, and its jobs. */
static void next_is(const char *wanted)
{
    char *text = text_of("SELECT coalesce((SELECT concat_ws(' ', e.retention, e.part, (SELECT "
                         "string_agg(payload ->> 'n', ',' ORDER BY id) FROM jobq.ended h WHERE "
                         "h.slot = e.slot)) FROM jobq.export_next() e), '-')");

    assert_string_equal(text, wanted);
    free(text);
}

static void each_part_comes_once_when_it_is_finished(void **unused)
{
    (void)unused;
    put(1, 2);
    next_is("-"); /* it is still written */
    assert_true(turns("2 h"));
    next_is("-"); /* a statement may still be at work */
    RUN("UPDATE jobq.ring SET since = now() - interval '61 s'");
    next_is("medium 8 1,2");
    next_is("medium 8 1,2"); /* nobody has said that it is done */
    put(3, 1);
    next_is("medium 8 1,2");
    RUN("SELECT jobq.export_done('medium', 8)");
    next_is("-");
    assert_true(turns("2 h"));
    assert_true(turns("2 h")); /* an empty one */
    put(4, 1);
    assert_true(turns("2 h"));
    RUN("UPDATE jobq.ring SET since = now() - interval '61 s'");
    next_is("medium 9 3");
    RUN("SELECT jobq.export_done('medium', 9)");
    next_is("medium 11 4");
    RUN("SELECT jobq.export_done('medium', 11), jobq.export_done('medium', 9)");
    assert_int_equal(number("SELECT exported FROM jobq.ring WHERE retention = 'medium'"), 11);
    next_is("-");
}

static void a_part_of_a_ring_that_went_round_is_the_right_one(void **unused)
{
    int i;

    (void)unused;
    for (i = 1; i <= 20; i++) {
        put(i, 1);
        assert_true(turns("2 h"));
    }
    RUN("UPDATE jobq.ring SET since = now() - interval '61 s'");
    next_is("medium 21 14"); /* parts 8 to 20 are emptied, and 27 was the last */
    assert_int_equal(number("SELECT count(*) FROM jobq.ended"), 7);
}

static void only_one_exports_a_part_and_nobody_changes_it(void **unused)
{
    static const char change[] = "DELETE FROM jobq.history WHERE slot = 8";
    PGconn *other = PQconnectdb(server()), *there = functions_at();
    PGresult *res;
    char *text;

    (void)unused;
    put(1, 1);
    assert_true(turns("2 h"));
    RUN("UPDATE jobq.ring SET since = now() - interval '61 s'");
    text = for_schema("BEGIN; SELECT part FROM jobq.export_next()", schema);
    res = PQexec(other, text);
    assert_string_equal(PQgetvalue(res, 0, 0), "8");
    PQclear(res);
    free(text);
    next_is("-");
    PQclear(sql(there, "BEGIN; SET LOCAL lock_timeout = '100ms'"));
    text = for_schema(change, schema);
    if (there != db) {
        char *generic = text;
        text = for_shards(generic);
        free(generic);
    }
    res = PQexec(there, text);
    assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "55P03");
    PQclear(res);
    free(text);
    PQclear(sql(there, "ROLLBACK"));
    put(2, 1); /* jobs go on ending */
    PQfinish(other); /* the exporter dies */
    assert_true(becomes(30, 8, "SELECT coalesce((SELECT part FROM jobq.export_next()), 0)"));
    next_is("medium 8 1");
}

static void a_writer_that_is_under_way_is_waited_for(void **unused)
{
    PGconn *other = PQconnectdb(server());
    char *text;

    (void)unused;
    put(1, 1);
    RUN("SELECT jobq.enqueue('q', 'k', '{\"n\": 2}')");
    text = for_schema("BEGIN; DO $$ DECLARE w bigint := (SELECT worker FROM jobq.work_join("
                      "'{\"q\": [\"k\"]}')); BEGIN PERFORM jobq.work_done(w, 1, t.id) FROM "
                      "jobq.work_take(w, 1) t; END $$", schema);
    PQclear(PQexec(other, text));
    free(text);
    assert_true(turns("2 h"));
    RUN("UPDATE jobq.ring SET since = now() - interval '61 s'");
    next_is("-");
    PQclear(PQexec(other, "COMMIT"));
    next_is("medium 8 1,2");
    PQfinish(other);
}

/* A part that an operator has detached cannot be read, so it is not exported, nor are those after
 * it; it is when it is back, or another one is in its place. */
static void a_detached_part_is_waited_for(void **unused)
{
    (void)unused;
    put(1, 1);
    assert_true(turns("2 h"));
    put(2, 1);
    assert_true(turns("2 h"));
    RUN("UPDATE jobq.ring SET since = now() - interval '61 s'");
    RUN("ALTER TABLE jobq.history DETACH PARTITION jobq.history_8");
    next_is("-");
    assert_int_equal(number("SELECT exported FROM jobq.ring WHERE retention = 'medium'"), 7);
    RUN("ALTER TABLE jobq.history_8 RENAME TO archive");
    next_is("-");
    RUN("CREATE TABLE jobq.history_8 (LIKE jobq.history INCLUDING ALL)");
    next_is("-");
    RUN("DROP TABLE jobq.history_8; ALTER TABLE jobq.archive RENAME TO history_8");
    RUN("ALTER TABLE jobq.history ATTACH PARTITION jobq.history_8 FOR VALUES IN (8)");
    next_is("medium 8 1");
    RUN("SELECT jobq.export_done('medium', 8)");
    next_is("medium 9 2");
    RUN("ALTER TABLE jobq.history DETACH PARTITION jobq.history_10");
    assert_int_equal(number("SELECT count(*) FROM jobq.queues WHERE queue = 'q'"), 1);
    RUN("ALTER TABLE jobq.history ATTACH PARTITION jobq.history_10 FOR VALUES IN (10)");
}

static void a_ring_waits_for_the_export_within_a_bound(void **unused)
{
    int i;

    (void)unused;
    RUN("SELECT jobq.export_set('medium', '1 day')");
    put(1, 1);
    for (i = 0; i < 7; i++) assert_true(turns("2 h")); /* those that follow were empty */
    assert_false(turns("2 h"));
    assert_int_equal(number("SELECT count(*) FROM jobq.ended"), 1);
    assert_false(turns("24 h"));
    RUN("UPDATE jobq.ring SET since = now() - interval '2 h'");
    next_is("medium 8 1");
    assert_false(turns("24 h"));
    RUN("SELECT jobq.export_done('medium', 8)");
    assert_true(turns("2 h"));
    assert_int_equal(number("SELECT count(*) FROM jobq.ended"), 0);
    put(2, 1);
    for (i = 0; i < 7; i++) assert_true(turns("2 h"));
    assert_false(turns("24 h"));
    assert_true(turns("26 h")); /* an hour, and the day */
    put(3, 1);
    for (i = 0; i < 7; i++) assert_true(turns("2 h"));
    assert_false(turns("2 h"));
    RUN("SELECT jobq.export_set('medium', NULL)");
    assert_true(turns("2 h"));
}

static void wrong_settings_are_refused(void **unused)
{
    static const char *const calls[] = {"'medium', '0 s'", "'medium', '-1 s'", "'none', '1 s'",
                                        "NULL, '1 s'"};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(calls); i++) {
        char generic[100], *text;
        PGresult *res;
        snprintf(generic, sizeof generic, "SELECT jobq.export_set(%s)", calls[i]);
        text = for_schema(generic, schema);
        res = PQexec(db, text);
        assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "22023");
        PQclear(res);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(each_part_comes_once_when_it_is_finished, with_ring),
        cmocka_unit_test_setup(a_part_of_a_ring_that_went_round_is_the_right_one, with_ring),
        cmocka_unit_test_setup(only_one_exports_a_part_and_nobody_changes_it, with_ring),
        cmocka_unit_test_setup(a_writer_that_is_under_way_is_waited_for, with_ring),
        cmocka_unit_test_setup(a_detached_part_is_waited_for, with_ring),
        cmocka_unit_test_setup(a_ring_waits_for_the_export_within_a_bound, with_ring),
        cmocka_unit_test_setup(wrong_settings_are_refused, with_ring),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
