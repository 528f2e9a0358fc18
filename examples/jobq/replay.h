/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * replay.h -- jobq replay FILE: what a worker did, why, and the same again in a debugger.
 *
 * The file is a recording: jobq_pg_worker_desc.record. It needs no database.
 */
#include "story.h"

#include <sys/stat.h>

typedef struct replay {
    char *block; /* the file */
    size_t size;
    jobq_recording *head;
    jobq_replay *state;
    int64_t stop;    /* --stop, --back or --dump: this entry; 0: none */
    int64_t job;     /* --job; 0: all */
    const char *kind;
    bool story, why, laws;
    jobq_entry entry;
    int64_t last_claim, last_worker; /* for the laws */
} replay;

static const char *replay_value(app *a, const char *name)
{
    const char *value = app_value(a, name);

    return value == NULL ? "0" : value;
}

/* Reads the file. False: says why not. */
static bool replay_open(replay *r, const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat status;
    const char *why;
    bool all;
    size_t i;

    if (file == NULL || fstat(fileno(file), &status) != 0)
        return app_say(0, "%s: %s", path, strerror(errno));
    r->size = (size_t)status.st_size;
    r->block = app_need(malloc(r->size + 1));
    all = fread(r->block, 1, r->size, file) == r->size;
    fclose(file);
    if (!all) return app_say(0, "%s: %s", path, strerror(errno));
    r->head = (jobq_recording *)(void *)r->block;
    r->state = app_need(calloc(1, jobq_replay_size()));
    if (jobq_replay_init(r->state, r->block, r->size, &why) == JOBQ_OK) {
        r->head->notes[sizeof r->head->notes - 1] = '\0';
        return true;
    }
    app_say(0, "%s: %s", path, why);
    if (strstr(why, "JOBQ_") != NULL || strstr(why, "version") != NULL) {
        static const char *const names[] = {
#define NAME(limit) #limit,
            JOBQ_RECORD_LIMITS(NAME)};
        fprintf(stderr, "Build this program of version %d with\n", r->head->version);
        for (i = 0; i < sizeof names / sizeof names[0]; i++)
            fprintf(stderr, "    -D%s=%d\n", names[i], (int)r->head->limits[i]);
    }
    return false;
}

/* The wall clock, as it was at the start, goes on with the loop's clock. */
static void replay_print(const replay *r, const jobq_entry *e)
{
    int64_t us = r->head->wall_us + e->mono_us - r->head->mono_us;
    time_t seconds = (time_t)(us / 1000000);
    const struct tm *tm = gmtime(&seconds);
    char clock[40] = "";

    if (tm != NULL) strftime(clock, sizeof clock, "%Y-%m-%d %H:%M:%S", tm);
    printf("%8lld  %s.%06d  %s%s\n", (long long)e->number, clock, (int)(us % 1000000),
           story_entry(e, r->head->notes), e->cut ? "  <- did not return" : "");
}

/* Why a wait ends when it does: what the loop wants, and when. */
static void replay_why(const jobq_entry *e)
{
    int64_t until = e->request->until_mono_us;
    bool known = false;
    int kind;

    for (kind = 0; kind < JOBQ_REQUEST_COUNT; kind++) {
        int64_t due = jobq_loop_wants(e->loop, (jobq_request_kind)kind, e->mono_us);
        if (due == JOBQ_NEVER) continue;
        printf("%20s%-12s in %12.6f s%s\n", "", jobq_enum_name(JOBQ_ENUM_REQUEST, kind),
               (double)(due - e->mono_us) / 1e6, due == until ? "  <- decides" : "");
        known |= due == until;
    }
    if (!known && until != JOBQ_NEVER)
        printf("%20s%-12s in %12.6f s  <- decides: a hold, a suspect or a pause ends\n", "",
               "something", (double)(until - e->mono_us) / 1e6);
}

static bool replay_names_job(const jobq_entry *e, int64_t job)
{
    jobq_work mate;
    int32_t i;

    if (e->work != NULL && e->work->partition_id != 0) return false;
    if (e->work != NULL && e->work->job.id == job) return true;
    if (e->kind == JOBQ_ENTRY_TAKE)
        for (mate = *e->work; jobq_loop_mate(e->loop, &mate);)
            if (mate.job.id == job) return true;
    for (i = 0; e->answer != NULL && e->answer->error == JOBQ_OK && i < e->answer->claimed.count;
         i++)
        if (e->answer->claimed.jobs[i].id == job) return true;
    for (i = 0; e->request != NULL && i < e->request->ending_count; i++)
        if (e->request->endings[i].job == job) return true;
    return e->request != NULL && e->request->kind == JOBQ_REQUEST_ABANDON &&
           e->request->id == job;
}

static const char *replay_field(const char *value)
{
    const char *dot = strrchr(value, '.');

    return dot != NULL ? dot + 1 : "";
}

/* What is not 0 of a request, field by field. */
static void replay_fields(const jobq_request *a)
{
    int32_t i;
#define FIELD(value)                                                                               \
    if ((value) != 0) printf("    %s %lld\n", strchr(#value, '.') + 1, (long long)(value));
#define PART_FIELD(value)                                                                          \
    if ((value) != 0) printf(" %s %lld", replay_field(#value), (long long)(value));
#define PART(part, count, fields)                                                                  \
    for (i = 0; i < a->count; i++) {                                                               \
        printf("    " #part "[%d]", (int)i);                                                       \
        fields(PART_FIELD, a->part[i])                                                             \
        printf("\n");                                                                              \
    }
    JOBQ__REQUEST_FIELDS(FIELD, (*a))
    JOBQ__REQUEST_PARTS(PART)
}

static void replay_dump(const jobq_entry *e)
{
    jobq_loop_status s = jobq_loop_status_of(e->loop);
    static const char *const phases[] = {"working", "stopping", "leaving", "exited"};
    int kind;

    printf("phase %s, connected %d, worker %lld, hears %d, asleep %d\n", phases[s.phase],
           s.connected, (long long)s.worker, s.hears, s.asleep);
    printf("running %d, ready %d, lease ends in %.6f s\n", s.running, s.ready,
           s.lease_mono_us == INT64_MIN ? -1 : (double)(s.lease_mono_us - e->mono_us) / 1e6);
    printf("jobs: started %lld, succeeded %lld, retried %lld, failed %lld, released %lld, "
           "lost %lld\n", (long long)s.jobs.started, (long long)s.jobs.succeeded,
           (long long)s.jobs.retried, (long long)s.jobs.failed, (long long)s.jobs.released,
           (long long)s.jobs.lost);
    printf("messages: reads %lld, delivered %lld, succeeded %lld, dead %lld\n",
           (long long)s.messages.reads, (long long)s.messages.delivered,
           (long long)s.messages.succeeded, (long long)s.messages.dead);
    for (kind = 0; kind < JOBQ_REQUEST_COUNT; kind++) {
        int64_t due = jobq_loop_wants(e->loop, (jobq_request_kind)kind, e->mono_us);
        if (due != JOBQ_NEVER)
            printf("wants %s in %.6f s\n", jobq_enum_name(JOBQ_ENUM_REQUEST, kind),
                   (double)(due - e->mono_us) / 1e6);
    }
    if (e->request != NULL) replay_fields(e->request);
}

/* The laws that one loop shows by itself. NULL: they hold. */
static const char *replay_broken(replay *r, const jobq_entry *e)
{
    jobq_loop_status s = jobq_loop_status_of(e->loop);
    const jobq_request *a = e->request;
    bool claims = a != NULL && a->claim != 0 &&
                  (a->kind == JOBQ_REQUEST_CLAIM || a->kind == JOBQ_REQUEST_HEARTBEAT);

    if (e->kind == JOBQ_ENTRY_TAKE && e->work->partition_id == 0 && e->mono_us >= s.lease_mono_us)
        return "a job starts after the lease has ended";
    if (s.running > JOBQ_LOOP_THREADS) return "more handlers run than there are threads";
    if (a != NULL && a->kind == JOBQ_REQUEST_WAIT && a->until_mono_us <= e->mono_us)
        return "it waits for an instant in the past";
    if (claims && a->worker == r->last_worker && a->claim <= r->last_claim)
        return "a claim number is used again";
    if (claims) r->last_worker = a->worker, r->last_claim = a->claim;
    return NULL;
}

/* What the loop does now instead. Of what it did, the file has the kind and a hash. */
static int replay_differs(const replay *r, const jobq_entry *e)
{
    printf("entry %lld differs from the recording\n", (long long)e->number);
    replay_print(r, e);
    if (e->kind == JOBQ_ENTRY_SNAPSHOT)
        printf("the loop did not come to the state that was recorded here\n");
    if (e->request == NULL) return APP_NO;
    printf("recorded: %s; now, field by field:\n", jobq_enum_name(JOBQ_ENUM_REQUEST, e->asked));
    replay_fields(e->request);
    return APP_NO;
}

/* One entry, after it was made. */
static int replay_tell(replay *r, int64_t *torn)
{
    const jobq_entry *e = &r->entry;
    const char *law = r->laws ? replay_broken(r, e) : NULL;
    bool wanted = (r->job == 0 || replay_names_job(e, r->job)) &&
                  (r->kind == NULL ||
                   strcmp(r->kind, e->request != NULL
                                       ? jobq_enum_name(JOBQ_ENUM_REQUEST, e->request->kind)
                                       : jobq_enum_name(JOBQ_ENUM_ENTRY, e->kind)) == 0);

    *torn += e->kind == JOBQ_ENTRY_TORN;
    if (e->kind == JOBQ_ENTRY_TORN) {
        printf("entry %lld: the rest of this segment is torn or damaged\n", (long long)e->number);
        return APP_OK;
    }
    if (!e->same) return replay_differs(r, e);
    if (law != NULL) {
        printf("entry %lld: %s\n", (long long)e->number, law);
        replay_print(r, e);
        return APP_NO;
    }
    if (!wanted) return APP_OK;
    if (r->story || r->why) replay_print(r, e);
    if (r->why && e->request != NULL && e->request->kind == JOBQ_REQUEST_WAIT) replay_why(e);
    return APP_OK;
}

/* Goes on to the end, or to the entry that was asked for. */
static int replay_run(replay *r, bool dumps)
{
    int64_t entries = 0, torn = 0;
    int code = APP_OK;

    while (code == APP_OK) {
        if (!dumps && r->stop > 0 && entries + 1 == r->stop) app_trap();
        fflush(stdout);
        if (!jobq_replay_step(r->state, &r->entry)) break;
        entries++;
        code = replay_tell(r, &torn);
        if (dumps && entries == r->stop) {
            replay_print(r, &r->entry);
            replay_dump(&r->entry);
            return code;
        }
    }
    if (code == APP_OK && !r->story && !r->why)
        printf("%lld entries, all as recorded%s\n", (long long)entries,
               torn > 0 ? " up to where the file is damaged" : "");
    return code;
}

/* A copy without names and host, for people outside. It still has the ids of workers: the loop
 * draws its own from random bits, and with another one it would not do the same. */
static int replay_export(replay *r, const char *path)
{
    FILE *file = fopen(path, "wb");
    bool all;

    memset(r->head->notes, 0, sizeof r->head->notes);
    if (file == NULL) return app_say(APP_NO, "%s: %s", path, strerror(errno));
    all = fwrite(r->block, 1, r->size, file) == r->size;
    if (fclose(file) != 0 || !all) return app_say(APP_NO, "%s: %s", path, strerror(errno));
    return APP_OK;
}

static int do_replay(app *a)
{
    replay r = {0};
    const char *stop = replay_value(a, "stop"), *back = replay_value(a, "back");
    const char *dump = replay_value(a, "dump");
    bool dumps = atoll(dump) > 0 || atoll(back) > 0;

    if (atoll(back) == 1) return app_say(APP_USAGE, "--back: before the first entry is nothing");
    if (!replay_open(&r, a->argv[0])) return APP_NO;
    if (app_value(a, "export") != NULL) return replay_export(&r, app_value(a, "export"));
    r.story = app_value(a, "story") != NULL;
    r.why = app_value(a, "why") != NULL;
    r.laws = app_value(a, "laws") != NULL;
    r.kind = app_value(a, "only");
    r.job = atoll(replay_value(a, "job"));
    r.stop = atoll(back) > 0 ? atoll(back) - 1 : atoll(dump) > 0 ? atoll(dump) : atoll(stop);
    return replay_run(&r, dumps);
}
