/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Cron expressions: golden ones, every text of a refusal, and random ones against an oracle that
 * looks at each second of the calendar (cron.h).
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "cron.h"
#include "calendar.h"

static jobq_cron parsed(const char *text)
{
    const char *why = NULL;
    jobq_cron cron;

    if (jobq_cron_parse(jobq_str_from(text), &cron, &why) != JOBQ_OK) fail_msg("%s: %s", text, why);
    assert_string_equal(why, "");
    return cron;
}

/* -- golden expressions -- */

/* "2026-03-29 02:30:00" as microseconds. */
static int64_t local_us(const char *text)
{
    int year, month, day, hour, minute, second;
    int64_t days;

    assert_int_equal(sscanf(text, "%d-%d-%d %d:%d:%d", &year, &month, &day, &hour, &minute,
                            &second), 6);
    for (days = DATE_FIRST; days < DATE_FIRST + DATE_DAYS; days++) {
        const date *d = date_at(days);
        if (d->year != year || d->month != month || d->day != day) continue;
        return (days * 86400 + hour * 3600 + minute * 60 + second) * SECOND;
    }
    fail_msg("no date: %s", text);
    return 0;
}

static void local_text(char *out, int64_t us)
{
    int64_t at = us / SECOND - (us % SECOND < 0);
    const date *d = date_at(day_of(at));
    int second = (int)(at - day_of(at) * 86400);

    sprintf(out, "%04d-%02d-%02d %02d:%02d:%02d", d->year, d->month, d->day, second / 3600,
            second / 60 % 60, second % 60);
}

static const struct {
    const char *text, *after, *next[3];
} golden[] = {
    {"* * * * *", "2026-01-01 00:00:00",
     {"2026-01-01 00:01:00", "2026-01-01 00:02:00", "2026-01-01 00:03:00"}},
    {"*/15 * * * *", "2026-01-01 23:31:00",
     {"2026-01-01 23:45:00", "2026-01-02 00:00:00", "2026-01-02 00:15:00"}},
    {"*/40 * * * *", "2026-01-01 00:00:00",
     {"2026-01-01 00:40:00", "2026-01-01 01:00:00", "2026-01-01 01:40:00"}},
    {"30 2 * * *", "2026-03-28 02:30:00",
     {"2026-03-29 02:30:00", "2026-03-30 02:30:00", "2026-03-31 02:30:00"}},
    {"*/20 59 23 31 12 *", "2026-01-01 00:00:00",
     {"2026-12-31 23:59:00", "2026-12-31 23:59:20", "2026-12-31 23:59:40"}},
    {"59 59 23 * * 7", "2026-01-01 00:00:00",
     {"2026-01-04 23:59:59", "2026-01-11 23:59:59", "2026-01-18 23:59:59"}},
    {"0 0 L * *", "2024-01-31 00:00:00",
     {"2024-02-29 00:00:00", "2024-03-31 00:00:00", "2024-04-30 00:00:00"}},
    {"0 0 l,15 feb *", "2025-01-31 00:00:00",
     {"2025-02-15 00:00:00", "2025-02-28 00:00:00", "2026-02-15 00:00:00"}},
    {"0 0 31 * *", "2026-01-31 00:00:00",
     {"2026-03-31 00:00:00", "2026-05-31 00:00:00", "2026-07-31 00:00:00"}},
    {"0 0 29 2 *", "1896-02-29 00:00:00",
     {"1904-02-29 00:00:00", "1908-02-29 00:00:00", "1912-02-29 00:00:00"}},
    {"0 0 29 2 *", "1996-02-29 00:00:00",
     {"2000-02-29 00:00:00", "2004-02-29 00:00:00", "2008-02-29 00:00:00"}},
    /* The longest wait that there is: 40 years. */
    {"0 0 29-30/2 FEB */7", "2076-01-01 00:00:00",
     {"2088-02-29 00:00:00", "2128-02-29 00:00:00", NULL}},
    /* Either the day or the weekday, if both are restricted ... */
    {"0 0 13 * FRI", "2026-02-01 00:00:00",
     {"2026-02-06 00:00:00", "2026-02-13 00:00:00", "2026-02-20 00:00:00"}},
    {"0 0 30 2 MON", "2026-02-01 00:00:00",
     {"2026-02-02 00:00:00", "2026-02-09 00:00:00", "2026-02-16 00:00:00"}},
    /* ... and both, if one of them begins with an asterisk. */
    {"0 0 */2 * FRI", "2026-02-01 00:00:00",
     {"2026-02-13 00:00:00", "2026-02-27 00:00:00", "2026-03-13 00:00:00"}},
    {"0 0 13 * */2", "2026-02-01 00:00:00",
     {"2026-06-13 00:00:00", "2026-08-13 00:00:00", "2026-09-13 00:00:00"}},
    {"0 12 * * FRI-SUN", "2026-02-01 13:00:00",
     {"2026-02-06 12:00:00", "2026-02-07 12:00:00", "2026-02-08 12:00:00"}},
    {"0 9-17/4 * * mon-FRI", "2026-02-06 09:00:00",
     {"2026-02-06 13:00:00", "2026-02-06 17:00:00", "2026-02-09 09:00:00"}},
    {" \t05 04\t * JAN,jul  * ", "2026-01-30 23:00:00",
     {"2026-01-31 04:05:00", "2026-07-01 04:05:00", "2026-07-02 04:05:00"}},
    {"@hourly", "1969-12-31 23:00:00",
     {"1970-01-01 00:00:00", "1970-01-01 01:00:00", "1970-01-01 02:00:00"}},
    {"@daily", "2026-02-27 12:00:00",
     {"2026-02-28 00:00:00", "2026-03-01 00:00:00", "2026-03-02 00:00:00"}},
    {" @Midnight ", "2026-02-27 12:00:00",
     {"2026-02-28 00:00:00", "2026-03-01 00:00:00", "2026-03-02 00:00:00"}},
    {"@weekly", "2026-02-27 12:00:00",
     {"2026-03-01 00:00:00", "2026-03-08 00:00:00", "2026-03-15 00:00:00"}},
    {"@MONTHLY", "2026-02-27 12:00:00",
     {"2026-03-01 00:00:00", "2026-04-01 00:00:00", "2026-05-01 00:00:00"}},
    {"@yearly", "2026-02-27 12:00:00",
     {"2027-01-01 00:00:00", "2028-01-01 00:00:00", "2029-01-01 00:00:00"}},
    {"@annually", "2026-02-27 12:00:00",
     {"2027-01-01 00:00:00", "2028-01-01 00:00:00", "2029-01-01 00:00:00"}},
};

static void golden_expressions(void **unused)
{
    char text[40];
    size_t i, k;

    (void)unused;
    for (i = 0; i < COUNT(golden); i++) {
        jobq_cron cron = parsed(golden[i].text);
        int64_t at = local_us(golden[i].after);
        for (k = 0; k < 3 && golden[i].next[k] != NULL; k++) {
            at = model_cron_next(&cron, at);
            local_text(text, at);
            if (strcmp(text, golden[i].next[k]) != 0) {
                fail_msg("%s: %s, not %s", golden[i].text, text, golden[i].next[k]);
            }
        }
    }
}

/* The bits that SQL stores, too. */
static void golden_bits(void **unused)
{
    jobq_cron c = parsed("59 0,3-5 23 L,1,31 JAN,12 0-1,7");

    (void)unused;
    assert_true(c.seconds == (uint64_t)1 << 59 && c.minutes == 0x39);
    assert_int_equal(c.hours, 1u << 23);
    assert_int_equal(c.days, 1u | 2u | 1u << 31);
    assert_int_equal(c.months, 1u << 1 | 1u << 12);
    assert_int_equal(c.weekdays, 3);
    assert_int_equal(c.flags, 0);
    assert_int_equal(parsed("* * * * * *").flags, 7);
    assert_int_equal(parsed("* 1 1 1 1 1").flags, 0); /* the second does not count */
    assert_int_equal(parsed("*/5 1 1 1 1").flags, JOBQ_CRON_ELAPSED);
    assert_int_equal(parsed("1 *,1 1 1 1").flags, JOBQ_CRON_ELAPSED);
    assert_int_equal(parsed("1 1,* 1 1 1").flags, 0);
    assert_int_equal(parsed("1 1 */2 1 1").flags, JOBQ_CRON_ANY_DAY);
    assert_int_equal(parsed("1 1 1 * */2").flags, JOBQ_CRON_ANY_WEEKDAY);
    assert_int_equal(parsed("@hourly").flags, 7);
    assert_int_equal(parsed("@daily").flags, 6);
}

/* -- refusals -- */

static void refusals_name_the_field(void **unused)
{
    jobq_cron cron, before;
    const char *why;
    size_t i;

    (void)unused;
    memset(&before, 7, sizeof before);
    cron = before;
    for (i = 0; i < COUNT(cron_refused); i++) {
        jobq_str text = jobq_str_from(cron_refused[i].text);
        assert_int_equal(jobq_cron_parse(text, &cron, &why), JOBQ_ERROR_INVALID);
        assert_int_equal(jobq_cron_parse(text, &cron, NULL), JOBQ_ERROR_INVALID);
        if (strcmp(why, cron_refused[i].why) != 0) fail_msg("%s: %s", cron_refused[i].text, why);
        assert_memory_equal(&cron, &before, sizeof cron);
    }
    assert_int_equal(jobq_cron_parse((jobq_str){NULL, 0}, &cron, &why), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_cron_parse((jobq_str){"0\0 0 * * *", 10}, &cron, &why),
                     JOBQ_ERROR_INVALID);
}

static void length_is_limited(void **unused)
{
    char text[1002];
    const char *why;
    jobq_cron cron;

    (void)unused;
    memset(text, ' ', sizeof text);
    memcpy(text + 500, "1 2 3 4 5", 9);
    assert_int_equal(jobq_cron_parse((jobq_str){text, 1000}, &cron, &why), JOBQ_OK);
    assert_int_equal(jobq_cron_parse((jobq_str){text, 1001}, &cron, &why), JOBQ_ERROR_INVALID);
    assert_string_equal(why, "must be at most 1000 bytes");
}

/* -- random expressions -- */

static void random_expressions_agree_with_the_oracle(void **unused)
{
    jobq_random dice = {18};
    int rounds = check_slow() ? 300 : 6000, i, tested = 0;

    (void)unused;
    for (i = 0; i < rounds; i++) {
        char text[500];
        const char *why;
        jobq_cron cron;
        sets s;
        int64_t after, next, end = (int64_t)DATE_DAYS * 86400 + (int64_t)DATE_FIRST * 86400, wanted;

        random_cron(&dice, text, &s, false);
        if (jobq_cron_parse(jobq_str_from(text), &cron, &why) != JOBQ_OK) {
            if (strcmp(why, NO_DATE) != 0 || date_comes(&s)) fail_msg("%s: %s", text, why);
            continue;
        }
        if (!date_comes(&s)) fail_msg("%s is taken", text);
        assert_int_equal((cron.flags & JOBQ_CRON_ELAPSED) != 0, s.elapsed);
        after = jobq_random_between(jobq_random_next(&dice), -2000000000, 3700000000);
        wanted = oracle_next(&s, after, end);
        next = model_cron_next(&cron, after * SECOND + draw(&dice, 0, 999999));
        if (next != wanted * SECOND) {
            fail_msg("%s after %lld: %lld, not %lld", text, (long long)after,
                     (long long)(next / SECOND), (long long)wanted);
        }
        tested++;
    }
    assert_true(tested > rounds / 2);
}

static void ends_of_time(void **unused)
{
    jobq_cron always = parsed("* * * * * *"), rarely = parsed("0 0 29 2 *");
    jobq_cron never = parsed("0 0 1 1 *");
    int64_t next;

    (void)unused;
    never.days = 0;
    assert_true(model_cron_next(&never, 0) == JOBQ_NEVER);
    assert_true(model_cron_next(&always, INT64_MAX) == JOBQ_NEVER);
    assert_true(model_cron_next(&always, INT64_MAX - 52 * 366 * 86400 * SECOND) < JOBQ_NEVER);
    next = model_cron_next(&rarely, INT64_MIN);
    assert_true(next > INT64_MIN && next < INT64_MIN + 9 * 366 * 86400 * SECOND);
    assert_true(model_cron_next(&always, INT64_MIN) < INT64_MIN + 2 * SECOND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_expressions),
        cmocka_unit_test(golden_bits),
        cmocka_unit_test(refusals_name_the_field),
        cmocka_unit_test(length_is_limited),
        cmocka_unit_test(random_expressions_agree_with_the_oracle),
        cmocka_unit_test(ends_of_time),
    };

    return cmocka_run_group_tests_name("cron", tests, NULL, NULL);
}
