/* SPDX-License-Identifier: MIT-0 OR Unlicense */
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

size_t loop_size(void);

int main(void)
{
    jobq_pg *pg;
    jobq_pg_error error;
    jobq_pg_desc desc = {.conninfo = "host=/nowhere connect_timeout=1"};

    if (loop_size() == 0) return 1;
    return jobq_pg_open(&pg, &desc, &error) == JOBQ_ERROR_CONNECTION && pg == NULL ? 0 : 1;
}
