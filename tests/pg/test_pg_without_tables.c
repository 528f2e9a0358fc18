/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* A program without typed tables, and so without work tables. */
#define JOBQ_PG_NO_TABLES
#define TEST_PRIVATE
#include "without.h"
