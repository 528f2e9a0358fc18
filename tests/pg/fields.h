/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * fields.h -- every field that a program sets: a value that has an effect, given alone, and one
 * that is refused. test_pg_arguments.c reads the fields from the headers and demands a row of each.
 */
#ifndef JOBQ_TESTS_FIELDS_H
#define JOBQ_TESTS_FIELDS_H

typedef struct given {
    const char *field;
    const void *alone;   /* the whole struct: this field, beside what any call needs */
    const void *wrong;   /* this one is refused by the field's name */
    const void *beside;  /* alone without the field (default: the struct's base) */
    const char *lone;    /* alone is refused by this name, because the field needs another one */
    const char *refuses; /* the name that wrong is refused by (default: the field's own). Of a
                            name such as "loop.poll_us" only the end counts */
    const char *shown;   /* instead of alone: the test that shows the effect, which names it */
    const char *why;     /* wrong is NULL, because ... */
} given;

/* Why no value is wrong. */
#define A_BOOL "a bool"
#define A_POINTER "whatever the program wants to get back"
#define A_FUNCTION "any function will do, and NULL"
#define A_COUNT "it counts what the field before it has"
#define ANY "any text, or number, will do"

#define RAW(type, ...) &(const type){__VA_ARGS__}
#define TEXT(text) {text, sizeof(text) - 1}

static jobq_outcome fine(jobq_call *call)
{
    (void)call;
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome fine_jobs(jobq_call *const *calls, int32_t count)
{
    (void)calls;
    (void)count;
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_result fine_message(jobq_delivery *delivery, const jobq_message *message)
{
    (void)delivery;
    (void)message;
    return JOBQ_RESULT_SUCCESS;
}

static jobq_result fine_messages(jobq_delivery *delivery)
{
    (void)delivery;
    return JOBQ_RESULT_SUCCESS;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

#define JOB(...) RAW(jobq_pg_job, .queue = "q", .kind = "k", __VA_ARGS__)
#define A_TRACE {TEXT("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), {NULL, 0}}

static const jobq_pg_after an_after = {.job = 1}, a_bad_after = {.job = -1};

static const given job_given[] = {
    {.field = "queue", RAW(jobq_pg_job, .queue = "p", .kind = "k"),
     RAW(jobq_pg_job, .queue = "a b", .kind = "k")},
    {.field = "kind", RAW(jobq_pg_job, .queue = "q", .kind = "l"),
     RAW(jobq_pg_job, .queue = "q", .kind = "a b")},
    {.field = "payload", JOB(.payload = TEXT("[1]")), JOB(.payload = TEXT("{"))},
    {"payload_bytes", JOB(.payload = TEXT("[1]"), .payload_bytes = true),
     .beside = JOB(.payload = TEXT("[1]")), .why = A_BOOL},
    {"payload_exact", JOB(.payload = TEXT("[1]"), .payload_exact = true),
     .beside = JOB(.payload = TEXT("[1]")), .why = A_BOOL},
    {.field = "headers", JOB(.headers = TEXT("{\"a\": 1}")), JOB(.headers = TEXT("[1]"))},
    {"trace", JOB(.trace = A_TRACE), .why = "W3C asks to ignore a trace that is not valid"},
    {.field = "run_at_us", JOB(.run_at_us = JOBQ_DAYS(40000)), JOB(.run_at_us = -1)},
    {.field = "delay_us", JOB(.delay_us = JOBQ_DAYS(300)), JOB(.delay_us = -1)},
    {.field = "priority", JOB(.priority = 1), JOB(.priority = 10)},
    {.field = "stages", JOB(.stages = 2), JOB(.stages = 17)},
    {.field = "max_attempts", JOB(.max_attempts = 7), JOB(.max_attempts = -1)},
    {.field = "timeout_us", JOB(.timeout_us = SECOND), JOB(.timeout_us = -1)},
    {.field = "expires_us", JOB(.expires_us = SECOND), JOB(.expires_us = -1)},
    {.field = "expires_at_us", JOB(.expires_at_us = JOBQ_DAYS(40000)), JOB(.expires_at_us = 1)},
    {.field = "line", JOB(.line = "l"), JOB(.line = "")},
    {.field = "key", JOB(.key = "a"), JOB(.key = "")},
    {"on_known", JOB(.on_known = JOBQ_KNOWN_REJECT),
     JOB(.key = "a", .on_known = (jobq_known)99), .lone = "key"},
    {"unique_for", JOB(.unique_for = JOBQ_UNIQUE_LIVE),
     JOB(.key = "a", .unique_for = (jobq_unique)99), .lone = "key"},
    {"at_latest_us", JOB(.at_latest_us = SECOND),
     JOB(.key = "a", .on_known = JOBQ_KNOWN_REPLACE, .at_latest_us = -1), .lone = "at_latest_us"},
    {.field = "flow", JOB(.flow = 1), JOB(.flow = -1)},
    {"name", JOB(.name = "n"), JOB(.flow = 1, .name = ""), .lone = "name"},
    {.field = "after", JOB(.after = &an_after, .after_count = 1),
     JOB(.after = &a_bad_after, .after_count = 1)},
    {"after_count", JOB(.after_count = 1), JOB(.after = &an_after, .after_count = -1),
     .lone = "after", .refuses = "after"},
    {"quiet", .shown = "pg/test_pg_relay.c", .why = A_BOOL},
};

static const given after_given[] = {
    {"job", RAW(jobq_pg_after, .job = 1), RAW(jobq_pg_after, .job = -1), .refuses = "after"},
    {"name", RAW(jobq_pg_after, .name = "a"), RAW(jobq_pg_after, .name = ""), .refuses = "after"},
    {"flow", RAW(jobq_pg_after, .flow = 2), RAW(jobq_pg_after, .flow = -1), .refuses = "after"},
    {"on_end", RAW(jobq_pg_after, .job = 1, .on_end = JOBQ_ON_ANY),
     RAW(jobq_pg_after, .job = 1, .on_end = (jobq_on_end)99),
     .beside = RAW(jobq_pg_after, .job = 1)},
};

static const given trace_given[] = {
    {"parent", RAW(jobq_trace, .parent = TEXT("00-0af7651916cd43dd8448eb211c80319c"
                                              "-b7ad6b7169203331-01")),
     .why = "W3C asks to ignore a trace that is not valid"},
    {"state", RAW(jobq_trace, .parent = TEXT("00-0af7651916cd43dd8448eb211c80319c"
                                             "-b7ad6b7169203331-01"), .state = TEXT("a=b")),
     .beside = RAW(jobq_trace, .parent = TEXT("00-0af7651916cd43dd8448eb211c80319c"
                                              "-b7ad6b7169203331-01")),
     .why = "W3C asks to ignore a trace that is not valid"},
};

static const given flow_given[] = {
    {.field = "name", RAW(jobq_pg_flow_desc, .name = "n"), RAW(jobq_pg_flow_desc, .name = "\xff")},
    {.field = "on_failure", RAW(jobq_pg_flow_desc, .on_failure = JOBQ_PG_FLOW_CANCEL),
     RAW(jobq_pg_flow_desc, .on_failure = (jobq_pg_on_failure)99)},
    {"open", RAW(jobq_pg_flow_desc, .open = true), .why = A_BOOL},
};

/* ---- messages -------------------------------------------------------------------------------- */

#define MESSAGE(...) RAW(jobq_pg_message, .queue = "o", __VA_ARGS__)

static const given message_given[] = {
    {.field = "queue", RAW(jobq_pg_message, .queue = "p"), RAW(jobq_pg_message, .queue = "a b")},
    {.field = "order_key", MESSAGE(.order_key = "b"), MESSAGE(.order_key = "\xff")},
    {.field = "partition", MESSAGE(.partition = 1), MESSAGE(.partition = -1)},
    {.field = "type", MESSAGE(.type = "t"), MESSAGE(.type = "")},
    {.field = "payload", MESSAGE(.payload = TEXT("[1]")), MESSAGE(.payload = TEXT("{"))},
    {"payload_bytes", MESSAGE(.payload = TEXT("[1]"), .payload_bytes = true),
     .beside = MESSAGE(.payload = TEXT("[1]")), .why = A_BOOL},
    {"payload_exact", MESSAGE(.payload = TEXT("[1]"), .payload_exact = true),
     .beside = MESSAGE(.payload = TEXT("[1]")), .why = A_BOOL},
    {.field = "headers", MESSAGE(.headers = TEXT("{\"a\": 1}")), MESSAGE(.headers = TEXT("[1]"))},
    {"trace", MESSAGE(.trace = A_TRACE), .why = "W3C asks to ignore a trace that is not valid"},
    {.field = "key", MESSAGE(.key = "a"), MESSAGE(.key = "")},
    {"quiet", .shown = "pg/test_pg_relay.c", .why = A_BOOL},
};

static const given scope_given[] = {
    {.field = "queue", RAW(jobq_pg_scope, .queue = "o"), RAW(jobq_pg_scope, .queue = "a b")},
    {"one_partition", RAW(jobq_pg_scope, .one_partition = true), .why = A_BOOL},
    {"partition", RAW(jobq_pg_scope, .partition = 1),
     RAW(jobq_pg_scope, .one_partition = true, .partition = -1), .lone = "partition"},
    {.field = "type", RAW(jobq_pg_scope, .type = "t"), RAW(jobq_pg_scope, .type = "\n")},
    {.field = "limit", RAW(jobq_pg_scope, .limit = 1), RAW(jobq_pg_scope, .limit = -1)},
};

/* ---- operators ------------------------------------------------------------------------------- */

#define FILTER(...) RAW(jobq_pg_filter, .queue = "q", __VA_ARGS__)

static const given filter_given[] = {
    {.field = "id", RAW(jobq_pg_filter, .id = 1), FILTER(.id = 1)},
    {.field = "queue", RAW(jobq_pg_filter, .queue = "p"), RAW(jobq_pg_filter, .queue = "a b")},
    {.field = "kind", FILTER(.kind = "l"), FILTER(.kind = "a b")},
    {.field = "state", FILTER(.state = JOBQ_STATE_RUNNING), FILTER(.state = (jobq_state)99)},
    {.field = "older_us", FILTER(.older_us = JOBQ_DAYS(1)), FILTER(.older_us = -1)},
    {.field = "tags", FILTER(.tags = TEXT("{\"a\": 1}")), FILTER(.tags = TEXT("[1]"))},
    {.field = "flow", RAW(jobq_pg_filter, .flow = 1), RAW(jobq_pg_filter, .flow = -1)},
    {.field = "at_most", FILTER(.at_most = 1), FILTER(.at_most = -1)},
};

static const given changes_given[] = {
    {.field = "run_at_us", RAW(jobq_pg_changes, .run_at_us = JOBQ_DAYS(40000)),
     RAW(jobq_pg_changes, .run_at_us = -1)},
    {"run_now", RAW(jobq_pg_changes, .run_now = true), .why = A_BOOL},
    {"set_priority", RAW(jobq_pg_changes, .set_priority = true), .why = A_BOOL},
    {"priority", RAW(jobq_pg_changes, .priority = 1),
     RAW(jobq_pg_changes, .set_priority = true, .priority = 10), .lone = "what"},
    {.field = "target", RAW(jobq_pg_changes, .target = "p"), RAW(jobq_pg_changes, .target = "a b")},
};

static const char *const good_kinds[] = {"new"}, *const bad_kinds[] = {"a b"};

#define QUEUE(...) RAW(jobq_pg_queue_desc, __VA_ARGS__)
#define CHOICE(f) {.field = #f, QUEUE(.f = JOBQ_PG_ON), QUEUE(.f = (jobq_pg_choice)99)}

static const given queue_given[] = {
    {.field = "max_attempts", QUEUE(.max_attempts = 7), QUEUE(.max_attempts = -1)},
    {.field = "snoozes_max", QUEUE(.snoozes_max = 7), QUEUE(.snoozes_max = -7)},
    {.field = "max_crashes", QUEUE(.max_crashes = 7), QUEUE(.max_crashes = -1)},
    {.field = "timeout_us", QUEUE(.timeout_us = SECOND), QUEUE(.timeout_us = -1)},
    {.field = "backoff", QUEUE(.backoff = {.base_us = SECOND}), QUEUE(.backoff = {.base_us = -1})},
    CHOICE(attempts_span_stages),
    {.field = "history", QUEUE(.history = JOBQ_PG_OFF), QUEUE(.history = (jobq_pg_choice)99)},
    {.field = "retention", QUEUE(.retention = "short"), QUEUE(.retention = "shortish")},
    {.field = "failed_keep_us", QUEUE(.failed_keep_us = JOBQ_DAYS(2)), QUEUE(.failed_keep_us = -1)},
    {.field = "key_keep_us", QUEUE(.key_keep_us = JOBQ_DAYS(2)), QUEUE(.key_keep_us = -1)},
    {.field = "message_max", QUEUE(.message_max = 100), QUEUE(.message_max = -1)},
    {.field = "payload_max", QUEUE(.payload_max = 100), QUEUE(.payload_max = -1)},
    {.field = "running_max", QUEUE(.running_max = 5), QUEUE(.running_max = -2)},
    {.field = "rate", QUEUE(.rate = "5/s"), QUEUE(.rate = "often")},
    {"rate_burst", QUEUE(.rate_burst = 5), QUEUE(.rate = "5/s", .rate_burst = -1),
     .lone = "rate_burst"},
    {.field = "line_running_max", QUEUE(.line_running_max = 5), QUEUE(.line_running_max = -2)},
    {.field = "line_rate", QUEUE(.line_rate = "5/s"), QUEUE(.line_rate = "often")},
    {.field = "line_rate_burst", QUEUE(.line_rate_burst = 5),
     QUEUE(.line_rate = "5/s", .line_rate_burst = -1)},
    CHOICE(line_strict),
    {.field = "line_waiting_max", QUEUE(.line_waiting_max = 5), QUEUE(.line_waiting_max = -2)},
    CHOICE(paused),
    CHOICE(ageing),
    {.field = "kinds", QUEUE(.kinds = good_kinds, .kind_count = 1),
     QUEUE(.kinds = bad_kinds, .kind_count = 1)},
    {"kind_count", QUEUE(.kind_count = 1), .lone = "kinds", .why = A_COUNT},
    {.field = "kind", QUEUE(.kind = "new"), QUEUE(.kind = "a b")},
    {"reset", QUEUE(.reset = true), .lone = "reset", .why = A_BOOL},
};

#define LINE(...) RAW(jobq_pg_line_desc, __VA_ARGS__)

static const given line_given[] = {
    {.field = "running_max", LINE(.running_max = 5), LINE(.running_max = -2)},
    {.field = "rate", LINE(.rate = "5/s"), LINE(.rate = "often")},
    {.field = "rate_burst", LINE(.rate_burst = 5), LINE(.rate = "5/s", .rate_burst = -1)},
    {.field = "weight", LINE(.weight = 3), LINE(.weight = 101)},
    {.field = "strict", LINE(.strict = JOBQ_PG_ON), LINE(.strict = (jobq_pg_choice)99)},
    {.field = "paused", LINE(.paused = JOBQ_PG_ON), LINE(.paused = (jobq_pg_choice)99)},
    {"reset", LINE(.reset = true), .why = A_BOOL},
};

#define HOURLY .name = "s", .every_us = JOBQ_HOURS(1)
#define ITS_JOB .job = {.queue = "q", .kind = "k"}
#define SCHEDULE(...) RAW(jobq_pg_schedule, HOURLY, ITS_JOB, __VA_ARGS__)
#define CRON(...) RAW(jobq_pg_schedule, .name = "s", ITS_JOB, __VA_ARGS__)
#define SENDS(...) RAW(jobq_pg_schedule, HOURLY, .job = {.queue = "o"}, __VA_ARGS__)

static const given schedule_given[] = {
    {.field = "name", RAW(jobq_pg_schedule, .name = "t", .every_us = JOBQ_HOURS(1), ITS_JOB),
     RAW(jobq_pg_schedule, .name = "", .every_us = JOBQ_HOURS(1), ITS_JOB)},
    {.field = "cron", CRON(.cron = "@daily"), CRON(.cron = "daily")},
    {.field = "every_us", CRON(.every_us = JOBQ_HOURS(2)), CRON(.every_us = -1)},
    {"zone", CRON(.cron = "@daily", .zone = "Asia/Jakarta"),
     CRON(.cron = "@daily", .zone = "Nowhere"), .beside = CRON(.cron = "@daily")},
    {.field = "missed", SCHEDULE(.missed = JOBQ_MISSED_ALL), SCHEDULE(.missed = (jobq_missed)99)},
    {.field = "missed_within_us", SCHEDULE(.missed_within_us = JOBQ_HOURS(3)),
     SCHEDULE(.missed_within_us = -1)},
    {.field = "overlap", SCHEDULE(.overlap = JOBQ_OVERLAP_SKIP),
     SCHEDULE(.overlap = (jobq_overlap)99)},
    {.field = "spread_us", SCHEDULE(.spread_us = JOBQ_MINUTES(1)), SCHEDULE(.spread_us = -1)},
    {.field = "starts_at_us", SCHEDULE(.starts_at_us = JOBQ_DAYS(40000)),
     SCHEDULE(.starts_at_us = -1)},
    {.field = "ends_at_us", SCHEDULE(.ends_at_us = JOBQ_DAYS(40000)), SCHEDULE(.ends_at_us = -1)},
    {"job", RAW(jobq_pg_schedule, HOURLY, .job = {.queue = "q", .kind = "l"}),
     RAW(jobq_pg_schedule, HOURLY, .job = {.queue = "q", .kind = "a b"}), .refuses = "kind"},
    {"partition", SENDS(.partition = 1), SENDS(.partition = -1), .beside = SENDS(.type = NULL)},
    {"type", SENDS(.type = "t"), SENDS(.type = ""), .beside = SENDS(.type = NULL)},
};

#define READER(n, s, q, k, t) RAW(jobq_pg_subscription, n, s, q, k, t)

static const given subscription_given[] = {
    {.field = "name", READER("t", "o", "q", "k", NULL), READER("", "o", "q", "k", NULL)},
    {.field = "source", READER("s", "p", "q", "k", NULL), READER("s", "q", "q", "k", NULL)},
    {.field = "queue", READER("s", "o", "p", NULL, NULL), READER("s", "o", "q", NULL, NULL)},
    {.field = "kind", READER("s", "o", "q", "l", NULL), READER("s", "o", "q", "a b", NULL)},
    {.field = "types", READER("s", "o", "q", "k", "a,b.*"), READER("s", "o", "q", "k", "a*b")},
};

/* ---- the handle ------------------------------------------------------------------------------ */

#define HANDLE(...) RAW(jobq_pg_desc, __VA_ARGS__)
#define HANDLE_DOES(f, file) {#f, .shown = "pg/" file, .why = A_FUNCTION}

static const given handle_given[] = {
    {"conninfo", .shown = "pg/test_pg_badinput.c", .wrong = HANDLE(.conninfo = "wrong_option=1")},
    {"schema", .shown = "harness/pg.h", .wrong = HANDLE(.schema = "a b")},
    {"pool_max", .shown = "pg/test_pg_enqueue.c", .wrong = HANDLE(.pool_max = -1)},
    {"acquire_us", .shown = "pg/test_pg_enqueue.c", .wrong = HANDLE(.acquire_us = -1)},
    {"call_us", .shown = "pg/test_pg_running.c", .wrong = HANDLE(.call_us = -1)},
    {"no_pool", .shown = "pg/test_pg_running.c", .wrong = HANDLE(.no_pool = true, .pool_max = 5)},
    {"payload_max", .shown = "pg/test_pg_enqueue.c", .why = "a size, of any number of bytes"},
    {"behind_pooler", .shown = "pg/test_pg_pooler.c", .why = A_BOOL},
    {"listen_conninfo", HANDLE(.listen_conninfo = "host=/tmp"),
     HANDLE(.listen_conninfo = "wrong_option=1", .behind_pooler = true),
     .lone = "listen_conninfo"},
    {"patience_us", .shown = "pg/test_pg_outages.c", .wrong = HANDLE(.patience_us = -1)},
    {"may_be_down", .shown = "pg/test_pg_schemas.c", .why = A_BOOL},
    HANDLE_DOES(log, "test_pg_faults.c"), HANDLE_DOES(log_event, "test_pg_log.c"),
    HANDLE_DOES(connect, "test_pg_loop.c"), HANDLE_DOES(set_up, "test_pg_outages.c"),
    HANDLE_DOES(seal, "test_pg_seal.c"), HANDLE_DOES(open, "test_pg_seal.c"),
    {"seal_name", .shown = "pg/test_pg_seal.c", .wrong = HANDLE(.seal_name = "a b")},
    {"user", .shown = "pg/test_pg_log.c", .why = A_POINTER},
};

/* ---- the worker ------------------------------------------------------------------------------ */

/* Their effects are those of the loop of jobq.h, whose tests name them. */
#define LOOP(f, ...) \
    {#f, .shown = "core/test_core_loop.c", .wrong = RAW(jobq_loop_config, .f = __VA_ARGS__)}
static const jobq_loop_served a_served = {.message_queues = 0};

static const given loop_given[] = {
    LOOP(threads, -1), LOOP(batch_max, -1), LOOP(lease_us, -1), LOOP(heartbeat_us, -1),
    LOOP(poll_us, -1), LOOP(rest_us, -1), LOOP(flush_us, -1), LOOP(linger_us, -1),
    LOOP(sweep_us, -1), LOOP(grace_us, -1), LOOP(answer_us, -1), LOOP(prune_us, -1),
    {"vacuum_rows", .shown = "pg/test_pg_housekeeping.c",
     .wrong = RAW(jobq_loop_config, .vacuum_rows = -1)},
    LOOP(jobs_max, -1), LOOP(until, (jobq_until)99),
    {"served", RAW(jobq_loop_config, .served = &a_served), .lone = "served",
     .why = "jobq_pg.h has its own"},
};

#define TUNING(f, ...) \
    {#f, .shown = "core/test_core_outbox.c", .wrong = RAW(jobq_tuning, .f = __VA_ARGS__), \
     .refuses = "tuning"}

static const given tuning_given[] = {
    TUNING(batch, -1),
    {"threshold", .shown = "core/test_core_outbox.c", .why = "any number of successes"},
    TUNING(min_us, -1), TUNING(active_us, -1), TUNING(ramp_us, -1), TUNING(idle_us, -1),
    TUNING(retry, {.base_us = -1}), TUNING(lease_us, -1), TUNING(headroom_us, -1),
    TUNING(budget_us, -1),
};

#define BACKOFF(...) RAW(jobq_backoff, __VA_ARGS__)
#define A_BASE .base_us = SECOND

static const given backoff_given[] = {
    {"curve", BACKOFF(.curve = JOBQ_CURVE_CONSTANT), BACKOFF(A_BASE, .curve = (jobq_curve)99),
     .lone = "backoff", .refuses = "backoff"},
    {"jitter_permille", BACKOFF(.jitter_permille = 1), BACKOFF(A_BASE, .jitter_permille = 1001),
     .lone = "backoff", .refuses = "backoff"},
    {"base_us", BACKOFF(A_BASE), BACKOFF(.base_us = -1), .refuses = "backoff"},
    {"cap_us", BACKOFF(.cap_us = SECOND), BACKOFF(A_BASE, .cap_us = -1),
     .lone = "backoff", .refuses = "backoff"},
    {"floor_us", BACKOFF(.floor_us = SECOND), BACKOFF(A_BASE, .floor_us = -1),
     .lone = "backoff", .refuses = "backoff"},
};

#define HANDLER(...) RAW(jobq_job_handler, .queue = "q", .kind = "k", __VA_ARGS__)

static const given handler_given[] = {
    {"queue", .shown = "pg/test_pg_life.c",
     .wrong = RAW(jobq_job_handler, .queue = "a b", .kind = "k", .run = {fine})},
    {"kind", .shown = "pg/test_pg_life.c",
     .wrong = RAW(jobq_job_handler, .queue = "q", .kind = "a b", .run = {fine})},
    {"run", .shown = "pg/test_pg_life.c", .wrong = HANDLER(.user = NULL)},
    {"user", .shown = "core/test_core_handlers.c", .why = A_POINTER},
    {"threads_max", .shown = "pg/test_pg_running.c",
     .wrong = HANDLER(.run = {fine}, .threads_max = -1)},
    {"batch", .shown = "pg/test_pg_batch.c",
     .wrong = HANDLER(.run = {fine}, .batch = fine_jobs)},
    {"batch_max", .shown = "core/test_core_batch.c",
     .wrong = HANDLER(.batch = fine_jobs, .batch_max = -1)},
    {"batch_wait_us", .shown = "pg/test_pg_batch.c",
     .wrong = HANDLER(.batch = fine_jobs, .batch_wait_us = SECOND)},
};

#define RECEIVER(...) RAW(jobq_pg_receiver, .queue = "o", __VA_ARGS__)

static const given receiver_given[] = {
    {"queue", .shown = "pg/test_pg_outbox.c",
     .wrong = RAW(jobq_pg_receiver, .queue = "a b", .each = fine_message)},
    {"each", .shown = "pg/test_pg_deploy.c", .wrong = RECEIVER(.user = NULL)},
    {"all", .shown = "pg/test_pg_relay.c",
     .wrong = RECEIVER(.each = fine_message, .all = fine_messages), .refuses = "each"},
    {"transactional", .shown = "pg/test_pg_host.c", .why = A_BOOL},
    {"tuning", .shown = "pg/test_pg_relay.c",
     .wrong = RECEIVER(.each = fine_message, .tuning = {.batch = -1})},
    {"user", .shown = "pg/test_pg_order.c", .why = A_POINTER},
};

static const given hooks_given[] = {
    {"before", .shown = "pg/test_pg_host.c", .why = A_FUNCTION},
    {"after", .shown = "pg/test_pg_host.c", .why = A_FUNCTION},
    {"failed", .shown = "pg/test_pg_host.c", .why = A_FUNCTION},
    {"user", .shown = "pg/test_pg_crashing_jobs.c", .why = A_POINTER},
};

static jobq_pg_stats some_stats;

#define WORKER(...) RAW(jobq_pg_worker_desc, __VA_ARGS__)

static const given worker_given[] = {
    {"name", .shown = "pg/test_pg_life.c", .wrong = WORKER(.name = "\xff")},
    {"handlers", .shown = "pg/test_pg_faults.c", .wrong = WORKER(.handler_count = 1)},
    {"handler_count", .shown = "pg/test_pg_faults.c", .why = A_COUNT},
    {"receivers", .shown = "pg/test_pg_deploy.c", .wrong = WORKER(.receiver_count = 1)},
    {"receiver_count", .shown = "pg/test_pg_deploy.c", .why = A_COUNT},
    {"also", .shown = "pg/test_pg_schemas.c", .wrong = WORKER(.also_count = 1)},
    {"also_count", .shown = "pg/test_pg_schemas.c", .why = A_COUNT},
    {"loop", .shown = "pg/test_pg_life.c", .wrong = WORKER(.loop = {.poll_us = -1}),
     .refuses = "poll_us"},
    {"no_listen", WORKER(.no_listen = true), .why = A_BOOL},
    {"stop_signals", .shown = "pg/test_pg_running.c", .wrong = WORKER(.stop_signals = {-1})},
    {"hooks", .shown = "pg/test_pg_host.c", .why = A_FUNCTION},
    {"stats", WORKER(.stats = &some_stats), .lone = "stats", .why = "any struct will do"},
    {"no_failed_log", .shown = "pg/test_pg_log.c", .why = A_BOOL},
    {"stats_us", .shown = "pg/test_pg_log.c", .wrong = WORKER(.stats_us = -1)},
    {"record", .shown = "pg/test_pg_record.c", .why = "a worker runs without its recording, too"},
    {"record_bytes", .shown = "pg/test_pg_record.c", .why = "a size, of any number of bytes"},
};

static const jobq_pg_job a_bad_job = {.queue = "a b", .kind = "k"};
static const jobq_pg_filter a_bad_filter = {.queue = "a b"};

#define ASKED(f) {#f, .shown = "pg/test_pg_loop.c", .why = "no id is wrong: none has it"}

static const given question_given[] = {
    {"enqueue", .shown = "pg/test_pg_loop.c",
     .wrong = RAW(jobq_pg_question, .enqueue = &a_bad_job),
     .refuses = "queue"},
    ASKED(get),
    {"cancel", .shown = "pg/test_pg_loop.c",
     .wrong = RAW(jobq_pg_question, .cancel = &a_bad_filter),
     .refuses = "queue"},
    ASKED(await),
    {"timeout_us", RAW(jobq_pg_question, .timeout_us = 1), .lone = "question",
     .wrong = RAW(jobq_pg_question, .get = 1, .timeout_us = 1)},
};

/* ---- tables ---------------------------------------------------------------------------------- */

typedef struct errand {
    int64_t id, created_at, since;
    jobq_str status, error_message, note;
    int32_t retry_count;
    jobq_pg_maybe_int64 retry_after, heartbeat;
} errand;

static const jobq_pg_column errand_columns[] = {
    JOBQ_PG_COLUMN(errand, id, INT64, JOBQ_PG_KEY),
    JOBQ_PG_COLUMN(errand, created_at, TIMESTAMPTZ, 0),
    JOBQ_PG_COLUMN(errand, since, TIMESTAMPTZ, 0),
    JOBQ_PG_COLUMN(errand, status, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(errand, error_message, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(errand, note, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(errand, retry_count, INT32, 0),
    JOBQ_PG_COLUMN(errand, retry_after, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(errand, heartbeat, TIMESTAMPTZ, JOBQ_PG_NULLABLE), JOBQ_PG_COLUMNS_END};

/* The column that is tried is the second one, beside the key. */
#define COLUMN(...) RAW(jobq_pg_column, __VA_ARGS__)
#define AT_STATUS .offset = offsetof(errand, status)
static const char *const a_name[] = {"a", NULL};

static const given column_given[] = {
    {"name", COLUMN("status", JOBQ_PG_TEXT, AT_STATUS),
     COLUMN("nothing", JOBQ_PG_TEXT, AT_STATUS), .refuses = "nothing"},
    {"type", COLUMN("status", JOBQ_PG_TEXT, AT_STATUS), COLUMN("status", JOBQ_PG_BOOL, AT_STATUS),
     .refuses = "status"},
    {"offset", .shown = "pg/test_pg_table.c", .why = "where a field is, offsetof knows"},
    {"size", .shown = "pg/test_pg_table.c", .wrong = COLUMN("status", JOBQ_PG_TEXT, AT_STATUS,
                                                            .size = 1), .refuses = "status"},
    {"flags", .shown = "pg/test_pg_table.c", .wrong = COLUMN("status", JOBQ_PG_TEXT, AT_STATUS,
                                                             .flags = 1u << 30),
     .refuses = "status"},
    {"names", COLUMN("status", JOBQ_PG_TEXT, AT_STATUS, .names = a_name), .lone = "status",
     .wrong = COLUMN("status", JOBQ_PG_ENUM, AT_STATUS), .refuses = "status"},
};

#define TABLE(...) RAW(jobq_pg_table_desc, .columns = errand_columns, __VA_ARGS__)
#define ITS_SIZE .row_size = sizeof(errand)

static const given table_given[] = {
    {"name", .shown = "pg/test_pg_table.c", .wrong = TABLE(.name = "nothing", ITS_SIZE),
     .refuses = "nothing"},
    {"row_size", .shown = "pg/test_pg_attune.c", .wrong = TABLE(.name = "errand", .row_size = 1),
     .refuses = "id"},
    {"columns", .shown = "pg/test_pg_table.c", .why = "their fields say what is wrong"},
    {"entity", .shown = "pg/test_pg_table.c", .why = ANY},
    {"order", .shown = "pg/test_pg_table.c",
     .wrong = TABLE(.name = "errand", ITS_SIZE, .order = "nothing"), .refuses = "nothing"},
    {"unprepared", .shown = "pg/test_pg_table.c", .why = A_BOOL},
};

static const errand an_errand = {.id = 2};
#define QUERY(...) RAW(jobq_pg_query, __VA_ARGS__)

static const given query_given[] = {
    {"where", QUERY(.where = "id", .like = &an_errand), QUERY(.where = "nothing"),
     .refuses = "nothing"},
    {"like", QUERY(.like = &an_errand), .lone = "like", .why = "any row will do"},
    {"search", QUERY(.search = "prog"), .why = ANY},
    {"order", QUERY(.order = "-id"), QUERY(.order = "nothing"), .refuses = "nothing"},
    {"after", QUERY(.after = &an_errand), .why = "any row will do"},
    {.field = "limit", QUERY(.limit = 1), QUERY(.limit = -1)},
};

static const char *const two_stages[] = {"RUN", "MORE"};
static const char *const bad_words[] = {"a", "b", "c", NULL};

#define WORK(...) RAW(jobq_pg_worktable_desc, .stages = two_stages, .stage_count = 2, __VA_ARGS__)
#define ITS_COLUMN(f) \
    {#f, .shown = "pg/test_pg_worktable.c", .wrong = WORK(.f = "nothing"), .refuses = "nothing"}

static const given work_given[] = {
    {"stages", .shown = "pg/test_pg_worktable.c", .wrong = RAW(jobq_pg_worktable_desc,
                                                               .stage_count = 1)},
    {"stage_count", .shown = "pg/test_pg_worktable.c",
     .wrong = RAW(jobq_pg_worktable_desc, .stages = two_stages, .stage_count = 27),
     .refuses = "stages"},
    {"words", .shown = "pg/test_pg_worktable.c",
     .wrong = RAW(jobq_pg_worktable_desc, .stage_count = 1, .words = bad_words)},
    ITS_COLUMN(status), ITS_COLUMN(retry_count), ITS_COLUMN(retry_after), ITS_COLUMN(heartbeat),
    ITS_COLUMN(worker),
    {"error", WORK(.error = "note"), WORK(.error = "nothing"), .refuses = "nothing"},
    {"created_at", WORK(.created_at = "since"), WORK(.created_at = "nothing"),
     .refuses = "nothing"},
    {"lease", WORK(.lease = "heartbeat"), WORK(.lease = "nothing"), .lone = "heartbeat",
     .refuses = "nothing"},
    {"max_retries", .shown = "pg/test_pg_worktable.c", .wrong = WORK(.max_retries = -1)},
    {"backoff", .shown = "pg/test_pg_worktable.c", .wrong = WORK(.backoff = {.base_us = -1})},
    {.field = "stale_us", WORK(.stale_us = JOBQ_DAYS(1)), WORK(.stale_us = -1)},
    {"attempts_span_stages", WORK(.attempts_span_stages = true), .why = A_BOOL},
};

static const given verdict_given[] = {
    {"outcome", .shown = "pg/test_pg_worktable.c",
     .wrong = RAW(jobq_pg_verdict, .outcome = (jobq_outcome)99)},
    {"why", .shown = "pg/test_pg_worktable.c", .why = "what is not UTF-8 is mended"},
    {"state", .shown = "pg/test_pg_worktable.c", .why = "it is an answer"},
    {"code", .shown = "pg/test_pg_worktable.c", .why = "it is an answer"},
};

/* ---- tests of handlers ----------------------------------------------------------------------- */

#define TEST_JOB(...) RAW(jobq_test_job, .queue = "q", .kind = "k", __VA_ARGS__)
#define TESTED(f, ...) \
    {#f, .shown = "core/test_core_handlers.c", .wrong = TEST_JOB(.f = __VA_ARGS__)}

static const jobq_test_after a_test_after = {.job = 99};

static const given test_job_given[] = {
    {"queue", .shown = "core/test_core_handlers.c",
     .wrong = RAW(jobq_test_job, .queue = "a b", .kind = "k")},
    {"kind", .shown = "core/test_core_handlers.c",
     .wrong = RAW(jobq_test_job, .queue = "q", .kind = "a b")},
    TESTED(payload, TEXT("{")),
    {"payload_bytes", .shown = "core/test_core_handlers.c", .why = A_BOOL},
    TESTED(headers, TEXT("[1]")), TESTED(delay_us, -1), TESTED(timeout_us, -1),
    {"expires_us", .shown = "core/test_core_expiry.c", .wrong = TEST_JOB(.expires_us = -1)},
    TESTED(priority, 10), TESTED(stages, 17), TESTED(max_attempts, -1), TESTED(line, ""),
    TESTED(key, ""), TESTED(on_known, JOBQ_KNOWN_REPLACE),
    {"after", .shown = "core/test_core_handlers.c",
     .wrong = TEST_JOB(.after = &a_test_after, .after_count = 1)},
    TESTED(after_count, -1),
};

static const given test_after_given[] = {
    {"job", .shown = "core/test_core_handlers.c", .wrong = RAW(jobq_test_after, .job = 99),
     .refuses = "after"},
    {"on_end", .shown = "core/test_core_handlers.c",
     .wrong = RAW(jobq_test_after, .job = 1, .on_end = (jobq_on_end)99), .refuses = "after"},
};

#define TEST_MESSAGE(...) RAW(jobq_test_message, .queue = "o", __VA_ARGS__)

static const given test_message_given[] = {
    {"queue", .shown = "core/test_core_handlers.c", .wrong = RAW(jobq_test_message, .queue = "p")},
    {"type", .shown = "core/test_core_handlers.c", .wrong = TEST_MESSAGE(.type = "")},
    {"payload", .shown = "core/test_core_handlers.c", .wrong = TEST_MESSAGE(.payload = TEXT("{"))},
    {"payload_bytes", .shown = "core/test_core_handlers.c", .why = A_BOOL},
    {"headers", .shown = "core/test_core_handlers.c",
     .wrong = TEST_MESSAGE(.headers = TEXT("[1]"))},
};

#define FAULTS(f, reason) {#f, .shown = "core/test_core_faults.c", .why = reason}
#define AN_ANSWER "the library fills it"

static const given faults_given[] = {
    FAULTS(handlers, "jobq_test_init asserts what it demands"), FAULTS(handler_count, A_COUNT),
    FAULTS(scenario, A_FUNCTION), FAULTS(conn, A_FUNCTION), FAULTS(died, A_FUNCTION),
    FAULTS(user, A_POINTER), FAULTS(events, ANY), FAULTS(pairs, A_BOOL),
    FAULTS(number, "a number without a story is one in which nothing goes wrong"),
    FAULTS(stories_max, ANY), FAULTS(stories, AN_ANSWER), FAULTS(happened, AN_ANSWER),
    FAULTS(text, AN_ANSWER),
};

/* ---- what has no rows ------------------------------------------------------------------------ */

/* Structs of which a program sets nothing that a call could refuse. */
static const struct {
    const char *names, *why;
} no_rows[] = {
    {"jobq_pg_error jobq_pg_event jobq_pg_rows jobq_pg_partition_row jobq_pg_dead_letter_row"
     " jobq_pg_report jobq_pg_stats jobq_pg_reply jobq_pg_health jobq_pg_job_row"
     " jobq_pg_failure_row jobq_pg_queue_row jobq_pg_worker_row jobq_loop_stats jobq_relay_stats"
     " jobq_call jobq_delivery jobq_message jobq_test_sent jobq_test_view", AN_ANSWER},
    {"jobq_policy jobq_job jobq_event jobq_decision jobq_partition_mode jobq_directive"
     " jobq_cursor jobq_verdict jobq_plan jobq_random",
     "functions of values: they assert what they demand (core/test_core_rules.c)"},
    {"jobq_test_receiver", "jobq_test_receive asserts what it demands"},
    {"jobq_pg_dial jobq_pg_seal", "it goes between the library and a function of desc"},
    {"jobq_str jobq_pg_uuid jobq_pg_interval jobq_pg_texts jobq_pg_int64s jobq_pg_maybe_bool"
     " jobq_pg_maybe_int16 jobq_pg_maybe_int32 jobq_pg_maybe_int64 jobq_pg_maybe_float"
     " jobq_pg_maybe_double jobq_pg_maybe_uuid jobq_pg_maybe_interval",
     "a value of a field or column, which is what refuses it"},
};

#endif
