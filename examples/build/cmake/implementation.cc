/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* implementation.cc -- the library. */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include <jobq_pg.h>
