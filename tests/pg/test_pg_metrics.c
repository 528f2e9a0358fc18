/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Metrics: what processes count is what the fleet shows, even if they die; and the text, as
 * Prometheus reads it. test_core_tally.c has the deliveries under faults.
 */
#include "processes.h"

#include <math.h>

enum { TEXT = 1 << 18, PROCESSES = 3, LINES = 8000 };

/* What the processes of a test say at their end. */
static struct {
    char text[PROCESSES][TEXT];
} * said;

static int all_up(void **state)
{
    said = shared(sizeof *said);
    return common_up(state);
}

/* -- texts -- */

/* Lines of a text, by name and labels. */
typedef struct line {
    char key[256];
    double value;
} line;

static line ours[LINES], theirs[LINES];

static line *line_of(line *lines, int count, const char *key)
{
    int i = 0;

    while (i < count && strcmp(lines[i].key, key) != 0) i++;
    return i < count ? &lines[i] : NULL;
}

/* The name of a sample without the label schema, which only those of the fleet have. */
static void without_schema(char *name)
{
    char label[80], *at;

    snprintf(label, sizeof label, "schema=\"%s\"", schema);
    at = strstr(name, label);
    if (at == NULL) return;
    if (at[strlen(label)] == ',') memmove(at, at + strlen(label) + 1, strlen(at + strlen(label)));
    else at[-1] = '\0';
}

/* Adds the samples of a text to lines that are there, or to new ones. */
static int add_lines(line *lines, int count, const char *text)
{
    while (*text != '\0') {
        size_t len = strcspn(text, "\n"), key = len;
        char name[256];
        line *l;
        if (*text != '#') {
            while (text[key - 1] != ' ') key--;
            assert_true(key - 1 < sizeof name && count < LINES);
            snprintf(name, sizeof name, "%.*s", (int)key - 1, text);
            without_schema(name);
            l = line_of(lines, count, name);
            if (l == NULL) {
                l = &lines[count++];
                strcpy(l->key, name);
                l->value = 0;
            }
            l->value += atof(text + key);
        }
        text += len + (text[len] == '\n');
    }
    return count;
}

static double fleet_says(const char *key)
{
    char *text = text_of("SELECT jobq.metrics()");
    int count = add_lines(theirs, 0, text);
    line *l = line_of(theirs, count, key);

    free(text);
    return l == NULL ? -1 : l->value;
}

#define FLEET_SAYS(wanted, key) assert_int_equal((int)fleet_says(key), wanted)

/* The text of a worker in this process. The caller frees it. */
static char *worker_says(jobq_pg_worker *w)
{
    size_t need = jobq_pg_metrics(w, NULL, 0);
    char *text = malloc(need + 4096);

    assert_true(need > 0);
    assert_true(jobq_pg_metrics(w, text, need + 4096) < need + 4096);
    return text;
}

/* -- workers -- */

static jobq_outcome varied(jobq_call *call)
{
    nap_us((int64_t)(call->job.id % 5) * 3000);
    if (call->job.id % 10 == 3) return JOBQ_OUTCOME_DISCARD;
    if (call->job.id % 10 == 4) return JOBQ_OUTCOME_CANCELLED;
    if (call->job.id % 10 == 5 && call->job.attempt == 1) {
        jobq_call_delay(call, 1000);
        return JOBQ_OUTCOME_RETRY;
    }
    return JOBQ_OUTCOME_SUCCESS;
}

static jobq_outcome succeeds(jobq_call *call)
{
    (void)call;
    ADD(common->runs);
    return JOBQ_OUTCOME_SUCCESS;
}

static void enqueue_of(const char *queue, const char *kind, int count)
{
    jobq_pg_job job = plain_job();

    job.queue = queue;
    job.kind = kind;
    while (count-- > 0) enqueue_with(&job);
}

/* A worker in a process of its own, which leaves its metrics behind at its end. */
static pid_t spawn_telling(int who, const jobq_pg_worker_desc *desc)
{
    jobq_pg_error error;
    struct sigaction action;
    pid_t pid = fork();

    if (pid != 0) return pid;
    memset(&action, 0, sizeof action);
    action.sa_handler = child_stops;
    sigaction(SIGTERM, &action, NULL);
    if (jobq_pg_worker_start(handle(), desc, &child_worker, &error) != JOBQ_OK) _exit(3);
    if (child_asked) jobq_pg_worker_stop(child_worker);
    jobq_pg_worker_wait(child_worker, NULL);
    jobq_pg_metrics(child_worker, said->text[who], TEXT);
    _exit(0);
}

static void processes_add_up_to_the_fleet(void **unused)
{
    jobq_pg_handler handlers[3];
    jobq_pg_worker_desc d;
    pid_t pids[PROCESSES];
    double started = 0;
    char *text;
    int i, count = 0, all, status;

    (void)unused;
    handlers[0] = handler_of("q", "k", varied);
    handlers[1] = handler_of("q", "other", varied);
    handlers[2] = handler_of("r", "k", varied);
    d = work_of(handlers, 3);
    d.loop.batch_max = 3; /* each gets some */
    for (i = 0; i < PROCESSES; i++) pids[i] = spawn_telling(i, &d);
    enqueue_of("q", "k", 60);
    enqueue_of("q", "other", 30);
    enqueue_of("r", "k", 30);
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job"));
    for (i = 0; i < PROCESSES; i++) kill(pids[i], SIGTERM);
    for (i = 0; i < PROCESSES; i++) {
        waitpid(pids[i], &status, 0);
        assert_int_equal(status, 0);
        count = add_lines(ours, count, said->text[i]);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.worker"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.tally WHERE worker <> 0"), 0);
    text = text_of("SELECT jobq.metrics()");
    all = add_lines(theirs, 0, text);
    for (i = 0; i < count; i++) {
        const line *l = line_of(theirs, all, ours[i].key);
        if (strncmp(ours[i].key, "jobq_worker_threads", 19) == 0) continue;
        if (l == NULL || fabs(l->value - ours[i].value) > 1e-5)
            fail_msg("%s: %g of %g", ours[i].key, l == NULL ? -1 : l->value, ours[i].value);
        if (strncmp(ours[i].key, "jobq_jobs_total", 15) == 0) started += ours[i].value;
    }
    assert_int_equal((int)started, 132); /* twelve of them twice */
    assert_int_equal((int)line_of(theirs, all, "jobq_jobs_total{queue=\"q\",kind=\"k\","
                                               "outcome=\"retried\"}")->value, 6);
    free(text);
}

/* A line in the text of each, and the heads of the families that both have. */
static void a_process_and_the_fleet_use_the_same_words(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, succeeds);
    jobq_pg_worker *w;
    char *text, *fleet;
    const char *at, *end;

    (void)unused;
    enqueue_of("q", "k", 1);
    w = start(&d);
    assert_true(becomes(30, 0, "SELECT count(*) FROM jobq.job"));
    text = worker_says(w);
    stop(w);
    fleet = text_of("SELECT jobq.metrics()");
    at = text;
    for (end = strchr(at, '\n'); end != NULL; at = end + 1, end = strchr(at, '\n')) {
        char head[300];
        snprintf(head, sizeof head, "%.*s", (int)(end - at + 1), at);
        if (head[0] != '#' || strstr(head, "jobq_worker_threads") != NULL) continue;
        if (strstr(fleet, head) == NULL) fail_msg("only of a process: %s", head);
    }
    assert_string_equal(text + strlen(text) - 6, "# EOF\n");
    assert_string_equal(fleet + strlen(fleet) - 6, "# EOF\n");
    assert_non_null(strstr(text, "jobq_worker_threads{state=\"idle\"} 2\n"));
    assert_non_null(strstr(text, "messaging_system=\"jobq\""));
    free(text);
    text = text_of("SELECT messaging FROM (SELECT strpos(jobq.metrics(), 'messaging_system=\"' || "
                   "'jo' || 'bq\"') > 0 AS messaging) s");
    assert_string_equal(text, "t"); /* and not the name of the schema */
    free(text);
    free(fleet);
}

static void a_text_that_does_not_fit_is_cut(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, succeeds);
    jobq_pg_worker *w;
    char small[40], *text;
    size_t need;

    (void)unused;
    w = start(&d);
    text = worker_says(w);
    memset(small, 'x', sizeof small);
    need = jobq_pg_metrics(w, small, 20);
    assert_true(need >= strlen(text));
    assert_int_equal(small[19], '\0');
    assert_int_equal(small[20], 'x');
    assert_int_equal(strncmp(small, text, 19), 0);
    free(text);
    stop(w);
}

/* -- deliveries, by hand -- */

#define BEAT "jobq._heartbeat(%d, 60000000, '{}', p_tally => %d, p_tally_queues => " \
             "ARRAY(SELECT id FROM jobq.queue), p_tally_kinds => '{0}', p_totals => " \
             "array_fill(%d::bigint, '{53}'))"
#define SUCCEEDED "jobq_jobs_total{queue=\"q\",kind=\"other\",outcome=\"succeeded\"}"

static void a_late_delivery_changes_nothing(void **unused)
{
    (void)unused;
    register_worker(101, 60 * SECOND);
    RUN("SELECT " BEAT, 101, 1, 5);
    FLEET_SAYS(5, SUCCEEDED);
    RUN("SELECT " BEAT, 101, 3, 9);
    FLEET_SAYS(9, SUCCEEDED);
    RUN("SELECT " BEAT, 101, 2, 7);
    FLEET_SAYS(9, SUCCEEDED);
    RUN("SELECT " BEAT, 101, 3, 9);
    FLEET_SAYS(9, SUCCEEDED);
    RUN("SELECT jobq._heartbeat(101, 60000000, '{}')"); /* a worker in SQL */
    FLEET_SAYS(9, SUCCEEDED);
}

static void totals_survive_every_end_of_a_worker(void **unused)
{
    (void)unused;
    register_worker(101, 60 * SECOND);
    register_worker(102, 60 * SECOND);
    register_worker(103, 60 * SECOND);
    register_worker(104, 60 * SECOND);
    RUN("SELECT " BEAT, 101, 1, 1);
    RUN("SELECT " BEAT, 102, 1, 10);
    RUN("SELECT " BEAT, 103, 1, 100);
    RUN("SELECT " BEAT, 104, 1, 1000);
    FLEET_SAYS(1111, SUCCEEDED);
    RUN("SELECT jobq._deregister(101)"); /* stopped */
    FLEET_SAYS(1111, SUCCEEDED);
    RUN("UPDATE jobq.worker SET expires_at = 'epoch' WHERE id = 102");
    RUN("SELECT jobq._rescue(102, 1, 10)"); /* died */
    FLEET_SAYS(1111, SUCCEEDED);
    assert_int_equal(number("SELECT count(*) FROM jobq.tally WHERE worker IN (101, 102)"), 0);
    RUN("SELECT jobq._rescue(102, 1, 10)");
    RUN("SELECT jobq._deregister(101)");
    FLEET_SAYS(1111, SUCCEEDED);
    RUN("DELETE FROM jobq.worker WHERE id = 103"); /* its row was lost */
    RUN("UPDATE jobq.worker SET dead_at = 'epoch' WHERE id = 104");
    FLEET_SAYS(1111, SUCCEEDED);
    RUN("SELECT jobq.prune(10)");
    FLEET_SAYS(1111, SUCCEEDED);
    RUN("SELECT jobq.prune(10)");
    FLEET_SAYS(1111, SUCCEEDED);
    assert_int_equal(number("SELECT count(*) FROM jobq.tally WHERE worker <> 0"), 0);
}

/* A dead worker's counts have been added up: what it delivers now would count twice. */
static void the_dead_deliver_nothing(void **unused)
{
    (void)unused;
    register_worker(101, 60 * SECOND);
    RUN("SELECT " BEAT, 101, 1, 5);
    RUN("UPDATE jobq.worker SET expires_at = 'epoch' WHERE id = 101");
    RUN("SELECT jobq._rescue(101, 1, 10)");
    RUN("SELECT " BEAT, 101, 2, 6);
    FLEET_SAYS(5, SUCCEEDED);
    RUN("SELECT jobq._deregister(101, 3, ARRAY(SELECT id FROM jobq.queue), '{0}', "
        "array_fill(7::bigint, '{53}'))");
    FLEET_SAYS(5, SUCCEEDED);
    register_worker(102, 60 * SECOND);
    RUN("SELECT jobq._deregister(102, 1, ARRAY(SELECT id FROM jobq.queue), '{0}', "
        "array_fill(7::bigint, '{53}'))");
    FLEET_SAYS(12, SUCCEEDED);
    RUN("SELECT jobq._deregister(102, 1, ARRAY(SELECT id FROM jobq.queue), '{0}', "
        "array_fill(7::bigint, '{53}'))"); /* sent again, because its answer was lost */
    FLEET_SAYS(12, SUCCEEDED);
}

/* What libraries count in the future comes after what this one knows. */
static void shorter_and_longer_counts_are_added(void **unused)
{
    (void)unused;
    register_worker(101, 60 * SECOND);
    RUN("INSERT INTO jobq.tally SELECT 7, id, 0, 1, array_fill(3::bigint, '{60}') FROM jobq.queue");
    RUN("SELECT " BEAT, 101, 1, 5);
    RUN("SELECT jobq._deregister(101)");
    RUN("SELECT jobq._tally_fold('{7}')");
    assert_int_equal(number("SELECT counts[53] FROM jobq.tally"), 8);
    assert_int_equal(number("SELECT counts[60] FROM jobq.tally"), 3);
}

static void a_delivery_that_is_not_needed_writes_nothing(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d;
    long before;

    (void)unused;
    h = handler_of("q", "k", succeeds);
    d = work_of(&h, 1);
    enqueue_of("q", "k", 3);
    start(&d);
    assert_true(becomes(30, 3, "SELECT coalesce(sum(counts[1]), 0) FROM jobq.tally"));
    all_hear();
    before = number("SELECT max(xmin::text::bigint) FROM jobq.tally");
    all_hear();
    assert_int_equal(number("SELECT max(xmin::text::bigint) FROM jobq.tally"), before);
}

static void kinds_beyond_64_are_the_rest(void **unused)
{
    static char names[70][8];
    jobq_pg_handler handlers[70];
    jobq_pg_worker_desc d;
    jobq_pg_worker *w;
    char *text;
    int i, count;

    (void)unused;
    for (i = 0; i < 70; i++) {
        snprintf(names[i], sizeof names[i], "k%d", i);
        handlers[i] = handler_of("q", names[i], succeeds);
        enqueue_of("q", names[i], 1);
    }
    d = work_of(handlers, 70);
    w = start(&d);
    assert_true(becomes(60, 0, "SELECT count(*) FROM jobq.job"));
    text = worker_says(w);
    count = add_lines(ours, 0, text);
    assert_int_equal((int)line_of(ours, count, SUCCEEDED)->value, 6);
    free(text);
    stop(w);
    FLEET_SAYS(6, SUCCEEDED);
    assert_int_equal(number("SELECT count(*) FROM jobq.times"), 66);
    assert_int_equal(number("SELECT started FROM jobq.times WHERE kind = 'other'"), 6);
    assert_int_equal(number("SELECT started FROM jobq.times WHERE kind IS NULL"), 70);
}

/* -- times -- */

static void bounds_are_those_of_the_library(void **unused)
{
    int32_t i;

    (void)unused;
    assert_int_equal(number("SELECT cardinality(jobq._times_bounds())"), JOBQ_TIMES_BUCKETS - 1);
    for (i = 0; i < JOBQ_TIMES_BUCKETS - 1; i++) {
        assert_int_equal(number("SELECT (jobq._times_bounds())[%d]", (int)i + 1),
                         jobq_times_bound(i));
    }
}

static void quantiles_are_interpolated(void **unused)
{
    (void)unused;
    expect_text("00:00:00.0025", "SELECT jobq._times_quantile('{4,0,0,0}', 0.5)");
    expect_text("00:00:00.005", "SELECT jobq._times_quantile('{2,2,0,0}', 0.5)");
    expect_text("00:00:00.0175", "SELECT jobq._times_quantile('{0,0,100,0}', 0.5)");
    expect_text("00:00:00.02425", "SELECT jobq._times_quantile('{0,0,100,0}', 0.95)");
    expect_text("01:00:00", "SELECT jobq._times_quantile(array_fill(0::bigint, '{19}') || '{1}', "
                            "0.5)");
    expect_text("t", "SELECT jobq._times_quantile(array_fill(0::bigint, '{20}'), 0.5) IS NULL");
}

static void the_slowest_kinds_come_first(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', kinds => '{quick,slow}')");
    RUN("INSERT INTO jobq.tally SELECT 0, queue_id, id, 1, array_fill(0::bigint, '{11}') || "
        "array_fill(1::bigint, '{21}') || CASE name WHEN 'slow' THEN "
        "array_fill(0::bigint, '{15}') || '{20,0,0,0,0,7}' ELSE '{20}' || "
        "array_fill(0::bigint, '{20}') END FROM jobq.kind");
    expect_text("slow", "SELECT kind FROM (SELECT kind FROM jobq.times LIMIT 1) t");
    assert_int_equal(number("SELECT count(*) FROM jobq.times WHERE kind = 'quick' AND "
                            "running_p99 < '5 ms'"), 1);
    assert_int_equal(number("SELECT count(*) FROM jobq.times WHERE kind = 'slow' AND "
                            "running_p50 = '45 s' AND running_total = '7 us'"), 1);
}

/* -- the text -- */

static void labels_are_escaped(void **unused)
{
    (void)unused;
    expect_text("a\\\"b\\\\c\\nd", "SELECT jobq._metric_label(E'a\"b\\\\c\\nd')");
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 min')");
    RUN("UPDATE jobq.schedule SET name = E'a\"b\\\\c'"); /* no function writes such a name */
    assert_true(fleet_says("jobq_schedule_lateness_seconds{schedule=\"a\\\"b\\\\c\"}") >= 0);
}

static void queues_and_outbox_are_told(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', kinds => '{k}', running_max => 3)");
    RUN("SELECT jobq.enqueue('q', 'k', '1') FROM generate_series(1, 7)");
    RUN("SELECT jobq.enqueue('q', 'k', '1', delay => '1 h')");
    RUN("SELECT jobq.outbox_register('o', 2)");
    RUN("SELECT jobq.outbox_enqueue('o', '1') FROM generate_series(1, 5)");
    FLEET_SAYS(7, "jobq_queue_jobs{queue=\"q\",state=\"ready\"}");
    FLEET_SAYS(1, "jobq_queue_jobs{queue=\"q\",state=\"scheduled\"}");
    FLEET_SAYS(0, "jobq_queue_jobs{queue=\"q\",state=\"running\"}");
    assert_true(fleet_says("jobq_queue_lateness_seconds{queue=\"q\"}") > 0);
    FLEET_SAYS(0, "jobq_workers{queue=\"q\"}");
    register_worker(101, 60 * SECOND);
    FLEET_SAYS(1, "jobq_workers{queue=\"q\"}");
    FLEET_SAYS(5, "jobq_outbox_lag_at_least_messages{queue=\"o\"}");
    assert_true(fleet_says("jobq_outbox_lateness_seconds{queue=\"o\"}") > 0);
    FLEET_SAYS(0, "jobq_dead_letters{queue=\"o\",status=\"pending\"}");
    FLEET_SAYS(0, "jobq_limit_held{queue=\"q\",kind=\"\"}");
    FLEET_SAYS(3, "jobq_limit_max{queue=\"q\",kind=\"\"}");
    FLEET_SAYS(0, "jobq_queue_paused{queue=\"q\"}");
    FLEET_SAYS(0, "jobq_outbox_degraded_partitions{queue=\"o\"}");
}

static void the_schema_is_told(void **unused)
{
    double enqueued = fleet_says("jobq_jobs_enqueued_total");
    char *text;

    (void)unused;
    enqueue_of("q", "k", 3);
    assert_int_equal((int)(fleet_says("jobq_jobs_enqueued_total") - enqueued), 3);
    FLEET_SAYS(1, "jobq_schema_info{version=\"12\"}");
    FLEET_SAYS(0, "jobq_flows_held");
    RUN("SELECT jobq.enqueue('q', 'k', after => ARRAY[jobq.enqueue('q', 'k')], "
        "flow => jobq.flow('f'))");
    RUN("SELECT jobq._finish(ARRAY(SELECT id FROM jobq.job WHERE state = 'r'), 'f', '{}')");
    FLEET_SAYS(1, "jobq_flows_held");
    FLEET_SAYS((int)number("SELECT count(*) FROM jobq.doctor() WHERE severity = 'critical'"),
               "jobq_findings{severity=\"critical\"}");
    RUN("INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt,"
        " crash, priority, stage, stages) SELECT 1000000 + n, now(), now(), now(), id, 1, 1, 0, 0,"
        " 0, 1 FROM jobq.queue, generate_series(1, 5000) n WHERE name = 'q'");
    RUN("ANALYZE jobq.failed");
    assert_true(fleet_says("jobq_queue_jobs{queue=\"q\",state=\"failed\"}") > 4500);
    text = text_of("SELECT count(*) FROM regexp_split_to_table(jobq.metrics(), '\n') l "
                   "WHERE l !~ '^(#|$)' AND l !~ '^[a-z_]+[{]schema=\"%s\"[,}]'", schema);
    assert_string_equal(text, "0"); /* each sample has its schema */
    free(text);
}

static void held_lines_are_told(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', kinds => '{k}')");
    FLEET_SAYS(0, "jobq_held_lines{queue=\"q\"}");
    RUN("SELECT jobq.hold('q', 'line' || n, until => now() + interval '1 h') "
        "FROM generate_series(1, 3) n");
    RUN("SELECT jobq.line_set('q', 'other', running_max => 1)");
    RUN("UPDATE jobq.line SET hold_until = now() - interval '1 s' WHERE name = 'line3'");
    FLEET_SAYS(2, "jobq_held_lines{queue=\"q\"}");
    expect_text("t", "SELECT EXISTS (SELECT FROM pg_indexes WHERE indexname = 'line_held')");
}

/* promtool reads the older format, which names counters otherwise, and OpenMetrics with times. */
static void promtool_says(const char *text)
{
    char path[200], command[1600];
    FILE *file;

    snprintf(path, sizeof path, "%s/jobq_metrics_%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp",
             (int)getpid());
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    snprintf(command, sizeof command,
             "awk '/^# TYPE .* counter$/ { c[$3] = 1 } /^# UNIT/ { next } "
             "/^#/ && c[$3] { $3 = $3 \"_total\" } { print }' %s | promtool check metrics && "
             "awk '/^#/ { print; next } { print $0, 1700000000 }' %s >%s.om && "
             "promtool tsdb create-blocks-from openmetrics %s.om %s.blocks >/dev/null",
             path, path, path, path, path);
    if (system(command) != 0) fail_msg("promtool does not accept %s", path);
    snprintf(command, sizeof command, "rm -rf %s %s.om %s.blocks", path, path, path);
    assert_int_equal(system(command), 0);
}

static void without_promtool(void)
{
    if (system("command -v promtool >/dev/null 2>&1") == 0) return;
    print_message("promtool is missing (Debian: prometheus): not checked\n");
    skip();
}

static void promtool_accepts_the_texts(void **unused)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = one_kind(&h, succeeds);
    jobq_pg_worker *w;
    char *text;

    (void)unused;
    without_promtool();
    queues_and_outbox_are_told(NULL);
    RUN("SELECT jobq._deregister(101)");
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 min')");
    RUN("UPDATE jobq.schedule SET name = E'a\"b\\\\c'"); /* no function writes such a name */
    w = start(&d);
    assert_true(becomes(30, 1, "SELECT count(*) FROM jobq.job"));
    text = worker_says(w);
    promtool_says(text);
    free(text);
    stop(w);
    text = text_of("SELECT jobq.metrics()");
    promtool_says(text);
    free(text);
}

/* The rules and the dashboard of examples/metrics/ name only what the fleet tells. */
static void names_are_told(const char *path, const char *told)
{
    FILE *file = fopen(path, "r");
    char text[TEXT], name[200];
    int names = 0;
    char *at;

    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    for (at = text; (at = strpbrk(at, "jm")) != NULL; at++) {
        size_t len = strspn(at, "abcdefghijklmnopqrstuvwxyz_");
        if (strncmp(at, "jobq_", 5) != 0 && strncmp(at, "messaging_", 10) != 0) continue;
        snprintf(name, sizeof name, "%.*s", (int)len, at);
        if (strstr(told, name) == NULL) fail_msg("%s: %s is not told", path, name);
        at += len - 1;
        names++;
    }
    assert_true(names > 5);
}

/* Each alert says where to read on, and the page has that heading. */
static void runbooks_are_there(void)
{
    assert_int_equal(system("cd examples && test $(grep -c ' alert: ' metrics/alerts.yml) = "
                            "$(grep -c runbook_url: metrics/alerts.yml) && "
                            "for at in $(grep -o 'README.md#[a-z-]*' metrics/alerts.yml); do "
                            "sed -n 's/^##* //p' jobq/README.md | tr 'A-Z ' 'a-z-' | "
                            "grep -qx \"${at#*#}\" || exit 1; done"), 0);
}

static void alerts_and_dashboard_name_what_is_told(void **unused)
{
    char *text;

    (void)unused;
    RUN("SELECT jobq.queue_set('q', kinds => '{k}', running_max => 3)");
    RUN("SELECT jobq.outbox_register('o', 2)");
    RUN("SELECT jobq.schedule('s', 'q', 'k', every => '1 min')");
    RUN("INSERT INTO jobq.tally SELECT 0, id, 0, 1, array_fill(1::bigint, '{53}') FROM jobq.queue");
    text = text_of("SELECT jobq.metrics()");
    names_are_told("examples/metrics/alerts.yml", text);
    names_are_told("examples/metrics/dashboard.json", text);
    free(text);
    runbooks_are_there();
    without_promtool();
    assert_int_equal(system("promtool check rules examples/metrics/alerts.yml >/dev/null"), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh, all_stop)

/* -- its cost -- */

/* The processor time of the server process of db, in ticks; -1: this system does not tell. */
static long server_ticks(void)
{
    char path[60];
    long user = -1, system = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/stat", PQbackendPID(db));
    file = fopen(path, "r");
    if (file == NULL) return -1;
    if (fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user,
               &system) != 2) user = -1;
    fclose(file);
    return user < 0 ? -1 : user + system;
}

/* The processor time of a number of calls, with a number of kinds. */
static long metrics_ticks(int kinds, int calls)
{
    long before;

    RUN("DELETE FROM jobq.tally");
    RUN("SELECT jobq.queue_set('q', kinds => ARRAY(SELECT 'k' || n FROM generate_series(1, %d) n))",
        kinds);
    RUN("INSERT INTO jobq.tally SELECT 0, queue_id, id, 1, array_fill(3::bigint, '{60}') "
        "FROM jobq.kind");
    before = server_ticks();
    while (calls-- > 0) RUN("SELECT jobq.metrics()");
    return server_ticks() - before;
}

/* Ten times as many kinds cost ten times as much, and not a hundred times. Processor time, because
 * the machine may be busy. */
static void the_cost_grows_with_the_kinds_only(void **unused)
{
    long few, many;

    (void)unused;
    if (server_ticks() < 0) skip();
    few = metrics_ticks(300, 10);
    many = metrics_ticks(3000, 1);
    assert_true(few > 0);
    if (many > 4 * few) fail_msg("300 kinds: %ld ticks; 3000 kinds: %ld ticks", few / 10, many);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(processes_add_up_to_the_fleet),
        TEST(a_process_and_the_fleet_use_the_same_words),
        TEST(a_text_that_does_not_fit_is_cut),
        TEST(a_late_delivery_changes_nothing),
        TEST(totals_survive_every_end_of_a_worker),
        TEST(the_dead_deliver_nothing),
        TEST(shorter_and_longer_counts_are_added),
        TEST(a_delivery_that_is_not_needed_writes_nothing),
        TEST(the_cost_grows_with_the_kinds_only),
        TEST(kinds_beyond_64_are_the_rest),
        TEST(bounds_are_those_of_the_library),
        TEST(quantiles_are_interpolated),
        TEST(the_slowest_kinds_come_first),
        TEST(labels_are_escaped),
        TEST(queues_and_outbox_are_told),
        TEST(the_schema_is_told),
        TEST(promtool_accepts_the_texts),
        TEST(held_lines_are_told),
        TEST(alerts_and_dashboard_name_what_is_told),
    };

    return cmocka_run_group_tests_name("metrics", tests, all_up, pg_down);
}
