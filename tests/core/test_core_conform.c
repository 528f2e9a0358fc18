/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Conformance of jobq_memory. test_pg_conform.c checks the same behaviours of Postgres.
 */
#define JOBQ_IMPLEMENTATION
#include "store_memory.h"
#include "conform.h"

static void behaves(void **state) { conform_run(&store_memory, (const behaviour *)*state); }

int main(void) { return conform(behaves, NULL, NULL); }
