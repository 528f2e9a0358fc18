/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_doctor.c -- jobq doctor: each fault is planted, found, and mended.
 */
#include "pg_work.h"

#define BINARY ".build/examples/jobq/jobq"

static char out[1 << 18];
static int code; /* the latest exit code */
static PGconn *holder; /* what it holds ends with the test */

/* Runs jobq doctor, after the words before. */
static void run_doctor(const char *before, const char *after)
{
    const char *program = getenv("JOBQ_PROGRAM") != NULL ? getenv("JOBQ_PROGRAM") : BINARY;
    char command[2000];
    FILE *pipe;
    int status;

    snprintf(command, sizeof command, "%s timeout 60 %s -d \"%s\" --schema %s doctor %s 2>&1",
             before, program, server(), schema, after);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    out[fread(out, 1, sizeof out - 1, pipe)] = '\0';
    status = pclose(pipe);
    code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The finding of a check; NULL: there is none. */
static const char *finding(const char *check)
{
    char head[40];
    const char *at;

    snprintf(head, sizeof head, "%s: ", check);
    if (strncmp(out, head, strlen(head)) == 0) return out;
    snprintf(head, sizeof head, "\n%s: ", check);
    at = strstr(out, head);
    return at == NULL ? NULL : at + 1;
}

/* The check now finds this, and tells to run that. */
static void finds(const char *check, const char *what, const char *run)
{
    run_doctor("", "");
    if (code != 1 || finding(check) == NULL || strstr(out, what) == NULL ||
        strstr(out, run) == NULL) {
        fail_msg("no %s: \"%s\", \"%s\", exit code %d in:\n%s", check, what, run, code, out);
    }
}

static void is_silent(const char *check)
{
    run_doctor("", "");
    if (finding(check) != NULL) fail_msg("%s in:\n%s", check, out);
}

/* Silent, then not; mended, silent again. */
static void planted(const char *check, const char *plant, const char *mend, const char *what,
                    const char *run)
{
    is_silent(check);
    RUN("%s", plant);
    finds(check, what, run);
    RUN("%s", mend);
    is_silent(check);
}

/* A private server may have fsync off, which is a finding. */
static void is_well(const char *when)
{
    const char *line;

    run_doctor("", "");
    for (line = out; *line != '\0'; line = strchr(line, '\n') + 1) {
        if (strncmp(line, "durability: ", 12) != 0 && strncmp(line, "    ", 4) != 0 &&
            strncmp(line, "nothing found", 13) != 0) fail_msg("%s, %s", when, out);
    }
    assert_int_equal(code, strstr(out, "nothing found") == NULL);
}

static jobq_outcome fails_now_and_then(jobq_call *call)
{
    (void)call;
    return ADD(runs) % 4 != 0 ? JOBQ_OUTCOME_SUCCESS : JOBQ_OUTCOME_DISCARD;
}

static jobq_outcome discards(jobq_call *call)
{
    (void)call;
    ADD(runs);
    return JOBQ_OUTCOME_DISCARD;
}

static void a_healthy_schema_has_no_finding(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", fails_now_and_then);
    jobq_pg_worker_desc d = work_of(&h, 1);

    (void)unused;
    is_well("fresh");
    start(&d);
    enqueue_count(3);
    assert_true(reaches(20, &runs, 3));
    is_well("idle");
    RUN("SELECT jobq.enqueue('q', 'k', after => ARRAY[jobq.enqueue('q', 'k')], flow => f)"
        " FROM jobq.flow('f', on_failure => 'run') AS f, generate_series(1, 200)");
    enqueue_count(2000);
    while (GET(runs) < 1500) is_well("busy");
}

static void faults_of_the_schema(void **unused)
{
    (void)unused;
    enqueue_count(1);
    planted("version",
            "UPDATE jobq.meta SET library_min = library_min + 994, version = version + 994",
            "UPDATE jobq.meta SET library_min = library_min - 994, version = version - 994",
            "1006", "newer headers");
    planted("version", "UPDATE jobq.meta SET version = 11", "UPDATE jobq.meta SET version = 12",
            "version 11, which was never released", "examples/carry.sql");
    planted("version", "DROP INDEX jobq.job_flow",
            "CREATE INDEX job_flow ON jobq.job (flow_id) WHERE flow_id > 0",
            "index job_flow is missing", "psql -f sql/install.sql");
    planted("copy", "UPDATE jobq.meta SET home = 'elsewhere'",
            "UPDATE jobq.meta SET home = jobq._here()", "is a copy of another one",
            "renew(home => true)");
    RUN("SELECT jobq.pause('q')");
    planted("sequence", "UPDATE jobq.job SET id = id + 5000000",
            "UPDATE jobq.job SET id = id - 5000000", "a job has the id 50", ".renew()");
    planted("audit", "UPDATE jobq.job SET state = 'x', worker = 7, claim = 1",
            "UPDATE jobq.job SET state = 'r', worker = NULL, claim = NULL",
            "1 rows contradict each other", ".mend(");
    planted("fillfactor", "ALTER TABLE jobq.job SET (fillfactor = 100)",
            "ALTER TABLE jobq.job SET (fillfactor = 45)", "is 100, not 45",
            "SET (fillfactor = 45)");
    planted("vacuum", "ALTER TABLE jobq.job SET (autovacuum_enabled = false)",
            "ALTER TABLE jobq.job RESET (autovacuum_enabled)", "autovacuum is off for",
            "RESET (autovacuum_enabled)");
    planted("history", "UPDATE jobq.ring SET since = now() - interval '9 days' "
            "WHERE retention = 'medium'", "UPDATE jobq.ring SET since = now()",
            "the history of class medium should turn every 03:25", ".turn()");
    planted("history", "ALTER TABLE jobq.history DETACH PARTITION jobq.history_9",
            "ALTER TABLE jobq.history ATTACH PARTITION jobq.history_9 FOR VALUES IN (9)",
            "part history_9 of the history has been detached: when class medium", "attach it");
    planted("unlogged", "ALTER TABLE jobq.job SET UNLOGGED", "ALTER TABLE jobq.job SET LOGGED",
            "critical: table job is unlogged", ".job SET LOGGED");
    planted("triggers", "CREATE FUNCTION public.jobq_swallows() RETURNS trigger LANGUAGE plpgsql "
            "AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER swallows BEFORE INSERT ON jobq.failed "
            "FOR EACH ROW EXECUTE FUNCTION public.jobq_swallows()",
            "DROP FUNCTION public.jobq_swallows() CASCADE",
            "trigger swallows of table failed runs in", "DROP TRIGGER swallows ON");
    planted("triggers", "CREATE RULE swallows AS ON INSERT TO jobq.failed DO INSTEAD NOTHING",
            "DROP RULE swallows ON jobq.failed", "rule swallows of table failed changes",
            "DROP RULE swallows ON");
    planted("bench", "CREATE SCHEMA jobq_bench_1", "DROP SCHEMA jobq_bench_1",
            "schema jobq_bench_1 was left behind", "DROP SCHEMA jobq_bench_1 CASCADE");
    RUN("SET application_name = 'jobq_bench_1'; CREATE SCHEMA jobq_bench_1");
    is_silent("bench"); /* it runs */
    RUN("DROP SCHEMA jobq_bench_1; RESET application_name");
    planted("indexes", "UPDATE pg_index SET indisvalid = false "
            "WHERE indexrelid = 'jobq.job_flow'::regclass",
            "UPDATE pg_index SET indisvalid = true WHERE indexrelid = 'jobq.job_flow'::regclass",
            "job_flow is invalid", "REINDEX INDEX CONCURRENTLY");
}

/* What Citus knows: a distributed table, none of the schema. The server has no Citus. */
static void faults_of_a_set_up_with_citus(void **unused)
{
    (void)unused;
    planted("citus", CITUS_IS_THERE, CITUS_IS_GONE, "may be committed in half",
            ".citus_join() -- at the coordinator");
    planted("citus", CITUS_IS_THERE "UPDATE pg_dist_partition SET partmethod = 'n', repmodel = 't'",
            CITUS_IS_GONE, "may be committed in half", ".citus_join()");
    RUN(CITUS_IS_THERE "INSERT INTO pg_dist_partition VALUES ('jobq.job', 'n', 3, 's')");
    is_silent("citus"); /* the schema is distributed itself */
    RUN("UPDATE pg_dist_partition SET partmethod = 'n', colocationid = 0;"
        " DELETE FROM pg_dist_partition WHERE logicalrelid = 'jobq.job'::regclass");
    is_silent("citus"); /* Citus knows only local tables */
    RUN(CITUS_IS_GONE);
}

static void faults_of_the_work(void **unused)
{
    (void)unused;
    planted("waits", "SELECT jobq.enqueue('q', 'k'); SELECT jobq.enqueue('q', 'k', after => "
            "ARRAY[max(id)]) FROM jobq.job; INSERT INTO jobq.edge (parent, child) SELECT "
            "max(id), min(id) FROM jobq.job", "DELETE FROM jobq.edge; DELETE FROM jobq.job",
            "waits for one that waits for it", ".explain_job(");
    planted("workers", "SELECT jobq.work_join('{\"q\": [\"k\"]}')", "DELETE FROM jobq.worker",
            "only workers in SQL live", "start a worker in C");
    planted("workers", "SELECT jobq.enqueue('q', 'k')", "DELETE FROM jobq.job",
            "no living worker serves queue q, in which jobs are ready: 1", "work --queue q");
    enqueue_count(1);
    planted("paused", "SELECT jobq.pause('q')", "SELECT jobq.resume('q')",
            "queue q is paused; ready jobs: 1", ".resume('q')");
    planted("kinds", "UPDATE jobq.kind SET parked_at = now()",
            "UPDATE jobq.kind SET parked_at = NULL",
            "no living worker has a handler for kind k of queue q", ".cancel(");
    RUN("SELECT jobq.work_join('{\"q\": [\"other\"]}')");
    planted("kinds", "UPDATE jobq.job SET run_at = now() - interval '2 minutes'",
            "UPDATE jobq.job SET run_at = now()",
            "no living worker has a handler for kind k of queue q, whose jobs", ".cancel(");
    RUN("SELECT jobq.schedule('nightly', 'q', 'k', every => '1 hour')");
    planted("schedules", "UPDATE jobq.schedule SET next_at = now() - interval '2 minutes'",
            "UPDATE jobq.schedule SET next_at = now() + interval '1 hour'",
            "schedule nightly is late", "select why");
    RUN("SELECT jobq.outbox_register('o', 1)");
    planted("outbox", "UPDATE jobq.partition SET error = 'no host'",
            "UPDATE jobq.partition SET error = NULL",
            "partition 0 of queue o is in trouble: no host", "where queue = 'o'");
    planted("outbox", "UPDATE jobq.partition SET effective = 1",
            "UPDATE jobq.partition SET effective = 0",
            "partition 0 of queue o is in trouble: degraded", "where queue = 'o'");
}

/* Ends of jobs, the newest last. */
static void ends(int count, bool well)
{
    jobq_pg_handler h = handler_of("q", "k", well ? succeed : discards);
    jobq_pg_worker_desc d = work_of(&h, 1);
    int before = GET(runs);

    enqueue_count((size_t)count);
    start(&d);
    assert_true(reaches(60, &runs, before + count));
    all_stop(NULL);
}

static void work_that_somebody_has_stopped(void **unused)
{
    (void)unused;
    enqueue_count(3);
    RUN("SELECT jobq.enqueue('q', 'other'); SELECT jobq.enqueue('q', 'k', line => 'ann')");
    planted("paused", "SELECT jobq.pause('q', 'k')", "SELECT jobq.resume('q', 'k')",
            "warning: kind k of queue q is paused; ready jobs: 4", ".resume('q', 'k')");
    planted("paused", "SELECT jobq.line_set('q', 'ann', paused => true)",
            "SELECT jobq.line_set('q', 'ann', paused => false)",
            "line ann of queue q is paused; ready jobs: 1",
            ".line_set('q', 'ann', paused => false)");
    RUN("SELECT jobq.line_set('q', 'bob', paused => true)");
    RUN("SELECT jobq.queue_set('r', kinds => '{k}')");
    RUN("SELECT jobq.pause('r'), jobq.pause('r', 'k')");
    is_silent("paused"); /* nothing waits there */
    RUN("SELECT jobq.cancel('q')");
    ends(1, false);
    planted("held", "SELECT jobq.enqueue('q', 'k', after => ARRAY[max(id)]) FROM jobq.failed",
            "SELECT jobq.cancel(max(id)) FROM jobq.job",
            "work outside of flows is held: 1 jobs wait for some that have failed",
            ".explain_job(");
    planted("held", "SELECT jobq.enqueue('q', 'k', after => ARRAY[max(id)], "
            "flow => (SELECT jobq.flow('nightly'))) FROM jobq.failed",
            "SELECT jobq.flow_cancel(max(id)) FROM jobq.flow",
            "(nightly) is held: 1 jobs wait", ".flow_revive(");
}

/* Each finding about work says since when, so that the one who reads it knows what changed then. */
static void findings_say_since_when(void **unused)
{
#define THEN "'2026-01-02 03:04:05Z'"
    static const char then[] = "2026-01-02 03:04:05+00";
    char text[200], *first;

    (void)unused;
    setenv("PGTZ", "UTC", 1);
    enqueue_count(2);
    RUN("SELECT jobq.work_join('{\"q\": [\"k\"]}', name => 'mailer'), jobq.pause('q')");
    RUN("UPDATE jobq.job SET run_at = " THEN);
    RUN("UPDATE jobq.worker SET beat_at = " THEN ", expires_at = " THEN ", dead_at = now()");
    RUN("UPDATE jobq.queue SET paused_at = " THEN);
    snprintf(text, sizeof text, "queue q is paused; ready jobs: 2; paused since %s", then);
    finds("paused", text, "resume");
    RUN("SELECT jobq.resume('q')");
    snprintf(text, sizeof text, "in which jobs are ready: 2, the oldest since %s; its last worker, "
             "mailer, was last seen at %s", then, then);
    finds("workers", text, "work --queue q");
    RUN("DELETE FROM jobq.job; DELETE FROM jobq.worker");
    RUN("SELECT jobq.outbox_register('o', 1)");
    RUN("INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at, "
        "attempts) SELECT queue_id, id, 7, now(), " THEN ", 3 FROM jobq.partition");
    snprintf(text, sizeof text, "wait for somebody: 1, the oldest since %s", then);
    finds("dead_letters", text, "outbox list o");
    ends(12, false);
    RUN("UPDATE jobq.failed SET finished_at = date_trunc('second', now() - interval '5 min') "
        "WHERE id = (SELECT min(id) FROM jobq.failed)");
    first = text_of("SELECT to_char(min(finished_at) AT TIME ZONE 'UTC', "
                    "'YYYY-MM-DD HH24:MI:SS') || '+00' FROM jobq.failed");
    snprintf(text, sizeof text, "in the last hour 12 jobs have failed, the first of them at %s",
             first);
    finds("failing", text, ".revive('q')");
    free(first);
    unsetenv("PGTZ");
}

/* A reader that has done nothing for a week, with what it costs; one that moves is only slow. */
static void a_reader_that_is_dead(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.outbox_register('t', 0), jobq.outbox_register('o', 2), "
        "jobq.subscribe('o', 't', 'o'), jobq.subscribe('j', 't', 'q', 'k')");
    RUN("SELECT jobq.outbox_enqueue('t', jsonb_build_array(repeat('x', 1000)), "
        "order_key => k::text) FROM generate_series(1, 30) k");
    planted("readers", "UPDATE jobq.message SET created_at = now() - interval '8 days'",
            "UPDATE jobq.message SET created_at = now()",
            "warning: the reader of subscription o has been dead for a week: queue o keeps 30 "
            "copies for it, 3", "unsubscribe('o', drop => true)");
    RUN("UPDATE jobq.message SET created_at = now() - interval '8 days'");
    RUN("UPDATE jobq.partition SET beat_at = now()");
    is_silent("readers");
    planted("readers", "UPDATE jobq.job SET run_at = now() - interval '8 days', "
            "enqueued_at = now() - interval '8 days'", "UPDATE jobq.job SET run_at = now()",
            "subscription j has been dead for a week: queue q keeps 30 copies for it, ",
            "unsubscribe('j', drop => true)");
    planted("readers", "UPDATE jobq.kind SET parked_at = now() - interval '8 days'",
            "UPDATE jobq.kind SET parked_at = NULL", "subscription j has been dead",
            "start its worker");
}

static void messages_that_nobody_takes(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.outbox_register('o', 2)");
    RUN("SELECT jobq.outbox_enqueue('o', '1', partition => 0)");
    planted("relays", "UPDATE jobq.message SET created_at = now() - interval '12 minutes'",
            "UPDATE jobq.message SET created_at = now()",
            "critical: no worker relays the messages of queue o: 1 wait, the oldest", "a receiver");
    RUN("UPDATE jobq.message SET created_at = now() - interval '12 minutes'");
    RUN("UPDATE jobq.partition SET worker = 1, claim = 1, reading = 1, beat_at = now(), "
        "lease_until = now() + interval '1 minute', numbered = 1, ids = '{1}' WHERE number = 0");
    is_silent("relays");
    RUN("DELETE FROM jobq.message");
    planted("dead_letters", "INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, "
            "created_at, failed_at, attempts) SELECT queue_id, id, 7, now(), now(), 3 "
            "FROM jobq.partition",
            "SELECT jobq.dead_letter_discard('o')",
            "dead letters of queue o wait for somebody: 2", "outbox list o");
}

static void a_queue_that_only_fails(void **unused)
{
    (void)unused;
    ends(5, true);
    ends(9, false);
    is_silent("failing");
    ends(1, false);
    finds("failing", "critical: queue q only fails", ".failures where queue = 'q'");
    ends(1, true);
    is_silent("failing");
    ends(10, false);
    finds("failing", "critical: queue q only fails", ".failures where queue = 'q'");
    RUN("UPDATE jobq.failed SET finished_at = finished_at - interval '2 hours'");
    is_silent("failing");
    RUN("SELECT jobq.queue_set('q', history => false)");
    ends(10, false);
    is_silent("failing"); /* whether any has succeeded, nobody can say */
    register_worker(7, 3600 * SECOND);
    RUN("INSERT INTO jobq.tally (worker, queue_id, kind_id, number, counts) "
        "SELECT 7, q.id, k.id, 1, '{0,15,5}' FROM jobq.queue q "
        "JOIN jobq.kind k ON k.queue_id = q.id");
    finds("failing", "of 20 attempts at jobs of kind k of queue q", "live_jobs where queue = 'q'");
    RUN("UPDATE jobq.tally SET counts[1] = 1");
    is_silent("failing");
    RUN("DELETE FROM jobq.worker");
}

/* It ends, and says who has the lock. */
static void a_table_that_somebody_has_locked(void **unused)
{
    char session[60];

    (void)unused;
    holder = PQconnectdb(server());
    snprintf(session, sizeof session, "session %d (maintenance)", PQbackendPID(holder));
    PQclear(sql(holder, "SET application_name = 'maintenance'"));
    PQclear(sql(holder, "BEGIN; LOCK TABLE jobq.job IN ACCESS EXCLUSIVE MODE"));
    finds("locks", "critical: not checked, because session", "pg_terminate_backend(");
    assert_non_null(strstr(out, session));
    assert_non_null(strstr(out, "has locked table job: "));
    PQclear(sql(holder, "ROLLBACK; BEGIN; LOCK TABLE jobq.meta IN ACCESS EXCLUSIVE MODE"));
    finds("locks", "has locked table meta: ", "pg_terminate_backend(");
    PQclear(sql(holder, "ROLLBACK"));
    is_silent("locks");
}

/* An operator's verb waits for a row that another session has changed. */
static void a_session_that_keeps_another_waiting(void **unused)
{
    PGconn *waits = PQconnectdb(server());
    char session[60], *text = for_schema("SELECT jobq.pause('q')", schema);

    (void)unused;
    enqueue_count(1);
    holder = PQconnectdb(server());
    snprintf(session, sizeof session, "session %d (", PQbackendPID(holder));
    PQclear(sql(holder, "BEGIN; SELECT jobq.pause('q')"));
    assert_int_equal(PQsendQuery(waits, text), 1);
    assert_true(becomes(60, 1, "SELECT count(*) FROM pg_locks WHERE NOT granted "
                               "AND waitstart < clock_timestamp() - interval '5 seconds'"));
    finds("locks", "keeps 1 sessions waiting for rows or tables", "pg_terminate_backend(");
    assert_non_null(strstr(out, session));
    PQclear(sql(holder, "ROLLBACK"));
    PQfinish(waits);
    free(text);
    is_silent("locks");
}

static void put_32(char *at, uint32_t value)
{
    int i;

    for (i = 0; i < 4; i++) at[i] = (char)(value >> (24 - 8 * i));
}

/* Makes a replication slot, and tells the server what a standby with hot_standby_feedback tells it:
 * which rows it still needs. False: this server lets nobody replicate. */
static bool slot_holds(void)
{
    char text[600], note[25] = {'h'}, *from = text_of("SELECT pg_current_wal_lsn()");
    long xid = number("SELECT pg_current_xact_id()::text::bigint");
    PGconn *standby;
    PGresult *res;
    bool may;

    snprintf(text, sizeof text, "%s replication=true", server());
    standby = PQconnectdb(text);
    may = PQstatus(standby) == CONNECTION_OK;
    PQclear(PQexec(standby, "CREATE_REPLICATION_SLOT jobq_doctor PHYSICAL RESERVE_WAL"));
    snprintf(text, sizeof text, "START_REPLICATION SLOT jobq_doctor PHYSICAL %s", from);
    res = PQexec(standby, text);
    if (may && PQresultStatus(res) != PGRES_COPY_BOTH) fail_msg("%s", PQerrorMessage(standby));
    put_32(note + 9, (uint32_t)xid); /* after the time of the message */
    put_32(note + 13, (uint32_t)(xid >> 32));
    if (may) assert_true(PQputCopyData(standby, note, sizeof note) == 1 && PQflush(standby) == 0);
    if (may) assert_true(becomes(20, 1, "SELECT count(xmin) FROM pg_replication_slots WHERE "
                                        "slot_name = 'jobq_doctor'"));
    PQclear(res);
    PQfinish(standby);
    free(from);
    return may;
}

static void slot_goes(void)
{
    assert_true(becomes(20, 0, "SELECT count(*) FROM pg_replication_slots WHERE active AND "
                               "slot_name = 'jobq_doctor'"));
    RUN("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
        "WHERE slot_name = 'jobq_doctor'");
}

static void a_snapshot_that_is_held(void **unused)
{
    bool prepares, replicates;

    (void)unused;
    holder = PQconnectdb(server());
    PQclear(PQexec(holder, "BEGIN ISOLATION LEVEL REPEATABLE READ"));
    PQclear(PQexec(holder, "SELECT count(*) FROM pg_class"));
    is_silent("snapshot");
    prepares = number("SELECT current_setting('max_prepared_transactions')::int") > 0;
    if (prepares) RUN("BEGIN; CREATE TABLE jobq.held (); PREPARE TRANSACTION 'jobq_doctor'");
    replicates = slot_holds();
    assert_true(replicates || getenv("JOBQ_SERVER_DIR") == NULL); /* our own server lets us */
    PQclear(PQexec(db, "DO $$ BEGIN FOR i IN 1 .. 100001 LOOP PERFORM pg_current_xact_id(); "
                       "COMMIT; END LOOP; END $$"));
    finds("snapshot", "has held a snapshot since", "pg_terminate_backend(");
    if (prepares) {
        finds("snapshot", "prepared transaction jobq_doctor (", "ROLLBACK PREPARED 'jobq_doctor'");
        RUN("ROLLBACK PREPARED 'jobq_doctor'");
    }
    if (replicates) finds("snapshot", "slot jobq_doctor (slot) has held a snapshot since",
                          "pg_drop_replication_slot('jobq_doctor')");
    slot_goes();
    PQfinish(holder);
    holder = NULL;
    nap_us(100000);
    is_silent("snapshot");
}

/* It grows while a session that LISTENs stays in a transaction. */
static void a_full_queue_of_notifications(void **unused)
{
    (void)unused;
    if (PQserverVersion(db) < 170000) skip(); /* that of the tests' server is small from 17 on */
    is_silent("notifications");
    holder = PQconnectdb(server());
    PQclear(sql(holder, "LISTEN filler"));
    PQclear(sql(holder, "BEGIN; SELECT 1"));
    /* 2 % of that queue */
    RUN("SELECT pg_notify('filler', i || repeat('x', 7900)) FROM generate_series(1, 20) i");
    finds("notifications", "queue of notifications is", "pg_terminate_backend(pid)");
}

static void a_prepared_transaction(void **unused)
{
    PGresult *res;

    (void)unused;
    if (number("SELECT current_setting('max_prepared_transactions')::int") == 0) skip();
    holder = PQconnectdb(server());
    PQclear(PQexec(holder, "ROLLBACK PREPARED 'jobq_doctor'")); /* of a run that failed */
    enqueue_count(1);
    PQclear(sql(holder, "BEGIN; UPDATE jobq.job SET run_at = run_at"));
    res = PQexec(holder, "PREPARE TRANSACTION 'jobq_doctor'");
    if (PQresultStatus(res) != PGRES_COMMAND_OK) fail_msg("%s", PQresultErrorMessage(res));
    PQclear(res);
    is_silent("prepared");
    nap_us(5200000);
    finds("prepared", "prepared transaction jobq_doctor has held rows of",
          "COMMIT PREPARED 'jobq_doctor'");
    PQclear(PQexec(holder, "ROLLBACK PREPARED 'jobq_doctor'"));
    is_silent("prepared");
}

/* A job that has run, and whose key an enqueue has locked that does not commit. */
static void a_result_that_waits(void **unused)
{
    jobq_pg_job job = plain_job();
    int64_t until = mono_us() + 60 * SECOND;

    (void)unused;
    job.key = "a-key";
    enqueue_with(&job);
    register_worker(7, 3600 * SECOND);
    assert_int_equal(number("SELECT count(*) FROM jobq._claim(7, 1, 1, ARRAY(SELECT id FROM"
                            " jobq.queue WHERE name = 'q'), '{0}', '{0}', '{-infinity}', '{0}',"
                            " NULL, false, false, false, false)"), 1);
    is_silent("results");
    holder = PQconnectdb(server());
    PQclear(sql(holder, "BEGIN; SET LOCAL application_name = 'producer';"
                        " SELECT FROM jobq.idempotency FOR UPDATE"));
    do run_doctor("", "");
    while (finding("results") == NULL && mono_us() < until);
    finds("results", "cannot be written: session ", "pg_terminate_backend(");
    PQclear(PQexec(holder, "ROLLBACK"));
    is_silent("results");
    RUN("DELETE FROM jobq.job; DELETE FROM jobq.claim; DELETE FROM jobq.worker");
}

static void tables_that_have_grown(void **unused)
{
    (void)unused;
    is_silent("indexes");
    RUN("INSERT INTO jobq.edge (parent, child) SELECT n, n + 1 FROM generate_series(1, 300000) n");
    RUN("DELETE FROM jobq.edge");
    PQclear(sql(db, "VACUUM jobq.edge"));
    finds("indexes", "edge", "REINDEX INDEX CONCURRENTLY");
    RUN("TRUNCATE jobq.edge");
    PQclear(sql(db, "VACUUM jobq.edge"));
    is_silent("indexes");
    is_silent("updates");
    RUN("INSERT INTO jobq.flow_part (flow_id, part) SELECT 1, n FROM generate_series(1, 11000) n");
    RUN("UPDATE jobq.flow_part SET part = -part");
    nap_us(1100000); /* statistics are written once a second */
    RUN("SELECT 1");
    finds("updates", "updates of table flow_part only", "\\d ");
    RUN("TRUNCATE jobq.flow_part");
    RUN("SELECT pg_stat_reset_single_table_counters('jobq.flow_part'::regclass)");
    /* Before version 15 the server resets it later. */
    assert_true(becomes(20, 0, "SELECT n_tup_upd FROM pg_stat_user_tables "
                               "WHERE relid = 'jobq.flow_part'::regclass"));
    is_silent("updates");
}

static void settings_of_the_server(void **unused)
{
    char *name = text_of("SELECT quote_ident(current_database())");

    (void)unused;
    run_doctor("", "");
    assert_null(strstr(out, "synchronous_commit"));
    RUN("ALTER DATABASE %s SET synchronous_commit = off", name);
    finds("durability", "synchronous_commit is off", "ALTER SYSTEM SET synchronous_commit = on");
    RUN("ALTER DATABASE %s RESET synchronous_commit", name);
    free(name);
    run_doctor("", "");
    assert_int_equal(strstr(out, "fsync is off: a crash") != NULL,
                     number("SELECT (current_setting('fsync') = 'off')::int"));
    if (getenv("JOBQ_SERVER_DIR") == NULL) return; /* a server that is not ours */
    is_silent("vacuum");
    RUN("ALTER SYSTEM SET autovacuum = off");
    RUN("SELECT pg_reload_conf()");
    assert_true(becomes(20, 0, "SELECT count(*) FROM pg_settings WHERE name = 'autovacuum' AND "
                               "setting = 'on'"));
    finds("vacuum", "autovacuum is off, so dead rows stay", "ALTER SYSTEM SET autovacuum = on");
    RUN("ALTER SYSTEM RESET autovacuum");
    RUN("SELECT pg_reload_conf()");
}

static void connections_that_are_taken(void **unused)
{
    PGconn *taken[300];
    int count = 0, most = (int)number("SELECT current_setting('max_connections')::int - "
                                      "current_setting('superuser_reserved_connections')::int");

    (void)unused;
    if (most > 300) skip();
    is_silent("connections");
    while (number("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'") <=
           most * 9 / 10) taken[count++] = PQconnectdb(server());
    finds("connections", "connections are taken", "a pooler");
    while (count > 0) PQfinish(taken[--count]);
    nap_us(200000);
    is_silent("connections");
}

static void a_clock_that_differs(void **unused)
{
    (void)unused;
    if (!HAS_FAKETIME) skip();
    is_silent("clock");
    run_doctor("faketime -f +1h", "");
    assert_non_null(finding("clock"));
    assert_non_null(strstr(out, "ahead of the server's"));
    assert_int_equal(code, 1);
}

static void what_a_role_may_not_see_was_not_checked(void **unused)
{
    char role[100];

    (void)unused;
    RUN("CREATE ROLE %s_doctor LOGIN", schema);
    RUN("GRANT USAGE ON SCHEMA jobq TO %s_doctor", schema);
    RUN("GRANT SELECT ON jobq.meta TO %s_doctor", schema);
    snprintf(role, sizeof role, "PGOPTIONS='-c role=%s_doctor'", schema);
    run_doctor(role, "--json");
    assert_int_equal(code, 1);
    assert_non_null(strstr(out, "{\"check\" : \"doctor\", \"severity\" : \"notice\""));
    RUN("DROP OWNED BY %s_doctor", schema);
    RUN("DROP ROLE %s_doctor", schema);
}

static int doctor_up(void **state)
{
    if (getenv("JOBQ_PROGRAM") == NULL && system("make -s " BINARY " >/dev/null") != 0) return 1;
    return pg_up(state);
}

/* What a test that failed leaves would make the next one wait for ever, or look like Citus. */
static int doctor_down(void **state)
{
    PQfinish(holder);
    holder = NULL;
    PQclear(PQexec(db, "ROLLBACK PREPARED 'jobq_doctor'"));
    slot_goes();
    RUN("SET allow_system_table_mods = on; " CITUS_IS_GONE);
    return all_stop(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, fresh, doctor_down)
        T(a_healthy_schema_has_no_finding),
        T(faults_of_the_schema),
        T(faults_of_a_set_up_with_citus),
        T(faults_of_the_work),
        T(work_that_somebody_has_stopped),
        T(findings_say_since_when),
        T(a_reader_that_is_dead),
        T(messages_that_nobody_takes),
        T(a_queue_that_only_fails),
        T(a_table_that_somebody_has_locked),
        T(a_session_that_keeps_another_waiting),
        T(a_snapshot_that_is_held),
        T(a_full_queue_of_notifications),
        T(a_prepared_transaction),
        T(a_result_that_waits),
        T(tables_that_have_grown),
        T(settings_of_the_server),
        T(connections_that_are_taken),
        T(a_clock_that_differs),
        T(what_a_role_may_not_see_was_not_checked),
    };

    return cmocka_run_group_tests_name("doctor", tests, doctor_up, pg_down);
}
