/*
 * Workers as processes, killed, frozen, cut off, and the server with them: nothing is lost, effects happen once.
 * Rows X3, X5, X7, X11; promises 1 to 5 and 7.
 */
#include "pg_work.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>

#define EFFECTS "CREATE TABLE jobq.effect (job bigint, stage int, pid int)"

/* What the processes of a test share. */
typedef struct board {
    int runs, killed, poisoned, lost, held;
    int64_t target; /* the job that is special */
    int where;      /* at which place its process dies */
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
    text = jobq_pg__for_schema(generic, schema);
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

/* Waits for the children's work; starts each again that has died. Fails after so many seconds. */
static void keep_alive(pid_t *pids, int count, const jobq_pg_worker_desc *d, double seconds, long wanted,
                       const char *query)
{
    int64_t until = jobq_pg__mono_us() + (int64_t)(seconds * 1e6);
    int i, status;

    while (number("%s", query) != wanted) {
        if (jobq_pg__mono_us() > until) fail_msg("%ld instead of %ld: %s", number("%s", query), wanted, query);
        assert_int_equal(number("SELECT jobq.audit()"), 0);
        for (i = 0; i < count; i++) {
            if (waitpid(pids[i], &status, WNOHANG) != pids[i]) continue;
            children[i] = 0;
            pids[i] = spawn(d);
        }
        nap_us(20000);
    }
}

/* -- poison -- */

static jobq_outcome dies_of_one(jobq_call *call)
{
    if (call->job.id != b->target) return JOBQ_OUTCOME_SUCCESS;
    ADD(b->poisoned);
    kill(getpid(), SIGKILL);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Promise 4. */
static void one_poison_among_999_fails_alone(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", dies_of_one);
    jobq_pg_worker_desc d = quick_death(&h, 1);
    pid_t pids[2];
    int i;

    (void)unused;
    enqueue_count(1000);
    b->target = number("SELECT min(id) + 400 FROM jobq.job");
    for (i = 0; i < 2; i++) pids[i] = spawn(&d);
    keep_alive(pids, 2, &d, 90, 1, "SELECT count(*) FROM jobq.failed");
    keep_alive(pids, 2, &d, 90, 999, "SELECT count(*) FROM jobq.history");
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE attempt = 1 AND crash = 0 AND errors IS NULL"),
                     999);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed WHERE id = %lld AND crash = 3",
                            (long long)b->target), 1);
    expect_text("Max crashes (3) exceeded: worker died", "SELECT errors->-1->>'error' FROM jobq.failed");
    assert_int_equal(GET(b->poisoned), 4); /* once among others, then three times alone */
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
}

/* -- kill -9 around the completion -- */

enum { BEFORE_EFFECT = 1, BEFORE_COMPLETE, BEFORE_COMMIT, AFTER_COMMIT, PLACES };

static void dies_at(const jobq_call *call, int place)
{
    int was = 0;

    if (call->job.id != b->target || GET(b->where) != place) return;
    if (__atomic_compare_exchange_n(&b->killed, &was, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        kill(getpid(), SIGKILL);
    }
}

static jobq_outcome effect_once(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    PGresult *res;
    bool committed;

    ADD(b->runs);
    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    dies_at(call, BEFORE_EFFECT);
    statement(conn, "BEGIN");
    statement(conn, "INSERT INTO jobq.effect VALUES (%lld, %d, %d)", (long long)call->job.id,
              (int)call->job.stage, (int)getpid());
    dies_at(call, BEFORE_COMPLETE);
    if (jobq_pg_call_complete(call, conn, &error) == JOBQ_ERROR_LOST) ADD(b->lost);
    dies_at(call, BEFORE_COMMIT);
    res = PQexec(conn, "COMMIT");
    committed = strcmp(PQcmdStatus(res), "COMMIT") == 0;
    PQclear(res);
    dies_at(call, AFTER_COMMIT);
    if (committed) return JOBQ_OUTCOME_DONE;
    jobq_call_delay(call, 1000);
    return JOBQ_OUTCOME_RETRY;
}

static void a_kill_at_any_place_leaves_each_effect_once(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", effect_once);
    jobq_pg_worker_desc d = quick_death(&h, 1);
    pid_t pids[2];
    int place, i;

    (void)unused;
    for (place = BEFORE_EFFECT; place < PLACES; place++) {
        fresh(NULL);
        b->where = place;
        enqueue_count(60);
        b->target = number("SELECT min(id) + 20 FROM jobq.job");
        for (i = 0; i < 2; i++) pids[i] = spawn(&d);
        keep_alive(pids, 2, &d, 60, 60, "SELECT count(*) FROM jobq.history");
        for (i = 0; i < 2; i++) kill_hard(pids[i]);
        assert_int_equal(GET(b->killed), 1);
        assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 60);
        assert_int_equal(number("SELECT count(DISTINCT job) FROM jobq.effect"), 60);
        assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 0);
    }
}

/* Workers fall like flies, two stages, effects in the completing transaction: each effect once. */
static void random_kills_leave_each_effect_once(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", effect_once);
    jobq_pg_worker_desc d = quick_death(&h, 1);
    jobq_random random = jobq_random_from(4711);
    int64_t until = jobq_pg__mono_us() + (check_slow() ? 20 : 8) * SECOND;
    pid_t pids[3];
    jobq_pg_job job = plain_job();
    int i, kills = 0, count = check_slow() ? 200 : 2000;

    (void)unused;
    job.stages = 2;
    for (i = 0; i < count; i++) enqueue_with(&job);
    RUN("UPDATE jobq.queue SET max_crashes = 1000, max_attempts = 1000");
    for (i = 0; i < 3; i++) pids[i] = spawn(&d);
    while (jobq_pg__mono_us() < until) {
        nap_us(jobq_random_between(jobq_random_next(&random), 50000, 600000));
        i = (int)jobq_random_between(jobq_random_next(&random), 0, 2);
        kill_hard(pids[i]);
        pids[i] = spawn(&d);
        kills++;
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
    keep_alive(pids, 3, &d, 60, count, "SELECT count(*) FROM jobq.history");
    assert_true(kills > 5);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 2 * count);
    assert_int_equal(number("SELECT count(*) FROM (SELECT DISTINCT job, stage FROM jobq.effect) e"), 2 * count);
    assert_int_equal(number("SELECT count(DISTINCT id) FROM jobq.history"), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
}

/* -- frozen -- */

static jobq_outcome holds_one(jobq_call *call)
{
    if (call->job.id == b->target && ADD(b->held) == 1) {
        while (GET(b->where) == 0) nap_us(1000); /* frozen in here, and let go on much later */
    }
    return effect_once(call);
}

/* X7, X11: a worker that is stopped for longer than its lease is robbed; when it goes on, it writes nothing. */
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
    SET(b->where, 99);
    kill(frozen, SIGCONT);
    assert_true(reaches(20, &b->lost, 1));
    nap_us(500000);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.effect WHERE pid = %d", (int)rescuer), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), 1);
    enqueue_count(20); /* both work on: the thawed one has registered anew */
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
    enqueue_count(400);
    first = spawn(&d);
    second = spawn(&d);
    assert_true(reaches(20, &b->runs, 40));
    kill(first, SIGTERM);
    assert_int_equal(reap(first), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.job j WHERE state = 'x' AND NOT EXISTS"
                            " (SELECT FROM jobq.worker w WHERE w.id = j.worker)"), 0);
    assert_true(becomes(30, 400, "SELECT count(*) FROM jobq.history"));
    kill(second, SIGTERM);
    assert_int_equal(reap(second), 0);
    assert_int_equal(GET(b->runs), 400);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE attempt = 1"), 400);
}

/* -- connections and the server -- */

#define CUT_JOBS 20000

static jobq_outcome counted(jobq_call *call)
{
    (void)call;
    ADD(b->runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static void cut_connections_lose_nothing(void **unused)
{
    jobq_pg_handler h = handler_of("q", "k", counted);
    jobq_pg_worker_desc d = work_of(&h, 1);
    long count = check_slow() ? 2000 : CUT_JOBS;
    char done[100];
    pid_t pids[3];
    int i, cuts = 0;

    (void)unused;
    enqueue_count((size_t)count);
    snprintf(done, sizeof done, "SELECT count(*) FROM jobq.history");
    for (i = 0; i < 3; i++) pids[i] = spawn(&d);
    while (number("%s", done) < count && cuts < 2000) {
        RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND application_name = 'jobq'");
        cuts++;
        nap_us(30000 + cuts % 7 * 20000);
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
    assert_true(cuts > 2);
    assert_true(becomes(30, 0, "SELECT count(*) FROM jobq.job"));
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), count);
    assert_int_equal(number("SELECT count(DISTINCT id) FROM jobq.history WHERE state = 's'"), count);
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 0);
    assert_true(GET(b->runs) >= count); /* at least once */
    assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.claim"));
    for (i = 0; i < 3; i++) {
        kill(pids[i], SIGTERM);
        assert_int_equal(reap(pids[i]), 0);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL"), 0);
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
    int64_t until = jobq_pg__mono_us() + 20 * SECOND;

    do {
        PQfinish(db);
        db = PQconnectdb(server());
    } while (PQstatus(db) != CONNECTION_OK && jobq_pg__mono_us() < until);
    assert_int_equal(PQstatus(db), CONNECTION_OK);
    PQclear(PQexec(db, "SET client_min_messages = error"));
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

/* -- half-open: a relay between worker and server that can hold back what the worker sends -- */

typedef struct relay {
    int listener, client, server_fd;
    char held[65536];
    size_t held_size;
    bool holds, holding;
} relay;

static char relay_dir[64], relay_path[110], server_path[110];

static int dial(const char *path)
{
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) return -1;
    return fd;
}

static void send_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t sent = write(fd, bytes, size);
        if (sent <= 0) return;
        bytes += sent;
        size -= (size_t)sent;
    }
}

static bool has(const char *bytes, size_t size, const char *word)
{
    size_t len = strlen(word), i;

    for (i = 0; i + len <= size; i++) {
        if (memcmp(bytes + i, word, len) == 0) return true;
    }
    return false;
}

/* One connection through the relay, in a process of its own. The first that claims is held: what it sends stays
 * here until the worker has long gone on with another connection (b->where), and then still reaches the server. */
static void relay_run(int client)
{
    int backend = dial(server_path), claims = 0;
    bool holding = false, gone = false;
    char held[65536], bytes[65536];
    size_t held_size = 0;

    for (;;) {
        struct pollfd fds[2];
        ssize_t got;
        fds[0].fd = gone ? -1 : client;
        fds[1].fd = backend;
        fds[0].events = fds[1].events = POLLIN;
        fds[0].revents = fds[1].revents = 0;
        poll(fds, 2, 10);
        if (holding && GET(b->where) == 1) {
            send_all(backend, held, held_size);
            held_size = 0;
            holding = false;
            SET(b->where, 2);
        }
        if (fds[1].revents != 0) {
            got = read(backend, bytes, sizeof bytes);
            if (got <= 0) _exit(0);
            if (!gone) send_all(client, bytes, (size_t)got);
        }
        if (fds[0].revents == 0) continue;
        got = read(client, bytes, sizeof bytes);
        if (got <= 0) {
            if (!holding && held_size == 0 && GET(b->killed) == 0) _exit(0);
            gone = true;
            if (GET(b->where) == 2) _exit(0);
            continue;
        }
        if (!holding && GET(b->killed) == 0 && has(bytes, (size_t)got, "jobq_claim_now")) claims++;
        if (!holding && GET(b->held) == 1 && ADD(b->killed) == 1) holding = true;
        if (holding && held_size + (size_t)got <= sizeof held) {
            memcpy(held + held_size, bytes, (size_t)got);
            held_size += (size_t)got;
            continue;
        }
        send_all(backend, bytes, (size_t)got);
    }
}

static void relay_accepts(int listener)
{
    signal(SIGCHLD, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0) continue;
        if (fork() == 0) relay_run(client);
        close(client);
    }
}

static pid_t relay_start(void)
{
    struct sockaddr_un address;
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    pid_t pid;

    snprintf(relay_dir, sizeof relay_dir, "/tmp/jobq_relay_%d", (int)getpid());
    snprintf(relay_path, sizeof relay_path, "%s/.s.PGSQL.5432", relay_dir);
    snprintf(server_path, sizeof server_path, "%s/.s.PGSQL.5432", getenv("JOBQ_SERVER_DIR"));
    assert_int_equal(mkdir(relay_dir, 0700), 0);
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", relay_path);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 10), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setpgid(0, 0);
        relay_accepts(listener);
    }
    close(listener);
    return pid;
}
