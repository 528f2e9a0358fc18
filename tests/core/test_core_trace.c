/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The trace context of W3C: which traceparents are valid, how a trace is written into headers, and
 * how it is read from them.
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"

#define IDS "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
#define PARENT "00-" IDS "-01"

/* Text in memory of exactly its length, so that a sanitizer sees each byte read beyond it. */
static char *alone(const char *text, jobq_str *s)
{
    s->len = strlen(text);
    s->ptr = malloc(s->len > 0 ? s->len : 1);
    assert_non_null(s->ptr);
    memcpy((char *)s->ptr, text, s->len);
    return (char *)s->ptr;
}

static bool usable(jobq_str parent)
{
    char out[JOBQ_TRACE_MAX];
    jobq_trace trace = {parent, {NULL, 0}};

    return jobq_trace_format(out, &trace) > 0;
}

static bool valid(const char *text)
{
    jobq_str s;
    char *copy = alone(text, &s);
    bool is = usable(s);

    free(copy);
    return is;
}

/* The examples of W3C Trace Context, and each rule of its section 3.2.2 broken once. */
static void the_examples_of_the_standard(void **unused)
{
    static const char *const good[] = {
        PARENT, "00-" IDS "-00", "00-" IDS "-ff",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "cc-" IDS "-01", "cc-" IDS "-01-what-the-future-will-be-like", "01-" IDS "-01-",
        "fe-" IDS "-09"};
    static const char *const bad[] = {
        "", "00", "00-" IDS "-0", "00-" IDS "-01-", "00-" IDS "-01.", "00-" IDS "-011",
        "cc-" IDS "-01.what", "cc-" IDS "-010", "ff-" IDS "-01", "0-" IDS "-01x",
        "0g-" IDS "-01", "0G-" IDS "-01", "00_" IDS "-01", "00-" IDS "_01", "00-" IDS "-0x",
        "00-" IDS "-0A",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00F067AA0BA902B7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01", " " PARENT, PARENT " "};
    jobq_str none = {NULL, 0};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(good); i++) assert_true(valid(good[i]));
    for (i = 0; i < COUNT(bad); i++) {
        if (valid(bad[i])) fail_msg("taken: %s", bad[i]);
    }
    assert_false(usable(none));
}

/* What a trace becomes in headers; "" : none. */
static void formats(const char *parent, const char *state, const char *wanted)
{
    char out[JOBQ_TRACE_MAX + 1];
    jobq_trace trace;
    size_t size;

    memset(out, '#', sizeof out);
    trace.parent = jobq_str_from(parent);
    trace.state = jobq_str_from(state);
    size = jobq_trace_format(out, &trace);
    assert_string_equal(out, wanted);
    assert_int_equal(size, strlen(wanted));
    assert_int_equal(out[JOBQ_TRACE_MAX], '#');
}

static void a_trace_is_written_as_members(void **unused)
{
    char state[JOBQ_TRACE_STATE_MAX + 2], wanted[JOBQ_TRACE_MAX];

    (void)unused;
    formats(PARENT, NULL, "\"traceparent\": \"" PARENT "\"");
    formats(PARENT, "", "\"traceparent\": \"" PARENT "\"");
    formats(PARENT, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
            "\"traceparent\": \"" PARENT "\", \"tracestate\": "
            "\"congo=t61rcWkgMzE,rojo=00f067aa0ba902b7\"");
    formats(NULL, "congo=1", "");
    formats("ff-" IDS "-01", "congo=1", "");
    formats("00-" IDS "-fe", NULL, "\"traceparent\": \"00-" IDS "-fe\"");
    memset(state, 'a', sizeof state);
    state[JOBQ_TRACE_STATE_MAX] = '\0';
    snprintf(wanted, sizeof wanted,
             "\"traceparent\": \"" PARENT "\", \"tracestate\": \"%s\"", state);
    formats(PARENT, state, wanted);
    state[JOBQ_TRACE_STATE_MAX] = 'a';
    state[JOBQ_TRACE_STATE_MAX + 1] = '\0';
    formats(PARENT, state, "\"traceparent\": \"" PARENT "\"");
}

/* Only the flag that version 00 knows is kept of a version that nobody knows. */
static void an_unknown_version_is_written_as_version_00(void **unused)
{
    static const char flags[] = "0123456789abcdef";
    char parent[60], wanted[90];
    int i;

    (void)unused;
    for (i = 0; flags[i] != '\0'; i++) {
        snprintf(parent, sizeof parent, "01-" IDS "-f%c", flags[i]);
        snprintf(wanted, sizeof wanted, "\"traceparent\": \"00-" IDS "-0%d\"", i & 1);
        formats(parent, NULL, wanted);
    }
    formats("10-" IDS "-03", NULL, "\"traceparent\": \"00-" IDS "-01\"");
    formats("cc-" IDS "-01-\"what\\", NULL, "\"traceparent\": \"" PARENT "\"");
}

/* Nothing that would have to be escaped gets into the headers' JSON. */
static void a_state_that_needs_escapes_is_left_out(void **unused)
{
    static const char *const bad[] = {"a=\"", "a=\\", "a=\n", "a=\x7f", "a=\xc3\xa4", "a=\x1f"};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(bad); i++) formats(PARENT, bad[i], "\"traceparent\": \"" PARENT "\"");
    formats(PARENT, "a= ~!#", "\"traceparent\": \"" PARENT "\", \"tracestate\": \"a= ~!#\"");
}

static void reads(const char *headers, const char *parent, const char *state)
{
    jobq_str s;
    char *copy = alone(headers, &s);
    jobq_trace trace = jobq_trace_of(s);

    assert_true(jobq_str_equal(trace.parent, jobq_str_from(parent)));
    assert_true((trace.parent.ptr == NULL) == (parent == NULL));
    assert_true(jobq_str_equal(trace.state, jobq_str_from(state)));
    assert_true((trace.state.ptr == NULL) == (state == NULL));
    free(copy);
}

static void headers_are_read(void **unused)
{
    (void)unused;
    reads("{\"traceparent\": \"" PARENT "\"}", PARENT, NULL);
    reads(" {\"a\": [{\"traceparent\": 1}], \"tracestate\":\"b=1\" , \"traceparent\" : \"" PARENT
          "\", \"z\": {}} ", PARENT, "b=1");
    reads("{\"traceparent\": \"x\", \"traceparent\": \"" PARENT "\"}", PARENT, NULL);
    reads("{\"traceparent\": \"" PARENT "\", \"traceparent\": null}", NULL, NULL);
    reads("{\"traceparent\": \"" PARENT "\", \"tracestate\": \"\"}", PARENT, NULL);
    reads("{\"traceparent\": \"" PARENT "\", \"tracestate\": \"a=\\\"\"}", PARENT, NULL);
    reads("{\"traceparent\": \"" PARENT "\", \"tracestate\": 7}", PARENT, NULL);
    reads("{\"traceparent\": \"cc-" IDS "-01-\\u00e4\"}", "cc-" IDS "-01", NULL);
}

static void headers_without_a_valid_trace_have_none(void **unused)
{
    static const char *const none[] = {
        "", "{}", "null", "[\"traceparent\", \"" PARENT "\"]", "\"" PARENT "\"",
        "{\"tracestate\": \"a=1\"}", "{\"traceparent\": 1}", "{\"traceparent\": \"\"}",
        "{\"traceparent\": [\"" PARENT "\"]}", "{\"traceparent\": {\"a\": \"" PARENT "\"}}",
        "{\"a\": {\"traceparent\": \"" PARENT "\"}}", "{\"TraceParent\": \"" PARENT "\"}",
        "{\"traceparent\": \"ff-" IDS "-01\", \"tracestate\": \"a=1\"}", "{\"traceparent",
        "{\"traceparent\": \"" PARENT, "{\"traceparent\": \"" PARENT "\"", "{\"traceparent\"",
        "{\"traceparent\": \"" PARENT "\",}", "{\"trace\": \"" PARENT "\"}"};
    jobq_trace trace;
    jobq_str s = {NULL, 0};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(none); i++) reads(none[i], NULL, NULL);
    trace = jobq_trace_of(s);
    assert_true(trace.parent.ptr == NULL && trace.state.ptr == NULL);
}

static void members_are_found(void **unused)
{
    jobq_str object = jobq_str_from("{\"a\": 1, \"b\" : {\"c\": [2]} , \"a\": \"x\\\"\"}");

    (void)unused;
    assert_true(jobq_str_equal(jobq_json_member(object, "a"), jobq_str_from("\"x\\\"\"")));
    assert_true(jobq_str_equal(jobq_json_member(object, "b"), jobq_str_from("{\"c\": [2]}")));
    assert_null(jobq_json_member(object, "c").ptr);
    assert_null(jobq_json_member(object, "").ptr);
    assert_null(jobq_json_member(jobq_str_from("{\"ab\": 1}"), "a").ptr);
    assert_null(jobq_json_member(jobq_str_from("{\"a\": 1"), "a").ptr);
    assert_null(jobq_json_member(jobq_str_from("[1]"), "a").ptr);
}

/* ---- in handlers ----------------------------------------------------------------------------- */

static int seen;

static jobq_outcome sees(jobq_call *call)
{
    jobq_trace trace = jobq_trace_of(call->headers);

    if (call->headers.ptr == NULL) seen += trace.parent.ptr == NULL ? 100 : 0;
    else seen += jobq_str_equal(trace.parent, jobq_str_from(PARENT));
    return JOBQ_OUTCOME_SUCCESS;
}

static void a_handler_sees_its_trace(void **unused)
{
    static const jobq_job_handler handler = {.queue = "q", .kind = "k", .run = {sees}};
    jobq_test *test = jobq_test_init(malloc(jobq_test_size()), &handler, 1);
    jobq_test_job job = {.queue = "q", .kind = "k"};

    (void)unused;
    seen = 0;
    assert_true(jobq_test_enqueue(test, &job) > 0);
    job.headers = jobq_str_from("{\"traceparent\": \"" PARENT "\"}");
    assert_true(jobq_test_enqueue(test, &job) > 0);
    assert_int_equal(jobq_test_run(test, JOBQ_SECONDS(1)), 2);
    assert_int_equal(seen, 101);
    free(test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_examples_of_the_standard),
        cmocka_unit_test(a_trace_is_written_as_members),
        cmocka_unit_test(an_unknown_version_is_written_as_version_00),
        cmocka_unit_test(a_state_that_needs_escapes_is_left_out),
        cmocka_unit_test(headers_are_read),
        cmocka_unit_test(headers_without_a_valid_trace_have_none),
        cmocka_unit_test(members_are_found),
        cmocka_unit_test(a_handler_sees_its_trace),
    };

    return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
