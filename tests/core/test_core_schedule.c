/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * Schedules and keys on the in-memory queue: each tick fires once, whatever happens to workers, and
 * of a key the newest payload runs, or waits. Promises 1, 3 and 5. test_pg_schedules and
 * test_pg_unique ask the same of Postgres.
 */
#define JOBQ_LOOP_SLOTS 16
#define JOBQ_LOOP_CLAIMS 16
#define JOBQ_LOOP_BATCH 16
#define JOBQ_LOOP_LANES 32
#define JOBQ_STRAYS_MAX 8
#define JOBQ_MEMORY_MESSAGES 4
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include "check.h"
#include "model.h"

enum { JOBS = 1000, WORKERS = 8, CLAIMS = 64 };
#define MINUTE (60 * SECOND)
#define HOUR (60 * MINUTE)
#define DAY (24 * HOUR)

static jobq_loop loop;
static union {
    int64_t align;
    char bytes[1 << 19];
} block;
static jobq_memory *memory;
static int32_t runs;

static int setup(void **unused)
{
    (void)unused;
    assert_true(model_size(JOBS, WORKERS, CLAIMS) <= sizeof block);
    memory = model_init(&block, JOBS, WORKERS, CLAIMS);
    runs = 0;
    return 0;
}

static void start(jobq_until until, uint64_t seed, int64_t now)
{
    jobq_loop_config config;

    memset(&config, 0, sizeof config);
    config.threads = 1;
    config.until = until;
    jobq_loop_init(&loop, &config, seed, now);
}

static jobq_outcome counts(jobq_call *call)
{
    (void)call;
    runs++;
    return JOBQ_OUTCOME_SUCCESS;
}

/* The worker works until this instant, or until its end; returns when it is due next. */
static int64_t work(int64_t now, int64_t until)
{
    jobq_memory_handler h = {.queue = 1, .kind = 1, .run = {counts}};
    static jobq_request r;

    while (now <= until) {
        jobq_loop_next(&loop, now, &r);
        if (r.kind == JOBQ_REQUEST_EXIT) return JOBQ_NEVER;
        if (r.kind != JOBQ_REQUEST_WAIT) model_perform(memory, &loop, &r, 2, 2, now, now);
        else if (!jobq__memory_run_one(memory, &loop, &h, 1, now))
            now = jobq__max(r.until_mono_us, now + 1);
    }
    return now;
}

static model_schedule every(int64_t us)
{
    model_schedule s;

    memset(&s, 0, sizeof s);
    s.every_us = us;
    s.queue = s.kind = 1;
    return s;
}

static model_schedule cron(const char *text)
{
    model_schedule s = every(0);

    assert_int_equal(jobq_cron_parse(jobq_str_from(text), &s.cron, NULL), JOBQ_OK);
    return s;
}

static model_schedule *add(model_schedule s, int64_t now)
{
    model_schedule *added = model_schedule_add(memory, &s, now);

    assert_non_null(added);
    return added;
}

/* Fires what is due in queue 1, and answers how many jobs that wrote. */
static int32_t tick(int64_t now, int64_t *due_us)
{
    static jobq_request r;
    static jobq_answer a;

    memset(&r, 0, sizeof r);
    r.kind = JOBQ_REQUEST_TICK;
    r.queues[0] = r.queue_count = 1;
    r.limit = 100;
    model_execute(memory, &r, 2, 2, now, &a);
    if (due_us != NULL) *due_us = a.due_us;
    return a.count;
}

static jobq_memory_job *claim(int64_t number, int64_t now)
{
    jobq_event event;
    int64_t id;

    memset(&event, 0, sizeof event);
    event.kind = JOBQ_EVENT_CLAIM;
    event.worker = 7;
    event.claim = number;
    for (id = 1; id <= memory->job_count; id++) {
        jobq_memory_job *mj = jobq_memory_get(memory, id);
        if (mj->job.state != JOBQ_STATE_READY || mj->job.run_at_us > now) continue;
        assert_int_equal(jobq__memory_happens(memory, mj, &event, now), JOBQ_OK);
        return mj;
    }
    return NULL;
}

static void end(jobq_memory_job *mj, jobq_event_kind how, int64_t now)
{
    assert_int_equal(jobq__memory_plain(memory, mj, how, now), JOBQ_OK);
}

/* The jobs that have not ended: the letter of each state, and its payload. */
static const char *live(void)
{
    static const char letters[] = " rxsfcw";
    static char text[200];
    size_t at = 0;
    int64_t id;

    text[0] = '\0';
    for (id = 1; id <= memory->job_count; id++) {
        const jobq_memory_job *mj = jobq_memory_get(memory, id);
        if (jobq_state_final(mj->job.state)) continue;
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%c%s", at > 0 ? " " : "",
                               letters[mj->job.state], mj->payload.ptr);
    }
    return text;
}

/* -- a worker fires -- */

static void a_worker_until_empty_fires_what_is_due_first(void **unused)
{
    (void)unused;
    add(every(HOUR), 0);
    start(JOBQ_UNTIL_EMPTY, 1, HOUR);
    assert_true(work(HOUR, 2 * HOUR) == JOBQ_NEVER);
    assert_int_equal(runs, 1);
    assert_int_equal(model_of(memory)->schedules[0].tick_us, 2 * HOUR);
}

static void a_schedule_that_is_added_fires_with_the_next_heartbeat(void **unused)
{
    int64_t now, tick_us;

    (void)unused;
    start(JOBQ_UNTIL_STOPPED, 1, 0);
    now = work(0, HOUR);
    tick_us = add(every(10 * SECOND), now)->tick_us;
    work(now, now + MINUTE);
    assert_in_range(runs, 5, 6);
    assert_int_equal(jobq_memory_get(memory, 1)->job.enqueued_at_us -
                     model_job_of(memory, 1)->tick_us, 0); /* and in time */
    assert_true(model_job_of(memory, 1)->tick_us >= tick_us);
}

/* Each instant of the calendar has one job, also those at which no worker lived. */
static void ticks_are_exact_over_days_in_which_workers_die(void **unused)
{
    model_schedule a = every(20 * MINUTE), b = cron("*/30 6-8 * * *");
    int64_t from = 19000 * DAY + 17 * SECOND, now = from, id, n[2] = {0, 0};
    int64_t last[2] = {from, from}, until = from + 3 * DAY;
    jobq_random random = {99};

    (void)unused;
    a.missed = b.missed = JOBQ_MISSED_ALL;
    b.payload = jobq_str_from("b");
    add(a, now);
    add(b, now);
    while (now < until) {
        int64_t down = jobq_random_between(jobq_random_next(&random), 0, 3 * HOUR);
        start(JOBQ_UNTIL_STOPPED, jobq_random_next(&random), now); /* the one before has crashed */
        work(now, now + 2 * HOUR);
        now += 2 * HOUR + down;
    }
    start(JOBQ_UNTIL_EMPTY, 5, now);
    work(now, now + HOUR);
    for (id = 1; id <= memory->job_count; id++) {
        const jobq_memory_job *mj = jobq_memory_get(memory, id);
        int which = mj->payload.len > 0;
        const model_schedule *s = &model_of(memory)->schedules[which];
        assert_true(model_job_of(memory, id)->tick_us == model_schedule_after(s, last[which]));
        assert_true(mj->job.state == JOBQ_STATE_SUCCEEDED);
        last[which] = model_job_of(memory, id)->tick_us;
        n[which]++;
    }
    assert_int_equal(runs, memory->job_count);
    assert_true(last[0] > now - 20 * MINUTE && last[0] <= now);
    assert_true(n[0] >= 3 * 72 && n[1] >= 3 * 6);
}

static void who_pauses_a_queue_or_a_kind_pauses_its_schedules(void **unused)
{
    int64_t due;

    (void)unused;
    add(every(HOUR), 0);
    jobq_memory_policy(memory, 1, NULL, true);
    assert_int_equal(tick(HOUR, &due), 0);
    assert_int_equal(due, 0);
    jobq_memory_policy(memory, 1, NULL, false);
    model_pause(memory, 1, true);
    assert_int_equal(tick(HOUR, &due), 0);
    model_pause(memory, 1, false);
    assert_int_equal(tick(HOUR, &due), 1);
    assert_int_equal(due, HOUR + 1);
}

static void a_tick_without_room_is_fired_later(void **unused)
{
    int64_t due;
    int i;

    (void)unused;
    memory = model_init(&block, 1, WORKERS, CLAIMS);
    add(every(HOUR), 0);
    assert_int_equal(tick(HOUR, NULL), 1);
    for (i = 0; i < 2; i++) {
        assert_int_equal(tick(2 * HOUR + i * MINUTE, &due), 0);
        assert_int_equal(due, MINUTE + 1);
        assert_int_equal(model_of(memory)->schedules[0].tick_us, 2 * HOUR);
    }
}

/* -- what was missed -- */

static void missed_ticks_fire_as_the_schedule_says(void **unused)
{
    static const struct {
        jobq_missed missed;
        int64_t within, gap; /* between the last tick that fired and now */
        int32_t fired;
        int64_t first;       /* the first of them, before now */
    } rows[] = {
        {JOBQ_MISSED_LAST, 0, 10 * HOUR + MINUTE, 1, MINUTE},
        {JOBQ_MISSED_LAST, 0, 100 * DAY, 1, 0},
        {JOBQ_MISSED_LAST, 10 * SECOND, 10 * HOUR + MINUTE, 0, 0},
        {JOBQ_MISSED_ALL, 0, 10 * HOUR + MINUTE, 10, 9 * HOUR + MINUTE},
        {JOBQ_MISSED_ALL, 0, 3 * DAY, 25, DAY},
        {JOBQ_MISSED_ALL, 5 * HOUR, 3 * DAY + MINUTE, 5, 4 * HOUR + MINUTE},
        {JOBQ_MISSED_ALL, 200 * HOUR, 300 * HOUR, 201, 200 * HOUR},
        {JOBQ_MISSED_SKIP, 0, 10 * HOUR + 2 * MINUTE, 0, 0},
        {JOBQ_MISSED_SKIP, 0, 10 * HOUR + 30 * SECOND, 1, 30 * SECOND},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        model_schedule s = every(HOUR);
        int64_t from = 20000 * DAY, now = from + rows[i].gap, due;
        int32_t fired = 0;
        setup(NULL);
        s.missed = rows[i].missed;
        s.missed_within_us = rows[i].within;
        add(s, from);
        do fired += tick(now, &due); while (due == 1); /* a hundred at a time */
        assert_int_equal(fired, rows[i].fired);
        if (fired > 0) assert_true(model_job_of(memory, 1)->tick_us == now - rows[i].first);
        assert_true(model_of(memory)->schedules[0].tick_us == now - now % HOUR + HOUR);
        assert_int_equal(tick(now, NULL), 0);
        assert_int_equal(memory->job_count, fired);
    }
}

/* The search by halves finds what a walk finds. */
static void the_last_tick_is_found(void **unused)
{
    static const char *const texts[] = {"*/7 * * * *", "0 0 31 * *", "30 2 * * MON", "5 4 29 2 *"};
    size_t i;
    int n;

    (void)unused;
    for (i = 0; i < COUNT(texts); i++) {
        model_schedule s = cron(texts[i]);
        int64_t first = model_schedule_after(&s, 19000 * DAY), tick = first;
        for (n = 0; n < 50; n++) {
            int64_t next = model_schedule_after(&s, tick);
            assert_true(model_schedule_last(&s, first, tick) == tick);
            assert_true(model_schedule_last(&s, first, next - 1) == tick);
            tick = next;
        }
    }
}

/* -- overlap -- */

static void overlap_allows_skips_waits_or_cancels(void **unused)
{
    static const struct {
        jobq_overlap overlap;
        const char *running, *ready; /* what there is after two ticks, by the first job's state */
        int32_t fired;               /* while it is running */
    } rows[] = {
        {JOBQ_OVERLAP_ALLOW, "xp rp rp", "rp rp rp", 2},
        {JOBQ_OVERLAP_SKIP, "xp", "rp", 0},
        {JOBQ_OVERLAP_WAIT, "xp wp", "rp wp", 2},
        {JOBQ_OVERLAP_CANCEL, "xp wp", "rp", 2},
    };
    size_t i;
    int begun;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        for (begun = 0; begun < 2; begun++) {
            model_schedule s = every(HOUR);
            jobq_memory_job *first;
            setup(NULL);
            s.overlap = rows[i].overlap;
            s.payload = jobq_str_from("p");
            add(s, 0);
            assert_int_equal(tick(HOUR, NULL), 1);
            first = jobq_memory_get(memory, 1);
            if (begun) assert_ptr_equal(claim(1, HOUR), first);
            assert_int_equal(tick(2 * HOUR, NULL) + tick(3 * HOUR, NULL),
                             begun || rows[i].fired == 0 ? rows[i].fired : 2);
            assert_string_equal(live(), begun ? rows[i].running : rows[i].ready);
            if (rows[i].overlap == JOBQ_OVERLAP_CANCEL && begun) {
                assert_true(first->job.cancel_requested);
            }
            if (strchr(live(), 'w') == NULL) continue;
            assert_int_equal(model_job_of(memory, 2)->tick_us, 3 * HOUR); /* the newest */
            if (!begun) first = claim(1, 3 * HOUR);
            end(first, JOBQ_EVENT_SUCCESS, 3 * HOUR);
            assert_string_equal(live(), "rp");
            assert_int_equal(tick(4 * HOUR, NULL), 1);
            assert_string_equal(live(), rows[i].overlap == JOBQ_OVERLAP_WAIT ? "rp wp" : "rp");
        }
    }
}

/* A job that has begun, and waits for one that it spawned. */
static void a_job_that_waits_for_its_child_has_begun(void **unused)
{
    static const char *const live_then[] = {"wp rp rp", "wp rp", "wp rp wp", "rp rp"};
    int i;

    (void)unused;
    for (i = 0; i <= JOBQ_OVERLAP_CANCEL; i++) {
        model_schedule s = every(HOUR);
        jobq_job like = jobq_job_new(0);
        jobq_memory_job *first;
        setup(NULL);
        s.overlap = (jobq_overlap)i;
        s.payload = jobq_str_from("p");
        add(s, 0);
        assert_int_equal(tick(HOUR, NULL), 1);
        first = claim(1, HOUR);
        assert_true(jobq_memory_enqueue(memory, &like, s.payload, HOUR) == 2);
        assert_true(model_after(memory, 1, 2, JOBQ_ON_ANY, false, HOUR));
        end(first, JOBQ_EVENT_WAIT, HOUR);
        assert_int_equal(tick(2 * HOUR, NULL), i != JOBQ_OVERLAP_SKIP);
        assert_string_equal(live(), live_then[i]);
    }
}

/* -- keys -- */

static int put(const char *payload, jobq_known on_known, jobq_unique unique, int64_t delay,
               int64_t now, int64_t *id)
{
    jobq_job like = jobq_job_new(0);
    model_key key = {.key = 5, .on_known = on_known, .unique_for = unique};

    like.queue = like.kind = 1;
    like.stages = 2;
    like.run_at_us = now + delay;
    return model_enqueue_known(memory, &like, jobq_str_from(payload), &key, now, id);
}

/* Brings the job of the key into a state: r ready, s between two stages, x running, e ended. */
static int64_t in_state(char state)
{
    jobq_memory_job *mj;
    int64_t id;

    setup(NULL);
    put("1", JOBQ_KNOWN_LEAVE, JOBQ_UNIQUE_DEFAULT, state == 'r' ? MINUTE : 0, 0, &id);
    if (state == 'r') return id;
    mj = claim(1, 0);
    if (state == 's') end(mj, JOBQ_EVENT_SUCCESS, 0);
    if (state == 'e') end(mj, JOBQ_EVENT_DISCARD, 0);
    return id;
}

/* The table of test_pg_unique; but MERGE takes the newer payload. */
static void every_word_meets_every_state(void **unused)
{
    static const struct { jobq_known on_known; char state; const char *live; } rows[] = {
        {JOBQ_KNOWN_LEAVE, 'r', "r1"},      {JOBQ_KNOWN_LEAVE, 's', "r1"},
        {JOBQ_KNOWN_LEAVE, 'x', "x1"},      {JOBQ_KNOWN_LEAVE, 'e', ""},
        {JOBQ_KNOWN_REJECT, 'r', "r1"},     {JOBQ_KNOWN_REJECT, 'x', "x1"},
        {JOBQ_KNOWN_REJECT, 'e', ""},       {JOBQ_KNOWN_REPLACE, 'r', "r2"},
        {JOBQ_KNOWN_REPLACE, 's', "r1 w2"}, {JOBQ_KNOWN_REPLACE, 'x', "x1 w2"},
        {JOBQ_KNOWN_REPLACE, 'e', "r2"},    {JOBQ_KNOWN_MERGE, 'r', "r2"},
        {JOBQ_KNOWN_MERGE, 'x', "x1 w2"},   {JOBQ_KNOWN_MERGE, 'e', "r2"},
        {JOBQ_KNOWN_BUMP, 'r', "r1"},       {JOBQ_KNOWN_BUMP, 'x', "x1"},
        {JOBQ_KNOWN_BUMP, 'e', "r2"},       {JOBQ_KNOWN_CANCEL, 'r', "r2"},
        {JOBQ_KNOWN_CANCEL, 'x', "x1 w2"},  {JOBQ_KNOWN_CANCEL, 'e', "r2"},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        jobq_known how = rows[i].on_known;
        int did;
        bool begun = rows[i].state == 's' || rows[i].state == 'x';
        bool left = how == JOBQ_KNOWN_LEAVE || how == JOBQ_KNOWN_REJECT ||
                    (how == JOBQ_KNOWN_BUMP && begun);
        int64_t old = in_state(rows[i].state), id;
        did = put("2", how, JOBQ_UNIQUE_DEFAULT, 0, 0, &id);
        if (strcmp(live(), rows[i].live) != 0)
            fail_msg("%s in state %c: %s", jobq_enum_name(JOBQ_ENUM_KNOWN, how), rows[i].state,
                     live());
        assert_int_equal(left, did == JOBQ_KNOWN_LEAVE || did == JOBQ_KNOWN_REJECT);
        assert_int_equal(id == old, left || (rows[i].state == 'r' && how != JOBQ_KNOWN_CANCEL));
        assert_int_equal(jobq_memory_get(memory, id)->follows,
                         strchr(live(), 'w') != NULL ? old : 0);
    }
}

static void a_key_is_known_as_long_as_is_said(void **unused)
{
    static const struct { jobq_unique unique; char state; bool known; } rows[] = {
        {JOBQ_UNIQUE_DEFAULT, 'e', true}, {JOBQ_UNIQUE_PERIOD, 'e', true},
        {JOBQ_UNIQUE_LIVE, 'e', false},   {JOBQ_UNIQUE_LIVE, 'x', true},
        {JOBQ_UNIQUE_READY, 'e', false},  {JOBQ_UNIQUE_READY, 'x', false},
        {JOBQ_UNIQUE_READY, 's', false},  {JOBQ_UNIQUE_READY, 'r', true},
    };
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(rows); i++) {
        int64_t old = in_state(rows[i].state), id;
        assert_int_equal(put("2", JOBQ_KNOWN_LEAVE, rows[i].unique, 0, 0, &id),
                         rows[i].known ? JOBQ_KNOWN_LEAVE : MODEL_KNOWN_NEW);
        assert_int_equal(id == old, rows[i].known);
    }
}

/* However the first job ends, the newest payload runs then; a retry is not an end. */
static void one_runs_and_one_waits(void **unused)
{
    static const jobq_event_kind ends[] = {JOBQ_EVENT_SUCCESS, JOBQ_EVENT_DISCARD,
                                           JOBQ_EVENT_CANCELLED, JOBQ_EVENT_RETRY};
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(ends); i++) {
        jobq_memory_job *mj;
        int64_t old, first, id;
        bool retry = ends[i] == JOBQ_EVENT_RETRY;
        old = in_state('s');
        mj = claim(2, 0);
        assert_int_equal(put("2", JOBQ_KNOWN_REPLACE, JOBQ_UNIQUE_DEFAULT, 0, 0, &first),
                         MODEL_KNOWN_FOLLOW);
        put("3", JOBQ_KNOWN_REPLACE, JOBQ_UNIQUE_DEFAULT, 0, 0, &id);
        assert_int_equal(id, first);
        put("4", JOBQ_KNOWN_MERGE, JOBQ_UNIQUE_DEFAULT, 0, 0, &id);
        put("5", JOBQ_KNOWN_CANCEL, JOBQ_UNIQUE_DEFAULT, 0, 0, &id);
        put("9", JOBQ_KNOWN_LEAVE, JOBQ_UNIQUE_DEFAULT, 0, 0, &id);
        assert_int_equal(id, first);
        assert_int_equal(model_job_of(memory, id)->merged, 1);
        assert_null(claim(3, DAY)); /* it waits, however late it is */
        assert_true(jobq__memory_remains(memory, 2, 0));
        end(mj, ends[i], MINUTE);
        assert_string_equal(live(), retry ? "r1 w5" : "r5");
        assert_int_equal(jobq_memory_get(memory, id)->follows, retry ? old : 0);
        if (!retry) assert_ptr_equal(claim(3, MINUTE), jobq_memory_get(memory, first));
    }
}

/* A worker's own ways to end a job make the next one ready, too. */
static void a_worker_runs_what_waited(void **unused)
{
    int64_t id;

    (void)unused;
    in_state('x');
    put("2", JOBQ_KNOWN_REPLACE, JOBQ_UNIQUE_DEFAULT, 0, 0, &id);
    jobq_memory_get(memory, 1)->job.stage = 1;
    end(jobq_memory_get(memory, 1), JOBQ_EVENT_RELEASE, 0); /* its worker gave it back */
    assert_string_equal(live(), "r1 w2");
    start(JOBQ_UNTIL_EMPTY, 3, 0);
    assert_true(work(0, HOUR) == JOBQ_NEVER);
    assert_string_equal(live(), "");
    assert_int_equal(runs, 1 + 2); /* two stages */
}

static void a_waiting_job_can_be_cancelled(void **unused)
{
    int64_t id;

    (void)unused;
    in_state('x');
    put("2", JOBQ_KNOWN_REPLACE, JOBQ_UNIQUE_DEFAULT, 0, 0, &id);
    assert_int_equal(jobq_memory_event(memory, id, JOBQ_EVENT_CANCEL, 0), JOBQ_OK);
    assert_string_equal(live(), "x1");
    assert_int_equal(put("3", JOBQ_KNOWN_REPLACE, JOBQ_UNIQUE_DEFAULT, 0, 0, &id),
                     MODEL_KNOWN_FOLLOW); /* the key is still known, so no two run at once */
    assert_string_equal(live(), "x1 w3");
    end(jobq_memory_get(memory, 1), JOBQ_EVENT_DISCARD, 0);
    assert_string_equal(live(), "r3");
}

static void a_debounce_ends_at_the_latest(void **unused)
{
    jobq_job like = jobq_job_new(0);
    model_key key = {.key = 5, .on_known = JOBQ_KNOWN_REPLACE, .at_latest_us = 25 * SECOND};
    int64_t now, id;

    (void)unused;
    like.queue = like.kind = 1;
    for (now = 0; now < 24 * SECOND; now += 8 * SECOND) {
        like.run_at_us = now + 10 * SECOND;
        model_enqueue_known(memory, &like, jobq_str_from("p"), &key, now, &id);
        assert_int_equal(jobq_memory_get(memory, 1)->job.run_at_us,
                         now < 16 * SECOND ? now + 10 * SECOND : 25 * SECOND);
    }
    key.on_known = JOBQ_KNOWN_BUMP;
    like.run_at_us = now + SECOND / 2;
    model_enqueue_known(memory, &like, jobq_str_from("p"), &key, now, &id);
    assert_int_equal(jobq_memory_get(memory, 1)->job.run_at_us, now + SECOND / 2);
    like.run_at_us = now + MINUTE;
    model_enqueue_known(memory, &like, jobq_str_from("p"), &key, now, &id);
    assert_int_equal(jobq_memory_get(memory, 1)->job.run_at_us, now + SECOND / 2);
    jobq_memory_get(memory, 1)->job.run_at_us = HOUR;
    model_enqueue_known(memory, &like, jobq_str_from("p"), &key, MINUTE, &id);
    assert_int_equal(jobq_memory_get(memory, 1)->job.run_at_us, MINUTE); /* not in the past */
    assert_int_equal(memory->job_count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_worker_until_empty_fires_what_is_due_first, setup),
        cmocka_unit_test_setup(a_schedule_that_is_added_fires_with_the_next_heartbeat, setup),
        cmocka_unit_test_setup(ticks_are_exact_over_days_in_which_workers_die, setup),
        cmocka_unit_test_setup(who_pauses_a_queue_or_a_kind_pauses_its_schedules, setup),
        cmocka_unit_test_setup(a_tick_without_room_is_fired_later, setup),
        cmocka_unit_test_setup(missed_ticks_fire_as_the_schedule_says, setup),
        cmocka_unit_test_setup(the_last_tick_is_found, setup),
        cmocka_unit_test_setup(overlap_allows_skips_waits_or_cancels, setup),
        cmocka_unit_test_setup(a_job_that_waits_for_its_child_has_begun, setup),
        cmocka_unit_test_setup(every_word_meets_every_state, setup),
        cmocka_unit_test_setup(a_key_is_known_as_long_as_is_said, setup),
        cmocka_unit_test_setup(one_runs_and_one_waits, setup),
        cmocka_unit_test_setup(a_worker_runs_what_waited, setup),
        cmocka_unit_test_setup(a_waiting_job_can_be_cancelled, setup),
        cmocka_unit_test_setup(a_debounce_ends_at_the_latest, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
