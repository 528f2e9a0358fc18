/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* jobq_pg.h compiles alone, with both implementations, and needs only libpq and threads. */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

int main(void)
{
    jobq_pg *pg;
    jobq_pg_error error;
    jobq_pg_desc desc = {.conninfo = "host=/nowhere connect_timeout=1"};

    return jobq_pg_open(&pg, &desc, &error) == JOBQ_ERROR_CONNECTION && pg == NULL ? 0 : 1;
}
