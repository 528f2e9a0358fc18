/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * store_python.h -- Postgres as in store_pg.h, but a Python process does what workers, producers
 * and operators do: tests/python/operations.py, with the code of examples/python/worker.py. It gets
 * each operation as a line, and answers with one. Policies, lines and what the store shows are
 * those of store_pg.h.
 *
 * The protocol says less than jobq.h asks. Whether a job is a suspect, and whether a rescued worker
 * is dead now, is read from the tables. A test must not expect what no function tells: until when a
 * queue has nothing, that suspects are ready, which kinds are spared.
 */
#ifndef STORE_PYTHON_INCLUDED
#define STORE_PYTHON_INCLUDED (1)

#include "store_pg.h"

static store store_python;
static FILE *to_python, *from_python;
static pid_t python;
static char python_answer[400];

/* Writes an operation, and reads its answer without "ok" into python_answer. */
static jobq_error ask(int64_t now_us, const char *format, ...)
{
    char sqlstate[6];
    va_list args;

    va_start(args, format);
    fprintf(to_python, "%lld ", (long long)(now_us - EPOCH));
    vfprintf(to_python, format, args);
    fputc('\n', to_python);
    fflush(to_python);
    va_end(args);
    if (fgets(python_answer, sizeof python_answer, from_python) == NULL) {
        fail_msg("no answer from operations.py to: %s", format);
    }
    if (strncmp(python_answer, "ok", 2) == 0) {
        memmove(python_answer, python_answer + 2, strlen(python_answer) - 1);
        return JOBQ_OK;
    }
    snprintf(sqlstate, sizeof sqlstate, "%.5s", python_answer);
    return jobq_pg_classify(sqlstate);
}

/* The numbers of an answer, from p on; returns how many, and moves p behind them. */
static int32_t numbers_of(const char **p, int64_t *numbers, int32_t most)
{
    long long value;
    int32_t count = 0;
    int used;

    for (; sscanf(*p, "%lld%n", &value, &used) == 1; *p += used) {
        assert_true(count < most);
        numbers[count++] = value;
    }
    return count;
}

static void python_reset(void)
{
    pg_reset();
    if (ask(EPOCH, "reset") != JOBQ_OK) fail_msg("%s", python_answer);
}

static int64_t python_enqueue(const jobq_job *like, jobq_str payload, int64_t now_us)
{
    (void)payload;
    if (ask(now_us, "enqueue %d %d %d %d %d %lld %lld %s", (int)like->queue, (int)like->kind,
            (int)like->priority, (int)like->stages, (int)like->max_attempts,
            (long long)like->run_at_us, (long long)like->expires_us,
            like->line != 0 ? pg_line_names[like->line] : "-") != JOBQ_OK) {
        fail_msg("%s", python_answer);
    }
    return atoll(python_answer);
}

static jobq_error python_enroll(int64_t worker, uint64_t queues, uint64_t kinds, int64_t now_us)
{
    char names[40] = "";
    int k;

    (void)queues; /* those of its kinds */
    for (k = 1; k <= 3; k++) {
        size_t at = strlen(names);
        if ((kinds >> k & 1) == 0) continue;
        snprintf(names + at, sizeof names - at, " q%d:k%d", k == 3 ? 2 : 1, k);
    }
    return ask(now_us, "join %lld%s", (long long)worker, names);
}

/* Marks of a job that work_take does not tell. */
static void python_marks(jobq_job *job)
{
    static view v;
    int32_t i;

    pg_look(&v);
    for (i = 0; i < v.jobs; i++) {
        if (v.job[i].job.id != job->id) continue;
        job->suspect = v.job[i].job.suspect;
        job->alone = v.job[i].job.alone;
        job->queue = v.job[i].job.queue;
        job->kind = v.job[i].job.kind;
        job->stage = v.job[i].job.stage;
        job->stages = v.job[i].job.stages;
    }
}

/* Lanes, kinds and marks are work_take's choice. */
static jobq_error python_claim(taking *t, int64_t now_us)
{
    jobq_error code = ask(now_us, "take %lld %lld %d", (long long)t->worker,
                          (long long)t->number, (int)t->limit);
    const char *p = python_answer;
    int64_t pairs[SHOWN * 2];
    int32_t i;

    if (code != JOBQ_OK) return code;
    t->count = numbers_of(&p, pairs, SHOWN * 2) / 2;
    t->due_us = -1;
    for (i = 0; i < t->count; i++) {
        jobq_job *job = &t->jobs[i];
        *job = jobq_job_new(pairs[i * 2]);
        job->state = JOBQ_STATE_RUNNING;
        job->attempt = (int32_t)pairs[i * 2 + 1];
        job->worker = t->worker;
        job->claim = t->number;
        python_marks(job);
    }
    return JOBQ_OK;
}

static bool python_recover(int64_t worker, int64_t number, int32_t limit, int64_t now_us)
{
    (void)limit;
    if (ask(now_us, "recover %lld %lld", (long long)worker, (long long)number) != JOBQ_OK) {
        fail_msg("%s", python_answer);
    }
    return false;
}

/* The decision of jobq.h is not used. */
static jobq_error python_settle(const jobq_job *held, const jobq_event *event,
                                const jobq_decision *decision, jobq_str next, int64_t now_us)
{
    char delay[30] = "-";
    jobq_error code;

    (void)decision;
    if (event->delay_named) snprintf(delay, sizeof delay, "%lld", (long long)event->delay_us);
    code = ask(now_us, "settle %lld %lld %lld %s %s %d", (long long)held->worker,
               (long long)held->claim, (long long)held->id,
               jobq_enum_name(JOBQ_ENUM_EVENT, (int)event->kind), delay, next.ptr != NULL);
    if (code != JOBQ_OK && code != JOBQ_ERROR_LOST) fail_msg("%s", python_answer);
    return code;
}

static uint64_t bits_of(const char **p)
{
    int64_t numbers[64];
    int32_t count = numbers_of(p, numbers, 64), i;
    uint64_t bits = 0;

    for (i = 0; i < count; i++) bits |= (uint64_t)1 << numbers[i];
    return bits;
}

static news python_heartbeat(int64_t worker, const int64_t *settled, int32_t count, int64_t now_us)
{
    const char *p = python_answer + 1;
    news n;

    (void)settled, (void)count;
    memset(&n, 0, sizeof n);
    if (ask(now_us, "beat %lld", (long long)worker) != JOBQ_OK) fail_msg("%s", python_answer);
    n.alive = strncmp(p, "alive", 5) == 0;
    if (!n.alive) return n;
    p += 5;
    n.cancel = bits_of(&p);
    assert_true(strncmp(p, " /", 2) == 0);
    p += 2;
    n.late = bits_of(&p);
    return n;
}

static bool python_rescue(int64_t victim, int64_t beat, int32_t limit, int64_t now_us,
                          int32_t *rescued, bool *more)
{
    static view v;
    int32_t i;

    (void)limit;
    if (ask(now_us, "rescue %lld %lld", (long long)victim, (long long)beat) != JOBQ_OK) {
        fail_msg("%s", python_answer);
    }
    *rescued = atoi(python_answer);
    *more = false;
    pg_look(&v);
    for (i = 0; i < v.workers; i++) {
        if (v.worker[i].id == victim) return v.worker[i].dead;
    }
    return true;
}

static void python_deregister(int64_t worker, int64_t now_us)
{
    if (ask(now_us, "leave %lld", (long long)worker) != JOBQ_OK) fail_msg("%s", python_answer);
}

/* An operator's verb answers with a word: what it did, or where the job is. */
static jobq_error python_verb(const char *verb, const char *done, const char *done_too,
                              int64_t job, int64_t now_us)
{
    if (ask(now_us, "%s %lld", verb, (long long)job) != JOBQ_OK) fail_msg("%s", python_answer);
    python_answer[strcspn(python_answer, "\n")] = '\0';
    if (strcmp(python_answer, " none") == 0) return JOBQ_ERROR_NOT_FOUND;
    return strcmp(python_answer, done) == 0 || strcmp(python_answer, done_too) == 0
               ? JOBQ_OK
               : JOBQ_ERROR_TRANSITION;
}

static jobq_error python_cancel(int64_t job, int64_t now_us)
{
    return python_verb("cancel", " cancelled", " requested", job, now_us);
}

static jobq_error python_revive(int64_t job, int64_t now_us)
{
    return python_verb("revive", " revived", " revived", job, now_us);
}

static void python_start(void)
{
    const char *program = getenv("JOBQ_TEST_OPERATIONS");
    int there[2], back[2];

    if (program == NULL) program = "tests/python/operations.py";
    assert_int_equal(pipe(there) | pipe(back), 0);
    python = fork();
    assert_true(python >= 0);
    if (python == 0) {
        dup2(there[0], 0);
        dup2(back[1], 1);
        close(there[1]);
        close(back[0]);
        execlp("/usr/bin/python3", "python3", program, schema, (char *)NULL);
        _exit(127);
    }
    close(there[0]);
    close(back[1]);
    to_python = fdopen(there[1], "w");
    from_python = fdopen(back[0], "r");
}

/* Chance is a half, as in store.h, and a worker's id is the one that the test names. */
static inline int store_python_up(void **state)
{
    int failed = store_pg_up(state);

    if (failed != 0) return failed;
    RUN("CREATE FUNCTION %s_clock.random() RETURNS float8 LANGUAGE sql STABLE "
        "AS 'SELECT 0.5::float8'",
        schema);
    RUN("CREATE FUNCTION %s_clock.gen_random_uuid() RETURNS uuid LANGUAGE sql STABLE AS "
        "'SELECT lpad(to_hex(current_setting(''jobq_test.worker'')::int), 32, ''0'')::uuid'",
        schema);
    signal(SIGPIPE, SIG_IGN);
    python_start();
    cancels_known = true;
    store_python = store_pg;
    store_python.name = "worker.py";
    store_python.reset = python_reset;
    store_python.enqueue = python_enqueue;
    store_python.enroll = python_enroll;
    store_python.claim = python_claim;
    store_python.recover = python_recover;
    store_python.settle = python_settle;
    store_python.heartbeat = python_heartbeat;
    store_python.rescue = python_rescue;
    store_python.deregister = python_deregister;
    store_python.cancel = python_cancel;
    store_python.revive = python_revive;
    return 0;
}

static inline int store_python_down(void **state)
{
    fclose(to_python);
    fclose(from_python);
    waitpid(python, NULL, 0);
    return store_pg_down(state);
}

#endif /* STORE_PYTHON_INCLUDED */
