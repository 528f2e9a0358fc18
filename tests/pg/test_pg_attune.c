/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_attune.c -- one template for the seventeen tables of examples/attune: the usual cases of
 * a repository for each table, column, reference and finder. The cases are data, and main makes a
 * test of each.
 */
#define TEST_PRIVATE
#include "pg.h"

#include "../../examples/attune/attune.h"

static jobq_pg_error error;

#define OK(call)                                              \
    do {                                                      \
        if ((call) != JOBQ_OK) fail_msg("%s", error.message); \
    } while (0)

#define ROOM 1024 /* no row is larger */

typedef union any_row {
    char bytes[ROOM];
    int64_t align;
} any_row;

typedef struct place { /* one test */
    int entity, column, finder;
} place;

static const struct {
    int entity;
    const char *columns;
} finders[] = {
#define ATTUNE_X(name, NAME, by, columns) {ATTUNE_##NAME, columns},
    ATTUNE_FINDERS(ATTUNE_X)
#undef ATTUNE_X
};

/* Which table a reference names. */
static const struct {
    const char *column;
    int entity;
} references[] = {{"pack", ATTUNE_PACK}, {"runtime", ATTUNE_RUNTIME}, {"action", ATTUNE_ACTION},
                  {"trigger", ATTUNE_TRIGGER}, {"rule", ATTUNE_RULE}, {"event", ATTUNE_EVENT},
                  {"source", ATTUNE_SENSOR}, {"enforcement", ATTUNE_ENFORCEMENT},
                  {"parent", ATTUNE_EXECUTION}, {"executor", ATTUNE_IDENTITY},
                  {"execution", ATTUNE_EXECUTION}, {"assigned_to", ATTUNE_IDENTITY},
                  {"identity", ATTUNE_IDENTITY}, {"permset", ATTUNE_PERMISSION_SET},
                  {"owner_identity", ATTUNE_IDENTITY}, {"owner_pack", ATTUNE_PACK},
                  {"owner_action", ATTUNE_ACTION}, {"owner_sensor", ATTUNE_SENSOR}};

static const jobq_pg_column *column_of(const place *p)
{
    return &attune_descs[p->entity].columns[p->column];
}

static int reference_of(const jobq_pg_column *c)
{
    size_t i;

    for (i = 0; i < COUNT(references); i++) {
        if (c->type == JOBQ_PG_INT64 && strcmp(references[i].column, c->name) == 0)
            return references[i].entity;
    }
    return -1;
}

static bool is(const jobq_pg_column *c, const char *name) { return strcmp(c->name, name) == 0; }

static bool writable(const jobq_pg_column *c)
{
    return (c->flags & (JOBQ_PG_READ_ONLY | JOBQ_PG_TOUCH)) == 0;
}

/* The owner of a key is four columns under one law; its tests stand apart. */
static bool owner_column(const place *p)
{
    return p->entity == ATTUNE_KEY && strncmp(column_of(p)->name, "owner", 5) == 0;
}

static int64_t create_any(int entity, int n);

static void set_long(const jobq_pg_column *c, char *field, int64_t value)
{
    int32_t small = (int32_t)value;
    bool flag = value % 2 != 0;

    if (c->type == JOBQ_PG_BOOL) memcpy(field, &flag, 1);
    else if (jobq_pg__types[c->type].size == 4) memcpy(field, &small, 4);
    else memcpy(field, &value, 8);
    if ((c->flags & JOBQ_PG_NULLABLE) != 0) field[jobq_pg__types[c->type].size] = 1;
}

/* A good value for a column, another one for each n; texts live for the program. */
static void fill_column(int entity, const jobq_pg_column *c, char *row, int n)
{
    static char texts[4096][40];
    static jobq_str items[4096][1];
    static int next, parents = 5000;
    char *text = texts[next % 4096], *field = row + c->offset;
    jobq_str *item = items[next++ % 4096];
    jobq_pg_texts list = {item, 1};

    snprintf(text, 40, "%s%d", c->name, n);
    if (is(c, "ref")) snprintf(text, 40, entity == ATTUNE_PACK ? "core%04d" : "core.x%04d", n);
    if (is(c, "version")) snprintf(text, 40, "1.0.%d", n);
    if (entity == ATTUNE_KEY && is(c, "owner")) snprintf(text, 40, "system");
    if (c->type == JOBQ_PG_JSON) snprintf(text, 40, "{\"n\": %d}", n);
    *item = jobq_str_from(text);
    if (reference_of(c) >= 0) set_long(c, field, create_any(reference_of(c), parents++));
    else if (c->type == JOBQ_PG_TEXT || c->type == JOBQ_PG_JSON) memcpy(field, item, sizeof *item);
    else if (c->type == JOBQ_PG_TEXTS) memcpy(field, &list, sizeof list);
    else if (c->type == JOBQ_PG_ENUM)
        set_long(c, field, entity == ATTUNE_KEY || c->names[1] == NULL ? 0 : n % 2);
    else set_long(c, field, n + 1);
}

/* The columns that have to be given, or all. fields: their names. */
static void fill(int entity, any_row *row, int n, bool all, char *fields)
{
    const jobq_pg_column *c = attune_descs[entity].columns;

    memset(row, 0, sizeof *row);
    fields[0] = '\0';
    for (; c->name != NULL; c++) {
        bool given = strstr("description threshold method worker_type owner_type", c->name) != NULL;
        bool wanted = (c->flags & JOBQ_PG_NULLABLE) == 0 &&
                      (c->type == JOBQ_PG_TEXT || reference_of(c) >= 0 || given);
        if (!writable(c) || (!wanted && !all)) continue;
        if (entity == ATTUNE_KEY && strncmp(c->name, "owner_", 6) == 0 && !is(c, "owner_type"))
            continue;
        fill_column(entity, c, row->bytes, n);
        strcat(fields, " ");
        strcat(fields, c->name);
    }
}

static jobq_error create(int entity, const char *fields, const any_row *row, jobq_pg_rows *rows)
{
    return jobq_pg_table_create(attune[entity], db, fields, row, NULL, rows, &error);
}

static int64_t id_of(const jobq_pg_rows *rows) { return *(int64_t *)rows->rows; }

static int64_t create_any(int entity, int n)
{
    jobq_pg_rows rows;
    char fields[ROOM];
    any_row row;
    int64_t id;

    fill(entity, &row, n, false, fields);
    OK(create(entity, fields, &row, &rows));
    id = id_of(&rows);
    jobq_pg_rows_clear(&rows);
    return id;
}

/* Equal as the database has them. */
static bool same(const jobq_pg_column *c, const char *a, const char *b)
{
    const jobq_str *x = (const jobq_str *)(const void *)(a + c->offset);
    const jobq_str *y = (const jobq_str *)(const void *)(b + c->offset);
    const jobq_pg_texts *s = (const jobq_pg_texts *)(const void *)x;
    const jobq_pg_texts *t = (const jobq_pg_texts *)(const void *)y;

    if (jobq_pg__is_null(c, a + c->offset) || jobq_pg__is_null(c, b + c->offset))
        return jobq_pg__is_null(c, a + c->offset) == jobq_pg__is_null(c, b + c->offset);
    if (c->type == JOBQ_PG_TEXTS)
        return s->count == t->count &&
               (s->count == 0 || jobq_str_equal(s->items[0], t->items[0]));
    if (jobq_pg__types[c->type].maybe == 0) return jobq_str_equal(*x, *y);
    return memcmp(x, y, jobq_pg__types[c->type].size) == 0;
}

/* -- the template; each case runs in a transaction that is rolled back -- */

static int begin(void **state)
{
    (void)state;
    PQclear(PQexec(db, "BEGIN"));
    return 0;
}

static int end(void **state)
{
    (void)state;
    PQclear(PQexec(db, "ROLLBACK"));
    return 0;
}

static void create_and_compare(const place *p, bool all)
{
    const jobq_pg_column *c = attune_descs[p->entity].columns;
    char fields[ROOM];
    jobq_pg_rows rows;
    any_row row;

    fill(p->entity, &row, 1, all, fields);
    OK(create(p->entity, fields, &row, &rows));
    assert_int_equal(rows.count, 1);
    for (; c->name != NULL; c++) {
        char word[80];
        snprintf(word, sizeof word, " %s ", c->name);
        strcat(fields, " ");
        if (strstr(fields, word) != NULL && !same(c, row.bytes, rows.rows)) fail_msg("%s", c->name);
        if (!all && (c->flags & JOBQ_PG_NULLABLE) != 0)
            assert_true(jobq_pg__is_null(c, (char *)rows.rows + c->offset));
    }
    jobq_pg_rows_clear(&rows);
}

static void create_minimal(void **state) { create_and_compare(*state, false); }
static void create_full(void **state) { create_and_compare(*state, true); }

static void create_duplicate(void **state)
{
    const place *p = *state;
    char fields[ROOM];
    any_row row;
    const jobq_pg_column *c = attune_descs[p->entity].columns;
    bool unique = p->entity == ATTUNE_PERMISSION_ASSIGNMENT;

    for (; c->name != NULL; c++) unique = unique || is(c, "ref") || is(c, "login");
    fill(p->entity, &row, 1, false, fields);
    OK(create(p->entity, fields, &row, NULL));
    RUN("SAVEPOINT here");
    if (unique) {
        assert_int_equal(create(p->entity, fields, &row, NULL), JOBQ_ERROR_EXISTS);
        assert_int_equal(strncmp(error.message, "Already exists: ", 16), 0);
        assert_string_equal(error.entity, attune_descs[p->entity].entity);
        assert_true(error.field[0] != '\0' && error.value[0] != '\0');
    } else {
        OK(create(p->entity, fields, &row, NULL)); /* a name that may repeat */
    }
    RUN("ROLLBACK TO here");
}

static void create_bad_reference(void **state)
{
    const place *p = *state;
    const jobq_pg_column *c = column_of(p);
    char fields[ROOM];
    any_row row;

    fill(p->entity, &row, 1, true, fields);
    set_long(c, row.bytes + c->offset, 999999999);
    assert_int_equal(create(p->entity, fields, &row, NULL), JOBQ_ERROR_INVALID);
    assert_string_equal(error.sqlstate, "23503");
    assert_string_equal(error.field, c->name);
    assert_string_equal(error.value, "999999999");
}

/* A ref that breaks its rule. */
static void create_bad_ref(void **state)
{
    const place *p = *state;
    const jobq_pg_column *c = column_of(p);
    jobq_str bad = jobq_str_from("Invalid pack!@#");
    char fields[ROOM];
    any_row row;

    fill(p->entity, &row, 1, false, fields);
    memcpy(row.bytes + c->offset, &bad, sizeof bad);
    assert_int_equal(create(p->entity, fields, &row, NULL), JOBQ_ERROR_INVALID);
    assert_string_equal(error.sqlstate, "23514");
    assert_string_equal(error.field, "ref");
    assert_int_equal(strncmp(error.message, "Validation error: ", 18), 0);
}

static void create_without_required(void **state)
{
    const place *p = *state;
    const jobq_pg_column *c = column_of(p);
    char fields[ROOM];
    any_row row;

    fill(p->entity, &row, 1, false, fields);
    memset(row.bytes + c->offset, 0, sizeof(jobq_str));
    assert_int_equal(create(p->entity, fields, &row, NULL), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, c->name);
    assert_string_equal(error.sqlstate, ""); /* not even sent */
}

static void create_bad_enum(void **state)
{
    const place *p = *state;
    const jobq_pg_column *c = column_of(p);
    char fields[ROOM];
    any_row row;

    fill(p->entity, &row, 1, true, fields);
    set_long(c, row.bytes + c->offset, 99);
    assert_int_equal(create(p->entity, fields, &row, NULL), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, c->name);
}

static void find_hit(void **state)
{
    const place *p = *state;
    any_row like = {{0}};
    jobq_pg_rows rows;
    int64_t id = create_any(p->entity, 1);

    memcpy(like.bytes, &id, 8);
    OK(jobq_pg_table_get(attune[p->entity], db, NULL, &like, &rows, &error));
    assert_int_equal(id_of(&rows), id);
    jobq_pg_rows_clear(&rows);
    OK(jobq_pg_table_get(attune[p->entity], db, "id", &like, NULL, &error));
}

static void find_miss(void **state)
{
    const place *p = *state;
    any_row like = {{0}};
    jobq_pg_rows rows;
    char told[100];

    assert_int_equal(jobq_pg_table_get(attune[p->entity], db, NULL, &like, &rows, &error),
                     JOBQ_ERROR_NOT_FOUND);
    snprintf(told, sizeof told, "Not found: %s with id=0", attune_descs[p->entity].entity);
    assert_string_equal(error.message, told);
}

static void list_empty(void **state)
{
    const place *p = *state;
    jobq_pg_rows rows;
    int64_t count;

    OK(jobq_pg_table_list(attune[p->entity], db, NULL, &rows, &error));
    assert_true(rows.count == 0 && !rows.more);
    OK(jobq_pg_table_count(attune[p->entity], db, NULL, &count, &error));
    assert_int_equal(count, 0);
}

/* In the entity's order, and by pages of two without skip or repeat. */
static void list_ordered_and_paged(void **state)
{
    const place *p = *state;
    jobq_pg_query q = {NULL, NULL, NULL, NULL, NULL, 2};
    bool newest = attune_descs[p->entity].order[0] == '-';
    size_t size = attune_descs[p->entity].row_size, i, at = 0;
    jobq_pg_rows page = {NULL, 0, false}, before;
    int64_t ids[5], id;

    for (i = 0; i < 5; i++) ids[i] = create_any(p->entity, 100 + (int)i);
    do {
        before = page; /* its last row is what the next page comes after */
        OK(jobq_pg_table_list(attune[p->entity], db, &q, &page, &error));
        jobq_pg_rows_clear(&before);
        assert_true(page.count > 0 && page.count <= 2);
        for (i = 0; i < page.count; i++) {
            q.after = (char *)page.rows + i * size;
            memcpy(&id, q.after, 8);
            if (p->entity == ATTUNE_EXECUTION && id != ids[4 - at]) continue;
            assert_true(at < 5);
            assert_int_equal(id, newest ? ids[4 - at] : ids[at]);
            at++;
        }
    } while (page.more);
    jobq_pg_rows_clear(&page);
    assert_int_equal(at, 5);
}

/* One field is written; every other stays. */
static void update_field(void **state)
{
    const place *p = *state;
    const jobq_pg_column *changed = column_of(p), *c = attune_descs[p->entity].columns;
    jobq_pg_rows before, after;
    char fields[ROOM];
    any_row row;

    fill(p->entity, &row, 1, true, fields);
    OK(create(p->entity, fields, &row, &before));
    memcpy(&row, before.rows, attune_descs[p->entity].row_size);
    fill_column(p->entity, changed, row.bytes, 2);
    OK(jobq_pg_table_update(attune[p->entity], db, changed->name, &row, NULL, NULL, &after,
                            &error));
    assert_true(same(changed, row.bytes, after.rows));
    assert_true(owner_column(p) || !same(changed, before.rows, after.rows));
    for (; c->name != NULL; c++) {
        if (c != changed && (c->flags & JOBQ_PG_TOUCH) == 0)
            assert_true(same(c, before.rows, after.rows));
        if ((c->flags & JOBQ_PG_TOUCH) != 0) assert_false(same(c, before.rows, after.rows));
    }
    jobq_pg_rows_clear(&before);
    jobq_pg_rows_clear(&after);
}

static void clear_field(void **state)
{
    const place *p = *state;
    const jobq_pg_column *c = column_of(p);
    jobq_pg_rows rows;
    char fields[ROOM];
    any_row row;

    fill(p->entity, &row, 1, true, fields);
    OK(create(p->entity, fields, &row, &rows));
    if (!owner_column(p)) assert_false(jobq_pg__is_null(c, (char *)rows.rows + c->offset));
    memset(&row, 0, sizeof row);
    memcpy(row.bytes, rows.rows, 8);
    jobq_pg_rows_clear(&rows);
    OK(jobq_pg_table_update(attune[p->entity], db, c->name, &row, NULL, NULL, &rows, &error));
    assert_true(jobq_pg__is_null(c, (char *)rows.rows + c->offset));
    jobq_pg_rows_clear(&rows);
}

/* JSON's null is a value; SQL's is none. */
static void json_null_and_absent(void **state)
{
    const place *p = *state;
    const jobq_pg_column *c = column_of(p);
    jobq_str null = jobq_str_from("null"), bad = jobq_str_from("{\"a\":");
    jobq_pg_rows rows;
    any_row row = {{0}};
    int64_t id = create_any(p->entity, 1);

    memcpy(row.bytes, &id, 8);
    memcpy(row.bytes + c->offset, &null, sizeof null);
    OK(jobq_pg_table_update(attune[p->entity], db, c->name, &row, NULL, NULL, &rows, &error));
    assert_true(same(c, row.bytes, rows.rows));
    jobq_pg_rows_clear(&rows);
    memcpy(row.bytes + c->offset, &bad, sizeof bad);
    assert_int_equal(jobq_pg_table_update(attune[p->entity], db, c->name, &row, NULL, NULL, &rows,
                                          &error),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(PQtransactionStatus(db), PQTRANS_INTRANS);
}

static void update_several(void **state)
{
    const place *p = *state;
    const jobq_pg_column *c = attune_descs[p->entity].columns;
    jobq_pg_rows rows;
    char fields[ROOM];
    any_row row;
    int64_t id = create_any(p->entity, 1);

    fill(p->entity, &row, 2, true, fields);
    memcpy(row.bytes, &id, 8);
    OK(jobq_pg_table_update(attune[p->entity], db, fields, &row, NULL, NULL, &rows, &error));
    for (; c->name != NULL; c++) {
        if (writable(c)) assert_true(same(c, row.bytes, rows.rows));
    }
    jobq_pg_rows_clear(&rows);
}

static void update_none(void **state)
{
    const place *p = *state;
    const jobq_pg_column *c = attune_descs[p->entity].columns;
    jobq_pg_rows before, after;
    any_row row = {{0}};
    int64_t id = create_any(p->entity, 1);

    memcpy(row.bytes, &id, 8);
    OK(jobq_pg_table_get(attune[p->entity], db, NULL, &row, &before, &error));
    OK(jobq_pg_table_update(attune[p->entity], db, NULL, &row, NULL, NULL, &after, &error));
    for (; c->name != NULL; c++) assert_true(same(c, before.rows, after.rows));
    jobq_pg_rows_clear(&before);
    jobq_pg_rows_clear(&after);
}

static void update_missing(void **state)
{
    const place *p = *state;
    jobq_pg_rows rows;
    char fields[ROOM];
    any_row row;

    fill(p->entity, &row, 2, false, fields);
    assert_int_equal(jobq_pg_table_update(attune[p->entity], db, fields, &row, NULL, NULL, &rows,
                                          &error),
                     JOBQ_ERROR_NOT_FOUND);
    assert_int_equal(jobq_pg_table_update(attune[p->entity], db, "", &row, NULL, NULL, &rows,
                                          &error),
                     JOBQ_ERROR_NOT_FOUND);
}

static void delete_hit_and_miss(void **state)
{
    const place *p = *state;
    any_row row = {{0}};
    int64_t id = create_any(p->entity, 1), count;

    memcpy(row.bytes, &id, 8);
    OK(jobq_pg_table_delete(attune[p->entity], db, NULL, &row, &count, &error));
    assert_int_equal(count, 1);
    OK(jobq_pg_table_delete(attune[p->entity], db, NULL, &row, &count, &error));
    assert_int_equal(count, 0);
}

/* The references that a row forgets when what they name is deleted. By all others it goes too. */
static const struct {
    int entity;
    const char *column;
} forgotten[] = {{ATTUNE_WORKER, "runtime"},        {ATTUNE_ACTION, "runtime"},
                 {ATTUNE_EVENT, "trigger"},         {ATTUNE_EVENT, "source"},
                 {ATTUNE_EVENT, "rule"},            {ATTUNE_ENFORCEMENT, "rule"},
                 {ATTUNE_ENFORCEMENT, "event"},     {ATTUNE_EXECUTION, "action"},
                 {ATTUNE_EXECUTION, "parent"},      {ATTUNE_EXECUTION, "enforcement"},
                 {ATTUNE_EXECUTION, "executor"},    {ATTUNE_INQUIRY, "assigned_to"}};

static bool forgets(int entity, const jobq_pg_column *c)
{
    size_t i;

    for (i = 0; i < COUNT(forgotten); i++) {
        if (forgotten[i].entity == entity && is(c, forgotten[i].column)) return true;
    }
    return false;
}

/* What is referred to goes: this row goes too, or forgets it. */
static void reference_deleted(void **state)
{
    const place *p = *state;
    const jobq_pg_column *c = column_of(p);
    char fields[ROOM];
    any_row row, gone = {{0}};
    jobq_pg_rows rows;
    bool cascade = !forgets(p->entity, c);

    fill(p->entity, &row, 1, true, fields);
    OK(create(p->entity, fields, &row, &rows));
    memcpy(row.bytes, rows.rows, 8);
    jobq_pg_rows_clear(&rows);
    memcpy(gone.bytes, row.bytes + c->offset, 8);
    OK(jobq_pg_table_delete(attune[reference_of(c)], db, NULL, &gone, NULL, &error));
    assert_int_equal(jobq_pg_table_get(attune[p->entity], db, NULL, &row, &rows, &error),
                     cascade ? JOBQ_ERROR_NOT_FOUND : JOBQ_OK);
    assert_int_equal(rows.count, cascade ? 0 : 1);
    if (!cascade) assert_true(jobq_pg__is_null(c, (char *)rows.rows + c->offset));
    jobq_pg_rows_clear(&rows);
}

static void timestamps(void **state)
{
    const place *p = *state;
    const jobq_pg_column *c = attune_descs[p->entity].columns;
    long before = number("SELECT floor(extract(epoch FROM now()))::bigint");
    jobq_pg_rows rows, again;
    any_row row = {{0}};
    int64_t id = create_any(p->entity, 1), us;

    memcpy(row.bytes, &id, 8);
    OK(jobq_pg_table_get(attune[p->entity], db, NULL, &row, &rows, &error));
    OK(jobq_pg_table_get(attune[p->entity], db, NULL, &row, &again, &error));
    for (; c->name != NULL; c++) {
        if (!is(c, "created") && !is(c, "updated")) continue;
        memcpy(&us, (char *)rows.rows + c->offset, 8);
        assert_true(us / SECOND >= before && us / SECOND <= before + 60);
        assert_true(same(c, rows.rows, again.rows)); /* reading changes nothing */
    }
    jobq_pg_rows_clear(&rows);
    jobq_pg_rows_clear(&again);
}

static void commit_and_rollback(void **state)
{
    const place *p = *state;
    any_row row = {{0}};
    int64_t id;

    RUN("SAVEPOINT here");
    id = create_any(p->entity, 1);
    memcpy(row.bytes, &id, 8);
    RUN("ROLLBACK TO here");
    assert_int_equal(jobq_pg_table_get(attune[p->entity], db, NULL, &row, NULL, &error),
                     JOBQ_ERROR_NOT_FOUND);
    RUN("SAVEPOINT here");
    id = create_any(p->entity, 1);
    memcpy(row.bytes, &id, 8);
    RUN("RELEASE here");
    OK(jobq_pg_table_get(attune[p->entity], db, NULL, &row, NULL, &error));
    assert_int_equal(jobq_pg_table_get(attune[p->entity], NULL, NULL, &row, NULL, &error),
                     JOBQ_ERROR_NOT_FOUND); /* from outside */
}

static void finder(void **state)
{
    const place *p = *state;
    jobq_pg_query q = {finders[p->finder].columns, NULL, NULL, NULL, NULL, 0};
    const jobq_pg_column *c = attune_descs[p->entity].columns;
    char fields[ROOM], word[80], list[100];
    jobq_pg_rows rows;
    any_row row, other;
    int64_t id;

    fill(p->entity, &row, 1, true, fields);
    OK(create(p->entity, fields, &row, &rows));
    id = id_of(&rows);
    q.like = &row;
    jobq_pg_rows_clear(&rows);
    OK(jobq_pg_table_list(attune[p->entity], db, &q, &rows, &error));
    assert_true(rows.count >= 1);
    jobq_pg_rows_clear(&rows);
    memset(&other, 0, sizeof other);
    memcpy(other.bytes, &id, 8);
    OK(jobq_pg_table_delete(attune[p->entity], db, NULL, &other, NULL, &error));
    OK(jobq_pg_table_list(attune[p->entity], db, &q, &rows, &error)); /* what is left is others' */
    snprintf(list, sizeof list, " %s ", finders[p->finder].columns);
    for (; c->name != NULL; c++) {
        size_t i;
        snprintf(word, sizeof word, " %s ", c->name);
        for (i = 0; i < rows.count && strstr(list, word) != NULL; i++) {
            char *found = (char *)rows.rows + i * attune_descs[p->entity].row_size;
            assert_true(same(c, row.bytes, found) && *(int64_t *)(void *)found != id);
        }
    }
    jobq_pg_rows_clear(&rows);
}

/* -- what belongs to one entity -- */

static void search_packs(void **state)
{
    jobq_pg_query q = {NULL, NULL, "CORE%", NULL, NULL, 0};
    int64_t count;

    (void)state;
    create_any(ATTUNE_PACK, 1);
    OK(jobq_pg_table_count(attune[ATTUNE_PACK], db, &q, &count, &error));
    assert_int_equal(count, 0);
    q.search = "CORE";
    OK(jobq_pg_table_count(attune[ATTUNE_PACK], db, &q, &count, &error));
    assert_int_equal(count, 1);
}

static void pack_refs_accepted(void **state)
{
    static const char *const refs[] = {"simple", "with_underscores", "with-hyphens",
                                       "mixed_all-together-123"};
    attune_pack pack = {0};
    size_t i;

    (void)state;
    pack.label = pack.version = jobq_str_from("1.0.0");
    for (i = 0; i < COUNT(refs); i++) {
        pack.ref = jobq_str_from(refs[i]);
        OK(jobq_pg_table_create(attune[ATTUNE_PACK], db, "ref label version", &pack, NULL, NULL,
                                &error));
    }
}

/* The check has an end, too. */
static void whole_versions_only(void **state)
{
    attune_pack pack = {.ref = jobq_str_from("core"), .label = jobq_str_from("Core")};

    (void)state;
    pack.version = jobq_str_from("1.0.0-rc.1+7");
    OK(jobq_pg_table_create(attune[ATTUNE_PACK], db, "ref label version", &pack, NULL, NULL,
                            &error));
    pack.ref = jobq_str_from("other");
    pack.version = jobq_str_from("1.0.0garbage; x");
    assert_int_equal(jobq_pg_table_create(attune[ATTUNE_PACK], db, "ref label version", &pack, NULL,
                                          NULL, &error), JOBQ_ERROR_INVALID);
}

static void worker_heartbeat_found_and_not(void **state)
{
    int64_t id = create_any(ATTUNE_WORKER, 1);
    attune_worker like = {0};
    jobq_pg_rows rows;

    (void)state;
    assert_int_equal(attune_worker_heartbeat(db, 0, &error), JOBQ_ERROR_NOT_FOUND);
    OK(attune_worker_heartbeat(db, id, &error));
    like.id = id;
    OK(jobq_pg_table_get(attune[ATTUNE_WORKER], db, NULL, &like, &rows, &error));
    assert_true(((attune_worker *)rows.rows)->last_heartbeat.set);
    assert_int_equal(((attune_worker *)rows.rows)->status, ATTUNE_WORKER_STATUS_ACTIVE);
    jobq_pg_rows_clear(&rows);
    OK(attune_worker_silent(db, 60 * SECOND, &rows, &error));
    assert_int_equal(rows.count, 0);
    PQclear(PQexec(db, "UPDATE attune.worker SET last_heartbeat = now() - interval '61 s'"));
    OK(attune_worker_silent(db, 60 * SECOND, &rows, &error));
    assert_int_equal(rows.count, 1);
    jobq_pg_rows_clear(&rows);
}

static void inquiries_expire_in_one_sweep(void **state)
{
    int64_t id = create_any(ATTUNE_INQUIRY, 1);
    jobq_pg_rows rows;

    (void)state;
    create_any(ATTUNE_INQUIRY, 2); /* waits without end */
    OK(attune_inquiry_expire(db, &rows, &error));
    assert_int_equal(rows.count, 0);
    PQclear(PQexec(db, "UPDATE attune.inquiry SET timeout_at = now() - interval '1 s' WHERE id = "
                       "(SELECT min(id) FROM attune.inquiry)"));
    OK(attune_inquiry_expire(db, &rows, &error));
    assert_int_equal(rows.count, 1);
    assert_int_equal(id_of(&rows), id);
    assert_int_equal(((attune_inquiry *)rows.rows)->status, ATTUNE_INQUIRY_STATUS_TIMEOUT);
    jobq_pg_rows_clear(&rows);
}

static void notifications_tell_ids_only(void **state)
{
    attune_notification n = {0};
    PGnotify *told;
    char id[24], big[20002];

    (void)state;
    memset(big, 'x', sizeof big - 1);
    big[0] = big[20000] = '"';
    big[20001] = '\0';
    n.channel = n.entity = n.entity_type = n.activity = jobq_str_from("test");
    n.content = jobq_str_from(big); /* more than a NOTIFY holds */
    PQclear(PQexec(db, "LISTEN attune_test"));
    OK(jobq_pg_table_create(attune[ATTUNE_NOTIFICATION], db,
                            "channel entity entity_type activity content", &n, NULL, NULL, &error));
    snprintf(id, sizeof id, "%ld", number("SELECT max(id) FROM attune.notification"));
    PQclear(PQexec(db, "COMMIT"));
    PQconsumeInput(db);
    told = PQnotifies(db);
    assert_non_null(told);
    assert_string_equal(told->extra, id);
    PQfreemem(told);
    PQclear(PQexec(db, "DELETE FROM attune.notification; UNLISTEN *"));
}

static void keys_belong_to_one_owner(void **state)
{
    attune_key key = {0};

    (void)state;
    key.ref = key.name = key.value = jobq_str_from("k");
    key.owner_type = ATTUNE_OWNER_TYPE_PACK;
    key.owner = jobq_str_from("system");
    RUN("SAVEPOINT here");
    assert_int_equal(jobq_pg_table_create(attune[ATTUNE_KEY], db, NULL, &key, NULL, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_string_equal(error.constraint, "key_owner_law");
    RUN("ROLLBACK TO here");
    key.owner_type = ATTUNE_OWNER_TYPE_SYSTEM;
    OK(jobq_pg_table_create(attune[ATTUNE_KEY], db, NULL, &key, NULL, NULL, &error));
    key.ref = jobq_str_from("other");
    assert_int_equal(jobq_pg_table_create(attune[ATTUNE_KEY], db, NULL, &key, NULL, NULL, &error),
                     JOBQ_ERROR_EXISTS);
    assert_string_equal(error.field, "owner_type, owner, name");
    assert_string_equal(error.value, "system, system, k");
}

static void executions_move_once(void **state)
{
    int64_t id = create_any(ATTUNE_EXECUTION, 1);
    jobq_str none = {NULL, 0};

    (void)state;
    OK(attune_execution_move(db, id, ATTUNE_EXECUTION_STATUS_REQUESTED,
                             ATTUNE_EXECUTION_STATUS_RUNNING, none, &error));
    assert_int_equal(attune_execution_move(db, id, ATTUNE_EXECUTION_STATUS_REQUESTED,
                                           ATTUNE_EXECUTION_STATUS_RUNNING, none, &error),
                     JOBQ_ERROR_LOST);
}

/* -- as many tests as there are places -- */

static struct CMUnitTest tests[1500];
static size_t test_count;

static void add(const char *what, CMUnitTestFunction run, int entity, int column, int find)
{
    struct CMUnitTest *t = &tests[test_count++];
    place *p = calloc(1, sizeof *p);
    char name[160];

    p->entity = entity;
    p->column = column;
    p->finder = find;
    snprintf(name, sizeof name, "%s: %s%s%s", what,
             entity < 0 ? "attune" : attune_descs[entity].entity, column < 0 ? "" : ".",
             column < 0 ? "" : attune_descs[entity].columns[column].name);
    if (find >= 0) snprintf(name, sizeof name, "finder: %s by %s", attune_descs[entity].entity,
                            finders[find].columns);
    t->name = text_copy(name);
    t->test_func = run;
    t->setup_func = begin;
    t->teardown_func = end;
    t->initial_state = p;
}

static void add_column(int entity, int column)
{
    const jobq_pg_column *c = &attune_descs[entity].columns[column];
    place p = {entity, column, -1};
    bool key = entity == ATTUNE_KEY, null = (c->flags & JOBQ_PG_NULLABLE) != 0;

    if (!writable(c) || owner_column(&p)) return;
    if (attune_descs[entity].columns[column + 1].name != NULL &&
        entity != ATTUNE_PERMISSION_ASSIGNMENT)
        add("update field", update_field, entity, column, -1);
    if (null) add("clear field", clear_field, entity, column, -1);
    if (c->type == JOBQ_PG_JSON)
        add("json null and absent", json_null_and_absent, entity, column, -1);
    if (c->type == JOBQ_PG_ENUM) add("create bad enum", create_bad_enum, entity, column, -1);
    if (c->type == JOBQ_PG_TEXT && !null)
        add("create without", create_without_required, entity, column, -1);
    if (is(c, "ref") && !key) add("create bad ref", create_bad_ref, entity, column, -1);
    if (reference_of(c) < 0) return;
    add("create bad reference", create_bad_reference, entity, column, -1);
    add("reference deleted", reference_deleted, entity, column, -1);
}

static void add_entity(int e)
{
    int i;

    add("create minimal", create_minimal, e, -1, -1);
    add("create full", create_full, e, -1, -1);
    add("create duplicate", create_duplicate, e, -1, -1);
    add("find hit", find_hit, e, -1, -1);
    add("find miss", find_miss, e, -1, -1);
    add("list empty", list_empty, e, -1, -1);
    add("list ordered and paged", list_ordered_and_paged, e, -1, -1);
    if (e != ATTUNE_PERMISSION_ASSIGNMENT && e != ATTUNE_KEY)
        add("update several", update_several, e, -1, -1);
    add("update none", update_none, e, -1, -1);
    add("update missing", update_missing, e, -1, -1);
    add("delete hit and miss", delete_hit_and_miss, e, -1, -1);
    add("timestamps", timestamps, e, -1, -1);
    add("commit and rollback", commit_and_rollback, e, -1, -1);
    for (i = 0; attune_descs[e].columns[i].name != NULL; i++) add_column(e, i);
}

static int up(void **state)
{
    static char text[65536];
    FILE *file = fopen("examples/attune/attune.sql", "r");

    if (pg_up(state) != 0 || file == NULL) return 1;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    PQclear(PQexec(db, "DROP SCHEMA IF EXISTS attune CASCADE"));
    PQclear(PQexec(db, text));
    if (attune_open(pg, &error) == JOBQ_OK) return 0;
    fprintf(stderr, "%s\n", error.message);
    return 1;
}

static int down(void **state)
{
    attune_close();
    PQclear(PQexec(db, "DROP SCHEMA attune CASCADE"));
    return pg_down(state);
}

int main(void)
{
    int i, status;

    for (i = 0; i < ATTUNE_COUNT; i++) add_entity(i);
    for (i = 0; i < (int)COUNT(finders); i++) add("", finder, finders[i].entity, -1, i);
    add("search packs", search_packs, -1, -1, -1);
    add("pack refs accepted", pack_refs_accepted, -1, -1, -1);
    add("whole versions only", whole_versions_only, -1, -1, -1);
    add("worker heartbeat found and not", worker_heartbeat_found_and_not, -1, -1, -1);
    add("inquiries expire in one sweep", inquiries_expire_in_one_sweep, -1, -1, -1);
    add("notifications tell ids only", notifications_tell_ids_only, -1, -1, -1);
    add("keys belong to one owner", keys_belong_to_one_owner, -1, -1, -1);
    add("executions move once", executions_move_once, -1, -1, -1);
    status = _cmocka_run_group_tests("attune", tests, test_count, up, down);
    while (test_count-- > 0) {
        free((void *)(uintptr_t)tests[test_count].name);
        free(tests[test_count].initial_state);
    }
    return status;
}
