/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* jobq.h compiles without its tests of handlers, as strict C99. */
#define JOBQ_NO_TEST
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

typedef int jobq_test; /* so it declares none */

int main(void)
{
    return (jobq_test)(jobq_job_new(1).state != JOBQ_STATE_READY);
}
