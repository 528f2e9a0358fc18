-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: flows, and jobs that wait for others.
--
--     load-1 --.
--     load-2 ---+--> merge --> report          edges: parent --> child
--     load-3 --'
--
-- A job that waits is in state w and has a row of edge for each job that it waits for. A new
-- job waits for those that were enqueued before it, and a running one (see wait_here) for none
-- that waits for it, so there are no cycles.
--
--   end       A job that ends writes how it ended into the edges to its children, and a nudge
--             for each child. It looks at nothing else, so it never waits.
--   promote   Takes nudges, and makes the children ready that no edge holds any more. The ends
--             of two parents do not see each other if they overlap. So a nudge stays until a
--             transaction has looked that began after the one that wrote it: the last one sees
--             both. Ends promote, and so do claims that found nothing, and heartbeats.
--   link      Writes edges. It locks the parents that live, so their ends see the edges.
--
-- Whoever locks flows and jobs locks the flows first: a transaction that has enqueued into a
-- flow holds the flow's row, and may name parents afterwards. An enqueue locks its flow FOR
-- KEY SHARE, so that it does not end; a job that waits for a flow's end locks it FOR SHARE, so
-- that it is not revived either; a revive locks it FOR NO KEY UPDATE. lock_flows says what is
-- locked more strongly against circles. flow_cancel and the end of a flow lock it FOR UPDATE,
-- and wait for no job of it meanwhile: whoever has locked one, its handler above all, may
-- enqueue into the flow afterwards. A look locks only the jobs and flows about which it
-- decides, and in a transaction of the caller's only its own: see promote.

-- ---- the end of a job that others wait for -------------------------------------------------

-- These parents have ended: s, f or c. A parent that is negative is a flow. OFFSET prevents a
-- join with jobs, here and below: see heartbeat.
CREATE OR REPLACE FUNCTION jobq._edges_end(p_parents bigint[], p_state "char") RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    WITH marked AS (
        UPDATE jobq.edge e
        SET came = p_state,
            holds = e.wanted <> 'e' AND (e.wanted = 's') <> (p_state = 's')
        WHERE e.parent = ANY (p_parents) AND e.came IS NULL
        RETURNING e.child, e.holds AND e.cascade AS cancel
    )
    INSERT INTO jobq.nudge (job_id, cancel)
    SELECT m.child, bool_or(m.cancel) FROM marked m GROUP BY m.child;
    DELETE FROM jobq.edge e
    WHERE e.parent = ANY (p_parents) AND e.flow_id = 0
      AND NOT EXISTS (SELECT FROM jobq.job j WHERE j.id = e.child OFFSET 0)
      AND NOT EXISTS (SELECT FROM jobq.failed f WHERE f.id = e.child);
END $$;

-- These failed jobs are deleted. Who waits for one of them waits for one that was cancelled,
-- because nobody can revive it any more.
CREATE OR REPLACE FUNCTION jobq._edges_forget(p_ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    UPDATE jobq.edge e SET came = 'c' WHERE e.parent = ANY (p_ids) AND e.came = 'f';
    DELETE FROM jobq.edge e WHERE e.child = ANY (p_ids) AND e.flow_id = 0;
END $$;

-- The part of the counts that this transaction adds to. The lock tells it from one that the
-- same process has prepared, and that has not ended: its rows would be waited for. A process
-- id is below 2^22.
CREATE OR REPLACE FUNCTION jobq._flow_part() RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_part integer := pg_backend_pid();
BEGIN
    WHILE NOT pg_try_advisory_xact_lock(hashtext('jobq.flow_part'), v_part) LOOP
        v_part := v_part + (1 << 22);
    END LOOP;
    RETURN v_part;
END $$;

-- Adds to the counts of flows, an element for each job. p_state: how it ended; NULL: it is
-- new.
CREATE OR REPLACE FUNCTION jobq._flow_count(
    p_flows bigint[], p_state "char", p_sign integer DEFAULT 1) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_part integer := jobq._flow_part();
BEGIN
    INSERT INTO jobq.flow_part AS p (flow_id, part, jobs, succeeded, failed, cancelled)
    SELECT u.flow_id, v_part, p_sign * count(*) FILTER (WHERE p_state IS NULL),
           p_sign * count(*) FILTER (WHERE p_state = 's'),
           p_sign * count(*) FILTER (WHERE p_state = 'f'),
           p_sign * count(*) FILTER (WHERE p_state = 'c')
    FROM unnest(p_flows) AS u (flow_id) WHERE u.flow_id > 0 GROUP BY u.flow_id
    ON CONFLICT (flow_id, part) DO UPDATE
    SET jobs = p.jobs + excluded.jobs, succeeded = p.succeeded + excluded.succeeded,
        failed = p.failed + excluded.failed, cancelled = p.cancelled + excluded.cancelled;
END $$;

-- Deletes the edges of these children, in no flow, that are no longer there. Answers whether
-- that was all: a person may have locked some, by deleting the failed parent, for example.
CREATE OR REPLACE FUNCTION jobq._edges_drop(p_children bigint[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    DELETE FROM jobq.edge e WHERE e.ctid = ANY (ARRAY(
        SELECT o.ctid FROM jobq.edge o
        WHERE o.child = ANY (p_children) AND o.flow_id = 0 AND o.came IS NOT NULL
        FOR UPDATE SKIP LOCKED));
    RETURN NOT EXISTS (
        SELECT FROM jobq.edge e
        WHERE e.child = ANY (p_children) AND e.flow_id = 0 AND e.came IS NOT NULL);
END $$;

-- What is left to do when jobs with a flow_id have ended, an element of p_flows for each. A
-- failed job keeps the edges to what it has waited for: it may be revived, and ask for them.
-- Others lose them, but not those whose parents live, or end at the same time: these ends drop
-- them, or the look at the nudge does.
CREATE OR REPLACE FUNCTION jobq._ended(p_ids bigint[], p_flows bigint[], p_state "char")
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off AS $$
BEGIN
    PERFORM jobq._edges_end(p_ids, p_state);
    IF p_state <> 'f' THEN
        PERFORM jobq._edges_drop(p_ids);
        INSERT INTO jobq.nudge (job_id)
        SELECT DISTINCT e.child FROM jobq.edge e
        WHERE e.child = ANY (p_ids) AND e.flow_id = 0;
    END IF;
    DELETE FROM jobq.signal_wait w WHERE w.job_id = ANY (p_ids);
    IF 0 < ANY (p_flows) THEN
        PERFORM jobq._flow_count(p_flows, p_state);
        INSERT INTO jobq.nudge (job_id)
        SELECT DISTINCT -u.flow_id FROM unnest(p_flows) AS u (flow_id) WHERE u.flow_id > 0;
    END IF;
END $$;

-- ---- promote -------------------------------------------------------------------------------

-- Writes the message of a flow that has ended. Answers false if its queue does not take it
-- now, or an operator has locked the messages by outbox_grow; then the flow has not ended, and
-- a later look tries again.
CREATE OR REPLACE FUNCTION jobq._flow_tell(p_flow bigint, p_message jsonb) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_headers jsonb := (
        SELECT jsonb_build_object('flow', p_flow, 'succeeded', coalesce(sum(p.succeeded), 0),
                                  'failed', coalesce(sum(p.failed), 0),
                                  'cancelled', coalesce(sum(p.cancelled), 0))
        FROM jobq.flow_part p WHERE p.flow_id = p_flow);
    v_refused text;
BEGIN
    BEGIN
        LOCK TABLE jobq.message IN ROW EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN RETURN false;
    END;
    SELECT e.refused INTO v_refused FROM jobq._outbox_enqueue_one(
        p_message ->> 'queue', NULL, jobq._outbox_hash(p_message ->> 'order_key'), NULL,
        nullif(p_message -> 'payload', 'null'), NULL, v_headers, NULL, true) e;
    IF v_refused IS NOT NULL THEN
        RAISE WARNING 'flow % cannot end: %', p_flow, v_refused;
    END IF;
    RETURN v_refused IS NULL;
END $$;

-- Whether a flow that has not ended is over: all of its jobs have ended, and it can get no
-- more, because it is closed or cancelled.
CREATE OR REPLACE FUNCTION jobq._flow_over(p_flow jobq.flow) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    IF p_flow.open AND p_flow.cancelled_at IS NULL THEN RETURN false; END IF;
    RETURN p_flow.ended_at IS NULL AND (
        SELECT coalesce(sum(p.jobs) = sum(p.succeeded + p.failed + p.cancelled), true)
        FROM jobq.flow_part p WHERE p.flow_id = p_flow.id);
END $$;

-- Ends each of these flows that is over. One that never had a job succeeds. p_own, skipped,
-- undecided and decided: see look_jobs; the ids of the latter are negative.
CREATE OR REPLACE FUNCTION jobq._look_flows(
    p_flows bigint[], p_own bigint[], OUT skipped bigint[], OUT undecided bigint[],
    OUT decided integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_flow jobq.flow;
    v_held bigint[] := '{}';
    v_refused bigint[];
BEGIN
    decided := 0;
    FOR v_flow IN
        SELECT f.* FROM jobq.flow f
        WHERE f.id = ANY (ARRAY(SELECT -u.id FROM unnest(p_own) AS u (id)))
          AND jobq._flow_over(f)
        FOR UPDATE SKIP LOCKED
    LOOP
        CONTINUE WHEN NOT jobq._flow_over(v_flow); -- with a new snapshot
        v_held := v_held || v_flow.id;
        IF v_flow.message IS NOT NULL
           AND NOT jobq._flow_tell(v_flow.id, v_flow.message) THEN
            v_refused := v_refused || -v_flow.id;
            CONTINUE;
        END IF;
        UPDATE jobq.flow f SET ended_at = statement_timestamp(), message = NULL
        WHERE f.id = v_flow.id;
        PERFORM jobq._edges_end(ARRAY[-v_flow.id], (
            SELECT CASE WHEN sum(p.succeeded) <> sum(p.jobs) THEN 'f' ELSE 's' END::"char"
            FROM jobq.flow_part p WHERE p.flow_id = v_flow.id));
        decided := decided + 1;
    END LOOP;
    SELECT v_refused || array_agg(-f.id) FILTER (WHERE o.over),
           array_agg(-f.id) FILTER (WHERE f.ended_at IS NULL AND NOT o.over)
    INTO skipped, undecided
    FROM jobq.flow f CROSS JOIN LATERAL (SELECT jobq._flow_over(f) AS over) AS o
    WHERE f.id = ANY (p_flows) AND f.id <> ALL (v_held);
END $$;

-- Makes these jobs, whose rows are locked, ready; those that were ready become due.
CREATE OR REPLACE FUNCTION jobq._make_ready(p_ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_now timestamptz := statement_timestamp();
    v_queues integer[];
BEGIN
    WITH ready AS (
        UPDATE jobq.job j
        SET state = 'r', run_at = greatest(d.due, v_now),
            line = CASE WHEN j.line_name IS NOT NULL THEN jobq._line_at(j.line_name, d.due) END
        FROM (SELECT o.id, CASE WHEN o.state = 'w' AND isfinite(o.run_at) THEN o.run_at
                           ELSE v_now END AS due
              FROM jobq.job o WHERE o.id = ANY (p_ids) AND o.state IN ('r', 'w')) AS d
        WHERE j.id = d.id
        RETURNING j.queue_id
    )
    SELECT array_agg(r.queue_id) INTO v_queues FROM ready r;
    PERFORM jobq._wake(q.id, q.jobs::integer)
    FROM (SELECT u.id, count(*) AS jobs FROM unnest(v_queues) AS u (id) GROUP BY u.id) q;
END $$;

-- Decides about jobs that wait, but only about those of p_own; p_cancel: those that perhaps
-- can never run. skipped: others that need not wait any more, and those whose rows, or edges
-- if they have ended, somebody holds; undecided: those that still wait; decided: how many it
-- made ready or cancelled. It locks none that still waits: others might wait for its row.
CREATE OR REPLACE FUNCTION jobq._look_jobs(
    p_jobs bigint[], p_cancel bigint[], p_own bigint[], OUT skipped bigint[],
    OUT undecided bigint[], OUT decided integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_held bigint[];
    v_waits bigint[];
    v_gone bigint[];
    v_ready bigint[];
    v_cancel bigint[];
BEGIN
    v_held := ARRAY(
        SELECT j.id FROM jobq.job j
        WHERE j.id = ANY (p_own) AND j.state = 'w' AND (j.id = ANY (p_cancel) OR NOT EXISTS (
            SELECT FROM jobq.edge e WHERE e.child = j.id AND e.holds))
        FOR UPDATE SKIP LOCKED);
    IF cardinality(v_held) < cardinality(p_jobs) THEN
        SELECT array_agg(j.id) FILTER (WHERE NOT e.hold), array_agg(j.id) FILTER (WHERE e.hold)
        INTO skipped, v_waits
        FROM jobq.job j CROSS JOIN LATERAL (
            SELECT (j.id = ANY (p_cancel)) IS NOT TRUE AND EXISTS (
                SELECT FROM jobq.edge o WHERE o.child = j.id AND o.holds) AS hold) AS e
        WHERE j.id = ANY (p_jobs) AND j.state = 'w' AND j.id <> ALL (v_held);
    END IF;
    IF cardinality(v_held) + coalesce(cardinality(skipped || v_waits), 0) < cardinality(p_jobs)
    THEN
        v_gone := ARRAY( -- the ends of parent and child did not see each other
            SELECT u.id FROM unnest(p_jobs) AS u (id)
            WHERE NOT EXISTS (SELECT FROM jobq.job j WHERE j.id = u.id OFFSET 0)
              AND NOT EXISTS (SELECT FROM jobq.failed f WHERE f.id = u.id));
        -- Not in one statement: Postgres would call edges_drop for jobs that live.
        skipped := skipped || ARRAY(
            SELECT u.id FROM unnest(v_gone) AS u (id) WHERE NOT jobq._edges_drop(ARRAY[u.id]));
        v_waits := v_waits || ARRAY( -- for the end of a parent, which may be under way
            SELECT e.child FROM jobq.edge e WHERE e.child = ANY (v_gone) AND e.flow_id = 0);
    END IF;
    SELECT array_agg(u.id) FILTER (WHERE NOT e.hold), array_agg(u.id) FILTER (WHERE e.hold)
    INTO v_ready, undecided -- with a new snapshot
    FROM unnest(v_held) AS u (id) CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT FROM jobq.edge o WHERE o.child = u.id AND o.holds) AS hold) AS e;
    IF p_cancel IS NOT NULL AND undecided IS NOT NULL THEN
        v_cancel := ARRAY(
            SELECT u.id FROM unnest(undecided) AS u (id)
            WHERE u.id = ANY (p_cancel) AND EXISTS (
                SELECT FROM jobq.edge e
                WHERE e.child = u.id AND e.holds AND e.cascade AND e.came IS NOT NULL));
        PERFORM jobq._finish(v_cancel, 'c', jsonb_build_object(
            'at', statement_timestamp(),
            'error', 'a job that it waited for ended otherwise'));
        undecided := ARRAY(
            SELECT u.id FROM unnest(undecided) AS u (id) WHERE u.id <> ALL (v_cancel));
    END IF;
    IF v_ready IS NOT NULL THEN PERFORM jobq._make_ready(v_ready); END IF;
    undecided := undecided || v_waits;
    decided := coalesce(cardinality(v_ready), 0) + coalesce(cardinality(v_cancel), 0);
END $$;

-- Wakes workers of jobs that nudges from p_from on name, and of those that wait for a signal
-- that they name and that was sent.
CREATE OR REPLACE FUNCTION jobq._nudges_left(p_from bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    PERFORM jobq._wake(q.id, 1) FROM (
        SELECT DISTINCT j.queue_id AS id
        FROM (SELECT o.job_id, o.signal FROM jobq.nudge o WHERE o.id >= p_from
              ORDER BY o.id LIMIT 100) AS n
        CROSS JOIN LATERAL (
            SELECT n.job_id AS id UNION ALL
            (SELECT w.job_id FROM jobq.signal s JOIN jobq.signal_wait w ON w.name = s.name
             WHERE s.name = n.signal LIMIT 100)) AS u
        CROSS JOIN LATERAL (
            SELECT o.queue_id FROM jobq.job o WHERE o.id = u.id OFFSET 0) AS j) AS q;
END $$;

-- A part of promote: at most p_limit nudges, their ids, and what they name. own: about what of
-- it this transaction may decide.
CREATE OR REPLACE FUNCTION jobq._nudges_take(
    p_limit integer, p_here boolean, OUT ids bigint[], OUT jobs bigint[], OUT flows bigint[],
    OUT cancel bigint[], OUT signals text[], OUT own bigint[], OUT own_signals text[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    SELECT array_agg(n.id), array_agg(DISTINCT n.job_id) FILTER (WHERE n.job_id > 0),
           array_agg(DISTINCT -n.job_id) FILTER (WHERE n.job_id < 0),
           array_agg(DISTINCT n.job_id) FILTER (WHERE n.cancel),
           array_agg(DISTINCT n.signal) FILTER (WHERE n.signal IS NOT NULL),
           array_agg(DISTINCT n.job_id) FILTER (WHERE n.own),
           array_agg(DISTINCT n.signal) FILTER (WHERE n.own)
    INTO ids, jobs, flows, cancel, signals, own, own_signals
    FROM (SELECT o.*, true AS own FROM (
              SELECT * FROM jobq.nudge WHERE NOT p_here
              ORDER BY id LIMIT p_limit FOR UPDATE SKIP LOCKED) o
          UNION ALL (
              SELECT o.*, o.by = pg_current_xact_id() FROM jobq.nudge o WHERE p_here
              ORDER BY o.id DESC LIMIT p_limit)) n;
END $$;

-- Looks at what at most p_limit nudges name. Answers how many jobs it made ready or cancelled.
-- A nudge is left if somebody holds the row that it names, or moved behind the others if there
-- are p_limit; and if it is of this transaction and nothing was decided, a new one takes its
-- place: see above. For what is left it wakes workers that sleep. A transaction that keeps one
-- snapshot leaves all: it might not see a job that a flow has got since. What waits for a flow
-- that ends here is looked at once more, and not again (p_last): 100,000 flows may end in one
-- commit, and a statement that is to look at all of them never gets done.
-- p_here: in a transaction of the caller's. What it decides about stays locked until that
-- ends, so it decides only about what it has nudged itself, and takes the newest nudges. It
-- leaves those of others to workers, unlocked; but it deletes those for which nothing is to be
-- done, because a backlog of such transactions would pile them up.
CREATE OR REPLACE FUNCTION jobq._promote(
    p_limit integer, p_here boolean DEFAULT false, p_last boolean DEFAULT false)
RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_taken record;
    v_skipped bigint[];
    v_undecided bigint[];
    v_decided integer := 0;
    v_ended integer := 0;
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM jobq._nudges_left(min(n.id)) FROM jobq.nudge n;
        RETURN 0;
    END IF;
    SELECT t.* INTO v_taken FROM jobq._nudges_take(p_limit, p_here) t;
    IF v_taken.ids IS NULL THEN RETURN 0; END IF;
    IF v_taken.jobs IS NOT NULL THEN
        SELECT l.skipped, l.undecided, l.decided INTO v_skipped, v_undecided, v_decided
        FROM jobq._look_jobs(v_taken.jobs, v_taken.cancel, v_taken.own) l;
    END IF;
    IF v_taken.flows IS NOT NULL THEN
        SELECT v_skipped || l.skipped, v_undecided || l.undecided, l.decided
        INTO v_skipped, v_undecided, v_ended
        FROM jobq._look_flows(v_taken.flows, v_taken.own) l;
    END IF;
    IF v_taken.signals IS NOT NULL THEN
        SELECT v_skipped || l.skipped, v_undecided || 0::bigint, v_decided + l.decided
        INTO v_skipped, v_undecided, v_decided
        FROM jobq._look_signals(v_taken.signals, v_taken.own_signals) l;
    END IF;
    WITH gone AS (
        DELETE FROM jobq.nudge n
        WHERE n.id = ANY (ARRAY(
            SELECT o.id FROM jobq.nudge o
            WHERE o.id = ANY (v_taken.ids)
              AND (v_skipped IS NULL OR o.job_id <> ALL (v_skipped))
            FOR UPDATE SKIP LOCKED))
        RETURNING n.job_id, n.by, n.signal
    )
    INSERT INTO jobq.nudge (job_id, signal)
    SELECT DISTINCT g.job_id, g.signal FROM gone g
    WHERE g.by = pg_current_xact_id() AND g.job_id = ANY (v_undecided);
    IF cardinality(v_taken.ids) = p_limit AND v_skipped IS NOT NULL AND NOT p_here THEN
        WITH last AS (
            DELETE FROM jobq.nudge n
            WHERE n.id = ANY (v_taken.ids) RETURNING n.job_id, n.cancel, n.signal
        )
        INSERT INTO jobq.nudge (job_id, cancel, signal)
        SELECT DISTINCT l.job_id, l.cancel, l.signal FROM last l;
    END IF;
    v_decided := v_decided + v_ended;
    IF v_ended > 0 AND NOT p_last THEN
        v_decided := v_decided + jobq._promote(p_limit, p_here, true);
    END IF;
    PERFORM jobq._nudges_left(min(u.id)) FROM unnest(v_taken.ids) AS u (id);
    RETURN v_decided;
END $$;

-- For edges whose parent was deleted by hand, which nobody told. It looks at p_limit edges,
-- from a random one on, and at as many from the first one on, so that a heartbeat's cost does
-- not grow with the number of jobs that wait.
CREATE OR REPLACE FUNCTION jobq._promote_late(p_limit integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_sort = off SET jit = off AS $$
DECLARE v_from bigint;
BEGIN
    PERFORM jobq._promote(p_limit);
    v_from := (SELECT min(e.parent) + (random() * (max(e.parent) - min(e.parent)))::bigint
               FROM jobq.edge e);
    IF v_from IS NULL THEN RETURN; END IF;
    PERFORM jobq._edges_end(array_agg(s.parent), s.state)
    FROM (SELECT e.parent, CASE jobq.standing(e.parent) WHEN 'succeeded' THEN 's'
                           WHEN 'failed' THEN 'f' ELSE 'c' END::"char" AS state
          FROM ((SELECT o.* FROM jobq.edge o WHERE o.parent >= v_from
                 ORDER BY o.parent, o.child LIMIT p_limit)
                UNION ALL
                (SELECT o.* FROM jobq.edge o WHERE o.parent < v_from
                 ORDER BY o.parent, o.child LIMIT p_limit)) AS e
          WHERE e.parent > 0 AND e.came IS NULL
            AND NOT EXISTS (SELECT FROM jobq.job j WHERE j.id = e.parent OFFSET 0)) AS s
    GROUP BY s.state;
END $$;

-- ---- links ---------------------------------------------------------------------------------

-- The job p_child, which waits, runs when p_parent has ended, however it ends. The parent's
-- row is locked, and written: see lock_parents.
CREATE OR REPLACE FUNCTION jobq._follow(p_parent bigint, p_child bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    UPDATE jobq.job j SET flow_id = coalesce(j.flow_id, 0)
    WHERE j.id = ANY (ARRAY[p_parent, p_child]);
    INSERT INTO jobq.edge (parent, child) VALUES (p_parent, p_child);
END $$;

-- Counts new jobs of a flow, which is locked so that it does not end meanwhile.
CREATE OR REPLACE FUNCTION jobq._flow_add(p_flow bigint, p_count integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_flow jobq.flow;
BEGIN
    SELECT f.* INTO v_flow FROM jobq.flow f WHERE f.id = p_flow FOR KEY SHARE;
    IF NOT FOUND THEN
        PERFORM jobq._refuse('flow', 'not the id of a flow');
    ELSIF num_nonnulls(v_flow.ended_at, v_flow.cancelled_at) > 0 THEN
        RAISE EXCEPTION 'flow % takes no more jobs: it %', p_flow, CASE
            WHEN v_flow.cancelled_at IS NULL THEN 'has ended' ELSE 'was cancelled' END
            USING ERRCODE = '55000', HINT = 'Enqueue all of its jobs in one transaction, or '
                'make it with open => true.';
    END IF;
    PERFORM jobq._flow_count(array_fill(p_flow, ARRAY[p_count]), NULL);
END $$;

-- Where a job waits for the end of a flow, this keeps two transactions, neither of which sees
-- the other's edges, from making a cycle through flows. One that runs waits until all enqueues
-- into those flows are committed. A new one locks its own flow against whoever waits for that.
CREATE OR REPLACE FUNCTION jobq._lock_flows(
    p_parents bigint[], p_flow bigint, p_running boolean)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_flows bigint[] := ARRAY(SELECT -u.id FROM unnest(p_parents) AS u (id) WHERE u.id < 0);
BEGIN
    IF v_flows = '{}' THEN RETURN; END IF;
    IF p_running THEN
        PERFORM FROM jobq.flow f WHERE f.id = ANY (v_flows) ORDER BY f.id FOR UPDATE;
    ELSE
        PERFORM FROM jobq.flow f WHERE f.id = p_flow FOR NO KEY UPDATE;
    END IF;
END $$;

-- Locks the parents that live or have failed until the end of this transaction, so that their
-- ends and revivals see what it writes: until then they cannot be. Before them, those that are
-- flows: see above. A parent may have changed its place between the two locks.
-- It writes their rows, marking those that are in no flow. So a transaction with an older
-- snapshot, which does not see the new edges, cannot end or revive them (40001). Once in a
-- transaction is enough: each version of a row makes the next look-up slower.
CREATE OR REPLACE FUNCTION jobq._lock_parents(p_ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_locked bigint[];
BEGIN
    PERFORM FROM jobq.flow f
    WHERE f.id = ANY (ARRAY(SELECT -u.id FROM unnest(p_ids) AS u (id) WHERE u.id < 0))
    ORDER BY f.id FOR SHARE;
    LOOP
        v_locked := ARRAY(
            SELECT j.id FROM jobq.job j WHERE j.id = ANY (p_ids)
            ORDER BY j.id FOR NO KEY UPDATE);
        v_locked := v_locked || ARRAY(
            SELECT f.id FROM jobq.failed f WHERE f.id = ANY (p_ids)
            ORDER BY f.id FOR KEY SHARE);
        EXIT WHEN NOT EXISTS (
            SELECT j.id FROM jobq.job j WHERE j.id = ANY (p_ids)
            UNION ALL SELECT f.id FROM jobq.failed f WHERE f.id = ANY (p_ids)
            EXCEPT SELECT u.id FROM unnest(v_locked) AS u (id));
    END LOOP;
    UPDATE jobq.job j SET flow_id = coalesce(j.flow_id, 0)
    WHERE j.id = ANY (p_ids) AND (j.flow_id IS NULL OR j.xmin <> pg_current_xact_id()::xid);
    UPDATE jobq.failed f SET flow_id = coalesce(f.flow_id, 0)
    WHERE f.id = ANY (p_ids) AND (f.flow_id IS NULL OR f.xmin <> pg_current_xact_id()::xid);
END $$;

-- How a parent has ended: s, f, c. NULL: it lives. Refuses one that nobody knows any more.
CREATE OR REPLACE FUNCTION jobq._parent_end(p_id bigint) RETURNS "char"
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_state text := CASE WHEN p_id > 0 THEN
    coalesce((SELECT 'lives' FROM jobq.job j WHERE j.id = p_id), jobq.standing(p_id)) ELSE (
    SELECT CASE WHEN f.ended_at IS NULL THEN 'running'
                WHEN (SELECT sum(p.failed + p.cancelled) FROM jobq.flow_part p
                      WHERE p.flow_id = f.id) > 0 THEN 'failed' ELSE 'succeeded' END
    FROM jobq.flow f WHERE f.id = -p_id) END;
BEGIN
    IF v_state IN ('gone', 'none') OR v_state IS NULL THEN
        RAISE EXCEPTION '% % is gone', CASE WHEN p_id > 0 THEN 'job' ELSE 'flow' END, abs(p_id)
            USING ERRCODE = 'JQ006', HINT = 'A job can wait for one that lives, or whose '
                'history is kept.';
    END IF;
    RETURN CASE v_state WHEN 'succeeded' THEN 's' WHEN 'failed' THEN 'f'
           WHEN 'cancelled' THEN 'c' END;
END $$;

-- Writes what new jobs, which this transaction has enqueued, wait for. p_names: what they are
-- called in the flow. Element i of the other arrays is an edge to the job
-- p_ids[p_children[i]]: from a job, by its id or its name in the flow, or from a flow, by its
-- id; p_on: success, failure or any. p_running: the one job of p_ids runs. Otherwise the
-- caller has locked the parents; those among p_ids are in the flow, and nobody sees them yet.
CREATE OR REPLACE FUNCTION jobq._link(
    p_ids bigint[], p_flow bigint, p_names text[], p_children integer[], p_parents bigint[],
    p_parent_names text[], p_parent_flows bigint[], p_on text[],
    p_running boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_on_failure "char" := (SELECT f.on_failure FROM jobq.flow f WHERE f.id = p_flow);
    v_parents bigint[];
BEGIN
    IF p_names IS NOT NULL THEN PERFORM jobq._flow_names(p_flow, p_names, p_ids); END IF;
    IF coalesce(cardinality(p_children), 0) = 0 THEN RETURN; END IF;
    v_parents := jobq._link_parents(p_flow, p_parents, p_parent_names, p_parent_flows);
    PERFORM jobq._check_links(p_ids, p_flow, p_children, v_parents, p_parent_names, p_on,
                             p_running);
    PERFORM jobq._lock_flows(v_parents, p_flow, p_running);
    IF p_running THEN
        PERFORM jobq._lock_parents(v_parents);
        PERFORM jobq._check_cycle(v_parents, p_ids[1], p_flow);
    ELSIF EXISTS (SELECT FROM jobq.edge e WHERE e.parent = -p_flow AND e.holds)
          AND -p_flow IN (SELECT * FROM jobq._awaited(v_parents)) THEN
        PERFORM jobq._refuse('after',
                             'must not name a job that waits for the end of its flow');
    END IF;
    INSERT INTO jobq.edge (parent, child, wanted, cascade, came, holds, flow_id)
    SELECT DISTINCT ON (e.parent, e.child) e.parent, e.child, e.wanted, e.cascade, e.came,
           e.came IS NULL OR (e.wanted <> 'e' AND (e.wanted = 's') <> (e.came = 's')),
           coalesce(p_flow, 0)
    FROM (SELECT u.parent, p_ids[u.child] AS child, jobq._parent_end(u.parent) AS came,
                 CASE WHEN u.on_end = 'any' OR (u.on_end = 'success' AND v_on_failure = 'r')
                      THEN 'e' ELSE left(u.on_end, 1) END::"char" AS wanted,
                 u.on_end = 'failure' OR coalesce(v_on_failure = 'c', false) AS cascade
          FROM unnest(v_parents, p_children, p_on) AS u (parent, child, on_end)) AS e
    ON CONFLICT (parent, child) DO UPDATE -- a running job that has waited for it before
    SET wanted = excluded.wanted, cascade = excluded.cascade, came = excluded.came,
        holds = excluded.holds;
    WITH linked AS (
        SELECT e.child, bool_or(e.holds) AS waits,
               bool_or(e.holds AND e.cascade AND e.came IS NOT NULL) AS over
        FROM jobq.edge e WHERE e.child = ANY (p_ids) GROUP BY e.child
    ), marked AS (
        UPDATE jobq.job j
        SET flow_id = coalesce(j.flow_id, 0),
            state = CASE WHEN j.state = 'x' THEN 'x' WHEN l.waits THEN 'w' ELSE 'r' END,
            line = CASE WHEN j.state = 'x' OR NOT l.waits THEN j.line END
        FROM linked l WHERE j.id = l.child
    )
    INSERT INTO jobq.nudge (job_id, cancel) SELECT l.child, true FROM linked l WHERE l.over;
END $$;

-- A part of link: the parents as ids, an element for each edge; NULL: nobody has the name.
CREATE OR REPLACE FUNCTION jobq._link_parents(
    p_flow bigint, p_parents bigint[], p_parent_names text[], p_parent_flows bigint[])
RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN ARRAY(
        SELECT coalesce(u.id, -u.flow_id, n.job_id)
        FROM ROWS FROM (unnest(p_parents), unnest(p_parent_names), unnest(p_parent_flows))
             WITH ORDINALITY AS u (id, name, flow_id, at)
        LEFT JOIN jobq.flow_job n ON n.flow_id = p_flow AND n.name = u.name COLLATE "C"
        ORDER BY u.at);
END $$;

-- A part of link: what jobs are called in their flow.
CREATE OR REPLACE FUNCTION jobq._flow_names(p_flow bigint, p_names text[], p_ids bigint[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_job record;
BEGIN
    FOR v_job IN SELECT u.name, u.id FROM unnest(p_names, p_ids) AS u (name, id)
                 WHERE u.name IS NOT NULL LOOP
        IF p_flow IS NULL THEN
            PERFORM jobq._refuse('name', 'needs a flow', p_value => v_job.name);
        ELSIF octet_length(v_job.name) NOT BETWEEN 1 AND 1024 THEN
            PERFORM jobq._refuse('name', 'must be 1 to 1024 bytes', p_value => v_job.name);
        END IF;
        INSERT INTO jobq.flow_job (flow_id, name, job_id) VALUES (p_flow, v_job.name, v_job.id)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            PERFORM jobq._refuse('name', 'not the only one of its flow',
                                 p_value => v_job.name);
        END IF;
    END LOOP;
END $$;

-- A part of link: refuses edges that cannot be.
CREATE OR REPLACE FUNCTION jobq._check_links(
    p_ids bigint[], p_flow bigint, p_children integer[], p_parents bigint[], p_names text[],
    p_on text[], p_running boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_edge record;
BEGIN
    SELECT u.* INTO v_edge FROM unnest(p_children, p_parents, p_names, p_on)
         AS u (child, parent, name, on_end)
    WHERE u.parent IS NULL OR u.parent = -p_flow
       OR (u.parent >= p_ids[u.child] AND (p_running IS NOT TRUE OR u.parent = p_ids[1]))
       OR (u.on_end IN ('success', 'failure', 'any')) IS NOT TRUE LIMIT 1;
    IF NOT FOUND THEN RETURN; END IF;
    PERFORM jobq._refuse('on_end', 'must be success, failure or any', p_value => v_edge.on_end)
    WHERE (v_edge.on_end IN ('success', 'failure', 'any')) IS NOT TRUE;
    PERFORM jobq._refuse('after', CASE
        WHEN v_edge.parent = -p_flow THEN 'must not be the job''s own flow'
        WHEN v_edge.parent IS NULL AND v_edge.name IS NULL THEN 'must not have an id of NULL'
        WHEN v_edge.parent IS NULL AND p_flow IS NULL
        THEN format('needs a flow, because it names %L', v_edge.name)
        WHEN v_edge.parent IS NULL THEN 'not the name of a job of the flow'
        WHEN p_running THEN 'must not be the job itself'
        WHEN v_edge.parent = ANY (p_ids) THEN 'must be jobs that were enqueued before this one'
        ELSE 'not the id of a job' END,
        p_value => coalesce(v_edge.name, v_edge.parent::text));
END $$;

-- These jobs, and all that they wait for, directly or through others. A negative id is the end
-- of a flow. A job waits for the parents that hold it; in a strict line it also waits for the
-- job that holds the line. A flow's end waits for what the jobs of the flow wait for.
CREATE OR REPLACE FUNCTION jobq._awaited(p_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    RETURN QUERY
    WITH RECURSIVE above AS (
        SELECT u.id FROM unnest(p_ids) AS u (id)
        UNION
        SELECT e.parent FROM above a CROSS JOIN LATERAL (
            SELECT o.child, o.parent FROM jobq.edge o WHERE o.child = a.id AND o.holds
            UNION ALL
            SELECT o.child, o.parent FROM jobq.edge o
            WHERE a.id < 0 AND o.flow_id = -a.id AND o.flow_id > 0 AND o.holds
            UNION ALL
            SELECT h.child, h.parent
            FROM (SELECT a.id WHERE a.id < 0 UNION ALL SELECT o.id FROM jobq.job o
                  WHERE o.id = a.id AND o.line_name IS NOT NULL) AS s
            CROSS JOIN LATERAL jobq._line_waits(ARRAY[s.id]) h) AS e
        WHERE EXISTS (SELECT FROM jobq.job j WHERE j.id = e.child OFFSET 0)
    ) SELECT a.id FROM above a;
END $$;

-- A part of link: refuses that a running job waits for one that waits for it. The caller has
-- locked the job and its parents, so other transactions write edges to these, or from the job,
-- before or afterwards. Edges farther away may be written at the same time and are not seen.
-- So a look that goes farther is made alone, and the next one waits for the end of this
-- transaction. One of REPEATABLE READ does not see what was written meanwhile, but a job that
-- has begun to wait since its snapshot cannot be locked there: it is to be tried again.
CREATE OR REPLACE FUNCTION jobq._check_cycle(p_parents bigint[], p_id bigint, p_flow bigint)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_behind bigint; -- a parent that is in the strict line that the job holds
    v_lines boolean;
    v_above bigint[];
BEGIN
    SELECT min(h.child) FILTER (WHERE h.parent = p_id AND h.child = ANY (p_parents)),
           count(*) > 0
    INTO v_behind, v_lines FROM jobq._line_waits(p_parents) h;
    IF v_behind IS NOT NULL THEN
        PERFORM jobq._refuse('after', format(
            'must not name job %s: it is behind job %s in a strict line, and starts only '
            'after it has ended', v_behind, p_id), 'Give it no line, or another one.');
    END IF;
    IF v_lines OR 0 > ANY (p_parents) OR EXISTS (
            SELECT FROM jobq.edge e WHERE e.child = ANY (p_parents) AND e.holds) THEN
        PERFORM pg_advisory_xact_lock(hashtext('jobq.edge'));
    END IF;
    v_above := ARRAY(SELECT * FROM jobq._awaited(p_parents));
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM FROM jobq.job j WHERE j.id = ANY (v_above) ORDER BY j.id FOR SHARE;
    END IF;
    IF p_id = ANY (v_above) OR -p_flow = ANY (v_above) THEN
        PERFORM jobq._refuse('after', format(
            'must not name a job that waits for job %s itself', p_id));
    END IF;
END $$;

-- What a handler's jobq_pg_call_wait does: its job waits for others, as link has them, and is
-- run again when they have ended as it wants. A job that it has waited for before and that was
-- revived holds it again.
CREATE OR REPLACE FUNCTION jobq._wait_here(
    p_worker bigint, p_claim bigint, p_id bigint, p_stage smallint, p_attempt integer,
    p_crash integer, p_suspect boolean, p_log jsonb, p_parents bigint[],
    p_parent_names text[], p_parent_flows bigint[], p_on text[],
    p_snoozes integer DEFAULT 0) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE v_flow bigint;
BEGIN
    SELECT f.id INTO v_flow FROM jobq.flow f JOIN jobq.job j ON j.flow_id = f.id
    WHERE j.id = p_id;
    PERFORM FROM jobq.job j WHERE j.id = p_id FOR NO KEY UPDATE; -- see check_cycle
    PERFORM jobq._link(ARRAY[p_id], v_flow, NULL, array_fill(1, ARRAY[cardinality(p_on)]),
                      p_parents, p_parent_names, p_parent_flows, p_on, true);
    IF NOT EXISTS (SELECT FROM jobq.edge e WHERE e.child = p_id AND e.holds) THEN
        INSERT INTO jobq.nudge (job_id) VALUES (p_id);
    END IF;
    PERFORM jobq._settle_here(p_worker, p_claim, p_id, 'w', p_stage, p_attempt, p_crash,
                             p_suspect, 0, NULL, NULL, NULL, p_log, p_snoozes);
END $$;

-- enqueue_many for jobs of a flow (NULL: none), and for jobs that wait: see link. A key that
-- is known is refused, because what its job waits for is not changed.
CREATE OR REPLACE FUNCTION jobq._enqueue_linked(
    p_queue text, p_kinds text[], p_kind integer[], p_payloads jsonb[], p_bytes bytea[],
    p_headers jsonb[], p_run_ats timestamptz[], p_delays_us bigint[], p_priorities smallint[],
    p_stages smallint[], p_max_attempts integer[], p_timeouts_us bigint[], p_keys text[],
    p_count integer, p_notify boolean, p_lines text[], p_flow bigint, p_names text[],
    p_children integer[], p_parents bigint[], p_parent_names text[], p_parent_flows bigint[],
    p_on text[], p_expires_us bigint[] DEFAULT NULL, p_expires_ats timestamptz[] DEFAULT NULL,
    OUT ids bigint[], OUT existed boolean[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    IF EXISTS (SELECT FROM jobq.tenant) THEN
        PERFORM jobq._tenant_refuse(p_queue, p_lines);
    END IF;
    PERFORM jobq._lock_parents(jobq._link_parents( -- before the keys of the new jobs
        p_flow, p_parents, p_parent_names, p_parent_flows));
    SELECT e.ids, e.existed INTO ids, existed FROM jobq._enqueue_many(
        p_queue, p_kinds, p_kind, p_payloads, p_bytes, p_headers, p_run_ats, p_delays_us,
        p_priorities, p_stages, p_max_attempts, p_timeouts_us, p_keys, p_count, p_notify,
        p_lines, p_flow, p_expires_us, p_expires_ats) e;
    IF true = ANY (existed) THEN
        RAISE EXCEPTION 'job % has the key %', ids[array_position(existed, true)],
            p_keys[array_position(existed, true)] USING ERRCODE = 'JQ007';
    END IF;
    PERFORM jobq._link(ids, p_flow, p_names, p_children, p_parents, p_parent_names,
                      p_parent_flows, p_on);
END $$;

-- The same for one job, as enqueue takes it.
CREATE OR REPLACE FUNCTION jobq._enqueue_after(
    p_queue text, p_kind text, p_payload jsonb, p_bytes bytea, p_headers jsonb,
    p_run_at timestamptz, p_priority smallint, p_stages smallint, p_max_attempts integer,
    p_timeout_us bigint, p_key text, p_notify boolean, p_line text, p_flow bigint,
    p_name text, p_after bigint[], p_after_names text[], p_after_flow bigint, p_on_end text,
    p_expires_us bigint)
RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_ids bigint[] := coalesce(p_after, '{}');
    v_names text[] := coalesce(p_after_names, '{}');
    v_count integer;
BEGIN
    IF EXISTS (SELECT FROM jobq.tenant) THEN
        PERFORM jobq._tenant_refuse(p_queue, ARRAY[p_line]);
    END IF;
    IF 1 > ANY (p_after) THEN
        PERFORM jobq._refuse('after', 'must have ids, which are positive');
    ELSIF p_after_flow < 1 THEN
        PERFORM jobq._refuse('after_flow', 'must be the id of a flow, which is positive');
    END IF;
    v_names := array_fill(NULL::text, ARRAY[cardinality(v_ids)]) || v_names;
    v_ids := v_ids || array_fill(NULL::bigint,
                                 ARRAY[cardinality(v_names) - cardinality(v_ids)]);
    v_count := cardinality(v_ids) + (p_after_flow IS NOT NULL)::integer;
    RETURN (SELECT e.ids[1] FROM jobq._enqueue_linked(
        p_queue, ARRAY[p_kind], NULL, ARRAY[p_payload], ARRAY[p_bytes], ARRAY[p_headers],
        ARRAY[p_run_at], NULL, ARRAY[p_priority], ARRAY[p_stages], ARRAY[p_max_attempts],
        ARRAY[p_timeout_us], CASE WHEN p_key IS NOT NULL THEN ARRAY[p_key] END, 1, p_notify,
        CASE WHEN p_line IS NOT NULL THEN ARRAY[p_line] END, p_flow,
        CASE WHEN p_name IS NOT NULL THEN ARRAY[p_name] END,
        array_fill(1, ARRAY[v_count]), v_ids, v_names,
        CASE WHEN p_after_flow IS NOT NULL THEN
            array_fill(NULL::bigint, ARRAY[cardinality(v_ids)]) || p_after_flow END,
        array_fill(p_on_end, ARRAY[v_count]),
        CASE WHEN p_expires_us IS NOT NULL THEN ARRAY[p_expires_us] END) e);
END $$;

-- ---- verbs ---------------------------------------------------------------------------------

-- Begins a flow and answers its id, for enqueue. Do both in one transaction, so that all jobs
-- of the flow appear at once.
--   on_failure  what becomes of a job if one that it waits for fails or is cancelled: hold
--               (it waits on, so that a revive continues the flow), cancel, or run
--   open        it takes more jobs even when all of today's have ended, until flow_close or
--               flow_cancel
-- It ends when all of its jobs have ended. So one that gets no job needs a flow_close, or what
-- waits for it waits for ever.
-- Errors: 22023.
--     select jobq.flow('import-7');
--     select jobq.enqueue('etl', 'load', '{"part": 1}', flow => :flow, name => 'load-1');
--     select jobq.enqueue('etl', 'merge', flow => :flow, after_names => '{load-1}');
CREATE OR REPLACE FUNCTION jobq.flow(
    name text DEFAULT '', on_failure text DEFAULT 'hold', open boolean DEFAULT false)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v_id bigint;
BEGIN
    IF (on_failure IN ('hold', 'cancel', 'run')) IS NOT TRUE THEN
        PERFORM jobq._refuse('on_failure', 'must be hold, cancel or run',
                             p_value => on_failure);
    ELSIF (octet_length(name) <= 1024) IS NOT TRUE THEN
        PERFORM jobq._refuse('name', 'must be at most 1024 bytes');
    END IF;
    INSERT INTO jobq.flow AS f (name, on_failure, open)
    VALUES (flow.name, left(flow.on_failure, 1)::"char", coalesce(flow.open, false))
    RETURNING f.id INTO v_id;
    RETURN v_id;
END $$;

-- A flow that was made with open, or has no job yet, ends when the jobs that it has now have
-- ended.
-- Nothing happens if it is closed. Errors: 22023 no flow has this id.
--     select jobq.flow_close(:flow);
CREATE OR REPLACE FUNCTION jobq.flow_close(id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    UPDATE jobq.flow f SET open = false WHERE f.id = flow_close.id;
    IF NOT FOUND THEN PERFORM jobq._refuse('flow', 'not the id of a flow'); END IF;
    INSERT INTO jobq.nudge (job_id) VALUES (-flow_close.id);
    PERFORM jobq._promote(1000, true);
END $$;

-- Many jobs of one kind, and what follows when all of them have ended, once: a job, or a
-- message in an outbox, whose headers have the flow and how many jobs ended how. Without
-- payloads (NULL, or no element) there are no jobs, and it follows at once. Answers the id of
-- their flow.
-- Errors: those of enqueue and, for a message, of outbox_enqueue.
--     select jobq.batch('mail', 'letter', array_agg(to_jsonb(c)), 'report') from customer c;
--     select jobq.batch('mail', 'letter', array_agg(to_jsonb(c)), done_outbox => 'events',
--                       done_payload => '{"mailing": 7}') from customer c;
CREATE OR REPLACE FUNCTION jobq.batch(
    queue text, kind text, payloads jsonb[], done_kind text DEFAULT NULL,
    done_payload jsonb DEFAULT NULL, done_queue text DEFAULT NULL, name text DEFAULT '',
    done_outbox text DEFAULT NULL, done_order_key text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_flow bigint := jobq.flow(name);
    v_refused record;
BEGIN
    PERFORM jobq._refuse(u.field, u.why) FROM (VALUES
        ('done_payload', done_payload::text, coalesce(done_kind, done_outbox),
         'needs done_kind or done_outbox'),
        ('done_queue', done_queue, done_kind, 'needs done_kind'),
        ('done_order_key', done_order_key, done_outbox, 'needs done_outbox'))
        AS u (field, given, needs, why) WHERE u.given IS NOT NULL AND u.needs IS NULL;
    IF done_outbox IS NOT NULL THEN
        SELECT q.refused, q.code INTO v_refused
        FROM jobq._outbox_queue(done_outbox, NULL, NULL, -- its headers have at most 200 bytes
                               octet_length(done_payload::text) + 200) q;
        IF v_refused.refused IS NOT NULL THEN
            RAISE EXCEPTION '%', v_refused.refused USING ERRCODE = v_refused.code;
        END IF;
        UPDATE jobq.flow f SET message = jsonb_build_object(
            'queue', done_outbox, 'order_key', done_order_key, 'payload', done_payload)
        WHERE f.id = v_flow;
    END IF;
    PERFORM jobq._enqueue_many(queue, ARRAY[kind], NULL, coalesce(payloads, '{}'),
                              p_flow => v_flow);
    IF done_kind IS NOT NULL THEN
        PERFORM jobq.enqueue(coalesce(done_queue, queue), done_kind, done_payload,
                             after_flow => v_flow, on_end => 'any');
    END IF;
    IF coalesce(cardinality(payloads), 0) = 0 THEN -- no job's end will look at the flow
        INSERT INTO jobq.nudge (job_id) VALUES (-v_flow);
        PERFORM jobq._promote(1000, true);
    END IF;
    RETURN v_flow;
END $$;

-- Whether a failed job can be revived.
CREATE OR REPLACE FUNCTION jobq._revivable(p_job jobq.failed) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN NOT jobq._is_erased(p_job.payload, p_job.headers) AND NOT (
        p_job.key IS NOT NULL AND jobq._key_taken(p_job.queue_id, p_job.key, p_job.id));
END $$;

-- No flow has this id. Refuses one that was never given out: a flow that was forgotten may
-- have failed jobs.
CREATE OR REPLACE FUNCTION jobq._flow_unknown(p_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_last bigint := pg_sequence_last_value(
        pg_get_serial_sequence('jobq.flow', 'id')::regclass);
BEGIN
    IF (p_id BETWEEN 1 AND v_last) IS NOT TRUE THEN
        PERFORM jobq._refuse('flow', 'not the id of a flow');
    END IF;
END $$;

-- A part of flow_cancel: cancels those whose rows nobody holds. NULL: others hold all of them,
-- and it has done nothing.
CREATE OR REPLACE FUNCTION jobq._flow_cancel_free(p_flow bigint, p_limit integer)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_ids bigint[];
    v_ready bigint[];
BEGIN
    PERFORM FROM jobq.flow f WHERE f.id = p_flow FOR UPDATE;
    IF NOT FOUND THEN PERFORM jobq._flow_unknown(p_flow); END IF;
    UPDATE jobq.flow f SET cancelled_at = coalesce(f.cancelled_at, statement_timestamp())
    WHERE f.id = p_flow AND f.ended_at IS NULL;
    IF FOUND THEN -- all of its jobs may have ended before
        INSERT INTO jobq.nudge (job_id) VALUES (-p_flow);
    END IF;
    v_ids := ARRAY(
        SELECT j.id FROM jobq.job j
        WHERE j.flow_id = p_flow AND j.flow_id > 0 AND j.cancel_requested_at IS NULL
        LIMIT p_limit FOR UPDATE SKIP LOCKED);
    IF v_ids = '{}' AND EXISTS (
            SELECT FROM jobq.job j
            WHERE j.flow_id = p_flow AND j.flow_id > 0 AND j.cancel_requested_at IS NULL
            LIMIT p_limit) THEN
        RAISE EXCEPTION USING ERRCODE = 'JQ000'; -- the lock of the flow is released with it
    END IF;
    v_ready := ARRAY(
        SELECT j.id FROM jobq.job j WHERE j.id = ANY (v_ids) AND j.state <> 'x');
    PERFORM jobq._cancel_one(u.id) FROM unnest(v_ids) AS u (id) WHERE u.id <> ALL (v_ready);
    PERFORM jobq._finish(v_ready, 'c', NULL); -- after the locks of jobs: it takes keys
    PERFORM jobq._promote(1000, true);
    RETURN cardinality(v_ids);
EXCEPTION WHEN SQLSTATE 'JQ000' THEN RETURN NULL;
END $$;

-- A part of flow_cancel: waits until somebody lets go of a job that is not cancelled, and
-- keeps no lock.
CREATE OR REPLACE FUNCTION jobq._flow_cancel_wait(p_flow bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    PERFORM FROM jobq.job j
    WHERE j.flow_id = p_flow AND j.flow_id > 0 AND j.cancel_requested_at IS NULL
    LIMIT 1 FOR UPDATE;
    RAISE EXCEPTION USING ERRCODE = 'JQ000';
EXCEPTION WHEN SQLSTATE 'JQ000' THEN NULL;
END $$;

-- Cancels the jobs of a flow that have not ended, in bounded steps: call it again until it
-- answers 0, each time in a transaction of its own. The flow takes no more jobs; it waits for
-- transactions that enqueue some. Running jobs are asked, as by cancel. Jobs that others have
-- locked come last, and it waits for them. A second call in one transaction may deadlock with
-- a handler that enqueues into the flow.
-- Answers how many jobs it cancelled or asked. Errors: 40001 and 40P01, try again.
--     select jobq.flow_cancel(:flow);
CREATE OR REPLACE FUNCTION jobq.flow_cancel(id bigint, at_most integer DEFAULT 1000)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v_count integer;
BEGIN
    PERFORM jobq._check_at_most(at_most);
    PERFORM jobq._need_read_committed();
    -- It waits without the flow's lock, because a handler that has ended its job may enqueue
    -- into the flow afterwards. An earlier call in this transaction has that lock.
    LOOP
        v_count := jobq._flow_cancel_free(id, at_most);
        EXIT WHEN v_count IS NOT NULL;
        PERFORM jobq._flow_cancel_wait(id);
    END LOOP;
    RETURN jobq._operated('cancel', jsonb_build_object('flow', id), v_count);
END $$;

-- A part of flow_revive: revives those whose rows nobody holds. NULL: others hold all of them,
-- and it has done nothing.
CREATE OR REPLACE FUNCTION jobq._flow_revive_free(p_flow bigint, p_limit integer)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off AS $$
DECLARE v_ids bigint[];
BEGIN
    PERFORM FROM jobq.flow f WHERE f.id = p_flow FOR NO KEY UPDATE;
    IF NOT FOUND THEN PERFORM jobq._flow_unknown(p_flow); END IF;
    v_ids := ARRAY(
        SELECT f.id FROM jobq.failed f
        WHERE f.flow_id = p_flow AND f.flow_id > 0 AND jobq._revivable(f)
        LIMIT p_limit FOR UPDATE SKIP LOCKED);
    IF v_ids = '{}' AND EXISTS (
            SELECT FROM jobq.failed f
            WHERE f.flow_id = p_flow AND f.flow_id > 0 AND jobq._revivable(f)) THEN
        RAISE EXCEPTION USING ERRCODE = 'JQ000'; -- the lock of the flow is released with it
    END IF;
    RETURN jobq._revive_all(v_ids);
EXCEPTION WHEN SQLSTATE 'JQ000' THEN RETURN NULL;
END $$;

-- A part of revive and flow_revive: waits until somebody lets go of this failed job, or of one
-- of this flow, and keeps no lock.
CREATE OR REPLACE FUNCTION jobq._revive_wait(p_id bigint, p_flow bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    PERFORM FROM jobq.failed f
    WHERE f.id = p_id OR f.flow_id = p_flow AND f.flow_id > 0 AND jobq._revivable(f)
    LIMIT 1 FOR UPDATE;
    RAISE EXCEPTION USING ERRCODE = 'JQ000';
EXCEPTION WHEN SQLSTATE 'JQ000' THEN NULL;
END $$;

-- Revives the failed jobs of a flow, in bounded steps: call it again until it answers 0, each
-- time in a transaction of its own. Jobs that wait for them wait on, and run when they have
-- succeeded. Those that wait for one that was cancelled, deleted or erased go on waiting:
-- cancel them, or the flow. It waits for jobs that others hold as flow_cancel does.
-- Answers how many jobs it revived. Errors: 40001 and 40P01, try again.
--     select jobq.flow_revive(:flow);
CREATE OR REPLACE FUNCTION jobq.flow_revive(id bigint, at_most integer DEFAULT 1000)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off AS $$
DECLARE v_count integer;
BEGIN
    PERFORM jobq._check_at_most(at_most);
    LOOP
        v_count := jobq._flow_revive_free(id, at_most);
        EXIT WHEN v_count IS NOT NULL;
        PERFORM jobq._revive_wait(NULL, id);
    END LOOP;
    RETURN jobq._operated('revive', jsonb_build_object('flow', id), v_count);
END $$;

-- The edges from revived jobs hold their children again, if these still wait. A flow with one
-- of them has not ended; the caller has locked it.
CREATE OR REPLACE FUNCTION jobq._edges_revive(p_ids bigint[], p_flows bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE v_flows bigint[];
BEGIN
    PERFORM jobq._flow_count(p_flows, 'f', -1);
    WITH again AS (
        UPDATE jobq.flow f SET ended_at = NULL, cancelled_at = NULL
        WHERE f.id = ANY (p_flows) RETURNING -f.id AS id
    )
    SELECT array_agg(a.id) INTO v_flows FROM again a;
    UPDATE jobq.edge e SET came = NULL, holds = true
    WHERE e.parent = ANY (p_ids || v_flows) AND e.came IS NOT NULL
      AND EXISTS (
          SELECT FROM jobq.job j WHERE j.id = e.child AND j.state = 'w' OFFSET 0);
END $$;

-- Forgets flows that ended a week ago, with their edges and names.
CREATE OR REPLACE FUNCTION jobq._prune_flows(p_limit integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE v_flows bigint[];
BEGIN
    v_flows := ARRAY(
        SELECT f.id FROM jobq.flow f
        WHERE f.ended_at < statement_timestamp() - interval '7 days'
        ORDER BY f.ended_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
    IF v_flows = '{}' THEN RETURN; END IF;
    DELETE FROM jobq.edge e WHERE e.flow_id = ANY (v_flows) AND e.flow_id > 0;
    DELETE FROM jobq.flow_job n WHERE n.flow_id = ANY (v_flows);
    DELETE FROM jobq.flow_part p WHERE p.flow_id = ANY (v_flows);
    DELETE FROM jobq.flow f WHERE f.id = ANY (v_flows);
END $$;

-- ---- looking -------------------------------------------------------------------------------

-- Flows at a glance. state: running; held, a job failed, or one still waits for another that
-- has ended otherwise; cancelled, until its last job has ended; ended.
CREATE OR REPLACE VIEW jobq.flows AS
SELECT f.id, f.name, CASE WHEN f.ended_at IS NOT NULL THEN 'ended'
                     WHEN f.cancelled_at IS NOT NULL THEN 'cancelled'
                     WHEN f.on_failure = 'h' AND (p.failed > 0 OR EXISTS (
                         SELECT FROM jobq.edge e
                         WHERE e.flow_id = f.id AND e.flow_id > 0 AND e.holds
                           AND e.came IS NOT NULL)) THEN 'held'
                     ELSE 'running' END AS state,
       coalesce(p.jobs, 0)::bigint AS jobs, coalesce(p.succeeded, 0)::bigint AS succeeded,
       coalesce(p.failed, 0)::bigint AS failed, coalesce(p.cancelled, 0)::bigint AS cancelled,
       CASE f.on_failure WHEN 'h' THEN 'hold' WHEN 'c' THEN 'cancel' ELSE 'run' END
       AS on_failure, f.open, f.created_at, f.ended_at
FROM jobq.flow f LEFT JOIN LATERAL (
    SELECT sum(o.jobs) AS jobs, sum(o.succeeded) AS succeeded, sum(o.failed) AS failed,
           sum(o.cancelled) AS cancelled
    FROM jobq.flow_part o WHERE o.flow_id = f.id) AS p ON true;

-- The jobs of a flow that live, have a name, or are at an edge, in the order of their ids.
-- after: what a job waits for, or has waited for (negative: a flow); held_by: those of them
-- that still hold it.
-- Answers at most at_most rows; none for an unknown flow. Errors: none.
--     select * from jobq.flow_graph(:flow);
CREATE OR REPLACE FUNCTION jobq.flow_graph(id bigint, at_most integer DEFAULT 1000)
RETURNS TABLE (job_id bigint, name text, kind text, state text, after bigint[],
               held_by bigint[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    PERFORM jobq._check_at_most(at_most);
    RETURN QUERY
    SELECT u.id, n.name, coalesce(j.kind, ''), coalesce(j.state, 'gone'),
           array_agg(e.parent ORDER BY e.parent) FILTER (WHERE e.parent IS NOT NULL),
           array_agg(e.parent ORDER BY e.parent) FILTER (WHERE e.holds)
    FROM (SELECT o.job_id AS id FROM jobq.flow_job o WHERE o.flow_id = flow_graph.id
          UNION SELECT o.child FROM jobq.edge o
                WHERE o.flow_id = flow_graph.id AND o.flow_id > 0
          UNION SELECT o.parent FROM jobq.edge o
                WHERE o.flow_id = flow_graph.id AND o.flow_id > 0 AND o.parent > 0
          UNION SELECT o.id FROM jobq.job o WHERE o.flow_id = flow_graph.id AND o.flow_id > 0
          ORDER BY 1 LIMIT at_most) AS u
    LEFT JOIN jobq.flow_job n ON n.flow_id = flow_graph.id AND n.job_id = u.id
    LEFT JOIN jobq.edge e ON e.child = u.id
    LEFT JOIN LATERAL (SELECT o.kind, o.state FROM jobq.jobs o WHERE o.id = u.id LIMIT 1) AS j
        ON true
    GROUP BY u.id, n.name, j.kind, j.state ORDER BY u.id;
END $$;

-- What a job is tied to. tie: flow, its own; after, a job that it waits or has waited for;
-- before, a job that waits for it; step, one that it has done; signal, one that it waits for.
-- For a flow, here or at an edge, id is negative.
CREATE OR REPLACE FUNCTION jobq._job_ties(job_id bigint, at_most integer DEFAULT 100)
RETURNS TABLE (tie text, id bigint, name text, kind text, state text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
#variable_conflict use_column
BEGIN
    PERFORM jobq._check_at_most(at_most);
    RETURN QUERY
    WITH own AS MATERIALIZED (
        SELECT j.flow_id, j.steps FROM jobq.job j WHERE j.id = _job_ties.job_id
        UNION ALL SELECT f.flow_id, f.steps FROM jobq.failed f WHERE f.id = _job_ties.job_id
        UNION ALL SELECT h.flow_id, NULL FROM jobq.history h WHERE h.id = _job_ties.job_id
    )
    SELECT t.tie, t.id, coalesce(f.name, n.name, t.name), j.kind,
           coalesce(f.state, j.state, CASE WHEN t.id > 0 THEN 'gone' END)
    FROM (SELECT 'flow' AS tie, -o.flow_id AS id, NULL AS name FROM own o WHERE o.flow_id > 0
          UNION ALL (SELECT 'after', e.parent, NULL FROM jobq.edge e
                     WHERE e.child = _job_ties.job_id ORDER BY e.parent LIMIT at_most)
          UNION ALL (SELECT 'before', e.child, NULL FROM jobq.edge e
                     WHERE e.parent = _job_ties.job_id ORDER BY e.child LIMIT at_most)
          UNION ALL SELECT 'signal', NULL, w.name FROM jobq.signal_wait w
                    WHERE w.job_id = _job_ties.job_id
          UNION ALL (SELECT 'step', NULL, s.name
                     FROM own o CROSS JOIN jsonb_object_keys(o.steps) AS s (name)
                     ORDER BY s.name LIMIT at_most)) AS t
    LEFT JOIN jobq.flows f ON f.id = -t.id
    LEFT JOIN LATERAL (SELECT o.name FROM jobq.flow_job o WHERE o.job_id = t.id LIMIT 1) AS n
        ON true
    LEFT JOIN LATERAL (SELECT o.kind, o.state FROM jobq.jobs o WHERE o.id = t.id LIMIT 1) AS j
        ON true;
END $$;

-- What a job has waited for, with the results.
CREATE OR REPLACE FUNCTION jobq._parents(id bigint)
RETURNS TABLE (job_id bigint, name text, state text, result jsonb, result_bytes bytea)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT e.parent, n.name, CASE e.came WHEN 's' THEN 'succeeded' WHEN 'f' THEN 'failed'
                             WHEN 'c' THEN 'cancelled' ELSE 'running' END,
           j.result, j.result_bytes
    FROM jobq.edge e LEFT JOIN jobq.flow_job n ON n.job_id = e.parent
    LEFT JOIN LATERAL (SELECT h.result, h.result_bytes FROM jobq.history h
                       WHERE h.id = e.parent LIMIT 1) AS j ON true
    WHERE e.child = _parents.id ORDER BY e.parent;
END $$;

-- ---- care ----------------------------------------------------------------------------------

-- Waiting jobs that nothing holds and that nobody will look at, and edges and waits for a
-- signal whose job is not there: a part of audit.
CREATE OR REPLACE FUNCTION jobq._audit_flows() RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT count(*) FROM jobq.signal_wait w
            WHERE NOT EXISTS (SELECT FROM jobq.job j WHERE j.id = w.job_id))
        + (SELECT count(*) FROM jobq.job j WHERE j.state = 'w'
              AND NOT EXISTS (SELECT FROM jobq.edge e WHERE e.child = j.id AND e.holds)
              AND NOT EXISTS (SELECT FROM jobq.nudge n WHERE n.job_id = j.id))
        + (SELECT count(*) FROM jobq.edge e WHERE e.parent > 0 AND e.came IS NULL
             AND NOT EXISTS (SELECT FROM jobq.job j WHERE j.id = e.parent));
END $$;

-- After a restore: sequences that are behind their tables, and waiting jobs whose nudges the
-- copy may lack.
CREATE OR REPLACE FUNCTION jobq._flows_restored() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM setval(pg_get_serial_sequence('jobq.flow', 'id'), jobq._id_beyond(greatest(
        pg_sequence_last_value(pg_get_serial_sequence('jobq.flow', 'id')::regclass),
        (SELECT max(f.id) FROM jobq.flow f), (SELECT max(j.flow_id) FROM jobq.job j),
        (SELECT max(f.flow_id) FROM jobq.failed f), 0))); -- failed jobs outlive their flow
    PERFORM setval(pg_get_serial_sequence('jobq.nudge', 'id'), greatest(
        pg_sequence_last_value(pg_get_serial_sequence('jobq.nudge', 'id')::regclass),
        (SELECT max(n.id) FROM jobq.nudge n), 0) + 1);
    INSERT INTO jobq.nudge (job_id) SELECT j.id FROM jobq.job j WHERE j.state = 'w'
    UNION ALL SELECT -f.id FROM jobq.flow f WHERE f.ended_at IS NULL AND (
        f.message IS NOT NULL OR EXISTS (
            SELECT FROM jobq.flow_part p WHERE p.flow_id = f.id) OR EXISTS (
            SELECT FROM jobq.edge e WHERE e.parent = -f.id)); -- others may get jobs yet
    INSERT INTO jobq.nudge (job_id, signal)
    SELECT DISTINCT 0, w.name FROM jobq.signal_wait w;
END $$;
