/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * enqueue.c -- rows about producers: bulk, single, keepup, cost.
 */
#include "bench.h"

/* -- bulk -- */

static void fill(jobq_pg_job jobs[BENCH_BATCH], char payloads[BENCH_BATCH][BENCH_PAYLOAD + 1],
                 long step)
{
    static const jobq_pg_job none;
    int i;

    for (i = 0; i < BENCH_BATCH; i++) {
        jobs[i] = none;
        bench_payload(payloads[i], step * BENCH_BATCH + i);
        jobs[i].queue = BENCH_QUEUE;
        jobs[i].kind = BENCH_KIND;
        jobs[i].payload.ptr = payloads[i];
        jobs[i].payload.len = BENCH_PAYLOAD;
    }
}

static long bulk_step(PGconn *db, void *state, long step)
{
    jobq_pg_job jobs[BENCH_BATCH];
    char payloads[BENCH_BATCH][BENCH_PAYLOAD + 1];
    int64_t ids[BENCH_BATCH];
    jobq_pg_error error;

    fill(jobs, payloads, step);
    if (jobq_pg_enqueue_many((jobq_pg *)state, db, jobs, BENCH_BATCH, ids, &error)) {
        bench_fail("%s", error.message);
    }
    return BENCH_BATCH;
}

static long copy_step(PGconn *db, void *state, long step)
{
    jobq_pg_job jobs[BENCH_BATCH];
    char payloads[BENCH_BATCH][BENCH_PAYLOAD + 1];
    jobq_pg_error error;

    fill(jobs, payloads, step);
    if (jobq_pg_enqueue_many((jobq_pg *)state, db, jobs, BENCH_BATCH, JOBQ_PG_BY_COPY, &error)) {
        bench_fail("%s", error.message);
    }
    return BENCH_BATCH;
}

/* A binary array of jsonb. */
static size_t jsonb_array(char *out, long step)
{
    static const unsigned char head[20] = {0, 0, 0, 1,   0, 0, 0, 0, 0, 0, 0x0e, 0xda, 0, 0,
                                           3, 0xe8, 0, 0, 0, 1};
    static const unsigned char item[5] = {0, 0, 0, BENCH_PAYLOAD + 1, 1};
    char *at = out + sizeof head;
    int i;

    memcpy(out, head, sizeof head);
    for (i = 0; i < BENCH_BATCH; i++) {
        memcpy(at, item, sizeof item);
        bench_payload(at + sizeof item, step * BENCH_BATCH + i);
        at += sizeof item + BENCH_PAYLOAD;
    }
    return (size_t)(at - out);
}

long bench_floor_array(PGconn *db, void *state, long step)
{
    static const char text[] = "INSERT INTO floor.job (queue_id, kind_id, payload) "
                               "SELECT 1, 1, u FROM unnest($1::jsonb[]) u RETURNING id";
    char *data = (char *)malloc((size_t)BENCH_BATCH * (BENCH_PAYLOAD + 8) + 64);
    const char *value = data;
    int length = (int)jsonb_array(data, step), format = 1;
    PGresult *res;

    (void)state;
    res = PQexecPrepared(db, "bulk", 1, &value, &length, &format, 1);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) {
        PQclear(res);
        PQclear(PQprepare(db, "bulk", text, 0, NULL));
        res = PQexecPrepared(db, "bulk", 1, &value, &length, &format, 1);
    }
    if (PQntuples(res) != BENCH_BATCH) bench_fail("floor: %s", PQerrorMessage(db));
    PQclear(res);
    free(data);
    return BENCH_BATCH;
}

static long floor_copy_step(PGconn *db, void *state, long step)
{
    static const char head[19] = "PGCOPY\n\377\r\n";
    static const unsigned char row[23] = {0, 3, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1, 0,
                                          0, 0, BENCH_PAYLOAD + 1, 1};
    char line[sizeof row + BENCH_PAYLOAD + 1];
    int i;

    (void)state;
    PQclear(PQexec(db, "COPY floor.job (queue_id, kind_id, payload) FROM STDIN (FORMAT binary)"));
    PQputCopyData(db, head, sizeof head);
    for (i = 0; i < BENCH_BATCH; i++) {
        memcpy(line, row, sizeof row);
        bench_payload(line + sizeof row, step * BENCH_BATCH + i);
        PQputCopyData(db, line, (int)sizeof row + BENCH_PAYLOAD);
    }
    PQputCopyData(db, "\377\377", 2);
    PQputCopyEnd(db, NULL);
    PQclear(PQgetResult(db));
    if (PQgetResult(db) != NULL) bench_fail("floor: COPY");
    return BENCH_BATCH;
}

static double floor_bulk(PGconn *db, int connections, bench_step step, long count)
{
    double rate;

    if (bench_alone) return 0;
    jobq_pg_close(bench_schema(db, true));
    bench_floor_table(db);
    bench_wal_reset(db);
    rate = bench_gang_run(connections, step, NULL, count / BENCH_BATCH, 600);
    if (bench_number(db, "SELECT count(*) FROM floor.job") != (double)count) {
        bench_fail("floor: rows are wrong");
    }
    return rate;
}

static void bulk_row(PGconn *db, const char *how, int connections, bench_step step,
                     const char *floor_label, bench_step floor_step, double target)
{
    long count = bench_setting("PEERS_JOBS", bench_long ? 2000000 : 200000);
    double floor = floor_bulk(db, connections, floor_step, count), rate;
    jobq_pg *pg = bench_schema(db, true);
    char label[64];

    bench_wal_reset(db);
    rate = bench_gang_run(connections, step, pg, count / BENCH_BATCH, 600);
    if (bench_number(db, "SELECT count(DISTINCT id) FROM jobq.job") != (double)count) {
        bench_fail("bulk: jobs are wrong");
    }
    jobq_pg_close(pg);
    snprintf(label, sizeof label, "bulk enqueue by %s, %d connection%s", how, connections,
             connections > 1 ? "s" : "");
    bench_figure(label, rate, "jobs/s", floor_label, floor, BENCH_RATIO_AT_LEAST, target);
}

void row_bulk(void)
{
    PGconn *db = bench_db();
    int connections;

    for (connections = bench_alone ? bench_many() : 1; connections <= bench_many();
         connections++) {
        bulk_row(db, "COPY", connections, copy_step, "COPY, batches of 1000", floor_copy_step,
                 0.85);
        bulk_row(db, "arrays", connections, bulk_step, "array insert, batches of 1000",
                 bench_floor_array, 0.75);
    }
    PQfinish(db);
}

/* -- one job per transaction -- */

static long single_step(PGconn *db, void *state, long step)
{
    char payload[BENCH_PAYLOAD + 1];
    jobq_pg_job job;
    jobq_pg_error error;
    int64_t id;

    memset(&job, 0, sizeof job);
    bench_payload(payload, step);
    job.queue = BENCH_QUEUE;
    job.kind = BENCH_KIND;
    job.payload.ptr = payload;
    job.payload.len = BENCH_PAYLOAD;
    if (jobq_pg_enqueue((jobq_pg *)state, db, &job, &id, &error)) bench_fail("%s", error.message);
    return 1;
}

static long floor_single_step(PGconn *db, void *state, long step)
{
    char payload[BENCH_PAYLOAD + 1];
    const char *value = payload;
    PGresult *res;

    (void)state;
    bench_payload(payload, step);
    res = PQexecPrepared(db, "ins", 1, &value, NULL, NULL, 1);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) {
        PQclear(res);
        PQclear(PQprepare(db, "ins", "INSERT INTO floor.job (queue_id, kind_id, payload) "
                                     "VALUES (1, 1, $1) RETURNING id", 0, NULL));
        res = PQexecPrepared(db, "ins", 1, &value, NULL, NULL, 1);
    }
    if (PQntuples(res) != 1) bench_fail("%s", PQerrorMessage(db));
    PQclear(res);
    return 1;
}

void row_single(void)
{
    static const int producers[] = {1, 8, 16};
    double seconds = bench_setting("PEERS_MS", bench_long ? 15000 : 2400) / 1e3;
    PGconn *db = bench_db();
    size_t i;

    for (i = 0; i < 3; i += bench_alone ? 2 : 1) {
        char label[64];
        double floor = 0, rate = 0;
        int slice, slices = 3;
        jobq_pg *pg = bench_schema(db, true);
        bench_floor_table(db);
        bench_wal_reset(db);
        for (slice = 0; slice < slices; slice++) { /* in turns, because speed varies */
            if (!bench_alone) {
                floor += bench_gang_run(producers[i], floor_single_step, NULL, 1L << 40,
                                        seconds / slices) / slices;
            }
            rate += bench_gang_run(producers[i], single_step, pg, 1L << 40, seconds / slices) /
                    slices;
        }
        jobq_pg_close(pg);
        snprintf(label, sizeof label, "one job per transaction, %d producer%s", producers[i],
                 producers[i] > 1 ? "s" : "");
        bench_figure(label, rate, "jobs/s", "one-row insert", floor, BENCH_RATIO_AT_LEAST, 0.85);
    }
    PQfinish(db);
}

/* -- producers beside workers -- */

#define KEEPUP_WARM 2 /* seconds, in which the workers withdraw their sleep */

/* Returns rows a second of 32 producers, after the warm-up. *lag: how many seconds crew (may be
 * NULL) is behind. */
static double producers(jobq_pg *pg, const bench_crew *crew, double *lag)
{
    double seconds = bench_long ? 20 : 3, rate;
    bench_gang *gang =
        bench_gang_start(32, single_step, pg, 1L << 40, (crew ? KEEPUP_WARM : 0) + seconds);
    long before;

    bench_sleep(crew ? KEEPUP_WARM : 0);
    before = bench_gang_rows(gang);
    bench_sleep(seconds);
    rate = (double)(bench_gang_rows(gang) - before) / seconds;
    if (crew) *lag = (double)(bench_gang_rows(gang) - bench_crew_flushed(crew)) / rate;
    bench_gang_end(gang);
    return rate;
}

void row_keepup(void)
{
    double alone, beside, lag;
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    bench_crew crew;
    long jobs;

    bench_wal_reset(db);
    alone = producers(pg, NULL, NULL);
    jobq_pg_close(pg);
    pg = bench_schema(db, true);
    bench_wal_reset(db);
    bench_seen_reset(0);
    bench_crew_start(&crew, pg, 8, bench_noop, NULL);
    bench_sleep(0.3);
    beside = producers(pg, &crew, &lag);
    while (bench_number(db, "SELECT count(*) FROM jobq.job") > 0) bench_sleep(0.05);
    jobs = (long)bench_number(db, "SELECT last_value FROM jobq.job_id");
    bench_crew_stop(&crew);
    if (bench_number(db, "SELECT count(DISTINCT id) FROM jobq.history") != (double)jobs) {
        bench_fail("keepup: history is wrong");
    }
    jobq_pg_close(pg);
    bench_figure("32 producers beside 8 workers", beside, "jobs/s", "the same, no workers", alone,
                 BENCH_RATIO_AT_LEAST, 0.70);
    bench_figure("  the workers' lag at the end", lag, "s", "", 0, BENCH_AT_MOST, 0.5);
    PQfinish(db);
}

/* -- what a job costs the server -- */

typedef struct cost {
    double wal, calls, nested, updates, hot;
} cost;

static cost cost_now(PGconn *db)
{
    cost c;

    bench_sleep(1.1); /* Postgres 14 publishes statistics only now and then */
    c.wal = bench_number(db, "SELECT sum(wal_bytes) FROM pg_stat_statements "
                             "WHERE toplevel AND query LIKE '%%jobq.%%(%%$%%'");
    c.calls = bench_number(db, "SELECT sum(calls) FROM pg_stat_statements "
                               "WHERE toplevel AND query LIKE '%%jobq.%%(%%$%%'");
    c.nested = bench_number(db, "SELECT sum(calls) FROM pg_stat_statements WHERE NOT toplevel");
    c.updates = bench_number(db, "SELECT n_tup_upd FROM pg_stat_user_tables "
                                 "WHERE schemaname = 'jobq' AND relname = 'job'");
    c.hot = bench_number(db, "SELECT n_tup_hot_upd FROM pg_stat_user_tables "
                             "WHERE schemaname = 'jobq' AND relname = 'job'");
    return c;
}

static void cost_show(PGconn *db, const char *verb, int batch, cost *before, long jobs)
{
    cost now = cost_now(db);
    char label[64];

    snprintf(label, sizeof label, "WAL of %s, batch of %d", verb, batch);
    bench_figure(label, (now.wal - before->wal) / (double)jobs, "bytes/job", "", 0, BENCH_SHOWN, 0);
    snprintf(label, sizeof label, "round trips of %s, batch of %d", verb, batch);
    bench_figure(label, (now.calls - before->calls) / (double)jobs, "per job", "", 0, BENCH_SHOWN,
                 0);
    snprintf(label, sizeof label, "statements inside %s, batch of %d", verb, batch);
    bench_figure(label, (now.nested - before->nested) / (double)jobs, "per job", "", 0, BENCH_SHOWN,
                 0);
    if (now.updates > before->updates) {
        snprintf(label, sizeof label, "HOT share of %s, batch of %d", verb, batch);
        bench_figure(label, (now.hot - before->hot) / (now.updates - before->updates), "", "", 0,
                     BENCH_AT_LEAST, 0.999);
    }
    *before = now;
}

/* A pool connection publishes its statistics when it has been idle for a second, or is closed. */
static PGconn *again(PGconn *db)
{
    if (db != NULL) PQfinish(db);
    db = bench_db();
    bench_sql(db, "SET pg_stat_statements.track = 'all'");
    return db;
}

static void cost_batch(PGconn *db, jobq_pg *pg, int batch, long jobs)
{
    static const char *const queues[] = {BENCH_QUEUE};
    verb_result *results = (verb_result *)calloc((size_t)jobs, sizeof *results);
    jobq_lane lane = {1, 0, 0, false, INT64_MIN, 0, 0, 0};
    verb_claim_desc desc;
    verb_batch got;
    jobq_pg_error error;
    PGconn *own = again(NULL);
    cost before = cost_now(db);
    long done, n = 0;
    size_t i;

    for (done = 0; done < jobs; done += batch) {
        if (batch == BENCH_BATCH) bulk_step(own, pg, done);
        else single_step(own, pg, done);
    }
    own = again(own);
    cost_show(db, "enqueue", batch, &before, jobs);
    memset(&desc, 0, sizeof desc);
    desc.worker = 1000 + batch;
    desc.lanes = &lane;
    desc.lane_count = 1;
    desc.limit = batch;
    if (verb_register(pg, NULL, desc.worker, "bench", 60000000, queues, 1, NULL, &error)) {
        bench_fail("%s", error.message);
    }
    before = cost_now(db);
    for (done = 0; done < jobs; done += batch) {
        desc.number++;
        if (verb_claim(pg, own, &desc, &got, &error)) bench_fail("%s", error.message);
        for (i = 0; i < got.count; i++) {
            results[n].id = got.jobs[i].id;
            results[n].worker = desc.worker;
            results[n].claim = desc.number;
            results[n++].decision.state = JOBQ_STATE_SUCCEEDED;
            bench_lane_move(&lane, &got.jobs[i]);
        }
        if ((int)got.count != batch) bench_fail("cost: a claim returned %d jobs", (int)got.count);
        verb_batch_clear(&got);
    }
    own = again(own);
    cost_show(db, "claim", batch, &before, jobs);
    for (done = 0; done < jobs; done += batch) {
        if (verb_settle(pg, own, results + done, (size_t)batch, NULL, &error)) {
            bench_fail("%s", error.message);
        }
    }
    own = again(own);
    cost_show(db, "complete", batch, &before, jobs);
    PQfinish(own);
    free(results);
}

void row_cost(void)
{
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);

    if (bench_number(db, "SELECT count(*) FROM pg_available_extensions "
                         "WHERE name = 'pg_stat_statements'") == 0) {
        bench_missing("WAL, statements, round trips", "pg_stat_statements");
        return;
    }
    bench_sql(db, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements");
    bench_sql(db, "SET pg_stat_statements.track = 'none'");
    bench_wal_reset(db);
    cost_batch(db, pg, BENCH_BATCH, 50000);
    cost_batch(db, pg, 1, 1000);
    if (bench_number(db, "SELECT count(*) FROM jobq.history") != 51000) bench_fail("cost: history");
    jobq_pg_close(pg);
    PQfinish(db);
}
