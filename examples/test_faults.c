/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_faults.c -- handlers under every fault: five that look right, each beside its mended form.
 *
 * Build   cc examples/test_faults.c -I. -o test_faults
 * Run     ./test_faults
 * Prints  story 301 ends badly
 *            1  0.0 s, worker 1, job 1, attempt 1: begins
 *            2  0.0 s, worker 1, job 1, attempt 1: the bank charges
 *            3  0.0 s, worker 1, job 1, attempt 1: commits   <-- the worker dies
 *         ...
 *         charges without a key: story 301; mended: 32 stories end well
 *         takes a new key for each attempt: story 202; mended: 32 stories end well
 *         reads, asks, writes: story 308; mended: 61 stories end well
 *         goes on, whatever it is told: story 109; mended: 106 stories end well
 *         adds what it is told: story 201; mended: 28 stories end well
 *
 * In a real program the handlers are in a file of their own, which the worker uses, too. There
 * charge and mail call services, begin asks jobq_pg_call_conn for its connection, and commit is
 * jobq_pg_call_commit.
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the fakes: what a crash leaves ---------------------------------------------------------- */

struct rows {
    int orders, balance;
    bool sets_balance;
};

struct shop {
    jobq_test *test;
    struct rows committed, open[2]; /* what each connection has not committed yet */
    int64_t keys[16];
    int charges, mails[3], stock[4];
};

/* The bank charges once for each key; 0: each time. False: refused, or nobody knows. */
static bool charge(struct shop *shop, int64_t key)
{
    jobq_error error = jobq_test_point(shop->test, "the bank charges");
    int i = 0;

    if (error == JOBQ_ERROR_RETRYABLE) return false;
    while (i < shop->charges && (key == 0 || shop->keys[i] != key)) i++;
    if (i == shop->charges) shop->keys[shop->charges++] = key;
    return error == JOBQ_OK;
}

static bool mail(struct shop *shop, int to)
{
    jobq_error error = jobq_test_point(shop->test, "a mail is sent");

    shop->mails[to] += error != JOBQ_ERROR_RETRYABLE;
    return error == JOBQ_OK;
}

static struct rows *begin(jobq_call *call) { return memset(call->conn, 0, sizeof(struct rows)); }

static jobq_outcome commit(jobq_call *call)
{
    struct rows *open = call->conn, *kept = &((struct shop *)call->user)->committed;
    jobq_error error = jobq_test_commit(call);

    if (error == JOBQ_OK || error == JOBQ_ERROR_CONNECTION) {
        kept->orders += open->orders;
        kept->balance = open->balance + (open->sets_balance ? 0 : kept->balance);
    }
    return error == JOBQ_OK ? JOBQ_OUTCOME_DONE : JOBQ_OUTCOME_RETRY;
}

static void *conn(void *user, int number) { return &((struct shop *)user)->open[number]; }

/* ---- the handlers ---------------------------------------------------------------------------- */

static jobq_outcome pay(jobq_call *call, int64_t key)
{
    begin(call)->orders = 1;
    return charge(call->user, key) ? commit(call) : JOBQ_OUTCOME_RETRY;
}

static jobq_outcome pay_unkeyed(jobq_call *call) { return pay(call, 0); }
static jobq_outcome pay_by_job(jobq_call *call) { return pay(call, call->job.id); }
static jobq_outcome pay_by_attempt(jobq_call *call) { return pay(call, 100 + call->job.attempt); }

/* What was read may be old when it is written; a difference never is. */
static jobq_outcome debit(jobq_call *call, bool reads)
{
    struct shop *shop = call->user;
    struct rows *open = begin(call);

    open->balance = (reads ? shop->committed.balance : 0) - 10;
    open->sets_balance = reads;
    return charge(shop, call->job.id) ? commit(call) : JOBQ_OUTCOME_RETRY;
}

static jobq_outcome debit_reading(jobq_call *call) { return debit(call, true); }
static jobq_outcome debit_by_less(jobq_call *call) { return debit(call, false); }

static jobq_outcome mail_all(jobq_call *call, bool heeds)
{
    char step[] = "mail 0";
    int to;

    for (to = 0; to < 3; to++, step[5]++) {
        jobq_error done = jobq_call_step(call, step, NULL);
        if (done == JOBQ_OK) continue;
        if (heeds && done != JOBQ_ERROR_NOT_FOUND) return JOBQ_OUTCOME_RETRY;
        if (heeds && jobq_call_stopping(call, NULL) >= JOBQ_STOP_TIMEOUT) return JOBQ_OUTCOME_RETRY;
        if (!mail(call->user, to)) return JOBQ_OUTCOME_RETRY;
        done = jobq_call_step_done(call, step, jobq_str_from(NULL));
        if (heeds && done != JOBQ_OK) return JOBQ_OUTCOME_RETRY;
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome mail_on(jobq_call *call) { return mail_all(call, false); }
static jobq_outcome mail_heeding(jobq_call *call) { return mail_all(call, true); }

/* A message comes again if the worker dies before it is acknowledged. */
static jobq_result stock_adds(jobq_delivery *delivery, const jobq_message *message)
{
    ((struct shop *)delivery->user)->stock[message->seq]++;
    return JOBQ_RESULT_SUCCESS;
}

static jobq_result stock_sets(jobq_delivery *delivery, const jobq_message *message)
{
    ((struct shop *)delivery->user)->stock[message->seq] = 1;
    return JOBQ_RESULT_SUCCESS;
}

/* ---- the scenarios --------------------------------------------------------------------------- */

static struct shop shop;
static jobq_test_faults faults = {.conn = conn, .user = &shop};
static jobq_test_receiver receiver = {.queue = "stock", .user = &shop};

static bool ended(int64_t id, jobq_state state)
{
    return jobq_test_get(shop.test, id)->job.state == state;
}

static void work(jobq_test *test, int jobs)
{
    jobq_test_job job = {.queue = "shop", .kind = "work"};

    memset(&shop, 0, sizeof shop);
    shop.test = test;
    shop.committed.balance = 100;
    while (jobs-- > 0) jobq_test_enqueue(test, &job);
    jobq_test_run(test, JOBQ_DAYS(1));
}

static bool pays_once(jobq_test *test, void *user)
{
    (void)user;
    work(test, 1);
    if (ended(1, JOBQ_STATE_CANCELLED)) return shop.charges <= 1;
    return shop.charges == 1 && shop.committed.orders == 1;
}

static bool balances(jobq_test *test, void *user)
{
    (void)user;
    work(test, 2);
    return shop.committed.balance ==
           100 - 10 * (ended(1, JOBQ_STATE_SUCCEEDED) + ended(2, JOBQ_STATE_SUCCEEDED));
}

/* Each fault may send a mail again. */
static bool mails(jobq_test *test, void *user)
{
    int all;

    (void)user;
    work(test, 1);
    all = shop.mails[0] + shop.mails[1] + shop.mails[2];
    return all <= 3 + faults.happened && (all >= 3 || ended(1, JOBQ_STATE_CANCELLED));
}

static bool stocks(jobq_test *test, void *user)
{
    jobq_test_message message = {.queue = "stock"};
    int i;

    (void)user;
    jobq_test_receive(test, &receiver);
    for (i = 0; i < 3; i++) jobq_test_send(test, &message);
    work(test, 0);
    return shop.stock[1] == 1 && shop.stock[2] == 1 && shop.stock[3] == 1;
}

int main(void)
{
    static const struct {
        const char *name;
        bool (*scenario)(jobq_test *test, void *user);
        jobq_handler handlers[2];
        jobq_message_handler receivers[2]; /* the wrong one, the mended one */
    } rows[] = {
        {"charges without a key", pays_once, {pay_unkeyed, pay_by_job}, {NULL}},
        {"takes a new key for each attempt", pays_once, {pay_by_attempt, pay_by_job}, {NULL}},
        {"reads, asks, writes", balances, {debit_reading, debit_by_less}, {NULL}},
        {"goes on, whatever it is told", mails, {mail_on, mail_heeding}, {NULL}},
        {"adds what it is told", stocks, {mail_on, mail_on}, {stock_adds, stock_sets}}};
    jobq_job_handler handler = {.queue = "shop", .kind = "work", .user = &shop};
    void *block = malloc(jobq_test_size());
    size_t i;

    faults.handlers = &handler;
    faults.handler_count = 1;
    for (i = 0; i < 2 * sizeof rows / sizeof rows[0]; i++) {
        int64_t story;
        handler.run[0] = rows[i / 2].handlers[i % 2];
        receiver.each = rows[i / 2].receivers[i % 2];
        faults.scenario = rows[i / 2].scenario;
        story = jobq_test_each_fault(block, &faults);
        if (i == 0 || (i % 2 == 1 && story != 0)) printf("%s", faults.text);
        if (i % 2 == 0) printf("%s: story %d; ", rows[i / 2].name, (int)story);
        else if (story == 0) printf("mended: %d stories end well\n", (int)faults.stories);
        if ((i % 2 == 0) != (story > 1)) return 1;
    }
    free(block);
    return 0;
}
