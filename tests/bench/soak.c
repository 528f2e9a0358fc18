/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * soak.c -- soak: jobs and an outbox together at half of their peak for BENCH_MINUTES (30), with a
 * snapshot held for the middle third. Memory, table sizes and waiting times must come back to what
 * they were: it compares the last sixth of the time with the second sixth. A plain writer beside
 * them, which only inserts and deletes rows, shows how long the server itself stalls.
 */
#include "bench.h"

#define SOAK_BOX "box"
#define SOAK_PARTITIONS 4
#define SOAK_BUCKETS 256  /* of a histogram: 8 for each doubling of microseconds */
#define SOAK_SAMPLES 4096

typedef enum soak_what { SOAK_JOBS, SOAK_MESSAGES, SOAK_PLAIN, SOAK_WHATS } soak_what;

#define SOAK_AHEAD 20000
#define SOAK_PLAIN_RATE 2000 /* rows a second that the plain writer inserts and deletes */

/* Producers for jobs, for messages and for plain rows. Handlers count and time jobs and messages;
 * the plain writer counts and times its rows when it has deleted them. */
typedef struct soak_lane {
    jobq_pg *pg;
    soak_what what;
    double rate, started;     /* rate 0: as fast as the worker, SOAK_AHEAD ahead at most */
    long sent, done;          /* atomic */
    long in_time;             /* done before the producers ended */
    long waits[SOAK_BUCKETS]; /* atomic: waiting times for a handler since the last sample */
    int64_t longest_us;       /* atomic: the longest of the whole run */
    int64_t last_us;          /* atomic: when the last one was done */
    int64_t stall_us;         /* atomic: the longest time without any */
    int64_t stalled_us;       /* atomic: when that ended */
} soak_lane;

static soak_lane soak[SOAK_WHATS];
static double soak_began; /* on the wall clock */

typedef enum soak_series {
    SOAK_JOB_HEAP, SOAK_JOB_INDEX, SOAK_BOX_SIZE, SOAK_HISTORY, SOAK_DEAD, SOAK_MEMORY,
    SOAK_JOB_P50, SOAK_JOB_P99, SOAK_BOX_P50, SOAK_BOX_P99, SOAK_JOB_RATE, SOAK_BOX_RATE,
    SOAK_BACKLOG, SOAK_SERIES
} soak_series;

static double soak_points[SOAK_SAMPLES][SOAK_SERIES], soak_at[SOAK_SAMPLES];
static int soak_count;

/* -- handlers -- */

static bool soak_raise(int64_t *most, int64_t value)
{
    int64_t old = __atomic_load_n(most, __ATOMIC_RELAXED);

    while (value > old && !__atomic_compare_exchange_n(most, &old, value, true, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {}
    return value > old;
}

static void soak_seen(soak_what what, const char *payload)
{
    int64_t now = bench_wall_us(), waited = now - strtoll(payload + 7, NULL, 10); /* {"at": N, */
    int64_t last = __atomic_exchange_n(&soak[what].last_us, now, __ATOMIC_RELAXED);
    int bucket = 0;

    soak_raise(&soak[what].longest_us, waited);
    if (last > 0 && soak_raise(&soak[what].stall_us, now - last))
        __atomic_store_n(&soak[what].stalled_us, now, __ATOMIC_RELAXED);
    while (waited > 16 && bucket < SOAK_BUCKETS - 8) waited /= 2, bucket += 8;
    if (waited > 8) bucket += (int)waited - 8;
    __atomic_fetch_add(&soak[what].waits[bucket], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&soak[what].done, 1, __ATOMIC_RELAXED);
}

static jobq_outcome soak_job(jobq_call *call)
{
    soak_seen(SOAK_JOBS, call->payload.ptr);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_result soak_message(jobq_delivery *delivery, const jobq_message *message)
{
    (void)delivery;
    soak_seen(SOAK_MESSAGES, message->payload.ptr);
    return JOBQ_RESULT_SUCCESS;
}

/* A quantile of the histogram in milliseconds. clear: empties the histogram. */
static double soak_wait_ms(soak_what what, double q, bool clear)
{
    long total = 0, below = 0, counts[SOAK_BUCKETS];
    int i, at;

    for (i = 0; i < SOAK_BUCKETS; i++) {
        counts[i] = clear ? __atomic_exchange_n(&soak[what].waits[i], 0, __ATOMIC_RELAXED)
                          : __atomic_load_n(&soak[what].waits[i], __ATOMIC_RELAXED);
        total += counts[i];
    }
    for (at = 0; at < SOAK_BUCKETS - 1 && (double)(below + counts[at]) <= q * (double)total; at++)
        below += counts[at];
    return total == 0 ? 0 : (8.0 + at % 8) * (double)(1L << (at / 8)) / 1000;
}

/* -- producers -- */

static void soak_payload(char out[BENCH_PAYLOAD + 1])
{
    int head = snprintf(out, BENCH_PAYLOAD + 1, "{\"at\": %lld, \"text\": \"",
                        (long long)bench_wall_us());

    memset(out + head, 'x', (size_t)(BENCH_PAYLOAD - head));
    memcpy(out + BENCH_PAYLOAD - 2, "\"}", 3);
}

static void soak_send(soak_lane *lane, PGconn *db, long step)
{
    static const jobq_pg_job no_job;
    static const jobq_pg_message no_message;
    jobq_pg_job jobs[100];
    jobq_pg_message messages[100];
    char payload[BENCH_PAYLOAD + 1];
    jobq_pg_error error;
    jobq_error code;
    int i;

    soak_payload(payload);
    for (i = 0; i < 100; i++) {
        jobs[i] = no_job;
        jobs[i].queue = BENCH_QUEUE;
        jobs[i].kind = BENCH_KIND;
        messages[i] = no_message;
        messages[i].queue = SOAK_BOX;
        messages[i].partition = (int)((step + i) % SOAK_PARTITIONS);
        jobs[i].payload.ptr = messages[i].payload.ptr = payload;
        jobs[i].payload.len = messages[i].payload.len = BENCH_PAYLOAD;
    }
    code = lane->what == SOAK_JOBS
               ? jobq_pg_enqueue_many(lane->pg, db, jobs, 100, NULL, &error)
               : jobq_pg_outbox_enqueue_many(lane->pg, db, messages, 100, NULL, &error);
    if (code != JOBQ_OK) bench_fail("soak: %s", error.message);
    __atomic_fetch_add(&lane->sent, 100, __ATOMIC_RELAXED);
}

/* Planning the DELETE each time would walk the dead rows at the end of the index. currval is in a
 * subquery because it is volatile: in the condition itself it would make each DELETE read the whole
 * table. */
static void soak_write(PGconn *db, long step)
{
    char payload[BENCH_PAYLOAD + 1];
    int i;

    if (step == 0)
        bench_sql(db, "SET plan_cache_mode = force_generic_plan; PREPARE gone AS DELETE FROM plain "
                      "WHERE id > (SELECT currval('plain_id_seq')) - 100");
    soak_payload(payload);
    bench_sql(db, "INSERT INTO plain (payload) SELECT '%s' FROM generate_series(1, 100)", payload);
    bench_sql(db, "EXECUTE gone");
    for (i = 0; i < 100; i++) soak_seen(SOAK_PLAIN, payload);
    __atomic_fetch_add(&soak[SOAK_PLAIN].sent, 100, __ATOMIC_RELAXED);
}

static long soak_ahead(const soak_lane *lane)
{
    return __atomic_load_n(&lane->sent, __ATOMIC_RELAXED) -
           __atomic_load_n(&lane->done, __ATOMIC_RELAXED);
}

static long soak_step(PGconn *db, void *state, long step)
{
    soak_lane *lane = (soak_lane *)state;

    if (lane->rate > 0)
        bench_sleep(lane->started + (double)(step * 100) / lane->rate - bench_now());
    else if (soak_ahead(lane) > SOAK_AHEAD) {
        bench_sleep(0.001);
        return 1;
    }
    if (lane->what == SOAK_PLAIN) soak_write(db, step);
    else soak_send(lane, db, step);
    return 100;
}

/* -- samples -- */

static double soak_memory_mb(void)
{
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (file == NULL) return 0;
    if (fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

static double soak_size_mb(PGconn *db, const char *tables)
{
    return bench_number(db, "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN "
                            "pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'jobq' "
                            "AND c.relkind = 'r' AND c.relname ~ '%s'", tables) / 1e6;
}

static void soak_sample(PGconn *db, double at, double step, long done[SOAK_WHATS])
{
    double *p = soak_points[soak_count];
    long now[SOAK_WHATS];
    int i;

    for (i = 0; i < SOAK_WHATS; i++) now[i] = __atomic_load_n(&soak[i].done, __ATOMIC_RELAXED);
    p[SOAK_JOB_HEAP] = bench_number(db, "SELECT pg_relation_size('jobq.job')") / 1e6;
    p[SOAK_JOB_INDEX] = bench_number(db, "SELECT pg_indexes_size('jobq.job')") / 1e6;
    p[SOAK_BOX_SIZE] = soak_size_mb(db, "^(message|partition)");
    p[SOAK_HISTORY] = soak_size_mb(db, "^history");
    p[SOAK_DEAD] = bench_number(db, "SELECT sum(n_dead_tup) FROM pg_stat_all_tables WHERE "
                                    "schemaname = 'jobq'") / 1000;
    p[SOAK_MEMORY] = soak_memory_mb();
    p[SOAK_JOB_P50] = soak_wait_ms(SOAK_JOBS, 0.5, false);
    p[SOAK_JOB_P99] = soak_wait_ms(SOAK_JOBS, 0.99, true);
    p[SOAK_BOX_P50] = soak_wait_ms(SOAK_MESSAGES, 0.5, false);
    p[SOAK_BOX_P99] = soak_wait_ms(SOAK_MESSAGES, 0.99, true);
    p[SOAK_JOB_RATE] = (double)(now[0] - done[0]) / step;
    p[SOAK_BOX_RATE] = (double)(now[1] - done[1]) / step;
    p[SOAK_BACKLOG] = (double)(soak_ahead(&soak[0]) + soak_ahead(&soak[1]));
    memcpy(done, now, sizeof now);
    soak_at[soak_count++] = at;
}

/* The median of a series between two points of the run (0 to 1). */
static double soak_median(soak_series series, double from, double until)
{
    double values[SOAK_SAMPLES];
    size_t count = 0;
    int i;

    for (i = 0; i < soak_count; i++) {
        double share = soak_at[i] / soak_at[soak_count - 1];
        if (share >= from && share < until) values[count++] = soak_points[i][series];
    }
    return bench_quantile(values, count, 0.5);
}

/* -- the row -- */

/* Jobs and messages for some seconds. At the end everything that was sent has been worked off. */
static void soak_run(jobq_pg *pg, PGconn *db, double seconds, const double rates[SOAK_WHATS],
                     double step, FILE *data)
{
    PGconn *holder = bench_db();
    double started = bench_now(), at = 0, next = step;
    long done[SOAK_WHATS] = {0, 0, 0};
    bench_gang *gangs[SOAK_WHATS];
    int i;

    memset(soak, 0, sizeof soak);
    soak_began = (double)bench_wall_us() / 1e6;
    for (i = 0; i < SOAK_WHATS; i++) {
        soak[i].pg = pg;
        soak[i].what = (soak_what)i;
        soak[i].rate = i == SOAK_PLAIN ? SOAK_PLAIN_RATE : rates == NULL ? 0 : rates[i];
        soak[i].started = started;
    }
    for (i = 0; i < SOAK_WHATS; i++)
        gangs[i] = bench_gang_start(i == SOAK_PLAIN ? 1 : 2, soak_step, &soak[i], 1L << 40,
                                    seconds);
    while (at < seconds) {
        bool third = at >= seconds / 3 && at < 2 * seconds / 3;
        if (data != NULL && third != (PQtransactionStatus(holder) == PQTRANS_INTRANS))
            bench_sql(holder, third ? "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1" : "COMMIT");
        bench_sleep(started + (next < seconds ? next : seconds) - bench_now());
        at = bench_now() - started;
        next += step;
        if (data == NULL || soak_count == SOAK_SAMPLES) continue;
        soak_sample(db, at, step, done);
        fprintf(data, "%g", at);
        for (i = 0; i < SOAK_SERIES; i++) fprintf(data, "\t%g", soak_points[soak_count - 1][i]);
        fputc('\n', data);
        fflush(data);
        fprintf(stderr, "\rsoak: %.0f of %.0f s, %.0f jobs/s, %.0f messages/s, backlog %.0f   ", at,
                seconds, soak_points[soak_count - 1][SOAK_JOB_RATE],
                soak_points[soak_count - 1][SOAK_BOX_RATE],
                soak_points[soak_count - 1][SOAK_BACKLOG]);
    }
    for (i = 0; i < SOAK_WHATS; i++) {
        bench_gang_end(gangs[i]);
        soak[i].in_time = __atomic_load_n(&soak[i].done, __ATOMIC_RELAXED);
    }
    while (soak_ahead(&soak[0]) > 0 || soak_ahead(&soak[1]) > 0) {
        if (bench_now() - started > seconds + 120) bench_fail("soak: some work is left");
        bench_sleep(0.01);
    }
    PQfinish(holder);
}

static jobq_pg_worker *soak_worker(jobq_pg *pg, double seconds)
{
    static jobq_pg_handler handler;
    static jobq_pg_receiver receiver;
    jobq_pg_worker_desc desc;
    jobq_pg_worker *worker;
    jobq_pg_error error;

    handler.queue = BENCH_QUEUE;
    handler.kind = BENCH_KIND;
    handler.run[0] = soak_job;
    receiver.queue = SOAK_BOX;
    receiver.each = soak_message;
    receiver.tuning.batch = BENCH_BATCH;
    memset(&desc, 0, sizeof desc);
    desc.handlers = &handler;
    desc.handler_count = 1;
    desc.receivers = &receiver;
    desc.receiver_count = 1;
    desc.loop.threads = 4;
    desc.loop.prune_us = (int64_t)(seconds / 60 * 1e6);
    if (jobq_pg_worker_start(pg, &desc, &worker, &error)) bench_fail("%s", error.message);
    return worker;
}

/* Compares a series in the last sixth with the second sixth. floor: smaller values do not
 * matter. */
static void soak_verdict(soak_series series, const char *label, const char *unit, double most,
                         double floor)
{
    double early = soak_median(series, 1.0 / 6, 1.0 / 3), late = soak_median(series, 5.0 / 6, 1);

    bench_figure(label, late > floor ? late : floor, unit, "before the snapshot",
                 early > floor ? early : floor, BENCH_RATIO_AT_MOST, most);
}

/* A table that has grown stays large, and its room is used again, so its size is constant after the
 * next vacuum. Its size before the snapshot is printed, too. */
static void soak_size(soak_series series, const char *label)
{
    double end = soak_median(series, 5.0 / 6, 1);

    bench_figure(label, end, "MB", "a tenth of the time after the snapshot",
                 soak_median(series, 0.76, 0.83), BENCH_RATIO_AT_MOST, 1.1);
    bench_figure(label, end, "MB", "before the snapshot", soak_median(series, 1.0 / 6, 1.0 / 3),
                 BENCH_SHOWN, 0);
}

static void soak_verdicts(void)
{
    char text[160];

    snprintf(text, sizeof text, "  while it was held: heap %.0f MB, %.0f thousand dead rows, jobs "
             "p50 %.1f ms, messages p50 %.1f ms", soak_median(SOAK_JOB_HEAP, 0.6, 0.66),
             soak_median(SOAK_DEAD, 0.6, 0.66), soak_median(SOAK_JOB_P50, 0.4, 0.66),
             soak_median(SOAK_BOX_P50, 0.4, 0.66));
    bench_note(text, "");
    soak_verdict(SOAK_DEAD, "  dead rows after the snapshot", "thousand", 1.25, 100);
    soak_verdict(SOAK_HISTORY, "  history", "MB", 1.25, 1);
    soak_verdict(SOAK_MEMORY, "  the process' memory", "MB", 1.25, 1);
    soak_verdict(SOAK_JOB_P50, "  jobs, enqueue to handler p50", "ms", 1.25, 2);
    soak_verdict(SOAK_JOB_P99, "  jobs, p99", "ms", 1.5, 10);
    soak_verdict(SOAK_BOX_P50, "  messages, p50", "ms", 1.25, 2);
    soak_verdict(SOAK_BOX_P99, "  messages, p99", "ms", 1.5, 10);
    soak_size(SOAK_JOB_HEAP, "  heap of jobs");
    soak_size(SOAK_JOB_INDEX, "  indexes of jobs");
    soak_size(SOAK_BOX_SIZE, "  the outbox' tables");
}

/* The longest time in which no job, or no message, was begun, beside that in which the plain writer
 * wrote nothing. A job that committed late may wait longer: a lane's bound hides it until the next
 * sweep (see sweep_us in jobq.h). */
static void soak_stalls(void)
{
    static const char *const names[SOAK_PLAIN] = {"jobs", "messages"};
    double plain = (double)soak[SOAK_PLAIN].stall_us / 1e6;
    char label[80];
    int i;

    bench_figure("  longest stall of the plain writer", plain, "s", "", 0, BENCH_SHOWN, 0);
    for (i = 0; i < SOAK_PLAIN; i++) {
        snprintf(label, sizeof label, "  longest stall of %s, beyond that (after %.0f s)", names[i],
                 (double)soak[i].stalled_us / 1e6 - soak_began);
        bench_figure(label, (double)soak[i].stall_us / 1e6 - plain, "s", "", 0, BENCH_AT_MOST, 1);
        snprintf(label, sizeof label, "  longest wait of %s", names[i]);
        bench_figure(label, (double)soak[i].longest_us / 1e6, "s", "the plain writer's",
                     (double)soak[SOAK_PLAIN].longest_us / 1e6, BENCH_SHOWN, 0);
    }
}

void row_soak(void)
{
    const char *minutes = getenv("BENCH_MINUTES");
    double seconds = 60 * (minutes != NULL && atof(minutes) > 0 ? atof(minutes) : 30);
    double rates[SOAK_WHATS], step = seconds / 360 < 1 ? 1 : seconds / 360;
    PGconn *db = bench_db();
    jobq_pg *pg = bench_schema(db, true);
    jobq_pg_worker *worker;
    jobq_pg_error error;
    FILE *data = bench_data("soak");
    int i;

    bench_sql(db, "DROP TABLE IF EXISTS plain; CREATE TABLE plain (id bigserial PRIMARY KEY, "
                  "payload jsonb, created timestamptz DEFAULT now())");
    bench_sql(db, "UPDATE jobq.ring SET keep = interval '1 second' * %g", seconds / 12);
    if (jobq_pg_outbox_register(pg, NULL, SOAK_BOX, SOAK_PARTITIONS, NULL, &error))
        bench_fail("%s", error.message);
    worker = soak_worker(pg, seconds);
    soak_run(pg, db, 12, NULL, 12, NULL);
    for (i = 0; i < SOAK_PLAIN; i++) rates[i] = (double)soak[i].done / 12 / 2;
    soak_run(pg, db, seconds, rates, step, data);
    fclose(data);
    for (i = 0; i < SOAK_PLAIN; i++)
        bench_figure(i == SOAK_JOBS ? "soak: jobs" : "soak: messages",
                     (double)soak[i].in_time / seconds, "a second", "half of the peak", rates[i],
                     BENCH_RATIO_AT_LEAST, 0.98);
    soak_verdicts();
    soak_stalls();
    jobq_pg_worker_stop(worker);
    jobq_pg_worker_wait(worker, NULL);
    jobq_pg_worker_free(worker);
    if (bench_number(db, "SELECT count(*) FROM jobq.job") != 0) bench_fail("soak: jobs left");
    jobq_pg_close(pg);
    PQfinish(db);
}
