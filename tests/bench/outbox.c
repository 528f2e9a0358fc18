/*
 * outbox.c -- rows of the outbox: outbox-read, outbox-held, outbox-enqueue, outbox-end,
 * outbox-worker, outbox-number; outbox-latency is in latency.c.
 */
#include "bench.h"

#define BOX_PARTITIONS 64

typedef struct box {
    jobq_pg *pg;
    int partitions, batch;
    bool relaxed;                /* acknowledgements, as a worker's are */
    bool bytes;                  /* payloads, instead of JSON */
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

/* count messages in incoming, evenly. */
static void box_load(box *b, PGconn *db, long count)
{
    char payload[BENCH_PAYLOAD + 1];

    bench_payload(payload, 0);
    b->total = count;
    bench_sql(db, "INSERT INTO jobq.incoming (partition, payload) SELECT 32768 + i %% %d, "
                  "'%s'::jsonb FROM generate_series(1, %ld) i", b->partitions, payload, count);
}

static void box_number(PGconn *db, int most)
{
    while (bench_number(db, "SELECT waiting FROM jobq.outbox_sequence(1, '{1}', %d, false) "
                            "LIMIT 1", most) > 0) {
    }
}

static jobq_pg_read_desc box_reader(const box *b, int partition, int64_t claim)
{
    jobq_pg_read_desc d;

    memset(&d, 0, sizeof d);
    d.worker = 1;
    d.claim = claim;
    d.lease_us = 60000000;
    d.partition = jobq_pg_partition(1, partition);
    d.most = b->batch;
    return d;
}

/* Reads and acknowledges all there is in a partition; messages done. Each acknowledgement reads the
 * next batch. */
static long box_drain(box *b, PGconn *db, int partition, int64_t claim)
{
    jobq_pg_read_desc d = box_reader(b, partition, claim);
    jobq_pg_reading r, next;
    jobq_pg_ack_desc ack;
    jobq_cursor after;
    jobq_pg_error error;
    long done = 0, statements = 1;

    if (jobq_pg_outbox_read(b->pg, db, &d, &r, &error)) bench_fail("%s", error.message);
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
        if (jobq_pg_outbox_ack(b->pg, db, &ack, &next, &error)) bench_fail("%s", error.message);
        done += r.count;
        statements++;
        jobq_pg_reading_clear(&r);
        r = next;
    }
    jobq_pg_reading_clear(&r);
    __atomic_fetch_add(&b->done, done, __ATOMIC_RELAXED);
    __atomic_fetch_add(&b->statements, statements, __ATOMIC_RELAXED);
    return done;
}

static long read_step(PGconn *db, void *state, long step)
{
    long done = box_drain((box *)state, db, (int)step, step + 1);

    return done > 0 ? done : 1;
}

/* Reads and acknowledges count messages with 2 connections; messages a second. */
static double box_read(int batch, long count, bool held)
{
    PGconn *db = bench_db(), *holder = bench_db();
    double rate;
    box b;

    box_open(&b, db, BOX_PARTITIONS, batch);
    if (held) bench_sql(holder, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM "
                                "jobq.meta");
    box_load(&b, db, count);
    box_number(db, 1000);
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
    bench_figure("outbox: read and ack behind a held snapshot", held, "msg/s", "without one",
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
        bench_payload(payloads[i], step * count + i);
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
    box_put((box *)state, db, 100, step);
    return 100;
}

/* Two consumers: each numbers, and works what there is to read in every second partition. */
static long consume_step(PGconn *db, void *state, long step)
{
    static const char text[] = "SELECT partition & 32767, waiting FROM jobq.outbox_sequence(1, "
                               "'{1}', 1000, false)";
    box *b = (box *)state;
    int64_t claim = 0;

    while (__atomic_load_n(&b->done, __ATOMIC_RELAXED) < b->total) {
        PGresult *res = PQexec(db, text);
        long done = 0;
        int row;
        if (PQresultStatus(res) != PGRES_TUPLES_OK) bench_fail("%s", PQerrorMessage(db));
        __atomic_fetch_add(&b->statements, 1, __ATOMIC_RELAXED);
        for (row = 1; row < PQntuples(res); row++) {
            int p = atoi(PQgetvalue(res, row, 0));
            if ((p & 1) == (step & 1)) done += box_drain(b, db, p, ++claim);
        }
        if (done == 0 && strcmp(PQgetvalue(res, 0, 1), "0") == 0) bench_sleep(0.001);
        PQclear(res);
    }
    __atomic_store_n(&b->ended, 1, __ATOMIC_RELAXED);
    return 0;
}

static long reclaim_step(PGconn *db, void *state, long step)
{
    jobq_pg_error error;
    bool more = false;

    (void)step;
    if (jobq_pg_outbox_reclaim(((box *)state)->pg, db, 10000, &more, &error)) {
        bench_fail("%s", error.message);
    }
    if (!more) bench_sleep(0.5);
    return !__atomic_load_n(&((box *)state)->ended, __ATOMIC_RELAXED);
}

typedef struct box_run {
    double rate, statements, wal; /* messages a second; a message */
} box_run;

static void box_tell_cost(const box_run *run)
{
    bench_figure("  statements and round trips a message", run->statements, "", "", 0, BENCH_SHOWN,
                 0);
    bench_figure("  WAL a message", run->wal, "bytes", "", 0, BENCH_SHOWN, 0);
}

/* Statements: without the producers' one for each 100. */
static box_run box_end(long count, bool bytes)
{
    PGconn *db = bench_db();
    bench_gang *producers, *consumers, *reclaimer;
    double started;
    box_run run;
    box b;

    box_open(&b, db, BOX_PARTITIONS, 1000);
    b.relaxed = true;
    b.bytes = bytes;
    b.total = count;
    bench_wal_reset(db);
    run.wal = bench_number(db, "SELECT pg_current_wal_insert_lsn() - '0/0'");
    started = bench_now();
    producers = bench_gang_start(16, produce_step, &b, count / 100, 600);
    consumers = bench_gang_start(2, consume_step, &b, 2, 600);
    reclaimer = bench_gang_start(1, reclaim_step, &b, 1L << 40, 600);
    bench_gang_end(producers);
    bench_gang_end(consumers);
    run.rate = (double)count / (bench_now() - started);
    bench_gang_end(reclaimer);
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

/* Payloads of bytes, as the original has them; JSON is parsed and checked besides. */
void row_outbox_end(void)
{
    long count = bench_long ? 3200000 : 480000;
    double floor = bench_floor_delete(2, count);
    box_run bytes = box_end(count, true), json = box_end(count, false);

    floor = (floor + bench_floor_delete(2, count)) / 2;
    bench_figure("outbox: end to end, 16 producers, 64 partitions", bytes.rate, "msg/s",
                 "DELETE ... RETURNING, 2 connections", floor, BENCH_RATIO_AT_LEAST, 0.27);
    box_tell_cost(&bytes);
    bench_figure("outbox: the same with payloads of JSON", json.rate, "msg/s",
                 "DELETE ... RETURNING, 2 connections", floor, BENCH_SHOWN, 0);
    box_tell_cost(&json);
}

/* -- through a worker's receivers -- */

static jobq_result box_nod(jobq_delivery *d)
{
    if (d->messages[d->count - 1].payload.len < 50) return JOBQ_RESULT_RETRY;
    return JOBQ_RESULT_SUCCESS;
}

static jobq_pg_worker *box_worker(jobq_pg *pg, bool transactional)
{
    jobq_pg_worker_desc desc;
    jobq_pg_receiver r;
    jobq_pg_worker *worker;
    jobq_pg_error error;

    memset(&desc, 0, sizeof desc);
    memset(&r, 0, sizeof r);
    r.queue = BENCH_QUEUE;
    r.all = box_nod;
    r.transactional = transactional;
    desc.receivers = &r;
    desc.receiver_count = 1;
    if (jobq_pg_worker_start(pg, &desc, &worker, &error)) bench_fail("%s", error.message);
    return worker;
}

/* One worker, all by default, numbers and delivers what lies in incoming. */
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
    worker = box_worker(b.pg, transactional);
    while (bench_number(db, "SELECT sum(acked) FROM jobq.partition") != (double)count) {
        if (bench_now() - started > 600) bench_fail("outbox-worker: not all were delivered");
        bench_sleep(0.005);
    }
    took = bench_now() - started;
    run.wal = (bench_number(db, "SELECT pg_current_wal_insert_lsn() - '0/0'") - run.wal) /
              (double)count;
    stats = jobq_pg_worker_stats(worker).messages;
    jobq_pg_worker_stop(worker);
    jobq_pg_worker_wait(worker, NULL);
    jobq_pg_worker_free(worker);
    /* a batch: one statement, which acknowledges it and reads the next */
    run.statements = (double)(stats.sequences + stats.reads + count / 100) / (double)count;
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
    bench_figure("outbox: a worker behind a held snapshot", held.rate, "msg/s", "without one",
                 (leased.rate + box_work(false, count, false).rate) / 2, BENCH_RATIO_AT_LEAST,
                 0.9);
}

/* -- two ways of numbering -- */

/* The other way: messages keep the transaction id that wrote them, and a window between two
 * snapshots is numbered by counting it; rows are written once and never deleted. The xids are
 * those of one server: nothing of it survives a dump and restore. */
static void windows_open(PGconn *db, int partitions)
{
    bench_sql(db, "DROP SCHEMA IF EXISTS floor CASCADE");
    bench_sql(db, "CREATE SCHEMA floor");
    bench_sql(db, "CREATE SEQUENCE floor.id");
    bench_sql(db, "CREATE TABLE floor.message (partition bigint, xid xid8 DEFAULT "
                  "pg_current_xact_id(), id bigint DEFAULT nextval('floor.id'), created_at "
                  "timestamptz DEFAULT statement_timestamp(), payload jsonb, "
                  "PRIMARY KEY (partition, xid, id))");
    bench_sql(db, "CREATE TABLE floor.at (partition bigint PRIMARY KEY, seq bigint DEFAULT 0, "
                  "seen pg_snapshot DEFAULT pg_current_snapshot())");
    bench_sql(db, "CREATE TABLE floor.window (partition bigint, first bigint, count bigint, "
                  "since pg_snapshot, until pg_snapshot, PRIMARY KEY (partition, first))");
    bench_sql(db, "INSERT INTO floor.at (partition) SELECT 32768 + i FROM generate_series(0, %d) i",
              partitions - 1);
    bench_sql(db,
        "CREATE FUNCTION floor.number() RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off "
        "SET enable_bitmapscan = off SET jit = off AS $$ DECLARE a record; n bigint; total bigint "
        ":= 0; s pg_snapshot; BEGIN "
        "FOR a IN SELECT * FROM floor.at FOR UPDATE SKIP LOCKED LOOP s := pg_current_snapshot(); "
        "n := (SELECT count(*) FROM floor.message m WHERE m.partition = a.partition "
        "AND m.xid >= pg_snapshot_xmin(a.seen) AND m.xid < pg_snapshot_xmax(s) "
        "AND NOT pg_visible_in_snapshot(m.xid, a.seen) AND pg_visible_in_snapshot(m.xid, s)); "
        "CONTINUE WHEN n = 0; "
        "INSERT INTO floor.window VALUES (a.partition, a.seq + 1, n, a.seen, s); "
        "UPDATE floor.at SET seq = a.seq + n, seen = s WHERE partition = a.partition; "
        "total := total + n; END LOOP; RETURN total; END $$");
}

typedef struct numbering {
    bool windows;
    int partitions, batch;
    const char *beside; /* "": nothing; a held snapshot; a writer that stays open */
} numbering;

/* Messages numbered a second, batch by batch; only the numbering is timed. */
static double number_rate(const numbering *n)
{
    PGconn *db = bench_db(), *other = bench_db();
    long rounds = n->batch == 1 ? 1000 : n->batch == 100 ? 200 : 60, i;
    double took = 0;
    jobq_pg *pg = NULL;
    jobq_pg_error error;
    const char *table = n->windows ? "floor.message" : "jobq.incoming";
    const char *call = n->windows ? "SELECT floor.number()" :
        "SELECT waiting FROM jobq.outbox_sequence(1, '{1}', 1000, false) LIMIT 1";

    pg = bench_schema(db, false);
    if (jobq_pg_outbox_register(pg, NULL, BENCH_QUEUE, n->partitions, NULL, &error)) {
        bench_fail("%s", error.message);
    }
    if (n->windows) windows_open(db, n->partitions);
    if (n->beside[0] == 'h') bench_sql(other, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1");
    if (n->beside[0] == 'w') bench_sql(other, "BEGIN; INSERT INTO %s (partition, payload) VALUES "
                                              "(32768, '1')", table);
    for (i = 0; i < rounds; i++) {
        double started;
        bench_sql(db, "INSERT INTO %s (partition, payload) SELECT 32768 + i %% %d, '{\"text\": "
                      "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}' "
                      "FROM generate_series(%ld, %ld) i", table, n->partitions,
                  i * n->batch, (i + 1) * n->batch - 1);
        started = bench_now();
        if (bench_number(db, "%s", call) != n->batch) bench_fail("outbox-number: wrong count");
        took += bench_now() - started;
    }
    jobq_pg_close(pg);
    PQfinish(other);
    PQfinish(db);
    return (double)(rounds * n->batch) / took;
}

void row_outbox_number(void)
{
    static const int partitions[] = {1, 64}, batches[] = {1, 100, 1000};
    static const char *const beside[] = {"", "held snapshot", "writer left open"};
    int p, b, k;

    for (p = 0; p < 2; p++) {
        for (b = 0; b < 3; b++) {
            for (k = 0; k < 3; k++) {
                numbering queue = {false, partitions[p], batches[b], beside[k]}, windows = queue;
                char label[80];
                windows.windows = true;
                snprintf(label, sizeof label, "outbox: numbering, %d part., %d a batch%s%s",
                         partitions[p], batches[b], k > 0 ? ", " : "", beside[k]);
                bench_figure(label, number_rate(&queue), "msg/s", "snapshot windows",
                             number_rate(&windows), BENCH_SHOWN, 0);
            }
        }
    }
}
