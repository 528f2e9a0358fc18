/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_handlers.c -- unit tests of handlers: retries, a crash, a time limit, a line that is held, a
 * message that comes again, without a database.
 *
 * Build   cc examples/test_handlers.c -I. -o test_handlers
 * Run     ./test_handlers
 * Prints  one line for each test, then "8 tests passed"
 *
 * The handler and its table are the ones that the worker gets: jobq_pg_worker_desc takes the same
 * table. In a program of your own they are in a file of their own, and the test includes it. Only
 * what the handler calls is replaced, here the mail server, through call->user.
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what ships: handlers, and the table for the worker -------------------------------------- */

struct mailer {
    int (*send)(struct mailer *mailer, const char *to, int64_t time_left_us); /* an SMTP code */
};

static jobq_outcome welcome(jobq_call *call)
{
    struct mailer *mailer = call->user;
    int64_t left_us;
    jobq_stop stop = jobq_call_stopping(call, &left_us);
    char to[255];
    int code;

    if (jobq_json_text(call->payload, "to", to, sizeof to) != JOBQ_OK) return JOBQ_OUTCOME_DISCARD;
    if (stop == JOBQ_STOP_SHUTDOWN) return JOBQ_OUTCOME_RELEASE;
    if (stop == JOBQ_STOP_CANCEL) return JOBQ_OUTCOME_CANCELLED;
    code = mailer->send(mailer, to, left_us);
    if (code == 250) return JOBQ_OUTCOME_SUCCESS;
    if (code == 421) { /* too many: no other mail to this domain for a minute */
        jobq_call_hold(call, JOBQ_HOLD_LINE, JOBQ_MINUTES(1), jobq_str_from("421"));
        jobq_call_delay(call, JOBQ_MINUTES(1));
        return JOBQ_OUTCOME_SNOOZE;
    }
    jobq_call_error(call, jobq_str_from(code == 550 ? "no such mailbox" : "mailbox full"));
    return code == 550 ? JOBQ_OUTCOME_DISCARD : JOBQ_OUTCOME_RETRY;
}

/* Gets the messages of the outbox "bounces". */
static jobq_result bounced(jobq_delivery *delivery, const jobq_message *message)
{
    struct mailer *mailer = delivery->user;
    char to[255];

    if (jobq_json_text(message->payload, NULL, to, sizeof to) != JOBQ_OK) return JOBQ_RESULT_REJECT;
    return mailer->send(mailer, to, JOBQ_NEVER) == 250 ? JOBQ_RESULT_SUCCESS : JOBQ_RESULT_RETRY;
}

#define WELCOME(mailer) {.queue = "mail", .kind = "welcome", .run = {welcome}, .user = mailer}

/* Like assert, but NDEBUG does not remove it. */
#define CHECK(good)                                                                                \
    do {                                                                                           \
        if (!(good)) {                                                                             \
            fprintf(stderr, "line %d: %s is false\n", __LINE__, #good);                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* ---- the test's mail server ------------------------------------------------------------------ */

struct fake {
    struct mailer mailer; /* first, so that a mailer is a fake */
    int codes[8];         /* what each call answers */
    int calls;
    int64_t takes_us;     /* how long each call takes */
    jobq_test *test;
};

static int fake_send(struct mailer *mailer, const char *to, int64_t time_left_us)
{
    struct fake *fake = (struct fake *)mailer;

    (void)time_left_us;
    CHECK(strcmp(to, "ann@example.org") == 0);
    jobq_test_sleep(fake->test, fake->takes_us);
    return fake->codes[fake->calls++];
}

/* ---- the fixture: a queue in memory with one job --------------------------------------------- */

static int64_t set_up(struct fake *fake)
{
    const jobq_job_handler handlers[] = {WELCOME(&fake->mailer)};
    jobq_policy policy = {.max_attempts = 3, .backoff = {.base_us = JOBQ_MINUTES(1)}};
    jobq_test_job job = {.queue = "mail", .kind = "welcome", .timeout_us = JOBQ_SECONDS(30)};
    void *block = malloc(jobq_test_size());

    CHECK(block != NULL);
    fake->mailer.send = fake_send;
    fake->test = jobq_test_init(block, handlers, 1);
    jobq_test_policy(fake->test, "mail", NULL, &policy);
    job.payload = jobq_str_from("{\"to\": \"ann@example.org\"}");
    job.headers = jobq_str_from("{\"trace\": \"a1\"}");
    return jobq_test_enqueue(fake->test, &job);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void test_a_full_mailbox_is_tried_again(void)
{
    struct fake fake = {.codes = {452, 250}};
    int64_t id = set_up(&fake);
    const jobq_test_view *seen;

    CHECK(jobq_test_run(fake.test, JOBQ_SECONDS(1)) == 1);
    seen = jobq_test_get(fake.test, id);
    CHECK(seen->job.state == JOBQ_STATE_READY && seen->job.attempt == 1);
    CHECK(strcmp(seen->error, "mailbox full") == 0);
    CHECK(seen->job.run_at_us >= JOBQ_SECONDS(45)); /* a minute, 25 % less or more */
    CHECK(seen->job.run_at_us <= JOBQ_SECONDS(76));

    CHECK(jobq_test_run(fake.test, JOBQ_MINUTES(2)) == 1);
    seen = jobq_test_get(fake.test, id);
    CHECK(seen->job.state == JOBQ_STATE_SUCCEEDED && seen->job.attempt == 2);
    free(fake.test);
}

static void test_three_attempts_are_all(void)
{
    struct fake fake = {.codes = {452, 452, 452}};
    int64_t id = set_up(&fake);

    CHECK(jobq_test_run(fake.test, JOBQ_DAYS(1)) == 3);
    CHECK(jobq_test_get(fake.test, id)->job.state == JOBQ_STATE_FAILED);
    CHECK(strcmp(jobq_test_get(fake.test, id)->error, "Max retries (3) exceeded: mailbox full") ==
          0);
    free(fake.test);
}

/* The worker dies after the mail was sent: it is sent again, so mails need an id of their own. */
static void test_a_crash_sends_it_twice(void)
{
    struct fake fake = {.codes = {250, 250}};
    int64_t id = set_up(&fake);

    jobq_test_fault(fake.test, JOBQ_TEST_CRASH);
    CHECK(jobq_test_run(fake.test, JOBQ_MINUTES(5)) == 2);
    CHECK(fake.calls == 2 && jobq_test_now(fake.test) > JOBQ_SECONDS(30)); /* after the lease */
    CHECK(jobq_test_get(fake.test, id)->job.state == JOBQ_STATE_SUCCEEDED);
    free(fake.test);
}

static void test_a_lost_answer_sends_it_once(void)
{
    struct fake fake = {.codes = {250, 250}};
    int64_t id = set_up(&fake);

    jobq_test_fault(fake.test, JOBQ_TEST_UNSURE);
    CHECK(jobq_test_run(fake.test, JOBQ_MINUTES(5)) == 1);
    CHECK(jobq_test_get(fake.test, id)->job.state == JOBQ_STATE_SUCCEEDED);
    free(fake.test);
}

static void test_a_slow_server_runs_into_the_time_limit(void)
{
    struct fake fake = {.codes = {250, 250, 250}, .takes_us = JOBQ_SECONDS(31)};
    int64_t id = set_up(&fake);

    CHECK(jobq_test_run(fake.test, JOBQ_SECONDS(40)) == 1);
    CHECK(jobq_test_get(fake.test, id)->job.state == JOBQ_STATE_READY);
    CHECK(strcmp(jobq_test_get(fake.test, id)->error, "the handler ran out of time") == 0);
    free(fake.test);
}

static void test_a_deploy_uses_up_no_attempt(void)
{
    struct fake fake = {.codes = {250}};
    int64_t id = set_up(&fake);

    jobq_test_fault(fake.test, JOBQ_TEST_SHUTDOWN);
    CHECK(jobq_test_run(fake.test, JOBQ_MINUTES(1)) == 2);
    CHECK(fake.calls == 1 && jobq_test_get(fake.test, id)->job.attempt == 1);
    free(fake.test);
}

/* The job's line is its domain: see LINES AND LIMITS in jobq_pg.h. */
static void test_a_busy_server_holds_only_its_domain(void)
{
    struct fake fake = {.codes = {250, 421, 250, 250}}; /* the first is for the mail of set_up */
    jobq_test_job job = {.queue = "mail", .kind = "welcome", .line = "example.org"};
    int64_t first, second, third;

    set_up(&fake);
    job.payload = jobq_str_from("{\"to\": \"ann@example.org\"}");
    CHECK(jobq_test_run(fake.test, JOBQ_SECONDS(1)) == 1);
    job.key = "order 7"; /* a second enqueue of this order writes nothing */
    first = jobq_test_enqueue(fake.test, &job);
    CHECK(first > 0 && jobq_test_enqueue(fake.test, &job) == first);
    CHECK(jobq_test_run(fake.test, JOBQ_SECONDS(10)) == 1);
    job.key = NULL;
    second = jobq_test_enqueue(fake.test, &job);
    job.line = "example.net";
    third = jobq_test_enqueue(fake.test, &job);
    CHECK(jobq_test_run(fake.test, JOBQ_SECONDS(30)) == 1);
    CHECK(jobq_test_get(fake.test, third)->job.state == JOBQ_STATE_SUCCEEDED);
    CHECK(jobq_test_get(fake.test, second)->job.state == JOBQ_STATE_READY);
    free(fake.test);
}

/* A message that fails is delivered again, and after three deliveries it is a dead letter. */
static void test_a_bounce_comes_again_until_its_limit(void)
{
    struct fake fake = {.codes = {250, 250, 452, 452, 452}};
    jobq_test_receiver receiver = {.queue = "bounces", .each = bounced, .user = &fake.mailer};
    jobq_test_message message = {.queue = "bounces"};
    jobq_policy policy = {.max_attempts = 3};
    const jobq_test_sent *sent;

    set_up(&fake);
    message.payload = jobq_str_from("\"ann@example.org\"");
    jobq_test_receive(fake.test, &receiver);
    jobq_test_policy(fake.test, "bounces", NULL, &policy);
    CHECK(jobq_test_run(fake.test, JOBQ_SECONDS(1)) == 1); /* the mail of set_up */
    sent = jobq_test_send(fake.test, &message);
    CHECK(jobq_test_run(fake.test, JOBQ_SECONDS(10)) == 1);
    CHECK(sent->done && !sent->dead);
    sent = jobq_test_send(fake.test, &message);
    CHECK(jobq_test_run(fake.test, JOBQ_HOURS(1)) == 3);
    CHECK(sent->dead);
    free(fake.test);
}

int main(void)
{
    test_a_full_mailbox_is_tried_again();
    printf("ok  a full mailbox is tried again, a minute later\n");
    test_three_attempts_are_all();
    printf("ok  three attempts are all\n");
    test_a_crash_sends_it_twice();
    printf("ok  a crash sends it twice\n");
    test_a_lost_answer_sends_it_once();
    printf("ok  a lost answer sends it once\n");
    test_a_slow_server_runs_into_the_time_limit();
    printf("ok  a slow server runs into the time limit\n");
    test_a_deploy_uses_up_no_attempt();
    printf("ok  a deploy uses up no attempt\n");
    test_a_busy_server_holds_only_its_domain();
    printf("ok  a busy server holds only its domain\n");
    test_a_bounce_comes_again_until_its_limit();
    printf("ok  a bounce comes again until its limit\n");
    printf("8 tests passed\n");
    return 0;
}
