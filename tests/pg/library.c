/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* library.c -- both headers, compiled once for all test programs that use only what is public. */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"
