/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * store_pg.h -- the operations of store.h on Postgres.
 *
 * The clock. jobq's functions call statement_timestamp() and clock_timestamp() by these names,
 * through a fixed search_path. Here a schema has functions of the same names, which return the
 * setting jobq_test.now_us. It is put before pg_catalog in the search_path of each of jobq's
 * functions and of this connection; two column defaults, and JOBQ_PG__NOW in the library's
 * statements, are redirected, too. Nothing else is changed, so the code under test is the code that
 * ships, and instants of both stores can be compared to the microsecond.
 */
#ifndef STORE_PG_INCLUDED
#define STORE_PG_INCLUDED (1)

#define JOBQ_PG__NOW "statement_timestamp()"
#include "pg.h"
#include "store.h"

/* The clock is where the functions run. In a distributed schema its instant is in a table, because
 * settings of a session do not reach the node. */
static inline int store_pg_up(void **state)
{
    int failed = pg_up(state);

    if (failed != 0) return failed;
    PQclear(sql(functions_at(), "CREATE SCHEMA %s_clock", schema));
    PQclear(sql(functions_at(), "CREATE TABLE %s_clock.instant AS SELECT 0::bigint AS us", schema));
    PQclear(sql(functions_at(),
        "CREATE FUNCTION %s_clock.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE "
        "SET search_path = %s_clock, pg_catalog AS 'SELECT timestamptz ''epoch'' + %s"
        " * interval ''1 microsecond'''", schema, schema, shards_at != NULL
        ? "(SELECT us FROM instant)" : "current_setting(''jobq_test.now_us'')::bigint"));
    PQclear(sql(functions_at(),
        "CREATE FUNCTION %s_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS "
        "'SELECT %s_clock.statement_timestamp()'", schema, schema));
    PQclear(sql(functions_at(),
        "DO $$DECLARE f regprocedure; BEGIN FOR f IN SELECT p.oid FROM pg_proc p JOIN pg_namespace "
        "n ON n.oid = p.pronamespace WHERE p.prokind = 'f' AND n.nspname IN ('%s', '%s_own') LOOP "
        "EXECUTE format('ALTER FUNCTION %%s SET search_path = %s_clock, pg_catalog, pg_temp', f); "
        "END LOOP; END$$", schema, schema, schema));
    RUN("ALTER TABLE jobq.job ALTER run_at SET DEFAULT %s_clock.statement_timestamp(), "
        "ALTER enqueued_at SET DEFAULT %s_clock.statement_timestamp()",
        schema, schema);
    PQclear(sql(functions_at(), "SET search_path = %s_clock, pg_catalog, pg_temp", schema));
    RUN("SET synchronous_commit = off");
    return 0;
}

static inline int store_pg_down(void **state)
{
    PQclear(sql(functions_at(), "DROP SCHEMA %s_clock CASCADE", schema));
    return pg_down(state);
}

static void pg_at(int64_t now_us)
{
    static int64_t set_us;

    if (now_us == set_us) return;
    set_us = now_us;
    if (shards_at == NULL) RUN("SET jobq_test.now_us = %lld", (long long)now_us);
    else PQclear(sql(shards_at, "UPDATE instant SET us = %lld", (long long)now_us));
}

/* The lines, in the order of their numbers; 0: none. */
static char pg_line_names[LINES + 1][2];
static int64_t pg_line_numbers[LINES + 1];

static void pg_lines_sort(void)
{
    PGresult *res = sql(db, "SELECT n, jobq._line_no(n) FROM unnest('{a,b,c,d}'::text[]) n"
                            " ORDER BY 2");
    int i;

    for (i = 0; i < LINES; i++) {
        pg_line_names[i + 1][0] = PQgetvalue(res, i, 0)[0];
        pg_line_numbers[i + 1] = atoll(PQgetvalue(res, i, 1));
    }
    pg_line_numbers[0] = INT64_MIN;
    PQclear(res);
}

static int64_t pg_line_of(int64_t number)
{
    int64_t i = 0;

    while (i < LINES && pg_line_numbers[i] != number) i++;
    assert_true(pg_line_numbers[i] == number);
    return i;
}

static void pg_line(int64_t line, const jobq_line *rules, int64_t until_us, int64_t now_us)
{
    static const jobq_line none = {0, 1, false, false, {0, 0, 0}};
    const jobq_line *l = rules == NULL ? &none : rules;
    char rate[40];
    int i;

    pg_at(now_us);
    for (i = 1; i <= LINES; i++) { /* else a claim may make only some of the rows */
        RUN("SELECT jobq._line_row(1, '%s')", pg_line_names[i]);
    }
    snprintf(rate, sizeof rate, l->rate.us > 0 ? "%d/10 s" : "0", (int)l->rate.count);
    if (line == 0) {
        RUN("SELECT jobq.queue_set('q1', line_running_max => %d, line_strict => %s, "
            "line_rate => '%s', line_rate_burst => %d)",
            (int)l->running_max, l->strict ? "true" : "false", rate, (int)l->rate.burst);
        return;
    }
    RUN("SELECT jobq.line_set('q1', '%s', reset => true)", pg_line_names[line]);
    if (rules != NULL) {
        RUN("SELECT jobq.line_set('q1', '%s', running_max => %d, weight => %d, strict => %s, "
            "rate => '%s', rate_burst => %d, paused => %s)",
            pg_line_names[line], (int)l->running_max, (int)l->weight, l->strict ? "true" : "false",
            rate, (int)jobq__max(l->rate.burst, 1), l->paused ? "true" : "false");
    }
    if (until_us > 0) {
        RUN("SELECT jobq.hold('q1', '%s', 'epoch'::timestamptz + %lld * interval '1 microsecond')",
            pg_line_names[line], (long long)until_us);
    }
}

static void pg_reset(void)
{
    pg_at(EPOCH);
    if (pg_line_numbers[0] == 0) pg_lines_sort();
    RUN("DELETE FROM jobq.job; DELETE FROM jobq.failed; DELETE FROM jobq.history; DELETE FROM "
        "jobq.claim; DELETE FROM jobq.worker; DELETE FROM jobq.sleeper; DELETE FROM jobq.kind; "
        "DELETE FROM jobq.queue; DELETE FROM jobq.idempotency; DELETE FROM jobq.line; "
        "DELETE FROM jobq.partition; DELETE FROM jobq.message; DELETE FROM jobq.dead_letter; "
        "DELETE FROM jobq.edge; DELETE FROM jobq.nudge; "
        "ALTER SEQUENCE jobq.job_id RESTART; "
        "INSERT INTO jobq.queue (id, name) VALUES (1, 'q1'), (2, 'q2'); "
        "INSERT INTO jobq.kind (id, queue_id, queue, payload_max, name) VALUES "
        "(1, 1, 'q1', 1048576, 'k1'), (2, 1, 'q1', 1048576, 'k2'), (3, 2, 'q2', 1048576, 'k3'); "
        "SELECT jobq.outbox_register('q1', %d)",
        (int)PARTS);
}

static void pg_policy(int32_t queue, const jobq_policy *policy, bool paused)
{
    RUN("UPDATE jobq.queue SET max_attempts = %d, max_crashes = %d, snoozes_max = nullif(%d, 0), "
        "attempts_span_stages = %s, paused_at = %s WHERE id = %d",
        (int)policy->max_attempts, (int)policy->max_crashes, (int)policy->snoozes_max,
        policy->attempts_span_stages ? "true" : "false", paused ? "now()" : "NULL", (int)queue);
}

/* Only what can differ here. */
static void pg_kind_policy(int32_t kind, const jobq_policy *whole)
{
    RUN("UPDATE jobq.kind SET max_attempts = nullif(%d, 0), snoozes_max = nullif(%d, 0) "
        "WHERE id = %d", whole == NULL ? 0 : (int)whole->max_attempts,
        whole == NULL ? 0 : (int)whole->snoozes_max, (int)kind);
}

static void pg_pause(int32_t kind, bool paused)
{
    RUN("UPDATE jobq.kind SET paused_at = %s WHERE id = %d", paused ? "now()" : "NULL", (int)kind);
}

static int64_t pg_enqueue(const jobq_job *like, jobq_str payload, int64_t now_us)
{
    static const char *const kinds[] = {"", "k1", "k2", "k3"};
    jobq_pg_error error;
    jobq_pg_job job;
    int64_t id = 0;

    pg_at(now_us);
    memset(&job, 0, sizeof job);
    job.queue = like->queue == 1 ? "q1" : "q2";
    job.kind = kinds[like->kind];
    job.payload = payload;
    job.run_at_us = like->run_at_us;
    job.priority = like->priority;
    job.stages = like->stages;
    if (like->line != 0) job.line = pg_line_names[like->line];
    job.max_attempts = like->max_attempts;
    job.expires_us = like->expires_us;
    if (jobq_pg_enqueue(pg, db, &job, &id, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return id;
}

static jobq_error pg_enroll(int64_t worker, uint64_t queues, uint64_t kinds, int64_t now_us)
{
    static const char *const names[] = {"ARRAY[]::text[]", "'{q1}'", "'{q2}'", "'{q1,q2}'"};
    char pairs[40] = "", texts[40] = "", generic[400], *text;
    PGresult *res;
    jobq_error code = JOBQ_OK;
    int k;

    pg_at(now_us);
    for (k = 1; k <= 3; k++) {
        bool first = pairs[0] == '\0';
        if ((kinds >> k & 1) == 0) continue;
        snprintf(pairs + strlen(pairs), 8, "%s%d", first ? "" : ",",
                 k == 3 && (queues & 2) != 0 ? 2 : 1);
        snprintf(texts + strlen(texts), 8, "%sk%d", first ? "" : ",", k);
    }
    snprintf(generic, sizeof generic,
             "SELECT jobq._register(%lld, 'w', %lld, %s, '{%s}'::int[], '{%s}'::text[], 5)",
             (long long)worker, (long long)LEASE_US, names[queues >> 1 & 3], pairs, texts);
    text = for_schema(generic, schema);
    res = PQexec(db, text);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) {
        code = jobq_pg_classify(PQresultErrorField(res, PG_DIAG_SQLSTATE));
    }
    PQclear(res);
    free(text);
    return code;
}

static int32_t pg_kinds(uint64_t bits, int32_t *kinds)
{
    int32_t count = 0, k;

    for (k = 1; k <= 3; k++) {
        if ((bits >> k & 1) != 0) kinds[count++] = k;
    }
    return count;
}

static void pg_taken(taking *t, verb_batch *batch)
{
    size_t i;

    t->count = (int32_t)batch->count;
    for (i = 0; i < batch->count; i++) t->jobs[i] = batch->jobs[i];
    t->due_us = batch->due_us;
    t->suspect_ready = batch->suspects;
    t->alone_ready = batch->alone;
    t->walk_count = batch->of->answer.claimed.walk_count;
    for (i = 0; i < (size_t)t->walk_count; i++) {
        t->walks[i] = batch->of->answer.claimed.walks[i];
        t->walks[i].after = pg_line_of(t->walks[i].after);
    }
    for (i = 0; i < (size_t)batch->of->answer.claimed.ended_count; i++)
        t->ended += batch->of->answer.claimed.ended[i].count;
    verb_batch_clear(batch);
}

static jobq_error pg_claim(taking *t, int64_t now_us)
{
    int32_t kinds[3];
    verb_claim_desc d;
    verb_batch batch;
    jobq_pg_error error;
    jobq_error code;
    jobq_lane lanes[LANES];
    int32_t i;

    pg_at(now_us);
    memset(&d, 0, sizeof d);
    memcpy(lanes, t->lanes, (size_t)t->lane_count * sizeof lanes[0]);
    for (i = 0; i < t->lane_count; i++) {
        if (lanes[i].lined) lanes[i].after_id = pg_line_numbers[lanes[i].after_id];
    }
    d.quantum = t->quantum;
    d.worker = t->worker;
    d.number = t->number;
    d.limit = t->limit;
    d.lanes = lanes;
    d.lane_count = (size_t)t->lane_count;
    d.kinds = t->kinds == 0 ? NULL : kinds;
    d.kind_count = (size_t)pg_kinds(t->kinds, kinds);
    d.suspects = t->suspects;
    d.alone = t->alone;
    d.look = true;
    code = verb_claim(pg, db, &d, &batch, &error);
    if (code == JOBQ_OK) pg_taken(t, &batch);
    return code;
}

static bool pg_recover(int64_t worker, int64_t number, int32_t limit, int64_t now_us)
{
    jobq_pg_error error;
    bool more = false;

    pg_at(now_us);
    if (verb_recover(pg, db, worker, number, limit, &more, &error) != JOBQ_OK) {
        fail_msg("%s", error.message);
    }
    return more;
}

static jobq_error pg_settle(const jobq_job *held, const jobq_event *event,
                            const jobq_decision *decision, jobq_str next, int64_t now_us)
{
    char text[JOBQ_ERROR_MAX + 1];
    jobq_error answer = JOBQ_ERROR_DATABASE;
    verb_result r;
    jobq_pg_error error;

    (void)event;
    pg_at(now_us);
    memset(&r, 0, sizeof r);
    r.id = held->id;
    r.worker = held->worker;
    r.claim = held->claim;
    r.decision = *decision;
    jobq_reason_format(text, decision, jobq_str_from("boom"));
    r.error = jobq_str_from(text);
    r.payload = next;
    if (verb_settle(pg, db, &r, 1, &answer, &error) != JOBQ_OK) fail_msg("%s", error.message);
    return answer;
}

/* The bits of a list of numbers. */
static uint64_t pg_bits(const PGresult *res, int column)
{
    const char *p = PQgetvalue(res, 0, column);
    uint64_t bits = 0;
    int used;
    long value;

    for (; sscanf(p, "%ld%n", &value, &used) == 1; p += used) bits |= (uint64_t)1 << value;
    return bits;
}

static news pg_heartbeat(int64_t worker, const int64_t *settled, int32_t count, int64_t now_us)
{
    news n;
    PGresult *res;

    pg_at(now_us);
    memset(&n, 0, sizeof n);
    res = sql(db,
              "SELECT alive, coalesce(suspects, false), array_to_string(cancel, ' '), "
              "array_to_string(ARRAY(SELECT k.id FROM jobq.kind k, jobq.worker w WHERE w.id = %lld "
              "AND k.queue_id = ANY (w.queues) AND NOT every_kind AND k.id <> ALL (h.kinds)), "
              "' '), EXISTS (SELECT FROM jobq.job WHERE run_at = 'infinity' AND state = 'r' AND "
              "kind_id = ANY (parked)), array_to_string(late, ' '), "
              "array_to_string(alone_queues, ' '), "
              "coalesce(overdue, 0) FROM jobq._heartbeat(%lld, %lld, "
              "array_remove(ARRAY[%lld::bigint], 0)) h",
              (long long)worker, (long long)worker, (long long)LEASE_US,
              count > 0 ? (long long)settled[0] : 0);
    n.alive = PQgetvalue(res, 0, 0)[0] == 't';
    n.suspects = PQgetvalue(res, 0, 1)[0] == 't';
    n.cancel = pg_bits(res, 2);
    n.spared = pg_bits(res, 3);
    n.parked = PQgetvalue(res, 0, 4)[0] == 't'; /* a mark may stand on a kind for nothing */
    n.late = pg_bits(res, 5);
    n.alone = pg_bits(res, 6);
    n.overdue = atoi(PQgetvalue(res, 0, 7));
    PQclear(res);
    return n;
}

static bool pg_rescue(int64_t victim, int64_t beat, int32_t limit, int64_t now_us,
                      int32_t *rescued, bool *more)
{
    PGresult *res;
    bool dead;

    pg_at(now_us);
    res = sql(db, "SELECT dead, rescued, more FROM jobq._rescue(%lld, %lld, %d)", (long long)victim,
              (long long)beat, (int)limit);
    dead = PQgetvalue(res, 0, 0)[0] == 't';
    *rescued = (int32_t)atol(PQgetvalue(res, 0, 1));
    *more = PQgetvalue(res, 0, 2)[0] == 't';
    PQclear(res);
    return dead;
}

static void pg_deregister(int64_t worker, int64_t now_us)
{
    pg_at(now_us);
    RUN("SELECT jobq._deregister(%lld)", (long long)worker);
}

static jobq_error pg_cancel(int64_t job, int64_t now_us)
{
    jobq_pg_error error;

    pg_at(now_us);
    return jobq_pg_cancel(pg, db, ONE(job), NULL, NULL, &error);
}

static jobq_error pg_revive(int64_t job, int64_t now_us)
{
    jobq_pg_error error;

    pg_at(now_us);
    return jobq_pg_revive(pg, db, ONE(job), NULL, &error);
}

static void pg_after(int64_t child, int64_t parent, jobq_on_end on_end, bool cascade,
                     int64_t now_us)
{
    pg_at(now_us);
    RUN("SELECT jobq._lock_parents('{%lld}')", (long long)parent);
    RUN("SELECT jobq._link('{%lld}', %s, NULL, '{1}', '{%lld}', NULL, NULL, '{%s}')",
        (long long)child, cascade ? "jobq.flow('', 'cancel')" : "NULL", (long long)parent,
        jobq_enum_name(JOBQ_ENUM_ON_END, on_end));
}

static bool pg_await(const jobq_job *held, int64_t parent, jobq_on_end on_end,
                     const jobq_decision *decision, int64_t now_us)
{
    char generic[300], *text;
    const char *state;
    PGresult *res;

    pg_at(now_us);
    snprintf(generic, sizeof generic, "SELECT jobq._wait_here(%lld, %lld, %lld, %d::smallint, %d, "
             "%d, %s, NULL, '{%lld}', '{NULL}', '{NULL}', '{%s}', %d)", (long long)held->worker,
             (long long)held->claim, (long long)held->id, (int)decision->stage,
             (int)decision->attempt, (int)decision->crash, decision->suspect ? "true" : "false",
             (long long)parent, jobq_enum_name(JOBQ_ENUM_ON_END, (int)on_end),
             (int)decision->snoozes);
    text = for_schema(generic, schema);
    res = PQexec(db, text);
    free(text);
    state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    if (state != NULL && strcmp(state, "22023") != 0) fail_msg("%s", PQresultErrorMessage(res));
    PQclear(res);
    return state == NULL;
}

static int32_t pg_unpark(int32_t kind, int64_t now_us)
{
    pg_at(now_us);
    return (int32_t)number("SELECT jobq._unpark(%d, 1000)", (int)kind);
}

static void pg_sleep_operation(int64_t worker, bool asleep, int64_t now_us)
{
    pg_at(now_us);
    RUN("SELECT jobq._sleep(%lld, '{1,2}', %s)", (long long)worker, asleep ? "true" : "false");
}

static void pg_prune(int64_t now_us)
{
    pg_at(now_us);
    RUN("SELECT jobq.prune(1000)");
}

static int64_t pg_part(int32_t part) { return partition_id(1, part); }

static void pg_send(int32_t part, int64_t now_us)
{
    jobq_pg_message m;
    jobq_pg_error error;

    pg_at(now_us);
    memset(&m, 0, sizeof m);
    m.queue = "q1";
    m.partition = part;
    m.payload = jobq_str_from("{}");
    if (jobq_pg_outbox_enqueue(pg, db, &m, NULL, &error) != JOBQ_OK) fail_msg("%s", error.message);
}

static void pg_read(delivered *r, int64_t now_us)
{
    verb_read_desc d;
    verb_reading got;
    jobq_pg_error error;

    pg_at(now_us);
    memset(&d, 0, sizeof d);
    d.worker = r->holder.worker;
    d.claim = r->holder.claim;
    d.lease_us = r->holder.lease_us;
    d.partition = pg_part(r->part);
    d.most = r->most;
    d.bytes = r->bytes;
    d.aside = r->aside;
    d.acked = r->before;
    d.again = true;
    d.handed = r->handed;
    d.watched_worker = r->watched.worker;
    d.watched_claim = r->watched.claim;
    d.watched_beat = r->watched.beat;
    if (verb_read(pg, db, &d, &got, &error) != JOBQ_OK) fail_msg("%s", error.message);
    r->answer = got.answer;
    r->cursor = got.cursor;
    r->lost = got.lost;
    r->due_us = got.wait_us;
    r->other.worker = got.worker;
    r->other.claim = got.claim;
    r->other.beat = got.beat;
    r->count = got.count;
    r->cut = got.cut;
    verb_reading_clear(&got);
}

static jobq_error pg_ack(settling *k, int64_t now_us)
{
    verb_dead dead[SHOWN];
    verb_ack_desc d;
    verb_reading got;
    jobq_pg_error error;
    jobq_error code;
    int32_t i;

    pg_at(now_us);
    memset(&d, 0, sizeof d);
    d.worker = k->of->holder.worker;
    d.claim = k->of->holder.claim;
    d.lease_us = k->of->holder.lease_us;
    d.partition = pg_part(k->of->part);
    d.before = k->before;
    d.after = &k->plan->cursor;
    d.most = k->most;
    d.bytes = k->bytes;
    if (k->plan->directive.kind == JOBQ_DIRECTIVE_SLEEP) d.delay_us = k->plan->directive.delay_us;
    d.dead = dead;
    for (i = 0; i < k->plan->done; i++) {
        int64_t seq = k->of->cursor.acked + 1 + i;
        if (k->results[i] == JOBQ_RESULT_SUCCESS) continue;
        memset(&dead[d.dead_count], 0, sizeof dead[0]);
        dead[d.dead_count].seq = seq;
        dead[d.dead_count++].attempts = jobq_cursor_attempts(&k->of->cursor, seq) + (i < k->given);
    }
    code = verb_ack(pg, db, &d, &got, &error);
    if (code != JOBQ_OK) return code;
    k->count = got.count;
    k->cut = got.cut;
    verb_reading_clear(&got);
    return JOBQ_OK;
}

static jobq_error pg_renew(const delivered *r, int64_t now_us)
{
    int64_t part = pg_part(r->part);
    jobq_pg_error error;
    bool lost = false;

    pg_at(now_us);
    if (verb_renew(pg, db, r->holder.worker, r->holder.lease_us, &part, &r->holder.claim,
                             1, &lost, &error) != JOBQ_OK) {
        fail_msg("%s", error.message);
    }
    return lost ? JOBQ_ERROR_LOST : JOBQ_OK;
}

#define PG_INSTANT(column)                                                                         \
    "CASE WHEN " column " = 'infinity' THEN 9223372036854775807 ELSE "                             \
    "(extract(epoch FROM " column ") * 1000000)::bigint END"
#define PG_JOB                                                                                     \
    "id, " PG_INSTANT("run_at") ", queue_id, kind_id, attempt, crash, priority, stage, "           \
                                "stages, "

static void pg_look_job(const PGresult *res, int row, shown_job *shown)
{
    jobq_job *job = &shown->job;
    int64_t value[13];
    int i;

    for (i = 0; i < 13; i++) value[i] = atoll(PQgetvalue(res, row, i));
    memset(job, 0, sizeof *job);
    job->id = value[0];
    job->run_at_us = value[1];
    job->queue = (int32_t)value[2];
    job->kind = (int32_t)value[3];
    job->attempt = (int32_t)value[4];
    job->crash = (int32_t)value[5];
    job->priority = (int16_t)value[6];
    job->stage = (int16_t)value[7];
    job->stages = (int16_t)value[8];
    job->suspect = value[9] != 0;
    job->alone = value[9] == 2;
    job->cancel_requested = value[10] != 0;
    job->worker = value[11];
    job->claim = value[12];
    job->state = (jobq_state)jobq_enum_from(JOBQ_ENUM_STATE_LETTER,
                                             jobq_str_from(PQgetvalue(res, row, 13)));
    snprintf(shown->payload, sizeof shown->payload, "%s", PQgetvalue(res, row, 14));
    snprintf(shown->why, sizeof shown->why, "%s", PQgetvalue(res, row, 15));
    for (i = LINES; i > 0 && strcmp(PQgetvalue(res, row, 16), pg_line_names[i]) != 0;) i--;
    shown->line = i;
    job->line = atoll(PQgetvalue(res, row, 17));
    job->snoozes = (int32_t)atoll(PQgetvalue(res, row, 18));
}

static void pg_look_parts(view *v)
{
    PGresult *res = sql(
        db, "SELECT p.acked, p.numbered, coalesce(p.worker, 0), coalesce(p.claim, 0), coalesce("
            PG_INSTANT("p.lease_until") ", 0), p.reading, coalesce(" PG_INSTANT("p.run_at") ", 0), "
            "p.failures, p.effective, p.successes, array_to_string(p.tried, ' ') FROM "
            "jobq.partition p ORDER BY p.id");
    int i, used;

    assert_int_equal(PQntuples(res), PARTS);
    for (i = 0; i < PARTS; i++) {
        shown_part *p = &v->part[i];
        const char *tried = PQgetvalue(res, i, 10);
        long long seq;
        memset(p, 0, sizeof *p);
        p->cursor.acked = atoll(PQgetvalue(res, i, 0));
        p->last = atoll(PQgetvalue(res, i, 1));
        p->worker = atoll(PQgetvalue(res, i, 2));
        p->claim = atoll(PQgetvalue(res, i, 3));
        p->lease_until_us = atoll(PQgetvalue(res, i, 4));
        p->reading = atoll(PQgetvalue(res, i, 5));
        p->run_at_us = atoll(PQgetvalue(res, i, 6));
        p->cursor.mode.failures = (uint32_t)atoll(PQgetvalue(res, i, 7));
        p->cursor.mode.effective = (uint32_t)atoll(PQgetvalue(res, i, 8));
        p->cursor.mode.successes = (uint32_t)atoll(PQgetvalue(res, i, 9));
        for (; sscanf(tried, "%lld%n", &seq, &used) == 1; tried += used) {
            p->cursor.tried[p->cursor.tried_count++] = seq;
        }
    }
    PQclear(res);
    res = sql(db, "SELECT partition_id %% 32768, seq, attempts FROM jobq.dead_letter"
                  " ORDER BY 1, 2");
    v->letters = PQntuples(res);
    for (i = 0; i < v->letters; i++) {
        v->letter[i].part = atoll(PQgetvalue(res, i, 0));
        v->letter[i].seq = atoll(PQgetvalue(res, i, 1));
        v->letter[i].attempts = atoll(PQgetvalue(res, i, 2));
    }
    PQclear(res);
}

static void pg_look(view *v)
{
    PGresult *res;
    int i;

    while (number("SELECT jobq._promote(100)") > 0) continue; /* as the next idle claim does */
    res = sql(db,
              "SELECT " PG_JOB "suspect::int + alone::int, "
              "(cancel_requested_at IS NOT NULL)::int, "
              "coalesce(worker, 0), coalesce(claim, 0), state, payload::text, '', line_name, "
              "(line IS NOT NULL)::int, coalesce(snoozes, 0) FROM jobq.job "
              "UNION ALL SELECT " PG_JOB "0, 0, 0, 0, 'f', payload::text, coalesce(substring("
              "errors -> -1 ->> 'error' FROM '^Max [a-z]+ .[0-9]+. exceeded'), ''), line_name, 0, "
              "coalesce(snoozes, 0) FROM jobq.failed UNION ALL SELECT " PG_JOB
              "0, 0, 0, 0, state, payload::text, coalesce(substring(errors -> -1 ->> 'error' "
              "FROM '^expired'), ''), line_name, 0, 0 FROM jobq.history ORDER BY 1");
    v->jobs = PQntuples(res);
    for (i = 0; i < v->jobs; i++) pg_look_job(res, i, &v->job[i]);
    PQclear(res);
    res = sql(
        db, "SELECT id, beat, " PG_INSTANT("expires_at") ", (dead_at IS NOT NULL)::int, EXISTS "
                                                         "(SELECT FROM jobq.sleeper s WHERE "
                                                         "s.worker = w.id)::int FROM jobq.worker w "
                                                         "ORDER BY 1");
    v->workers = PQntuples(res);
    for (i = 0; i < v->workers; i++) {
        v->worker[i].id = atoll(PQgetvalue(res, i, 0));
        v->worker[i].beat = atoll(PQgetvalue(res, i, 1));
        v->worker[i].expires_at_us = atoll(PQgetvalue(res, i, 2));
        v->worker[i].dead = PQgetvalue(res, i, 3)[0] == '1';
        v->worker[i].asleep = PQgetvalue(res, i, 4)[0] == '1';
    }
    PQclear(res);
    res = sql(db, "SELECT worker, number FROM jobq.claim ORDER BY 1, 2");
    v->claims = PQntuples(res);
    for (i = 0; i < v->claims; i++) {
        v->claim[i].worker = atoll(PQgetvalue(res, i, 0));
        v->claim[i].number = atoll(PQgetvalue(res, i, 1));
    }
    PQclear(res);
    pg_look_parts(v);
}

static const store store_pg = {
    "Postgres", pg_reset, pg_policy, pg_kind_policy, pg_pause, pg_enqueue, pg_enroll, pg_claim,
    pg_recover, pg_settle, pg_heartbeat, pg_rescue, pg_deregister, pg_cancel, pg_revive, pg_after,
    pg_await, pg_unpark, pg_sleep_operation, pg_prune, pg_send, pg_read, pg_ack, pg_renew, pg_look,
    pg_line};

#endif /* STORE_PG_INCLUDED */
