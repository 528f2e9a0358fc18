/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_production.c -- what the pages show: README's program and each line of SQL run. Also what
 * a deploy may meet: repeated migrations, schema names at their limit (X32), the first use of a
 * name.
 */
#define TEST_PRIVATE
#include "pg_work.h"

/* ---- the pages ------------------------------------------------------------------------------- */

static const char *const pages[] = {"README.md", "examples/README.md", "examples/jobq/README.md",
                                    "examples/jobq/MANAGED.md", "tests/README.md"};

static char *whole_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text;
    long size;

    if (file == NULL) fail_msg("%s is not here: run from the repository", path);
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    rewind(file);
    text = calloc(1, (size_t)size + 1);
    assert_int_equal(fread(text, 1, (size_t)size, file), size);
    fclose(file);
    return text;
}

/* Runs the statements of one block, each of which ends its line with a semicolon; how many. */
static int run_block(const char *block, const char *end)
{
    const char *next;
    int count = 0;

    for (; (next = strstr(block, ";\n")) != NULL && next < end; block = next + 2) {
        char statement[2048];
        assert_true(next - block < (long)sizeof statement);
        snprintf(statement, sizeof statement, "%.*s", (int)(next - block), block);
        PQclear(sql(db, "%s", statement));
        count++;
    }
    return count;
}

/* Runs the blocks of SQL of a page; how many statements they have. */
static int run_page(const char *path)
{
    char *text = whole_file(path), *block, *end;
    int statements = 0;

    for (block = text; (block = strstr(block, "```sql\n")) != NULL; block = end + 3) {
        block += strlen("```sql\n");
        end = strstr(block, "```");
        assert_non_null(end);
        assert_true(end[-2] == ';'); /* nothing after the last statement is left out */
        statements += run_block(block, end);
    }
    free(text);
    return statements;
}

/* Roles, queues and jobs that the pages speak of; all in a transaction that is rolled back. */
static void the_pages_can_be_typed(void **unused)
{
    int statements = 0;
    size_t i;

    (void)unused;
    pg_empty(NULL);
    RUN("BEGIN");
    RUN("SELECT jobq.queue_set('mail', kinds => '{welcome,report}'), jobq.queue_set('slow')");
    RUN("SELECT jobq.enqueue('mail', 'welcome', key => 'order-7')");
    RUN("CREATE ROLE web; CREATE ROLE worker; CREATE ROLE dashboard; CREATE ROLE oncall");
    for (i = 0; i < COUNT(pages); i++) statements += run_page(pages[i]);
    assert_in_range(statements, 55, 1000);
    RUN("ROLLBACK");
}

/* The calls of a worker in SQL, by psql, which keeps their answers in variables. */
static void the_worker_in_sql_can_be_typed(void **unused)
{
    char *text = whole_file("examples/README.md"), *end, *mine, path[64], command[400];
    char *block = strstr(text, "```psql\n-- \\gset");
    FILE *file;

    (void)unused;
    if (getenv("JOBQ_SERVER_BIN") == NULL) skip(); /* psql may be elsewhere */
    assert_non_null(block);
    end = strstr(block += strlen("```psql\n"), "```");
    *end = '\0';
    pg_empty(NULL);
    RUN("SELECT jobq.enqueue('mail', 'welcome')");
    mine = for_schema(block, schema);
    snprintf(path, sizeof path, "/tmp/jobq_readme_%d.sql", (int)getpid());
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs(mine, file) >= 0);
    fclose(file);
    snprintf(command, sizeof command, "PATH=\"$JOBQ_SERVER_BIN:$PATH\" psql -Xq "
             "-v ON_ERROR_STOP=1 -f %s \"$JOBQ_SERVER\" >/dev/null", path);
    if (system(command) != 0) fail_msg("psql does not run: %s", mine);
    unlink(path);
    expect_text("{\"sent\": true}", "SELECT result FROM jobq.past_jobs WHERE state = 'succeeded'");
    free(mine);
    free(text);
}

/* Every view, and every function that a person on call types. */
static void the_page_of_operations_names_every_verb(void **unused)
{
    static const char *const verbs[] = {
        "jobq.queues", "jobq.workers", "jobq.failures", "jobq.jobs", "jobq.peek", "jobq.pause",
        "jobq.resume", "jobq.cancel", "jobq.revive", "jobq.delete", "jobq.reschedule",
        "jobq.prioritize", "jobq.move", "jobq.queue_set", "jobq.grant_enqueue", "jobq.grant_work",
        "jobq.grant_read", "jobq.grant_operate", "jobq.revoke", "jobq.audit"};
    char *text = whole_file("examples/jobq/README.md");
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(verbs); i++)
        if (strstr(text, verbs[i]) == NULL) fail_msg("not in it: %s", verbs[i]);
    free(text);
}

/* -- README's program, in a database of its own -- */

static char folder[] = "/tmp/jobq_readme_XXXXXX";

static void shell(const char *format, ...)
{
    char command[400];
    va_list args;

    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    if (system(command) != 0) fail_msg("%s", command);
}

/* Builds the block that begins with the comment hello.c as the page says, runs it, and compares
 * what it prints with the comment behind that line. */
static void the_readme_s_program_runs(void **unused)
{
    char *text = whole_file("README.md"), path[64], database[40], *end, *output, *line;
    char *block = strstr(text, "```c\n/* hello.c */");
    FILE *file;

    (void)unused;
    if (block == NULL) fail_msg("not in README.md: hello.c");
    line = strstr(block, "    cc hello.c -I. -lpq -o hello && ");
    assert_non_null(line);
    *strchr(line, '\n') = '\0';
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/hello.c", folder);
    file = fopen(path, "wb");
    assert_non_null(file);
    block += strlen("```c\n");
    end = strstr(block, "```");
    assert_int_equal(fwrite(block, 1, (size_t)(end - block), file), end - block);
    fclose(file);
    shell("cc %s -I. -lpq -o %s/hello", path, folder);
    snprintf(database, sizeof database, "jobq_readme_%d", (int)getpid());
    RUN("CREATE DATABASE %s", database);
    setenv("PGHOST", PQhost(db), 1);
    setenv("PGPORT", PQport(db), 1);
    setenv("PGUSER", PQuser(db), 1);
    setenv("PGDATABASE", database, 1);
    shell("%s/hello >%s/output", folder, folder);
    snprintf(path, sizeof path, "%s/output", folder);
    output = whole_file(path);
    *strchr(output, '\n') = '\0';
    assert_string_equal(output, strstr(line, "# ") + 2);
    free(output);
    free(text);
}

static int program_ends(void **state)
{
    static const char *const names[] = {"PGHOST", "PGPORT", "PGUSER", "PGDATABASE"};
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(names); i++) unsetenv(names[i]);
    RUN("DROP DATABASE IF EXISTS jobq_readme_%d WITH (FORCE)", (int)getpid());
    shell("rm -rf %s", folder);
    return 0;
}

/* ---- migrations (X32) ------------------------------------------------------------------------ */

static int ran;

static jobq_outcome run(jobq_call *call)
{
    (void)call;
    ADD(ran);
    return JOBQ_OUTCOME_SUCCESS;
}

/* Migrates twice, prepares every statement, enqueues and works, in a schema of that name. */
static void a_schema_serves(const char *name)
{
    jobq_pg_handler h = handler_of("q", "k", run);
    jobq_pg_worker_desc d = work_of(&h, 1);
    jobq_pg_desc desc = {.conninfo = server(), .schema = name};
    jobq_pg_job job = plain_job();
    char drop[96], *before, *after;
    jobq_pg_error error;
    jobq_pg *other;
    int i;

    assert_int_equal(jobq_pg_open(&other, &desc, &error), JOBQ_OK);
    if (jobq_pg_migrate(other, &error)) fail_msg("%s: %s", name, error.message);
    before = text_of("SELECT string_agg(c.xmin::text, ',' ORDER BY c.oid) FROM pg_class c WHERE "
                     "c.relnamespace = '%s'::regnamespace", jobq_pg_schema(other));
    assert_int_equal(jobq_pg_migrate(other, &error), JOBQ_OK);
    after = text_of("SELECT string_agg(c.xmin::text, ',' ORDER BY c.oid) FROM pg_class c WHERE "
                    "c.relnamespace = '%s'::regnamespace", jobq_pg_schema(other));
    assert_string_equal(before, after);
    free(before);
    free(after);
    for (i = 0; i < JOBQ_PG__STATEMENT_COUNT; i++) {
        PGresult *res;
        const char *text = other->texts[i].sql;
        if (strncmp(text, "COPY", 4) == 0 || strncmp(text, "VACUUM", 6) == 0) continue;
        res = PQprepare(db, "", text, 0, NULL);
        if (PQresultStatus(res) != PGRES_COMMAND_OK)
            fail_msg("%s: %s", text, PQerrorMessage(db));
        PQclear(res);
    }
    SET(ran, 0);
    job.key = "key";
    assert_int_equal(jobq_pg_enqueue(other, NULL, &job, NULL, &error), JOBQ_OK);
    assert_int_equal(jobq_pg_enqueue_many(other, NULL, &(jobq_pg_job){.queue = "q", .kind = "k"}, 1,
                                          JOBQ_PG_BY_COPY,
                                          &error), JOBQ_OK);
    d.loop.until = JOBQ_UNTIL_EMPTY;
    if (jobq_pg_work(other, &d, &error)) fail_msg("%s", error.message);
    assert_int_equal(GET(ran), 2);
    snprintf(drop, sizeof drop, "DROP SCHEMA %s CASCADE", jobq_pg_schema(other));
    jobq_pg_close(other);
    PQclear(PQexec(db, drop));
}

static void schema_names_of_every_sort_serve(void **unused)
{
    (void)unused;
    a_schema_serves("x");
    a_schema_serves("_Select_");
    a_schema_serves("User");
    a_schema_serves("Jobq");
    a_schema_serves("A2345678901234567890123456789012345678901234567z"); /* 48, the limit */
}

/* ---- the first use of a name ----------------------------------------------------------------- */

/* A session that uses the same new name waits for the one that used it first; not when the name
 * was made before. The header says so, and names the remedy. */
static void a_name_made_before_makes_nobody_wait(void **unused)
{
    static const char *const kinds[] = {"k"};
    jobq_pg_queue_desc d = {.kinds = kinds, .kind_count = 1};
    PGconn *slow = PQconnectdb(server());
    jobq_pg_job job = plain_job();
    jobq_pg_error error;
    int made;

    (void)unused;
    for (made = 0; made < 2; made++) {
        jobq_error wanted = made ? JOBQ_OK : JOBQ_ERROR_RETRYABLE;
        pg_empty(NULL); /* which resets lock_timeout */
        RUN("SET lock_timeout = '300ms'");
        if (made) assert_int_equal(jobq_pg_queue_set(pg, NULL, "q", &d, &error), JOBQ_OK);
        PQclear(PQexec(slow, "BEGIN"));
        assert_int_equal(jobq_pg_enqueue(pg, slow, &job, NULL, &error), JOBQ_OK);
        assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), wanted);
        if (!made) assert_string_equal(error.sqlstate, "55P03");
        PQclear(PQexec(slow, "COMMIT"));
        assert_int_equal(jobq_pg_enqueue(pg, db, &job, NULL, &error), JOBQ_OK);
    }
    RUN("RESET lock_timeout");
    PQfinish(slow);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pages_can_be_typed),
        cmocka_unit_test(the_worker_in_sql_can_be_typed),
        cmocka_unit_test(the_page_of_operations_names_every_verb),
        cmocka_unit_test_teardown(the_readme_s_program_runs, program_ends),
        cmocka_unit_test(schema_names_of_every_sort_serve),
        cmocka_unit_test(a_name_made_before_makes_nobody_wait),
    };

    return cmocka_run_group_tests_name("production", tests, pg_up, pg_down);
}
