/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * topics.c -- orders that feed a search index, billing, and a job that sends mail: one message,
 * three readers.
 *
 * Build   cc examples/topics.c -I. -lpq -o topics
 * Run     JOBQ_SERVER="host=... dbname=..." ./topics
 *         or, on a Postgres of its own: make examples && tests/server.sh .build/examples/topics
 * Prints  search has 12 messages, billing 12, mail 6
 *         billed: 6 orders, 210 euros; paid: 6
 *
 * The producer writes an order and its message in one transaction. The topic "orders" keeps nothing
 * itself: its subscriptions say who gets a copy. Search is a leased receiver, as for any other
 * system. Billing writes into this database, so it is transactional: its effect and the
 * acknowledgement are one commit, and happen exactly once. Mail needs retries one by one, not an
 * order, so its messages become jobs, and it takes only those of type "paid".
 * Uses the schemas jobq_example_topics and jobq_example_shop, created anew and dropped at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA "jobq_example_topics"
#define DATA "jobq_example_shop"

static int searched, billed, mailed; /* one thread */

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void ask(PGconn *conn, const char *sql)
{
    PGresult *res = PQexec(conn, sql);

    must(PQresultStatus(res) == PGRES_TUPLES_OK || PQresultStatus(res) == PGRES_COMMAND_OK,
         PQerrorMessage(conn));
    PQclear(res);
}

static long number_of(jobq_str payload)
{
    int64_t order = 0;

    must(jobq_json_int(payload, "order", &order) == JOBQ_OK, "a message without an order");
    return (long)order;
}

static jobq_result search(jobq_delivery *d, const jobq_message *m)
{
    (void)d; /* send (partition_id, seq) along: it names the message for ever */
    if (number_of(m->payload) > 0) searched++;
    return JOBQ_RESULT_SUCCESS;
}

static jobq_result bill(jobq_delivery *d, const jobq_message *m)
{
    char text[160];

    snprintf(text, sizeof text,
             jobq_str_equal(m->type, jobq_str_from("placed"))
                 ? "INSERT INTO " DATA ".bill SELECT o.id, o.euros FROM " DATA ".orders o "
                   "WHERE o.id = %ld"
                 : "UPDATE " DATA ".bill SET paid = true WHERE id = %ld", number_of(m->payload));
    ask(jobq_pg_delivery_conn(d), text);
    billed++;
    return JOBQ_RESULT_SUCCESS;
}

static jobq_outcome mail(jobq_call *call)
{
    char type[20] = "?";

    jobq_json_text(call->headers, "type", type, sizeof type); /* as its message had it */
    if (strcmp(type, "paid") == 0) mailed++;
    return JOBQ_OUTCOME_SUCCESS;
}

/* A message about an order, in the transaction that is open on conn. An order's messages stay in
 * their order, whoever reads them. */
static void tell(jobq_pg *pg, PGconn *conn, int order, const char *type)
{
    jobq_pg_message m = {.queue = "orders", .type = type};
    char key[20], payload[40];
    jobq_pg_error error;

    snprintf(key, sizeof key, "order-%d", order);
    snprintf(payload, sizeof payload, "{\"order\": %d}", order);
    m.order_key = key;
    m.payload = jobq_str_from(payload);
    must(jobq_pg_outbox_enqueue(pg, conn, &m, NULL, &error) == JOBQ_OK, error.message);
}

static void sell(jobq_pg *pg, PGconn *conn)
{
    char text[100];
    int i;

    for (i = 1; i <= 6; i++) {
        ask(conn, "BEGIN");
        snprintf(text, sizeof text, "INSERT INTO " DATA ".orders VALUES (%d, %d)", i, 10 * i);
        ask(conn, text);
        tell(pg, conn, i, "placed");
        ask(conn, "COMMIT");
        tell(pg, conn, i, "paid");
    }
    ask(conn, "BEGIN");
    tell(pg, conn, 7, "placed");
    ask(conn, "ROLLBACK"); /* nobody hears of it */
}

/* What the program that owns the subscriptions declares when it starts. */
static void subscribe(jobq_pg *pg)
{
    static const jobq_pg_subscription list[] = {
        {.name = "search", .source = "orders", .queue = "search"},
        {.name = "billing", .source = "orders", .queue = "billing"},
        {.name = "mail", .source = "orders", .queue = "mail", .kind = "receipt", .types = "paid"}};
    jobq_pg_error error;

    must(jobq_pg_outbox_register(pg, NULL, "orders", 0, NULL, &error) == JOBQ_OK &&
         jobq_pg_outbox_register(pg, NULL, "search", 1, NULL, &error) == JOBQ_OK &&
         jobq_pg_outbox_register(pg, NULL, "billing", 4, NULL, &error) == JOBQ_OK &&
         jobq_pg_subscriptions_set(pg, NULL, "shop", 1, list, 3, &error) == JOBQ_OK,
         error.message);
}

/* All three readers in one worker; usually each is a program of its own, at its own pace. */
static void read_all(jobq_pg *pg)
{
    jobq_pg_receiver receivers[] = {
        {.queue = "search", .each = search},
        {.queue = "billing", .each = bill, .transactional = true}};
    jobq_pg_handler handler = {.queue = "mail", .kind = "receipt", .run = {mail}};
    jobq_pg_worker_desc work = {.handlers = &handler, .handler_count = 1, .receivers = receivers,
                                .receiver_count = 2,
                                .loop = {.threads = 1, .until = JOBQ_UNTIL_EMPTY}};
    jobq_pg_error error;

    must(jobq_pg_work(pg, &work, &error) == JOBQ_OK, error.message);
}

int main(void)
{
    const char *server = getenv("JOBQ_SERVER");
    jobq_pg_desc desc = {.conninfo = server == NULL ? "" : server, .schema = SCHEMA};
    jobq_pg_error error;
    PGresult *res;
    PGconn *conn;
    jobq_pg *pg;

    must(jobq_pg_open(&pg, &desc, &error) == JOBQ_OK, error.message);
    must(jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK, error.message);
    ask(conn, "SET client_min_messages = warning; DROP SCHEMA IF EXISTS " SCHEMA ", " DATA
              " CASCADE; CREATE SCHEMA " DATA);
    must(jobq_pg_migrate(pg, &error) == JOBQ_OK, error.message);
    ask(conn, "CREATE TABLE " DATA ".orders (id integer PRIMARY KEY, euros integer)");
    ask(conn, "CREATE TABLE " DATA ".bill (id integer PRIMARY KEY, euros integer, "
              "paid boolean DEFAULT false)");
    subscribe(pg);
    sell(pg, conn);
    read_all(pg);
    printf("search has %d messages, billing %d, mail %d\n", searched, billed, mailed);
    res = PQexec(conn, "SELECT count(*), sum(euros), count(*) FILTER (WHERE paid) "
                       "FROM " DATA ".bill");
    printf("billed: %s orders, %s euros; paid: %s\n", PQgetvalue(res, 0, 0),
           PQgetvalue(res, 0, 1), PQgetvalue(res, 0, 2));
    PQclear(res);
    ask(conn, "DROP SCHEMA " SCHEMA ", " DATA " CASCADE");
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return 0;
}
