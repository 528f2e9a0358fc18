/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * scale.c -- the row about many connections: scale.
 */
#include "bench.h"

/* -- scale: claim and complete on a growing number of connections, and what they wait for -- */

#define SCALE_BATCH 100

typedef struct scale_state {
    jobq_pg *pg;
    int64_t next; /* the next worker's id */
} scale_state;

typedef struct scaler {
    jobq_pg *pg;
    PGconn *db;
    jobq_lane lane;
    verb_claim_desc desc;
    verb_result results[SCALE_BATCH];
} scaler;

/* Completes count jobs; repeats it for jobs that another claim had locked for a moment. */
static void scale_settle(scaler *s, size_t count)
{
    jobq_error answers[SCALE_BATCH];
    jobq_pg_error error;
    size_t i, busy;

    while (count > 0) {
        if (verb_settle(s->pg, s->db, s->results, count, answers, &error)) {
            bench_fail("%s", error.message);
        }
        for (i = busy = 0; i < count; i++) {
            if (answers[i] == JOBQ_ERROR_LOST) bench_fail("scale: a lease was lost");
            if (answers[i] == JOBQ_ERROR_BUSY) s->results[busy++] = s->results[i];
        }
        count = busy;
    }
}

/* One claim and its completion. Returns the number of jobs. */
static long scale_once(scaler *s)
{
    verb_batch got;
    jobq_pg_error error;
    size_t i;

    s->desc.number++;
    if (verb_claim(s->pg, s->db, &s->desc, &got, &error)) bench_fail("%s", error.message);
    memset(s->results, 0, sizeof s->results);
    for (i = 0; i < got.count; i++) {
        s->results[i].id = got.jobs[i].id;
        s->results[i].worker = s->desc.worker;
        s->results[i].claim = s->desc.number;
        s->results[i].decision.state = JOBQ_STATE_SUCCEEDED;
        bench_lane_move(&s->lane, &got.jobs[i]);
    }
    verb_batch_clear(&got);
    scale_settle(s, i);
    return (long)i;
}

static pthread_key_t scale_key;

static void scale_free(void *value)
{
    free(value);
}

static scaler *scale_of_thread(PGconn *db, scale_state *state)
{
    static const char *const queues[] = {BENCH_QUEUE};
    scaler *s = (scaler *)pthread_getspecific(scale_key);
    jobq_pg_error error;

    if (s != NULL && s->db == db) return s;
    s = (scaler *)calloc(1, sizeof *s);
    if (s == NULL || pthread_setspecific(scale_key, s) != 0) bench_fail("out of memory");
    s->pg = state->pg;
    s->db = db;
    s->lane.queue = 1;
    s->lane.after_at_us = INT64_MIN;
    s->desc.worker = __atomic_fetch_add(&state->next, 1, __ATOMIC_RELAXED);
    s->desc.lanes = &s->lane;
    s->desc.lane_count = 1;
    s->desc.limit = SCALE_BATCH;
    s->desc.relaxed = true;
    if (verb_register(s->pg, db, s->desc.worker, "bench", 600000000, queues, 1, NULL, &error)) {
        bench_fail("%s", error.message);
    }
    return s;
}

static long scale_step(PGconn *db, void *state, long step)
{
    (void)step;
    return scale_once(scale_of_thread(db, (scale_state *)state));
}

/* Samples what the busy connections wait for most often. */
static void scale_waits(PGconn *db, double seconds, char *out, size_t size)
{
    double until = bench_now() + seconds;
    PGresult *res;

    bench_sql(db, "CREATE TEMP TABLE IF NOT EXISTS seen (event text)");
    bench_sql(db, "TRUNCATE seen");
    while (bench_now() < until) {
        bench_sql(db, "INSERT INTO seen SELECT coalesce(wait_event_type || ':' || wait_event, "
                      "'run') FROM pg_stat_activity WHERE state = 'active' AND pid <> "
                      "pg_backend_pid() AND backend_type = 'client backend'");
        bench_sleep(0.02);
    }
    res = PQexec(db, "SELECT string_agg(event || ' ' || share || ' %', ', ') FROM (SELECT event, "
                     "(100 * count(*) / sum(count(*)) OVER ())::int AS share FROM seen "
                     "GROUP BY event ORDER BY 2 DESC LIMIT 4) s");
    snprintf(out, size, "%s", PQntuples(res) == 1 ? PQgetvalue(res, 0, 0) : "");
    PQclear(res);
}

void row_scale(void)
{
    static const int connections[] = {1, 2, 4, 8, 16};
    double seconds = bench_long ? 10 : 2, one = 0;
    PGconn *db = bench_db();
    size_t i;

    pthread_key_create(&scale_key, scale_free);
    for (i = 0; i < sizeof connections / sizeof connections[0]; i++) {
        scale_state state = {bench_schema(db, true), 100};
        char label[64], waits[160];
        bench_gang *gang;
        double started, rate;
        long rows;
        bench_load(db, "jobq.job", (long)(80000 * seconds));
        bench_wal_reset(db);
        started = bench_now();
        gang = bench_gang_start(connections[i], scale_step, &state, 1L << 40, seconds);
        scale_waits(db, seconds * 0.9, waits, sizeof waits);
        rows = bench_gang_end(gang);
        rate = (double)rows / (bench_now() - started);
        if (bench_number(db, "SELECT count(DISTINCT id) FROM jobq.history") != (double)rows) {
            bench_fail("scale: history is wrong");
        }
        if (i == 0) one = rate;
        snprintf(label, sizeof label, "claim 100 and complete, %d connection%s", connections[i],
                 i == 0 ? "" : "s");
        bench_figure(label, rate, "jobs/s", "1 connection", one, BENCH_SHOWN, 0);
        bench_note("  they", waits);
        jobq_pg_close(state.pg);
    }
    PQfinish(db);
}
