/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The handlers of examples/ under each fault: every job ends as it should. Left out are those that
 * need rows of a database: complete_in_transaction, pipeline, attune, etl's merge and report, and
 * trace's accept_order; worker's report and tenants' call_api, which count their runs in a static
 * variable, and so are not the same in each story; those in seal/, which only print; and videos.c,
 * whose queue is a table of its own. test_core_faults has those of without_database.
 */
#include "jobq_pg.h"

#include "check.h"

#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wswitch-enum"

static int quietly(const char *format, ...) { return format == NULL; }

/* The implementation is in the library. What several examples define gets the example's name. */
#define JOBQ_IMPLEMENTED (1)
#define JOBQ_PG_IMPLEMENTED (1)
#define OF_(name, example) name##_of_##example
#define OF(name, example) OF_(name, example)
#define pg OF(pg, EXAMPLE)
#define now_us OF(now_us, EXAMPLE)
#define extract OF(extract, EXAMPLE)
#define resize OF(resize, EXAMPLE)
#define report OF(report, EXAMPLE)
#define main(...) OF(main, EXAMPLE)(__VA_ARGS__)
#define must(...) OF(must, EXAMPLE)(__VA_ARGS__)
#define run(...) OF(run, EXAMPLE)(__VA_ARGS__)
#define run_sql(...) OF(run_sql, EXAMPLE)(__VA_ARGS__)
#define work(...) OF(work, EXAMPLE)(__VA_ARGS__)
#define set_up(...) OF(set_up, EXAMPLE)(__VA_ARGS__)
#define enqueue(...) OF(enqueue, EXAMPLE)(__VA_ARGS__)
#define open_fresh(...) OF(open_fresh, EXAMPLE)(__VA_ARGS__)
#define begin(...) OF(begin, EXAMPLE)(__VA_ARGS__)
#define say(...) OF(say, EXAMPLE)(__VA_ARGS__)
#define serve(...) OF(serve, EXAMPLE)(__VA_ARGS__)
#define ask(...) OF(ask, EXAMPLE)(__VA_ARGS__)
#define tell(...) OF(tell, EXAMPLE)(__VA_ARGS__)
#define transfer(...) OF(transfer, EXAMPLE)(__VA_ARGS__)
#define printf quietly
#define nanosleep(nap, rest) ((void)(nap)) /* time is simulated */

#define EXAMPLE test_handlers
#include "../../examples/test_handlers.c"
#undef EXAMPLE
#undef SCHEMA
#define EXAMPLE worker
#include "../../examples/worker.c"
#undef EXAMPLE
#undef SCHEMA
#define EXAMPLE debounce
#include "../../examples/debounce.c"
#undef EXAMPLE
#undef SCHEMA
#define EXAMPLE etl
#include "../../examples/etl.c"
#undef EXAMPLE
#undef SCHEMA
#define EXAMPLE event_loop
#include "../../examples/event_loop.c"
#undef EXAMPLE
#undef SCHEMA
#define EXAMPLE log_json
#include "../../examples/log_json.c"
#undef EXAMPLE
#undef SCHEMA
#define EXAMPLE metrics
#include "../../examples/metrics.c"
#undef EXAMPLE
#undef SCHEMA
#define EXAMPLE nightly
#include "../../examples/nightly.c"
#undef EXAMPLE
#undef SCHEMA
#define EXAMPLE outbox
#define line line_of_outbox
#include "../../examples/outbox.c"
#undef line
#undef EXAMPLE
#undef SCHEMA
#define EXAMPLE progress
#include "../../examples/progress.c"
#undef EXAMPLE
#undef SCHEMA
#define EXAMPLE tenants
#include "../../examples/tenants.c"
#undef EXAMPLE
#undef SCHEMA
#define EXAMPLE trace
#include "../../examples/trace.c"
#undef EXAMPLE
#undef SCHEMA

#undef pg
#undef now_us
#undef extract
#undef resize
#undef report
#undef main
#undef run
#undef enqueue
#undef printf

/* -- and their jobs -- */

struct row {
    const char *name;
    jobq_handler handler;
    const char *payload;
    jobq_state ends; /* unless somebody cancels it */
};

static const struct row rows[] = {
    {"test_handlers: welcome", welcome, "{\"to\": \"ann@example.org\"}", JOBQ_STATE_SUCCEEDED},
    {"worker: fetch", fetch, "\"a.example\"", JOBQ_STATE_SUCCEEDED},
    {"worker: fetch", fetch, "\"b.example\"", JOBQ_STATE_FAILED},
    {"debounce: index_document", index_document, "4", JOBQ_STATE_SUCCEEDED},
    {"etl: load", load, "1", JOBQ_STATE_SUCCEEDED},
    {"event_loop: resize", resize_of_event_loop, "\"b.png\"", JOBQ_STATE_SUCCEEDED},
    {"log_json: greet", greet, "1", JOBQ_STATE_SUCCEEDED},
    {"metrics: thumbnail", thumbnail, "{}", JOBQ_STATE_SUCCEEDED},
    {"nightly: report", report_of_nightly, "{}", JOBQ_STATE_SUCCEEDED},
    {"progress: render", render, "1", JOBQ_STATE_SUCCEEDED},
    {"tenants: mail", mail, "{\"for\": \"quiet\", \"number\": 1}", JOBQ_STATE_SUCCEEDED},
    {"tenants: book", book, "{\"number\": 2}", JOBQ_STATE_SUCCEEDED},
    {"trace: send_receipt", send_receipt, "1", JOBQ_STATE_SUCCEEDED},
};

static struct fake fake; /* the mail server of test_handlers */

static int sends(struct mailer *mailer, const char *to, int64_t time_left_us)
{
    (void)mailer;
    (void)time_left_us;
    assert_string_equal(to, "ann@example.org");
    return jobq_test_point(fake.test, "sends") == JOBQ_OK ? 250 : 421;
}

static const struct row *row;

static bool ends_well(jobq_test *test, void *user)
{
    jobq_test_job job = {.queue = "q", .kind = "k", .timeout_us = JOBQ_MINUTES(1)};
    jobq_state state;

    (void)user;
    fake.test = test;
    job.payload = jobq_str_from(row->payload);
    jobq_test_enqueue(test, &job);
    jobq_test_enqueue(test, &job);
    jobq_test_run(test, JOBQ_DAYS(1));
    state = jobq_test_get(test, 1)->job.state;
    return (state == row->ends || state == JOBQ_STATE_CANCELLED) &&
           jobq_state_final(jobq_test_get(test, 2)->job.state);
}

static void *block;

static void each_example_bears_each_fault(void **unused)
{
    jobq_job_handler handler = {.queue = "q", .kind = "k", .user = &fake};
    jobq_test_faults faults = {.handlers = &handler, .handler_count = 1, .scenario = ends_well};

    (void)unused;
    fake.mailer.send = sends;
    faults.stories_max = 300; /* render has 500 frames */
    for (row = rows; row < rows + COUNT(rows); row++) {
        handler.run[0] = row->handler;
        if (jobq_test_each_fault(block, &faults) != 0) fail_msg("%s: %s", row->name, faults.text);
        assert_true(faults.stories > 20);
    }
}

static FILE *file;

static bool delivers(jobq_test *test, void *user)
{
    jobq_test_receiver bounces = {.queue = "bounces", .each = bounced, .user = &fake};
    jobq_test_receiver transfers = {.queue = "transfers", .each = deliver, .user = file};
    jobq_test_message message = {.queue = "bounces"}, other = {.queue = "transfers"};
    const jobq_test_sent *sent[2];

    (void)user;
    fake.test = test;
    rewind(file);
    message.payload = jobq_str_from("\"ann@example.org\"");
    other.payload = jobq_str_from("{\"transfer\": 1}");
    jobq_test_receive(test, &bounces);
    jobq_test_receive(test, &transfers);
    sent[0] = jobq_test_send(test, &message);
    sent[1] = jobq_test_send(test, &other);
    jobq_test_run(test, JOBQ_DAYS(1));
    return sent[0]->done && !sent[0]->dead && sent[1]->done && !sent[1]->dead && ftell(file) > 0;
}

static void each_receiver_bears_each_fault(void **unused)
{
    jobq_job_handler handler = {.queue = "q", .kind = "k", .run = {load}};
    jobq_test_faults faults = {.handlers = &handler, .handler_count = 1, .scenario = delivers};

    (void)unused;
    file = tmpfile();
    assert_non_null(file);
    if (jobq_test_each_fault(block, &faults) != 0) fail_msg("%s", faults.text);
    assert_true(faults.stories > 20);
    fclose(file);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_example_bears_each_fault),
        cmocka_unit_test(each_receiver_bears_each_fault),
    };

    block = malloc(jobq_test_size());
    return block == NULL ? 1 : cmocka_run_group_tests_name("handlers", tests, NULL, NULL);
}
