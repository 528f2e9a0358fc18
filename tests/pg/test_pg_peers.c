/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * examples/from_*.sql: what waits in a table of one's own, in River's or in graphile-worker's comes
 * into jobq, each job once, or nothing does. tests/peers.sql has their tables, and the work.
 */
#include "pg_work.h"

static char peer[60], said[4000];

/* Where the scripts are; mutants have a tree of their own. */
static const char *examples(void)
{
    const char *folder = getenv("JOBQ_TEST_EXAMPLES");

    return folder != NULL ? folder : "examples";
}

/* Runs psql, with the server's own program or, where it has none, another one. Its status. */
static int psql(const char *format, ...)
{
    const char *bin = getenv("JOBQ_SERVER_BIN");
    char command[1000];
    size_t used;
    va_list args;
    FILE *out;
    int status;

    used = (size_t)snprintf(command, sizeof command, "exec 2>&1; PATH=\"%s:$PATH\" psql -X ",
                            bin != NULL ? bin : "");
    va_start(args, format);
    used += (size_t)vsnprintf(command + used, sizeof command - used, format, args);
    va_end(args);
    snprintf(command + used, sizeof command - used, " '%s'", server());
    out = popen(command, "r");
    assert_non_null(out);
    said[fread(said, 1, sizeof said - 1, out)] = '\0';
    status = pclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Runs a script of examples/, which says this at its end. */
static void moves(const char *script, const char *settings, const char *wanted)
{
    if (psql("-v schema=%s %s -f %s/%s.sql", schema, settings, examples(), script) != 0)
        fail_msg("%s: %s", script, said);
    if (strstr(said, wanted) == NULL) fail_msg("%s: %s", script, said);
}

/* Nothing is moved, with this error. */
static void moves_nothing(const char *script, const char *settings, const char *wanted)
{
    long jobs = number("SELECT count(*) FROM jobq.jobs");
    int status = psql("-v schema=%s %s -f %s/%s.sql", schema, settings, examples(), script);

    assert_int_not_equal(status, 0);
    if (strstr(said, wanted) == NULL) fail_msg("%s: %s", script, said);
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs"), jobs);
}

static int with_peers(void **state)
{
    fresh(state);
    snprintf(peer, sizeof peer, "%s_peer", schema);
    if (psql("-v peer=%s -f tests/peers.sql", peer) == 0) return 0;
    fprintf(stderr, "%s\n", said);
    return 1;
}

static int without_peers(void **state)
{
    (void)state;
    RUN("RESET search_path; DROP SCHEMA %s CASCADE", peer);
    return 0;
}

/* What came of each job, in the order in which they were moved. */
static void expect_jobs(const char *const *lines, size_t count)
{
    size_t i;

    assert_int_equal(number("SELECT count(*) FROM jobq.jobs"), count);
    for (i = 0; i < count; i++) {
        char *job = text_of(
            "SELECT concat_ws(' ', queue, kind, coalesce(payload ->> 'n', payload::text),"
            " CASE WHEN run_at < now() THEN 'due' ELSE extract(year FROM run_at)::text END,"
            " priority, max_attempts, key, line, headers) FROM jobq.jobs ORDER BY id OFFSET %d"
            " LIMIT 1", (int)i);
        assert_string_equal(job, lines[i]);
        free(job);
    }
}

static void a_table_of_ones_own_is_moved(void **unused)
{
    static const char *const jobs[] = {
        "task new 1 due 0 20 row-1", "task tried 2 due 0 17 row-2",
        "task worn 3 due 0 1 row-3", "task later 4 2100 0 20 row-4"};
    char settings[100];

    (void)unused;
    RUN("SET search_path = %s", peer);
    snprintf(settings, sizeof settings, "-v table=task -c 'SET search_path = %s'", peer);
    moves("from_table", settings, "moved 4, left 1\n");
    expect_jobs(jobs, COUNT(jobs));
    expect_text("done 1, moved 4, running 1",
                "SELECT string_agg(concat_ws(' ', status, n), ', ') FROM (SELECT status, count(*)"
                " AS n FROM task GROUP BY 1 ORDER BY 1) t");
    RUN("UPDATE task SET status = 'pending' WHERE kind IN ('running', 'new')");
    moves("from_table", settings, "moved 2, left 0\n"); /* one of them was known */
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs"), 5);
    moves("from_table", settings, "moved 0, left 0\n");
}

static void the_jobs_of_river_are_moved(void **unused)
{
    static const char *const jobs[] = {
        "default new 1 due 0 25 river-1 {\"river_id\": 1}",
        "default held 4 due 0 25 river-4 {\"river_id\": 4}",
        "default worn 5 due 0 1 river-5 {\"river_id\": 5}",
        "default later 3 2100 1 25 river-3 {\"river_id\": 3}",
        ("mail retried 2 due 3 22 river-2 {\"tags\": [\"x\", \"y\"], \"metadata\": {\"a\": "
         "\"b\"}, \"river_id\": 2}")};
    char settings[100];

    (void)unused;
    RUN("SET search_path = %s", peer);
    snprintf(settings, sizeof settings, "-v river=%s", peer);
    RUN("UPDATE river_job SET kind = 'no:name' WHERE kind = 'retried'"); /* the last one */
    moves_nothing("from_river", settings, "alphanumeric at both ends (it is 'no:name')");
    assert_int_equal(number("SELECT count(*) FROM river_job WHERE metadata ? 'jobq_id'"), 0);
    RUN("UPDATE river_job SET kind = 'retried' WHERE kind = 'no:name'");

    moves("from_river", settings, "moved 5, left 1\n");
    expect_jobs(jobs, COUNT(jobs));
    assert_int_equal(number("SELECT count(*) FROM river_job r JOIN jobq.jobs j ON j.id ="
                            " (r.metadata ->> 'jobq_id')::bigint AND j.kind = r.kind WHERE"
                            " r.state = 'cancelled' AND r.finalized_at IS NOT NULL"), 5);
    assert_int_equal(number("SELECT count(*) FROM river_job WHERE kind = 'retried'"
                            " AND cardinality(errors) = 1 AND metadata ->> 'a' = 'b'"), 1);
    moves("from_river", settings, "moved 0, left 1\n");
    RUN("UPDATE river_job SET state = 'retryable' WHERE state = 'running'");
    moves("from_river", settings, "moved 1, left 0\n");
    expect_text("default running river-6 24",
                "SELECT concat_ws(' ', queue, kind, key, max_attempts) FROM jobq.jobs"
                " ORDER BY id DESC LIMIT 1");
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs"), 6);
}

static void the_jobs_of_graphile_worker_are_moved(void **unused)
{
    static const char *const jobs[] = {
        "mail urgent 6 due -9 25 graphile-8 {\"graphile_id\": 8}",
        "mail new 1 due 0 25 graphile-1 {\"graphile_id\": 1}",
        ("mail tried 2 due 0 21 graphile-2 {\"flags\": {\"a\": true}, \"last_error\": "
         "\"no host\", \"graphile_id\": 2}"),
        "mail serial [4] due 0 25 graphile-4 account 7 {\"graphile_id\": 4}",
        "mail serial [5] due 0 25 graphile-5 account 7 {\"graphile_id\": 5}",
        "mail abandoned 7 due 0 24 graphile-9 {\"graphile_id\": 9}",
        "mail keyed 3 2100 5 25 mail to ann {\"graphile_id\": 3}"};
    char settings[100];

    (void)unused;
    RUN("SET search_path = %s", peer);
    snprintf(settings, sizeof settings, "-v queue=mail -v graphile=%s", peer);
    moves("from_graphile", settings, "moved 7, left 2, with a key that is known 0\n");
    expect_jobs(jobs, COUNT(jobs));
    assert_int_equal(number("SELECT running_max FROM jobq.lines WHERE line = 'account 7'"), 1);
    expect_text("serial serial locked failed",
                "SELECT string_agg(t.identifier, ' ' ORDER BY j.id) FROM _private_jobs j"
                " JOIN _private_tasks t ON t.id = j.task_id");
    moves("from_graphile", settings, "moved 0, left 2, with a key that is known 0\n");

    /* A job of jobq has its key: it stays where it is. */
    RUN("UPDATE _private_jobs SET locked_at = NULL, key = 'mail to ann' WHERE attempts = 1"
        " AND job_queue_id IS NULL");
    moves("from_graphile", settings, "moved 0, left 1, with a key that is known 1\n");
    RUN("UPDATE _private_job_queues SET locked_at = NULL");
    RUN("UPDATE _private_jobs SET locked_at = NULL, key = NULL");
    moves("from_graphile", settings, "moved 3, left 0, with a key that is known 0\n");
    assert_int_equal(number("SELECT count(*) FROM jobq.jobs"), 10);
    assert_int_equal(number("SELECT count(*) FROM _private_jobs"), 1);
}

#define PEERS(test) cmocka_unit_test_setup_teardown(test, with_peers, without_peers)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PEERS(a_table_of_ones_own_is_moved),
        PEERS(the_jobs_of_river_are_moved),
        PEERS(the_jobs_of_graphile_worker_are_moved),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
