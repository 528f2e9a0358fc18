/*
 * verbs.h -- the plain verbs of jobq. Each does what SQL's function of its name does; its options
 * are that function's arguments.
 */

/* Runs the call, writes its rows, and frees it. Returns the exit code. */
static int run_call(app *a, app_call *call, const char *end)
{
    int code;

    app_put(&call->sql, end);
    code = app_rows(a, call->sql.ptr, call->count, call->values);
    free(call->sql.ptr);
    return code;
}

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
    return app_say(code == JOBQ_ERROR_CONNECTION ? APP_SERVER : APP_NO, "%s", error->message);
}

/* The SQL that is missing, as migrate would send it. */
static jobq_error print_migrations(jobq_pg *pg, PGconn *conn, jobq_pg_error *error)
{
    const jobq_pg__migration *file;
    int version, library_min;
    jobq_error code = jobq_pg__version(pg, conn, &version, &library_min, error);
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

static int do_migrate(app *a, int argc, char **argv)
{
    const char *check = NULL, *print = NULL;
    const app_option options[] = {{"check", &check, app_flag}, {"print", &print, app_flag}, {0}};
    jobq_pg_desc desc = {.conninfo = a->conninfo, .schema = a->schema, .log = tell_log, .user = a};
    jobq_pg_error error;
    jobq_error code;
    jobq_pg *pg;

    if (!app_options(&argc, argv, options, 0, 0)) return APP_USAGE;
    code = jobq_pg_open(&pg, &desc, &error);
    if (code != JOBQ_OK) return exit_code(code, &error);
    if (print != NULL) code = print_migrations(pg, a->conn, &error);
    else if (check != NULL) code = jobq_pg_check(pg, NULL, &error);
    else code = jobq_pg_migrate(pg, &error);
    jobq_pg_close(pg);
    if (code != JOBQ_OK || print != NULL) return exit_code(code, &error);
    return app_rows(a, "SELECT version, library_min FROM jobq.meta", 0, NULL);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* All of standard input. The caller frees it. */
static char *read_input(void)
{
    app_text text = {0};
    char part[4096];
    size_t got;

    app_put(&text, "");
    while ((got = fread(part, 1, sizeof part, stdin)) > 0) app_add(&text, part, got);
    return text.ptr;
}

static int do_enqueue(app *a, int argc, char **argv)
{
    const char *v[11] = {NULL};
    const app_option options[] = {
        {"delay", &v[0], "interval"}, {"run_at", &v[1], "timestamptz"},
        {"priority", &v[2], "integer"}, {"key", &v[3], "text"},
        {"line", &v[4], "text"}, {"stages", &v[5], "integer"},
        {"max_attempts", &v[6], "integer"}, {"timeout", &v[7], "interval"},
        {"headers", &v[8], "jsonb"}, {"on_known", &v[9], "text"},
        {"unique_for", &v[10], "text"}, {0}};
    app_call call = {0};
    char *input = NULL;
    int code;

    if (!app_options(&argc, argv, options, 2, 3)) return APP_USAGE;
    if (argc == 3 && strcmp(argv[2], "-") == 0) input = read_input();
    app_put(&call.sql, "SELECT id, existed FROM jobq.enqueue_or_get(");
    app_argument(&call, "queue", "text", argv[0]);
    app_argument(&call, "kind", "text", argv[1]);
    app_argument(&call, "payload", "jsonb", input != NULL ? input : argc == 3 ? argv[2] : NULL);
    app_arguments(&call, options);
    code = run_call(a, &call, ")");
    free(input);
    return code;
}

static int do_list(app *a, int argc, char **argv)
{
    const char *v[8] = {NULL};
    const app_option options[] = {
        {"queue", &v[0], NULL}, {"kind", &v[1], NULL}, {"state", &v[2], NULL},
        {"key", &v[3], NULL}, {"line", &v[4], NULL}, {"older", &v[5], NULL},
        {"newer", &v[6], NULL}, {"limit", &v[7], NULL}, {0}};

    if (!app_options(&argc, argv, options, 0, 0)) return APP_USAGE;
    if (app_count("limit", v[7], 1, 20) < 0) return APP_USAGE;
    return app_rows(a,
        "SELECT id, queue, kind, state, priority, stage, attempt, enqueued_at, run_at, finished_at,"
        " key, line, errors -> -1 ->> 'error' AS error FROM jobq.jobs"
        " WHERE ($1::text IS NULL OR queue = $1) AND ($2::text IS NULL OR kind = $2)"
        " AND ($3::text IS NULL OR state = $3) AND ($4::text IS NULL OR key = $4)"
        " AND ($5::text IS NULL OR line = $5)"
        " AND ($6::interval IS NULL OR enqueued_at < now() - $6)"
        " AND ($7::interval IS NULL OR enqueued_at >= now() - $7)"
        " ORDER BY id DESC LIMIT coalesce($8::bigint, 20)", 8, v);
}

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

/* A job: each column that says something in a line of its own. */
static void print_job(app *a, const PGresult *res)
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

static int do_show(app *a, int argc, char **argv)
{
    const app_option none = {0};
    const char *const *id = (const char *const *)argv;
    app_text sql = {0};
    char *columns;
    PGresult *res;
    int code;

    if (!app_options(&argc, argv, &none, 1, 1)) return APP_USAGE;
    columns = readable_columns(a, "jobs");
    if (columns == NULL) return app_failed(a);
    app_put(&sql, a->json ? "SELECT to_jsonb(j) || jsonb_build_object('why', ARRAY(SELECT reason"
                            " FROM jobq.explain_job($1))) FROM (SELECT " : "SELECT ");
    app_put(&sql, columns);
    app_put(&sql, " FROM jobq.jobs WHERE id = $1::bigint");
    if (a->json) app_put(&sql, ") AS j");
    res = app_query(a, sql.ptr, 1, id);
    free(sql.ptr);
    free(columns);
    if (res == NULL) return app_failed(a);
    code = PQntuples(res) == 1 ? APP_OK : app_say(APP_NO, "no job has the id %s now", *id);
    if (code == APP_OK && a->json) puts(PQgetvalue(res, 0, 0));
    else if (code == APP_OK) print_job(a, res);
    PQclear(res);
    if (code != APP_OK || a->json) return code;
    printf("\n");
    return app_rows(a, "SELECT reason AS why, until FROM jobq.explain_job($1)", 1, id);
}

/* ---- verbs that change jobs: some by id, or all that match ----------------------------------- */

/* One job. Writes what became of it. */
static int change_one(app *a, const char *verb, const char *done, const char *id,
                      const app_option *own)
{
    app_call call = {0};
    const char *answer;
    PGresult *res;
    int code;

    app_put(&call.sql, "SELECT jobq.");
    app_put(&call.sql, verb);
    app_put(&call.sql, "(");
    app_argument(&call, "id", "bigint", id);
    app_arguments(&call, own);
    app_put(&call.sql, ")");
    res = app_query(a, call.sql.ptr, call.count, call.values);
    free(call.sql.ptr);
    if (res == NULL) return app_failed(a);
    answer = PQgetvalue(res, 0, 0);
    printf(a->json ? "{\"id\": %lld, \"answer\": \"%s\"}\n" : "%lld %s\n", atoll(id), answer);
    code = strcmp(answer, done) == 0 || strcmp(answer, "requested") == 0 ? APP_OK : APP_NO;
    PQclear(res);
    return code;
}

/* All that match, in steps of 1000 that are committed each; with --at-most, one step. */
static int change_all(app *a, const char *verb, const char *done, const app_option *options,
                      bool once)
{
    long total = 0, requested = 0, step = 1;
    app_call call = {0};
    PGresult *res;

    app_put(&call.sql, "SELECT * FROM jobq.");
    app_put(&call.sql, verb);
    app_put(&call.sql, "(");
    app_arguments(&call, options);
    app_put(&call.sql, ")");
    while (step > 0 && (res = app_query(a, call.sql.ptr, call.count, call.values)) != NULL) {
        long asked = PQnfields(res) > 1 ? atol(PQgetvalue(res, 0, 1)) : 0;

        step = atol(PQgetvalue(res, 0, 0)) + asked;
        total += step - asked;
        requested += asked;
        if (once) step = 0;
        app_progress("%s %ld", done, total);
        PQclear(res);
    }
    app_progress(NULL);
    free(call.sql.ptr);
    if (step > 0 && total + requested == 0) return app_failed(a);
    printf(a->json ? "{\"%s\": %ld" : "%s %ld", done, total);
    if (strcmp(verb, "cancel") == 0)
        printf(a->json ? ", \"requested\": %ld" : ", requested %ld", requested);
    printf(a->json ? "}\n" : "\n");
    return step > 0 ? app_failed(a) : APP_OK;
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

/* verb: SQL's function; done: what it answers; name, type: the argument that only it has. */
static int change(app *a, int argc, char **argv, const char *verb, const char *done,
                  const char *name, const char *type)
{
    const char *queue = NULL, *kind = NULL, *older = NULL, *tags = NULL, *at_most = NULL;
    const char *own = NULL;
    const app_option options[] = {
        {"queue", &queue, "text"}, {"kind", &kind, "text"},
        {"older", &older, "interval"}, {"tags", &tags, "jsonb"},
        {"at_most", &at_most, "integer"}, {name, &own, type}, {0}};
    bool filter, by_state, timed;
    char *at = NULL;
    int code = APP_OK, one, i;

    if (!app_options(&argc, argv, options, 0, INT_MAX)) return APP_USAGE;
    by_state = name != NULL && strcmp(name, "state") == 0;
    timed = strcmp(verb, "reschedule") == 0;
    filter = kind || older || tags || at_most || (by_state && own);
    if ((argc > 0) == (queue != NULL) || (argc > 0 && filter))
        return app_say(APP_USAGE, "%s takes either ids, or --queue and filters", verb);
    if (name != NULL && own == NULL && !timed && !(by_state && (argc > 0 || verb[0] == 'c')))
        return app_say(APP_USAGE, "%s needs --%s", verb, name);
    if (timed) {
        own = at = instant(a, own);
        if (at == NULL) return app_failed(a);
    }
    if (argc == 0) code = change_all(a, verb, done, options, at_most != NULL);
    for (i = 0; i < argc && code != APP_SERVER; i++) {
        one = change_one(a, verb, done, argv[i], &options[5]);
        if (one != APP_OK) code = one;
    }
    free(at);
    return code;
}

static int do_cancel(app *a, int argc, char **argv)
{
    return change(a, argc, argv, "cancel", "cancelled", "state", "text");
}

static int do_revive(app *a, int argc, char **argv)
{
    return change(a, argc, argv, "revive", "revived", NULL, NULL);
}

static int do_delete(app *a, int argc, char **argv)
{
    return change(a, argc, argv, "delete", "deleted", "state", "text");
}

static int do_reschedule(app *a, int argc, char **argv)
{
    return change(a, argc, argv, "reschedule", "rescheduled", "run_at", "timestamptz");
}

static int do_prioritize(app *a, int argc, char **argv)
{
    return change(a, argc, argv, "prioritize", "prioritized", "priority", "integer");
}

static int do_move(app *a, int argc, char **argv)
{
    return change(a, argc, argv, "move", "moved", "target", "text");
}

/* ---- queues ---------------------------------------------------------------------------------- */

static int set_paused(app *a, int argc, char **argv, const char *sql, const char *done)
{
    const char *values[2] = {NULL};
    const app_option options[] = {{"kind", &values[1], NULL}, {0}};
    PGresult *res;

    if (!app_options(&argc, argv, options, 1, 1)) return APP_USAGE;
    values[0] = argv[0];
    res = app_query(a, sql, 2, values);
    if (res == NULL) return app_failed(a);
    PQclear(res);
    printf(a->json ? "{\"answer\": \"%s\"}\n" : "%s\n", done);
    return APP_OK;
}

static int do_pause(app *a, int argc, char **argv)
{
    return set_paused(a, argc, argv, "SELECT jobq.pause($1, $2)", "paused");
}

static int do_resume(app *a, int argc, char **argv)
{
    return set_paused(a, argc, argv, "SELECT jobq.resume($1, $2)", "resumed");
}

/* Waits until the queue has no job that is due or running, or with --ended no live job at all. */
static int do_drain(app *a, int argc, char **argv)
{
    const char *ended = NULL, *timeout = NULL, *values[2];
    const app_option options[] = {{"ended", &ended, app_flag}, {"timeout", &timeout, NULL}, {0}};
    const struct timespec nap = {0, 500000000};
    long left = 1, seconds, half;
    bool warned = false;
    PGresult *res;

    if (!app_options(&argc, argv, options, 1, 1)) return APP_USAGE;
    seconds = app_count("timeout", timeout, 0, 1000000000);
    if (seconds < 0) return APP_USAGE;
    values[0] = argv[0];
    values[1] = ended;
    for (half = 0;; half++) {
        res = app_query(a,
            "SELECT ready + running + suspects + CASE WHEN $2::boolean THEN scheduled + parked"
            " ELSE 0 END, ready, running, scheduled, workers FROM jobq.queues WHERE queue = $1",
            2, values);
        if (res == NULL) return app_failed(a);
        if (PQntuples(res) == 0) {
            PQclear(res);
            return app_say(APP_NO, "no queue is called %s", argv[0]);
        }
        left = atol(PQgetvalue(res, 0, 0));
        app_progress("%s: ready %s, running %s, scheduled %s", argv[0], PQgetvalue(res, 0, 1),
                     PQgetvalue(res, 0, 2), PQgetvalue(res, 0, 3));
        if (left > 0 && !warned && strcmp(PQgetvalue(res, 0, 4), "0") == 0)
            warned = app_say(true, "no living worker serves %s", argv[0]);
        PQclear(res);
        if (left == 0 || half >= 2 * seconds) break;
        nanosleep(&nap, NULL);
    }
    app_progress(NULL);
    return left == 0 ? APP_OK : app_say(APP_NO, "%s is not empty: %ld jobs", argv[0], left);
}

/* ---- schedules ------------------------------------------------------------------------------- */

/* SQL of one name. */
static int of_name(app *a, int argc, char **argv, const char *sql)
{
    const app_option none = {0};
    const char *name;

    if (!app_options(&argc, argv, &none, 1, 1)) return APP_USAGE;
    name = argv[0];
    return app_rows(a, sql, 1, &name);
}

static int schedule_set(app *a, int argc, char **argv)
{
    const char *v[12] = {NULL};
    const app_option options[] = {
        {"payload", &v[0], "jsonb"}, {"cron", &v[1], "text"},
        {"every", &v[2], "interval"}, {"zone", &v[3], "text"},
        {"missed", &v[4], "text"}, {"missed_within", &v[5], "interval"},
        {"overlap", &v[6], "text"}, {"spread", &v[7], "interval"},
        {"starts_at", &v[8], "timestamptz"}, {"ends_at", &v[9], "timestamptz"},
        {"priority", &v[10], "integer"}, {"headers", &v[11], "jsonb"}, {0}};
    app_call call = {0};

    if (!app_options(&argc, argv, options, 2, 3)) return APP_USAGE;
    app_put(&call.sql, "SELECT jobq.schedule(");
    app_argument(&call, "name", "text", argv[0]);
    app_argument(&call, "queue", "text", argv[1]);
    app_argument(&call, "kind", "text", argc == 3 ? argv[2] : NULL);
    app_arguments(&call, options);
    return run_call(a, &call, ") AS next_at");
}

static int schedule_preview(app *a, int argc, char **argv)
{
    const char *v[4] = {NULL};
    const app_option options[] = {
        {"zone", &v[0], "text"}, {"count", &v[1], "integer"},
        {"after", &v[2], "timestamptz"}, {"every", &v[3], "interval"}, {0}};
    app_call call = {0};

    if (!app_options(&argc, argv, options, 0, 1)) return APP_USAGE;
    app_put(&call.sql, "SELECT local, at FROM jobq.schedule_preview(");
    app_argument(&call, "cron", "text", argc == 1 ? argv[0] : NULL);
    app_arguments(&call, options);
    return run_call(a, &call, ")");
}

static int do_schedule(app *a, int argc, char **argv)
{
    static const struct { const char *name, *sql; } of[] = {
        {"run", "SELECT jobq.schedule_run($1) AS id"},
        {"drop", "SELECT jobq.schedule_drop($1) AS dropped"},
        {"pause", "SELECT 'paused' AS answer FROM jobq.schedule_pause($1)"},
        {"resume", "SELECT jobq.schedule_resume($1) AS next_at"}};
    size_t i;

    if (argc == 0 || strcmp(argv[0], "list") == 0) {
        return app_rows(a, "SELECT name, queue, kind, calendar, zone, next_at, last_at, last_state,"
                           " why FROM jobq.schedules ORDER BY name", 0, NULL);
    }
    if (strcmp(argv[0], "set") == 0) return schedule_set(a, argc - 1, argv + 1);
    if (strcmp(argv[0], "preview") == 0) return schedule_preview(a, argc - 1, argv + 1);
    for (i = 0; i < sizeof of / sizeof of[0]; i++) {
        if (strcmp(argv[0], of[i].name) == 0) return of_name(a, argc - 1, argv + 1, of[i].sql);
    }
    return app_say(APP_USAGE, "schedule has no %s: jobq help schedule", argv[0]);
}

/* ---- outbox ---------------------------------------------------------------------------------- */

/* Enqueues dead letters again, at the end of their partitions, and ends them, all at once. */
#define REPLAY \
    "WITH token AS MATERIALIZED (SELECT (random() * 9e15)::bigint + 1 AS token)," \
    " letter AS MATERIALIZED (SELECT l.id FROM token, LATERAL jobq.dead_letter_replay(token," \
    " 60000000, queue => $1, partition => $2::integer, type => $3," \
    " at_most => coalesce($4::integer, 100)) l)," \
    " again AS MATERIALIZED (SELECT d.id, jobq.outbox_enqueue(d.queue, d.payload," \
    " partition => d.partition, type => d.type, bytes => d.bytes, headers => d.headers)" \
    " FROM letter JOIN jobq.dead_letters d USING (id))" \
    " SELECT jobq.dead_letter_resolve(token, ids) AS replayed FROM token," \
    " (SELECT coalesce(array_agg(id), '{}') AS ids FROM again) AS a"

static int do_outbox(app *a, int argc, char **argv)
{
    static const struct { const char *name, *sql; } of[] = {
        {"list", "SELECT id, queue, partition, seq, status, attempts, failed_at, type, error"
                 " FROM jobq.dead_letters WHERE ($1::text IS NULL OR queue = $1)"
                 " AND ($2::integer IS NULL OR partition = $2) AND ($3::text IS NULL OR type = $3)"
                 " ORDER BY id DESC LIMIT coalesce($4::integer, 20)"},
        {"replay", REPLAY},
        {"discard", "SELECT jobq.dead_letter_discard($1, $2, $3, $4) AS discarded"}};
    const char *v[4] = {NULL};
    const app_option options[] = {{"partition", &v[1], NULL}, {"type", &v[2], NULL},
                                  {"at_most", &v[3], NULL}, {0}};
    size_t i;

    if (argc == 0) {
        return app_rows(a, "SELECT queue, partition, lag, age, mode, attempts, holder,"
                           " dead_letters, error FROM jobq.outbox ORDER BY 1, 2", 0, NULL);
    }
    for (i = 0; i < sizeof of / sizeof of[0]; i++) {
        if (strcmp(argv[0], of[i].name) != 0) continue;
        argc--, argv++;
        if (!app_options(&argc, argv, options, i > 0, 1)) return APP_USAGE;
        if (argc > 0) v[0] = argv[0];
        return app_rows(a, of[i].sql, 4, v);
    }
    return app_say(APP_USAGE, "outbox has no %s: jobq help outbox", argv[0]);
}

/* ---- export ---------------------------------------------------------------------------------- */

/* COPY takes no parameters: the value is written into the statement. */
static void put_filter(app *a, app_text *sql, const char *before, const char *value,
                       const char *after)
{
    char *literal;

    if (value == NULL) return;
    literal = app_need(PQescapeLiteral(a->conn, value, strlen(value)));
    app_put(sql, before);
    app_put(sql, literal);
    app_put(sql, after);
    PQfreemem(literal);
}

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

static int do_export(app *a, int argc, char **argv)
{
    const char *queue = NULL, *kind = NULL, *state = NULL, *since = NULL, *until = NULL;
    const char *parts = NULL;
    const app_option options[] = {
        {"queue", &queue, NULL}, {"kind", &kind, NULL}, {"state", &state, NULL},
        {"since", &since, NULL}, {"until", &until, NULL}, {"parts", &parts, NULL}, {0}};
    app_text sql = {0};
    char *columns;
    bool any = true;
    int code = APP_OK;

    if (!app_options(&argc, argv, options, 0, 0)) return APP_USAGE;
    if (parts != NULL) {
        if (queue != NULL || kind != NULL || state != NULL || since != NULL || until != NULL)
            return app_say(APP_USAGE, "export --parts writes whole parts: no filters");
        while (code == APP_OK && any) code = export_part(a, parts, &any);
        return code;
    }
    columns = readable_columns(a, "jobs");
    if (columns == NULL) return app_failed(a);
    app_put(&sql, columns);
    app_put(&sql, " FROM jobq.jobs WHERE finished_at IS NOT NULL");
    put_filter(a, &sql, " AND queue = ", queue, "");
    put_filter(a, &sql, " AND kind = ", kind, "");
    put_filter(a, &sql, " AND state = ", state, "");
    put_filter(a, &sql, " AND finished_at >= ", since, "::timestamptz");
    put_filter(a, &sql, " AND finished_at < ", until, "::timestamptz");
    code = copy_rows(a, &sql, stdout);
    free(sql.ptr);
    free(columns);
    return code;
}
