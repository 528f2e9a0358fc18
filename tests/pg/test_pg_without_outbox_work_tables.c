/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* A program without the outbox and work tables. */
#define JOBQ_PG_NO_OUTBOX
#define JOBQ_PG_NO_WORK_TABLES
#define TEST_PRIVATE
#include "without.h"
