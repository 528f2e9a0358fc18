/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * ticks.c -- rows about schedules and known keys: fires, ticks, replace.
 */
#include "bench.h"

/* -- a million schedules -- */

#define DUE 20000

static long fire_step(PGconn *db, void *state, long step)
{
    (void)state;
    (void)step;
    return (long)bench_number(db, "SELECT fired FROM jobq._tick('{1}', 100)");
}

/* Of a million schedules, half of them cron, the due ones are all of one sort. */
void row_fires(void)
{
    static const struct {
        const char *label, *which;
        bench_sense sense;
    } sorts[] = {{"a million schedules: fires, cron in a zone", "cron IS NOT NULL", BENCH_AT_LEAST},
                 {"  intervals", "cron IS NULL", BENCH_SHOWN}};
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    double rate;
    size_t i;

    bench_sql(db, "INSERT INTO jobq.schedule (queue_id, kind_id, name, zone, cron, parsed, "
                  "every_us, tick_at, next_at) SELECT 1, 1, 'schedule ' || n, 'Europe/Berlin', "
                  "CASE WHEN n %% 2 = 0 THEN c.cron END, CASE WHEN n %% 2 = 0 THEN c.parsed END, "
                  "CASE WHEN n %% 2 = 1 THEN 300000000 END, t.at, t.at "
                  "FROM generate_series(1, 1000000) n, LATERAL (SELECT now() + interval '1 day' "
                  "+ n * interval '1 ms' AS at) t, (SELECT cron, jobq._cron_parse(cron) AS parsed "
                  "FROM (VALUES ('30 2 * * 1-5')) v (cron) OFFSET 0) c");
    for (i = 0; i < 2; i++) {
        bench_sql(db, "TRUNCATE jobq.job");
        bench_sql(db, "UPDATE jobq.schedule SET tick_at = now() - interval '1 s', next_at = now() "
                      "- interval '1 s' WHERE id IN (SELECT id FROM jobq.schedule WHERE %s "
                      "ORDER BY random() LIMIT %d)", sorts[i].which, DUE);
        bench_sql(db, "VACUUM ANALYZE jobq.schedule");
        bench_wal_reset(db);
        rate = bench_gang_run(2, fire_step, NULL, 1L << 40, 600);
        if (bench_number(db, "SELECT count(DISTINCT headers ->> 'schedule') FROM jobq.job") != DUE)
            bench_fail("fires: not %d schedules fired", DUE);
        bench_figure(sorts[i].label, rate, "fires/s", "", 0, sorts[i].sense, 5000);
    }
    jobq_pg_close(pg);
    PQfinish(db);
}

/* -- a hundred schedules of every second -- */

#define TICKS 1000

static double tick_late[TICKS];
static long tick_count;

static jobq_outcome late_after_tick(jobq_call *call)
{
    int64_t late_us = bench_wall_us() % 60000000;
    char text[200];
    const char *tick;
    int second = 0, us = 0;
    long n = __atomic_fetch_add(&tick_count, 1, __ATOMIC_RELAXED);

    snprintf(text, sizeof text, "%.*s", (int)call->headers.len, call->headers.ptr);
    tick = strstr(text, "\"tick\"");
    if (tick == NULL || sscanf(tick, "%*[^T]T%*d:%*d:%d.%d", &second, &us) != 2)
        bench_fail("ticks: %s", text);
    late_us -= second * 1000000 + us;
    if (n < TICKS) tick_late[n] = (double)((late_us + 60000000) % 60000000) / 1000;
    return JOBQ_OUTCOME_SUCCESS;
}

static void ticks(int apart_ms, const char *label, bench_sense sense)
{
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    bench_crew crew;

    tick_count = 0;
    bench_sql(db, "SELECT jobq.schedule('s' || n, '" BENCH_QUEUE "', '" BENCH_KIND "', every => "
                  "'1 second', starts_at => date_trunc('second', now()) + interval '2 s' "
                  "+ n * interval '%d ms') FROM generate_series(0, 99) n", apart_ms);
    bench_crew_start(&crew, pg, 1, late_after_tick, NULL);
    while (__atomic_load_n(&tick_count, __ATOMIC_ACQUIRE) < TICKS) bench_sleep(0.1);
    bench_sql(db, "UPDATE jobq.schedule SET paused_at = now()");
    bench_crew_stop(&crew);
    jobq_pg_close(pg);
    bench_figure(label, bench_quantile(tick_late, TICKS, 0.5), "ms", "", 0, sense, 5);
    bench_figure("  p99", bench_quantile(tick_late, TICKS, 0.99), "ms", "", 0, BENCH_SHOWN, 0);
    PQfinish(db);
}

/* From the tick to the handler of its job. A fire of many schedules commits all their jobs. */
void row_ticks(void)
{
    ticks(10, "lateness of 100 ticks a second, 10 ms apart, p50", BENCH_AT_MOST);
    ticks(0, "lateness of 100 ticks at the same time, p50", BENCH_SHOWN);
}

/* -- known keys -- */

#define KEYS 10000

typedef struct keyed {
    jobq_pg *pg;
    jobq_known on_known;
    long count;
} keyed;

/* A new key each time, or one of KEYS that are all known. */
static long keyed_step(PGconn *db, void *state, long step)
{
    keyed *k = (keyed *)state;
    long n = __atomic_fetch_add(&k->count, 1, __ATOMIC_RELAXED);
    char payload[BENCH_PAYLOAD + 1], key[40];
    jobq_pg_job job;
    jobq_pg_error error;
    jobq_error answer;

    memset(&job, 0, sizeof job);
    bench_payload(payload, step);
    snprintf(key, sizeof key, "key-%ld", k->on_known == JOBQ_KNOWN_LEAVE ? n : n * 7919 % KEYS);
    job.queue = BENCH_QUEUE;
    job.kind = BENCH_KIND;
    job.payload.ptr = payload;
    job.payload.len = BENCH_PAYLOAD;
    job.key = key;
    job.on_known = k->on_known;
    answer = jobq_pg_enqueue(k->pg, db, &job, NULL, &error);
    if (answer != JOBQ_OK) bench_fail("%s", error.message);
    return 1;
}

void row_replace(void)
{
    double seconds = bench_long ? 15 : 2.4, plain = 0, replaced = 0;
    int slice, slices = 3;
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    keyed fresh = {pg, JOBQ_KNOWN_LEAVE, 0}, known = {pg, JOBQ_KNOWN_REPLACE, 0};

    bench_gang_run(8, keyed_step, &fresh, KEYS, 600);
    bench_wal_reset(db);
    for (slice = 0; slice < slices; slice++) { /* in turns, because speed varies */
        plain += bench_gang_run(1, keyed_step, &fresh, 1L << 40, seconds / slices) / slices;
        replaced += bench_gang_run(1, keyed_step, &known, 1L << 40, seconds / slices) / slices;
    }
    jobq_pg_close(pg);
    bench_figure("on_known replace, 1 producer", replaced, "jobs/s", "plain keyed enqueue", plain,
                 BENCH_RATIO_AT_LEAST, 0.6);
    PQfinish(db);
}
