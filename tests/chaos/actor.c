/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * actor.c -- one process of the chaos run.
 *
 *     actor migrate | producer | planner | sender | worker | consumer | operator
 *           LOG NAME SECONDS [pooled]
 *
 * It uses the server of JOBQ_SERVER; the library is in the schema jobq_chaos, the tables of the
 * harness are in jobq_chaos_watch (watch.sql). It ends after SECONDS, or on SIGTERM. Everything
 * that it tries and every answer that it gets goes to LOG. A worker reacts to two more signals:
 * SIGUSR1 stops it inside the transaction of the next handler, SIGUSR2 steps its wall clock.
 */
#define JOBQ_IMPLEMENTATION
#define JOBQ_PG_IMPLEMENTATION
#include "jobq_pg.h"

#include "../harness/step.h"
#include "log.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define SCHEMA "jobq_chaos"
#define WATCH "jobq_chaos_watch"
#define PARTITIONS 4
#define REFUSED 97 /* one message of this many is refused */
#define RECEIVERS 4

static const char *role, *name;
static jobq_pg *pg;
static jobq_random dice; /* the main thread's */
static volatile sig_atomic_t stopping, clock_steps;
static volatile int stop_inside;
static volatile int64_t stop_job_us; /* a job does it from then on */
static int64_t end_us;

/* -- a wall clock that steps: what this program, the library and libpq read. A step is an hour on,
 * an hour back, a day on ... -- */

static int64_t stepped_us(void)
{
    static const int64_t hours[] = {0, 1, -1, 24, -24, 0};

    return hours[clock_steps % 6] * 3600 * 1000000;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int64_t us;

    if (syscall(SYS_clock_gettime, clock, t) != 0) return -1;
    if (clock != CLOCK_REALTIME) return 0;
    us = (int64_t)t->tv_sec * 1000000 + t->tv_nsec / 1000 + stepped_us();
    t->tv_sec = (time_t)(us / 1000000);
    t->tv_nsec = (long)(us % 1000000 * 1000);
    return 0;
}

time_t time(time_t *result)
{
    time_t now = (time_t)((kernel_us(CLOCK_REALTIME) + stepped_us()) / 1000000);

    if (result != NULL) *result = now;
    return now;
}

/* -- common -- */

static void on_signal(int number)
{
    if (number == SIGTERM) stopping = 1;
    if (number == SIGUSR1) {
        stop_job_us = mono_us() + mono_us() / 1000 % 2 * 1500000;
        stop_inside = 1;
    }
    if (number == SIGUSR2) clock_steps++;
}

static bool going(void)
{
    return stopping == 0 && mono_us() < end_us;
}

static int64_t between(int64_t least, int64_t most)
{
    return jobq_random_between(jobq_random_next(&dice), least, most);
}

static void say(const char *event, int64_t id, const char *detail)
{
    log_line(role, event, id, 0, 0, 0, detail);
}

/* Connections come and go: asked for until there is one. NULL: the end. */
static PGconn *connection(void)
{
    PGconn *conn;
    jobq_pg_error error;

    while (going()) {
        if (jobq_pg_acquire(pg, &conn, &error) == JOBQ_OK) return conn;
        nap_us(100000);
    }
    return NULL;
}

static bool run(PGconn *conn, const char *format, ...)
{
    char text[600];
    va_list args;
    PGresult *res;
    bool good;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    res = PQexec(conn, text);
    good = PQresultStatus(res) == PGRES_COMMAND_OK || PQresultStatus(res) == PGRES_TUPLES_OK;
    PQclear(res);
    return good;
}

/* "committed", "failed" (rolled back for certain) or "unknown". Errors of class 08 come from
 * a pooler that has lost its connection to the server. */
static const char *commit(PGconn *conn)
{
    PGresult *res = PQexec(conn, "COMMIT");
    const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    const char *answer = "unknown";

    if (PQresultStatus(res) == PGRES_COMMAND_OK) {
        answer = strcmp(PQcmdStatus(res), "COMMIT") == 0 ? "committed" : "failed";
    } else if (sqlstate != NULL && strncmp(sqlstate, "08", 2) != 0 &&
               PQstatus(conn) == CONNECTION_OK) {
        answer = "failed";
    }
    PQclear(res);
    return answer;
}

/* -- producer -- */

/* Queues of jobs. Their limits are in chaos.sh. A job of the last one names no line. */
static const char *const queues[] = {"chaos", "lines", "strict", "quota"};

#define KINDS 5
#define QUEUES 4
#define LINES 30

/* The queue for a job: mostly the one without limits. */
static int some_queue(void)
{
    int draw = (int)between(0, 9);

    return draw < 6 ? 0 : draw - 6;
}

/* One of the few lines of a queue, or of the many: small numbers come more often. */
static void some_line(char *line, size_t size, int queue)
{
    int64_t most = queue == 1 ? LINES - 1 : 5;

    snprintf(line, size, "line-%d", (int)between(0, between(0, most)));
}

/* Whether there is a worker in Python, which has a kind of its own. */
static bool in_python(void)
{
    const char *path = getenv("CHAOS_PYTHON");

    return path != NULL && access(path, F_OK) == 0;
}

/* Of 200 jobs: what they are. */
static jobq_pg_job some_job(char *payload, size_t size, int64_t ref, int queue)
{
    int draw = (int)between(0, 199);
    jobq_pg_job job;

    memset(&job, 0, sizeof job);
    job.queue = queues[queue];
    job.kind = draw < 90 ? "ledger" : draw < 160 ? "outside" : draw < 195 ? "flaky" : "hopeless";
    if (draw < 30 && queue == 0 && in_python()) job.kind = "python";
    if (draw == 199) job.kind = "crashing";
    if (draw >= 195 && draw < 199) job.max_attempts = 3;
    job.stages = draw < 199 && draw % 3 == 0 ? 2 : 1;
    if (strcmp(job.kind, "hopeless") == 0) job.stages = 1;
    job.priority = draw % 5 == 0 ? 1 : 0;
    if (draw % 7 == 0) job.delay_us = between(1, 300000);
    if (draw % 6 == 0) job.expires_us = between(1000, between(1000, 3000000));
    snprintf(payload, size, "{\"ref\": %lld}", (long long)ref);
    job.payload = jobq_str_from(payload);
    return job;
}

/* Queues by who delivers: consumers step by step, workers in the transaction that acknowledges,
 * workers outside; the messages of a schedule; copies of those of inside. Nobody reads the last
 * two, which are copies, too: of all, and of the times for which an operator subscribed. */
static const char *const outboxes[] = {"steps", "inside", "letters", "ticks",
                                       "copies", "dead", "loop"};
static const jobq_pg_subscription subscriptions[] = {
    {.name = "copies", .source = "inside", .queue = "copies"},
    {.name = "jobs", .source = "inside", .queue = "copied", .kind = "ledger"},
    {.name = "dead", .source = "inside", .queue = "dead"}};

/* The order's event goes to the outbox; a producer's own events keep their order in each queue. */
static bool event_of(PGconn *conn, int64_t ref)
{
    char payload[40];
    jobq_pg_message m;

    memset(&m, 0, sizeof m);
    snprintf(payload, sizeof payload, "{\"ref\": %lld}", (long long)ref);
    m.queue = outboxes[ref % 3];
    m.partition = (int)(getpid() % PARTITIONS);
    m.payload = jobq_str_from(payload);
    return jobq_pg_outbox_enqueue(pg, conn, &m, NULL, NULL) == JOBQ_OK &&
           run(conn, "INSERT INTO " WATCH ".events VALUES (%lld, %d, '%s')", (long long)ref,
               (int)getpid(), m.queue);
}

/* An order and its jobs in one transaction; some are rolled back on purpose. */
static void order(PGconn *conn, int64_t ref)
{
    char payloads[5][40], line[20];
    jobq_pg_job jobs[5];
    int64_t ids[5];
    size_t count = (size_t)(between(0, 3) == 0 ? 5 : 1), i;
    int queue = some_queue();
    bool back = between(0, 9) == 0, lined = between(0, 9) == 0, good;

    some_line(line, sizeof line, queue);
    for (i = 0; i < count; i++) {
        jobs[i] = some_job(payloads[i], sizeof payloads[i], ref, queue);
        if (queue == 0 ? lined : queue < 3) jobs[i].line = line;
    }
    say("try", ref, "order");
    good = run(conn, "BEGIN") &&
           (count == 1 ? jobq_pg_enqueue(pg, conn, jobs, ids, NULL)
                       : jobq_pg_enqueue_many(pg, conn, jobs, count, ids, NULL)) == JOBQ_OK;
    if (good) good = event_of(conn, ref);
    for (i = 0; good && i < count; i++) {
        good = run(conn, "INSERT INTO " WATCH ".orders VALUES (%lld, %lld, '%s')",
                   (long long)ids[i], (long long)ref, jobs[i].kind);
    }
    if (!good || back) {
        run(conn, "ROLLBACK");
        say("answer", ref, back ? "withdrawn" : "failed");
    } else {
        say("answer", ref, commit(conn));
    }
}

/* A job for one of 50 keys, which all producers share. Asked for once, so that it is known between
 * which two lines of the log its payload was written. */
static void replacing(int64_t ref)
{
    char payload[40], key[40];
    jobq_pg_job job;
    int64_t id = 0;

    memset(&job, 0, sizeof job);
    snprintf(payload, sizeof payload, "{\"ref\": %lld}", (long long)ref);
    snprintf(key, sizeof key, "shared-%d", (int)between(0, 49));
    job.queue = "chaos";
    job.kind = "ledger";
    job.payload = jobq_str_from(payload);
    job.key = key;
    job.on_known = JOBQ_KNOWN_REPLACE;
    say("try", ref, "replace");
    if (jobq_pg_enqueue(pg, NULL, &job, &id, NULL) == JOBQ_OK)
        log_line(role, "replaced", id, 0, 0, ref, key);
}

/* How a job ended, as a wait for it tells: its state, and what it left behind. */
static void wait_for(int64_t id)
{
    const jobq_pg_job_row *row;
    jobq_pg_rows rows;
    char detail[100];
    jobq_error answer = jobq_pg_wait(pg, NULL, &id, 1, between(0, 8000000), &rows, NULL);

    row = (const jobq_pg_job_row *)rows.rows;
    if (answer == JOBQ_OK)
        snprintf(detail, sizeof detail, "%s %s",
                 jobq_enum_name(JOBQ_ENUM_STATE, row->facts.state),
                 row->result.ptr == NULL ? "nothing" : row->result.ptr);
    else
        snprintf(detail, sizeof detail, "%s", answer == JOBQ_ERROR_TIMEOUT ? "late" : "error");
    log_line(role, "waited", id, 0, 0, 0, detail);
    jobq_pg_rows_clear(&rows);
}

/* One job under a key, asked for until it is certain that it is there. */
static void keyed(int64_t ref)
{
    char payload[40], key[40], line[20];
    int queue = some_queue();
    jobq_pg_job job = some_job(payload, sizeof payload, ref, queue);
    jobq_error answer;
    int64_t id = 0;

    some_line(line, sizeof line, queue);
    if (queue == 1 || queue == 2) job.line = line;
    snprintf(key, sizeof key, "key-%lld", (long long)ref);
    job.key = key;
    say("try", ref, "keyed");
    do {
        answer = jobq_pg_enqueue(pg, NULL, &job, &id, NULL);
        if (answer != JOBQ_OK && answer != JOBQ_ERROR_EXISTS) nap_us(50000);
    } while (answer != JOBQ_OK && answer != JOBQ_ERROR_EXISTS && going());
    if (id == 0) return;
    log_line(role, "keyed", id, 0, 0, ref, answer == JOBQ_OK ? "new" : "known");
    if (ref % 3 == 0) wait_for(id);
}

static void produce(void)
{
    int64_t ref = ((int64_t)getpid() << 32) | ((mono_us() / 1000000 & 0xfff) << 20);
    PGconn *conn;

    while (going()) {
        ref++;
        if (between(0, 3) == 0) {
            keyed(ref);
        } else if (between(0, 3) == 0) {
            replacing(ref);
        } else if ((conn = connection()) != NULL) {
            order(conn, ref);
            jobq_pg_release(pg, conn);
        }
        nap_us(between(0, 24000));
    }
}

/* -- handlers of jobs -- */

static void note(jobq_call *call, const char *event, const char *detail)
{
    const jobq_job *j = &call->job;

    log_line(role, event, j->id, j->stage, j->worker, j->claim, detail);
}

static unsigned chance(const jobq_call *call)
{
    jobq_random r = {(uint64_t)call->job.id * 31 + (uint64_t)call->job.claim};

    return (unsigned)(jobq_random_next(&r) % 100);
}

static jobq_outcome ended(jobq_call *call, jobq_outcome outcome)
{
    note(call, "end", jobq_enum_name(JOBQ_ENUM_OUTCOME, (int)outcome));
    return outcome;
}

/* Whether this handler is to stop the process. Every second time a message is preferred: they are
 * fewer than jobs. */
static bool take_stop(bool message)
{
    if (stop_inside == 0 || (!message && stop_job_us > mono_us())) return false;
    return __sync_bool_compare_and_swap(&stop_inside, 1, 0);
}

static void note_start(jobq_call *call)
{
    note(call, "start", call->job.alone ? "alone" : call->job.suspect ? "suspect" : "");
}

/* Leaves a result that names the job and the claim that it was run in. */
static void leave(jobq_call *call)
{
    char result[60];

    snprintf(result, sizeof result, "[%lld, %lld]", (long long)call->job.id,
             (long long)call->job.claim);
    jobq_call_result(call, jobq_str_from(result), false);
}

/* Effects in the database, in the transaction that completes the job. */
static jobq_outcome ledger(jobq_call *call)
{
    const jobq_job *j = &call->job;
    PGconn *conn;

    note_start(call);
    jobq_call_delay(call, 20000);
    conn = jobq_pg_call_conn(call, NULL);
    if (conn == NULL || !run(conn, "BEGIN") ||
        !run(conn, "INSERT INTO " WATCH ".ledger (job, stage, worker, claim) VALUES (%lld, %d, "
             "%lld, %lld)", (long long)j->id, (int)j->stage, (long long)j->worker,
             (long long)j->claim)) {
        return ended(call, JOBQ_OUTCOME_RETRY);
    }
    if (take_stop(false)) {
        note(call, "stopped_inside", "");
        raise(SIGSTOP);
    }
    if (chance(call) < 5) nap_us(400000);
    if (call->job.stage + 1 == call->job.stages) leave(call);
    return ended(call, jobq_pg_call_commit(call, conn));
}

/* Whether what was delivered before is to take its time: words of its last holder may arrive. */
static bool slowly(void)
{
    const char *path = getenv("CHAOS_SLOWLY");

    return path != NULL && access(path, F_OK) == 0;
}

/* Effects elsewhere: this log is the outside world. */
static jobq_outcome outside(jobq_call *call)
{
    note_start(call);
    nap_us(chance(call) < 3 ? 700000 : chance(call) * 100);
    if (call->job.suspect && slowly()) nap_us(2000000);
    if (jobq_call_stopping(call, NULL) == JOBQ_STOP_CANCEL)
        return ended(call, JOBQ_OUTCOME_CANCELLED);
    note(call, "effect", "");
    if (call->job.stage + 1 == call->job.stages) leave(call);
    return ended(call, JOBQ_OUTCOME_SUCCESS);
}

static jobq_outcome flaky(jobq_call *call)
{
    unsigned draw = chance(call);

    if (draw >= 40) return ledger(call);
    note_start(call);
    jobq_call_delay(call, 1000 + draw * 1000);
    jobq_call_error(call, jobq_str_from("flaky"));
    return ended(call, draw < 30 ? JOBQ_OUTCOME_RETRY : JOBQ_OUTCOME_SNOOZE);
}

static jobq_outcome hopeless(jobq_call *call)
{
    note_start(call);
    jobq_call_delay(call, 5000);
    jobq_call_error(call, jobq_str_from("hopeless"));
    return ended(call, JOBQ_OUTCOME_RETRY);
}

static jobq_outcome crashes(jobq_call *call)
{
    note_start(call);
    kill(getpid(), SIGKILL);
    return JOBQ_OUTCOME_SUCCESS;
}

#include "flows.h"

/* -- messages -- */

/* The reference of a message. */
static int64_t ref_of(const jobq_message *m)
{
    char text[60];

    snprintf(text, sizeof text, "%.*s", (int)m->payload.len, m->payload.ptr);
    return strchr(text, ':') == NULL ? 0 : strtoll(strchr(text, ':') + 1, NULL, 10);
}

/* Its effect is in the transaction that acknowledges; what was refused leaves none. */
static jobq_result receive(jobq_delivery *d, const jobq_message *m)
{
    int64_t ref = ref_of(m);

    if (!run(jobq_pg_delivery_conn(d),
             "INSERT INTO " WATCH ".delivered (queue, partition, seq, ref) "
             "VALUES ('%.*s', %d, %lld, %lld)", (int)d->queue.len, d->queue.ptr, (int)d->partition,
             (long long)m->seq, (long long)ref)) {
        return JOBQ_RESULT_RETRY;
    }
    if (take_stop(true)) {
        say("stopped_inside", m->seq, "message");
        raise(SIGSTOP);
    }
    jobq_delivery_delay(d, 5000);
    if (ref % REFUSED == 0) return JOBQ_RESULT_REJECT;
    return (mono_us() / 8) % 100 < 2 ? JOBQ_RESULT_RETRY : JOBQ_RESULT_SUCCESS;
}

/* Its effect is a line of the log: it may come twice, in its order the first time. */
static jobq_result letter(jobq_delivery *d, const jobq_message *m)
{
    int64_t ref = ref_of(m);

    jobq_delivery_delay(d, 5000);
    if (ref % REFUSED == 0) return JOBQ_RESULT_REJECT;
    log_line(role, "letter", m->seq, d->partition, 0, ref, "");
    nap_us(ref % 50 == 0 ? 300000 : 0);
    return (mono_us() / 8) % 100 < 2 ? JOBQ_RESULT_RETRY : JOBQ_RESULT_SUCCESS;
}

/* A message of a schedule. Its reference is its tick, negative, as no producer's is. */
static jobq_result ticked(jobq_delivery *d, const jobq_message *m)
{
    return run(jobq_pg_delivery_conn(d),
               "INSERT INTO " WATCH ".delivered (queue, partition, seq, ref) VALUES ('%.*s', %d, "
               "%lld, -extract(epoch FROM ('%.*s'::jsonb ->> 'tick')::timestamptz))",
               (int)d->queue.len, d->queue.ptr, (int)d->partition, (long long)m->seq,
               (int)m->headers.len, m->headers.ptr)
               ? JOBQ_RESULT_SUCCESS
               : JOBQ_RESULT_RETRY;
}

static void receivers_of(jobq_pg_receiver *r)
{
    static const jobq_message_handler each[RECEIVERS] = {receive, letter, ticked, receive};
    int i;

    for (i = 0; i < RECEIVERS; i++) {
        r[i].queue = outboxes[i + 1];
        r[i].each = each[i];
        r[i].transactional = i != 1;
        r[i].tuning.batch = 20;
        r[i].tuning.lease_us = 1500000;
        r[i].tuning.budget_us = 5000000;
        r[i].tuning.retry.base_us = 20000;
        r[i].tuning.retry.cap_us = 200000;
    }
}

/* -- worker -- */

static void work(bool pooled)
{
    static const struct {
        const char *kind;
        jobq_handler run;
    } kinds[KINDS] = {{"ledger", ledger},
                      {"outside", outside},
                      {"flaky", flaky},
                      {"hopeless", hopeless},
                      {"crashing", crashes}};
    jobq_pg_handler handlers[QUEUES * KINDS + FLOW_KINDS + 1];
    jobq_pg_receiver receivers[RECEIVERS];
    jobq_pg_worker_desc d;
    jobq_pg_worker *worker;
    jobq_pg_error error;
    jobq_pg_stats stats;
    char text[160], recording[200];
    size_t i;

    memset(handlers, 0, sizeof handlers);
    memset(receivers, 0, sizeof receivers);
    receivers_of(receivers);
    memset(&d, 0, sizeof d);
    for (i = 0; i < QUEUES * KINDS; i++) {
        handlers[i].queue = queues[i / KINDS];
        handlers[i].kind = kinds[i % KINDS].kind;
        handlers[i].run[0] = kinds[i % KINDS].run;
    }
    for (i = 0; i < FLOW_KINDS; i++) {
        handlers[QUEUES * KINDS + i].queue = "flow";
        handlers[QUEUES * KINDS + i].kind = flow_kinds[i].kind;
        handlers[QUEUES * KINDS + i].run[0] = flow_kinds[i].run;
    }
    handlers[QUEUES * KINDS + FLOW_KINDS].queue = "copied";
    handlers[QUEUES * KINDS + FLOW_KINDS].kind = "ledger";
    handlers[QUEUES * KINDS + FLOW_KINDS].run[0] = ledger;
    d.name = name;
    d.handlers = handlers;
    d.handler_count = QUEUES * KINDS + FLOW_KINDS + 1;
    d.receivers = receivers;
    d.receiver_count = RECEIVERS;
    d.loop.threads = 4;
    d.loop.batch_max = 50;
    d.loop.lease_us = 1500000;
    d.loop.heartbeat_us = 250000;
    d.loop.answer_us = 700000;
    d.loop.grace_us = 3000000;
    if (pooled) d.loop.linger_us = 200000; /* few jobs are there: each claim costs 17 ms here */
    d.no_listen = pooled;
    if (getenv("JOBQ_CHAOS_RECORDINGS") != NULL) {
        snprintf(recording, sizeof recording, "%s/%s.rec", getenv("JOBQ_CHAOS_RECORDINGS"), name);
        d.record = recording;
        d.record_bytes = 1; /* as small as can be: the last 100,000 calls at least */
    }
    while (going() && jobq_pg_worker_start(pg, &d, &worker, &error) != JOBQ_OK) nap_us(100000);
    if (!going()) return;
    while (going()) nap_us(20000);
    jobq_pg_worker_stop(worker);
    if (jobq_pg_worker_wait(worker, &stats) != JOBQ_OK) { /* handlers still use the handle */
        snprintf(text, sizeof text, "%d handlers", (int)stats.jobs.abandoned);
        say("stuck", 0, text);
        fprintf(stderr, "%s: %s did not return within their grace\n", name, text);
        _exit(1);
    }
    jobq_pg_worker_free(worker);
    snprintf(text, sizeof text, "claimed %lld lost %lld rescued %lld reconnects %lld deaths %lld",
             (long long)stats.jobs.claimed, (long long)stats.jobs.lost,
             (long long)stats.jobs.rescued, (long long)stats.jobs.reconnects,
             (long long)stats.jobs.deaths);
    say("stats", 0, text);
}

/* -- consumer: the steps of the outbox one by one, as a program with a loop of its own -- */

#define HOLD_US 1500000

/* A partition held by another worker, and since when its beat has not moved. */
typedef struct watch {
    int64_t worker, claim, beat, since_us;
} watch;

static void look_at(watch *w, const step_done *step)
{
    if (step->answer != 'o') {
        memset(w, 0, sizeof *w);
    } else if (w->worker != step->worker || w->claim != step->claim || w->beat != step->beat) {
        w->worker = step->worker;
        w->claim = step->claim;
        w->beat = step->beat;
        w->since_us = mono_us();
    }
}

static void consume(void)
{
    static watch watched[PARTITIONS];
    int64_t worker = jobq_worker_id_from(jobq_random_next(&dice)), claim = 0;
    step_desc_of d;
    step_done step;
    int32_t queue = 0;
    int i;

    while (going() && jobq_pg_outbox_register(pg, NULL, outboxes[0], PARTITIONS, &queue, NULL) !=
                          JOBQ_OK) {
        nap_us(100000);
    }
    while (going()) {
        for (i = 0; i < PARTITIONS && going(); i++) {
            watch *w = &watched[i];
            bool still = w->worker != 0 && mono_us() - w->since_us > HOLD_US;
            memset(&d, 0, sizeof d);
            memset(&step, 0, sizeof step);
            d.read.worker = worker;
            d.read.claim = ++claim;
            d.read.lease_us = HOLD_US;
            d.read.sweep = between(0, 50) == 0;
            d.read.partition = (int64_t)queue * 32768 + i;
            d.read.most = 20;
            d.read.watched_worker = still ? w->worker : 0;
            d.read.watched_claim = still ? w->claim : 0;
            d.read.watched_beat = still ? w->beat : 0;
            d.queue = outboxes[0];
            d.transactional = true;
            d.each = receive;
            d.random = jobq_random_next(&dice);
            if (step_run(pg, &d, &step, NULL) == JOBQ_OK) look_at(w, &step);
        }
        nap_us(between(5000, 30000));
    }
}

/* -- operator -- */

static int64_t number(PGconn *conn, const char *query)
{
    PGresult *res = PQexec(conn, query);
    int64_t value = 0;

    if (PQresultStatus(res) == PGRES_TUPLES_OK && PQntuples(res) == 1) {
        value = strtoll(PQgetvalue(res, 0, 0), NULL, 10);
    }
    PQclear(res);
    return value;
}

static void cancel_some(PGconn *conn)
{
    int64_t id = number(conn, "SELECT id FROM " SCHEMA ".job ORDER BY id DESC OFFSET "
                              "floor(random() * 40)::int LIMIT 1");
    jobq_pg_filter one = {.id = id};
    int64_t requested = 0;
    jobq_error answer;

    if (id == 0) return;
    say("cancel", id, "");
    answer = jobq_pg_cancel(pg, conn, &one, NULL, &requested, NULL);
    if (answer == JOBQ_OK) say("answer", id, requested > 0 ? "requested" : "cancelled");
}

static void revive_some(PGconn *conn)
{
    int64_t id = number(conn, "SELECT id FROM " SCHEMA ".failed ORDER BY random() LIMIT 1");
    jobq_pg_filter one = {.id = id};

    if (id == 0 || between(0, 3) > 0) return;
    say("revive", id, "");
    if (jobq_pg_revive(pg, conn, &one, NULL, NULL) == JOBQ_OK) say("answer", id, "revived");
}

/* It may have to wait for a producer, and then does nothing. */
static void subscribe_or_not(PGconn *conn)
{
    int draw = between(0, 3);

    if (draw == 0) run(conn, "SELECT " SCHEMA ".unsubscribe('loop')");
    else if (draw == 1) run(conn, "SELECT " SCHEMA ".unsubscribe('loop', drop => true)");
    else run(conn, "SELECT " SCHEMA ".subscribe('loop', 'inside', 'loop')");
}

static void pause_a_while(PGconn *conn)
{
    say("pause", 0, "");
    run(conn, "UPDATE " SCHEMA ".queue SET paused_at = now() WHERE name = 'chaos'");
    nap_us(300000);
    while (!run(conn, "UPDATE " SCHEMA ".queue SET paused_at = NULL WHERE name = 'chaos'")) {
        jobq_pg_release(pg, conn);
        if ((conn = connection()) == NULL) return;
    }
    say("resume", 0, "");
    jobq_pg_release(pg, conn);
}

/* Nothing of the line is claimed for a moment. */
static void hold_a_line(PGconn *conn)
{
    say("hold", 0, "");
    run(conn, "SELECT " SCHEMA ".hold('lines', 'line-%d', clock_timestamp() + interval '300 ms')",
        (int)between(0, 9));
}

/* Cancels a flow, or revives its failed jobs, in small steps. An answer of 0: nothing is left. */
static void mend_flow(PGconn *conn, bool cancel)
{
    jobq_pg_filter whole = {.at_most = 3};
    jobq_error answer = JOBQ_OK;
    int64_t count = 1;

    whole.flow = number(conn, cancel ? "SELECT id FROM " SCHEMA ".flow WHERE ended_at IS NULL "
                                       "ORDER BY random() LIMIT 1"
                                     : "SELECT flow_id FROM " SCHEMA ".failed WHERE flow_id > 0 "
                                       "ORDER BY random() LIMIT 1");
    if (whole.flow == 0) return;
    say(cancel ? "flow_cancel" : "flow_revive", whole.flow, "");
    while (answer == JOBQ_OK && count > 0 && going())
        answer = cancel ? jobq_pg_cancel(pg, conn, &whole, &count, NULL, NULL)
                        : jobq_pg_revive(pg, conn, &whole, &count, NULL);
    if (answer == JOBQ_OK && count == 0)
        say("answer", whole.flow, cancel ? "none left" : "revived");
}

/* Also looks whether jobs break the rules of the tables. */
static void operate(void)
{
    PGconn *conn;

    while (going() && (conn = connection()) != NULL) {
        int draw = (int)between(0, 39);
        int64_t lawless = number(conn, "SELECT " SCHEMA ".audit()");
        if (lawless != 0) say("audit", lawless, "");
        if (draw == 0) {
            pause_a_while(conn);
        } else {
            if (draw < 20) cancel_some(conn);
            if (draw > 20 && draw < 26) hold_a_line(conn);
            if (draw > 30) revive_some(conn);
            if (draw % 8 == 5) subscribe_or_not(conn);
            if (draw == 26 || draw == 27) mend_flow(conn, true);
            if (draw >= 28 && draw <= 30) mend_flow(conn, false);
            jobq_pg_release(pg, conn);
        }
        nap_us(between(20000, 100000));
    }
}

int main(int argc, char **argv)
{
    char conninfo[1000];
    struct sigaction action;
    jobq_pg_desc desc;
    jobq_pg_error error;
    int i;

    if (argc < 5) return 2;
    role = argv[1];
    name = argv[3];
    log_open(argv[2]);
    memset(&action, 0, sizeof action);
    memset(&desc, 0, sizeof desc);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    end_us = mono_us() + atoll(argv[4]) * 1000000;
    dice.state = (uint64_t)getpid() * 7919 + (uint64_t)mono_us();
    snprintf(conninfo, sizeof conninfo, "%.800s application_name=%.60s connect_timeout=5",
             getenv("JOBQ_SERVER"), name);
    desc.conninfo = conninfo;
    desc.schema = SCHEMA;
    desc.behind_pooler = argc > 5;
    while (jobq_pg_open(&pg, &desc, &error) != JOBQ_OK) {
        if (!going()) return 0;
        nap_us(100000);
    }
    if (strcmp(role, "migrate") == 0) {
        jobq_error code = jobq_pg_migrate(pg, &error);
        for (i = 0; i < 7 && code == JOBQ_OK; i++)
            code = jobq_pg_outbox_register(pg, NULL, outboxes[i], PARTITIONS, NULL, &error);
        if (code == JOBQ_OK)
            code = jobq_pg_subscriptions_set(pg, NULL, "chaos", 1, subscriptions, 3, &error);
        if (code == JOBQ_OK) return 0;
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    say("begin", 0, name);
    if (strcmp(role, "producer") == 0) produce();
    if (strcmp(role, "planner") == 0) plan_flows();
    if (strcmp(role, "sender") == 0) send_signals();
    if (strcmp(role, "worker") == 0) work(argc > 5);
    if (strcmp(role, "consumer") == 0) consume();
    if (strcmp(role, "operator") == 0) operate();
    say("end", 0, name);
    jobq_pg_close(pg);
    return 0;
}
