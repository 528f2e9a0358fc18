/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_table.c -- typed tables on Postgres: every type written and read back, every call, the
 * error for each wrong description, errors, pages while rows change, transactions, and value
 * parsers compared with outside data and with the server.
 */
#define TEST_PRIVATE
#include "pg.h"

typedef enum mood { MOOD_SAD, MOOD_OK, MOOD_HAPPY } mood;

static const char *const moods[] = {"sad", "ok", "happy", NULL};

typedef struct thing {
    int64_t id;
    bool flag;
    int16_t small;
    int32_t medium;
    int64_t big;
    float single;
    double twice;
    jobq_str label;
    jobq_str bytes;
    jobq_pg_uuid uuid;
    int64_t at;
    int32_t day;
    jobq_pg_interval span;
    jobq_str amount;
    jobq_str doc;
    jobq_str plain;
    mood feeling;
    jobq_pg_texts tags;
    jobq_pg_int64s numbers;
    int64_t updated;
    jobq_pg_maybe_bool n_flag;
    jobq_pg_maybe_int16 n_small;
    jobq_pg_maybe_int32 n_medium;
    jobq_pg_maybe_int64 n_big;
    jobq_pg_maybe_float n_single;
    jobq_pg_maybe_double n_twice;
    jobq_str n_label;
    jobq_str n_bytes;
    jobq_pg_maybe_uuid n_uuid;
    jobq_pg_maybe_int64 n_at;
    jobq_pg_maybe_int32 n_day;
    jobq_pg_maybe_interval n_span;
    jobq_str n_amount;
    jobq_str n_doc;
    jobq_pg_maybe_int32 n_feeling;
    jobq_pg_texts n_tags;
    jobq_pg_int64s n_numbers;
} thing;

static const jobq_pg_column thing_columns[] = {
    JOBQ_PG_COLUMN(thing, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(thing, flag, BOOL, 0),
    JOBQ_PG_COLUMN(thing, small, INT16, 0),
    JOBQ_PG_COLUMN(thing, medium, INT32, 0),
    JOBQ_PG_COLUMN(thing, big, INT64, 0),
    JOBQ_PG_COLUMN(thing, single, FLOAT, 0),
    JOBQ_PG_COLUMN(thing, twice, DOUBLE, 0),
    JOBQ_PG_COLUMN(thing, label, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(thing, bytes, BYTES, 0),
    JOBQ_PG_COLUMN(thing, uuid, UUID, 0),
    JOBQ_PG_COLUMN(thing, at, TIMESTAMPTZ, 0),
    JOBQ_PG_COLUMN(thing, day, DATE, 0),
    JOBQ_PG_COLUMN(thing, span, INTERVAL, 0),
    JOBQ_PG_COLUMN(thing, amount, NUMERIC, 0),
    JOBQ_PG_COLUMN(thing, doc, JSON, 0),
    JOBQ_PG_COLUMN(thing, plain, JSON, 0),
    JOBQ_PG_ENUM_COLUMN(thing, feeling, moods, 0),
    JOBQ_PG_COLUMN(thing, tags, TEXTS, 0),
    JOBQ_PG_COLUMN(thing, numbers, INT64S, 0),
    JOBQ_PG_COLUMN(thing, updated, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMN(thing, n_flag, BOOL, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_small, INT16, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_medium, INT32, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_big, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_single, FLOAT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_twice, DOUBLE, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_label, TEXT, JOBQ_PG_NULLABLE | JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMN(thing, n_bytes, BYTES, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_uuid, UUID, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_at, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_day, DATE, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_span, INTERVAL, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_amount, NUMERIC, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_doc, JSON, JOBQ_PG_NULLABLE),
    JOBQ_PG_ENUM_COLUMN(thing, n_feeling, moods, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_tags, TEXTS, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(thing, n_numbers, INT64S, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMNS_END};

static const jobq_pg_table_desc thing_desc = {"jobq.thing", sizeof(thing), thing_columns,
                                              "thing", NULL, false};

static jobq_pg_table *things;
static jobq_pg_error error;

#define OK(call)                                                \
    do {                                                        \
        if ((call) != JOBQ_OK) fail_msg("%s", error.message);   \
    } while (0)

static int up(void **state)
{
    if (pg_up(state) != 0) return 1;
    RUN("CREATE TYPE jobq.mood AS ENUM ('happy', 'ok', 'sad')");
    RUN("CREATE TABLE jobq.thing (id bigserial PRIMARY KEY, flag bool NOT NULL DEFAULT true,"
        " small int2 NOT NULL DEFAULT 1, medium int4 NOT NULL DEFAULT 2, big int8 NOT NULL DEFAULT "
        "3, single float4 NOT NULL DEFAULT 1.5, twice float8 NOT NULL DEFAULT 2.5,"
        " label text NOT NULL CONSTRAINT oddly_named UNIQUE, bytes bytea NOT NULL DEFAULT '',"
        " uuid uuid NOT NULL DEFAULT '6ba7b810-9dad-11d1-80b4-00c04fd430c8',"
        " at timestamptz NOT NULL DEFAULT '2001-02-03 04:05:06.789Z',"
        " day date NOT NULL DEFAULT '2024-02-29', span interval NOT NULL DEFAULT '1 month 2 days',"
        " amount numeric(20, 3) NOT NULL DEFAULT 12.5 CHECK (amount < 1000000),"
        " doc jsonb NOT NULL DEFAULT '{}', plain json NOT NULL DEFAULT '[1,  2]',"
        " feeling jobq.mood NOT NULL DEFAULT 'ok', tags text[] NOT NULL DEFAULT '{}',"
        " numbers bigint[] NOT NULL DEFAULT '{}', updated timestamptz NOT NULL DEFAULT now(),"
        " n_flag bool, n_small int2, n_medium int4, n_big int8 REFERENCES jobq.thing ON DELETE SET "
        "NULL, n_single float4, n_twice float8, n_label varchar(40), n_bytes bytea, n_uuid uuid,"
        " n_at timestamptz, n_day date, n_span interval, n_amount numeric, n_doc jsonb,"
        " n_feeling jobq.mood, n_tags text[], n_numbers bigint[], unseen int DEFAULT 7)");
    if (jobq_pg_table_open(&things, pg, NULL, &thing_desc, &error) != JOBQ_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    return 0;
}

static int down(void **state)
{
    jobq_pg_table_close(things);
    return pg_down(state);
}

static int empty(void **state)
{
    (void)state;
    RUN("TRUNCATE jobq.thing RESTART IDENTITY");
    return 0;
}

static thing blank(const char *label)
{
    thing t;

    memset(&t, 0, sizeof t);
    t.label = jobq_str_from(label);
    return t;
}

static int64_t make(const char *label)
{
    thing t = blank(label);
    jobq_pg_rows rows;
    int64_t id;

    OK(jobq_pg_table_create(things, NULL, "label", &t, NULL, &rows, &error));
    id = ((thing *)rows.rows)->id;
    jobq_pg_rows_clear(&rows);
    return id;
}

static void assert_str(jobq_str s, const char *text)
{
    assert_int_equal(s.len, strlen(text));
    assert_memory_equal(s.ptr, text, s.len);
    assert_int_equal(s.ptr[s.len], 0);
}

static thing full(void)
{
    static const jobq_str tags[] = {{"a,b", 3}, {NULL, 0}, {"", 0}, {"\"q\\", 3}};
    static const int64_t numbers[] = {INT64_MIN, 0, INT64_MAX};
    thing t = blank("full \xc3\xa9");

    t.flag = true;
    t.small = INT16_MIN;
    t.medium = INT32_MAX;
    t.big = INT64_MIN;
    t.single = -0.25f;
    t.twice = 1e300;
    t.bytes.ptr = "\0\xff\\x";
    t.bytes.len = 4;
    memset(t.uuid.bytes, 0xab, 16);
    t.at = -1;
    t.day = -1;
    t.span.us = -5;
    t.span.days = 3;
    t.span.months = -14;
    t.amount = jobq_str_from("-123456.789");
    t.doc = jobq_str_from("{\"a\": [1, null]}");
    t.plain = jobq_str_from("null");
    t.feeling = MOOD_HAPPY;
    t.tags.items = tags;
    t.tags.count = 4;
    t.numbers.items = numbers;
    t.numbers.count = 3;
    return t;
}

static void every_type_there_and_back(void **state)
{
    thing in = full(), *out;
    jobq_pg_rows rows;

    (void)state;
    OK(jobq_pg_table_create(things, NULL, NULL, &in, NULL, &rows, &error));
    out = rows.rows;
    assert_int_equal(rows.count, 1);
    assert_true(out->flag && out->small == INT16_MIN && out->medium == INT32_MAX);
    assert_true(out->big == INT64_MIN && out->twice > 9e299 && out->at == -1 && out->day == -1);
    assert_true(out->single < -0.24f && out->single > -0.26f);
    assert_str(out->label, "full \xc3\xa9");
    assert_int_equal(out->bytes.len, 4);
    assert_memory_equal(out->bytes.ptr, in.bytes.ptr, 4);
    assert_memory_equal(&out->uuid, &in.uuid, 16);
    assert_memory_equal(&out->span, &in.span, sizeof in.span);
    assert_str(out->amount, "-123456.789");
    assert_str(out->doc, "{\"a\": [1, null]}");
    assert_str(out->plain, "null");
    assert_int_equal(out->feeling, MOOD_HAPPY);
    assert_int_equal(out->tags.count, 4);
    assert_str(out->tags.items[0], "a,b");
    assert_null(out->tags.items[1].ptr);
    assert_str(out->tags.items[2], "");
    assert_int_equal(out->numbers.count, 3);
    assert_true(out->numbers.items[0] == INT64_MIN && out->numbers.items[2] == INT64_MAX);
    jobq_pg_rows_clear(&rows);
    assert_int_equal(number("SELECT count(*) FROM jobq.thing WHERE at = "
                            "'1969-12-31 23:59:59.999999Z' AND day = '1969-12-31' AND span = "
                            "'-14 months 3 days -5 microseconds' AND bytes = '\\x00ff5c78' AND "
                            "tags[2] IS NULL AND tags[4] = '\"q\\'"), 1);
}

static void every_null_there_and_back(void **state)
{
    thing in = blank("nulls"), *out;
    jobq_pg_rows rows;
    size_t i;

    (void)state;
    OK(jobq_pg_table_create(things, NULL, "label", &in, NULL, &rows, &error));
    out = rows.rows;
    for (i = 0; thing_columns[i].name != NULL; i++) {
        const jobq_pg_column *c = &thing_columns[i];
        assert_int_equal(jobq_pg__is_null(c, (char *)out + c->offset),
                         (c->flags & JOBQ_PG_NULLABLE) != 0);
    }
    assert_non_null(out->tags.items); /* empty is not NULL */
    jobq_pg_rows_clear(&rows);
}

static void nullable_fields_hold_values(void **state)
{
    static const jobq_str tag = {"x", 1};
    thing t = blank("maybe"), *out;
    jobq_pg_rows rows;

    (void)state;
    t.n_flag.set = true; /* false, and there */
    t.n_small.value = 5;
    t.n_small.set = true;
    t.n_medium = (jobq_pg_maybe_int32){-6, true};
    t.n_big = (jobq_pg_maybe_int64){1, true};
    t.n_twice.set = true;
    t.n_label = jobq_str_from("");
    t.n_at = (jobq_pg_maybe_int64){JOBQ_NEVER, true};
    t.n_day = (jobq_pg_maybe_int32){INT32_MIN, true};
    t.n_doc = jobq_str_from("null");
    t.n_feeling = (jobq_pg_maybe_int32){MOOD_SAD, true};
    t.n_tags.items = &tag;
    t.n_numbers.items = (const int64_t *)&tag; /* empty, and there */
    OK(jobq_pg_table_create(things, NULL,
                            "label n_flag n_small n_medium n_big n_twice n_label n_at n_day n_doc "
                            "n_feeling n_tags n_numbers",
                            &t, NULL, &rows, &error));
    out = rows.rows;
    assert_true(out->n_flag.set && !out->n_flag.value && out->n_small.value == 5);
    assert_true(out->n_medium.value == -6 && out->n_big.value == 1 && out->n_twice.set);
    assert_str(out->n_label, "");
    assert_true(out->n_at.value == JOBQ_NEVER && out->n_day.value == INT32_MIN);
    assert_str(out->n_doc, "null");
    assert_true(out->n_feeling.set && out->n_feeling.value == MOOD_SAD);
    assert_true(out->n_tags.items != NULL && out->n_tags.count == 0);
    assert_true(out->n_numbers.items != NULL && out->n_numbers.count == 0);
    assert_false(out->n_uuid.set || out->n_span.set || out->n_single.set);
    jobq_pg_rows_clear(&rows);
    assert_int_equal(number("SELECT count(*) FROM jobq.thing WHERE n_at = 'infinity' AND n_day = "
                            "'-infinity' AND n_doc = 'null' AND n_tags = '{}'"), 1);
}

static void find_get_exists(void **state)
{
    thing want = blank("b");
    jobq_pg_rows rows;
    int64_t id;

    (void)state;
    make("a");
    id = make("b");
    OK(jobq_pg_table_get(things, NULL, "label", &want, &rows, &error));
    assert_int_equal(((thing *)rows.rows)->id, id);
    jobq_pg_rows_clear(&rows);
    want.id = id;
    OK(jobq_pg_table_get(things, NULL, NULL, &want, &rows, &error));
    assert_str(((thing *)rows.rows)->label, "b");
    jobq_pg_rows_clear(&rows);
    want.label = jobq_str_from("nobody");
    rows.count = 7;
    assert_int_equal(jobq_pg_table_get(things, NULL, "label", &want, &rows, &error),
                     JOBQ_ERROR_NOT_FOUND);
    assert_true(rows.count == 0 && rows.rows == NULL);
    assert_string_equal(error.message, "Not found: thing with label=nobody");
    assert_string_equal(error.entity, "thing");
    assert_string_equal(error.field, "label");
    assert_string_equal(error.value, "nobody");
    OK(jobq_pg_table_get(things, NULL, NULL, &want, NULL, &error));
    assert_int_equal(jobq_pg_table_get(things, NULL, "id label", &want, NULL, &error),
                     JOBQ_ERROR_NOT_FOUND);
}

static void where_takes_operators_and_null(void **state)
{
    jobq_pg_query q = {"n_medium", NULL, NULL, NULL, NULL, 0};
    thing like = blank("");
    int64_t count, i;

    (void)state;
    for (i = 0; i < 5; i++) {
        char label[8];
        thing t;
        snprintf(label, sizeof label, "l%d", (int)i);
        t = blank(label);
        t.medium = (int32_t)i;
        if (i > 2) t.n_medium = (jobq_pg_maybe_int32){(int32_t)i, true};
        OK(jobq_pg_table_create(things, NULL, "label medium n_medium", &t, NULL, NULL, &error));
    }
    q.like = &like;
    OK(jobq_pg_table_count(things, NULL, &q, &count, &error));
    assert_int_equal(count, 3);
    q.where = "n_medium<>";
    OK(jobq_pg_table_count(things, NULL, &q, &count, &error));
    assert_int_equal(count, 2);
    like.medium = 2;
    q.where = "medium>=";
    OK(jobq_pg_table_count(things, NULL, &q, &count, &error));
    assert_int_equal(count, 3);
    q.where = "medium<, n_medium";
    OK(jobq_pg_table_count(things, NULL, &q, &count, &error));
    assert_int_equal(count, 2);
    q.where = "+at<=";
    OK(jobq_pg_table_count(things, NULL, &q, &count, &error));
    assert_int_equal(count, 5);
    like.at = -40 * (int64_t)365 * 86400 * 1000000;
    OK(jobq_pg_table_count(things, NULL, &q, &count, &error));
    assert_int_equal(count, 0);
    q.where = "n_medium<";
    assert_int_equal(jobq_pg_table_count(things, NULL, &q, &count, &error), JOBQ_ERROR_INVALID);
}

static void unknown_names_are_refused(void **state)
{
    static const char *const bad[] = {"labl", "label~", "+label", "\"label\"", "label;drop", "--",
                                      "label==", "unseen"};
    thing like = blank("x");
    jobq_pg_rows rows;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(bad); i++) {
        assert_int_equal(jobq_pg_table_get(things, NULL, bad[i], &like, &rows, &error),
                         JOBQ_ERROR_INVALID);
        assert_int_equal(strncmp(error.message, "Validation error: thing: ", 25), 0);
    }
}

static void list_orders_caps_and_pages(void **state)
{
    jobq_pg_query q;
    jobq_pg_rows rows;
    thing last;
    int seen = 0;

    (void)state;
    RUN("INSERT INTO jobq.thing (label, medium) SELECT 'x' || n, n %% 10 FROM "
        "generate_series(1, 2500) n");
    OK(jobq_pg_table_list(things, NULL, NULL, &rows, &error));
    assert_true(rows.count == 1000 && rows.more && ((thing *)rows.rows)[999].id == 1000);
    jobq_pg_rows_clear(&rows);
    memset(&q, 0, sizeof q);
    q.limit = 3000;
    q.order = "-id";
    OK(jobq_pg_table_list(things, NULL, &q, &rows, &error));
    assert_true(rows.count == 2500 && !rows.more && ((thing *)rows.rows)[0].id == 2500);
    jobq_pg_rows_clear(&rows);
    q.order = "-medium id"; /* both ways in one order */
    q.limit = 700;
    do {
        thing *row;
        size_t i;
        OK(jobq_pg_table_list(things, NULL, &q, &rows, &error));
        row = rows.rows;
        for (i = 0; i < rows.count; i++, seen++) {
            if (seen > 0)
                assert_true(row[i].medium < last.medium ||
                            (row[i].medium == last.medium && row[i].id > last.id));
            last = row[i];
        }
        q.after = &last;
        RUN("INSERT INTO jobq.thing (label, medium) VALUES ('late%d', 11)", seen); /* before it */
        if (!rows.more) q.after = NULL;
        jobq_pg_rows_clear(&rows);
    } while (q.after != NULL);
    assert_int_equal(seen, 2500);
    q.limit = -1;
    assert_int_equal(jobq_pg_table_list(things, NULL, &q, &rows, &error), JOBQ_ERROR_INVALID);
    q.limit = 0;
    q.order = "n_medium";
    q.after = &last;
    assert_int_equal(jobq_pg_table_list(things, NULL, &q, &rows, &error), JOBQ_ERROR_INVALID);
}

static void pages_by_one_way_use_the_index(void **state)
{
    jobq_pg_query q;
    jobq_pg_rows rows;
    thing last = blank("x1500");
    PGconn *conn = PQconnectdb(server());
    PGresult *res;
    int i;
    bool index = false;

    (void)state;
    RUN("INSERT INTO jobq.thing (label) SELECT 'x' || n FROM generate_series(1000, 9999) n");
    RUN("ANALYZE jobq.thing");
    memset(&q, 0, sizeof q);
    q.order = "label";
    q.after = &last;
    q.limit = 2;
    OK(jobq_pg_table_list(things, conn, &q, &rows, &error));
    assert_str(((thing *)rows.rows)[0].label, "x1500"); /* its id is greater than 0, last's */
    jobq_pg_rows_clear(&rows);
    PQclear(PQexec(conn, "SET enable_seqscan = off"));
    res = PQexec(conn,
                 "SELECT statement FROM pg_prepared_statements WHERE statement LIKE '%(\"lab%'");
    assert_int_equal(PQntuples(res), 1);
    PQclear(res);
    res = sql(db,
              "EXPLAIN SELECT id FROM jobq.thing WHERE (label, id) > ('x1500', 0) ORDER BY label, "
              "id LIMIT 2");
    for (i = 0; i < PQntuples(res); i++)
        index = index || strstr(PQgetvalue(res, i, 0), "oddly_named") != NULL;
    assert_true(index);
    PQclear(res);
    PQfinish(conn);
}

static void search_takes_signs_literally(void **state)
{
    static const struct {
        const char *search;
        int64_t found;
    } rows[] = {{"100%", 1}, {"%", 1}, {"_", 1}, {"A_B", 1}, {"\\", 1}, {"axb", 1}, {"ab", 0},
                {"", 4}, {"x", 1}};
    jobq_pg_query q;
    int64_t count;
    size_t i;

    (void)state;
    make("100%");
    make("a_b");
    make("aXb");
    make("back\\slash");
    memset(&q, 0, sizeof q);
    for (i = 0; i < COUNT(rows); i++) {
        q.search = rows[i].search;
        OK(jobq_pg_table_count(things, NULL, &q, &count, &error));
        if (count != rows[i].found) fail_msg("%s: %d", rows[i].search, (int)count);
    }
    q.search = "\xff";
    assert_int_equal(jobq_pg_table_count(things, NULL, &q, &count, &error), JOBQ_ERROR_INVALID);
}

static void create_fills_defaults(void **state)
{
    thing t = blank("d"), *out;
    jobq_pg_rows rows;

    (void)state;
    OK(jobq_pg_table_create(things, NULL, "label", &t, NULL, &rows, &error));
    out = rows.rows;
    assert_true(out->id == 1 && out->flag && out->small == 1 && out->big == 3);
    assert_str(out->amount, "12.500");
    assert_str(out->plain, "[1,  2]");
    assert_int_equal(out->day, 19782);
    assert_int_equal(out->at, 981173106789000);
    jobq_pg_rows_clear(&rows);
}

static void duplicates_name_field_and_value(void **state)
{
    thing t = blank("twin");
    jobq_pg_rows rows;

    (void)state;
    make("twin");
    assert_int_equal(jobq_pg_table_create(things, NULL, "label", &t, NULL, &rows, &error),
                     JOBQ_ERROR_EXISTS);
    assert_string_equal(error.message, "Already exists: thing with label=twin");
    assert_string_equal(error.constraint, "oddly_named");
    assert_string_equal(error.field, "label");
    assert_string_equal(error.value, "twin");
    assert_string_equal(error.sqlstate, "23505");
    assert_null(rows.rows);
}

static void constraints_are_validation_errors(void **state)
{
    thing t = blank("v");

    (void)state;
    t.amount = jobq_str_from("1000000");
    assert_int_equal(jobq_pg_table_create(things, NULL, "label amount", &t, NULL, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "amount");
    assert_string_equal(error.constraint, "thing_amount_check");
    t.n_big = (jobq_pg_maybe_int64){99, true};
    assert_int_equal(jobq_pg_table_create(things, NULL, "label n_big", &t, NULL, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.sqlstate, "23503");
    assert_string_equal(error.field, "n_big");
    assert_string_equal(error.value, "99");
    assert_int_equal(strncmp(error.message, "Validation error: ", 18), 0);
    t.n_label = jobq_str_from("longer than the forty characters it may have");
    assert_int_equal(jobq_pg_table_create(things, NULL, "label n_label", &t, NULL, NULL, &error),
                     JOBQ_ERROR_INVALID);
}

/* What C can see to be wrong never reaches the server, and a transaction goes on. */
static void bad_values_do_not_abort(void **state)
{
    static const jobq_str bad_tag = {"\xff", 1};
    thing t[8];
    static const char *const fields[] = {"label", "doc", "plain", "amount", "feeling", "tags", "at",
                                         "day"};
    PGconn *conn = PQconnectdb(server());
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(t); i++) t[i] = full();
    t[0].label.ptr = "a\0b";
    t[0].label.len = 3;
    t[1].doc = jobq_str_from("{");
    t[2].plain = jobq_str_from("");
    t[3].amount = jobq_str_from("12a");
    t[4].feeling = (mood)3;
    t[5].tags.items = &bad_tag;
    t[5].tags.count = 1;
    t[6].at = INT64_MIN + 1;
    t[7].day = INT32_MAX - 1;
    PQclear(PQexec(conn, "BEGIN"));
    for (i = 0; i < COUNT(t); i++) {
        char list[40];
        snprintf(list, sizeof list, "label %s", i == 0 ? "" : fields[i]);
        assert_int_equal(jobq_pg_table_create(things, conn, list, &t[i], NULL, NULL, &error),
                         JOBQ_ERROR_INVALID);
        assert_string_equal(error.field, fields[i]);
        assert_string_equal(error.sqlstate, "");
    }
    assert_int_equal(PQtransactionStatus(conn), PQTRANS_INTRANS);
    PQfinish(conn);
}

static void missing_text_is_refused(void **state)
{
    thing t = blank(NULL);

    (void)state;
    assert_int_equal(jobq_pg_table_create(things, NULL, "label", &t, NULL, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "label");
}

static void update_leaves_sets_and_clears(void **state)
{
    thing t = blank("u"), *out;
    jobq_pg_rows rows;

    (void)state;
    t.n_label = jobq_str_from("old");
    t.n_medium = (jobq_pg_maybe_int32){7, true};
    OK(jobq_pg_table_create(things, NULL, "label n_label n_medium", &t, NULL, &rows, &error));
    t.id = ((thing *)rows.rows)->id;
    jobq_pg_rows_clear(&rows);
    t.n_label.ptr = NULL; /* named: cleared */
    t.medium = 8;         /* named: set */
    t.n_medium.set = false; /* not named: left */
    OK(jobq_pg_table_update(things, NULL, "n_label medium", &t, NULL, NULL, &rows, &error));
    out = rows.rows;
    assert_null(out->n_label.ptr);
    assert_true(out->medium == 8 && out->n_medium.value == 7);
    jobq_pg_rows_clear(&rows);
}

static void update_of_nothing_writes_nothing(void **state)
{
    thing t = blank("n"), *out;
    jobq_pg_rows rows;
    long before;
    int64_t updated;

    (void)state;
    t.id = make("n");
    OK(jobq_pg_table_get(things, NULL, NULL, &t, &rows, &error));
    updated = ((thing *)rows.rows)->updated;
    jobq_pg_rows_clear(&rows);
    before = number("SELECT xmin::text::bigint FROM jobq.thing");
    OK(jobq_pg_table_update(things, NULL, NULL, &t, NULL, NULL, &rows, &error));
    out = rows.rows;
    assert_int_equal(out->updated, updated);
    jobq_pg_rows_clear(&rows);
    OK(jobq_pg_table_update(things, NULL, " ", &t, NULL, NULL, NULL, &error));
    assert_int_equal(number("SELECT xmin::text::bigint FROM jobq.thing"), before);
    OK(jobq_pg_table_update(things, NULL, "medium", &t, NULL, NULL, &rows, &error));
    out = rows.rows;
    assert_true(out->updated > updated);
    jobq_pg_rows_clear(&rows);
    t.id = 77;
    assert_int_equal(jobq_pg_table_update(things, NULL, "", &t, NULL, NULL, &rows, &error),
                     JOBQ_ERROR_NOT_FOUND);
    assert_int_equal(jobq_pg_table_update(things, NULL, "medium", &t, NULL, NULL, &rows, &error),
                     JOBQ_ERROR_NOT_FOUND);
    assert_string_equal(error.message, "Not found: thing with id=77");
}

static void read_only_fields_are_refused(void **state)
{
    thing t = blank("r");

    (void)state;
    t.id = make("r");
    assert_int_equal(jobq_pg_table_update(things, NULL, "id", &t, NULL, NULL, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_table_update(things, NULL, "updated", &t, NULL, NULL, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_table_update(things, NULL, "big big", &t, NULL, NULL, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_table_update(things, NULL, "big>", &t, NULL, NULL, NULL, &error),
                     JOBQ_ERROR_INVALID);
}

static void compare_and_set(void **state)
{
    thing t = blank("cas"), was = blank("cas");
    jobq_pg_rows rows;

    (void)state;
    t.id = make("cas");
    t.feeling = MOOD_HAPPY;
    was.feeling = MOOD_OK;
    was.id = t.id;
    OK(jobq_pg_table_update(things, NULL, "feeling", &t, "feeling id", &was, &rows, &error));
    assert_int_equal(((thing *)rows.rows)->feeling, MOOD_HAPPY);
    jobq_pg_rows_clear(&rows);
    assert_int_equal(jobq_pg_table_update(things, NULL, "feeling", &t, "feeling id", &was, &rows,
                                          &error), JOBQ_ERROR_LOST);
    assert_string_equal(error.message, "Invalid state: not as expected: thing with id=1");
    assert_int_equal(jobq_pg_table_update(things, NULL, NULL, &t, "feeling id", &was, &rows,
                                          &error), JOBQ_ERROR_LOST);
    was.id = 99;
    assert_int_equal(jobq_pg_table_update(things, NULL, "feeling", &t, "feeling id", &was, &rows,
                                          &error), JOBQ_ERROR_NOT_FOUND);
    assert_string_equal(error.message, "Not found: thing with id=99");
}

/* A status that row itself still has; and the key of another row than the one that is written. */
static void update_compares_with_the_row_itself(void **state)
{
    thing t = blank("self"), other = blank("other");
    jobq_pg_rows rows;

    (void)state;
    t.id = make("self");
    other.id = make("other");
    t.medium = 5;
    t.feeling = MOOD_OK;
    OK(jobq_pg_table_update(things, NULL, "medium", &t, "id feeling", NULL, &rows, &error));
    assert_int_equal(((thing *)rows.rows)->medium, 5);
    jobq_pg_rows_clear(&rows);
    t.feeling = MOOD_SAD;
    assert_int_equal(jobq_pg_table_update(things, NULL, "medium", &t, "id feeling", NULL, &rows,
                                          &error), JOBQ_ERROR_LOST);
    OK(jobq_pg_table_update(things, NULL, "medium", &t, NULL, &other, &rows, &error));
    assert_true(((thing *)rows.rows)->id == other.id && ((thing *)rows.rows)->medium == 5);
    jobq_pg_rows_clear(&rows);
}

/* Of the key as it is there is one row at most: who writes it waits for its lock. Of all others a
 * locked one is left out. */
static void only_the_whole_key_is_one_row(void **state)
{
    static const char *const many[] = {"id<=", "label", "id<> label"};
    PGconn *conn = PQconnectdb(server());
    thing set = blank(""), like = blank("m1");
    jobq_pg_rows rows;
    size_t i;

    (void)state;
    like.id = make("m1") + 1;
    set.medium = 9;
    PQclear(PQexec(conn, "SET lock_timeout = 1"));
    for (i = 0; i < COUNT(many); i++) {
        RUN("BEGIN");
        RUN("SELECT FROM jobq.thing FOR UPDATE");
        OK(jobq_pg_table_update(things, conn, "medium", &set, many[i], &like, &rows, &error));
        assert_int_equal(rows.count, 0);
        RUN("COMMIT");
        OK(jobq_pg_table_update(things, NULL, "medium", &set, many[i], &like, &rows, &error));
        assert_int_equal(rows.count, 1);
        jobq_pg_rows_clear(&rows);
        assert_int_equal(jobq_pg_table_update(things, NULL, "", &set, many[i], &like, &rows,
                                              &error), JOBQ_ERROR_INVALID);
        assert_string_equal(error.field, "fields");
    }
    assert_int_equal(jobq_pg_table_update(things, NULL, "medium", &set, "id no", &like, &rows,
                                          &error), JOBQ_ERROR_INVALID);
    like.id--;
    RUN("BEGIN");
    RUN("SELECT FROM jobq.thing FOR UPDATE");
    assert_int_not_equal(jobq_pg_table_update(things, conn, "medium", &set, "id label", &like,
                                              &rows, &error), JOBQ_OK);
    assert_string_equal(error.sqlstate, "55P03");
    RUN("COMMIT");
    OK(jobq_pg_table_update(things, conn, "medium", &set, "id label", &like, NULL, &error));
    PQfinish(conn);
}

static void upsert_creates_then_updates(void **state)
{
    thing t = blank("up");
    jobq_pg_rows rows;
    int64_t id;

    (void)state;
    t.medium = 1;
    OK(jobq_pg_table_create(things, NULL, "label medium", &t, "label", &rows, &error));
    id = ((thing *)rows.rows)->id;
    jobq_pg_rows_clear(&rows);
    t.medium = 2;
    OK(jobq_pg_table_create(things, NULL, "label medium", &t, "label", &rows, &error));
    assert_true(((thing *)rows.rows)->id == id && ((thing *)rows.rows)->medium == 2);
    jobq_pg_rows_clear(&rows);
    OK(jobq_pg_table_create(things, NULL, "label", &t, "label", &rows, &error));
    assert_int_equal(((thing *)rows.rows)->medium, 2);
    jobq_pg_rows_clear(&rows);
    assert_int_equal(jobq_pg_table_create(things, NULL, "label", &t, " ", &rows, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "unique");
}

static void delete_tells_whether_it_was_there(void **state)
{
    thing t = blank("gone");
    int64_t count = -1;

    (void)state;
    t.id = make("gone");
    OK(jobq_pg_table_delete(things, NULL, NULL, &t, &count, &error));
    assert_int_equal(count, 1);
    OK(jobq_pg_table_delete(things, NULL, NULL, &t, &count, &error));
    assert_int_equal(count, 0);
    make("one");
    make("two");
    OK(jobq_pg_table_delete(things, NULL, "medium", &(thing){.medium = 2}, &count, &error));
    assert_int_equal(count, 2);
}

static void create_many_is_all_or_none(void **state)
{
    enum { MANY = 2001 };
    thing *many = calloc(MANY, sizeof *many);
    char (*labels)[16] = calloc(MANY, sizeof *labels);
    int i;

    (void)state;
    for (i = 0; i < MANY; i++) {
        many[i] = full();
        snprintf(labels[i], sizeof labels[i], "m%04d", i);
        many[i].label = jobq_str_from(labels[i]);
    }
    OK(jobq_pg_table_create_many(things, NULL, NULL, many, MANY, &error));
    assert_int_equal(number("SELECT count(*) FROM jobq.thing WHERE label = 'm' || lpad((id - "
                            "1)::text, 4, '0')"), MANY);
    RUN("DELETE FROM jobq.thing WHERE label < 'm1999'");
    assert_int_equal(jobq_pg_table_create_many(things, NULL, NULL, many, MANY, &error),
                     JOBQ_ERROR_EXISTS);
    assert_string_equal(error.value, "m1999");
    assert_int_equal(number("SELECT count(*) FROM jobq.thing"), 2);
    OK(jobq_pg_table_create_many(things, NULL, NULL, many, 0, &error));
    free(labels);
    free(many);
}

static void update_skips_locked_rows(void **state)
{
    thing set = blank(""), like = blank("");
    jobq_pg_rows rows;

    (void)state;
    make("s1");
    make("s2");
    make("s3");
    RUN("BEGIN");
    RUN("SELECT FROM jobq.thing WHERE label = 's2' FOR UPDATE");
    set.feeling = MOOD_SAD;
    like.feeling = MOOD_OK;
    OK(jobq_pg_table_update(things, NULL, "feeling", &set, "feeling +at<", &like, &rows, &error));
    assert_int_equal(rows.count, 2);
    jobq_pg_rows_clear(&rows);
    RUN("COMMIT");
    OK(jobq_pg_table_update(things, NULL, "feeling", &set, "feeling", &like, &rows, &error));
    assert_int_equal(rows.count, 1);
    assert_str(((thing *)rows.rows)->label, "s2");
    jobq_pg_rows_clear(&rows);
}

static void views_are_read(void **state)
{
    static const jobq_pg_column columns[] = {
        JOBQ_PG_COLUMN(thing, id, INT64, JOBQ_PG_KEY), JOBQ_PG_COLUMN(thing, label, TEXT, 0),
        JOBQ_PG_COLUMNS_END};
    static const jobq_pg_table_desc desc = {"jobq.look", sizeof(thing), columns, NULL, NULL, false};
    jobq_pg_table *look;
    jobq_pg_rows rows;

    (void)state;
    RUN("CREATE VIEW jobq.look AS SELECT id, CASE WHEN id < 2 THEN label END AS label FROM "
        "jobq.thing");
    OK(jobq_pg_table_open(&look, pg, NULL, &desc, &error));
    make("seen");
    OK(jobq_pg_table_list(look, NULL, NULL, &rows, &error));
    assert_str(((thing *)rows.rows)->label, "seen");
    jobq_pg_rows_clear(&rows);
    make("null in a column that can't be");
    assert_int_equal(jobq_pg_table_list(look, NULL, NULL, &rows, &error), JOBQ_ERROR_INVALID);
    assert_null(rows.rows);
    jobq_pg_table_close(look);
    RUN("DROP VIEW jobq.look");
}

/* -- descriptions that lie -- */

typedef struct lie {
    const char *table, *column;
    jobq_pg_type type;
    size_t size;
    unsigned flags;
    const char *const *names;
    const char *told;
} lie;

static void wrong_descriptions_are_told(void **state)
{
    static const char *const few[] = {"sad", "ok", NULL};
    static const char *const other[] = {"sad", "ok", "glad", NULL};
    static const lie lies[] = {
        {"jobq.thing", "labl", JOBQ_PG_TEXT, 16, 1, NULL, "no such column"},
        {"jobq.things", "label", JOBQ_PG_TEXT, 16, 1, NULL, "no such table"},
        {"things", "label", JOBQ_PG_TEXT, 16, 1, NULL, "error: things: there is no such table"},
        {"jobq.thing", "label", JOBQ_PG_INT64, 8, 1, NULL,
         "is described as int64, but its type is text"},
        {"jobq.thing", "medium", JOBQ_PG_INT64, 8, 1, NULL, "but its type is integer"},
        {"jobq.thing", "n_label", JOBQ_PG_TEXT, 16, 1, NULL, "add JOBQ_PG_NULLABLE"},
        {"jobq.thing", "label", JOBQ_PG_TEXT, 16, 3, NULL, "but it is NOT NULL"},
        {"jobq.thing", "medium", JOBQ_PG_INT32, 8, 1, NULL, "not of the type's size"},
        {"jobq.thing", "n_medium", JOBQ_PG_INT32, 4, 3, NULL, "jobq_pg_maybe_"},
        {"jobq.thing", "feeling", JOBQ_PG_ENUM, 4, 1, few, "but its labels differ: "},
        {"jobq.thing", "feeling", JOBQ_PG_ENUM, 4, 1, other, "but its labels differ: "},
        {"jobq.thing", "feeling", JOBQ_PG_ENUM, 4, 1, NULL, "needs names"},
        {"jobq.thing", "feeling", JOBQ_PG_TEXT, 16, 1, NULL, "but its type is "},
        {"jobq.thing", "medium", JOBQ_PG_INT32, 4, 1 | 16, NULL, "only text can be searched"},
        {"jobq.thing", "medium", JOBQ_PG_INT32, 4, 0, NULL, "JOBQ_PG_KEY"},
        {"jobq.thing", "at", JOBQ_PG_DATE, 4, 1, NULL, "timestamp with time zone"},
        {"jobq.thing", "tags", JOBQ_PG_INT64S, 16, 1, NULL, "text[]"},
        {"jobq.thing", "bytes", JOBQ_PG_NONE, 16, 1, NULL, "no type"},
    };
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(lies); i++) {
        jobq_pg_column columns[2] = {{lies[i].column, lies[i].type, 0, lies[i].size, lies[i].flags,
                                      lies[i].names}, JOBQ_PG_COLUMNS_END};
        jobq_pg_table_desc desc = {lies[i].table, 64, columns, NULL, NULL, false};
        jobq_pg_table *t = things;
        assert_int_equal(jobq_pg_table_open(&t, pg, NULL, &desc, &error), JOBQ_ERROR_INVALID);
        assert_null(t);
        if (strstr(error.message, lies[i].told) == NULL)
            fail_msg("%d: %s: %s", (int)i, lies[i].told, error.message);
    }
}

/* -- connections -- */

static void works_without_a_handle_and_in_a_transaction(void **state)
{
    PGconn *conn = PQconnectdb(server());
    jobq_pg_table_desc desc = thing_desc;
    char name[80];
    jobq_pg_table *own;
    thing t = blank("tx");
    jobq_pg_rows rows;

    (void)state;
    snprintf(name, sizeof name, "%s.thing", schema);
    desc.name = name;
    OK(jobq_pg_table_open(&own, NULL, conn, &desc, &error));
    assert_int_equal(jobq_pg_table_list(own, NULL, NULL, &rows, &error), JOBQ_ERROR_INVALID);
    PQclear(PQexec(conn, "BEGIN"));
    OK(jobq_pg_table_create(own, conn, "label", &t, NULL, NULL, &error));
    OK(jobq_pg_table_get(own, conn, "label", &t, NULL, &error));
    assert_int_equal(jobq_pg_table_get(things, NULL, "label", &t, NULL, &error),
                     JOBQ_ERROR_NOT_FOUND);
    PQclear(PQexec(conn, "ROLLBACK"));
    assert_int_equal(jobq_pg_table_get(own, conn, "label", &t, NULL, &error),
                     JOBQ_ERROR_NOT_FOUND);
    jobq_pg_table_close(own);
    PQfinish(conn);
}

static void statements_are_prepared_once(void **state)
{
    PGconn *conn = PQconnectdb(server());
    thing want = blank("p");
    jobq_pg_rows rows;
    PGresult *res;
    int i;

    (void)state;
    make("p");
    for (i = 0; i < 200; i++) { /* more than the record of names begins with */
        OK(jobq_pg_table_get(things, conn, "label", &want, &rows, &error));
        jobq_pg_rows_clear(&rows);
    }
    res = PQexec(conn, "SELECT count(*), count(*) FILTER (WHERE generic_plans + custom_plans = 200)"
                       " FROM pg_prepared_statements");
    assert_string_equal(PQgetvalue(res, 0, 0), "1");
    assert_string_equal(PQgetvalue(res, 0, 1), "1");
    PQclear(res);
    PQclear(PQexec(conn, "DISCARD ALL")); /* what a pooler does */
    OK(jobq_pg_table_get(things, conn, "label", &want, &rows, &error));
    jobq_pg_rows_clear(&rows);
    OK(jobq_pg_table_get(things, conn, "label", &want, &rows, &error));
    jobq_pg_rows_clear(&rows);
    PQreset(conn);
    OK(jobq_pg_table_get(things, conn, "label", &want, &rows, &error));
    jobq_pg_rows_clear(&rows);
    PQfinish(conn);
}

/* Of texts with the same hash, and so the same name, each is itself. */
static void a_statement_is_found_by_its_text(void **state)
{
    char one[] = "SELECT 1::bigint", two[] = "SELECT 2::bigint", odd[] = "SELECT $1::bigint";
    jobq_pg__text texts[] = {{one, 7}, {two, 7}, {odd, 7 + JOBQ_PG__CHAINS}};
    PGconn *conn = PQconnectdb(server());
    static jobq_pg__params none;
    int i;

    (void)state;
    for (i = 0; i < 9; i++) {
        PGresult *res;
        jobq_pg__params_init(&none);
        if (i % 3 == 2) jobq_pg__add_int(&none, 3, 8);
        res = jobq_pg__exec_text(pg, conn, NULL, &texts[i % 3], &none, true, &error);
        assert_non_null(res);
        assert_int_equal(jobq_pg__int(res, 0, 0), i % 3 + 1);
        PQclear(res);
    }
    PQfinish(conn);
}

static void unprepared_leaves_no_statement(void **state)
{
    jobq_pg_table_desc desc = thing_desc;
    PGconn *conn = PQconnectdb(server());
    jobq_pg_table *own;
    PGresult *res;
    thing t = blank("np");
    jobq_pg_rows rows;

    (void)state;
    desc.unprepared = true;
    OK(jobq_pg_table_open(&own, pg, conn, &desc, &error));
    OK(jobq_pg_table_create(own, conn, NULL, &(thing){.label = t.label, .bytes = t.label,
       .amount = {"1", 1}, .doc = {"1", 1}, .plain = {"1", 1}}, NULL, NULL, &error));
    OK(jobq_pg_table_get(own, conn, "label", &t, &rows, &error));
    jobq_pg_rows_clear(&rows);
    res = PQexec(conn, "SELECT FROM pg_prepared_statements");
    assert_int_equal(PQntuples(res), 0);
    PQclear(res);
    jobq_pg_table_close(own);
    PQfinish(conn);
}

static void a_changed_table_is_met_by_preparing_anew(void **state)
{
    PGconn *conn = PQconnectdb(server());
    thing want = blank("c");
    jobq_pg_rows rows;

    (void)state;
    make("c");
    OK(jobq_pg_table_get(things, conn, "label", &want, &rows, &error));
    jobq_pg_rows_clear(&rows);
    RUN("ALTER TABLE jobq.thing ALTER n_label TYPE varchar(41)");
    OK(jobq_pg_table_get(things, conn, "label", &want, &rows, &error));
    jobq_pg_rows_clear(&rows);
    RUN("ALTER TABLE jobq.thing ALTER n_label TYPE varchar(40)");
    PQfinish(conn);
}

/* The server still has every name: to prepare one again would end a transaction. */
static void a_changed_table_leaves_transactions_whole(void **state)
{
    static const char *const wheres[] = {"label", "id"};
    PGconn *conn = PQconnectdb(server());
    thing want = blank("c");
    jobq_pg_rows rows;
    int in_one, i;

    (void)state;
    want.id = make("c");
    for (in_one = 0; in_one < 2; in_one++) {
        OK(jobq_pg_table_get(things, conn, wheres[in_one], &want, &rows, &error));
        jobq_pg_rows_clear(&rows);
        OK(jobq_pg_table_get(things, conn, "label", &want, NULL, &error));
        RUN("ALTER TABLE jobq.thing ALTER n_label TYPE varchar(%d)", 41 - in_one);
        if (in_one) { /* met there: that one ends, the next does not */
            PQclear(PQexec(conn, "BEGIN"));
            assert_true(jobq_pg_table_get(things, conn, "id", &want, &rows, &error) != JOBQ_OK);
            PQclear(PQexec(conn, "ROLLBACK"));
        } else {
            OK(jobq_pg_table_get(things, conn, "label", &want, &rows, &error));
            jobq_pg_rows_clear(&rows);
        }
        PQclear(PQexec(conn, "BEGIN"));
        OK(jobq_pg_table_get(things, conn, "label", &want, NULL, &error));
        for (i = 0; i < 2; i++) {
            OK(jobq_pg_table_get(things, conn, wheres[in_one], &want, &rows, &error));
            jobq_pg_rows_clear(&rows);
        }
        assert_int_equal(PQtransactionStatus(conn), PQTRANS_INTRANS);
        PQclear(PQexec(conn, "ROLLBACK"));
    }
    PQfinish(conn);
}

static void aborted_transactions_are_refused(void **state)
{
    PGconn *conn = PQconnectdb(server());
    thing want = blank("a");
    jobq_pg_rows rows;

    (void)state;
    PQclear(PQexec(conn, "BEGIN"));
    PQclear(PQexec(conn, "nonsense"));
    assert_int_equal(jobq_pg_table_get(things, conn, "label", &want, &rows, &error),
                     JOBQ_ERROR_INVALID);
    PQfinish(conn);
}

static void a_lost_connection_is_told(void **state)
{
    PGconn *conn = PQconnectdb(server());
    thing want = blank("a");
    jobq_pg_rows rows;

    (void)state;
    RUN("SELECT pg_terminate_backend(%d)", PQbackendPID(conn));
    assert_true(jobq_pg_table_get(things, conn, "label", &want, &rows, &error) != JOBQ_OK);
    assert_true(error.code == JOBQ_ERROR_CONNECTION || error.code == JOBQ_ERROR_RETRYABLE);
    PQfinish(conn);
}

/* -- transactions -- */

static jobq_error add(PGconn *conn, const char *label, jobq_pg_error *e)
{
    thing t = blank(label);

    return jobq_pg_table_create(things, conn, "label", &t, NULL, NULL, e);
}

static jobq_error adds_again(PGconn *conn, void *label, jobq_pg_error *e)
{
    return add(conn, label, e);
}

static jobq_error adds_inner(PGconn *conn, void *user, jobq_pg_error *e)
{
    char inner[] = "inner";

    (void)user;
    OK(add(conn, inner, e));
    assert_int_equal(jobq_pg_transact(NULL, conn, adds_again, inner, e), JOBQ_ERROR_EXISTS);
    return JOBQ_OK;
}

static jobq_error adds_and_fails(PGconn *conn, void *label, jobq_pg_error *e)
{
    OK(add(conn, label, e));
    return JOBQ_ERROR_FULL;
}

static jobq_error adds_outer(PGconn *conn, void *user, jobq_pg_error *e)
{
    char dropped[] = "dropped";

    (void)user;
    OK(add(conn, "outer", e));
    OK(jobq_pg_transact(NULL, conn, adds_inner, NULL, e));
    assert_int_equal(jobq_pg_transact(NULL, conn, adds_and_fails, dropped, e), JOBQ_ERROR_FULL);
    return JOBQ_OK;
}

static void transactions_nest(void **state)
{
    PGconn *conn = PQconnectdb(server());

    (void)state;
    OK(jobq_pg_transact(NULL, conn, adds_outer, NULL, &error));
    assert_int_equal(PQtransactionStatus(conn), PQTRANS_IDLE);
    assert_int_equal(number("SELECT count(*) FROM jobq.thing WHERE label IN ('outer', 'inner')"),
                     2);
    assert_int_equal(number("SELECT count(*) FROM jobq.thing"), 2);
    PQfinish(conn);
}

static jobq_error breaks(PGconn *conn, void *user, jobq_pg_error *e)
{
    (void)user, (void)e;
    PQclear(PQexec(conn, "nonsense"));
    return JOBQ_OK;
}

static void a_body_that_fails_is_rolled_back(void **state)
{
    PGconn *conn = PQconnectdb(server());
    char label[] = "left";

    (void)state;
    assert_int_equal(jobq_pg_transact(pg, conn, adds_and_fails, label, &error), JOBQ_ERROR_FULL);
    assert_int_equal(number("SELECT count(*) FROM jobq.thing"), 0);
    assert_int_equal(PQtransactionStatus(conn), PQTRANS_IDLE);
    assert_int_equal(jobq_pg_transact(pg, conn, breaks, NULL, &error),
                     JOBQ_ERROR_DATABASE); /* COMMIT: ROLLBACK */
    assert_int_equal(PQtransactionStatus(conn), PQTRANS_IDLE);
    PQfinish(conn);
}

/* Fails with a SQLSTATE until it has been called often enough. */
typedef struct stubborn {
    int calls, good_at;
    const char *sqlstate;
} stubborn;

static jobq_error fail_some(PGconn *conn, void *user, jobq_pg_error *e)
{
    stubborn *s = user;
    thing t = blank("some");

    if (jobq_pg_table_create(things, conn, "label", &t, NULL, NULL, e) != JOBQ_OK) return e->code;
    if (++s->calls >= s->good_at) return JOBQ_OK;
    {
        char text[100];
        PGresult *res;
        jobq_error code;
        snprintf(text, sizeof text, "DO $$ BEGIN RAISE SQLSTATE '%s'; END $$", s->sqlstate);
        res = PQexec(conn, text);
        code = jobq_pg__result_error(e, conn, res);
        PQclear(res);
        return code;
    }
}

static void transact_tries_again(void **state)
{
    stubborn s = {0, 3, "40001"};

    (void)state;
    OK(jobq_pg_transact(pg, NULL, fail_some, &s, &error));
    assert_int_equal(s.calls, 3);
    assert_int_equal(number("SELECT count(*) FROM jobq.thing"), 1);
    RUN("TRUNCATE jobq.thing");
    s = (stubborn){0, 2, "40P01"};
    OK(jobq_pg_transact(pg, NULL, fail_some, &s, &error));
    assert_int_equal(s.calls, 2);
    RUN("TRUNCATE jobq.thing");
    s = (stubborn){0, 2, "22012"};
    assert_int_equal(jobq_pg_transact(pg, NULL, fail_some, &s, &error), JOBQ_ERROR_INVALID);
    assert_int_equal(s.calls, 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.thing"), 0);
}

static void transact_inside_a_transaction_runs_once(void **state)
{
    PGconn *conn = PQconnectdb(server());
    stubborn s = {0, 3, "40001"};

    (void)state;
    PQclear(PQexec(conn, "BEGIN"));
    assert_int_equal(jobq_pg_transact(pg, conn, fail_some, &s, &error), JOBQ_ERROR_RETRYABLE);
    assert_int_equal(s.calls, 1);
    assert_int_equal(PQtransactionStatus(conn), PQTRANS_INTRANS);
    PQfinish(conn);
}

/* -- values as text, in errors -- */

static void text_of_value(jobq_pg_type type, const void *value, char *out)
{
    assert_true(jobq_pg__value_format(type, value, out));
}

static bool is_number(jobq_str text) { return jobq_pg__numeric_valid(text); }

static void dates_as_text(void **state)
{
    static const struct {
        const char *text;
        int32_t days;
    } good[] = {{"1970-01-01", 0}, {"1969-12-31", -1}, {"2000-02-29", 11016}, {"2024-02-29", 19782},
                {"0001-01-01", -719162}, {"9999-12-31", 2932896}, {"5874897-12-31", 2145042905},
                {"infinity", INT32_MAX}, {"-infinity", INT32_MIN}};
    char text[JOBQ_PG__VALUE_SIZE];
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(good); i++) {
        text_of_value(JOBQ_PG_DATE, &good[i].days, text);
        assert_string_equal(text, good[i].text);
    }
}

static void instants_as_text(void **state)
{
    static const struct {
        const char *text;
        int64_t us;
    } good[] = {{"1970-01-01T00:00:00Z", 0},
                {"1969-12-31T23:59:59.500000Z", -500000},
                {"2001-02-03T04:05:06.789000Z", 981173106789000},
                {"1970-01-01T01:30:00Z", (int64_t)5400 * 1000000},
                {"1969-12-31T18:15:00Z", (int64_t)-20700 * 1000000},
                {"infinity", INT64_MAX}, {"-infinity", INT64_MIN}};
    char text[JOBQ_PG__VALUE_SIZE];
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(good); i++) {
        text_of_value(JOBQ_PG_TIMESTAMPTZ, &good[i].us, text);
        assert_string_equal(text, good[i].text);
    }
}

static void intervals_as_text(void **state)
{
    static const struct {
        const char *text;
        jobq_pg_interval value;
    } good[] = {{"P14M3DT4H5M6.700000S", {(int64_t)14706700000, 3, 14}},
                {"P0M0DT0H0M0S", {0, 0, 0}},
                {"P0M0DT-0H-0M-0.500000S", {-500000, 0, 0}},
                {"P-14M3DT-1H-0M-0S", {-3600000000, 3, -14}}};
    char text[JOBQ_PG__VALUE_SIZE];
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(good); i++) {
        text_of_value(JOBQ_PG_INTERVAL, &good[i].value, text);
        assert_string_equal(text, good[i].text);
    }
}

static void numbers_as_text(void **state)
{
    static const char *const numbers[] = {"0", "-1", "+1.5", ".5", "5.", "1e10", "1E-3", "NaN",
                                          "Infinity", "-Infinity"};
    static const char *const none[] = {"", "-", ".", "1e", "e1", "1.2.3", "0x1", " 1", "1 ", "nan",
                                       "1e99999", "--1", "Infinit"};
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(numbers); i++) assert_true(is_number(jobq_str_from(numbers[i])));
    for (i = 0; i < COUNT(none); i++) assert_false(is_number(jobq_str_from(none[i])));
}

/* Of the key of a row that is missing. */
static void values_in_errors_are_whole_or_left_out(void **state)
{
    jobq_pg_column day = {"day", JOBQ_PG_DATE, 0, 0, 0, NULL};
    jobq_pg_column real = {"real", JOBQ_PG_FLOAT, 0, 0, 0, NULL};
    thing want = blank("");
    jobq_pg_rows rows;
    int32_t days = 0;
    float half = 0.5f;
    char text[16];

    (void)state;
    jobq_pg__value_text(&day, (const char *)&days, text, 11);
    assert_string_equal(text, "1970-01-01");
    jobq_pg__value_text(&day, (const char *)&days, text, 10);
    assert_string_equal(text, "...");
    jobq_pg__value_text(&real, (const char *)&half, text, sizeof text);
    assert_string_equal(text, "...");
    memcpy(want.uuid.bytes, "\x6b\xa7\xb8\x10\x9d\xad\x11\xd1\x80\xb4\0\xc0\x4f\xd4\x30\xc8", 16);
    assert_int_equal(jobq_pg_table_get(things, NULL, "uuid", &want, &rows, &error),
                     JOBQ_ERROR_NOT_FOUND);
    assert_string_equal(error.message,
                        "Not found: thing with uuid=6ba7b810-9dad-11d1-80b4-00c04fd430c8");
}

/* -- outside data: seeded, so that a failure comes again -- */

/* The server reads what we write of random dates, instants, intervals. */
static void texts_agree_with_the_server(void **state)
{
    jobq_random random = {8};
    thing t = full(), *out;
    char date[JOBQ_PG__VALUE_SIZE], instant[JOBQ_PG__VALUE_SIZE], interval[JOBQ_PG__VALUE_SIZE];
    char uuid[JOBQ_PG__VALUE_SIZE];
    jobq_pg_rows rows;
    int i;

    (void)state;
    for (i = 0; i < 200; i++) {
        char label[16];
        PGresult *res;
        snprintf(label, sizeof label, "r%d", i);
        t.label = jobq_str_from(label);
        t.day = (int32_t)jobq_random_between(jobq_random_next(&random), -719162, 2145042905);
        t.at = jobq_random_between(jobq_random_next(&random), (int64_t)-719162 * 86400 * 1000000,
                                   INT64_MAX - 1);
        if (i % 2) t.at = t.at / 1000000 * 1000000;
        t.span.us = jobq_random_between(jobq_random_next(&random), -((int64_t)1 << i % 60),
                                        (int64_t)1 << i % 60);
        t.span.days = (int32_t)jobq_random_between(jobq_random_next(&random), -100000, 100000);
        t.span.months = (int32_t)jobq_random_between(jobq_random_next(&random), -9999, 9999);
        ((uint64_t *)(void *)t.uuid.bytes)[i & 1] = jobq_random_next(&random);
        text_of_value(JOBQ_PG_DATE, &t.day, date);
        text_of_value(JOBQ_PG_TIMESTAMPTZ, &t.at, instant);
        text_of_value(JOBQ_PG_INTERVAL, &t.span, interval);
        text_of_value(JOBQ_PG_UUID, &t.uuid, uuid);
        OK(jobq_pg_table_create(things, NULL, NULL, &t, NULL, &rows, &error));
        out = rows.rows;
        assert_true(out->day == t.day && out->at == t.at);
        assert_memory_equal(&out->span, &t.span, sizeof t.span);
        jobq_pg_rows_clear(&rows);
        res = sql(db,
                  "SELECT day = '%s'::date AND at = '%s'::timestamptz AND uuid = '%s' AND span = "
                  "'%s'::interval FROM jobq.thing WHERE label = '%s'",
                  date, instant, uuid, interval, label);
        if (strcmp(PQgetvalue(res, 0, 0), "t") != 0)
            fail_msg("%s %s %s %s", date, instant, uuid, interval);
        PQclear(res);
    }
}

/* Whatever we take for a number, the server takes. */
static void mutated_numbers(void **state)
{
    static const char *const seeds[] = {"-123.456e7", "2024", "1.5", "infinity", ".25E-3"};
    static const char letters[] = "0123456789-+:.TZPYMDHSeEx \\fabn";
    jobq_random random = {88};
    char text[64];
    int i, taken = 0;

    (void)state;
    for (i = 0; i < 100000; i++) {
        jobq_str s = jobq_str_from(seeds[jobq_random_next(&random) % COUNT(seeds)]);
        int changes = (int)(jobq_random_next(&random) % 3) + 1;
        memcpy(text, s.ptr, s.len + 1);
        s.ptr = text;
        while (changes-- > 0 && s.len > 0) {
            size_t at = jobq_random_next(&random) % s.len;
            if (jobq_random_next(&random) % 8 == 0) s.len--;
            else text[at] = letters[jobq_random_next(&random) % (sizeof letters - 1)];
        }
        text[s.len] = '\0';
        if (is_number(s) && ++taken % 64 == 0)
            assert_int_equal(number("SELECT ('%s'::numeric IS NOT NULL)::int", text), 1);
    }
    assert_true(taken > 1000);
}

/* -- nasty texts: what the server reads of them, we write as it reads it -- */

/* The first letter: d date, t instant, i interval, u uuid, n numeric. The second: - we refuse this
 * number, while the server takes some of these, in its many ways. */
static const char *const nasty[] = {
    "d+2024-02-29", "d+2000-02-29", "d+0001-01-01", "d+0001-01-01 BC", "d+0005-02-29 BC",
    "d+4714-11-24 BC", "d+5874897-12-31", "d+infinity", "d+-infinity", "t+2024-02-29T12:34:56Z",
    "t+2024-02-29 12:34:56.789+00", "t+2024-02-29 23:59:59.999999-15:59",
    "t+0001-01-01T00:00:00+02", "t+0044-03-15 12:00:00Z BC", "t+4714-11-24 00:00:00+00 BC",
    "t+1900-01-01 00:00:00+00:53:28", "t+1900-01-01 00:00:00-00:53:28",
    "t+294246-12-31T23:59:59.999999Z", "t+2024-02-29 12:34:56+0130", "t+infinity", "t+-infinity",
    "i+P1Y2M3DT4H5M6.7S", "i+P-1Y-2M-3DT-4H-5M-6.7S", "i+P0D", "i+PT0S", "i+P2W", "i+PT0.000001S",
    "i+PT-0.000001S", "i+PT2562047788H0M54.775807S", "i+P178956970Y7M", "i+P2147483647D",
    "i+P-2147483648D", "i+PT1H-1M", "i+P14M", "u+6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "u+6BA7B8109DAD11D180B400C04FD430C8", "n+0", "n+-0", "n++1", "n+.5", "n+5.", "n+1e10",
    "n+1E-10", "n-1e", "n-.", "n-", "n--", "n-1e99999", "n+NaN", "n-nan", "n-+NaN", "n+Infinity",
    "n+-Infinity", "n-inf", "n- 1", "n-1 ", "n-1.2.3", "n-1,5", "n-0xzz", "n-1e1.5",
    "n+123456789012345678901234567890.000000000000000001", "n+00001", "n-\xd9\xa1"};

static const char *type_of(char letter)
{
    return letter == 'd'   ? "date"
           : letter == 't' ? "timestamptz"
           : letter == 'i' ? "interval"
           : letter == 'u' ? "uuid"
                           : "numeric";
}

/* The server's value of a text, binary or as text; NULL: it refuses. */
static PGresult *theirs_of(char letter, const char *text, int binary)
{
    char query[80];
    PGresult *res;

    snprintf(query, sizeof query, "SELECT $1::text::%s", type_of(letter));
    res = PQexecParams(db, query, 1, NULL, &text, NULL, NULL, binary);
    if (PQresultStatus(res) == PGRES_TUPLES_OK) return res;
    assert_int_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE)[0], '2');
    PQclear(res);
    return NULL;
}

static jobq_pg_type wire_of(char letter)
{
    return letter == 'd'   ? JOBQ_PG_DATE
           : letter == 't' ? JOBQ_PG_TIMESTAMPTZ
           : letter == 'i' ? JOBQ_PG_INTERVAL
                           : JOBQ_PG_UUID;
}

/* The server's value is read by us, and what we write of it means the same to the server. */
static void writes_as_the_server_reads(char letter, const char *text, const PGresult *theirs)
{
    char field[64], out[JOBQ_PG__VALUE_SIZE];

    assert_true(jobq_pg__get_fixed(wire_of(letter), PQgetvalue(theirs, 0, 0),
                                   (size_t)PQgetlength(theirs, 0, 0), field));
    text_of_value(wire_of(letter), field, out);
    if (number("SELECT ('%s'::%s = '%s')::int", text, type_of(letter), out) != 1)
        fail_msg("%s is written as %s", text, out);
}

/* The server's own writing of a number is one to us. */
static void takes_what_the_server_writes(const char *text)
{
    PGresult *res = theirs_of('n', text, 0);

    if (!is_number(jobq_str_from(PQgetvalue(res, 0, 0))))
        fail_msg("%s is written as %s, which we refuse", text, PQgetvalue(res, 0, 0));
    PQclear(res);
}

/* Postgres 14 takes no interval of more hours than an int32 has. */
static bool beyond_14(const char *text)
{
    return PQserverVersion(db) < 150000 && strstr(text, "256204778") != NULL;
}

static void nasty_texts(void **unused)
{
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(nasty); i++) {
        const char *text = nasty[i] + 2;
        char letter = nasty[i][0];
        bool good = nasty[i][1] == '+';
        PGresult *res = beyond_14(text) ? NULL : theirs_of(letter, text, 1);
        if (beyond_14(text)) continue;
        if (letter == 'n' && is_number(jobq_str_from(text)) != good)
            fail_msg("%s: %s", nasty[i], good ? "refused" : "taken");
        if (good && res == NULL) fail_msg("%s: the server refuses it", nasty[i]);
        if (letter != 'n') writes_as_the_server_reads(letter, text, res);
        else if (good) takes_what_the_server_writes(text);
        PQclear(res);
    }
}

/* Random wire bytes into every type: nothing is read or written outside, whatever they are. The
 * sanitizers watch; the guard bytes show it without them. */
static void random_wire_bytes(void **state)
{
    jobq_random random = {888};
    size_t i, c;
    int taken = 0;

    (void)state;
    for (i = 0; i < 40000; i++) {
        for (c = 0; thing_columns[c].name != NULL; c++) {
            const jobq_pg_column *column = &thing_columns[c];
            size_t len = jobq_random_next(&random) % 49, need, k;
            char *wire = malloc(len + 1), *block;
            jobq_pg__heap heap;
            union {
                char bytes[64];
                int64_t align;
            } field;
            if (c != i % 37) {
                free(wire);
                continue;
            }
            for (k = 0; k < len; k++)
                wire[k] = (char)(jobq_random_next(&random) % (i % 3 ? 4 : 256));
            if (len >= 20 && i % 2) { /* a likely array */
                memcpy(wire, "\0\0\0\1\0\0\0\0\0\0\0\31\0\0\0\2\0\0\0\1", 20);
            }
            need = jobq_pg__heap_need(column->type, len);
            block = malloc(need + 16 + 8);
            memset(block, 0x5a, need + 24);
            heap.at = block;
            heap.end = block + need + 16;
            if (jobq_pg__get_value(column, i % 2, wire, len, field.bytes, &heap)) taken++;
            assert_memory_equal(block + need + 16, "\x5a\x5a\x5a\x5a\x5a\x5a\x5a\x5a", 8);
            free(block);
            free(wire);
        }
    }
    assert_true(taken > 1000);
}

/* -- what contains what -- */

static void arrays_and_jsonb_contain(void **unused)
{
    const jobq_str both[] = {{"a", 1}, {"b", 1}}, foreign[] = {{"z", 1}};
    const int64_t numbers[] = {7, 8};
    thing t = full(), like = full();
    jobq_pg_query query = {"tags@>", &like, NULL, NULL, NULL, 0};
    int64_t count = 0;

    (void)unused;
    t.label = jobq_str_from("first");
    t.tags.items = both;
    t.tags.count = 2;
    t.numbers.items = numbers;
    t.numbers.count = 2;
    t.doc = jobq_str_from("{\"a\": {\"b\": 1}, \"c\": 2}");
    OK(jobq_pg_table_create(things, NULL, NULL, &t, NULL, NULL, &error));
    t.label = jobq_str_from("second");
    t.tags.count = 1;
    t.numbers.count = 1;
    t.doc = jobq_str_from("{}");
    OK(jobq_pg_table_create(things, NULL, NULL, &t, NULL, NULL, &error));
    like.tags.items = both;
    like.tags.count = 1;
    OK(jobq_pg_table_count(things, NULL, &query, &count, &error));
    assert_int_equal(count, 2);
    like.tags.count = 2;
    OK(jobq_pg_table_count(things, NULL, &query, &count, &error));
    assert_int_equal(count, 1);
    like.tags.items = foreign;
    like.tags.count = 1;
    OK(jobq_pg_table_count(things, NULL, &query, &count, &error));
    assert_int_equal(count, 0);
    like.tags.items = NULL; /* nothing is in everything */
    like.tags.count = 0;
    OK(jobq_pg_table_count(things, NULL, &query, &count, &error));
    assert_int_equal(count, 2);
    assert_int_equal(jobq_pg_table_get(things, NULL, "tags", &like, NULL, &error),
                     JOBQ_ERROR_NOT_FOUND); /* none is empty */
    like.numbers.items = numbers + 1;
    like.numbers.count = 1;
    query.where = "numbers@>";
    OK(jobq_pg_table_count(things, NULL, &query, &count, &error));
    assert_int_equal(count, 1);
    like.doc = jobq_str_from("{\"a\": {}}");
    query.where = "doc@> label<>";
    OK(jobq_pg_table_count(things, NULL, &query, &count, &error));
    assert_int_equal(count, 1);
    assert_int_equal(jobq_pg_table_get(things, NULL, "n_tags@>", &(thing){0}, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "n_tags"));
    assert_int_equal(jobq_pg_table_get(things, NULL, "plain@>", &like, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_table_get(things, NULL, "label@>", &like, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "needs an array or a jsonb"));
}

/* As numbers, not as the texts that they are read as. */
static void numbers_page_in_their_order(void **state)
{
    static const char *const amounts[] = {"9.000", "10.000", "100.000"};
    jobq_pg_query q;
    jobq_pg_rows rows;
    thing last = blank("");
    int i, way;

    (void)state;
    RUN("INSERT INTO jobq.thing (label, amount) VALUES ('a', 100), ('b', 9), ('c', 10)");
    for (way = 0; way < 2; way++) {
        memset(&q, 0, sizeof q);
        q.order = way == 0 ? "amount" : "-amount";
        q.limit = 1;
        for (i = 0; i < 3; i++) {
            OK(jobq_pg_table_list(things, NULL, &q, &rows, &error));
            assert_int_equal(rows.count, 1);
            last = *(thing *)rows.rows;
            last.amount = jobq_str_from(amounts[way == 0 ? i : 2 - i]);
            assert_str(((thing *)rows.rows)->amount, last.amount.ptr);
            jobq_pg_rows_clear(&rows);
            q.after = &last;
        }
        OK(jobq_pg_table_list(things, NULL, &q, &rows, &error));
        assert_int_equal(rows.count, 0);
    }
}

typedef struct tagged {
    int64_t id;
    jobq_pg_texts tags, notes;
} tagged;

static const jobq_pg_column tagged_columns[] = {
    JOBQ_PG_COLUMN(tagged, id, INT64, JOBQ_PG_KEY),
    JOBQ_PG_COLUMN(tagged, tags, TEXTS, 0),
    JOBQ_PG_COLUMN(tagged, notes, TEXTS, JOBQ_PG_NULLABLE), JOBQ_PG_COLUMNS_END};

static const jobq_pg_table_desc tagged_desc = {"jobq.tagged", sizeof(tagged), tagged_columns,
                                               "tagged", NULL, false};

/* The server takes no array of another element's type, not even of text for varchar. */
static void varchar_arrays_are_parameters(void **state)
{
    static const jobq_str words[] = {{"a", 1}, {NULL, 0}, {"b,c", 3}};
    static const char *const wheres[] = {"tags", "tags@>", "tags>=", "notes", "notes@>"};
    jobq_pg_table *t;
    jobq_pg_rows rows;
    tagged row;
    size_t i;

    (void)state;
    RUN("CREATE DOMAIN jobq.notes AS varchar(9)[]");
    RUN("CREATE TABLE jobq.tagged (id bigint PRIMARY KEY, tags varchar[] NOT NULL, "
        "notes jobq.notes)");
    OK(jobq_pg_table_open(&t, pg, NULL, &tagged_desc, &error));
    memset(&row, 0, sizeof row);
    row.id = 1;
    row.tags.items = words;
    row.tags.count = 3;
    OK(jobq_pg_table_create(t, NULL, NULL, &row, NULL, NULL, &error));
    row.notes.items = words + 2;
    row.notes.count = 1;
    OK(jobq_pg_table_create(t, NULL, NULL, &row, "id", NULL, &error));
    OK(jobq_pg_table_update(t, NULL, "tags notes", &row, NULL, NULL, &rows, &error));
    assert_int_equal(((tagged *)rows.rows)->tags.count, 3);
    jobq_pg_rows_clear(&rows);
    row.tags.count = 1; /* {a}: in it, and before it */
    assert_int_equal(jobq_pg_table_get(t, NULL, "tags", &row, &rows, &error),
                     JOBQ_ERROR_NOT_FOUND);
    for (i = 0; i < COUNT(wheres); i++) {
        row.tags.count = i == 0 ? 3 : 1;
        OK(jobq_pg_table_get(t, NULL, wheres[i], &row, &rows, &error));
        assert_int_equal(rows.count, 1);
        assert_str(((tagged *)rows.rows)->notes.items[0], "b,c");
        jobq_pg_rows_clear(&rows);
    }
    jobq_pg_table_close(t);
}

/* Without the 2 GB: only their size is looked at. */
static void a_field_too_long_fails_before_libpq(void **state)
{
    static jobq_pg__params args;
    int over;

    (void)state;
    for (over = 0; over < 2; over++) {
        jobq_pg__params_init(&args);
        jobq_pg__begin(&args);
        args.size = (size_t)INT32_MAX + (size_t)over;
        jobq_pg__end(&args);
        assert_int_equal(args.failed, over);
        assert_int_equal(args.lengths[0], over ? 0 : INT32_MAX);
    }
}

/* -- tables of several -- */

typedef struct part {
    int64_t id;
    int32_t rank;
} part;

static const jobq_pg_column part_columns[] = {JOBQ_PG_COLUMN(part, id, INT64, JOBQ_PG_KEY),
                                              JOBQ_PG_COLUMN(part, rank, INT32, 0),
                                              JOBQ_PG_COLUMNS_END};

/* Their ctids repeat: (0,1) is the first row of each. */
static void update_refuses_partitions_and_children(void **state)
{
    static const char *const made[] = {
        "CREATE TABLE jobq._part (id bigint NOT NULL, rank int NOT NULL) PARTITION BY LIST (id)",
        "CREATE TABLE jobq.part_1 PARTITION OF jobq._part FOR VALUES IN (1)",
        "CREATE TABLE jobq.part_2 PARTITION OF jobq._part FOR VALUES IN (2)",
        "CREATE TABLE jobq.old (id bigint NOT NULL, rank int NOT NULL)",
        "CREATE TABLE jobq.old_1 () INHERITS (jobq.old)",
        "INSERT INTO jobq._part VALUES (1, 0), (2, 0)",
        "INSERT INTO jobq.old VALUES (1, 0)",
        "INSERT INTO jobq.old_1 VALUES (2, 0)"};
    static const struct { const char *name; bool refused; } kinds[] = {
        {"jobq._part", true}, {"jobq.old", true}, {"jobq.part_1", false}, {"jobq.old_1", false}};
    part row = {1, 5}, like = {1, 0};
    jobq_pg_table *t;
    jobq_pg_rows rows;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(made); i++) RUN("%s", made[i]);
    for (i = 0; i < COUNT(kinds); i++) {
        jobq_pg_table_desc desc = {kinds[i].name, sizeof(part), part_columns, "part", NULL, false};
        jobq_error code;
        OK(jobq_pg_table_open(&t, pg, NULL, &desc, &error));
        code = jobq_pg_table_update(t, NULL, "rank", &row, "id<= rank", &like, NULL, &error);
        assert_int_equal(code, kinds[i].refused ? JOBQ_ERROR_INVALID : JOBQ_OK);
        if (kinds[i].refused) {
            assert_non_null(strstr(error.message, "partitions or children"));
            OK(jobq_pg_table_list(t, NULL, NULL, &rows, &error));
            assert_int_equal(rows.count, 2);
            jobq_pg_rows_clear(&rows);
            OK(jobq_pg_table_update(t, NULL, "rank", &like, "id rank", NULL, NULL, &error));
        }
        jobq_pg_table_close(t);
    }
    assert_int_equal(number("SELECT sum(rank) FROM jobq._part WHERE id = 2"), 0);
    assert_int_equal(number("SELECT sum(rank) FROM jobq.old WHERE id = 2"), 0);
}

/* -- durations, and NULL as zero -- */

#define DAY_US (86400 * SECOND)

typedef struct lapse {
    int64_t id;
    int64_t span_us;             /* an interval that can't be NULL */
    int64_t rest_us;             /* NULL is 0 */
    jobq_pg_maybe_int64 wait_us; /* NULL is not set */
    int64_t holder, until_us;    /* NULL is 0 */
    bool flag;
    double weight;
} lapse;

static const jobq_pg_column lapse_columns[] = {
    JOBQ_PG_COLUMN(lapse, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN_AS(lapse, span_us, "span", DURATION, 0),
    JOBQ_PG_COLUMN_AS(lapse, rest_us, "rest", DURATION, JOBQ_PG_ZERO),
    JOBQ_PG_COLUMN_AS(lapse, wait_us, "wait", DURATION, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(lapse, holder, INT64, JOBQ_PG_ZERO),
    JOBQ_PG_COLUMN_AS(lapse, until_us, "until", TIMESTAMPTZ, JOBQ_PG_ZERO),
    JOBQ_PG_COLUMN(lapse, flag, BOOL, JOBQ_PG_ZERO),
    JOBQ_PG_COLUMN(lapse, weight, DOUBLE, JOBQ_PG_ZERO),
    JOBQ_PG_COLUMNS_END};

static const jobq_pg_table_desc lapse_desc = {"jobq.lapse", sizeof(lapse), lapse_columns,
                                              "lapse", NULL, false};

static void durations_and_null_as_zero(void **unused)
{
    static const struct { const char *text; int64_t us; } spans[] = {
        {"0", 0}, {"-1 us", -1}, {"1 day", DAY_US}, {"2 days -1 us", 2 * DAY_US - 1},
        {"1 month", 30 * DAY_US}, {"-1 mon 1 day", -29 * DAY_US},
        {"1 year 1 hour", 360 * DAY_US + 3600 * SECOND},
        {"178000000 years", JOBQ_NEVER}, {"-178000000 years", -JOBQ_NEVER},
        {"2562047787 hours 106751991 days", JOBQ_NEVER},
        {"-2562047787 hours -106751991 days", -JOBQ_NEVER}};
    jobq_pg_table *lapses;
    lapse row, like, *got;
    jobq_pg_rows rows;
    size_t i;

    (void)unused;
    RUN("DROP TABLE IF EXISTS jobq.lapse");
    RUN("CREATE TABLE jobq.lapse (id bigserial PRIMARY KEY, span interval NOT NULL, rest interval,"
        " wait interval, holder bigint, until timestamptz, flag bool, weight float8)");
    OK(jobq_pg_table_open(&lapses, pg, NULL, &lapse_desc, &error));
    memset(&row, 0, sizeof row);
    OK(jobq_pg_table_create(lapses, NULL, NULL, &row, NULL, &rows, &error));
    assert_int_equal(number("SELECT count(*) FROM jobq.lapse WHERE span = '0' AND "
                            "num_nulls(rest, wait, holder, until, flag, weight) = 6"), 1);
    assert_memory_equal((char *)rows.rows + sizeof row.id, (char *)&row + sizeof row.id,
                        sizeof row - sizeof row.id);
    jobq_pg_rows_clear(&rows);
    row.span_us = -5;
    row.rest_us = 90 * SECOND;
    row.wait_us = (jobq_pg_maybe_int64){0, true};
    row.holder = -1;
    row.until_us = 1;
    row.flag = true;
    row.weight = 0.5;
    OK(jobq_pg_table_create(lapses, NULL, NULL, &row, NULL, &rows, &error));
    assert_int_equal(number("SELECT count(*) FROM jobq.lapse WHERE span = '-5 us' AND rest = "
                            "'90 s' AND wait = '0' AND holder = -1 AND flag AND weight = 0.5 AND "
                            "until = '1970-01-01 00:00:00.000001Z'"), 1);
    got = rows.rows;
    row.id = got->id;
    assert_true(got->rest_us == 90 * SECOND && got->wait_us.set && got->until_us == 1);
    jobq_pg_rows_clear(&rows);
    row.holder = 0;
    OK(jobq_pg_table_update(lapses, NULL, "holder", &row, NULL, NULL, NULL, &error));
    memset(&like, 0, sizeof like);
    OK(jobq_pg_table_get(lapses, NULL, "holder rest<>", &like, &rows, &error));
    assert_int_equal(rows.count, 1);
    assert_int_equal(((lapse *)rows.rows)->id, row.id);
    jobq_pg_rows_clear(&rows);
    for (i = 0; i < COUNT(spans); i++) {
        if (beyond_14(spans[i].text)) continue;
        RUN("UPDATE jobq.lapse SET span = '%s'", spans[i].text);
        OK(jobq_pg_table_get(lapses, NULL, NULL, &row, &rows, &error));
        if (((lapse *)rows.rows)->span_us != spans[i].us)
            fail_msg("%s: %lld", spans[i].text, (long long)((lapse *)rows.rows)->span_us);
        jobq_pg_rows_clear(&rows);
    }
    jobq_pg_table_close(lapses);
}

typedef struct odd {
    int64_t id, n;
} odd;

/* Only what jobq_pg_migrate makes can be of a wrong version. */
static void a_table_that_is_gone_is_no_wrong_version(void **state)
{
    static const jobq_pg_column columns[] = {
        JOBQ_PG_COLUMN(odd, id, INT64, JOBQ_PG_KEY), JOBQ_PG_COLUMN(odd, n, INT64, 0),
        JOBQ_PG_COLUMNS_END};
    static const jobq_pg_table_desc desc = {"jobq.odd", sizeof(odd), columns, NULL, NULL, false};
    jobq_pg_table *table, *view;
    odd row = {1, 1};
    jobq_pg_rows rows;

    (void)state;
    RUN("CREATE TABLE jobq.odd (id bigint PRIMARY KEY, n bigint NOT NULL);"
        "CREATE FUNCTION jobq.checks() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM no_such_function(); END';"
        "CREATE TRIGGER checks BEFORE INSERT ON jobq.odd FOR EACH ROW EXECUTE FUNCTION "
        "jobq.checks()");
    OK(jobq_pg_table_open(&table, pg, NULL, &desc, &error));
    assert_int_equal(jobq_pg_table_create(table, NULL, "id n", &row, NULL, NULL, &error),
                     JOBQ_ERROR_DATABASE);
    assert_string_equal(error.sqlstate, "42883");
    RUN("DROP TABLE jobq.odd; DROP FUNCTION jobq.checks()");
    assert_int_equal(jobq_pg_table_list(table, NULL, NULL, &rows, &error), JOBQ_ERROR_DATABASE);
    assert_string_equal(error.sqlstate, "42P01");
    assert_null(strstr(error.message, "migrate"));
    jobq_pg_table_close(table);
    OK(jobq_pg_table_open(&view, pg, NULL, jobq_pg_view_desc(JOBQ_PG_VIEW_QUEUES, false), &error));
    RUN("ALTER VIEW jobq.queues RENAME TO away");
    assert_int_equal(jobq_pg_table_list(view, NULL, NULL, &rows, &error), JOBQ_ERROR_VERSION);
    RUN("ALTER VIEW jobq.away RENAME TO queues");
    jobq_pg_table_close(view);
}

/* A key's columns are in lists; others need not be. */
static void a_key_has_a_name_that_lists_can_hold(void **state)
{
    static const char *const names[] = {"the id", "-id", "+id", "id,2", "id=", "a>b", "id@", "i!d"};
    jobq_pg_column columns[] = {JOBQ_PG_COLUMN(odd, id, INT64, JOBQ_PG_KEY),
                                JOBQ_PG_COLUMN(odd, n, INT64, 0), JOBQ_PG_COLUMNS_END};
    jobq_pg_table_desc desc = {"jobq.odd", sizeof(odd), NULL, NULL, NULL, false};
    jobq_pg_table *table;
    odd row = {1, 1};
    size_t i;

    (void)state;
    desc.columns = columns;
    for (i = 0; i < COUNT(names); i++) {
        RUN("CREATE TABLE jobq.odd (\"%s\" bigint PRIMARY KEY, n bigint NOT NULL)", names[i]);
        columns[0].name = names[i];
        assert_int_equal(jobq_pg_table_open(&table, pg, NULL, &desc, &error), JOBQ_ERROR_INVALID);
        assert_string_equal(error.field, names[i]);
        RUN("DROP TABLE jobq.odd");
    }
    columns[0].name = "id";
    columns[1].name = "how many";
    RUN("CREATE TABLE jobq.odd (id bigint PRIMARY KEY, \"how many\" bigint NOT NULL)");
    OK(jobq_pg_table_open(&table, pg, NULL, &desc, &error));
    OK(jobq_pg_table_create(table, NULL, NULL, &row, NULL, NULL, &error));
    jobq_pg_table_close(table);
    RUN("DROP TABLE jobq.odd");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(test) cmocka_unit_test_setup(test, empty)
        T(every_type_there_and_back), T(every_null_there_and_back), T(nullable_fields_hold_values),
        T(find_get_exists), T(where_takes_operators_and_null), T(unknown_names_are_refused),
        T(list_orders_caps_and_pages), T(pages_by_one_way_use_the_index),
        T(numbers_page_in_their_order), T(search_takes_signs_literally), T(create_fills_defaults),
        T(duplicates_name_field_and_value), T(constraints_are_validation_errors),
        T(bad_values_do_not_abort), T(missing_text_is_refused), T(update_leaves_sets_and_clears),
        T(update_of_nothing_writes_nothing), T(read_only_fields_are_refused), T(compare_and_set),
        T(update_compares_with_the_row_itself), T(only_the_whole_key_is_one_row),
        T(upsert_creates_then_updates), T(delete_tells_whether_it_was_there),
        T(create_many_is_all_or_none), T(update_skips_locked_rows),
        T(update_refuses_partitions_and_children), T(views_are_read),
        T(arrays_and_jsonb_contain), T(varchar_arrays_are_parameters),
        T(a_field_too_long_fails_before_libpq),
        T(durations_and_null_as_zero),
        T(a_table_that_is_gone_is_no_wrong_version), T(a_key_has_a_name_that_lists_can_hold),
        T(wrong_descriptions_are_told), T(works_without_a_handle_and_in_a_transaction),
        T(statements_are_prepared_once), T(a_statement_is_found_by_its_text),
        T(unprepared_leaves_no_statement),
        T(a_changed_table_is_met_by_preparing_anew),
        T(a_changed_table_leaves_transactions_whole), T(aborted_transactions_are_refused),
        T(a_lost_connection_is_told), T(transactions_nest), T(a_body_that_fails_is_rolled_back),
        T(transact_tries_again), T(transact_inside_a_transaction_runs_once),
        T(dates_as_text), T(instants_as_text), T(intervals_as_text), T(numbers_as_text),
        T(values_in_errors_are_whole_or_left_out),
        T(texts_agree_with_the_server), T(mutated_numbers), T(nasty_texts),
        T(random_wire_bytes)};

    return cmocka_run_group_tests_name("table", tests, up, down);
}
