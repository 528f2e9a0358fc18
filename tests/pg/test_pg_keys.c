/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * One live job for each queue and key, whatever operators do: revive and move when another job has
 * the key, and sessions that enqueue, end, prune, revive, move and delete at random.
 */
#include "pg.h"

#include <pthread.h>

#define SESSIONS 6
#define KEYS 3
#define ROUNDS 120

/* A job with this key, or the one that has it; ended as a state letter says. */
static int64_t new_job(const char *queue, const char *key, const char *end)
{
    long id = number("SELECT jobq.enqueue('%s', 'k', key => '%s', stages => 2)", queue, key);

    if (end != NULL) RUN("SELECT jobq._finish(ARRAY[%ld], '%s', NULL)", id, end);
    return id;
}

/* The key's window of all jobs that have ended is over. */
static void time_goes_by(void)
{
    RUN("UPDATE jobq.idempotency SET ended_at = ended_at - interval '25 hours'");
}

static char *all_rows(void)
{
    char *rows = everything(), *text;
    PGresult *res = sql(db, "SELECT (SELECT string_agg(t::text, '|' ORDER BY t::text) FROM "
                            "jobq.idempotency t) || (SELECT string_agg(t::text, '|' ORDER BY "
                            "t::text) FROM jobq.queue t) || (SELECT string_agg(t::text, '|' "
                            "ORDER BY t::text) FROM jobq.kind t)");

    text = malloc(strlen(rows) + strlen(PQgetvalue(res, 0, 0)) + 1);
    strcpy(text, rows);
    strcat(text, PQgetvalue(res, 0, 0));
    PQclear(res);
    free(rows);
    return text;
}

static void expect_exists(jobq_error code, const jobq_pg_error *error, char *before)
{
    char *after = all_rows();

    assert_int_equal(code, JOBQ_ERROR_EXISTS);
    assert_string_equal(error->field, "key");
    assert_string_equal(before, after);
    free(before);
    free(after);
}

static void revive_leaves_a_key_that_is_taken(void **unused)
{
    int64_t first = new_job("q", "a", "f"), second;
    jobq_pg_error error;
    char *before;

    (void)unused;
    time_goes_by();
    second = new_job("q", "a", NULL);
    assert_true(first != second);
    before = all_rows();
    expect_exists(jobq_pg_revive(pg, NULL, ONE(first), NULL, &error), &error, before);
    RUN("SELECT jobq._finish(ARRAY[%lld], 's', NULL)", (long long)second);
    before = all_rows();
    expect_exists(jobq_pg_revive(pg, NULL, ONE(first), NULL, &error), &error, before);
    time_goes_by();
    assert_int_equal(jobq_pg_revive(pg, NULL, ONE(first), NULL, &error), JOBQ_OK);
    assert_int_equal(new_job("q", "a", NULL), first);
}

/* Its own key, in its window, after it, and forgotten. */
static void a_revived_job_has_its_key_again(void **unused)
{
    int64_t id = new_job("q", "a", NULL);
    jobq_pg_error error;
    int round;

    (void)unused;
    for (round = 0; round < 3; round++) {
        RUN("SELECT jobq._finish(ARRAY[%lld], 'f', NULL)", (long long)id);
        if (round > 0) time_goes_by();
        if (round > 1) RUN("SELECT jobq.prune(100)");
        assert_int_equal(jobq_pg_revive(pg, NULL, ONE(id), NULL, &error), JOBQ_OK);
        assert_int_equal(number("SELECT count(*) FROM jobq.idempotency WHERE ended_at IS NULL"), 1);
        assert_int_equal(new_job("q", "a", NULL), id);
    }
}

/* Those that can be revived are, however many others are older. */
static void reviving_many_leaves_out_what_is_taken(void **unused)
{
    jobq_pg_filter f;
    jobq_pg_error error;
    int64_t count = -1, free_one;
    char key[8];
    int i;

    (void)unused;
    memset(&f, 0, sizeof f);
    f.queue = "q";
    f.at_most = 2;
    for (i = 0; i < 5; i++) {
        snprintf(key, sizeof key, "t%d", i);
        new_job("q", key, "f");
    }
    new_job("q", "twice", "f");
    time_goes_by();
    new_job("q", "twice", "f");
    free_one = new_job("q", "free", "f");
    for (i = 0; i < 5; i++) {
        snprintf(key, sizeof key, "t%d", i);
        new_job("q", key, NULL);
    }
    time_goes_by();
    assert_int_equal(jobq_pg_revive(pg, NULL, &f, &count, &error), JOBQ_OK);
    assert_int_equal(count, 1); /* one of the two that have the same key */
    assert_int_equal(jobq_pg_revive(pg, NULL, &f, &count, &error), JOBQ_OK);
    assert_int_equal(count, 1);
    assert_int_equal(jobq_pg_revive(pg, NULL, &f, &count, &error), JOBQ_OK);
    assert_int_equal(count, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE id = %lld", (long long)free_one),
                     1);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 6);
}

static void move_leaves_a_key_that_is_taken(void **unused)
{
    int64_t first = new_job("q", "a", NULL), there = new_job("r", "a", NULL);
    jobq_pg_error error;
    char *before;

    (void)unused;
    RUN("INSERT INTO jobq.kind (queue_id, queue, payload_max, name) SELECT id, name, "
        "payload_max, 'only_here' FROM jobq.queue"
        " WHERE name = 'q'");
    RUN("UPDATE jobq.job SET kind_id = (SELECT id FROM jobq.kind WHERE name = 'only_here')"
        " WHERE id = %lld", (long long)first);
    before = all_rows();
    expect_exists(jobq_pg_change(pg, NULL, ONE(first), &(jobq_pg_changes){.target = "r"}, NULL,
                                 &error), &error, before);
    RUN("SELECT jobq._finish(ARRAY[%lld], 's', NULL)", (long long)there);
    before = all_rows();
    expect_exists(jobq_pg_change(pg, NULL, ONE(first), &(jobq_pg_changes){.target = "r"}, NULL,
                                 &error), &error, before);
    time_goes_by(); /* its window is over, though nobody has pruned it */
    assert_int_equal(jobq_pg_change(pg, NULL, ONE(first), &(jobq_pg_changes){.target = "r"}, NULL,
                                    &error), JOBQ_OK);
    assert_int_equal(new_job("r", "a", NULL), first);
    assert_true(new_job("q", "a", NULL) != first);
}

static void moving_many_leaves_out_what_is_taken(void **unused)
{
    jobq_pg_filter f;
    jobq_pg_error error;
    int64_t count = -1;

    (void)unused;
    memset(&f, 0, sizeof f);
    f.queue = "q";
    f.at_most = 1;
    new_job("q", "a", NULL);
    new_job("q", "b", NULL);
    new_job("r", "a", NULL);
    assert_int_equal(jobq_pg_change(pg, NULL, &f, &(jobq_pg_changes){.target = "r"}, &count,
                                    &error), JOBQ_OK);
    assert_int_equal(count, 1);
    assert_int_equal(jobq_pg_change(pg, NULL, &f, &(jobq_pg_changes){.target = "r"}, &count,
                                    &error), JOBQ_OK);
    assert_int_equal(count, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs WHERE queue = 'r'"), 2);
}

/* The second revive waits for the first, and finds the key taken. */
static void two_at_once_do_not_share_a_key(void **unused)
{
    int64_t first = new_job("q", "a", "f"), second;
    PGconn *holder = PQconnectdb(server()), *other = PQconnectdb(server());
    PGresult *res;
    char call[120];

    (void)unused;
    time_goes_by();
    RUN("SELECT jobq.prune(100)"); /* no row of the key is there to be locked */
    second = new_job("q", "a", "f");
    time_goes_by();
    RUN("SELECT jobq.prune(100)");
    PQclear(sql(holder, "BEGIN"));
    PQclear(sql(holder, "SELECT jobq.revive(%lld)", (long long)first));
    snprintf(call, sizeof call, "SELECT %s.revive(%lld)", schema, (long long)second);
    assert_int_equal(PQsendQuery(other, call), 1);
    assert_true(becomes(20, 1, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = "
                               "'Lock' AND query LIKE 'SELECT %%.revive(%%'"));
    PQclear(sql(holder, "COMMIT"));
    res = PQgetResult(other);
    assert_string_equal(PQgetvalue(res, 0, 0), "exists");
    PQclear(res);
    PQfinish(other);
    PQfinish(holder);
}

/* An answer of exists locks nothing that a worker needs. */
static void a_key_that_is_taken_is_not_locked(void **unused)
{
    int64_t first = new_job("q", "a", "f"), second;
    PGconn *other = PQconnectdb(server());

    (void)unused;
    time_goes_by();
    second = new_job("q", "a", NULL);
    RUN("BEGIN");
    RUN("SELECT jobq.revive(%lld)", (long long)first);
    PQclear(sql(other, "SET lock_timeout = '10s'"));
    PQclear(sql(other, "SELECT jobq._finish(ARRAY[%lld], 's', NULL)", (long long)second));
    RUN("COMMIT");
    PQfinish(other);
}

/* -- at random -- */

/* Each is one transaction. Deadlocks are left to the server: enqueue takes two keys at once. */
static const char *const operations[] = {
    "SELECT jobq._enqueue_many('%1$s', '{k}', NULL, '{1,2}', p_keys => ARRAY['%3$d','%4$d'])",
    "SELECT jobq.enqueue('%1$s', 'k', key => '%3$d')",
    "SELECT jobq._finish(ARRAY(SELECT id FROM jobq.job LIMIT 2 FOR UPDATE SKIP LOCKED), 'f', NULL)",
    "SELECT jobq.cancel('%1$s', at_most => 1)",
    "SELECT jobq.prune(10)",
    "SELECT jobq.revive('%1$s', at_most => 2)",
    "SELECT jobq.revive(id) FROM (SELECT id FROM jobq.failed ORDER BY id %% 5 LIMIT 1) f",
    "SELECT jobq.move('%1$s', '%2$s', at_most => 2)",
    "SELECT jobq.move(id, '%2$s') FROM (SELECT id FROM jobq.job ORDER BY id %% 5 LIMIT 1) j",
    "SELECT jobq.delete('%1$s', 'failed', at_most => 1)",
    "SELECT jobq.delete('%1$s', 'ready', at_most => 1)"};

static int bad_operations; /* atomic */

static void *session(void *seed)
{
    jobq_random random = {*(uint64_t *)seed};
    PGconn *conn = PQconnectdb(server());
    int i;

    for (i = 0; i < ROUNDS; i++) {
        static const char *const queues[] = {"q", "r"};
        uint64_t bits = jobq_random_next(&random);
        size_t operation = (size_t)(bits % (sizeof operations / sizeof operations[0]));
        int from = (int)(bits >> 8 & 1);
        char text[400], *mine;
        PGresult *res;
        const char *state;
        snprintf(text, sizeof text, operations[operation], queues[from], queues[1 - from],
                 (int)(bits >> 16 & 255) % KEYS, (int)(bits >> 24 & 255) % KEYS);
        mine = for_schema(text, schema);
        res = PQexec(conn, mine);
        state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
        if (state != NULL && strcmp(state, "40P01") != 0) {
            fprintf(stderr, "%s: %s", mine, PQresultErrorMessage(res));
            __atomic_add_fetch(&bad_operations, 1, __ATOMIC_SEQ_CST);
        }
        PQclear(res);
        free(mine);
    }
    PQfinish(conn);
    return NULL;
}

/* Of one snapshot: live jobs beyond the first of their key, and live jobs whose key is not held for
 * them. */
#define BROKEN \
    "SELECT (SELECT count(*) - count(DISTINCT (queue_id, key)) FROM jobq.job)" \
    " + (SELECT count(*) FROM jobq.job j WHERE NOT EXISTS (SELECT FROM jobq.idempotency k WHERE" \
    " k.queue_id = j.queue_id AND k.key = j.key AND k.job_id = j.id AND k.ended_at IS NULL))" \
    " + (SELECT count(*) FROM jobq.idempotency k WHERE k.ended_at IS NULL AND NOT EXISTS (SELECT" \
    " FROM jobq.job j WHERE j.id = k.job_id AND j.queue_id = k.queue_id AND j.key = k.key))"

static void no_two_live_jobs_ever_have_one_key(void **unused)
{
    pthread_t threads[SESSIONS];
    uint64_t seeds[SESSIONS];
    int i, broken = 0;

    (void)unused;
    RUN("SELECT jobq.queue_set('q', key_keep => '0', kinds => '{k}'),"
        " jobq.queue_set('r', key_keep => '20 ms', kinds => '{k}')");
    for (i = 0; i < SESSIONS; i++) {
        seeds[i] = (uint64_t)i + 1;
        assert_int_equal(pthread_create(&threads[i], NULL, session, &seeds[i]), 0);
    }
    for (i = 0; i < 100; i++) {
        broken += number(BROKEN) != 0;
        nap_us(5000);
    }
    for (i = 0; i < SESSIONS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(broken, 0);
    assert_int_equal(number(BROKEN), 0);
    assert_int_equal(bad_operations, 0);
}

/* -- keys made of a payload -- */

/* The digests are those of Python's hashlib, of the texts that are commented. */
static const struct {
    const char *payload, *fields, *rest, *wanted;
} digests[] = {
    /* {"to": "ann"} */
    {"{\"to\": \"ann\"}", "{to}", "", "3170706698258131580672168c8e70b7"},
    {"{\"x\": 1, \"to\":\"bob\", \"to\": \"\\u0061nn\"}", "{to,to}", "",
     "3170706698258131580672168c8e70b7"},
    /* {"to": "ann", "template": "hello"} */
    {"{\"template\": \"hello\", \"to\": \"ann\"}", "{template,to}", "",
     "59eff1688f5460e4eb23bad4f6124424"},
    /* {"to": null} */
    {"{\"to\": null, \"x\": 1}", "{to}", "", "d9223c8a108cb1845392250350b34678"},
    /* {"to": null, "template": "hello"} */
    {"{\"template\": \"hello\"}", "{to,template}", "", "58f409cb165eb3e938bf83ee7be658ce"},
    /* {"a": 1, "bb": [1, {"k": null}], "ccc": 1.50} */
    {"{\"ccc\":1.50,\"bb\":[1,{\"k\":null}],\"a\":1}", "{ccc,bb,a}", "",
     "4443afc8d98dd78b3bade791c56a2e20"},
    /* {"to": "J<a umlaut>n\n\"\\\u0001"}, in UTF-8 */
    {"{\"to\": \"J\\u00e4n\\n\\u0022\\\\\\u0001\"}", "{to}", "",
     "50c76902e1abc357b731a91f37c486b9"},
    /* {"": 100, "z": true, "<e acute>": 0.001}, in UTF-8 */
    {"{\"\\u00e9\": 1e-3, \"z\": true, \"\": 1E2}", "{\"\",z,\xc3\xa9}", "",
     "1e74dd9a3a85bab1e4367d4f3c3224b4"},
    /* {"to": "ann"} 600000000 2983333 */
    {"{\"to\": \"ann\"}", "{to}", ", '10 minutes', to_timestamp(1790000000)",
     "06759cfe9c15e72d5f374823e7b0a298"},
    {"{\"to\": \"ann\"}", "{to}", ", every => '600 s', at => to_timestamp(1790000399.999999)",
     "06759cfe9c15e72d5f374823e7b0a298"},
    /* {"to": "ann"} 86400000000 -1 */
    {"{\"to\": \"ann\"}", "{to}", ", '1 day', '1969-12-31 00:00+00'",
     "7fc94036bf480bdd416c6024420290ea"},
};

static void digests_are_those_of_any_sha256(void **unused)
{
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(digests); i++) {
        char *got = text_of("SELECT jobq.digest('%s', '%s'%s)", digests[i].payload,
                            digests[i].fields, digests[i].rest);
        if (strcmp(got, digests[i].wanted) != 0) fail_msg("%s: %s", digests[i].payload, got);
        free(got);
    }
    assert_int_equal(number("SELECT count(DISTINCT jobq.digest('{\"a\": 1}', '{a}', '1 min',"
                            " to_timestamp(s) - interval '1 us')) FROM generate_series(-119, 0) s"),
                     2);
}

/* A field's name that is misspelt does not give all jobs the same key. */
static void digests_of_nothing_are_refused(void **unused)
{
    static const char *const bad[] = {
        "'{\"to\": 1}', '{too}'", "'{\"to\": 1}', '{}'", "'{\"to\": 1}', NULL", "NULL, '{to}'",
        "'[\"to\"]', '{to}'", "'\"to\"', '{to}'", "'{\"to\": 1}', '{to}', '0'",
        "'{\"to\": 1}', '{to}', '-1 s'", "'{\"to\": 1}', '{to}', '1 s', 'infinity'",
        "'{\"to\": 1}', '{NULL}'"};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(bad); i++) {
        char query[200], *text;
        PGresult *res;
        sprintf(query, "SELECT jobq.digest(%s)", bad[i]);
        text = for_schema(query, schema);
        res = PQexec(db, text);
        if (PQresultStatus(res) == PGRES_TUPLES_OK) fail_msg("taken: %s", bad[i]);
        assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "22023");
        PQclear(res);
        free(text);
    }
}

#define TEST(name) cmocka_unit_test_setup(name, pg_empty)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(revive_leaves_a_key_that_is_taken),
        TEST(a_revived_job_has_its_key_again),
        TEST(reviving_many_leaves_out_what_is_taken),
        TEST(move_leaves_a_key_that_is_taken),
        TEST(moving_many_leaves_out_what_is_taken),
        TEST(two_at_once_do_not_share_a_key),
        TEST(a_key_that_is_taken_is_not_locked),
        TEST(no_two_live_jobs_ever_have_one_key),
        cmocka_unit_test(digests_are_those_of_any_sha256),
        cmocka_unit_test(digests_of_nothing_are_refused),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
