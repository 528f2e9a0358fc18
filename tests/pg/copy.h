/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * copy.h -- a worker of one copy of the library, for test_pg_copies: the program includes it, and
 * plugin.c, which has JOBQ_STATIC, so that each plugin is a copy of its own.
 */
#ifndef COPY_INCLUDED
#define COPY_INCLUDED (1)

#include "jobq_pg.h"

#include <stdio.h>
#include <string.h>

typedef struct copy_verbs {
    bool (*open)(const char *conninfo, const char *name, int number); /* this signal stops it */
    bool (*told)(void);                                                 /* to stop */
    void (*close)(void);
} copy_verbs;

static jobq_pg *copy_handle;
static jobq_pg_worker *copy_worker;

static void copy_close(void)
{
    jobq_pg_worker_free(copy_worker);
    jobq_pg_close(copy_handle);
    copy_worker = NULL;
    copy_handle = NULL;
}

static bool copy_open(const char *conninfo, const char *name, int number)
{
    jobq_pg_worker_desc work;
    jobq_pg_desc desc;
    jobq_pg_error error;

    memset(&desc, 0, sizeof desc);
    desc.conninfo = conninfo;
    desc.schema = name;
    memset(&work, 0, sizeof work);
    work.stop_signals[0] = number;
    if (jobq_pg_open(&copy_handle, &desc, &error) == JOBQ_OK &&
        jobq_pg_worker_open(copy_handle, &work, &copy_worker, &error) == JOBQ_OK) return true;
    fprintf(stderr, "%s\n", error.message);
    copy_close();
    return false;
}

/* Signals are in the worker's pipe when raise returns, so one step reads them. */
static bool copy_told(void)
{
    jobq_pg_health health;

    if (!jobq_pg_worker_step(copy_worker, 0)) return true;
    jobq_pg_worker_health(copy_worker, JOBQ_PG_ALL, &health);
    return health.stopping;
}

static const copy_verbs copy_here = {copy_open, copy_told, copy_close};

#endif
