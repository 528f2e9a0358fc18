-- jobq, current text: what a person does, from psql or through the library: look, cancel,
-- revive, delete, reschedule, prioritize, move, pause, set a policy.
--
-- Each verb comes in two forms under one name:
--     select jobq.cancel(42);                                       one job
--     select jobq.cancel('mail', kind => 'welcome', at_most => 500);      what matches
-- The first form answers with what it did (cancelled, revived, deleted ...), or with the state
-- that prevents it (running, succeeded ...; gone, none: see standing). The second form works
-- in bounded steps and answers how many jobs it changed: call it again until it answers 0. It
-- takes jobs that match every argument that is given: kind, older (enqueued, or ended, longer
-- ago than this), tags (contained in headers).
--
-- Both are safe on a live system. The second form skips rows that others hold and never waits,
-- so it neither blocks a worker nor deadlocks. The first form waits for its one row. Rows are
-- found by the lane index. Only ready jobs are changed. A running job belongs to its worker:
-- its cancel can be requested; otherwise the answer is running.
--
-- There is one live job for each queue and key. revive and move answer exists, and change
-- nothing, where another job has the key by the rule of enqueue (it lives, or ended within its
-- queue's key_keep). The second form leaves such jobs out, so it can answer 0 while some are
-- left; the first form tells for each job whether that is why.

-- ---- looking -------------------------------------------------------------------------------

-- Succeeded and cancelled jobs of queues that keep history, with the columns of jobs.
CREATE OR REPLACE VIEW jobq.past_jobs AS
SELECT h.id, q.name AS queue, k.name AS kind,
       CASE h.state WHEN 's' THEN 'succeeded' ELSE 'cancelled' END AS state,
       h.priority, h.stage, h.stages, h.attempt,
       coalesce(k.max_attempts, q.max_attempts) AS max_attempts, h.crash, false AS suspect,
       false AS alone, h.enqueued_at, h.run_at, h.claimed_at, h.finished_at, h.worker,
       NULL::bigint AS claim,
       NULL::timestamptz AS cancel_requested_at, h.key, h.payload, h.bytes, h.headers,
       h.errors, h.queue_id, h.kind_id, NULL::integer AS own_max_attempts,
       NULL::bigint AS timeout_us, h.line_name AS line, h.result, h.result_bytes,
       h.log
FROM jobq.history h JOIN jobq.queue q ON q.id = h.queue_id
    JOIN jobq.kind k ON k.id = h.kind_id;

-- Jobs that have not ended, with columns of jobs. A page of a queue's jobs is found here,
-- however many jobs have ended.
CREATE OR REPLACE VIEW jobq.live_jobs AS
SELECT j.id, q.name AS queue, k.name AS kind,
       CASE j.state WHEN 'r' THEN 'ready' WHEN 'x' THEN 'running' ELSE 'waiting' END AS state,
       j.priority, j.stage, j.stages, j.attempt, j.suspect, j.enqueued_at, j.run_at,
       j.claimed_at, j.worker, j.key, j.payload, j.bytes, j.headers, j.errors, j.queue_id,
       j.kind_id, j.line_name AS line
FROM jobq.job j JOIN jobq.queue q ON q.id = j.queue_id JOIN jobq.kind k ON k.id = j.kind_id;

-- Every job, live or ended. Names are joined after the union, so a page in the order of id is
-- read from the primary keys, however many jobs there are. own_max_attempts and timeout_us are
-- the job's own limits, NULL where those of its kind or queue apply; history does not keep
-- them.
CREATE OR REPLACE VIEW jobq.jobs AS
SELECT u.id, q.name AS queue, k.name AS kind, u.state, u.priority, u.stage, u.stages,
       u.attempt, coalesce(u.max_attempts, k.max_attempts, q.max_attempts) AS max_attempts,
       u.crash, u.suspect, u.alone, u.enqueued_at, u.run_at, u.claimed_at, u.finished_at,
       u.worker, u.claim, u.cancel_requested_at, u.key, u.payload, u.bytes, u.headers,
       u.errors, u.queue_id, u.kind_id, u.max_attempts AS own_max_attempts, u.timeout_us,
       u.line_name AS line, u.result, u.result_bytes, u.log
FROM (SELECT j.id, CASE j.state WHEN 'r' THEN 'ready' WHEN 'x' THEN 'running' ELSE 'waiting'
             END AS state, j.priority, j.stage, j.stages, j.attempt, j.max_attempts, j.crash,
             j.suspect, j.alone, j.enqueued_at, j.run_at, j.claimed_at,
             NULL::timestamptz AS finished_at, j.worker, j.claim, j.cancel_requested_at, j.key,
             j.payload, j.bytes, j.headers, j.errors, j.queue_id, j.kind_id, j.timeout_us,
             j.line_name, NULL::jsonb AS result, NULL::bytea AS result_bytes,
             NULL::jsonb AS log
      FROM jobq.job j
      UNION ALL
      SELECT f.id, 'failed', f.priority, f.stage, f.stages, f.attempt, f.max_attempts, f.crash,
             false, false, f.enqueued_at, f.run_at, f.claimed_at, f.finished_at, f.worker,
             NULL, NULL,
             f.key, f.payload, f.bytes, f.headers, f.errors, f.queue_id, f.kind_id,
             f.timeout_us, f.line_name, NULL, NULL, NULL
      FROM jobq.failed f
      UNION ALL
      SELECT h.id, CASE h.state WHEN 's' THEN 'succeeded' ELSE 'cancelled' END, h.priority,
             h.stage, h.stages, h.attempt, NULL, h.crash, false, false, h.enqueued_at,
             h.run_at,
             h.claimed_at, h.finished_at, h.worker, NULL, NULL, h.key, h.payload, h.bytes,
             h.headers, h.errors, h.queue_id, h.kind_id, NULL, h.line_name, h.result,
             h.result_bytes, h.log
      FROM jobq.history h) u
    JOIN jobq.queue q ON q.id = u.queue_id JOIN jobq.kind k ON k.id = u.kind_id;

-- Failed jobs with the errors of all their attempts, one line each. error is the last one.
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
       f.line_name AS line
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

-- Counts the ready jobs of a queue whose run_at is after p_from and not after p_to, up to
-- p_most, by the lane index. Beyond p_most the answer is the planner's estimate, which
-- includes running jobs, and exact is false. So ten million jobs cost no more than p_most.
CREATE OR REPLACE FUNCTION jobq._count_ready(
    p_queue integer, p_from timestamptz, p_to timestamptz, p_most integer, OUT jobs bigint,
    OUT exact boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off AS $$
DECLARE v_plan json;
BEGIN
    SELECT count(*) INTO jobs FROM (
        SELECT FROM generate_series((SELECT q.priority_min FROM jobq.queue q
                                     WHERE q.id = p_queue), 9) AS p (priority)
        CROSS JOIN generate_series(0, (SELECT q.stages_max - 1 FROM jobq.queue q
                                       WHERE q.id = p_queue)) AS s (stage)
        CROSS JOIN LATERAL (
            (SELECT FROM jobq.job j
             WHERE j.queue_id = p_queue AND j.priority = p.priority AND j.stage = s.stage
               AND NOT j.suspect AND j.line IS NULL
               AND j.run_at > p_from AND j.run_at <= p_to AND j.state = 'r'
             LIMIT p_most)
            UNION ALL
            (SELECT FROM jobq.job j -- who stands in a line is due
             WHERE p_from = '-infinity' AND j.queue_id = p_queue AND j.priority = p.priority
               AND j.stage = s.stage AND NOT j.suspect AND j.line IS NOT NULL
               AND j.state = 'r'
             LIMIT p_most)) AS lane
        LIMIT p_most) AS counted;
    exact := jobs < p_most;
    IF exact THEN RETURN; END IF;
    EXECUTE 'EXPLAIN (FORMAT JSON) SELECT FROM jobq.job j WHERE j.queue_id = $1 '
            'AND j.run_at > $2 AND j.run_at <= $3' INTO v_plan USING p_queue, p_from, p_to;
    jobs := greatest(jobs, (v_plan -> 0 -> 'Plan' ->> 'Plan Rows')::numeric::bigint);
END $$;

-- When the oldest due job of a queue became due, of those due after p_from and not after p_to.
-- Only 1,000 lines of a lane are looked at, and none unless p_from is -infinity.
CREATE OR REPLACE FUNCTION jobq._first_due(
    p_queue integer, p_from timestamptz, p_to timestamptz) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
BEGIN
    RETURN (
        SELECT min(first.run_at)
        FROM generate_series((SELECT q.priority_min FROM jobq.queue q
                              WHERE q.id = p_queue), 9) AS p (priority)
        CROSS JOIN generate_series(0, (SELECT q.stages_max - 1 FROM jobq.queue q
                                       WHERE q.id = p_queue)) AS s (stage)
        CROSS JOIN LATERAL (
            (SELECT j.run_at FROM jobq.job j
             WHERE j.queue_id = p_queue AND j.priority = p.priority AND j.stage = s.stage
               AND NOT j.suspect AND j.line IS NULL
               AND j.run_at > p_from AND j.run_at <= p_to AND j.state = 'r'
             ORDER BY j.run_at, j.id LIMIT 1)
            UNION ALL
            SELECT one.run_at
            FROM unnest(jobq._next_lines(
                p_queue, p.priority::smallint, s.stage::smallint, -9223372036854775808,
                9223372036854775807, 1000)) AS u (no)
            CROSS JOIN LATERAL (
                SELECT j.run_at FROM jobq.job j
                WHERE j.queue_id = p_queue AND j.priority = p.priority AND j.stage = s.stage
                  AND NOT j.suspect AND j.line = u.no AND j.state = 'r'
                ORDER BY j.run_at, j.id LIMIT 1) AS one
            WHERE p_from = '-infinity'
              AND (SELECT q.lines FROM jobq.queue q WHERE q.id = p_queue)) AS first);
END $$;

-- Counts the due jobs of a queue, as count_ready does. oldest: when the oldest of them became
-- due. Jobs that have ended stay in the index while a snapshot is held, and a walk past 20
-- million of them takes seconds. So from a million dead rows on it looks at what became due
-- in the last second, in the one before, in the two before that and so on. It begins no new
-- look after 20 ms, and exact is false. A queue with lines is always counted as a whole,
-- because the index of its lines is not in the order of time.
CREATE OR REPLACE FUNCTION jobq._count_due(
    p_queue integer, p_most integer, OUT jobs bigint, OUT exact boolean,
    OUT oldest timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_started timestamptz := clock_timestamp();
    v_all boolean := pg_stat_get_dead_tuples('jobq.job'::regclass) < 1000000
                     OR (SELECT q.lines FROM jobq.queue q WHERE q.id = p_queue);
    v_from timestamptz := statement_timestamp();
    v_to timestamptz;
    v_span interval := '1 second';
    v_part record;
BEGIN
    jobs := 0;
    exact := v_all;
    LOOP
        v_to := v_from;
        v_from := CASE WHEN v_all THEN '-infinity' ELSE statement_timestamp() - v_span END;
        v_span := 2 * v_span;
        SELECT r.* INTO v_part FROM jobq._count_ready(p_queue, v_from, v_to, p_most) r;
        jobs := jobs + v_part.jobs;
        exact := exact AND v_part.exact;
        IF v_part.jobs > 0 THEN oldest := jobq._first_due(p_queue, v_from, v_to); END IF;
        EXIT WHEN v_all OR v_span > '100 days'
                  OR clock_timestamp() > v_started + interval '20 ms';
    END LOOP;
END $$;

-- The counts of one queue. ready: due now; scheduled: due later; parked: no running worker has
-- their kind; suspects: ready jobs that were running when their worker died; failed_1h: failed
-- in the last hour; late: how long the oldest due job has waited.
CREATE OR REPLACE FUNCTION jobq._queue_counts(
    p_queue integer, p_most integer, OUT ready bigint, OUT scheduled bigint, OUT parked bigint,
    OUT suspects bigint, OUT failed bigint, OUT failed_1h bigint, OUT exact boolean,
    OUT late interval)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_now timestamptz := statement_timestamp();
    v_last timestamptz := '294276-12-31 00:00:00+00';
BEGIN
    SELECT d.jobs, v_now - d.oldest, s.jobs, p.jobs, d.exact AND s.exact AND p.exact
    INTO ready, late, scheduled, parked, exact
    FROM jobq._count_due(p_queue, p_most) d,
         jobq._count_ready(p_queue, v_now, v_last, p_most) s,
         jobq._count_ready(p_queue, v_last, 'infinity', p_most) p;
    SELECT count(*) INTO suspects FROM (
        SELECT FROM jobq.job j WHERE j.queue_id = p_queue AND j.suspect AND j.state = 'r'
        LIMIT p_most) s;
    SELECT count(*) INTO failed FROM (
        SELECT FROM jobq.failed f WHERE f.queue_id = p_queue LIMIT p_most) f;
    SELECT count(*) INTO failed_1h FROM (
        SELECT FROM jobq.failed f
        WHERE f.queue_id = p_queue AND f.finished_at > v_now - interval '1 hour'
        LIMIT p_most) f;
    exact := exact AND greatest(suspects, failed) < p_most;
END $$;

-- How many jobs a second each queue finished in the last minute, by the newest 256 pages of
-- each ring of the history: a row for each ring in which the queue has any. History is only
-- appended to, so its end is the newest part. Queues without history have no row.
CREATE OR REPLACE FUNCTION jobq._queue_rates()
RETURNS TABLE (queue_id integer, done_per_s numeric)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_now timestamptz := statement_timestamp();
    v_from timestamptz;
    v_part regclass;
    v_since timestamptz;
    v_page bigint;
BEGIN
    FOR v_part, v_since IN SELECT jobq._part(r.slot), r.since FROM jobq.ring r LOOP
        CONTINUE WHEN v_part IS NULL;
        v_page := greatest(0, pg_relation_size(v_part)
                              / current_setting('block_size')::bigint - 256);
        IF v_page > 0 THEN
            EXECUTE format('SELECT min(h.finished_at) FROM %s h '
                           'WHERE h.ctid >= %L', v_part, format('(%s,0)', v_page))
            INTO v_since;
        END IF;
        v_from := greatest(v_now - interval '1 minute',
                           least(v_since, v_now - interval '1 second'));
        RETURN QUERY EXECUTE format(
            'SELECT h.queue_id, (count(*) / $1)::numeric(12, 1) FROM %s h '
            'WHERE h.ctid >= %L AND h.finished_at > $2 GROUP BY 1', v_part,
            format('(%s,0)', v_page)) USING extract(epoch FROM v_now - v_from), v_from;
    END LOOP;
END $$;

-- Queues at a glance. workers: how many live workers serve the queue. exact is false when a
-- number above 10,000 is an estimate (ready, scheduled, parked) or means "at least" (failed).
CREATE OR REPLACE VIEW jobq.queues AS
WITH running AS MATERIALIZED (
    SELECT r.queue_id, count(*) AS jobs FROM jobq._running() r GROUP BY r.queue_id
)
SELECT q.name AS queue, q.paused_at IS NOT NULL AS paused, c.ready, coalesce(r.jobs, 0)
       AS running, c.scheduled, c.parked, c.suspects, c.failed, c.failed_1h, c.late,
       coalesce(d.done_per_s, CASE WHEN q.history THEN 0.0 END)::float8 AS done_per_s,
       (SELECT count(*) FROM jobq.worker w WHERE q.id = ANY (w.queues) AND w.dead_at IS NULL
            AND clock_timestamp() BETWEEN w.beat_at AND w.expires_at) AS workers,
       (SELECT array_agg(k.name ORDER BY k.name) FROM jobq.kind k
        WHERE k.queue_id = q.id AND k.paused_at IS NOT NULL) AS paused_kinds, c.exact
FROM jobq.queue q CROSS JOIN LATERAL jobq._queue_counts(q.id, 10000) c
LEFT JOIN running r ON r.queue_id = q.id
LEFT JOIN (SELECT s.queue_id, sum(s.done_per_s) AS done_per_s FROM jobq._queue_rates() s
           GROUP BY 1) d ON d.queue_id = q.id;

-- Lines at a glance: those with settings or a limit, and those in which any job stands.
-- waiting: counted up to 10,000, see line_waiting. next_at: no job is claimed from it before,
-- because it is held or its rate is used up. A look at a queue costs some microseconds for
-- each of its lines. LIMIT, and ROWS in known_lines, keep Postgres from expecting a million
-- rows. It would then compile the query each time, which takes 0.25 s.
CREATE OR REPLACE VIEW jobq.lines AS
WITH running AS MATERIALIZED (
    SELECT j.queue_id, j.line_name, count(*) AS jobs
    FROM jobq._running() r CROSS JOIN LATERAL (
        SELECT one.* FROM jobq.job one WHERE one.id = r.id LIMIT 1) AS j
    WHERE j.line_name IS NOT NULL GROUP BY j.queue_id, j.line_name
)
SELECT q.name AS queue, k.name AS line, jobq._line_waiting(q, k.name, 10000) AS waiting,
       coalesce(r.jobs, 0) AS running, m.most AS running_max, m.strict,
       jobq._rate_text(coalesce(l.rate_count, q.line_rate_count),
                      CASE WHEN l.rate_count IS NULL THEN q.line_rate_us ELSE l.rate_us END)
       AS rate, coalesce(l.weight, 1::smallint) AS weight, l.paused_at IS NOT NULL AS paused,
       CASE WHEN h.held THEN l.hold_until END AS hold_until,
       CASE WHEN h.held THEN l.hold_why END AS hold_why,
       CASE WHEN h.held OR (coalesce(r.jobs, 0) >= m.most) IS NOT TRUE
            THEN now() + m.due_us * interval '1 microsecond' END AS next_at, q.id AS queue_id
FROM jobq.queue q CROSS JOIN LATERAL jobq._known_lines(q) k
CROSS JOIN LATERAL (SELECT r.* FROM jobq._line_rooms(q, ARRAY[k.no], 1, '{}') r LIMIT 1) m
LEFT JOIN jobq.line l ON l.queue_id = q.id AND l.no = k.no
CROSS JOIN LATERAL (
    SELECT clock_timestamp() BETWEEN l.held_at AND l.hold_until AS held) AS h
LEFT JOIN running r ON r.queue_id = q.id AND r.line_name = k.name;

-- What would be claimed next, by the rules of claim: ready and due jobs of queues and kinds
-- that are not paused, and of lines that may give some; suspects come last. It only reads: no
-- lock, no id drawn, so a read-only transaction can call it. queues NULL: all; exclude: ids to
-- leave out.
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
              AND n.kind_id NOT IN (SELECT h.id FROM jobq.kind h
                                    WHERE h.queue_id = q.id AND h.paused_at IS NOT NULL)
            ORDER BY n.run_at, n.id LIMIT peek.at_most) AS next
        UNION ALL
        SELECT lined.* FROM jobq._peek_lines(q, peek.at_most, peek.exclude) AS lined
        UNION ALL
        (SELECT n.* FROM jobq.job n
         WHERE n.queue_id = q.id AND n.suspect AND n.state = 'r'
           AND n.run_at <= statement_timestamp() AND n.id <> ALL (peek.exclude)
           AND n.kind_id NOT IN (SELECT h.id FROM jobq.kind h
                                 WHERE h.queue_id = q.id AND h.paused_at IS NOT NULL)
         ORDER BY n.priority, n.stage DESC, n.run_at, n.id LIMIT peek.at_most)) AS j
    JOIN jobq.kind k ON k.id = j.kind_id
    WHERE q.paused_at IS NULL
      AND (peek.queues IS NULL OR q.name = ANY (peek.queues COLLATE "C"))
    ORDER BY j.suspect, j.priority, j.stage DESC, j.run_at, j.id LIMIT peek.at_most;
END $$;

-- ---- why a job does not run ----------------------------------------------------------------

-- Why a job does not run, in words: a row for each thing in its way. until: when that ends, if
-- a clock decides.
CREATE OR REPLACE FUNCTION jobq.explain_job(id bigint)
RETURNS TABLE (reason text, until timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_job jobq.job;
    v_standing text := jobq.standing(explain_job.id);
    v_ahead bigint;
BEGIN
    SELECT j.* INTO v_job FROM jobq.job j WHERE j.id = explain_job.id;
    IF NOT FOUND THEN
        reason := CASE v_standing
            WHEN 'none' THEN 'no job has this id'
            WHEN 'gone' THEN 'it has ended and is no longer kept, or it was deleted or never '
                             'committed'
            ELSE 'it has ended: ' || v_standing END;
        RETURN NEXT;
    ELSIF v_job.state = 'x' THEN
        reason := format('it runs, since %s, on worker %s', jobq._shown(v_job.claimed_at),
            coalesce((SELECT w.name FROM jobq.worker w WHERE w.id = v_job.worker), 'unknown'));
        RETURN NEXT;
        RETURN QUERY
        SELECT format('its result cannot be written before the transaction of %s ends, which '
                      'has locked its row or key', h.holder), NULL::timestamptz
        FROM jobq._row_holders(ARRAY[v_job.id]) h;
    ELSIF v_job.state = 'w' THEN
        RETURN QUERY SELECT r.reason, NULL::timestamptz FROM jobq._explain_waiting(v_job.id) r;
    ELSE
        RETURN QUERY SELECT r.reason, r.until FROM jobq._explain_ready(v_job) r;
        IF FOUND THEN RETURN; END IF;
        v_ahead := jobq._jobs_ahead(v_job, 10000);
        reason := CASE WHEN v_ahead = 0 THEN 'a worker may take it now'
                  WHEN v_ahead = 1 THEN '1 job is ahead of it'
                  WHEN v_ahead < 10000 THEN format('%s jobs are ahead of it', v_ahead)
                  ELSE 'at least 10000 jobs are ahead of it' END
                  || CASE WHEN v_ahead > 0 AND v_job.line IS NOT NULL THEN ' in its line'
                     ELSE '' END;
        RETURN NEXT;
    END IF;
END $$;

-- Other transactions that have locked the rows of running jobs, or of their keys. A result is
-- not written before they end: it is sent again and again, so pg_blocking_pids does not tell.
-- A handler that completes its job in its own transaction is one of them, too.
CREATE OR REPLACE FUNCTION jobq._row_holders(p_ids bigint[])
RETURNS TABLE (id bigint, holder text, pid integer, since timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT DISTINCT r.id, CASE WHEN x.gid IS NULL THEN format('session %s (%s)', l.pid,
               coalesce(nullif(a.application_name, ''), a.usename::text))
           ELSE format('the prepared transaction %s', x.gid) END, l.pid,
           coalesce(a.xact_start, x.prepared)
    FROM (SELECT j.id, j.xmax AS xid FROM jobq.job j WHERE j.id = ANY (p_ids)
          UNION ALL
          SELECT j.id, k.xmax FROM jobq.job j
          JOIN jobq.idempotency k ON k.queue_id = j.queue_id AND k.key = j.key
          WHERE j.id = ANY (p_ids)) AS r
    JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = r.xid
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    LEFT JOIN pg_prepared_xacts x ON x.transaction = r.xid;
END $$;

-- A part of explain_job: what a job waits for.
CREATE OR REPLACE FUNCTION jobq._explain_waiting(p_id bigint) RETURNS TABLE (reason text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY
    SELECT CASE WHEN e.came IS NULL THEN 'it waits for the end of ' || string_agg(
               jobq._parent_text(e.parent), ', ' ORDER BY e.parent)
           ELSE format('it does not run, because %s %s', string_agg(
               jobq._parent_text(e.parent), ', ' ORDER BY e.parent),
               CASE WHEN e.came = 's' THEN 'succeeded'
               WHEN e.came = 'c'
               THEN 'was cancelled, deleted or erased: cancel the job that waits'
               WHEN e.gone THEN 'failed and is no longer kept: cancel the job that waits'
               ELSE 'failed: revive it' END) END
    FROM (SELECT o.*, (o.came = 'f') IS TRUE AND o.parent > 0 AND NOT EXISTS (
              SELECT FROM jobq.failed f WHERE f.id = o.parent) AS gone
          FROM jobq.edge o WHERE o.child = p_id AND o.holds
          ORDER BY o.parent LIMIT 100) AS e
    GROUP BY e.came, e.gone ORDER BY e.came, e.gone;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'it is about to become ready';
    ELSIF jobq._in_circle(p_id) THEN
        RETURN QUERY SELECT 'that waits for this job itself, so neither ends: cancel one of '
                            'them';
    END IF;
    RETURN QUERY
    SELECT format('flow %s has no job yet: add one, or select jobq.flow_close(%s)', f.id, f.id)
    FROM jobq.edge e JOIN jobq.flow f ON f.id = -e.parent
    WHERE e.child = p_id AND e.holds AND f.ended_at IS NULL
      AND NOT EXISTS (SELECT FROM jobq.flow_part p WHERE p.flow_id = f.id)
    ORDER BY f.id LIMIT 100;
END $$;

-- Whether a job is in a circle: something that it waits for waits for it, or for the end of
-- its flow.
CREATE OR REPLACE FUNCTION jobq._in_circle(p_id bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM jobq._awaited(ARRAY(
            SELECT e.parent FROM jobq.edge e WHERE e.child = p_id AND e.holds
            UNION ALL SELECT h.parent FROM jobq._line_waits(ARRAY[p_id]) h)) AS a (id)
        WHERE a.id IN (p_id, -(SELECT nullif(j.flow_id, 0) FROM jobq.job j
                               WHERE j.id = p_id)));
END $$;

CREATE OR REPLACE FUNCTION jobq._parent_text(p_id bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN p_id < 0 THEN format('flow %s', -p_id) ELSE format('job %s%s', p_id,
        (SELECT format(' (%s)', n.name) FROM jobq.flow_job n WHERE n.job_id = p_id LIMIT 1))
        END;
END $$;

-- A part of explain_job: what keeps a ready job from being claimed.
CREATE OR REPLACE FUNCTION jobq._explain_ready(p_job jobq.job)
RETURNS TABLE (reason text, until timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := statement_timestamp();
    v_queue jobq.queue;
    v_kind jobq.kind;
    v_served boolean;
BEGIN
    SELECT q.* INTO v_queue FROM jobq.queue q WHERE q.id = p_job.queue_id;
    SELECT k.* INTO v_kind FROM jobq.kind k WHERE k.id = p_job.kind_id;
    v_served := EXISTS (SELECT FROM jobq.worker w
                        WHERE p_job.queue_id = ANY (w.queues) AND w.dead_at IS NULL
                          AND clock_timestamp() BETWEEN w.beat_at AND w.expires_at);
    RETURN QUERY
    SELECT r.reason, r.until FROM (VALUES
        (jobq._is_copy(), 'this database is a copy of another one, so nothing is claimed here',
         NULL),
        (v_queue.paused_at IS NOT NULL, 'its queue is paused', NULL),
        (clock_timestamp() BETWEEN v_queue.held_at AND v_queue.hold_until,
         jobq._held_text('queue', v_queue.hold_until, v_queue.hold_why), v_queue.hold_until),
        (v_kind.paused_at IS NOT NULL, 'its kind is paused', NULL),
        (p_job.run_at = 'infinity', 'it is parked: no living worker has its kind', NULL),
        (p_job.flow_id IS NOT NULL AND p_job.run_at > v_now,
         (SELECT format('it waits for the signal %L', w.name) FROM jobq.signal_wait w
          WHERE w.job_id = p_job.id),
         (SELECT w.until FROM jobq.signal_wait w WHERE w.job_id = p_job.id)),
        (p_job.run_at > v_now AND p_job.run_at < 'infinity',
         format('it is not due before %s', jobq._shown(p_job.run_at)), p_job.run_at),
        (p_job.alone, 'it runs only on a worker that holds no other job, because its worker '
            'died twice', NULL),
        (NOT v_served, 'no living worker serves its queue', NULL),
        (v_served AND p_job.run_at < 'infinity' AND NOT jobq._kind_lives(p_job.kind_id),
         'no living worker has its kind', NULL)
    ) AS r (given, reason, until) WHERE r.given AND r.reason IS NOT NULL;
    IF p_job.line_name IS NOT NULL THEN
        RETURN QUERY SELECT r.reason, r.until FROM jobq._explain_line(v_queue, p_job) r;
    END IF;
    RETURN QUERY SELECT r.reason, r.until FROM jobq._explain_quotas(p_job) r;
END $$;

-- A part of explain_job: the limits of its queue and of its kind over all workers. A rate is
-- used up while no start is left in the quota's row, and none that a worker was given.
CREATE OR REPLACE FUNCTION jobq._explain_quotas(p_job jobq.job)
RETURNS TABLE (reason text, until timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT format('the limit of its %s is used up, by %s',
                  CASE WHEN u.kind_id IS NULL THEN 'queue' ELSE 'kind' END,
                  string_agg(DISTINCT coalesce(w.name, 'unknown'), ', ')), NULL::timestamptz
    FROM jobq.quota u JOIN jobq.permit p ON p.quota_id = u.id AND p.held > 0
    LEFT JOIN jobq.worker w ON w.id = p.worker
    WHERE u.queue_id = p_job.queue_id AND (u.kind_id IS NULL OR u.kind_id = p_job.kind_id)
    GROUP BY u.id, u.kind_id HAVING sum(p.held) >= u.running_max;
    RETURN QUERY
    SELECT format('the rate of its %s is used up until %s',
                  CASE WHEN u.kind_id IS NULL THEN 'queue' ELSE 'kind' END,
                  jobq._shown(n.next_at)), n.next_at
    FROM jobq.quota u CROSS JOIN LATERAL (
        SELECT least(u.free_at, clock_timestamp())
               + u.rate_us * interval '1 microsecond' / u.rate_count AS next_at) AS n
    WHERE u.queue_id = p_job.queue_id AND (u.kind_id IS NULL OR u.kind_id = p_job.kind_id)
      AND n.next_at > statement_timestamp()
      AND NOT EXISTS (SELECT FROM jobq.permit p WHERE p.quota_id = u.id AND p.tokens > 0);
END $$;

CREATE OR REPLACE FUNCTION jobq._held_text(p_what text, p_until timestamptz, p_why text)
RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN format('its %s is held until %s%s', p_what, jobq._shown(p_until), ': ' || p_why);
END $$;

-- A part of explain_job: the job's line.
CREATE OR REPLACE FUNCTION jobq._explain_line(p_queue jobq.queue, p_job jobq.job)
RETURNS TABLE (reason text, until timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_line jobq.line;
    v_most integer;
    v_strict boolean; -- plpgsql reads no field that is called strict
    v_due timestamptz;
    v_jobs bigint[];
BEGIN
    SELECT l.* INTO v_line FROM jobq.line l
    WHERE l.queue_id = p_queue.id AND l.no = jobq._line_no(p_job.line_name);
    SELECT r.most, r.strict, statement_timestamp() + r.due_us * interval '1 microsecond'
    INTO v_most, v_strict, v_due
    FROM jobq._line_rooms(p_queue, ARRAY[jobq._line_no(p_job.line_name)], 1, '{}') r;
    v_jobs := ARRAY(
        SELECT j.id FROM jobq.job j
        WHERE j.id = ANY (v_line.jobs) AND j.id <> p_job.id
          AND (j.state = 'x' OR j.suspect OR v_strict) ORDER BY j.id);
    RETURN QUERY
    SELECT r.reason, r.until FROM (VALUES
        (v_line.paused_at IS NOT NULL, 'its line is paused', NULL),
        (clock_timestamp() BETWEEN v_line.held_at AND v_line.hold_until,
         jobq._held_text('line', v_line.hold_until, v_line.hold_why), v_line.hold_until),
        (v_due > statement_timestamp() AND (v_most <= cardinality(v_jobs)) IS NOT TRUE
             AND (clock_timestamp() BETWEEN v_line.held_at AND v_line.hold_until) IS NOT TRUE,
         format('the rate of its line is used up until %s', jobq._shown(v_due)), v_due),
        (v_most <= cardinality(v_jobs),
         'its line is full: job ' || array_to_string(v_jobs, ', '), NULL)
    ) AS r (given, reason, until) WHERE r.given;
    RETURN QUERY SELECT format('job %s: %s', u.id, w.reason), NULL::timestamptz
    FROM unnest(v_jobs) AS u (id) JOIN jobq.job j ON j.id = u.id AND j.state = 'w'
    CROSS JOIN LATERAL jobq._explain_waiting(u.id) w WHERE v_strict;
    RETURN QUERY SELECT format('job %s: it waits for the signal %L', w.job_id, w.name), w.until
    FROM jobq.signal_wait w JOIN jobq.job j ON j.id = w.job_id AND j.state = 'r'
    WHERE w.job_id = ANY (v_jobs) AND v_strict;
END $$;

-- How many due jobs are claimed before a ready one, counted up to p_most: those of its queue,
-- or, for a job that stands in a line, those of the line.
CREATE OR REPLACE FUNCTION jobq._jobs_ahead(p_job jobq.job, p_most integer) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
BEGIN
    IF p_job.line IS NOT NULL THEN
        RETURN (SELECT count(*) FROM (
            SELECT FROM jobq.job j
            WHERE j.queue_id = p_job.queue_id AND j.priority = p_job.priority
              AND j.stage = p_job.stage AND NOT j.suspect AND j.line = p_job.line
              AND j.state = 'r' AND (j.run_at, j.id) < (p_job.run_at, p_job.id)
            LIMIT p_most) AS ahead);
    END IF;
    RETURN (SELECT count(*) FROM (
        SELECT FROM jobq.queue q
        CROSS JOIN generate_series(q.priority_min::integer, p_job.priority) AS p (priority)
        CROSS JOIN generate_series(0, q.stages_max - 1) AS s (stage)
        CROSS JOIN LATERAL (
            SELECT FROM jobq.job j
            WHERE j.queue_id = q.id AND j.priority = p.priority AND j.stage = s.stage
              AND NOT j.suspect AND j.line IS NULL AND j.state = 'r'
              AND j.run_at <= statement_timestamp()
              AND (p.priority < p_job.priority OR s.stage > p_job.stage
                   OR (s.stage = p_job.stage
                       AND (j.run_at, j.id) < (p_job.run_at, p_job.id)))
            LIMIT p_most) AS lane
        WHERE q.id = p_job.queue_id AND NOT p_job.suspect LIMIT p_most) AS ahead);
END $$;

-- ---- helpers -------------------------------------------------------------------------------

-- The id of a queue that must exist: a misspelt name must not create a queue.
CREATE OR REPLACE FUNCTION jobq._known_queue(p_name text) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_id integer;
BEGIN
    SELECT q.id INTO v_id FROM jobq.queue q WHERE q.name = p_name COLLATE "C";
    IF v_id IS NULL THEN
        RAISE EXCEPTION 'no queue is called %', quote_nullable(p_name)
            USING ERRCODE = '22023',
                HINT = 'select name from jobq.queue lists them; queue_set creates one.';
    END IF;
    RETURN v_id;
END $$;

-- The same for a kind of that queue. NULL means any kind.
CREATE OR REPLACE FUNCTION jobq._known_kind(p_queue integer, p_name text) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_id integer;
BEGIN
    IF p_name IS NULL THEN RETURN NULL; END IF;
    SELECT k.id INTO v_id FROM jobq.kind k
    WHERE k.queue_id = p_queue AND k.name = p_name COLLATE "C";
    IF v_id IS NULL THEN
        RAISE EXCEPTION 'no kind of this queue is called ''%''', p_name
            USING ERRCODE = '22023', HINT = 'select name from jobq.kind';
    END IF;
    RETURN v_id;
END $$;

-- The state of a job. gone: no table has it, but its id was given out. So the job has ended
-- and is no longer kept, it was deleted, or the transaction that enqueued it was rolled back
-- or has not committed. none: its id was never given out. A sequence can only be read by a
-- sequential scan. Where those are off, its cost looks so high that Postgres compiled the
-- statement (JIT): each call took seconds.
CREATE OR REPLACE FUNCTION jobq.standing(p_id bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN coalesce((SELECT j.state FROM jobq.jobs j WHERE j.id = p_id),
                    (SELECT 'gone' FROM jobq.job_id s
                     WHERE s.is_called AND p_id BETWEEN 1 AND s.last_value), 'none');
END $$;

-- Whether another job has this key in this queue, by the rule of keep_keys.
CREATE OR REPLACE FUNCTION jobq._key_taken(p_queue integer, p_key text, p_id bigint)
RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM jobq.idempotency k JOIN jobq.queue q ON q.id = k.queue_id
        WHERE k.queue_id = p_queue AND k.key = p_key COLLATE "C" AND k.job_id <> p_id
          AND (k.ended_at >= statement_timestamp() - q.key_keep) IS NOT FALSE);
END $$;

-- Gives a key to a job that becomes live in this queue. false: another job has it. The look
-- comes first because the INSERT would lock the other job's key, and its worker would then
-- wait for the end of the caller's transaction.
CREATE OR REPLACE FUNCTION jobq._take_key(p_queue integer, p_key text, p_id bigint)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_keep interval := (SELECT q.key_keep FROM jobq.queue q WHERE q.id = p_queue);
BEGIN
    IF jobq._key_taken(p_queue, p_key, p_id) THEN RETURN false; END IF;
    INSERT INTO jobq.idempotency AS k (queue_id, key, job_id) VALUES (p_queue, p_key, p_id)
    ON CONFLICT (queue_id, key) DO UPDATE SET job_id = excluded.job_id, ended_at = NULL
    WHERE k.job_id = excluded.job_id OR k.ended_at < statement_timestamp() - v_keep;
    RETURN FOUND;
END $$;

-- Locks ready jobs of a queue that match, at most p_at_most, lane by lane, suspects last.
-- p_priority, p_run_at: only jobs that this would change; p_target: only jobs whose key is
-- free there. So a verb that is called again and again comes to an end.
CREATE OR REPLACE FUNCTION jobq._pick(
    p_queue integer, p_kind text, p_older interval, p_tags jsonb, p_at_most integer,
    p_priority integer DEFAULT NULL, p_run_at timestamptz DEFAULT NULL,
    p_target integer DEFAULT NULL) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
    v_now timestamptz := statement_timestamp();
    v_kind integer := jobq._known_kind(p_queue, p_kind);
    v_ids bigint[];
BEGIN
    p_at_most := coalesce(p_at_most, 2147483647);
    v_ids := ARRAY(
        SELECT picked.id
        FROM generate_series((SELECT q.priority_min FROM jobq.queue q
                              WHERE q.id = p_queue), 9) AS p (priority)
        CROSS JOIN generate_series(0, (SELECT q.stages_max - 1 FROM jobq.queue q
                                       WHERE q.id = p_queue)) AS s (stage)
        CROSS JOIN LATERAL (
            SELECT j.id FROM jobq.job j
            WHERE j.queue_id = p_queue AND j.priority = p.priority AND j.stage = s.stage
              AND NOT j.suspect AND j.line IS NULL
              AND j.state = 'r' AND (v_kind IS NULL OR j.kind_id = v_kind)
              AND (p_older IS NULL OR j.enqueued_at < v_now - p_older)
              AND (p_tags IS NULL OR j.headers @> p_tags)
              AND (p_run_at IS NULL OR CASE WHEN p_run_at <= v_now THEN j.run_at > v_now
                                            ELSE j.run_at <> p_run_at END)
              AND (p_target IS NULL OR j.key IS NULL
                   OR NOT jobq._key_taken(p_target, j.key, j.id))
            ORDER BY j.run_at, j.id LIMIT p_at_most FOR UPDATE SKIP LOCKED) AS picked
        WHERE p_priority IS NULL OR p.priority <> p_priority
        LIMIT p_at_most);
    IF cardinality(v_ids) < p_at_most THEN
        v_ids := v_ids || jobq._pick_lined(
            p_queue, v_kind, p_older, p_tags, p_at_most - cardinality(v_ids), p_priority,
            p_run_at, p_target);
    END IF;
    IF cardinality(v_ids) >= p_at_most THEN RETURN v_ids; END IF;
    RETURN v_ids || ARRAY(
        SELECT j.id FROM jobq.job j
        WHERE j.queue_id = p_queue AND j.suspect AND j.state = 'r'
          AND (v_kind IS NULL OR j.kind_id = v_kind)
          AND (p_older IS NULL OR j.enqueued_at < v_now - p_older)
          AND (p_tags IS NULL OR j.headers @> p_tags)
          AND (p_priority IS NULL OR j.priority <> p_priority)
          AND (p_run_at IS NULL OR CASE WHEN p_run_at <= v_now THEN j.run_at > v_now
                                        ELSE j.run_at <> p_run_at END)
          AND (p_target IS NULL OR j.key IS NULL
               OR NOT jobq._key_taken(p_target, j.key, j.id))
        LIMIT p_at_most - cardinality(v_ids) FOR UPDATE SKIP LOCKED);
END $$;

-- A part of pick, and under its settings: the jobs that stand in lines.
CREATE OR REPLACE FUNCTION jobq._pick_lined(
    p_queue integer, p_kind integer, p_older interval, p_tags jsonb, p_at_most integer,
    p_priority integer, p_run_at timestamptz, p_target integer) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_now timestamptz := statement_timestamp();
BEGIN
    RETURN ARRAY(
        SELECT picked.id
        FROM generate_series((SELECT q.priority_min FROM jobq.queue q
                              WHERE q.id = p_queue), 9) AS p (priority)
        CROSS JOIN generate_series(0, (SELECT q.stages_max - 1 FROM jobq.queue q
                                       WHERE q.id = p_queue)) AS s (stage)
        CROSS JOIN LATERAL (
            SELECT j.id FROM jobq.job j
            WHERE j.queue_id = p_queue AND j.priority = p.priority AND j.stage = s.stage
              AND NOT j.suspect AND j.line IS NOT NULL
              AND j.state = 'r' AND (p_kind IS NULL OR j.kind_id = p_kind)
              AND (p_older IS NULL OR j.enqueued_at < v_now - p_older)
              AND (p_tags IS NULL OR j.headers @> p_tags)
              AND (p_run_at IS NULL OR p_run_at > v_now)
              AND (p_target IS NULL OR j.key IS NULL
                   OR NOT jobq._key_taken(p_target, j.key, j.id))
            ORDER BY j.line DESC, j.run_at, j.id
            LIMIT p_at_most FOR UPDATE SKIP LOCKED) AS picked
        WHERE p_priority IS NULL OR p.priority <> p_priority
        LIMIT p_at_most);
END $$;

-- Locks a flow, some of whose jobs are to be revived. False: somebody else has it locked.
CREATE OR REPLACE FUNCTION jobq._flow_free(p_flow bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM jobq.flow f WHERE f.id = p_flow FOR NO KEY UPDATE SKIP LOCKED;
    RETURN FOUND OR NOT EXISTS (SELECT FROM jobq.flow f WHERE f.id = p_flow);
END $$;

-- Locks failed jobs that match, the oldest first. p_free: only jobs that can be revived, whose
-- key is free, and their flows before them.
CREATE OR REPLACE FUNCTION jobq._pick_failed(
    p_queue integer, p_kind text, p_older interval, p_tags jsonb, p_at_most integer,
    p_free boolean) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE v_kind integer := jobq._known_kind(p_queue, p_kind);
BEGIN
    RETURN ARRAY(
        SELECT f.id FROM jobq.failed f
        WHERE f.queue_id = p_queue AND (v_kind IS NULL OR f.kind_id = v_kind)
          AND (p_older IS NULL OR f.finished_at < statement_timestamp() - p_older)
          AND (p_tags IS NULL OR f.headers @> p_tags)
          AND NOT (p_free AND jobq._is_erased(f.payload, f.headers))
          AND NOT (p_free AND f.key IS NOT NULL AND jobq._key_taken(p_queue, f.key, f.id))
          AND NOT (p_free AND f.flow_id > 0 AND NOT jobq._flow_free(f.flow_id))
        ORDER BY f.queue_id, f.finished_at LIMIT p_at_most FOR UPDATE SKIP LOCKED);
END $$;

-- Asks the living workers of a queue to send their heartbeat now, because it brings the news.
CREATE OR REPLACE FUNCTION jobq._tell(p_queue integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._notify(w.id, 'cancel') FROM jobq.worker w
    WHERE p_queue = ANY (w.queues) AND w.dead_at IS NULL;
END $$;

-- ---- the log of operators ------------------------------------------------------------------

-- Notes that a verb changed so many jobs; NULL: a queue or kind. A call that changed nothing
-- is not noted. Answers the count.
CREATE OR REPLACE FUNCTION jobq._operated(p_verb text, p_arguments jsonb, p_jobs integer)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_jobs = 0 THEN RETURN 0; END IF;
    INSERT INTO jobq.operation (at, role, application, verb, arguments, jobs)
    VALUES (statement_timestamp(), session_user, current_setting('application_name'), p_verb,
            jsonb_strip_nulls(p_arguments), p_jobs);
    RETURN p_jobs;
END $$;

-- The same for one job, if the verb's answer is one of p_done. Answers the answer.
CREATE OR REPLACE FUNCTION jobq._operated_one(
    p_verb text, p_arguments jsonb, p_answer text, p_done text[]) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._operated(p_verb, p_arguments, (p_answer = ANY (p_done))::integer);
    RETURN p_answer;
END $$;

-- A part of prune.
CREATE OR REPLACE FUNCTION jobq._prune_operations(p_limit integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM jobq.operation o WHERE o.ctid = ANY (ARRAY(
        SELECT old.ctid FROM jobq.operation old
        WHERE old.id <= (SELECT max(newest.id) FROM jobq.operation newest) - 10000
        ORDER BY old.id LIMIT p_limit FOR UPDATE SKIP LOCKED));
END $$;

-- What operators did: the newest 10,000 calls that changed something.
CREATE OR REPLACE VIEW jobq.operator_log AS
SELECT o.id, o.at, o.role, o.application, o.verb, o.arguments, o.jobs FROM jobq.operation o;

-- ---- cancel --------------------------------------------------------------------------------

-- A ready job is cancelled at once. For a running job the cancel is requested: its worker
-- learns of it with the next heartbeat, or at once if it listens, and tells the handler.
CREATE OR REPLACE FUNCTION jobq._cancel_one(p_id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_id bigint := p_id;
    v_job jobq.job;
BEGIN
    SELECT * INTO v_job FROM jobq.job j WHERE j.id = v_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN regexp_replace(jobq.standing(v_id), '^cancelled$', 'cancelled before');
    END IF;
    IF v_job.state <> 'x' THEN
        PERFORM jobq._finish(ARRAY[v_id], 'c', NULL);
        IF v_job.state = 'w' THEN PERFORM jobq._return_key(v_job); END IF;
        IF v_job.flow_id IS NOT NULL THEN PERFORM jobq._promote(1000); END IF;
        RETURN 'cancelled';
    END IF;
    PERFORM FROM jobq.claim c WHERE c.worker = v_job.worker AND c.number = v_job.claim
    FOR UPDATE;
    PERFORM jobq._request(v_id, v_job.worker, v_job.claim);
    RETURN 'requested';
END $$;

CREATE OR REPLACE FUNCTION jobq.cancel(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jobq._operated_one('cancel', jsonb_build_object('id', id), jobq._cancel_one(id),
                             '{cancelled, requested}');
END $$;

-- A job was cancelled while it waited: the one that it waited for gets the key back. Otherwise
-- the next job with that key would run at once, beside it.
CREATE OR REPLACE FUNCTION jobq._return_key(p_job jobq.job) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE v_id bigint;
BEGIN
    SELECT j.id INTO v_id FROM jobq.edge e JOIN jobq.job j ON j.id = e.parent
    WHERE e.child = p_job.id AND j.queue_id = p_job.queue_id AND j.key = p_job.key
    FOR UPDATE OF j;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE jobq.idempotency k SET job_id = v_id, ended_at = NULL
    WHERE k.queue_id = p_job.queue_id AND k.key = p_job.key AND k.job_id = p_job.id;
END $$;

-- The request itself. The job and its claim row are locked.
CREATE OR REPLACE FUNCTION jobq._request(p_id bigint, p_worker bigint, p_claim bigint)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    UPDATE jobq.job j SET cancel_requested_at = statement_timestamp()
    WHERE j.id = p_id AND j.cancel_requested_at IS NULL;
    UPDATE jobq.claim c SET cancel = array_append(array_remove(c.cancel, p_id), p_id)
    WHERE c.worker = p_worker AND c.number = p_claim;
    PERFORM jobq._notify(p_worker, 'cancel');
END $$;

-- state: ready, running, or NULL for both. Running ones count once, when they are first asked.
-- Where another function of the name takes an id, queue is a varchar: some databases cast
-- numbers to text implicitly, and there cancel(1) could mean either.
CREATE OR REPLACE FUNCTION jobq.cancel(
    queue varchar, kind text DEFAULT NULL, state text DEFAULT NULL,
    older interval DEFAULT NULL, tags jsonb DEFAULT NULL, at_most integer DEFAULT 1000,
    OUT cancelled integer, OUT requested integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_queue integer := jobq._known_queue(queue);
    v_ids bigint[] := '{}';
BEGIN
    IF state NOT IN ('ready', 'running') THEN
        RAISE EXCEPTION 'cancel takes state ready or running, not ''%''', state
            USING ERRCODE = '22023';
    END IF;
    at_most := coalesce(at_most, 2147483647);
    IF state IS DISTINCT FROM 'running' THEN
        v_ids := jobq._pick(v_queue, kind, older, tags, at_most);
        PERFORM jobq._finish(v_ids, 'c', NULL);
        PERFORM jobq._promote(1000);
    END IF;
    cancelled := cardinality(v_ids);
    requested := 0;
    IF state IS DISTINCT FROM 'ready' AND cancelled < at_most THEN
        requested := jobq._request_many(v_queue, kind, older, tags, at_most - cancelled);
    END IF;
    PERFORM jobq._operated('cancel', jsonb_build_object(
        'queue', queue, 'kind', kind, 'state', state, 'older', older, 'tags', tags),
        cancelled + requested);
END $$;

-- Requests the cancel of running jobs that match and have no request yet. Locks the claim row
-- first, then the job, and skips what others hold.
CREATE OR REPLACE FUNCTION jobq._request_many(
    p_queue integer, p_kind text, p_older interval, p_tags jsonb, p_at_most integer)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_kind integer := jobq._known_kind(p_queue, p_kind);
    v_job record;
    v_count integer := 0;
BEGIN
    FOR v_job IN
        SELECT j.id, j.worker, j.claim FROM jobq._running() r
        CROSS JOIN LATERAL (SELECT * FROM jobq.job o WHERE o.id = r.id OFFSET 0) AS j
        WHERE j.queue_id = p_queue AND j.state = 'x' AND j.cancel_requested_at IS NULL
          AND (v_kind IS NULL OR j.kind_id = v_kind)
          AND (p_older IS NULL OR j.enqueued_at < statement_timestamp() - p_older)
          AND (p_tags IS NULL OR j.headers @> p_tags)
        LIMIT p_at_most
    LOOP
        PERFORM FROM jobq.claim c WHERE c.worker = v_job.worker AND c.number = v_job.claim
        FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        PERFORM FROM jobq.job j
        WHERE j.id = v_job.id AND j.worker = v_job.worker AND j.claim = v_job.claim
        FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        PERFORM jobq._request(v_job.id, v_job.worker, v_job.claim);
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;

-- ---- revive --------------------------------------------------------------------------------

-- Runs failed jobs again, from the stage in which they failed, with attempt and crash 0. They
-- keep their errors, and their flow, which is locked, unless prune has forgotten it meanwhile.
-- Keys are taken in the order in which an enqueue takes them.
CREATE OR REPLACE FUNCTION jobq._revive_all(p_ids bigint[]) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_ids bigint[] := p_ids;
    v_job record;
    v_count integer;
    v_queues integer[];
    v_linked bigint[];
    v_flows bigint[];
BEGIN
    FOR v_job IN
        SELECT f.id, f.queue_id, f.key FROM jobq.failed f
        WHERE f.id = ANY (p_ids) AND f.key IS NOT NULL ORDER BY f.key, f.id FOR UPDATE
    LOOP
        CONTINUE WHEN jobq._take_key(v_job.queue_id, v_job.key, v_job.id);
        v_ids := array_remove(v_ids, v_job.id);
    END LOOP;
    WITH back AS (
        DELETE FROM jobq.failed f WHERE f.id = ANY (v_ids) RETURNING f.*
    ), live AS (
        INSERT INTO jobq.job (id, run_at, enqueued_at, timeout_us, queue_id, kind_id,
                              max_attempts, priority, stage, stages, flow_id, key, line,
                              line_name, payload, bytes, headers, errors, steps)
        SELECT b.id, statement_timestamp(), b.enqueued_at, b.timeout_us, b.queue_id, b.kind_id,
               b.max_attempts, b.priority, b.stage, b.stages, CASE
                   WHEN b.flow_id > 0 AND NOT EXISTS (
                       SELECT FROM jobq.flow f WHERE f.id = b.flow_id) THEN 0
                   ELSE b.flow_id END, b.key,
               jobq._line_no(b.line_name), b.line_name, b.payload, b.bytes, b.headers,
               b.errors, b.steps
        FROM back b ORDER BY b.id
        RETURNING id, queue_id, flow_id
    )
    SELECT count(*), array_agg(l.queue_id),
           array_agg(l.id) FILTER (WHERE l.flow_id IS NOT NULL),
           array_agg(l.flow_id) FILTER (WHERE l.flow_id IS NOT NULL)
    INTO v_count, v_queues, v_linked, v_flows FROM live l;
    IF v_linked IS NOT NULL THEN PERFORM jobq._edges_revive(v_linked, v_flows); END IF;
    PERFORM jobq._wake(q.id, q.jobs::integer)
    FROM (SELECT u.id, count(*) AS jobs FROM unnest(v_queues) AS u (id) GROUP BY u.id) AS q;
    RETURN v_count;
END $$;

-- A job that fails between the two looks is looked at again. erased: nothing of it is left to
-- run, see erase.
CREATE OR REPLACE FUNCTION jobq.revive(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_id bigint := id;
    v_standing text := 'failed';
    v_erased boolean;
BEGIN
    WHILE v_standing = 'failed' LOOP
        PERFORM FROM jobq.flow o JOIN jobq.failed f ON f.flow_id = o.id WHERE f.id = v_id
        FOR NO KEY UPDATE OF o;
        SELECT jobq._is_erased(f.payload, f.headers) INTO v_erased
        FROM jobq.failed f WHERE f.id = v_id FOR UPDATE;
        IF v_erased THEN RETURN 'erased'; END IF;
        IF FOUND THEN
            RETURN CASE jobq._operated('revive', jsonb_build_object('id', v_id),
                                      jobq._revive_all(ARRAY[v_id]))
                   WHEN 1 THEN 'revived' ELSE 'exists' END;
        END IF;
        v_standing := jobq.standing(v_id);
    END LOOP;
    RETURN v_standing;
END $$;

CREATE OR REPLACE FUNCTION jobq.revive(
    queue varchar, kind text DEFAULT NULL, older interval DEFAULT NULL,
    tags jsonb DEFAULT NULL, at_most integer DEFAULT 1000)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jobq._operated('revive', jsonb_build_object(
        'queue', queue, 'kind', kind, 'older', older, 'tags', tags),
        jobq._revive_all(
            jobq._pick_failed(jobq._known_queue(queue), kind, older, tags, at_most, true)));
END $$;

-- ---- delete --------------------------------------------------------------------------------

-- Removes jobs in one state without a trace: neither history nor the idempotency key stays.
-- The rows are locked, or the caller waits for them.
CREATE OR REPLACE FUNCTION jobq._delete_all(p_ids bigint[], p_state text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_job record;
    v_count integer := 0;
BEGIN
    FOR v_job IN
        WITH live AS (
            DELETE FROM jobq.job j
            WHERE p_state = 'ready' AND j.id = ANY (p_ids) AND j.state = 'r'
            RETURNING j.id, j.queue_id, j.key, j.flow_id
        ), failed AS (
            DELETE FROM jobq.failed f WHERE p_state = 'failed' AND f.id = ANY (p_ids)
            RETURNING f.id, f.queue_id, f.key, f.flow_id
        ), history AS (
            DELETE FROM jobq.history h
            WHERE p_state IN ('succeeded', 'cancelled') AND h.id = ANY (p_ids)
            RETURNING h.id, h.queue_id, h.key, NULL::bigint
        )
        SELECT * FROM live UNION ALL SELECT * FROM failed UNION ALL SELECT * FROM history
        ORDER BY key, id
    LOOP
        v_count := v_count + 1;
        DELETE FROM jobq.idempotency k
        WHERE k.queue_id = v_job.queue_id AND k.key = v_job.key AND k.job_id = v_job.id;
        IF v_job.flow_id IS NOT NULL AND p_state = 'failed' THEN
            PERFORM jobq._edges_forget(ARRAY[v_job.id]);
        ELSIF v_job.flow_id IS NOT NULL THEN
            PERFORM jobq._ended(ARRAY[v_job.id], ARRAY[v_job.flow_id], 'c');
        END IF;
    END LOOP;
    PERFORM jobq._promote(1000);
    PERFORM jobq._tell_waiters(p_ids);
    RETURN v_count;
END $$;

CREATE OR REPLACE FUNCTION jobq.delete(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v_state text := jobq.standing(id);
BEGIN
    IF v_state = 'ready' THEN
        PERFORM FROM jobq.job j WHERE j.id = delete.id FOR UPDATE;
    END IF;
    RETURN CASE jobq._operated('delete', jsonb_build_object('id', id),
                              jobq._delete_all(ARRAY[id], v_state))
           WHEN 1 THEN 'deleted' ELSE jobq.standing(id) END;
END $$;

-- state has to be named: ready, failed, succeeded or cancelled. The latter two read all of
-- history, which forgets by itself.
CREATE OR REPLACE FUNCTION jobq.delete(
    queue varchar, state text, kind text DEFAULT NULL, older interval DEFAULT NULL,
    tags jsonb DEFAULT NULL, at_most integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_queue integer := jobq._known_queue(queue);
    v_kind integer := jobq._known_kind(v_queue, kind);
BEGIN
    IF state IS NULL OR state NOT IN ('ready', 'failed', 'succeeded', 'cancelled') THEN
        RAISE EXCEPTION 'delete takes state ready, failed, succeeded or cancelled, not %',
            quote_nullable(state) USING ERRCODE = '22023',
            HINT = 'A running job can be asked to cancel.';
    END IF;
    RETURN jobq._operated('delete', jsonb_build_object(
        'queue', queue, 'state', state, 'kind', kind, 'older', older, 'tags', tags),
        jobq._delete_all(CASE state
        WHEN 'ready' THEN jobq._pick(v_queue, kind, older, tags, at_most)
        WHEN 'failed' THEN jobq._pick_failed(v_queue, kind, older, tags, at_most, false)
        ELSE ARRAY(
            SELECT h.id FROM jobq.history h
            WHERE h.queue_id = v_queue AND (v_kind IS NULL OR h.kind_id = v_kind)
              AND h.state = CASE state WHEN 'succeeded' THEN 's' ELSE 'c' END::"char"
              AND (older IS NULL OR h.finished_at < statement_timestamp() - older)
              AND (tags IS NULL OR h.headers @> tags)
            LIMIT at_most FOR UPDATE SKIP LOCKED) END, state));
END $$;

-- ---- reschedule, prioritize, move ----------------------------------------------------------

-- Moves the keys of ready jobs, which are locked, to another queue, in the order in which an
-- enqueue takes keys. Answers with the ids, without those whose key another job there has.
CREATE OR REPLACE FUNCTION jobq._move_keys(p_ids bigint[], p_target integer) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_ids bigint[] := p_ids;
    v_job record;
BEGIN
    FOR v_job IN
        SELECT j.id, j.queue_id, j.key FROM jobq.job j
        WHERE j.id = ANY (p_ids) AND j.queue_id <> p_target AND j.key IS NOT NULL
        ORDER BY j.key, j.id
    LOOP
        IF jobq._take_key(p_target, v_job.key, v_job.id) THEN
            DELETE FROM jobq.idempotency k
            WHERE k.queue_id = v_job.queue_id AND k.key = v_job.key AND k.job_id = v_job.id;
        ELSE
            v_ids := array_remove(v_ids, v_job.id);
        END IF;
    END LOOP;
    RETURN v_ids;
END $$;

-- The only place that changes ready jobs, which are locked: their time (an instant in the past
-- becomes now, because a worker's lower bound would hide the job), priority, queue. A job that
-- changes its lane enters the new one as due now at the earliest. One that names a line stands
-- in it if it is due, else not. A job whose key another job of the target queue has stays
-- where it is.
CREATE OR REPLACE FUNCTION jobq._change(
    p_ids bigint[], p_run_at timestamptz, p_priority integer, p_target integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_now timestamptz := statement_timestamp();
    v_ids bigint[] := p_ids;
    v_count integer;
    v_queue integer;
    v_stages smallint;
    v_priority smallint;
BEGIN
    IF p_priority NOT BETWEEN -9 AND 9 THEN
        PERFORM jobq._refuse('priority', '-9 to 9');
    END IF;
    IF NOT isfinite(p_run_at) THEN PERFORM jobq._refuse('run_at', 'a finite instant'); END IF;
    IF p_target IS NOT NULL THEN
        v_ids := ARRAY(
            SELECT j.id FROM jobq.job j
            WHERE j.id = ANY (p_ids) AND (j.key IS NULL OR j.queue_id = p_target
                                          OR NOT jobq._key_taken(p_target, j.key, j.id)));
        PERFORM jobq._kind_ids(p_target, array_agg(k.name)) FROM (
            SELECT DISTINCT j.kind_id FROM jobq.job j WHERE j.id = ANY (v_ids)) j
        JOIN jobq.kind k ON k.id = j.kind_id;
        v_ids := jobq._move_keys(v_ids, p_target);
    END IF;
    SELECT max(j.queue_id), max(j.stages), min(coalesce(p_priority, j.priority))
    INTO v_queue, v_stages, v_priority
    FROM jobq.job j WHERE j.id = ANY (v_ids);
    v_queue := coalesce(p_target, v_queue);
    PERFORM jobq._widen(v_queue, v_priority, v_stages);
    PERFORM jobq._has_lines(v_queue) FROM jobq.job j
    WHERE p_target IS NOT NULL AND j.id = ANY (v_ids) AND j.line_name IS NOT NULL LIMIT 1;
    WITH new AS (
        SELECT j.id, greatest(v_now, coalesce(p_run_at, CASE
                   WHEN isfinite(j.run_at) OR p_target IS NULL
                   THEN j.run_at ELSE v_now END)) AS run_at
        FROM jobq.job j WHERE j.id = ANY (v_ids)
    )
    UPDATE jobq.job j
    SET priority = coalesce(p_priority, j.priority), run_at = n.run_at, queue_id = v_queue,
        line = jobq._line_at(j.line_name, n.run_at),
        kind_id = CASE WHEN p_target IS NULL THEN j.kind_id ELSE (
            SELECT t.id FROM jobq.kind k JOIN jobq.kind t
                ON t.queue_id = p_target AND t.name = k.name WHERE k.id = j.kind_id) END
    FROM new n WHERE j.id = n.id AND j.state = 'r';
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF p_target IS NOT NULL THEN PERFORM jobq._line_suspects(p_target, v_ids); END IF;
    IF v_count > 0 THEN PERFORM jobq._wake(v_queue, v_count); END IF;
    RETURN v_count;
END $$;

-- The same for one job: answers p_done, or the state that prevents it.
CREATE OR REPLACE FUNCTION jobq._change_one(
    p_id bigint, p_run_at timestamptz, p_priority integer, p_target integer, p_done text)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM jobq.job j WHERE j.id = p_id AND j.state = 'r' FOR UPDATE;
    IF NOT FOUND THEN RETURN jobq.standing(p_id); END IF;
    IF jobq._change(ARRAY[p_id], p_run_at, p_priority, p_target) = 1 THEN
        RETURN p_done;
    END IF;
    RETURN 'exists';
END $$;

-- Not before this instant; past or NULL: now. For many jobs, give an instant that stays the
-- same from call to call.
CREATE OR REPLACE FUNCTION jobq.reschedule(id bigint, run_at timestamptz DEFAULT NULL)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jobq._operated_one(
        'reschedule', jsonb_build_object('id', id, 'run_at', run_at),
        jobq._change_one(id, coalesce(run_at, statement_timestamp()), NULL, NULL,
                        'rescheduled'), '{rescheduled}');
END $$;

CREATE OR REPLACE FUNCTION jobq.reschedule(
    queue varchar, run_at timestamptz DEFAULT NULL, kind text DEFAULT NULL,
    older interval DEFAULT NULL, tags jsonb DEFAULT NULL, at_most integer DEFAULT 1000)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_run_at timestamptz := coalesce(run_at, statement_timestamp());
BEGIN
    RETURN jobq._operated('reschedule', jsonb_build_object(
        'queue', queue, 'run_at', run_at, 'kind', kind, 'older', older, 'tags', tags),
        jobq._change(jobq._pick(jobq._known_queue(queue), kind, older, tags, at_most, NULL,
                              v_run_at), v_run_at, NULL, NULL));
END $$;

-- -9 runs first, 9 last.
CREATE OR REPLACE FUNCTION jobq.prioritize(id bigint, priority integer) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    IF priority IS NULL THEN PERFORM jobq._refuse('priority', '-9 to 9'); END IF;
    RETURN jobq._operated_one(
        'prioritize', jsonb_build_object('id', id, 'priority', priority),
        jobq._change_one(id, NULL, priority, NULL, 'prioritized'), '{prioritized}');
END $$;

CREATE OR REPLACE FUNCTION jobq.prioritize(
    queue varchar, priority integer, kind text DEFAULT NULL, older interval DEFAULT NULL,
    tags jsonb DEFAULT NULL, at_most integer DEFAULT 1000)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    IF priority IS NULL THEN PERFORM jobq._refuse('priority', '-9 to 9'); END IF;
    RETURN jobq._operated('prioritize', jsonb_build_object(
        'queue', queue, 'priority', priority, 'kind', kind, 'older', older, 'tags', tags),
        jobq._change(
            jobq._pick(jobq._known_queue(queue), kind, older, tags, at_most, priority),
            NULL, priority, NULL));
END $$;

-- Moves a job to another queue, which must exist. Its kind is created there if needed, and its
-- key moves along (exists: another job there has the key).
CREATE OR REPLACE FUNCTION jobq.move(id bigint, target text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jobq._operated_one(
        'move', jsonb_build_object('id', id, 'target', target),
        jobq._change_one(id, NULL, NULL, jobq._known_queue(target), 'moved'), '{moved}');
END $$;

CREATE OR REPLACE FUNCTION jobq.move(
    queue varchar, target text, kind text DEFAULT NULL, older interval DEFAULT NULL,
    tags jsonb DEFAULT NULL, at_most integer DEFAULT 1000)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF queue = target COLLATE "C" THEN
        RAISE EXCEPTION 'move needs two different queues' USING ERRCODE = '22023';
    END IF;
    RETURN jobq._operated('move', jsonb_build_object(
        'queue', queue, 'target', target, 'kind', kind, 'older', older, 'tags', tags),
        jobq._change(jobq._pick(jobq._known_queue(queue), kind, older, tags, at_most,
                              p_target => jobq._known_queue(target)),
                    NULL, NULL, jobq._known_queue(target)));
END $$;

-- ---- queues --------------------------------------------------------------------------------

-- From now on no job of the queue, or of one kind of it, is claimed; jobs already claimed run
-- to their end, and enqueueing continues. Workers learn of it at once if they listen,
-- otherwise with the next heartbeat.
CREATE OR REPLACE FUNCTION jobq.pause(queue text, kind text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM jobq._set_paused(queue, kind, statement_timestamp());
    PERFORM jobq._operated('pause', jsonb_build_object('queue', queue, 'kind', kind), NULL);
END $$;

CREATE OR REPLACE FUNCTION jobq.resume(queue text, kind text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM jobq._set_paused(queue, kind, NULL);
    PERFORM jobq._operated('resume', jsonb_build_object('queue', queue, 'kind', kind), NULL);
END $$;

CREATE OR REPLACE FUNCTION jobq._set_paused(p_queue text, p_kind text, p_at timestamptz)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_queue integer := jobq._known_queue(p_queue);
    v_kind integer := jobq._known_kind(v_queue, p_kind);
BEGIN
    IF v_kind IS NULL THEN
        UPDATE jobq.queue q SET paused_at = p_at
        WHERE q.id = v_queue AND (q.paused_at IS NULL) <> (p_at IS NULL);
    ELSE
        UPDATE jobq.kind k SET paused_at = p_at
        WHERE k.id = v_kind AND (k.paused_at IS NULL) <> (p_at IS NULL);
    END IF;
    PERFORM jobq._tell(v_queue);
    IF p_at IS NULL THEN PERFORM jobq._wake(v_queue, 1000); END IF;
END $$;

-- Creates a queue, or changes those parts of its policy that are given; NULL leaves a part as
-- it is. Workers follow within a heartbeat. timeout '0': none. jitter: 0 to 1. kinds: created
-- with the queue, so that no transaction waits for another one's first use of a name. kind:
-- the policy of this kind, where it differs from its queue's; reset: first drops all that it
-- has of its own. retention: how long the history keeps jobs that end from now on: short,
-- medium or long, see retention_set. running_max, rate such as '100/min', rate_burst: limits
-- of the queue, or with kind of that kind, over all workers; 0 and '0': none. line_*: what
-- each line of the queue has unless line_set gave it something of its own; likewise.
-- line_waiting_max: an enqueue into a line in which so many jobs wait is refused (JQ005).
-- ageing: every 16th claim looks first where jobs have waited longest, whatever their
-- priority. paused: as pause and resume, of the queue or with kind of that kind.
CREATE OR REPLACE FUNCTION jobq.queue_set(
    queue text, max_attempts integer DEFAULT NULL, max_crashes integer DEFAULT NULL,
    backoff text DEFAULT NULL, backoff_base interval DEFAULT NULL,
    backoff_cap interval DEFAULT NULL, backoff_floor interval DEFAULT NULL,
    backoff_jitter numeric DEFAULT NULL, timeout interval DEFAULT NULL,
    attempts_span_stages boolean DEFAULT NULL, history boolean DEFAULT NULL,
    failed_keep interval DEFAULT NULL, key_keep interval DEFAULT NULL,
    message_max integer DEFAULT NULL, kinds text[] DEFAULT NULL,
    payload_max integer DEFAULT NULL, kind text DEFAULT NULL, reset boolean DEFAULT false,
    retention text DEFAULT NULL, line_running_max integer DEFAULT NULL,
    line_strict boolean DEFAULT NULL, line_rate text DEFAULT NULL,
    line_rate_burst integer DEFAULT NULL, line_waiting_max integer DEFAULT NULL,
    ageing boolean DEFAULT NULL, running_max integer DEFAULT NULL, rate text DEFAULT NULL,
    rate_burst integer DEFAULT NULL, paused boolean DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE v_queue integer := jobq._queue_id(queue);
BEGIN
    IF reset AND kind IS NULL THEN PERFORM jobq._refuse('reset', 'takes a kind'); END IF;
    PERFORM jobq._refuse(u.field, 'is set for the queue, not for a kind')
    FROM (VALUES ('max_crashes', max_crashes IS NULL), ('failed_keep', failed_keep IS NULL),
        ('key_keep', key_keep IS NULL), ('message_max', message_max IS NULL),
        ('payload_max', payload_max IS NULL), ('kinds', coalesce(kinds, '{}') = '{}'),
        ('attempts_span_stages', attempts_span_stages IS NULL)) AS u (field, lacks)
    WHERE NOT u.lacks AND kind IS NOT NULL;
    PERFORM jobq._refuse(u.field, 'an interval of a millisecond to 1000 years')
    FROM (VALUES ('backoff_base', backoff_base, '1000 years'::interval),
        ('backoff_cap', backoff_cap, '1000 years'),
        ('backoff_floor', backoff_floor, '1000 years'),
        ('timeout', timeout, '1000 years'), ('failed_keep', failed_keep, NULL), -- they are cut
        ('key_keep', key_keep, NULL)) AS u (field, given, most)
    WHERE NOT isfinite(u.given) OR u.given > u.most
       OR (u.given > '0' AND u.given < '1 millisecond');
    PERFORM jobq._queue_lock(v_queue, payload_max, kind, kinds);
    PERFORM jobq._retention_used(retention, kind IS NOT NULL AND history IS NOT NULL);
    PERFORM jobq._queue_lines_set(v_queue, kind, line_running_max, line_strict, line_rate,
                                 line_rate_burst, line_waiting_max, ageing);
    PERFORM jobq._quota_set(
        v_queue, CASE WHEN kind IS NOT NULL THEN jobq._kind_id(v_queue, kind) END,
        running_max, rate, rate_burst, coalesce(reset, false));
    PERFORM jobq.pause(queue, kind) WHERE paused;
    PERFORM jobq.resume(queue, kind) WHERE NOT paused;
    IF kind IS NOT NULL THEN
        PERFORM jobq._kind_set(v_queue, kind, reset, max_attempts, backoff, backoff_base,
                              backoff_cap, backoff_floor, backoff_jitter, timeout, history,
                              retention);
        RETURN;
    END IF;
    UPDATE jobq.queue q
    SET max_attempts = coalesce(max_attempts, q.max_attempts),
        max_crashes = coalesce(max_crashes, q.max_crashes),
        backoff_curve = coalesce(backoff, q.backoff_curve),
        backoff_base_us = coalesce(jobq._us(backoff_base), q.backoff_base_us),
        backoff_cap_us = coalesce(jobq._us(backoff_cap), q.backoff_cap_us),
        backoff_floor_us = coalesce(jobq._us(backoff_floor), q.backoff_floor_us),
        backoff_jitter_permille = coalesce((backoff_jitter * 1000)::integer,
                                           q.backoff_jitter_permille),
        timeout_us = nullif(coalesce(jobq._us(timeout), q.timeout_us), 0),
        attempts_span_stages = coalesce(attempts_span_stages, q.attempts_span_stages),
        history = coalesce(history, q.history),
        retention = coalesce(retention, q.retention),
        failed_keep = least(coalesce(failed_keep, q.failed_keep), interval '1000 years'),
        key_keep = least(coalesce(key_keep, q.key_keep), interval '1000 years'),
        message_max = coalesce(message_max, q.message_max),
        payload_max = coalesce(payload_max, q.payload_max)
    WHERE q.id = v_queue;
    UPDATE jobq.kind k SET payload_max = q.payload_max FROM jobq.queue q -- keys may be off
    WHERE q.id = v_queue AND k.queue_id = q.id AND k.payload_max <> q.payload_max;
    PERFORM jobq._tell(v_queue);
END $$;

-- A part of queue_set: creates kinds, and locks the queue, in the order of locks.
CREATE OR REPLACE FUNCTION jobq._queue_lock(
    p_queue integer, p_payload_max integer, p_kind text, p_kinds text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM jobq.queue q
    WHERE q.id = p_queue AND q.payload_max <> p_payload_max FOR UPDATE;
    PERFORM jobq._kind_ids(p_queue, CASE WHEN p_kind IS NULL THEN p_kinds
                                  ELSE ARRAY[p_kind] END);
    PERFORM FROM jobq.queue q WHERE q.id = p_queue AND p_kind IS NULL FOR NO KEY UPDATE;
END $$;

-- A part of queue_set: from now on completions look whether a job's class of retention is not
-- medium, or its kind keeps its history otherwise than its queue.
CREATE OR REPLACE FUNCTION jobq._retention_used(p_retention text, p_odd boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_retention NOT IN ('short', 'medium', 'long') THEN
        PERFORM jobq._refuse('retention', 'short, medium or long');
    END IF;
    IF p_retention <> 'medium' OR p_odd THEN
        UPDATE jobq.ring r SET varies = true WHERE r.retention = 'medium' AND NOT r.varies;
    END IF;
END $$;

-- A part of queue_set: the policy of one kind. A backoff is the kind's own as a whole: what is
-- not given is what the queue has now.
CREATE OR REPLACE FUNCTION jobq._kind_set(
    p_queue integer, p_kind text, p_reset boolean, p_max_attempts integer, p_backoff text,
    p_base interval, p_cap interval, p_floor interval, p_jitter numeric, p_timeout interval,
    p_history boolean, p_retention text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_kind integer := jobq._kind_id(p_queue, p_kind);
BEGIN
    IF p_reset THEN
        UPDATE jobq.kind k
        SET max_attempts = NULL, timeout_us = NULL, history = NULL, retention = NULL,
            backoff_curve = NULL, backoff_base_us = NULL, backoff_cap_us = NULL,
            backoff_floor_us = NULL, backoff_jitter_permille = NULL
        WHERE k.id = v_kind;
    END IF;
    UPDATE jobq.kind k
    SET max_attempts = coalesce(p_max_attempts, k.max_attempts),
        timeout_us = coalesce(jobq._us(p_timeout), k.timeout_us),
        history = coalesce(p_history, k.history),
        retention = coalesce(p_retention, k.retention)
    WHERE k.id = v_kind;
    IF num_nonnulls(p_backoff, p_base, p_cap, p_floor, p_jitter) > 0 THEN
        UPDATE jobq.kind k
        SET backoff_curve = coalesce(p_backoff, k.backoff_curve, q.backoff_curve),
            backoff_base_us = coalesce(jobq._us(p_base), k.backoff_base_us, q.backoff_base_us),
            backoff_cap_us = coalesce(jobq._us(p_cap), k.backoff_cap_us, q.backoff_cap_us),
            backoff_floor_us = coalesce(jobq._us(p_floor), k.backoff_floor_us,
                                        q.backoff_floor_us),
            backoff_jitter_permille = coalesce((p_jitter * 1000)::integer,
                k.backoff_jitter_permille, q.backoff_jitter_permille)
        FROM jobq.queue q WHERE q.id = k.queue_id AND k.id = v_kind;
    END IF;
    PERFORM jobq._tell(p_queue);
END $$;

-- Sets how long the history keeps jobs of a class, at least: short, medium or long. They go
-- when their part of the ring is emptied, so up to a seventh of that time later.
CREATE OR REPLACE FUNCTION jobq.retention_set(retention text, keep interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
BEGIN
    IF keep IS NULL OR keep < '1 millisecond' OR NOT isfinite(keep) THEN
        PERFORM jobq._refuse('keep', 'a finite interval, at least a millisecond');
    END IF;
    UPDATE jobq.ring r SET keep = least(keep, interval '1000 years')
    WHERE r.retention = retention_set.retention COLLATE "C";
    IF NOT FOUND THEN PERFORM jobq._refuse('retention', 'short, medium or long'); END IF;
END $$;

CREATE OR REPLACE FUNCTION jobq._us(p_interval interval) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (extract(epoch FROM p_interval) * 1000000)::bigint;
END $$;
