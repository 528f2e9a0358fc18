/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * punctual.h -- the thread that calls jobq_loop_next never sleeps past what is due.
 *
 * It sleeps until the instant of the last WAIT, or until jobq_loop_due after another thread has
 * called the loop. So after each call that others may make, the loop must not have something to do
 * before both. The calls of a test that includes this are checked, private ones, too.
 *
 * LATE(format, ...): how the test fails; fail_msg, unless defined before.
 */
#ifndef JOBQ_TEST_PUNCTUAL_H
#define JOBQ_TEST_PUNCTUAL_H

#ifndef LATE
#include "check.h"
#define LATE fail_msg
#endif

/* When the loop does something next, if nobody calls it, and what (WAIT: not yet). */
static inline int64_t punctual_next(jobq_loop *copy, int64_t now, jobq_request_kind *kind)
{
    static jobq_request request;

    jobq_loop_next(copy, now, &request);
    *kind = request.kind;
    return request.kind == JOBQ_REQUEST_WAIT ? request.until_mono_us : now;
}

/* A loop as it was before the call. Of large ones, which take long to copy, every 32nd call is
 * checked. NULL: not this one. */
static inline jobq_loop *punctual_before(const jobq_loop *l)
{
    static jobq_loop copy;
    static unsigned calls;

    if (sizeof copy > 65536 && calls++ % 32 != 0) return NULL;
    copy = *l;
    return &copy;
}

static inline void punctual_check(jobq_loop *before, const jobq_loop *l, int64_t now,
                                  const char *call)
{
    static jobq_loop copy;
    int64_t due = jobq_loop_due(l, now), next;
    jobq_request_kind kind, earlier;

    if (before == NULL || due <= now) return;
    copy = *l;
    next = punctual_next(&copy, now, &kind);
    if (due > next && punctual_next(before, now, &earlier) > next)
        LATE("jobq_loop_due says %lld, not %lld (%s), after %s", (long long)due, (long long)next,
             jobq_enum_name(JOBQ_ENUM_REQUEST, kind), call);
}

/* Defines punctual_NAME, which calls jobq_NAME and checks it. */
#define PUNCTUAL(name, type, result, parameters, arguments)                                        \
    static inline type punctual_##name parameters                                                  \
    {                                                                                              \
        jobq_loop *before = punctual_before(l);                                                    \
        result jobq_##name arguments;                                                              \
        punctual_check(before, l, now, #name);                                                     \
        return PUNCTUAL_##type;                                                                    \
    }
#define PUNCTUAL_bool got
#define PUNCTUAL_int32_t got
#define PUNCTUAL_void

PUNCTUAL(loop_take, bool, bool got =, (jobq_loop *l, int64_t now, jobq_work *work), (l, now, work))
PUNCTUAL(loop_handled, bool, bool got =,
         (jobq_loop *l, int64_t now, const jobq_work *work, const jobq_handled *handled,
          jobq_decision *decision),
         (l, now, work, handled, decision))
PUNCTUAL(loop_delivered, bool, bool got =,
         (jobq_loop *l, int64_t now, const jobq_work *work, const jobq_verdict *verdict, bool own,
          jobq_ack *ack),
         (l, now, work, verdict, own, ack))
PUNCTUAL(loop_committed, bool, bool got =,
         (jobq_loop *l, int64_t now, const jobq_work *work, jobq_error error),
         (l, now, work, error))
PUNCTUAL(loop_stop, void, , (jobq_loop *l, int64_t now, int64_t grace_us), (l, now, grace_us))
PUNCTUAL(loop_hears, void, , (jobq_loop *l, int64_t now, bool hears), (l, now, hears))
PUNCTUAL(_take_job, int32_t, int32_t got =, (jobq_loop *l, int64_t now), (l, now))
PUNCTUAL(_take_messages, int32_t, int32_t got =, (jobq_loop *l, int64_t now), (l, now))

#undef jobq_loop_take /* those of recorded.h, which the ones above have called */
#undef jobq_loop_handled
#undef jobq_loop_delivered
#undef jobq_loop_committed
#undef jobq_loop_stop
#undef jobq_loop_hears
#define jobq_loop_take punctual_loop_take
#define jobq_loop_handled punctual_loop_handled
#define jobq_loop_delivered punctual_loop_delivered
#define jobq_loop_committed punctual_loop_committed
#define jobq_loop_stop punctual_loop_stop
#define jobq_loop_hears punctual_loop_hears
#define jobq__take_job punctual__take_job
#define jobq__take_messages punctual__take_messages

#endif
