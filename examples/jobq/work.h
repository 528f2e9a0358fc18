/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * work.h -- jobq work: jobs whose handler is a command. Not on Windows.
 */
enum {
    COMMAND_RETRY = 75,        /* EX_TEMPFAIL of sysexits.h */
    COMMAND_ABSENT = 126,      /* and 127: the shell found no command that it could start */
    COMMAND_KILLED = 128,      /* and a signal's number: the shell's way to say so */
    COMMAND_OUTPUT = 1 << 20,  /* bytes of standard output that are kept */
    COMMAND_MS = 100,          /* between two looks at whether to stop */
    COMMAND_PATIENCE_US = 5000000 /* between SIGTERM and SIGKILL, if the job is cancelled */
};

/* A command at work. */
typedef struct command {
    pid_t pid;      /* and its process group */
    int in, out, err; /* our ends of its pipes; -1: closed */
    size_t sent;    /* of the payload */
    app_text output; /* the first COMMAND_OUTPUT bytes, and one more if there were more */
    char error[JOBQ_ERROR_MAX]; /* the last bytes of standard error */
    size_t error_size;
    int64_t begin_us;
    bool overran;   /* --wall, and was killed for it */
} command;

/* What each process of a command may use. */
static const struct limit {
    const char *option;
    int resource, signal; /* kills a command that uses more; 0: the system refuses it more */
    char flag;            /* of ulimit, and per: how many of its units are one of the option's */
    int per, bytes;       /* the same for setrlimit */
    int spare;            /* until SIGKILL, if the signal is ignored */
} limits[] = {{"memory", RLIMIT_AS, 0, 'v', 1 << 10, 1 << 20, 0},
              {"cpu", RLIMIT_CPU, SIGXCPU, 't', 1, 1, 5},
              {"file-size", RLIMIT_FSIZE, SIGXFSZ, 'f', 1 << 11, 1 << 20, 0}};
enum { LIMITS = sizeof limits / sizeof limits[0] };

static struct {
    const char *line; /* for sh -c */
    const char *queue;
    long most[LIMITS], wall_s; /* 0: without limit */
    pthread_mutex_t lock; /* of what follows, and while pipes could leak into another command */
    pid_t groups[JOBQ_LOOP_THREADS]; /* that run; 0: none */
} work;

/* ---- starting -------------------------------------------------------------------------------- */

/* A pipe that no other command inherits, because each is started under the lock. */
static bool open_pipe(int ends[2])
{
    if (pipe(ends) != 0) return false;
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    return true;
}

static void shut(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

extern char **environ;

/* A command gets no other variables JOBQ_... than its own. */
static void forget_variables(void)
{
    size_t i = 0;

    while (environ[i] != NULL) {
        app_text name = {0};

        app_add(&name, environ[i], strcspn(environ[i], "="));
        if (strncmp(name.ptr, "JOBQ_", 5) != 0 || unsetenv(name.ptr) != 0) i++;
        free(name.ptr);
    }
}

/* Starts env JOBQ_ID=... sh -c LINE as the leader of a process group. Returns 0, or an error
 * number. */
static int spawn(command *c, const jobq_call *call, int in[2], int out[2], int err[2])
{
    char id[32], queue[JOBQ_NAME_MAX + 16], kind[JOBQ_NAME_MAX + 16], attempt[32];
    char *argv[] = {"env", id, queue, kind, attempt, "/bin/sh", "-c", (char *)work.line, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, ignored;
    int code;

    snprintf(id, sizeof id, "JOBQ_ID=%lld", (long long)call->job.id);
    snprintf(queue, sizeof queue, "JOBQ_QUEUE=%s", work.queue);
    snprintf(kind, sizeof kind, "JOBQ_KIND=%.*s", (int)call->kind.len, call->kind.ptr);
    snprintf(attempt, sizeof attempt, "JOBQ_ATTEMPT=%d", (int)call->job.attempt);
    sigemptyset(&none);
    sigemptyset(&ignored);
    sigaddset(&ignored, SIGPIPE);
    sigaddset(&ignored, SIGXCPU);
    sigaddset(&ignored, SIGXFSZ);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, err[1], STDERR_FILENO);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                        POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &ignored);
    code = posix_spawnp(&c->pid, "env", &files, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    return code;
}

static void note_group(pid_t from, pid_t to)
{
    int i = 0;

    while (i < JOBQ_LOOP_THREADS - 1 && work.groups[i] != from) i++;
    work.groups[i] = to;
}

/* False: it could not be started, and *c has said why in its error. */
static bool start_command(command *c, const jobq_call *call)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, code = 0;

    pthread_mutex_lock(&work.lock);
    if (!open_pipe(in) || !open_pipe(out) || !open_pipe(err)) code = errno;
    if (code == 0) code = spawn(c, call, in, out, err);
    if (code == 0) note_group(0, c->pid);
    pthread_mutex_unlock(&work.lock);
    shut(&in[0]);
    shut(&out[1]);
    shut(&err[1]);
    c->begin_us = app_now_us();
    c->in = in[1];
    c->out = out[0];
    c->err = err[0];
    if (code != 0) {
        c->error_size = (size_t)snprintf(c->error, sizeof c->error, "cannot start a command: %s",
                                         strerror(code));
        return false;
    }
    fcntl(c->in, F_SETFL, O_NONBLOCK);
    return true;
}

/* ---- its pipes ------------------------------------------------------------------------------- */

static void send_payload(command *c, jobq_str payload)
{
    ssize_t put = 0;

    if (c->sent < payload.len) put = write(c->in, payload.ptr + c->sent, payload.len - c->sent);
    if (put > 0) c->sent += (size_t)put;
    if ((put < 0 && errno != EAGAIN && errno != EINTR) || c->sent == payload.len) shut(&c->in);
}

static void read_output(command *c)
{
    char part[4096];
    ssize_t got = read(c->out, part, sizeof part);
    size_t room = COMMAND_OUTPUT + 1 - c->output.len;

    if (got > 0) app_add(&c->output, part, (size_t)got < room ? (size_t)got : room);
    else if (got == 0 || errno != EINTR) shut(&c->out);
}

/* Keeps the last bytes. */
static void add_error(command *c, const char *part, size_t len)
{
    size_t drop = c->error_size + len;

    drop = drop > sizeof c->error ? drop - sizeof c->error : 0;
    memmove(c->error, c->error + drop, c->error_size - drop);
    c->error_size -= drop;
    memcpy(c->error + c->error_size, part, len);
    c->error_size += len;
}

static void read_error(command *c)
{
    char part[JOBQ_ERROR_MAX / 2];
    ssize_t got = read(c->err, part, sizeof part);

    if (got == 0 || (got < 0 && errno != EINTR)) shut(&c->err);
    if (got > 0) add_error(c, part, (size_t)got);
}

static void move_bytes(command *c, jobq_str payload, int ms)
{
    struct pollfd fds[] = {{c->in, POLLOUT, 0}, {c->out, POLLIN, 0}, {c->err, POLLIN, 0}};

    if (poll(fds, 3, ms) <= 0) return;
    if (fds[0].revents != 0) send_payload(c, payload);
    if (fds[1].revents != 0) read_output(c);
    if (fds[2].revents != 0) read_error(c);
}

/* ---- its end --------------------------------------------------------------------------------- */

/* Ends the command if it must stop. *asked_us: when it was sent SIGTERM, 0: it was not. */
static jobq_stop stop_command(command *c, const jobq_call *call, int64_t now_us,
                              int64_t *asked_us)
{
    int64_t left_us;
    jobq_stop stop = jobq_call_stopping(call, &left_us);

    if (stop == JOBQ_STOP_CANCEL && *asked_us == 0) {
        *asked_us = now_us;
        kill(-c->pid, SIGTERM);
    }
    c->overran = work.wall_s > 0 && now_us - c->begin_us > work.wall_s * 1000000LL;
    if (stop == JOBQ_STOP_TIMEOUT || stop == JOBQ_STOP_LOST || c->overran ||
        (stop == JOBQ_STOP_CANCEL && now_us - *asked_us > COMMAND_PATIENCE_US) ||
        (stop == JOBQ_STOP_SHUTDOWN && left_us <= 2 * COMMAND_MS * 1000))
        kill(-c->pid, SIGKILL);
    return stop;
}

/* Waits for the command. Returns the status of waitpid; *stop: why it was stopped, if it was. */
static int await_command(command *c, const jobq_call *call, jobq_stop *stop)
{
    int64_t asked_us = 0;
    int status = 0, rest;
    siginfo_t info;

    do {
        bool open = c->out >= 0 || c->err >= 0;

        *stop = stop_command(c, call, app_now_us(), &asked_us);
        move_bytes(c, call->payload, open ? COMMAND_MS : 1);
        memset(&info, 0, sizeof info);
        waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    } while (info.si_pid == 0);
    /* What it left in its group ends with it. Only then it is reaped, so that the group's number is
     * still its own. */
    kill(-c->pid, SIGKILL);
    for (rest = 0; rest < 2 * COMMAND_OUTPUT && (c->out >= 0 || c->err >= 0); rest += 2048)
        move_bytes(c, call->payload, 0);
    pthread_mutex_lock(&work.lock);
    waitpid(c->pid, &status, 0);
    note_group(c->pid, 0);
    pthread_mutex_unlock(&work.lock);
    return status;
}

/* What the job's outcome is, by how the command ended. */
static jobq_outcome judge(int status, jobq_stop stop)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : COMMAND_KILLED;
    bool killed = code >= COMMAND_KILLED && code <= COMMAND_KILLED + 64;

    if (code == 0) return JOBQ_OUTCOME_SUCCESS;
    if (killed && stop == JOBQ_STOP_SHUTDOWN) return JOBQ_OUTCOME_RELEASE;
    if (stop == JOBQ_STOP_CANCEL) return JOBQ_OUTCOME_CANCELLED;
    if (killed || code == COMMAND_RETRY || code == COMMAND_ABSENT || code == COMMAND_ABSENT + 1)
        return JOBQ_OUTCOME_RETRY;
    return JOBQ_OUTCOME_DISCARD;
}

/* Says which limit ended it, at the end of its own words. A command without memory may say so, or
 * die of that in many ways. */
static void tell_limit(command *c, int status)
{
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - COMMAND_KILLED;
    char text[96] = "";
    int i;

    if (c->overran && number == SIGKILL)
        snprintf(text, sizeof text, "ran longer than --wall %ld allows", work.wall_s);
    for (i = 0; i < LIMITS && text[0] == '\0'; i++) {
        if (work.most[i] == 0 || number <= 0) continue;
        if (number == limits[i].signal)
            snprintf(text, sizeof text, "used more than --%s %ld allows", limits[i].option,
                     work.most[i]);
        else if (limits[i].signal == 0 && number != SIGXCPU && number != SIGXFSZ)
            snprintf(text, sizeof text, "killed by signal %d, with at most --%s %ld", number,
                     limits[i].option, work.most[i]);
    }
    if (text[0] == '\0') return;
    if (c->error_size > 0 && c->error[c->error_size - 1] != '\n') add_error(c, "\n", 1);
    add_error(c, text, strlen(text));
}

static void tell_error(jobq_call *call, command *c, int status)
{
    char text[64];
    jobq_str error = {c->error, 0};

    tell_limit(c, status);
    error.len = c->error_size;
    while (error.len > 0 && strchr(" \n\r\t", error.ptr[error.len - 1]) != NULL) error.len--;
    if (error.len == 0) {
        snprintf(text, sizeof text, WIFSIGNALED(status) ? "killed by signal %d" : "exit code %d",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        error = jobq_str_from(text);
    }
    jobq_call_error(call, error);
}

/* The handler of all jobs: runs the command. */
static jobq_outcome run_command(jobq_call *call)
{
    command *c = app_need(calloc(1, sizeof *c));
    jobq_outcome outcome = JOBQ_OUTCOME_RETRY;
    jobq_stop stop = JOBQ_STOP_NONE;
    jobq_str output;
    int status = 0;

    if (start_command(c, call)) {
        status = await_command(c, call, &stop);
        outcome = judge(status, stop);
    }
    output.ptr = c->output.ptr;
    output.len = c->output.len;
    if (outcome == JOBQ_OUTCOME_SUCCESS && output.len > 0 && output.len <= COMMAND_OUTPUT &&
        jobq_json_check(output, NULL, NULL) == JOBQ_OK)
        jobq_call_result(call, output, false);
    if (outcome != JOBQ_OUTCOME_SUCCESS) tell_error(call, c, status);
    shut(&c->in);
    shut(&c->out);
    shut(&c->err);
    free(c->output.ptr);
    free(c);
    return outcome;
}

/* ---- the verb -------------------------------------------------------------------------------- */

/* A handler for each kind of the queue that is known, or for the one that is named. */
static PGresult *kinds_of(app *a, const char *queue, const char *kind)
{
    const char *values[] = {queue, kind};
    PGresult *res;

    if (kind != NULL) return app_query(a, "SELECT $2::text, $1::text", 2, values);
    res = app_try(a, "SELECT k.name FROM jobq._kinds_of($1) AS k (name)", 1, values);
    if (res == NULL || PQntuples(res) > 0) return res;
    app_say(0, "the queue %s has no kind yet: name one with --kind", queue);
    return NULL;
}

static int run_worker(app *a, jobq_pg_worker_desc *worker)
{
    jobq_pg *pg = open_jobq(a, a->schema, tell_log);
    jobq_pg_stats stats;
    jobq_pg_error error;
    jobq_error code;
    int i;

    worker->stats = &stats;
    code = jobq_pg_work(pg, worker, &error);
    pthread_mutex_lock(&work.lock);
    for (i = 0; i < JOBQ_LOOP_THREADS; i++) {
        if (work.groups[i] > 0) kill(-work.groups[i], SIGKILL); /* a second signal: at once */
    }
    pthread_mutex_unlock(&work.lock);
    if (code == JOBQ_OK) {
        printf(a->json ? "{\"started\": %lld, \"succeeded\": %lld, \"retried\": %lld,"
                         " \"failed\": %lld}\n"
                       : "started %lld, succeeded %lld, retried %lld, failed %lld\n",
               (long long)stats.jobs.started, (long long)stats.jobs.succeeded,
               (long long)stats.jobs.retried, (long long)stats.jobs.failed);
    }
    jobq_pg_close(pg);
    return exit_code(code, &error);
}

/* Puts the limits before the command's line: the shell sets them, because a child of a program with
 * threads may do little before exec. False: one is wrong, and that has been said. */
static bool limit_command(app *a)
{
    app_text line = {0};
    int i;

    work.wall_s = app_number_of(a, "wall", 0);
    for (i = 0; i < LIMITS; i++) {
        const struct limit *l = &limits[i];
        struct rlimit now;
        long most = app_number_of(a, l->option, 0);

        work.most[i] = most;
        if (most == 0) continue;
        if (getrlimit(l->resource, &now) == 0 && now.rlim_max != RLIM_INFINITY &&
            now.rlim_max / (rlim_t)l->bytes < (rlim_t)(most + l->spare))
            return app_say(0, "--%s %ld: the limits of jobq itself (ulimit -H -%c) allow less",
                           l->option, most, l->flag);
        app_format(&line, "ulimit -S -%c %lld && ulimit -H -%c %lld || exit %d; ", l->flag,
                   (long long)most * l->per, l->flag, (long long)(most + l->spare) * l->per,
                   COMMAND_ABSENT);
    }
    app_put(&line, work.line);
    work.line = line.ptr;
    return true;
}

static int do_work(app *a)
{
    jobq_pg_worker_desc worker = {.name = "jobq work", .stop_signals = {SIGTERM, SIGINT}};
    jobq_pg_handler handlers[JOBQ_LOOP_KINDS] = {{0}};
    PGresult *kinds;
    int i;

    work.line = app_value(a, "exec");
    work.queue = app_value(a, "queue");
    if (work.line == NULL || work.queue == NULL)
        return app_say(APP_USAGE, "work needs --exec and --queue");
    if (!limit_command(a)) return APP_USAGE;
    worker.loop.threads = (int32_t)app_number_of(a, "threads", 4);
    worker.loop.grace_us = app_number_of(a, "grace", 30) * 1000000LL;
    worker.record = app_value(a, "record");
    if (worker.loop.threads > JOBQ_LOOP_THREADS)
        return app_say(APP_USAGE, "--threads: at most %d", JOBQ_LOOP_THREADS);
    kinds = kinds_of(a, work.queue, app_value(a, "kind"));
    if (kinds == NULL) return app_failed(a);
    for (i = 0; i < PQntuples(kinds) && i < JOBQ_LOOP_KINDS; i++) {
        handlers[i].queue = work.queue;
        handlers[i].kind = PQgetvalue(kinds, i, 0);
        handlers[i].run[0] = run_command;
    }
    worker.handlers = handlers;
    worker.handler_count = (size_t)i;
    worker.loop.until = app_value(a, "until-empty") ? JOBQ_UNTIL_EMPTY : JOBQ_UNTIL_STOPPED;
    forget_variables();
    signal(SIGPIPE, SIG_IGN); /* a command need not read its payload */
    signal(SIGCHLD, SIG_DFL); /* ignored, it would hide how commands end */
    pthread_mutex_init(&work.lock, NULL);
    return run_worker(a, &worker);
}
