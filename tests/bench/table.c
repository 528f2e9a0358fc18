/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * table.c -- rows of typed tables: table-read, table-get. The floor is the same statement with
 * libpq alone, in the binary form, and its values read into the same struct; texts stay in the
 * result.
 */
#include "bench.h"

#define ROWS 100000
#define GETS 2000  /* in one turn */
#define TURNS 20   /* turns of each side */

typedef struct item {
    int64_t id;
    jobq_str ref, label, note; /* note: NULL in every other row */
    int32_t count;
    int64_t total;
    double weight;
    bool flag;
    int64_t at;
    jobq_pg_maybe_int32 port;
} item;

static const jobq_pg_column item_columns[] = {
    JOBQ_PG_COLUMN(item, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(item, ref, TEXT, 0),
    JOBQ_PG_COLUMN(item, label, TEXT, 0),
    JOBQ_PG_COLUMN(item, note, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(item, count, INT32, 0),
    JOBQ_PG_COLUMN(item, total, INT64, 0),
    JOBQ_PG_COLUMN(item, weight, DOUBLE, 0),
    JOBQ_PG_COLUMN(item, flag, BOOL, 0),
    JOBQ_PG_COLUMN(item, at, TIMESTAMPTZ, 0),
    JOBQ_PG_COLUMN(item, port, INT32, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMNS_END};

static const jobq_pg_table_desc item_desc = {"bench_item", sizeof(item), item_columns, "item",
                                             NULL, false};

#define COLUMNS "id, ref, label, note, count, total, weight, flag, at, port"

static jobq_pg_table *items_open(PGconn *db)
{
    jobq_pg_table *items;
    jobq_pg_error error;

    bench_sql(db, "DROP TABLE IF EXISTS bench_item");
    bench_sql(db, "CREATE TABLE bench_item (id bigint PRIMARY KEY, ref text NOT NULL, "
                  "label text NOT NULL, note text, count int NOT NULL, total bigint NOT NULL, "
                  "weight float8 NOT NULL, flag bool NOT NULL, at timestamptz NOT NULL, port int)");
    bench_sql(db, "INSERT INTO bench_item SELECT i, 'ref-' || i, repeat('label ', 5), "
                  "CASE WHEN i %% 2 = 0 THEN 'a note' END, i, i * 1000, i / 7.0, i %% 3 = 0, "
                  "now(), CASE WHEN i %% 2 = 1 THEN 80 END FROM generate_series(1, %d) i", ROWS);
    bench_sql(db, "VACUUM ANALYZE bench_item");
    PQclear(PQprepare(db, "bare_all", "SELECT " COLUMNS " FROM bench_item ORDER BY id LIMIT $1",
                      0, NULL));
    PQclear(PQprepare(db, "bare_one", "SELECT " COLUMNS " FROM bench_item WHERE id = $1", 0,
                      NULL));
    if (jobq_pg_table_open(&items, NULL, db, &item_desc, &error)) bench_fail("%s", error.message);
    return items;
}

/* -- the floor -- */

static uint64_t big(const char *p, int bytes)
{
    uint64_t value = 0;
    int i;

    for (i = 0; i < bytes; i++) value = value << 8 | (unsigned char)p[i];
    return value;
}

static jobq_str str(const PGresult *res, int r, int c)
{
    jobq_str s = {NULL, 0};

    if (PQgetisnull(res, r, c)) return s;
    s.ptr = PQgetvalue(res, r, c);
    s.len = (size_t)PQgetlength(res, r, c);
    return s;
}

static void bare_row(const PGresult *res, int r, item *row)
{
    uint64_t bits;

    row->id = (int64_t)big(PQgetvalue(res, r, 0), 8);
    row->ref = str(res, r, 1);
    row->label = str(res, r, 2);
    row->note = str(res, r, 3);
    row->count = (int32_t)big(PQgetvalue(res, r, 4), 4);
    row->total = (int64_t)big(PQgetvalue(res, r, 5), 8);
    bits = big(PQgetvalue(res, r, 6), 8);
    memcpy(&row->weight, &bits, 8);
    row->flag = PQgetvalue(res, r, 7)[0] != 0;
    row->at = (int64_t)big(PQgetvalue(res, r, 8), 8) + 946684800000000;
    row->port.set = !PQgetisnull(res, r, 9);
    if (row->port.set) row->port.value = (int32_t)big(PQgetvalue(res, r, 9), 4);
}

/* Runs a prepared statement with one number. Returns the result; *rows: the number of rows. */
static PGresult *bare(PGconn *db, const char *name, int64_t number, item **rows)
{
    char wire[8];
    const char *value = wire;
    int length = 8, format = 1, i;
    PGresult *res;

    for (i = 0; i < 8; i++) wire[i] = (char)(unsigned char)((uint64_t)number >> (56 - 8 * i));
    res = PQexecPrepared(db, name, 1, &value, &length, &format, 1);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) bench_fail("%s", PQerrorMessage(db));
    *rows = (item *)calloc((size_t)PQntuples(res) + 1, sizeof **rows);
    for (i = 0; i < PQntuples(res); i++) bare_row(res, i, &(*rows)[i]);
    return res;
}

/* Uses every value, so that the compiler cannot leave out the reading. */
static uint64_t digest(const item *rows, size_t count)
{
    uint64_t sum = 0;
    size_t i;

    for (i = 0; i < count; i++) {
        const item *r = &rows[i];
        sum = sum * 31 + (uint64_t)(r->id + r->count + r->total + r->at + (r->flag ? 7 : 0));
        sum += (uint64_t)(r->weight * 100) + r->ref.len + (unsigned char)r->ref.ptr[4];
        sum += r->label.len + r->note.len + (uint64_t)(r->port.set ? r->port.value : -1);
    }
    return sum;
}

/* -- table-read -- */

void row_table_read(void)
{
    PGconn *db = bench_db();
    jobq_pg_table *items = items_open(db);
    jobq_pg_query query;
    jobq_pg_error error;
    jobq_pg_rows rows;
    double ours[9], floor[9], started;
    uint64_t a, b;
    PGresult *res;
    item *bare_rows;
    int i;

    memset(&query, 0, sizeof query);
    query.limit = ROWS;
    for (i = 0; i < 9; i++) {
        started = bench_now();
        res = bare(db, "bare_all", ROWS, &bare_rows);
        b = digest(bare_rows, (size_t)PQntuples(res));
        free(bare_rows);
        PQclear(res);
        floor[i] = 1000 * (bench_now() - started);
        started = bench_now();
        if (jobq_pg_table_list(items, db, &query, &rows, &error)) bench_fail("%s", error.message);
        a = digest((const item *)rows.rows, rows.count);
        if (a != b || rows.count != ROWS) bench_fail("table-read: the values differ");
        jobq_pg_rows_clear(&rows);
        ours[i] = 1000 * (bench_now() - started);
    }
    bench_figure("100,000 rows of ten columns as structs", bench_quantile(ours, 9, 0.5), "ms",
                 "libpq alone", bench_quantile(floor, 9, 0.5), BENCH_RATIO_AT_MOST, 1.3);
    jobq_pg_table_close(items);
    PQfinish(db);
}

/* -- table-get -- */

static double cpu_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Processor time of a read by id, averaged over GETS. */
static double get_turn(PGconn *db, jobq_pg_table *items, uint64_t *sum)
{
    double started = cpu_us();
    jobq_pg_error error;
    jobq_pg_rows rows;
    item like, *one;
    PGresult *res;
    int i;

    memset(&like, 0, sizeof like);
    for (i = 1; i <= GETS; i++) {
        like.id = i;
        if (items != NULL) {
            if (jobq_pg_table_get(items, db, NULL, &like, &rows, &error))
                bench_fail("%s", error.message);
            *sum += digest((const item *)rows.rows, 1);
            jobq_pg_rows_clear(&rows);
        } else {
            res = bare(db, "bare_one", i, &one);
            *sum += digest(one, 1);
            free(one);
            PQclear(res);
        }
    }
    return (cpu_us() - started) / GETS;
}

void row_table_get(void)
{
    PGconn *db = bench_db();
    jobq_pg_table *items = items_open(db);
    double ours[TURNS], floor[TURNS], more[TURNS];
    uint64_t a = 0, b = 0;
    int i;

    for (i = 0; i < TURNS; i++) {
        floor[i] = get_turn(db, NULL, &b);
        ours[i] = get_turn(db, items, &a);
        more[i] = ours[i] - floor[i];
    }
    if (a != b) bench_fail("table-get: the values differ");
    bench_figure("get by id adds, processor time", bench_quantile(more, TURNS, 0.5), "us", "", 0,
                 BENCH_AT_MOST, 2);
    bench_figure("  of", bench_quantile(ours, TURNS, 0.5), "us", "libpq alone",
                 bench_quantile(floor, TURNS, 0.5), BENCH_SHOWN, 0);
    jobq_pg_table_close(items);
    PQfinish(db);
}
