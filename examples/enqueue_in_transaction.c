/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * enqueue_in_transaction.c -- an order and its job are written together, or not at all.
 *
 * Build   cc examples/enqueue_in_transaction.c -I. -lpq -o enqueue_in_transaction
 * Run     JOBQ_SERVER="host=... dbname=..." ./enqueue_in_transaction
 *         or, on a Postgres of its own: make examples
 *                                       tests/server.sh .build/examples/enqueue_in_transaction
 * Prints  Ann's order: committed
 *         Bob's order: rolled back
 *         orders: 1, jobs: 1
 *
 * Drops and creates the schema jobq_example_enqueue, and drops it at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <stdio.h>
#include <stdlib.h>

#define SCHEMA "jobq_example_enqueue"

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

static int ask_count(PGconn *conn, const char *sql)
{
    PGresult *res = PQexec(conn, sql);
    int count;

    must(PQresultStatus(res) == PGRES_TUPLES_OK, PQerrorMessage(conn));
    count = atoi(PQgetvalue(res, 0, 0));
    PQclear(res);
    return count;
}

/* Writes an order and the job that will confirm it, in the transaction that is open on conn. */
static void place_order(jobq_pg *pg, PGconn *conn, const char *customer)
{
    jobq_pg_job job = {0};
    jobq_pg_error error;
    PGresult *res = PQexecParams(conn,
                                 "INSERT INTO " SCHEMA ".orders (customer) VALUES ($1)"
                                 " RETURNING jsonb_build_object('order', id)",
                                 1, NULL, &customer, NULL, NULL, 0);

    must(PQresultStatus(res) == PGRES_TUPLES_OK, PQerrorMessage(conn));
    job.queue = "mail";
    job.kind = "confirm-order";
    job.payload = jobq_str_from(PQgetvalue(res, 0, 0)); /* {"order": 1}; the rest is in orders */
    must(jobq_pg_enqueue(pg, conn, &job, NULL, &error) == JOBQ_OK, error.message);
    PQclear(res);
}

int main(void)
{
    jobq_pg_desc desc = {0};
    jobq_pg_error error;
    jobq_pg *pg;
    PGconn *conn;
    int orders, jobs;

    desc.conninfo = getenv("JOBQ_SERVER");
    desc.schema = SCHEMA;
    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    tell(conn, "SET client_min_messages = warning");
    tell(conn, "DROP SCHEMA IF EXISTS " SCHEMA " CASCADE");
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    tell(conn, "CREATE TABLE " SCHEMA ".orders (id bigserial PRIMARY KEY, customer text NOT NULL)");

    tell(conn, "BEGIN");
    place_order(pg, conn, "Ann");
    tell(conn, "COMMIT");
    printf("Ann's order: committed\n");

    tell(conn, "BEGIN");
    place_order(pg, conn, "Bob");
    tell(conn, "ROLLBACK");
    printf("Bob's order: rolled back\n");

    orders = ask_count(conn, "SELECT count(*) FROM " SCHEMA ".orders");
    jobs = ask_count(conn, "SELECT count(*) FROM " SCHEMA ".jobs");
    printf("orders: %d, jobs: %d\n", orders, jobs);

    tell(conn, "DROP SCHEMA " SCHEMA " CASCADE");
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return orders == 1 && jobs == 1 ? 0 : 1;
}
