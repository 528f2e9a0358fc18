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
    memset(jobq__memory_workers(memory), 0, sizeof(jobq_memory_worker));
    assert_true(jobq__memory_rescue(memory, loop.worker, 0, 10, 100 * SECOND, &rescued, &more));
    assert_int_equal(rescued, 1);
    assert_true(jobq_call_result(c, jobq_str_from("1"), false)); /* told when it is settled */
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
}

/* ---- messages -------------------------------------------------------------------------------- */

static void note(const jobq_message *m)
{
    size_t at = strlen(trace);

    snprintf(trace + at, sizeof trace - at, "%d/%d ", (int)m->seq, (int)m->attempts);
    assert_true(jobq_str_equal(m->payload, jobq_str_from("x")));
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

/* Four messages of partition 0; a job beside them. */
static void work_messages(jobq_message_handler each, jobq_batch_handler all)
{
    jobq_loop_config config;
    jobq_memory_handler h[2];
    int64_t now = 0, id;
    int i;

    memset(&config, 0, sizeof config);
    memset(h, 0, sizeof h);
    config.message_queues = 1;
    start(&config);
    assert_int_equal(jobq_memory_outbox(memory, QUEUE, 1), 1);
    for (i = 0; i < 4; i++) assert_true(jobq_memory_send(memory, QUEUE, 0, jobq_str_from("x")));
    id = add(TWO_STAGES, 1, "{\"in\":1}");
    h[0].queue = h[1].queue = QUEUE;
    h[0].user = h[1].user = &runs;
    h[0].kind = TWO_STAGES;
    h[0].run[0] = extract;
    h[1].each = each;
    h[1].all = all;
    while (now < 20 * SECOND) now = jobq_memory_work(memory, &loop, h, 2, now);
    assert_int_equal(job(id)->state, JOBQ_STATE_SUCCEEDED);
    assert_int_equal(memory->partitions[0].cursor.acked, 4);
}

static void messages_reach_their_handler_in_order(void **unused)
{
    (void)unused;
    work_messages(deliver, NULL);
    assert_string_equal(trace, "1/0 2/0 2/1 2/2 3/0 4/0 ");
    assert_true(jobq__memory_message_at(memory, 1, 3)->dead);
    assert_int_equal(jobq__memory_message_at(memory, 1, 3)->attempts, 1);
    assert_int_equal(loop.relay.stats.succeeded, 3);
}

static void a_batch_reaches_its_handler_whole(void **unused)
{
    (void)unused;
    work_messages(NULL, deliver_all);
    assert_string_equal(trace, "1/0 2/0 3/0 4/0 ");
    assert_true(jobq__memory_message_at(memory, 1, 4)->dead);
}

/* It was there when its worker died, as often as it may: nobody gets it again, and what its dead
 * letter counts are the deliveries that it had. */
static void a_message_exceeded_before_delivery_counts_its_deliveries_only(void **unused)
{
    jobq_policy policy = jobq_policy_defaults(NULL);
    jobq_loop_config config;
    jobq_memory_handler h;
    jobq_holder other;
    int64_t now = 0;
    int i;

    (void)unused;
    memset(&config, 0, sizeof config);
    memset(&h, 0, sizeof h);
    memset(&other, 0, sizeof other);
    config.message_queues = 1;
    start(&config);
    policy.max_attempts = 2;
    jobq_memory_policy(memory, QUEUE, &policy, false);
    jobq_memory_outbox(memory, QUEUE, 1);
    for (i = 0; i < 2; i++) jobq_memory_send(memory, QUEUE, 0, jobq_str_from("x"));
    for (i = 1; i <= 2; i++) { /* a worker that dies of it, twice */
        other.worker = 77;
        other.claim = i;
        other.lease_us = SECOND;
        assert_int_equal(other_reads(memory, 1, &other, i - 1, NULL, 1, 0).count, 1);
    }
    h.queue = QUEUE;
    h.each = deliver;
    h.user = &runs;
    while (now < 20 * SECOND) now = jobq_memory_work(memory, &loop, &h, 1, now);
    assert_true(jobq__memory_message_at(memory, 1, 1)->dead);
    assert_int_equal(jobq__memory_message_at(memory, 1, 1)->attempts, 2);
    assert_string_equal(trace, "2/0 2/1 "); /* and that one fails by itself, at its limit */
    assert_int_equal(jobq__memory_message_at(memory, 1, 2)->attempts, 2);
}

/* ---- jobq_test: handlers by name, with simulated time ---------------------------------------- */

static jobq_test *by_name;
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
    };

    return cmocka_run_group_tests_name("handlers", tests, NULL, NULL);
}
