/*
 * worker.cc -- a worker in C++17: handles that close themselves, payloads as std::string_view,
 * lambdas as handlers, and a handler that throws.
 *
 * Build   c++ -std=c++17 examples/worker.cc -I. -lpq -o worker_cc
 * Run     JOBQ_SERVER="host=... dbname=..." ./worker_cc
 *         or, on a Postgres of its own: tests/server.sh ./worker_cc
 * Prints  hello "Ann"
 *         hello "Bob"
 *         report: attempt 1: no paper
 *         report: printed at attempt 2
 *         greeted 2
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
#include <string_view>

/* ---- what a C++ program wants around the headers --------------------------------------------- */

static void must(jobq_error code, const jobq_pg_error &error)
{
    if (code != JOBQ_OK) throw std::runtime_error(error.message);
}

/* A handle that closes itself. */
struct closes {
    void operator()(jobq_pg *pg) const { jobq_pg_close(pg); }
};
using handle = std::unique_ptr<jobq_pg, closes>;

/* A transaction on a connection of the pool: jobq_pg_release rolls back what is not committed. */
class transaction {
public:
    explicit transaction(jobq_pg *of) : pg(of)
    {
        jobq_pg_error error;
        must(jobq_pg_acquire(pg, &conn, &error), error);
        PQclear(PQexec(conn, "BEGIN"));
    }
    ~transaction() { jobq_pg_release(pg, conn); }
    transaction(const transaction &) = delete;
    transaction &operator=(const transaction &) = delete;

    /* The server answers COMMIT of an aborted transaction with ROLLBACK. */
    void commit()
    {
        PGresult *res = PQexec(conn, "COMMIT");
        const bool done = std::string_view(PQcmdStatus(res)) == "COMMIT";
        PQclear(res);
        if (!done) throw std::runtime_error("not committed: " + std::string(PQerrorMessage(conn)));
    }

    jobq_pg *pg;
    PGconn *conn;
};

static std::string_view view(jobq_str text) { return {text.ptr, text.len}; }
static jobq_str str(std::string_view text) { return {text.data(), text.size()}; }

/* ---- the program ----------------------------------------------------------------------------- */

static handle open(const char *server)
{
    jobq_pg_error error;
    jobq_pg_desc desc = {};
    jobq_pg *pg;

    desc.conninfo = server;
    desc.schema = "jobq_example_cc";
    must(jobq_pg_open(&pg, &desc, &error), error);
    handle opened(pg);
    must(jobq_pg_migrate(pg, &error), error);
    return opened;
}

static void enqueue(transaction &tx, const char *kind, std::string_view payload)
{
    jobq_pg_error error;
    jobq_pg_job job = {};

    job.queue = "mail";
    job.kind = kind;
    job.payload = str(payload);
    must(jobq_pg_enqueue(tx.pg, tx.conn, &job, nullptr, &error), error);
}

/* All jobs, or none if something throws on the way. */
static void enqueue_all(jobq_pg *pg)
{
    transaction tx(pg);

    enqueue(tx, "greet", R"("Ann")");
    enqueue(tx, "greet", R"("Bob")");
    enqueue(tx, "report", "{}");
    tx.commit();
}

/* Works until no job is left. A handler is a lambda that captures nothing; what it shares with the
 * program is behind call->user. */
static int work(jobq_pg *pg)
{
    int greeted = 0;
    jobq_handler greet = [](jobq_call *call) {
        std::cout << "hello " << view(call->payload) << std::endl;
        ++*static_cast<int *>(call->user);
        return JOBQ_OUTCOME_SUCCESS;
    };
    jobq_handler report = [](jobq_call *call) {
        jobq_call_delay(call, JOBQ_MILLISECONDS(1)); /* instead of the queue's backoff */
        if (call->job.attempt == 1) {
            std::cout << "report: attempt 1: no paper" << std::endl;
            throw std::runtime_error("no paper"); /* a failed attempt, and its error */
        }
        std::cout << "report: printed at attempt " << call->job.attempt << std::endl;
        return JOBQ_OUTCOME_SUCCESS;
    };
    const jobq_pg_handler handlers[] = {{"mail", "greet", {greet}, &greeted, 0},
                                        {"mail", "report", {report}, nullptr, 0}};
    jobq_pg_worker_desc desc = {};
    jobq_pg_error error;

    desc.handlers = handlers;
    desc.handler_count = 2;
    desc.loop.threads = 1; /* so that the count above needs no lock */
    desc.loop.until = JOBQ_UNTIL_ENDED;
    must(jobq_pg_work(pg, &desc, &error), error);
    return greeted;
}

int main()
{
    const char *server = std::getenv("JOBQ_SERVER");

    try {
        if (server == nullptr) throw std::runtime_error("JOBQ_SERVER is not set; see the top");
        handle pg = open(server);
        enqueue_all(pg.get());
        int greeted = work(pg.get());
        std::cout << "greeted " << greeted << std::endl;
    } catch (const std::exception &error) {
        std::cerr << error.what() << std::endl;
        return 1;
    }
    return 0;
}
