/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_progress.c -- how far running jobs are: with heartbeats, at once, and who may tell.
 */
#include "pg_work.h"

static int asked, told;    /* calls that a test wants, and those that the handler made */
static int permille, code; /* of the next call; what the latest call returned */
static bool at_once;
static jobq_str note;

/* Tells what the test asks it to tell, until the gate opens. */
static jobq_outcome tells(jobq_call *call)
{
    int last = GET(told);

    ADD(runs);
    while (!GET(gate)) {
        if (GET(asked) > last) {
            if (at_once) SET(code, (int)jobq_call_progress(call, permille, note, true));
            else jobq_call_progress(call, permille, note, false);
            last = ADD(told);
        }
        nap_us(1000);
    }
    if (call->job.attempt > 1) return JOBQ_OUTCOME_SUCCESS;
    SET(gate, 0);
    jobq_call_delay(call, 0);
    return JOBQ_OUTCOME_RETRY;
}

static int begin(void **state)
{
    SET(asked, 0);
    SET(told, 0);
    SET(code, -1);
    at_once = false;
    return fresh(state);
}

/* Lets the job end. */
static void finish(void)
{
    SET(gate, 1);
    assert_true(reaches(20, &runs, 2));
    SET(gate, 1);
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.job"));
}

static void tell(int how_far, jobq_str text)
{
    permille = how_far;
    note = text;
    assert_true(reaches(20, &told, ADD(asked)));
}

/* Starts a worker and its job. h must stay. */
static void run_one(jobq_pg_handler *h, int64_t heartbeat_us)
{
    jobq_pg_worker_desc d = work_of(h, 1);

    *h = handler_of("q", "k", tells);
    d.loop.threads = 1;
    d.loop.heartbeat_us = heartbeat_us;
    d.loop.lease_us = 10 * SECOND + 2 * heartbeat_us;
    enqueue_count(1);
    start(&d);
    assert_true(reaches(20, &runs, 1));
}

#define HOW_FAR                                                                                    \
    "SELECT coalesce(percent::text, '-') || ' ' || coalesce(note, '-') FROM jobq.running"

static void a_heartbeat_brings_it(void **unused)
{
    jobq_pg_handler h;

    (void)unused;
    run_one(&h, 200000);
    assert_int_equal(number("SELECT count(*) FROM jobq.running WHERE queue = 'q' AND kind = 'k' "
                            "AND worker LIKE 'test%%' AND attempt = 1 AND since IS NOT NULL "
                            "AND percent IS NULL AND note IS NULL AND progress_at IS NULL"), 1);
    tell(457, jobq_str_from("457 of 1000"));
    all_hear();
    expect_text("45.7 457 of 1000", HOW_FAR);
    assert_int_equal(number("SELECT count(*) FROM jobq.running WHERE progress_at BETWEEN "
                            "now() - interval '1 minute' AND now()"), 1);
    tell(0, jobq_str_from(NULL));
    all_hear();
    expect_text("0.0 -", HOW_FAR);
    tell(1000, jobq_str_from("done"));
    all_hear();
    expect_text("100.0 done", HOW_FAR);
    finish();
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.claim WHERE progress IS NOT NULL"));
}

/* Two calls between heartbeats are one write, and the same progress again is none. */
static void nothing_is_written_without_a_change(void **unused)
{
    jobq_pg_handler h;
    long before;

    (void)unused;
    run_one(&h, 200000);
    before = number("SELECT xmin::text::bigint FROM jobq.claim");
    all_hear();
    assert_int_equal(number("SELECT xmin::text::bigint FROM jobq.claim"), before);
    tell(10, jobq_str_from("ten"));
    all_hear();
    assert_int_not_equal(number("SELECT xmin::text::bigint FROM jobq.claim"), before);
    before = number("SELECT xmin::text::bigint FROM jobq.claim");
    all_hear();
    tell(10, jobq_str_from("ten"));
    all_hear();
    assert_int_equal(number("SELECT xmin::text::bigint FROM jobq.claim"), before);
    tell(10, jobq_str_from("ten more"));
    all_hear();
    assert_int_not_equal(number("SELECT xmin::text::bigint FROM jobq.claim"), before);
    finish();
}

static void the_next_attempt_begins_anew(void **unused)
{
    jobq_pg_handler h;

    (void)unused;
    run_one(&h, 200000);
    tell(900, jobq_str_from("almost"));
    all_hear();
    expect_text("90.0 almost", HOW_FAR);
    SET(gate, 1);
    assert_true(reaches(20, &runs, 2));
    all_hear();
    expect_text("- -", HOW_FAR);
    tell(900, jobq_str_from("almost")); /* the same again is news of this attempt */
    all_hear();
    expect_text("90.0 almost", HOW_FAR);
    SET(gate, 1);
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.job"));
}

/* The heartbeat is far away. */
static void it_can_be_published_at_once(void **unused)
{
    jobq_pg_handler h;

    (void)unused;
    run_one(&h, 60 * SECOND);
    tell(1, jobq_str_from("later"));
    expect_text("- -", HOW_FAR);
    at_once = true;
    tell(500, jobq_str_from("half"));
    assert_int_equal(GET(code), JOBQ_OK);
    expect_text("50.0 half", HOW_FAR);
    tell(0, jobq_str_from(""));
    expect_text("0.0 -", HOW_FAR);
    finish();
}

static void notes_are_cut_and_mended(void **unused)
{
    jobq_pg_handler h;
    char text[JOBQ_NOTE_MAX + 2];

    (void)unused;
    run_one(&h, 200000);
    memset(text, 'a', sizeof text);
    memcpy(text + JOBQ_NOTE_MAX - 1, "\xc3\xa9", 2);
    tell(1, (jobq_str){text, JOBQ_NOTE_MAX + 1});
    all_hear();
    assert_int_equal(number("SELECT octet_length(note) FROM jobq.running"), JOBQ_NOTE_MAX - 1);
    tell(2, (jobq_str){"a\xff\0\"\\z", 6});
    all_hear();
    expect_text("0.2 a??\"\\z", HOW_FAR);
    finish();
}

/* Somebody else has the job: neither the heartbeat nor a statement of its own shows it. */
static void a_worker_that_lost_the_job_publishes_nothing(void **unused)
{
    jobq_pg_handler h;

    (void)unused;
    run_one(&h, 200000);
    RUN("INSERT INTO jobq.claim (worker, number, claimed_at, jobs) "
        "SELECT 77, 1, now(), ARRAY[id] FROM jobq.job");
    RUN("UPDATE jobq.job SET worker = 77, claim = 1, attempt = 2");
    tell(900, jobq_str_from("not mine"));
    all_hear();
    expect_text("- -", HOW_FAR);
    at_once = true;
    tell(901, jobq_str_from("not mine"));
    assert_int_equal(GET(code), JOBQ_ERROR_LOST);
    expect_text("- -", HOW_FAR);
    assert_int_equal(number("SELECT jobq._progress_write(77, '{1}', '{5}', '{6}', NULL)::int"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim WHERE worker = 77 AND "
                            "progress ? '5'"), 1);
    RUN("UPDATE jobq.job SET worker = (SELECT c.worker FROM jobq.claim c WHERE c.worker <> 77), "
        "claim = (SELECT c.number FROM jobq.claim c WHERE c.worker <> 77)");
    finish();
}

/* The heartbeat does not wait for a row that an operator has locked, and brings it later. */
static void a_locked_row_is_written_later(void **unused)
{
    jobq_pg_handler h;
    PGconn *other = PQconnectdb(server());

    (void)unused;
    run_one(&h, 200000);
    PQclear(sql(other, "BEGIN"));
    PQclear(sql(other, "SELECT FROM jobq.claim FOR UPDATE"));
    tell(250, jobq_str_from("a quarter"));
    all_hear();
    expect_text("- -", HOW_FAR);
    PQfinish(other);
    all_hear();
    expect_text("25.0 a quarter", HOW_FAR);
    finish();
}

#undef TEST
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, all_stop)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(a_heartbeat_brings_it),
        TEST(nothing_is_written_without_a_change),
        TEST(the_next_attempt_begins_anew),
        TEST(it_can_be_published_at_once),
        TEST(notes_are_cut_and_mended),
        TEST(a_worker_that_lost_the_job_publishes_nothing),
        TEST(a_locked_row_is_written_later),
    };

    return cmocka_run_group_tests_name("progress", tests, pg_up, pg_down);
}
