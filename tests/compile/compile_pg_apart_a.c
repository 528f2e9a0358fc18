/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* The two implementations may be in two files, since jobq_pg.h uses only the public part of
 * jobq.h. */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

size_t loop_size(void);

size_t loop_size(void) { return jobq_loop_size(); }
