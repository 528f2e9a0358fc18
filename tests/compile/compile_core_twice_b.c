/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* The other file has only the declarations. */
#include "jobq.h"
#include "jobq.h"

jobq_state compile_core_twice(void);

jobq_state compile_core_twice(void)
{
    return jobq_job_new(1).state;
}
