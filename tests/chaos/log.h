/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * log.h -- what a process of the chaos run did, one line for each event, written at once, so that
 * only a crash of the machine can lose it. Columns: monotonic and true wall clock (microseconds),
 * process, role, event, job, stage, worker, claim, detail.
 */
#ifndef LOG_INCLUDED
#define LOG_INCLUDED (1)

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int log_fd = -1;

/* Straight from the kernel: the programs here may step the clock that everybody else reads. */
static inline int64_t kernel_us(clockid_t clock)
{
    struct timespec t;

    syscall(SYS_clock_gettime, clock, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static inline int64_t mono_us(void)
{
    return kernel_us(CLOCK_MONOTONIC);
}

static inline void nap_us(int64_t us)
{
    struct timespec t;

    t.tv_sec = (time_t)(us / 1000000);
    t.tv_nsec = (long)(us % 1000000 * 1000);
    nanosleep(&t, NULL);
}

static inline void log_open(const char *path)
{
    log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (log_fd < 0) {
        perror(path);
        _exit(2);
    }
}

static inline void log_line(const char *role, const char *event, int64_t job, int stage,
                            int64_t worker, int64_t claim, const char *detail)
{
    char line[400];
    int size = snprintf(line, sizeof line,
                        "%" PRId64 "\t%" PRId64 "\t%d\t%s\t%s\t%" PRId64 "\t%d\t%" PRId64
                        "\t%" PRId64 "\t%.120s\n",
                        mono_us(), kernel_us(CLOCK_REALTIME), (int)getpid(), role, event, job,
                        stage, worker, claim, detail);

    if (write(log_fd, line, (size_t)size) != size) _exit(2);
}

#endif
