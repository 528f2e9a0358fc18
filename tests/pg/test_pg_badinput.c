/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_badinput.c -- bad input: each public call with each kind of nonsense, and on each kind of
 * connection that cannot take it. Each line is a case. After each case the answer names what was
 * wrong, nothing has been written, and the caller's transaction can go on if C could see the error.
 */
#include "pg_work.h"

#define HUGE_INT (INT64_MAX / 2)

static char name_1025[1026], bytes_big[1048577], deep[600], number_big[140000];

static int badinput_up(void **state)
{
    memset(name_1025, 'a', 1025);
    memset(bytes_big, ' ', sizeof bytes_big);
    memset(deep, '[', 300);
    memset(deep + 300, ']', 299);
    memset(number_big, '9', sizeof number_big - 1);
    return pg_up(state);
}

/* The open transaction of db is alive, and the tables are as they were. */
static void expect_untouched(const char *what, const char *before)
{
    char *after;

    if (PQtransactionStatus(db) != PQTRANS_INTRANS) fail_msg("%s: transaction aborted", what);
    after = everything();
    if (strcmp(before, after) != 0) fail_msg("%s: something was written", what);
    free(after);
}

static void expect_invalid(const char *call, size_t line, jobq_error code, const char *field,
                           const jobq_pg_error *error, const char *before)
{
    char what[64];

    snprintf(what, sizeof what, "%s, line %d", call, (int)line);
    if (code != JOBQ_ERROR_INVALID) fail_msg("%s: code %s", what,
                                             jobq_enum_name(JOBQ_ENUM_ERROR, code));
    if (strcmp(error->field, field) != 0)
        fail_msg("%s: field '%s', not '%s'", what, error->field, field);
    if (error->code != code || strlen(error->message) < 10 || error->sqlstate[0] != '\0')
        fail_msg("%s: message '%s', SQLSTATE '%s'", what, error->message, error->sqlstate);
    expect_untouched(what, before);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* X27. */
static const struct {
    jobq_pg_job job;
    const char *field;
} bad_jobs[] = {
    {{.queue = NULL, .kind = "k"}, "queue"},
    {{.queue = "", .kind = "k"}, "queue"},
    {{.queue = "q", .kind = NULL}, "kind"},
    {{.queue = "q", .kind = ""}, "kind"},
    {{.queue = name_1025, .kind = "k"}, "queue"},
    {{.queue = "q", .kind = name_1025}, "kind"},
    {{.queue = "-q", .kind = "k"}, "queue"},
    {{.queue = "q.", .kind = "k"}, "queue"},
    {{.queue = "a b", .kind = "k"}, "queue"},
    {{.queue = "q'; DROP TABLE job; --", .kind = "k"}, "queue"},
    {{.queue = "q\xff", .kind = "k"}, "queue"},
    {{.queue = "sch\xc3\xb6n", .kind = "k"}, "queue"},
    {{.queue = "q", .kind = "k", .payload = {"", 0}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {NULL, 9}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {"{", 1}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {"{}x", 3}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {"nul", 3}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {"1\0", 2}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {"\"\0\"", 3}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {"\"\\u0000\"", 8}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {"\"\\ud800\"", 8}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {"\"\xc3\"", 3}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {"\"\xed\xa0\x80\"", 5}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {"\"\xf5\x80\x80\x80\"", 6}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {"1e200000", 8}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {number_big, sizeof number_big - 1}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {deep, 599}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {bytes_big, 1048577}}, "payload"},
    {{.queue = "q", .kind = "k", .payload = {bytes_big, 1048577}, .payload_bytes = true},
     "payload"},
    {{.queue = "q", .kind = "k", .headers = {"[1]", 3}}, "headers"},
    {{.queue = "q", .kind = "k", .headers = {" 1", 2}}, "headers"},
    {{.queue = "q", .kind = "k", .headers = {"{\"a\":}", 6}}, "headers"},
    {{.queue = "q", .kind = "k", .run_at_us = -1}, "run_at_us"},
    {{.queue = "q", .kind = "k", .run_at_us = INT64_MIN}, "run_at_us"},
    {{.queue = "q", .kind = "k", .run_at_us = HUGE_INT}, "run_at_us"},
    {{.queue = "q", .kind = "k", .run_at_us = JOBQ_NEVER}, "run_at_us"},
    {{.queue = "q", .kind = "k", .delay_us = -1}, "delay_us"},
    {{.queue = "q", .kind = "k", .delay_us = INT64_MAX}, "delay_us"},
    {{.queue = "q", .kind = "k", .priority = 10}, "priority"},
    {{.queue = "q", .kind = "k", .priority = -10}, "priority"},
    {{.queue = "q", .kind = "k", .priority = INT32_MIN}, "priority"},
    {{.queue = "q", .kind = "k", .stages = 17}, "stages"},
    {{.queue = "q", .kind = "k", .stages = -1}, "stages"},
    {{.queue = "q", .kind = "k", .max_attempts = -1}, "max_attempts"},
    {{.queue = "q", .kind = "k", .timeout_us = -1}, "timeout_us"},
    {{.queue = "q", .kind = "k", .timeout_us = 30}, "timeout_us"},
    {{.queue = "q", .kind = "k", .timeout_us = INT64_MAX}, "timeout_us"},
    {{.queue = "q", .kind = "k", .key = ""}, "key"},
    {{.queue = "q", .kind = "k", .key = "k\xff"}, "key"},
    {{.queue = "q", .kind = "k", .key = name_1025}, "key"},
};

/* One alone, by the function and directly; as the last of a batch; and by COPY. */
static void bad_jobs_are_refused_every_way(void **unused)
{
    jobq_pg_job two[2];
    jobq_pg_error error;
    int64_t id = 77, ids[2];
    char *before;
    size_t i;

    (void)unused;
    pg_empty(NULL);
    for (i = 0; i < 4; i++) enqueue_count(1);
    RUN("BEGIN");
    before = everything();
    for (i = 0; i < COUNT(bad_jobs); i++) {
        const jobq_pg_job *bad = &bad_jobs[i].job;
        expect_invalid("enqueue", i, jobq_pg_enqueue(pg, db, bad, &id, &error), bad_jobs[i].field,
                       &error, before);
        assert_int_equal(jobq_pg_enqueue(pg, db, bad, NULL, NULL), JOBQ_ERROR_INVALID);
        two[0] = plain_job();
        two[1] = *bad;
        expect_invalid("enqueue_many", i, jobq_pg_enqueue_many(pg, db, two, 2, ids, &error),
                       bad_jobs[i].field, &error, before);
        expect_invalid("by COPY", i,
                       jobq_pg_enqueue_many(pg, db, two, 2, JOBQ_PG_BY_COPY, &error),
                       bad_jobs[i].field, &error, before);
    }
    assert_int_equal(id, 77);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, two, SIZE_MAX / 2, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, NULL, 0, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(pg, db, NULL, 0, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    expect_untouched("an empty batch", before);
    free(before);
    RUN("COMMIT");
}

/* The very limits are taken. */
static void the_limits_themselves_are_taken(void **unused)
{
    static jobq_pg_job jobs[6];
    jobq_pg_error error;
    char name[1025];
    size_t i;

    (void)unused;
    pg_empty(NULL);
    memcpy(name, name_1025, 1024);
    name[1024] = '\0';
    memset(deep, '[', 256);
    memset(deep + 256, ']', 256);
    for (i = 0; i < COUNT(jobs); i++) jobs[i] = plain_job();
    for (i = 0; i < COUNT(jobs); i++) jobs[i].queue = name;
    jobs[0].kind = jobs[0].key = name;
    jobs[1].payload = (jobq_str){bytes_big, 1048576};
    jobs[1].payload_bytes = true;
    jobs[2].payload = (jobq_str){deep, 512};
    jobs[2].payload_bytes = false;
    jobs[3].stages = 16;
    jobs[3].priority = 9;
    jobs[3].max_attempts = INT32_MAX;
    jobs[4].run_at_us = INT64_MAX / 4;
    jobs[5].delay_us = INT64_MAX / 4;
    jobs[5].timeout_us = INT64_MAX / 4;
    for (i = 0; i < COUNT(jobs); i++)
        if (jobq_pg_enqueue(pg, NULL, &jobs[i], NULL, &error)) fail_msg("%d: %s", (int)i,
                                                                        error.message);
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, jobs + 1, 5, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 11);
}

/* ---- the other verbs ------------------------------------------------------------------------- */

static const char *const null_names[] = {NULL};
static const char *const bad_names[] = {"good", "-bad"};

static const struct {
    jobq_pg_filter filter;
    const char *field;
} bad_filters[] = {
    {{.queue = NULL}, "queue"},
    {{.queue = ""}, "queue"},
    {{.queue = name_1025}, "queue"},
    {{.queue = "q", .kind = ""}, "kind"},
    {{.queue = "q", .kind = "a b"}, "kind"},
    {{.queue = "q", .state = JOBQ_STATE_COUNT}, "state"},
    {{.queue = "q", .state = (jobq_state)-1}, "state"},
    {{.queue = "q", .older_us = -1}, "older_us"},
    {{.queue = "q", .older_us = INT64_MAX}, "older_us"},
    {{.queue = "q", .at_most = -1}, "at_most"},
    {{.queue = "q", .older_us = HUGE_INT / 8}, "older_us"},
    {{.queue = "q", .tags = {"1", 1}}, "tags"},
    {{.id = 1, .queue = "q"}, "id"},
    {{.id = 1, .kind = "k"}, "id"},
    {{.id = 1, .state = JOBQ_STATE_READY}, "id"},
    {{.id = 1, .older_us = 1}, "id"},
    {{.id = 1, .tags = {"{}", 2}}, "id"},
    {{.id = 1, .at_most = 1}, "id"},
    {{.id = 1, .flow = 1}, "id"},
    {{.queue = "q", .tags = {"{\"a\":\"\xff\"}", 9}}, "tags"},
};

static void bad_filters_are_refused(void **unused)
{
    jobq_pg_error error;
    char *before;
    size_t i;

    (void)unused;
    pg_empty(NULL);
    enqueue_count(3);
    RUN("BEGIN");
    before = everything();
    for (i = 0; i < COUNT(bad_filters); i++) {
        const jobq_pg_filter *f = &bad_filters[i].filter;
        const char *field = bad_filters[i].field;
        expect_invalid("cancel", i, jobq_pg_cancel(pg, db, f, NULL, NULL, &error), field,
                       &error, before);
        expect_invalid("revive", i, jobq_pg_revive(pg, db, f, NULL, &error), field, &error,
                       before);
        expect_invalid("delete", i, jobq_pg_delete(pg, db, f, NULL, &error), field, &error,
                       before);
        expect_invalid("reschedule", i,
                       jobq_pg_change(pg, db, f, &(jobq_pg_changes){.run_now = true}, NULL,
                                      &error), field,
                       &error, before);
        expect_invalid("prioritize", i,
                       jobq_pg_change(pg, db, f,
                                      &(jobq_pg_changes){.set_priority = true,
                                                         .priority = 0}, NULL, &error), field,
                       &error, before);
        expect_invalid("move", i,
                       jobq_pg_change(pg, db, f, &(jobq_pg_changes){.target = "q"}, NULL,
                                      &error), field, &error,
                       before);
    }
    free(before);
    RUN("ROLLBACK");
}

static const struct {
    const char *queue;
    jobq_pg_queue_desc desc;
    const char *field;
} bad_queues[] = {
    {NULL, {.max_attempts = 0}, "queue"},
    {"", {.max_attempts = 0}, "queue"},
    {"a b", {.max_attempts = 0}, "queue"},
    {"q", {.max_attempts = -1}, "max_attempts"},
    {"q", {.max_crashes = -1}, "max_crashes"},
    {"q", {.timeout_us = -1}, "timeout_us"},
    {"q", {.timeout_us = 30}, "timeout_us"},
    {"q", {.backoff = {.base_us = 999}}, "backoff"},
    {"q", {.backoff = {.base_us = SECOND, .cap_us = 999}}, "backoff"},
    {"q", {.failed_keep_us = 30}, "failed_keep_us"},
    {"q", {.key_keep_us = 999}, "key_keep_us"},
    {"q", {.backoff = {.base_us = -1}}, "backoff"},
    {"q", {.backoff = {.base_us = 5, .cap_us = 9, .floor_us = 10}}, "backoff"},
    {"q", {.backoff = {.base_us = 5, .jitter_permille = 1001}}, "backoff"},
    {"q", {.backoff = {.base_us = 5, .curve = (jobq_curve)99}}, "backoff"},
    {"q", {.failed_keep_us = -1}, "failed_keep_us"},
    {"q", {.failed_keep_us = HUGE_INT / 8}, "failed_keep_us"},
    {"q", {.key_keep_us = JOBQ_NEVER}, "key_keep_us"},
    {"q", {.key_keep_us = -1}, "key_keep_us"},
    {"q", {.message_max = -1}, "message_max"},
    {"q", {.kinds = NULL, .kind_count = 1}, "kinds"},
    {"q", {.kinds = null_names, .kind_count = 1}, "kinds"},
    {"q", {.kinds = bad_names, .kind_count = 2}, "kinds"},
};

/* Calls that stand alone; each in the open transaction of conn. */
static jobq_error lone_call(int n, PGconn *conn, jobq_pg_error *error)
{
    static jobq_lane lane;
    verb_batch batch;
    verb_result r;
    bool more;
    jobq_pg_filter failed = {.queue = "q", .state = JOBQ_STATE_FAILED};
    verb_claim_desc d = {.worker = 1, .number = 1, .limit = 1, .lanes = &lane, .lane_count = 1};

    memset(&r, 0, sizeof r);
    r.decision.state = JOBQ_STATE_READY;
    switch (n) {
    case 0: return verb_register(pg, conn, 0, "w", SECOND, NULL, 0, NULL, error);
    case 1: return verb_register(pg, conn, 1, NULL, SECOND, NULL, 0, NULL, error);
    case 2: return verb_register(pg, conn, 1, "\xff", SECOND, NULL, 0, NULL, error);
    case 3: return verb_register(pg, conn, 1, "w", 0, NULL, 0, NULL, error);
    case 4: return verb_register(pg, conn, 1, "w", INT64_MAX, NULL, 0, NULL, error);
    case 5: return verb_register(pg, conn, 1, "w", SECOND, null_names, 1, NULL, error);
    case 6: return verb_register(pg, conn, 1, "w", SECOND, bad_names, 9999, NULL, error);
    case 7: d.limit = 0; return verb_claim(pg, conn, &d, &batch, error);
    case 8: d.number = -1; return verb_claim(pg, conn, &d, &batch, error);
    case 9: d.lanes = NULL; return verb_claim(pg, conn, &d, &batch, error);
    case 10: return verb_recover(pg, conn, 1, 0, 1, &more, error);
    case 11: return verb_heartbeat(pg, conn, 1, 0, error);
    case 12: return verb_heartbeat(pg, conn, 1, INT64_MIN, error);
    case 13:
        r.decision.state = JOBQ_STATE_NONE;
        return verb_settle(pg, conn, &r, 1, NULL, error);
    case 14: r.decision.attempt = -1; return verb_settle(pg, conn, &r, 1, NULL, error);
    case 15: r.decision.delay_us = -5; return verb_settle(pg, conn, &r, 1, NULL, error);
    case 16: r.error = jobq_str_from("\xfe"); return verb_settle(pg, conn, &r, 1, NULL, error);
    case 17: r.payload = jobq_str_from("{,}"); return verb_settle(pg, conn, &r, 1, NULL, error);
    case 18: return jobq_pg_change(pg, conn, ONE(1), &(jobq_pg_changes){.run_at_us = -1}, NULL,
                                   error);
    case 19: return jobq_pg_change(pg, conn, ONE(1),
                                   &(jobq_pg_changes){.set_priority = true,
                                                      .priority = 10}, NULL, error);
    case 20: return jobq_pg_change(pg, conn, ONE(1), &(jobq_pg_changes){.target = NULL}, NULL,
                                   error);
    case 21: return jobq_pg_change(pg, conn, ONE(1), &(jobq_pg_changes){.target = "a b"}, NULL,
                                   error);
    case 22: return jobq_pg_queue_set(pg, conn, NULL, &(jobq_pg_queue_desc){.paused = JOBQ_PG_ON},
                                      error);
    case 23: return jobq_pg_queue_set(
        pg, conn, "q", &(jobq_pg_queue_desc){.kind = "", .paused = JOBQ_PG_ON}, error);
    case 24: return jobq_pg_queue_set(pg, conn, "", &(jobq_pg_queue_desc){.paused = JOBQ_PG_OFF},
                                      error);
    case 25: return jobq_pg_change(pg, conn, &failed, &(jobq_pg_changes){.target = "q"}, NULL,
                                   error);
    case 26: return jobq_pg_change(pg, conn, &failed,
                                   &(jobq_pg_changes){.set_priority = true,
                                                      .priority = 1}, NULL, error);
    case 27: return jobq_pg_change(pg, conn, &failed, &(jobq_pg_changes){.run_now = true}, NULL,
                                   error);
    case 28:
        return jobq_pg_change(pg, conn, ONE(1), &(jobq_pg_changes){.run_now = true, .target = "q"},
                              NULL, error);
    case 29:
        return jobq_pg_change(pg, conn, ONE(1), &(jobq_pg_changes){.target = "q", .priority = 1},
                              NULL, error);
    default:
        failed.state = JOBQ_STATE_READY;
        return jobq_pg_revive(pg, conn, &failed, NULL, error);
    }
}

static void the_other_verbs_refuse_nonsense(void **unused)
{
    static const char *const fields[] = {
        "worker", "name", "name", "lease_us", "lease_us", "queue", "queue_count", "limit", "number",
        "lanes", "number", "lease_us", "lease_us", "decision", "decision", "decision", "error",
        "payload", "run_at_us", "priority", "what", "target", "queue", "kind", "queue", "state",
        "state", "state", "what", "priority", "state"};
    jobq_pg_error error;
    char *before;
    size_t i;

    (void)unused;
    pg_empty(NULL);
    enqueue_count(2);
    RUN("BEGIN");
    before = everything();
    for (i = 0; i < COUNT(fields); i++) {
        expect_invalid("call", i, lone_call((int)i, db, &error), fields[i], &error, before);
        assert_int_equal(lone_call((int)i, db, NULL), JOBQ_ERROR_INVALID);
    }
    for (i = 0; i < COUNT(bad_queues); i++) {
        expect_invalid("queue_set", i, jobq_pg_queue_set(pg, db, bad_queues[i].queue,
                                                         &bad_queues[i].desc, &error),
                       bad_queues[i].field, &error, before);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.queue"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
    free(before);
    RUN("ROLLBACK");
}

static void ids_that_nobody_has_are_not_found(void **unused)
{
    static const int64_t ids[] = {-1, INT64_MIN, INT64_MAX, 999999, 0};
    jobq_pg_error error;
    jobq_error none;
    jobq_job job;
    size_t i;

    (void)unused;
    RUN("SELECT jobq.queue_set('q')");
    for (i = 0; i < COUNT(ids); i++) {
        assert_int_equal(jobq_pg_get(pg, db, ids[i], &job, &error), JOBQ_ERROR_NOT_FOUND);
        none = ids[i] == 0 ? JOBQ_ERROR_INVALID : JOBQ_ERROR_NOT_FOUND; /* 0 names no job */
        assert_int_equal(jobq_pg_cancel(pg, db, ONE(ids[i]), NULL, NULL, &error), none);
        assert_int_equal(jobq_pg_revive(pg, db, ONE(ids[i]), NULL, &error), none);
        assert_int_equal(jobq_pg_delete(pg, db, ONE(ids[i]), NULL, &error), none);
        assert_int_equal(jobq_pg_change(pg, db, ONE(ids[i]), &(jobq_pg_changes){.target = "q"},
                                        NULL, &error), none);
    }
}

/* X1, and handles that make no sense. */
static const struct {
    jobq_pg_desc desc;
    jobq_error code;
    const char *said; /* in the message */
} bad_handles[] = {
    {{.conninfo = "host=/nowhere"}, JOBQ_ERROR_CONNECTION, "/nowhere"},
    {{.conninfo = "nonsense"}, JOBQ_ERROR_CONNECTION, ""},
    {{.conninfo = "host="}, JOBQ_ERROR_CONNECTION, ""},
    {{.conninfo = "wrong_option=1"}, JOBQ_ERROR_INVALID, "known to libpq"},
    {{.schema = ""}, JOBQ_ERROR_INVALID, "schema"},
    {{.schema = "a-b"}, JOBQ_ERROR_INVALID, "schema"},
    {{.schema = "1a"}, JOBQ_ERROR_INVALID, "schema"},
    {{.schema = "a\"b"}, JOBQ_ERROR_INVALID, "schema"},
    {{.schema = "sch\xc3\xb6n"}, JOBQ_ERROR_INVALID, "schema"},
    {{.schema = "a234567890123456789012345678901234567890123456789"}, JOBQ_ERROR_INVALID, "48"},
    {{.pool_max = -1}, JOBQ_ERROR_INVALID, "pool_max"},
    {{.acquire_us = -1}, JOBQ_ERROR_INVALID, "acquire_us"},
    {{.patience_us = -1}, JOBQ_ERROR_INVALID, "patience_us"},
    {{.seal_name = ""}, JOBQ_ERROR_INVALID, "seal_name"},
    {{.seal_name = "a\"b"}, JOBQ_ERROR_INVALID, "seal_name"},
    {{.seal_name = "a2345678901234567890123456789012345678901234567890123456789012345"},
     JOBQ_ERROR_INVALID, "1 to 64"},
};

static void bad_handles_are_refused(void **unused)
{
    jobq_pg_error error;
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(bad_handles); i++) {
        jobq_pg *made = pg;
        jobq_error code = jobq_pg_open(&made, &bad_handles[i].desc, &error);
        if (code != bad_handles[i].code || made != NULL)
            fail_msg("line %d: %s: %s", (int)i, jobq_enum_name(JOBQ_ENUM_ERROR, code),
                     error.message);
        if (strstr(error.message, bad_handles[i].said) == NULL)
            fail_msg("line %d: %s", (int)i, error.message);
        assert_int_equal(jobq_pg_open(&made, &bad_handles[i].desc, NULL), code);
    }
    jobq_pg_close(NULL);
    jobq_pg_release(pg, NULL);
}

static jobq_outcome fine(jobq_call *call)
{
    (void)call;
    return JOBQ_OUTCOME_SUCCESS;
}

static const jobq_pg_handler bad_handlers[] = {
    {.queue = NULL, .kind = "k", .run = {fine}}, {.queue = "q", .kind = NULL, .run = {fine}},
    {.queue = "a b", .kind = "k", .run = {fine}}, {.queue = "q", .kind = "", .run = {fine}},
    {.queue = "q", .kind = "k", .run = {NULL}}};

static void bad_workers_are_refused(void **unused)
{
    static const jobq_pg_handler good = {.queue = "q", .kind = "k", .run = {fine}};
    jobq_pg_worker_desc d;
    jobq_pg_worker *w;
    jobq_pg_error error;
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(bad_handlers); i++) {
        d = work_of(&bad_handlers[i], 1);
        w = (jobq_pg_worker *)1;
        assert_int_equal(jobq_pg_worker_start(pg, &d, &w, &error), JOBQ_ERROR_INVALID);
        assert_null(w);
        assert_int_equal(jobq_pg_work(pg, &d, NULL), JOBQ_ERROR_INVALID);
    }
    d = work_of(NULL, 1);
    assert_int_equal(jobq_pg_worker_start(pg, &d, &w, &error), JOBQ_ERROR_INVALID);
    d = work_of(bad_handlers, 0);
    assert_int_equal(jobq_pg_worker_start(pg, &d, &w, &error), JOBQ_ERROR_INVALID);
    d = work_of(&good, 1);
    d.stats_us = JOBQ_NEVER;
    assert_int_equal(jobq_pg_worker_start(pg, &d, &w, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "stats_us");
    d = work_of(&good, 1);
    d.name = "B\xfcro";
    assert_int_equal(jobq_pg_worker_start(pg, &d, &w, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "name");
    jobq_pg_worker_free(NULL);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
}

/* ---- connections and transactions ------------------------------------------------------------ */

/* What the calls below say, and how many of them were well. */
static int try_all(PGconn *conn, jobq_error wanted, const char *said)
{
    jobq_pg_job job = plain_job();
    jobq_pg_filter f = {.queue = "q"};
    jobq_pg_queue_desc paused = {.paused = JOBQ_PG_ON};
    jobq_pg_error error;
    jobq_error code = JOBQ_OK;
    jobq_job there;
    char text[200];
    int n, good = 0;

    job.priority = 1;
    for (n = 0; n < 10; n++) {
        memset(&error, 0, sizeof error);
        switch (n) {
        case 0: code = jobq_pg_enqueue(pg, conn, &job, NULL, &error); break;
        case 1: code = jobq_pg_enqueue_many(pg, conn, &job, 1, NULL, &error); break;
        case 2: code = jobq_pg_enqueue_many(pg, conn, &job, 1, JOBQ_PG_BY_COPY, &error); break;
        case 3: code = jobq_pg_cancel(pg, conn, &f, NULL, NULL, &error); break;
        case 4: code = jobq_pg_queue_set(pg, conn, "q", NULL, &error); break;
        case 5: code = jobq_pg_get(pg, conn, 999999, &there, &error); break;
        case 6: code = jobq_pg_explain(pg, conn, 999999, text, sizeof text, &error); break;
        case 7: code = jobq_pg_check(pg, conn, &error); break;
        case 8: code = jobq_pg_change(pg, conn, ONE(999999), &(jobq_pg_changes){.run_now = true},
                                      NULL, &error); break;
        default: code = jobq_pg_queue_set(pg, conn, "q", &paused, &error); break;
        }
        if (code == JOBQ_OK || code == JOBQ_ERROR_NOT_FOUND) {
            good++;
        } else if (wanted == JOBQ_OK || code != wanted || strstr(error.message, said) == NULL) {
            fail_msg("call %d: %s: %s", n, jobq_enum_name(JOBQ_ENUM_ERROR, code), error.message);
        }
    }
    return good;
}

/* A state of a connection, and what every call says in it. */
static const struct {
    const char *prepare, *after;
    jobq_error code;
    const char *said;
    int good; /* how many of the ten calls work there */
} situations[] = {
    {"BEGIN; SELECT broken", "ROLLBACK", JOBQ_ERROR_INVALID,
     "has an aborted transaction: roll it back", 0},
    {"SET client_encoding = 'LATIN1'", "SET client_encoding = 'UTF8'", JOBQ_ERROR_INVALID,
     "PQsetClientEncoding", 0},
    {"SET client_encoding = 'UTF8'", "", JOBQ_OK, "", 10},
    {"BEGIN ISOLATION LEVEL REPEATABLE READ", "COMMIT", JOBQ_OK, "", 10},
    {"BEGIN ISOLATION LEVEL SERIALIZABLE", "COMMIT", JOBQ_OK, "", 10},
    {"BEGIN; SET LOCAL search_path = nowhere", "COMMIT", JOBQ_OK, "", 10},
    {"SET default_transaction_isolation = 'serializable'", "RESET ALL", JOBQ_OK, "", 10},
    {"SET default_transaction_read_only = on", "RESET ALL", JOBQ_ERROR_RETRYABLE,
     "read-only", 3},
    {"SET statement_timeout = '10s'; SET lock_timeout = '1s'", "RESET ALL", JOBQ_OK, "", 10},
    {"SET standard_conforming_strings = off", "RESET ALL", JOBQ_OK, "", 10},
    {"SET DateStyle = 'German'; SET IntervalStyle = 'sql_standard'; SET TimeZone = 'Asia/Tokyo'",
     "RESET ALL", JOBQ_OK, "", 10},
};

static void every_situation_is_answered(void **unused)
{
    PGconn *conn = PQconnectdb(server());
    size_t i;

    (void)unused;
    pg_empty(NULL);
    PQclear(PQexec(conn, "SET client_min_messages = error"));
    RUN("SELECT jobq.queue_set('q', kinds => '{k}')");
    for (i = 0; i < COUNT(situations); i++) {
        int good;
        PQclear(PQexec(conn, situations[i].prepare));
        good = try_all(conn, situations[i].code, situations[i].said);
        if (good != situations[i].good)
            fail_msg("%s: %d were well", situations[i].prepare, good);
        PQclear(PQexec(conn, situations[i].after));
        assert_int_equal(PQtransactionStatus(conn), PQTRANS_IDLE);
    }
    assert_int_equal(PQenterPipelineMode(conn), 1);
    assert_int_equal(try_all(conn, JOBQ_ERROR_INVALID, "pipeline"), 0);
    assert_int_equal(PQexitPipelineMode(conn), 1);
    assert_int_equal(PQsendQuery(conn, "SELECT pg_sleep(0.1)"), 1);
    assert_int_equal(try_all(conn, JOBQ_ERROR_INVALID, "busy"), 0);
    PQclear(PQgetResult(conn));
    PQclear(PQgetResult(conn));
    assert_int_equal(try_all(conn, JOBQ_OK, ""), 10);
    RUN("SELECT pg_terminate_backend(%d)", PQbackendPID(conn));
    PQclear(PQexec(conn, "SELECT 1"));
    assert_int_equal(try_all(conn, JOBQ_ERROR_CONNECTION, ""), 0);
    PQfinish(conn);
}

/* A prepared transaction takes what wakes nobody; NOTIFY would make it fail. */
static void a_prepared_transaction_holds_a_quiet_job(void **unused)
{
    PGconn *conn = PQconnectdb(server());
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    PGresult *res;
    bool able;

    (void)unused;
    pg_empty(NULL);
    enqueue_count(1);
    register_worker(101, 600 * SECOND);
    RUN("INSERT INTO jobq.sleeper SELECT id, 101 FROM jobq.queue");
    job.quiet = true;
    PQclear(PQexec(conn, "BEGIN"));
    assert_int_equal(jobq_pg_enqueue(pg, conn, &job, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(pg, conn, &job, 1, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(pg, conn, &job, 1, JOBQ_PG_BY_COPY, &error), JOBQ_OK);
    res = PQexec(conn, "PREPARE TRANSACTION 'jobq_test'");
    able = PQresultStatus(res) == PGRES_COMMAND_OK;
    if (!able) assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "55000");
    PQclear(res);
    PQfinish(conn);
    if (!able) skip(); /* max_prepared_transactions is 0 on a server that is not ours */
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 1);
    RUN("COMMIT PREPARED 'jobq_test'");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 4);
}

/* A schema that is not there, is half there, or was made by another version. */
static void a_wrong_schema_is_named(void **unused)
{
    jobq_pg_desc desc = {.conninfo = server(), .schema = "jobq_nowhere"};
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    jobq_pg *other;

    (void)unused;
    assert_int_equal(jobq_pg_open(&other, &desc, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_check(other, NULL, &error), JOBQ_ERROR_VERSION);
    assert_non_null(strstr(error.message, "run jobq_pg_migrate"));
    assert_int_equal(jobq_pg_enqueue(other, NULL, &job, NULL, &error), JOBQ_ERROR_VERSION);
    assert_non_null(strstr(error.message, "run jobq_pg_migrate"));
    assert_int_equal(jobq_pg_enqueue_many(other, NULL, &job, 1, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_VERSION);
    assert_int_equal(jobq_pg_cancel(other, NULL, ONE(1), NULL, NULL, &error), JOBQ_ERROR_VERSION);
    jobq_pg_close(other);
}

/* A role whose default is SERIALIZABLE: sixteen first uses of one name and one key at once, by the
 * pool, end in one job and no error. */
static void a_strict_role_enqueues_at_once(void **unused)
{
    char role[64];
    pid_t pids[8];
    int i, status;

    (void)unused;
    pg_empty(NULL);
    snprintf(role, sizeof role, "jobq_strict_%d", (int)getpid());
    RUN("CREATE ROLE %s LOGIN SUPERUSER", role);
    RUN("ALTER ROLE %s SET default_transaction_isolation = 'serializable'", role);
    for (i = 0; i < 8; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            char conninfo[512];
            jobq_pg_desc desc = {.conninfo = conninfo, .schema = schema};
            jobq_pg_job job = plain_job();
            jobq_pg *mine;
            jobq_error code;
            int n;
            snprintf(conninfo, sizeof conninfo, "%s user=%s", server(), role);
            if (jobq_pg_open(&mine, &desc, NULL)) _exit(2);
            for (n = 0; n < 20; n++) {
                char name[16];
                snprintf(name, sizeof name, "name%d", n);
                job.queue = job.key = name;
                code = jobq_pg_enqueue(mine, NULL, &job, NULL, NULL);
                if (code != JOBQ_OK && code != JOBQ_ERROR_EXISTS) _exit(1);
            }
            _exit(0);
        }
    }
    for (i = 0; i < 8; i++) {
        waitpid(pids[i], &status, 0);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 2) status = -1; /* that server wants a password */
        if (status != -1) assert_int_equal(WEXITSTATUS(status), 0);
    }
    RUN("DROP ROLE %s", role);
    if (status == -1) skip();
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 20);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_jobs_are_refused_every_way),
        cmocka_unit_test(the_limits_themselves_are_taken),
        cmocka_unit_test(bad_filters_are_refused),
        cmocka_unit_test(the_other_verbs_refuse_nonsense),
        cmocka_unit_test(ids_that_nobody_has_are_not_found),
        cmocka_unit_test(bad_handles_are_refused),
        cmocka_unit_test(bad_workers_are_refused),
        cmocka_unit_test(every_situation_is_answered),
        cmocka_unit_test(a_prepared_transaction_holds_a_quiet_job),
        cmocka_unit_test(a_wrong_schema_is_named),
        cmocka_unit_test(a_strict_role_enqueues_at_once),
    };

    return cmocka_run_group_tests_name("badinput", tests, badinput_up, pg_down);
}
