-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: why a job does not run.

-- Why a job does not run, in words: a row for each thing in its way. until: when that ends, if
-- a clock decides.
-- A job that nothing holds up has a row that says so; one that expires has one more. until is
-- NULL if no clock decides.
-- Errors: none for an unknown id, which is told in words.
--     select * from jobq.explain_job(1);
CREATE OR REPLACE FUNCTION jobq.explain_job(id bigint)
RETURNS TABLE (reason text, until timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_job jobq.job;
    v_standing text := jobq.standing(explain_job.id);
BEGIN
    SELECT j.* INTO v_job FROM jobq.job j WHERE j.id = explain_job.id;
    IF NOT FOUND THEN
        reason := CASE v_standing
            WHEN 'none' THEN 'no job has this id'
            WHEN 'gone' THEN 'it has ended and is no longer kept, or it was deleted or never '
                             'committed'
            ELSE concat('it has ended: ', v_standing, (
                SELECT ' (expired)' FROM jobq.history h
                WHERE h.id = explain_job.id AND h.state = 'c'
                  AND starts_with(h.errors -> -1 ->> 'error', 'expired: '))) END;
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
        IF NOT FOUND THEN
            RETURN QUERY SELECT jobq._explain_ahead(v_job), NULL::timestamptz;
        END IF;
    END IF;
    IF v_job.state <> 'x' AND v_job.expires_at > statement_timestamp() THEN
        RETURN QUERY SELECT format('it ends unrun if it has not begun by %s',
                                   jobq._shown(v_job.expires_at)), v_job.expires_at;
    END IF;
END $$;

-- A part of explain_job: how many jobs are ahead of one that nothing keeps from being claimed.
CREATE OR REPLACE FUNCTION jobq._explain_ahead(p_job jobq.job) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_ahead bigint := jobq._jobs_ahead(p_job, 10000);
BEGIN
    RETURN CASE WHEN v_ahead = 0 THEN 'a worker may take it now'
           WHEN v_ahead = 1 THEN '1 job is ahead of it'
           WHEN v_ahead < 10000 THEN format('%s jobs are ahead of it', v_ahead)
           ELSE 'at least 10000 jobs are ahead of it' END
           || CASE WHEN v_ahead > 0 AND p_job.line IS NOT NULL THEN ' in its line' ELSE '' END;
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
        (p_job.expires_at <= v_now, 'it is late: it ends, unrun, when a worker next claims '
            'from its lane', NULL),
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
