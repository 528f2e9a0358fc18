/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * api.h -- the public part of a header as a list of names: each field of its structs, as
 * "struct.field", and each parameter of its functions, as "function.parameter". Tests that judge
 * every one of them fail when a new one comes.
 */
#ifndef JOBQ_TESTS_API_H
#define JOBQ_TESTS_API_H

#include "pg.h"

/* The ends of the half for programs, and of the API. */
#define API_FOR_PROGRAMS "/*\n * ---- Stop here unless"
#define API_WHOLE "/* Stop here if you only want the API. */"

/* Takes the comments out, and what follows this end. */
static inline char *api_text(const char *path, const char *last)
{
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 22), *end, *at;

    assert_non_null(file);
    assert_in_range(fread(text, 1, (1 << 22) - 1, file), 1000, (1 << 22) - 2);
    fclose(file);
    end = strstr(text, last);
    assert_non_null(end);
    *end = '\0';
    for (at = text; (at = strstr(at, "/*")) != NULL;) {
        char *close = strstr(at, "*/");
        assert_non_null(close);
        memset(at, ' ', (size_t)(close + 2 - at));
    }
    return text;
}

static inline bool api_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* The last word of a declarator, such as "const char *const *fields" or "run[4]". */
static inline void api_last(char out[64], const char *from, const char *end)
{
    const char *word;

    for (word = from; word < end && *word != '['; word++) {}
    end = word;
    while (end > from && !api_letter(end[-1])) end--;
    for (word = end; word > from && api_letter(word[-1]); word--) {}
    snprintf(out, 64, "%.*s", (int)(end - word), word);
}

typedef void (*api_seen)(const char *owner, const char *name);

/* Calls seen for the members of a list, which are separated by sep; a function pointer's name is
 * in its first parentheses. */
static inline void api_members(const char *owner, const char *from, const char *end, char sep,
                               api_seen seen)
{
    while (from < end) {
        const char *stop = from, *open = NULL, *part;
        char name[64];
        int depth = 0;

        for (; stop < end && (depth > 0 || *stop != sep); stop++) {
            if (*stop == '(' && open == NULL) open = stop;
            depth += (*stop == '(' || *stop == '{') - (*stop == ')' || *stop == '}');
        }
        for (part = from; open == NULL && part < stop && sep == ';'; part++) {
            if (*part != ',') continue;
            api_last(name, from, part);
            if (name[0] != '\0') seen(owner, name);
        }
        if (open != NULL && open[1] == '*') api_last(name, open, strchr(open, ')'));
        else api_last(name, from, stop);
        if (name[0] != '\0' && strcmp(name, "void") != 0) seen(owner, name);
        from = stop + 1;
    }
}

static inline void api_structs(char *text, api_seen seen)
{
    char *at = text;

    while ((at = strstr(at, "struct ")) != NULL) {
        char owner[64], *open = strchr(at, '{'), *end = strchr(at, ';');
        bool begins = at[-1] == '\n' || (at[-1] == ' ' && at[-2] == 'f'); /* typedef */
        at += 7;
        if (!begins) continue;
        if (open == NULL || open > end) continue;
        snprintf(owner, sizeof owner, "%.*s", (int)strcspn(at, " {"), at);
        for (end = open + 1; *end != '}'; end++) {}
        api_members(owner, open + 1, end, ';', seen);
    }
}

static inline void api_functions(char *text, api_seen seen)
{
    char *at = text;

    while ((at = strstr(at, "\nJOBQ_API ")) != NULL) {
        char owner[64], *open = strchr(at, '('), *end = strstr(at, ");");
        at += 10;
        if (open == NULL || end == NULL || open > end) continue;
        api_last(owner, at, open);
        api_members(owner, open + 1, end, ',', seen);
    }
}

#endif
