/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * laws.h -- what a statement may write: the laws of jobq.h, written a second time, independently.
 *
 * The explorer and the simulator compare the store before and after each statement. Nothing here
 * calls jobq_job_decide. The numbers of the laws are those of LIFE OF A JOB and of THE OUTBOX in
 * jobq.h.
 */
#ifndef LAWS_INCLUDED
#define LAWS_INCLUDED (1)

#include "wire.h"

static bool laws__same(const jobq_job *a, const jobq_job *b)
{
    return a->state == b->state && a->worker == b->worker && a->claim == b->claim &&
           a->attempt == b->attempt && a->crash == b->crash && a->snoozes == b->snoozes &&
           a->stage == b->stage && a->suspect == b->suspect && a->alone == b->alone &&
           a->cancel_requested == b->cancel_requested;
}

static const char *laws__claimed(const wire *s, const jobq_job *a, const jobq_job *b, int64_t now)
{
    jobq_job want = *a;

    if (a->state != JOBQ_STATE_READY || a->run_at_us > now) {
        return "a claim took a job that was not due";
    }
    if (a->suspect != s->request.suspects) return "law 6: a claim mixed suspects and others";
    if (a->alone != s->request.alone) return "law 6: a claim mixed what must run alone and others";
    want.state = JOBQ_STATE_RUNNING;
    want.worker = s->request.worker;
    want.claim = s->request.claim;
    want.attempt++;
    return laws__same(&want, b) ? NULL : "law 4: a claim raises the attempt and nothing else";
}

/* A late job ends in the claim that finds it, and nothing else of it changes. */
static const char *laws__expired(const jobq_job *a, const jobq_job *b)
{
    jobq_job want = *a;

    want.state = JOBQ_STATE_CANCELLED;
    want.suspect = want.alone = false;
    return a->state == JOBQ_STATE_READY && laws__same(&want, b)
               ? NULL : "law 33: a claim took a job that was late, or law 34: ended it otherwise";
}

static const char *laws__settled(const wire *s, const jobq_job *a, const jobq_job *b)
{
    const jobq_ending *it = NULL;
    jobq_error error = JOBQ_OK;
    jobq_job want = *a;
    int i;

    for (i = 0; i < s->request.ending_count && it == NULL; i++) {
        const jobq_ending *t = &s->request.endings[i];
        if (t->job == a->id && jobq_job_holds(a, t->worker, t->claim)) it = t;
        error = s->errors[i];
    }
    if (it == NULL) return "law 8: a job was written without its token";
    if (error != JOBQ_OK) return "law 8: a job was written and its writer told otherwise";
    want.worker = want.claim = 0;
    want.cancel_requested = false;
    want.state = it->decision.state;
    want.attempt = it->decision.attempt;
    want.crash = it->decision.crash;
    want.snoozes = it->decision.snoozes;
    want.stage = it->decision.stage;
    want.suspect = it->decision.suspect;
    want.alone = it->decision.alone;
    if (a->cancel_requested &&
        (want.state == JOBQ_STATE_READY || want.state == JOBQ_STATE_WAITING)) {
        return b->state == JOBQ_STATE_CANCELLED && b->worker == 0
                   ? NULL : "law 7: a job went back to ready after a cancel request";
    }
    return laws__same(&want, b) ? NULL : "a job does not stand as it was decided";
}

static const char laws_beside[] = "a job was parked beside a worker of its kind";

/* Parked is a job for whose kind nobody lives. */
static const char *laws__parked(const jobq_memory *m, const jobq_job *b, int64_t now_us)
{
    int i;

    for (i = 0; i < m->worker_max && b->run_at_us == JOBQ_NEVER; i++) {
        const jobq_memory_worker *o = &jobq__memory_workers(m)[i];
        if (o->id == 0 || o->dead || o->expires_at_us <= now_us) continue;
        if ((o->kinds >> b->kind & 1) != 0) return laws_beside;
    }
    return NULL;
}

static const char laws_instant[] = "a statement moved a job's instant that it must not change";

/* A job that stays as it is, but for its instant: only an UNPARK of its kind moves that, and the
 * claim that moves a job that is due from its lane into its line. */
static const char *laws__moved(const wire *s, const jobq_job *a, const jobq_job *b, int64_t now_us)
{
    if (a->run_at_us == b->run_at_us) return NULL;
    if (s->request.kind == JOBQ_REQUEST_CLAIM && a->line == 0 && b->line != 0 &&
        a->state == JOBQ_STATE_READY && !a->suspect && a->run_at_us <= now_us) {
        return b->run_at_us == now_us ? NULL : "a job was not moved into its line as of now";
    }
    return s->request.kind == JOBQ_REQUEST_UNPARK && a->kind == s->request.id &&
                   a->run_at_us == JOBQ_NEVER && b->run_at_us <= now_us
               ? NULL : laws_instant;
}

static const char *laws__rescued(const jobq_policy *policy, const wire *s, const jobq_job *a,
                                 const jobq_job *b)
{
    int32_t limit = a->max_attempts > 0 ? a->max_attempts : policy->max_attempts;
    jobq_job want = *a;

    if (a->state != JOBQ_STATE_RUNNING || a->worker != s->request.worker) {
        return "a rescue took a job of someone else";
    }
    want.worker = want.claim = 0;
    want.cancel_requested = false;
    want.state = JOBQ_STATE_READY;
    if (a->cancel_requested) {
        return b->state == JOBQ_STATE_CANCELLED
                   ? NULL : "law 7: a job went back to ready after a cancel request";
    }
    if (a->alone) want.crash++;
    else want.attempt--;
    want.suspect = true;
    want.alone = a->suspect;
    if (a->alone && (want.crash >= policy->max_crashes || a->attempt >= limit)) {
        want.state = JOBQ_STATE_FAILED;
        want.suspect = b->suspect;
        want.alone = b->alone;
    }
    if (laws__same(&want, b)) return NULL;
    return a->alone ? "law 6: a job that ran alone has to answer for its worker's death"
                    : "law 6: a job of a dead worker gets its attempt back, and is a suspect; "
                      "and if it was one, it must run alone";
}

static bool laws__serves(jobq_on_end on_end, jobq_state ended)
{
    if (on_end == JOBQ_ON_ANY) return true;
    return on_end == JOBQ_ON_SUCCESS ? ended == JOBQ_STATE_SUCCEEDED
                                     : ended == JOBQ_STATE_FAILED || ended == JOBQ_STATE_CANCELLED;
}

static const char laws_early[] =
    "law 23: a job that waits was written before what it waits for has ended";

typedef enum laws_fate { LAWS_HELD, LAWS_READY, LAWS_OVER, LAWS_CANCELLED } laws_fate;

/* What the ends of others mean for a job that waits, even if they are not in its edges yet. OVER:
 * an end cancels it. CANCELLED: it is held, and one whose success it waits for was cancelled. An
 * edge that has let it go does not hold it again while it runs, even if its parent is revived. */
static laws_fate laws_fate_of(const jobq_memory *edges, const jobq_memory *ends, int i)
{
    laws_fate fate = LAWS_READY;
    int k;

    for (k = 0; k < JOBQ_MEMORY_EDGES; k++) {
        const jobq_memory_edge *e = &edges->edges[k];
        jobq_state parent;
        if (e->child != i + 1 || (e->ended && !e->holds)) continue;
        parent = jobq__memory_jobs(ends)[e->parent - 1].job.state;
        if (jobq_state_final(parent) && laws__serves(e->on_end, parent)) continue;
        if (jobq_state_final(parent) && e->cascade) return LAWS_OVER;
        if (parent == JOBQ_STATE_CANCELLED) fate = LAWS_CANCELLED;
        else if (fate == LAWS_READY) fate = LAWS_HELD;
    }
    return fate;
}

/* A job that waits as long as nobody revives what failed above it. */
static bool laws_held(const jobq_memory *m, int i)
{
    int k;

    if (jobq__memory_jobs(m)[i].job.state != JOBQ_STATE_WAITING) return false;
    for (k = 0; k < JOBQ_MEMORY_EDGES; k++) {
        const jobq_memory_edge *e = &m->edges[k];
        jobq_state parent;
        if (e->child != i + 1 || (e->ended && !e->holds)) continue;
        parent = jobq__memory_jobs(m)[e->parent - 1].job.state;
        if (jobq_state_final(parent) && e->cascade && !laws__serves(e->on_end, parent))
            return false;
        if (jobq_state_final(parent) && !laws__serves(e->on_end, parent)) return true;
        if (laws_held(m, e->parent - 1)) return true;
    }
    return false;
}

/* A job that waited is ready, because all that it waits for have ended as it wants; or cancelled,
 * because one has ended otherwise, and its edge says so. */
static const char *laws__waited(const jobq_memory *before, const jobq_memory *after, int i)
{
    laws_fate fate = laws_fate_of(before, after, i);
    jobq_state state = jobq__memory_jobs(after)[i].job.state;

    if (state == JOBQ_STATE_CANCELLED && fate == LAWS_OVER) return NULL;
    if (state == JOBQ_STATE_READY && fate == LAWS_READY) return NULL;
    if (state == JOBQ_STATE_READY && fate == LAWS_CANCELLED) {
        return "law 24: a job is ready, but one whose success it waits for was cancelled";
    }
    return laws_early;
}

/* A job that waited is ready: the one that it follows has ended with this statement. */
static const char *laws__followed(const jobq_memory *before, const jobq_memory *after, int i)
{
    int32_t first = jobq__memory_jobs(before)[i].follows;
    jobq_job want = jobq__memory_jobs(before)[i].job;
    bool ended = first > 0 && !jobq_state_final(jobq__memory_jobs(before)[first - 1].job.state) &&
                 jobq_state_final(jobq__memory_jobs(after)[first - 1].job.state);

    if (first == 0) return laws__waited(before, after, i);
    want.state = JOBQ_STATE_READY;
    return ended && laws__same(&want, &jobq__memory_jobs(after)[i].job)
               ? NULL : "a job that waits was written before its predecessor ended";
}

/* An edge is told of an end when there is one, and of the right one, and forgets it only when its
 * parent is revived. */
static const char *laws__edges(const jobq_memory *before, const jobq_memory *after, int64_t *job)
{
    int k;

    for (k = 0; k < JOBQ_MEMORY_EDGES; k++) {
        const jobq_memory_edge *a = &before->edges[k], *b = &after->edges[k];
        jobq_state parent;
        if (a->child == 0 || a->child != b->child || a->parent != b->parent) continue;
        *job = b->child;
        parent = jobq__memory_jobs(after)[b->parent - 1].job.state;
        if (!a->ended && b->ended &&
            (!jobq_state_final(parent) || b->holds == laws__serves(b->on_end, parent))) {
            return "law 23: an edge does not tell how its parent has ended";
        }
        if (a->ended && b->ended && a->holds != b->holds) return "law 23: an edge changed its mind";
        if (a->ended && !b->ended && (jobq_state_final(parent) || !b->holds)) {
            return "law 23: an edge has forgotten the end of its parent";
        }
    }
    return NULL;
}

/* The first law that a statement broke, and whose job; NULL: none. */
static const char *laws_written(const jobq_memory *before, const jobq_memory *after, const wire *s,
                                int64_t now_us, int64_t *job)
{
    const char *wrong = laws__edges(before, after, job);
    bool other = (int)s->request.kind >= JOBQ_REQUEST_COUNT; /* somebody else, about one job */
    int i, taken = 0;

    for (i = 0; i < before->job_count && wrong == NULL; i++) {
        const jobq_job *a = &jobq__memory_jobs(before)[i].job;
        const jobq_job *b = &jobq__memory_jobs(after)[i].job;
        *job = a->id;
        if (laws__same(a, b)) {
            wrong = laws__moved(s, a, b, now_us);
            continue;
        }
        if (a->state == JOBQ_STATE_NONE || (other && a->id == s->request.id)) continue;
        if (a->state == JOBQ_STATE_WAITING) {
            wrong = laws__followed(before, after, i);
            continue;
        }
        switch ((int)s->request.kind) {
        case JOBQ_REQUEST_CLAIM:
            if (jobq__memory_jobs(before)[i].expires_at_us != 0 &&
                jobq__memory_jobs(before)[i].expires_at_us <= now_us) {
                wrong = laws__expired(a, b);
                break;
            }
            wrong = laws__claimed(s, a, b, now_us);
            if (++taken > s->request.limit) wrong = "a claim took more than its limit";
            break;
        case JOBQ_REQUEST_COMPLETE:
        case JOBQ_REQUEST_SETTLE:
            wrong = laws__settled(s, a, b);
            if (wrong == NULL) wrong = laws__parked(after, b, now_us);
            break;
        case JOBQ_REQUEST_RESCUE:
            wrong = laws__rescued(jobq__memory_policy_of(before, a->queue), s, a, b);
            break;
        case JOBQ_REQUEST_RECOVER: /* back where the lost claim took it from */
            if (!jobq_job_holds(a, s->request.worker, s->request.claim) ||
                (b->state == JOBQ_STATE_READY && (b->attempt != a->attempt - 1 || b->worker != 0)))
                wrong = "a recovery gave back what its claim did not take";
            break;
        case JOBQ_REQUEST_SET_ASIDE:
            if (a->id != s->stuck || a->state != JOBQ_STATE_READY ||
                b->state != JOBQ_STATE_FAILED) {
                wrong = "a job was set aside that a claim could take";
            }
            break;
        default: wrong = "a statement changed a job that it must not change";
        }
    }
    return wrong;
}

/* -- messages -- */

/* A look writes nothing. */
static const char *laws__looked(const jobq_memory *before, const jobq_memory *after)
{
    return memcmp(before, after, sizeof *before) == 0 ? NULL : "law 16: a look wrote something";
}

static const char *laws__read(const jobq_memory_partition *a, const jobq_memory_partition *b,
                              const jobq_request *r, bool aside, int64_t now_us)
{
    if (b->cursor.acked != a->cursor.acked + aside) return "law 11: a read acknowledged";
    if (!jobq__memory_holder(b, r->worker, r->claim)) return NULL;
    if (a->holder.worker == 0 || a->holder.worker == r->worker) return NULL;
    return a->lease_until_us < now_us || a->beat_at_us > now_us
               ? NULL : "law 13: a partition was taken while its lease stood";
}

/* Whether a message is, after a statement about partition id, what it was before. A read may number
 * it. It may become a dead letter when it is acknowledged. */
static bool laws__still(const jobq_memory_message *was, const jobq_memory_message *is, int64_t id,
                       int64_t acked)
{
    bool changes = was->partition_id == id;

    return was->partition_id == is->partition_id && was->payload.ptr == is->payload.ptr &&
           (was->seq == is->seq || (changes && was->seq == 0)) &&
           (was->dead == is->dead || (changes && is->seq <= acked));
}

/* Acknowledged messages are gone. All others, and dead letters, are there, in the same order. */
static const char *laws__kept(const jobq_memory *before, const jobq_memory *after, int64_t id)
{
    int64_t acked = after->partitions[id - 1].cursor.acked;
    int i, at = 0;

    for (i = 0; i < JOBQ_MEMORY_MESSAGES && before->messages[i].partition_id != 0; i++) {
        const jobq_memory_message *was = &before->messages[i], *is = &after->messages[at];
        if (laws__still(was, is, id, acked)) {
            if (is->partition_id == id && is->seq != 0 && is->seq <= acked && !is->dead) {
                return "law 11: an acknowledged message was not deleted";
            }
            at++;
        } else if (was->partition_id != id || was->dead || was->seq == 0 || was->seq > acked) {
            return "law 11: a message is gone that was not acknowledged, or lost its turn";
        }
    }
    if (at == JOBQ_MEMORY_MESSAGES || after->messages[at].partition_id == 0) return NULL;
    return "law 11: a message came from nowhere";
}

/* The first law about messages that a statement broke; NULL: none. */
static const char *laws_messages(const jobq_memory *before, const jobq_memory *after,
                                 const wire *s, int64_t now_us)
{
    const jobq_request *p = &s->request;
    const jobq_memory_partition *a, *b;
    const char *wrong;

    if (s->request.kind == JOBQ_REQUEST_LOOK) return laws__looked(before, after);
    if (!wire_of_part(s->request.kind)) return NULL;
    a = &before->partitions[p->partition_id - 1];
    b = &after->partitions[p->partition_id - 1];
    wrong = laws__kept(before, after, p->partition_id);
    if (wrong != NULL) return wrong;
    if (s->request.kind == JOBQ_REQUEST_READ) {
        return laws__read(a, b, p, p->aside && s->answer.reading.aside, now_us);
    }
    if (b->cursor.acked < a->cursor.acked) return "law 10: the cursor ran back";
    if (jobq__memory_holder(a, p->worker, p->claim) &&
        (s->request.kind == JOBQ_REQUEST_RENEW || a->cursor.acked == p->ack.before)) {
        return NULL;
    }
    if (s->answer.error == JOBQ_ERROR_LOST && memcmp(a, b, sizeof *a) == 0 &&
        memcmp(before->messages, after->messages, sizeof before->messages) == 0) {
        return NULL;
    }
    return "law 12: a statement wrote without the token that stands there, or twice";
}

/* A handler's store: it does not keep the reasons of rejections. */
static bool keep_refusal(jobq_delivery *d, int32_t index, jobq_str why)
{
    (void)d;
    (void)index;
    (void)why;
    return true;
}

#endif /* LAWS_INCLUDED */
