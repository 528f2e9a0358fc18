/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * simulate.c -- simulates hours of a busy queue in seconds: many workers, one seed.
 *
 * Each worker is a real jobq_loop with a drifting clock and a connection of its own to one
 * jobq_memory. Statements take time. Connections are cut or fall silent, and their statement is
 * executed, or not, or much later. Processes are stopped, crash and start again. The store's clock
 * steps. Producers enqueue; operators cancel, revive, pause and change policies; some jobs kill
 * their worker. Other transactions write messages for the partitions of an outbox
 * (simulate_outbox.h), which the same workers relay. Virtual time jumps from event to event.
 *
 * Everything that happens follows from the seed. To prove it, each worker is recorded, and its
 * recording replayed: nothing else may have an influence on what it does. Every fourth seed is run
 * twice, and both runs must be the same. If something breaks, the recordings stay in .build/.
 *
 * After the last fault every job must end within a bound, no job starves within its lane, and all
 * messages are acknowledged. Then the seed runs a second world, whose server fails in other ways
 * (simulate_ill.h), and worlds with 1,000 random graphs of jobs that wait for others
 * (simulate_graphs.h).
 *
 *     simulate [--seed N] [--seeds N] [--hours H] [--ill | --graphs] [--once] [--verbose]
 *
 * --ill, --graphs: only these worlds.
 */
#define JOBQ_LOOP_SLOTS 64
#define JOBQ_LOOP_CLAIMS 128
#define JOBQ_LOOP_QUEUES 3
#define JOBQ_LOOP_THREADS 8
#define JOBQ_LOOP_KINDS 8
#define JOBQ_LOOP_WATCHED 32
#define JOBQ_LOOP_PARTITIONS 12 /* fewer than there are */
#define JOBQ_LOOP_BATCH 8
#define JOBQ_LOOP_LANES 24
#define JOBQ_TALLY_KINDS 4
#define JOBQ_STRAYS_MAX 8
#define JOBQ_MEMORY_PARTITIONS 60
#define JOBQ_MEMORY_MESSAGES 256
#define JOBQ_MEMORY_EDGES 320

static void simulate_assert(const char *text);
#define JOBQ_ASSERT(x) ((x) ? (void)0 : simulate_assert(#x))
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "recorded.h"
#include "model.h"

#define WIRE_PRIORITY 2
#include "wire.h"
#include "laws.h"
static void violate(const char *format, ...);
#define LATE violate
#include "told.h"
#include "../../examples/jobq/story.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MS ((int64_t)1000)
#define SECOND ((int64_t)1000000)
#define HOUR (3600 * SECOND)
enum { NODES = 24, JOBS = 1000, ROWS = 192, CLAIM_ROWS = 2048, FLIGHT = 24, ZOMBIES = 64 };
enum { QUEUE_BITS = 14, KIND_CRASHING = 5, KIND_RARE = 4, KINDS = 5, TRACE = 60 };
enum { RUSH = JOBS * 4 / 10 }; /* jobs that come when the faults have stopped */
enum { OUTBOX = 3, PARTITIONS = JOBQ_MEMORY_PARTITIONS, MAILS = 3000, COMMITS = 4 * NODES };
enum { SOME_PARTITIONS = 16 };

#define FAULTS(X)                                                                                  \
    X(CRASH, "crashes")                                                                            \
    X(CUT, "cut connections")                                                                      \
    X(SILENCE, "silent connections")                                                               \
    X(PAUSE, "paused processes")                                                                   \
    X(OUTAGE, "outages of the store")                                                              \
    X(STEP, "clock steps")                                                                         \
    X(REFUSE, "refused statements")                                                                \
    X(BUSY, "locked rows")                                                                         \
    X(SHUTDOWN, "shutdowns")                                                                       \
    X(LATE, "statements executed late")                                                            \
    X(ANSWER, "answers lost")

typedef enum fault {
#define X(id, text) FAULT_##id,
    FAULTS(X)
#undef X
        FAULT_COUNT
} fault;

static const char *const fault_texts[] = {
#define X(id, text) text,
    FAULTS(X)
#undef X
};

typedef enum event_kind {
    EVENT_STEP,
    EVENT_EXECUTE,
    EVENT_ANSWER,
    EVENT_GHOST,
    EVENT_HANDLED,
    EVENT_CRASHES,
    EVENT_DELIVERED,
    EVENT_COMMIT,
    EVENT_COMMITTED,
    EVENT_WRITE,
    EVENT_SEND,
    EVENT_START,
    EVENT_RESUME,
    EVENT_PRODUCE,
    EVENT_OPERATE,
    EVENT_FAULT,
    EVENT_UNHOLD,
    EVENT_STOPPED,
    EVENT_AFFLICT,
    EVENT_BURST,
    EVENT_BURST_SENT,
    EVENT_FAREWELL,
    EVENT_GRAPH,
    EVENT_TOUCH
} event_kind;

/* Of a server: it executes nothing, refuses everything, or its answers do not arrive. */
typedef enum mood { MOOD_WELL, MOOD_SILENT, MOOD_ERRORS, MOOD_DEAF } mood;

typedef struct event {
    int64_t at, order;
    event_kind kind;
    int32_t node, arg;
    uint32_t life, generation; /* of the process or connection that it belongs to */
} event;

typedef struct packet {
    wire wire;
    int64_t sent_us, execute_us, answer_us; /* true time */
} packet;

typedef struct node {
    uint32_t life, line; /* count the processes and the connections */
    int64_t base_us, drift_ppm;
    int64_t step_us;     /* the wake-up that is planned */
    int64_t last_worker, last_number;
    int64_t renewed_us;  /* true time of the last accepted heartbeat */
    int64_t rest_us;     /* what it has added to the lease */
    uint64_t kinds;
    int32_t flying;
    bool up, paused, silent;
    packet flight[FLIGHT];
    jobq_loop loop;
    jobq_recorder *recorder; /* NULL: it is not recorded */
} node;

/* What the simulator remembers about a job. */
typedef struct tale {
    int64_t due_us;                /* claimable since, true time; -1: is not */
    int64_t passed_us[NODES];      /* first passed over by this worker's claim; -1: not */
    uint32_t passed_life[NODES];
    int64_t starved_us;            /* first passed over by anyone since the faults stopped */
    int64_t abandoned_us;          /* held since by a worker that is dead; -1: not */
    char nature;                   /* in a world whose server is ill */
} tale;

/* ... and about a message. */
typedef struct mail {
    int32_t partition, begun; /* begun: handlers that had it */
    int32_t had;              /* deliveries that count as attempts */
    int64_t bytes;
    int32_t size, size_before; /* of the latest delivery that it was read in, and the one before */
    char nature;
    bool committed, handled, dead, seen;
    bool unlucky; /* alone in the latest delivery, which nobody finished */
} mail;

/* A handler's own transaction, about to commit an acknowledgement. */
typedef struct commit {
    bool used;
    uint32_t generation;
    wire wire;
} commit;

typedef struct summary {
    int64_t virtual_us, jobs, succeeded, failed, cancelled, rescued, statements, longest_us;
    int64_t messages, rolled_back, delivered, redelivered, dead, taken_over, abandoned, unknown;
    int64_t faults[FAULT_COUNT];
    int64_t starved_us[2]; /* longest that a job, a suspect was passed over by younger ones */
    int64_t illnesses, aside, refused, left, stops, graphs, held, together;
    int64_t still_us, waited_us; /* longest without the end of a job, with a partition unread */
} summary;

typedef struct world {
    uint64_t seed, hash;
    jobq_random random;
    int64_t now_us, offset_us, calm_us, outage_us, bound_us, order;
    int32_t event_count, event_max, zombies, crashing;
    bool calm, pure; /* pure: no faults but one bad job among a thousand */
    bool young;      /* pure, but many jobs crash: processes start again at once, and die young */
    bool limits;     /* each worker has a kind of which it runs one job at a time */
    bool ill, crowd, farewell; /* simulate_ill.h */
    bool waits;                /* simulate_graphs.h */
    int32_t graphs;
    mood mood;
    jobq_error ill_error;
    int64_t ill_until, rate;   /* rate: bytes a second; 0: any */
    int64_t disturbed_us, job_ended_us, no_jobs_us, left_before, may_read_us;
    int64_t served_us[PARTITIONS];
    int32_t heavy;             /* messages that are too large to arrive */
    jobq_loop_config config;
    jobq_loop_served served;
    event *events;
    tale tales[JOBS];
    mail mails[MAILS];
    commit commits[COMMITS];
    int32_t mail_count, partitions, attempts, sent_count[PARTITIONS];
    int32_t sent[PARTITIONS][MAILS]; /* the committed messages of each partition, in order */
    int64_t held_us[PARTITIONS];     /* when its holder changed or moved, true time */
    bool taken[PARTITIONS];          /* from another worker, and no handler survived it since */
    int64_t own;                     /* permille of deliveries that acknowledge by themselves */
    wire ghosts[ZOMBIES];
    int32_t ghost_used[ZOMBIES];
    node nodes[NODES];
    summary sum;
    char *trace[TRACE];
    int64_t lines;
} world;

static world *w;
static jobq_memory *store;
static jobq_memory *before;
static char broken[512];
static bool verbose;
static int node_count;

static void violate(const char *format, ...)
{
    va_list args;

    if (broken[0] != '\0') return;
    va_start(args, format);
    vsnprintf(broken, sizeof broken, format, args);
    va_end(args);
}

static void replay_hint(void);

static void simulate_assert(const char *text)
{
    violate("assertion of jobq.h: %s", text);
    replay_hint();
    exit(1);
}

/* ---- recordings ------------------------------------------------------------------------------ */

static int64_t mono_us(const node *d);
static int64_t store_us(void);

static char *recordings[NODES]; /* their memory */
static int64_t replayed;        /* entries */

static jobq_recorder *recorder_of(const jobq_loop *loop)
{
    int n;

    for (n = 0; n < node_count; n++)
        if (&w->nodes[n].loop == loop) return w->nodes[n].recorder;
    return NULL;
}

/* What a worker has done is replayed, and from here on it is recorded anew. */
static void replay(int n, bool goes_on)
{
    node *d = &w->nodes[n];
    size_t size = jobq_recorder_size(0);
    const char *why = NULL;
    int64_t entries = 0;

    if (d->recorder != NULL) why = recorded_same(d->recorder, size, &d->loop, &entries);
    if (why != NULL) violate("law 26: worker %d, replayed: %s", n, why);
    replayed += entries;
    if (broken[0] != '\0') return; /* it is kept */
    d->recorder = NULL;
    if (!goes_on) return;
    if (recordings[n] == NULL) recordings[n] = (char *)malloc(size);
    if (recordings[n] == NULL) abort();
    d->recorder = jobq_recorder_init(recordings[n], size, &d->loop, mono_us(d), store_us());
}

/* The recordings of the workers that live. */
static void keep_recordings(void)
{
    char name[64];
    FILE *file;
    int n;

    for (n = 0; n < node_count; n++) {
        if (w->nodes[n].recorder == NULL) continue;
        snprintf(name, sizeof name, ".build/simulate-worker-%d.rec", n);
        file = fopen(name, "wb");
        if (file == NULL) return;
        fwrite(recordings[n], 1, jobq_recorder_size(0), file);
        fclose(file);
    }
    printf("What worker N did: make replay FILE=.build/simulate-worker-N.rec ARGS=--story\n");
}

/* ---- chance, time, trace --------------------------------------------------------------------- */

static int64_t between(int64_t low, int64_t high)
{
    return jobq_random_between(jobq_random_next(&w->random), low, high);
}

static bool chance(int64_t permille) { return between(0, 999) < permille; }

/* Anything may happen at any time. */
static bool rough(void) { return !w->calm && !w->pure && !w->ill; }

static int64_t store_us(void) { return 1700000000 * SECOND + w->now_us + w->offset_us; }

static int64_t mono_us(const node *d)
{
    return d->base_us + w->now_us + w->now_us / 1000000 * d->drift_ppm;
}

/* The true time at which a node's clock shows an instant. */
static int64_t true_us(const node *d, int64_t mono)
{
    int64_t shown = mono - d->base_us;
    int64_t at;

    if (mono == JOBQ_NEVER || shown > 1000000 * HOUR) return JOBQ_NEVER;
    at = shown - shown / 1000000 * d->drift_ppm;
    while (at + at / 1000000 * d->drift_ppm < shown) at += 100;
    return at;
}

static void trace(const char *format, ...)
{
    char **line = &w->trace[w->lines++ % TRACE];
    va_list args;
    const char *p;
    int at;

    if (*line == NULL) *line = (char *)malloc(200);
    if (*line == NULL) abort();
    at = snprintf(*line, 200, "%14.6f  ", (double)w->now_us / 1e6);
    va_start(args, format);
    vsnprintf(*line + at, (size_t)(200 - at), format, args);
    va_end(args);
    for (p = *line; *p != '\0'; p++) w->hash = (w->hash ^ (unsigned char)*p) * 0x100000001b3u;
    if (verbose) printf("%s\n", *line);
}

static void replay_hint(void)
{
    int64_t i;

    printf("\nVIOLATION after %.1f s: %s\nThe last events:\n\n", (double)w->now_us / 1e6, broken);
    for (i = w->lines > TRACE ? w->lines - TRACE : 0; i < w->lines; i++) {
        printf("%s\n", w->trace[i % TRACE]);
    }
    printf("\nReplay: make simulate ARGS=\"--seed %llu --verbose\"\n", (unsigned long long)w->seed);
    keep_recordings();
    fflush(stdout);
}

/* ---- events: a heap by (at, order) ----------------------------------------------------------- */

static bool sooner(const event *a, const event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static event *plan(int64_t at, event_kind kind, int32_t n)
{
    event e;
    int32_t i, up;

    if (w->event_count == w->event_max) {
        w->event_max = w->event_max * 2 + 1024;
        w->events = (event *)realloc(w->events, (size_t)w->event_max * sizeof *w->events);
        if (w->events == NULL) abort();
    }
    memset(&e, 0, sizeof e);
    e.at = at < w->now_us ? w->now_us : at;
    e.order = w->order++;
    e.kind = kind;
    e.node = n;
    if (n >= 0) e.life = w->nodes[n].life;
    for (i = w->event_count++; i > 0; i = up) {
        up = (i - 1) / 2;
        if (!sooner(&e, &w->events[up])) break;
        w->events[i] = w->events[up];
    }
    w->events[i] = e;
    return &w->events[i]; /* until the next call */
}

static event next_event(void)
{
    event first = w->events[0], last = w->events[--w->event_count];
    int32_t i = 0, down;

    for (;; i = down) {
        down = 2 * i + 1;
        if (down >= w->event_count) break;
        if (down + 1 < w->event_count && sooner(&w->events[down + 1], &w->events[down])) down++;
        if (!sooner(&w->events[down], &last)) break;
        w->events[i] = w->events[down];
    }
    w->events[i] = last;
    return first;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static jobq_job *job_of(int64_t id) { return &jobq__memory_jobs(store)[id - 1].job; }

static node *owner(int64_t worker)
{
    int n;

    for (n = 0; n < node_count; n++) {
        if (w->nodes[n].up && worker != 0 && w->nodes[n].loop.worker == worker) return &w->nodes[n];
    }
    return NULL;
}

/* A worker that may run a job by its own clock must hold it in the store, and must not hold more
 * jobs of a kind than its limit. */
static void check_hands(int n)
{
    const node *d = &w->nodes[n];
    int held[64] = {0}, i;

    for (i = 0; i < JOBQ_LOOP_SLOTS && mono_us(d) < d->loop.lease.end_mono_us; i++) {
        const jobq_slot *s = &d->loop.slots[i];
        if (s->state != JOBQ_SLOT_QUEUED && s->state != JOBQ_SLOT_RUNNING) continue;
        held[s->job.kind]++;
        if (s->job.worker != d->loop.worker) continue;
        if (!jobq_job_holds(job_of(s->job.id), s->job.worker, s->job.claim)) {
            violate("promise 3: worker %d may run job %d, but the store gave it to another", n,
                    (int)s->job.id);
        }
    }
    for (i = 0; i < d->loop.limited.count; i++) {
        const jobq_limit *limit = &d->loop.limited.limits[i];
        if (held[limit->kind] <= limit->most) continue;
        violate("law 19: worker %d holds %d jobs of kind %d", n, held[limit->kind],
                (int)limit->kind);
    }
}

/* Its worker has given it up, because no result of it was taken: a rescuer will find it. */
static bool left_by_its_worker(const jobq_job *job)
{
    const node *d = owner(job->worker);
    int32_t entry = d == NULL ? -1 : jobq__claim_find(&d->loop, job->worker, job->claim);

    return job->state == JOBQ_STATE_RUNNING && entry >= 0 && d->loop.claims[entry].left;
}

/* A bad one: simulate_ill.h. */
static bool may_be_left(const jobq_job *job)
{
    return strchr("rdn", w->tales[job->id - 1].nature) != NULL && w->ill;
}

static void check_custody(const jobq_job *job)
{
    const node *d = owner(job->worker);
    int32_t entry, i;

    if (jobq_job_check(job) != JOBQ_OK) violate("job %d breaks a law from 1 to 5", (int)job->id);
    if (job->state != JOBQ_STATE_RUNNING) return;
    if (jobq__memory_claim_of(store, job->worker, job->claim) == NULL) {
        violate("promise 1: job %d is running without a claim row", (int)job->id);
    }
    if (jobq__memory_worker_of(store, job->worker) == NULL) {
        violate("promise 1: job %d is held by a worker that has no row", (int)job->id);
    }
    if (d == NULL) return;
    entry = jobq__claim_find(&d->loop, job->worker, job->claim);
    if (entry >= 0 && (d->loop.claims[entry].state == JOBQ_CLAIM_SENT ||
                       d->loop.claims[entry].state == JOBQ_CLAIM_ORPHAN)) {
        return;
    }
    if (may_be_left(job) && left_by_its_worker(job)) return;
    for (i = 0; i < JOBQ_LOOP_SLOTS; i++) {
        const jobq_slot *s = &d->loop.slots[i];
        if (s->state != JOBQ_SLOT_FREE && s->job.id == job->id &&
            jobq_job_holds(job, s->job.worker, s->job.claim)) {
            return;
        }
    }
    violate("promise 1: job %d is held by a living worker that has forgotten it", (int)job->id);
}

/* A job that was left does not run any longer; nobody knows whether that of a dead worker was. */
static bool may_run(const jobq_job *job)
{
    if (job->state != JOBQ_STATE_RUNNING || left_by_its_worker(job)) return false;
    return owner(job->worker) != NULL || !may_be_left(job);
}

static void check_suspects(const jobq_job *job)
{
    int i;

    if (!may_run(job)) return;
    for (i = 0; i < store->job_count; i++) {
        const jobq_job *o = &jobq__memory_jobs(store)[i].job;
        if (o == job || o->worker != job->worker || !may_run(o)) continue;
        if (o->claim == job->claim) violate("law 6: suspect %d shares its claim", (int)job->id);
        if (o->suspect) violate("law 6: a worker holds two suspects at once");
        if (job->alone) violate("law 6: job %d must run alone, but does not", (int)job->id);
    }
}

static void check_outbox(void);
static void check_ill(void);
static void check_graphs(void);

static void check_all(void)
{
    int i;

    check_outbox();
    if (w->ill) check_ill();
    check_graphs();

    for (i = 0; i < store->job_count; i++) {
        const jobq_job *job = &jobq__memory_jobs(store)[i].job;
        check_custody(job);
        if (job->state == JOBQ_STATE_RUNNING && job->suspect) check_suspects(job);
    }
    for (i = 0; i < node_count; i++) {
        if (w->nodes[i].up) check_hands(i);
    }
}

/* The local deadline, told in true time, against the store's; clocks drift by ppm. */
static void check_lease(const node *d)
{
    int64_t lease = d->loop.config.lease_us + d->rest_us, ends;

    if (d->loop.worker == 0 || d->loop.lease.end_mono_us <= mono_us(d)) return;
    if (d->loop.phase > JOBQ_PHASE_STOPPING) return;
    ends = true_us(d, d->loop.lease.end_mono_us);
    if (ends > d->renewed_us + lease + lease / 1000 + MS) {
        violate("promise 5: the local deadline is later than the store's expiry");
    }
}

/* How long a job may be passed over for younger ones of its lane: a bound hides it until the next
 * sweep, a suspect until the next heartbeat tells of it. One that must run alone waits until a
 * worker holds nothing else, whose handlers may run three leases, and for others like it. */
static int64_t patience(const jobq_job *job)
{
    return w->config.sweep_us + w->config.answer_us + SECOND +
           (job->suspect ? w->config.heartbeat_us : 0) + (job->alone ? 12 * w->config.lease_us : 0);
}

static void check_hidden(int n, const packet *p, const jobq_job *job)
{
    tale *t = &w->tales[job->id - 1];

    if (t->passed_us[n] < 0 || t->passed_life[n] != w->nodes[n].life) {
        t->passed_us[n] = p->sent_us;
        t->passed_life[n] = w->nodes[n].life;
    } else if (p->sent_us - t->passed_us[n] > patience(job)) {
        violate("a bound of worker %d hides job %d for %.1f s", n, (int)job->id,
                (double)(p->sent_us - t->passed_us[n]) / 1e6);
    }
}

/* Without faults nobody starves: not all workers together pass a job over for longer. */
static void check_starved(const packet *p, const jobq_job *job)
{
    tale *t = &w->tales[job->id - 1];
    int64_t *longest = &w->sum.starved_us[job->suspect];

    if ((!w->calm && !w->pure) || w->young) return;
    if (t->starved_us < 0) t->starved_us = p->sent_us;
    if (p->sent_us - t->starved_us > *longest) *longest = p->sent_us - t->starved_us;
    if (p->sent_us - t->starved_us > patience(job)) {
        violate("%s %d starves: for %.1f s younger jobs of its lane have been run",
                job->suspect ? "suspect" : "job", (int)job->id,
                (double)(p->sent_us - t->starved_us) / 1e6);
    }
}

/* Whom a claim passed over: due, older than what it took, in the same lane, and of a kind that its
 * worker has. */
static void check_passed(int n, const packet *p, const jobq_job *taken)
{
    const wire *s = &p->wire;
    jobq_lane lane;
    uint64_t kinds = w->nodes[n].kinds & wire_kinds(&s->request);
    int i;

    memset(&lane, 0, sizeof lane);
    lane.queue = taken->queue;
    lane.priority = taken->priority;
    lane.stage = taken->stage;
    lane.after_at_us = INT64_MIN;
    for (i = 0; i < store->job_count; i++) {
        const jobq_job *job = &jobq__memory_jobs(store)[i].job;
        if (job->run_at_us > taken->run_at_us ||
            !jobq__memory_eligible(job, &lane, kinds, job->suspect, job->alone, store_us())) {
            continue;
        }
        if (job->run_at_us == taken->run_at_us && job->id > taken->id) continue;
        if (!job->suspect) check_hidden(n, p, job);
        check_starved(p, job);
    }
}

static void note_claimed(int n, const packet *p)
{
    const jobq_claimed *c = &p->wire.answer.claimed;
    int i, k;

    for (i = 0; i < c->count; i++) {
        const jobq_job *job = &c->jobs[i];
        tale *t = &w->tales[job->id - 1];
        if (t->due_us >= 0 && w->now_us - t->due_us > w->sum.longest_us) {
            w->sum.longest_us = w->now_us - t->due_us;
        }
        t->due_us = -1;
        t->starved_us = -1;
        for (k = 0; k < NODES; k++) t->passed_us[k] = -1;
        if (n < 0 || job->suspect || i + 1 < c->count || w->ill) continue;
        check_passed(n, p, job);
    }
}

static void check_written(const wire *s, bool live)
{
    int64_t job = 0;
    const char *wrong = laws_written(before, store, s, store_us(), &job);
    int i;

    if (wrong != NULL) violate("%s (job %d)", wrong, (int)job);
    if (s->request.kind == JOBQ_REQUEST_CLAIM && live &&
        s->answer.error == JOBQ_ERROR_EXISTS) {
        violate("a claim number was used twice");
    }
    if (s->request.kind == JOBQ_REQUEST_RESCUE) {
        w->sum.rescued += s->answer.count;
        for (i = 0; i < node_count; i++) {
            if (w->nodes[i].up) check_hands(i);
        }
    }
}

/* ---- a worker and its connection ------------------------------------------------------------- */

static size_t store_size(void) { return model_size(JOBS, ROWS, CLAIM_ROWS); }

/* Dead workers' rows go with the housekeeping. */
static void prune_store(void)
{
    int i;

    for (i = 0; i < store->worker_max; i++) {
        jobq_memory_worker *row = &jobq__memory_workers(store)[i];
        if (row->id == 0 || !row->dead || jobq__memory_holds(store, row->id)) continue;
        jobq__memory_forget(store, row->id, true);
        memset(row, 0, sizeof *row);
    }
}

/* Law (18): nobody lives for a lease, and what the dead hold comes back all the same. */
static void check_abandoned(const jobq_job *job)
{
    tale *t = &w->tales[job->id - 1];
    int n;

    for (n = 0; n < node_count && (!w->nodes[n].up || w->nodes[n].loop.worker != job->worker);) n++;
    if (job->state != JOBQ_STATE_RUNNING || n < node_count) t->abandoned_us = -1;
    else if (t->abandoned_us < 0) t->abandoned_us = w->now_us;
    else if (w->now_us - t->abandoned_us > 10 * w->config.lease_us) {
        violate("law 18: a dead worker has held job %d for %.1f s", (int)job->id,
                (double)(w->now_us - t->abandoned_us) / 1e6);
    }
}

static void note_due(void)
{
    int i;

    for (i = 0; i < store->job_count; i++) {
        const jobq_job *job = &jobq__memory_jobs(store)[i].job;
        bool due = job->state == JOBQ_STATE_READY && job->run_at_us <= store_us() &&
                   (store->paused >> job->queue & 1) == 0;
        if (w->young) check_abandoned(job);
        if (!due) w->tales[i].due_us = -1;
        else if (w->tales[i].due_us < 0) w->tales[i].due_us = w->now_us;
    }
}

static void check_messages_written(const wire *s, bool own);
static bool refuses(wire *s);
static bool rolls_back(wire *s);
static void note_served(const wire *s);

/* Executes a statement between two looks at what it may write. */
static void execute_watched(wire *s, uint64_t kinds, bool live)
{
    bool messages = s->request.kind >= JOBQ_REQUEST_LOOK && s->request.kind <= JOBQ_REQUEST_RENEW;
    bool jobs = !messages && s->request.kind != JOBQ_REQUEST_HEARTBEAT &&
                s->request.kind != JOBQ_REQUEST_POLICIES && s->request.kind != JOBQ_REQUEST_SLEEP;

    memcpy(before, store,
           sizeof *store + (jobs ? (size_t)store->job_count * sizeof(jobq_memory_job) : 0));
    if (w->ill && refuses(s)) return;
    wire_execute(s, store, QUEUE_BITS, kinds, store_us());
    if (w->ill && rolls_back(s)) return;
    if (w->ill) note_served(s);
    if (jobs) check_written(s, live);
    if (messages) check_messages_written(s, false);
}

static void execute(int n, packet *p, uint64_t kinds, bool live)
{
    wire *s = &p->wire;

    execute_watched(s, kinds, live);
    w->sum.statements++;
    if (s->request.kind == JOBQ_REQUEST_PRUNE) prune_store();
    if (s->request.kind == JOBQ_REQUEST_CLAIM && s->answer.error == JOBQ_OK) {
        note_claimed(live ? n : -1, p);
    }
    if (live && s->answer.error == JOBQ_OK &&
        (s->request.kind == JOBQ_REQUEST_REGISTER || s->answer.news.alive)) {
        w->nodes[n].renewed_us = w->now_us;
        w->nodes[n].rest_us = s->request.rest_us;
    }
    trace("%s %d: %s", live ? "worker" : "late, once of worker", n,
          story_of_request(&s->request, mono_us(&w->nodes[n])));
    trace("     %s", story_of_answer(&s->answer));
}

/* What was under way may be executed later, in order, or never. */
static void drop_flight(int n)
{
    node *d = &w->nodes[n];
    int64_t at = w->now_us;
    int i, g;

    for (i = 0; i < d->flying && !w->calm && chance(500); i++) {
        jobq_request_kind kind = d->flight[i].wire.request.kind;
        if (d->flight[i].wire.executed || kind == JOBQ_REQUEST_CONNECT) continue;
        for (g = 0; g < ZOMBIES && w->ghost_used[g];) g++;
        if (g == ZOMBIES) break;
        w->ghost_used[g] = 1;
        w->ghosts[g] = d->flight[i].wire;
        at += between(0, chance(100) ? 60 * SECOND : SECOND);
        plan(at, EVENT_GHOST, n)->arg = g;
        w->sum.faults[FAULT_LATE]++;
    }
    d->flying = 0;
    d->line++;
    d->silent = false;
}

static int64_t latency(void) { return chance(10) ? between(MS, 2 * SECOND) : between(100, 5 * MS); }

static int64_t carry_us(int64_t bytes);

/* Of a flush: of its jobs and their results. */
static int64_t bytes_sent(const node *d, const wire *s)
{
    int64_t bytes = 0;
    int i;

    for (i = 0; i < s->request.ending_count; i++) {
        bytes += d->loop.slots[s->request.endings[i].slot].bytes;
    }
    return bytes;
}

/* The last packet of a connection finds its times: no packet overtakes another. */
static void fly(int n)
{
    node *d = &w->nodes[n];
    packet *last = d->flying > 1 ? &d->flight[d->flying - 2] : NULL;
    packet *p = &d->flight[d->flying - 1];
    event *e;

    p->sent_us = w->now_us;
    p->execute_us = w->now_us + latency() + carry_us(bytes_sent(d, &p->wire));
    if (last != NULL && p->execute_us < last->execute_us) p->execute_us = last->execute_us;
    p->answer_us = p->execute_us + latency();
    if (last != NULL && p->answer_us < last->answer_us) p->answer_us = last->answer_us;
    if (d->silent) return;
    e = plan(p->execute_us, EVENT_EXECUTE, n);
    e->generation = d->line;
    e = plan(p->answer_us, EVENT_ANSWER, n);
    e->generation = d->line;
}

static void send(int n, const jobq_request *a)
{
    static wire both[2];
    node *d = &w->nodes[n];
    int count = wire_send_all(both, a), i;

    for (i = 0; i < count; i++) {
        JOBQ_ASSERT(d->flying < FLIGHT);
        d->flight[d->flying++].wire = both[i];
        fly(n);
    }
}

static void retire(int n)
{
    const jobq_loop_stats *stats = &w->nodes[n].loop.stats;

    w->sum.aside += stats->aside + w->nodes[n].loop.relay.stats.aside;
    w->sum.refused += stats->refused;
    w->sum.left += stats->left;
    replay(n, false);
    drop_flight(n);
    w->nodes[n].up = w->nodes[n].paused = false;
    w->nodes[n].life++;
}

static void crash(int n)
{
    node *d = &w->nodes[n];

    if (!d->up) return;
    trace("worker %d: crashes", n);
    retire(n);
    plan(w->now_us + (w->young  ? between(0, SECOND / 10)
                      : w->calm ? between(SECOND, 5 * SECOND)
                                : between(SECOND, 2 * w->config.lease_us)),
         EVENT_START, n);
}

static int64_t handler_time(const jobq_job *job)
{
    if (w->young && job->kind == KIND_CRASHING) return 4 * SECOND;
    if (w->young && job->id % 50 == 0) return between(5 * SECOND, 12 * SECOND);
    if (w->young) return between(0, 5 * MS);
    if (w->pure) return between(MS, 200 * MS);
    if (w->ill) return between(0, chance(50) ? 5 * SECOND : 50 * MS);
    if (job->id > JOBS - RUSH) return between(SECOND / 2, 4 * SECOND);
    if (job->kind == 3) return between(SECOND, chance(20) ? 3 * w->config.lease_us : 5 * SECOND);
    return chance(300) ? 0 : between(0, 300 * MS);
}

static void begin_job(int n, const jobq_work *work)
{
    node *d = &w->nodes[n];
    const jobq_job *job = &work->job;
    jobq_handled missing;
    event *e;
    bool crashes = job->kind == KIND_CRASHING;

    if (!crashes && (d->kinds >> job->kind & 1) == 0) {
        trace("worker %d: has no handler for job %d", n, (int)job->id);
        memset(&missing, 0, sizeof missing);
        missing.missing = true;
        jobq_loop_handled(&d->loop, mono_us(d), work, &missing, NULL);
        return;
    }
    trace("worker %d: starts job %d, attempt %d", n, (int)job->id, (int)job->attempt);
    e = plan(w->now_us + handler_time(job), crashes ? EVENT_CRASHES : EVENT_HANDLED, n);
    e->arg = work->slot;
    e->generation = work->generation;
}

/* A handler gets one job, or a batch; its jobs end one by one. */
static void begin_call(int n, const jobq_work *first)
{
    static jobq_work works[JOBQ_LOOP_SLOTS];
    int32_t count = 1, i;

    works[0] = works[1] = *first;
    while (jobq_loop_mate(&w->nodes[n].loop, &works[count])) {
        const jobq_job *a = &first->job, *b = &works[count].job;
        if (a->suspect || b->suspect || a->kind != b->kind || a->stage != b->stage ||
            a->attempt != b->attempt || a->timeout_us != b->timeout_us)
            violate("law 30: jobs %d and %d are in one call", (int)a->id, (int)b->id);
        works[count + 1] = works[count];
        count++;
    }
    if (count != first->together) violate("law 30: %d jobs, not %d", count, first->together);
    w->sum.together += count - 1;
    for (i = 0; i < count; i++) begin_job(n, &works[i]);
}

static void check_number(node *d, const jobq_request *a)
{
    if (!claims(a)) return;
    if (a->worker == d->last_worker && a->claim <= d->last_number) {
        violate("claim number %d is used again", (int)a->claim);
    }
    d->last_worker = a->worker;
    d->last_number = a->claim;
}

static void begin_messages(int n, const jobq_part *p, int32_t part);
static void abandon_messages(int n, const jobq_request *a);

/* Threads have called the loop, and take what is there. Whether the loop's own thread sleeps on: if
 * nothing is due before it would wake. */
static bool sleeps_on(int n)
{
    static jobq_work work;
    node *d = &w->nodes[n];
    int64_t due;

    while (jobq_loop_take(&d->loop, mono_us(d), &work)) {
        if (work.partition_id == 0) begin_call(n, &work);
        else begin_messages(n, &d->loop.relay.parts[work.slot], work.slot);
    }
    due = jobq_loop_due(&d->loop, mono_us(d));
    if (due <= mono_us(d)) return false;
    due = true_us(d, due);
    if (due < d->step_us) plan(d->step_us = due, EVENT_STEP, n);
    return true;
}

/* The loop does what is due, then sleeps until its next deadline. */
static void step(int n)
{
    node *d = &w->nodes[n];
    int guard;

    if (!d->up || d->paused) return;
    if (d->recorder != NULL && d->recorder->number == JOBQ__SEGMENTS) replay(n, true);
    for (guard = 0; broken[0] == '\0'; guard++) {
        static jobq_request a;
        jobq_loop_next(&d->loop, mono_us(d), &a);
        if (guard > 40 + JOBQ_LOOP_SLOTS) violate("the loop of worker %d spins", n);
        if (a.kind == JOBQ_REQUEST_WAIT) {
            if (a.until_mono_us <= mono_us(d)) {
                violate("worker %d waits for an instant in the past", n);
            }
            d->step_us = true_us(d, a.until_mono_us);
            if (d->step_us != JOBQ_NEVER) plan(d->step_us, EVENT_STEP, n);
            if (sleeps_on(n)) break;
            continue;
        }
        if (a.kind == JOBQ_REQUEST_EXIT) {
            trace("worker %d: exits", n);
            retire(n);
            plan(w->now_us + between(SECOND, 60 * SECOND), EVENT_START, n);
            break;
        }
        if (a.kind == JOBQ_REQUEST_DISCONNECT) {
            trace("worker %d: no answer in time", n);
            drop_flight(n);
            jobq_loop_disconnected(&d->loop, mono_us(d));
        } else if (a.kind == JOBQ_REQUEST_ABANDON) {
            if (a.partition_id != 0) abandon_messages(n, &a);
        } else {
            check_number(d, &a);
            send(n, &a);
        }
    }
    check_lease(d);
}

static void start(int n)
{
    node *d = &w->nodes[n];
    jobq_loop_config config = w->config;
    jobq_loop_served served = w->served;
    int i;

    if (d->up || w->farewell) return;
    d->life++;
    d->up = true;
    d->paused = d->silent = false;
    d->last_worker = d->last_number = 0;
    d->kinds = n % 3 == 0 ? 0x0e : 0x06; /* only some have kind 3; kind 4 comes late */
    if (!rough()) d->kinds = 0x1e;
    config.threads = w->young ? 4 : 1 + n % 4;
    config.rest_us = n % 3 == 1 ? 2 * w->config.lease_us : 0;
    config.served = &served;
    served.kind_threads[n % 2] = w->limits ? 1 : 0;
    served.listen = n % 2 == 0;
    for (i = 0; i < 3 && n % 2 == 1 && !w->pure; i++) {
        served.kind_batches[i] = 1 + (n + i) % 8;
        served.kind_waits_us[i] = i * 100 * MS;
    }
    if (n % 4 == 3) served.message_queues = 0;
    jobq_loop_init(&d->loop, &config, jobq_random_next(&w->random), mono_us(d));
    replay(n, true);
    trace("worker %d: starts", n);
    step(n);
}

static void cut(int n)
{
    node *d = &w->nodes[n];

    if (!d->up || d->paused) return;
    trace("worker %d: its connection is lost", n);
    drop_flight(n);
    jobq_loop_disconnected(&d->loop, mono_us(d));
    step(n);
}

/* A stop ends after its grace and the time of one answer, whatever the server says. */
static void ask_to_stop(int n, int64_t grace)
{
    node *d = &w->nodes[n];

    if (!d->up || d->paused) return;
    trace("worker %d: is asked to stop", n);
    w->sum.stops++;
    jobq_loop_stop(&d->loop, mono_us(d), grace);
    plan(w->now_us + grace + w->config.answer_us + SECOND / 10, EVENT_STOPPED, n);
    step(n);
}

static void on_stopped(int n)
{
    if (w->nodes[n].paused) return;
    violate("worker %d was asked to stop, and has not stopped after its grace period and the "
            "time of an answer", n);
}

/* What may befall a statement as it comes in. True: the store refused it. */
static bool meddle(packet *p)
{
    jobq_request_kind kind = p->wire.request.kind;

    if (chance(2)) {
        p->wire.answer.error = chance(300) ? JOBQ_ERROR_TIMEOUT : JOBQ_ERROR_RETRYABLE;
        p->wire.executed = true;
        w->sum.faults[FAULT_REFUSE]++;
        return true;
    }
    if ((kind == JOBQ_REQUEST_COMPLETE || kind == JOBQ_REQUEST_SETTLE) && chance(5)) {
        p->wire.busy = p->wire.request.endings[between(0, p->wire.request.ending_count - 1)].job;
    }
    if (kind == JOBQ_REQUEST_READ && chance(5)) p->wire.busy = 1;
    w->sum.faults[FAULT_BUSY] += p->wire.busy != 0;
    return false;
}

static bool ails(int n, int i);
static void answer_later(int n, int i);

static void on_execute(int n, uint32_t line)
{
    node *d = &w->nodes[n];
    bool faults;
    int i;

    if (line != d->line || d->silent) return;
    for (i = 0; i < d->flying && d->flight[i].wire.executed;) i++;
    if (i == d->flying || (w->ill && ails(n, i))) return;
    faults = rough() && d->flight[i].wire.request.kind != JOBQ_REQUEST_CONNECT;
    if (faults && meddle(&d->flight[i])) return;
    execute(n, &d->flight[i], d->kinds, true);
    if (w->ill) answer_later(n, i);
    if (!faults || d->paused || !chance(1)) return;
    w->sum.faults[FAULT_ANSWER]++;
    cut(n);
}

static void wake_sleepers(int32_t most);
static bool spawn(const jobq_job *job);

static void on_answer(int n, uint32_t line)
{
    static wire s;
    node *d = &w->nodes[n];

    if (line != d->line || d->silent || d->paused || !d->up || d->flying == 0) return;
    s = d->flight[0].wire;
    if (!s.executed || (w->ill && w->now_us < d->flight[0].answer_us)) return;
    if (s.request.kind == JOBQ_REQUEST_CONNECT && w->now_us < w->outage_us) {
        cut(n);
        return;
    }
    d->flying--;
    memmove(&d->flight[0], &d->flight[1], (size_t)d->flying * sizeof d->flight[0]);
    wire_answer(&s, &d->loop, mono_us(d));
    if (s.request.kind == JOBQ_REQUEST_RESCUE && s.answer.count > 0) {
        wake_sleepers(s.answer.count);
    }
    step(n);
}

/* Its process is stopped. */
static void put_off(const event *e)
{
    event *later = plan(w->now_us + SECOND, e->kind, e->node);

    later->arg = e->arg;
    later->generation = e->generation;
    later->life = e->life;
}

static void on_handled(const event *e)
{
    node *d = &w->nodes[e->node];
    jobq_outcome outcome = JOBQ_OUTCOME_SUCCESS;
    jobq_stop stop;
    int64_t delay_us;
    bool named;

    if (d->paused) {
        put_off(e);
        return;
    }
    stop = jobq__job_stopping(&d->loop, mono_us(d), e->arg, e->generation);
    if (rough() && chance(150)) {
        outcome = (jobq_outcome)between(JOBQ_OUTCOME_NONE, JOBQ_OUTCOME_CANCELLED);
    }
    if (stop == JOBQ_STOP_CANCEL && chance(500)) outcome = JOBQ_OUTCOME_CANCELLED;
    if (w->waits && outcome == JOBQ_OUTCOME_SUCCESS && chance(100) &&
        spawn(&d->loop.slots[e->arg].job)) {
        outcome = chance(100) ? JOBQ_OUTCOME_RETRY : JOBQ_OUTCOME_DONE; /* not told, or told */
    }
    trace("worker %d: a handler ends, %d", e->node, (int)outcome);
    /* Drawn one after the other: compilers differ in the order of arguments. */
    delay_us = between(0, 20 * SECOND);
    named = chance(200);
    told_handled(&d->loop, mono_us(d), e->arg, e->generation, outcome, delay_us, named);
    if (!sleeps_on(e->node)) step(e->node);
}

#include "simulate_outbox.h"

/* ---- producers, operators, faults ------------------------------------------------------------ */

static void wake_sleepers(int32_t most)
{
    char about[12];
    int n;

    for (n = 0; n < node_count && most > 0; n++) {
        node *d = &w->nodes[n];
        const jobq_memory_worker *row = jobq__memory_worker_of(store, d->loop.worker);
        if (!d->up || d->paused || d->silent || !d->loop.session.connected ||
            !d->loop.served.listen)
            continue;
        if (d->loop.worker == 0 || row == NULL || !row->asleep || chance(100)) continue; /* lost */
        snprintf(about, sizeof about, "%d", w->partitions > 0 ? (int)between(0, w->partitions) : 0);
        jobq_loop_notified(&d->loop, mono_us(d), about); /* perhaps of another partition */
        step(n);
        most--;
    }
}

/* Without faults there is one lane. */
static void enqueue(int32_t kind)
{
    jobq_job like = jobq_job_new(0);
    bool one = w->calm || w->pure;
    int64_t id;

    like.queue = one ? 1 : (int32_t)between(1, 2);
    like.kind = kind;
    like.priority = (int16_t)(one ? 0 : between(-1, 2));
    like.stages = (int16_t)(one || chance(800) ? 1 : between(2, 3));
    if (chance(200) && !one) like.run_at_us = store_us() + between(0, 120 * SECOND);
    if (chance(100) && !w->pure) like.max_attempts = (int32_t)between(1, 4);
    id = jobq_memory_enqueue(store, &like, jobq_str_from(NULL), store_us());
    if (id == 0) return;
    if (chance(100) && !w->pure) { /* commits late */
        job_of(id)->run_at_us -= between(0, (w->calm ? 20 : 3) * SECOND);
    }
    trace("job %d is enqueued, kind %d", (int)id, (int)kind);
}

static int32_t ready_jobs(void)
{
    int32_t count = 0, i;

    for (i = 0; i < store->job_count; i++) {
        count += jobq__memory_jobs(store)[i].job.state == JOBQ_STATE_READY;
    }
    return count;
}

/* When the faults have stopped, as many jobs as keep all workers busy, and no more: each lower
 * bound is close behind what comes. */
static void produce(void)
{
    int32_t count = (int32_t)(chance(100) ? between(1, 30) : between(1, 3)), i;

    for (i = 0; i < count; i++) {
        bool crashes = w->crashing > 0 && chance(20);
        w->crashing -= crashes;
        enqueue((int32_t)(crashes ? KIND_CRASHING : chance(20) ? KIND_RARE : between(1, 3)));
    }
    wake_sleepers(count);
}

static void hold(int32_t queue, bool paused)
{
    jobq_policy policy;

    memset(&policy, 0, sizeof policy);
    policy.max_attempts = (int32_t)between(2, 6);
    policy.max_crashes = (int32_t)between(1, 3);
    policy.timeout_us = chance(500) ? 0 : w->config.lease_us * 2;
    policy.backoff.base_us = SECOND;
    policy.backoff.cap_us = 60 * SECOND;
    policy.backoff.jitter_permille = 250;
    policy.attempts_span_stages = chance(300);
    if (queue == OUTBOX) policy.max_attempts = w->attempts;
    if (queue == OUTBOX) policy.timeout_us = 0;
    jobq_memory_policy(store, queue, &policy, paused);
    trace("queue %d has a new policy%s", (int)queue, paused ? ", and is paused" : "");
}

static void operate(void)
{
    int64_t id = store->job_count > 0 ? between(1, store->job_count) : 0;

    if (chance(100)) {
        int32_t queue = (int32_t)between(1, OUTBOX);
        bool paused = chance(500);
        hold(queue, paused);
        if (paused) plan(w->now_us + between(0, 120 * SECOND), EVENT_UNHOLD, -1)->arg = queue;
    } else if (id != 0 && chance(300)) {
        jobq_memory_event(store, id, job_of(id)->state == JOBQ_STATE_FAILED ? JOBQ_EVENT_REVIVE
                                                                            : JOBQ_EVENT_CANCEL,
                          store_us());
        trace("an operator touches job %d: %s", (int)id,
              jobq_enum_name(JOBQ_ENUM_STATE, job_of(id)->state));
    }
}

static void outage(void)
{
    int n;

    w->outage_us = w->now_us + between(0, 2 * w->config.lease_us);
    trace("the store is away for %.1f s", (double)(w->outage_us - w->now_us) / 1e6);
    for (n = 0; n < node_count; n++) cut(n);
}

static void pause_node(int n)
{
    node *d = &w->nodes[n];

    if (!d->up || d->paused) return;
    d->paused = true;
    trace("worker %d: its process is stopped", n);
    plan(w->now_us + between(0, 3 * w->config.lease_us), EVENT_RESUME, n);
}

static void do_fault(void)
{
    int n = (int)between(0, node_count - 1);
    fault kind = (fault)between(FAULT_CRASH, FAULT_SHUTDOWN);
    node *d = &w->nodes[n];

    if (kind == FAULT_OUTAGE && !chance(100)) kind = FAULT_CUT;
    if (kind == FAULT_STEP && !chance(200)) kind = FAULT_PAUSE;
    if (kind == FAULT_REFUSE || kind == FAULT_BUSY) return;
    w->sum.faults[kind]++;
    if (kind == FAULT_CRASH) crash(n);
    if (kind == FAULT_CUT) cut(n);
    if (kind == FAULT_PAUSE) pause_node(n);
    if (kind == FAULT_OUTAGE) outage();
    if (kind == FAULT_SILENCE && d->up) d->silent = true;
    if (kind == FAULT_STEP) {
        w->offset_us += between(-60, 60) * SECOND;
        trace("the store's clock steps to %+.0f s", (double)w->offset_us / 1e6);
    }
    if (kind == FAULT_SHUTDOWN) ask_to_stop(n, between(0, 10 * SECOND));
}

static void on_resume(int n)
{
    node *d = &w->nodes[n];
    uint32_t line = d->line;

    if (!d->paused) return;
    d->paused = false;
    trace("worker %d: its process goes on", n);
    step(n); /* clocks first, then what came in meanwhile */
    while (d->up && !d->silent && line == d->line && d->flying > 0 && d->flight[0].wire.executed) {
        on_answer(n, line);
    }
}

#include "simulate_ill.h"
#include "simulate_graphs.h"

/* ---- a run ----------------------------------------------------------------------------------- */

static void handle(const event *e)
{
    int32_t n = e->node;
    bool stale = n >= 0 && e->life != w->nodes[n].life;

    switch (e->kind) {
    case EVENT_STEP:
        if (!stale && e->at >= w->nodes[n].step_us) step(n);
        break;
    case EVENT_EXECUTE:
        if (!stale) on_execute(n, e->generation);
        break;
    case EVENT_ANSWER:
        if (!stale) on_answer(n, e->generation);
        break;
    case EVENT_GHOST:
        if (w->ghost_used[e->arg]) {
            packet p;
            memset(&p, 0, sizeof p);
            p.wire = w->ghosts[e->arg];
            w->ghost_used[e->arg] = 0;
            execute(n, &p, 0x06, false);
        }
        break;
    case EVENT_HANDLED:
        if (!stale) on_handled(e);
        break;
    case EVENT_CRASHES:
        if (!stale && w->nodes[n].loop.slots[e->arg].generation == e->generation) crash(n);
        break;
    case EVENT_DELIVERED:
        if (!stale) on_delivered(e);
        break;
    case EVENT_COMMIT:
        on_commit(e, stale);
        break;
    case EVENT_COMMITTED:
        on_committed(e, stale);
        break;
    case EVENT_WRITE:
        if (w->calm) break;
        write_mails((int32_t)(chance(100) ? between(1, 30) : between(1, 4)));
        plan(w->now_us + between(0, 2 * w->calm_us / (MAILS / 4)), EVENT_WRITE, -1);
        break;
    case EVENT_SEND:
        commit_mails(e->arg, (int32_t)e->generation);
        break;
    case EVENT_START:
        start(n);
        break;
    case EVENT_RESUME:
        if (!stale) on_resume(n);
        break;
    case EVENT_PRODUCE:
        if (w->calm ? ready_jobs() < 2 * node_count : store->job_count < JOBS - RUSH) produce();
        plan(w->now_us + between(0, w->calm ? SECOND / 10 : 2 * w->calm_us / (JOBS / 2)),
             EVENT_PRODUCE, -1);
        break;
    case EVENT_OPERATE:
        if (w->calm) break;
        operate();
        plan(w->now_us + between(SECOND, 60 * SECOND), EVENT_OPERATE, -1);
        break;
    case EVENT_FAULT:
        if (w->calm) break;
        do_fault();
        plan(w->now_us + between(0, 40 * SECOND), EVENT_FAULT, -1);
        break;
    case EVENT_UNHOLD:
        hold(e->arg, false);
        break;
    case EVENT_STOPPED:
        if (!stale) on_stopped(n);
        break;
    case EVENT_AFFLICT:
    case EVENT_BURST:
    case EVENT_BURST_SENT:
    case EVENT_FAREWELL:
        handle_ill(e);
        break;
    case EVENT_GRAPH:
    case EVENT_TOUCH:
        handle_graphs(e);
        break;
    }
}

/* The faults end: everybody goes on, and all kinds have handlers. */
static void calm_down(void)
{
    int n;

    w->calm = true;
    w->crashing = 2;
    w->outage_us = 0;
    trace("the faults stop");
    for (n = 1; n <= OUTBOX; n++) hold(n, false);
    w->bound_us += bad_messages_time();
    if (w->waits) calm_graphs();
    for (n = 0; n < node_count; n++) {
        node *d = &w->nodes[n];
        if (d->paused) on_resume(n);
        if (d->silent) cut(n);
        if (n == 0 && d->up) crash(n); /* starts again with all kinds */
        if (!d->up) plan(w->now_us + SECOND, EVENT_START, n);
    }
}

static bool all_ended(void)
{
    int i;

    if (!outbox_done()) return false;
    for (i = 0; i < store->job_count; i++) {
        if (!jobq_state_final(jobq__memory_jobs(store)[i].job.state)) return false;
    }
    return true;
}

static void settle_tales(void)
{
    int n;

    for (n = 0; n < JOBS; n++) memset(w->tales[n].passed_us, -1, sizeof w->tales[n].passed_us);
    for (n = 0; n < JOBS; n++) {
        w->tales[n].due_us = w->tales[n].starved_us = w->tales[n].abandoned_us = -1;
    }
}

static void settle_seed(uint64_t seed, double hours)
{
    static const int64_t leases[] = {5, 30, 30, 120};
    int n;

    memset(&w->config, 0, sizeof w->config);
    memset(&w->served, 0, sizeof w->served);
    w->young = seed % 8 == 4;
    w->limits = seed % 4 == 3;
    w->pure = w->young || seed % 8 == 0;
    w->config.lease_us = leases[between(0, 3)] * SECOND;
    if (w->pure) w->config.lease_us = (w->young ? 6 : 30) * SECOND;
    w->config.prune_us = 60 * SECOND;
    settle_outbox();
    w->config = jobq_loop_config_defaults(&w->config);
    w->calm_us = w->pure ? SECOND : (int64_t)(hours * (double)HOUR);
    w->crashing = (int32_t)between(0, 3);
    node_count = w->young ? 1 + (int)(seed / 8 % 4) : w->pure ? 6 : (int)between(4, NODES);
    for (n = 1; n <= OUTBOX; n++) hold(n, false);
    if (w->pure) jobq_memory_policy(store, 1, NULL, false);
    for (n = 0; n < node_count; n++) {
        w->nodes[n].base_us = between(1, 1000) * HOUR;
        w->nodes[n].drift_ppm = between(-200, 200);
        plan(between(0, 10 * SECOND), EVENT_START, n);
    }
    if (w->pure) {
        for (n = 0; n < 1000; n++) {
            bool crashes = w->young ? n % 25 == 5 : n == (int)(seed % 1000);
            enqueue(crashes ? KIND_CRASHING : 1);
            if (w->young && crashes) job_of(n + 1)->run_at_us += n / 25 * 4 * SECOND;
        }
        if (w->young) return;
        for (n = 0; n < 60; n++) write_mails(3);
        w->mails[seed % 180].nature = 'r';
        w->mails[seed * 7 % 180].nature = 'x';
        return;
    }
    plan(0, EVENT_WRITE, -1);
    plan(0, EVENT_PRODUCE, -1);
    plan(0, EVENT_OPERATE, -1);
    plan(0, EVENT_FAULT, -1);
}

/* One bad job among a thousand fails, and no other notices; so do two messages. */
static void check_pure(void)
{
    int i;

    for (i = 0; i < w->mail_count; i++) {
        const mail *m = &w->mails[i];
        if (m->dead == (m->nature == 'g') || m->handled == m->dead) {
            violate("law 15: message %d, %c, is %s", name_of(m), m->nature,
                    m->dead ? "dead" : "handled");
        }
    }
    for (i = 0; i < store->job_count; i++) {
        const jobq_job *job = &jobq__memory_jobs(store)[i].job;
        bool crashes = job->kind == KIND_CRASHING;
        if (job->state != (crashes ? JOBQ_STATE_FAILED : JOBQ_STATE_SUCCEEDED)) {
            violate("promise 4: job %d, %s, %s", (int)job->id,
                    crashes ? "crashing" : "healthy", jobq_enum_name(JOBQ_ENUM_STATE,
                                                                       job->state));
        }
        if (!crashes && (job->crash != 0 || job->attempt != 1)) {
            violate("promise 4: healthy job %d has attempt %d, crash %d", (int)job->id,
                    (int)job->attempt, (int)job->crash);
        }
        if (crashes && job->crash != 3)
            violate("promise 4: the bad job crashed %d times", (int)job->crash);
    }
}

static void count_jobs(void)
{
    int i;

    count_mails();
    w->sum.virtual_us = w->now_us;
    w->sum.jobs = store->job_count;
    w->sum.graphs = w->graphs;
    for (i = 0; i < store->job_count; i++) {
        jobq_state state = jobq__memory_jobs(store)[i].job.state;
        w->sum.succeeded += state == JOBQ_STATE_SUCCEEDED;
        w->sum.failed += state == JOBQ_STATE_FAILED;
        w->sum.cancelled += state == JOBQ_STATE_CANCELLED;
        w->sum.held += state == JOBQ_STATE_WAITING;
    }
}

/* The worlds of a seed: the first ones, and then those of graphs. */
enum { PART_FAULTS, PART_ILL, PART_GRAPHS, PARTS = PART_GRAPHS + GRAPH_WORLDS };

/* Runs a world of a seed to its end; the hash of its trace tells two runs apart. */
static bool run(uint64_t seed, double hours, int part, uint64_t *hash, summary *sum)
{
    int64_t checks = 0;

    memset(w, 0, offsetof(world, events));
    memset(w->tales, 0, sizeof *w - offsetof(world, tales) - sizeof w->trace - sizeof w->lines);
    w->lines = 0;
    w->seed = seed;
    w->random.state = seed * 0x9e3779b97f4a7c15u + 1;
    if (part >= PART_GRAPHS) w->random.state += (uint64_t)part << 40;
    model_init(store, JOBS, ROWS, CLAIM_ROWS);
    settle_tales();
    if (part == PART_ILL) settle_ill(seed, hours);
    else if (part == PART_FAULTS) settle_seed(seed, hours);
    else settle_graphs();
    w->bound_us = w->calm_us + 40 * w->config.lease_us + 1800 * SECOND;
    while (broken[0] == '\0' && w->event_count > 0) {
        event e = next_event();
        w->now_us = e.at;
        if (rough() && w->now_us >= w->calm_us) calm_down();
        if (w->ill && !w->calm && w->now_us >= w->calm_us) recover_all();
        handle(&e);
        if (++checks % 64 == 0) check_all();
        if (checks % 16 == 0) note_due();
        if (w->ill && ill_ended()) break;
        if (w->ill) continue;
        if (w->waits && graphs_ended()) break;
        if (checks % 64 == 0 && store->job_count == JOBS && w->now_us > 20 * SECOND && all_ended())
            break;
        if (w->now_us > w->bound_us) {
            violate("the faults stopped %.0f s ago, and not all is done",
                    (double)(w->now_us - w->calm_us) / 1e6);
        }
    }
    if (w->pure && broken[0] == '\0') check_pure();
    for (part = 0; part < node_count; part++) replay(part, false);
    count_jobs();
    *hash = w->hash;
    *sum = w->sum;
    if (broken[0] == '\0') return true;
    replay_hint();
    return false;
}

static void add_up(summary *total, const summary *one)
{
    int i;

    total->virtual_us += one->virtual_us;
    total->jobs += one->jobs;
    total->succeeded += one->succeeded;
    total->failed += one->failed;
    total->cancelled += one->cancelled;
    total->rescued += one->rescued;
    total->statements += one->statements;
    total->messages += one->messages;
    total->rolled_back += one->rolled_back;
    total->delivered += one->delivered;
    total->redelivered += one->redelivered;
    total->dead += one->dead;
    total->taken_over += one->taken_over;
    total->abandoned += one->abandoned;
    total->unknown += one->unknown;
    total->illnesses += one->illnesses;
    total->aside += one->aside;
    total->refused += one->refused;
    total->together += one->together;
    total->left += one->left;
    total->stops += one->stops;
    total->graphs += one->graphs;
    total->held += one->held;
    if (one->still_us > total->still_us) total->still_us = one->still_us;
    if (one->waited_us > total->waited_us) total->waited_us = one->waited_us;
    if (one->longest_us > total->longest_us) total->longest_us = one->longest_us;
    for (i = 0; i < 2; i++) {
        if (one->starved_us[i] > total->starved_us[i]) total->starved_us[i] = one->starved_us[i];
    }
    for (i = 0; i < FAULT_COUNT; i++) total->faults[i] += one->faults[i];
}

static void print_summary(const summary *s, int64_t seeds, uint64_t hash)
{
    int i;

    printf("%lld seeds, %.1f virtual hours, %lld statements, trace %016llx\n", (long long)seeds,
           (double)s->virtual_us / (double)HOUR, (long long)s->statements,
           (unsigned long long)hash);
    printf("%lld jobs: %lld succeeded, %lld failed, %lld cancelled; %lld rescued; "
           "longest stall %.1f s; "
           "without faults passed over for %.1f s at most, suspects for %.1f s\n",
           (long long)s->jobs, (long long)s->succeeded, (long long)s->failed,
           (long long)s->cancelled, (long long)s->rescued,
           (double)s->longest_us / 1e6, (double)s->starved_us[0] / 1e6,
           (double)s->starved_us[1] / 1e6);
    printf("%lld messages, %lld rolled back: %lld deliveries, %lld of them again; %lld dead "
           "letters, %lld partitions taken over, %lld handlers abandoned, %lld commits unknown\n",
           (long long)s->messages, (long long)s->rolled_back, (long long)s->delivered,
           (long long)s->redelivered, (long long)s->dead, (long long)s->taken_over,
           (long long)s->abandoned, (long long)s->unknown);
    printf("%lld illnesses of the server: %lld rows set aside, %lld results refused, %lld jobs "
           "left; without the end of a job for %.1f s, a partition unread for %.1f s; %lld stops\n",
           (long long)s->illnesses, (long long)s->aside, (long long)s->refused,
           (long long)s->left, (double)s->still_us / 1e6, (double)s->waited_us / 1e6,
           (long long)s->stops);
    printf("%lld graphs; %lld jobs wait on, because of a failure or a cancel; %lld jobs joined the "
           "batch of another; %lld calls of loops replayed\n", (long long)s->graphs,
           (long long)s->held, (long long)s->together, (long long)replayed);
    for (i = 0; i < FAULT_COUNT; i++) {
        printf("%s%lld %s", i > 0 ? ", " : "", (long long)s->faults[i], fault_texts[i]);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    uint64_t first = 1, hash = 0, all = 0, again;
    int64_t seeds = 24, i;
    double hours = 2;
    bool once = false, good = true;
    int from = 0, to = PARTS, part;
    summary total, one;

    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--verbose") == 0) verbose = once = true;
        else if (strcmp(argv[i], "--once") == 0) once = true;
        else if (strcmp(argv[i], "--ill") == 0) from = PART_ILL, to = PART_ILL + 1;
        else if (strcmp(argv[i], "--graphs") == 0) from = PART_GRAPHS;
        else if (i + 1 == argc) return 2;
        else if (strcmp(argv[i], "--seed") == 0) first = strtoull(argv[++i], NULL, 10), seeds = 1;
        else if (strcmp(argv[i], "--seeds") == 0) seeds = atoll(argv[++i]);
        else if (strcmp(argv[i], "--hours") == 0) hours = atof(argv[++i]);
        else return 2;
    }
    w = (world *)calloc(1, sizeof *w);
    store = (jobq_memory *)calloc(1, store_size());
    before = (jobq_memory *)calloc(1, store_size());
    if (w == NULL || store == NULL || before == NULL) abort();
    memset(&total, 0, sizeof total);
    for (i = 0; i < PARTS * seeds && good; i++) {
        uint64_t seed = first + (uint64_t)i / PARTS;
        part = (int)(i % PARTS);
        if (part < from || part >= to) continue;
        good = run(seed, hours, part, &hash, &one);
        add_up(&total, &one);
        all = (all ^ hash) * 0x100000001b3u;
        if (!good || once || seed % 4 != 1) continue;
        good = run(seed, hours, part, &again, &one);
        if (good && again != hash) {
            printf("seed %llu: two runs differ\n", (unsigned long long)seed);
            good = false;
        }
    }
    print_summary(&total, (i + PARTS - 1) / PARTS, all);
    return good ? 0 : 1;
}
