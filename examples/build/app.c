/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* app.c -- the program that the recipes beside it build. */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include <jobq_pg.h>

#include <stdio.h>

int main(void)
{
    jobq_pg_desc desc = {.conninfo = "host=/nowhere"};
    jobq_pg *pg;
    jobq_pg_error error;

    jobq_pg_open(&pg, &desc, &error);
    printf("jobq %s: %s\n", JOBQ_VERSION, error.message);
    jobq_pg_close(pg);
    return 0;
}
