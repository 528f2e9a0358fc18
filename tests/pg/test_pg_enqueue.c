/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Enqueue, migrations, errors, plans. Rows X1, X2 (plan), X4, X26, X27, X34; W-O31, W-O37.
 */
#define TEST_PRIVATE
#include "pg.h"

#include <sys/syscall.h>

/* ---- enqueue --------------------------------------------------------------------------------- */

static void fields_and_defaults_arrive(void **unused)
{
    jobq_pg_job plain = plain_job(), full = plain_job();
    int64_t ids[3];

    (void)unused;
    ids[0] = enqueue_with(&plain);
    full.priority = 9;
    full.stages = 3;
    full.max_attempts = 7;
    full.timeout_us = 5 * SECOND;
    full.delay_us = 60 * SECOND;
    full.headers = jobq_str_from("{\"trace\": \"abc\"}");
    ids[1] = enqueue_with(&full);
    full.payload = (jobq_str){"\0\xff bytes", 8};
    full.payload_bytes = true;
    full.delay_us = 0;
    full.run_at_us = (int64_t)4102444800 * SECOND; /* 2100-01-01 */
    ids[2] = enqueue_with(&full);
    assert_int_equal(
        number("SELECT count(*) FROM jobq.job WHERE id = %lld AND payload = '{\"n\": 1}' AND "
               "priority = 0 AND stages = 1 AND state = 'r' AND max_attempts IS NULL AND "
               "run_at = enqueued_at AND headers IS NULL",
               (long long)ids[0]),
        1);
    assert_int_equal(
        number("SELECT count(*) FROM jobq.job WHERE id = %lld AND priority = 9 AND stages = 3 "
               "AND max_attempts = 7 AND timeout_us = 5000000 AND headers->>'trace' = 'abc' "
               "AND run_at = enqueued_at + interval '60 s'",
               (long long)ids[1]),
        1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE id = %lld AND payload IS NULL AND "
                            "bytes = '\\x00ff206279746573' AND run_at = '2100-01-01 00:00:00Z'",
                            (long long)ids[2]), 1);
    assert_int_equal(number("SELECT stages_max FROM jobq.queue"), 3);
}

/* ---- JSON as it was written ------------------------------------------------------------------ */

#define ODD_JSON " {\"b\": 1.10, \"a\":1e2,\t\"a\": 2}\n"
static int exact_seen;

static jobq_outcome sees_exact(jobq_call *call)
{
    exact_seen += call->payload_bytes && jobq_str_equal(call->payload, jobq_str_from(ODD_JSON)) &&
                  strstr(call->headers.ptr, "\"content-type\": \"application/json\"") != NULL;
    return JOBQ_OUTCOME_SUCCESS;
}

/* One by one, in arrays and by COPY, beside others; repeated keys, order and blanks survive. */
static void an_exact_payload_is_kept_as_it_was_written(void **unused)
{
    static const char *const headers[] = {NULL, "{}", " { \n}", " {\"trace\": \"abc\"} ",
                                          "{\"content-type\": \"application/cloudevents+json\"}"};
    const jobq_pg_handler handler = {.queue = "q", .kind = "k", .run = {sees_exact}};
    jobq_pg_worker_desc worker = {.handlers = &handler, .handler_count = 1};
    jobq_pg_job jobs[6];
    jobq_pg_error error;
    int i;

    (void)unused;
    jobs[5] = plain_job();
    for (i = 0; i < 5; i++) {
        jobs[i] = plain_job();
        jobs[i].payload = jobq_str_from(ODD_JSON);
        jobs[i].payload_exact = true;
        jobs[i].headers = jobq_str_from(headers[i]);
        enqueue_with(&jobs[i]);
        if (i == 2) jobs[i].payload_bytes = true; /* changes nothing */
    }
    jobs[3].key = "known"; /* goes another way */
    enqueue_with(&jobs[3]);
    jobs[3].key = NULL;
    assert_int_equal(jobq_pg_enqueue_many(pg, db, jobs, 6, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, jobs, 6, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, jobs, 1, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE payload = '{\"n\": 1}' AND "
                            "bytes IS NULL AND headers IS NULL"), 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE payload IS NULL AND "
                            "convert_from(bytes, 'UTF8') = E'" " {\"b\": 1.10, \"a\":1e2,\\t"
                            "\"a\": 2}\\n' AND headers ? 'content-type'"), 17);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE headers = "
                            "'{\"content-type\": \"application/json\"}'"), 10);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE headers = '{\"trace\": \"abc\", "
                            "\"content-type\": \"application/json\"}'"), 4);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE "
                            "headers->>'content-type' LIKE '%%cloudevents+json'"), 3);
    worker.loop.threads = 1;
    worker.loop.until = JOBQ_UNTIL_EMPTY;
    assert_int_equal(jobq_pg_work(pg, &worker, &error), JOBQ_OK);
    assert_int_equal(exact_seen, 14); /* all but those with a content type of their own */
}

/* What jsonb cannot hold is kept as well: in jobs, messages and schedules. */
static void an_exact_payload_may_be_more_than_jsonb_holds(void **unused)
{
    static const char more[] = "{\"a\": \"\\u0000\", \"b\": 1e999999}";
    jobq_pg_message message = {.queue = "q", .payload_exact = true};
    jobq_pg_schedule schedule = {.name = "s", .every_us = 3600 * SECOND};
    jobq_pg_job job = plain_job();
    jobq_pg_error error;

    (void)unused;
    job.payload = message.payload = jobq_str_from(more);
    assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), JOBQ_ERROR_INVALID);
    job.payload_exact = true;
    enqueue_with(&job);
    RUN("SELECT jobq.outbox_register('q', 1)");
    if (jobq_pg_outbox_enqueue(pg, db, &message, NULL, &error)) fail_msg("%s", error.message);
    schedule.job = job;
    if (jobq_pg_schedules_set(pg, db, "me", 1, &schedule, 1, &error)) fail_msg("%s", error.message);
    assert_int_equal(number("SELECT count(*) FROM (SELECT bytes FROM jobq.job UNION ALL"
                            " SELECT bytes FROM jobq.message UNION ALL SELECT bytes FROM"
                            " jobq.schedule) AS u WHERE octet_length(bytes) = %d",
                            (int)strlen(more)), 3);
    RUN("SELECT jobq.schedule_drop('s')");
}

static void an_exact_payload_that_is_not_json_is_refused(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;

    (void)unused;
    job.payload = jobq_str_from("{\"a\": 1,}");
    job.payload_exact = job.payload_bytes = true;
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.message, "invalid payload: not JSON at byte 8: key expected");
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, NULL, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.message,
                        "invalid payload: not JSON at byte 8: key expected, in jobs[0]");
}

/* One who writes many sees which of them, and what it was. */
static void the_job_that_is_refused_is_named(void **unused)
{
    jobq_pg_job jobs[3] = {plain_job(), plain_job(), plain_job()};
    jobq_pg_schedule schedules[2];
    jobq_pg_error error;

    (void)unused;
    jobs[2].kind = "no:name";
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, jobs, 3, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.message, "invalid kind: must be 1 to 1024 of [A-Za-z0-9._-], "
                        "alphanumeric at both ends (it is 'no:name'), in jobs[2]");
    assert_string_equal(error.field, "kind");
    assert_string_equal(error.value, "no:name");
    jobs[1].line = "\xff";
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, jobs, 3, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.message,
                        "invalid line: must be 1 to 1024 bytes of UTF-8 (it is '?'), in jobs[1]");
    jobs[0].priority = -10;
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, jobs, 3, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.message,
                        "invalid priority: must be -9 to 9 (it is -10), in jobs[0]");
    assert_string_equal(error.value, "-10");
    memset(schedules, 0, sizeof schedules);
    schedules[0].name = schedules[1].name = "s";
    schedules[0].cron = schedules[1].cron = "@daily";
    schedules[0].job = schedules[1].job = plain_job();
    schedules[1].cron = "@dayly";
    assert_int_equal(jobq_pg_schedules_set(pg, NULL, "me", 1, schedules, 2, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.value, "@dayly");
    assert_non_null(strstr(error.message, ", in schedules[1]"));
}

/* A queue's limit counts for headers, too, however a job is enqueued. */
static void headers_that_are_too_large_are_refused(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    char headers[1200];

    (void)unused;
    RUN("SELECT jobq.queue_set('q', payload_max => 1000)");
    snprintf(headers, sizeof headers, "{\"a\": \"%01000d\"}", 0);
    job.headers = jobq_str_from(headers);
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, NULL, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "headers");
    RUN("SELECT jobq.queue_set('q', payload_max => 1048576)");
}

/* ---- negative priorities --------------------------------------------------------------------- */

static int64_t least_of(const char *queue)
{
    return number("SELECT priority_min FROM jobq.queue WHERE name = '%s'", queue);
}

/* Each way to write one widens the lanes of its queue; nothing narrows them. */
static void each_way_to_a_negative_priority_widens_the_lanes(void **unused)
{
    jobq_pg_job job = plain_job(), many[2];
    jobq_pg_filter f;
    jobq_pg_error error;
    int64_t id;

    (void)unused;
    memset(&f, 0, sizeof f);
    enqueue_with(&job); /* so that the next one could go the direct way */
    assert_int_equal(least_of("q"), 0);
    job.priority = -1;
    id = enqueue_with(&job);
    assert_int_equal(least_of("q"), -1);
    many[0] = many[1] = plain_job();
    many[1].priority = -2;
    assert_int_equal(jobq_pg_enqueue_many(pg, db, many, 2, NULL, &error), JOBQ_OK);
    assert_int_equal(least_of("q"), -2);
    many[0].priority = -3;
    assert_int_equal(jobq_pg_enqueue_many(pg, db, many, 2, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    assert_int_equal(least_of("q"), -3);
    RUN("SELECT jobq.enqueue('q', 'k', priority => -4)");
    assert_int_equal(least_of("q"), -4);
    assert_int_equal(jobq_pg_change(pg, NULL, ONE(id),
                                    &(jobq_pg_changes){.set_priority = true,
                                                       .priority = -5}, NULL, &error), JOBQ_OK);
    assert_int_equal(least_of("q"), -5);
    f.queue = "q";
    assert_int_equal(jobq_pg_change(pg, NULL, &f,
                                    &(jobq_pg_changes){.set_priority = true,
                                                       .priority = -9}, NULL, &error), JOBQ_OK);
    assert_int_equal(least_of("q"), -9);
    RUN("SELECT jobq.enqueue('other', 'k')");
    assert_int_equal(jobq_pg_change(pg, NULL, ONE(id), &(jobq_pg_changes){.target = "other"}, NULL,
                                    &error), JOBQ_OK);
    assert_int_equal(least_of("other"), -9);
    enqueue_with(&job);
    assert_int_equal(least_of("q"), -9);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE priority = -9"), 7);
}

/* Workers hear of the first one at once; a job in such a lane is mended as any other. */
static void negative_priorities_are_told_and_mended(void **unused)
{
    PGnotify *told;

    (void)unused;
    RUN("SELECT jobq._register(77, 'w', 60000000, '{q}', '{1}', '{k}', 5)");
    RUN("LISTEN jobq_4d");
    RUN("SELECT jobq.enqueue('q', 'k', priority => -1)");
    told = PQnotifies(db);
    assert_non_null(told);
    assert_string_equal(told->extra, "cancel");
    PQfreemem(told);
    RUN("SELECT jobq.enqueue('q', 'k', priority => -1)");
    assert_null(PQnotifies(db));
    RUN("UNLISTEN *");
    RUN("UPDATE jobq.job SET state = 'x', worker = 78, claim = 1, "
        "claimed_at = now()");
    assert_int_equal(number("SELECT jobq.audit()"), 2);
    RUN("SELECT jobq.prune(100)");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void a_past_instant_is_lifted_to_now(void **unused)
{
    jobq_pg_job job = plain_job();

    (void)unused;
    job.run_at_us = JOBQ_DAYS(11000); /* in the year 2000 */
    enqueue_with(&job);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE run_at = enqueued_at"), 1);
}

/* ---- what SQL refuses ------------------------------------------------------------------------ */

/* Each with the field and the words that C has for it. */
static const struct {
    const char *call, *field, *why;
} refusals[] = {
    {"enqueue('q', 'k', to_jsonb(repeat('x', 99)))", "payload",
     "too large: size 101 exceeds maximum 100"},
    {"enqueue('q', 'new', to_jsonb(repeat('x', 99)))", "payload",
     "too large: size 101 exceeds maximum 100"},
    {"enqueue('q', 'k', to_jsonb(repeat(E'\\x01', 20)))", "payload",
     "too large: size 122 exceeds maximum 100"},
    {"enqueue('q', 'k', '1e200')", "payload", "too large: size 201 exceeds maximum 100"},
    {"enqueue('q', 'k', bytes => convert_to(repeat('x', 101), 'UTF8'))", "payload",
     "too large: size 101 exceeds maximum 100"},
    {"enqueue('q', 'k', headers => jsonb_build_object('h', repeat('x', 92)))", "headers",
     "too large: size 101 exceeds maximum 100"},
    {"enqueue('q', 'k', to_jsonb(repeat('x', 99)), key => 'a')", "payload",
     "too large: size 101 exceeds maximum 100"},
    {"_enqueue_many('q', '{k}', NULL, ARRAY['1', to_jsonb(repeat('x', 99)), '2'])", "payload",
     "too large: size 101 exceeds maximum 100"},
    {"_enqueue_many('q', '{k}', NULL, NULL, ARRAY[convert_to(repeat('x', 101), 'UTF8')])",
     "payload",
     "too large: size 101 exceeds maximum 100"},
    {"_enqueue_many('q', '{k}', NULL, '{1,2}', p_headers => '{NULL,\"[1]\"}')", "headers",
     "not a JSON object"},
    {"_enqueue_many('q', '{k}', NULL, '{1}', p_run_ats => '{-infinity}')", "run_at",
     "must be a finite instant"},
    {"_enqueue_many('q', '{k}', NULL, '{1}', p_run_ats => '{infinity}')", "run_at",
     "must be a finite instant"},
    {"_enqueue_many('q', '{k}', NULL, '{1}', p_priorities => '{10}')", "priority",
     "must be -9 to 9 (it is '10')"},
    {"_enqueue_many('q', '{k}', NULL, '{1}', p_stages => '{17}')", "stages",
     "must be 1 to 16 (it is '17')"},
    {"_enqueue_many('q', '{k}', NULL, '{1}', p_max_attempts => '{0}')", "max_attempts",
     "must be 1 or more (it is '0')"},
    {"_enqueue_many('q', '{k}', NULL, '{1}', p_timeouts_us => '{999}')", "timeout",
     "must be at least a millisecond"},
    {"_enqueue_many('q', '{k}', NULL, '{1}', p_keys => ARRAY[''])", "key",
     "must be 1 to 1024 bytes (it is '')"},
    {"enqueue('q', 'k', run_at => 'infinity')", "run_at", "must be a finite instant"},
    {"enqueue('q', 'k', run_at => '-infinity')", "run_at", "must be a finite instant"},
    {"enqueue('q', 'k', headers => '[1]')", "headers", "not a JSON object"},
    {"enqueue('q', 'k', '1', bytes => 'x')", "payload",
     "not allowed with bytes"},
    {"enqueue('q', 'k', priority => 10)", "priority", "must be -9 to 9 (it is '10')"},
    {"enqueue('q', 'k', stages => 17)", "stages", "must be 1 to 16 (it is '17')"},
    {"enqueue('q', 'k', max_attempts => 0)", "max_attempts", "must be 1 or more (it is '0')"},
    {"enqueue('q', 'k', timeout => '0')", "timeout", "must be at least a millisecond"},
    {"enqueue('q', 'k', timeout => '999 us')", "timeout", "must be at least a millisecond"},
    {"enqueue('no queue', 'k')", "queue",
     "must be 1 to 1024 of [A-Za-z0-9._-], alphanumeric at both ends (it is 'no queue')"},
    {"enqueue('q', 'a kind?')", "kind",
     "must be 1 to 1024 of [A-Za-z0-9._-], alphanumeric at both ends (it is 'a kind?')"},
    {"reschedule(1, 'infinity')", "run_at", "must be a finite instant"},
    {"reschedule(1, '-infinity')", "run_at", "must be a finite instant"},
    {"reschedule('q', 'infinity')", "run_at", "must be a finite instant"},
    {"prioritize(1, 10)", "priority", "must be -9 to 9 (it is '10')"}};

/* A size has a limit, and the message ends with how to raise it. */
static void refused_in_sql(const char *call, const char *field, const char *why)
{
    static const char fix[] = ". Keep large data elsewhere and enqueue a reference to it, or raise "
                              "the limit: select \"jobq\".queue_set('q', payload_max => ...)";
    char generic[300], wanted[300], *text;
    jobq_pg_error error;
    PGresult *res;

    snprintf(generic, sizeof generic, "SELECT jobq.%s", call);
    text = for_schema(generic, schema);
    res = PQexec(db, text);
    free(text);
    text = for_schema(strncmp(why, "too large", 9) == 0 ? fix : "", schema);
    snprintf(wanted, sizeof wanted, "invalid %s: %s%s", field, why, text);
    free(text);
    if (PQresultStatus(res) == PGRES_TUPLES_OK) fail_msg("%s is taken", call);
    assert_int_equal(jobq_pg__result_error(&error, db, res), JOBQ_ERROR_INVALID);
    if (strcmp(error.field, field) != 0 || strcmp(error.message, wanted) != 0)
        fail_msg("%s: %s (%s)", call, error.message, error.field);
    assert_string_equal(error.sqlstate, "22023");
    snprintf(wanted, sizeof wanted, " (it is '%s')", error.value);
    if (error.value[0] != '\0' || strstr(why, " (it is ") != NULL)
        assert_non_null(strstr(error.message, wanted));
    assert_int_equal(strlen(error.constraint), 0);
    PQclear(res);
}

static void sql_refuses_in_the_words_of_c(void **unused)
{
    jobq_pg_job job = plain_job();
    char *before, *after;
    size_t i;

    (void)unused;
    enqueue_with(&job);
    RUN("UPDATE jobq.job SET id = 1");
    RUN("SELECT jobq.queue_set('q', payload_max => 100)");
    before = everything();
    for (i = 0; i < COUNT(refusals); i++)
        refused_in_sql(refusals[i].call, refusals[i].field, refusals[i].why);
    after = everything();
    assert_string_equal(before, after);
    free(before);
    free(after);
    RUN("SELECT jobq.enqueue('q', 'k', to_jsonb(repeat('x', 98)))");
    RUN("SELECT jobq.enqueue('q', 'k', bytes => convert_to(repeat('x', 100), 'UTF8'))");
    RUN("SELECT jobq._enqueue_many('q', '{k}', NULL, ARRAY[to_jsonb(repeat('x', 98)), '1'])");
}

/* A few bytes of jsonb can be a long text, which is what counts. */
static void numbers_count_as_they_are_printed(void **unused)
{
    (void)unused;
    RUN("DO $do$ DECLARE v_max integer; v_number jsonb; v_payload jsonb; v_fits boolean; BEGIN"
        " FOREACH v_max IN ARRAY '{100, 147999, 148000, 300000, 1048576}'::integer[] LOOP"
        "  PERFORM jobq.queue_set('q', payload_max => v_max);"
        "  FOR n IN 0 .. 9 LOOP FOREACH v_number IN ARRAY ARRAY['-1e131071',"
        "   ('0.' || repeat('0', 16382) || '1')::jsonb, '1e255', '1'] LOOP"
        "   v_payload := to_jsonb(array_fill(v_number, ARRAY[n]));"
        "   BEGIN"
        "    PERFORM jobq._enqueue_many('q', '{k}', NULL, ARRAY[v_payload, '1']);"
        "    v_fits := true;"
        "   EXCEPTION WHEN SQLSTATE '22023' THEN v_fits := false; END;"
        "   ASSERT v_fits = (octet_length(v_payload::text) <= v_max),"
        "    concat_ws(' ', v_max, n, left(v_number::text, 9));"
        "  END LOOP; END LOOP;"
        " END LOOP; END $do$");
    assert_in_range(number("SELECT count(*) FROM jobq.job"), 100, 398);
}

/* Each way of C keeps to the queue's limit; the function says why. */
static void no_way_leads_round_the_queues_limit(void **unused)
{
    static char text[200];
    jobq_pg_job job = plain_job();
    jobq_pg_queue_desc d;
    jobq_pg_error error;
    int way, i;

    (void)unused;
    memset(text, 'x', 150);
    memset(&d, 0, sizeof d);
    d.payload_max = 100;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_OK);
    for (i = 0; i < 3; i++) enqueue_with(&job);
    job.payload = jobq_str_from(text);
    job.payload_bytes = true;
    for (way = 0; way < 4; way++) {
        if (way == 3) job.key = "a";
        assert_int_equal(way == 1 ? jobq_pg_enqueue_many(pg, db, &job, 1, NULL, &error)
                         : way == 2 ? jobq_pg_enqueue_many(pg, db, &job, 1, JOBQ_PG_BY_COPY, &error)
                                    : jobq_pg_enqueue(pg, db, &job, NULL, &error),
                         JOBQ_ERROR_INVALID);
        assert_string_equal(error.field, "payload");
        assert_non_null(strstr(error.message, "size 150 exceeds maximum 100"));
        assert_non_null(strstr(error.message, way == 2 ? "raise the queue's payload_max"
                                                       : "payload_max => ..."));
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 3);
    d.payload_max = 150;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_OK);
    job.key = NULL;
    assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, &job, 1, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
}

/* A role that may insert can write anything; looking still works. */
static void views_bear_infinite_times_and_odd_errors(void **unused)
{
    static const char *const views[] = {"queues", "jobs", "failures", "workers", "past_jobs",
                                        "live_jobs"};
    jobq_pg_job job = plain_job();
    size_t i;

    (void)unused;
    enqueue_with(&job);
    enqueue_with(&job);
    enqueue_with(&job);
    RUN("INSERT INTO jobq.worker (id, name, lease_us, expires_at, queues, kinds) SELECT 7, 'w', 1, "
        "now(), ARRAY[q.id], '{}' FROM jobq.queue q");
    RUN("UPDATE jobq.job SET run_at = '-infinity'");
    RUN("UPDATE jobq.job SET state = 'x', worker = 7, claim = 1, claimed_at = '-infinity' WHERE id "
        "= (SELECT max(id) FROM jobq.job)");
    RUN("INSERT INTO jobq.claim (worker, number, claimed_at, jobs) SELECT 7, 1, 'infinity', "
        "array_agg(id) FROM jobq.job WHERE state = 'x'");
    RUN("INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, "
        "attempt, crash, priority, stage, stages, errors) SELECT 99, 'infinity', '-infinity', "
        "'infinity', "
        "queue_id, kind_id, 1, 0, 0, 0, 1, '{\"a\": 1}' FROM jobq.job LIMIT 1");
    for (i = 0; i < COUNT(views); i++) RUN("SELECT * FROM jobq.%s", views[i]);
    assert_int_equal(number("SELECT count(*) FROM jobq.failures WHERE errors IS NULL"), 1);
}

/* ---- the plain statement --------------------------------------------------------------------- */

static jobq_pg__right right_on(PGconn *conn)
{
    return jobq_pg__known_of(conn, &pg->texts[JOBQ_PG__ENQUEUE_DIRECT])->right;
}

/* A right that is taken back: the function from then on. */
static void a_right_that_is_taken_back_is_remembered(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    PGconn *conn;
    int i;

    (void)unused;
    RUN("CREATE ROLE jobq_taken LOGIN");
    RUN("SELECT jobq.grant_enqueue('jobq_taken', fast => true)");
    conn = PQconnectdb(server());
    PQclear(sql(conn, "SET SESSION AUTHORIZATION jobq_taken"));
    for (i = 0; i < 3; i++)
        assert_int_equal(jobq_pg_enqueue(pg, conn, &job, NULL, &error), JOBQ_OK);
    assert_int_equal(right_on(conn), JOBQ_PG__GRANTED);
    RUN("REVOKE INSERT ON jobq.job FROM jobq_taken");
    assert_int_equal(jobq_pg_enqueue(pg, conn, &job, NULL, &error), JOBQ_OK);
    assert_int_equal(right_on(conn), JOBQ_PG__REFUSED);
    assert_int_equal(jobq_pg_enqueue(pg, conn, &job, NULL, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 5);
    PQfinish(conn);
    RUN("SELECT jobq.revoke('jobq_taken')");
    RUN("DROP ROLE jobq_taken");
}

/* Prepared while the tables are empty, never analysed after they have grown. */
static void the_plain_statement_reads_the_names_by_their_indexes(void **unused)
{
    jobq_pg_job job = plain_job();
    char name[32], query[200];
    PGresult *res;
    int i;

    (void)unused;
    RUN("ALTER TABLE jobq.queue SET (autovacuum_enabled = off)");
    RUN("ALTER TABLE jobq.kind SET (autovacuum_enabled = off)");
    for (i = 0; i < 10; i++) {
        if (i == 1) RUN("DELETE FROM jobq.job");
        assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, NULL), JOBQ_OK);
    }
    RUN("INSERT INTO jobq.queue (name) SELECT 'q' || i FROM generate_series(1, 1000) i");
    RUN("INSERT INTO jobq.kind (queue_id, queue, payload_max, name) SELECT q.id, q.name, "
        "q.payload_max, 'k' || i FROM jobq.queue q, "
        "generate_series(1, 10) i");
    jobq_pg__statement_name(&pg->texts[JOBQ_PG__ENQUEUE_DIRECT], name, sizeof name);
    snprintf(query, sizeof query,
             "EXPLAIN EXECUTE %s "
             "('q', 'k', '1', NULL, NULL, NULL, NULL, NULL, NULL, NULL, true, 1)",
             name);
    res = PQexec(db, query);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) fail_msg("%s", PQerrorMessage(db));
    for (i = 0; i < PQntuples(res); i++) {
        const char *line = PQgetvalue(res, i, 0);
        if (strstr(line, "Seq Scan on queue") != NULL || strstr(line, "Seq Scan on kind") != NULL)
            fail_msg("%s", line);
    }
    PQclear(res);
}

/* X26. */
static void a_job_lives_and_dies_with_the_callers_transaction(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    int64_t id;

    (void)unused;
    RUN("BEGIN");
    assert_int_equal(jobq_pg_enqueue(pg, db, &job, &id, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, &job, 1, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, &job, 1, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    RUN("ROLLBACK");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    RUN("BEGIN");
    assert_int_equal(jobq_pg_enqueue(pg, db, &job, &id, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, &job, 1, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, &job, 1, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    RUN("COMMIT");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 3);
}

/* The first enqueue of a name makes it, by the function; the next ones find it themselves. It may
 * be gone again. */
static void the_direct_way_heeds_a_rollback(void **unused)
{
    jobq_pg_job job = {0};
    jobq_pg_error error;
    int64_t id;
    int i;

    (void)unused;
    job.queue = "rolled";
    job.kind = "back";
    for (i = 0; i < 3; i++) {
        RUN("BEGIN");
        assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), JOBQ_OK);
        assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), JOBQ_OK);
        assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), JOBQ_OK);
        RUN("ROLLBACK");
    }
    for (i = 0; i < 3; i++) {
        assert_int_equal(jobq_pg_enqueue(pg, db, &job, &id, &error), JOBQ_OK);
        assert_int_equal(number("SELECT count(*) FROM jobq.job j JOIN jobq.kind k ON k.id = "
                                "j.kind_id JOIN jobq.queue q ON q.id = j.queue_id WHERE j.id = "
                                "%lld AND k.name = 'back' AND q.name = 'rolled'",
                                (long long)id), 1);
    }
}

/* A role that may only call the functions enqueues as before; its transaction lives on. */
static void a_role_without_insert_keeps_the_function(void **unused)
{
    jobq_pg_job job = {0};
    jobq_pg_error error;
    int i;

    (void)unused;
    job.queue = "mail";
    job.kind = "greet";
    RUN("CREATE ROLE jobq_caller");
    RUN("SELECT jobq.grant_enqueue('jobq_caller')");
    RUN("BEGIN");
    RUN("SET LOCAL ROLE jobq_caller");
    for (i = 0; i < 4; i++)
        assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), JOBQ_OK);
    RUN("COMMIT");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 4);
    RUN("SELECT jobq.revoke('jobq_caller')");
    RUN("DROP ROLE jobq_caller");
}

static void one_by_one_and_by_copy_write_the_same(void **unused)
{
    jobq_pg_job jobs[6];
    jobq_pg_error error;
    int round, i;

    (void)unused;
    memset(jobs, 0, sizeof jobs);
    for (i = 0; i < 6; i++) {
        jobs[i].queue = "mail";
        jobs[i].kind = i % 2 == 0 ? "greet" : "other";
        jobs[i].payload = jobq_str_from(i == 1 ? "bytes" : "{\"a\": 1}");
        jobs[i].payload_bytes = i == 1;
    }
    jobs[2].priority = 9;
    jobs[3].delay_us = 3600 * SECOND;
    jobs[4].max_attempts = 3;
    jobs[4].timeout_us = 5 * SECOND;
    jobs[5].headers = jobq_str_from("{\"tag\": \"x\"}");
    jobs[5].stages = 4;
    for (round = 0; round < 3; round++) { /* by the function, and twice directly */
        for (i = 0; i < 6; i++)
            assert_int_equal(jobq_pg_enqueue(pg, db, &jobs[i], NULL, &error), JOBQ_OK);
    }
    assert_int_equal(jobq_pg_enqueue_many(pg, db, jobs, 6, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    for (i = 0; i < 6; i++)
        assert_int_equal(jobq_pg_enqueue_many(pg, db, &jobs[i], 1, JOBQ_PG_BY_COPY, &error),
                         JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, jobs, 6, NULL, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM (SELECT count(*) AS n FROM jobq.job GROUP BY "
                            "kind_id, priority, stage, stages, max_attempts, timeout_us, state, "
                            "attempt, payload, bytes, headers, round(extract(epoch FROM run_at - "
                            "enqueued_at))) j WHERE n = 6"), 6);
}

static void psql_can_enqueue_too(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k', '{\"a\": 1}')");
    RUN("SELECT jobq.enqueue('q', 'k', '1', delay => '1 hour', priority => 3, key => 'x', stages "
        "=> 2)");
    RUN("SELECT jobq.enqueue('q', 'k', '1', key => 'x')");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE priority = 3 AND stages = 2 AND "
                            "run_at = enqueued_at + interval '1 hour'"), 1);
}

/* W-O31: ids belong to the jobs they are answered for, however many kinds and queries there are. */
static void ids_come_back_in_order(void **unused)
{
    enum { MANY = 10000 };
    static jobq_pg_job jobs[MANY];
    static char payloads[MANY][16];
    static int64_t ids[MANY];
    jobq_pg_error error;
    int i, count = check_slow() ? 500 : MANY;

    (void)unused;
    for (i = 0; i < count; i++) {
        snprintf(payloads[i], sizeof payloads[i], "%d", i);
        jobs[i] = plain_job();
        jobs[i].kind = i % 3 == 0 ? "fizz" : i % 5 == 0 ? "buzz" : "k";
        jobs[i].payload = jobq_str_from(payloads[i]);
        jobs[i].priority = i % 10;
    }
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, jobs, (size_t)count, ids, &error), JOBQ_OK);
    RUN("CREATE TABLE jobq.answer (n int, id bigint)");
    for (i = 0; i < count; i += 97) {
        RUN("INSERT INTO jobq.answer VALUES (%d, %lld)", i, (long long)ids[i]);
    }
    assert_int_equal(
        number("SELECT count(*) FROM jobq.answer a WHERE NOT EXISTS (SELECT FROM jobq.jobs j "
               "WHERE j.id = a.id AND j.payload = to_jsonb(a.n) AND j.priority = a.n %% 10 AND "
               "j.kind = CASE WHEN a.n %% 3 = 0 THEN 'fizz' WHEN a.n %% 5 = 0 THEN 'buzz' "
               "ELSE 'k' END)"),
        0);
    RUN("DROP TABLE jobq.answer");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), count);
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, jobs, (size_t)count, JOBQ_PG_BY_COPY, &error),
                     JOBQ_OK);
    assert_int_equal(
        number("SELECT count(*) FROM (SELECT payload, kind, priority FROM jobq.jobs GROUP BY "
               "1, 2, 3 HAVING count(*) = 2) twice"),
        count);
}

/* ---- idempotency (W-O37) --------------------------------------------------------------------- */

static void a_key_is_enqueued_once(void **unused)
{
    jobq_pg_job jobs[3] = {plain_job(), plain_job(), plain_job()};
    jobq_pg_error error;
    int64_t first, again = 0, ids[3];

    (void)unused;
    jobs[0].key = jobs[2].key = "invoice-7";
    first = enqueue_with(&jobs[0]);
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &jobs[0], &again, &error), JOBQ_ERROR_EXISTS);
    assert_true(again == first);
    assert_string_equal(error.message, "Already exists: job with key=invoice-7");
    jobs[2].key = "other";
    jobs[1].key = "invoice-7";
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, jobs, 3, ids, &error), JOBQ_OK);
    assert_true(ids[0] == first && ids[1] == first && ids[2] != first);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 2);
}

/* Whoever is told EXISTS takes the job for enqueued. An id that is given out twice must not look
 * like that. */
static void only_a_known_key_exists(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    int64_t id = enqueue_with(&job);

    (void)unused;
    RUN("SELECT setval('jobq.job_id', %lld, false)", (long long)id);
    job.key = "new";
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_DATABASE);
    assert_string_equal(error.sqlstate, "23505");
    assert_string_equal(error.constraint, "job_pkey");
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_OK); /* the next id */
}

static void a_key_of_a_rolled_back_transaction_is_free(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;

    (void)unused;
    job.key = "k1";
    RUN("BEGIN");
    assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), JOBQ_OK);
    RUN("ROLLBACK");
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_OK);
}

static void a_key_outlives_its_job_by_a_day(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    jobq_job claimed;

    (void)unused;
    job.key = "k1";
    RUN("INSERT INTO jobq.queue (name, history) VALUES ('q', false)"); /* without history, too */
    enqueue_with(&job);
    register_worker(101, 60 * SECOND);
    claimed = claim_one(101, 1, false);
    RUN("SELECT jobq.prune(100)");
    assert_int_equal(settle_with(&claimed, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    RUN("SELECT jobq.prune(100)");
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_EXISTS);
    RUN("UPDATE jobq.idempotency SET ended_at = ended_at - interval '25 hours'");
    RUN("SELECT jobq.prune(100)");
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_OK);
}

static void *same_key(void *arg)
{
    jobq_pg_job job = plain_job();
    int64_t *id = (int64_t *)arg;

    job.key = "contended";
    if (jobq_pg_enqueue(pg, NULL, &job, id, NULL) == JOBQ_ERROR_DATABASE) *id = -1;
    return NULL;
}

static void eight_at_once_with_one_key_make_one_job(void **unused)
{
    pthread_t threads[8];
    int64_t ids[8];
    int i;

    (void)unused;
    for (i = 0; i < 8; i++) pthread_create(&threads[i], NULL, same_key, &ids[i]);
    for (i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    for (i = 0; i < 8; i++) assert_true(ids[i] > 0 && ids[i] == ids[0]);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 1);
}

/* ---- bad input (X27) ------------------------------------------------------------------------- */

/* Refused before anything is sent: the caller's transaction goes on. */
static void refused(jobq_pg_job job, const char *field)
{
    jobq_pg_error error;

    assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, field);
    assert_true(strlen(error.message) > 10);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, &job, 1, NULL, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, &job, 1, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_INVALID);
}

static void bad_jobs_are_refused_and_the_transaction_lives(void **unused)
{
    static char big[1048576 + 1];
    jobq_pg_job job = plain_job(), two[2] = {plain_job(), plain_job()};
    jobq_pg_error error;

    (void)unused;
    RUN("BEGIN");
#define REFUSED(set, field) job = plain_job(); set; refused(job, field)
    REFUSED(job.queue = NULL, "queue");
    REFUSED(job.queue = "", "queue");
    REFUSED(job.queue = "no spaces", "queue");
    REFUSED(job.queue = "q'; DROP TABLE x; --", "queue");
    REFUSED(job.kind = "-k", "kind");
    REFUSED(job.payload = jobq_str_from("{bad"), "payload");
    REFUSED(job.payload = jobq_str_from("\"\xff\""), "payload");
    REFUSED(job.payload = jobq_str_from("\"\\u0000\""), "payload");
    REFUSED(job.payload = jobq_str_from(""), "payload");
    REFUSED(job.headers = jobq_str_from("[1,"), "headers");
    REFUSED(job.priority = 10, "priority");
    REFUSED(job.priority = -10, "priority");
    REFUSED(job.stages = 17, "stages");
    REFUSED(job.max_attempts = -1, "max_attempts");
    REFUSED(job.timeout_us = -1, "timeout_us");
    REFUSED(job.delay_us = -1, "delay_us");
    REFUSED(job.run_at_us = -1, "run_at_us");
    REFUSED(job.key = "", "key");
    REFUSED(job.key = "\xff", "key");
#undef REFUSED
    memset(big, '1', sizeof big);
    job = plain_job();
    job.payload_bytes = true;
    job.payload = (jobq_str){big, sizeof big};
    refused(job, "payload");
    two[1].priority = 99; /* one bad one refuses all */
    assert_int_equal(jobq_pg_enqueue_many(pg, db, two, 2, NULL, &error), JOBQ_ERROR_INVALID);
    two[1] = plain_job();
    two[1].queue = "other";
    assert_int_equal(jobq_pg_enqueue_many(pg, db, two, 2, NULL, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, NULL, 0, NULL, &error), JOBQ_OK);
    job.payload.len = 1048576; /* the very limit */
    assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), JOBQ_OK);
    RUN("COMMIT");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE length(bytes) = 1048576"), 1);
}

static void a_connection_that_cannot_take_it_is_named(void **unused)
{
    jobq_pg_job job = plain_job();
    PGconn *other = PQconnectdb(server());
    jobq_pg_error error;
    jobq_job got;

    (void)unused;
    PQclear(PQexec(other, "BEGIN"));
    PQclear(PQexec(other, "SELECT broken"));
    assert_int_equal(jobq_pg_enqueue(pg, other, &job, NULL, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "aborted"));
    PQclear(PQexec(other, "ROLLBACK"));
    assert_int_equal(jobq_pg_enqueue(pg, other, &job, NULL, &error), JOBQ_OK);
    PQclear(PQexec(other, "DEALLOCATE ALL")); /* behind our back: an error once, then well again */
    if (jobq_pg_enqueue(pg, other, &job, NULL, &error) != JOBQ_OK) {
        assert_int_equal(error.code, JOBQ_ERROR_RETRYABLE);
        assert_int_equal(jobq_pg_enqueue(pg, other, &job, NULL, &error), JOBQ_OK);
    }
    RUN("SELECT pg_terminate_backend(%d)", PQbackendPID(other));
    assert_true(jobq_pg_enqueue(pg, other, &job, NULL, &error) != JOBQ_OK);
    assert_true(error.code == JOBQ_ERROR_RETRYABLE || error.code == JOBQ_ERROR_CONNECTION);
    PQfinish(other);
    got.id = 77;
    assert_int_equal(jobq_pg_get(pg, NULL, 999999999, &got, &error), JOBQ_ERROR_NOT_FOUND);
    assert_string_equal(error.message, "Not found: job with id=999999999");
    assert_int_equal(got.id, 77);
}

/* PREPARE can succeed although the first use fails, and fail for a reason that passes. Neither may
 * make a later enqueue fail, which would abort the transaction that it joins. */
static void what_failed_once_is_prepared_or_not(void **unused)
{
    jobq_pg_desc desc = {.conninfo = server(), .schema = "not_yet"};
    PGconn *conn = PQconnectdb(server()), *other = PQconnectdb(server());
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    jobq_pg *late;

    (void)unused;
    RUN("DROP SCHEMA IF EXISTS not_yet CASCADE");
    assert_int_equal(jobq_pg_open(&late, &desc, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue(late, conn, &job, NULL, &error), JOBQ_ERROR_VERSION);
    assert_int_equal(jobq_pg_migrate(late, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_queue_set(late, NULL, job.queue, NULL, &error), JOBQ_OK);
    PQclear(PQexec(conn, "SET lock_timeout = 100; BEGIN"));
    job.key = "asks for rights, and then for the key";
    assert_int_equal(jobq_pg_enqueue(late, conn, &job, NULL, &error), JOBQ_OK);
    PQclear(PQexec(conn, "COMMIT"));

    job.key = NULL;
    PQclear(PQexec(other, "BEGIN; LOCK TABLE not_yet.queue, not_yet.job"));
    assert_int_equal(jobq_pg_enqueue(late, conn, &job, NULL, &error), JOBQ_ERROR_RETRYABLE);
    PQclear(PQexec(other, "COMMIT"));
    PQclear(PQexec(conn, "BEGIN"));
    assert_int_equal(jobq_pg_enqueue(late, conn, &job, NULL, &error), JOBQ_OK);
    PQclear(PQexec(conn, "COMMIT"));
    assert_int_equal(number("SELECT count(*) FROM not_yet.job"), 2);
    PQfinish(other);
    PQfinish(conn);
    jobq_pg_close(late);
    RUN("DROP SCHEMA not_yet CASCADE");
}

/* X1. */
static void a_bad_server_gives_an_error_and_no_handle(void **unused)
{
    jobq_pg_desc desc = {.conninfo = "host=/nowhere dbname=x"};
    jobq_pg *made = pg;
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(jobq_pg_open(&made, &desc, &error), JOBQ_ERROR_CONNECTION);
    assert_null(made);
    desc.schema = "bad-name";
    assert_int_equal(jobq_pg_open(&made, &desc, &error), JOBQ_ERROR_INVALID);
    desc.schema = "1st";
    assert_int_equal(jobq_pg_open(&made, &desc, NULL), JOBQ_ERROR_INVALID);
    assert_null(made);
}

static void the_pool_is_bounded_and_waits(void **unused)
{
    jobq_pg_desc desc = {.pool_max = 2, .acquire_us = 100000};
    PGconn *a, *b, *c;
    jobq_pg_error error;
    jobq_pg *small;

    (void)unused;
    desc.conninfo = server();
    desc.schema = schema;
    assert_int_equal(jobq_pg_open(&small, &desc, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_acquire(small, &a, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_acquire(small, &b, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_acquire(small, &c, &error), JOBQ_ERROR_FULL);
    assert_non_null(strstr(error.message, "pool_max"));
    PQclear(PQexec(a, "BEGIN"));
    jobq_pg_release(small, a);
    assert_int_equal(jobq_pg_acquire(small, &c, &error), JOBQ_OK);
    assert_int_equal(PQtransactionStatus(c), PQTRANS_IDLE); /* what was left open was rolled back */
    jobq_pg_release(small, b);
    jobq_pg_release(small, c);
    jobq_pg_close(small);
}

static time_t wall_ahead; /* seconds that the wall clock is ahead, as this program reads it */

extern long syscall(long number, ...);

int clock_gettime(clockid_t clock, struct timespec *t)
{
    if (syscall(SYS_clock_gettime, clock, t) != 0) return -1;
    if (clock == CLOCK_REALTIME) t->tv_sec += wall_ahead;
    return 0;
}

/* The wall clock is set back as soon as the wait has begun: for the kernel it never was ahead. */
static void the_pools_wait_ends_by_its_own_clock(void **unused)
{
    jobq_pg_desc desc = {.pool_max = 1, .acquire_us = 100000};
    int64_t began;
    PGconn *a, *b;
    jobq_pg_error error;
    jobq_pg *small;

    (void)unused;
    desc.conninfo = server();
    desc.schema = schema;
    assert_int_equal(jobq_pg_open(&small, &desc, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_acquire(small, &a, &error), JOBQ_OK);
    began = mono_us();
    wall_ahead = 20;
    assert_int_equal(jobq_pg_acquire(small, &b, &error), JOBQ_ERROR_FULL);
    wall_ahead = 0;
    assert_true(mono_us() - began < 10 * SECOND);
    jobq_pg_release(small, a);
    jobq_pg_close(small);
}

/* Five connections and three seconds, unless the descriptor says otherwise. */
static void the_pools_defaults(void **unused)
{
    jobq_pg_desc desc = {.conninfo = server(), .schema = schema};
    PGconn *conns[6];
    jobq_pg_error error;
    jobq_pg *plain;
    struct timespec before, after;
    double took;
    int i;

    (void)unused;
    assert_int_equal(jobq_pg_open(&plain, &desc, &error), JOBQ_OK);
    for (i = 0; i < 5; i++) assert_int_equal(jobq_pg_acquire(plain, &conns[i], &error), JOBQ_OK);
    clock_gettime(CLOCK_MONOTONIC, &before);
    assert_int_equal(jobq_pg_acquire(plain, &conns[5], &error), JOBQ_ERROR_FULL);
    clock_gettime(CLOCK_MONOTONIC, &after);
    took = (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) / 1e9;
    assert_true(took >= 3.0 && took < 10.0);
    while (i-- > 0) jobq_pg_release(plain, conns[i]);
    jobq_pg_close(plain);
}

/* X34. */
static void sqlstates_have_their_classes(void **unused)
{
    static const struct {
        const char *state;
        jobq_error code;
    } classes[] = {{"23505", JOBQ_ERROR_EXISTS},    {"23503", JOBQ_ERROR_INVALID},
                   {"23514", JOBQ_ERROR_INVALID},   {"22P02", JOBQ_ERROR_INVALID},
                   {"40001", JOBQ_ERROR_RETRYABLE}, {"40P01", JOBQ_ERROR_RETRYABLE},
                   {"57P01", JOBQ_ERROR_RETRYABLE}, {"08006", JOBQ_ERROR_RETRYABLE},
                   {"53300", JOBQ_ERROR_RETRYABLE}, {"25006", JOBQ_ERROR_RETRYABLE},
                   {"57014", JOBQ_ERROR_TIMEOUT},   {"JQ001", JOBQ_ERROR_LOST},
                   {"JQ002", JOBQ_ERROR_DEAD},      {"42601", JOBQ_ERROR_DATABASE},
                   {"XX000", JOBQ_ERROR_DATABASE},  {"", JOBQ_ERROR_CONNECTION}};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(classes); i++)
        assert_int_equal(jobq_pg_classify(classes[i].state), classes[i].code);
    assert_int_equal(jobq_pg_classify(NULL), JOBQ_ERROR_CONNECTION);
}

/* jobq_json_check against the judge itself: random mutations of real documents. */
static void our_json_check_agrees_with_postgres(void **unused)
{
    static const char *const seeds[] = {
        "{\"a\": [1, 2.5e10, -0.1, true, null, \"x\\u00e4\\n\"], \"b\": {\"c\": {}}}",
        "[\"\\ud83d\\ude00\", \"\\\\\", 1e5, [], [[[]]]]", "\"text\"", "-12.5E+3"};
    static const char letters[] = "{}[]\",:\\u0dD8e.-+ 19antrfl\t\n";
    jobq_random r = {42};
    int n, count = check_slow() ? 300 : 4000, good = 0;

    (void)unused;
    PQclear(PQexec(db, "SET client_min_messages = error"));
    for (n = 0; n < count; n++) {
        char text[128];
        uint64_t bits = jobq_random_next(&r);
        int changes = 1 + (int)(bits % 3);
        const char *value = text;
        PGresult *res;
        bool postgres;
        snprintf(text, sizeof text, "%s", seeds[(bits >> 8) % COUNT(seeds)]);
        while (changes-- > 0) {
            bits = jobq_random_next(&r);
            text[(bits >> 16) % strlen(text)] = letters[bits % (sizeof letters - 1)];
        }
        res = PQexecParams(db, "SELECT $1::text::jsonb", 1, NULL, &value, NULL, NULL, 0);
        postgres = PQresultStatus(res) == PGRES_TUPLES_OK;
        PQclear(res);
        if (postgres != (jobq_json_check(jobq_str_from(text), NULL, NULL) == JOBQ_OK)) {
            fail_msg("Postgres %s: %s", postgres ? "takes" : "refuses", text);
        }
        good += postgres;
    }
    assert_in_range(good, count / 50, count);
}

/* ---- migrations ------------------------------------------------------------------------------ */

static void many_processes_may_migrate_at_once(void **unused)
{
    char saved[sizeof schema];
    pid_t pids[6];
    int i, status, good = 0;

    (void)unused;
    memcpy(saved, schema, sizeof saved);
    snprintf(schema, sizeof schema, "Jobq_Mixed_%d",
             (int)getpid()); /* quoted, for its upper case */
    for (i = 0; i < 6; i++) {
        pids[i] = fork();
        if (pids[i] == 0) _exit(jobq_pg_migrate(handle(), NULL) == JOBQ_OK ? 0 : 1);
    }
    for (i = 0; i < 6; i++) {
        waitpid(pids[i], &status, 0);
        good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    assert_int_equal(good, 6);
    RUN("DROP SCHEMA \"%s\" CASCADE", schema);
    memcpy(schema, saved, sizeof saved);
}

static void a_schema_too_old_or_too_new_is_refused_with_both_numbers(void **unused)
{
    char both[64];
    jobq_pg_error error;
    jobq_pg_worker *w = NULL;
    jobq_pg_handler h = {.queue = "q", .kind = "k", .run = {(jobq_handler)abort}};
    jobq_pg_worker_desc d = {.handlers = &h, .handler_count = 1};

    (void)unused;
    assert_int_equal(jobq_pg_check(pg, NULL, &error), JOBQ_OK);
    RUN("UPDATE jobq.meta SET version = 1");
    assert_int_equal(jobq_pg_worker_start(pg, &d, &w, &error), JOBQ_ERROR_VERSION);
    snprintf(both, sizeof both, "cannot be upgraded to %d", jobq_pg__newest());
    assert_non_null(strstr(error.message, both));
    RUN("UPDATE jobq.meta SET version = %d, library_min = 1", jobq_pg__newest() + 5);
    assert_int_equal(jobq_pg_check(pg, NULL, &error), JOBQ_OK); /* newer, but it still serves us */
    RUN("UPDATE jobq.meta SET library_min = %d", jobq_pg__newest() + 1);
    assert_int_equal(jobq_pg_check(pg, NULL, &error), JOBQ_ERROR_VERSION);
    assert_int_equal(jobq_pg_migrate(pg, &error), JOBQ_ERROR_VERSION);
    snprintf(both, sizeof both, "this one is %d", jobq_pg__newest());
    assert_non_null(strstr(error.message, both));
    RUN("UPDATE jobq.meta SET version = %d, library_min = 1", jobq_pg__newest());
}

static void every_statement_prepares(void **unused)
{
    int i;

    (void)unused;
    for (i = 0; i < JOBQ_PG__STATEMENT_COUNT; i++) {
        PGresult *res;
        if (i == JOBQ_PG__COPY || i == JOBQ_PG__VACUUM) continue; /* no such thing for these */
        res = PQprepare(db, "", pg->texts[i].sql, 0, NULL);
        if (PQresultStatus(res) != PGRES_COMMAND_OK)
            fail_msg("%s: %s", pg->texts[i].sql, PQerrorMessage(db));
        PQclear(res);
    }
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* Counts arrive when the backend that made them says so. */
/* X2, X4: a claim of 100 behind 50,000 jobs, right after the load and never analysed, reads the
 * lane index only, stays HOT, and is one statement. */
static void a_claim_reads_its_lane_by_the_index_and_stays_hot(void **unused)
{
    PGconn *conn = PQconnectdb(server()); /* has counts of its own, which nobody else adds to */
    verb_batch batch;
    PGresult *seen;
    int64_t claim = 0, start;
    int i;

    (void)unused;
    RUN("ALTER TABLE jobq.job SET (autovacuum_enabled = false)");
    enqueue_count(1);
    register_worker(101, 600 * SECOND);
    for (i = 0; i < 7; i++) { /* plans are cached while the table is empty */
        assert_int_equal(claim_on(conn, 101, ++claim, 100, false, &batch), JOBQ_OK);
        verb_batch_clear(&batch);
    }
    for (i = 0; i < 50; i++) enqueue_count(1000);
    PQclear(sql(conn, "BEGIN"));
    start = mono_us();
    for (i = 0; i < 20; i++) {
        assert_int_equal(claim_on(conn, 101, ++claim, 100, false, &batch), JOBQ_OK);
        assert_int_equal(batch.count, 100);
        verb_batch_clear(&batch);
    }
    if (!check_slow())
        assert_true(mono_us() - start < 20 * 200000); /* 200 ms each, at the worst */
    seen = sql(conn, "SELECT seq_scan, idx_scan, n_tup_upd, n_tup_upd - n_tup_hot_upd "
                     "FROM pg_stat_xact_user_tables WHERE relid = 'jobq.job'::regclass");
    PQclear(sql(conn, "COMMIT"));
    PQfinish(conn);
    assert_string_equal(PQgetvalue(seen, 0, 0), "0");
    assert_true(atol(PQgetvalue(seen, 0, 1)) >= 27);
    assert_string_equal(PQgetvalue(seen, 0, 2), "2001");
    assert_string_equal(PQgetvalue(seen, 0, 3), "0");
    PQclear(seen);
    RUN("ALTER TABLE jobq.job RESET (autovacuum_enabled)");
}

/* Jobs without keys: who repeats a COPY that had been committed would have each twice. In the
 * caller's transaction nothing is, and the caller is told. */
static void a_copy_is_written_though_nobody_is_woken(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;

    (void)unused;
    enqueue_with(&job);
    RUN("ALTER FUNCTION jobq._wake(integer, integer) RENAME TO away");
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    RUN("BEGIN");
    assert_int_not_equal(jobq_pg_enqueue_many(pg, db, &job, 1, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    RUN("ROLLBACK");
    RUN("ALTER FUNCTION jobq.away(integer, integer) RENAME TO _wake");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 2);
}

/* A batch that is never in memory as a whole: pieces in one transaction, through one array. */
static void a_copy_may_come_in_pieces(void **unused)
{
    jobq_pg_job piece[100];
    jobq_pg_error error;
    PGconn *conn;
    int round, n, i;

    (void)unused;
    assert_int_equal(jobq_pg_acquire(pg, &conn, &error), JOBQ_OK);
    for (round = 0; round < 2; round++) { /* one is rolled back */
        PQclear(PQexec(conn, "BEGIN"));
        for (n = 0; n < 10; n++) {
            for (i = 0; i < 100; i++) {
                piece[i] = plain_job();
                if (n % 3 == 1) piece[i].priority = i % 10; /* other columns than before */
            }
            assert_int_equal(jobq_pg_enqueue_many(pg, conn, piece, 100, JOBQ_PG_BY_COPY, &error),
                             JOBQ_OK);
        }
        assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
        PQclear(PQexec(conn, round == 1 ? "COMMIT" : "ROLLBACK"));
    }
    jobq_pg_release(pg, conn);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 1000);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE priority > 0"), 270);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_copy_may_come_in_pieces, pg_empty),
        cmocka_unit_test_setup(fields_and_defaults_arrive, pg_empty),
        cmocka_unit_test_setup(each_way_to_a_negative_priority_widens_the_lanes, pg_empty),
        cmocka_unit_test_setup(negative_priorities_are_told_and_mended, pg_empty),
        cmocka_unit_test_setup(a_past_instant_is_lifted_to_now, pg_empty),
        cmocka_unit_test_setup(sql_refuses_in_the_words_of_c, pg_empty),
        cmocka_unit_test_setup(no_way_leads_round_the_queues_limit, pg_empty),
        cmocka_unit_test_setup(numbers_count_as_they_are_printed, pg_empty),
        cmocka_unit_test_setup(views_bear_infinite_times_and_odd_errors, pg_empty),
        cmocka_unit_test_setup(a_right_that_is_taken_back_is_remembered, pg_empty),
        cmocka_unit_test_setup(the_plain_statement_reads_the_names_by_their_indexes, pg_empty),
        cmocka_unit_test_setup(a_job_lives_and_dies_with_the_callers_transaction, pg_empty),
        cmocka_unit_test_setup(psql_can_enqueue_too, pg_empty),
        cmocka_unit_test_setup(a_copy_is_written_though_nobody_is_woken, pg_empty),
        cmocka_unit_test_setup(the_direct_way_heeds_a_rollback, pg_empty),
        cmocka_unit_test_setup(a_role_without_insert_keeps_the_function, pg_empty),
        cmocka_unit_test_setup(one_by_one_and_by_copy_write_the_same, pg_empty),
        cmocka_unit_test_setup(ids_come_back_in_order, pg_empty),
        cmocka_unit_test_setup(a_key_is_enqueued_once, pg_empty),
        cmocka_unit_test_setup(only_a_known_key_exists, pg_empty),
        cmocka_unit_test_setup(a_key_of_a_rolled_back_transaction_is_free, pg_empty),
        cmocka_unit_test_setup(a_key_outlives_its_job_by_a_day, pg_empty),
        cmocka_unit_test_setup(eight_at_once_with_one_key_make_one_job, pg_empty),
        cmocka_unit_test_setup(bad_jobs_are_refused_and_the_transaction_lives, pg_empty),
        cmocka_unit_test_setup(a_connection_that_cannot_take_it_is_named, pg_empty),
        cmocka_unit_test_setup(what_failed_once_is_prepared_or_not, pg_empty),
        cmocka_unit_test(a_bad_server_gives_an_error_and_no_handle),
        cmocka_unit_test(the_pool_is_bounded_and_waits),
        cmocka_unit_test(the_pools_wait_ends_by_its_own_clock),
        cmocka_unit_test(the_pools_defaults),
        cmocka_unit_test_setup(an_exact_payload_is_kept_as_it_was_written, pg_empty),
        cmocka_unit_test(an_exact_payload_that_is_not_json_is_refused),
        cmocka_unit_test(the_job_that_is_refused_is_named),
        cmocka_unit_test(an_exact_payload_may_be_more_than_jsonb_holds),
        cmocka_unit_test(headers_that_are_too_large_are_refused),
        cmocka_unit_test(sqlstates_have_their_classes),
        cmocka_unit_test(our_json_check_agrees_with_postgres),
        cmocka_unit_test(many_processes_may_migrate_at_once),
        cmocka_unit_test(a_schema_too_old_or_too_new_is_refused_with_both_numbers),
        cmocka_unit_test(every_statement_prepares),
        cmocka_unit_test_setup(a_claim_reads_its_lane_by_the_index_and_stays_hot, pg_empty),
    };

    return cmocka_run_group_tests_name("enqueue", tests, pg_up, pg_down);
}
