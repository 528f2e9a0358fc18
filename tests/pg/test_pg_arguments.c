/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * test_pg_arguments.c -- what a call does not use, it refuses, and times that are certainly
 * mistakes. Every optional argument of SQL, every field of a descriptor, and every time is judged
 * here: a new one fails the test until it is.
 */
#define TEST_PRIVATE
#include "pg_work.h"
#include "api.h"
#include "calls.h"
#include "fields.h"

static char answered[256]; /* what a call showed beside the tables */
static int failures; /* of a test that goes on, to tell all of them */

#define WRONG(...) (failures++, print_error(__VA_ARGS__))

static void seen_make(void);

static bool listed(const char *words, const char *word)
{
    size_t len = strlen(word);
    const char *at = words;

    while ((at = strstr(at, word)) != NULL) {
        if ((at == words || at[-1] == ' ') && (at[len] == ' ' || at[len] == '\0')) return true;
        at += len;
    }
    return false;
}

/* Whether SQL refuses this call for this argument; NULL: whether it takes it. Writes nothing. */
static bool sql_answers(const char *call, const char *field)
{
    char *text = for_schema(call, schema);
    jobq_pg_error error;
    PGresult *res;
    bool good;

    RUN("BEGIN");
    res = PQexec(db, text);
    if (field == NULL) {
        good = PQresultStatus(res) == PGRES_TUPLES_OK;
        if (!good) print_error("%s: %s", call, PQerrorMessage(db));
    } else {
        good = jobq_pg__result_error(&error, db, res) == JOBQ_ERROR_INVALID &&
               strcmp(error.field, field) == 0 && strcmp(error.sqlstate, "22023") == 0;
        if (!good) print_error("%s: %s (%s)\n", call,
                               PQresultStatus(res) == PGRES_TUPLES_OK ? "is taken" : error.message,
                               error.field);
    }
    PQclear(res);
    RUN("ROLLBACK");
    free(text);
    return good;
}

/* ---- SQL: what is not used ------------------------------------------------------------------- */

/* Optional arguments that a call always uses. */
static const struct {
    const char *function, *arguments;
} used[] = {
    {"enqueue", "payload priority stages max_attempts timeout key bytes headers notify line flow"
                " name after after_names after_flow expires"},
    {"enqueue_or_get", "payload delay run_at priority stages max_attempts timeout key bytes headers"
                       " notify on_known unique_for at_latest line flow name after after_names"
                       " after_flow on_end expires"}, /* enqueue is it */
    {"digest", "every"},
    {"renew", "home"},
    {"flow", "name on_failure open"},
    {"batch", "done_kind name done_outbox"},
    {"flow_cancel", "at_most"},
    {"flow_revive", "at_most"},
    {"flow_graph", "at_most"},
    {"_job_ties", "at_most"},
    {"line_set", "running_max weight strict rate rate_burst paused hold reset"},
    {"peek", "queues at_most exclude"},
    {"cancel", "kind state older tags at_most"},
    {"revive", "kind older tags at_most"},
    {"delete", "kind older tags at_most"},
    {"reschedule", "run_at kind older tags at_most"},
    {"prioritize", "kind older tags at_most"},
    {"move", "kind older tags at_most"},
    {"pause", "kind"},
    {"resume", "kind"},
    {"queue_set", "max_attempts backoff backoff_base backoff_cap backoff_floor backoff_jitter"
                  " timeout history kind retention running_max rate paused snoozes_max"},
    {"schedule", "kind payload cron every missed missed_within spread starts_at ends_at bytes"
                 " headers partition owner"},
    {"schedule_preview", "cron zone count after every"}, /* zone: of the column local */
    {"subscribe", "kind types owner"},
    {"unsubscribe", "drop"},
    {"signal", "payload"},
    {"outbox_enqueue", "payload order_key type headers key notify"},
    {"dead_letter_list", "queue partition type status at_most"},
    {"dead_letter_count", "queue partition type status"},
    {"dead_letter_replay", "queue partition type at_most id"},
    {"dead_letter_discard", "queue partition type at_most id"},
    {"dead_letter_cleanup", "queue partition type at_most"},
    {"doctor", "thorough"},
    {"work_join", "name lease host pid"},
    {"work_take", "most"},
    {"work_done", "bytes"},
    {"work_fail", "error outcome delay"}, /* an end is not refused for its delay */
    {"work_heartbeat", "watched"},
    {"wait", "timeout state result"}, /* the last two are its answer */
    {"erase", "dry live at_most after"},
    {"grant_enqueue", "fast lines outboxes"},
    {"grant_read", "payloads"},
};

/* Calls in which an argument would not be used, or only another one, or would match nothing. */
static const struct {
    const char *function, *argument, *call;
} unused[] = {
    {"enqueue", "delay", "enqueue('q', 'k', delay => '1 s', run_at => now())"},
    {"enqueue", "run_at", NULL},
    {"enqueue", "payload", "enqueue('q', 'k', '1', bytes => 'x')"},
    {"enqueue", "on_known", "enqueue('q', 'k', key => 'a', on_known => 'replace', flow => 1)"},
    {"enqueue", "on_known", "enqueue('q', 'k', key => 'a', on_known => 'reject', after => '{1}')"},
    {"enqueue", "unique_for", "enqueue('q', 'k', key => 'a', unique_for => 'live', flow => 1)"},
    {"enqueue", "at_latest", "enqueue('q', 'k', key => 'a', at_latest => '1 s', after_flow => 1)"},
    {"enqueue", "at_latest", "enqueue('q', 'k', key => 'a', at_latest => '1 s')"},
    {"enqueue", "at_latest",
     "enqueue('q', 'k', key => 'a', on_known => 'merge', at_latest => '1 s')"},
    {"enqueue", "key", "enqueue('q', 'k', on_known => 'replace')"},
    {"enqueue", "key", "enqueue('q', 'k', unique_for => 'live')"},
    {"enqueue", "on_end", "enqueue('q', 'k', on_end => 'any')"},
    {"enqueue", "on_end", "enqueue('q', 'k', on_end => 'nonsense', flow => 1)"},
    {"enqueue", "name", "enqueue('q', 'k', name => 'n')"},
    {"enqueue", "after", "enqueue('q', 'k', after => '{-1}')"},
    {"enqueue", "after", "enqueue('q', 'k', after_names => '{a}')"},
    {"digest", "at", "digest('{\"a\": 1}', '{a}', at => '2026-01-01')"},
    {"batch", "done_payload", "batch('q', 'k', '{1}', done_payload => '1')"},
    {"batch", "done_queue", "batch('q', 'k', '{1}', done_queue => 'p')"},
    {"batch", "done_order_key", "batch('q', 'k', '{1}', 'done', done_order_key => 'o')"},
    {"hold", "why", "hold('q', NULL, NULL, why => 'because')"},
    {"queue_set", "reset", "queue_set('q', reset => true)"},
    {"queue_set", "rate_burst", "queue_set('q', rate_burst => 5)"},
    {"queue_set", "rate_burst", "queue_set('q', rate => '0', rate_burst => 5)"},
    {"queue_set", "max_crashes", "queue_set('q', kind => 'k', max_crashes => 5)"},
    {"queue_set", "attempts_span_stages",
     "queue_set('q', kind => 'k', attempts_span_stages => true)"},
    {"queue_set", "failed_keep", "queue_set('q', kind => 'k', failed_keep => '1 day')"},
    {"queue_set", "key_keep", "queue_set('q', kind => 'k', key_keep => '1 day')"},
    {"queue_set", "message_max", "queue_set('q', kind => 'k', message_max => 5)"},
    {"queue_set", "payload_max", "queue_set('q', kind => 'k', payload_max => 5)"},
    {"queue_set", "kinds", "queue_set('q', kind => 'k', kinds => '{l}')"},
    {"queue_set", "line_running_max", "queue_set('q', kind => 'k', line_running_max => 5)"},
    {"queue_set", "line_strict", "queue_set('q', kind => 'k', line_strict => true)"},
    {"queue_set", "line_rate", "queue_set('q', kind => 'k', line_rate => '5/s')"},
    {"queue_set", "line_rate", "queue_set('q', line_rate => '0.5/s')"},
    {"queue_set", "rate", "queue_set('q', rate => '0.5/s')"},
    {"queue_set", "line_rate_burst", "queue_set('q', kind => 'k', line_rate_burst => 5)"},
    {"queue_set", "line_waiting_max", "queue_set('q', kind => 'k', line_waiting_max => 5)"},
    {"queue_set", "ageing", "queue_set('q', kind => 'k', ageing => true)"},
    {"schedule", "zone", "schedule('s', 'q', 'k', every => '1 h', zone => 'Europe/Berlin')"},
    {"schedule", "type", "schedule('s', 'q', 'k', every => '1 h', type => 't')"},
    {"schedule", "cron", "schedule('s', 'q', 'k', every => '1 h', cron => '@daily')"},
    {"schedule", "payload", "schedule('s', 'q', 'k', '1', every => '1 h', bytes => 'x')"},
    {"schedule", "kind", "schedule('s', 'q', 'k', every => '1 h', partition => 1)"},
    {"schedule", "overlap",
     "schedule('s', 'q', every => '1 h', partition => 1, overlap => 'skip')"},
    {"schedule", "priority", "schedule('s', 'q', every => '1 h', partition => 1, priority => 1)"},
    {"schedule", "max_attempts",
     "schedule('s', 'q', every => '1 h', partition => 1, max_attempts => 1)"},
    {"schedule", "timeout", "schedule('s', 'q', every => '1 h', partition => 1, timeout => '1 s')"},
    {"schedule", "expires", "schedule('s', 'q', every => '1 h', partition => 1, expires => '1 s')"},
    {"outbox_enqueue", "partition", "outbox_enqueue('o', '1', partition => 1, order_key => 'a')"},
    {"outbox_enqueue", "bytes", "outbox_enqueue('o', '1', bytes => 'x')"},
    {"outbox_enqueue", "headers", "outbox_enqueue('o', '1', headers => '[1]')"},
    {"outbox_enqueue", "key", "outbox_enqueue('o', '1', key => '')"},
    {"cancel", "older", "cancel('q', older => '-1 s')"},
    {"cancel", "tags", "cancel('q', tags => '[1]')"},
    {"revive", "older", "revive('q', older => '-1 s')"},
    {"revive", "tags", "revive('q', tags => '[1]')"},
    {"delete", "older", "delete('q', 'ready', older => '-1 s')"},
    {"delete", "tags", "delete('q', 'ready', tags => '[1]')"},
    {"reschedule", "older", "reschedule('q', older => '-1 s')"},
    {"reschedule", "tags", "reschedule('q', tags => '[1]')"},
    {"prioritize", "older", "prioritize('q', 1, older => '-1 s')"},
    {"prioritize", "tags", "prioritize('q', 1, tags => '[1]')"},
    {"move", "older", "move('q', 'o', older => '-1 s')"},
    {"move", "tags", "move('q', 'o', tags => '[1]')"},
    {"dead_letter_list", "status", "dead_letter_list(status => 'failed')"},
    {"dead_letter_count", "status", "dead_letter_count(status => 'any')"},
    {"work_done", "result", "work_done(1, 1, 1, '1', 'x')"},
};

static bool judged(const char *function, const char *argument)
{
    size_t i;

    for (i = 0; i < COUNT(used); i++)
        if (strcmp(used[i].function, function) == 0 && listed(used[i].arguments, argument))
            return true;
    for (i = 0; i < COUNT(unused); i++)
        if (strcmp(unused[i].function, function) == 0 && strcmp(unused[i].argument, argument) == 0)
            return true;
    return false;
}

/* Arguments of the functions that people call; the library's begin with p_. */
#define ARGUMENTS                                                                                  \
    "FROM pg_proc p CROSS JOIN LATERAL (SELECT u.name, CASE WHEN p.proallargtypes IS NULL"         \
    " THEN p.proargtypes[u.n::integer - 1] ELSE p.proallargtypes[u.n::integer] END AS type,"       \
    " row_number() OVER (ORDER BY u.n DESC) AS place"                                              \
    " FROM unnest(p.proargnames) WITH ORDINALITY AS u (name, n)"                                   \
    " WHERE coalesce(p.proargmodes[u.n::integer], 'i') IN ('i', 'b')) AS a"                        \
    " WHERE p.pronamespace = 'jobq'::regnamespace AND a.name <> ''"                                \
    " AND p.proargnames[1] !~ '^p(_|$)' AND p.proname !~ '^_?citus'"

static void sql_uses_every_argument_or_refuses_it(void **unused_state)
{
    PGresult *res;
    int row;
    size_t i;

    (void)unused_state;
    failures = 0;
    RUN("SELECT jobq.queue_set('q', kinds => '{k}'), jobq.outbox_register('o', 4), jobq.flow()");
    res = sql(db, "SELECT DISTINCT p.proname, a.name " ARGUMENTS
                  " AND a.place <= p.pronargdefaults");
    assert_in_range(PQntuples(res), 150, 400);
    for (row = 0; row < PQntuples(res); row++) {
        const char *function = PQgetvalue(res, row, 0), *argument = PQgetvalue(res, row, 1);
        if (!judged(function, argument))
            WRONG("%s of jobq.%s: does each call use it?\n", argument, function);
    }
    PQclear(res);
    for (i = 0; i < COUNT(unused); i++) {
        char call[256];
        if (unused[i].call == NULL) continue;
        snprintf(call, sizeof call, "SELECT * FROM jobq.%s", unused[i].call);
        if (!sql_answers(call, unused[i].argument)) failures++;
    }
    assert_int_equal(failures, 0);
}

/* ---- SQL: each argument, wrong --------------------------------------------------------------- */

/* Takes the next of some texts that " | " separates. NULL: there is none. */
static const char *next_piece(const char **rest, size_t *len)
{
    const char *piece = *rest, *end = strstr(piece, " | ");

    if (*piece == '\0') return NULL;
    *len = end == NULL ? strlen(piece) : (size_t)(end - piece);
    *rest = end == NULL ? piece + *len : end + 3;
    return piece;
}

/* The length of an argument's name: "name => value". */
static size_t name_of(const char *piece)
{
    return strcspn(piece, " ");
}

/* The last row of good_calls all of whose arguments this function has. */
static const char *base_of(const char *function, const char *arguments)
{
    const char *base = NULL, *rest, *piece;
    size_t i, len;
    char name[80];

    for (i = 0; i < COUNT(good_calls); i++) {
        bool all = strcmp(good_calls[i].function, function) == 0;
        rest = good_calls[i].arguments;
        while (all && (piece = next_piece(&rest, &len)) != NULL) {
            snprintf(name, sizeof name, "%.*s", (int)name_of(piece), piece);
            all = listed(arguments, name);
        }
        if (all) base = good_calls[i].arguments;
    }
    return base;
}

/* The call with these arguments, and with those of the base that are not among them. */
static void write_call(char *to, size_t size, const char *function, const char *these,
                       const char *base)
{
    const char *parts[2], *piece, *also;
    size_t len, also_len, n = (size_t)snprintf(to, size, "SELECT count(*) FROM jobq.%s(", function);
    const char *comma = "";
    int part;

    parts[0] = these;
    parts[1] = base;
    for (part = 0; part < 2; part++) {
        while ((piece = next_piece(&parts[part], &len)) != NULL) {
            const char *rest = these;
            bool twice = false;
            while (part == 1 && (also = next_piece(&rest, &also_len)) != NULL)
                twice = twice || (name_of(also) == name_of(piece) &&
                                  strncmp(also, piece, name_of(piece)) == 0);
            if (twice) continue;
            n += (size_t)snprintf(to + n, size - n, "%s%.*s", comma, (int)len, piece);
            comma = ", ";
        }
    }
    snprintf(to + n, size - n, ")");
}

/* Two queues of jobs, one of messages; job 1 is ready, a worker in SQL has job 2. */
static void calls_world(void)
{
    seen_make();
    RUN("SELECT pg_temp.ids_from(1)");
    RUN("SELECT jobq.queue_set('q', kinds => '{k}'), jobq.queue_set('p', kinds => '{k}'),"
        " jobq.outbox_register('o', 4), jobq.flow(open => true),"
        " jobq.schedule('s', 'q', 'k', every => '1 h'), jobq.enqueue('q', 'k'),"
        " jobq.enqueue('p', 'k')");
    RUN("SELECT jobq.work_join('{\"p\": [\"k\"]}')");
    RUN("SELECT jobq.work_take((SELECT w.id FROM jobq.worker w), 1)");
    RUN("DROP ROLE IF EXISTS %s_caller", schema);
    RUN("CREATE ROLE %s_caller", schema);
}

static void calls_done(void)
{
    RUN("SELECT jobq.revoke('%s_caller')", schema);
    RUN("DROP ROLE %s_caller", schema);
    RUN("SELECT pg_temp.ids_from(1)"); /* renew moves ids on, beyond a rollback */
}

/* Every argument of a function for people, with all that the function has. wait, which is a
 * procedure, cannot be called in a transaction. */
static PGresult *arguments_for_people(void)
{
    return sql(db, "SELECT p.proname, a.name, format_type(a.type, NULL), a.place, array_to_string("
                   "p.proargnames, ' ') FROM pg_proc p CROSS JOIN LATERAL (SELECT u.name,"
                   " CASE WHEN p.proallargtypes IS NULL THEN p.proargtypes[u.n::integer - 1]"
                   " ELSE p.proallargtypes[u.n::integer] END AS type, u.n AS place"
                   " FROM unnest(p.proargnames) WITH ORDINALITY AS u (name, n)"
                   " WHERE coalesce(p.proargmodes[u.n::integer], 'i') IN ('i', 'b')) AS a"
                   " WHERE p.pronamespace = 'jobq'::regnamespace AND p.prokind = 'f'"
                   " AND p.proname !~ '^(_|citus)' AND a.name <> '' ORDER BY p.oid, a.place");
}

/* Tries the wrong values of an argument; false: it has none. */
static bool wrong_ones_are_refused(const char *function, const char *argument, const char *all,
                                   const char *base)
{
    const char *name = strncmp(argument, "p_", 2) == 0 ? argument + 2 : argument;
    char these[256], call[1024];
    bool any = false;
    size_t i;

    for (i = 0; i < COUNT(wrong_values); i++) {
        const char *rest = wrong_values[i].value, *piece;
        size_t len;
        if (!listed(wrong_values[i].functions, function) ||
            strcmp(wrong_values[i].argument, argument) != 0) continue;
        any = true;
        piece = next_piece(&rest, &len);
        while ((piece = next_piece(&rest, &len)) != NULL) {
            snprintf(these, sizeof these, "%.*s", (int)name_of(piece), piece);
            if (!listed(all, these)) break; /* it is for another function of this name */
        }
        if (piece != NULL) continue;
        snprintf(these, sizeof these, "%s => %s", argument, wrong_values[i].value);
        write_call(call, sizeof call, function, these, base);
        if (!sql_answers(call, wrong_values[i].refuses != NULL ? wrong_values[i].refuses : name))
            failures++;
    }
    return any;
}

static void each_argument_has_a_value_that_is_refused(void **unused_state)
{
    PGresult *res = arguments_for_people();
    char call[1024];
    int row;
    size_t i;

    (void)unused_state;
    failures = 0;
    calls_world();
    assert_in_range(PQntuples(res), 280, 500);
    for (row = 0; row < PQntuples(res); row++) {
        const char *function = PQgetvalue(res, row, 0), *argument = PQgetvalue(res, row, 1);
        const char *all = PQgetvalue(res, row, 4), *base = base_of(function, all);
        bool fine = strcmp(PQgetvalue(res, row, 2), "boolean") == 0 ||
                    strcmp(argument, "at_most") == 0;
        if (base == NULL) {
            WRONG("jobq.%s: which call of it is taken?\n", function);
            continue;
        }
        for (i = 0; !fine && i < COUNT(no_wrong_value); i++)
            fine = listed(no_wrong_value[i].functions, function) &&
                   listed(no_wrong_value[i].arguments, argument);
        if (wrong_ones_are_refused(function, argument, all, base) == fine)
            WRONG("%s of jobq.%s: which value is refused, or why none? One of them\n", argument,
                  function);
        if (strcmp(PQgetvalue(res, row, 3), "1") != 0) continue;
        write_call(call, sizeof call, function, "", base);
        if (!sql_answers(call, NULL)) failures++;
    }
    PQclear(res);
    calls_done();
    assert_int_equal(failures, 0);
}

/* Whether an error is one that a caller can mend: it names the argument, or it is one of jobq's
 * own, or says that this cannot be done now. */
static bool is_told(const char *sqlstate, const jobq_pg_error *error)
{
    return (strcmp(sqlstate, "22023") == 0 && error->field[0] != '\0') ||
           strncmp(sqlstate, "JQ", 2) == 0 || strncmp(sqlstate, "55", 2) == 0 ||
           strcmp(sqlstate, "42P13") == 0;
}

static void an_odd_value_is_taken_or_told(const char *call)
{
    char *text = for_schema(call, schema);
    jobq_pg_error error;
    PGresult *res;

    RUN("BEGIN");
    res = PQexec(db, text);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) {
        memset(&error, 0, sizeof error);
        jobq_pg__result_error(&error, db, res);
        if (!is_told(error.sqlstate, &error))
            WRONG("%s: %s %s\n", call, error.sqlstate, error.message);
    }
    PQclear(res);
    RUN("ROLLBACK");
    free(text);
}

/* No mistake reaches a constraint or a cast inside: their errors speak of what the caller has
 * never seen. */
static void no_value_is_refused_by_a_constraint(void **unused_state)
{
    PGresult *res = arguments_for_people();
    int row;
    size_t i, len;

    (void)unused_state;
    failures = 0;
    calls_world();
    for (row = 0; row < PQntuples(res); row++) {
        const char *function = PQgetvalue(res, row, 0), *argument = PQgetvalue(res, row, 1);
        const char *base = base_of(function, PQgetvalue(res, row, 4)), *rest, *value;
        for (i = 0; i < COUNT(odd_values); i++)
            if (strcmp(odd_values[i].type, PQgetvalue(res, row, 2)) == 0) break;
        if (i == COUNT(odd_values) || base == NULL) {
            WRONG("%s of jobq.%s: which values of its type are odd?\n", argument, function);
            continue;
        }
        rest = odd_values[i].values;
        while ((value = next_piece(&rest, &len)) != NULL) {
            char these[256], call[1024];
            snprintf(these, sizeof these, "%s => (%.*s)::%s", argument, (int)len, value,
                     odd_values[i].type);
            write_call(call, sizeof call, function, these, base);
            an_odd_value_is_taken_or_told(call);
        }
    }
    PQclear(res);
    calls_done();
    assert_int_equal(failures, 0);
}

/* A queue of dead letters that is misspelt has none, and a verb would say 0. */
static void a_misspelt_queue_has_no_dead_letters(void **unused_state)
{
    static const char *const in_sql[] = {"SELECT jobq.dead_letter_list('oo')",
                                         "SELECT jobq.dead_letter_count('oo')",
                                         "SELECT jobq.dead_letter_cleanup('oo')"};
    jobq_pg_scope scope = {.queue = "oo"};
    jobq_pg_error error;
    jobq_pg_rows rows;
    int n;

    (void)unused_state;
    RUN("SELECT jobq.outbox_register('o', 1)");
    for (n = 0; n < 5; n++) {
        jobq_error code = n % 2 == 0 ? jobq_pg_dead_letter_discard(pg, NULL, &scope, NULL, &error)
                                     : jobq_pg_dead_letter_replay(pg, NULL, 7, SECOND, &scope,
                                                                  &rows, &error);
        if (n % 2 == 1) jobq_pg_rows_clear(&rows);
        if (n < 2) assert_non_null(strstr(error.message, "no queue is called 'oo'"));
        assert_int_equal(code, n < 2 ? JOBQ_ERROR_INVALID : JOBQ_OK);
        scope.queue = n < 1 ? "oo" : "o";
    }
    for (n = 0; n < (int)COUNT(in_sql); n++) {
        char *text = for_schema(in_sql[n], schema);
        PGresult *res = PQexec(db, text);
        assert_int_equal(jobq_pg__result_error(&error, db, res), JOBQ_ERROR_INVALID);
        assert_non_null(strstr(error.message, "no queue is called 'oo'"));
        PQclear(res);
        free(text);
    }
}

/* An error names what was wrong with the call. */
static void an_unknown_parent_is_said_to_be_unknown(void **unused_state)
{
    jobq_pg_after after = {.job = 999999};
    jobq_pg_job job = plain_job(), two[2];
    jobq_pg_error error;

    (void)unused_state;
    job.after = &after;
    job.after_count = 1;
    assert_int_equal(jobq_pg_enqueue(pg, NULL, &job, NULL, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "not the id of a job (it is '999999')"));
    two[0] = job;
    two[1] = plain_job();
    after.job = 0;
    after.name = "b";
    assert_int_equal(jobq_pg_flow_begin(pg, NULL, &(jobq_pg_flow_desc){.name = "f"}, &two[0].flow,
                                        &error), JOBQ_OK);
    two[0].name = "a";
    two[1].name = "b";
    two[1].flow = two[0].flow;
    assert_int_equal(jobq_pg_enqueue_many(pg, NULL, two, 2, NULL, &error), JOBQ_ERROR_INVALID);
    assert_non_null(strstr(error.message, "must be jobs that were enqueued before this one"));
}

/* ---- SQL: times ------------------------------------------------------------------------------ */

/* Each interval, and a call with 999 microseconds. free: it is taken. */
static const struct {
    const char *function, *argument, *call;
    bool free;
} intervals[] = {
    {"enqueue", "delay", "enqueue('q', 'k', delay => '999 us')", true},
    {"enqueue", "timeout", "enqueue('q', 'k', timeout => '999 us')", false},
    {"enqueue", "expires", "enqueue('q', 'k', expires => '999 us')", false},
    {"enqueue", "at_latest", "enqueue('q', 'k', delay => '999 us', key => 'a', on_known =>"
                             " 'replace', at_latest => '999 us')", true},
    {"enqueue_or_get", "delay", "enqueue_or_get('q', 'k', delay => '999 us')", true},
    {"enqueue_or_get", "timeout", "enqueue_or_get('q', 'k', timeout => '999 us')", false},
    {"enqueue_or_get", "expires", "enqueue_or_get('q', 'k', expires => '999 us')", false},
    {"enqueue_or_get", "at_latest", "enqueue_or_get('q', 'k', key => 'a', on_known => 'replace',"
                                    " at_latest => '999 us')", true},
    {"digest", "every", "digest('{\"a\": 1}', '{a}', '999 us')", true},
    {"line_set", "hold", "line_set('q', 'l', hold => '999 us')", true},
    {"cancel", "older", "cancel('q', older => '999 us')", true},
    {"revive", "older", "revive('q', older => '999 us')", true},
    {"delete", "older", "delete('q', 'ready', older => '999 us')", true},
    {"reschedule", "older", "reschedule('q', older => '999 us')", true},
    {"prioritize", "older", "prioritize('q', 1, older => '999 us')", true},
    {"move", "older", "move('q', 'o', older => '999 us')", true},
    {"queue_set", "backoff_base", "queue_set('q', backoff_base => '999 us')", false},
    {"queue_set", "backoff_cap", "queue_set('q', backoff_cap => '999 us')", false},
    {"queue_set", "backoff_floor", "queue_set('q', backoff_floor => '999 us')", false},
    {"queue_set", "timeout", "queue_set('q', timeout => '999 us')", false},
    {"queue_set", "timeout", "queue_set('q', kind => 'k', timeout => '999 us')", false},
    {"queue_set", "failed_keep", "queue_set('q', failed_keep => '999 us')", false},
    {"queue_set", "key_keep", "queue_set('q', key_keep => '999 us')", false},
    {"retention_set", "keep", "retention_set('short', '999 us')", false},
    {"export_set", "wait", "export_set('short', '999 us')", false},
    {"schedule", "every", "schedule('s', 'q', 'k', every => '999 us')", false},
    {"schedule", "missed_within",
     "schedule('s', 'q', 'k', every => '1 h', missed_within => '999 us')", false},
    {"schedule", "spread", "schedule('s', 'q', 'k', every => '1 h', spread => '999 us')", false},
    {"schedule", "timeout", "schedule('s', 'q', 'k', every => '1 h', timeout => '999 us')", false},
    {"schedule", "expires", "schedule('s', 'q', 'k', every => '1 h', expires => '999 us')", false},
    {"schedule_preview", "every", "schedule_preview(every => '999 us')", false},
    {"work_join", "lease", "work_join('{\"q\": [\"k\"]}', lease => '999 us')", false},
    {"work_fail", "delay", NULL, true}, /* its job has to run */
    {"wait", "timeout", NULL, true},
    {"dead_letter_replay", "timeout_us", "dead_letter_replay(1, 999)", false},
    {"work_heartbeat", "mono_us", NULL, true}, /* instants */
    {"work_rescue", "mono_us", NULL, true},
};

static void sql_refuses_times_that_are_mistakes(void **unused_state)
{
    PGresult *res;
    int row;
    size_t i;

    (void)unused_state;
    failures = 0;
    RUN("SELECT jobq.queue_set('q', kinds => '{k}'), jobq.queue_set('o')");
    res = sql(db, "SELECT DISTINCT p.proname, a.name " ARGUMENTS
                  " AND (a.type = 'interval'::regtype OR a.name LIKE '%%\\_us')");
    assert_in_range(PQntuples(res), 30, 100);
    for (row = 0; row < PQntuples(res); row++) {
        for (i = 0; i < COUNT(intervals); i++) {
            if (strcmp(intervals[i].function, PQgetvalue(res, row, 0)) == 0 &&
                strcmp(intervals[i].argument, PQgetvalue(res, row, 1)) == 0) break;
        }
        if (i == COUNT(intervals))
            WRONG("%s of jobq.%s: may it be under a millisecond?\n", PQgetvalue(res, row, 1),
                  PQgetvalue(res, row, 0));
    }
    PQclear(res);
    for (i = 0; i < COUNT(intervals); i++) {
        char call[256];
        if (intervals[i].call == NULL) continue;
        snprintf(call, sizeof call, "SELECT * FROM jobq.%s", intervals[i].call);
        if (!sql_answers(call, intervals[i].free ? NULL : intervals[i].argument)) failures++;
    }
    assert_int_equal(failures, 0);
}

/* ---- C: times -------------------------------------------------------------------------------- */

/* What takes a time. ANSWER: structs that the library fills, and calls that only wait: any time is
 * right. INSTANT: no duration. */
typedef enum taker {
    ANSWER, INSTANT, HANDLE, JOB, FILTER, QUEUE, SCHEDULE, REPLAY, WORKER, LOOP,
    TUNING, BACKOFF, TABLE
} taker;

#define OF(of, struct_name, field, free) \
    {#struct_name "." #field, of, offsetof(struct_name, field), free}
#define AT(of, name) {name, of, 0, true}

static const struct {
    const char *name;
    taker of;
    size_t offset;
    bool free; /* 999 microseconds are taken */
} times[] = {
    OF(HANDLE, jobq_pg_desc, acquire_us, true), /* 1: do not wait */
    OF(HANDLE, jobq_pg_desc, call_us, false),
    OF(HANDLE, jobq_pg_desc, patience_us, true),
    AT(INSTANT, "jobq_pg_job.run_at_us"),
    OF(JOB, jobq_pg_job, delay_us, true),
    OF(JOB, jobq_pg_job, timeout_us, false),
    OF(JOB, jobq_pg_job, expires_us, false),
    AT(INSTANT, "jobq_pg_job.expires_at_us"),
    OF(JOB, jobq_pg_job, at_latest_us, true),
    OF(FILTER, jobq_pg_filter, older_us, false),
    OF(QUEUE, jobq_pg_queue_desc, timeout_us, false),
    OF(QUEUE, jobq_pg_queue_desc, failed_keep_us, false),
    OF(QUEUE, jobq_pg_queue_desc, key_keep_us, false),
    OF(SCHEDULE, jobq_pg_schedule, every_us, false),
    OF(SCHEDULE, jobq_pg_schedule, missed_within_us, false),
    OF(SCHEDULE, jobq_pg_schedule, spread_us, false),
    AT(INSTANT, "jobq_pg_schedule.starts_at_us"),
    AT(INSTANT, "jobq_pg_schedule.ends_at_us"),
    {"jobq_pg_dead_letter_replay.timeout_us", REPLAY, 0, false},
    AT(INSTANT, "jobq_pg_changes.run_at_us"),
    AT(INSTANT, "jobq_pg_hold.until_us"),
    AT(ANSWER, "jobq_pg_wait.timeout_us"),
    AT(ANSWER, "jobq_pg_question.timeout_us"),
    AT(ANSWER, "jobq_pg_worker_ready.wait_us"),
    AT(ANSWER, "jobq_pg_worker_step.budget_us"),
    AT(ANSWER, "jobq_pg_worker_fds.wait_us"),
    OF(WORKER, jobq_pg_worker_desc, stats_us, false),
    OF(TABLE, jobq_pg_worktable_desc, stale_us, false),
    OF(LOOP, jobq_loop_config, lease_us, false),
    OF(LOOP, jobq_loop_config, heartbeat_us, false),
    OF(LOOP, jobq_loop_config, rest_us, false),
    OF(LOOP, jobq_loop_config, poll_us, false),
    OF(LOOP, jobq_loop_config, flush_us, true),
    OF(LOOP, jobq_loop_config, linger_us, true),
    OF(LOOP, jobq_loop_config, sweep_us, false),
    OF(LOOP, jobq_loop_config, grace_us, false),
    OF(LOOP, jobq_loop_config, answer_us, false),
    OF(LOOP, jobq_loop_config, prune_us, false),
    AT(ANSWER, "jobq_tuning.min_us"), /* a pace */
    AT(ANSWER, "jobq_tuning.active_us"),
    AT(ANSWER, "jobq_tuning.ramp_us"),
    AT(ANSWER, "jobq_tuning.idle_us"),
    OF(TUNING, jobq_tuning, lease_us, false),
    OF(TUNING, jobq_tuning, headroom_us, false),
    OF(TUNING, jobq_tuning, budget_us, false),
    OF(BACKOFF, jobq_backoff, base_us, false),
    OF(BACKOFF, jobq_backoff, cap_us, false),
    OF(BACKOFF, jobq_backoff, floor_us, false),
};

static const char answers[] =
    "jobq_pg_event jobq_pg_partition_row jobq_pg_dead_letter_row jobq_pg_queue_row jobq_pg_report"
    " jobq_pg_stats jobq_pg_health jobq_pg_interval jobq_pg_job_row jobq_pg_failure_row"
    " jobq_pg_worker_row";

static void time_is_judged(const char *owner, const char *name)
{
    size_t len = strlen(name), i;
    char whole[140];

    if (len < 4 || strcmp(name + len - 3, "_us") != 0 || listed(answers, owner)) return;
    if (strncmp(owner, "jobq_pg_", 8) != 0 && !listed("jobq_backoff jobq_tuning jobq_loop_config",
                                                      owner)) return;
    snprintf(whole, sizeof whole, "%s.%s", owner, name);
    for (i = 0; i < COUNT(times) && strcmp(times[i].name, whole) != 0; i++) {}
    if (i == COUNT(times)) WRONG("%s: may it be under a millisecond?\n", whole);
}

static void set_time(void *at, size_t offset, int64_t us)
{
    memcpy((char *)at + offset, &us, sizeof us);
}

static jobq_error start_and_stop(const jobq_pg_worker_desc *d, jobq_pg_error *error)
{
    jobq_pg_worker *w;
    jobq_error code = jobq_pg_worker_open(pg, d, &w, error);

    if (code != JOBQ_OK) return code;
    snprintf(answered, sizeof answered, "listens %d", w->listens);
    jobq_pg_worker_stop(w);
    jobq_pg_worker_wait(w, NULL);
    jobq_pg_worker_free(w);
    return JOBQ_OK;
}

/* A backoff is taken by queues, receivers and work tables; which: 0 to 2. */
static jobq_error with_backoff(const jobq_backoff *b, int which, jobq_pg_error *error);

static jobq_error with_tuning(const jobq_tuning *tuning, jobq_pg_error *error)
{
    jobq_pg_receiver r = {.queue = "o", .each = fine_message, .tuning = *tuning};
    jobq_pg_worker_desc d = {.receivers = &r, .receiver_count = 1};

    return start_and_stop(&d, error);
}

static jobq_pg_table *errands;

static void errands_open(void)
{
    static char name[80];
    static jobq_pg_table_desc desc = {.row_size = sizeof(errand), .columns = errand_columns,
                                      .entity = "errand"};
    jobq_pg_error error;

    if (errands != NULL) return;
    RUN("CREATE TABLE jobq.errand (id bigint PRIMARY KEY, created_at timestamptz NOT NULL,"
        " since timestamptz NOT NULL DEFAULT now(), status text NOT NULL, error_message text,"
        " note text, retry_count integer NOT NULL,"
        " retry_after timestamptz, heartbeat timestamptz)");
    snprintf(name, sizeof name, "%s.errand", schema);
    desc.name = name;
    if (jobq_pg_table_open(&errands, pg, NULL, &desc, &error)) fail_msg("%s", error.message);
}

static jobq_error with_table(const jobq_pg_worktable_desc *desc, jobq_pg_error *error)
{
    jobq_pg_worktable_desc d = *desc;
    jobq_pg_worktable *work;
    jobq_error code;

    errands_open();
    d.stages = two_stages;
    d.stage_count = 2;
    code = jobq_pg_worktable_open(&work, errands, NULL, &d, error);
    if (code == JOBQ_OK) jobq_pg_worktable_close(work);
    return code;
}

static jobq_error with_backoff(const jobq_backoff *b, int which, jobq_pg_error *error)
{
    jobq_pg_worktable_desc work = {.backoff = *b};
    jobq_pg_queue_desc queue = {.backoff = *b};
    jobq_tuning tuning = {.retry = *b};

    if (b->cap_us == 0) tuning.retry.cap_us = 60 * SECOND;
    return which == 0 ? jobq_pg_queue_set(pg, NULL, "q", &queue, error)
           : which == 1 ? with_tuning(&tuning, error) : with_table(&work, error);
}

static jobq_error with_time(taker of, size_t offset, int64_t us, int which, jobq_pg_error *error)
{
    static const jobq_pg_handler handler = {.queue = "q", .kind = "k", .run = {fine}};
    jobq_pg_desc handle_desc = {.conninfo = server(), .schema = schema, .log = quiet_log};
    jobq_pg_job job = plain_job();
    jobq_pg_filter filter = {.queue = "q"};
    jobq_pg_queue_desc queue = {.max_attempts = 5};
    jobq_pg_schedule schedule = {.name = "s", .job = {.queue = "q", .kind = "k"}};
    jobq_pg_worker_desc worker = {.handlers = &handler, .handler_count = 1};
    jobq_pg_worktable_desc work = {.stages = NULL};
    jobq_backoff backoff = {.base_us = SECOND};
    jobq_tuning tuning = {.batch = 1};
    jobq_error code;
    jobq_pg_rows rows;
    jobq_pg *made;

    switch (of) {
    case HANDLE:
        set_time(&handle_desc, offset, us);
        code = jobq_pg_open(&made, &handle_desc, error);
        jobq_pg_close(made);
        return code;
    case JOB:
        if (offset == offsetof(jobq_pg_job, at_latest_us)) {
            job.key = "a";
            job.on_known = JOBQ_KNOWN_REPLACE;
        }
        set_time(&job, offset, us);
        return jobq_pg_enqueue(pg, NULL, &job, NULL, error);
    case FILTER:
        set_time(&filter, offset, us);
        return jobq_pg_cancel(pg, NULL, &filter, NULL, NULL, error);
    case QUEUE:
        set_time(&queue, offset, us);
        return jobq_pg_queue_set(pg, NULL, "q", &queue, error);
    case REPLAY:
        code = jobq_pg_dead_letter_replay(pg, NULL, 7, us, NULL, &rows, error);
        jobq_pg_rows_clear(&rows);
        return code;
    case SCHEDULE:
        if (offset != offsetof(jobq_pg_schedule, every_us)) schedule.every_us = 3600 * SECOND;
        set_time(&schedule, offset, us);
        return jobq_pg_schedules_set(pg, NULL, "me", 1, &schedule, 1, error);
    case WORKER:
        set_time(&worker, offset, us);
        return start_and_stop(&worker, error);
    case LOOP:
        set_time(&worker.loop, offset, us);
        return start_and_stop(&worker, error);
    case TUNING:
        set_time(&tuning, offset, us);
        if (us < 1000) tuning.headroom_us = tuning.headroom_us == 0 ? 1 : tuning.headroom_us;
        return with_tuning(&tuning, error);
    case BACKOFF:
        set_time(&backoff, offset, us);
        if (offset == offsetof(jobq_backoff, cap_us)) backoff.base_us = us;
        return with_backoff(&backoff, which, error);
    case TABLE:
        set_time(&work, offset, us);
        return with_table(&work, error);
    case ANSWER:
    case INSTANT: break;
    }
    return JOBQ_OK;
}

static void expect_time(size_t i, int64_t us, int which, bool refused)
{
    jobq_pg_error error;
    jobq_error code;

    memset(&error, 0, sizeof error);
    code = with_time(times[i].of, times[i].offset, us, which, &error);
    if (refused ? code != JOBQ_ERROR_INVALID || error.field[0] == '\0' : code != JOBQ_OK)
        WRONG("%s of %lld us (%d): %s %s\n", times[i].name, (long long)us, which,
              jobq_enum_name(JOBQ_ENUM_ERROR, code), code == JOBQ_OK ? "" : error.message);
}

static void c_refuses_times_that_are_mistakes(void **unused_state)
{
    char *text = api_text("jobq_pg.h", API_WHOLE), *core = api_text("jobq.h", API_WHOLE);
    size_t i;
    int which;

    (void)unused_state;
    failures = 0;
    api_structs(text, time_is_judged);
    api_functions(text, time_is_judged);
    api_structs(core, time_is_judged);
    free(text);
    free(core);
    RUN("SELECT jobq.queue_set('q', kinds => '{k}'), jobq.outbox_register('o', 4)");
    for (i = 0; i < COUNT(times); i++) {
        if (times[i].of == ANSWER || times[i].of == INSTANT) continue;
        for (which = 0; which < (times[i].of == BACKOFF ? 3 : 1); which++) {
            expect_time(i, 999, which, !times[i].free);
            expect_time(i, times[i].of == FILTER ? 1000 : 2 * SECOND, which, false);
        }
    }
    assert_int_equal(failures, 0);
}

/* ---- C: what is not used --------------------------------------------------------------------- */

/* The ways of a job into the database, in the letters of `ways`. */
static const char ways[] = "EFBCSM";
/* E enqueue, F a flow's, B enqueue_many, C by COPY, S a schedule's job, M its message */

static int64_t a_flow, a_parent;

/* Sets a field of a job, and what it needs. */
static void job_field(jobq_pg_job *job, const char *field)
{
    bool keyed = listed("key on_known unique_for at_latest_us", field);

    if (keyed) job->key = "a";
    if (listed("payload_bytes", field)) job->payload_bytes = true;
    else if (listed("payload_exact", field)) job->payload_exact = true;
    else if (listed("payload", field)) job->payload = jobq_str_from("[1]");
    else if (listed("headers", field)) job->headers = jobq_str_from("{\"a\": 1}");
    else if (listed("trace", field))
        job->trace.parent =
            jobq_str_from("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    else if (listed("run_at_us", field)) job->run_at_us = JOBQ_DAYS(20000);
    else if (listed("delay_us", field)) job->delay_us = SECOND;
    else if (listed("priority", field)) job->priority = 1;
    else if (listed("stages", field)) job->stages = 2;
    else if (listed("max_attempts", field)) job->max_attempts = 7;
    else if (listed("timeout_us", field)) job->timeout_us = SECOND;
    else if (listed("expires_us", field)) job->expires_us = SECOND;
    else if (listed("expires_at_us", field)) job->expires_at_us = JOBQ_DAYS(40000);
    else if (listed("line", field)) job->line = "l";
    else if (listed("on_known", field)) job->on_known = JOBQ_KNOWN_REJECT;
    else if (listed("unique_for", field)) job->unique_for = JOBQ_UNIQUE_LIVE;
    else if (listed("at_latest_us", field)) {
        job->at_latest_us = SECOND;
        job->on_known = JOBQ_KNOWN_REPLACE;
    } else if (listed("flow", field)) job->flow = a_flow;
    else if (listed("name", field)) {
        job->flow = a_flow;
        job->name = "n";
    } else if (listed("after after_count", field)) {
        job->after = &an_after;
        job->after_count = 1;
    } else if (listed("quiet", field)) job->quiet = true;
    else if (!keyed) fail_msg("how is %s set?", field);
}

/* Each field, and the ways that use it; the others refuse it, and say why. */
static const struct {
    const char *name, *ways;
} job_fields[] = {
    {"payload", "EFBCSM"}, {"payload_bytes", "EFBCSM"}, {"payload_exact", "EFBCSM"},
    {"headers", "EFBCSM"}, {"trace", "EFBC"}, {"run_at_us", "EFBC"}, {"delay_us", "EFBC"},
    {"priority", "EFBCS"}, {"stages", "EFBC"}, {"max_attempts", "EFBCS"}, {"timeout_us", "EFBCS"},
    {"expires_us", "EFBCS"}, {"expires_at_us", "EFBC"},
    {"line", "EFBC"}, {"key", "EFB"}, {"on_known", "E"}, {"unique_for", "E"},
    {"at_latest_us", "E"}, {"flow", "EFB"}, {"name", "EFB"}, {"after", "EFB"},
    {"after_count", "EFB"}, {"quiet", "EFBC"},
};

static jobq_error job_goes(char way, const char *field, jobq_pg_error *error)
{
    jobq_pg_schedule s = {.name = "s", .every_us = 3600 * SECOND};
    jobq_pg_job job = plain_job(), two[2];
    jobq_error code = JOBQ_OK;

    job.payload = jobq_str_from("{\"n\": 1}");
    if (way == 'F') job.flow = a_flow;
    job_field(&job, field);
    two[0] = two[1] = job;
    if (job.name != NULL) two[1].name = "m";
    if (job.key != NULL) two[1].key = "b";
    s.job = job;
    if (way == 'M') s.job.kind = NULL;
    RUN("BEGIN");
    switch (way) {
    case 'E':
    case 'F': code = jobq_pg_enqueue(pg, db, &job, NULL, error); break;
    case 'B': code = jobq_pg_enqueue_many(pg, db, two, 2, NULL, error); break;
    case 'C': code = jobq_pg_enqueue_many(pg, db, two, 2, JOBQ_PG_BY_COPY, error); break;
    default: code = jobq_pg_schedules_set(pg, db, "me", 1, &s, 1, error);
    }
    RUN("ROLLBACK");
    return code;
}

static const char *struct_read;

static void job_field_is_judged(const char *owner, const char *name)
{
    size_t i;

    if (strcmp(owner, "jobq_pg_job") != 0 || listed("queue kind", name)) return;
    for (i = 0; i < COUNT(job_fields) && strcmp(job_fields[i].name, name) != 0; i++) {}
    struct_read = owner;
    if (i == COUNT(job_fields)) WRONG("jobq_pg_job.%s: which calls use it?\n", name);
}

static void every_way_uses_a_jobs_field_or_refuses_it(void **unused_state)
{
    char *text = api_text("jobq_pg.h", API_WHOLE);
    jobq_pg_error error;
    jobq_error code;
    const char *way;
    size_t i;

    (void)unused_state;
    failures = 0;
    api_structs(text, job_field_is_judged);
    free(text);
    assert_non_null(struct_read);
    RUN("SELECT jobq.outbox_register('q', 4)");
    a_flow = number("SELECT jobq.flow('f')");
    a_parent = number("SELECT jobq.enqueue('q', 'k')");
    RUN("UPDATE jobq.job SET id = 1");
    for (i = 0; i < COUNT(job_fields); i++) {
        for (way = ways; *way != '\0'; way++) {
            bool wanted = strchr(job_fields[i].ways, *way) != NULL;
            memset(&error, 0, sizeof error);
            code = job_goes(*way, job_fields[i].name, &error);
            if (wanted ? code != JOBQ_OK : code != JOBQ_ERROR_INVALID || error.field[0] == '\0')
                WRONG("%s by %c: %s %s\n", job_fields[i].name, *way,
                      jobq_enum_name(JOBQ_ENUM_ERROR, code), error.message);
        }
    }
    assert_int_equal(failures, 0);
}

/* Fields that are not used together, one way or another. */
static jobq_error odd_call(int n, jobq_pg_error *error)
{
    static const errand like = {.id = 1};
    jobq_pg_job job = plain_job(), two[2];
    jobq_pg_message m = {.queue = "q", .payload = {"1", 1}}, pair[2];
    jobq_pg_schedule s = {.name = "s", .every_us = 3600 * SECOND,
                          .job = {.queue = "q", .kind = "k"}};
    jobq_pg_queue_desc queue = {.backoff = {.cap_us = SECOND}};
    jobq_pg_desc desc = {.conninfo = server(), .schema = schema};
    jobq_pg_scope scope = {.queue = "q"};
    jobq_pg_handler handler = {.queue = "q", .kind = "k", .run = {fine}};
    jobq_pg_worker_desc worker = {.handlers = &handler, .handler_count = 1};
    jobq_pg_query query = {.like = &like};
    jobq_pg_stats stats;
    jobq_pg_rows rows;
    jobq_pg *made;
    int64_t count;

    two[0] = two[1] = job;
    pair[0] = pair[1] = m;
    switch (n) {
    case 0:
        two[1].quiet = true;
        return jobq_pg_enqueue_many(pg, db, two, 2, NULL, error);
    case 1:
        two[0].quiet = true;
        return jobq_pg_enqueue_many(pg, db, two, 2, JOBQ_PG_BY_COPY, error);
    case 2:
        pair[1].quiet = true;
        return jobq_pg_outbox_enqueue_many(pg, db, pair, 2, NULL, error);
    case 3:
        pair[0].quiet = true;
        return jobq_pg_outbox_enqueue_many(pg, db, pair, 2, JOBQ_PG_BY_COPY, error);
    case 4:
        job.run_at_us = JOBQ_DAYS(20000);
        job.delay_us = SECOND;
        return jobq_pg_enqueue(pg, db, &job, NULL, error);
    case 5:
        m.order_key = "a";
        m.partition = 1;
        return jobq_pg_outbox_enqueue(pg, db, &m, NULL, error);
    case 6:
        s.partition = 1;
        return jobq_pg_schedules_set(pg, db, "me", 1, &s, 1, error);
    case 7: return jobq_pg_queue_set(pg, db, "q", &queue, error);
    case 8: return with_backoff(&queue.backoff, 1, error);
    case 9: return with_backoff(&queue.backoff, 2, error);
    case 10:
        scope.partition = 1;
        return jobq_pg_dead_letter_discard(pg, db, &scope, NULL, error);
    case 11:
        scope.limit = -1;
        return jobq_pg_dead_letter_discard(pg, db, &scope, NULL, error);
    case 12:
        desc.listen_conninfo = server();
        return jobq_pg_open(&made, &desc, error);
    case 13:
        desc.no_pool = true;
        desc.pool_max = 5;
        return jobq_pg_open(&made, &desc, error);
    case 14:
        worker.stats = &stats;
        return start_and_stop(&worker, error);
    case 15: return jobq_pg_table_list(errands, db, &query, &rows, error);
    case 16: return jobq_pg_table_count(errands, db, &query, &count, error);
    case 17:
        query = (jobq_pg_query){.order = "+created_at"};
        return jobq_pg_table_list(errands, db, &query, &rows, error);
    case 18:
        query = (jobq_pg_query){.order = "created_at<"};
        return jobq_pg_table_list(errands, db, &query, &rows, error);
    case 19: return jobq_pg_table_get(errands, db, "-id", &like, &rows, error);
    case 20: return jobq_pg_table_create(errands, db, NULL, &like, "id>", NULL, error);
    case 21: return jobq_pg_hold(pg, db, "q", NULL, 0, "because", error);
    default:
        s.type = "t";
        return jobq_pg_schedules_set(pg, db, "me", 1, &s, 1, error);
    }
}

static void c_refuses_fields_that_go_unused(void **unused_state)
{
    static const char *const fields[] = {
        "quiet", "quiet", "quiet", "quiet", "delay_us", "partition", "partition", "backoff",
        "receivers.tuning.retry", "backoff", "partition", "limit", "listen_conninfo", "no_pool",
        "stats", "like", "like", "created_at", "created_at", "id", "id", "why", "type"};
    jobq_pg_error error;
    jobq_error code;
    int n;

    (void)unused_state;
    failures = 0;
    RUN("SELECT jobq.outbox_register('q', 4)");
    errands_open();
    for (n = 0; n < (int)COUNT(fields); n++) {
        memset(&error, 0, sizeof error);
        RUN("BEGIN");
        code = odd_call(n, &error);
        RUN("ROLLBACK");
        if (code != JOBQ_ERROR_INVALID || strcmp(error.field, fields[n]) != 0)
            WRONG("call %d: %s %s (%s)\n", n, jobq_enum_name(JOBQ_ENUM_ERROR, code), error.message,
                  error.field);
    }
    assert_int_equal(failures, 0);
}

/* ---- C: arguments that are no fields --------------------------------------------------------- */

/* Calls with a wrong value of an argument, and the name that it is refused by. */
static const char *const wrong_arguments[][2] = {
    {"jobq_pg_outbox_register.queue", "queue"},
    {"jobq_pg_outbox_register.partitions", "partitions"},
    {"jobq_pg_outbox_grow.queue", "queue"},
    {"jobq_pg_outbox_grow.partitions", "partitions"},
    {"jobq_pg_dead_letter_replay.token", "token"},
    {"jobq_pg_dead_letter_replay.timeout_us", "timeout_us"},
    {"jobq_pg_dead_letter_end.token", "token"},
    {"jobq_pg_dead_letter_end.result", "result"},
    {"jobq_pg_dead_letter_end.why", "why"},
    {"jobq_pg_flow_close.id", "flow"},
    {"jobq_pg_signal.name", "name"},
    {"jobq_pg_signal.payload", "payload"},
    {"jobq_pg_queue_set.queue", "queue"},
    {"jobq_pg_line_set.queue", "queue"},
    {"jobq_pg_line_set.line", "line"},
    {"jobq_pg_hold.queue", "queue"},
    {"jobq_pg_hold.line", "line"},
    {"jobq_pg_hold.until_us", "until_us"},
    {"jobq_pg_hold.why", "why"},
    {"jobq_pg_schedules_set.owner", "owner"},
    {"jobq_pg_subscriptions_set.owner", "owner"},
};

static jobq_error wrong_call(size_t n, jobq_pg_error *error)
{
    static const jobq_pg_queue_desc queue = {.max_attempts = 1};
    static const jobq_pg_line_desc line = {.weight = 3};
    int64_t id = 1, until = JOBQ_DAYS(40000);
    jobq_result good = JOBQ_RESULT_SUCCESS, bad = (jobq_result)99;
    jobq_str one = jobq_str_from("1");
    jobq_pg_rows rows; /* none, as every call fails */
    int32_t queue_id;

    switch (n) {
    case 0: return jobq_pg_outbox_register(pg, db, "a b", 4, &queue_id, error);
    case 1: return jobq_pg_outbox_register(pg, db, "o", 3, &queue_id, error);
    case 2: return jobq_pg_outbox_grow(pg, db, "nothing", 8, false, error);
    case 3: return jobq_pg_outbox_grow(pg, db, "o", 2, false, error);
    case 4: return jobq_pg_dead_letter_replay(pg, db, 0, SECOND, NULL, &rows, error);
    case 5: return jobq_pg_dead_letter_replay(pg, db, 7, -1, NULL, &rows, error);
    case 6: return jobq_pg_dead_letter_end(pg, db, 0, &id, 1, good, NULL, NULL, error);
    case 7: return jobq_pg_dead_letter_end(pg, db, 7, &id, 1, bad, NULL, NULL, error);
    case 8: return jobq_pg_dead_letter_end(pg, db, 7, &id, 1, good, "why", NULL, error);
    case 9: return jobq_pg_flow_close(pg, db, -1, error);
    case 10: return jobq_pg_signal(pg, db, "", one, NULL, error);
    case 11: return jobq_pg_signal(pg, db, "n", jobq_str_from("{"), NULL, error);
    case 12: return jobq_pg_queue_set(pg, db, "a b", &queue, error);
    case 13: return jobq_pg_line_set(pg, db, "a b", "l", &line, error);
    case 14: return jobq_pg_line_set(pg, db, "q", "", &line, error);
    case 15: return jobq_pg_hold(pg, db, "nothing", NULL, until, NULL, error);
    case 16: return jobq_pg_hold(pg, db, "q", "", until, NULL, error);
    case 17: return jobq_pg_hold(pg, db, "q", NULL, -1, NULL, error);
    case 18: return jobq_pg_hold(pg, db, "q", NULL, 0, "because", error);
    case 19: return jobq_pg_schedules_set(pg, db, "", 1, NULL, 0, error);
    default: return jobq_pg_subscriptions_set(pg, db, "", 1, NULL, 0, error);
    }
}

static void argument_has_a_wrong_value(const char *owner, const char *name)
{
    char whole[140];
    size_t i;

    if (!listed("queue kind line partitions token timeout_us until_us result why name payload"
                " owner", name)) return;
    if (listed("jobq_pg_wait jobq_pg_unseal jobq_pg_call_step_done", owner)) return;
    snprintf(whole, sizeof whole, "%s.%s", owner, name);
    for (i = 0; i < COUNT(wrong_arguments) && strcmp(wrong_arguments[i][0], whole) != 0; i++) {}
    if (i == COUNT(wrong_arguments)) WRONG("%s: which value is refused?\n", whole);
}

/* Of the calls that are not here, jobq_pg_wait takes any time, jobq_pg_unseal reads what is stored,
 * and jobq_pg_call_step_done needs a handler (test_pg_steps.c). */
static void c_refuses_wrong_arguments(void **unused_state)
{
    char *text = api_text("jobq_pg.h", API_FOR_PROGRAMS);
    jobq_pg_error error;
    jobq_error code;
    size_t i;

    (void)unused_state;
    failures = 0;
    api_functions(text, argument_has_a_wrong_value);
    free(text);
    RUN("SELECT jobq.queue_set('q'), jobq.outbox_register('o', 4)");
    for (i = 0; i < COUNT(wrong_arguments); i++) {
        memset(&error, 0, sizeof error);
        RUN("BEGIN");
        code = wrong_call(i, &error);
        RUN("ROLLBACK");
        if (code != JOBQ_ERROR_INVALID || strcmp(error.field, wrong_arguments[i][1]) != 0)
            WRONG("%s: %s %s (%s)\n", wrong_arguments[i][0],
                  jobq_enum_name(JOBQ_ENUM_ERROR, code), error.message, error.field);
    }
    assert_int_equal(failures, 0);
}

/* ---- C: each field alone, and wrong ---------------------------------------------------------- */

/* All rows, without what differs from one run to the next: ids begin anew, and instants of these
 * days are all the same. */
static char *seen_now(void)
{
    return text_of("SELECT pg_temp.seen()");
}

static void seen_make(void)
{
    RUN("CREATE OR REPLACE FUNCTION pg_temp.seen() RETURNS text LANGUAGE plpgsql AS $$"
        " DECLARE v_table regclass; v_part text; v_all text := ''; BEGIN"
        " FOR v_table IN SELECT c.oid FROM pg_class c WHERE c.relkind = 'r'"
        " AND c.relnamespace = 'jobq'::regnamespace ORDER BY c.relname LOOP"
        " EXECUTE format('SELECT string_agg(t::text, ''|'' ORDER BY t::text) FROM %%s t', v_table)"
        " INTO v_part; v_all := concat(v_all, v_table::text, ' ', v_part, chr(10)); END LOOP;"
        " RETURN regexp_replace(v_all, format('(%%s|%%s|%%s)[ T][0-9:.]+',"
        " current_date - 1, current_date, current_date + 1), 'now', 'g'); END $$");
    RUN("CREATE OR REPLACE FUNCTION pg_temp.ids_from(p_first integer) RETURNS void LANGUAGE sql"
        " AS $$ SELECT setval(c.oid, p_first, false) FROM pg_class c WHERE c.relkind = 'S'"
        " AND c.relnamespace = 'jobq'::regnamespace $$");
}

static jobq_error use_job(const void *value, jobq_pg_error *error)
{
    return jobq_pg_enqueue(pg, db, value, NULL, error);
}

static jobq_error use_after(const void *value, jobq_pg_error *error)
{
    jobq_pg_job job = {.queue = "q", .kind = "k", .flow = 1};

    if (value != NULL) {
        job.after = value;
        job.after_count = 1;
    }
    return jobq_pg_enqueue(pg, db, &job, NULL, error);
}

static jobq_error use_trace(const void *value, jobq_pg_error *error)
{
    jobq_pg_job job = {.queue = "q", .kind = "k"};

    if (value != NULL) job.trace = *(const jobq_trace *)value;
    return jobq_pg_enqueue(pg, db, &job, NULL, error);
}

static jobq_error use_message(const void *value, jobq_pg_error *error)
{
    return jobq_pg_outbox_enqueue(pg, db, value, NULL, error);
}

static jobq_error use_scope(const void *value, jobq_pg_error *error)
{
    return jobq_pg_dead_letter_discard(pg, db, value, NULL, error);
}

static jobq_error use_flow(const void *value, jobq_pg_error *error)
{
    int64_t id;

    return jobq_pg_flow_begin(pg, db, value, &id, error);
}

static jobq_error use_filter(const void *value, jobq_pg_error *error)
{
    return jobq_pg_cancel(pg, db, value, NULL, NULL, error);
}

static jobq_error use_changes(const void *value, jobq_pg_error *error)
{
    if (value == NULL) return JOBQ_OK;
    return jobq_pg_change(pg, db, ONE(1), value, NULL, error);
}

static jobq_error use_queue(const void *value, jobq_pg_error *error)
{
    return jobq_pg_queue_set(pg, db, "q", value, error);
}

static jobq_error use_backoff(const void *value, jobq_pg_error *error)
{
    jobq_pg_queue_desc desc = {.max_attempts = 0};

    if (value != NULL) desc.backoff = *(const jobq_backoff *)value;
    return jobq_pg_queue_set(pg, db, "q", &desc, error);
}

static jobq_error use_line(const void *value, jobq_pg_error *error)
{
    return jobq_pg_line_set(pg, db, "q", "l", value, error);
}

static jobq_error use_schedule(const void *value, jobq_pg_error *error)
{
    return jobq_pg_schedules_set(pg, db, "me", 1, value, 1, error);
}

static jobq_error use_subscription(const void *value, jobq_pg_error *error)
{
    return jobq_pg_subscriptions_set(pg, db, "me", 1, value, 1, error);
}

static jobq_error use_handle(const void *value, jobq_pg_error *error)
{
    jobq_pg *made;
    jobq_error code = jobq_pg_open(&made, value, error);

    jobq_pg_close(made);
    return code;
}

static jobq_error use_worker(const void *value, jobq_pg_error *error)
{
    return start_and_stop(value, error);
}

static jobq_error use_loop(const void *value, jobq_pg_error *error)
{
    jobq_pg_worker_desc d = {.loop = *(const jobq_loop_config *)value};

    return start_and_stop(&d, error);
}

static jobq_error use_handler(const void *value, jobq_pg_error *error)
{
    jobq_pg_worker_desc d = {.handlers = value, .handler_count = 1};

    return start_and_stop(&d, error);
}

static jobq_error use_receiver(const void *value, jobq_pg_error *error)
{
    jobq_pg_worker_desc d = {.receivers = value, .receiver_count = 1};

    return start_and_stop(&d, error);
}

static jobq_error use_tuning(const void *value, jobq_pg_error *error)
{
    return with_tuning(value, error);
}

static void done_asking(void *user, const jobq_pg_reply *reply)
{
    (void)user;
    (void)reply;
}

static jobq_error use_question(const void *value, jobq_pg_error *error)
{
    jobq_pg_worker_desc d = {.name = "asks"};
    jobq_pg_worker *w;
    jobq_error code = jobq_pg_worker_open(pg, &d, &w, error);

    if (code == JOBQ_OK) code = jobq_pg_worker_ask(w, value, done_asking, NULL, error);
    jobq_pg_worker_stop(w);
    jobq_pg_worker_wait(w, NULL);
    jobq_pg_worker_free(w);
    return code;
}

/* Opens a table whose name is in this test's schema. */
static jobq_error table_opens(const jobq_pg_table_desc *desc, jobq_pg_error *error)
{
    jobq_pg_table_desc d = *desc;
    jobq_pg_table *table;
    char name[80];
    jobq_error code;

    snprintf(name, sizeof name, "%s.%s", schema, desc->name);
    d.name = name;
    code = jobq_pg_table_open(&table, pg, NULL, &d, error);
    jobq_pg_table_close(table);
    return code;
}

static jobq_error use_table(const void *value, jobq_pg_error *error)
{
    return table_opens(value, error);
}

static jobq_error use_column(const void *value, jobq_pg_error *error)
{
    jobq_pg_column columns[3] = {{NULL, JOBQ_PG_NONE, 0, 0, 0, NULL}};
    jobq_pg_table_desc desc = {.name = "errand", .row_size = sizeof(errand), .columns = columns};

    columns[0] = errand_columns[0];
    if (value != NULL) columns[1] = *(const jobq_pg_column *)value;
    snprintf(answered, sizeof answered, "%d columns", 1 + (value != NULL));
    return table_opens(&desc, error);
}

static jobq_error use_query(const void *value, jobq_pg_error *error)
{
    jobq_pg_rows rows;
    jobq_error code = jobq_pg_table_list(errands, NULL, value, &rows, error);
    size_t i, len = 0;

    for (i = 0; i < rows.count && len < sizeof answered; i++)
        len += (size_t)snprintf(answered + len, sizeof answered - len, "%lld ",
                                (long long)((const errand *)rows.rows)[i].id);
    jobq_pg_rows_clear(&rows);
    return code;
}

/* Claims a row twice, for both of its stages, and resets the others. */
static jobq_error use_work(const void *value, jobq_pg_error *error)
{
    static const jobq_outcome outcomes[] = {JOBQ_OUTCOME_SUCCESS, JOBQ_OUTCOME_RETRY};
    jobq_pg_worktable *work;
    jobq_error code = jobq_pg_worktable_open(&work, errands, NULL, value, error);
    size_t i;

    if (code != JOBQ_OK) return code;
    for (i = 0; i < COUNT(outcomes) && code == JOBQ_OK; i++) {
        jobq_pg_verdict verdict = {.outcome = outcomes[i], .why = i == 1 ? "no" : NULL};
        jobq_pg_rows rows;
        code = jobq_pg_worktable_claim(work, db, 1, 0, 0, &rows, error);
        if (code == JOBQ_OK)
            code = jobq_pg_worktable_settle(work, db, rows.rows, &verdict, rows.count, error);
        jobq_pg_rows_clear(&rows);
    }
    if (code == JOBQ_OK) code = jobq_pg_worktable_reset(work, db, NULL, error);
    jobq_pg_worktable_close(work);
    return code;
}

static jobq_error use_verdict(const void *value, jobq_pg_error *error)
{
    static const jobq_pg_worktable_desc desc = {.stages = two_stages, .stage_count = 2};
    jobq_pg_verdict verdict = *(const jobq_pg_verdict *)value;
    jobq_pg_worktable *work;
    jobq_error code = jobq_pg_worktable_open(&work, errands, NULL, &desc, error);

    if (code != JOBQ_OK) return code;
    code = jobq_pg_worktable_settle(work, NULL, &an_errand, &verdict, 1, error);
    jobq_pg_worktable_close(work);
    return code;
}

/* A test of handlers says why in a text that begins with the field. */
static jobq_error test_said(jobq_test *t, bool taken, jobq_pg_error *error)
{
    const char *why = jobq_test_get(t, 0)->error, *name = why + strlen("invalid ");

    if (taken) return JOBQ_OK;
    snprintf(error->message, sizeof error->message, "%s", why);
    snprintf(error->field, sizeof error->field, "%.*s", (int)strcspn(name, ":"), name);
    return JOBQ_ERROR_INVALID;
}

static jobq_error with_test(const jobq_test_job *job, const jobq_test_message *message,
                            jobq_pg_error *error)
{
    static const jobq_job_handler handler = {.queue = "q", .kind = "k", .run = {fine}};
    static const jobq_test_receiver receiver = {.queue = "o", .each = fine_message};
    void *block = malloc(jobq_test_size());
    jobq_test *t;
    jobq_error code;

    assert_non_null(block);
    t = jobq_test_init(block, &handler, 1);
    jobq_test_receive(t, &receiver);
    jobq_test_enqueue(t, &(jobq_test_job){.queue = "q", .kind = "k"});
    code = test_said(t, job != NULL ? jobq_test_enqueue(t, job) > 0
                                    : jobq_test_send(t, message) != NULL, error);
    free(block);
    return code;
}

static jobq_error use_test_job(const void *value, jobq_pg_error *error)
{
    return with_test(value, NULL, error);
}

static jobq_error use_test_after(const void *value, jobq_pg_error *error)
{
    jobq_test_job job = {.queue = "q", .kind = "k", .after = value, .after_count = 1};

    return with_test(&job, NULL, error);
}

static jobq_error use_test_message(const void *value, jobq_pg_error *error)
{
    return with_test(NULL, value, error);
}

#define GIVEN(name, use, rows, ...) {name, use, rows, COUNT(rows), __VA_ARGS__}

static const struct {
    const char *name;
    jobq_error (*use)(const void *value, jobq_pg_error *error);
    const given *rows;
    size_t count;
    const void *base; /* what the call needs, without any field */
} structs[] = {
    GIVEN("jobq_pg_job", use_job, job_given, JOB(.line = NULL)),
    GIVEN("jobq_pg_after", use_after, after_given, NULL),
    GIVEN("jobq_trace", use_trace, trace_given, NULL),
    GIVEN("jobq_pg_flow_desc", use_flow, flow_given, RAW(jobq_pg_flow_desc, .open = false)),
    GIVEN("jobq_pg_message", use_message, message_given, MESSAGE(.type = NULL)),
    GIVEN("jobq_pg_scope", use_scope, scope_given, RAW(jobq_pg_scope, .limit = 0)),
    GIVEN("jobq_pg_filter", use_filter, filter_given, FILTER(.at_most = 0)),
    GIVEN("jobq_pg_changes", use_changes, changes_given, NULL),
    GIVEN("jobq_pg_queue_desc", use_queue, queue_given, NULL),
    GIVEN("jobq_backoff", use_backoff, backoff_given, NULL),
    GIVEN("jobq_pg_line_desc", use_line, line_given, LINE(.weight = 0)),
    GIVEN("jobq_pg_schedule", use_schedule, schedule_given, SCHEDULE(.type = NULL)),
    GIVEN("jobq_pg_subscription", use_subscription, subscription_given,
          READER("s", "o", "q", "k", NULL)),
    GIVEN("jobq_pg_desc", use_handle, handle_given, NULL),
    GIVEN("jobq_pg_worker_desc", use_worker, worker_given, WORKER(.name = NULL)),
    GIVEN("jobq_loop_config", use_loop, loop_given, NULL),
    GIVEN("jobq_job_handler", use_handler, handler_given, NULL),
    GIVEN("jobq_pg_receiver", use_receiver, receiver_given, NULL),
    GIVEN("jobq_pg_hooks", NULL, hooks_given, NULL),
    GIVEN("jobq_tuning", use_tuning, tuning_given, NULL),
    GIVEN("jobq_pg_question", use_question, question_given, NULL),
    GIVEN("jobq_pg_table_desc", use_table, table_given, NULL),
    GIVEN("jobq_pg_column", use_column, column_given, NULL),
    GIVEN("jobq_pg_query", use_query, query_given, NULL),
    GIVEN("jobq_pg_worktable_desc", use_work, work_given, WORK(.max_retries = 0)),
    GIVEN("jobq_pg_verdict", use_verdict, verdict_given, NULL),
    GIVEN("jobq_test_job", use_test_job, test_job_given, NULL),
    GIVEN("jobq_test_after", use_test_after, test_after_given, NULL),
    GIVEN("jobq_test_message", use_test_message, test_message_given, NULL),
    GIVEN("jobq_test_faults", NULL, faults_given, NULL),
};

static int rows_read;

static void field_has_a_row(const char *owner, const char *name)
{
    size_t i, row;

    for (i = 0; i < COUNT(no_rows); i++)
        if (listed(no_rows[i].names, owner)) return;
    for (i = 0; i < COUNT(structs) && strcmp(structs[i].name, owner) != 0; i++) {}
    if (i == COUNT(structs)) {
        WRONG("%s.%s: no row, and no reason why this struct has none\n", owner, name);
        return;
    }
    for (row = 0; row < structs[i].count; row++) {
        if (strcmp(structs[i].rows[row].field, name) != 0) continue;
        rows_read++;
        return;
    }
    WRONG("%s.%s: no row: what does it do alone, and which value is refused?\n", owner, name);
}

/* Whether a test has ".field" or "->field". */
static bool file_names(const char *file, const char *field)
{
    char path[80], *text = calloc(1, 1 << 20), *at;
    bool found = false;
    FILE *from;

    assert_non_null(text);
    snprintf(path, sizeof path, "tests/%s", file);
    from = fopen(path, "rb");
    if (from == NULL) fail_msg("there is no %s", path);
    text[fread(text, 1, (1 << 20) - 1, from)] = '\0';
    fclose(from);
    for (at = text; !found && (at = strstr(at + 1, field)) != NULL;)
        found = (at[-1] == '.' || at[-1] == '>') && !api_letter(at[strlen(field)]);
    free(text);
    return found;
}

/* Makes a call with a value, and undoes it. Returns what could be seen; NULL: it was refused. */
static char *seen_of(size_t i, const void *value, jobq_pg_error *error)
{
    char *seen = NULL;

    memset(error, 0, sizeof *error);
    memset(answered, 0, sizeof answered);
    RUN("BEGIN");
    RUN("SELECT pg_temp.ids_from(1000)");
    if (structs[i].use(value, error) == JOBQ_OK) {
        char *tables = seen_now();
        seen = malloc(strlen(tables) + sizeof answered + 1);
        assert_non_null(seen);
        sprintf(seen, "%s%s", tables, answered);
        free(tables);
    }
    RUN("ROLLBACK");
    return seen;
}

/* Whether it was refused, and by this name. */
static bool refused_by(const char *seen, const jobq_pg_error *error, const char *name)
{
    const char *dot = strrchr(error->field, '.');

    return seen == NULL && strcmp(dot == NULL ? error->field : dot + 1, name) == 0;
}

static void try_alone(size_t i, const given *g)
{
    jobq_pg_error error, none;
    char *seen = seen_of(i, g->alone, &error), *without = NULL;

    if (g->lone != NULL) {
        if (!refused_by(seen, &error, g->lone))
            WRONG("%s.%s alone: %s, not refused for its %s (%s)\n", structs[i].name, g->field,
                  seen != NULL ? "is taken" : error.message, g->lone, error.field);
    } else {
        without = seen_of(i, g->beside != NULL ? g->beside : structs[i].base, &none);
        if (seen == NULL || without == NULL)
            WRONG("%s.%s alone: %s%s\n", structs[i].name, g->field,
                  seen == NULL ? error.message : "without it: ",
                  seen == NULL ? "" : none.message);
        else if (strcmp(seen, without) == 0)
            WRONG("%s.%s alone: has no effect\n", structs[i].name, g->field);
    }
    free(seen);
    free(without);
}

static void try_field(size_t i, const given *g)
{
    jobq_pg_error error;
    char *seen;

    if ((g->alone == NULL) == (g->shown == NULL) || (g->wrong == NULL) == (g->why == NULL))
        WRONG("%s.%s: its row is not whole\n", structs[i].name, g->field);
    if (g->alone != NULL) try_alone(i, g);
    if (g->shown != NULL && !file_names(g->shown, g->field))
        WRONG("%s.%s: not in tests/%s\n", structs[i].name, g->field, g->shown);
    if (g->wrong == NULL) return;
    seen = seen_of(i, g->wrong, &error);
    if (!refused_by(seen, &error, g->refuses != NULL ? g->refuses : g->field))
        WRONG("%s.%s: the wrong value: %s (%s)\n", structs[i].name, g->field,
              seen != NULL ? "is taken" : error.message, error.field);
    free(seen);
}

/* Jobs 1 (in flow 1, named a, with a header, a priority and a delay), 2 of another kind and age, 3
 * of another queue; an empty flow; a line with a limit; dead letters of two queues. */
static void fields_world(void)
{
    RUN("SELECT pg_temp.ids_from(1)");
    RUN("SELECT jobq.queue_set('q', kinds => '{k, l}'), jobq.queue_set('p', kinds => '{k}'),"
        " jobq.outbox_register('o', 4), jobq.outbox_register('p', 4), jobq.flow('f'),"
        " jobq.flow('g', open => true)");
    RUN("SELECT jobq.enqueue('q', 'k', flow => 1, name => 'a', headers => '{\"a\": 1}',"
        " priority => 3, delay => '1 year'), jobq.enqueue('q', 'l'), jobq.enqueue('p', 'k'),"
        " jobq.line_set('q', 'l', running_max => 3)");
    RUN("UPDATE jobq.job SET enqueued_at = enqueued_at - interval '1 week' WHERE id = 2");
    RUN("INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at,"
        " attempts, type) SELECT p.queue_id, p.id, 1, now(), now(), 1,"
        " CASE WHEN p.id %% 2 = 0 THEN 't' END FROM jobq.partition p");
    errands_open();
    RUN("INSERT INTO jobq.errand (id, created_at, since, status, retry_count, heartbeat) VALUES"
        " (1, '2020-01-01', '2020-01-02', 'PENDING', 2, NULL),"
        " (2, '2020-01-02', '2020-01-01', 'PENDING', 2, NULL),"
        " (3, '2020-01-03', '2020-01-03', 'RUN_IN_PROGRESS', 2, now() - interval '1 hour')");
}

static void every_field_has_an_effect_or_is_refused(void **unused_state)
{
    char *text = api_text("jobq_pg.h", API_FOR_PROGRAMS);
    char *core = api_text("jobq.h", API_FOR_PROGRAMS);
    size_t i, row, rows = 0;

    (void)unused_state;
    failures = 0;
    rows_read = 0;
    api_structs(text, field_has_a_row);
    api_structs(core, field_has_a_row);
    free(text);
    free(core);
    seen_make();
    fields_world();
    for (i = 0; i < COUNT(structs); i++) {
        for (row = 0; row < structs[i].count; row++) try_field(i, &structs[i].rows[row]);
        rows += structs[i].count;
    }
    if ((size_t)rows_read != rows) WRONG("%d fields, %d rows\n", rows_read, (int)rows);
    assert_int_equal(failures, 0);
}

/* A verb that takes an id or a queue takes a number for an id, even where the database casts
 * numbers to text implicitly. */
static void a_number_is_an_id(void **unused_state)
{
    PGresult *calls, *res;
    int i;

    (void)unused_state;
    failures = 0;
    RUN("BEGIN");
    RUN("DO $$ BEGIN CREATE CAST (int4 AS text) WITH INOUT AS IMPLICIT; "
        "EXCEPTION WHEN duplicate_object THEN NULL; END $$"); /* in tests/harness/hostile.sh */
    calls = sql(db, "SELECT concat('PREPARE ', p.proname, ' AS SELECT ',"
                    " p.pronamespace::regnamespace, '.', p.proname, '(1',"
                    " repeat(', NULL', p.pronargs - p.pronargdefaults - 1), ')') FROM pg_proc p"
                    " WHERE p.pronamespace = 'jobq'::regnamespace"
                    " AND p.proargtypes[0] = 'int8'::regtype AND EXISTS (SELECT FROM pg_proc o"
                    " WHERE o.pronamespace = p.pronamespace AND o.proname = p.proname"
                    " AND o.oid <> p.oid)");
    assert_in_range(PQntuples(calls), 6, 100);
    for (i = 0; i < PQntuples(calls); i++) {
        RUN("SAVEPOINT before");
        res = PQexec(db, PQgetvalue(calls, i, 0));
        if (PQresultStatus(res) != PGRES_COMMAND_OK)
            WRONG("%s: %s", PQgetvalue(calls, i, 0), PQresultErrorMessage(res));
        PQclear(res);
        RUN("ROLLBACK TO before");
    }
    PQclear(calls);
    RUN("ROLLBACK");
    assert_int_equal(failures, 0);
}

/* Each function that has an argument at_most refuses 0 and less by its name, before anything else:
 * the other arguments are any. */
static void no_call_takes_at_most_0(void **unused_state)
{
    PGresult *calls;
    int i;

    (void)unused_state;
    failures = 0;
    calls = sql(db, "SELECT format('SELECT * FROM jobq.%%I(%%sat_most => %%s)', p.proname,"
                    " (SELECT string_agg(format('%%I => %%L::%%s, ', p.proargnames[n],"
                    " CASE WHEN p.proargtypes[n - 1] = 'jsonb'::regtype THEN '{\"a\": 1}'"
                    " ELSE '1' END, p.proargtypes[n - 1]::regtype), '')"
                    " FROM generate_series(1, p.pronargs - p.pronargdefaults) n), at)"
                    " FROM pg_proc p, unnest('{0,-1}'::int[]) AS at"
                    " WHERE p.pronamespace = 'jobq'::regnamespace"
                    " AND 'at_most' = ANY (p.proargnames)");
    assert_in_range(PQntuples(calls), 2 * 16, 100);
    for (i = 0; i < PQntuples(calls); i++)
        failures += !sql_answers(PQgetvalue(calls, i, 0), "at_most");
    PQclear(calls);
    assert_int_equal(failures, 0);
}

static int arguments_down(void **state)
{
    jobq_pg_table_close(errands);
    return pg_down(state);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(sql_uses_every_argument_or_refuses_it, pg_empty),
        cmocka_unit_test_setup(each_argument_has_a_value_that_is_refused, pg_empty),
        cmocka_unit_test_setup(no_value_is_refused_by_a_constraint, pg_empty),
        cmocka_unit_test_setup(a_misspelt_queue_has_no_dead_letters, pg_empty),
        cmocka_unit_test_setup(an_unknown_parent_is_said_to_be_unknown, pg_empty),
        cmocka_unit_test_setup(sql_refuses_times_that_are_mistakes, pg_empty),
        cmocka_unit_test_setup(c_refuses_times_that_are_mistakes, pg_empty),
        cmocka_unit_test_setup(every_way_uses_a_jobs_field_or_refuses_it, pg_empty),
        cmocka_unit_test_setup(c_refuses_fields_that_go_unused, pg_empty),
        cmocka_unit_test_setup(c_refuses_wrong_arguments, pg_empty),
        cmocka_unit_test_setup(every_field_has_an_effect_or_is_refused, pg_empty),
        cmocka_unit_test_setup(a_number_is_an_id, pg_empty),
        cmocka_unit_test_setup(no_call_takes_at_most_0, pg_empty),
    };

    return cmocka_run_group_tests_name("arguments", tests, pg_up, arguments_down);
}
