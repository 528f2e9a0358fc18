/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Quotas of queues and kinds with real workers, in processes of their own: how many handlers run at
 * once and how many jobs start, over all of them. test_core_permits.c has the laws under faults.
 */
#include "processes.h"

#include "rules.h"

enum { STARTS = 4000 };

/* What the processes of a test count. */
static struct {
    int now, peak, other, ran[2];
    int starts;
    int64_t at_us[STARTS];
} * seen;

static int all_up(void **state)
{
    seen = shared(sizeof *seen);
    return common_up(state);
}

static int all_fresh(void **state)
{
    memset(seen, 0, sizeof *seen);
    return fresh(state);
}

static jobq_outcome counted(jobq_call *call, int who)
{
    int at = __atomic_fetch_add(&seen->starts, 1, __ATOMIC_SEQ_CST);
    int n = ADD(seen->now), peak = GET(seen->peak);

    (void)call;
    if (at < STARTS) seen->at_us[at] = mono_us();
    while (n > peak) {
        if (__atomic_compare_exchange_n(&seen->peak, &peak, n, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) break;
    }
    ADD(seen->ran[who]);
    nap_us(10000);
    __atomic_sub_fetch(&seen->now, 1, __ATOMIC_SEQ_CST);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome by_first(jobq_call *call) { return counted(call, 0); }
static jobq_outcome by_second(jobq_call *call) { return counted(call, 1); }

static jobq_outcome free_kind(jobq_call *call)
{
    (void)call;
    ADD(seen->other);
    nap_us(2000);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome hangs(jobq_call *call)
{
    (void)call;
    ADD(seen->now);
    while (!GET(seen->ran[0])) nap_us(5000);
    return JOBQ_OUTCOME_SUCCESS;
}

static pid_t worker(jobq_handler run, int threads)
{
    jobq_pg_handler h = handler_of("q", "k", run);
    jobq_pg_worker_desc d = work_of(&h, 1);

    d.loop.threads = threads;
    d.loop.lease_us = 2 * SECOND;
    d.loop.heartbeat_us = 300000;
    return spawn(&d);
}

static void kinds_of_jobs(const char *kind, int count)
{
    RUN("SELECT jobq.queue_set('q', kinds => '{k,l}')");
    RUN("SELECT jobq.enqueue('q', '%s', '{}') FROM generate_series(1, %d)", kind, count);
}

static bool all_done(double seconds)
{
    return becomes(seconds, 0, "SELECT count(*) FROM jobq.job");
}

static void at_most(int most, int jobs)
{
    kinds_of_jobs("k", jobs);
    RUN("SELECT jobq.queue_set('q', running_max => %d)", most);
    worker(by_first, 4);
    worker(by_second, 4);
    assert_true(all_done(60));
    assert_int_equal(seen->peak, most);
    /* Idle workers hold nothing, at least for a moment. */
    assert_true(becomes(20, 0, "SELECT coalesce(sum(held), 0) FROM jobq.permit"));
}

static void one_runs_at_a_time(void **unused)
{
    (void)unused;
    at_most(1, 60);
}

static void two_run_at_a_time(void **unused)
{
    (void)unused;
    at_most(2, 120);
}

static void five_run_at_a_time_and_both_workers_work(void **unused)
{
    (void)unused;
    at_most(5, 400);
    assert_true(seen->ran[0] > 60 && seen->ran[1] > 60);
}

/* 20/s: the laws allow burst + rate * t + chunk = 1 + 20 t + 2 starts. A handler starts up to a
 * little later than the claim that counts. */
static void a_rate_is_kept_over_all_workers(void **unused)
{
    int i, k;

    (void)unused;
    kinds_of_jobs("k", 300);
    RUN("SELECT jobq.queue_set('q', rate => '20/s')");
    worker(by_first, 4);
    worker(by_second, 4);
    while (GET(seen->starts) == 0) nap_us(1000);
    nap_us(3 * SECOND);
    k = GET(seen->starts);
    assert_in_range(k, 40, 3 + 62 + 2);
    for (i = 20; i < k; i++) {
        double t = (double)(seen->at_us[i] - seen->at_us[i - 20]) / 1e6;
        assert_true(21 <= 3 + 20 * t + 4);
    }
}

/* What explain_job says of the last job, and of when it may start: in an hour. */
#define RATE_OF                                                                                    \
    "SELECT count(*) FROM jobq.explain_job((SELECT max(id) FROM jobq.job)) WHERE reason = "        \
    "format('the rate of its %s is used up until %%s', jobq._shown(until)) AND "                   \
    "until BETWEEN now() + interval '50 min' AND now() + interval '1 h'"

static void a_rate_that_is_used_up_is_told(void **unused)
{
    char query[300];

    (void)unused;
    kinds_of_jobs("k", 3);
    RUN("SELECT jobq.queue_set('q', rate => '1/h')");
    worker(by_first, 1);
    while (GET(seen->starts) == 0) nap_us(1000);
    snprintf(query, sizeof query, RATE_OF, "queue");
    assert_true(becomes(20, 1, query));
    RUN("UPDATE jobq.quota SET kind_id = (SELECT id FROM jobq.kind WHERE name = 'k')");
    snprintf(query, sizeof query, RATE_OF, "kind");
    assert_int_equal(number("%s", query), 1);
    RUN("UPDATE jobq.permit SET tokens = 1"); /* a start that is left is not used up */
    assert_int_equal(number("%s", query), 0);
}

static void a_killed_workers_permits_come_back(void **unused)
{
    pid_t first;

    (void)unused;
    kinds_of_jobs("k", 10);
    RUN("SELECT jobq.queue_set('q', running_max => 1)");
    first = worker(hangs, 4);
    while (GET(seen->now) == 0) nap_us(1000);
    worker(by_second, 4);
    nap_us(SECOND);
    assert_int_equal(seen->ran[1], 0);
    assert_int_equal(number("SELECT sum(held) FROM jobq.permit"), 1);
    kill_hard(first);
    SET(seen->now, 0);
    assert_true(all_done(60));
    assert_int_equal(seen->ran[1], 10);
    assert_int_equal(seen->peak, 1);
}

static void a_lowered_limit_is_followed(void **unused)
{
    (void)unused;
    kinds_of_jobs("k", 1000);
    RUN("SELECT jobq.queue_set('q', running_max => 6)");
    worker(by_first, 4);
    worker(by_second, 4);
    while (GET(seen->starts) < 100) nap_us(1000);
    RUN("SELECT jobq.queue_set('q', running_max => 2)");
    assert_true(becomes(20, 1, "SELECT (sum(held) <= 2)::int FROM jobq.permit"));
    nap_us(100000);
    SET(seen->peak, 0);
    nap_us(SECOND);
    assert_int_equal(GET(seen->peak), 2);
    RUN("SELECT jobq.queue_set('q', running_max => 0)");
    assert_true(all_done(60));
    assert_int_equal(number("SELECT count(*) FROM jobq.permit"), 0);
}

static void a_limit_that_is_new_counts_what_runs(void **unused)
{
    (void)unused;
    kinds_of_jobs("k", 1000);
    worker(by_first, 4);
    worker(by_second, 4);
    while (GET(seen->starts) < 100) nap_us(1000);
    RUN("SELECT jobq.queue_set('q', running_max => 3)");
    assert_true(becomes(20, 1, "SELECT (sum(held) BETWEEN 1 AND 3)::int FROM jobq.permit"));
    SET(seen->peak, 0);
    nap_us(SECOND);
    assert_int_equal(GET(seen->peak), 3);
}

static void a_kind_beside_free_ones(void **unused)
{
    jobq_pg_handler h[2] = {handler_of("q", "k", by_first), handler_of("q", "l", free_kind)};
    jobq_pg_worker_desc d = work_of(h, 2);

    (void)unused;
    kinds_of_jobs("k", 40);
    kinds_of_jobs("l", 400);
    RUN("SELECT jobq.queue_set('q', kind => 'k', running_max => 1)");
    spawn(&d);
    spawn(&d);
    assert_true(all_done(60));
    assert_int_equal(seen->peak, 1);
    assert_int_equal(seen->other, 400);
}

static void what_sleeps_gives_back_and_wakes_up(void **unused)
{
    int64_t since;

    (void)unused;
    kinds_of_jobs("k", 1);
    RUN("SELECT jobq.queue_set('q', running_max => 1)");
    worker(by_first, 4);
    assert_true(all_done(60));
    assert_true(becomes(20, 1, "SELECT (SELECT count(*) FROM jobq.sleeper) "
                               "* (1 - least(1, (SELECT sum(held) FROM jobq.permit)))"));
    since = mono_us();
    RUN("SELECT jobq.enqueue('q', 'k', '{}')");
    assert_true(all_done(20));
    assert_true(mono_us() - since < 2 * SECOND || check_slow());
}

/* Nothing is sent, and nothing is answered, where no quota is. */
static void heartbeats_without_quotas_are_as_before(void **unused)
{
    (void)unused;
    kinds_of_jobs("k", 1);
    RUN("SELECT jobq.queue_set('other', running_max => 1)");
    worker(by_first, 4);
    assert_true(all_done(60));
    assert_int_equal(number("SELECT count(*) FROM jobq.permit"), 0);
    assert_int_equal(number("SELECT num_nonnulls(quotas, quota_queues, quota_kinds, maxima, held, "
                            "chunks, tokens, waits_us) FROM jobq._heartbeat("
                            "(SELECT id FROM jobq.worker), 2000000, '{}')"), 0);
}

/* The SQL functions decide as those of jobq.h do. */
static void sql_and_c_decide_alike(void **unused)
{
    jobq_random random = {5};
    int i;

    (void)unused;
    for (i = 0; i < 300; i++) {
        int32_t most = (int32_t)(jobq_random_next(&random) % 20 + 1);
        int32_t wanting = (int32_t)(jobq_random_next(&random) % 6);
        int32_t wanted = (int32_t)(jobq_random_next(&random) % 30);
        int64_t held = (int64_t)(jobq_random_next(&random) % 25);
        int64_t reserved = held + (int64_t)(jobq_random_next(&random) % 5);
        jobq_rate rate = {SECOND * (int64_t)(1 + jobq_random_next(&random) % 100),
                          (int32_t)(1 + jobq_random_next(&random) % 5000),
                          (int32_t)(1 + jobq_random_next(&random) % 50)};
        int64_t now = (int64_t)1700000000 * SECOND + i, wait, free_us;
        int64_t start = free_us = now + SECOND - /* after a step back it lies ahead */
                                  (int64_t)(jobq_random_next(&random) % (3 * SECOND));
        int32_t back = (int32_t)(jobq_random_next(&random) % 3), got;

        assert_int_equal(number("SELECT jobq._permit_share(%d, %d, %lld, %lld, %d)", most, wanting,
                                (long long)reserved, (long long)held, wanted),
                         model_permit_share(most, wanting, reserved, held, wanted));
        got = model_tokens_move(&rate, &free_us, now, held + back, back, wanted, &wait);
        assert_int_equal(number("SELECT (free_us = %lld AND granted = %d AND wait_us = %lld)::int "
                                "FROM jobq._tokens_move(%d, %lld, %d, %lld, %lld, %lld, %d, %d)",
                                (long long)free_us, got, (long long)wait, rate.count,
                                (long long)rate.us, rate.burst, (long long)start, (long long)now,
                                (long long)(held + back), back, wanted), 1);
    }
}

/* Two exchanges at the same time: the second one waits, and then sees what the first was given. */
static void exchanges_of_a_quota_go_one_by_one(void **unused)
{
    PGconn *other = PQconnectdb(server());
    char *text;

    (void)unused;
    RUN("SELECT jobq.queue_set('q', running_max => 4)");
    RUN("SELECT jobq._register(1, 'a', 60000000, '{q}', '{}', '{}', 7), "
        "jobq._register(2, 'b', 60000000, '{q}', '{}', '{}', 7)");
    RUN("SET idle_in_transaction_session_timeout = '20s'");
    RUN("BEGIN");
    RUN("SELECT jobq._heartbeat(1, 60000000, '{}', 1, ARRAY(SELECT id FROM jobq.quota), '{0}', "
        "'{4}', '{0}', '{0}', '{0}')");
    text = for_schema("SELECT jobq._heartbeat(2, 60000000, '{}', 1, "
                      "ARRAY(SELECT id FROM jobq.quota), '{0}', '{4}', '{0}', '{0}', '{0}')",
                      schema);
    assert_int_equal(PQsendQuery(other, text), 1);
    nap_us(300000);
    RUN("COMMIT");
    PQclear(PQgetResult(other));
    PQfinish(other);
    free(text);
    assert_int_equal(number("SELECT sum(held) FROM jobq.permit"), 4);
    RUN("RESET idle_in_transaction_session_timeout");
}

/* An exchange that arrives after a later one changes nothing. */
static void an_exchange_that_is_late_does_nothing(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', running_max => 4)");
    RUN("SELECT jobq._register(1, 'a', 60000000, '{q}', '{}', '{}', 7)");
    RUN("SELECT jobq._heartbeat(1, 60000000, '{}', 7, ARRAY(SELECT id FROM jobq.quota), '{0}', "
        "'{4}', '{0}', '{0}', '{0}')");
    RUN("SELECT jobq._heartbeat(1, 60000000, '{}', 6, ARRAY(SELECT id FROM jobq.quota), '{0}', "
        "'{0}', '{0}', '{0}', '{0}')");
    assert_int_equal(number("SELECT held FROM jobq.permit"), 4);
    RUN("SELECT jobq._deregister(1)");
    assert_int_equal(number("SELECT count(*) FROM jobq.permit"), 0);
}

/* What worker w says about the only quota; the answer is how many of its jobs may run. */
static int64_t exchange(int w, int turn, int running, int wanted)
{
    return number("SELECT held[1] FROM jobq._heartbeat(%d, 60000000, '{}', %d, "
                  "ARRAY(SELECT id FROM jobq.quota), '{%d}', '{%d}', '{0}', '{0}', '{0}')", w, turn,
                  running, wanted);
}

static void two_workers_of_three_permits(void)
{
    RUN("SELECT jobq.queue_set('q', running_max => 3)");
    RUN("SELECT jobq._register(1, 'a', 60000000, '{q}', '{1}', '{k}', 7), "
        "jobq._register(2, 'b', 60000000, '{q}', '{1}', '{k}', 7)");
    assert_int_equal(exchange(1, 1, 0, 3), 3);
    assert_int_equal(exchange(2, 1, 0, 0), 0);
}

/* Nobody has taken its jobs yet. */
static void a_late_workers_permits_are_not_given_away(void **unused)
{
    (void)unused;
    two_workers_of_three_permits();
    RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 min' WHERE id = 1");
    assert_int_equal(exchange(2, 2, 0, 3), 0);
    RUN("SELECT jobq._rescue(1, beat, 10) FROM jobq.worker WHERE id = 1");
    assert_int_equal(exchange(2, 3, 0, 3), 3);
}

/* A copy may be older than what the workers know: there the first one gave its permits to the
 * second one. Until all have spoken nothing is granted, and no token of the past counts. */
static void permits_of_a_restored_database_are_told_again(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', rate => '1/h', rate_burst => 4)");
    two_workers_of_three_permits();
    RUN("UPDATE jobq.quota SET free_at = now() - interval '1 day'");
    RUN("SELECT jobq.renew()");
    assert_int_equal(number("SELECT (free_at > now() - interval '1 min')::int FROM jobq.quota"), 1);
    assert_int_equal(exchange(1, 2, 0, 3), 0);
    assert_int_equal(exchange(2, 2, 3, 3), 2); /* of its three, as the first one wants some */
    assert_int_equal(exchange(1, 3, 0, 3), 0);
    assert_int_equal(exchange(2, 3, 0, 0), 0);
    assert_int_equal(exchange(1, 4, 0, 3), 3);
}

/* A crash of the server must not forget who has which permit. */
static void an_exchange_waits_for_the_disk(void **unused)
{
    (void)unused;
    two_workers_of_three_permits();
    RUN("SET synchronous_commit = off");
    RUN("BEGIN");
    exchange(1, 2, 0, 3);
    assert_int_equal(number("SELECT (current_setting('synchronous_commit') = 'on')::int"), 1);
    RUN("COMMIT");
    RUN("RESET synchronous_commit");
}

static void audit_finds_jobs_without_permits(void **unused)
{
    (void)unused;
    two_workers_of_three_permits();
    kinds_of_jobs("k", 4);
    RUN("INSERT INTO jobq.claim (worker, number, claimed_at, jobs) "
        "SELECT 1, 1, now(), array_agg(id) FROM jobq.job");
    RUN("UPDATE jobq.job SET state = 'x', worker = 1, claim = 1, claimed_at = now()");
    assert_int_equal(number("SELECT jobq.audit()"), 1);
    RUN("UPDATE jobq.permit SET number = 0 WHERE worker = 1"); /* has not told what it runs */
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    RUN("DELETE FROM jobq.permit WHERE worker = 1");
    assert_int_equal(number("SELECT jobq.audit()"), 4);
    RUN("UPDATE jobq.quota SET running_max = NULL, rate_us = 1000000, rate_count = 1");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void audit_finds_permits_of_nobody(void **unused)
{
    (void)unused;
    two_workers_of_three_permits();
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    RUN("UPDATE jobq.worker SET dead_at = now() WHERE id = 1");
    assert_int_equal(number("SELECT jobq.audit()"), 1);
    RUN("DELETE FROM jobq.worker");
    assert_int_equal(number("SELECT jobq.audit()"), 2);
    RUN("INSERT INTO jobq.claim (worker, number, claimed_at, jobs) VALUES (1, 1, now(), '{1}')");
    assert_int_equal(number("SELECT jobq.audit()"), 1);
    RUN("SELECT jobq.prune(10)");
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* It is told that it is dead, and nobody rescues it, because it has no jobs. */
static void a_worker_whose_queue_is_deleted_gives_its_permits_back(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', running_max => 3), jobq.queue_set('gone')");
    RUN("SELECT jobq._register(1, 'a', 60000000, '{q,gone}', '{1}', '{k}', 7)");
    assert_int_equal(exchange(1, 1, 0, 3), 3);
    RUN("DELETE FROM jobq.queue WHERE name = 'gone'");
    RUN("SELECT jobq._heartbeat(1, 60000000, '{}')");
    assert_int_equal(number("SELECT count(*) FROM jobq.permit"), 0);
}

/* The SQLSTATE of a statement that is refused. */
static const char *refused(const char *generic)
{
    static char code[6];
    char *text = for_schema(generic, schema);
    PGresult *res = PQexec(db, text);
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);

    snprintf(code, sizeof code, "%s", state != NULL ? state : "");
    PQclear(res);
    free(text);
    return code;
}

/* A worker in SQL would pass the limit. */
static void a_worker_in_sql_is_refused(void **unused)
{
    (void)unused;
    assert_string_equal(refused("SELECT jobq._register(1, 'sql', 60000000, '{q}', '{}', '{}')"),
                        "");
    RUN("SELECT jobq._deregister(1)");
    RUN("SELECT jobq.queue_set('q', running_max => 4)");
    assert_string_equal(refused("SELECT jobq._register(2, 'sql', 60000000, '{q}', '{}', '{}')"),
                        "JQ004");
    assert_string_equal(refused("SELECT jobq._register(3, 'c', 60000000, '{q}', '{}', '{}', 12)"),
                        "");
}

static void limits_are_set_and_shown(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', rate => '10/5 s', rate_burst => 3)");
    RUN("SELECT jobq.queue_set('q', kind => 'k', running_max => 7, rate => '100/min')");
    assert_int_equal(number("SELECT count(*) FROM jobq.limits WHERE queue = 'q' AND kind IS NULL "
                            "AND running_max IS NULL AND rate = '10/00:00:05' "
                            "AND rate_burst = 3 AND worker IS NULL"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.limits WHERE kind = 'k' "
                            "AND running_max = 7 AND rate = '100/min'"), 1);
    RUN("SELECT jobq.queue_set('q', kind => 'k', rate => '0')");
    assert_int_equal(number("SELECT running_max FROM jobq.limits WHERE kind = 'k'"), 7);
    RUN("SELECT jobq.queue_set('q', kind => 'k', reset => true)");
    RUN("SELECT jobq.queue_set('q', rate => '0')");
    assert_int_equal(number("SELECT count(*) FROM jobq.quota"), 0);
    RUN("SELECT jobq._register(1, 'sql', 60000000, '{q}', '{}', '{}')");
    assert_string_equal(refused("SELECT jobq.queue_set('q', running_max => 1)"), "55000");
    assert_string_equal(refused("SELECT jobq.queue_set('q', running_max => -1)"), "22023");
    assert_string_equal(refused("SELECT jobq.queue_set('q', rate => 'fast')"), "22023");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, all_fresh, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_runs_at_a_time),
        TEST(two_run_at_a_time),
        TEST(five_run_at_a_time_and_both_workers_work),
        TEST(a_rate_is_kept_over_all_workers),
        TEST(a_rate_that_is_used_up_is_told),
        TEST(a_killed_workers_permits_come_back),
        TEST(a_lowered_limit_is_followed),
        TEST(a_limit_that_is_new_counts_what_runs),
        TEST(a_kind_beside_free_ones),
        TEST(what_sleeps_gives_back_and_wakes_up),
        TEST(heartbeats_without_quotas_are_as_before),
        TEST(sql_and_c_decide_alike),
        TEST(exchanges_of_a_quota_go_one_by_one),
        TEST(an_exchange_that_is_late_does_nothing),
        TEST(a_late_workers_permits_are_not_given_away),
        TEST(permits_of_a_restored_database_are_told_again),
        TEST(an_exchange_waits_for_the_disk),
        TEST(audit_finds_jobs_without_permits),
        TEST(audit_finds_permits_of_nobody),
        TEST(a_worker_whose_queue_is_deleted_gives_its_permits_back),
        TEST(a_worker_in_sql_is_refused),
        TEST(limits_are_set_and_shown),
    };

    return cmocka_run_group_tests_name("permits", tests, all_up, pg_down);
}
