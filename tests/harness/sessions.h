/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * sessions.h -- two sessions at once, in a given order: one waits for a lock while the other goes
 * on, or finishes what the other has overlooked.
 */
#ifndef SESSIONS_INCLUDED
#define SESSIONS_INCLUDED (1)

#include "outbox.h"

#define ACK "SELECT answer FROM jobq._outbox_ack(1, 1, 60000000, %lld, %d, %d, '{}', 0, 0, 0," \
            " NULL, 0, '{}', '{}', '{}', %d, false)"
#define CLAIM "SELECT id FROM jobq._claim(101, 1, 9, ARRAY(SELECT id FROM jobq.queue), '{0}'," \
              " '{0}', '{-infinity}', '{0}', NULL, false, false, false, true)"

static PGconn *a, *b;

/* -- one that waits -- */

/* b asks, and comes to a lock that a has. */
static inline void b_asks(const char *format, ...)
{
    char generic[1000], waits[200], *text;
    va_list args;
    int before;

    va_start(args, format);
    vsnprintf(generic, sizeof generic, format, args);
    va_end(args);
    text = for_schema(generic, schema);
    before = shards_at == NULL ? 0 : waiting_at_node();
    assert_int_equal(PQsendQuery(b, text), 1);
    free(text);
    if (shards_at != NULL) { /* what waits there is a session of the node */
        assert_true(answers_or_waits(b, before));
        assert_true(PQisBusy(b));
        return;
    }
    snprintf(waits, sizeof waits, "SELECT count(*) FROM pg_stat_activity WHERE pid = %d"
                                  " AND wait_event_type = 'Lock'", PQbackendPID(b));
    assert_true(becomes(20, 1, waits));
}

/* The one value, or the SQLSTATE of an error. */
static inline void expect_answer(PGconn *conn, PGresult *res, const char *wanted)
{
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    char got[100];

    snprintf(got, sizeof got, "%s", state != NULL        ? state
                                    : PQntuples(res) > 0 ? PQgetvalue(res, 0, 0)
                                                         : PQcmdStatus(res));
    PQclear(res);
    while ((res = PQgetResult(conn)) != NULL) PQclear(res);
    assert_string_equal(got, wanted);
}

static inline void is_answered(const char *wanted)
{
    expect_answer(b, PQgetResult(b), wanted);
}

/* a says something that may be refused. */
static inline void says(const char *wanted, const char *query)
{
    char *text = for_schema(query, schema);
    PGresult *res = PQexec(a, text);

    free(text);
    expect_answer(a, res, wanted);
}

static inline void run_a(const char *query)
{
    PQclear(sql(a, "%s", query));
}

/* -- holders -- */

static inline long long held_partition(int messages)
{
    verb_read_desc d;
    verb_reading r;

    open_box(1);
    put(NULL, 0, messages);
    d = reader(1, 1, 0);
    assert_int_equal(read_by(&d, &r), 'h');
    verb_reading_clear(&r);
    return (long long)d.partition;
}

static inline int two(void **state)
{
    a = connected();
    b = connected();
    return pg_empty(state);
}

static inline int none(void **state)
{
    (void)state;
    PQfinish(a);
    PQfinish(b);
    return 0;
}

#define WITH_TWO(test) cmocka_unit_test_setup_teardown(test, two, none)

#endif
