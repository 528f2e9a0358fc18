/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * store_protocol.h -- Postgres as in store_pg.h, but the ends of jobs are decided in SQL, from the
 * job's row, as in a worker that speaks the protocol of sql/optional/protocol.sql.
 */
#ifndef STORE_PROTOCOL_INCLUDED
#define STORE_PROTOCOL_INCLUDED (1)

#include "store_pg.h"

static store store_protocol;

/* The decision of jobq.h is not used; it is what the other store writes. */
static jobq_error protocol_settle(const jobq_job *held, const jobq_event *event,
                                  const jobq_decision *decision, jobq_str next, int64_t now_us)
{
    const char *name = event->kind == JOBQ_EVENT_TIMEOUT
                           ? "retry"
                           : jobq_enum_name(JOBQ_ENUM_EVENT, (int)event->kind);
    char generic[400], delay[60], *text;
    jobq_error code = JOBQ_OK;
    PGresult *res;

    if (event->kind == JOBQ_EVENT_PARK) return pg_settle(held, event, decision, next, now_us);
    pg_at(now_us);
    snprintf(delay, sizeof delay, "'%lld microseconds'", (long long)event->delay_us);
    snprintf(generic, sizeof generic,
             "SELECT jobq._work_settle(%lld, %lld, %lld, '%s', %s, 'boom', %s, NULL)",
             (long long)held->worker, (long long)held->claim, (long long)held->id, name,
             event->delay_named ? delay : "NULL", next.ptr == NULL ? "NULL" : "'{\"n\": 2}'");
    text = for_schema(generic, schema);
    res = PQexec(db, text);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) {
        code = jobq_pg_classify(PQresultErrorField(res, PG_DIAG_SQLSTATE));
        if (code != JOBQ_ERROR_LOST) fail_msg("%s: %s", text, PQresultErrorMessage(res));
    }
    PQclear(res);
    free(text);
    return code;
}

/* Chance is a half, as in store.h. */
static inline int store_protocol_up(void **state)
{
    int failed = store_pg_up(state);

    if (failed != 0) return failed;
    RUN("CREATE FUNCTION %s_clock.random() RETURNS float8 LANGUAGE sql STABLE "
        "AS 'SELECT 0.5::float8'",
        schema);
    cancels_known = true;
    store_protocol = store_pg;
    store_protocol.name = "the protocol";
    store_protocol.settle = protocol_settle;
    return 0;
}

#endif /* STORE_PROTOCOL_INCLUDED */
