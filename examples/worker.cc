/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * worker.cc -- a worker in C++17, with jobq.hpp: jobs in a transaction, lambdas as handlers, one of
 * which throws, and a result.
 *
 * Build   c++ -std=c++17 examples/worker.cc -I. -lpq -o worker_cc
 * Run     JOBQ_SERVER="host=... dbname=..." ./worker_cc
 *         or, on a Postgres of its own: tests/server.sh ./worker_cc
 * Prints  not enqueued: a job without a kind
 *         hello Ann
 *         hello Bob
 *         report: attempt 1: no paper
 *         report: printed at attempt 2
 *         greeted 2, started 4; the report succeeded: {"pages": 3}
 *
 * Creates the schema jobq_example_cc and leaves it there. You may run it again.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq.hpp"

#include <cstdlib>
#include <iostream>

/* All jobs, or none if something throws on the way. Returns the id of the report. */
static std::int64_t enqueue_all(jobq::handle &pg)
{
    jobq::transaction tx(pg);
    jobq_pg_job report = jobq::job("mail", "report", R"({"pages": 3})");

    tx.enqueue(jobq::job("mail", "greet", R"({"name": "Ann"})"));
    tx.enqueue(jobq::job("mail", "greet", R"({"name": "Bob"})"));
    report.priority = 1; /* after the others */
    const std::int64_t id = tx.enqueue(report);
    tx.commit();
    return id;
}

/* The guard rolls back what was enqueued before the mistake. */
static void enqueue_nothing(jobq::handle &pg)
{
    try {
        jobq::transaction tx(pg);
        tx.enqueue(jobq::job("mail", "greet", R"({"name": "Eve"})"));
        tx.enqueue(jobq::job("mail", nullptr));
        tx.commit();
    } catch (const jobq::error &refused) {
        std::cout << "not enqueued: a job without a " << refused.detail.field << std::endl;
    }
}

int main()
try {
    const char *server = std::getenv("JOBQ_SERVER");
    if (server == nullptr) throw std::runtime_error("JOBQ_SERVER is not set; see the top");
    jobq::handle pg(server, "jobq_example_cc");
    int greeted = 0;

    pg.migrate();
    const std::int64_t report = enqueue_all(pg);
    enqueue_nothing(pg);

    jobq::worker worker(pg);
    worker.desc.loop.threads = 1; /* so that the count above needs no lock */
    worker.desc.loop.until = JOBQ_UNTIL_ENDED;
    worker.on("mail", "greet", [&](jobq_call &call) {
        std::cout << "hello " << jobq::text(call.payload, "name").value_or("you") << std::endl;
        greeted++;
    });
    worker.on("mail", "report", [](jobq_call &call) {
        jobq_call_delay(&call, JOBQ_MILLISECONDS(1)); /* instead of the queue's backoff */
        if (call.job.attempt == 1) {
            std::cout << "report: attempt 1: no paper" << std::endl;
            throw std::runtime_error("no paper"); /* a failed attempt, and its error */
        }
        std::cout << "report: printed at attempt " << call.job.attempt << std::endl;
        return jobq_call_result(&call, call.payload, false) ? JOBQ_OUTCOME_SUCCESS
                                                            : JOBQ_OUTCOME_RETRY;
    });
    const jobq_pg_stats stats = worker.run();
    const jobq::end end = pg.wait(report, JOBQ_SECONDS(1));

    std::cout << "greeted " << greeted << ", started " << stats.jobs.started << "; the report "
              << jobq_enum_name(JOBQ_ENUM_STATE, end.state) << ": " << end.result << std::endl;
    return 0;
} catch (const std::exception &error) {
    std::cerr << error.what() << std::endl;
    return 1;
}
