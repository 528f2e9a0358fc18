/*
 * look.h -- what jobq top and jobq web look at, as parts of one statement.
 *
 * Each row begins with the name of its part. All columns are texts, and all rows have 13, so that
 * parts can be combined with UNION ALL.
 */
#define LOOK_QUEUES \
    "(SELECT 'queue', queue, paused::text, ready::text, running::text, scheduled::text, " \
    "parked::text, failed::text, failed_1h::text, done_per_s::text, workers::text, " \
    "extract(epoch FROM late)::text, exact::text FROM jobq.queues ORDER BY queue)"

#define LOOK_RUNNING \
    "(SELECT 'running', id::text, queue, kind, worker, attempt::text, " WHEN("since") ", " \
    "percent::text, note, NULL, NULL, NULL, NULL FROM jobq.running ORDER BY since LIMIT 30)"

#define LOOK_WORKERS \
    "(SELECT 'worker', name, alive::text, running::text, extract(epoch FROM longest)::text, " \
    "array_to_string(queues, ', '), array_to_string(kinds, ', '), " WHEN("beat_at") ", " \
    WHEN("registered_at") ", host, pid::text, asleep::text, NULL FROM jobq.workers " \
    "ORDER BY alive DESC, name LIMIT 200)"

#define LOOK_OUTBOX \
    "(SELECT 'outbox', queue, sum(lag)::text, bool_and(exact)::text, " \
    "extract(epoch FROM max(age))::text, sum(dead_letters)::text, count(*)::text, " \
    "count(*) FILTER (WHERE mode = 'degraded' OR error IS NOT NULL)::text, NULL, NULL, NULL, " \
    "NULL, NULL FROM jobq.outbox GROUP BY queue ORDER BY queue)"

/* Ids are not the order in which jobs fail: the latest of the newest thousand. */
#define LOOK_FAILURES \
    "(SELECT 'failure', id::text, queue, kind, " WHEN("failed_at") ", attempt::text, " \
    "left(error, 300), NULL, NULL, NULL, NULL, NULL, NULL FROM jobq.failures " \
    "WHERE id = ANY (ARRAY(SELECT n.id FROM (SELECT f.id, f.failed_at FROM jobq.failures f " \
    "ORDER BY f.id DESC LIMIT 1000) AS n ORDER BY n.failed_at DESC LIMIT 50)) " \
    "ORDER BY failed_at DESC, id DESC)"

#define LOOK_SCHEDULES \
    "(SELECT 'schedule', name, queue, kind, calendar, " WHEN("next_at") ", " WHEN("last_at") ", " \
    "why, NULL, NULL, NULL, NULL, NULL FROM jobq.schedules ORDER BY next_at, name LIMIT 100)"

#define LOOK_LIMITS_FROM "FROM jobq.limits WHERE worker IS NULL"
#define LOOK_LIMITS \
    "(SELECT 'limit', queue, kind, running_max::text, rate, held::text, wanted::text, " \
    "tokens::text, NULL, NULL, NULL, NULL, NULL " LOOK_LIMITS_FROM \
    " ORDER BY queue, kind LIMIT 100)"

#define LOOK_LINES_FROM "FROM (SELECT * FROM jobq.lines LIMIT 200) AS l"
#define LOOK_LINE_STATE \
    "CASE WHEN paused THEN 'paused' WHEN hold_until IS NOT NULL " \
    "THEN 'held: ' || coalesce(hold_why, '') END"
#define LOOK_LINES \
    "(SELECT 'line', queue, line, waiting::text, running::text, running_max::text, rate, " \
    LOOK_LINE_STATE ", " WHEN("next_at") ", NULL, NULL, NULL, NULL " LOOK_LINES_FROM \
    " ORDER BY waiting DESC, queue, line)"

/*
 * What keeps vacuum from removing dead rows. Without pg_read_all_stats a role sees only its own
 * backends here. The age counts transactions.
 */
#define LOOK_SNAPSHOTS \
    "(SELECT 'snapshot', who, role, open_s::text, xids::text, state, what, " \
    "NULL, NULL, NULL, NULL, NULL, NULL FROM (" \
    "SELECT 'backend ' || pid, usename::text, " \
    "extract(epoch FROM clock_timestamp() - xact_start), " \
    "greatest(age(backend_xmin), age(backend_xid)), state, left(query, 300) " \
    "FROM pg_stat_activity WHERE coalesce(backend_xmin, backend_xid) IS NOT NULL " \
    "AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker' " \
    "AND coalesce(datname, current_database()) = current_database() " \
    "AND xact_start < clock_timestamp() - interval '1 second' " \
    "UNION ALL SELECT 'slot ' || slot_name, NULL, NULL, age(xmin), " \
    "CASE WHEN active THEN 'active' ELSE 'inactive' END, plugin::text FROM pg_replication_slots " \
    "WHERE xmin IS NOT NULL " \
    "UNION ALL SELECT 'prepared ' || gid, owner::text, " \
    "extract(epoch FROM clock_timestamp() - prepared), age(transaction), 'prepared', NULL " \
    "FROM pg_prepared_xacts WHERE database = current_database()" \
    ") AS s (who, role, open_s, xids, state, what) ORDER BY xids DESC, who LIMIT 30)"

static bool look_is(const PGresult *res, int row, const char *part)
{
    return strcmp(PQgetvalue(res, row, 0), part) == 0;
}

/* The sum of a column of a part. */
static double look_sum(const PGresult *res, const char *part, int column)
{
    double sum = 0;
    int row;

    for (row = 0; row < PQntuples(res); row++)
        if (look_is(res, row, part)) sum += atof(PQgetvalue(res, row, column));
    return sum;
}
