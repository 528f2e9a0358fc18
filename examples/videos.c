/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * videos.c -- a table of your own used as a queue: videos in two stages.
 *
 * Build   cc examples/videos.c -I. -lpq -o videos
 * Run     JOBQ_SERVER="host=... dbname=..." ./videos
 *         or, on a Postgres of its own: make examples; tests/server.sh .build/examples/videos
 * Prints  extracted a, again later: network
 *         extracted b
 *         embedded b
 *         extracted a
 *         embedded a
 *         SUCCEEDED: 2
 *
 * Drops the schema jobq_example_videos, creates it from examples/videos.sql (or from the file that
 * you name), and drops it at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct video {
    jobq_str video_id, status;
    int32_t retry_count;
    int64_t created_at, updated_at;
    jobq_str error_message;
    jobq_pg_maybe_int64 retry_after, pc_heartbeat, worker, lease;
} video;

static const jobq_pg_column video_columns[] = {
    JOBQ_PG_COLUMN(video, video_id, TEXT, JOBQ_PG_KEY),
    JOBQ_PG_COLUMN(video, status, TEXT, 0),
    JOBQ_PG_COLUMN(video, retry_count, INT32, 0),
    JOBQ_PG_COLUMN(video, created_at, TIMESTAMPTZ, 0),
    JOBQ_PG_COLUMN(video, updated_at, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMN(video, error_message, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(video, retry_after, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(video, pc_heartbeat, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(video, worker, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(video, lease, INT64, JOBQ_PG_NULLABLE), JOBQ_PG_COLUMNS_END};

static const jobq_pg_table_desc video_desc = {.name = "jobq_example_videos.videos",
                                              .row_size = sizeof(video),
                                              .columns = video_columns,
                                              .entity = "video"};

static const char *const stages[] = {"EXTRACTION", "EMBEDDING"};

static const jobq_pg_worktable_desc work_desc = {.stages = stages,
                                                 .stage_count = 2,
                                                 .heartbeat = "pc_heartbeat",
                                                 .worker = "worker",
                                                 .lease = "lease",
                                                 .max_retries = 3};

static jobq_pg_error error;

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void tell(PGconn *conn, const char *sql)
{
    PGresult *res = PQexec(conn, sql);

    must(PQresultStatus(res) == PGRES_COMMAND_OK, PQerrorMessage(conn));
    PQclear(res);
}

/* Creates the schema from its file. */
static void set_up(PGconn *conn, const char *path)
{
    static char sql[8192];
    FILE *file = fopen(path, "r");

    must(file != NULL, "examples/videos.sql is not here: give its path as the argument");
    sql[fread(sql, 1, sizeof sql - 1, file)] = '\0';
    fclose(file);
    tell(conn, "SET client_min_messages = warning");
    tell(conn, "DROP SCHEMA IF EXISTS jobq_example_videos CASCADE");
    tell(conn, "CREATE SCHEMA jobq_example_videos");
    tell(conn, "SET search_path = jobq_example_videos");
    tell(conn, sql);
}

static jobq_pg_verdict work_on(const jobq_pg_worktable *work, const video *v)
{
    int stage = jobq_pg_worktable_stage(work, v);
    bool cut = stage == 0 && v->retry_count == 0 && v->video_id.ptr[0] == 'a';

    printf("%s %.*s%s\n", stage == 0 ? "extracted" : "embedded", (int)v->video_id.len,
           v->video_id.ptr, cut ? ", again later: network" : "");
    return cut ? (jobq_pg_verdict){.outcome = JOBQ_OUTCOME_RETRY, .why = "network"}
               : (jobq_pg_verdict){.outcome = JOBQ_OUTCOME_SUCCESS};
}

/* Claims batch after batch. After the first one the pause before a retry is removed, so that the
 * example does not have to wait for it. */
static void work_off(jobq_pg_worktable *work, PGconn *conn)
{
    enum { BATCH = 10 };
    jobq_pg_verdict verdicts[BATCH];
    int64_t lease, worker;
    jobq_pg_rows rows;
    jobq_error code;
    uint64_t bits;
    size_t i;

    must(jobq_pg_random(&bits), "no random bits");
    worker = jobq_worker_id_from(bits);
    for (lease = 1; lease < 10; lease++) {
        must(jobq_pg_worktable_claim(work, NULL, BATCH, worker, lease, &rows, &error) == JOBQ_OK,
             error.message);
        for (i = 0; i < rows.count; i++) {
            code = jobq_pg_worktable_heartbeat(work, NULL, rows.rows, NULL, rows.count, &error);
            must(code == JOBQ_OK || code == JOBQ_ERROR_LOST, error.message); /* another has a row */
            verdicts[i] = work_on(work, (video *)rows.rows + i);
        }
        code = jobq_pg_worktable_settle(work, NULL, rows.rows, verdicts, rows.count, &error);
        must(code == JOBQ_OK || code == JOBQ_ERROR_LOST, error.message);
        jobq_pg_rows_clear(&rows);
        if (lease != 1) continue;
        tell(conn, "UPDATE videos SET retry_after = NULL");
    }
}

int main(int argc, char **argv)
{
    static const video new_videos[] = {{.video_id = {"a", 1}}, {.video_id = {"b", 1}}};
    static const video done = {.status = {"SUCCEEDED", 9}};
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = "jobq_example_videos"};
    jobq_pg_query query = {.where = "status", .like = &done};
    jobq_pg *pg;
    jobq_pg_table *table;
    jobq_pg_worktable *work;
    PGconn *conn;
    int64_t count;

    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    set_up(conn, argc > 1 ? argv[1] : "examples/videos.sql");
    must(jobq_pg_table_open(&table, pg, NULL, &video_desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_worktable_open(&work, table, NULL, &work_desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_table_create_many(table, NULL, "video_id", new_videos, 2, &error) == JOBQ_OK,
         error.message);
    must(jobq_pg_worktable_reset(work, NULL, NULL, &error) == JOBQ_OK, error.message);
    work_off(work, conn);
    must(jobq_pg_table_count(table, NULL, &query, &count, &error) == JOBQ_OK, error.message);
    printf("SUCCEEDED: %d\n", (int)count);

    jobq_pg_worktable_close(work);
    jobq_pg_table_close(table);
    tell(conn, "DROP SCHEMA jobq_example_videos CASCADE");
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return count == 2 ? 0 : 1;
}
