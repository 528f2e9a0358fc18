/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* A user's file with JOBQ_STATIC alone. Its arguments are constants and mostly empty: what the
 * optimizer then knows of them must not make our code warn here (make static tries each level). */
#define JOBQ_STATIC
#include "jobq_pg.h"

#include <string.h>

typedef struct pack { int64_t id; jobq_str ref, label; } pack;
static const jobq_pg_column pack_columns[] = {
    JOBQ_PG_COLUMN(pack, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(pack, ref, TEXT, 0), JOBQ_PG_COLUMN(pack, label, TEXT, JOBQ_PG_SEARCH),
    JOBQ_PG_COLUMNS_END};
static const jobq_pg_table_desc pack_desc = {"pack", sizeof(pack), pack_columns, NULL, NULL, false};

static jobq_outcome greet(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);

    return conn != NULL ? jobq_pg_call_commit(call, conn) : JOBQ_OUTCOME_RETRY;
}

static jobq_error enqueue(jobq_pg *pg, jobq_pg_error *error)
{
    jobq_pg_job job = {.queue = "mail", .kind = "greet"};
    jobq_pg_message message = {.queue = "orders"};
    jobq_error code;

    job.payload = jobq_str_from("\"Ann\"");
    if ((code = jobq_pg_enqueue(pg, NULL, &job, NULL, error)) != JOBQ_OK) return code;
    if ((code = jobq_pg_enqueue_many(pg, NULL, &job, 1, NULL, error)) != JOBQ_OK) return code;
    code = jobq_pg_enqueue_many(pg, NULL, &job, 1, JOBQ_PG_BY_COPY, error);
    if (code != JOBQ_OK) return code;
    if ((code = jobq_pg_outbox_enqueue(pg, NULL, &message, NULL, error)) != JOBQ_OK) return code;
    return jobq_pg_outbox_enqueue_many(pg, NULL, &message, 1, NULL, error);
}

static jobq_error work(jobq_pg *pg, jobq_pg_error *error)
{
    jobq_pg_handler handler = {.queue = "mail", .kind = "greet", .run = {greet}};
    jobq_pg_worker_desc desc = {.handlers = &handler, .handler_count = 1};

    return jobq_pg_work(pg, &desc, error);
}

static jobq_error operate(jobq_pg *pg, jobq_pg_error *error)
{
    jobq_pg_queue_desc desc = {.max_attempts = 3};
    jobq_pg_filter filter = {.queue = "mail"};
    jobq_pg_scope scope = {.queue = "orders"};
    jobq_pg_filter one = {.id = 1};
    jobq_error code;

    if ((code = jobq_pg_queue_set(pg, NULL, "mail", &desc, error)) != JOBQ_OK) return code;
    if ((code = jobq_pg_queue_set(pg, NULL, "mail", &(jobq_pg_queue_desc){.paused = JOBQ_PG_ON},
                                  error)) != JOBQ_OK) return code;
    if ((code = jobq_pg_cancel(pg, NULL, &one, NULL, NULL, error)) != JOBQ_OK) return code;
    if ((code = jobq_pg_change(pg, NULL, &one, &(jobq_pg_changes){.target = "slow"}, NULL,
                               error)) != JOBQ_OK) return code;
    if ((code = jobq_pg_revive(pg, NULL, &filter, NULL, error)) != JOBQ_OK) return code;
    return jobq_pg_dead_letter_discard(pg, NULL, &scope, NULL, error);
}

static jobq_error read_packs(jobq_pg *pg, jobq_pg_error *error)
{
    static const char *const stages[] = {"PACK"};
    jobq_pg_worktable_desc desc = {.stages = stages, .stage_count = 1};
    pack core = {.ref = {"core", 4}};
    jobq_pg_worktable *packing;
    jobq_pg_table *packs;
    jobq_pg_rows rows;
    jobq_error code = jobq_pg_table_open(&packs, pg, NULL, &pack_desc, error);

    if (code != JOBQ_OK) return code;
    code = jobq_pg_table_create(packs, NULL, "ref", &core, NULL, &rows, error);
    if (code == JOBQ_OK) code = jobq_pg_table_get(packs, NULL, "ref", &core, &rows, error);
    jobq_pg_rows_clear(&rows);
    if (code == JOBQ_OK) code = jobq_pg_table_delete(packs, NULL, "ref", &core, NULL, error);
    if (code == JOBQ_OK && (code = jobq_pg_worktable_open(&packing, packs, NULL, &desc, error)) ==
                               JOBQ_OK) {
        code = jobq_pg_worktable_claim(packing, NULL, 1, 0, 0, &rows, error);
        jobq_pg_worktable_close(packing);
    }
    jobq_pg_table_close(packs);
    return code;
}

int main(void)
{
    jobq_pg_desc desc = {.conninfo = "host=/nowhere connect_timeout=1"};
    jobq_pg *pg;
    jobq_pg_error error;

    if (jobq_pg_open(&pg, &desc, &error) == JOBQ_OK && enqueue(pg, &error) == JOBQ_OK &&
        work(pg, &error) == JOBQ_OK && operate(pg, &error) == JOBQ_OK &&
        read_packs(pg, &error) == JOBQ_OK) jobq_pg_close(pg);
    return strstr(error.message, "/nowhere") != NULL ? 0 : 1;
}
