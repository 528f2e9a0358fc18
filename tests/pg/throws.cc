/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/* throws.cc -- both headers as C++, and handlers that throw, for tests/pg/test_pg_throws.c. */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include "throws.h"

#include <stdexcept>

int throws_calls, throws_cleaned;

namespace {
struct Cleanup {
    ~Cleanup() { __atomic_add_fetch(&throws_cleaned, 1, __ATOMIC_SEQ_CST); }
};
}

/* The first call throws an exception, the second something else; the third ends its thread. */
static void misbehave()
{
    Cleanup cleanup;
    int call = __atomic_add_fetch(&throws_calls, 1, __ATOMIC_SEQ_CST);

    if (call == 1) throw std::runtime_error("no such host");
    if (call == 2) throw 42;
    if (call == 3) pthread_exit(nullptr);
}

jobq_outcome throws(jobq_call *call)
{
    jobq_pg_error error;
    PGconn *conn = call->user != nullptr ? jobq_pg_call_conn(call, &error) : nullptr;

    if (conn != nullptr) PQclear(PQexec(conn, "BEGIN"));
    if (conn != nullptr) PQclear(PQexec(conn, "SELECT pg_current_xact_id()"));
    misbehave();
    return JOBQ_OUTCOME_SUCCESS;
}

jobq_outcome throws_jobs(jobq_call *const *calls, int32_t)
{
    calls[0]->outcome = JOBQ_OUTCOME_SUCCESS;
    misbehave();
    return JOBQ_OUTCOME_SUCCESS;
}

jobq_outcome throws_nothing(jobq_call *call)
{
    Cleanup cleanup;

    try {
        jobq_call_step_done(call, "a", jobq_str_from(nullptr));
    } catch (...) {
    }
    jobq_call_stopping(call, nullptr);
    __atomic_add_fetch(&throws_calls, 1, __ATOMIC_SEQ_CST);
    return JOBQ_OUTCOME_SUCCESS;
}

jobq_result throws_each(jobq_delivery *delivery, const jobq_message *message)
{
    jobq_delivery_delay(delivery, 1000);
    if (message->seq == 2) misbehave();
    return JOBQ_RESULT_SUCCESS;
}

jobq_result throws_all(jobq_delivery *delivery)
{
    jobq_delivery_delay(delivery, 1000);
    misbehave();
    return JOBQ_RESULT_SUCCESS;
}
