/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * migrate.c -- migrate CONNINFO SCHEMA: migrates a schema with the headers of the made-up next
 * version, and checks it. Exit status 3: the server ended the transaction; it may be tried again.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    jobq_pg_desc d;
    jobq_pg_error error;
    jobq_error code;
    jobq_pg *pg;

    if (argc != 3) return 2;
    memset(&d, 0, sizeof d);
    d.conninfo = argv[1];
    d.schema = argv[2];
    code = jobq_pg_open(&pg, &d, &error);
    if (code == JOBQ_OK) {
        code = jobq_pg_migrate(pg, &error);
        if (code == JOBQ_OK) code = jobq_pg_check(pg, NULL, &error);
        jobq_pg_close(pg);
    }
    if (code != JOBQ_OK) fprintf(stderr, "migrate: %s\n", error.message);
    if (code == JOBQ_ERROR_RETRYABLE || code == JOBQ_ERROR_CONNECTION) return 3;
    return code != JOBQ_OK;
}
