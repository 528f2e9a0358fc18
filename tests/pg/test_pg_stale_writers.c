/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Promise 3: no stale writer. A worker that has lost its lease, or whose claim arrives late, is
 * told so and changes nothing: no row, no dead letter, no history. Rows X6, X7, X11.
 * test_pg_outbox.c has the same of messages.
 */
#define TEST_PRIVATE
#include "processes.h"
#include "sessions.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* -- the token -- */

static const jobq_event_kind worker_events[] = {JOBQ_EVENT_SUCCESS, JOBQ_EVENT_RETRY,
                                                JOBQ_EVENT_TIMEOUT, JOBQ_EVENT_DISCARD,
                                                JOBQ_EVENT_SNOOZE,  JOBQ_EVENT_CANCELLED,
                                                JOBQ_EVENT_RELEASE, JOBQ_EVENT_PARK};

/* Settling in an open transaction, as a handler does. Whether the COMMIT was one. */
static bool settles_here(const jobq_job *job)
{
    PGresult *res;
    bool committed;

    RUN("BEGIN");
    res = PQexec(db, "SELECT 1");
    PQclear(res);
    {
        char generic[400], *text;
        snprintf(generic, sizeof generic,
                 "SELECT jobq._settle_here(%lld, %lld, %lld, 's', %d::int2, %d, 0, false, 0, NULL, "
                 "NULL, NULL)",
                 (long long)job->worker, (long long)job->claim, (long long)job->id, (int)job->stage,
                 (int)job->attempt);
        text = for_schema(generic, schema);
        res = PQexec(db, text);
        free(text);
    }
    if (PQresultStatus(res) == PGRES_FATAL_ERROR) {
        assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "JQ001");
    }
    PQclear(res);
    res = PQexec(db, "COMMIT");
    committed = strcmp(PQcmdStatus(res), "COMMIT") == 0;
    PQclear(res);
    return committed;
}

/* X7: A's lease ends, B has the job; whatever A says is lost, and B's row stays as it is. */
static void a_stale_worker_changes_nothing(void **unused)
{
    jobq_job mine, theirs;
    jobq_pg_error error;
    char *before, *after;
    size_t i;

    (void)unused;
    enqueue_count(1);
    register_worker(101, SHORT_LEASE);
    register_worker(102, 60 * SECOND);
    mine = claim_one(101, 1, false);
    nap_us(SHORT_LEASE + 50000);
    assert_int_equal(rescue(101), 1);
    theirs = claim_one(102, 1, true);
    assert_int_equal(theirs.id, mine.id);
    before = everything();
    for (i = 0; i < COUNT(worker_events); i++) {
        assert_int_equal(settle_with(&mine, worker_events[i], "late"), JOBQ_ERROR_LOST);
    }
    assert_false(settles_here(&mine));
    assert_int_equal(verb_heartbeat(pg, NULL, 101, SHORT_LEASE, &error), JOBQ_ERROR_DEAD);
    after = everything();
    assert_string_equal(before, after);
    free(before);
    free(after);
    assert_int_equal(settle_with(&theirs, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE worker = 102"), 1);
}

/* The same after the job has ended, failed, or was claimed again by the same worker. */
static void a_late_word_about_an_ended_job_changes_nothing(void **unused)
{
    jobq_job first, second;
    char *before, *after;
    size_t i;

    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    first = claim_one(101, 1, false);
    assert_int_equal(settle_with(&first, JOBQ_EVENT_RELEASE, NULL), JOBQ_OK);
    second = claim_one(101, 2, false);
    before = everything();
    for (i = 0; i < COUNT(worker_events); i++) { /* an older claim of its own */
        assert_int_equal(settle_with(&first, worker_events[i], "late"), JOBQ_ERROR_LOST);
    }
    after = everything();
    assert_string_equal(before, after);
    free(before);
    free(after);
    assert_int_equal(settle_with(&second, JOBQ_EVENT_DISCARD, "broken"), JOBQ_OK);
    before = everything();
    for (i = 0; i < COUNT(worker_events); i++) {
        assert_int_equal(settle_with(&second, worker_events[i], "late"), JOBQ_ERROR_LOST);
    }
    assert_false(settles_here(&second));
    after = everything();
    assert_string_equal(before, after);
    free(before);
    free(after);
}

/* X6 on the database: each decision writes what jobq.h says. */
static void every_event_writes_what_was_decided(void **unused)
{
    jobq_pg_job wanted = plain_job();
    jobq_policy policy = jobq_policy_defaults(NULL);
    size_t i;

    (void)unused;
    wanted.stages = 2;
    register_worker(101, 60 * SECOND);
    for (i = 0; i < COUNT(worker_events); i++) {
        int64_t id = enqueue_with(&wanted);
        jobq_job model = claim_one(101, (int64_t)i + 1, false), real;
        jobq_event event;
        jobq_decision d;
        jobq_pg_error error;
        memset(&event, 0, sizeof event);
        event.kind = worker_events[i];
        assert_int_equal(model.id, id);
        assert_int_equal(settle_with(&model, event.kind, "why"), JOBQ_OK);
        assert_int_equal(jobq_job_decide(&policy, &model, &event, &d), JOBQ_OK);
        jobq_job_apply(&model, &d, 0);
        assert_int_equal(jobq_pg_get(pg, NULL, id, &real, &error), JOBQ_OK);
        assert_int_equal(real.state, model.state);
        assert_int_equal(real.stage, model.stage);
        assert_int_equal(real.attempt, model.attempt);
        assert_int_equal(real.crash, model.crash);
        assert_int_equal(real.suspect, model.suspect);
        assert_int_equal(real.alone, model.alone);
        assert_true(real.worker == model.worker && real.claim == model.claim);
        assert_int_equal(real.run_at_us == JOBQ_NEVER, event.kind == JOBQ_EVENT_PARK);
        RUN("TRUNCATE jobq.job");
    }
}

static void a_claim_number_works_once_and_a_dead_worker_not_at_all(void **unused)
{
    verb_batch batch;
    jobq_pg_error error;

    (void)unused;
    enqueue_count(3);
    register_worker(101, SHORT_LEASE);
    claim_one(101, 1, false);
    assert_int_equal(claim_by(101, 1, 1, false, &batch), JOBQ_ERROR_EXISTS);
    assert_int_equal(claim_by(555, 1, 1, false, &batch), JOBQ_ERROR_DEAD); /* never registered */
    nap_us(SHORT_LEASE + 50000);
    rescue(101);
    assert_int_equal(claim_by(101, 2, 1, false, &batch), JOBQ_ERROR_DEAD);
    assert_int_equal(verb_heartbeat(pg, NULL, 101, SHORT_LEASE, &error), JOBQ_ERROR_DEAD);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x'"), 0);
}

static void a_cancel_request_wins_over_a_put_back(void **unused)
{
    jobq_pg_error error;
    jobq_job job;

    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    job = claim_one(101, 1, false);
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(job.id), NULL, NULL, &error), JOBQ_OK);
    assert_int_equal(settle_with(&job, JOBQ_EVENT_RETRY, "asked meanwhile"), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 'c'"), 1);
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(job.id), NULL, NULL, &error),
                     JOBQ_ERROR_TRANSITION);
}

/* Promise 7 in small: the tables as they were before the claim are put back; the old token fits
 * nowhere. */
static void after_a_restore_the_stale_worker_is_refused(void **unused)
{
    jobq_job old, again;
    char *before, *after;
    size_t i;

    (void)unused;
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    RUN("CREATE TABLE jobq.saved_job AS TABLE jobq.job");
    RUN("CREATE TABLE jobq.saved_worker AS TABLE jobq.worker");
    old = claim_one(101, 1, false);
    RUN("TRUNCATE jobq.job, jobq.worker, jobq.claim");
    RUN("INSERT INTO jobq.job SELECT * FROM jobq.saved_job");
    RUN("INSERT INTO jobq.worker SELECT * FROM jobq.saved_worker");
    RUN("DROP TABLE jobq.saved_job, jobq.saved_worker");
    before = everything();
    for (i = 0; i < COUNT(worker_events); i++) {
        assert_int_equal(settle_with(&old, worker_events[i], "from before"), JOBQ_ERROR_LOST);
    }
    assert_false(settles_here(&old));
    after = everything();
    assert_string_equal(before, after);
    free(before);
    free(after);
    register_worker(102, 60 * SECOND);
    again = claim_one(102, 1, false);
    assert_int_equal(again.id, old.id);
    assert_int_equal(settle_with(&old, JOBQ_EVENT_SUCCESS, NULL), JOBQ_ERROR_LOST);
    assert_int_equal(settle_with(&again, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
}

/* -- frozen -- */

static jobq_outcome holds_one(jobq_call *call)
{
    if (call->job.id == common->target && ADD(common->held) == 1) {
        while (GET(common->go) == 0) nap_us(1000); /* frozen in here, and let go on much later */
    }
    return effect_once(call);
}

/* X7, X11: a worker that is stopped for longer than its lease is robbed; when it goes on, it writes
 * nothing. */
static void a_frozen_worker_writes_nothing_when_it_thaws(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", holds_one);
    jobq_pg_worker_desc d = quick_death(&h, 1);
    pid_t frozen, rescuer;

    (void)unused;
    enqueue_count(1);
    common->target = number("SELECT id FROM jobq.job");
    frozen = spawn(&d);
    assert_true(reaches(20, &common->held, 1));
    kill(frozen, SIGSTOP);
    rescuer = spawn(&d);
    assert_true(becomes(30, 1, "SELECT count(*) FROM jobq.history"));
    SET(common->go, 1);
    kill(frozen, SIGCONT);
    assert_true(reaches(20, &common->lost, 1));
    nap_us(500000);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect WHERE pid = %d", (int)rescuer), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 1);
    enqueue_count(20); /* both work on: the thawed one has registered again */
    kill(rescuer, SIGTERM);
    assert_int_equal(reap(rescuer), 0);
    assert_true(becomes(20, 21, "SELECT count(*) FROM jobq.history"));
    kill(frozen, SIGTERM);
    assert_int_equal(reap(frozen), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 21);
}

/* -- half-open: a relay between a worker and the server, which can hold back what the worker sends
 * -- */

enum { PASS, HOLD_NEXT_CLAIM, HOLDING, LET_GO, GONE_THROUGH };

static char relay_path[108], server_path[108], claim_name[32];

static int unix_socket(const char *path, struct sockaddr_un *address)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path, path, strlen(path) + 1);
    return socket(AF_UNIX, SOCK_STREAM, 0);
}

static bool has(const char *bytes, size_t size, const char *word)
{
    size_t len = strlen(word) + 1, i; /* its end too */

    for (i = 0; i + len <= size; i++) {
        if (memcmp(bytes + i, word, len) == 0) return true;
    }
    return false;
}

static void pass_on(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = write(fd, bytes, size);
        if (sent <= 0) return;
        bytes += sent;
        size -= (size_t)sent;
    }
}

/* What the worker has sent here stays here, until it is let go; by then the worker has long
 * left. */
static void relay_holds(int backend, const char *held, size_t size)
{
    char answer[4096];

    SET(common->relay, HOLDING);
    while (GET(common->relay) != LET_GO) nap_us(1000);
    pass_on(backend, held, size);
    nap_us(100000);
    if (read(backend, answer, sizeof answer) < 0) _exit(1);
    nap_us(100000);
    SET(common->relay, GONE_THROUGH);
    _exit(0);
}

/* One connection, in a process of its own. */
static void relay_run(int client)
{
    struct sockaddr_un address;
    int backend = unix_socket(server_path, &address);
    char bytes[65536];

    if (connect(backend, (struct sockaddr *)&address, sizeof address) != 0) _exit(1);
    for (;;) {
        struct pollfd fds[2];
        ssize_t got;
        int from;
        fds[0].fd = client;
        fds[1].fd = backend;
        fds[0].events = fds[1].events = POLLIN;
        fds[0].revents = fds[1].revents = 0;
        poll(fds, 2, -1);
        from = fds[0].revents != 0 ? 0 : 1;
        got = read(fds[from].fd, bytes, sizeof bytes);
        if (got <= 0) _exit(0);
        if (from == 0 && GET(common->relay) == HOLD_NEXT_CLAIM &&
            has(bytes, (size_t)got, claim_name)) {
            relay_holds(backend, bytes, (size_t)got);
        }
        pass_on(fds[1 - from].fd, bytes, (size_t)got);
    }
}

static void relay_accepts(int listener)
{
    int client;

    setpgid(0, 0);
    signal(SIGCHLD, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    while ((client = accept(listener, NULL, NULL)) >= 0) {
        if (fork() == 0) relay_run(client);
        close(client);
    }
    _exit(1);
}

static char relay_dir[64];
static pid_t relay_pid;

static void relay_start(void)
{
    struct sockaddr_un address;
    int listener;

    snprintf(relay_dir, sizeof relay_dir, "/tmp/jobq_relay.%d", (int)getpid());
    snprintf(relay_path, sizeof relay_path, "%s/.s.PGSQL.5432", relay_dir);
    snprintf(server_path, sizeof server_path, "%.80s/.s.PGSQL.5432", getenv("JOBQ_SERVER_DIR"));
    jobq_pg__statement_name(&pg->texts[JOBQ_PG__CLAIM], claim_name, sizeof claim_name);
    assert_int_equal(mkdir(relay_dir, 0700), 0);
    listener = unix_socket(relay_path, &address);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 10), 0);
    relay_pid = fork();
    assert_true(relay_pid >= 0);
    if (relay_pid == 0) relay_accepts(listener);
    setpgid(relay_pid, relay_pid);
    close(listener);
}

/* Ends the relay and its connections. Also after a test that has failed. */
static int relay_stop(void **unused)
{
    if (relay_pid > 0) {
        kill(-relay_pid, SIGKILL);
        waitpid(relay_pid, NULL, 0);
        unlink(relay_path);
        rmdir(relay_dir);
        relay_pid = 0;
    }
    return all_stop(unused);
}

/* The answer of a claim never comes; the worker goes on with a new connection. The claim was not
 * lost but late: it arrives when everybody has forgotten it. Its number was burned, so it takes
 * nothing. */
static void a_claim_that_arrives_late_takes_nothing(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", slow_success);
    jobq_pg_worker_desc d = work_of(&h, 1);
    char real[300], through[300];
    pid_t pid;

    (void)unused;
    if (getenv("JOBQ_SERVER_DIR") == NULL) skip();
    relay_start();
    d.loop.lease_us = 20 * SECOND;
    d.loop.answer_us = check_slow() ? 3 * SECOND : 400000;
    snprintf(real, sizeof real, "%s", server());
    snprintf(through, sizeof through, "host=%s user=postgres dbname=postgres", relay_dir);
    setenv("JOBQ_SERVER", through, 1);
    pid = spawn(&d);
    setenv("JOBQ_SERVER", real, 1);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.worker"));
    nap_us(500000);
    SET(common->relay, HOLD_NEXT_CLAIM);
    enqueue_count(1);
    assert_true(reaches(20, &common->relay, HOLDING));
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history")); /* by another claim */
    nap_us(check_slow() ? 5 * SECOND : SECOND); /* several heartbeats */
    kill(pid, SIGSTOP);
    nap_us(200000); /* what it had sent has come through, and is done */
    assert_true(becomes(20, 0, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
                               " AND application_name LIKE 'jo%%' AND pid <> pg_backend_pid()"));
    enqueue_count(8);
    SET(common->relay, LET_GO);
    assert_true(reaches(20, &common->relay, GONE_THROUGH));
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x'"), 0);
    kill(pid, SIGCONT);
    assert_true(becomes(10, 9, "SELECT count(*) FROM jobq.history"));
    kill(pid, SIGTERM);
    assert_int_equal(reap(pid), 0);
}

/* -- a claim that waits while its worker ends -- */

/* Its first statement has found the job; the second one waits. */
static void a_claim_waits(void)
{
    enqueue_count(1);
    register_worker(101, 60 * SECOND);
    run_a("BEGIN");
    run_a("LOCK TABLE jobq.job IN SHARE MODE"); /* CREATE INDEX does so */
    b_asks(CLAIM);
}

static void the_late_claim_takes_nothing(void)
{
    run_a("COMMIT");
    is_answered("JQ002");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND attempt = 0"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.claim WHERE jobs <> '{}'"), 0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

static void a_claim_later_than_its_workers_end_takes_nothing(void **unused)
{
    (void)unused;
    a_claim_waits();
    RUN("SELECT FROM jobq._recover(101, 1, 9)");
    RUN("SELECT jobq._deregister(101)");
    assert_int_equal(number("SELECT count(*) FROM jobq.claim WHERE jobs = '{}'"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL"), 0);
    the_late_claim_takes_nothing();
}

static void a_claim_later_than_its_workers_row_takes_nothing(void **unused)
{
    (void)unused;
    a_claim_waits();
    RUN("SELECT jobq._deregister(101)");
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
    the_late_claim_takes_nothing();
}

static void a_claim_later_than_its_workers_death_takes_nothing(void **unused)
{
    (void)unused;
    a_claim_waits();
    RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 s'");
    assert_int_equal(number("SELECT dead::int FROM jobq._rescue(101, 0, 10)"), 1);
    the_late_claim_takes_nothing();
}

#define WORKER 900

static int64_t next_claim;

/* -- one flush may hold a job twice: under a dead token, and under the one that came after -- */

static void a_job_under_two_tokens_gets_two_answers(void **unused)
{
    static const jobq_event_kind kinds[] = {JOBQ_EVENT_SUCCESS, JOBQ_EVENT_DISCARD};
    jobq_policy policy = jobq_policy_defaults(NULL);
    verb_result results[2];
    jobq_error answers[2];
    jobq_pg_error error;
    jobq_job old, now;
    jobq_event event;
    size_t i, swap;

    (void)unused;
    for (i = 0; i < COUNT(kinds); i++) {
        for (swap = 0; swap < 2; swap++) {
            pg_empty(NULL);
            enqueue_count(1);
            register_worker(WORKER, 600 * SECOND);
            old = claim_one(WORKER, ++next_claim, false);
            settle_with(&old, JOBQ_EVENT_RELEASE, NULL);
            now = claim_one(WORKER, ++next_claim, false);
            memset(&event, 0, sizeof event);
            memset(results, 0, sizeof results);
            event.kind = kinds[i];
            results[swap].id = results[1 - swap].id = now.id;
            results[swap].worker = old.worker;
            results[swap].claim = old.claim;
            results[1 - swap].worker = now.worker;
            results[1 - swap].claim = now.claim;
            jobq_job_decide(&policy, &old, &event, &results[0].decision);
            jobq_job_decide(&policy, &now, &event, &results[1].decision);
            assert_int_equal(verb_settle(pg, NULL, results, 2, answers, &error), JOBQ_OK);
            assert_int_equal(answers[swap], JOBQ_ERROR_LOST);
            assert_int_equal(answers[1 - swap], JOBQ_OK);
        }
    }
}

/* -- the handler's transaction, in the stricter isolations, with the lease stolen in the middle
 * -- */

static void a_stolen_lease_refuses_the_commit_in_every_isolation(void **unused)
{
    static const char *const levels[] = {"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"};
    jobq_job mine, theirs;
    PGconn *other;
    PGresult *res;
    char text[400], *statement;
    size_t i;
    int ended;

    (void)unused;
    for (i = 0; i < COUNT(levels); i++) {
        for (ended = 0; ended < 2; ended++) {
            pg_empty(NULL);
            RUN("CREATE TABLE IF NOT EXISTS jobq.effect (job bigint)");
            RUN("TRUNCATE jobq.effect");
            enqueue_count(1);
            register_worker(101, 600 * SECOND);
            register_worker(102, 600 * SECOND);
            mine = claim_one(101, 1, false);
            other = PQconnectdb(server());
            snprintf(text, sizeof text, "BEGIN ISOLATION LEVEL %s", levels[i]);
            PQclear(PQexec(other, text));
            PQclear(sql(other, "INSERT INTO jobq.effect VALUES (%lld)",
                        (long long)mine.id)); /* the snapshot */
            RUN("UPDATE jobq.worker SET expires_at = now() - interval '1 s' WHERE id = 101");
            RUN("SELECT jobq._rescue(101, 0, 10)");
            theirs = claim_one(102, 1, true);
            if (ended) assert_int_equal(settle_with(&theirs, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
            snprintf(text, sizeof text,
                     "SELECT jobq._settle_here(101, 1, %lld, 's', 0::int2, 1, 0, false, 0, NULL, "
                     "NULL, NULL)",
                     (long long)mine.id);
            statement = for_schema(text, schema);
            res = PQexec(other, statement);
            free(statement);
            assert_int_equal(PQresultStatus(res), PGRES_FATAL_ERROR);
            PQclear(res);
            res = PQexec(other, "COMMIT");
            assert_string_equal(PQcmdStatus(res), "ROLLBACK");
            PQclear(res);
            PQfinish(other);
            assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 0);
            assert_int_equal(number("SELECT count(*) FROM jobq.job"), !ended);
        }
    }
}

static void the_dead_do_not_sleep(void **unused)
{
    int32_t queue = register_worker(WORKER, 600 * SECOND);

    (void)unused;
    RUN("SELECT jobq._sleep(%d, ARRAY[%d], true)", WORKER, (int)queue);
    assert_int_equal(number("SELECT count(*) FROM jobq.sleeper"), 1);
    RUN("SELECT jobq._sleep(%d, ARRAY[%d], false)", WORKER, (int)queue);
    RUN("UPDATE jobq.worker SET dead_at = now()");
    RUN("SELECT jobq._sleep(%d, ARRAY[%d], true)", WORKER, (int)queue);
    RUN("SELECT jobq._sleep(%d, ARRAY[%d], true)", WORKER + 1, (int)queue); /* never was */
    assert_int_equal(number("SELECT count(*) FROM jobq.sleeper"), 0);
}

#define TEST(test, set_up) cmocka_unit_test_setup_teardown(test, set_up, all_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_stale_worker_changes_nothing, fresh),
        TEST(a_late_word_about_an_ended_job_changes_nothing, fresh),
        TEST(every_event_writes_what_was_decided, fresh),
        TEST(a_claim_number_works_once_and_a_dead_worker_not_at_all, fresh),
        TEST(a_cancel_request_wins_over_a_put_back, fresh),
        TEST(after_a_restore_the_stale_worker_is_refused, fresh),
        TEST(a_frozen_worker_writes_nothing_when_it_thaws, fresh_effects),
        cmocka_unit_test_setup_teardown(a_claim_that_arrives_late_takes_nothing, fresh_effects,
                                        relay_stop),
        WITH_TWO(a_claim_later_than_its_workers_end_takes_nothing),
        WITH_TWO(a_claim_later_than_its_workers_row_takes_nothing),
        WITH_TWO(a_claim_later_than_its_workers_death_takes_nothing),
        TEST(the_dead_do_not_sleep, fresh),
        TEST(a_job_under_two_tokens_gets_two_answers, fresh),
        TEST(a_stolen_lease_refuses_the_commit_in_every_isolation, fresh),
    };

    return cmocka_run_group_tests_name("stale writers", tests, common_up, pg_down);
}
