/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * doctor.h -- jobq doctor: what is wrong with a schema or its server, and what to run.
 *
 * A check is a query; $1 is the time of this machine. A row is a finding: a sentence, and what to
 * run. What a role may not look at is a finding, too: it was not checked.
 */
typedef struct doctor_check {
    const char *name, *sql;
} doctor_check;

/* A snapshot held for this long, or over this many transactions, keeps vacuum from its work. */
#define DOCTOR_OPEN "'10 minutes'"
#define DOCTOR_XIDS "100000"

/* What to do about a kind k of a queue q that no worker has. */
#define DOCTOR_START \
    "format('jobq work --queue %s --kind %s --exec COMMAND -- or start its program; if nobody " \
    "wants its jobs: select jobq.cancel(queue => %L, kind => %L)', q.name, k.name, q.name, k.name)"

/* Whether a table c is in the schema. */
#define DOCTOR_OURS \
    "c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'jobq.job'::regclass)"

static const doctor_check doctor_checks[] = {
    {"copy",
     "SELECT 'this database is a copy of another one, so nothing is claimed here', "
     "'select jobq.renew(home => true) -- once the original no longer runs' "
     "WHERE jobq._is_copy()"},
    {"sequence",
     "SELECT format('the sequence of job ids is at %s, but a job has the id %s: after a restore "
     "renew was not called', s.last_value, m.id), 'select jobq.renew()' "
     "FROM jobq.job_id s, (SELECT greatest((SELECT max(id) FROM jobq.job), "
     "(SELECT max(id) FROM jobq.failed), 0) AS id) AS m WHERE m.id > s.last_value "
     "AND m.id <= 1::bigint << 62"},
    {"audit",
     "SELECT format('%s rows contradict each other, so jobs may wait for ever', a.count), "
     "'select jobq.mend(1000000) -- and report it, if jobq.audit() is not 0 then' "
     "FROM jobq.audit() AS a (count) WHERE a.count > 0"},
    {"waits",
     "SELECT format('job %s waits for one that waits for it, so neither ends', w.child), "
     "format('select jobq.cancel(%s) -- or the other one: select * from jobq.explain_job(%s)', "
     "w.child, w.child) FROM (SELECT DISTINCT e.child FROM jobq.edge e WHERE e.holds "
     "AND e.came IS NULL LIMIT 1000) AS w WHERE jobq._in_circle(w.child)"},
    {"workers",
     "SELECT format('no living worker serves queue %s, in which jobs are ready: %s', queue, "
     "ready), "
     "format('jobq work --queue %s --exec COMMAND -- or start its program', queue) "
     "FROM jobq.queues WHERE ready > 0 AND workers = 0 AND NOT paused "
     "UNION ALL SELECT 'only workers in SQL live: they fire no schedules and clean nothing up', "
     "'start a worker in C, of any queue for the housekeeping, and of a queue for its schedules: "
     "see Other languages in examples/README.md' FROM jobq.worker w "
     "WHERE w.dead_at IS NULL AND w.expires_at > now() "
     "GROUP BY () HAVING count(*) > 0 AND max(w.library) = 0"},
    {"results",
     "SELECT format('the result of job %s cannot be written: %s has held its row or key since %s', "
     "h.id, h.holder, coalesce(h.since::text, 'an unknown time')), "
     "coalesce(format('select pg_terminate_backend(%s) -- if its transaction was forgotten', "
     "h.pid), 'see check prepared') "
     "FROM jobq._row_holders(ARRAY(SELECT r.id FROM jobq._running() r LIMIT 10000)) h "
     "WHERE (h.since < clock_timestamp() - interval '5 seconds') IS NOT FALSE"},
    {"kinds",
     "SELECT format('no living worker has a handler for kind %s of queue %s; its jobs are parked "
     "since %s', k.name, q.name, k.parked_at), "
     DOCTOR_START " FROM jobq.kind k JOIN jobq.queue q ON q.id = k.queue_id "
     "WHERE k.parked_at IS NOT NULL AND NOT jobq._kind_lives(k.id) "
     /* Workers in SQL park nothing. */
     "UNION ALL SELECT format('no living worker has a handler for kind %s of queue %s, whose jobs "
     "have been due for a minute', k.name, q.name), "
     DOCTOR_START " FROM jobq.kind k JOIN jobq.queue q ON q.id = k.queue_id "
     "WHERE k.paused_at IS NULL AND q.paused_at IS NULL AND NOT jobq._kind_lives(k.id) "
     "AND EXISTS (SELECT FROM jobq.worker w WHERE q.id = ANY (w.queues) AND w.dead_at IS NULL "
     "AND clock_timestamp() BETWEEN w.beat_at AND w.expires_at) AND k.id IN (SELECT j.kind_id "
     "FROM (SELECT o.kind_id FROM jobq.job o WHERE o.queue_id = q.id AND o.state = 'r' "
     "AND o.run_at < now() - interval '1 minute' LIMIT 10000) AS j)"},
    {"notifications",
     "SELECT format('the server''s queue of notifications is %s %% full; workers that start from 1 "
     "on do not listen, and at 50 none is sent, so idle workers find jobs late', "
     "round(u.usage::numeric * 100)), "
     "'select pid, usename, xact_start, query from pg_stat_activity where xact_start is not null "
     "order by xact_start -- pg_terminate_backend(pid) for the first one that LISTENs' "
     "FROM pg_notification_queue_usage() AS u (usage) WHERE u.usage >= 0.01"},
    {"paused",
     "SELECT format('queue %s is paused; ready jobs: %s', queue, ready), "
     "format('select jobq.resume(%L)', queue) FROM jobq.queues WHERE paused AND ready > 0"},
    {"schedules",
     "SELECT format('schedule %s is late: it was due at %s', name, next_at), "
     "'a worker that serves its queue fires it: see check workers, and select why from "
     "jobq.schedules' FROM jobq.schedules "
     "WHERE paused_at IS NULL AND next_at < clock_timestamp() - interval '1 minute'"},
    {"outbox",
     "SELECT format('partition %s of queue %s is in trouble: %s', partition, queue, "
     "coalesce(error, mode)), format('select * from jobq.outbox where queue = %L', queue) "
     "FROM jobq.outbox WHERE mode = 'degraded' OR error IS NOT NULL"},
    {"history",
     "SELECT format('the history of class %s should turn every %s, and has not since %s: it "
     "grows', retention, justify_hours(keep / 7), since), 'select jobq.turn() -- it waits for "
     "readers of the oldest part; workers call it, too' "
     "FROM jobq.ring WHERE since < clock_timestamp() - keep / 7 - greatest(keep / 7, '1 hour')"},
    {"snapshot",
     "SELECT format('%s (%s) has held a snapshot for %s and %s transactions; vacuum removes "
     "nothing that has died since', who, concat_ws(', ', role, type), coalesce(justify_hours("
     "date_trunc('second', clock_timestamp() - since))::text, 'unknown time'), xids), run FROM "
     LOOK_HOLDERS
     "WHERE xids > " DOCTOR_XIDS " OR since < clock_timestamp() - interval " DOCTOR_OPEN
     " UNION ALL SELECT format('%s (%s) holds a snapshot; for how long was not checked', who, "
     "role), format('GRANT pg_read_all_stats TO %I', current_user) FROM " LOOK_HOLDERS
     "WHERE since IS NULL AND type IS NULL AND xids BETWEEN 1000 AND " DOCTOR_XIDS},
    {"prepared",
     "SELECT DISTINCT format('prepared transaction %s has held rows of %s since %s', p.gid, "
     "l.relation::regclass, p.prepared), format('COMMIT PREPARED %L -- or ROLLBACK', p.gid) "
     "FROM pg_prepared_xacts p JOIN pg_locks x ON x.transactionid = p.transaction AND x.granted "
     "JOIN pg_locks l ON l.virtualtransaction = x.virtualtransaction AND l.pid IS NULL "
     "JOIN pg_class c ON c.oid = l.relation AND c.relkind = 'r' AND " DOCTOR_OURS
     " WHERE p.prepared < clock_timestamp() - interval '5 seconds'"},
    {"vacuum",
     "SELECT 'autovacuum is off, so dead rows stay and claims become slow', "
     "'ALTER SYSTEM SET autovacuum = on' WHERE NOT current_setting('autovacuum')::boolean "
     "UNION ALL SELECT format('autovacuum is off for %s, so dead rows stay', c.oid::regclass), "
     "format('ALTER TABLE %s RESET (autovacuum_enabled)', c.oid::regclass) FROM pg_class c "
     "WHERE EXISTS (SELECT FROM pg_options_to_table(c.reloptions) WHERE option_name = "
     "'autovacuum_enabled' AND NOT option_value::boolean) AND " DOCTOR_OURS},
    {"fillfactor",
     "SELECT format('the fillfactor of table %s is %s, not %s, so that updates write to its "
     "indexes', t.name::regclass, f.now, t.wanted), "
     "format('ALTER TABLE %s SET (fillfactor = %s)', t.name::regclass, t.wanted) "
     "FROM (VALUES ('jobq.job', 45), ('jobq.worker', 50), ('jobq.schedule', 70)) "
     "AS t (name, wanted) CROSS JOIN LATERAL (SELECT coalesce((SELECT option_value::integer "
     "FROM pg_class c, pg_options_to_table(c.reloptions) WHERE c.oid = t.name::regclass "
     "AND option_name = 'fillfactor'), 100) AS now) AS f WHERE f.now > t.wanted"},
    {"updates",
     "SELECT format('of %s updates of table %s only %s %% left its indexes alone: a snapshot is "
     "held, or somebody added an index', n_tup_upd, relid::regclass, "
     "100 * n_tup_hot_upd / n_tup_upd), format('\\d %s', relid::regclass) "
     "FROM pg_stat_user_tables WHERE relid IN ('jobq.worker'::regclass, 'jobq.job'::regclass, "
     "'jobq.flow_part'::regclass) AND n_tup_upd >= 10000 AND n_tup_hot_upd < n_tup_upd / 4"},
    {"indexes",
     "SELECT format('index %s is invalid', indexrelid::regclass), "
     "format('REINDEX INDEX CONCURRENTLY %s', indexrelid::regclass) "
     "FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid AND " DOCTOR_OURS
     " WHERE NOT i.indisvalid "
     "UNION ALL SELECT format('index %s takes %s for about %s rows', i.oid::regclass, "
     "pg_size_pretty(pg_relation_size(i.oid)), greatest(c.reltuples, 0)), "
     "format('REINDEX INDEX CONCURRENTLY %s', i.oid::regclass) "
     "FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid AND i.relkind = 'i' "
     "JOIN pg_class c ON c.oid = x.indrelid AND " DOCTOR_OURS " WHERE c.reltuples >= 0 "
     "AND pg_relation_size(i.oid) > 4000000 + 400 * c.reltuples"},
    {"citus",
     "SELECT 'a transaction that also writes a distributed table may be committed in half when "
     "a server crashes', 'select jobq.citus_join() -- at the coordinator; at a node, keep what "
     "handlers write in its own tables' WHERE jobq._citus_apart()"},
    {"doubt",
     "SELECT format('transaction %s is in doubt at %s since %s, and may hold jobs; %s', gid, node, "
     "since, coalesce('Citus ends it within ' || ends_in::text, 'Citus does not end it, because "
     "citus.recover_2pc_interval is -1')), 'select recover_prepared_transactions() -- at the "
     "coordinator; if it stays, its log says why' FROM jobq.citus_doubts()"},
    {"durability",
     "SELECT format('%s is off: a crash of the server loses what was confirmed', name), "
     "format('ALTER SYSTEM SET %s = on', name) FROM pg_settings "
     "WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off'"},
    {"connections",
     "SELECT format('%s of %s connections are taken', n.taken, n.most), "
     "'give programs fewer threads, or a pooler: see CONNECTIONS in jobq_pg.h' FROM ("
     "SELECT count(*) AS taken, current_setting('max_connections')::integer "
     "- current_setting('superuser_reserved_connections')::integer AS most "
     "FROM pg_stat_activity WHERE usesysid IS NOT NULL " /* of others' the type is hidden */
     "AND coalesce(backend_type, 'client backend') = 'client backend') AS n "
     "WHERE n.taken > n.most * 0.9"},
    /* Workers take times from the server; people, and log lines of jobs, from here. */
    {"clock",
     "SELECT format('this machine''s clock is %s s %s the server''s', round(abs(off), 1), "
     "CASE WHEN off < 0 THEN 'behind' ELSE 'ahead of' END), 'synchronize the clocks: NTP' "
     "FROM (SELECT $1::numeric - extract(epoch FROM clock_timestamp())::numeric) AS c (off) "
     "WHERE abs(off) >= 2"},
};

static int doctor_findings;

static void doctor_found(app *a, const char *name, const char *what, const char *run)
{
    const char *values[] = {name, what, run};
    app_text text = {0}, clean = {0};

    doctor_findings++;
    app_clean(&text, what, PQclientEncoding(a->conn));
    app_clean(&clean, run, PQclientEncoding(a->conn));
    if (!a->json) printf("%s: %s\n    %s\n", name, text.ptr, clean.ptr);
    else puts(PQgetvalue(app_query(a,
        "SELECT format('{\"check\": %s, \"finding\": %s, \"run\": %s}',"
        " to_json($1::text), to_json($2::text), to_json($3::text))", 3, values), 0, 0));
}

/* Runs a check. A statement that fails is told as not checked. */
static void doctor_ask(app *a, const doctor_check *check)
{
    struct timespec now;
    app_text here = {0}, text = {0};
    const char *why;
    PGresult *res;
    int row;

    clock_gettime(CLOCK_REALTIME, &now);
    app_format(&here, "%lld.%09ld", (long long)now.tv_sec, now.tv_nsec);
    res = app_exec(a, check->sql, 1, true, (const char *const *)&here.ptr);
    if (PQresultStatus(res) != PGRES_TUPLES_OK) {
        why = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
        app_format(&text, "not checked: %.250s", why == NULL ? PQerrorMessage(a->conn) : why);
        doctor_found(a, check->name, text.ptr, "connect as the owner of the schema");
    }
    for (row = 0; row < PQntuples(res); row++)
        doctor_found(a, check->name, PQgetvalue(res, row, 0), PQgetvalue(res, row, 1));
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
    if (code != JOBQ_OK) doctor_found(a, "version", error.message, doctor_remedy(error.message));
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
        doctor_found(a, "listen", why == NULL ? PQerrorMessage(other) : why,
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
        doctor_found(a, "listen", "notifications do not arrive: a pooler in transaction mode "
                                  "drops them, so idle workers find jobs late",
                     "give workers a direct connection: jobq_pg_desc.listen_conninfo");
    PQfinish(other);
}

static int doctor(app *a)
{
    size_t i, count = sizeof doctor_checks / sizeof doctor_checks[0];

    if (doctor_version(a)) {
        for (i = 0; i < count; i++) doctor_ask(a, &doctor_checks[i]);
        doctor_listen(a);
    }
    if (PQstatus(a->conn) == CONNECTION_BAD) return APP_SERVER;
    if (!a->json && doctor_findings == 0) printf("nothing found by %zu checks\n", count + 2);
    return doctor_findings == 0 ? APP_OK : APP_NO;
}
