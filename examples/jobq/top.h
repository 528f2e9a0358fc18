/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * top.h -- jobq top: queues, workers and jobs in a terminal, as they change.
 *
 * It sends one statement a second, and fewer if the server takes long to answer. It never waits for
 * the server, so that keys work while there is no answer. What the role may not do, the server
 * refuses.
 */
#define NCURSES_NOMACROS
#include <langinfo.h>
#include <locale.h>
#include <ncurses.h>
#include <strings.h>
#include <wchar.h>

enum { TOP_ROWS = 1000, TOP_SECTIONS = 11 };

/* The parameters of the look, see look_sql. */
static const Oid top_types[] = {25, 25};
static const char *const top_values[] = {"", ""};

/* What keys do to the selected row, if it is one of these. */
static const struct top_does {
    int key;
    const char *does;
} top_keys_do[] = {
    {'p', "pauses or resumes one of the Queues or Schedules"},
    {'r', "revives one of the Failures or Flows"},
    {'c', "cancels one of the Running or Flows"},
};

typedef struct top_state {
    app *a;
    int encoding;
    bool utf8, color;            /* of the terminal */
    char *sql;                   /* of the look */
    PGresult *look;              /* the latest answer */
    enum { TOP_IDLE, TOP_LOOKING, TOP_SETTING, TOP_DOING, TOP_LOST, TOP_CONNECTING } at_work;
    PostgresPollingStatusType polling;
    int64_t since_ms, next_ms;   /* when at_work began; when to look, or to connect, again */
    char trouble[300];           /* the latest look failed, or there is no connection */
    char said[300];              /* until the next key */
    bool refused;                /* said is an error */
    enum { TOP_WATCH, TOP_SEARCH, TOP_SURE, TOP_HELP } mode;
    char search[64];
    const look_verb *verb;       /* to do, or to ask about */
    bool wanted;                 /* to send */
    char object[1100];
    int tables[LOOK_TABLES];     /* of the sections */
    int section, page;           /* the selected one; how many rows of it are shown */
    bool zoom;                   /* only that one is shown */
    bool by_name;                /* queues are in the order of their names, not of their trouble */
    int rows[TOP_SECTIONS][TOP_ROWS], count[TOP_SECTIONS]; /* rows of look that match */
    int at[TOP_SECTIONS], first[TOP_SECTIONS]; /* the selected row; the first one shown */
    char chosen[TOP_SECTIONS][1100]; /* the name of the selected row, which may move */
    app_text cell;
} top_state;

static volatile sig_atomic_t top_ended;

static void top_signal(int number)
{
    (void)number;
    top_ended = 1;
}

static int64_t top_now_ms(void) { return app_now_us() / 1000; }

/* Tells something in the last line. */
static void top_say(top_state *t, bool refused, const char *about, const char *text)
{
    t->refused = refused;
    snprintf(t->said, sizeof t->said, "%s%s%s", about, about[0] == '\0' ? "" : ": ", text);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool top_contains(const char *text, const char *part)
{
    size_t len = strlen(part);

    for (; *text != '\0' && strncasecmp(text, part, len) != 0; text++) {}
    return *text != '\0';
}

static const look_table *top_table(const top_state *t, int s) { return &look_tables[t->tables[s]]; }

/* Whether a section has a column. */
static bool top_has(const look_column *c) { return c->only != 'w' && c->only != '-'; }

static bool top_matches(const top_state *t, int s, int row)
{
    const look_column *columns = top_table(t, s)->columns;
    int i;

    for (i = 0; i < LOOK_COLUMNS && columns[i].head != NULL; i++) {
        if (top_has(&columns[i]) && strchr("tlqkejf", columns[i].type) != NULL &&
            top_contains(PQgetvalue(t->look, row, i + 1), t->search)) return true;
    }
    return t->search[0] == '\0';
}

/* The name of a section's row. */
static const char *top_name(const top_state *t, int s, int i)
{
    return PQgetvalue(t->look, t->rows[s][i], 1);
}

static void top_choose(top_state *t, int s, int i)
{
    t->at[s] = i;
    snprintf(t->chosen[s], sizeof t->chosen[s], "%s", top_name(t, s, i));
}

static double top_value(const PGresult *look, int row, const char *head)
{
    const char *value = PQgetvalue(look, row, look_at(LOOK_QUEUES, head));

    return atof(value + (value[0] == '~'));
}

/* How bad it is with a queue: its jobs wait and nobody may take them; then those whose oldest job
 * waits longest, and whose jobs fail. */
static double top_trouble(const PGresult *look, int row)
{
    bool waits = top_value(look, row, "Ready") > 0;
    bool alone = top_value(look, row, "Workers") <= 0;
    bool paused = PQgetvalue(look, row, look_at(LOOK_QUEUES, "State"))[0] != '\0';

    return (waits && (alone || paused) ? 1e12 : 0) +
           (top_value(look, row, "Parked") > 0 ? 1e11 : 0) +
           1e3 * top_value(look, row, "Late") + top_value(look, row, "In 1 h");
}

/* Puts the queues with the most trouble first. They came by name, and stay so where it is equal. */
static void top_sort(const PGresult *look, int *rows, int count)
{
    int i, j;

    for (i = 1; i < count; i++) {
        int row = rows[i];
        double trouble = top_trouble(look, row);

        for (j = i; j > 0 && top_trouble(look, rows[j - 1]) < trouble; j--) rows[j] = rows[j - 1];
        rows[j] = row;
    }
}

/* Lists each section's rows, and finds the selected ones again. */
static void top_list(top_state *t)
{
    int row, s, i;

    for (s = 0; s < TOP_SECTIONS; s++) {
        int *rows = t->rows[s], count = 0;

        for (row = 0; row < PQntuples(t->look) && count < TOP_ROWS; row++) {
            if (look_is(t->look, row, t->tables[s]) && top_matches(t, s, row))
                rows[count++] = row;
        }
        t->count[s] = count;
        if (t->tables[s] == LOOK_QUEUES && !t->by_name) top_sort(t->look, rows, count);
        if (t->at[s] >= count || strcmp(top_name(t, s, t->at[s]), t->chosen[s]) != 0) {
            for (i = 0; i < count && strcmp(top_name(t, s, i), t->chosen[s]) != 0; i++) {}
            if (i < count) t->at[s] = i;
        }
        if (count > 0) top_choose(t, s, t->at[s] < count ? t->at[s] : count - 1);
    }
}

static void top_move(top_state *t, int by)
{
    int s = t->section, to = t->at[s] + by;

    if (to >= t->count[s]) to = t->count[s] - 1;
    if (t->count[s] > 0) top_choose(t, s, to < 0 ? 0 : to);
}

/* The next section that has rows. */
static void top_turn(top_state *t, int by)
{
    int i;

    for (i = 0; i < TOP_SECTIONS; i++) {
        t->section = (t->section + by + TOP_SECTIONS) % TOP_SECTIONS;
        if (t->count[t->section] > 0) return;
    }
}

#include "screen.h"

/* ---- keys ------------------------------------------------------------------------------------ */

/* The verb that a key means in the selected row. NULL: there is none. */
static const look_verb *top_verb(const top_state *t, int key)
{
    const look_column *columns = top_table(t, t->section)->columns;
    const look_verb *verb = NULL;
    const char *names = "";
    int i;

    for (i = 0; t->count[t->section] > 0 && i < LOOK_COLUMNS; i++) {
        if (columns[i].type == 'v')
            names = PQgetvalue(t->look, t->rows[t->section][t->at[t->section]], i + 1);
    }
    while ((verb = look_next_verb(&names)) != NULL && verb->key != key) {}
    return verb;
}

/* Does what a key does to the selected row. Some verbs ask first. */
static void top_act(top_state *t, const struct top_does *key)
{
    const look_verb *verb = top_verb(t, key->key);
    char text[100], name[2] = {(char)key->key, '\0'};

    if (verb == NULL) {
        snprintf(text, sizeof text, "%s: select one (Tab, j, k)", key->does);
        top_say(t, false, name, text);
    } else if (t->wanted || t->at_work == TOP_DOING) {
        top_say(t, true, "", "the server has not answered yet");
    } else {
        t->verb = verb;
        snprintf(t->object, sizeof t->object, "%s", top_name(t, t->section, t->at[t->section]));
        if (verb->ask != NULL) t->mode = TOP_SURE;
        else t->wanted = true;
    }
}

static void top_type(top_state *t, int key)
{
    size_t len = strlen(t->search);

    if (key == 27) t->search[0] = '\0';
    if (key == 27 || key == '\n' || key == '\r' || key == KEY_ENTER) t->mode = TOP_WATCH;
    if (key == KEY_BACKSPACE || key == 127 || key == 8) {
        while (len > 0 && ((unsigned char)t->search[--len] & 0xC0) == 0x80) {}
        t->search[len] = '\0';
    } else if (key >= ' ' && key < 256 && len + 1 < sizeof t->search) {
        t->search[len] = (char)key;
        t->search[len + 1] = '\0';
    }
}

/* False: the user quits. */
static bool top_key(top_state *t, int key)
{
    size_t i;

    if (key == KEY_RESIZE) return true;
    if (t->mode == TOP_SEARCH) {
        top_type(t, key);
        return true;
    }
    t->said[0] = '\0';
    if (t->mode == TOP_SURE) {
        t->wanted = key == 'y';
        if (!t->wanted) top_say(t, false, "", "not cancelled");
    }
    if (t->mode != TOP_WATCH) {
        t->mode = TOP_WATCH;
        return true;
    }
    if (key == 'q') return false;
    if (key == 'j' || key == KEY_DOWN) top_move(t, 1);
    if (key == 'k' || key == KEY_UP) top_move(t, -1);
    if (key == KEY_NPAGE) top_move(t, t->page);
    if (key == KEY_PPAGE) top_move(t, -t->page);
    if (key == KEY_HOME || key == 'g') top_move(t, -TOP_ROWS);
    if (key == KEY_END || key == 'G') top_move(t, TOP_ROWS);
    if (key == '\n' || key == '\r' || key == KEY_ENTER) t->zoom = !t->zoom;
    if (key == 's') t->by_name = !t->by_name;
    if (key == '\t') top_turn(t, 1);
    if (key == KEY_BTAB) top_turn(t, -1);
    if (key == '/') t->mode = TOP_SEARCH;
    if (key == '?') t->mode = TOP_HELP;
    if (key == 27) t->search[0] = '\0', t->zoom = false;
    for (i = 0; i < sizeof top_keys_do / sizeof top_keys_do[0]; i++) {
        if (top_keys_do[i].key == key) top_act(t, &top_keys_do[i]);
    }
    return true;
}

/* ---- the server ------------------------------------------------------------------------------ */

static void top_lost(top_state *t, const char *why)
{
    snprintf(t->trouble, sizeof t->trouble, "connection lost, trying again: %.*s",
             (int)strcspn(why, "\n"), why);
    if (t->at_work == TOP_DOING || t->wanted)
        top_say(t, true, t->object, "the connection was lost, so it is perhaps not done");
    t->wanted = false;
    t->at_work = TOP_LOST;
    t->next_ms = top_now_ms() + 1000;
}

/* Sends a statement; top_take gets its answer. value: for a verb. */
static void top_send(top_state *t, int begun, const char *sql, const char *value)
{
    PGconn *conn = t->a->conn;
    int sent = begun == TOP_SETTING ? PQsendQuery(conn, sql)
             : value != NULL ? PQsendQueryParams(conn, sql, 1, NULL, &value, NULL, NULL, 0)
             : PQsendQueryParams(conn, sql, 2, top_types, top_values, NULL, NULL, 0);

    t->at_work = begun;
    t->since_ms = top_now_ms();
    if (!sent) top_lost(t, PQerrorMessage(conn));
}

/* Takes an answer of the server. */
static void top_take(top_state *t, PGresult *res)
{
    ExecStatusType status = PQresultStatus(res);
    const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);

    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK) {
        if (message == NULL) message = PQresultErrorMessage(res);
        if (t->at_work == TOP_DOING) top_say(t, true, t->object, message);
        else snprintf(t->trouble, sizeof t->trouble, "%s", message);
    } else if (t->at_work == TOP_DOING) {
        top_say(t, false, t->object, t->verb->done != NULL ? t->verb->done
                                                           : PQgetvalue(res, 0, 0));
    } else if (t->at_work == TOP_LOOKING) {
        PQclear(t->look);
        t->look = res;
        t->trouble[0] = '\0';
        return;
    }
    PQclear(res);
}

/* Something came from the server. */
static void top_read(top_state *t)
{
    PGconn *conn = t->a->conn;
    PGresult *res;

    if (t->at_work == TOP_CONNECTING) {
        t->polling = PQresetPoll(conn);
        if (t->polling == PGRES_POLLING_FAILED) top_lost(t, PQerrorMessage(conn));
        if (t->polling != PGRES_POLLING_OK) return;
        top_say(t, false, "", "connected again");
        top_send(t, TOP_SETTING, LOOK_SETTINGS, NULL);
        return;
    }
    if (!PQconsumeInput(conn) && PQstatus(conn) != CONNECTION_BAD) return;
    while (t->at_work < TOP_LOST && !PQisBusy(conn)) {
        res = PQgetResult(conn);
        if (res == NULL) break;
        top_take(t, res);
    }
    if (PQstatus(conn) == CONNECTION_BAD) {
        top_lost(t, PQerrorMessage(conn));
    } else if (!PQisBusy(conn)) {
        int64_t ten_ms = 10 * (top_now_ms() - t->since_ms); /* take a tenth of the time at most */

        if (t->at_work == TOP_LOOKING)
            t->next_ms = t->since_ms + (ten_ms < 1000 ? 1000 : ten_ms > 10000 ? 10000 : ten_ms);
        t->at_work = TOP_IDLE;
    }
}

/* Does what is due. */
static void top_tick(top_state *t)
{
    PGconn *conn = t->a->conn;
    int64_t now_ms = top_now_ms();

    if (t->at_work == TOP_IDLE && t->wanted) {
        char *sql = app_sql(t->a, t->verb->sql), object[sizeof t->object + 2];

        t->wanted = false;
        snprintf(object, sizeof object, look_takes_ids(t->verb) ? "{%s}" : "%s", t->object);
        top_send(t, TOP_DOING, sql, object);
        free(sql);
    } else if (t->at_work == TOP_IDLE && now_ms >= t->next_ms) {
        top_send(t, TOP_LOOKING, t->sql, NULL);
    } else if (t->at_work == TOP_LOST && now_ms >= t->next_ms) {
        t->at_work = TOP_CONNECTING;
        t->since_ms = now_ms;
        t->polling = PGRES_POLLING_WRITING;
        if (!PQresetStart(conn)) top_lost(t, PQerrorMessage(conn));
    } else if (t->at_work != TOP_IDLE && t->at_work != TOP_LOST && now_ms > t->since_ms + 15000) {
        top_lost(t, "no answer for 15 s");
    }
}

/* ---- the program ----------------------------------------------------------------------------- */

static void top_loop(top_state *t)
{
    struct pollfd on[2] = {{STDIN_FILENO, POLLIN, 0}, {-1, 0, 0}};
    int64_t wait_ms;
    int key;

    while (!top_ended && (on[0].revents & (POLLHUP | POLLERR | POLLNVAL)) == 0) {
        top_tick(t);
        top_draw(t);
        wait_ms = t->at_work == TOP_IDLE || t->at_work == TOP_LOST ? t->next_ms - top_now_ms()
                                                                   : 1000;
        on[1].fd = t->at_work == TOP_LOST ? -1 : PQsocket(t->a->conn);
        on[1].events = t->at_work == TOP_CONNECTING && t->polling == PGRES_POLLING_WRITING
                     ? POLLOUT : POLLIN;
        on[0].revents = on[1].revents = 0;
        poll(on, 2, wait_ms < 0 ? 0 : wait_ms > 1000 ? 1000 : (int)wait_ms);
        /* Keys first: they mean the rows that are on the screen, not those of a new answer. */
        while ((key = getch()) != ERR) {
            if (!top_key(t, key)) return;
            top_list(t);
        }
        if (on[1].revents != 0) top_read(t);
    }
}

static void top_leave(void)
{
    if (stdscr != NULL && !isendwin()) endwin();
}

/* Takes the terminal. Whatever ends the program gives it back. */
static bool top_enter(top_state *t)
{
    const char *no_color = getenv("NO_COLOR");

    setlocale(LC_CTYPE, "");
    t->utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    signal(SIGINT, top_signal);
    signal(SIGTERM, top_signal);
    signal(SIGHUP, top_signal);
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || newterm(NULL, stdout, stdin) == NULL)
        return false;
    atexit(top_leave);
    if (tigetstr("cup") == NULL) return false; /* it cannot move the cursor: TERM=dumb */
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    set_escdelay(50);
    curs_set(0);
    t->color = (no_color == NULL || no_color[0] == '\0') && has_colors();
    if (t->color && start_color() == OK && use_default_colors() == OK) {
        init_pair(COLOR_RED, COLOR_RED, -1);
        init_pair(COLOR_GREEN, COLOR_GREEN, -1);
        init_pair(COLOR_YELLOW, COLOR_YELLOW, -1);
    }
    return true;
}

static void top_hush(void *unused, const char *message) { (void)unused, (void)message; }

static int top(app *a)
{
    static top_state t;
    const char *term = getenv("TERM");

    if (a->json) return app_say(APP_USAGE, "top has no --json: use list, show or export");
    t.a = a;
    t.encoding = PQclientEncoding(a->conn);
    PQsetNoticeProcessor(a->conn, top_hush, NULL);
    PQclear(PQexec(a->conn, LOOK_SETTINGS));
    t.sql = app_sql(a, look_sql(t.tables, look_flagged(LOOK_TOP, t.tables), 'w', false));
    memmove(t.tables + 1, t.tables, sizeof t.tables[0] * (TOP_SECTIONS - 1));
    t.tables[0] = LOOK_TROUBLE; /* which was the last one */
    t.section = 1;
    t.look = PQexecParams(a->conn, t.sql, 2, top_types, top_values, NULL, NULL, 0);
    t.next_ms = top_now_ms() + 1000;
    if (!app_check(a, t.look)) return app_failed(a);
    if (!top_enter(&t)) {
        top_leave();
        return app_say(APP_NO, "top needs a terminal that it knows; TERM says %s",
                       term == NULL ? "nothing" : term);
    }
    top_loop(&t);
    top_leave();
    return APP_OK;
}
