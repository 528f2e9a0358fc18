/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * verbs.h -- the plain verbs of jobq that are more than one statement; the others are only in the
 * table in jobq.c. Each does what SQL's function of its name does.
 */

/* ---- migrate --------------------------------------------------------------------------------- */

static void tell_log(void *user, jobq_level level, const char *message)
{
    const app *a = user;

    if (level >= JOBQ_LEVEL_WARNING)
        fprintf(stderr, "jobq: %s\n", strncmp(message, "jobq: ", 6) == 0 ? message + 6 : message);
    else if (level == JOBQ_LEVEL_INFO && !a->json) fprintf(stderr, "%s\n", message);
}

static int exit_code(jobq_error code, const jobq_pg_error *error)
{
    if (code == JOBQ_OK) return APP_OK;
    app_say(0, "%s", error->message);
    if (strstr(error->message, "run jobq_pg_migrate") != NULL)
        fprintf(stderr, "  In a shell that is: jobq migrate\n");
    return code == JOBQ_ERROR_CONNECTION ? APP_SERVER : APP_NO;
}

/* Opens jobq's own connections; a failure ends the program. */
static jobq_pg *open_jobq(app *a, const char *schema,
                          void (*log)(void *user, jobq_level level, const char *message))
{
    jobq_pg_desc desc = {.conninfo = a->conninfo, .schema = schema, .log = log, .user = a};
    jobq_pg_error error;
    jobq_pg *pg = NULL;
    jobq_error code = jobq_pg_open(&pg, &desc, &error);

    if (code != JOBQ_OK) app_exit(a, exit_code(code, &error));
    return pg;
}

/* The SQL that is missing, as migrate would send it: in one transaction, as by psql -1. */
static jobq_error print_migrations(jobq_pg *pg, PGconn *conn, jobq_pg_error *error)
{
    const jobq_pg__migration *file;
    bool citus;
    int version, library_min;
    jobq_error code = jobq_pg__version(pg, conn, &version, &library_min, &citus, error);
    size_t i;

    if (code == JOBQ_OK && citus)
        code = jobq_pg__citus_refuses(pg, conn, version < jobq_pg__newest(), error);
    if (code == JOBQ_OK && jobq_pg__too_old(version))
        code = jobq_pg__serves(pg, version, library_min, error);
    if (code == JOBQ_OK && version < jobq_pg__newest())
        printf("-- in one transaction\n\n%s;\n\n", JOBQ_PG__MIGRATE_SETS);
    for (i = 0; code == JOBQ_OK && (file = jobq_pg__file(i)) != NULL; i++) {
        char *sql = app_need(jobq_pg__join(file->strings));

        sql = app_need(jobq_pg__for_schema(sql, jobq_pg_schema(pg)));
        if (file->version > version) printf("-- %s\n\n%s\n", file->name, sql);
    }
    return code;
}

static int do_migrate(app *a)
{
    bool print = app_value(a, "print") != NULL;
    jobq_pg *pg = open_jobq(a, a->schema, tell_log);
    jobq_pg_error error;
    jobq_error code = print ? print_migrations(pg, a->conn, &error)
                    : app_value(a, "check") ? jobq_pg_check(pg, NULL, &error)
                    : jobq_pg_migrate(pg, &error);

    jobq_pg_close(pg);
    if (code != JOBQ_OK || print) return exit_code(code, &error);
    return app_rows(a, "SELECT version, library_min FROM jobq.meta", 0, NULL);
}

/* ---- show ------------------------------------------------------------------------------------ */

/* The columns of a view that the role may read, in order. */
static const char *readable_columns(app *a, const char *view)
{
    const char *values[] = {a->schema, view};

    return PQgetvalue(app_query(a,
        "SELECT coalesce(string_agg(quote_ident(attname), ', ' ORDER BY attnum), '*')"
        " FROM pg_attribute WHERE attrelid = to_regclass(format('%I.%I', $1::text, $2::text))"
        " AND attnum > 0 AND has_column_privilege(attrelid, attnum, 'SELECT')", 2, values), 0, 0);
}

/* The first row: each column that says something in a line of its own, but for errors, which are a
 * table. */
static void print_row(app *a, const PGresult *res)
{
    app_text cell = {0};
    int i;

    for (i = 0; i < PQnfields(res); i++) {
        app_cell(a, &cell, res, 0, i);
        if (strcmp(PQfname(res, i), "errors") == 0) continue;
        if (!PQgetisnull(res, 0, i)) printf("%-20s | %s\n", PQfname(res, i), cell.ptr);
    }
    printf("\n");
}

static int do_show(app *a)
{
    const char *const *id = (const char *const *)a->argv;
    app_text sql = {0};
    PGresult *res;

    app_format(&sql, a->json ?
        "SELECT to_jsonb(j) || jsonb_build_object('why', ARRAY(SELECT reason FROM"
        " jobq.explain_job($1)), 'ties', (SELECT jsonb_agg(jsonb_strip_nulls(to_jsonb(t)))"
        " FROM jobq._job_ties($1) t)) FROM (SELECT %s FROM jobq.jobs WHERE id = $1::bigint) AS j"
        : "SELECT %s FROM jobq.jobs WHERE id = $1::bigint", readable_columns(a, "jobs"));
    res = app_query(a, sql.ptr, 1, id);
    if (PQntuples(res) == 0)
        return app_say(APP_NO, "there is no job %s, or it is no longer kept", *id);
    if (a->json) return puts(PQgetvalue(res, 0, 0)), APP_OK;
    print_row(a, res);
    res = app_query(a, "SELECT e ->> 'at' AS at, e ->> 'stage' AS stage, e ->> 'attempt' AS"
                    " attempt, e ->> 'error' AS error FROM jobq.jobs j CROSS JOIN"
                    " jsonb_array_elements(CASE jsonb_typeof(j.errors) WHEN 'array' THEN j.errors"
                    " END) WITH ORDINALITY AS u (e, n) WHERE j.id = $1::bigint ORDER BY n", 1, id);
    if (PQntuples(res) > 0) app_table(a, res, 0), printf("\n");
    app_rows(a, "SELECT reason AS why, until FROM jobq.explain_job($1)", 1, id);
    res = app_query(a, "SELECT tie, id, name, kind, state FROM jobq._job_ties($1)", 1, id);
    if (PQntuples(res) > 0) printf("\n"), app_table(a, res, 0);
    return APP_OK;
}

/* ---- verbs that change jobs: some by id, or all that match ----------------------------------- */

/* One step of a statement that is repeated, in a transaction: the steps are one row of
 * operator_log, which *operation names after the first one that changed something. NULL: it
 * failed. */
static PGresult *repeat_step(app *a, const app_call *call, char operation[24])
{
    PGresult *res, *log;

    app_query(a, "BEGIN", 0, NULL);
    app_query(a, "SELECT set_config('jobq_log.bulk', '{}', true),"
              " set_config('jobq_log.operation', $1, true)", 1, (const char *const *)&operation);
    res = app_try(a, call->sql.ptr, call->count, call->values);
    if (res == NULL) return NULL;
    log = app_query(a, "SELECT current_setting('jobq_log.operation')", 0, NULL);
    snprintf(operation, 24, "%s", PQgetvalue(log, 0, 0));
    app_query(a, "COMMIT", 0, NULL);
    return res;
}

/* Runs a statement until it answers 0, or has changed enough (1: one step), in steps that are
 * committed each. */
static int repeat(app *a, const app_call *call, long enough)
{
    long total = 0, requested = 0, step = 1;
    const char *done = a->verb->done;
    bool asks = false, failed;
    char operation[24] = "";
    PGresult *res;

    while (step > 0 && total + requested < enough &&
           (res = repeat_step(a, call, operation)) != NULL) {
        long asked;

        asks = PQnfields(res) > 1;
        asked = asks ? atol(PQgetvalue(res, 0, 1)) : 0;
        step = atol(PQgetvalue(res, 0, 0)) + asked;
        total += step - asked;
        requested += asked;
        app_progress("%s %ld", done, total);
        PQclear(res);
    }
    failed = step > 0 && total + requested < enough;
    app_progress(NULL);
    if (failed && total + requested == 0) return app_failed(a);
    printf(a->json ? "{\"%s\": %ld" : "%s %ld", done, total);
    if (asks) printf(a->json ? ", \"requested\": %ld" : ", requested %ld", requested);
    printf(a->json ? "}\n" : "\n");
    return failed ? app_failed(a) : APP_OK;
}

static int do_repeat(app *a)
{
    app_call call = {0};

    app_fill(a, &call, a->verb->sql);
    return repeat(a, &call, LONG_MAX);
}

enum { OWN_OPTION = 6 }; /* the option of a verb that follows those of the filter */

/* One job. Writes what became of it. */
static int change_one(app *a, const char *id)
{
    app_call call = {0};
    const char *answer;
    PGresult *res;
    bool done;

    app_put(&call.sql, a->verb->sql);
    app_parameter(&call, id);
    app_put(&call.sql, "::bigint");
    app_given(a, &call, OWN_OPTION);
    app_put(&call.sql, ")");
    res = app_try(a, call.sql.ptr, call.count, call.values);
    free(call.sql.ptr);
    if (res == NULL) return app_failed(a);
    answer = PQgetvalue(res, 0, 0);
    if (a->json) printf("{\"id\": %lld, \"answer\": \"%s\"}\n", atoll(id), answer);
    else printf("%lld %s\n", atoll(id), strcmp(answer, "none") == 0 ? "does not exist" : answer);
    done = strcmp(answer, a->verb->done) == 0 || strcmp(answer, "requested") == 0;
    PQclear(res);
    return done ? APP_OK : APP_NO;
}

/* All that match, in steps of 1000; with --at-most, one step. A revived job may fail again at once,
 * so revive stops after as many jobs as had failed at its start. */
static int change_all(app *a)
{
    app_call call = {0};
    long enough = LONG_MAX;

    if (app_value(a, "at-most") != NULL) enough = 1;
    else if (strcmp(a->verb->name, "revive") == 0)
        enough = atol(PQgetvalue(app_query(a, "SELECT greatest(count(*), 1) FROM jobq.failures"
                                           " WHERE queue = $1", 1,
                                           (const char *const *)a->values), 0, 0));

    app_put(&call.sql, a->verb->sql);
    app_given(a, &call, 0);
    app_put(&call.sql, ")");
    return repeat(a, &call, enough);
}

static int do_change(app *a)
{
    const char *own = a->verb->options[OWN_OPTION].name, **value = &a->values[OWN_OPTION];
    static const char instant[] = "SELECT coalesce($1::timestamptz, now())"; /* for all steps */
    bool queue = a->values[0] != NULL, filter = false, needed;
    bool time = own != NULL && strcmp(own, "run-at") == 0;
    bool state = own != NULL && strcmp(own, "state") == 0;
    int code = APP_OK, one, i;

    for (i = 1; i < OWN_OPTION - 1; i++) filter = filter || a->values[i] != NULL;
    filter = filter || (state && *value != NULL);
    if ((a->argc > 0) == queue || (a->argc > 0 && filter))
        return app_say(APP_USAGE, "%s takes either ids, or --queue and filters", a->verb->name);
    needed = own != NULL && !time &&
             (!state || (queue && strcmp(a->verb->name, "delete") == 0));
    if (needed && *value == NULL)
        return app_say(APP_USAGE, "%s needs --%s", a->verb->name, own);
    if (time) *value = PQgetvalue(app_query(a, instant, 1, value), 0, 0);
    if (a->argc == 0) return change_all(a);
    for (i = 0; i < a->argc && code != APP_SERVER; i++) {
        one = change_one(a, a->argv[i]);
        if (one != APP_OK) code = one;
    }
    return code;
}

/* ---- drain ----------------------------------------------------------------------------------- */

/* Waits until the queue has no job that is due or running, or with --ended no live job at all. */
static int do_drain(app *a)
{
    const char *values[] = {a->argv[0], app_value(a, "ended")};
    const struct timespec nap = {0, 500000000};
    long left, half, seconds = app_count("timeout", app_value(a, "timeout"), 0, 1000000000);
    bool warned = false;

    if (seconds < 0) return APP_USAGE;
    for (half = 0;; half++) {
        PGresult *res = app_query(a,
            "SELECT ready + running + suspects"
            /* Beside many dead rows jobs that are long due are not counted. */
            " + CASE WHEN exact OR ready > 0 THEN 0 ELSE (SELECT count(*) FROM ("
            "SELECT FROM jobq.live_jobs j WHERE j.queue = q.queue AND j.state = 'ready'"
            " AND j.run_at <= now() LIMIT 1) AS late) END"
            " + CASE WHEN $2::boolean THEN scheduled + parked"
            " + (SELECT count(*) FROM jobq.live_jobs j WHERE j.queue = q.queue"
            " AND j.state = 'waiting') ELSE 0 END,"
            " format('ready %s, running %s, scheduled %s', ready, running, scheduled),"
            " workers FROM jobq.queues q WHERE queue = $1", 2, values);

        if (PQntuples(res) == 0) return app_say(APP_NO, "no queue is called %s", values[0]);
        left = atol(PQgetvalue(res, 0, 0));
        app_progress("%s: %s", values[0], PQgetvalue(res, 0, 1));
        if (left > 0 && !warned && strcmp(PQgetvalue(res, 0, 2), "0") == 0)
            warned = app_say(true, "no living worker serves %s", values[0]);
        PQclear(res);
        if (left == 0 || half >= 2 * seconds) break;
        nanosleep(&nap, NULL);
    }
    app_progress(NULL);
    if (a->json) printf("{\"left\": %ld}\n", left);
    return left == 0 ? APP_OK : app_say(APP_NO, "%s is not empty; jobs left: %ld", values[0], left);
}

/* ---- flow show ------------------------------------------------------------------------------- */

/* Writes a flow as a graph of text: each job below those that it waits for, and further right. */
static int do_flow_show(app *a)
{
    const char *const *id = (const char *const *)a->argv;
    app_text cell = {0};
    PGresult *res;
    int row;

    if (a->json)
        return app_rows(a, "SELECT * FROM jobq.flow_graph($1) ORDER BY job_id", 1, id);
    res = app_query(a, "SELECT id AS flow, name, state, format('%s: %s succeeded, %s failed, %s"
                       " cancelled', jobs, succeeded, failed, cancelled) AS jobs, on_failure"
                       " FROM jobq.flows WHERE id = $1::bigint", 1, id);
    if (PQntuples(res) == 0)
        return app_say(APP_NO, "there is no flow %s, or it is no longer kept", *id);
    print_row(a, res);
    res = app_query(a, LOOK_LAYERS("1000") "SELECT format('%s%s %s %s %s%s', repeat('  ', layer),"
                    " job_id, state, kind, name, '  after ' || array_to_string(after, ' '))"
                    " FROM layered ORDER BY layer, job_id", 1, id);
    for (row = 0; row < PQntuples(res); row++) {
        app_cell(a, &cell, res, row, 0);
        puts(cell.ptr);
    }
    return APP_OK;
}

/* ---- export ---------------------------------------------------------------------------------- */

/* Writes what COPY sends. Returns the exit code. */
static int copy_out(app *a, FILE *to)
{
    long lines = 0, len;
    char *line;
    int error = 0; /* of a write */

    while ((len = PQgetCopyData(a->conn, &line, 0)) > 0) {
        if (error == 0 && fwrite(line, 1, (size_t)len, to) != (size_t)len) error = errno;
        PQfreemem(line);
        if (++lines % 1000 == 0) app_progress("%ld rows", lines);
    }
    app_progress(NULL);
    if (!app_check(a, PQgetResult(a->conn))) return app_failed(a);
    if (error == 0 && fflush(to) != 0) error = errno;
    return error == 0 ? APP_OK : app_say(APP_NO, "cannot write: %s", strerror(error));
}

/* Sends a COPY of the rows of a view, and writes what comes. */
static int copy_rows(app *a, const char *view, const char *where, FILE *to)
{
    app_text from = {0}, sql = {0};

    /* A JSON text holds neither of these two bytes, so that nothing in it is quoted. */
    app_format(&from, "SELECT %s FROM jobq.%s WHERE ", readable_columns(a, view), view);
    app_format(&sql, a->json ?
               "COPY (SELECT row_to_json(j) FROM (%s%s) AS j)"
               " TO STDOUT (FORMAT csv, QUOTE E'\\x01', DELIMITER E'\\x02')"
               : "COPY (%s%s) TO STDOUT (FORMAT csv, HEADER)", app_sql(a, from.ptr), where);
    if (!app_check(a, PQexec(a->conn, sql.ptr))) return app_failed(a);
    return copy_out(a, to);
}

/* The COPY of each table, which makes JSON lines of its rows. Left out is what says only who works
 * just now. $1: the schema. */
#define EXPORT_ALL \
    "SELECT format('COPY (SELECT %L || row_to_json(r) || ''}'' FROM (SELECT %s%st.* FROM %s t%s" \
    "%s) r) TO STDOUT (FORMAT csv, QUOTE E''\\x01'', DELIMITER E''\\x02'')'," \
    " format('{\"table\":%s,\"row\":', to_json(c.relname))," \
    " CASE WHEN queue THEN 'q.name AS queue, ' END, CASE WHEN kind THEN 'k.name AS kind, ' END," \
    " c.oid::regclass," \
    " CASE WHEN queue THEN format(' LEFT JOIN %s.queue q ON q.id = t.queue_id', space) END," \
    " CASE WHEN kind THEN format(' LEFT JOIN %s.kind k ON k.id = t.kind_id', space) END)" \
    " FROM (SELECT c.oid, c.relname, n.oid::regnamespace AS space, bool_or(attname = 'queue_id')" \
    "       AND NOT bool_or(attname = 'queue') AS queue, bool_or(attname = 'kind_id') AS kind" \
    "       FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid" \
    "       JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0" \
    "       WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND NOT c.relispartition" \
    "       AND c.relname <> ALL ('{worker, claim, sleeper, tally, ring, permit, waiter, nudge}')" \
    "       GROUP BY c.oid, c.relname, n.oid) c ORDER BY relname"

/* Writes all rows, of live work too, as of one instant: {"table": NAME, "row": {...}}. */
static int export_all(app *a)
{
    PGresult *res;
    int row, code = APP_OK;

    app_query(a, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", 0, NULL);
    res = app_query(a, EXPORT_ALL, 1, &a->schema);
    for (row = 0; row < PQntuples(res) && code == APP_OK; row++) {
        if (!app_check(a, PQexec(a->conn, PQgetvalue(res, row, 0)))) return app_failed(a);
        code = copy_out(a, stdout);
    }
    if (code == APP_OK) app_query(a, "COMMIT", 0, NULL);
    return code;
}

/* Writes one finished part of history, in a transaction that also notes that it was written. If
 * the program dies before the commit, the next export writes the same file again. */
static int export_part(app *a, const char *folder, bool *any)
{
    app_text path = {0}, temporary = {0}, where = {0};
    const char *part[2];
    PGresult *res;
    FILE *file;
    int code;

    app_query(a, "BEGIN ISOLATION LEVEL READ COMMITTED", 0, NULL);
    res = app_query(a, "SELECT retention, part, slot FROM jobq.export_next()", 0, NULL);
    *any = PQntuples(res) > 0;
    if (!*any) return app_query(a, "COMMIT", 0, NULL), APP_OK;
    part[0] = PQgetvalue(res, 0, 0);
    part[1] = PQgetvalue(res, 0, 1);
    app_format(&where, "slot = %s", PQgetvalue(res, 0, 2));
    app_format(&path, "%s/%s-%s-%s.%s", folder, a->schema, part[0], part[1],
               a->json ? "jsonl" : "csv");
    app_format(&temporary, "%s.tmp", path.ptr);
    file = fopen(temporary.ptr, "wb");
    if (file == NULL)
        return app_say(APP_NO, "cannot write %s: %s", temporary.ptr, strerror(errno));
    code = copy_rows(a, "ended", where.ptr, file);
    if (code == APP_OK && !app_keep(file, temporary.ptr, path.ptr, folder))
        code = app_say(APP_NO, "cannot write %s: %s", path.ptr, strerror(errno));
    if (code != APP_OK) return remove(temporary.ptr), code;
    app_query(a, "SELECT jobq.export_done($1, $2)", 2, part);
    app_query(a, "COMMIT", 0, NULL);
    puts(path.ptr);
    return APP_OK;
}

/* ---- looks, pauses, export ------------------------------------------------------------------- */

/* In SQL: rows of the queue and the kind that were given, read from an index. */
#define OF_QUEUE \
    "(:queue::text IS NULL OR :kind::text IS NOT NULL OR queue_id = jobq._known_queue(:queue))"
#define OF_KIND \
    "(:kind::text IS NULL OR (CASE WHEN :queue::text IS NULL THEN kind = :kind ELSE kind_id = " \
    "jobq._known_kind(jobq._known_queue(:queue), :kind) END))"

/* Failed jobs have a view of their own: the one of all jobs would read live and ended ones, too. */
static int do_list(app *a)
{
    const char *state = app_value(a, "state");
    app_call call = {0};

    if (state == NULL || strcmp(state, "failed") != 0) return app_run(a);
    app_fill(a, &call,
             "SELECT id, queue, kind, 'failed' AS state, stage, attempt, enqueued_at,"
             " failed_at AS finished_at, key, line, error FROM jobq.failures"
             " WHERE " OF_QUEUE " AND " OF_KIND " AND (:key::text IS NULL OR key = :key)"
             " AND (:line::text IS NULL OR line = :line)"
             " AND (:older::interval IS NULL OR enqueued_at < now() - :older::interval)"
             " AND (:newer::interval IS NULL OR enqueued_at >= now() - :newer::interval)"
             " ORDER BY id DESC LIMIT coalesce(:limit::bigint, 20)");
    return app_rows(a, call.sql.ptr, call.count, call.values);
}

/* A table, whose numbers say what they are, or with --json the rows of the view of that name. */
static int do_look(app *a)
{
    app_text sql = {0};

    if (!a->json) return app_run(a);
    app_format(&sql, "SELECT * FROM jobq.%s", a->verb->name);
    return app_rows(a, sql.ptr, 0, NULL);
}

static int do_metrics(app *a)
{
    fputs(PQgetvalue(app_query(a, "SELECT jobq.metrics()", 0, NULL), 0, 0), stdout);
    return APP_OK;
}

/* Whether a line of a queue has jobs or settings of its own. If it has neither, says which lines
 * the queue has. */
static bool line_known(app *a, const char *queue, const char *line)
{
    const char *values[] = {queue, line};
    PGresult *res = app_query(a, "SELECT bool_or(line = $2), string_agg(line, ' ' ORDER BY line)"
                              " FILTER (WHERE strpos(line, ' ') = 0) FROM jobq.lines"
                              " WHERE queue = $1", 2, values);

    if (PQgetvalue(res, 0, 0)[0] == 't') return true;
    app_unknown(0, "line", line, PQgetvalue(res, 0, 1));
    fprintf(stderr, "  To make one: jobq line set %s '%s' --paused true\n", queue, line);
    return false;
}

/* pause and resume: of a queue, a kind, or with --line a line. */
static int do_pause(app *a)
{
    const char *line = app_value(a, "line");
    bool pauses = strcmp(a->verb->name, "pause") == 0;
    app_call call = {0};

    if (line == NULL) return app_run(a);
    if (app_value(a, "kind") != NULL)
        return app_say(APP_USAGE, "%s takes --kind or --line", a->verb->name);
    if (!line_known(a, a->argv[0], line)) return APP_USAGE;
    app_fill(a, &call, pauses
             ? "SELECT 'paused' AS answer FROM jobq.line_set($1, :line, paused => true)"
             : "SELECT 'resumed' AS answer FROM jobq.line_set($1, :line, paused => false)");
    return app_rows(a, call.sql.ptr, call.count, call.values);
}

static int do_schedule_run(app *a)
{
    const char *const *name = (const char *const *)a->argv;
    PGresult *res = app_query(a, "SELECT jobq.schedule_run($1)", 1, name);

    if (PQgetisnull(res, 0, 0))
        return app_say(APP_NO, "nothing was run: the job of its last run has not ended");
    printf(a->json ? "{\"id\": %s}\n" : "%s\n", PQgetvalue(res, 0, 0));
    return APP_OK;
}

static int do_export(app *a)
{
    static const char *const filters[] = {"queue =", "kind =", "state =", "finished_at >=",
                                          "finished_at <"}; /* as the options */
    const char *folder = a->values[5];
    bool any = true, all = app_value(a, "all") != NULL;
    app_text where = {0};
    int code = APP_OK, i;

    app_put(&where, "finished_at IS NOT NULL");
    for (i = 0; i < 5; i++) {
        const char *value = a->values[i];

        if (value == NULL) continue;
        if (folder != NULL || all)
            return app_say(APP_USAGE, "export --parts and --all write whole parts: no filters");
        app_format(&where, " AND %s %s", filters[i], /* COPY takes no parameters */
                   (char *)app_need(PQescapeLiteral(a->conn, value, strlen(value))));
    }
    if (all && folder != NULL) return app_say(APP_USAGE, "export takes --parts or --all");
    if (all) return export_all(a);
    if (folder == NULL) return copy_rows(a, "jobs", where.ptr, stdout);
    while (code == APP_OK && any) code = export_part(a, folder, &any);
    return code;
}
