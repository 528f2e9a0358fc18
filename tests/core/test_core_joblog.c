/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_core_joblog.c -- the log of an attempt: its bound, its JSON, and what tests of handlers see.
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"

#include <stdio.h>
#include <stdlib.h>

static jobq_test *test;

static jobq_outcome logs(jobq_call *call)
{
    jobq_call_delay(call, JOBQ_SECONDS(90));
    if (call->job.attempt == 1) jobq_call_log(call, JOBQ_LEVEL_DEBUG, jobq_str_from("begun"));
    jobq_test_sleep(test, 1500000);
    if (call->job.attempt == 1) {
        jobq_call_log(call, JOBQ_LEVEL_ERROR, jobq_str_from("no \"luck\"\n"));
        return JOBQ_OUTCOME_RETRY;
    }
    jobq_call_log(call, JOBQ_LEVEL_WARNING, jobq_str_from("late"));
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome is_quiet(jobq_call *call)
{
    (void)call;
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome logs_too_late(jobq_call *call)
{
    jobq_memory_job *mj = jobq_memory_get(test->memory, call->job.id);

    jobq_call_log(call, JOBQ_LEVEL_INFO, jobq_str_from("mine"));
    mj->job.claim++;
    jobq_call_log(call, JOBQ_LEVEL_INFO, jobq_str_from("not mine"));
    mj->job.claim--;
    return JOBQ_OUTCOME_SUCCESS;
}

static int setup(void **unused)
{
    static const jobq_job_handler handlers[] = {
        {.queue = "q", .kind = "logs", .run = {logs}},
        {.queue = "q", .kind = "quiet", .run = {is_quiet}},
        {.queue = "q", .kind = "late", .run = {logs_too_late}}};

    (void)unused;
    test = jobq_test_init(malloc(jobq_test_size()), handlers, 3);
    return 0;
}

static int teardown(void **unused)
{
    (void)unused;
    free(test);
    return 0;
}

static int64_t add(const char *kind)
{
    jobq_test_job job;

    memset(&job, 0, sizeof job);
    job.queue = "q";
    job.kind = kind;
    return jobq_test_enqueue(test, &job);
}

static void a_test_sees_the_latest_attempt(void **unused)
{
    int64_t id = add("logs"), quiet = add("quiet");

    (void)unused;
    assert_string_equal(jobq_test_get(test, id)->log, "");
    jobq_test_run(test, JOBQ_SECONDS(2));
    assert_string_equal(jobq_test_get(test, id)->log,
                        "[[\"1970-01-01T00:00:00.000000Z\",\"debug\",\"begun\"],\n"
                        "[\"1970-01-01T00:00:01.500000Z\",\"error\",\"no \\\"luck\\\"\\n\"]]");
    jobq_test_run(test, JOBQ_HOURS(1));
    assert_int_equal(jobq_test_get(test, id)->job.state, JOBQ_STATE_SUCCEEDED);
    assert_string_equal(jobq_test_get(test, id)->log,
                        "[[\"1970-01-01T00:01:33.000000Z\",\"warning\",\"late\"]]");
    assert_string_equal(jobq_test_get(test, quiet)->log, "");
}

static void a_lost_job_logs_nothing(void **unused)
{
    int64_t id = add("late");

    (void)unused;
    jobq_test_run(test, 0);
    assert_non_null(strstr(jobq_test_get(test, id)->log, "\"mine\"]]"));
    assert_null(strstr(jobq_test_get(test, id)->log, "not mine"));
}

static void a_call_without_a_store_takes_it(void **unused)
{
    jobq_call call;

    (void)unused;
    memset(&call, 0, sizeof call);
    jobq_call_log(&call, JOBQ_LEVEL_INFO, jobq_str_from("x"));
    jobq_call_log(&call, JOBQ_LEVEL_INFO, jobq_str_from(NULL));
}

static jobq_str some(const char *bytes, size_t size)
{
    jobq_str s;

    s.ptr = bytes;
    s.len = size;
    return s;
}

/* The one line of a log. */
static void reads(int64_t at_us, jobq_str text, const char *wanted)
{
    static jobq_log log;
    static char out[JOBQ_LOG_FORMAT_MAX];

    memset(&log, 0, sizeof log);
    assert_int_equal(jobq_log_format(out, &log), 0);
    assert_string_equal(out, "");
    jobq_log_add(&log, at_us, JOBQ_LEVEL_INFO, text);
    assert_int_equal(jobq_log_format(out, &log), strlen(wanted));
    assert_string_equal(out, wanted);
    assert_int_equal(jobq_json_check(jobq_str_from(out), NULL, NULL), JOBQ_OK);
}

static void times_and_texts_are_json(void **unused)
{
    (void)unused;
    reads(1795479905123456, jobq_str_from("a"),
          "[[\"2026-11-24T00:25:05.123456Z\",\"info\",\"a\"]]");
    reads(951827696000007, jobq_str_from("\t\\"),
          "[[\"2000-02-29T12:34:56.000007Z\",\"info\",\"\\t\\\\\"]]");
    reads(-1, some("a\xff\0z", 4), "[[\"1969-12-31T23:59:59.999999Z\",\"info\",\"a??z\"]]");
    reads(0, jobq_str_from(NULL), "[[\"1970-01-01T00:00:00.000000Z\",\"info\",\"\"]]");
}

static void lines_are_cut_at_a_character(void **unused)
{
    static jobq_log log;
    char text[JOBQ_LOG_LINE_MAX + 1];

    (void)unused;
    memset(text, 'a', sizeof text);
    jobq_log_add(&log, 0, JOBQ_LEVEL_INFO, some(text, sizeof text));
    assert_int_equal(log.size, JOBQ_LOG_LINE_MAX + 43);
    memset(&log, 0, sizeof log);
    memcpy(text + JOBQ_LOG_LINE_MAX - 1, "\xc3\xa9", 2); /* one byte too many */
    jobq_log_add(&log, 0, JOBQ_LEVEL_INFO, some(text, sizeof text));
    assert_int_equal(log.size, JOBQ_LOG_LINE_MAX + 42);
}

/* Lines of any sizes: the latest ones that fit stay, and the others are counted. */
static void the_oldest_lines_are_dropped(void **unused)
{
    static jobq_log log;
    static char out[JOBQ_LOG_FORMAT_MAX];
    char text[JOBQ_LOG_LINE_MAX + 1], wanted[100];
    int i, j, kept, most = 0;

    (void)unused;
    for (i = 1; i <= 3000; i++) {
        int size = i * 7919 % 1100;
        memset(text, i % 5 == 0 ? '\1' : 'a', sizeof text); /* \u0001 takes 6 bytes */
        j = snprintf(text, sizeof text, "line %d.", i);
        text[j] = 'b';
        jobq_log_add(&log, i, JOBQ_LEVEL_INFO, some(text, (size_t)(size > j ? size : j)));
        assert_in_range(log.size, 1, JOBQ_LOG_MAX);
        jobq_log_format(out, &log);
        assert_int_equal(jobq_json_check(jobq_str_from(out), NULL, NULL), JOBQ_OK);
        for (kept = 0, j = 0; out[j] != '\0'; j++) kept += strncmp(out + j, "line ", 5) == 0;
        assert_int_equal(kept + log.dropped, i);
        if (kept > most) most = kept;
        snprintf(wanted, sizeof wanted, "\"line %d.", (int)log.dropped + 1);
        assert_non_null(strstr(out, wanted));
        snprintf(wanted, sizeof wanted, "\"line %d.", i);
        assert_non_null(strstr(out, wanted));
        snprintf(wanted, sizeof wanted, "[[\"1970-01-01T00:00:00.%06dZ\",\"%s",
                 (int)log.dropped + 1, log.dropped > 0 ? "warning\",\"" : "info");
        assert_memory_equal(out, wanted, strlen(wanted));
        if (log.dropped == 0) continue;
        snprintf(wanted, sizeof wanted, "%d lines dropped\"],\n", (int)log.dropped);
        assert_memory_equal(strstr(out, "\"warning\",\"") + 11, wanted, strlen(wanted));
    }
    assert_in_range(most, 8, 100);
}

/* A full log needs all the bytes that are promised, and no more. */
static void a_full_log_fits(void **unused)
{
    static jobq_log log;
    static char out[JOBQ_LOG_FORMAT_MAX + 1];
    char text[JOBQ_LOG_MAX / 32];
    int i;

    (void)unused;
    memset(text, 'x', sizeof text);
    for (i = 0; i < 32; i++)
        jobq_log_add(&log, 0, JOBQ_LEVEL_DEBUG, some(text, JOBQ_LOG_MAX / 32 - 44));
    assert_int_equal(log.size, JOBQ_LOG_MAX);
    assert_int_equal(log.dropped, 0);
    log.dropped = INT64_MAX;
    out[JOBQ_LOG_FORMAT_MAX] = '#';
    assert_in_range(jobq_log_format(out, &log), JOBQ_LOG_MAX, JOBQ_LOG_FORMAT_MAX - 1);
    assert_int_equal(out[JOBQ_LOG_FORMAT_MAX], '#');
    assert_int_equal(jobq_json_check(jobq_str_from(out), NULL, NULL), JOBQ_OK);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_test_sees_the_latest_attempt, setup, teardown),
        cmocka_unit_test_setup_teardown(a_lost_job_logs_nothing, setup, teardown),
        cmocka_unit_test(a_call_without_a_store_takes_it),
        cmocka_unit_test(times_and_texts_are_json),
        cmocka_unit_test(lines_are_cut_at_a_character),
        cmocka_unit_test(the_oldest_lines_are_dropped),
        cmocka_unit_test(a_full_log_fits),
    };

    return cmocka_run_group_tests_name("joblog", tests, NULL, NULL);
}
