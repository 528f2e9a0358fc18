/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The calendar in SQL: against jobq.h, against an oracle that looks at each minute around each
 * change of the clocks, and against a golden table.
 *
 *   test_pg_calendar --golden   prints what tests/core/calendar.txt must contain: see there
 */
#define TEST_PRIVATE
#include "pg.h"

#include "cron.h"
#include "calendar.h"

#include <ctype.h>

static bool at_length(void) { return getenv("JOBQ_TEST_LONG") != NULL; }

/* 40 zones: of all continents; with changes of half an hour (Lord Howe), at midnight (Sao Paulo,
 * Havana, Beirut, Tehran), by two hours (Troll), by a day (Apia, Fakaofo); with none since 2000;
 * with many (Casablanca); that changed what is standard (Caracas, Pyongyang, Moscow, Volgograd). */
static const char *const zones[] = {
    "Africa/Cairo", "Africa/Casablanca", "Africa/Johannesburg", "Africa/Juba", "America/Asuncion",
    "America/Caracas", "America/Chicago", "America/Havana", "America/Los_Angeles",
    "America/Mexico_City", "America/New_York", "America/Nuuk", "America/Santiago",
    "America/Sao_Paulo", "America/St_Johns", "Antarctica/Casey", "Antarctica/Troll", "Asia/Amman",
    "Asia/Beirut", "Asia/Dhaka", "Asia/Gaza", "Asia/Kathmandu", "Asia/Kolkata", "Asia/Pyongyang",
    "Asia/Tehran", "Asia/Tokyo", "Atlantic/Azores", "Australia/Adelaide", "Australia/Lord_Howe",
    "Australia/Sydney", "Europe/Berlin", "Europe/Dublin", "Europe/Istanbul", "Europe/London",
    "Europe/Moscow", "Europe/Volgograd", "Pacific/Apia", "Pacific/Auckland", "Pacific/Chatham",
    "Pacific/Fakaofo"};

/* -- asking the server in bulk -- */

static const char *const helpers[] = {
    /* What is wrong with each expression; or its bits, and the next instants in UTC, `each` of
     * them, in microseconds. */
    "CREATE FUNCTION pg_temp.crons(p_texts text, p_after bigint[], p_each integer) RETURNS text"
    " LANGUAGE plpgsql AS $$"
    "DECLARE v text := ''; c jobq.cron; t text; i integer := 0;"
    "BEGIN FOREACH t IN ARRAY string_to_array(p_texts, E'\\n') LOOP "
    "BEGIN c := jobq._cron_parse(t); v := v || c::text; "
    "FOR k IN i + 1..i + p_each LOOP v := v || ' ' || coalesce((1000000 * extract(epoch FROM "
    "jobq._cron_next(c, 'UTC', 'epoch'::timestamptz + p_after[k] * interval '1 us')))::bigint"
    "::text, 'never'); END LOOP; EXCEPTION WHEN invalid_parameter_value THEN v := v || SQLERRM; "
    "END; i := i + p_each; v := v || E'\\n'; END LOOP; RETURN v; END $$",
    /* The next instant of the expression p_which[i] after p_after[i], in seconds. */
    "CREATE FUNCTION pg_temp.nexts(p_texts text, p_zone text, p_which integer[], p_after bigint[])"
    " RETURNS bigint[] LANGUAGE plpgsql AS $$"
    "DECLARE c jobq.cron[]; v bigint[]; "
    "BEGIN c := ARRAY(SELECT jobq._cron_parse(x) FROM unnest(string_to_array(p_texts, E'\\n'))"
    " WITH ORDINALITY AS u (x, i) ORDER BY u.i);"
    "FOR i IN 1..cardinality(p_which) LOOP v[i] := coalesce(extract(epoch FROM jobq._cron_next("
    "c[p_which[i]], p_zone, to_timestamp(p_after[i]))), -1); END LOOP; RETURN v; END $$",
    /* The same by cron_near alone, within 30 days; else -1. */
    "CREATE FUNCTION pg_temp.walked(p_texts text, p_zone text, p_which integer[], p_after bigint[])"
    " RETURNS bigint[] LANGUAGE plpgsql AS $$"
    "DECLARE c jobq.cron[]; v bigint[]; t timestamp; n timestamp; "
    "BEGIN c := ARRAY(SELECT jobq._cron_parse(x) FROM unnest(string_to_array(p_texts, E'\\n'))"
    " WITH ORDINALITY AS u (x, i) ORDER BY u.i);"
    "FOR i IN 1..cardinality(p_which) LOOP t := to_timestamp(p_after[i]) AT TIME ZONE 'UTC';"
    "FOR k IN 1..28 LOOP n := jobq._cron_near(c[p_which[i]], p_zone, t); EXIT WHEN n IS NOT NULL; "
    "t := t + interval '26 hours'; END LOOP;"
    "v[i] := coalesce(extract(epoch FROM n), -1); END LOOP; RETURN v; END $$",
    /* The changes of a zone's clocks from 2000 to 2026: when, and seconds from UTC before and
     * after. */
    "CREATE FUNCTION pg_temp.off(t timestamp, p_zone text) RETURNS bigint LANGUAGE sql AS $$"
    "SELECT extract(epoch FROM t AT TIME ZONE 'UTC' AT TIME ZONE p_zone - t)::bigint $$",
    "CREATE FUNCTION pg_temp.changes(p_zone text) RETURNS bigint[] LANGUAGE sql AS $$"
    "SELECT coalesce(array_agg(x ORDER BY m, k), '{}') FROM generate_series("
    " '2000-01-01'::timestamp, '2026-12-30', '1 day') d,"
    " generate_series(d, d + interval '1 day' - interval '5 min', '5 min') m,"
    " LATERAL (VALUES (1, extract(epoch FROM m + interval '5 min')::bigint),"
    "  (2, pg_temp.off(m, p_zone)), (3, pg_temp.off(m + interval '5 min', p_zone))) u (k, x)"
    " WHERE pg_temp.off(d, p_zone) <> pg_temp.off(d + interval '1 day', p_zone)"
    " AND pg_temp.off(m, p_zone) <> pg_temp.off(m + interval '5 min', p_zone) $$",
    /* What a zone's clocks show at each of some minutes, in minutes since 1970. */
    "CREATE FUNCTION pg_temp.shown(p_zone text, p_from bigint, p_count integer) RETURNS bigint[]"
    " LANGUAGE sql AS $$ SELECT array_agg(extract(epoch FROM to_timestamp(60 * (p_from + i))"
    " AT TIME ZONE p_zone)::bigint / 60 ORDER BY i) FROM generate_series(0, p_count - 1) i $$"};

static int calendar_up(void **state)
{
    size_t i;

    if (pg_up(state) != 0) return 1;
    for (i = 0; i < COUNT(helpers); i++) RUN("%s", helpers[i]);
    RUN("SET timezone = 'America/New_York'"); /* must not matter */
    RUN("SET statement_timeout = '60 s'");
    return 0;
}

/* Calls a helper with up to four texts; the caller frees the answer. */
static char *ask(const char *query, const char *a, const char *b, const char *c, const char *d)
{
    const char *values[4] = {a, b, c, d};
    char *text = for_schema(query, schema), *answer;
    PGresult *res = PQexecParams(db, text, d != NULL ? 4 : c != NULL ? 3 : b != NULL ? 2 : 1, NULL,
                                 values, NULL, NULL, 0);

    if (PQresultStatus(res) != PGRES_TUPLES_OK) fail_msg("%s", PQerrorMessage(db));
    answer = text_copy(PQgetvalue(res, 0, 0));
    PQclear(res);
    free(text);
    return answer;
}

/* A growing text. */
typedef struct list {
    char *text;
    size_t size, room;
} list;

static void add(list *l, const char *format, ...)
{
    va_list args;

    if (l->room - l->size < 1000) l->text = realloc(l->text, l->room = l->room * 2 + 2000);
    assert_non_null(l->text);
    va_start(args, format);
    l->size += (size_t)vsnprintf(l->text + l->size, 900, format, args);
    va_end(args);
}

/* Reads "{1,2,3}"; returns the count. */
static int numbers(const char *text, int64_t *out, int most)
{
    char *end;
    int count = 0;

    while (*text == '{' || *text == ',') {
        if (text[1] == '}') return count;
        assert_true(count < most);
        out[count++] = strtoll(text + 1, &end, 10);
        text = end;
    }
    assert_int_equal(*text, '}');
    return count;
}

/* -- against jobq.h -- */

#define BATCH 1000
#define EACH 10 /* instants of each expression */

/* What the server should answer about an expression. */
static void expected(char *out, const char *text, const int64_t *after)
{
    const char *why;
    jobq_cron c;
    int i;

    if (jobq_cron_parse(jobq_str_from(text), &c, &why) != JOBQ_OK) {
        sprintf(out, "invalid cron: %s", why);
        return;
    }
    out += sprintf(out, "(%llu,%llu,%u,%u,%u,%u,%u)", (unsigned long long)c.seconds,
                   (unsigned long long)c.minutes, c.hours, c.days, c.months, c.weekdays, c.flags);
    for (i = 0; i < EACH; i++) {
        out += sprintf(out, " %lld", (long long)model_cron_next(&c, after[i]));
    }
}

/* A byte changed, doubled, or taken out. */
static void damage(jobq_random *dice, char *text)
{
    static const char bytes[] = "*/,-L?#@ \t0123456789SUNJANmon";
    size_t size = strlen(text), at = (size_t)draw(dice, 0, (int)size - 1);
    int how = draw(dice, 0, 2);

    if (how == 0) text[at] = bytes[draw(dice, 0, sizeof bytes - 2)];
    if (how == 1) memmove(text + at + 1, text + at, size + 1 - at);
    if (how == 2 && size > 1) memmove(text + at, text + at + 1, size - at);
}

static void batch_agrees(jobq_random *dice)
{
    static char texts[BATCH][500];
    static int64_t after[BATCH][EACH];
    list crons = {NULL, 0, 0}, afters = {NULL, 0, 0};
    char *answer, *line, wanted[1000];
    sets s;
    int i, k;

    for (i = 0; i < BATCH; i++) {
        random_cron(dice, texts[i], &s, false);
        while (draw(dice, 0, 4) == 0) damage(dice, texts[i]);
        add(&crons, "%s%s", i > 0 ? "\n" : "", texts[i]);
        for (k = 0; k < EACH; k++) { /* from 1900 to 2100 */
            after[i][k] = jobq_random_between(jobq_random_next(dice), -2200000000 * SECOND,
                                              4100000000 * SECOND);
            if (draw(dice, 0, 1) == 0) after[i][k] -= after[i][k] % (60 * SECOND);
            add(&afters, "%c%lld", i + k > 0 ? ',' : '{', (long long)after[i][k]);
        }
    }
    add(&afters, "}");
    answer = ask("SELECT pg_temp.crons($1, $2::bigint[], $3::integer)", crons.text, afters.text,
                 "10", NULL);
    for (line = answer, i = 0; i < BATCH; i++, line += strlen(line) + 1) {
        assert_non_null(strchr(line, '\n'));
        *strchr(line, '\n') = '\0';
        expected(wanted, texts[i], after[i]);
        if (strcmp(line, wanted) != 0) fail_msg("%s: %s, not %s", texts[i], line, wanted);
    }
    free(answer);
    free(crons.text);
    free(afters.text);
}

static void sql_and_c_agree(void **unused)
{
    jobq_random dice = {1};
    int batches = at_length() ? 100 : 10; /* of 10,000 instants */

    (void)unused;
    while (batches-- > 0) batch_agrees(&dice);
}

static void expect_error(const char *query, const char *wanted)
{
    char *text = for_schema(query, schema);
    PGresult *res = PQexec(db, text);

    assert_string_equal(PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY), wanted);
    PQclear(res);
    free(text);
}

static void sql_refuses_in_the_same_words(void **unused)
{
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(cron_refused); i++) {
        const char *value = cron_refused[i].text;
        char *query = for_schema("SELECT jobq._cron_parse($1)", schema), wanted[300];
        PGresult *res = PQexecParams(db, query, 1, NULL, &value, NULL, NULL, 0);
        snprintf(wanted, sizeof wanted, "invalid cron: %s", cron_refused[i].why);
        assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "22023");
        assert_string_equal(PQresultErrorField(res, PG_DIAG_COLUMN_NAME), "cron");
        if (strcmp(PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY), wanted) != 0) {
            fail_msg("%s: %s", value, PQerrorMessage(db));
        }
        PQclear(res);
        free(query);
    }
    RUN("SELECT jobq._cron_parse(repeat(' ', 991) || '1 2 3 4 5')");
    expect_error("SELECT jobq._cron_parse(repeat(' ', 992) || '1 2 3 4 5')",
                 "invalid cron: must be at most 1000 bytes");
}

/* -- the rules, in words -- */

static const struct {
    const char *cron, *zone, *after, *wanted; /* instants, as UTC has them */
} rules[] = {
    /* Missing, by the length of the gap later: 02:30 becomes 03:30. */
    {"30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", "2026-03-29 01:30"},
    {"30 2 * * *", "Europe/Berlin", "2026-03-29 01:30", "2026-03-30 00:30"},
    {"0 2 * * *", "Europe/Berlin", "2026-03-28 12:00", "2026-03-29 01:00"},
    {"30 2 * * *", "America/New_York", "2026-03-07 12:00", "2026-03-08 07:30"},
    {"15 2 * * *", "Australia/Lord_Howe", "2026-10-03 00:00", "2026-10-03 15:45"},
    {"0 0 * * *", "America/Sao_Paulo", "2018-11-03 12:00", "2018-11-04 03:00"},
    {"15 0 * * *", "America/Sao_Paulo", "2018-11-03 12:00", "2018-11-04 03:15"},
    {"0 12 30 12 *", "Pacific/Apia", "2011-12-01 00:00", "2011-12-30 22:00"},
    {"0 12 * * *", "Pacific/Apia", "2011-12-29 22:00", "2011-12-30 22:00"},
    {"0 12 * * *", "Pacific/Apia", "2011-12-30 22:00", "2011-12-31 22:00"},
    /* 02:30 and 03:30 are one instant then. 02:45 and 03:00 change their order. */
    {"30 2,3 * * *", "Europe/Berlin", "2026-03-29 00:00", "2026-03-29 01:30"},
    {"30 2,3 * * *", "Europe/Berlin", "2026-03-29 01:30", "2026-03-30 00:30"},
    {"45 2 * * *", "Europe/Berlin", "2026-03-29 01:00", "2026-03-29 01:45"},
    {"0,45 2,3 * * *", "Europe/Berlin", "2026-03-29 00:00", "2026-03-29 01:00"},
    {"0,45 2,3 * * *", "Europe/Berlin", "2026-03-29 01:00", "2026-03-29 01:45"},
    /* Twice, at the first of the two. */
    {"30 2 * * *", "Europe/Berlin", "2026-10-24 12:00", "2026-10-25 00:30"},
    {"30 2 * * *", "Europe/Berlin", "2026-10-25 00:30", "2026-10-26 01:30"},
    {"0 3 * * *", "Europe/Berlin", "2026-10-25 00:30", "2026-10-25 02:00"},
    {"45 1 * * *", "Australia/Lord_Howe", "2026-04-04 00:00", "2026-04-04 14:45"},
    {"45 1 * * *", "Australia/Lord_Howe", "2026-04-04 14:45", "2026-04-05 15:15"},
    {"30 23 * * *", "America/Sao_Paulo", "2019-02-16 12:00", "2019-02-17 01:30"},
    {"30 23 * * *", "America/Sao_Paulo", "2019-02-17 01:30", "2019-02-18 02:30"},
    /* Elapsed time: missing, it does not run; twice, it runs twice. */
    {"*/30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", "2026-03-30 00:00"},
    {"*/30 * * * *", "Europe/Berlin", "2026-03-29 00:30", "2026-03-29 01:00"},
    {"*/30 2 * * *", "Europe/Berlin", "2026-10-25 00:30", "2026-10-25 01:00"},
    {"*/30 2 * * *", "Europe/Berlin", "2026-10-25 01:00", "2026-10-25 01:30"},
    {"30 * * * *", "Europe/Berlin", "2026-10-25 00:30", "2026-10-25 01:30"},
    {"*/20 * * * *", "Australia/Lord_Howe", "2026-10-03 15:20", "2026-10-03 15:40"},
    /* The change is months ahead. */
    {"30 2 29 3 *", "Europe/Berlin", "2026-01-01 00:00", "2026-03-29 01:30"},
    {"*/30 2 29 3 *", "Europe/Berlin", "2026-01-01 00:00", "2027-03-29 00:00"},
    {"30 2 25 10 *", "Europe/Berlin", "2026-01-01 00:00", "2026-10-25 00:30"},
    /* Not on a full hour of UTC. */
    {"0 9 * * *", "Asia/Kathmandu", "2026-06-01 00:00", "2026-06-01 03:15"},
    {"0 * * * *", "Asia/Kathmandu", "2026-06-01 00:00", "2026-06-01 00:15"},
    /* The last day is that of the zone. A fraction of a second is passed over. */
    {"0 23 L * *", "Pacific/Auckland", "2026-02-27 00:00", "2026-02-28 10:00"},
    {"* * * * * *", "UTC", "2026-02-27 00:00:01.5", "2026-02-27 00:00:02"},
    {"* * * * * *", "UTC", "2026-02-27 00:00:01.999999", "2026-02-27 00:00:02"},
    {"0 0 29 2 *", "America/New_York", "2096-03-01 00:00", "2104-02-29 05:00"},
};

static void rules_in_words(void **unused)
{
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(rules); i++) {
        char *same = text_of("SELECT coalesce(n = '%s+00'::timestamptz, false) || ' ' || coalesce("
                             "(n AT TIME ZONE 'UTC')::text, 'never') FROM jobq._cron_next("
                             "jobq._cron_parse('%s'), '%s', '%s+00') n",
                             rules[i].wanted, rules[i].cron, rules[i].zone, rules[i].after);
        if (strncmp(same, "true", 4) != 0) {
            fail_msg("%s in %s after %s: %s, not %s", rules[i].cron, rules[i].zone, rules[i].after,
                     same, rules[i].wanted);
        }
        free(same);
    }
}

static void what_has_no_answer(void **unused)
{
    (void)unused;
    expect_error("SELECT jobq.schedule_preview('@daily', 'Mars/Olympus')",
                 "invalid zone: not one that the server knows (it is 'Mars/Olympus')");
    expect_error("SELECT jobq.schedule_preview('@daily', '')",
                 "invalid zone: not one that the server knows (it is '')");
    expect_text("nothing", "SELECT coalesce(jobq._cron_next(jobq._cron_parse('@daily'), 'UTC', "
                           "'infinity')::text, 'nothing')");
    expect_text("nothing", "SELECT coalesce(jobq._cron_next(jobq._cron_parse('@daily'), 'UTC', "
                           "'-infinity')::text, 'nothing')");
    expect_text("nothing", "SELECT coalesce(jobq._cron_next(NULL, 'UTC', now())::text, 'nothing')");
    /* A date that never comes, which cron_parse would refuse; and a time that is missing on its
     * only day, in most years. */
    expect_text("nothing", "SELECT coalesce(jobq._cron_next((1, 1, 1, 1 << 30, 4, 127, 4), "
                           "'Europe/Berlin', now())::text, 'nothing')");
    expect_text("2023-03-21 20:30:00", "SELECT jobq._cron_next(jobq._cron_parse('* 0 22 3 *'), "
                                       "'Asia/Tehran', '2020-12-01') AT TIME ZONE 'UTC'");
}

/* -- around each change of the clocks -- */

#define WINDOW 8000  /* minutes */
#define CHANGES 200  /* of a zone */

typedef struct change {
    int64_t at; /* the first minute of the new clock, since 1970 */
    int64_t old, new; /* minutes from UTC */
} change;

/* What the clocks show in the minutes around a change. */
static struct {
    int64_t first; /* minute since 1970 */
    int count;
    int64_t shown[WINDOW];
    bool runs[WINDOW]; /* whether an expression runs in this minute */
} window;

static void window_open(const char *zone, int64_t middle, int64_t half)
{
    char from[30], count[30], *answer;

    window.first = middle - half;
    sprintf(from, "%lld", (long long)window.first);
    sprintf(count, "%lld", (long long)(2 * half));
    answer = ask("SELECT pg_temp.shown($1, $2::bigint, $3::integer)", zone, from, count, NULL);
    window.count = numbers(answer, window.shown, WINDOW);
    assert_int_equal(window.count, 2 * half);
    free(answer);
}

/* The changes of a zone, each found by what its clocks show minute by minute. */
static int changes_of(const char *zone, change *out)
{
    static int64_t found[3 * CHANGES];
    char *answer = ask("SELECT pg_temp.changes($1)", zone, NULL, NULL, NULL);
    int count = numbers(answer, found, 3 * CHANGES) / 3, i, k;

    free(answer);
    for (i = 0; i < count; i++) {
        window_open(zone, found[3 * i] / 60, 10);
        for (k = 1; k < window.count && window.shown[k] == window.shown[k - 1] + 1;) k++;
        assert_true(k < window.count);
        out[i].at = window.first + k;
        out[i].old = found[3 * i + 1] / 60;
        out[i].new = found[3 * i + 2] / 60;
        assert_int_equal(window.shown[k] - out[i].at, out[i].new);
    }
    return count;
}

static bool minute_matches(const sets *s, int64_t minute)
{
    sets any = *s;

    any.second[0] = true;
    return time_matches(&any, minute * 60);
}

/* The two rules, as CALENDAR in jobq.h words them. */
static void window_run(const sets *s)
{
    static bool seen[2 * WINDOW];
    int64_t lowest = INT64_MAX, m;
    int i;

    memset(seen, 0, sizeof seen);
    memset(window.runs, 0, sizeof window.runs);
    for (i = 0; i < window.count; i++) lowest = window.shown[i] < lowest ? window.shown[i] : lowest;
    for (i = 0; i < window.count; i++) {
        int64_t now = window.shown[i], gap = i == 0 ? 0 : now - window.shown[i - 1] - 1;
        assert_true(now - lowest < 2 * WINDOW);
        if (minute_matches(s, now) && (s->elapsed || !seen[now - lowest])) window.runs[i] = true;
        seen[now - lowest] = true;
        for (m = now - gap; m < now && !s->elapsed; m++) { /* missing: shown later by the gap */
            int64_t later = i + m + gap - now;
            if (minute_matches(s, m) && later < window.count) window.runs[later] = true;
        }
    }
}

/* The first second after `after` at which the expression runs; -1: not in the window. */
static int64_t window_next(const sets *s, int64_t after)
{
    int64_t i, second;

    for (i = after / 60 - window.first; i < window.count; i++) {
        for (second = 0; second < 60 && window.runs[i]; second++) {
            int64_t at = (window.first + i) * 60 + second;
            if (at > after && s->second[second]) return at;
        }
    }
    return -1;
}

static void every(bool *set, int from, int most)
{
    for (; from <= most; from++) set[from] = true;
}

/* An expression that runs at a local minute, or near it, in one of several forms. */
static void aimed_cron(jobq_random *dice, int form, int64_t local, char *text, sets *s)
{
    const date *d = date_at(day_of(local * 60));
    int minute = (int)(local - day_of(local * 60) * 1440), hour = minute / 60, i;

    minute %= 60;
    memset(s, 0, sizeof *s);
    s->second[0] = s->any_weekday = s->any_day = true;
    every(s->month, 1, 12);
    every(s->weekday, 0, 6);
    if (form == 1) {
        sprintf(text, "%d %d %d %d *", minute, hour, d->day, d->month);
        memset(s->month, 0, sizeof s->month);
        s->any_day = false;
        s->day[d->day] = s->month[d->month] = s->hour[hour] = s->minute[minute] = true;
        return;
    }
    every(s->day, 1, 31);
    if (form == 0) {
        sprintf(text, "%d %d * * *", minute, hour);
        s->hour[hour] = s->minute[minute] = true;
    } else if (form == 2) {
        int step = draw(dice, 1, 59);
        sprintf(text, "*/%d %d * * *", step, hour);
        for (i = 0; i < 60; i += step) s->minute[i] = true;
        s->hour[hour] = s->elapsed = true;
    } else if (form == 3) {
        sprintf(text, "%d,30 %d * * * *", draw(dice, 30, 30), minute);
        memset(s->second, 0, sizeof s->second);
        every(s->hour, 0, 23);
        s->second[30] = s->minute[minute] = s->elapsed = true;
    } else {
        int most = draw(dice, hour, 23), step = draw(dice, 1, 30);
        sprintf(text, "0-59/15 0-59/%d %d-%d * * *", step, hour, most);
        for (i = 0; i < 60; i += step) s->minute[i] = true;
        s->second[15] = s->second[30] = s->second[45] = true;
        every(s->hour, hour, most);
    }
}

#define FORMS 6
#define AFTERS 8

/* Compares the server's answers around a change with the oracle, and cron_near's with them. */
static void change_agrees(jobq_random *dice, const char *zone, const change *c)
{
    int64_t jump = c->new > c->old ? c->new - c->old : c->old - c->new, half = 2 * jump + 150;
    int64_t after[FORMS * AFTERS], got[FORMS * AFTERS], near[FORMS * AFTERS];
    list crons = {NULL, 0, 0}, which = {NULL, 0, 0}, afters = {NULL, 0, 0};
    char text[FORMS][500], *answer;
    sets s[FORMS];
    int i;

    window_open(zone, c->at, half);
    for (i = 0; i < FORMS; i++) {
        int64_t low = c->at + (c->old < c->new ? c->old : c->new);
        int64_t local = jobq_random_between(jobq_random_next(dice), low - 20, low + jump + 20);
        if (i < 5) aimed_cron(dice, i, local, text[i], &s[i]);
        else do random_cron(dice, text[i], &s[i], true); while (!date_comes(&s[i]));
        add(&crons, "%s%s", i > 0 ? "\n" : "", text[i]);
    }
    for (i = 0; i < FORMS * AFTERS; i++) {
        int64_t spread = draw(dice, 0, 1) ? half : jump;
        after[i] = 60 * (c->at + jobq_random_between(jobq_random_next(dice), -spread, spread - 1));
        if (draw(dice, 0, 2) == 0) after[i] += draw(dice, -1, 31);
        if (after[i] < 60 * window.first) after[i] = 60 * window.first;
        add(&which, "%c%d", i > 0 ? ',' : '{', i / AFTERS + 1);
        add(&afters, "%c%lld", i > 0 ? ',' : '{', (long long)after[i]);
    }
    add(&which, "}");
    add(&afters, "}");
    answer = ask("SELECT pg_temp.nexts($1, $2, $3::integer[], $4::bigint[])", crons.text, zone,
                 which.text, afters.text);
    assert_int_equal(numbers(answer, got, FORMS * AFTERS), FORMS * AFTERS);
    free(answer);
    answer = ask("SELECT pg_temp.walked($1, $2, $3::integer[], $4::bigint[])", crons.text, zone,
                 which.text, afters.text);
    assert_int_equal(numbers(answer, near, FORMS * AFTERS), FORMS * AFTERS);
    for (i = 0; i < FORMS * AFTERS; i++) {
        int64_t wanted, end = 60 * (window.first + window.count);
        if (i % AFTERS == 0) window_run(&s[i / AFTERS]);
        wanted = window_next(&s[i / AFTERS], after[i]);
        if (wanted >= 0 ? got[i] == wanted : got[i] < 0 || got[i] >= end) {
            if (near[i] >= 0 ? near[i] == got[i] : got[i] < 0 || got[i] > after[i] + 28 * 93600)
                continue;
        }
        fail_msg("%s in %s after %lld: %lld, near %lld, oracle %lld", text[i / AFTERS], zone,
                 (long long)after[i], (long long)got[i], (long long)near[i], (long long)wanted);
    }
    free(answer);
    free(crons.text);
    free(which.text);
    free(afters.text);
}

static void every_change_of_40_zones_follows_the_rules(void **unused)
{
    jobq_random dice = {2};
    change changes[CHANGES];
    size_t z;
    int i, total = 0;

    (void)unused;
    for (z = 0; z < COUNT(zones); z++) {
        int count = changes_of(zones[z], changes);
        int step = at_length() ? 1 : 3; /* a third of them, including the last */
        for (i = (count + step - 1) % step; i < count; i += step) {
            change_agrees(&dice, zones[z], &changes[i]);
        }
        total += count;
    }
    assert_true(total > 1200);
}

/* Away from changes, and for weeks ahead. */
static void fast_and_thorough_agree(void **unused)
{
    enum { QUERIES = 40 };
    jobq_random dice = {3};
    int rounds = at_length() ? 400 : 40, i;

    (void)unused;
    while (rounds-- > 0) {
        const char *zone = zones[draw(&dice, 0, COUNT(zones) - 1)];
        list crons = {NULL, 0, 0}, which = {NULL, 0, 0}, afters = {NULL, 0, 0};
        int64_t after[QUERIES], got[QUERIES], near[QUERIES];
        char *fast, *slow, text[500];
        sets s;

        for (i = 0; i < QUERIES; i++) {
            do random_cron(&dice, text, &s, true); while (!date_comes(&s));
            after[i] = jobq_random_between(jobq_random_next(&dice), 946684800, 1798761600);
            add(&crons, "%s%s", i > 0 ? "\n" : "", text);
            add(&which, "%c%d", i > 0 ? ',' : '{', i + 1);
            add(&afters, "%c%lld", i > 0 ? ',' : '{', (long long)after[i]);
        }
        add(&which, "}");
        add(&afters, "}");
        fast = ask("SELECT pg_temp.nexts($1, $2, $3::integer[], $4::bigint[])", crons.text, zone,
                   which.text, afters.text);
        slow = ask("SELECT pg_temp.walked($1, $2, $3::integer[], $4::bigint[])", crons.text, zone,
                   which.text, afters.text);
        assert_int_equal(numbers(fast, got, QUERIES), QUERIES);
        assert_int_equal(numbers(slow, near, QUERIES), QUERIES);
        for (i = 0; i < QUERIES; i++) {
            if (near[i] >= 0) assert_int_equal(got[i], near[i]);
            else assert_true(got[i] > after[i] + 28 * 93600 || got[i] == -1);
        }
        free(fast), free(slow);
        free(crons.text), free(which.text), free(afters.text);
    }
}

/* -- the golden table -- */

#define GOLDEN "tests/core/calendar.txt"

/* "2026-03-29 01:00 +60 +120:" */
static int golden_head(const change *c, char *out)
{
    const date *d = date_at(day_of(60 * c->at));

    return sprintf(out, "%04d-%02d-%02d %02d:%02d %+d %+d:", d->year, d->month, d->day,
                   (int)(c->at / 60 % 24), (int)(c->at % 60), (int)c->old, (int)c->new);
}

/* When two schedules run around a change, in minutes from it: each day in the middle of what is
 * missing or comes twice, and in each hour at that minute. */
static void golden_line(const char *zone, const change *c, char *out)
{
    int64_t gap = c->new - c->old, got[5];
    int64_t local = c->at + c->old + (gap > 0 ? gap / 2 : gap - gap / 2);
    int minute = (int)(local % 60), hour = (int)(local / 60 % 24), i;
    char crons[100], after[60], *answer;

    sprintf(crons, "%d %d * * *\n%d * * * *", minute, hour, minute);
    out += golden_head(c, out);
    out += sprintf(out, " %02d:%02d", hour, minute);
    for (i = 0; i < 5; i++) {
        int64_t from = i == 0 ? c->at - (gap > 0 ? gap : -gap) - 1 : c->at - 60;
        sprintf(after, "{%lld}", (long long)(i == 0 || i == 2 ? 60 * from : got[i - 1]));
        answer = ask("SELECT pg_temp.nexts($1, $2, $3::integer[], $4::bigint[])", crons, zone,
                     i < 2 ? "{1}" : "{2}", after);
        assert_int_equal(numbers(answer, &got[i], 1), 1);
        assert_int_equal(got[i] % 60, 0);
        out += sprintf(out, "%s %+d", i == 2 ? ", hourly" : "", (int)(got[i] / 60 - c->at));
        free(answer);
    }
}

static int print_golden(void)
{
    change changes[CHANGES];
    char line[200];
    size_t z;
    int i;

    if (calendar_up(NULL) != 0) return 1;
    puts("When schedules run around each change of the clocks of 40 zones from 2000 to 2026, by "
         "tzdata 2025b.\nA line: the change, in UTC; minutes from UTC before and after it; a local "
         "time that is missing or\ncomes twice, for a schedule of each day; its two runs, in "
         "minutes from the change; then the three\nruns, from an hour before the change on, of a "
         "schedule that runs in each hour at that minute.\n\n"
         "    make .build/check/test_pg_calendar\n"
         "    tests/harness/check.sh .build/check/test_pg_calendar --golden >.build/golden\n"
         "    cp .build/golden " GOLDEN);
    for (z = 0; z < COUNT(zones); z++) {
        int count = changes_of(zones[z], changes);
        printf("\n%s\n", zones[z]);
        for (i = 0; i < count; i++) {
            golden_line(zones[z], &changes[i], line);
            puts(line);
        }
    }
    return pg_down(NULL);
}

/* Each line is as it was, except a few whose change is otherwise in the tzdata of the server. */
static void the_golden_table_holds(void **unused)
{
    change changes[CHANGES];
    char line[200], now[200], zone[40] = "";
    int count = 0, other = 0, lines = 0, zones_seen = 0, i;
    FILE *file = fopen(GOLDEN, "r");

    (void)unused;
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strchr(line, '/') != NULL && strchr(line, ' ') == NULL) {
            snprintf(zone, sizeof zone, "%.39s", line);
            count = changes_of(zone, changes);
            zones_seen++;
        } else if (zone[0] != '\0' && line[0] != '\0') {
            lines++;
            for (i = 0; i < count; i++) {
                if (strncmp(line, now, (size_t)golden_head(&changes[i], now)) == 0) break;
            }
            other += i == count;
            if (i == count) continue;
            golden_line(zone, &changes[i], now);
            if (strcmp(line, now) != 0) fail_msg("%s: %s\nthe table: %s", zone, now, line);
        }
    }
    fclose(file);
    assert_int_equal(zones_seen, COUNT(zones));
    assert_true(lines > 1200 && other <= lines / 20);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sql_and_c_agree),
        cmocka_unit_test(sql_refuses_in_the_same_words),
        cmocka_unit_test(rules_in_words),
        cmocka_unit_test(what_has_no_answer),
        cmocka_unit_test(every_change_of_40_zones_follows_the_rules),
        cmocka_unit_test(fast_and_thorough_agree),
        cmocka_unit_test(the_golden_table_holds),
    };

    if (argc > 1 && strcmp(argv[1], "--golden") == 0) return print_golden();
    return cmocka_run_group_tests_name("calendar", tests, calendar_up, pg_down);
}
