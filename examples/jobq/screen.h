/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * screen.h -- how jobq top draws: cells, and the sections that fit.
 */

/* ---- cells ----------------------------------------------------------------------------------- */

/* A number that is an estimate (~ is before it), or means at least (+ is after it). */
static const char *top_number(const top_state *t, const char *value, char *text, size_t size)
{
    bool about = value[0] == '~';
    const char *sign = about ? (t->utf8 ? "\xE2\x89\x88" : "~") : (t->utf8 ? "\xE2\x89\xA5" : ">=");

    snprintf(text, size, "%s %.*s", sign, (int)strcspn(value + about, "+"), value + about);
    return text;
}

/* The value of column i in a row, as people read it. */
static const char *top_text(const top_state *t, const look_column *c, int i, int row, char *text,
                            size_t size)
{
    const char *value = PQgetvalue(t->look, row, i + 1);
    double number = atof(value);
    int tenths = number < 0 ? 0 : number > 100 ? 10 : (int)(number / 10);

    if (strchr("nx", c->type) != NULL && (value[0] == '~' || strchr(value, '+') != NULL))
        return top_number(t, value, text, size);
    if (c->type != 'p' || value[0] == '\0') return look_text(c, value, text, size);
    snprintf(text, size, "%.*s%s %3.0f %%", tenths, "##########", &".........."[tenths], number);
    return text;
}

/* Whether a character must not reach the terminal: it would steer it, or turn the direction of
   writing, or the terminal does not have it. */
static bool top_odd(const top_state *t, const char *character, size_t len)
{
    mbstate_t state;
    wchar_t c;

    if (len == 1) return (unsigned char)*character < 0x20 || (unsigned char)*character > 0x7E;
    memset(&state, 0, sizeof state);
    return !t->utf8 || mbrtowc(&c, character, len, &state) != len || c < 0xA0 ||
           (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
           (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF || PQdsplen(character, t->encoding) < 0;
}

/* Puts into t->cell what fits into this many columns of the screen; ~ is the end of a text that was
   cut. Returns how many columns it takes. */
static int top_fit(top_state *t, const char *value, int most)
{
    int used = 0, kept = 0;
    size_t len, keep = 0;

    for (t->cell.len = 0; *value != '\0'; value += len) {
        bool odd;
        int width;

        len = strnlen(value, (size_t)PQmblen(value, t->encoding));
        odd = top_odd(t, value, len);
        width = odd ? 1 : PQdsplen(value, t->encoding);
        if (used + width > most) {
            t->cell.len = keep;
            if (most > 0) app_put(&t->cell, "~");
            return kept + (most > 0);
        }
        app_add(&t->cell, odd ? (*value == '\n' || *value == '\t' ? " " : "?") : value,
                odd ? 1 : len);
        used += width;
        if (used < most) kept = used, keep = t->cell.len;
    }
    return used;
}

/* Writes a text into a cell of the screen. Returns how many columns it takes. */
static int top_put(top_state *t, int y, int x, int width, bool right, const char *value)
{
    int used;

    if (width > COLS - x) width = COLS - x;
    used = top_fit(t, value, width);
    if (t->cell.len > 0)
        mvaddnstr(y, right ? x + width - used : x, t->cell.ptr, (int)t->cell.len);
    return used;
}

/* Colour says nothing that the text does not say. */
static int top_attr(const top_state *t, const look_column *c, const char *text)
{
    int pair = 0;

    if (c->type == 'e' || (c->type == 'x' && strpbrk(text, "123456789") != NULL) ||
        strcmp(text, "critical") == 0 || strcmp(text, "dead") == 0 ||
        strcmp(text, "held") == 0) pair = COLOR_RED;
    else if (strncmp(text, "paused", 6) == 0 || strcmp(text, "warning") == 0) pair = COLOR_YELLOW;
    else if (c->type == 'p') pair = COLOR_GREEN;
    return t->color ? COLOR_PAIR(pair) : 0;
}

/* ---- the screen ------------------------------------------------------------------------------ */

/* Whether no column after this one is shown. */
static bool top_last(const look_column *columns, int i)
{
    while (++i < LOOK_COLUMNS && columns[i].head != NULL)
        if (top_has(&columns[i]) && columns[i].type != 'v') return false;
    return true;
}

/* How wide each column is; 0: no row has anything there. Texts are cut; not the one at the end. */
static void top_widths(top_state *t, int s, int widths[LOOK_COLUMNS])
{
    const look_column *columns = top_table(t, s)->columns;
    char text[64];
    int i, row;

    for (i = 0; i < LOOK_COLUMNS; i++) {
        bool last = top_last(columns, i);
        int most = last || !strchr("tlqkS", columns[i].type) ? COLS : COLS / 6 > 14 ? COLS / 6 : 14;
        int wide = 0;

        widths[i] = 0;
        if (columns[i].head == NULL || !top_has(&columns[i]) || columns[i].type == 'v') continue;
        for (row = 0; row < t->count[s]; row++) {
            int used = top_fit(t, top_text(t, &columns[i], i, t->rows[s][row], text, sizeof text),
                               most);
            wide = used > wide ? used : wide;
        }
        if (wide == 0 && t->count[s] > 0) continue;
        widths[i] = wide > (int)strlen(columns[i].head) ? wide : (int)strlen(columns[i].head);
    }
}

/* Writes a section: its heading, and this many of its rows. */
static void top_draw_section(top_state *t, int s, int y, int give)
{
    const look_table *table = top_table(t, s);
    int widths[LOOK_COLUMNS], x, i, n;
    char title[100], text[64], all[32];

    top_widths(t, s, widths);
    snprintf(all, sizeof all, "%d%s", t->count[s], t->count[s] >= table->limit ? "+" : "");
    if (t->count[s] >= table->limit) top_number(t, all, text, sizeof text);
    else snprintf(text, sizeof text, "%s", all);
    if (give < t->count[s]) snprintf(title, sizeof title, "%s %d of %s", table->title, give, text);
    else snprintf(title, sizeof title, "%s %s", table->title, text);
    if (s == t->section) t->page = give;
    if (widths[0] < (int)strlen(title)) widths[0] = (int)strlen(title);
    if (t->at[s] < t->first[s]) t->first[s] = t->at[s];
    if (t->at[s] >= t->first[s] + give) t->first[s] = t->at[s] - give + 1;
    if (t->first[s] > t->count[s] - give) t->first[s] = t->count[s] - give;
    if (t->first[s] < 0) t->first[s] = 0;
    for (n = -1; n < give && n < t->count[s]; n++) {
        bool selected = n >= 0 && s == t->section && t->first[s] + n == t->at[s];

        attrset((int)(n < 0 ? A_BOLD : selected ? A_REVERSE : A_NORMAL));
        if (selected) mvhline(y + 1 + n, 0, ' ', COLS);
        for (i = 0, x = 0; i < LOOK_COLUMNS && x < COLS; i++) {
            const look_column *c = &table->columns[i];
            bool right = strchr("nxs", c->type) != NULL;
            const char *value = n < 0 || c->head == NULL ? (i == 0 ? title : c->head)
                : top_text(t, c, i, t->rows[s][t->first[s] + n], text, sizeof text);

            if (widths[i] == 0) continue;
            if (n >= 0 && !selected) attrset(top_attr(t, c, value));
            top_put(t, y + 1 + n, x, widths[i], right, value);
            x += widths[i] + 2;
        }
    }
    attrset(A_NORMAL);
    if (t->count[s] == 0) top_put(t, y + 1, 0, COLS, false, "none");
}

/* How many rows of each section are shown; -1: not even the heading. A section takes a line for its
   heading, and one below its rows. The selected one is never left out. Returns whether any is. */
static bool top_layout(const top_state *t, int lines, int *give)
{
    int s, i, order[TOP_SECTIONS + 1] = {t->section}, left = lines + 1;
    bool more = true, any = false;

    for (s = 0; s < TOP_SECTIONS; s++) order[s + 1] = s, give[s] = -1;
    for (i = 0; i <= TOP_SECTIONS; i++) {
        s = order[i];
        if (give[s] >= 0 || (i > 0 && t->count[s] == 0)) continue;
        if (i > 0 && (left < 3 || t->zoom)) any = true;
        else give[s] = 1, left -= 3;
    }
    while (more && left > 0) {
        for (i = 0, more = false; i <= TOP_SECTIONS && left > 0; i++) {
            s = order[i];
            if (give[s] < 0 || give[s] >= t->count[s]) continue;
            give[s]++, left--;
            more = true;
        }
    }
    return any;
}

static void top_draw_head(top_state *t)
{
    int64_t waited_s = (top_now_ms() - t->since_ms) / 1000;
    char text[400], number[48], ready[64], is = look_sum_is(t->look, LOOK_QUEUES, "Ready");
    int x, row, bad = 0;

    attrset(A_BOLD);
    snprintf(text, sizeof text, "jobq top  %.63s %.63s  ", PQdb(t->a->conn), t->a->schema);
    x = top_put(t, 0, 0, COLS, false, text);
    if (t->trouble[0] != '\0') {
        snprintf(text, sizeof text, "%s", t->trouble);
        if (t->color) attron(COLOR_PAIR(COLOR_RED));
    } else if (t->at_work != TOP_IDLE && waited_s > 1) {
        snprintf(text, sizeof text, "no answer for %d s", (int)waited_s);
    } else {
        attrset(A_NORMAL);
        snprintf(number, sizeof number, "%.0f", look_sum(t->look, LOOK_QUEUES, "Ready"));
        if (is != 0) {
            snprintf(ready, sizeof ready, is == '~' ? "~%s" : "%s+", number);
            top_number(t, ready, number, sizeof number);
        }
        for (row = 0; row < PQntuples(t->look); row++) bad += look_is(t->look, row, LOOK_TROUBLE);
        snprintf(text, sizeof text, "%s ready  %.0f running  %.1f done/s", number,
                 look_sum(t->look, LOOK_QUEUES, "Running"),
                 look_sum(t->look, LOOK_QUEUES, "Done/s"));
        if (bad > 0)
            snprintf(text + strlen(text), sizeof text - strlen(text), "  %d need%s attention", bad,
                     bad == 1 ? "s" : "");
    }
    if (x < COLS) top_put(t, 0, x, COLS, false, text);
    attrset(A_NORMAL);
}

/* The last line: a question, an answer, or the keys that can be pressed. */
static void top_draw_foot(top_state *t)
{
    char text[400] = "q quit  ? help  Tab section  / search  p pause/resume  r revive  c cancel";

    if (t->mode == TOP_SEARCH) snprintf(text, sizeof text, "/%s_", t->search);
    else if (t->mode == TOP_SURE)
        snprintf(text, sizeof text, "%s %.40s? y/n", t->verb->ask, t->object);
    else if (t->said[0] != '\0') snprintf(text, sizeof text, "%s", t->said);
    else if (t->search[0] != '\0')
        snprintf(text, sizeof text, "Only rows with \"%s\"; Esc shows all", t->search);
    attrset(t->mode != TOP_WATCH || t->said[0] != '\0' ? A_BOLD : A_NORMAL);
    if (t->refused && t->said[0] != '\0' && t->color) attron(COLOR_PAIR(COLOR_RED));
    top_put(t, LINES - 1, 0, COLS - 1, false, text);
    attrset(A_NORMAL);
}

static void top_draw_help(top_state *t)
{
    const char *line = top_keys;
    char text[100];
    int y;

    for (y = 2; *line != '\0' && y < LINES - 1; y++) {
        size_t len = strcspn(line, "\n");

        snprintf(text, sizeof text, "%.*s", (int)len, line);
        top_put(t, y, 0, COLS, false, text + 2);
        line += len + 1;
    }
}

static void top_draw(top_state *t)
{
    int give[TOP_SECTIONS], s, y = 2, lines = LINES - 4;
    char text[400] = "Tab also shows:";
    size_t len = strlen(text);

    erase();
    top_list(t);
    top_draw_head(t);
    if (t->mode == TOP_HELP) {
        top_draw_help(t);
    } else {
        if (top_layout(t, lines, give)) top_layout(t, --lines, give);
        for (s = 0; s < TOP_SECTIONS; s++) {
            if (give[s] >= 0 && y + 1 < LINES - 1) top_draw_section(t, s, y, give[s]);
            if (give[s] >= 0) y += give[s] + 2;
            else if (t->count[s] > 0 && len < sizeof text)
                len += (size_t)snprintf(text + len, sizeof text - len, "  %s %d",
                                        top_table(t, s)->title, t->count[s]);
        }
        if (len > 15) top_put(t, LINES - 2, 0, COLS, false, text);
    }
    top_draw_foot(t);
    refresh();
}
