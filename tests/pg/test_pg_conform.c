/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Conformance of Postgres: the behaviours that test_core_conform.c checks of jobq_memory.
 */
#define TEST_PRIVATE
#include "store_pg.h"
#include "conform.h"

static void behaves(void **state) { conform_run(&store_pg, (const behaviour *)*state); }

int main(void) { return conform(behaves, store_pg_up, store_pg_down); }
