/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * app.h -- what the verbs of jobq share: the connection, statements, options, output.
 *
 * Statements say jobq. for the schema; app_query puts the schema's name there. A function that
 * fails has written why to standard error. What a verb allocates, it frees only if it repeats
 * itself: the end of the program frees the rest.
 */
enum { APP_OPTIONS = 34, APP_VALUES = 40 };

/* --name VALUE of a verb. */
typedef struct app_option {
    const char *name;
    const char *takes; /* what its value is; NULL: it has none, and is "true" if given */
    const char *help;
    const char *type;  /* of SQL's argument of this name; NULL: it is not for SQL;
                          app_positive: a number from 1 on, which is not for SQL */
    const char *values; /* those that there are, with blanks between them; NULL: see app_names */
} app_option;

typedef struct app app;

typedef struct app_verb {
    const char *name;      /* one word, or two: "schedule set" */
    const char *arguments; /* for help; "-" for the last one means standard input if this has it */
    const char *help;
    int least, most;       /* arguments */
    int (*run)(app *a);    /* returns the exit code */
    const char *sql;       /* of verbs that are a statement, see app_fill */
    const char *done;      /* what a job is then, of verbs that change jobs */
    app_option options[APP_OPTIONS];
    const char *more;      /* for help VERB */
    bool offline;          /* needs no connection */
    bool makes;            /* the queue and the kind need not be there */
    const char *dry;       /* for --dry-run: a statement that counts what would be changed */
} app_verb;

struct app {
    const char *conninfo; /* -d, as psql's: a name, a conninfo or a URL; "": the environment */
    const char *schema;   /* --schema, "jobq" */
    bool json, wide;      /* --json, --wide */
    PGconn *conn;         /* open, unless the verb is offline */
    const app_verb *verb;
    int argc;             /* the arguments */
    char **argv;
    const char *values[APP_OPTIONS]; /* of the verb's options; NULL: not given */
};

static const char app_positive[] = "from 1";

enum {
    APP_OK = 0,
    APP_NO = 1, /* refused, or something is broken */
    APP_USAGE = 2,
    APP_SERVER = 3
};

/* A text that grows. */
typedef struct app_text {
    char *ptr;
    size_t len, room;
} app_text;

static void *app_need(void *memory)
{
    if (memory != NULL) return memory;
    fprintf(stderr, "jobq: out of memory\n");
    exit(APP_NO);
}

static void app_add(app_text *text, const char *add, size_t len)
{
    if (text->len + len >= text->room) {
        text->room = 2 * (text->len + len) + 64;
        text->ptr = app_need(realloc(text->ptr, text->room));
    }
    memcpy(text->ptr + text->len, add, len);
    text->len += len;
    text->ptr[text->len] = '\0';
}

static void app_put(app_text *text, const char *add) { app_add(text, add, strlen(add)); }

#ifdef __GNUC__
#define APP_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define APP_PRINTF(text, first)
#endif

APP_PRINTF(2, 3)
/* Appends as printf does. */
static void app_format(app_text *text, const char *format, ...)
{
    va_list args, again;
    size_t len;
    char *part;

    va_start(args, format);
    va_copy(again, args);
    len = (size_t)vsnprintf(NULL, 0, format, again);
    va_end(again);
    part = app_need(malloc(len + 1));
    vsnprintf(part, len + 1, format, args);
    va_end(args);
    app_add(text, part, len);
    free(part);
}

static int64_t app_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* All that a file has. The caller frees it. */
static char *app_file(FILE *file)
{
    app_text text = {0};
    char part[4096];
    size_t got;

    app_put(&text, "");
    while ((got = fread(part, 1, sizeof part, file)) > 0) app_add(&text, part, got);
    return text.ptr;
}

APP_PRINTF(2, 3)
/* Writes a line to standard error, and returns the code. */
static int app_say(int code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "jobq: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    return code;
}

APP_PRINTF(1, 2)
/* How far long work is, in the last line of a terminal. NULL: wipes it. errno stays. */
static void app_progress(const char *format, ...)
{
    int error = errno;
    va_list args;

    if (!isatty(STDERR_FILENO)) {
        errno = error;
        return;
    }
    fprintf(stderr, "\r\033[K");
    if (format != NULL) {
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
    }
    fflush(stderr);
    errno = error;
}

/* ---- statements ------------------------------------------------------------------------------ */

/* Makes transactions READ COMMITTED and READ WRITE, even if the role's defaults differ. Not behind
 * a pooler, where the backend has another pid: its next client may get the session. */
static bool app_sets(PGconn *conn)
{
    char sql[300];

    snprintf(sql, sizeof sql,
             "SELECT set_config('default_transaction_isolation', 'read committed', false), "
             "set_config('default_transaction_read_only', 'off', false) "
             "WHERE pg_backend_pid() = %d", PQbackendPID(conn));
    PQclear(PQexec(conn, sql));
    return PQstatus(conn) == CONNECTION_OK;
}

/* Opens the connection, or opens it again. timeout_s: NULL, none. A server that has gone silent is
 * given up after half a minute; what comes before dbname may be changed there. */
static bool app_connect(app *a, const char *name, const char *timeout_s)
{
    const char *names[] = {"keepalives_idle", "keepalives_interval", "keepalives_count",
                           "tcp_user_timeout", "dbname", "fallback_application_name",
                           "client_encoding", "connect_timeout", NULL};
    const char *values[] = {"10", "5", "4", "30000", a->conninfo, name, "UTF8", timeout_s, NULL};

    if (a->conn == NULL) a->conn = app_need(PQconnectdbParams(names, values, 1));
    else PQreset(a->conn);
    return PQstatus(a->conn) == CONNECTION_OK && app_sets(a->conn);
}

/* The statement with the schema's name. The caller frees it. */
static char *app_sql(const app *a, const char *sql)
{
    char *schema = app_need(PQescapeIdentifier(a->conn, a->schema, strlen(a->schema)));
    app_text text = {0};
    const char *dot;

    for (; (dot = strstr(sql, "jobq.")) != NULL; sql = dot + 4) {
        app_add(&text, sql, (size_t)(dot - sql));
        app_put(&text, schema);
    }
    app_put(&text, sql);
    PQfreemem(schema);
    return text.ptr;
}

/* The latest error was about a value that is no number, interval, instant or JSON. */
static bool app_misused;

/* The exit code after a statement failed. */
static int app_failed(const app *a)
{
    return PQstatus(a->conn) == CONNECTION_BAD ? APP_SERVER : app_misused ? APP_USAGE : APP_NO;
}

/* Whether the statement went well. If not, says what the server said. */
static bool app_check(const app *a, const PGresult *res)
{
    ExecStatusType status = PQresultStatus(res);
    const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    const char *hint = PQresultErrorField(res, PG_DIAG_MESSAGE_HINT);
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);

    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK || status == PGRES_COPY_OUT)
        return true;
    app_progress(NULL);
    app_misused = state != NULL && strstr("22P02 22007 22008 22003", state) != NULL;
    if (message == NULL) message = PQerrorMessage(a->conn);
    app_say(0, "%.*s", (int)strcspn(message, "\n"), message);
    if (hint != NULL && hint[0] != '\0') fprintf(stderr, "  %s\n", hint);
    if (state != NULL && (strcmp(state, "3F000") == 0 || strcmp(state, "42P01") == 0 ||
                          strcmp(state, "42883") == 0)) {
        fprintf(stderr, "  The schema %s may be missing, or of another version: run jobq migrate "
                "--check\n", a->schema);
    }
    if (state != NULL && strcmp(state, "22P02") == 0 && strstr(message, " json") != NULL)
        fprintf(stderr, "  A text in JSON has double quotes: '\"text\"'\n");
    return false;
}

/* Sends a statement, and waits for its result. texts: the values, up to 16, have this type, also
 * those that the statement does not use; otherwise the server finds their types. */
static PGresult *app_exec(const app *a, const char *sql, int count, bool texts,
                          const char *const *values)
{
    static const Oid types[] = {25, 25, 25, 25, 25, 25, 25, 25,
                                25, 25, 25, 25, 25, 25, 25, 25};
    char *text = app_sql(a, sql);
    PGresult *res = PQexecParams(a->conn, text, count, texts ? types : NULL, values, NULL, NULL, 0);

    free(text);
    return res;
}

/* Runs a statement. NULL: it failed, and app_failed gives the exit code. */
static PGresult *app_try(app *a, const char *sql, int count, const char *const *values)
{
    PGresult *res = app_exec(a, sql, count, false, values);

    if (app_check(a, res)) return res;
    PQclear(res);
    return NULL;
}

/* Ends the program. */
static void app_exit(const app *a, int code)
{
    PQfinish(a->conn);
    exit(code);
}

/* Runs a statement without which the verb cannot go on: a failure ends the program. */
static PGresult *app_query(app *a, const char *sql, int count, const char *const *values)
{
    PGresult *res = app_try(a, sql, count, values);

    if (res == NULL) app_exit(a, app_failed(a));
    return res;
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Whether a character in UTF-8 turns the direction of writing: U+200E, U+200F, U+202A to U+202E,
 * U+2066 to U+2069. */
static bool app_turns(const char *value)
{
    const unsigned char *u = (const unsigned char *)value;

    return u[0] == 0xE2 && ((u[1] == 0x80 && (u[2] == 0x8E || u[2] == 0x8F ||
                                              (u[2] >= 0xAA && u[2] <= 0xAE))) ||
                            (u[1] == 0x81 && u[2] >= 0xA6 && u[2] <= 0xA9));
}

/* Appends a value so that it stays in its line and cannot steer the terminal. Returns its width in
 * columns. */
static int app_clean(app_text *out, const char *value, int encoding)
{
    int columns = 0;

    while (*value != '\0') {
        size_t len = strnlen(value, (size_t)PQmblen(value, encoding));
        int width = PQdsplen(value, encoding);

        /* Also C1: U+0080 to U+009F, which some terminals obey. */
        if (app_turns(value)) {
            app_format(out, "\\u%04x", 0x2000u | (value[1] & 0x3Fu) << 6 | (value[2] & 0x3Fu));
            width = 6;
        } else if (width < 0 ||
                   ((unsigned char)value[0] == 0xC2 && (unsigned char)value[1] < 0xA0)) {
            width = *value == '\n' || *value == '\t' ? 2 : 4;
            app_format(out, *value == '\n' ? "\\n" : *value == '\t' ? "\\t" : "\\x%02x",
                       (unsigned)(unsigned char)value[len - 1]);
        } else {
            app_add(out, value, len);
        }
        columns += width;
        value += len;
    }
    return columns;
}

static bool app_brief; /* instants have neither year nor seconds */

/* Makes the text of a cell; row -1: of the name of its column. An instant without what is below a
 * second. Returns its width in columns. */
static int app_cell(const app *a, app_text *cell, const PGresult *res, int row, int column)
{
    const char *value = row < 0 ? PQfname(res, column) : PQgetvalue(res, row, column);
    const char *dot = row >= 0 && PQftype(res, column) == 1184 ? strchr(value, '.') : NULL;
    app_text whole = {0};
    int width;

    cell->len = 0;
    app_put(cell, "");
    if (app_brief && row >= 0 && PQftype(res, column) == 1184 && strlen(value) > 19) {
        app_add(&whole, value + 5, 11);
        value = whole.ptr;
    } else if (dot != NULL) {
        app_add(&whole, value, (size_t)(dot - value));
        app_put(&whole, dot + 1 + strspn(dot + 1, "0123456789"));
        value = whole.ptr;
    }
    width = app_clean(cell, value, PQclientEncoding(a->conn));
    free(whole.ptr);
    return width;
}

/* A number of seconds, in one or two units. */
static const char *app_span(char *text, size_t size, double s)
{
    if (s < 0.0005) snprintf(text, size, "0 s");
    else if (s < 1) snprintf(text, size, "%.0f ms", s * 1000);
    else if (s < 10) snprintf(text, size, "%.1f s", s);
    else if (s < 120) snprintf(text, size, "%.0f s", s);
    else if (s < 7200) snprintf(text, size, "%.0f min", s / 60);
    else if (s < 172800) snprintf(text, size, "%.0f h", s / 3600);
    else snprintf(text, size, "%.0f days", s / 86400);
    return text;
}

/* In SQL: an instant in UTC, of 20 bytes, a blank, and the seconds since then. */
#define WHEN(at) \
    "CASE WHEN isfinite(" at ") THEN to_char(" at " AT TIME ZONE 'UTC', " \
    "'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\" ') || extract(epoch FROM clock_timestamp() - " at ") " \
    "WHEN " at " IS NOT NULL THEN 'never' END"

static bool app_number(Oid type)
{
    return type == 20 || type == 21 || type == 23 || type == 700 || type == 701 || type == 1700;
}

/* Cuts a cell to this many columns, with ~ at its end. Returns its width. */
static int app_cut(app_text *cell, int width, int most, int encoding)
{
    size_t at = 0;
    int used = 0;

    if (width <= most) return width;
    while (used + PQdsplen(cell->ptr + at, encoding) < most) {
        used += PQdsplen(cell->ptr + at, encoding);
        at += (size_t)PQmblen(cell->ptr + at, encoding);
    }
    cell->len = at;
    app_put(cell, "~");
    return used + 1;
}

/* Writes a row of a table; row -1: the names of the columns. */
static void app_line(const app *a, app_text *cell, const PGresult *res, int row, const int *widths)
{
    int columns = PQnfields(res), i;

    for (i = 0; i < columns; i++) {
        bool right = row >= 0 && app_number(PQftype(res, i)), last = i + 1 == columns;
        int width = app_cell(a, cell, res, row, i), room;

        if (widths[i] == 0) continue;
        room = widths[i] - app_cut(cell, width, widths[i], PQclientEncoding(a->conn));
        printf("%s%*s%s%*s", i == 0 ? "" : " | ", right ? room : 0, "", cell->ptr,
               right || last ? 0 : room, "");
    }
    putchar('\n');
}

/* How wide a table is. widest: its widest column of text, if that can be narrower, else -1. */
static int app_width(const PGresult *res, const int *widths, int *widest)
{
    int columns = PQnfields(res), i, whole = -3;

    for (i = 0, *widest = -1; i < columns; i++) {
        whole += widths[i] + (widths[i] > 0 ? 3 : 0);
        if (widths[i] > 4 && !app_number(PQftype(res, i)) && PQftype(res, i) != 1184 &&
            (*widest < 0 || widths[i] > widths[*widest])) *widest = i;
    }
    return whole;
}

/* Makes a table narrower until it fits the terminal, if it can: without columns that are empty
 * (width 0), with brief instants, and with texts cut, the widest first. What is no terminal, and
 * --wide, get all. */
static void app_fit(const app *a, const PGresult *res, int *widths)
{
    int columns = PQnfields(res), rows = PQntuples(res), room = app_columns(), i, row, widest;

    if (a->wide || room == 0 || app_width(res, widths, &widest) <= room) return;
    for (i = 1; i < columns; i++) {
        for (row = 0; row < rows && PQgetvalue(res, row, i)[0] == '\0'; row++) {}
        if (row == rows) widths[i] = 0;
        else if (PQftype(res, i) == 1184)
            widths[i] = strlen(PQfname(res, i)) > 11 ? (int)strlen(PQfname(res, i)) : 11;
    }
    app_brief = true;
    while (app_width(res, widths, &widest) > room && widest >= 0) widths[widest]--;
}

/* Writes rows as psql does. most: the query's limit, by which some may be missing; 0: none. */
static void app_table(const app *a, const PGresult *res, long most)
{
    int columns = PQnfields(res), rows = PQntuples(res), i, row, dashes;
    int *widths = app_need(calloc((size_t)columns + 1, sizeof *widths));
    app_text cell = {0};

    for (row = -1; row < rows; row++) {
        for (i = 0; i < columns; i++) {
            int width = app_cell(a, &cell, res, row, i);

            if (width > widths[i]) widths[i] = width;
        }
    }
    app_fit(a, res, widths);
    for (row = -1; row < rows; row++) {
        app_line(a, &cell, res, row, widths);
        for (i = 0; row < 0 && i < columns; i++) {
            if (i > 0 && widths[i] > 0) fputs("-+-", stdout);
            for (dashes = widths[i]; dashes > 0; dashes--) putchar('-');
        }
        if (row < 0) putchar('\n');
    }
    app_brief = false;
    printf("(%d row%s%s)\n", rows, rows == 1 ? "" : "s",
           most > 0 && rows >= most ? "; there may be more: --limit" : "");
}

static long app_limit(const app *a);

/* Runs a query and writes its rows, as a table or as JSON lines. Returns the exit code. */
static int app_rows(app *a, const char *sql, int count, const char *const *values)
{
    app_text text = {0};
    PGresult *res;
    int row;

    app_format(&text, a->json ? "SELECT row_to_json(jobq_row) FROM (%s) AS jobq_row" : "%s", sql);
    res = app_query(a, text.ptr, count, values);
    if (!a->json) app_table(a, res, app_limit(a));
    for (row = 0; a->json && row < PQntuples(res); row++) puts(PQgetvalue(res, row, 0));
    return APP_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* How many letters are wrong, missing or too many between two words, of up to 63. */
static int app_distance(const char *a, const char *b)
{
    int before[64], now[64], rows = (int)strnlen(a, 63), columns = (int)strnlen(b, 63), i, j;

    for (j = 0; j <= columns; j++) before[j] = j;
    for (i = 1; i <= rows; i++) {
        now[0] = i;
        for (j = 1; j <= columns; j++) {
            int best = before[j - 1] + (a[i - 1] != b[j - 1]);

            if (before[j] + 1 < best) best = before[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            now[j] = best;
        }
        memcpy(before, now, sizeof before);
    }
    return before[columns];
}

/* The name, of those with a blank after each, that a word was meant to be; NULL: none is near. The
 * caller frees it. */
static char *app_nearest(const char *word, const char *names)
{
    app_text found = {0}, name = {0};
    int best = (int)strlen(word) < 4 ? 2 : 3;

    for (; *names != '\0'; names += strcspn(names, " "), names += *names == ' ') {
        name.len = 0;
        app_add(&name, names, strcspn(names, " "));
        if (app_distance(word, name.ptr) >= best) continue;
        best = app_distance(word, name.ptr);
        found.len = 0;
        app_put(&found, name.ptr);
    }
    free(name.ptr);
    return found.ptr;
}

/* Says that there is no such thing, which there is, and what was meant. Returns the code. */
static int app_unknown(int code, const char *what, const char *word, const char *names)
{
    char *nearest = app_nearest(word, names);
    app_text list = {0};
    int count = 0;

    app_put(&list, names[0] == '\0' ? "there is none yet" : "");
    for (; *names != '\0' && count++ < 20; names += strcspn(names, " "), names += *names == ' ') {
        if (count > 1) app_put(&list, ", ");
        app_add(&list, names, strcspn(names, " "));
    }
    if (nearest == NULL)
        return app_say(code, "there is no %s '%s': %s%s", what, word, list.ptr,
                       *names != '\0' ? " ..." : "");
    return app_say(code, "there is no %s '%s': did you mean '%s'? There are: %s%s", what, word,
                   nearest, list.ptr, *names != '\0' ? " ..." : "");
}

/* The names of queues, of kinds (of a queue), of schedules or of subscriptions, with blanks between
 * them. NULL: this role may not ask, or there is no such list. */
static char *app_names(const app *a, const char *what, const char *queue)
{
    static const char *const asks[][2] = {
        {"QUEUE", "SELECT string_agg(name, ' ' ORDER BY name) FROM jobq.queue"},
        {"QUEUE", "SELECT string_agg(queue, ' ' ORDER BY queue) FROM jobq.queues"},
        {"KIND", "SELECT string_agg(DISTINCT name, ' ' ORDER BY name) FROM jobq.kind"
                 " WHERE $1 IS NULL OR queue = $1"},
        {"SCHEDULE", "SELECT string_agg(name, ' ' ORDER BY name) FROM jobq.schedules"},
        {"SUBSCRIPTION", "SELECT string_agg(name, ' ' ORDER BY name) FROM jobq.subscriptions"}};
    char *names = NULL;
    size_t i;

    for (i = 0; i < sizeof asks / sizeof asks[0] && names == NULL; i++) {
        PGresult *res = strcmp(asks[i][0], what) != 0
                        ? NULL : app_exec(a, asks[i][1], 1, true, &queue);

        if (res != NULL && PQresultStatus(res) == PGRES_TUPLES_OK) {
            app_text text = {0};

            app_put(&text, PQgetvalue(res, 0, 0));
            names = text.ptr;
        }
        PQclear(res);
    }
    return names;
}

/* Whether a word is one of the names with blanks between them. */
static bool app_among(const char *word, const char *names)
{
    size_t len = strlen(word);

    for (; *names != '\0'; names += strcspn(names, " "), names += *names == ' ')
        if (strcspn(names, " ") == len && strncmp(names, word, len) == 0) return true;
    return false;
}

/* Whether a value of this sort is there; if not, says what is. */
static bool app_known(const app *a, const char *what, const char *called, const char *value,
                      const char *values, const char *queue)
{
    char *names = values == NULL ? app_names(a, what, queue) : NULL;
    bool known = values != NULL ? app_among(value, values)
                                : names == NULL || app_among(value, names);

    if (!known) app_unknown(0, called, value, values != NULL ? values : names);
    free(names);
    return known;
}

/* Whether the queues, kinds, schedules and words that the verb was given are there. */
static bool app_all_known(const app *a)
{
    bool schedule = strcmp(a->verb->arguments, "SCHEDULE") == 0;
    bool reader = strcmp(a->verb->arguments, "SUBSCRIPTION") == 0;
    const char *queue = strstr(a->verb->arguments, "QUEUE") == a->verb->arguments ||
                        a->verb->arguments[0] == '[' ? a->argc > 0 ? a->argv[0] : NULL : NULL;
    int i;

    if (queue != NULL && !a->verb->makes && strstr(a->verb->arguments, "QUEUE") != NULL &&
        !app_known(a, "QUEUE", "queue", queue, NULL, NULL)) return false;
    if (schedule && !app_known(a, "SCHEDULE", "schedule", a->argv[0], NULL, NULL)) return false;
    if (reader && !app_known(a, "SUBSCRIPTION", "subscription", a->argv[0], NULL, NULL))
        return false;
    for (i = 0; i < APP_OPTIONS && a->verb->options[i].name != NULL; i++) {
        const app_option *o = &a->verb->options[i];

        if (a->values[i] == NULL || o->takes == NULL) continue;
        if (strcmp(o->name, "queue") == 0) queue = a->values[i];
        if (o->values == NULL && (a->verb->makes || (strcmp(o->takes, "QUEUE") != 0 &&
                                                     strcmp(o->takes, "KIND") != 0))) continue;
        if (!app_known(a, o->takes, o->name, a->values[i], o->values, queue)) return false;
    }
    return true;
}

/* ---- options --------------------------------------------------------------------------------- */

/* The place of an option, by --name or --name=value. -1: there is none. */
static int app_find(const app_verb *verb, const char *arg)
{
    size_t len = strcspn(arg + 2, "=");
    app_text names = {0}, word = {0};
    int i;

    for (i = 0; i < APP_OPTIONS && verb->options[i].name != NULL; i++) {
        const char *name = verb->options[i].name;

        if (strlen(name) == len && strncmp(name, arg + 2, len) == 0) return i;
    }
    names.len = 0;
    app_put(&names, "");
    for (i = 0; i < APP_OPTIONS && verb->options[i].name != NULL; i++)
        app_format(&names, "--%s ", verb->options[i].name);
    app_format(&word, "%.*s", (int)len + 2, arg);
    return app_unknown(-1, "option", word.ptr, names.ptr);
}

/* A number of an option, from least on. -1: it is none, and that has been said. */
static long app_count(const char *name, const char *text, long least, long fallback)
{
    char *end;
    long count;

    if (text == NULL) return fallback;
    count = strtol(text, &end, 10);
    if (*end == '\0' && end != text && count >= least && count <= 1000000000) return count;
    return app_say(-1, "--%s takes a number from %ld to 1000000000, not '%s'", name, least, text);
}

/* Takes the options out of the arguments, wherever they are, until "--". False: wrong usage, which
 * has been said. */
static bool app_options(app *a)
{
    int from, to = 0;

    for (from = 0; from < a->argc; from++) {
        const char *arg = a->argv[from], *equal = strchr(arg, '='), *value = "true";
        const app_option *o;
        int i;

        if (strcmp(arg, "--") == 0) break;
        if (strncmp(arg, "--", 2) != 0) {
            a->argv[to++] = a->argv[from];
            continue;
        }
        i = app_find(a->verb, arg);
        if (i < 0) return false;
        o = &a->verb->options[i];
        if (o->takes == NULL && equal != NULL) return app_say(0, "%s: it takes no value", arg);
        if (o->takes != NULL && equal == NULL && from + 1 == a->argc)
            return app_say(0, "%s needs a value", arg);
        if (o->takes != NULL) value = equal != NULL ? equal + 1 : a->argv[++from];
        if (o->type == app_positive && app_count(o->name, value, 1, 1) < 0) return false;
        if (a->values[i] != NULL) return app_say(0, "--%s is given twice", o->name);
        a->values[i] = value;
    }
    for (from++; from < a->argc; from++) a->argv[to++] = a->argv[from];
    a->argc = to;
    if (to >= a->verb->least && to <= a->verb->most) return true;
    return app_say(0, to < a->verb->least ? "an argument is missing: jobq help %s"
                                          : "too many arguments: jobq help %s", a->verb->name);
}

/* The value of an option of the verb. NULL: it was not given. */
static const char *app_value(const app *a, const char *name)
{
    int i = 0;

    while (strcmp(a->verb->options[i].name, name) != 0) i++;
    return a->values[i];
}

/* A number of an option that is app_positive. */
static long app_number_of(const app *a, const char *name, long fallback)
{
    return app_count(name, app_value(a, name), 1, fallback);
}

/* How many rows the verb writes at most; 0: all. */
static long app_limit(const app *a)
{
    int i;

    for (i = 0; i < APP_OPTIONS && a->verb->options[i].name != NULL; i++)
        if (strcmp(a->verb->options[i].name, "limit") == 0)
            return app_count("limit", a->values[i], 1, 20);
    return 0;
}

/* ---- a statement of arguments and options ---------------------------------------------------- */

typedef struct app_call {
    app_text sql;
    int count;
    const char *values[APP_VALUES];
} app_call;

static void app_parameter(app_call *call, const char *value)
{
    call->values[call->count++] = value;
    app_format(&call->sql, "$%d", call->count);
}

/* The options from the first on that were given, as arguments of SQL: name => $1::type. */
static void app_given(const app *a, app_call *call, int first)
{
    const app_option *o;
    const char *c;
    int i;

    for (i = first; i < APP_OPTIONS && (o = &a->verb->options[i])->name != NULL; i++) {
        if (a->values[i] == NULL || o->type == NULL || o->type == app_positive) continue;
        if (call->sql.ptr[call->sql.len - 1] != '(') app_put(&call->sql, ", ");
        for (c = o->name; *c != '\0'; c++) app_add(&call->sql, *c == '-' ? "_" : c, 1);
        app_put(&call->sql, " => ");
        app_parameter(call, a->values[i]);
        app_format(&call->sql, "::%s", o->type);
    }
}

/* Appends SQL, in which $1, $2 ... are the verb's arguments, :name is the value of an option, and
 * ... are the options that were given, as arguments of a function. */
static void app_fill(const app *a, app_call *call, const char *sql)
{
    char name[32];

    while (call->count < a->verb->most && a->verb->most < INT_MAX) {
        call->values[call->count] = call->count < a->argc ? a->argv[call->count] : NULL;
        call->count++;
    }
    for (; *sql != '\0'; sql++) {
        size_t len = *sql == ':' ? strspn(sql + 1, "abcdefghijklmnopqrstuvwxyz-") : 0;

        if (strncmp(sql, "::", 2) == 0) {
            app_put(&call->sql, "::");
            sql++;
        } else if (len > 0) {
            snprintf(name, sizeof name, "%.*s", (int)len, sql + 1);
            app_parameter(call, app_value(a, name));
            sql += len;
        } else if (strncmp(sql, "...", 3) == 0) {
            app_given(a, call, 0);
            sql += 2;
        } else {
            app_add(&call->sql, sql, 1);
        }
    }
}

/* A verb that is a statement. */
static int app_run(app *a)
{
    char **last = a->argv + a->argc - 1;
    app_call call = {0};

    if (a->argc > 0 && strstr(a->verb->arguments, "| -") && strcmp(*last, "-") == 0)
        *last = app_file(stdin);
    app_fill(a, &call, a->verb->sql);
    return app_rows(a, call.sql.ptr, call.count, call.values);
}

/* What the verb would change. Nothing is locked, so work goes on meanwhile. */
static int app_dry(app *a)
{
    app_call call = {0};
    app_text ids = {0};
    const char *count;
    int i;

    if (strstr(a->verb->arguments, "ID...") != NULL && a->argc > 0) {
        for (i = 0; i < a->argc; i++) app_format(&ids, "%c%s", i == 0 ? '{' : ',', a->argv[i]);
        app_put(&ids, "}");
        return app_rows(a, "SELECT id, jobq.standing(id) AS state FROM unnest($1::bigint[])"
                        " AS u (id)", 1, (const char *const *)&ids.ptr);
    }
    if (strstr(a->verb->arguments, "ID...") != NULL && app_value(a, "queue") == NULL)
        return app_say(APP_USAGE, "%s takes either ids, or --queue and filters", a->verb->name);
    app_fill(a, &call, a->verb->dry);
    count = PQgetvalue(app_query(a, call.sql.ptr, call.count, call.values), 0, 0);
    printf(a->json ? "{\"would_be_%s\": %s}\n" : "would be %s: %s\n", a->verb->done, count);
    return APP_OK;
}
