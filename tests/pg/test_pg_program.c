/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_program.c -- the program jobq (examples/jobq/): each verb as a child process, what it
 * prints, and its exit code.
 */
#include "pg.h"
#include "options.h"

#include <errno.h>
#include <sys/stat.h>

#define BINARY ".build/examples/jobq/jobq"

static char folder[64];            /* of what the program reads and writes */
static char out[1 << 21], err[1 << 16]; /* what the latest run printed */
static char command[8192];

/* Reads a file of the folder. */
static void slurp(const char *name, char *text, size_t size)
{
    char path[96];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

static void spill(const char *name, const char *text)
{
    char path[96];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fwrite(text, 1, strlen(text), file) == strlen(text));
    fclose(file);
}

static const char *program(void)
{
    return getenv("JOBQ_PROGRAM") != NULL ? getenv("JOBQ_PROGRAM") : BINARY;
}

/* Runs a line of the shell, in which $jobq is the program on this test's schema. */
static int shell(const char *format, ...)
{
    int used, status;
    va_list args;

    used = snprintf(command, sizeof command,
                    "schema=%s dir=%s program=%s jobq=\"timeout 60 $program --schema $schema\"; "
                    "{\n", schema, folder, program());
    va_start(args, format);
    used += vsnprintf(command + used, sizeof command - (size_t)used, format, args);
    va_end(args);
    snprintf(command + used, sizeof command - (size_t)used, "\n} >%s/out 2>%s/err", folder,
             folder);
    status = system(command);
    slurp("out", out, sizeof out);
    slurp("err", err, sizeof err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The program must end with this code. */
#define JOBQ(code, ...)                                                                            \
    do {                                                                                           \
        int code_ = shell("$jobq " __VA_ARGS__);                                                   \
        if (code_ != (code)) fail_msg("exit code %d of %s\n%s%s", code_, command, out, err);       \
    } while (0)

static void expect(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("no \"%s\" in: %s\n%s%s", part, command, out, err);
}

static void expect_not(const char *text, const char *part)
{
    if (strstr(text, part) != NULL) fail_msg("\"%s\" in: %s\n%s%s", part, command, out, err);
}

/* Each line that was printed is JSON. Returns how many there are. */
static int json_lines(void)
{
    const char *line = out, *end;
    int count = 0;

    for (; (end = strchr(line, '\n')) != NULL; line = end + 1, count++) {
        jobq_str text = {line, (size_t)(end - line)};

        if (jobq_json_check(text, NULL, NULL) != JOBQ_OK) fail_msg("no JSON: %s", out);
    }
    assert_string_equal(line, ""); /* nothing is left after the last line */
    return count;
}

/* The state of a job. */
static void is(int64_t id, const char *state)
{
    char query[96];

    snprintf(query, sizeof query, "SELECT jobq.standing(%lld)", (long long)id);
    expect_text(state, query);
}

static int64_t enqueue_of(const char *queue, const char *kind, const char *payload)
{
    jobq_pg_job job = plain_job();

    job.queue = queue;
    job.kind = kind;
    job.payload = jobq_str_from(payload);
    return enqueue_with(&job);
}

static int64_t fail_one(const char *queue)
{
    int64_t id = enqueue_of(queue, "k", "1");

    RUN("SELECT jobq._finish(ARRAY[%lld], 'f', '{\"at\": \"now\", \"stage\": 0, \"attempt\": 1, "
        "\"error\": \"no\\u001b[31m host\\u009b\"}')", (long long)id);
    is(id, "failed");
    return id;
}

/* ---- the schema, jobs ------------------------------------------------------------------------ */

static void a_schema_is_installed_and_checked(void **unused)
{
    (void)unused;
    JOBQ(1, "--schema ${schema}_other migrate --check");
    expect(err, "is at version 0");
    JOBQ(0, "--schema ${schema}_other migrate --print");
    expect(out, "SET LOCAL citus.enable_ddl_propagation = off;");
    expect(out, "_other\".job (");
    JOBQ(0, "--schema ${schema}_other --json migrate");
    assert_int_equal(json_lines(), 1);
    assert_string_equal(err, "");
    JOBQ(0, "--schema ${schema}_other migrate --check");
    JOBQ(0, "--schema ${schema}_other migrate --print");
    assert_string_equal(out, "");
    RUN("UPDATE %s_other.meta SET version = 11", schema);
    JOBQ(1, "--schema ${schema}_other migrate --print");
    assert_string_equal(out, "");
    expect(err, "examples/carry.sql");
    RUN("DROP SCHEMA %s_other CASCADE", schema);
}

static void jobs_are_enqueued(void **unused)
{
    (void)unused;
    JOBQ(0, "--json enqueue mail welcome '{\"to\": \"ann\"}' --priority 3 --key k1 --line t1"
            " --delay '1 hour' --stages 2 --max-attempts 7 --timeout 2min --headers '{\"a\": 1}'");
    assert_int_equal(json_lines(), 1);
    expect(out, "\"existed\":false");
    expect_text("mail welcome {\"to\": \"ann\"} 3 k1 t1 2 7 120000000 {\"a\": 1} t",
                "SELECT concat_ws(' ', queue, kind, payload, priority, key, line, stages,"
                " max_attempts, timeout_us, headers, run_at > now() + interval '59 minutes')"
                " FROM jobq.jobs");
    JOBQ(0, "--json enqueue mail welcome --key=k1");
    expect(out, "\"existed\":true");
    spill("payload", "{\"x\": \"it's \\\"so\\\"\"}\n");
    JOBQ(0, "enqueue mail stdin - --run-at 'tomorrow' <$dir/payload");
    expect_text("it's \"so\"", "SELECT payload ->> 'x' FROM jobq.jobs WHERE kind = 'stdin'");
    JOBQ(2, "enqueue mail welcome '{broken'");
    expect(err, "jobq: ");
    JOBQ(2, "enqueue mail");
    JOBQ(2, "enqueue mail welcome 1 2");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 2);
}

static void jobs_are_listed(void **unused)
{
    int64_t first = enqueue_of("a", "k", "1"), second = enqueue_of("b", "l", "2");

    (void)unused;
    JOBQ(0, "enqueue b m 3 --key k1 --line t1");
    RUN("UPDATE jobq.job SET enqueued_at = now() - interval '2 days' WHERE id = %lld",
        (long long)first);
    JOBQ(0, "list");
    expect(out, "(3 rows)\n");
    expect(out, "id | queue | kind | state |");
    expect(out, "---+-------+------+-------+");
    JOBQ(0, "--json list");
    assert_int_equal(json_lines(), 3);
    assert_true(strstr(out, "\"kind\":\"m\"") < strstr(out, "\"kind\":\"l\""));
    JOBQ(0, "list --json --queue b");
    assert_int_equal(json_lines(), 2);
    JOBQ(0, "list --json --queue b --kind l");
    assert_int_equal(json_lines(), 1);
    JOBQ(0, "list --json --key k1");
    expect(out, "\"kind\":\"m\"");
    assert_int_equal(json_lines(), 1);
    JOBQ(0, "list --json --line t1");
    assert_int_equal(json_lines(), 1);
    JOBQ(0, "list --json --older '1 day'");
    expect(out, "\"queue\":\"a\"");
    assert_int_equal(json_lines(), 1);
    JOBQ(0, "list --json --newer '1 day' --limit 1");
    expect(out, "\"kind\":\"m\"");
    assert_int_equal(json_lines(), 1);
    JOBQ(0, "cancel %lld", (long long)second);
    JOBQ(0, "list --json --state cancelled");
    expect(out, "\"kind\":\"l\"");
    assert_int_equal(json_lines(), 1);
}

/* What is misspelt, or given twice, is not passed over. */
static void names_that_are_not_there_are_refused(void **unused)
{
    (void)unused;
    enqueue_of("mail", "k", "1");
    JOBQ(2, "list --state bogus");
    expect(err, "there is no state 'bogus': ready, running, waiting, succeeded, failed, cancelled");
    JOBQ(2, "list --queue mial");
    expect(err, "there is no queue 'mial': did you mean 'mail'? There are: mail\n");
    JOBQ(2, "list --queue mail --kind welcome");
    expect(err, "there is no kind 'welcome': k\n");
    JOBQ(2, "lst");
    expect(err, "there is no verb lst: did you mean list?");
    JOBQ(2, "list --quue mail");
    expect(err, "there is no option '--quue': did you mean '--queue'?");
    JOBQ(2, "list --state redy");
    expect(err, "did you mean 'ready'?");
    JOBQ(2, "list --limit 99999999999");
    expect(err, "--limit takes a number from 1 to 1000000000, not '99999999999'");
    JOBQ(2, "export --queue mial");
    expect(err, "there is no queue 'mial'");
    assert_string_equal(out, "");
    JOBQ(2, "export --state ready");
    expect(err, "there is no state 'ready': succeeded, failed, cancelled");
    JOBQ(2, "flow --state open");
    expect(err, "there is no state 'open': running, held, cancelled, ended");
    JOBQ(2, "list --queue mail --queue mail");
    expect(err, "--queue is given twice");
    JOBQ(2, "work --exec true --queue mail --queue other");
    expect(err, "--queue is given twice");
}

static void a_job_is_shown(void **unused)
{
    int64_t id = fail_one("q");

    (void)unused;
    JOBQ(0, "show %lld", (long long)id);
    expect(out, "state                | failed\n");
    expect(out, "host");
    expect(out, " | error\n"); /* a table of attempts, not their JSON */
    assert_null(strstr(out, "\"attempt\""));
    JOBQ(0, "--json show %lld", (long long)id);
    assert_int_equal(json_lines(), 1);
    expect(out, "\"why\": [\"");
    JOBQ(1, "show 999999");
    expect(err, "there is no job 999999");
    JOBQ(1, "cancel 999999");
    expect(out, "999999 does not exist\n");
    JOBQ(2, "show x");
    JOBQ(2, "show");
}

/* Text of strangers: an error with an escape sequence, also in Unicode's one byte of two. */
static void output_cannot_steer_the_terminal(void **unused)
{
    int64_t id = fail_one("q");

    (void)unused;
    JOBQ(0, "list");
    expect(out, "no\\x1b[31m host\\x9b");
    assert_null(strchr(out, '\033'));
    JOBQ(0, "show %lld", (long long)id);
    assert_null(strchr(out, '\033'));
    assert_null(strstr(out, "\302\233"));
}

/* ---- verbs that change jobs ------------------------------------------------------------------ */

static void one_job_is_changed(void **unused)
{
    int64_t id = enqueue_of("q", "k", "1"), failed = fail_one("q");

    (void)unused;
    enqueue_of("other", "k", "1");
    JOBQ(0, "revive %lld", (long long)failed);
    is(failed, "ready");
    JOBQ(1, "revive %lld", (long long)id);
    expect(out, " ready\n");
    JOBQ(0, "prioritize %lld --priority -4", (long long)id);
    JOBQ(0, "reschedule %lld --run-at '2031-01-01 12:00Z'", (long long)id);
    JOBQ(0, "move %lld --target other", (long long)id);
    expect_text("-4 2031 other", "SELECT concat_ws(' ', priority, extract(year FROM run_at), queue)"
                                 " FROM jobq.jobs WHERE priority = -4");
    JOBQ(0, "reschedule %lld", (long long)id);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE run_at > now()"), 0);
    JOBQ(0, "--json cancel %lld", (long long)id);
    assert_int_equal(json_lines(), 1);
    is(id, "cancelled");
    JOBQ(1, "cancel %lld %lld", (long long)id, (long long)failed); /* the first one was before */
    is(failed, "cancelled");
    JOBQ(0, "delete %lld", (long long)id);
    is(id, "gone");
    JOBQ(1, "delete 12345678");
}

static void all_that_match_are_changed(void **unused)
{
    (void)unused;
    enqueue_count(2500);
    enqueue_of("q", "other", "1");
    JOBQ(0, "prioritize --queue q --priority 5 --at-most 10");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE priority = 5"), 10);
    JOBQ(0, "reschedule --queue q --run-at 2031-01-01");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE run_at > '2030-01-01'"), 2501);
    JOBQ(0, "--json cancel --queue q --kind k");
    expect(out, "{\"cancelled\": 2500, \"requested\": 0}\n");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 1);
    expect_text("{\"kind\": \"k\", \"queue\": \"q\"} 2500", "SELECT string_agg(concat_ws(' ', "
                "arguments, jobs), '; ') FROM jobq.operator_log WHERE verb = 'cancel'");
    RUN("SELECT jobq.queue_set('target', max_attempts => 3)");
    JOBQ(0, "move --queue q --target target");
    expect(out, "moved 1\n");
    fail_one("q");
    JOBQ(0, "revive --queue q --older '1 hour'");
    expect(out, "revived 0\n");
    JOBQ(0, "revive --queue q");
    expect(out, "revived 1\n");
    JOBQ(0, "delete --queue q --state cancelled");
    expect(out, "deleted 2500\n");
    JOBQ(2, "cancel --queue nowhere");
    expect(err, "there is no queue 'nowhere'");
    assert_string_equal(out, "");
}

/* ---- queues, schedules, outbox, export ------------------------------------------------------- */

static void queues_are_paused_and_drained(void **unused)
{
    int64_t id = enqueue_of("q", "k", "1");

    (void)unused;
    JOBQ(0, "pause q");
    assert_int_equal(number("SELECT count(*) FROM jobq.queue WHERE paused_at IS NOT NULL"), 1);
    JOBQ(0, "resume q");
    assert_int_equal(number("SELECT count(*) FROM jobq.queue WHERE paused_at IS NOT NULL"), 0);
    JOBQ(0, "enqueue q k --line 'the other' && $jobq enqueue q k --line ann");
    JOBQ(0, "pause q --line ann && $jobq pause q --line 'the other'");
    JOBQ(2, "pause q --line an");
    expect(err, "there is no line 'an': did you mean 'ann'? There are: ann");
    expect(err, "jobq line set q 'an' --paused true");
    assert_int_equal(number("SELECT count(*) FROM jobq.line WHERE paused_at IS NOT NULL"), 2);
    JOBQ(0, "resume q --line ann");
    RUN("SELECT jobq.delete(id) FROM jobq.jobs WHERE line IS NOT NULL");
    JOBQ(0, "pause q --kind k");
    assert_int_equal(number("SELECT count(*) FROM jobq.kind WHERE paused_at IS NOT NULL"), 1);
    JOBQ(0, "--json resume q --kind k");
    assert_int_equal(json_lines(), 1);
    JOBQ(1, "drain q --timeout 0");
    expect(err, "no living worker serves q");
    JOBQ(0, "reschedule %lld --run-at 2031-01-01", (long long)id);
    JOBQ(0, "drain q --json");
    assert_string_equal(out, "{\"left\": 0}\n");
    JOBQ(1, "drain q --ended --timeout 0");
    RUN("SELECT jobq.enqueue('other', 'k', after => '{%lld}')", (long long)id);
    JOBQ(0, "drain other");
    JOBQ(1, "drain other --ended --timeout 0");
    expect(err, "other is not empty; jobs left: 1");
    JOBQ(0, "reschedule %lld", (long long)id);
    shell("( sleep 1; $jobq cancel %lld ) & $jobq drain q --timeout 30; code=$?; wait;"
          " test $code = 0 || echo broken", (long long)id);
    expect_not(out, "broken");
    is(id, "cancelled");
    JOBQ(2, "drain nowhere");
    JOBQ(2, "drain q --timeout soon");
}

static void schedules_are_kept(void **unused)
{
    (void)unused;
    JOBQ(0, "schedule set nightly q k --cron '30 2 * * *' --zone Europe/Berlin --payload '[1]'");
    expect_text("30 2 * * * Europe/Berlin [1]",
                "SELECT concat_ws(' ', calendar, zone, payload) FROM jobq.schedules");
    JOBQ(0, "--json schedule");
    assert_int_equal(json_lines(), 1);
    JOBQ(0, "schedule list");
    expect(out, "nightly");
    JOBQ(0, "schedule run nightly");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 1);
    JOBQ(0, "--json schedule pause nightly");
    assert_int_equal(json_lines(), 1);
    expect_text("it is paused", "SELECT why FROM jobq.schedules");
    JOBQ(0, "schedule resume nightly");
    JOBQ(0, "--json schedule preview '0 12 * * *' --count 3 --after 2027-01-01");
    assert_int_equal(json_lines(), 3);
    expect(out, "2027-01-03T12:00:00");
    JOBQ(0, "schedule drop nightly");
    assert_int_equal(number("SELECT count(*) FROM jobq.schedule"), 0);
    JOBQ(0, "schedule set hourly q k --every '1 hour'");
    JOBQ(2, "schedule drop houry");
    expect(err, "there is no schedule 'houry': did you mean 'hourly'? There are: hourly");
    JOBQ(2, "schedule run nightly");
    JOBQ(1, "schedule set bad q k --cron '61 * * * *'");
}

/* Two loads, and a merge that waits for them. */
static void flows_are_shown_revived_and_cancelled(void **unused)
{
    long flow, id;
    char text[200];

    (void)unused;
    flow = number("SELECT jobq.flow(E'in\\x1bport')");
    JOBQ(0, "enqueue etl load 1 --flow %ld --name load-1", flow);
    JOBQ(0, "enqueue etl load 2 --flow %ld --name load-2", flow);
    JOBQ(0, "enqueue etl merge 3 --flow %ld --name merge --after-names '{load-1,load-2}'", flow);
    id = number("SELECT min(id) FROM jobq.job");
    JOBQ(0, "flow show %ld", flow);
    assert_null(strchr(out, '\033'));
    expect(out, "name                 | in\\x1bport\n");
    snprintf(text, sizeof text, "\n%ld ready load load-1\n%ld ready load load-2\n"
             "  %ld waiting merge merge  after %ld %ld\n", id, id + 1, id + 2, id, id + 1);
    expect(out, text);
    JOBQ(0, "--json flow show %ld", flow);
    assert_int_equal(json_lines(), 3);
    JOBQ(0, "show %ld", id + 2);
    snprintf(text, sizeof text, "waits for the end of job %ld (load-1), job %ld (load-2)",
             id, id + 1);
    expect(out, text);
    expect(out, "| load-2");
    JOBQ(0, "--json show %ld", id + 2);
    assert_int_equal(json_lines(), 1);
    snprintf(text, sizeof text, "{\"id\": %ld, \"tie\": \"after\", \"kind\": \"load\"", id);
    expect(out, text);
    RUN("SELECT jobq._finish('{%ld}', 'f', '{\"error\": \"no\"}')", id);
    RUN("SELECT jobq._promote(100)");
    JOBQ(0, "flow --state held");
    expect(out, "(1 row)");
    JOBQ(0, "flow revive %ld", flow);
    assert_string_equal(out, "revived 1\n");
    JOBQ(0, "flow list --state held --json");
    assert_int_equal(json_lines(), 0);
    JOBQ(0, "--json flow cancel %ld", flow);
    assert_string_equal(out, "{\"cancelled\": 3}\n");
    JOBQ(0, "--json flow close %ld", flow);
    assert_int_equal(json_lines(), 1);
    JOBQ(0, "flow cancel %ld", flow); /* nothing is left to cancel */
    JOBQ(1, "flow show 999");
    expect(err, "there is no flow 999");
    JOBQ(1, "flow revive 999");
    expect(err, "not the id of a flow");
    JOBQ(1, "flow cancel 999");
    JOBQ(1, "flow revive 0");
    JOBQ(2, "flow show x");
    JOBQ(2, "flow show");
}

/* More than one step of a thousand. */
static void a_large_flow_is_cancelled_whole(void **unused)
{
    long flow;

    (void)unused;
    flow = number("SELECT jobq.flow('large')");
    RUN("SELECT jobq.enqueue('q', 'k', flow => %ld) FROM generate_series(1, 2500)", flow);
    JOBQ(0, "flow cancel %ld", flow);
    assert_string_equal(out, "cancelled 2500\n");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    expect_text("2500", "SELECT string_agg(jobs::text, '; ') FROM jobq.operator_log");
}

static void a_signal_is_sent_once(void **unused)
{
    (void)unused;
    JOBQ(0, "--json signal 'order 7/paid' '{\"cents\": 900}'");
    assert_string_equal(out, "{\"first\":true}\n");
    spill("payload", "[1]");
    JOBQ(0, "--json signal 'order 7/paid' - <$dir/payload");
    assert_string_equal(out, "{\"first\":false}\n");
    JOBQ(0, "signal -- --odd- - <$dir/payload");
    JOBQ(0, "signal plain");
    expect_text("--odd- [1],order 7/paid {\"cents\": 900},plain",
                "SELECT string_agg(concat_ws(' ', name, payload), ',' ORDER BY name COLLATE \"C\") "
                "FROM jobq.signal");
    JOBQ(1, "signal ''");
    JOBQ(2, "signal");
}

static void dead_letters_come_back(void **unused)
{
    int i;

    (void)unused;
    RUN("SELECT jobq.outbox_register('orders', 2)");
    for (i = 1; i <= 3; i++) {
        RUN("INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at, "
            "attempts, type, payload) SELECT p.queue_id, p.id, %d, now(), now(), 3, 't', '{\"n\": "
            "%d}' FROM jobq.partition p WHERE p.number = 1", i, i);
    }
    JOBQ(0, "--json outbox");
    assert_int_equal(json_lines(), 2);
    JOBQ(0, "--json outbox list orders --at-most 2");
    assert_int_equal(json_lines(), 2);
    JOBQ(2, "outbox list elsewhere");
    expect(err, "there is no queue 'elsewhere': orders");
    JOBQ(0, "outbox discard orders --dry-run --at-most 2");
    assert_string_equal(out, "would be discarded: 2\n");
    JOBQ(0, "outbox replay orders --at-most 2");
    expect_text("1 t {\"n\": 1}|1 t {\"n\": 2}",
                "SELECT string_agg(concat_ws(' ', partition_id & 32767, type, payload), '|'"
                " ORDER BY id) FROM jobq.message");
    expect_text("pending 1, resolved 2",
                "SELECT string_agg(status || ' ' || n, ', ' ORDER BY status) FROM (SELECT status,"
                " count(*) AS n FROM jobq.dead_letter GROUP BY 1) s");
    JOBQ(0, "outbox discard orders --partition 0");
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter WHERE status = 'pending'"), 1);
    JOBQ(0, "--json outbox discard orders");
    expect(out, "{\"discarded\":1}\n");
    JOBQ(2, "outbox replay");
}

static void ended_jobs_are_exported(void **unused)
{
    static const char odd[] = "{\"x\": \"a \\\"quote\\\", a \\\\ and a \\n, 'too'\"}";
    int64_t id = enqueue_of("q", "k", odd);

    (void)unused;
    enqueue_of("q", "k", "1");
    enqueue_of("z", "k", "1");
    JOBQ(0, "cancel --queue z");
    JOBQ(0, "cancel %lld", (long long)id);
    JOBQ(0, "--json export");
    assert_int_equal(json_lines(), 2);
    JOBQ(0, "--json export --queue q --kind k --state cancelled --since yesterday");
    assert_int_equal(json_lines(), 1);
    expect(out, "\"payload\":{\"x\": \"a \\\"quote\\\", a \\\\ and a \\n, 'too'\"}");
    JOBQ(0, "--json export --until yesterday");
    assert_int_equal(json_lines(), 0);
    JOBQ(0, "export --queue q");
    assert_ptr_equal(strstr(out, "id,queue,kind,state,"), out);
    expect(out, ",q,k,cancelled,");
    expect(out, ",\"{\"\"x\"\": \"\"a ");
    JOBQ(1, "export --queue q >/dev/full");
    expect(err, "cannot write");
    assert_int_equal(strstr(err, "No space left") != NULL && !strstr(err, "Success"), 1);
    JOBQ(2, "export --since \"'; drop\"");
}

/* Each row of each table but those that say who works: live, failed and ended jobs, and what is
 * around them. */
static void everything_is_exported(void **unused)
{
    static const char *const parts[] = {
        "{\"table\":\"job\",\"row\":{\"queue\":\"q\",\"kind\":\"first\",\"id\":",
        "\"kind\":\"second\",", "{\"table\":\"edge\",", "{\"table\":\"flow\",",
        "{\"table\":\"failed\",\"row\":{\"queue\":\"f\",\"kind\":\"k\",",
        "{\"table\":\"history\",\"row\":{\"queue\":\"z\",\"kind\":\"k\",",
        "{\"table\":\"message\",", "{\"table\":\"partition\",\"row\":{\"queue\":\"o\",",
        "{\"table\":\"schedule\",", "{\"table\":\"signal\",", "\"n\": \"a \\\"quote\\\"\""};
    size_t i;
    long rows;

    (void)unused;
    RUN("DO $$ DECLARE f bigint := jobq.flow('f'); BEGIN "
        "PERFORM jobq.enqueue('q', 'second', flow => f, after => ARRAY[jobq.enqueue('q', 'first', "
        "'{\"n\": \"a \\\"quote\\\"\"}', flow => f)]); "
        "PERFORM jobq.outbox_register('o', 1), jobq.outbox_enqueue('o', '{}'), "
        "jobq.signal('s', '1'), jobq.schedule('x', 'q', 'k', every => '1 h'); END $$");
    fail_one("f");
    JOBQ(0, "cancel %lld", (long long)enqueue_of("z", "k", "1"));
    JOBQ(0, "export --all");
    for (i = 0; i < COUNT(parts); i++) expect(out, parts[i]);
    expect_not(out, "{\"table\":\"worker\"");
    rows = number("SELECT sum((xpath('/row/n/text()', query_to_xml('SELECT count(*) AS n FROM ' || "
                  "c.oid::regclass, false, true, '')))[1]::text::bigint) FROM pg_class c WHERE "
                  "c.relnamespace = '%s'::regnamespace AND c.relkind = 'r' AND c.relname <> ALL "
                  "('{worker, claim, sleeper, tally, ring, permit, waiter, nudge}')", schema);
    assert_int_equal(json_lines(), rows);
    JOBQ(0, "help export"); /* it names what it leaves out, and why */
    expect(out, "which\n                        mean nothing elsewhere: worker, claim, permit,\n"
                "                        sleeper, waiter, nudge, tally, ring\n");
    JOBQ(2, "export --all --queue q");
    expect(err, "no filters");
    JOBQ(2, "export --all --parts $dir");
}

/* What a worker has recorded is told and replayed; a file that is none is refused. */
static void replay_tells_what_a_worker_did(void **unused)
{
    (void)unused;
    JOBQ(0, "enqueue q k 1");
    JOBQ(0, "enqueue q k 2");
    JOBQ(0, "work --exec true --queue q --kind k --until-empty --record $dir/w.rec");
    JOBQ(0, "replay $dir/w.rec");
    expect(out, "entries, all as recorded\n");
    JOBQ(0, "replay $dir/w.rec --story --laws");
    expect(out, "starts (k, attempt 1)\n");
    expect(out, "ends: success; succeeded\n");
    expect(out, ", up to 4 jobs, a sweep, of q (");
    JOBQ(0, "replay $dir/w.rec --verify --story --only take");
    expect_not(out, "claim");
    JOBQ(0, "replay $dir/w.rec --story --job 1000000");
    assert_string_equal(out, "");
    JOBQ(0, "replay $dir/w.rec --why --only wait");
    expect(out, "  <- decides\n");
    JOBQ(0, "replay $dir/w.rec --dump 3");
    expect(out, "phase working, connected 0");
    JOBQ(0, "replay $dir/w.rec --back 3");
    expect(out, "       2  ");
    JOBQ(0, "replay $dir/w.rec --export $dir/out.rec");
    JOBQ(0, "replay $dir/out.rec --story --only take");
    expect(out, "starts (kind ");
    assert_int_equal(shell("$jobq replay $dir/w.rec --stop 3"), 128 + SIGTRAP);
    shell("cp $dir/w.rec $dir/bad.rec; printf X | dd of=$dir/bad.rec bs=1 seek=16 conv=notrunc");
    JOBQ(1, "replay $dir/bad.rec");
    expect(err, "another layout of structs");
    shell("cp $dir/w.rec $dir/bad.rec; printf X | dd of=$dir/bad.rec bs=1 seek=48 conv=notrunc");
    JOBQ(1, "replay $dir/bad.rec");
    expect(err, "it was recorded with another JOBQ_LOOP_SLOTS");
    expect(err, "-DJOBQ_LOOP_CLAIMS=512\n");
    JOBQ(1, "replay /dev/null");
    expect(err, "it is no recording of jobq");
    JOBQ(1, "replay $dir/none");
    expect(err, "No such file");
}

/* ---- who may, what is wrong ------------------------------------------------------------------ */

static void wrong_usage_is_told(void **unused)
{
    static const char *const lines[] = {
        "", "frob", "--frob list", "list --frob", "list --frob=1", "list --limit", "list --limit 0",
        "list --limit 1x", "list more", "cancel", "cancel 1 --queue q", "cancel --kind k",
        "delete --queue q", "move 1", "move --queue q", "prioritize 1", "pause", "pause a b",
        "migrate --check=1", "work", "work --queue q", "work --exec true",
        "work --queue q --exec true --threads 0", "schedule frob", "flow frob", "schedule list x",
        "enqueue q k 1 --=1", "help frob", "completion", "completion tcsh",
        "queue", "-d", "line set q", "pause q --kind k --line l", "list --older soon", "show 1x",
        "queue set q --backoff odd", "outbox replay nowhere"};
    size_t i;

    (void)unused;
    for (i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        JOBQ(2, "%s", lines[i]);
        assert_string_equal(out, "");
        assert_true(err[0] != '\0');
    }
}

static void help_is_where_people_ask_for_it(void **unused)
{
    (void)unused;
    assert_int_equal(shell("for ask in 'work --help' 'work -h' '--help work'; do\n"
                           "$jobq $ask >$dir/asked || exit 1\n"
                           "$jobq help work | cmp $dir/asked - || exit 1\n"
                           "done; $jobq flow cancel --help"), 0);
    expect(out, "jobq flow cancel");
}

/* On a terminal, which script is, long work shows how far it is, and wipes that in the end. */
static void long_work_shows_how_far_it_is(void **unused)
{
    (void)unused;
    if (!HAS_PTY) skip();
    enqueue_count(2500);
    assert_int_equal(shell("script -qec \"$jobq cancel --queue q\" /dev/null"), 0);
    expect(out, "\r\033[Kcancelled 1000\r\033[Kcancelled 2000\r\033[Kcancelled 2500");
    expect(out, "\r\033[Kcancelled 2500, requested 0\r\n");
    assert_int_equal(shell("script -qec \"$jobq export >/dev/null\" /dev/null"), 0);
    assert_string_equal(out, "\r\033[K1000 rows\r\033[K2000 rows\r\033[K");
    enqueue_count(3);
    RUN("SELECT jobq.queue_set('empty')");
    assert_int_equal(shell("script -qec \"$jobq drain empty\" /dev/null"), 0);
    assert_string_equal(out, "\r\033[Kempty: ready 0, running 0, scheduled 0\r\033[K");
    assert_int_equal(shell("script -qec \"$jobq bench --jobs 2000\" /dev/null"), 0);
    expect(out, "\r\033[Kenqueued 1000\r\033[Kenqueued 2000\r\033[Kworking\r\033[K2000 jobs: ");
    assert_int_equal(shell("script -qec \"$jobq --schema ${schema}_other migrate\" /dev/null"), 0);
    expect(out, "migration 001_tables applied\r\n");
    RUN("DROP SCHEMA %s_other CASCADE", schema);
    JOBQ(0, "export --queue q"); /* elsewhere it shows nothing */
    assert_string_equal(err, "");
}

/* As psql: a name, a conninfo, a URL, and for what these leave out the environment. */
static void it_connects_as_psql_does(void **unused)
{
    static const char *const ways[] = {
        "-d $PGDATABASE", "-d dbname=$PGDATABASE", "-d postgresql:///$PGDATABASE", "",
        "-d service=jobq_here"};
    size_t i;

    (void)unused;
    enqueue_of("q", "k", "1");
    spill("services", "[jobq_here]\ndbname=postgres\n");
    snprintf(command, sizeof command, "%s/services", folder);
    setenv("PGSERVICEFILE", command, 1);
    assert_string_equal(getenv("PGDATABASE"), "postgres");
    for (i = 0; i < COUNT(ways); i++) {
        JOBQ(0, "%s --json list", ways[i]);
        assert_int_equal(json_lines(), 1);
    }
    assert_int_equal(shell("PGDATABASE=no_such_database $jobq -d postgres list"), 0);
    assert_int_equal(shell("PGDATABASE=no_such_database $jobq list"), 3);
    assert_int_equal(shell("PGHOST=/nonexistent $jobq -d postgres list"), 3);
    unsetenv("PGSERVICEFILE");
}

/* They may be such that nothing can be written, and some verbs refuse to run. */
static void the_databases_defaults_do_not_matter(void **unused)
{
    (void)unused;
    setenv("PGOPTIONS", "-c default_transaction_read_only=on"
                        " -c default_transaction_isolation=serializable", 1);
    RUN("SELECT jobq.enqueue('q', 'k', flow => jobq.flow())");
    JOBQ(0, "flow cancel %ld", number("SELECT id FROM jobq.flow"));
    JOBQ(0, "enqueue q k 1");
    JOBQ(0, "work --exec true --queue q --kind k --until-empty");
    JOBQ(0, "pause q");
    unsetenv("PGOPTIONS");
    assert_int_equal(number("SELECT count(*) FROM jobq.history WHERE state = 's'"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
}

/* ---- the page of operations ------------------------------------------------------------------ */

/* Appends to the script each line that the page shows for a shell, and what notes its exit code.
 * How many there are. */
static int lines_of_page(FILE *script)
{
    char line[300];
    bool inside = false;
    int count = 0;
    FILE *file = fopen("examples/jobq/README.md", "r");

    if (file == NULL) fail_msg("examples/ is not here: run from the repository");
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "```", 3) == 0) inside = strcmp(line, "```sh\n") == 0;
        if (!inside || strncmp(line, "jobq ", 5) != 0) continue;
        fprintf(script, "limit=%d\n%secho $? '%.8s' >>codes\n",
                strncmp(line, "jobq work", 9) == 0 ? 3 : 60, line, line + 5);
        count++;
    }
    fclose(file);
    return count;
}

/* With the job, the flow and the worker that its lines speak of. */
static void the_page_can_be_typed(void **unused)
{
    char path[96], codes[2000], *code;
    FILE *script;
    int count;

    (void)unused;
    RUN("ALTER SEQUENCE jobq.job_id RESTART 4711; ALTER TABLE jobq.flow ALTER id RESTART 12");
    assert_int_equal(enqueue_of("mail", "welcome", "1"), 4711);
    RUN("SELECT jobq.enqueue('mail', 'welcome', flow => jobq.flow('import'))");
    spill("send.py", "#!/bin/sh\ncat\n");
    snprintf(path, sizeof path, "%s/script", folder);
    script = fopen(path, "w");
    assert_non_null(script);
    fprintf(script, "program=$(realpath %s)\ncd %s\nchmod +x send.py\n"
            "jobq() { timeout --preserve-status $limit $program --schema %s \"$@\"; }\n"
            "timeout 120 $program --schema %s work --queue mail --kind welcome --exec cat &\n",
            program(), folder, schema, schema);
    count = lines_of_page(script);
    fprintf(script, "kill $!\nwait\n");
    fclose(script);
    assert_in_range(count, 11, 30);
    assert_int_equal(shell("sh $dir/script"), 0);
    slurp("codes", codes, sizeof codes);
    for (code = strtok(codes, "\n"); code != NULL; code = strtok(NULL, "\n"), count--) {
        if (strncmp(code, "1 doctor", 8) == 0 || strncmp(code, "1 top ", 6) == 0) continue;
        if (strncmp(code, "0 ", 2) != 0) fail_msg("exit code %s\n%s%s", code, out, err);
    }
    assert_int_equal(count, 0);
    expect_not(out, "workers: "); /* what the doctor may find is the server's: fsync is off */
    expect(err, "this program was built without top");
}

/* ---- exit codes ------------------------------------------------------------------------------ */

static void without_a_server_the_code_is_3(void **unused)
{
    (void)unused;
    JOBQ(3, "-d 'host=/nonexistent' list");
    expect(err, "jobq: ");
    JOBQ(3, "-d 'host=/nonexistent' migrate");
    JOBQ(3, "-d no_such_database list");
    expect(err, "no_such_database");
    JOBQ(3, "-d 'postgresql:///no_such_database' list");
    expect(err, "no_such_database");
    JOBQ(0, "-d 'host=/nonexistent' help");
    JOBQ(1, "--schema no_such_schema list");
    expect(err, "migrate --check");
}

/* What the server refuses, the program says, and what it hides is not asked for. */
static void a_role_sees_what_it_may(void **unused)
{
    char role[40];
    int64_t id = enqueue_of("q", "k", "\"secret\"");
    long before;

    (void)unused;
    snprintf(role, sizeof role, "jobq_program_%d", (int)getpid());
    RUN("CREATE ROLE %s", role);
    RUN("SELECT jobq.grant_enqueue('%s')", role);
    before = number("SELECT count(*) FROM jobq.job");
    snprintf(command, sizeof command, "-c role=%s", role);
    setenv("PGOPTIONS", command, 1);
    JOBQ(0, "enqueue q k 1");
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), before + 1);
    JOBQ(1, "list");
    expect(err, "permission denied");
    JOBQ(1, "cancel %lld", (long long)id);
    RUN("SELECT jobq.grant_read('%s', payloads => false)", role);
    JOBQ(0, "list");
    JOBQ(0, "show %lld", (long long)id);
    expect_not(out, "secret");
    JOBQ(1, "cancel %lld", (long long)id);
    expect(err, "permission denied");
    RUN("SELECT jobq.grant_operate('%s')", role);
    JOBQ(0, "show %lld", (long long)id);
    expect(out, "secret");
    JOBQ(0, "cancel %lld", (long long)id);
    unsetenv("PGOPTIONS");
    RUN("DROP OWNED BY %s", role);
    RUN("DROP ROLE %s", role);
}

/* Each verb of the list has help, and completion knows it and its options. */
static void the_shell_completes_verbs_and_options(void **unused)
{
    (void)unused;
    assert_int_equal(shell("set -e; $jobq help | sed -n 's/^  \\([a-z]*\\) .*/\\1/p' >$dir/verbs\n"
                           "test $(wc -l <$dir/verbs) -gt 20\n"
                           "while read -r verb; do $jobq help $verb | head -1; done <$dir/verbs"),
                     0);
    expect(out, "jobq cancel ID... | --queue QUEUE\n");
    RUN("SELECT jobq.enqueue('mail', 'welcome')");
    assert_int_equal(shell("$jobq completion bash >$dir/complete\n"
        "printf '#!/bin/sh\\nexec %%s \"$@\"\\n' \"$jobq\" >$dir/jobq; chmod +x $dir/jobq\n"
        "PATH=$dir:$PATH bash -ec '"
        ". \"$1\"; try() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _jobq;"
        " echo \"${COMPREPLY[*]}\"; }; try jobq resc; try jobq --json list --st;"
        " try jobq schedule set x --over; try jobq -d \"%s\" list --queue m;"
        " try jobq -d \"%s\" list --queue mail --kind \"\"; try jobq list --state r;"
        " try jobq flow c; try jobq -d \"%s\" pause m; try jobq -d list li' x $dir/complete",
        server(), server(), server()), 0);
    assert_string_equal(out, "reschedule\n--state\n--overlap\nmail\nwelcome\nready running\n"
                             "cancel close\nmail\nlist limits lines line\n");
    assert_int_equal(shell("command -v zsh >/dev/null || exit 0; $jobq completion zsh >$dir/z &&"
                           " zsh -n $dir/z"), 0);
    assert_int_equal(shell("command -v fish >/dev/null || exit 0; $jobq completion fish >$dir/f &&"
                           " fish -n $dir/f"), 0);
}

/* It is made from the table of verbs, as help is. */
static void the_manual_has_a_page(void **unused)
{
    (void)unused;
    JOBQ(0, "help --man");
    expect(out, ".SS \"queue set QUEUE\"");
    expect(out, ".B \\-\\-on-known WHAT\n");
    assert_int_equal(shell("command -v man >/dev/null || exit 0; $jobq help --man >$dir/jobq.1 &&"
                           " LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -l $dir/jobq.1 >/dev/null"),
                     0);
    assert_string_equal(err, "");
    JOBQ(0, "--version");
    expect(out, "jobq 0.");
    expect(out, ", schema 12\n");
}

/* Options of every verb stand before it or after it. */
static void options_stand_anywhere(void **unused)
{
    (void)unused;
    enqueue_count(1);
    assert_int_equal(shell("$program list -d \"%s\" --schema $schema --json", server()), 0);
    assert_int_equal(json_lines(), 1);
    JOBQ(0, "work --exec 'test $JOBQ_KIND = k' --queue q --until-empty --");
}

/* How the queues are: and numbers say what they are. */
static void looks_have_verbs(void **unused)
{
    static const char *const verbs[] = {"queues", "workers", "failures", "limits", "lines", "times",
                                        "audit"};
    size_t i;

    (void)unused;
    enqueue_count(3);
    fail_one("q");
    RUN("SELECT jobq.enqueue('q', 'k', line => 'ann') FROM generate_series(1, 2)");
    JOBQ(0, "queue set q --running-max 3 --backoff linear");
    expect_text("3 linear", "SELECT concat_ws(' ', l.running_max, q.backoff_curve) FROM "
                            "jobq.limits l, jobq.queue q WHERE q.name = 'q'");
    JOBQ(0, "line set q ann --weight 7");
    JOBQ(0, "pause q --line ann");
    JOBQ(0, "lines --queue q");
    expect(out, " | paused");
    JOBQ(0, "resume q --line ann");
    register_worker(7, 60 * SECOND);
    for (i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        JOBQ(0, "%s", verbs[i]);
        JOBQ(0, "--json %s", verbs[i]);
        assert_true(json_lines() > 0 || strcmp(verbs[i], "times") == 0);
    }
    JOBQ(0, "metrics");
    expect(out, "# EOF\n");
    JOBQ(0, "audit");
    expect(out, "queue_set");
    RUN("INSERT INTO jobq.job (queue_id, kind_id) SELECT queue_id, id FROM jobq.kind, "
        "generate_series(1, 10010) WHERE name = 'k'");
    RUN("ANALYZE jobq.job");
    JOBQ(0, "queues");
    expect(out, " ~ 10");
    JOBQ(0, "list");
    expect(out, "(20 rows; there may be more: --limit)\n");
    RUN("DELETE FROM jobq.worker");
}

static void a_dry_run_changes_nothing(void **unused)
{
    int64_t id = enqueue_of("q", "k", "1");

    (void)unused;
    enqueue_count(4);
    fail_one("q");
    RUN("SELECT jobq.cancel(max(id)) FROM jobq.job");
    JOBQ(0, "cancel --queue q --dry-run");
    assert_string_equal(out, "would be cancelled: 4\n");
    JOBQ(0, "--json prioritize --queue q --priority 3 --at-most 2 --dry-run");
    assert_string_equal(out, "{\"would_be_prioritized\": 2}\n");
    JOBQ(0, "revive --queue q --dry-run --kind k");
    assert_string_equal(out, "would be revived: 1\n");
    JOBQ(0, "delete --queue q --state failed --dry-run");
    assert_string_equal(out, "would be deleted: 1\n");
    JOBQ(0, "delete --queue q --state cancelled --dry-run");
    assert_string_equal(out, "would be deleted: 1\n");
    JOBQ(0, "cancel --dry-run %lld", (long long)id);
    expect(out, "| ready\n");
    JOBQ(2, "cancel --dry-run");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r' AND priority = 0"), 4);
}

/* In a terminal, which script is, a table is as wide as that; elsewhere, and with --wide, whole. */
static void tables_fit_the_terminal(void **unused)
{
    char *text;
    size_t widest = 0, len;

    (void)unused;
    if (!HAS_PTY) skip();
    RUN("SELECT jobq.enqueue('q', 'k', line => repeat('long', 100), key => E'a\u202Eb')");
    assert_int_equal(shell("script -qec \"stty cols 100; $jobq list\" /dev/null"), 0);
    for (text = out; *text != '\0'; text += len + (text[len] != '\0')) {
        len = strcspn(text, "\r\n");
        if (len > widest) widest = len;
    }
    if (widest > 100 || !strstr(out, "lon")) fail_msg("%zu: %s", widest, out);
    JOBQ(0, "list");
    expect(out, "a\\u202eb");
    expect(out, "longlonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglong");
    assert_int_equal(shell("script -qec \"stty cols 100; $jobq list --wide\" /dev/null"), 0);
    expect(out, "longlonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglong");
}

static void a_bench_leaves_nothing(void **unused)
{
    static const char schemas[] = "SELECT count(*) FROM pg_namespace WHERE nspname ~ 'jobq_bench'";

    (void)unused;
    JOBQ(0, "--json bench --jobs 1500");
    assert_int_equal(json_lines(), 1);
    expect(out, "{\"jobs\": 1500,");
    assert_int_equal(number("%s", schemas), 0);
    assert_int_equal(shell("timeout -s INT 1 $jobq bench --jobs 3000000"), 124);
    assert_int_equal(number("%s", schemas), 0);
}

/* ---- work ------------------------------------------------------------------------------------ */

/* A job for the command, and its id. */
static int64_t work_for(const char *payload) { return enqueue_of("w", "run", payload); }

static void error_is(int64_t id, const char *error)
{
    char query[160];

    snprintf(query, sizeof query,
             "SELECT errors -> -1 ->> 'error' FROM jobq.jobs WHERE id = %lld", (long long)id);
    expect_text(error, query);
}

static void result_is(int64_t id, const char *result)
{
    char query[160];

    snprintf(query, sizeof query,
             "SELECT coalesce(result::text, '-') FROM jobq.jobs WHERE id = %lld", (long long)id);
    expect_text(result, query);
}

/* The command is a file, which the payload on its standard input steers. */
static void commands_end_as_they_say(void **unused)
{
    int64_t good = work_for("\"good\""), text = work_for("\"text\""), again = work_for("\"again\"");
    int64_t bad = work_for("\"bad\""), none = work_for("\"none\""), dies = work_for("\"dies\"");
    int64_t silent = work_for("\"silent\"");
    char wanted[128];

    (void)unused;
    spill("command", "case $(cat) in\n"
                     "'\"good\"') printf '{\"id\": %s, \"q\": \"%s %s\", \"a\": %s}' \"$JOBQ_ID\""
                     " \"$JOBQ_QUEUE\" \"$JOBQ_KIND\" \"$JOBQ_ATTEMPT\" ;;\n"
                     "'\"text\"') echo no JSON ;;\n"
                     "'\"again\"') echo later >&2; exit 75 ;;\n"
                     "'\"bad\"') echo 1; echo first >&2; echo bad >&2; exit 1 ;;\n"
                     "'\"none\"') no_such_command ;;\n"
                     "'\"dies\"') kill -9 $$ ;;\n"
                     "'\"silent\"') exit 9 ;;\n"
                     "esac\n");
    JOBQ(0, "--json work --exec \"exec sh $dir/command\" --queue w --threads 3 --until-empty");
    assert_int_equal(json_lines(), 1);
    expect(out, "{\"started\": 7, \"succeeded\": 2, \"retried\": 3, \"failed\": 2}");
    is(good, "succeeded");
    snprintf(wanted, sizeof wanted, "{\"a\": 1, \"q\": \"w run\", \"id\": %lld}", (long long)good);
    result_is(good, wanted);
    is(text, "succeeded");
    result_is(text, "-");
    is(again, "ready");
    error_is(again, "later");
    is(bad, "failed");
    error_is(bad, "first\nbad");
    is(none, "ready");
    is(dies, "ready");
    error_is(dies, "killed by signal 9");
    is(silent, "failed");
    error_is(silent, "exit code 9");
}

static void only_the_named_kind_is_worked(void **unused)
{
    int64_t id = work_for("1"), other = enqueue_of("w", "other", "1");

    (void)unused;
    JOBQ(0, "work --exec cat --queue w --kind run --until-empty");
    is(id, "succeeded");
    result_is(id, "1");
    is(other, "ready");
    JOBQ(0, "enqueue w later 2");
    JOBQ(1, "work --exec cat --queue nowhere");
    expect(err, "--kind");
}

/* Whoever starts it may ignore SIGCHLD, as some supervisors do. */
static void commands_end_where_children_are_ignored(void **unused)
{
    int64_t id = work_for("1"), bad = work_for("2");

    (void)unused;
    assert_int_equal(shell("timeout 60 env --ignore-signal=CHLD ${jobq#timeout 60 } work --queue w "
                           "--exec 'read n; [ $n = 1 ]' --until-empty"), 0);
    is(id, "succeeded");
    is(bad, "failed");
}

/* A role that may work needs to know no kinds. */
static void a_workers_role_works(void **unused)
{
    char role[40];
    int64_t id = work_for("1");

    (void)unused;
    snprintf(role, sizeof role, "jobq_worker_%d", (int)getpid());
    RUN("CREATE ROLE %s", role);
    RUN("SELECT jobq.grant_work('%s')", role);
    snprintf(command, sizeof command, "-c role=%s", role);
    setenv("PGOPTIONS", command, 1);
    JOBQ(0, "work --exec cat --queue w --until-empty");
    unsetenv("PGOPTIONS");
    is(id, "succeeded");
    RUN("DROP OWNED BY %s", role);
    RUN("DROP ROLE %s", role);
}

/* 900 KB through both pipes at once; and a command that reads nothing, or too much is written. */
static void large_texts_pass_through(void **unused)
{
    static char large[900001];
    int64_t id, deaf, loud;

    (void)unused;
    memset(large, 'x', sizeof large - 1);
    large[0] = large[sizeof large - 2] = '"';
    id = work_for(large);
    JOBQ(0, "work --exec cat --queue w --until-empty");
    is(id, "succeeded");
    assert_int_equal(number("SELECT length(result::text) FROM jobq.jobs WHERE id = %lld",
                            (long long)id), 900000);
    deaf = work_for(large);
    JOBQ(0, "work --exec 'echo 1' --queue w --until-empty");
    is(deaf, "succeeded");
    result_is(deaf, "1");
    loud = work_for("1");
    JOBQ(0, "work --exec 'head -c 3000000 /dev/zero | tr \"\\0\" 1' --queue w --until-empty");
    is(loud, "succeeded");
    result_is(loud, "-");
}

/* Whether the process whose number is in the file lives. */
static bool lives(const char *name)
{
    char text[32];

    slurp(name, text, sizeof text);
    assert_true(atol(text) > 1);
    return kill((pid_t)atol(text), 0) == 0;
}

static bool dies(const char *name)
{
    int64_t until = mono_us() + 10000000;

    while (lives(name) && mono_us() < until) nap_us(10000);
    return !lives(name);
}

static void the_time_limit_kills_the_process_group(void **unused)
{
    int64_t id;

    (void)unused;
    JOBQ(0, "enqueue w run 1 --timeout '500 ms' --max-attempts 1");
    id = number("SELECT max(id) FROM jobq.job");
    JOBQ(0, "work --exec \"sleep 600 & echo \\$! >$dir/pid; wait\" --queue w --until-empty");
    is(id, "failed");
    assert_true(dies("pid"));
}

/* Each limit ends a command that would go on without it, and its error says which. The words of the
 * shell itself before that are its own. */
static void limits_end_commands_and_are_told(void **unused)
{
    static const char *const rows[][3] = {
        {"while :; do :; done", "--cpu 1", "used more than --cpu 1 allows"},
        {"head -c 9000000 /dev/zero >$dir/large", "--file-size 1",
         "used more than --file-size 1 allows"},
        {"echo slow >&2; sleep 600; :", "--wall 1", "slow\nran longer than --wall 1 allows"},
        {"kill -ABRT \\$\\$", "--memory 64", "killed by signal 6, with at most --memory 64"},
        {"dd if=/dev/zero of=/dev/null bs=500M count=1", "--memory 64", "dd: "}};
    size_t i;
    struct stat file;
    char path[96];

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        int64_t id = work_for("1");
        char query[160], *error;

        JOBQ(0, "work --exec \"%s\" --queue w %s --until-empty", rows[i][0], rows[i][1]);
        snprintf(query, sizeof query,
                 "SELECT errors -> -1 ->> 'error' FROM jobq.jobs WHERE id = %lld", (long long)id);
        error = text_of(query);
        if (strstr(error, rows[i][2]) == NULL) fail_msg("%s: %s", rows[i][0], error);
        free(error);
        RUN("DELETE FROM jobq.job");
    }
    snprintf(path, sizeof path, "%s/large", folder);
    assert_int_equal(stat(path, &file), 0);
    assert_int_equal(file.st_size, 1 << 20);
    assert_int_equal(shell("ulimit -t 100; $jobq work --exec true --queue w --cpu 96"), 2);
    expect(err, "--cpu 96: the limits of jobq itself");
}

static void what_a_command_leaves_behind_ends_with_it(void **unused)
{
    int64_t id = work_for("1"), begin_us = mono_us();

    (void)unused;
    JOBQ(0, "work --exec \"sleep 600 & echo \\$! >$dir/pid; echo 7\" --queue w --until-empty");
    is(id, "succeeded");
    result_is(id, "7");
    assert_true(dies("pid"));
    assert_true(mono_us() - begin_us < 60000000);
}

/* Starts a worker whose command runs when this returns. */
static pid_t start_worker(const char *line, const char *more)
{
    char text[2048], path[96];
    int64_t until = mono_us() + 30000000;
    pid_t pid;

    snprintf(path, sizeof path, "%s/begun", folder);
    unlink(path);
    snprintf(text, sizeof text,
             "dir=%s; exec %s --schema %s work --queue w --exec \"touch $dir/begun; %s\" %s "
             ">$dir/out 2>$dir/err", folder, program(), schema, line, more);
    pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", text, (char *)NULL);
        _exit(126);
    }
    while (access(path, F_OK) != 0 && mono_us() < until) nap_us(10000);
    assert_int_equal(access(path, F_OK), 0);
    return pid;
}

static int ends(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void a_stopped_worker_lets_commands_end(void **unused)
{
    int64_t id = work_for("1");
    pid_t worker = start_worker("sleep 1; echo 5", "");

    (void)unused;
    kill(worker, SIGTERM);
    assert_int_equal(ends(worker), 0);
    is(id, "succeeded");
    result_is(id, "5");
}

static void commands_that_outlast_the_grace_are_given_back(void **unused)
{
    int64_t id = work_for("1");
    pid_t worker = start_worker("echo \\$$ >$dir/pid; sleep 600", "--grace 1");

    (void)unused;
    kill(worker, SIGTERM);
    assert_int_equal(ends(worker), 0);
    is(id, "ready");
    assert_int_equal(number("SELECT attempt FROM jobq.job"), 0);
    assert_true(dies("pid"));
}

static void a_second_signal_ends_it_at_once(void **unused)
{
    pid_t worker, ended = 0;
    int signals;

    (void)unused;
    work_for("1");
    worker = start_worker("echo \\$$ >$dir/pid; sleep 600", "--grace 100");
    for (signals = 0; signals < 60 && ended == 0; signals++) { /* two at once may count as one */
        kill(worker, SIGTERM);
        nap_us(500000);
        ended = waitpid(worker, NULL, WNOHANG);
    }
    assert_int_equal(ended, worker);
    assert_true(dies("pid"));
}

static void a_cancelled_jobs_command_is_asked_to_end(void **unused)
{
    int64_t id = work_for("1");
    pid_t worker = start_worker("trap 'echo 1 >$dir/asked; exit 1' TERM; sleep 600 & wait", "");
    char text[8];

    (void)unused;
    JOBQ(0, "cancel %lld", (long long)id);
    expect(out, "requested");
    assert_true(becomes(30, 0, "SELECT count(*) FROM jobq.job"));
    is(id, "cancelled");
    slurp("asked", text, sizeof text);
    assert_string_equal(text, "1\n");
    kill(worker, SIGTERM);
    assert_int_equal(ends(worker), 0);
}

/* ---- every option ---------------------------------------------------------------------------- */

static int option_faults;

#define FAULT(...) (option_faults++, print_error(__VA_ARGS__))

/* The rows of an option. Without any, the option fails the test. */
static void option_is_judged(const char *verb, const char *option)
{
    size_t i;

    for (i = 0; i < COUNT(option_rows); i++)
        if (strcmp(option_rows[i].verb, verb) == 0 && strcmp(option_rows[i].option, option) == 0)
            return;
    for (i = 0; i < COUNT(option_elsewhere); i++)
        if (strcmp(option_elsewhere[i].verb, verb) == 0 &&
            strcmp(option_elsewhere[i].option, option) == 0) return;
    FAULT("jobq %s --%s: no row: what does it do, and which value is refused?\n", verb, option);
}

/* Reads the verbs that have this first word, and their options, from the program's help. */
static int options_of(const char *word)
{
    char *line, *text, *next, verb[64] = "", option[64];
    int count = 0;

    JOBQ(0, "help %s", word);
    text = text_copy(out);
    for (line = strtok_r(text, "\n", &next); line != NULL; line = strtok_r(NULL, "\n", &next)) {
        if (strncmp(line, "jobq ", 5) == 0) { /* the words of a verb are small letters */
            size_t len = strspn(line + 5, "abcdefghijklmnopqrstuvwxyz ");
            while (line[5 + len - 1] == ' ') len--;
            snprintf(verb, sizeof verb, "%.*s", (int)len, line + 5);
        } else if (sscanf(line, "    --%63[a-z-]", option) == 1) {
            option_is_judged(verb, option);
            count++;
        }
    }
    free(text);
    return count;
}

static void options_world(void)
{
    pg_empty(NULL);
    RUN("SELECT setval(c.oid, 1, false) FROM pg_class c WHERE c.relkind = 'S'"
        " AND c.relnamespace = 'jobq'::regnamespace");
    RUN("SELECT jobq.queue_set('q', kinds => '{k, l}'), jobq.queue_set('p', kinds => '{k}'),"
        " jobq.outbox_register('o', 4), jobq.subscribe('r', 'o', 'p', 'k'), jobq.flow('f'),"
        " jobq.line_set('q', 'l'),"
        " jobq.line_set('q', 'm', paused => true),"
        " jobq.schedule('s', 'q', 'k', every => '1 h')");
    RUN("SELECT jobq.enqueue('q', 'k', headers => '{\"a\": 1}', flow => 1, name => 'a'),"
        " jobq.enqueue('q', 'l'), jobq.enqueue('p', 'k'),"
        " jobq.enqueue('q', 'k', headers => '{\"a\": 1}', flow => 1), jobq.enqueue('q', 'l')");
    RUN("UPDATE jobq.job SET enqueued_at = enqueued_at - interval '1 week' WHERE id = 1");
    RUN("SELECT jobq._finish('{4,5}', 'f', '{\"at\": \"now\", \"stage\": 0, \"attempt\": 1,"
        " \"error\": \"no\"}')");
    RUN("UPDATE jobq.failed SET finished_at = finished_at - interval '1 week' WHERE id = 4");
    RUN("INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at,"
        " attempts) SELECT p.queue_id, p.id, 1, now(), now(), 1 FROM jobq.partition p");
}

static void option_is_tried(const option_row *o)
{
    int code = shell("$jobq %s %s", o->verb, o->good);
    bool wanted = o->shows[0] != '!', shown;

    if (code != o->code) FAULT("jobq %s %s: code %d: %s\n", o->verb, o->good, code, err);
    if (strncmp(o->shows, "SELECT", 6) == 0) {
        char *text = for_schema(o->shows, schema);
        PGresult *res = PQexec(db, text);
        shown = PQntuples(res) == 1 && strcmp(PQgetvalue(res, 0, 0), "t") == 0;
        if (PQresultStatus(res) != PGRES_TUPLES_OK) print_error("%s", PQerrorMessage(db));
        PQclear(res);
        free(text);
    } else {
        shown = (strstr(out, o->shows + !wanted) != NULL) == wanted;
    }
    if (!shown) FAULT("jobq %s %s: not so: %s\n%s", o->verb, o->good, o->shows, out);
    if (o->wrong == NULL) return;
    code = shell("$jobq %s %s", o->verb, o->wrong);
    if ((code != 1 && code != 2) || strstr(err, o->says) == NULL)
        FAULT("jobq %s %s: code %d, without \"%s\": %s%s\n", o->verb, o->wrong, code, o->says, err,
              out);
}

static void every_option_has_an_effect_or_is_refused(void **unused)
{
    char *line, *text, *next, word[32];
    size_t i;
    int count = 0;

    (void)unused;
    option_faults = 0;
    JOBQ(0, "help");
    text = text_copy(out);
    for (line = strtok_r(text, "\n", &next); line != NULL; line = strtok_r(NULL, "\n", &next))
        if (line[0] == ' ' && sscanf(line, "  %31[a-z]", word) == 1) count += options_of(word);
    free(text);
    assert_in_range(count, COUNT(option_rows), COUNT(option_rows) + COUNT(option_elsewhere));
    for (i = 0; i < COUNT(option_rows); i++) {
        options_world();
        option_is_tried(&option_rows[i]);
    }
    assert_int_equal(option_faults, 0);
}

/* ---- the group ------------------------------------------------------------------------------- */

/* The program gets the server as a user gives it, from the environment. */
static int program_up(void **state)
{
    PQconninfoOption *options, *o;

    snprintf(folder, sizeof folder, "/tmp/jobq_program_XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    options = PQconninfoParse(server(), NULL);
    for (o = options; o != NULL && o->keyword != NULL; o++) {
        if (o->val != NULL && o->envvar != NULL) setenv(o->envvar, o->val, 1);
    }
    PQconninfoFree(options);
    if (getenv("JOBQ_PROGRAM") == NULL && system("make -s " BINARY " >/dev/null") != 0) return 1;
    return pg_up(state);
}

static int program_down(void **state)
{
    char text[96];

    snprintf(text, sizeof text, "rm -rf %s", folder);
    if (system(text) != 0) return 1;
    return pg_down(state);
}

#define TEST(f) cmocka_unit_test_setup(f, pg_empty)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(a_schema_is_installed_and_checked),
        TEST(jobs_are_enqueued),
        TEST(jobs_are_listed),
        TEST(names_that_are_not_there_are_refused),
        TEST(a_job_is_shown),
        TEST(output_cannot_steer_the_terminal),
        TEST(one_job_is_changed),
        TEST(all_that_match_are_changed),
        TEST(queues_are_paused_and_drained),
        TEST(schedules_are_kept),
        TEST(flows_are_shown_revived_and_cancelled),
        TEST(a_large_flow_is_cancelled_whole),
        TEST(a_signal_is_sent_once),
        TEST(dead_letters_come_back),
        TEST(ended_jobs_are_exported),
        TEST(everything_is_exported),
        TEST(replay_tells_what_a_worker_did),
        TEST(wrong_usage_is_told),
        TEST(every_option_has_an_effect_or_is_refused),
        TEST(help_is_where_people_ask_for_it),
        TEST(long_work_shows_how_far_it_is),
        TEST(it_connects_as_psql_does),
        TEST(the_databases_defaults_do_not_matter),
        TEST(the_page_can_be_typed),
        TEST(without_a_server_the_code_is_3),
        TEST(a_role_sees_what_it_may),
        TEST(the_shell_completes_verbs_and_options),
        TEST(the_manual_has_a_page),
        TEST(options_stand_anywhere),
        TEST(looks_have_verbs),
        TEST(a_dry_run_changes_nothing),
        TEST(tables_fit_the_terminal),
        TEST(a_bench_leaves_nothing),
        TEST(commands_end_as_they_say),
        TEST(only_the_named_kind_is_worked),
        TEST(commands_end_where_children_are_ignored),
        TEST(a_workers_role_works),
        TEST(large_texts_pass_through),
        TEST(the_time_limit_kills_the_process_group),
        TEST(limits_end_commands_and_are_told),
        TEST(what_a_command_leaves_behind_ends_with_it),
        TEST(a_stopped_worker_lets_commands_end),
        TEST(commands_that_outlast_the_grace_are_given_back),
        TEST(a_second_signal_ends_it_at_once),
        TEST(a_cancelled_jobs_command_is_asked_to_end),
    };

    return cmocka_run_group_tests_name("program", tests, program_up, program_down);
}
