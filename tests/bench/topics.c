/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * topics.c -- rows of topics: topics compares what readers cost with a queue that has none but its
 * own; topics-through has three readers, as pgq-topics has.
 */
#include "bench.h"

#define READERS 3
#define PARTITIONS 64
#define BLOCK 50   /* messages that are measured together */
#define BLOCKS 1000
#define WAL "SELECT pg_current_wal_insert_lsn() - '0/0'"

/* Where messages are sent: to queue r1 itself, or to a topic that it, or all three read. */
enum { ALONE, ONE, THREE, PLACES };
static const char *const places[PLACES] = {"r1", "one", "three"};
static const int readers_of[PLACES] = {1, 1, READERS};

typedef struct sender {
    jobq_pg *pg;
    const char *queue;
    int put;    /* messages in a transaction */
    long first; /* added to the numbers in payloads */
} sender;

static long seen[READERS]; /* atomic */
static bool in_order;      /* the first reader looks at the order, too */

static jobq_pg *topics_open(PGconn *db)
{
    jobq_pg *pg = bench_schema(db, true);
    int i;

    bench_sql(db, "SELECT jobq.outbox_register('one', 0), jobq.outbox_register('three', 0)");
    for (i = 1; i <= READERS; i++) {
        bench_sql(db, "SELECT jobq.outbox_register('r%d', %d)", i, PARTITIONS);
        bench_sql(db, "SELECT jobq.subscribe('three-%d', 'three', 'r%d')", i, i);
    }
    bench_sql(db, "SELECT jobq.subscribe('one', 'one', 'r1')");
    bench_wal_reset(db);
    return pg;
}

static long send_step(PGconn *db, void *state, long step)
{
    static const jobq_pg_message none;
    const sender *s = (const sender *)state;
    jobq_pg_message m[BENCH_BATCH];
    char payloads[BENCH_BATCH][BENCH_PAYLOAD + 1], keys[BENCH_BATCH][16];
    jobq_pg_error error;
    jobq_error code;
    int i;

    for (i = 0; i < s->put; i++) {
        m[i] = none;
        bench_payload(payloads[i], s->first + step * s->put + i);
        snprintf(keys[i], sizeof keys[i], "%ld", (step + i) % 1000);
        m[i].queue = s->queue;
        m[i].order_key = keys[i];
        m[i].payload.ptr = payloads[i];
        m[i].payload.len = BENCH_PAYLOAD;
    }
    code = s->put == 1 ? jobq_pg_outbox_enqueue(s->pg, db, m, NULL, &error)
                       : jobq_pg_outbox_enqueue_many(s->pg, db, m, (size_t)s->put, NULL, &error);
    if (code != JOBQ_OK) bench_fail("%s", error.message);
    return s->put;
}

/* -- readers, each a worker -- */

static jobq_result note(jobq_delivery *d)
{
    int reader = *(const int *)d->user, i;

    for (i = 0; i < d->count && reader == 0 && in_order; i++)
        bench_through_see(d->partition, d->messages[i].payload.ptr);
    __atomic_fetch_add(&seen[reader], d->count, __ATOMIC_RELEASE);
    return JOBQ_RESULT_SUCCESS;
}

static void readers_start(jobq_pg *pg, jobq_pg_worker *workers[READERS])
{
    static const char *const queues[READERS] = {"r1", "r2", "r3"};
    static int numbers[READERS] = {0, 1, 2};
    jobq_pg_receiver r;
    jobq_pg_worker_desc desc;
    jobq_pg_error error;
    int i;

    memset(seen, 0, sizeof seen);
    for (i = 0; i < READERS; i++) {
        memset(&r, 0, sizeof r);
        memset(&desc, 0, sizeof desc);
        r.queue = queues[i];
        r.all = note;
        r.user = &numbers[i];
        desc.receivers = &r;
        desc.receiver_count = 1;
        if (jobq_pg_worker_start(pg, &desc, &workers[i], &error)) bench_fail("%s", error.message);
    }
}

static void readers_stop(jobq_pg_worker *workers[READERS])
{
    int i;

    for (i = 0; i < READERS; i++) jobq_pg_worker_stop(workers[i]);
    for (i = 0; i < READERS; i++) {
        jobq_pg_worker_wait(workers[i], NULL);
        jobq_pg_worker_free(workers[i]);
    }
}

static void await_reader(int reader, long count)
{
    double started = bench_now();

    while (__atomic_load_n(&seen[reader], __ATOMIC_ACQUIRE) < count) {
        if (bench_now() - started > 600) bench_fail("topics: reader %d has not all", reader);
        bench_sleep(0.00002);
    }
}

/* -- what a reader costs -- */

/* Medians, of blocks in turn: a checkpoint, or a busy machine, disturbs some. */
static void measure(PGconn *db, jobq_pg *pg, double wal[PLACES], double cpu[PLACES])
{
    static double wals[PLACES][BLOCKS], cpus[PLACES][BLOCKS];
    pid_t server = (pid_t)PQbackendPID(db);
    int blocks = bench_long ? BLOCKS : 60, i, p, k;

    for (i = -3; i < blocks; i++) { /* the first ones warm up */
        for (p = 0; p < PLACES; p++) {
            sender s = {pg, places[p], 1, 0};
            double before = bench_number(db, WAL), began = bench_cpu(server);

            for (k = 0; k < BLOCK; k++) send_step(db, &s, k);
            if (i < 0) continue;
            cpus[p][i] = 1e6 * (bench_cpu(server) - began) / BLOCK;
            wals[p][i] = (bench_number(db, WAL) - before) / BLOCK;
        }
    }
    for (p = 0; p < PLACES; p++) {
        wal[p] = bench_quantile(wals[p], (size_t)blocks, 0.5);
        cpu[p] = bench_quantile(cpus[p], (size_t)blocks, 0.5);
    }
    bench_sql(db, "DELETE FROM jobq.message");
}

/* From just before the enqueue until the handler of the last reader has begun. */
static void measure_latency(PGconn *db, jobq_pg *pg, double ms[PLACES])
{
    static double each[PLACES][1000];
    jobq_pg_worker *workers[READERS];
    int samples = bench_long ? 1000 : 100, i, p, k;
    long upto[READERS] = {0};

    readers_start(pg, workers);
    bench_sleep(0.5);
    for (i = -5; i < samples; i++) {
        for (p = 0; p < PLACES; p++) {
            sender s = {pg, places[p], 1, 0};
            double began;

            bench_sleep(0.001 * bench_chance(20, 40));
            began = bench_now();
            send_step(db, &s, i + 5);
            for (k = 0; k < readers_of[p]; k++) await_reader(k, ++upto[k]);
            if (i >= 0) each[p][i] = 1000 * (bench_now() - began);
        }
    }
    for (p = 0; p < PLACES; p++) ms[p] = bench_quantile(each[p], (size_t)samples, 0.5);
    readers_stop(workers);
}

void row_topics(void)
{
    static const char alone[] = "a message of a queue without";
    double wal[PLACES], cpu[PLACES], ms[PLACES];
    PGconn *db = bench_db();
    jobq_pg *pg = topics_open(db);

    measure(db, pg, wal, cpu);
    measure_latency(db, pg, ms);
    bench_figure("topics: WAL of a second and a third reader, each", (wal[THREE] - wal[ONE]) / 2,
                 "bytes", alone, wal[ALONE], BENCH_RATIO_AT_MOST, 1.1);
    bench_figure("topics: processor time of a second and a third, each",
                 (cpu[THREE] - cpu[ONE]) / 2, "us", alone, cpu[ALONE], BENCH_RATIO_AT_MOST, 1.1);
    bench_figure("topics: WAL of the first", wal[ONE], "bytes", alone, wal[ALONE], BENCH_SHOWN, 0);
    bench_figure("topics: processor time of the first", cpu[ONE], "us", alone, cpu[ALONE],
                 BENCH_SHOWN, 0);
    bench_figure("topics: idle enqueue to handler, p50", ms[ONE], "ms", alone, ms[ALONE],
                 BENCH_SHOWN, 0);
    bench_figure("topics: idle enqueue to the last of three, p50", ms[THREE], "ms", alone,
                 ms[ALONE], BENCH_SHOWN, 0);
    jobq_pg_close(pg);
    PQfinish(db);
}

/* -- three readers, beside PgQ -- */

static void through(const char *label, int producers, int put, long count)
{
    PGconn *db = bench_db();
    jobq_pg *pg = topics_open(db);
    jobq_pg_worker *workers[READERS];
    sender each[BENCH_PRODUCERS];
    double started;
    int i;

    in_order = true;
    for (i = 0; i < producers; i++) {
        each[i].pg = pg;
        each[i].queue = places[THREE];
        each[i].put = put;
        each[i].first = i * BENCH_OWN;
    }
    readers_start(pg, workers);
    started = bench_now();
    bench_through(producers, send_step, each, sizeof *each, put, count);
    for (i = 0; i < READERS; i++) await_reader(i, count);
    bench_figure(label, (double)count / (bench_now() - started), "msg/s", "", 0, BENCH_SHOWN, 0);
    readers_stop(workers);
    jobq_pg_close(pg);
    PQfinish(db);
}

void row_topics_through(void)
{
    long count = bench_setting("PEERS_JOBS", bench_long ? 3200000 : 240000);

    through("topics: three readers, one a transaction, 16 producers", 16, 1, count / 10);
    through("topics: three readers, 100 a transaction, 2 producers", 2, 100, count);
}
