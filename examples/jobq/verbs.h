/*
 * verbs.h -- the plain verbs of jobq that are more than one statement; the others are only in the
 * table in jobq.c. Each does what SQL's function of its name does.
 */

/* ---- migrate --------------------------------------------------------------------------------- */

static void tell_log(void *user, jobq_pg_level level, const char *message)
{
    const app *a = user;

    if (level <= JOBQ_PG_WARNING) fprintf(stderr, "jobq: %s\n", message);
    else if (level == JOBQ_PG_INFO && !a->json) fprintf(stderr, "%s\n", message);
}

static int exit_code(jobq_error code, const jobq_pg_error *error)
{
    if (code == JOBQ_OK) return APP_OK;
    app_say(0, "%s", error->message);
    if (strstr(error->message, "run jobq_pg_migrate") != NULL)
        fprintf(stderr, "  In a shell that is: jobq migrate\n");
    return code == JOBQ_ERROR_CONNECTION ? APP_SERVER : APP_NO;
}

/* The SQL that is missing, as migrate would send it. */
static jobq_error print_migrations(jobq_pg *pg, PGconn *conn, jobq_pg_error *error)
{
    const jobq_pg__migration *file;
    bool citus;
    int version, library_min;
    jobq_error code = jobq_pg__version(pg, conn, &version, &library_min, &citus, error);
    size_t i;

    for (i = 0; code == JOBQ_OK && (file = jobq_pg__file(i)) != NULL; i++) {
        char *generic = app_need(jobq_pg__join(file->strings));
        char *sql = app_need(jobq_pg__for_schema(generic, jobq_pg_schema(pg)));

        if (file->version > version) printf("-- %s\n\n%s\n", file->name, sql);
        free(sql);
        free(generic);
    }
    return code;
}

static int do_migrate(app *a)
{
    jobq_pg_desc desc = {.conninfo = a->conninfo, .schema = a->schema, .log = tell_log, .user = a};
    bool print = app_value(a, "print") != NULL;
    jobq_pg_error error;
    jobq_error code;
    jobq_pg *pg;

    code = jobq_pg_open(&pg, &desc, &error);
    if (code != JOBQ_OK) return exit_code(code, &error);
    if (print) code = print_migrations(pg, a->conn, &error);
    else if (app_value(a, "check") != NULL) code = jobq_pg_check(pg, NULL, &error);
    else code = jobq_pg_migrate(pg, &error);
    jobq_pg_close(pg);
    if (code != JOBQ_OK || print) return exit_code(code, &error);
    return app_rows(a, "SELECT version, library_min FROM jobq.meta", 0, NULL);
}

/* ---- show ------------------------------------------------------------------------------------ */

/* The columns of a view that the role may read, in order. The caller frees it. NULL: it failed. */
static char *readable_columns(app *a, const char *view)
{
    const char *values[] = {a->schema, view};
    PGresult *res = app_query(a,
        "SELECT coalesce(string_agg(quote_ident(attname), ', ' ORDER BY attnum), '*')"
        " FROM pg_attribute WHERE attrelid = to_regclass(format('%I.%I', $1::text, $2::text))"
        " AND attnum > 0 AND has_column_privilege(attrelid, attnum, 'SELECT')", 2, values);
    app_text text = {0};

    if (res == NULL) return NULL;
    app_put(&text, PQgetvalue(res, 0, 0));
    PQclear(res);
    return text.ptr;
}

/* The first row: each column that says something in a line of its own. */
static void print_row(app *a, const PGresult *res)
{
    app_text cell = {0};
    int i;

    for (i = 0; i < PQnfields(res); i++) {
        if (PQgetisnull(res, 0, i)) continue;
        cell.len = 0;
        app_put(&cell, "");
        app_cell(&cell, PQgetvalue(res, 0, i), PQclientEncoding(a->conn));
        printf("%-20s | %s\n", PQfname(res, i), cell.ptr);
    }
    free(cell.ptr);
}

static int do_show(app *a)
{
    const char *const *id = (const char *const *)a->argv;
    app_text sql = {0};
    char *columns = readable_columns(a, "jobs");
    PGresult *res;
    int code;

    if (columns == NULL) return app_failed(a);
    app_put(&sql, a->json ? "SELECT to_jsonb(j) || jsonb_build_object('why', ARRAY(SELECT reason"
                            " FROM jobq.explain_job($1)), 'ties', (SELECT jsonb_agg("
                            "jsonb_strip_nulls(to_jsonb(t))) FROM jobq.job_ties($1) t)) FROM ("
                            "SELECT " : "SELECT ");
    app_put(&sql, columns);
    app_put(&sql, " FROM jobq.jobs WHERE id = $1::bigint");
    if (a->json) app_put(&sql, ") AS j");
    res = app_query(a, sql.ptr, 1, id);
    free(sql.ptr);
    free(columns);
    if (res == NULL) return app_failed(a);
    code = PQntuples(res) == 1 ? APP_OK : app_say(APP_NO, "no job has the id %s now", *id);
    if (code == APP_OK && a->json) puts(PQgetvalue(res, 0, 0));
    else if (code == APP_OK) print_row(a, res);
    PQclear(res);
    if (code != APP_OK || a->json) return code;
    printf("\n");
    code = app_rows(a, "SELECT reason AS why, until FROM jobq.explain_job($1)", 1, id);
    if (code != APP_OK) return code;
    res = app_query(a, "SELECT tie, id, name, kind, state FROM jobq.job_ties($1)", 1, id);
    if (res == NULL) return app_failed(a);
    if (PQntuples(res) > 0) printf("\n"), app_table(a, res);
    else PQclear(res);
    return APP_OK;
}

/* ---- verbs that change jobs: some by id, or all that match ----------------------------------- */

/* Runs a statement until it answers 0, in steps that are committed each; once: one step. */
static int repeat(app *a, const app_call *call, bool once)
{
    long total = 0, requested = 0, step = 1;
    const char *done = a->verb->done;
    bool asks = false;
    PGresult *res;

    while (step > 0 && (res = app_query(a, call->sql.ptr, call->count, call->values)) != NULL) {
        long asked;

        asks = PQnfields(res) > 1;
        asked = asks ? atol(PQgetvalue(res, 0, 1)) : 0;
        step = atol(PQgetvalue(res, 0, 0)) + asked;
        total += step - asked;
        requested += asked;
        if (once) step = 0;
        app_progress("%s %ld", done, total);
        PQclear(res);
    }
    app_progress(NULL);
    if (step > 0 && total + requested == 0) return app_failed(a);
    printf(a->json ? "{\"%s\": %ld" : "%s %ld", done, total);
    if (asks) printf(a->json ? ", \"requested\": %ld" : ", requested %ld", requested);
    printf(a->json ? "}\n" : "\n");
    return step > 0 ? app_failed(a) : APP_OK;
}

static int do_repeat(app *a)
{
    app_call call = {0};
    int code;

    app_fill(a, &call, a->verb->sql);
    code = repeat(a, &call, false);
    free(call.sql.ptr);
    return code;
}

enum { OWN_OPTION = 5 }; /* the option of a verb that follows those of the filter */

/* One job. Writes what became of it. */
static int change_one(app *a, const char *id)
{
    app_call call = {0};
    const char *answer;
    PGresult *res;
    int code;

    app_put(&call.sql, a->verb->sql);
    app_parameter(&call, id);
    app_put(&call.sql, "::bigint");
    app_given(a, &call, OWN_OPTION);
    app_put(&call.sql, ")");
    res = app_query(a, call.sql.ptr, call.count, call.values);
    free(call.sql.ptr);
    if (res == NULL) return app_failed(a);
    answer = PQgetvalue(res, 0, 0);
    printf(a->json ? "{\"id\": %lld, \"answer\": \"%s\"}\n" : "%lld %s\n", atoll(id), answer);
    code = strcmp(answer, a->verb->done) == 0 || strcmp(answer, "requested") == 0 ? APP_OK
                                                                                  : APP_NO;
    PQclear(res);
    return code;
}

/* All that match, in steps of 1000; with --at-most, one step. */
static int change_all(app *a)
{
    app_call call = {0};
    int code;

    app_put(&call.sql, a->verb->sql);
    app_given(a, &call, 0);
    app_put(&call.sql, ")");
    code = repeat(a, &call, app_value(a, "at-most") != NULL);
    free(call.sql.ptr);
    return code;
}

/* An instant that stays the same for all steps. The caller frees it. */
static char *instant(app *a, const char *run_at)
{
    PGresult *res = app_query(a, "SELECT coalesce($1::timestamptz, now())", 1, &run_at);
    app_text text = {0};

    if (res == NULL) return NULL;
    app_put(&text, PQgetvalue(res, 0, 0));
    PQclear(res);
    return text.ptr;
}

static int do_change(app *a)
{
    const char *own = a->verb->options[OWN_OPTION].name, **value = &a->values[OWN_OPTION];
    bool queue = a->values[0] != NULL, filter = false, needed;
    char *at = NULL;
    int code = APP_OK, one, i;

    for (i = 1; i < OWN_OPTION; i++) filter = filter || a->values[i] != NULL;
    if (own != NULL && strcmp(own, "state") == 0) filter = filter || *value != NULL;
    if ((a->argc > 0) == queue || (a->argc > 0 && filter))
        return app_say(APP_USAGE, "%s takes either ids, or --queue and filters", a->verb->name);
    needed = own != NULL && strcmp(own, "run-at") != 0 &&
             (strcmp(own, "state") != 0 || (queue && strcmp(a->verb->name, "delete") == 0));
    if (needed && *value == NULL)
        return app_say(APP_USAGE, "%s needs --%s", a->verb->name, own);
    if (own != NULL && strcmp(own, "run-at") == 0) {
        *value = at = instant(a, *value);
        if (at == NULL) return app_failed(a);
    }
    if (a->argc == 0) code = change_all(a);
    for (i = 0; i < a->argc && code != APP_SERVER; i++) {
        one = change_one(a, a->argv[i]);
        if (one != APP_OK) code = one;
    }
    free(at);
    return code;
}

/* ---- drain ----------------------------------------------------------------------------------- */

/* Waits until the queue has no job that is due or running, or with --ended no live job at all. */
static int do_drain(app *a)
{
    const char *values[] = {a->argv[0], app_value(a, "ended")};
    const struct timespec nap = {0, 500000000};
    long left = 1, half, seconds = app_count("timeout", app_value(a, "timeout"), 0, 1000000000);
    bool warned = false;
    PGresult *res;

    if (seconds < 0) return APP_USAGE;
    for (half = 0;; half++) {
        res = app_query(a,
            "SELECT ready + running + suspects + CASE WHEN $2::boolean THEN scheduled + parked"
            " ELSE 0 END, ready, running, scheduled, workers FROM jobq.queues WHERE queue = $1",
            2, values);
        if (res == NULL) return app_failed(a);
        if (PQntuples(res) == 0) {
            PQclear(res);
            return app_say(APP_NO, "no queue is called %s", values[0]);
        }
        left = atol(PQgetvalue(res, 0, 0));
        app_progress("%s: ready %s, running %s, scheduled %s", values[0], PQgetvalue(res, 0, 1),
                     PQgetvalue(res, 0, 2), PQgetvalue(res, 0, 3));
        if (left > 0 && !warned && strcmp(PQgetvalue(res, 0, 4), "0") == 0)
            warned = app_say(true, "no living worker serves %s", values[0]);
        PQclear(res);
        if (left == 0 || half >= 2 * seconds) break;
        nanosleep(&nap, NULL);
    }
    app_progress(NULL);
    if (a->json) printf("{\"left\": %ld}\n", left);
    return left == 0 ? APP_OK : app_say(APP_NO, "%s is not empty: %ld jobs", values[0], left);
}

/* ---- flow show ------------------------------------------------------------------------------- */

/* Writes a flow as a graph of text: each job below those that it waits for, and further right. */
static void print_graph(app *a, const PGresult *res)
{
    int count = PQntuples(res), encoding = PQclientEncoding(a->conn), i, layer, left = count;
    look_node *nodes = app_need(calloc((size_t)count + 1, sizeof *nodes));
    app_text cell = {0};

    for (i = 0; i < count; i++) {
        nodes[i].id = atoll(PQgetvalue(res, i, 0));
        nodes[i].after = PQgetvalue(res, i, 4);
    }
    look_layers(nodes, count);
    for (layer = 0; left > 0; layer++) {
        for (i = 0; i < count; i++) {
            if (nodes[i].layer != layer) continue;
            left--;
            cell.len = 0;
            app_put(&cell, "");
            app_cell(&cell, PQgetvalue(res, i, 1), encoding);
            printf("%*s%lld %s %s %s%s%s\n", 2 * layer, "", nodes[i].id, PQgetvalue(res, i, 3),
                   PQgetvalue(res, i, 2), cell.ptr, nodes[i].after[0] == '\0' ? "" : "  after ",
                   nodes[i].after);
        }
    }
    free(cell.ptr);
    free(nodes);
}

static int do_flow_show(app *a)
{
    const char *const *id = (const char *const *)a->argv;
    PGresult *res;

    if (a->json)
        return app_rows(a, "SELECT * FROM jobq.flow_graph($1) ORDER BY job_id", 1, id);
    res = app_query(a, "SELECT id AS flow, name, state, format('%s: %s succeeded, %s failed, %s"
                       " cancelled', jobs, succeeded, failed, cancelled) AS jobs, on_failure"
                       " FROM jobq.flows WHERE id = $1::bigint", 1, id);
    if (res == NULL) return app_failed(a);
    if (PQntuples(res) == 0) {
        PQclear(res);
        return app_say(APP_NO, "no flow has the id %s now", *id);
    }
    print_row(a, res);
    printf("\n");
    PQclear(res);
    res = app_query(a, "SELECT job_id, coalesce(name, ''), kind, state, array_to_string(after, ' ')"
                       " FROM jobq.flow_graph($1) ORDER BY job_id", 1, id);
    if (res == NULL) return app_failed(a);
    print_graph(a, res);
    PQclear(res);
    return APP_OK;
}

/* ---- export ---------------------------------------------------------------------------------- */

/* Writes what COPY sends. Returns the exit code. */
static int copy_out(app *a, FILE *to)
{
    long lines = 0, len;
    char *line;
    PGresult *res;
    bool written = true;
    int code;

    while ((len = PQgetCopyData(a->conn, &line, 0)) > 0) {
        written = written && fwrite(line, 1, (size_t)len, to) == (size_t)len;
        PQfreemem(line);
        if (++lines % 1000 == 0) app_progress("%ld rows", lines);
    }
    app_progress(NULL);
    res = PQgetResult(a->conn);
    code = app_check(a, res) ? APP_OK : app_failed(a);
    PQclear(res);
    if (code != APP_OK || (written && fflush(to) == 0)) return code;
    return app_say(APP_NO, "cannot write: %s", strerror(errno));
}

/* Sends a COPY of the rows of a view, and writes what comes. */
static int copy_rows(app *a, const app_text *rows, FILE *to)
{
    app_text sql = {0};
    char *text;
    PGresult *res;
    int code;

    app_put(&sql, a->json ? "COPY (SELECT row_to_json(j) FROM (SELECT " : "COPY (SELECT ");
    app_put(&sql, rows->ptr);
    /* A JSON text holds neither of these two bytes, so that nothing in it is quoted. */
    app_put(&sql, a->json ? ") AS j) TO STDOUT (FORMAT csv, QUOTE E'\\x01', DELIMITER E'\\x02')"
                          : ") TO STDOUT (FORMAT csv, HEADER)");
    text = app_sql(a, sql.ptr);
    res = PQexec(a->conn, text);
    code = app_check(a, res) ? copy_out(a, to) : app_failed(a);
    PQclear(res);
    free(text);
    free(sql.ptr);
    return code;
}

static int run_plain(app *a, const char *sql)
{
    PGresult *res = app_query(a, sql, 0, NULL);

    PQclear(res);
    return res == NULL ? app_failed(a) : APP_OK;
}

/* What was written is on the disk, and so is its name. */
static int keep_file(FILE *file, const char *temporary, const char *path, const char *folder)
{
    int fd = open(folder, O_RDONLY);
    bool good = fflush(file) == 0 && fsync(fileno(file)) == 0;

    good = fclose(file) == 0 && good && rename(temporary, path) == 0 && fd >= 0 && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    return good ? APP_OK : app_say(APP_NO, "cannot write %s: %s", path, strerror(errno));
}

static int export_file(app *a, const char *slot, const char *temporary, const char *path,
                       const char *folder)
{
    char *columns = readable_columns(a, "ended");
    FILE *file = fopen(temporary, "w");
    app_text rows = {0};
    int code;

    if (file == NULL) {
        free(columns);
        return app_say(APP_NO, "cannot write %s: %s", temporary, strerror(errno));
    }
    app_put(&rows, columns == NULL ? "*" : columns);
    app_put(&rows, " FROM jobq.ended WHERE slot = ");
    app_put(&rows, slot);
    code = copy_rows(a, &rows, file);
    if (code == APP_OK) code = keep_file(file, temporary, path, folder);
    else fclose(file);
    if (code != APP_OK) remove(temporary);
    free(rows.ptr);
    free(columns);
    return code;
}

/* Writes one finished part of history, in a transaction that also notes that it was written. If
 * the program dies before the commit, the next export writes the same file again. */
static int export_part(app *a, const char *folder, bool *any)
{
    char path[4096], temporary[4100];
    const char *part[2];
    PGresult *res;
    int code = run_plain(a, "BEGIN");

    *any = false;
    if (code != APP_OK) return code;
    res = app_query(a, "SELECT retention, part, slot FROM jobq.export_next()", 0, NULL);
    if (res == NULL) return app_failed(a);
    if (PQntuples(res) == 0) {
        PQclear(res);
        return run_plain(a, "COMMIT");
    }
    part[0] = PQgetvalue(res, 0, 0);
    part[1] = PQgetvalue(res, 0, 1);
    snprintf(path, sizeof path, "%s/%s-%s-%s.%s", folder, a->schema, part[0], part[1],
             a->json ? "jsonl" : "csv");
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    code = export_file(a, PQgetvalue(res, 0, 2), temporary, path, folder);
    if (code == APP_OK) {
        PGresult *done = app_query(a, "SELECT jobq.export_done($1, $2)", 2, part);
        code = done == NULL ? app_failed(a) : run_plain(a, "COMMIT");
        PQclear(done);
    }
    if (code == APP_OK) printf("%s\n", path);
    *any = code == APP_OK;
    PQclear(res);
    return code;
}

static int do_export(app *a)
{
    static const char *const filters[] = {"queue = ", "kind = ", "state = ", "finished_at >= ",
                                          "finished_at < "}; /* as the options */
    const char *folder = a->values[5];
    app_text sql = {0};
    char *columns;
    bool any = true;
    int code = APP_OK, i;

    for (i = 0; folder != NULL && i < 5; i++) {
        if (a->values[i] != NULL)
            return app_say(APP_USAGE, "export --parts writes whole parts: no filters");
    }
    while (folder != NULL && code == APP_OK && any) code = export_part(a, folder, &any);
    if (folder != NULL) return code;
    columns = readable_columns(a, "jobs");
    if (columns == NULL) return app_failed(a);
    app_put(&sql, columns);
    app_put(&sql, " FROM jobq.jobs WHERE finished_at IS NOT NULL");
    for (i = 0; i < 5; i++) {
        const char *value = a->values[i];
        char *literal; /* COPY takes no parameters */

        if (value == NULL) continue;
        literal = app_need(PQescapeLiteral(a->conn, value, strlen(value)));
        app_put(&sql, " AND ");
        app_put(&sql, filters[i]);
        app_put(&sql, literal);
        PQfreemem(literal);
    }
    code = copy_rows(a, &sql, stdout);
    free(sql.ptr);
    free(columns);
    return code;
}
