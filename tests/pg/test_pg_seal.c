/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_seal.c -- sealed payloads: every way of enqueue, stages, messages, rotated keys, and what
 * happens to a payload that cannot be opened. The seal here is a toy: the key's number, a sum over
 * kind and payload, and the payload with each byte changed.
 */
#include "pg_work.h"

#define SECRET "tulip"

typedef struct toy {
    int key;         /* that seals; 0: sealing fails */
    unsigned known;  /* bits of the keys that open */
    int seals, opens;
} toy;

static toy keys;
static char got[64][100]; /* what handlers saw, in any order */
static int got_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned char sum_of(const jobq_pg_seal *s, const char *plain, size_t size)
{
    unsigned char sum = 7;
    const char *kind = s->kind == NULL ? "message" : s->kind;
    size_t i;

    for (i = 0; s->queue[i] != '\0'; i++) sum = (unsigned char)(sum * 31 + s->queue[i]);
    for (i = 0; kind[i] != '\0'; i++) sum = (unsigned char)(sum * 31 + kind[i]);
    for (i = 0; i < size; i++) sum = (unsigned char)(sum * 31 + plain[i]);
    return sum;
}

static bool toy_seal(void *user, jobq_pg_seal *s)
{
    toy *t = (toy *)user;
    size_t i;

    ADD(t->seals);
    if (GET(t->key) == 0) {
        snprintf(s->why, sizeof s->why, "no key: set KEY");
        return false;
    }
    s->size = s->in.len + 2;
    s->out = (char *)malloc(s->size);
    s->out[0] = (char)GET(t->key);
    s->out[1] = (char)sum_of(s, s->in.ptr, s->in.len);
    for (i = 0; i < s->in.len; i++) s->out[i + 2] = (char)(s->in.ptr[i] ^ 0x55);
    return true;
}

static bool toy_open(void *user, jobq_pg_seal *s)
{
    toy *t = (toy *)user;
    size_t i;

    ADD(t->opens);
    if (strcmp(s->name, "toy") != 0 || s->in.len < 3 ||
        (GET(t->known) >> s->in.ptr[0] & 1) == 0) {
        snprintf(s->why, sizeof s->why, "key %d is missing: add it to KEYS", s->in.ptr[0]);
        return false;
    }
    s->size = s->in.len - 2;
    s->out = (char *)malloc(s->size);
    for (i = 0; i < s->size; i++) s->out[i] = (char)(s->in.ptr[i + 2] ^ 0x55);
    if ((unsigned char)s->in.ptr[1] == sum_of(s, s->out, s->size)) return true;
    snprintf(s->why, sizeof s->why, "it was changed");
    return false;
}

static jobq_pg *sealing;

static void save(const char *what, jobq_str payload, bool bytes)
{
    pthread_mutex_lock(&lock);
    if (got_count < 64)
        snprintf(got[got_count++], sizeof got[0], "%s %s%.*s", what, bytes ? "b:" : "",
                 (int)payload.len, payload.ptr == NULL ? "" : payload.ptr);
    pthread_mutex_unlock(&lock);
    ADD(runs);
}

static bool saw(const char *what)
{
    int i;

    for (i = 0; i < got_count; i++) {
        if (strcmp(got[i], what) == 0) return true;
    }
    return false;
}

static jobq_outcome reads(jobq_call *call)
{
    save("job", call->payload, call->payload_bytes);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome hands_on(jobq_call *call)
{
    static const char *const next[] = {"\"" SECRET " 2\"", SECRET " 3", "\"result\""};
    char what[20];

    snprintf(what, sizeof what, "stage%d", call->job.stage);
    save(what, call->payload, call->payload_bytes);
    return jobq_call_result(call, jobq_str_from(next[call->job.stage]), call->job.stage == 1)
               ? JOBQ_OUTCOME_SUCCESS : JOBQ_OUTCOME_RETRY;
}

static jobq_result takes(jobq_delivery *d, const jobq_message *m)
{
    (void)d;
    save("message", m->payload, m->payload_bytes);
    return JOBQ_RESULT_SUCCESS;
}

static int set_up(void **state)
{
    jobq_pg_desc d = desc_of(server());

    fresh(state);
    RUN("TRUNCATE jobq.signal; INSERT INTO jobq.queue (name) VALUES ('q')");
    memset(&keys, 0, sizeof keys);
    keys.key = 1;
    keys.known = 2;
    got_count = 0;
    d.seal = toy_seal;
    d.open = toy_open;
    d.seal_name = "toy";
    d.user = &keys;
    sealing = open_on(&d);
    return 0;
}

static int tear_down(void **state)
{
    all_stop(state);
    jobq_pg_close(sealing);
    return 0;
}

/* Nothing in the database shows the secret. */
static void nothing_shows(void)
{
    PGresult *res = sql(db, "SELECT quote_ident(table_name) FROM information_schema.tables WHERE "
                            "table_schema = '%s' AND table_type = 'BASE TABLE'", schema);
    int i;

    assert_true(PQntuples(res) > 20);
    for (i = 0; i < PQntuples(res); i++) {
        assert_int_equal(number("SELECT count(*) FROM jobq.%s t WHERE t::text LIKE '%%%s%%' OR "
                                "t::text LIKE '%%' || encode('%s', 'hex') || '%%'",
                                PQgetvalue(res, i, 0), SECRET, SECRET), 0);
    }
    PQclear(res);
}

static jobq_pg_job secret(const char *payload)
{
    jobq_pg_job job = plain_job();

    job.payload = jobq_str_from(payload);
    return job;
}

static void work(jobq_pg *with, jobq_handler run)
{
    jobq_pg_handler h[2] = {handler_of("q", "k", run), handler_of("q", "other", run)};
    jobq_pg_worker_desc d = work_of(h, 2);
    jobq_pg_error error;

    d.loop.until = JOBQ_UNTIL_EMPTY;
    if (jobq_pg_work(with, &d, &error) != JOBQ_OK) fail_msg("%s", error.message);
}

static void each(jobq_error code, const jobq_pg_error *error)
{
    if (code != JOBQ_OK) fail_msg("%s", error->message);
}

static void jobs_are_sealed_however_they_come(void **unused)
{
    jobq_pg_error error;
    jobq_pg_job jobs[3];
    jobq_pg_after after;
    int64_t id = 0;
    PGconn *conn;

    (void)unused;
    jobs[0] = secret("\"" SECRET " direct\"");
    jobs[0].headers = jobq_str_from(" { \"tag\": 7 } ");
    each(jobq_pg_enqueue(sealing, NULL, &jobs[0], NULL, &error), &error);
    jobs[0] = secret("\"" SECRET " keyed\"");
    jobs[0].key = "a";
    each(jobq_pg_enqueue(sealing, NULL, &jobs[0], NULL, &error), &error);
    jobs[0].payload = jobq_str_from("\"" SECRET " replaced\"");
    jobs[0].on_known = JOBQ_KNOWN_REPLACE;
    each(jobq_pg_enqueue(sealing, NULL, &jobs[0], &id, &error), &error);
    jobs[0] = secret("\"" SECRET " after\"");
    memset(&after, 0, sizeof after);
    after.job = id;
    jobs[0].after = &after;
    jobs[0].after_count = 1;
    each(jobq_pg_enqueue(sealing, NULL, &jobs[0], NULL, &error), &error);
    jobs[0] = secret("\"" SECRET " first\"");
    jobs[1] = secret(SECRET " bytes");
    jobs[1].payload_bytes = true;
    jobs[1].kind = "other";
    jobs[1].headers = jobq_str_from("{}");
    jobs[2] = secret("{ \"" SECRET "\":  \"exact\" }");
    jobs[2].payload_exact = true;
    each(jobq_pg_enqueue_many(sealing, NULL, jobs, 3, NULL, &error), &error);
    jobs[0].payload = jobq_str_from("\"" SECRET " copied\"");
    jobs[1].payload = jobq_str_from(SECRET " copied bytes");
    each(jobq_pg_enqueue_many(sealing, NULL, jobs, 2, JOBQ_PG_BY_COPY, &error), &error);
    each(jobq_pg_acquire(sealing, &conn, &error), &error);
    PQclear(PQexec(conn, "BEGIN"));
    jobs[0].payload = jobq_str_from("\"" SECRET " rolled back\"");
    each(jobq_pg_enqueue(sealing, conn, &jobs[0], NULL, &error), &error);
    PQclear(PQexec(conn, "ROLLBACK"));
    jobq_pg_release(sealing, conn);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE payload IS NULL AND headers ->> "
                            "'seal' = 'toy'"), 8);
    nothing_shows();
    work(sealing, reads);
    nothing_shows();
    assert_int_equal(got_count, 8);
    assert_true(saw("job \"" SECRET " direct\"") && saw("job \"" SECRET " replaced\""));
    assert_true(saw("job \"" SECRET " after\"") && saw("job \"" SECRET " first\""));
    assert_true(saw("job b:" SECRET " bytes"));
    assert_true(saw("job b:{ \"" SECRET "\":  \"exact\" }"));
    assert_true(saw("job \"" SECRET " copied\"") && saw("job b:" SECRET " copied bytes"));
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE headers ->> 'tag' = '7'"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE headers ->> 'content-type' "
                            "= 'application/json'"), 1);
}

static void schedules_are_sealed(void **unused)
{
    jobq_pg_schedule s;
    jobq_pg_error error;
    jobq_pg_handler h = handler_of("q", "k", reads);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    memset(&s, 0, sizeof s);
    s.name = "often";
    s.every_us = SECOND;
    s.job = secret("\"" SECRET " tick\"");
    each(jobq_pg_schedules_set(sealing, NULL, "owner", 1, &s, 1, &error), &error);
    nothing_shows();
    start_on(sealing, &d);
    assert_true(reaches(60, &runs, 1));
    assert_true(saw("job \"" SECRET " tick\""));
    nothing_shows();
}

static int async_done;

static void done(void *user, const jobq_pg_reply *reply)
{
    (void)user;
    async_done = reply->code == JOBQ_OK ? 1 : -1;
}

static void the_event_loop_seals(void **unused)
{
    jobq_pg_job job = secret("\"" SECRET " loop\"");
    jobq_pg_worker_desc d;
    jobq_pg_worker *worker;
    jobq_pg_error error;
    int64_t until = mono_us() + 30 * SECOND;

    (void)unused;
    memset(&d, 0, sizeof d);
    each(jobq_pg_worker_open(sealing, &d, &worker, &error), &error);
    async_done = 0;
    each(jobq_pg_worker_ask(worker, &(jobq_pg_question){.enqueue = &job}, done, NULL, &error),
         &error);
    while (async_done == 0 && mono_us() < until) {
        jobq_pg_worker_step(worker, 10000);
        nap_us(2000);
    }
    assert_int_equal(async_done, 1);
    jobq_pg_worker_stop(worker);
    while (jobq_pg_worker_step(worker, 10000) && mono_us() < until) nap_us(2000);
    jobq_pg_worker_free(worker);
    nothing_shows();
    work(sealing, reads);
    assert_true(saw("job \"" SECRET " loop\""));
}

static void the_next_stage_is_sealed_and_a_result_is_not(void **unused)
{
    jobq_pg_job job = secret("\"" SECRET " 1\"");
    jobq_pg_error error;

    (void)unused;
    job.stages = 3;
    each(jobq_pg_enqueue(sealing, NULL, &job, NULL, &error), &error);
    work(sealing, hands_on);
    assert_true(saw("stage0 \"" SECRET " 1\"") && saw("stage1 \"" SECRET " 2\""));
    assert_true(saw("stage2 b:" SECRET " 3"));
    nothing_shows();
    expect_text("\"result\"", "SELECT result FROM jobq.history");
}

static void keys_rotate(void **unused)
{
    jobq_pg_job job = secret("\"old\"");
    jobq_pg_error error;

    (void)unused;
    each(jobq_pg_enqueue(sealing, NULL, &job, NULL, &error), &error);
    keys.key = 2;
    keys.known = 6;
    job = secret("\"new\"");
    each(jobq_pg_enqueue(sealing, NULL, &job, NULL, &error), &error);
    expect_text("1 2",
                "SELECT string_agg(get_byte(bytes, 0)::text, ' ' ORDER BY id) FROM jobq.job");
    work(sealing, reads);
    assert_true(saw("job \"old\"") && saw("job \"new\""));
}

/* The job is neither run nor lost, and uses up no attempt. */
static void put_off(jobq_pg *with, const char *why)
{
    char query[200];

    work(with, reads);
    assert_int_equal(GET(runs), 0);
    snprintf(query, sizeof query, "SELECT concat_ws(' ', state, attempt, (errors -> -1 ->> 'error' "
             "LIKE '%%%s%%')::int, (run_at > now() + interval '30 s')::int) FROM jobq.job", why);
    expect_text("r 0 1 1", query);
    RUN("UPDATE jobq.job SET run_at = now()");
}

static void a_payload_that_cannot_be_opened_waits(void **unused)
{
    jobq_pg_job job = secret("\"" SECRET "\"");
    jobq_pg_error error;

    (void)unused;
    job.max_attempts = 1;
    each(jobq_pg_enqueue(sealing, NULL, &job, NULL, &error), &error);
    put_off(pg, "this program has no jobq_pg_desc.open");
    keys.known = 4;
    put_off(sealing, "key 1 is missing: add it to KEYS");
    keys.known = 2;
    RUN("UPDATE jobq.job SET bytes = set_byte(bytes, 4, 1)");
    put_off(sealing, "it was changed");
    RUN("UPDATE jobq.job SET bytes = set_byte(bytes, 4, ascii('t') # 85)");
    RUN("UPDATE jobq.job SET headers = '{\"seal\": \"other\"}'");
    put_off(sealing, "cannot be opened by ''other''");
    RUN("UPDATE jobq.job SET headers = '{\"seal\": \"toy\"}'");
    RUN("UPDATE jobq.job SET kind_id = (SELECT id FROM jobq.kind WHERE name = 'other')");
    put_off(sealing, "it was changed"); /* the seal knows the kind */
    RUN("UPDATE jobq.job SET kind_id = (SELECT id FROM jobq.kind WHERE name = 'k')");
    work(sealing, reads);
    assert_true(saw("job \"" SECRET "\""));
}

static void plain_payloads_stay_plain(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.enqueue('q', 'k', '\"plain\"', headers => '{\"seal\": \"mine\"}'); "
        "SELECT jobq.enqueue('q', 'k', bytes => 'raw'); "
        "SELECT jobq.enqueue('q', 'k', bytes => 'odd', headers => '{\"seal\": 7}')");
    work(sealing, reads);
    assert_true(saw("job \"plain\"") && saw("job b:raw") && saw("job b:odd"));
    assert_int_equal(keys.opens, 0);
}

static void refusals_write_nothing(void **unused)
{
    jobq_pg_job jobs[2];
    jobq_pg_message m;
    jobq_pg_error error;

    (void)unused;
    jobs[0] = secret("\"" SECRET "\"");
    jobs[1] = jobs[0];
    jobs[1].headers = jobq_str_from("{\"seal\": \"mine\"}");
    assert_int_equal(jobq_pg_enqueue_many(sealing, NULL, jobs, 2, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "headers");
    jobs[0].key = "a";
    jobs[0].on_known = JOBQ_KNOWN_MERGE;
    assert_int_equal(jobq_pg_enqueue(sealing, NULL, &jobs[0], NULL, &error), JOBQ_ERROR_INVALID);
    keys.key = 0;
    jobs[0] = secret("\"" SECRET "\"");
    assert_int_equal(jobq_pg_enqueue_many(sealing, NULL, jobs, 1, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "no key: set KEY"));
    memset(&m, 0, sizeof m);
    m.queue = "q";
    m.payload = jobq_str_from("\"" SECRET "\"");
    assert_int_equal(jobq_pg_outbox_enqueue(sealing, NULL, &m, NULL, &error), JOBQ_ERROR_INVALID);
    jobs[0].payload = jobq_str_from("{not json");
    assert_int_equal(jobq_pg_enqueue(sealing, NULL, &jobs[0], NULL, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    jobs[0] = secret(""); /* no payload, nothing to seal */
    jobs[0].payload.ptr = NULL;
    each(jobq_pg_enqueue(sealing, NULL, &jobs[0], NULL, &error), &error);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE headers IS NULL"), 1);
}

static void messages_wait_for_a_key(void **unused)
{
    jobq_pg_receiver r;
    jobq_pg_worker_desc d;
    jobq_pg_message m[3];
    jobq_pg_error error;
    int i;

    (void)unused;
    RUN("SELECT jobq.outbox_register('q', 1)");
    memset(m, 0, sizeof m);
    for (i = 0; i < 3; i++) {
        m[i].queue = "q";
        m[i].payload = jobq_str_from(i == 0 ? "\"" SECRET " 0\"" : i == 1 ? SECRET " 1"
                                                                        : "\"" SECRET " 2\"");
        m[i].payload_bytes = i == 1;
    }
    each(jobq_pg_outbox_enqueue(sealing, NULL, &m[0], NULL, &error), &error);
    each(jobq_pg_outbox_enqueue_many(sealing, NULL, &m[1], 1, NULL, &error), &error);
    each(jobq_pg_outbox_enqueue_many(sealing, NULL, &m[2], 1, JOBQ_PG_BY_COPY, &error), &error);
    nothing_shows();
    memset(&r, 0, sizeof r);
    r.queue = "q";
    r.each = takes;
    memset(&d, 0, sizeof d);
    d.receivers = &r;
    d.receiver_count = 1;
    d.loop.threads = 2;
    d.loop.lease_us = 5 * SECOND;
    keys.known = 0;
    start_on(sealing, &d);
    assert_true(reaches(60, &keys.opens, 4));
    assert_int_equal(GET(runs), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 0);
    SET(keys.known, 2u);
    assert_true(reaches(60, &runs, 3));
    assert_string_equal(got[0], "message \"" SECRET " 0\"");
    assert_string_equal(got[1], "message b:" SECRET " 1");
    assert_string_equal(got[2], "message \"" SECRET " 2\"");
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 0);
}

/* The seal of a copy is that of the message, whatever queue or kind it is in now. */
static void copies_are_opened_as_their_source(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", reads);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_receiver r;
    jobq_pg_message m;
    jobq_pg_error error;

    (void)unused;
    RUN("SELECT jobq.outbox_register('t', 0), jobq.outbox_register('r', 1), "
        "jobq.subscribe('r', 't', 'r'), jobq.subscribe('k', 't', 'q', 'k')");
    memset(&m, 0, sizeof m);
    m.queue = "t";
    m.payload = jobq_str_from("\"" SECRET "\"");
    each(jobq_pg_outbox_enqueue(sealing, NULL, &m, NULL, &error), &error);
    nothing_shows();
    memset(&r, 0, sizeof r);
    r.queue = "r";
    r.each = takes;
    d.receivers = &r;
    d.receiver_count = 1;
    d.loop.until = JOBQ_UNTIL_EMPTY;
    each(jobq_pg_work(sealing, &d, &error), &error);
    assert_true(saw("job \"" SECRET "\"") && saw("message \"" SECRET "\""));
    m.headers = jobq_str_from("{\"seal_from\": \"q\"}");
    assert_int_equal(jobq_pg_outbox_enqueue(sealing, NULL, &m, NULL, &error), JOBQ_ERROR_INVALID);
}

static void a_row_can_be_opened_by_hand(void **unused)
{
    jobq_pg_job job = secret("\"" SECRET "\"");
    jobq_pg_error error;
    jobq_str payload, headers = jobq_str_from("{\"seal\": \"toy\"}");
    PGresult *res;
    char *out;
    size_t size;
    unsigned char *raw;
    bool bytes = true;

    (void)unused;
    each(jobq_pg_enqueue(sealing, NULL, &job, NULL, &error), &error);
    res = sql(db, "SELECT bytes FROM jobq.job");
    raw = PQunescapeBytea((unsigned char *)PQgetvalue(res, 0, 0), &payload.len);
    payload.ptr = (const char *)raw;
    each(jobq_pg_unseal(sealing, "q", "k", headers, payload, &bytes, &out, &size, &error), &error);
    assert_int_equal(size, strlen(SECRET) + 2);
    assert_memory_equal(out, "\"" SECRET "\"", size);
    assert_false(bytes);
    free(out);
    bytes = true;
    assert_int_equal(jobq_pg_unseal(sealing, "q", "other", headers, payload, &bytes, &out, &size,
                                    &error), JOBQ_ERROR_INVALID);
    assert_null(out);
    bytes = false;
    each(jobq_pg_unseal(sealing, "q", "k", headers, payload, &bytes, &out, &size, &error), &error);
    assert_null(out); /* JSON is never sealed */
    PQfreemem(raw);
    PQclear(res);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(jobs_are_sealed_however_they_come, set_up, tear_down),
        cmocka_unit_test_setup_teardown(schedules_are_sealed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_event_loop_seals, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_next_stage_is_sealed_and_a_result_is_not, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(keys_rotate, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_payload_that_cannot_be_opened_waits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(plain_payloads_stay_plain, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refusals_write_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(messages_wait_for_a_key, set_up, tear_down),
        cmocka_unit_test_setup_teardown(copies_are_opened_as_their_source, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_row_can_be_opened_by_hand, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
