-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: how many jobs there are, by queue, kind and line.

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

-- The last hour in 360 steps of 10 seconds, ago 359 to 0: how many jobs a second ended in the
-- minute before each, and how many failed in the hour before it, of those that are still
-- there. Read from the newest 4,096 pages of each ring of the history, and the newest 10,000
-- failed jobs of each queue: 0.3 s where a million jobs end in an hour. A dashboard asks for
-- it once, when it starts, so nobody has to write samples, and no table keeps them.
CREATE OR REPLACE FUNCTION jobq._last_hour()
RETURNS TABLE (ago integer, done_per_s float8, failed_1h bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_now timestamptz := statement_timestamp();
    v_done bigint[] := array_fill(0, '{366}');
    v_part regclass;
    v_slot record;
BEGIN
    FOR v_part IN SELECT jobq._part(r.slot) FROM jobq.ring r LOOP
        CONTINUE WHEN v_part IS NULL;
        FOR v_slot IN EXECUTE format(
            'SELECT (extract(epoch FROM $1 - h.finished_at) / 10)::integer + 1 AS no, '
            'count(*) AS jobs FROM %s h WHERE h.ctid >= %L AND h.finished_at BETWEEN $1 '
            '- interval ''1 hour'' AND $1 GROUP BY 1', v_part, format('(%s,0)', greatest(
            0, pg_relation_size(v_part) / current_setting('block_size')::bigint - 4096)))
            USING v_now
        LOOP
            v_done[v_slot.no] := v_done[v_slot.no] + v_slot.jobs;
        END LOOP;
    END LOOP;
    RETURN QUERY
    WITH f AS MATERIALIZED (
        SELECT (extract(epoch FROM v_now - l.finished_at) / 10)::integer AS slot,
               count(*) AS jobs
        FROM jobq.queue q CROSS JOIN LATERAL (
            SELECT o.finished_at FROM jobq.failed o
            WHERE o.queue_id = q.id AND o.finished_at BETWEEN v_now - interval '2 hours'
                  AND v_now ORDER BY o.finished_at DESC LIMIT 10000) AS l
        GROUP BY 1
    ), sums AS (
        SELECT s.slot, (sum(v_done[s.slot + 1]) OVER (
                   ORDER BY s.slot ROWS BETWEEN CURRENT ROW AND 5 FOLLOWING) / 60)::float8
               AS done, (sum(f.jobs) OVER (
                   ORDER BY s.slot ROWS BETWEEN CURRENT ROW AND 359 FOLLOWING))::bigint
               AS failed
        FROM generate_series(0, 720) AS s (slot) LEFT JOIN f ON f.slot = s.slot)
    SELECT m.slot, m.done, coalesce(m.failed, 0) FROM sums m WHERE m.slot < 360
    ORDER BY m.slot DESC;
END $$;

-- Queues at a glance. workers: how many live workers serve the queue. expired: late jobs that
-- were ended, ever. exact is false when a
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
        WHERE k.queue_id = q.id AND k.paused_at IS NOT NULL) AS paused_kinds, c.exact,
       coalesce((SELECT sum(t.counts[54]) FROM jobq.tally t
                 WHERE t.queue_id = q.id), 0)::bigint AS expired
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
