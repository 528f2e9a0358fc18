-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: views of jobs and workers, and peek.

-- Succeeded and cancelled jobs of queues that keep history, with the columns of jobs.
CREATE OR REPLACE VIEW jobq.past_jobs AS
SELECT h.id, q.name AS queue, k.name AS kind,
       CASE h.state WHEN 's' THEN 'succeeded' ELSE 'cancelled' END AS state,
       h.priority, h.stage, h.stages, h.attempt,
       coalesce(k.max_attempts, q.max_attempts) AS max_attempts, h.crash,
       NULL::integer AS snoozes, false AS suspect, false AS alone, h.enqueued_at, h.run_at,
       h.claimed_at, h.finished_at, h.worker, NULL::bigint AS claim,
       NULL::timestamptz AS cancel_requested_at, h.key, h.payload, h.bytes, h.headers,
       h.errors, h.queue_id, h.kind_id, NULL::integer AS own_max_attempts,
       NULL::bigint AS timeout_us, h.line_name AS line, h.result, h.result_bytes,
       h.log, NULL::timestamptz AS expires_at
FROM jobq.history h JOIN jobq.queue q ON q.id = h.queue_id
    JOIN jobq.kind k ON k.id = h.kind_id;

-- Jobs that have not ended, with columns of jobs. A page of a queue's jobs is found here,
-- however many jobs have ended.
CREATE OR REPLACE VIEW jobq.live_jobs AS
SELECT j.id, q.name AS queue, k.name AS kind,
       CASE j.state WHEN 'r' THEN 'ready' WHEN 'x' THEN 'running' ELSE 'waiting' END AS state,
       j.priority, j.stage, j.stages, j.attempt, j.suspect, j.enqueued_at, j.run_at,
       j.claimed_at, j.worker, j.key, j.payload, j.bytes, j.headers, j.errors, j.queue_id,
       j.kind_id, j.line_name AS line, j.expires_at
FROM jobq.job j JOIN jobq.queue q ON q.id = j.queue_id JOIN jobq.kind k ON k.id = j.kind_id;

-- Every job, live or ended. Names are joined after the union, so a page in the order of id is
-- read from the primary keys, however many jobs there are. own_max_attempts and timeout_us are
-- the job's own limits, NULL where those of its kind or queue apply; history keeps neither
-- them nor snoozes.
CREATE OR REPLACE VIEW jobq.jobs AS
SELECT u.id, q.name AS queue, k.name AS kind, u.state, u.priority, u.stage, u.stages,
       u.attempt, coalesce(u.max_attempts, k.max_attempts, q.max_attempts) AS max_attempts,
       u.crash, u.snoozes, u.suspect, u.alone, u.enqueued_at, u.run_at, u.claimed_at,
       u.finished_at, u.worker, u.claim, u.cancel_requested_at, u.key, u.payload, u.bytes,
       u.headers, u.errors, u.queue_id, u.kind_id, u.max_attempts AS own_max_attempts,
       u.timeout_us, u.line_name AS line, u.result, u.result_bytes, u.log, u.expires_at
FROM (SELECT j.id, CASE j.state WHEN 'r' THEN 'ready' WHEN 'x' THEN 'running' ELSE 'waiting'
             END AS state, j.priority, j.stage, j.stages, j.attempt, j.max_attempts, j.crash,
             coalesce(j.snoozes, 0) AS snoozes, j.suspect, j.alone, j.enqueued_at, j.run_at,
             j.claimed_at, NULL::timestamptz AS finished_at, j.worker, j.claim,
             j.cancel_requested_at, j.key, j.payload, j.bytes, j.headers, j.errors, j.queue_id,
             j.kind_id, j.timeout_us, j.line_name, NULL::jsonb AS result,
             NULL::bytea AS result_bytes, NULL::jsonb AS log, j.expires_at
      FROM jobq.job j
      UNION ALL
      SELECT f.id, 'failed', f.priority, f.stage, f.stages, f.attempt, f.max_attempts, f.crash,
             coalesce(f.snoozes, 0), false, false, f.enqueued_at, f.run_at, f.claimed_at,
             f.finished_at, f.worker, NULL, NULL,
             f.key, f.payload, f.bytes, f.headers, f.errors, f.queue_id, f.kind_id,
             f.timeout_us, f.line_name, NULL, NULL, NULL, NULL
      FROM jobq.failed f
      UNION ALL
      SELECT h.id, CASE h.state WHEN 's' THEN 'succeeded' ELSE 'cancelled' END, h.priority,
             h.stage, h.stages, h.attempt, NULL, h.crash, NULL, false, false,
             h.enqueued_at, h.run_at, h.claimed_at, h.finished_at, h.worker, NULL, NULL,
             h.key, h.payload, h.bytes,
             h.headers, h.errors, h.queue_id, h.kind_id, NULL, h.line_name, h.result,
             h.result_bytes, h.log, NULL
      FROM jobq.history h) u
    JOIN jobq.queue q ON q.id = u.queue_id JOIN jobq.kind k ON k.id = u.kind_id;

-- The jobs that hold a key, in whatever queue: live ones, and those that ended within its
-- key_keep.
CREATE OR REPLACE FUNCTION jobq._jobs_of_key(p_key text) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT k.job_id FROM jobq.queue q CROSS JOIN LATERAL (
        SELECT one.job_id FROM jobq.idempotency one
        WHERE one.queue_id = q.id AND one.key = p_key COLLATE "C" LIMIT 1) AS k;
END $$;

-- Failed jobs with the errors of all their attempts, one line each. error is the last one. A
-- page of one queue or kind is read from an index if it is asked for by its id, as in
-- queue_id = jobq._known_queue('mail'), in the order of id: a name is only known to a join.
CREATE OR REPLACE VIEW jobq.failures AS
SELECT f.id, q.name AS queue, k.name AS kind, f.finished_at AS failed_at, f.attempt, f.crash,
       f.stage, f.errors -> -1 ->> 'error' AS error,
       (SELECT string_agg(
            CASE WHEN e ? 'dropped' THEN format('... %s more', e ->> 'dropped')
                 ELSE format('%s  stage %s, attempt %s: %s', e ->> 'at', e ->> 'stage',
                             e ->> 'attempt', coalesce(e ->> 'error', 'no error')) END,
            E'\n' ORDER BY n)
        FROM jsonb_array_elements(CASE jsonb_typeof(f.errors) WHEN 'array' THEN f.errors END)
             WITH ORDINALITY AS u (e, n)) AS errors,
       f.worker::text AS worker, f.enqueued_at, f.key, f.payload, f.bytes, f.headers,
       f.line_name AS line, f.queue_id, f.kind_id
FROM jobq.failed f JOIN jobq.queue q ON q.id = f.queue_id JOIN jobq.kind k ON k.id = f.kind_id;

-- Running jobs. They are found through the claim rows, which are few, and never by a scan of
-- job, whatever the statistics say: LIMIT prevents a join.
CREATE OR REPLACE FUNCTION jobq._running()
RETURNS TABLE (id bigint, queue_id integer, worker bigint, claimed_at timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT j.id, j.queue_id, j.worker, j.claimed_at
    FROM jobq.claim c CROSS JOIN unnest(c.jobs) AS held (id) CROSS JOIN LATERAL (
        SELECT one.* FROM jobq.job one
        WHERE one.id = held.id AND one.worker = c.worker AND one.claim = c.number
        LIMIT 1) AS j;
END $$;

-- Workers that live, and those that died in the last day. running: how many jobs they hold;
-- longest: how long they have held the oldest of them; jobs: the ids of the oldest 20.
CREATE OR REPLACE VIEW jobq.workers AS
WITH running AS MATERIALIZED (
    SELECT r.worker, count(*) AS jobs, min(r.claimed_at) AS oldest_at,
           (array_agg(r.id ORDER BY r.claimed_at, r.id))[1:20] AS ids
    FROM jobq._running() r GROUP BY r.worker
)
SELECT w.id::text AS worker, w.name,
       w.dead_at IS NULL AND clock_timestamp() BETWEEN w.beat_at AND w.expires_at AS alive,
       coalesce(r.jobs, 0) AS running,
       CASE WHEN isfinite(r.oldest_at) THEN now() - r.oldest_at END AS longest, r.ids AS jobs,
       EXISTS (SELECT FROM jobq.sleeper s WHERE s.worker = w.id) AS asleep, w.beat, w.beat_at,
       w.expires_at, w.registered_at, w.dead_at,
       (SELECT array_agg(q.name ORDER BY q.name) FROM jobq.queue q
        WHERE q.id = ANY (w.queues)) AS queues,
       (SELECT array_agg(k.name ORDER BY k.name) FROM jobq.kind k
        WHERE k.id = ANY (w.kinds)) AS kinds,
       w.id, w.host, w.pid
FROM jobq.worker w LEFT JOIN running r ON r.worker = w.id;

-- What would be claimed next, by the rules of claim: ready and due jobs of queues and kinds
-- that are not paused, and of lines that may give some; suspects come last. Late jobs, which a
-- claim would end, are left out. It only reads: no
-- lock, no id drawn, so a read-only transaction can call it. queues NULL: all; exclude: ids to
-- leave out.
-- at_most: rows, most urgent first. Errors: 22023, also for a queue that does not exist.
--     select id, queue, kind from jobq.peek('{mail}', at_most => 5);
CREATE OR REPLACE FUNCTION jobq.peek(
    queues text[] DEFAULT NULL, at_most integer DEFAULT 10, exclude bigint[] DEFAULT '{}')
RETURNS TABLE (id bigint, queue text, kind text, priority smallint, stage smallint,
               stages smallint, run_at timestamptz, enqueued_at timestamptz,
               timeout_us bigint, attempt integer, crash integer, max_attempts integer,
               suspect boolean, alone boolean, payload jsonb, bytes bytea, headers jsonb,
               queue_id integer, kind_id integer)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM jobq._check_at_most(at_most);
    IF cardinality(queues) = 0 THEN
        PERFORM jobq._refuse('queues', 'must have a name, or be NULL');
    END IF;
    PERFORM jobq._known_queue(u.name, 'queues') FROM unnest(queues) AS u (name);
    exclude := coalesce(exclude, '{}');
    PERFORM jobq._check_ids('exclude', exclude);
    RETURN QUERY
    SELECT j.id, q.name, k.name, j.priority, j.stage, j.stages, j.run_at, j.enqueued_at,
           j.timeout_us, j.attempt, j.crash, j.max_attempts, j.suspect, j.alone, j.payload,
           j.bytes, j.headers, j.queue_id, j.kind_id
    FROM jobq.queue q CROSS JOIN LATERAL (
        SELECT next.* FROM generate_series(q.priority_min, 9) AS p (priority)
        CROSS JOIN generate_series(q.stages_max - 1, 0, -1) AS s (stage)
        CROSS JOIN LATERAL (
            SELECT n.* FROM jobq.job n
            WHERE n.queue_id = q.id AND n.priority = p.priority AND n.stage = s.stage
              AND NOT n.suspect AND n.line IS NULL
              AND n.state = 'r' AND n.run_at <= statement_timestamp()
              AND n.id <> ALL (peek.exclude)
              AND (n.expires_at <= statement_timestamp()) IS NOT TRUE
              AND n.kind_id NOT IN (SELECT h.id FROM jobq.kind h
                                    WHERE h.queue_id = q.id AND h.paused_at IS NOT NULL)
            ORDER BY n.run_at, n.id LIMIT peek.at_most) AS next
        UNION ALL
        SELECT lined.* FROM jobq._peek_lines(q, peek.at_most, peek.exclude) AS lined
        UNION ALL
        (SELECT n.* FROM jobq.job n
         WHERE n.queue_id = q.id AND n.suspect AND n.state = 'r'
           AND n.run_at <= statement_timestamp() AND n.id <> ALL (peek.exclude)
           AND (n.expires_at <= statement_timestamp()) IS NOT TRUE
           AND n.kind_id NOT IN (SELECT h.id FROM jobq.kind h
                                 WHERE h.queue_id = q.id AND h.paused_at IS NOT NULL)
         ORDER BY n.priority, n.stage DESC, n.run_at, n.id LIMIT peek.at_most)) AS j
    JOIN jobq.kind k ON k.id = j.kind_id
    WHERE q.paused_at IS NULL
      AND (peek.queues IS NULL OR q.name = ANY (peek.queues COLLATE "C"))
    ORDER BY j.suspect, j.priority, j.stage DESC, j.run_at, j.id LIMIT peek.at_most;
END $$;
