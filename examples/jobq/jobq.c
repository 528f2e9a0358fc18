/*
 * jobq.c -- the program jobq: what operators do with queues, from a shell.
 *
 * Build   cc examples/jobq/jobq.c -I. -lpq -o jobq
 *         jobq top: also -DJOBQ_TOP -lncursesw; jobq web: also -DJOBQ_WEB -lmicrohttpd;
 *         make jobq builds it with all whose library is there
 * Run     jobq help; jobq -d "host=... dbname=..." migrate
 *
 * Its parts: app.h (connection, statements, output), verbs.h, work.h, doctor.h, look.h
 * (what top and web show), top.h (screen.h), web.h (pages.h, html.h).
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
#include "verbs.h"
#include "work.h"
#include "doctor.h"
#include "look.h"

/* The keys of top, for its help and for help top. */
static const char top_keys[] =
    "    Up, Down, j, k      select a row\n"
    "    Tab, Shift-Tab      the next section, or the one before\n"
    "    p                   pause the queue, or resume it\n"
    "    r                   revive the failed job\n"
    "    c                   cancel the running job; asks first\n"
    "    /                   show only rows that contain a text; Esc: all again\n"
    "    ?                   help\n"
    "    q                   quit\n";

#ifdef JOBQ_TOP
#include "top.h"
#else
static int top(app *a, int argc, char **argv)
{
    (void)a, (void)argc, (void)argv;
    return app_say(APP_NO, "this program was built without top: -DJOBQ_TOP -lncursesw");
}
#endif
#ifdef JOBQ_WEB
#include "web.h"
#else
static int web(app *a, int argc, char **argv)
{
    (void)a, (void)argc, (void)argv;
    return app_say(APP_NO, "this program was built without web: -DJOBQ_WEB -lmicrohttpd");
}
#endif

typedef struct verb {
    const char *name;
    const char *arguments;
    const char *help;      /* one line */
    const char *more;      /* for help VERB; an option is a line that begins with it */
    int (*run)(app *a, int argc, char **argv);
    bool connected;        /* needs app.conn */
} verb;

static int help(app *a, int argc, char **argv);
static int completion(app *a, int argc, char **argv);

#define FILTERS                                                                                    \
    "    --queue QUEUE       instead of ids: all jobs of this queue that match\n"                  \
    "    --kind KIND\n"                                                                            \
    "    --older INTERVAL    enqueued, or ended, longer ago: '1 hour'\n"                           \
    "    --tags JSON         contained in their headers\n"                                         \
    "    --at-most N         in one step; otherwise all, 1000 at a time, each step committed\n"

static const verb verbs[] = {
    {"migrate", "[--check | --print]", "install or upgrade the schema",
     "    --check             only tell whether the schema is of this program's version\n"
     "    --print             only print the SQL that is missing\n", do_migrate, true},
    {"enqueue", "QUEUE KIND [PAYLOAD | -]", "enqueue a job; -: its payload is on standard input",
     "    --delay INTERVAL    not before now plus this\n"
     "    --run-at TIME       not before\n"
     "    --priority N        -9 to 9, smaller first\n"
     "    --key KEY           one job for each queue and key\n"
     "    --on-known WHAT     if the key is known: leave, replace, merge ...\n"
     "    --unique-for WHAT   how long the key is known\n"
     "    --line LINE         such as a tenant\n"
     "    --stages N\n"
     "    --max-attempts N\n"
     "    --timeout INTERVAL  of an attempt\n"
     "    --headers JSON      an object: tags\n", do_enqueue, true},
    {"list", "", "list jobs, the newest first",
     "    --queue QUEUE\n"
     "    --kind KIND\n"
     "    --state STATE       ready, running, waiting, succeeded, failed, cancelled\n"
     "    --key KEY\n"
     "    --line LINE\n"
     "    --older INTERVAL    enqueued longer ago: '1 hour'\n"
     "    --newer INTERVAL    enqueued since\n"
     "    --limit N           default 20\n", do_list, true},
    {"show", "ID", "show a job, its errors and result, and why it does not run", "", do_show, true},
    {"revive", "ID... | --queue QUEUE", "run failed jobs again", FILTERS, do_revive, true},
    {"cancel", "ID... | --queue QUEUE", "cancel ready jobs, and ask running ones to stop",
     FILTERS "    --state STATE       only ready or only running ones\n", do_cancel, true},
    {"delete", "ID... | --queue QUEUE --state STATE", "delete ready or ended jobs",
     FILTERS "    --state STATE       ready, failed, succeeded, cancelled\n", do_delete, true},
    {"reschedule", "ID... | --queue QUEUE", "change when ready jobs run",
     FILTERS "    --run-at TIME       not before; default now\n", do_reschedule, true},
    {"prioritize", "ID... | --queue QUEUE", "change the priority of ready jobs",
     FILTERS "    --priority N        -9 to 9, smaller first\n", do_prioritize, true},
    {"move", "ID... | --queue QUEUE", "move ready jobs to another queue",
     FILTERS "    --target QUEUE\n", do_move, true},
    {"pause", "QUEUE", "start no more jobs of a queue, or of a kind",
     "    --kind KIND\n", do_pause, true},
    {"resume", "QUEUE", "end a pause", "    --kind KIND\n", do_resume, true},
    {"drain", "QUEUE", "wait until no job is due or running",
     "    --ended             and none is scheduled for later\n"
     "    --timeout SECONDS   then exit code 1\n", do_drain, true},
    {"schedule", "[list | set | drop | pause | resume | run | preview]", "periodic jobs",
     "    list\n"
     "    set NAME QUEUE [KIND] --cron CRON | --every INTERVAL    without a kind: a message\n"
     "        --zone ZONE --payload JSON --headers JSON --priority N --missed last|skip|all\n"
     "        --missed-within INTERVAL --overlap allow|skip|wait|cancel --spread INTERVAL\n"
     "        --starts-at TIME --ends-at TIME\n"
     "    drop NAME\n"
     "    pause NAME, resume NAME\n"
     "    run NAME            now, once\n"
     "    preview CRON        the next times\n"
     "        --zone ZONE --count N --after TIME --every INTERVAL\n",
     do_schedule, true},
    {"outbox", "[list | replay | discard]", "partitions and their lag; dead letters",
     "    list [QUEUE]        dead letters, the newest first\n"
     "    replay QUEUE        enqueue pending dead letters again, at the end of their partitions\n"
     "    discard QUEUE       give pending dead letters up for good\n"
     "        --partition N --type TYPE --at-most N\n", do_outbox, true},
    {"export", "", "write ended jobs as CSV, or with --json as JSON lines",
     "    --queue QUEUE\n"
     "    --kind KIND\n"
     "    --state STATE       succeeded, failed, cancelled\n"
     "    --since TIME        ended at or after\n"
     "    --until TIME        ended before\n"
     "    --parts FOLDER      instead, each finished part of history that was not exported yet, to\n"
     "                        a file of its own; run it daily. See jobq.export_set\n",
     do_export, true},
    {"work", "--exec COMMAND --queue QUEUE", "run a command for each job",
     "    --exec COMMAND      for sh -c: gets the payload on standard input, and JOBQ_ID,\n"
     "                        JOBQ_QUEUE, JOBQ_KIND, JOBQ_ATTEMPT\n"
     "    --queue QUEUE\n"
     "    --kind KIND         default: all kinds that the queue has when the worker starts\n"
     "    --threads N         commands at once; default 4\n"
     "    --grace SECONDS     for running commands after SIGTERM; default 30, then the job is\n"
     "                        given back\n"
     "    --until-empty       end when no job is due\n"
     "    Exit code 0: success; standard output, up to 1 MiB, is the result if it is JSON, and is\n"
     "    dropped otherwise. 75: retry; also 126 and 127 (the shell found no command) and 128 to\n"
     "    192 (a signal killed it). Any other: the job fails. The last 4096 bytes of standard\n"
     "    error are the error.\n"
     "    A job's time limit kills the command's whole process group; what a command leaves in\n"
     "    its group ends with it. A cancelled job's command gets SIGTERM, and 5 s later SIGKILL.\n",
     do_work, true},
    {"bench", "", "measure this server: enqueue and work jobs that do nothing",
     "    --jobs N            default 10000\n"
     "    --threads N         default 4\n"
     "    It makes a schema of its own, and drops it.\n", do_bench, true},
    {"doctor", "", "find what is wrong, and say what to run",
     "    Exit code 1: it found something. Connect as the owner of the schema, or some is not\n"
     "    checked.\n", doctor, true},
    {"top", "", "watch queues, workers and jobs in the terminal", top_keys, top, true},
    {"web", "", "serve a dashboard to browsers; the rights are those of the connection's role",
     "    --listen ADDRESS    HOST:PORT, in digits; default 127.0.0.1:8080\n"
     "    --basic FILE        people log in; lines of user:password\n"
     "    --user-header NAME  a proxy in front has logged them in, and says who it is; only it may\n"
     "                        reach this port\n", web, false},
    {"completion", "bash", "print a completion script: source <(jobq completion bash)", "",
     completion, false},
    {"help", "[VERB]", "tell about a verb", "", help, false},
};
enum { VERBS = sizeof verbs / sizeof verbs[0] };

static const verb *find_verb(const char *name)
{
    int i;

    for (i = 0; i < VERBS; i++) {
        if (strcmp(verbs[i].name, name) == 0) return &verbs[i];
    }
    app_say(0, "there is no verb %s: jobq help lists them", name);
    return NULL;
}

static void help_all(FILE *out)
{
    int i;

    fprintf(out, "jobq [-d CONNINFO] [--schema NAME] [--json] VERB ...\n\n");
    for (i = 0; i < VERBS; i++) fprintf(out, "  %-11s %s\n", verbs[i].name, verbs[i].help);
    fprintf(out,
            "\n-d: the name of a database, a conninfo or a URL. For what it leaves out, libpq's\n"
            "environment and service files apply: PGHOST, PGDATABASE, PGSERVICE ...\n"
            "--json: JSON lines. jobq help VERB tells more.\n"
            "Exit code: 0 done; 1 refused, or something is broken; 2 wrong usage; 3 no server.\n");
}

static int help(app *a, int argc, char **argv)
{
    const verb *v = argc == 0 ? NULL : find_verb(argv[0]);

    (void)a;
    if (argc > 0 && v == NULL) return APP_USAGE;
    if (v == NULL) help_all(stdout);
    else printf("jobq %s %s\n    %s\n%s", v->name, v->arguments, v->help, v->more);
    return APP_OK;
}

/* Prints the options that a text names. */
static void print_options(const char *text)
{
    for (; (text = strstr(text, "--")) != NULL; text += 2) {
        size_t len = 2 + strspn(text + 2, "abcdefghijklmnopqrstuvwxyz-");

        if (len > 2) printf(" %.*s", (int)len, text);
    }
}

static int completion(app *a, int argc, char **argv)
{
    int i;

    (void)a;
    if (argc != 1 || strcmp(argv[0], "bash") != 0)
        return app_say(APP_USAGE, "completion is there for bash");
    printf("_jobq() {\n    local word verb= words\n"
           "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
           "        case $word in\n");
    for (i = 0; i < VERBS; i++) printf("        %s%s", i > 0 ? "| " : "", verbs[i].name);
    printf(") verb=$word; break ;;\n        esac\n    done\n    case $verb in\n"
           "    '') words='-d --schema --json");
    for (i = 0; i < VERBS; i++) printf(" %s", verbs[i].name);
    printf("' ;;\n");
    for (i = 0; i < VERBS; i++) {
        printf("    %s) words='--json", verbs[i].name);
        print_options(verbs[i].arguments);
        print_options(verbs[i].more);
        printf("' ;;\n");
    }
    printf("    esac\n"
           "    mapfile -t COMPREPLY < "
           "<(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\")\n}\n"
           "complete -F _jobq jobq\n");
    return APP_OK;
}

/* psql's rule: a text without = that is no URL is the name of a database. The caller frees it. */
static char *conninfo_from(const char *text)
{
    app_text out = {0};

    if (text[0] == '\0' || strchr(text, '=') || strstr(text, "://")) {
        app_put(&out, text);
        return out.ptr;
    }
    app_put(&out, "dbname='");
    for (; *text != '\0'; text++) {
        if (*text == '\'' || *text == '\\') app_put(&out, "\\");
        app_add(&out, text, 1);
    }
    app_put(&out, "'");
    return out.ptr;
}

static bool open_conn(app *a)
{
    const char *names[] = {"dbname", "fallback_application_name", "client_encoding", NULL};
    const char *values[] = {a->conninfo, "jobq", "UTF8", NULL};

    a->conn = app_need(PQconnectdbParams(names, values, 1));
    if (PQstatus(a->conn) == CONNECTION_OK) return true;
    app_say(0, "%s", PQerrorMessage(a->conn));
    return false;
}

/* The options before the verb, and --json also after it. Returns how many arguments are left. */
static int common_options(app *a, int argc, char **argv)
{
    int from, to = 0;

    for (from = 0; from < argc; from++) {
        const char *arg = argv[from];
        bool before = to == 0;

        if (strcmp(arg, "--json") == 0) {
            a->json = true;
        } else if (before && strcmp(arg, "-d") == 0 && from + 1 < argc) {
            a->conninfo = argv[++from];
        } else if (before && strcmp(arg, "--schema") == 0 && from + 1 < argc) {
            a->schema = argv[++from];
        } else if (before && (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0)) {
            argv[to++] = "help";
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
    const verb *v;
    int code;

    argc = common_options(&a, argc - 1, argv + 1);
    argv++;
    if (argc <= 0) {
        if (argc == 0) help_all(stderr);
        return APP_USAGE;
    }
    v = find_verb(argv[0]);
    if (v == NULL) return APP_USAGE;
    a.conninfo = conninfo_from(a.conninfo);
    code = v->connected && !open_conn(&a) ? APP_SERVER : v->run(&a, argc - 1, argv + 1);
    PQfinish(a.conn);
    free((char *)a.conninfo);
    return code;
}
