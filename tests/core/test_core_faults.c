/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Handlers under each fault: a zoo of handlers with the classic mistakes, each beside its mended
 * form, and what jobq_test_each_fault promises of its stories. The zoo was written before the first
 * of its stories was told.
 */
#define JOBQ_LOOP_SLOTS 64
#define JOBQ_LOOP_CLAIMS 64
#define JOBQ_LOOP_BATCH 16
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"

static int quietly(const char *format, ...) { return format == NULL; }

int main_of_without_database(void);
#define main main_of_without_database
#define printf quietly
#include "../../examples/without_database.c"
#undef main
#undef printf

/* ---- the world of the zoo -------------------------------------------------------------------- */

enum { ITEMS = 3 };

/* A connection to a fake database, with what its transaction has not committed yet. */
struct tx {
    int orders, adds;
    bool sets;
    int balance;
};

struct world {
    jobq_test *test;
    jobq_test_faults *faults;
    struct tx tx[2];
    int orders, balance, told[ITEMS + 1]; /* in the database */
    bool flag, loaded;
    int64_t seen;
    int calls, keys[64], mails[ITEMS]; /* outside: what each key has done, and mails without one */
    int memory;                        /* in the process */
    int random, polls;
};

static void *conn(void *user, int number) { return &((struct world *)user)->tx[number]; }

static void died(void *user, int number)
{
    struct world *w = user;

    memset(&w->tx[number], 0, sizeof w->tx[number]);
    w->memory = 0;
}

static struct tx *begin(jobq_call *call) { return memset(call->conn, 0, sizeof(struct tx)); }

static void keep(struct world *w, const struct tx *tx)
{
    w->orders += tx->orders;
    w->balance += tx->adds;
    if (tx->sets) w->balance = tx->balance;
}

/* As jobq_pg_call_commit does it. */
static jobq_outcome commit(jobq_call *call)
{
    jobq_error error = jobq_test_commit(call);

    if (error == JOBQ_OK || error == JOBQ_ERROR_CONNECTION) keep(call->user, call->conn);
    begin(call);
    return error == JOBQ_OK ? JOBQ_OUTCOME_DONE : JOBQ_OUTCOME_RETRY;
}

/* Whatever went wrong, no job breaks a law. */
static void check_laws(jobq_test *test)
{
    int64_t id;

    for (id = 1; jobq_test_get(test, id) != NULL; id++)
        assert_int_equal(jobq_job_check(&jobq_test_get(test, id)->job), JOBQ_OK);
}

/* A service that does a thing once for each key. */
static bool serve(struct world *w, int64_t key)
{
    jobq_error error = jobq_test_point(w->test, "the service is called");
    int i;

    check_laws(w->test);
    if (error == JOBQ_ERROR_RETRYABLE) return false;
    for (i = 0; i < w->calls && (key == 0 || w->keys[i] != key); i++) {}
    if (i == w->calls && i < (int)COUNT(w->keys)) w->keys[w->calls++] = (int)key;
    return error == JOBQ_OK;
}

static bool mail(struct world *w, int item)
{
    jobq_error error = jobq_test_point(w->test, "a mail is sent");

    if (error == JOBQ_ERROR_RETRYABLE) return false;
    w->mails[item]++;
    return error == JOBQ_OK;
}

/* ---- the zoo --------------------------------------------------------------------------------- */

/* 1: charges before the commit, so that a rollback does not undo it. */
static jobq_outcome pays(jobq_call *call, int64_t key)
{
    begin(call)->orders = 1;
    return serve(call->user, key) ? commit(call) : JOBQ_OUTCOME_RETRY;
}

static jobq_outcome pays_unkeyed(jobq_call *call) { return pays(call, 0); }
static jobq_outcome pays_by_job(jobq_call *call) { return pays(call, call->job.id); }

/* 2: the key is another one in each attempt. */
static jobq_outcome pays_by_attempt(jobq_call *call)
{
    return pays(call, call->job.id * 100 + call->job.attempt);
}

/* 3: looks whether it is done, does it, and notes it: three moments. */
static jobq_outcome notes_later(jobq_call *call)
{
    struct world *w = call->user;

    if (w->flag) return JOBQ_OUTCOME_SUCCESS;
    if (!serve(w, 0)) return JOBQ_OUTCOME_RETRY;
    w->flag = true;
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome notes_by_key(jobq_call *call)
{
    return serve(call->user, 7) ? JOBQ_OUTCOME_SUCCESS : JOBQ_OUTCOME_RETRY;
}

/* 4: mails after the commit, so that nothing is left that would do it again. */
static jobq_outcome mails_after(jobq_call *call)
{
    jobq_outcome outcome;

    begin(call)->orders = 1;
    outcome = commit(call);
    if (outcome == JOBQ_OUTCOME_DONE) serve(call->user, call->job.id);
    return outcome;
}

/* 5: reads, waits, and writes what it has computed from that. */
static jobq_outcome computes(jobq_call *call)
{
    struct world *w = call->user;
    struct tx *tx = begin(call);

    tx->balance = w->balance - 10;
    tx->sets = true;
    return serve(w, call->job.id) ? commit(call) : JOBQ_OUTCOME_RETRY;
}

static jobq_outcome subtracts(jobq_call *call)
{
    begin(call)->adds = -10;
    return serve(call->user, call->job.id) ? commit(call) : JOBQ_OUTCOME_RETRY;
}

/* 6: takes any error of a look for "there is no key yet", and makes another one. */
static jobq_outcome looks(jobq_call *call, bool careful)
{
    struct world *w = call->user;
    char key[] = "0";
    jobq_str kept;
    jobq_error error = jobq_call_step(call, "key", &kept);

    if (error == JOBQ_OK) key[0] = kept.ptr[0];
    else if (careful && error != JOBQ_ERROR_NOT_FOUND) return JOBQ_OUTCOME_RETRY;
    else {
        key[0] = (char)('1' + w->random++ % 9);
        if (jobq_call_step_done(call, "key", jobq_str_from(key)) != JOBQ_OK)
            return JOBQ_OUTCOME_RETRY;
    }
    if (!serve(w, key[0])) return JOBQ_OUTCOME_RETRY;
    if (w->polls++ > 0) return JOBQ_OUTCOME_SUCCESS;
    jobq_call_delay(call, SECOND); /* and then it ships */
    return JOBQ_OUTCOME_SNOOZE;
}

static jobq_outcome looks_once(jobq_call *call) { return looks(call, false); }
static jobq_outcome looks_well(jobq_call *call) { return looks(call, true); }

/* 7: remembers in the process how far it has come. */
static jobq_outcome remembers(jobq_call *call)
{
    struct world *w = call->user;

    for (; w->memory < ITEMS; w->memory++)
        if (!mail(w, w->memory)) return JOBQ_OUTCOME_RETRY;
    return JOBQ_OUTCOME_SUCCESS;
}

/* 12: looks at no answer, and never asks whether to stop. */
static jobq_outcome steps(jobq_call *call, bool deaf)
{
    struct world *w = call->user;
    char name[] = "mail 0";
    int i;

    for (i = 0; i < ITEMS; i++, name[5]++) {
        jobq_error error = jobq_call_step(call, name, NULL);
        if (error == JOBQ_OK) continue;
        if (!deaf && (error != JOBQ_ERROR_NOT_FOUND ||
                      jobq_call_stopping(call, NULL) >= JOBQ_STOP_TIMEOUT))
            return JOBQ_OUTCOME_RETRY;
        if (!mail(w, i) && !deaf) return JOBQ_OUTCOME_RETRY;
        error = jobq_call_step_done(call, name, jobq_str_from(NULL));
        if (!deaf && error != JOBQ_OK) return JOBQ_OUTCOME_RETRY;
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome steps_deaf(jobq_call *call) { return steps(call, true); }
static jobq_outcome steps_well(jobq_call *call) { return steps(call, false); }

/* 8: enqueues what follows outside of its transaction. */
static jobq_outcome follows(jobq_call *call, const char *key)
{
    struct world *w = call->user;
    jobq_test_job next = {.queue = "q", .kind = "next", .key = key};

    begin(call)->orders = 1;
    if (!serve(w, call->job.id)) return JOBQ_OUTCOME_RETRY;
    jobq_test_enqueue(w->test, &next);
    return commit(call);
}

static jobq_outcome follows_unkeyed(jobq_call *call) { return follows(call, NULL); }
static jobq_outcome follows_by_key(jobq_call *call) { return follows(call, "order 1"); }

static jobq_outcome does_nothing(jobq_call *call)
{
    (void)call;
    return JOBQ_OUTCOME_SUCCESS;
}

/* 9: a receiver that adds, so that a message that comes again counts twice. */
static jobq_result adds(jobq_delivery *d, const jobq_message *m)
{
    struct world *w = d->user;

    w->told[m->seq]++;
    return JOBQ_RESULT_SUCCESS;
}

static jobq_result sets(jobq_delivery *d, const jobq_message *m)
{
    struct world *w = d->user;

    if (m->seq > w->seen) w->told[m->seq]++;
    w->seen = m->seq > w->seen ? m->seq : w->seen;
    return JOBQ_RESULT_SUCCESS;
}

/* 10: is asked to stop in the middle of a batch, and acknowledges all of it. */
static jobq_result batch(jobq_delivery *d, bool counts)
{
    struct world *w = d->user;
    int32_t i;

    for (i = 0; i < d->count && jobq_delivery_stopping(d, NULL) == JOBQ_STOP_NONE; i++)
        w->told[d->messages[i].seq] = 1;
    if (counts) jobq_delivery_done(d, i);
    return JOBQ_RESULT_SUCCESS;
}

static jobq_result batch_whole(jobq_delivery *d) { return batch(d, false); }
static jobq_result batch_counted(jobq_delivery *d) { return batch(d, true); }

/* 11: gives up after four looks, which is to mean half a minute; but a look that failed counts. */
static jobq_outcome polls(jobq_call *call, bool counts)
{
    struct world *w = call->user;

    w->polls++; /* in the database, in a transaction of its own */
    if (!serve(w, call->job.id)) return JOBQ_OUTCOME_RETRY;
    if (jobq_test_now(w->test) >= JOBQ_SECONDS(28)) return JOBQ_OUTCOME_SUCCESS;
    if (counts && w->polls == 4) return JOBQ_OUTCOME_DISCARD;
    jobq_call_delay(call, JOBQ_SECONDS(10));
    return JOBQ_OUTCOME_SNOOZE;
}

static jobq_outcome polls_counted(jobq_call *call) { return polls(call, true); }
static jobq_outcome polls_on(jobq_call *call) { return polls(call, false); }

/* 13: takes a refusal for success. */
static jobq_outcome swallows(jobq_call *call)
{
    serve(call->user, call->job.id);
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome minds(jobq_call *call)
{
    return serve(call->user, call->job.id) ? JOBQ_OUTCOME_SUCCESS : JOBQ_OUTCOME_RETRY;
}

/* 14: job 1 loads what job 2 needs, which was enqueued after it. */
static jobq_outcome expects(jobq_call *call)
{
    struct world *w = call->user;

    if (call->job.id == 1) w->loaded = true;
    return w->loaded ? JOBQ_OUTCOME_SUCCESS : JOBQ_OUTCOME_DISCARD;
}

static jobq_outcome waits(jobq_call *call)
{
    jobq_outcome outcome = expects(call);

    return outcome == JOBQ_OUTCOME_DISCARD ? JOBQ_OUTCOME_SNOOZE : outcome;
}

/* ---- what must be true in the end ------------------------------------------------------------ */

static jobq_state state(struct world *w, int64_t id)
{
    return jobq_test_get(w->test, id)->job.state;
}

static void run(jobq_test *test, struct world *w, int jobs)
{
    jobq_test_job job = {.queue = "q", .kind = "k"};
    jobq_test_faults *faults = w->faults;

    memset(w, 0, sizeof *w);
    w->test = test;
    w->faults = faults;
    w->balance = 100;
    for (; jobs > 0; jobs--) jobq_test_enqueue(test, &job);
    jobq_test_run(test, JOBQ_DAYS(1));
    check_laws(test);
}

/* Job 1 has done this once, or somebody has cancelled it. */
static bool once(struct world *w, int times)
{
    if (state(w, 1) == JOBQ_STATE_CANCELLED) return times <= 1;
    return state(w, 1) == JOBQ_STATE_SUCCEEDED && times == 1;
}

static bool paid_once(jobq_test *test, void *user)
{
    run(test, user, 1);
    return once(user, ((struct world *)user)->orders) && once(user, ((struct world *)user)->calls);
}

static bool called_once(jobq_test *test, void *user)
{
    run(test, user, 1);
    return once(user, ((struct world *)user)->calls);
}

static bool balanced(jobq_test *test, void *user)
{
    struct world *w = user;
    int done;

    run(test, w, 2);
    done = (state(w, 1) == JOBQ_STATE_SUCCEEDED) + (state(w, 2) == JOBQ_STATE_SUCCEEDED);
    return w->balance == 100 - 10 * done;
}

static bool mailed(jobq_test *test, void *user)
{
    struct world *w = user;
    int i, again = 0, all = 0;

    run(test, w, 1);
    for (i = 0; i < ITEMS; i++) {
        again += w->mails[i] > 1 ? w->mails[i] - 1 : 0;
        all += w->mails[i] > 0;
    }
    return again <= w->faults->happened && (all == ITEMS || state(w, 1) == JOBQ_STATE_CANCELLED);
}

static bool followed_once(jobq_test *test, void *user)
{
    struct world *w = user;

    run(test, w, 1);
    return state(w, 1) == JOBQ_STATE_CANCELLED ||
           (jobq_test_get(test, 2) != NULL && jobq_test_get(test, 3) == NULL);
}

static bool succeeded(jobq_test *test, void *user)
{
    struct world *w = user;

    run(test, w, 1);
    return state(w, 1) != JOBQ_STATE_FAILED;
}

static bool both_succeeded(jobq_test *test, void *user)
{
    struct world *w = user;

    run(test, w, 2);
    return state(w, 2) != JOBQ_STATE_FAILED || state(w, 1) == JOBQ_STATE_CANCELLED;
}

static bool received(jobq_test *test, struct world *w, jobq_message_handler each,
                     jobq_batch_handler all)
{
    jobq_test_receiver receiver = {.queue = "m", .each = each, .all = all, .user = w};
    jobq_test_message message = {.queue = "m"};
    int i;

    jobq_test_receive(test, &receiver);
    for (i = 0; i < ITEMS; i++) jobq_test_send(test, &message);
    run(test, w, 0);
    for (i = 1; i <= ITEMS && w->told[i] == 1; i++) {}
    return i > ITEMS;
}

static bool added(jobq_test *test, void *user) { return received(test, user, adds, NULL); }
static bool set(jobq_test *test, void *user) { return received(test, user, sets, NULL); }
static bool whole(jobq_test *test, void *user) { return received(test, user, NULL, batch_whole); }
static bool counted(jobq_test *test, void *user)
{
    return received(test, user, NULL, batch_counted);
}

struct animal {
    const char *name;
    jobq_handler wrong, right;
    bool (*scenario)(jobq_test *, void *), (*right_scenario)(jobq_test *, void *);
};

static const struct animal zoo[] = {
    {"charges before the commit", pays_unkeyed, pays_by_job, paid_once, NULL},
    {"keys by the attempt", pays_by_attempt, pays_by_job, paid_once, NULL},
    {"looks, does, notes", notes_later, notes_by_key, called_once, NULL},
    {"mails after the commit", mails_after, pays_by_job, paid_once, NULL},
    {"reads, waits, writes", computes, subtracts, balanced, NULL},
    {"takes an error for an answer", looks_once, looks_well, called_once, NULL},
    {"remembers in the process", remembers, steps_well, mailed, NULL},
    {"enqueues outside of its transaction", follows_unkeyed, follows_by_key, followed_once, NULL},
    {"adds instead of setting", does_nothing, does_nothing, added, set},
    {"acknowledges too much", does_nothing, does_nothing, whole, counted},
    {"counts its polls", polls_counted, polls_on, succeeded, NULL},
    {"hears no answer", steps_deaf, steps_well, mailed, NULL},
    {"takes a refusal for success", swallows, minds, called_once, NULL},
    {"expects an order of jobs", expects, waits, both_succeeded, NULL},
};

/* ---- stories --------------------------------------------------------------------------------- */

static void *block;
static struct world world;
static jobq_test_faults faults;
static jobq_job_handler handlers[2];

static int64_t tell(jobq_handler handler, bool (*scenario)(jobq_test *, void *))
{
    memset(handlers, 0, sizeof handlers);
    handlers[0] = (jobq_job_handler){.queue = "q", .kind = "k", .run = {handler}, .user = &world};
    handlers[1] = (jobq_job_handler){.queue = "q", .kind = "next", .run = {does_nothing}};
    faults.handlers = handlers;
    faults.handler_count = 2;
    faults.scenario = scenario;
    faults.conn = conn;
    faults.died = died;
    faults.user = &world;
    world.faults = &faults;
    return jobq_test_each_fault(block, &faults);
}

static int setup(void **unused)
{
    (void)unused;
    if (block == NULL) block = malloc(jobq_test_size());
    memset(&faults, 0, sizeof faults);
    return block == NULL;
}

static void each_wrong_handler_is_found(void **unused)
{
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(zoo); i++) {
        int64_t failed = tell(zoo[i].wrong, zoo[i].scenario);
        if (failed <= 1) fail_msg("%s: %d after %d stories\n%s", zoo[i].name, (int)failed,
                                  (int)faults.stories, faults.text);
        assert_true(faults.stories < 500);
        if (getenv("JOBQ_TEST_TELL") != NULL)
            printf("%s: found after %d\n%s", zoo[i].name, (int)faults.stories, faults.text);
    }
}

static void no_right_handler_is_blamed(void **unused)
{
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(zoo); i++) {
        bool (*scenario)(jobq_test *, void *) = zoo[i].right_scenario;
        int64_t failed = tell(zoo[i].right, scenario == NULL ? zoo[i].scenario : scenario);
        if (failed != 0) fail_msg("%s: %s", zoo[i].name, faults.text);
        if (getenv("JOBQ_TEST_TELL") != NULL)
            printf("%s: good after %d\n", zoo[i].name, (int)faults.stories);
    }
}

/* Nor if the worker dies twice, or an answer is lost as well. */
static void no_right_handler_is_blamed_for_two_faults(void **unused)
{
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(zoo); i++) {
        bool (*scenario)(jobq_test *, void *) = zoo[i].right_scenario;
        memset(&faults, 0, sizeof faults);
        faults.pairs = true;
        faults.events = 1u << JOBQ_TEST_CRASH | 1u << JOBQ_TEST_UNSURE;
        if (tell(zoo[i].right, scenario == NULL ? zoo[i].scenario : scenario) != 0)
            fail_msg("%s: %s", zoo[i].name, faults.text);
    }
}

/* The number alone tells the same story again. */
static void a_number_tells_its_story_again(void **unused)
{
    char text[sizeof faults.text];
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(zoo); i++) {
        int64_t number = tell(zoo[i].wrong, zoo[i].scenario);
        strcpy(text, faults.text);
        memset(&faults, 0, sizeof faults);
        faults.number = number;
        assert_int_equal(tell(zoo[i].wrong, zoo[i].scenario), number);
        assert_int_equal(faults.stories, 1);
        assert_string_equal(faults.text, text);
        memset(&faults, 0, sizeof faults);
    }
}

/* ---- single stories -------------------------------------------------------------------------- */

static int64_t told[200];
static int32_t told_count;

static bool is_listed(jobq_test *test, void *user)
{
    jobq_test_job job = {.queue = "q", .kind = "k", .timeout_us = JOBQ_MINUTES(1)};
    struct world *w = user;

    w->test = test;
    w->calls = 0;
    told[told_count++] = test->story.number;
    jobq_test_enqueue(test, &job);
    jobq_test_run(test, JOBQ_DAYS(1));
    return jobq_state_final(state(w, 1));
}

/* Story 1 twice, and then each point meets each event that can happen there once, the simplest
 * event first. */
static void each_point_meets_each_event_once(void **unused)
{
    static const int64_t wanted[] = {
        1, 1, 101, 201, 301, 401,         /* begins, calls, has returned, is written: crashes */
        202, 402, 203, 104, 204, 304,     /* lost answers, a refusal, cancels */
        105, 205, 305, 106, 206, 306,     /* stops, time-outs */
        107, 207, 307, 108, 208, 308, 109, 209, 309};

    (void)unused;
    told_count = 0;
    assert_int_equal(tell(minds, is_listed), 0);
    assert_int_equal(told_count, COUNT(wanted));
    assert_memory_equal(told, wanted, sizeof wanted);
    assert_int_equal(faults.stories, COUNT(wanted));
    assert_string_equal(faults.text, "");

    told_count = 0;
    faults.stories_max = 5;
    assert_int_equal(tell(minds, is_listed), 0);
    assert_int_equal(told_count, 5);

    told_count = 0;
    faults.stories_max = 0;
    faults.events = 1u << JOBQ_TEST_REFUSED | 1u << JOBQ_TEST_LATE;
    assert_int_equal(tell(minds, is_listed), 0);
    assert_int_equal(told_count, 2 + 1 + 3);
}

/* The second fault comes after the first one, at the points that the story with the first has. */
static void pairs_come_after_all_single_faults(void **unused)
{
    (void)unused;
    told_count = 0;
    faults.events = 1u << JOBQ_TEST_CRASH;
    faults.pairs = true;
    assert_int_equal(tell(minds, is_listed), 0);
    assert_int_equal(told[6], 101);      /* again, to see its points */
    assert_int_equal(told[7], 201000101); /* begins, begins again */
    assert_int_equal(told[told_count - 2], 701000301); /* returned and written, twice */
}

static int chances;

static jobq_outcome by_chance(jobq_call *call)
{
    if (chances++ % 2 == 0) jobq_call_stopping(call, NULL);
    return JOBQ_OUTCOME_SUCCESS;
}

static bool runs_more_at_first(jobq_test *test, void *user)
{
    jobq_test_job job = {.queue = "q", .kind = "k"};

    run(test, user, 1);
    if (chances++ == 0) jobq_test_enqueue(test, &job);
    jobq_test_run(test, JOBQ_DAYS(1));
    return true;
}

static void chance_is_noticed(void **unused)
{
    (void)unused;
    chances = 0;
    assert_int_equal(tell(by_chance, paid_once), 1); /* it ends badly by itself */
    assert_true(strstr(faults.text, "nothing goes wrong") != NULL);
    chances = 0;
    assert_int_equal(tell(by_chance, succeeded), 1);
    assert_string_equal(faults.text, "not deterministic: point 2 is another one in a second run\n");
    chances = 1;
    assert_int_equal(tell(by_chance, succeeded), 1);
    assert_non_null(strstr(faults.text, "point 2 is another one"));
    chances = 0;
    assert_int_equal(tell(does_nothing, runs_more_at_first), 1);
    assert_string_equal(faults.text, "not deterministic: point 4 is another one in a second run\n");
}

/* One story, and what it has come to. */
static bool story(int64_t number, jobq_handler handler)
{
    memset(&faults, 0, sizeof faults);
    faults.number = number;
    return tell(handler, succeeded) == 0;
}

static jobq_error seen[8];
static int seen_count;

static jobq_outcome steps_once(jobq_call *call)
{
    jobq_error answers[3]; /* meanwhile another worker may run this */
    int i;

    answers[0] = jobq_call_step_done(call, "a", jobq_str_from("1"));
    answers[1] = jobq_call_stopping(call, NULL) == JOBQ_STOP_LOST ? JOBQ_ERROR_LOST : JOBQ_OK;
    answers[2] = jobq_call_step(call, "a", NULL);
    for (i = 0; i < 3; i++) seen[seen_count++] = answers[i];
    jobq_call_result(call, jobq_str_from(call->job.worker == 1 ? "1" : "2"), false);
    return JOBQ_OUTCOME_SUCCESS;
}

static void a_lost_answer_is_done_and_a_refusal_is_not(void **unused)
{
    (void)unused;
    seen_count = 0;
    assert_true(story(202, steps_once));
    assert_int_equal(seen[0], JOBQ_ERROR_CONNECTION);
    assert_int_equal(seen[2], JOBQ_OK);
    seen_count = 0;
    assert_true(story(203, steps_once));
    assert_int_equal(seen[0], JOBQ_ERROR_RETRYABLE);
    assert_int_equal(seen[2], JOBQ_ERROR_NOT_FOUND);
    seen_count = 0;
    assert_true(story(402, steps_once));
    assert_int_equal(seen[2], JOBQ_ERROR_CONNECTION);
}

/* Its worker stands still before step_done: another worker runs the job, and the first one notices
 * with every call. */
static void a_worker_that_stood_still_is_fenced(void **unused)
{
    (void)unused;
    seen_count = 0;
    assert_true(story(209, steps_once));
    assert_int_equal(seen_count, 6);
    assert_int_equal(seen[0], JOBQ_OK); /* that of the other */
    assert_int_equal(seen[3], JOBQ_ERROR_LOST);
    assert_int_equal(seen[4], JOBQ_ERROR_LOST);
    assert_int_equal(seen[5], JOBQ_ERROR_LOST);
    assert_true(jobq_str_equal(jobq_test_get(world.test, 1)->result, jobq_str_from("2")));
    assert_int_equal(jobq_test_get(world.test, 1)->job.state, JOBQ_STATE_SUCCEEDED);
}

static jobq_outcome fails_if_first(jobq_call *call)
{
    jobq_call_stopping(call, NULL);
    return world.polls++ == 1 ? JOBQ_OUTCOME_DISCARD : JOBQ_OUTCOME_SUCCESS;
}

/* ... and what it returns changes nothing. */
static void a_worker_that_stood_still_ends_nothing(void **unused)
{
    (void)unused;
    assert_true(story(209, fails_if_first));
    assert_int_equal(jobq_test_get(world.test, 1)->job.state, JOBQ_STATE_SUCCEEDED);
    assert_int_equal(world.polls, 2);
}

static char ended[32]; /* a letter for each connection whose process died */
static void *handed[4];

static void notes_death(void *user, int number)
{
    (void)user;
    strcat(ended, number == 0 ? "0" : "1");
}

static jobq_outcome notes_conn(jobq_call *call)
{
    handed[call->job.id] = call->conn;
    jobq_call_stopping(call, NULL);
    return JOBQ_OUTCOME_SUCCESS;
}

static bool two_jobs(jobq_test *test, void *user)
{
    faults.died = notes_death;
    ended[0] = '\0';
    run(test, user, 2);
    return state(user, 1) == JOBQ_STATE_SUCCEEDED && state(user, 2) == JOBQ_STATE_SUCCEEDED;
}

static void whoever_dies_is_named(void **unused)
{
    static const struct { int64_t number; const char *ended; int conn_of_2; } rows[] = {
        {301, "0", 0},         /* job 1 alone */
        {308, "", 1},          /* another thread runs job 2 */
        {501000308, "10", 0},  /* ... and dies: it is the same process */
        {309, "", 1},          /* another worker runs job 1, then job 2 */
        {501000309, "1", 0},   /* ... and dies */
        {1201000309, "0", 1},  /* the first one dies when it goes on */
        {801, "0", 0}};        /* the outcome was written, nobody ran */
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        memset(&faults, 0, sizeof faults);
        faults.number = rows[i].number;
        if (tell(notes_conn, two_jobs) != 0) fail_msg("%d: %s", (int)i, faults.text);
        if (strcmp(ended, rows[i].ended) != 0) fail_msg("row %d: %s", (int)i, ended);
        if (rows[i].conn_of_2) assert_ptr_equal(handed[2], &world.tx[1]);
    }
}

/* The last of several jobs starts first; another thread runs another job, never this one. */
static char order[16];

static jobq_outcome notes_order(jobq_call *call)
{
    char *end = order + strlen(order);

    end[0] = (char)('0' + call->job.id);
    jobq_call_stopping(call, NULL);
    order[strlen(order)] = (char)('a' + call->job.id - 1);
    return JOBQ_OUTCOME_SUCCESS;
}

static const char *order_of(int64_t number)
{
    memset(order, 0, sizeof order);
    memset(&faults, 0, sizeof faults);
    faults.number = number;
    assert_int_equal(tell(notes_order, both_succeeded), 0);
    return order;
}

static void jobs_run_in_other_orders(void **unused)
{
    (void)unused;
    assert_string_equal(order_of(1), "1a2b");
    assert_string_equal(order_of(110), "2b1a");
    assert_string_equal(order_of(308), "12ba");
    assert_string_equal(order_of(309), "11a2ba");
}

/* With jobq_test_fault the same happens before the next handler. */
static void a_single_test_plans_a_fault(void **unused)
{
    static const struct { jobq_test_event event; const char *order; } rows[] = {
        {JOBQ_TEST_ORDER, "2b1a"}, {JOBQ_TEST_MEANWHILE, "2b1a"}, {JOBQ_TEST_ELSEWHERE, "1a2b1a"},
        {JOBQ_TEST_LATE, "1a2b"}, {JOBQ_TEST_CRASH, "1a1a2b"}, {JOBQ_TEST_NOTHING, "1a2b"}};
    jobq_test_job job = {.queue = "q", .kind = "k"};
    jobq_job_handler handler = {.queue = "q", .kind = "k", .run = {notes_order}};
    jobq_test *t;
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        t = jobq_test_init(block, &handler, 1);
        memset(order, 0, sizeof order);
        jobq_test_enqueue(t, &job);
        jobq_test_enqueue(t, &job);
        jobq_test_fault(t, rows[i].event);
        jobq_test_run(t, JOBQ_DAYS(1));
        assert_string_equal(order, rows[i].order);
        assert_int_equal(jobq_test_get(t, 2)->job.state, JOBQ_STATE_SUCCEEDED);
        assert_int_equal(jobq_test_now(t) >= JOBQ_HOURS(1), rows[i].event == JOBQ_TEST_LATE);
        assert_int_equal(jobq_test_point(t, "not in a handler"), JOBQ_OK);
    }
}

/* Messages of two queues: a thread takes the others while one is being handled, which then still
 * sees its own. */
static jobq_result notes_message(jobq_delivery *d, const jobq_message *m)
{
    int64_t seq = m->seq;

    strncat(order, d->queue.ptr, 1);
    jobq_delivery_stopping(d, NULL);
    assert_int_equal(m->seq, seq);
    assert_true(m->payload.ptr == NULL || d->queue.ptr[0] == 'b');
    strncat(order, d->queue.ptr, 1);
    return JOBQ_RESULT_SUCCESS;
}

static bool two_queues(jobq_test *test, void *user)
{
    jobq_test_receiver a = {.queue = "a", .each = notes_message};
    jobq_test_receiver b = {.queue = "b", .each = notes_message};
    jobq_test_message to_a = {.queue = "a"}, to_b = {.queue = "b", .payload = {"1", 1}};
    const jobq_test_sent *sent[2];

    memset(order, 0, sizeof order);
    jobq_test_receive(test, &a);
    jobq_test_receive(test, &b);
    sent[0] = jobq_test_send(test, &to_a);
    sent[1] = jobq_test_send(test, &to_b);
    run(test, user, 0);
    return sent[0]->done && sent[1]->done;
}

static void messages_are_faulted_too(void **unused)
{
    (void)unused;
    assert_int_equal(tell(does_nothing, two_queues), 0);
    faults.number = 208;
    assert_int_equal(tell(does_nothing, two_queues), 0);
    assert_string_equal(order, "abba");
}

/* A handler that bears one fault, but not two. */
static jobq_outcome bears_one(jobq_call *call)
{
    if (serve(call->user, call->job.id)) return JOBQ_OUTCOME_SUCCESS;
    return ((struct world *)call->user)->polls++ == 0 ? JOBQ_OUTCOME_RETRY : JOBQ_OUTCOME_DISCARD;
}

static void two_faults_find_more(void **unused)
{
    (void)unused;
    assert_int_equal(tell(bears_one, succeeded), 0);
    faults.pairs = true;
    assert_int_equal(tell(bears_one, succeeded), 602000202);
    assert_int_equal(faults.happened, 2);
    memset(&faults, 0, sizeof faults);
    faults.pairs = true;
    faults.stories_max = 60;
    assert_int_equal(tell(minds, called_once), 0);
    assert_int_equal(faults.stories, 60);
}

/* The handlers of an example: two stages, retries, a failure. test_pg_handlers has the others. */
static bool example_ends(jobq_test *test, void *user)
{
    jobq_test_job job = {.queue = "q", .kind = "k", .stages = 2, .max_attempts = 5};

    memset(user, 0, sizeof world);
    world.faults = &faults;
    world.test = test;
    jobq_test_enqueue(test, &job);
    jobq_test_run(test, JOBQ_DAYS(1));
    return state(user, 1) == (handlers[0].run[0] == hopeless ? JOBQ_STATE_FAILED
                                                             : JOBQ_STATE_SUCCEEDED) ||
           state(user, 1) == JOBQ_STATE_CANCELLED;
}

static jobq_outcome both_stages(jobq_call *call)
{
    return call->job.stage == 0 ? extract(call) : resize(call);
}

static void the_example_without_a_database_bears_each_fault(void **unused)
{
    (void)unused;
    assert_int_equal(tell(both_stages, example_ends), 0);
    assert_int_equal(tell(flaky, example_ends), 0);
    assert_int_equal(tell(hopeless, example_ends), 0);
}

/* A long story begins shortly before its fault, and is cut at a line's end. */
static jobq_outcome asks_on(jobq_call *call)
{
    bool again = ((struct world *)call->user)->polls++ > 0;
    int i;

    for (i = 0; i < 100; i++) jobq_call_stopping(call, NULL);
    return again ? JOBQ_OUTCOME_DISCARD : JOBQ_OUTCOME_SUCCESS;
}

static void a_long_story_tells_of_its_fault(void **unused)
{
    size_t size;

    (void)unused;
    faults.number = 9001;
    assert_int_equal(tell(asks_on, succeeded), 9001);
    assert_true(strstr(faults.text, "  70  0.0 s") == NULL);
    assert_true(strstr(faults.text, "  71  0.0 s, worker 1, job 1, attempt 1: asks") != NULL);
    assert_true(strstr(faults.text, "  90  0.0 s, worker 1, job 1, attempt 1: asks whether to stop"
                                    "   <-- the worker dies\n") != NULL);
    size = strlen(faults.text);
    assert_true(size > sizeof faults.text - 100 && faults.text[size - 1] == '\n');
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(each_wrong_handler_is_found, setup),
        cmocka_unit_test_setup(no_right_handler_is_blamed, setup),
        cmocka_unit_test_setup(no_right_handler_is_blamed_for_two_faults, setup),
        cmocka_unit_test_setup(a_number_tells_its_story_again, setup),
        cmocka_unit_test_setup(each_point_meets_each_event_once, setup),
        cmocka_unit_test_setup(pairs_come_after_all_single_faults, setup),
        cmocka_unit_test_setup(chance_is_noticed, setup),
        cmocka_unit_test_setup(a_lost_answer_is_done_and_a_refusal_is_not, setup),
        cmocka_unit_test_setup(a_worker_that_stood_still_is_fenced, setup),
        cmocka_unit_test_setup(a_worker_that_stood_still_ends_nothing, setup),
        cmocka_unit_test_setup(whoever_dies_is_named, setup),
        cmocka_unit_test_setup(jobs_run_in_other_orders, setup),
        cmocka_unit_test_setup(a_single_test_plans_a_fault, setup),
        cmocka_unit_test_setup(messages_are_faulted_too, setup),
        cmocka_unit_test_setup(two_faults_find_more, setup),
        cmocka_unit_test_setup(a_long_story_tells_of_its_fault, setup),
        cmocka_unit_test_setup(the_example_without_a_database_bears_each_fault, setup),
    };

    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
