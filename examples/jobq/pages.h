/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * pages.h -- the pages of jobq web. A section with data-live is sent again as it changes.
 */
enum {
    PAGE_TABLES = 6, /* of a page */
    PAGE_ACTS = -2, PAGE_LINE = -1 /* sections of an object's page that are no tables */
};

static PGresult *web_look_at(web_state *web, const int *tables, int count, const char *key);

static void page_jobs(web_visit *visit);
static void page_failures(web_visit *visit);
static void page_bulks(const web_state *web, app_text *out);
static void jobs_where(app_text *sql, const char *const *args);
static const char *jobs_view(const char *const *args);

/* A page of tables, or one with a function of its own. */
static const struct web_page {
    const char *path, *title;
    const char *form;         /* of its buttons; NULL: it has none */
    int count, tables[PAGE_TABLES];
    void (*write)(web_visit *visit);
    const char *none;         /* of a page of one object, whose path ends with its id */
} web_pages[] = {
    {"/", "Overview", "queues", 5,
     {LOOK_TROUBLE, LOOK_NOW, LOOK_PLOTS, LOOK_QUEUES, LOOK_RUNNING}},
    {"/jobs", "Jobs", "jobs", 0, {0}, page_jobs},
    {"/flows", "Flows", "flows", 1, {LOOK_FLOWS}},
    {"/queues", "Queues", "queues", 3, {LOOK_QUEUES, LOOK_LIMITS, LOOK_LINES}},
    {"/workers", "Workers", NULL, 1, {LOOK_WORKERS}},
    {"/schedules", "Schedules", "schedules", 1, {LOOK_SCHEDULES}},
    {"/outbox", "Outbox", "outbox", 4,
     {LOOK_OUTBOX, LOOK_PARTITIONS, LOOK_SUBSCRIPTIONS, LOOK_LETTERS}},
    {"/failures", "Failures", "jobs", 0, {0}, page_failures},
    {"/audit", "Audit", NULL, 1, {LOOK_AUDIT}},
    {"/bulk", "In bulk", "bulk", 1, {LOOK_BULK}},
    {"/jobs", "Job", "jobs", 6,
     {LOOK_FACTS, LOOK_WHY, LOOK_TIES, LOOK_TRIED, LOOK_STEPS, LOOK_PAYLOAD},
     .none = "There is no such job, or it has ended and is no longer kept."},
    {"/flows", "Flow", "flows", 2, {LOOK_FLOW, LOOK_GRAPH},
     .none = "There is no such flow, or it has ended a week ago."},
    {"/letters", "Dead letter", "outbox", 2, {LOOK_LETTER, LOOK_MESSAGE},
     .none = "There is no such dead letter, or it has been cleaned up."},
};
enum { WEB_PAGES = sizeof web_pages / sizeof web_pages[0] };

/* ---- verbs ----------------------------------------------------------------------------------- */

/* The filter of jobs: names in the address, labels, examples, conditions: $n is the n-1st. */
static const char *const web_filters[PAGE_FILTERS][4] = {
    {"state", "State", "", "state = $2"}, {"queue", "Queue", "", "queue = $3"},
    {"kind", "Kind", "", "kind = $4"}, {"key", "Key", "", "key = $5"},
    {"older", "Older than", "1 hour", "enqueued_at < now() - $6::interval"},
    {"tags", "Tags", "{\"person\": 7}", "headers @> $7::jsonb"},
    {"error", "Error", "", LOOK_SAME " = $8"}, {"line", "Line", "", "line = $9"},
    {"flow", "Flow", "", NULL}, /* jobs_source has its jobs */
    {"worker", "Worker", "", "worker::text = ANY (ARRAY(SELECT worker FROM jobq.workers "
                             "WHERE $11 IN (name, worker)))"},
    {"text", "Error has", "", "strpos(lower(error), lower($12)) > 0"},
    {"newer", "Since", "1 day", "at > now() - $13::interval"}};

/* Values of verbs besides the object: $7 and the following, where no filter is. */
static const struct { const char *verb, *field, *label; } web_values[] = {
    {"signal", "payload", "Payload of the signal, JSON"},
    {"prioritize", "priority", "-9 to 9, smaller first"},
    {"reschedule", "run_at", "Not before; empty: now"},
    {"subscribe", "name", "Name of the subscription"},
    {"subscribe", "queue", "Queue that its messages are copied to"},
    {"subscribe", "kind", "Kind, for jobs; empty: messages"},
    {"subscribe", "types", "Types, such as placed,order.*; empty: all"}};

/* Appends a verb's statement as a text for people: $1 is the object, if there is one, and $2 and
   the following are the filter's, if there are any. */
static void page_sql(app_text *text, const web_state *web, const char *generic, const char *object,
                     const char *const *args)
{
    bool usual = strcmp(web->pages.schema, "jobq") == 0; /* which is easier to read unquoted */
    char *whole = usual ? NULL : app_sql(&web->pages, generic), *end;
    const char *sql = usual ? generic : whole;

    while (*sql != '\0') {
        long no = *sql == '$' ? strtol(sql + 1, &end, 10) : 0;
        const char *value = no == 1 ? object : no > 1 && args != NULL ? args[no - 2] : NULL;
        char *quoted;

        if (no == 0 || (no == 1 && object == NULL)) {
            app_add(text, sql++, 1);
            continue;
        }
        quoted = value == NULL ? NULL : PQescapeLiteral(web->pages.conn, value, strlen(value));
        app_put(text, quoted == NULL ? "NULL" : quoted);
        PQfreemem(quoted);
        sql = end;
    }
    free(whole);
}

/*
 * A button that does a verb to an object, to the selected jobs, or to all that a filter finds. In a
 * row its title is the SQL; elsewhere the SQL is beside it.
 */
static void page_button(const web_state *web, app_text *out, const look_verb *verb,
                        const char *object, const char *const *args, bool row)
{
    const char *blank = object == NULL ? "" : " ", *name = object == NULL ? "" : object;
    bool ids = look_takes_ids(verb) && object == NULL;
    app_text generic = {0}, sql = {0};

    if (!web->may[verb - look_verbs]) return;
    if (args == NULL || ids) app_put(&generic, verb->sql);
    else {
        app_text where = {0};
        jobs_where(&where, args);
        app_format(&generic, "%.*s jobq.%s WHERE%s, in steps",
                   (int)(strstr(verb->sql, " hit") - verb->sql), verb->sql, jobs_view(args),
                   where.len > 0 ? where.ptr + 4 : " true");
        free(where.ptr);
    }
    page_sql(&sql, web, generic.ptr, object, args);
    if (!row) app_put(out, "<div class=act>");
    html(out, "<button form=act name=do value=\"%s%s%s\"", verb->name, blank, name);
    if (ids) app_put(out, " data-ids=1");
    if (row)
        html(out, " title=\"%s\">%s<span class=hidden> %s</span></button> ", sql.ptr, verb->label,
             name);
    else html(out, ">%s</button><code", verb->label);
    if (ids) html(out, " data-ids=\"%s\"", sql.ptr);
    if (!row) html(out, ">%s</code></div>", sql.ptr);
    free(generic.ptr);
    free(sql.ptr);
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* The address of jobs that a filter finds, from an id on. args: as web_filters. */
static void page_jobs_path(app_text *out, const char *const *args, const char *before)
{
    int i;

    app_put(out, "/jobs?");
    for (i = 0; i < PAGE_FILTERS; i++) {
        if (args[i][0] == '\0') continue;
        app_format(out, "%s=", web_filters[i][0]);
        html_url(out, args[i]);
        app_put(out, "&amp;");
    }
    if (before[0] != '\0') app_put(out, "before=");
    html_url(out, before);
}

static void page_jobs_link(app_text *out, const char *const *args, const char *text)
{
    app_put(out, "<a href=\"");
    page_jobs_path(out, args, "");
    app_put(out, "\">");
    html_shown(out, text);
    app_put(out, "</a>");
}

static void page_state(app_text *out, const char *state)
{
    static const char *const bad[] = {"failed", "dead", "held", "critical", "warning", "cancelled"};
    const char *kind = "";
    size_t i;

    for (i = 0; i < 6; i++)
        if (strncmp(state, bad[i], strlen(bad[i])) == 0) kind = i == 5 ? "mute" : "failed";
    if (strcmp(state, "running") == 0 || strcmp(state, "working") == 0) kind = "running";
    if (state[0] != '\0') html(out, "<span class=\"state %s\">%s</span>", kind, state);
}

/* A subject of jobq.doctor, "queue NAME", "kind QUEUE NAME" ..., with a link to the page that shows
   what the check has found. */
static void page_subject(app_text *out, const char *subject, const char *check)
{
    static const char *const pages[][3] = {
        {"queue ", "/failures?queue=", "failing"}, {"queue ", "/outbox#", "relays"},
        {"queue ", "/outbox#", "dead_letters"}, {"queue ", "/jobs?queue="},
        {"kind ", "/jobs?queue="}, {"line ", "/queues#lines-"}, {"flow ", "/flows/"},
        {"job ", "/jobs/"}, {"schedule ", "/schedules#"}, {"partition ", "/outbox#"},
        {"subscription ", "/outbox#subscriptions-"}};
    const char *name = NULL;
    app_text first = {0};
    size_t i, len;
    bool kind = strncmp(subject, "kind ", 5) == 0;

    for (i = 0; i < sizeof pages / sizeof pages[0] && name == NULL; i++)
        if (strncmp(subject, pages[i][0], strlen(pages[i][0])) == 0 &&
            (pages[i][2] == NULL || strcmp(pages[i][2], check) == 0))
            name = subject + strlen(pages[i][0]);
    if (name == NULL) {
        html(out, "%s", subject);
        return;
    }
    app_format(out, "<a href=\"%s", pages[i - 1][1]);
    len = kind ? strcspn(name, " ") : strlen(name);
    app_add(&first, name, len);
    html_url(out, first.ptr);
    free(first.ptr);
    if (kind && name[len] == ' ') {
        app_put(out, "&amp;kind=");
        html_url(out, name + len + 1);
    }
    html(out, "\">%s</a>", subject);
}

/* The button that does a verb to all jobs of a filter. */
static void page_button_for(const web_state *web, app_text *out, const look_verb *verb,
                            const char *const *args, const char *count)
{
    app_text path = {0};

    if (!web->may[verb - look_verbs]) return;
    page_jobs_path(&path, args, "");
    app_format(out, "<button form=act name=do value=%s formaction=\"/do%s\">%.*s ", verb->name,
               path.ptr + strlen("/jobs"), (int)strcspn(verb->label, " "), verb->label);
    html_count(out, count);
    app_put(out, "</button>");
    free(path.ptr);
}

/* The value of the column with a head in a row; "" if its table has none. */
static const char *page_cell(const PGresult *res, int row, const char *head)
{
    int table = 0, i;

    while (!look_is(res, row, table)) table++;
    for (i = 0; i < LOOK_COLUMNS && look_tables[table].columns[i].head != NULL; i++)
        if (strcmp(look_tables[table].columns[i].head, head) == 0)
            return PQgetvalue(res, row, i + 1);
    return "";
}

/* The value of a column in a row. */
static void page_value(const web_state *web, app_text *out, const look_column *c,
                       const PGresult *res, int row, int at)
{
    const char *value = PQgetvalue(res, row, at);
    const char *args[PAGE_FILTERS] = {"", "", "", "", "", "", "", "", "", "", "", ""};
    const look_verb *verb;
    char text[48];

    if (value[0] == '\0' && strchr("ns", c->type)) app_put(out, "–");
    else if (value[0] == '\0' && c->type != 'v') return;
    else if (strchr("nx", c->type)) html_count(out, value);
    else if (c->type == 'w') html_when(out, value, look_text(c, value, text, sizeof text));
    else if (c->type == 'a') html_at(out, value);
    else if (c->type == 'S') page_state(out, value);
    else if (c->type == 'q') {
        args[strcmp(c->head, "Line") == 0 ? 7 : strcmp(c->head, "Worker") == 0 ? 9 : 1] = value;
        page_jobs_link(out, args, value);
    } else if (c->type == 'k') {
        args[1] = page_cell(res, row, "Queue"), args[2] = value;
        page_jobs_link(out, args, value);
    } else if (c->type == 'm') html_long(out, value);
    else if (c->type == 'o') page_subject(out, value, page_cell(res, row, "Check"));
    else if (c->type == 'v')
        while ((verb = look_next_verb(&value)) != NULL)
            page_button(web, out, verb, PQgetvalue(res, row, 1), NULL, true);
    else if (c->type == 'j' || (c->type == 'r' && value[0] != '-'))
        html(out, "<a href=\"/jobs/%s\">%s%s</a>", value, c->type == 'r' ? "job " : "", value);
    else if (c->type == 'd') html(out, "<a href=\"/letters/%s\">%s</a>", value, value);
    else if (c->type == 'f' || c->type == 'r')
        html(out, "<a href=\"/flows/%s\">%s%s</a>", value + (c->type == 'r'),
             c->type == 'r' ? "flow " : "", value + (c->type == 'r'));
    else if (c->type == 'p')
        html(out, "<progress max=100 value=\"%s\" aria-label=\"%s\"></progress> %s %%", value,
             c->head, value);
    else if (c->type == 'c')
        html(out, "<input type=checkbox form=act name=id value=\"%s\" aria-label=\"Job %s\">",
             value, value);
    else if (c->type == 'h') html_bars(out, value);
    else if (strchr("gb", c->type)) {
        args[0] = "failed", args[1] = PQgetvalue(res, row, 2);
        args[2] = PQgetvalue(res, row, 3), args[6] = PQgetvalue(res, row, 4);
        if (c->type == 'g') page_jobs_link(out, args, value);
        else page_button_for(web, out, look_verb_find(value, strlen(value)), args,
                             PQgetvalue(res, row, 5));
    } else html_shown(out, look_text(c, value, text, sizeof text));
}

static const char *page_class(char type)
{
    return strchr("nxs", type) ? "n" : strchr("lgm", type) ? "w" : type == 'e' ? "w bad"
         : strchr("vb", type) ? "do" : "";
}

/* Which columns are shown. Those of a table that is not live need a value in some row. Those to
   select, and buttons, need a role that may do something. */
static void page_columns(const web_state *web, const look_table *t, const PGresult *res,
                         bool show[LOOK_COLUMNS])
{
    int i, row;

    for (i = 0; i < LOOK_COLUMNS; i++) {
        const look_column *c = &t->columns[i];

        show[i] = c->head != NULL && (c->only == 0 || c->only == 'w') &&
                  (web->acts_any || !strchr("cvb", c->type));
        if (!show[i] || (t->flags & LOOK_LIVE) || i == 0) continue;
        for (row = 0, show[i] = false; row < PQntuples(res) && !show[i]; row++)
            show[i] = strcmp(PQgetvalue(res, row, 0), t->id) == 0 &&
                      PQgetvalue(res, row, i + 1)[0] != '\0';
    }
}

/* Begins a row, by which it is known when the section comes again: a queue, a worker, a line of a
   queue ... */
static void page_key(app_text *out, const look_table *t, const PGresult *res, int row)
{
    const char *second = t->columns[1].head;
    bool two = second != NULL && (strcmp(second, "Queue") == 0 || strcmp(second, "Kind") == 0 ||
                                  strcmp(second, "Partition") == 0 ||
                                  strcmp(second, "Subject") == 0);

    html(out, "<tr data-k=\"%s%s%s\">", PQgetvalue(res, row, 1), two ? " " : "",
         two ? PQgetvalue(res, row, 2) : "");
}

static void page_row(const web_state *web, app_text *out, const look_table *t,
                     const bool show[LOOK_COLUMNS], const PGresult *res, int row)
{
    bool head = true; /* the first column, but not that to select */
    int i;

    page_key(out, t, res, row);
    for (i = 0; i < LOOK_COLUMNS; i++) {
        const look_column *c = &t->columns[i];
        const char *kind;
        bool th = head && c->type != 'c';

        if (!show[i]) continue;
        kind = page_class(c->type);
        app_put(out, th ? "<th scope=row" : "<td");
        if (!th && !strchr("cvb", c->type)) html(out, " data-h=\"%s\"", c->head);
        if (kind[0] != '\0') html(out, " class=\"%s\"", kind);
        app_put(out, ">");
        page_value(web, out, c, res, row, i + 1);
        app_put(out, th ? "</th>" : "</td>");
        head = head && !th;
    }
    app_put(out, "</tr>");
}

/* The rows of a table, in a frame that scrolls by itself where the screen is narrow. key: of rows
   whose first column is this one alone, or NULL. Returns how many there are. */
static int page_table(const web_state *web, app_text *out, const look_table *t, const PGresult *res,
                      const char *key)
{
    bool show[LOOK_COLUMNS];
    int i, row, rows = 0;
    int most = t == &look_tables[LOOK_GRAPH] ? LOOK_GRAPH_MOST : t->limit > 0 ? t->limit : INT_MAX;

    for (row = 0; row < PQntuples(res); row++) {
        if (strcmp(PQgetvalue(res, row, 0), t->id) == 0 &&
            (key == NULL || strcmp(PQgetvalue(res, row, 1), key) == 0)) break;
    }
    if (row == PQntuples(res)) return html(out, "<p class=none>%s</p>", t->none), 0;
    page_columns(web, t, res, show);
    html(out, "<div class=table tabindex=0 role=region aria-label=\"%s\"><table><thead><tr>",
         t->title);
    for (i = 0; i < LOOK_COLUMNS; i++) {
        bool hide = show[i] && strchr("vcb", t->columns[i].type);

        if (show[i])
            html(out, strchr("nxs", t->columns[i].type) ? "<th scope=col class=n>%s</th>"
                 : hide ? "<th scope=col><span class=hidden>%s</span></th>"
                 : "<th scope=col>%s</th>", t->columns[i].head);
    }
    app_put(out, "</tr></thead><tbody>");
    for (row = 0; row < PQntuples(res); row++) {
        if (strcmp(PQgetvalue(res, row, 0), t->id) != 0 ||
            (key != NULL && strcmp(PQgetvalue(res, row, 1), key) != 0)) continue;
        page_row(web, out, t, show, res, row);
        rows++;
    }
    app_put(out, "</tbody></table></div>");
    if (rows >= most && !(t->flags & LOOK_PAGED))
        html(out, "<p class=mute>Only %d are shown.</p>", most);
    return rows;
}

/* The first row of a table, each column that has a value in a line. */
static void page_facts(const web_state *web, app_text *out, const look_table *t,
                       const PGresult *res)
{
    int i, row;

    for (row = 0; strcmp(PQgetvalue(res, row, 0), t->id) != 0; row++) {}
    html(out, "<h2>%s</h2><dl class=\"facts panel\">", t->title);
    for (i = 0; i < LOOK_COLUMNS && t->columns[i].head != NULL; i++) {
        if (PQgetvalue(res, row, i + 1)[0] == '\0' || t->columns[i].only == '-') continue;
        html(out, "<dt>%s</dt><dd>", t->columns[i].head);
        page_value(web, out, &t->columns[i], res, row, i + 1);
        app_put(out, "</dd>");
    }
    app_put(out, "</dl>");
}

/* ---- the overview ---------------------------------------------------------------------------- */

/* A sample for the plots, each 10 s. */
static void page_sample(web_state *web, const PGresult *res)
{
    static const char *const heads[WEB_PLOTS] = {"Done/s", "Ready", "In 1 h"};
    int i;

    if (web->samples == WEB_SAMPLES) {
        for (i = 0; i < WEB_PLOTS; i++)
            memmove(web->plots[i], web->plots[i] + 1, (WEB_SAMPLES - 1) * sizeof(float));
        web->samples--;
    }
    for (i = 0; i < WEB_PLOTS; i++)
        web->plots[i][web->samples] = (float)look_sum(res, LOOK_QUEUES, heads[i]);
    web->samples++;
}

static void page_now(app_text *out, const PGresult *res)
{
    static const struct card { const char *name; int table; const char *head, *path; } cards[] = {
        {"Ready", LOOK_QUEUES, "Ready", "/jobs?state=ready"},
        {"Running", LOOK_QUEUES, "Running", "/jobs?state=running"},
        {"Scheduled", LOOK_QUEUES, "Scheduled", "/queues"},
        {"Done per second", LOOK_QUEUES, "Done/s", "/jobs?state=succeeded"},
        {"Failed in 1 h", LOOK_QUEUES, "In 1 h", "/failures?newer=1+hour"},
        {"Workers", LOOK_WORKERS, "Alive", "/workers"},
        {"Outbox lag", LOOK_OUTBOX, "Lag", "/outbox"},
        {"Dead letters", LOOK_OUTBOX, "Dead letters", "/outbox#letters"}};
    size_t i;

    app_put(out, "<h2 class=hidden>Now</h2><dl class=cards>");
    for (i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        double value = look_sum(res, cards[i].table, cards[i].head);
        char digits[32], is = look_sum_is(res, cards[i].table, cards[i].head);

        snprintf(digits, sizeof digits, value < 10 && value > (int)value ? "%s%.1f%s" : "%s%.0f%s",
                 is == '~' ? "~" : "", value, is == '+' ? "+" : "");
        html(out, "<div><dt><a href=\"%s\">%s</a></dt><dd class=\"%s\">", cards[i].path,
             cards[i].name, value > 0 && (i == 4 || i == 7) ? "bad" : "");
        html_count(out, digits);
        app_put(out, "</dd></div>");
    }
    app_put(out, "</dl>");
}

static void page_plots(const web_state *web, app_text *out)
{
    static const char *const names[WEB_PLOTS][2] = {
        {"Done per second", "/s"}, {"Ready jobs", "jobs"}, {"Failed in 1 h", "jobs"}};
    int i;

    app_put(out, "<h2 class=hidden>The last hour</h2><div class=plots>");
    for (i = 0; i < WEB_PLOTS; i++)
        html_plot(out, names[i][0], names[i][1], web->plots[i], web->samples);
    app_put(out, "</div>");
}

#include "graph.h"

/* ---- sections -------------------------------------------------------------------------------- */

/* What is in a section. Returns how many rows it has. */
static int page_inside(const web_state *web, app_text *out, int table, const PGresult *res,
                       const char *key)
{
    const look_table *t = &look_tables[table];

    if (table == LOOK_NOW) return page_now(out, res), 0;
    if (table == LOOK_PLOTS) return page_plots(web, out), 0;
    if (table == LOOK_BULK) return page_bulks(web, out), 0;
    if (t->flags & LOOK_ONE) return page_facts(web, out, t, res), 0;
    html(out, t->flags & LOOK_ALONE ? "<h2 class=hidden>%s</h2>" : "<h2>%s</h2>", t->title);
    if (table == LOOK_GRAPH) page_graph(out, res, key);
    return page_table(web, out, t, res, key);
}

/* A live section, as an event. */
static void page_event(web_state *web, app_text *out, int table, const PGresult *res)
{
    html(out, "data: %s ", look_tables[table].id);
    page_inside(web, out, table, res, NULL);
    app_put(out, "\n\n");
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void page_head(const web_state *web, app_text *out, const char *path, const char *title,
                      const char *user)
{
    size_t i;

    html(out, "<!doctype html><html lang=en><head><meta charset=utf-8>"
         "<meta name=viewport content=\"width=device-width, initial-scale=1\">"
         "<meta name=color-scheme content=\"light dark\"><title>%s · %s</title>"
         "<link rel=stylesheet href=\"/style.css\"><link rel=icon href=\"/icon.svg\">"
         "<script src=\"/script.js\" defer></script></head><body>"
         "<a class=skip href=\"#main\">Skip to content</a><header class=\"%s\">"
         "<a class=brand href=\"/\"><svg viewBox=\"0 0 16 16\" aria-hidden=true>"
         "<path d=\"M2 4h12M2 8h8M2 12h5\"/></svg>"
         "jobq <span id=instance>%s</span></a><nav aria-label=Pages>", title, web->name, web->color,
         web->name);
    for (i = 0; i < WEB_PAGES && web_pages[i].none == NULL; i++)
        html(out, strcmp(path, web_pages[i].path) == 0 ? "<a href=\"%s\" aria-current=page>%s</a>"
                  : "<a href=\"%s\">%s</a>", web_pages[i].path, web_pages[i].title);
    html(out, "</nav><form action=\"/find\" role=search><input name=q aria-label=\"Find an "
         "id, key, flow, queue, line or worker\" placeholder=\"Find id, key, flow …\"></form>"
         "<button type=button id=live hidden>Pause</button><span class=mute id=user>%s</span>"
         "</header><main id=main><h1>%s</h1>", user,
         title);
}

/* Begins a page, and says once what was done, if the visitor comes from a button. */
static void page_begin(web_visit *visit, const char *path, const char *title)
{
    int i;

    page_head(visit->web, &visit->out, path, title, visit->user);
    for (i = 0; i < WEB_SAID; i++) {
        web_said *said = &visit->web->said[i];

        if (strcmp(said->session, visit->session) != 0 || strcmp(said->path, visit->path) != 0)
            continue;
        html(&visit->out, "<p class=said role=status>%s</p>", said->text);
        said->session[0] = '\0';
    }
}

/* Says why; after a statement that took too long, or waited for a lock, also what is wrong. */
static void page_error(web_visit *visit)
{
    static const int doctor[] = {LOOK_TROUBLE};
    PGresult *res = NULL;
    char title[64], *sql;

    snprintf(title, sizeof title, visit->status == 401 ? "Log in" : visit->status == 404
             ? "Not found" : "Not done (%d)", visit->status);
    visit->out.len = 0;
    page_begin(visit, "", title);
    html(&visit->out, "<p role=alert>%s</p>", visit->error);
    if (visit->status == 504) {
        sql = look_sql(doctor, 1, 't', false);
        res = app_exec(&visit->web->pages, sql, 0, false, NULL);
        free(sql);
    }
    if (res != NULL && PQresultStatus(res) == PGRES_TUPLES_OK)
        page_inside(visit->web, &visit->out, LOOK_TROUBLE, res, NULL);
    PQclear(res);
    app_put(&visit->out, "</main></body></html>");
}

/* Asks for tables. key: what the page is about, or "". NULL: it failed. */
static PGresult *page_ask(web_visit *visit, const int *tables, int count, const char *key)
{
    const char *values[] = {key, web_arg(visit, "after")};
    char *sql = look_sql(tables, count, 't', visit->web->payloads);
    PGresult *res = web_ask(visit, sql != NULL ? sql : "SELECT WHERE false", 2, values);

    free(sql);
    return res;
}

/* The link to the rest of a table that has pages, if it is full. */
static void page_more(web_visit *visit, const look_table *t, const PGresult *res, int rows)
{
    int row = PQntuples(res) - 1;

    if (!(t->flags & LOOK_PAGED) || rows < t->limit) return;
    while (strcmp(PQgetvalue(res, row, 0), t->id) != 0) row--;
    html(&visit->out, "<p class=pages><a rel=next href=\"%s?after=%s\">Older</a></p>", visit->path,
         PQgetvalue(res, row, 1));
}

#include "jobs.h"

/* Asks for the tables of a page about an object. NULL: it failed, or there is no such object. */
static PGresult *page_look(web_state *web, const struct web_page *p, const char *id)
{
    PGresult *res = web_look_at(web, p->tables, p->count, id);

    if (res != NULL && PQntuples(res) > 0 && look_is(res, 0, p->tables[0])) return res;
    PQclear(res);
    return NULL;
}

/* The field of a verb that needs a value besides its object. */
static void page_act_value(const web_state *web, app_text *out, const look_verb *verb)
{
    size_t i;

    for (i = 0; i < sizeof web_values / sizeof web_values[0]; i++)
        if (strcmp(web_values[i].verb, verb->name) == 0 && web->may[verb - look_verbs])
            html(out, "<label>%s<input name=\"%s\" form=act></label>", web_values[i].label,
                 web_values[i].field);
}

/* The buttons of the object that a page is about, and of the signals that it waits for. */
static void page_acts(const web_state *web, app_text *out, const struct web_page *p,
                      const PGresult *res, const char *id)
{
    const char *names = PQgetvalue(res, 0, look_at(p->tables[0], "Actions"));
    int row, tie = look_at(LOOK_TIES, "Tie"), name = look_at(LOOK_TIES, "Name");
    const look_verb *verb, *signal = look_verb_find("signal", 6);

    app_put(out, "<div class=acts>");
    while ((verb = look_next_verb(&names)) != NULL) {
        page_button(web, out, verb, look_takes_ids(verb) ? NULL : id, NULL, false);
        page_act_value(web, out, verb);
    }
    for (row = 0; row < PQntuples(res) && web->may[signal - look_verbs]; row++) {
        if (!look_is(res, row, LOOK_TIES) || strcmp(PQgetvalue(res, row, tie), "signal") != 0)
            continue;
        page_button(web, out, signal, PQgetvalue(res, row, name), NULL, false);
        page_act_value(web, out, signal);
    }
    app_put(out, "</div>");
}

/* Writes a section of the page of an object, or its buttons or its time line: -1, -2. */
static void page_part(const web_state *web, app_text *out, const struct web_page *p, int table,
                      const PGresult *res, const char *id)
{
    if (table == PAGE_ACTS) page_acts(web, out, p, res, id);
    else if (table == PAGE_LINE) job_line(out, res);
    else page_inside(web, out, table, res, table == LOOK_GRAPH ? id : NULL);
}

/* All live sections of the page of an object, as events. */
static void page_object_events(const web_state *web, app_text *out, const struct web_page *p,
                               const PGresult *res, const char *id)
{
    int i;

    for (i = PAGE_ACTS; i < p->count; i++) {
        int table = i < 0 ? i : p->tables[i];

        if (table == LOOK_PAYLOAD || table == LOOK_MESSAGE) continue;
        html(out, "data: %s ", i == PAGE_ACTS ? "acts" : i == PAGE_LINE ? "line"
             : look_tables[table].id);
        page_part(web, out, p, table, res, id);
        app_put(out, "\n\n");
    }
}

/* A section for each table. key: what the page is about, or "". */
static void page_sections(web_visit *visit, const struct web_page *p, const PGresult *res,
                          const char *key)
{
    app_text *out = &visit->out;
    int i, rows;

    pthread_mutex_lock(&visit->web->mutex);
    for (i = p->none == NULL ? 0 : PAGE_ACTS; i < p->count; i++) {
        int table = i < 0 ? i : p->tables[i];
        const look_table *t = i < 0 ? NULL : &look_tables[table];

        if (table == LOOK_PAYLOAD || table == LOOK_MESSAGE) {
            job_payload(visit, res, table);
            continue;
        }
        html(out, "<section id=\"%s\"", i == PAGE_ACTS ? "acts" : i == PAGE_LINE ? "line" : t->id);
        if (p->none != NULL || (t->flags & LOOK_LIVE && !*web_arg(visit, "after")))
            app_put(out, " data-live");
        app_put(out, ">");
        rows = 0;
        if (p->none != NULL) page_part(visit->web, out, p, table, res, key);
        else rows = page_inside(visit->web, out, table, res, NULL);
        app_put(out, "</section>");
        if (t != NULL) page_more(visit, t, res, rows);
    }
    pthread_mutex_unlock(&visit->web->mutex);
}

/* A page of tables, or of one object and its tables. */
static void page_of_tables(web_visit *visit, const struct web_page *p, const char *id)
{
    int live[LOOK_TABLES], all = look_flagged(LOOK_LIVE, live);
    bool now = strcmp(p->path, "/") == 0;
    app_text title = {0};
    PGresult *res;

    app_format(&title, "%s%s%s", p->title, id[0] == '\0' ? "" : " ", id);
    page_begin(visit, p->path, title.ptr);
    free(title.ptr);
    res = page_ask(visit, now ? live : p->tables, now ? all : p->count, id);
    if (res == NULL) return;
    if (p->none != NULL && (PQntuples(res) == 0 || !look_is(res, 0, p->tables[0]))) {
        web_fail(visit, 404, p->none);
    } else {
        if (p->form != NULL && web_form(visit, p->form, id)) {
            html(&visit->out, "<input type=hidden name=back value=\"%s\"></form>", visit->path);
        }
        page_sections(visit, p, res, id);
    }
    PQclear(res);
}

/* Whether this is the rest of a path to one object: / and a number. */
static bool page_is_id(const char *rest)
{
    size_t digits = rest[0] == '/' ? strspn(rest + 1, "0123456789") : 0;

    return digits > 0 && digits <= 18 && rest[1 + digits] == '\0';
}

/* The page with a path, and the id in the path, or "". NULL: there is none. */
static const struct web_page *page_find(const char *path, const char **id)
{
    const struct web_page *p;

    for (p = web_pages; p < web_pages + WEB_PAGES; p++) {
        size_t len = strlen(p->path);

        *id = path + (strncmp(path, p->path, len) == 0 ? len : 0);
        if (*id == path) continue;
        if (p->none == NULL ? **id == '\0' : page_is_id(*id)) break;
    }
    *id = p == web_pages + WEB_PAGES ? "" : *id + (**id == '/');
    return p == web_pages + WEB_PAGES ? NULL : p;
}

static void page(web_visit *visit)
{
    const char *id;
    const struct web_page *p = page_find(visit->path, &id);

    if (strcmp(visit->path, "/find") == 0) page_search(visit);
    else if (p == NULL) web_fail(visit, 404, "There is no such page.");
    else if (p->write != NULL) p->write(visit);
    else page_of_tables(visit, p, id);
    app_put(&visit->out, "</main></body></html>");
}
