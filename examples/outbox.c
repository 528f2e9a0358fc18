/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * outbox.c -- transfers between accounts, each announced by a message that is written in the same
 * transaction. Two processes deliver the messages; one of them is killed on the way.
 *
 * Build   cc examples/outbox.c -I. -lpq -o outbox
 * Run     make demo-outbox                                   a Postgres of its own
 *         JOBQ_SERVER="host=... dbname=..." ./outbox [TRANSFERS]
 * Prints  a line of progress and PASS or FAIL for each thing that must hold; its exit status is 0
 *         only when all do.
 *
 * The accounts have the names in /etc/passwd. A transfer is one transaction: it writes a row and a
 * message and changes two balances. If the payer has too little money, all of it is rolled back,
 * the message too. The messages of one payer keep their order, because the payer's name chooses the
 * partition. Each of two relay processes appends what it delivers to a file; after about 40 % of
 * the transfers one is killed with SIGKILL. At the end the files must hold every committed
 * transfer, in order, and none that was rolled back, and the balances computed from the files alone
 * must be those of the table.
 *
 * Drops and creates the schemas jobq_example_bank and jobq_example_outbox; drops them at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define QUEUE "transfers"

enum { PARTITIONS = 4, ACCOUNTS_MAX = 64, RELAYS = 2, OPENING = 1000 };

typedef struct account {
    char name[64];
    long balance; /* computed from the files */
} account;

/* A line of a relay's file. */
typedef struct line {
    int64_t at_us, seq;
    long transfer, amount;
    int partition, from, to;
} line;

static const char *server;
static account accounts[ACCOUNTS_MAX];
static int account_count;
static char paths[RELAYS][64];

static int64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void give_up(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static PGresult *ask(PGconn *conn, const char *sql)
{
    PGresult *res = PQexec(conn, sql);

    if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK) {
        give_up(sql, PQerrorMessage(conn));
    }
    return res;
}

static void run(PGconn *conn, const char *sql) { PQclear(ask(conn, sql)); }

static long number(PGconn *conn, const char *sql)
{
    PGresult *res = ask(conn, sql);
    long value = atol(PQgetvalue(res, 0, 0));

    PQclear(res);
    return value;
}

static jobq_pg *open_queue(void)
{
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *pg;

    memset(&desc, 0, sizeof desc);
    desc.conninfo = server;
    desc.schema = "jobq_example_outbox";
    if (jobq_pg_open(&pg, &desc, &error) != JOBQ_OK) give_up("connect", error.message);
    return pg;
}

/* ---- the bank -------------------------------------------------------------------------------- */

static void open_accounts(PGconn *conn)
{
    FILE *file = fopen("/etc/passwd", "r");
    char text[512], sql[768];

    while (file != NULL && account_count < ACCOUNTS_MAX && fgets(text, sizeof text, file) != NULL) {
        char *end = strchr(text, ':');
        if (end == NULL || end == text || end - text >= 60 || strchr(text, '\'') != NULL) continue;
        *end = '\0';
        strcpy(accounts[account_count].name, text);
        accounts[account_count++].balance = OPENING;
        snprintf(sql, sizeof sql, "INSERT INTO jobq_example_bank.account VALUES ('%s', %d)",
                 text, OPENING);
        run(conn, sql);
    }
    if (file != NULL) fclose(file);
    if (account_count < 2) give_up("/etc/passwd", "fewer than two accounts");
}

static bool change(PGconn *conn, const char *name, long by)
{
    char sql[256];
    PGresult *res;
    bool changed;

    snprintf(sql, sizeof sql,
             "UPDATE jobq_example_bank.account SET balance = balance + %ld WHERE name = '%s' "
             "AND balance + %ld >= 0", by, name, by);
    res = ask(conn, sql);
    changed = atoi(PQcmdTuples(res)) == 1;
    PQclear(res);
    return changed;
}

/* One transfer and its message, in one transaction. False: too little money, rolled back. */
static bool transfer(jobq_pg *pg, PGconn *conn, long id, int from, int to, long amount)
{
    char sql[256], payload[256];
    jobq_pg_message message;
    jobq_pg_error error;
    bool paid;

    snprintf(sql, sizeof sql, "INSERT INTO jobq_example_bank.transfer VALUES (%ld)", id);
    snprintf(payload, sizeof payload,
             "{\"transfer\": %ld, \"from\": %d, \"to\": %d, \"amount\": %ld}", id, from, to,
             amount);
    memset(&message, 0, sizeof message);
    message.queue = QUEUE;
    message.order_key = accounts[from].name;
    message.type = "transfer.v1";
    message.payload = jobq_str_from(payload);
    run(conn, "BEGIN");
    run(conn, sql);
    if (jobq_pg_outbox_enqueue(pg, conn, &message, NULL, &error) != JOBQ_OK) {
        give_up("enqueue", error.message);
    }
    paid = change(conn, accounts[to].name, amount) && change(conn, accounts[from].name, -amount);
    run(conn, paid ? "COMMIT" : "ROLLBACK");
    return paid;
}

/* Makes transfers first to last, between random accounts. Returns how many were rolled back. */
static long trade(jobq_pg *pg, PGconn *conn, long first, long last)
{
    jobq_random random = {(uint64_t)first};
    long id, refused = 0;

    for (id = first; id <= last; id++) {
        int from = (int)jobq_random_between(jobq_random_next(&random), 0, account_count - 1);
        int to = (int)jobq_random_between(jobq_random_next(&random), 1, account_count - 1);
        long amount = (long)jobq_random_between(jobq_random_next(&random), 1, OPENING);
        to = (from + to) % account_count;
        refused += !transfer(pg, conn, id, from, to, amount);
    }
    return refused;
}

/* ---- the relays ------------------------------------------------------------------------------ */

static long field(const jobq_message *m, const char *name)
{
    int64_t value = -1;

    jobq_json_int(m->payload, name, &value);
    return (long)value;
}

/* Delivers one message: appends a line to this relay's file. A message may be delivered twice, so
 * readers of the file must expect a line twice. */
static jobq_result deliver(jobq_delivery *d, const jobq_message *m)
{
    FILE *file = (FILE *)d->user;

    fprintf(file, "%" PRId64 " %d %" PRId64 " %ld %ld %ld %ld\n", now_us(), (int)d->partition,
            m->seq, field(m, "transfer"), field(m, "from"), field(m, "to"), field(m, "amount"));
    if (fflush(file) != 0) {
        jobq_delivery_error(d, jobq_str_from("the file can't be written"));
        return JOBQ_RESULT_RETRY;
    }
    return JOBQ_RESULT_SUCCESS;
}

static void relay(const char *path)
{
    jobq_pg_worker_desc desc;
    jobq_pg_receiver receiver;
    jobq_pg_error error;

    memset(&desc, 0, sizeof desc);
    memset(&receiver, 0, sizeof receiver);
    receiver.queue = QUEUE;
    receiver.each = deliver;
    receiver.user = fopen(path, "a");
    if (receiver.user == NULL) give_up(path, "cannot be written");
    receiver.tuning.lease_us = JOBQ_SECONDS(1); /* short: a death is noticed within two seconds */
    desc.receivers = &receiver;
    desc.receiver_count = 1;
    desc.loop.threads = 2;
    desc.stop_signals[0] = SIGTERM;
    if (jobq_pg_work(open_queue(), &desc, &error) != JOBQ_OK) give_up("relay", error.message);
    exit(0);
}

static pid_t relay_start(int n)
{
    pid_t pid = fork();

    if (pid < 0) give_up("fork", "no process");
    if (pid == 0) relay(paths[n]);
    return pid;
}

/* ---- what the files say ---------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
    const line *x = (const line *)a, *y = (const line *)b;

    return x->at_us < y->at_us ? -1 : x->at_us > y->at_us;
}

/* Reads all lines of both files, in the order in which they were written. It ignores a line that
 * the kill cut short, because its message was delivered again. */
static line *read_lines(long *count, long *by_relay)
{
    line *lines = NULL;
    char text[256];
    int n;

    for (n = 0, *count = 0; n < RELAYS; n++) {
        FILE *file = fopen(paths[n], "r");
        long before = *count;
        while (file != NULL && fgets(text, sizeof text, file) != NULL) {
            line l;
            if (strchr(text, '\n') == NULL ||
                sscanf(text, "%" SCNd64 " %d %" SCNd64 " %ld %d %d %ld", &l.at_us, &l.partition,
                       &l.seq, &l.transfer, &l.from, &l.to, &l.amount) != 7) {
                continue;
            }
            if ((*count & 1023) == 0) {
                lines = (line *)realloc(lines, (size_t)(*count + 1024) * sizeof *lines);
                if (lines == NULL) give_up("files", "out of memory");
            }
            lines[(*count)++] = l;
        }
        by_relay[n] = *count - before;
        if (file != NULL) fclose(file);
    }
    if (*count > 0) qsort(lines, (size_t)*count, sizeof *lines, by_time);
    return lines;
}

static bool good = true;

static void check(bool holds, const char *what)
{
    printf("%s  %s\n", holds ? "PASS" : "FAIL", what);
    good = good && holds;
}

static void check_files(PGconn *conn, long count, long refused)
{
    long line_count, by_relay[RELAYS], i, first = 0, strangers = 0, wrong = 0, total = 0;
    int64_t high[PARTITIONS] = {0};
    line *lines = read_lines(&line_count, by_relay);
    char *done = (char *)calloc((size_t)count + 1, 1);
    bool ordered = true;
    char text[200];
    PGresult *res;

    if (done == NULL) give_up("files", "out of memory");
    for (i = 0; i < line_count; i++) {
        const line *l = &lines[i];
        if (l->transfer < 1 || l->transfer > count || l->partition >= PARTITIONS) {
            strangers++;
            continue;
        }
        if (l->seq > high[l->partition] + 1) ordered = false; /* something was skipped */
        if (l->seq <= high[l->partition]) continue;           /* delivered again */
        high[l->partition] = l->seq;
        if (done[l->transfer]) strangers++;
        done[l->transfer] = 1;
        first++;
        accounts[l->from].balance -= l->amount;
        accounts[l->to].balance += l->amount;
    }
    for (i = 0; i < account_count; i++) total += accounts[i].balance;
    res = ask(conn, "SELECT name, balance FROM jobq_example_bank.account");
    for (i = 0; i < account_count; i++) {
        int n = 0;
        while (strcmp(accounts[n].name, PQgetvalue(res, (int)i, 0)) != 0) n++;
        wrong += accounts[n].balance != atol(PQgetvalue(res, (int)i, 1));
    }
    PQclear(res);
    printf("relay 1 wrote %ld lines, relay 2 %ld; %ld messages were delivered twice\n", by_relay[0],
           by_relay[1], line_count - first);
    check(ordered, "order: each partition was delivered as 1, 2, 3 ...");
    snprintf(text, sizeof text, "complete: %ld of %ld transfers are in the files", first,
             count - refused);
    check(first == count - refused &&
              first == number(conn, "SELECT count(*) FROM jobq_example_bank.transfer"), text);
    snprintf(text, sizeof text, "none of the %ld transfers that were rolled back was delivered",
             refused);
    check(strangers == 0, text);
    snprintf(text, sizeof text,
             "the balances computed from the files are those of the table; sum %ld", total);
    check(wrong == 0 && total == (long)account_count * OPENING &&
              total == number(conn, "SELECT sum(balance) FROM jobq_example_bank.account"), text);
    free(lines);
    free(done);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void set_up(PGconn *conn, jobq_pg *pg)
{
    jobq_pg_error error;
    int n;

    run(conn, "SET client_min_messages = error");
    run(conn, "DROP SCHEMA IF EXISTS jobq_example_bank, jobq_example_outbox CASCADE");
    run(conn, "CREATE SCHEMA jobq_example_bank");
    run(conn, "CREATE TABLE jobq_example_bank.account (name text PRIMARY KEY, balance bigint)");
    run(conn, "CREATE TABLE jobq_example_bank.transfer (id bigint PRIMARY KEY)");
    if (jobq_pg_migrate(pg, &error) != JOBQ_OK ||
        jobq_pg_outbox_register(pg, NULL, QUEUE, PARTITIONS, NULL, &error) != JOBQ_OK) {
        give_up("schema", error.message);
    }
    for (n = 0; n < RELAYS; n++) {
        snprintf(paths[n], sizeof paths[n], "/tmp/jobq_outbox_%d_%d", (int)getpid(), n + 1);
    }
    open_accounts(conn);
}

/* Waits until all messages are delivered. False: not within a minute. */
static bool drained(PGconn *conn)
{
    static const struct timespec nap = {0, 50000000};
    int64_t until = now_us() + JOBQ_MINUTES(1);

    while (number(conn, "SELECT coalesce(sum(lag), 0) FROM jobq_example_outbox.outbox") > 0) {
        if (now_us() > until) return false;
        nanosleep(&nap, NULL);
    }
    return true;
}

int main(int argc, char **argv)
{
    long count = argc > 1 ? atol(argv[1]) : 3000, refused;
    pid_t relays[RELAYS];
    PGconn *conn;
    jobq_pg *pg;
    int n;

    setvbuf(stdout, NULL, _IOLBF, 0);
    server = getenv("JOBQ_SERVER");
    if (server == NULL) give_up("JOBQ_SERVER", "set it to a libpq connection string");
    if (count < 10) give_up("TRANSFERS", "at least 10");
    conn = PQconnectdb(server);
    if (PQstatus(conn) != CONNECTION_OK) give_up("connect", PQerrorMessage(conn));
    pg = open_queue();
    set_up(conn, pg);
    for (n = 0; n < RELAYS; n++) relays[n] = relay_start(n);
    printf("%ld transfers between %d accounts, %d partitions, %d relays\n", count, account_count,
           PARTITIONS, RELAYS);
    refused = trade(pg, conn, 1, count * 2 / 5);
    kill(relays[0], SIGKILL);
    waitpid(relays[0], NULL, 0);
    printf("relay 1 is killed after %ld transfers\n", count * 2 / 5);
    refused += trade(pg, conn, count * 2 / 5 + 1, count);
    check(drained(conn), "drained: no message is left");
    kill(relays[1], SIGTERM);
    waitpid(relays[1], NULL, 0);
    check_files(conn, count, refused);
    for (n = 0; n < RELAYS; n++) remove(paths[n]);
    run(conn, "DROP SCHEMA jobq_example_bank, jobq_example_outbox CASCADE");
    jobq_pg_close(pg);
    PQfinish(conn);
    return good ? 0 : 1;
}
