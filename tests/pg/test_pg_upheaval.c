/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Upheavals under load: tables are rewritten, parts of the history are detached, servers and disks
 * are full, processes fork, hosts die, a server's clock jumps. Meanwhile unmodified workers run
 * jobs and messages. Then the laws are checked: everything enqueued was handled and has ended once,
 * messages came in order, and the work goes on.
 */
#include "pg_work.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define MOST 100000 /* jobs, and messages of a partition */
#define PARTITIONS 4

/* What the processes of a test share. */
typedef struct board {
    int stop;                      /* the producer ends */
    int jobs, messages[PARTITIONS]; /* enqueued, as the server said */
    int runs, delivered;
    int at_once, skipped, changed; /* laws that were broken */
    int last[PARTITIONS];          /* highest number of a message that came */
    int ran[MOST], busy[MOST];     /* by the job's number */
    int held;                      /* workers that have messages keep them */
    int forks;                     /* children that have ended */
    int installed;                 /* times that a DBA has installed the schema */
} board;

static board *b;

/* -- the work -- */

static int number_in(jobq_str payload)
{
    char text[12];

    snprintf(text, sizeof text, "%.*s", (int)payload.len, payload.ptr);
    return atoi(text) % MOST;
}

/* Nobody else may run this job meanwhile. */
static jobq_outcome does(jobq_call *call)
{
    int n = number_in(call->payload);

    if (ADD(b->busy[n]) > 1) ADD(b->at_once);
    nap_us(500);
    __atomic_sub_fetch(&b->busy[n], 1, __ATOMIC_SEQ_CST);
    ADD(b->ran[n]);
    ADD(b->runs);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Each message is its own number in its partition, thanks to its key. It may come again, but never
 * before one that precedes it. */
static jobq_result receives(jobq_delivery *d, const jobq_message *m)
{
    int n = number_in(m->payload);

    while (GET(b->held)) nap_us(1000);
    if (m->seq != n) ADD(b->changed);
    if (n > GET(b->last[d->partition]) + 1) ADD(b->skipped);
    if (n > GET(b->last[d->partition])) SET(b->last[d->partition], n);
    ADD(b->delivered);
    return JOBQ_RESULT_SUCCESS;
}

/* Sends until the server has it. Its key makes it one, though an answer may have been lost. */
static void enqueues(jobq_pg *on, int n)
{
    char payload[16], key[24];
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    jobq_error code;

    snprintf(payload, sizeof payload, "%d", n);
    snprintf(key, sizeof key, "job %d", n);
    job.payload = jobq_str_from(payload);
    job.key = key;
    do {
        code = jobq_pg_enqueue(on, NULL, &job, NULL, &error);
        if (code != JOBQ_OK && code != JOBQ_ERROR_EXISTS) nap_us(20000);
    } while (code != JOBQ_OK && code != JOBQ_ERROR_EXISTS);
    SET(b->jobs, n);
}

static void posts(jobq_pg *on, int partition, int n)
{
    char payload[16], key[32];
    jobq_pg_message m;
    jobq_pg_error error;
    jobq_error code;

    memset(&m, 0, sizeof m);
    snprintf(payload, sizeof payload, "%d", n);
    snprintf(key, sizeof key, "message %d %d", partition, n);
    m.queue = "o";
    m.partition = partition;
    m.payload = jobq_str_from(payload);
    m.key = key;
    do {
        code = jobq_pg_outbox_enqueue(on, NULL, &m, NULL, &error);
        if (code != JOBQ_OK && code != JOBQ_ERROR_EXISTS) nap_us(20000);
    } while (code != JOBQ_OK && code != JOBQ_ERROR_EXISTS);
    SET(b->messages[partition], n);
}

/* A producer in a process of its own. */
static pid_t produces(void)
{
    pid_t pid = fork();
    jobq_pg *on;
    int n, p, i;

    assert_true(pid >= 0);
    for (i = 0; i < WORKERS_MAX && children[i] != 0;) i++;
    if (pid > 0) return children[i] = pid;
    signal(SIGTERM, SIG_DFL);
    on = handle();
    for (n = GET(b->jobs) + 1; n < MOST && !GET(b->stop); n++) {
        enqueues(on, n);
        for (p = 0; p < PARTITIONS; p++) posts(on, p, GET(b->messages[p]) + 1);
        nap_us(500);
    }
    _exit(0);
}

/* A lease that a loaded machine does not lose, and a short heartbeat. */
static jobq_pg_worker_desc worker_desc(void)
{
    static jobq_pg_handler h;
    static jobq_pg_receiver r;
    jobq_pg_worker_desc d;

    h = handler_of("q", "k", does);
    memset(&r, 0, sizeof r);
    r.queue = "o";
    r.each = receives;
    d = work_of(&h, 1);
    d.loop.grace_us = 5 * SECOND;
    d.receivers = &r;
    d.receiver_count = 1;
    return d;
}

static pid_t works(void)
{
    jobq_pg_worker_desc d = worker_desc();

    return spawn(&d);
}

/* Two workers and a producer, at work. */
static pid_t crew[3];

static void goes_on(double seconds)
{
    int before = GET(b->runs), delivered = GET(b->delivered);

    if (!reaches(seconds, &b->runs, before + 100) ||
        !reaches(seconds, &b->delivered, delivered + 100))
        fail_msg("%d jobs and %d messages, then no more", GET(b->runs), GET(b->delivered));
}

static void crew_starts(void)
{
    jobq_pg_error error;

    if (jobq_pg_outbox_register(pg, NULL, "o", PARTITIONS, NULL, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    crew[0] = works();
    crew[1] = works();
    crew[2] = produces();
    goes_on(60);
}

/* -- the laws -- */

static long all_messages(void)
{
    long sum = 0;
    int p;

    for (p = 0; p < PARTITIONS; p++) sum += GET(b->messages[p]);
    return sum;
}

static void expect_laws(const char *archive)
{
    int n, p;

    assert_int_equal(GET(b->at_once), 0);
    assert_int_equal(GET(b->skipped), 0);
    assert_int_equal(GET(b->changed), 0);
    for (n = 1; n <= GET(b->jobs); n++) assert_in_range(b->ran[n], 1, MOST);
    for (p = 0; p < PARTITIONS; p++) assert_int_equal(b->last[p], b->messages[p]);
    assert_int_equal(number("SELECT count(*) FROM (TABLE jobq.history UNION ALL TABLE %s) e"
                            " WHERE state = 's' AND attempt = 1 AND errors IS NULL", archive),
                     GET(b->jobs));
    assert_int_equal(number("SELECT count(DISTINCT id) FROM"
                            " (TABLE jobq.history UNION ALL TABLE %s) e", archive), GET(b->jobs));
    assert_int_equal(number("SELECT count(*) FROM jobq.failed"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 0);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
}

/* The workers end when all is done. archive: what was history, too. */
static void crew_ends(const char *archive)
{
    int i;

    goes_on(60);
    SET(b->stop, 1);
    assert_int_equal(reap(crew[2]), 0);
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job"));
    assert_true(becomes(60, all_messages(), "SELECT sum(acked) FROM jobq.partition"));
    for (i = 0; i < 2; i++) {
        kill(crew[i], SIGTERM);
        assert_int_equal(reap(crew[i]), 0);
    }
    expect_laws(archive);
}

#define NO_ARCHIVE "jobq.history_13" /* never written here */

/* Without the sessions of a test that failed. */
static int fresh_board(void **state)
{
    memset(b, 0, sizeof *b);
    RUN("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'");
    return pg_empty(state);
}

/* -- tables are rewritten -- */

/* Again where the server found a deadlock: that is the operator's part. */
static void insists(const char *format, const char *name)
{
    char generic[2000], *text;
    PGresult *res;
    bool again;

    snprintf(generic, sizeof generic, format, name, name);
    text = for_schema(generic, schema);
    do {
        res = PQexec(db, text);
        again = PQresultStatus(res) != PGRES_COMMAND_OK;
        if (again && strcmp(PQresultErrorField(res, PG_DIAG_SQLSTATE), "40P01") != 0)
            fail_msg("%s: %s", text, PQerrorMessage(db));
        PQclear(res);
    } while (again);
    free(text);
}

static void tables_are_rewritten_under_load(void **unused)
{
    static const char *const operations[] = {"VACUUM FULL jobq.%s", "CLUSTER jobq.%s USING %s_pkey",
                                        "REINDEX TABLE CONCURRENTLY jobq.%s"};
    PGresult *tables;
    int d, i;

    (void)unused;
    crew_starts();
    tables = sql(db, "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace ="
                     " 'jobq'::regnamespace AND (relname !~ 'history' OR relname = 'history_8')");
    assert_true(PQntuples(tables) >= 13);
    for (d = 0; d < 3; d++) {
        for (i = 0; i < PQntuples(tables); i++) insists(operations[d], PQgetvalue(tables, i, 0));
        goes_on(60);
        assert_int_equal(number("SELECT jobq.audit()"), 0);
    }
    PQclear(tables);
    insists("REINDEX SCHEMA CONCURRENTLY %s", "jobq");
    crew_ends(NO_ARCHIVE);
    assert_int_equal(number("SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = indexrelid"
                            " WHERE NOT indisvalid AND relnamespace = 'jobq'::regnamespace"), 0);
}

/* -- parts of the history come and go -- */

#define TURN number("SELECT jobq.turn()::int")

static int slot_now(void)
{
    return (int)number("SELECT slot FROM jobq.ring WHERE retention = 'medium'");
}

/* A part is detached, kept as an archive, and replaced by an empty one. The ring waits for it, and
 * does not empty what is the operator's now. */
static void a_part_of_the_history_is_archived(void **unused)
{
    PGconn *other;
    long archived;

    (void)unused;
    crew_starts();
    RUN("UPDATE jobq.ring SET slot = first + 6, since = now()");
    goes_on(60);
    insists("ALTER TABLE jobq.history DETACH PARTITION jobq.%s CONCURRENTLY", "history_8");
    archived = number("SELECT count(*) FROM jobq.history_8");
    assert_true(archived > 0);
    RUN("UPDATE jobq.ring SET slot = first + 7, since = '-infinity' WHERE first = 8");
    assert_int_equal(TURN, 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.history_8"), archived);
    RUN("ALTER TABLE jobq.history_8 RENAME TO archive");
    assert_int_equal(TURN, 0);
    goes_on(60);
    RUN("CREATE TABLE jobq.history_8 (LIKE jobq.history INCLUDING ALL)");
    assert_int_equal(TURN, 0);
    other = PQconnectdb(server());
    PQclear(sql(other, "BEGIN; ALTER TABLE jobq.history ATTACH PARTITION jobq.history_8"
                       " FOR VALUES IN (8)"));
    assert_int_equal(TURN, 0);
    goes_on(60);
    PQclear(sql(other, "COMMIT"));
    PQfinish(other);
    while (slot_now() != 8) (void)TURN; /* or a worker does it */
    crew_ends("jobq.archive");
    RUN("DROP TABLE jobq.archive");
}

/* The part that is written now is detached: what ends meanwhile waits until it is back. No job is
 * to blame. */
static void the_part_now_written_is_detached(void **unused)
{
    int slot = slot_now();
    char part[20];

    (void)unused;
    snprintf(part, sizeof part, "history_%d", slot);
    crew_starts();
    insists("ALTER TABLE jobq.history DETACH PARTITION jobq.%s CONCURRENTLY", part);
    nap_us(4 * SECOND);
    RUN("ALTER TABLE jobq.history ATTACH PARTITION jobq.%s FOR VALUES IN (%d)", part, slot);
    crew_ends(NO_ARCHIVE);
}

/* -- a thousand workers -- */

#define CROWD 1000
#define CONNS 50

static PGconn *conns[CONNS];

static int by_value(const void *a, const void *b_)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b_;

    return (x > y) - (x < y);
}

static int64_t worker_of(int i) { return 4711 + (int64_t)i; }

/* The workers from first on beat, each on its connection; the median, in microseconds. */
static int64_t they_beat(int first, int count, int64_t lease_us)
{
    static int64_t cost[CROWD];
    jobq_pg_error error;
    int i;

    for (i = first; i < first + count; i++) {
        int64_t begun = mono_us();
        if (verb_heartbeat(pg, conns[i % CONNS], worker_of(i), lease_us, &error) != JOBQ_OK)
            fail_msg("%s", error.message);
        cost[i - first] = mono_us() - begun;
    }
    qsort(cost, (size_t)count, sizeof *cost, by_value);
    return cost[count / 2];
}

static void they_register(int first, int count)
{
    static const char *const queues[] = {"q"};
    jobq_pg_error error;
    int i;

    for (i = first; i < first + count; i++) {
        if (verb_register(pg, conns[i % CONNS], worker_of(i), "one of many", 600 * SECOND,
                             queues, 1, NULL, &error) != JOBQ_OK) {
            fail_msg("%s", error.message);
        }
    }
}

/* Its job, done here. */
static void completes(PGconn *conn, const jobq_job *job, int n)
{
    assert_int_equal(settle_on(conn, job, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    b->ran[n]++;
}

/* Each has a job; those with even numbers do it, the others fall silent. */
static void they_claim(void)
{
    verb_batch batch;
    int i;

    for (i = 0; i < CROWD; i++) {
        assert_int_equal(claim_on(conns[i % CONNS], worker_of(i), 1, 1, 0, &batch), JOBQ_OK);
        assert_int_equal(batch.count, 1);
        if (i % 2 == 0)
            completes(conns[i % CONNS], &batch.jobs[0],
                      number_in(verb_batch_payload(&batch, 0, NULL)));
        else they_beat(i, 1, 100000);
        verb_batch_clear(&batch);
    }
}

/* On fifty connections. Half of them die; two more workers come, and do it all. */
static void a_thousand_workers_come_and_half_of_them_die(void **unused)
{
    int64_t few, many, begun;
    int i;

    (void)unused;
    for (i = 0; i < CONNS; i++) {
        conns[i] = PQconnectdb(server());
        assert_int_equal(PQstatus(conns[i]), CONNECTION_OK);
    }
    for (i = 1; i <= CROWD; i++) enqueues(pg, i);
    they_register(0, CONNS);
    they_beat(0, CONNS, 600 * SECOND);
    few = they_beat(0, CONNS, 600 * SECOND);
    they_register(CONNS, CROWD - CONNS);
    they_beat(0, CROWD, 600 * SECOND);
    many = they_beat(0, CROWD, 600 * SECOND);
    they_claim();
    assert_int_equal(number("SELECT count(*) FROM jobq.history"), CROWD / 2);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x'"), CROWD / 2);
    begun = mono_us();
    crew_starts();
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.claim WHERE worker < 10000"
                               " AND jobs <> '{}' AND worker % 2 = 0"));
    print_message("heartbeat: %d us with %d workers, %d us with %d; 500 rescued in %.1f s\n",
                  (int)few, CONNS, (int)many, CROWD, (double)(mono_us() - begun) / 1e6);
    for (i = 0; i < CONNS; i++) PQfinish(conns[i]);
    crew_ends(NO_ARCHIVE);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL"), CROWD / 2);
    assert_in_range(many, 0, 20 * few);
}

/* -- forks -- */

static int child_ends;

static void child_ended(int signal_number)
{
    (void)signal_number;
    child_ends = 1;
}

/* What a child of a process with a worker does, in turn: it becomes another program, which has got
 * no connection; it ends; it frees what it has of its parent. */
static void child_of(int round)
{
    static const char no_sockets[] = "! ls -l /proc/$$/fd 2>/dev/null | grep socket |"
                                     " grep -qv ' [012] ->'";

    if (round % 3 == 0) {
        execl("/bin/sh", "sh", "-c", no_sockets, (char *)NULL);
        _exit(127);
    }
    if (round % 3 == 1) _exit(0);
    jobq_pg_worker_stop(child_worker);
    jobq_pg_worker_free(child_worker);
    jobq_pg_close(pg);
    _exit(0);
}

/* A process with a threaded worker, which forks all the time. Its connections live. */
static void forks_about(const jobq_pg_worker_desc *d)
{
    jobq_pg_error error;
    jobq_pg_stats stats;
    int round, status = 0;

    signal(SIGTERM, child_ended);
    pg = handle();
    if (jobq_pg_worker_start(pg, d, &child_worker, &error) != JOBQ_OK) _exit(3);
    for (round = 0; !child_ends && status == 0; round++) {
        pid_t pid = fork();
        if (pid == 0) child_of(round);
        while (waitpid(pid, &status, 0) < 0 && !child_ends) continue;
        if (status == 0) ADD(b->forks);
        nap_us(5000);
    }
    jobq_pg_worker_stop(child_worker);
    jobq_pg_worker_wait(child_worker, &stats);
    jobq_pg_worker_free(child_worker);
    jobq_pg_close(pg);
    _exit(status != 0 ? 4 : stats.jobs.reconnects > 0 ? 5 : stats.jobs.succeeded == 0 ? 6 : 0);
}

/* -- servers of a test's own -- */

typedef struct place {
    pid_t pid;
    int in;        /* when it is closed, the server ends */
    char dir[100];
} place;

static place places[2];
static const char *newer_bin; /* programs of the second place; NULL: as the first */
static char home[300]; /* the tests' own server */

/* A command of the shell that starts a server, prints its folder, and ends it when its input does:
 * in a group of its own, so that it tidies up after a test that was killed. */
static bool place_up(place *at, const char *command)
{
    int in[2], out[2];
    ssize_t got;

    assert_int_equal(pipe(in) + pipe(out), 0);
    at->pid = fork();
    assert_true(at->pid >= 0);
    if (at->pid == 0) {
        setpgid(0, 0);
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[1]);
        close(out[0]);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    fcntl(in[1], F_SETFD, FD_CLOEXEC);
    at->in = in[1];
    got = read(out[0], at->dir, sizeof at->dir - 1);
    close(out[0]);
    at->dir[got > 0 ? got - 1 : 0] = '\0';
    return got > 1;
}

static void place_down(place *at)
{
    if (at->pid <= 0) return;
    close(at->in);
    waitpid(at->pid, NULL, 0);
    at->pid = 0;
}

/* tests/server.sh with these settings; `before` goes before it. */
static void server_up(place *at, const char *before, const char *options)
{
    char command[900];

    if (getenv("JOBQ_SERVER_BIN") == NULL) skip(); /* a server of the caller's */
    snprintf(command, sizeof command,
             "unset JOBQ_SERVER; export JOBQ_SERVER_OPTIONS='%s'; %s tests/server.sh sh -c "
             "'echo \"$JOBQ_SERVER_DIR\"; exec cat >/dev/null'", options, before);
    if (!place_up(at, command)) fail_msg("no server with %s", options);
}

static void own_server(const char *before, const char *options)
{
    server_up(&places[0], before, options);
}

/* The server that all is about from now on. */
static void go_to(const char *conninfo)
{
    setenv("JOBQ_SERVER", conninfo, 1);
    PQfinish(db);
    db = PQconnectdb(conninfo);
    if (PQstatus(db) != CONNECTION_OK) fail_msg("%s", PQerrorMessage(db));
    PQclear(PQexec(db, "SET client_min_messages = error"));
    jobq_pg_close(pg);
    pg = NULL;
}

static void migrate(void)
{
    jobq_pg_error error;

    pg = handle();
    if (jobq_pg_migrate(pg, &error) != JOBQ_OK) fail_msg("%s", error.message);
}

static void go_to_own(const char *before, const char *options)
{
    char conninfo[200];

    own_server(before, options);
    snprintf(conninfo, sizeof conninfo, "host=%s user=postgres dbname=postgres", places[0].dir);
    go_to(conninfo);
    migrate();
}

/* A command of the shell about a server: $dir is its folder, and that of tests/server.sh. */
static bool shell(const char *dir, const char *text)
{
    const char *bin = dir == places[1].dir && newer_bin != NULL ? newer_bin : "$JOBQ_SERVER_BIN";
    char command[2000];

    snprintf(command, sizeof command,
             "export JOBQ_SERVER_DIR='%s' JOBQ_SERVER_BIN=\"%s\"; "
             "dir=$JOBQ_SERVER_DIR bin=$JOBQ_SERVER_BIN; "
             "{ %s; } </dev/null >>\"$dir/shell.log\" 2>&1", dir, bin, text);
    return system(command) == 0;
}

/* Teardown: home again. */
static int back_home(void **state)
{
    int i;

    for (i = 0; i < WORKERS_MAX; i++) {
        if (children[i] != 0) kill_hard(children[i]);
    }
    go_to(home);
    migrate();
    for (i = 1; i >= 0; i--) place_down(&places[i]);
    newer_bin = NULL;
    return all_stop(state);
}

/* A port that nobody uses just now. */
static int free_port(void)
{
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    close(fd);
    return ntohs(address.sin_port);
}

static bool says(PGconn *conn, const char *text, const char *sqlstate)
{
    char *full = for_schema(text, schema);
    PGresult *res = PQexec(conn, full);
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    bool so = strcmp(state == NULL ? "" : state, sqlstate) == 0;

    PQclear(res);
    free(full);
    return so;
}

/* -- servers that are full -- */

#define STRANGERS 40

static PGconn *strangers[STRANGERS];

/* Takes all connections there are. How many it took. */
static int crowd_comes(void)
{
    int taken = 0, i;

    for (i = 0; i < STRANGERS; i++) {
        if (strangers[i] == NULL) strangers[i] = PQconnectdb(server());
        if (PQstatus(strangers[i]) == CONNECTION_OK) {
            taken++;
            continue;
        }
        PQfinish(strangers[i]);
        strangers[i] = NULL;
    }
    return taken;
}

static void crowd_goes(void)
{
    int i;

    for (i = 0; i < STRANGERS; i++) {
        PQfinish(strangers[i]);
        strangers[i] = NULL;
    }
}

/* All but this one are cut, and strangers take their places for good. */
static void strangers_take_all(void)
{
    int64_t until = mono_us() + 60 * SECOND;

    while (number("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'jo%%'"
                  " AND pid <> pg_backend_pid() AND backend_type = 'client backend'") > 0) {
        assert_true(mono_us() < until);
        RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND application_name LIKE 'jo%%'");
        crowd_comes();
    }
}

/* A worker that must reconnect cannot; then strangers leave. A stop while nobody gets in ends. */
static void connections_run_out(void **unused)
{
    int before;
    pid_t third;

    (void)unused;
    go_to_own("", "-c max_connections=25");
    crew_starts();
    third = works();
    assert_true(becomes(60, 3, "SELECT count(*) FROM jobq.worker"));
    strangers_take_all();
    before = GET(b->runs);
    kill(third, SIGTERM);
    assert_int_equal(reap(third), 0);
    nap_us(SECOND);
    assert_in_range(GET(b->runs), before, before + 400); /* what was claimed is still done */
    crowd_goes();
    crew_ends(NO_ARCHIVE);
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE crash > 0"), 0);
}

/* One session takes locks until the table of locks is full, and what others give back too. No job
 * is to blame. */
static void locks_run_out(void **unused)
{
    int64_t until;
    PGconn *greedy;
    int next = 1, size = 256;

    (void)unused;
    go_to_own("", "-c max_connections=25");
    crew_starts();
    greedy = PQconnectdb(server());
    for (until = mono_us() + 5 * SECOND; mono_us() < until; next += size) {
        char text[100];
        PGresult *res;
        snprintf(text, sizeof text, "SELECT pg_advisory_lock(g) FROM generate_series(%d, %d) g",
                 next, next + size - 1);
        res = PQexec(greedy, text);
        if (PQresultStatus(res) != PGRES_TUPLES_OK && size > 1) size /= 2;
        PQclear(res);
    }
    assert_int_equal(size, 1);
    PQfinish(greedy);
    crew_ends(NO_ARCHIVE);
}

/* -- a disk that is full -- */

/* The disk of the tables, to its last block. */
static void fill_the_disk(void)
{
    const char *one = "INSERT INTO ballast VALUES (repeat('x', 6000))";
    const char *many = "INSERT INTO ballast SELECT repeat('x', 6000) FROM generate_series(1, 100)";

    RUN("CREATE TABLE ballast (waste text)");
    RUN("ALTER TABLE ballast ALTER waste SET STORAGE PLAIN");
    while (says(db, many, "")) continue;
    while (says(db, one, "")) continue;
    assert_true(says(db, one, "53100"));
}

/* A disk for the tables alone, in a name space of mounts that ends with the server: /mnt there. */
static bool small_disk(void)
{
    if (system("unshare -m mount -t tmpfs none /mnt 2>/dev/null") != 0) {
        print_message("skipped: no right to mount a small disk\n");
        return false;
    }
    go_to_own("exec unshare -m sh -c 'mount -t tmpfs -o size=40m,mode=700,uid=$(id -u "
              "$JOBQ_SERVER_USER) none /mnt && mkdir /mnt/small && chown $JOBQ_SERVER_USER "
              "/mnt/small && exec \"$@\"' sh", "-c max_connections=40");
    RUN("DROP SCHEMA jobq CASCADE");
    RUN("CREATE TABLESPACE small LOCATION '/mnt/small'");
    RUN("ALTER DATABASE postgres SET default_tablespace = small");
    go_to(server());
    migrate();
    return true;
}

/* Waits until the server's log tells of a full disk, within this function. */
static bool is_full_in(const char *function)
{
    int64_t until = mono_us() + 30 * SECOND;
    char command[300];

    snprintf(command, sizeof command,
             "grep -A40 'No space left' \"$dir/log\" | grep -q 'function %s[.]%s('", schema,
             function);
    while (!shell(places[0].dir, command)) {
        if (mono_us() > until) return false;
        nap_us(200000);
    }
    return true;
}

/* A row that fits where an acknowledgement, which shortens its row, would still fit. */
#define SMALL_PARTITION                                                                          \
    "INSERT INTO jobq.partition (id, queue_id, number)"                                          \
    " SELECT max(id) + 1, 0, count(*) FROM jobq.partition"

/* While messages are numbered and acknowledged, jobs completed, a schema made. It leaves nothing;
 * all goes on when there is room. A snapshot keeps the old versions of the partitions' rows, so an
 * acknowledgement needs room, too. */
static void a_disk_is_full(void **unused)
{
    char usual[sizeof schema];
    jobq_pg_error error;
    jobq_pg *other;
    PGconn *holder;

    (void)unused;
    if (!small_disk()) skip();
    crew_starts();
    RUN("SELECT jobq.pause('q'), jobq.pause('o')");
    assert_true(reaches(60, &b->jobs, GET(b->jobs) + 300));
    SET(b->held, 1);
    RUN("SELECT jobq.resume('o')");
    assert_true(becomes(60, PARTITIONS, "SELECT count(*) FROM jobq.partition WHERE reading > 0"));
    assert_true(reaches(60, &b->jobs, GET(b->jobs) + 300));
    holder = PQconnectdb(server());
    PQclear(sql(holder, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT"));
    fill_the_disk();
    while (!says(db, "UPDATE jobq.partition SET lease_us = lease_us", "53100")) continue;
    while (!says(db, SMALL_PARTITION, "53100")) continue;
    SET(b->held, 0);
    RUN("SELECT jobq.resume('q')");
    strcpy(usual, schema);
    strcat(schema, "_full");
    other = handle();
    strcpy(schema, usual);
    assert_int_equal(jobq_pg_migrate(other, &error), JOBQ_ERROR_RETRYABLE);
    assert_string_equal(error.sqlstate, "53100");
    assert_int_equal(number("SELECT count(*) FROM pg_namespace WHERE nspname ~ '_full$'"), 0);
    assert_true(is_full_in("_outbox_ack"));
    nap_us(2 * SECOND); /* it is tried again */
    PQfinish(holder);
    assert_true(is_full_in("_outbox_read"));
    assert_true(is_full_in("_complete"));
    RUN("DROP TABLE ballast");
    RUN("DELETE FROM jobq.partition WHERE queue_id = 0");
    assert_int_equal(jobq_pg_migrate(other, &error), JOBQ_OK);
    jobq_pg_close(other);
    crew_ends(NO_ARCHIVE);
}

/* -- hosts -- */

static bool has_ipv6(void)
{
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 address;
    bool there;

    memset(&address, 0, sizeof address);
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    there = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0) close(fd);
    if (!there) print_message("skipped: this machine has no ::1\n");
    return there;
}

/* Handle, pool, worker, and LISTEN past a pooler. */
static void all_go_by_ipv6(void **unused)
{
    int port = free_port();
    jobq_pg_handler h = handler_of("q", "k", does);
    jobq_pg_worker_desc d = work_of(&h, 1);
    char options[100], conninfo[100];
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *behind_pooler;
    jobq_pg_worker *worker;

    (void)unused;
    if (!has_ipv6()) skip();
    snprintf(options, sizeof options, "-c listen_addresses=::1 -c port=%d", port);
    own_server("", options);
    snprintf(conninfo, sizeof conninfo, "host=::1 port=%d user=postgres dbname=postgres", port);
    go_to(conninfo);
    migrate();
    crew_starts();
    memset(&desc, 0, sizeof desc);
    desc.conninfo = desc.listen_conninfo = conninfo;
    desc.schema = schema;
    desc.behind_pooler = true;
    assert_int_equal(jobq_pg_open(&behind_pooler, &desc, &error), JOBQ_OK);
    worker = start_on(behind_pooler, &d);
    assert_true(becomes(30, 1, "SELECT count(*) FROM pg_stat_activity"
                               " WHERE query LIKE 'LISTEN%' AND client_addr = '::1'"));
    goes_on(60);
    assert_int_equal(number("SELECT count(*) FROM pg_stat_activity"
                            " WHERE backend_type = 'client backend' AND client_addr <> '::1'"), 0);
    stop(worker);
    jobq_pg_close(behind_pooler);
    crew_ends(NO_ARCHIVE);
}

/* A certificate of its own for the server. */
static bool with_tls(const place *at)
{
    bool good = shell(at->dir,
                      "cd \"$dir/data\" && openssl req -new -x509 -days 30 -nodes -subj "
                      "/CN=localhost -keyout server.key -out server.crt && chmod 600 server.key && "
                      "chown \"$JOBQ_SERVER_USER\" server.key server.crt && "
                      "echo 'ssl = on' >>postgresql.conf && cd - && tests/server.sh --ctl restart");

    if (!good) print_message("skipped: no TLS in this server, or no openssl\n");
    return good;
}

/* A process with threads forks again and again, beside its TLS sessions: a word of a child there
 * would end them. */
static void forks_leave_the_parents_sessions_alone(void **unused)
{
    jobq_pg_worker_desc d = worker_desc();
    int port = free_port();
    char options[100], conninfo[120];
    pid_t parent;

    (void)unused;
    if (CHILDREN_ARE_DEAF) skip();
    snprintf(options, sizeof options, "-c listen_addresses=127.0.0.1 -c port=%d", port);
    own_server("", options);
    snprintf(conninfo, sizeof conninfo,
             "host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=require", port);
    if (!with_tls(&places[0])) skip();
    go_to(conninfo);
    migrate();
    parent = fork();
    if (parent == 0) forks_about(&d);
    children[WORKERS_MAX - 1] = parent;
    crew_starts();
    assert_true(reaches(60, &b->forks, 150));
    kill(parent, SIGTERM);
    assert_int_equal(reap(parent), 0);
    crew_ends(NO_ARCHIVE);
}

/* A standby of the first place. */
static void standby_up(int primary, int standby)
{
    char text[1200];

    snprintf(text, sizeof text,
             "export JOBQ_SERVER_DIR=%s/standby; dir=$JOBQ_SERVER_DIR; { mkdir $dir && "
             "$JOBQ_SERVER_BIN/pg_basebackup -D $dir/data -c fast -R -d 'host=127.0.0.1 port=%d "
             "user=postgres application_name=standby' && "
             "printf \"unix_socket_directories = '$dir'\\nport = %d\\n\" "
             ">>$dir/data/postgresql.conf && chmod 700 $dir $dir/data && "
             "chown -R $JOBQ_SERVER_USER $dir && tests/server.sh --ctl start; } "
             ">>$dir.log 2>&1 </dev/null && echo $dir; "
             "cat; tests/server.sh --ctl stop -m immediate >/dev/null",
             places[0].dir, primary, standby);
    if (!place_up(&places[1], text)) fail_msg("no standby");
}

#define REPLICATES "-c listen_addresses=127.0.0.1 -c port=%d -c wal_level=replica -c hot_standby=on"

/* A primary and its synchronous standby, both with TLS; false: without TLS. */
static bool primary_and_standby(int primary, int standby)
{
    char text[200];

    snprintf(text, sizeof text, REPLICATES, primary);
    own_server("", text);
    if (!with_tls(&places[0])) return false;
    standby_up(primary, standby);
    return true;
}

/* The clients find the server at this port, all of them by TLS, and nothing is lost. */
static void the_rest_goes_to(const char *conninfo, int port)
{
    go_to(conninfo);
    pg = handle();
    assert_int_equal(atoi(PQport(db)), port);
    crew_ends(NO_ARCHIVE);
    assert_int_equal(number("SELECT count(*) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)"
                            " WHERE NOT ssl AND backend_type = 'client backend'"), 0);
}

/* Upgrades the schema as a DBA does, by psql. */
static bool installs(const char *conninfo)
{
    char text[800];

    snprintf(
        text, sizeof text,
        "[ -x $bin/psql ] || bin=$(JOBQ_PG_BIN= tests/harness/setup.sh --pg-bin); mkdir -p "
        "$dir/sql/optional; for file in sql/*.sql sql/*/*.sql; do "
        "sed 's/\\bjobq\\b/%s/g' $file >$dir/$file; done; "
        "$bin/psql -X '%s' -f $dir/sql/install.sql",
        schema, conninfo);
    return shell(places[0].dir, text);
}

/* In a process of its own, again and again. */
static pid_t keeps_installing(const char *conninfo)
{
    pid_t pid = fork();
    int i;

    assert_true(pid >= 0);
    for (i = 0; i < WORKERS_MAX && children[i] != 0;) i++;
    if (pid > 0) return children[i] = pid;
    signal(SIGTERM, SIG_DFL);
    for (;;) {
        if (installs(conninfo)) ADD(b->installed);
    }
}

/* Three hosts: nobody, the standby, the primary. The schema is upgraded by a program, and then by
 * psql. During that the primary dies, and the standby is promoted: what was confirmed is there, by
 * TLS all the time. */
static void the_standby_is_promoted_during_an_upgrade(void **unused)
{
    int primary = free_port(), standby = free_port(), nobody = free_port();
    char conninfo[300];
    pid_t dba;

    (void)unused;
    if (!primary_and_standby(primary, standby)) skip();
    snprintf(conninfo, sizeof conninfo,
             "host=127.0.0.1,127.0.0.1,127.0.0.1 port=%d,%d,%d user=postgres dbname=postgres "
             "sslmode=require target_session_attrs=read-write", nobody, standby, primary);
    go_to(conninfo);
    assert_int_equal(atoi(PQport(db)), primary);
    migrate();
    RUN("ALTER SYSTEM SET synchronous_standby_names = 'standby'");
    RUN("SELECT pg_reload_conf()");
    assert_true(becomes(30, 1, "SELECT count(*) FROM pg_stat_replication"
                               " WHERE sync_state = 'sync'"));
    crew_starts();
    assert_true(number("SELECT count(*) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)"
                       " WHERE ssl AND application_name LIKE 'jo%%'") >= 3);
    goes_on(60);
    dba = keeps_installing(conninfo);
    assert_true(reaches(60, &b->installed, 2));
    goes_on(60);
    assert_true(shell(places[0].dir, "tests/server.sh --crash"));
    assert_true(shell(places[1].dir, "tests/server.sh --ctl promote"));
    kill_hard(dba);
    assert_true(installs(conninfo));
    the_rest_goes_to(conninfo, standby);
}

/* Each view and each function that only reads; then what writes, and a worker. */
static void what_a_standby_answers(jobq_pg *standby, int64_t id)
{
    jobq_pg_handler h = handler_of("q", "k", does);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_job job = plain_job();
    jobq_pg_worker *worker;
    jobq_pg_error error;
    jobq_pg_rows rows;
    jobq_job facts;
    char why[200];

    assert_int_equal(jobq_pg_check(standby, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_get(standby, NULL, id, &facts, &error), JOBQ_OK);
    assert_int_equal(facts.state, JOBQ_STATE_READY);
    assert_int_equal(jobq_pg_explain(standby, NULL, id, why, sizeof why, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_wait(standby, NULL, &id, 1, 0, &rows, &error), JOBQ_ERROR_TIMEOUT);
    assert_int_equal(((const jobq_pg_job_row *)rows.rows)->facts.id, id);
    jobq_pg_rows_clear(&rows);
    assert_int_not_equal(jobq_pg_enqueue(standby, NULL, &job, NULL, &error), JOBQ_OK);
    assert_string_equal(error.sqlstate, "25006");
    assert_int_equal(jobq_pg_worker_start(standby, &d, &worker, &error), JOBQ_ERROR_CONNECTION);
    assert_non_null(strstr(error.message, "standby"));
    assert_null(worker);
}

static void a_standby_is_for_readers(void **unused)
{
    int primary = free_port(), standby = free_port();
    char conninfo[200], options[200];
    jobq_pg_desc desc = desc_of(conninfo);
    jobq_pg_error error;
    PGresult *views;
    jobq_pg *made;
    int64_t id;
    int i;

    (void)unused;
    snprintf(options, sizeof options, REPLICATES, primary);
    own_server("", options);
    snprintf(conninfo, sizeof conninfo, "host=127.0.0.1 port=%d user=postgres dbname=postgres",
             primary);
    go_to(conninfo);
    migrate();
    standby_up(primary, standby);
    RUN("SELECT jobq.outbox_register('o', 2), jobq.schedule('s', 'q', 'k', every => '1 hour')");
    id = enqueue_with(&(jobq_pg_job){.queue = "q", .kind = "k"});
    snprintf(conninfo, sizeof conninfo, "host=127.0.0.1 port=%d user=postgres dbname=postgres",
             standby);
    assert_int_equal(jobq_pg_open(&made, &desc, &error), JOBQ_ERROR_CONNECTION);
    strcat(conninfo, " target_session_attrs=standby");
    go_to(conninfo);
    pg = handle();
    assert_true(becomes(30, 2, "SELECT count(*) FROM jobq.outbox"));
    assert_true(becomes(30, 1, "SELECT count(*) FROM jobq.job"));
    views = sql(db, "SELECT relname FROM pg_class WHERE relkind = 'v'"
                    " AND relnamespace = 'jobq'::regnamespace");
    assert_true(PQntuples(views) > 10);
    for (i = 0; i < PQntuples(views); i++) RUN("SELECT * FROM jobq.%s", PQgetvalue(views, i, 0));
    PQclear(views);
    assert_int_equal(number("SELECT ready FROM jobq.queues WHERE queue = 'q'"), 1);
    assert_int_equal(number("SELECT jobq.audit()"), 0);
    assert_true(number("SELECT length(jobq.metrics())") > 100);
    what_a_standby_answers(pg, id);
}

/* Lets no client in by TCP, and ends the sessions of those that are in. */
static void shut_out(const place *at, int port)
{
    char conninfo[200];

    assert_true(shell(at->dir, "sed -i '1i host all all all reject' $dir/data/pg_hba.conf && "
                               "tests/server.sh --ctl reload"));
    snprintf(conninfo, sizeof conninfo, "host=%s port=%d user=postgres dbname=postgres", at->dir,
             port);
    go_to(conninfo);
    assert_true(becomes(60, 0, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                               " WHERE backend_type = 'client backend'"
                               " AND pid <> pg_backend_pid()"));
}

/* A dump of the first place into the second one, by the programs of the newer server. */
static bool dumped(int before, int after)
{
    char text[700];

    snprintf(
        text, sizeof text,
        "bin=${JOBQ_UPGRADE_BIN:-$bin}; [ -x $bin/psql ] || "
        "bin=$(JOBQ_PG_BIN= tests/harness/setup.sh --pg-bin); $bin/pg_dump -h $dir -p %d "
        "-U postgres -d postgres >$dir/dump && "
        "$bin/psql -qX -v ON_ERROR_STOP=1 -h %s -p %d -U postgres -d postgres -f $dir/dump",
        before, places[1].dir, after);
    return shell(places[0].dir, text);
}

/* An upgrade by a dump under load, by TLS all the time. With JOBQ_UPGRADE_BIN the second server is
 * of a newer major version. Nobody is let in until it has everything, so nothing is lost. */
static void the_server_is_upgraded(void **unused)
{
    int before = free_port(), after = free_port();
    char options[100], programs[300], conninfo[300];

    (void)unused;
    snprintf(options, sizeof options, "-c listen_addresses=127.0.0.1 -c port=%d", before);
    own_server("", options);
    snprintf(options, sizeof options, "-c listen_addresses=127.0.0.1 -c port=%d", after);
    newer_bin = getenv("JOBQ_UPGRADE_BIN");
    snprintf(programs, sizeof programs, "%s%s", newer_bin == NULL ? "" : "JOBQ_PG_BIN=",
             newer_bin == NULL ? "" : newer_bin);
    server_up(&places[1], programs, options);
    if (!with_tls(&places[0]) || !with_tls(&places[1])) skip();
    shut_out(&places[1], after);
    snprintf(conninfo, sizeof conninfo,
             "host=127.0.0.1,127.0.0.1 port=%d,%d user=postgres dbname=postgres sslmode=require "
             "target_session_attrs=read-write", before, after);
    go_to(conninfo);
    migrate();
    crew_starts();
    shut_out(&places[0], before);
    assert_true(dumped(before, after));
    shut_out(&places[1], after);
    RUN("SELECT jobq.renew(home => true)");
    assert_true(shell(places[1].dir, "sed -i '/^host all all all reject/d' "
                                     "$dir/data/pg_hba.conf && tests/server.sh --ctl reload"));
    assert_true(shell(places[0].dir, "tests/server.sh --crash"));
    the_rest_goes_to(conninfo, after);
}

/* -- copies of a server -- */

/* Two servers, and the first one with a job and a schedule that is due. */
static void an_original_and_another(const char *options)
{
    char conninfo[200];

    go_to_own("", options);
    RUN("SELECT jobq.enqueue('q', 'k'), jobq.schedule('s', 'q', 'k', every => '1 second')");
    server_up(&places[1], "", "");
    snprintf(conninfo, sizeof conninfo, "host=%s user=postgres dbname=postgres", places[0].dir);
    go_to(conninfo);
}

/* The second one has all tables now. */
static void it_is_a_copy_until_it_is_called_home(void)
{
    static const char *const calls[] = {"SELECT 1", "SELECT jobq.renew()",
                                        "SELECT jobq.renew(home => true)"};
    char conninfo[200];
    int i;

    snprintf(conninfo, sizeof conninfo, "host=%s user=postgres dbname=postgres", places[1].dir);
    go_to(conninfo);
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 1);
    nap_us(1100000); /* the schedule is due */
    for (i = 0; i < 3; i++) {
        RUN("%s", calls[i]);
        assert_int_equal(
            number("SELECT fired FROM jobq._tick(ARRAY(SELECT id FROM jobq.queue), 1)"), i == 2);
        assert_true(says(db, "SELECT jobq._register(1, 'w', 1000000, '{q}', '{1}', '{k}')",
                         i == 2 ? "" : "JQ004"));
    }
}

static void a_server_after_pg_upgrade_is_a_copy(void **unused)
{
    char text[600];

    (void)unused;
    an_original_and_another("");
    if (!shell(places[0].dir, "[ -x $bin/pg_upgrade ]")) skip();
    assert_true(shell(places[0].dir, "tests/server.sh --ctl stop"));
    snprintf(text, sizeof text,
             "tests/server.sh --ctl stop; cd $dir; as=; [ $(id -u) != 0 ] || as=\"setpriv --reuid "
             "$(id -u $JOBQ_SERVER_USER) --clear-groups --\"; $as $bin/pg_upgrade -b $bin -B $bin "
             "-d %s/data -D data -U postgres -s $dir && cd - && tests/server.sh --ctl start",
             places[0].dir);
    assert_true(shell(places[1].dir, text));
    it_is_a_copy_until_it_is_called_home();
}

static void a_logical_replica_is_a_copy(void **unused)
{
    char text[700];

    (void)unused;
    an_original_and_another("-c wal_level=logical");
    RUN("CREATE PUBLICATION p FOR ALL TABLES");
    snprintf(text, sizeof text,
             "[ -x $bin/psql ] || bin=$(JOBQ_PG_BIN= tests/harness/setup.sh --pg-bin); "
             "sql=\"psql -qX -v ON_ERROR_STOP=1 -h $dir -U postgres postgres\"; "
             "$bin/pg_dump -h %s -U postgres -s --no-publications postgres | $bin/$sql && "
             "$bin/$sql -c \"CREATE SUBSCRIPTION p CONNECTION 'host=%s user=postgres "
             "dbname=postgres' PUBLICATION p\"", places[0].dir, places[0].dir);
    assert_true(shell(places[1].dir, text));
    snprintf(text, sizeof text, "host=%s user=postgres dbname=postgres", places[1].dir);
    go_to(text);
    assert_true(becomes(60, 0, "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'"));
    RUN("DROP SUBSCRIPTION p");
    it_is_a_copy_until_it_is_called_home();
}

/* -- a server's clock that jumps -- */

#define FIND_FAKETIME                                                                              \
    "ls /usr/lib*/faketime/libfaketime.so.1 /usr/lib/*/faketime/libfaketime.so.1 2>/dev/null"      \
    " | head -n 1"

static char clock_file[60];

static void clock_says(const char *offset)
{
    FILE *file = fopen(clock_file, "w");

    assert_non_null(file);
    fprintf(file, "%s\n", offset);
    fclose(file);
}

static bool server_with_a_clock(void)
{
    char before[500];

    snprintf(clock_file, sizeof clock_file, "/tmp/jobq_clock.%d", (int)getpid());
    if (!HAS_FAKETIME) return false;
    clock_says("+0");
    snprintf(before, sizeof before,
             "LD_PRELOAD=$(" FIND_FAKETIME ") "
             "FAKETIME_TIMESTAMP_FILE=%s FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1",
             clock_file);
    go_to_own(before, "");
    return true;
}

/* An hour forth, back, and forth: no lease ends by it, nobody is taken for dead. What was enqueued
 * before the step back waits until the clock has come so far again. */
static void a_servers_clock_jumps(void **unused)
{
    static const char *const steps[] = {"+3600", "+0", "-3600", "+3700"};
    int64_t before;
    size_t i;

    (void)unused;
    if (!server_with_a_clock()) skip();
    before = number("SELECT extract(epoch FROM now())");
    crew_starts();
    for (i = 0; i < COUNT(steps); i++) {
        clock_says(steps[i]);
        assert_in_range(number("SELECT extract(epoch FROM clock_timestamp())") - before -
                            atoi(steps[i]), 0, 600);
        nap_us(SECOND); /* some beats */
        goes_on(60);
        assert_int_equal(number("SELECT count(*) FROM jobq.worker WHERE dead_at IS NULL"), 2);
        assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 2);
    }
    crew_ends(NO_ARCHIVE);
    remove(clock_file);
}

static jobq_result takes(jobq_delivery *d, const jobq_message *m)
{
    (void)d;
    (void)m;
    return JOBQ_RESULT_SUCCESS;
}

/* A worker that serves these queues, and the outboxes o and p. */
static jobq_pg_worker *serves_all(void)
{
    static const char *const queues[] = {"q", "rated", "lined", "held", "held_line"};
    static const char *const outboxes[] = {"o", "p"};
    static jobq_pg_handler handlers[COUNT(queues)];
    static jobq_pg_receiver receivers[COUNT(outboxes)];
    jobq_pg_worker_desc d;
    size_t i;

    for (i = 0; i < COUNT(queues); i++) handlers[i] = handler_of(queues[i], "k", succeed);
    memset(receivers, 0, sizeof receivers);
    for (i = 0; i < COUNT(outboxes); i++) {
        receivers[i].queue = outboxes[i];
        receivers[i].each = takes;
    }
    d = work_of(handlers, COUNT(queues));
    d.receivers = receivers;
    d.receiver_count = COUNT(outboxes);
    return start(&d);
}

/* What a worker has begun that dies now: it has three jobs, holds the queue of one and the line of
 * another, and delivers from o. A delivery from p has failed, and a dead letter is replayed. All is
 * over in two seconds. */
static void begins_what_ends_soon(void)
{
    static const char *const calls[] = {
        "CREATE TEMP TABLE dead AS SELECT worker FROM jobq.work_join("
        "'{\"q\": [\"k\"], \"held\": [\"k\"], \"held_line\": [\"k\"]}', lease => '2 s')",
        "SELECT jobq.enqueue('q', 'k'), jobq.enqueue('held', 'k'), "
        "jobq.enqueue('held_line', 'k', line => 'a')",
        "SELECT count(*) FROM dead, jobq.work_take(dead.worker, 1, 1)",
        "SELECT count(*) FROM dead, jobq.work_take(dead.worker, 2, 1)",
        "SELECT count(*) FROM dead, jobq.work_take(dead.worker, 3, 1)",
        "SELECT jobq._hold_of_claim(j.worker, j.claim, j.id, q.name = 'held', 2000000, 'full') "
        "FROM jobq.job j JOIN jobq.queue q ON q.id = j.queue_id WHERE q.name ~ 'held'",
        "SELECT jobq.outbox_enqueue(o, '1') FROM unnest('{o, p}'::text[]) o",
        "SELECT jobq._outbox_read(101, 1, 2000000, id, 10) FROM jobq.partition",
        "SELECT jobq._outbox_ack(101, 1, 2000000, p.id, 0, 0, '{1}', 1, 1, 0, 'no', 2000000, '{}', "
        "'{}', '{}', 0, false) FROM jobq.partition p JOIN jobq.queue q ON q.id = p.queue_id "
        "WHERE q.name = 'p'",
        "INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at, "
        "attempts) SELECT queue_id, id, 1000, now(), now(), 1 FROM jobq.partition LIMIT 1",
        "SELECT count(*) FROM jobq.dead_letter_replay(7, 2000000)",
    };
    size_t i;

    for (i = 0; i < COUNT(calls); i++) RUN("%s", calls[i]);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'x'"), 3);
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE worker = 101"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE run_at > now()"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter WHERE token = 7"), 1);
}

/* The clock runs back an hour, and nothing waits until it is there again: no rate, lease, hold,
 * pause or replay. (Jobs that were ready before do.) */
static void what_was_to_end_soon_ends_after_a_step_back(void **unused)
{
    static const char more[] = "SELECT jobq.enqueue(q, 'k', line => 'a') "
                               "FROM unnest('{rated, lined}'::text[]) q, generate_series(1, 5)";
    jobq_pg_worker *w;

    (void)unused;
    if (!server_with_a_clock()) skip();
    clock_says("+3600");
    RUN("SELECT jobq.queue_set('rated', rate => '10/s'), "
        "jobq.queue_set('lined', line_rate => '10/s'), "
        "jobq.outbox_register(o, 1) FROM unnest('{o, p}'::text[]) o");
    SET(runs, 0);
    w = serves_all();
    RUN("%s", more);
    assert_true(reaches(60, &runs, 10));
    stop(w);
    begins_what_ends_soon();
    clock_says("+0");
    RUN("%s", more);
    w = serves_all();
    if (!reaches(60, &runs, 23))
        fail_msg("%s", text_of("SELECT string_agg(concat_ws(' ', q.name, j.state, (SELECT "
                               "string_agg(r.reason, ', ') FROM jobq.explain_job(j.id) r)), '; ') "
                               "FROM jobq.job j JOIN jobq.queue q ON q.id = j.queue_id"));
    assert_true(becomes(60, 2, "SELECT sum(acked) FROM jobq.partition"));
    assert_true(becomes(60, 1, "SELECT count(*) FROM jobq.dead_letter_replay(8, 2000000)"));
    assert_true(becomes(60, 0, "SELECT jobq.audit() + (SELECT count(*) FROM jobq.job)"));
    stop(w);
    remove(clock_file);
}

#define ELSEWHERE(f) cmocka_unit_test_setup_teardown(f, fresh_board, back_home)
#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh_board, all_stop)

static int board_up(void **state)
{
    b = (board *)shared(sizeof *b);
    snprintf(home, sizeof home, "%s", server());
    return pg_up(state);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(tables_are_rewritten_under_load),
        TEST(a_part_of_the_history_is_archived),
        TEST(the_part_now_written_is_detached),
        TEST(a_thousand_workers_come_and_half_of_them_die),
        ELSEWHERE(connections_run_out),
        ELSEWHERE(locks_run_out),
        ELSEWHERE(a_disk_is_full),
        ELSEWHERE(forks_leave_the_parents_sessions_alone),
        ELSEWHERE(the_standby_is_promoted_during_an_upgrade),
        ELSEWHERE(a_standby_is_for_readers),
        ELSEWHERE(the_server_is_upgraded),
        ELSEWHERE(a_server_after_pg_upgrade_is_a_copy),
        ELSEWHERE(a_logical_replica_is_a_copy),
        ELSEWHERE(a_servers_clock_jumps),
        ELSEWHERE(what_was_to_end_soon_ends_after_a_step_back),
        ELSEWHERE(all_go_by_ipv6), /* last: it has threads */
    };

    return cmocka_run_group_tests_name("upheaval", tests, board_up, pg_down);
}
