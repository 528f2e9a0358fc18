/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * tenants.c -- a noisy tenant, a quiet one, a ledger in strict order, and an API that allows ten
 * calls a second and once says "too many".
 *
 * Build   cc examples/tenants.c -I. -lpq -o tenants
 * Run     JOBQ_SERVER="host=... dbname=..." ./tenants
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/tenants
 * Prints  (times differ)
 *           loud-inc sends 500 mails, then quiet-ltd sends 3
 *              ...
 *              0.16 s  quiet-ltd  mail 1
 *              ...
 *           quiet-ltd was done when ... mails of loud-inc had been sent
 *           an account: three bookings, the second of which fails once
 *              0.87 s  acct-7     booking 1
 *              0.93 s  acct-7     booking 2 fails
 *              1.26 s  acct-7     booking 2, again
 *              1.30 s  acct-7     booking 3
 *           an API that allows 10 calls a second, and says "too many" once
 *              1.58 s  call 1
 *              ...
 *           8 calls took 1.3 s
 *
 * The name of a tenant, an account or a server is the job's line. Workers take turns at the lines.
 * Uses the schema jobq_example_tenants, created anew and dropped at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SCHEMA "jobq_example_tenants"
#define MAILS 500

static jobq_pg *pg;
static int64_t began_us;

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static int64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static double seconds(void)
{
    return (double)(now_us() - began_us) / 1e6;
}

static void run_sql(const char *sql)
{
    jobq_pg_error error;
    PGconn *conn;
    PGresult *res;

    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    res = PQexec(conn, sql);
    must(PQresultStatus(res) == PGRES_COMMAND_OK, PQerrorMessage(conn));
    PQclear(res);
    jobq_pg_release(pg, conn);
}

/* Enqueues count jobs of one line, with the numbers 1 to count. */
static void enqueue(const char *queue, const char *line, int count)
{
    static jobq_pg_job jobs[MAILS];
    static char payload[MAILS][60];
    jobq_pg_error error;
    int i;

    memset(jobs, 0, sizeof jobs);
    for (i = 0; i < count; i++) {
        snprintf(payload[i], sizeof payload[i], "{\"for\": \"%s\", \"number\": %d}", line, i + 1);
        jobs[i].queue = queue;
        jobs[i].kind = "do";
        jobs[i].line = line;
        jobs[i].payload = jobq_str_from(payload[i]);
    }
    must(jobq_pg_enqueue_many(pg, NULL, jobs, (size_t)count, NULL, &error) == JOBQ_OK,
         error.message);
}

/* -1: the payload has none. */
static int number_of(const jobq_call *call)
{
    int64_t number = -1;

    jobq_json_int(call->payload, "number", &number);
    return (int)number;
}

/* ---- a noisy tenant and a quiet one ---------------------------------------------------------- */

static int loud, quiet, loud_before_quiet;

static jobq_outcome mail(jobq_call *call)
{
    static const struct timespec a_while = {0, 1000000};
    char tenant[20];
    bool is_loud;

    if (jobq_json_text(call->payload, "for", tenant, sizeof tenant) != JOBQ_OK)
        return JOBQ_OUTCOME_DISCARD;
    nanosleep(&a_while, NULL);
    is_loud = strcmp(tenant, "loud-inc") == 0;
    if (is_loud) loud++;
    else if (++quiet == 3) loud_before_quiet = loud;
    if (!is_loud || loud < 4)
        printf("  %6.2f s  %-10s mail %d\n", seconds(), tenant, number_of(call));
    return JOBQ_OUTCOME_SUCCESS;
}

/* ---- an account: one booking after the other, whatever happens ------------------------------- */

static jobq_outcome book(jobq_call *call)
{
    bool fails = number_of(call) == 2 && call->job.attempt == 1;

    printf("  %6.2f s  acct-7     booking %d%s\n", seconds(), number_of(call),
           fails ? " fails" : call->job.attempt > 1 ? ", again" : "");
    jobq_call_delay(call, JOBQ_MILLISECONDS(300)); /* booking 3 waits for it */
    return fails ? JOBQ_OUTCOME_RETRY : JOBQ_OUTCOME_SUCCESS;
}

/* ---- an API that allows ten calls a second --------------------------------------------------- */

/* Once it answers 429, with Retry-After. Nobody calls it meanwhile, and this job is tried again. */
static jobq_outcome call_api(jobq_call *call)
{
    static bool refused;

    if (number_of(call) == 4 && !refused) {
        refused = true;
        printf("  %6.2f s  call 4: too many, come back in 0.3 s\n", seconds());
        jobq_call_delay(call, JOBQ_MILLISECONDS(300));
        if (jobq_call_hold(call, JOBQ_HOLD_LINE, JOBQ_MILLISECONDS(300), jobq_str_from("429")))
            return JOBQ_OUTCOME_RETRY;
        return JOBQ_OUTCOME_SNOOZE;
    }
    printf("  %6.2f s  call %d\n", seconds(), number_of(call));
    return JOBQ_OUTCOME_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------- */

/* JOBQ_UNTIL_ENDED waits for what was retried, too. One thread, so that the lines come in order. */
static void work(void)
{
    static const jobq_pg_handler handlers[] = {
        {.queue = "mail", .kind = "do", .run = {mail}},
        {.queue = "ledger", .kind = "do", .run = {book}},
        {.queue = "api", .kind = "do", .run = {call_api}}};
    jobq_pg_worker_desc worker = {.handlers = handlers, .handler_count = 3,
                                  .loop = {.threads = 1, .until = JOBQ_UNTIL_ENDED}};
    jobq_pg_error error;

    fflush(stdout);
    must(jobq_pg_work(pg, &worker, &error) == JOBQ_OK, error.message);
}

static void set(const char *queue, const jobq_pg_queue_desc *desc)
{
    jobq_pg_error error;

    must(jobq_pg_queue_set(pg, NULL, queue, desc, &error) == JOBQ_OK, error.message);
}

int main(void)
{
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = SCHEMA};
    jobq_pg_queue_desc strict = {.line_strict = JOBQ_PG_ON}, ten = {.line_rate = "10/s"};
    jobq_pg_error error;
    int64_t from_us;

    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    run_sql("SET client_min_messages = warning; DROP SCHEMA IF EXISTS " SCHEMA " CASCADE");
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    set("ledger", &strict);
    set("api", &ten);

    printf("loud-inc sends %d mails, then quiet-ltd sends 3\n", MAILS);
    enqueue("mail", "loud-inc", MAILS);
    enqueue("mail", "quiet-ltd", 3);
    began_us = now_us();
    work();
    printf("quiet-ltd was done when %d mails of loud-inc had been sent\n", loud_before_quiet);

    printf("an account: three bookings, the second of which fails once\n");
    enqueue("ledger", "acct-7", 3);
    work();

    printf("an API that allows 10 calls a second, and says \"too many\" once\n");
    enqueue("api", "api.example.org", 8);
    from_us = now_us();
    work();
    printf("8 calls took %.1f s\n", (double)(now_us() - from_us) / 1e6);

    run_sql("DROP SCHEMA " SCHEMA " CASCADE");
    jobq_pg_close(pg);
    return 0;
}
