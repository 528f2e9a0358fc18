/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * A trace goes from job to job and to messages in their headers, whichever way they are enqueued,
 * and changes nothing else about them.
 */
#include "relay.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00-" TRACE "-00f067aa0ba902b7-01"
#define OTHER "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
#define STATE "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"

static jobq_trace trace_of(const char *parent, const char *state)
{
    jobq_trace trace;

    trace.parent = jobq_str_from(parent);
    trace.state = jobq_str_from(state);
    return trace;
}

/* ---- from a job to its descendants ----------------------------------------------------------- */

static char seen[6][2][600]; /* parent and state, as each handler saw them */

static void notes(int at, jobq_trace trace)
{
    snprintf(seen[at][0], sizeof seen[at][0], "%.*s", (int)trace.parent.len,
             trace.parent.len > 0 ? trace.parent.ptr : "");
    snprintf(seen[at][1], sizeof seen[at][1], "%.*s", (int)trace.state.len,
             trace.state.len > 0 ? trace.state.ptr : "");
    ADD(runs);
}

static jobq_outcome enqueues_a_child(jobq_call *call)
{
    jobq_pg_job child = plain_job();
    PGconn *conn = jobq_pg_call_conn(call, NULL);
    int generation = call->payload.ptr[6] - '0'; /* {"n": 0} */
    char payload[] = "{\"n\": 0}";

    notes(generation, jobq_trace_of(call->headers));
    if (generation == 3) return JOBQ_OUTCOME_SUCCESS;
    payload[6] = (char)('0' + generation + 1);
    child.payload = jobq_str_from(payload);
    child.trace = jobq_trace_of(call->headers);
    if (generation == 2) { /* the last child is enqueued by a message */
        jobq_pg_message m = plain_message(0);
        m.trace = jobq_trace_of(call->headers);
        return jobq_pg_outbox_enqueue(pg, conn, &m, NULL, NULL) == JOBQ_OK
                   ? JOBQ_OUTCOME_SUCCESS : JOBQ_OUTCOME_DISCARD;
    }
    return jobq_pg_enqueue(pg, conn, &child, NULL, NULL) == JOBQ_OK ? JOBQ_OUTCOME_SUCCESS
                                                                     : JOBQ_OUTCOME_DISCARD;
}

static jobq_result enqueues_from_a_message(jobq_delivery *d, const jobq_message *m)
{
    jobq_pg_job child = plain_job();

    (void)d;
    notes(5, jobq_trace_of(m->headers));
    child.payload = jobq_str_from("{\"n\": 3}");
    child.trace = jobq_trace_of(m->headers);
    return jobq_pg_enqueue(pg, NULL, &child, NULL, NULL) == JOBQ_OK ? JOBQ_RESULT_SUCCESS
                                                                     : JOBQ_RESULT_REJECT;
}

/* A request's job, its child, its grandchild, that one's message, and the message's job. */
static void a_trace_reaches_all_descendants(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", enqueues_a_child);
    jobq_pg_receiver r = receiver(enqueues_from_a_message, NULL);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    static const int at[] = {0, 1, 2, 3, 5};
    jobq_pg_job job = plain_job();
    size_t i;

    (void)unused;
    memset(seen, 0, sizeof seen);
    open_box(1);
    work.receivers = &r;
    work.receiver_count = 1;
    job.payload = jobq_str_from("{\"n\": 0}");
    job.trace = trace_of(PARENT, STATE);
    enqueue_with(&job);
    start_on(pg, &work);
    assert_true(reaches(30, &runs, 5));
    for (i = 0; i < COUNT(at); i++) {
        assert_string_equal(seen[at[i]][0], PARENT);
        assert_string_equal(seen[at[i]][1], STATE);
    }
}

static jobq_outcome enqueues_without(jobq_call *call)
{
    jobq_pg_job child = plain_job();

    child.kind = "other";
    return jobq_pg_enqueue(pg, jobq_pg_call_conn(call, NULL), &child, NULL, NULL) == JOBQ_OK
               ? JOBQ_OUTCOME_SUCCESS : JOBQ_OUTCOME_DISCARD;
}

/* A child gets a trace only from whoever enqueues it; without one its headers stay NULL. */
static void what_names_no_trace_gets_none(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", enqueues_without);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    jobq_pg_job job = plain_job();

    (void)unused;
    job.trace = trace_of(PARENT, NULL);
    enqueue_with(&job);
    work_off(&work);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE headers IS NULL"), 1);
}

/* ---- each way to enqueue --------------------------------------------------------------------- */

static int answered;

static void counts_answers(void *user, const jobq_pg_reply *reply)
{
    (void)user;
    answered += reply->code == JOBQ_OK ? 1 : 100;
}

/* By a worker's own connection, without waiting. */
static void enqueue_by_a_step(const jobq_pg_job *job)
{
    jobq_pg_handler handler = handler_of("elsewhere", "k", succeed);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    jobq_pg_worker *worker;
    jobq_pg_error error;
    int i;

    answered = 0;
    assert_int_equal(jobq_pg_worker_open(pg, &work, &worker, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_worker_ask(worker, &(jobq_pg_question){.enqueue = job}, counts_answers,
                                        NULL, &error), JOBQ_OK);
    for (i = 0; i < 2000 && answered == 0; i++) {
        jobq_pg_worker_step(worker, 1000);
        nap_us(2000);
    }
    jobq_pg_worker_free(worker);
    assert_int_equal(answered, 1);
}

#define WAYS 7

/* Enqueues a job in every way there is. */
static void enqueue_each_way(const jobq_pg_job *job)
{
    jobq_pg_job many[2];
    jobq_pg_error error;
    char key[20];

    many[0] = many[1] = *job;
    enqueue_with(job);                                   /* the plain INSERT */
    many[0].stages = 2;
    enqueue_with(&many[0]);                              /* the function */
    snprintf(key, sizeof key, "key %lld", (long long)mono_us());
    many[0].key = key;
    many[0].on_known = JOBQ_KNOWN_REPLACE;
    enqueue_with(&many[0]);
    many[0] = *job;
    assert_int_equal(jobq_pg_enqueue_many(pg, db, many, 1, NULL, &error), JOBQ_OK);
    many[1].trace = trace_of(NULL, NULL);                /* beside one that has none */
    many[1].headers = jobq_str_from("{\"beside\": 1}");
    assert_int_equal(jobq_pg_enqueue_many(pg, db, many, 2, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, many, 2, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    enqueue_by_a_step(job);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE headers ? 'beside' AND NOT "
                            "headers ? 'traceparent'"), 2);
    RUN("DELETE FROM jobq.job WHERE headers ? 'beside'");
}

static void each_way_writes(const jobq_pg_job *job, const char *headers)
{
    enqueue_each_way(job);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE headers = '%s'::jsonb", headers),
                     WAYS);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), WAYS);
    RUN("TRUNCATE jobq.job");
}

static void every_way_to_enqueue_writes_it(void **unused)
{
    jobq_pg_job job = plain_job();

    (void)unused;
    job.trace = trace_of(PARENT, NULL);
    each_way_writes(&job, "{\"traceparent\": \"" PARENT "\"}");
    job.trace = trace_of(PARENT, STATE);
    each_way_writes(&job, "{\"traceparent\": \"" PARENT "\", \"tracestate\": \"" STATE "\"}");
    job.headers = jobq_str_from(" { } ");
    each_way_writes(&job, "{\"traceparent\": \"" PARENT "\", \"tracestate\": \"" STATE "\"}");
}

/* Text that stands beside a trace is kept with all its escapes, blanks and nesting. */
static void other_headers_are_kept(void **unused)
{
    static const char odd[] = "\n {\t\"a\\\"}\": [1, {\"b\": \"\\u00e4}\"}], \"n\": 1.10} ";
    jobq_pg_job job = plain_job();

    (void)unused;
    job.headers = jobq_str_from(odd);
    job.trace = trace_of(PARENT, NULL);
    enqueue_each_way(&job);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE headers->>'traceparent' = '" PARENT
                            "' AND (headers - 'traceparent')::text = "
                            "'{\"n\": 1.10, \"a\\\"}\": [1, {\"b\": \"\xc3\xa4}\"}]}'"), WAYS);
}

static void a_trace_and_an_exact_payload_share_the_headers(void **unused)
{
    jobq_pg_job job = plain_job();

    (void)unused;
    job.payload_exact = true;
    job.trace = trace_of(PARENT, STATE);
    each_way_writes(&job, "{\"content-type\": \"application/json\", \"traceparent\": \"" PARENT
                          "\", \"tracestate\": \"" STATE "\"}");
    job.headers = jobq_str_from("{\"a\": 1}");
    each_way_writes(&job, "{\"content-type\": \"application/json\", \"traceparent\": \"" PARENT
                          "\", \"tracestate\": \"" STATE "\", \"a\": 1}");
    job.trace = trace_of("bad", STATE);
    each_way_writes(&job, "{\"content-type\": \"application/json\", \"a\": 1}");
    job.trace = trace_of(PARENT, STATE);
    job.headers = jobq_str_from("{\"traceparent\": null}");
    each_way_writes(&job, "{\"content-type\": \"application/json\", \"traceparent\": null}");
}

/* Nor does an inherited tracestate join a traceparent that it does not belong to. */
static void a_jobs_own_header_wins(void **unused)
{
    jobq_pg_job job = plain_job();

    (void)unused;
    job.trace = trace_of(PARENT, STATE);
    job.headers = jobq_str_from("{\"a\": 1, \"traceparent\": \"" OTHER "\"}");
    each_way_writes(&job, "{\"a\": 1, \"traceparent\": \"" OTHER "\"}");
    job.headers = jobq_str_from("{\"traceparent\": null}");
    each_way_writes(&job, "{\"traceparent\": null}");
    job.headers = jobq_str_from("{\"a\": {\"traceparent\": 1}}"); /* another member's member */
    each_way_writes(&job, "{\"a\": {\"traceparent\": 1}, \"traceparent\": \"" PARENT
                          "\", \"tracestate\": \"" STATE "\"}");
    job.headers = jobq_str_from("{\"tracestate\": \"own=1\"}");
    each_way_writes(&job, "{\"traceparent\": \"" PARENT "\", \"tracestate\": \"own=1\"}");
}

static void a_malformed_trace_is_ignored(void **unused)
{
    static const char *const bad[] = {"", "bad", PARENT "x", "ff-" TRACE "-00f067aa0ba902b7-01",
                                      "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                                      "00-" TRACE "-00f067aa0ba902b7-0\""};
    jobq_pg_job job = plain_job();
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(bad); i++) {
        job.trace = trace_of(bad[i], STATE);
        enqueue_each_way(&job);
        assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE headers IS NULL"), WAYS);
        RUN("TRUNCATE jobq.job");
    }
    job.headers = jobq_str_from("{\"a\": 1}");
    each_way_writes(&job, "{\"a\": 1}");
    job.trace = trace_of(PARENT, "a=\"\\");
    each_way_writes(&job, "{\"a\": 1, \"traceparent\": \"" PARENT "\"}");
    job.trace = trace_of("cc-" TRACE "-00f067aa0ba902b7-03-\"later\"", NULL);
    each_way_writes(&job, "{\"a\": 1, \"traceparent\": \"00-" TRACE "-00f067aa0ba902b7-01\"}");
}

static void every_way_to_send_a_message_writes_it(void **unused)
{
    jobq_pg_message m[2];
    jobq_pg_error error;

    (void)unused;
    open_box(1);
    m[0] = m[1] = plain_message(0);
    m[0].trace = trace_of(PARENT, STATE);
    m[0].headers = jobq_str_from("{\"a\": 1}");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m[0], NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, m, 2, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, m, 2, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    m[0].key = "key"; /* by the function */
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m[0], NULL, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.message WHERE headers = '{\"a\": 1, "
                            "\"traceparent\": \"" PARENT "\", \"tracestate\": \"" STATE "\"}'"), 4);
    assert_int_equal(number("SELECT count(*) FROM jobq.message WHERE headers IS NULL"), 2);
}

/* ---- size ------------------------------------------------------------------------------------ */

/* The limit counts the trace, and is exact. What is too large is refused with its size. */
static void a_trace_counts_for_the_size_of_headers(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    char headers[101];

    (void)unused;
    enqueue_with(&job);
    RUN("SELECT jobq.queue_set('q', payload_max => 174)");
    memset(headers, 't', 100);
    memcpy(headers, "{\"a\": \"", 7);
    memcpy(headers + 98, "\"}", 3);
    assert_int_equal(strlen(headers), 100);
    job.headers = jobq_str_from(headers);
    job.trace = trace_of(PARENT, NULL);
    enqueue_with(&job); /* {"a": ..., "traceparent": "..."}: 100 + 74 */
    job.trace = trace_of(PARENT, "b=1");
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "headers: too large: size 195 exceeds maximum 174"));
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, NULL, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "headers: too large: size 195 exceeds maximum 174"));
    job.trace = trace_of(NULL, NULL);
    enqueue_with(&job);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 3);
}

static void a_trace_counts_for_the_size_of_a_message(void **unused)
{
    jobq_pg_message m;
    jobq_pg_error error;

    (void)unused;
    open_box(1);
    m = plain_message(0); /* hello */
    m.trace = trace_of(PARENT, NULL);
    RUN("UPDATE jobq.queue SET message_max = 79 WHERE name = 'o'");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_OK);
    RUN("UPDATE jobq.queue SET message_max = 78 WHERE name = 'o'");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "79"));
    m.trace = trace_of(NULL, NULL);
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_OK);
}

/* ---- hooks and schedules --------------------------------------------------------------------- */

static int before, after;

static void before_traced(void *user, const jobq_pg_report *report)
{
    (void)user;
    before += jobq_str_equal(jobq_trace_of(report->call->headers).parent, jobq_str_from(PARENT));
}

static void after_traced(void *user, const jobq_pg_report *report)
{
    (void)user;
    after += jobq_str_equal(jobq_trace_of(report->call->headers).parent, jobq_str_from(PARENT));
}

static void hooks_get_the_trace(void **unused)
{
    jobq_pg_handler handler = handler_of("q", "k", succeed);
    jobq_pg_worker_desc work = work_of(&handler, 1);
    jobq_pg_job job = plain_job();

    (void)unused;
    before = after = 0;
    job.trace = trace_of(PARENT, NULL);
    enqueue_with(&job);
    work.loop.threads = 1;
    work.hooks.before = before_traced;
    work.hooks.after = after_traced;
    work_off(&work);
    assert_int_equal(before, 1);
    assert_int_equal(after, 1);
}

static void a_schedule_has_no_trace(void **unused)
{
    jobq_pg_schedule s;
    jobq_pg_error error;

    (void)unused;
    memset(&s, 0, sizeof s);
    s.name = "s";
    s.cron = "@daily";
    s.job = plain_job();
    s.job.trace = trace_of(PARENT, NULL);
    assert_int_equal(jobq_pg_schedules_set(pg, NULL, "program", 1, &s, 1, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.message,
                        "invalid trace: not allowed in a schedule, in schedules[0]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_trace_reaches_all_descendants, fresh, all_stop),
        cmocka_unit_test_setup(what_names_no_trace_gets_none, fresh),
        cmocka_unit_test_setup(every_way_to_enqueue_writes_it, fresh),
        cmocka_unit_test_setup(other_headers_are_kept, fresh),
        cmocka_unit_test_setup(a_trace_and_an_exact_payload_share_the_headers, fresh),
        cmocka_unit_test_setup(a_jobs_own_header_wins, fresh),
        cmocka_unit_test_setup(a_malformed_trace_is_ignored, fresh),
        cmocka_unit_test_setup(every_way_to_send_a_message_writes_it, fresh),
        cmocka_unit_test_setup(a_trace_counts_for_the_size_of_headers, fresh),
        cmocka_unit_test_setup(a_trace_counts_for_the_size_of_a_message, fresh),
        cmocka_unit_test_setup(hooks_get_the_trace, fresh),
        cmocka_unit_test_setup(a_schedule_has_no_trace, fresh),
    };

    return cmocka_run_group_tests_name("trace", tests, pg_up, pg_down);
}
