/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Random bits, worker ids, backoff, PartitionMode. Rows X8, X14 to X17, T-S and T-P,
 * S39 to S41; repairs W-M1 to W-M4, W-O16 to W-O19.
 */
#define _CRT_RAND_S /* rand_s of Windows */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"

#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

/* ---- worker ids ------------------------------------------------------------------------------ */

/* Random bits of the system. */
static void draw(void *bits, size_t size)
{
#ifdef _WIN32
    size_t i;

    for (i = 0; i < size; i += sizeof(unsigned))
        assert_int_equal(rand_s((unsigned *)(void *)((char *)bits + i)), 0);
#else
    FILE *f = fopen("/dev/urandom", "rb");

    assert_non_null(f);
    assert_int_equal(fread(bits, 1, size, f), size);
    fclose(f);
#endif
}

static int by_value(const void *a, const void *b)
{
    int64_t x, y;

    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

/* X17 in its 64-bit form. */
static void a_million_worker_ids_are_distinct(void **unused)
{
    size_t count = check_slow() ? 20000 : 1000000, i;
    int64_t *ids = malloc(count * sizeof *ids);

    (void)unused;
    assert_non_null(ids);
    draw(ids, count * sizeof *ids);
    for (i = 0; i < count; i++) ids[i] = jobq_worker_id_from((uint64_t)ids[i]);
    qsort(ids, count, sizeof *ids, by_value);
    for (i = 1; i < count; i++) assert_true(ids[i] != ids[i - 1]);
    free(ids);
    assert_true(jobq_worker_id_from(0) != 0);
}

#ifndef _WIN32
static uint64_t os_bits(void)
{
    uint64_t bits;

    draw(&bits, sizeof bits);
    return bits;
}

static void parent_and_child_draw_different_ids(void **unused)
{
    int ends[2], status;
    int64_t mine, childs = 0;
    pid_t pid;

    (void)unused;
    assert_int_equal(pipe(ends), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int64_t id = jobq_worker_id_from(os_bits());
        _exit(write(ends[1], &id, sizeof id) == (ssize_t)sizeof id ? 0 : 1);
    }
    mine = jobq_worker_id_from(os_bits());
    assert_int_equal(read(ends[0], &childs, sizeof childs), sizeof childs);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(ends[0]);
    close(ends[1]);
    assert_true(mine != childs);
}
#endif

static void check_suffix(const char *name, const char *prefix, size_t len)
{
    size_t i, at = strlen(prefix);

    assert_memory_equal(name, prefix, at);
    assert_int_equal(name[at], '-');
    assert_int_equal(strlen(name + at + 1), len);
    for (i = at + 1; name[i] != '\0'; i++) {
        assert_true((name[i] >= 'A' && name[i] <= 'Z') || (name[i] >= '0' && name[i] <= '9'));
    }
}

/* T-S1, T-S2, S39 to S41. */
static void worker_names_have_their_two_forms(void **unused)
{
    static const struct {
        uint64_t seed;
        const char *suffix;
    } vectors[] = {{0, "AOXLMG"},         {1, "OXLMG4"},         {2, "3M8OTS"},
                   {42, "LQ7OZ5"},        {12345, "RVNLYY"},     {123456789, "MROROQ"},
                   {999999999, "96SGYN"}, {1073741823, "0G8D57"}};
    char name[JOBQ_WORKER_NAME_MAX], other[JOBQ_WORKER_NAME_MAX], expected[32];
    static char prefix[300];
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(vectors); i++) {
        jobq_worker_name_short(name, jobq_str_from("orders"), vectors[i].seed);
        snprintf(expected, sizeof expected, "orders-%s", vectors[i].suffix);
        assert_string_equal(name, expected);
    }
    check_suffix(name, "orders", 6);
    jobq_worker_name_short(name, jobq_str_from("q"), 1000000);
    jobq_worker_name_short(other, jobq_str_from("q"), 2000000);
    assert_string_not_equal(name, other);
    jobq_worker_name_format(name, jobq_str_from("orders"), -1);
    check_suffix(name, "orders", 13);
    jobq_worker_name_format(other, jobq_str_from("orders"), -2);
    assert_string_not_equal(name, other);
    memset(prefix, 'x', sizeof prefix - 1);
    jobq_worker_name_format(name, jobq_str_from(prefix), 5);
    assert_int_equal(strlen(name), JOBQ_WORKER_NAME_MAX - 1);
    jobq_worker_name_format(other, jobq_str_from(prefix), 6);
    assert_string_not_equal(name, other);
}

static void random_bits_reach_all_of_a_span(void **unused)
{
    jobq_random r = {7};
    int seen[6] = {0}, i;

    (void)unused;
    for (i = 0; i < 60000; i++) seen[jobq_random_between(jobq_random_next(&r), -2, 3) + 2]++;
    for (i = 0; i < 6; i++) assert_in_range(seen[i], 9500, 10500);
    assert_true(jobq_random_between(UINT64_MAX, INT64_MIN, INT64_MAX) == INT64_MAX);
    assert_true(jobq_random_between(0, INT64_MIN, INT64_MAX) == INT64_MIN);
    assert_true(jobq_random_between(123, 5, 5) == 5);
    assert_true(jobq_random_between(UINT64_MAX, 5, 4) == 5);
    r.state = 0;
    assert_true(jobq_random_next(&r) == UINT64_C(0xe220a8397b1dcdaf)); /* splitmix64's own vector */
}

/* ---- backoff --------------------------------------------------------------------------------- */

static jobq_backoff seed_without_jitter(void)
{
    jobq_backoff b = jobq_backoff_seed();

    b.jitter_permille = JOBQ_NO_JITTER;
    return b;
}

/* The table of SEED_FACTS 1.1; a work table passes its new retry count, so that its first is 120
 * s. */
static void the_documents_delays_come_out_exactly(void **unused)
{
    static const int seconds[] = {60, 120, 240, 480, 960, 1920, 3600, 3600};
    static const uint32_t huge[] = {25, 26, 30, 31, 32,          33,         40,
                                    61, 62, 63, 64, 0x80000000u, 0xffffffffu};
    jobq_backoff b = seed_without_jitter();
    int64_t last = 0;
    uint32_t n;
    size_t i;

    (void)unused;
    for (n = 0; n < COUNT(seconds); n++) {
        assert_int_equal(jobq_backoff_delay(&b, n, 0), seconds[n] * SECOND);
    }
    for (i = 0; i < COUNT(huge); i++)
        assert_int_equal(jobq_backoff_delay(&b, huge[i], 1), 3600 * SECOND);
    b.base_us = 3;
    b.floor_us = 0;
    b.cap_us = INT64_MAX;
    for (n = 0; n < 80; n++) { /* monotone to the very end */
        int64_t d = jobq_backoff_delay(&b, n, 0);
        assert_true(d >= last);
        last = d;
    }
    assert_true(last == INT64_MAX);
}

static void jitter_fills_its_band_and_no_more(void **unused)
{
    static const int permille[] = {1, 100, 250, 500, 1000};
    jobq_random r = {99};
    int draws = check_slow() ? 50000 : 100000, i;
    uint32_t n;
    size_t k;

    (void)unused;
    for (k = 0; k < COUNT(permille); k++) {
        for (n = 0; n < 9; n += 2) {
            jobq_backoff b = jobq_backoff_seed(), flat;
            int64_t d, low, high, min = INT64_MAX, max = 0;
            double sum = 0;
            b.jitter_permille = permille[k] == 0 ? JOBQ_NO_JITTER : permille[k];
            flat = b;
            flat.jitter_permille = JOBQ_NO_JITTER;
            d = jobq_backoff_delay(&flat, n, 0);
            low = d - d / 1000 * permille[k] > b.floor_us ? d - d / 1000 * permille[k] : b.floor_us;
            high = d + d / 1000 * permille[k] < b.cap_us ? d + d / 1000 * permille[k] : b.cap_us;
            for (i = 0; i < draws; i++) {
                int64_t x = jobq_backoff_delay(&b, n, jobq_random_next(&r));
                if (x < min) min = x;
                if (x > max) max = x;
                sum += (double)x;
            }
            assert_true(min >= low && max <= high);
            assert_true(min - low <= (high - low) / 100 && high - max <= (high - low) / 100);
            assert_true(sum / draws > (double)(low + high) / 2 * 0.99);
            assert_true(sum / draws < (double)(low + high) / 2 * 1.01);
        }
    }
}

static void no_pile_of_delays_stands_at_the_cap(void **unused)
{
    jobq_backoff b = jobq_backoff_seed();
    jobq_random r = {5};
    int i, at_cap = 0;

    (void)unused;
    for (i = 0; i < 10000; i++)
        at_cap += jobq_backoff_delay(&b, 10, jobq_random_next(&r)) == b.cap_us;
    assert_true(at_cap <= 2);
}

/* Half of 1,999 us, to the microsecond. */
static void jitter_counts_microseconds(void **unused)
{
    jobq_backoff b = {JOBQ_CURVE_CONSTANT, 500, 1999, SECOND, 0};

    (void)unused;
    assert_int_equal(jobq_backoff_delay(&b, 0, 0), 1000);
    assert_int_equal(jobq_backoff_delay(&b, 0, UINT64_MAX), 2998);
}

static void curves_bend_as_they_say(void **unused)
{
    jobq_backoff b = {JOBQ_CURVE_LINEAR, JOBQ_NO_JITTER, SECOND, 100 * SECOND, 0};
    int i;

    (void)unused;
    assert_int_equal(jobq_backoff_delay(&b, 0, 0), SECOND);
    assert_int_equal(jobq_backoff_delay(&b, 4, 0), 5 * SECOND);
    assert_int_equal(jobq_backoff_delay(&b, 0xffffffffu, 0), 100 * SECOND);
    b.curve = JOBQ_CURVE_QUARTIC;
    assert_int_equal(jobq_backoff_delay(&b, 2, 0), 81 * SECOND);
    assert_int_equal(jobq_backoff_delay(&b, 0xffffffffu, 0), 100 * SECOND);
    b.curve = JOBQ_CURVE_CONSTANT;
    assert_int_equal(jobq_backoff_delay(&b, 77, 0), SECOND);
    b.curve = JOBQ_CURVE_EXPONENTIAL;
    b.base_us = 1;
    b.cap_us = (int64_t)1 << 45;
    for (i = 0; i < 45; i++)
        assert_int_equal(jobq_backoff_delay(&b, (uint32_t)i, 0), (int64_t)1 << i);
    for (i = 0; i < JOBQ_CURVE_COUNT; i++) {
        const char *name = jobq_enum_name(JOBQ_ENUM_CURVE, i);
        assert_int_equal(jobq_enum_from(JOBQ_ENUM_CURVE, jobq_str_from(name)), i);
    }
    assert_int_equal(jobq_enum_from(JOBQ_ENUM_CURVE, jobq_str_from("cubic")), -1);
}

static void bad_backoffs_are_refused_and_zero_is_quick(void **unused)
{
    static const jobq_backoff bad[] = {
        {JOBQ_CURVE_LINEAR, JOBQ_NO_JITTER, -1, SECOND, 0},
        {JOBQ_CURVE_LINEAR, JOBQ_NO_JITTER, SECOND, -1, 0},
        {JOBQ_CURVE_LINEAR, JOBQ_NO_JITTER, SECOND, SECOND, -1},
        {JOBQ_CURVE_LINEAR, JOBQ_NO_JITTER, SECOND, SECOND, SECOND + 1},
        {JOBQ_CURVE_LINEAR, -2, SECOND, SECOND, 0},
        {JOBQ_CURVE_LINEAR, 1001, SECOND, SECOND, 0},
        {(jobq_curve)-1, 0, SECOND, SECOND, 0},
        {JOBQ_CURVE_COUNT, JOBQ_NO_JITTER, SECOND, SECOND, 0},
    };
    jobq_backoff b = jobq_backoff_defaults(NULL);
    jobq_backoff uncapped = {JOBQ_CURVE_LINEAR, JOBQ_NO_JITTER, SECOND, 0, 0};
    size_t i;

    (void)unused;
    assert_int_equal(b.base_us, 5 * SECOND);
    assert_int_equal(b.cap_us, 3600 * SECOND);
    assert_int_equal(b.jitter_permille, 250);
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (jobq_backoff_check(&bad[i]) != JOBQ_ERROR_INVALID) fail_msg("backoff %d", (int)i);
    }
    assert_int_equal(jobq_backoff_check(&b), JOBQ_OK);
    assert_true(jobq_backoff_defaults(&uncapped).cap_us == 3600 * SECOND);
    uncapped.floor_us = 7200 * SECOND;
    assert_true(jobq_backoff_defaults(&uncapped).cap_us == 7200 * SECOND);
    assert_string_equal(jobq_enum_name(JOBQ_ENUM_CURVE, -1), "unknown");
}

/* ---- partitions ------------------------------------------------------------------------------ */

#define U JOBQ_COUNT_UNKNOWN
#define N JOBQ_PARTITION_NORMAL
#define D JOBQ_PARTITION_DEGRADED
#define OK JOBQ_RESULT_SUCCESS
#define RETRY JOBQ_RESULT_RETRY
#define REJECT JOBQ_RESULT_REJECT

/* One step from a mode. T-P1 to T-P24, with W-O17 (never above configured) and T-P24 (0 counts as
 * 1). */
static void partition_modes_move_as_listed(void **unused)
{
    static const struct {
        const char *name;
        jobq_partition_mode from;
        jobq_result result;
        uint32_t configured, processed, threshold;
        jobq_partition_mode to;
    } steps[] = {
        {"T-P3", {N, 0, 0, 0}, RETRY, 50, U, 1, {D, 1, 0, 1}},
        {"T-P4a", {D, 1, 0, 0}, OK, 50, U, 1, {D, 2, 1, 0}},
        {"T-P4b", {D, 2, 1, 0}, OK, 50, U, 1, {D, 4, 2, 0}},
        {"T-P4d", {D, 2, 1, 3}, OK, 50, U, 1, {D, 4, 2, 0}}, /* clears the failures */
        {"T-P4c", {D, 4, 2, 0}, OK, 50, U, 1, {D, 8, 3, 0}},
        {"a success clears failures", {D, 2, 1, 3}, OK, 50, U, 1, {D, 4, 2, 0}},
        {"nothing said", {N, 0, 0, 1}, JOBQ_RESULT_NONE, 50, U, 3, {N, 0, 0, 2}},
        {"T-P5", {D, 16, 4, 0}, OK, 32, U, 1, {N, 0, 0, 0}},
        {"T-P6", {N, 0, 0, 0}, REJECT, 50, U, 1, {D, 1, 0, 0}},
        {"T-P7", {N, 0, 0, 0}, REJECT, 50, 3, 1, {D, 3, 0, 0}},
        {"T-P8", {N, 0, 0, 0}, RETRY, 50, 0, 1, {D, 1, 0, 1}},
        {"T-P9", {N, 0, 0, 0}, OK, 50, U, 1, {N, 0, 0, 0}},
        {"T-P11a", {N, 0, 0, 0}, RETRY, 50, U, 3, {N, 0, 0, 1}},
        {"T-P11b", {N, 0, 0, 1}, RETRY, 50, U, 3, {N, 0, 0, 2}},
        {"T-P11c", {N, 0, 0, 2}, RETRY, 50, U, 3, {D, 1, 0, 3}},
        {"T-P12", {N, 0, 0, 1}, OK, 50, U, 3, {N, 0, 0, 0}},
        {"T-P16", {D, 6, 0, 0}, OK, 8, U, 1, {N, 0, 0, 0}},
        {"T-P17a", {D, 3, 0, 0}, OK, 8, U, 1, {D, 6, 1, 0}},
        {"T-P17b", {D, 6, 1, 0}, OK, 8, U, 1, {N, 0, 0, 0}},
        {"T-P18a", {N, 0, 0, 0}, RETRY, 1, U, 1, {D, 1, 0, 1}},
        {"T-P18b", {D, 1, 0, 1}, OK, 1, U, 1, {N, 0, 0, 0}},
        {"T-P19", {D, 8, 3, 0}, RETRY, 50, U, 3, {D, 8, 3, 1}},
        {"T-P20", {N, 0, 0, 0}, REJECT, 50, U, 5, {D, 1, 0, 0}},
        {"T-P21", {N, 0, 0, 2}, REJECT, 50, U, 5, {D, 1, 0, 0}},
        {"T-P22 repaired", {N, 0, 0, 0}, RETRY, 50, 80, 1, {D, 50, 0, 1}},
        {"T-P23", {D, 3000000000u, 0, 0}, OK, 4294967295u, U, 1, {N, 0, 0, 0}},
        {"T-P24 repaired", {N, 0, 0, 0}, RETRY, 50, U, 0, {D, 1, 0, 1}},
        {"saturates", {N, 0, 0, 4294967295u}, RETRY, 50, U, 1, {D, 1, 0, 4294967295u}},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(steps); i++) {
        jobq_partition_mode to =
            jobq_partition_next(steps[i].from, steps[i].result, steps[i].configured,
                                steps[i].processed, steps[i].threshold);
        if (memcmp(&to, &steps[i].to, sizeof to) != 0) {
            fail_msg("%s: state %d, effective %u, successes %u, failures %u", steps[i].name,
                     (int)to.state, to.effective, to.successes, to.failures);
        }
    }
}

static void partition_sizes_stay_within_one_and_configured(void **unused)
{
    static const struct {
        uint32_t configured;
        int successes;
    } climbs[] = {{1, 1}, {2, 1}, {3, 2}, {8, 3}, {10, 4}, {50, 6}, {100, 7}, {1000, 10}};
    static const jobq_partition_mode fresh = {N, 0, 0, 0}, four = {D, 4, 2, 0},
                                     eighty = {D, 80, 0, 0}, unset = {D, 0, UINT32_MAX, 0};
    jobq_random r = {3};
    jobq_partition_mode mode = fresh;
    size_t i;
    int n;

    (void)unused;
    assert_int_equal(jobq_partition_size(&fresh, 0), 1); /* nothing configured is one at a time */
    assert_int_equal(jobq_partition_next(fresh, RETRY, 0, 0, 0).effective, 1);
    assert_int_equal(jobq_partition_size(&unset, 9), 1);
    assert_int_equal(jobq_partition_next(unset, OK, 2, U, 1).state, N);
    assert_int_equal(jobq_partition_next(unset, OK, 9, U, 1).effective, 2);
    assert_true(jobq_partition_next(unset, OK, 9, U, 1).successes == UINT32_MAX);
    assert_int_equal(jobq_partition_size(&fresh, 50), 50);  /* T-P1 */
    assert_int_equal(jobq_partition_size(&four, 50), 4);    /* T-P2 */
    assert_int_equal(jobq_partition_size(&eighty, 50), 50); /* W-O17 */
    for (i = 0; i < COUNT(climbs); i++) { /* X14, T-P10 */
        static const jobq_partition_mode one = {D, 1, 0, 0};
        for (mode = one, n = 0; mode.state == D; n++) {
            mode = jobq_partition_next(mode, OK, climbs[i].configured, U, 1);
        }
        assert_int_equal(n, climbs[i].successes);
    }
    for (n = 0; n < 100000; n++) {
        uint64_t bits = jobq_random_next(&r);
        uint32_t configured = 1 + (uint32_t)(bits >> 40) % 300, size;
        mode = jobq_partition_next(mode, (jobq_result)(bits % 4), configured,
                                   (uint32_t)(bits >> 8) % 400, (uint32_t)(bits >> 20) % 4);
        size = jobq_partition_size(&mode, configured);
        assert_true(size >= 1 && size <= configured);
    }
}

/* T-P13 to T-P15, T-P25 to T-P30, in milliseconds. */
static void partitions_wait_as_listed(void **unused)
{
    static const struct {
        const char *name;
        int base, cap;
        uint32_t failures;
        int expected;
    } waits[] = {
        {"T-P13", 100, 30000, 0, 100},           {"T-P14a", 100, 30000, 1, 100},
        {"T-P14b", 100, 30000, 2, 200},          {"T-P14c", 100, 30000, 3, 400},
        {"T-P15", 100, 500, 10, 500},            {"T-P25", 100, 30000, 4, 800},
        {"T-P25", 100, 30000, 5, 1600},          {"T-P25", 100, 30000, 6, 3200},
        {"T-P25", 100, 30000, 7, 6400},          {"T-P25", 100, 30000, 8, 12800},
        {"T-P25", 100, 30000, 9, 25600},         {"T-P25", 100, 30000, 10, 30000},
        {"T-P25", 100, 30000, 31, 30000},        {"T-P25", 100, 30000, 32, 30000},
        {"T-P25", 100, 30000, 1000, 30000},      {"T-P26", 1000, 60000, 1, 1000},
        {"T-P26", 1000, 60000, 2, 2000},         {"T-P26", 1000, 60000, 3, 4000},
        {"T-P26", 1000, 60000, 4, 8000},         {"T-P26", 1000, 60000, 5, 16000},
        {"T-P26", 1000, 60000, 6, 32000},        {"T-P26", 1000, 60000, 7, 60000},
        {"T-P27", 100, 10000, 7, 6400},          {"T-P27", 100, 10000, 8, 10000},
        {"T-P28", 5000, 300000, 6, 160000},      {"T-P28", 5000, 300000, 7, 300000},
        {"T-P29", 100, 30000, 2147483649u, 30000}, {"T-P29b", 100, 30000, 4294967295u, 30000},
        {"T-P30 repaired", 500, 100, 0, 100}};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(waits); i++) {
        jobq_backoff b = {JOBQ_CURVE_EXPONENTIAL, JOBQ_NO_JITTER, waits[i].base * 1000,
                          waits[i].cap * 1000, 0};
        int64_t got = jobq_partition_backoff(&b, waits[i].failures, 12345);
        if (got != waits[i].expected * 1000) {
            fail_msg("%s, failure %u: %ld us", waits[i].name, waits[i].failures, (long)got);
        }
    }
}

/* X16. */
static void directives_follow_the_outcome(void **unused)
{
    static const jobq_partition_mode failed_twice = {D, 1, 0, 2};
    jobq_backoff b = {JOBQ_CURVE_EXPONENTIAL, JOBQ_NO_JITTER, SECOND, 60 * SECOND, 0};
    jobq_directive d;

    (void)unused;
    d = jobq_partition_directive(&failed_twice, OK, 0, 10, &b, 0);
    assert_int_equal(d.kind, JOBQ_DIRECTIVE_IDLE);
    d = jobq_partition_directive(&failed_twice, OK, 10, 10, &b, 0);
    assert_int_equal(d.kind, JOBQ_DIRECTIVE_PROCEED);
    d = jobq_partition_directive(&failed_twice, OK, 9, 10, &b, 0);
    assert_int_equal(d.kind, JOBQ_DIRECTIVE_IDLE);
    d = jobq_partition_directive(&failed_twice, RETRY, 3, 10, &b, 0);
    assert_int_equal(d.kind, JOBQ_DIRECTIVE_SLEEP);
    assert_int_equal(d.delay_us, 2 * SECOND);
    d = jobq_partition_directive(&failed_twice, JOBQ_RESULT_NONE, 3, 10, &b, 0);
    assert_int_equal(d.kind, JOBQ_DIRECTIVE_SLEEP);
    assert_int_equal(d.delay_us, 2 * SECOND);
    d = jobq_partition_directive(&failed_twice, REJECT, 3, 10, &b, 0);
    assert_int_equal(d.kind, JOBQ_DIRECTIVE_PROCEED);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_million_worker_ids_are_distinct),
#ifndef _WIN32
        cmocka_unit_test(parent_and_child_draw_different_ids),
#endif
        cmocka_unit_test(worker_names_have_their_two_forms),
        cmocka_unit_test(random_bits_reach_all_of_a_span),
        cmocka_unit_test(the_documents_delays_come_out_exactly),
        cmocka_unit_test(jitter_fills_its_band_and_no_more),
        cmocka_unit_test(no_pile_of_delays_stands_at_the_cap),
        cmocka_unit_test(jitter_counts_microseconds),
        cmocka_unit_test(curves_bend_as_they_say),
        cmocka_unit_test(bad_backoffs_are_refused_and_zero_is_quick),
        cmocka_unit_test(partition_modes_move_as_listed),
        cmocka_unit_test(partition_sizes_stay_within_one_and_configured),
        cmocka_unit_test(partitions_wait_as_listed),
        cmocka_unit_test(directives_follow_the_outcome),
    };

    return cmocka_run_group_tests_name("rules", tests, NULL, NULL);
}
