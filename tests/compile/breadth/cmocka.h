/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * cmocka.h -- the part of cmocka that the tests of jobq.h use, with the same closing lines (run.sh
 * reads them), for machines that have a cross compiler but no cmocka.
 */
#ifndef CMOCKA_SHIM_INCLUDED
#define CMOCKA_SHIM_INCLUDED (1)

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef void (*CMUnitTestFunction)(void **state);
typedef int (*CMFixtureFunction)(void **state);

struct CMUnitTest {
    const char *name;
    CMUnitTestFunction test_func;
    CMFixtureFunction setup_func, teardown_func;
    void *initial_state;
};

#define cmocka_unit_test(f) {#f, f, NULL, NULL, NULL}
#define cmocka_unit_test_setup(f, s) {#f, f, s, NULL, NULL}
#define cmocka_unit_test_teardown(f, t) {#f, f, NULL, t, NULL}
#define cmocka_unit_test_setup_teardown(f, s, t) {#f, f, s, t, NULL}

static jmp_buf shim_failed;

static inline void shim_fail(const char *file, int line, const char *format, ...)
{
    va_list args;

    printf("%s:%d: ", file, line);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    longjmp(shim_failed, 1);
}

static inline void shim_equal(unsigned long long a, unsigned long long b, bool wanted,
                              const char *text, const char *file, int line)
{
    if ((a == b) != wanted) shim_fail(file, line, "%s: %llx, %llx", text, a, b);
}

/* Numbers are compared as 64 bits, as cmocka has them, on 32-bit machines too. */
#define SHIM_EQUAL(a, b, wanted)                                                                \
    shim_equal((unsigned long long)(a), (unsigned long long)(b), wanted, #a " and " #b, __FILE__, \
               __LINE__)
#define SHIM_TRUE(is, text) \
    ((is) ? (void)0 : shim_fail(__FILE__, __LINE__, "%s", text))

#define assert_int_equal(a, b) SHIM_EQUAL(a, b, true)
#define assert_int_not_equal(a, b) SHIM_EQUAL(a, b, false)
#define assert_true(x) SHIM_TRUE(x, #x)
#define assert_false(x) SHIM_TRUE(!(x), "not: " #x)
#define assert_null(p) SHIM_TRUE((p) == NULL, #p " is NULL")
#define assert_non_null(p) SHIM_TRUE((p) != NULL, #p " is not NULL")
#define assert_ptr_equal(a, b) SHIM_TRUE((a) == (b), #a " and " #b)
#define assert_string_equal(a, b) SHIM_TRUE(strcmp(a, b) == 0, #a " and " #b)
#define assert_string_not_equal(a, b) SHIM_TRUE(strcmp(a, b) != 0, #a " is not " #b)
#define assert_memory_equal(a, b, size) SHIM_TRUE(memcmp(a, b, size) == 0, #a " and " #b)
#define assert_memory_not_equal(a, b, size) SHIM_TRUE(memcmp(a, b, size) != 0, #a " is not " #b)
/* A function, because a macro would compare with a literal 0, which -Wextra calls useless. */
static inline bool shim_in(unsigned long long x, unsigned long long low, unsigned long long high)
{
    return x >= low && x <= high;
}

#define assert_in_range(x, low, high)                                                      \
    SHIM_TRUE(shim_in((unsigned long long)(x), (unsigned long long)(low),                  \
                      (unsigned long long)(high)), #x " in " #low " to " #high)

/* An assert of the code under test, which expect_assert_failure awaits. */
static jmp_buf shim_asserted;
static bool shim_expecting;

static inline void mock_assert(int is, const char *text, const char *file, int line)
{
    if (is) return;
    if (shim_expecting) longjmp(shim_asserted, 1);
    shim_fail(file, line, "%s", text);
}

#define expect_assert_failure(call)                                        \
    do {                                                                   \
        shim_expecting = true;                                             \
        if (setjmp(shim_asserted) == 0) {                                  \
            call;                                                          \
            shim_expecting = false;                                        \
            shim_fail(__FILE__, __LINE__, "no assert failed: %s", #call);  \
        }                                                                  \
        shim_expecting = false;                                            \
    } while (0)

#define skip() (printf("[  SKIPPED ] %s\n", __func__), longjmp(shim_failed, 2))
#define print_message printf
#define cmocka_set_test_filter(pattern) ((void)(pattern)) /* all tests are run */
#define fail_msg(...) shim_fail(__FILE__, __LINE__, __VA_ARGS__)

static inline bool shim_passes(const struct CMUnitTest *test)
{
    void *state = test->initial_state;

    switch (setjmp(shim_failed)) {
    case 0: break;
    case 2: return true; /* skipped */
    default: return false;
    }
    if (test->setup_func != NULL && test->setup_func(&state) != 0) return false;
    test->test_func(&state);
    return test->teardown_func == NULL || test->teardown_func(&state) == 0;
}

static inline int shim_run(const struct CMUnitTest *tests, size_t count, CMFixtureFunction up,
                           CMFixtureFunction down)
{
    void *state = NULL;
    int failed = 0;
    size_t i;

    if (up != NULL && up(&state) != 0) return 1;
    for (i = 0; i < count; i++) {
        if (shim_passes(&tests[i])) continue;
        printf("[  FAILED  ] %s\n", tests[i].name);
        failed++;
    }
    if (down != NULL && down(&state) != 0) failed++;
    printf("[  PASSED  ] %d test(s).\n", (int)count - failed);
    if (failed > 0) printf(" %d FAILED TEST(S)\n", failed);
    return failed;
}

#define cmocka_run_group_tests_name(name, tests, up, down) \
    shim_run(tests, sizeof(tests) / sizeof(tests)[0], up, down)
#define cmocka_run_group_tests(tests, up, down) cmocka_run_group_tests_name("", tests, up, down)

#endif
