/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_top.c -- jobq top in a real terminal: tmux sends the keys and reads the screen.
 */
#include "pg.h"

#define BINARY ".build/jobq"

static char folder[64];      /* of what the program's shell writes */
static PGconn *holder;       /* what it holds ends with the test */
static int terminals;        /* how many there were; each has a server of tmux */
static char screen[1 << 16]; /* as last seen */

/* Runs a command of tmux, on a server of this program's own. Its output is in screen. */
static void tmux(const char *format, ...)
{
    char command[4096];
    size_t used = (size_t)snprintf(command, sizeof command,
                                   "exec tmux -u -f /dev/null -S %s/tmux%d ", folder, terminals);
    va_list args;
    FILE *pipe;

    va_start(args, format);
    vsnprintf(command + used, sizeof command - used, format, args);
    va_end(args);
    strncat(command, " 2>&1", sizeof command - strlen(command) - 1);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    screen[fread(screen, 1, sizeof screen - 1, pipe)] = '\0';
    if (pclose(pipe) != 0) fail_msg("%s: %s", command, screen);
}

static void look(void) { tmux("capture-pane -p"); }

/* Starts jobq top in a new terminal. Its exit code is written below. env: NAME=VALUE */
static void begin(const char *env, int width, int height)
{
    const char *program = getenv("JOBQ_PROGRAM") != NULL ? getenv("JOBQ_PROGRAM") : BINARY;

    terminals++;
    tmux("new-session -d -x %d -y %d 'echo before; stty -g >%s/stty; "
         "sh -c \"echo \\$\\$ >%s/pid; exec env %s %s --schema %s top\"; "
         "echo code $?; stty -g | cmp %s/stty - && echo same tty; sleep 100'", width, height,
         folder, folder, env, program, schema, folder);
}

/* Waits until the screen shows a text, or no longer shows it. */
static void wait_for(const char *text, bool there)
{
    int64_t until = mono_us() + 10 * SECOND;

    for (look(); (strstr(screen, text) != NULL) != there; look()) {
        if (mono_us() > until) fail_msg("%s\"%s\" on:\n%s", there ? "no " : "", text, screen);
        nap_us(20000);
    }
}

static void shows(const char *text) { wait_for(text, true); }
static void hides(const char *text) { wait_for(text, false); }

static void keys(const char *names) { tmux("send-keys %s", names); }

/* Ends it. The terminal must be as it was; only vt100 cannot bring back what it showed. */
static void quit_vt100(void)
{
    keys("q");
    shows("code 0");
    shows("same tty");
    tmux("kill-server");
}

static void quit(void)
{
    keys("q");
    shows("before");
    quit_vt100();
}

static int64_t fail_one(const char *queue, const char *error)
{
    jobq_pg_job job = plain_job();
    int64_t id;

    job.queue = queue;
    job.kind = "broken";
    id = enqueue_with(&job);
    RUN("SELECT jobq._finish(ARRAY[%lld], 'f', '{\"at\": \"now\", \"stage\": 0, \"attempt\": 1, "
        "\"error\": \"%s\"}')", (long long)id, error);
    return id;
}

/* A running job of queue q, with a worker of a long lease. */
static int64_t run_one(void)
{
    jobq_pg_job job = plain_job();
    int64_t id = enqueue_with(&job);

    register_worker(7, 600 * SECOND);
    assert_int_equal(claim_one(7, 1, 0).id, id);
    RUN("UPDATE jobq.claim SET progress = '{\"%lld\": [425, \"page 3 \\u8eca\", \"2026-01-01\"]}'",
        (long long)id);
    return id;
}

/* ---- what is shown --------------------------------------------------------------------------- */

static void everything_is_shown(void **unused)
{
    (void)unused;
    holder = PQconnectdb(server());
    run_one();
    fail_one("mail", "no\\u001b[31m host\\u009b\\u202e end");
    RUN("SELECT jobq.enqueue('video', 'encode', delay => '1 hour')");
    RUN("SELECT jobq.schedule('nightly', 'mail', 'digest', cron => '0 3 * * *')");
    RUN("SELECT jobq.queue_set('video', running_max => 3)");
    RUN("SELECT jobq.enqueue('mail', 'welcome', line => '\u8eca\u8eca\u8eca')");
    RUN("SELECT jobq.line_set('mail', '\u8eca\u8eca\u8eca', paused => true)");
    RUN("SELECT jobq.outbox_register('orders', 2)");
    RUN("SELECT jobq.outbox_enqueue('orders', '1')");
    RUN("SELECT jobq.pause('mail')");
    PQclear(PQexec(holder, "BEGIN ISOLATION LEVEL REPEATABLE READ"));
    PQclear(PQexec(holder, "SELECT 'holds vacuum'"));
    begin("LC_ALL=C.UTF-8", 150, 50);
    shows("Queues 4");
    shows("mail      paused");
    shows("Running 1");
    shows("####......  42 %");
    shows("page 3 \u8eca");
    shows("Failures 1");
    shows("no?[31m host?? end");
    shows("Workers 1");
    shows("same-name  working"); /* asleep, too: it would take more */
    shows("Schedules 1");
    shows("nightly");
    shows("0 3 * * *");
    shows("Limits 1");
    shows("Lines 1");
    shows("\u8eca\u8eca\u8eca   mail");
    shows("Outbox 1");
    shows("orders");
    shows("Snapshots");
    shows("SELECT 'holds vacuum'");
    PQfinish(holder);
    holder = NULL;
    hides("SELECT 'holds vacuum'");
    keys("?");
    shows("Shift-Tab");
    keys("x");
    hides("Shift-Tab");
    quit();
}

/* A screen that is small, or changes its size, shows what fits. */
static void small_screens_show_what_fits(void **unused)
{
    int i;

    (void)unused;
    run_one();
    RUN("SELECT jobq.enqueue('queue' || n, 'k') FROM generate_series(10, 40) n");
    fail_one("mail", "no host");
    RUN("SELECT jobq.enqueue('q', 'k', line => repeat('\u8eca', 40))");
    begin("LC_ALL=C.UTF-8", 60, 15);
    shows(" of 33");
    shows("Running 1");
    shows("Tab also shows:");
    shows("Lines 1");
    keys("s"); /* by name */
    for (i = 0; i < 20; i++) keys("j");
    shows("queue30");
    keys("Tab Tab Tab Tab");
    shows("\u8eca\u8eca\u8eca\u8eca\u8eca\u8eca~");
    tmux("resize-window -x 120 -y 40");
    hides("Tab also shows:");
    shows("Failures 1");
    tmux("resize-window -x 20 -y 4");
    hides("Failures 1");
    tmux("resize-window -x 1 -y 1");
    nap_us(100000);
    tmux("resize-window -x 80 -y 24");
    shows("Failures 1");
    quit();
}

static void terminals_without_colour_do(void **unused)
{
    static const char *const useless[] = {"TERM=nonesuch", "TERM=dumb"};
    size_t i;

    (void)unused;
    fail_one("mail", "bytes \u8eca");
    begin("LC_ALL=C.UTF-8", 100, 30);
    shows("bytes \u8eca");
    tmux("capture-pane -p -e");
    assert_non_null(strstr(screen, "\033[31m"));
    quit();
    begin("LC_ALL=C.UTF-8 NO_COLOR=1", 100, 30);
    shows("bytes \u8eca");
    tmux("capture-pane -p -e");
    assert_null(strstr(screen, "\033[31m"));
    assert_non_null(strstr(screen, "\033[1m"));
    quit();
    begin("LC_ALL=C TERM=vt100", 100, 30);
    shows("bytes ?");
    quit_vt100();
    for (i = 0; i < COUNT(useless); i++) {
        begin(useless[i], 100, 30);
        shows("top needs a terminal that it knows");
        shows("code 1");
        shows("same tty");
        tmux("kill-server");
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void p_pauses_and_resumes(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.enqueue('a', 'k'), jobq.enqueue('b', 'k')");
    begin("LC_ALL=C.UTF-8", 80, 24);
    shows("Queues 2");
    keys("r");
    shows("revives one of the Failures");
    keys("j p");
    shows("b: paused");
    shows("b         paused");
    expect_text("b", "SELECT string_agg(queue, ' ') FROM jobq.queues WHERE paused");
    RUN("SELECT jobq.enqueue('aa', 'k')"); /* the selection stays with its row */
    shows("Queues 3");
    keys("p");
    shows("b: resumed");
    hides("b         paused");
    assert_int_equal(number("SELECT count(*) FROM jobq.queues WHERE paused"), 0);
    quit();
}

static void r_revives(void **unused)
{
    int64_t id = fail_one("mail", "no host");
    char text[64];

    (void)unused;
    begin("LC_ALL=C.UTF-8", 80, 24);
    shows("Failures 1");
    keys("Tab r");
    snprintf(text, sizeof text, "%lld: revived", (long long)id);
    shows(text);
    hides("Failures 1");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 1);
    quit();
}

static void c_asks_and_cancels(void **unused)
{
    static const char requested[] =
        "SELECT count(*) FROM jobq.job WHERE cancel_requested_at IS NOT NULL";
    int64_t id = run_one();
    char text[64];

    (void)unused;
    begin("LC_ALL=C.UTF-8", 80, 24);
    shows("Running 1");
    keys("Tab c");
    snprintf(text, sizeof text, "Cancel job %lld? y/n", (long long)id);
    shows(text);
    keys("n");
    shows("not cancelled");
    nap_us(500000);
    assert_int_equal(number(requested), 0);
    keys("c y");
    snprintf(text, sizeof text, "%lld: requested", (long long)id);
    shows(text);
    assert_int_equal(number(requested), 1);
    quit();
}

static void flows_go_on_and_end(void **unused)
{
    long flow;

    (void)unused;
    flow = number("SELECT jobq.flow('import')");
    RUN("SELECT jobq.enqueue('q', 'load', flow => %ld, name => 'load')", flow);
    RUN("SELECT jobq.enqueue('q', 'merge', flow => %ld, after_names => '{load}')", flow);
    RUN("SELECT jobq._finish(ARRAY(SELECT min(id) FROM jobq.job), 'f', '{\"error\": \"no\"}')");
    begin("LC_ALL=C.UTF-8", 120, 30);
    shows("Flows 1");
    shows("import  held   #####.....  50 %");
    keys("Tab Tab r");
    shows("failed jobs revived");
    shows("import  running");
    keys("c");
    shows("Cancel flow");
    keys("y");
    hides("import  running");
    assert_int_equal(number("SELECT count(*) FROM jobq.flows WHERE state = 'ended'"), 1);
    quit();
}

/* Its running job was not asked, because somebody held it meanwhile. */
static void a_flow_is_cancelled_again(void **unused)
{
    int64_t id = run_one();

    (void)unused;
    RUN("UPDATE jobq.job SET flow_id = jobq.flow('import') WHERE id = %lld", (long long)id);
    RUN("UPDATE jobq.flow SET cancelled_at = now()");
    begin("LC_ALL=C.UTF-8", 120, 30);
    shows("import  cancelled");
    keys("Tab Tab c");
    shows("Cancel flow");
    keys("y");
    shows(": cancelled");
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE cancel_requested_at IS NOT NULL"),
                     1);
    quit();
}

static void slash_filters(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.enqueue('apple', 'k'), jobq.enqueue('plum', 'k')");
    fail_one("plum", "worm in the Apple");
    fail_one("plum", "no host");
    begin("LC_ALL=C.UTF-8", 80, 24);
    shows("Queues 2");
    shows("no host");
    keys("/ A P q BSpace P");
    shows("/APP_");
    hides("no host");
    keys("Enter");
    shows("Only rows with \"APP\"");
    shows("Queues 1");
    shows("Failures 1");
    keys("Escape");
    shows("Queues 2");
    shows("no host");
    quit();
}

/* ---- the server, the end --------------------------------------------------------------------- */

/* Makes a role, and the program becomes it. */
static const char *become(const char *grant)
{
    static char role[40];
    char sql_text[128];

    snprintf(role, sizeof role, "jobq_top_%d", (int)getpid());
    RUN("CREATE ROLE %s", role);
    snprintf(sql_text, sizeof sql_text, grant, role);
    RUN("%s", sql_text);
    snprintf(sql_text, sizeof sql_text, "-c role=%s", role);
    setenv("PGOPTIONS", sql_text, 1);
    return role;
}

static void unbecome(const char *role)
{
    unsetenv("PGOPTIONS");
    RUN("DROP OWNED BY %s", role);
    RUN("DROP ROLE %s", role);
}

static void a_reader_is_refused(void **unused)
{
    const char *role = become("SELECT jobq.grant_read('%s', payloads => false)");

    (void)unused;
    RUN("SELECT jobq.enqueue('a', 'k')");
    begin("LC_ALL=C.UTF-8", 80, 24);
    shows("Queues 1");
    keys("p");
    shows("a: permission denied for function pause");
    assert_int_equal(number("SELECT count(*) FROM jobq.queues WHERE paused"), 0);
    quit();
    RUN("SELECT jobq.revoke('%s')", role);
    begin("LC_ALL=C.UTF-8", 80, 24);
    shows("permission denied for schema");
    shows("code 1");
    tmux("kill-server");
    unbecome(role);
}

static void it_sends_one_statement_a_second(void **unused)
{
    const char *role = become("SELECT jobq.grant_read('%s')");
    char calls[256];
    int64_t from;
    long before, after;

    (void)unused;
    PQclear(PQexec(db, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"));
    snprintf(calls, sizeof calls,
             "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s "
             "JOIN pg_roles r ON r.oid = s.userid WHERE r.rolname = '%s'", role);
    run_one();
    begin("LC_ALL=C.UTF-8", 80, 24);
    shows("Running 1");
    before = number("%s", calls);
    from = mono_us();
    while (mono_us() < from + 3 * SECOND || (mono_us() < from + 40 * SECOND &&
                                             number("%s", calls) < before + 2))
        keys("j"), nap_us(100000);
    after = number("%s", calls) - before;
    if (after < 2 || after > (mono_us() - from) / SECOND + 1) fail_msg("%ld statements", after);
    quit();
    unbecome(role);
}

/* What its connection has run last. */
#define LOOK "'(SELECT ''queues'', c0%%'"

/* Queues with trouble first, pages, a section of its own, and what needs attention. */
static void trouble_comes_first(void **unused)
{
    int i;

    (void)unused;
    for (i = 10; i < 40; i++) RUN("SELECT jobq.queue_set('queue%d')", i);
    RUN("SELECT jobq.enqueue('queue35', 'k')");
    begin("LC_ALL=C.UTF-8", 120, 24);
    shows(" attention");
    shows("no living worker serves queue queue35, in which jobs are ready: 1");
    shows("queue35"); /* of 30 queues, and few are shown */
    hides("queue38");
    keys("Enter");
    shows("Tab also shows:");
    hides("What is wrong");
    keys("G");
    shows("queue39");
    keys("s g");
    shows("queue10");
    hides("queue35 ");
    keys("PageDown PageDown");
    shows("queue39");
    quit();
}

/* Beyond 10,000 a number is an estimate, or means at least, and says so. */
static void numbers_say_what_they_are(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.queue_set('q', kinds => '{k}')");
    RUN("INSERT INTO jobq.job (queue_id, kind_id) SELECT queue_id, id FROM jobq.kind, "
        "generate_series(1, 10500)");
    RUN("ANALYZE jobq.job");
    RUN("INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt,"
        " crash, priority, stage, stages) SELECT 100000 + n, now(), now(), now(), queue_id, id, 1,"
        " 0, 0, 0, 1 FROM jobq.kind, generate_series(1, 10500) n");
    begin("LC_ALL=C.UTF-8", 120, 30);
    shows("\u2248 10");
    shows("\u2265 10000");
    shows("of \u2265 50");
    quit();
    begin("LC_ALL=C", 120, 30);
    shows("~ 10");
    shows(">= 10000");
    quit();
}

static void a_lost_connection_comes_back(void **unused)
{
    (void)unused;
    RUN("SELECT jobq.enqueue('a', 'k')");
    begin("LC_ALL=C.UTF-8", 100, 24);
    shows("Queues 1");
    RUN("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE " LOOK);
    shows("connection lost, trying again");
    shows("connected again");
    hides("connection lost");
    RUN("SELECT jobq.enqueue('b', 'k')");
    shows("Queues 2");
    quit();
}

/* A look that waits for a lock: keys work, and the next look shows what there is. */
static void keys_work_while_the_server_does_not_answer(void **unused)
{
    (void)unused;
    holder = PQconnectdb(server());
    RUN("SELECT jobq.enqueue('a', 'k')");
    begin("LC_ALL=C.UTF-8", 80, 24);
    shows("Queues 1");
    PQclear(sql(holder, "BEGIN; LOCK jobq.queue"));
    shows("no answer for ");
    keys("?");
    shows("Shift-Tab");
    look();
    assert_non_null(strstr(screen, "no answer for")); /* the look still waits */
    keys("x p");
    hides("Shift-Tab");
    PQfinish(holder);
    holder = NULL;
    shows("a: paused");
    hides("no answer for");
    quit();
}

/* Whatever ends it, the terminal is as before. */
static void signals_leave_the_terminal_as_it_was(void **unused)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    char pid[16], path[96];
    FILE *file;
    size_t i;

    (void)unused;
    RUN("SELECT jobq.enqueue('a', 'k')");
    for (i = 0; i < COUNT(ends); i++) {
        begin("LC_ALL=C.UTF-8", 80, 24);
        shows("Queues 1");
        snprintf(path, sizeof path, "%s/pid", folder);
        file = fopen(path, "r");
        assert_non_null(file);
        assert_non_null(fgets(pid, sizeof pid, file));
        fclose(file);
        if (ends[i] == SIGINT) keys("C-c");
        else assert_int_equal(kill((pid_t)atol(pid), ends[i]), 0);
        shows("code 0");
        shows("same tty");
        hides("Queues 1");
        tmux("kill-server");
    }
    /* Its terminal goes away: it ends, too. */
    begin("LC_ALL=C.UTF-8", 80, 24);
    shows("Queues 1");
    assert_int_equal(number("SELECT count(*) FROM pg_stat_activity WHERE query LIKE " LOOK), 1);
    tmux("kill-server");
    assert_true(becomes(10, 0, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE " LOOK));
}

/* The program gets the server as a user gives it, from the environment. */
static int top_up(void **state)
{
    PQconninfoOption *options, *o;

    snprintf(folder, sizeof folder, "/tmp/jobq_top_XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    options = PQconninfoParse(server(), NULL);
    for (o = options; o != NULL && o->keyword != NULL; o++) {
        if (o->val != NULL && o->envvar != NULL) setenv(o->envvar, o->val, 1);
    }
    PQconninfoFree(options);
    if (getenv("JOBQ_PROGRAM") == NULL && system("make -s " BINARY " >/dev/null 2>&1") != 0)
        return 1;
    return pg_up(state);
}

static int top_down(void **state)
{
    char text[96];

    snprintf(text, sizeof text, "rm -rf %s", folder);
    if (system(text) != 0) return 1;
    return pg_down(state);
}

/* A failed test leaves its terminal, and what it holds. */
static int no_terminal(void **state)
{
    char text[128];

    (void)state;
    PQfinish(holder);
    holder = NULL;
    snprintf(text, sizeof text, "tmux -S %s/tmux%d kill-server 2>/dev/null || :", folder,
             terminals);
    return system(text);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, pg_empty, no_terminal)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(everything_is_shown),
        TEST(small_screens_show_what_fits),
        TEST(terminals_without_colour_do),
        TEST(p_pauses_and_resumes),
        TEST(r_revives),
        TEST(c_asks_and_cancels),
        TEST(flows_go_on_and_end),
        TEST(a_flow_is_cancelled_again),
        TEST(slash_filters),
        TEST(a_reader_is_refused),
        TEST(it_sends_one_statement_a_second),
        TEST(trouble_comes_first),
        TEST(numbers_say_what_they_are),
        TEST(a_lost_connection_comes_back),
        TEST(keys_work_while_the_server_does_not_answer),
        TEST(signals_leave_the_terminal_as_it_was),
    };

    if (!HAS_PTY) return printf(" %d SKIPPED TEST(S)\n", (int)COUNT(tests)), 0;
    return cmocka_run_group_tests_name("top", tests, top_up, top_down);
}
