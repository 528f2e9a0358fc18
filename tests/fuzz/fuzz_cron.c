/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * fuzz_cron.c -- libFuzzer on jobq_cron_parse and model_cron_next: any text, at any time.
 *
 * The first eight bytes are the time. The rest is the text, in memory of exactly its length. What
 * is taken has a next time, which is later, matches the sets, and is found again from just before
 * it.
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "../model/calendar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(x) ((x) ? (void)0 : (fprintf(stderr, "broken: %s\n", #x), abort()))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_next(const jobq_cron *cron, int64_t after)
{
    int64_t next = model_cron_next(cron, after), seconds = next / 1000000, second;

    if (next == JOBQ_NEVER) {
        MUST(after > INT64_MAX - 52 * 366 * INT64_C(86400000000));
        return;
    }
    MUST(next > after && next % 1000000 == 0);
    second = (seconds % 86400 + 86400) % 86400;
    MUST((cron->seconds >> second % 60 & 1) != 0);
    MUST((cron->minutes >> second / 60 % 60 & 1) != 0);
    MUST((cron->hours >> second / 3600 & 1) != 0);
    if (next > INT64_MAX - 52 * 366 * INT64_C(86400000000)) return; /* the end is near */
    MUST(model_cron_next(cron, next - 1) == next);
    MUST(next - after < 2 || model_cron_next(cron, after + (next - after) / 2) == next);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *why = NULL;
    int64_t after = 0;
    jobq_str text;
    jobq_cron cron;
    char *copy;

    if (size < sizeof after) return 0;
    memcpy(&after, data, sizeof after);
    text.len = size - sizeof after;
    copy = (char *)malloc(text.len);
    MUST(copy != NULL || text.len == 0);
    if (text.len > 0) memcpy(copy, data + sizeof after, text.len);
    text.ptr = copy;
    if (jobq_cron_parse(text, &cron, &why) == JOBQ_OK) {
        MUST(why != NULL && why[0] == '\0' && text.len <= JOBQ_CRON_MAX);
        MUST(cron.seconds >> 60 == 0 && cron.minutes >> 60 == 0 && cron.hours >> 24 == 0);
        MUST(cron.days != 0 && (cron.months & ~0x1ffeu) == 0 && cron.weekdays >> 7 == 0);
        check_next(&cron, after);
    } else {
        MUST(why != NULL && why[0] != '\0');
    }
    free(copy);
    return 0;
}
