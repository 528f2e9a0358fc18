/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * without_database.c -- a worker and its queue in memory, with a clock of your own.
 *
 * Build   cc examples/without_database.c -I. -o without_database
 * Run     ./without_database
 * Prints  what happens to three jobs, an hour of it at once: one succeeds in two stages, one needs
 *         three attempts, one fails after its last attempt.
 *
 * This is the worker that runs on Postgres: the same loop, the same decisions. For unit tests of
 * handlers start from test_handlers.c, which needs less around them.
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include <stdio.h>
#include <stdlib.h>

enum { PICTURES = 1, RESIZE = 1, FLAKY = 2, HOPELESS = 3 }; /* a queue, and three kinds */

static int64_t now_us; /* the clock, which this program sets */

static void say(const jobq_call *call, const char *what)
{
    printf("%8.1f s  job %d, stage %d, attempt %d: %s\n", (double)now_us / 1e6, (int)call->job.id,
           (int)call->job.stage, (int)call->job.attempt, what);
}

static jobq_outcome extract(jobq_call *call)
{
    say(call, "extracted");
    return jobq_call_result(call, jobq_str_from("{\"size\": 64}"), false) ? JOBQ_OUTCOME_SUCCESS
                                                                         : JOBQ_OUTCOME_RETRY;
}

static jobq_outcome resize(jobq_call *call)
{
    printf("            with %.*s\n", (int)call->payload.len, call->payload.ptr);
    say(call, "resized");
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome flaky(jobq_call *call)
{
    say(call, call->job.attempt < 3 ? "no luck" : "done");
    return call->job.attempt < 3 ? JOBQ_OUTCOME_RETRY : JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome hopeless(jobq_call *call)
{
    say(call, "never works");
    return JOBQ_OUTCOME_RETRY;
}

int main(void)
{
    static const jobq_memory_handler handlers[] = {
        {.queue = PICTURES, .kind = RESIZE, .run = {extract, resize}},
        {.queue = PICTURES, .kind = FLAKY, .run = {flaky}},
        {.queue = PICTURES, .kind = HOPELESS, .run = {hopeless}}};
    void *block = malloc(jobq_memory_size(10, 2, 100));
    jobq_loop *loop = calloc(1, sizeof *loop);
    jobq_memory *memory;
    jobq_policy policy = {0};
    jobq_job like = jobq_job_new(0);
    int kind;

    if (block == NULL || loop == NULL) return 1;
    memory = jobq_memory_init(block, 10, 2, 100);
    policy.max_attempts = 5;
    jobq_memory_policy(memory, PICTURES, &policy, false);
    for (kind = RESIZE; kind <= HOPELESS; kind++) {
        like.queue = PICTURES;
        like.kind = kind;
        like.stages = kind == RESIZE ? 2 : 1;
        jobq_memory_enqueue(memory, &like, jobq_str_from("{}"), now_us);
    }

    jobq_loop_init(loop, NULL, 42, now_us);
    while (now_us < JOBQ_HOURS(1)) {
        now_us = jobq_memory_work(memory, loop, handlers, 3, now_us);
    }

    for (kind = RESIZE; kind <= HOPELESS; kind++) {
        const jobq_job *job = &jobq_memory_get(memory, kind)->job;
        printf("job %d: %s\n", (int)job->id, jobq_enum_name(JOBQ_ENUM_STATE, job->state));
        if (job->state != (kind == HOPELESS ? JOBQ_STATE_FAILED : JOBQ_STATE_SUCCEEDED)) return 1;
    }
    free(memory);
    free(loop);
    return 0;
}
