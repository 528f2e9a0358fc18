/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * The contracts of jobq_pg.h's section >>os, which each half of it must keep. No server is used.
 */
#define TEST_PRIVATE
#include "pg.h"

#include <errno.h>
#include <sys/resource.h>

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
    if (ends != NULL) pthread_exit(NULL);
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
    assert_int_equal(quits, 1);
    assert_int_equal(over, 1);
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
    int i, got, sum = 0;

    (void)unused;
    assert_true(jobq_pg__os_pair(ends));
    assert_true(jobq_pg__os_pair_read(ends, bytes, sizeof bytes) <= 0);
    for (i = 0; i < 2; i++) assert_true((fcntl(ends[i], F_GETFD) & FD_CLOEXEC) != 0);
    errno = EDOM;
    for (i = 0; i < 1000000; i++) jobq_pg__os_pair_write(ends, (char)('a' + i % 3));
    assert_int_equal(errno, EDOM); /* a signal handler may have called it */
    while ((got = jobq_pg__os_pair_read(ends, bytes, sizeof bytes)) > 0) {
        for (i = 0; i < got; i++) assert_int_equal(bytes[i], 'a' + (sum + i) % 3);
        sum += got;
    }
    assert_in_range(sum, 64, 999999);
    jobq_pg__os_pair_end(ends);
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

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(clocks_go_on_and_a_nap_lasts),
        cmocka_unit_test(a_wait_ends_by_its_instant),
        cmocka_unit_test(a_wait_without_end_is_woken),
        cmocka_unit_test(who_ends_a_thread_within_is_seen),
        cmocka_unit_test(poll_waits_and_skips_what_is_none),
        cmocka_unit_test(a_pair_never_blocks),
        cmocka_unit_test(random_bits_fill_all),
        cmocka_unit_test(without_files_they_say_so),
        cmocka_unit_test(a_child_is_another_process),
    };

    return cmocka_run_group_tests_name("os", tests, NULL, NULL);
}
