/*
 * pages.h -- the pages of jobq web. A section with data-live is sent again as it changes.
 */

/* ---- the look: one statement for all live sections ------------------------------------------- */

static const char page_look[] = LOOK_QUEUES " UNION ALL " LOOK_RUNNING " UNION ALL " LOOK_WORKERS
    " UNION ALL " LOOK_OUTBOX " ORDER BY 1, 2";

/* A sample for the plots, each 10 s. */
static void page_sample(web_state *web, const PGresult *res)
{
    if (web->samples == WEB_SAMPLES) {
        size_t rest = (WEB_SAMPLES - 1) * sizeof(float);

        memmove(web->done, web->done + 1, rest);
        memmove(web->waiting, web->waiting + 1, rest);
        memmove(web->failed, web->failed + 1, rest);
        web->samples--;
    }
    web->done[web->samples] = (float)look_sum(res, "queue", 9);
    web->waiting[web->samples] = (float)look_sum(res, "queue", 3);
    web->failed[web->samples++] = (float)look_sum(res, "queue", 8);
}

static void page_card(app_text *out, const char *name, double value, bool bad)
{
    char digits[32];

    snprintf(digits, sizeof digits, value < 10 && value > (int)value ? "%.1f" : "%.0f", value);
    html(out, "<div><dt>%s</dt><dd", name);
    app_put(out, bad && value > 0 ? " class=bad>" : ">");
    html_count(out, digits);
    app_put(out, "</dd></div>");
}

static void section_now(web_state *web, app_text *out, const PGresult *res)
{
    double alive = 0;
    int row;

    (void)web;
    for (row = 0; row < PQntuples(res); row++)
        alive += look_is(res, row, "worker") && web_cell(res, row, 2)[0] == 't';
    app_put(out, "<h2 class=hidden>Now</h2><dl class=cards>");
    page_card(out, "Ready", look_sum(res, "queue", 3), false);
    page_card(out, "Running", look_sum(res, "queue", 4), false);
    page_card(out, "Scheduled", look_sum(res, "queue", 5), false);
    page_card(out, "Done per second", look_sum(res, "queue", 9), false);
    page_card(out, "Failed in 1 h", look_sum(res, "queue", 8), true);
    page_card(out, "Workers", alive, false);
    page_card(out, "Outbox lag", look_sum(res, "outbox", 2), false);
    page_card(out, "Dead letters", look_sum(res, "outbox", 5), true);
    app_put(out, "</dl>");
}

static void section_plots(web_state *web, app_text *out, const PGresult *res)
{
    const float *values[] = {web->done, web->waiting, web->failed};
    static const char *const names[] = {"Done per second", "Ready jobs", "Failed in 1 h"};
    int i;

    (void)res;
    app_put(out, "<h2 class=hidden>The last hour</h2><div class=plots>");
    for (i = 0; i < 3; i++) html_plot(out, names[i], values[i], web->samples);
    app_put(out, "</div>");
}

static void page_number(app_text *out, const char *digits)
{
    app_put(out, "<td class=n>");
    html_count(out, digits);
    app_put(out, "</td>");
}

static void page_span(app_text *out, const char *seconds)
{
    char text[32];

    html(out, "<td class=n>%s</td>",
         seconds[0] == '\0' ? "–" : app_span(text, sizeof text, atof(seconds)));
}

static void section_queues(web_state *web, app_text *out, const PGresult *res)
{
    int row, rows = 0, i;

    app_put(out, "<h2>Queues</h2>");
    html_table(out, "Queues", "Queue|Ready#|Running#|Scheduled#|Failed#|In 1 h#|Done/s#|Late#|"
               "Workers#||");
    for (row = 0; row < PQntuples(res); row++) {
        const char *queue = web_cell(res, row, 1);
        bool paused = web_cell(res, row, 2)[0] == 't';

        if (!look_is(res, row, "queue")) continue;
        rows++;
        app_put(out, "<tr><th scope=row><a href=\"/jobs?queue=");
        html_url(out, queue);
        html(out, "\">%s</a>", queue);
        app_put(out, paused ? " <span class=state>paused</span></th>" : "</th>");
        for (i = 3; i <= 9; i++)
            if (i != 6) page_number(out, web_cell(res, row, i));
        page_span(out, web_cell(res, row, 11));
        page_number(out, web_cell(res, row, 10));
        app_put(out, "<td class=do>");
        web_button(web, out, paused ? "resume" : "pause", queue);
        app_put(out, "</td></tr>");
    }
    html_table_end(out, rows, "There is no queue yet.");
}

static void section_running(web_state *web, app_text *out, const PGresult *res)
{
    int row, rows = 0;

    (void)web;
    app_put(out, "<h2>Running now</h2>");
    html_table(out, "Running jobs", "Job|Queue|Kind|Worker|Attempt#|Started|Progress");
    for (row = 0; row < PQntuples(res); row++) {
        const char *percent = web_cell(res, row, 7);

        if (!look_is(res, row, "running")) continue;
        rows++;
        html(out, "<tr><th scope=row><a href=\"/jobs/%s\">%s</a></th><td>%s</td><td>%s</td>"
             "<td>%s</td><td class=n>%s</td><td>", web_cell(res, row, 1), web_cell(res, row, 1),
             web_cell(res, row, 2), web_cell(res, row, 3), web_cell(res, row, 4),
             web_cell(res, row, 5));
        html_when(out, web_cell(res, row, 6));
        app_put(out, "</td><td>");
        if (percent[0] != '\0')
            html(out, "<progress max=100 value=\"%s\" aria-label=Progress></progress> %s %% "
                 "<small>%s</small>", percent, percent, web_cell(res, row, 8));
        app_put(out, "</td></tr>");
    }
    html_table_end(out, rows, "No job is running.");
}

static void section_workers(web_state *web, app_text *out, const PGresult *res)
{
    int row, rows = 0;

    (void)web;
    html_table(out, "Workers", "Worker|State|Running#|Longest#|Queues|Kinds|Heartbeat|Since|Host");
    for (row = 0; row < PQntuples(res); row++) {
        bool alive = web_cell(res, row, 2)[0] == 't', asleep = web_cell(res, row, 11)[0] == 't';

        if (!look_is(res, row, "worker")) continue;
        rows++;
        html(out, "<tr><th scope=row>%s</th><td>", web_cell(res, row, 1));
        html(out, "<span class=\"state %s\">%s</span></td>",
             !alive ? "failed" : asleep ? "" : "running",
             !alive ? "dead" : asleep ? "asleep" : "awake");
        page_number(out, web_cell(res, row, 3));
        page_span(out, web_cell(res, row, 4));
        html(out, "<td>%s</td><td>%s</td><td>", web_cell(res, row, 5), web_cell(res, row, 6));
        html_when(out, web_cell(res, row, 7));
        app_put(out, "</td><td>");
        html_when(out, web_cell(res, row, 8));
        html(out, "</td><td>%s %s</td></tr>", web_cell(res, row, 9), web_cell(res, row, 10));
    }
    html_table_end(out, rows, "No worker has registered.");
}

static void section_outbox(web_state *web, app_text *out, const PGresult *res)
{
    int row, rows = 0;

    app_put(out, "<h2>Lag</h2>");
    html_table(out, "Outbox", "Queue|Partitions#|Lag#|Oldest#|In trouble#|Dead letters#||");
    for (row = 0; row < PQntuples(res); row++) {
        const char *queue = web_cell(res, row, 1);

        if (!look_is(res, row, "outbox")) continue;
        rows++;
        html(out, "<tr><th scope=row>%s</th>", queue);
        page_number(out, web_cell(res, row, 6));
        html(out, "<td class=n>%s%s</td>", web_cell(res, row, 3)[0] == 't' ? "" : "over ",
             web_cell(res, row, 2));
        page_span(out, web_cell(res, row, 4));
        page_number(out, web_cell(res, row, 7));
        page_number(out, web_cell(res, row, 5));
        app_put(out, "<td class=do>");
        if (atoi(web_cell(res, row, 5)) > 0) {
            web_button(web, out, "replay", queue);
            web_button(web, out, "discard", queue);
        }
        app_put(out, "</td></tr>");
    }
    html_table_end(out, rows, "No queue has an outbox.");
}

static const struct page_section {
    const char *id;
    void (*write)(web_state *web, app_text *out, const PGresult *res);
} page_sections_all[] = {{"now", section_now}, {"plots", section_plots},
                         {"queues", section_queues}, {"running", section_running},
                         {"workers", section_workers}, {"outbox", section_outbox}};
enum { PAGE_SECTIONS = sizeof page_sections_all / sizeof page_sections_all[0] };

/* All live sections, as events. */
static void page_sections(web_state *web, app_text *out, const PGresult *res)
{
    int i;

    for (i = 0; i < PAGE_SECTIONS; i++) {
        app_put(out, "data: ");
        app_put(out, page_sections_all[i].id);
        app_put(out, " ");
        page_sections_all[i].write(web, out, res);
        app_put(out, "\n\n");
    }
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void page_begin(web_visit *visit, const char *path, const char *title)
{
    const char *done = web_arg(visit, "done"), *n = web_arg(visit, "n"), *of = web_arg(visit, "of");
    int verb = web_verb_find(done);

    html_begin(&visit->out, path, title, visit->user);
    if (verb == WEB_VERBS || strcmp(visit->path, "/do") == 0) return;
    html(&visit->out, "<p class=said role=status>%s: %s", web_verbs[verb].label,
         n[0] == '\0' ? "done" : n);
    if (of[0] != '\0') html(&visit->out, " of %s", of);
    app_put(&visit->out, "</p>");
}

/* These live sections, from a look of its own. form: of their buttons, or NULL. */
static void page_live(web_visit *visit, const char *form, const char *const *ids)
{
    PGresult *res = web_ask(visit, page_look, 0, NULL);
    int i;

    if (res == NULL) return;
    if (form != NULL && web_form(visit, form))
        html(&visit->out, "<input type=hidden name=back value=\"%s\"></form>", visit->path);
    pthread_mutex_lock(&visit->web->mutex);
    for (; *ids != NULL; ids++) {
        for (i = 0; strcmp(page_sections_all[i].id, *ids) != 0; i++) {}
        html(&visit->out, "<section id=\"%s\" data-live>", *ids);
        page_sections_all[i].write(visit->web, &visit->out, res);
        app_put(&visit->out, "</section>");
    }
    pthread_mutex_unlock(&visit->web->mutex);
    PQclear(res);
}

/* A table of a statement. A column named x# holds numbers, x@ instants of WHEN, x! a long text. */
static void page_rows(web_visit *visit, const char *title, const char *none, const char *sql,
                      int count, const char *const *values)
{
    PGresult *res = web_ask(visit, sql, count, values);
    app_text columns = {0};
    int row, i;

    if (res == NULL) return;
    for (i = 0; i < PQnfields(res); i++) {
        const char *name = PQfname(res, i);

        app_add(&columns, name, strcspn(name, "@!"));
        app_put(&columns, "|");
    }
    html(&visit->out, "<section><h2>%s</h2>", title);
    html_table(&visit->out, title, columns.ptr);
    for (row = 0; row < PQntuples(res); row++) {
        app_put(&visit->out, "<tr>");
        for (i = 0; i < PQnfields(res); i++) {
            char type = PQfname(res, i)[strlen(PQfname(res, i)) - 1];

            html(&visit->out, "<td class=\"%s\">", type == '#' ? "n" : type == '!' ? "w" : "");
            if (type == '@') html_when(&visit->out, web_cell(res, row, i));
            else html(&visit->out, "%s", web_cell(res, row, i));
            app_put(&visit->out, "</td>");
        }
        app_put(&visit->out, "</tr>");
    }
    html_table_end(&visit->out, PQntuples(res), none);
    app_put(&visit->out, "</section>");
    free(columns.ptr);
    PQclear(res);
}

static void page_error(web_visit *visit)
{
    char title[64];

    snprintf(title, sizeof title, visit->status == 401 ? "Log in" : visit->status == 404
             ? "Not found" : "Not done (%d)", visit->status);
    visit->out.len = 0;
    page_begin(visit, "", title);
    html(&visit->out, "<p role=alert>%s</p>", visit->error);
    html_end(&visit->out);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static const char *const page_states[] = {"ready", "running", "waiting", "failed", "succeeded",
                                          "cancelled"};
static const char *const page_filters[] = {"state", "queue", "kind", "key", "older", "tags",
                                           "error"};

/* Where jobs of a state are found, newest first: by the primary key, or the queue's lanes. */
static void page_source(app_text *sql, const char *state, bool payloads)
{
    bool failed = strcmp(state, "failed") == 0;
    bool past = strcmp(state, "succeeded") == 0 || strcmp(state, "cancelled") == 0;

    app_put(sql, "SELECT id, queue, kind, attempt, enqueued_at, key, ");
    app_put(sql, failed ? "'failed' AS state, NULL::smallint AS priority, error, failed_at AS at"
            : past ? "state, priority, errors -> -1 ->> 'error' AS error, finished_at AS at"
            : "state, priority, errors -> -1 ->> 'error' AS error, "
              "coalesce(claimed_at, run_at) AS at");
    app_put(sql, payloads ? ", headers" : ", NULL::jsonb AS headers");
    app_put(sql, failed ? " FROM jobq.failures" : past ? " FROM jobq.past_jobs"
            : " FROM jobq.live_jobs");
    app_put(sql, " WHERE id < $1::bigint");
    if (!past) app_put(sql, " AND ($3::text IS NULL OR queue = $3)");
    if (strcmp(state, "running") == 0) app_put(sql, " AND id IN (SELECT id FROM jobq.running())");
}

#define PAGE_SAME "regexp_replace(coalesce(left(error, 300), ''), '[0-9]+', '#', 'g')"

/* A page of jobs below an id. Filters without an index look at up to 10,000 jobs, so that a page
   costs the same however many there are. The last row says from where to look on. */
static PGresult *page_jobs_ask(web_visit *visit, const char *const *args, const char *before)
{
    const char *values[8] = {before};
    app_text source = {0}, sql = {0};
    PGresult *res;
    int i;

    for (i = 0; i < 7; i++) values[i + 1] = args[i][0] == '\0' ? NULL : args[i];
    page_source(&source, args[0], visit->web->payloads);
    app_put(&sql, "WITH hit AS MATERIALIZED (SELECT * FROM (");
    app_put(&sql, source.ptr);
    app_put(&sql, " ORDER BY id DESC LIMIT 10000) AS seen "
            "WHERE ($2::text IS NULL OR state = $2) AND ($3::text IS NULL OR queue = $3) "
            "AND ($4::text IS NULL OR kind = $4) AND ($5::text IS NULL OR key = $5) "
            "AND ($6::interval IS NULL OR enqueued_at < now() - $6::interval) "
            "AND ($7::jsonb IS NULL OR headers @> $7::jsonb) "
            "AND ($8::text IS NULL OR " PAGE_SAME " = $8) ORDER BY id DESC LIMIT 50) "
            "(SELECT id, queue, kind, state, priority, attempt, " WHEN("enqueued_at") ", "
            WHEN("at") ", key, left(error, 300) FROM hit ORDER BY id DESC) UNION ALL "
            "SELECT CASE WHEN (SELECT count(*) FROM hit) = 50 THEN (SELECT min(id) FROM hit) "
            "ELSE (SELECT id FROM (");
    app_put(&sql, source.ptr);
    app_put(&sql, ") AS rest ORDER BY id DESC OFFSET 9999 LIMIT 1) END, "
            "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL");
    res = web_ask(visit, sql.ptr, 8, values);
    free(source.ptr);
    free(sql.ptr);
    return res;
}

static void page_select(app_text *out, const char *label, const char *name, const char *value,
                        const char *const *words, int count)
{
    int i;

    html(out, "<label>%s<select name=\"%s\"><option value=\"\">live</option>", label, name);
    for (i = 0; i < count; i++) {
        html(out, strcmp(words[i], value) == 0 ? "<option selected>%s</option>"
                                               : "<option>%s</option>", words[i]);
    }
    app_put(out, "</select></label>");
}

static void page_input(app_text *out, const char *label, const char *name, const char *value,
                       const char *example)
{
    html(out, "<label>%s<input name=\"%s\" value=\"%s\" placeholder=\"%s\"></label>", label, name,
         value, example);
}

static void page_jobs_filter(web_visit *visit, const char *const *args)
{
    app_text *out = &visit->out;

    app_put(out, "<form class=filter action=\"/jobs\" role=search aria-label=Filter>");
    page_select(out, "State", "state", args[0], page_states, 6);
    page_input(out, "Queue", "queue", args[1], "");
    page_input(out, "Kind", "kind", args[2], "");
    page_input(out, "Key", "key", args[3], "");
    page_input(out, "Older than", "older", args[4], "1 hour");
    if (visit->web->payloads) page_input(out, "Tags", "tags", args[5], "{\"person\": 7}");
    if (args[6][0] != '\0') page_input(out, "Error", "error", args[6], "");
    app_put(out, "<button class=main>Filter</button></form>");
}

/* The address of this page of jobs, from this id on. */
static void page_jobs_path(app_text *out, const char *const *args, const char *before)
{
    int i;

    app_put(out, "/jobs?");
    for (i = 0; i < 7; i++) {
        if (args[i][0] == '\0') continue;
        app_put(out, page_filters[i]);
        app_put(out, "=");
        html_url(out, args[i]);
        app_put(out, "&amp;");
    }
    if (before[0] != '\0') app_put(out, "before=");
    html_url(out, before);
}

/* A button, and the statement that it runs, with the values of the filter in it. */
static void page_act(web_visit *visit, const char *name, const char *const *values)
{
    const web_verb *verb = &web_verbs[web_verb_find(name)];
    bool ids = strstr(verb->sql, "$1::bigint[]") != NULL;
    const char *sql = verb->sql;
    app_text text = {0};

    if (!web_may(visit->web, name)) return;
    for (; *sql != '\0'; sql++) {
        if (*sql == '$' && sql[1] > '1' && values != NULL) {
            const char *value = values[*++sql - '1'];
            char *quoted = value == NULL ? NULL
                         : PQescapeLiteral(visit->web->pages.conn, value, strlen(value));

            app_put(&text, quoted == NULL ? "NULL" : quoted);
            PQfreemem(quoted);
        } else {
            app_add(&text, sql, 1);
        }
    }
    html(&visit->out, "<div class=act><button form=act name=do value=\"%s\"", name);
    if (ids) app_put(&visit->out, " data-ids=1");
    else html(&visit->out, " data-ask=\"%s?\"", verb->label);
    html(&visit->out, ">%s</button><code", verb->label);
    if (ids) html(&visit->out, " data-ids=\"%s\"", text.ptr);
    html(&visit->out, ">%s</code></div>", text.ptr);
    free(text.ptr);
}

static void page_jobs_acts(web_visit *visit, const char *const *args, bool any)
{
    const char *values[6] = {NULL, args[1], args[2], args[0], args[4], args[5]};
    bool one = args[1][0] != '\0' && args[3][0] == '\0' && args[6][0] == '\0';
    bool live = strcmp(args[0], "ready") == 0 || strcmp(args[0], "running") == 0;
    bool failed = strcmp(args[0], "failed") == 0, ended = failed ||
        strcmp(args[0], "succeeded") == 0 || strcmp(args[0], "cancelled") == 0;
    int i;

    for (i = 1; i < 6; i++) values[i] = values[i][0] == '\0' ? NULL : values[i];
    app_put(&visit->out, "<div class=acts>");
    if (any && !ended) page_act(visit, "cancel", NULL);
    if (any && failed) page_act(visit, "revive", NULL);
    if (any) page_act(visit, "delete", NULL);
    if (one && (live || args[0][0] == '\0')) page_act(visit, "cancel_all", values);
    if (one && failed) page_act(visit, "revive_all", values);
    if (one && (ended || strcmp(args[0], "ready") == 0)) page_act(visit, "delete_all", values);
    app_put(&visit->out, "</div>");
}

static void page_job_row(web_visit *visit, const PGresult *res, int row, bool boxes)
{
    app_text *out = &visit->out;
    const char *id = web_cell(res, row, 0), *state = web_cell(res, row, 3);

    app_put(out, "<tr>");
    if (boxes)
        html(out, "<td><input type=checkbox form=act name=id value=\"%s\" aria-label=\"Job %s\">"
             "</td>", id, id);
    html(out, "<th scope=row><a href=\"/jobs/%s\">%s</a></th><td><span class=\"state %s\">%s</span>"
         "</td><td>%s</td><td>%s</td><td class=n>%s</td><td class=n>%s</td><td>", id, id, state,
         state, web_cell(res, row, 1), web_cell(res, row, 2), web_cell(res, row, 4),
         web_cell(res, row, 5));
    html_when(out, web_cell(res, row, 6));
    app_put(out, "</td><td>");
    html_when(out, web_cell(res, row, 7));
    html(out, "</td><td class=w>%s<small class=bad>%s</small></td></tr>", web_cell(res, row, 8),
         web_cell(res, row, 9));
}

static void page_jobs(web_visit *visit)
{
    app_text *out = &visit->out;
    const char *before = web_arg(visit, "before"), *args[7];
    bool boxes;
    PGresult *res;
    int i, rows;

    for (i = 0; i < 7; i++) args[i] = web_arg(visit, page_filters[i]);
    page_begin(visit, "/jobs", "Jobs");
    page_jobs_filter(visit, args);
    res = page_jobs_ask(visit, args, before[0] == '\0' ? "9223372036854775807" : before);
    if (res == NULL) return;
    rows = PQntuples(res) - 1;
    boxes = web_form(visit, "jobs");
    if (boxes) {
        for (i = 0; i < 6; i++)
            html(out, "<input type=hidden name=\"%s\" value=\"%s\">", page_filters[i], args[i]);
        app_put(out, "<input type=hidden name=back value=\"");
        page_jobs_path(out, args, before);
        app_put(out, "\"></form>");
    }
    html_table(out, "Jobs", &"Select|Job|State|Queue|Kind|Priority#|Attempt#|Enqueued|Last|"
               "Key and error"[boxes ? 0 : 7]);
    for (i = 0; i < rows; i++) page_job_row(visit, res, i, boxes);
    html_table_end(out, rows, "No such job here.");
    if (boxes && rows > 0)
        app_put(out, "<p><label class=act><span><input type=checkbox id=every> Select all on this "
                "page</span></label></p>");
    if (boxes) page_jobs_acts(visit, args, rows > 0);
    app_put(out, "<p class=pages>");
    if (before[0] != '\0') {
        app_put(out, "<a href=\"");
        page_jobs_path(out, args, "");
        app_put(out, "\">Newest</a>");
    }
    if (!PQgetisnull(res, rows, 0)) {
        app_put(out, "<a rel=next href=\"");
        page_jobs_path(out, args, web_cell(res, rows, 0));
        app_put(out, rows == WEB_ROWS ? "\">Older</a>" : "\">Look further</a>"
                "<span class=mute>These are all among 10,000 jobs.</span>");
    }
    app_put(out, "</p>");
    PQclear(res);
}

/* ---- a job ----------------------------------------------------------------------------------- */

/* In SQL: the elements of a value that should be an array, and the time of an error. */
#define PAGE_EACH(json) \
    "jsonb_array_elements(CASE jsonb_typeof(" json ") WHEN 'array' THEN " json " END)"
#define PAGE_AT "CASE WHEN e ->> 'at' ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T' " \
                "THEN (e ->> 'at')::timestamptz END"

/* Waiting and running, to scale, with a mark for each failed attempt. */
static void page_timeline(web_visit *visit, const char *const *id)
{
    static const char sql[] =
        "WITH j AS (SELECT enqueued_at, claimed_at, errors, "
        "greatest(coalesce(finished_at, now()), enqueued_at + "
        "interval '1 microsecond') AS upto FROM jobq.jobs WHERE id = $1::bigint "
        "AND isfinite(enqueued_at) AND isfinite(coalesce(claimed_at, enqueued_at)) "
        "AND isfinite(coalesce(finished_at, enqueued_at))) "
        "SELECT 0, 1000 * extract(epoch FROM claimed_at - enqueued_at) "
        "/ extract(epoch FROM upto - enqueued_at), extract(epoch FROM claimed_at - enqueued_at), "
        "extract(epoch FROM upto - claimed_at), extract(epoch FROM upto - enqueued_at) FROM j "
        "UNION ALL SELECT 1, 1000 * extract(epoch FROM " PAGE_AT " - enqueued_at) "
        "/ extract(epoch FROM upto - enqueued_at), NULL, NULL, NULL "
        "FROM j CROSS JOIN LATERAL " PAGE_EACH("errors") " AS e WHERE isfinite(" PAGE_AT ")";
    PGresult *res;
    app_text *out = &visit->out;
    char waited[32], ran[32];
    const char *mark;
    int row, claimed;

    res = web_ask(visit, sql, 1, id);
    if (res == NULL || PQntuples(res) == 0) {
        PQclear(res);
        return;
    }
    mark = web_cell(res, 0, 1);
    claimed = mark[0] == '\0' ? 1000 : atoi(mark);
    app_span(waited, sizeof waited, atof(web_cell(res, 0, mark[0] == '\0' ? 4 : 2)));
    app_span(ran, sizeof ran, atof(web_cell(res, 0, 3)));
    html(out, "<section><h2>Timeline</h2><svg class=line viewBox=\"0 0 1000 14\" "
         "preserveAspectRatio=none role=img aria-label=\"waited %s\"><rect class=wait width=\"%d\" "
         "height=14 /><rect class=run x=\"%d\" width=\"%d\" height=14 />", waited, claimed, claimed,
         mark[0] == '\0' ? 0 : 1000 - claimed < 4 ? 4 : 1000 - claimed);
    for (row = 1; row < PQntuples(res); row++)
        html(out, "<rect class=tick x=\"%d\" width=4 height=14 />",
             atoi(web_cell(res, row, 1)) * 996 / 1000);
    html(out, "</svg><p class=mute>Waited %s", waited);
    if (mark[0] != '\0') html(out, ", last attempt %s", ran);
    if (PQntuples(res) > 1) html(out, ", %d failed attempts", PQntuples(res) - 1);
    app_put(out, "</p></section>");
    PQclear(res);
}

static void page_fact(app_text *out, const char *name, const char *value, bool when)
{
    if (value[0] == '\0') return;
    html(out, "<dt>%s</dt><dd>", name);
    if (when) html_when(out, value);
    else html(out, "%s", value);
    app_put(out, "</dd>");
}

static const char page_job_sql[] =
    "SELECT state AS \"State\", queue AS \"Queue\", kind AS \"Kind\", key AS \"Key\", "
    "line AS \"Line\", priority AS \"Priority\", CASE WHEN stages > 1 THEN "
    "format('%s of %s', stage + 1, stages) END AS \"Stage\", coalesce(format('%s of %s', attempt, "
    "max_attempts)) AS \"Attempt\", nullif(crash, 0) AS \"Crashes\", CASE WHEN suspect THEN "
    "'runs alone, since its worker died' END AS \"Suspect\", "
    "timeout_us * interval '1 microsecond' AS \"Time-out\", " WHEN("enqueued_at")
    " AS \"Enqueued@\", " WHEN("run_at") " AS \"Run at@\", " WHEN("claimed_at") " AS \"Claimed@\", "
    WHEN("cancel_requested_at") " AS \"Cancel requested@\", " WHEN("finished_at")
    " AS \"Finished@\", (SELECT name FROM jobq.workers w WHERE w.id = j.worker) AS \"Worker\", "
    "(SELECT format('%s %% %s', percent, note) FROM jobq.running r WHERE r.id = j.id "
    "AND percent IS NOT NULL) AS \"Progress\" FROM jobq.jobs j WHERE id = $1::bigint";

static void page_job_payload(web_visit *visit, const char *const *id)
{
    PGresult *res;
    int i;

    if (!visit->web->payloads) {
        app_put(&visit->out, "<section><h2>Payload</h2><p class=none>This role may not read "
                "payloads.</p></section>");
        return;
    }
    res = web_ask(visit, "SELECT left(coalesce(jsonb_pretty(payload), nullif(left(encode(bytes, "
                  "'hex'), 4000), '')), 65536) AS \"Payload\", left(jsonb_pretty(headers), 65536) "
                  "AS \"Headers\", left(coalesce(jsonb_pretty(result), left(encode(result_bytes, "
                  "'hex'), 4000)), 65536) AS \"Result\" FROM jobq.jobs WHERE id = $1::bigint",
                  1, id);
    if (res == NULL) return;
    for (i = 0; i < PQnfields(res); i++) {
        if (PQgetisnull(res, 0, i)) continue;
        html(&visit->out, "<section><h2>%s</h2><pre tabindex=0>%s</pre></section>", PQfname(res, i),
             web_cell(res, 0, i));
    }
    PQclear(res);
}

static void page_job_acts(web_visit *visit, const char *id, const char *state)
{
    bool failed = strcmp(state, "failed") == 0, ended = failed ||
        strcmp(state, "succeeded") == 0 || strcmp(state, "cancelled") == 0;

    if (!web_form(visit, "jobs")) return;
    html(&visit->out, "<input type=hidden name=id value=\"%s\"><input type=hidden name=back "
         "value=\"/jobs/%s\">", id, id);
    app_put(&visit->out, "</form><div class=acts>");
    if (!ended) page_act(visit, "cancel", NULL);
    if (failed) page_act(visit, "revive", NULL);
    app_put(&visit->out, "</div>");
}

static void page_job(web_visit *visit, const char *id)
{
    const char *values[] = {id};
    char title[64];
    PGresult *res;
    int i;

    if (id[0] == '\0' || strlen(id) > 18 || id[strspn(id, "0123456789")] != '\0') {
        web_fail(visit, 404, "There is no such job.");
        return;
    }
    snprintf(title, sizeof title, "Job %s", id);
    page_begin(visit, "/jobs", title);
    res = web_ask(visit, page_job_sql, 1, values);
    if (res != NULL && PQntuples(res) == 0)
        web_fail(visit, 404, "There is no such job, or it has ended and is no longer kept.");
    if (res != NULL && PQntuples(res) > 0) {
        page_job_acts(visit, id, web_cell(res, 0, 0));
        page_timeline(visit, values);
        app_put(&visit->out, "<section><h2>Facts</h2><dl class=\"facts panel\">");
        for (i = 0; i < PQnfields(res); i++) {
            const char *name = PQfname(res, i);
            bool when = name[strlen(name) - 1] == '@';

            snprintf(title, sizeof title, "%.*s", (int)strcspn(name, "@"), name);
            page_fact(&visit->out, title, web_cell(res, 0, i), when);
        }
        app_put(&visit->out, "</dl></section>");
        page_rows(visit, "Why it runs or does not", "Nothing is in its way.", "SELECT reason AS "
                  "\"Reason!\", " WHEN("until") " AS \"Until@\" FROM jobq.explain_job($1::bigint)",
                  1, values);
        page_rows(visit, "Errors", "No attempt has failed.", "SELECT "
                  WHEN(PAGE_AT) " AS \"At@\", e ->> 'stage' AS \"Stage#\", "
                  "e ->> 'attempt' AS \"Attempt#\", coalesce(e ->> 'error', "
                  "format('... %s more', e ->> 'dropped')) AS \"Error!\", "
                  "(SELECT string_agg(concat_ws(' ', l ->> 1, l ->> 2), E'\\n' ORDER BY no) FROM "
                  PAGE_EACH("e -> 'log'") " WITH ORDINALITY AS u (l, no)) AS \"Log!\" "
                  "FROM jobq.jobs j CROSS JOIN LATERAL " PAGE_EACH("j.errors") " AS e "
                  "WHERE j.id = $1::bigint",
                  1, values);
        page_job_payload(visit, values);
    }
    PQclear(res);
}

/* ---- the other pages ------------------------------------------------------------------------- */

static void page_queues(web_visit *visit)
{
    const char *const ids[] = {"queues", NULL};

    page_begin(visit, "/queues", "Queues");
    page_live(visit, "queues", ids);
    page_rows(visit, "Limits", "No queue has a limit.",
              "SELECT queue AS \"Queue\", kind AS \"Kind\", running_max AS \"Running at most#\", "
              "rate AS \"Rate\", held AS \"Held#\", wanted AS \"Wanted#\", tokens AS \"Tokens#\" "
              LOOK_LIMITS_FROM " ORDER BY 1, 2 LIMIT 200", 0, NULL);
    page_rows(visit, "Lines", "No job stands in a line.",
              "SELECT queue AS \"Queue\", line AS \"Line\", waiting AS \"Waiting#\", "
              "running AS \"Running#\", running_max AS \"At most#\", rate AS \"Rate\", "
              LOOK_LINE_STATE " AS \"State!\", " WHEN("next_at") " AS \"Next@\" "
              LOOK_LINES_FROM " ORDER BY 3 DESC", 0, NULL);
}

static void page_schedules(web_visit *visit)
{
    static const char sql[] =
        "SELECT name, queue, kind, calendar, zone, " WHEN("last_at") ", last_state, "
        WHEN("next_at") ", why, paused_at IS NOT NULL, (SELECT string_agg("
        "to_char(p.at AT TIME ZONE s.zone, "
        "'Dy DD Mon HH24:MI'), ', ' ORDER BY p.at) FROM jobq.schedule_preview(cron => CASE WHEN "
        "calendar NOT LIKE 'every %' THEN calendar END, every => CASE WHEN calendar LIKE 'every %' "
        "THEN substr(calendar, 7)::interval END, zone => s.zone, count => 5, after => "
        "s.next_at - coalesce(s.spread_by, '0') - interval '1 microsecond') p) "
        "FROM jobq.schedules s WHERE name > $1 ORDER BY name LIMIT 100";
    const char *values[] = {web_arg(visit, "after")};
    app_text *out = &visit->out;
    PGresult *res;
    int row;

    page_begin(visit, "/schedules", "Schedules");
    res = web_ask(visit, sql, 1, values);
    if (res == NULL) return;
    if (web_form(visit, "schedules"))
        app_put(out, "<input type=hidden name=back value=\"/schedules\"></form>");
    html_table(out, "Schedules", "Schedule|Calendar|Last run|Next|Next five runs||");
    for (row = 0; row < PQntuples(res); row++) {
        const char *name = web_cell(res, row, 0);
        bool paused = web_cell(res, row, 9)[0] == 't';

        html(out, "<tr><th scope=row>%s<br><small>%s %s</small></th><td>%s<br><small>%s</small>"
             "</td><td>", name, web_cell(res, row, 1), web_cell(res, row, 2), web_cell(res, row, 3),
             web_cell(res, row, 4));
        html_when(out, web_cell(res, row, 5));
        html(out, " %s</td><td>", web_cell(res, row, 6));
        html_when(out, web_cell(res, row, 7));
        html(out, "<br><small class=bad>%s</small></td><td class=w>%s</td><td class=do>",
             web_cell(res, row, 8), web_cell(res, row, 10));
        web_button(visit->web, out, "schedule_run", name);
        web_button(visit->web, out, paused ? "schedule_resume" : "schedule_pause", name);
        app_put(out, "</td></tr>");
    }
    html_table_end(out, row, "There is no schedule.");
    if (row == 100) {
        app_put(out, "<p class=pages><a rel=next href=\"/schedules?after=");
        html_url(out, web_cell(res, 99, 0));
        app_put(out, "\">More</a></p>");
    }
    PQclear(res);
}

static void page_outbox(web_visit *visit)
{
    const char *const ids[] = {"outbox", NULL};

    page_begin(visit, "/outbox", "Outbox");
    page_live(visit, "outbox", ids);
    page_rows(visit, "Partitions that wait", "Every message has been delivered.",
              "SELECT queue AS \"Queue\", partition AS \"Partition#\", lag AS \"Lag#\", "
              "extract(epoch FROM age)::integer || ' s' AS \"Oldest#\", mode AS \"Mode\", "
              "attempts AS \"Attempts#\", " WHEN("lease_until") " AS \"Lease until@\", "
              "left(error, 300) AS \"Error!\" FROM jobq.outbox WHERE lag > 0 OR error IS NOT NULL "
              "ORDER BY lag DESC LIMIT 100", 0, NULL);
    page_rows(visit, "Dead letters", "There is no dead letter.",
              "SELECT id AS \"Letter\", queue AS \"Queue\", partition AS \"Partition#\", seq AS "
              "\"Seq#\", status AS \"Status\", type AS \"Type\", attempts AS \"Attempts#\", "
              WHEN("failed_at") " AS \"Failed@\", left(error, 300) AS \"Error!\" "
              "FROM jobq.dead_letters WHERE status IN ('pending', 'reprocessing') "
              "ORDER BY deadline NULLS FIRST, id LIMIT 100", 0, NULL);
}

/* Failures whose errors differ in numbers alone are one group. */
static void page_failures(web_visit *visit)
{
    static const char sql[] =
        "SELECT queue, kind, same, count(*), " WHEN("min(failed_at)") ", " WHEN("max(failed_at)")
        ", max(id), (array_agg(error ORDER BY id DESC))[1] "
        "FROM (SELECT id, queue, kind, failed_at, left(error, 300) AS error, "
        PAGE_SAME " AS same FROM jobq.failures ORDER BY id DESC "
        "LIMIT 5000) AS f GROUP BY queue, kind, same ORDER BY 4 DESC, 7 DESC LIMIT 100";
    app_text *out = &visit->out;
    PGresult *res;
    int row;

    page_begin(visit, "/failures", "Failures");
    res = web_ask(visit, sql, 0, NULL);
    if (res == NULL) return;
    html_table(out, "Failures by error", "Error|Jobs#|Queue|Kind|First|Last|Newest");
    for (row = 0; row < PQntuples(res); row++) {
        const char *args[] = {"failed", web_cell(res, row, 0), web_cell(res, row, 1), "", "", "",
                              web_cell(res, row, 2)};

        app_put(out, "<tr><th scope=row class=w><a href=\"");
        page_jobs_path(out, args, "");
        html(out, "\">%s</a></th>", web_cell(res, row, 7)[0] ? web_cell(res, row, 7) : "no text");
        page_number(out, web_cell(res, row, 3));
        html(out, "<td>%s</td><td>%s</td><td>", web_cell(res, row, 0), web_cell(res, row, 1));
        html_when(out, web_cell(res, row, 4));
        app_put(out, "</td><td>");
        html_when(out, web_cell(res, row, 5));
        html(out, "</td><td><a href=\"/jobs/%s\">%s</a></td></tr>", web_cell(res, row, 6),
             web_cell(res, row, 6));
    }
    html_table_end(out, row, "No job has failed.");
    app_put(out, "<p class=mute>Of the newest 5,000 failed jobs.</p>");
    PQclear(res);
}

#define PAGE_AUDIT "SELECT " WHEN("at") " AS \"At@\", role AS \"Role\", application AS \"From\", " \
                   "verb AS \"Verb\", jobs AS \"Jobs#\""
#define PAGE_AUDIT_FROM "FROM jobq.operator_log ORDER BY id DESC LIMIT 200"

static void page_audit(web_visit *visit)
{
    page_begin(visit, "/audit", "Audit");
    page_rows(visit, "What operators did", "No operator has done anything.",
              visit->web->payloads ? PAGE_AUDIT ", left(arguments::text, 300) AS \"Arguments!\" "
              PAGE_AUDIT_FROM : PAGE_AUDIT " " PAGE_AUDIT_FROM, 0, NULL);
}

static void page(web_visit *visit)
{
    static const char *const overview[] = {"now", "plots", "queues", "running", NULL};
    static const char *const workers[] = {"workers", NULL};
    const char *path = visit->path;

    if (strcmp(path, "/") == 0) {
        page_begin(visit, path, "Overview");
        page_live(visit, "queues", overview);
    } else if (strcmp(path, "/workers") == 0) {
        page_begin(visit, path, "Workers");
        page_live(visit, NULL, workers);
    } else if (strcmp(path, "/jobs") == 0) {
        page_jobs(visit);
    } else if (strncmp(path, "/jobs/", 6) == 0) {
        page_job(visit, path + 6);
    } else if (strcmp(path, "/queues") == 0) {
        page_queues(visit);
    } else if (strcmp(path, "/schedules") == 0) {
        page_schedules(visit);
    } else if (strcmp(path, "/outbox") == 0) {
        page_outbox(visit);
    } else if (strcmp(path, "/failures") == 0) {
        page_failures(visit);
    } else if (strcmp(path, "/audit") == 0) {
        page_audit(visit);
    } else {
        web_fail(visit, 404, "There is no such page.");
    }
    html_end(&visit->out);
}
