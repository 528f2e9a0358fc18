/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * complete_in_transaction.c -- exactly-once effects: money moves in the transaction that completes
 * the job.
 *
 * Build   cc examples/complete_in_transaction.c -I. -lpq -o complete_in_transaction
 * Run     JOBQ_SERVER="host=... dbname=..." ./complete_in_transaction
 *         or, on a Postgres of its own: make examples
 *                                       tests/server.sh .build/examples/complete_in_transaction
 * Prints  41 jobs took 51 attempts
 *         succeeded 40, failed 1: Ann has too little money
 *         Ann 60, Bob 140
 *
 * A handler runs at least once. Here some attempts break off before their COMMIT, and some behave
 * as if its answer had been lost. Each transfer is still made exactly once.
 *
 * Drops and creates the schema jobq_example_complete, and drops it at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "jobq_example_complete"

enum { TRANSFERS = 40 };

/* ---- the handler ----------------------------------------------------------------------------- */

/* Runs BEGIN, COMMIT or ROLLBACK. It checks the answer too, because the COMMIT of an aborted
 * transaction answers ROLLBACK. */
static bool run(PGconn *conn, const char *sql)
{
    PGresult *res = PQexec(conn, sql);
    bool good = PQresultStatus(res) == PGRES_COMMAND_OK && strcmp(PQcmdStatus(res), sql) == 0;

    PQclear(res);
    return good;
}

/* Runs an UPDATE. Returns the number of rows that it changed, -1 on an error. */
static int update(PGconn *conn, const char *sql, const char *value)
{
    PGresult *res = PQexecParams(conn, sql, 1, NULL, &value, NULL, NULL, 0);
    int rows = PQresultStatus(res) == PGRES_COMMAND_OK ? atoi(PQcmdTuples(res)) : -1;

    PQclear(res);
    return rows;
}

/* Fails this attempt. The library rolls back the open transaction when the handler returns. */
static jobq_outcome retry(jobq_call *call, const char *why)
{
    jobq_call_error(call, jobq_str_from(why));
    jobq_call_delay(call, JOBQ_MILLISECONDS(10));
    return JOBQ_OUTCOME_RETRY;
}

/* Moves the money from Ann to Bob. The payload is the amount. */
static jobq_outcome transfer(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char amount[32];
    int64_t number;
    int rows;

    if (conn == NULL) return retry(call, error.message);
    if (jobq_json_int(call->payload, NULL, &number) != JOBQ_OK) return JOBQ_OUTCOME_DISCARD;
    snprintf(amount, sizeof amount, "%lld", (long long)number);
    if (!run(conn, "BEGIN")) return retry(call, PQerrorMessage(conn));
    rows = update(conn,
                  "UPDATE " SCHEMA ".account SET balance = balance - $1::int"
                  " WHERE name = 'Ann' AND balance >= $1::int",
                  amount);
    if (rows < 0) return retry(call, PQerrorMessage(conn));
    if (rows == 0) {
        jobq_call_error(call, jobq_str_from("Ann has too little money"));
        return run(conn, "ROLLBACK") ? JOBQ_OUTCOME_DISCARD : JOBQ_OUTCOME_RETRY;
    }
    rows = update(conn,
                  "UPDATE " SCHEMA ".account SET balance = balance + $1::int WHERE name = 'Bob'",
                  amount);
    if (rows != 1) return retry(call, PQerrorMessage(conn));

    /* A real handler ends here: return jobq_pg_call_commit(call, conn). This one takes that call
     * apart, to fail in the middle. If another worker has taken the job in the meantime,
     * jobq_pg_call_complete aborts the transaction, so that no COMMIT can succeed. */
    if (jobq_pg_call_complete(call, conn, &error) != JOBQ_OK) return retry(call, error.message);

    if (call->job.id % 4 == 1 && call->job.attempt == 1) { /* pretend to fail before the COMMIT */
        run(conn, "ROLLBACK");
        return retry(call, "broke off before the COMMIT");
    }
    if (!run(conn, "COMMIT")) return retry(call, PQerrorMessage(conn));
    if (call->job.id % 4 == 2) { /* committed, but pretend that the answer was lost */
        return retry(call, "the answer to the COMMIT was lost");
    }
    return JOBQ_OUTCOME_DONE;
}

/* ---- the program around it ------------------------------------------------------------------- */

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

static int ask(PGconn *conn, const char *sql)
{
    PGresult *res = PQexec(conn, sql);
    int number;

    must(PQresultStatus(res) == PGRES_TUPLES_OK, PQerrorMessage(conn));
    number = atoi(PQgetvalue(res, 0, 0));
    PQclear(res);
    return number;
}

/* Two accounts with 100 each, 40 transfers of 1, and one of 1000, which cannot succeed. */
static void set_up(jobq_pg *pg, PGconn *conn)
{
    jobq_pg_job jobs[TRANSFERS + 1];
    jobq_pg_error error;
    int i;

    tell(conn, "SET client_min_messages = warning");
    tell(conn, "DROP SCHEMA IF EXISTS " SCHEMA " CASCADE");
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    tell(conn, "CREATE TABLE " SCHEMA ".account (name text PRIMARY KEY, balance int NOT NULL)");
    tell(conn, "INSERT INTO " SCHEMA ".account VALUES ('Ann', 100), ('Bob', 100)");
    memset(jobs, 0, sizeof jobs);
    for (i = 0; i <= TRANSFERS; i++) {
        jobs[i].queue = "bank";
        jobs[i].kind = "transfer";
        jobs[i].payload = jobq_str_from(i < TRANSFERS ? "1" : "1000");
    }
    must(jobq_pg_enqueue_many(pg, conn, jobs, TRANSFERS + 1, NULL, &error) == JOBQ_OK,
         error.message);
}

/* Works until all jobs have ended. Returns the number of attempts. */
static int work(jobq_pg *pg)
{
    const jobq_pg_handler handler = {.queue = "bank", .kind = "transfer", .run = {transfer}};
    jobq_pg_worker_desc desc = {0};
    jobq_pg_stats stats;
    jobq_pg_error error;

    desc.handlers = &handler;
    desc.handler_count = 1;
    desc.loop.until = JOBQ_UNTIL_ENDED;
    desc.stats = &stats;
    must(jobq_pg_work(pg, &desc, &error) == JOBQ_OK, error.message);
    return (int)stats.jobs.started;
}

int main(void)
{
    jobq_pg_desc desc = {0};
    jobq_pg_error error;
    jobq_pg *pg;
    PGconn *conn;
    int attempts, succeeded, failures, ann, bob;

    desc.conninfo = getenv("JOBQ_SERVER");
    desc.schema = SCHEMA;
    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    set_up(pg, conn);
    attempts = work(pg);

    succeeded = ask(conn, "SELECT count(*) FROM " SCHEMA ".jobs WHERE state = 'succeeded'");
    failures = ask(conn, "SELECT count(*) FROM " SCHEMA ".failed"
                         " WHERE errors->-1->>'error' = 'Ann has too little money'");
    ann = ask(conn, "SELECT balance FROM " SCHEMA ".account WHERE name = 'Ann'");
    bob = ask(conn, "SELECT balance FROM " SCHEMA ".account WHERE name = 'Bob'");
    printf("%d jobs took %d attempts\n", TRANSFERS + 1, attempts);
    printf("succeeded %d, failed %d: Ann has too little money\n", succeeded, failures);
    printf("Ann %d, Bob %d\n", ann, bob);

    tell(conn, "DROP SCHEMA " SCHEMA " CASCADE");
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return succeeded == TRANSFERS && failures == 1 && ann == 60 && bob == 140 ? 0 : 1;
}
