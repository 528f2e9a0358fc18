/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The contracts of jobq_pg.h's section >>os, which each half of it must keep: on Windows too, so
 * without pg.h. No server is used.
 */
#define TEST_PRIVATE
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include "check.h"

#include <errno.h>
#include <time.h>
#ifndef _WIN32
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#endif

static jobq_pg__os_mutex lock = JOBQ_PG__OS_MUTEX;
static jobq_pg__os_cond news;
static int waiting, woken, over, quits; /* under the lock */
static bool may_go;

static int under_lock(const int *n)
{
    int now;

    jobq_pg__os_lock(&lock);
    now = *n;
    jobq_pg__os_unlock(&lock);
    return now;
}

static void until(const int *n, int count)
{
    while (under_lock(n) < count) jobq_pg__os_nap(1000);
}

static void begins(void)
{
    jobq_pg__os_cond_init(&news);
    waiting = woken = over = quits = 0;
    may_go = false;
}

static void clocks_go_on_and_a_nap_lasts(void **unused)
{
    int64_t before = jobq_pg__mono_us(), off;

    (void)unused;
    jobq_pg__os_nap(20000);
    assert_true(jobq_pg__mono_us() - before >= 20000);
    jobq_pg__os_nap(0);
    jobq_pg__os_nap(-1);
    off = jobq_pg__os_wall_us() - (int64_t)time(NULL) * 1000000;
    assert_true(off > -60000000 && off < 60000000);
}

static void a_wait_ends_by_its_instant(void **unused)
{
    int64_t at = jobq_pg__mono_us() + 20000;

    (void)unused;
    begins();
    jobq_pg__os_lock(&lock);
    while (jobq_pg__os_wait(&news, &lock, at)) assert_true(jobq_pg__mono_us() < at);
    assert_true(jobq_pg__mono_us() >= at);
    assert_false(jobq_pg__os_wait(&news, &lock, at));
    assert_false(jobq_pg__os_wait(&news, &lock, INT64_MIN));
    jobq_pg__os_unlock(&lock);
    jobq_pg__os_cond_end(&news);
}

static void *waits(void *never)
{
    jobq_pg__os_lock(&lock);
    waiting++;
    while (!may_go) {
        if (!jobq_pg__os_wait(&news, &lock, never != NULL ? JOBQ_NEVER : JOBQ_NEVER - 1)) break;
    }
    woken++;
    jobq_pg__os_unlock(&lock);
    return NULL;
}

static void a_wait_without_end_is_woken(void **unused)
{
    jobq_pg__os_thread threads[4];
    size_t i;

    (void)unused;
    begins();
    for (i = 0; i < COUNT(threads); i++)
        assert_true(jobq_pg__os_start(&threads[i], waits, i % 2 == 0 ? &news : NULL));
    until(&waiting, (int)COUNT(threads));
    assert_int_equal(under_lock(&woken), 0);
    jobq_pg__os_lock(&lock);
    may_go = true;
    jobq_pg__os_wake_one(&news);
    jobq_pg__os_unlock(&lock);
    until(&woken, 1);
    jobq_pg__os_wake_all(&news);
    for (i = 0; i < COUNT(threads); i++) jobq_pg__os_join(threads[i]);
    assert_int_equal(woken, (int)COUNT(threads));
    jobq_pg__os_cond_end(&news);
}

static void body(void *ends)
{
#ifndef _WIN32 /* there nothing tells of it */
    if (ends != NULL) pthread_exit(NULL);
#else
    (void)ends;
#endif
}

static void quits_too(void *arg)
{
    (void)arg;
    jobq_pg__os_lock(&lock);
    quits++;
    jobq_pg__os_unlock(&lock);
}

static void *guarded(void *ends)
{
    jobq_pg__os_guarded(body, quits_too, ends);
    jobq_pg__os_lock(&lock);
    over++;
    jobq_pg__os_unlock(&lock);
    return NULL;
}

static void who_ends_a_thread_within_is_seen(void **unused)
{
    jobq_pg__os_thread thread;

    (void)unused;
    begins();
    assert_true(jobq_pg__os_detached(guarded, NULL));
    until(&over, 1);
    assert_int_equal(under_lock(&quits), 0);
    assert_true(jobq_pg__os_start(&thread, guarded, &thread));
    jobq_pg__os_join(thread);
#ifndef _WIN32
    assert_int_equal(quits, 1);
    assert_int_equal(over, 1);
#else
    assert_int_equal(over, 2);
#endif
}

static void poll_waits_and_skips_what_is_none(void **unused)
{
    struct pollfd fds[2] = {{JOBQ_PG__OS_NONE, POLLIN, 0}, {JOBQ_PG__OS_NONE, POLLIN, 0}};
    jobq_pg__os_socket ends[2];
    int64_t before = jobq_pg__mono_us();

    (void)unused;
    assert_int_equal(jobq_pg__os_poll(fds, 2, 1500), 0);
    assert_true(jobq_pg__mono_us() - before >= 1500);
    assert_int_equal(jobq_pg__os_poll(fds, 2, 0), 0);
    assert_int_equal(jobq_pg__os_poll(fds, 2, INT64_MIN), 0);
    assert_true(jobq_pg__os_pair(ends));
    fds[1].fd = ends[0];
    assert_int_equal(jobq_pg__os_poll(fds, 2, 0), 0);
    jobq_pg__os_pair_write(ends, 'x');
    assert_int_equal(jobq_pg__os_poll(fds, 2, INT64_MAX), 1);
    assert_true((fds[1].revents & POLLIN) != 0 && fds[0].revents == 0);
    jobq_pg__os_pair_end(ends);
}

static void a_pair_never_blocks(void **unused)
{
    jobq_pg__os_socket ends[2];
    char bytes[4096];
    int writes = 1000000, i, got, sum = 0;
    bool in_order = true;

    (void)unused;
    assert_true(jobq_pg__os_pair(ends));
    assert_true(jobq_pg__os_pair_read(ends, bytes, sizeof bytes) <= 0);
#ifndef _WIN32
    for (i = 0; i < 2; i++) assert_true((fcntl(ends[i], F_GETFD) & FD_CLOEXEC) != 0);
#else
    for (i = 0; i < 2; i++) {
        DWORD flags = HANDLE_FLAG_INHERIT;
        assert_true(GetHandleInformation((HANDLE)ends[i], &flags));
        assert_true((flags & HANDLE_FLAG_INHERIT) == 0);
        setsockopt(ends[i], SOL_SOCKET, i == 0 ? SO_RCVBUF : SO_SNDBUF, "\0\20\0", 4); /* less */
    }
    writes = 20000;
    in_order = false; /* a full socket may take a later byte */
#endif
    errno = EDOM;
    for (i = 0; i < writes; i++) jobq_pg__os_pair_write(ends, (char)('a' + i % 3));
    assert_int_equal(errno, EDOM); /* a signal handler may have called it */
    while ((got = jobq_pg__os_pair_read(ends, bytes, sizeof bytes)) > 0) {
        for (i = 0; i < got; i++) {
            if (in_order) assert_int_equal(bytes[i], 'a' + (sum + i) % 3);
            else assert_in_range(bytes[i], 'a', 'c');
        }
        sum += got;
    }
    assert_in_range(sum, 64, writes - 1);
    jobq_pg__os_pair_end(ends);
}

static jobq_pg__os_socket shared[2];

static void *writes_often(void *unused)
{
    int i;

    for (i = 0; i < 1000; i++) jobq_pg__os_pair_write(shared, 'w');
    return unused;
}

/* As long as there is room, for two threads at the same time. */
static void no_written_byte_is_lost(void **unused)
{
    jobq_pg__os_thread threads[2];
    char bytes[4096];
    int sum = 0, got, i;

    (void)unused;
    assert_true(jobq_pg__os_pair(shared));
    for (i = 0; i < 2; i++) assert_true(jobq_pg__os_start(&threads[i], writes_often, NULL));
    for (i = 0; i < 2; i++) jobq_pg__os_join(threads[i]);
    while ((got = jobq_pg__os_pair_read(shared, bytes, sizeof bytes)) > 0) sum += got;
    assert_int_equal(sum, 2000);
    jobq_pg__os_pair_end(shared);
}

static void random_bits_fill_all(void **unused)
{
    unsigned char bits[64], some[64] = {0};
    size_t i, n, zeros = 0;

    (void)unused;
    for (n = 0; n < 16; n++) { /* each byte stays 0 in all of 16 with probability 2 to the -128 */
        memset(bits, 0, sizeof bits);
        assert_true(jobq_pg__os_random(bits, sizeof bits));
        for (i = 0; i < sizeof bits; i++) some[i] |= bits[i];
    }
    for (i = 0; i < sizeof some; i++) zeros += some[i] == 0;
    assert_int_equal(zeros, 0);
}

static void a_host_has_a_name(void **unused)
{
    char name[256] = "?", cut[2] = "?";

    (void)unused;
    jobq_pg__os_host(name, sizeof name);
    assert_true(name[0] != '\0' && name[0] != '?');
    jobq_pg__os_host(cut, sizeof cut);
    assert_int_equal(cut[1], 0);
}

/* -- a file as memory -- */

static const char *in_folder(char *path, const char *name)
{
    const char *folder = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : getenv("TEMP");

    snprintf(path, 500, "%s/jobq_os_%d%s", folder != NULL ? folder : "/tmp",
             (int)jobq_pg__os_pid(), name);
    return path;
}

/* What the file begins with. */
static char begins_with(const char *path)
{
    FILE *file = fopen(path, "rb");
    int got;

    assert_non_null(file);
    got = fgetc(file);
    fclose(file);
    return (char)got;
}

static void a_file_is_memory_of_one_process(void **unused)
{
    char path[500], old[500], nowhere[500];
    jobq_pg__os_file file, other;
    const char *why = NULL;
    size_t size = 70000;
    char *block;

    (void)unused;
    in_folder(path, "");
    block = (char *)jobq_pg__os_map(path, size, &file, &why);
    assert_non_null(block);
    memset(block, 'a', size);
    assert_int_equal(begins_with(path), 'a'); /* while it is mapped */
    assert_null(jobq_pg__os_map(path, size, &other, &why));
    assert_string_equal(why, "another worker records to it");
    jobq_pg__os_unmap(block, size, file);
    block = (char *)jobq_pg__os_map(path, size, &file, &why);
    assert_non_null(block);
    assert_true(block[0] == 0 && block[size - 1] == 0);
    assert_int_equal(begins_with(in_folder(old, ".old")), 'a');
    block[0] = 'b';
    jobq_pg__os_unmap(block, size, file);
    block = (char *)jobq_pg__os_map(path, size, &file, &why); /* it takes the place of the older */
    assert_non_null(block);
    jobq_pg__os_unmap(block, size, file);
    assert_int_equal(begins_with(old), 'b');
    assert_int_equal(remove(path), 0);
    assert_int_equal(remove(old), 0);
    assert_null(jobq_pg__os_map(in_folder(nowhere, "/x/y"), size, &file, &why));
    assert_string_equal(why, "its folder does not exist");
}

/* -- signals -- */

/* A worker that has what jobq_pg_worker_stop uses. */
static struct {
    jobq_pg pg;
    jobq_pg__group group;
    jobq_pg_worker worker, *workers[1];
} fake;

static bool stopped(void)
{
    char bytes[8];
    int got = jobq_pg__os_pair_read(fake.worker.poke, bytes, sizeof bytes);

    assert_true(got <= 0 || bytes[0] == 's');
    return got > 0;
}

static bool tells(int number)
{
#ifdef _WIN32
    return jobq_pg__on_signal(number == SIGINT ? CTRL_C_EVENT : CTRL_BREAK_EVENT) == TRUE;
#else
    raise(number);
    return true;
#endif
}

#ifdef _WIN32
static const int second = SIGBREAK, refused = SIGSEGV;

static void *closes(void *unused)
{
    (void)unused;
    jobq_pg__on_signal(CTRL_CLOSE_EVENT);
    jobq_pg__os_lock(&lock);
    over++;
    jobq_pg__os_unlock(&lock);
    return NULL;
}
#else
static const int second = SIGTERM, refused = JOBQ_PG__SIGNALS + 1;
#endif

static void signals_stop_a_worker(void **unused)
{
    int numbers[4] = {0}, none[4] = {0}, wrong[4] = {0};

    (void)unused;
    numbers[0] = SIGINT;
    numbers[1] = second;
    wrong[3] = refused;
    fake.pg.pid = jobq_pg__os_pid();
    fake.group.count = 1;
    fake.group.workers = fake.workers;
    fake.workers[0] = &fake.worker;
    fake.worker.group = &fake.group;
    fake.worker.pg = &fake.pg;
    assert_true(jobq_pg__os_pair(fake.worker.poke));
    assert_true(jobq_pg__os_signals_set(&fake.worker, none));
    assert_false(jobq_pg__os_signals_set(&fake.worker, wrong));
    jobq_pg__os_signals_clear(&fake.worker);
    signal(SIGINT, SIG_IGN);
    assert_true(jobq_pg__os_signals_set(&fake.worker, numbers));
    assert_false(stopped());
    assert_true(tells(SIGINT) && stopped());
    assert_true(tells(second) && stopped());
    jobq_pg__os_signals_clear(&fake.worker);
    tells(SIGINT); /* ignored, as before */
    assert_false(stopped());
#ifdef _WIN32
    assert_false(tells(SIGINT));
    numbers[0] = SIGTERM;
    assert_true(jobq_pg__os_signals_set(&fake.worker, numbers));
    over = 0;
    assert_true(jobq_pg__os_detached(closes, NULL));
    while (!stopped()) jobq_pg__os_nap(1000);
    jobq_pg__os_signals_clear(&fake.worker);
    jobq_pg__os_nap(50000);
    assert_int_equal(under_lock(&over), 0); /* the process would end */
#endif
    signal(SIGINT, SIG_DFL);
    jobq_pg__os_pair_end(fake.worker.poke);
}

/* -- the process -- */

#ifndef _WIN32
static void without_files_they_say_so(void **unused)
{
    struct rlimit had, none;
    jobq_pg__os_socket ends[2] = {0, 0};
    uint64_t bits;
    bool paired, random;

    (void)unused;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &had), 0);
    none = had;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    paired = jobq_pg__os_pair(ends);
    random = jobq_pg_random(&bits);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &had), 0);
    assert_false(paired || random);
    assert_true(ends[0] == JOBQ_PG__OS_NONE && ends[1] == JOBQ_PG__OS_NONE);
    jobq_pg__os_pair_end(ends); /* closes nothing */
}

static void a_child_is_another_process(void **unused)
{
    int32_t here = jobq_pg__os_pid();
    int status;
    pid_t child = fork();

    (void)unused;
    if (child == 0) _exit(jobq_pg__os_pid() == here);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(jobq_pg__os_pid(), here);
}
#endif

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(clocks_go_on_and_a_nap_lasts),
        cmocka_unit_test(a_wait_ends_by_its_instant),
        cmocka_unit_test(a_wait_without_end_is_woken),
        cmocka_unit_test(who_ends_a_thread_within_is_seen),
        cmocka_unit_test(poll_waits_and_skips_what_is_none),
        cmocka_unit_test(a_pair_never_blocks),
        cmocka_unit_test(no_written_byte_is_lost),
        cmocka_unit_test(random_bits_fill_all),
        cmocka_unit_test(a_host_has_a_name),
        cmocka_unit_test(a_file_is_memory_of_one_process),
        cmocka_unit_test(signals_stop_a_worker),
#ifndef _WIN32
        cmocka_unit_test(without_files_they_say_so),
        cmocka_unit_test(a_child_is_another_process),
#endif
    };

    return cmocka_run_group_tests_name("os", tests, NULL, NULL);
}
