/*
 * fuzz_values.c -- libFuzzer on the values of typed tables: as text (uuid, date, instant, interval,
 * bytes, numeric) and as a server would send them, for each type. Each value that was read is
 * written and read again, and must be the same.
 *
 * The first byte chooses the type. The rest is the value, in memory of exactly its length.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#define MUST(x) ((x) ? (void)0 : (fprintf(stderr, "broken: %s\n", #x), abort()))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static jobq_str str_of(const char *text) { return jobq_str_from(text); }

/* -- as text -- */

static void text_of_value(jobq_pg_type type, const void *value, char *out)
{
    MUST(jobq_pg_value_format(type, value, out, JOBQ_PG_VALUE_SIZE) == JOBQ_OK);
}

static bool is_number(jobq_str text)
{
    jobq_str got;

    return jobq_pg_value_from(JOBQ_PG_NUMERIC, text, &got) == JOBQ_OK;
}

static void check_dates(jobq_str text)
{
    char out[JOBQ_PG_VALUE_SIZE];
    int32_t days = 7, again;

    if (jobq_pg_value_from(JOBQ_PG_DATE, text, &days) != JOBQ_OK) {
        MUST(days == 7);
        return;
    }
    text_of_value(JOBQ_PG_DATE, &days, out);
    MUST(jobq_pg_value_from(JOBQ_PG_DATE, str_of(out), &again) == JOBQ_OK && again == days);
}

static void check_instants(jobq_str text)
{
    char out[JOBQ_PG_VALUE_SIZE];
    int64_t us = 7, again;

    if (jobq_pg_value_from(JOBQ_PG_TIMESTAMPTZ, text, &us) != JOBQ_OK) {
        MUST(us == 7);
        return;
    }
    text_of_value(JOBQ_PG_TIMESTAMPTZ, &us, out);
    MUST(jobq_pg_value_from(JOBQ_PG_TIMESTAMPTZ, str_of(out), &again) == JOBQ_OK && again == us);
}

static void check_intervals(jobq_str text)
{
    char out[JOBQ_PG_VALUE_SIZE];
    jobq_pg_interval span, again;

    if (jobq_pg_value_from(JOBQ_PG_INTERVAL, text, &span) != JOBQ_OK) return;
    text_of_value(JOBQ_PG_INTERVAL, &span, out);
    MUST(jobq_pg_value_from(JOBQ_PG_INTERVAL, str_of(out), &again) == JOBQ_OK);
    MUST(memcmp(&span, &again, sizeof span) == 0);
}

static void check_uuids(jobq_str text)
{
    char out[JOBQ_PG_VALUE_SIZE];
    jobq_pg_uuid uuid, again;

    if (jobq_pg_value_from(JOBQ_PG_UUID, text, &uuid) != JOBQ_OK) return;
    text_of_value(JOBQ_PG_UUID, &uuid, out);
    MUST(strlen(out) == 36);
    MUST(jobq_pg_value_from(JOBQ_PG_UUID, str_of(out), &again) == JOBQ_OK);
    MUST(memcmp(&uuid, &again, sizeof uuid) == 0);
}

static void check_bytes(jobq_str text)
{
    size_t room = text.len < 4 ? 0 : text.len / 2 - 1, size = 0, back = 0;
    char *bytes = (char *)malloc(room + !room), *out, *again;
    jobq_str read;

    MUST(bytes != NULL);
    if (jobq_pg_bytes_from(text, bytes, &size) == JOBQ_OK) {
        MUST(size == room);
        out = (char *)malloc(2 * size + 3);
        again = (char *)malloc(size + !size);
        read.ptr = bytes;
        read.len = size;
        MUST(out != NULL && again != NULL);
        MUST(jobq_pg_value_format(JOBQ_PG_BYTES, &read, out, 2 * size + 3) == JOBQ_OK);
        MUST(jobq_pg_bytes_from(str_of(out), again, &back) == JOBQ_OK && back == size);
        MUST(size == 0 || memcmp(bytes, again, size) == 0);
        free(out);
        free(again);
    }
    free(bytes);
}

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

/* Any value can be written; what the server can hold is read again. */
static void check_values(const char *raw, size_t len)
{
    char date[JOBQ_PG_VALUE_SIZE], instant[JOBQ_PG_VALUE_SIZE], span_text[JOBQ_PG_VALUE_SIZE];
    jobq_pg_interval span, span_again;
    int32_t days, days_again;
    int64_t us, us_again;

    if (len < 16) return;
    memcpy(&span, raw, 16);
    us = span.us;
    days = span.days;
    text_of_value(JOBQ_PG_DATE, &days, date);
    if (jobq_pg_value_from(JOBQ_PG_DATE, str_of(date), &days_again) == JOBQ_OK)
        MUST(days_again == days);
    else MUST(days < JOBQ_PG__DATE_FIRST || days > JOBQ_PG__DATE_LAST);
    text_of_value(JOBQ_PG_TIMESTAMPTZ, &us, instant);
    if (jobq_pg_value_from(JOBQ_PG_TIMESTAMPTZ, str_of(instant), &us_again) == JOBQ_OK)
        MUST(us_again == us);
    else MUST(us < JOBQ_PG__INSTANT_FIRST || us > INT64_MAX - 3 * JOBQ_PG__DAY_US);
    text_of_value(JOBQ_PG_INTERVAL, &span, span_text);
    MUST(jobq_pg_value_from(JOBQ_PG_INTERVAL, str_of(span_text), &span_again) == JOBQ_OK);
    MUST(memcmp(&span, &span_again, 16) == 0);
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
    check_dates(text);
    check_instants(text);
    check_intervals(text);
    check_uuids(text);
    check_bytes(text);
    check_numbers(text);
    check_values(copy, size - 1);
    check_wire(1 + data[0] % (JOBQ_PG_TYPE_COUNT - 1), data[0] >= 128, copy, size - 1);
    free(copy);
    return 0;
}
