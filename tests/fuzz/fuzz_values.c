/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * fuzz_values.c -- libFuzzer on the values of typed tables: as text (numeric; in errors uuid, date,
 * instant, interval) and as a server would send them, for each type. Each value that was read is
 * written and read again, and must be the same.
 *
 * The first byte chooses the type. The rest is the value, in memory of exactly its length.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#define MUST(x) ((x) ? (void)0 : (fprintf(stderr, "broken: %s\n", #x), abort()))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* -- as text -- */

static bool is_number(jobq_str text) { return jobq_pg__numeric_valid(text); }

/* A sign before a number, and a blank behind it. */
static void check_numbers(jobq_str text)
{
    char *more = (char *)malloc(text.len + 1);
    jobq_str signed_text;
    bool valid = is_number(text);

    MUST(more != NULL);
    more[0] = '-';
    if (text.len > 0) memcpy(more + 1, text.ptr, text.len);
    signed_text.ptr = more;
    signed_text.len = text.len + 1;
    if (valid && text.ptr[0] != '-' && text.ptr[0] != '+' && text.ptr[0] != 'N')
        MUST(is_number(signed_text));
    if (text.len > 0) {
        memcpy(more, text.ptr, text.len);
        more[text.len] = ' ';
        MUST(!is_number(signed_text));
    }
    free(more);
}

/* Any value can be written. */
static void check_values(const char *raw, size_t len)
{
    static const jobq_pg_type types[] = {JOBQ_PG_UUID, JOBQ_PG_DATE, JOBQ_PG_TIMESTAMPTZ,
                                         JOBQ_PG_INTERVAL};
    char out[JOBQ_PG__VALUE_SIZE];
    jobq_pg_interval value; /* the largest */
    size_t i;

    if (len < sizeof value) return;
    memcpy(&value, raw, sizeof value);
    for (i = 0; i < 4; i++) {
        memset(out, 'x', sizeof out);
        MUST(jobq_pg__value_format(types[i], &value, out));
        MUST(memchr(out, '\0', sizeof out) != NULL);
    }
}

/* -- from the wire -- */

typedef union field {
    char bytes[sizeof(jobq_pg_maybe_interval)];
    jobq_str str;
    jobq_pg_texts texts;
    jobq_pg_int64s longs;
    int64_t align;
} field;

/* Reads into *out; the memory behind it is *block, exactly as much as was measured. */
static bool read_wire(const jobq_pg_column *column, const char *wire, size_t len, field *out,
                      char **block)
{
    size_t need = jobq_pg__heap_need(column->type, len) + 16;
    jobq_pg__heap heap;

    memset(out, 0, sizeof *out);
    *block = (char *)malloc(need);
    MUST(*block != NULL);
    heap.at = *block;
    heap.end = *block + need;
    return jobq_pg__get_value(column, column->offset != 0, wire, len, out->bytes, &heap);
}

static bool same_str(jobq_str a, jobq_str b)
{
    return (a.ptr == NULL) == (b.ptr == NULL) && jobq_str_equal(a, b);
}

static void same(const jobq_pg_column *column, const field *a, const field *b)
{
    size_t i;

    if (column->type == JOBQ_PG_TEXTS) {
        MUST(a->texts.count == b->texts.count);
        for (i = 0; i < a->texts.count; i++) {
            MUST(same_str(a->texts.items[i], b->texts.items[i]));
            MUST(a->texts.items[i].ptr == NULL ||
                 a->texts.items[i].ptr[a->texts.items[i].len] == '\0');
        }
    } else if (column->type == JOBQ_PG_INT64S) {
        MUST(a->longs.count == b->longs.count);
        for (i = 0; i < a->longs.count; i++) MUST(a->longs.items[i] == b->longs.items[i]);
    } else if (jobq_pg__types[column->type].maybe == 0) {
        MUST(same_str(a->str, b->str) && a->str.ptr[a->str.len] == '\0');
    } else {
        MUST(memcmp(a->bytes, b->bytes, jobq_pg__types[column->type].size) == 0);
    }
}

static void check_wire(int type, bool jsonb, const char *wire, size_t len)
{
    static const char *const names[] = {"sad", "ok", "", NULL};
    jobq_pg_column column = {"c", (jobq_pg_type)type, jsonb, 0, 0, names};
    jobq_pg__params p;
    field value, again;
    char *block, *block_again;
    const char *wrong;

    memset(&p, 0, sizeof p);
    if (read_wire(&column, wire, len, &value, &block)) {
        wrong = jobq_pg__wrong(&column, value.bytes);
        if (type != JOBQ_PG_DURATION && (wrong == NULL || type == JOBQ_PG_BYTES)) {
            jobq_pg__put_value(&p, &column, jsonb, value.bytes);
            MUST(!p.failed);
            MUST(read_wire(&column, p.data == NULL ? "" : p.data, p.size, &again, &block_again));
            same(&column, &value, &again);
            free(block_again);
        }
    }
    free(p.data);
    free(block);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    jobq_str text;
    char *copy;

    if (size < 1) return 0;
    copy = (char *)malloc(size - 1 + (size == 1));
    MUST(copy != NULL);
    if (size > 1) memcpy(copy, data + 1, size - 1);
    text.ptr = copy;
    text.len = size - 1;
    check_numbers(text);
    check_values(copy, size - 1);
    check_wire(1 + data[0] % (JOBQ_PG_TYPE_COUNT - 1), data[0] >= 128, copy, size - 1);
    free(copy);
    return 0;
}
