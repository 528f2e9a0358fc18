/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * fuzz_replay.c -- libFuzzer on recordings.
 *
 * The first byte chooses. Even: a good recording in which bytes are changed (two bytes for the
 * place, one that is XORed), replayed. Odd: the rest are records, read as if their sums were right.
 * What is read is in bounds, and no record is longer than what there is.
 */
#define JOBQ_LOOP_SLOTS 16
#define JOBQ_LOOP_LANES 16
#define JOBQ_LOOP_CLAIMS 16
#define JOBQ_LOOP_QUEUES 2
#define JOBQ_LOOP_THREADS 4
#define JOBQ_LOOP_KINDS 4
#define JOBQ_LOOP_WATCHED 4
#define JOBQ_LOOP_PARTITIONS 4
#define JOBQ_LOOP_BATCH 8
#define JOBQ_TALLY_KINDS 2
#define JOBQ_STRAYS_MAX 4
#include <setjmp.h>
#include <stdlib.h>

/* A call that makes no sense ends at an assertion of the loop. */
static jmp_buf refused;
#define JOBQ_ASSERT(x) ((x) ? (void)0 : longjmp(refused, 1))
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#define MUST(x) ((x) ? (void)0 : abort())

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static jobq_loop loop;
static char *block, *good;
static size_t block_size;

/* A worker that has registered, claims jobs and runs them. */
static void record(void)
{
    static jobq_request a;
    static jobq_answer answer;
    static jobq_work work;
    jobq_handled handled;
    jobq_recorder *r;
    int64_t now = 1000000;
    int i, j;

    block_size = jobq_recorder_size(0);
    good = (char *)calloc(1, block_size);
    block = (char *)calloc(1, block_size);
    memset(&handled, 0, sizeof handled);
    handled.outcome = JOBQ_OUTCOME_SUCCESS;
    jobq_loop_init(&loop, NULL, 7, now);
    r = jobq_recorder_init(good, block_size, &loop, now, now);
    for (i = 0; i < 200; i++, now += 1000) {
        jobq_recorded_next(r, &loop, now, &a);
        while (jobq_recorded_take(r, &loop, now, &work))
            jobq_recorded_handled(r, &loop, now, &work, &handled, NULL);
        if (a.kind == JOBQ_REQUEST_WAIT) continue;
        jobq_answer_start(&answer, &a);
        answer.news.alive = true;
        answer.count = a.kind == JOBQ_REQUEST_REGISTER || a.kind == JOBQ_REQUEST_POLICIES;
        answer.queues[0] = 1;
        answer.policies[0].policy = jobq_policy_defaults(NULL);
        answer.policies[0].stages_max = 1;
        for (j = 0; a.kind == JOBQ_REQUEST_CLAIM && j < a.limit && j < 4; j++) {
            answer.claimed.jobs[j] = jobq_job_new(i * 4 + j + 1);
            answer.claimed.jobs[j].queue = answer.claimed.jobs[j].kind = 1;
            answer.claimed.jobs[j].state = JOBQ_STATE_RUNNING;
            answer.claimed.jobs[j].worker = a.worker;
            answer.claimed.jobs[j].claim = a.claim;
            answer.claimed.jobs[j].attempt = 1;
            answer.claimed.count = j + 1;
        }
        jobq_recorded_tell(r, &loop, now, &answer);
    }
}

static void changed(jobq_replay *replay, const uint8_t *data, size_t size)
{
    const char *why;
    jobq_entry e;
    size_t at;

    memcpy(block, good, block_size);
    for (; size >= 3; size -= 3, data += 3) {
        at = (size_t)data[0] << 8 | data[1];
        at = at < 256 ? at : JOBQ__FROM + ((jobq_recording *)(void *)good)->bytes + at - 256;
        block[at] = (char)(block[at] ^ data[2]);
    }
    if (jobq_replay_init(replay, block, block_size, &why) != JOBQ_OK) return;
    while (jobq_replay_step(replay, &e)) MUST(e.kind < JOBQ_ENTRY_COUNT);
}

static void records(jobq_replay *replay, const uint8_t *data, size_t size)
{
    uint8_t *bytes = (uint8_t *)malloc(size + 1);
    jobq_entry e;

    memcpy(bytes, data, size);
    memset(replay, 0, sizeof *replay);
    replay->c.at = bytes;
    replay->c.end = bytes + size;
    replay->c.reads = true;
    replay->c.last = &replay->last;
    while (!replay->c.bad && replay->c.at < replay->c.end) {
        memset(&e, 0, sizeof e);
        jobq__replay_room(replay, &e, *replay->c.at & 15);
        jobq__code_entry(&replay->c, &e);
        MUST(replay->c.at <= replay->c.end);
        if (replay->c.bad || e.answer == NULL) continue;
        MUST(e.answer->kind < JOBQ_REQUEST_COUNT);
    }
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static jobq_replay *replay;

    if (block == NULL) record();
    if (replay == NULL) replay = (jobq_replay *)calloc(1, sizeof *replay);
    if (size == 0 || setjmp(refused) != 0) return 0;
    if (data[0] % 2 == 0) changed(replay, data + 1, size - 1);
    else records(replay, data + 1, size - 1);
    return 0;
}
