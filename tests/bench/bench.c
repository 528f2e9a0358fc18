/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * bench.c -- bench ROW [--long]: measures one row once, on the server of JOBQ_SERVER, and prints
 * its figures, one a line, with tabs between the fields. bench.sh and peers.sh call it.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "bench.h"

bool bench_long, bench_alone;

static const struct {
    const char *name;
    void (*run)(void);
} all[] = {
    {"drain", row_drain},       {"drain-history", row_drain_history}, {"one", row_one},
    {"bulk", row_bulk},         {"single", row_single},               {"latency", row_latency},
    {"wait", row_wait},         {"results", row_results},
    {"schedule", row_schedule}, {"snapshot", row_snapshot},           {"depth", row_depth},
    {"sleepers", row_sleepers}, {"idle", row_idle},                   {"keepup", row_keepup},
    {"size", row_size},         {"cost", row_cost},                   {"build", row_build},
    {"memory", row_memory},     {"delay", row_delay},                 {"beats", row_beats},
    {"scale", row_scale},       {"locked", row_locked},               {"disk", row_disk},
    {"full", row_full},         {"hoard", row_hoard},                 {"look", row_look},
    {"outbox-read", row_outbox_read},     {"outbox-held", row_outbox_held},
    {"outbox-enqueue", row_outbox_enqueue}, {"outbox-end", row_outbox_end},
    {"outbox-worker", row_outbox_worker}, {"outbox-latency", row_outbox_latency},
    {"table-read", row_table_read},       {"table-get", row_table_get},
    {"outbox-one", row_outbox_one},       {"outbox-through", row_outbox_through},
    {"topics", row_topics},               {"topics-through", row_topics_through},
    {"fires", row_fires},
    {"ticks", row_ticks},                 {"replace", row_replace},
    {"lines", row_lines},                 {"lines-many", row_lines_many},
    {"lines-late", row_lines_late},       {"lines-held", row_lines_held},
    {"line-first", row_line_first},
    {"permits", row_permits},             {"flows", row_flows},
    {"pgq-through", row_pgq_through},     {"pgq-latency", row_pgq_latency},
    {"pgq-topics", row_pgq_topics},
    {"soak", row_soak}};

int bench_setting(const char *name, int usual)
{
    return getenv(name) != NULL ? atoi(getenv(name)) : usual;
}

int bench_many(void) { return bench_setting("BENCH_MANY", 2); }

/* -- clocks and chance -- */

double bench_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int64_t bench_wall_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

void bench_sleep(double seconds)
{
    struct timespec t;

    if (seconds <= 0) return;
    t.tv_sec = (time_t)seconds;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}

double bench_cpu(pid_t pid)
{
    struct timespec t;
    clockid_t clock;

    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0) return 0;
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int bench_chance(int low, int high)
{
    static jobq_random random;
    static bool seeded;

    if (!seeded) random.state = 1;
    seeded = true;
    return (int)jobq_random_between(jobq_random_next(&random), low, high);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double bench_quantile(double *values, size_t count, double q)
{
    size_t at = (size_t)(q * (double)count);

    if (count == 0) return 0;
    qsort(values, count, sizeof *values, by_value);
    return values[at < count ? at : count - 1];
}

/* -- the database -- */

void bench_fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

PGconn *bench_db(void)
{
    PGconn *db = PQconnectdb(getenv("JOBQ_SERVER"));

    if (PQstatus(db) != CONNECTION_OK) bench_fail("%s", PQerrorMessage(db));
    PQclear(PQexec(db, "SET client_min_messages = warning"));
    return db;
}

static PGresult *ask(PGconn *db, const char *format, va_list args)
{
    char text[8192];
    PGresult *res;

    vsnprintf(text, sizeof text, format, args);
    res = PQexec(db, text);
    if (PQresultStatus(res) != PGRES_COMMAND_OK && PQresultStatus(res) != PGRES_TUPLES_OK) {
        bench_fail("%s%s", PQerrorMessage(db), text);
    }
    return res;
}

void bench_sql(PGconn *db, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    PQclear(ask(db, format, args));
    va_end(args);
}

double bench_number(PGconn *db, const char *format, ...)
{
    va_list args;
    PGresult *res;
    double value;

    va_start(args, format);
    res = ask(db, format, args);
    va_end(args);
    value = PQntuples(res) > 0 ? strtod(PQgetvalue(res, 0, 0), NULL) : 0;
    PQclear(res);
    return value;
}

/* A server in use writes its log over old segments. A fresh one has none and first fills each new
 * segment with zeros, which is a sixth of what numbering messages costs. So this makes old ones. */
void bench_wal_reset(PGconn *db)
{
    bench_sql(db, "DO $$ BEGIN WHILE (SELECT count(*) FROM pg_ls_waldir()) < (SELECT setting::int "
                  "/ 16 FROM pg_settings WHERE name = 'min_wal_size') LOOP "
                  "PERFORM pg_logical_emit_message(false, 'bench', ''), pg_switch_wal(); "
                  "END LOOP; END $$");
    bench_sql(db, "CHECKPOINT");
}

void bench_payload(char out[BENCH_PAYLOAD + 1], long n)
{
    int head = snprintf(out, BENCH_PAYLOAD + 1, "{\"n\": %09ld, \"text\": \"", 100000000 + n);

    memset(out + head, 'x', (size_t)(BENCH_PAYLOAD - head));
    memcpy(out + BENCH_PAYLOAD - 2, "\"}", 3);
}

jobq_pg *bench_schema(PGconn *db, bool history)
{
    jobq_pg_desc desc;
    jobq_pg *pg;
    jobq_pg_error error;

    memset(&desc, 0, sizeof desc);
    desc.conninfo = getenv("JOBQ_SERVER");
    bench_sql(db, "DROP SCHEMA IF EXISTS jobq CASCADE");
    if (jobq_pg_open(&pg, &desc, &error) || jobq_pg_migrate(pg, &error)) {
        bench_fail("%s", error.message);
    }
    bench_sql(db, "INSERT INTO jobq.queue (name, history) VALUES ('" BENCH_QUEUE "', %s)",
              history ? "true" : "false");
    bench_sql(db, "SELECT jobq.queue_set('" BENCH_QUEUE "', kinds => '{" BENCH_KIND "}')");
    return pg;
}

void bench_floor_table(PGconn *db)
{
    bench_sql(db, "DROP SCHEMA IF EXISTS floor CASCADE");
    bench_sql(db, "CREATE SCHEMA floor");
    bench_sql(db, "CREATE SEQUENCE floor.job_id");
    bench_sql(db, "CREATE TABLE floor.job (LIKE jobq.job INCLUDING DEFAULTS INCLUDING INDEXES)");
    bench_sql(db, "ALTER TABLE floor.job ALTER id SET DEFAULT nextval('floor.job_id')");
    bench_sql(db, "DO $$ BEGIN EXECUTE format('ALTER TABLE floor.job SET (%%s)', array_to_string("
                  "(SELECT reloptions FROM pg_class WHERE oid = 'jobq.job'::regclass), ', ')); "
                  "END $$");
}

void bench_load(PGconn *db, const char *table, long count)
{
    char payload[BENCH_PAYLOAD + 1];

    bench_payload(payload, 0);
    bench_sql(db, "INSERT INTO %s (queue_id, kind_id, payload) SELECT 1, 1, '%s'::jsonb "
                  "FROM generate_series(1, %ld)", table, payload, count);
}

/* -- crews -- */

static unsigned char *seen;
static long seen_most;

void bench_seen_reset(long jobs)
{
    free(seen);
    seen = (unsigned char *)calloc((size_t)jobs + 1, 1);
    seen_most = seen == NULL ? 0 : jobs;
}

long bench_seen_wrong(void)
{
    long wrong = 0, i;

    for (i = 1; i <= seen_most; i++) wrong += seen[i] != 1;
    return wrong;
}

jobq_outcome bench_noop(jobq_call *call)
{
    if (call->job.id >= 1 && call->job.id <= seen_most) {
        __atomic_fetch_add(&seen[call->job.id], 1, __ATOMIC_RELAXED);
    }
    return JOBQ_OUTCOME_SUCCESS;
}

void bench_crew_start(bench_crew *crew, jobq_pg *pg, int workers, jobq_handler handler,
                      const jobq_loop_config *loop)
{
    jobq_pg_worker_desc desc;
    jobq_pg_handler h;
    jobq_pg_error error;

    memset(&desc, 0, sizeof desc);
    memset(&h, 0, sizeof h);
    h.queue = BENCH_QUEUE;
    h.kind = BENCH_KIND;
    h.run[0] = handler;
    desc.handlers = &h;
    desc.handler_count = 1;
    if (loop != NULL) desc.loop = *loop;
    crew->pg = pg;
    for (crew->count = 0; crew->count < workers; crew->count++) {
        if (jobq_pg_worker_start(pg, &desc, &crew->workers[crew->count], &error)) {
            bench_fail("%s", error.message);
        }
    }
}

long bench_crew_flushed(const bench_crew *crew)
{
    long flushed = 0;
    int i;

    for (i = 0; i < crew->count; i++) {
        flushed += (long)jobq_pg_worker_stats(crew->workers[i], JOBQ_PG_ALL).jobs.flushed;
    }
    return flushed;
}

void bench_crew_stop(bench_crew *crew)
{
    int i;

    for (i = 0; i < crew->count; i++) jobq_pg_worker_stop(crew->workers[i]);
    for (i = 0; i < crew->count; i++) {
        jobq_pg_worker_wait(crew->workers[i], NULL);
        jobq_pg_worker_free(crew->workers[i]);
    }
    crew->count = 0;
}

void bench_lane_move(jobq_lane *lane, const jobq_job *job)
{
    if (job->run_at_us < lane->after_at_us ||
        (job->run_at_us == lane->after_at_us && job->id <= lane->after_id)) return;
    lane->after_at_us = job->run_at_us;
    lane->after_id = job->id;
}

/* -- producers and floors -- */

struct bench_gang {
    int count, ready;
    bench_step step;
    void *state;
    long steps, taken, rows;
    double seconds, started, ended;
    pthread_t threads[64];
};

static void *gang_thread(void *arg)
{
    bench_gang *g = (bench_gang *)arg;
    PGconn *db = bench_db();
    long step, done;

    __atomic_fetch_add(&g->ready, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&g->ready, __ATOMIC_SEQ_CST) <= g->count) bench_sleep(0.0001);
    while (bench_now() - g->started < g->seconds) {
        step = __atomic_fetch_add(&g->taken, 1, __ATOMIC_RELAXED);
        if (step >= g->steps || (done = g->step(db, g->state, step)) == 0) break;
        __atomic_fetch_add(&g->rows, done, __ATOMIC_RELAXED);
    }
    PQfinish(db);
    return NULL;
}

bench_gang *bench_gang_start(int threads, bench_step step, void *state, long steps, double seconds)
{
    bench_gang *g = (bench_gang *)calloc(1, sizeof *g);
    int i;

    g->count = threads;
    g->step = step;
    g->state = state;
    g->steps = steps;
    g->seconds = seconds;
    for (i = 0; i < threads; i++) {
        if (pthread_create(&g->threads[i], NULL, gang_thread, g)) bench_fail("no thread");
    }
    while (__atomic_load_n(&g->ready, __ATOMIC_SEQ_CST) < threads) bench_sleep(0.0001);
    g->started = bench_now();
    __atomic_fetch_add(&g->ready, 1, __ATOMIC_SEQ_CST);
    return g;
}

long bench_gang_rows(bench_gang *g) { return __atomic_load_n(&g->rows, __ATOMIC_RELAXED); }

long bench_gang_end(bench_gang *g)
{
    long rows;
    int i;

    for (i = 0; i < g->count; i++) pthread_join(g->threads[i], NULL);
    rows = g->rows;
    free(g);
    return rows;
}

double bench_gang_run(int threads, bench_step step, void *state, long steps, double seconds)
{
    bench_gang *g = bench_gang_start(threads, step, state, steps, seconds);
    double started = g->started;

    return (double)bench_gang_end(g) / (bench_now() - started);
}

/* -- messages from producers to a reader -- */

static long through_last[64][BENCH_PRODUCERS]; /* the producer's last number + 1 */
static long through_seen;

void bench_through_see(int partition, const char *payload)
{
    long number = strtol(payload + 6, NULL, 10) - 100000000;
    long *last = &through_last[partition][number / BENCH_OWN];

    if (number % BENCH_OWN < *last) {
        bench_fail("through: partition %d: message %ld after %ld", partition, number, *last - 1);
    }
    *last = number % BENCH_OWN + 1;
    __atomic_fetch_add(&through_seen, 1, __ATOMIC_RELEASE);
}

long bench_through_seen(void) { return __atomic_load_n(&through_seen, __ATOMIC_ACQUIRE); }

double bench_through(int producers, bench_step step, void *states, size_t size, int put,
                     long count)
{
    bench_gang *gangs[BENCH_PRODUCERS];
    double started = bench_now(), took;
    int i;

    memset(through_last, 0, sizeof through_last);
    __atomic_store_n(&through_seen, 0, __ATOMIC_RELEASE);
    for (i = 0; i < producers; i++) {
        gangs[i] = bench_gang_start(1, step, (char *)states + (size_t)i * size,
                                    count / put / producers, 600);
    }
    for (i = 0; i < producers; i++) bench_gang_end(gangs[i]);
    while (bench_through_seen() < count) {
        if (bench_now() - started > 600) bench_fail("through: %ld seen", bench_through_seen());
        bench_sleep(0.0005);
    }
    took = bench_now() - started;
    if (bench_through_seen() != count) bench_fail("through: some came twice");
    return (double)count / took;
}

static long floor_delete_step(PGconn *db, void *state, long step)
{
    static const char text[] =
        "DELETE FROM floor.job WHERE ctid = ANY (ARRAY(SELECT ctid FROM floor.job "
        "FOR UPDATE SKIP LOCKED LIMIT 1000)) RETURNING *";
    PGresult *res;
    long rows;

    (void)state;
    (void)step;
    res = PQexecPrepared(db, "del", 0, NULL, NULL, NULL, 1);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) {
        PQclear(res);
        PQclear(PQprepare(db, "del", text, 0, NULL));
        res = PQexecPrepared(db, "del", 0, NULL, NULL, NULL, 1);
    }
    if (PQresultStatus(res) != PGRES_TUPLES_OK) bench_fail("%s", PQerrorMessage(db));
    rows = PQntuples(res);
    PQclear(res);
    return rows;
}

double bench_floor_delete(int connections, long rows)
{
    PGconn *db;
    double rate;

    if (bench_alone) return 0;
    db = bench_db();
    jobq_pg_close(bench_schema(db, true));
    bench_floor_table(db);
    bench_wal_reset(db);
    bench_load(db, "floor.job", rows);
    rate = bench_gang_run(connections, floor_delete_step, NULL, 1L << 40, 600);
    if (bench_number(db, "SELECT count(*) FROM floor.job") != 0) bench_fail("floor: rows left");
    bench_sql(db, "DROP SCHEMA floor CASCADE");
    PQfinish(db);
    return rate;
}

/* -- figures -- */

void bench_figure(const char *label, double value, const char *unit, const char *floor_label,
                  double floor, bench_sense sense, double target)
{
    static const char *const senses[] = {"ratio>=", "ratio<=", "<=", ">=", "-"};

    printf("%s\t%.9g\t%s\t%s\t%.9g\t%s\t%g\n", label, value, unit, floor_label, floor,
           senses[sense], target);
    fflush(stdout);
}

void bench_note(const char *label, const char *text) { printf("%s\tnote\t%s\n", label, text); }

void bench_missing(const char *label, const char *why)
{
    printf("%s\tmissing\t%s\t\t0\t-\t0\n", label, why);
}

FILE *bench_data(const char *name)
{
    char path[256];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s.tsv",
             getenv("BENCH_DIR") != NULL ? getenv("BENCH_DIR") : ".build/bench", name);
    file = fopen(path, "w");
    if (file == NULL) bench_fail("cannot write %s", path);
    return file;
}

int main(int argc, char **argv)
{
    size_t i;

    if (getenv("JOBQ_SERVER") == NULL) bench_fail("JOBQ_SERVER is not set: run make bench");
    bench_long = argc > 2 && strcmp(argv[2], "--long") == 0;
    bench_alone = getenv("PEERS_JOBS") != NULL;
    for (i = 0; argc > 1 && i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(argv[1], all[i].name) == 0) {
            all[i].run();
            return 0;
        }
    }
    for (i = 0; i < sizeof all / sizeof all[0]; i++) puts(all[i].name);
    return argc > 1;
}
