/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * jobs.h -- the page of jobs, and what the page of one job has besides tables.
 */

/* ---- jobs ------------------------------------------------------------------------------------ */

static bool job_ended(const char *state)
{
    return strcmp(state, "failed") == 0 || strcmp(state, "succeeded") == 0 ||
           strcmp(state, "cancelled") == 0;
}

#define JOBS_NEWEST "9223372036854775807"

/* The view that has the jobs of a state. Where a key, a flow or a worker is asked for, no state
   means any. */
static const char *jobs_view(const char *const *args)
{
    bool any = strcmp(args[0], "any") == 0 ||
               (args[0][0] == '\0' && (args[3][0] || args[8][0] || args[9][0]));

    return any ? "jobs" : strcmp(args[0], "failed") == 0 ? "failures"
         : job_ended(args[0]) ? "past_jobs" : "live_jobs";
}

/* Where jobs of a filter are found, newest first, below the id $1: by the primary key, the queue's
   lanes, the index of failed jobs of a queue or kind, the ids of a flow, or by_key, which finds
   those that hold a key. */
static void jobs_source(app_text *sql, const char *const *args, bool payloads, bool by_key)
{
    const char *view = jobs_view(args);
    bool failed = strcmp(view, "failures") == 0, live = strcmp(view, "live_jobs") == 0;

    app_format(sql, "SELECT id, queue, kind, attempt, enqueued_at, key, line, worker::text, %s, "
               "%s::jsonb AS headers FROM jobq.%s WHERE id < $1::bigint",
               failed ? "'failed' AS state, NULL::smallint AS priority, error, failed_at AS at"
               : live ? "state, priority, errors -> -1 ->> 'error' AS error, "
                        "coalesce(claimed_at, run_at) AS at"
               : "state, priority, errors -> -1 ->> 'error' AS error, "
                 "coalesce(finished_at, claimed_at, run_at) AS at",
               payloads ? "headers" : "NULL", view);
    if (live && args[1][0] != '\0') app_put(sql, " AND queue = $3");
    if (failed && args[1][0] != '\0')
        app_put(sql, args[2][0] == '\0' ? " AND queue_id = (SELECT jobq._known_queue($3))"
                     : " AND kind_id = (SELECT jobq._known_kind(jobq._known_queue($3), $4))");
    if (by_key && args[3][0] != '\0')
        app_put(sql, " AND id = ANY (ARRAY(SELECT jobq._jobs_of_key($5)))");
    if (args[8][0] != '\0')
        app_put(sql, " AND id = ANY (ARRAY(SELECT job_id FROM jobq.flow_graph($10::bigint, "
                "100000)))");
    if (strcmp(args[0], "running") == 0)
        app_put(sql, " AND id IN (SELECT id FROM jobq._running())");
}

/* Appends the conditions of a filter: AND ... */
static void jobs_where(app_text *sql, const char *const *args)
{
    int i;

    for (i = 0; i < PAGE_FILTERS; i++) {
        bool state = i > 0 || (args[0][0] != '\0' && strcmp(args[0], "any") != 0);

        if (state && args[i][0] != '\0' && web_filters[i][3] != NULL)
            app_format(sql, " AND %s", web_filters[i][3]);
    }
}

/* A page of jobs below an id. Filters without an index look at up to 10,000 jobs, so that a page
   costs the same however many there are. The last row says from where to look on. */
static PGresult *jobs_ask(web_visit *visit, const char *before)
{
    const char *const *args = visit->args;
    const char *values[WEB_VALUES] = {before[0] == '\0' ? JOBS_NEWEST : before};
    app_text source = {0}, where = {0}, sql = {0};
    PGresult *res;
    int i;

    for (i = 0; i < PAGE_FILTERS; i++) values[i + 1] = args[i][0] == '\0' ? NULL : args[i];
    jobs_source(&source, args, visit->web->payloads, before[0] == '\0');
    app_put(&where, "");
    jobs_where(&where, args);
    app_format(&sql,
               "WITH hit AS MATERIALIZED (SELECT * FROM (%s ORDER BY id DESC LIMIT 10000) AS seen "
               "WHERE true%s ORDER BY id DESC LIMIT 50) "
               "(SELECT 'jobs', id, id, state, queue, kind, priority, attempt, "
               WHEN("enqueued_at") ", " WHEN("at") ", key, left(error, 300) FROM hit "
               "ORDER BY id DESC) UNION ALL "
               "SELECT 'more', CASE WHEN (SELECT count(*) FROM hit) = 50 "
               "THEN (SELECT min(id) FROM hit) ELSE (SELECT id FROM (%s) AS rest "
               "ORDER BY id DESC OFFSET 9999 LIMIT 1) END, "
               "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL",
               source.ptr, where.ptr, source.ptr);
    /* Reads jobs in the order of the narrowest index until the page is full, instead of sorting
       all, or walking by id past those of other queues. */
    PQclear(PQexec(visit->web->pages.conn, "SET enable_hashjoin = off; SET random_page_cost = 1"));
    res = web_ask(visit, sql.ptr, WEB_VALUES, values);
    PQclear(PQexec(visit->web->pages.conn, "RESET enable_hashjoin; RESET random_page_cost"));
    free(source.ptr);
    free(where.ptr);
    free(sql.ptr);
    return res;
}

/* Counts the jobs that match in each state: of live, failed and ended jobs the newest 10,000 of the
   queue are looked at. NULL: it failed. */
static PGresult *jobs_count(web_visit *visit)
{
    static const char *const views[] = {"waiting", "failed", "succeeded"}; /* states of each */
    const char *args[PAGE_FILTERS], *values[WEB_VALUES] = {JOBS_NEWEST};
    app_text sql = {0};
    PGresult *res;
    int i;

    memcpy(args, visit->args, sizeof args);
    for (i = 0; i < PAGE_FILTERS; i++) values[i + 1] = args[i][0] == '\0' ? NULL : args[i];
    for (i = 0; i < 3; i++) {
        app_put(&sql, i > 0 ? ") UNION ALL (" : "(");
        app_put(&sql, "SELECT state, count(*) FILTER (WHERE true");
        args[0] = "";
        jobs_where(&sql, args);
        app_put(&sql, "), sum(count(*)) OVER () = 10000 FROM (");
        args[0] = views[i];
        jobs_source(&sql, args, visit->web->payloads, true);
        app_put(&sql, " ORDER BY id DESC LIMIT 10000) AS seen GROUP BY state");
    }
    app_put(&sql, ")");
    res = web_try(&visit->web->pages, sql.ptr, WEB_VALUES, values, NULL);
    free(sql.ptr);
    return res;
}

/* A link to the jobs of each state that match the rest of the filter, with their number. */
static void jobs_tabs(web_visit *visit)
{
    static const char *const states[] = {"", "ready", "running", "waiting", "failed", "succeeded",
                                         "cancelled", "any"};
    const char *args[PAGE_FILTERS], *now = strcmp(jobs_view(visit->args), "jobs") == 0
                                         ? "any" : visit->args[0];
    PGresult *res = jobs_count(visit);
    int i, row;

    memcpy(args, visit->args, sizeof args);
    app_put(&visit->out, "<nav class=tabs aria-label=States>");
    for (i = 0; i < 8; i++) {
        app_text count = {0};

        args[0] = states[i];
        if (i == 0 && strcmp(jobs_view(args), "jobs") == 0) continue;
        app_put(&visit->out, strcmp(states[i], now) == 0 ? "<a aria-current=true href=\""
                                                         : "<a href=\"");
        page_jobs_path(&visit->out, args, "");
        html(&visit->out, "\">%s", i == 0 ? "live" : states[i]);
        app_put(&count, i == 0 || i == 7 ? "" : "0");
        for (row = 0; res != NULL && row < PQntuples(res); row++) {
            if (strcmp(PQgetvalue(res, row, 0), states[i]) != 0) continue;
            count.len = 0;
            app_format(&count, "%s%s", PQgetvalue(res, row, 1),
                       PQgetvalue(res, row, 2)[0] == 't' ? "+" : "");
        }
        if (res != NULL && count.len > 0) {
            app_put(&visit->out, " <span class=mute>");
            html_count(&visit->out, count.ptr);
            app_put(&visit->out, "</span>");
        }
        app_put(&visit->out, "</a>");
        free(count.ptr);
    }
    app_put(&visit->out, "</nav>");
    PQclear(res);
}

/* The form of a filter of jobs, or of their failures, which has fewer fields. */
static void jobs_filter(web_visit *visit, bool failures)
{
    const char *const *args = visit->args;
    app_text *out = &visit->out;
    size_t i;

    html(out, "<form class=filter action=\"%s\" role=search aria-label=Filter>",
         failures ? "/failures" : "/jobs");
    if (!failures) html(out, "<input type=hidden name=state value=\"%s\">", args[0]);
    for (i = 1; i < PAGE_FILTERS; i++) {
        if (i == 5 && !visit->web->payloads) continue;
        if (i == 6 && args[6][0] == '\0') continue;
        if (failures && i != 1 && i != 10 && i != 11) continue;
        html(out, "<label>%s<input name=\"%s\" value=\"%s\" placeholder=\"%s\"></label>",
             web_filters[i][1], web_filters[i][0], args[i], web_filters[i][2]);
    }
    app_put(out, "<button class=main>Filter</button></form>");
}

/* A filter that the server refuses keeps its form, and says why. */
static void jobs_refused(web_visit *visit)
{
    if (visit->status != 400) return;
    html(&visit->out, "<p role=alert class=\"said warn\">%s</p>", visit->error);
    visit->error[0] = '\0';
}

/* Failed jobs by error. */
static void page_failures(web_visit *visit)
{
    static const int groups[] = {LOOK_GROUPS};
    const char *values[WEB_VALUES] = {NULL};
    char *sql = look_sql(groups, 1, 't', visit->web->payloads);
    PGresult *res;
    int i;

    for (i = 0; i < PAGE_FILTERS; i++) {
        visit->args[i] = web_arg(visit, web_filters[i][0]);
        values[i + 1] = visit->args[i][0] == '\0' ? NULL : visit->args[i];
    }
    page_begin(visit, "/failures", "Failures");
    jobs_filter(visit, true);
    res = web_ask(visit, sql, WEB_VALUES, values);
    free(sql);
    if (res == NULL) {
        jobs_refused(visit);
        return;
    }
    if (web_form(visit, "jobs", ""))
        app_put(&visit->out, "<input type=hidden name=back value=\"/failures\"></form>");
    page_inside(visit->web, &visit->out, LOOK_GROUPS, res, NULL);
    app_put(&visit->out, "<p class=mute>Of the newest 10,000 failed jobs that match. Errors that "
            "differ in numbers alone are the same.</p>");
    PQclear(res);
}

/* any: some jobs are on the page. */
static void jobs_acts(web_visit *visit, bool any)
{
    const char *const *args = visit->args;
    bool ready = strcmp(args[0], "ready") == 0, failed = strcmp(args[0], "failed") == 0;
    bool live = strcmp(jobs_view(args), "live_jobs") == 0, ended = job_ended(args[0]);
    const struct { const char *verb; bool offered; } acts[] = {
        {"cancel", any && !ended}, {"revive", any && failed}, {"delete", any},
        {"cancel_all", any && live && strcmp(args[0], "waiting") != 0},
        {"revive_all", any && failed}, {"delete_all", any && (ended || ready)}};
    int i;

    app_put(&visit->out, "<div class=acts>");
    for (i = 0; i < 6; i++)
        if (acts[i].offered)
            page_button(visit->web, &visit->out, look_verb_find(acts[i].verb, strlen(acts[i].verb)),
                        NULL, args, false);
    app_put(&visit->out, "</div>");
}

/* The links to the newest jobs, and to those below these. */
static void jobs_links(web_visit *visit, const char *const *args, const char *more, bool full)
{
    app_text *out = &visit->out;

    if (more[0] == '\0' && args[3][0] != '\0' && web_arg(visit, "before")[0] == '\0')
        more = JOBS_NEWEST; /* ended jobs that no longer hold their key */
    app_put(out, "<p class=pages>");
    if (web_arg(visit, "before")[0] != '\0') page_jobs_link(out, args, "Newest");
    if (more[0] != '\0') {
        app_put(out, "<a rel=next href=\"");
        page_jobs_path(out, args, more);
        app_put(out, full ? "\">Older</a>" : "\">Look further</a>"
                "<span class=mute>These are all that hold the key, or are among 10,000 jobs."
                "</span>");
    }
    app_put(out, "</p>");
}

enum { JOBS_LAST = 8 }; /* the column of the instant that matters for a state */

static const char *jobs_last(const char *const *args)
{
    const char *view = jobs_view(args);

    return strcmp(view, "failures") == 0 ? "Failed" : strcmp(view, "past_jobs") == 0 ? "Ended"
         : strcmp(args[0], "running") == 0 ? "Started" : strcmp(args[0], "ready") == 0 ? "Due"
         : strcmp(view, "live_jobs") == 0 ? "Started or due" : "Ended, started or due";
}

static void page_jobs(web_visit *visit)
{
    app_text *out = &visit->out;
    const char *before = web_arg(visit, "before"), **args = visit->args;
    look_table t = look_tables[LOOK_JOBS];
    PGresult *res;
    bool acts;
    int i, rows;

    for (i = 0; i < PAGE_FILTERS; i++) args[i] = web_arg(visit, web_filters[i][0]);
    page_begin(visit, "/jobs", "Jobs");
    jobs_filter(visit, false);
    res = jobs_ask(visit, before);
    if (res == NULL) {
        jobs_refused(visit);
        return;
    }
    jobs_tabs(visit);
    acts = web_form(visit, "jobs", "");
    if (acts) {
        for (i = 0; i < PAGE_FILTERS; i++)
            html(out, "<input type=hidden name=\"%s\" value=\"%s\">", web_filters[i][0], args[i]);
        app_put(out, "<input type=hidden name=back value=\"");
        page_jobs_path(out, args, before);
        app_put(out, "\"></form>");
    }
    t.columns[JOBS_LAST].head = jobs_last(args);
    rows = page_table(visit->web, out, &t, res, NULL);
    if (acts && rows > 0)
        app_put(out, "<p><label class=act><span><input type=checkbox id=every> Select all on this "
                "page</span></label></p>");
    if (acts) jobs_acts(visit, rows > 0);
    jobs_links(visit, args, PQgetvalue(res, rows, 1), rows == WEB_ROWS);
    PQclear(res);
}

/* ---- search ---------------------------------------------------------------------------------- */

/* Finds what has a text as its id, key or name. If it is one thing, leads to its page. */
static void page_search(web_visit *visit)
{
    static const char sql[] =
        "SELECT 'job', id::text, concat_ws(' ', state, queue, kind), '/jobs/' FROM jobq.jobs "
        "WHERE id = ANY (ARRAY(SELECT jobq._jobs_of_key($1) UNION SELECT CASE WHEN $1 ~ "
        "'^[0-9]{1,18}$' THEN $1::bigint END)) UNION ALL "
        "(SELECT 'flow', id::text, concat_ws(' ', state, name), '/flows/' FROM jobq.flows "
        "WHERE name = $1 OR id = CASE WHEN $1 ~ '^[0-9]{1,18}$' THEN $1::bigint END "
        "ORDER BY id DESC LIMIT 50) UNION ALL "
        "SELECT 'queue', queue, CASE WHEN paused THEN 'paused' END, '/jobs?queue=' "
        "FROM jobq.queues WHERE queue = $1 UNION ALL "
        "SELECT 'line', line, queue, '/jobs?line=' FROM jobq.lines WHERE line = $1 UNION ALL "
        "SELECT 'worker', name, CASE WHEN alive THEN 'alive' ELSE 'dead' END, '/jobs?worker=' "
        "FROM jobq.workers WHERE $1 IN (name, worker)";
    const char *q = web_arg(visit, "q"), *values[WEB_VALUES] = {q};
    app_text *out = &visit->out, path = {0};
    PGresult *res = web_ask(visit, sql, 1, values);
    int row;

    if (res == NULL) return;
    page_begin(visit, "", "Found");
    html(out, PQntuples(res) == 0 ? "<p class=none>Nothing has the id, key or name “%s”. A job "
         "that ended long ago no longer holds its key.</p><ul>" : "<p>“%s”</p><ul>", q);
    for (row = 0; row < PQntuples(res); row++) {
        path.len = 0;
        app_put(&path, PQgetvalue(res, row, 3));
        html_url(&path, PQgetvalue(res, row, 1));
        html(out, "<li>%s <a href=\"%s\">%s</a> <span class=mute>%s</span></li>",
             PQgetvalue(res, row, 0), path.ptr, PQgetvalue(res, row, 1), PQgetvalue(res, row, 2));
    }
    app_put(out, "</ul>");
    if (PQntuples(res) == 1) {
        snprintf(visit->location, sizeof visit->location, "%s", path.ptr);
        visit->status = 303;
    }
    free(path.ptr);
    PQclear(res);
}

/* ---- a job ----------------------------------------------------------------------------------- */

enum { JOB_WAITED, JOB_RAN, JOB_BACKED_OFF, JOB_AWAITED, JOB_PARTS };

/* What a job does after its last event: what its state says. */
static int job_part(const PGresult *res, int part)
{
    const char *state = "";
    int row;

    for (row = 0; row < PQntuples(res); row++) {
        if (look_is(res, row, LOOK_FACTS)) state = PQgetvalue(res, row, 1);
        if (look_is(res, row, LOOK_TIES) &&
            strcmp(PQgetvalue(res, row, look_at(LOOK_TIES, "Tie")), "signal") == 0)
            return JOB_AWAITED;
    }
    if (strcmp(state, "running") == 0) return JOB_RAN;
    return part == JOB_BACKED_OFF && strcmp(state, "ready") == 0 ? part : JOB_WAITED;
}

/* Draws a part of the time line and adds it to its sum. It began `from` seconds ago and ended `to`
 * seconds ago. */
static void job_draw(app_text *bars, int part, double from, double to, double enqueued,
                     double whole, double sums[JOB_PARTS])
{
    static const char *const classes[JOB_PARTS] = {"wait", "run", "back", "sign"};

    if (from <= to) return;
    sums[part] += from - to;
    html(bars, "<rect class=\"%s\" x=\"%.1f\" width=\"%.1f\" height=14 />", classes[part],
         1000 * (enqueued - from) / whole, 1000 * (from - to) / whole);
}

/* A time line of what happened: how long it waited, ran, backed off after attempts that failed, and
   waited for a signal. When an attempt before the last began is not kept. */
static void job_line(app_text *out, const PGresult *res)
{
    static const char *const names[JOB_PARTS] = {"waited", "ran", "backed off",
                                                 "waited for a signal"};
    double enqueued = -1, ended = 0, from, at, whole, sums[JOB_PARTS] = {0};
    app_text bars = {0}, said = {0};
    int row, i, part = JOB_WAITED, failed = 0;
    char span[32];

    for (row = 0; row < PQntuples(res); row++) {
        const char *when = PQgetvalue(res, row, 1), *what = PQgetvalue(res, row, 2);

        if (!look_is(res, row, LOOK_STEPS) || strlen(when) < 22) continue;
        if (strcmp(what, "enqueued") == 0) enqueued = atof(when + 21);
        if (job_ended(what)) ended = atof(when + 21);
    }
    whole = enqueued - ended;
    if (whole <= 0 || enqueued < 0) return;
    for (row = 0, from = enqueued; row < PQntuples(res); row++) {
        const char *when = PQgetvalue(res, row, 1), *what = PQgetvalue(res, row, 2);
        bool fails = strncmp(what, "attempt ", 8) == 0, starts = strcmp(what, "started") == 0;

        if (!look_is(res, row, LOOK_STEPS) || strlen(when) < 22 || !(fails || starts)) continue;
        at = atof(when + 21);
        job_draw(&bars, part, from, at, enqueued, whole, sums);
        if (fails) html(&bars, "<rect class=tick x=\"%.1f\" width=4 height=14 />",
                        996 * (enqueued - at) / whole);
        failed += fails && strstr(what, " failed") != NULL;
        part = starts ? JOB_RAN : JOB_BACKED_OFF;
        from = at;
    }
    job_draw(&bars, ended > 0 ? part : job_part(res, part), from, ended, enqueued, whole, sums);
    for (i = 0; i < JOB_PARTS; i++)
        if (sums[i] > 0)
            app_format(&said, "%s%s %s", said.len > 0 ? ", " : "", names[i],
                       app_span(span, sizeof span, sums[i]));
    if (failed > 0) app_format(&said, ", failed attempts: %d", failed);
    html(out, "<h2>Timeline</h2><svg class=line viewBox=\"0 0 1000 14\" "
         "preserveAspectRatio=none role=img aria-label=\"%s\">", said.ptr);
    app_put(out, bars.ptr == NULL ? "" : bars.ptr);
    html(out, "</svg><p class=mute>It %s</p>", said.ptr == NULL ? "has begun" : said.ptr);
    free(bars.ptr);
    free(said.ptr);
}

/* Texts that not every role may read. */
static void job_payload(web_visit *visit, const PGresult *res, int table)
{
    const look_table *t = &look_tables[table];
    int row, i;

    for (row = 0; !look_is(res, row, table); row++) {}
    for (i = 0; t->columns[i].head != NULL; i++) {
        const char *value = PQgetvalue(res, row, i + 1);

        if (value[0] != '\0')
            html(&visit->out, "<section><h2>%s</h2><pre tabindex=0>%s</pre></section>",
                 t->columns[i].head, value);
    }
    if (!visit->web->payloads)
        html(&visit->out, "<section><h2>%s</h2><p class=none>%s</p></section>", t->title, t->none);
}
