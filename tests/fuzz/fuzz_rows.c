/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * fuzz_rows.c -- libFuzzer on what jobq_pg.h reads from a server: rows in binary, SQLSTATEs, names
 * of schemas. A hostile or broken server may send anything. The code must not read out of bounds,
 * must not overflow in arithmetic, and must not accept a row that breaks a law.
 *
 * Input: for each column one byte (255: NULL, else the length) and the bytes of the value, as one
 * row.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#define MUST(x) ((x) ? (void)0 : (fprintf(stderr, "broken: %s\n", #x), abort()))
#define COLUMNS 24

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* One row; columns that the input has no more bytes for are missing altogether. */
static PGresult *row_of(const uint8_t *data, size_t size)
{
    static char names[COLUMNS][4];
    PGresult *res = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    PGresAttDesc columns[COLUMNS];
    size_t at = 0;
    int count = 0, i, lengths[COLUMNS];
    const uint8_t *values[COLUMNS];

    memset(columns, 0, sizeof columns);
    for (; count < COLUMNS && at < size; count++) {
        size_t len = data[at++];
        lengths[count] = len == 255 ? -1 : (int)(len < size - at ? len : size - at);
        values[count] = data + at;
        if (lengths[count] > 0) at += (size_t)lengths[count];
        columns[count].name = names[count];
        columns[count].format = 1;
    }
    MUST(res != NULL && (count == 0 || PQsetResultAttrs(res, count, columns)));
    for (i = 0; i < count; i++) {
        char copy[256];
        if (lengths[i] > 0) memcpy(copy, values[i], (size_t)lengths[i]);
        MUST(PQsetvalue(res, 0, i, lengths[i] < 0 ? NULL : copy, lengths[i]));
    }
    return res;
}

static void read_job(const PGresult *res)
{
    jobq_queue_policy queue;
    jobq_policy policy;
    jobq_pg__claim_row row;
    jobq_decision decision;
    jobq_event event;
    jobq_job job;
    bool bytes;

    jobq_pg__policy(res, 0, &queue);
    policy = jobq_policy_defaults(&queue.policy);
    (void)jobq_pg_payload(res, 0, &bytes);
    if (!jobq_pg__job_from(res, 0, 5, 6, &row)) return;
    job = row.job;
    MUST(jobq_job_check(&job) == JOBQ_OK && job.state == JOBQ_STATE_RUNNING);
    memset(&event, 0, sizeof event);
    for (event.kind = JOBQ_EVENT_SUCCESS; event.kind < JOBQ_EVENT_COUNT; event.kind++) {
        jobq_job copy = job;
        event.random = (uint64_t)job.id;
        if (jobq_job_decide(&policy, &job, &event, &decision) != JOBQ_OK) continue;
        jobq_job_apply(&copy, &decision, 0);
        MUST(jobq_job_check(&copy) == JOBQ_OK);
    }
}

/* An array never fills more than there is room for. */
static void read_array(const PGresult *res)
{
    jobq_pg__written w;
    int64_t out[8], guard = 77;
    int32_t most;

    for (most = 0; most <= 7; most++) {
        memset(&w, 0, sizeof w);
        w.ids = out;
        w.count = most;
        out[most] = guard;
        jobq_pg__row(res, 0, 0, jobq_pg__ids_out, &w);
        MUST(w.count >= 0 && w.count <= most && out[most] == guard);
    }
}

/* News of a heartbeat: lists within a struct. */
static void read_news(const PGresult *res)
{
    static jobq_news news;

    memset(&news, 0, sizeof news);
    jobq_pg__row(res, 0, 0, jobq_pg__news_out, &news);
    MUST(news.cancel_count >= 0 && news.cancel_count <= JOBQ_LOOP_SLOTS);
    MUST(news.kind_count >= 0 && news.kind_count <= JOBQ_LOOP_KINDS + JOBQ_STRAYS_MAX);
    MUST(news.late_count >= 0 && news.late_count <= JOBQ_LOOP_WATCHED);
    MUST(news.alone_count >= 0 && news.alone_count <= JOBQ_LOOP_QUEUES);
}

/* A batch of messages; it keeps the result. */
static void read_messages(PGresult *res)
{
    jobq_pg__portion portion;
    size_t seen = 0;
    int64_t i;

    if (jobq_pg__portion_of(res, &portion) != JOBQ_OK) return;
    for (i = 0; i < portion.count; i++) {
        const jobq_message *m = &portion.messages[i];
        size_t k;
        for (k = 0; k < m->payload.len; k++) seen += (size_t)(m->payload.ptr[k] != 0);
        for (k = 0; k < m->type.len; k++) seen += (size_t)(m->type.ptr[k] != 0);
        for (k = 0; k < m->headers.len; k++) seen += (size_t)(m->headers.ptr[k] != 0);
    }
    MUST(seen < SIZE_MAX);
    jobq_pg__portion_clear(&portion);
}

static void read_words(const uint8_t *data, size_t size)
{
    char word[65], *text;
    size_t len = size < 64 ? size : 64;
    jobq_pg handle;

    memcpy(word, data, len);
    word[len] = '\0';
    MUST(jobq_pg_classify(word) < JOBQ_ERROR_COUNT);
    memset(&handle, 0, sizeof handle);
    if (!jobq_pg__schema_set(&handle, word)) return;
    MUST(strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") ==
         strlen(word));
    text = jobq_pg__for_schema("SELECT jobq._claim() FROM jobq", handle.schema);
    MUST(text != NULL && strlen(text) == 21 + 2 * strlen(handle.schema));
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    PGresult *res = row_of(data, size);

    read_words(data, size);
    if (PQnfields(res) == 0) {
        PQclear(res);
        return 0;
    }
    read_job(res);
    read_array(res);
    read_news(res);
    read_messages(res);
    return 0;
}
