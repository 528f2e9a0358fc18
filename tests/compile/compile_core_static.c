/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* JOBQ_STATIC emits everything here as static, without warnings about unused functions. */
#define JOBQ_STATIC
#include "jobq.h"

int main(void)
{
    return jobq_job_new(1).state == JOBQ_STATE_READY ? 0 : 1;
}
