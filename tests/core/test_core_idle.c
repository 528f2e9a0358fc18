/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * How much memory an idle worker uses, at the sizes that ship: of the loop, of requests and of
 * answers, which are large, it fills what it needs. A page that nobody has written to costs
 * nothing.
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* Pages that nobody has touched; malloc might give used ones. */
static void *untouched(size_t size)
{
    int zero = open("/dev/zero", O_RDWR);
    void *block = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero, 0);

    assert_true(zero >= 0 && block != MAP_FAILED);
    close(zero);
    return block;
}

/* Bytes of a block in pages of its own in memory; the kernel's page of zeros is nobody's. -1: the
 * system does not tell. */
static int64_t resident(const void *block, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)block / page;
    int fd = open("/proc/self/pagemap", O_RDONLY);
    uint64_t entry = 0;
    int64_t bytes = fd < 0 ? -1 : 0;

    for (; bytes >= 0 && at * page < (uintptr_t)block + size; at++) {
        ssize_t got = pread(fd, &entry, sizeof entry, (off_t)(at * sizeof entry));
        if (got != (ssize_t)sizeof entry) bytes = -1;
        else if ((entry >> 56 & 1) != 0) bytes += (int64_t)page; /* mapped, here alone */
    }
    if (fd >= 0) close(fd);
    return bytes;
}

static bool can_be_seen(void)
{
    size_t size = 1 << 20;
    char *block = (char *)untouched(size);
    bool seen = resident(block, size) == 0;

    memset(block, 1, size);
    seen = seen && resident(block, size) == (int64_t)size;
    munmap(block, size);
    return seen;
}

/* The store has nothing to do, and a queue without jobs. */
static void answers(jobq_loop *loop, int64_t now, const jobq_request *a, jobq_answer *answer)
{
    if (a->kind == JOBQ_REQUEST_WAIT) return;
    jobq_answer_start(answer, a);
    answer->news.alive = answer->news.written = a->kind == JOBQ_REQUEST_HEARTBEAT;
    answer->news.every_kind = true;
    if (a->kind == JOBQ_REQUEST_REGISTER) {
        answer->count = answer->kind_count = 1;
        answer->queues[0] = answer->kinds[0] = 1;
    } else if (a->kind == JOBQ_REQUEST_POLICIES) {
        answer->count = 1;
        memset(&answer->policies[0], 0, sizeof answer->policies[0]);
        answer->policies[0].policy = jobq_policy_defaults(NULL);
        answer->policies[0].stages_max = 1;
    }
    jobq_loop_tell(loop, now, answer);
}

static void an_idle_worker_fills_a_small_part(void **unused)
{
    jobq_loop *loop = (jobq_loop *)untouched(sizeof *loop);
    jobq_request *request = (jobq_request *)untouched(sizeof *request);
    jobq_answer *answer = (jobq_answer *)untouched(sizeof *answer);
    int64_t now = 0, bytes, kinds = 0;

    (void)unused;
    if (!can_be_seen()) skip();
    jobq_loop_init(loop, NULL, 99, now);
    while (now < JOBQ_HOURS(1)) {
        jobq_loop_next(loop, now, request);
        kinds |= (int64_t)1 << request->kind;
        if (request->kind == JOBQ_REQUEST_WAIT) now = request->until_mono_us;
        answers(loop, now, request, answer);
    }
    assert_true((kinds >> JOBQ_REQUEST_CLAIM & 1) != 0);
    assert_true((kinds >> JOBQ_REQUEST_HEARTBEAT & 1) != 0);
    bytes = resident(loop, sizeof *loop) + resident(request, sizeof *request) +
            resident(answer, sizeof *answer);
    print_message("%lld KB of %lld\n", (long long)bytes / 1024,
                  (long long)(sizeof *loop + sizeof *request + sizeof *answer) / 1024);
    assert_in_range(bytes, 4096, 400 * 1024);
    munmap(loop, sizeof *loop);
    munmap(request, sizeof *request);
    munmap(answer, sizeof *answer);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(an_idle_worker_fills_a_small_part)};

    return cmocka_run_group_tests_name("idle", tests, NULL, NULL);
}
