/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * without.h -- a program that leaves out parts of jobq_pg.h: what is left works, and what is left
 * out is not declared.
 */
#ifndef WITHOUT_INCLUDED
#define WITHOUT_INCLUDED (1)

#include "pg.h"

static int jobs_run;

static jobq_outcome run_job(jobq_call *call)
{
    jobs_run += call->payload.len > 0;
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_pg_handler handler(void)
{
    jobq_pg_handler h;

    memset(&h, 0, sizeof h);
    h.queue = "q";
    h.kind = "k";
    h.run[0] = run_job;
    return h;
}

static void a_job_is_run(void **unused)
{
    jobq_pg_handler one = handler();
    jobq_pg_job job = plain_job();
    int64_t id = enqueue_with(&job);
    jobq_pg_worker_desc desc;
    jobq_pg_error error;
    jobq_job ended;

    (void)unused;
    memset(&desc, 0, sizeof desc);
    desc.handlers = &one;
    desc.handler_count = 1;
    desc.loop.until = JOBQ_UNTIL_EMPTY;
    if (jobq_pg_work(pg, &desc, &error) != JOBQ_OK) fail_msg("%s", error.message);
    assert_int_equal(jobs_run, 1);
    assert_int_equal(jobq_pg_get(pg, NULL, id, &ended, &error), JOBQ_OK);
    assert_int_equal(ended.state, JOBQ_STATE_SUCCEEDED);
}

/* -- the outbox -- */

static int messages_taken;

static jobq_result take_message(jobq_delivery *delivery, const jobq_message *message)
{
    messages_taken += delivery->count == 1 && message->payload.len > 0;
    return JOBQ_RESULT_SUCCESS;
}

static jobq_error work_on_messages(jobq_pg_error *error)
{
    jobq_pg_receiver receiver;
    jobq_pg_worker_desc desc;

    memset(&receiver, 0, sizeof receiver);
    memset(&desc, 0, sizeof desc);
    receiver.queue = "box";
    receiver.each = take_message;
    desc.receivers = &receiver;
    desc.receiver_count = 1;
    desc.loop.until = JOBQ_UNTIL_EMPTY;
#ifdef JOBQ_NO_RECORD
    desc.record = "x.rec";
    assert_int_equal(jobq_pg_work(pg, &desc, error), JOBQ_ERROR_INVALID);
    assert_string_equal(error->field, "record");
    desc.record = NULL;
#endif
    return jobq_pg_work(pg, &desc, error);
}

#ifndef JOBQ_PG_NO_OUTBOX
static void a_message_is_delivered(void **unused)
{
    jobq_pg_message message;
    jobq_pg_error error;

    (void)unused;
    memset(&message, 0, sizeof message);
    message.queue = "box";
    message.payload = jobq_str_from("1");
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "box", 2, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &message, NULL, &error), JOBQ_OK);
    if (work_on_messages(&error) != JOBQ_OK) fail_msg("%s", error.message);
    assert_int_equal(messages_taken, 1);
}
#else
static int jobq_pg_outbox_enqueue; /* the name would be taken, if it were declared */

static void a_message_is_delivered(void **unused)
{
    jobq_pg_error error;

    (void)unused;
    assert_int_equal(jobq_pg_outbox_enqueue, 0);
    assert_int_equal(work_on_messages(&error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "receivers");
}
#endif

/* -- tables -- */

#ifndef JOBQ_PG_NO_TABLES
static void jobs_are_listed(void **unused)
{
    jobq_pg_table *jobs;
    jobq_pg_error error;
    jobq_pg_rows rows;

    (void)unused;
    enqueue_count(3);
    assert_int_equal(jobq_pg_table_open(&jobs, pg, NULL,
                                        jobq_pg_view_desc(JOBQ_PG_VIEW_JOBS, false), &error),
                     JOBQ_OK);
    assert_int_equal(jobq_pg_table_list(jobs, NULL, NULL, &rows, &error), JOBQ_OK);
    assert_int_equal(rows.count, 3);
    jobq_pg_rows_clear(&rows);
    jobq_pg_table_close(jobs);
}
#else
static int jobq_pg_table_open;

static void jobs_are_listed(void **unused)
{
    (void)unused;
    assert_int_equal(jobq_pg_table_open, 0);
}
#endif

#if defined(JOBQ_PG_NO_TABLES) || defined(JOBQ_PG_NO_WORK_TABLES)
static int jobq_pg_worktable_open;
#endif

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_job_is_run, pg_empty),
        cmocka_unit_test_setup(a_message_is_delivered, pg_empty),
        cmocka_unit_test_setup(jobs_are_listed, pg_empty),
    };

    (void)jobq_pg_worktable_open;
    return cmocka_run_group_tests_name("without", tests, pg_up, pg_down);
}

#endif
