/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * store.h -- every operation (call) of a store of jobs and messages as a line of text, for any
 * store.
 *
 *     claim w=1 n=1 l=2                    an operation
 *     ok 1 2                               its answer
 *     1 q1 k1 p0 running 0/1 attempt 1 ... what the store then shows: jobs, workers, claims
 *
 * Behaviours (conform.h) and random runs (test_pg_differential.c) are lists of such lines, so a
 * difference found in a run can be pasted as a behaviour. A store implements only the table below.
 * Parsing, decisions (by jobq_job_decide, from the answer of the claim, as in a worker) and words
 * are here, once for all stores.
 *
 * The test has its own clock, which begins at EPOCH and moves only by `wait d=SECONDS`. Workers,
 * claim numbers and jobs are small numbers. There are queues 1 and 2; kinds 1 and 2 belong to the
 * first, kind 3 to the second. Claims list priorities -1 to 2 and stages 2 to 0 of both queues. The
 * outbox of queue 1 has partitions 0 and 1. Each queue may have lines 1 to 4; only those of queue 1
 * have rules of their own.
 */
#ifndef STORE_INCLUDED
#define STORE_INCLUDED (1)

#include "check.h"
#include "jobq.h"

#define EPOCH ((int64_t)1700000000 * SECOND)
#define LEASE_US (30 * SECOND)
enum { SHOWN = 48, WORKERS = 6, TEXT = 8192, HANDS = 256, LANES = 48, PARTS = 2, LINES = 4 };

typedef struct shown_job {
    jobq_job job;
    char payload[24];
    char why[40]; /* failed by a limit: "Max retries (3) exceeded" */
    int64_t line; /* that it names; job.line: in which it stands */
} shown_job;

typedef struct shown_worker {
    int64_t id, beat, expires_at_us;
    bool dead, asleep;
} shown_worker;

typedef struct shown_claim {
    int64_t worker, number;
} shown_claim;

typedef struct shown_part {
    jobq_cursor cursor;
    int64_t last, worker, claim, lease_until_us, reading, run_at_us;
} shown_part;

typedef struct shown_letter {
    int64_t part, seq, attempts;
} shown_letter;

/* All that a store shows; jobs by id, workers by id, claims by worker and number, dead letters by
 * partition and number. */
typedef struct view {
    int32_t jobs, workers, claims, letters;
    shown_part part[PARTS];
    shown_letter letter[SHOWN];
    shown_job job[SHOWN];
    shown_worker worker[SHOWN];
    shown_claim claim[SHOWN * 4];
} view;

typedef struct taking {
    int64_t worker, number;
    int32_t limit, lane_count, quantum;
    const jobq_lane *lanes;
    uint64_t kinds; /* bits by kind; 0: all */
    bool suspects, alone;
    /* the answer */
    int32_t count;
    jobq_job jobs[SHOWN];
    int64_t due_us; /* empty: until the next job; -1: none */
    bool suspect_ready, alone_ready;
    int32_t walk_count; /* also if jobs came */
    jobq_walk walks[2];
    int32_t ended;      /* late jobs that it has ended, also if jobs came */
} taking;

/* What a heartbeat brings. Sets are bits: jobs to cancel, kinds of its queues that claims spare
 * (kinds 1 and 2 are of queue 1, kind 3 is of queue 2), late workers, queues with a job that must
 * run alone. parked: a kind of this worker has parked jobs. */
typedef struct news {
    bool alive, suspects, parked;
    uint64_t cancel, spared, late, alone;
    int32_t overdue;
} news;

/* A read of a partition, and its answer: as verb_reading's, by letter. */
typedef struct delivered {
    int32_t part, most;
    jobq_holder holder, watched;
    int64_t handed, bytes;
    bool aside;     /* the next message is given up unread ... */
    int64_t before; /* ... if everything up to this is done, and nothing else */
    /* the answer */
    char answer;
    jobq_cursor cursor; /* before this delivery */
    int64_t lost, due_us;
    jobq_holder other;
    int32_t count;
    bool cut;
} delivered;

/* What an acknowledgement writes: the plan, its dead letters, and how much it reads on. */
typedef struct settling {
    const delivered *of;
    int64_t before;
    const jobq_plan *plan;
    const uint8_t *results;
    int32_t given, most;
    int64_t bytes;
    int32_t count; /* the answer: messages read on */
    bool cut;
} settling;

typedef struct store {
    const char *name;
    void (*reset)(void); /* empty, with its queues and kinds */
    void (*policy)(int32_t queue, const jobq_policy *policy, bool paused);
    void (*kind_policy)(int32_t kind, const jobq_policy *whole); /* NULL: as its queue */
    void (*pause)(int32_t kind, bool paused);
    int64_t (*enqueue)(const jobq_job *like, jobq_str payload, int64_t now_us);
    jobq_error (*enroll)(int64_t worker, uint64_t queues, uint64_t kinds, int64_t now_us);
    jobq_error (*claim)(taking *taken, int64_t now_us);
    bool (*recover)(int64_t worker, int64_t number, int32_t limit, int64_t now_us);
    jobq_error (*settle)(const jobq_job *held, const jobq_event *event,
                         const jobq_decision *decision, jobq_str next, int64_t now_us);
    news (*heartbeat)(int64_t worker, const int64_t *settled, int32_t count, int64_t now_us);
    bool (*rescue)(int64_t victim, int64_t beat, int32_t limit, int64_t now_us, int32_t *rescued,
                   bool *more);
    void (*deregister)(int64_t worker, int64_t now_us);
    jobq_error (*cancel)(int64_t job, int64_t now_us);
    jobq_error (*revive)(int64_t job, int64_t now_us);
    void (*after)(int64_t child, int64_t parent, jobq_on_end on_end, bool cascade, int64_t now_us);
    bool (*await)(const jobq_job *held, int64_t parent, jobq_on_end on_end,
                  const jobq_decision *decision, int64_t now_us); /* false: refused */
    int32_t (*unpark)(int32_t kind, int64_t now_us);
    void (*sleep)(int64_t worker, bool asleep, int64_t now_us);
    void (*prune)(int64_t now_us);
    void (*send)(int32_t part, int64_t now_us);
    void (*read)(delivered *r, int64_t now_us);
    jobq_error (*ack)(settling *k, int64_t now_us);
    jobq_error (*renew)(const delivered *r, int64_t now_us);
    void (*look)(view *shown);
    void (*line)(int64_t line, const jobq_line *rules, int64_t until_us, int64_t now_us);
} store;

/* -- a line -- */

/* Arguments are letters: w worker, n claim number, j job, q queue or bits of queues, k kind or bits
 * of kinds, p priority, s stages, d seconds, m attempts, c crashes, l limit, f kinds to take
 * (bits), u suspects, b beats behind, a yes or after (seconds since EPOCH), i after (job), x span.
 * Of a new job: e expires (seconds after it may run).
 * Of edges: i the parent, o the end that serves (jobq_on_end), x cascade. await: by a running job.
 * Of a policy: s snoozes_max, x attempts_span_stages.
 * Of lines: z its number, of a claim the one that its walk begins after; v the quantum of a claim
 * that walks, or a weight; r running_max, s strict, t jobs in ten seconds, g burst, a paused, d
 * held for so many seconds, e no rules.
 * Of messages: p partition, t to take over whom the last read saw, h the claim that was handed out,
 * o results, a digit for each message (jobq_result; none: nobody had them), g the handler has the
 * whole batch, and did c of it, b acknowledged before, l reads on, y bytes of a read. */
typedef struct operation {
    char verb[12];
    int64_t arg[26];
    uint32_t given; /* bit by letter */
} operation;

static inline operation operation_parse(const char *line)
{
    operation d;
    int used = 0;
    char key;
    long long value;

    memset(&d, 0, sizeof d);
    if (sscanf(line, " %11s%n", d.verb, &used) != 1) return d;
    for (line += used; sscanf(line, " %c=%lld%n", &key, &value, &used) == 2; line += used) {
        d.arg[key - 'a'] = value;
        d.given |= 1u << (key - 'a');
    }
    return d;
}

static inline void operation_format(char *out, size_t size, const operation *d)
{
    int at = snprintf(out, size, "%s", d->verb), i;

    for (i = 0; i < 26; i++) {
        if ((d->given >> i & 1) == 0) continue;
        at += snprintf(out + at, size - (size_t)at, " %c=%lld", 'a' + i, (long long)d->arg[i]);
    }
}

static int64_t arg(const operation *d, char key, int64_t otherwise)
{
    return (d->given >> (key - 'a') & 1) != 0 ? d->arg[key - 'a'] : otherwise;
}

/* -- a run of operations on one store -- */

typedef struct stage {
    const store *on;
    int64_t now_us;
    jobq_policy policies[2];
    int32_t limits[4]; /* max_attempts of each kind; 0: as its queue */
    int32_t snoozes[4]; /* snoozes_max, likewise */
    jobq_job hands[HANDS]; /* what claims answered, newest last */
    int32_t hand_count;
    delivered reads[PARTS][WORKERS]; /* of each worker the latest that it holds */
    jobq_holder seen[PARTS];         /* the holder that a read met last */
    bool waited[SHOWN + 1];          /* job i has run and begun to wait, so it is not new */
    char answer[TEXT];
    char shown[TEXT];
    size_t at;
} stage;

static stage *writing;

static void say(const char *format, ...)
{
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(writing->answer + writing->at, TEXT - writing->at, format, args);
    va_end(args);
    writing->at += (size_t)length;
    assert_true(writing->at < TEXT);
}

static inline void stage_open(stage *s, const store *on)
{
    jobq_policy quick;
    int i;

    memset(s, 0, sizeof *s);
    memset(&quick, 0, sizeof quick);
    s->on = on;
    s->now_us = EPOCH;
    on->reset();
    for (i = 0; i < 2; i++) s->policies[i] = jobq_policy_defaults(&quick);
}

static void say_instant(int64_t at_us)
{
    if (at_us == JOBQ_NEVER) say("never");
    else say("%g", (double)(at_us - EPOCH) / 1e6);
}

/* A set of jobs, kinds or workers. */
static void say_bits(const char *word, uint64_t bits)
{
    int i;

    if (bits == 0) return;
    say(" %s", word);
    for (i = 0; i < 64; i++) {
        if ((bits >> i & 1) != 0) say(" %d", i);
    }
}

static void say_jobs(stage *s, const taking *t)
{
    int32_t i;

    for (i = 0; i < t->count; i++) {
        const jobq_job *job = &t->jobs[i];
        say(" %d", (int)job->id);
        if (job->attempt > 1) say("(attempt %d)", (int)job->attempt);
        if (job->suspect) say(job->alone ? "(alone)" : "(suspect)");
        if (s->hand_count < HANDS) s->hands[s->hand_count++] = *job;
    }
}

static void do_enqueue(stage *s, const operation *d)
{
    jobq_job like = jobq_job_new(0);

    like.queue = (int32_t)arg(d, 'q', 1);
    like.kind = (int32_t)arg(d, 'k', like.queue == 1 ? 1 : 3);
    like.priority = (int16_t)arg(d, 'p', 0);
    like.stages = (int16_t)arg(d, 's', 1);
    like.max_attempts = (int32_t)arg(d, 'm', 0);
    like.line = arg(d, 'z', 0);
    like.run_at_us = s->now_us + arg(d, 'd', 0) * SECOND;
    like.expires_us = arg(d, 'e', 0) * SECOND;
    say("%d", (int)s->on->enqueue(&like, jobq_str_from("{\"n\": 1}"), s->now_us));
}

/* Hands of a claim are compared by order where it says so: a claim of one. */
static int by_id(const void *a, const void *b)
{
    const jobq_job *x = (const jobq_job *)a, *y = (const jobq_job *)b;

    return (x->id > y->id) - (x->id < y->id);
}

static void do_claim(stage *s, const operation *d)
{
    static taking t;
    jobq_lane lanes[LANES];
    jobq_error error;
    int16_t priority, queue, n;
    bool walks = (d->given >> ('v' - 'a') & 1) != 0 && arg(d, 'u', 0) == 0;
    int32_t i;

    memset(&t, 0, sizeof t);
    memset(lanes, 0, sizeof lanes);
    for (priority = -1; priority < 3; priority++) {
        for (queue = 1; queue <= 2; queue++) {
            for (n = walks ? 5 : 2; n >= 0; n--) {
                jobq_lane *lane = &lanes[t.lane_count++];
                lane->queue = queue;
                lane->priority = priority;
                lane->stage = walks ? n / 2 : n;
                lane->lined = walks && n % 2 == 1;
                lane->after_at_us = INT64_MIN;
                lane->after_id = arg(d, 'i', 0);
                if ((d->given & 1) != 0) lane->after_at_us = EPOCH + arg(d, 'a', 0) * SECOND;
                if (lane->lined) lane->after_id = arg(d, 'z', 0);
                if ((d->given & 2) == 0) continue;
                lane->until_at_us = lane->lined ? INT64_MAX : EPOCH + arg(d, 'b', 0) * SECOND;
            }
        }
    }
    t.worker = arg(d, 'w', 1);
    t.number = arg(d, 'n', 1);
    t.limit = (int32_t)arg(d, 'l', 1);
    t.quantum = (int32_t)arg(d, 'v', 0);
    t.lanes = lanes;
    t.kinds = (uint64_t)arg(d, 'f', 0);
    t.suspects = arg(d, 'u', 0) != 0;
    t.alone = arg(d, 'u', 0) == 2;
    error = s->on->claim(&t, s->now_us);
    say("%s", jobq_enum_name(JOBQ_ENUM_ERROR, error));
    qsort(t.jobs, (size_t)t.count, sizeof t.jobs[0], by_id);
    say_jobs(s, &t);
    if (t.ended > 0) say(" ended %d", (int)t.ended);
    for (i = 0; i < t.walk_count && error == JOBQ_OK; i++) {
        bool moved = t.walks[i].after != arg(d, 'z', 0);
        bool due = t.walks[i].due_us > 0 && t.count < t.limit; /* a full claim may look further */
        if (moved || due) say(" walk q%d", (int)t.walks[i].queue);
        if (moved) say(" to %d", (int)t.walks[i].after);
        if (due) say(" due %g", (double)t.walks[i].due_us / 1e6);
    }
    if (t.count > 0 || t.ended > 0 || error != JOBQ_OK) return;
    if (t.due_us >= 0) say(" due %g", (double)t.due_us / 1e6);
    if (t.suspect_ready) say(" suspects");
    if (t.alone_ready) say(" alone");
}

/* The job as its holder knows it; made up when nobody was ever given it under this token. */
static jobq_job in_hand(const stage *s, const operation *d)
{
    jobq_job job = jobq_job_new(arg(d, 'j', 1));
    int32_t i;

    for (i = s->hand_count - 1; i >= 0; i--) {
        const jobq_job *h = &s->hands[i];
        if (h->id == job.id && jobq_job_holds(h, arg(d, 'w', 1), arg(d, 'n', 1))) return *h;
    }
    job.state = JOBQ_STATE_RUNNING;
    job.worker = arg(d, 'w', 1);
    job.claim = arg(d, 'n', 1);
    job.attempt = 1;
    job.queue = job.kind = 1;
    return job;
}

static jobq_event_kind event_of(const char *verb)
{
    int i;

    for (i = 1; i < JOBQ_EVENT_COUNT; i++) {
        if (strcmp(verb, jobq_enum_name(JOBQ_ENUM_EVENT, i)) == 0) return (jobq_event_kind)i;
    }
    return JOBQ_EVENT_NONE;
}

/* The policy of a kind, with what it has from its queue. */
static jobq_policy policy_of(const stage *s, int32_t kind)
{
    jobq_policy p = s->policies[kind == 3];

    if (s->limits[kind] > 0) p.max_attempts = s->limits[kind];
    if (s->snoozes[kind] > 0) p.snoozes_max = s->snoozes[kind];
    return p;
}

/* Set by a test: a worker knows of a cancel request as soon as it is made, and of nothing else. A
 * store that decides from its own row does. */
static bool cancels_known;

static bool cancel_known(const stage *s, const jobq_job *job, bool said)
{
    static view v;
    int32_t i;

    if (!cancels_known) return said;
    s->on->look(&v);
    for (i = 0; i < v.jobs; i++) {
        const jobq_job *j = &v.job[i].job;
        if (j->id == job->id && jobq_job_holds(j, job->worker, job->claim)) {
            return j->cancel_requested;
        }
    }
    return said;
}

/* An end of a handler: decided by jobq.h from what its worker knows, written under the token. */
static void do_settle(stage *s, const operation *d, jobq_event_kind kind)
{
    jobq_job job = in_hand(s, d);
    jobq_decision decision;
    jobq_policy policy;
    jobq_event event;
    jobq_str next = {NULL, 0};
    jobq_error error;

    memset(&event, 0, sizeof event);
    event.kind = kind;
    event.delay_us = arg(d, 'd', 0) * SECOND;
    event.delay_named = (d->given >> ('d' - 'a') & 1) != 0;
    event.random = (uint64_t)1 << 63;
    job.cancel_requested = cancel_known(s, &job, arg(d, 'c', 0) != 0);
    policy = policy_of(s, job.kind);
    assert_int_equal(jobq_job_decide(&policy, &job, &event, &decision), JOBQ_OK);
    if (kind == JOBQ_EVENT_SUCCESS && arg(d, 'x', 0) != 0) next = jobq_str_from("{\"n\": 2}");
    error = s->on->settle(&job, &event, &decision, next, s->now_us);
    say("%s", jobq_enum_name(JOBQ_ENUM_ERROR, error));
}

static void do_beat(stage *s, const operation *d)
{
    int64_t settled = arg(d, 'n', 0);
    news n = s->on->heartbeat(arg(d, 'w', 1), &settled, settled != 0, s->now_us);

    say("%s", n.alive ? "ok" : "dead");
    if (!n.alive) return;
    if (n.suspects) say(" suspects");
    say_bits("cancel", n.cancel);
    say_bits("spared", n.spared);
    if (n.parked) say(" parked");
    say_bits("late", n.late);
    say_bits("alone", n.alone);
    if (n.overdue > 0) say(" overdue %d", (int)n.overdue);
}

/* A rescuer has seen the victim's beat; b: that many beats ago. */
static void do_rescue(stage *s, const operation *d)
{
    static view v;
    int64_t beat = 0;
    int32_t rescued = 0, i;
    bool more = false;

    s->on->look(&v);
    for (i = 0; i < v.workers; i++) {
        if (v.worker[i].id == arg(d, 'w', 1)) beat = v.worker[i].beat - arg(d, 'b', 0);
    }
    if (!s->on->rescue(arg(d, 'w', 1), beat, (int32_t)arg(d, 'l', 100), s->now_us, &rescued,
                       &more)) {
        say("alive");
        return;
    }
    say("dead %d%s", (int)rescued, more ? " more" : "");
}

static void do_recover(stage *s, const operation *d)
{
    bool more = s->on->recover(arg(d, 'w', 1), arg(d, 'n', 1), (int32_t)arg(d, 'l', 100),
                               s->now_us);

    say("ok%s", more ? " more" : "");
}

/* Of a queue, or of a kind: then only m. */
static void do_policy(stage *s, const operation *d)
{
    jobq_policy p;
    int32_t queue = (int32_t)arg(d, 'q', 1), kind = (int32_t)arg(d, 'k', 0);

    memset(&p, 0, sizeof p);
    p.max_attempts = (int32_t)arg(d, 'm', 0);
    p.max_crashes = (int32_t)arg(d, 'c', 0);
    p.snoozes_max = (int32_t)arg(d, 's', 0);
    p.attempts_span_stages = arg(d, 'x', 0) != 0;
    if (kind > 0) {
        s->limits[kind] = p.max_attempts;
        s->snoozes[kind] = p.snoozes_max;
    } else s->policies[queue - 1] = jobq_policy_defaults(&p);
    if (kind == 0) s->on->policy(queue, &s->policies[queue - 1], arg(d, 'a', 0) != 0);
    for (kind = 1; kind <= 3; kind++) {
        p = policy_of(s, kind);
        s->on->kind_policy(kind, s->limits[kind] > 0 || s->snoozes[kind] > 0 ? &p : NULL);
    }
    say("ok");
}

/* -- messages -- */

static void say_messages(const jobq_cursor *cursor, int32_t count, bool cut)
{
    int64_t seq = cursor->acked + 1, end = seq + count;

    for (; seq < end; seq++) {
        say(" %d", (int)seq);
        if (jobq_cursor_attempts(cursor, seq) > 0) say("(%d)", jobq_cursor_attempts(cursor, seq));
    }
    if (cut) say(" cut");
}

static void do_read(stage *s, const operation *d)
{
    static const jobq_holder nobody;
    int32_t part = (int32_t)arg(d, 'p', 0);
    delivered r;

    memset(&r, 0, sizeof r);
    r.part = part;
    r.holder.worker = arg(d, 'w', 1);
    r.holder.claim = arg(d, 'n', 1);
    r.holder.lease_us = LEASE_US;
    r.watched = arg(d, 't', 0) != 0 ? s->seen[part] : nobody;
    r.handed = arg(d, 'h', 0);
    r.most = (int32_t)arg(d, 'l', 9);
    r.bytes = arg(d, 'y', 1000000);
    r.aside = strcmp(d->verb, "aside") == 0;
    r.before = arg(d, 'b', 0);
    s->on->read(&r, s->now_us);
    if (r.answer == 'o') s->seen[part] = r.other;
    if (r.answer == 'h') s->reads[part][r.holder.worker % WORKERS] = r;
    if (r.answer == 'h') say("held");
    if (r.answer == 'h' && r.lost > 0) say(" lost %d", (int)r.lost);
    if (r.answer == 'h') say_messages(&r.cursor, r.count, r.cut);
    if (r.answer == 'a') say("aside");
    if (r.answer == 'o') say("other w%d n%d", (int)r.other.worker, (int)r.other.claim);
    if (r.answer == 'w') say("due %g", (double)r.due_us / 1e6);
    if (r.answer == 'i') say("idle");
    if (r.answer == 'b') say("busy");
}

/* A handler's script: a digit for each message; of a batch, one, and how much of it was done. */
typedef struct part_script {
    char digits[24];
    int32_t done; /* -1: it does not say */
} part_script;

static jobq_result scripted(jobq_delivery *delivery, const jobq_message *message)
{
    const char *digits = ((const part_script *)delivery->user)->digits;
    size_t i = (size_t)(message - delivery->messages);

    return (jobq_result)(i < strlen(digits) ? digits[i] - '0' : JOBQ_RESULT_SUCCESS);
}

static jobq_result scripted_batch(jobq_delivery *delivery)
{
    const part_script *s = (const part_script *)delivery->user;

    if (s->done >= 0) jobq_delivery_done(delivery, s->done);
    return (jobq_result)(s->digits[0] - '0');
}

static bool kept(jobq_delivery *delivery, int32_t index, jobq_str why)
{
    (void)delivery, (void)index, (void)why;
    return true;
}

static int never_stopping(const jobq_delivery *delivery, int64_t *remaining_us)
{
    (void)delivery;
    *remaining_us = JOBQ_NEVER;
    return JOBQ_STOP_NONE;
}

/* Runs the script on what was read, as a worker runs its handler; returns how many it gave. */
static int32_t play(const operation *d, const jobq_policy *policy, const delivered *r,
                    jobq_verdict *verdict, uint8_t *results)
{
    static const jobq_delivery_store plays = {kept, never_stopping, NULL, NULL};
    static jobq_message messages[SHOWN];
    part_script plan;
    jobq_delivery delivery;
    bool group = arg(d, 'g', 0) != 0;
    int32_t given = jobq__outbox_open(policy, &r->cursor, r->lost, r->count, results);

    memset(verdict, 0, sizeof *verdict);
    verdict->count = r->count;
    verdict->size = jobq__cursor_size(&r->cursor, r->most, r->lost);
    verdict->result = JOBQ_RESULT_SUCCESS;
    if (given == 0) return 0;
    if ((d->given >> ('o' - 'a') & 1) == 0) {
        memset(results, JOBQ_RESULT_LEFT, (size_t)r->count);
        verdict->result = JOBQ_RESULT_LEFT;
        return 0;
    }
    snprintf(plan.digits, sizeof plan.digits, "%lld", (long long)arg(d, 'o', 1));
    plan.done = (int32_t)arg(d, 'c', -1);
    memset(&delivery, 0, sizeof delivery);
    delivery.messages = messages;
    delivery.count = given;
    delivery.user = &plan;
    delivery.results = results;
    delivery.store = &plays;
    jobq_delivery_run(&delivery, group ? NULL : scripted, group ? scripted_batch : NULL, verdict);
    return given;
}

/* An acknowledgement, planned by jobq.h from what its worker knows, written under the token. */
static void do_ack(stage *s, const operation *d)
{
    const jobq_policy *policy = &s->policies[0];
    delivered *r = &s->reads[arg(d, 'p', 0)][arg(d, 'w', 1) % WORKERS], was = *r;
    jobq_tuning tuning = jobq_tuning_defaults(NULL);
    uint8_t results[SHOWN];
    jobq_verdict verdict;
    jobq_plan plan;
    settling k;
    jobq_error error;

    assert_true(r->count > 0);
    memset(&k, 0, sizeof k);
    was.holder.claim = arg(d, 'n', was.holder.claim);
    k.of = &was;
    k.given = play(d, policy, &was, &verdict, results);
    k.results = results;
    k.plan = &plan;
    k.before = arg(d, 'b', was.cursor.acked);
    jobq_outbox_plan(policy, &tuning, &was.cursor, &verdict, results, (uint64_t)1 << 63, &plan);
    if (plan.directive.kind != JOBQ_DIRECTIVE_SLEEP && arg(d, 'l', 0) > 0)
        k.most = jobq__cursor_size(&plan.cursor, (int32_t)arg(d, 'l', 0), 0);
    k.bytes = arg(d, 'y', 1000000);
    error = s->on->ack(&k, s->now_us);
    say("%s", jobq_enum_name(JOBQ_ENUM_ERROR, error));
    if (error != JOBQ_OK || k.count == 0) return;
    r->cursor = plan.cursor;
    r->lost = 0;
    r->count = k.count;
    say_messages(&plan.cursor, k.count, k.cut);
}

static bool do_message(stage *s, const operation *d)
{
    int32_t part = (int32_t)arg(d, 'p', 0);
    delivered r;

    if (strcmp(d->verb, "send") == 0) {
        s->on->send(part, s->now_us);
        say("ok");
    } else if (strcmp(d->verb, "read") == 0 || strcmp(d->verb, "aside") == 0) {
        do_read(s, d);
    } else if (strcmp(d->verb, "ack") == 0) {
        do_ack(s, d);
    } else if (strcmp(d->verb, "renew") == 0) {
        r = s->reads[part][arg(d, 'w', 1) % WORKERS];
        r.part = part;
        r.holder.worker = arg(d, 'w', 1);
        r.holder.claim = arg(d, 'n', r.holder.claim);
        r.holder.lease_us = LEASE_US;
        say("%s", jobq_enum_name(JOBQ_ENUM_ERROR, s->on->renew(&r, s->now_us)));
    } else {
        return false;
    }
    return true;
}

/* Job j waits for job i, too: j must be new, and the younger one. */
static void do_after(stage *s, int64_t j, int64_t i, jobq_on_end on_end, bool cascade)
{
    static view v;
    const jobq_job *child = NULL, *parent = NULL;
    int at;

    s->on->look(&v);
    for (at = 0; at < v.jobs; at++) {
        if (v.job[at].job.id == j) child = &v.job[at].job;
        if (v.job[at].job.id == i) parent = &v.job[at].job;
    }
    if (child == NULL || parent == NULL || i >= j || child->suspect || child->attempt > 0 ||
        child->stage > 0 || s->waited[j] ||
        (child->state != JOBQ_STATE_READY && child->state != JOBQ_STATE_WAITING)) {
        say("refused");
        return;
    }
    /* Who waits for a failure is cancelled when that cannot come any more. */
    s->on->after(j, i, on_end, cascade || on_end == JOBQ_ON_FAILURE, s->now_us);
    say("ok");
}

/* Job j waits for job i, and so ends its attempt: j must run under this token, and not be asked to
 * cancel. */
static void do_await(stage *s, const operation *d)
{
    static view v;
    const jobq_job *child = NULL;
    int64_t i = arg(d, 'i', 1), j = arg(d, 'j', 1);
    jobq_on_end on_end = (jobq_on_end)(arg(d, 'o', 0) % 3);
    jobq_decision decision;
    jobq_policy policy;
    jobq_event event;
    int at;

    s->on->look(&v);
    for (at = 0; at < v.jobs; at++) {
        if (v.job[at].job.id == j) child = &v.job[at].job;
    }
    if (child == NULL || i > v.jobs || i == j || child->cancel_requested ||
        !jobq_job_holds(child, arg(d, 'w', 1), arg(d, 'n', 1))) {
        say("invalid");
        return;
    }
    s->waited[j] = true;
    memset(&event, 0, sizeof event);
    event.kind = JOBQ_EVENT_WAIT;
    policy = policy_of(s, child->kind);
    assert_int_equal(jobq_job_decide(&policy, child, &event, &decision), JOBQ_OK);
    say(s->on->await(child, i, on_end, &decision, s->now_us) ? "ok" : "invalid");
}

static bool do_plain(stage *s, const operation *d)
{
    int64_t j = arg(d, 'j', 1), w = arg(d, 'w', 1);

    if (strcmp(d->verb, "register") == 0) {
        uint64_t queues = (uint64_t)arg(d, 'q', 6), kinds = (uint64_t)arg(d, 'k', 14);
        if ((queues & 2) == 0) kinds &= ~(uint64_t)6; /* kinds of its own queues only */
        if ((queues & 4) == 0) kinds &= ~(uint64_t)8;
        say("%s", jobq_enum_name(JOBQ_ENUM_ERROR, s->on->enroll(w, queues, kinds, s->now_us)));
    } else if (strcmp(d->verb, "cancel") == 0) {
        say("%s", jobq_enum_name(JOBQ_ENUM_ERROR, s->on->cancel(j, s->now_us)));
    } else if (strcmp(d->verb, "revive") == 0) {
        say("%s", jobq_enum_name(JOBQ_ENUM_ERROR, s->on->revive(j, s->now_us)));
    } else if (strcmp(d->verb, "after") == 0) {
        do_after(s, j, arg(d, 'i', 1), (jobq_on_end)(arg(d, 'o', 0) % 3), arg(d, 'x', 0) != 0);
    } else if (strcmp(d->verb, "await") == 0) {
        do_await(s, d);
    } else if (strcmp(d->verb, "unpark") == 0) {
        say("%d", (int)s->on->unpark((int32_t)arg(d, 'k', 1), s->now_us));
    } else if (strcmp(d->verb, "leave") == 0) {
        s->on->deregister(w, s->now_us);
        say("ok");
    } else if (strcmp(d->verb, "sleep") == 0) {
        s->on->sleep(w, arg(d, 'a', 1) != 0, s->now_us);
        say("ok");
    } else if (strcmp(d->verb, "pause") == 0 || strcmp(d->verb, "resume") == 0) {
        s->on->pause((int32_t)arg(d, 'k', 1), d->verb[0] == 'p');
        say("ok");
    } else if (strcmp(d->verb, "prune") == 0) {
        s->on->prune(s->now_us);
        say("ok");
    } else {
        return false;
    }
    return true;
}

/* Of queue 1; z=0: what its lines have that have no rules of their own. */
static void do_line(stage *s, const operation *d)
{
    jobq_line rules;
    bool all = arg(d, 'z', 0) == 0;

    memset(&rules, 0, sizeof rules);
    rules.running_max = (int32_t)arg(d, 'r', 0);
    rules.weight = (int32_t)(all ? 1 : arg(d, 'v', 1));
    rules.strict = arg(d, 's', 0) != 0;
    rules.paused = !all && arg(d, 'a', 0) != 0;
    rules.rate.count = (int32_t)arg(d, 't', 0);
    if (rules.rate.count > 0) rules.rate.us = 10 * SECOND;
    rules.rate.burst = (int32_t)arg(d, 'g', 1);
    s->on->line(arg(d, 'z', 0), arg(d, 'e', 0) != 0 ? NULL : &rules,
                arg(d, 'd', 0) > 0 ? s->now_us + arg(d, 'd', 0) * SECOND : 0, s->now_us);
    say("ok");
}

static void show_job(const shown_job *shown)
{
    const jobq_job *job = &shown->job;

    say("%d q%d k%d p%d %s %d/%d attempt %d", (int)job->id, (int)job->queue, (int)job->kind,
        job->priority, jobq_enum_name(JOBQ_ENUM_STATE,
                                      job->state), job->stage, job->stages, (int)job->attempt);
    if (job->crash > 0) say(" crash %d", (int)job->crash);
    if (job->snoozes > 0 && job->state != JOBQ_STATE_SUCCEEDED &&
        job->state != JOBQ_STATE_CANCELLED) /* history does not keep them */
        say(" snoozes %d", (int)job->snoozes);
    if (job->suspect) say(job->alone ? " alone" : " suspect");
    if (job->cancel_requested) say(" cancel");
    if (job->state == JOBQ_STATE_RUNNING) say(" w%d n%d", (int)job->worker, (int)job->claim);
    say(" at ");
    say_instant(job->run_at_us);
    if (strcmp(shown->payload, "{\"n\": 1}") != 0) say(" %s", shown->payload);
    if (shown->line != 0) say(" %sline %d", job->line != 0 ? "in " : "", (int)shown->line);
    if (shown->why[0] != '\0') say(" %s", shown->why);
    say("\n");
}

static void show_part(const stage *s, int number, const shown_part *p)
{
    int i;

    say("part %d acked %d of %d", number, (int)p->cursor.acked, (int)p->last);
    for (i = 0; i < p->cursor.tried_count; i++) {
        say("%s %d", i == 0 ? " tried" : "", (int)p->cursor.tried[i]);
    }
    if (p->worker != 0) {
        say(" w%d n%d to %d until ", (int)p->worker, (int)p->claim, (int)p->reading);
        say_instant(p->lease_until_us);
    }
    if (p->cursor.mode.failures > 0) say(" failures %d", (int)p->cursor.mode.failures);
    if (p->cursor.mode.effective > 0) say(" size %d", (int)p->cursor.mode.effective);
    if (p->cursor.mode.successes > 0) say(" successes %d", (int)p->cursor.mode.successes);
    if (p->run_at_us > s->now_us) {
        say(" at ");
        say_instant(p->run_at_us);
    }
    say("\n");
}

/* All that the store shows, into s->shown. */
static inline void show(stage *s)
{
    static view v;
    int32_t i;

    memset(&v, 0, sizeof v);
    s->on->look(&v);
    writing = s;
    s->at = 0;
    for (i = 0; i < v.jobs; i++) show_job(&v.job[i]);
    for (i = 0; i < v.workers; i++) {
        const shown_worker *w = &v.worker[i];
        say("worker %d beat %d%s%s expires ", (int)w->id, (int)w->beat, w->dead ? " dead" : "",
            w->asleep ? " asleep" : "");
        say_instant(w->expires_at_us);
        say("\n");
    }
    for (i = 0; i < v.claims; i++) {
        say("claim w%d n%d\n", (int)v.claim[i].worker, (int)v.claim[i].number);
    }
    for (i = 0; i < PARTS; i++) show_part(s, i, &v.part[i]);
    for (i = 0; i < v.letters; i++) {
        say("dead %d:%d attempts %d\n", (int)v.letter[i].part, (int)v.letter[i].seq,
            (int)v.letter[i].attempts);
    }
    memcpy(s->shown, s->answer, s->at + 1);
    s->shown[s->at] = '\0';
}

/* One line of what the store shows, a job's or a partition's, or all dead letters; "none". */
static void do_see(stage *s, const operation *d)
{
    bool dead = (d->given >> ('d' - 'a') & 1) != 0, part = (d->given >> ('p' - 'a') & 1) != 0;
    char want[16], *line, *next;

    show(s);
    s->at = 0;
    s->answer[0] = '\0';
    if (dead) snprintf(want, sizeof want, "dead ");
    else snprintf(want, sizeof want, part ? "part %d " : "%d ", (int)arg(d, part ? 'p' : 'j', 1));
    for (line = s->shown; *line != '\0'; line = next) {
        next = line + strcspn(line, "\n") + 1;
        if (strncmp(line, want, strlen(want)) != 0) continue;
        say("%s%.*s", s->at > 0 ? ", " : "", (int)(next - line - 1), line);
    }
    if (s->at == 0) say("none");
}

/* Does an operation; its answer is in s->answer. */
static inline void stage_do(stage *s, const operation *d)
{
    jobq_event_kind kind = event_of(d->verb);

    writing = s;
    s->at = 0;
    s->answer[0] = '\0';
    if (strcmp(d->verb, "wait") == 0) s->now_us += arg(d, 'd', 1) * SECOND;
    else if (strcmp(d->verb, "enqueue") == 0) do_enqueue(s, d);
    else if (strcmp(d->verb, "claim") == 0) do_claim(s, d);
    else if (strcmp(d->verb, "recover") == 0) do_recover(s, d);
    else if (strcmp(d->verb, "beat") == 0) do_beat(s, d);
    else if (strcmp(d->verb, "rescue") == 0) do_rescue(s, d);
    else if (strcmp(d->verb, "policy") == 0) do_policy(s, d);
    else if (strcmp(d->verb, "see") == 0) do_see(s, d);
    else if (strcmp(d->verb, "line") == 0) do_line(s, d);
    else if (do_plain(s, d) || do_message(s, d)) return;
    else if (kind != JOBQ_EVENT_NONE) do_settle(s, d, kind);
    else fail_msg("no such operation: %s", d->verb);
}

#endif /* STORE_INCLUDED */
