/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_systemd.c -- examples/systemd: what the worker tells systemd, here a socket of the test's
 * own, and what systemd says of the unit.
 */
#include "pg.h"

#include <dirent.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#define BINARY ".build/examples/systemd/worker"
#define PATIENCE_US 60000000

static char folder[64];
static int heard = -1; /* the socket */
static pid_t worker;

/* Listens as systemd does. Abstract names begin with @. */
static void listen_at(const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct timeval tick = {0, 100000};

    memcpy(at.sun_path, name, strlen(name));
    if (name[0] == '@') at.sun_path[0] = '\0';
    heard = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(heard >= 0);
    assert_int_equal(bind(heard, (struct sockaddr *)&at, (socklen_t)(strlen(name) +
                          offsetof(struct sockaddr_un, sun_path))), 0);
    assert_int_equal(setsockopt(heard, SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick), 0);
    setenv("NOTIFY_SOCKET", name, 1);
}

static void start(const char *of_schema)
{
    setenv("JOBQ_SCHEMA", of_schema, 1);
    setenv("WATCHDOG_USEC", "400000", 1);
    worker = fork();
    if (worker == 0) {
        execl(BINARY, BINARY, (char *)NULL);
        _exit(127);
    }
    assert_true(worker > 0);
}

/* The next message; "": none within 0.1 s. */
static const char *next(void)
{
    static char text[64];
    ssize_t got = recv(heard, text, sizeof text - 1, 0);

    text[got > 0 ? got : 0] = '\0';
    return text;
}

/* Waits for a message; returns how many times another one came before it. */
static int await(const char *wanted, const char *other)
{
    int64_t until = mono_us() + PATIENCE_US;
    int others = 0;
    const char *text;

    while (text = next(), strcmp(text, wanted) != 0) {
        others += strcmp(text, other) == 0;
        if (mono_us() > until) fail_msg("no %s", wanted);
    }
    return others;
}

static void ends_well(void)
{
    int status;

    assert_int_equal(waitpid(worker, &status, 0), worker);
    worker = 0;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void a_worker_tells_its_life(const char *name)
{
    int64_t id, until;
    bool ended = false;

    listen_at(name);
    start(schema);
    await("READY=1", "-");
    RUN("SELECT jobq.enqueue('mail', 'hello', '1')");
    id = number("SELECT max(id) FROM jobq.jobs");
    assert_int_equal(await("WATCHDOG=1", "READY=1"), 0); /* that is said once */
    assert_int_equal(await("WATCHDOG=1", "READY=1"), 0);
    for (until = mono_us() + PATIENCE_US; mono_us() < until && !ended; nap_us(10000))
        ended = number("SELECT count(*) FROM jobq.history WHERE id = %lld", (long long)id) == 1;
    assert_true(ended);
    kill(worker, SIGTERM);
    assert_int_equal(await("STOPPING=1", "READY=1"), 0);
    ends_well();
}

static void through_a_path(void **unused)
{
    char name[96];

    (void)unused;
    snprintf(name, sizeof name, "%s/notify", folder);
    a_worker_tells_its_life(name);
}

static void through_an_abstract_name(void **unused)
{
    char name[96];

    (void)unused;
    snprintf(name, sizeof name, "@jobq_systemd_%d", (int)getpid());
    a_worker_tells_its_life(name);
}

/* Stops all threads of the worker but its first one, or lets them go on. */
static bool hold_threads(bool hold)
{
    char path[64];
    struct dirent *entry;
    DIR *dir;
    bool all = true;

    snprintf(path, sizeof path, "/proc/%d/task", (int)worker);
    dir = opendir(path);
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        pid_t id = (pid_t)atoi(entry->d_name);

        if (id == 0 || id == worker) continue;
        if (!hold) all = ptrace(PTRACE_DETACH, id, NULL, NULL) == 0 && all;
        else if (ptrace(PTRACE_SEIZE, id, NULL, NULL) == 0)
            all = ptrace(PTRACE_INTERRUPT, id, NULL, NULL) == 0 &&
                  waitpid(id, NULL, __WALL) == id && all;
        else all = false;
    }
    closedir(dir);
    return all;
}

/* Its lease ends while its connection stands. Once it goes on, so does the watchdog's food. */
static void a_stuck_worker_starves_the_watchdog(void **unused)
{
    int64_t until, fed;
    char name[96];

    (void)unused;
    snprintf(name, sizeof name, "%s/notify", folder);
    listen_at(name);
    start(schema);
    await("READY=1", "-");
    if (!hold_threads(true)) {
        print_message("skipped: no ptrace\n");
        skip();
    }
    fed = mono_us();
    until = fed + PATIENCE_US;
    while (mono_us() - fed < 5000000) {
        if (strcmp(next(), "WATCHDOG=1") == 0) fed = mono_us();
        if (mono_us() > until) fail_msg("the watchdog is fed while the worker is stuck");
    }
    assert_true(hold_threads(false));
    await("WATCHDOG=1", "-");
    kill(worker, SIGTERM);
    await("STOPPING=1", "-");
    ends_well();
}

/* It is not ready where it cannot work. */
static void without_a_schema_it_never_is_ready(void **unused)
{
    char name[96];
    int status;

    (void)unused;
    snprintf(name, sizeof name, "%s/notify", folder);
    listen_at(name);
    start("jobq_nowhere");
    assert_int_equal(waitpid(worker, &status, 0), worker);
    worker = 0;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_string_equal(next(), "");
}

/* systemd-analyze only warns of what it does not know, so it must be silent. */
static void systemd_takes_the_unit(void **unused)
{
    char line[512];

    (void)unused;
    if (!machine_has("systemd-analyze", "command -v systemd-analyze >/dev/null")) skip();
    snprintf(line, sizeof line,
             "sed 's,^ExecStart=.*,ExecStart=/bin/true,' examples/systemd/jobq-worker.service "
             ">%s/jobq-worker@.service && said=$(systemd-analyze verify "
             "%s/jobq-worker@1.service 2>&1) && test -z \"$said\" || { echo \"$said\"; false; }",
             folder, folder);
    assert_int_equal(system(line), 0);
}

static int begin(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/jobq_systemd_XXXXXX");
    return mkdtemp(folder) == NULL ? 1 : pg_empty(state);
}

static int end(void **state)
{
    char line[96];

    (void)state;
    if (worker > 0 && kill(worker, SIGKILL) == 0) waitpid(worker, NULL, 0);
    worker = 0;
    if (heard >= 0) close(heard);
    heard = -1;
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line);
}

static int up(void **state)
{
    return system("make -s " BINARY " >/dev/null") == 0 ? pg_up(state) : 1;
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
    static const struct CMUnitTest tests[] = {
        TEST(through_a_path),
        TEST(through_an_abstract_name),
        TEST(a_stuck_worker_starves_the_watchdog),
        TEST(without_a_schema_it_never_is_ready),
        TEST(systemd_takes_the_unit),
    };

    return cmocka_run_group_tests_name("systemd", tests, up, pg_down);
}
