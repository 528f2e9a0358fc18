/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * check.h -- what every test program includes: cmocka, and the header under test.
 *
 * "Row X7" and "W-O12" in the comments of tests name requirements and repaired weaknesses of the
 * earlier libraries, SEED_FACTS their behaviour. The lists are not in this repository.
 */
#ifndef CHECK_INCLUDED
#define CHECK_INCLUDED (1)

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define SECOND ((int64_t)1000000)

/* Whether the run is slow by nature (valgrind, TSan): smaller counts then. */
static inline int check_slow(void)
{
    return getenv("JOBQ_TEST_SLOW") != NULL;
}

/* JOBQ_TEST_ONLY=PATTERN runs only tests whose names it matches: "*" and "?" stand for anything. */
__attribute__((constructor)) static void check_only(void)
{
    if (getenv("JOBQ_TEST_ONLY") != NULL) cmocka_set_test_filter(getenv("JOBQ_TEST_ONLY"));
}

/* Under gcc's thread sanitizer a forked child of a program with threads hears no signal. */
#ifdef __SANITIZE_THREAD__
#define CHILDREN_ARE_DEAF 1
#else
#define CHILDREN_ARE_DEAF 0
#endif

#ifdef JOBQ_IMPLEMENTED
/* What a loop asks for. */
static inline jobq_request asks(jobq_loop *loop, int64_t now)
{
    jobq_request request;

    jobq_loop_next(loop, now, &request);
    return request;
}
#endif

#endif
