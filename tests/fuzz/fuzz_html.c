/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * fuzz_html.c -- libFuzzer on what jobq web writes into pages: texts and values of URLs.
 *
 * An escaped text has no character that HTML takes for its own, and reading it gives the text
 * again, except for control characters.
 */
#define JOBQ_STATIC
#include "jobq_pg.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wconversion"
#include "../../examples/jobq/app.h"
#include "../../examples/jobq/html.h"

#define MUST(x) ((x) ? (void)0 : (fprintf(stderr, "broken: %s\n", #x), abort()))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A browser's reading of the references that html_text writes. */
static void read_text(char *text)
{
    static const char *const references[][2] = {{"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"},
                                                {"&quot;", "\""}, {"&#39;", "'"}, {"&#10;", "\n"}};
    char *to = text;

    while (*text != '\0') {
        size_t i = 0, len = 1;

        if (*text == '&') {
            while (i < 6 && strncmp(text, references[i][0], strlen(references[i][0])) != 0) i++;
            MUST(i < 6);
            len = strlen(references[i][0]);
        }
        *to++ = *text == '&' ? references[i][1][0] : *text;
        text += len;
    }
    *to = '\0';
}

static bool plain(const char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20 && *text != '\n' && *text != '\t') return false;
        if (*text == 0x7F) return false;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = (char *)calloc(1, size + 1);
    app_text out = {0}, all = {0};

    MUST(text != NULL);
    if (size > 0) memcpy(text, data, size);
    app_put(&out, "");
    html_text(&out, text);
    MUST(strpbrk(out.ptr, "<>\"'\n\r") == NULL);
    html(&all, "<p>%s%d</p>", text, 7);
    MUST(strncmp(all.ptr + 3, out.ptr, out.len) == 0);
    MUST(strcmp(all.ptr + 3 + out.len, "7</p>") == 0);
    if (plain(text)) {
        read_text(out.ptr);
        MUST(strcmp(out.ptr, text) == 0);
    }
    out.len = 0;
    app_put(&out, "");
    html_url(&out, text);
    MUST(strspn(out.ptr, "%-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") ==
         out.len);
    free(all.ptr);
    free(out.ptr);
    free(text);
    return 0;
}
