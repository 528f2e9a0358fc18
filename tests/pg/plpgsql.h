/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * plpgsql.h -- rewrites the body of a plpgsql function with a point after each statement that
 * touches the schema. A point is a place where a test can hold the session. Only the grammar above
 * SQL is parsed: blocks, IF, CASE, loops, and statements that end with a semicolon.
 *
 * A point is an ASSERT, because that changes neither FOUND nor ROW_COUNT. After a condition, a loop
 * header or a declaration that touches the schema, the point is the first statement inside.
 */
#ifndef PLPGSQL_INCLUDED
#define PLPGSQL_INCLUDED (1)

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLPGSQL_STATEMENTS 200

typedef struct plpgsql {
    const char *schema, *name; /* as the body writes it; of the function */
    const char *body, *copied; /* what is read; written up to here */
    const char *begin, *end;   /* the token: a word, a string, or one character; empty at the end */
    char *out;
    size_t size, room;
    bool touches;              /* a token since the last reset named the schema */
    int points, statements;
    int lines[PLPGSQL_STATEMENTS]; /* where each statement begins, from 1 */
} plpgsql;

/* -- tokens -- */

static bool plpgsql_letter(char c)
{
    return isalnum((unsigned char)c) || c == '_' || (c & 0x80) != 0;
}

/* Behind comments, which nest, and blanks. */
static const char *plpgsql_skip(const char *at)
{
    int depth = 0;

    for (;;) {
        if (*at == '\0') return at;
        if (at[0] == '/' && at[1] == '*') depth++, at += 2;
        else if (depth > 0 && at[0] == '*' && at[1] == '/') depth--, at += 2;
        else if (depth > 0 || isspace((unsigned char)*at)) at++;
        else if (at[0] == '-' && at[1] == '-') at += strcspn(at, "\n");
        else return at;
    }
}

/* The end of a text in quotes: doubled quotes belong to it, and after E what a backslash hides. */
static const char *plpgsql_quoted(const char *at, bool backslash)
{
    char quote = *at++;

    while (*at != '\0' && (*at != quote || at[1] == quote)) {
        at += (*at == quote || (backslash && *at == '\\')) && at[1] != '\0' ? 2 : 1;
    }
    return *at == '\0' ? at : at + 1;
}

/* The end of $tag$ ... $tag$; NULL: this dollar begins no such text. */
static const char *plpgsql_dollars(const char *at)
{
    size_t tag = 1;
    const char *end;

    while (plpgsql_letter(at[tag])) tag++;
    if (at[tag] != '$' || isdigit((unsigned char)at[1])) return NULL;
    tag++;
    for (end = at + tag; *end != '\0' && strncmp(end, at, tag) != 0; end++) continue;
    return *end == '\0' ? end : end + tag;
}

static bool plpgsql_is(const plpgsql *p, const char *word)
{
    size_t n = strlen(word), i;

    if ((size_t)(p->end - p->begin) != n) return false;
    for (i = 0; i < n; i++) {
        if (tolower((unsigned char)p->begin[i]) != word[i]) return false;
    }
    return true;
}

/* Whether the token names the schema: as a word, or in a text, which may be executed. */
static bool plpgsql_named(const plpgsql *p)
{
    size_t n = strlen(p->schema);
    const char *at;

    for (at = p->begin; at + n <= p->end; at++) {
        if (strncmp(at, p->schema, n) == 0) return true;
    }
    return false;
}

static void plpgsql_next(plpgsql *p)
{
    const char *at = plpgsql_skip(p->end), *end = at;

    p->begin = at;
    if (*at == '$') end = plpgsql_dollars(at);
    else if (*at == '\'' || *at == '"') end = plpgsql_quoted(at, false);
    else if ((*at == 'e' || *at == 'E') && at[1] == '\'') end = plpgsql_quoted(at + 1, true);
    else while (plpgsql_letter(*end) || (*end == '$' && end > at)) end++;
    if (end == NULL || (end == at && *at != '\0')) end = at + 1;
    p->end = end;
    p->touches = p->touches || plpgsql_named(p);
}

/* -- writing -- */

static void plpgsql_put(plpgsql *p, const char *text, size_t n)
{
    if (p->size + n + 1 > p->room) {
        p->room = 2 * (p->size + n + 1);
        p->out = realloc(p->out, p->room);
        if (p->out == NULL) abort();
    }
    memcpy(p->out + p->size, text, n);
    p->size += n;
    p->out[p->size] = '\0';
}

/* A point before the current token. It stays on the line that is there. */
static void plpgsql_point(plpgsql *p, const char *after)
{
    char text[300];
    int n = snprintf(text, sizeof text,
                     " ASSERT coalesce(current_setting('pairs.stop', true), '') = '' OR "
                     "%s.point('%s', %d);",
                     p->schema, p->name, ++p->points);

    plpgsql_put(p, p->copied, (size_t)(after - p->copied));
    plpgsql_put(p, text, (size_t)n);
    p->copied = after;
}

/* -- the grammar -- */

static void plpgsql_statements(plpgsql *p);

/* Reads up to this word outside parentheses and CASE, and past it; whether that touched. */
static bool plpgsql_upto(plpgsql *p, const char *word)
{
    int depth = 0;

    p->touches = plpgsql_named(p);
    for (; p->begin != p->end; plpgsql_next(p)) {
        if (depth == 0 && plpgsql_is(p, word)) break;
        if (plpgsql_is(p, "(") || plpgsql_is(p, "[") || plpgsql_is(p, "case")) depth++;
        else if (depth > 0 &&
                 (plpgsql_is(p, ")") || plpgsql_is(p, "]") || plpgsql_is(p, "end"))) depth--;
    }
    return p->touches;
}

/* The statements of a branch or a loop, after the word that opens it. */
static void plpgsql_inside(plpgsql *p, bool touched)
{
    if (touched) plpgsql_point(p, p->end);
    plpgsql_next(p);
    plpgsql_statements(p);
}

/* IF and CASE: conditions and branches up to END IF. */
static void plpgsql_branches(plpgsql *p, bool is_if)
{
    bool touched;

    plpgsql_next(p);
    touched = plpgsql_upto(p, is_if ? "then" : "when");
    for (;;) {
        if (!is_if && plpgsql_is(p, "when")) touched = plpgsql_upto(p, "then") || touched;
        plpgsql_inside(p, touched);
        if (plpgsql_is(p, "elsif") || plpgsql_is(p, "elseif")) {
            touched = plpgsql_upto(p, "then") || touched;
        } else if (!plpgsql_is(p, "when") && !plpgsql_is(p, "else")) {
            break;
        }
    }
    plpgsql_upto(p, ";");
    if (touched) plpgsql_point(p, p->end);
}

static void plpgsql_loop(plpgsql *p)
{
    bool touched = plpgsql_upto(p, "loop");

    plpgsql_inside(p, touched);
    plpgsql_upto(p, ";");
    if (touched) plpgsql_point(p, p->end);
}

static void plpgsql_began(plpgsql *p)
{
    const char *at;

    if (p->statements >= PLPGSQL_STATEMENTS) abort();
    p->lines[p->statements] = 1;
    for (at = p->body; at < p->begin; at++) p->lines[p->statements] += *at == '\n';
    p->statements++;
}

/* DECLARE ... BEGIN ... EXCEPTION WHEN ... THEN ... END, up to the semicolon. */
static void plpgsql_block(plpgsql *p)
{
    bool touched = false;
    const char *begin;

    if (plpgsql_is(p, "declare")) {
        plpgsql_next(p);
        while (p->begin != p->end && !plpgsql_is(p, "begin")) {
            begin = p->begin; /* a type's name alone is read from no table */
            touched = (plpgsql_upto(p, ";") && memchr(begin, '(', (size_t)(p->end - begin))) ||
                      touched;
            plpgsql_next(p);
        }
    }
    plpgsql_began(p);
    plpgsql_inside(p, touched);
    if (plpgsql_is(p, "exception")) plpgsql_next(p);
    while (plpgsql_is(p, "when")) {
        plpgsql_upto(p, "then");
        plpgsql_inside(p, false);
    }
    plpgsql_upto(p, ";");
}

static bool plpgsql_leaves(plpgsql *p)
{
    if (plpgsql_is(p, "raise") || plpgsql_is(p, "exit") || plpgsql_is(p, "continue")) return true;
    if (!plpgsql_is(p, "return")) return false;
    plpgsql_next(p);
    return !plpgsql_is(p, "query") && !plpgsql_is(p, "next");
}

static void plpgsql_statement(plpgsql *p)
{
    bool leaves;

    if (plpgsql_is(p, "declare") || plpgsql_is(p, "begin")) {
        plpgsql_block(p);
        return;
    }
    if (!plpgsql_is(p, "null")) plpgsql_began(p); /* plpgsql forgets NULL as it reads it */
    if (plpgsql_is(p, "if") || plpgsql_is(p, "case")) plpgsql_branches(p, plpgsql_is(p, "if"));
    else if (plpgsql_is(p, "loop") || plpgsql_is(p, "while") || plpgsql_is(p, "for") ||
             plpgsql_is(p, "foreach")) plpgsql_loop(p);
    else {
        leaves = plpgsql_leaves(p);
        if (plpgsql_upto(p, ";") && !leaves) plpgsql_point(p, p->end);
    }
}

static void plpgsql_statements(plpgsql *p)
{
    static const char *const ends[] = {"end", "else", "elsif", "elseif", "when", "exception"};
    size_t i;

    for (; p->begin != p->end; plpgsql_next(p)) {
        if (plpgsql_is(p, "<")) { /* <<label>> */
            while (!plpgsql_is(p, ">")) plpgsql_next(p);
            plpgsql_next(p);
            continue;
        }
        for (i = 0; i < sizeof ends / sizeof ends[0]; i++) {
            if (plpgsql_is(p, ends[i])) return;
        }
        plpgsql_statement(p);
    }
}

/* The body with its points, to be freed by the caller. p says how many there are. */
static inline char *plpgsql_with_points(plpgsql *p, const char *in, const char *name,
                                        const char *body)
{
    memset(p, 0, sizeof *p);
    p->schema = in;
    p->name = name;
    p->body = p->copied = p->end = body;
    plpgsql_next(p);
    while (plpgsql_is(p, "#")) { /* #option */
        p->end += strcspn(p->end, "\n");
        plpgsql_next(p);
    }
    plpgsql_statements(p);
    plpgsql_put(p, p->copied, strlen(p->copied));
    return p->out;
}

#endif
