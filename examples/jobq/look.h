/* SPDX-License-Identifier: MIT-0 OR Unlicense */
/*
 * look.h -- what jobq top and jobq web show: tables, the verbs of their rows, the graph of a flow.
 *
 * A table is a query. Its columns have a type, so that one function writes all rows to the screen,
 * and another one to a page.
 */
enum {
    LOOK_COLUMNS = 16, /* of a table; in the answer the table's id comes before them */
    LOOK_TOP = 1,      /* top shows it */
    LOOK_LIVE = 2,     /* web sends it again as it changes */
    LOOK_ALONE = 4,    /* its title is also that of its page */
    LOOK_PAGED = 8,    /* by its first column, in descending order; $2: from where on */
    LOOK_ONE = 16,     /* its row is what the page is about: a list of facts */
    LOOK_GRAPH_MOST = 500 /* jobs of a flow, see LOOK_LAYERS */
};

/*
 * A column, and its type. t: a text; l: a long one; e: an error; m: a text of many lines; n: a
 * number; x: one that should be 0; s: seconds; w: an instant of WHEN; a: one of LOOK_AT, to the
 * millisecond; p: percent; S: a state; j: the id of a job; f: that of a flow; r: either, negative
 * for a flow; d: the id of a dead letter; q: a queue, worker or line; k: a kind of the row's queue;
 * c: the id of a job, to select it; g: an error of several failed jobs, where their queue, kind and
 * common error follow; h: a histogram of them; b: a verb for all of them; o: a subject of
 * jobq.doctor; v: names of verbs for the row.
 */
typedef struct look_column {
    const char *head;
    char type;
    char only; /* t: top has it; w: web has it; -: neither shows it; 0: both do */
} look_column;

typedef struct look_table {
    const char *id, *title, *none;
    int flags, limit;
    const char *sql; /* [[x]] is x for those who may read payloads, NULL for others */
    look_column columns[LOOK_COLUMNS];
} look_table;

/* For connections that look: a look costs little, or is given up. */
#define LOOK_SETTINGS \
    "SET statement_timeout = '5s'; SET jit = off; SET max_parallel_workers_per_gather = 0"

/* In SQL: the elements of a value that should be an array, and the time that a text should be. */
#define LOOK_EACH(json) \
    "jsonb_array_elements(CASE jsonb_typeof(" json ") WHEN 'array' THEN " json " END)"
#define LOOK_TIME(text) "CASE WHEN " text " ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T' " \
                        "THEN (" text ")::timestamptz END"

/* Of a count of the view queues: ~ before it is an estimate, + after it means at least. */
#define LOOK_ABOUT(count) \
    "CASE WHEN NOT exact AND " count " >= 10000 THEN '~' ELSE '' END || " count
#define LOOK_LEAST(count) count " || CASE WHEN " count " >= 10000 THEN '+' ELSE '' END"
#define LOOK_READY LOOK_ABOUT("ready") " || CASE WHEN NOT exact AND greatest(ready, scheduled, " \
                                       "parked, suspects, failed) < 10000 THEN '+' ELSE '' END"

/* A long text, or bytes, of which the page shows the beginning, and says so. */
#define LOOK_CUT(text) \
    "left(" text ", 65536) || CASE WHEN length(" text ") > 65536 THEN " \
    "format(E'\\n… the first 65536 of %s characters', length(" text ")) ELSE '' END"
#define LOOK_CUT_BYTES(bytes) \
    "nullif(left(encode(" bytes ", 'hex'), 4000), '') || CASE WHEN " \
    "octet_length(" bytes ") > 2000 THEN " \
    "format(E'\\n… the first 2000 of %s bytes', octet_length(" bytes ")) ELSE '' END"

/* Errors that differ in numbers alone are the same. */
#define LOOK_SAME "regexp_replace(coalesce(left(error, 300), ''), '[0-9]+', '#', 'g')"

/* The next five runs of schedule s that are not past, and their zone. Without its spread they are
   those of the calendar. */
#define LOOK_RUNS \
    "(SELECT string_agg(to_char(p.at AT TIME ZONE s.zone, " \
    "CASE WHEN extract(second FROM p.at) = 0 THEN 'Dy DD Mon HH24:MI' " \
    "ELSE 'Dy DD Mon HH24:MI:SS' END), ', ' ORDER BY p.at) || ' ' || " \
    "s.zone FROM jobq.schedule_preview(cron => CASE WHEN calendar NOT LIKE 'every %' " \
    "THEN calendar END, every => CASE WHEN calendar LIKE 'every %' " \
    "THEN substr(calendar, 7)::interval END, zone => s.zone, count => 5, after => " \
    "greatest(now(), s.next_at - coalesce(s.spread_by, '0')) - interval '1 microsecond') p)"

#define LOOK_FLOW_VERBS "concat_ws(' ', CASE WHEN failed > 0 THEN 'flow_revive' END, " \
                        "CASE WHEN state <> 'ended' THEN 'flow_cancel' END)"

/* In SQL: an instant to the millisecond, as a text of 27 bytes. */
#define LOOK_AT(at) \
    "CASE WHEN isfinite(" at ") THEN to_char(" at " AT TIME ZONE 'UTC', " \
    "'YYYY-MM-DD HH24:MI:SS.MS \"UTC\"') END"

/* The attempts of job j: no, attempt, stage, started, ended, worker, outcome, error. When and where
   an attempt began is kept of the last one alone. */
#define LOOK_TRIES \
    "SELECT n AS no, coalesce(e ->> 'attempt', (e ->> 'dropped') || ' more') AS attempt, " \
    "e ->> 'stage' AS stage, CASE WHEN t.at >= j.claimed_at THEN j.claimed_at END AS started, " \
    "t.at AS ended, CASE WHEN t.at >= j.claimed_at THEN j.worker END AS worker, " \
    "CASE WHEN e ? 'error' THEN 'failed' WHEN e ? 'at' THEN 'ended' END AS outcome, " \
    "e ->> 'error' AS error FROM j CROSS JOIN LATERAL " LOOK_EACH("j.errors") \
    " WITH ORDINALITY AS u (e, n) CROSS JOIN LATERAL (SELECT " LOOK_TIME("e ->> 'at'") \
    " AS at) t UNION ALL " \
    "SELECT 1000, j.attempt::text, j.stage::text, j.claimed_at, j.finished_at, j.worker, " \
    "CASE j.state WHEN 'ready' THEN 'given back' ELSE j.state END, NULL FROM j " \
    "WHERE j.claimed_at IS NOT NULL AND j.attempt > 0 AND NOT EXISTS (SELECT FROM " \
    LOOK_EACH("j.errors") " AS l (e) WHERE " LOOK_TIME("e ->> 'at'") " >= j.claimed_at)"

/* What happened to job j, and to each attempt that failed or logged: at, no, what, text. */
#define LOOK_STORY \
    "SELECT j.enqueued_at AS at, 0 AS no, 'enqueued' AS what, NULL AS text FROM j " \
    "UNION ALL SELECT j.claimed_at, 1, 'started', 'attempt ' || nullif(j.attempt, 0) FROM j " \
    "WHERE j.claimed_at IS NOT NULL " \
    "UNION ALL SELECT " LOOK_TIME("l ->> 0") ", 2, l ->> 1, l ->> 2 FROM j " \
    "CROSS JOIN LATERAL " LOOK_EACH("j.errors") " e CROSS JOIN LATERAL " LOOK_EACH("e -> 'log'") \
    " l UNION ALL SELECT " LOOK_TIME("l ->> 0") ", 2, l ->> 1, l ->> 2 FROM j " \
    "CROSS JOIN LATERAL " LOOK_EACH("j.log") " l " \
    "UNION ALL SELECT " LOOK_TIME("e ->> 'at'") ", 3, CASE WHEN e ? 'dropped' THEN " \
    "format('%s more', e ->> 'dropped') WHEN e ? 'error' THEN format('attempt %s failed%s', " \
    "e ->> 'attempt', ' in stage ' || nullif(e ->> 'stage', '0')) " \
    "ELSE format('attempt %s ended', e ->> 'attempt') END, e ->> 'error' FROM j " \
    "CROSS JOIN LATERAL " LOOK_EACH("j.errors") " e " \
    "UNION ALL SELECT j.finished_at, 4, j.state, NULL FROM j WHERE j.finished_at IS NOT NULL"

/*
 * The jobs of the flows whose ids are in $1, with , between them. The layer of a job is one more
 * than the highest of those that it waits for. Edges to jobs outside do not count.
 */
#define LOOK_LAYERS(most) \
    "WITH RECURSIVE g AS MATERIALIZED (SELECT f.id AS flow_id, g.* " \
    "FROM unnest(string_to_array($1, ',')::bigint[]) AS f (id) " \
    "CROSS JOIN LATERAL jobq.flow_graph(f.id, " most ") g), " \
    "edges AS MATERIALIZED (SELECT g.flow_id, g.job_id AS child, p.job_id AS parent FROM g " \
    "CROSS JOIN LATERAL unnest(g.after) AS a (id) " \
    "JOIN g p ON (p.flow_id, p.job_id) = (g.flow_id, a.id)), " \
    "path (flow_id, job_id, layer) AS (SELECT flow_id, job_id, 0 FROM g WHERE (flow_id, job_id) " \
    "NOT IN (SELECT flow_id, child FROM edges) UNION SELECT e.flow_id, e.child, path.layer + 1 " \
    "FROM path JOIN edges e ON (e.flow_id, e.parent) = (path.flow_id, path.job_id) " \
    "WHERE path.layer < 1000), " \
    "layered AS MATERIALIZED (SELECT g.*, coalesce(l.layer, 0) AS layer FROM g LEFT JOIN (SELECT " \
    "flow_id, job_id, max(layer) AS layer FROM path GROUP BY 1, 2) AS l USING (flow_id, job_id)) "

/*
 * Where a job is drawn: in a box of its own, or in a crowded layer with those of its kind and
 * state.
 * box is the first job of the box; down counts half boxes from the top, so that each layer is in
 * the middle.
 */
#define LOOK_PLACES \
    ", crowds AS (SELECT *, count(*) OVER (PARTITION BY flow_id, layer) AS crowd FROM layered), " \
    "boxed AS (SELECT *, CASE WHEN crowd > 8 THEN min(job_id) OVER (PARTITION BY flow_id, layer, " \
    "kind, state) ELSE job_id END AS box FROM crowds), " \
    "ranked AS (SELECT *, dense_rank() OVER (PARTITION BY flow_id, layer ORDER BY box) AS place, " \
    "count(*) OVER (PARTITION BY flow_id, box) AS jobs FROM boxed), " \
    "placed AS MATERIALIZED (SELECT *, 2 * (place - 1) + max(place) OVER (PARTITION BY flow_id) " \
    "- max(place) OVER (PARTITION BY flow_id, layer) AS down FROM ranked), " \
    "arrows AS (SELECT c.flow_id, c.box, " \
    "string_agg(DISTINCT format('%s %s', p.layer, p.down), ' ') AS sources FROM edges e " \
    "JOIN placed c ON (c.flow_id, c.job_id) = (e.flow_id, e.child) " \
    "JOIN placed p ON (p.flow_id, p.job_id) = (e.flow_id, e.parent) GROUP BY 1, 2) "

enum {
    LOOK_NOW, LOOK_PLOTS, LOOK_QUEUES, LOOK_RUNNING, LOOK_FAILURES, LOOK_FLOWS, LOOK_WORKERS,
    LOOK_SCHEDULES, LOOK_LIMITS, LOOK_LINES, LOOK_OUTBOX, LOOK_SNAPSHOTS, LOOK_GRAPH,
    LOOK_PARTITIONS, LOOK_SUBSCRIPTIONS, LOOK_LETTERS, LOOK_GROUPS, LOOK_AUDIT, LOOK_JOBS,
    LOOK_FACTS, LOOK_WHY, LOOK_TRIED, LOOK_STEPS, LOOK_TIES, LOOK_FLOW, LOOK_PAYLOAD, LOOK_LETTER,
    LOOK_MESSAGE, LOOK_BULK, LOOK_TROUBLE,
    LOOK_TABLES
};

static const look_table look_tables[LOOK_TABLES] = {
    /* Sections of the overview that have no rows of their own. */
    {"now", "Now", "", LOOK_LIVE, 0, NULL},
    {"plots", "The last hour", "", LOOK_LIVE, 0, NULL},
    {"queues", "Queues", "There is no queue yet.", LOOK_TOP | LOOK_LIVE, 1000,
     "SELECT queue, CASE WHEN paused THEN 'paused' "
     "ELSE 'paused: ' || array_to_string(paused_kinds, ', ') END, " LOOK_READY ", running, "
     LOOK_ABOUT("scheduled") ", " LOOK_LEAST("failed") ", " LOOK_LEAST("failed_1h") ", "
     "nullif(expired, 0), done_per_s, extract(epoch FROM late), workers, " LOOK_ABOUT("parked") ", "
     "CASE WHEN paused THEN 'resume' ELSE 'pause' END FROM jobq.queues ORDER BY queue",
     {{"Queue", 'q'}, {"State", 'S'}, {"Ready", 'n'}, {"Running", 'n'}, {"Scheduled", 'n'},
      {"Failed", 'n'}, {"In 1 h", 'x'}, {"Expired", 'n'}, {"Done/s", 'n'}, {"Late", 's'},
      {"Workers", 'n'}, {"Parked", 'x'}, {"Actions", 'v'}}},
    {"running", "Running", "No job is running.", LOOK_TOP | LOOK_LIVE, 30,
     "SELECT id, queue, kind, percent, " WHEN("since") ", attempt, worker, note, 'cancel' "
     "FROM jobq.running ORDER BY since",
     {{"Job", 'j'}, {"Queue", 'q'}, {"Kind", 'k'}, {"Progress", 'p'}, {"Started", 'w'},
      {"Attempt", 'n'}, {"Worker", 'q'}, {"Note", 't'}, {"Actions", 'v', 't'}}},
    /* Ids are not the order in which jobs fail: the latest of the newest thousand. */
    {"failures", "Failures", "", LOOK_TOP, 50,
     "SELECT id, queue, kind, " WHEN("failed_at") ", attempt, left(error, 300), 'revive' "
     "FROM jobq.failures WHERE id = ANY (ARRAY(SELECT n.id FROM (SELECT f.id, f.failed_at "
     "FROM jobq.failures f ORDER BY f.id DESC LIMIT 1000) AS n ORDER BY n.failed_at DESC "
     "LIMIT 50)) ORDER BY failed_at DESC, id DESC",
     {{"Job", 'j'}, {"Queue", 'q'}, {"Kind", 'k'}, {"Failed", 'w'}, {"Attempt", 'n'},
      {"Error", 'e'}, {"Actions", 'v'}}},
    {"flows", "Flows", "There is no flow.", LOOK_TOP | LOOK_LIVE | LOOK_ALONE | LOOK_PAGED, 100,
     "SELECT id, name, state, 100 * (succeeded + failed + cancelled) / nullif(jobs, 0), jobs, "
     "succeeded, failed, cancelled, on_failure, " WHEN("created_at") ", " WHEN("ended_at") ", "
     LOOK_FLOW_VERBS " FROM jobq.flows "
     "WHERE $2 = '' OR id < nullif($2, '')::bigint ORDER BY id DESC",
     {{"Flow", 'f'}, {"Name", 'l'}, {"State", 'S'}, {"Ended", 'p'}, {"Jobs", 'n'},
      {"Succeeded", 'n'}, {"Failed", 'x'}, {"Cancelled", 'n'}, {"On failure", 't', 'w'},
      {"Begun", 'w'}, {"End", 'w', 'w'}, {"Actions", 'v'}}},
    {"workers", "Workers", "No worker has registered.", LOOK_TOP | LOOK_LIVE | LOOK_ALONE, 200,
     "SELECT name, CASE WHEN NOT alive THEN 'dead' WHEN running > 0 THEN 'working' "
     "WHEN asleep THEN 'asleep' ELSE 'awake' END, "
     "running, extract(epoch FROM longest), " WHEN("beat_at") ", pid, host, "
     "array_to_string(queues, ', '), array_to_string(kinds, ', '), " WHEN("registered_at")
     ", alive::integer FROM jobq.workers ORDER BY alive DESC, name",
     {{"Worker", 'q'}, {"State", 'S'}, {"Running", 'n'}, {"Longest", 's'}, {"Heartbeat", 'w'},
      {"PID", 't'}, {"Host", 't'}, {"Queues", 't'}, {"Kinds", 't', 'w'}, {"Since", 'w', 'w'},
      {"Alive", 'n', '-'}}},
    {"schedules", "Schedules", "There is no schedule.", LOOK_TOP | LOOK_ALONE, 500,
     "SELECT name, CASE WHEN paused_at IS NOT NULL THEN 'paused' END, " WHEN("next_at") ", "
     WHEN("last_at") ", last_state, queue, kind, calendar, " LOOK_RUNS ", why, "
     "CASE WHEN paused_at IS NULL THEN 'schedule_run schedule_pause' "
     "ELSE 'schedule_run schedule_resume' END FROM jobq.schedules s ORDER BY s.next_at, s.name",
     {{"Schedule", 'l'}, {"State", 'S'}, {"Next", 'w'}, {"Last", 'w'}, {"It was", 't', 'w'},
      {"Queue", 'q'}, {"Kind", 'k'}, {"Calendar", 't'},
      {"Next runs", 'l', 'w'}, {"Why not", 'e'}, {"Actions", 'v'}}},
    {"limits", "Limits", "No queue has a limit.", LOOK_TOP, 200,
     "SELECT queue, kind, held, running_max, wanted, tokens, rate FROM jobq.limits "
     "WHERE worker IS NULL ORDER BY queue, kind",
     {{"Queue", 'q'}, {"Kind", 'k'}, {"Held", 'n'}, {"At most", 'n'}, {"Wanted", 'n'},
      {"Tokens", 'n'}, {"Rate", 't'}}},
    {"lines", "Lines", "No job is in a line.", LOOK_TOP, 200,
     "SELECT line, queue, " LOOK_LEAST("waiting") ", running, running_max, "
      WHEN("next_at") ", rate, "
     "CASE WHEN paused THEN 'paused' WHEN hold_until IS NOT NULL "
     "THEN 'held: ' || coalesce(hold_why, '') END "
     "FROM (SELECT * FROM jobq.lines LIMIT 5000) AS l ORDER BY waiting DESC, queue, line",
     {{"Line", 'q'}, {"Queue", 'q'}, {"Waiting", 'n'}, {"Running", 'n'}, {"At most", 'n'},
      {"Not before", 'w'}, {"Rate", 't'}, {"State", 'S'}}},
    {"outbox", "Outbox", "No queue has an outbox.", LOOK_TOP | LOOK_LIVE | LOOK_ALONE, 200,
     "WITH o AS MATERIALIZED (SELECT * FROM jobq.outbox) "
     "SELECT queue, sum(lag) || CASE WHEN bool_and(exact) THEN '' ELSE '+' END, "
     "extract(epoch FROM max(age)), sum(dead_letters), "
     "count(*) FILTER (WHERE mode = 'degraded' OR error IS NOT NULL), count(*), "
     "concat('subscribe', CASE WHEN sum(dead_letters) > 0 THEN ' replay discard' END) "
     "FROM o GROUP BY queue UNION ALL " /* and topics, which have no partitions */
     "SELECT DISTINCT source, NULL, NULL::numeric, NULL::numeric, NULL::bigint, 0, 'subscribe' "
     "FROM jobq.subscriptions WHERE source NOT IN (SELECT queue FROM o) ORDER BY queue",
     {{"Queue", 't'}, {"Lag", 'n'}, {"Oldest", 's'}, {"Dead letters", 'x'}, {"In trouble", 'x'},
      {"Partitions", 'n'}, {"Actions", 'v'}}},
    {"snapshots", "Snapshots", "", LOOK_TOP, 30,
     "SELECT who, extract(epoch FROM clock_timestamp() - since), xids, role, state, what "
     "FROM jobq._snapshots() "
     "WHERE since IS NULL OR since < clock_timestamp() - interval '1 second' "
     "ORDER BY xids DESC, who",
     {{"Holder", 't'}, {"Open", 's'}, {"Transactions", 'n'}, {"Role", 't'}, {"State", 't'},
      {"Statement", 't'}}},
    {"graph", "Jobs", "It has no job.", 0, 10000,
     LOOK_LAYERS("500") LOOK_PLACES
     "SELECT flow_id, job_id, name, kind, state, array_to_string(after, ' '), "
     "array_to_string(held_by, ' '), layer, down, CASE WHEN job_id = box THEN jobs END, sources "
     "FROM placed LEFT JOIN arrows USING (flow_id, box) ORDER BY flow_id, job_id",
     {{"Flow", 'f', '-'}, {"Job", 'j'}, {"Name", 'l'}, {"Kind", 't'}, {"State", 'S'},
      {"After", 'l'}, {"Held by", 'l'}, {"Layer", 'n', '-'}, {"Down", 'n', '-'},
      {"In the box", 'n', '-'}, {"Edges from", 't', '-'}}},
    {"partitions", "Partitions that wait", "Every message has been delivered.", 0, 100,
     "SELECT queue, partition, lag, extract(epoch FROM age), mode, attempts, "
     WHEN("lease_until") ", left(error, 300) FROM jobq.outbox WHERE lag > 0 OR error IS NOT NULL "
     "ORDER BY lag DESC",
     {{"Queue", 't'}, {"Partition", 'n'}, {"Lag", 'n'}, {"Oldest", 's'}, {"Mode", 't'},
      {"Attempts", 'n'}, {"Lease until", 'w'}, {"Error", 'e'}}},
    {"subscriptions", "Subscriptions", "Nobody else reads the messages.", 0, 200,
     "SELECT name, source, queue, kind, array_to_string(types, ', '), waiting, owner, "
     WHEN("created_at") ", 'unsubscribe drop' FROM jobq.subscriptions ORDER BY source, name",
     {{"Subscription", 'q'}, {"Of", 't'}, {"Queue", 't'}, {"Kind", 't'}, {"Types", 't'},
      {"Waiting", 'n'}, {"Program", 't'}, {"Since", 'w'}, {"Actions", 'v'}}},
    {"letters", "Dead letters", "There is no dead letter.", LOOK_PAGED, 100,
     "SELECT id, queue, partition, seq, status, type, attempts, " WHEN("failed_at") ", "
     "left(error, 300) FROM jobq.dead_letters WHERE status IN ('pending', 'reprocessing') "
     "AND ($2 = '' OR id < nullif($2, '')::bigint) ORDER BY id DESC",
     {{"Letter", 'd'}, {"Queue", 't'}, {"Partition", 'n'}, {"Seq", 'n'}, {"Status", 'S'},
      {"Type", 't'}, {"Attempts", 'n'}, {"Failed", 'w'}, {"Error", 'e'}}},
    /* Of the newest 10,000 that match: $3 a queue (whose id an index has), $12 a part of the error,
       $13 an interval. Bars: how many in each 24th of the time since the first one. */
    {"groups", "Failures by error", "No job that matches has failed.", LOOK_ALONE, 100,
     "WITH f AS MATERIALIZED (SELECT id, queue, kind, failed_at, left(error, 300) AS error, "
     LOOK_SAME " AS same FROM jobq.failures "
     "WHERE ($3::text IS NULL OR queue_id = (SELECT jobq._known_queue($3))) "
     "AND ($12::text IS NULL OR strpos(lower(error), lower($12)) > 0) "
     "AND ($13::text IS NULL OR failed_at > now() - $13::interval) ORDER BY id DESC LIMIT 10000), "
     "span AS (SELECT extract(epoch FROM greatest(now() - min(failed_at), '1 min')) / 24 AS s, "
     "(SELECT count(*) = 10000 FROM f) AS cut FROM f WHERE isfinite(failed_at)), "
     "slots AS (SELECT queue, kind, same, 23 - floor(least(extract(epoch FROM now() - failed_at) "
     "/ s, 23)) AS slot, count(*) AS n FROM f, span WHERE isfinite(failed_at) "
     "GROUP BY 1, 2, 3, 4), "
     "bars AS (SELECT queue, kind, same, string_agg(format('%s:%s', slot, n), ' ' ORDER BY slot) "
     "AS bars FROM slots GROUP BY 1, 2, 3) "
     "SELECT coalesce((array_agg(error ORDER BY id DESC))[1], 'no text'), queue, kind, same, "
     "count(*) || CASE WHEN cut THEN '+' ELSE '' END, bars, " WHEN("min(failed_at)") ", "
     WHEN("max(failed_at)") ", max(id), 'revive_all' FROM f CROSS JOIN span "
     "LEFT JOIN bars USING (queue, kind, same) GROUP BY queue, kind, same, cut, bars "
     "ORDER BY count(*) DESC, max(id) DESC",
     {{"Error", 'g'}, {"Queue", 'q'}, {"Kind", 'k'}, {"Same", 't', '-'}, {"Jobs", 'n'},
      {"When", 'h'}, {"First", 'w'}, {"Last", 'w'}, {"Newest", 'j'}, {"Actions", 'b'}}},
    {"audit", "What operators did", "No operator has done anything.", LOOK_ALONE | LOOK_PAGED, 200,
     "SELECT id, " WHEN("at") ", role, application, verb, jobs, [[left(arguments::text, 300)]] "
     "FROM jobq.operator_log WHERE $2 = '' OR id < nullif($2, '')::bigint ORDER BY id DESC",
     {{"No.", 't'}, {"At", 'w'}, {"Role", 't'}, {"From", 't'}, {"Verb", 't'}, {"Jobs", 'n'},
      {"Arguments", 'l'}}},
    {"jobs", "Jobs", "No such job here.", 0, 0, NULL, /* page_jobs has its query */
     {{"Select", 'c'}, {"Job", 'j'}, {"State", 'S'}, {"Queue", 'q'}, {"Kind", 'k'},
      {"Priority", 'n'}, {"Attempt", 'n'}, {"Enqueued", 'w'}, {"Last", 'w'}, {"Key", 'l'},
      {"Error", 'e'}}},
    {"facts", "Facts", "", LOOK_ONE, 1,
     "SELECT state, queue, kind, key, line, priority, CASE WHEN stages > 1 THEN "
     "format('%s of %s', stage + 1, stages) END, format('%s of %s', attempt, max_attempts), "
     "concat_ws(', ', CASE WHEN crash > 0 THEN format('%s crashes', crash) END, CASE WHEN suspect "
     "THEN 'runs alone, since its worker died' END, "
     "'time-out ' || timeout_us * interval '1 microsecond'), " WHEN("run_at") ", "
     WHEN("expires_at") ", " WHEN("cancel_requested_at") ", "
     "(SELECT name FROM jobq.workers w WHERE w.id = j.worker), "
     "(SELECT percent FROM jobq.running r WHERE r.id = j.id), "
     "(SELECT note FROM jobq.running r WHERE r.id = j.id), "
     "concat_ws(' ', CASE WHEN state = 'failed' THEN 'revive' "
     "WHEN finished_at IS NULL THEN 'cancel' END, CASE WHEN state = 'ready' "
     "THEN 'prioritize reschedule' END, 'copy') "
     "FROM jobq.jobs j WHERE id = $1::bigint",
     {{"State", 'S'}, {"Queue", 'q'}, {"Kind", 'k'}, {"Key", 'l'}, {"Line", 'q'}, {"Priority", 't'},
      {"Stage", 't'}, {"Attempt", 't'}, {"Also", 't'}, {"Run at", 'w'}, {"Expires", 'w'},
      {"Cancel requested", 'w'},
      {"Worker", 'q'}, {"Progress", 'p'}, {"Note", 't'}, {"Actions", 'v', '-'}}},
    {"why", "Why it runs or does not", "Nothing is in its way.", 0, 100,
     "SELECT reason, " WHEN("until") " FROM jobq.explain_job($1::bigint)",
     {{"Reason", 'l'}, {"Until", 'w'}}},
    {"tried", "Attempts", "No worker has taken it yet.", 0, 100,
     "WITH j AS MATERIALIZED (SELECT attempt, stage, state, claimed_at, finished_at, errors, "
     "(SELECT w.name FROM jobq.workers w WHERE w.id = o.worker) AS worker FROM jobq.jobs o "
     "WHERE id = $1::bigint) SELECT no, attempt, nullif(stage, '0'), " LOOK_AT("started") ", "
     LOOK_AT("ended") ", CASE WHEN isfinite(until) AND isfinite(started) "
     "THEN extract(epoch FROM until - started) END, worker, outcome, error FROM (SELECT *, "
     "coalesce(ended, CASE outcome WHEN 'running' THEN clock_timestamp() END) AS until "
     "FROM (" LOOK_TRIES ") AS t) AS t ORDER BY no",
     {{"No.", 't', '-'}, {"Attempt", 't'}, {"Stage", 't'}, {"Started", 'a'}, {"Ended", 'a'},
      {"Ran", 's'}, {"Worker", 'q'}, {"Outcome", 'S'}, {"Error", 'm'}}},
    {"steps", "What happened", "", 0, 1000,
     "WITH j AS MATERIALIZED (SELECT enqueued_at, claimed_at, finished_at, attempt, state, errors, "
     "[[log]]::jsonb AS log FROM jobq.jobs WHERE id = $1::bigint) "
     "SELECT " WHEN("at") ", what, " LOOK_AT("at") ", "
     "CASE WHEN isfinite(at) AND isfinite(lag(at) OVER w) "
     "THEN extract(epoch FROM at - lag(at) OVER w) END, text FROM (" LOOK_STORY ") AS s "
     "WINDOW w AS (ORDER BY at NULLS FIRST, no) ORDER BY at NULLS FIRST, no",
     {{"When", 'w'}, {"What", 't'}, {"At", 'a'}, {"After", 's'}, {"Text", 'm'}}},
    {"ties", "Flow, edges and steps", "It belongs to no flow, and waits for no other job.", 0, 500,
     "SELECT CASE tie WHEN 'flow' THEN 'is in flow' WHEN 'after' THEN 'waits, or has waited, for' "
     "WHEN 'before' THEN 'is waited for by' WHEN 'step' THEN 'has done the step' "
     "ELSE 'waits for the signal' END, id, name, kind, state, tie FROM jobq._job_ties($1::bigint)",
     {{"It", 't'}, {"Which", 'r'}, {"Name", 'l'}, {"Kind", 't'}, {"State", 'S'},
      {"Tie", 't', '-'}}},
    {"flow", "Facts", "", LOOK_ONE, 1,
     "SELECT state, name, 100 * (succeeded + failed + cancelled) / nullif(jobs, 0), "
     "format('%s: %s succeeded, %s failed, %s cancelled', jobs, succeeded, failed, cancelled), "
     "CASE on_failure WHEN 'hold' THEN 'what waits for it is held until it is revived' "
     "WHEN 'cancel' THEN 'what waits for it is cancelled' ELSE 'what waits for it runs' END, "
     "CASE WHEN open THEN 'yes, until it is closed' END, " WHEN("created_at") ", "
     WHEN("ended_at") ", " LOOK_FLOW_VERBS " FROM jobq.flows WHERE id = $1::bigint",
     {{"State", 'S'}, {"Name", 't'}, {"Ended", 'p'}, {"Jobs", 't'}, {"If a job fails", 't'},
      {"Takes more jobs", 't'}, {"Begun", 'w'}, {"End", 'w'}, {"Actions", 'v', '-'}}},
    {"payload", "Payload", "This role may not read payloads.", 0, 1,
     "SELECT [[coalesce(" LOOK_CUT("jsonb_pretty(payload)") ", " LOOK_CUT_BYTES("bytes") ")]], "
     "[[" LOOK_CUT("jsonb_pretty(headers)") "]], "
     "[[coalesce(" LOOK_CUT("jsonb_pretty(result)") ", " LOOK_CUT_BYTES("result_bytes") ")]] "
     "FROM jobq.jobs WHERE id = $1::bigint",
     {{"Payload", 'l'}, {"Headers", 'l'}, {"Result", 'l'}}},
    {"letter", "Facts", "", LOOK_ONE, 1,
     "SELECT status, queue, partition, seq, type, attempts, " WHEN("created_at") ", "
     WHEN("failed_at") ", " WHEN("completed_at") ", error, "
     "CASE status WHEN 'pending' THEN 'letter_replay letter_discard' END "
     "FROM jobq.dead_letters WHERE id = $1::bigint",
     {{"Status", 'S'}, {"Queue", 't'}, {"Partition", 't'}, {"Seq", 't'}, {"Type", 't'},
      {"Attempts", 't'}, {"Created", 'w'}, {"Failed", 'w'}, {"Done", 'w'}, {"Error", 'm'},
      {"Actions", 'v', '-'}}},
    {"message", "Payload", "This role may not read payloads.", 0, 1,
     "SELECT [[coalesce(" LOOK_CUT("jsonb_pretty(payload)") ", " LOOK_CUT_BYTES("bytes") ")]], "
     "[[" LOOK_CUT("jsonb_pretty(headers)") "]] FROM jobq.dead_letters WHERE id = $1::bigint",
     {{"Payload", 'l'}, {"Headers", 'l'}}},
    {"bulk", "In bulk", "", LOOK_LIVE, 0, NULL}, /* page_bulks writes it */
    {"trouble", "Needs attention", "Nothing needs attention.", LOOK_TOP | LOOK_LIVE, 50,
     "SELECT severity, subject, sentence, remedy, check_name FROM jobq.doctor()",
     {{"Severity", 'S'}, {"Subject", 'o', 'w'}, {"What is wrong", 'l'},
      {"What to do", 'l', 'w'}, {"Check", 't', '-'}}},
};

/* ---- the statement --------------------------------------------------------------------------- */

/* Appends SQL. open: with what is in [[ ]]. */
static void look_put(app_text *sql, const char *text, bool open)
{
    const char *from, *to;

    for (; (from = strstr(text, "[[")) != NULL; text = to + 2) {
        to = strstr(from, "]]");
        app_add(sql, text, (size_t)(from - text));
        if (open) app_add(sql, from + 2, (size_t)(to - from - 2));
        else app_put(sql, "NULL");
    }
    app_put(sql, text);
}

/* Appends the query of a table. skip: the columns of whom are not asked for, t or w. */
static void look_table_sql(app_text *sql, const look_table *t, char skip, bool open)
{
    int i, count = 0;

    while (count < LOOK_COLUMNS && t->columns[count].head != NULL) count++;
    app_format(sql, "(SELECT '%s'", t->id);
    for (i = 0; i < LOOK_COLUMNS; i++)
        app_format(sql, i < count && t->columns[i].only != skip ? ", c%d::text" : ", NULL", i);
    app_put(sql, " FROM (");
    look_put(sql, t->sql, open);
    for (i = 0; i < count; i++) app_format(sql, i == 0 ? ") AS t (c%d" : ", c%d", i);
    app_format(sql, ") LIMIT %d)", t->limit);
}

/* One statement for those of these tables that have a query. It takes $1 and $2, see the tables.
   The caller frees it. */
static char *look_sql(const int *tables, int count, char skip, bool open)
{
    app_text sql = {0};
    int i;

    for (i = 0; i < count; i++) {
        if (look_tables[tables[i]].sql == NULL) continue;
        if (sql.len > 0) app_put(&sql, " UNION ALL ");
        look_table_sql(&sql, &look_tables[tables[i]], skip, open);
    }
    return sql.ptr;
}

/* The tables with a flag. Returns how many there are. */
static int look_flagged(int flag, int tables[LOOK_TABLES])
{
    int i, count = 0;

    for (i = 0; i < LOOK_TABLES; i++) {
        if (look_tables[i].flags & flag) tables[count++] = i;
    }
    return count;
}

static bool look_is(const PGresult *res, int row, int table)
{
    return strcmp(PQgetvalue(res, row, 0), look_tables[table].id) == 0;
}

/* The place of a column in a row of the answer. */
static int look_at(int table, const char *head)
{
    int i;

    for (i = 0; strcmp(look_tables[table].columns[i].head, head) != 0; i++) {}
    return i + 1;
}

/* The sum of a column of a table. */
static double look_sum(const PGresult *res, int table, const char *head)
{
    double sum = 0;
    int row, column = look_at(table, head);

    for (row = 0; row < PQntuples(res); row++) {
        const char *value = PQgetvalue(res, row, column);

        if (look_is(res, row, table)) sum += atof(value + (value[0] == '~'));
    }
    return sum;
}

/* What that sum is: + at least, because the table or a count in it was cut; ~ an estimate; or 0. */
static char look_sum_is(const PGresult *res, int table, const char *head)
{
    int row, rows = 0, column = look_at(table, head);
    char is = 0;

    for (row = 0; row < PQntuples(res); row++) {
        const char *value = PQgetvalue(res, row, column);

        if (!look_is(res, row, table)) continue;
        if (++rows == look_tables[table].limit || strchr(value, '+') != NULL) return '+';
        if (value[0] == '~') is = '~';
    }
    return is;
}

/* A span or an instant as people read it; other values as they are. */
static const char *look_text(const look_column *c, const char *value, char *text, size_t size)
{
    char span[32];
    double age;

    if (c->type == 's' && value[0] != '\0') return app_span(text, size, atof(value));
    if (c->type != 'w' || strlen(value) < 22) return value;
    age = atof(value + 21);
    app_span(span, sizeof span, age < 0 ? -age : age);
    snprintf(text, size, age < 0 ? "in %s" : strcmp(c->head, "Next") == 0 ? "due %s ago"
             : "%s ago", span);
    return text;
}

/* ---- verbs ----------------------------------------------------------------------------------- */

/* What a person can do to an object. $1 is the object, or an array of ids of jobs. */
typedef struct look_verb {
    const char *name, *label;
    char key;          /* of top; 0: none */
    const char *ask;   /* to be sure: "Cancel job" */
    const char *done;  /* what top says; NULL: what the statement answers */
    const char *form;  /* of web: where it is offered */
    const char *needs; /* the functions that a role must be allowed to use; ; between them */
    const char *sql;
} look_verb;

/* Enqueues dead letters of a queue again, at the end of their partitions, and ends them, all at
   once. which: arguments of dead_letter_replay. */
#define LOOK_REPLAY(queue, which) \
    "WITH t AS MATERIALIZED (SELECT (random() * 9e15)::bigint + 1 AS token), " \
    "d AS MATERIALIZED (SELECT l.* FROM t, LATERAL jobq.dead_letter_replay(token, 60000000, " \
    which ") l), " \
    "e AS MATERIALIZED (SELECT d.id, jobq.outbox_enqueue(queue => " queue ", " \
    "payload => d.payload, " \
    "partition => (d.partition_id & 32767)::integer, type => d.type, bytes => d.bytes, " \
    "headers => d.headers) FROM d ORDER BY d.seq) " \
    "SELECT jobq.dead_letter_resolve(token, ARRAY(SELECT id FROM e)) AS replayed FROM t"

#define LOOK_ENQUEUE \
    "jobq.enqueue(text, text, jsonb, interval, timestamptz, integer, integer, integer, interval, " \
    "text, bytea, jsonb, boolean, text, text, interval, text, bigint, text, bigint[], text[], " \
    "bigint, text, interval)"

#define LOOK_REPLAYS \
    "jobq.dead_letter_replay(bigint, bigint, text, integer, text, integer, bigint);" \
    "jobq.dead_letter_resolve(bigint, bigint[]);" \
    "jobq.outbox_enqueue(text, jsonb, integer, text, text, bytea, jsonb, text, boolean)"
#define LOOK_DISCARDS "jobq.dead_letter_discard(text, integer, text, integer, bigint)"

#define LOOK_OF_IDS(verb) "SELECT jobq." verb "(id) FROM unnest($1::bigint[]) AS u (id)"

static const look_verb look_verbs[] = {
    {"cancel", "Cancel", 'c', "Cancel job", NULL, "jobs", "jobq.cancel(bigint)",
     LOOK_OF_IDS("cancel")},
    {"revive", "Revive", 'r', NULL, NULL, "jobs", "jobq.revive(bigint)", LOOK_OF_IDS("revive")},
    {"delete", "Delete", 0, NULL, NULL, "jobs", "jobq.delete(bigint)", LOOK_OF_IDS("delete")},
    {"copy", "Run again as a copy", 0, NULL, NULL, "jobs", LOOK_ENQUEUE,
     "SELECT jobq.enqueue(queue, kind, payload, bytes => bytes, headers => headers, "
     "priority => priority, line => line) FROM jobq.jobs WHERE id = $1::bigint"},
    {"prioritize", "Set priority", 0, NULL, NULL, "jobs", "jobq.prioritize(bigint, integer)",
     "SELECT jobq.prioritize($1::bigint, $8::integer)"},
    {"reschedule", "Reschedule", 0, NULL, NULL, "jobs", "jobq.reschedule(bigint, timestamptz)",
     "SELECT jobq.reschedule($1::bigint, $9::timestamptz)"},
    {"signal", "Send signal", 0, NULL, NULL, "jobs", "jobq.signal(text, jsonb)",
     "SELECT jobq.signal($1, $7::jsonb)"},
    /* Of all jobs of a filter, which are taken in steps: see acts.h. */
    {"cancel_all", "Cancel all that match", 0, NULL, NULL, "jobs", "jobq.cancel(bigint)",
     "SELECT id, jobq.cancel(id) FROM hit"},
    {"revive_all", "Revive all that match", 0, NULL, NULL, "jobs", "jobq.revive(bigint)",
     "SELECT id, jobq.revive(id) FROM hit"},
    {"delete_all", "Delete all that match", 0, NULL, NULL, "jobs", "jobq.delete(bigint)",
     "SELECT id, jobq.delete(id) FROM hit"},
    {"pause", "Pause", 'p', NULL, "paused", "queues", "jobq.pause(text, text)",
     "SELECT jobq.pause($1)"},
    {"resume", "Resume", 'p', NULL, "resumed", "queues", "jobq.resume(text, text)",
     "SELECT jobq.resume($1)"},
    {"flow_revive", "Revive failed jobs", 'r', NULL, "failed jobs revived", "flows",
     "jobq.flow_revive(bigint, integer)", "SELECT jobq.flow_revive($1::bigint)"},
    {"flow_cancel", "Cancel flow", 'c', "Cancel flow", "cancelled", "flows",
     "jobq.flow_cancel(bigint, integer)", "SELECT jobq.flow_cancel($1::bigint)"},
    {"schedule_run", "Run now", 0, NULL, NULL, "schedules", "jobq.schedule_run(text)",
     "SELECT jobq.schedule_run($1)"},
    {"schedule_pause", "Pause", 'p', NULL, "paused", "schedules", "jobq.schedule_pause(text)",
     "SELECT jobq.schedule_pause($1)"},
    {"schedule_resume", "Resume", 'p', NULL, "resumed", "schedules", "jobq.schedule_resume(text)",
     "SELECT jobq.schedule_resume($1)"},
    {"replay", "Send again", 0, "Send again the dead letters of", NULL, "outbox",
     LOOK_REPLAYS, LOOK_REPLAY("$1", "queue => $1, at_most => 1000")},
    {"discard", "Discard", 0, "Give up the dead letters of", NULL, "outbox", LOOK_DISCARDS,
     "SELECT jobq.dead_letter_discard(queue => $1, at_most => 1000)"},
    {"subscribe", "Subscribe", 0, NULL, NULL, "outbox",
     "jobq.subscribe(text, text, text, text, text[], text)",
     "SELECT jobq.subscribe($10, $1, $11, $12, string_to_array($13, ','))"},
    {"unsubscribe", "Unsubscribe", 0, "End", NULL, "outbox", "jobq.unsubscribe(text, boolean)",
     "SELECT jobq.unsubscribe($1)::integer"},
    {"drop", "Unsubscribe and drop", 0, "End, and drop what waits of,", NULL, "outbox",
     "jobq.unsubscribe(text, boolean)", "SELECT jobq.unsubscribe($1, drop => true)::integer"},
    {"letter_replay", "Send again", 0, NULL, NULL, "outbox", LOOK_REPLAYS,
     LOOK_REPLAY("(SELECT v.queue FROM jobq.dead_letters v WHERE v.id = d.id)",
                 "id => $1::bigint")},
    {"letter_discard", "Discard", 0, NULL, NULL, "outbox", LOOK_DISCARDS,
     "SELECT jobq.dead_letter_discard(id => $1::bigint)"},
};
enum { LOOK_VERBS = sizeof look_verbs / sizeof look_verbs[0] };

/* The verb with this name; NULL: there is none. */
static const look_verb *look_verb_find(const char *name, size_t len)
{
    int i;

    for (i = 0; i < LOOK_VERBS; i++)
        if (strlen(look_verbs[i].name) == len && strncmp(look_verbs[i].name, name, len) == 0)
            return &look_verbs[i];
    return NULL;
}

/* The next verb of a list of names with blanks between them; NULL: the list has ended. */
static const look_verb *look_next_verb(const char **names)
{
    const char *name = *names;
    size_t len = strcspn(name, " ");

    *names += len + (name[len] == ' ');
    return look_verb_find(name, len);
}

/* Whether the verb takes an array of ids of jobs. */
static bool look_takes_ids(const look_verb *verb)
{
    return strstr(verb->sql, "$1::bigint[]") != NULL;
}
