/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* A user's C++ file: our macros and JOBQ_STATIC cause no warning in it. */
#define JOBQ_STATIC
#include "jobq_pg.h"

struct pack { int64_t id; jobq_str ref; jobq_pg_maybe_int32 port; int32_t color; };
static const char *const colors[] = {"red", "blue", nullptr};
static const jobq_pg_column columns[] = {
    JOBQ_PG_COLUMN(pack, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN_AS(pack, ref, "reference", TEXT, 0),
    JOBQ_PG_COLUMN(pack, port, INT32, JOBQ_PG_NULLABLE),
    JOBQ_PG_ENUM_COLUMN(pack, color, colors, 0), JOBQ_PG_COLUMNS_END};
static const jobq_pg_table_desc desc = {"pack", sizeof(pack), columns, nullptr, nullptr, false};

int main()
{
    jobq_pg_table *table;
    jobq_pg *pg;
    jobq_pg_error error;

    if (jobq_pg_open(&pg, nullptr, &error) != JOBQ_OK)
        return columns[1].size == sizeof(jobq_str) ? 0 : 1;
    if (jobq_pg_table_open(&table, pg, nullptr, &desc, &error) == JOBQ_OK)
        jobq_pg_table_close(table);
    jobq_pg_close(pg);
    return 0;
}
