/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* JOBQ_STATIC emits everything here, privately, with no warning about what stays unused. */
#define JOBQ_STATIC
#include "jobq.h"

int main(void)
{
    return jobq_job_new(1).state == JOBQ_STATE_READY ? 0 : 1;
}
