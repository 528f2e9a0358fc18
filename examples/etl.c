/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * etl.c -- load parts side by side, merge them when all are there, charge once, wait for a person,
 * report. One part fails, is mended and revived, and the flow goes on; a worker is killed.
 *
 *     load-1 --.
 *     load-2 ---+--> merge --> report
 *     load-3 --'
 *
 * Build   cc examples/etl.c -I. -lpq -o etl
 * Run     JOBQ_SERVER="host=... dbname=..." ./etl
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/etl
 * Prints
 *           load part 1: 100 rows
 *           load part 2: the file is damaged
 *           load part 3: 300 rows
 *           flow "import" is held: 2 of 5 jobs succeeded, 1 failed
 *              load-1    succeeded
 *              load-2    failed
 *              load-3    succeeded
 *              merge     waiting     for load-2
 *              report    waiting     for merge
 *           the file is mended, and the flow is revived
 *           load part 2: 200 rows
 *           merge: 600 rows
 *           charge for 600 rows, and the worker is killed
 *           another worker: the charge was made before
 *           it waits for the signal 'import/approved'
 *           ann approves
 *           report: {"rows": 600, "approved_by": "ann"}
 *
 * Uses the schema jobq_example_etl, created anew and dropped at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define SCHEMA "jobq_example_etl"

static jobq_pg *pg;
static int damaged = 2; /* the part whose file is damaged; 0: none */

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static PGresult *run_sql(const char *sql)
{
    jobq_pg_error error;
    PGconn *conn;
    PGresult *res;

    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    res = PQexec(conn, sql);
    must(PQresultStatus(res) == PGRES_COMMAND_OK || PQresultStatus(res) == PGRES_TUPLES_OK,
         PQerrorMessage(conn));
    jobq_pg_release(pg, conn);
    return res;
}

/* ---- the jobs -------------------------------------------------------------------------------- */

static jobq_outcome load(jobq_call *call)
{
    char rows[20];
    int64_t part;

    if (jobq_json_int(call->payload, NULL, &part) != JOBQ_OK) return JOBQ_OUTCOME_DISCARD;
    printf("load part %d: ", (int)part);
    if (part == damaged) {
        printf("the file is damaged\n");
        jobq_call_error(call, jobq_str_from("the file is damaged"));
        return JOBQ_OUTCOME_DISCARD;
    }
    snprintf(rows, sizeof rows, "%d", (int)part * 100);
    printf("%s rows\n", rows);
    if (!jobq_call_result(call, jobq_str_from(rows), false)) return JOBQ_OUTCOME_RETRY;
    return JOBQ_OUTCOME_SUCCESS;
}

/* The sum of the results of the jobs that this one waited for. -1: they could not be read. */
static int parents_rows(const jobq_call *call)
{
    jobq_pg_error error;
    jobq_pg_rows parents;
    int64_t sum = 0, rows;
    bool good = true;

    if (jobq_pg_parents(pg, NULL, call->job.id, &parents, &error) != JOBQ_OK) return -1;
    for (size_t i = 0; i < parents.count && good; i++) {
        const jobq_pg_job_row *parent = (const jobq_pg_job_row *)parents.rows + i;
        good = jobq_json_int(parent->result, NULL, &rows) == JOBQ_OK;
        if (good) sum += rows;
    }
    jobq_pg_rows_clear(&parents);
    return good ? (int)sum : -1;
}

static jobq_outcome merge(jobq_call *call)
{
    int sum = parents_rows(call);
    char rows[20];

    if (sum < 0) return JOBQ_OUTCOME_RETRY;
    printf("merge: %d rows\n", sum);
    snprintf(rows, sizeof rows, "%d", sum);
    if (!jobq_call_result(call, jobq_str_from(rows), false)) return JOBQ_OUTCOME_RETRY;
    return JOBQ_OUTCOME_SUCCESS;
}

/* Charges, which must not happen twice; then waits for somebody to approve. */
static jobq_outcome report(jobq_call *call)
{
    int rows = parents_rows(call);
    char result[100];
    jobq_error code;
    jobq_str who;

    if (rows < 0) return JOBQ_OUTCOME_RETRY;
    switch (jobq_call_step(call, "charge", NULL)) {
    case JOBQ_ERROR_NOT_FOUND:
        printf("charge for %d rows, and the worker is killed\n", rows);
        if (jobq_call_step_done(call, "charge", jobq_str_from(NULL)) != JOBQ_OK)
            return JOBQ_OUTCOME_RETRY;
        raise(SIGKILL);
        break;
    case JOBQ_OK:
        code = jobq_call_signal(call, "import/approved", JOBQ_DAYS(3), &who);
        if (code == JOBQ_OK) break;
        if (code == JOBQ_ERROR_TIMEOUT) return JOBQ_OUTCOME_DISCARD; /* nobody has approved */
        if (code != JOBQ_ERROR_NOT_FOUND) return JOBQ_OUTCOME_RETRY;
        printf("another worker: the charge was made before\n");
        return JOBQ_OUTCOME_SNOOZE; /* for three days, or until the signal comes */
    default: return JOBQ_OUTCOME_RETRY;
    }
    snprintf(result, sizeof result, "{\"rows\": %d, \"approved_by\": %.*s}", rows, (int)who.len,
             who.ptr);
    if (!jobq_call_result(call, jobq_str_from(result), false)) return JOBQ_OUTCOME_RETRY;
    return JOBQ_OUTCOME_SUCCESS;
}

/* ---- the flow -------------------------------------------------------------------------------- */

/* Begins the flow and enqueues its jobs, in one transaction. *last: the id of the report. */
static int64_t begin(int64_t *last)
{
    static const jobq_pg_after parts[] = {{.name = "load-1"}, {.name = "load-2"},
                                          {.name = "load-3"}};
    static const jobq_pg_after merged = {.name = "merge"};
    jobq_pg_flow_desc desc = {.name = "import"};
    jobq_pg_error error;
    PGresult *res;
    PGconn *conn;
    int64_t flow, ids[5];

    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    PQclear(PQexec(conn, "BEGIN"));
    must(jobq_pg_flow_begin(pg, conn, &desc, &flow, &error) == JOBQ_OK, error.message);
    jobq_pg_job jobs[5] = {
        {.kind = "load", .name = "load-1", .payload = jobq_str_from("1")},
        {.kind = "load", .name = "load-2", .payload = jobq_str_from("2")},
        {.kind = "load", .name = "load-3", .payload = jobq_str_from("3")},
        {.kind = "merge", .name = "merge", .after = parts, .after_count = 3},
        {.kind = "report", .name = "report", .after = &merged, .after_count = 1}};
    for (int i = 0; i < 5; i++) {
        jobs[i].queue = "etl";
        jobs[i].flow = flow;
    }
    must(jobq_pg_enqueue_many(pg, conn, jobs, 5, ids, &error) == JOBQ_OK, error.message);
    res = PQexec(conn, "COMMIT");
    must(strcmp(PQcmdStatus(res), "COMMIT") == 0, PQerrorMessage(conn));
    PQclear(res);
    jobq_pg_release(pg, conn);
    *last = ids[4];
    return flow;
}

/* Prints the flow: its counts, and each job with what it waits for. */
static void show(void)
{
    PGresult *res = run_sql(
        "SELECT format('flow \"%s\" is %s: %s of %s jobs succeeded, %s failed', name, state, "
        "succeeded, jobs, failed) FROM " SCHEMA ".flows UNION ALL "
        "SELECT rtrim(format('   %s %s %s', rpad(g.name, 9), rpad(g.state, 11), "
        "'for ' || (SELECT string_agg(p.name, ', ' ORDER BY p.job_id) FROM " SCHEMA
        ".flow_graph(f.id) p WHERE p.job_id = ANY (g.held_by)))) "
        "FROM " SCHEMA ".flow f, " SCHEMA ".flow_graph(f.id) g");
    int i;

    for (i = 0; i < PQntuples(res); i++) puts(PQgetvalue(res, i, 0));
    PQclear(res);
}

/* Works until nothing is ready, or until it has run this many jobs (0: all). One thread, so that
 * the lines come in order; a short lease, so that the killed worker is soon missed. */
static void work(int64_t jobs)
{
    static const jobq_pg_handler handlers[] = {
        {.queue = "etl", .kind = "load", .run = {load}},
        {.queue = "etl", .kind = "merge", .run = {merge}},
        {.queue = "etl", .kind = "report", .run = {report}}};
    jobq_pg_worker_desc worker = {
        .handlers = handlers, .handler_count = 3,
        .loop = {.threads = 1, .lease_us = JOBQ_SECONDS(1), .jobs_max = jobs,
                 .until = jobs > 0 ? JOBQ_UNTIL_STOPPED : JOBQ_UNTIL_EMPTY}};
    jobq_pg_error error;

    must(jobq_pg_work(pg, &worker, &error) == JOBQ_OK, error.message);
}

/* The same in a process of its own, which is killed. */
static void work_and_die(const jobq_pg_desc *desc)
{
    jobq_pg_error error;
    pid_t child;

    fflush(stdout);
    child = fork();
    must(child >= 0, "fork failed");
    if (child > 0) {
        waitpid(child, NULL, 0);
        return;
    }
    must(jobq_pg_open(&pg, desc, &error) == JOBQ_OK, error.message);
    work(0);
    _exit(0);
}

int main(void)
{
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = SCHEMA};
    jobq_pg_filter flow = {0};
    jobq_pg_error error;
    jobq_pg_rows rows_of;
    PGresult *why;
    int64_t last;

    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    setvbuf(stdout, NULL, _IONBF, 0);
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    PQclear(run_sql("SET client_min_messages = warning; DROP SCHEMA IF EXISTS " SCHEMA " CASCADE"));
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);

    flow.flow = begin(&last);
    work(0);
    show();

    printf("the file is mended, and the flow is revived\n");
    damaged = 0;
    must(jobq_pg_revive(pg, NULL, &flow, NULL, &error) == JOBQ_OK, error.message);
    work_and_die(&desc);
    work(1);

    why = run_sql("SELECT reason FROM " SCHEMA ".job j, " SCHEMA ".explain_job(j.id) LIMIT 1");
    puts(PQgetvalue(why, 0, 0));
    PQclear(why);
    printf("ann approves\n");
    must(jobq_pg_signal(pg, NULL, "import/approved", jobq_str_from("\"ann\""), NULL, &error) ==
             JOBQ_OK,
         error.message);
    work(0);

    must(jobq_pg_wait(pg, NULL, &last, 1, 0, &rows_of, &error) == JOBQ_OK, error.message);
    printf("report: %s\n", ((const jobq_pg_job_row *)rows_of.rows)[0].result.ptr);
    jobq_pg_rows_clear(&rows_of);

    PQclear(run_sql("DROP SCHEMA " SCHEMA " CASCADE"));
    jobq_pg_close(pg);
    return 0;
}
