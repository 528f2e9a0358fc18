/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * A worker as its host program sees it: statistics, health, hooks; handlers that misbehave; servers
 * that are not Postgres.
 */
#include "proxy.h"

#include <arpa/inet.h>

/* What hooks said, in words. */
static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static char said[64][200];
static int said_count, befores;

static int start_over(void **state)
{
    SET(befores, 0);
    SET(said_count, 0);
    SET(proxy.refuse, 0);
    proxy_fault_at(PROXY_NONE, 0);
    fresh(state);
    RUN("INSERT INTO jobq.queue (name, backoff_base_us, backoff_cap_us) VALUES ('q', 1000, 2000)");
    return 0;
}

static jobq_pg *open_through_proxy(void)
{
    jobq_pg_desc d;
    jobq_pg_error error;
    jobq_pg *made;

    memset(&d, 0, sizeof d);
    d.conninfo = proxy.conninfo;
    d.schema = schema;
    d.log = quiet_log;
    if (jobq_pg_open(&made, &d, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return made;
}

/* Waits for a worker's end, and leaves it to be looked at and freed. */
static jobq_error ends(jobq_pg_worker *worker)
{
    int i;

    for (i = 0; i < WORKERS_MAX; i++) {
        if (workers[i] == worker) workers[i] = NULL;
    }
    return jobq_pg_worker_wait(worker, NULL);
}

/* Queue o with one partition, and messages in it. */
static void open_box(int messages)
{
    jobq_pg_error error;
    jobq_pg_message m;

    if (jobq_pg_outbox_register(pg, NULL, "o", 1, NULL, &error) != JOBQ_OK) {
        fail_msg("%s", error.message);
    }
    memset(&m, 0, sizeof m);
    m.queue = "o";
    while (messages-- > 0) {
        if (jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error) != JOBQ_OK) {
            fail_msg("%s", error.message);
        }
    }
}

/* -- handlers -- */

static jobq_outcome takes_10_ms(jobq_call *call)
{
    (void)call;
    ADD(runs);
    nap_us(10000);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Until the gate opens, whatever it is asked. */
/* -- statistics -- */

static void work_fills_the_statistics(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", takes_10_ms);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_stats stats;
    jobq_pg_error error;

    (void)unused;
    memset(&stats, 0xff, sizeof stats);
    d.stats = &stats;
    enqueue_count(7);
    d.loop.until = JOBQ_UNTIL_EMPTY;
    if (jobq_pg_work(pg, &d, &error) != JOBQ_OK) fail_msg("%s", error.message);
    assert_int_equal(stats.jobs.started, 7);
    assert_int_equal(stats.jobs.succeeded, 7);
    assert_int_equal(stats.messages.delivered, 0);
    assert_in_range(stats.handler_us, 70000, 7 * 10 * SECOND);
}

/* -- health -- */

/* Waits until the worker's health is this. */
static bool becomes_healthy(jobq_pg_worker *w, jobq_error wanted, jobq_pg_health *health)
{
    int64_t until = mono_us() + 30 * SECOND;

    while (jobq_pg_worker_health(w, JOBQ_PG_ALL, health) != wanted) {
        if (mono_us() > until) return false;
        nap_us(5000);
    }
    return true;
}

static void health_tells_of_a_worker_that_works(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", holds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_worker *w;
    jobq_pg_health health;

    (void)unused;
    enqueue_count(1);
    d.loop.lease_us = 60 * SECOND; /* so no answer is late */
    w = start(&d);
    assert_true(reaches(20, &runs, 1));
    assert_true(becomes_healthy(w, JOBQ_OK, &health));
    assert_int_equal(jobq_pg_worker_health(w, JOBQ_PG_ALL, NULL), JOBQ_OK);
    assert_true(health.worker == number("SELECT id FROM jobq.worker"));
    assert_true(health.connected && health.hears && !health.stopping);
    assert_int_equal(health.running, 1);
    assert_int_equal(health.threads, 4);
    assert_int_equal(health.abandoned, 0);
    assert_int_equal(health.error_us, -1);
    assert_string_equal(health.error, "");
    assert_in_range(health.silent_us, 0, d.loop.lease_us);
    assert_in_range(health.lease_us, 1, d.loop.lease_us);
    assert_true(health.pool_open >= health.pool_idle && health.pool_open >= 1);
    SET(gate, 1);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
    jobq_pg_worker_stop(w);
    ends(w);
    assert_int_equal(jobq_pg_worker_health(w, JOBQ_PG_ALL, &health), JOBQ_ERROR_DEAD);
    assert_true(health.stopping && !health.connected && !health.hears && health.worker == 0);
    jobq_pg_worker_free(w);
}

static void health_tells_of_a_server_that_is_away(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", takes_10_ms);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg *handle = open_through_proxy();
    jobq_pg_worker *w;
    jobq_pg_health health;
    int tries;

    (void)unused;
    d.name = "away";
    d.loop.lease_us = (check_slow() ? 10 : 3) * SECOND; /* it is waited for */
    w = start_on(handle, &d);
    assert_true(becomes_healthy(w, JOBQ_OK, &health));
    SET(proxy.refuse, 1);
    RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'job_ away'");
    assert_true(becomes_healthy(w, JOBQ_ERROR_CONNECTION, &health)); /* its lease has run out */
    assert_true(health.lease_us == 0 && !health.connected && !health.hears);
    assert_true(health.silent_us < 0 || health.silent_us >= d.loop.lease_us);
    assert_true(strlen(health.error) > 0);
    assert_in_range(health.error_us, 0, 30 * SECOND);
    for (tries = 0; health.late_us > 0 && tries < 1000; tries++) { /* its thread is not stuck */
        nap_us(5000);
        jobq_pg_worker_health(w, JOBQ_PG_ALL, &health);
    }
    assert_true(tries < 1000);
    SET(proxy.refuse, 0);
    assert_true(becomes_healthy(w, JOBQ_OK, &health));
    assert_true(health.connected);
    assert_true(health.error[0] == '\0' && health.error_us == -1); /* it is over */
    stop(w);
    jobq_pg_close(handle);
}

static void *opens_the_gate(void *unused)
{
    nap_us(SECOND / 2);
    SET(gate, 1);
    return unused;
}

static void health_tells_of_handlers_that_are_stuck(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", holds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;
    jobq_pg_health health;
    pthread_t thread;

    (void)unused;
    job.timeout_us = 100000;
    job.max_attempts = 1;
    d.loop.threads = 2;
    enqueue_with(&job);
    enqueue_with(&job);
    w = start(&d);
    assert_true(becomes_healthy(w, JOBQ_ERROR_TIMEOUT, &health));
    assert_int_equal(health.abandoned, 2);
    assert_non_null(strstr(health.error, "stuck"));
    pthread_create(&thread, NULL, opens_the_gate, NULL);
    assert_int_equal(ends(w), JOBQ_ERROR_TIMEOUT);
    pthread_join(thread, NULL);
    do nap_us(10000);
    while (jobq_pg_worker_health(w, JOBQ_PG_ALL,
                                 &health) == JOBQ_ERROR_TIMEOUT && health.abandoned > 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 2);
    jobq_pg_worker_free(w);
}

/* How often this thread has slept. */
static long sleeps(void)
{
    FILE *status = fopen("/proc/thread-self/status", "r");
    char line[200];
    long count = -1;

    assert_non_null(status);
    while (fgets(line, sizeof line, status) != NULL && count < 0)
        sscanf(line, "voluntary_ctxt_switches: %ld", &count);
    fclose(status);
    assert_true(count >= 0);
    return count;
}

/* A caller that waits for a worker without a server does not wake up again and again. */
static void waiting_until_ready_is_one_sleep(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", holds);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg *handle = open_through_proxy();
    jobq_pg_worker *w;
    long before;

    (void)unused;
    SET(proxy.refuse, 1);
    w = start_on(handle, &d);
    before = sleeps();
    assert_int_equal(jobq_pg_worker_ready(w, SECOND), JOBQ_ERROR_CONNECTION);
    assert_true(sleeps() - before < 50);
    SET(proxy.refuse, 0);
    assert_int_equal(jobq_pg_worker_ready(w, 60 * SECOND), JOBQ_OK);
    stop(w);
    jobq_pg_close(handle);
}

/* -- hooks -- */

static void hook_before(void *user, const jobq_pg_report *r)
{
    bool good = user == &befores && r->queue.len == 1 &&
                (r->call == NULL) != (r->delivery == NULL) && r->outcome == JOBQ_OUTCOME_NONE &&
                r->state == JOBQ_STATE_NONE && r->duration_us == 0 && r->error.ptr == NULL;

    ADD(befores);
    if (good && r->call != NULL)
        good = jobq_str_equal(r->call->payload, jobq_str_from("{\"n\": 1}"));
    if (good && r->delivery != NULL) good = r->delivery->count > 0;
    if (!good) ADD(gate); /* no assertion may fail here */
}

/* One line of what was reported. */
static void say(const char *word, const jobq_pg_report *r)
{
    const char *what = r->call != NULL ? jobq_enum_name(JOBQ_ENUM_OUTCOME, r->outcome) : "messages";
    int at;

    pthread_mutex_lock(&said_lock);
    at = GET(said_count);
    if (at < 64) {
        snprintf(said[at], sizeof said[0], "%s %.*s %s %s%s %.*s", word, (int)r->queue.len,
                 r->queue.ptr, what, r->call != NULL ? jobq_enum_name(JOBQ_ENUM_STATE,
                                                                      r->state) : "",
                 r->message != NULL ? (r->message->seq == 4 ? "4" : "other") : "",
                 (int)r->error.len, r->error.len > 0 ? r->error.ptr : "");
        ADD(said_count);
    }
    pthread_mutex_unlock(&said_lock);
}

static void hook_after(void *user, const jobq_pg_report *r)
{
    (void)user;
    if (r->call != NULL) jobq_call_stopping(r->call, NULL); /* pointless, and harmless */
    else jobq_delivery_stopping(r->delivery, NULL);
    say(r->duration_us > 0 ? "after" : "at once", r);
}

static void hook_failed(void *user, const jobq_pg_report *r)
{
    (void)user;
    say("failed", r);
}

static jobq_pg_worker_desc hooked(const jobq_pg_handler *handlers, size_t count)
{
    jobq_pg_worker_desc d = work_of(handlers, count);

    d.hooks.before = hook_before;
    d.hooks.after = hook_after;
    d.hooks.failed = hook_failed;
    d.hooks.user = &befores;
    return d;
}

/* What the hooks said, in order. */
static void expect_said(const char *const *lines, int count)
{
    int i;

    assert_true(reaches(20, &said_count, count));
    for (i = 0; i < count; i++) assert_string_equal(said[i], lines[i]);
    assert_int_equal(GET(said_count), count);
}

static jobq_outcome stumbles(jobq_call *call)
{
    nap_us(1000);
    if (call->job.stage > 0) return JOBQ_OUTCOME_SUCCESS;
    if (ADD(runs) == 1) return JOBQ_OUTCOME_SUCCESS;
    if (GET(runs) == 2) return JOBQ_OUTCOME_SNOOZE;
    jobq_call_error(call, jobq_str_from("no luck"));
    return GET(runs) == 5 ? JOBQ_OUTCOME_DISCARD : JOBQ_OUTCOME_RETRY;
}

static void hooks_hear_of_each_run(void **unused)
{
    static const char *const lines[] = {
        "after q success ready ", "after q success succeeded ", "after q snooze ready ",
        "after q retry ready no luck", "after q retry failed Max retries (2) exceeded: no luck",
        "failed q retry failed Max retries (2) exceeded: no luck",
        "after q discard failed no luck", "failed q discard failed no luck"};
    jobq_pg_handler h = handler_of("q", "k", stumbles);
    jobq_pg_worker_desc d = hooked(&h, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;

    (void)unused;
    d.loop.threads = 1;
    job.stages = 2;
    job.max_attempts = 2;
    enqueue_with(&job);
    w = start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history"));
    job.stages = 1;
    enqueue_with(&job);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.failed"));
    enqueue_with(&job);
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.failed"));
    stop(w);
    expect_said(lines, 8);
    assert_int_equal(GET(befores), 6);
    assert_int_equal(GET(gate), 0);
}

/* An overrun is told of by another thread; what the handler says later, nobody hears. */
static void hooks_hear_of_an_overrun_once(void **unused)
{
    static const char *const lines[] = {
        "after q none failed Max retries (1) exceeded: the handler ran out of time",
        "failed q none failed Max retries (1) exceeded: the handler ran out of time"};
    jobq_pg_handler h = handler_of("q", "k", holds);
    jobq_pg_worker_desc d = hooked(&h, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *w;

    (void)unused;
    d.loop.threads = 1;
    job.timeout_us = 100000;
    job.max_attempts = 1;
    enqueue_with(&job);
    w = start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.failed"));
    assert_true(reaches(20, &said_count, 2));
    SET(gate, 1);
    stop(w);
    expect_said(lines, 2);
    assert_int_equal(GET(befores), 1);
}

/* At a stop, too, each before has its after, though no thread is left to say so. */
static void hooks_hear_of_who_outlives_the_grace(void **unused)
{
    static const char *const lines[] = {"after q none ready "};
    jobq_pg_handler h = handler_of("q", "k", holds);
    jobq_pg_worker_desc d = hooked(&h, 1);
    jobq_pg_worker *w;

    (void)unused;
    d.loop.threads = 1;
    enqueue_count(1);
    w = start(&d);
    assert_true(reaches(20, &runs, 1));
    jobq_pg_worker_stop(w);
    jobq_pg_worker_stop(w);
    ends(w);
    expect_said(lines, 1);
    assert_int_equal(GET(befores), 1);
    SET(gate, 1);
    nap_us(50000);
    jobq_pg_worker_free(w);
}

/* Message 4 is refused. */
static jobq_result refuses_4(jobq_delivery *d, const jobq_message *m)
{
    nap_us(1000);
    ADD(runs);
    if (m->seq != 4) return JOBQ_RESULT_SUCCESS;
    jobq_delivery_error(d, jobq_str_from("never this one"));
    return JOBQ_RESULT_REJECT;
}

static jobq_result holds_messages(jobq_delivery *d, const jobq_message *m)
{
    (void)d;
    if (m->seq != 4) return JOBQ_RESULT_SUCCESS;
    ADD(runs);
    while (!GET(gate)) nap_us(2000);
    return JOBQ_RESULT_SUCCESS;
}

static jobq_pg_worker_desc hooked_messages(jobq_pg_receiver *r, jobq_message_handler each)
{
    jobq_pg_worker_desc d = hooked(NULL, 0);

    memset(r, 0, sizeof *r);
    r->queue = "o";
    r->each = each;
    r->tuning.retry.base_us = 20000;
    r->tuning.retry.cap_us = 100000;
    d.receivers = r;
    d.receiver_count = 1;
    return d;
}

static void hooks_hear_of_messages(void **unused)
{
    static const char *const lines[] = {"after o messages  ",
                                        "failed o messages 4 never this one"};
    jobq_pg_receiver r;
    jobq_pg_worker_desc d = hooked_messages(&r, refuses_4);
    jobq_pg_stats stats;
    jobq_pg_error error;
    int own;

    (void)unused;
    d.stats = &stats;
    for (own = 0; own < 2; own++) {
        start_over(NULL);
        open_box(5);
        r.transactional = own != 0;
        d.loop.until = JOBQ_UNTIL_EMPTY;
        if (jobq_pg_work(pg, &d, &error) != JOBQ_OK) fail_msg("%s", error.message);
        expect_said(lines, 2);
        assert_int_equal(GET(befores), 1);
        assert_int_equal(GET(gate), 0);
        assert_int_equal(stats.messages.dead, 1);
        assert_true(stats.handler_us >= 5000);
        assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter WHERE seq = 4"), 1);
    }
}

static void hooks_hear_of_overrun_messages(void **unused)
{
    jobq_pg_receiver r;
    jobq_pg_worker_desc d = hooked_messages(&r, holds_messages);
    jobq_pg_worker *w;
    int i;

    (void)unused;
    open_box(5);
    RUN("UPDATE jobq.queue SET max_attempts = 1 WHERE name = 'o'");
    r.tuning.lease_us = 600000;
    r.tuning.budget_us = 150000;
    w = start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.dead_letter WHERE seq = 4"));
    SET(gate, 1);
    assert_true(becomes(20, 5, "SELECT acked FROM jobq.partition"));
    stop(w);
    for (i = 0; i < GET(said_count) && strncmp(said[i], "failed", 6) != 0;) i++;
    assert_in_range(i, 1, GET(said_count) - 1);
    assert_string_equal(said[i], "failed o messages 4 Max retries (1) exceeded: lease expired");
    assert_string_equal(said[i - 1], "after o messages  lease expired");
    assert_int_equal(GET(said_count), GET(befores) + 1); /* each before has its after */
}

/* -- handlers that misbehave -- */

static jobq_outcome ends_its_thread(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn;

    if (ADD(runs) > 3) return JOBQ_OUTCOME_SUCCESS;
    jobq_call_delay(call, 1000);
    if (GET(runs) > 1) { /* with a transaction that nobody else will end */
        conn = jobq_pg_call_conn(call, &error);
        PQclear(PQexec(conn, "BEGIN"));
        PQclear(PQexec(conn, "SELECT pg_current_xact_id()"));
        jobq_call_result(call, jobq_str_from("1"), false);
    }
    pthread_exit(NULL);
}

static void a_handler_that_ends_its_thread_has_failed(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", ends_its_thread);
    jobq_pg_worker_desc d = hooked(&h, 1);
    jobq_pg_worker *w;

    (void)unused;
    d.loop.threads = 1;
    enqueue_count(1);
    w = start(&d);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history WHERE attempt = 4"));
    expect_text("the handler ended its thread", "SELECT errors->2->>'error' FROM jobq.history");
    assert_int_equal(number("SELECT count(*) FROM pg_stat_activity"
                            " WHERE state LIKE 'idle in%%' AND backend_xid IS NOT NULL"), 0);
    assert_int_equal(jobq_pg_worker_health(w, JOBQ_PG_ALL, NULL), JOBQ_OK);
    stop(w);
    assert_string_equal(said[0], "after q none ready the handler ended its thread");
    assert_int_equal(GET(said_count), 4);
    assert_int_equal(GET(befores), 4);
}

static jobq_result ends_its_thread_too(jobq_delivery *d, const jobq_message *m)
{
    PGconn *conn = jobq_pg_delivery_conn(d);

    if (m->seq != 4 || ADD(runs) > 2) return JOBQ_RESULT_SUCCESS;
    if (conn != NULL) PQclear(PQexec(conn, "SELECT pg_current_xact_id()"));
    pthread_exit(NULL);
}

static void a_receiver_that_ends_its_thread_has_failed(void **unused)
{
    jobq_pg_receiver r;
    jobq_pg_worker_desc d = hooked_messages(&r, ends_its_thread_too);
    jobq_pg_worker *w;
    int own;

    (void)unused;
    d.loop.threads = 1;
    for (own = 0; own < 2; own++) {
        start_over(NULL);
        open_box(5);
        r.transactional = own != 0;
        w = start(&d);
        assert_true(becomes(20, 5, "SELECT acked FROM jobq.partition"));
        stop(w);
        assert_true(GET(runs) >= 3);
        assert_string_equal(said[0], "after o messages  the handler ended its thread");
        assert_int_equal(GET(said_count), GET(befores));
        assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 0);
    }
}

static char long_error[10 * 1024 * 1024];

static jobq_outcome says_10_mb(jobq_call *call)
{
    jobq_str text = {long_error, sizeof long_error};

    jobq_call_error(call, text);
    return JOBQ_OUTCOME_DISCARD;
}

static void ten_megabytes_of_error_are_cut_at_a_character(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", says_10_mb);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_error error;
    size_t i;

    (void)unused;
    for (i = 0; i + 3 <= sizeof long_error; i += 3) memcpy(long_error + i, "\xe2\x82\xac", 3);
    enqueue_count(1);
    d.loop.until = JOBQ_UNTIL_EMPTY;
    if (jobq_pg_work(pg, &d, &error) != JOBQ_OK) fail_msg("%s", error.message);
    assert_int_equal(number("SELECT octet_length(errors->0->>'error') FROM jobq.failed"),
                     JOBQ_ERROR_MAX / 3 * 3);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_over, all_stop)

/* ---- servers that only speak the protocol of Postgres ---------------------------------------- */

/* What a server reports at the start of a connection, and the statements that it then gets. */
typedef struct pretended {
    int listener;
    const char *server_version, *crdb_version;
    int statements;
} pretended;

static size_t put_report(char *out, const char *name, const char *value)
{
    size_t names = strlen(name) + 1, values = value == NULL ? 0 : strlen(value) + 1;
    uint32_t size = htonl((uint32_t)(4 + names + values));

    if (value == NULL) return 0;
    out[0] = 'S';
    memcpy(out + 1, &size, 4);
    memcpy(out + 5, name, names);
    memcpy(out + 5 + names, value, values);
    return 5 + names + values;
}

/* Lets one client in, and closes the connection at its first message: a statement, or its leave. */
static void *pretends(void *arg)
{
    pretended *p = arg;
    char in[2000], out[1000] = "R\0\0\0\10\0\0\0";
    size_t len = 9;
    int client = accept(p->listener, NULL, NULL);

    if (recv(client, in, sizeof in, 0) <= 0) return NULL;
    len += put_report(out + len, "server_version", p->server_version);
    len += put_report(out + len, "crdb_version", p->crdb_version);
    len += put_report(out + len, "in_hot_standby", "off"); /* or libpq itself asks for it */
    memcpy(out + len, "Z\0\0\0\5I", 6);
    send(client, out, len + 6, MSG_NOSIGNAL);
    if (recv(client, in, 1, 0) == 1) p->statements = in[0] != 'X';
    close(client);
    return NULL;
}

/* What jobq_pg_open says of such a server. */
static jobq_error open_pretended(pretended *p, jobq_pg_error *error)
{
    struct sockaddr_in at;
    socklen_t size = sizeof at;
    char conninfo[120];
    jobq_pg_desc d;
    jobq_error code;
    pthread_t thread;
    jobq_pg *made;

    memset(&d, 0, sizeof d);
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    p->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(p->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(p->listener, 1), 0);
    assert_int_equal(getsockname(p->listener, (struct sockaddr *)&at, &size), 0);
    snprintf(conninfo, sizeof conninfo, "host=127.0.0.1 port=%d user=x dbname=x sslmode=disable "
             "gssencmode=disable", ntohs(at.sin_port));
    d.conninfo = conninfo;
    pthread_create(&thread, NULL, pretends, p);
    code = jobq_pg_open(&made, &d, error);
    jobq_pg_close(made);
    pthread_join(thread, NULL);
    close(p->listener);
    return code;
}

static void other_servers_are_refused_before_a_statement(void **unused)
{
    static const struct {
        const char *server_version, *crdb_version, *sentence;
    } rows[] = {
        {"13.0.0", "CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu, built 2024/05/15 21:28:29, "
         "go1.22.2 X:nocoverageredesign)", "the server is CockroachDB, and jobq needs PostgreSQL"},
        {"13.0.0", "CockroachDB OSS v21.2.17 (x86_64-unknown-linux-gnu, built 2022/10/10 12:21:07, "
         "go1.16.6)", "the server is CockroachDB, and jobq needs PostgreSQL"},
        {"15.2-YB-2.25.1.0-b0", NULL, "the server is YugabyteDB, and jobq needs PostgreSQL"},
        {"11.2-YB-2.13.1.0-b0", NULL, "the server is YugabyteDB, and jobq needs PostgreSQL"},
        {"PostgreSQL 11.2-YB-2.13.1.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 12.0.1 "
         "(https://github.com/yugabyte/llvm-project.git bdb147e675d8c87cee72cc1f87c4b82855977d94), "
         "64-bit", NULL, "the server is YugabyteDB, and jobq needs PostgreSQL"},
        {"13.14 (Debian 13.14-1.pgdg120+2)", NULL, "server version 13 is too old: 14 or newer"},
        {"15.6 (Debian 15.6-0+deb12u1)", NULL, NULL},
        {"14.11", NULL, NULL},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        pretended p = {-1, rows[i].server_version, rows[i].crdb_version, 0};
        jobq_pg_error error;
        jobq_error code = open_pretended(&p, &error);
        assert_int_equal(p.statements, rows[i].sentence == NULL);
        assert_int_equal(code, rows[i].sentence == NULL ? JOBQ_ERROR_CONNECTION
                                                        : JOBQ_ERROR_VERSION);
        if (rows[i].sentence != NULL && strstr(error.message, rows[i].sentence) != error.message)
            fail_msg("%s: %s", rows[i].server_version, error.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(work_fills_the_statistics),
        TEST(health_tells_of_a_worker_that_works),
        TEST(health_tells_of_a_server_that_is_away),
        TEST(health_tells_of_handlers_that_are_stuck),
        TEST(waiting_until_ready_is_one_sleep),
        TEST(hooks_hear_of_each_run),
        TEST(hooks_hear_of_an_overrun_once),
        TEST(hooks_hear_of_who_outlives_the_grace),
        TEST(hooks_hear_of_messages),
        TEST(hooks_hear_of_overrun_messages),
        TEST(a_handler_that_ends_its_thread_has_failed),
        TEST(a_receiver_that_ends_its_thread_has_failed),
        TEST(ten_megabytes_of_error_are_cut_at_a_character),
        TEST(other_servers_are_refused_before_a_statement),
    };

    return cmocka_run_group_tests(tests, pg_and_proxy_up, pg_and_proxy_down);
}
