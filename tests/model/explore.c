/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * explore.c -- walks every interleaving of a small world through the real code of jobq.h.
 *
 * A world has two or three workers, each a jobq_loop on a connection of its own, one jobq_memory,
 * two or three jobs or messages, and clocks that move by whole ticks. A move is one thing that can
 * happen: the next statement of a connection is executed and answered, a handler ends, a tick
 * passes, or a fault occurs (a crash, a cut connection, a late answer, a paused process, a clock
 * step, a cancel request ...). Each path has a limited number of faults, so the space is finite.
 * What must follow from a move (a loop sends what is due, a free thread takes a job) is part of it.
 *
 * States are compared by their meaning: instants relative to now, past instants only by their
 * order, worker ids and claim numbers by the order in which they appear. So an idle world has the
 * same state a tick later, and the walk ends. It goes breadth first, so the first violation found
 * has a shortest story.
 *
 * In every state it checks the laws of jobq.h and the promises that need no server. After every
 * statement it compares what was written with what the laws say. From some of the states it
 * continues without faults, and every job and message must end within a bound. The store executes
 * the SQL functions statement by statement: explore_steps.h, explore_store.h. Messages are in
 * explore_outbox.h, crashes of the server and what it forgets in explore_fall.h, schedules and keys
 * in explore_known.h, lines in explore_lines.h, jobs that expire in explore_expiry.h, jobs that
 * wait in explore_flows.h and explore_graphs.h, batches in explore_batch.h.
 *
 *     explore [--states N] [--faults N] [--seconds N] [--world NAME]
 */
#define JOBQ_LOOP_SLOTS 4
#define JOBQ_LOOP_CLAIMS 8
#define JOBQ_LOOP_QUEUES 1
#define JOBQ_LOOP_THREADS 3
#define JOBQ_LOOP_KINDS 2
#define JOBQ_LOOP_WATCHED 4
#define JOBQ_LOOP_PARTITIONS 2
#define JOBQ_LOOP_BATCH 2
#define JOBQ_LOOP_LANES 3
#define JOBQ_LOOP_SLICE_US 1000000
#define JOBQ_LOOP_SLICE_MAX_US 2000000
#define JOBQ_PRIORITY_MIN (-1)
#define JOBQ_PRIORITY_MAX 0
#define JOBQ_STRAYS_MAX 1
#define JOBQ_TALLY_KINDS 1
#define JOBQ_MEMORY_KINDS 1
#define MODEL_SCHEDULES 1
#define JOBQ_MEMORY_EDGES 4
#define JOBQ_MEMORY_LINES 2
#define MODEL_QUOTAS 1
#define MODEL_PERMITS 4
#define JOBQ_MEMORY_PARTITIONS 2
#define JOBQ_MEMORY_MESSAGES 3

static void explore_assert(const char *text);
#define JOBQ_ASSERT(x) ((x) ? (void)0 : explore_assert(#x))
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "model.h"

#define WIRE_PRIORITY 0
#define WIRE_EXECUTE model_execute
#include "wire.h"
#include "laws.h"
static void violate(const char *format, ...);
#define LATE violate
#include "told.h"
#include "../../examples/jobq/story.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TICK ((int64_t)1000000)
enum { NODES = 3, JOBS = 5, FLIGHT = 8, ZOMBIES = 3, ROWS = 8, CLAIM_ROWS = 16, LEASE = 3 };
enum { QUEUE_BITS = 2, FORGET = 4, BURNED = 8, RELAXED = 2, FORGOTTEN = 6, PRODUCED = 3 };

/* What sql/flows.sql has beside the edges. nudge: job 0: of the signal. by: the backend that wrote
 * it, plus 1; 0: its transaction has ended. */
enum { NUDGES = 8, SPAWNED = 2, TIME_LIMIT = 3 };

typedef struct nudge {
    uint8_t used, job, cancel, by;
} nudge;

typedef struct tables {
    int64_t until_us[JOBS]; /* of jobs that wait for the signal; 0: it does not */
    nudge nudges[NUDGES];
    int64_t sent; /* the signal */
} tables;

#define MEMORY_SIZE                                                                                \
    (sizeof(jobq_memory) + JOBS * sizeof(jobq_memory_job) + ROWS * sizeof(jobq_memory_worker) +   \
     CLAIM_ROWS * sizeof(jobq_memory_claim) + sizeof(model) + JOBS * sizeof(model_job))
#define STORE_SIZE (MEMORY_SIZE + sizeof(tables))

/* id, text of the story. Faults are bounded: each alone, and all of a path together. */
#define MOVES(X)                                                                                   \
    X(ANSWER, "its next statement is executed and answered")                                       \
    X(TICK, "a tick passes")                                                                       \
    X(FINISH, "its handler ends")                                                                  \
    X(KILL, "its handler kills it")                                                                \
    X(DELIVER, "its handler of messages ends")                                                     \
    X(COMMITS, "its handler's own transaction acknowledges and commits")                           \
    X(SHOW, "a message is visible that was written before all others")                             \
    X(GHOST, "a statement of a lost connection is executed after all")                             \
    X(PART, "its next statement is held up on the server")                                         \
    X(SNAPSHOT, "its next statement takes its snapshot")                                           \
    X(ABORT, "a statement of a lost connection is given up by the server")                         \
    X(START, "starts anew")                                                                        \
    X(RESUME, "its process goes on")                                                               \
    X(FAST, "its connection is quick again")                                                       \
    X(UNHOLD, "the queue goes on")                                                                 \
    X(PRODUCE, "a job with the key is enqueued")                                                   \
    X(LOOK, "its handler asks for the signal")                                                     \
    X(SEND, "someone sends the signal")                                                            \
    X(REVIVE, "someone revives a failed job")                                                      \
    X(EXECUTE, "its next statement is executed, the answer is late")                               \
    X(CUT, "its connection is lost")                                                               \
    X(CRASH, "crashes")                                                                            \
    X(PAUSE, "its process is stopped (SIGSTOP)")                                                   \
    X(SLOW, "its connection stalls")                                                               \
    X(REFUSE, "its next statement is refused (serialization)")                                     \
    X(BUSY, "its next statement meets a locked row")                                               \
    X(OUTCOME, "its handler ends in another way")                                                  \
    X(FAIL, "its handler of messages fails")                                                       \
    X(UNTOLD, "its handler completes its job in its own transaction")                              \
    X(UNSURE, "its handler's own transaction ends otherwise")                                      \
    X(OVERRUN, "its handlers of messages hang until they are given up")                            \
    X(CANCEL, "someone asks to cancel a job")                                                      \
    X(HOLD, "the queue is paused")                                                                 \
    X(STOP, "is asked to stop")                                                                    \
    X(STEP, "the store's clock steps")                                                             \
    X(COMMIT, "a job commits that was enqueued before all others")                                 \
    X(NOTIFY, "is notified")                                                                       \
    X(FALL, "the server crashes and starts again; relaxed commits that are lost")

typedef enum move_kind {
#define X(id, text) MOVE_##id,
    MOVES(X)
#undef X
        MOVE_COUNT
} move_kind;

static const char *const move_texts[] = {
#define X(id, text) text,
    MOVES(X)
#undef X
};

/* How the transaction of a handler ends. */
typedef enum own_end { OWN_COMMITTED, OWN_UNTOLD, OWN_LATE, OWN_LOST, OWN_ROLLED_BACK } own_end;

typedef struct move {
    uint8_t kind, node, arg, more;
} move;

/* The rows of open transactions: explore_store.h. */
enum { KINDS = 3, LINES = 2, BACKENDS = NODES + ZOMBIES + 1 };
enum {
    JOB_ROW = 0,
    WORKER_ROW = JOB_ROW + JOBS,
    CLAIM_ROW = WORKER_ROW + ROWS,
    SLEEPER_ROW = CLAIM_ROW + CLAIM_ROWS,
    KIND_ROW = SLEEPER_ROW + ROWS,
    LINE_ROW = KIND_ROW + KINDS,
    EDGE_ROW = LINE_ROW + LINES,
    NUDGE_ROW = EDGE_ROW + JOBQ_MEMORY_EDGES,
    WAIT_ROW = NUDGE_ROW + NUDGES,
    SIGNAL_ROW = WAIT_ROW + JOBS,
    LOCKS
};

/* How a claim stands to a line of its page. */
enum { LINE_LEFT, LINE_FREE, LINE_WANTED, LINE_LOCKED };

/* Where a claim stands on its way through the lanes, and on its walk through lines: like jobq.walk,
 * and what the functions of sql/lines.sql remember. */
typedef struct line_walk {
    int64_t after, from, at, due_us;
    jobq_low low;
    uint8_t lane, page, round, had, lines, line[LINES], room[LINES], state[LINES], head[LINES];
    uint8_t quantum, met, late, limited; /* bits of jobs */
    uint8_t spare;                       /* bits of lines that may give more */
    bool walks, moved, more;
} line_walk;

typedef struct rows {
    uint8_t locks[LOCKS][BACKENDS]; /* the mode that each holds; 0: none */
    uint8_t writer[LOCKS];          /* 0: nobody, else a backend plus 1 */
    bool marks[LOCKS];              /* sleepers, kinds and the signal, as written */
    nudge nudges[NUDGES];
    jobq_memory_edge edges[JOBQ_MEMORY_EDGES];
    int64_t until_us[JOBS];
    jobq_memory_job jobs[JOBS];
    jobq_memory_worker workers[ROWS];
    jobq_memory_claim claims[CLAIM_ROWS];
} rows;

/* A worker's process and its connection; flight holds its statements, first sent first. */
typedef struct node {
    int64_t last_worker, last_number; /* of its latest claim */
    int32_t incarnation, registers, flying;
    bool up, paused, slow, asked, empty; /* asked to stop; its latest claim found nothing at all */
    bool hung;    /* its handlers of messages */
    bool severed; /* paused, and the server is not the one it was connected to */
    uint8_t backend; /* executes the first of its statements; plus 1 */
    uint64_t met;    /* kinds without a handler here, since the last news: bit i: kind i */
    jobq_loop loop;
    wire flight[FLIGHT];
} node;

/* A request whose connection has ended. */
typedef struct zombie {
    int32_t node, age;
    uint8_t backend;
    wire wire;
} zombie;

/* When a worker's lease was last renewed, by the world's time: what no clock step can change. */
typedef struct renewal {
    int64_t worker;
    int32_t tick;
} renewal;

typedef union image {
    jobq_memory memory;
    char bytes[STORE_SIZE];
} image;

/* What the functions of sql/flows.sql remember. The first ones are bits of jobs. */
typedef struct flow_work {
    uint8_t ended, jobs, cancel, held, skipped, undecided, ready, decided, revived;
    uint8_t nudges, then, after, state; /* then: the step after the end of jobs; after: promote */
    uint8_t own; /* of jobs: about which promote may decide */
    bool here, signal, signal_own, signal_skipped, linked;
} flow_work;

/* A process of the server in the midst of a function: explore_steps.h. */
typedef struct backend {
    int64_t now_us; /* statement_timestamp(): of the statement that the client sent */
    int64_t worker;
    int32_t tick, node;
    uint8_t step;  /* the SQL statement that comes next; 0: a free place */
    uint8_t waits; /* for the end of this backend, plus 1 */
    bool live, held, snapped, waited, lives;
    uint32_t free; /* kinds that it has locked, to park jobs or to return them */
    uint8_t at, done, count, jobs[JOBS], claim_count, claims[CLAIM_ROWS];
    uint32_t parked;
    line_walk walk;
    flow_work flow;
    image snapshot; /* if snapped */
} backend;

/* A claim of a job or a partition. */
typedef struct token {
    int64_t worker, claim;
} token;

typedef struct world {
    int32_t tick, offset, zombies, faults;
    uint8_t left[MOVE_COUNT];
    int32_t burned_count;
    int64_t burned[BURNED][2]; /* claims that came to nothing: their rows stay with the worker */
    renewal renewals[ROWS];
    int32_t held[JOBQ_MEMORY_PARTITIONS]; /* when a partition's holder last moved */
    uint32_t handled;                     /* bit i: message i was, by a handler */
    uint32_t effects; /* of handlers that complete in their own transaction: see effect_of */
    bool hidden; /* the first message: its transaction is still open */
    uint8_t numbers[JOBQ_MEMORY_PARTITIONS][JOBQ_MEMORY_MESSAGES]; /* the message of each, plus 1 */
    zombie ghosts[ZOMBIES];
    int32_t relaxed, forgotten_count;
    token forgotten[FORGOTTEN]; /* by a server that crashed; somebody still bears them */
    image disk[RELAXED];        /* the store before each commit that has not reached the disk */
    image store;
    uint32_t parked; /* bit i: kind i is marked as parked */
    int32_t switches; /* how often a statement may still be held up */
    uint8_t begun; /* bit i: job i + 1 has run */
    uint8_t produced, newest; /* payloads of the key: how many; the last one accepted */
    uint8_t late[JOBS];       /* heartbeats since the last end that decides about a job */
    uint8_t looked[NODES];    /* what its handler knows of the signal: see explore_graphs.h */
    int64_t delays_us[NODES]; /* ... and how long it is to wait for it */
    int32_t begin_by[JOBS];   /* the tick before which a claimed job has to begin; 0: any */
    uint8_t spawned;          /* ends that named new jobs and were accepted */
    rows rows;
    backend backends[BACKENDS];
    node nodes[NODES];
} world;

/* A bounded world. */
typedef struct setting {
    const char *name;
    int nodes, jobs, stages, threads, timeout;
    bool prefetch, listen, late_job, suspects, fresh, drain, falls, orphan;
    bool urgent;              /* the last job has priority -1 */
    int crashing;              /* this many of the last jobs kill their worker; the first one is a
                                 suspect and healthy, and nothing else kills a worker */
    int stuck;                /* a job that the server cannot send; 0: none */
    bool alone;               /* and the first one must run alone from the beginning */
    bool done;                /* handlers complete their jobs in their own transactions */
    bool kinds;               /* the first worker has no handler for the second job's */
    bool paused;              /* the second job's kind is, until the faults stop */
    int batch;                /* jobs of a claim (two, if not said) */
    int portion;              /* claims of a rescue (all, if not said) */
    int partitions, attempts; /* of a message: one in all, or so many before the faults' */
    const char *messages;     /* the nature of each */
    bool all;                 /* a handler takes whole batches */
    bool own;                 /* ... acknowledges in its own transaction */
    bool late_message;
    int switches; /* statements that are held up on the server, within their functions */
    bool pairs;   /* each two functions at once: explore_pairs.h */
    bool schedule, known; /* explore_known.h */
    const char *lines; /* of each job: explore_lines.h */
    bool strict;
    int permits; /* jobs that may run over all workers: explore_permits.h */
    const char *graph; /* what waits for what: explore_graphs.h */
    bool signal, spawn;
    const char *expires; /* ticks, of each job; 0: it does not: explore_expiry.h */
    int together; /* jobs of a call (one, if not said): explore_batch.h */
    int gather;   /* ticks for which a job may wait for others */
} setting;

/* Threads and stages: one, if not said. */
static const setting settings[] = {
    {.name = "pair", .nodes = 2, .jobs = 2, .prefetch = true},
    {.name = "stages", .nodes = 2, .jobs = 2, .stages = 2},
    {.name = "narrow", .nodes = 2, .jobs = 2, .stages = 2, .late_job = true, .urgent = true},
    {.name = "suspects", .nodes = 2, .jobs = 3, .threads = 2, .prefetch = true, .suspects = true},
    {.name = "alone", .nodes = 1, .jobs = 3, .threads = 3, .crashing = 2},
    {.name = "apart", .nodes = 1, .jobs = 3, .threads = 3, .crashing = 2, .alone = true},
    {.name = "late", .nodes = 2, .jobs = 3, .late_job = true},
    {.name = "urgent", .nodes = 2, .jobs = 2, .late_job = true, .urgent = true},
    {.name = "timeout", .nodes = 2, .jobs = 2, .timeout = 2, .prefetch = true, .listen = true},
    {.name = "three", .nodes = 3, .jobs = 2},
    {.name = "fresh", .nodes = 2, .jobs = 1, .fresh = true},
    {.name = "drain", .nodes = 2, .jobs = 2, .late_job = true, .drain = true},
    {.name = "outbox", .nodes = 2, .partitions = 1, .attempts = 3, .messages = "ggg"},
    {.name = "kills", .nodes = 2, .partitions = 1, .attempts = 3, .messages = "gkg"},
    {.name = "two", .nodes = 2, .threads = 2, .partitions = 2, .attempts = 3, .messages = "krg"},
    {.name = "beside", .nodes = 2, .jobs = 1, .threads = 2, .partitions = 1, .attempts = 3,
     .messages = "gxg"},
    {.name = "orphan", .nodes = 2, .jobs = 3, .threads = 2, .orphan = true},
    {.name = "kinds", .nodes = 2, .jobs = 2, .kinds = true},
    {.name = "pauses", .nodes = 2, .jobs = 2, .threads = 2, .paused = true},
    {.name = "stuck", .nodes = 2, .jobs = 3, .stuck = 2},
    {.name = "done", .nodes = 2, .jobs = 2, .stages = 2, .done = true},
    {.name = "parts", .nodes = 2, .jobs = 3, .threads = 3, .batch = 1, .portion = 1},
    {.name = "falls", .nodes = 2, .jobs = 2, .threads = 2, .falls = true},
    {.name = "batch", .nodes = 2, .partitions = 1, .attempts = 1, .messages = "grg", .all = true},
    {.name = "says", .nodes = 2, .partitions = 1, .attempts = 3, .messages = "gpx", .all = true},
    {.name = "own", .nodes = 2, .partitions = 1, .attempts = 3, .messages = "grx", .own = true},
    {.name = "shows", .nodes = 2, .partitions = 1, .attempts = 3, .messages = "ggx",
     .late_message = true},
    {.name = "unread", .nodes = 2, .partitions = 1, .attempts = 3, .messages = "gug"},
    {.name = "forgets", .nodes = 2, .partitions = 1, .attempts = 1, .messages = "xgg",
     .falls = true},
    {.name = "claims", .nodes = 1, .jobs = 1, .switches = 1},
    {.name = "held", .nodes = 2, .jobs = 2, .switches = 3},
    {.name = "parks", .nodes = 2, .jobs = 2, .switches = 2, .kinds = true},
    {.name = "schedule", .nodes = 2, .schedule = true},
    {.name = "known", .nodes = 1, .threads = 2, .known = true},
    {.name = "lines", .nodes = 2, .jobs = 3, .threads = 2, .switches = 2, .lines = "\1\1\2"},
    {.name = "strict", .nodes = 2, .jobs = 3, .threads = 2, .switches = 2, .lines = "\1\1\1",
     .strict = true},
    {.name = "permits", .nodes = 2, .jobs = 2, .threads = 2, .permits = 1},
    {.name = "diamond", .nodes = 2, .jobs = 4, .batch = 1, .switches = 2,
     .graph = "12s 13c 24a 34c"},
    {.name = "signal", .nodes = 2, .jobs = 1, .switches = 2, .signal = true},
    {.name = "spawn", .nodes = 2, .jobs = 1, .batch = 1, .switches = 2, .spawn = true},
    {.name = "expiry", .nodes = 2, .jobs = 3, .prefetch = true, .switches = 1,
     .expires = "\2\3\2"},
    {.name = "together", .nodes = 2, .jobs = 3, .threads = 2, .timeout = 2, .together = 2},
    {.name = "gather", .nodes = 1, .jobs = 3, .threads = 2, .together = 2, .gather = 1},
    {.name = "fellows", .nodes = 1, .jobs = 4, .threads = 2, .crashing = 1, .together = 2,
     .prefetch = true},
    {.name = "pairs", .nodes = 1, .jobs = 3, .pairs = true},
};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

/* Actions that no loop asks for. */
#define OPERATOR_CANCEL JOBQ_REQUEST_COUNT
#define OPERATOR_REVIVE (JOBQ_REQUEST_COUNT + 1)
#define SENDER (JOBQ_REQUEST_COUNT + 2)
#define HANDLER_LOOKS (JOBQ_REQUEST_COUNT + 3)

static const setting *set;
static int fault_limit = 2;
static char broken[512];       /* the violation, empty while there is none */
static jmp_buf assertion;
static bool telling;           /* a story is being told */
static jobq_loop_config config;
static jobq_loop_served serving;
static jobq_policy policy;

static void violate(const char *format, ...)
{
    va_list args;

    if (broken[0] != '\0') return;
    va_start(args, format);
    vsnprintf(broken, sizeof broken, format, args);
    va_end(args);
}

static void explore_assert(const char *text)
{
    violate("assertion of jobq.h: %s", text);
    longjmp(assertion, 1);
}

static jobq_memory *store(const world *w)
{
    return (jobq_memory *)(void *)(uintptr_t)w->store.bytes;
}
static int64_t mono_us(const world *w) { return (1000 + w->tick) * TICK; }
static int64_t store_us(const world *w) { return (2000 + w->tick + w->offset) * TICK; }
static jobq_job *job_at(const world *w, int i) { return &jobq__memory_jobs(store(w))[i].job; }

static void fix_chance(const world *w, int n);
static bool may(const world *w, move_kind kind);
static uint64_t kinds_of(int n);
static void pump(world *w, int n);
static void committed(world *w, const image *before, bool relaxed);
static const jobq_memory *image_at(const world *w, int i);
static bool is_forgotten(const world *w, int64_t worker, int64_t claim);
static void check_done(const world *w, const jobq_job *job);
static bool deliver(world *w, int n, int32_t part, bool good);
static void commit_own(world *w, int n, int32_t part, own_end end);
static void leave_own(world *w, int n, int32_t part);
static void check_begin(const world *w, const jobq_part *p);
static void check_messages_written(world *w, const jobq_memory *before, wire *s);
static void check_outbox(const world *w);
static bool outbox_done(const world *w);
static void show_message(world *w);
static void check_fired(world *w, const jobq_memory *before, int64_t now_us);
static void check_known(const world *w);
static void check_permits(world *w);
static void check_on_time(const world *w, const jobq_job *job);
static void check_ended(const world *w, const jobq_memory *before, const wire *s);
static void note_limits(world *w, const backend *b, const wire *s);
static void check_begun(const world *w, const jobq_memory *before);
static void produce(world *w, jobq_known how);
static void begin_schedule(world *w);
static bool waiting(const world *w);
static bool held_by_parents(const world *w, int i);
static void check_flows(const world *w);
static void check_flows_written(world *w, const backend *b, const wire *s, const image *before,
                                bool alone);
static bool may_be_early(const backend *b, const jobq_memory *before, int64_t job,
                         const char *wrong);
static void check_twin_flows(const world *w, const wire *s, const image *before,
                             const image *twin);

#include "explore_store.h"
#include "explore_steps.h"

/* Most of a world is room for statements; what is not in flight is zero. */
static void copy_world(world *to, const world *from)
{
    int n;

    memcpy(to, from, offsetof(world, nodes));
    for (n = 0; n < NODES; n++) {
        node *d = &to->nodes[n];
        int unused = d->flying - from->nodes[n].flying;
        memcpy(d, &from->nodes[n],
               offsetof(node, flight) + (size_t)from->nodes[n].flying * sizeof(wire));
        if (unused > 0) memset(&d->flight[d->flying], 0, (size_t)unused * sizeof(wire));
    }
}

/* ---- checks ---------------------------------------------------------------------------------- */

static const node *owner(const world *w, int64_t worker)
{
    int n;

    for (n = 0; n < set->nodes; n++) {
        if (w->nodes[n].up && worker != 0 && w->nodes[n].loop.worker == worker) return &w->nodes[n];
    }
    return NULL;
}

/* A rescue in parts says whether anything is left. */
static void check_rest(const world *w, const wire *s)
{
    bool left = false;
    int i;

    for (i = 0; i < store(w)->claim_max; i++) {
        const jobq_memory_claim *c = &jobq__memory_claims(store(w))[i];
        left |= c->worker == s->request.worker && c->burned_at_us == 0;
    }
    if (s->answer.done && s->answer.more != left) {
        violate("promise 1: a rescue in several parts forgets the rest");
    }
}

static void check_death(const world *w, const jobq_memory *before, const wire *s)
{
    const jobq_memory_worker *a = jobq__memory_worker_of(before, s->request.worker);
    const jobq_memory_worker *b = jobq__memory_worker_of(store(w), s->request.worker);
    const node *d = owner(w, s->request.worker);

    if (a == NULL || b == NULL || a->dead || !b->dead) return;
    if (a->beat != s->request.beat) {
        violate("promise 5: a worker was declared dead after a heartbeat that its rescuer missed");
    }
    if (d == NULL) return;
    if (mono_us(w) < d->loop.lease.end_mono_us) {
        violate("promise 5: a worker was declared dead before its own deadline was over");
    }
}

/* What a statement wrote, against the laws. */
static void check_written(const world *w, const jobq_memory *before, const wire *s,
                          const backend *b, bool alone)
{
    int64_t job = 0;
    const char *wrong = laws_written(before, store(w), s, b->now_us, &job);
    int i;

    if (wrong == laws_beside && !alone) wrong = NULL;
    if (wrong != NULL && !may_be_early(b, before, job, wrong)) {
        violate("%s (job %d)", wrong, (int)job);
    }
    if (s->request.kind == JOBQ_REQUEST_RESCUE) check_death(w, before, s);
    if (s->request.kind == JOBQ_REQUEST_RESCUE && alone) check_rest(w, s);
    for (i = 0; i < s->answer.claimed.count; i++) {
        const jobq_job *claimed = &s->answer.claimed.jobs[i];
        if ((store(w)->paused_kinds >> claimed->kind & 1) == 0) continue;
        violate("job %d was claimed, though its kind is paused", (int)claimed->id);
    }
}

static bool is_burned(const world *w, int64_t worker, int64_t number)
{
    int i;

    for (i = 0; i < w->burned_count; i++) {
        if (w->burned[i][0] == worker && w->burned[i][1] == number) return true;
    }
    return false;
}

static void note_burned(world *w, int64_t worker, int64_t number)
{
    if (is_burned(w, worker, number)) return;
    if (w->burned_count == BURNED) {
        violate("more than %d claims came to nothing: raise BURNED", BURNED);
        return;
    }
    w->burned[w->burned_count][0] = worker;
    w->burned[w->burned_count++][1] = number;
}

/* A running job is in somebody's custody: its worker knows it, or can die and be rescued. */
static void check_custody(const world *w, const jobq_job *job)
{
    const node *d = owner(w, job->worker);
    int32_t entry, i;

    if (is_burned(w, job->worker, job->claim)) {
        violate("promise 1: job %d came with a claim that its worker was told would never come",
                (int)job->id);
    }
    if (jobq__memory_claim_of(store(w), job->worker, job->claim) == NULL) {
        violate("promise 1: job %d is running without a claim row", (int)job->id);
    }
    if (jobq__memory_worker_of(store(w), job->worker) == NULL) {
        violate("promise 1: job %d is held by a worker that has no row", (int)job->id);
    }
    if (d == NULL) return;
    entry = jobq__claim_find(&d->loop, job->worker, job->claim);
    if (entry >= 0 && (d->loop.claims[entry].state == JOBQ_CLAIM_SENT ||
                       d->loop.claims[entry].state == JOBQ_CLAIM_ORPHAN)) {
        return;
    }
    for (i = 0; i < JOBQ_LOOP_SLOTS; i++) {
        const jobq_slot *s = &d->loop.slots[i];
        if (s->state != JOBQ_SLOT_FREE && s->job.id == job->id &&
            jobq_job_holds(job, s->job.worker, s->job.claim)) {
            return;
        }
    }
    violate("promise 1: job %d is held by a living worker that has forgotten it", (int)job->id);
}

/* A claim's row goes by its living worker, who so has to know of it; a burned number's stays. */
static void check_row(const world *w, const jobq_memory_claim *c)
{
    const node *d = owner(w, c->worker);

    if (d == NULL || c->burned_at_us != 0 || d->loop.phase > JOBQ_PHASE_STOPPING) return;
    if (jobq__claim_find(&d->loop, c->worker, c->number) < 0) {
        violate("there is a row of claim %d, and its living worker does not know the claim",
                (int)c->number);
    }
}

/* The suspects of a worker: one at a time, alone in its claim. */
static void check_suspects(const world *w, const jobq_job *job)
{
    int i;

    for (i = 0; i < store(w)->job_count; i++) {
        const jobq_job *o = job_at(w, i);
        if (o == job || o->state != JOBQ_STATE_RUNNING || o->worker != job->worker) continue;
        if (o->claim == job->claim) violate("law 6: suspect %d shares its claim", (int)job->id);
        if (o->suspect) violate("law 6: a worker holds two suspects at once");
        if (job->alone && !set->pairs) { /* there no loop decides */
            violate("law 6: job %d must run alone, but does not", (int)job->id);
        }
    }
}

/* Promise 4. */
static void check_healthy(const jobq_memory_job *mj)
{
    if (mj->job.crash > 0 || mj->reason == JOBQ_REASON_CRASHES) {
        violate("promise 4: healthy job %d is blamed for a death beside it", (int)mj->job.id);
    }
}

/* Who was claimed to by a server that has forgotten it can't know: the fence is for that. */
static bool held_validly(const world *w, const node *d, const jobq_slot *s)
{
    return (s->state == JOBQ_SLOT_QUEUED || s->state == JOBQ_SLOT_RUNNING) &&
           s->job.worker == d->loop.worker && mono_us(w) < d->loop.lease.end_mono_us &&
           !is_forgotten(w, s->job.worker, s->job.claim);
}

static bool kills(const jobq_job *job)
{
    return set->crashing > 0 && job->id > set->jobs - set->crashing;
}

static void check_calls(const jobq_loop *l);
static void check_abandon(const jobq_loop *l, const jobq_request *a);
static bool call_kills(const jobq_loop *l, int32_t slot);

/* A loop's own books. */
static void check_books(const jobq_loop *l)
{
    int32_t suspects = 0, alone = 0, orphans = 0, slots = 0, open[JOBQ_LOOP_CLAIMS] = {0}, i;

    for (i = 0; i < JOBQ_LOOP_SLOTS; i++) {
        if (l->slots[i].state == JOBQ_SLOT_FREE) continue;
        slots++;
        if (l->slots[i].job.suspect) suspects++;
        if (l->slots[i].job.alone) alone++;
        open[l->slots[i].entry]++;
    }
    for (i = 0; i < JOBQ_LOOP_CLAIMS; i++) {
        if (l->claims[i].state == JOBQ_CLAIM_ORPHAN) orphans++;
        if (l->claims[i].open != open[i] && l->claims[i].state != JOBQ_CLAIM_NONE) {
            violate("the loop miscounts the open jobs of a claim");
        }
        if (open[i] > 0 && l->claims[i].state == JOBQ_CLAIM_NONE) {
            violate("the loop holds a job whose claim it has dropped");
        }
    }
    if (suspects != l->suspects.held_count) violate("the loop miscounts its suspects");
    if (alone > 0 && slots + l->relay.held > 1) {
        violate("law 6: a worker holds more than the job that must run alone");
    }
    if (orphans != l->orphan_count) violate("the loop miscounts its orphans");
    if (slots + jobq__slots_free(l) != JOBQ_LOOP_SLOTS) violate("the loop lost a slot");
    check_calls(l);
}

static void check_lease(const world *w, const node *d)
{
    const jobq_memory_worker *row = jobq__memory_worker_of(store(w), d->loop.worker);
    int i;

    if (d->loop.worker == 0 || d->loop.lease.end_mono_us <= mono_us(w)) return;
    if (d->loop.phase > JOBQ_PHASE_STOPPING) return; /* it says good-bye, and holds nothing */
    for (i = 0; i < ROWS && w->renewals[i].worker != d->loop.worker;) i++;
    if (row == NULL || row->dead || i == ROWS) {
        violate("promise 5: a worker without a living row believes in its lease");
    } else if (d->loop.lease.end_mono_us > (1000 + w->renewals[i].tick + LEASE) * TICK) {
        violate("promise 5: the local deadline is later than the store's expiry");
    }
}

static void check_node(const world *w, int n)
{
    const node *d = &w->nodes[n];
    int i, j, k;

    check_books(&d->loop);
    check_lease(w, d);
    for (i = 0; i < JOBQ_LOOP_SLOTS; i++) {
        const jobq_slot *s = &d->loop.slots[i];
        if (!held_validly(w, d, s)) continue;
        if (!jobq_job_holds(jobq__memory_worker_of(store(w), d->loop.worker) == NULL
                                ? &s->job : job_at(w, (int)s->job.id - 1),
                            s->job.worker, s->job.claim)) {
            violate("promise 3: worker %d may run job %d, but the store gave it to another", n + 1,
                    (int)s->job.id);
        }
        for (j = 0; j <= n; j++) {
            for (k = 0; k < (j == n ? i : JOBQ_LOOP_SLOTS); k++) {
                const jobq_slot *o = &w->nodes[j].loop.slots[k];
                if (w->nodes[j].up && held_validly(w, &w->nodes[j], o) &&
                    o->job.id == s->job.id) {
                    violate("two workers hold job %d validly at once", (int)s->job.id);
                }
            }
        }
    }
}

static void check_world(world *w)
{
    int i;

    for (i = 0; i < store(w)->job_count; i++) {
        const jobq_job *job = job_at(w, i);
        if (job->id == 0) continue;
        if (jobq_job_check(job) != JOBQ_OK) violate("job %d breaks a law from 1 to 5", i + 1);
        check_done(w, job);
        if (parked(store(w), i, job->kind) && (w->parked >> job->kind & 1) == 0) {
            violate("promise 1: job %d is parked, but its kind is not marked", i + 1);
        }
        if (job->state != JOBQ_STATE_RUNNING) continue;
        check_custody(w, job);
        if (job->suspect) check_suspects(w, job);
    }
    for (i = 0; i < store(w)->claim_max; i++) check_row(w, &jobq__memory_claims(store(w))[i]);
    for (i = 0; i < set->nodes && broken[0] == '\0'; i++) {
        if (w->nodes[i].up) check_node(w, i);
    }
    for (i = 0; i < set->jobs - set->crashing && set->crashing > 0; i++)
        check_healthy(&jobq__memory_jobs(store(w))[i]);
    check_outbox(w);
    check_known(w);
    check_lines(w);
    check_permits(w);
    check_flows(w);
}

/* ---- how the world moves --------------------------------------------------------------------- */

/* Chance is fixed, so that states meet again; only worker ids have to differ. */
static void fix_chance(const world *w, int n)
{
    node *d = (node *)(uintptr_t)&w->nodes[n];

    d->loop.random.state = (uint64_t)(n + 1) << 40 | (uint64_t)d->incarnation << 20 |
                           (uint64_t)d->registers;
}

static void renewed(world *w, int64_t worker, int32_t tick)
{
    int i, place = -1;

    for (i = 0; i < ROWS; i++) {
        if (w->renewals[i].worker == worker) place = i;
    }
    for (i = 0; i < ROWS && place < 0; i++) {
        if (jobq__memory_worker_of(store(w), w->renewals[i].worker) == NULL ||
            w->renewals[i].worker == 0) {
            place = i;
        }
    }
    w->renewals[place < 0 ? 0 : place].worker = worker;
    w->renewals[place < 0 ? 0 : place].tick = tick;
}

/* Whether a function is under way for this worker. */
static bool served(const world *w, int64_t worker)
{
    int i = 0;

    while (i < BACKENDS && (w->backends[i].step == 0 || w->backends[i].worker != worker)) i++;
    return i < BACKENDS;
}

/* Rows of dead workers without claims go, as housekeeping would have it: after a day, and by then
 * no statement of theirs is under way. */
static void tidy_store(world *w)
{
    jobq_memory *m = store(w);
    int i, c;

    for (i = 0; i < m->worker_max; i++) {
        jobq_memory_worker *row = &jobq__memory_workers(m)[i];
        if (row->id == 0 || !row->dead || jobq__memory_holds(m, row->id)) continue;
        if (served(w, row->id) || !unlocked(w, WORKER_ROW + i)) continue;
        for (c = 0; c < m->claim_max; c++) {
            jobq_memory_claim *claim = &jobq__memory_claims(m)[c];
            if (claim->worker == row->id) memset(claim, 0, sizeof *claim);
        }
        memset(row, 0, sizeof *row);
    }
}

static uint64_t kinds_of(int n)
{
    return set->pairs || set->paused || (set->kinds && n > 0) ? 6 : 2;
}

/* It has ended; before: what was committed then. */
static void executed(world *w, const backend *b, wire *s, const image *before, bool alone)
{
    const jobq_memory *was = memory_of(before);

    s->executed = true;
    check_written(w, was, s, b, alone);
    check_flows_written(w, b, s, before, alone);
    check_messages_written(w, was, s);
    check_fired(w, was, b->now_us);
    if (s->request.kind == JOBQ_REQUEST_CLAIM && b->live &&
        s->answer.error == JOBQ_ERROR_EXISTS) {
        violate("a claim number was used twice");
    }
    if (s->answer.error == JOBQ_OK &&
        (s->request.kind == JOBQ_REQUEST_REGISTER || s->answer.news.alive)) {
        renewed(w, s->request.worker, b->tick);
    }
    if (s->request.kind == JOBQ_REQUEST_RECOVER && !s->answer.more) {
        note_burned(w, s->request.worker, s->request.claim);
    }
    check_ended(w, was, s);
    note_limits(w, b, s);
    tidy_store(w);
    committed(w, before, s->request.relaxed);
}

/* As the in-memory queue does it: all at once, or, after an error, nothing. */
static void at_once(const backend *b, wire *s, image *in)
{
    if (s->request.kind < JOBQ_REQUEST_COUNT) {
        image was = *in;
        wire_execute(s, memory_of(in), QUEUE_BITS, kinds_of(b->node), b->now_us);
        if (s->answer.error != JOBQ_OK) *in = was;
        return;
    }
    s->executed = true;
    if (s->request.kind == OPERATOR_CANCEL) {
        jobq_memory_event(memory_of(in), s->request.id, JOBQ_EVENT_CANCEL, b->now_us);
    } else if (s->request.kind == OPERATOR_REVIVE) {
        jobq_memory_event(memory_of(in), s->request.id, JOBQ_EVENT_REVIVE, b->now_us);
    }
}

/* A claim that has all it wants may have read more lines of its last page than the in-memory queue,
 * which goes line by line. Then its bound may be lower, which is allowed; never higher. */
static void same_bounds(jobq_claimed *one, const jobq_claimed *twin)
{
    int i;

    for (i = 0; i < one->stretch_count && i < twin->stretch_count; i++) {
        jobq_stretch *s = &one->stretches[i];
        const jobq_stretch *t = &twin->stretches[i];
        if (s->whole) continue;
        if (s->low_at_us < t->low_at_us) s->low_at_us = t->low_at_us;
        if (s->low_id < t->low_id) s->low_id = t->low_id;
    }
}

/* A function that nobody disturbs does what the in-memory queue does. A mark of a kind may outlive
 * the jobs that it was for: then an unpark finds none. */
static void check_twin(const world *w, const wire *s, const wire *twin, const image *before,
                       const image *store_twin)
{
    wire one = *s;

    if (flows() && s->request.kind != JOBQ_REQUEST_REGISTER) {
        check_twin_flows(w, s, before, store_twin);
        return;
    }
    if (twin->answer.news.parked_kind == 0) one.answer.news.parked_kind = 0;
    same_bounds(&one.answer.claimed, &twin->answer.claimed);
    if (!flows() && memcmp(&w->store, store_twin, sizeof w->store) != 0) {
        violate("the steps of %s and the in-memory queue write different rows",
                jobq_enum_name(JOBQ_ENUM_REQUEST, s->request.kind));
    } else if (s->answer.error != twin->answer.error ||
               (s->answer.error == JOBQ_OK && memcmp(&one, twin, sizeof one) != 0)) {
        violate("the steps of %s and the in-memory queue give different answers",
                jobq_enum_name(JOBQ_ENUM_REQUEST, s->request.kind));
    }
}

static uint8_t open_backend(world *w, int n, const wire *s, bool live)
{
    backend *b = w->backends;
    step first = first_step(s);

    if (first == STEP_NONE) return 0;
    while (b->step != 0) b++;
    b->step = (uint8_t)first;
    b->now_us = store_us(w);
    b->tick = w->tick;
    b->node = n;
    b->worker = s->request.worker;
    b->live = live;
    return (uint8_t)(b - w->backends + 1);
}

/* Executes up to most SQL statements of a function, its commit among them; slot says where it got
 * to. True: it has ended. */
static bool advance(world *w, int n, uint8_t *slot, wire *s, bool live, int most)
{
    bool alone = *slot == 0 && open_count(w) == 0 && most == INT32_MAX;
    image before = w->store, store_twin = w->store;
    wire twin = *s;
    backend b;

    if (*slot == 0) *slot = open_backend(w, n, s, live);
    if (*slot == 0) {
        memset(&b, 0, sizeof b);
        b.now_us = store_us(w);
        b.tick = w->tick;
        b.node = n;
        b.live = live;
        at_once(&b, s, &w->store);
        executed(w, &b, s, &before, true);
        return true;
    }
    if (!go_on(w, *slot - 1, s, most, &b)) return false;
    *slot = 0;
    s->executed = true;
    if (alone) at_once(&b, &twin, &store_twin);
    if (alone) check_twin(w, s, &twin, &before, &store_twin);
    executed(w, &b, s, &before, alone);
    return true;
}

/* A whole operation of somebody who has a moment without locks of others. */
static void execute(world *w, int n, wire *s, bool live)
{
    uint8_t slot = 0;

    if (!advance(w, n, &slot, s, live, INT32_MAX)) roll_back(w, &slot);
}

static bool lingers(jobq_request_kind kind)
{
    return kind != JOBQ_REQUEST_CONNECT && kind != JOBQ_REQUEST_POLICIES &&
           kind != JOBQ_REQUEST_SLEEP && kind != JOBQ_REQUEST_RESCUE;
}

static void haunt(world *w, int n, const wire *s)
{
    if (w->zombies == ZOMBIES) return;
    memset(&w->ghosts[w->zombies], 0, sizeof w->ghosts[0]);
    w->ghosts[w->zombies].node = n;
    w->ghosts[w->zombies++].wire = *s;
}

/* The server goes on with what it has begun, even if the client has left. */
static void haunt_begun(world *w, int n)
{
    node *d = &w->nodes[n];
    int i;

    if (d->backend == 0) return;
    for (i = 0; d->flight[i].executed;) i++;
    if (w->zombies == ZOMBIES) {
        roll_back(w, &d->backend);
    } else {
        haunt(w, n, &d->flight[i]);
        w->ghosts[w->zombies - 1].backend = d->backend;
        w->backends[d->backend - 1].live = false;
        d->backend = 0;
    }
    d->flight[i].executed = true;
}

/* The connection is gone. What had not been executed may be, later. */
static void drop_flight(world *w, int n)
{
    node *d = &w->nodes[n];
    int i;

    haunt_begun(w, n);
    for (i = 0; i < d->flying; i++) {
        if (d->flight[i].executed || !lingers(d->flight[i].request.kind)) continue;
        haunt(w, n, &d->flight[i]);
    }
    memset(d->flight, 0, (size_t)d->flying * sizeof d->flight[0]);
    d->flying = 0;
    d->slow = false;
}

static void remove_ghost(world *w, int i)
{
    roll_back(w, &w->ghosts[i].backend);
    memmove(&w->ghosts[i], &w->ghosts[i + 1], (size_t)(ZOMBIES - 1 - i) * sizeof w->ghosts[0]);
    memset(&w->ghosts[--w->zombies], 0, sizeof w->ghosts[0]);
}

static void start(world *w, int n)
{
    node *d = &w->nodes[n];

    d->incarnation++;
    d->registers = 0;
    d->last_worker = d->last_number = 0;
    d->met = 0;
    d->up = true;
    d->paused = d->slow = d->asked = d->empty = d->hung = d->severed = false;
    w->looked[n] = 0;
    w->delays_us[n] = 0;
    jobq_loop_init(&d->loop, &config, 1, mono_us(w));
    d->loop.wire.hold_mono_us[JOBQ_REQUEST_PRUNE] = JOBQ_NEVER;
    d->loop.relay.sweep_mono_us = JOBQ_NEVER; /* in memory every look is one */
}

/* What the loop has forgotten, and what is chance, is cleared. */
static void tidy_loop(jobq_loop *l)
{
    int32_t i;

    for (i = 0; i < JOBQ_LOOP_SLOTS; i++) {
        if (l->slots[i].state != JOBQ_SLOT_FREE) continue;
        memset(&l->slots[i].job, 0, sizeof l->slots[i].job);
        memset(&l->slots[i].decision, 0, sizeof l->slots[i].decision);
    }
    memset(&l->stats, 0, sizeof l->stats);
    memset(&l->relay.stats, 0, sizeof l->relay.stats);
    memset(&l->tallies, 0, sizeof l->tallies);
    l->pace.handler_us = set->prefetch ? 0 : -1;
    l->vacuum_rows = 0;
    l->random.state = 0;
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

/* Law 4: a job without a handler is parked, and gets its attempt back. */
static void park(const world *w, jobq_loop *l, int32_t slot)
{
    const jobq_slot *s = &l->slots[slot];
    jobq_state want = s->cancel ? JOBQ_STATE_CANCELLED : JOBQ_STATE_READY;

    jobq__job_unhandled(l, mono_us(w), slot);
    if (s->decision.state != want || s->decision.attempt != s->job.attempt - 1 ||
        s->decision.suspect != s->job.suspect ||
        (want == JOBQ_STATE_READY && s->decision.delay_us != JOBQ_NEVER)) {
        violate("laws 4, 6, 7: job %d was parked wrongly", (int)s->job.id);
    }
}

static void take_jobs(const world *w, int n)
{
    jobq_loop *l = (jobq_loop *)(uintptr_t)&w->nodes[n].loop;
    int32_t slot;

    while ((slot = jobq__take_job(l, mono_us(w))) >= 0) {
        check_on_time(w, &l->slots[slot].job);
        if ((kinds_of(n) >> l->slots[slot].job.kind & 1) != 0) continue;
        ((node *)(uintptr_t)&w->nodes[n])->met |= (uint64_t)1 << l->slots[slot].job.kind;
        park(w, l, slot);
    }
}

/* After a claim met a kind without a handler, it asks for that kind again only after news. */
static void check_kinds(const node *d, const jobq_request *a)
{
    if (!claims(a) || (wire_kinds(a) & d->met) == 0) return;
    violate("a worker claims again a kind that it has no handler for");
}

static void take_messages(const world *w, jobq_loop *l)
{
    int32_t part;

    while ((part = jobq__take_messages(l, mono_us(w))) >= 0) {
        check_begin(w, &l->relay.parts[part]);
    }
}

static void send_all(node *d, const jobq_request *a)
{
    int sent = d->flying;

    JOBQ_ASSERT(d->flying + 2 <= FLIGHT);
    d->flying += wire_send_all(&d->flight[d->flying], a);
    for (; sent < d->flying; sent++) d->flight[sent].stuck = set->stuck;
    if (a->kind == JOBQ_REQUEST_RESCUE) d->flight[d->flying - 1].portion = set->portion;
}

/* The loop does what is due: sends, abandons, exits; a free thread takes a job. */
static void pump(world *w, int n)
{
    node *d = &w->nodes[n];
    int guard;

    if (!d->up || d->paused || broken[0] != '\0') return;
    for (guard = 0;; guard++) {
        jobq_request a = {0};
        fix_chance(w, n);
        take_jobs(w, n);
        take_messages(w, &d->loop);
        jobq_loop_next(&d->loop, mono_us(w), &a);
        if (guard > 40) {
            violate("the loop of worker %d spins: %s", n + 1,
                    jobq_enum_name(JOBQ_ENUM_REQUEST, a.kind));
        }
        if (a.kind == JOBQ_REQUEST_WAIT && a.until_mono_us <= mono_us(w)) {
            violate("the loop of worker %d waits for an instant in the past", n + 1);
        }
        if (a.kind == JOBQ_REQUEST_WAIT || broken[0] != '\0') break;
        if (a.kind == JOBQ_REQUEST_ABANDON) {
            if (a.committing) leave_own(w, n, a.slot);
            if (a.partition_id == 0) check_abandon(&d->loop, &a);
            continue;
        }
        if (a.kind == JOBQ_REQUEST_DISCONNECT) {
            drop_flight(w, n);
            jobq_loop_disconnected(&d->loop, mono_us(w));
            continue;
        }
        if (a.kind == JOBQ_REQUEST_EXIT) {
            drop_flight(w, n);
            d->up = false;
            memset(&d->loop, 0, sizeof d->loop);
            return;
        }
        if (telling) printf("       worker %d sends %s\n", n + 1,
                            jobq_enum_name(JOBQ_ENUM_REQUEST, a.kind));
        check_number(d, &a);
        check_kinds(d, &a);
        if (a.kind == JOBQ_REQUEST_REGISTER) d->registers++;
        send_all(d, &a);
    }
    if (d->loop.phase != JOBQ_PHASE_WORKING && !d->asked && !d->empty &&
        !d->loop.queues[0].paused) {
        violate("worker %d took a short or bounded answer for an empty queue", n + 1);
    }
    tidy_loop(&d->loop);
    if (d->loop.relay.running == 0) d->hung = false;
}

static void shift_flight(node *d)
{
    d->flying--;
    memmove(&d->flight[0], &d->flight[1], (size_t)d->flying * sizeof d->flight[0]);
    memset(&d->flight[d->flying], 0, sizeof d->flight[0]);
}

static int first_unexecuted(const node *d)
{
    int i;

    for (i = 0; i < d->flying && d->flight[i].executed;) i++;
    return i < d->flying ? i : -1;
}

/* Executes the first statement of a connection that was not; false: it waits for a lock. */
static bool proceed(world *w, int n, int i)
{
    node *d = &w->nodes[n];

    if (d->backend != 0) w->backends[d->backend - 1].held = false;
    return advance(w, n, &d->backend, &d->flight[i], true, INT32_MAX);
}

static void answer(world *w, int n)
{
    node *d = &w->nodes[n];
    wire s;

    if (!d->flight[0].executed && d->flight[0].answer.error == JOBQ_OK && !proceed(w, n, 0)) return;
    s = d->flight[0];
    shift_flight(d);
    fix_chance(w, n);
    if (s.request.kind == JOBQ_REQUEST_CLAIM && !s.request.suspects) {
        d->empty = s.answer.claimed.count == 0 && s.answer.claimed.named == 0 &&
                   s.answer.claimed.ended_count == 0 && s.request.sweep &&
                   s.answer.error == JOBQ_OK; /* locked: someone's */
    }
    if (s.request.kind == JOBQ_REQUEST_HEARTBEAT && s.answer.error == JOBQ_OK) d->met = 0;
    wire_answer(&s, &d->loop, mono_us(w));
}

/* How a decision follows from an outcome, by the laws. */
static void check_decision(const jobq_slot *s, jobq_outcome outcome)
{
    const jobq_job *job = &s->job;
    const jobq_decision *d = &s->decision;
    bool last = job->stage + 1 == job->stages;
    jobq_state want = s->cancel ? JOBQ_STATE_CANCELLED : JOBQ_STATE_READY;
    int32_t attempt = job->attempt, snoozes = job->snoozes;

    if (outcome == JOBQ_OUTCOME_SUCCESS && last) want = JOBQ_STATE_SUCCEEDED;
    if (outcome == JOBQ_OUTCOME_SUCCESS && !last && !s->cancel) attempt = snoozes = 0;
    if (outcome == JOBQ_OUTCOME_DISCARD) want = JOBQ_STATE_FAILED;
    if (outcome == JOBQ_OUTCOME_CANCELLED) want = JOBQ_STATE_CANCELLED;
    if (outcome == JOBQ_OUTCOME_SNOOZE) {
        if (!s->cancel && policy.snoozes_max > 0 && job->snoozes >= policy.snoozes_max) {
            want = JOBQ_STATE_FAILED;
        } else {
            attempt--;
            snoozes++;
        }
    }
    if ((outcome == JOBQ_OUTCOME_RETRY || outcome == JOBQ_OUTCOME_DONE) && !s->cancel &&
        job->attempt >= policy.max_attempts) {
        want = JOBQ_STATE_FAILED; /* done, it would not be there any more */
    }
    if (d->state != want || d->attempt != attempt || d->snoozes != snoozes || d->suspect ||
        d->stage != job->stage + (want == JOBQ_STATE_READY && outcome == JOBQ_OUTCOME_SUCCESS)) {
        violate("laws 4, 6, 7, 9: job %d was decided wrongly", (int)job->id);
    }
}

static void finish(world *w, int n, int32_t slot, jobq_outcome outcome)
{
    jobq_loop *l = &w->nodes[n].loop;

    fix_chance(w, n);
    told_handled(l, mono_us(w), slot, l->slots[slot].generation, outcome, TICK, false);
    check_decision(&l->slots[slot], outcome);
}

/* Up to four stages a job. */
static uint32_t effect_of(int64_t job, int stage)
{
    return (uint32_t)1 << ((job - 1) * 4 + stage);
}

/* Promise 2: a handler's effects are there once, with the completion of its stage. */
static void complete_own(world *w, int n, int32_t slot, own_end end)
{
    const jobq_slot *s = &w->nodes[n].loop.slots[slot];
    uint32_t effect = effect_of(s->job.id, s->job.stage);
    jobq_event event;
    wire own;

    memset(&event, 0, sizeof event);
    event.kind = JOBQ_EVENT_SUCCESS;
    memset(&own, 0, sizeof own);
    own.request.kind = JOBQ_REQUEST_COMPLETE;
    own.request.ending_count = 1;
    own.request.endings[0].job = s->job.id;
    own.request.endings[0].worker = s->job.worker;
    own.request.endings[0].claim = s->job.claim;
    jobq_job_decide(&policy, &s->job, &event, &own.request.endings[0].decision);
    own.errors[0] = JOBQ_ERROR_RETRYABLE;
    if (end != OWN_ROLLED_BACK) execute(w, n, &own, true);
    if (own.errors[0] == JOBQ_OK) {
        if ((w->effects & effect) != 0) violate("promise 2: a job took effect twice");
        w->effects |= effect;
    }
    finish(w, n, slot, end == OWN_COMMITTED && own.errors[0] == JOBQ_OK
                           ? JOBQ_OUTCOME_DONE : JOBQ_OUTCOME_RETRY);
}

static void check_done(const world *w, const jobq_job *job)
{
    int stage, stages = job->state == JOBQ_STATE_SUCCEEDED ? job->stages : job->stage;

    for (stage = 0; stage < stages && set->done; stage++) {
        if ((w->effects & effect_of(job->id, stage)) != 0) continue;
        violate("promise 2: job %d went on, but the effects of its handler are lost", (int)job->id);
    }
}

static void pass_tick(world *w)
{
    int i;

    w->tick++;
    for (i = w->zombies - 1; i >= 0; i--) {
        if (++w->ghosts[i].age > FORGET) remove_ghost(w, i);
    }
    for (i = 0; i < set->nodes; i++) pump(w, i);
}

static void enqueue(world *w, bool early)
{
    jobq_job like = jobq_job_new(0);
    int64_t id;

    like.queue = 1;
    like.kind = (set->kinds || set->paused) && store(w)->job_count == 1 ? 2 : 1;
    like.stages = (int16_t)set->stages;
    if (set->lines != NULL) like.line = set->lines[store(w)->job_count];
    if (set->expires != NULL) like.expires_us = set->expires[store(w)->job_count] * TICK;
    like.priority = (int16_t)(set->urgent && store(w)->job_count == set->jobs - 1 ? -1 : 0);
    id = jobq_memory_enqueue(store(w), &like, jobq_str_from(NULL), store_us(w));
    if (early) jobq_memory_get(store(w), id)->job.run_at_us = 1999 * TICK;
}

static void crash(world *w, int n)
{
    node *d = &w->nodes[n];
    int32_t i;

    for (i = 0; i < d->loop.relay.count; i++) {
        if (d->loop.relay.parts[i].state == JOBQ_PART_COMMITTING) leave_own(w, n, i);
    }
    drop_flight(w, n);
    d->up = d->paused = d->severed = false;
    memset(&d->loop, 0, sizeof d->loop);
}


#include "explore_fall.h"

static void somebody(world *w, int kind, int64_t job);
static void look_for_signal(world *w, int n, int32_t slot);
static void finish_well(world *w, int n, int32_t slot);
static void spawn(world *w, int n, int32_t slot, own_end end);

static void cancel(world *w, int64_t job)
{
    wire s;

    if (flows()) {
        somebody(w, OPERATOR_CANCEL, job);
        return;
    }
    memset(&s, 0, sizeof s);
    s.request.kind = OPERATOR_CANCEL;
    s.request.id = job;
    execute(w, 0, &s, false);
}

static void apply_fault(world *w, const move *m)
{
    node *d = &w->nodes[m->node];
    int i;

    switch ((int)m->kind) {
    case MOVE_EXECUTE: proceed(w, m->node, m->arg); break;
    case MOVE_CUT: sever(w, m->node); break;
    case MOVE_CRASH: crash(w, m->node); break;
    case MOVE_PAUSE: d->paused = true; break;
    case MOVE_SLOW: d->slow = true; break;
    case MOVE_REFUSE:
        d->flight[0].answer.error = JOBQ_ERROR_RETRYABLE;
        answer(w, m->node);
        break;
    case MOVE_BUSY:
        if (d->flight[0].request.kind == JOBQ_REQUEST_RESCUE) d->flight[0].portion = m->arg;
        else d->flight[0].busy = m->arg;
        answer(w, m->node);
        break;
    case MOVE_OUTCOME: finish(w, m->node, m->arg, (jobq_outcome)m->more); break;
    case MOVE_OVERRUN: d->hung = true; break;
    case MOVE_UNTOLD:
        if (set->spawn) spawn(w, m->node, m->arg, (own_end)m->more);
        else complete_own(w, m->node, m->arg, (own_end)m->more);
        break;
    case MOVE_UNSURE: commit_own(w, m->node, m->arg, (own_end)m->more); break;
    case MOVE_FAIL: deliver(w, m->node, m->arg, false); break;
    case MOVE_CANCEL: cancel(w, m->arg); break;
    case MOVE_HOLD: jobq_memory_policy(store(w), 1, &policy, true); break;
    case MOVE_STOP:
        d->asked = true;
        jobq_loop_stop(&d->loop, mono_us(w), -1);
        break;
    case MOVE_STEP: w->offset += m->arg == 0 ? 2 * LEASE : -2; break;
    case MOVE_COMMIT: enqueue(w, true); break;
    case MOVE_NOTIFY: /* of a message in partition 1, perhaps of none; of a cancel request */
        jobq_loop_notified(&d->loop, mono_us(w), m->arg == 0 ? "1" : "cancel");
        break;
    case MOVE_FALL:
        for (i = 0; i < BACKENDS; i++) close_backend(w, i);
        for (i = 0; i < NODES; i++) w->nodes[i].backend = 0;
        for (i = 0; i < w->zombies; i++) w->ghosts[i].backend = 0;
        fall(w, m->arg);
        break;
    }
}

/* A statement without a client goes on: most statements of its function, or (0) to its end. */
static void exorcise(world *w, int i, int most)
{
    zombie *z = &w->ghosts[i];

    if (!advance(w, z->node, &z->backend, &z->wire, false, most > 0 ? most : INT32_MAX)) return;
    remove_ghost(w, i);
}

enum { OF_CONNECTION = 255 };

/* After this many SQL statements of its function. */
static void hold_up(world *w, const move *m)
{
    node *d = &w->nodes[m->node];
    int i;

    w->switches--;
    if (m->arg != OF_CONNECTION) {
        exorcise(w, m->arg, m->more);
        return;
    }
    for (i = 0; d->flight[i].executed;) i++;
    advance(w, m->node, &d->backend, &d->flight[i], true, m->more);
    w->backends[d->backend - 1].held = true;
}

static void take_snapshot(world *w, int i)
{
    zombie *z = &w->ghosts[i];
    backend *b;

    if (z->backend == 0) z->backend = open_backend(w, z->node, &z->wire, false);
    b = &w->backends[z->backend - 1];
    b->snapped = true;
    b->snapshot = w->store;
    b->parked = w->parked;
}

static void apply(world *w, const move *m)
{
    node *d = &w->nodes[m->node];

    switch ((int)m->kind) {
    case MOVE_ANSWER: answer(w, m->node); break;
    case MOVE_TICK: pass_tick(w); break;
    case MOVE_FINISH:
        if (set->done) complete_own(w, m->node, m->arg, OWN_COMMITTED);
        else finish_well(w, m->node, m->arg);
        break;
    case MOVE_KILL: crash(w, m->node); break;
    case MOVE_DELIVER:
        if (deliver(w, m->node, m->arg, true)) crash(w, m->node);
        break;
    case MOVE_COMMITS: commit_own(w, m->node, m->arg, OWN_COMMITTED); break;
    case MOVE_SHOW: show_message(w); break;
    case MOVE_GHOST: exorcise(w, m->arg, m->more); break;
    case MOVE_PART: hold_up(w, m); break;
    case MOVE_SNAPSHOT: take_snapshot(w, m->arg); break;
    case MOVE_ABORT: remove_ghost(w, m->arg); break;
    case MOVE_START: start(w, m->node); break;
    case MOVE_RESUME: resume(w, m->node); break;
    case MOVE_FAST: d->slow = false; break;
    case MOVE_UNHOLD: jobq_memory_policy(store(w), 1, &policy, false); break;
    case MOVE_LOOK: look_for_signal(w, m->node, m->arg); break;
    case MOVE_SEND:
    case MOVE_REVIVE:
        w->left[m->kind]--;
        somebody(w, m->kind == MOVE_SEND ? SENDER : OPERATOR_REVIVE, m->arg);
        break;
    case MOVE_PRODUCE: {
        image before = w->store;
        w->left[MOVE_PRODUCE]--;
        produce(w, (jobq_known)m->arg);
        check_begun(w, memory_of(&before));
        break;
    }
    default:
        if (m->kind != MOVE_EXECUTE || !d->paused) {
            w->faults--;
            w->left[m->kind]--;
        }
        apply_fault(w, m);
    }
    if (m->kind != MOVE_TICK && m->kind != MOVE_GHOST && m->kind != MOVE_PART) pump(w, m->node);
    if (m->kind == MOVE_CANCEL || m->kind == MOVE_HOLD || m->kind == MOVE_UNHOLD ||
        m->kind == MOVE_COMMIT || m->kind == MOVE_SHOW || m->kind == MOVE_PRODUCE) {
        flushed(w);
    }
    if (w->nodes[m->node].loop.running_count == 0) w->looked[m->node] = 0;
    tidy_fall(w);
    if (broken[0] == '\0') check_world(w);
}

/* ---- which moves there are ------------------------------------------------------------------- */

typedef struct moves {
    int count;
    move list[128];
} moves;

static void list_producers(const world *w, moves *all);
static void list_somebody(const world *w, moves *all);

static bool spawns(const world *w, const jobq_job *job);
static bool at_leisure(const world *w);
static bool touched_flows(const rows *before, const rows *after, int kind);

static void add(moves *all, move_kind kind, int n, int arg, int more)
{
    move *m = &all->list[all->count++];

    m->kind = (uint8_t)kind;
    m->node = (uint8_t)n;
    m->arg = (uint8_t)arg;
    m->more = (uint8_t)more;
}

/* A statement waits for a lock, or (and that counts) is held up on the server. */
static bool stuck(const world *w, uint8_t slot, bool held)
{
    return slot != 0 && (w->backends[slot - 1].waits != 0 || (held && w->backends[slot - 1].held));
}

/* Time does not pass while anybody has something to do at once. */
static bool at_rest(const world *w)
{
    int n;

    for (n = 0; n < set->nodes; n++) {
        const node *d = &w->nodes[n];
        if (!d->up || d->paused || d->slow || d->flying == 0) continue;
        if (!d->flight[0].executed && !stuck(w, d->backend, true)) return false;
    }
    for (n = 0; n < set->nodes; n++) { /* nobody overruns without a fault */
        const node *d = &w->nodes[n];
        if (!d->up || d->paused || d->slow || d->hung) continue;
        if (jobq__relay_end(&d->loop) <= mono_us(w) + TICK) return false;
    }
    return true;
}

static bool may(const world *w, move_kind kind) { return w->faults > 0 && w->left[kind] > 0; }

static void list_own(const world *w, int n, int part, moves *all)
{
    int end;

    add(all, MOVE_COMMITS, n, part, 0);
    for (end = OWN_UNTOLD; end <= OWN_ROLLED_BACK && may(w, MOVE_UNSURE); end++) {
        add(all, MOVE_UNSURE, n, part, end);
    }
}

static void list_handlers(const world *w, int n, moves *all)
{
    const jobq_loop *l = &w->nodes[n].loop;
    int i;

    for (i = 0; i < l->running_count; i++) {
        if (call_kills(l, l->running[i])) {
            if (kills(&l->slots[l->running[i]].job)) add(all, MOVE_KILL, n, l->running[i], 0);
            continue;
        }
        if (set->signal && w->looked[n] == 0) {
            add(all, MOVE_LOOK, n, l->running[i], 0);
            continue;
        }
        add(all, MOVE_FINISH, n, l->running[i], 0);
        if (spawns(w, &l->slots[l->running[i]].job) && may(w, MOVE_UNTOLD)) {
            add(all, MOVE_UNTOLD, n, l->running[i], OWN_UNTOLD);
            add(all, MOVE_UNTOLD, n, l->running[i], OWN_ROLLED_BACK);
            if (w->zombies < ZOMBIES) add(all, MOVE_UNTOLD, n, l->running[i], OWN_LATE);
        }
        if (set->done && may(w, MOVE_UNTOLD)) {
            add(all, MOVE_UNTOLD, n, l->running[i], OWN_UNTOLD);
            add(all, MOVE_UNTOLD, n, l->running[i], OWN_ROLLED_BACK);
        }
        if (!may(w, MOVE_OUTCOME)) continue;
        add(all, MOVE_OUTCOME, n, l->running[i], JOBQ_OUTCOME_RETRY);
        add(all, MOVE_OUTCOME, n, l->running[i], JOBQ_OUTCOME_SNOOZE);
        add(all, MOVE_OUTCOME, n, l->running[i], JOBQ_OUTCOME_DISCARD);
        add(all, MOVE_OUTCOME, n, l->running[i], JOBQ_OUTCOME_CANCELLED);
    }
    for (i = 0; i < l->relay.count && !w->nodes[n].hung; i++) {
        if (l->relay.parts[i].state == JOBQ_PART_COMMITTING) list_own(w, n, i, all);
        if (l->relay.parts[i].state != JOBQ_PART_RUNNING) continue;
        add(all, MOVE_DELIVER, n, i, 0);
        if (may(w, MOVE_FAIL)) add(all, MOVE_FAIL, n, i, 0);
    }
    if (l->relay.running > 0 && !w->nodes[n].hung && may(w, MOVE_OVERRUN)) {
        add(all, MOVE_OVERRUN, n, 0, 0);
    }
}

/* Someone else has a row: a flush leaves it, a claim skips it and takes what is behind, an unpark
 * skips it, a rescue gets hold of the first claims only, a look numbers nothing, a read takes
 * nothing. */
static void list_busy(const world *w, int n, moves *all)
{
    const wire *s = &w->nodes[n].flight[0];
    int i;

    if (s->request.kind == JOBQ_REQUEST_COMPLETE || s->request.kind == JOBQ_REQUEST_SETTLE) {
        add(all, MOVE_BUSY, n, (int)s->request.endings[0].job, 0);
    }
    if (s->request.kind == JOBQ_REQUEST_RESCUE) {
        add(all, MOVE_BUSY, n, 0, 0);
        add(all, MOVE_BUSY, n, 1, 0);
    }
    for (i = 0; i < store(w)->job_count && s->request.kind == JOBQ_REQUEST_CLAIM; i++) {
        if (job_at(w, i)->state == JOBQ_STATE_READY) add(all, MOVE_BUSY, n, i + 1, 0);
    }
    for (i = 0; i < store(w)->job_count && s->request.kind == JOBQ_REQUEST_UNPARK; i++) {
        if (job_at(w, i)->run_at_us == JOBQ_NEVER) add(all, MOVE_BUSY, n, i + 1, 0);
    }
    if (s->request.kind == JOBQ_REQUEST_READ) add(all, MOVE_BUSY, n, 1, 0);
}

/* Whether a statement is next that locks what others before it have chosen without a lock. */
static bool reads_before_lock(uint8_t next)
{
    return next == STEP_lock_lines_lock || next == STEP_take_lines_lock ||
           next == STEP_look_jobs_lock || next == STEP_look_jobs_cancel ||
           next == STEP_make_ready_write || next == STEP_promote_delete ||
           next == STEP_look_signals_lock;
}

/* Where a function may be held up: when it has just locked or written something, or goes on with
 * what it has only read. Anywhere else, nobody would see a difference. */
static void list_parts(const world *w, int n, uint8_t slot, const wire *sent, int arg, moves *all)
{
    static world trial;
    static rows before;
    int count = 0;
    wire s = *sent;
    backend was;

    if (w->switches == 0 || sent->answer.error != JOBQ_OK || stuck(w, slot, false)) return;
    if (set->lines != NULL && !touches_lines(sent->request.kind)) return;
    copy_world(&trial, w);
    if (slot == 0) slot = open_backend(&trial, n, &s, true);
    while (slot != 0 && trial.backends[slot - 1].step != STEP_COMMIT) {
        before = trial.rows;
        if (go_on(&trial, slot - 1, &s, 1, &was) || stuck(&trial, slot, false)) return;
        count++;
        if ((flows() ? touched_flows(&before, &trial.rows, (int)s.request.kind)
                     : memcmp(&before, &trial.rows, sizeof before) != 0) ||
            reads_before_lock(trial.backends[slot - 1].step)) {
            add(all, MOVE_PART, n, arg, count);
        }
    }
}

static void list_connection(const world *w, int n, moves *all)
{
    const node *d = &w->nodes[n];
    int next = first_unexecuted(d);

    if (d->flying > 0 && !d->paused && !d->slow && (next != 0 || !stuck(w, d->backend, false))) {
        add(all, MOVE_ANSWER, n, 0, 0);
        if (next == 0 && d->backend == 0 && may(w, MOVE_REFUSE)) add(all, MOVE_REFUSE, n, 0, 0);
        if (next == 0 && d->backend == 0 && may(w, MOVE_BUSY)) list_busy(w, n, all);
    }
    if (next >= 0 && !d->slow && !stuck(w, d->backend, false) &&
        (d->paused || may(w, MOVE_EXECUTE))) {
        add(all, MOVE_EXECUTE, n, next, 0);
    }
    if (next >= 0 && !d->slow) list_parts(w, n, d->backend, &d->flight[next], OF_CONNECTION, all);
    if (d->slow) add(all, MOVE_FAST, n, 0, 0);
    if (!d->slow && d->flying > 0 && may(w, MOVE_SLOW)) add(all, MOVE_SLOW, n, 0, 0);
    if (!d->paused && may(w, MOVE_CUT) && (d->loop.session.connected || d->flying > 0)) {
        add(all, MOVE_CUT, n, 0, 0);
    }
}

static void list_node(const world *w, int n, moves *all)
{
    const node *d = &w->nodes[n];

    if (!d->up) {
        add(all, MOVE_START, n, 0, 0);
        return;
    }
    list_connection(w, n, all);
    if (may(w, MOVE_CRASH)) add(all, MOVE_CRASH, n, 0, 0);
    if (d->paused) {
        add(all, MOVE_RESUME, n, 0, 0);
        return;
    }
    list_handlers(w, n, all);
    if (may(w, MOVE_PAUSE)) add(all, MOVE_PAUSE, n, 0, 0);
    if (may(w, MOVE_STOP) && d->loop.phase == JOBQ_PHASE_WORKING) add(all, MOVE_STOP, n, 0, 0);
    if (may(w, MOVE_NOTIFY)) add(all, MOVE_NOTIFY, n, 0, 0);
    if (may(w, MOVE_NOTIFY)) add(all, MOVE_NOTIFY, n, 1, 0);
}

#include "explore_pairs.h"

static void list_moves(const world *w, moves *all)
{
    int i;

    if (set->pairs) {
        list_pair(w, all);
        return;
    }
    all->count = 0;
    for (i = 0; i < set->nodes; i++) list_node(w, i, all);
    for (i = 0; i < w->zombies; i++) {
        int j;
        const zombie *z = &w->ghosts[i];
        for (j = 0; j < i && w->ghosts[j].node != z->node;) j++;
        if (j != i || stuck(w, z->backend, false)) continue;
        add(all, MOVE_GHOST, z->node, i, 0);
        list_parts(w, z->node, z->backend, &z->wire, i, all);
    }
    if (at_rest(w)) add(all, MOVE_TICK, 0, 0, 0);
    if (w->hidden) add(all, MOVE_SHOW, 0, 0, 0);
    list_producers(w, all);
    list_somebody(w, all);
    if ((store(w)->paused & QUEUE_BITS) != 0) add(all, MOVE_UNHOLD, 0, 0, 0);
    else if (may(w, MOVE_HOLD)) add(all, MOVE_HOLD, 0, 0, 0);
    for (i = 0; i < store(w)->job_count && may(w, MOVE_CANCEL); i++) {
        const jobq_job *job = job_at(w, i);
        if (!jobq_state_final(job->state) && !job->cancel_requested && job->id != 0 &&
            (flows() ? at_leisure(w) : open_count(w) == 0)) {
            add(all, MOVE_CANCEL, 0, i + 1, 0);
        }
    }
    if (may(w, MOVE_STEP)) add(all, MOVE_STEP, 0, 0, 0);
    if (may(w, MOVE_STEP)) add(all, MOVE_STEP, 0, 1, 0);
    if (may(w, MOVE_COMMIT) && store(w)->job_count < set->jobs) add(all, MOVE_COMMIT, 0, 0, 0);
    for (i = 0; i <= w->relaxed && may(w, MOVE_FALL); i++) add(all, MOVE_FALL, 0, i, 0);
}

/* ---- what a state means ---------------------------------------------------------------------- */

typedef struct digest {
    uint64_t hash;
    const world *w;
    int64_t workers[32];
    int64_t tokens[64][2];
    int64_t instants[64];
    int worker_count, token_count, instant_count;
} digest;

static uint64_t mix(uint64_t h, int64_t v)
{
    h = (h ^ (uint64_t)v) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

static void put(digest *g, int64_t v) { g->hash = mix(g->hash, v); }

/* An instant of a loop's clock, in ticks from now; what is over counts down to low. */
static int64_t ticks(const world *w, int64_t at, int64_t low)
{
    int64_t rest = at - mono_us(w);

    if (at == JOBQ_NEVER) return 99;
    if (at < 0 || rest <= low * TICK) return low;
    rest = rest > 0 ? (rest + TICK - 1) / TICK : rest / TICK;
    return rest > 80 ? 80 : rest;
}

/* Instants of the store's clock that are over count only by their order. */
static void know(digest *g, int64_t at)
{
    int i;

    if (at > store_us(g->w) || at == INT64_MIN) return;
    for (i = 0; i < g->instant_count && g->instants[i] < at;) i++;
    if (i < g->instant_count && g->instants[i] == at) return;
    JOBQ_ASSERT(g->instant_count < 64);
    memmove(&g->instants[i + 1], &g->instants[i],
            (size_t)(g->instant_count - i) * sizeof g->instants[0]);
    g->instants[i] = at;
    g->instant_count++;
}

static int64_t instant(const digest *g, int64_t at)
{
    int64_t rest = at - store_us(g->w);
    int i;

    if (at == JOBQ_NEVER || at == INT64_MIN) return at == JOBQ_NEVER ? 99 : -99;
    if (rest > 0) return (rest + TICK - 1) / TICK;
    for (i = 0; i < g->instant_count && g->instants[i] != at;) i++;
    if (may(g->w, MOVE_STEP) && rest > -3 * TICK) return -1000 + 10 * (rest / TICK) - i;
    return -1 - (g->instant_count - i);
}

static int64_t worker_label(digest *g, int64_t id)
{
    int i;

    if (id == 0) return 0;
    for (i = 0; i < g->worker_count && g->workers[i] != id;) i++;
    JOBQ_ASSERT(i < 32);
    if (i == g->worker_count) g->workers[g->worker_count++] = id;
    return i + 1;
}

static void put_token(digest *g, int64_t worker, int64_t claim)
{
    int i;

    if (claim == 0) {
        put(g, 0);
        return;
    }
    for (i = 0; i < g->token_count; i++) {
        if (g->tokens[i][0] == worker && g->tokens[i][1] == claim) break;
    }
    JOBQ_ASSERT(i < 64);
    if (i == g->token_count) {
        g->tokens[i][0] = worker;
        g->tokens[g->token_count++][1] = claim;
    }
    put(g, i + 1);
    put(g, worker_label(g, worker));
}

static int64_t token_label(const digest *g, int64_t worker, int64_t claim)
{
    int i;

    for (i = 0; i < g->token_count; i++) {
        if (g->tokens[i][0] == worker && g->tokens[i][1] == claim) return i + 1;
    }
    return 0;
}

/* Without a limit nothing depends on the count, which would make endless states. */
static int64_t counted(int32_t snoozes) { return policy.snoozes_max > 0 ? snoozes : 0; }

static void put_job(digest *g, const jobq_job *job)
{
    put(g, counted(job->snoozes) << 32 | (job->id * 64 + job->attempt * 8 + job->crash));
    put(g, (int64_t)job->state * 64 + job->stage * 4 + job->suspect * 2 + job->cancel_requested +
               job->alone * 4096 + job->line * 8192);
    put_token(g, job->worker, job->claim);
}

static void put_decision(digest *g, const jobq_decision *d)
{
    put(g, (int64_t)d->state * 4096 + d->attempt * 512 + d->crash * 64 + d->stage * 2 + d->suspect +
               d->alone * 65536 + counted(d->snoozes) * 131072);
    put(g, d->delay_us == JOBQ_NEVER ? -1 : d->delay_us);
}

/* The loops' watch, too: see note_limits. */
static void put_limits(digest *g, const jobq_memory *m)
{
    int i;

    for (i = 0; i < m->job_count && set->expires != NULL; i++) {
        const jobq_memory_job *mj = &jobq__memory_jobs(m)[i];
        int64_t rest = (mj->expires_at_us - store_us(g->w)) / TICK;
        put(g, mj->expires_at_us == 0 ? 99 : jobq__max(rest, -8));
        if (mj->job.state != JOBQ_STATE_RUNNING || g->w->begin_by[i] == 0) continue;
        put(g, jobq__max(g->w->begin_by[i] - g->w->tick, 0));
    }
}

static void put_watch(digest *g, const jobq_loop *l)
{
    int32_t i;

    if (set->expires == NULL) return;
    put(g, ticks(g->w, l->late_mono_us, 0));
    for (i = l->queued.head; i >= 0 && l->queued.count > 0; i = l->slots[i].next) {
        put(g, ticks(g->w, l->slots[i].expires_mono_us, 0));
    }
}

static void put_ended(digest *g, const jobq_claimed *c)
{
    int32_t i;

    for (i = 0; i < c->ended_count; i++) put(g, c->ended[i].kind * 64 + c->ended[i].count);
    for (i = 0; i < c->count && set->expires != NULL; i++) put(g, c->jobs[i].expires_us / TICK);
}

static void put_list(digest *g, const jobq_loop *l, const jobq_list *list)
{
    int32_t i;

    put(g, list->count);
    for (i = list->head; i >= 0 && list->count > 0; i = l->slots[i].next) {
        const jobq_slot *s = &l->slots[i];
        put_job(g, &s->job);
        put_decision(g, &s->decision);
        put(g, s->resent * 4 + s->cancel * 2 + s->verify);
    }
}

static int64_t beat_label(const world *w, int64_t worker, int64_t beat)
{
    const jobq_memory_worker *row = jobq__memory_worker_of(store(w), worker);

    return beat < 0 ? -1 : row != NULL && row->beat == beat;
}

static void put_sets(digest *g, const jobq_loop *l)
{
    uint64_t sum = 0;
    int i;

    for (i = 0; i < JOBQ_LOOP_CLAIMS; i++) {
        const jobq_claim *c = &l->claims[i];
        if (c->state == JOBQ_CLAIM_NONE) continue;
        sum += mix(mix((uint64_t)c->state * 16 + (uint64_t)c->open * 2 + c->suspects +
                           c->alone * 1024u,
                       token_label(g, c->worker, c->number)), 5);
    }
    for (i = 0; i < JOBQ_LOOP_WATCHED; i++) {
        const jobq_watched *o = &l->watched[i];
        if (o->worker == 0) continue;
        sum += mix(mix((uint64_t)(ticks(g->w, o->since_mono_us, -8) + 100) * 16 +
                       (uint64_t)(o->lease_us / TICK),
                       worker_label(g, o->worker)), beat_label(g->w, o->worker, o->beat));
    }
    put(g, (int64_t)sum);
}

#define LANES_USED (set->stages * (1 + set->urgent))

/* The bound of a lane: the stages of priority 0, then those of -1. */
static const jobq_bound *lane_bound(const jobq_loop *l, int i)
{
    return &l->queues[0].bounds[-JOBQ_PRIORITY_MIN - i / set->stages][i % set->stages][0];
}

#include "explore_batch.h"
#include "explore_permits.h"

static void put_flows(digest *g, const jobq_memory *m);
static void put_flow_work(digest *g, const flow_work *f);

/* The next slice begins at a distance from the newest bound. */
static void put_slices(digest *g, const jobq_loop *l)
{
    put(g, l->sweep.slice_us * 8 + l->sweep.whole * 4 + l->sweep.found * 2 + l->sweep.passed);
    if (l->sweep.slice_us == 0) return;
    put(g, ticks(g->w, jobq__bounds_newest(l), -8));
    put(g, (l->sweep.cost_us > 2 * JOBQ_LOOP_SLICE_COST_US) * 2 + l->claim.slice);
    put(g, instant(g, l->sweep.sliced_us));
    if ((l->wire.inflight >> JOBQ_REQUEST_CLAIM & 1) != 0)
        put(g, instant(g, l->sweep.slice_from_us));
}

static void put_timers(digest *g, const jobq_loop *l)
{
    int kind;

    put(g, ticks(g->w, l->lease.alive_mono_us, -8));
    put(g, ticks(g->w, l->lease.end_mono_us, -8));
    put(g, ticks(g->w, l->lease.beat_mono_us, 0));
    put(g, ticks(g->w, l->pace.claim_mono_us, 0));
    put(g, ticks(g->w, l->sweep.next_mono_us, 0));
    put_slices(g, l);
    put(g, ticks(g->w, l->pace.full_mono_us, 0));
    put(g, ticks(g->w, l->pace.due_mono_us, 0));
    if (set->schedule) put(g, ticks(g->w, l->tick_mono_us, 0));
    put(g, ticks(g->w, l->suspects.alone_mono_us, -LEASE));
    put(g, ticks(g->w, l->suspects.rescue_mono_us, -LEASE) * 8 + l->session.informed * 4 +
               l->suspects.halts * 2 + l->suspects.alone_told);
    put(g,
        set->listen ? ticks(g->w, l->pace.idle_mono_us, -2) : l->pace.idle_mono_us == JOBQ_NEVER);
    put(g,
        set->listen ? ticks(g->w, l->pace.busy_mono_us, -2) : l->pace.busy_mono_us == JOBQ_NEVER);
    put(g, set->listen ? ticks(g->w, l->sleep.told_mono_us, -2) : 0);
    put(g, ticks(g->w, l->flush.due_mono_us, 0));
    put(g, ticks(g->w, l->session.connect_mono_us, 0));
    put(g, ticks(g->w, l->stop_mono_us, -2));
    put(g, ticks(g->w, l->deadline_mono_us, 0));
    for (kind = 0; kind < JOBQ_REQUEST_COUNT; kind++) {
        if ((l->wire.inflight >> kind & 1) != 0)
            put(g, ticks(g->w, l->wire.sent_mono_us[kind], -8));
        if (l->wire.failures[kind] == 0) continue;
        put(g, kind * 16 + ticks(g->w, l->wire.hold_mono_us[kind], 0));
        put(g, l->wire.failures[kind] > 6 ? 6 : l->wire.failures[kind]);
    }
}

static void put_low(digest *g, const jobq_low *low)
{
    put(g, low->id * 2 + low->holds);
    if (low->id != 0) put(g, instant(g, low->at_us));
}

/* The bound of a lane's lines, and the round that will move it. */
static void put_round(digest *g, const jobq_loop *l)
{
    const jobq_round *r = &l->queues[0].round;
    uint64_t line;

    put(g, r->begun);
    for (line = 1; line <= LINES && r->begun; line++) {
        put(g, line - (uint64_t)r->from - 1 < r->walked); /* it has visited the line */
    }
    if (r->begun) put_low(g, &r->low);
    put_low(g, &l->queues[0].lows[-JOBQ_PRIORITY_MIN][0]);
}

/* Of a round of claims, because one has no room for all lanes. */
static void put_lanes_left(digest *g, const jobq_loop *l, bool claiming)
{
    if (l->pace.lanes_next == 0 && !(claiming && l->claim.from + l->claim.next > 0)) return;
    put(g, l->pace.lanes_next);
    put(g, l->claim.from * 4096 + l->claim.next);
    put(g, l->claim.due_us);
    put(g, l->claim.suspects * 32 + l->claim.alone * 16 + l->claim.look * 8 + l->claim.amid * 4 +
               l->claim.rest * 2 + l->claim.slice);
}

static void put_loop(digest *g, const jobq_loop *l)
{
    bool claiming = (l->wire.inflight >> JOBQ_REQUEST_CLAIM & 1) != 0;
    int i;

    put(g, worker_label(g, l->worker));
    put(g, (int64_t)l->phase * 4096 + l->session.connected * 2048 +
               l->session.policies_stale * 1024 + l->suspects.ready * 512 + l->sleep.asleep * 256 +
               l->sweep.empty * 128 + l->claim.sweep * 64 + (l->pace.linger_us > 0) * 32 +
               (l->session.policy == store(g->w)->policy_version) * 16 +
               (claiming ? l->claim.suspects * 8 + l->claim.look * 4 + l->claim.alone * 2 : 0));
    put_lanes_left(g, l, claiming);
    put(g, l->wire.inflight);
    put(g, l->session.connects > 8 ? 8 : l->session.connects);
    put(g, l->orphan_count * 8 + l->suspects.held_count);
    for (i = JOBQ_REQUEST_CLAIM; i <= JOBQ_REQUEST_SETTLE; i++) {
        put(g, l->wire.budgets[i].rows * 8 +
                   (l->wire.budgets[i].single > 3 ? 3 : l->wire.budgets[i].single));
        put(g, (int64_t)(l->wire.well >> i & 1) * 2048 + l->flush.locked[i]);
    }
    put(g, l->blame.named * 4 + l->blame.accused * 2 + l->claim.names);
    put(g, claiming ? l->claim.limit : 0);
    put(g, l->parked.kind * 4 + l->session.every_kind * 2 + l->session.informed);
    put(g, (int64_t)jobq__memory_bits(l->kinds, l->kind_count));
    if (set->lines != NULL && l->queue_count > 0) {
        put(g, walk_label(l->queues[0].walk) * 64 + l->queues[0].passed * 32 +
                   l->pace.passed_by * 16 + jobq__lines_first(l) * 8 +
                   (claiming && l->pace.left_mono_us >= l->wire.sent_mono_us[JOBQ_REQUEST_CLAIM]));
    }
    i = (int)((l->lease.store_now_us - store_us(g->w)) / TICK);
    put(g, i < -3 || (i < 0 && !may(g->w, MOVE_STEP)) ? -3 : i);
    put_timers(g, l);
    put_share(g, l);
    if (set->lines != NULL && l->queue_count > 0) put_round(g, l);
    for (i = 0; i < LANES_USED && l->queue_count > 0; i++) {
        const jobq_bound *b = lane_bound(l, i);
        if (set->lines != NULL) put(g, b[1].claim != 0);
        put(g, b->claim != 0);
        put(g, jobq__bounded(b) ? b->id : -1);
        if (jobq__bounded(b)) put(g, instant(g, b->run_at_us));
    }
    put(g, l->queue_count == 0 ? 0 : l->queues[0].stages_max * 2 + l->queues[0].paused +
                                         l->queues[0].priority_min * 64);
    for (i = 0; i < l->running_count; i++) {
        const jobq_slot *s = &l->slots[l->running[i]];
        put_job(g, &s->job);
        put(g, ticks(g->w, s->deadline_mono_us, 0) * 2 + s->cancel);
    }
    if (set->together > 1) put_calls(g, l);
    put_list(g, l, &l->queued);
    put_list(g, l, &l->done);
    put_list(g, l, &l->others);
    put_list(g, l, &l->sent_done);
    put_list(g, l, &l->sent_others);
    put_watch(g, l);
}

static void put_answer(digest *g, const wire *s)
{
    const jobq_answer *a = &s->answer;
    const jobq_claimed *c = &a->claimed;
    const jobq_news *news = &a->news;
    int i;

    put(g, (int64_t)a->error * 64 + news->alive * 32 + (c->suspects || news->suspects) * 16 +
               a->done * 8 + news->parked_kind);
    put(g, (news->alone_count + c->alone) * 64 + news->overdue);
    put(g, (int64_t)jobq__memory_bits(news->kinds, news->kind_count));
    put(g, c->named * 2 + a->more);
    put(g, ((news->policy == store(g->w)->policy_version) * 8 + a->count) * 8 + news->every_kind);
    put(g, c->due_us > 0 ? (c->due_us + TICK - 1) / TICK : 0);
    if (c->walk_count > 0) {
        put(g, walk_label(c->walks[0].after) * 64 + (c->walks[0].due_us + TICK - 1) / TICK);
    }
    for (i = 0; i < c->stretch_count; i++) {
        const jobq_low low = {c->stretches[i].low_at_us, c->stretches[i].low_id,
                              c->stretches[i].whole};
        put(g, walk_label(c->stretches[i].to) * 64 + c->stretches[i].stage);
        put_low(g, &low);
    }
    if (set->schedule) put(g, (news->tick_us + a->due_us + TICK - 1) / TICK);
    put(g, a->policies[0].paused * 64 + a->policies[0].stages_max +
               a->policies[0].priority_min * 128);
    for (i = 0; i < news->late_count; i++) {
        put(g, worker_label(g, news->late[i].worker));
        put(g, beat_label(g->w, news->late[i].worker, news->late[i].beat));
    }
    for (i = 0; i < news->cancel_count; i++) put(g, news->cancels[i]);
    for (i = 0; i < news->permit_count; i++) put(g, news->permits[i].held);
    for (i = 0; i < c->count; i++) {
        put_job(g, &c->jobs[i]);
        put(g, instant(g, c->jobs[i].run_at_us));
    }
    put_ended(g, c);
    if (s->request.kind == JOBQ_REQUEST_HEARTBEAT) put(g, instant(g, news->store_now_us));
}

#include "explore_outbox.h"

static void put_wire(digest *g, const wire *s)
{
    const jobq_request *a = &s->request;
    int i;

    put(g, (int64_t)a->kind * 256 + a->limit * 32 + a->suspects * 16 + a->sweep * 8 + a->look * 4 +
               a->asleep * 2 + s->executed + a->alone * 65536 + (a->bytes == 0) * 131072);
    put(g, worker_label(g, a->worker));
    put(g, (int64_t)wire_kinds(a));
    put_wire_part(g, s);
    put_asks(g, a);
    if (a->kind == JOBQ_REQUEST_CLAIM || a->kind == JOBQ_REQUEST_RECOVER) {
        put_token(g, a->worker, a->claim);
        put(g, a->quantum);
    }
    if (a->kind == JOBQ_REQUEST_RESCUE) put(g, beat_label(g->w, a->worker, a->beat));
    for (i = 0; i < a->lane_count && !s->executed; i++) {
        put(g, a->lanes[i].stage);
        put(g, instant(g, a->lanes[i].after_at_us));
        if (a->lanes[i].until_at_us != 0) put(g, instant(g, a->lanes[i].until_at_us));
        put(g, a->lanes[i].lined ? -1 - walk_label(a->lanes[i].after_id) : a->lanes[i].after_id);
        put(g, a->lanes[i].low_id);
    }
    for (i = 0; i < a->settled_count; i++) put_token(g, a->worker, a->settled[i]);
    for (i = 0; i < a->ending_count; i++) {
        const jobq_ending *it = &a->endings[i];
        put(g, it->job * 16 + s->errors[i]);
        put_token(g, it->worker, it->claim);
        put_decision(g, &it->decision);
    }
    if (s->executed) put_answer(g, s);
}

static void know_wire(digest *g, const wire *s)
{
    int i;

    if (s->request.kind == JOBQ_REQUEST_HEARTBEAT && s->executed) {
        know(g, s->answer.news.store_now_us);
    }
    if (s->request.kind != JOBQ_REQUEST_CLAIM && s->request.kind != JOBQ_REQUEST_RECOVER) return;
    for (i = 0; i < s->request.lane_count && !s->executed; i++) {
        know(g, s->request.lanes[i].after_at_us);
        if (s->request.lanes[i].until_at_us != 0) know(g, s->request.lanes[i].until_at_us);
    }
    for (i = 0; i < s->answer.claimed.count && s->executed; i++) {
        know(g, s->answer.claimed.jobs[i].run_at_us);
    }
}

static void know_jobs(digest *g, const jobq_memory *m)
{
    int i;

    for (i = 0; i < m->job_count; i++) {
        const jobq_job *job = &jobq__memory_jobs(m)[i].job;
        if (job->state == JOBQ_STATE_READY) know(g, job->run_at_us);
    }
}

static const jobq_memory *image_at(const world *w, int i)
{
    return (const jobq_memory *)(const void *)w->disk[i].bytes;
}

static void know_all(digest *g)
{
    const world *w = g->w;
    int n, i;

    know_jobs(g, store(w));
    for (i = 0; i < w->relaxed; i++) know_jobs(g, image_at(w, i));
    for (n = 0; n < set->nodes; n++) {
        const node *d = &w->nodes[n];
        for (i = 0; d->up && i < LANES_USED && d->loop.queue_count > 0; i++) {
            if (!jobq__bounded(lane_bound(&d->loop, i))) continue;
            know(g, lane_bound(&d->loop, i)->run_at_us);
        }
        if (d->up && d->loop.sweep.slice_us != 0) {
            know(g, d->loop.sweep.sliced_us);
            know(g, d->loop.sweep.slice_from_us);
        }
        for (i = 0; i < d->flying; i++) know_wire(g, &d->flight[i]);
    }
    for (i = 0; i < w->zombies; i++) know_wire(g, &w->ghosts[i].wire);
    for (i = 0; i < BACKENDS; i++) {
        image own = w->store;
        uint32_t marks = 0;
        if (w->backends[i].step == 0) continue;
        know(g, w->backends[i].now_us);
        overlay(w, i, &own, &marks);
        know_jobs(g, memory_of(&own));
        if (w->backends[i].snapped) know_jobs(g, memory_of(&w->backends[i].snapshot));
    }
}

static void put_jobs(digest *g, const jobq_memory *m)
{
    int i;

    for (i = 0; i < m->job_count; i++) {
        const jobq_job *job = &jobq__memory_jobs(m)[i].job;
        put_job(g, job);
        put(g, jobq__memory_jobs(m)[i].holds);
        if (job->state == JOBQ_STATE_READY) put(g, instant(g, job->run_at_us));
    }
    put_limits(g, m);
}

static void put_rows(digest *g, const jobq_memory *m)
{
    uint64_t sum = 0;
    int i, j;

    for (i = 0; i < m->worker_max; i++) {
        const jobq_memory_worker *row = &jobq__memory_workers(m)[i];
        int64_t rest = (row->expires_at_us - store_us(g->w)) / TICK, since = 0;
        if (row->id == 0) continue;
        for (j = 0; j < ROWS; j++) {
            if (g->w->renewals[j].worker == row->id) since = g->w->tick - g->w->renewals[j].tick;
        }
        sum += mix(mix((uint64_t)(worker_label(g, row->id) * 4 + row->dead * 2 + row->asleep) * 8 +
                           row->kinds,
                       rest < -3 ? -3 : rest), since > LEASE ? LEASE : since);
    }
    for (i = 0; i < m->claim_max; i++) {
        const jobq_memory_claim *c = &jobq__memory_claims(m)[i];
        if (c->worker == 0) continue;
        sum += mix(mix(77, token_label(g, c->worker, c->number)), worker_label(g, c->worker));
    }
    put(g, (int64_t)sum);
    put(g, (int64_t)(m->paused * 64) + m->stages_max + m->priority_min * 128);
    put_permits(g, m);
    put_flows(g, m);
}

static void put_walk(digest *g, const line_walk *v)
{
    int i;

    if (set->lines == NULL && set->expires == NULL) return;
    put(g, walk_label(v->after) * 16 + walk_label(v->from) * 4 + walk_label(v->at));
    put(g, (v->due_us + TICK - 1) / TICK * 4 + v->walks * 2 + v->moved);
    put(g, v->late);
    put(g, v->lane * 4096 + v->page * 512 + v->round * 64 + v->had * 16 + v->lines);
    put(g, v->met * 64 + v->limited);
    put(g, v->quantum * 1024 + v->spare * 16 + v->more);
    for (i = 0; i < v->lines; i++) {
        put(g, v->line[i] * 4096 + v->room[i] * 64 + v->state[i] * 16 + v->head[i]);
    }
}

/* A transaction: its locks, what it has written, what it remembers. */
static void put_backend(digest *g, uint8_t slot, const wire *s)
{
    const world *w = g->w;
    const backend *b = &w->backends[slot == 0 ? 0 : slot - 1];
    const jobq_memory *m = store(w);
    image own = w->store;
    uint32_t marks = 0;
    uint64_t sum = 0;
    int i;

    put(g, slot == 0 ? 0 : b->step);
    if (slot == 0) return;
    put_answer(g, s);
    put(g, instant(g, b->now_us));
    put(g, b->at * 4096 + b->done * 256 + b->count * 16 + (b->waits != 0) * 8 + b->held * 4 +
               b->snapped * 2 + b->lives + b->waited * 32768 + ((int64_t)b->free << 16));
    for (i = 0; i < b->count; i++) put(g, b->jobs[i]);
    put_walk(g, &b->walk);
    put_flow_work(g, &b->flow);
    for (i = 0; i < b->claim_count; i++) {
        const jobq_memory_claim *c = &jobq__memory_claims(m)[b->claims[i]];
        put_token(g, c->worker, c->number);
    }
    for (i = 0; i < LOCKS; i++) {
        int64_t who = i;
        if (w->rows.locks[i][slot - 1] == 0) continue;
        if (i >= WORKER_ROW && i < CLAIM_ROW) {
            who = worker_label(g, jobq__memory_workers(m)[i - WORKER_ROW].id);
        } else if (i >= CLAIM_ROW && i < SLEEPER_ROW) {
            const jobq_memory_claim *c = &jobq__memory_claims(m)[i - CLAIM_ROW];
            who = token_label(g, c->worker, c->number);
        }
        sum += mix(mix((uint64_t)i / JOBS, who),
                   w->rows.locks[i][slot - 1] * 2 + (w->rows.writer[i] == slot));
    }
    put(g, (int64_t)sum);
    overlay(w, slot - 1, &own, &marks);
    put_jobs(g, memory_of(&own));
    put_rows(g, memory_of(&own));
    put(g, marks);
    if (!b->snapped) return;
    put(g, b->parked);
    put_jobs(g, memory_of(&b->snapshot));
    put_rows(g, memory_of(&b->snapshot));
}

/* What a crash of the server would bring back, and what one has taken. */
static void put_fall(digest *g)
{
    const world *w = g->w;
    uint64_t sum = 0;
    int i;

    put(g, w->relaxed);
    for (i = 0; i < w->relaxed; i++) {
        put_jobs(g, image_at(w, i));
        put_rows(g, image_at(w, i));
        put_outbox(g, image_at(w, i));
    }
    for (i = 0; i < w->forgotten_count; i++) {
        sum += mix(11, token_label(g, w->forgotten[i].worker, w->forgotten[i].claim));
    }
    put(g, (int64_t)sum);
}

#include "explore_known.h"
#include "explore_graphs.h"

static uint64_t digest_of(const world *w)
{
    digest g;
    int n, i;

    g.hash = 1;
    g.w = w;
    g.worker_count = g.token_count = g.instant_count = 0;
    know_all(&g);
    put(&g, w->faults * 16 + w->switches);
    put(&g, w->parked);
    for (i = 0; i < MOVE_COUNT && w->faults > 0; i++) put(&g, w->left[i]);
    put_jobs(&g, store(w));
    for (n = 0; n < set->nodes; n++) {
        const node *d = &w->nodes[n];
        put(&g, d->up * 16 + d->paused * 8 + d->slow * 4 + d->asked * 2 + d->empty + d->hung * 32 +
                    d->severed * 64);
        if (!d->up) continue;
        put(&g, (int64_t)d->met);
        put_loop(&g, &d->loop);
        put_relay(&g, &d->loop);
        put(&g, d->flying);
        for (i = 0; i < d->flying; i++) put_wire(&g, &d->flight[i]);
        put_backend(&g, d->backend, &d->flight[d->backend == 0 ? 0 : first_unexecuted(d)]);
    }
    put(&g, w->effects * 8 + w->begun);
    put(&g, w->zombies);
    for (i = 0; i < w->zombies; i++) {
        put(&g, w->ghosts[i].node * 16 + w->ghosts[i].age);
        put_wire(&g, &w->ghosts[i].wire);
        put_backend(&g, w->ghosts[i].backend, &w->ghosts[i].wire);
    }
    for (n = 0; n < set->nodes; n++) {
        if (w->nodes[n].up) put_sets(&g, &w->nodes[n].loop);
    }
    put_rows(&g, store(w));
    put_outbox(&g, store(w));
    put_known(&g);
    put_waits(&g);
    put_fall(&g);
    return g.hash == 0 ? 1 : g.hash;
}

static void say_move(const world *w, int line, const move *m);

/* ---- the faults stop ------------------------------------------------------------------------- */

static bool all_ended(const world *w)
{
    int i;

    for (i = 0; i < store(w)->job_count; i++) {
        if (job_at(w, i)->id == 0 || held_by_parents(w, i)) continue;
        if (!jobq_state_final(job_at(w, i)->state)) return false;
    }
    for (i = 0; i < store(w)->claim_max; i++) {
        const jobq_memory_claim *c = &jobq__memory_claims(store(w))[i];
        if (c->worker != 0 && !is_burned(w, c->worker, c->number)) return false;
    }
    return outbox_done(w) && !waiting(w);
}

static void calm(world *w)
{
    int n;

    while (w->zombies > 0) remove_ghost(w, 0);
    if ((store(w)->paused & QUEUE_BITS) != 0) jobq_memory_policy(store(w), 1, &policy, false);
    if (set->paused) model_pause(store(w), 2, false);
    for (n = 0; n < set->nodes; n++) {
        node *d = &w->nodes[n];
        d->slow = d->hung = false;
        if (!d->up) start(w, n);
        else resume(w, n);
        pump(w, n);
    }
}

/* The next that happens at a node without a choice of ours; false: nothing does. */
static bool next_move(const world *w, int n, move *m)
{
    const node *d = &w->nodes[n];
    const jobq_relay *r = &d->loop.relay;
    int32_t part;

    memset(m, 0, sizeof *m);
    m->kind = MOVE_ANSWER;
    m->node = (uint8_t)n;
    if (!d->up) return false;
    if (d->flying > 0) return d->flight[0].executed || !stuck(w, d->backend, false);
    m->kind = MOVE_FINISH;
    m->arg = (uint8_t)d->loop.running[0];
    if (d->loop.running_count > 0) {
        if (call_kills(&d->loop, m->arg)) m->kind = MOVE_KILL;
        if (set->signal && w->looked[n] == 0) m->kind = MOVE_LOOK;
        return true;
    }
    for (part = 0; part < r->count && !jobq__relay_runs(&r->parts[part]);) part++;
    if (part == r->count) return false;
    m->kind = r->parts[part].state == JOBQ_PART_RUNNING ? MOVE_DELIVER : MOVE_COMMITS;
    m->arg = (uint8_t)part;
    return true;
}

/* Without faults, with good handlers, every job ends within a bound, and every message, bad
 * or not: it costs each attempt a worker, whose lease has to run out. */
static void settle_down(world *w)
{
    int bound = set->partitions == 0 ? 60 : 60 + 20 * policy.max_attempts;
    int ticks_left, n, did, moved = 0;

    bound += 40 * set->crashing;
    calm(w);
    for (ticks_left = bound; ticks_left > 0 && broken[0] == '\0'; ticks_left--) {
        do {
            for (did = n = 0; n < set->nodes && broken[0] == '\0'; n++) {
                move m;
                if (!next_move(w, n, &m)) continue;
                did++;
                if (++moved > 5000)
                    violate("without faults, while time stands still, the loops never become idle");
                if (telling) say_move(w, 0, &m);
                apply(w, &m);
            }
        } while (did > 0);
        if (all_ended(w)) return;
        pass_tick(w);
        for (n = 0; n < set->nodes; n++) {
            move m = {MOVE_START, (uint8_t)n, 0, 0};
            if (!w->nodes[n].up && broken[0] == '\0') apply(w, &m);
        }
    }
    violate("%d ticks after the last fault not every job or message has ended, or there is "
            "still a claim row", bound);
}

/* ---- the walk -------------------------------------------------------------------------------- */

typedef struct visit {
    uint32_t parent;
    move by;
} visit;

typedef struct walk {
    uint64_t *seen; /* open addressing; 0: free */
    uint64_t mask;
    visit *visits;
    void **packed; /* states still to be expanded */
    uint32_t count, most;
    size_t bytes;
} walk;

static world base; /* where the walk begins: states are kept as differences from it */
static uint32_t live_every = 64;

/* A state as runs of words that differ from the base: (start, length) and the words. */
static void *pack(walk *k, const world *w)
{
    static uint64_t out[sizeof(world) / 8 * 2];
    const uint64_t *a = (const uint64_t *)(const void *)w, *b = (const uint64_t *)(void *)&base;
    size_t words = sizeof(world) / 8, i = 0, at = 1, run;
    void *kept;

    while (i < words) {
        if (a[i] == b[i]) { /* mostly, and in long runs */
            bool same = i % 64 == 0 && i + 64 <= words && memcmp(&a[i], &b[i], 64 * 8) == 0;
            i += same ? 64 : 1;
            continue;
        }
        run = i;
        while (i < words && a[i] != b[i]) i++;
        out[at++] = (uint64_t)run << 32 | (i - run);
        memcpy(&out[at], &a[run], (i - run) * 8);
        at += i - run;
    }
    out[0] = at;
    kept = malloc(at * 8);
    if (kept == NULL) abort();
    memcpy(kept, out, at * 8);
    k->bytes += at * 8;
    return kept;
}

static void unpack(walk *k, world *w, void *packed)
{
    const uint64_t *in = (const uint64_t *)packed;
    uint64_t *to = (uint64_t *)(void *)w;
    size_t at = 1;

    copy_world(w, &base);
    while (at < in[0]) {
        size_t run = (size_t)(in[at] >> 32), count = (size_t)(in[at] & 0xffffffffu);
        memcpy(&to[run], &in[at + 1], count * 8);
        at += count + 1;
    }
    k->bytes -= (size_t)in[0] * 8;
    free(packed);
}

/* Whether the state is new; then it is noted. */
static bool note(walk *k, uint64_t hash)
{
    uint64_t i = hash & k->mask;

    while (k->seen[i] != 0) {
        if (k->seen[i] == hash) return false;
        i = (i + 1) & k->mask;
    }
    k->seen[i] = hash;
    return true;
}

static void say_jobs(const world *w)
{
    int i;

    for (i = 0; i < store(w)->job_count; i++) {
        const jobq_job *job = job_at(w, i);
        const node *d = owner(w, job->worker);
        if (job->id == 0) continue;
        printf("%sjob %d %s", i > 0 ? "; " : "       ", i + 1,
               jobq_enum_name(JOBQ_ENUM_STATE, job->state));
        if (job->worker != 0) {
            if (d != NULL) printf(" by worker %d", (int)(d - w->nodes) + 1);
            else printf(" by someone gone");
            printf(" claim %d", (int)job->claim);
        }
        printf(" attempt %d crash %d%s%s", (int)job->attempt, (int)job->crash,
               job->alone     ? " alone"
               : job->suspect ? " suspect"
                              : "",
               job->cancel_requested ? " to be cancelled" : "");
        if (set->stages > 1) printf(" stage %d", job->stage);
    }
    if (store(w)->job_count > 0) printf("\n");
    say_permits(w);
    say_flows(w);
    say_outbox(w);
}

static bool of_worker(uint8_t kind)
{
    return kind != MOVE_TICK && kind != MOVE_CANCEL && kind != MOVE_STEP && kind != MOVE_HOLD &&
           kind != MOVE_UNHOLD && kind != MOVE_COMMIT && kind != MOVE_FALL &&
           kind != MOVE_SHOW && kind != MOVE_PRODUCE && kind != MOVE_SEND && kind != MOVE_REVIVE;
}

static const char *request_text(const wire *s)
{
    static const char *const others[] = {"cancel", "revive", "signal"};

    return s->request.kind < JOBQ_REQUEST_COUNT ? story_of_request(&s->request, 0)
                                                : others[s->request.kind - JOBQ_REQUEST_COUNT];
}

static void say_move(const world *w, int line, const move *m)
{
    static const char *const ends[] = {"", "it commits, and nobody is told",
                                       "it may commit, later", "it is lost, and nobody is told",
                                       "it is rolled back"};
    const node *d = &w->nodes[m->node];
    bool gone = m->kind == MOVE_GHOST || m->kind == MOVE_SNAPSHOT || m->kind == MOVE_ABORT;
    const wire *s = gone ? &w->ghosts[m->arg].wire : &d->flight[m->arg];

    printf("%4d.  tick %d, ", line, (int)w->tick);
    if (of_worker(m->kind)) printf("worker %d: ", m->node + 1);
    printf("%s", move_texts[m->kind]);
    if (m->kind == MOVE_ANSWER || m->kind == MOVE_EXECUTE || m->kind == MOVE_GHOST ||
        m->kind == MOVE_SNAPSHOT || m->kind == MOVE_ABORT || m->kind == MOVE_REFUSE ||
        m->kind == MOVE_BUSY) {
        printf(": %s", request_text(s));
        if (s->executed) printf(" (executed before)");
    }
    if (m->kind == MOVE_FINISH || m->kind == MOVE_OUTCOME) {
        printf(": job %d, %s", (int)d->loop.slots[m->arg].job.id,
               jobq_enum_name(JOBQ_ENUM_OUTCOME,
                              m->kind == MOVE_FINISH ? (int)JOBQ_OUTCOME_SUCCESS : (int)m->more));
    }
    if (m->kind == MOVE_DELIVER || m->kind == MOVE_FAIL) {
        const jobq_part *p = &d->loop.relay.parts[m->arg];
        printf(": partition %d, message %d on, %d of them", (int)p->id,
               (int)p->cursor.acked + 1, p->given);
    }
    if (m->kind == MOVE_BUSY && s->request.kind == JOBQ_REQUEST_RESCUE) {
        printf(", all but %d claims", m->arg);
    } else if (m->kind == MOVE_BUSY && set->jobs > 0) printf(", job %d", m->arg);
    if (m->kind == MOVE_UNTOLD) {
        printf(": job %d, %s", (int)d->loop.slots[m->arg].job.id, ends[m->more]);
    }
    if (m->kind == MOVE_UNSURE) printf(": %s", ends[m->more]);
    if (m->kind == MOVE_CANCEL || m->kind == MOVE_REVIVE) printf(": job %d", m->arg);
    if (m->kind == MOVE_PRODUCE) printf(": %s", jobq_enum_name(JOBQ_ENUM_KNOWN, m->arg));
    if (m->kind == MOVE_STEP) printf(m->arg == 0 ? " forward" : " back");
    if (m->kind == MOVE_FALL) printf(": %d", m->arg);
    printf("\n");
}

/* A step that an assertion of jobq.h may cut short; then a violation is noted. */
static void guarded(world *w, const move *m)
{
    if (setjmp(assertion) != 0) return;
    if (m != NULL) apply(w, m);
    else settle_down(w);
}

/* The path to a state, told again from the start. */
static void tell(const walk *k, uint32_t at, const move *last, bool calmed)
{
    static world w;
    static move path[4096];
    int count = 0, line;

    if (last != NULL) path[count++] = *last;
    for (; at != 0; at = k->visits[at].parent) path[count++] = k->visits[at].by;
    printf("\nVIOLATION in the world \"%s\": %s\nThe shortest story, from %d idle workers:\n\n",
           set->name, broken, set->nodes);
    w = base;
    say_jobs(&w);
    broken[0] = '\0';
    telling = true;
    for (line = 1; count > 0; line++) {
        move m = path[--count];
        say_move(&w, line, &m);
        guarded(&w, &m);
        say_jobs(&w);
    }
    if (calmed) {
        printf("       From here on there are no faults.\n");
        guarded(&w, NULL);
        say_jobs(&w);
    }
    telling = false;
    printf("\n");
    fflush(stdout);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Time, crashes and lost answers matter to schedules, the ends of jobs to keys. */
static void bound_known(world *w)
{
    if (!set->schedule && !set->known) return;
    w->left[MOVE_HOLD] = w->left[MOVE_STOP] = w->left[MOVE_BUSY] = w->left[MOVE_NOTIFY] = 0;
    w->left[MOVE_SLOW] = w->left[MOVE_PAUSE] = 0;
    if (set->schedule) w->left[MOVE_CANCEL] = w->left[MOVE_OUTCOME] = 0;
    if (set->known) w->left[MOVE_STEP] = w->left[MOVE_EXECUTE] = w->left[MOVE_REFUSE] = 0;
}

static void bound_faults(world *w)
{
    int i;

    w->faults = fault_limit;
    w->switches = set->switches;
    for (i = MOVE_EXECUTE; i < MOVE_COUNT; i++) w->left[i] = 2;
    w->left[MOVE_CANCEL] = w->left[MOVE_HOLD] = w->left[MOVE_STOP] = 1;
    w->left[MOVE_STEP] = w->left[MOVE_NOTIFY] = w->left[MOVE_COMMIT] = 1;
    w->left[MOVE_FALL] = set->falls;
    w->left[MOVE_PRODUCE] = set->known ? PRODUCED : 0;
    bound_known(w);
    bound_lines(w);
    bound_expiry(w);
    bound_flows(w);
    if (set->crashing == 0) return;
    w->left[MOVE_EXECUTE] = w->left[MOVE_CUT] = w->left[MOVE_CRASH] = 0;
    w->left[MOVE_PAUSE] = w->left[MOVE_SLOW] = w->left[MOVE_REFUSE] = w->left[MOVE_STEP] = 0;
}

static void begin(world *w)
{
    int i, n;
    moves all;

    memset(w, 0, sizeof *w);
    memset(&config, 0, sizeof config);
    memset(&serving, 0, sizeof serving);
    config.served = &serving;
    config.threads = set->threads;
    config.batch_max = set->batch;
    config.lease_us = LEASE * TICK;
    config.heartbeat_us = config.poll_us = TICK;
    config.sweep_us = config.grace_us = config.answer_us = 2 * TICK;
    serving.listen = set->listen;
    serving.kind_batches[0] = set->together;
    serving.kind_waits_us[0] = set->gather * TICK;
    config.until = set->drain ? JOBQ_UNTIL_EMPTY : JOBQ_UNTIL_STOPPED;
    configure_outbox();
    memset(&policy, 0, sizeof policy);
    policy.max_attempts = 3;
    if (set->partitions > 0) {
        policy.max_attempts = set->attempts == 1 ? 1 : set->attempts + fault_limit;
    }
    policy.max_crashes = 2;
    policy.snoozes_max = set->signal ? 0 : 1; /* who waits for a signal snoozes */
    policy.timeout_us = set->timeout * TICK;
    policy.backoff.curve = JOBQ_CURVE_CONSTANT;
    policy.backoff.jitter_permille = JOBQ_NO_JITTER;
    policy.backoff.base_us = policy.backoff.cap_us = TICK;
    policy = jobq_policy_defaults(&policy);
    model_init(w->store.bytes, JOBS, ROWS, CLAIM_ROWS);
    jobq_memory_policy(store(w), 1, &policy, false);
    if (set->paused) model_pause(store(w), 2, true);
    store(w)->stages_max = (int16_t)set->stages;
    bound_faults(w);
    if (set->pairs) {
        begin_pair(w);
        return;
    }
    begin_lines(w);
    begin_permits(w);
    for (i = 0; i < set->jobs - set->late_job; i++) enqueue(w, false);
    begin_graph(w);
    for (i = 0; i < set->jobs && set->suspects; i++) job_at(w, i)->suspect = i < 2;
    if (set->crashing > 0) job_at(w, 0)->suspect = true;
    job_at(w, 0)->alone = set->alone;
    begin_outbox(w);
    begin_schedule(w);
    if (set->known) produce(w, JOBQ_KNOWN_LEAVE);
    for (n = 0; n < set->nodes; n++) start(w, n);
    for (n = 0; n < set->nodes; n++) pump(w, n);
    for (n = 0; n < set->nodes && !set->fresh; n++) { /* up to its first claim */
        while (w->nodes[n].flying > 0 && w->nodes[n].flight[0].request.kind != JOBQ_REQUEST_CLAIM &&
               w->nodes[n].flight[0].request.kind != JOBQ_REQUEST_LOOK) {
            move m = {MOVE_ANSWER, (uint8_t)n, 0, 0};
            apply(w, &m);
        }
    }
    if (set->orphan) {
        execute(w, 0, &w->nodes[0].flight[0], true);
        sever(w, 0);
        pump(w, 0);
    }
    list_moves(w, &all);
}

static void guarded_begin(world *w)
{
    if (setjmp(assertion) == 0) begin(w);
}

/* Whether the faults stop in this state, for once. */
static bool live_next(const walk *k, const world *next)
{
    if (set->pairs) return next->zombies == 0;
    if (set->drain) return false; /* drainers rescue nobody */
    return k->count % (set->late_job ? 8 : live_every) == 0;
}

/* Everything that can happen next in one state. False: a violation. */
static bool expand(walk *k, uint32_t at, world *w)
{
    static world next, calmed;
    static moves all;
    int i;

    unpack(k, w, k->packed[at]);
    k->packed[at] = NULL;
    list_moves(w, &all);
    for (i = 0; i < all.count; i++) {
        copy_world(&next, w);
        guarded(&next, &all.list[i]);
        if (broken[0] != '\0') {
            tell(k, at, &all.list[i], false);
            return false;
        }
        if (k->count == k->most || !note(k, digest_of(&next))) continue;
        k->visits[k->count].parent = at;
        k->visits[k->count].by = all.list[i];
        k->packed[k->count++] = pack(k, &next);
        if (!live_next(k, &next)) continue;
        copy_world(&calmed, &next);
        guarded(&calmed, NULL);
        if (broken[0] != '\0') {
            tell(k, k->count - 1, NULL, true);
            return false;
        }
    }
    return true;
}

static int depth_of(const walk *k, uint32_t at)
{
    int depth = 0;

    for (; at != 0; at = k->visits[at].parent) depth++;
    return depth;
}

static bool walk_world(uint32_t most, double until, uint64_t *total)
{
    static world w;
    walk k;
    uint32_t at = 0;
    double began = seconds();
    bool good = true;

    memset(&k, 0, sizeof k);
    k.most = most;
    for (k.mask = 1; k.mask < (uint64_t)most * 2;) k.mask *= 2;
    k.seen = (uint64_t *)calloc((size_t)k.mask, sizeof *k.seen);
    k.mask--;
    k.visits = (visit *)malloc(most * sizeof *k.visits);
    k.packed = (void **)malloc(most * sizeof *k.packed);
    if (k.seen == NULL || k.visits == NULL || k.packed == NULL) abort();
    guarded_begin(&base);
    note(&k, digest_of(&base));
    k.visits[0].parent = 0;
    k.packed[0] = pack(&k, &base);
    k.count = 1;
    if (broken[0] != '\0') {
        tell(&k, 0, NULL, false);
        good = false;
    }
    for (; good && at < k.count && (at % 256 != 0 || seconds() < until); at++) {
        good = expand(&k, at, &w);
    }
    *total += k.count;
    if (!set->pairs || !good || k.count == k.most) {
        printf("%-10s %d faults: %9u states, %s at depth %d, %.1f s\n", set->name, fault_limit,
               (unsigned)k.count, k.count == k.most || at < k.count ? "cut" : "all of them",
               depth_of(&k, k.count - 1), seconds() - began);
    }
    fflush(stdout);
    for (; at < k.count; at++) free(k.packed[at]);
    free(k.seen);
    free(k.visits);
    free(k.packed);
    return good;
}

/* Each two operations in each scene. A pair with more states than most has a line of its own. */
static bool walk_pairs(uint32_t most, double until, uint64_t *total)
{
    double began = seconds();
    uint64_t states = 0;
    int a, b, scene, pairs = 0;
    bool good = true;

    for (a = 0; a < OPERATION_COUNT && good; a++) {
        for (b = a; b < OPERATION_COUNT && good; b++) {
            for (scene = 0; scene < SCENES && good; scene++, pairs++) {
                pair_operations[0] = (operation)a;
                pair_operations[1] = (operation)b;
                pair_is = (pair_scene)scene;
                good = walk_world(most, until, &states);
                if (!good) printf("pair: %s and %s\n", operation_names[a], operation_names[b]);
            }
        }
    }
    printf("%-10s %9u states of %d pairs, %.1f s\n", set->name, (unsigned)states, pairs,
           seconds() - began);
    fflush(stdout);
    *total += states;
    return good;
}

/* What was asked: states a world and round, faults a path (-1: rounds of 0, 1, 2, 3), seconds. */
typedef struct walk_plan {
    uint32_t states;
    int faults;
    double seconds;
    const char *only;
} walk_plan;

static void choose(const setting *one)
{
    static setting chosen;

    chosen = *one;
    if (chosen.stages == 0) chosen.stages = 1;
    if (chosen.threads == 0) chosen.threads = 1;
    if (chosen.together == 0) chosen.together = 1;
    if (chosen.batch == 0) chosen.batch = 2;
    if (chosen.portion == 0) chosen.portion = INT32_MAX;
    set = &chosen;
}

/* One round after the other, each world in turn; two processes share them. */
static bool walk_share(int share, int shares, const walk_plan *plan, uint64_t *total)
{
    double until = seconds() + plan->seconds;
    uint32_t most = 0;
    int round, i, turn = 0;

    for (round = plan->faults < 0 ? 0 : plan->faults;
         round <= (plan->faults < 0 ? 3 : plan->faults); round++) {
        most = round < 2 || plan->faults >= 0 ? plan->states : plan->states / 3;
        for (i = 0; i < SETTINGS; i++) {
            if (plan->only != NULL && strcmp(plan->only, settings[i].name) != 0) continue;
            if (turn++ % shares != share) continue;
            choose(&settings[i]);
            fault_limit = round;
            if (set->pairs && round > 0 && plan->faults < 0) continue;
            if (set->pairs && !walk_pairs(most, until, total)) return false;
            if (!set->pairs && !walk_world(most, until, total)) return false;
        }
    }
    return true;
}

static int walk_all(const walk_plan *plan)
{
    enum { SHARES = 2 };
    double began = seconds();
    uint64_t total = 0;
    int pipes[2], share, failed = 0;

    if (pipe(pipes) != 0) return 2;
    for (share = 0; share < SHARES; share++) {
        if (fork() != 0) continue;
        failed = !walk_share(share, SHARES, plan, &total);
        if (write(pipes[1], &total, sizeof total) != (ssize_t)sizeof total) failed = 1;
        fflush(stdout);
        _exit(failed);
    }
    close(pipes[1]); /* a share that dies writes nothing: its end is heard, too */
    for (share = 0; share < SHARES; share++) {
        uint64_t one = 0;
        int status = 1;
        if (wait(&status) < 0 || status != 0) failed = 1;
        if (read(pipes[0], &one, sizeof one) == (ssize_t)sizeof one) total += one;
    }
    printf("%llu distinct states, %.1f s: %s\n", (unsigned long long)total, seconds() - began,
           failed ? "A VIOLATION" : "no violation");
    return failed;
}

int main(int argc, char **argv)
{
    walk_plan plan = {600000, -1, 1e9, NULL};
    int i;

    for (i = 1; i < argc; i++) {
        if (i + 1 == argc) return 2;
        if (strcmp(argv[i], "--states") == 0) plan.states = (uint32_t)atol(argv[++i]);
        else if (strcmp(argv[i], "--faults") == 0) plan.faults = atoi(argv[++i]);
        else if (strcmp(argv[i], "--seconds") == 0) plan.seconds = atof(argv[++i]);
        else if (strcmp(argv[i], "--world") == 0) plan.only = argv[++i];
        else return 2;
    }
    return walk_all(&plan);
}
