/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * flows.h -- flows in the chaos run: an actor plans them, another sends the signals that their jobs
 * wait for, and here are the handlers of those jobs.
 *
 * What is planned goes to tables of the harness (watch.sql) in the same transaction: node, a job of
 * a plan; link, an edge; awaited, a signal that a job needs. check_flows.sql compares them with
 * what happened. A payload is {"ref": plan, "i": job of the plan, "flow": id}.
 */
#ifndef FLOWS_INCLUDED
#define FLOWS_INCLUDED (1)

#define PLAN_JOBS 12  /* of a flow, at most */
#define PLAN_EDGES 4  /* of a job, at most */
#define SPAWNED 100   /* jobs that a handler has enqueued are numbered from here on */
#define FLOW_KINDS 4

static const char *const end_names[] = {"success", "failure", "any"};
static const char *const failure_names[] = {"hold", "cancel", "run"};

/* A statement that grows. */
typedef struct sql_text {
    char text[8000];
    size_t size;
} sql_text;

static void add_sql(sql_text *s, const char *format, ...)
{
    va_list args;
    int size;

    va_start(args, format);
    size = vsnprintf(s->text + s->size, sizeof s->text - s->size, format, args);
    va_end(args);
    if (size < 0 || s->size + (size_t)size >= sizeof s->text) abort();
    s->size += (size_t)size;
}

static bool run_text(PGconn *conn, const char *text)
{
    PGresult *res = PQexec(conn, text);
    bool good = PQresultStatus(res) == PGRES_COMMAND_OK || PQresultStatus(res) == PGRES_TUPLES_OK;

    PQclear(res);
    return good;
}

/* The number after "key": in a payload; 0: none. */
static int64_t payload_number(const jobq_call *call, const char *key)
{
    char text[200], wanted[20];
    const char *at;

    snprintf(text, sizeof text, "%.*s", (int)call->payload.len,
             call->payload.ptr == NULL ? "" : call->payload.ptr);
    snprintf(wanted, sizeof wanted, "\"%s\": ", key);
    at = strstr(text, wanted);
    return at == NULL ? 0 : strtoll(at + strlen(wanted), NULL, 10);
}

static void write_payload(char *text, size_t size, int64_t ref, int i, int64_t flow)
{
    snprintf(text, size, "{\"ref\": %lld, \"i\": %d, \"flow\": %lld}", (long long)ref, i,
             (long long)flow);
}

/* ---- the planner ----------------------------------------------------------------------------- */

typedef struct plan {
    int64_t ref, flow;
    jobq_pg_on_failure on_failure;
    int count;
    jobq_pg_job jobs[PLAN_JOBS];
    jobq_pg_after after[PLAN_JOBS][PLAN_EDGES];
    int parents[PLAN_JOBS][PLAN_EDGES]; /* as after: the job of this plan; -1: of another one */
    char names[PLAN_JOBS][8], payloads[PLAN_JOBS][100];
    int64_t ids[PLAN_JOBS];
} plan;

/* Some jobs of older plans, live or not, which newer ones wait for. */
static int64_t older[16];

static void draw_kind(jobq_pg_job *job)
{
    static const struct {
        const char *queue, *kind;
        int upto;
    } kinds[] = {{"flow", "part", 30},     {"flow", "stepped", 45}, {"flow", "awaits", 58},
                 {"flow", "splits", 72},   {"chaos", "ledger", 82}, {"chaos", "outside", 92},
                 {"lines", "outside", 96}, {"chaos", "flaky", 99}};
    int draw = (int)between(0, 99), k = 0;

    while (draw > kinds[k].upto) k++;
    job->queue = kinds[k].queue;
    job->kind = kinds[k].kind;
    if (strcmp(job->queue, "lines") == 0) job->line = "line-1";
}

/* What job i of the plan waits for: jobs before it, and at times one of an older plan. */
static void draw_edges(plan *p, int i)
{
    int most = i == 0 ? 0 : (int)between(0, 3), k;

    for (k = 0; k < most; k++) {
        int parent = (int)between(i > 4 ? i - 4 : 0, i - 1), j = 0;
        int64_t draw = between(0, 9);
        jobq_pg_after *a = &p->after[i][p->jobs[i].after_count];
        while (j < (int)p->jobs[i].after_count && p->parents[i][j] != parent) j++;
        if (j < (int)p->jobs[i].after_count) continue;
        a->name = p->names[parent];
        a->on_end = draw < 7 ? JOBQ_ON_SUCCESS : draw < 9 ? JOBQ_ON_ANY : JOBQ_ON_FAILURE;
        p->parents[i][p->jobs[i].after_count++] = parent;
    }
    if (between(0, 7) == 0 && older[i] != 0) {
        p->after[i][p->jobs[i].after_count].job = older[i];
        p->after[i][p->jobs[i].after_count].on_end = JOBQ_ON_ANY;
        p->parents[i][p->jobs[i].after_count++] = -1;
    }
}

static void draw_plan(plan *p, int64_t ref)
{
    int i;

    memset(p, 0, sizeof *p);
    p->ref = ref;
    p->on_failure = (jobq_pg_on_failure)between(0, 2);
    p->count = (int)between(3, PLAN_JOBS);
    for (i = 0; i < p->count; i++) {
        snprintf(p->names[i], sizeof p->names[i], "n%d", i);
        p->jobs[i].name = p->names[i];
        p->jobs[i].after = p->after[i];
        if (between(0, 9) == 0) p->jobs[i].delay_us = between(1, 300000);
        draw_kind(&p->jobs[i]);
        draw_edges(p, i);
    }
}

/* Enqueues the jobs from..to: in one call, where parents are named, or one by one, with the ids of
 * the parents. */
static bool enqueue_plan(PGconn *conn, plan *p, int from, int to, bool at_once)
{
    int i, k;

    for (i = from; i < to; i++) {
        write_payload(p->payloads[i], sizeof p->payloads[i], p->ref, i, p->flow);
        p->jobs[i].payload = jobq_str_from(p->payloads[i]);
        p->jobs[i].flow = p->flow;
    }
    if (at_once)
        return jobq_pg_enqueue_many(pg, conn, p->jobs + from, (size_t)(to - from), p->ids + from,
                                    NULL) == JOBQ_OK;
    for (i = from; i < to; i++) {
        for (k = 0; k < (int)p->jobs[i].after_count; k++) {
            if (p->parents[i][k] < 0) continue;
            p->after[i][k].name = NULL;
            p->after[i][k].job = p->ids[p->parents[i][k]];
        }
        if (jobq_pg_enqueue(pg, conn, &p->jobs[i], &p->ids[i], NULL) != JOBQ_OK) return false;
    }
    return true;
}

/* Writes a part of the plan down. */
static bool record_plan(PGconn *conn, const plan *p, int from, int to)
{
    sql_text s = {"", 0};
    int i, k;

    for (i = from; i < to; i++) {
        add_sql(&s, "INSERT INTO " WATCH ".node (job, flow, kind) VALUES (%lld, %lld, '%s'); ",
                (long long)p->ids[i], (long long)p->flow, p->jobs[i].kind);
        if (strcmp(p->jobs[i].kind, "awaits") == 0)
            add_sql(&s, "INSERT INTO " WATCH ".awaited VALUES ('%lld/%d', %s); ", (long long)p->ref,
                    i, p->ref % 3 == 0 && i % 2 == 0 ? "false" : "true");
        for (k = 0; k < (int)p->jobs[i].after_count; k++) {
            int at = p->parents[i][k];
            add_sql(&s, "INSERT INTO " WATCH ".link (child, parent, wanted, on_failure) VALUES "
                        "(%lld, %lld, '%s', '%s'); ", (long long)p->ids[i],
                    (long long)(at < 0 ? p->after[i][k].job : p->ids[at]),
                    end_names[p->after[i][k].on_end], failure_names[p->on_failure]);
        }
    }
    return run_text(conn, s.text);
}

/* A job in no flow that waits for the end of this one. */
static bool enqueue_after_it(PGconn *conn, const plan *p)
{
    static const jobq_on_end ends[] = {JOBQ_ON_ANY, JOBQ_ON_SUCCESS, JOBQ_ON_FAILURE};
    jobq_pg_after after = {0, NULL, p->flow, ends[between(0, 2)]};
    char payload[100];
    jobq_pg_job job;
    int64_t id = 0;

    memset(&job, 0, sizeof job);
    write_payload(payload, sizeof payload, p->ref, PLAN_JOBS, 0);
    job.queue = "chaos";
    job.kind = "outside";
    job.payload = jobq_str_from(payload);
    job.after = &after;
    job.after_count = 1;
    return jobq_pg_enqueue(pg, conn, &job, &id, NULL) == JOBQ_OK &&
           run(conn, "INSERT INTO " WATCH ".node (job, kind) VALUES (%lld, 'outside'); INSERT INTO "
               WATCH ".link (child, of_flow, wanted, on_failure) VALUES (%lld, %lld, '%s', 'hold')",
               (long long)id, (long long)id, (long long)p->flow, end_names[after.on_end]);
}

/* A flow: in one transaction, or open, with the rest in a second one. The conductor closes what
 * stays open because its planner was killed in between. */
static void plan_flow(PGconn *conn, int64_t ref)
{
    static plan p;
    jobq_pg_flow_desc desc = {"chaos", JOBQ_PG_FLOW_HOLD, false};
    bool at_once = between(0, 1) == 0, good;
    const char *answer;
    int first, i;

    draw_plan(&p, ref);
    desc.open = between(0, 3) == 0;
    desc.on_failure = p.on_failure;
    first = desc.open ? p.count / 2 : p.count;
    say("try", ref, "flow");
    good = run(conn, "BEGIN") && jobq_pg_flow_begin(pg, conn, &desc, &p.flow, NULL) == JOBQ_OK &&
           enqueue_plan(conn, &p, 0, first, at_once) && record_plan(conn, &p, 0, first) &&
           (between(0, 3) > 0 || enqueue_after_it(conn, &p));
    if (!good || between(0, 19) == 0) {
        run(conn, "ROLLBACK");
        say("answer", ref, good ? "withdrawn" : "failed");
        return;
    }
    answer = commit(conn);
    say("answer", ref, answer);
    if (strcmp(answer, "committed") != 0) return;
    log_line(role, "planned", p.ids[0], 0, 0, p.flow, failure_names[p.on_failure]);
    for (i = 0; i < first; i++) older[between(0, 15)] = p.ids[i];
    if (!desc.open) return;
    nap_us(between(0, 200000));
    good = run(conn, "BEGIN") && enqueue_plan(conn, &p, first, p.count, at_once) &&
           record_plan(conn, &p, first, p.count) &&
           jobq_pg_flow_close(pg, conn, p.flow, NULL) == JOBQ_OK;
    run(conn, good ? "COMMIT" : "ROLLBACK");
}

/* Many jobs of a kind, and one that runs when all have ended. */
static void plan_batch(PGconn *conn, int64_t ref)
{
    sql_text s = {"", 0};

    add_sql(&s, "WITH made AS (SELECT " SCHEMA ".batch('flow', 'part', ARRAY(SELECT "
                "jsonb_build_object('ref', %lld, 'i', i) FROM generate_series(1, %d) i), "
                "'outside', '{\"ref\": %lld}', 'chaos') AS id) "
                "SELECT set_config('chaos.flow', id::text, true) FROM made; ",
            (long long)ref, (int)between(1, 30), (long long)ref);
    add_sql(&s, "INSERT INTO " WATCH ".node (job, flow, kind) SELECT id, flow_id, 'part' FROM "
                SCHEMA ".job WHERE flow_id = current_setting('chaos.flow')::bigint; ");
    add_sql(&s, "INSERT INTO " WATCH ".node (job, kind) SELECT child, 'outside' FROM " SCHEMA
                ".edge WHERE parent = -current_setting('chaos.flow')::bigint; ");
    add_sql(&s, "INSERT INTO " WATCH ".link (child, of_flow, wanted, on_failure) SELECT child, "
                "-parent, 'any', 'hold' FROM " SCHEMA
                ".edge WHERE parent = -current_setting('chaos.flow')::bigint");
    say("try", ref, "batch");
    if (run(conn, "BEGIN") && run_text(conn, s.text)) {
        say("answer", ref, commit(conn));
    } else {
        run(conn, "ROLLBACK");
        say("answer", ref, "failed");
    }
}

static void plan_flows(void)
{
    int64_t ref = ((int64_t)getpid() << 32) | ((mono_us() / 1000000 & 0xfff) << 20);
    PGconn *conn;

    while (going() && (conn = connection()) != NULL) {
        ref++;
        if (between(0, 5) == 0) plan_batch(conn, ref);
        else plan_flow(conn, ref);
        jobq_pg_release(pg, conn);
        nap_us(between(0, 500000));
    }
}

/* ---- the sender of signals ------------------------------------------------------------------- */

/* Sends one that was not sent yet: at times twice, and at times the transaction is rolled back. */
static void send_one(PGconn *conn, const char *signal)
{
    int64_t number_sent = mono_us();
    bool first = false, good, back = between(0, 4) == 0;
    char payload[40];

    snprintf(payload, sizeof payload, "%lld", (long long)number_sent);
    good = run(conn, "BEGIN") &&
           jobq_pg_signal(pg, conn, signal, jobq_str_from(payload), &first, NULL) == JOBQ_OK &&
           run(conn, "INSERT INTO " WATCH ".sent VALUES ('%s', %lld, %s)", signal,
               (long long)number_sent, first ? "true" : "false");
    if (!good || back) {
        run(conn, "ROLLBACK");
    } else if (strcmp(commit(conn), "committed") == 0) {
        say("signal_sent", 0, signal);
    }
}

static void send_signals(void)
{
    char signal[60];
    PGconn *conn;

    while (going() && (conn = connection()) != NULL) {
        PGresult *res = PQexec(conn,
            "SELECT name, random() < 0.1 FROM " WATCH ".awaited a WHERE sent_at_all AND NOT EXISTS "
            "(SELECT FROM " WATCH ".sent s WHERE s.name = a.name) ORDER BY random() LIMIT 1");
        if (PQresultStatus(res) == PGRES_TUPLES_OK && PQntuples(res) == 1) {
            snprintf(signal, sizeof signal, "%s", PQgetvalue(res, 0, 0));
            send_one(conn, signal);
            if (PQgetvalue(res, 0, 1)[0] == 't') send_one(conn, signal);
        }
        PQclear(res);
        jobq_pg_release(pg, conn);
        nap_us(between(5000, 150000));
    }
}

/* ---- handlers -------------------------------------------------------------------------------- */

/* Fails for good at times, so that somebody has to revive it. */
static jobq_outcome part(jobq_call *call)
{
    unsigned draw = chance(call);

    note_start(call);
    if (jobq_call_stopping(call, NULL) == JOBQ_STOP_CANCEL)
        return ended(call, JOBQ_OUTCOME_CANCELLED);
    nap_us(draw * 300);
    if (draw < 15) jobq_call_error(call, jobq_str_from("part"));
    if (draw < 15) return ended(call, JOBQ_OUTCOME_DISCARD);
    jobq_call_delay(call, 20000);
    if (draw < 20) return ended(call, JOBQ_OUTCOME_RETRY);
    leave(call);
    return ended(call, JOBQ_OUTCOME_SUCCESS);
}

/* A step with an effect in the database, in one transaction. */
static bool step_with_effect(jobq_call *call, PGconn *conn)
{
    const jobq_job *j = &call->job;
    jobq_error code = jobq_call_step(call, "row", NULL);

    if (code != JOBQ_ERROR_NOT_FOUND) return code == JOBQ_OK;
    if (!run(conn, "BEGIN") ||
        !run(conn, "INSERT INTO " WATCH ".effect (job, step, worker, claim) VALUES (%lld, 'row', "
             "%lld, %lld)", (long long)j->id, (long long)j->worker, (long long)j->claim)) {
        run(conn, "ROLLBACK");
        return false;
    }
    if (take_stop(false)) {
        note(call, "stopped_inside", "step");
        raise(SIGSTOP);
    }
    if (jobq_pg_call_step_done(call, conn, "row", jobq_str_from("1"), NULL) != JOBQ_OK) {
        run(conn, "ROLLBACK");
        return false;
    }
    return strcmp(commit(conn), "committed") == 0;
}

/* Two steps, a sleep between them, and at times an attempt that fails after its steps. */
static jobq_outcome stepped(jobq_call *call)
{
    PGconn *conn;
    jobq_error code;

    note_start(call);
    jobq_call_delay(call, 20000);
    conn = jobq_pg_call_conn(call, NULL);
    if (conn == NULL || !step_with_effect(call, conn)) return ended(call, JOBQ_OUTCOME_RETRY);
    code = jobq_call_step(call, "sleep", NULL);
    if (code == JOBQ_ERROR_NOT_FOUND) {
        if (jobq_call_step_done(call, "sleep", jobq_str_from(NULL)) != JOBQ_OK)
            return ended(call, JOBQ_OUTCOME_RETRY);
        jobq_call_delay(call, 20000 + chance(call) * 3000);
        return ended(call, JOBQ_OUTCOME_SNOOZE);
    }
    if (code == JOBQ_OK) code = jobq_call_step(call, "word", NULL);
    if (code == JOBQ_ERROR_NOT_FOUND) {
        note(call, "step_begins", "");
        code = jobq_call_step_done(call, "word", jobq_str_from("\"done\""));
        if (code == JOBQ_OK) note(call, "step_done", "");
    }
    if (code != JOBQ_OK || chance(call) < 20) return ended(call, JOBQ_OUTCOME_RETRY);
    return ended(call, JOBQ_OUTCOME_SUCCESS);
}

/* Waits for its signal: every third for a second, the others for a day. Half of the former are
 * never sent. */
static jobq_outcome awaits(jobq_call *call)
{
    int64_t ref = payload_number(call, "ref"), us = ref % 3 == 0 ? 1000000 : JOBQ_DAYS(1);
    char signal[40], text[80];
    jobq_str payload;

    note_start(call);
    snprintf(signal, sizeof signal, "%lld/%d", (long long)ref, (int)payload_number(call, "i"));
    switch ((int)jobq_call_signal(call, signal, us, &payload)) {
    case JOBQ_OK:
        snprintf(text, sizeof text, "%s %.*s", signal, (int)payload.len, payload.ptr);
        note(call, "signal_got", text);
        return ended(call, JOBQ_OUTCOME_SUCCESS);
    case JOBQ_ERROR_NOT_FOUND: return ended(call, JOBQ_OUTCOME_SNOOZE);
    case JOBQ_ERROR_TIMEOUT:
        note(call, "signal_timeout", signal);
        return ended(call, us == 1000000 ? JOBQ_OUTCOME_SUCCESS : JOBQ_OUTCOME_DISCARD);
    default: jobq_call_delay(call, 20000); return ended(call, JOBQ_OUTCOME_RETRY);
    }
}

/* Enqueues a few jobs, of its own flow or of none, and writes them down. */
static bool spawn(jobq_call *call, PGconn *conn, jobq_pg_after *after, int count)
{
    int64_t ref = payload_number(call, "ref"), flow = payload_number(call, "flow");
    const jobq_job *j = &call->job;
    sql_text s = {"", 0};
    char payload[100];
    jobq_pg_job job;
    int i;

    if (chance(call) % 2 == 0) flow = 0;
    for (i = 0; i < count; i++) {
        memset(&job, 0, sizeof job);
        job.queue = (chance(call) + (unsigned)i) % 3 == 0 ? "chaos" : "flow";
        job.kind = strcmp(job.queue, "flow") == 0 ? "part" : "ledger";
        job.flow = flow;
        write_payload(payload, sizeof payload, ref, SPAWNED + i, flow);
        job.payload = jobq_str_from(payload);
        after[i].on_end = chance(call) % 3 == 0 ? JOBQ_ON_ANY : JOBQ_ON_SUCCESS;
        if (jobq_pg_enqueue(pg, conn, &job, &after[i].job, NULL) != JOBQ_OK) return false;
        add_sql(&s, "INSERT INTO " WATCH ".node (job, flow, kind, by, worker, claim) VALUES (%lld, "
                    "nullif(%lld, 0), '%s', %lld, %lld, %lld); ", (long long)after[i].job,
                (long long)flow, job.kind, (long long)j->id, (long long)j->worker,
                (long long)j->claim);
        add_sql(&s, "INSERT INTO " WATCH ".link (child, parent, wanted, on_failure, worker, claim) "
                    "SELECT %lld, %lld, '%s', coalesce((SELECT CASE on_failure WHEN 'c' THEN "
                    "'cancel' WHEN 'r' THEN 'run' END FROM " SCHEMA ".flow f JOIN " WATCH
                    ".node n ON n.flow = f.id WHERE n.job = %lld), 'hold'), %lld, %lld; ",
                (long long)j->id, (long long)after[i].job, end_names[after[i].on_end],
                (long long)j->id, (long long)j->worker, (long long)j->claim);
    }
    return run_text(conn, s.text);
}

/* Enqueues jobs and waits for them; when they have ended, it is run again and succeeds. A step says
 * which of the two runs it is. */
static jobq_outcome splits(jobq_call *call)
{
    jobq_pg_after after[3];
    jobq_outcome outcome;
    PGconn *conn;
    jobq_error code;
    int count = 1 + (int)(chance(call) % 3);

    note_start(call);
    memset(after, 0, sizeof after);
    jobq_call_delay(call, 20000);
    if (jobq_call_stopping(call, NULL) == JOBQ_STOP_CANCEL)
        return ended(call, JOBQ_OUTCOME_CANCELLED);
    code = jobq_call_step(call, "split", NULL);
    if (code == JOBQ_OK) return ended(call, JOBQ_OUTCOME_SUCCESS);
    conn = jobq_pg_call_conn(call, NULL);
    if (code != JOBQ_ERROR_NOT_FOUND || conn == NULL || !run(conn, "BEGIN") ||
        !spawn(call, conn, after, count) ||
        jobq_pg_call_step_done(call, conn, "split", jobq_str_from(NULL), NULL) != JOBQ_OK) {
        if (conn != NULL) run(conn, "ROLLBACK");
        return ended(call, JOBQ_OUTCOME_RETRY);
    }
    if (take_stop(false)) {
        note(call, "stopped_inside", "split");
        raise(SIGSTOP);
    }
    outcome = jobq_pg_call_wait(call, conn, after, count);
    if (outcome == JOBQ_OUTCOME_DONE) note(call, "split", "");
    return ended(call, outcome);
}

static const struct {
    const char *kind;
    jobq_handler run;
} flow_kinds[FLOW_KINDS] = {
    {"part", part}, {"stepped", stepped}, {"awaits", awaits}, {"splits", splits}};

#endif
