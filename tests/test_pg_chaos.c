/*
 * Worker processes are killed, frozen and cut off, and the server crashes: nothing is lost, and
 * effects happen once. Rows X3, X5, X7, X11; promises 1 to 5 and 7.
 */
#define TEST_PRIVATE
#include "pg_work.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define EFFECTS "CREATE TABLE jobq.effect (job bigint, stage int, pid int)"

/* What the processes of a test share. */
typedef struct board {
    int runs, lost, held;
    int64_t target; /* the job that is special */
    int go;         /* what holds goes on */
    int relay;      /* what the relay is to do, and has done */
} board;

static board *b;

static int fresh(void **state)
{
    pg_empty(state);
    memset(b, 0, sizeof *b);
    RUN("DROP TABLE IF EXISTS jobq.effect");
    RUN(EFFECTS);
    return 0;
}

static void statement(PGconn *conn, const char *format, ...)
{
    char generic[300], *text;
    va_list args;

    va_start(args, format);
    vsnprintf(generic, sizeof generic, format, args);
    va_end(args);
    text = for_schema(generic, schema);
    PQclear(PQexec(conn, text));
    free(text);
}

static jobq_pg_worker_desc quick_death(const jobq_pg_handler *handlers, size_t count)
{
    jobq_pg_worker_desc d = work_of(handlers, count);

    d.loop.lease_us = check_slow() ? 5 * SECOND : 700000;
    d.loop.heartbeat_us = 100000;
    return d;
}

/* Waits for the children's work; starts each again that has died. Fails after that many seconds. */
static void keep_alive(pid_t *pids, int count, const jobq_pg_worker_desc *d, double seconds,
                       long wanted, const char *query)
{
    int64_t until = mono_us() + (int64_t)(seconds * 1e6);
    int i, status;

    while (number("%s", query) != wanted) {
        if (mono_us() > until)
            fail_msg("%ld instead of %ld: %s", number("%s", query), wanted, query);
        assert_int_equal(number("SELECT jobq.audit()"), 0);
        for (i = 0; i < count; i++) {
            if (waitpid(pids[i], &status, WNOHANG) != pids[i]) continue;
            children[i] = 0;
            pids[i] = spawn(d);
        }
        nap_us(20000);
    }
}

/* -- killed -- */

static jobq_outcome effect_once(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    PGresult *res;
    bool committed;

    ADD(b->runs);
    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    statement(conn, "BEGIN");
    statement(conn, "INSERT INTO jobq.effect VALUES (%lld, %d, %d)", (long long)call->job.id,
              (int)call->job.stage, (int)getpid());
    if (jobq_pg_call_complete(call, conn, &error) == JOBQ_ERROR_LOST) ADD(b->lost);
    res = PQexec(conn, "COMMIT");
    committed = res != NULL && strcmp(PQcmdStatus(res), "COMMIT") == 0;
    PQclear(res);
    if (committed) return JOBQ_OUTCOME_DONE;
    jobq_call_delay(call, 1000);
    return JOBQ_OUTCOME_RETRY;
}

/* Workers fall like flies, two stages, effects in the completing transaction: each effect once. */
static void random_kills_leave_each_effect_once(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", effect_once);
    jobq_pg_worker_desc d = quick_death(&h, 1);
    jobq_random random = {4711};
    int64_t until = mono_us() + (check_slow() ? 20 : 8) * SECOND;
    pid_t pids[3];
    jobq_pg_job job = plain_job();
    int i, kills = 0, count = check_slow() ? 200 : 2000;

    (void)unused;
    job.stages = 2;
    for (i = 0; i < count; i++) enqueue_with(&job);
    RUN("UPDATE jobq.queue SET max_crashes = 1000, max_attempts = 1000");
    for (i = 0; i < 3; i++) pids[i] = spawn(&d);
    while (mono_us() < until || kills <= 5) {
        nap_us(jobq_random_between(jobq_random_next(&random), 50000, 600000));
        i = (int)jobq_random_between(jobq_random_next(&random), 0, 2);
        kill_hard(pids[i]);
        pids[i] = spawn(&d);
        kills++;
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
    keep_alive(pids, 3, &d, 240, count, "SELECT count(*) FROM jobq.history");
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 2 * count);
    assert_int_equal(number("SELECT count(*) FROM (SELECT DISTINCT job, stage FROM jobq.effect) e"),
                     2 * count);
    assert_int_equal(number("SELECT count(DISTINCT id) FROM jobq.history"), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
}

/* -- frozen -- */

static jobq_outcome holds_one(jobq_call *call)
{
    if (call->job.id == b->target && ADD(b->held) == 1) {
        while (GET(b->go) == 0) nap_us(1000); /* frozen in here, and let go on much later */
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
    b->target = number("SELECT id FROM jobq.job");
    frozen = spawn(&d);
    assert_true(reaches(20, &b->held, 1));
    kill(frozen, SIGSTOP);
    rescuer = spawn(&d);
    assert_true(becomes(30, 1, "SELECT count(*) FROM jobq.history"));
    SET(b->go, 1);
    kill(frozen, SIGCONT);
    assert_true(reaches(20, &b->lost, 1));
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

static jobq_outcome slow_success(jobq_call *call)
{
    (void)call;
    ADD(b->runs);
    nap_us(20000);
    return JOBQ_OUTCOME_SUCCESS;
}

/* X13: SIGTERM while working, another process beside it. */
static void sigterm_releases_a_process_own_jobs(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", slow_success);
    jobq_pg_worker_desc d = work_of(&h, 1);
    pid_t first, second;

    (void)unused;
    first = spawn(&d);
    second = spawn(&d);
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.worker"));
    enqueue_count(400);
    assert_true(reaches(20, &b->runs, 40));
    kill(first, SIGTERM);
    assert_int_equal(reap(first), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job j WHERE state = 'x' AND NOT EXISTS"
                            " (SELECT FROM jobq.worker w WHERE w.id = j.worker)"), 0);
    assert_true(becomes(30, 400, "SELECT count(*) FROM jobq.history"));
    kill(second, SIGTERM);
    assert_int_equal(reap(second), 0);
    assert_int_equal(GET(b->runs), 400);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE attempt = 1"), 400);
}

/* -- connections and the server -- */

static jobq_outcome counted(jobq_call *call)
{
    (void)call;
    ADD(b->runs);
    nap_us(2000);
    return JOBQ_OUTCOME_SUCCESS;
}

/* All connections of all workers, again and again. (The word jobq would be the schema here.) */
static void cut_connections_lose_nothing_and_leave_nothing_behind(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counted);
    jobq_pg_worker_desc d = work_of(&h, 1);
    long count = check_slow() ? 2000 : 20000, cut = 0;
    pid_t pids[3];
    int i, round;
    char *since;

    (void)unused;
    enqueue_count((size_t)count);
    since = text_of("SELECT clock_timestamp()");
    for (i = 0; i < 3; i++) pids[i] = spawn(&d);
    assert_true(becomes(20, 3, "SELECT count(*) FROM jobq.worker"));
    for (round = 0; round < 500 && number("SELECT count(*) FROM jobq.history") < count; round++) {
        cut += number("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> "
                      "pg_backend_pid()"
                      " AND application_name LIKE 'jo%%' AND backend_start > '%s'",
                      since);
        if (cut <= 20) { /* enough work that a quick machine is not through before */
            enqueue_count(1000);
            count += 1000;
        }
        nap_us(10000 + round % 7 * 15000);
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
    free(since);
    assert_true(cut > 20);
    assert_true(becomes(30, 0, "SELECT count(*) FROM jobq.job"));
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), count);
    assert_int_equal(number("SELECT count(DISTINCT id) FROM jobq.history WHERE state = 's'"),
                     count);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 0);
    assert_true(GET(b->runs) >= count); /* at least once */
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.claim WHERE jobs <> '{}'"));
    for (i = 0; i < 3; i++) {
        kill(pids[i], SIGTERM);
        assert_int_equal(reap(pids[i]), 0);
    }
    assert_true(becomes(30, 0, "SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL"));
}

static void server_command(const char *arguments)
{
    char command[200];

    snprintf(command, sizeof command, "tests/server.sh %s </dev/null >/dev/null 2>&1", arguments);
    if (system(command) != 0) fail_msg("%s", command);
}

/* The look-around connection after a restart. */
static void look_again(void)
{
    int64_t until = mono_us() + 20 * SECOND;

    do {
        PQfinish(db);
        db = PQconnectdb(server());
    } while (PQstatus(db) != CONNECTION_OK && mono_us() < until);
    assert_int_equal(PQstatus(db), CONNECTION_OK);
    PQclear(PQexec(db, "SET client_min_messages = error"));
    jobq_pg_close(pg);
    pg = handle();
}

/* The server dies and comes back, twice; an outage rescues nobody. */
static void a_server_crash_loses_nothing(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", effect_once);
    jobq_pg_worker_desc d = work_of(&h, 1);
    long count = check_slow() ? 500 : 4000;
    pid_t pids[2];
    int i;

    (void)unused;
    if (getenv("JOBQ_SERVER_DIR") == NULL) skip();
    d.loop.lease_us = 30 * SECOND; /* they may be back seconds apart */
    enqueue_count((size_t)count);
    for (i = 0; i < 2; i++) pids[i] = spawn(&d);
    assert_true(reaches(20, &b->runs, (int)count / 8));
    server_command("--ctl restart -m immediate");
    look_again();
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    assert_true(reaches(30, &b->runs, (int)count / 3));
    server_command("--ctl restart -m fast");
    look_again();
    assert_true(becomes(60, count, "SELECT count(*) FROM jobq.history"));
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), count);
    assert_int_equal(number("SELECT count(DISTINCT job) FROM jobq.effect"), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE dead_at IS NOT NULL"), 0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    for (i = 0; i < 2; i++) {
        kill(pids[i], SIGTERM);
        assert_int_equal(reap(pids[i]), 0);
    }
}

/* Law 17. A number that was handed out stays its message's over a crash, though the acknowledgement
 * that read on to it is relaxed. The message of a transaction that commits after the crash has a
 * lower id: were the numbers forgotten, it would get this one. */
static void a_number_handed_out_outlives_a_crash(void **unused)
{
    verb_read_desc d;
    verb_ack_desc ack;
    verb_reading r, next;
    jobq_cursor after;
    jobq_pg_error error;
    int32_t box;

    (void)unused;
    if (getenv("JOBQ_SERVER_DIR") == NULL) skip();
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "o", 1, &box, &error), JOBQ_OK);
    memset(&d, 0, sizeof d);
    memset(&ack, 0, sizeof ack);
    memset(&after, 0, sizeof after);
    d.worker = d.claim = ack.worker = ack.claim = 1;
    d.partition = ack.partition = jobq_pg_partition(box, 0);
    ack.after = &after;
    ack.most = 10;
    ack.relaxed = true;
    after.acked = 1;
    RUN("SELECT jobq.outbox_enqueue('o', '1')");
    assert_int_equal(verb_read(pg, NULL, &d, &r, &error), JOBQ_OK);
    assert_int_equal(r.answer, 'h');
    RUN("BEGIN; SELECT jobq.outbox_enqueue('o', '\"late\"'); PREPARE TRANSACTION 'late'");
    RUN("SELECT jobq.outbox_enqueue('o', '2')");
    assert_int_equal(verb_ack(pg, db, &ack, &next, &error), JOBQ_OK);
    server_command("--ctl restart -m immediate");
    assert_int_equal(next.answer, 'h');
    assert_int_equal(next.messages[0].seq, 2);
    look_again();
    RUN("COMMIT PREPARED 'late'");
    verb_reading_clear(&next);
    verb_reading_clear(&r);
    d.again = true;
    assert_int_equal(verb_read(pg, NULL, &d, &r, &error), JOBQ_OK);
    assert_int_equal(r.answer, 'h');
    assert_int_equal(r.messages[0].seq, 2);
    assert_true(jobq_str_equal(r.messages[0].payload, jobq_str_from("2")));
    verb_reading_clear(&r);
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

    SET(b->relay, HOLDING);
    while (GET(b->relay) != LET_GO) nap_us(1000);
    pass_on(backend, held, size);
    nap_us(100000);
    if (read(backend, answer, sizeof answer) < 0) _exit(1);
    nap_us(100000);
    SET(b->relay, GONE_THROUGH);
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
        if (from == 0 && GET(b->relay) == HOLD_NEXT_CLAIM && has(bytes, (size_t)got, claim_name)) {
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

static int relay_stop(void **state)
{
    if (relay_pid > 0) {
        kill(-relay_pid, SIGKILL);
        waitpid(relay_pid, NULL, 0);
        unlink(relay_path);
        rmdir(relay_dir);
    }
    relay_pid = 0;
    return all_stop(state);
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
    SET(b->relay, HOLD_NEXT_CLAIM);
    enqueue_count(1);
    assert_true(reaches(20, &b->relay, HOLDING));
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.history")); /* by another claim */
    nap_us(check_slow() ? 5 * SECOND : SECOND); /* several heartbeats */
    kill(pid, SIGSTOP);
    nap_us(200000); /* what it had sent has come through, and is done */
    assert_true(becomes(20, 0, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
                               " AND application_name LIKE 'jo%%' AND pid <> pg_backend_pid()"));
    enqueue_count(8);
    SET(b->relay, LET_GO);
    assert_true(reaches(20, &b->relay, GONE_THROUGH));
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x'"), 0);
    kill(pid, SIGCONT);
    assert_true(becomes(10, 9, "SELECT count(*) FROM jobq.history"));
    kill(pid, SIGTERM);
    assert_int_equal(reap(pid), 0);
}

/* What the pool holds may have been closed by the server meanwhile. */
static void a_pooled_connection_that_the_server_closed_is_replaced(void **unused)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    PGconn *conns[3];
    int i;

    (void)unused;
    for (i = 0; i < 3; i++) assert_int_equal(jobq_pg_acquire(pg, &conns[i], &error), JOBQ_OK);
    for (i = 0; i < 3; i++) jobq_pg_release(pg, conns[i]);
    RUN("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND application_name LIKE 'jo%%'");
    for (i = 0; i < 3; i++)
        assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_OK);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 3);
}

static int board_up(void **state)
{
    b = (board *)shared(sizeof *b);
    return pg_up(state);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh, all_stop)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(random_kills_leave_each_effect_once),
        TEST(a_frozen_worker_writes_nothing_when_it_thaws),
        TEST(sigterm_releases_a_process_own_jobs),
        TEST(cut_connections_lose_nothing_and_leave_nothing_behind),
        TEST(a_server_crash_loses_nothing),
        TEST(a_number_handed_out_outlives_a_crash),
        TEST(a_pooled_connection_that_the_server_closed_is_replaced),
        cmocka_unit_test_setup_teardown(a_claim_that_arrives_late_takes_nothing, fresh, relay_stop),
    };

    return cmocka_run_group_tests_name("chaos", tests, board_up, pg_down);
}
