/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * A loop's statement can be carried out in two ways: by jobq__memory_perform, which users have, and
 * by wire.h, with which the explorer and the simulator split a statement into sent, executed and
 * answered. Each is applied to a copy of a world. Loops and stores have no pointers, so the copies
 * must be equal byte for byte afterwards.
 */
#define JOBQ_LOOP_SLOTS 16
#define JOBQ_LOOP_CLAIMS 16
#define JOBQ_LOOP_THREADS 4
#define JOBQ_LOOP_QUEUES 2
#define JOBQ_LOOP_LANES 66
#define JOBQ_LOOP_PARTITIONS 4
#define JOBQ_LOOP_BATCH 16
#define JOBQ_LOOP_WATCHED 8 /* as many as there are workers: all news fits */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"
#include "told.h"

#define WIRE_PRIORITY 9 /* all of them */
#include "wire.h"

enum { NODES = 3, JOBS = 40, STEPS = 20000 };

typedef struct node {
    jobq_loop loop;
    uint64_t queues, kinds;
    bool up, stuck; /* stuck: its process is stopped */
    int failing;    /* how many claims still fail at the payload of their first job */
} node;

static union {
    int64_t align;
    char bytes[1 << 20];
} block, twin_block;
static jobq_memory *memory, *twin;
static node nodes[NODES];
static jobq_random chance;
static int64_t now_us;
static int seen[JOBQ_REQUEST_COUNT];

static int64_t between(int64_t low, int64_t high)
{
    return jobq_random_between(jobq_random_next(&chance), low, high);
}

static void start(node *d)
{
    jobq_loop_config config;
    jobq_loop_served served = {.message_queues = 0};

    memset(&config, 0, sizeof config);
    config.served = &served;
    config.threads = 2;
    config.batch_max = 4;
    config.lease_us = 10 * SECOND;
    config.prune_us = 30 * SECOND;
    config.vacuum_rows = 5;
    served.listen = true;
    if (between(0, 3) == 0) config.until = JOBQ_UNTIL_ENDED;
    d->queues = (uint64_t)between(1, 3) << 1;
    d->kinds = (uint64_t)between(1, 3) << 1;
    d->up = true;
    d->stuck = false;
    d->failing = 0;
    jobq_loop_init(&d->loop, &config, jobq_random_next(&chance), now_us);
}

/* The same statement, by the wire, on the twins. */
/* What an answer does not fill, nobody may read. */
static void spoil(jobq_answer *a)
{
    static jobq_answer was;

    was = *a;
#define SPOIL(part, count, of) memset(a->part, 0xa5, sizeof a->part);
#define KEEP(part, count, of)                                                                      \
    if ((of) == JOBQ_REQUEST_COUNT || (of) == a->kind)                                             \
        memcpy(a->part, was.part, (size_t)was.count * sizeof a->part[0]);
    JOBQ__ANSWER_PARTS(SPOIL)
    JOBQ__ANSWER_PARTS(KEEP)
}

static void by_wire(const jobq_loop *before, const jobq_request *a, const node *d, jobq_loop *loop)
{
    static wire two[2];
    int count, i;

    memcpy(loop, before, sizeof *loop);
    count = wire_send_all(two, a);
    for (i = 0; i < count; i++) wire_execute(&two[i], twin, d->queues, d->kinds, now_us);
    for (i = 0; i < count; i++) {
        if (!wire_is_flush(two[i].request.kind)) spoil(&two[i].answer);
        wire_answer(&two[i], loop, now_us);
    }
}

static void act(node *d, const jobq_request *a)
{
    static jobq_loop before, loop;

    memcpy(&before, &d->loop, sizeof before);
    memcpy(twin_block.bytes, block.bytes, jobq__memory_used(JOBS, 6, 40));
    jobq__memory_perform(memory, &d->loop, a, d->queues, d->kinds, now_us, now_us);
    by_wire(&before, a, d, &loop);
    if (memcmp(block.bytes, twin_block.bytes, jobq__memory_used(JOBS, 6, 40)) != 0) {
        fail_msg("%s: the stores differ", jobq_enum_name(JOBQ_ENUM_REQUEST, a->kind));
    }
    if (memcmp(&d->loop, &loop, sizeof loop) != 0) {
        size_t at = 0;
        while (((char *)&d->loop)[at] == ((char *)&loop)[at]) at++;
        fail_msg("%s%s: the loops differ at byte %zu", jobq_enum_name(JOBQ_ENUM_REQUEST, a->kind),
                 claims(a) ? " and claim" : "", at);
    }
    seen[a->kind]++;
}

/* The statement is executed, and its answer lost. */
static void lose(node *d, const jobq_request *a)
{
    static jobq_loop told;

    memcpy(&told, &d->loop, sizeof told);
    jobq__memory_perform(memory, &told, a, d->queues, d->kinds, now_us, now_us);
    jobq_loop_disconnected(&d->loop, now_us);
}

static void handle(node *d)
{
    static const jobq_outcome results[] = {JOBQ_OUTCOME_SUCCESS, JOBQ_OUTCOME_SUCCESS,
                                            JOBQ_OUTCOME_RETRY, JOBQ_OUTCOME_SNOOZE};
    int32_t slot = jobq__take_job(&d->loop, now_us);

    if (slot >= 0 && (d->kinds >> d->loop.slots[slot].job.kind & 1) == 0) {
        jobq__job_unhandled(&d->loop, now_us, slot);
    }
    if (d->loop.running_count == 0 || between(0, 1) == 0) return;
    slot = d->loop.running[0];
    told_handled(&d->loop, now_us, slot, d->loop.slots[slot].generation,
                      results[between(0, 3)], SECOND, true);
}

/* The store can name the claim's first job, but not send it. */
static bool claim_fails(node *d, const jobq_request *a)
{
    jobq_request beat = *a;

    if (!claims(a) || a->bytes == 0 || d->failing == 0) return false;
    d->failing--;
    beat.claim = 0;
    if (a->kind == JOBQ_REQUEST_HEARTBEAT) act(d, &beat);
    told_claimed(&d->loop, now_us, JOBQ_ERROR_DATABASE);
    return true;
}

/* What a process does until it has to wait. */
static void go_on(node *d)
{
    for (;;) {
        jobq_request a = asks(&d->loop, now_us);
        if (a.kind == JOBQ_REQUEST_WAIT) break;
        if (a.kind == JOBQ_REQUEST_EXIT) {
            d->up = false;
            return;
        }
        if (a.kind == JOBQ_REQUEST_ABANDON) continue;
        if (a.kind == JOBQ_REQUEST_DISCONNECT) jobq_loop_disconnected(&d->loop, now_us);
        else if (between(0, 99) == 0) lose(d, &a);
        else if (!claim_fails(d, &a)) act(d, &a);
    }
    handle(d);
}

static void something_happens(void)
{
    node *d = &nodes[between(0, NODES - 1)];
    jobq_job like = jobq_job_new(0);

    switch ((int)between(0, 30)) {
    case 0: d->up = false; break;
    case 1: d->stuck = !d->stuck; break;
    case 2: jobq_loop_disconnected(&d->loop, now_us); break;
    case 3: jobq_memory_event(memory, between(1, JOBS), JOBQ_EVENT_CANCEL, now_us); break;
    case 4: jobq_memory_event(memory, between(1, JOBS), JOBQ_EVENT_REVIVE, now_us); break;
    case 5: jobq_memory_policy(memory, 1, NULL, between(0, 1) == 0); break;
    case 6: jobq_loop_stop(&d->loop, now_us, -1); break;
    case 7: d->failing = (int)between(1, 12); break;
    case 8:
    case 9:
        like.queue = (int32_t)between(1, 2);
        like.kind = (int32_t)between(1, 2);
        like.priority = (int16_t)between(-1, 1);
        like.stages = (int16_t)between(1, 3);
        jobq_memory_enqueue(memory, &like, jobq_str_from(NULL), now_us);
        break;
    }
}

static void begin(void)
{
    int n;

    memory = jobq_memory_init(block.bytes, JOBS, 6, 40);
    twin = (jobq_memory *)(void *)twin_block.bytes;
    assert_true(jobq_memory_size(JOBS, 6, 40) <= sizeof block.bytes);
    for (n = 0; n < NODES; n++) start(&nodes[n]);
}

static void perform_and_the_wire_say_the_same(void **unused)
{
    int i, n;

    (void)unused;
    assert_int_equal(sizeof(jobq_backoff), sizeof(jobq_curve) + sizeof(int32_t) + 24);
    chance.state = 7;
    now_us = 1000 * SECOND;
    for (i = 0; i < (check_slow() ? STEPS / 3 : STEPS); i++) {
        if (i % 2000 == 0) begin();
        now_us += between(0, 3) == 0 ? between(1, 2 * SECOND) : between(1, SECOND / 20);
        something_happens();
        for (n = 0; n < NODES; n++) {
            if (!nodes[n].up) start(&nodes[n]);
            if (!nodes[n].stuck) go_on(&nodes[n]);
        }
    }
    for (i = JOBQ_REQUEST_CONNECT; i < JOBQ_REQUEST_ABANDON; i++) {
        bool messages = i >= JOBQ_REQUEST_LOOK && i <= JOBQ_REQUEST_RENEW; /* not on the wire */
        bool never = i == JOBQ_REQUEST_DISCONNECT || i == JOBQ_REQUEST_TICK; /* no schedules here */
        if (messages || never || seen[i] != 0) continue;
        fail_msg("no %s was compared", jobq_enum_name(JOBQ_ENUM_REQUEST, i));
    }
}

/* What the lists of parts leave out is as small as a head. */
static void the_lists_of_parts_are_complete(void **unused)
{
    size_t asked = sizeof(jobq_request) - sizeof(jobq_ack);
    size_t told = sizeof(jobq_answer) - sizeof((jobq_claimed *)0)->slots +
                  sizeof((jobq_answer *)0)->exceptions; /* they are in the list twice */

    (void)unused;
#define ASKED(part, count, fields) asked -= sizeof((jobq_request *)0)->part;
#define TOLD(part, count, of) told -= sizeof((jobq_answer *)0)->part;
    JOBQ__REQUEST_PARTS(ASKED)
    JOBQ__ANSWER_PARTS(TOLD)
    assert_in_range(asked, offsetof(jobq_request, queues), offsetof(jobq_request, queues) + 16);
    assert_in_range(told, sizeof(jobq_reading), sizeof(jobq_reading) + 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(perform_and_the_wire_say_the_same),
                                       cmocka_unit_test(the_lists_of_parts_are_complete)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
