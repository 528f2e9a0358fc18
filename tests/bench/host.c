/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * host.c -- rows about what a worker costs its host and its server: build, memory, delay, beats.
 */
#include "bench.h"

#include <sys/stat.h>
#include <sys/times.h>
#include <sys/wait.h>

/* -- build: what both headers add to a program -- */

/* Processor time of all children waited for so far, in seconds. */
static double children_cpu(void)
{
    struct tms t;

    if (times(&t) == (clock_t)-1) return 0;
    return (double)(t.tms_cutime + t.tms_cstime) / (double)sysconf(_SC_CLK_TCK);
}

void row_build(void)
{
    static const char text[] = "#define JOBQ_IMPLEMENTATION\n#define JOBQ_PG_IMPLEMENTATION\n"
                               "#include \"jobq_pg.h\"\nint main(void) { return 0; }\n";
    const char *dir = getenv("BENCH_DIR"), *cc = getenv("CC");
    char command[1024];
    struct stat size;
    double started, cpu;
    FILE *file;

    dir = dir == NULL ? ".build/bench" : dir;
    snprintf(command, sizeof command, "%s/both.c", dir);
    file = fopen(command, "w");
    if (file == NULL) bench_fail("cannot write %s", command);
    fputs(text, file);
    fclose(file);
    snprintf(command, sizeof command, "%s -O2 %s/both.c -I. -lpq -o %s/both && strip %s/both",
             cc == NULL || *cc == '\0' ? "cc" : cc, dir, dir, dir);
    cpu = children_cpu();
    started = bench_now();
    if (system(command) != 0) bench_fail("build: the compiler failed");
    bench_figure("build of both headers with -O2, processor time", children_cpu() - cpu, "s", "", 0,
                 BENCH_AT_MOST, 4);
    bench_figure("  time on the clock", bench_now() - started, "s", "", 0, BENCH_SHOWN, 0);
    snprintf(command, sizeof command, "%s/both", dir);
    if (stat(command, &size) != 0) bench_fail("build: there is no program");
    bench_figure("  stripped", (double)size.st_size / 1000, "KB", "", 0, BENCH_AT_MOST, 300);
    bench_note("  with 110 KB of SQL, 205 of code, 35 to unwind; a worker with JOBQ_STATIC: 280; "
               "tests/bench/README.md says what was tried", "");
}

/* -- memory: of a process with a worker and a long queue -- */

static double peak_mb(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    double kb = -1;

    if (file == NULL) return -1;
    while (fgets(line, sizeof line, file) != NULL) sscanf(line, "VmHWM: %lf", &kb);
    fclose(file);
    return kb / 1024;
}

/* A separate process works for some seconds and reports its peak. */
static void memory_child(int go, int tell)
{
    jobq_pg_desc desc;
    jobq_pg_error error;
    bench_crew crew;
    double mb;
    jobq_pg *pg;
    char byte;

    if (read(go, &byte, 1) != 1) _exit(1);
    memset(&desc, 0, sizeof desc);
    desc.conninfo = getenv("JOBQ_SERVER");
    if (jobq_pg_open(&pg, &desc, &error)) _exit(1);
    bench_crew_start(&crew, pg, 1, bench_noop, NULL);
    bench_sleep(3);
    bench_crew_stop(&crew);
    jobq_pg_close(pg);
    mb = peak_mb();
    _exit(write(tell, &mb, sizeof mb) == (ssize_t)sizeof mb ? 0 : 1);
}

void row_memory(void)
{
    long waiting = bench_long ? 1000000 : 300000;
    int go[2], tell[2], status;
    double mb = -1;
    char label[64];
    PGconn *db;
    pid_t child;

    if (pipe(go) != 0 || pipe(tell) != 0) bench_fail("pipe");
    child = fork();
    if (child == 0) memory_child(go[0], tell[1]);
    db = bench_db();
    jobq_pg_close(bench_schema(db, true));
    bench_load(db, "jobq.job", waiting);
    if (write(go[1], "", 1) != 1 || read(tell[0], &mb, sizeof mb) != (ssize_t)sizeof mb) {
        bench_fail("memory: the worker's process failed");
    }
    waitpid(child, &status, 0);
    if (bench_number(db, "SELECT count(*) FROM jobq.history") == 0) bench_fail("memory: no work");
    snprintf(label, sizeof label, "a worker's process, %ld jobs waiting", waiting);
    bench_figure(label, mb, "MB", "", 0, BENCH_AT_MOST, 16);
    PQfinish(db);
}

/* -- delay: from the end of a handler until the server has the result -- */

#define DELAY_JOBS 40000

static int64_t ended_us[DELAY_JOBS + 1];

static jobq_outcome end_stamp(jobq_call *call)
{
    if (call->job.id >= 1 && call->job.id <= DELAY_JOBS) ended_us[call->job.id] = bench_wall_us();
    return JOBQ_OUTCOME_SUCCESS;
}

void row_delay(void)
{
    static const jobq_pg_job none;
    static double ms[DELAY_JOBS];
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    jobq_pg_job jobs[100];
    jobq_pg_error error;
    bench_crew crew;
    PGresult *res;
    int sent, i;

    bench_crew_start(&crew, pg, 1, end_stamp, NULL);
    for (i = 0; i < 100; i++) {
        jobs[i] = none;
        jobs[i].queue = BENCH_QUEUE;
        jobs[i].kind = BENCH_KIND;
    }
    for (sent = 0; sent < DELAY_JOBS; sent += 100) { /* some 10,000 a second */
        if (jobq_pg_enqueue_many(pg, db, jobs, 100, NULL, &error)) bench_fail("%s", error.message);
        bench_sleep(0.01);
    }
    while (bench_crew_flushed(&crew) < DELAY_JOBS) bench_sleep(0.01);
    bench_crew_stop(&crew);
    res = PQexec(db, "SELECT id, (extract(epoch FROM finished_at) * 1e6)::bigint FROM jobq.history "
                     "WHERE id <= 40000");
    if (PQntuples(res) != DELAY_JOBS) bench_fail("delay: %d jobs in history", PQntuples(res));
    for (i = 0; i < DELAY_JOBS; i++) {
        int64_t id = strtoll(PQgetvalue(res, i, 0), NULL, 10);
        ms[i] = (double)(strtoll(PQgetvalue(res, i, 1), NULL, 10) - ended_us[id]) / 1000;
    }
    PQclear(res);
    bench_figure("a result's delay under load, p50", bench_quantile(ms, DELAY_JOBS, 0.5), "ms", "",
                 0, BENCH_SHOWN, 0);
    bench_figure("  p99", bench_quantile(ms, DELAY_JOBS, 0.99), "ms", "", 0, BENCH_AT_MOST, 20);
    jobq_pg_close(pg);
    PQfinish(db);
}

/* -- beats: a heartbeat with many jobs running -- */

static double beat_ms(jobq_pg *pg, PGconn *db, int64_t worker)
{
    jobq_pg_error error;
    double ms[60], started;
    int i;

    for (i = 0; i < 60; i++) {
        started = bench_now();
        if (verb_heartbeat(pg, db, worker, 600000000, &error)) bench_fail("%s", error.message);
        ms[i] = 1000 * (bench_now() - started);
    }
    return bench_quantile(ms, 60, 0.5);
}

void row_beats(void)
{
    static const char *const queues[] = {BENCH_QUEUE};
    jobq_lane lane = {1, 0, 0, false, INT64_MIN, 0, 0, 0};
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    verb_claim_desc desc;
    verb_batch got;
    jobq_pg_error error;
    double before;

    bench_load(db, "jobq.job", 10000);
    memset(&desc, 0, sizeof desc);
    desc.worker = 77;
    desc.lanes = &lane;
    desc.lane_count = 1;
    desc.limit = 100;
    if (verb_register(pg, NULL, 77, "bench", 600000000, queues, 1, NULL, &error)) {
        bench_fail("%s", error.message);
    }
    before = beat_ms(pg, db, 77);
    while (desc.number < 100) {
        desc.number++;
        if (verb_claim(pg, db, &desc, &got, &error)) bench_fail("%s", error.message);
        if (got.count != 100) bench_fail("beats: a claim returned %d jobs", (int)got.count);
        bench_lane_move(&lane, &got.jobs[99]);
        verb_batch_clear(&got);
    }
    bench_figure("a heartbeat with 10,000 jobs running", beat_ms(pg, db, 77), "ms",
                 "with none", before, BENCH_RATIO_AT_MOST, 1.5);
    jobq_pg_close(pg);
    PQfinish(db);
}
