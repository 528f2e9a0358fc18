/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* JOBQ_STATIC emits everything here as static, without warnings about unused functions; and the
 * library without recordings. */
#define JOBQ_STATIC
#define JOBQ_NO_RECORD
#include "jobq.h"

int main(void)
{
    return jobq_job_new(1).state == JOBQ_STATE_READY ? 0 : 1;
}
