/*
 * worker.cc -- the smallest worker in C++11.
 *
 * Build   c++ examples/worker.cc -I. -lpq -o worker_cc
 * Run     JOBQ_SERVER="host=... dbname=..." ./worker_cc
 *         or, on a Postgres of its own: tests/server.sh ./worker_cc
 * Prints  hello "Ann"
 *         hello "Bob"
 *
 * Creates the schema jobq_example_cc and leaves it there. You may run it again.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <cstdlib>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

static void must(jobq_error code, const jobq_pg_error &error)
{
    if (code != JOBQ_OK) throw std::runtime_error(error.message);
}

/* Catch exceptions inside a handler: its caller is C. */
static jobq_outcome greet(jobq_call *call)
{
    std::cout << "hello " << std::string(call->payload.ptr, call->payload.len) << std::endl;
    return JOBQ_OUTCOME_SUCCESS;
}

static void work(const char *server)
{
    jobq_pg_error error;
    jobq_pg_desc desc = {};
    desc.conninfo = server;
    desc.schema = "jobq_example_cc";

    jobq_pg *opened;
    must(jobq_pg_open(&opened, &desc, &error), error);
    std::unique_ptr<jobq_pg, void (*)(jobq_pg *)> pg(opened, jobq_pg_close);
    must(jobq_pg_migrate(pg.get(), &error), error);

    for (const char *name : {"\"Ann\"", "\"Bob\""}) {
        jobq_pg_job job = {};
        job.queue = "mail";
        job.kind = "greet";
        job.payload = jobq_str_from(name);
        must(jobq_pg_enqueue(pg.get(), nullptr, &job, nullptr, &error), error);
    }

    const jobq_pg_handler handler = {"mail", "greet", {greet}, nullptr};
    jobq_pg_worker_desc worker = {};
    worker.handlers = &handler;
    worker.handler_count = 1;
    worker.loop.threads = 1;
    worker.loop.until = JOBQ_UNTIL_EMPTY;
    must(jobq_pg_work(pg.get(), &worker, &error), error);
}

int main()
{
    const char *server = std::getenv("JOBQ_SERVER");

    try {
        if (server == nullptr) throw std::runtime_error("JOBQ_SERVER is not set; see the top");
        work(server);
    } catch (const std::exception &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    return 0;
}
