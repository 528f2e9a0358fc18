/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* A program without the outbox. */
#define JOBQ_PG_NO_OUTBOX
#define TEST_PRIVATE
#include "without.h"
