/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Errors, borrowed strings and the rules for data from outside: names, UTF-8, JSON.
 *
 * Rows X38 (asserts only on NULL), X39 (sizes, fuzz); names of SEED_FACTS 2.5. The promise under
 * test: Postgres stores what is accepted here, and what Postgres would refuse is refused here,
 * before it is sent.
 */
#include "check.h"

#define JOBQ_ASSERT(x) mock_assert(!!(x), #x, __FILE__, __LINE__)
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#define STR(literal) {literal, sizeof(literal) - 1}

/* Exactly these bytes on the heap, so that a sanitizer sees any read behind them. */
static jobq_str on_heap(const void *bytes, size_t len)
{
    jobq_str s = {NULL, 0};
    char *copy = malloc(len == 0 ? 1 : len);

    assert_non_null(copy);
    if (len > 0) memcpy(copy, bytes, len);
    s.ptr = copy;
    s.len = len;
    return s;
}

static void off_heap(jobq_str s)
{
    void *p;

    memcpy(&p, &s.ptr, sizeof p);
    free(p);
}

/* ---- errors and borrowed strings ------------------------------------------------------------- */

static void errors_keep_their_names(void **unused)
{
    static const struct {
        jobq_error error;
        const char *name;
    } errors[] = {
        {JOBQ_OK, "ok"},
        {JOBQ_ERROR_INVALID, "invalid"},
        {JOBQ_ERROR_TRANSITION, "transition"},
        {JOBQ_ERROR_LOST, "lost"},
        {JOBQ_ERROR_DEAD, "dead"},
        {JOBQ_ERROR_BUSY, "busy"},
        {JOBQ_ERROR_NOT_FOUND, "not_found"},
        {JOBQ_ERROR_EXISTS, "exists"},
        {JOBQ_ERROR_TIMEOUT, "timeout"},
        {JOBQ_ERROR_FULL, "full"},
        {JOBQ_ERROR_MEMORY, "memory"},
        {JOBQ_ERROR_VERSION, "version"},
        {JOBQ_ERROR_CONNECTION, "connection"},
        {JOBQ_ERROR_RETRYABLE, "retryable"},
        {JOBQ_ERROR_DATABASE, "database"},
    };
    size_t i, k;

    (void)unused;
    assert_int_equal(JOBQ_OK, 0);
    assert_int_equal(COUNT(errors), JOBQ_ERROR_COUNT);
    for (i = 0; i < COUNT(errors); i++) {
        const char *text = jobq_error_text(errors[i].error);
        assert_string_equal(jobq_enum_name(JOBQ_ENUM_ERROR, errors[i].error), errors[i].name);
        assert_true(strlen(text) > 5);
        for (k = 0; k < i; k++) assert_string_not_equal(text, jobq_error_text(errors[k].error));
    }
}

static void numbers_that_are_no_error_are_unknown(void **unused)
{
    static const int numbers[] = {-1, JOBQ_ERROR_COUNT, JOBQ_ERROR_COUNT + 1, 999, INT32_MAX};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(numbers); i++) {
        assert_string_equal(jobq_enum_name(JOBQ_ENUM_ERROR, numbers[i]), "unknown");
        assert_string_equal(jobq_error_text((jobq_error)numbers[i]), "unknown error");
    }
}

static void none_is_not_empty_but_both_have_no_bytes(void **unused)
{
    jobq_str none = jobq_str_from(NULL), empty = jobq_str_from("");

    (void)unused;
    assert_null(none.ptr);
    assert_int_equal(none.len, 0);
    assert_non_null(empty.ptr);
    assert_int_equal(empty.len, 0);
    assert_true(jobq_str_equal(none, empty));
    assert_true(jobq_str_equal(none, none));
}

static void strings_are_equal_byte_by_byte(void **unused)
{
    static const jobq_str strings[] = {STR(""),    STR("a"),    STR("b"),    STR("ab"),
                                       STR("a\0"), STR("a\0b"), STR("a\0c"), STR("\xff")};
    size_t i, k;

    (void)unused;
    for (i = 0; i < COUNT(strings); i++) {
        jobq_str copy = on_heap(strings[i].ptr, strings[i].len);
        for (k = 0; k < COUNT(strings); k++) {
            assert_int_equal(jobq_str_equal(copy, strings[k]), i == k);
        }
        off_heap(copy);
    }
}

/* ---- names ----------------------------------------------------------------------------------- */

static bool is_alnum(int c)
{
    return c != 0 && strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", c);
}

static void names_follow_the_rule(void **unused)
{
    static const struct {
        jobq_str name;
        bool good;
    } names[] = {
        {STR("orders"), true},   {STR("orders.v2"), true}, {STR("my-queue"), true},
        {STR("my_queue"), true}, {STR("a"), true},         {STR("9"), true},
        {STR("a..b"), true},     {STR("a.-_.b"), true},    {STR("OrderEvents"), true},
        {STR(""), false},        {STR(".orders"), false},  {STR("orders-"), false},
        {STR("_x"), false},      {STR("x_"), false},       {STR("."), false},
        {STR("has space"), false}, {STR("a/b"), false},    {STR("a\0b"), false},
        {STR("a\0"), false},     {STR("\xc3\xa4"), false}, {STR("\xd0\xb0\xd0\xb1"), false},
        {STR("a\n"), false},     {STR("a;b"), false},      {STR("a\"b"), false},
    };
    static const jobq_str none = {NULL, 0}, broken = {NULL, 3};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(names); i++) {
        jobq_str copy = on_heap(names[i].name.ptr, names[i].name.len);
        if (jobq_name_valid(copy) != names[i].good)
            fail_msg("row %d: %s", (int)i, names[i].name.ptr);
        off_heap(copy);
    }
    assert_false(jobq_name_valid(none));
    assert_false(jobq_name_valid(broken));
}

static void names_know_every_byte_in_every_place(void **unused)
{
    int c;

    (void)unused;
    for (c = 0; c < 256; c++) {
        char name[4] = "aaa";
        jobq_str s = {name, 3};
        bool inner = is_alnum(c) || c == '.' || c == '_' || c == '-';
        name[0] = (char)c;
        assert_int_equal(jobq_name_valid(s), is_alnum(c));
        name[0] = 'a';
        name[1] = (char)c;
        assert_int_equal(jobq_name_valid(s), inner);
        name[1] = 'a';
        name[2] = (char)c;
        assert_int_equal(jobq_name_valid(s), is_alnum(c));
    }
}

static void names_have_at_most_1024_bytes(void **unused)
{
    static char bytes[1025];
    jobq_str s = {bytes, 1024};

    (void)unused;
    assert_int_equal(JOBQ_NAME_MAX, 1024);
    memset(bytes, 'a', sizeof bytes);
    assert_true(jobq_name_valid(s));
    s.len = 1025;
    assert_false(jobq_name_valid(s));
}

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

/* The code point at p and its length by the definition: decode, then ask for the shortest form. */
static size_t oracle_utf8(const unsigned char *p, size_t n)
{
    static const uint32_t least[] = {0, 1, 0x80, 0x800, 0x10000};
    size_t len = p[0] < 0x80                     ? 1
                 : p[0] >= 0xc0 && p[0] <= 0xdf ? 2
                 : p[0] >= 0xe0 && p[0] <= 0xef ? 3
                 : p[0] >= 0xf0 && p[0] <= 0xf7 ? 4 : 0;
    uint32_t point, i;

    if (len == 0 || len > n) return 0;
    point = len == 1 ? p[0] : p[0] & (0x7fu >> len);
    for (i = 1; i < len; i++) {
        if (p[i] >> 6 != 2) return 0;
        point = point << 6 | (p[i] & 0x3fu);
    }
    if (point < least[len] || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) return 0;
    return len;
}

static bool oracle_utf8_valid(const unsigned char *p, size_t n)
{
    while (n > 0) {
        size_t len = oracle_utf8(p, n);
        if (len == 0) return false;
        p += len;
        n -= len;
    }
    return true;
}

static bool utf8_valid(const unsigned char *bytes, size_t len)
{
    jobq_str s;

    s.ptr = (const char *)bytes;
    s.len = len;
    return jobq_utf8_valid(s);
}

static size_t encode(unsigned char *out, uint32_t point)
{
    size_t len = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4, i;

    for (i = len - 1; i > 0; i--, point >>= 6) out[i] = (unsigned char)(0x80 | (point & 0x3f));
    out[0] = (unsigned char)(len == 1 ? point : (0xf00u >> len & 0xff) | point);
    return len;
}

static void every_code_point_but_nul_and_surrogates_is_utf8(void **unused)
{
    uint32_t point;

    (void)unused;
    for (point = 0; point <= 0x1fffff; point++) {
        unsigned char bytes[4];
        size_t len = encode(bytes, point);
        bool good = point != 0 && point <= 0x10ffff && (point < 0xd800 || point > 0xdfff);
        if (utf8_valid(bytes, len) != good) fail_msg("U+%04X", (unsigned)point);
        if (len > 1 && utf8_valid(bytes, len - 1)) fail_msg("cut U+%04X", (unsigned)point);
    }
}

static void overlong_forms_are_no_utf8(void **unused)
{
    uint32_t point;

    (void)unused;
    for (point = 0; point < 0x10000; point++) {
        unsigned char four[4], three[3], two[2];
        encode(four, 0x10000);
        four[1] = (unsigned char)(0x80 | point >> 12);
        four[2] = (unsigned char)(0x80 | (point >> 6 & 0x3f));
        four[3] = (unsigned char)(0x80 | (point & 0x3f));
        assert_int_equal(utf8_valid(four, 4), false);
        three[0] = 0xe0;
        three[1] = (unsigned char)(0x80 | (point >> 6 & 0x1f));
        three[2] = four[3];
        assert_int_equal(utf8_valid(three, 3), false);
        two[0] = (unsigned char)(0xc0 | (point >> 6 & 1));
        two[1] = four[3];
        assert_int_equal(utf8_valid(two, 2), false);
    }
}

/* All sequences of up to four bytes at which some rule turns. */
static void utf8_agrees_with_its_definition_on_all_short_sequences(void **unused)
{
    static const unsigned char turns[] = {
        0x00, 0x01, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0,
        0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xf7, 0xf8, 0xfe, 0xff};
    size_t total = 1, n, i, k;

    (void)unused;
    for (n = 1; n <= (check_slow() ? 3u : 4u); n++) {
        total *= COUNT(turns);
        for (i = 0; i < total; i++) {
            unsigned char bytes[4];
            size_t rest = i;
            for (k = 0; k < n; k++, rest /= COUNT(turns)) bytes[k] = turns[rest % COUNT(turns)];
            if (utf8_valid(bytes, n) != (oracle_utf8_valid(bytes, n) && !memchr(bytes, 0, n))) {
                fail_msg("%u bytes: %02x %02x %02x %02x", (unsigned)n, bytes[0], bytes[1], bytes[2],
                         bytes[3]);
            }
        }
    }
}

static void no_bytes_are_valid_utf8(void **unused)
{
    static const jobq_str none = {NULL, 0};

    (void)unused;
    assert_true(jobq_utf8_valid(none));
    assert_true(jobq_utf8_valid(jobq_str_from("")));
}

/* Characters of 1, 2, 3, 4 bytes and back. */
#define MIXED "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\xe2\x82\xac\xc3\xa4" "a"

static void a_cut_keeps_the_longest_prefix_of_whole_characters(void **unused)
{
    static const size_t ends[] = {0, 1, 3, 6, 10, 13, 15, 16};
    jobq_str text = on_heap(MIXED, 16), none = {NULL, 0};
    size_t max, end = 0;

    (void)unused;
    for (max = 0; max <= 20; max++) {
        jobq_str kept = jobq_utf8_cut(text, max);
        while (end + 1 < COUNT(ends) && ends[end + 1] <= max) end++;
        assert_ptr_equal(kept.ptr, text.ptr);
        assert_int_equal(kept.len, ends[end]);
        assert_true(jobq_utf8_valid(kept));
    }
    assert_int_equal(jobq_utf8_cut(text, SIZE_MAX).len, 16);
    assert_int_equal(jobq_utf8_cut(none, 0).len, 0);
    assert_null(jobq_utf8_cut(none, 5).ptr);
    off_heap(text);
}

static void mending_replaces_what_is_bad_and_nothing_else(void **unused)
{
    static const struct {
        jobq_str bytes;
        size_t max;
        const char *mended;
    } rows[] = {
        {STR(""), 9, ""},
        {STR("plain"), 9, "plain"},
        {STR("plain"), 5, "plain"},
        {STR("plain"), 4, "plai"},
        {STR("plain"), 0, ""},
        {STR("a\0b"), 9, "a?b"},
        {STR("\xff\xfe"), 9, "??"},
        {STR("a\x80z"), 9, "a?z"},
        {STR("\xc3"), 9, "?"},
        {STR("\xc3z"), 9, "?z"},
        {STR("\xe2\x82z"), 9, "??z"},
        {STR("\xe2\x82\xac"), 3, "\xe2\x82\xac"},
        {STR("\xe2\x82\xac"), 2, ""},
        {STR("ab\xe2\x82\xac" "c"), 4, "ab"},
        {STR("\xed\xa0\x80"), 9, "???"},
        {STR("\xc0\x80"), 9, "??"},
        {STR("\xf0\x9f\x98\x80\xf0\x9f\x98"), 9, "\xf0\x9f\x98\x80???"},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        char out[16];
        jobq_str bytes = on_heap(rows[i].bytes.ptr, rows[i].bytes.len);
        memset(out, '#', sizeof out);
        assert_int_equal(jobq_utf8_mend(out, rows[i].max, bytes), strlen(rows[i].mended));
        assert_string_equal(out, rows[i].mended);
        assert_int_equal(out[rows[i].max + 1], '#');
        off_heap(bytes);
    }
}

static void anything_can_be_mended(void **unused)
{
    static const jobq_str none = {NULL, 0};
    jobq_random r = {11};
    int n, rounds = check_slow() ? 20000 : 300000;
    char out[42];

    (void)unused;
    for (n = 0; n < rounds; n++) {
        unsigned char bytes[32];
        size_t len = (size_t)(jobq_random_next(&r) % 33), max = (size_t)(jobq_random_next(&r) % 40);
        size_t i, size;
        jobq_str mended, given;
        for (i = 0; i < len; i++) { /* lead and trail bytes often enough to make characters */
            uint64_t bits = jobq_random_next(&r);
            bytes[i] = (unsigned char)(bits % 3 == 0 ? bits >> 8 : 0x80 | (bits >> 8 & 0x7f));
        }
        given.ptr = (const char *)bytes;
        given.len = len;
        memset(out, '#', sizeof out);
        size = jobq_utf8_mend(out, max, given);
        mended.ptr = out;
        mended.len = size;
        assert_true(size <= max && size <= len && out[size] == '\0' && out[size + 1] == '#');
        assert_true(jobq_utf8_valid(mended));
        if (jobq_utf8_valid(given)) {
            assert_true(jobq_str_equal(mended, jobq_utf8_cut(given, max)));
        }
    }
    assert_int_equal(jobq_utf8_mend(out, 5, none), 0);
    assert_string_equal(out, "");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static bool json_good(const char *text, size_t len)
{
    jobq_str copy = on_heap(text, len);
    size_t at = SIZE_MAX;
    const char *why = NULL;
    jobq_error error = jobq_json_check(copy, &at, &why);

    assert_true(error == JOBQ_OK || error == JOBQ_ERROR_INVALID);
    assert_true(at <= len);
    assert_non_null(why);
    if (error == JOBQ_OK) assert_int_equal(at, len);
    assert_int_equal(strlen(why) == 0, error == JOBQ_OK);
    off_heap(copy);
    return error == JOBQ_OK;
}

/* Verdicts of PostgreSQL. */
static const char *const json_good_texts[] = {
    "null", " true ", "false", "0", "-0", "1.5e10", "1E-5", "\"\"", "\"\\u00e4\\n\\\\\"",
    "\"\\ud83d\\ude00\"", "[]", "{}", "[1,2,[3]]", "{\"a\":{\"b\":[null]}}", "\t{ \"a\" : 1 } \r\n",
    "1e131071", "1e-16383", "123456789012345678901234567890", "\"\xe2\x82\xac\""};

static const char *const json_bad_texts[] = {
    "", " ", "nul", "tru", "01", "-", "1.", ".5", "1e", "1e+", "+1", "'a'", "\"", "\"\\x\"",
    "\"\\u12\"", "\"\\u0000\"", "\"\\ud800\"", "\"\\ud800x\"", "\"\\ud800\\u0041\"", "\"\\udc00\"",
    "\"\\ud800\\ue000\"", "\"\\ud800\\", "\"\\ud800\\n\"",
    "\"a\nb\"", "\"\xff\"", "[", "[1", "[1,", "[1,]", "[,1]", "]", "{", "{\"a\"", "{\"a\":",
    "{\"a\":1", "{\"a\":1,", "{\"a\":1,}", "{a:1}", "{\"a\" 1}", "{\"a\":1]", "[1}", "1 2", "{}x",
    "1e131072", "1e-16384", "1e999999999999999999999", "[1 2]", "{\"a\":1 \"b\":2}"};

static void json_verdicts_are_those_of_postgres(void **unused)
{
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(json_good_texts); i++) {
        const char *text = json_good_texts[i];
        if (!json_good(text, strlen(text))) fail_msg("refused: %s", text);
    }
    for (i = 0; i < COUNT(json_bad_texts); i++) {
        const char *text = json_bad_texts[i];
        if (json_good(text, strlen(text))) fail_msg("taken: %s", text);
    }
}

/* JSON that jsonb cannot hold, and what is no JSON at all. */
static void json_that_is_kept_as_bytes(void **unused)
{
    static const char *const beyond[] = {
        "\"\\u0000\"", "{\"\\u0000\": \"\\ud800\"}", "\"\\udc00x\"", "\"\\ud800\\n\"", "1e131072",
        "1e-16384", "1e999999999999999999999"};
    jobq_str text;
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(beyond); i++) {
        text = jobq_str_from(beyond[i]);
        if (jobq_json_valid(text, NULL, NULL) != JOBQ_OK) fail_msg("refused: %s", beyond[i]);
        assert_int_equal(jobq_json_check(text, NULL, NULL), JOBQ_ERROR_INVALID);
    }
    for (i = 0; i < COUNT(json_good_texts); i++)
        assert_int_equal(jobq_json_valid(jobq_str_from(json_good_texts[i]), NULL, NULL), JOBQ_OK);
    for (i = 0; i < COUNT(json_bad_texts); i++) {
        text = jobq_str_from(json_bad_texts[i]);
        if (strstr(json_bad_texts[i], "\\u") == NULL && strstr(json_bad_texts[i], "1e") == NULL)
            assert_int_equal(jobq_json_valid(text, NULL, NULL), JOBQ_ERROR_INVALID);
    }
    assert_int_equal(jobq_json_valid(jobq_str_from("\"\\u12\""), NULL, NULL), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_json_valid(jobq_str_from("1e+"), NULL, NULL), JOBQ_ERROR_INVALID);
}

static void json_errors_say_where(void **unused)
{
    static const struct {
        jobq_str text;
        size_t at;
    } rows[] = {
        {STR(""), 0},           {STR("  "), 2},    {STR("nul"), 0},       {STR("[1,x]"), 3},
        {STR("1 2"), 2},        {STR("[1 2]"), 3}, {STR("{\"a\" 1}"), 5}, {STR("{1:2}"), 1},
        {STR("\"a\nb\""), 2},   {STR("\"ab"), 3},  {STR("\"a\\x\""), 3},  {STR("\"\xff\""), 1},
        {STR("\"\\u12g\""), 5}, {STR("[1,2"), 4},  {STR("[1}"), 2},       {STR("1\0"), 1},
        {STR("1."), 2},         {STR("1e+"), 3},   {STR("-a"), 1},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        size_t at = SIZE_MAX;
        assert_int_equal(jobq_json_check(rows[i].text, &at, NULL), JOBQ_ERROR_INVALID);
        if (at != rows[i].at) fail_msg("%s: at %d", rows[i].text.ptr, (int)at);
    }
}

static void json_answers_without_place_and_reason(void **unused)
{
    static const jobq_str none = {NULL, 0}, broken = {NULL, 4};

    (void)unused;
    assert_int_equal(jobq_json_check(jobq_str_from("[1]"), NULL, NULL), JOBQ_OK);
    assert_int_equal(jobq_json_check(jobq_str_from("[1"), NULL, NULL), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_json_check(none, NULL, NULL), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_json_check(broken, NULL, NULL), JOBQ_ERROR_INVALID);
}

static void a_nul_is_refused_wherever_it_stands(void **unused)
{
    static const char text[] = "{ \"a\" : [ 1 , true , \"b\\n\" ] }";
    size_t i;

    (void)unused;
    for (i = 0; i <= sizeof text - 1; i++) {
        char with[sizeof text + 1];
        memcpy(with, text, i);
        with[i] = '\0';
        memcpy(with + i + 1, text + i, sizeof text - i);
        assert_false(json_good(with, sizeof text));
    }
}

static void a_text_that_is_cut_is_refused(void **unused)
{
    static const char text[] =
        "{\"a\":[1.5e-3,null,\"\\ud83d\\ude00 \xe2\x82\xac\",{}],\"b\":{\"c\":[]}}";
    size_t i;

    (void)unused;
    assert_true(json_good(text, sizeof text - 1));
    for (i = 0; i < sizeof text - 1; i++) assert_false(json_good(text, i));
}

static void strings_take_every_byte_they_may(void **unused)
{
    int c;

    (void)unused;
    for (c = 0; c < 256; c++) {
        char raw[3] = {'"', 0, '"'}, escaped[4] = {'"', '\\', 0, '"'}, alone[2] = {0, '1'};
        raw[1] = escaped[2] = alone[0] = (char)c;
        assert_int_equal(json_good(raw, 3), c >= 0x20 && c < 0x80 && c != '"' && c != '\\');
        assert_int_equal(json_good(escaped, 4), c != 0 && strchr("\"\\/bfnrt", c) != NULL);
        assert_int_equal(json_good(alone, 2), c != 0 && strchr(" \t\n\r-123456789", c) != NULL);
    }
}

static void every_escaped_unit_is_judged(void **unused)
{
    int unit, step = check_slow() ? 13 : 1;
    char text[16];

    (void)unused;
    for (unit = 0; unit <= 0xffff; unit += step) {
        bool good = unit != 0 && (unit < 0xd800 || unit > 0xdfff);
        snprintf(text, sizeof text, "\"\\u%04x\"", (unsigned)unit);
        assert_int_equal(json_good(text, 8), good);
        snprintf(text, sizeof text, "\"\\u%04X\"", (unsigned)unit);
        assert_int_equal(json_good(text, 8), good);
        snprintf(text, sizeof text, "\"\\ud9ab\\u%04x\"", (unsigned)unit);
        assert_int_equal(json_good(text, 14), unit >= 0xdc00 && unit <= 0xdfff);
        snprintf(text, sizeof text, "\"\\u%04x\\udcba\"", (unsigned)unit);
        assert_int_equal(json_good(text, 14), unit >= 0xd800 && unit <= 0xdbff);
    }
}

static bool nested(const char *open, const char *close, size_t depth)
{
    size_t each = strlen(open), end = strlen(close), i;
    char *text = malloc(depth * (each + end) + 1);
    bool good;

    assert_non_null(text);
    for (i = 0; i < depth; i++) memcpy(text + i * each, open, each);
    text[depth * each] = '0';
    for (i = 0; i < depth; i++) memcpy(text + depth * each + 1 + i * end, close, end);
    good = json_good(text, depth * (each + end) + 1);
    free(text);
    return good;
}

static void nesting_ends_at_its_limit(void **unused)
{
    static const struct {
        const char *open, *close;
        size_t brackets;
    } kinds[] = {{"[", "]", 1}, {"{\"a\":", "}", 1}, {"[{\"a\":", "}]", 2}, {"[ [1] , ", " ]", 1}};
    size_t i;

    (void)unused;
    assert_int_equal(JOBQ_JSON_DEPTH, 256);
    for (i = 0; i < COUNT(kinds); i++) {
        size_t most = JOBQ_JSON_DEPTH / kinds[i].brackets;
        /* the last kind opens a second bracket beside each, and closes it before the next */
        assert_true(nested(kinds[i].open, kinds[i].close, 1));
        assert_true(nested(kinds[i].open, kinds[i].close, most - (kinds[i].open[1] == ' ')));
        assert_false(nested(kinds[i].open, kinds[i].close, most + 1));
        assert_false(nested(kinds[i].open, kinds[i].close, 100000));
    }
}

/* whole nines, a point and fraction nines, an exponent (0: none). */
static bool number_good(size_t whole, size_t fraction, long exponent)
{
    char *text = malloc(whole + fraction + 32);
    size_t len = whole;
    bool good;

    assert_non_null(text);
    memset(text, '9', whole);
    if (fraction > 0) {
        text[len++] = '.';
        memset(text + len, '9', fraction);
        len += fraction;
    }
    if (exponent != 0) len += (size_t)snprintf(text + len, 31, "e%ld", exponent);
    good = json_good(text, len);
    free(text);
    return good;
}

/* 131072 digits before the point, 16383 behind it. Verdicts of PostgreSQL 15. */
static void numbers_end_where_numeric_ends(void **unused)
{
    static const struct {
        size_t whole, fraction;
        long exponent;
        bool good;
    } rows[] = {
        {131072, 0, 0, true},     {131073, 0, 0, false},    {131073, 0, -1, true},
        {131071, 0, 1, true},     {131071, 0, 2, false},    {100, 0, 130972, true},
        {100, 0, 130973, false},  {1, 0, 131071, true},     {1, 0, 131072, false},
        {1, 16383, 0, true},      {1, 16384, 0, false},     {1, 383, -16000, true},
        {1, 384, -16000, false},  {131072, 16383, 0, true}, {131072, 16384, 0, false},
        {1, 20000, 3617, true},   {1, 20000, 3616, false},  {131072, 1, 0, true},
        {1, 0, 999999, false},    {1, 0, -999999, false},   {1, 0, 2147483647, false},
        {1, 0, -2147483647, false}, {200000, 0, -68928, false},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        if (number_good(rows[i].whole, rows[i].fraction, rows[i].exponent) != rows[i].good) {
            fail_msg("%zu digits, %zu behind the point, exponent %ld", rows[i].whole,
                     rows[i].fraction, rows[i].exponent);
        }
    }
}

/* What counts is where the first digit is that is not 0; a zero has none, but its exponent ends
 * all the same. Verdicts of PostgreSQL 15, and 3000 more compared by hand with none different. */
static void zeros_in_front_take_no_room_in_a_numeric(void **unused)
{
    static const char *const good[] = {"0e131072", "0.0e200000", "0.001e131074", "0.1e131072",
                                       "0e1073741822", "-0.0e+1073741822", "0e-16383"};
    static const char *const bad[] = {"0e1073741823", "0e99999999999999999999", "0.1e131073",
                                      "0.001e131075", "0e-16384", "0.0e-16383", "10e131071",
                                      "0.1e99999999999999999999", "0e-1073741823"};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(good); i++) {
        if (!json_good(good[i], strlen(good[i]))) fail_msg("refused: %s", good[i]);
    }
    for (i = 0; i < COUNT(bad); i++) {
        if (json_good(bad[i], strlen(bad[i]))) fail_msg("taken: %s", bad[i]);
    }
}

/* A reference: the grammar of RFC 8259 as it is written, by recursion, for short texts without
 * strings' inner life. Each function answers where its part ends, or NULL. */
static const char *ref_value(const char *p);

static const char *ref_space(const char *p)
{
    while (*p == ' ') p++;
    return p;
}

static const char *ref_digits(const char *p)
{
    if (p == NULL || *p < '0' || *p > '9') return NULL;
    while (*p >= '0' && *p <= '9') p++;
    return p;
}

static const char *ref_number(const char *p)
{
    if (*p == '-') p++;
    p = *p == '0' ? p + 1 : ref_digits(p);
    if (p != NULL && *p == '.') p = ref_digits(p + 1);
    if (p != NULL && *p == 'e') p = ref_digits(p + 1 + (p[1] == '+' || p[1] == '-'));
    return p;
}

static const char *ref_string(const char *p)
{
    for (p++; *p != '"'; p++) {
        if (*p == '\0') return NULL;
    }
    return p + 1;
}

static const char *ref_member(const char *p, char close)
{
    if (close == '}') {
        if (*p != '"' || (p = ref_string(p)) == NULL) return NULL;
        p = ref_space(p);
        if (*p != ':') return NULL;
        p = ref_space(p + 1);
    }
    p = ref_value(p);
    return p == NULL ? NULL : ref_space(p);
}

static const char *ref_list(const char *p, char close)
{
    p = ref_space(p + 1);
    if (*p == close) return p + 1;
    for (;;) {
        p = ref_member(p, close);
        if (p == NULL) return NULL;
        if (*p == close) return p + 1;
        if (*p != ',') return NULL;
        p = ref_space(p + 1);
    }
}

static const char *ref_value(const char *p)
{
    if (*p == '[') return ref_list(p, ']');
    if (*p == '{') return ref_list(p, '}');
    if (*p == '"') return ref_string(p);
    return ref_number(p);
}

static bool ref_good(const char *text)
{
    const char *end = ref_value(ref_space(text));

    return end != NULL && *ref_space(end) == '\0';
}

static void json_agrees_with_the_grammar_on_all_short_texts(void **unused)
{
    static const char letters[] = "[]{},:\" 01-.e";
    size_t base = sizeof letters - 1, longest = check_slow() ? 4 : 6, total = 1, n, i, k, good = 0;

    (void)unused;
    for (n = 1; n <= longest; n++) {
        total *= base;
        for (i = 0; i < total; i++) {
            char text[8] = {0};
            jobq_str s = {text, 0};
            size_t rest = i;
            bool is;
            s.len = n;
            for (k = 0; k < n; k++, rest /= base) text[k] = letters[rest % base];
            is = jobq_json_check(s, NULL, NULL) == JOBQ_OK;
            if (is != ref_good(text)) fail_msg("%s: %s", text, is ? "accepted" : "refused");
            good += is;
        }
    }
    assert_true(good > (check_slow() ? 100 : 500));
}

/* Random walks from good texts: insert, drop and swap what the grammar turns on. */
static void json_agrees_with_the_grammar_on_mangled_texts(void **unused)
{
    static const char letters[] = "[]{},:\" 01-.e+";
    static const char *const seeds[] = {
        "[1,2,[0.5,{\"a\":[]}]]", "{\"a\":{\"b\":[1e+5,-0]},\"c\":1}", "[{},[],{\"\":0},\"x\"]"};
    jobq_random r = {77};
    int n, rounds = check_slow() ? 30000 : 1000000, good = 0;

    (void)unused;
    for (n = 0; n < rounds; n++) {
        char text[64];
        int edits = 1 + (int)(jobq_random_next(&r) % 3);
        strcpy(text, seeds[(size_t)n % COUNT(seeds)]);
        while (edits-- > 0) {
            uint64_t bits = jobq_random_next(&r);
            size_t len = strlen(text), at = (size_t)(bits >> 32) % len;
            char letter = letters[bits >> 8 & 0xff % (sizeof letters - 1)];
            if (bits % 3 == 0) {
                memmove(text + at, text + at + 1, len - at);
            } else if (bits % 3 == 1) {
                memmove(text + at + 1, text + at, len - at + 1);
                text[at] = letter;
            } else {
                text[at] = letter;
            }
        }
        if (json_good(text, strlen(text)) != ref_good(text)) fail_msg("%s", text);
        good += ref_good(text);
    }
    assert_true(good > rounds / 50 && good < rounds / 2);
}

/* X39: any bytes at all; the sanitizers watch. */
static void json_of_random_bytes_is_judged_and_never_overrun(void **unused)
{
    jobq_random r = {3};
    int n, rounds = check_slow() ? 20000 : 300000;

    (void)unused;
    for (n = 0; n < rounds; n++) {
        const char *seed = json_good_texts[jobq_random_next(&r) % COUNT(json_good_texts)];
        size_t len = strlen(seed);
        char text[64];
        if (len == 0 || len > sizeof text) continue;
        memcpy(text, seed, len);
        text[jobq_random_next(&r) % len] = (char)(jobq_random_next(&r) >> 56);
        json_good(text, len);
    }
}

/* ---- writing JSON ---------------------------------------------------------------------------- */

static void any_text_becomes_a_json_string(void **unused)
{
    static const struct {
        const char *text, *quoted;
    } rows[] = {
        {"", "\"\""},
        {"bob \"x", "\"bob \\\"x\""},
        {"a\\b\n\t\r\b\f", "\"a\\\\b\\n\\t\\r\\b\\f\""},
        {"\x01\x1f", "\"\\u0001\\u001f\""},
        {"\xe2\x82\xac \xff", "\"\xe2\x82\xac ?\""},
    };
    jobq_str nul = {"a\0b", 3};
    jobq_random r = {7};
    char out[64], bytes[9];
    size_t i, k, size;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        size = jobq_json_quote(out, sizeof out, jobq_str_from(rows[i].text));
        assert_int_equal(size, strlen(rows[i].quoted));
        assert_string_equal(out, rows[i].quoted);
        assert_int_equal(jobq_json_quote(out, size + 1, jobq_str_from(rows[i].text)), size);
        assert_int_equal(jobq_json_quote(out, size, jobq_str_from(rows[i].text)), 0);
    }
    assert_int_equal(jobq_json_quote(out, sizeof out, nul), 5);
    assert_string_equal(out, "\"a?b\"");
    for (i = 0; i < 100000; i++) {
        jobq_str any = {bytes, (size_t)jobq_random_between(jobq_random_next(&r), 0, 9)}, quoted;
        for (k = 0; k < any.len; k++) bytes[k] = (char)(jobq_random_next(&r) >> 40);
        quoted.ptr = out;
        quoted.len = jobq_json_quote(out, sizeof out, any);
        assert_true(quoted.len >= 2);
        assert_int_equal(jobq_json_check(quoted, NULL, NULL), JOBQ_OK);
    }
}

/* ---- reading payloads ------------------------------------------------------------------------ */

static const jobq_str json_none = {NULL, 0};

static void what_cannot_be_read_leaves_what_was_there(void **unused)
{
    static const struct {
        const char *json, *name;
        jobq_error text, whole, real;
    } rows[] = {
        {NULL, NULL, JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND},
        {NULL, "a", JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND},
        {"null", NULL, JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND},
        {" null ", NULL, JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND},
        {"{\"a\": null}", "a", JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND},
        {"{\"a\": 1}", "b", JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND},
        {"[1]", "a", JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND},
        {"{\"a\": 1", "a", JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND, JOBQ_ERROR_NOT_FOUND},
        {"", NULL, JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID},
        {"1 2", NULL, JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID},
        {"\"a", NULL, JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID},
        {"nul", NULL, JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID},
        {"{\"a\": true}", "a", JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID},
        {"{\"a\": [1]}", "a", JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID},
        {"{\"a\": {}}", "a", JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID},
        {"{\"a\": \"1\"}", "a", JOBQ_OK, JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID},
        {"{\"a\": 1}", "a", JOBQ_ERROR_INVALID, JOBQ_OK, JOBQ_OK},
        {"{\"a\": 1.5}", "a", JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID, JOBQ_OK},
        {"{\"a\": 1e999}", "a", JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID, JOBQ_ERROR_INVALID},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        jobq_str json = jobq_str_from(rows[i].json);
        char text[8] = "as was";
        int64_t whole = 7;
        double real = 7;
        jobq_error codes[3];
        codes[0] = jobq_json_text(json, rows[i].name, text, sizeof text);
        codes[1] = jobq_json_int(json, rows[i].name, &whole);
        codes[2] = jobq_json_double(json, rows[i].name, &real);
        if (codes[0] != rows[i].text || codes[1] != rows[i].whole || codes[2] != rows[i].real)
            fail_msg("%d: %s: %d %d %d", (int)i, rows[i].json, codes[0], codes[1], codes[2]);
        assert_string_equal(text, codes[0] == JOBQ_OK ? "1" : "as was");
        assert_int_equal(whole, codes[1] == JOBQ_OK ? 1 : 7);
        assert_true(real == (codes[2] != JOBQ_OK ? 7 : codes[1] == JOBQ_OK ? 1 : 1.5));
    }
}

static void a_text_is_read_without_quotes_and_escapes(void **unused)
{
    static const struct {
        const char *json, *text;
    } rows[] = {
        {"\"\"", ""},
        {" \"Ann\" ", "Ann"},
        {"\"a\\\"b\\\\c\\/d\\b\\f\\n\\r\\t\"", "a\"b\\c/d\b\f\n\r\t"},
        {"\"\\u0041\\u007f\\u0080\\u00e4\\u07ff\\u0800\\u20AC\\uffff\"",
         "A\x7f\xc2\x80\xc3\xa4\xdf\xbf\xe0\xa0\x80\xe2\x82\xac\xef\xbf\xbf"},
        {"\"\\ud800\\udc00\\ud83d\\ude00\\uDBFF\\uDFFF\"",
         "\xf0\x90\x80\x80\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf"},
        {"\"\xe2\x82\xac u\\u0075u\"", "\xe2\x82\xac uuu"},
    };
    char out[64], member[128];
    size_t i, len;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        jobq_str json = jobq_str_from(rows[i].json);
        len = strlen(rows[i].text);
        memset(out, '#', sizeof out);
        if (len > 0) assert_int_equal(jobq_json_text(json, NULL, out, len), JOBQ_ERROR_FULL);
        assert_int_equal(jobq_json_text(json, NULL, out, 0), JOBQ_ERROR_FULL);
        assert_int_equal(out[0], '#');
        assert_int_equal(jobq_json_text(json, NULL, out, len + 1), JOBQ_OK);
        assert_string_equal(out, rows[i].text);
        assert_int_equal(out[len + 1], '#');
        snprintf(member, sizeof member, "{\"b\": 1, \"a\": %s, \"c\": \"c\"}", rows[i].json);
        assert_int_equal(jobq_json_text(jobq_str_from(member), "a", out, len + 1), JOBQ_OK);
        assert_string_equal(out, rows[i].text);
    }
}

/* Every character, written as itself and as an escape, is the same text; so is what is quoted. */
static void every_character_is_read_as_itself(void **unused)
{
    char plain[8], json[32], out[8];
    int32_t code;

    (void)unused;
    for (code = 1; code <= 0x10ffff; code += code < 0x3000 ? 1 : 97) {
        int32_t high = 0xd800 + ((code - 0x10000) >> 10), low = 0xdc00 + ((code - 0x10000) & 0x3ff);
        jobq_str quoted = {json, 0};
        if (code >= 0xd800 && code <= 0xdfff) continue;
        plain[encode((unsigned char *)plain, (uint32_t)code)] = '\0';
        if (code < 0x10000) snprintf(json, sizeof json, "\"\\u%04x\"", (unsigned)code);
        else snprintf(json, sizeof json, "\"\\u%04x\\u%04x\"", (unsigned)high, (unsigned)low);
        assert_int_equal(jobq_json_text(jobq_str_from(json), NULL, out, sizeof out), JOBQ_OK);
        assert_string_equal(out, plain);
        quoted.len = jobq_json_quote(json, sizeof json, jobq_str_from(plain));
        assert_int_equal(jobq_json_text(quoted, NULL, out, sizeof out), JOBQ_OK);
        assert_string_equal(out, plain);
    }
}

static void integers_are_exact_or_refused(void **unused)
{
    static const struct {
        const char *json;
        int64_t value;
    } good[] = {
        {"0", 0}, {"-0", 0}, {" 42\n", 42}, {"-42", -42}, {"9007199254740993", 9007199254740993},
        {"9223372036854775807", INT64_MAX}, {"-9223372036854775807", -INT64_MAX},
        {"-9223372036854775808", INT64_MIN},
    };
    static const char *const bad[] = {
        "9223372036854775808", "-9223372036854775809", "9223372036854775810",
        "18446744073709551616", "18446744073709551617", "99999999999999999999999", "1.0", "1e3",
        "1E3", "0.0", "-0e0", "01", "+1", "-", "0x10", "1a", "true", "\"1\"", "[]"};
    size_t i;
    int64_t value;

    (void)unused;
    for (i = 0; i < COUNT(good); i++) {
        value = 7;
        assert_int_equal(jobq_json_int(jobq_str_from(good[i].json), NULL, &value), JOBQ_OK);
        assert_true(value == good[i].value);
    }
    for (i = 0; i < COUNT(bad); i++) {
        value = 7;
        if (jobq_json_int(jobq_str_from(bad[i]), NULL, &value) != JOBQ_ERROR_INVALID || value != 7)
            fail_msg("%s: %lld", bad[i], (long long)value);
    }
}

static uint64_t double_bits(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static void doubles_have_the_right_bits(void **unused)
{
    static const struct {
        const char *json;
        uint64_t bits;
    } rows[] = {
        {"0", 0},
        {"-0.0", 0x8000000000000000u},
        {"0e999", 0},
        {"1", 0x3ff0000000000000u},
        {"-1.5", 0xbff8000000000000u},
        {"0.1", 0x3fb999999999999au},
        {"9007199254740993", 0x4340000000000000u}, /* a tie, to even */
        {"9007199254740995", 0x4340000000000002u},
        {"9007199254740993.00000000000000000001", 0x4340000000000001u},
        {"1.7976931348623157e308", 0x7fefffffffffffffu},
        {"1.7976931348623158e308", 0x7fefffffffffffffu},
        {"2.2250738585072014e-308", 0x0010000000000000u},
        {"2.2250738585072011e-308", 0x000fffffffffffffu},
        {"2.4703282292062328e-324", 1},
        {"2.4703282292062327e-324", 0},
        {"1e-324", 0},
        {"-1e-400", 0x8000000000000000u},
        {"0.000000000000000000000000000000000000000000000000000000000000000001e66",
         0x3ff0000000000000u},
    };
    static const char *const large[] = {"1e309", "-1e309", "1.7976931348623159e308", "1e131071",
                                        "2e308"};
    size_t i;
    double value;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        assert_int_equal(jobq_json_double(jobq_str_from(rows[i].json), NULL, &value), JOBQ_OK);
        if (double_bits(value) != rows[i].bits) fail_msg("%s: %.17g", rows[i].json, value);
    }
    for (i = 0; i < COUNT(large); i++) {
        assert_int_equal(jobq_json_double(jobq_str_from(large[i]), NULL, &value),
                         JOBQ_ERROR_INVALID);
    }
}

#define MIDDLE 1420 /* digits: 345 before the point, 1075 after it */

/* The number in the middle between a positive double and the next, or a bit less or more. */
static void middle_of(char *out, uint64_t bits, int64_t aside)
{
    char a[MIDDLE + 2], b[MIDDLE + 2];
    int i, sum, carry = 0;

    snprintf(a, sizeof a, "%0*.1075f", MIDDLE + 1, double_of(bits));
    snprintf(b, sizeof b, "%0*.1075f", MIDDLE + 1, double_of(bits + 1));
    for (i = MIDDLE; i >= 0; i--) {
        if (a[i] == '.') continue;
        sum = (a[i] - '0') + (b[i] - '0') + carry;
        a[i] = (char)('0' + sum % 10);
        carry = sum / 10;
    }
    for (i = carry = 0; i <= MIDDLE; i++) {
        if (a[i] == '.') continue;
        sum = (a[i] - '0') + carry * 10;
        a[i] = (char)('0' + sum / 2);
        carry = sum % 2;
    }
    for (i = MIDDLE; aside < 0 && (a[i] == '0' || a[i] == '.'); i--)
        if (a[i] == '0') a[i] = '9';
    if (aside < 0) a[i]--;
    for (i = 0; a[i] == '0' && a[i + 1] != '.'; i++) {}
    sprintf(out, "%s%s", a + i, aside > 0 ? "1" : "");
}

/* A number as JSON, in one of many forms. */
static void any_number(char *out, size_t size, jobq_random *r)
{
    uint64_t bits = jobq_random_next(r), form = jobq_random_next(r);
    int digits = (int)(form >> 8 & 31), exponent = (int)(form >> 16 & 1023) - 512;
    unsigned long long whole = bits >> (form >> 32 & 63);
    double value = double_of((bits >> 52 & 2047) == 2047 ? bits ^ (uint64_t)1 << 62 : bits);

    switch (form & 7) {
    case 0: snprintf(out, size, "%.17g", value); break;
    case 1: snprintf(out, size, "%.*e", digits, value); break;
    case 2: snprintf(out, size, "%.*f", digits, value); break;
    case 3: snprintf(out, size, "%.17g", double_of(bits >> 12)); break; /* a subnormal */
    case 4: snprintf(out, size, "%llu", whole); break;
    case 5: snprintf(out, size, "-%llue%d", whole, exponent); break;
    case 6: snprintf(out, size, "%llu.%llu", whole, (unsigned long long)form); break;
    default: snprintf(out, size, "%.*f", digits, (double)(int64_t)whole / 1e9);
    }
}

/* A correct strtod is the judge: that of glibc and of musl is. JOBQ_TEST_LONG: ten million. */
static void doubles_are_those_of_strtod(void **unused)
{
    int n, rounds = check_slow() ? 5000 : getenv("JOBQ_TEST_LONG") != NULL ? 10000000 : 50000;
    jobq_random r = {11};
    char text[MIDDLE + 8];

    (void)unused;
    for (n = 0; n < rounds; n++) {
        double value = 0, judge;
        jobq_error code;
        if (n % 100 != 0) any_number(text, sizeof text, &r);
        else middle_of(text, jobq_random_next(&r) % ((uint64_t)0x7fe << 52), n / 100 % 3 - 1);
        judge = strtod(text, NULL);
        code = jobq_json_double(jobq_str_from(text), NULL, &value);
        if (judge - judge != 0 ? code != JOBQ_ERROR_INVALID
                               : code != JOBQ_OK || double_bits(value) != double_bits(judge))
            fail_msg("%d: %s: %d, %.17g, not %.17g", n, text, code, value, judge);
    }
}

/* ---- asserts --------------------------------------------------------------------------------- */

static void nowhere_to_write_is_a_programmer_error(void **unused)
{
    (void)unused;
    expect_assert_failure(jobq_utf8_mend(NULL, 5, jobq_str_from("a")));
    expect_assert_failure(jobq_json_text(json_none, NULL, NULL, 5));
    expect_assert_failure(jobq_json_int(json_none, NULL, NULL));
    expect_assert_failure(jobq_json_double(json_none, NULL, NULL));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_keep_their_names),
        cmocka_unit_test(numbers_that_are_no_error_are_unknown),
        cmocka_unit_test(none_is_not_empty_but_both_have_no_bytes),
        cmocka_unit_test(strings_are_equal_byte_by_byte),
        cmocka_unit_test(names_follow_the_rule),
        cmocka_unit_test(names_know_every_byte_in_every_place),
        cmocka_unit_test(names_have_at_most_1024_bytes),
        cmocka_unit_test(every_code_point_but_nul_and_surrogates_is_utf8),
        cmocka_unit_test(overlong_forms_are_no_utf8),
        cmocka_unit_test(utf8_agrees_with_its_definition_on_all_short_sequences),
        cmocka_unit_test(no_bytes_are_valid_utf8),
        cmocka_unit_test(a_cut_keeps_the_longest_prefix_of_whole_characters),
        cmocka_unit_test(mending_replaces_what_is_bad_and_nothing_else),
        cmocka_unit_test(anything_can_be_mended),
        cmocka_unit_test(json_verdicts_are_those_of_postgres),
        cmocka_unit_test(json_that_is_kept_as_bytes),
        cmocka_unit_test(json_errors_say_where),
        cmocka_unit_test(json_answers_without_place_and_reason),
        cmocka_unit_test(a_nul_is_refused_wherever_it_stands),
        cmocka_unit_test(a_text_that_is_cut_is_refused),
        cmocka_unit_test(strings_take_every_byte_they_may),
        cmocka_unit_test(every_escaped_unit_is_judged),
        cmocka_unit_test(nesting_ends_at_its_limit),
        cmocka_unit_test(numbers_end_where_numeric_ends),
        cmocka_unit_test(zeros_in_front_take_no_room_in_a_numeric),
        cmocka_unit_test(json_agrees_with_the_grammar_on_all_short_texts),
        cmocka_unit_test(json_agrees_with_the_grammar_on_mangled_texts),
        cmocka_unit_test(json_of_random_bytes_is_judged_and_never_overrun),
        cmocka_unit_test(any_text_becomes_a_json_string),
        cmocka_unit_test(what_cannot_be_read_leaves_what_was_there),
        cmocka_unit_test(a_text_is_read_without_quotes_and_escapes),
        cmocka_unit_test(every_character_is_read_as_itself),
        cmocka_unit_test(integers_are_exact_or_refused),
        cmocka_unit_test(doubles_have_the_right_bits),
        cmocka_unit_test(doubles_are_those_of_strtod),
        cmocka_unit_test(nowhere_to_write_is_a_programmer_error),
    };

    return cmocka_run_group_tests_name("strings", tests, NULL, NULL);
}
