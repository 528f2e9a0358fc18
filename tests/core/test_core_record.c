/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Recordings: what crosses the boundary of a loop is replayed bit for bit, also after the ring has
 * turned, was cut off anywhere, or was damaged; laws (26) and (27). make simulate records whole
 * worlds.
 */
#define JOBQ_LOOP_SLOTS 16
#define JOBQ_LOOP_LANES 16
#define JOBQ_LOOP_CLAIMS 16
#define JOBQ_LOOP_QUEUES 2
#define JOBQ_LOOP_THREADS 4
#define JOBQ_LOOP_KINDS 4
#define JOBQ_LOOP_WATCHED 4
#define JOBQ_LOOP_PARTITIONS 4
#define JOBQ_LOOP_BATCH 8
#define JOBQ_TALLY_KINDS 2
#define JOBQ_STRAYS_MAX 4
#define JOBQ_PRIORITY_MIN (-1)
#define JOBQ_PRIORITY_MAX 1
#define JOBQ_MEMORY_PARTITIONS 4
#define JOBQ_MEMORY_MESSAGES 1024
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"
#include "recorded.h"

enum { JOBS = 400, FLIPS = 300 };

static union {
    int64_t align;
    char bytes[1 << 20];
} store_block, block;
static jobq_memory *store;
static jobq_recorder *recorder;
static jobq_loop loop;
static jobq_random chance;
static int64_t now_us;
static size_t block_size;
static int seen[JOBQ_ENTRY_COUNT];

static jobq_recorder *recorder_of(const jobq_loop *l) { return l == &loop ? recorder : NULL; }

static int64_t between(int64_t low, int64_t high)
{
    return jobq_random_between(jobq_random_next(&chance), low, high);
}

/* -- a worker on a store in memory -- */

static jobq_work held[JOBQ_LOOP_SLOTS + 1]; /* the jobs of a batch one by one */
static int held_count, batch_most;

static void handle(void)
{
    int i = (int)between(0, held_count - 1);
    jobq_work work = held[i];
    jobq_handled handled = {JOBQ_OUTCOME_SUCCESS, 0, false, false, false, 0};
    jobq_verdict verdict = {0, 0, JOBQ_RESULT_SUCCESS, JOBQ_COUNT_UNKNOWN, 0, false};
    static jobq_ack ack;
    bool own = between(0, 3) == 0;

    held[i] = held[--held_count];
    if (work.partition_id == 0) {
        if (between(0, 9) == 0) handled.outcome = (jobq_outcome)between(0, JOBQ_OUTCOME_DONE);
        handled.missing = between(0, 40) == 0;
        handled.bytes = between(0, 100);
        jobq_loop_handled(&loop, now_us, &work, &handled, NULL);
        return;
    }
    if (between(0, 5) == 0) verdict.result = JOBQ_RESULT_RETRY;
    memset(work.results, (int)verdict.result, sizeof work.results);
    if (!jobq_loop_delivered(&loop, now_us, &work, &verdict, own, &ack)) return;
    if (own) jobq_loop_committed(&loop, now_us, &work,
                                 between(0, 2) == 0 ? JOBQ_ERROR_CONNECTION : JOBQ_ERROR_RETRYABLE);
}

static bool ask(void)
{
    static jobq_request a;
    static jobq_answer answer;

    if (between(0, 9) == 0) jobq_loop_abandon(&loop, now_us, &a);
    else jobq_loop_next(&loop, now_us, &a);
    if (a.kind == JOBQ_REQUEST_WAIT || a.kind == JOBQ_REQUEST_EXIT) return false;
    if (a.kind == JOBQ_REQUEST_ABANDON) return true;
    if (a.kind == JOBQ_REQUEST_DISCONNECT || between(0, 200) == 0) {
        jobq_loop_disconnected(&loop, now_us);
        return true;
    }
    jobq__memory_execute(store, &a, 6, 6, now_us, &answer);
    if (between(0, 99) == 0) answer.error = JOBQ_ERROR_RETRYABLE;
    jobq_loop_tell(&loop, now_us, &answer);
    return true;
}

static void something_happens(void)
{
    jobq_job like = jobq_job_new(0);

    switch ((int)between(0, 12)) {
    case 0: jobq_loop_notified(&loop, now_us, between(0, 1) == 0 ? "cancel" : "1"); break;
    case 1: jobq_loop_notified(&loop, now_us, "anything else"); break;
    case 2: jobq_loop_hears(&loop, now_us, between(0, 1) == 0); break;
    case 3: jobq_memory_policy(store, 1, NULL, between(0, 3) == 0); break;
    case 4: jobq_memory_event(store, between(1, JOBS), JOBQ_EVENT_CANCEL, now_us); break;
    case 5:
        if (store->messages[JOBQ_MEMORY_MESSAGES - 1].partition_id == 0)
            jobq__memory_send(store, 2, (int32_t)between(0, 1), jobq_str_from("\"m\""));
        break;
    default:
        like.queue = 1;
        like.kind = (int32_t)between(1, 2);
        like.priority = (int16_t)between(-1, 1);
        like.stages = (int16_t)between(1, 2);
        jobq_memory_enqueue(store, &like, jobq_str_from(NULL), now_us);
    }
}

static void step(void)
{
    int guard = 100;

    now_us += between(0, 3) == 0 ? between(1, SECOND) : between(0, 2000);
    if (store->job_count < JOBS) something_happens();
    while (guard-- > 0 && ask()) {}
    while (jobq_loop_take(&loop, now_us, &held[held_count])) {
        if (held[held_count].together > batch_most) batch_most = held[held_count].together;
        do {
            held[held_count + 1] = held[held_count];
        } while (jobq_loop_mate(&loop, &held[++held_count]));
    }
    if (held_count > 0 && between(0, 4) > 0) handle();
}

static void begin(uint64_t seed)
{
    jobq_loop_config config;
    jobq_loop_served served;

    memset(&config, 0, sizeof config);
    memset(&served, 0, sizeof served);
    served.message_queues = 2;
    served.listen = true;
    served.kind_batches[0] = 3;
    served.kind_waits_us[0] = SECOND / 10;
    config.served = &served;
    config.threads = JOBQ_LOOP_THREADS;
    chance.state = seed;
    now_us = 1000 * SECOND;
    held_count = batch_most = 0;
    recorder = NULL;
    assert_true(jobq_memory_size(JOBS, 4, 40) <= sizeof store_block.bytes);
    store = jobq_memory_init(store_block.bytes, JOBS, 4, 40);
    jobq__memory_outbox(store, 2, 2);
    jobq_loop_init(&loop, &config, seed, now_us);
    block_size = jobq_recorder_size(0);
    assert_true(block_size <= sizeof block.bytes);
    recorder = jobq_recorder_init(block.bytes, block_size, &loop, now_us, 1700000000 * SECOND);
}

/* The number of the segment that is being written. */
static uint64_t turns(void) { return recorder->number; }

static void assert_same(void)
{
    int64_t entries;
    const char *why = recorded_same(block.bytes, block_size, &loop, &entries);

    if (why != NULL) fail_msg("segment %d: %s", (int)turns(), why);
    assert_true(entries > 1);
}

/* -- the tests -- */

static void each_call_is_replayed(void **unused)
{
    static jobq_replay replay;
    const char *why;
    jobq_entry e;
    int i;

    (void)unused;
    begin(1);
    for (i = 0; i < 300; i++) step();
    jobq_loop_stop(&loop, now_us, -1);
    for (i = 0; i < 10; i++) step();
    assert_same();
    assert_int_equal(batch_most, 3);
    assert_int_equal(jobq_replay_init(&replay, block.bytes, block_size, &why), JOBQ_OK);
    while (jobq_replay_step(&replay, &e)) seen[e.kind]++;
    for (i = 0; i < JOBQ_ENTRY_TORN; i++)
        if (seen[i] == 0) fail_msg("no %s", jobq_enum_name(JOBQ_ENUM_ENTRY, i));
    assert_int_equal(seen[JOBQ_ENTRY_TORN], 0);
}

static void the_ring_turns(void **unused)
{
    uint64_t last = 1;
    int seed = 2, i;

    (void)unused;
    begin((uint64_t)seed);
    for (i = 0; last < 2 * JOBQ__SEGMENTS + 4; i++) {
        step();
        if (turns() != last && turns() % JOBQ__SEGMENTS == 3) assert_same();
        last = turns();
        assert_true(i < 1000000);
    }
}

/* Entries that are the same, from the start on. -1: it is refused. *kind: of the last entry. */
static int64_t good_entries(size_t bytes, jobq_entry_kind *kind)
{
    static jobq_replay replay;
    const char *why;
    jobq_entry e;
    int64_t good = 0;

    *kind = JOBQ_ENTRY_TORN;
    if (jobq_replay_init(&replay, block.bytes, bytes, &why) != JOBQ_OK) return -1;
    while (jobq_replay_step(&replay, &e)) {
        assert_true(e.same || e.kind == JOBQ_ENTRY_TORN);
        *kind = e.kind;
        good += e.kind != JOBQ_ENTRY_TORN;
    }
    return good;
}

/* The end of the only segment. */
static size_t end_of_recording(void)
{
    return (size_t)(recorder->head.from + recorder->head.bytes) + recorder->at;
}

/* A recording that begins in the midst of a worker's life; its records have 4 KB or more. */
static void record_some(uint64_t seed)
{
    size_t from;
    int i;

    begin(seed);
    for (i = 0; i < 100; i++) step();
    recorder = jobq_recorder_init(block.bytes, block_size, &loop, now_us, 1700000000 * SECOND);
    for (from = recorder->at; recorder->at < from + 4096;) step();
    assert_int_equal(turns(), 1);
}

/* A file that was cut off anywhere, or whose last pages a power failure has lost. */
static void a_torn_tail_ends_cleanly(void **unused)
{
    jobq_entry_kind kind;
    int64_t all, good, last = 0;
    size_t end, cut;

    (void)unused;
    record_some(3);
    end = end_of_recording();
    all = good_entries(block_size, &kind);
    assert_true(all > 100 && kind != JOBQ_ENTRY_TORN);
    for (cut = end - 4096; cut < end; cut++) {
        good = good_entries(cut, &kind);
        assert_true(good + 1 >= last && good <= all); /* a call that did not return counts, too */
        last = good;
    }
    assert_true(last + 1 >= all);
    for (last = all, cut = end; cut > end - 4096; cut -= 64) {
        memset(block.bytes + cut - 64, 0, 64);
        good = good_entries(block_size, &kind);
        assert_true(good <= last);
        last = good;
    }
    assert_true(last < all && kind == JOBQ_ENTRY_TORN);
}

static void a_flipped_bit_is_found(void **unused)
{
    jobq_entry_kind kind;
    int64_t all;
    size_t from, end;
    int i, found = 0;

    (void)unused;
    record_some(4);
    all = good_entries(block_size, &kind);
    from = (size_t)(recorder->head.from + recorder->head.bytes);
    end = end_of_recording();
    for (i = 0; i < FLIPS; i++) {
        size_t at = (size_t)between((int64_t)from, (int64_t)end - 1);
        int bit = 1 << between(0, 7);
        block.bytes[at] = (char)(block.bytes[at] ^ bit);
        found += good_entries(block_size, &kind) < all;
        block.bytes[at] = (char)(block.bytes[at] ^ bit);
    }
    assert_int_equal(found, FLIPS);
}

static void another_build_is_refused(void **unused)
{
    static jobq_replay replay;
    const char *why;
    jobq_recording *head = (jobq_recording *)(void *)block.bytes;
    jobq_recording was;

    (void)unused;
#define REFUSED(change, code, text)                                                                \
    change;                                                                                        \
    assert_int_equal(jobq_replay_init(&replay, block.bytes, block_size, &why), code);              \
    assert_string_equal(why, text);                                                                \
    *head = was
    record_some(5);
    was = *head;
    REFUSED(head->magic[0] = 'j', JOBQ_ERROR_INVALID, "it is no recording of jobq");
    REFUSED(head->order = 0x04030201, JOBQ_ERROR_VERSION,
            "it was recorded on a machine with another order of bytes");
    REFUSED(head->version++, JOBQ_ERROR_VERSION, "it was recorded by another version of jobq.h");
    REFUSED(head->limits[0]++, JOBQ_ERROR_VERSION, "it was recorded with another JOBQ_LOOP_SLOTS");
    REFUSED(head->limits[8]++, JOBQ_ERROR_VERSION, "it was recorded with another JOBQ_LOOP_BATCH");
    REFUSED(head->sizes[7]++, JOBQ_ERROR_VERSION,
            "it was recorded on a machine with another layout of structs");
    REFUSED(head->bytes--, JOBQ_ERROR_INVALID, "it is damaged");
    REFUSED(head->bytes = UINT64_MAX / 4096 * 4096, JOBQ_ERROR_INVALID, "it is damaged");
    assert_int_equal(jobq_replay_init(&replay, head, sizeof *head - 1, &why), JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_replay_init(&replay, head, (size_t)head->from, &why), JOBQ_ERROR_INVALID);
    assert_string_equal(why, "it is damaged");
    jobq__segment_of(head, 1)->used = 0; /* it was being written */
    assert_int_equal(jobq_replay_init(&replay, head, block_size, &why), JOBQ_ERROR_INVALID);
    assert_string_equal(why, "it is empty");
}

/* A call in which the process dies is in the recording, and what is replayed says so. */
static void a_call_that_does_not_return_is_shown(void **unused)
{
    static jobq_replay replay;
    const char *why;
    jobq_entry e;
    int64_t last = 0;

    (void)unused;
    record_some(6);
    e.kind = JOBQ_ENTRY_STOP;
    e.mono_us = now_us;
    e.grace_us = SECOND;
    jobq__record_begin(recorder, &loop, &e);
    assert_int_equal(jobq_replay_init(&replay, block.bytes, block_size, &why), JOBQ_OK);
    while (jobq_replay_step(&replay, &e)) {
        assert_int_equal(last, 0);
        if (e.cut) last = e.number;
    }
    assert_true(last > 0);
}

/* A recorder that cannot write the loop stops, and the loop goes on. */
static void what_has_no_room_is_not_recorded(void **unused)
{
    static jobq_request a;

    (void)unused;
    record_some(7);
    recorder->head.bytes = 1024;
    recorder->at = 1015;
    jobq_loop_next(&loop, now_us, &a);
    assert_true(recorder->full);
    jobq_loop_next(&loop, now_us, &a);
    recorder->full = false;
    recorder->at = 1015;
    jobq_loop_take(&loop, now_us, &held[0]);
    assert_true(recorder->full);
}

static void a_wait_ends_when_something_is_wanted(void **unused)
{
    static jobq_request a;
    int64_t first = JOBQ_NEVER;
    int i, kind, waits = 0, known = 0;

    (void)unused;
    begin(8);
    recorder = NULL;
    for (i = 0; i < 300; i++) {
        step();
        if (i == 200) jobq_loop_stop(&loop, now_us, SECOND);
        do jobq_loop_next(&loop, now_us, &a);
        while (a.kind == JOBQ_REQUEST_ABANDON);
        if (a.kind != JOBQ_REQUEST_WAIT) {
            jobq_loop_disconnected(&loop, now_us);
            continue;
        }
        for (kind = 0, first = JOBQ_NEVER; kind < JOBQ_REQUEST_COUNT; kind++)
            first = jobq__min(first, jobq_loop_wants(&loop, (jobq_request_kind)kind, now_us));
        waits++;
        known += first == a.until_mono_us;
    }
    assert_true(waits > 50);
    assert_int_equal(known, waits);
}

/* Every byte of what comes out counts, but for the few between the values. */
static void every_field_counts(void **unused)
{
    static jobq_request a;
    jobq_entry e;
    uint64_t hash;
    size_t i, dull;

    (void)unused;
    memset(&e, 0, sizeof e);
    memset(&a, 0, sizeof a);
    e.kind = JOBQ_ENTRY_NEXT;
    e.request = &a;
    e.result = true;
#define ONE(part, count, fields) a.count = 1;
    JOBQ__REQUEST_PARTS(ONE)
    hash = jobq__mix_out(1, &e);
#define COUNTS(at, size)                                                                           \
    for (i = dull = 0; i < (size); i++) {                                                          \
        ((char *)(at))[i] ^= 1;                                                                    \
        dull += jobq__mix_out(1, &e) == hash;                                                      \
        ((char *)(at))[i] ^= 1;                                                                    \
    }                                                                                              \
    assert_in_range(dull, 0, 15)
#define EACH(part, count, fields) COUNTS(&a.part[0], sizeof a.part[0]);
    JOBQ__REQUEST_PARTS(EACH)
    COUNTS((char *)&a + sizeof a.kind, offsetof(jobq_request, queue_count) - sizeof a.kind);
    a.kind = JOBQ_REQUEST_ACK;
    hash = jobq__mix_out(1, &e);
    COUNTS(&a.ack.before, sizeof a.ack.before);
    COUNTS(&a.ack.max_attempts, sizeof a.ack.max_attempts + sizeof a.ack.bare);
    a.kind = JOBQ_REQUEST_ABANDON;
    a.ending_count = 0;
    hash = jobq__mix_out(1, &e);
    COUNTS(&a.endings[0].decision, sizeof a.endings[0].decision);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_call_is_replayed),
                                       cmocka_unit_test(the_ring_turns),
                                       cmocka_unit_test(a_torn_tail_ends_cleanly),
                                       cmocka_unit_test(a_flipped_bit_is_found),
                                       cmocka_unit_test(another_build_is_refused),
                                       cmocka_unit_test(a_call_that_does_not_return_is_shown),
                                       cmocka_unit_test(what_has_no_room_is_not_recorded),
                                       cmocka_unit_test(a_wait_ends_when_something_is_wanted),
                                       cmocka_unit_test(every_field_counts)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
