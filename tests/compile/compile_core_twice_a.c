/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* One program of two files: each includes the header twice, one has the implementation. */
#include "jobq.h"
#define JOBQ_IMPLEMENTATION
#include "jobq.h"
#include "jobq.h"

jobq_state compile_core_twice(void);

int main(void)
{
    return compile_core_twice() == JOBQ_STATE_READY ? 0 : 1;
}
