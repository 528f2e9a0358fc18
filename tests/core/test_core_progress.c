/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_core_progress.c -- what handlers tell about how far they are, on the in-memory queue.
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"

#include <stdlib.h>

static jobq_test *test;
static int permille;
static const char *note;
static size_t note_size;
static jobq_error code;

static jobq_outcome tells(jobq_call *call)
{
    jobq_str text = {note, note_size};

    jobq_call_progress(call, 1, jobq_str_from("first"), false);
    if (call->job.attempt == 1) jobq_call_progress(call, permille, text, false);
    jobq_call_delay(call, JOBQ_SECONDS(1));
    return call->job.attempt == 1 ? JOBQ_OUTCOME_RETRY : JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome tells_nothing(jobq_call *call)
{
    (void)call;
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome tells_too_late(jobq_call *call)
{
    code = jobq_call_progress(call, 5, jobq_str_from("mine"), true);
    if (code == JOBQ_OK && call->job.attempt == 1) {
        jobq_memory_job *mj = jobq_memory_get(test->memory, call->job.id);
        mj->job.claim++;
        code = jobq_call_progress(call, 6, jobq_str_from("not mine"), true);
        mj->job.claim--;
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static int setup(void **unused)
{
    static const jobq_job_handler handlers[] = {
        {.queue = "q", .kind = "tells", .run = {tells}},
        {.queue = "q", .kind = "nothing", .run = {tells_nothing}},
        {.queue = "q", .kind = "late", .run = {tells_too_late}}};

    (void)unused;
    test = jobq_test_init(malloc(jobq_test_size()), handlers, 3);
    permille = 1000;
    note = "";
    note_size = 0;
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

static void says(const char *text, size_t size, const char *kept)
{
    int64_t id;

    setup(NULL);
    note = text;
    note_size = size;
    id = add("tells");
    jobq_test_run(test, JOBQ_SECONDS(0));
    assert_int_equal(jobq_test_get(test, id)->permille, permille);
    assert_string_equal(jobq_test_get(test, id)->note, kept);
    free(test);
    test = NULL;
}

static void the_latest_progress_of_an_attempt_counts(void **unused)
{
    int64_t id = add("tells"), quiet = add("nothing");

    (void)unused;
    permille = 457;
    jobq_test_run(test, 0);
    assert_int_equal(jobq_test_get(test, id)->permille, 457);
    jobq_test_run(test, JOBQ_SECONDS(10));
    assert_int_equal(jobq_test_get(test, id)->permille, 1);
    assert_string_equal(jobq_test_get(test, id)->note, "first");
    assert_int_equal(jobq_test_get(test, quiet)->permille, -1);
    assert_string_equal(jobq_test_get(test, quiet)->note, "");
}

static void what_is_out_of_range_counts_as_the_nearest(void **unused)
{
    jobq_test_job job = {.queue = "q", .kind = "tells"};
    static const int given[] = {1001, -1, INT32_MAX, INT32_MIN};
    static const int kept[] = {1000, 0, 1000, 0};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(given); i++) {
        int64_t id = jobq_test_enqueue(test, &job);
        permille = given[i];
        assert_int_equal(jobq_test_run(test, 0), 1);
        assert_int_equal(jobq_test_get(test, id)->permille, kept[i]);
        teardown(NULL);
        setup(NULL);
    }
}

static void notes_are_cut_at_a_character_and_mended(void **unused)
{
    char text[JOBQ_NOTE_MAX + 2], kept[JOBQ_NOTE_MAX + 1];

    (void)unused;
    free(test);
    memset(text, 'a', sizeof text);
    memcpy(kept, text, sizeof kept);
    kept[JOBQ_NOTE_MAX] = '\0';
    says(text, sizeof text, kept);
    memcpy(text + JOBQ_NOTE_MAX - 1, "\xc3\xa9", 2); /* one byte too many */
    kept[JOBQ_NOTE_MAX - 1] = '\0';
    says(text, JOBQ_NOTE_MAX + 1, kept);
    says("a\xff\0z", 4, "a??z");
}

static void a_lost_job_tells_nothing(void **unused)
{
    int64_t id = add("late");

    (void)unused;
    jobq_test_run(test, 0);
    assert_int_equal(code, JOBQ_ERROR_LOST);
    assert_int_equal(jobq_test_get(test, id)->permille, 5);
    assert_string_equal(jobq_test_get(test, id)->note, "mine");
}

static void a_call_without_a_store_takes_it(void **unused)
{
    jobq_call call;

    (void)unused;
    memset(&call, 0, sizeof call);
    jobq_call_progress(&call, 0, jobq_str_from("x"), false);
    assert_int_equal(jobq_call_progress(&call, 1000, jobq_str_from(NULL), true), JOBQ_OK);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_latest_progress_of_an_attempt_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_out_of_range_counts_as_the_nearest, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(notes_are_cut_at_a_character_and_mended, setup, teardown),
        cmocka_unit_test_setup_teardown(a_lost_job_tells_nothing, setup, teardown),
        cmocka_unit_test(a_call_without_a_store_takes_it),
    };

    return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
