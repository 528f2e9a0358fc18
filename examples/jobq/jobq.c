/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * jobq.c -- the program jobq: what operators do with queues, from a shell.
 *
 * Build   cc examples/jobq/jobq.c -I. -lpq -o jobq
 *         jobq top: also -DJOBQ_TOP -lncursesw; jobq web: also -DJOBQ_WEB -lmicrohttpd;
 *         make jobq builds it with all whose library is there
 * Run     jobq help; jobq -d "host=... dbname=..." migrate
 *
 * Its parts: app.h (connection, statements, output), verbs.h, work.h, doctor.h, look.h
 * (what top and web show), top.h (screen.h), web.h (html.h, pages.h, graph.h, jobs.h).
 */
#define JOBQ_STATIC
#include "jobq_pg.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "app.h"
#include "look.h"
#include "verbs.h"
#include "work.h"
#include "doctor.h"

/* The keys of top, for its help and for help top. */
static const char top_keys[] =
    "    Up, Down, j, k      select a row\n"
    "    Tab, Shift-Tab      the next section, or the one before\n"
    "    p                   pause the queue or schedule, or resume it\n"
    "    r                   revive the failed job, or those of the flow\n"
    "    c                   cancel the running job or the flow; asks first\n"
    "    /                   show only rows that contain a text; Esc: all again\n"
    "    ?                   help\n"
    "    q                   quit\n";

#if !defined JOBQ_TOP || !defined JOBQ_WEB
/* A verb whose part this program was built without. */
static int absent(app *a)
{
    return app_say(APP_NO, "this program was built without %s: see the head of jobq.c",
                   a->verb->name);
}
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

#define QUEUE {"queue", "QUEUE", "", "text"}
#define KIND {"kind", "KIND", "", "text"}
#define FILTERS                                                                                    \
    {"queue", "QUEUE", "instead of ids: all jobs of this queue that match", "text"}, KIND,         \
    {"older", "INTERVAL", "enqueued, or ended, longer ago: '1 hour'", "interval"},                 \
    {"tags", "JSON", "contained in their headers", "jsonb"},                                       \
    {"at-most", "N", "in one step; otherwise all, 1000 at a time, each step committed", "integer"}
#define LETTERS                                                                                    \
    {"partition", "N", "", "integer"}, {"type", "TYPE", "", "text"},                               \
    {"at-most", "N", "", "integer"}

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
                 {"headers", "JSON", "an object: tags", "jsonb"},
                 {"flow", "ID", "to which it belongs", "bigint"},
                 {"name", "NAME", "in its flow", "text"},
                 {"after", "{ID,...}", "it waits for these jobs", "bigint[]"},
                 {"after-names", "{NAME,...}", "and for these of its flow", "text[]"},
                 {"after-flow", "ID", "and for this flow", "bigint"},
                 {"on-end", "END", "success, failure or any of them", "text"}}},
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
                 {"state", "STATE", "ready, running, waiting, succeeded, failed, cancelled", NULL},
                 {"key", "KEY", "", NULL}, {"line", "LINE", "", NULL},
                 {"older", "INTERVAL", "enqueued longer ago: '1 hour'", NULL},
                 {"newer", "INTERVAL", "enqueued since", NULL},
                 {"limit", "N", "default 20", app_positive}}},
    {"show", "ID", "show a job, why it does not run, its flow, edges and steps", 1, 1, do_show},
    {"revive", "ID... | --queue QUEUE", "run failed jobs again", 0, INT_MAX, do_change,
     "SELECT * FROM jobq.revive(", "revived", .options = {FILTERS}},
    {"cancel", "ID... | --queue QUEUE", "cancel ready jobs, and ask running ones to stop", 0,
     INT_MAX, do_change, "SELECT * FROM jobq.cancel(", "cancelled",
     .options = {FILTERS, {"state", "STATE", "only ready or only running ones", "text"}}},
    {"delete", "ID... | --queue QUEUE --state STATE", "delete ready or ended jobs", 0, INT_MAX,
     do_change, "SELECT * FROM jobq.delete(", "deleted",
     .options = {FILTERS, {"state", "STATE", "ready, failed, succeeded, cancelled", "text"}}},
    {"reschedule", "ID... | --queue QUEUE", "change when ready jobs run", 0, INT_MAX, do_change,
     "SELECT * FROM jobq.reschedule(", "rescheduled",
     .options = {FILTERS, {"run-at", "TIME", "not before; default now", "timestamptz"}}},
    {"prioritize", "ID... | --queue QUEUE", "change the priority of ready jobs", 0, INT_MAX,
     do_change, "SELECT * FROM jobq.prioritize(", "prioritized",
     .options = {FILTERS, {"priority", "N", "-9 to 9, smaller first", "integer"}}},
    {"move", "ID... | --queue QUEUE", "move ready jobs to another queue", 0, INT_MAX, do_change,
     "SELECT * FROM jobq.move(", "moved", .options = {FILTERS, {"target", "QUEUE", "", "text"}}},
    {"signal", "NAME [PAYLOAD | -]", "send a signal to the jobs that wait for it, now or later",
     1, 2, app_run, "SELECT jobq.signal($1, $2) AS first"},
    {"pause", "QUEUE", "start no more jobs of a queue, or of a kind", 1, 1, app_run,
     "SELECT 'paused' AS answer FROM jobq.pause($1, :kind)", .options = {KIND}},
    {"resume", "QUEUE", "end a pause", 1, 1, app_run,
     "SELECT 'resumed' AS answer FROM jobq.resume($1, :kind)", .options = {KIND}},
    {"drain", "QUEUE", "wait until no job is due or running", 1, 1, do_drain,
     .options = {{"ended", NULL, "and none is scheduled for later", NULL},
                 {"timeout", "SECONDS", "then exit code 1", NULL}}},
    {"flow", "", "flows, the newest first", 0, 0, do_flow,
     "SELECT id, name, state, jobs, succeeded, failed, cancelled, on_failure, open, created_at,"
     " ended_at FROM jobq.flows WHERE (:state::text IS NULL OR state = :state) ORDER BY id DESC"
     " LIMIT coalesce(:limit::bigint, 20)",
     .options = {{"state", "STATE", "running, held, cancelled, ended", NULL},
                 {"limit", "N", "default 20", app_positive}}},
    {"flow show", "ID", "its jobs, each below those that it waits for", 1, 1, do_flow_show},
    {"flow cancel", "ID", "cancel its jobs that have not ended", 1, 1, do_repeat,
     "SELECT jobq.flow_cancel($1)", "cancelled"},
    {"flow revive", "ID", "run its failed jobs again", 1, 1, do_repeat,
     "SELECT jobq.flow_revive($1)", "revived"},
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
                 {"missed", "WHAT", "last, skip or all", "text"},
                 {"missed-within", "INTERVAL", "", "interval"},
                 {"overlap", "WHAT", "allow, skip, wait or cancel", "text"},
                 {"spread", "INTERVAL", "", "interval"}, {"starts-at", "TIME", "", "timestamptz"},
                 {"ends-at", "TIME", "", "timestamptz"},
                 {"partition", "N", "of the queue's outbox, without a kind", "integer"},
                 {"type", "TYPE", "of the messages", "text"}}},
    {"schedule drop", "NAME", "delete a schedule; its jobs stay", 1, 1, app_run,
     "SELECT jobq.schedule_drop($1) AS dropped"},
    {"schedule pause", "NAME", "stop firing it", 1, 1, app_run,
     "SELECT 'paused' AS answer FROM jobq.schedule_pause($1)"},
    {"schedule resume", "NAME", "end a pause", 1, 1, app_run,
     "SELECT jobq.schedule_resume($1) AS next_at"},
    {"schedule run", "NAME", "run it once, now", 1, 1, app_run,
     "SELECT jobq.schedule_run($1) AS id"},
    {"schedule preview", "[CRON]", "the next times", 0, 1, app_run,
     "SELECT local, at FROM jobq.schedule_preview($1...)",
     .options = {{"zone", "ZONE", "", "text"}, {"count", "N", "", "integer"},
                 {"after", "TIME", "", "timestamptz"}, {"every", "INTERVAL", "", "interval"}}},
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
     app_run, LOOK_REPLAY(":partition::integer", ":type", "coalesce(:at-most::integer, 100)"),
     .options = {LETTERS}},
    {"outbox discard", "QUEUE", "give dead letters up for good", 1, 1, app_run,
     "SELECT jobq.dead_letter_discard($1...) AS discarded", .options = {LETTERS}},
    {"export", "", "write ended jobs as CSV, or with --json as JSON lines", 0, 0, do_export,
     .options = {QUEUE, KIND, {"state", "STATE", "succeeded, failed, cancelled", NULL},
                 {"since", "TIME", "ended at or after", NULL},
                 {"until", "TIME", "ended before", NULL},
                 {"parts", "FOLDER", "instead, each finished part of history that was not\n"
                  "                        exported yet, to a file of its own; run it daily. See\n"
                  "                        jobq.export_set", NULL},
                 {"all", NULL, "instead, all rows of all tables, with live work, as JSON lines:\n"
                  "                        {\"table\": NAME, \"row\": {...}}; sql/001_tables.sql\n"
                  "                        says what they mean", NULL}}},
    {"work", "--exec COMMAND --queue QUEUE", "run a command for each job", 0, 0, do_work,
     .options = {{"exec", "COMMAND", "for sh -c: gets the payload on standard input, and JOBQ_ID,\n"
                                     "                        JOBQ_QUEUE, JOBQ_KIND, JOBQ_ATTEMPT",
                  NULL},
                 QUEUE, {"kind", "KIND", "default: all that the queue has when it starts", NULL},
                 {"threads", "N", "commands at once; default 4", app_positive},
                 {"grace", "SECONDS", "for running commands after SIGTERM; default 30, then\n"
                  "                        the job is given back", app_positive},
                 {"until-empty", NULL, "end when no job is due", NULL}},
     .more =
     "    Exit code 0: success; standard output, up to 1 MiB, is the result if it is JSON, and is\n"
     "    dropped otherwise. 75: retry; also 126 and 127 (the shell found no command) and 128 to\n"
     "    192 (a signal killed it). Any other: the job fails. The last 4096 bytes of standard\n"
     "    error are the error.\n"
     "    A job's time limit kills the command's whole process group; what a command leaves in\n"
     "    its group ends with it. A cancelled job's command gets SIGTERM, after 5 s SIGKILL.\n"},
    {"bench", "", "measure this server: enqueue and work jobs that do nothing", 0, 0, do_bench,
     .options = {{"jobs", "N", "default 10000", app_positive},
                 {"threads", "N", "default 4", app_positive}},
     .more = "    It makes a schema of its own, and drops it.\n"},
    {"doctor", "", "find what is wrong, and say what to run", 0, 0, doctor,
     .more = "    Exit code 1: it found something. Connect as the owner of the schema, or some is "
             "not\n    checked.\n"},
    {"top", "", "watch queues, workers and jobs in the terminal", 0, 0, top, .more = top_keys},
    {"web", "", "serve a dashboard to browsers; the rights are those of the connection's role",
     0, 0, web,
     .options = {{"listen", "ADDRESS", "HOST:PORT, in digits; default 127.0.0.1:8080", NULL},
                 {"basic", "FILE", "people log in; lines of user:password", NULL},
                 {"user-header", "NAME", "a proxy in front has logged them in, and says who it is; "
                                         "only it may\n                        reach this port",
                  NULL}}, .offline = true},
    {"completion", "bash", "print a completion script: source <(jobq completion bash)", 0, 1,
     completion, .offline = true},
    {"help", "[VERB]", "tell about a verb", 0, 2, help, .offline = true},
};
enum { VERBS = sizeof verbs / sizeof verbs[0] };

/* Whether a verb's first word is this one. */
static bool begins(const app_verb *verb, const char *word)
{
    size_t len = strcspn(verb->name, " ");

    return strlen(word) == len && strncmp(verb->name, word, len) == 0;
}

/* The verb that arguments begin with, and how many words it has. "list" is the verb of one word,
 * if there is no other. NULL: there is none. */
static const app_verb *find_verb(int argc, char **argv, int *words)
{
    const app_verb *v;
    app_text two = {0};

    app_format(&two, "%s %s", argv[0], argc > 1 ? argv[1] : "");
    for (v = verbs, *words = 2; v < verbs + VERBS; v++)
        if (strcmp(v->name, two.ptr) == 0) return v;
    for (v = verbs; v < verbs + VERBS && strcmp(v->name, argv[0]) != 0; v++) {}
    if (v == verbs + VERBS) {
        app_say(0, "there is no verb %s: jobq help lists them", argv[0]);
        return NULL;
    }
    if (argc == 1 || strcmp(argv[1], "list") != 0 || v + 1 == verbs + VERBS ||
        !begins(v + 1, argv[0])) *words = 1;
    return v;
}

static void help_all(FILE *out)
{
    int i;

    fprintf(out, "jobq [-d CONNINFO] [--schema NAME] [--json] VERB ...\n\n");
    for (i = 0; i < VERBS; i++) {
        if (strchr(verbs[i].name, ' ') == NULL)
            fprintf(out, "  %-11s %s\n", verbs[i].name, verbs[i].help);
    }
    fprintf(out,
            "\n-d: the name of a database, a conninfo or a URL. For what it leaves out, libpq's\n"
            "environment and service files apply: PGHOST, PGDATABASE, PGSERVICE ...\n"
            "--json: JSON lines. jobq help VERB tells more.\n"
            "Exit code: 0 done; 1 refused, or something is broken; 2 wrong usage; 3 no server.\n");
}

/* All verbs whose first word this is. */
static int help(app *a)
{
    int i, words;

    if (a->argc > 0 && find_verb(a->argc, a->argv, &words) == NULL) return APP_USAGE;
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

static int completion(app *a)
{
    int i, j;

    if (a->argc != 1 || strcmp(a->argv[0], "bash") != 0)
        return app_say(APP_USAGE, "completion is there for bash");
    printf("_jobq() {\n    local word verb= words\n"
           "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
           "        case $word in\n        -*");
    for (i = 0; i < VERBS; i++) {
        if (strchr(verbs[i].name, ' ') == NULL)
            printf("%s%s", i == 0 ? ") ;;\n        " : "| ", verbs[i].name);
    }
    printf(") verb=$word; break ;;\n        esac\n    done\n    case $verb in\n"
           "    '') words='-d --schema --json");
    for (i = 0; i < VERBS; i++) {
        if (strchr(verbs[i].name, ' ') == NULL) printf(" %s", verbs[i].name);
    }
    for (i = 0; i < VERBS; i++) {
        const char *second = strchr(verbs[i].name, ' ');

        if (second == NULL) printf("' ;;\n    %s) words='--json", verbs[i].name);
        else printf("%s", second);
        for (j = 0; j < APP_OPTIONS && verbs[i].options[j].name != NULL; j++)
            printf(" --%s", verbs[i].options[j].name);
    }
    printf("' ;;\n    esac\n"
           "    mapfile -t COMPREPLY < "
           "<(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\")\n}\n"
           "complete -F _jobq jobq\n");
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

/* The options before the verb, and --json also after it; --help at the end of a verb's words asks
 * about it. Returns how many arguments are left. */
static int common_options(app *a, int argc, char **argv)
{
    int from, to = 0;

    for (from = 0; from < argc; from++) {
        const char *arg = argv[from];
        bool before = to == 0, last = from + 1 == argc && to <= 2;
        bool asks = strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;

        if (strcmp(arg, "--json") == 0) {
            a->json = true;
        } else if (before && strcmp(arg, "-d") == 0 && from + 1 < argc) {
            a->conninfo = argv[++from];
        } else if (before && strcmp(arg, "--schema") == 0 && from + 1 < argc) {
            a->schema = argv[++from];
        } else if (asks && (before || (last && argv[to - 1][0] != '-'))) {
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
    if (!app_options(&a)) return APP_USAGE;
    a.conninfo = conninfo_from(a.conninfo);
    if (a.verb->offline || app_connect(&a, "jobq", NULL)) code = a.verb->run(&a);
    else code = app_say(APP_SERVER, "%s", PQerrorMessage(a.conn));
    PQfinish(a.conn);
    if (fflush(stdout) != 0 || ferror(stdout))
        code = app_say(APP_NO, "cannot write: %s", strerror(errno));
    return code;
}
