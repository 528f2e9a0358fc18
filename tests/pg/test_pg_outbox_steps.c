/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Messages and their handlers: both strategies, results, crashes, limits, dead letters, and many
 * processes at once. Rows X19, X21 to X24, X28; SEED_FACTS 2.10 "Transactional", "Leased", "Crash",
 * "Adaptive", "Partial failure", "Dead letters", "Lifecycle", with W-O1 to W-O4, W-O10 to W-O14,
 * W-O24 to W-O27 repaired. Where a repair changes a case of the original, the case says so.
 */
#define TEST_PRIVATE
#include "outbox.h"
#include "step.h"

/* What a handler does: script[i] for the message with number i + 1, or of the whole batch: s
 * success, r retry, j reject, e a failing statement then success, f one then reject, c commit, b
 * commit and begin, x exit, o success once and retry when called again. A digit before the letter
 * of a batch: how many are done. */
typedef struct script {
    const char *letters;
    PGconn *conn;     /* a transactional handler's: it writes the number to table wrote */
    int calls;
    int32_t attempts; /* of the last message seen */
    int32_t seen;     /* messages of the last call of a batch */
    char log[600];    /* of single messages: each call as seq/attempts */
} script;

static jobq_result letter(script *s, jobq_delivery *d, char c, int64_t seq)
{
    s->conn = jobq_pg_delivery_conn(d);
    if (s->conn != NULL && c != 'c') PQclear(sql(s->conn, "INSERT INTO jobq.wrote VALUES (%lld)",
                                                 (long long)seq));
    if (c == 'e' || c == 'f') PQclear(PQexec(s->conn, "SELECT 1 / 0"));
    if (c == 'c') PQclear(PQexec(s->conn, "COMMIT"));
    if (c == 'b') PQclear(PQexec(s->conn, "COMMIT; BEGIN"));
    if (c == 'x') _exit(7);
    if (strchr("rjf", c) != NULL) jobq_delivery_error(d, jobq_str_from(c == 'r' ? "later" : "bad"));
    return c == 'r' ? JOBQ_RESULT_RETRY
                    : c == 'j' || c == 'f' ? JOBQ_RESULT_REJECT : JOBQ_RESULT_SUCCESS;
}

static jobq_result each(jobq_delivery *d, const jobq_message *m)
{
    script *s = d->user;

    size_t at = strlen(s->log);
    char c = s->letters[m->seq - 1], call[12];

    snprintf(call, sizeof call, "%d/", (int)m->seq);
    if (c == 'o') c = strstr(s->log, call) != NULL ? 'r' : 's';
    snprintf(s->log + at, sizeof s->log - at, "%s%s%d", at > 0 ? " " : "", call, (int)m->attempts);
    s->calls++;
    s->attempts = m->attempts;
    return letter(s, d, c, m->seq);
}

static jobq_result all(jobq_delivery *d)
{
    script *s = d->user;
    const char *c = s->letters;
    int i;

    s->calls++;
    s->seen = d->count;
    s->attempts = d->messages[0].attempts;
    if (*c >= '0' && *c <= '9') jobq_delivery_done(d, *c++ - '0');
    for (i = 1; i < d->count; i++) letter(s, d, 's', d->messages[i].seq);
    return letter(s, d, *c, d->messages[0].seq);
}

static step_desc_of step_desc(bool transactional, bool batch, script *s)
{
    step_desc_of d;
    static int64_t claim;

    memset(&d, 0, sizeof d);
    d.read = reader(1, ++claim, 0);
    d.queue = "o";
    d.transactional = transactional;
    if (batch) d.all = all;
    else d.each = each;
    d.user = s;
    d.tuning.batch = 10;
    return d;
}

static step_done step_with(const step_desc_of *d)
{
    step_done step;
    jobq_pg_error error;
    jobq_error code = step_run(pg, d, &step, &error);

    if (code != JOBQ_OK) fail_msg("%s", error.message);
    return step;
}

/* Nobody waits for a retry here. */
static void now_due(void)
{
    RUN("UPDATE jobq.partition SET run_at = NULL WHERE run_at IS NOT NULL");
}

static int up(void **state)
{
    pg_empty(state);
    RUN("CREATE TABLE IF NOT EXISTS jobq.wrote (seq bigint PRIMARY KEY)");
    RUN("TRUNCATE jobq.wrote");
    return 0;
}

/* ---- one step, as data ----------------------------------------------------------------------- */

/* name, transactional, batch handler, messages, script; then acked, attempts of the next message,
 * error of the partition, dead letters as seq:attempts:error, numbers that the handler's
 * transaction left in wrote. */
static const struct {
    const char *name;
    bool tx, batch;
    int count;
    const char *script;
    long acked, attempts;
    const char *error, *dead, *wrote;
} cases[] = {
    {"leased: 2 done", false, false, 2, "ss", 2, 0, "", "", ""},
    {"leased: retry of 1", false, false, 1, "r", 0, 1, "later", "", ""},
    {"leased: reject of 1; the failing attempt counts (W-O24)", false, false, 1, "j", 1, 0, "",
     "1:1:bad", ""},
    {"leased: reject at 3 of 5", false, false, 5, "ssjss", 5, 0, "", "3:1:bad", ""},
    {"leased: reject at 1 of 3", false, false, 3, "jss", 3, 0, "", "1:1:bad", ""},
    {"leased: retry at 2 of 3; its error stays (W-O12)", false, false, 3, "srs", 1, 1, "later", "",
     ""},
    {"leased: reject then retry", false, false, 4, "jsrs", 2, 1, "later", "1:1:bad", ""},
    {"leased batch: all done without a word (W-O10)", false, true, 3, "s", 3, 0, "", "", ""},
    {"leased batch: done 2 of 3", false, true, 3, "2s", 2, 0, "", "", ""},
    {"leased batch: reject", false, true, 3, "j", 3, 0, "", "1:1:bad 2:1:bad 3:1:bad", ""},
    {"leased batch: reject after 1", false, true, 3, "1j", 3, 0, "", "2:1:bad 3:1:bad", ""},
    {"leased batch: retry after 1", false, true, 3, "1r", 1, 1, "later", "", ""},
    {"leased batch: retry", false, true, 3, "r", 0, 1, "later", "", ""},
    {"tx: 3 done", true, false, 3, "sss", 3, 0, "", "", "1 2 3"},
    {"tx: retry of 1; its writes are undone (W-O1)", true, false, 1, "r", 0, 1, "later", "", ""},
    {"tx: reject of 1", true, false, 1, "j", 1, 0, "", "1:1:bad", ""},
    {"tx: reject at 3 of 5; only that one (W-O4)", true, false, 5, "ssjss", 5, 0, "", "3:1:bad",
     "1 2 4 5"},
    {"tx: retry at 2 of 3; what the first wrote stays", true, false, 3, "srs", 1, 1, "later", "",
     "1"},
    {"tx: reject at 1 of 3", true, false, 3, "jss", 3, 0, "", "1:1:bad", "2 3"},
    {"tx: a failing statement (W-O2)", true, false, 3, "ses", 1, 1,
     "the handler left its transaction aborted: ERROR:  division by zero", "", "1"},
    {"tx: a failing statement, then reject", true, false, 1, "f", 1, 0, "", "1:1:bad", ""},
    {"tx: the same among others", true, false, 4, "sfjs", 4, 0, "", "2:1:bad 3:1:bad", "1 4"},
    {"tx batch: a failing statement, then reject", true, true, 2, "f", 2, 0, "",
     "1:1:bad 2:1:bad", ""},
    {"tx: the handler commits", true, false, 1, "c", 0, 1, "the handler ended the transaction", "",
     ""},
    {"tx: the handler commits and begins", true, false, 1, "b", 0, 1,
     "the handler ended the transaction", "", "1"},
    {"tx batch: done", true, true, 3, "s", 3, 0, "", "", "1 2 3"},
    {"tx batch: retry", true, true, 3, "r", 0, 1, "later", "", ""},
    {"tx batch: retry after 1 undoes all", true, true, 3, "1r", 0, 1, "later", "", ""},
    {"tx batch: reject", true, true, 3, "j", 3, 0, "", "1:1:bad 2:1:bad 3:1:bad", ""},
    {"tx batch: a failing statement", true, true, 3, "e", 0, 1,
     "the handler left its transaction aborted: ERROR:  division by zero", "", ""},
    {"tx batch: the handler commits", true, true, 2, "c", 0, 1,
     "the handler ended the transaction", "", "2"},
    {"tx batch: the handler commits and begins", true, true, 2, "b", 0, 1,
     "the handler ended the transaction", "", "1 2"},
};

static void outcomes_of_one_step(void **unused)
{
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        script s = {cases[i].script, NULL, 0, 0, 0, ""};
        step_desc_of d;
        char *dead, *wrote, *error;
        up(NULL);
        open_box(1);
        put(NULL, 0, cases[i].count);
        d = step_desc(cases[i].tx, cases[i].batch, &s);
        step_with(&d);
        dead = text_of("SELECT coalesce(string_agg(seq || ':' || attempts || ':' || error, ' ' "
                       "ORDER BY seq), '') FROM jobq.dead_letter");
        wrote = text_of("SELECT coalesce(string_agg(seq::text, ' ' ORDER BY seq), '') "
                        "FROM jobq.wrote");
        error = text_of("SELECT coalesce(error, '') FROM jobq.partition");
        if (BOX("acked") != cases[i].acked || BOX("attempts") != cases[i].attempts ||
            strcmp(error, cases[i].error) != 0 || strcmp(dead, cases[i].dead) != 0 ||
            strcmp(wrote, cases[i].wrote) != 0) {
            fail_msg("%s: acked %ld, attempts %ld, error '%s', dead '%s', wrote '%s'",
                     cases[i].name, BOX("acked"), BOX("attempts"), error, dead, wrote);
        }
        assert_int_equal(number("SELECT count(*) FROM jobq.partition WHERE worker IS NOT NULL"), 0);
        free(dead);
        free(wrote);
        free(error);
    }
}

/* A message's own answer makes it come again. In a transaction those before it are called a second
 * time, because their writes had to be undone with its own; they see one attempt more. */
static void who_is_called_how_often(void **unused)
{
    static const struct {
        bool tx;
        int count;
        const char *script, *calls;
        long acked;
        const char *tried;
    } rows[] = {
        {false, 5, "ssrss", "1/0 2/0 3/0", 2, "{3}"},
        {false, 5, "ssjss", "1/0 2/0 3/0 4/0 5/0", 5, "{}"},
        {true, 5, "sssss", "1/0 2/0 3/0 4/0 5/0", 5, "{}"},
        {true, 1, "r", "1/0", 0, "{1}"},
        {true, 5, "ssrss", "1/0 2/0 3/0 1/1 2/1", 2, "{3}"},
        {true, 5, "ssjss", "1/0 2/0 3/0 1/1 2/1 4/0 5/0", 5, "{}"},
        {true, 5, "jssjs", "1/0 2/0 3/0 4/0 5/0", 5, "{}"},
        {true, 5, "sejsr", "1/0 2/0 1/1", 1, "{2}"},
        {true, 5, "sjjsr", "1/0 2/0 1/1 3/0 4/0 5/0", 4, "{5}"},
        {true, 5, "osrss", "1/0 2/0 3/0 1/1", 0, "{3}"}, /* all three have been called */
        {true, 5, "sosjs", "1/0 2/0 3/0 4/0 1/1 2/1", 0, "{4}"},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        script s = {rows[i].script, NULL, 0, 0, 0, ""};
        step_desc_of d;
        char *tried;
        up(NULL);
        open_box(1);
        put(NULL, 0, rows[i].count);
        d = step_desc(rows[i].tx, false, &s);
        step_with(&d);
        tried = text_of("SELECT coalesce(tried, '{}')::text FROM jobq.partition");
        if (strcmp(s.log, rows[i].calls) != 0 || BOX("acked") != rows[i].acked ||
            strcmp(tried, rows[i].tried) != 0) {
            fail_msg("%s: called %s, acked %ld, tried %s", rows[i].script, s.log, BOX("acked"),
                     tried);
        }
        free(tried);
    }
}

/* ---- more steps ------------------------------------------------------------------------------ */

/* W-O13, W-O14: attempts are the message's own; at the limit it leaves, and its neighbours do
 * not. */
static void a_message_that_never_succeeds_becomes_a_dead_letter(void **unused)
{
    int tx;

    (void)unused;
    for (tx = 0; tx < 2; tx++) {
        script s = {"srssss", NULL, 0, 0, 0, ""};
        int steps = 0;
        up(NULL);
        open_box(1);
        RUN("UPDATE jobq.queue SET max_attempts = 3");
        put(NULL, 0, 6);
        while (BOX("lag") > 0) {
            step_desc_of d = step_desc(tx, false, &s);
            step_with(&d);
            now_due();
            assert_true(++steps < 20);
        }
        assert_text("SELECT seq || ':' || attempts || ':' || error FROM jobq.dead_letter",
                    "2:3:Max retries (3) exceeded: later");
        assert_text("SELECT string_agg(status || ' ' || type || ' ' || convert_from(bytes, "
                    "'UTF8'), ',') FROM jobq.dead_letter", "pending text/plain hello");
        if (tx) assert_int_equal(number("SELECT count(*) FROM jobq.wrote"), 5);
    }
}

/* "Adaptive": batches of one; and the mode outlives its process (W-O39). */
static void the_mode_stands_in_the_row(void **unused)
{
    script s = {"rrrrrrrrrrrr", NULL, 0, 0, 0, ""};
    step_desc_of d;
    step_done step;

    (void)unused;
    open_box(1);
    put(NULL, 0, 12);
    d = step_desc(false, false, &s);
    d.tuning.retry.base_us = d.tuning.retry.cap_us = 60 * SECOND; /* lasts for the next step */
    step = step_with(&d);
    assert_int_equal(step.count, 10);
    assert_int_equal(step.plan.directive.kind, JOBQ_DIRECTIVE_SLEEP);
    d = step_desc(false, false, &s);
    step = step_with(&d);
    assert_int_equal(step.answer, 'w'); /* the backoff holds for every worker */
    assert_true(step.wait_us > 0 && step.wait_us <= 75 * SECOND);
    now_due();
    d = step_desc(false, false, &s);
    step = step_with(&d);
    assert_int_equal(step.plan.cursor.mode.effective, 1);
    now_due();
    s.letters = "ssssssssssss";
    d = step_desc(false, false, &s);
    step = step_with(&d);
    assert_int_equal(step.count, 1);
    assert_int_equal(s.attempts, 2);
    d = step_desc(false, false, &s);
    assert_int_equal(step_with(&d).count, 2);
    d = step_desc(false, false, &s);
    assert_int_equal(step_with(&d).count, 4);
    assert_int_equal(s.attempts, 0);
    d = step_desc(false, false, &s);
    assert_int_equal(step_with(&d).count, 5);
    assert_int_equal(BOX("acked"), 12);
}

/* What a person sees of a partition that fares ill, and what C is told of it. */
static void a_failing_partition_shows_in_the_figures(void **unused)
{
    script s = {"rrrr", NULL, 0, 0, 0, ""};
    jobq_pg_rows stats;
    step_desc_of d;
    verb_reading r;
    static const char view[] =
        "SELECT format('%s %s %s %s %s %s %s', mode, coalesce(batch, 0), failures, "
        "coalesce(holder, '-'), run_at > now(), coalesce(error, '-'), attempts) FROM jobq.outbox";

    (void)unused;
    open_box(1);
    put(NULL, 0, 4);
    assert_text(view, "normal 0 0 -  - 0");
    d = step_desc(false, false, &s);
    d.tuning.retry.base_us = 60 * SECOND;
    d.tuning.retry.cap_us = 60 * SECOND;
    step_with(&d);
    now_due();
    d.read = reader(1, 1000, 0);
    step_with(&d);
    assert_text(view, "degraded 1 2 - t later 2");
    stats = rows_of_view(JOBQ_PG_VIEW_OUTBOX);
    assert_int_equal(stats.count, 1);
    assert_int_equal(PARTITION(stats, 0).effective, 1);
    assert_int_equal(PARTITION(stats, 0).failures, 2);
    assert_int_equal(PARTITION(stats, 0).attempts, 2);
    assert_int_equal(PARTITION(stats, 0).worker, 0);
    jobq_pg_rows_clear(&stats);
    now_due();
    d.read = reader(0xbeef, 1, 0);
    assert_int_equal(read_by(&d.read, &r), 'h');
    assert_int_equal(r.count, 1);
    verb_reading_clear(&r);
    assert_text(view, "degraded 1 2 48879  later 3");
    stats = rows_of_view(JOBQ_PG_VIEW_OUTBOX);
    assert_int_equal(PARTITION(stats, 0).worker, 0xbeef);
    jobq_pg_rows_clear(&stats);
}

/* "Crash": the trace is there for both strategies (W-O3); the handler sees 0, 1, 2. */
static void a_killed_handler_leaves_its_trace(void **unused)
{
    int tx, crash, status;

    (void)unused;
    for (tx = 0; tx < 2; tx++) {
        script s = {"x", NULL, 0, 0, 0, ""};
        step_desc_of d;
        up(NULL);
        open_box(1);
        put(NULL, 0, 1);
        for (crash = 1; crash <= 2; crash++) {
            verb_reading look;
            pid_t child;
            d = step_desc(tx, false, &s);
            d.read.lease_us = 100000;
            if (crash == 2) {
                d.read.worker = 2;
                d.read.watched_worker = 1;
                d.read.watched_claim = number("SELECT claim FROM jobq.partition");
                d.read.watched_beat = number("SELECT beat FROM jobq.partition");
            }
            child = fork();
            if (child == 0) {
                pg = handle();
                step_with(&d);
                _exit(1);
            }
            assert_int_equal(waitpid(child, &status, 0), child);
            assert_int_equal(WEXITSTATUS(status), 7);
            assert_int_equal(BOX("attempts"), crash);
            assert_int_equal(BOX("acked"), 0);
            assert_int_equal(number("SELECT count(*) FROM jobq.wrote"), 0);
            assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.partition "
                                       "WHERE lease_until < now()"));
            d.read.worker = 9;
            assert_int_equal(read_by(&d.read, &look), 'o');
            verb_reading_clear(&look);
        }
        s.letters = "s";
        d = step_desc(tx, false, &s);
        d.read.watched_worker = 2;
        d.read.watched_claim = number("SELECT claim FROM jobq.partition");
        d.read.watched_beat = number("SELECT beat FROM jobq.partition");
        step_with(&d);
        assert_int_equal(s.attempts, 2);
        assert_int_equal(BOX("acked"), 1);
        assert_int_equal(BOX("attempts"), 0);
    }
}

/* A message that kills each of its workers is given up without being delivered once more. */
static void a_killer_is_given_up(void **unused)
{
    script s = {"xs", NULL, 0, 0, 0, ""};
    int round, status;

    (void)unused;
    open_box(1);
    RUN("UPDATE jobq.queue SET max_attempts = 3");
    put(NULL, 0, 2);
    for (round = 0; round < 10 && BOX("acked") == 0; round++) {
        step_desc_of d = step_desc(false, false, &s);
        pid_t child;
        d.read.worker = 100 + round; /* a process that starts again has a new id */
        d.read.lease_us = 20000;
        d.read.watched_worker = number("SELECT coalesce(worker, 0) FROM jobq.partition");
        d.read.watched_claim = number("SELECT coalesce(claim, 0) FROM jobq.partition");
        d.read.watched_beat = number("SELECT beat FROM jobq.partition");
        child = fork();
        if (child == 0) {
            pg = handle();
            step_with(&d);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(becomes(20, 0, "SELECT count(*) FROM jobq.partition "
                                   "WHERE lease_until >= now()"));
    }
    assert_int_equal(round, 4);
    assert_text("SELECT seq || ':' || attempts || ':' || error FROM jobq.dead_letter",
                "1:3:Max retries (3) exceeded: ");
    assert_int_equal(BOX("acked"), 1);
}

/* The lease is stolen while the handler runs: neither the cursor, nor a dead letter, nor its writes
 * (X23, S35, promise 3). */
static void steal(void)
{
    verb_read_desc d = reader(666, 1, 0);
    verb_reading r;

    d.watched_worker = number("SELECT worker FROM jobq.partition");
    d.watched_claim = number("SELECT claim FROM jobq.partition");
    d.watched_beat = number("SELECT beat FROM jobq.partition");
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.partition WHERE lease_until < now()"));
    assert_int_equal(read_by(&d, &r), 'h');
    verb_reading_clear(&r);
}

static jobq_result robbed(jobq_delivery *d, const jobq_message *m)
{
    script *s = d->user;

    if (s->calls++ == 0) steal();
    return letter(s, d, s->letters[m->seq - 1], m->seq);
}

static void a_stolen_lease_writes_nothing(void **unused)
{
    int tx;

    (void)unused;
    for (tx = 0; tx < 2; tx++) {
        script s = {"sjs", NULL, 0, 0, 0, ""};
        step_desc_of d;
        step_done step;
        jobq_pg_error error;
        up(NULL);
        open_box(1);
        put(NULL, 0, 3);
        d = step_desc(tx, false, &s);
        d.each = robbed;
        d.read.lease_us = 50000;
        d.tuning.headroom_us = 1000;
        assert_int_equal(step_run(pg, &d, &step, &error), JOBQ_ERROR_LOST);
        assert_int_equal(step.answer, 'l');
        assert_int_equal(BOX("acked"), 0);
        assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 0);
        assert_int_equal(number("SELECT count(*) FROM jobq.wrote"), 0);
        assert_int_equal(number("SELECT worker FROM jobq.partition"), 666);
    }
}

/* X20: while one is in its handler, another is sent away at once. */
static jobq_result busy_look(jobq_delivery *d, const jobq_message *m)
{
    verb_read_desc other = reader(2, 1, 0);
    verb_reading r;

    (void)d;
    (void)m;
    assert_int_equal(read_by(&other, &r), 'o');
    verb_reading_clear(&r);
    return JOBQ_RESULT_SUCCESS;
}

static void a_second_processor_is_sent_away(void **unused)
{
    script s = {"s", NULL, 0, 0, 0, ""};
    int tx;

    (void)unused;
    for (tx = 0; tx < 2; tx++) {
        step_desc_of d;
        up(NULL);
        open_box(1);
        put(NULL, 0, 1);
        d = step_desc(tx, false, &s);
        d.each = busy_look;
        assert_int_equal(step_with(&d).plan.done, 1);
    }
}

/* X22: the deadline counts from before the read; a handler that is asked to stop leaves the rest,
 * whose attempts are given back, and which comes at once (W-O8). */
static jobq_result slow(jobq_delivery *d, const jobq_message *m)
{
    script *s = d->user;

    (void)m;
    s->calls++;
    while (jobq_delivery_stopping(d, NULL) == JOBQ_STOP_NONE) nap_us(1000);
    return JOBQ_RESULT_SUCCESS;
}

static void the_budget_ends_a_delivery(void **unused)
{
    script s = {"", NULL, 0, 0, 0, ""};
    step_desc_of d;
    step_done step;
    int64_t start = mono_us();

    (void)unused;
    open_box(1);
    put(NULL, 0, 5);
    d = step_desc(false, false, &s);
    d.each = slow;
    d.read.lease_us = 10 * SECOND;
    d.tuning.headroom_us = 10 * SECOND - 200000;
    step = step_with(&d);
    assert_true(mono_us() - start < 9 * SECOND);
    assert_int_equal(s.calls, 1);
    assert_int_equal(step.count, 5);
    assert_int_equal(step.plan.done, 1);
    assert_int_equal(step.plan.directive.kind, JOBQ_DIRECTIVE_PROCEED);
    assert_int_equal(BOX("attempts"), 0);
}

/* Many at once behind savepoints: the batch first, then at most 32 after the one that failed. */
static void many_savepoints_are_bounded(void **unused)
{
    script s = {NULL, NULL, 0, 0, 0, ""};
    char letters[61];
    step_desc_of d;

    (void)unused;
    open_box(1);
    put(NULL, 0, 60);
    memset(letters, 's', 60);
    letters[10] = 'j';
    letters[60] = '\0';
    s.letters = letters;
    d = step_desc(true, false, &s);
    d.read.most = 60;
    d.tuning.batch = 60;
    assert_int_equal(step_with(&d).plan.done, 43);
    assert_int_equal(BOX("attempts"), 0);
    d = step_desc(true, false, &s);
    d.read.most = 60;
    d.tuning.batch = 60;
    assert_int_equal(step_with(&d).plan.done, 17);
    assert_int_equal(s.calls, 11 + 10 + 32 + 17);
    assert_int_equal(number("SELECT count(*) FROM jobq.wrote"), 59);
    assert_text("SELECT string_agg(seq::text, ' ') FROM jobq.dead_letter", "11");
}

/* ---- dead letters: X28 ----------------------------------------------------------------------- */

static void kill_messages(int partition, int count)
{
    script s = {"jjjjjjjjjj", NULL, 0, 0, 0, ""};
    step_desc_of d = step_desc(false, false, &s);

    put(NULL, partition, count);
    d.read.partition = partition_id(box, partition);
    step_with(&d);
}

/* How many are of a scope, such as "queue => 'o'". */
static long count_of(const char *scope)
{
    return number("SELECT jobq.dead_letter_count(%s)", scope);
}

static void dead_letters_are_listed(void **unused)
{
    jobq_pg_rows letters;
    jobq_pg_error error;
    PGresult *res;

    (void)unused;
    open_box(4);
    kill_messages(1, 3);
    kill_messages(2, 2);
    assert_int_equal(count_of(""), 5);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter_list()"), 5);
    letters = rows_of_view(JOBQ_PG_VIEW_DEAD_LETTERS);
    assert_int_equal(letters.count, 5);
    assert_int_equal(LETTER(letters, 0).partition, 2); /* the newest first */
    assert_int_equal(LETTER(letters, 4).seq, 1);
    assert_int_equal(LETTER(letters, 4).attempts, 1);
    assert_null(LETTER(letters, 4).payload.ptr);
    assert_true(jobq_str_equal(LETTER(letters, 4).bytes, jobq_str_from("hello")));
    assert_true(jobq_str_equal(LETTER(letters, 4).type, jobq_str_from("text/plain")));
    assert_true(jobq_str_equal(LETTER(letters, 4).status, jobq_str_from("pending")));
    assert_true(jobq_str_equal(LETTER(letters, 4).error, jobq_str_from("bad")));
    assert_true(LETTER(letters, 4).failed_at_us >= LETTER(letters, 4).created_at_us);
    assert_int_equal(LETTER(letters, 4).deadline_us, 0);
    jobq_pg_rows_clear(&letters);
    assert_int_equal(count_of("partition => 1"), 3);
    assert_int_equal(count_of("partition => 2"), 2);
    assert_int_equal(count_of("partition => 2, type => 'none'"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter_list('o', at_most => 2)"), 2);
    assert_int_equal(number("SELECT partition_id & 32767 FROM"
                            " jobq.dead_letter_list(at_most => 1)"), 2); /* the newest */
    RUN("SELECT jobq.outbox_register('p', 1)");
    assert_int_equal(count_of("queue => 'p'"), 0);
    {
        char *text = for_schema("SELECT jobq.dead_letter_list(status => 'gone')", schema);
        res = PQexec(db, text);
        free(text);
    }
    assert_int_equal(jobq_pg__result_error(&error, db, res), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "status");
    PQclear(res);
}

/* In C and in SQL. */
static void a_list_and_a_replay_have_100_by_default(void **unused)
{
    jobq_pg_rows letters;
    jobq_pg_error error;

    (void)unused;
    open_box(1);
    RUN("INSERT INTO jobq.dead_letter "
        "(queue_id, partition_id, seq, created_at, failed_at, attempts) "
        "SELECT p.queue_id, p.id, n, now(), now(), 1 FROM jobq.partition p, "
        "generate_series(1, 250) AS n");
    assert_int_equal(count_of(""), 250);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter_list()"), 100);
    assert_int_equal(jobq_pg_dead_letter_replay(pg, NULL, 5, 60 * SECOND, NULL, &letters, &error),
                     JOBQ_OK);
    assert_int_equal(letters.count, 100);
    jobq_pg_rows_clear(&letters);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter_replay(6, 60000000)"), 100);
}

/* Every verb on every state: what it may change it changes, the rest stays (2.9). */
static void every_verb_on_every_state(void **unused)
{
    static const char *const states[] = {"pending", "reprocessing", "reprocessing, expired",
                                         "reprocessing, of another", "resolved", "discarded"};
    static const char *const verbs[] = {"replay", "resolve", "reject", "discard", "cleanup"};
    static const char *const wanted[6][5] = {
        {"reprocessing", "pending", "pending", "discarded", "pending"},
        {"reprocessing", "resolved", "pending", "reprocessing", "reprocessing"},
        {"reprocessing", "resolved", "pending", "reprocessing", "reprocessing"},
        {"reprocessing", "reprocessing", "reprocessing", "reprocessing", "reprocessing"},
        {"resolved", "resolved", "resolved", "resolved", ""},
        {"discarded", "discarded", "discarded", "discarded", ""}};
    size_t state, verb;

    (void)unused;
    for (state = 0; state < 6; state++) {
        for (verb = 0; verb < 5; verb++) {
            jobq_pg_rows letters;
            jobq_pg_error error;
            int64_t count = 0;
            int64_t id;
            char *after;
            bool moves;
            up(NULL);
            open_box(1);
            kill_messages(0, 1);
            id = number("SELECT id FROM jobq.dead_letter");
            RUN("UPDATE jobq.dead_letter SET status = split_part('%s', ',', 1), token = CASE WHEN "
                "%d IN (1, 2) THEN 5 WHEN %d = 3 THEN 6 END, taken_at = CASE WHEN %d BETWEEN 1 AND "
                "3 THEN now() - interval '2 s' END, deadline = CASE WHEN %d = 2 THEN "
                "now() - interval '1 s' WHEN %d IN (1, 3) THEN now() + interval '1 h' END, "
                "completed_at = CASE WHEN %d > 3 THEN now() END", states[state], (int)state,
                (int)state, (int)state, (int)state, (int)state, (int)state);
            if (verb == 0) {
                assert_int_equal(jobq_pg_dead_letter_replay(pg, NULL, 5, SECOND / 2, NULL, &letters,
                                                            &error), JOBQ_OK);
                count = (int64_t)letters.count;
                moves = state == 0 || state == 2;
                jobq_pg_rows_clear(&letters);
            } else if (verb == 1) {
                assert_int_equal(jobq_pg_dead_letter_end(pg, NULL, 5, &id, 1, JOBQ_RESULT_SUCCESS,
                                                         NULL, &count, &error), JOBQ_OK);
                moves = state == 1 || state == 2;
            } else if (verb == 2) {
                assert_int_equal(jobq_pg_dead_letter_end(pg, NULL, 5, &id, 1, JOBQ_RESULT_RETRY,
                                                         "again", &count, &error), JOBQ_OK);
                moves = state == 1 || state == 2;
            } else if (verb == 3) {
                assert_int_equal(jobq_pg_dead_letter_discard(pg, NULL, NULL, &count, &error),
                                 JOBQ_OK);
                moves = state == 0;
            } else {
                count = number("SELECT jobq.dead_letter_cleanup()");
                moves = state > 3;
            }
            after = text_of("SELECT coalesce(max(status), '') FROM jobq.dead_letter");
            if (strcmp(after, wanted[state][verb]) != 0 || count != moves) {
                fail_msg("%s of a %s one: %s, count %d", verbs[verb], states[state], after,
                         (int)count);
            }
            free(after);
        }
    }
}

/* A replay past its deadline is taken by another, which counts (W-O27); the first one's end then
 * changes nothing. */
static void a_late_replay_is_fenced(void **unused)
{
    jobq_pg_rows first, second;
    jobq_pg_scope scope;
    jobq_pg_error error;
    int64_t count = 9;
    int64_t ids[2];

    (void)unused;
    open_box(1);
    kill_messages(0, 2);
    memset(&scope, 0, sizeof scope);
    assert_int_equal(jobq_pg_dead_letter_replay(pg, NULL, 11, 1000, &scope, &first, &error),
                     JOBQ_OK);
    assert_int_equal(first.count, 2);
    assert_true(jobq_str_equal(LETTER(first, 0).status, jobq_str_from("reprocessing")));
    assert_true(LETTER(first, 0).deadline_us > 0);
    ids[0] = LETTER(first, 0).id;
    ids[1] = LETTER(first, 1).id;
    assert_true(becomes(20, 2, "SELECT count(*) FROM jobq.dead_letter WHERE deadline < now()"));
    scope.limit = 1;
    assert_int_equal(jobq_pg_dead_letter_replay(pg, NULL, 12, SECOND * 60, &scope, &second, &error),
                     JOBQ_OK);
    assert_int_equal(second.count, 1);
    assert_int_equal(LETTER(second, 0).attempts, 2);
    assert_int_equal(jobq_pg_dead_letter_end(pg, NULL, 11, ids, 2, JOBQ_RESULT_SUCCESS, NULL,
                                             &count, &error), JOBQ_OK);
    assert_int_equal(count, 1);
    assert_int_equal(jobq_pg_dead_letter_end(pg, NULL, 12, ids, 2, JOBQ_RESULT_RETRY, "again",
                                             &count, &error), JOBQ_OK);
    assert_int_equal(count, 1);
    assert_text("SELECT string_agg(status || ':' || attempts || ':' || error, ' ' ORDER BY status) "
                "FROM jobq.dead_letter", "pending:3:again resolved:1:bad");
    jobq_pg_rows_clear(&first);
    jobq_pg_rows_clear(&second);
    assert_int_equal(jobq_pg_dead_letter_replay(pg, NULL, 0, SECOND, NULL, &second, &error),
                     JOBQ_ERROR_INVALID);
}

/* The ids of these numbers of a partition from which nothing was read yet. */
#define BURY "SELECT jobq._outbox_bury(p, s, ARRAY(SELECT (SELECT array_agg(m.id ORDER BY m.id) " \
    "FROM jobq.message m WHERE m.partition_id = p)[n] FROM unnest(s) n), '%s', '%s') " \
    "FROM (SELECT %ld::bigint AS p, '%s'::bigint[] AS s) AS of"

/* Whatever comes twice; and one that is nowhere is a fault of the store. */
static void a_message_is_buried_once(void **unused)
{
    static const char *const wrong[] = {"{9}", "{1,9}", "{2,9}"};
    long p;
    size_t i;

    (void)unused;
    open_box(2);
    put(NULL, 0, 2);
    put(NULL, 1, 1);
    p = (long)partition_id(box, 0);
    RUN(BURY, "{x}", "{1}", p, "{1}");
    RUN(BURY, "{y}", "{2}", p, "{1}");
    RUN(BURY, "{z}", "{3}", p + 1, "{1}"); /* another message */
    assert_text("SELECT string_agg(format('%s:%s:%s', seq, error, attempts), ' ' ORDER BY "
                "partition_id) FROM jobq.dead_letter", "1:x:1 1:z:3");
    for (i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[400], *query;
        PGresult *res;
        snprintf(text, sizeof text, BURY, "{a,b}", "{1,1}", p, wrong[i]);
        query = for_schema(text, schema);
        res = PQexec(db, query);
        free(query);
        assert_non_null(PQresultErrorField(res, PG_DIAG_SQLSTATE));
        assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "XX001");
        PQclear(res);
    }
    RUN(BURY, "{b,a}", "{5,4}", p, "{2,1}"); /* one of them is there */
    assert_text("SELECT string_agg(format('%s:%s:%s', seq, error, attempts), ' ' ORDER BY "
                "partition_id, seq) FROM jobq.dead_letter", "1:x:1 2:b:5 1:z:3");
}

/* Takes that many under a token on conn; their numbers, rising, as text. The caller frees it. */
static char *replayed(PGconn *conn, int token, int limit)
{
    PGresult *res = sql(conn, "SELECT coalesce(string_agg(seq::text, ' ' ORDER BY seq), '') FROM "
                        "jobq.dead_letter_replay(%d, 60000000, at_most => %d)", token, limit);
    char *text = text_copy(PQgetvalue(res, 0, 0));

    PQclear(res);
    return text;
}

static void assert_replayed(PGconn *conn, int token, int limit, const char *wanted)
{
    char *text = replayed(conn, token, limit);

    assert_string_equal(text, wanted);
    free(text);
}

static void a_replay_takes_pending_ones_before_expired_ones(void **unused)
{
    (void)unused;
    open_box(1);
    kill_messages(0, 8);
    assert_replayed(db, 5, 4, "1 2 3 4");
    RUN("UPDATE jobq.dead_letter SET deadline = now() - seq * interval '1 minute' "
        "WHERE token = 5 AND seq <> 3"); /* 4 expired first; 3 has not */
    assert_replayed(db, 6, 3, "5 6 7");
    assert_replayed(db, 7, 2, "4 8");
    assert_replayed(db, 8, 1, "2");
    assert_replayed(db, 9, 9, "1");
    assert_replayed(db, 10, 9, "");
    assert_text("SELECT string_agg(token || ':' || attempts, ' ' ORDER BY seq) "
                "FROM jobq.dead_letter", "9:2 8:2 5:1 7:2 6:1 6:1 6:1 7:1");
}

/* Who waits for the other fails the test, and the next one is not kept waiting by what is left. */
static void two_replays_share_nothing_and_do_not_wait(void **unused)
{
    PGconn *other = PQconnectdb(server()), *own = PQconnectdb(server());
    char *first, *second, *third;

    (void)unused;
    open_box(1);
    kill_messages(0, 6);
    PQclear(sql(own, "SET lock_timeout = '2s'"));
    PQclear(sql(own, "SET idle_in_transaction_session_timeout = '10s'"));
    PQclear(sql(other, "SET idle_in_transaction_session_timeout = '10s'"));
    PQclear(sql(other, "BEGIN"));
    PQclear(sql(other, "SELECT FROM jobq.dead_letter WHERE seq = 1 FOR UPDATE"));
    PQclear(sql(own, "BEGIN"));
    first = replayed(own, 5, 2);
    second = replayed(other, 6, 2);
    third = replayed(own, 7, 9);
    PQclear(sql(own, "COMMIT"));
    PQclear(sql(other, "COMMIT"));
    PQfinish(own);
    PQfinish(other);
    assert_string_equal(first, "2 3");
    assert_string_equal(second, "1 4");
    assert_string_equal(third, "5 6");
    free(first);
    free(second);
    free(third);
    assert_text("SELECT string_agg(token::text, ' ' ORDER BY seq) FROM jobq.dead_letter",
                "6 5 5 6 7 7");
}

static jobq_pg_scope scope_of(const char *type, int partition, int limit)
{
    jobq_pg_scope scope;

    memset(&scope, 0, sizeof scope);
    scope.queue = "o";
    scope.type = type;
    scope.one_partition = partition >= 0;
    scope.partition = partition >= 0 ? partition : 0;
    scope.limit = limit;
    return scope;
}

static int64_t discarded(const char *type, int partition, int limit)
{
    jobq_pg_scope scope = scope_of(type, partition, limit);
    jobq_pg_error error;
    int64_t count = -1;

    assert_int_equal(jobq_pg_dead_letter_discard(pg, NULL, &scope, &count, &error), JOBQ_OK);
    return count;
}

/* As many as are counted; and no other one. */
static long listed(const char *scope, const char *condition)
{
    long count = number("SELECT count(*) FROM jobq.dead_letter_list(%s)", scope);

    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter_list(%s) WHERE %s", scope,
                            condition), count);
    if (strstr(scope, "at_most") == NULL) assert_int_equal(count_of(scope), count);
    return count;
}

/* Partition 0: 5 letters, 2 of type a; partition 1: 4, 1 of type a. */
static void scopes_choose_by_type_partition_status_and_limit(void **unused)
{
    jobq_pg_scope scope = scope_of("a", 0, 1);
    jobq_pg_rows letters;
    jobq_pg_error error;

    (void)unused;
    open_box(2);
    kill_messages(0, 5);
    kill_messages(1, 4);
    RUN("UPDATE jobq.dead_letter SET type = 'a' WHERE seq = 1 OR seq = 5");
    assert_int_equal(jobq_pg_dead_letter_replay(pg, NULL, 5, SECOND * 60, &scope, &letters, &error),
                     JOBQ_OK);
    assert_int_equal(letters.count, 1);
    assert_int_equal(LETTER(letters, 0).seq, 1);
    assert_int_equal(LETTER(letters, 0).partition, 0);
    jobq_pg_rows_clear(&letters);
    assert_int_equal(discarded("a", 0, 0), 1); /* the other is in the replay's hands */
    assert_int_equal(discarded("text/plain", 1, 2), 2);
    assert_int_equal(discarded("none", -1, 0), 0);
    assert_int_equal(listed("'o'", "status = 'pending'"), 5);
    assert_int_equal(listed("'o', status => 'discarded'", "status = 'discarded'"), 3);
    assert_int_equal(listed("'o', status => NULL", "true"), 9);
    assert_int_equal(listed("'o', type => 'a', status => NULL", "type = 'a'"), 3);
    assert_int_equal(listed("'o', 0, 'a', NULL", "type = 'a' AND partition_id & 32767 = 0"), 2);
    assert_int_equal(listed("'o', 1, 'text/plain', 'discarded', at_most => 1",
                            "type = 'text/plain' AND partition_id & 32767 = 1"), 1);
    assert_int_equal(number("SELECT jobq.dead_letter_cleanup('o', 0, 'text/plain')"), 0);
    assert_int_equal(number("SELECT jobq.dead_letter_cleanup('o', 1, 'text/plain', 1)"), 1);
    assert_int_equal(number("SELECT jobq.dead_letter_cleanup('o', at_most => 1)"), 1);
    assert_int_equal(number("SELECT jobq.dead_letter_cleanup('o')"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter WHERE status = 'pending'"), 5);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 6);
}

/* W-O35; a dead letter is there once, and the default limit is 100. */
static void dead_letters_do_not_stay_for_ever(void **unused)
{
    jobq_pg_rows letters;
    jobq_pg_error error;

    (void)unused;
    open_box(1);
    RUN("INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at, "
        "attempts) SELECT %d, %d, i, now(), now() - i * interval '1 hour', 1 "
        "FROM generate_series(1, 1000) i",
        (int)box, (int)partition_id(box, 0));
    assert_int_equal(jobq_pg_dead_letter_replay(pg, NULL, 3, SECOND, NULL, &letters, &error),
                     JOBQ_OK);
    assert_int_equal(letters.count, 100);
    jobq_pg_rows_clear(&letters);
    assert_int_equal(number("SELECT jobq.prune(100)"), 100);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 900);
    RUN("UPDATE jobq.dead_letter SET status = 'reprocessing', token = 5, taken_at = now(), "
        "deadline = now() + interval '1 hour' WHERE seq BETWEEN 880 AND 889");
    RUN("SELECT jobq.prune(10000)");
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 729); /* 10 are replayed */
}

/* What is typed at psql's prompt: look, take three for a minute under token 7, send one again and
 * resolve it, put one back, let the third run out of time, give up the rest, clean up. */
static void an_operators_session(void **unused)
{
    static const char again[] =
        "SELECT count(jobq.outbox_enqueue('o', payload, partition => 1, type => type, bytes => "
        "bytes, headers => headers, key => 'dead letter ' || id)) FROM jobq.dead_letter "
        "WHERE token = 7 AND seq = 1";

    (void)unused;
    open_box(4);
    kill_messages(1, 5);
    assert_text("SELECT string_agg(format('%s %s %s %s %s', queue, partition, seq, status, error), "
                "', ' ORDER BY seq) FROM jobq.dead_letters WHERE seq <= 2",
                "o 1 1 pending bad, o 1 2 pending bad");
    assert_int_equal(number("SELECT jobq.dead_letter_count('o', partition => 1)"), 5);
    assert_text("SELECT string_agg(seq::text, ' ' ORDER BY seq) FROM "
                "jobq.dead_letter_replay(7, 60000000, 'o', at_most => 3)", "1 2 3");
    RUN("BEGIN");
    assert_int_equal(number(again), 1);
    assert_int_equal(number(again), 1); /* the key knows it */
    assert_int_equal(number("SELECT jobq.dead_letter_resolve(7, ARRAY(SELECT id FROM "
                            "jobq.dead_letter WHERE token = 7 AND seq = 1))"), 1);
    RUN("COMMIT");
    assert_int_equal(number("SELECT lag FROM jobq.outbox WHERE queue = 'o' AND partition = 1"), 1);
    assert_int_equal(number("SELECT jobq.dead_letter_reject(7, ARRAY(SELECT id FROM "
                            "jobq.dead_letter WHERE seq = 2), 'no such address')"), 1);
    assert_text("SELECT format('%s %s %s', status, attempts, error) FROM jobq.dead_letters "
                "WHERE seq = 2", "pending 2 no such address");
    RUN("UPDATE jobq.dead_letter SET deadline = deadline - interval '1 hour'"); /* time goes by */
    assert_text("SELECT string_agg(seq::text, ' ' ORDER BY seq) FROM "
                "jobq.dead_letter_replay(8, 60000000, 'o')", "2 3 4 5");
    assert_int_equal(number("SELECT jobq.dead_letter_resolve(7, ARRAY(SELECT id FROM "
                            "jobq.dead_letter WHERE seq = 3))"), 0);
    assert_int_equal(number("SELECT jobq.dead_letter_resolve(8, ARRAY(SELECT id FROM "
                            "jobq.dead_letter WHERE seq = 3))"), 1);
    assert_int_equal(number("SELECT jobq.dead_letter_discard('o')"), 0); /* 8 works on them */
    assert_int_equal(number("SELECT jobq.dead_letter_reject(8, ARRAY(SELECT id FROM "
                            "jobq.dead_letter WHERE token = 8), 'not worth it')"), 3);
    assert_int_equal(number("SELECT jobq.dead_letter_discard('o', 1)"), 3);
    assert_text("SELECT string_agg(status, ' ' ORDER BY seq) FROM jobq.dead_letters",
                "resolved discarded resolved discarded discarded");
    assert_int_equal(number("SELECT jobq.dead_letter_cleanup('o')"), 5);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letters"), 0);
}

/* ---- many processes: X24 --------------------------------------------------------------------- */

#define PRODUCERS 16

/* Writes its share in transactions of random size; some are rolled back. Payload: producer:number,
 * one run of numbers for each partition. */
static void produce(int me, int partitions, int share)
{
    PGconn *conn = PQconnectdb(server());
    int next[64] = {0}, left = share, n;
    unsigned seed = (unsigned)me * 7919u + 1;
    jobq_pg_error error;

    while (left > 0) {
        jobq_pg_message m[32];
        char text[32][24];
        int count = 1 + (int)((seed = seed * 1103515245u + 12345u) >> 16) % 32, keep[64], i;
        bool undo = (seed >> 8) % 8 == 0;
        memcpy(keep, next, sizeof keep);
        if (count > left) count = left;
        for (i = 0; i < count; i++) {
            n = (me + (left - i)) % partitions;
            m[i] = plain_message(n);
            snprintf(text[i], sizeof text[i], "%d:%d", me, ++next[n]);
            m[i].payload = jobq_str_from(text[i]);
        }
        PQclear(sql(conn, "BEGIN"));
        if (jobq_pg_outbox_enqueue_many(pg, conn, m, (size_t)count, NULL, &error) != JOBQ_OK) {
            fprintf(stderr, "%s\n", error.message);
            _exit(1);
        }
        PQclear(sql(conn, undo ? "ROLLBACK" : "COMMIT"));
        if (undo) memcpy(next, keep, sizeof next);
        else left -= count;
    }
    _exit(0);
}

/* Appends "partition seq payload" to its file for every message, unbuffered: what a killed consumer
 * wrote counts as delivered. Under a lease only: who stood still until another had the partition
 * would write what is far behind. */
static jobq_result to_file(jobq_delivery *d)
{
    char lines[100 * 48];
    size_t at = 0;
    int i;

    for (i = 0; i < d->count; i++) {
        at += (size_t)snprintf(lines + at, sizeof lines - at, "\n%d %lld %.*s;", (int)d->partition,
                               (long long)d->messages[i].seq, (int)d->messages[i].payload.len,
                               d->messages[i].payload.ptr);
    }
    if (jobq_delivery_stopping(d, NULL) != JOBQ_STOP_NONE) {
        jobq_delivery_done(d, 0);
        return JOBQ_RESULT_SUCCESS;
    }
    if (write(*(int *)d->user, lines, at) != (ssize_t)at) return JOBQ_RESULT_RETRY;
    nap_us(3000); /* a good moment to be killed */
    return JOBQ_RESULT_SUCCESS;
}

/* Works every partition it can get, watching the other's holds by its own clock. */
static void consume(int partitions, int fd)
{
    struct { int64_t worker, claim, beat, since; } seen[64];
    int64_t me =
        jobq_worker_id_from((uint64_t)mono_us() * 2654435761u + (unsigned)getpid());
    int64_t claim = 0;
    jobq_pg_error error;

    memset(seen, 0, sizeof seen);
    for (;;) {
        bool idle = true;
        int p;
        for (p = 0; p < partitions; p++) {
            step_desc_of d;
            step_done step;
            bool stood = seen[p].worker != 0 && mono_us() - seen[p].since > 200000;
            memset(&d, 0, sizeof d);
            d.read = reader(me, ++claim, p);
            d.read.lease_us = 200000;
            d.read.most = 100;
            if (stood) {
                d.read.watched_worker = seen[p].worker;
                d.read.watched_claim = seen[p].claim;
                d.read.watched_beat = seen[p].beat;
            }
            d.all = to_file;
            d.user = &fd;
            if (step_run(pg, &d, &step, &error) != JOBQ_OK) continue;
            idle = idle && step.count == 0;
            if (step.answer != 'o') seen[p].worker = 0;
            else if (step.worker != seen[p].worker || step.claim != seen[p].claim ||
                     step.beat != seen[p].beat) {
                seen[p].worker = step.worker;
                seen[p].claim = step.claim;
                seen[p].beat = step.beat;
                seen[p].since = mono_us();
            }
        }
        if (idle) nap_us(2000);
    }
}

static pid_t start_consumer(int partitions, int fd)
{
    pid_t child = fork();

    if (child == 0) {
        pg = handle();
        consume(partitions, fd);
    }
    return child;
}

/* The next line that was written to its end: a process may be killed in the middle of a write. */
static bool next_line(FILE *in, int *partition, long *seq, int *me, int *n)
{
    char line[100], end;

    while (fgets(line, sizeof line, in) != NULL) {
        if (sscanf(line, "%d %ld %d:%d%c", partition, seq, me, n, &end) == 5 && end == ';')
            return true;
    }
    return false;
}

/* Reads what was delivered. Per partition: a number is the next one, or one already seen (a batch
 * delivered again); and the numbers of each producer rise. */
static void check_deliveries(const char *path, int partitions, int total)
{
    long highest[64] = {0};
    static int last[64][PRODUCERS];
    FILE *in = fopen(path, "r");
    int partition, me, n;
    long seq, again = 0, fresh = 0;

    memset(last, 0, sizeof last);
    assert_non_null(in);
    while (next_line(in, &partition, &seq, &me, &n)) {
        if (seq <= highest[partition]) {
            again++;
            assert_true(highest[partition] - seq < 200); /* of the batch that was cut short */
            continue;
        }
        if (seq != highest[partition] + 1) {
            fail_msg("partition %d: %ld after %ld", partition, seq, highest[partition]);
        }
        assert_int_equal(n, last[partition][me] + 1);
        last[partition][me] = n;
        highest[partition] = seq;
        fresh++;
    }
    fclose(in);
    assert_int_equal(fresh, total);
    print_message("%ld messages delivered again\n", again);
    for (n = 0; n < partitions; n++) {
        assert_int_equal(highest[n],
                         number("SELECT acked FROM jobq.outbox WHERE partition = %d", n));
    }
}

static void start_producers(pid_t *producers, int from, int to, int partitions, int share)
{
    int i;

    for (i = from; i < to; i++) {
        producers[i] = fork();
        if (producers[i] != 0) continue;
        pg = handle();
        produce(i, partitions, share);
    }
}

/* Kills one consumer after the other, the first at an eighth, and then one in pause_us that saw
 * some progress: new processes may be slow to start. Half of the producers begin after the first
 * kill, so that the end cannot come before it, however quick the consumers. */
static int kill_consumers(pid_t *consumers, pid_t *producers, int partitions, int share, int fd,
                          int64_t pause_us)
{
    int64_t next = 0, until = mono_us() + 900 * SECOND;
    long total = (long)PRODUCERS * share, enough = total / 8, done;
    int kills = 0, c;

    while ((done = number("SELECT coalesce(sum(acked), 0) FROM jobq.partition")) < total) {
        assert_true(mono_us() < until);
        nap_us(20000);
        if (done < enough || mono_us() < next) continue;
        next = mono_us() + pause_us;
        enough = done + (getenv("JOBQ_TEST_LONG") != NULL ? 1 : total / 50);
        c = kills++ % 2;
        kill(consumers[c], SIGKILL);
        waitpid(consumers[c], NULL, 0);
        consumers[c] = start_consumer(partitions, fd);
        if (kills > 1) continue;
        start_producers(producers, PRODUCERS / 2, PRODUCERS, partitions, share);
    }
    return kills;
}

static void consumers_are_killed(int partitions, int share, int64_t pause_us)
{
    char path[] = "/tmp/jobq_outbox_XXXXXX";
    int fd = mkstemp(path), c, status, kills, total = PRODUCERS * share;
    pid_t producers[PRODUCERS], consumers[2];

    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_APPEND), 0);
    open_box(partitions);
    start_producers(producers, 0, PRODUCERS / 2, partitions, share);
    for (c = 0; c < 2; c++) consumers[c] = start_consumer(partitions, fd);
    kills = kill_consumers(consumers, producers, partitions, share, fd, pause_us);
    for (c = 0; c < PRODUCERS; c++) {
        assert_int_equal(waitpid(producers[c], &status, 0), producers[c]);
        assert_int_equal(status, 0);
    }
    for (c = 0; c < 2; c++) {
        kill(consumers[c], SIGKILL);
        waitpid(consumers[c], &status, 0);
    }
    print_message("%d killed, ", kills);
    assert_true(kills > 0);
    check_deliveries(path, partitions, total);
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter"), 0);
    close(fd);
    unlink(path);
}

/* JOBQ_TEST_LONG: the whole of X24, some minutes. Else as many kills in less time. */
static void order_holds(int partitions)
{
    if (getenv("JOBQ_TEST_LONG") != NULL) consumers_are_killed(partitions, 100000, SECOND);
    else if (getenv("JOBQ_TEST_SLOW") != NULL) consumers_are_killed(partitions, 500, SECOND);
    else consumers_are_killed(partitions, 3000, SECOND / 4);
}

static void order_holds_with_4_partitions(void **unused)
{
    (void)unused;
    order_holds(4);
}

static void order_holds_with_64_partitions(void **unused)
{
    (void)unused;
    order_holds(64);
}

#define TEST(f) cmocka_unit_test_setup(f, up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(outcomes_of_one_step),
        TEST(who_is_called_how_often),
        TEST(a_message_that_never_succeeds_becomes_a_dead_letter),
        TEST(the_mode_stands_in_the_row),
        TEST(a_failing_partition_shows_in_the_figures),
        TEST(a_killed_handler_leaves_its_trace),
        TEST(a_killer_is_given_up),
        TEST(a_stolen_lease_writes_nothing),
        TEST(a_second_processor_is_sent_away),
        TEST(the_budget_ends_a_delivery),
        TEST(many_savepoints_are_bounded),
        TEST(dead_letters_are_listed),
        TEST(a_list_and_a_replay_have_100_by_default),
        TEST(every_verb_on_every_state),
        TEST(a_late_replay_is_fenced),
        TEST(a_message_is_buried_once),
        TEST(a_replay_takes_pending_ones_before_expired_ones),
        TEST(two_replays_share_nothing_and_do_not_wait),
        TEST(scopes_choose_by_type_partition_status_and_limit),
        TEST(dead_letters_do_not_stay_for_ever),
        TEST(an_operators_session),
        TEST(order_holds_with_4_partitions),
        TEST(order_holds_with_64_partitions),
    };

    return cmocka_run_group_tests(tests, pg_up, pg_down);
}
