/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * jobq_json_check compared with the server's jsonb: both accept or both refuse random texts,
 * correct and slightly wrong ones. So a payload never aborts its caller's transaction, and none is
 * refused without need.
 */
#include "pg.h"

#define BATCH 400
#define BATCHES 50
#define TEXT_MAX 4000

static jobq_random dice;
static char text[TEXT_MAX];
static size_t size;

static int between(int least, int most)
{
    return (int)jobq_random_between(jobq_random_next(&dice), least, most);
}

static void put(const char *format, ...)
{
    va_list args;
    int more;

    va_start(args, format);
    more = vsnprintf(text + size, TEXT_MAX - size, format, args);
    va_end(args);
    if (more > 0 && size + (size_t)more < TEXT_MAX) size += (size_t)more;
}

static const char *one_of(const char *const *list, int count)
{
    return list[between(0, count - 1)];
}

static void put_space(void)
{
    static const char *const spaces[] = {" ", "\t", "\n", "\r\n", "  ", "\f", "\xc2\xa0"};

    if (between(0, 9) == 0) put("%s", one_of(spaces, between(0, 30) == 0 ? 7 : 5));
}

static void put_digits(int count)
{
    while (count-- > 0) put("%d", between(0, 3) == 0 ? 0 : between(0, 9));
}

/* The ends of what a numeric holds are a place of their own. At 1073741823 itself the majors
 * differ, and jobq_json_check is with those that refuse it. */
static void put_exponent(void)
{
    static const long ends[] = {131071, 131072, 131073, 16383, 16384, 1073741823, 2147483647};
    long end = ends[between(0, 6)] + between(-4, 4);

    if (end == 1073741823) end++;
    put("%c%s", between(0, 1) != 0 ? 'e' : 'E', one_of((const char *const[]){"", "+", "-"}, 3));
    if (between(0, 2) == 0) put_digits(between(0, 3));
    else if (between(0, 20) == 0) put_digits(25);
    else put("%ld", end);
}

static void put_number(void)
{
    static const char *const wholes[] = {"0", "00", "1", "-0", "-", "+1", "12345", "-9", "NaN",
                                         "Infinity", "0x1", "1_000"};

    if (between(0, 2) == 0) put("%s", one_of(wholes, between(0, 9) == 0 ? 12 : 4));
    else put_digits(between(1, 20));
    if (between(0, 2) == 0) {
        put(".");
        if (between(0, 3) == 0) put("0000");
        put_digits(between(0, 12));
    }
    if (between(0, 2) == 0) put_exponent();
}

static void put_string(void)
{
    static const char *const pieces[] = {
        "a", "bcd", " ", "\\n", "\\\"", "\\\\", "\\/", "\\u0041", "\\u00e9", "\\ud83d\\ude00",
        "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xef\xbf\xbf", "\\uffff", "'", "$1", "%s",
        /* from here on refused, mostly */
        "\\u0000", "\\ud83d", "\\ude00", "\\ud83d\\ud83d", "\\x", "\\u12g4", "\\U0041", "\n",
        "\x7f", "\x01", "\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\"",
        "\\"};
    int count = between(0, 6), good = between(0, 12) == 0 ? 35 : 18;

    put("\"");
    while (count-- > 0) put("%s", one_of(pieces, good));
    put("\"");
}

static void put_value(int depth)
{
    static const char *const words[] = {"true", "false", "null", "True", "nul", "nullx"};
    int draw = between(0, depth > 0 ? 9 : 5), count = between(0, 4), i;

    put_space();
    if (draw < 2) put_number();
    else if (draw < 4) put_string();
    else if (draw < 6) put("%s", one_of(words, between(0, 12) == 0 ? 6 : 3));
    else {
        put(draw < 8 ? "{" : "[");
        for (i = 0; i < count; i++) {
            if (i > 0) put(",");
            put_space();
            if (draw < 8) put_string();
            put_space();
            if (draw < 8) put(":");
            put_value(depth - 1);
        }
        put_space();
        put(draw < 8 ? "}" : "]");
    }
    put_space();
}

/* A byte changed, doubled, or taken out. */
static void damage(void)
{
    static const char bytes[] = "{}[],:\"\\ue0.-+ \n1t\x80\xc3";
    size_t at = size == 0 ? 0 : (size_t)between(0, (int)size - 1);
    int how = between(0, 2);

    if (size == 0 || size + 1 >= TEXT_MAX) return;
    if (how == 0) text[at] = bytes[between(0, (int)sizeof bytes - 2)];
    if (how == 1) memmove(text + at + 1, text + at, size++ - at);
    if (how == 2) memmove(text + at, text + at + 1, --size - at);
}

static void some_text(void)
{
    size = 0;
    put_value(between(0, 6));
    while (between(0, 2) == 0) damage();
}

/* -- what the server says of a batch -- */

static void put_hex(char *to, const char *bytes, size_t count)
{
    size_t i;

    for (i = 0; i < count; i++) sprintf(to + 2 * i, "%02x", (unsigned char)bytes[i]);
}

static void batch_is_judged_alike(void)
{
    static char list[BATCH * (2 * TEXT_MAX + 1) + 1];
    static char texts[BATCH][TEXT_MAX];
    static size_t sizes[BATCH];
    const char *value = list;
    PGresult *res;
    size_t at = 0;
    int i;

    for (i = 0; i < BATCH; i++) {
        some_text();
        memcpy(texts[i], text, size);
        sizes[i] = size;
        if (i > 0) list[at++] = ',';
        put_hex(list + at, text, size);
        at += 2 * size;
        list[at] = '\0';
    }
    res = PQexecParams(db, "SELECT pg_temp.taken($1)", 1, NULL, &value, NULL, NULL, 0);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) fail_msg("%s", PQerrorMessage(db));
    value = PQgetvalue(res, 0, 0);
    assert_int_equal(strlen(value), BATCH);
    for (i = 0; i < BATCH; i++) {
        const char *why = "";
        jobq_str json = {texts[i], sizes[i]};
        bool good = jobq_json_check(json, NULL, &why) == JOBQ_OK;
        if (good == (value[i] == 't')) continue;
        fail_msg("%s, but the server %s it: %.*s", good ? "taken" : why, good ? "refuses" : "takes",
                 (int)sizes[i], texts[i]);
    }
    PQclear(res);
}

static void texts_are_judged_as_the_server_does(void **unused)
{
    const char *seed = getenv("JOBQ_TEST_SEED");
    int i;

    (void)unused;
    dice.state = seed == NULL ? 20 : strtoull(seed, NULL, 10);
    PQclear(sql(db,
                "CREATE FUNCTION pg_temp.taken(p_texts text) RETURNS text LANGUAGE plpgsql AS $$"
                "DECLARE v text := ''; t text; "
                "BEGIN FOREACH t IN ARRAY string_to_array(p_texts, ',') LOOP BEGIN "
                "PERFORM convert_from(decode(t, 'hex'), 'UTF8')::jsonb; v := v || 't'; "
                "EXCEPTION WHEN OTHERS THEN v := v || 'f'; END; END LOOP; RETURN v; END $$"));
    for (i = 0; i < BATCHES; i++) batch_is_judged_alike();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_are_judged_as_the_server_does)};

    return cmocka_run_group_tests_name("json", tests, pg_up, pg_down);
}
