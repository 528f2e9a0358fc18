/*
 * test_pg_production.c -- what README.md shows: its two programs and each line of SQL run. Also
 * what a deploy may meet: repeated migrations, schema names at their limit (X32), the first use of
 * a name.
 */
#define TEST_PRIVATE
#include "pg_work.h"

/* ---- README ---------------------------------------------------------------------------------- */

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

/* Roles, queues and jobs that the page speaks of; all in a transaction that is rolled back. */
static void the_readme_can_be_typed(void **unused)
{
    char *text = whole_file("README.md"), *block, *end;
    int statements = 0, blocks = 0;

    (void)unused;
    pg_empty(NULL);
    RUN("BEGIN");
    RUN("SELECT jobq.queue_set('mail', kinds => '{welcome,report}'), jobq.queue_set('slow')");
    RUN("SELECT jobq.enqueue('mail', 'welcome', key => 'order-7')");
    RUN("CREATE ROLE web; CREATE ROLE worker; CREATE ROLE dashboard; CREATE ROLE oncall");
    for (block = text; (block = strstr(block, "```sql\n")) != NULL; block = end + 3) {
        block += strlen("```sql\n");
        end = strstr(block, "```");
        assert_non_null(end);
        assert_true(end[-2] == ';'); /* nothing after the last statement is left out */
        statements += run_block(block, end);
        blocks++;
    }
    assert_in_range(blocks, 8, 100);
    assert_in_range(statements, 30, 1000);
    RUN("ROLLBACK");
    free(text);
}

/* The calls of a worker in SQL, by psql, which keeps their answers in variables. */
static void the_worker_in_sql_can_be_typed(void **unused)
{
    char *text = whole_file("README.md"), *end, *mine, path[64], command[400];
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

/* Every view, and every function that a person types, is on the page or in its file's head. */
static void the_readme_names_every_verb(void **unused)
{
    static const char *const verbs[] = {
        "jobq.queues", "jobq.workers", "jobq.failures", "jobq.jobs", "jobq.peek", "jobq.pause",
        "jobq.resume", "jobq.cancel", "jobq.revive", "jobq.delete", "jobq.reschedule",
        "jobq.prioritize", "jobq.move", "jobq.queue_set", "jobq.grant_enqueue", "jobq.grant_work",
        "jobq.grant_read", "jobq.grant_operate", "jobq.revoke", "jobq.audit"};
    char *text = whole_file("README.md");
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(verbs); i++)
        if (strstr(text, verbs[i]) == NULL) fail_msg("not in README.md: %s", verbs[i]);
    free(text);
}

/* -- its two programs, in a database of their own -- */

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

/* Builds the block that begins with the comment NAME.c as the page says. */
static void build_program(const char *name)
{
    char *text = whole_file("README.md"), start[64], path[64];
    const char *block, *end;
    FILE *file;

    snprintf(start, sizeof start, "```c\n/* %s.c", name);
    block = strstr(text, start);
    if (block == NULL) fail_msg("not in README.md: %s.c", name);
    block += strlen("```c\n");
    end = strstr(block, "```");
    assert_non_null(end);
    snprintf(path, sizeof path, "%s/%s.c", folder, name);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(block, 1, (size_t)(end - block), file), end - block);
    fclose(file);
    free(text);
    shell("cc %s -I. -lpq -o %s/%s", path, folder, name);
}

/* Starts the worker, whose output goes to a file. */
static pid_t start_program(void)
{
    char path[64], output[64];
    pid_t pid;

    snprintf(path, sizeof path, "%s/worker", folder);
    snprintf(output, sizeof output, "%s/output", folder);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (freopen(output, "w", stdout) != NULL) execl(path, path, (char *)NULL);
        _exit(127);
    }
    return children[0] = pid;
}

/* Waits until the worker has done the one job of the producer. */
static void job_ends(PGconn *there, pid_t worker)
{
    bool ended = false;

    while (!ended) {
        PGresult *res = PQexec(there, "SELECT FROM jobq.past_jobs WHERE state = 'succeeded'");
        ended = PQntuples(res) == 1;
        PQclear(res);
        if (exited(worker)) fail_msg("the worker ended by itself");
        nap_us(20000);
    }
}

static void the_readme_s_programs_run(void **unused)
{
    char conninfo[300], path[64], *output;
    PGconn *there;
    pid_t worker;
    int status;

    (void)unused;
    assert_non_null(mkdtemp(folder));
    build_program("signup");
    build_program("worker");
    RUN("CREATE DATABASE jobq_readme_%d", (int)getpid());
    snprintf(conninfo, sizeof conninfo, "%s dbname=jobq_readme_%d", server(), (int)getpid());
    setenv("DATABASE_URL", conninfo, 1);
    there = PQconnectdb(conninfo);
    shell("%s/signup", folder);
    worker = start_program();
    job_ends(there, worker);
    kill(worker, SIGTERM);
    status = reap(worker);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    snprintf(path, sizeof path, "%s/output", folder);
    output = whole_file(path);
    assert_string_equal(output, "welcome ann@example.org\n");
    free(output);
    PQfinish(there);
}

static int programs_end(void **state)
{
    all_stop(state);
    RUN("DROP DATABASE IF EXISTS jobq_readme_%d WITH (FORCE)", (int)getpid());
    shell("rm -rf %s", folder);
    return unsetenv("DATABASE_URL");
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
        cmocka_unit_test(the_readme_can_be_typed),
        cmocka_unit_test(the_worker_in_sql_can_be_typed),
        cmocka_unit_test(the_readme_names_every_verb),
        cmocka_unit_test_teardown(the_readme_s_programs_run, programs_end),
        cmocka_unit_test(schema_names_of_every_sort_serve),
        cmocka_unit_test(a_name_made_before_makes_nobody_wait),
    };

    return cmocka_run_group_tests_name("production", tests, pg_up, pg_down);
}
