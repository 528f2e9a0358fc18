/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * attune.c -- a small automation platform: packs, triggers, rules, events and executions, with jobq
 * for the work.
 *
 * Build   cc examples/attune/attune.c -I. -lpq -o attune
 * Run     JOBQ_SERVER="host=... dbname=..." ./attune
 *         or, on a Postgres of its own: make examples; tests/server.sh
 *         .build/examples/attune/attune
 * Prints  loaded: 1 packs, 2 actions, 1 triggers, 3 rules
 *         fired: 20 events, 40 enforcements, 40 executions
 *         processed: 41 completed
 *         housekeeping: 1 inquiries timed out, 1 workers inactive, 1 executions requested again
 *
 * An event, its enforcements, its executions and their jobs are written in one transaction. A
 * handler completes its execution and its job in one transaction, too. A housekeeping job, which
 * schedules itself again each time, ends inquiries that have timed out and marks workers that have
 * fallen silent; executions of such a worker are requested again, with a new job.
 *
 * Uses the schemas attune (from examples/attune/attune.sql, or from the file that you name) and
 * jobq_example_attune. It drops and creates both, and drops them at the end.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include "attune.h"

#include <stdio.h>
#include <stdlib.h>

#define SCHEMA "jobq_example_attune"

static jobq_pg *pg;
static jobq_pg_error failure;

static void must(bool good, const char *why)
{
    if (good) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void tell(PGconn *conn, const char *sql)
{
    PGresult *res = PQexec(conn, sql);

    must(PQresultStatus(res) == PGRES_COMMAND_OK, PQerrorMessage(conn));
    PQclear(res);
}

/* Creates a row and returns its id. */
static int64_t create(PGconn *conn, int entity, const char *fields, const void *row)
{
    jobq_pg_rows rows;
    int64_t id;

    must(jobq_pg_table_create(attune[entity], conn, fields, row, NULL, &rows, &failure) == JOBQ_OK,
         failure.message);
    id = *(int64_t *)rows.rows; /* the first field of each struct */
    jobq_pg_rows_clear(&rows);
    return id;
}

static jobq_str str(const char *text) { return jobq_str_from(text); }

/* -- a pack -- */

static int64_t load_action(PGconn *conn, int64_t pack, const char *ref)
{
    attune_action action = {.ref = str(ref), .pack = pack, .pack_ref = str("core"),
                            .label = str(ref), .description = str("an example"),
                            .entrypoint = str("run.sh")};

    return create(conn, ATTUNE_ACTION, "ref pack pack_ref label description entrypoint", &action);
}

static void load_rule(PGconn *conn, const attune_rule *like, const char *ref, int64_t action,
                      const char *action_ref, bool enabled)
{
    attune_rule rule = *like;

    rule.ref = rule.label = rule.description = str(ref);
    rule.action = action;
    rule.action_ref = str(action_ref);
    rule.enabled = enabled;
    create(conn, ATTUNE_RULE, "ref label description pack pack_ref action action_ref trigger "
                              "trigger_ref enabled", &rule);
}

/* Creates the pack with its actions, trigger and rules, all or nothing. */
static jobq_error load_pack(PGconn *conn, void *user, jobq_pg_error *error)
{
    attune_pack pack = {.ref = str("core"), .label = str("Core"), .version = str("1.0.0")};
    attune_trigger trigger = {.ref = str("core.tick"), .label = str("Tick")};
    attune_rule rule = {.pack_ref = str("core"), .trigger_ref = str("core.tick")};
    int64_t echo, mail;

    (void)error;
    rule.pack = create(conn, ATTUNE_PACK, "ref label version", &pack);
    trigger.pack = (jobq_pg_maybe_int64){rule.pack, true};
    rule.trigger = *(int64_t *)user = create(conn, ATTUNE_TRIGGER, "ref label pack", &trigger);
    echo = load_action(conn, rule.pack, "core.echo");
    mail = load_action(conn, rule.pack, "core.mail");
    load_rule(conn, &rule, "core.on_tick_echo", echo, "core.echo", true);
    load_rule(conn, &rule, "core.on_tick_mail", mail, "core.mail", true);
    load_rule(conn, &rule, "core.not_now", mail, "core.mail", false);
    return JOBQ_OK;
}

/* -- events -- */

/* Enqueues the job that will run an execution. */
static jobq_error request(PGconn *conn, int64_t execution, jobq_pg_error *error)
{
    jobq_pg_job job = {.queue = "attune", .kind = "execute"};
    char payload[40];

    snprintf(payload, sizeof payload, "{\"execution\": %lld}", (long long)execution);
    job.payload = str(payload);
    return jobq_pg_enqueue(pg, conn, &job, NULL, error);
}

/* Writes the enforcement and the execution that a rule makes of an event. */
static jobq_error enforce(PGconn *conn, const attune_rule *rule, const attune_event *event,
                          int64_t event_id, jobq_pg_error *error)
{
    attune_enforcement enforcement = {.rule = {rule->id, true},
                                      .rule_ref = rule->ref,
                                      .trigger_ref = event->trigger_ref,
                                      .event = {event_id, true},
                                      .status = ATTUNE_ENFORCEMENT_STATUS_PROCESSED,
                                      .payload = event->payload};
    attune_execution execution = {.action = {rule->action, true},
                                  .action_ref = rule->action_ref,
                                  .config = rule->action_params};
    int64_t id = create(conn, ATTUNE_ENFORCEMENT,
                        "rule rule_ref trigger_ref event status payload", &enforcement);

    execution.enforcement = (jobq_pg_maybe_int64){id, true};
    return request(conn, create(conn, ATTUNE_EXECUTION, "action action_ref config enforcement",
                                &execution), error);
}

/* Writes an event and everything that follows from it, in one transaction. */
static jobq_error fire(PGconn *conn, void *user, jobq_pg_error *error)
{
    attune_event event = {.trigger = {*(int64_t *)user, true},
                          .trigger_ref = str("core.tick"), .payload = str("{\"tick\": true}")};
    attune_rule like = {.trigger = *(int64_t *)user, .enabled = true};
    int64_t id = create(conn, ATTUNE_EVENT, "trigger trigger_ref payload", &event);
    jobq_pg_rows rules;
    jobq_error code = attune_rule_by_trigger_and_enabled(conn, &like, &rules, error);
    size_t i;

    for (i = 0; i < rules.count && code == JOBQ_OK; i++) {
        code = enforce(conn, (attune_rule *)rules.rows + i, &event, id, error);
    }
    jobq_pg_rows_clear(&rules);
    return code;
}

/* -- handlers -- */

/* Runs an execution. Its status and the end of the job are written in one transaction. */
static jobq_outcome execute(jobq_call *call)
{
    PGconn *conn = jobq_pg_call_conn(call, NULL);
    jobq_str none = {NULL, 0}, result = str("{\"exit\": 0}");
    int64_t id;

    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    if (jobq_json_int(call->payload, "execution", &id) != JOBQ_OK) return JOBQ_OUTCOME_DISCARD;
    tell(conn, "BEGIN");
    if (attune_execution_move(conn, id, ATTUNE_EXECUTION_STATUS_REQUESTED,
                              ATTUNE_EXECUTION_STATUS_RUNNING, none, &failure) != JOBQ_OK ||
        attune_execution_move(conn, id, ATTUNE_EXECUTION_STATUS_RUNNING,
                              ATTUNE_EXECUTION_STATUS_COMPLETED, result, &failure) != JOBQ_OK) {
        jobq_call_error(call, str(failure.message));
        return JOBQ_OUTCOME_DISCARD; /* it has run before, or no longer exists */
    }
    return jobq_pg_call_commit(call, conn);
}

static int timed_out, inactive, again;

/* Requests again what a silent worker left running. The handler above goes through RUNNING within
 * its own transaction, so any execution that is visible as RUNNING belongs to such a worker. */
static jobq_error request_again(PGconn *conn, jobq_pg_error *error)
{
    attune_execution set = {.status = ATTUNE_EXECUTION_STATUS_REQUESTED};
    attune_execution like = {.status = ATTUNE_EXECUTION_STATUS_RUNNING};
    jobq_pg_rows rows;
    jobq_error code = jobq_pg_table_update(attune[ATTUNE_EXECUTION], conn, "status", &set,
                                           "status", &like, &rows, error);
    size_t i;

    for (i = 0; i < rows.count && code == JOBQ_OK; i++) {
        code = request(conn, ((attune_execution *)rows.rows)[i].id, error);
    }
    again += (int)rows.count;
    jobq_pg_rows_clear(&rows);
    return code;
}

/* Marks silent workers as inactive and requests their executions again, in one transaction. */
static jobq_error bury(PGconn *conn, void *user, jobq_pg_error *error)
{
    jobq_pg_rows rows;
    jobq_error code = attune_worker_silent(conn, JOBQ_MINUTES(1), &rows, error);

    (void)user;
    inactive += (int)rows.count;
    if (rows.count > 0) code = request_again(conn, error);
    jobq_pg_rows_clear(&rows);
    return code;
}

/* The housekeeping job: snoozes, so that it runs again in an hour. */
static jobq_outcome keep_house(jobq_call *call)
{
    PGconn *conn = jobq_pg_call_conn(call, NULL);
    jobq_pg_rows rows;

    if (conn == NULL) return JOBQ_OUTCOME_RETRY;
    if (attune_inquiry_expire(conn, &rows, &failure) != JOBQ_OK) return JOBQ_OUTCOME_RETRY;
    timed_out += (int)rows.count;
    jobq_pg_rows_clear(&rows);
    if (jobq_pg_transact(pg, conn, bury, NULL, &failure) != JOBQ_OK) return JOBQ_OUTCOME_RETRY;
    jobq_call_delay(call, JOBQ_HOURS(1));
    return JOBQ_OUTCOME_SNOOZE;
}

/* -- the program -- */

static void set_up(PGconn *conn, const char *path)
{
    static char sql[65536];
    FILE *file = fopen(path, "r");

    must(file != NULL, "examples/attune/attune.sql is not here: give its path as the argument");
    sql[fread(sql, 1, sizeof sql - 1, file)] = '\0';
    fclose(file);
    tell(conn, "SET client_min_messages = warning");
    tell(conn, "DROP SCHEMA IF EXISTS attune, " SCHEMA " CASCADE");
    tell(conn, sql);
    must(jobq_pg_migrate(pg, &failure) == JOBQ_OK, failure.message);
    must(attune_open(pg, &failure) == JOBQ_OK, failure.message);
}

/* Plants a worker that died with an execution, and an inquiry that nobody answered. */
static void leave_behind(PGconn *conn)
{
    attune_worker worker = {.name = str("lost"), .worker_type = ATTUNE_WORKER_TYPE_LOCAL,
                            .status = ATTUNE_WORKER_STATUS_ACTIVE,
                            .last_heartbeat = {-90 * (int64_t)1000000, true}};
    attune_execution execution = {.action_ref = str("core.echo"),
                                  .status = ATTUNE_EXECUTION_STATUS_RUNNING};
    attune_inquiry inquiry = {.prompt = str("go on?"), .timeout_at = {0, true}};

    create(conn, ATTUNE_WORKER, "name worker_type status +last_heartbeat", &worker);
    inquiry.execution = create(conn, ATTUNE_EXECUTION, "action_ref status", &execution);
    create(conn, ATTUNE_INQUIRY, "execution prompt +timeout_at", &inquiry);
}

static long count(PGconn *conn, int entity)
{
    int64_t n = 0;

    must(jobq_pg_table_count(attune[entity], conn, NULL, &n, &failure) == JOBQ_OK, failure.message);
    return (long)n;
}

static int work_off(PGconn *conn)
{
    jobq_pg_handler handlers[] = {{.queue = "attune", .kind = "execute", .run = {execute}},
                                  {.queue = "attune", .kind = "house", .run = {keep_house}}};
    jobq_pg_worker_desc work = {
        .handlers = handlers, .handler_count = 2, .loop = {.until = JOBQ_UNTIL_EMPTY}};
    attune_execution done = {.status = ATTUNE_EXECUTION_STATUS_COMPLETED};
    jobq_pg_job house = {.queue = "attune", .kind = "house", .key = "house"};
    jobq_pg_rows rows;
    int completed;

    leave_behind(conn);
    must(jobq_pg_enqueue(pg, conn, &house, NULL, &failure) == JOBQ_OK, failure.message);
    must(jobq_pg_work(pg, &work, &failure) == JOBQ_OK, failure.message);
    /* Once more: the first call may end before the jobs that housekeeping enqueued are due. */
    must(jobq_pg_work(pg, &work, &failure) == JOBQ_OK, failure.message);
    must(attune_execution_by_status(conn, &done, &rows, &failure) == JOBQ_OK, failure.message);
    completed = (int)rows.count;
    jobq_pg_rows_clear(&rows);
    return completed;
}

int main(int argc, char **argv)
{
    jobq_pg_desc desc = {.conninfo = getenv("JOBQ_SERVER"), .schema = SCHEMA};
    PGconn *conn;
    int64_t trigger;
    int i, completed;

    must(desc.conninfo != NULL, "JOBQ_SERVER is not set; see the top of this example");
    must(jobq_pg_open(&pg, &desc, &failure) == JOBQ_OK, failure.message);
    must(jobq_pg_acquire(pg, &conn, &failure) == JOBQ_OK, failure.message);
    set_up(conn, argc > 1 ? argv[1] : "examples/attune/attune.sql");
    must(jobq_pg_transact(pg, conn, load_pack, &trigger, &failure) == JOBQ_OK, failure.message);
    printf("loaded: %ld packs, %ld actions, %ld triggers, %ld rules\n", count(conn, ATTUNE_PACK),
           count(conn, ATTUNE_ACTION), count(conn, ATTUNE_TRIGGER), count(conn, ATTUNE_RULE));
    for (i = 0; i < 20; i++) {
        must(jobq_pg_transact(pg, conn, fire, &trigger, &failure) == JOBQ_OK, failure.message);
    }
    printf("fired: %ld events, %ld enforcements, %ld executions\n", count(conn, ATTUNE_EVENT),
           count(conn, ATTUNE_ENFORCEMENT), count(conn, ATTUNE_EXECUTION));
    completed = work_off(conn);
    printf("processed: %d completed\n", completed);
    printf("housekeeping: %d inquiries timed out, %d workers inactive, %d executions requested "
           "again\n", timed_out, inactive, again);

    attune_close();
    tell(conn, "DROP SCHEMA attune, " SCHEMA " CASCADE");
    jobq_pg_release(pg, conn);
    jobq_pg_close(pg);
    return completed == 41 && timed_out == 1 && inactive == 1 && again == 1 ? 0 : 1;
}
