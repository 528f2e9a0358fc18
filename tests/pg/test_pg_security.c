/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_security.c -- hostile strings, planted functions and curious readers of logs achieve
 * nothing.
 */
#include "pg_work.h"

static const char *const hostile[] = {
    "'; DROP SCHEMA jobq CASCADE; --",
    "\"; DROP SCHEMA jobq CASCADE; --",
    "$$; DROP SCHEMA jobq CASCADE; $$",
    "\\'; DROP SCHEMA jobq CASCADE; --",
    "1); DELETE FROM jobq.job; SELECT (1",
    "{jobq} $1 %s %n \\x00 jobq",
    "a\tb\\N\\.\nc",
};

#define SECRET "hunter2-xyzzy"

static char logged[65536]; /* all that a handle logged */

static void keep_log(void *user, jobq_level level, const char *message)
{
    size_t len = strlen(logged);

    (void)user;
    (void)level;
    snprintf(logged + len, sizeof logged - len, "%s\n", message);
}

static void no_secret(const jobq_pg_error *error)
{
    const char *at = (const char *)error;
    size_t i;

    for (i = 0; i + strlen(SECRET) <= sizeof *error; i++) {
        if (memcmp(at + i, SECRET, strlen(SECRET)) == 0) fail_msg("told: %s", error->message);
    }
    if (strstr(logged, SECRET) != NULL) fail_msg("logged: %s", logged);
}

/* A handle with settings after the server's own. */
static jobq_error handle_with(const char *settings, const char *name, jobq_pg **made,
                              jobq_pg_error *error)
{
    char conninfo[1024];
    jobq_pg_desc desc;

    snprintf(conninfo, sizeof conninfo, "%s %s", server(), settings);
    memset(&desc, 0, sizeof desc);
    desc.conninfo = conninfo;
    desc.schema = name;
    desc.log = keep_log;
    return jobq_pg_open(made, &desc, error);
}

/* -- strings -- */

static void names_are_refused(void **state)
{
    jobq_pg_error error;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(hostile); i++) {
        jobq_pg_job job = plain_job();
        jobq_pg *made = pg;
        const char *queue = hostile[i];
        int32_t id;

        assert_int_equal(handle_with("", hostile[i], &made, &error), JOBQ_ERROR_INVALID);
        assert_null(made);
        job.queue = hostile[i];
        assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
        assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, NULL, &error), JOBQ_ERROR_INVALID);
        assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, JOBQ_PG_BY_COPY, &error),
                         JOBQ_ERROR_INVALID);
        job = plain_job();
        job.kind = hostile[i];
        assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
        assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, JOBQ_PG_BY_COPY, &error),
                         JOBQ_ERROR_INVALID);
        assert_int_equal(verb_register(pg, NULL, 7, "w", SECOND, &queue, 1, &id, &error),
                         JOBQ_ERROR_INVALID);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.job"), 0);
    assert_int_equal(number("SELECT count(*) FROM jobq.queue"), 0);
}

/* One value of the database is this text, byte for byte. */
static void is_text(const char *query, const char *wanted)
{
    char *text = text_of("%s", query);

    assert_string_equal(text, wanted);
    free(text);
}

static jobq_str json_of(const char *text, char *out, size_t size)
{
    size_t at = 0;

    at += (size_t)snprintf(out, size, "{\"t\": \"");
    for (; *text != '\0'; text++) {
        at += (size_t)snprintf(out + at, size - at, "\\u%04x", (unsigned char)*text);
    }
    snprintf(out + at, size - at, "\"}");
    return jobq_str_from(out);
}

static void texts_are_kept_as_they_are(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(hostile); i++) {
        jobq_pg_job job = plain_job();
        verb_batch batch;
        jobq_job claimed;
        char json[1024];
        int round;

        pg_empty(NULL);
        job.payload = job.headers = json_of(hostile[i], json, sizeof json);
        for (round = 0; round < 3; round++) {
            jobq_pg_error error;
            jobq_error code;
            job.key = round < 2 ? hostile[i] : NULL; /* COPY takes no keys */
            if (round == 0) code = jobq_pg_enqueue(pg, NULL, &job, NULL, &error);
            else if (round == 1) code = jobq_pg_enqueue_many(pg, NULL, &job, 1, NULL, &error);
            else code = jobq_pg_enqueue_many(pg, NULL, &job, 1, JOBQ_PG_BY_COPY, &error);
            if (code != JOBQ_OK) fail_msg("%s", error.message);
        }
        assert_int_equal(number("SELECT count(*) FROM jobq.job"), 2); /* one key, one job */
        is_text("SELECT DISTINCT payload->>'t' FROM jobq.job", hostile[i]);
        is_text("SELECT DISTINCT headers->>'t' FROM jobq.job", hostile[i]);
        is_text("SELECT key FROM jobq.job WHERE key IS NOT NULL", hostile[i]);
        register_worker(7, 60 * SECOND);
        assert_int_equal(claim_by(7, 1, 1, false, &batch), JOBQ_OK);
        claimed = batch.jobs[0];
        verb_batch_clear(&batch);
        assert_int_equal(settle_with(&claimed, JOBQ_EVENT_RETRY, hostile[i]), JOBQ_OK);
        assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE errors::text <> ''"), 1);
    }
}

static void worker_and_application_names(void **state)
{
    static const char *const queues[] = {"q"};
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(hostile); i++) {
        jobq_pg_error error;
        int32_t id;
        jobq_error code = verb_register(pg, NULL, 100 + (int64_t)i, hostile[i], SECOND, queues,
                                           1, &id, &error);
        if (code != JOBQ_OK) {
            assert_int_equal(code, JOBQ_ERROR_INVALID);
            continue;
        }
        is_text("SELECT name FROM jobq.worker ORDER BY id DESC LIMIT 1", hostile[i]);
    }
    {
        jobq_pg_error error;
        jobq_pg_job job = plain_job();
        jobq_pg *made;
        assert_int_equal(handle_with("application_name='\\'; DROP SCHEMA jobq; --'", schema, &made,
                                     &error), JOBQ_OK);
        assert_int_equal(jobq_pg_enqueue(made, NULL, &job, NULL, &error), JOBQ_OK);
        jobq_pg_close(made);
    }
}

/* What is refused leaves the transaction as it was; what is accepted is stored unchanged. */
static void messages_keep_their_texts(void **state)
{
    jobq_pg_error error;
    size_t i;

    (void)state;
    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "o", 2, NULL, &error), JOBQ_OK);
    for (i = 0; i < COUNT(hostile); i++) {
        jobq_pg_message m;
        jobq_pg_scope scope;
        jobq_pg_rows letters;
        char json[1024];
        int round;

        RUN("TRUNCATE jobq.message");
        memset(&m, 0, sizeof m);
        memset(&scope, 0, sizeof scope);
        m.queue = "o";
        m.payload = m.headers = json_of(hostile[i], json, sizeof json);
        m.order_key = m.key = hostile[i];
        if (jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error) != JOBQ_OK)
            fail_msg("%s", error.message);
        assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_ERROR_EXISTS);
        m.key = NULL;
        m.type = hostile[i]; /* printable or refused */
        round = jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error) == JOBQ_OK ? 2 : 1;
        assert_int_equal(number("SELECT count(*) FROM jobq.message"), round);
        is_text("SELECT DISTINCT payload->>'t' FROM jobq.message", hostile[i]);
        is_text("SELECT DISTINCT headers->>'t' FROM jobq.message", hostile[i]);
        if (round == 2)
            is_text("SELECT type FROM jobq.message WHERE type IS NOT NULL", hostile[i]);
        m.queue = hostile[i];
        assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_ERROR_INVALID);
        assert_int_equal(jobq_pg_outbox_register(pg, NULL, hostile[i], 2, NULL, &error),
                         JOBQ_ERROR_INVALID);
        scope.queue = scope.type = hostile[i];
        if (jobq_pg_dead_letter_replay(pg, NULL, 77, SECOND, &scope, &letters, &error) == JOBQ_OK) {
            assert_int_equal(letters.count, 0);
            jobq_pg_rows_clear(&letters);
        }
        RUN("INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at, "
            "attempts, payload) SELECT q.id, q.id * 32768, %d, now(), now(), 1, '1' "
            "FROM jobq.queue q WHERE q.name = 'o'", (int)i + 1);
        memset(&scope, 0, sizeof scope);
        if (jobq_pg_dead_letter_replay(pg, NULL, 77, SECOND, &scope, &letters, &error) != JOBQ_OK)
            fail_msg("%s", error.message);
        assert_true(letters.count > 0);
        if (jobq_pg_dead_letter_end(pg, NULL, 77, &LETTER(letters, 0).id, 1, JOBQ_RESULT_RETRY,
                                    hostile[i], NULL, &error) != JOBQ_OK)
            fail_msg("%s", error.message);
        jobq_pg_rows_clear(&letters);
        is_text("SELECT DISTINCT error FROM jobq.dead_letter WHERE error IS NOT NULL", hostile[i]);
        RUN("TRUNCATE jobq.dead_letter");
    }
}

/* What an operator types finds nothing, or is refused; nothing else happens. */
static void filters_find_what_they_name(void **state)
{
    size_t i;

    (void)state;
    enqueue_count(3);
    for (i = 0; i < COUNT(hostile); i++) {
        jobq_pg_filter f;
        jobq_pg_queue_row counts;
        jobq_pg_error error;
        char json[1024];
        int64_t count;

        memset(&f, 0, sizeof f);
        f.queue = hostile[i];
        assert_int_equal(jobq_pg_cancel(pg, NULL, &f, &count, NULL, &error),
                         JOBQ_ERROR_INVALID);
        f.queue = "q";
        f.kind = hostile[i];
        assert_int_equal(jobq_pg_cancel(pg, NULL, &f, &count, NULL, &error),
                         JOBQ_ERROR_INVALID);
        f.kind = NULL;
        f.tags = json_of(hostile[i], json, sizeof json);
        assert_int_equal(jobq_pg_cancel(pg, NULL, &f, &count, NULL, &error), JOBQ_OK);
        assert_int_equal(count, 0);
        f.tags = jobq_str_from(hostile[i]);
        assert_int_equal(jobq_pg_cancel(pg, NULL, &f, &count, NULL, &error),
                         JOBQ_ERROR_INVALID);
        assert_int_not_equal(jobq_pg_queue_set(pg, NULL, hostile[i], NULL, &error), JOBQ_OK);
        assert_int_not_equal(counts_of(hostile[i], &counts), JOBQ_OK);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE state = 'r'"), 3);
}

typedef struct note {
    int64_t id;
    jobq_str text;
} note;

static const jobq_pg_column note_columns[] = {
    JOBQ_PG_COLUMN(note, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_COLUMN(note, text, TEXT, JOBQ_PG_SEARCH),
    {NULL, JOBQ_PG_NONE, 0, 0, 0, NULL},
};

/* Values, and the few strings that choose columns; a constraint's refusal names no value. */
static void rows_keep_their_texts(void **state)
{
    static const jobq_pg_table_desc desc = {"jobq.note", sizeof(note), note_columns, NULL, NULL,
                                            false};
    jobq_pg_table *notes;
    jobq_pg_error error;
    jobq_pg_rows rows;
    jobq_pg_query q;
    size_t i;
    note n;

    (void)state;
    RUN("CREATE TABLE jobq.note (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        "text text NOT NULL CHECK (text NOT LIKE '%%xyzzy%%'))");
    if (jobq_pg_table_open(&notes, pg, NULL, &desc, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    for (i = 0; i < COUNT(hostile); i++) {
        memset(&n, 0, sizeof n);
        memset(&q, 0, sizeof q);
        n.text = jobq_str_from(hostile[i]);
        assert_int_equal(jobq_pg_table_create(notes, NULL, "text", &n, NULL, NULL, &error),
                         JOBQ_OK);
        assert_int_equal(jobq_pg_table_get(notes, NULL, "text", &n, &rows, &error), JOBQ_OK);
        assert_string_equal(((const note *)rows.rows)->text.ptr, hostile[i]);
        jobq_pg_rows_clear(&rows);
        q.search = hostile[i];
        assert_int_equal(jobq_pg_table_list(notes, NULL, &q, &rows, &error), JOBQ_OK);
        assert_int_equal(rows.count, 1);
        jobq_pg_rows_clear(&rows);
        q.search = NULL;
        q.order = hostile[i];
        assert_int_equal(jobq_pg_table_list(notes, NULL, &q, &rows, &error), JOBQ_ERROR_INVALID);
        q.order = NULL;
        q.where = hostile[i];
        q.like = &n;
        assert_int_equal(jobq_pg_table_list(notes, NULL, &q, &rows, &error), JOBQ_ERROR_INVALID);
        assert_int_equal(jobq_pg_table_create(notes, NULL, hostile[i], &n, NULL, NULL, &error),
                         JOBQ_ERROR_INVALID);
    }
    assert_int_equal(number("SELECT count(*) FROM jobq.note"), (long)COUNT(hostile));
    logged[0] = '\0';
    n.text = jobq_str_from("prefix " SECRET);
    assert_int_not_equal(jobq_pg_table_create(notes, NULL, "text", &n, NULL, NULL, &error),
                         JOBQ_OK);
    no_secret(&error);
    jobq_pg_table_close(notes);
    RUN("DROP TABLE jobq.note");
}

/* -- planted things -- */

/* Functions, operators and tables that would win by name, if anybody looked in there. */
static void plant(const char *where)
{
    static const char *const calls[] = {
        "now() RETURNS timestamptz", /* not statement_timestamp: store_pg.h's clock plants it */
        "clock_timestamp() RETURNS timestamptz", "pg_notify(text, text) RETURNS void",
        "length(text) RETURNS integer", "least(bigint, bigint) RETURNS bigint",
        "unnest(bigint[]) RETURNS SETOF bigint", "array_length(anyarray, integer) RETURNS integer",
        "cardinality(anyarray) RETURNS integer", "set_config(text, text, boolean) RETURNS text",
        "eq8(bigint, bigint) RETURNS boolean",
        "eq4(integer, integer) RETURNS boolean", "eqt(text, text) RETURNS boolean",
        "pg_try_advisory_xact_lock(bigint) RETURNS boolean",
        "pg_advisory_xact_lock(bigint) RETURNS void",
    };
    static const char *const tables[] = {"job", "claim", "worker", "queue", "kind", "history",
                                         "failed", "meta", "sleeper", "idempotency"};
    static const char *const equals[][2] = {{"bigint", "eq8"}, {"integer", "eq4"}, {"text", "eqt"}};
    size_t i;

    for (i = 0; i < COUNT(calls); i++) {
        RUN("CREATE OR REPLACE FUNCTION %s.%s LANGUAGE plpgsql AS $$BEGIN RAISE 'planted'; END$$",
            where, calls[i]);
    }
    for (i = 0; i < COUNT(tables); i++)
        RUN("CREATE TABLE IF NOT EXISTS %s.%s (x int)", where, tables[i]);
    for (i = 0; i < COUNT(equals); i++)
        RUN("CREATE OPERATOR %s.= (LEFTARG = %s, RIGHTARG = %s, FUNCTION = %s.%s)", where,
            equals[i][0], equals[i][0], where, equals[i][1]);
}

static int handled;

static jobq_outcome handles(jobq_call *call)
{
    ADD(handled);
    return call->job.id % 2 == 0 ? JOBQ_OUTCOME_RETRY : JOBQ_OUTCOME_SUCCESS;
}

static void planted_things_have_no_effect(void **state)
{
    jobq_pg *own = pg;
    jobq_pg_error error;
    jobq_pg_handler handler = handler_of("q", "k", handles);
    jobq_pg_worker_desc desc = work_of(&handler, 1);
    jobq_pg_job job = plain_job();
    verb_batch batch;
    jobq_job claimed;

    (void)state;
    RUN("DROP SCHEMA IF EXISTS evil CASCADE");
    RUN("CREATE SCHEMA evil");
    plant("evil");
    if (handle_with("options='-c search_path=evil,pg_catalog,public'", schema, &pg, &error) != 0)
        fail_msg("%s", error.message);
    if (jobq_pg_migrate(pg, &error) != JOBQ_OK) fail_msg("%s", error.message);
    job.key = "key";
    enqueue_with(&job);
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_EXISTS);
    enqueue_count(20);
    job.key = NULL;
    if (jobq_pg_enqueue_many(pg, NULL, &job, 1, JOBQ_PG_BY_COPY, &error) != JOBQ_OK)
        fail_msg("%s", error.message);
    register_worker(7, 60 * SECOND);
    assert_int_equal(claim_by(7, 1, 2, false, &batch), JOBQ_OK);
    assert_int_equal(batch.count, 2);
    claimed = batch.jobs[0];
    assert_int_equal(settle_with(&claimed, JOBQ_EVENT_SUCCESS, NULL), JOBQ_OK);
    claimed = batch.jobs[1];
    verb_batch_clear(&batch);
    assert_int_equal(settle_with(&claimed, JOBQ_EVENT_DISCARD, "no"), JOBQ_OK);
    assert_int_equal(verb_heartbeat(pg, NULL, 7, 60 * SECOND, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_revive(pg, NULL, ONE(claimed.id), NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_cancel(pg, NULL, ONE(claimed.id), NULL, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_get(pg, NULL, claimed.id, &claimed, &error), JOBQ_OK);
    logged[0] = '\0';
    start_on(pg, &desc);
    if (!reaches(30, &handled, 20)) fail_msg("%d handled: %s", handled, logged);
    all_stop(NULL);
    assert_null(strstr(logged, "planted"));
    jobq_pg_close(pg);
    pg = own;
    RUN("DROP SCHEMA evil CASCADE");
}

/* -- secrets -- */

static void passwords_are_not_told(void **state)
{
    static const char *const conninfos[] = {
        "host=/nowhere password=" SECRET,
        "host=127.0.0.1 port=1 connect_timeout=1 password=" SECRET,
        "host='/nowhere password=" SECRET,
        "password=" SECRET " host",
        "password=" SECRET " nonsense=1",
        "postgresql://u:" SECRET "@[::1/db",
        "postgresql://u:" SECRET "@[::1]x/db",
        "postgresql://u:" SECRET "@/db?nonsense",
        "postgresql://u:" SECRET "%zz@/db",
        "postgresql://u:" SECRET "@[]/db",
    };
    size_t i;

    (void)state;
    logged[0] = '\0';
    for (i = 0; i < COUNT(conninfos); i++) {
        jobq_pg_desc desc;
        jobq_pg_error error;
        jobq_pg *made;

        memset(&desc, 0, sizeof desc);
        desc.conninfo = conninfos[i];
        desc.log = keep_log;
        assert_int_not_equal(jobq_pg_open(&made, &desc, &error), JOBQ_OK);
        assert_true(error.message[0] != '\0');
        no_secret(&error);
    }
}

static void messages_are_not_told(void)
{
    jobq_pg_message m;
    jobq_pg_error error;

    assert_int_equal(jobq_pg_outbox_register(pg, NULL, "o", 1, NULL, &error), JOBQ_OK);
    RUN("ALTER TABLE jobq.message ADD CONSTRAINT none CHECK (payload IS NULL)");
    memset(&m, 0, sizeof m);
    m.queue = "o";
    m.payload = jobq_str_from("{\"a\": \"" SECRET "\", }");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_ERROR_INVALID);
    no_secret(&error);
    m.payload = jobq_str_from("{\"a\": \"" SECRET "\"}");
    assert_int_equal(jobq_pg_outbox_enqueue(pg, NULL, &m, NULL, &error), JOBQ_ERROR_INVALID);
    no_secret(&error);
    assert_int_equal(jobq_pg_outbox_enqueue_many(pg, NULL, &m, 1, NULL, &error),
                     JOBQ_ERROR_INVALID);
    no_secret(&error);
    RUN("ALTER TABLE jobq.message DROP CONSTRAINT none");
}

/* Refused before it is sent, by the server, and by a trigger of the user's. */
static void payloads_are_not_told(void **state)
{
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    jobq_pg *own = pg;

    (void)state;
    logged[0] = '\0';
    assert_int_equal(handle_with("", schema, &pg, &error), JOBQ_OK);
    job.payload = jobq_str_from("{\"a\": \"" SECRET "\", }");
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    no_secret(&error);
    job.payload = jobq_str_from("{\"a\": \"" SECRET "\"}");
    job.headers = jobq_str_from("[\"" SECRET "\"]");
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    no_secret(&error);
    job.headers = jobq_str_from(NULL);
    RUN("ALTER TABLE jobq.job ADD CONSTRAINT none CHECK (payload IS NULL)");
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    no_secret(&error);
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, NULL, &error), JOBQ_ERROR_INVALID);
    no_secret(&error);
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, &job, 1, JOBQ_PG_BY_COPY, &error),
                     JOBQ_ERROR_INVALID);
    no_secret(&error);
    RUN("ALTER TABLE jobq.job DROP CONSTRAINT none");
    messages_are_not_told();
    jobq_pg_close(pg);
    pg = own;
}

/* -- tenants -- */

static PGconn *as_tenant;

/* What a tenant's statement answers: its first value, or its SQLSTATE. The caller frees it. */
static char *tenant_says(const char *generic)
{
    char *text = for_schema(generic, schema);
    PGresult *res = PQexec(as_tenant, text);
    const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    char *out = text_copy(sqlstate != NULL ? sqlstate
                          : PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : PQcmdTuples(res));

    PQclear(res);
    free(text);
    return out;
}

/* Its refusal names what it may do. */
static void tenant_is_told(const char *generic, const char *hint)
{
    char *text = for_schema(generic, schema);
    PGresult *res = PQexec(as_tenant, text);

    free(text);
    assert_string_equal(PQresultErrorField(res, PG_DIAG_MESSAGE_HINT), hint);
    PQclear(res);
}

/* A program is told the same, and not to be granted what would end the limits. */
static void a_tenants_program_is_told(void)
{
    jobq_pg_job job = plain_job();
    jobq_pg_flow_desc flow = {.name = "mine"};
    jobq_pg_error error;
    int64_t id;

    assert_int_equal(jobq_pg_enqueue(pg, as_tenant, &job, NULL, &error), JOBQ_ERROR_DATABASE);
    assert_non_null(strstr(error.message, "It is a tenant's, and may use queue q, "));
    assert_null(strstr(error.message, "grant_"));
    assert_int_equal(jobq_pg_flow_begin(pg, as_tenant, &flow, &id, &error), JOBQ_ERROR_DATABASE);
    assert_non_null(strstr(error.message, "A tenant's role gets no flows"));
}

/* The victim's row, and all tables that a tenant could write to. The caller frees it. */
static char *of_the_victim(void)
{
    return text_of("SELECT concat_ws('#', (SELECT string_agg(j::text, '|' ORDER BY j.id) FROM "
                   "jobq.job j WHERE line_name IS DISTINCT FROM 'tenant-7-a'), (SELECT count(*) "
                   "FROM jobq.message), (SELECT count(*) FROM jobq.flow), (SELECT count(*) FROM "
                   "jobq.signal), (SELECT string_agg(t::text, '|') FROM jobq.tenant t), (SELECT "
                   "string_agg(q::text, '|' ORDER BY q.id) FROM jobq.queue q), (SELECT "
                   "string_agg(i::text, '|') FROM jobq.idempotency i WHERE key = 'order-1'))");
}

static void tenants_open(const char *role)
{
    char conninfo[1024];

    snprintf(conninfo, sizeof conninfo, "%s user=%s", server(), role);
    as_tenant = PQconnectdb(conninfo);
    assert_int_equal(PQstatus(as_tenant), CONNECTION_OK);
    PQclear(PQexec(as_tenant, "SET statement_timeout = '20s'"));
}

static const char *const attacks[] = {
    "SELECT jobq.enqueue('q', 'k')",
    "SELECT jobq.enqueue('q', 'k', line => NULL)",
    "SELECT jobq.enqueue('q', 'k', line => 'tenant-8-a')",
    "SELECT jobq.enqueue('q', 'k', line => 'tenant-7')",
    "SELECT jobq.enqueue('q', 'k', line => 'TENANT-7-a')",
    "SELECT jobq.enqueue('q', 'k', line => ' tenant-7-a')",
    "SELECT jobq.enqueue('q', 'k', line => E'tenant-8-a\ntenant-7-a')",
    "SELECT jobq.enqueue('q', 'k', line => 'tenant-8-a/tenant-7-a')",
    "SELECT jobq.enqueue('other', 'k', line => 'tenant-7-a')",
    "SELECT jobq.enqueue('new', 'k', line => 'tenant-7-a')",
    "SELECT jobq.enqueue('Q', 'k', line => 'tenant-7-a')",
    "SELECT jobq.enqueue_or_get('q', 'k', line => 'tenant-8-a', key => 'order-1')",
    "SELECT jobq.enqueue_or_get('q', 'k', line => 'tenant-8-a', key => 'order-1', on_known => "
    "'cancel')",
    "SELECT jobq.enqueue('q', 'k', line => 'tenant-7-a', after => '{1}')",
    "SELECT jobq.enqueue('q', 'k', line => 'tenant-7-a', flow => 1)",
    "SELECT jobq.enqueue('q', 'k', line => 'tenant-7-a', after_flow => 1)",
    "SELECT jobq._enqueue_one('q', 'k', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
    " true, 'tenant-8-a')",
    "SELECT jobq._enqueue_one('q', 'k', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
    " true)",
    "SELECT jobq._enqueue_known('q', 'k', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, "
    "'order-1', true, 'replace', NULL, NULL, 'tenant-8-a')",
    "SELECT jobq._enqueue_many('q', '{k}', NULL, '{1,2}')",
    "SELECT jobq._enqueue_many('q', '{k}', NULL, '{1,2}', p_lines => '{tenant-7-a}')",
    "SELECT jobq._enqueue_many('q', '{k}', NULL, '{1,2}', p_lines => '{tenant-7-a,NULL}')",
    "SELECT jobq._enqueue_many('q', '{k}', NULL, '{1,2}', p_lines => '{tenant-7-a,tenant-8-a}')",
    "SELECT jobq._enqueue_many('q', '{k}', NULL, '{1}', p_count => 3, p_lines => '{tenant-7-a}')",
    "SELECT jobq._enqueue_many('q', '{k}', NULL, '{1}', p_lines => '{tenant-7-a}', p_flow => 1)",
    "SELECT jobq.flow('f')",
    "SELECT jobq.batch('q', 'k', '{1}')",
    "SELECT jobq.signal('s')",
    "SELECT jobq.outbox_enqueue('q', '1')",
    "SELECT jobq._bulk('q', '{k}', 1::int2)",
    "SELECT jobq._enqueue_linked('q', '{k}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, "
    "NULL, NULL, 1, true, '{tenant-7-a}', NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "SELECT jobq._enqueue_after('q', 'k', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, "
    "true, 'tenant-7-a', NULL, NULL, '{1}', NULL, NULL, 'any', NULL)",
    "SELECT jobq._keep_keys(1, '{order-1}', '{9}')",
    "SELECT jobq.cancel(1)",
    "SELECT jobq.work_join('{\"q\": [\"k\"]}')",
    "SELECT jobq.peek('{q}', 5)",
    "SELECT jobq.standing(1)",
    "SELECT jobq.erase('{\"a\": 1}', false)",
    "SELECT * FROM jobq.job",
    "SELECT * FROM jobq.jobs",
    "SELECT * FROM jobq.ended",
    "SELECT * FROM jobq.tenant",
    "SELECT key FROM jobq.idempotency",
    "DELETE FROM jobq.tenant",
    "INSERT INTO jobq.job (queue_id, kind_id) VALUES (1, 1)",
    "UPDATE jobq.tenant SET lines = NULL",
    "SELECT jobq.grant_enqueue(session_user::regrole)",
    "SELECT jobq.grant_enqueue(session_user::regrole, queues => '{q}')",
    "SELECT jobq.revoke(session_user::regrole)",
    "SELECT jobq._tenant_may('q', '{tenant-8-a}', 1)",
    "CREATE OR REPLACE FUNCTION jobq._tenant_may(text, text[], integer) RETURNS text LANGUAGE sql "
    "AS 'SELECT NULL::text'"};

static void tenants_do_not_reach_each_other(void **state)
{
    char role[60], *before, *said;
    size_t i;

    (void)state;
    snprintf(role, sizeof role, "%s_seven", schema);
    RUN("CREATE ROLE %s LOGIN", role);
    RUN("ALTER SEQUENCE jobq.job_id RESTART");
    RUN("SELECT jobq.enqueue('q', 'k', '\"victim''s\"', key => "
        "'order-1', line => 'tenant-8-a'); SELECT jobq.enqueue('other', 'k'); "
        "SELECT jobq.flow('f'); SELECT jobq.outbox_register('q', 1); "
        "SELECT jobq.grant_enqueue('%s', queues => '{q}', lines => 'tenant-7-%%')", role);
    RUN("SELECT jobq._grant_added('{}')"); /* an upgrade widens nothing */
    tenants_open(role);
    before = of_the_victim();
    for (i = 0; i < COUNT(attacks); i++) {
        char *after;
        said = tenant_says(attacks[i]);
        if (strcmp(said, "42501") != 0) fail_msg("%s answers %s", attacks[i], said);
        after = of_the_victim();
        assert_string_equal(before, after);
        free(after);
        free(said);
    }
    tenant_is_told("SELECT jobq.enqueue('q', 'k')", "It is a tenant's, and may use queue q, and a "
                   "line that is LIKE 'tenant-7-%'.");
    a_tenants_program_is_told();
    said = tenant_says("SELECT existed FROM jobq.enqueue_or_get('q', 'k', '1', key => 'order-1', "
                       "line => 'tenant-7-a')");
    assert_string_equal(said, "f"); /* it does not learn of the victim's key */
    free(said);
    said = tenant_says("SELECT existed FROM jobq.enqueue_or_get('q', 'k', '2', key => 'order-1', "
                       "line => 'tenant-7-a', on_known => 'replace')");
    assert_string_equal(said, "f");
    free(said);
    said = tenant_says("SELECT existed FROM jobq.enqueue_or_get('q', 'k', '3', key => 'order-1', "
                       "line => 'tenant-7-a')");
    assert_string_equal(said, "t"); /* but of its own */
    free(said);
    said = tenant_says("SELECT existed[2] FROM jobq._enqueue_many('q', '{k}', NULL, '{1,2,3}', "
                       "p_keys => '{a,order-1,tenant-8-%/order-1}', p_lines => "
                       "'{tenant-7-a,tenant-7-a,tenant-7-a}')");
    assert_string_equal(said, "t");
    free(said);
    said = of_the_victim();
    assert_string_equal(before, said);
    assert_int_equal(number("SELECT count(*) FROM jobq.job WHERE line_name = 'tenant-7-a'"), 3);
    PQfinish(as_tenant);
    RUN("SELECT jobq.revoke('%s'); DROP ROLE %s", role, role);
    assert_int_equal(number("SELECT count(*) FROM jobq.tenant"), 0);
    free(said);
    free(before);
}

/* A tenant's role writes messages into the outboxes that it was given, and into no other; and it
 * loses its limits by no call that does not name them. */
static void a_tenant_may_have_an_outbox(void **state)
{
    char role[60], call[120], *said, *text;
    PGresult *res;

    (void)state;
    snprintf(role, sizeof role, "%s_outbox", schema);
    RUN("CREATE ROLE %s LOGIN", role);
    RUN("SELECT jobq.outbox_register('mine', 1), jobq.outbox_register('theirs', 1)");
    RUN("SELECT jobq.grant_enqueue('%s', queues => '{q}', outboxes => '{mine}')", role);
    snprintf(call, sizeof call, "SELECT jobq.grant_enqueue('%s')", role);
    text = for_schema(call, schema);
    res = PQexec(db, text);
    free(text);
    assert_string_equal(PQresultErrorField(res, PG_DIAG_SQLSTATE), "55000");
    PQclear(res);
    assert_int_equal(number("SELECT count(*) FROM jobq.tenant WHERE outboxes = '{mine}'"), 1);
    tenants_open(role);
    said = tenant_says("SELECT jobq.outbox_enqueue('theirs', '1')");
    assert_string_equal(said, "42501");
    free(said);
    said = tenant_says("SELECT refused FROM jobq._outbox_enqueue_many('theirs', NULL, NULL, NULL, "
                       "'{1}', NULL, NULL, NULL, 1, true)");
    assert_non_null(strstr(said, "may not write messages into queue 'theirs'"));
    free(said);
    said = tenant_says("SELECT jobq.outbox_enqueue('mine', '1') > 0");
    assert_string_equal(said, "t");
    free(said);
    assert_int_equal(number("SELECT count(*) FROM jobq.message"), 1);
    PQfinish(as_tenant);
    RUN("SELECT jobq.revoke('%s'); DROP ROLE %s", role, role);
}

/* Keys are kept apart also where the lines of one tenant begin like those of another one. */
static void tenants_do_not_share_keys(void **state)
{
    char roles[2][60], *said;
    int i;

    (void)state;
    for (i = 0; i < 2; i++) {
        snprintf(roles[i], sizeof roles[i], "%s_tenant_%d", schema, i);
        RUN("CREATE ROLE %s LOGIN; SELECT jobq.grant_enqueue('%s', queues => '{q}', "
            "lines => '%s')", roles[i], roles[i], i == 0 ? "a" : "a/b");
    }
    tenants_open(roles[1]);
    free(tenant_says("SELECT jobq.enqueue('q', 'k', key => 'x', line => 'a/b')"));
    PQfinish(as_tenant);
    tenants_open(roles[0]);
    said = tenant_says("SELECT existed FROM jobq.enqueue_or_get('q', 'k', key => 'b/x', "
                       "line => 'a')");
    assert_string_equal(said, "f");
    free(said);
    PQfinish(as_tenant);
    assert_int_equal(number("SELECT count(DISTINCT key) FROM jobq.job"), 2);
    for (i = 0; i < 2; i++) RUN("SELECT jobq.revoke('%s'); DROP ROLE %s", roles[i], roles[i]);
}

/* Membership, SET ROLE and a second grant. */
static void a_limit_follows_its_role(void **state)
{
    char *said, conninfo[1024];
    jobq_pg_job job = plain_job();
    jobq_pg_desc desc;
    jobq_pg_error error;
    jobq_pg *made;

    (void)state;
    RUN("CREATE ROLE %s_group; CREATE ROLE %s_login LOGIN NOINHERIT IN ROLE %s_group; SELECT "
        "jobq.grant_enqueue('%s_group', queues => '{q}', lines => 'a-%%')",
        schema, schema, schema, schema);
    snprintf(conninfo, sizeof conninfo, "%s_login", schema);
    tenants_open(conninfo);
    snprintf(conninfo, sizeof conninfo, "SET ROLE %s_group", schema);
    free(tenant_says(conninfo));
    said = tenant_says("SELECT jobq.enqueue('q', 'k', line => 'b-1')");
    assert_string_equal(said, "42501");
    free(said);
    said = tenant_says("SELECT jobq.enqueue('q', 'k', line => 'a-1') > 0");
    assert_string_equal(said, "t");
    free(said);
    RUN("SELECT jobq.grant_enqueue('%s_login', queues => '{q,r}')", schema);
    free(tenant_says("RESET ROLE"));
    said = tenant_says("SELECT jobq.enqueue('r', 'k') > 0");
    assert_string_equal(said, "t");
    free(said);
    PQfinish(as_tenant);
    snprintf(conninfo, sizeof conninfo, "%s user=%s_login", server(), schema);
    memset(&desc, 0, sizeof desc);
    desc.conninfo = conninfo;
    desc.schema = schema;
    desc.log = quiet_log;
    assert_int_equal(jobq_pg_open(&made, &desc, &error), JOBQ_OK);
    job.queue = "r";
    assert_int_equal(jobq_pg_enqueue(made, NULL, &job, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(made, NULL, &job, 1, NULL, &error), JOBQ_OK);
    assert_int_not_equal(jobq_pg_enqueue_many(made, NULL, &job, 1, JOBQ_PG_BY_COPY, &error),
                         JOBQ_OK);
    job.queue = "s";
    assert_int_not_equal(jobq_pg_enqueue(made, NULL, &job, NULL, &error), JOBQ_OK);
    assert_string_equal(error.sqlstate, "42501");
    jobq_pg_close(made);
    RUN("SELECT jobq.revoke('%s_login'), jobq.grant_enqueue('%s_login', true)", schema,
        schema); /* no tenant's any more ... */
    assert_int_equal(number("SELECT count(*) FROM jobq.tenant"), 1);
    RUN("SELECT jobq.grant_enqueue('%s_login', queues => '{q}')", schema); /* ... and again */
    assert_int_equal(number("SELECT has_table_privilege('%s_login', 'jobq.job', 'INSERT')::int",
                            schema), 0);
    RUN("SELECT jobq.revoke('%s_login'); SELECT jobq.revoke('%s_group'); DROP ROLE %s_login, "
        "%s_group", schema, schema, schema, schema);
    RUN("SELECT jobq.enqueue('anything', 'k')");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(names_are_refused, pg_empty),
        cmocka_unit_test_setup(texts_are_kept_as_they_are, pg_empty),
        cmocka_unit_test_setup(worker_and_application_names, pg_empty),
        cmocka_unit_test_setup(messages_keep_their_texts, pg_empty),
        cmocka_unit_test_setup(filters_find_what_they_name, pg_empty),
        cmocka_unit_test_setup(rows_keep_their_texts, pg_empty),
        cmocka_unit_test_setup_teardown(planted_things_have_no_effect, pg_empty, all_stop),
        cmocka_unit_test_setup(tenants_do_not_reach_each_other, pg_empty),
        cmocka_unit_test_setup(a_tenant_may_have_an_outbox, pg_empty),
        cmocka_unit_test_setup(tenants_do_not_share_keys, pg_empty),
        cmocka_unit_test_setup(a_limit_follows_its_role, pg_empty),
        cmocka_unit_test(passwords_are_not_told),
        cmocka_unit_test_setup(payloads_are_not_told, pg_empty),
    };

    return cmocka_run_group_tests_name("security", tests, pg_up, pg_down);
}
