/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * trouble.c -- rows about a worker in trouble: locked (jobs, or their table), disk (slow commits),
 * full (a server at its connection limit), hoard (handlers that are slow, or become slow).
 *
 * The first three watch a worker in a process of its own. Its handlers sleep for a millisecond, so
 * that they, and not the machine, determine its speed. It works, the trouble lasts for some seconds
 * and ends. Then all jobs are worked off, and each must have been run once.
 */
#include "bench.h"

#include <sys/mman.h>
#include <sys/wait.h>

#define WARD "bench_ward" /* application_name of the worker's connections */
#define GET(value) __atomic_load_n(&(value), __ATOMIC_SEQ_CST)
#define ADD(value, by) __atomic_add_fetch(&(value), by, __ATOMIC_SEQ_CST)

/* -- the worker's process -- */

/* Shared by both processes. */
typedef struct ward {
    long done;  /* jobs run */
    int hurry;  /* handlers no longer sleep */
} ward;

static ward *w;
static pid_t ward_pid;
static int ward_go[2];

static jobq_outcome ward_job(jobq_call *call)
{
    if (!GET(w->hurry)) bench_sleep(0.001);
    ADD(w->done, 1);
    return bench_noop(call);
}

/* Works until all jobs are done, or the parent has ended. */
static void ward_child(pid_t parent, long jobs)
{
    jobq_pg_desc desc;
    jobq_pg_error error;
    bench_crew crew;
    char conninfo[512], byte;
    jobq_pg *pg;

    close(ward_go[1]);
    if (read(ward_go[0], &byte, 1) != 1) _exit(1);
    snprintf(conninfo, sizeof conninfo, "%s application_name=" WARD, getenv("JOBQ_SERVER"));
    memset(&desc, 0, sizeof desc);
    desc.conninfo = conninfo;
    bench_seen_reset(jobs);
    if (jobq_pg_open(&pg, &desc, &error)) _exit(1);
    bench_crew_start(&crew, pg, 1, ward_job, NULL);
    while (GET(w->done) < jobs && getppid() == parent) bench_sleep(0.1);
    bench_crew_stop(&crew);
    jobq_pg_close(pg);
    _exit(bench_seen_wrong() == 0 ? 0 : 2);
}

/* Called before this process has threads or connections. */
static void ward_fork(long jobs)
{
    FILE *file = tmpfile();
    pid_t parent = getpid();

    if (file == NULL || ftruncate(fileno(file), sizeof *w) != 0 || pipe(ward_go) != 0)
        bench_fail("no shared memory");
    w = (ward *)mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    if (w == MAP_FAILED) bench_fail("no shared memory");
    fclose(file);
    ward_pid = fork();
    if (ward_pid == 0) ward_child(parent, jobs);
}

/* Measures jobs a second and processor time (percent of a core) for the next seconds. */
typedef struct pulse {
    double rate, cpu;
} pulse;

static pulse ward_pulse(double seconds)
{
    double started = bench_now(), cpu = bench_cpu(ward_pid);
    long done = GET(w->done);
    pulse p;

    bench_sleep(seconds);
    seconds = bench_now() - started;
    p.rate = (double)(GET(w->done) - done) / seconds;
    p.cpu = 100 * (bench_cpu(ward_pid) - cpu) / seconds;
    return p;
}

/* -- troubles -- */

typedef struct trouble {
    const char *name;
    void (*begin)(PGconn *db);
    void (*end)(PGconn *db);
    bool (*over)(void);  /* whether what it delayed has been caught up; NULL: nothing to catch up */
    double recovery;     /* target: seconds until it works as before */
    bool works;          /* it can work during the trouble */
    double share;        /* target: of its jobs during the trouble; 0: none */
} trouble;

static PGconn *holder; /* holds the locks */

static void lock_table(PGconn *db)
{
    (void)db;
    holder = bench_db();
    bench_sql(holder, "BEGIN; LOCK TABLE jobq.job IN ACCESS EXCLUSIVE MODE");
}

static void unlock(PGconn *db)
{
    (void)db;
    bench_sql(holder, "COMMIT");
}

/* Locks the first thousand jobs. Some are running, and cannot be completed until it ends. */
static void lock_rows(PGconn *db)
{
    (void)db;
    holder = bench_db();
    bench_sql(holder, "CREATE TEMP TABLE held (id bigint)");
    bench_sql(holder, "BEGIN");
    bench_sql(holder, "INSERT INTO held SELECT id FROM jobq.job ORDER BY run_at, id LIMIT 1000 "
                      "FOR UPDATE SKIP LOCKED");
}

static bool rows_worked(void)
{
    return bench_number(holder, "SELECT count(*) FROM held JOIN jobq.job USING (id)") == 0;
}

static void commit_delay(PGconn *db, int us)
{
    bench_sql(db, "ALTER SYSTEM SET commit_delay = %d", us);
    bench_sql(db, "ALTER SYSTEM SET commit_siblings = 0");
    bench_sql(db, "SELECT pg_reload_conf()");
}

/* Makes each wait for the log longer, in the server's own group commit, as a slow disk does.
 * Commits that do not wait for the disk are not affected. */
static void slow_disk(PGconn *db) { commit_delay(db, 100000); }
static void fast_disk(PGconn *db) { commit_delay(db, 0); }

static PGconn *crowd[1024];
static int crowded;

/* Takes all free connections. */
static void take_connections(void)
{
    while (crowded < 1024) {
        PGconn *conn = PQconnectdb(getenv("JOBQ_SERVER"));
        if (PQstatus(conn) != CONNECTION_OK) {
            PQfinish(conn);
            return;
        }
        crowd[crowded++] = conn;
    }
}

/* Other sessions have all connections, and the worker has lost its own. */
static void fill_server(PGconn *db)
{
    double started = bench_now();

    take_connections();
    while (bench_number(db, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                            "WHERE application_name = '" WARD "'") > 0) {
        if (bench_now() - started > 30) bench_fail("full: the worker still connects");
        take_connections();
    }
}

static void empty_server(PGconn *db)
{
    (void)db;
    while (crowded > 0) PQfinish(crowd[--crowded]);
}

/* -- the row -- */

static void ward_ends(PGconn *db, const char *name, long jobs)
{
    int status;

    __atomic_store_n(&w->hurry, 1, __ATOMIC_SEQ_CST);
    if (waitpid(ward_pid, &status, 0) != ward_pid || status != 0)
        bench_fail("%s: the worker's process failed, or some job was not run exactly once", name);
    if (bench_number(db, "SELECT count(*) FROM jobq.job") != 0 ||
        bench_number(db, "SELECT count(*) FROM jobq.history") != (double)jobs)
        bench_fail("%s: history is wrong", name);
}

static void tell(const trouble *t, pulse before, pulse meanwhile, pulse after, double recovered)
{
    char label[96];

    snprintf(label, sizeof label, "%s: jobs a second after it", t->name);
    bench_figure(label, after.rate, "jobs/s", "before", before.rate, BENCH_RATIO_AT_LEAST, 0.9);
    bench_figure("  during it", meanwhile.rate, "jobs/s", "before", before.rate,
                 t->share > 0 ? BENCH_RATIO_AT_LEAST : BENCH_SHOWN, t->share);
    bench_figure("  normal again after", recovered, "s", "", 0, BENCH_AT_MOST, t->recovery);
    if (t->works) {
        bench_figure("  its processor time during it", meanwhile.cpu, "%", "before", before.cpu,
                     BENCH_RATIO_AT_MOST, 1.5);
    } else {
        bench_figure("  its processor time during it", meanwhile.cpu, "%", "", 0, BENCH_AT_MOST, 5);
    }
}

static void row_trouble(const trouble *t)
{
    long jobs = bench_long ? 200000 : 60000;
    double ended, recovered;
    pulse before, meanwhile, after;
    PGconn *db;

    ward_fork(jobs);
    db = bench_db();
    jobq_pg_close(bench_schema(db, true));
    bench_load(db, "jobq.job", jobs);
    bench_wal_reset(db);
    if (write(ward_go[1], "", 1) != 1) bench_fail("%s: no worker", t->name);
    while (GET(w->done) < 2000) bench_sleep(0.01);
    before = ward_pulse(2);
    t->begin(db);
    meanwhile = ward_pulse(bench_long ? 20 : 4);
    t->end(db);
    ended = bench_now();
    do {
        recovered = bench_now() - ended;
        if (recovered > 60) bench_fail("%s: not normal again within a minute", t->name);
    } while (ward_pulse(0.1).rate < 0.8 * before.rate || (t->over != NULL && !t->over()));
    after = ward_pulse(2);
    ward_ends(db, t->name, jobs);
    tell(t, before, meanwhile, after, recovered);
    PQfinish(holder);
    holder = NULL;
    PQfinish(db);
}

void row_locked(void)
{
    static const trouble table = {"jobq.job locked", lock_table, unlock, NULL, 2, false, 0};
    static const trouble rows = {"1,000 jobs locked", lock_rows, unlock, rows_worked, 6, true, 0};

    row_trouble(&table);
    row_trouble(&rows);
}

void row_disk(void)
{
    static const trouble disk = {"commits take 100 ms", slow_disk, fast_disk, NULL, 2, true, 0.5};

    row_trouble(&disk);
}

void row_full(void)
{
    static const trouble full = {"no connection free", fill_server, empty_server, NULL, 10, false,
                                 0};

    row_trouble(&full);
}

/* -- hoard: jobs that a worker holds but does not run -- */

#define SLOW_JOBS 500

static long slow_from; /* jobs after this one take a second */
static int slow_running, slow_hurry, fresh_began;

static jobq_outcome slow_job(jobq_call *call)
{
    if (call->job.id > slow_from && !GET(slow_hurry)) {
        ADD(slow_running, 1);
        bench_sleep(1);
        ADD(slow_running, -1);
    }
    return bench_noop(call);
}

static jobq_outcome fresh_job(jobq_call *call)
{
    ADD(fresh_began, 1);
    return slow_job(call);
}

/* After quick jobs come SLOW_JOBS of a second: how many a worker with 4 threads keeps from
 * others. */
static void hoard_of(const char *label, long quick)
{
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    long jobs = quick + SLOW_JOBS;
    bench_crew crew, fresh;
    double started, waited, held;

    bench_load(db, "jobq.job", jobs);
    bench_seen_reset(jobs);
    slow_from = quick;
    slow_running = slow_hurry = fresh_began = 0;
    bench_crew_start(&crew, pg, 1, slow_job, NULL);
    while (GET(slow_running) < 4) bench_sleep(0.01);
    bench_sleep(3.5);
    held = bench_number(db, "SELECT count(*) FROM jobq.job WHERE state = 'x'") - GET(slow_running);
    started = bench_now();
    bench_crew_start(&fresh, pg, 1, fresh_job, NULL);
    while (GET(fresh_began) == 0 && bench_now() - started < 30) bench_sleep(0.001);
    waited = bench_now() - started;
    __atomic_store_n(&slow_hurry, 1, __ATOMIC_SEQ_CST);
    while (bench_number(db, "SELECT count(*) FROM jobq.job") > 0) bench_sleep(0.01);
    bench_crew_stop(&crew);
    bench_crew_stop(&fresh);
    if (bench_seen_wrong() != 0) bench_fail("hoard: %ld jobs not run once", bench_seen_wrong());
    bench_figure(label, held, "jobs", "", 0, BENCH_AT_MOST, 4);
    bench_figure("  until a fresh worker runs one", waited, "s", "", 0, BENCH_AT_MOST, 0.5);
    jobq_pg_close(pg);
    PQfinish(db);
}

void row_hoard(void)
{
    hoard_of("handlers of 1 s, 4 threads: claimed and waiting", 0);
    hoard_of("handlers that turn slow: claimed and waiting", 20000);
}
