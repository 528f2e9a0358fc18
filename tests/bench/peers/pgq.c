/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * pgq.c -- PgQ beside our outbox: rows pgq-through and pgq-latency, on the database of JOBQ_SERVER.
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

static double read_at; /* when the reader saw the last event */
static int ended;      /* atomic */

static bool opened(PGconn *db, const char *label)
{
    if (bench_number(db, "SELECT count(*) FROM pg_available_extensions WHERE name = 'pgq'") == 0) {
        bench_missing(label, "the extension pgq is not installed");
        return false;
    }
    bench_sql(db, "DROP EXTENSION IF EXISTS pgq CASCADE; CREATE EXTENSION pgq; "
                  "SELECT pgq.create_queue('bench'); "
                  "SELECT pgq.register_consumer('bench', 'reader'); "
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
    long batch = (long)bench_number(db, "SELECT coalesce(pgq.next_batch('bench', 'reader'), 0)");
    char text[96];
    PGresult *res;
    int i;

    (void)state;
    (void)step;
    if (batch > 0) {
        snprintf(text, sizeof text, "SELECT ev_data FROM pgq.get_batch_events(%ld)", batch);
        res = PQexec(db, text);
        if (PQresultStatus(res) != PGRES_TUPLES_OK) bench_fail("%s", PQerrorMessage(db));
        if (PQntuples(res) > 0) read_at = bench_now();
        for (i = 0; i < PQntuples(res); i++) bench_through_see(0, PQgetvalue(res, i, 0));
        PQclear(res);
        bench_sql(db, "SELECT pgq.finish_batch(%ld)", batch);
    } else {
        bench_sleep(0.001);
    }
    return !__atomic_load_n(&ended, __ATOMIC_ACQUIRE);
}

static void started(bench_gang *gangs[2])
{
    gangs[0] = bench_gang_start(1, tick_step, NULL, 1L << 40, 600);
    gangs[1] = bench_gang_start(1, read_step, NULL, 1L << 40, 600);
}

static void stopped(bench_gang *gangs[2])
{
    __atomic_store_n(&ended, 1, __ATOMIC_RELEASE);
    bench_gang_end(gangs[0]);
    bench_gang_end(gangs[1]);
}

static void through(const char *label, int producers, int put, long count)
{
    PGconn *db = bench_db();
    bench_gang *gangs[2];
    pgq each[BENCH_PRODUCERS];
    int i;

    for (i = 0; i < producers; i++) {
        each[i].first = i * BENCH_OWN;
        each[i].put = put;
    }
    if (opened(db, label)) {
        started(gangs);
        bench_figure(label, bench_through(producers, put_step, each, sizeof *each, put, count),
                     "events/s", "", 0, BENCH_SHOWN, 0);
        stopped(gangs);
    }
    PQfinish(db);
}

void row_pgq_through(void)
{
    long count = bench_setting("PEERS_JOBS", bench_long ? 3200000 : 480000);

    through("PgQ: one a transaction, 16 producers", 16, 1, count / 10);
    through("PgQ: 100 a transaction, 2 producers", 2, 100, count);
}

void row_pgq_latency(void)
{
    static const char label[] = "PgQ: idle enqueue to handler, p50";
    int count = bench_setting("PEERS_SAMPLES", bench_long ? 2000 : 150), i;
    PGconn *db = bench_db();
    bench_gang *gangs[2];
    pgq one = {0, 1};
    double ms[2000], began;

    if (!opened(db, label)) return;
    started(gangs);
    for (i = 0; i < count + 10; i++) { /* the first ten warm up */
        bench_sleep(0.001 * bench_chance(20, 40));
        began = bench_now();
        put_step(db, &one, i);
        while (bench_through_seen() <= i) bench_sleep(0.0001);
        if (i >= 10) ms[i - 10] = 1000 * (read_at - began);
    }
    stopped(gangs);
    bench_figure(label, bench_quantile(ms, (size_t)count, 0.5), "ms", "", 0, BENCH_SHOWN, 0);
    PQfinish(db);
}
