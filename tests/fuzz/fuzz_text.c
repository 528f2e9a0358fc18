/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * fuzz_text.c -- libFuzzer on what jobq.h reads from outside: names, UTF-8, JSON, words.
 *
 * The first byte chooses a size. The rest is the text, in memory of exactly its length.
 */
#define JOBQ_IMPLEMENTATION
#include "jobq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(x) ((x) ? (void)0 : (fprintf(stderr, "broken: %s\n", #x), abort()))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_utf8(jobq_str text, size_t max)
{
    char mended[257];
    size_t len = jobq_utf8_mend(mended, max, text);

    MUST(len <= max && mended[len] == '\0' && strlen(mended) == len);
    MUST(jobq_utf8_valid(jobq_str_from(mended)));
    if (jobq_utf8_valid(text)) {
        jobq_str cut = jobq_utf8_cut(text, max);
        MUST(cut.len <= max && jobq_utf8_valid(cut) && cut.len == len);
        MUST(len == 0 || memcmp(cut.ptr, mended, len) == 0);
        MUST(text.len <= max || cut.len + 4 > max);
    }
}

/* White space around a value changes nothing; where JSON is refused, the place is told. */
static void check_json(jobq_str text)
{
    char *spaced = (char *)malloc(text.len + 2);
    size_t at = SIZE_MAX, i;
    const char *why = NULL;
    jobq_error code = jobq_json_check(text, &at, &why);
    jobq_str s;

    MUST(code == JOBQ_OK || (code == JOBQ_ERROR_INVALID && at <= text.len && why != NULL));
    MUST(code != JOBQ_OK || jobq_utf8_valid(text));
    MUST(code == jobq_json_check(text, NULL, NULL));
    MUST(spaced != NULL);
    spaced[0] = ' ';
    for (i = 0; i < text.len; i++) spaced[i + 1] = text.ptr[i];
    spaced[text.len + 1] = '\n';
    s.ptr = spaced;
    s.len = text.len + 2;
    MUST(jobq_json_check(s, NULL, NULL) == code);
    free(spaced);
}

/* What is read is what was written: a text survives being quoted, an integer and a double being
 * printed. strtod judges
 * doubles. */
static void check_values(jobq_str json, const char *name)
{
    size_t size = json.len + 1;
    char *text = (char *)malloc(size), *back = (char *)malloc(size), number[32];
    char *quoted = (char *)malloc(6 * size + 3);
    jobq_str value = name == NULL ? json : jobq_json_member(json, name), s;
    int64_t whole = 7, same;
    double real = 7, judge;
    jobq_error code = jobq_json_text(json, name, text, size);

    MUST(text != NULL && back != NULL && quoted != NULL && code != JOBQ_ERROR_FULL);
    if (code == JOBQ_OK) {
        size = strlen(text) + 1;
        MUST(jobq_utf8_valid(jobq_str_from(text)));
        MUST(jobq_json_text(json, name, text, size - 1) == JOBQ_ERROR_FULL);
        s.ptr = quoted;
        s.len = jobq_json_quote(quoted, 6 * size + 3, jobq_str_from(text));
        MUST(jobq_json_text(s, NULL, back, size) == JOBQ_OK && strcmp(back, text) == 0);
    }
    code = jobq_json_int(json, name, &whole);
    MUST(code == JOBQ_OK || whole == 7);
    if (code == JOBQ_OK) {
        snprintf(number, sizeof number, "%lld", (long long)whole);
        MUST(jobq_json_int(jobq_str_from(number), NULL, &same) == JOBQ_OK && same == whole);
        MUST(jobq_json_double(json, name, &real) == JOBQ_OK);
    }
    code = jobq_json_double(json, name, &real);
    MUST(code == JOBQ_OK || real == 7);
    if (code == JOBQ_OK) {
        memcpy(quoted, value.ptr, value.len);
        quoted[value.len] = '\0';
        judge = strtod(quoted, NULL);
        MUST(memcmp(&judge, &real, sizeof real) == 0);
        snprintf(number, sizeof number, "%.17g", real);
        MUST(jobq_json_double(jobq_str_from(number), NULL, &judge) == JOBQ_OK);
        MUST(memcmp(&judge, &real, sizeof real) == 0);
    }
    free(text);
    free(back);
    free(quoted);
}

/* What is written of a trace is valid JSON, and reads as the same trace. */
static void check_trace(jobq_str parent, jobq_str state)
{
    jobq_trace trace = {parent, state}, again = jobq_trace_of(parent);
    char json[JOBQ_TRACE_MAX + 2] = "{";
    size_t size;

    MUST(again.parent.ptr == NULL || jobq_trace_format(json + 1, &again) > 0);
    size = jobq_trace_format(json + 1, &trace);
    MUST(size == strlen(json + 1));
    if (size == 0) return;
    json[size + 1] = '}';
    json[size + 2] = '\0';
    MUST(jobq_json_check(jobq_str_from(json), NULL, NULL) == JOBQ_OK);
    again = jobq_trace_of(jobq_str_from(json));
    MUST(memcmp(again.parent.ptr, "00", 2) == 0);
    MUST(memcmp(again.parent.ptr + 2, parent.ptr + 2, 50) == 0);
    MUST(again.state.ptr == NULL || jobq_str_equal(again.state, state));
}

static void check_words(jobq_str text)
{
    static const char *const stages[] = {"EXTRACTION", "EMBEDDING"};
    jobq_state state = JOBQ_STATE_NONE;
    char word[JOBQ_NAME_MAX];
    int stage = -1, i;

    for (i = 0; i < JOBQ_ENUM_COUNT; i++) {
        int value = jobq_enum_from((jobq_enum)i, text);
        MUST(value < 0 || jobq_str_equal(text, jobq_str_from(jobq_enum_name((jobq_enum)i, value))));
    }
    if (jobq_status_from(text, stages, 2, &stage, &state) == JOBQ_OK) {
        MUST(jobq_status_format(word, sizeof word, stages, 2, stage, state) == JOBQ_OK);
        MUST(jobq_str_equal(text, jobq_str_from(word)));
    } else {
        MUST(stage == -1);
    }
}

static void check_names(jobq_str text, int64_t id)
{
    char name[JOBQ_WORKER_NAME_MAX];

    if (jobq_name_valid(text)) MUST(text.len <= JOBQ_NAME_MAX && jobq_utf8_valid(text));
    MUST(jobq_partition_of(text, 8) < 8);
    if (!jobq_utf8_valid(text)) return;
    jobq_worker_name_format(name, text, id);
    MUST(jobq_utf8_valid(jobq_str_from(name)) && strlen(name) >= 14);
    jobq_worker_name_short(name, text, (uint64_t)id);
    MUST(jobq_utf8_valid(jobq_str_from(name)) && strlen(name) >= 7);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    jobq_str text, lines[2];
    size_t at = 0;
    char *copy;

    if (size < 1) return 0;
    copy = (char *)malloc(size);
    MUST(copy != NULL);
    memcpy(copy, data + 1, size - 1);
    text.ptr = copy;
    text.len = size - 1;
    check_utf8(text, data[0]);
    check_json(text);
    check_values(text, NULL);
    check_values(text, "a");
    check_words(text);
    lines[0] = lines[1] = text;
    while (at < text.len && text.ptr[at] != '\n') at++;
    lines[0].len = at;
    lines[1].ptr += at < text.len ? at + 1 : at;
    lines[1].len -= at < text.len ? at + 1 : at;
    check_trace(lines[0], lines[1]);
    check_trace(text, lines[1]);
    check_names(text, (int64_t)((uint64_t)data[0] << 56 | size));
    free(copy);
    return 0;
}
