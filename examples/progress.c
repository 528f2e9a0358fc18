/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * progress.c -- a progress bar of a long job that another process works, then the job's result and
 * what it has logged.
 *
 * Build   cc examples/progress.c -I. -lpq -o progress
 * Run     JOBQ_SERVER="host=... dbname=..." ./progress
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/progress
 * Prints  (on a terminal the line of the bar is written over and over; percents differ)
 *           [..............................]   0.0 %
 *           [########......................]  27.0 %  frame 135 of 500
 *           ...
 *           [############################..]  94.2 %  frame 471 of 500
 *           [##############################] 100.0 %  writing the index
 *           the job left behind: {"frames": 500}
 *           warning: frame 250 is black
 *           info: 500 frames, 1 of them black
 *
 * The worker's heartbeat carries the progress, so a call costs no statement. The last step is
 * published at once. The log is written with the result. Uses the schema jobq_example_progress,
 * created anew and dropped at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SCHEMA "jobq_example_progress"
#define FRAMES 500
#define WIDTH 30

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void nap_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

static jobq_pg *open_schema(bool anew)
{
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = SCHEMA};
    jobq_pg_error error;
    jobq_pg *pg;

    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    if (anew) {
        PGconn *conn = PQconnectdb(desc.conninfo);
        must(PQstatus(conn) == CONNECTION_OK, PQerrorMessage(conn));
        PQclear(PQexec(conn, "SET client_min_messages = warning;"
                             "DROP SCHEMA IF EXISTS " SCHEMA " CASCADE"));
        PQfinish(conn);
    }
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(!anew || jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    return pg;
}

/* ---- the process that works ------------------------------------------------------------------ */

static jobq_outcome render(jobq_call *call)
{
    char note[50];
    int frame;

    for (frame = 1; frame <= FRAMES; frame++) {
        if (jobq_call_stopping(call, NULL) != JOBQ_STOP_NONE) return JOBQ_OUTCOME_RELEASE;
        nap_ms(8); /* the work */
        if (frame == 250)
            jobq_call_log(call, JOBQ_LEVEL_WARNING, jobq_str_from("frame 250 is black"));
        snprintf(note, sizeof note, "frame %d of %d", frame, FRAMES);
        jobq_call_progress(call, frame * 1000 / FRAMES, jobq_str_from(note), false);
    }
    jobq_call_progress(call, 1000, jobq_str_from("writing the index"), true);
    nap_ms(500);
    snprintf(note, sizeof note, "%d frames, 1 of them black", FRAMES);
    jobq_call_log(call, JOBQ_LEVEL_INFO, jobq_str_from(note));
    snprintf(note, sizeof note, "{\"frames\": %d}", FRAMES);
    if (!jobq_call_result(call, jobq_str_from(note), false)) return JOBQ_OUTCOME_RETRY;
    return JOBQ_OUTCOME_SUCCESS;
}

static int work(void)
{
    jobq_pg *pg = open_schema(false);
    jobq_pg_handler handler = {.queue = "films", .kind = "render", .run = {render}};
    jobq_pg_worker_desc desc = {.handlers = &handler, .handler_count = 1,
                                .loop = {.heartbeat_us = JOBQ_SECONDS(1) / 2},
                                .stop_signals = {SIGTERM}};
    jobq_pg_error error;

    must(jobq_pg_work(pg, &desc, &error) == JOBQ_OK, error.message);
    jobq_pg_close(pg);
    return 0;
}

/* ---- the process that looks on --------------------------------------------------------------- */

static void draw(double percent, const char *note)
{
    bool terminal = isatty(STDOUT_FILENO);
    int i, full = (int)(percent * WIDTH / 100);

    printf("%s[", terminal ? "\r" : "");
    for (i = 0; i < WIDTH; i++) putchar(i < full ? '#' : '.');
    printf("] %5.1f %%  %-20s%s", percent, note, terminal ? "" : "\n");
    fflush(stdout);
}

/* Draws the job's progress. False: it does not run. */
static bool look(PGconn *conn, int64_t id)
{
    char sql[200];
    PGresult *res;
    bool runs;

    snprintf(sql, sizeof sql, "SELECT coalesce(percent, 0), coalesce(note, '') FROM " SCHEMA
             ".running WHERE id = %lld", (long long)id);
    res = PQexec(conn, sql);
    must(PQresultStatus(res) == PGRES_TUPLES_OK, PQerrorMessage(conn));
    runs = PQntuples(res) > 0;
    if (runs) draw(atof(PQgetvalue(res, 0, 0)), PQgetvalue(res, 0, 1));
    PQclear(res);
    return runs;
}

static void print_log(PGconn *conn, int64_t id)
{
    char sql[200];
    PGresult *res;
    int i;

    snprintf(sql, sizeof sql, "SELECT l ->> 1, l ->> 2 FROM " SCHEMA ".jobs, "
             "jsonb_array_elements(log) l WHERE id = %lld", (long long)id);
    res = PQexec(conn, sql);
    must(PQresultStatus(res) == PGRES_TUPLES_OK, PQerrorMessage(conn));
    for (i = 0; i < PQntuples(res); i++)
        printf("%s: %s\n", PQgetvalue(res, i, 0), PQgetvalue(res, i, 1));
    PQclear(res);
}

static void watch(jobq_pg *pg, int64_t id)
{
    jobq_pg_error error;
    jobq_pg_rows jobs;
    PGconn *conn;
    jobq_error code;

    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    do { /* each wait is also the pause between two looks */
        look(conn, id);
        code = jobq_pg_wait(pg, NULL, &id, 1, JOBQ_SECONDS(1) / 4, &jobs, &error);
        if (code != JOBQ_OK) jobq_pg_rows_clear(&jobs);
    } while (code == JOBQ_ERROR_TIMEOUT);
    must(code == JOBQ_OK, error.message);
    printf("%sthe job left behind: %s\n", isatty(STDOUT_FILENO) ? "\n" : "",
           ((const jobq_pg_job_row *)jobs.rows)[0].result.ptr);
    jobq_pg_rows_clear(&jobs);
    print_log(conn, id);
    jobq_pg_release(pg, conn);
}

int main(void)
{
    jobq_pg_job job = {.queue = "films", .kind = "render"};
    jobq_pg *pg = open_schema(true);
    jobq_pg_error error;
    PGconn *conn;
    int64_t id;
    pid_t child;

    must(jobq_pg_enqueue(pg, NULL, &job, &id, &error) == JOBQ_OK, error.message);
    jobq_pg_close(pg);
    child = fork(); /* while this process has neither connections nor threads */
    must(child >= 0, "fork failed");
    if (child == 0) return work();
    pg = open_schema(false);
    watch(pg, id);
    kill(child, SIGTERM);
    waitpid(child, NULL, 0);
    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    PQclear(PQexec(conn, "DROP SCHEMA " SCHEMA " CASCADE"));
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return 0;
}
