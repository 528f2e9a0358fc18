/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* jobq.h compiles alone, as C++11, and needs nothing but libc. */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

int main(void)
{
    return jobq_job_new(1).state == JOBQ_STATE_READY ? 0 : 1;
}
