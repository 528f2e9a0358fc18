/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * pipeline.c -- a document pipeline that loses a worker on the way, but no document.
 *
 * Build   cc examples/pipeline.c -I. -lpq -o pipeline
 * Run     make demo                                          a Postgres of its own
 *         make demo ARGS="/usr/share/doc --limit 2000"
 *         JOBQ_SERVER="host=... dbname=..." ./pipeline       a Postgres of yours
 * Prints  a line of progress, a summary, and PASS or FAIL for each thing that must hold; its exit
 *         status is 0 only when all do.
 *
 * Every file below a folder becomes a document with a job of two stages: EXTRACTION (read the file,
 * find its words) and EMBEDDING (turn the words into a vector of 256 numbers). Three worker
 * processes run the jobs. Each result is written in the transaction that completes its stage, so
 * there is exactly one. After about 40 % of the documents one worker is killed with SIGKILL; the
 * others notice it and run its jobs.
 *
 * Four documents are planted. Three cannot be read and fail, each with a reason. One is locked by
 * its writer at first and succeeds when it is tried again.
 *
 * The demo's tables are in the schema jobq_demo, those of jobq in jobq_demo_queue. Both are dropped
 * at the end. With --keep they stay, so that you can look at them with psql.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define QUEUE "documents"
#define KIND "document"

enum {
    VECTOR = 256,         /* numbers of an embedding */
    TEXT_MAX = 32 * 1024, /* bytes of a document's words that are kept */
    FILE_MAX = 8 << 20,   /* bytes of a document */
    BATCH = 500,          /* documents enqueued in one transaction */
    WORKERS_MAX = 16,
    RESTARTS_MAX = 20
};

static const int64_t LEASE_US = JOBQ_SECONDS(2); /* short, so that a rescue takes seconds */

/* The demo's own tables. They have no unique index, so that the checks below can see a result that
 * was written twice. */
static const char *const TABLES[] = {
    "DROP SCHEMA IF EXISTS jobq_demo, jobq_demo_queue CASCADE",
    "CREATE SCHEMA jobq_demo",
    "CREATE TABLE jobq_demo.document (id bigint PRIMARY KEY, job bigint NOT NULL, "
    "path text NOT NULL)",
    "CREATE TABLE jobq_demo.extraction (document bigint NOT NULL, worker text NOT NULL, "
    "took_us bigint NOT NULL, words bigint NOT NULL, body text NOT NULL)",
    "CREATE INDEX ON jobq_demo.extraction (document)",
    "CREATE TABLE jobq_demo.embedding (document bigint NOT NULL, worker text NOT NULL, "
    "took_us bigint NOT NULL, vector real[] NOT NULL)",
    /* The jobs that a worker held when it died, and what each worker reports at its end. */
    "CREATE TABLE jobq_demo.held (job bigint, token bigint, worker text, stage int)",
    "CREATE TABLE jobq_demo.report (worker text, claims bigint, rescued bigint)"};

enum { TABLE_COUNT = sizeof TABLES / sizeof TABLES[0] };

static int64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ==== the worker ============================================================================== */

/* Sets the error text of this attempt, with arguments as for printf. Returns outcome. */
static jobq_outcome fail(jobq_call *call, jobq_outcome outcome, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    jobq_call_error(call, jobq_str_from(text));
    return outcome;
}

/* The payload is a JSON number, the id of the document. */
static void document_of(const jobq_call *call, char *text, size_t size)
{
    snprintf(text, size, "%.*s", (int)call->payload.len, call->payload.ptr);
}

/* Reads one text from the database; the caller frees it. NULL: the reason is the call's error. */
static char *look_up(jobq_call *call, PGconn *conn, const char *sql, const char *document)
{
    PGresult *res = PQexecParams(conn, sql, 1, NULL, &document, NULL, NULL, 0);
    char *text = NULL;

    if (PQresultStatus(res) != PGRES_TUPLES_OK) {
        fail(call, JOBQ_OUTCOME_RETRY, "%s", PQerrorMessage(conn));
    } else if (PQntuples(res) != 1) {
        fail(call, JOBQ_OUTCOME_RETRY, "document %s: %d rows", document, PQntuples(res));
    } else if ((text = strdup(PQgetvalue(res, 0, 0))) == NULL) {
        fail(call, JOBQ_OUTCOME_RETRY, "out of memory");
    }
    PQclear(res);
    return text;
}

/* Runs a statement that returns no rows. It checks the answer too, because the COMMIT of an aborted
 * transaction answers ROLLBACK. */
static bool run(PGconn *conn, const char *sql, int count, const char *const *values)
{
    PGresult *res = PQexecParams(conn, sql, count, NULL, values, NULL, NULL, 0);
    bool good = PQresultStatus(res) == PGRES_COMMAND_OK &&
                strncmp(PQcmdStatus(res), sql, strcspn(sql, " ")) == 0;

    PQclear(res);
    return good;
}

/*
 * The important part: the result and the completion of the stage are one transaction. If the lease
 * has been lost, jobq_pg_call_complete aborts that transaction, and the result is rolled back.
 */
static jobq_outcome commit(jobq_call *call, PGconn *conn, const char *insert, int count,
                           const char *const *values)
{
    jobq_pg_error error;

    if (!run(conn, "BEGIN", 0, NULL) || !run(conn, insert, count, values)) {
        return fail(call, JOBQ_OUTCOME_RETRY, "%s", PQerrorMessage(conn));
    }
    if (jobq_pg_call_complete(call, conn, &error) != JOBQ_OK) {
        return fail(call, JOBQ_OUTCOME_RETRY, "%s", error.message);
    }
    if (!run(conn, "COMMIT", 0, NULL)) {
        return fail(call, JOBQ_OUTCOME_RETRY, "%s", PQerrorMessage(conn));
    }
    return JOBQ_OUTCOME_DONE;
}

/* Reads a file; the caller frees the bytes. NULL: it cannot be read, and trying again would not
 * help; the reason is the call's error. */
static char *read_file(jobq_call *call, const char *path, size_t *size)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK);
    struct stat status;
    char *bytes = NULL;
    ssize_t got = 1;

    *size = 0;
    if (fd < 0 || fstat(fd, &status) != 0) {
        fail(call, JOBQ_OUTCOME_DISCARD, "unreadable: %s", strerror(errno));
    } else if (!S_ISREG(status.st_mode)) {
        fail(call, JOBQ_OUTCOME_DISCARD, "unreadable: not a file");
    } else if (status.st_size > FILE_MAX) {
        fail(call, JOBQ_OUTCOME_DISCARD, "larger than %d MiB", FILE_MAX >> 20);
    } else if ((bytes = (char *)malloc((size_t)status.st_size + 1)) == NULL) {
        fail(call, JOBQ_OUTCOME_DISCARD, "out of memory");
    }
    while (bytes != NULL && got > 0 && *size < (size_t)status.st_size) {
        got = read(fd, bytes + *size, (size_t)status.st_size - *size);
        if (got > 0) *size += (size_t)got;
    }
    if (got < 0) {
        fail(call, JOBQ_OUTCOME_DISCARD, "unreadable: %s", strerror(errno));
        free(bytes);
        bytes = NULL;
    }
    if (fd >= 0) close(fd);
    return bytes;
}

static bool is_word(unsigned char c)
{
    return c >= 0x80 || c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
           (c >= 'A' && c <= 'Z');
}

/* Writes the words of a text to out, in lower case and separated by blanks, and returns their
 * number. out holds TEXT_MAX bytes; words that do not fit are only counted. */
static int64_t words_of(const char *text, size_t size, char *out)
{
    int64_t words = 0;
    size_t from, to, i, length = 0;

    for (from = 0; from < size; from = to + 1) {
        for (to = from; to < size && is_word((unsigned char)text[to]);) to++;
        if (to == from) continue;
        words++;
        if (length + (to - from) + 2 > TEXT_MAX) continue;
        if (length > 0) out[length++] = ' ';
        for (i = from; i < to; i++) {
            out[length++] = (char)(text[i] >= 'A' && text[i] <= 'Z' ? text[i] + 32 : text[i]);
        }
    }
    out[length] = '\0';
    return words;
}

/* A lock file means that someone is writing the document: try again later. */
static bool is_locked(const char *path)
{
    char lock[4096 + 8];

    snprintf(lock, sizeof lock, "%s.lock", path);
    return access(lock, F_OK) == 0;
}

/* Writes the words of the file at path to the table extraction. */
static jobq_outcome extract_file(jobq_call *call, PGconn *conn, const char *document,
                                 const char *path, int64_t since_us)
{
    char words[24], took[24], body[TEXT_MAX];
    const char *values[] = {document, (const char *)call->user, took, words, body};
    size_t size;
    char *bytes;

    if (is_locked(path)) return fail(call, JOBQ_OUTCOME_RETRY, "locked by its writer");
    bytes = read_file(call, path, &size);
    if (bytes == NULL) return JOBQ_OUTCOME_DISCARD;
    if (memchr(bytes, '\0', size) != NULL || !jobq_utf8_valid((jobq_str){bytes, size})) {
        bool binary = memchr(bytes, '\0', size) != NULL;
        free(bytes);
        return fail(call, JOBQ_OUTCOME_DISCARD, binary ? "binary: it has NUL bytes" : "not UTF-8");
    }
    snprintf(words, sizeof words, "%" PRId64, words_of(bytes, size, body));
    free(bytes);
    snprintf(took, sizeof took, "%" PRId64, now_us() - since_us);
    return commit(call, conn, "INSERT INTO jobq_demo.extraction VALUES ($1, $2, $3, $4, $5)", 5,
                  values);
}

/* Stage EXTRACTION. */
static jobq_outcome extract(jobq_call *call)
{
    int64_t since_us = now_us();
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char document[24], *path;
    jobq_outcome outcome;

    if (conn == NULL) return fail(call, JOBQ_OUTCOME_RETRY, "%s", error.message);
    document_of(call, document, sizeof document);
    path = look_up(call, conn, "SELECT path FROM jobq_demo.document WHERE id = $1", document);
    if (path == NULL) return JOBQ_OUTCOME_RETRY;
    outcome = extract_file(call, conn, document, path, since_us);
    free(path);
    return outcome;
}

/* The square root, so that the example builds without -lm. */
static double root(double x)
{
    double r = x > 1 ? x : 1;
    int i;

    for (i = 0; i < 60 && r * r - x > 1e-12 * x; i++) r = (r + x / r) / 2;
    return x > 0 ? r : 0;
}

/*
 * A hashed bag of words: each word adds 1 or -1 at one place of the vector, each sum is replaced by
 * its root, and the vector is scaled to length 1. Documents that share many words have a large
 * inner product.
 */
static void embed_words(const char *body, double vector[VECTOR])
{
    double sum = 0, length;
    int i;

    memset(vector, 0, VECTOR * sizeof *vector);
    while (*body != '\0') {
        uint64_t hash = 14695981039346656037u;
        for (; *body != '\0' && *body != ' '; body++) {
            hash = (hash ^ (unsigned char)*body) * 1099511628211u;
        }
        hash ^= hash >> 29;
        vector[hash % VECTOR] += hash >> 63 ? 1 : -1;
        if (*body == ' ') body++;
    }
    for (i = 0; i < VECTOR; i++) {
        sum += vector[i] < 0 ? -vector[i] : vector[i];
        vector[i] = vector[i] < 0 ? -root(-vector[i]) : root(vector[i]);
    }
    length = root(sum);
    for (i = 0; sum > 0 && i < VECTOR; i++) vector[i] /= length;
}

/* Stage EMBEDDING. */
static jobq_outcome embed(jobq_call *call)
{
    int64_t since_us = now_us();
    jobq_pg_error error;
    PGconn *conn = jobq_pg_call_conn(call, &error);
    char document[24], took[24], array[VECTOR * 12 + 2], *body;
    const char *values[] = {document, (const char *)call->user, took, array};
    double vector[VECTOR];
    size_t at = 0;
    int i;

    if (conn == NULL) return fail(call, JOBQ_OUTCOME_RETRY, "%s", error.message);
    document_of(call, document, sizeof document);
    body = look_up(call, conn, "SELECT body FROM jobq_demo.extraction WHERE document = $1",
                   document);
    if (body == NULL) return JOBQ_OUTCOME_RETRY;
    embed_words(body, vector);
    free(body);
    for (i = 0; i < VECTOR; i++) {
        at += (size_t)snprintf(array + at, sizeof array - at, "%c%.4f", i == 0 ? '{' : ',',
                               vector[i]);
    }
    snprintf(array + at, sizeof array - at, "}");
    snprintf(took, sizeof took, "%" PRId64, now_us() - since_us);
    return commit(call, conn, "INSERT INTO jobq_demo.embedding VALUES ($1, $2, $3, $4)", 4, values);
}

/* Removes the progress line that a terminal shows, before something else is printed. */
static const char *fresh_line(void) { return isatty(STDERR_FILENO) ? "\r\033[K" : ""; }

static void log_line(void *user, jobq_level level, const char *message)
{
    if (level < JOBQ_LEVEL_WARNING) return;
    fprintf(stderr, "%s%s: %s\n", fresh_line(), (const char *)user, message);
}

static void report(jobq_pg *pg, const char *name, const jobq_pg_stats *stats)
{
    char claims[24], rescued[24];
    const char *values[] = {name, claims, rescued};
    PGconn *conn;

    snprintf(claims, sizeof claims, "%" PRId64, stats->jobs.claims);
    snprintf(rescued, sizeof rescued, "%" PRId64, stats->jobs.rescued);
    if (jobq_pg_acquire(pg, &conn, NULL) != JOBQ_OK) return;
    run(conn, "INSERT INTO jobq_demo.report VALUES ($1, $2, $3)", 3, values);
    jobq_pg_release(pg, conn);
}

/* The main function of a worker process. It works until its standard input ends. That is a pipe
 * from the parent, so it ends when the parent closes it or dies. The parent handles Ctrl-C. */
static int worker_main(const char *server, char *name)
{
    jobq_pg_desc desc = {0};
    jobq_pg_handler handler = {
        .queue = QUEUE, .kind = KIND, .run = {extract, embed}, .user = name};
    jobq_pg_worker_desc work = {0};
    jobq_pg_worker *worker;
    jobq_pg_stats stats;
    jobq_pg_error error;
    jobq_pg *pg;
    ssize_t got;
    char byte;

    signal(SIGINT, SIG_IGN);
    setenv("PGAPPNAME", name, 1);
    desc.conninfo = server;
    desc.schema = "jobq_demo_queue";
    desc.log = log_line;
    desc.user = name;
    work.name = name;
    work.handlers = &handler;
    work.handler_count = 1;
    work.loop.lease_us = LEASE_US;
    work.loop.batch_max = 100;
    if (jobq_pg_open(&pg, &desc, &error) || jobq_pg_worker_start(pg, &work, &worker, &error)) {
        fprintf(stderr, "%s: %s\n", name, error.message);
        return 1;
    }
    do got = read(STDIN_FILENO, &byte, 1);
    while (got > 0 || (got < 0 && errno == EINTR));
    jobq_pg_worker_stop(worker);
    if (jobq_pg_worker_wait(worker, &stats) != JOBQ_OK) return 1; /* a handler still runs */
    jobq_pg_worker_free(worker);
    report(pg, name, &stats);
    jobq_pg_close(pg);
    return 0;
}

/* ==== the parent: its state, and how it asks the database ===================================== */

typedef struct process {
    pid_t pid; /* 0: has ended */
    char name[24];
} process;

typedef struct progress {
    int64_t embedded, failed, retries, held, rescued;
} progress;

/* How much was done at an instant, to compute the rate. */
typedef struct mark {
    int64_t at_us, done;
} mark;

typedef struct demo {
    const char *program;
    char *folder;
    long limit;
    int workers;
    bool keep;
    jobq_pg *pg;
    PGconn *conn;
    char **paths; /* document i has the id i + 1 */
    size_t count, room;
    char planted[256]; /* the folder of the planted documents; empty: there is none */
    bool locked;       /* the planted lock file exists */
    int leash[2];      /* the workers' standard input */
    process processes[WORKERS_MAX + RESTARTS_MAX];
    int process_count, badly_ended;
    bool killed, terminal;
    int64_t since_us, tick_us, line_us, death_us;
    mark marks[16];
    unsigned mark_count;
    progress now;
} demo;

static volatile sig_atomic_t stop_asked;

static void on_signal(int number)
{
    (void)number;
    stop_asked = 1;
}

static void unplant(demo *d);

/* Ends the demo. The workers then see the end of their standard input, and stop. */
static void give_up(demo *d, const char *what)
{
    fprintf(stderr, "%spipeline: %s\n", fresh_line(), what);
    unplant(d);
    exit(1);
}

/* The answer to a statement that must succeed. */
static PGresult *ask(demo *d, const char *sql, int count, const char *const *values)
{
    PGresult *res = PQexecParams(d->conn, sql, count, NULL, values, NULL, NULL, 0);

    if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK) {
        give_up(d, PQerrorMessage(d->conn));
    }
    return res;
}

static void tell(demo *d, const char *sql)
{
    PQclear(ask(d, sql, 0, NULL));
}

static int64_t number_at(const PGresult *res, int row, int column)
{
    return strtoll(PQgetvalue(res, row, column), NULL, 10);
}

/* The answer to a statement that returns one number. value may be NULL. */
static int64_t ask_number(demo *d, const char *sql, const char *value)
{
    PGresult *res = ask(d, sql, value == NULL ? 0 : 1, &value);
    int64_t number = number_at(res, 0, 0);

    PQclear(res);
    return number;
}

/* ==== the documents =========================================================================== */

/* The planted documents come first: three that cannot be read, and one that is locked at first. */
static const struct {
    const char *name, *content;
    size_t size;
} PLANTED[] = {{"binary.bin", "\177ELF\0\0\0", 7},
               {"latin1.txt", "a caf\351 in an old encoding\n", 26},
               {"loop.txt", NULL, 0}, /* becomes a symbolic link to itself */
               {"locked.txt", "worth waiting for\n", 18}};

enum { PLANTED_COUNT = sizeof PLANTED / sizeof PLANTED[0] };

static void add_path(demo *d, const char *path)
{
    if (d->count == d->room) {
        d->room = d->room == 0 ? 1024 : 2 * d->room;
        d->paths = (char **)realloc(d->paths, d->room * sizeof *d->paths);
    }
    if (d->paths == NULL || (d->paths[d->count++] = strdup(path)) == NULL) {
        give_up(d, "out of memory");
    }
}

static void plant(demo *d)
{
    char path[512];
    size_t i;
    FILE *file;

    snprintf(d->planted, sizeof d->planted, "/tmp/jobq_demo.XXXXXX");
    if (mkdtemp(d->planted) == NULL) {
        d->planted[0] = '\0';
        give_up(d, "cannot make a folder in /tmp");
    }
    for (i = 0; i < PLANTED_COUNT; i++) {
        snprintf(path, sizeof path, "%s/%s", d->planted, PLANTED[i].name);
        add_path(d, path);
        if (PLANTED[i].content == NULL) {
            if (symlink(PLANTED[i].name, path) != 0) give_up(d, strerror(errno));
            continue;
        }
        file = fopen(path, "wb");
        if (file == NULL) give_up(d, strerror(errno));
        fwrite(PLANTED[i].content, 1, PLANTED[i].size, file);
        if (fclose(file) != 0) give_up(d, strerror(errno));
    }
    snprintf(path, sizeof path, "%s/locked.txt.lock", d->planted);
    file = fopen(path, "wb");
    if (file == NULL || fclose(file) != 0) give_up(d, strerror(errno));
    d->locked = true;
}

static void unlock(demo *d)
{
    char path[512];

    snprintf(path, sizeof path, "%s/locked.txt.lock", d->planted);
    unlink(path);
    d->locked = false;
}

static void unplant(demo *d)
{
    char path[512];
    size_t i;

    if (d->planted[0] == '\0') return;
    if (d->locked) unlock(d);
    for (i = 0; i < PLANTED_COUNT; i++) {
        snprintf(path, sizeof path, "%s/%s", d->planted, PLANTED[i].name);
        unlink(path);
    }
    rmdir(d->planted);
    d->planted[0] = '\0';
}

static int not_dots(const struct dirent *entry)
{
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

/* Adds the files below a folder, in the order of their names. It does not follow links, and leaves
 * out what it cannot open and names that the database would not take. */
static void walk(demo *d, const char *folder)
{
    struct dirent **entries;
    struct stat status;
    char path[4096];
    int i, count = scandir(folder, &entries, not_dots, alphasort);

    for (i = 0; i < count; i++) {
        int length = snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        bool good = length < (int)sizeof path && lstat(path, &status) == 0 &&
                    jobq_utf8_valid(jobq_str_from(path));

        free(entries[i]);
        if (!good || d->count >= (size_t)d->limit + PLANTED_COUNT) continue;
        if (S_ISDIR(status.st_mode)) walk(d, path);
        else if (S_ISREG(status.st_mode)) add_path(d, path);
    }
    if (count >= 0) free(entries);
}

/* Writes documents from .. to - 1 and their jobs, in one transaction: all or nothing. */
static void enqueue(demo *d, size_t from, size_t to)
{
    jobq_pg_job jobs[BATCH];
    int64_t ids[BATCH];
    char payloads[BATCH][24], job[24];
    jobq_pg_error error;
    size_t i;

    tell(d, "BEGIN");
    memset(jobs, 0, sizeof jobs);
    for (i = from; i < to; i++) {
        jobq_pg_job *j = &jobs[i - from];
        snprintf(payloads[i - from], sizeof payloads[0], "%zu", i + 1);
        j->queue = QUEUE;
        j->kind = KIND;
        j->stages = 2;
        j->priority = i < PLANTED_COUNT ? 0 : 5; /* retries of planted ones come soon */
        j->payload = jobq_str_from(payloads[i - from]);
    }
    if (jobq_pg_enqueue_many(d->pg, d->conn, jobs, to - from, ids, &error)) {
        give_up(d, error.message);
    }
    for (i = from; i < to; i++) {
        const char *values[] = {payloads[i - from], job, d->paths[i]};
        snprintf(job, sizeof job, "%" PRId64, ids[i - from]);
        PQclear(ask(d, "INSERT INTO jobq_demo.document VALUES ($1, $2, $3)", 3, values));
    }
    tell(d, "COMMIT");
}

/* ==== progress ================================================================================ */

/* 1234567 as 1,234,567. The last eight results stay valid. */
static const char *grouped(int64_t number)
{
    static char texts[8][32];
    static unsigned turn;
    char plain[24], *out = texts[turn++ % 8];
    int i, length = snprintf(plain, sizeof plain, "%" PRId64, number), at = 0;

    for (i = 0; i < length; i++) {
        if (i > 0 && plain[i - 1] != '-' && (length - i) % 3 == 0) out[at++] = ',';
        out[at++] = plain[i];
    }
    out[at] = '\0';
    return out;
}

/* Prints a line that stays above the line of progress. */
static void event(const demo *d, const char *format, ...)
{
    va_list args;

    printf("%s%7.1f s  ", d->terminal ? "\r\033[K" : "", (double)(now_us() - d->since_us) / 1e6);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

static progress look(demo *d)
{
    PGresult *res = ask(
        d,
        "SELECT (SELECT count(*) FROM jobq_demo.embedding),"
        "       (SELECT count(*) FROM jobq_demo_queue.failed),"
        "       (SELECT coalesce(sum(jsonb_array_length(errors)"
        "                            - CASE state WHEN 'failed' THEN 1 ELSE 0 END), 0)"
        "        FROM jobq_demo_queue.jobs WHERE errors IS NOT NULL),"
        "       (SELECT count(*) FROM jobq_demo.held),"
        "       (SELECT count(*) FROM jobq_demo.held h WHERE NOT EXISTS ("
        "        SELECT FROM jobq_demo_queue.job j WHERE j.id = h.job AND j.worker = h.token))",
        0, NULL);
    progress p;

    p.embedded = number_at(res, 0, 0);
    p.failed = number_at(res, 0, 1);
    p.retries = number_at(res, 0, 2);
    p.held = number_at(res, 0, 3);
    p.rescued = number_at(res, 0, 4);
    PQclear(res);
    return p;
}

static int64_t done(const progress *p)
{
    return p->embedded + p->failed;
}

/* Documents a second, measured over the last few seconds. */
static double rate(demo *d, int64_t at_us)
{
    const unsigned room = sizeof d->marks / sizeof d->marks[0];
    const mark *first = &d->marks[d->mark_count < room ? 0 : d->mark_count % room];
    mark latest = {at_us, done(&d->now)};
    double speed = 0;

    if (d->mark_count > 0 && at_us > first->at_us) {
        speed = (double)(latest.done - first->done) * 1e6 / (double)(at_us - first->at_us);
    }
    d->marks[d->mark_count++ % room] = latest;
    return speed;
}

static void show(demo *d)
{
    int64_t at_us = now_us(), left = (int64_t)d->count - done(&d->now);
    double speed = rate(d, at_us);

    if (!d->terminal && at_us < d->line_us && left > 0) return;
    d->line_us = at_us + 2000000;
    printf("%s%7.1f s  %s of %s, %.0f/s, retries %" PRId64 ", failed %" PRId64 ", rescued %" PRId64,
           d->terminal ? "\r\033[K" : "", (double)(at_us - d->since_us) / 1e6,
           grouped(done(&d->now)), grouped((int64_t)d->count), speed, d->now.retries, d->now.failed,
           d->now.rescued);
    if (left > 0 && speed > 0) printf(", %.0f s left", (double)left / speed + 0.5);
    printf(d->terminal ? "" : "\n");
    fflush(stdout);
}

/* ==== the worker processes ==================================================================== */

/* Starts a worker process, by exec, because a handle must not be used after a fork. */
static void start_worker(demo *d)
{
    process *p = &d->processes[d->process_count];

    if (d->process_count == WORKERS_MAX + RESTARTS_MAX) give_up(d, "too many workers died");
    snprintf(p->name, sizeof p->name, "worker-%d", ++d->process_count);
    p->pid = fork();
    if (p->pid < 0) give_up(d, strerror(errno));
    if (p->pid > 0) return;
    dup2(d->leash[0], STDIN_FILENO);
    execlp(d->program, d->program, "--worker", p->name, (char *)NULL);
    fprintf(stderr, "%s: %s\n", d->program, strerror(errno));
    _exit(127);
}

/* Records which jobs a dead worker held, as soon as the server has closed its connection. */
static void note_held(demo *d, const process *p)
{
    const char *name = p->name;
    int64_t before = d->now.held;
    int i;

    for (i = 0; i < 100; i++) {
        if (ask_number(d, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1",
                       name) == 0) {
            break;
        }
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    PQclear(ask(d,
                "INSERT INTO jobq_demo.held SELECT j.id, j.worker, w.name, j.stage"
                " FROM jobq_demo_queue.job j JOIN jobq_demo_queue.worker w ON w.id = j.worker"
                " WHERE w.name = $1",
                1, &name));
    d->now = look(d);
    event(d, "%s (pid %d) was found dead; it held %s jobs; its lease lasts %d s", name,
          (int)p->pid, grouped(d->now.held - before), (int)(LEASE_US / 1000000));
}

/* Looks for workers that have ended, and replaces one that was killed. */
static void reap(demo *d)
{
    int i, status;

    for (i = 0; i < d->process_count; i++) {
        process *p = &d->processes[i];
        if (p->pid == 0 || waitpid(p->pid, &status, WNOHANG) != p->pid) continue;
        if (!WIFSIGNALED(status)) give_up(d, "a worker has ended by itself");
        if (d->death_us == 0) d->death_us = now_us();
        note_held(d, p);
        p->pid = 0;
        start_worker(d);
        event(d, "%s starts in its place", d->processes[d->process_count - 1].name);
    }
}

/* Kills the second worker once 40 % is done and it holds a job. */
static void kill_one(demo *d)
{
    const process *p = &d->processes[d->workers > 1 ? 1 : 0];

    if (d->killed || p->pid == 0 || done(&d->now) * 100 < (int64_t)d->count * 40) return;
    if (ask_number(d,
                   "SELECT count(*) FROM jobq_demo_queue.job j JOIN jobq_demo_queue.worker w"
                   " ON w.id = j.worker WHERE w.name = $1",
                   p->name) == 0) {
        return;
    }
    d->killed = kill(p->pid, SIGKILL) == 0;
    d->death_us = now_us();
}

/* Removes the planted lock after two attempts have met it. */
static void unlock_in_time(demo *d)
{
    if (d->locked && ask_number(d,
                                "SELECT count(*) FROM jobq_demo_queue.job"
                                " WHERE jsonb_array_length(errors) >= 2",
                                NULL) > 0) {
        unlock(d);
    }
}

/* Done five times a second, less often when the database answers slowly. */
static void tick(demo *d)
{
    int64_t begun_us = now_us(), cost_us, held = d->now.held, rescued = d->now.rescued;

    if (begun_us < d->tick_us) return;
    reap(d);
    d->now = look(d);
    if (d->now.rescued == d->now.held && rescued < held) {
        event(d, "all its jobs have been taken over, %.1f s after its death",
              (double)(now_us() - d->death_us) / 1e6);
        d->death_us = 0;
    }
    kill_one(d);
    unlock_in_time(d);
    show(d);
    cost_us = now_us() - begun_us;
    d->tick_us = begun_us + (cost_us > 10000 ? 20 * cost_us : 200000);
}

/* Closes the workers' standard input and waits for them. */
static void stop_workers(demo *d)
{
    int i, status;

    close(d->leash[1]);
    for (i = 0; i < d->process_count; i++) {
        process *p = &d->processes[i];
        if (p->pid == 0) continue;
        while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR) {}
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) d->badly_ended++;
        p->pid = 0;
    }
}

/* ==== the summary ============================================================================= */

/* Prints a title and the lines that a statement returns. */
static void print_lines(demo *d, const char *title, const char *sql)
{
    PGresult *res = ask(d, sql, 0, NULL);
    int row;

    if (PQntuples(res) > 0) printf("\n%s\n", title);
    for (row = 0; row < PQntuples(res); row++) printf("  %s\n", PQgetvalue(res, row, 0));
    PQclear(res);
}

static void print_totals(demo *d, double seconds)
{
    int64_t results = ask_number(d,
                                 "SELECT (SELECT count(*) FROM jobq_demo.extraction)"
                                 "     + (SELECT count(*) FROM jobq_demo.embedding)",
                                 NULL);

    printf("\n%s documents in %.1f s, %.0f a second: %s embedded, %s failed\n",
           grouped((int64_t)d->count), seconds, (double)d->count / seconds,
           grouped(d->now.embedded), grouped(d->now.failed));
    printf("%s jobs of two stages took %s attempts: %s results, %s retries, %s failures\n",
           grouped((int64_t)d->count), grouped(results + d->now.retries + d->now.failed),
           grouped(results), grouped(d->now.retries), grouped(d->now.failed));
    if (d->now.held > 0) {
        printf("%s jobs had the lease token of a killed worker; %s of them were rescued\n",
               grouped(d->now.held), grouped(d->now.rescued));
    } else {
        printf("no worker was killed while it held a job, because there was too little work\n");
    }
}

static void print_summary(demo *d, double seconds)
{
    print_totals(d, seconds);
    print_lines(d, "Time in the handler, and from the claim of the last stage to the end",
                "SELECT format('%-12s %8s times   half within %6s ms   99 %% within %6s ms', what,"
                "              count(*),"
                "         round((percentile_cont(0.5) WITHIN GROUP (ORDER BY ms))::numeric, 1),"
                "         round((percentile_cont(0.99) WITHIN GROUP (ORDER BY ms))::numeric, 1))"
                " FROM (SELECT 1, 'EXTRACTION', took_us / 1e3 FROM jobq_demo.extraction"
                "       UNION ALL SELECT 2, 'EMBEDDING', took_us / 1e3 FROM jobq_demo.embedding"
                "       UNION ALL SELECT 3, 'claim to end', extract(epoch FROM finished_at"
                "                                                    - claimed_at) * 1e3"
                "                 FROM jobq_demo_queue.history) AS t (place, what, ms)"
                " GROUP BY place, what ORDER BY place");
    print_lines(d, "Who did what",
                "SELECT format('%-10s %8s extractions %8s embeddings   %s', worker,"
                "              sum(1 - stage), sum(stage),"
                "              CASE WHEN max(claims) IS NULL THEN 'was killed'"
                "                   WHEN max(rescued) > 0 THEN format('rescued %s', max(rescued))"
                "              END)"
                " FROM (SELECT worker, 0 FROM jobq_demo.extraction"
                "       UNION ALL SELECT worker, 1 FROM jobq_demo.embedding) AS r (worker, stage)"
                " LEFT JOIN jobq_demo.report USING (worker) GROUP BY worker"
                " ORDER BY length(worker), worker");
    print_lines(d, "Failed, and why",
                "SELECT format('%5s  %-46s %s', count(*), errors->-1->>'error', min(path)"
                "              || CASE WHEN count(*) > 1 THEN ', ...' ELSE '' END)"
                " FROM jobq_demo_queue.failed f JOIN jobq_demo.document d ON d.job = f.id"
                " GROUP BY errors->-1->>'error' ORDER BY count(*) DESC, 1");
}

/* ==== similar documents ======================================================================= */

enum { ALIKE = 5, KEPT = 200, HEAD = 32 };

/* tail: the length of the vector after its first HEAD numbers. It bounds what the rest can still
 * add to an inner product. */
typedef struct embedding {
    const char *path;
    float vector[VECTOR], tail;
} embedding;

typedef struct pair {
    const embedding *a, *b;
    float cosine;
} pair;

static float product(const float *a, const float *b, int count)
{
    float sum = 0;
    int i;

    for (i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* Reads "{1,2,...}". The numbers were rounded, so the vector is scaled to length 1 again. */
static void vector_from(embedding *e, const char *array)
{
    float length, tail;
    int i;

    for (i = 0; i < VECTOR; i++) {
        char *end;
        e->vector[i] = strtof(array + 1, &end);
        array = end;
    }
    length = (float)root((double)product(e->vector, e->vector, VECTOR));
    for (i = 0; length > 0 && i < VECTOR; i++) e->vector[i] /= length;
    tail = product(e->vector + HEAD, e->vector + HEAD, VECTOR - HEAD);
    e->tail = (float)root((double)tail);
}

static const char *name_of(const embedding *e)
{
    const char *slash = strrchr(e->path, '/');

    return slash == NULL ? e->path : slash + 1;
}

/* Inserts a pair into the list of the best, if it is one of them. */
static void offer(pair *best, pair candidate)
{
    int i = KEPT - 1;

    if (candidate.cosine <= best[i].cosine) return;
    if (strcmp(name_of(candidate.a), name_of(candidate.b)) == 0) return;
    for (; i > 0 && best[i - 1].cosine < candidate.cosine; i--) best[i] = best[i - 1];
    best[i] = candidate;
}

/* Compares every pair. For most, the first HEAD numbers already show that they are too
 * different. */
static void compare(const embedding *all, int count, pair *best)
{
    int i, j;

    for (i = 0; i < count; i++) {
        for (j = 0; j < i; j++) {
            pair p = {&all[i], &all[j], 0};
            p.cosine = product(p.a->vector, p.b->vector, HEAD);
            if (p.cosine + p.a->tail * p.b->tail <= best[KEPT - 1].cosine) continue;
            p.cosine += product(p.a->vector + HEAD, p.b->vector + HEAD, VECTOR - HEAD);
            offer(best, p);
        }
    }
}

/* The path without the folder. */
static const char *short_path(const demo *d, const char *path)
{
    size_t length = strlen(d->folder);

    return strncmp(path, d->folder, length) == 0 ? path + length + 1 : path;
}

/* Prints the best pairs, each document once, because similar versions of one file would fill the
 * list. */
static void print_pairs(const demo *d, pair *best)
{
    const pair *shown[ALIKE];
    int i, j, count = 0;

    for (i = 0; i < KEPT && best[i].a != NULL && count < ALIKE; i++) {
        const pair *p = &best[i];
        for (j = 0; j < count; j++) {
            const pair *q = shown[j];
            if (p->a == q->a || p->a == q->b || p->b == q->a || p->b == q->b) break;
        }
        if (j < count) continue;
        shown[count++] = p;
        printf("  %.4f  %s\n          %s\n", (double)p->cosine, short_path(d, p->a->path),
               short_path(d, p->b->path));
    }
}

static void print_alike(demo *d)
{
    PGresult *res = ask(d,
                        "SELECT d.path, e.vector FROM jobq_demo.embedding e"
                        " JOIN jobq_demo.document d ON d.id = e.document"
                        " JOIN (SELECT min(document) AS document FROM jobq_demo.extraction"
                        "       WHERE words >= 100 GROUP BY md5(body)) x ON x.document = d.id"
                        " ORDER BY md5(d.id::text) LIMIT 8000",
                        0, NULL);
    int i, count = PQntuples(res);
    embedding *all = (embedding *)malloc(((size_t)count + 1) * sizeof *all);
    pair best[KEPT];

    if (all == NULL) give_up(d, "out of memory");
    memset(best, 0, sizeof best);
    for (i = 0; i < count; i++) {
        all[i].path = PQgetvalue(res, i, 0);
        vector_from(&all[i], PQgetvalue(res, i, 1));
    }
    compare(all, count, best);
    if (best[0].a != NULL) {
        printf("\nMost similar of %s documents, no copies, short ones or namesakes (cosine)\n",
               grouped(count));
    }
    print_pairs(d, best);
    free(all);
    PQclear(res);
}

/* ==== what must hold ========================================================================== */

/* Each statement counts the rows that break the sentence. */
static const struct {
    const char *sentence, *sql;
} LAWS[] = {
    {"every job has ended",
     "SELECT count(*) FROM jobq_demo.document d JOIN jobq_demo_queue.jobs j ON j.id = d.job"
     " WHERE j.state NOT IN ('succeeded', 'failed')"},
    {"every document has one job",
     "SELECT count(*) FROM jobq_demo.document d FULL JOIN jobq_demo_queue.jobs j ON j.id = d.job"
     " WHERE d.id IS NULL OR j.id IS NULL"},
    {"each good document has exactly one result of each stage",
     "SELECT count(*) FROM jobq_demo.document d"
     " LEFT JOIN (SELECT document, count(*) AS n FROM jobq_demo.extraction GROUP BY 1) x"
     "        ON x.document = d.id"
     " LEFT JOIN (SELECT document, count(*) AS n FROM jobq_demo.embedding GROUP BY 1) e"
     "        ON e.document = d.id"
     " WHERE d.job NOT IN (SELECT id FROM jobq_demo_queue.failed)"
     "   AND (x.n IS DISTINCT FROM 1 OR e.n IS DISTINCT FROM 1)"},
    {"a failed document has no result",
     "SELECT count(*) FROM jobq_demo.document d JOIN jobq_demo_queue.failed f ON f.id = d.job"
     " WHERE d.id IN (SELECT document FROM jobq_demo.extraction"
     "                UNION ALL SELECT document FROM jobq_demo.embedding)"},
    {"the three bad documents have failed, each with its reason",
     "SELECT count(*) FROM (VALUES (1, 'binary: %'), (2, 'not UTF-8%'), (3, 'unreadable: %'))"
     "       AS bad (id, reason)"
     " WHERE NOT EXISTS (SELECT FROM jobq_demo.document d"
     "                   JOIN jobq_demo_queue.failed f ON f.id = d.job"
     "                   WHERE d.id = bad.id AND f.errors->-1->>'error' LIKE bad.reason)"},
    {"the locked document succeeded after two retries or more",
     "SELECT 1 - count(*) FROM jobq_demo.document d JOIN jobq_demo_queue.jobs j ON j.id = d.job"
     " WHERE d.id = 4 AND j.state = 'succeeded' AND jsonb_array_length(j.errors) >= 2"},
    {"the jobs that a killed worker held were done by others",
     "SELECT count(*) FROM jobq_demo.held h JOIN jobq_demo.document d ON d.job = h.job"
     " WHERE NOT EXISTS (SELECT FROM jobq_demo_queue.failed f WHERE f.id = h.job)"
     "   AND NOT EXISTS (SELECT FROM jobq_demo.extraction x"
     "                   WHERE h.stage = 0 AND x.document = d.id AND x.worker <> h.worker)"
     "   AND NOT EXISTS (SELECT FROM jobq_demo.embedding e"
     "                   WHERE h.stage = 1 AND e.document = d.id AND e.worker <> h.worker)"},
    {"no job runs without a claim (jobq.audit)", "SELECT jobq_demo_queue.audit()"}};

static bool verdict(const char *sentence, int64_t broken)
{
    printf("%s  %s", broken == 0 ? "PASS" : "FAIL", sentence);
    if (broken != 0) printf(": %" PRId64 " exceptions", broken);
    printf("\n");
    return broken == 0;
}

static bool check(demo *d)
{
    bool good;
    size_t i;

    printf("\n");
    good = verdict("every worker that was not killed ended without an error", d->badly_ended);
    for (i = 0; i < sizeof LAWS / sizeof LAWS[0]; i++) {
        if (!verdict(LAWS[i].sentence, ask_number(d, LAWS[i].sql, NULL))) good = false;
    }
    return good;
}

/* ==== main ==================================================================================== */

static int usage(void)
{
    fprintf(stderr,
            "usage: make demo ARGS=\"[FOLDER] [--limit N] [--workers N] [--keep]\"\n"
            "   or: JOBQ_SERVER=\"host=... dbname=...\" pipeline [FOLDER] ...\n\n"
            "  FOLDER       every file below it is a document (default: /usr/include)\n"
            "  --limit N    take at most N of them\n"
            "  --workers N  processes, 1 to %d (default: 3)\n"
            "  --keep       leave the schemas jobq_demo and jobq_demo_queue in the database\n",
            WORKERS_MAX);
    return 2;
}

static bool read_number(const char *text, long low, long high, long *number)
{
    char *end;

    if (text == NULL || *text == '\0') return false;
    *number = strtol(text, &end, 10);
    return *end == '\0' && *number >= low && *number <= high;
}

static bool read_arguments(demo *d, int argc, char **argv)
{
    long workers = 3;
    int i;

    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--keep") == 0) d->keep = true;
        else if (strcmp(argv[i], "--limit") == 0) {
            if (!read_number(argv[++i], 1, 100000000, &d->limit)) return false;
        } else if (strcmp(argv[i], "--workers") == 0) {
            if (!read_number(argv[++i], 1, WORKERS_MAX, &workers)) return false;
        } else if (argv[i][0] == '-') return false;
        else d->folder = argv[i];
    }
    while (strlen(d->folder) > 1 && d->folder[strlen(d->folder) - 1] == '/') {
        d->folder[strlen(d->folder) - 1] = '\0';
    }
    d->workers = (int)workers;
    return true;
}

/* Drops and creates the schemas, and the queue with a short backoff, so that retries come soon. */
static void set_up(demo *d, const char *server)
{
    jobq_pg_desc desc = {0};
    jobq_pg_error error;
    int i;

    desc.conninfo = server;
    desc.schema = "jobq_demo_queue";
    if (jobq_pg_open(&d->pg, &desc, &error) || jobq_pg_acquire(d->pg, &d->conn, &error)) {
        give_up(d, error.message);
    }
    if (ask_number(d, "SELECT (NOT pg_try_advisory_lock(hashtext('jobq_demo')))::int", NULL)) {
        give_up(d, "another demo is running in this database: wait for it, or use another one");
    }
    tell(d, "SET client_min_messages = warning");
    for (i = 0; i < TABLE_COUNT; i++) tell(d, TABLES[i]);
    if (jobq_pg_migrate(d->pg, &error)) give_up(d, error.message);
    tell(d, "SELECT jobq_demo_queue.queue_set('" QUEUE "', backoff_base => '300 ms',"
            " backoff_cap => '1 s')");
}

/* Installs the signal handlers, and starts the workers on a pipe that ends with this process. */
static void set_up_processes(demo *d)
{
    struct sigaction action;
    int i;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (pipe(d->leash) != 0 || fcntl(d->leash[1], F_SETFD, FD_CLOEXEC) != 0) {
        give_up(d, strerror(errno));
    }
    for (i = 0; i < d->workers; i++) start_worker(d);
}

/* Enqueues the documents while the workers already run. Ends early when asked to stop. */
static void work(demo *d)
{
    size_t from, to;

    for (from = 0; from < d->count && !stop_asked; from = to) {
        to = from + BATCH < d->count ? from + BATCH : d->count;
        enqueue(d, from, to);
        tick(d);
    }
    while (!stop_asked && done(&d->now) < (int64_t)d->count) {
        nanosleep(&(struct timespec){0, 20000000}, NULL);
        tick(d);
    }
    if (d->terminal) printf("\n");
}

static void clean_up(demo *d)
{
    size_t i;

    unplant(d);
    if (!d->keep) tell(d, "DROP SCHEMA jobq_demo, jobq_demo_queue CASCADE");
    jobq_pg_release(d->pg, d->conn);
    jobq_pg_close(d->pg);
    for (i = 0; i < d->count; i++) free(d->paths[i]);
    free(d->paths);
}

static int parent_main(demo *d, const char *server)
{
    double seconds;
    bool good;

    set_up(d, server);
    plant(d);
    walk(d, d->folder);
    if (d->count == PLANTED_COUNT) give_up(d, "no file there: name a folder that has some");
    printf("%s documents from %s, and %d planted ones; worker processes: %d\n",
           grouped((int64_t)d->count - PLANTED_COUNT), d->folder, PLANTED_COUNT, d->workers);
    fflush(stdout);
    d->since_us = now_us();
    d->line_us = d->since_us + 2000000;
    set_up_processes(d);
    work(d);
    seconds = (double)(now_us() - d->since_us) / 1e6;
    stop_workers(d);
    d->now = look(d);
    if (stop_asked) {
        printf("stopped: %s of %s documents were done\n", grouped(done(&d->now)),
               grouped((int64_t)d->count));
        clean_up(d);
        return 130;
    }
    print_summary(d, seconds);
    print_alike(d);
    good = check(d);
    clean_up(d);
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    const char *server = getenv("JOBQ_SERVER");
    char folder[] = "/usr/include";
    demo d;

    if (server == NULL) return usage();
    if (argc == 3 && strcmp(argv[1], "--worker") == 0) return worker_main(server, argv[2]);
    memset(&d, 0, sizeof d);
    d.program = argv[0];
    d.folder = folder;
    d.limit = 100000000;
    d.terminal = isatty(STDOUT_FILENO) != 0;
    if (!read_arguments(&d, argc, argv)) return usage();
    return parent_main(&d, server);
}
