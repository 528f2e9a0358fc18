/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_worktable.c -- the job verbs on a table of the user: X2 to X13 on the two-stage table of
 * examples/videos.sql, with and without lease columns.
 */
#define TEST_PRIVATE
#include "pg.h"

typedef struct video {
    jobq_str video_id, status;
    int32_t retry_count;
    int64_t created_at, updated_at;
    jobq_str error_message;
    jobq_pg_maybe_int64 retry_after, pc_heartbeat, worker, lease;
} video;

static const jobq_pg_column video_columns[] = {
    JOBQ_PG_COLUMN(video, video_id, TEXT, JOBQ_PG_KEY),
    JOBQ_PG_COLUMN(video, status, TEXT, 0),
    JOBQ_PG_COLUMN(video, retry_count, INT32, 0),
    JOBQ_PG_COLUMN(video, created_at, TIMESTAMPTZ, 0),
    JOBQ_PG_COLUMN(video, updated_at, TIMESTAMPTZ, JOBQ_PG_TOUCH),
    JOBQ_PG_COLUMN(video, error_message, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(video, retry_after, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(video, pc_heartbeat, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(video, worker, INT64, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(video, lease, INT64, JOBQ_PG_NULLABLE), JOBQ_PG_COLUMNS_END};

static const jobq_pg_table_desc video_desc = {"jobq.videos", sizeof(video), video_columns, "video",
                                              NULL, false};
static const char *const stages[] = {"EXTRACTION", "EMBEDDING"};
static const char *const words[] = {"PENDING", "EXTRACTION_IN_PROGRESS", "EXTRACTION_COMPLETE",
                                    "EMBEDDING_IN_PROGRESS", "SUCCEEDED", "FAILED"};

static jobq_pg_table *videos;
static jobq_pg_worktable *leased, *plain; /* the same table, with the token and without */
static jobq_pg_error error;
static jobq_pg_rows rows;
static jobq_state became; /* the row that was settled */

#define OK(call)                                              \
    do {                                                      \
        if ((call) != JOBQ_OK) fail_msg("%s", error.message); \
    } while (0)
#define ROW(i) ((video *)rows.rows + (i))

static jobq_pg_worktable_desc work_desc(bool token)
{
    jobq_pg_worktable_desc d;

    memset(&d, 0, sizeof d);
    d.stages = stages;
    d.stage_count = 2;
    d.heartbeat = "pc_heartbeat";
    d.worker = token ? "worker" : NULL;
    d.lease = token ? "lease" : NULL;
    d.max_retries = 3;
    return d;
}

/* leased: the preset seed without jitter; plain: as it is by default. */
static bool tables_open(void)
{
    jobq_pg_worktable_desc with = work_desc(true), without = work_desc(false);

    with.backoff = jobq_backoff_seed();
    with.backoff.jitter_permille = JOBQ_NO_JITTER;
    return jobq_pg_table_open(&videos, pg, NULL, &video_desc, &error) == JOBQ_OK &&
           jobq_pg_worktable_open(&leased, videos, NULL, &with, &error) == JOBQ_OK &&
           jobq_pg_worktable_open(&plain, videos, NULL, &without, &error) == JOBQ_OK;
}

/* In a child, which has its own of everything. */
static PGconn *child_open(void)
{
    PGconn *conn = PQconnectdb(server());

    pg = handle();
    if (!tables_open()) _exit(1);
    return conn;
}

static int up(void **state)
{
    static char text[8192];
    FILE *file = fopen("examples/videos.sql", "r");

    if (pg_up(state) != 0 || file == NULL) return 1;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    RUN("SET search_path = jobq");
    PQclear(PQexec(db, text));
    if (tables_open()) return 0;
    fprintf(stderr, "%s\n", error.message);
    return 1;
}

static int down(void **state)
{
    jobq_pg_rows_clear(&rows);
    jobq_pg_worktable_close(leased);
    jobq_pg_worktable_close(plain);
    jobq_pg_table_close(videos);
    return pg_down(state);
}

static int empty(void **state)
{
    (void)state;
    RUN("TRUNCATE jobq.videos");
    return 0;
}

static void add(const char *id, const char *status, int count)
{
    RUN("INSERT INTO jobq.videos (video_id, status, retry_count, created_at) VALUES "
        "('%s', '%s', %d, '2020-01-01'::timestamptz + '%s'::text::int * interval '1 second')",
        id, status, count, strpbrk(id, "0123456789") == NULL ? "0" : strpbrk(id, "0123456789"));
}

static void claim(jobq_pg_worktable *w, int32_t count, int64_t lease)
{
    jobq_pg_rows_clear(&rows);
    OK(jobq_pg_worktable_claim(w, NULL, count, 7, lease, &rows, &error));
}

static jobq_error settle(jobq_pg_worktable *w, const void *row, jobq_outcome outcome,
                         const char *why)
{
    jobq_pg_verdict v = {.outcome = outcome, .why = why};
    jobq_error code = jobq_pg_worktable_settle(w, NULL, row, &v, 1, &error);

    assert_int_equal(v.code, code);
    assert_int_equal(v.state == JOBQ_STATE_NONE, code != JOBQ_OK);
    if (code != JOBQ_OK) assert_int_equal(error.code, code);
    became = v.state;
    return code;
}

static jobq_error release(jobq_pg_worktable *w, const void *row)
{
    return settle(w, row, JOBQ_OUTCOME_RELEASE, NULL);
}

static jobq_error beat(jobq_pg_worktable *w, void *row)
{
    jobq_pg_verdict v;
    jobq_error code = jobq_pg_worktable_heartbeat(w, NULL, row, &v, 1, &error);

    assert_int_equal(v.code, code);
    return code;
}

/* One row in stage 0, claimed. */
static void claim_new(jobq_pg_worktable *w)
{
    add("v1", "PENDING", 0);
    claim(w, 1, 1);
    assert_int_equal(rows.count, 1);
}

static void assert_row(const char *status, int count, const char *rest)
{
    if (number("SELECT count(*) FROM jobq.videos WHERE status = '%s' AND retry_count = %d AND %s",
               status, count, rest) == 1)
        return;
    {
        PGresult *res = sql(db, "SELECT v::text FROM jobq.videos v");
        fail_msg("%s %d %s: %s", status, count, rest, PQgetvalue(res, 0, 0));
    }
}

static void claims_later_stages_first_then_age_then_id(void **state)
{
    static const char *const order[] = {"e8", "e9", "a1", "p2", "p3", "q3"};
    size_t i;

    (void)state;
    add("q3", "PENDING", 0);
    add("p3", "PENDING", 2);
    add("p2", "PENDING", 0);
    add("a1", "PENDING", 0);
    add("e9", "EXTRACTION_COMPLETE", 0);
    add("e8", "EXTRACTION_COMPLETE", 0);
    add("x0", "PENDING", 3);
    add("y0", "SUCCEEDED", 0);
    add("z0", "EMBEDDING_IN_PROGRESS", 0);
    add("w0", "PENDING", 0);
    RUN("UPDATE jobq.videos SET retry_after = now() + interval '1 hour' WHERE video_id = 'w0'");
    RUN("UPDATE jobq.videos SET retry_after = now() - interval '1 second' WHERE video_id = 'p2'");
    claim(leased, 5, 1);
    assert_int_equal(rows.count, 5);
    for (i = 0; i < 5; i++) assert_string_equal(ROW(i)->video_id.ptr, order[i]);
    assert_string_equal(ROW(0)->status.ptr, "EMBEDDING_IN_PROGRESS");
    assert_int_equal(jobq_pg_worktable_stage(leased, ROW(0)), 1);
    assert_int_equal(jobq_pg_worktable_stage(leased, ROW(4)), 0);
    assert_true(ROW(3)->pc_heartbeat.set && !ROW(3)->retry_after.set);
    assert_true(ROW(3)->worker.value == 7 && ROW(3)->lease.value == 1);
    claim(leased, 5, 2);
    assert_int_equal(rows.count, 1);
    assert_string_equal(ROW(0)->video_id.ptr, order[5]);
    claim(leased, 5, 3);
    assert_int_equal(rows.count, 0);
}

/* The claim reads its index in order, locks no more rows than it takes, and is one statement. */
static void claim_reads_the_index_without_a_sort(void **state)
{
    PGresult *res;
    bool index = false, sort = false, scan = false;
    int i;

    (void)state;
    RUN("INSERT INTO jobq.videos (video_id, status) SELECT 'v' || n, CASE WHEN n %% 2 = 0 THEN "
        "'PENDING' ELSE 'SUCCEEDED' END FROM generate_series(1, 20000) n");
    RUN("ANALYZE jobq.videos");
    RUN("DEALLOCATE ALL");
    {
        char *text = malloc(strlen(leased->claim.sql) + 100);
        sprintf(text, "PREPARE claiming AS %s", leased->claim.sql);
        PQclear(PQexec(db, text));
        free(text);
    }
    res = PQexec(db, "EXPLAIN (ANALYZE, COSTS off) EXECUTE claiming(100, 7, 1)");
    assert_true(PQntuples(res) > 0);
    for (i = 0; i < PQntuples(res); i++) {
        const char *line = PQgetvalue(res, i, 0);
        index = index || strstr(line, "videos_ready") != NULL;
        sort = sort || strstr(line, "Sort") != NULL;
        scan = scan || strstr(line, "Seq Scan") != NULL;
    }
    PQclear(res);
    assert_true(index && !sort && !scan);
    assert_int_equal(number("SELECT count(*) FROM jobq.videos WHERE worker = 7"), 100);
}

static void two_claimers_never_wait_nor_share(void **state)
{
    PGconn *a = PQconnectdb(server()), *b = PQconnectdb(server());
    jobq_pg_rows other;
    size_t i, k;

    (void)state;
    RUN("INSERT INTO jobq.videos (video_id) SELECT 'v' || n FROM generate_series(1, 50) n");
    PQclear(PQexec(a, "BEGIN; SET LOCAL lock_timeout = 1"));
    PQclear(PQexec(b, "BEGIN; SET LOCAL lock_timeout = 1"));
    jobq_pg_rows_clear(&rows);
    OK(jobq_pg_worktable_claim(leased, a, 30, 1, 1, &rows, &error));
    OK(jobq_pg_worktable_claim(leased, b, 30, 2, 1, &other, &error));
    assert_true(rows.count == 30 && other.count == 20);
    for (i = 0; i < rows.count; i++) {
        for (k = 0; k < other.count; k++)
            assert_false(jobq_str_equal(ROW(i)->video_id, ((video *)other.rows)[k].video_id));
    }
    jobq_pg_rows_clear(&other);
    PQfinish(a);
    PQfinish(b);
}

/* Sixteen processes, each id once. */
static void crowds_claim_each_row_once(void **state)
{
    enum { PROCESSES = 16 };
    long all = check_slow() ? 2000 : 10000;
    pid_t pids[PROCESSES];
    int i, status;

    (void)state;
    RUN("INSERT INTO jobq.videos (video_id) SELECT 'v' || n FROM generate_series(1, %ld) n", all);
    RUN("CREATE TABLE jobq.seen (video_id text)");
    for (i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            PGconn *conn = child_open();
            int64_t lease = 1;
            jobq_pg_rows got;
            char insert[200];
            size_t k;
            snprintf(insert, sizeof insert, "INSERT INTO %s.seen VALUES ($1)", schema);
            PQclear(PQexec(conn, "SET lock_timeout = '60s'"));
            for (;; lease++) {
                if (jobq_pg_worktable_claim(leased, conn, 100, i + 1, lease, &got, NULL)) _exit(1);
                if (got.count == 0) _exit(0);
                PQclear(PQexec(conn, "BEGIN"));
                for (k = 0; k < got.count; k++) {
                    const char *id = ((video *)got.rows)[k].video_id.ptr;
                    PQclear(PQexecParams(conn, insert, 1, NULL, &id, NULL, NULL, 0));
                }
                PQclear(PQexec(conn, "COMMIT"));
                jobq_pg_rows_clear(&got);
            }
        }
    }
    for (i = 0; i < PROCESSES; i++) {
        waitpid(pids[i], &status, 0);
        assert_int_equal(status, 0);
    }
    claim(leased, 1000, 99999); /* what was locked when the last one looked */
    assert_int_equal(number("SELECT count(*) FROM jobq.seen") + (long)rows.count, all);
    assert_int_equal(number("SELECT count(DISTINCT video_id) FROM jobq.seen") + (long)rows.count,
                     all);
    RUN("DROP TABLE jobq.seen");
}

static void stages_to_the_end(void **state)
{
    (void)state;
    claim_new(leased);
    OK(settle(leased, ROW(0), JOBQ_OUTCOME_SUCCESS, "no reason"));
    assert_int_equal(became, JOBQ_STATE_READY);
    assert_row("EXTRACTION_COMPLETE", 0, "worker IS NULL AND pc_heartbeat IS NULL AND updated_at > "
                                         "created_at AND error_message IS NULL");
    claim(leased, 1, 2);
    OK(settle(leased, ROW(0), JOBQ_OUTCOME_SUCCESS, NULL));
    assert_int_equal(became, JOBQ_STATE_SUCCEEDED);
    assert_row("SUCCEEDED", 0, "worker IS NULL AND error_message IS NULL AND lease IS NULL");
}

static void retries_back_off_and_end(void **state)
{

    (void)state;
    claim_new(leased);
    OK(settle(leased, ROW(0), JOBQ_OUTCOME_RETRY, "one"));
    assert_int_equal(became, JOBQ_STATE_READY);
    assert_row("PENDING", 1,
               "error_message = 'one' AND retry_after - updated_at BETWEEN '119 s' AND "
               "'121 s'");
    RUN("UPDATE jobq.videos SET retry_after = now(), status = 'EXTRACTION_COMPLETE'");
    claim(leased, 1, 2);
    OK(settle(leased, ROW(0), JOBQ_OUTCOME_RETRY, "two"));
    assert_int_equal(became, JOBQ_STATE_READY);
    assert_row("EXTRACTION_COMPLETE", 2, "retry_after - updated_at BETWEEN '239 s' AND '241 s'");
    RUN("UPDATE jobq.videos SET retry_after = NULL");
    claim(leased, 1, 3);
    OK(settle(leased, ROW(0), JOBQ_OUTCOME_RETRY, "three"));
    assert_int_equal(became, JOBQ_STATE_FAILED);
    assert_row("FAILED", 3, "error_message = 'Max retries (3) exceeded: three' AND retry_after IS "
                            "NULL");
}

/* 120 s, +-25 %, and not the same for all. */
static void retries_have_jitter(void **state)
{
    size_t i;

    (void)state;
    RUN("INSERT INTO jobq.videos (video_id) SELECT 'v' || n FROM generate_series(1, 20) n");
    claim(plain, 20, 0);
    assert_int_equal(rows.count, 20);
    for (i = 0; i < rows.count; i++) OK(settle(plain, ROW(i), JOBQ_OUTCOME_NONE, NULL));
    assert_int_equal(number("SELECT count(*) FROM jobq.videos WHERE status = 'PENDING' AND "
                            "retry_count = 1 AND error_message = '' AND "
                            "retry_after - updated_at BETWEEN '90 s' AND '150 s'"), 20);
    assert_true(number("SELECT count(DISTINCT retry_after - updated_at) FROM jobq.videos") > 10);
}

static void success_forgets_errors_and_counts_per_stage(void **state)
{
    (void)state;
    add("v1", "PENDING", 2);
    RUN("UPDATE jobq.videos SET error_message = 'old'");
    claim(leased, 1, 1);
    OK(settle(leased, ROW(0), JOBQ_OUTCOME_SUCCESS, NULL));
    assert_row("EXTRACTION_COMPLETE", 0, "error_message IS NULL");
}

static void failing_for_good(void **state)
{
    (void)state;
    claim_new(leased);
    OK(settle(leased, ROW(0), JOBQ_OUTCOME_DISCARD, "no such file"));
    assert_row("FAILED", 1, "error_message = 'no such file' AND worker IS NULL");
}

static void release_counts_nothing(void **state)
{
    jobq_pg_rows others;

    (void)state;
    add("v1", "EXTRACTION_COMPLETE", 1);
    RUN("UPDATE jobq.videos SET error_message = 'disk full'");
    add("v2", "PENDING", 0);
    claim(leased, 1, 1);
    OK(jobq_pg_worktable_claim(leased, NULL, 1, 8, 1, &others, &error));
    jobq_pg_rows_clear(&others);
    OK(release(leased, ROW(0)));
    assert_row("EXTRACTION_COMPLETE", 1, "worker IS NULL AND error_message = 'disk full'");
    assert_row("EXTRACTION_IN_PROGRESS", 0, "worker = 8"); /* another's stays */
}

/* Every word as the row's status, every verb: what does not apply changes nothing. */
static void every_status_and_verb(void **state)
{
    static const char verbs[] = "sdrlh";
    size_t i;
    const char *v;

    (void)state;
    for (i = 0; i < COUNT(words); i++) {
        for (v = verbs; *v != '\0'; v++) {
            bool good = i == 1 || i == 3;
            jobq_error code = JOBQ_OK;
            long before;
            RUN("TRUNCATE jobq.videos");
            add("v1", words[i], 0);
            RUN("UPDATE jobq.videos SET worker = 7, lease = 1, pc_heartbeat = now()");
            before = number("SELECT xmin::text::bigint FROM jobq.videos");
            jobq_pg_rows_clear(&rows);
            OK(jobq_pg_table_list(videos, NULL, NULL, &rows, &error));
            if (*v == 's') code = settle(leased, ROW(0), JOBQ_OUTCOME_SUCCESS, NULL);
            if (*v == 'd') code = settle(leased, ROW(0), JOBQ_OUTCOME_DISCARD, "x");
            if (*v == 'r') code = settle(leased, ROW(0), JOBQ_OUTCOME_RETRY, "x");
            if (*v == 'l') code = release(leased, ROW(0));
            if (*v == 'h') code = beat(leased, ROW(0));
            if (code != (good ? JOBQ_OK : JOBQ_ERROR_TRANSITION))
                fail_msg("%s %c: %s", words[i], *v, error.message);
            assert_int_equal(number("SELECT xmin::text::bigint FROM jobq.videos") != before, good);
        }
    }
}

/* A claims, its heartbeat goes stale, it is reset, B claims under the same worker: A's writes are
 * lost, whatever they are, and B's row stays as it is. */
static void fences(jobq_pg_worktable *w)
{
    jobq_pg_rows stale;
    video *old;
    int64_t count;
    long before;

    claim_new(w);
    stale = rows;
    memset(&rows, 0, sizeof rows);
    old = stale.rows;
    RUN("UPDATE jobq.videos SET pc_heartbeat = now() - interval '301 s'");
    OK(jobq_pg_worktable_reset(w, NULL, &count, &error));
    assert_int_equal(count, 1);
    assert_row("PENDING", 1, "pc_heartbeat IS NULL AND error_message = 'heartbeat lost'");
    claim(w, 1, 2);
    assert_int_equal(rows.count, 1);
    before = number("SELECT xmin::text::bigint FROM jobq.videos");
    assert_int_equal(settle(w, old, JOBQ_OUTCOME_SUCCESS, NULL), JOBQ_ERROR_LOST);
    assert_int_equal(settle(w, old, JOBQ_OUTCOME_DISCARD, "x"), JOBQ_ERROR_LOST);
    assert_int_equal(settle(w, old, JOBQ_OUTCOME_RETRY, "x"), JOBQ_ERROR_LOST);
    assert_int_equal(release(w, old), JOBQ_ERROR_LOST);
    assert_int_equal(beat(w, old), JOBQ_ERROR_LOST);
    assert_int_equal(number("SELECT xmin::text::bigint FROM jobq.videos"), before);
    OK(settle(w, ROW(0), JOBQ_OUTCOME_SUCCESS, NULL));
    RUN("DELETE FROM jobq.videos");
    assert_int_equal(settle(w, old, JOBQ_OUTCOME_DISCARD, "x"), JOBQ_ERROR_NOT_FOUND);
    jobq_pg_rows_clear(&stale);
}

static void stale_writers_are_lost(void **state)
{
    (void)state;
    fences(leased);
}

static void stale_writers_are_lost_without_lease_columns(void **state)
{
    (void)state;
    fences(plain);
}

static void heartbeats_keep_a_row(void **state)
{
    jobq_pg_worktable *each[] = {leased, plain};
    int64_t count;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(each); i++) {
        empty(NULL);
        claim_new(each[i]);
        OK(beat(each[i], ROW(0)));
        OK(beat(each[i], ROW(0)));
        OK(jobq_pg_worktable_reset(each[i], NULL, &count, &error));
        assert_int_equal(count, 0);
        OK(settle(each[i], ROW(0), JOBQ_OUTCOME_SUCCESS, NULL));
    }
}

/* One statement for all rows, with any outcomes; refused rows do not keep others from being
 * settled. */
static void a_batch_is_settled_in_one_statement(void **state)
{
    enum { ROWS = 103 };
    static const jobq_outcome outcomes[] = {JOBQ_OUTCOME_SUCCESS, JOBQ_OUTCOME_RETRY,
                                            JOBQ_OUTCOME_DISCARD, JOBQ_OUTCOME_RELEASE};
    jobq_pg_verdict v[ROWS];
    PGresult *res;
    int i;

    (void)state;
    memset(v, 0, sizeof v);
    RUN("INSERT INTO jobq.videos (video_id, error_message) SELECT to_char(n, 'FM000'), 'old' "
        "FROM generate_series(0, %d) n", ROWS - 1);
    claim(leased, ROWS, 1);
    assert_int_equal(rows.count, ROWS);
    for (i = 0; i < ROWS; i++) {
        assert_int_equal(atoi(ROW(i)->video_id.ptr), i);
        v[i].outcome = outcomes[i % 4];
        v[i].why = i % 8 == 2 ? NULL : "why";
    }
    RUN("DELETE FROM jobq.videos WHERE video_id = '004'");
    RUN("UPDATE jobq.videos SET worker = 8 WHERE video_id = '009'");
    ROW(0)->status = jobq_str_from("SUCCEEDED");
    assert_int_equal(jobq_pg_worktable_settle(leased, NULL, rows.rows, v, ROWS, &error),
                     JOBQ_ERROR_TRANSITION);
    assert_string_equal(error.message, "Invalid state: video with status=SUCCEEDED");
    for (i = 0; i < ROWS; i++) {
        jobq_error wanted = i == 0   ? JOBQ_ERROR_TRANSITION
                            : i == 4 ? JOBQ_ERROR_NOT_FOUND
                            : i == 9 ? JOBQ_ERROR_LOST
                                     : JOBQ_OK;
        assert_int_equal(v[i].code, wanted);
        assert_int_equal(v[i].state, wanted != JOBQ_OK ? JOBQ_STATE_NONE
                                     : i % 4 == 2      ? JOBQ_STATE_FAILED
                                                       : JOBQ_STATE_READY);
    }
    res = sql(db, "SELECT string_agg(concat_ws(' ', status, retry_count, error_message, rests, n), "
                  "', ' ORDER BY kind, error_message) FROM (SELECT video_id::int %% 4 AS kind, "
                  "status, retry_count, error_message, retry_after > now() AS rests, count(*) AS n "
                  "FROM jobq.videos WHERE worker IS NULL AND lease IS NULL AND pc_heartbeat IS "
                  "NULL GROUP BY 1, 2, 3, 4, 5) a");
    assert_string_equal(PQgetvalue(res, 0, 0), "EXTRACTION_COMPLETE 0 24, PENDING 1 why t 25, "
                                               "FAILED 1  13, FAILED 1 why 13, PENDING 0 old 25");
    PQclear(res);
    assert_int_equal(number("SELECT count(DISTINCT xmin::text || cmin) FROM jobq.videos "
                            "WHERE worker IS NULL"), 1);
    assert_row("EXTRACTION_IN_PROGRESS", 0, "video_id = '009' AND error_message = 'old'");
    assert_row("EXTRACTION_IN_PROGRESS", 0, "video_id = '000' AND error_message = 'old'");
}

static void a_batch_beats_at_once(void **state)
{
    jobq_pg_worktable *each[] = {leased, plain};
    jobq_pg_verdict v[3];
    size_t i;

    (void)state;
    for (i = 0; i < COUNT(each); i++) {
        empty(NULL);
        add("v1", "PENDING", 0);
        add("v2", "PENDING", 0);
        add("v3", "PENDING", 0);
        claim(each[i], 3, 1);
        RUN("UPDATE jobq.videos SET worker = 8, lease = 2, pc_heartbeat = now() - interval '1 h' "
            "WHERE video_id = 'v2'");
        assert_int_equal(jobq_pg_worktable_heartbeat(each[i], NULL, rows.rows, v, 3, &error),
                         JOBQ_ERROR_LOST);
        assert_string_equal(error.value, "v2");
        assert_true(v[0].code == JOBQ_OK && v[1].code == JOBQ_ERROR_LOST && v[2].code == JOBQ_OK);
        assert_int_equal(number("SELECT count(DISTINCT xmin::text || cmin) FROM jobq.videos WHERE "
                                "video_id <> 'v2' AND extract(epoch FROM pc_heartbeat) * 1000000 "
                                "= %lld", (long long)ROW(0)->pc_heartbeat.value), 1);
        assert_int_equal(ROW(0)->pc_heartbeat.value, ROW(2)->pc_heartbeat.value);
        OK(settle(each[i], ROW(2), JOBQ_OUTCOME_SUCCESS, NULL));
        assert_int_equal(jobq_pg_worktable_heartbeat(each[i], NULL, rows.rows, NULL, 3, NULL),
                         JOBQ_ERROR_LOST);
        OK(settle(each[i], ROW(0), JOBQ_OUTCOME_SUCCESS, NULL));
        OK(jobq_pg_worktable_heartbeat(each[i], NULL, NULL, NULL, 0, &error));
        OK(jobq_pg_worktable_settle(each[i], NULL, NULL, NULL, 0, &error));
    }
}

/* The statement would take one of its verdicts, and say so of both. */
static void a_row_twice_is_refused(void **state)
{
    jobq_pg_worktable *each[] = {leased, plain};
    jobq_pg_verdict v[3];
    video twice[3];
    size_t i, k;

    (void)state;
    for (i = 0; i < COUNT(each); i++) {
        empty(NULL);
        add("v1", "PENDING", 0);
        add("v2", "PENDING", 0);
        claim(each[i], 2, 1);
        twice[0] = twice[2] = *ROW(0);
        twice[1] = *ROW(1);
        for (k = 0; k < COUNT(v); k++)
            v[k].outcome = k == 2 ? JOBQ_OUTCOME_DISCARD : JOBQ_OUTCOME_SUCCESS;
        assert_int_equal(jobq_pg_worktable_settle(each[i], NULL, twice, v, 3, &error),
                         JOBQ_ERROR_INVALID);
        assert_string_equal(error.message, "invalid rows: has the same row twice");
        assert_true(v[1].code == JOBQ_ERROR_INVALID && v[1].state == JOBQ_STATE_NONE);
        assert_int_equal(jobq_pg_worktable_heartbeat(each[i], NULL, twice, NULL, 3, &error),
                         JOBQ_ERROR_INVALID);
        OK(jobq_pg_worktable_settle(each[i], NULL, twice, v, 2, &error));
    }
}

/* In a transaction of the caller's: a lost row does not end it, and it decides about the others. */
static void a_batch_is_settled_in_a_transaction(void **state)
{
    static const char *const ends[] = {"ROLLBACK", "COMMIT"};
    PGconn *conn = PQconnectdb(server());
    int i;

    (void)state;
    add("v1", "PENDING", 0);
    add("v2", "PENDING", 0);
    claim(leased, 2, 1);
    RUN("UPDATE jobq.videos SET worker = 8 WHERE video_id = 'v1'");
    for (i = 0; i < 2; i++) {
        jobq_pg_verdict v[] = {{JOBQ_OUTCOME_SUCCESS, NULL, 0, 0},
                               {JOBQ_OUTCOME_SUCCESS, NULL, 0, 0}};
        PQclear(PQexec(conn, "BEGIN"));
        assert_int_equal(jobq_pg_worktable_settle(leased, conn, rows.rows, v, 2, &error),
                         JOBQ_ERROR_LOST);
        assert_true(v[0].code == JOBQ_ERROR_LOST && v[1].code == JOBQ_OK);
        assert_int_equal(PQtransactionStatus(conn), PQTRANS_INTRANS);
        PQclear(PQexec(conn, ends[i]));
        assert_row(i == 0 ? "EXTRACTION_IN_PROGRESS" : "EXTRACTION_COMPLETE", 0,
                   "video_id = 'v2'");
    }
    PQfinish(conn);
}

/* The call's own error is that of each row. */
static void a_call_that_fails_settles_no_row(void **state)
{
    PGconn *conn = PQconnectdb(server());
    jobq_pg_verdict v[] = {{JOBQ_OUTCOME_SUCCESS, NULL, 0, 0}, {JOBQ_OUTCOME_SUCCESS, NULL, 0, 0}};
    jobq_error code;

    (void)state;
    add("v1", "PENDING", 0);
    add("v2", "PENDING", 0);
    claim(leased, 2, 1);
    shutdown(PQsocket(conn), SHUT_RDWR);
    code = jobq_pg_worktable_settle(leased, conn, rows.rows, v, 2, &error);
    assert_int_equal(code, JOBQ_ERROR_CONNECTION);
    assert_true(v[0].code == code && v[1].code == code && v[0].state == JOBQ_STATE_NONE);
    PQfinish(conn);
    OK(jobq_pg_worktable_settle(leased, NULL, rows.rows, v, 2, &error));
    assert_true(v[0].code == JOBQ_OK && v[1].state == JOBQ_STATE_READY);
}

/* A heartbeat that waits for one row holds none behind it: whoever settles the same rows, by key,
 * is not in its way. */
static void *beats_backwards(void *unused)
{
    static video back[3];
    jobq_error code;
    size_t i;

    (void)unused;
    for (i = 0; i < COUNT(back); i++) back[i] = *ROW(COUNT(back) - 1 - i);
    code = jobq_pg_worktable_heartbeat(leased, NULL, back, NULL, COUNT(back), &error);
    return code == JOBQ_OK ? back : NULL;
}

static void rows_are_locked_by_key(void **state)
{
    PGconn *conn = PQconnectdb(server());
    PGresult *res;
    pthread_t thread;
    void *good;

    (void)state;
    add("v1", "PENDING", 0);
    add("v2", "PENDING", 0);
    add("v3", "PENDING", 0);
    claim(leased, 3, 1);
    assert_int_equal(rows.count, 3);
    PQclear(PQexec(conn, "BEGIN"));
    PQclear(sql(conn, "SELECT FROM jobq.videos WHERE video_id = 'v1' FOR UPDATE"));
    assert_int_equal(pthread_create(&thread, NULL, beats_backwards, NULL), 0);
    assert_true(becomes(20, 1, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = "
                               "'Lock' AND query ~ 'videos'"));
    res = sql(conn, "SELECT FROM jobq.videos FOR UPDATE NOWAIT");
    assert_int_equal(PQntuples(res), 3);
    PQclear(res);
    PQclear(PQexec(conn, "COMMIT"));
    pthread_join(thread, &good);
    assert_non_null(good);
    PQfinish(conn);
}

/* Planning takes longer than the call. */
static void one_row_is_not_planned_anew(void **state)
{
    PGconn *conn = PQconnectdb(server());
    jobq_pg_verdict v = {.outcome = JOBQ_OUTCOME_SUCCESS};
    PGresult *res;
    int i;

    (void)state;
    RUN("INSERT INTO jobq.videos (video_id) SELECT 'v' || n FROM generate_series(1, 20) n");
    claim(leased, 20, 1);
    for (i = 0; i < 20; i++) {
        OK(jobq_pg_worktable_heartbeat(leased, conn, ROW(i), NULL, 1, &error));
        OK(jobq_pg_worktable_settle(leased, conn, ROW(i), &v, 1, &error));
    }
    res = PQexec(conn, "SELECT count(*), sum(custom_plans) FROM pg_prepared_statements "
                       "WHERE statement LIKE 'WITH u %'");
    assert_string_equal(PQgetvalue(res, 0, 0), "2");
    assert_string_equal(PQgetvalue(res, 0, 1), "10"); /* Postgres tries five of each */
    PQclear(res);
    PQfinish(conn);
}

typedef struct entry {
    bool a;
    int16_t b;
    int32_t c;
    int64_t d;
    float e;
    double f;
    jobq_str g, h, i, j;
    jobq_pg_uuid k;
    int64_t l;
    int32_t m;
    jobq_pg_interval n;
    jobq_str o, p;
    int q;
    jobq_str status, error_message;
    int32_t retry_count;
    jobq_pg_maybe_int64 retry_after, heartbeat;
    int64_t created_at;
} entry;

static const char *const moods[] = {"sad", "ok", NULL};

static const jobq_pg_column entry_columns[] = {
    JOBQ_PG_COLUMN(entry, a, BOOL, JOBQ_PG_KEY), JOBQ_PG_COLUMN(entry, b, INT16, JOBQ_PG_KEY),
    JOBQ_PG_COLUMN(entry, c, INT32, JOBQ_PG_KEY), JOBQ_PG_COLUMN(entry, d, INT64, JOBQ_PG_KEY),
    JOBQ_PG_COLUMN(entry, e, FLOAT, JOBQ_PG_KEY), JOBQ_PG_COLUMN(entry, f, DOUBLE, JOBQ_PG_KEY),
    JOBQ_PG_COLUMN(entry, g, TEXT, JOBQ_PG_KEY), JOBQ_PG_COLUMN(entry, h, TEXT, JOBQ_PG_KEY),
    JOBQ_PG_COLUMN(entry, i, TEXT, JOBQ_PG_KEY), JOBQ_PG_COLUMN(entry, j, BYTES, JOBQ_PG_KEY),
    JOBQ_PG_COLUMN(entry, k, UUID, JOBQ_PG_KEY),
    JOBQ_PG_COLUMN(entry, l, TIMESTAMPTZ, JOBQ_PG_KEY),
    JOBQ_PG_COLUMN(entry, m, DATE, JOBQ_PG_KEY), JOBQ_PG_COLUMN(entry, n, INTERVAL, JOBQ_PG_KEY),
    JOBQ_PG_COLUMN(entry, o, NUMERIC, JOBQ_PG_KEY), JOBQ_PG_COLUMN(entry, p, JSON, JOBQ_PG_KEY),
    JOBQ_PG_ENUM_COLUMN(entry, q, moods, JOBQ_PG_KEY), JOBQ_PG_COLUMN(entry, status, TEXT, 0),
    JOBQ_PG_COLUMN(entry, error_message, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(entry, retry_count, INT32, 0),
    JOBQ_PG_COLUMN(entry, retry_after, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(entry, heartbeat, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(entry, created_at, TIMESTAMPTZ, JOBQ_PG_READ_ONLY), JOBQ_PG_COLUMNS_END};

static const jobq_pg_table_desc entry_desc = {"jobq.entry", sizeof(entry), entry_columns, "entry",
                                              NULL, false};

/* Two rows that differ in one part of the key, in turn. */
static void keys_may_have_any_type(void **state)
{
    static const char *const values[][2] = {
        {"false", "true"}, {"-1", "2"}, {"-3", "4"}, {"-5", "6"}, {"-0.5", "1.5"},
        {"-0.25", "1e300"}, {"''", "'it''s'"}, {"'A'", "'b'"}, {"'x'", "'y '"},
        {"''", "'\\x00ff'"}, {"gen_random_uuid()", "gen_random_uuid()"},
        {"'-infinity'", "'2024-02-29 12:34:56.789012+00'"}, {"'infinity'", "'0044-03-15 BC'"},
        {"'-1 year'", "'1 month 2 days 03:04:05.6'"}, {"'NaN'", "12345678901234567890.5"},
        {"'null'", "'{\"a\": [1]}'"}, {"'sad'", "'ok'"}};
    static const char names[] = "abcdefghijklmnopq";
    jobq_pg_worktable_desc d = {.stages = stages, .stage_count = 2};
    jobq_pg_table *table;
    jobq_pg_worktable *w;
    size_t i;

    (void)state;
    RUN("CREATE TYPE jobq.mood AS ENUM ('ok', 'sad'); CREATE DOMAIN jobq.letters AS varchar(5)");
    RUN("CREATE TABLE jobq.entry (a bool DEFAULT false, b int2 DEFAULT 0, c int4 DEFAULT 0, "
        "d int8 DEFAULT 0, e real DEFAULT 0, f float8 DEFAULT 0, g text DEFAULT 'g', "
        "h jobq.letters DEFAULT 'h', i char(3) DEFAULT 'i', j bytea DEFAULT '', "
        "k uuid DEFAULT gen_random_uuid(), l timestamptz DEFAULT now(), m date DEFAULT now(), "
        "n interval DEFAULT '1 s', o numeric DEFAULT 0, p jsonb DEFAULT '0', "
        "q jobq.mood DEFAULT 'ok', status text NOT NULL DEFAULT 'PENDING', error_message text, "
        "retry_count int NOT NULL DEFAULT 0, retry_after timestamptz, heartbeat timestamptz, "
        "created_at timestamptz NOT NULL DEFAULT now(), "
        "PRIMARY KEY (a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q))");
    OK(jobq_pg_table_open(&table, pg, NULL, &entry_desc, &error));
    OK(jobq_pg_worktable_open(&w, table, NULL, &d, &error));
    for (i = 0; i < COUNT(values); i++) {
        jobq_pg_verdict v[] = {{JOBQ_OUTCOME_SUCCESS, NULL, 0, 0},
                               {JOBQ_OUTCOME_DISCARD, NULL, 0, 0}};
        RUN("TRUNCATE jobq.entry");
        RUN("INSERT INTO jobq.entry (%c) VALUES (%s), (%s)", names[i], values[i][0], values[i][1]);
        claim(w, 2, 0);
        assert_int_equal(rows.count, 2);
        OK(jobq_pg_worktable_heartbeat(w, NULL, rows.rows, v, 2, &error));
        OK(jobq_pg_worktable_settle(w, NULL, rows.rows, v, 2, &error));
        assert_int_equal(number("SELECT count(DISTINCT status) FROM jobq.entry WHERE status IN "
                                "('EXTRACTION_COMPLETE', 'FAILED')"), 2);
    }
    jobq_pg_worktable_close(w);
    jobq_pg_table_close(table);
}

static void wrong_keys_refuse_the_call(void **state)
{
    jobq_pg_verdict v[2] = {{.outcome = JOBQ_OUTCOME_SUCCESS}, {.outcome = JOBQ_OUTCOME_SUCCESS}};
    static const jobq_str bad[] = {{"\xff", 1}, {NULL, 0}};
    size_t i;

    (void)state;
    add("v1", "PENDING", 0);
    add("v2", "PENDING", 0);
    claim(leased, 2, 1);
    for (i = 0; i < COUNT(bad); i++) {
        ROW(1)->video_id = bad[i];
        assert_int_equal(jobq_pg_worktable_settle(leased, NULL, rows.rows, v, 2, &error),
                         JOBQ_ERROR_INVALID);
        assert_string_equal(error.field, "video_id");
        assert_true(v[0].code == JOBQ_ERROR_INVALID && v[1].code == JOBQ_ERROR_INVALID);
    }
    assert_row("EXTRACTION_IN_PROGRESS", 0, "video_id = 'v1'");
}

static void reset_counts_and_ends(void **state)
{
    int64_t count;

    (void)state;
    add("v1", "EXTRACTION_IN_PROGRESS", 2); /* null heartbeat: stuck */
    add("v2", "EMBEDDING_IN_PROGRESS", 0);
    add("v3", "PENDING", 3); /* max_retries was lowered */
    add("v4", "EXTRACTION_IN_PROGRESS", 0);
    RUN("UPDATE jobq.videos SET pc_heartbeat = now() WHERE video_id = 'v4'");
    OK(jobq_pg_worktable_reset(leased, NULL, &count, &error));
    assert_int_equal(count, 3);
    assert_row("FAILED", 3, "video_id = 'v1' AND error_message = 'Max retries (3) exceeded: "
                            "heartbeat lost'");
    assert_row("EXTRACTION_COMPLETE", 1, "video_id = 'v2'");
    assert_row("FAILED", 3, "video_id = 'v3'");
    assert_row("EXTRACTION_IN_PROGRESS", 0, "video_id = 'v4'");
}

/* The statement repeats jobq_job_decide's rule: held against it, for each stage and count. */
static void reset_decides_as_jobq_h(void **state)
{
    int stage, failed;

    (void)state;
    for (stage = 0; stage < 2; stage++) {
        for (failed = 0; failed < 5; failed++) {
            jobq_event event = {.kind = JOBQ_EVENT_CRASH};
            jobq_job job = jobq_job_new(1);
            jobq_decision d;
            char word[64];
            empty(NULL);
            add("v1", words[2 * stage + 1], failed);
            OK(jobq_pg_worktable_reset(leased, NULL, NULL, &error));
            job.state = JOBQ_STATE_RUNNING;
            job.stage = (int16_t)stage;
            job.stages = 2;
            job.attempt = failed + 1;
            job.suspect = job.alone = true; /* a row's own worker held no other */
            assert_int_equal(jobq_job_decide(&leased->policy, &job, &event, &d), JOBQ_OK);
            jobq_status_format(word, sizeof word, stages, 2, d.stage, d.state);
            assert_row(word, d.attempt, "pc_heartbeat IS NULL");
        }
    }
}

/* Words of one's own, one stage or several; as text, and as an enum of the database. */
typedef struct chore {
    int64_t id;
    int status;
    int32_t retry_count;
    jobq_pg_maybe_int64 retry_after, heartbeat;
    jobq_str error_message;
    int64_t created_at;
} chore;

static const char *const chore_words[] = {"to do", "doing", "drying", "putting-away", "done",
                                          "broken", NULL};

static const jobq_pg_column chore_columns[] = {
    JOBQ_PG_COLUMN(chore, id, INT64, JOBQ_PG_KEY | JOBQ_PG_READ_ONLY),
    JOBQ_PG_ENUM_COLUMN(chore, status, chore_words, 0),
    JOBQ_PG_COLUMN(chore, retry_count, INT32, 0),
    JOBQ_PG_COLUMN(chore, retry_after, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(chore, heartbeat, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(chore, error_message, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(chore, created_at, TIMESTAMPTZ, JOBQ_PG_READ_ONLY), JOBQ_PG_COLUMNS_END};

static const jobq_pg_table_desc chore_desc = {"jobq.chore", sizeof(chore), chore_columns, "chore",
                                              NULL, false};

/* A limit that was lowered ends what waits; why it failed before is still the reason. */
static void reset_keeps_the_error_of_what_waits(void **state)
{
    int64_t count;

    (void)state;
    add("v1", "PENDING", 3);
    RUN("UPDATE jobq.videos SET error_message = 'disk full'");
    OK(jobq_pg_worktable_reset(leased, NULL, &count, &error));
    assert_int_equal(count, 1);
    assert_row("FAILED", 3, "error_message = 'disk full'");
    empty(NULL);
    add("v1", "PENDING", 3); /* it has none: its limit was lowered */
    OK(jobq_pg_worktable_reset(leased, NULL, &count, &error));
    assert_row("FAILED", 3, "error_message = 'Max retries (3) exceeded'");
    empty(NULL);
    add("v2", "EXTRACTION_IN_PROGRESS", 2);
    OK(jobq_pg_worktable_reset(leased, NULL, &count, &error));
    assert_row("FAILED", 3, "error_message = 'Max retries (3) exceeded: heartbeat lost'");
}

/* The default of stale_us, on both sides. */
static void a_heartbeat_is_stale_after_300_seconds(void **state)
{
    int64_t count;

    (void)state;
    add("v1", "EXTRACTION_IN_PROGRESS", 0);
    add("v2", "EXTRACTION_IN_PROGRESS", 0);
    RUN("UPDATE jobq.videos SET pc_heartbeat = now() - interval '1 s' * "
        "CASE video_id WHEN 'v1' THEN 301 ELSE 280 END");
    OK(jobq_pg_worktable_reset(leased, NULL, &count, &error));
    assert_int_equal(count, 1);
    assert_row("PENDING", 1, "video_id = 'v1' AND error_message = 'heartbeat lost'");
    assert_row("EXTRACTION_IN_PROGRESS", 0, "video_id = 'v2'");
}

static void claim_and_reset_touch_the_row(void **state)
{
    (void)state;
    add("v1", "PENDING", 0);
    RUN("UPDATE jobq.videos SET updated_at = '2020-01-01'");
    claim(leased, 1, 1);
    assert_row("EXTRACTION_IN_PROGRESS", 0, "updated_at > now() - interval '1 minute'");
    RUN("UPDATE jobq.videos SET updated_at = '2020-01-01', pc_heartbeat = NULL");
    OK(jobq_pg_worktable_reset(leased, NULL, NULL, &error));
    assert_row("PENDING", 1, "updated_at > now() - interval '1 minute'");
}

static void a_reset_takes_1000_rows(void **state)
{
    int64_t count;

    (void)state;
    RUN("INSERT INTO jobq.videos (video_id, status) SELECT 'v' || n, 'EXTRACTION_IN_PROGRESS' "
        "FROM generate_series(1, 1001) AS n");
    OK(jobq_pg_worktable_reset(leased, NULL, &count, &error));
    assert_int_equal(count, 1000);
    OK(jobq_pg_worktable_reset(leased, NULL, &count, &error));
    assert_int_equal(count, 1);
}

static void a_row_has_20_attempts_by_default(void **state)
{
    jobq_pg_worktable_desc d = work_desc(true);
    jobq_pg_worktable *w;

    (void)state;
    d.max_retries = 0;
    OK(jobq_pg_worktable_open(&w, videos, NULL, &d, &error));
    add("v1", "PENDING", 18);
    claim(w, 1, 1);
    assert_int_equal(settle(w, ROW(0), JOBQ_OUTCOME_RETRY, "no"), JOBQ_OK);
    assert_int_equal(became, JOBQ_STATE_READY);
    RUN("UPDATE jobq.videos SET retry_after = NULL");
    claim(w, 1, 2);
    assert_int_equal(settle(w, ROW(0), JOBQ_OUTCOME_RETRY, "no"), JOBQ_OK);
    assert_int_equal(became, JOBQ_STATE_FAILED);
    jobq_pg_worktable_close(w);
}

/* How many notifications have come on db. */
static int heard(void)
{
    PGnotify *notify;
    int count = 0;

    PQclear(PQexec(db, "SELECT")); /* they come before its answer */
    for (; (notify = PQnotifies(db)) != NULL; PQfreemem(notify)) {
        assert_string_equal(notify->relname, "videos");
        count++;
    }
    return count;
}

/* By the trigger of examples/videos.sql: a new row, a stage that is done, a retry, a row that is
 * given back; and not a claim or an end. */
static void ready_rows_wake_who_listens(void **state)
{
    (void)state;
    RUN("LISTEN videos");
    RUN("INSERT INTO jobq.videos (video_id) SELECT 'v' || n FROM generate_series(1, 5) AS n");
    assert_int_equal(heard(), 1);
    RUN("DELETE FROM jobq.videos WHERE video_id <> 'v1'");
    claim(leased, 1, 1);
    assert_int_equal(heard(), 0);
    assert_int_equal(settle(leased, ROW(0), JOBQ_OUTCOME_SUCCESS, NULL), JOBQ_OK);
    assert_int_equal(heard(), 1);
    claim(leased, 1, 2);
    assert_int_equal(settle(leased, ROW(0), JOBQ_OUTCOME_RETRY, "no"), JOBQ_OK);
    assert_int_equal(heard(), 1);
    RUN("UPDATE jobq.videos SET retry_after = NULL");
    claim(leased, 1, 3);
    OK(release(leased, ROW(0)));
    assert_int_equal(heard(), 1);
    claim(leased, 1, 4);
    assert_int_equal(settle(leased, ROW(0), JOBQ_OUTCOME_SUCCESS, NULL), JOBQ_OK);
    assert_int_equal(heard(), 0);
    RUN("UNLISTEN videos");
}

/* Of a text a domain is good; of an enum the server has no = for it. */
static void a_domain_over_an_enum_is_refused(void **state)
{
    jobq_pg_worktable_desc d = {.words = chore_words, .stage_count = 2, .max_retries = 2};
    jobq_pg_table_desc desc = chore_desc;
    jobq_pg_worktable *w;
    jobq_pg_table *table;

    (void)state;
    desc.name = "jobq.errand";
    RUN("CREATE TYPE jobq.errand_words AS ENUM ('broken', 'done', 'to do', 'doing', 'drying', "
        "'putting-away')");
    RUN("CREATE DOMAIN jobq.errand_status AS jobq.errand_words");
    RUN("CREATE TABLE jobq.errand (id bigserial PRIMARY KEY, status jobq.errand_status NOT NULL "
        "DEFAULT 'to do', retry_count int NOT NULL DEFAULT 0, retry_after timestamptz, "
        "heartbeat timestamptz, error_message text, created_at timestamptz NOT NULL "
        "DEFAULT clock_timestamp())");
    OK(jobq_pg_table_open(&table, pg, NULL, &desc, &error));
    assert_int_equal(jobq_pg_worktable_open(&w, table, NULL, &d, &error), JOBQ_ERROR_INVALID);
    assert_null(w);
    assert_string_equal(error.field, "status");
    jobq_pg_table_close(table);
}

/* What a work table writes must be writable, and come back as it was written. */
static void what_cannot_be_written_is_refused(void **state)
{
    enum { STATUS = 1, HEARTBEAT = 4 };
    jobq_pg_worktable_desc d = {.words = chore_words, .stage_count = 2, .max_retries = 2};
    jobq_pg_column columns[COUNT(chore_columns)];
    static const int bad[] = {STATUS, STATUS + 1, STATUS + 2, HEARTBEAT, HEARTBEAT + 1};
    jobq_pg_table_desc desc = chore_desc;
    jobq_pg_worktable *w;
    jobq_pg_table *table;
    size_t i;

    (void)state;
    desc.columns = columns;
    RUN("CREATE TYPE jobq.chore_status AS ENUM ('broken', 'done', 'to do', 'doing', 'drying', "
        "'putting-away')");
    RUN("CREATE TABLE jobq.chore (id bigserial PRIMARY KEY, status jobq.chore_status NOT NULL, "
        "retry_count int NOT NULL, retry_after timestamptz, heartbeat timestamptz, "
        "error_message text, created_at timestamptz NOT NULL)");
    for (i = 0; i < COUNT(bad); i++) {
        memcpy(columns, chore_columns, sizeof columns);
        columns[bad[i]].flags |= i % 2 == 0 ? JOBQ_PG_READ_ONLY : JOBQ_PG_TOUCH;
        OK(jobq_pg_table_open(&table, pg, NULL, &desc, &error));
        assert_int_equal(jobq_pg_worktable_open(&w, table, NULL, &d, &error), JOBQ_ERROR_INVALID);
        assert_string_equal(error.field, columns[bad[i]].name);
        jobq_pg_table_close(table);
    }
    RUN("DROP TABLE jobq.chore; DROP TYPE jobq.chore_status");
}

static void a_status_of_char_n_is_refused(void **state)
{
    static const char *const types[] = {"char(40)", "jobq.padded"};
    jobq_pg_worktable_desc d = work_desc(true);
    jobq_pg_table_desc desc = video_desc;
    jobq_pg_worktable *w;
    jobq_pg_table *table;
    size_t i;

    (void)state;
    desc.name = "jobq.padded_videos";
    RUN("CREATE DOMAIN jobq.padded AS char(40)");
    for (i = 0; i < COUNT(types); i++) {
        RUN("CREATE TABLE jobq.padded_videos (LIKE jobq.videos);"
            "ALTER TABLE jobq.padded_videos ALTER status TYPE %s", types[i]);
        OK(jobq_pg_table_open(&table, pg, NULL, &desc, &error));
        assert_int_equal(jobq_pg_worktable_open(&w, table, NULL, &d, &error), JOBQ_ERROR_INVALID);
        assert_string_equal(error.field, "status");
        jobq_pg_table_close(table);
        RUN("DROP TABLE jobq.padded_videos");
    }
    RUN("DROP DOMAIN jobq.padded");
}

/* Names of 63 quotes, which SQL doubles. */
static void a_long_type_is_taken_whole(void **state)
{
    jobq_pg_worktable_desc d = {.words = chore_words, .stage_count = 2, .max_retries = 2};
    jobq_pg_table_desc desc = chore_desc;
    jobq_pg_worktable *w;
    jobq_pg_table *table;
    char quotes[63], *name, full[200];

    (void)state;
    memset(quotes, '"', sizeof quotes);
    name = PQescapeIdentifier(db, quotes, sizeof quotes);
    snprintf(full, sizeof full, "%s.errands", name);
    desc.name = full;
    RUN("CREATE SCHEMA %s; CREATE TYPE %s.%s AS ENUM ('broken', 'done', 'to do', 'doing', "
        "'drying', 'putting-away')", name, name, name);
    RUN("CREATE TABLE %s (id bigserial PRIMARY KEY, status %s.%s NOT NULL DEFAULT 'to do', "
        "retry_count int NOT NULL DEFAULT 0, retry_after timestamptz, heartbeat timestamptz, "
        "error_message text, created_at timestamptz NOT NULL DEFAULT clock_timestamp())",
        full, name, name);
    RUN("INSERT INTO %s DEFAULT VALUES", full);
    OK(jobq_pg_table_open(&table, pg, NULL, &desc, &error));
    OK(jobq_pg_worktable_open(&w, table, NULL, &d, &error));
    OK(jobq_pg_worktable_claim(w, NULL, 1, 0, 0, &rows, &error));
    assert_int_equal(rows.count, 1);
    jobq_pg_rows_clear(&rows);
    jobq_pg_worktable_close(w);
    jobq_pg_table_close(table);
    RUN("DROP SCHEMA %s CASCADE", name);
    PQfreemem(name);
}

static void a_table_without_a_handle_needs_a_connection(void **unused)
{
    jobq_pg_worktable_desc d = work_desc(true);
    jobq_pg_table_desc desc = video_desc;
    jobq_pg_worktable *w;
    jobq_pg_table *table;
    char name[60];

    (void)unused;
    snprintf(name, sizeof name, "%s.videos", schema);
    desc.name = name;
    OK(jobq_pg_table_open(&table, NULL, db, &desc, &error));
    assert_int_equal(jobq_pg_worktable_open(&w, table, NULL, &d, &error), JOBQ_ERROR_INVALID);
    assert_string_equal(error.field, "conn");
    assert_null(w);
    OK(jobq_pg_worktable_open(&w, table, db, &d, &error));
    jobq_pg_worktable_close(w);
    jobq_pg_table_close(table);
}

/* One row that the description has no place for: the others stay as they were, whoever's
 * transaction it is. */
static void an_unreadable_row_gives_the_batch_back(void **state)
{
    PGconn *conn = PQconnectdb(server());
    jobq_pg_rows got;
    int own;

    (void)state;
    add("v1", "PENDING", 0);
    add("v2", "PENDING", 0);
    RUN("ALTER TABLE jobq.videos ALTER created_at DROP NOT NULL");
    RUN("UPDATE jobq.videos SET created_at = NULL WHERE video_id = 'v2'");
    for (own = 0; own < 3; own++) {
        if (own == 2) PQclear(PQexec(conn, "BEGIN"));
        assert_int_equal(jobq_pg_worktable_claim(leased, own ? conn : NULL, 2, 7, 1, &got, &error),
                         JOBQ_ERROR_INVALID);
        if (own == 2) PQclear(PQexec(conn, "COMMIT"));
        assert_string_equal(error.field, "created_at");
        assert_true(got.rows == NULL && got.count == 0);
        assert_int_equal(number("SELECT count(*) FROM jobq.videos WHERE status = 'PENDING' AND "
                                "worker IS NULL"), 2);
    }
    claim(leased, 1, 2);
    assert_string_equal(ROW(0)->video_id.ptr, "v1");
    RUN("TRUNCATE jobq.videos");
    RUN("ALTER TABLE jobq.videos ALTER created_at SET NOT NULL");
    PQfinish(conn);
}

/* The claim's transaction does not show what its connection has prepared, and no longer has. */
static void claims_outlive_what_was_prepared(void **state)
{
    PGconn *conn = PQconnectdb(server());
    jobq_pg_rows got;
    int i;

    (void)state;
    for (i = 0; i < 4; i++) {
        if (i == 1) PQclear(PQexec(conn, "DISCARD ALL"));
        if (i == 2) RUN("ALTER TABLE jobq.videos ALTER error_message TYPE varchar");
        if (i == 3) RUN("ALTER TABLE jobq.videos ALTER error_message TYPE text");
        add(i % 2 == 0 ? "v1" : "v2", "PENDING", 0);
        OK(jobq_pg_worktable_claim(leased, conn, 1, 7, i + 1, &got, &error));
        assert_int_equal(got.count, 1);
        jobq_pg_rows_clear(&got);
        RUN("TRUNCATE jobq.videos");
    }
    PQfinish(conn);
}

/* What could not be committed is nobody's. */
static void a_claim_not_committed_has_no_rows(void **state)
{
    jobq_pg_rows got;

    (void)state;
    add("v1", "PENDING", 0);
    RUN("CREATE FUNCTION jobq.no() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN RAISE EXCEPTION ''no''; END'");
    RUN("CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON jobq.videos DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION jobq.no()");
    assert_true(jobq_pg_worktable_claim(leased, NULL, 1, 7, 1, &got, &error) != JOBQ_OK);
    assert_true(got.rows == NULL && got.count == 0);
    RUN("DROP TRIGGER late ON jobq.videos");
    claim(leased, 1, 2);
    assert_int_equal(rows.count, 1);
}

/* A worker is killed right after its claim, before any heartbeat. */
static void a_killed_claimer_loses_its_row(void **state)
{
    pid_t pid;
    int64_t count;

    (void)state;
    add("v1", "PENDING", 0);
    pid = fork();
    if (pid == 0) {
        PGconn *conn = child_open();
        jobq_pg_rows got;
        (void)jobq_pg_worktable_claim(leased, conn, 1, 9, 1, &got, NULL);
        raise(SIGKILL);
    }
    waitpid(pid, NULL, 0);
    assert_true(becomes(20, 1, "SELECT count(*) FROM jobq.videos WHERE worker = 9"));
    RUN("UPDATE jobq.videos SET pc_heartbeat = pc_heartbeat - interval '301 s'");
    OK(jobq_pg_worktable_reset(leased, NULL, &count, &error));
    assert_int_equal(count, 1);
    claim(leased, 1, 5);
    assert_true(rows.count == 1 && ROW(0)->retry_count == 1);
}

static void looking_takes_nothing(void **state)
{
    static const char *const exclude[] = {"v1", "v9"};
    static const char *const null[] = {NULL};
    PGconn *conn = PQconnectdb(server());

    (void)state;
    add("v1", "PENDING", 0);
    add("v2", "PENDING", 0);
    add("v3", "EXTRACTION_COMPLETE", 0);
    add("v4", "PENDING", 3); /* a claim would not take it either */
    PQclear(PQexec(conn, "BEGIN READ ONLY"));
    jobq_pg_rows_clear(&rows);
    OK(jobq_pg_worktable_look(leased, conn, 10, NULL, 0, &rows, &error));
    assert_int_equal(rows.count, 3);
    assert_string_equal(ROW(0)->video_id.ptr, "v3");
    assert_string_equal(ROW(0)->status.ptr, "EXTRACTION_COMPLETE");
    assert_int_equal(number("SELECT count(*) FROM pg_locks WHERE pid = %d AND mode = "
                            "'RowShareLock'", PQbackendPID(conn)), 0);
    jobq_pg_rows_clear(&rows);
    OK(jobq_pg_worktable_look(leased, conn, 10, exclude, 2, &rows, &error));
    assert_int_equal(rows.count, 2);
    jobq_pg_rows_clear(&rows);
    OK(jobq_pg_worktable_look(leased, conn, 1, NULL, 0, &rows, &error));
    assert_int_equal(rows.count, 1);
    jobq_pg_rows_clear(&rows);
    assert_int_equal(jobq_pg_worktable_look(leased, conn, 10, null, 1, &rows, &error),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_worktable_look(leased, conn, 0, NULL, 0, &rows, &error),
                     JOBQ_ERROR_INVALID);
    PQfinish(conn);
}

static void bad_arguments_are_refused(void **state)
{
    jobq_pg_worktable_desc d = work_desc(true);
    static const char *const quoted[] = {"it's"};
    jobq_pg_worktable *w;
    int i;

    (void)state;
    assert_int_equal(jobq_pg_worktable_claim(leased, NULL, 0, 7, 1, &rows, &error),
                     JOBQ_ERROR_INVALID);
    assert_int_equal(jobq_pg_worktable_claim(leased, NULL, 1, 0, 0, &rows, &error),
                     JOBQ_ERROR_INVALID);
    claim_new(leased);
    for (i = JOBQ_OUTCOME_SNOOZE; i <= JOBQ_OUTCOME_COUNT; i++) {
        if (i == JOBQ_OUTCOME_RELEASE) continue;
        assert_int_equal(settle(leased, ROW(0), (jobq_outcome)i, "x"), JOBQ_ERROR_INVALID);
        assert_string_equal(error.field, "outcome");
    }
    d.heartbeat = "nothing";
    assert_int_equal(jobq_pg_worktable_open(&w, videos, NULL, &d, &error), JOBQ_ERROR_INVALID);
    d = work_desc(true);
    d.lease = NULL;
    assert_int_equal(jobq_pg_worktable_open(&w, videos, NULL, &d, &error), JOBQ_ERROR_INVALID);
    d = work_desc(true);
    d.retry_after = "created_at";
    assert_int_equal(jobq_pg_worktable_open(&w, videos, NULL, &d, &error), JOBQ_ERROR_INVALID);
    d = work_desc(true);
    d.stages = quoted;
    d.stage_count = 1;
    assert_int_equal(jobq_pg_worktable_open(&w, videos, NULL, &d, &error), JOBQ_ERROR_INVALID);
    d = work_desc(true);
    d.stage_count = 0;
    assert_int_equal(jobq_pg_worktable_open(&w, videos, NULL, &d, &error), JOBQ_ERROR_INVALID);
    d = work_desc(true);
    d.max_retries = -1;
    assert_int_equal(jobq_pg_worktable_open(&w, videos, NULL, &d, &error), JOBQ_ERROR_INVALID);
    assert_null(w);
}

static void assert_chores(const char *wanted)
{
    PGresult *res = sql(db, "SELECT string_agg(status || ' ' || retry_count, ', ' ORDER BY id) "
                            "FROM jobq.chore");

    assert_string_equal(PQgetvalue(res, 0, 0), wanted);
    PQclear(res);
}

static void words_of_ones_own(void **state)
{
    jobq_pg_worktable_desc d = {.words = chore_words, .stage_count = 2, .max_retries = 2};
    jobq_pg_table *table;
    jobq_pg_worktable *w;
    int64_t count = 0;
    chore *c, waiting;

    (void)state;
    RUN("CREATE TYPE jobq.chore_status AS ENUM ('broken', 'done', 'to do', 'doing', 'drying', "
        "'putting-away')");
    RUN("CREATE TABLE jobq.chore (id bigserial PRIMARY KEY, status jobq.chore_status NOT NULL "
        "DEFAULT 'to do', retry_count int NOT NULL DEFAULT 0, retry_after timestamptz, "
        "heartbeat timestamptz, error_message text, created_at timestamptz NOT NULL "
        "DEFAULT clock_timestamp())");
    RUN("INSERT INTO jobq.chore SELECT FROM generate_series(1, 3)");
    OK(jobq_pg_table_open(&table, pg, NULL, &chore_desc, &error));
    OK(jobq_pg_worktable_open(&w, table, NULL, &d, &error));
    claim(w, 3, 0);
    assert_int_equal(rows.count, 3);
    assert_chores("doing 0, doing 0, doing 0");
    c = rows.rows;
    assert_int_equal(jobq_pg_worktable_stage(w, c), 0);
    waiting = *c;
    waiting.status = 0; /* to do */
    assert_int_equal(settle(w, &waiting, JOBQ_OUTCOME_SUCCESS, NULL), JOBQ_ERROR_TRANSITION);
    assert_non_null(strstr(error.message, "status=to do"));
    OK(settle(w, c, JOBQ_OUTCOME_SUCCESS, NULL));
    OK(settle(w, c + 1, JOBQ_OUTCOME_RETRY, "wet"));
    assert_int_equal(became, JOBQ_STATE_READY);
    assert_chores("drying 0, to do 1, doing 0");
    RUN("UPDATE jobq.chore SET heartbeat = now() - interval '301 s' WHERE status = 'doing'");
    OK(jobq_pg_worktable_reset(w, NULL, &count, &error));
    assert_int_equal(count, 1);
    assert_chores("drying 0, to do 1, to do 1");
    RUN("UPDATE jobq.chore SET retry_after = NULL");
    claim(w, 3, 0);
    assert_chores("putting-away 0, doing 1, doing 1");
    c = rows.rows;
    assert_int_equal(jobq_pg_worktable_stage(w, c), 1);
    OK(settle(w, c, JOBQ_OUTCOME_SUCCESS, NULL));
    OK(settle(w, c + 1, JOBQ_OUTCOME_RETRY, "wet"));
    assert_int_equal(became, JOBQ_STATE_FAILED);
    OK(release(w, c + 2));
    assert_chores("done 0, broken 2, to do 1");
    jobq_pg_worktable_close(w);
    jobq_pg_table_close(table);
}

typedef struct bill {
    jobq_str id, status;
    int32_t retry_count;
    jobq_pg_maybe_int64 retry_after, heartbeat;
    jobq_str error_message;
    int64_t created_at;
} bill;

static const jobq_pg_column bill_columns[] = {
    JOBQ_PG_COLUMN(bill, id, NUMERIC, JOBQ_PG_KEY),
    JOBQ_PG_COLUMN(bill, status, TEXT, 0),
    JOBQ_PG_COLUMN(bill, retry_count, INT32, 0),
    JOBQ_PG_COLUMN(bill, retry_after, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(bill, heartbeat, TIMESTAMPTZ, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(bill, error_message, TEXT, JOBQ_PG_NULLABLE),
    JOBQ_PG_COLUMN(bill, created_at, TIMESTAMPTZ, 0), JOBQ_PG_COLUMNS_END};

static const jobq_pg_table_desc bill_desc = {"jobq.bill", sizeof(bill), bill_columns, "bill", NULL,
                                             false};

/* Of one age; those cut off by the limit are the greater numbers, not the greater texts. */
static void looking_orders_numbers(void **state)
{
    jobq_pg_worktable_desc d = work_desc(false);
    jobq_pg_table *table;
    jobq_pg_worktable *w;
    jobq_pg_rows got;
    bill *b;

    (void)state;
    d.heartbeat = NULL;
    RUN("CREATE TABLE jobq.bill (id numeric PRIMARY KEY, status text NOT NULL DEFAULT 'PENDING', "
        "retry_count int NOT NULL DEFAULT 0, retry_after timestamptz, heartbeat timestamptz, "
        "error_message text, created_at timestamptz NOT NULL DEFAULT '2020-01-01')");
    RUN("INSERT INTO jobq.bill (id) VALUES (100), (9), (10)");
    OK(jobq_pg_table_open(&table, pg, NULL, &bill_desc, &error));
    OK(jobq_pg_worktable_open(&w, table, NULL, &d, &error));
    OK(jobq_pg_worktable_look(w, NULL, 2, NULL, 0, &got, &error));
    b = got.rows;
    assert_int_equal(got.count, 2);
    assert_int_equal(strcmp(b[0].id.ptr, "100") != 0 && strcmp(b[1].id.ptr, "100") != 0, 1);
    jobq_pg_rows_clear(&got);
    jobq_pg_worktable_close(w);
    jobq_pg_table_close(table);
}

/* A row's place is one in each partition: a claim of one would take two. */
static void partitions_are_refused(void **state)
{
    static const char *const names[] = {"jobq.split", "jobq.heirs", "jobq.split_1"};
    jobq_pg_worktable_desc d = work_desc(false);
    jobq_pg_worktable *w;
    size_t i;

    (void)state;
    RUN("CREATE TABLE jobq.split (LIKE jobq.videos INCLUDING DEFAULTS) PARTITION BY LIST (status)");
    RUN("CREATE TABLE jobq.split_1 PARTITION OF jobq.split FOR VALUES IN ('PENDING', "
        "'EXTRACTION_IN_PROGRESS')");
    RUN("CREATE TABLE jobq.heirs (LIKE jobq.videos)");
    RUN("CREATE TABLE jobq.heirs_1 () INHERITS (jobq.heirs)");
    for (i = 0; i < COUNT(names); i++) {
        jobq_pg_table_desc desc = video_desc;
        jobq_pg_table *table;
        bool whole = strcmp(names[i], "jobq.split_1") == 0;
        desc.name = names[i];
        OK(jobq_pg_table_open(&table, pg, NULL, &desc, &error));
        assert_int_equal(jobq_pg_worktable_open(&w, table, NULL, &d, &error),
                         whole ? JOBQ_OK : JOBQ_ERROR_INVALID);
        assert_true(whole || strstr(error.message, "partitions or children") != NULL);
        jobq_pg_worktable_close(w);
        jobq_pg_table_close(table);
    }
}

/* The verbs write whether a value is set behind it, where NULL as zero has the next field. */
static void plain_fields_are_refused(void **state)
{
    static const char *const names[] = {"retry_after", "pc_heartbeat", "worker", "lease"};
    jobq_pg_worktable_desc d = work_desc(true);
    jobq_pg_column columns[COUNT(video_columns)];
    jobq_pg_table_desc desc = video_desc;
    jobq_pg_worktable *w;
    jobq_pg_table *table;
    size_t i, k;

    (void)state;
    desc.columns = columns;
    for (i = 0; i < COUNT(names); i++) {
        memcpy(columns, video_columns, sizeof columns);
        for (k = 0; strcmp(columns[k].name, names[i]) != 0; k++) {}
        columns[k].flags = JOBQ_PG_ZERO;
        columns[k].size = sizeof(int64_t);
        OK(jobq_pg_table_open(&table, pg, NULL, &desc, &error));
        assert_int_equal(jobq_pg_worktable_open(&w, table, NULL, &d, &error), JOBQ_ERROR_INVALID);
        assert_string_equal(error.field, names[i]);
        assert_non_null(strstr(error.message, "jobq_pg_maybe_"));
        jobq_pg_table_close(table);
    }
}

static void bad_words_are_refused(void **state)
{
    static const char *const twice[] = {"a", "b", "b", "c"};
    static const char *const lacking[] = {"a", "b", "c", NULL};
    static const char *const quoted[] = {"a", "b", "c'", "d"};
    static const char *const good[] = {"a", "b", "c", "d"};
    const char *const *bad[] = {twice, lacking, quoted};
    jobq_pg_worktable_desc d = work_desc(true);
    jobq_pg_worktable *w;
    size_t i;

    (void)state;
    d.words = good;
    assert_int_equal(jobq_pg_worktable_open(&w, videos, NULL, &d, &error), JOBQ_ERROR_INVALID);
    d.stages = NULL;
    d.stage_count = 1;
    OK(jobq_pg_worktable_open(&w, videos, NULL, &d, &error));
    jobq_pg_worktable_close(w);
    for (i = 0; i < COUNT(bad); i++) {
        d.words = bad[i];
        assert_int_equal(jobq_pg_worktable_open(&w, videos, NULL, &d, &error), JOBQ_ERROR_INVALID);
        assert_null(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(test) cmocka_unit_test_setup(test, empty)
        T(claims_later_stages_first_then_age_then_id), T(claim_reads_the_index_without_a_sort),
        T(two_claimers_never_wait_nor_share), T(crowds_claim_each_row_once), T(stages_to_the_end),
        T(retries_back_off_and_end), T(retries_have_jitter),
        T(success_forgets_errors_and_counts_per_stage),
        T(failing_for_good), T(release_counts_nothing), T(every_status_and_verb),
        T(stale_writers_are_lost), T(stale_writers_are_lost_without_lease_columns),
        T(heartbeats_keep_a_row), T(a_batch_is_settled_in_one_statement), T(a_batch_beats_at_once),
        T(a_batch_is_settled_in_a_transaction), T(a_call_that_fails_settles_no_row),
        T(rows_are_locked_by_key), T(one_row_is_not_planned_anew), T(keys_may_have_any_type),
        T(wrong_keys_refuse_the_call),
        T(reset_counts_and_ends), T(reset_decides_as_jobq_h),
        T(a_killed_claimer_loses_its_row), T(reset_keeps_the_error_of_what_waits),
        T(a_row_twice_is_refused),
        T(a_heartbeat_is_stale_after_300_seconds), T(claim_and_reset_touch_the_row),
        T(a_reset_takes_1000_rows), T(a_row_has_20_attempts_by_default),
        T(ready_rows_wake_who_listens),
        T(a_domain_over_an_enum_is_refused), T(what_cannot_be_written_is_refused),
        T(a_status_of_char_n_is_refused), T(a_long_type_is_taken_whole),
        T(a_table_without_a_handle_needs_a_connection),
        T(an_unreadable_row_gives_the_batch_back), T(claims_outlive_what_was_prepared),
        T(a_claim_not_committed_has_no_rows),
        T(looking_takes_nothing), T(bad_arguments_are_refused),
        T(words_of_ones_own), T(looking_orders_numbers), T(partitions_are_refused),
        T(plain_fields_are_refused), T(bad_words_are_refused)};

    return cmocka_run_group_tests_name("worktable", tests, up, down);
}
