/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * outbox.c -- rows of the outbox: outbox-read, outbox-held, outbox-enqueue, outbox-end, outbox-one,
 * outbox-worker, outbox-through; outbox-latency is in latency.c.
 */
#include "bench.h"

#define BOX_PARTITIONS 64

typedef struct box {
    jobq_pg *pg;
    int partitions, batch;
    bool relaxed;                /* acknowledgements do not wait for the disk, as in a worker */
    bool bytes;                  /* payloads are bytes, not JSON */
    int put;                     /* messages in a producer's transaction */
    long first;                  /* added to the numbers in payloads */
    long total;
    long done, statements;       /* atomic */
    int ended;                   /* atomic */
} box;

static void box_open(box *b, PGconn *db, int partitions, int batch)
{
    jobq_pg_error error;

    memset(b, 0, sizeof *b);
    b->pg = bench_schema(db, false);
    b->partitions = partitions;
    b->batch = batch;
    if (jobq_pg_outbox_register(b->pg, NULL, BENCH_QUEUE, partitions, NULL, &error)) {
        bench_fail("%s", error.message);
    }
}

/* Writes count messages, spread evenly over the partitions. */
static void box_load(box *b, PGconn *db, long count)
{
    char payload[BENCH_PAYLOAD + 1];

    bench_payload(payload, 0);
    b->total = count;
    bench_sql(db, "INSERT INTO jobq.message (partition_id, payload) SELECT 32768 + i %% %d, "
                  "'%s'::jsonb FROM generate_series(1, %ld) i", b->partitions, payload, count);
}

static verb_read_desc box_reader(const box *b, int partition, int64_t claim)
{
    verb_read_desc d;

    memset(&d, 0, sizeof d);
    d.worker = 1;
    d.claim = claim;
    d.lease_us = 60000000;
    d.partition = 32768 + partition;
    d.most = b->batch;
    return d;
}

/* Reads and acknowledges everything in a partition; each acknowledgement reads the next batch.
 * Returns the number of messages. */
static long box_drain(box *b, PGconn *db, int partition, int64_t claim)
{
    verb_read_desc d = box_reader(b, partition, claim);
    verb_reading r, next;
    verb_ack_desc ack;
    jobq_cursor after;
    jobq_pg_error error;
    long done = 0, statements = 1;

    if (verb_read(b->pg, db, &d, &r, &error)) bench_fail("%s", error.message);
    memset(&ack, 0, sizeof ack);
    memset(&after, 0, sizeof after);
    ack.worker = d.worker;
    ack.claim = claim;
    ack.lease_us = d.lease_us;
    ack.partition = d.partition;
    ack.after = &after;
    ack.most = b->batch;
    ack.relaxed = b->relaxed;
    while (r.answer == 'h') {
        if (r.messages[0].payload.len < 50 || r.messages[r.count - 1].seq !=
            r.cursor.acked + r.count) bench_fail("outbox: a message is wrong");
        ack.before = r.cursor.acked;
        after.acked = r.cursor.acked + r.count;
        if (verb_ack(b->pg, db, &ack, &next, &error)) bench_fail("%s", error.message);
        done += r.count;
        statements++;
        verb_reading_clear(&r);
        r = next;
    }
    verb_reading_clear(&r);
    __atomic_fetch_add(&b->done, done, __ATOMIC_RELAXED);
    __atomic_fetch_add(&b->statements, statements, __ATOMIC_RELAXED);
    return done;
}

static long read_step(PGconn *db, void *state, long step)
{
    long done = box_drain((box *)state, db, (int)step, step + 1);

    return done > 0 ? done : 1;
}

/* Numbers, reads and acknowledges count messages on 2 connections. Returns messages a second. */
static double box_read(int batch, long count, bool held)
{
    PGconn *db = bench_db(), *holder = bench_db();
    double rate;
    box b;

    box_open(&b, db, BOX_PARTITIONS, batch);
    if (held) bench_sql(holder, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM "
                                "jobq.meta");
    box_load(&b, db, count);
    bench_wal_reset(db);
    rate = bench_gang_run(2, read_step, &b, BOX_PARTITIONS, 600);
    if (b.done != count || bench_number(db, "SELECT sum(acked) FROM jobq.partition") !=
                               (double)count) bench_fail("outbox: not all were read");
    jobq_pg_close(b.pg);
    PQfinish(holder);
    PQfinish(db);
    return rate;
}

void row_outbox_read(void)
{
    long count = bench_long ? 4000000 : 640000;
    double floor = bench_floor_delete(2, count), large, small;

    large = box_read(1000, count, false);
    small = box_read(100, count, false);
    floor = (floor + bench_floor_delete(2, count)) / 2;
    bench_figure("outbox: read and ack, 1000 a batch", large, "msg/s",
                 "DELETE ... RETURNING, 2 connections", floor, BENCH_RATIO_AT_LEAST, 1.4);
    bench_figure("outbox: read and ack, 100 a batch", small, "msg/s",
                 "DELETE ... RETURNING, 2 connections", floor, BENCH_RATIO_AT_LEAST, 0.5);
}

void row_outbox_held(void)
{
    long count = bench_long ? 4000000 : 640000;
    double before = box_read(1000, count, false), held = box_read(1000, count, true), after;

    after = box_read(1000, count, false);
    bench_figure("outbox: read and ack while a snapshot is held", held, "msg/s", "without one",
                 (before + after) / 2, BENCH_RATIO_AT_LEAST, 0.9);
}

/* -- enqueue -- */

static void box_put(box *b, PGconn *db, int count, long step)
{
    jobq_pg_message m[BENCH_BATCH];
    char payloads[BENCH_BATCH][BENCH_PAYLOAD + 1];
    static const jobq_pg_message none;
    jobq_pg_error error;
    int i;

    for (i = 0; i < count; i++) {
        m[i] = none;
        bench_payload(payloads[i], b->first + step * count + i);
        m[i].queue = BENCH_QUEUE;
        m[i].partition = (int)((step + i) % b->partitions);
        m[i].payload.ptr = payloads[i];
        m[i].payload.len = BENCH_PAYLOAD;
        m[i].payload_bytes = b->bytes;
    }
    if (jobq_pg_outbox_enqueue_many(b->pg, db, m, (size_t)count, NULL, &error)) {
        bench_fail("%s", error.message);
    }
}

static long put_step(PGconn *db, void *state, long step)
{
    box_put((box *)state, db, BENCH_BATCH, step);
    return BENCH_BATCH;
}

void row_outbox_enqueue(void)
{
    long steps = bench_long ? 2000 : 300;
    PGconn *db = bench_db();
    double rate, floor;
    box b;

    box_open(&b, db, BOX_PARTITIONS, BENCH_BATCH);
    bench_floor_table(db);
    bench_wal_reset(db);
    floor = bench_gang_run(2, bench_floor_array, NULL, steps, 600);
    bench_wal_reset(db);
    rate = bench_gang_run(2, put_step, &b, steps, 600);
    bench_sql(db, "TRUNCATE floor.job");
    bench_wal_reset(db);
    floor = (floor + bench_gang_run(2, bench_floor_array, NULL, steps, 600)) / 2;
    bench_figure("outbox: enqueue, arrays of 1000, 2 connections", rate, "msg/s",
                 "INSERT of arrays of 1000", floor, BENCH_RATIO_AT_LEAST, 0.8);
    bench_sql(db, "DROP SCHEMA floor CASCADE");
    jobq_pg_close(b.pg);
    PQfinish(db);
}

/* -- from end to end -- */

static long produce_step(PGconn *db, void *state, long step)
{
    box *b = (box *)state;
    jobq_pg_message m;
    char payload[BENCH_PAYLOAD + 1];
    jobq_pg_error error;

    if (b->put > 1) {
        box_put(b, db, b->put, step);
        return b->put;
    }
    memset(&m, 0, sizeof m);
    bench_payload(payload, b->first + step);
    m.queue = BENCH_QUEUE;
    m.partition = (int)(step % b->partitions);
    m.payload.ptr = payload;
    m.payload.len = BENCH_PAYLOAD;
    m.payload_bytes = b->bytes;
    if (jobq_pg_outbox_enqueue(b->pg, db, &m, NULL, &error)) bench_fail("%s", error.message);
    return 1;
}

/* Two consumers. Each looks for messages, and works them off in every second partition. */
static long consume_step(PGconn *db, void *state, long step)
{
    static const char text[] =
        "SELECT partition_id & 32767 FROM jobq._outbox_look('{1}', 0, 1000, false)";
    box *b = (box *)state;
    int64_t claim = 0;

    while (__atomic_load_n(&b->done, __ATOMIC_RELAXED) < b->total) {
        PGresult *res = PQexec(db, text);
        long done = 0;
        int row;
        if (PQresultStatus(res) != PGRES_TUPLES_OK) bench_fail("%s", PQerrorMessage(db));
        __atomic_fetch_add(&b->statements, 1, __ATOMIC_RELAXED);
        for (row = 0; row < PQntuples(res); row++) {
            int p = atoi(PQgetvalue(res, row, 0));
            if ((p & 1) == (step & 1)) done += box_drain(b, db, p, ++claim);
        }
        if (done == 0) bench_sleep(0.001);
        PQclear(res);
    }
    __atomic_store_n(&b->ended, 1, __ATOMIC_RELAXED);
    return 0;
}

/* Vacuums, as a worker does. */
static long vacuum_step(PGconn *db, void *state, long step)
{
    (void)step;
    bench_sql(db, "VACUUM (SKIP_LOCKED, TRUNCATE off, INDEX_CLEANUP on) jobq.message, "
                  "jobq.partition");
    bench_sleep(1);
    return !__atomic_load_n(&((box *)state)->ended, __ATOMIC_RELAXED);
}

typedef struct box_run {
    double rate, statements, wal; /* messages a second; per message */
} box_run;

static void box_tell_cost(const box_run *run)
{
    bench_figure("  statements and round trips a message", run->statements, "", "", 0, BENCH_SHOWN,
                 0);
    bench_figure("  WAL a message", run->wal, "bytes", "", 0, BENCH_SHOWN, 0);
}

/* put: messages in a transaction. statements leaves out the producers' one for each transaction. */
static box_run box_end(long count, int put, bool bytes)
{
    PGconn *db = bench_db();
    bench_gang *producers, *consumers, *vacuum;
    double started;
    box_run run;
    box b;

    box_open(&b, db, BOX_PARTITIONS, 1000);
    b.relaxed = true;
    b.bytes = bytes;
    b.put = put;
    b.total = count;
    bench_wal_reset(db);
    run.wal = bench_number(db, "SELECT pg_current_wal_insert_lsn() - '0/0'");
    started = bench_now();
    producers = bench_gang_start(16, produce_step, &b, count / put, 600);
    consumers = bench_gang_start(2, consume_step, &b, 2, 600);
    vacuum = bench_gang_start(1, vacuum_step, &b, 1L << 40, 600);
    bench_gang_end(producers);
    bench_gang_end(consumers);
    run.rate = (double)count / (bench_now() - started);
    bench_gang_end(vacuum);
    run.wal = (bench_number(db, "SELECT pg_current_wal_insert_lsn() - '0/0'") - run.wal) /
              (double)count;
    run.statements = (double)b.statements / (double)count;
    if (bench_number(db, "SELECT sum(acked) FROM jobq.partition") != (double)count) {
        bench_fail("outbox: not all were done");
    }
    jobq_pg_close(b.pg);
    PQfinish(db);
    return run;
}

/* Payloads are bytes, as in the library that this one replaces. JSON must also be parsed and
 * checked. */
void row_outbox_end(void)
{
    long count = bench_long ? 3200000 : 480000;
    double floor = bench_floor_delete(2, count);
    box_run bytes = box_end(count, 100, true), json = box_end(count, 100, false);

    floor = (floor + bench_floor_delete(2, count)) / 2;
    bench_figure("outbox: end to end, 16 producers, 64 partitions", bytes.rate, "msg/s",
                 "DELETE ... RETURNING, 2 connections", floor, BENCH_RATIO_AT_LEAST, 0.27);
    box_tell_cost(&bytes);
    bench_figure("outbox: the same with payloads of JSON", json.rate, "msg/s",
                 "DELETE ... RETURNING, 2 connections", floor, BENCH_SHOWN, 0);
    box_tell_cost(&json);
}

/* One message a transaction, the usual case for an outbox. */
void row_outbox_one(void)
{
    box_run run = box_end(bench_long ? 400000 : 48000, 1, true);

    bench_figure("outbox: end to end, one a transaction, 16 producers", run.rate, "msg/s", "", 0,
                 BENCH_SHOWN, 0);
    box_tell_cost(&run);
}

/* -- through a worker's receivers -- */

static jobq_result box_nod(jobq_delivery *d)
{
    if (d->messages[d->count - 1].payload.len < 50) return JOBQ_RESULT_RETRY;
    return JOBQ_RESULT_SUCCESS;
}

static jobq_pg_worker *box_worker(jobq_pg *pg, jobq_batch_handler handler, bool transactional)
{
    jobq_pg_worker_desc desc;
    jobq_pg_receiver r;
    jobq_pg_worker *worker;
    jobq_pg_error error;

    memset(&desc, 0, sizeof desc);
    memset(&r, 0, sizeof r);
    r.queue = BENCH_QUEUE;
    r.all = handler;
    r.transactional = transactional;
    desc.receivers = &r;
    desc.receiver_count = 1;
    if (jobq_pg_worker_start(pg, &desc, &worker, &error)) bench_fail("%s", error.message);
    return worker;
}

/* One worker with defaults numbers and delivers what is waiting. */
static box_run box_work(bool transactional, long count, bool held)
{
    PGconn *db = bench_db(), *holder = bench_db();
    double started, took;
    jobq_relay_stats stats;
    jobq_pg_worker *worker;
    box_run run;
    box b;

    box_open(&b, db, BOX_PARTITIONS, 100);
    if (held) bench_sql(holder, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM "
                                "jobq.meta");
    box_load(&b, db, count);
    bench_wal_reset(db);
    run.wal = bench_number(db, "SELECT pg_current_wal_insert_lsn() - '0/0'");
    started = bench_now();
    worker = box_worker(b.pg, box_nod, transactional);
    while (bench_number(db, "SELECT sum(acked) FROM jobq.partition") != (double)count) {
        if (bench_now() - started > 600) bench_fail("outbox-worker: not all were delivered");
        bench_sleep(0.005);
    }
    took = bench_now() - started;
    run.wal = (bench_number(db, "SELECT pg_current_wal_insert_lsn() - '0/0'") - run.wal) /
              (double)count;
    stats = jobq_pg_worker_stats(worker, JOBQ_PG_ALL).messages;
    jobq_pg_worker_stop(worker);
    jobq_pg_worker_wait(worker, NULL);
    jobq_pg_worker_free(worker);
    /* per batch one statement, which acknowledges it and reads the next one */
    run.statements = (double)(stats.looks + stats.reads + count / 100) / (double)count;
    run.rate = (double)count / took;
    jobq_pg_close(b.pg);
    PQfinish(holder);
    PQfinish(db);
    return run;
}

static void box_tell(const char *label, const box_run *run, double floor)
{
    bench_figure(label, run->rate, "msg/s", "DELETE ... RETURNING, 2 connections", floor,
                 BENCH_SHOWN, 0);
    box_tell_cost(run);
}

void row_outbox_worker(void)
{
    long count = bench_long ? 1000000 : 60000;
    double floor = bench_floor_delete(2, count);
    box_run leased = box_work(false, count, false), own = box_work(true, count, false), held;

    held = box_work(false, count, true);
    floor = (floor + bench_floor_delete(2, count)) / 2;
    box_tell("outbox: a worker, leased, 100 a batch", &leased, floor);
    box_tell("outbox: a worker, transactional, 100 a batch", &own, floor);
    bench_figure("outbox: a worker while a snapshot is held", held.rate, "msg/s", "without one",
                 (leased.rate + box_work(false, count, false).rate) / 2, BENCH_RATIO_AT_LEAST,
                 0.9);
}

/* -- from end to end through a worker, order verified -- */

static jobq_result box_check(jobq_delivery *d)
{
    int32_t i;

    for (i = 0; i < d->count; i++) bench_through_see(d->partition, d->messages[i].payload.ptr);
    return JOBQ_RESULT_SUCCESS;
}

/* BENCH_PARTITIONS, up to 64: with 1, the whole log is in one order, as with PgQ. */
static void through(const char *label, int producers, int put, long count)
{
    PGconn *db = bench_db();
    jobq_pg_worker *worker;
    box all, each[BENCH_PRODUCERS];
    int partitions = bench_setting("BENCH_PARTITIONS", BOX_PARTITIONS), i;
    double rate;

    if (partitions > BOX_PARTITIONS) bench_fail("BENCH_PARTITIONS is above %d", BOX_PARTITIONS);
    box_open(&all, db, partitions, BENCH_BATCH);
    all.bytes = true;
    all.put = put;
    for (i = 0; i < producers; i++) {
        each[i] = all;
        each[i].first = i * BENCH_OWN;
    }
    bench_wal_reset(db);
    worker = box_worker(all.pg, box_check, false);
    rate = bench_through(producers, produce_step, each, sizeof *each, put, count);
    jobq_pg_worker_stop(worker);
    jobq_pg_worker_wait(worker, NULL);
    jobq_pg_worker_free(worker);
    if (bench_number(db, "SELECT sum(acked) FROM jobq.partition") != (double)count) {
        bench_fail("outbox-through: not all are acknowledged");
    }
    bench_figure(label, rate, "msg/s", "", 0, BENCH_SHOWN, 0);
    jobq_pg_close(all.pg);
    PQfinish(db);
}

void row_outbox_through(void)
{
    long count = bench_setting("PEERS_JOBS", bench_long ? 3200000 : 480000);
    char label[64];

    through("outbox: through a worker, one a transaction, 16 producers", 16, 1, count / 10);
    snprintf(label, sizeof label, "outbox: through a worker, 100 a transaction, %d producers",
             bench_many());
    through(label, bench_many(), 100, count);
}
