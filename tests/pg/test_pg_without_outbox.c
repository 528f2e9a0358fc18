/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* A program without the outbox and without recordings. */
#define JOBQ_PG_NO_OUTBOX
#define JOBQ_NO_RECORD
#define TEST_PRIVATE
#include "without.h"
