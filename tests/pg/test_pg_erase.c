/* SPDX-License-Identifier: MIT-0 OR Unlicense */
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
    reports("jobs/5/0/2 history/2/0/0 operations/1/0/0 messages/4/0/4 dead letters/1/0/0", "");
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
    reports("jobs/5/3/2 history/2/2/0 operations/1/1/0 messages/4/0/4 dead letters/1/1/0",
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
    reports("jobs/5/3/1 history/3/3/0 operations/1/1/0 messages/4/4/0 dead letters/1/1/0",
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
    RUN("CREATE TEMP TABLE rest AS SELECT * FROM jobq.erase(" PERSON ", dry => false, "
        "after => (SELECT next FROM page ORDER BY next DESC NULLS LAST LIMIT 1))");
    assert_int_equal(number("SELECT sum(erased + still_live) FROM (TABLE page UNION ALL "
                            "TABLE rest) AS pages WHERE place = 'jobs'"), 1);
    RUN("DROP TABLE page, rest");
}

static void a_report_names_what_it_cannot_reach(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.schedule('s', 'q1', 'k', every => '1 h', headers => " PERSON ")");
    expect_text("schedules:1 names keys dead rows WAL, replicas backups exports",
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

/* -- what other programs, and other verbs, find afterwards -- */

/* Errors are also written by hand, or by a COPY. */
static void errors_of_any_shape_are_erased(void **unused)
{
    static const char *const errors[] = {
        "\"tulip\"", "{\"error\": \"tulip\"}",
        "[\"tulip\", 1, null, [\"tulip\"], {\"error\": {\"a\": \"tulip\"}}, "
        "{\"at\": \"2026-01-01\", \"stage\": 0, \"attempt\": 1, \"error\": \"tulip\", "
        "\"log\": \"tulip\"}, {\"dropped\": 7, \"note\": \"tulip\"}]"};
    static const char entries[] = "[{\"error\": \"erased\"}, {\"at\": \"2026-01-01\", \"error\": "
                                  "\"erased\", \"stage\": 0, \"attempt\": 1}, {\"dropped\": 7}]";
    static const char *const left[] = {"", "", entries};
    size_t i;

    for (i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        with_two_persons(unused);
        RUN("UPDATE jobq.failed SET errors = '%s' WHERE id < 100", errors[i]);
        RUN("UPDATE jobq.history SET errors = '%s' WHERE id < 100", errors[i]);
        RUN("SELECT jobq.erase(" PERSON ", dry => false)");
        shows("idempotency job message");
        expect_text(left[i], "SELECT coalesce(max(errors::text), '') FROM jobq.failed "
                             "WHERE id < 100");
    }
}

/* A message's key, a key that its own end would have kept, and those that only look like them. */
static void keys_go_with_what_had_them(void **unused)
{
    (void)unused;
    RUN("UPDATE jobq.queue SET history = false WHERE name = 'q4711'");
    RUN("SELECT jobq.enqueue('q4711', 'k', key => 'tulip ready', headers => " PERSON ")");
    RUN("SELECT jobq.outbox_enqueue('out', key => 'tulip ' || n, headers => " PERSON ") "
        "FROM generate_series(1, 3) n");
    RUN("SELECT jobq.outbox_enqueue('out', key => 'rose message', headers => '{\"person\": 1}')");
    RUN("INSERT INTO jobq.idempotency SELECT partition_id >> 15, 'rose job ' || id, id, now() "
        "FROM jobq.message");
    RUN("SELECT jobq.erase(" PERSON ", dry => false)");
    assert_int_equal(number("SELECT count(*) FROM jobq.idempotency WHERE key ~ '^tulip '"), 4);
    RUN("SELECT jobq.erase(" PERSON ", dry => false, live => 'cancel')");
    assert_int_equal(number("SELECT count(*) FROM jobq.idempotency WHERE key ~ '^tulip '"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.idempotency WHERE key ~ "
                            "'^rose (job|message)'"), 13);
}

/* Nothing of it is left to run; what waits for it is told so. */
static void what_is_erased_is_not_revived(void **unused)
{
    jobq_pg_error error;
    long id, other, child, flow;

    (void)unused;
    RUN("UPDATE jobq.job SET state = 'r', worker = NULL, claim = NULL WHERE state = 'x'");
    RUN("DELETE FROM jobq.failed WHERE id < 100");
    flow = number("SELECT jobq.flow('f')");
    id = number("SELECT jobq.enqueue('q4711', 'k', headers => " PERSON ", flow => %ld)", flow);
    other = number("SELECT jobq.enqueue('q4711', 'k', flow => %ld)", flow);
    child = number("SELECT jobq.enqueue('q4711', 'k', flow => %ld, after => '{%ld,%ld}')", flow,
                   id, other);
    RUN("SELECT jobq._finish('{%ld,%ld}', 'f', NULL)", id, other);
    RUN("SELECT jobq.erase(" PERSON ", dry => false)");
    assert_int_equal(jobq_pg_revive(pg, NULL, ONE(id), NULL, &error), JOBQ_ERROR_TRANSITION);
    assert_string_equal(error.value, "erased");
    assert_int_equal(number("SELECT jobq.revive('q4711')"), 1); /* the other one */
    RUN("SELECT jobq._finish('{%ld}', 'f', NULL)", other);
    assert_int_equal(number("SELECT jobq.flow_revive(%ld)", flow), 1);
    assert_int_equal(number("SELECT jobq.flow_revive(%ld)", flow), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.explain_job(%ld) WHERE reason = 'it does "
                            "not run, because job %ld was cancelled, deleted or erased: cancel the "
                            "job that waits'", child, id), 1);
}

/* One that is replayed right now is in the hands of a program: it counts as live. */
static void an_erased_dead_letter_is_not_replayed(void **unused)
{
    (void)unused;
    RUN("INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at, "
        "attempts, payload, headers, status, completed_at) SELECT queue_id, partition_id, 99, "
        "now(), now(), 1, payload, headers, 'resolved', now() FROM jobq.dead_letter "
        "WHERE error = '" SECRET "'");
    RUN("SELECT jobq.dead_letter_replay(7, 60000000)");
    reports("jobs/5/0/2 history/2/0/0 operations/1/0/0 messages/4/0/4 dead letters/2/0/1", "");
    reports("jobs/5/3/2 history/2/2/0 operations/1/1/0 messages/4/0/4 dead letters/2/1/1",
            ", dry => false");
    RUN("UPDATE jobq.dead_letter SET deadline = now() - interval '1 s' WHERE token IS NOT NULL");
    reports("jobs/2/0/2 messages/4/0/4 dead letters/1/1/0", ", dry => false");
    shows("idempotency job message");
    expect_text("discarded resolved", "SELECT string_agg(status, ' ' ORDER BY status) FROM "
                                      "jobq.dead_letter WHERE headers ? 'erased'");
    expect_text("rose", "SELECT error FROM jobq.dead_letter_replay(8, 60000000)");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* A user's own header of that name does not make a job an erased one. */
static void only_erase_erases(void **unused)
{
    (void)unused;
    RUN("UPDATE jobq.failed SET headers = '{\"erased\": 1}' WHERE id < 100");
    assert_true(number("SELECT jobq.revive('q4711')") > 0);
}

/* -- every column -- */

/* What has no tags, and the word with which the report names it; NULL: programs, and no persons,
 * choose it. Any other column that can hold a text has to be erased. */
static const struct { const char *column, *word; } left_alone[] = {
    {"claim.progress", "progress"}, {"flow.message", "messages of flows"}, {"flow.name", "flows"},
    {"flow_job.name", "flows"}, {"idempotency.key", "key_keep"}, {"line.name", "lines"},
    {"line.hold_why", "reasons of holds"}, {"queue.hold_why", "reasons of holds"},
    {"job.line_name", "lines"}, {"failed.line_name", "lines"}, {"history.line_name", "lines"},
    {"nudge.signal", "signals"}, {"signal.name", "signals"}, {"signal.payload", "payloads"},
    {"signal_wait.name", "signals"}, {"partition.error", "partition.error"},
    {"schedule.payload", "schedules"}, {"schedule.bytes", "schedules"},
    {"schedule.headers", "schedules"}, {"schedule.name", "schedules"},
    {"schedule.error", "schedules"}, {"worker.name", "workers"}, {"worker.host", "workers"},
    {"dead_letter.status", NULL}, {"dead_letter.type", NULL}, {"kind.backoff_curve", NULL},
    {"kind.name", NULL}, {"kind.queue", NULL}, {"kind.retention", NULL}, {"message.type", NULL},
    {"meta.home", NULL}, {"operation.application", NULL}, {"operation.role", NULL},
    {"operation.verb", NULL}, {"queue.backoff_curve", NULL}, {"queue.name", NULL},
    {"queue.retention", NULL}, {"ring.retention", NULL}, {"schedule.cron", NULL},
    {"schedule.missed", NULL}, {"schedule.overlap", NULL}, {"schedule.owner", NULL},
    {"schedule.type", NULL}, {"schedule.zone", NULL}, {"schedule_owner.name", NULL},
    {"subscription.name", NULL}, {"subscription.owner", NULL}, {"subscription.types", NULL},
    {"tenant.lines", NULL}, {"tenant.outboxes", NULL}, {"tenant.queues", NULL},
};

static bool is_left_alone(const char *column, const char *report)
{
    size_t i;

    for (i = 0; i < sizeof left_alone / sizeof left_alone[0]; i++) {
        if (strcmp(left_alone[i].column, column) != 0) continue;
        if (left_alone[i].word != NULL && strstr(report, left_alone[i].word) == NULL)
            fail_msg("%s: the report does not say %s", column, left_alone[i].word);
        return true;
    }
    return false;
}

/* Columns that can hold a text, and one that says something of the person. */
static const char texts[] =
    "SELECT c.relname || '.' || a.attname, c.relname, a.attname, CASE a.atttypid "
    "WHEN 'bytea'::regtype THEN '''tulip'', payload = NULL' WHEN 'jsonb'::regtype THEN "
    "'''{\"person\": \"4711\", \"tags\": {\"person\": \"4711\", \"also\": \"tulip\"}}''' "
    "ELSE '''tulip''' END FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
    "WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND a.attnum > 0 "
    "AND NOT a.attisdropped AND c.relnamespace = '%s'::regnamespace AND c.relname <> 'original' "
    "AND a.atttypid::regtype::text ~ '^(text|jsonb?|bytea|name|xml|character)'";

static void every_column_is_erased_or_named(void **unused)
{
    char *report = text_of("SELECT string_agg(concat_ws(' ', place, note), '; ') FROM "
                           "jobq.erase(" PERSON ")");
    PGresult *res = sql(db, texts, schema);
    int i, erased = 0;

    for (i = 0; i < PQntuples(res); i++) {
        const char *table = PQgetvalue(res, i, 1), *column = PQgetvalue(res, i, 2);
        if (is_left_alone(PQgetvalue(res, i, 0), report)) continue;
        with_two_persons(unused);
        RUN("UPDATE jobq.job SET state = 'r', worker = NULL, claim = NULL WHERE state = 'x'");
        RUN("UPDATE jobq.%s SET %s = %s WHERE %s ->> 'person' = '4711'", table, column,
            PQgetvalue(res, i, 3), strcmp(table, "operation") == 0 ? "arguments -> 'tags'"
                                                                   : "headers");
        RUN("DELETE FROM jobq.idempotency"); /* of other keys than these jobs have now */
        assert_true(number("SELECT count(*) FROM jobq.%s t WHERE t::text ~ 'tulip|74756c6970'",
                           table) > 0);
        RUN("SELECT jobq.erase(" PERSON ", dry => false, live => 'cancel')");
        shows("");
        erased++;
    }
    assert_int_equal(erased, 28);
    PQclear(res);
    free(report);
}

/* -- what others do meanwhile -- */

/* Messages are acknowledged while a page is read: the next page begins where this one ended. */
static void no_message_is_passed_over(void **unused)
{
    static const char page[] = "SELECT looked || ' ' || last FROM jobq._erase_messages(" PERSON
                               ", 0, 0, 3, true, true)";
    PGconn *other = PQconnectdb(server());
    char *text = for_schema(page, schema), *wanted;
    PGresult *res;

    (void)unused;
    RUN("UPDATE jobq.message SET partition_id = (SELECT min(partition_id) FROM jobq.message)");
    wanted = text_of("SELECT '3 ' || id FROM jobq.message ORDER BY id OFFSET 2 LIMIT 1");
    RUN("CREATE FUNCTION jobq.gate(p_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN "
        "IF p_id = (SELECT id FROM jobq.message_table ORDER BY id OFFSET 2 LIMIT 1) "
        "THEN PERFORM pg_advisory_lock(4711), pg_advisory_unlock(4711); END IF; RETURN true; "
        "END $$");
    RUN("ALTER TABLE jobq.message RENAME TO message_table");
    RUN("CREATE VIEW jobq.message AS SELECT * FROM jobq.message_table WHERE jobq.gate(id)");
    RUN("SELECT pg_advisory_lock(4711)");
    assert_int_equal(PQsendQuery(other, text), 1);
    assert_true(becomes(30, 1, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND "
                               "objid = 4711 AND NOT granted"));
    RUN("DELETE FROM jobq.message_table WHERE id IN (SELECT id FROM jobq.message_table ORDER BY id "
        "LIMIT 2)");
    RUN("SELECT pg_advisory_unlock(4711)");
    res = PQgetResult(other);
    RUN("DROP VIEW jobq.message");
    RUN("ALTER TABLE jobq.message_table RENAME TO message");
    RUN("DROP FUNCTION jobq.gate(bigint)");
    if (PQresultStatus(res) != PGRES_TUPLES_OK) fail_msg("%s", PQresultErrorMessage(res));
    assert_string_equal(PQgetvalue(res, 0, 0), wanted);
    PQclear(res);
    PQfinish(other);
    free(wanted);
    free(text);
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
        cmocka_unit_test(errors_of_any_shape_are_erased),
        cmocka_unit_test_setup(keys_go_with_what_had_them, with_two_persons),
        cmocka_unit_test_setup(what_is_erased_is_not_revived, with_two_persons),
        cmocka_unit_test_setup(an_erased_dead_letter_is_not_replayed, with_two_persons),
        cmocka_unit_test_setup(only_erase_erases, with_two_persons),
        cmocka_unit_test_setup(every_column_is_erased_or_named, with_two_persons),
        cmocka_unit_test_setup(no_message_is_passed_over, with_two_persons),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
