/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * bench.h -- jobq bench: how fast this server enqueues and works jobs that do nothing.
 */
static jobq_outcome succeed(jobq_call *call)
{
    (void)call;
    return JOBQ_OUTCOME_SUCCESS;
}

static volatile sig_atomic_t bench_ended;

static void bench_signal(int number)
{
    (void)number;
    bench_ended = 1;
}

/* Enqueues jobs, a thousand at a time, until a signal comes. */
static jobq_error bench_enqueue(jobq_pg *pg, long count, jobq_pg_error *error)
{
    static jobq_pg_job jobs[1000];
    jobq_error code = JOBQ_OK;
    long done;

    for (done = 0; done < 1000; done++) {
        jobs[done].queue = jobs[done].kind = "bench";
        jobs[done].payload = jobq_str_from("{\"n\": 1}");
    }
    for (done = 0; done < count && code == JOBQ_OK && !bench_ended; done += 1000) {
        size_t part = count - done < 1000 ? (size_t)(count - done) : 1000;

        code = jobq_pg_enqueue_many(pg, NULL, jobs, part, NULL, error);
        app_progress("enqueued %ld", done + (long)part);
    }
    return code;
}

static int bench_run(app *a, jobq_pg *pg, long count, int32_t threads)
{
    jobq_pg_handler handler = {.queue = "bench", .kind = "bench", .run = {succeed}};
    jobq_pg_worker_desc worker = {.handlers = &handler, .handler_count = 1,
                                  .loop = {.threads = threads, .until = JOBQ_UNTIL_ENDED},
                                  .stop_signals = {SIGTERM, SIGINT}};
    int64_t begin_us, middle_us, end_us;
    jobq_pg_error error;
    jobq_error code = jobq_pg_migrate(pg, &error);

    begin_us = app_now_us();
    if (code == JOBQ_OK) code = bench_enqueue(pg, count, &error);
    middle_us = app_now_us();
    app_progress("working");
    if (code == JOBQ_OK && !bench_ended) code = jobq_pg_work(pg, &worker, &error);
    end_us = app_now_us();
    app_progress(NULL);
    if (code != JOBQ_OK) return exit_code(code, &error);
    if (bench_ended || PQntuples(app_try(a, "SELECT FROM jobq.job LIMIT 1", 0, NULL)) > 0)
        return app_say(APP_NO, "stopped");
    printf(a->json ? "{\"jobs\": %ld, \"enqueued_per_s\": %.0f, \"done_per_s\": %.0f}\n"
                   : "%ld jobs: enqueued %.0f a second, done %.0f a second\n",
           count, 1e6 * (double)count / (double)(middle_us - begin_us),
           1e6 * (double)count / (double)(end_us - middle_us));
    return APP_OK;
}

/* In a schema of its own, so that nothing of it is left, also after a signal. doctor finds one that
 * was left: while a bench runs, its connection has the name of the schema. */
static int do_bench(app *a)
{
    app_text schema = {0}, name = {0}, drop = {0};
    jobq_pg *pg;
    int code;

    app_format(&schema, "jobq_bench_%ld", (long)getpid());
    app_format(&name, "SELECT set_config('application_name', '%s', false)", schema.ptr);
    app_format(&drop, "SET client_min_messages = warning; DROP SCHEMA IF EXISTS %s CASCADE",
               schema.ptr);
    signal(SIGINT, bench_signal);
    signal(SIGTERM, bench_signal);
    signal(SIGHUP, bench_signal);
    PQclear(PQexec(a->conn, name.ptr));
    a->schema = schema.ptr;
    pg = open_jobq(a, schema.ptr, NULL);
    code = bench_run(a, pg, app_number_of(a, "jobs", 10000),
                     (int32_t)app_number_of(a, "threads", 4));
    jobq_pg_close(pg);
    PQclear(PQexec(a->conn, drop.ptr));
    return code;
}
