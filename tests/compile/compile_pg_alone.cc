/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* The same in C++11. */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

int main()
{
    jobq_pg *pg;
    jobq_pg_error error;
    jobq_pg_desc desc = jobq_pg_desc();

    desc.conninfo = "host=/nowhere connect_timeout=1";
    return jobq_pg_open(&pg, &desc, &error) == JOBQ_ERROR_CONNECTION && pg == nullptr ? 0 : 1;
}
