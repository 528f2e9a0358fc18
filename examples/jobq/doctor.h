/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * doctor.h -- jobq doctor: what is wrong with a schema or its server, and what to run.
 *
 * The checks are those of SQL's function doctor, and a few that need a client: the version and the
 * objects of the schema, notifications, the clock of this machine.
 */
static int doctor_findings;

/* finding: check_name, severity, subject, sentence, remedy, as of SQL's doctor. */
static void doctor_found(app *a, const char *const finding[5])
{
    app_text text = {0}, clean = {0};

    doctor_findings++;
    app_clean(&text, finding[3], PQclientEncoding(a->conn));
    app_clean(&clean, finding[4], PQclientEncoding(a->conn));
    if (!a->json) printf("%s: %s: %s\n    %s\n", finding[0], finding[1], text.ptr, clean.ptr);
    else puts(PQgetvalue(app_query(a, "SELECT json_build_object('check', $1::text, 'severity',"
                         " $2::text, 'subject', $3::text, 'finding', $4::text, 'run', $5::text)",
                         5, finding), 0, 0));
}

/* A finding of the program's own. */
static void doctor_tell(app *a, const char *name, const char *severity, const char *what,
                        const char *run)
{
    const char *const finding[] = {name, severity, "server", what, run};

    doctor_found(a, finding);
}

/* Whether somebody has locked a table of the schema, so that a look at the version would wait. */
static bool doctor_locked(app *a)
{
    return PQntuples(app_query(a,
        "SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n"
        " ON n.oid = c.relnamespace WHERE n.nspname = $1 AND l.mode = 'AccessExclusiveLock'"
        " AND l.pid IS DISTINCT FROM pg_backend_pid()", 1, &a->schema)) > 0;
}

/* The checks of SQL. A function that fails is told as not checked. */
static void doctor_ask(app *a)
{
    const char *finding[5], *why;
    app_text text = {0};
    PGresult *res = app_exec(a, "SELECT * FROM jobq.doctor(thorough => true) d ORDER BY"
                             " array_position('{critical,warning,notice}', d.severity)", 0, true,
                             NULL);
    int row, i;

    if (PQresultStatus(res) != PGRES_TUPLES_OK) {
        why = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
        app_format(&text, "not checked: %.250s", why == NULL ? PQerrorMessage(a->conn) : why);
        doctor_tell(a, "doctor", "notice", text.ptr, "connect as the owner of the schema, or as a "
                    "role with grant_read");
    }
    for (row = 0; row < PQntuples(res); row++) {
        for (i = 0; i < 5; i++) finding[i] = PQgetvalue(res, row, i);
        doctor_found(a, finding);
    }
}

/* Workers take times from the server; people, and log lines of jobs, from here. */
static void doctor_clock(app *a)
{
    struct timespec now;
    app_text text = {0};
    double off;

    clock_gettime(CLOCK_REALTIME, &now);
    off = (double)now.tv_sec + (double)now.tv_nsec / 1e9 -
          atof(PQgetvalue(app_query(a, "SELECT extract(epoch FROM clock_timestamp())", 0, NULL),
                          0, 0));
    if (off < 2 && off > -2) return;
    app_format(&text, "this machine's clock is %.1f s %s the server's", off < 0 ? -off : off,
               off < 0 ? "behind" : "ahead of");
    doctor_tell(a, "clock", "warning", text.ptr, "synchronize the clocks: NTP");
}

/* What to run about an error of jobq_pg_check, by the words in it. */
static const char *doctor_remedy(const char *message)
{
    static const char *const remedies[][2] = {
        {"run jobq_pg_migrate", "jobq migrate"},
        {"update the program", "build jobq with newer headers"},
        {"install.sql", "psql -f sql/install.sql"},
        {"carry.sql", "psql -f examples/carry.sql -- see its top"}};
    size_t i;

    for (i = 0; i < sizeof remedies / sizeof remedies[0]; i++)
        if (strstr(message, remedies[i][0]) != NULL) return remedies[i][1];
    return "see the error";
}

/* Whether the schema has a version that this program knows. False: no other check makes sense. */
static bool doctor_version(app *a)
{
    jobq_pg_desc desc = {.conninfo = a->conninfo, .schema = a->schema, .log = tell_log, .user = a,
                         .behind_pooler = true /* perhaps: see doctor_listen */};
    jobq_pg_error error;
    jobq_pg *pg = NULL;
    jobq_error code = jobq_pg_open(&pg, &desc, &error);

    if (code == JOBQ_OK) code = jobq_pg_check(pg, NULL, &error);
    jobq_pg_close(pg);
    if (code != JOBQ_OK) doctor_tell(a, "version", "critical", error.message,
                                     doctor_remedy(error.message));
    return code == JOBQ_OK || strstr(error.message, "not as this library") != NULL;
}

/* Whether a notification that another connection sends arrives within two seconds. Not while the
 * queue is long, of which check notifications tells: LISTEN would read all of it. */
static void doctor_listen(app *a)
{
    PGconn *other;
    app_text listen = {0}, notify = {0};
    PGnotify *note = NULL;
    PGresult *sent = PQexec(a->conn, "SELECT pg_notification_queue_usage() < 0.01");
    int tries;

    if (PQresultStatus(sent) == PGRES_TUPLES_OK && PQgetvalue(sent, 0, 0)[0] == 'f') return;
    other = PQconnectdb(a->conninfo);
    app_format(&listen, "LISTEN jobq_doctor_%d", (int)getpid());
    app_format(&notify, "NOTIFY jobq_doctor_%d", (int)getpid());
    PQexec(a->conn, listen.ptr);
    sent = PQexec(other, notify.ptr);
    if (PQresultStatus(sent) != PGRES_COMMAND_OK) {
        const char *why = PQresultErrorField(sent, PG_DIAG_MESSAGE_PRIMARY);
        doctor_tell(a, "listen", "warning", why == NULL ? PQerrorMessage(other) : why,
                    "see check notifications, or the server's log");
        PQfinish(other);
        return;
    }
    for (tries = 0; note == NULL && tries < 20; tries++) {
        struct pollfd fd = {.fd = PQsocket(a->conn), .events = POLLIN};
        poll(&fd, 1, 100);
        PQconsumeInput(a->conn);
        note = PQnotifies(a->conn);
    }
    if (note == NULL)
        doctor_tell(a, "listen", "warning", "notifications do not arrive: a pooler in transaction "
                                 "mode drops them, so idle workers find jobs late",
                    "give workers a direct connection: jobq_pg_desc.listen_conninfo");
    PQfinish(other);
}

static int doctor(app *a)
{
    if (doctor_locked(a) || doctor_version(a)) {
        app_progress("looking");
        doctor_ask(a);
        doctor_clock(a);
        doctor_listen(a);
        app_progress(NULL);
    }
    if (PQstatus(a->conn) == CONNECTION_BAD) return APP_SERVER;
    if (!a->json && doctor_findings == 0) printf("nothing found\n");
    return doctor_findings == 0 ? APP_OK : APP_NO;
}
