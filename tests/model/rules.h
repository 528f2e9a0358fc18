/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * rules.h -- rules that SQL carries out and jobq.h does not need: what becomes of a known key,
 * shares of a quota, tokens of a rate. model.h follows them, and tests compare SQL with them.
 */
#ifndef MODEL_RULES_INCLUDED
#define MODEL_RULES_INCLUDED (1)

#include "jobq.h"

#ifndef JOBQ_ASSERT
#include <assert.h>
#define JOBQ_ASSERT(x) assert(x)
#endif

static inline int64_t model_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t model_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* -- keys -- */

/* What else an enqueue with a key may have done. */
enum {
    MODEL_KNOWN_NEW = JOBQ_KNOWN_REJECT + 1, /* the new job takes the key */
    MODEL_KNOWN_FOLLOW                       /* ... and waits for the other one to end */
};

/* What becomes of an enqueue whose key is that of a job in this state: a jobq_known, or one of the
 * above. begun: it runs, has finished a stage, or waits for jobs that it spawned. Never CANCEL for
 * any other waiting job: it has not begun, so the new payload replaces its own. */
static inline int model_known_decide(jobq_known on_known, jobq_unique unique, jobq_state state,
                                     bool begun)
{
    bool leaves = on_known == JOBQ_KNOWN_LEAVE || on_known == JOBQ_KNOWN_REJECT;
    bool ended = jobq_state_final(state);

    JOBQ_ASSERT(on_known <= JOBQ_KNOWN_REJECT && unique <= JOBQ_UNIQUE_READY);
    if (unique == JOBQ_UNIQUE_DEFAULT) unique = leaves ? JOBQ_UNIQUE_PERIOD : JOBQ_UNIQUE_LIVE;
    if (ended ? unique != JOBQ_UNIQUE_PERIOD : begun && unique == JOBQ_UNIQUE_READY)
        return MODEL_KNOWN_NEW;
    if (leaves) return (int)on_known;
    if (ended || (begun && on_known == JOBQ_KNOWN_BUMP)) return JOBQ_KNOWN_LEAVE;
    if (begun && on_known != JOBQ_KNOWN_CANCEL) return MODEL_KNOWN_FOLLOW;
    if (state == JOBQ_STATE_WAITING && on_known == JOBQ_KNOWN_CANCEL) return JOBQ_KNOWN_REPLACE;
    return (int)on_known;
}

/* What an enqueue has done, as jobq._known_decide says it. */
static inline const char *model_known_name(int what)
{
    if (what > (int)JOBQ_KNOWN_REJECT) return what == MODEL_KNOWN_NEW ? "new" : "follow";
    return jobq_enum_name(JOBQ_ENUM_KNOWN, what);
}

/* -- permits -- */

/* What each of so many workers may hold of running_max: at least 1. */
static inline int32_t model_permit_fair(int32_t running_max, int32_t wanting)
{
    return (int32_t)model_max(running_max / model_max(wanting, 1), 1);
}

/* What a worker may hold: its fair share, or more if others leave it. wanting: workers that want
 * some, this one included. held: what the others hold. reserved: what each of them holds, or wants
 * up to model_permit_fair, whichever is more. wanted: how many this one could run. The result plus
 * held is at most running_max, or the result is 0. */
static inline int32_t model_permit_share(int32_t running_max, int32_t wanting, int64_t reserved,
                                         int64_t held, int32_t wanted)
{
    int64_t share = model_max(model_permit_fair(running_max, wanting), running_max - reserved);

    return (int32_t)model_max(model_min(model_min(wanted, running_max - held), share), 0);
}

/* The tokens of 100 ms, at least 1: what a worker gets at once. */
static inline int32_t model_rate_chunk(const jobq_rate *rate)
{
    JOBQ_ASSERT(rate != NULL && rate->us >= rate->count && rate->count >= 1);
    return (int32_t)model_max((int64_t)rate->count * 100000 / rate->us, 1);
}

/* The time that n tokens take; up: rounded up, so that rounding never makes a token. */
static inline int64_t model_tokens_us(const jobq_rate *rate, int64_t n, bool up)
{
    return (n * rate->us + (up ? rate->count - 1 : 0)) / rate->count;
}

/* Puts tokens back and takes some; returns how many it took. held: tokens that workers have, before
 * this. The bucket holds at most max(burst, chunk); bucket and workers together at most burst +
 * chunk. So, since each start uses a token up, at most burst + rate * t + chunk jobs start in any
 * window of length t. *wait_us: time until the next token; 0: one is there. */
static inline int32_t model_tokens_move(const jobq_rate *rate, int64_t *free_us, int64_t now_us,
                                        int64_t held, int32_t returned, int32_t wanted,
                                        int64_t *wait_us)
{
    int64_t chunk, full, room, level, granted;

    JOBQ_ASSERT(rate != NULL && free_us != NULL && wait_us != NULL);
    JOBQ_ASSERT(rate->us <= JOBQ_DAYS(1) && rate->count <= 1000000);
    JOBQ_ASSERT(rate->burst >= 1 && rate->burst <= 1000000);
    chunk = model_rate_chunk(rate);
    full = model_max(rate->burst, chunk);
    /* First with what workers had until now: otherwise the bucket would refill while they still
     * hold it. An instant that has not come was written before the clock ran back: the bucket is
     * empty. */
    room = model_max(model_min(full, rate->burst + chunk - held), 0);
    *free_us = model_max(model_min(*free_us, now_us), now_us - model_tokens_us(rate, room, false));
    *free_us -= model_tokens_us(rate, returned, false);
    *free_us = model_max(*free_us, now_us - model_tokens_us(rate, full, false));
    level = (now_us - *free_us) * rate->count / rate->us;
    granted = model_max(model_min(model_min(level, wanted), chunk), 0);
    *free_us += model_tokens_us(rate, granted, true);
    *wait_us = model_max(*free_us + model_tokens_us(rate, 1, true) - now_us, 0);
    return (int32_t)granted;
}

#endif /* MODEL_RULES_INCLUDED */
