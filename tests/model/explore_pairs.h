/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * explore_pairs.h -- any two functions of sql/ at once, interleaved at every boundary of their
 * statements. A part of explore.c.
 *
 * The world "pairs" has no loop until both have ended: the clients of two connections are gone, and
 * the server executes what they had sent. Every order of their statements is walked, also with a
 * snapshot that was taken before the statement continues, and with a transaction that is rolled
 * back on the way. Then a worker starts, and must bring every job to its end.
 *
 * Worker A holds job 2 in claim 1, and claim 2, whose jobs are settled; its claim 5 is on its way.
 * Worker B has every kind, A the first one only.
 */
enum { PAIR_A = 11, PAIR_B = 12, PAIR_C = 13, PAIR_KIND = 2 };

/* A is late, so that it may be rescued; B lives. A suspect: A holds one, job 3 is parked, and B is
 * late, too. Dead: A has been for two days. Idle: A holds nothing, and may leave for good. */
typedef enum pair_scene { SCENE_LATE, SCENE_SUSPECT, SCENE_DEAD, SCENE_IDLE, SCENES } pair_scene;

#define OPERATIONS(X)                                                                              \
    X(claim)                                                                                       \
    X(claim_suspect)                                                                               \
    X(claim_of_b)                                                                                  \
    X(burn)                                                                                        \
    X(recover)                                                                                     \
    X(burn_and_leave)                                                                              \
    X(leave)                                                                                       \
    X(complete)                                                                                    \
    X(retry)                                                                                       \
    X(park)                                                                                        \
    X(heartbeat)                                                                                   \
    X(heartbeat_of_b)                                                                              \
    X(rescue)                                                                                      \
    X(sleep)                                                                                       \
    X(wake)                                                                                        \
    X(unpark)                                                                                      \
    X(cancel_ready)                                                                                \
    X(cancel_running)                                                                              \
    X(prune)                                                                                       \
    X(register)

typedef enum operation {
#define X(name) OPERATION_##name,
    OPERATIONS(X)
#undef X
        OPERATION_COUNT
} operation;

static const char *const operation_names[] = {
#define X(name) #name,
    OPERATIONS(X)
#undef X
};

static pair_scene pair_is;
static operation pair_operations[2];

static wire *pair_send(world *w, int n, jobq_request_kind kind, int64_t worker, int64_t number)
{
    wire s;

    memset(&s, 0, sizeof s);
    s.request.kind = kind;
    s.request.worker = worker;
    s.request.claim = s.request.id = number;
    s.request.limit = kind == JOBQ_REQUEST_RESCUE ? CLAIM_ROWS : 2;
    s.request.lease_us = LEASE * TICK;
    s.portion = INT32_MAX;
    haunt(w, n, &s);
    return &w->ghosts[w->zombies - 1].wire;
}

static void pair_claim(world *w, int n, int64_t worker, bool suspects)
{
    wire *s = pair_send(w, n, JOBQ_REQUEST_CLAIM, worker, 5);

    s->request.suspects = suspects;
    s->request.bytes = INT64_MAX;
    s->request.every_kind = true;
    s->request.look = s->request.sweep = true;
    s->request.lane_count = 1;
    s->request.lanes[0].queue = 1;
    s->request.lanes[0].after_at_us = INT64_MIN;
}

/* The end of job 2, as its holder decided it. */
static void pair_settle(world *w, int n, jobq_event_kind kind, jobq_request_kind action)
{
    wire *s = pair_send(w, n, action, PAIR_A, 0);
    jobq_event event;

    memset(&event, 0, sizeof event);
    event.kind = kind;
    s->request.ending_count = 1;
    s->request.endings[0].job = 2;
    s->request.endings[0].worker = PAIR_A;
    s->request.endings[0].claim = 1;
    jobq_job_decide(&policy, job_at(w, 1), &event, &s->request.endings[0].decision);
    if (pair_operations[n] == OPERATION_park) s->request.endings[0].decision.delay_us = JOBQ_NEVER;
}

static void pair_beat(world *w, int n, int64_t worker)
{
    wire *s = pair_send(w, n, JOBQ_REQUEST_HEARTBEAT, worker, 0);

    s->request.settled_count = worker == PAIR_A;
    s->request.settled[0] = worker == PAIR_A ? 2 : 0;
}

static void pair_do(world *w, int n, operation what)
{
    switch (what) {
    case OPERATION_claim: pair_claim(w, n, PAIR_A, false); break;
    case OPERATION_claim_suspect: pair_claim(w, n, PAIR_A, true); break;
    case OPERATION_claim_of_b: pair_claim(w, n, PAIR_B, false); break;
    case OPERATION_burn: pair_send(w, n, JOBQ_REQUEST_RECOVER, PAIR_A, 5); break;
    case OPERATION_recover: pair_send(w, n, JOBQ_REQUEST_RECOVER, PAIR_A, 1); break;
    case OPERATION_burn_and_leave:
        pair_send(w, n, JOBQ_REQUEST_RECOVER, PAIR_A, 5); /* fall through */
    case OPERATION_leave: pair_send(w, n, JOBQ_REQUEST_DEREGISTER, PAIR_A, 0); break;
    case OPERATION_complete: pair_settle(w, n, JOBQ_EVENT_SUCCESS, JOBQ_REQUEST_COMPLETE); break;
    case OPERATION_retry: pair_settle(w, n, JOBQ_EVENT_RETRY, JOBQ_REQUEST_SETTLE); break;
    case OPERATION_park: pair_settle(w, n, JOBQ_EVENT_RELEASE, JOBQ_REQUEST_SETTLE); break;
    case OPERATION_heartbeat: pair_beat(w, n, PAIR_A); break;
    case OPERATION_heartbeat_of_b: pair_beat(w, n, PAIR_B); break;
    case OPERATION_rescue: pair_send(w, n, JOBQ_REQUEST_RESCUE, PAIR_A, 0); break;
    case OPERATION_sleep:
        pair_send(w, n, JOBQ_REQUEST_SLEEP, PAIR_A, 0)->request.asleep = true;
        break;
    case OPERATION_wake: pair_send(w, n, JOBQ_REQUEST_SLEEP, PAIR_A, 0); break;
    case OPERATION_unpark: pair_send(w, n, JOBQ_REQUEST_UNPARK, PAIR_B, PAIR_KIND); break;
    case OPERATION_cancel_ready: pair_send(w, n, OPERATOR_CANCEL, 0, 1); break;
    case OPERATION_cancel_running: pair_send(w, n, OPERATOR_CANCEL, 0, 2); break;
    case OPERATION_prune: pair_send(w, n, JOBQ_REQUEST_PRUNE, 0, 0); break;
    case OPERATION_register: pair_send(w, n, JOBQ_REQUEST_REGISTER, PAIR_C, 0); break;
    case OPERATION_COUNT: break;
    }
}

static void pair_worker(world *w, int64_t id, uint64_t kinds, bool late)
{
    int64_t lease_us = LEASE * TICK, now_us = store_us(w) - (late ? lease_us + TICK : 0);

    jobq__memory_register(store(w), id, lease_us, QUEUE_BITS, kinds, now_us);
}

static void pair_row(world *w, int64_t number, int64_t burned_at_us)
{
    jobq__memory_note(store(w), PAIR_A, number, burned_at_us);
}

/* Job 1 is ready, 2 runs, 3 is a ready suspect, or parked. */
static void pair_jobs(world *w)
{
    jobq_event event;

    enqueue(w, false);
    enqueue(w, false);
    enqueue(w, false);
    job_at(w, 1)->kind = job_at(w, 2)->kind = PAIR_KIND;
    job_at(w, 1)->suspect = pair_is == SCENE_SUSPECT;
    job_at(w, 1)->alone = pair_is == SCENE_SUSPECT;
    job_at(w, 1)->crash = pair_is == SCENE_SUSPECT;
    job_at(w, 2)->suspect = pair_is != SCENE_SUSPECT;
    if (pair_is == SCENE_SUSPECT) {
        job_at(w, 2)->run_at_us = JOBQ_NEVER;
        w->parked = 1u << PAIR_KIND;
    }
    if (pair_is == SCENE_IDLE) return;
    pair_row(w, 1, 0);
    memset(&event, 0, sizeof event);
    event.kind = JOBQ_EVENT_CLAIM;
    event.worker = PAIR_A;
    event.claim = 1;
    jobq__memory_happens(store(w), &jobq__memory_jobs(store(w))[1], &event, store_us(w));
}

static void begin_pair(world *w)
{
    jobq_memory_worker *a;

    pair_worker(w, PAIR_A, 2, true);
    pair_worker(w, PAIR_B, 6, pair_is == SCENE_SUSPECT);
    pair_jobs(w);
    pair_row(w, 2, 0);
    if (pair_is == SCENE_DEAD) {
        a = jobq__memory_worker_of(store(w), PAIR_A);
        a->dead = true;
        a->dead_at_us = store_us(w) - 2 * JOBQ__DAY;
        pair_row(w, 3, a->dead_at_us);
        note_burned(w, PAIR_A, 3);
    }
    pair_do(w, 0, pair_operations[0]);
    pair_do(w, 1, pair_operations[1]);
}

static void list_pair(const world *w, moves *all)
{
    int i, j;

    all->count = 0;
    for (i = 0; i < w->zombies; i++) {
        const zombie *z = &w->ghosts[i];
        const backend *b = z->backend == 0 ? NULL : &w->backends[z->backend - 1];
        for (j = 0; j < i && w->ghosts[j].node != z->node;) j++;
        if (j != i) continue;
        add(all, MOVE_ABORT, z->node, i, 0);
        if (stuck(w, z->backend, false)) continue;
        add(all, MOVE_GHOST, z->node, i, 1);
        if (b == NULL || (b->step != STEP_COMMIT && !b->snapped)) {
            add(all, MOVE_SNAPSHOT, z->node, i, 0);
        }
    }
}
