/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * acts.h -- what the buttons of jobq web do: at once, after a question, or in steps.
 *
 * What cannot be undone is asked about first, on a page with names and numbers. What may concern
 * many is done in steps, by a thread of its own: the page In bulk shows how far it is.
 */

#define ACT_DONE "'cancelled', 'requested', 'revived', 'deleted'"
#define ACT_LETTERS "SELECT count(*) FROM (SELECT FROM jobq.dead_letters WHERE queue = $1 " \
                    "AND status = 'pending' LIMIT 100000) AS d"

#define ACT_LETTER "SELECT count(*) FROM jobq.dead_letters WHERE id = $1::bigint " \
                   "AND status = 'pending'"

#define ACT_SUBSCRIPTION "SELECT count(*) FROM jobq.subscriptions WHERE name = $1"

/* What a verb asks and says, besides what all verbs have. $1 is the object. */
static const struct act {
    const char *verb, *things; /* that it changes */
    const char *warn;          /* NULL: it asks nothing */
    const char *count;         /* counts the things; NULL: they are jobs */
    const char *was;           /* has a row, which says so, if there is nothing to do */
    const char *none;          /* what an answer of 0 or none means */
} acts[] = {
    {"cancel", "jobs", "A cancelled job does not run again. A handler that runs is asked to stop."},
    {"delete", "jobs", "It cannot be undone: nothing of a deleted job stays, not even its key."},
    {"cancel_all", "jobs", "A cancelled job does not run again. A handler that runs is asked to "
     "stop."},
    {"revive_all", "jobs", "They run again, with fresh attempts."},
    {"delete_all", "jobs", "It cannot be undone: nothing of a deleted job stays, not even its "
     "key."},
    {"flow_cancel", "jobs of the flow that have not ended", "A cancelled job does not run again.",
     "SELECT jobs - succeeded - failed - cancelled FROM jobq.flows WHERE id = $1::bigint"},
    {"flow_revive", "failed jobs of the flow", NULL,
     "SELECT failed FROM jobq.flows WHERE id = $1::bigint"},
    {"replay", "dead letters of the queue",
     "They are sent again, at the end of their partitions.", ACT_LETTERS},
    {"discard", "dead letters of the queue", "It cannot be undone: nobody receives them.",
     ACT_LETTERS},
    {"unsubscribe", "subscriptions", "No message is copied from then on. What was copied is still "
     "delivered.", ACT_SUBSCRIPTION},
    {"drop", "subscriptions", "It cannot be undone: nobody receives what waits in its queue.",
     ACT_SUBSCRIPTION},
    {"letter_replay", "dead letter", "It is sent again, at the end of its partition.", ACT_LETTER},
    {"letter_discard", "dead letter", "It cannot be undone: nobody receives it.", ACT_LETTER},
    {"pause", .was = "SELECT 'it was paused before' FROM jobq.queues WHERE queue = $1 AND paused"},
    {"resume", .was = "SELECT 'it was not paused' FROM jobq.queues WHERE queue = $1 "
     "AND NOT paused"},
    {"schedule_pause", .was = "SELECT 'it was paused before' FROM jobq.schedules WHERE name = $1 "
     "AND paused_at IS NOT NULL"},
    {"schedule_resume", .was = "SELECT 'it was not paused' FROM jobq.schedules WHERE name = $1 "
     "AND paused_at IS NULL"},
    {"schedule_run", .none = "its last job has not ended, and overlap is skip"},
    {"signal", .none = "the signal was sent before"},
};

static const struct act *act_of(const look_verb *verb)
{
    static const struct act plain = {NULL};
    size_t i;

    for (i = 0; i < sizeof acts / sizeof acts[0]; i++)
        if (strcmp(acts[i].verb, verb->name) == 0) return &acts[i];
    return &plain;
}

/* Whether a verb is for all jobs of a filter; its statement is that for one of them. */
static bool act_is_for_all(const look_verb *verb) { return strstr(verb->name, "_all") != NULL; }

/* Begins a transaction that may write, under the name of the user; runs; commits. b: whose step it
   is, or NULL; its steps are one row of operator_log. NULL: it failed, and a->conn says why, or
   error has it. */
static PGresult *act_run(app *a, const char *user, const web_bulk *b, const char *sql,
                         const char *const *values, web_trouble *trouble)
{
    char name[160];
    const char *sets[] = {name, b == NULL ? NULL : b->what, b == NULL ? "" : b->operation};
    PGresult *res, *end;

    snprintf(name, sizeof name, "jobq web%s%s", user[0] ? " " : "", user);
    PQclear(PQexec(a->conn, "BEGIN READ WRITE"));
    PQclear(app_exec(a, "SELECT set_config('application_name', $1, true), "
                     "set_config('jobq_log.bulk', CASE WHEN $2 IS NOT NULL THEN "
                     "jsonb_build_object('what', $2)::text END, true), "
                     "set_config('jobq_log.operation', $3, true)", 3, true, sets));
    res = web_try(a, sql, WEB_VALUES, values, trouble);
    end = web_try(a, res == NULL ? "ROLLBACK" : "COMMIT", 0, NULL, res == NULL ? NULL : trouble);
    PQclear(end);
    if (end != NULL) return res;
    PQclear(res);
    return NULL;
}

/* ---- in steps -------------------------------------------------------------------------------- */

#define BULK_OPERATION "current_setting('jobq_log.operation', true)"

/* The statement of one step. Of jobs it takes the next ones below the id $1, and answers how many
   it looked at, how many it changed, the last id, what became of the others, and which row of
   operator_log it is. */
static void bulk_sql(app_text *sql, const web_state *web, const look_verb *verb,
                     const char *const *args)
{
    if (!act_is_for_all(verb)) {
        app_format(sql, "SELECT n, n, NULL, NULL, " BULK_OPERATION " FROM (%s) AS done (n)",
                   verb->sql);
        return;
    }
    app_put(sql, "WITH hit AS MATERIALIZED (SELECT id FROM (");
    jobs_source(sql, args, web->payloads, true);
    app_put(sql, ") AS seen WHERE true");
    jobs_where(sql, args);
    app_format(sql, " ORDER BY id DESC LIMIT %d), done AS MATERIALIZED (%s) "
               "SELECT count(*), count(*) FILTER (WHERE answer IN (" ACT_DONE ")), min(id), "
               "string_agg(DISTINCT answer, ', ') FILTER (WHERE answer NOT IN (" ACT_DONE ")), "
               BULK_OPERATION " FROM done AS done (id, answer)", BULK_STEP, verb->sql);
}

/* Counts what a verb would change, up to a hundred thousand. -1: in five seconds it could not. */
static long act_count(web_visit *visit, const look_verb *verb, const char *object,
                      const char *const *values)
{
    const char *counted[WEB_VALUES];
    web_trouble trouble = {0};
    app_text sql = {0};
    PGresult *res;
    long count = -1;

    memcpy(counted, values, sizeof counted);
    counted[0] = act_is_for_all(verb) ? "9223372036854775807" : object;
    if (act_is_for_all(verb)) {
        app_put(&sql, "SELECT count(*) FROM (SELECT FROM (");
        jobs_source(&sql, visit->args, visit->web->payloads, true);
        app_put(&sql, ") AS seen WHERE true");
        jobs_where(&sql, visit->args);
        app_put(&sql, " LIMIT 100000) AS hit");
    } else app_put(&sql, act_of(verb)->count);
    res = web_try(&visit->web->pages, sql.ptr, WEB_VALUES, counted, &trouble);
    if (res != NULL) count = PQntuples(res) == 0 ? 0 : atol(PQgetvalue(res, 0, 0));
    else if (trouble.status != 504) web_fail(visit, trouble.status, trouble.text);
    PQclear(res);
    free(sql.ptr);
    return count;
}

/* One step of a bulk; a deadlock is tried again. True: there may be more to do. */
static bool bulk_step(web_state *web, web_bulk *b, char last[24])
{
    const char *values[WEB_VALUES];
    PGresult *res = NULL;
    web_trouble trouble = {0};
    int tries, i;
    long seen;

    for (i = 0; i < WEB_VALUES; i++) values[i] = b->values[i];
    if (act_is_for_all(b->verb)) values[0] = last;
    for (tries = 0; res == NULL && tries < 3; tries++) {
        if (tries > 0 && strncmp(trouble.state, "40", 2) != 0) break;
        res = act_run(&web->acts, b->user, b, b->sql, values, &trouble);
    }
    pthread_mutex_lock(&web->mutex);
    if (res == NULL) snprintf(b->why, sizeof b->why, "%.299s", trouble.text);
    seen = res == NULL ? -1 : PQntuples(res) == 0 ? 0 : atol(PQgetvalue(res, 0, 0));
    if (seen > 0) {
        b->seen += seen;
        b->done += atol(PQgetvalue(res, 0, 1));
        snprintf(last, 24, "%s", PQgetvalue(res, 0, 2));
        if (!PQgetisnull(res, 0, 3))
            snprintf(b->why, sizeof b->why, "%s", PQgetvalue(res, 0, 3));
        snprintf(b->operation, sizeof b->operation, "%s", PQgetvalue(res, 0, 4));
    }
    if (seen < 0) b->state = BULK_FAILED;
    else if (seen < (act_is_for_all(b->verb) ? 1 : 1000)) b->state = BULK_ENDED;
    seen = b->state == BULK_WORKS && !b->stop && !web->ending;
    if (b->state == BULK_WORKS && !seen) b->state = BULK_STOPPED;
    pthread_mutex_unlock(&web->mutex);
    PQclear(res);
    return seen > 0;
}

/* The thread that works bulks, the oldest first. */
static void *bulk_work(void *context)
{
    web_state *web = context;
    web_bulk *b;
    char last[24];
    int i;

    pthread_mutex_lock(&web->mutex);
    while (!web->ending) {
        for (b = NULL, i = 0; i < WEB_BULKS; i++) {
            web_bulk *other = &web->bulks[i];
            if (other->state == BULK_WAITS && (b == NULL || other->number < b->number)) b = other;
        }
        if (b == NULL) {
            pthread_cond_wait(&web->bulk_news, &web->mutex);
            continue;
        }
        b->state = BULK_WORKS;
        pthread_mutex_unlock(&web->mutex);
        snprintf(last, sizeof last, "9223372036854775807");
        if (PQstatus(web->acts.conn) != CONNECTION_OK && web_connect(&web->acts))
            PQclear(PQexec(web->acts.conn, "SET statement_timeout = '1min'"));
        while (bulk_step(web, b, last)) {}
        pthread_mutex_lock(&web->mutex);
        pthread_cond_broadcast(&web->bulk_news);
    }
    pthread_mutex_unlock(&web->mutex);
    return NULL;
}

/* What became of a bulk, for people. */
static void bulk_said(const web_bulk *b, app_text *out)
{
    static const char *const states[] = {"", "waits for its turn", "works", "done", "stopped",
                                         "failed"};
    long left = b->total - b->seen;

    app_format(out, "%ld", b->done);
    if (b->total >= 0) app_format(out, " of %s%ld", b->total >= BULK_MOST ? "at least " : "",
                                  b->total);
    if (b->state != BULK_ENDED) app_format(out, ", %s", states[b->state]);
    if (b->seen > b->done) app_format(out, "; %ld left as they were", b->seen - b->done);
    if (b->why[0] != '\0') app_format(out, " (%s)", b->why);
    if (b->total >= 0 && left > 0 && b->total < BULK_MOST) app_format(out, "; %ld remain", left);
}

static void page_bulks(const web_state *web, app_text *out)
{
    long number;
    int i, rows = 0;

    app_put(out, "<h2 class=hidden>In bulk</h2><div class=table tabindex=0 role=region "
            "aria-label=\"In bulk\"><table><thead><tr><th scope=col>What</th><th scope=col>By</th>"
            "<th scope=col>Progress</th><th scope=col>So far</th><th scope=col><span class=hidden>"
            "Actions</span></th></tr></thead><tbody>");
    for (number = web->bulk_count; number > web->bulk_count - WEB_BULKS && number > 0; number--) {
        const web_bulk *b = &web->bulks[number % WEB_BULKS];
        char id[24];
        app_text said = {0};

        if (b->number != number) continue;
        rows++;
        snprintf(id, sizeof id, "%ld", number);
        bulk_said(b, &said);
        html(out, "<tr data-k=\"%s\"><th scope=row class=w>%s</th><td>%s</td><td>", id, b->what,
             b->user);
        i = b->total > 0 ? (int)(100 * b->seen / b->total) : b->state >= BULK_ENDED ? 100 : 0;
        html(out, "<progress max=100 value=\"%d\" aria-label=Progress></progress></td>"
             "<td class=w>%s</td><td class=do>", i, said.ptr);
        if (b->state == BULK_WAITS || b->state == BULK_WORKS)
            html(out, "<button form=act name=do value=\"stop %s\">Stop</button>", id);
        app_put(out, "</td></tr>");
        free(said.ptr);
    }
    app_put(out, "</tbody></table></div>");
    if (rows == 0) app_put(out, "<p class=none>Nothing has been done to many jobs at once since "
                           "this program started.</p>");
}

/* Takes on a bulk, and waits a second for its end. NULL: there are too many. */
static web_bulk *bulk_start(web_visit *visit, const look_verb *verb, const char *what, long total,
                            const char *const *values)
{
    web_state *web = visit->web;
    web_bulk *b = &web->bulks[(web->bulk_count + 1) % WEB_BULKS];
    struct timespec until;
    app_text sql = {0};
    int i;

    pthread_mutex_lock(&web->mutex);
    if (b->state == BULK_WAITS || b->state == BULK_WORKS) b = NULL;
    if (b != NULL) {
        for (i = 0; i < WEB_VALUES; i++) free(b->values[i]);
        free(b->sql);
        memset(b, 0, sizeof *b);
        bulk_sql(&sql, web, verb, visit->args);
        b->verb = verb;
        b->sql = sql.ptr;
        b->total = total;
        b->number = ++web->bulk_count;
        b->state = BULK_WAITS;
        snprintf(b->user, sizeof b->user, "%s", visit->user);
        snprintf(b->what, sizeof b->what, "%s", what);
        for (i = 0; i < WEB_VALUES; i++)
            b->values[i] = values[i] == NULL ? NULL : app_need(strdup(values[i]));
        pthread_cond_broadcast(&web->bulk_news);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        while (b->state < BULK_ENDED &&
               pthread_cond_timedwait(&web->bulk_news, &web->mutex, &until) == 0) {}
    }
    pthread_mutex_unlock(&web->mutex);
    return b;
}

/* ---- buttons --------------------------------------------------------------------------------- */

/* The ids of a form, as an array of SQL. Returns how many there are. */
static int act_ids(const web_visit *visit, app_text *ids)
{
    int i, count = 0;

    app_put(ids, "{");
    for (i = 0; i < visit->field_count; i++) {
        const char *id = visit->fields[i][1];

        if (strcmp(visit->fields[i][0], "id") || id[0] == '\0' || id[strspn(id, "0123456789")])
            continue;
        if (count++ > 0) app_put(ids, ",");
        app_put(ids, id);
    }
    app_put(ids, "}");
    return count;
}

/* The page that a form came from, if it is one of ours. */
static const char *act_back(const web_visit *visit)
{
    const char *back = web_field(visit, "back");

    return back[0] == '/' && back[1] != '/' && strlen(back) < 1900 &&
           back[strcspn(back, "\\\r\n\t ")] == '\0' ? back : "/";
}

/* Sends the browser to a page, which says the text once. */
static void act_say(web_visit *visit, const char *to, const char *label, const char *text)
{
    web_said *said = &visit->web->said[visit->web->said_count++ % WEB_SAID];

    memcpy(said->session, visit->session, sizeof said->session);
    snprintf(said->path, sizeof said->path, "%.*s", (int)strcspn(to, "?"), to);
    snprintf(said->text, sizeof said->text, "%s: %s", label, text);
    snprintf(visit->location, sizeof visit->location, "%s", to);
    visit->status = 303;
}

/* What will be done to what: "Revive all that match: State failed, Queue mail". */
static void act_what(const web_visit *visit, const look_verb *verb, const char *object,
                     app_text *what)
{
    int i, said = 0;

    app_format(what, "%s%s%s", verb->label, object[0] == '\0' || look_takes_ids(verb) ? "" : " ",
               look_takes_ids(verb) ? "" : object);
    for (i = 0; i < PAGE_FILTERS && act_is_for_all(verb); i++)
        if (visit->args[i][0] != '\0')
            app_format(what, "%s %s", said++ > 0 ? "," : ":", web_filters[i][1]),
            app_format(what, " %s", visit->args[i]);
}

/* The label of a field that a verb needs besides its object. NULL: it needs no such field. */
static const char *act_value(const look_verb *verb, const char *field)
{
    size_t i;

    for (i = 0; i < sizeof web_values / sizeof web_values[0]; i++)
        if (strcmp(web_values[i].verb, verb->name) == 0 && strcmp(web_values[i].field, field) == 0)
            return web_values[i].label;
    return NULL;
}

/* The form again, whose button now does it. */
static void act_sure(web_visit *visit, const look_verb *verb, const char *pressed,
                     const char *label)
{
    app_text *out = &visit->out;
    char token[WEB_TOKEN];
    size_t n;
    int i;

    web_token(visit, verb->form, (long)time(NULL), web_serial(visit->web), token);
    html(out, "<form method=post action=\"/do\" class=acts><input type=hidden name=token "
         "value=\"%s\"><input type=hidden name=sure value=1>", token);
    for (i = 0; i < visit->field_count; i++) {
        const char *name = visit->fields[i][0], *value = visit->fields[i][1];

        if (act_value(verb, name) != NULL)
            html(out, "<label>%s<input name=\"%s\" value=\"%s\"></label>", act_value(verb, name),
                 name, value);
        else if (strcmp(name, "token") != 0 && strcmp(name, "do") != 0 && strcmp(name, "sure") != 0)
            html(out, "<input type=hidden name=\"%s\" value=\"%s\">", name, value);
    }
    for (n = 0; n < sizeof web_values / sizeof web_values[0]; n++) { /* what no form had yet */
        const char *name = web_values[n].field;

        for (i = 0; i < visit->field_count && strcmp(visit->fields[i][0], name) != 0; i++) {}
        if (i == visit->field_count && strcmp(web_values[n].verb, verb->name) == 0)
            html(out, "<label>%s<input name=\"%s\"></label>", web_values[n].label, name);
    }
    html(out, "<p><button class=main name=do value=\"%s\">%s</button> <a href=\"%s\">Do nothing"
         "</a></p></form>", pressed, label, act_back(visit));
}

/* A value that the server refused: the form again, with what was typed, and why. */
static void act_again(web_visit *visit, const look_verb *verb, const char *pressed,
                      const char *what)
{
    visit->out.len = 0;
    page_begin(visit, "", what);
    html(&visit->out, "<p role=alert class=\"said warn\">%s</p>", visit->error);
    act_sure(visit, verb, pressed, verb->label);
    app_put(&visit->out, "</main></body></html>");
    visit->error[0] = '\0';
}

/* Asks before it is done, with the names of jobs that were selected. */
static void act_ask(web_visit *visit, const look_verb *verb, const char *pressed, const char *what,
                    const char *ids, long count)
{
    app_text *out = &visit->out, label = {0};
    const struct act *act = act_of(verb);

    if (count < 0) app_format(&label, "%s %s", verb->label, "an unknown number of");
    else app_format(&label, "%.*s %s%ld", (int)strcspn(verb->label, " "), verb->label,
                    count >= BULK_MOST ? "at least " : "", count);
    app_format(&label, " %.*s", (int)strlen(act->things) - (count == 1 && !act->count),
               act->things);
    page_begin(visit, "", label.ptr);
    html(out, "<p>%s.</p><p role=alert class=\"said warn\">%s</p>", what, act->warn);
    act_sure(visit, verb, pressed, label.ptr);
    if (ids != NULL) {
        const char *values[WEB_VALUES] = {ids};
        PGresult *res = web_ask(visit, "SELECT 'jobs', NULL, id, state, queue, kind, priority, "
            "attempt, " WHEN("enqueued_at") ", " WHEN("coalesce(finished_at, claimed_at, run_at)")
            ", key, left(errors -> -1 ->> 'error', 300) FROM jobq.jobs WHERE id = ANY "
            "($1::bigint[]) ORDER BY id DESC", 1, values);

        if (res != NULL) page_table(visit->web, out, &look_tables[LOOK_JOBS], res, NULL);
        PQclear(res);
    }
    app_put(out, "</main></body></html>");
    free(label.ptr);
}

/* What the answer of a verb means. */
static void act_answer(const look_verb *verb, const PGresult *res, app_text *said)
{
    const char *n = PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : "";
    const char *none = act_of(verb)->none;

    if (look_takes_ids(verb)) {
        app_format(said, "%s of %s", n, PQgetvalue(res, 0, 1));
        if (!PQgetisnull(res, 0, 2)) app_format(said, " (%s)", PQgetvalue(res, 0, 2));
    } else if (none != NULL && (PQgetisnull(res, 0, 0) || strcmp(n, "f") == 0)) {
        app_format(said, "nothing was done: %s", none);
    } else {
        app_put(said, n[0] == '\0' || strcmp(n, "t") == 0 ? "done" : n);
    }
}

/* Does it, in one transaction. */
static void act_now(web_visit *visit, const look_verb *verb, const char *object,
                    const char *what, const char *const *values)
{
    app_text sql = {0}, said = {0};
    web_trouble trouble = {0};
    PGresult *res, *was = NULL;

    if (act_of(verb)->was != NULL) was = web_ask(visit, act_of(verb)->was, 1, &object);
    if (was != NULL && PQntuples(was) > 0)
        app_format(&said, "nothing was done: %s", PQgetvalue(was, 0, 0));
    PQclear(was);
    if (visit->error[0] == '\0' && said.len == 0) {
        app_format(&sql, !look_takes_ids(verb) ? "%s" : "SELECT count(*) FILTER (WHERE answer IN ("
                   ACT_DONE ")), count(*), string_agg(DISTINCT answer, ', ') FILTER (WHERE answer "
                   "NOT IN (" ACT_DONE ")) FROM (%s ORDER BY id) AS done (answer)", verb->sql);
        res = act_run(&visit->web->pages, visit->user, NULL, sql.ptr, values, &trouble);
        if (res == NULL) web_fail(visit, trouble.status, trouble.text);
        else act_answer(verb, res, &said);
        PQclear(res);
        free(sql.ptr);
    }
    if (said.len > 0) act_say(visit, act_back(visit), what, said.ptr);
    free(said.ptr);
}

/* Does it in steps. What takes longer than a second is shown on a page of its own. */
static void act_in_steps(web_visit *visit, const look_verb *verb, const char *what, long total,
                         const char *const *values)
{
    web_bulk *b = bulk_start(visit, verb, what, total, values);
    app_text said = {0};
    bool ended;

    if (b == NULL) {
        web_fail(visit, 503, "Too much is being done in bulk: wait until some of it has ended.");
        return;
    }
    pthread_mutex_lock(&visit->web->mutex);
    ended = b->state >= BULK_ENDED;
    bulk_said(b, &said);
    pthread_mutex_unlock(&visit->web->mutex);
    act_say(visit, ended ? act_back(visit) : "/bulk", what, said.ptr);
    free(said.ptr);
}

static void act_stop(web_visit *visit, long number)
{
    web_bulk *b = &visit->web->bulks[number % WEB_BULKS];

    pthread_mutex_lock(&visit->web->mutex);
    if (b->number == number) b->stop = true;
    pthread_mutex_unlock(&visit->web->mutex);
    act_say(visit, "/bulk", "Stop", "it ends after the step that it does now");
}

/* Does what the pressed button says, or asks first, then sends the browser back to the page. */
static void web_do(web_visit *visit)
{
    const char *pressed = web_field(visit, "do"), *values[WEB_VALUES] = {NULL}, *object;
    size_t len = strcspn(pressed, " ");
    const look_verb *verb = look_verb_find(pressed, len);
    bool sure = web_field(visit, "sure")[0] != '\0', ids, steps;
    app_text list = {0}, what = {0};
    long count = 0;
    int i;

    if (strncmp(pressed, "stop ", 5) == 0) {
        act_stop(visit, atol(pressed + 5));
        return;
    }
    if (verb == NULL || strcmp(verb->form, web_field(visit, "form")) != 0) {
        web_fail(visit, 400, "This form has no such button.");
        return;
    }
    for (i = 0; i < PAGE_FILTERS; i++) {
        visit->args[i] = web_field(visit, web_filters[i][0]);
        values[i + 1] = visit->args[i][0] == '\0' ? NULL : visit->args[i];
    }
    object = pressed[len] == ' ' ? pressed + len + 1 : "";
    ids = look_takes_ids(verb);
    steps = act_is_for_all(verb) || act_of(verb)->count != NULL;
    if (ids) count = act_ids(visit, &list);
    else if (steps) count = act_count(visit, verb, object, values);
    values[0] = ids ? list.ptr : object;
    for (i = 0; i < (int)(sizeof web_values / sizeof web_values[0]); i++)
        if (strcmp(web_values[i].verb, verb->name) == 0 && web_field(visit, web_values[i].field)[0])
            values[6 + i] = web_field(visit, web_values[i].field);
    act_what(visit, verb, object, &what);
    if (visit->error[0] == '\0') {
        if ((ids || steps) && count == 0)
            act_say(visit, act_back(visit), what.ptr, ids ? "nothing was done: no job was selected"
                    : "nothing was done: there is none");
        else if (act_of(verb)->warn != NULL && !sure)
            act_ask(visit, verb, pressed, what.ptr, ids ? list.ptr : NULL, count);
        else if (!web_token_use(visit, true))
            web_fail(visit, 409, "This form was used before, so nothing was done now. Go back and "
                     "reload the page, if you want to do it again.");
        else if (steps) act_in_steps(visit, verb, what.ptr, count, values);
        else act_now(visit, verb, object, what.ptr, values);
        if (visit->status == 400) web_token_use(visit, false);
        if (visit->status == 400 && values[0] == object) act_again(visit, verb, pressed, what.ptr);
    }
    free(list.ptr);
    free(what.ptr);
}
