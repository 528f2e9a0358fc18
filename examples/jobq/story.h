/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * story.h -- what a call of a worker's loop means, as a line for people.
 *
 * jobq replay, the explorer and the simulator tell their stories by this. Names of queues and kinds
 * come from the notes of a recording; "": ids are told. A text lasts until the next one.
 */
#ifndef STORY_INCLUDED
#define STORY_INCLUDED (1)

#include "jobq.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct story {
    char text[1000];
    size_t len;
    const char *notes;
} story;

static inline void story_add(story *s, const char *format, ...)
{
    va_list args;
    int added;

    va_start(args, format);
    added = vsnprintf(s->text + s->len, sizeof s->text - s->len, format, args);
    va_end(args);
    if (added > 0) s->len += (size_t)added;
    if (s->len >= sizeof s->text) s->len = sizeof s->text - 1;
}

/* The name that goes with an id, or the id. */
static inline void story_name(story *s, const char *what, int64_t id)
{
    char line[60];
    const char *at;
    int size = snprintf(line, sizeof line, "%s %lld ", what, (long long)id);

    for (at = s->notes; (at = strstr(at, line)) != NULL; at++)
        if (at == s->notes || at[-1] == '\n') break;
    if (at == NULL) story_add(s, "%s %lld", what, (long long)id);
    else story_add(s, "%.*s", (int)strcspn(at + size, "\n"), at + size);
}

static inline void story_time(story *s, int64_t us)
{
    if (us == JOBQ_NEVER) story_add(s, "for ever");
    else if (us < 10000 && us > -10000) story_add(s, "%lld us", (long long)us);
    else story_add(s, "%.3f s", (double)us / 1e6);
}

static inline void story_decision(story *s, const jobq_decision *d)
{
    story_add(s, "%s", jobq_enum_name(JOBQ_ENUM_STATE, d->state));
    if (d->state != JOBQ_STATE_READY) return;
    if (d->delay_us == JOBQ_NEVER) story_add(s, ", parked");
    else if (d->delay_us > 0) {
        story_add(s, ", after ");
        story_time(s, d->delay_us);
    }
}

/* Up to 20 ids. */
static inline void story_more(story *s, int32_t i, int32_t count, int64_t id)
{
    if (i < 20) story_add(s, "%s%lld", i == 0 ? "" : ", ", (long long)id);
    else if (i == 20) story_add(s, " and %d more", count - i);
}

static inline void story_endings(story *s, const jobq_request *a)
{
    int32_t i;

    story_add(s, " %d jobs: ", a->ending_count);
    for (i = 0; i < a->ending_count; i++) {
        story_more(s, i, a->ending_count, a->endings[i].job);
        if (a->kind == JOBQ_REQUEST_COMPLETE || i >= 20) continue;
        story_add(s, " ");
        story_decision(s, &a->endings[i].decision);
    }
}

static inline void story_lanes(story *s, const jobq_request *a)
{
    int32_t i;

    story_add(s, " %lld, up to %d jobs%s%s%s of", (long long)a->claim, a->limit,
              a->alone ? ", alone," : a->suspects ? ", suspects," : "",
              a->sweep ? ", a sweep," : "", a->bytes == 0 ? ", only its name," : "");
    for (i = 0; i < a->lane_count; i++) {
        if (i > 0 && a->lanes[i].queue == a->lanes[i - 1].queue) continue;
        story_add(s, i == 0 ? " " : ", ");
        story_name(s, "queue", a->lanes[i].queue);
    }
    story_add(s, " (%d lanes)", a->lane_count);
}

/* What the loop asks for. */
static inline void story_request(story *s, const jobq_request *a, int64_t mono_us)
{
    story_add(s, "%s", jobq_enum_name(JOBQ_ENUM_REQUEST, a->kind));
    if (a->kind == JOBQ_REQUEST_WAIT) {
        story_add(s, " ");
        story_time(s, a->until_mono_us == JOBQ_NEVER ? JOBQ_NEVER : a->until_mono_us - mono_us);
    }
    if (a->kind == JOBQ_REQUEST_REGISTER) story_add(s, " as worker %lld", (long long)a->worker);
    if (a->kind == JOBQ_REQUEST_HEARTBEAT && a->settled_count > 0)
        story_add(s, ", %d claims settled", a->settled_count);
    if (a->rest_us > 0) {
        story_add(s, ", and may rest for another ");
        story_time(s, a->rest_us);
    }
    if (a->kind == JOBQ_REQUEST_HEARTBEAT && a->claim != 0) story_add(s, " and claim");
    if (a->kind == JOBQ_REQUEST_CLAIM || (a->kind == JOBQ_REQUEST_HEARTBEAT && a->claim != 0))
        story_lanes(s, a);
    if (a->kind == JOBQ_REQUEST_RECOVER) story_add(s, " claim %lld", (long long)a->claim);
    if (a->kind == JOBQ_REQUEST_COMPLETE || a->kind == JOBQ_REQUEST_SETTLE) story_endings(s, a);
    if (a->kind == JOBQ_REQUEST_RESCUE) story_add(s, " worker %lld", (long long)a->worker);
    if (a->kind == JOBQ_REQUEST_SLEEP) story_add(s, a->asleep ? " begins" : " ends");
    if (a->partition_id != 0)
        story_add(s, " of partition %lld, claim %lld", (long long)a->partition_id,
                  (long long)a->claim);
    else if (a->kind == JOBQ_REQUEST_ABANDON) {
        story_add(s, " the handler of job %lld: ", (long long)a->id);
        story_decision(s, &a->endings[0].decision);
    }
}

static inline void story_news(story *s, const jobq_news *news)
{
    if (!news->alive) story_add(s, ", the worker is dead");
    if (news->suspects) story_add(s, ", a suspect is ready");
    if (news->late_count > 0) story_add(s, ", %d workers are late", news->late_count);
    if (news->overdue > 0) story_add(s, ", %d are overdue", news->overdue);
    if (news->cancel_count > 0) story_add(s, ", %d cancel requests", news->cancel_count);
    if (news->permit_count > 0) story_add(s, ", %d permits", news->permit_count);
}

static inline void story_answer(story *s, const jobq_answer *a)
{
    int32_t i;

    story_add(s, "%s is answered: %s", jobq_enum_name(JOBQ_ENUM_REQUEST, a->kind),
              jobq_enum_name(JOBQ_ENUM_ERROR, a->error));
    if (a->error != JOBQ_OK) return;
    if (a->kind == JOBQ_REQUEST_HEARTBEAT) story_news(s, &a->news);
    if (a->kind == JOBQ_REQUEST_CLAIM || a->claimed.count > 0) {
        story_add(s, ", %d jobs%s", a->claimed.count, a->claimed.count > 0 ? ": " : "");
        for (i = 0; i < a->claimed.count; i++)
            story_more(s, i, a->claimed.count, a->claimed.jobs[i].id);
        if (a->claimed.due_us > 0) {
            story_add(s, ", the next is due in ");
            story_time(s, a->claimed.due_us);
        }
    } else if (a->kind == JOBQ_REQUEST_READ || a->kind == JOBQ_REQUEST_ACK) {
        story_add(s, ", %d messages", a->reading.count);
    } else if (a->count > 0) story_add(s, ", %d", a->count);
    if (a->more) story_add(s, ", there is more");
}

static inline void story_work(story *s, const jobq_entry *e)
{
    const jobq_work *work = e->work;
    bool job = work->partition_id == 0;
    jobq_work mate;
    int32_t i;

    if (job) story_add(s, "job %lld", (long long)work->job.id);
    else story_add(s, "partition %lld", (long long)work->partition_id);
    if (e->kind == JOBQ_ENTRY_TAKE && job) {
        story_add(s, " starts (");
        story_name(s, "kind", work->job.kind);
        story_add(s, ", attempt %d)", work->job.attempt);
        mate = *work;
        for (i = 1; jobq_loop_mate(e->loop, &mate); i++) {
            if (i == 1) story_add(s, " with ");
            story_more(s, i - 1, work->together - 1, mate.job.id);
        }
    } else if (e->kind == JOBQ_ENTRY_TAKE) {
        story_add(s, " starts, messages %lld to %lld", (long long)work->cursor.acked + 1,
                  (long long)work->cursor.acked + work->given);
    } else if (e->kind == JOBQ_ENTRY_HANDLED) {
        story_add(s, " ends: %s; ", e->handled->missing ? "no handler"
                                   : jobq_enum_name(JOBQ_ENUM_OUTCOME, e->handled->outcome));
        if (e->result) story_decision(s, e->decision);
        else story_add(s, "it had been abandoned");
    } else if (e->kind == JOBQ_ENTRY_DELIVERED) {
        story_add(s, " ends: %d done, %d of them dead%s", e->ack->plan.done, e->ack->plan.dead,
                  e->flag ? ", in its own transaction" : "");
    } else story_add(s, " is committed: %s", jobq_enum_name(JOBQ_ENUM_ERROR, e->error));
}

static inline story *story_start(const char *notes)
{
    static story s;

    s.len = 0;
    s.text[0] = '\0';
    s.notes = notes;
    return &s;
}

static inline const char *story_of_request(const jobq_request *a, int64_t mono_us)
{
    story *s = story_start("");

    story_request(s, a, mono_us);
    return s->text;
}

static inline const char *story_of_answer(const jobq_answer *a)
{
    story *s = story_start("");

    story_answer(s, a);
    return s->text;
}

/* A call of a loop as a line. */
static inline const char *story_entry(const jobq_entry *e, const char *notes)
{
    story *s = story_start(notes);

    switch ((int)e->kind) {
    case JOBQ_ENTRY_NEXT:
    case JOBQ_ENTRY_ABANDON: story_request(s, e->request, e->mono_us); break;
    case JOBQ_ENTRY_TELL: story_answer(s, e->answer); break;
    case JOBQ_ENTRY_NOTIFIED: story_add(s, "notified: \"%s\"", e->about); break;
    case JOBQ_ENTRY_HEARS: story_add(s, "hears %s", e->flag ? "again" : "nothing"); break;
    case JOBQ_ENTRY_STOP:
        story_add(s, "asked to stop, grace ");
        if (e->grace_us < 0) story_add(s, "as configured");
        else story_time(s, e->grace_us);
        break;
    case JOBQ_ENTRY_TAKE:
    case JOBQ_ENTRY_HANDLED:
    case JOBQ_ENTRY_DELIVERED:
    case JOBQ_ENTRY_COMMITTED: story_work(s, e); break;
    default: story_add(s, "%s", jobq_enum_name(JOBQ_ENUM_ENTRY, e->kind));
    }
    return s->text;
}

#endif
