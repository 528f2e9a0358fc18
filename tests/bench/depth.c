/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * depth.c -- rows about big tables: depth (claims among millions of other jobs), look (lists and
 * counts of millions), size (a table in steady use).
 */
#include "bench.h"

/* -- depth: claim of 100, warm -- */

#define CLAIMS 30

typedef enum load { LOAD_FEW, LOAD_WAITING, LOAD_SCHEDULED, LOAD_FOREIGN } load;

/* 10,000 ready jobs, and many others: ready after them, scheduled, or of another kind before
 * them. */
static void load_depth(PGconn *db, load what, long many)
{
    static const char text[] =
        "INSERT INTO jobq.job (queue_id, kind_id, run_at, payload) SELECT 1, %d, "
        "%s, '{\"text\": \"%0*d\"}' FROM generate_series(1, %ld) AS i";

    if (what == LOAD_FOREIGN) {
        bench_sql(db, text, 2, "now() - interval '1 hour'", BENCH_PAYLOAD - 12, 0, many);
    }
    bench_sql(db, text, 1, "now()", BENCH_PAYLOAD - 12, 0, 10000L);
    if (what == LOAD_WAITING) bench_sql(db, text, 1, "now()", BENCH_PAYLOAD - 12, 0, many);
    if (what == LOAD_SCHEDULED) {
        bench_sql(db, text, 1, "now() + i * interval '1 second'", BENCH_PAYLOAD - 12, 0, many);
    }
}

/* Claims and settles on one connection; the first claim has no bound. *first: milliseconds of the
 * first claim. Returns the median of the others. */
static double claims_ms(jobq_pg *pg, PGconn *db, int64_t worker, bool empty, double *first)
{
    static int64_t number;
    static const int32_t kinds[] = {1};
    jobq_lane lane = {1, 0, 0, false, INT64_MIN, 0, 0, 0};
    double ms[CLAIMS], started;
    verb_claim_desc desc;
    verb_result results[100];
    verb_batch got;
    jobq_pg_error error;
    size_t i;
    int n;

    memset(&desc, 0, sizeof desc);
    desc.worker = worker;
    desc.lanes = &lane;
    desc.lane_count = 1;
    desc.kinds = kinds;
    desc.kind_count = 1;
    desc.limit = 100;
    desc.relaxed = true;
    for (n = 0; n < CLAIMS; n++) {
        desc.number = ++number;
        started = bench_now();
        if (verb_claim(pg, db, &desc, &got, &error)) bench_fail("%s", error.message);
        ms[n] = 1000 * (bench_now() - started);
        memset(results, 0, sizeof results);
        for (i = 0; i < got.count; i++) {
            results[i].id = got.jobs[i].id;
            results[i].worker = worker;
            results[i].claim = desc.number;
            results[i].decision.state = JOBQ_STATE_SUCCEEDED;
            if (got.jobs[i].kind != 1) bench_fail("depth: a job of another kind was claimed");
            bench_lane_move(&lane, &got.jobs[i]);
        }
        if (got.count != (empty ? 0 : 100))
            bench_fail("depth: a claim returned %d jobs", (int)got.count);
        if (got.count > 0 && verb_settle(pg, db, results, got.count, NULL, &error)) {
            bench_fail("%s", error.message);
        }
        verb_batch_clear(&got);
    }
    *first = ms[0];
    return bench_quantile(ms + 5, CLAIMS - 5, 0.5);
}

/* The same loaded table in situations that once led to a bad plan. */
static void depth_of(PGconn *db, load what, long many, double ms[4], double first[4])
{
    static const char *const queues[] = {BENCH_QUEUE};
    jobq_pg *pg = bench_schema(db, false);
    PGconn *old = bench_db(), *fresh;
    jobq_pg_error error;
    double ignored;
    int i;

    bench_sql(db, "SELECT jobq.queue_set('" BENCH_QUEUE "', kinds => '{foreign}')");
    bench_sql(db, "ALTER TABLE jobq.job SET (autovacuum_enabled = off)");
    if (verb_register(pg, NULL, 77, "bench", 600000000, queues, 1, NULL, &error)) {
        bench_fail("%s", error.message);
    }
    for (i = 0; i < 3; i++) claims_ms(pg, old, 77, true, &ignored);
    bench_wal_reset(db);
    load_depth(db, what, many);
    bench_sql(db, "CHECKPOINT"); /* or the disk would still be writing GBs of the load */
    fresh = bench_db();
    ms[1] = claims_ms(pg, fresh, 77, false, &first[1]);
    PQfinish(fresh);
    ms[2] = claims_ms(pg, old, 77, false, &first[2]);
    PQfinish(old);
    fresh = bench_db();
    bench_sql(fresh, "SET plan_cache_mode = force_generic_plan");
    ms[3] = claims_ms(pg, fresh, 77, false, &first[3]);
    PQfinish(fresh);
    bench_sql(db, "VACUUM ANALYZE jobq.job");
    load_depth(db, LOAD_FEW, 0);
    fresh = bench_db();
    ms[0] = claims_ms(pg, fresh, 77, false, &first[0]);
    PQfinish(fresh);
    jobq_pg_close(pg);
}

/* Compares one load with few jobs, measured before and after it, because a machine's speed
 * varies. */
static void depth_row(PGconn *db, load what, long count, FILE *data)
{
    static const char *const traps[] = {"", ", never analysed", ", planned when empty",
                                        ", generic"};
    static const char *const names[] = {"10,000 waiting", "waiting", "scheduled",
                                        "of another kind in front"};
    double few[4], few_first[4], after[4], after_first[4], ms[4], first[4], floor;
    char label[96];
    int trap;

    depth_of(db, LOAD_FEW, 0, few, few_first);
    depth_of(db, what, count, ms, first);
    depth_of(db, LOAD_FEW, 0, after, after_first);
    floor = (few[0] + after[0]) / 2;
    for (trap = 0; trap < 4; trap++) {
        snprintf(label, sizeof label, "claim of 100: %ld %s%s", count, names[what], traps[trap]);
        bench_figure(label, 1000 / ms[trap], "claims/s", "10,000 waiting", 1000 / floor,
                     BENCH_RATIO_AT_LEAST, 0.9);
        if (trap < 2) {
            bench_figure("  the claim without a bound", first[trap], "ms", "10,000 waiting",
                         (few_first[trap] + after_first[trap]) / 2, BENCH_SHOWN, 0);
        }
        fprintf(data, "%s%s\t%g\t%g\n", names[what], traps[trap], ms[trap], floor);
    }
}

void row_depth(void)
{
    long many = bench_long ? 10000000 : 300000;
    PGconn *db = bench_db();
    FILE *data = bench_data("depth");

    depth_row(db, LOAD_WAITING, many, data);
    depth_row(db, LOAD_SCHEDULED, many, data);
    depth_row(db, LOAD_FOREIGN, bench_long ? 1000000 : many, data);
    fclose(data);
    PQfinish(db);
}

/* -- look: what a person or a monitor asks about a long queue -- */

#define LOOKS 20
#define PAGE 100

static double list_ms(jobq_pg_table *jobs, const char *where, const char *order, int64_t after)
{
    double ms[LOOKS], started;
    jobq_pg_job_row row;
    jobq_pg_query query;
    jobq_pg_rows rows;
    jobq_pg_error error;
    int i;

    memset(&query, 0, sizeof query);
    memset(&row, 0, sizeof row);
    row.facts.id = after;
    row.queue = jobq_str_from(BENCH_QUEUE);
    query.where = where;
    query.like = &row;
    query.order = order;
    query.after = after == 0 ? NULL : &row;
    query.limit = PAGE;
    for (i = 0; i < LOOKS; i++) {
        started = bench_now();
        if (jobq_pg_table_list(jobs, NULL, &query, &rows, &error)) bench_fail("%s", error.message);
        ms[i] = 1000 * (bench_now() - started);
        if (rows.count != PAGE) bench_fail("look: a page of %d jobs", (int)rows.count);
        jobq_pg_rows_clear(&rows);
    }
    return bench_quantile(ms, LOOKS, 0.5);
}

static double counts_ms(jobq_pg *pg, long many)
{
    const jobq_pg_queue_row *row, like = {.queue = {BENCH_QUEUE, sizeof BENCH_QUEUE - 1}};
    double ms[LOOKS], started;
    jobq_pg_table *queues;
    jobq_pg_error error;
    jobq_pg_rows rows;
    int i;

    if (jobq_pg_table_open(&queues, pg, NULL, jobq_pg_view_desc(JOBQ_PG_VIEW_QUEUES, false),
                           &error)) bench_fail("%s", error.message);
    for (i = 0; i < LOOKS; i++) {
        started = bench_now();
        if (jobq_pg_table_get(queues, NULL, NULL, &like, &rows, &error))
            bench_fail("%s", error.message);
        ms[i] = 1000 * (bench_now() - started);
        row = (const jobq_pg_queue_row *)rows.rows;
        if (row->exact ? row->ready + row->scheduled != many
                       : row->ready < many / 4 || row->ready > many)
            bench_fail("look: %ld ready of %ld", (long)row->ready, many);
        jobq_pg_rows_clear(&rows);
    }
    jobq_pg_table_close(queues);
    return bench_quantile(ms, LOOKS, 0.5);
}

static double peek_ms(PGconn *db)
{
    double ms[LOOKS], started;
    int i;

    for (i = 0; i < LOOKS; i++) {
        started = bench_now();
        if (bench_number(db, "SELECT count(*) FROM jobq.peek(at_most => %d)", PAGE) != PAGE)
            bench_fail("look: peek returned too few jobs");
        ms[i] = 1000 * (bench_now() - started);
    }
    return bench_quantile(ms, LOOKS, 0.5);
}

enum { LOOK_FIRST, LOOK_LATER, LOOK_QUEUE, LOOK_LAST, LOOK_PEEK, LOOK_COUNTS, LOOK_COUNT };

/* Half of the jobs are ready, half are scheduled. */
static void looks_of(PGconn *db, long many, double ms[LOOK_COUNT])
{
    jobq_pg *pg = bench_schema(db, true);
    jobq_pg_table *jobs;
    jobq_pg_error error;

    bench_load(db, "jobq.job", many / 2);
    bench_sql(db, "INSERT INTO jobq.job (queue_id, kind_id, run_at) SELECT 1, 1, "
                  "now() + i * interval '1 second' FROM generate_series(1, %ld) i", many / 2);
    bench_sql(db, "ANALYZE jobq.job");
    if (jobq_pg_table_open(&jobs, pg, NULL, jobq_pg_view_desc(JOBQ_PG_VIEW_JOBS, true), &error))
        bench_fail("%s", error.message);
    ms[LOOK_FIRST] = list_ms(jobs, NULL, NULL, 0);
    ms[LOOK_LATER] = list_ms(jobs, NULL, NULL, many / 2);
    ms[LOOK_QUEUE] = list_ms(jobs, "queue", NULL, many / 2);
    ms[LOOK_LAST] = list_ms(jobs, NULL, "-id", 0);
    ms[LOOK_PEEK] = peek_ms(db);
    ms[LOOK_COUNTS] = counts_ms(pg, many);
    jobq_pg_table_close(jobs);
    jobq_pg_close(pg);
}

void row_look(void)
{
    static const char *const labels[] = {"first page of 100", "a later page", "a page of a queue",
                                         "the newest 100", "what is claimed next, 100",
                                         "its counts"};
    long many = bench_long ? 10000000 : 300000;
    double few[LOOK_COUNT], ms[LOOK_COUNT];
    PGconn *db = bench_db();
    char label[96];
    int i;

    looks_of(db, 20000, few);
    looks_of(db, many, ms);
    for (i = 0; i < LOOK_COUNT; i++) {
        snprintf(label, sizeof label, "of %ld jobs: %s", many, labels[i]);
        bench_figure(label, ms[i], "ms", "of 20,000", few[i], BENCH_AT_MOST,
                     i == LOOK_COUNTS ? 50 : 10);
    }
    PQfinish(db);
}

/* -- size: a table in steady use -- */

typedef struct paced {
    jobq_pg *pg;
    double started, rate;
} paced;

static long paced_step(PGconn *db, void *state, long step)
{
    static const jobq_pg_job none;
    const paced *p = (const paced *)state;
    char payload[BENCH_PAYLOAD + 1];
    jobq_pg_job jobs[BENCH_BATCH];
    jobq_pg_error error;
    int i;

    bench_sleep(p->started + (double)(step * BENCH_BATCH) / p->rate - bench_now());
    bench_payload(payload, step);
    for (i = 0; i < BENCH_BATCH; i++) {
        jobs[i] = none;
        jobs[i].queue = BENCH_QUEUE;
        jobs[i].kind = BENCH_KIND;
        jobs[i].payload.ptr = payload;
        jobs[i].payload.len = BENCH_PAYLOAD;
    }
    if (jobq_pg_enqueue_many(p->pg, db, jobs, BENCH_BATCH, NULL, &error)) {
        bench_fail("%s", error.message);
    }
    return BENCH_BATCH;
}

/* The first vacuums empty index pages and the next ones free them. Until then the indexes grow, so
 * the short form compares from its second half. */
void row_size(void)
{
    double seconds = bench_long ? 600 : 36, early = bench_long ? 60 : 18;
    double rate = bench_long ? 60000 : 30000, heap = 0, index = 0, heap_early = 0, index_early = 0;
    double most_behind = 0;
    PGconn *db = bench_db();
    paced state;
    bench_crew crew;
    bench_gang *gang;
    jobq_loop_config loop;
    FILE *data = bench_data("size");
    long rows;

    memset(&loop, 0, sizeof loop);
    loop.threads = 1;
    state.pg = bench_schema(db, false);
    state.rate = rate;
    bench_seen_reset((long)(rate * seconds * 1.1));
    bench_crew_start(&crew, state.pg, 2, bench_noop, &loop);
    bench_sleep(0.3);
    state.started = bench_now();
    gang = bench_gang_start(2, paced_step, &state, (long)(rate * seconds / BENCH_BATCH), seconds);
    while (bench_now() - state.started < seconds) {
        double t = bench_now() - state.started;
        double behind = (double)(bench_gang_rows(gang) - bench_crew_flushed(&crew));
        heap = bench_number(db, "SELECT pg_relation_size('jobq.job')") / 1e6;
        index = bench_number(db, "SELECT pg_indexes_size('jobq.job')") / 1e6;
        if (t < early) {
            heap_early = heap;
            index_early = index;
        }
        most_behind = behind > most_behind ? behind : most_behind;
        fprintf(data, "%g\t%g\t%g\t%g\n", t, heap, index, behind);
        bench_sleep(0.25);
    }
    rows = bench_gang_end(gang);
    while (bench_number(db, "SELECT count(*) FROM jobq.job") > 0) bench_sleep(0.05);
    bench_crew_stop(&crew);
    if (rows < (long)(rate * seconds * 1.1)) bench_seen_reset(0);
    bench_figure("steady use: jobs a second", (double)rows / seconds, "jobs/s", "asked for", rate,
                 BENCH_RATIO_AT_LEAST, 0.98);
    bench_figure("steady use: heap at the end", heap, "MB", "early", heap_early,
                 BENCH_RATIO_AT_MOST, 1.1);
    bench_figure("steady use: indexes at the end", index, "MB", "early", index_early,
                 BENCH_RATIO_AT_MOST, 1.1);
    bench_figure("steady use: largest backlog", most_behind, "jobs", "", 0, BENCH_SHOWN, 0);
    jobq_pg_close(state.pg);
    fclose(data);
    PQfinish(db);
}
