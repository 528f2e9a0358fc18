/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * One worker for several schemas: shared threads, turns, outages, stops and stuck handlers.
 */
#include "proxy.h"

static jobq_pg *other;     /* a handle on a second schema of this program's own */
static char schemas[2][40];
static int ran[2], at_once, most, stuck, go, received, misled, complaints;

/* A number of one of the two schemas. */
static long number_in(int which, const char *query)
{
    long value;

    strcpy(schema, schemas[which]);
    value = number("%s", query);
    strcpy(schema, schemas[0]);
    return value;
}

static bool becomes_in(int which, long wanted, const char *query)
{
    bool good;

    strcpy(schema, schemas[which]);
    good = becomes(20, wanted, query);
    strcpy(schema, schemas[0]);
    return good;
}

/* Enqueues that many jobs; their payload says of which schema they are. */
static void enqueue_in(int which, const char *kind, int count)
{
    jobq_pg_error error;

    while (count-- > 0) {
        jobq_pg_job job = plain_job();
        job.kind = kind;
        job.payload = jobq_str_from(which == 0 ? "0" : "1");
        if (strcmp(kind, "k") == 0) job.timeout_us = 60 * SECOND;
        if (jobq_pg_enqueue(which == 0 ? pg : other, NULL, &job, NULL, &error) != JOBQ_OK)
            fail_msg("%s", error.message);
    }
}

/* ---- handlers -------------------------------------------------------------------------------- */

/* Also compares the schema that jobq_pg_call_handle names with that of the payload. */
static void count_run(const jobq_call *call)
{
    int which = call->payload.ptr[0] == '1';
    const char *named = jobq_pg_schema(jobq_pg_call_handle(call)); /* in quotes */

    if (strncmp(named + 1, schemas[which], strlen(schemas[which])) != 0) ADD(misled);
    ADD(ran[which]);
}

static jobq_outcome brief(jobq_call *call)
{
    int now = ADD(at_once), seen = GET(most);

    while (now > seen &&
           !__atomic_compare_exchange_n(&most, &seen, now, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {}
    nap_us(2000);
    count_run(call);
    __atomic_sub_fetch(&at_once, 1, __ATOMIC_SEQ_CST);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome until_told(jobq_call *call)
{
    count_run(call);
    while (!GET(go)) nap_us(1000);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome never_ends(jobq_call *call)
{
    (void)call;
    ADD(stuck);
    while (!GET(go)) nap_us(1000);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_result receive(jobq_delivery *d, const jobq_message *m)
{
    if (jobq_pg_delivery_handle(d) != (m->payload.ptr[0] == '1' ? other : pg)) ADD(misled);
    ADD(received);
    return JOBQ_RESULT_SUCCESS;
}

/* A worker for both. */
static jobq_pg_worker_desc work_both(const jobq_pg_handler *handlers, size_t count)
{
    jobq_pg_worker_desc d = work_of(handlers, count);

    d.also = &other;
    d.also_count = 1;
    return d;
}

/* ---- threads --------------------------------------------------------------------------------- */

static void two_schemas_share_the_threads(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", brief);
    jobq_pg_worker_desc d = work_both(&h, 1);
    jobq_pg_worker *worker;
    jobq_pg_stats stats;
    jobq_pg_error error;

    (void)unused;
    enqueue_in(0, "k", 100);
    enqueue_in(1, "k", 100);
    d.loop.until = JOBQ_UNTIL_ENDED;
    assert_int_equal(jobq_pg_worker_start(pg, &d, &worker, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_worker_wait(worker, &stats), JOBQ_OK);
    assert_int_equal(jobq_pg_worker_health(worker, JOBQ_PG_ALL, NULL), JOBQ_ERROR_DEAD);
    assert_int_equal(stats.jobs.succeeded, 200);
    assert_int_equal(jobq_pg_worker_stats(worker, 0).jobs.succeeded, 100);
    assert_int_equal(jobq_pg_worker_stats(worker, 1).jobs.succeeded, 100);
    assert_int_equal(jobq_pg_worker_stats(worker, 2).jobs.succeeded, 0);
    assert_int_equal(jobq_pg_worker_health(worker, 2, NULL), JOBQ_ERROR_INVALID);
    jobq_pg_worker_free(worker);
    assert_int_equal(number_in(0, "SELECT count(*) FROM jobq.history"), 100);
    assert_int_equal(number_in(1, "SELECT count(*) FROM jobq.history"), 100);
    assert_in_range(GET(most), 2, 4);
    assert_int_equal(misled, 0);
}

/* One that is empty ends, and its threads work on for the other. */
static void each_schema_ends_by_itself(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", brief);
    jobq_pg_worker_desc d = work_both(&h, 1);
    jobq_pg_stats stats;
    jobq_pg_error error;

    (void)unused;
    enqueue_in(1, "k", 200);
    d.stats = &stats;
    d.loop.until = JOBQ_UNTIL_EMPTY;
    assert_int_equal(jobq_pg_work(pg, &d, &error), JOBQ_OK);
    assert_int_equal(stats.jobs.succeeded, 200);
    assert_int_equal(number_in(0, "SELECT count(*) FROM jobq.worker"), 0);
    assert_int_equal(number_in(1, "SELECT count(*) FROM jobq.worker"), 0);
}

static void a_busy_schema_starves_nobody(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", brief);
    jobq_pg_worker_desc d = work_both(&h, 1);
    jobq_pg_worker *worker;
    int before;

    (void)unused;
    d.loop.threads = 1;
    RUN("SELECT jobq.enqueue('q', 'k', '0') FROM generate_series(1, 15000)");
    worker = start(&d);
    assert_true(reaches(20, &ran[0], 50));
    before = GET(ran[0]);
    enqueue_in(1, "k", 30);
    assert_true(reaches(20, &ran[1], 30));
    assert_in_range(GET(ran[0]), before + 1, 14999); /* neither waits for the other's end */
    stop(worker);
    assert_int_equal(most, 1);
}

static void messages_of_both_are_received(void **unused)
{
    jobq_pg *both[2];
    jobq_pg_worker_desc d = work_both(NULL, 0);
    jobq_pg_receiver r;
    jobq_pg_message m;
    jobq_pg_error error;
    int i;

    (void)unused;
    both[0] = pg;
    both[1] = other;
    memset(&r, 0, sizeof r);
    memset(&m, 0, sizeof m);
    r.queue = m.queue = "news";
    r.each = receive;
    d.receivers = &r;
    d.receiver_count = 1;
    d.loop.until = JOBQ_UNTIL_ENDED;
    for (i = 0; i < 2; i++) {
        assert_int_equal(jobq_pg_outbox_register(both[i], NULL, "news", 2, NULL, &error), JOBQ_OK);
    }
    for (i = 0; i < 40; i++) {
        m.payload = jobq_str_from(i % 2 == 0 ? "0" : "1");
        assert_int_equal(jobq_pg_outbox_enqueue(both[i % 2], NULL, &m, NULL, &error), JOBQ_OK);
    }
    assert_int_equal(jobq_pg_work(pg, &d, &error), JOBQ_OK);
    assert_int_equal(received, 40);
    assert_int_equal(misled, 0);
    assert_int_equal(number_in(0, "SELECT sum(lag) FROM jobq.outbox"), 0);
    assert_int_equal(number_in(1, "SELECT sum(lag) FROM jobq.outbox"), 0);
}

/* ---- outages --------------------------------------------------------------------------------- */

static jobq_pg *behind_proxy(void)
{
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *made;

    memset(&desc, 0, sizeof desc);
    desc.conninfo = proxy.conninfo;
    desc.schema = schemas[1];
    desc.log = quiet_log;
    if (jobq_pg_open(&made, &desc, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return made;
}

/* Cuts what leads through the proxy, and lets nothing in. away: the index of its worker. */
static void goes_away(jobq_pg_worker *worker, int away)
{
    jobq_pg_health health;

    SET(proxy.refuse, 1);
    do {
        proxy_fault_at(PROXY_CUT_REQUEST, 1);
        nap_us(2000);
        jobq_pg_worker_health(worker, away, &health);
    } while (health.connected);
}

static void comes_back(void)
{
    proxy_fault_at(PROXY_NONE, 0);
    SET(proxy.refuse, 0);
}

/* away: the index of the worker whose server it is. */
static void outage(int away)
{
    jobq_pg_handler h = handler_of("q", "k", brief);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg *far = behind_proxy(), *also = away == 1 ? far : pg;
    jobq_pg_worker *worker;
    jobq_pg_health health;

    d.also = &also;
    d.also_count = 1;
    worker = start_on(away == 1 ? pg : far, &d);
    while (jobq_pg_worker_health(worker, JOBQ_PG_ALL, NULL) != JOBQ_OK) nap_us(2000);
    goes_away(worker, away);
    enqueue_in(1, "k", 20);
    enqueue_in(0, "k", 200);
    assert_true(reaches(20, &ran[0], 200));
    assert_int_equal(GET(ran[1]), 0);
    assert_int_equal(jobq_pg_worker_health(worker, 1 - away, NULL), JOBQ_OK);
    jobq_pg_worker_health(worker, JOBQ_PG_ALL, &health);
    assert_false(health.connected);
    comes_back();
    assert_true(reaches(20, &ran[1], 20));
    stop(worker);
    assert_int_equal(number_in(1, "SELECT count(*) FROM jobq.history"), 20);
    jobq_pg_close(far);
}

static void an_outage_holds_up_only_its_own(void **unused)
{
    (void)unused;
    outage(1);
}

static void an_outage_of_the_first_holds_up_no_other(void **unused)
{
    (void)unused;
    outage(0);
}

/* They hold jobs of the schema whose server goes away. Others take their place. */
static void threads_that_wait_for_a_server_are_replaced(void **unused)
{
    jobq_pg_handler h[2] = {handler_of("q", "k", brief), handler_of("q", "long", until_told)};
    jobq_pg_worker_desc d = work_of(h, 2);
    jobq_pg *far = behind_proxy();
    jobq_pg_worker *worker;

    (void)unused;
    d.also = &far;
    d.also_count = 1;
    d.loop.threads = 2;
    enqueue_in(1, "long", 2);
    worker = start(&d);
    assert_true(reaches(20, &ran[1], 2));
    goes_away(worker, 1);
    enqueue_in(0, "k", 100);
    assert_true(reaches(20, &ran[0], 100));
    assert_in_range(GET(most), 1, 2);
    comes_back();
    SET(go, 1);
    stop(worker);
    assert_int_equal(number_in(0, "SELECT count(*) FROM jobq.history"), 100);
    jobq_pg_close(far);
}

/* ---- a server that is down at the start ------------------------------------------------------ */

static void complains(void *user, jobq_level level, const char *message)
{
    if (strstr(message, "run jobq_pg_migrate") != NULL && strncmp(message, schemas[1], 5) == 0)
        ADD(complaints);
    quiet_log(user, level, message);
}

/* A handle on the second schema while its server refuses connections. */
static jobq_pg *of_the_dead(void)
{
    jobq_pg_desc desc = desc_of(proxy.conninfo);
    jobq_pg_error error;
    jobq_pg *made;

    desc.schema = schemas[1];
    desc.log = complains;
    SET(proxy.refuse, 1);
    assert_int_equal(jobq_pg_open(&made, &desc, &error), JOBQ_ERROR_CONNECTION);
    assert_null(made);
    desc.may_be_down = true;
    assert_int_equal(jobq_pg_open(&made, &desc, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_check(made, NULL, &error), JOBQ_ERROR_CONNECTION);
    return made;
}

/* The worker works for the first schema, and when the second server is there also for the second.
 * down: the index of the worker whose server is down. */
static void starts_without(int down)
{
    jobq_pg_handler h = handler_of("q", "k", brief);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg *far = of_the_dead(), *also = down == 1 ? far : pg;
    jobq_pg_worker *worker;
    jobq_pg_error error;

    d.also = &also;
    d.also_count = 1;
    enqueue_in(0, "k", 10);
    enqueue_in(1, "k", 10);
    worker = start_on(down == 1 ? pg : far, &d);
    assert_true(reaches(20, &ran[0], 10));
    assert_int_equal(jobq_pg_worker_health(worker, down, NULL), JOBQ_ERROR_CONNECTION);
    assert_int_equal(jobq_pg_worker_health(worker, 1 - down, NULL), JOBQ_OK);
    assert_int_equal(GET(ran[1]), 0);
    SET(proxy.refuse, 0);
    assert_true(reaches(20, &ran[1], 10));
    assert_int_equal(jobq_pg_check(far, NULL, &error), JOBQ_OK);
    stop(worker);
    assert_int_equal(GET(misled), 0);
    jobq_pg_close(far);
}

static void a_server_that_is_down_is_waited_for(void **unused)
{
    (void)unused;
    starts_without(1);
}

static void so_is_that_of_the_first_handle(void **unused)
{
    (void)unused;
    starts_without(0);
}

static void without_any_server_nothing_starts(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", brief);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg *far = of_the_dead(), *also = far;
    jobq_pg_worker *worker;
    jobq_pg_error error;

    (void)unused;
    d.also = &also;
    d.also_count = 1;
    assert_int_equal(jobq_pg_worker_start(far, &d, &worker, &error), JOBQ_ERROR_CONNECTION);
    assert_null(worker);
    d.also_count = 0;
    assert_int_equal(jobq_pg_worker_start(far, &d, &worker, &error), JOBQ_ERROR_CONNECTION);
    jobq_pg_close(far);
}

/* What the start could not ask: the schema is too old for this library. */
static void a_late_server_is_asked_what_the_start_asks(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", brief);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg *far = of_the_dead();
    jobq_pg_worker *worker;

    (void)unused;
    d.also = &far;
    d.also_count = 1;
    enqueue_in(1, "k", 10);
    worker = start(&d);
    strcpy(schema, schemas[1]);
    RUN("UPDATE jobq.meta SET version = version - 1");
    strcpy(schema, schemas[0]);
    SET(proxy.refuse, 0);
    assert_true(reaches(20, &complaints, 2)); /* the second at debug level */
    assert_int_equal(GET(ran[1]), 0);
    assert_int_equal(number_in(1, "SELECT count(*) FROM jobq.worker"), 0);
    strcpy(schema, schemas[1]);
    RUN("UPDATE jobq.meta SET version = version + 1");
    strcpy(schema, schemas[0]);
    assert_true(reaches(20, &ran[1], 10));
    stop(worker);
    jobq_pg_close(far);
}

/* One server is down, and on the other the role may not work. */
static void a_missing_right_is_still_refused(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", brief);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg *far = of_the_dead(), *made;
    char conninfo[200];
    jobq_pg_desc desc = desc_of(conninfo);
    jobq_pg_worker *worker;
    jobq_pg_error error;

    (void)unused;
    snprintf(conninfo, sizeof conninfo, "%s user=%s", server(), schema);
    RUN("CREATE ROLE jobq LOGIN");
    RUN("SELECT jobq.grant_read('%s')", schema);
    made = open_on(&desc);
    d.also = &far;
    d.also_count = 1;
    assert_int_not_equal(jobq_pg_worker_start(made, &d, &worker, &error), JOBQ_OK);
    assert_string_equal(error.sqlstate, "42501");
    d.also = &made;
    assert_int_not_equal(jobq_pg_worker_start(far, &d, &worker, &error), JOBQ_OK);
    assert_string_equal(error.sqlstate, "42501");
    assert_null(worker);
    jobq_pg_close(made);
    jobq_pg_close(far);
    RUN("DROP OWNED BY jobq");
    RUN("DROP ROLE jobq");
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Two of each are being worked on, and more of each in its hands, when it is stopped. */
static void a_stop_gives_back_in_both(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", until_told);
    jobq_pg_worker_desc d = work_both(&h, 1);
    jobq_pg_worker *worker;
    jobq_pg_health health;
    size_t i;

    (void)unused;
    enqueue_in(0, "k", 2);
    worker = start(&d);
    assert_true(reaches(20, &ran[0], 2));
    enqueue_in(1, "k", 10);
    assert_true(reaches(20, &ran[1], 2));
    enqueue_in(0, "k", 8);
    for (i = 0; i < 2; i++) {
        assert_true(becomes_in((int)i, 1, "SELECT (count(*) > 2)::int FROM jobq.job "
                                          "WHERE state = 'x'"));
    }
    jobq_pg_worker_stop(worker);
    for (i = 0; i < 2; i++) {
        do jobq_pg_worker_health(worker, (int)i, &health);
        while (!health.stopping);
    }
    SET(go, 1);
    assert_true(ended(worker).released >= 2);
    for (i = 0; i < 2; i++) {
        assert_int_equal(number_in((int)i, "SELECT count(*) FROM jobq.history"), 2);
        assert_int_equal(number_in((int)i, "SELECT count(*) FROM jobq.job WHERE state = 'r' AND "
                                           "attempt = 0"), 8);
        assert_int_equal(number_in((int)i, "SELECT count(*) FROM jobq.worker"), 0);
    }
}

/* Jobs of this kind fail at once when they run out of time. */
static void short_time(void)
{
    jobq_pg_queue_desc q;
    jobq_pg_error error;

    memset(&q, 0, sizeof q);
    q.timeout_us = SECOND / 2;
    q.max_attempts = 1;
    assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &q, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_queue_set(other, NULL, "q", &q, &error), JOBQ_OK);
}

static void await_returns(jobq_pg_worker *worker)
{
    jobq_pg_health health;

    SET(go, 1);
    do {
        nap_us(2000);
        jobq_pg_worker_health(worker, JOBQ_PG_ALL, &health);
    } while (health.abandoned > 0);
}

static void a_stuck_handler_is_replaced_for_both(void **unused)
{
    jobq_pg_handler h[2];
    jobq_pg_worker_desc d;
    jobq_pg_worker *worker;
    jobq_pg_health health;

    (void)unused;
    h[0] = handler_of("q", "k", brief);
    h[1] = handler_of("q", "stuck", never_ends);
    d = work_both(h, 2);
    d.loop.threads = 1;
    short_time();
    enqueue_in(1, "stuck", 1);
    worker = start(&d);
    assert_true(reaches(20, &stuck, 1));
    enqueue_in(0, "k", 20);
    enqueue_in(1, "k", 20);
    assert_true(reaches(20, &ran[0], 20));
    assert_true(reaches(20, &ran[1], 20));
    jobq_pg_worker_health(worker, 0, &health);
    assert_int_equal(health.threads, 1);
    assert_int_equal(health.abandoned, 1);
    assert_true(becomes_in(1, 1, "SELECT count(*) FROM jobq.failed"));
    await_returns(worker);
    assert_int_equal(jobq_pg_worker_stats(worker, 0).jobs.abandoned, 0);
    assert_int_equal(jobq_pg_worker_stats(worker, 1).jobs.abandoned, 1);
    stop(worker);
    assert_int_equal(most, 1);
}

/* Both are first jobs, in the same place of their loops: the one that may take long is let be. */
static void only_the_one_out_of_time_is_given_up(void **unused)
{
    jobq_pg_handler h = handler_of("q", "stuck", never_ends);
    jobq_pg_worker_desc d = work_both(&h, 1);
    jobq_pg_worker *worker;

    (void)unused;
    d.loop.threads = 2;
    short_time();
    RUN("UPDATE jobq.queue SET timeout_us = NULL");
    worker = start(&d);
    while (jobq_pg_worker_health(worker, JOBQ_PG_ALL, NULL) != JOBQ_OK) nap_us(2000);
    enqueue_in(1, "stuck", 1);
    assert_true(reaches(20, &stuck, 1));
    enqueue_in(0, "stuck", 1);
    assert_true(reaches(20, &stuck, 2));
    assert_true(becomes_in(1, 1, "SELECT count(*) FROM jobq.failed"));
    await_returns(worker);
    assert_true(becomes_in(0, 1, "SELECT count(*) FROM jobq.history"));
    stop(worker);
}

/* Two stuck in each: too many for a worker of one thread, and both schemas are left. */
static void too_many_stuck_end_it_in_both(void **unused)
{
    jobq_pg_handler h = handler_of("q", "stuck", never_ends);
    jobq_pg_worker_desc d = work_both(&h, 1);
    jobq_pg_worker *worker;
    jobq_pg_error error;

    (void)unused;
    d.loop.threads = 1;
    short_time();
    enqueue_in(0, "stuck", 2);
    enqueue_in(1, "stuck", 2);
    assert_int_equal(jobq_pg_worker_start(pg, &d, &worker, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_worker_wait(worker, NULL), JOBQ_ERROR_TIMEOUT);
    assert_int_equal(GET(stuck), 4);
    assert_int_equal(number_in(0, "SELECT count(*) FROM jobq.worker"), 0);
    assert_int_equal(number_in(1, "SELECT count(*) FROM jobq.worker"), 0);
    assert_int_equal(jobq_pg_worker_health(worker, JOBQ_PG_ALL, NULL), JOBQ_ERROR_TIMEOUT);
    await_returns(worker);
    jobq_pg_worker_free(worker);
}

static void wrong_lists_are_refused(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", brief);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg *none = NULL;
    jobq_pg_worker *worker;
    jobq_pg_error error;

    (void)unused;
    d.also_count = 1;
    assert_int_equal(jobq_pg_worker_start(pg, &d, &worker, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "also");
    d.also = &none;
    assert_int_equal(jobq_pg_worker_start(pg, &d, &worker, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "also");
    assert_null(worker);
    d.also = &other;
    assert_int_equal(jobq_pg_worker_open(pg, &d, &worker, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "also");
    assert_null(worker);
}

/* ---- setup ----------------------------------------------------------------------------------- */

static int up(void **state)
{
    jobq_pg_error error;

    if (pg_up(state) != 0) return 1;
    strcpy(schemas[0], schema);
    snprintf(schemas[1], sizeof schemas[1], "jobq_two_%d", (int)getpid());
    strcpy(schema, schemas[1]);
    other = handle();
    strcpy(schema, schemas[0]);
    if (jobq_pg_migrate(other, &error) != JOBQ_OK) return 1;
    proxy_up();
    return 0;
}

static int down(void **state)
{
    proxy_down();
    strcpy(schema, schemas[1]);
    RUN("DROP SCHEMA jobq CASCADE");
    strcpy(schema, schemas[0]);
    jobq_pg_close(other);
    return pg_down(state);
}

static int empty(void **state)
{
    ran[0] = ran[1] = at_once = most = stuck = go = received = misled = complaints = 0;
    strcpy(schema, schemas[1]);
    pg_empty(state);
    strcpy(schema, schemas[0]);
    return pg_empty(state);
}

/* A test that failed left handlers waiting. */
static int quit(void **state)
{
    SET(go, 1);
    comes_back();
    return all_stop(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, empty, quit)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(two_schemas_share_the_threads),
        TEST(each_schema_ends_by_itself),
        TEST(a_busy_schema_starves_nobody),
        TEST(messages_of_both_are_received),
        TEST(an_outage_holds_up_only_its_own),
        TEST(an_outage_of_the_first_holds_up_no_other),
        TEST(threads_that_wait_for_a_server_are_replaced),
        TEST(a_server_that_is_down_is_waited_for),
        TEST(so_is_that_of_the_first_handle),
        TEST(without_any_server_nothing_starts),
        TEST(a_late_server_is_asked_what_the_start_asks),
        TEST(a_missing_right_is_still_refused),
        TEST(a_stop_gives_back_in_both),
        TEST(a_stuck_handler_is_replaced_for_both),
        TEST(only_the_one_out_of_time_is_given_up),
        TEST(too_many_stuck_end_it_in_both),
        TEST(wrong_lists_are_refused),
    };

    return cmocka_run_group_tests(tests, up, down);
}
