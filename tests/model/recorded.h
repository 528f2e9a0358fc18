/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * recorded.h -- what a file that includes this asks of a loop is recorded.
 *
 * The file says which recorder a loop has: recorder_of. Include it after jobq.h, before what else
 * calls loops.
 */
#ifndef RECORDED_INCLUDED
#define RECORDED_INCLUDED (1)

#include "jobq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NULL: it has none, such as a copy. */
static jobq_recorder *recorder_of(const jobq_loop *loop);

/* Replays a recording to its end. NULL: all is the same, and so is the loop at the end, unless that
 * is NULL; otherwise what differs. *entries: how many there were. */
static inline const char *recorded_same(const void *block, size_t bytes, const jobq_loop *loop,
                                        int64_t *entries)
{
    static jobq_replay *replay;
    static char text[200];
    const char *why = "out of memory";
    jobq_entry e;

    if (replay == NULL) replay = (jobq_replay *)calloc(1, jobq_replay_size());
    if (replay == NULL || jobq_replay_init(replay, block, bytes, &why) != JOBQ_OK) return why;
    for (*entries = 0; jobq_replay_step(replay, &e); ++*entries) {
        if (e.same && !e.cut && e.kind != JOBQ_ENTRY_TORN) continue;
        snprintf(text, sizeof text, "entry %lld, %s, is not as recorded%s", (long long)e.number,
                 jobq_enum_name(JOBQ_ENUM_ENTRY, e.kind), e.cut ? ": it did not return" : "");
        return text;
    }
    if (loop == NULL || jobq__loops_agree(e.loop, loop)) return NULL;
    return "the loop is not as it was at the end";
}

#define jobq_loop_next(l, ...) jobq_recorded_next(recorder_of(l), l, __VA_ARGS__)
#define jobq_loop_abandon(l, ...) jobq_recorded_abandon(recorder_of(l), l, __VA_ARGS__)
#define jobq_loop_tell(l, ...) jobq_recorded_tell(recorder_of(l), l, __VA_ARGS__)
#define jobq_loop_disconnected(l, ...) jobq_recorded_disconnected(recorder_of(l), l, __VA_ARGS__)
#define jobq_loop_notified(l, ...) jobq_recorded_notified(recorder_of(l), l, __VA_ARGS__)
#define jobq_loop_hears(l, ...) jobq_recorded_hears(recorder_of(l), l, __VA_ARGS__)
#define jobq_loop_stop(l, ...) jobq_recorded_stop(recorder_of(l), l, __VA_ARGS__)
#define jobq_loop_take(l, ...) jobq_recorded_take(recorder_of(l), l, __VA_ARGS__)
#define jobq_loop_handled(l, ...) jobq_recorded_handled(recorder_of(l), l, __VA_ARGS__)
#define jobq_loop_delivered(l, ...) jobq_recorded_delivered(recorder_of(l), l, __VA_ARGS__)
#define jobq_loop_committed(l, ...) jobq_recorded_committed(recorder_of(l), l, __VA_ARGS__)

#endif
