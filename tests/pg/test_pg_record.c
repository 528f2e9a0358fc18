/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * A worker's recording: it replays bit for bit, also after kill -9 in the middle of a drain; a full
 * disk, another worker's file and a child process do it no harm, and the worker runs without one.
 */
#include "pg_work.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char path[64];
static char said[2000]; /* what workers have logged */

static void listens_to(void *user, jobq_level level, const char *message)
{
    (void)user;
    if (level < JOBQ_LEVEL_WARNING) return;
    snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", message);
}

static int record_up(void **state)
{
    jobq_pg_desc d;

    if (pg_up(state) != 0) return 1;
    snprintf(path, sizeof path, "/tmp/jobq-record-%d", (int)getpid());
    jobq_pg_close(pg);
    d = desc_of(server());
    d.log = listens_to;
    pg = open_on(&d);
    return 0;
}

static int no_file(void **state)
{
    char old[80];

    (void)state;
    snprintf(old, sizeof old, "%s.old", path);
    unlink(path);
    unlink(old);
    said[0] = '\0';
    return 0;
}

static int record_fresh(void **state) { return no_file(state) + empty_queue(state); }

static int record_stop(void **state) { return all_stop(state) + no_file(state); }

static jobq_pg_worker_desc recorded(jobq_pg_handler *h, jobq_handler run)
{
    jobq_pg_worker_desc d = one_kind(h, run);

    d.record = path;
    d.record_bytes = 1; /* as small as can be */
    return d;
}

typedef struct found {
    int64_t entries, claimed, taken, handled, turns;
    char notes[16384];
} found;

/* Replays a file: everything is the same. */
static found replayed(const char *file)
{
    found f;
    struct stat status;
    const char *why;
    jobq_replay *replay = (jobq_replay *)malloc(jobq_replay_size());
    jobq_entry e;
    int fd = open(file, O_RDONLY);
    char *block;

    memset(&f, 0, sizeof f);
    assert_true(fd >= 0 && fstat(fd, &status) == 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    block = (char *)malloc((size_t)status.st_size);
    assert_true(replay != NULL && block != NULL);
    assert_int_equal(read(fd, block, (size_t)status.st_size), status.st_size);
    close(fd);
    if (jobq_replay_init(replay, block, (size_t)status.st_size, &why) != JOBQ_OK)
        fail_msg("%s: %s", file, why);
    while (jobq_replay_step(replay, &e)) {
        f.entries++;
        if (!e.same) fail_msg("entry %lld, %s, differs", (long long)e.number,
                              jobq_enum_name(JOBQ_ENUM_ENTRY, e.kind));
        assert_true(e.kind != JOBQ_ENTRY_TORN);
        if (e.kind == JOBQ_ENTRY_SNAPSHOT) f.turns++;
        if (e.kind == JOBQ_ENTRY_TELL) f.claimed += e.answer->claimed.count;
        if (e.kind == JOBQ_ENTRY_TAKE) f.taken++;
        if (e.kind == JOBQ_ENTRY_HANDLED) f.handled++;
    }
    memcpy(f.notes, ((jobq_recording *)(void *)block)->notes, sizeof f.notes);
    free(block);
    free(replay);
    return f;
}

static jobq_outcome varied(jobq_call *call)
{
    static const jobq_outcome all[] = {JOBQ_OUTCOME_SUCCESS, JOBQ_OUTCOME_RETRY,
                                       JOBQ_OUTCOME_DISCARD, JOBQ_OUTCOME_SUCCESS};

    ADD(runs);
    jobq_call_delay(call, 0);
    return call->job.attempt > 1 ? JOBQ_OUTCOME_SUCCESS : all[call->job.id % 4];
}

static void a_drain_is_replayed(void **state)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = recorded(&h, varied);
    char wanted[60];
    found f;

    (void)state;
    insert_jobs(1000, "'1'");
    work_off(&d);
    f = replayed(path);
    assert_int_equal(f.turns, 1);
    assert_true(f.taken >= 1250 && f.taken == f.handled && f.claimed >= f.taken);
    snprintf(wanted, sizeof wanted, "queue %ld q\n", number("SELECT id FROM jobq.queue"));
    assert_non_null(strstr(f.notes, wanted));
    snprintf(wanted, sizeof wanted, "kind %ld k\n", number("SELECT id FROM jobq.kind"));
    assert_non_null(strstr(f.notes, wanted));
    snprintf(wanted, sizeof wanted, "process %d ", (int)getpid());
    assert_non_null(strstr(f.notes, wanted));
}

static void a_killed_worker_leaves_its_recording(void **state)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = recorded(&h, succeed);
    char old[80];
    pid_t child;

    (void)state;
    insert_jobs(20000, "'1'");
    child = spawn(&d);
    assert_true(becomes(60, 1, "SELECT (count(*) < 18000)::int FROM jobq.job"));
    kill_hard(child);
    assert_true(replayed(path).handled > 1000);
    insert_jobs(1, "'1'");
    work_off(&d); /* the next one keeps it */
    snprintf(old, sizeof old, "%s.old", path);
    assert_true(replayed(old).handled > 1000);
    assert_true(replayed(path).entries > 1);
}

static void a_file_of_another_worker_stays_its_own(void **state)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = recorded(&h, succeed);
    jobq_pg_worker *first;

    (void)state;
    first = start(&d);
    work_off(&d);
    assert_non_null(strstr(said, "another worker records to it"));
    stop(first);
    assert_true(replayed(path).entries > 1);
}

static void without_room_the_worker_runs(void **state)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = recorded(&h, succeed);
    struct rlimit was, small;

    (void)state;
    insert_jobs(10, "'1'");
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = was;
    small.rlim_cur = 100000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    work_off(&d);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_non_null(strstr(said, "there is no room for it"));
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(access(path, F_OK), -1);
    d.record = "/nonexistent/file";
    work_off(&d);
    assert_non_null(strstr(said, "/nonexistent/file: its folder does not exist"));
}

/* A handler's child has no part in the recording. */
static jobq_outcome forks(jobq_call *call)
{
    int status;
    pid_t child = fork();

    (void)call;
    if (child == 0) _exit(0);
    ADD(runs);
    return child > 0 && waitpid(child, &status, 0) == child ? JOBQ_OUTCOME_SUCCESS
                                                            : JOBQ_OUTCOME_DISCARD;
}

static void a_child_does_no_harm(void **state)
{
    jobq_pg_handler h;
    jobq_pg_worker_desc d = recorded(&h, forks);

    (void)state;
    insert_jobs(5, "'1'");
    work_off(&d);
    assert_int_equal(replayed(path).handled, 5);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_drain_is_replayed, record_fresh, record_stop),
        cmocka_unit_test_setup_teardown(a_killed_worker_leaves_its_recording, record_fresh,
                                        record_stop),
        cmocka_unit_test_setup_teardown(a_file_of_another_worker_stays_its_own, record_fresh,
                                        record_stop),
        cmocka_unit_test_setup_teardown(without_room_the_worker_runs, record_fresh, record_stop),
        cmocka_unit_test_setup_teardown(a_child_does_no_harm, record_fresh, record_stop),
    };

    return cmocka_run_group_tests(tests, record_up, pg_down);
}
