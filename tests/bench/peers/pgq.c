/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * pgq.c -- PgQ beside our outbox: rows pgq-through, pgq-topics and pgq-latency, on the database of
 * JOBQ_SERVER.
 *
 * Our own thread ticks, every 10 ms. PgQ's daemon ticks once a second by default, and after 3 s or
 * 500 events; its documentation says to shorten that for speed. Each event is one call of
 * insert_event, in one statement a transaction, and the reader takes whole batches.
 */
#include "../bench.h"

#define TICK 0.01 /* seconds */
#define PUT_MAX 100

typedef struct pgq {
    long first; /* number of the producer's first event */
    int put;    /* events in a transaction */
} pgq;

#define READERS 3

static double read_at; /* when the first reader saw the last event */
static long seen[READERS]; /* by the others, atomic */
static int ended;      /* atomic */

static bool opened(PGconn *db, const char *label)
{
    if (bench_number(db, "SELECT count(*) FROM pg_available_extensions WHERE name = 'pgq'") == 0) {
        bench_missing(label, "the extension pgq is not installed");
        return false;
    }
    bench_sql(db, "DROP EXTENSION IF EXISTS pgq CASCADE; CREATE EXTENSION pgq; "
                  "SELECT pgq.create_queue('bench'); "
                  "SELECT pgq.register_consumer('bench', 'reader0'), "
                  "pgq.register_consumer('bench', 'reader1'), "
                  "pgq.register_consumer('bench', 'reader2'); "
                  "SELECT pgq.set_queue_config('bench', 'ticker_max_lag', '1 millisecond')");
    bench_wal_reset(db);
    __atomic_store_n(&ended, 0, __ATOMIC_RELEASE);
    return true;
}

/* One statement a transaction: the events are the lines of a text. */
static long put_step(PGconn *db, void *state, long step)
{
    const pgq *p = (const pgq *)state;
    char lines[PUT_MAX * (BENCH_PAYLOAD + 1)], *at = lines;
    const char *value = lines;
    PGresult *res;
    int i;

    if (step == 0) {
        PQclear(PQprepare(db, "put", "SELECT pgq.insert_event('bench', 'event', line) "
                                     "FROM string_to_table($1, E'\\n') line", 0, NULL));
    }
    for (i = 0; i < p->put; i++, at += BENCH_PAYLOAD + 1) {
        bench_payload(at, p->first + step * p->put + i);
        at[BENCH_PAYLOAD] = i + 1 < p->put ? '\n' : '\0';
    }
    res = PQexecPrepared(db, "put", 1, &value, NULL, NULL, 1);
    if (PQntuples(res) != p->put) bench_fail("%s", PQerrorMessage(db));
    PQclear(res);
    return p->put;
}

static long tick_step(PGconn *db, void *state, long step)
{
    (void)state;
    (void)step;
    bench_sql(db, "SELECT pgq.ticker('bench')");
    bench_sleep(TICK);
    return !__atomic_load_n(&ended, __ATOMIC_ACQUIRE);
}

static long read_step(PGconn *db, void *state, long step)
{
    int reader = *(const int *)state, i;
    char text[96];
    PGresult *res;
    long batch;

    (void)step;
    snprintf(text, sizeof text, "SELECT coalesce(pgq.next_batch('bench', 'reader%d'), 0)", reader);
    batch = (long)bench_number(db, text);
    if (batch > 0) {
        snprintf(text, sizeof text, "SELECT ev_data FROM pgq.get_batch_events(%ld)", batch);
        res = PQexec(db, text);
        if (PQresultStatus(res) != PGRES_TUPLES_OK) bench_fail("%s", PQerrorMessage(db));
        if (PQntuples(res) > 0 && reader == 0) read_at = bench_now();
        for (i = 0; i < PQntuples(res) && reader == 0; i++)
            bench_through_see(0, PQgetvalue(res, i, 0));
        __atomic_fetch_add(&seen[reader], PQntuples(res), __ATOMIC_RELEASE);
        PQclear(res);
        bench_sql(db, "SELECT pgq.finish_batch(%ld)", batch);
    } else {
        bench_sleep(0.001);
    }
    return !__atomic_load_n(&ended, __ATOMIC_ACQUIRE);
}

static void started(bench_gang *gangs[1 + READERS], int readers)
{
    static int numbers[READERS] = {0, 1, 2};
    int i;

    memset(seen, 0, sizeof seen);
    gangs[0] = bench_gang_start(1, tick_step, NULL, 1L << 40, 600);
    for (i = 0; i < readers; i++)
        gangs[1 + i] = bench_gang_start(1, read_step, &numbers[i], 1L << 40, 600);
}

static void stopped(bench_gang *gangs[1 + READERS], int readers)
{
    int i;

    __atomic_store_n(&ended, 1, __ATOMIC_RELEASE);
    for (i = 0; i <= readers; i++) bench_gang_end(gangs[i]);
}

static void through(const char *label, int readers, int producers, int put, long count)
{
    PGconn *db = bench_db();
    bench_gang *gangs[1 + READERS];
    pgq each[BENCH_PRODUCERS];
    double began;
    int i;

    for (i = 0; i < producers; i++) {
        each[i].first = i * BENCH_OWN;
        each[i].put = put;
    }
    if (opened(db, label)) {
        started(gangs, readers);
        began = bench_now();
        bench_through(producers, put_step, each, sizeof *each, put, count);
        for (i = 1; i < readers; i++)
            while (__atomic_load_n(&seen[i], __ATOMIC_ACQUIRE) < count) bench_sleep(0.0005);
        bench_figure(label, (double)count / (bench_now() - began), "events/s", "", 0, BENCH_SHOWN,
                     0);
        stopped(gangs, readers);
    }
    PQfinish(db);
}

void row_pgq_through(void)
{
    long count = bench_setting("PEERS_JOBS", bench_long ? 3200000 : 480000);

    through("PgQ: one a transaction, 16 producers", 1, 16, 1, count / 10);
    through("PgQ: 100 a transaction, 2 producers", 1, 2, 100, count);
}

void row_pgq_topics(void)
{
    long count = bench_setting("PEERS_JOBS", bench_long ? 3200000 : 240000);

    through("PgQ: three readers, one a transaction, 16 producers", READERS, 16, 1, count / 10);
    through("PgQ: three readers, 100 a transaction, 2 producers", READERS, 2, 100, count);
}

void row_pgq_latency(void)
{
    static const char label[] = "PgQ: idle enqueue to handler, p50";
    int count = bench_setting("PEERS_SAMPLES", bench_long ? 2000 : 150), i;
    PGconn *db = bench_db();
    bench_gang *gangs[1 + READERS];
    pgq one = {0, 1};
    double ms[2000], began;

    if (!opened(db, label)) return;
    started(gangs, 1);
    for (i = 0; i < count + 10; i++) { /* the first ten warm up */
        bench_sleep(0.001 * bench_chance(20, 40));
        began = bench_now();
        put_step(db, &one, i);
        while (bench_through_seen() <= i) bench_sleep(0.0001);
        if (i >= 10) ms[i - 10] = 1000 * (read_at - began);
    }
    stopped(gangs, 1);
    bench_figure(label, bench_quantile(ms, (size_t)count, 0.5), "ms", "", 0, BENCH_SHOWN, 0);
    PQfinish(db);
}
