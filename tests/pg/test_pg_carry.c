/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * examples/carry.sql: all work of a schema of version 11 comes into a fresh schema of this version,
 * or none of it; the library goes on with it. And the program of version 11 leaves the new schema
 * alone. tests/pg/carry.sql is the work.
 *
 * The old version comes from git. Where that has not its commit, all tests are skipped.
 */
#include "pg_work.h"

#define OLDER ".build/older/"
#define BOTH "-v ON_ERROR_STOP=1 -v from=jobq_old -v schema=jobq "
#define AWAY "-c 'ALTER SCHEMA jobq RENAME TO jobq_old' -f sql/install.sql "
#define CARRY "-f examples/carry.sql "

static char outside[300]; /* conninfo of the server; the tests have a database of their own */
static char said[6000];   /* what the last command printed */
static bool carried;      /* the work is in the new schema */

/* Runs a command, with the server's own programs or, where it has none, other ones. Its status. */
static int shell(const char *format, ...)
{
    const char *bin = getenv("JOBQ_SERVER_BIN");
    char command[1500];
    size_t used;
    va_list args;
    FILE *out;
    int status;

    used = (size_t)snprintf(command, sizeof command, "exec 2>&1; PATH=\"%s:$PATH\"; ",
                            bin != NULL ? bin : "");
    va_start(args, format);
    vsnprintf(command + used, sizeof command - used, format, args);
    va_end(args);
    out = popen(command, "r");
    if (out == NULL) return -1;
    said[fread(said, 1, sizeof said - 1, out)] = '\0';
    while (fgetc(out) != EOF) continue;
    status = pclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int psql(const char *arguments) { return shell("psql -X %s '%s'", arguments, server()); }

static void expect_said(const char *text)
{
    if (strstr(said, text) == NULL) fail_msg("not said: %s\nbut: %s", text, said);
}

/* A sum of all that a schema consists of and contains: see tests/pg/carry.sql. The caller frees it.
 * */
static char *sum_of(const char *name) { return text_of("SELECT public.sum_of('%s')", name); }

static void expect_sum(const char *name, char *wanted)
{
    char *sum = sum_of(name);

    assert_string_equal(sum, wanted);
    free(sum);
    free(wanted);
}

/* Each test begins with it. */
static void needs_older(void)
{
    if (access(OLDER "jobq", X_OK) != 0) {
        print_message("skipped: no commit of schema version 11\n");
        skip();
    }
}

static void all_carried(void)
{
    needs_older();
    if (!carried && psql(BOTH AWAY CARRY) != 0) fail_msg("%s", said);
    carried = true;
}

/* -- what is refused -- */

static const struct {
    const char *change, *arguments, *refusal, *advice, *undo;
} refusals[] = {
    {"SELECT 1", "-v schema=jobq " CARRY, "give -v from=OLD and -v schema=NEW", "", "SELECT 1"},
    {"SELECT 1", "-v from=nowhere -v schema=jobq " CARRY, "schema nowhere is not there", "",
     "SELECT 1"},
    {"UPDATE jobq_old.meta SET version = 10", BOTH CARRY,
     "jobq_old is at version 10, and only 11 and 12", "commit 25920cd: jobq --schema jobq_old mi",
     "UPDATE jobq_old.meta SET version = 11"},
    {"UPDATE jobq_old.meta SET version = 13", BOTH CARRY,
     "jobq_old is at version 13, and only 11 and 12", "from: the old schema",
     "UPDATE jobq_old.meta SET version = 11"},
    {"SELECT 1", "-v from=jobq -v schema=jobq_old " CARRY,
     "jobq_old is at version 11, and nothing is carried into that", "Install a new one",
     "SELECT 1"},
    {"UPDATE jobq.meta SET version = 11", BOTH CARRY, "and nothing is carried into that",
     "psql -f sql/install.sql", "UPDATE jobq.meta SET version = 12"},
    {"UPDATE jobq_old.worker SET expires_at = expires_at + interval '1 day' WHERE name = 'running'",
     BOTH CARRY, "worker running of schema jobq_old is alive", "its lease ends at 2",
     "UPDATE jobq_old.worker SET expires_at = expires_at - interval '1 day'"
     " WHERE name = 'running'"},
    {CITUS_IS_THERE "INSERT INTO pg_dist_partition VALUES ('jobq_old.job', 'h', 1, 's')",
     BOTH CARRY, "schema jobq_old is distributed by Citus", "citus_undistribute()", CITUS_IS_GONE},
    {CITUS_IS_THERE "INSERT INTO pg_dist_partition VALUES ('jobq.job', 'h', 1, 's')", BOTH CARRY,
     "schema jobq is distributed by Citus", "citus_undistribute()", CITUS_IS_GONE},
    {"INSERT INTO jobq.queue (id, name) VALUES (1, 'q')", BOTH CARRY,
     "schema jobq is not fresh: jobq.queue has rows", "carried before", "DELETE FROM jobq.queue"},
    /* the last table that is filled */
    {"ALTER TABLE jobq.tenant ADD CONSTRAINT nobody CHECK (queues = '{}')", BOTH CARRY,
     "violates check constraint", "nobody", "ALTER TABLE jobq.tenant DROP CONSTRAINT nobody"}};

/* And what the script says to go back leads back. */
static void what_is_refused_changes_nothing(void **unused)
{
    char *from, *into;
    size_t i;

    (void)unused;
    needs_older();
    if (psql(BOTH AWAY) != 0) fail_msg("%s", said);
    from = sum_of("jobq_old");
    into = sum_of("jobq");
    for (i = 0; i < COUNT(refusals); i++) {
        RUN("%s", refusals[i].change);
        assert_int_not_equal(psql(refusals[i].arguments), 0);
        expect_said(refusals[i].refusal);
        expect_said(refusals[i].advice);
        RUN("%s", refusals[i].undo);
        assert_int_equal(number("SELECT (SELECT count(*) FROM jobq.queue) + count(last_value)"
                                " FROM pg_sequences WHERE schemaname = 'jobq'"), 0);
    }
    expect_sum("jobq_old", from);
    expect_sum("jobq", into);
    RUN("DROP SCHEMA jobq CASCADE; ALTER SCHEMA jobq_old RENAME TO jobq");
    assert_int_equal(shell(OLDER "jobq -d '%s' migrate --check", server()), 0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void a_second_run_is_refused(void **unused)
{
    char *before;

    (void)unused;
    all_carried();
    before = sum_of("jobq");
    assert_int_not_equal(psql(BOTH CARRY), 0);
    expect_said("schema jobq is not fresh");
    expect_sum("jobq", before);
}

/* -- what is carried -- */

static int carry_status;

/* For a role that has another isolation level by default: the script sets its own. */
static void *carries(void *unused)
{
    (void)unused;
    carry_status = shell("PGOPTIONS='-c default_transaction_isolation=serializable' "
                         "psql -X %s '%s'", BOTH AWAY CARRY, server());
    return NULL;
}

/* A producer's transaction is open while the schema gets its new name. */
static void it_waits_for_open_transactions(void **unused)
{
    PGconn *producer;
    pthread_t thread;

    (void)unused;
    needs_older();
    if (carried) return;
    producer = PQconnectdb(server());
    PQclear(sql(producer, "BEGIN; SELECT jobq.enqueue('q', 'ready', '\"open\"'),"
                          " jobq.cancel(jobq.enqueue('q', 'ready'))"));
    pthread_create(&thread, NULL, carries, NULL);
    assert_true(becomes(30, 1, "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = ("
                               "SELECT oid FROM pg_database WHERE datname = current_database())"));
    assert_int_equal(number("SELECT count(*) FROM jobq.queue"), 0);
    PQclear(sql(producer, "COMMIT"));
    PQfinish(producer);
    pthread_join(thread, NULL);
    if (carry_status != 0) fail_msg("%s", said);
    carried = true;
    expect_said("\n job            |   34\n");
    expect_said("were put back: 4; that failed at their limit: 1");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE payload = '\"open\"'"), 1);
}

/* Rows of a table that are in this schema and not, with all that both tables have, in that one. */
static long only_in(const char *table, const char *here, const char *there)
{
    /* Only one of them has these. */
    static const char apart[] = "{pending, held_at, beat_at, taken_at, outboxes, snoozes, "
                                "snoozes_max, topic, readers, expires_at, expires_us}";

    return number("SELECT count(*) FROM (SELECT to_jsonb(a) - '%s'::text[] FROM %s.%s a EXCEPT ALL "
                  "SELECT to_jsonb(b) - '%s'::text[] FROM %s.%s b) t", apart, here, table, apart,
                  there, table);
}

/* Of each table: how many rows changed on the way, and how many the rescue took away and wrote. */
static const struct {
    const char *table;
    int changed, lost, came;
} tables[] = {
    {"queue", 0, 0, 0}, {"kind", 0, 0, 0}, {"quota", 0, 0, 0}, {"line", 0, 0, 0},
    {"job", 4, 2, 0}, {"failed", 0, 0, 1}, {"idempotency", 0, 0, 0}, {"message", 0, 0, 0},
    {"partition", 1, 0, 0}, {"dead_letter", 1, 0, 0}, {"schedule_owner", 0, 0, 0},
    {"schedule", 0, 0, 0}, {"flow", 0, 0, 0}, {"flow_part", 0, 0, 0}, {"flow_job", 0, 0, 0},
    {"edge", 0, 0, 0}, {"nudge", 0, 0, 0}, {"signal", 0, 0, 0}, {"signal_wait", 0, 0, 0},
    {"tenant", 0, 0, 0}};

static void every_row_is_there_once(void **unused)
{
    size_t i;

    (void)unused;
    all_carried();
    for (i = 0; i < COUNT(tables); i++) {
        long there = number("SELECT count(*) FROM jobq_old.%s", tables[i].table);
        assert_true(there > 0);
        assert_int_equal(number("SELECT count(*) FROM jobq.%s", tables[i].table),
                         there - tables[i].lost + tables[i].came);
        assert_int_equal(only_in(tables[i].table, "jobq_old", "jobq"),
                         tables[i].changed + tables[i].lost);
        assert_int_equal(only_in(tables[i].table, "jobq", "jobq_old"),
                         tables[i].changed + tables[i].came);
    }
    expect_text("long 30 days f |medium 1 day t 03:00:00|short 02:00:00 f ",
                "SELECT string_agg(format('%s %s %s %s', retention, keep, varies, export_wait), '|'"
                " ORDER BY retention) FROM jobq.ring");
    expect_text("0 0 0 0 1",
                "SELECT concat_ws(' ', (SELECT count(*) FROM jobq.worker),"
                " (SELECT count(*) FROM jobq.claim), (SELECT count(*) FROM jobq.permit),"
                " (SELECT count(*) FROM jobq.operation), (SELECT count(*) FROM jobq.history))");
    assert_int_equal(number("SELECT jobq._is_copy()::int"), 1);
}

/* What the comment of the script says of them. */
static void what_ran_is_rescued(void **unused)
{
    (void)unused;
    all_carried();
    expect_text("alone r t t 0 0|lined r t f 0 0|running r t f 0 0|running_alone r t t 1 1|"
                "running_suspect r t t 0 0|suspect r t f 0 0",
                "SELECT string_agg(concat_ws(' ', k.name, j.state, left(j.suspect::text, 1),"
                " left(j.alone::text, 1), j.attempt, j.crash), '|' ORDER BY k.name)"
                " FROM jobq.job j JOIN jobq.kind k ON k.id = j.kind_id WHERE j.suspect");
    expect_text("running_last 2 2 Max crashes (2) exceeded: worker died",
                "SELECT concat_ws(' ', k.name, f.attempt, f.crash, f.errors -> -1 ->> 'error')"
                " FROM jobq.failed f JOIN jobq.kind k ON k.id = f.kind_id"
                " WHERE k.name <> 'failed'");
    expect_text("cancelled c", "SELECT concat_ws(' ', k.name, h.state) FROM jobq.history h"
                               " JOIN jobq.kind k ON k.id = h.kind_id");
    expect_text("{\"was\": \"running\"}",
                "SELECT payload FROM jobq.job j JOIN jobq.kind k ON k.id = j.kind_id"
                " WHERE k.name = 'running'");
    expect_text("4 0 10 1 {7}", "SELECT concat_ws(' ', acked, reading, numbered, effective, tried)"
                                " FROM jobq.partition WHERE acked > 0 AND worker IS NULL"
                                " AND claim IS NULL AND lease_us IS NULL AND lease_until IS NULL");
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter WHERE status = 'pending'"), 2);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void no_id_is_given_out_twice(void **unused)
{
    (void)unused;
    all_carried();
    assert_int_equal(number("SELECT count(*) FROM pg_sequences n JOIN pg_sequences o"
                            " USING (sequencename) WHERE n.schemaname = 'jobq'"
                            " AND o.schemaname = 'jobq_old' AND n.last_value = o.last_value"), 10);
    /* the old one has the highest id only in its history */
    assert_true(number("SELECT max(id) FROM jobq_old.history") >
                number("SELECT max(id) FROM jobq_old.job"));
    assert_true(number("SELECT jobq.enqueue('q', 'tick')") >
                number("SELECT max(id) FROM jobq_old.history"));
    RUN("DELETE FROM jobq.job j USING jobq.kind k WHERE k.id = j.kind_id AND k.name = 'tick'");
}

static void a_role_has_no_right_until_it_is_granted(void **unused)
{
    (void)unused;
    all_carried();
    assert_int_equal(number("SELECT has_schema_privilege('jobq_carry_%d', 'jobq', 'USAGE')::int",
                            (int)getpid()), 0);
    RUN("SELECT jobq.grant_enqueue('jobq_carry_%d', queues, lines) FROM jobq.tenant",
        (int)getpid());
    RUN("SET SESSION AUTHORIZATION jobq_carry_%d", (int)getpid());
    PQclear(PQexec(db, "SELECT jobq.enqueue('q', 'tick', line => 'other')"));
    RUN("RESET SESSION AUTHORIZATION");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE line_name = 'other'"), 0);
    RUN("SELECT jobq.revoke('jobq_carry_%d')", (int)getpid());
}

/* -- the library goes on -- */

static int ticks, inside[2], crowded;
static int messages, seqs[2][20], values[2][20], attempts[2], ends;

static jobq_outcome counts_ticks(jobq_call *call)
{
    (void)call;
    ADD(ticks);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Of a limit over all workers, and of line a: one at a time. */
static jobq_outcome is_limited(jobq_call *call)
{
    bool line = call->payload.len > 0;

    if (!line || jobq_str_equal(call->payload, jobq_str_from("\"a\""))) {
        if (ADD(inside[line]) > 1) ADD(crowded);
        nap_us(30000);
        __atomic_sub_fetch(&inside[line], 1, __ATOMIC_SEQ_CST);
    }
    return succeed(call);
}

static jobq_result takes(jobq_delivery *delivery, const jobq_message *message)
{
    int p = delivery->partition, n = 0;

    while (seqs[p][n] != 0) n++;
    seqs[p][n] = (int)message->seq;
    values[p][n] = atoi(message->payload.ptr);
    attempts[p] += message->attempts;
    ADD(messages);
    return JOBQ_RESULT_SUCCESS;
}

static jobq_result takes_end(jobq_delivery *delivery, const jobq_message *message)
{
    (void)delivery;
    if (message->seq == 1 && jobq_str_equal(message->payload, jobq_str_from("\"all parts\"")))
        ADD(ends);
    return JOBQ_RESULT_SUCCESS;
}

/* A worker with a handler for every kind that a job has, and for the messages. */
static jobq_pg_worker *works_on_all(void)
{
    static const char *const kinds[] = {"ready", "later", "parked", "again", "staged", "stepped",
                                        "two", "three", "both", "part", "listens", "child",
                                        "failed"};
    static const char *const crashed[] = {"suspect", "alone", "running", "running_suspect",
                                          "running_alone"};
    jobq_pg_handler h[COUNT(kinds) + COUNT(crashed) + 5];
    jobq_pg_receiver r[2];
    jobq_pg_worker_desc d;
    size_t i, n = 0;

    for (i = 0; i < COUNT(kinds); i++) {
        h[n] = handler_of("q", kinds[i], succeed);
        h[n].run[1] = h[n].run[2] = succeed;
        n++;
    }
    for (i = 0; i < COUNT(crashed); i++) h[n++] = handler_of("x", crashed[i], succeed);
    h[n++] = handler_of("l", "lined", is_limited);
    h[n++] = handler_of("l", "waits", succeed);
    h[n++] = handler_of("limited", "few", is_limited);
    h[n++] = handler_of("stopped", "idle", succeed);
    h[n++] = handler_of("q", "tick", counts_ticks);
    memset(r, 0, sizeof r);
    r[0].queue = "o";
    r[0].each = takes;
    r[1].queue = "ends";
    r[1].each = takes_end;
    d = work_of(h, n);
    d.receivers = r;
    d.receiver_count = 2;
    return start(&d);
}

static void expect_key(const char *key, const char *table)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    int64_t id = 0;

    job.key = key;
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, &id, &error), JOBQ_ERROR_EXISTS);
    assert_int_equal(id, number("SELECT id FROM jobq_old.%s WHERE key = '%s'", table, key));
}

static void keys_are_known(void **unused)
{
    jobq_pg_message m;
    jobq_pg_error error;
    int64_t id = 0;

    (void)unused;
    all_carried();
    expect_key("known", "job");
    expect_key("failed", "failed");
    expect_key("done", "history");
    memset(&m, 0, sizeof m);
    m.queue = "o";
    m.key = "message 1";
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, &id, &error), JOBQ_ERROR_EXISTS);
    assert_int_equal(id, 1);
}

/* Messages come in order, with the numbers after those that were acknowledged. Those that were
 * being delivered come once more. */
static void expect_messages(void)
{
    static const int numbers[] = {5, 6, 7, 8, 9, 10, 11};
    int i;

    for (i = 0; i < (int)COUNT(numbers); i++) {
        assert_int_equal(seqs[0][i], numbers[i]);
        assert_int_equal(values[0][i], numbers[i]);
    }
    for (i = 0; i < 3; i++) {
        assert_int_equal(seqs[1][i], i + 1);
        assert_int_equal(values[1][i], i + 1);
    }
    assert_int_equal(GET(messages), 10);
    assert_int_equal(attempts[0], 3);
    assert_int_equal(attempts[1], 0);
    assert_int_equal(GET(ends), 1);
}

/* The old schema is no longer there. Each job runs once in each stage that it had before it. */
static void the_library_goes_on_with_the_work(void **unused)
{
    jobq_pg_error error;
    char query[200];
    long left;
    int stages;

    (void)unused;
    all_carried();
    RUN("DROP SCHEMA jobq_old CASCADE");
    RUN("UPDATE jobq.meta SET home = jobq._here()");
    if (jobq_pg_check(pg, NULL, &error) != JOBQ_OK) fail_msg("%s", error.message);
    RUN("SELECT jobq.resume('stopped'), jobq.hold('l', 'later', now()), jobq.signal('late'),"
        " jobq.reschedule(j.id) FROM jobq.job j JOIN jobq.kind k ON k.id = j.kind_id"
        " WHERE k.name = 'later'");
    RUN("SELECT jobq.revive(f.id) FROM jobq.failed f JOIN jobq.kind k ON k.id = f.kind_id"
        " WHERE k.name = 'failed'");
    RUN("SELECT jobq.outbox_enqueue('o', '11', partition => 0)");
    left = number("SELECT count(*) FROM jobq.job");
    stages = (int)number("SELECT sum(stages - stage) FROM jobq.job");
    works_on_all();
    snprintf(query, sizeof query, "SELECT count(*) - %ld FROM jobq.history h JOIN jobq.kind k"
             " ON k.id = h.kind_id WHERE h.state = 's' AND k.name <> 'tick'", left);
    assert_true(becomes(30, 0, query));
    assert_true(reaches(30, &messages, 10) && reaches(30, &ends, 1) && reaches(30, &ticks, 2));
    all_stop(NULL);
    assert_int_equal(GET(runs), stages);
    assert_int_equal(GET(crowded), 0);
    expect_messages();
    assert_int_equal(number("SELECT count(*) FROM jobq.job j JOIN jobq.kind k ON k.id = j.kind_id"
                            " WHERE k.name <> 'tick'"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.flow WHERE ended_at IS NULL"), 1); /* open */
    assert_int_equal(number("SELECT count(*) FROM jobq.schedule WHERE error IS NOT NULL"), 0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* -- the program of version 11 -- */

static void the_old_program_leaves_a_new_schema_alone(void **unused)
{
    static const char *const verbs[] = {"migrate", "migrate --check",
                                        "work --exec true --queue q --until-empty",
                                        "work --exec true --queue q --kind tick"};
    char *before;
    size_t i;

    (void)unused;
    all_carried();
    before = sum_of("jobq");
    for (i = 0; i < COUNT(verbs); i++) {
        assert_int_equal(shell(OLDER "jobq -d '%s' %s", server(), verbs[i]), 1);
        expect_said("is at version 12 and serves libraries from 12 on; this one is 11");
    }
    expect_sum("jobq", before);
}

/* What jobq_pg_check tells to do about a table that was changed. */
static void a_changed_schema_of_this_version_is_carried(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    long jobs;

    (void)unused;
    all_carried();
    enqueue_with(&job);
    jobs = number("SELECT count(*) FROM jobq.job");
    RUN("DROP SCHEMA IF EXISTS jobq_old CASCADE;"
        " ALTER TABLE jobq.signal DROP COLUMN payload CASCADE");
    assert_int_equal(jobq_pg_check(pg, NULL, &error), JOBQ_ERROR_VERSION);
    if (psql(BOTH AWAY CARRY) != 0) fail_msg("%s", said);
    if (jobq_pg_check(pg, NULL, &error)) fail_msg("%s", error.message);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), jobs);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* -- setup -- */

/* A database with a schema of version 11 that has work of every kind. */
static int up(void **state)
{
    char name[350], arguments[200];

    (void)state;
    if (access(OLDER "jobq", X_OK) != 0) return 0;
    test_process = getpid();
    snprintf(outside, sizeof outside, "%s", server());
    snprintf(schema, sizeof schema, "jobq");
    db = PQconnectdb(server());
    RUN("CREATE DATABASE jobq_carry_%d", (int)getpid());
    RUN("CREATE ROLE jobq_carry_%d", (int)getpid());
    PQfinish(db);
    snprintf(name, sizeof name, "%s dbname=jobq_carry_%d", outside, (int)getpid());
    setenv("JOBQ_SERVER", name, 1);
    db = PQconnectdb(server());
    PQclear(PQexec(db, "SET client_min_messages = error"));
    pg = handle();
    snprintf(arguments, sizeof arguments,
             "-v ON_ERROR_STOP=1 -v role=jobq_carry_%d -f " OLDER "sql/install.sql "
             "-f tests/pg/carry.sql", (int)getpid());
    if (psql(arguments) == 0) return 0;
    fprintf(stderr, "%s\n", said);
    return 1;
}

static int down(void **state)
{
    (void)state;
    end_child();
    if (db == NULL) return 0;
    PQfinish(db);
    jobq_pg_close(pg);
    db = PQconnectdb(outside);
    RUN("DROP DATABASE jobq_carry_%d WITH (FORCE)", (int)getpid());
    RUN("DROP ROLE jobq_carry_%d", (int)getpid());
    PQfinish(db);
    return 0;
}

#define TEST(f) cmocka_unit_test_teardown(f, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_refused_changes_nothing),
        TEST(it_waits_for_open_transactions), /* and carries */
        TEST(a_second_run_is_refused),
        TEST(every_row_is_there_once),
        TEST(what_ran_is_rescued),
        TEST(no_id_is_given_out_twice),
        TEST(a_role_has_no_right_until_it_is_granted),
        TEST(keys_are_known),
        TEST(the_library_goes_on_with_the_work), /* drops the old schema */
        TEST(the_old_program_leaves_a_new_schema_alone),
        TEST(a_changed_schema_of_this_version_is_carried),
    };

    return cmocka_run_group_tests(tests, up, down);
}
