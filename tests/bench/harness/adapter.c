/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * adapter.c -- jobq in a benchmark of others: the long-horizon harness for Postgres job queues.
 *
 * Build   cc -O2 tests/bench/harness/adapter.c -I. -lpq -o adapter
 * Run     by that harness: tests/bench/harness/README.md has the commands
 *
 * It produces jobs and works on them until SIGTERM. Standard output is telemetry, a JSON object a
 * line; standard error is for logs. What the variables mean is the harness' contract. Only the
 * public API is used.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE   "long_horizon"
#define BATCH   1000 /* jobs of one call at most */
#define WINDOW  30   /* seconds that a percentile looks back */
#define BUCKETS 2048 /* 64 for each doubling of the microseconds: 1.6 % wide */

static volatile sig_atomic_t stopping;
static int64_t enqueued, completed;
static int work_us, payload_bytes, instance;

static int setting(const char *name, int other)
{
    const char *text = getenv(name);

    return text != NULL && *text != '\0' ? atoi(text) : other;
}

static double clock_s(clockid_t which)
{
    struct timespec now;

    clock_gettime(which, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void nap(double seconds)
{
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

    if (seconds > 0) nanosleep(&pause, NULL);
}

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

/* ---- times: a histogram for each of the last seconds ----------------------------------------- */

typedef struct times {
    const char *name;
    int64_t second[WINDOW]; /* which second a histogram is of */
    uint32_t counts[WINDOW][BUCKETS];
} times;

static times claim = {.name = "claim"}, whole = {.name = "end_to_end"};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int bucket(int64_t us)
{
    int power = 0;

    for (; us >> power >= 128; power++) {}
    return us < 64 ? (int)(us < 0 ? 0 : us) : power * 64 + (int)(us >> power);
}

static double bucket_ms(int at)
{
    int power = at < 128 ? 0 : at / 64 - 1;

    return (double)((int64_t)(at - power * 64) << power) / 1000;
}

static void note(times *t, int64_t since_us)
{
    double now = clock_s(CLOCK_REALTIME);
    int64_t second = (int64_t)now;
    int slot = (int)(second % WINDOW);

    pthread_mutex_lock(&lock);
    if (t->second[slot] != second) memset(t->counts[slot], 0, sizeof t->counts[slot]);
    t->second[slot] = second;
    t->counts[slot][bucket((int64_t)(now * 1e6) - since_us)]++;
    pthread_mutex_unlock(&lock);
}

static double percentile(const times *t, double share)
{
    int64_t now = (int64_t)clock_s(CLOCK_REALTIME), all = 0, seen = 0;
    uint32_t sums[BUCKETS] = {0};
    int slot, i;

    pthread_mutex_lock(&lock);
    for (slot = 0; slot < WINDOW; slot++) {
        if (t->second[slot] <= now - WINDOW) continue;
        for (i = 0; i < BUCKETS; i++) sums[i] += t->counts[slot][i];
    }
    pthread_mutex_unlock(&lock);
    for (i = 0; i < BUCKETS; i++) all += sums[i];
    for (i = 0; i < BUCKETS && seen < (int64_t)((double)all * share) + 1; i++) seen += sums[i];
    return all == 0 ? 0 : bucket_ms(i - 1);
}

/* ---- telemetry ------------------------------------------------------------------------------- */

static void timestamp(char out[40])
{
    double now = clock_s(CLOCK_REALTIME);
    time_t second = (time_t)now;
    struct tm parts;
    size_t size;

    gmtime_r(&second, &parts);
    size = strftime(out, 40, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(out + size, 40 - size, ".%03dZ", (int)((now - (double)second) * 1000));
}

static void say(const char *metric, double value, int window)
{
    char at[40];

    timestamp(at);
    printf("{\"t\":\"%s\",\"system\":\"jobq\",\"kind\":\"adapter\",\"subject_kind\":\"adapter\","
           "\"subject\":\"\",\"metric\":\"%s\",\"value\":%.3f,\"window_s\":%d,"
           "\"instance_id\":%d}\n", at, metric, value, window, instance);
}

static void say_times(const times *t)
{
    static const int shares[] = {50, 95, 99};
    char name[40];
    int i;

    for (i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s_p%d_ms", t->name, shares[i]);
        say(name, percentile(t, shares[i] / 100.0), WINDOW);
    }
}

static int depth(PGconn *conn)
{
    PGresult *res = PQexec(conn, "SELECT coalesce(sum(ready), 0) FROM jobq.queues");
    int jobs = PQresultStatus(res) == PGRES_TUPLES_OK ? atoi(PQgetvalue(res, 0, 0)) : 0;

    PQclear(res);
    if (PQstatus(conn) != CONNECTION_OK) PQreset(conn); /* the harness also kills backends */
    return jobs;
}

static void sample(PGconn *conn, int every)
{
    int64_t before[2] = {0, 0};

    for (;;) {
        double now = clock_s(CLOCK_REALTIME), next = (double)((int64_t)now / every * every + every);
        while (!stopping && clock_s(CLOCK_REALTIME) < next) nap(0.05);
        if (stopping) return;
        say_times(&claim);
        say_times(&whole);
        say("enqueue_rate", (double)(enqueued - before[0]) / every, every);
        say("completion_rate", (double)(completed - before[1]) / every, every);
        before[0] = enqueued;
        before[1] = completed;
        if (instance == 0) say("queue_depth", depth(conn), 0);
        fflush(stdout);
    }
}

/* ---- the producer and the handler ------------------------------------------------------------ */

static jobq_outcome handle(jobq_call *call)
{
    note(&claim, call->job.enqueued_at_us);
    nap(work_us / 1e6);
    note(&whole, call->job.enqueued_at_us);
    __atomic_add_fetch(&completed, 1, __ATOMIC_RELAXED);
    return JOBQ_OUTCOME_SUCCESS;
}

static void produce_some(jobq_pg *pg, int count)
{
    static jobq_pg_job jobs[BATCH];
    static char payload[1 << 16];
    jobq_pg_error error;
    int i;

    snprintf(payload, sizeof payload, "\"%0*d\"", payload_bytes - 2, 0);
    for (i = 0; i < count; i++) {
        jobs[i].queue = QUEUE;
        jobs[i].kind = "work";
        jobs[i].payload = jobq_str_from(payload);
    }
    if (jobq_pg_enqueue_many(pg, NULL, jobs, (size_t)count, NULL, &error) == JOBQ_OK)
        enqueued += count;
    else fprintf(stderr, "%s\n", error.message); /* the server is away: these were not offered */
}

/* One call each PRODUCER_BATCH_MS: what the harness or the elapsed time asks for, or what is
 * missing to the depth that is wanted. */
static void *produce(void *of)
{
    jobq_pg *pg = (jobq_pg *)of;
    const char *pacing = getenv("PRODUCER_PACING"), *mode = getenv("PRODUCER_MODE");
    bool told = pacing != NULL && strcmp(pacing, "harness") == 0;
    bool deep = mode != NULL && strcmp(mode, "depth-target") == 0;
    int rate = setting("PRODUCER_RATE", 100), most = setting("PRODUCER_BATCH_MAX", 128);
    int target = setting("TARGET_DEPTH", 1000);
    double last = clock_s(CLOCK_MONOTONIC), credit = 0, pause = setting("PRODUCER_BATCH_MS", 25);
    char line[100];

    if (most > BATCH) most = BATCH;
    while (!stopping) {
        double now = clock_s(CLOCK_MONOTONIC);
        if (told && !deep) {
            if (fgets(line, sizeof line, stdin) == NULL) break;
            credit += atoi(line + strcspn(line, "0123456789"));
        } else if (deep) credit = (double)(target - (enqueued - completed));
        else credit += rate * (now - last);
        for (last = now; credit >= 1 && !stopping; credit -= credit > most ? most : (int)credit)
            produce_some(pg, credit > most ? most : (int)credit);
        if (!told || deep) nap(pause / 1000);
    }
    return NULL;
}

static void on_signal(int which)
{
    (void)which;
    stopping = 1;
}

static jobq_pg *opened(void)
{
    jobq_pg_desc desc = {0};
    jobq_pg_error error;
    jobq_pg *pg;

    desc.conninfo = getenv("DATABASE_URL");
    must(desc.conninfo != NULL, "DATABASE_URL is not set");
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    return pg;
}

int main(void)
{
    static const jobq_pg_handler handler = {.queue = QUEUE, .kind = "work", .run = {handle}};
    jobq_pg *pg = opened();
    jobq_pg_worker_desc desc = {0};
    jobq_pg_worker *worker;
    jobq_pg_error error;
    pthread_t producer;
    char at[40];

    signal(SIGTERM, on_signal);
    instance = setting("BENCH_INSTANCE_ID", 0);
    work_us = setting("JOB_WORK_MS", 1) * 1000;
    payload_bytes = setting("JOB_PAYLOAD_BYTES", 256);
    timestamp(at);
    printf("{\"kind\":\"descriptor\",\"system\":\"jobq\",\"event_tables\":[\"jobq.job\","
           "\"jobq.claim\",\"jobq.failed\",\"jobq.worker\"],\"extensions\":[],\"version\":\"%s\","
           "\"schema_version\":\"%s\",\"db_name\":\"jobq_bench\",\"started_at\":\"%s\","
           "\"instance_id\":%d}\n", JOBQ_VERSION, JOBQ_VERSION, at, instance);
    fflush(stdout);
    desc.handlers = &handler;
    desc.handler_count = 1;
    desc.loop.threads = setting("WORKER_COUNT", 8);
    desc.loop.grace_us = JOBQ_SECONDS(3); /* the harness waits 5 s */
    must(jobq_pg_worker_start(pg, &desc, &worker, &error) == JOBQ_OK, error.message);
    if (instance == 0 || setting("PRODUCER_ONLY_INSTANCE_ZERO", 0) == 0)
        pthread_create(&producer, NULL, produce, pg); /* it may read; so nobody waits for it */
    sample(PQconnectdb(getenv("DATABASE_URL")), setting("SAMPLE_EVERY_S", 5));
    jobq_pg_worker_stop(worker);
    jobq_pg_worker_wait(worker, NULL);
    exit(0);
}
