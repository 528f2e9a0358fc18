/*
 * A queue is deleted and created again while a worker runs: the worker serves the new one.
 */
#include "pg_work.h"

static int runs, delivered;

static jobq_outcome counts(jobq_call *call)
{
    (void)call;
    ADD(runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_result takes(jobq_delivery *d, const jobq_message *m)
{
    (void)d, (void)m;
    ADD(delivered);
    return JOBQ_RESULT_SUCCESS;
}

static void send_messages(int count)
{
    jobq_pg_error error;
    jobq_pg_message m;
    int i;

    memset(&m, 0, sizeof m);
    m.queue = "o";
    if (jobq_pg_outbox_register(pg, NULL, "o", 4, NULL, &error)) fail_msg("%s", error.message);
    for (i = 0; i < count; i++) {
        m.partition = i % 4;
        if (jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error)) fail_msg("%s", error.message);
    }
}

/* Each round the ids are new. Other queues of the worker go on. */
static void a_queue_made_anew_is_served(void **unused)
{
    jobq_pg_handler h[2];
    jobq_pg_receiver r;
    jobq_pg_worker_desc d;
    int round;

    (void)unused;
    memset(&r, 0, sizeof r);
    h[0] = handler_of("q", "k", counts);
    h[1] = handler_of("other", "k", counts);
    r.queue = "o";
    r.each = takes;
    d = work_of(h, 2);
    d.receivers = &r;
    d.receiver_count = 1;
    send_messages(4);
    start(&d);
    for (round = 1; round <= 3; round++) {
        enqueue_count(5);
        RUN("SELECT jobq.enqueue('other', 'k')");
        assert_true(reaches(60, &runs, 6 * round));
        assert_true(reaches(60, &delivered, 4 * round));
        assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job"));
        RUN("DELETE FROM jobq.queue WHERE name IN ('q', 'o')");
        send_messages(4);
    }
    assert_true(reaches(60, &delivered, 16));
    assert_true(becomes(60, 1, "SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL"));
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_queue_made_anew_is_served, pg_empty, all_stop),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
