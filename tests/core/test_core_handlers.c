/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Handlers on the in-memory queue: what they are given, what they may return, and when they are
 * asked to stop. The same handlers run on Postgres.
 */
#define JOBQ_LOOP_SLOTS 64
#define JOBQ_LOOP_CLAIMS 64
#define JOBQ_LOOP_BATCH 16
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"
#include "told.h"

enum { QUEUE = 1, TWO_STAGES = 1, STUBBORN = 2, SLEEPY = 3, HASTY = 4 };

static jobq_loop loop;
static union {
    int64_t align;
    char bytes[1 << 20];
} block;
static jobq_memory *memory;
static int runs;
static jobq_str seen;   /* the payload of the latest run */
static char trace[256]; /* seqs of messages, as they came */

static void start(const jobq_loop_config *config)
{
    runs = 0;
    trace[0] = '\0';
    assert_true(jobq_memory_size(16, 8, 600) <= sizeof block);
    memory = jobq_memory_init(&block, 16, 8, 600);
    jobq_loop_init(&loop, config, 99, 0);
}

static int setup(void **unused)
{
    (void)unused;
    start(NULL);
    return 0;
}

static int64_t add(int kind, int stages, const char *payload)
{
    jobq_job like = jobq_job_new(0);

    like.queue = QUEUE;
    like.kind = kind;
    like.stages = (int16_t)stages;
    return jobq_memory_enqueue(memory, &like, jobq_str_from(payload), 0);
}

static const jobq_job *job(int64_t id) { return &jobq_memory_get(memory, id)->job; }

/* Works the jobs of one kind off until an instant. */
static void work(int kind, jobq_handler first, jobq_handler second, int64_t until)
{
    static jobq_memory_handler h;
    int64_t now = 0;

    memset(&h, 0, sizeof h);
    h.queue = QUEUE;
    h.kind = kind;
    h.run[0] = first;
    h.run[1] = second;
    h.user = &runs;
    while (now < until) now = jobq_memory_work(memory, &loop, &h, 1, now);
}

static jobq_outcome extract(jobq_call *c)
{
    ++*(int *)c->user;
    assert_int_equal(c->job.stage, 0);
    assert_true(jobq_str_equal(c->payload, jobq_str_from("{\"in\":1}")));
    assert_false(jobq_call_result(c, jobq_str_from("{\"out\":"), false)); /* not JSON */
    assert_true(jobq_call_result(c, jobq_str_from("{\"out\":"), true));   /* but bytes */
    assert_true(jobq_call_result(c, jobq_str_from("{\"out\":2}"), false));
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome embed(jobq_call *c)
{
    ++*(int *)c->user;
    assert_int_equal(c->job.stage, 1);
    seen = c->payload;
    return JOBQ_OUTCOME_SUCCESS;
}

static void a_stage_hands_the_next_one_its_payload(void **unused)
{
    int64_t id = add(TWO_STAGES, 2, "{\"in\":1}");

    (void)unused;
    work(TWO_STAGES, extract, embed, 10 * SECOND);
    assert_int_equal(job(id)->state, JOBQ_STATE_SUCCEEDED);
    assert_int_equal(runs, 2);
    assert_true(jobq_str_equal(seen, jobq_str_from("{\"out\":2}")));
}

static jobq_outcome complain(jobq_call *c)
{
    ++*(int *)c->user;
    jobq_call_error(c, jobq_str_from("bad \xff byte"));
    assert_string_equal(c->error, "bad ? byte");
    assert_int_equal(c->error_size, 10);
    jobq_call_delay(c, -5);
    assert_true(c->delay_named && c->delay_us == 0);
    jobq_call_delay(c, 7 * SECOND);
    return JOBQ_OUTCOME_RETRY;
}

static void a_handler_names_its_error_and_its_delay(void **unused)
{
    int64_t id = add(STUBBORN, 1, "1");

    (void)unused;
    work(STUBBORN, complain, NULL, SECOND);
    assert_int_equal(runs, 1);
    assert_in_range(job(id)->run_at_us, 7 * SECOND, 7 * SECOND + SECOND / 10);
}

static jobq_outcome ask(jobq_call *c)
{
    int64_t left_us;

    ++*(int *)c->user;
    assert_int_equal(jobq_call_stopping(c, NULL), JOBQ_STOP_NONE);
    assert_int_equal(jobq_call_stopping(c, &left_us), JOBQ_STOP_NONE);
    assert_true(left_us == JOBQ_NEVER);
    jobq_loop_stop(&loop, 0, -1);
    assert_int_equal(jobq_call_stopping(c, &left_us), JOBQ_STOP_SHUTDOWN);
    assert_in_range(left_us, 1, 30 * SECOND);
    return JOBQ_OUTCOME_RELEASE;
}

static void a_handler_asks_whether_to_stop(void **unused)
{
    int64_t id = add(SLEEPY, 1, "1");

    (void)unused;
    work(SLEEPY, ask, NULL, 100 * SECOND);
    assert_int_equal(loop.phase, JOBQ_PHASE_EXITED);
    assert_int_equal(job(id)->state, JOBQ_STATE_READY);
    assert_int_equal(job(id)->attempt, 0);
    assert_true(job(id)->run_at_us <= 0); /* ready at once, for another worker */
}

/* A test of a single handler needs no queue. */
static void a_call_can_be_made_by_hand(void **unused)
{
    jobq_call c;
    int64_t left_us;
    int asked = 0;

    (void)unused;
    memset(&c, 0, sizeof c);
    c.user = &asked;
    assert_int_equal(jobq_call_stopping(&c, &left_us), JOBQ_STOP_NONE);
    assert_true(left_us == JOBQ_NEVER);
    assert_true(jobq_call_result(&c, jobq_str_from("{}"), false));
    assert_int_equal(complain(&c), JOBQ_OUTCOME_RETRY);
    assert_string_equal(c.error, "bad ? byte");
}

/* The store gives the job to somebody else while its handler runs. */
static jobq_outcome robbed(jobq_call *c)
{
    int32_t rescued;
    bool more;

    ++*(int *)c->user;
    if (*(int *)c->user > 1) return JOBQ_OUTCOME_SUCCESS;
    assert_int_equal(jobq_call_hold(c, JOBQ_HOLD_LINE, SECOND, jobq_str_from("")),
                     JOBQ_ERROR_INVALID); /* it has none */
    memset(jobq__memory_workers(memory), 0, sizeof(jobq_memory_worker));
    assert_true(jobq__memory_rescue(memory, loop.worker, 0, 10, 100 * SECOND, &rescued, &more));
    assert_int_equal(rescued, 1);
    assert_true(jobq_call_result(c, jobq_str_from("1"), false)); /* told when it is settled */
    assert_int_equal(jobq_call_hold(c, JOBQ_HOLD_QUEUE, SECOND, jobq_str_from("")),
                     JOBQ_ERROR_LOST);
    return JOBQ_OUTCOME_SUCCESS;
}

static void a_lost_lease_writes_nothing(void **unused)
{
    int64_t id = add(HASTY, 1, "1");

    (void)unused;
    work(HASTY, robbed, NULL, SECOND);
    assert_int_equal(loop.stats.lost, 1);
    assert_int_equal(job(id)->state, JOBQ_STATE_READY);
    assert_true(job(id)->suspect);
    assert_null(jobq_memory_get(memory, id)->next.ptr);
    assert_int_equal(memory->held_until_us[QUEUE], 0);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void note(const jobq_message *m)
{
    size_t at = strlen(trace);

    snprintf(trace + at, sizeof trace - at, "%d/%d ", (int)m->seq, (int)m->attempts);
    assert_true(jobq_str_equal(m->payload, jobq_str_from("\"x\"")));
}

static jobq_result deliver(jobq_delivery *d, const jobq_message *m)
{
    note(m);
    assert_ptr_equal(d->user, &runs);
    assert_int_equal(jobq_delivery_stopping(d, NULL), JOBQ_STOP_NONE);
    if (m->seq == 2 && m->attempts < 2) {
        jobq_delivery_error(d, jobq_str_from("not yet"));
        jobq_delivery_delay(d, -1);
        jobq_delivery_delay(d, SECOND);
        return JOBQ_RESULT_RETRY;
    }
    if (m->seq == 3) jobq_delivery_error(d, jobq_str_from("not wanted"));
    return m->seq == 3 ? JOBQ_RESULT_REJECT : JOBQ_RESULT_SUCCESS;
}

static jobq_result deliver_all(jobq_delivery *d)
{
    int32_t i;

    for (i = 0; i < d->count; i++) note(&d->messages[i]);
    assert_true(jobq_delivery_reject(d, d->count - 1, jobq_str_from("the last one")));
    assert_false(jobq_delivery_reject(d, d->count, jobq_str_from("no such one")));
    assert_false(jobq_delivery_reject(d, -1, jobq_str_from("nor this")));
    return JOBQ_RESULT_SUCCESS;
}

static jobq_test *by_name;
static const jobq_test_sent *sent[5]; /* what becomes of messages 1, 2 ... */

/* A test whose queue has these handlers. */
static void receive_by(jobq_message_handler each, jobq_batch_handler all)
{
    static const jobq_job_handler h = {
        .queue = "mail", .kind = "two", .run = {extract}, .user = &runs};
    jobq_test_receiver r = {.queue = "mail", .each = each, .all = all, .user = &runs};

    runs = 0;
    trace[0] = '\0';
    free(by_name);
    by_name = jobq_test_init(malloc(jobq_test_size()), &h, 1);
    jobq_test_receive(by_name, &r);
}

/* Four messages, and a job beside them. */
static void work_messages(jobq_message_handler each, jobq_batch_handler all)
{
    jobq_test_message x = {.queue = "mail", .payload = {"\"x\"", 3}};
    jobq_test_job job = {.queue = "mail", .kind = "two", .payload = {"{\"in\":1}", 8}};
    int64_t i, id;

    receive_by(each, all);
    for (i = 1; i <= 4; i++) assert_non_null(sent[i] = jobq_test_send(by_name, &x));
    id = jobq_test_enqueue(by_name, &job);
    jobq_test_run(by_name, 20 * SECOND);
    assert_int_equal(jobq_test_get(by_name, id)->job.state, JOBQ_STATE_SUCCEEDED);
    for (i = 1; i <= 4; i++) assert_true(sent[i]->done);
}

static void messages_reach_their_handler_in_order(void **unused)
{
    (void)unused;
    work_messages(deliver, NULL);
    assert_string_equal(trace, "1/0 2/0 2/1 2/2 3/0 4/0 ");
    assert_true(sent[3]->dead);
    assert_string_equal(sent[3]->error, "not wanted");
    assert_string_equal(sent[2]->error, "");
    assert_int_equal(sent[2]->deliveries, 3);
    assert_int_equal(jobq__memory_message_at(by_name->memory, 1, 3)->attempts, 1);
    assert_int_equal(by_name->loop.relay.stats.succeeded, 3);
}

static void a_batch_reaches_its_handler_whole(void **unused)
{
    (void)unused;
    work_messages(NULL, deliver_all);
    assert_string_equal(trace, "1/0 2/0 3/0 4/0 ");
    assert_true(sent[4]->dead);
    assert_string_equal(sent[4]->error, "the last one");
}

/* It was there when its worker died, as often as it may: nobody gets it again, and what its dead
 * letter counts are the deliveries that it had. */
static void a_message_exceeded_before_delivery_counts_its_deliveries_only(void **unused)
{
    jobq_policy policy = {.max_attempts = 2};
    jobq_test_message x = {.queue = "mail", .payload = {"\"x\"", 3}};
    jobq_holder other = {.worker = 77, .lease_us = SECOND};
    int i;

    (void)unused;
    receive_by(deliver, NULL);
    jobq_test_policy(by_name, "mail", NULL, &policy);
    for (i = 1; i <= 2; i++) assert_non_null(sent[i] = jobq_test_send(by_name, &x));
    for (i = 1; i <= 2; i++) { /* a worker that dies of it, twice */
        other.claim = i;
        assert_int_equal(other_reads(by_name->memory, 1, &other, i - 1, NULL, 1, 0).count, 1);
    }
    jobq_test_run(by_name, 20 * SECOND);
    assert_true(sent[1]->dead);
    assert_string_equal(sent[1]->error,
                        "Max retries (2) exceeded: its worker died each time");
    assert_int_equal(sent[1]->deliveries, 0);
    assert_int_equal(jobq__memory_message_at(by_name->memory, 1, 1)->attempts, 2);
    assert_string_equal(trace, "2/0 2/1 "); /* and that one fails by itself, at its limit */
    assert_int_equal(jobq__memory_message_at(by_name->memory, 1, 2)->attempts, 2);
    assert_string_equal(sent[2]->error, "Max retries (2) exceeded: not yet");
}

/* ---- jobq_test: handlers by name, with simulated time ---------------------------------------- */

static int64_t started_us[32]; /* of each run */
static jobq_stop stops;
static int succeeds, pause_seconds;

static jobq_outcome look_around(jobq_call *c)
{
    started_us[runs++] = jobq_test_now(by_name);
    assert_true(jobq_str_equal(c->kind, jobq_str_from("welcome")));
    assert_true(jobq_str_equal(c->payload, jobq_str_from("{\"to\":7}")));
    assert_true(jobq_str_equal(c->headers, jobq_str_from("{\"trace\":\"a\"}")));
    assert_false(c->payload_bytes);
    assert_ptr_equal(c->conn, &stops);
    stops = jobq_call_stopping(c, NULL);
    if (stops == JOBQ_STOP_SHUTDOWN) return JOBQ_OUTCOME_RELEASE;
    if (stops == JOBQ_STOP_CANCEL) return JOBQ_OUTCOME_CANCELLED;
    jobq_call_error(c, jobq_str_from("mailbox full"));
    return runs < *(int *)c->user ? JOBQ_OUTCOME_RETRY : JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome hand_over(jobq_call *c)
{
    char local[] = "\001\002";

    assert_true(jobq_call_result(c, jobq_str_from(local), true));
    memset(local, 0, sizeof local); /* it has been copied */
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome take_over(jobq_call *c)
{
    assert_true(c->payload_bytes);
    assert_true(jobq_str_equal(c->payload, jobq_str_from("\001\002")));
    jobq_test_sleep(by_name, JOBQ_SECONDS(pause_seconds));
    stops = jobq_call_stopping(c, NULL);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome commit(jobq_call *c)
{
    (void)c;
    return JOBQ_OUTCOME_DONE;
}

static int64_t welcome(int succeeds_at)
{
    static const jobq_job_handler handlers[] = {
        {.queue = "mail", .kind = "welcome", .run = {look_around}, .user = &succeeds},
        {.queue = "mail", .kind = "in-two", .run = {hand_over, take_over}},
        {.queue = "mail", .kind = "own", .run = {commit}}};
    static const jobq_policy policy = {.max_attempts = 3, .backoff = {.base_us = 10 * SECOND}};
    jobq_test_job job = {.queue = "mail", .kind = "welcome", .timeout_us = 20 * SECOND};

    runs = 0;
    stops = JOBQ_STOP_NONE;
    succeeds = succeeds_at;
    free(by_name);
    by_name = jobq_test_init(malloc(jobq_test_size()), handlers, 3);
    jobq_test_conn(by_name, &stops);
    jobq_test_policy(by_name, "mail", NULL, &policy);
    job.payload = jobq_str_from("{\"to\":7}");
    job.headers = jobq_str_from("{\"trace\":\"a\"}");
    return jobq_test_enqueue(by_name, &job);
}

static void a_test_shows_retries_and_their_times(void **unused)
{
    int64_t id = welcome(99);

    (void)unused;
    assert_int_equal(jobq_test_run(by_name, JOBQ_SECONDS(5)), 1);
    assert_int_equal(jobq_test_get(by_name, id)->job.state, JOBQ_STATE_READY);
    assert_int_equal(jobq_test_get(by_name, id)->job.attempt, 1);
    assert_in_range(jobq_test_get(by_name, id)->job.run_at_us, 7 * SECOND, 13 * SECOND);
    assert_string_equal(jobq_test_get(by_name, id)->error, "mailbox full");
    assert_true(jobq_test_now(by_name) == JOBQ_SECONDS(5));
    assert_int_equal(jobq_test_run(by_name, JOBQ_HOURS(1)), 2);
    assert_true(jobq_test_now(by_name) < JOBQ_MINUTES(1)); /* every job has ended */
    assert_in_range(started_us[2] - started_us[1], 15 * SECOND, 26 * SECOND);
    assert_int_equal(jobq_test_get(by_name, id)->job.state, JOBQ_STATE_FAILED);
    assert_string_equal(jobq_test_get(by_name, id)->error,
                        "Max retries (3) exceeded: mailbox full");
    assert_null(jobq_test_get(by_name, id + 1));
}

static jobq_outcome leaves_a_result(jobq_call *c)
{
    char local[] = "1";

    local[0] = (char)('0' + c->job.attempt);
    assert_true(jobq_call_result(c, jobq_str_from(local), c->job.attempt == 3));
    assert_false(jobq_call_result(c, jobq_str_from("{"), false)); /* and that counts for nothing */
    local[0] = '9';
    jobq_call_delay(c, 0);
    return c->job.attempt < 2 ? JOBQ_OUTCOME_RETRY
           : *(int *)c->user == 1 ? JOBQ_OUTCOME_SUCCESS : JOBQ_OUTCOME_DISCARD;
}

static void a_result_is_that_of_the_attempt_that_succeeded(void **unused)
{
    jobq_job_handler h = {.queue = "mail", .kind = "sum", .run = {leaves_a_result}};
    jobq_test_job job = {.queue = "mail", .kind = "sum"};
    int good = 1;
    int64_t id;

    (void)unused;
    h.user = &good;
    free(by_name);
    by_name = jobq_test_init(malloc(jobq_test_size()), &h, 1);
    id = jobq_test_enqueue(by_name, &job);
    assert_null(jobq_test_get(by_name, id)->result.ptr);
    assert_null(jobq_test_get(by_name, 77));
    assert_int_equal(jobq_test_run(by_name, JOBQ_HOURS(1)), 2);
    assert_true(jobq_str_equal(jobq_test_get(by_name, id)->result, jobq_str_from("2")));
    good = 0;
    id = jobq_test_enqueue(by_name, &job);
    assert_int_equal(jobq_test_run(by_name, JOBQ_HOURS(1)), 2);
    assert_int_equal(jobq_test_get(by_name, id)->job.state, JOBQ_STATE_FAILED);
    assert_null(jobq_test_get(by_name, id)->result.ptr);
}

/* The run of a test with one fault: how often the handler ran. */
static int64_t faulty(jobq_test_event event, jobq_state ends, int attempt)
{
    int64_t id = welcome(0), ran;

    jobq_test_fault(by_name, event);
    ran = jobq_test_run(by_name, JOBQ_HOURS(1));
    assert_int_equal(jobq_test_get(by_name, id)->job.state, ends);
    assert_int_equal(jobq_test_get(by_name, id)->job.attempt, attempt);
    return ran;
}

static void a_test_injects_failures(void **unused)
{
    (void)unused;
    assert_int_equal(faulty(JOBQ_TEST_NOTHING, JOBQ_STATE_SUCCEEDED, 1), 1);
    assert_int_equal(faulty(JOBQ_TEST_CRASH, JOBQ_STATE_SUCCEEDED, 1), 2);
    assert_true(started_us[1] > 30 * SECOND); /* after a lease */
    assert_int_equal(faulty(JOBQ_TEST_UNSURE, JOBQ_STATE_SUCCEEDED, 1), 1);
    assert_int_equal(by_name->loop.stats.reconnects, 1);
    assert_int_equal(by_name->loop.stats.lost, 0);
    assert_int_equal(faulty(JOBQ_TEST_TIMEOUT, JOBQ_STATE_SUCCEEDED, 2), 2);
    assert_string_equal(jobq_test_get(by_name, 1)->error, "the handler ran out of time");
    assert_true(started_us[0] == 20 * SECOND);
    assert_int_equal(faulty(JOBQ_TEST_CANCEL, JOBQ_STATE_CANCELLED, 1), 1);
    assert_int_equal(stops, JOBQ_STOP_CANCEL);
    assert_int_equal(faulty(JOBQ_TEST_SHUTDOWN, JOBQ_STATE_SUCCEEDED, 1), 2);
}

static void a_test_keeps_what_a_handler_committed(void **unused)
{
    jobq_test_job job = {.queue = "mail", .kind = "own"};

    (void)unused;
    welcome(0);
    jobq_test_run(by_name, JOBQ_SECONDS(1));
    assert_int_equal(jobq_test_enqueue(by_name, &job), 2);
    assert_int_equal(jobq_test_enqueue(by_name, &job), 3);
    jobq_test_fault(by_name, JOBQ_TEST_CRASH);
    assert_int_equal(jobq_test_run(by_name, JOBQ_MINUTES(5)), 2);
    assert_int_equal(jobq_test_get(by_name, 2)->job.state, JOBQ_STATE_SUCCEEDED);
    assert_int_equal(jobq_test_get(by_name, 3)->job.state, JOBQ_STATE_SUCCEEDED);
    assert_string_equal(jobq_test_get(by_name, 3)->error, "");
}

static void a_test_lets_workers_die_until_the_job_fails(void **unused)
{
    int64_t id = welcome(0), ran = 0;

    (void)unused;
    while (!jobq_state_final(jobq_test_get(by_name, id)->job.state)) {
        jobq_test_fault(by_name, JOBQ_TEST_CRASH);
        ran += jobq_test_run(by_name, JOBQ_SECONDS(20));
    }
    assert_int_equal(ran, 5); /* twice beside other work, then alone */
    assert_int_equal(jobq_test_get(by_name, id)->job.crash, 3);
    assert_string_equal(jobq_test_get(by_name, id)->error, "Max crashes (3) exceeded: worker died");
}

static void a_test_takes_what_postgres_takes(void **unused)
{
    jobq_test_job job = {.queue = "mail", .kind = "in-two", .stages = 2,
                         .delay_us = 5 * SECOND, .timeout_us = 30 * SECOND};

    (void)unused;
    welcome(0);
    job.payload = jobq_str_from("{\"a\":");
    assert_int_equal(jobq_test_enqueue(by_name, &job), 0); /* not JSON */
    job.payload_bytes = true;
    job.headers = jobq_str_from("[");
    assert_int_equal(jobq_test_enqueue(by_name, &job), 0);
    job.headers.ptr = NULL;
    job.kind = "";
    assert_int_equal(jobq_test_enqueue(by_name, &job), 0);
    job.kind = "unknown";
    assert_int_equal(jobq_test_enqueue(by_name, &job), 2);
    job.kind = "in-two";
    assert_int_equal(jobq_test_enqueue(by_name, &job), 3);
    pause_seconds = 10;
    assert_int_equal(jobq_test_run(by_name, JOBQ_SECONDS(20)), 3);
    assert_int_equal(stops, JOBQ_STOP_NONE);
    assert_true(jobq_test_now(by_name) == 20 * SECOND);
    assert_int_equal(jobq_test_get(by_name, 3)->job.state, JOBQ_STATE_SUCCEEDED);
    assert_int_equal(jobq_test_get(by_name, 3)->job.attempt, 1);
    assert_int_equal(jobq_test_get(by_name, 2)->job.state,
                     JOBQ_STATE_READY); /* waits for a handler */
}

/* A handler that outlasts its limit: what it returns then changes nothing. */
static void a_test_lets_time_pass_in_a_handler(void **unused)
{
    jobq_test_job job = {.queue = "mail", .kind = "in-two", .stages = 2,
                         .timeout_us = 30 * SECOND, .max_attempts = 1};

    (void)unused;
    welcome(0);
    assert_int_equal(jobq_test_enqueue(by_name, &job), 2);
    pause_seconds = 31;
    assert_int_equal(jobq_test_run(by_name, JOBQ_HOURS(1)), 3);
    assert_int_equal(stops, JOBQ_STOP_TIMEOUT);
    assert_int_equal(jobq_test_get(by_name, 2)->job.state, JOBQ_STATE_FAILED);
    assert_string_equal(jobq_test_get(by_name, 2)->error,
                        "Max retries (1) exceeded: the handler ran out of time");
}

static jobq_error held_line, held_queue;

static jobq_outcome is_told_to_wait(jobq_call *call)
{
    if (call->job.id > 1) return JOBQ_OUTCOME_SUCCESS;
    held_line = jobq_call_hold(call, JOBQ_HOLD_LINE, 60 * SECOND, jobq_str_from("429"));
    held_queue = jobq_call_hold(call, JOBQ_HOLD_QUEUE, 60 * SECOND, jobq_str_from("429"));
    return JOBQ_OUTCOME_SUCCESS;
}

/* Nothing more is claimed from the queue until then. */
static void a_handler_holds_its_queue(void **unused)
{
    static const jobq_job_handler handler = {.queue = "api", .kind = "call",
                                             .run = {is_told_to_wait}};
    jobq_test_job job = {.queue = "api", .kind = "call"};
    jobq_test *t = jobq_test_init(malloc(jobq_test_size()), &handler, 1);
    jobq_call by_hand;

    (void)unused;
    assert_int_equal(jobq_test_enqueue(t, &job), 1);
    assert_int_equal(jobq_test_run(t, JOBQ_SECONDS(1)), 1);
    assert_int_equal(held_queue, JOBQ_OK);
    assert_int_equal(held_line, JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_test_enqueue(t, &job), 2);
    assert_int_equal(jobq_test_run(t, JOBQ_SECONDS(50)), 0);
    assert_int_equal(jobq_test_run(t, JOBQ_SECONDS(20)), 1);
    memset(&by_hand, 0, sizeof by_hand);
    by_hand.job.id = 1;
    assert_int_equal(jobq_call_hold(&by_hand, JOBQ_HOLD_QUEUE, 1, jobq_str_from("")), JOBQ_OK);
    free(t);
}

/* -- lines, keys, and what a job waits for -- */

static char ran[64]; /* the letters of the jobs, as they ran; in upper case what failed */

static jobq_outcome calls_once(jobq_call *call)
{
    size_t at = strlen(ran);

    ran[at] = (char)call->payload.ptr[1];
    ran[at + 1] = '\0';
    if (call->job.attempt > 1 || ran[at] != 'a') return JOBQ_OUTCOME_SUCCESS;
    held_line = jobq_call_hold(call, JOBQ_HOLD_LINE, 60 * SECOND, jobq_str_from("429"));
    jobq_call_delay(call, 0);
    return JOBQ_OUTCOME_RETRY;
}

static jobq_outcome calls_and_fails(jobq_call *call)
{
    (void)call;
    strcat(ran, "F");
    return JOBQ_OUTCOME_DISCARD;
}

static int open_calls(void **unused)
{
    static const jobq_job_handler handlers[] = {
        {.queue = "api", .kind = "call", .run = {calls_once}},
        {.queue = "api", .kind = "fail", .run = {calls_and_fails}}};

    (void)unused;
    free(by_name);
    by_name = jobq_test_init(malloc(jobq_test_size()), handlers, 2);
    ran[0] = '\0';
    return 0;
}

static int64_t call_in(const char *payload, const char *line)
{
    jobq_test_job job = {.queue = "api", .kind = "call", .payload = jobq_str_from(payload)};

    job.line = line;
    return jobq_test_enqueue(by_name, &job);
}

static const char *ran_in(int64_t us)
{
    ran[0] = '\0';
    jobq_test_run(by_name, us);
    return ran;
}

/* A server answers 429 to one tenant: the others go on. */
static void a_handler_holds_its_line(void **unused)
{
    char line[] = "tenant 1";

    (void)unused;
    assert_int_equal(call_in("\"a\"", line), 1);
    assert_int_equal(jobq_test_run(by_name, 1), 1);
    assert_int_equal(held_line, JOBQ_OK);
    call_in("\"b\"", line);
    line[7] = '2'; /* it has been copied */
    call_in("\"c\"", line);
    call_in("\"d\"", NULL);
    assert_int_equal(strlen(ran_in(50 * SECOND)), 2);
    assert_true(strchr(ran, 'c') != NULL && strchr(ran, 'd') != NULL);
    assert_int_equal(strlen(ran_in(60 * SECOND)), 2);
    assert_true(strchr(ran, 'a') != NULL && strchr(ran, 'b') != NULL);
}

static void a_known_key_leaves_its_job(void **unused)
{
    char key[] = "order 1";
    jobq_test_job job = {.queue = "api", .kind = "call", .payload = {"\"b\"", 3}, .key = key};

    (void)unused;
    assert_int_equal(jobq_test_enqueue(by_name, &job), 1);
    assert_int_equal(jobq_test_enqueue(by_name, &job), 1);
    assert_string_equal(ran_in(JOBQ_HOURS(1)), "b");
    ran_in(JOBQ_HOURS(1));
    assert_int_equal(jobq_test_enqueue(by_name, &job), 1); /* it has ended less than a day ago */
    job.queue = "other";
    assert_int_equal(jobq_test_enqueue(by_name, &job), 2);
    job.queue = "api";
    key[6] = '2'; /* it has been copied */
    assert_int_equal(jobq_test_enqueue(by_name, &job), 3);
    key[6] = '1';
    jobq_test_run(by_name, JOBQ_HOURS(25)); /* the job of the other queue has no handler */
    assert_int_equal(jobq_test_enqueue(by_name, &job), 4);
}

static void a_job_waits_for_what_it_is_said_to(void **unused)
{
    jobq_test_job fails = {.queue = "api", .kind = "fail"};
    jobq_test_job job = {.queue = "api", .kind = "call", .payload = {"\"m\"", 3}};
    jobq_test_after parts[2] = {{.job = 1}, {.job = 2}}, late = {.job = 4};
    int64_t i;

    (void)unused;
    for (i = 1; i <= 2; i++) assert_int_equal(call_in("\"b\"", NULL), i);
    job.after = parts;
    job.after_count = 2;
    assert_int_equal(jobq_test_enqueue(by_name, &job), 3);
    assert_int_equal(jobq_test_get(by_name, 3)->job.state, JOBQ_STATE_WAITING);
    assert_string_equal(ran_in(60 * SECOND), "bbm");

    assert_int_equal(jobq_test_enqueue(by_name, &fails), 4);
    job.after = &late;
    job.after_count = 1;
    assert_int_equal(jobq_test_enqueue(by_name, &job), 5);
    late.on_end = JOBQ_ON_FAILURE;
    assert_int_equal(jobq_test_enqueue(by_name, &job), 6);
    assert_string_equal(ran_in(60 * SECOND), "Fm");
    assert_int_equal(jobq_test_get(by_name, 5)->job.state, JOBQ_STATE_WAITING);
    assert_int_equal(jobq_test_get(by_name, 6)->job.state, JOBQ_STATE_SUCCEEDED);
}

/* Each refusal names its field. */
static void a_test_refuses_by_name(void **unused)
{
    static const jobq_test_after none = {.job = 1}, odd = {.job = 1, .on_end = (jobq_on_end)9};
    static const struct { const char *field; jobq_test_job job; } rows[] = {
        {"queue", {.kind = "call"}},
        {"kind", {.queue = "api", .kind = "no name!"}},
        {"payload", {.queue = "api", .kind = "call", .payload = {"{", 1}}},
        {"headers", {.queue = "api", .kind = "call", .headers = {"1", 1}}},
        {"delay_us", {.queue = "api", .kind = "call", .delay_us = -1}},
        {"timeout_us", {.queue = "api", .kind = "call", .timeout_us = -1}},
        {"priority", {.queue = "api", .kind = "call", .priority = 10}},
        {"stages", {.queue = "api", .kind = "call", .stages = 17}},
        {"max_attempts", {.queue = "api", .kind = "call", .max_attempts = -1}},
        {"line", {.queue = "api", .kind = "call", .line = ""}},
        {"key", {.queue = "api", .kind = "call", .key = "\xff"}},
        {"on_known", {.queue = "api", .kind = "call", .key = "k", .on_known = JOBQ_KNOWN_MERGE}},
        {"after", {.queue = "api", .kind = "call", .after = &none, .after_count = 1}},
        {"after", {.queue = "api", .kind = "call", .after_count = 1}},
        {"after_count", {.queue = "api", .kind = "call", .after_count = -1}},
    };
    jobq_test_job job = {.queue = "api", .kind = "call", .after = &odd, .after_count = 1};
    jobq_test_message to_nobody = {.queue = "api"};
    char wanted[40];
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t id = jobq_test_enqueue(by_name, &rows[i].job);
        snprintf(wanted, sizeof wanted, "invalid %s: ", rows[i].field);
        if (id != 0 || strncmp(jobq_test_get(by_name, id)->error, wanted, strlen(wanted)) != 0)
            fail_msg("%s: %s", rows[i].field, jobq_test_get(by_name, id)->error);
    }
    assert_int_equal(call_in("\"b\"", NULL), 1);
    assert_int_equal(jobq_test_enqueue(by_name, &job), 0);
    assert_string_equal(jobq_test_get(by_name, 0)->error, "invalid after: not a jobq_on_end");
    assert_null(jobq_test_send(by_name, &to_nobody));
    assert_string_equal(jobq_test_get(by_name, 0)->error, "invalid queue: has no receiver");
}

static jobq_result notes_all(jobq_delivery *d)
{
    assert_true(jobq_str_equal(d->queue, jobq_str_from("mail")));
    assert_true(jobq_str_equal(d->messages[0].type, jobq_str_from("paid")));
    assert_true(jobq_str_equal(d->messages[0].headers, jobq_str_from("{\"a\":1}")));
    assert_true(d->messages[0].payload_bytes);
    runs++;
    return JOBQ_RESULT_SUCCESS;
}

/* The worker dies once it has handled a message: the message comes again. */
static void a_message_comes_again_after_a_crash(void **unused)
{
    jobq_test_message paid = {.queue = "mail", .type = "paid", .payload = {"\1", 1},
                              .payload_bytes = true, .headers = {"{\"a\":1}", 7}};

    (void)unused;
    receive_by(NULL, notes_all);
    assert_non_null(sent[1] = jobq_test_send(by_name, &paid));
    jobq_test_fault(by_name, JOBQ_TEST_CRASH);
    assert_int_equal(jobq_test_run(by_name, JOBQ_HOURS(1)), 2);
    assert_true(jobq_test_now(by_name) > SECOND); /* after the lease */
    assert_true(sent[1]->done && !sent[1]->dead);
    assert_int_equal(sent[1]->deliveries, 1); /* one was never answered */
    sent[2] = jobq_test_send(by_name, &paid);
    jobq_test_fault(by_name, JOBQ_TEST_UNSURE);
    assert_int_equal(jobq_test_run(by_name, JOBQ_HOURS(1)), 1);
    assert_true(sent[2]->done);
    paid.type = "\n";
    assert_null(jobq_test_send(by_name, &paid));
    assert_string_equal(jobq_test_get(by_name, 0)->error,
                        "invalid type: must be 1 to 1024 printable ASCII characters");
}

static jobq_result says_nothing(jobq_delivery *d, const jobq_message *m)
{
    (void)d;
    (void)m;
    return JOBQ_RESULT_RETRY;
}

/* A bad message holds up its own queue only. */
static void queues_of_messages_are_apart(void **unused)
{
    jobq_test_receiver other = {.queue = "other", .each = says_nothing};
    jobq_test_message good = {.queue = "mail", .type = "paid", .payload_bytes = true,
                              .payload = {"\1", 1}, .headers = {"{\"a\":1}", 7}};
    jobq_test_message bad = {.queue = "other"};
    jobq_policy policy = {.max_attempts = 2};

    (void)unused;
    receive_by(NULL, notes_all);
    jobq_test_receive(by_name, &other);
    jobq_test_policy(by_name, "other", NULL, &policy);
    sent[1] = jobq_test_send(by_name, &bad);
    sent[2] = jobq_test_send(by_name, &bad);
    sent[3] = jobq_test_send(by_name, &good);
    jobq_test_run(by_name, SECOND);
    assert_true(sent[3]->done && !sent[3]->dead);
    assert_false(sent[1]->done || sent[2]->done);
    assert_string_equal(sent[1]->error, "message handler returned Retry");
    jobq_test_run(by_name, JOBQ_HOURS(1));
    assert_true(sent[1]->dead && sent[2]->dead);
    assert_string_equal(sent[2]->error,
                        "Max retries (2) exceeded: message handler returned Retry");
}

static void a_kind_has_a_policy_in_a_test(void **unused)
{
    static const jobq_policy once = {.max_attempts = 1};
    int64_t id = welcome(99);

    (void)unused;
    jobq_test_policy(by_name, NULL, "welcome", &once);
    assert_int_equal(jobq_test_run(by_name, JOBQ_HOURS(1)), 1);
    assert_int_equal(jobq_test_get(by_name, id)->job.state, JOBQ_STATE_FAILED);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_stage_hands_the_next_one_its_payload, setup),
        cmocka_unit_test_setup(a_handler_names_its_error_and_its_delay, setup),
        cmocka_unit_test_setup(a_handler_asks_whether_to_stop, setup),
        cmocka_unit_test(a_call_can_be_made_by_hand),
        cmocka_unit_test_setup(a_lost_lease_writes_nothing, setup),
        cmocka_unit_test(messages_reach_their_handler_in_order),
        cmocka_unit_test(a_batch_reaches_its_handler_whole),
        cmocka_unit_test(a_message_exceeded_before_delivery_counts_its_deliveries_only),
        cmocka_unit_test(a_test_shows_retries_and_their_times),
        cmocka_unit_test(a_test_injects_failures),
        cmocka_unit_test(a_test_keeps_what_a_handler_committed),
        cmocka_unit_test(a_test_lets_workers_die_until_the_job_fails),
        cmocka_unit_test(a_test_takes_what_postgres_takes),
        cmocka_unit_test(a_test_lets_time_pass_in_a_handler),
        cmocka_unit_test(a_result_is_that_of_the_attempt_that_succeeded),
        cmocka_unit_test(a_handler_holds_its_queue),
        cmocka_unit_test_setup(a_handler_holds_its_line, open_calls),
        cmocka_unit_test_setup(a_known_key_leaves_its_job, open_calls),
        cmocka_unit_test_setup(a_job_waits_for_what_it_is_said_to, open_calls),
        cmocka_unit_test_setup(a_test_refuses_by_name, open_calls),
        cmocka_unit_test(a_message_comes_again_after_a_crash),
        cmocka_unit_test(queues_of_messages_are_apart),
        cmocka_unit_test(a_kind_has_a_policy_in_a_test),
    };

    return cmocka_run_group_tests_name("handlers", tests, NULL, NULL);
}
