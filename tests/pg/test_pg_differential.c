/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Differential: random operations (calls of a store) on jobq_memory and on Postgres, at the same
 * time by the same clock. After each operation both must have given the same answer and show the
 * same rows; a refused operation must have changed nothing. When they differ, operations are
 * removed as long as a difference remains. The shortest list is printed, as a behaviour for
 * conform.h.
 *
 * The decisions that SQL makes for workers in other languages (sql/optional/protocol.sql) are
 * compared with jobq_job_decide in the same way, and by themselves with arguments at their limits.
 *
 *     make differential ARGS="--seed N --runs N --operations N"
 */
#define TEST_PRIVATE
#include "store_protocol.h"
#include "store_memory.h"

enum { OPERATIONS = 400 };

static uint64_t first_seed = 1;
static int runs = 40, operations = 60;
static bool lines; /* in this run: jobs name lines, and claims walk */

typedef struct script {
    int count;
    operation list[OPERATIONS];
} script;

static jobq_random chance;

static int64_t between(int64_t low, int64_t high)
{
    return jobq_random_between(jobq_random_next(&chance), low, high);
}

static void put(operation *d, char key, int64_t value)
{
    d->arg[key - 'a'] = value;
    d->given |= 1u << (key - 'a');
}

/* What a random operation knows: who was registered, which tokens were used. */
static struct {
    int64_t worker, number, jobs;
    struct {
        int64_t worker, number;
    } claims[OPERATIONS];
    int claim_count;
} known;

static int64_t any_worker(void)
{
    int64_t low = known.worker > 3 ? known.worker - 3 : 1;

    return between(low, known.worker > 0 ? known.worker : 1);
}

static void random_claim(operation *d, const char *verb)
{
    int64_t worker = any_worker(), number = ++known.number;

    strcpy(d->verb, verb);
    if (between(0, 19) == 0 && number > 1) number = between(1, number); /* used before, perhaps */
    put(d, 'w', worker);
    put(d, 'n', number);
    known.claims[known.claim_count].worker = worker;
    known.claims[known.claim_count++].number = number;
    if (strcmp(verb, "recover") == 0) return;
    put(d, 'l', between(1, 4));
    if (lines && between(0, 7) > 0) {
        put(d, 'v', between(1, 4));
        put(d, 'z', between(0, LINES));
    }
    if (between(0, lines ? 9 : 3) == 0) put(d, 'u', between(1, 2));
    if (between(0, 4) == 0) put(d, 'f', between(1, 7) << 1);
    if (between(0, 6) == 0) {
        put(d, 'a', between(0, 60));
        put(d, 'i', between(0, 5));
    }
    if (between(0, 9) == 0) put(d, 'b', between(0, 60));
}

/* About a job that some claim took, mostly under its token. */
static void random_settle(operation *d)
{
    static const char *const verbs[] = {"success", "success", "success", "retry",   "timeout",
                                        "discard", "snooze",  "release", "park",    "cancelled"};
    int i = known.claim_count > 0 ? (int)between(0, known.claim_count - 1) : -1;

    strcpy(d->verb, verbs[between(0, COUNT(verbs) - 1)]);
    if (i >= 0 && between(0, 2) > 0) i = known.claim_count - 1 - (int)between(0, i) / 3;
    put(d, 'j', known.jobs > 0 ? between(1, known.jobs) : 1);
    put(d, 'w', i < 0 ? 1 : known.claims[i].worker);
    put(d, 'n', i < 0 ? 1 : known.claims[i].number);
    if (between(0, 3) == 0) put(d, 'd', between(0, 20));
    if (between(0, 5) == 0) put(d, 'c', 1);
    if (between(0, 1) == 0) put(d, 'x', 1);
}

/* A job that some claim took begins to wait, mostly under its token. */
static void random_await(operation *d)
{
    random_settle(d);
    strcpy(d->verb, "await");
    put(d, 'i', between(1, known.jobs > 0 ? known.jobs : 1));
    put(d, 'o', between(0, 2));
}

static void random_enqueue(operation *d)
{
    strcpy(d->verb, "enqueue");
    known.jobs++;
    put(d, 'q', between(1, 4) == 4 ? 2 : 1);
    put(d, 'k', d->arg['q' - 'a'] == 2 ? 3 : between(1, 2));
    put(d, 'p', between(-1, 2));
    put(d, 's', between(1, 3));
    if (lines && between(0, 5) > 0) {
        put(d, 'z', between(1, LINES));
        put(d, 'p', between(0, 3) / 3);
        put(d, 's', between(0, 3) == 0 ? 2 : 1);
    }
    if (between(0, 3) == 0) put(d, 'd', between(-5, 30));
    if (between(0, 3) == 0) put(d, 'm', between(1, 3));
}

static void random_worker(operation *d)
{
    strcpy(d->verb, "register");
    put(d, 'w', ++known.worker);
    put(d, 'q', between(1, 3) << 1);
    put(d, 'k', between(0, 7) << 1);
}

static void random_operator(operation *d)
{
    static const char *const verbs[] = {"cancel", "cancel", "revive", "unpark", "policy", "sleep",
                                        "prune",  "pause",  "resume", "after",  "after",
                                        "after",  "after"};

    strcpy(d->verb, verbs[between(0, COUNT(verbs) - 1)]);
    put(d, 'j', between(1, known.jobs + 1));
    put(d, 'w', any_worker());
    put(d, 'k', between(strcmp(d->verb, "policy") == 0 ? 0 : 1, 3)); /* 0: of the queue */
    put(d, 'q', between(1, 2));
    put(d, 'a', between(0, 1));
    put(d, 'm', between(0, 3));
    put(d, 'c', between(0, 3));
    put(d, 'x', between(0, 1));
    if (strcmp(d->verb, "after") != 0) return;
    put(d, 'j', between(known.jobs, known.jobs + 2) - 2);
    put(d, 'i', between(1, known.jobs + 1));
    put(d, 'o', between(0, 2));
}

static void random_line(operation *d)
{
    strcpy(d->verb, "line");
    put(d, 'z', between(0, LINES));
    if (between(0, 5) == 0) put(d, 'e', 1);
    if (between(0, 1) == 0) put(d, 'r', between(1, 3));
    if (between(0, 3) == 0) put(d, 's', 1);
    if (between(0, 3) == 0) put(d, 'v', between(1, 3));
    if (between(0, 7) == 0) put(d, 'a', 1);
    if (between(0, 7) == 0) put(d, 'd', between(1, 20));
    if (between(0, 3) > 0) return;
    put(d, 't', between(1, 7));
    put(d, 'g', between(1, 3));
}

static operation random_operation(void)
{
    int64_t dice = between(0, 99);
    operation d;

    memset(&d, 0, sizeof d);
    if (lines && known.worker > 0 && between(0, 14) == 0) {
        random_line(&d);
        return d;
    }
    if (known.worker == 0 || dice < 4) random_worker(&d);
    else if (dice < 20 && known.jobs < SHOWN - 2) random_enqueue(&d);
    else if (dice < 42) random_claim(&d, "claim");
    else if (dice < 45) random_claim(&d, "recover");
    else if (dice < 67) random_settle(&d);
    else if (dice < 70) random_await(&d);
    else if (dice < 76) random_operator(&d);
    else if (dice < 84) {
        strcpy(d.verb, "wait");
        put(&d, 'd', between(0, 6) == 0 ? between(20, 100) : between(1, 9));
    } else if (dice < 90) {
        strcpy(d.verb, "beat");
        put(&d, 'w', any_worker());
    } else if (dice < 99) {
        strcpy(d.verb, "rescue");
        put(&d, 'w', any_worker());
        put(&d, 'b', between(0, 4) == 0);
        put(&d, 'l', between(1, 3));
    } else {
        strcpy(d.verb, "leave");
        put(&d, 'w', any_worker());
    }
    return d;
}

static script random_script(uint64_t seed)
{
    script s;

    chance.state = seed;
    lines = seed % 2 == 0;
    memset(&known, 0, sizeof known);
    for (s.count = 0; s.count < operations && s.count < OPERATIONS; s.count++)
        s.list[s.count] = random_operation();
    return s;
}

/* -- both at once -- */

static stage here, there;
static const store *against = &store_pg;

static bool refused(const char *answer)
{
    static const char *const words[] = {"lost", "dead", "exists", "not_found",
                                        "transition", "alive", "invalid"};
    size_t i;

    for (i = 0; i < COUNT(words); i++) {
        if (strcmp(answer, words[i]) == 0) return true;
    }
    return false;
}

/* Runs a script on both. NULL: no difference; else what it is, and *at which operation. */
static const char *differ(const script *s, int *at)
{
    static char before[TEXT];
    static char text[2 * TEXT + 200];

    stage_open(&here, &store_memory);
    stage_open(&there, against);
    show(&here);
    for (*at = 0; *at < s->count; ++*at) {
        memcpy(before, here.shown, sizeof before);
        stage_do(&here, &s->list[*at]);
        snprintf(text, sizeof text, "%s", here.answer);
        stage_do(&there, &s->list[*at]);
        if (strcmp(text, there.answer) != 0) {
            snprintf(text, sizeof text, "memory answers    %.*s\n%s answers  %.*s\n", TEXT,
                     here.answer, against->name, TEXT, there.answer);
            return text;
        }
        show(&here);
        show(&there);
        if (strcmp(here.shown, there.shown) != 0) {
            snprintf(text, sizeof text, "memory shows\n%.*s\n%s shows\n%.*s\n", TEXT,
                     here.shown, against->name, TEXT, there.shown);
            return text;
        }
        if (refused(text) && strcmp(before, here.shown) != 0) {
            snprintf(text, sizeof text, "a refused operation changed\n%.*s\nto\n%.*s\n", TEXT,
                     before,
                     TEXT, here.shown);
            return text;
        }
    }
    return NULL;
}

/* Takes out parts, halves first, as long as the stores still differ. */
static void shrink(script *s)
{
    int size, from, at;

    for (size = s->count / 2; size > 0; size = size == 1 ? 0 : (size + 1) / 2) {
        for (from = 0; from + size <= s->count;) {
            script less = *s;
            less.count -= size;
            memmove(&less.list[from], &s->list[from + size],
                    (size_t)(s->count - from - size) * sizeof less.list[0]);
            if (differ(&less, &at) != NULL) {
                *s = less;
                if (at + 1 < s->count) s->count = at + 1;
            } else {
                from += size;
            }
        }
    }
}

static void tell(uint64_t seed, script *s)
{
    const char *what;
    char line[200];
    int at = 0, i;

    shrink(s);
    what = differ(s, &at);
    printf("\nThe stores differ. The shortest script found, of seed %llu:\n\n",
           (unsigned long long)seed);
    for (i = 0; i < s->count; i++) {
        operation_format(line, sizeof line, &s->list[i]);
        printf("    %s\n", line);
    }
    printf("\nand there %s\n"
           "Replay: make differential ARGS=\"--seed %llu --runs 1 --operations %d\"\n",
           what == NULL ? "nothing, the second time" : what, (unsigned long long)seed, operations);
    fflush(stdout);
}

static void compare(const store *with, bool informed)
{
    uint64_t seed;
    int at = 0;

    against = with;
    cancels_known = informed;
    for (seed = first_seed; seed < first_seed + (uint64_t)runs; seed++) {
        script s = random_script(seed);
        if (differ(&s, &at) == NULL) continue;
        s.count = at + 1;
        tell(seed, &s);
        fail_msg("seed %llu", (unsigned long long)seed);
    }
    printf("%d runs of %d operations\n", runs, operations);
}

static void random_operations_have_the_same_effect(void **unused)
{
    (void)unused;
    compare(&store_pg, false);
}

static void so_have_they_when_sql_decides(void **unused)
{
    (void)unused;
    compare(&store_protocol, true);
}

/* -- decisions by themselves -- */

/* Mostly small, now and then at the limit. */
static int64_t some(int64_t low, int64_t high)
{
    int64_t dice = between(0, 9);

    if (dice == 0) return low;
    if (dice == 1) return high;
    if (dice < 6 && high - low > 10) return between(low, low + 10);
    return between(low, high);
}

static jobq_policy some_policy(void)
{
    jobq_policy p;

    memset(&p, 0, sizeof p);
    p.max_attempts = (int32_t)some(1, INT32_MAX);
    p.max_crashes = 3;
    p.snoozes_max = (int32_t)(between(0, 1) == 0 ? 0 : some(1, INT32_MAX));
    p.attempts_span_stages = between(0, 1) == 1;
    p.backoff.curve = (jobq_curve)between(0, JOBQ_CURVE_COUNT - 1);
    p.backoff.cap_us = some(1, INT64_MAX);
    p.backoff.base_us = some(1, p.backoff.cap_us);
    p.backoff.floor_us = some(0, p.backoff.cap_us);
    p.backoff.jitter_permille = (int32_t)some(0, 1000);
    return p;
}

static jobq_job some_job(void)
{
    jobq_job job = jobq_job_new(1);

    job.state = JOBQ_STATE_RUNNING;
    job.worker = job.claim = 1;
    job.queue = job.kind = 1;
    job.attempt = (int32_t)(between(0, 2) == 0 ? some(0, INT32_MAX) : between(0, 70));
    job.crash = (int32_t)some(0, INT32_MAX);
    job.snoozes = (int32_t)(between(0, 2) == 0 ? some(0, INT32_MAX) : between(0, 12));
    job.max_attempts = between(0, 1) == 0 ? 0 : (int32_t)some(1, INT32_MAX);
    job.stages = (int16_t)between(1, 16);
    job.stage = (int16_t)between(0, job.stages - 1);
    job.suspect = between(0, 1) == 1;
    job.alone = job.suspect && between(0, 1) == 1;
    job.cancel_requested = between(0, 3) == 0;
    return job;
}

static void decisions_are_the_same(void **unused)
{
    static const jobq_event_kind kinds[] = {JOBQ_EVENT_SUCCESS, JOBQ_EVENT_RETRY, JOBQ_EVENT_RETRY,
                                            JOBQ_EVENT_DISCARD, JOBQ_EVENT_SNOOZE,
                                            JOBQ_EVENT_RELEASE, JOBQ_EVENT_CANCELLED};
    int n, cases = check_slow() ? 2000 : 10000;

    (void)unused;
    store_pg.reset();
    chance.state = first_seed;
    for (n = 0; n < cases; n++) {
        jobq_policy p = some_policy();
        jobq_job job = some_job();
        jobq_decision d;
        jobq_event event;
        PGresult *res;
        char wanted[200], delay[40] = "NULL";
        bool own = between(0, 1) == 1; /* the policy is the kind's own */
        static const char *const reasons[] = {"-", "Max retries", "Max crashes", "Max snoozes"};
        memset(&event, 0, sizeof event);
        event.kind = kinds[between(0, COUNT(kinds) - 1)];
        event.random = jobq_random_next(&chance);
        event.delay_named = between(0, 3) == 0;
        event.delay_us = some(0, INT64_MAX / 4);
        if (event.delay_named) snprintf(delay, sizeof delay, "%lld", (long long)event.delay_us);
        RUN("UPDATE jobq.queue SET max_attempts = %d, snoozes_max = nullif(%d, 0), "
            "attempts_span_stages = %s, backoff_curve = '%s', backoff_base_us = %lld, "
            "backoff_cap_us = %lld, backoff_floor_us = %lld, "
            "backoff_jitter_permille = %d WHERE id = 1; "
            "UPDATE jobq.kind k SET (max_attempts, snoozes_max, backoff_curve, backoff_base_us, "
            "backoff_cap_us, backoff_floor_us, backoff_jitter_permille) = (SELECT q.max_attempts, "
            "coalesce(q.snoozes_max, 0), q.backoff_curve, q.backoff_base_us, "
            "q.backoff_cap_us, q.backoff_floor_us, "
            "q.backoff_jitter_permille FROM jobq.queue q WHERE q.id = 1 AND %s) WHERE id = 1; "
            "UPDATE jobq.queue SET max_attempts = %s, snoozes_max = %s, "
            "backoff_jitter_permille = %s WHERE id = 1",
            (int)p.max_attempts, (int)p.snoozes_max, p.attempts_span_stages ? "true" : "false",
            jobq_enum_name(JOBQ_ENUM_CURVE, p.backoff.curve), (long long)p.backoff.base_us,
            (long long)p.backoff.cap_us, (long long)p.backoff.floor_us,
            (int)p.backoff.jitter_permille, own ? "true" : "false", own ? "7" : "max_attempts",
            own ? "3" : "snoozes_max", own ? "11" : "backoff_jitter_permille");
        if (p.backoff.jitter_permille == 0) p.backoff.jitter_permille = JOBQ_NO_JITTER;
        assert_int_equal(jobq_job_decide(&p, &job, &event, &d), JOBQ_OK);
        snprintf(wanted, sizeof wanted, "%s %d %d %d %d %d %lld %s",
                 jobq_enum_name(JOBQ_ENUM_STATE_LETTER, d.state), d.stage, (int)d.attempt,
                 (int)d.crash, (int)d.snoozes, d.suspect, (long long)d.delay_us,
                 reasons[d.reason]);
        res = sql(db,
                  "SELECT concat_ws(' ', d.state, d.stage, d.attempt, d.crash, d.snoozes, "
                  "d.suspect::int, d.delay_us, coalesce(left(d.reason, 11), '-')), d.reason FROM "
                  "jobq._work_decide(jsonb_populate_record(NULL::jobq.job, '{\"id\": 1, "
                  "\"queue_id\": 1, \"kind_id\": 1, \"attempt\": %d, \"crash\": %d, "
                  "\"snoozes\": %d, \"stage\": %d, \"stages\": %d, \"max_attempts\": %s%d%s, "
                  "\"suspect\": %s, \"alone\": %s, \"cancel_requested_at\": %s}'), '%s', %s, "
                  "%llu::numeric * 0.0000000000000000000542101086242752217003726400434970855"
                  "712890625) d",
                  (int)job.attempt, (int)job.crash, (int)job.snoozes, job.stage, job.stages,
                  job.max_attempts == 0 ? "null, \"pending\": " : "", (int)job.max_attempts, "",
                  job.suspect ? "true" : "false", job.alone ? "true" : "false",
                  job.cancel_requested ? "\"2020-01-01\"" : "null",
                  jobq_enum_name(JOBQ_ENUM_EVENT, (int)event.kind), delay,
                  (unsigned long long)event.random);
        if (strcmp(PQgetvalue(res, 0, 0), wanted) != 0) {
            fail_msg("case %d, %s: jobq.h says %s, SQL says %s", n,
                     jobq_enum_name(JOBQ_ENUM_EVENT, (int)event.kind), wanted,
                     PQgetvalue(res, 0, 0));
        }
        if (d.reason != JOBQ_REASON_NONE) {
            snprintf(wanted, sizeof wanted, "%s (%d) exceeded: ", reasons[d.reason],
                     (int)d.limit);
            assert_string_equal(PQgetvalue(res, 0, 1), wanted);
        }
        PQclear(res);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_operations_have_the_same_effect),
                                       cmocka_unit_test(so_have_they_when_sql_decides),
                                       cmocka_unit_test(decisions_are_the_same)};
    int i;

    if (check_slow()) runs = 8;
    for (i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0) first_seed = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--runs") == 0) runs = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--operations") == 0) operations = atoi(argv[i + 1]);
        else return 2;
    }
    return cmocka_run_group_tests(tests, store_protocol_up, store_pg_down);
}
