/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * calendar.h -- the times of a cron expression, by a clock that never changes: what SQL's cron_next
 * does in UTC. A test includes it after the implementation of jobq.h.
 */
#ifndef MODEL_CALENDAR_INCLUDED
#define MODEL_CALENDAR_INCLUDED (1)

#include "jobq.h"

static inline int model_month_length(int64_t year, int month)
{
    if (month != 2) return 30 + ((month + (month >= 8)) & 1);
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 29 : 28;
}

/* The lowest bit of a set from `from` on; 64: there is none. */
static inline int model_bit_from(uint64_t set, int from)
{
    while (from < 64 && (set >> from & 1) == 0) from++;
    return from;
}

/* The days of a month that match, as bits 1 to 31. first: its first day, from 1970-01-01. */
static inline uint64_t model_cron_days(const jobq_cron *c, int64_t first, int length)
{
    int weekday = (int)(first + 4 - 7 * jobq__floor_div(first + 4, 7));
    uint64_t week = (c->weekdays | (uint64_t)c->weekdays << 7) >> weekday & 127;
    uint64_t days = c->days | (uint64_t)(c->days & 1) << length;
    bool both = (c->flags & (JOBQ_CRON_ANY_DAY | JOBQ_CRON_ANY_WEEKDAY)) != 0;

    week = week * 0x10204081u << 1; /* five weeks; the first begins with the month */
    return (both ? days & week : days | week) & (((uint64_t)2 << length) - 2);
}

/* The first time of a day that matches, from a second of the day on; -1: there is none. */
static inline int model_cron_time(const jobq_cron *c, int from)
{
    int h = from / 3600, m = from / 60 % 60, s = from % 60;
    bool hour = (c->hours >> h & 1) != 0;

    s = hour && (c->minutes >> m & 1) != 0 ? model_bit_from(c->seconds, s) : 64;
    if (s == 64) m = hour ? model_bit_from(c->minutes, m + 1) : 64;
    if (m == 64) h = model_bit_from(c->hours, h + 1);
    if (h == 64) return -1;
    if (m == 64) m = model_bit_from(c->minutes, 0);
    if (s == 64) s = model_bit_from(c->seconds, 0);
    return h * 3600 + m * 60 + s;
}

/* The first local time after local_us that matches, a whole second. JOBQ_NEVER: there is none
 * within 50 years, or in what the type holds. Microseconds since 1970-01-01 00:00 of that clock, in
 * the Gregorian calendar of all times. */
static inline int64_t model_cron_next(const jobq_cron *cron, int64_t local_us)
{
    int64_t at = jobq__floor_div(local_us, JOBQ__SECOND) + 1, today, first, year;
    int month, day, length, time, i;

    JOBQ_ASSERT(cron != NULL && cron->seconds != 0 && cron->minutes != 0 && cron->hours != 0);
    if (local_us > JOBQ_NEVER - JOBQ__DAY * 366 * 51) return JOBQ_NEVER;
    today = jobq__floor_div(at, 86400);
    jobq__date_of(today, &year, &month, &day);
    first = today - day + 1;
    time = model_cron_time(cron, (int)(at - today * 86400));
    if (time < 0) day++;
    for (i = 0; i <= 600; i++) {
        length = model_month_length(year, month);
        if ((cron->months >> month & 1) != 0) {
            day = model_bit_from(model_cron_days(cron, first, length), day);
            if (day < 64 && first + day - 1 != today) time = model_cron_time(cron, 0);
            if (day < 64) return ((first + day - 1) * 86400 + time) * JOBQ__SECOND;
        }
        first += length;
        year += month == 12;
        month = month % 12 + 1;
        day = 1;
    }
    return JOBQ_NEVER;
}

#endif /* MODEL_CALENDAR_INCLUDED */
