/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * cron.h -- random cron expressions for tests, and an oracle that steps through the calendar.
 *
 * The oracle shares nothing with jobq.h: it knows the sets from which an expression was written,
 * counts days one by one, and looks at each second.
 */
#ifndef CRON_INCLUDED
#define CRON_INCLUDED (1)

#include "check.h"

#include <ctype.h>

/* What a random expression means. */
typedef struct sets {
    bool second[60], minute[60], hour[24], day[32], last, month[13], weekday[7];
    bool any_day, any_weekday, elapsed;
} sets;

typedef struct date {
    int year, month, day, length, weekday; /* length: of the month; weekday 0: Sunday */
} date;

#define DATE_DAYS 94968 /* from 1890-01-01 to 2150-01-04 */
#define DATE_FIRST (-29219) /* 1890-01-01 was a Wednesday */

static inline int month_days(int year, int month)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};

    if (month != 2 || year % 4 != 0 || (year % 100 == 0 && year % 400 != 0)) return days[month - 1];
    return 29;
}

/* The date of a day, in days since 1970-01-01. */
static inline const date *date_at(int64_t day)
{
    static date dates[DATE_DAYS];
    date d = {1890, 1, 1, 31, 3};
    int i;

    for (i = 0; dates[DATE_DAYS - 1].year == 0; i++) {
        dates[i] = d;
        d.weekday = (d.weekday + 1) % 7;
        if (d.day++ < d.length) continue;
        d.day = 1;
        d.month = d.month % 12 + 1;
        d.year += d.month == 1;
        d.length = month_days(d.year, d.month);
    }
    assert_true(day >= DATE_FIRST && day < DATE_FIRST + DATE_DAYS);
    return &dates[day - DATE_FIRST];
}

static inline bool date_matches(const sets *s, const date *d)
{
    bool day = s->day[d->day] || (s->last && d->day == d->length), weekday = s->weekday[d->weekday];

    return s->month[d->month] && (s->any_day || s->any_weekday ? day && weekday : day || weekday);
}

static inline int64_t day_of(int64_t seconds)
{
    return seconds >= 0 ? seconds / 86400 : -((-seconds + 86399) / 86400);
}

/* Whether a local time, in seconds since 1970, matches. */
static inline bool time_matches(const sets *s, int64_t at)
{
    int second = (int)(at - day_of(at) * 86400);

    return s->second[second % 60] && s->minute[second / 60 % 60] && s->hour[second / 3600] &&
           date_matches(s, date_at(day_of(at)));
}

/* The first second after a local time that matches, looking at all; -1: none before the date. */
static inline int64_t oracle_next(const sets *s, int64_t after, int64_t end)
{
    int64_t at = after + 1;

    while (at < end) {
        if (!date_matches(s, date_at(day_of(at)))) at = (day_of(at) + 1) * 86400;
        else if (time_matches(s, at)) return at;
        else at++;
    }
    return -1;
}

/* -- what is refused, and the text -- */

#define FIELDS \
    "must have five fields: minute hour day month weekday; or six, the second first; " \
    "or be @hourly @daily @midnight @weekly @monthly @yearly @annually"
#define MORE "; lists 1,3; ranges 1-5; steps */2 and 1-5/2"
#define SECONDS "must have a second of 0 to 59" MORE
#define MINUTES "must have a minute of 0 to 59" MORE
#define HOURS "must have an hour of 0 to 23" MORE
#define DAYS "must have a day of 1 to 31, or L" MORE
#define MONTHS "must have a month of 1 to 12, or JAN to DEC" MORE
#define WEEKDAYS "must have a weekday of 0 to 7, or SUN to SAT" MORE
#define NO_DATE "must match a date that exists"

static const struct {
    const char *text, *why;
} cron_refused[] = {
    {"", FIELDS}, {" \t ", FIELDS}, {"* * * *", FIELDS}, {"* * * * * * *", FIELDS},
    {"* * * * * * * * * *", FIELDS}, {"@reboot", FIELDS}, {"@", FIELDS}, {"@dailyx", FIELDS},
    {"@every 5m", FIELDS}, {"@daily @daily", FIELDS}, {"every minute", FIELDS},
    {"60 * * * * *", SECONDS}, {"- * * * * *", SECONDS}, {"a * * * * *", SECONDS},
    {"@daily * * * * *", SECONDS}, {"*/60 * * * * *", SECONDS},
    {"60 * * * *", MINUTES}, {"-1 * * * *", MINUTES}, {"005 * * * *", MINUTES},
    {"1, * * * *", MINUTES}, {",1 * * * *", MINUTES}, {"1,,2 * * * *", MINUTES},
    {"1-60 * * * *", MINUTES}, {"5-1 * * * *", MINUTES}, {"1- * * * *", MINUTES},
    {"5-0 * * * *", MINUTES},
    {"*/0 * * * *", MINUTES}, {"*/90 * * * *", MINUTES}, {"*/100 * * * *", MINUTES},
    {"*/ * * * *", MINUTES}, {"5/15 * * * *", MINUTES}, {"1-5/ * * * *", MINUTES},
    {"1-2-3 * * * *", MINUTES}, {"*-5 * * * *", MINUTES}, {"** * * * *", MINUTES},
    {"L * * * *", MINUTES}, {"? * * * *", MINUTES}, {"1.5 * * * *", MINUTES},
    {"JAN * * * *", MINUTES}, {"\xd9\xa1 * * * *", MINUTES}, {"*\n * * * *", MINUTES},
    {"* 24 * * *", HOURS}, {"* 1-24 * * *", HOURS}, {"* L * * *", HOURS}, {"* */24 * * *", HOURS},
    {"* * 0 * *", DAYS}, {"* * 32 * *", DAYS}, {"* * LW * *", DAYS}, {"* * L-3 * *", DAYS},
    {"* * L/2 * *", DAYS}, {"* * 1-L * *", DAYS}, {"* * 15W * *", DAYS}, {"* * */32 * *", DAYS},
    {"* * * 0 *", MONTHS}, {"* * * 13 *", MONTHS}, {"* * * JANUARY *", MONTHS},
    {"* * * JA *", MONTHS}, {"* * * ANF *", MONTHS}, {"* * * DEC-JAN *", MONTHS},
    {"* * * SUN *", MONTHS}, {"* * * L *", MONTHS}, {"* * * J\xc3\xa4N *", MONTHS},
    {"* * * * 8", WEEKDAYS}, {"* * * * FRY", WEEKDAYS}, {"* * * * 6-1", WEEKDAYS},
    {"* * * * 5L", WEEKDAYS}, {"* * * * MON#1", WEEKDAYS}, {"* * * * */8", WEEKDAYS},
    {"* * * * FR\xc4\xb1", WEEKDAYS}, {"* * * * \xc5\xbfUN", WEEKDAYS},
    {"0 0 30 2 *", NO_DATE}, {"0 0 31 2,4,6,9,11 *", NO_DATE}, {"0 0 30,31 FEB */2", NO_DATE},
};

/* -- random expressions -- */

static inline int draw(jobq_random *dice, int least, int most)
{
    return (int)jobq_random_between(jobq_random_next(dice), least, most);
}

static inline void put_name(jobq_random *dice, char *to, int value, int high)
{
    static const char names[] = "SUNMONTUEWEDTHUFRISAT", months[] =
        "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC";
    int i;

    if (high != 12 && (high != 7 || value == 7)) high = 0;
    if (high == 0 || draw(dice, 0, 1) == 0) {
        sprintf(to, draw(dice, 0, 5) == 0 ? "%02d" : "%d", value);
        return;
    }
    sprintf(to, "%.3s", high == 12 ? months + 3 * (value - 1) : names + 3 * value);
    for (i = 0; i < 3; i++) {
        if (draw(dice, 0, 1) == 0) to[i] = (char)tolower((unsigned char)to[i]);
    }
}

/* One item of a list, and its meaning. */
static inline void put_item(jobq_random *dice, char *to, bool *set, int low, int high)
{
    int from = draw(dice, low, high), most = from, step = 1, how = draw(dice, 0, 5);

    if (how < 2) from = low, most = high, strcpy(to, "*");
    else put_name(dice, to, from, high);
    if (how == 2 || how == 3) {
        most = draw(dice, from, high);
        strcat(to, "-");
        put_name(dice, to + strlen(to), most, high);
    }
    if (how == 1 || how == 2) {
        step = draw(dice, 0, 2) == 0 ? draw(dice, 1, high) : draw(dice, 1, high / 4 + 1);
        sprintf(to + strlen(to), "/%d", step);
    }
    for (; from <= most; from += step) set[from] = true;
}

/* A list; whether it begins with `*`. */
static inline bool put_list(jobq_random *dice, char *to, bool *set, int low, int high, bool *last)
{
    int count = draw(dice, 0, 3) == 0 ? draw(dice, 1, 4) : 1;
    const char *first = to;

    while (count-- > 0) {
        bool is_last = last != NULL && draw(dice, 0, 9) == 0;
        if (is_last) *last = strcpy(to, draw(dice, 0, 1) ? "L" : "l") != NULL;
        else put_item(dice, to, set, low, high);
        to += strlen(to);
        if (count > 0) strcpy(to++, ",");
    }
    return *first == '*';
}

static inline void put_blank(jobq_random *dice, char *text)
{
    strcat(text, draw(dice, 0, 9) > 0 ? " " : draw(dice, 0, 1) ? "\t" : " \t ");
}

/* An expression of fields that are well formed, in at least 400 bytes; its date may never come.
 * busy: the day, month and weekday are `*`, mostly, so that it runs often. */
static inline void random_cron(jobq_random *dice, char *text, sets *s, bool busy)
{
    static const char *const all = "*";
    bool weekday[8] = {false};
    int i;

    memset(s, 0, sizeof *s);
    text[0] = '\0';
    if (draw(dice, 0, 3) == 0) {
        (void)put_list(dice, text, s->second, 0, 59, NULL);
        put_blank(dice, text);
    } else s->second[0] = true;
    s->elapsed = put_list(dice, text + strlen(text), s->minute, 0, 59, NULL);
    put_blank(dice, text);
    if (put_list(dice, text + strlen(text), s->hour, 0, 23, NULL)) s->elapsed = true;
    put_blank(dice, text);
    busy = busy && draw(dice, 0, 3) > 0;
    if (busy || draw(dice, 0, 2) == 0) {
        for (i = 1; i < 32; i++) s->day[i] = true;
        s->any_day = strcat(text, all) != NULL;
    } else s->any_day = put_list(dice, text + strlen(text), s->day, 1, 31, &s->last);
    put_blank(dice, text);
    if (busy || draw(dice, 0, 1) == 0) {
        for (i = 1; i < 13; i++) s->month[i] = true;
        strcat(text, all);
    } else (void)put_list(dice, text + strlen(text), s->month, 1, 12, NULL);
    put_blank(dice, text);
    if (busy || draw(dice, 0, 2) == 0) {
        for (i = 0; i < 7; i++) s->weekday[i] = true;
        s->any_weekday = strcat(text, all) != NULL;
    } else {
        s->any_weekday = put_list(dice, text + strlen(text), weekday, 0, 7, NULL);
        for (i = 0; i < 8; i++) s->weekday[i % 7] = s->weekday[i % 7] || weekday[i];
    }
}

/* Whether a date of the sets comes within eight years: in the first of 2001 to 2008, with the 29th
 * of February; whatever its weekday is, if it is one of the set. */
static inline bool date_comes(const sets *s)
{
    int64_t day;

    for (day = 11323; day < 11323 + 8 * 366; day++) {
        sets any = *s;
        int i;
        for (i = 0; i < 7 && s->any_day + s->any_weekday > 0; i++) any.weekday[i] = true;
        if (date_matches(&any, date_at(day))) return true;
    }
    return false;
}

#endif
