/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * jobq.c -- the program jobq: what operators do with queues, from a shell.
 *
 * Build   cc examples/jobq/jobq.c -I. -lpq -o jobq
 *         jobq top: also -DJOBQ_TOP -lncursesw; jobq web: also -DJOBQ_WEB -lmicrohttpd;
 *         make jobq builds it with all whose library is there. On Windows, where work, top and
 *         web are missing: x86_64-w64-mingw32-gcc ... -lpq -lws2_32 -lbcrypt -lpthread
 * Run     jobq help; jobq -d "host=... dbname=..." migrate
 *
 * Its parts: system.h, app.h (connection, statements, output), verbs.h, work.h, bench.h, doctor.h,
 * replay.h (story.h), look.h (what top and web show), top.h (screen.h), web.h (html.h, pages.h,
 * graph.h, jobs.h).
 */
#define JOBQ_STATIC
#include "jobq_pg.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "system.h"
#include "app.h"
#include "look.h"
#include "verbs.h"
#include "bench.h"
#include "doctor.h"
#include "replay.h"

/* The keys of top, for its help and for help top. */
static const char top_keys[] =
    "    Up, Down, j, k      select a row\n"
    "    PgUp, PgDn, g, G    a page, or to the first or last row; also Home, End\n"
    "    Tab, Shift-Tab      the next section, or the one before\n"
    "    Enter               only this section; again, or Esc: all\n"
    "    s                   queues by name, or by trouble\n"
    "    p                   pause the queue or schedule, or resume it\n"
    "    r                   revive the failed job, or those of the flow\n"
    "    c                   cancel the running job or the flow; asks first\n"
    "    /                   show only rows that contain a text; Esc: all again\n"
    "    ?                   help\n"
    "    q                   quit\n";

#if !defined JOBQ_TOP || !defined JOBQ_WEB || defined _WIN32
/* A verb whose part this program was built without. */
static int absent(app *a)
{
    return app_say(APP_NO, "this program was built without %s: see the head of jobq.c",
                   a->verb->name);
}
#endif

#ifndef _WIN32
#include "work.h"
#else
#define do_work absent
#endif
#ifdef JOBQ_TOP
#include "top.h"
#else
#define top absent
#endif
#ifdef JOBQ_WEB
#include "web.h"
#else
#define web absent
#endif

static int help(app *a);
static int completion(app *a);
static int complete(app *a);

#define QUEUE {"queue", "QUEUE", "", "text"}
#define KIND {"kind", "KIND", "", "text"}
#define LIMIT {"limit", "N", "default 20", app_positive}
#define DRY {"dry-run", NULL, "only tell how many it would change", NULL}
#define FILTERS                                                                                    \
    {"queue", "QUEUE", "instead of ids: all jobs of this queue that match", "text"}, KIND,         \
    {"older", "INTERVAL", "enqueued, or ended, longer ago: '1 hour'", "interval"},                 \
    {"tags", "JSON", "contained in their headers", "jsonb"},                                       \
    {"at-most", "N", "in one step; otherwise all, 1000 at a time, each step committed",            \
     "integer"}, DRY
#define LETTERS                                                                                    \
    {"partition", "N", "", "integer"}, {"type", "TYPE", "", "text"},                               \
    {"at-most", "N", "", "integer"}
#define STATES "ready running waiting succeeded failed cancelled"

/* What a verb would change. */
#define DRY_OF(view, at, state)                                                                    \
    "(SELECT FROM jobq." view " WHERE queue = :queue AND " state                                   \
    " AND (:kind::text IS NULL OR kind = :kind) AND (:older::interval IS NULL OR " at              \
    " < now() - :older::interval) AND (:tags::jsonb IS NULL OR headers @> :tags::jsonb)"           \
    " LIMIT :at-most::bigint)"
#define DRY_READY "SELECT count(*) FROM " DRY_OF("live_jobs", "enqueued_at", "state = 'ready'")    \
    " AS d"
#define DRY_LETTERS                                                                                \
    "SELECT count(*) FROM (SELECT FROM jobq.dead_letters WHERE queue = $1 AND status = 'pending'"  \
    " AND (:partition::integer IS NULL OR partition = :partition::integer)"                        \
    " AND (:type::text IS NULL OR type = :type) LIMIT :at-most::bigint) AS d"

/* Numbers that may be estimates, or lower bounds. */
#define ABOUT(n)                                                                                   \
    "lpad(CASE WHEN exact OR " n " < 10000 THEN " n "::text WHEN " n " = 10000 THEN '>= 10000' "   \
    "ELSE '~ ' || " n "::text END, 9) AS " n
#define LEAST(n) "lpad(CASE WHEN " n " < 10000 THEN '' ELSE '>= ' END || " n "::text, 9) AS " n

/* A verb of two words follows that of its first word. */
static const app_verb verbs[] = {
    {"migrate", "", "install or upgrade the schema", 0, 0, do_migrate,
     .options = {{"check", NULL, "only tell whether the schema is of this program's version", NULL},
                 {"print", NULL, "only print the SQL that is missing", NULL}}},
    {"enqueue", "QUEUE KIND [PAYLOAD | -]", "enqueue a job; -: its payload is on standard input",
     2, 3, app_run, "SELECT id, existed FROM jobq.enqueue_or_get($1, $2, $3...)",
     .options = {{"delay", "INTERVAL", "not before now plus this", "interval"},
                 {"run-at", "TIME", "not before", "timestamptz"},
                 {"priority", "N", "-9 to 9, smaller first", "integer"},
                 {"key", "KEY", "one job for each queue and key", "text"},
                 {"on-known", "WHAT", "if the key is known: leave, replace, merge ...", "text"},
                 {"unique-for", "WHAT", "how long the key is known", "text"},
                 {"line", "LINE", "such as a tenant", "text"},
                 {"stages", "N", "", "integer"}, {"max-attempts", "N", "", "integer"},
                 {"timeout", "INTERVAL", "of an attempt", "interval"},
                 {"expires", "INTERVAL", "it ends unrun if it has not begun by then", "interval"},
                 {"headers", "JSON", "an object: tags", "jsonb"},
                 {"flow", "ID", "to which it belongs", "bigint"},
                 {"name", "NAME", "in its flow", "text"},
                 {"after", "{ID,...}", "it waits for these jobs", "bigint[]"},
                 {"after-names", "{NAME,...}", "and for these of its flow", "text[]"},
                 {"after-flow", "ID", "and for this flow", "bigint"},
                 {"on-end", "END", "success, failure or any of them", "text",
                  "success failure any"}}, .makes = true},
    {"list", "", "list jobs, the newest first", 0, 0, do_list,
     "SELECT id, queue, kind, state, priority, stage, attempt, enqueued_at, run_at, finished_at,"
     " key, line, errors -> -1 ->> 'error' AS error FROM jobq.jobs"
     " WHERE (:queue::text IS NULL OR queue = :queue) AND (:kind::text IS NULL OR kind = :kind)"
     " AND (:state::text IS NULL OR state = :state) AND (:key::text IS NULL OR key = :key)"
     " AND (:line::text IS NULL OR line = :line)"
     " AND (:older::interval IS NULL OR enqueued_at < now() - :older::interval)"
     " AND (:newer::interval IS NULL OR enqueued_at >= now() - :newer::interval)"
     " ORDER BY id DESC LIMIT coalesce(:limit::bigint, 20)",
     .options = {QUEUE, KIND,
                 {"state", "STATE", "ready, running, waiting, succeeded, failed, cancelled", NULL,
                  STATES},
                 {"key", "KEY", "", NULL}, {"line", "LINE", "", NULL},
                 {"older", "INTERVAL", "enqueued longer ago: '1 hour'", NULL},
                 {"newer", "INTERVAL", "enqueued since", NULL}, LIMIT}},
    {"show", "ID", "show a job, why it does not run, its flow, edges and steps", 1, 1, do_show},
    {"revive", "ID... | --queue QUEUE", "run failed jobs again", 0, INT_MAX, do_change,
     "SELECT * FROM jobq.revive(", "revived", .options = {FILTERS},
     .dry = "SELECT count(*) FROM " DRY_OF("failures", "failed_at", "true") " AS d"},
    {"cancel", "ID... | --queue QUEUE", "cancel ready jobs, and ask running ones to stop", 0,
     INT_MAX, do_change, "SELECT * FROM jobq.cancel(", "cancelled",
     .options = {FILTERS, {"state", "STATE", "only ready or only running ones", "text",
                           "ready running"}},
     .dry = "SELECT count(*) FROM " DRY_OF("live_jobs", "enqueued_at", "state <> 'waiting' "
            "AND (:state::text IS NULL OR state = :state)") " AS d"},
    {"delete", "ID... | --queue QUEUE --state STATE", "delete ready or ended jobs", 0, INT_MAX,
     do_change, "SELECT * FROM jobq.delete(", "deleted",
     .options = {FILTERS, {"state", "STATE", "ready, failed, succeeded, cancelled", "text",
                           "ready failed succeeded cancelled"}},
     .dry = "SELECT count(*) FROM (" DRY_OF("live_jobs", "enqueued_at", "state = 'ready' AND "
            "state = :state") " UNION ALL " DRY_OF("failures", "failed_at", "'failed' = :state")
            " UNION ALL " DRY_OF("past_jobs", "finished_at", "state = :state") ") AS d"},
    {"reschedule", "ID... | --queue QUEUE", "change when ready jobs run", 0, INT_MAX, do_change,
     "SELECT * FROM jobq.reschedule(", "rescheduled",
     .options = {FILTERS, {"run-at", "TIME", "not before; default now", "timestamptz"}},
     .dry = DRY_READY},
    {"prioritize", "ID... | --queue QUEUE", "change the priority of ready jobs", 0, INT_MAX,
     do_change, "SELECT * FROM jobq.prioritize(", "prioritized",
     .options = {FILTERS, {"priority", "N", "-9 to 9, smaller first", "integer"}},
     .dry = DRY_READY},
    {"move", "ID... | --queue QUEUE", "move ready jobs to another queue", 0, INT_MAX, do_change,
     "SELECT * FROM jobq.move(", "moved",
     .options = {FILTERS, {"target", "QUEUE", "", "text"}}, .dry = DRY_READY},
    {"signal", "NAME [PAYLOAD | -]", "send a signal to the jobs that wait for it, now or later",
     1, 2, app_run, "SELECT jobq.signal($1, $2) AS first"},
    {"pause", "QUEUE", "stop starting jobs of a queue, or of a kind or line of it", 1, 1, do_pause,
     "SELECT 'paused' AS answer FROM jobq.pause($1, :kind)",
     .options = {KIND, {"line", "LINE", "", NULL}}},
    {"resume", "QUEUE", "end a pause", 1, 1, do_pause,
     "SELECT 'resumed' AS answer FROM jobq.resume($1, :kind)",
     .options = {KIND, {"line", "LINE", "", NULL}}},
    {"queues", "", "queues and how many jobs they have: ~ an estimate, >= at least", 0, 0, do_look,
     "SELECT queue, CASE WHEN paused THEN 'paused' END AS state, " ABOUT("ready") ", running, "
     ABOUT("scheduled") ", " ABOUT("parked") ", " LEAST("suspects") ", " LEAST("failed") ", "
     LEAST("failed_1h") ", expired, date_trunc('second', late) AS late, done_per_s, workers"
     " FROM jobq.queues ORDER BY queue"},
    {"workers", "", "workers that live, and those that died in the last day", 0, 0, do_look,
     "SELECT name, CASE WHEN alive THEN 'alive' ELSE 'dead' END AS state, running,"
     " date_trunc('second', longest) AS longest, beat_at, host, pid,"
     " array_to_string(queues, ' ') AS queues FROM jobq.workers ORDER BY alive DESC, name"},
    {"failures", "", "failed jobs, the newest first", 0, 0, app_run,
     "SELECT id, queue, kind, failed_at, attempt, error FROM jobq.failures"
     " WHERE " OF_QUEUE " AND " OF_KIND
     " AND (:newer::interval IS NULL OR failed_at >= now() - :newer::interval)"
     " ORDER BY id DESC LIMIT coalesce(:limit::bigint, 20)",
     .options = {QUEUE, KIND, {"newer", "INTERVAL", "failed since: '1 hour'", NULL}, LIMIT}},
    {"limits", "", "limits of queues and kinds, and how much of them is used", 0, 0, app_run,
     "SELECT queue, kind, running_max, held, wanted, rate, rate_burst, tokens FROM jobq.limits"
     " WHERE worker IS NULL ORDER BY queue, kind"},
    {"lines", "", "lines, the longest first", 0, 0, app_run,
     "SELECT queue, line, " LEAST("waiting") ", running, running_max, rate, weight,"
     " CASE WHEN paused THEN 'paused' WHEN hold_until IS NOT NULL THEN 'held' END AS state, next_at"
     " FROM jobq.lines l WHERE (:queue::text IS NULL OR queue = :queue)"
     " ORDER BY l.waiting DESC, queue, line LIMIT coalesce(:limit::bigint, 20)",
     .options = {QUEUE, LIMIT}},
    {"times", "", "how long jobs wait and run, the slowest kinds first", 0, 0, do_look,
     "SELECT queue, coalesce(kind, '(all)') AS kind, started, waiting_p50, waiting_p95,"
     " waiting_p99, running_p50, running_p95, running_p99, succeeded, retried, failed"
     " FROM jobq.times"},
    {"audit", "", "what operators did, the latest first", 0, 0, app_run,
     "SELECT id, at, role, application, verb, jobs, arguments FROM jobq.operator_log"
     " ORDER BY id DESC LIMIT coalesce(:limit::bigint, 20)", .options = {LIMIT}},
    {"metrics", "", "the text that Prometheus reads", 0, 0, do_metrics},
    {"queue set", "QUEUE", "make a queue, or change its policy or that of a kind", 1, 1, app_run,
     "SELECT 'set' AS answer FROM jobq.queue_set($1...)",
     .options = {{"kind", "KIND", "what follows is of this kind", "text"},
                 {"max-attempts", "N", "", "integer"}, {"max-crashes", "N", "", "integer"},
                 {"snoozes-max", "N", "of a stage; then the job fails; 0: no limit", "integer"},
                 {"attempts-span-stages", "BOOL", "whether attempts count over all stages",
                  "boolean", "true false"},
                 {"backoff", "CURVE", "", "text", "exponential linear quartic constant"},
                 {"backoff-base", "INTERVAL", "", "interval"},
                 {"backoff-cap", "INTERVAL", "", "interval"},
                 {"backoff-floor", "INTERVAL", "", "interval"},
                 {"backoff-jitter", "SHARE", "0 to 1", "numeric"},
                 {"timeout", "INTERVAL", "of an attempt; 0: none", "interval"},
                 {"history", "BOOL", "whether ended jobs are kept", "boolean", "true false"},
                 {"retention", "CLASS", "for how long", "text", "short medium long"},
                 {"failed-keep", "INTERVAL", "", "interval"},
                 {"key-keep", "INTERVAL", "", "interval"},
                 {"running-max", "N", "jobs at once, over all workers; 0: no limit", "integer"},
                 {"rate", "RATE", "such as 100/min; 0: none", "text"},
                 {"rate-burst", "N", "", "integer"}, {"payload-max", "BYTES", "", "integer"},
                 {"message-max", "BYTES", "", "integer"},
                 {"line-running-max", "N", "of each of its lines", "integer"},
                 {"line-strict", "BOOL", "", "boolean", "true false"},
                 {"line-rate", "RATE", "", "text"}, {"line-rate-burst", "N", "", "integer"},
                 {"line-waiting-max", "N", "", "integer"},
                 {"ageing", "BOOL", "", "boolean", "true false"},
                 {"kinds", "{KIND,...}", "to make", "text[]"},
                 {"reset", NULL, "first drop all that the kind has of its own", "boolean"}},
     .makes = true},
    {"line set", "QUEUE LINE", "change what a line has of its own", 2, 2, app_run,
     "SELECT 'set' AS answer FROM jobq.line_set($1, $2...)",
     .options = {{"running-max", "N", "jobs at once; 0: no limit", "integer"},
                 {"weight", "N", "jobs that it gives while another line gives one", "integer"},
                 {"strict", "BOOL", "", "boolean", "true false"},
                 {"rate", "RATE", "such as 100/min; 0: none", "text"},
                 {"rate-burst", "N", "", "integer"},
                 {"paused", "BOOL", "", "boolean", "true false"},
                 {"hold", "INTERVAL", "how long nothing of it is claimed", "interval"},
                 {"reset", NULL, "first drop all that it has of its own", "boolean"}}},
    {"drain", "QUEUE", "wait until no job is due or running", 1, 1, do_drain,
     .options = {{"ended", NULL, "and none is scheduled for later", NULL},
                 {"timeout", "SECONDS", "then exit code 1", NULL}}},
    {"flow", "", "flows, the newest first", 0, 0, app_run,
     "SELECT id, name, state, jobs, succeeded, failed, cancelled, on_failure, open, created_at,"
     " ended_at FROM jobq.flows WHERE (:state::text IS NULL OR state = :state) ORDER BY id DESC"
     " LIMIT coalesce(:limit::bigint, 20)",
     .options = {{"state", "STATE", "running, held, cancelled, ended", NULL,
                  "running held cancelled ended"}, LIMIT}},
    {"flow show", "ID", "its jobs, each below those that it waits for", 1, 1, do_flow_show},
    {"flow cancel", "ID", "cancel its jobs that have not ended", 1, 1, do_repeat,
     "SELECT jobq.flow_cancel($1)", "cancelled", .options = {DRY},
     .dry = "SELECT jobs - succeeded - failed - cancelled FROM jobq.flows WHERE id = $1::bigint"},
    {"flow revive", "ID", "run its failed jobs again", 1, 1, do_repeat,
     "SELECT jobq.flow_revive($1)", "revived", .options = {DRY},
     .dry = "SELECT failed FROM jobq.flows WHERE id = $1::bigint"},
    {"flow close", "ID", "it ends when the jobs that it has now have ended", 1, 1, app_run,
     "SELECT 'closed' AS answer FROM jobq.flow_close($1)"},
    {"schedule", "", "periodic jobs", 0, 0, app_run,
     "SELECT name, queue, kind, calendar, zone, next_at, last_at, last_state, why"
     " FROM jobq.schedules ORDER BY name"},
    {"schedule set", "NAME QUEUE [KIND]", "make or change one; without a kind: of messages", 2, 3,
     app_run, "SELECT jobq.schedule($1, $2, $3...) AS next_at",
     .options = {{"cron", "CRON", "", "text"}, {"every", "INTERVAL", "", "interval"},
                 {"zone", "ZONE", "", "text"}, {"payload", "JSON", "", "jsonb"},
                 {"headers", "JSON", "", "jsonb"}, {"priority", "N", "", "integer"},
                 {"missed", "WHAT", "last, skip or all", "text", "last skip all"},
                 {"missed-within", "INTERVAL", "", "interval"},
                 {"overlap", "WHAT", "allow, skip, wait or cancel", "text",
                  "allow skip wait cancel"},
                 {"spread", "INTERVAL", "", "interval"},
                 {"expires", "INTERVAL", "of its jobs, from the tick", "interval"},
                 {"starts-at", "TIME", "", "timestamptz"}, {"ends-at", "TIME", "", "timestamptz"},
                 {"partition", "N", "of the queue's outbox, without a kind", "integer"},
                 {"type", "TYPE", "of the messages", "text"}}, .makes = true},
    {"schedule drop", "SCHEDULE", "delete a schedule; its jobs stay", 1, 1, app_run,
     "SELECT jobq.schedule_drop($1) AS dropped"},
    {"schedule pause", "SCHEDULE", "stop firing it", 1, 1, app_run,
     "SELECT 'paused' AS answer FROM jobq.schedule_pause($1)"},
    {"schedule resume", "SCHEDULE", "end a pause", 1, 1, app_run,
     "SELECT jobq.schedule_resume($1) AS next_at"},
    {"schedule run", "SCHEDULE", "run it once, now", 1, 1, do_schedule_run},
    {"schedule preview", "[CRON]", "the next times", 0, 1, app_run,
     "SELECT local, at FROM jobq.schedule_preview($1...)",
     .options = {{"zone", "ZONE", "", "text"}, {"count", "N", "", "integer"},
                 {"after", "TIME", "", "timestamptz"}, {"every", "INTERVAL", "", "interval"}}},
    {"subscriptions", "", "readers of other queues' messages, and of topics", 0, 0, app_run,
     "SELECT name, source, queue, kind, types, waiting, owner, created_at FROM jobq.subscriptions"
     " ORDER BY source, name"},
    {"subscribe", "NAME SOURCE QUEUE [KIND]", "copy its messages to another queue", 3, 4, app_run,
     "SELECT 'subscribed' AS answer FROM jobq.subscribe($1, $2, $3, $4...)",
     .options = {{"types", "{TYPE,...}", "order.* takes all that begin so", "text[]"}},
     .makes = true},
    {"unsubscribe", "SUBSCRIPTION", "end it; what was copied is still delivered", 1, 1, app_run,
     "SELECT jobq.unsubscribe($1...) AS unsubscribed",
     .options = {{"drop", NULL, "delete what was copied", "boolean"}}},
    {"outbox", "", "partitions and their lag", 0, 0, app_run,
     "SELECT queue, partition, lag, age, mode, attempts, holder, dead_letters, error"
     " FROM jobq.outbox ORDER BY 1, 2"},
    {"outbox list", "[QUEUE]", "dead letters, the newest first", 0, 1, app_run,
     "SELECT id, queue, partition, seq, status, attempts, failed_at, type, error"
     " FROM jobq.dead_letters WHERE ($1::text IS NULL OR queue = $1)"
     " AND (:partition::integer IS NULL OR partition = :partition::integer)"
     " AND (:type::text IS NULL OR type = :type) ORDER BY id DESC"
     " LIMIT coalesce(:at-most::integer, 20)", .options = {LETTERS}},
    {"outbox replay", "QUEUE", "enqueue dead letters again, at the end of their partitions", 1, 1,
     app_run, LOOK_REPLAY("$1", "queue => $1, partition => :partition::integer, type => :type, "
                          "at_most => coalesce(:at-most::integer, 100)"),
     "replayed", .options = {LETTERS, DRY}, .dry = DRY_LETTERS},
    {"outbox discard", "QUEUE", "give dead letters up for good", 1, 1, app_run,
     "SELECT jobq.dead_letter_discard($1...) AS discarded", "discarded",
     .options = {LETTERS, DRY}, .dry = DRY_LETTERS},
    {"export", "", "write ended jobs as CSV, or with --json as JSON lines", 0, 0, do_export,
     .options = {QUEUE, KIND,
                 {"state", "STATE", "succeeded, failed, cancelled", NULL,
                  "succeeded failed cancelled"},
                 {"since", "TIME", "ended at or after", NULL},
                 {"until", "TIME", "ended before", NULL},
                 {"parts", "FOLDER", "instead, each finished part of history that was not\n"
                  "                        exported yet, to a file of its own; run it daily. See\n"
                  "                        jobq.export_set", NULL},
                 {"all", NULL, "instead, all rows of all tables, with live work, as JSON lines:\n"
                  "                        {\"table\": NAME, \"row\": {...}}; sql/001_tables.sql\n"
                  "                        says what they mean. Not those of processes, which\n"
                  "                        mean nothing elsewhere: worker, claim, permit,\n"
                  "                        sleeper, waiter, nudge, tally, ring", NULL}}},
    {"work", "--exec COMMAND --queue QUEUE", "run a command for each job", 0, 0, do_work,
     .options = {{"exec", "COMMAND", "for sh -c: gets the payload on standard input, and JOBQ_ID,\n"
                                     "                        JOBQ_QUEUE, JOBQ_KIND, JOBQ_ATTEMPT",
                  NULL},
                 QUEUE, {"kind", "KIND", "default: all that the queue has when it starts", NULL},
                 {"threads", "N", "commands at once; default 4", app_positive},
                 {"grace", "SECONDS", "for running commands after SIGTERM; default 30, then\n"
                  "                        the job is given back", app_positive},
                 {"memory", "MIB", "of addresses, for each process of a command", app_positive},
                 {"cpu", "SECONDS", "of processor time, for each process of a command",
                  app_positive},
                 {"file-size", "MIB", "of each file that it writes", app_positive},
                 {"wall", "SECONDS", "for the whole command, by the clock", app_positive},
                 {"until-empty", NULL, "end when no job is due", NULL},
                 {"record", "FILE", "record what the worker does, for jobq replay", NULL}},
     .makes = true,
     .more =
     "    Exit code 0: success; standard output, up to 1 MiB, is the result if it is JSON, and is\n"
     "    dropped otherwise. 75: retry; also 126 and 127 (the shell found no command) and 128 to\n"
     "    192 (a signal killed it). Any other: the job fails. The last 4096 bytes of standard\n"
     "    error are the error.\n"
     "    A job's time limit kills the command's whole process group; what a command leaves in\n"
     "    its group ends with it. A cancelled job's command gets SIGTERM, after 5 s SIGKILL.\n"
     "    A command that is ended by --cpu, --file-size or --wall is tried again; the error's\n"
     "    last line names the limit. Over --memory it gets none (malloc returns NULL), and may\n"
     "    say so; if a signal kills it, the last line names that limit, too.\n"},
    {"bench", "", "measure this server: enqueue and work jobs that do nothing", 0, 0, do_bench,
     .options = {{"jobs", "N", "default 10000", app_positive},
                 {"threads", "N", "default 4", app_positive}},
     .more = "    It makes a schema of its own, and drops it.\n"},
    {"doctor", "", "find what is wrong, and say what to run", 0, 0, doctor,
     .more = "    Exit code 1: it found something. Connect as the owner of the schema, or some is "
             "not\n    checked.\n"},
    {"replay", "FILE", "tell what a worker did, from its recording, and run it again", 1, 1,
     do_replay,
     .options = {{"story", NULL, "tell each call of its loop", NULL},
                 {"why", NULL, "the same, and why each wait ends when it does", NULL},
                 {"job", "ID", "only of this job", app_positive},
                 {"only", "KIND", "only requests of this kind (claim, wait ...) or entries (tell, "
                                  "take ...)", NULL},
                 {"verify", NULL, "only look whether all is as recorded (default)", NULL},
                 {"laws", NULL, "look also at the laws that one loop shows", NULL},
                 {"stop", "N", "stop before entry N: gdb --args jobq replay FILE --stop N",
                  app_positive},
                 {"back", "N", "the loop before entry N", app_positive},
                 {"dump", "N", "the loop after entry N", app_positive},
                 {"export", "NEW", "a copy without names of queues, kinds and hosts", NULL}},
     .more = "    Exit code 1: this build does not do what was recorded, or a law is broken.\n",
     .offline = true},
    {"top", "", "watch queues, workers and jobs in the terminal", 0, 0, top, .more = top_keys},
    {"web", "", "serve a dashboard to browsers; the rights are those of the connection's role",
     0, 0, web,
     .options = {{"listen", "ADDRESS", "HOST:PORT, in digits; default 127.0.0.1:8080", NULL},
                 {"basic", "FILE", "people log in; lines of user:password", NULL},
                 {"user-header", "NAME", "a proxy in front has logged them in, and says who it is; "
                                         "only it may\n                        reach this port",
                  NULL},
                 {"name", "TEXT", "of this instance, on each page; default: its database", NULL},
                 {"color", "COLOR", "of the head of each page: red, amber, green, blue, violet",
                  NULL, "red amber green blue violet"}}, .offline = true},
    {"completion", "SHELL", "print a completion script, for bash, zsh or fish", 1, 1, completion,
     .more = "    bash and zsh: source <(jobq completion bash); fish: jobq completion fish | "
             "source\n", .offline = true},
    {"complete", "[WORD...]", "what may come next, for the completion", 0, INT_MAX, complete,
     .offline = true},
    {"help", "[VERB]", "tell about a verb", 0, 2, help,
     .options = {{"man", NULL, "as a page of the manual, of all verbs", NULL}}, .offline = true},
};
enum { VERBS = sizeof verbs / sizeof verbs[0] };

/* Whether a verb's first word is this one. */
static bool begins(const app_verb *verb, const char *word)
{
    size_t len = strcspn(verb->name, " ");

    return strlen(word) == len && strncmp(verb->name, word, len) == 0;
}

/* Whether a verb is the first one with its first word. */
static bool leads(const app_verb *verb)
{
    size_t len = strcspn(verb->name, " ");

    return verb == verbs || strncmp(verb[-1].name, verb->name, len) != 0 ||
           strcspn(verb[-1].name, " ") != len;
}

/* The first words of the verbs, with a blank after each. */
static char *first_words(void)
{
    app_text text = {0};
    int i;

    for (i = 0; i < VERBS; i++)
        if (leads(&verbs[i]))
            app_format(&text, "%.*s ", (int)strcspn(verbs[i].name, " "), verbs[i].name);
    return text.ptr;
}

/* The verb that arguments begin with, and how many words it has. "list" is the verb of one word,
 * if there is no other. NULL: there is none. */
static const app_verb *seek_verb(int argc, char **argv, int *words)
{
    const app_verb *v;
    app_text two = {0};

    app_format(&two, "%s %s", argv[0], argc > 1 ? argv[1] : "");
    for (v = verbs, *words = 2; v < verbs + VERBS; v++)
        if (strcmp(v->name, two.ptr) == 0) return v;
    for (v = verbs; v < verbs + VERBS && strcmp(v->name, argv[0]) != 0; v++) {}
    if (v == verbs + VERBS) return NULL;
    if (argc == 1 || strcmp(argv[1], "list") != 0 || v + 1 == verbs + VERBS ||
        !begins(v + 1, argv[0])) *words = 1;
    return v;
}

static const app_verb *find_verb(int argc, char **argv, int *words)
{
    const app_verb *v = seek_verb(argc, argv, words);
    char *closest = v == NULL ? app_nearest(argv[0], first_words()) : NULL;
    int i;

    for (i = 0; v == NULL && i < VERBS; i++) {
        if (begins(&verbs[i], argv[0]))
            return app_say(0, "%s needs another word: jobq help %s", argv[0], argv[0]), v;
    }
    if (v == NULL && closest != NULL)
        app_say(0, "there is no verb %s: did you mean %s? jobq help lists them", argv[0], closest);
    else if (v == NULL) app_say(0, "there is no verb %s: jobq help lists them", argv[0]);
    return v;
}

static void help_all(FILE *out)
{
    int i;

    fprintf(out, "jobq [-d CONNINFO] [--schema NAME] [--json] [--wide] VERB ...\n\n");
    for (i = 0; i < VERBS; i++) {
        if (leads(&verbs[i]) && strcmp(verbs[i].name, "complete") != 0)
            fprintf(out, "  %-11s %s\n", verbs[i].name, verbs[i].help);
    }
    fprintf(out,
            "\n-d: the name of a database, a conninfo or a URL. For what it leaves out, libpq's\n"
            "environment and service files apply: PGHOST, PGDATABASE, PGSERVICE ...\n"
            "--json: JSON lines. --wide: tables in full, also in a terminal. These may stand\n"
            "anywhere. jobq --version. jobq help VERB tells more.\n"
            "Exit code: 0 done; 1 refused, or something is broken; 2 wrong usage; 3 no server.\n");
}

/* Writes a text for a page of the manual: blanks and ends of lines are one blank. */
static void man_text(const char *text)
{
    bool begins_line = true;

    for (; *text != '\0'; text++) {
        if (*text == ' ' || *text == '\n') {
            while (text[1] == ' ' || text[1] == '\n') text++;
            if (!begins_line) putchar(' ');
            continue;
        }
        if (begins_line && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
        if (*text == '\\') fputs("\\e", stdout);
        else if (*text == '-') fputs("\\-", stdout);
        else putchar(*text);
        begins_line = false;
    }
    putchar('\n');
}

/* A page of the manual, from the same table as help. */
static int help_man(void)
{
    int i;

    printf(".TH JOBQ 1 \"\" \"jobq %s\"\n.SH NAME\njobq \\- queues of jobs and messages in "
           "Postgres\n.SH SYNOPSIS\n.B jobq\n[\\-d \\fICONNINFO\\fR] [\\-\\-schema \\fINAME"
           "\\fR] [\\-\\-json] [\\-\\-wide] \\fIVERB\\fR ...\n.SH OPTIONS\n"
           ".TP\n.B \\-d CONNINFO\nThe name of a database, a conninfo or a URL. For what it leaves "
           "out, libpq's environment and service files apply.\n.TP\n.B \\-\\-schema NAME\n"
           "The schema; jobq if it is not given.\n.TP\n.B \\-\\-json\nWrites JSON lines.\n"
           ".TP\n.B \\-\\-wide\nWrites tables in full, also in a terminal.\n.SH VERBS\n",
           JOBQ_VERSION);
    for (i = 0; i < VERBS; i++) {
        const app_option *o = verbs[i].options;

        printf(".SS \"%s %s\"\n", verbs[i].name, verbs[i].arguments);
        man_text(verbs[i].help);
        for (; o < verbs[i].options + APP_OPTIONS && o->name != NULL; o++) {
            printf(".TP\n.B \\-\\-%s%s%s\n", o->name, o->takes == NULL ? "" : " ",
                   o->takes == NULL ? "" : o->takes);
            man_text(o->help);
        }
        if (verbs[i].more != NULL) printf(".PP\n"), man_text(verbs[i].more);
    }
    printf(".SH EXIT STATUS\n0 done; 1 refused, or something is broken; 2 wrong usage; 3 no "
           "server.\n");
    return APP_OK;
}

/* All verbs whose first word this is. */
static int help(app *a)
{
    int i, words;

    if (app_value(a, "man") != NULL) return help_man();
    for (i = 0; a->argc > 0 && i < VERBS && !begins(&verbs[i], a->argv[0]); i++) {}
    if (a->argc > 0 && i == VERBS && find_verb(a->argc, a->argv, &words) == NULL) return APP_USAGE;
    if (a->argc == 0) help_all(stdout);
    for (i = 0; a->argc > 0 && i < VERBS; i++) {
        const app_option *o = verbs[i].options;
        char text[64];

        if (!begins(&verbs[i], a->argv[0])) continue;
        printf("jobq %s %s\n    %s\n", verbs[i].name, verbs[i].arguments, verbs[i].help);
        for (; o < verbs[i].options + APP_OPTIONS && o->name != NULL; o++) {
            snprintf(text, sizeof text, "%s %s", o->name, o->takes == NULL ? "" : o->takes);
            printf(o->help[0] == '\0' ? "    --%s%s\n" : "    --%-17s %s\n", text, o->help);
        }
        if (verbs[i].more != NULL) printf("%s", verbs[i].more);
    }
    return APP_OK;
}

/* psql's rule: a text without = that is no URL is the name of a database. */
static const char *conninfo_from(const char *text)
{
    app_text out = {0};

    if (text[0] == '\0' || strchr(text, '=') || strstr(text, "://")) return text;
    app_put(&out, "dbname='");
    for (; *text != '\0'; text++) {
        if (*text == '\'' || *text == '\\') app_put(&out, "\\");
        app_add(&out, text, 1);
    }
    app_put(&out, "'");
    return out.ptr;
}

/* ---- completion ------------------------------------------------------------------------------ */

/* The program itself knows what may come next, so the scripts only ask it. */
static int completion(app *a)
{
    static const char *const scripts[][2] = {
        {"bash", "_jobq() {\n    mapfile -t COMPREPLY < <(\"${COMP_WORDS[0]}\" complete "
                 "\"${COMP_WORDS[@]:1:COMP_CWORD}\" 2>/dev/null)\n}\n"
                 "complete -o default -F _jobq jobq\n"},
        {"zsh", "#compdef jobq\n_jobq() {\n    local -a found\n"
                "    found=(${(f)\"$(${words[1]} complete \"${(@)words[2,CURRENT]}\" "
                "2>/dev/null)\"})\n    compadd -a found\n}\ncompdef _jobq jobq\n"},
        {"fish", "function _jobq\n    set -l words (commandline -opc)\n"
                 "    $words[1] complete $words[2..] (commandline -ct) 2>/dev/null\nend\n"
                 "complete -c jobq -f -a '(_jobq)'\n"}};
    size_t i;

    for (i = 0; i < sizeof scripts / sizeof scripts[0]; i++)
        if (strcmp(a->argv[0], scripts[i][0]) == 0) return puts(scripts[i][1]), APP_OK;
    return app_unknown(APP_USAGE, "completion for", a->argv[0], "bash zsh fish");
}

/* Writes those of these names, with blanks between them, that begin like a word. */
static void complete_from(const char *names, const char *word)
{
    for (; names != NULL && *names != '\0'; names += strcspn(names, " "), names += *names == ' ') {
        size_t len = strcspn(names, " ");

        if (len > 0 && strncmp(names, word, strlen(word)) == 0)
            printf("%.*s\n", (int)len, names);
    }
}

/* The names that the database has: none if it does not answer at once. */
static void complete_names(app *a, const char *what, const char *queue, const char *word)
{
    if (strcmp(what, "QUEUE") != 0 && strcmp(what, "KIND") != 0 && strcmp(what, "SCHEDULE") != 0 &&
        strcmp(what, "SUBSCRIPTION") != 0)
        return;
    a->conninfo = conninfo_from(a->conninfo);
    if (app_connect(a, "jobq", "2")) complete_from(app_names(a, what, queue), word);
}

/* The options of a verb, and those of all. */
static void complete_options(const app_verb *verb, const char *word)
{
    const app_option *o = verb == NULL ? NULL : verb->options;
    app_text names = {0};

    app_put(&names, "-d --schema --json --wide --help --version");
    for (; o != NULL && o < verb->options + APP_OPTIONS && o->name != NULL; o++)
        app_format(&names, " --%s", o->name);
    complete_from(names.ptr, word);
}

/* The second words of verbs of two, then the name that the verb takes in this place. */
static void complete_word(app *a, const app_verb *verb, int place, const char *queue,
                          const char *first, const char *word)
{
    const char *spec = verb == NULL ? "" : verb->arguments;
    char what[32];
    int i;

    for (i = 0; place == 0 && i < VERBS; i++)
        if (begins(&verbs[i], first) && strchr(verbs[i].name, ' ') &&
            (verb == NULL || strchr(verb->name, ' ') == NULL))
            complete_from(strchr(verbs[i].name, ' ') + 1, word);
    for (; place > 0 && *spec != '\0'; place--) spec += strcspn(spec, " "), spec += *spec == ' ';
    spec += *spec == '[';
    snprintf(what, sizeof what, "%.*s", (int)strspn(spec, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"), spec);
    complete_names(a, what, queue, word);
}

/* The words so far, the last of which is to be completed. */
static int complete(app *a)
{
    const char *word = a->argc > 0 ? a->argv[a->argc - 1] : "", *queue = NULL;
    const app_option *o = NULL; /* that waits for its value */
    const app_verb *verb = NULL;
    char *plain[64] = {NULL};
    int i, j, count = 0, words = 0;

    for (i = 0; i + 1 < a->argc; i++) {
        char *arg = a->argv[i];
        bool last = i + 2 == a->argc;

        if (strcmp(arg, "-d") == 0 || strcmp(arg, "--schema") == 0) {
            if (last) return APP_OK;
            *(arg[1] == 'd' ? &a->conninfo : &a->schema) = a->argv[++i];
        } else if (arg[0] == '-') {
            for (j = 0, o = NULL; verb != NULL && j < APP_OPTIONS && verb->options[j].name; j++)
                if (strcmp(verb->options[j].name, arg + strspn(arg, "-")) == 0)
                    o = &verb->options[j];
            if (o != NULL && o->takes == NULL) o = NULL;
            if (o != NULL && !last) {
                if (strcmp(o->name, "queue") == 0) queue = a->argv[i + 1];
                i++, o = NULL;
            }
        } else if (count < 64) {
            plain[count++] = arg;
            verb = seek_verb(count, plain, &words);
        }
    }
    if (o != NULL && o->values != NULL) complete_from(o->values, word);
    else if (o != NULL) complete_names(a, o->takes, queue != NULL ? queue : plain[words], word);
    else if (word[0] == '-') complete_options(verb, word);
    else if (count == 0) complete_from(first_words(), word);
    else complete_word(a, verb, verb == NULL ? 0 : count - words, queue, plain[0], word);
    return APP_OK;
}

/* ---- main ------------------------------------------------------------------------------------ */

/* The options of every verb, wherever they stand before "--"; --help at the end of a verb's words
 * asks about it. What complete gets is left alone. Returns how many arguments are left. */
static int common_options(app *a, int argc, char **argv)
{
    int from, to = 0;
    bool all = true;

    for (from = 0; from < argc; from++) {
        const char *arg = argv[from];
        bool before = to == 0, last = from + 1 == argc && to <= 2;
        bool asks = strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;

        if (strcmp(arg, "--") == 0 || (before && strcmp(arg, "complete") == 0)) all = false;
        if (all && strcmp(arg, "--json") == 0) {
            a->json = true;
        } else if (all && strcmp(arg, "--wide") == 0) {
            a->wide = true;
        } else if (all && strcmp(arg, "-d") == 0) {
            if (++from == argc) return app_say(-1, "-d needs a value: jobq help");
            a->conninfo = argv[from];
        } else if (all && strcmp(arg, "--schema") == 0) {
            if (++from == argc) return app_say(-1, "--schema needs a value: jobq help");
            a->schema = argv[from];
        } else if (all && before && strcmp(arg, "--version") == 0) {
            printf("jobq %s, schema %d\n", JOBQ_VERSION, jobq_pg__newest());
            exit(APP_OK);
        } else if (all && asks && (before || (last && argv[to - 1][0] != '-'))) {
            memmove(argv + 1, argv, (size_t)to++ * sizeof *argv);
            argv[0] = "help";
        } else if (before && arg[0] == '-') {
            return app_say(-1, "there is no option %s: jobq help", arg);
        } else {
            argv[to++] = argv[from];
        }
    }
    return to;
}

/* The verb, or what it would change. */
static int run_verb(app *a)
{
    if (a->verb->offline) return a->verb->run(a);
    if (!app_connect(a, "jobq", NULL)) return app_say(APP_SERVER, "%s", PQerrorMessage(a->conn));
    if (!app_all_known(a)) return APP_USAGE;
    return a->verb->dry != NULL && app_value(a, "dry-run") != NULL ? app_dry(a) : a->verb->run(a);
}

int main(int argc, char **argv)
{
    app a = {.conninfo = "", .schema = "jobq"};
    int code, words;

    a.argc = common_options(&a, argc - 1, argv + 1);
    a.argv = argv + 1;
    if (a.argc == 0) help_all(stderr);
    a.verb = a.argc > 0 ? find_verb(a.argc, a.argv, &words) : NULL;
    if (a.verb == NULL) return APP_USAGE;
    a.argc -= words;
    a.argv += words;
    if (a.verb->run != complete && !app_options(&a)) return APP_USAGE;
    a.conninfo = conninfo_from(a.conninfo);
    code = run_verb(&a);
    PQfinish(a.conn);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == APP_OK)
        code = app_say(APP_NO, "cannot write: %s", strerror(errno));
    return code;
}
