/*
 * test_pg_erase.c -- erasure: every place that can hold what a person's jobs carried, live ones,
 * pages, and that nobody else's data change.
 */
#include "pg_work.h"

#define SECRET "tulip"
#define PERSON "'{\"person\": \"4711\"}'"

/* Which tables show the secret, in alphabetical order. The caller frees it. */
static char *places(void)
{
    PGresult *res = sql(db, "SELECT quote_ident(table_name) FROM information_schema.tables WHERE "
                            "table_schema = '%s' AND table_type = 'BASE TABLE' AND table_name !~ "
                            "'^history_' ORDER BY 1", schema);
    char *out = (char *)calloc(1, 2000);
    int i;

    assert_true(PQntuples(res) > 20);
    for (i = 0; i < PQntuples(res); i++) {
        if (number("SELECT count(*) FROM jobq.%s t WHERE t::text LIKE '%%%s%%' OR t::text LIKE "
                   "'%%' || encode('%s', 'hex') || '%%'", PQgetvalue(res, i, 0), SECRET,
                   SECRET) > 0) {
            strcat(strcat(out, out[0] == '\0' ? "" : " "), PQgetvalue(res, i, 0));
        }
    }
    PQclear(res);
    return out;
}

static void shows(const char *wanted)
{
    char *got = places();

    assert_string_equal(got, wanted);
    free(got);
}

/* A row of the report. */
static void reports(const char *wanted, const char *arguments)
{
    char query[600];

    snprintf(query, sizeof query, "SELECT string_agg(concat_ws('/', place, matched, erased, "
             "still_live), ' ') FROM jobq.erase(" PERSON "%s) "
             "WHERE looked IS NOT NULL AND matched > "
             "0", arguments);
    expect_text(wanted, query);
}

/* Of a person a job in each state, with all that it may carry; of another one the same. */
static void fill(const char *person, const char *word)
{
    RUN("SELECT jobq.enqueue('q%s', 'k', jsonb_build_object('a', '%s'), key => '%s' || k, "
        "headers => "
        "jsonb_build_object('person', '%s', 'also', '%s'), max_attempts => 1) FROM "
        "generate_series(1, 6) k", person, word, word, person, word);
    RUN("SELECT jobq.enqueue('q%s', 'k', bytes => '%s', headers => jsonb_build_object('person', "
        "'%s'))", person, word, person);
    RUN("DO $$ DECLARE w bigint; j record; BEGIN "
        "w := (SELECT worker FROM jobq.work_join('{\"q%s\": [\"k\"]}')); "
        "FOR j IN SELECT id FROM jobq.work_take(w, 1, 5) LOOP "
        "UPDATE jobq.job SET steps = '{\"s\": \"%s\"}' WHERE id = j.id; "
        "IF j.id %% 2 = 0 THEN PERFORM jobq.work_done(w, 1, j.id, '\"%s\"'); "
        "ELSE PERFORM jobq.work_fail(w, 1, j.id, '%s is unknown', 'discard'); END IF; END LOOP; "
        "UPDATE jobq.history SET log = '[[0, 2, \"%s\"]]' WHERE headers ->> 'person' = '%s'; "
        "PERFORM jobq.work_take(w, 2, 1); END $$", person, word, word, word, word, person);
    RUN("SELECT jobq.outbox_register('out', 2); SELECT jobq.outbox_enqueue('out', "
        "jsonb_build_object('b', '%s'), order_key => n::text, headers => jsonb_build_object("
        "'person', '%s')) FROM generate_series(1, 4) n", word, person);
    RUN("INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at, "
        "attempts, error, payload, headers) SELECT id, id, %s, now(), now(), 3, '%s', '\"%s\"', "
        "jsonb_build_object('person', '%s') FROM jobq.queue WHERE name = 'out'",
        person, word, word, person);
    RUN("INSERT INTO jobq.operation (at, role, application, verb, arguments) VALUES (now(), 'x', "
        "'y', 'delete', jsonb_build_object('tags', jsonb_build_object('person', '%s', 'also', "
        "'%s')))", person, word);
}

static int with_two_persons(void **state)
{
    fresh(state);
    RUN("ALTER SEQUENCE jobq.job_id RESTART");
    fill("4711", SECRET);
    RUN("ALTER SEQUENCE jobq.job_id RESTART 101");
    fill("1", "rose");
    return 0;
}

/* All of the other person, as a text. The caller frees it. */
static char *the_other(void)
{
    return text_of("SELECT concat_ws('#', (SELECT string_agg(t::text, '|' ORDER BY t.id) FROM "
                   "jobq.job t WHERE id > 100), (SELECT string_agg(t::text, '|' ORDER BY t.id) "
                   "FROM jobq.failed t WHERE id > 100), (SELECT string_agg(t::text, '|' ORDER BY "
                   "t.id) FROM jobq.history t WHERE id > 100), (SELECT string_agg(t::text, '|' "
                   "ORDER BY t.id) FROM jobq.dead_letter t WHERE error = 'rose'), (SELECT "
                   "string_agg(t::text, '|' ORDER BY t.id) FROM jobq.message t WHERE t.headers ->> "
                   "'person' = '1'), (SELECT string_agg(t::text, '|') FROM jobq.idempotency t "
                   "WHERE key LIKE 'rose%%'))");
}

static void a_dry_run_changes_nothing(void **unused)
{
    char *before = everything(), *after;

    (void)unused;
    reports("jobs/5/0/2 history/2/0/0 dead letters/1/0/0 operations/1/0/0 messages/4/0/4", "");
    after = everything();
    assert_string_equal(before, after);
    free(before);
    free(after);
    shows("dead_letter failed history idempotency job message operation");
}

static void what_has_ended_is_erased_everywhere(void **unused)
{
    char *before = the_other(), *after;
    long ready = number("SELECT count(*) FROM jobq.job");

    (void)unused;
    reports("jobs/5/3/2 history/2/2/0 dead letters/1/1/0 operations/1/1/0 messages/4/0/4",
            ", dry => false");
    shows("idempotency job message"); /* the live ones */
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), ready);
    expect_text("3 3 3", "SELECT concat_ws(' ', count(*), count(*) FILTER (WHERE payload = "
                         "'{\"erased\": true}' AND attempt = 1), count(*) FILTER (WHERE errors -> "
                         "0 ->> 'error' = 'erased')) FROM jobq.failed WHERE id < 100");
    after = the_other();
    assert_string_equal(before, after);
    free(before);
    free(after);
    reports("jobs/2/0/2 messages/4/0/4", ", dry => false"); /* a second time finds nothing more */
}

static void live_ones_are_cancelled_on_request(void **unused)
{
    char *before = the_other(), *after;

    (void)unused;
    reports("jobs/5/3/1 history/3/3/0 dead letters/1/1/0 operations/1/1/0 messages/4/4/0",
            ", dry => false, live => 'cancel'");
    shows("idempotency job"); /* it runs */
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE id < 100 AND state = 'x' AND "
                            "cancel_requested_at IS NOT NULL"), 1);
    RUN("SELECT jobq.work_fail(worker, claim, id, '" SECRET "', 'cancelled') FROM jobq.job WHERE "
        "id < 100");
    reports("history/1/1/0", ", dry => false, live => 'cancel'");
    shows("");
    assert_int_equal(number("SELECT count(*) FROM jobq.message WHERE id > 0"), 8);
    after = the_other();
    assert_string_equal(before, after);
    free(before);
    free(after);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* One row a call: each place is left and entered in its turn. */
static void pages_go_on_where_they_stopped(void **unused)
{
    char next[200] = "NULL";
    int calls = 0;

    (void)unused;
    RUN("UPDATE jobq.job SET headers = NULL WHERE id < 100");
    for (; calls < 200; calls++) {
        char query[500], *text;
        snprintf(query, sizeof query, "SELECT coalesce(quote_literal(max(next::text)), 'NULL') "
                 "FROM jobq.erase(" PERSON ", dry => false, live => 'cancel', at_most => 2, "
                 "after => %s) WHERE looked IS NOT NULL OR next IS NULL "
                 "HAVING bool_or(place = 'backups') IS NOT "
                 "NULL", next);
        text = text_of("%s", query);
        snprintf(next, sizeof next, "%s", text);
        free(text);
        if (strcmp(next, "NULL") == 0) break;
    }
    assert_true(calls > 10 && calls < 60);
    shows("idempotency job");
}

/* Failed jobs are looked at with those that live: a revive between two calls hides none. */
static void a_revived_job_is_not_missed(void **unused)
{
    long id = number("SELECT min(id) FROM jobq.failed WHERE id < 100");

    (void)unused;
    RUN("UPDATE jobq.job SET headers = NULL WHERE id < 100");
    RUN("UPDATE jobq.failed SET headers = NULL WHERE id < 100 AND id <> %ld", id);
    RUN("CREATE TEMP TABLE page AS SELECT * FROM jobq.erase(" PERSON ", dry => false, "
        "at_most => %ld)", number("SELECT count(*) FROM jobq.job") + 1);
    RUN("SELECT jobq.revive(%ld)", id);
    RUN("INSERT INTO page SELECT * FROM jobq.erase(" PERSON ", dry => false, "
        "after => (SELECT next FROM page ORDER BY next DESC NULLS LAST LIMIT 1))");
    assert_int_equal(number("SELECT sum(erased + still_live) FROM page WHERE place = 'jobs'"), 1);
    RUN("DROP TABLE page");
}

static void a_report_names_what_it_cannot_reach(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.schedule('s', 'q1', 'k', every => '1 h', headers => " PERSON ")");
    expect_text("schedules:1 names dead rows WAL, replicas backups exports",
                "SELECT string_agg(place || coalesce(':' || matched, ''), ' ') FROM jobq.erase("
                PERSON ") WHERE looked IS NULL AND note <> ''");
}

static void refused(const char *arguments)
{
    char generic[200], *text;
    PGresult *res;

    snprintf(generic, sizeof generic, "SELECT jobq.erase(%s)", arguments);
    text = for_schema(generic, schema);
    res = PQexec(db, text);
    assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "22023");
    PQclear(res);
    free(text);
}

static void nothing_is_erased_by_mistake(void **unused)
{
    (void)unused;
    refused("'{}', false"); /* it would match all */
    refused("NULL, false");
    refused("'[]', false");
    refused("'\"person\"', false");
    refused(PERSON ", NULL");
    refused(PERSON ", false, 'kill'");
    refused(PERSON ", false, NULL");
    refused(PERSON ", false, 'leave', 0");
    RUN("SELECT jobq.erase('{\"person\": \"47\"}', false); SELECT jobq.erase('{\"person\": 4711}', "
        "false)");
    shows("dead_letter failed history idempotency job message operation");
}

/* Who asks for the number and not for the string, or the other way round, is told. */
static void a_number_is_not_a_string(void **unused)
{
    static const char *const rows[][2] = {
        {"{\"person\": 4711, \"b\": [1]}", "a number is not a string: try {\"b\": [1], "
                                           "\"person\": \"4711\"}, too"},
        {"{\"person\": \"-1.5\"}", "a number is not a string: try {\"person\": -1.5}, too"},
        {"{\"person\": \"047\"}", ""},
        {"{\"person\": \"4711\"}", ""}};
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_string_equal(text_of("SELECT coalesce(string_agg(note, ','), '') FROM "
                                    "jobq.erase('%s') WHERE place = 'tags'", rows[i][0]),
                            rows[i][1]);
    }
}

static void a_known_key_is_forgotten(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.erase(" PERSON ", false)");
    assert_int_equal(number("SELECT count(*) FROM jobq.idempotency WHERE key LIKE '" SECRET "%%'"
                            " AND job_id NOT IN (SELECT id FROM jobq.job)"), 0);
    assert_int_equal(number("SELECT (NOT existed)::int FROM jobq.enqueue_or_get('q4711', 'k', "
                            "key => "
                            "'" SECRET "2')"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_dry_run_changes_nothing, with_two_persons),
        cmocka_unit_test_setup(what_has_ended_is_erased_everywhere, with_two_persons),
        cmocka_unit_test_setup(live_ones_are_cancelled_on_request, with_two_persons),
        cmocka_unit_test_setup(pages_go_on_where_they_stopped, with_two_persons),
        cmocka_unit_test_setup(a_revived_job_is_not_missed, with_two_persons),
        cmocka_unit_test_setup(a_report_names_what_it_cannot_reach, with_two_persons),
        cmocka_unit_test_setup(nothing_is_erased_by_mistake, with_two_persons),
        cmocka_unit_test_setup(a_number_is_not_a_string, with_two_persons),
        cmocka_unit_test_setup(a_known_key_is_forgotten, with_two_persons),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
