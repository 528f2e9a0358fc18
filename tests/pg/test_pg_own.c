/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_own.c -- the library's own tables, read as typed tables: each description fits its view,
 * each field arrives, and the library's functions return the same about the same rows.
 */
#include "outbox.h"

#define WORKER 4711

static jobq_pg_error error;

#define OK(call)                                              \
    do {                                                      \
        if ((call) != JOBQ_OK) fail_msg("%s", error.message); \
    } while (0)

static jobq_pg_table *open_as(jobq_pg *handle_of, const jobq_pg_table_desc *desc)
{
    jobq_pg_table *table;

    OK(jobq_pg_table_open(&table, handle_of, NULL, desc, &error));
    return table;
}

/* All rows, of a table that is open for that long. */
static jobq_pg_rows all_of(const jobq_pg_table_desc *desc)
{
    jobq_pg_table *table = open_as(pg, desc);
    jobq_pg_rows rows;

    OK(jobq_pg_table_list(table, NULL, NULL, &rows, &error));
    jobq_pg_table_close(table);
    return rows;
}

/* What a view has for people alone: worker ids as text, PartitionMode in words. */
static bool for_people(const char *view, const char *column)
{
    return strcmp(column, "holder") == 0 ||
           (strcmp(view, "jobq.workers") == 0 && strcmp(column, "worker") == 0) ||
           (strcmp(view, "jobq.failures") == 0 &&
            (strcmp(column, "worker") == 0 || strcmp(column, "queue_id") == 0 ||
             strcmp(column, "kind_id") == 0)) || /* these two for an index: see failures */
           strcmp(column, "max_attempts") == 0 || /* the queue's, where the job has none */
           strcmp(column, "mode") == 0;
}

/* Every column of every view is described, and the descriptions fit. */
static void descriptions_fit_their_views(void **unused)
{
    size_t d;
    int r, c;

    (void)unused;
    for (d = 0; d < 2 * JOBQ_PG_VIEW_COUNT; d++) {
        const jobq_pg_table_desc *desc = jobq_pg_view_desc((jobq_pg_view)(d / 2), d % 2 == 1);
        jobq_pg_table *table = open_as(pg, desc);
        PGresult *res = sql(db, "SELECT attname FROM pg_attribute WHERE attnum > 0 AND attrelid = "
                                "'%s'::regclass", desc->name);
        for (r = 0; r < PQntuples(res); r++) {
            const char *name = PQgetvalue(res, r, 0);
            bool hidden = strcmp(name, "payload") == 0 || strcmp(name, "bytes") == 0 ||
                          strcmp(name, "headers") == 0 || strncmp(name, "result", 6) == 0 ||
                          strcmp(name, "log") == 0;
            for (c = 0; desc->columns[c].name != NULL; c++) {
                if (strcmp(desc->columns[c].name, name) == 0) break;
            }
            if (desc->columns[c].name == NULL && !for_people(desc->name, name) &&
                !(hidden && strcmp(desc->columns[0].name, "payload") != 0))
                fail_msg("%s.%s is not described", desc->name, name);
        }
        assert_true(r >= 13);
        PQclear(res);
        jobq_pg_table_close(table);
    }
}

/* \d+ in psql tells what each column of each view means. What an administrator wrote stays. */
static void every_column_has_a_comment(void **unused)
{
    static const char uncommented[] =
        "SELECT coalesce(string_agg(c.relname || '.' || a.attname, ' '), '') FROM pg_class c "
        "JOIN pg_attribute a ON a.attrelid = c.oid WHERE c.relnamespace = 'jobq'::regnamespace "
        "AND c.relkind = 'v' AND col_description(c.oid, a.attnum) IS NULL";
    PGresult *res = sql(db, uncommented);

    (void)unused;
    assert_string_equal(PQgetvalue(res, 0, 0), "");
    PQclear(res);
    RUN("COMMENT ON COLUMN jobq.jobs.key IS 'order number'");
    OK(jobq_pg_migrate(pg, &error));
    assert_int_equal(number("SELECT count(*) FROM pg_attribute a WHERE attname = 'key' AND "
                            "attrelid = 'jobq.jobs'::regclass AND "
                            "col_description(attrelid, attnum) = 'order number'"), 1);
}

/* A worker's id is a decimal number wherever people see it. */
static void a_workers_id_has_one_form(void **unused)
{
    verb_batch batch;
    PGresult *res;

    (void)unused;
    enqueue_count(2);
    register_worker(-WORKER, 60 * SECOND);
    assert_int_equal(claim_by(-WORKER, 1, 2, false, &batch), JOBQ_OK);
    RUN("INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, worker, queue_id, kind_id, "
        "attempt, crash, priority, stage, stages) SELECT 99, now(), now(), now(), worker, "
        "queue_id, kind_id, 1, 0, 0, 0, 1 FROM jobq.job WHERE id = %lld",
        (long long)batch.jobs[0].id);
    verb_batch_clear(&batch);
    res = sql(db, "SELECT string_agg(DISTINCT u.id, ' '), count(*) FROM ("
                  "SELECT worker FROM jobq.workers UNION ALL SELECT id::text FROM jobq.workers "
                  "UNION ALL SELECT worker::text FROM jobq.jobs UNION ALL "
                  "SELECT worker FROM jobq.failures) AS u (id)");
    assert_string_equal(PQgetvalue(res, 0, 0), "-4711");
    assert_string_equal(PQgetvalue(res, 0, 1), "6");
    PQclear(res);
    assert_int_equal(number("SELECT count(*) FROM pg_views WHERE definition LIKE '%%to_hex%%' AND "
                            "schemaname = 'jobq'"), 0);
}

/* One job in each state: rows, facts and jobq_pg_get say the same. */
static void jobs_in_every_state(void **unused)
{
    static const jobq_state wanted[] = {JOBQ_STATE_READY, JOBQ_STATE_RUNNING, JOBQ_STATE_SUCCEEDED,
                                        JOBQ_STATE_FAILED, JOBQ_STATE_CANCELLED};
    jobq_pg_job job = plain_job();
    const jobq_pg_job_row *row;
    const jobq_pg_failure_row *failure;
    jobq_pg_rows rows;
    jobq_job facts[5], got;
    int64_t ids[5];
    size_t i;

    (void)unused;
    job.headers = jobq_str_from("{\"tag\": \"a\"}");
    job.stages = 2;
    job.priority = 3;
    job.key = "k-1";
    job.max_attempts = 7;
    job.timeout_us = 5 * SECOND;
    ids[0] = enqueue_with(&job);
    RUN("UPDATE jobq.job SET run_at = now() + interval '1 day'");
    job = plain_job();
    for (i = 1; i < 5; i++) {
        job.timeout_us = i == 3 ? 6 * SECOND : 0;
        ids[i] = enqueue_with(&job);
    }
    register_worker(WORKER, 60 * SECOND);
    for (i = 1; i < 4; i++) facts[i] = claim_one(WORKER, (int64_t)i, false);
    assert_int_equal(facts[1].id, ids[1]);
    assert_int_equal(settle_with(&facts[2], JOBQ_EVENT_SUCCESS, ""), JOBQ_OK);
    assert_int_equal(settle_with(&facts[3], JOBQ_EVENT_DISCARD, "too bad"), JOBQ_OK);
    OK(jobq_pg_cancel(pg, NULL, ONE(ids[4]), NULL, NULL, &error));
    OK(jobq_pg_cancel(pg, NULL, ONE(ids[1]), NULL, NULL, &error));
    rows = all_of(jobq_pg_view_desc(JOBQ_PG_VIEW_JOBS, true));
    assert_int_equal(rows.count, 5);
    row = rows.rows;
    for (i = 0; i < 5; i++) {
        facts[i] = row[i].facts;
        assert_int_equal(facts[i].id, ids[i]);
        assert_int_equal(facts[i].state, wanted[i]);
        assert_int_equal(jobq_job_check(&facts[i]), JOBQ_OK);
        OK(jobq_pg_get(pg, NULL, ids[i], &got, &error));
        assert_memory_equal(&got, &facts[i], offsetof(jobq_job, cancel_requested));
        assert_int_equal(got.cancel_requested, facts[i].cancel_requested);
        assert_int_equal(got.state, facts[i].state);
        assert_true(jobq_str_equal(row[i].queue, jobq_str_from("q")));
        assert_true(jobq_str_equal(row[i].kind, jobq_str_from("k")));
        assert_true(jobq_str_equal(row[i].payload, jobq_str_from("{\"n\": 1}")));
        assert_true((row[i].finished_at_us != 0) == jobq_state_final(wanted[i]));
        assert_true((row[i].claimed_at_us != 0) == (i >= 1 && i <= 3));
    }
    assert_int_equal(facts[0].priority, 3);
    assert_int_equal(facts[3].attempt, 1);
    assert_int_equal(facts[3].crash, 0);
    assert_int_equal(facts[0].max_attempts, 7);
    assert_int_equal(facts[0].timeout_us, 5 * SECOND);
    assert_int_equal(facts[1].max_attempts, 0); /* the queue's */
    assert_int_equal(facts[1].timeout_us, 0);
    assert_int_equal(facts[3].max_attempts, 0);
    assert_int_equal(facts[3].timeout_us, 6 * SECOND);
    assert_int_equal(facts[0].stages, 2);
    assert_true(facts[0].run_at_us > facts[0].enqueued_at_us + 80000 * SECOND);
    assert_true(jobq_str_equal(row[0].key, jobq_str_from("k-1")));
    assert_true(jobq_str_equal(row[0].headers, jobq_str_from("{\"tag\": \"a\"}")));
    assert_null(row[1].key.ptr);
    assert_null(row[0].bytes.ptr);
    assert_int_equal(facts[1].worker, WORKER);
    assert_true(facts[1].cancel_requested && row[1].cancel_requested_at_us != 0);
    assert_int_equal(facts[2].worker, 0); /* no longer held */
    assert_int_equal(row[2].worker, WORKER);
    assert_non_null(strstr(row[3].errors.ptr, "too bad"));
    jobq_pg_rows_clear(&rows);

    rows = all_of(jobq_pg_view_desc(JOBQ_PG_VIEW_PAST_JOBS, false));
    row = rows.rows;
    assert_int_equal(rows.count, 2);
    assert_int_equal(row[0].facts.id, ids[2]);
    assert_int_equal(row[1].facts.state, JOBQ_STATE_CANCELLED);
    assert_null(row[0].payload.ptr);
    jobq_pg_rows_clear(&rows);

    rows = all_of(jobq_pg_view_desc(JOBQ_PG_VIEW_FAILURES, true));
    failure = rows.rows;
    assert_int_equal(rows.count, 1);
    assert_int_equal(failure->id, ids[3]);
    assert_int_equal(failure->attempt, 1);
    assert_true(jobq_str_equal(failure->error, jobq_str_from("too bad")));
    assert_non_null(strstr(failure->errors.ptr, "stage 0, attempt 1: too bad"));
    jobq_pg_rows_clear(&rows);
}

/* Lists, finders, counts and pages as on any table; writing is refused. */
static void queries_on_jobs(void **unused)
{
    jobq_pg_table *jobs = open_as(pg, jobq_pg_view_desc(JOBQ_PG_VIEW_JOBS, false));
    jobq_pg_job_row like = {.queue = {"q", 1}};
    jobq_pg_query query = {.where = "queue state", .like = &like, .order = "-id", .limit = 3};
    jobq_pg_rows rows, next;
    int64_t count = 0;

    (void)unused;
    enqueue_count(7);
    RUN("SELECT jobq.enqueue('p', 'k', '1')");
    like.facts.state = JOBQ_STATE_READY;
    OK(jobq_pg_table_count(jobs, NULL, &query, &count, &error));
    assert_int_equal(count, 7);
    OK(jobq_pg_table_list(jobs, NULL, &query, &rows, &error));
    assert_int_equal(rows.count, 3);
    assert_true(rows.more);
    query.after = &((jobq_pg_job_row *)rows.rows)[2];
    OK(jobq_pg_table_list(jobs, NULL, &query, &next, &error));
    assert_int_equal(((jobq_pg_job_row *)next.rows)[0].facts.id,
                     ((jobq_pg_job_row *)rows.rows)[2].facts.id - 1);
    jobq_pg_rows_clear(&next);
    jobq_pg_rows_clear(&rows);
    like.facts.state = JOBQ_STATE_RUNNING;
    assert_int_equal(jobq_pg_table_get(jobs, NULL, "queue state", &like, NULL, &error),
                     JOBQ_ERROR_NOT_FOUND);
    like.facts.id = 99999999;
    assert_int_equal(jobq_pg_table_get(jobs, NULL, NULL, &like, &rows, &error),
                     JOBQ_ERROR_NOT_FOUND);
    assert_string_equal(error.message, "Not found: job with id=99999999");
    assert_int_equal(jobq_pg_table_update(jobs, NULL, "state", &like, NULL, NULL, NULL, &error),
                     JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "read-only"));
    jobq_pg_table_close(jobs);
}

static void queues_and_workers(void **unused)
{
    const jobq_pg_queue_row *queue;
    const jobq_pg_worker_row *worker;
    jobq_pg_queue_row counts;
    jobq_pg_rows rows;
    verb_batch batch;

    (void)unused;
    enqueue_count(5);
    RUN("UPDATE jobq.job SET run_at = now() - interval '1 hour'");
    OK(jobq_pg_queue_set(pg, NULL, "r", &(jobq_pg_queue_desc){.history = JOBQ_PG_OFF}, &error));
    OK(jobq_pg_queue_set(pg, NULL, "q", &(jobq_pg_queue_desc){.kind = "k", .paused = JOBQ_PG_ON},
                         &error));
    OK(jobq_pg_queue_set(pg, NULL, "r", &(jobq_pg_queue_desc){.paused = JOBQ_PG_ON}, &error));
    register_worker(WORKER, 60 * SECOND);
    register_worker(WORKER + 1, 60 * SECOND);
    RUN("UPDATE jobq.worker SET dead_at = now() WHERE id = 4712");
    RUN("UPDATE jobq.kind SET paused_at = NULL");
    assert_int_equal(claim_by(WORKER, 1, 2, false, &batch), JOBQ_OK);
    RUN("UPDATE jobq.kind SET paused_at = now()");
    rows = all_of(jobq_pg_view_desc(JOBQ_PG_VIEW_QUEUES, false));
    queue = rows.rows;
    assert_int_equal(rows.count, 2);
    OK(counts_of("q", &counts));
    assert_int_equal(queue[0].ready, 3);
    assert_int_equal(counts.ready, 3);
    assert_int_equal(queue[0].running, 2);
    assert_int_equal(counts.running, 2);
    assert_int_equal(queue[0].workers, 1);
    assert_in_range(queue[0].late_us, 3600 * SECOND, 3700 * SECOND);
    assert_true(counts.exact && !counts.paused && queue[1].paused);
    assert_int_equal(queue[0].paused_kinds.count, 1);
    assert_true(jobq_str_equal(queue[0].paused_kinds.items[0], jobq_str_from("k")));
    assert_int_equal(queue[1].late_us, 0);
    assert_int_equal(queue[1].paused_kinds.count, 0);
    jobq_pg_rows_clear(&rows);

    rows = all_of(jobq_pg_view_desc(JOBQ_PG_VIEW_WORKERS, false));
    worker = rows.rows;
    assert_int_equal(rows.count, 2);
    assert_int_equal(worker[0].id, WORKER);
    assert_true(worker[0].alive && !worker[1].alive);
    assert_int_equal(worker[0].running, 2);
    assert_int_equal(worker[0].jobs.count, 2);
    assert_int_equal(worker[0].jobs.items[0], batch.jobs[0].id);
    assert_int_equal(worker[1].jobs.count, 0);
    assert_true(worker[0].dead_at_us == 0 && worker[1].dead_at_us != 0);
    assert_in_range(worker[0].expires_at_us - worker[0].beat_at_us, 59 * SECOND, 61 * SECOND);
    assert_in_range(worker[0].longest_us, 0, 60 * SECOND);
    assert_int_equal(worker[1].longest_us, 0);
    assert_true(jobq_str_equal(worker[0].queues.items[0], jobq_str_from("q")));
    jobq_pg_rows_clear(&rows);
    verb_batch_clear(&batch);
}

static void partitions_and_dead_letters(void **unused)
{
    const jobq_pg_partition_row *row;
    const jobq_pg_dead_letter_row *letter;
    jobq_pg_rows letters;
    verb_read_desc d;
    verb_reading r;
    jobq_pg_rows rows;
    int i;

    (void)unused;
    open_box(2);
    put(NULL, 1, 12);
    d = reader(WORKER, 1, 1);
    assert_int_equal(read_by(&d, &r), 'h');
    verb_reading_clear(&r);
    RUN("INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at, "
        "attempts, error, payload, headers) VALUES "
        "(%d, %lld, 77, now(), now(), 3, 'bad', '[1]', '{}'), "
        "(%d, %lld, 78, now(), now() + interval '1 s', 1, NULL, NULL, NULL)", (int)box,
        (long long)partition_id(box, 1), (int)box, (long long)partition_id(box, 0));
    rows = all_of(jobq_pg_view_desc(JOBQ_PG_VIEW_OUTBOX, false));
    row = rows.rows;
    assert_int_equal(rows.count, 2);
    assert_int_equal(row[1].partition_id, partition_id(box, 1));
    assert_int_equal(row[1].queue_id, box);
    assert_int_equal(row[1].partition, 1);
    assert_int_equal(row[1].lag, 12);
    assert_int_equal(row[1].attempts, 1);
    assert_int_equal(row[1].worker, WORKER);
    assert_int_equal(row[1].dead_letters, 1);
    assert_true(row[1].lease_until_us != 0 && row[0].lease_until_us == 0);
    assert_true(row[1].age_us > 0 && row[0].age_us == 0);
    assert_int_equal(row[0].worker, 0);
    assert_true(jobq_str_equal(row[0].queue, jobq_str_from("o")));
    jobq_pg_rows_clear(&rows);

    rows = all_of(jobq_pg_view_desc(JOBQ_PG_VIEW_DEAD_LETTERS, true));
    letter = rows.rows;
    assert_int_equal(rows.count, 2);
    assert_int_equal(letter[0].seq, 78); /* the newest first */
    assert_int_equal(letter[1].partition, 1);
    assert_int_equal(letter[1].partition_id, partition_id(box, 1));
    assert_int_equal(letter[1].attempts, 3);
    assert_true(jobq_str_equal(letter[1].queue, jobq_str_from("o")));
    assert_true(jobq_str_equal(letter[1].payload, jobq_str_from("[1]")));
    assert_null(letter[0].payload.ptr);
    assert_null(letter[0].error.ptr);
    assert_int_equal(letter[0].completed_at_us, 0);
    OK(jobq_pg_dead_letter_replay(pg, NULL, 5, SECOND, NULL, &letters, &error));
    assert_int_equal(letters.count, 2);
    assert_int_equal(LETTER(letters, 0).queue_id, box);
    assert_int_equal(LETTER(letters, 0).partition + LETTER(letters, 1).partition, 1);
    assert_true(LETTER(letters, 0).deadline_us != 0);
    assert_true(jobq_str_equal(LETTER(letters, 0).status, jobq_str_from("reprocessing")));
    for (i = 0; i < 2; i++)
        OK(jobq_pg_dead_letter_end(pg, NULL, 5, &LETTER(letters, i).id, 1, JOBQ_RESULT_RETRY, NULL,
                                   NULL, &error));
    assert_int_equal(number("SELECT count(*) FROM jobq.dead_letter WHERE status = 'pending' AND"
                            " error IS NULL"), 2);
    jobq_pg_rows_clear(&letters);
    jobq_pg_rows_clear(&rows);
}

/* A role that may not see payloads reads all the rest. */
static void without_payloads(void **unused)
{
    jobq_pg_table *bare = open_as(pg, jobq_pg_view_desc(JOBQ_PG_VIEW_JOBS, false));
    jobq_pg_table *all = open_as(pg, jobq_pg_view_desc(JOBQ_PG_VIEW_JOBS, true));
    jobq_pg_rows rows;

    (void)unused;
    enqueue_count(1);
    RUN("DROP ROLE IF EXISTS %s_reader", schema);
    RUN("CREATE ROLE %s_reader", schema);
    RUN("SELECT jobq.grant_read('%s_reader', payloads => false)", schema);
    RUN("SET ROLE %s_reader", schema);
    OK(jobq_pg_table_list(bare, db, NULL, &rows, &error));
    assert_int_equal(rows.count, 1);
    jobq_pg_rows_clear(&rows);
    assert_int_equal(jobq_pg_table_list(all, db, NULL, &rows, &error), JOBQ_ERROR_DATABASE);
    assert_string_equal(error.sqlstate, "42501");
    RUN("RESET ROLE");
    RUN("SELECT jobq.revoke('%s_reader')", schema);
    RUN("DROP ROLE %s_reader", schema);
    jobq_pg_table_close(bare);
    jobq_pg_table_close(all);
}

/* Rows of jobq.job that a statement reads, in a transaction of its own. */
static long rows_read(const char *query)
{
    static const char text[] = "SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0) FROM "
                               "pg_stat_xact_user_tables WHERE relid = 'jobq.job'::regclass";
    long before;

    RUN("BEGIN");
    before = number("%s", text);
    RUN("%s", query);
    before = number("%s", text) - before;
    RUN("COMMIT");
    return before;
}

/* A page of jobs, and what is running, cost the same however many jobs there are. */
static void looks_at_many_jobs(void **unused)
{
    verb_batch batch;

    (void)unused;
    enqueue_count(1);
    RUN("INSERT INTO jobq.job (queue_id, kind_id) SELECT queue_id, kind_id FROM jobq.job, "
        "generate_series(1, 20000)");
    RUN("ANALYZE jobq.job");
    assert_in_range(rows_read("SELECT FROM jobq.jobs ORDER BY id LIMIT 100"), 100, 110);
    assert_in_range(rows_read("SELECT FROM jobq.jobs ORDER BY id DESC LIMIT 100"), 100, 110);
    register_worker(7, 60 * SECOND);
    assert_int_equal(claim_by(7, 1, 10, false, &batch), JOBQ_OK);
    verb_batch_clear(&batch);
    assert_int_equal(number("SELECT count(*) FROM jobq._running()"), 10);
    assert_in_range(rows_read("SELECT jobq._running()"), 10, 20);
}

#define TEST(f) cmocka_unit_test_setup(f, pg_empty)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(descriptions_fit_their_views),
        TEST(every_column_has_a_comment),
        TEST(a_workers_id_has_one_form),
        TEST(jobs_in_every_state),
        TEST(queries_on_jobs),
        TEST(looks_at_many_jobs),
        TEST(queues_and_workers),
        TEST(partitions_and_dead_letters),
        TEST(without_payloads),
    };

    return cmocka_run_group_tests_name("own tables", tests, pg_up, pg_down);
}
