-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: claim.

-- How many of these locked jobs fit into p_bytes, by the stored size of their payloads. At
-- least one.
CREATE OR REPLACE FUNCTION jobq._rows_within(p_rows tid[], p_bytes bigint) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_bytes bigint := 0;
BEGIN
    FOR i IN 1 .. cardinality(p_rows) LOOP
        SELECT v_bytes + coalesce(pg_column_size(j.payload), octet_length(j.bytes), 0)
        INTO v_bytes FROM jobq.job j WHERE j.ctid = p_rows[i];
        IF v_bytes > p_bytes THEN RETURN greatest(i - 1, 1); END IF;
    END LOOP;
    RETURN cardinality(p_rows);
END $$;

-- Refuses the claim of a dead worker. p_sure: its claim row could not be written, so it is
-- dead.
CREATE OR REPLACE FUNCTION jobq._refuse_dead(p_worker bigint, p_sure boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM jobq.worker w WHERE w.id = p_worker AND w.dead_at IS NULL;
    IF p_sure OR NOT FOUND THEN
        RAISE EXCEPTION 'worker % is dead', p_worker
            USING ERRCODE = 'JQ002', HINT = 'Register again, with a new worker id.';
    END IF;
END $$;

-- Locks one suspect for a claim, if its line lets it run. This function and claim_look run
-- under the settings of claim.
CREATE OR REPLACE FUNCTION jobq._claim_suspect(
    p_queues integer[], p_priorities smallint[], p_stages smallint[], p_kinds integer[],
    p_alone boolean, OUT rows tid[], OUT ids bigint[], OUT ended bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_queue integer;
    v_line text;
    v_late boolean;
BEGIN
    SELECT ARRAY[ready.ctid], ARRAY[ready.id], ready.queue_id, ready.line_name,
           ready.expires_at <= statement_timestamp()
    INTO rows, ids, v_queue, v_line, v_late
    FROM unnest(p_queues, p_priorities, p_stages) AS lane (queue_id, priority, stage)
    CROSS JOIN LATERAL (
        SELECT j.ctid, j.id, j.queue_id, j.line_name, j.expires_at FROM jobq.job j
        WHERE j.queue_id = lane.queue_id AND j.priority = lane.priority
          AND j.stage = lane.stage AND j.suspect AND j.state = 'r'
          AND j.alone = p_alone AND j.run_at <= statement_timestamp()
          AND (p_kinds IS NULL OR j.kind_id = ANY (p_kinds))
          AND jobq._suspect_goes(j.queue_id, j.line_name)
        ORDER BY j.run_at, j.id
        LIMIT 1 FOR UPDATE SKIP LOCKED) AS ready
    LIMIT 1;
    IF v_late THEN
        SELECT f.rows, f.ids, f.ended INTO rows, ids, ended
        FROM jobq._claim_fresh(rows, ids, NULL, NULL) f;
    ELSIF v_line IS NOT NULL AND NOT jobq._suspect_admitted(v_queue, v_line, ids[1]) THEN
        rows := NULL;
        ids := NULL;
    END IF;
END $$;

-- What a claim that found nothing answers about its lanes: see claim.
CREATE OR REPLACE FUNCTION jobq._claim_look(
    p_queues integer[], p_priorities smallint[], p_stages smallint[], p_kinds integer[])
RETURNS jobq.claimed LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_look jobq.claimed;
BEGIN
    v_look.suspect := EXISTS (
        SELECT FROM jobq.job j
        WHERE j.suspect AND NOT j.alone AND j.state = 'r' AND j.queue_id = ANY (p_queues)
          AND j.run_at <= statement_timestamp()
          AND (p_kinds IS NULL OR j.kind_id = ANY (p_kinds))
          AND jobq._suspect_goes(j.queue_id, j.line_name));
    v_look.alone := EXISTS (
        SELECT FROM jobq.job j
        WHERE j.suspect AND j.alone AND j.state = 'r' AND j.queue_id = ANY (p_queues)
          AND j.run_at <= statement_timestamp()
          AND (p_kinds IS NULL OR j.kind_id = ANY (p_kinds))
          AND jobq._suspect_goes(j.queue_id, j.line_name));
    v_look.due_us := (
        SELECT (extract(epoch FROM min(next.run_at) - statement_timestamp()) * 1e6)::bigint
        FROM unnest(p_queues, p_priorities, p_stages) AS lane (queue_id, priority, stage)
        CROSS JOIN LATERAL (
            SELECT j.run_at FROM jobq.job j
            WHERE j.queue_id = lane.queue_id AND j.priority = lane.priority
              AND j.stage = lane.stage AND NOT j.suspect AND j.line IS NULL AND j.state = 'r'
              AND j.run_at > statement_timestamp() AND j.run_at < 'infinity'
              AND (p_kinds IS NULL OR j.kind_id = ANY (p_kinds))
            ORDER BY j.run_at, j.id LIMIT 1) AS next);
    IF EXISTS (SELECT FROM jobq.nudge) AND jobq._promote(1000) > 0 THEN
        v_look.due_us := 1;
    END IF;
    RETURN v_look;
END $$;

-- Ends those of these jobs, which a claim has locked, that are late, and answers the others in
-- their order. froms: what belongs to each of them. p_others: late ones that it has not
-- locked; those that others hold are left. ended: see claim. This is the only place that ends
-- late jobs. So a job is late by the clock of the claim that finds it, and it takes no
-- attempt, no token and no place in a line. The commit waits for the disk: workers count these
-- jobs, and those who wait for them are told. It waits only briefly for a lock, as
-- wait_briefly says, because the claim may come with a heartbeat.
CREATE OR REPLACE FUNCTION jobq._claim_fresh(
    INOUT rows tid[], INOUT ids bigint[], INOUT froms integer[], p_others bigint[],
    OUT ended bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_late bigint[];
BEGIN
    SELECT array_agg(u.id) FILTER (WHERE o.late),
           array_agg(u.ctid ORDER BY u.n) FILTER (WHERE NOT o.late),
           array_agg(u.id ORDER BY u.n) FILTER (WHERE NOT o.late),
           array_agg(u.k ORDER BY u.n) FILTER (WHERE NOT o.late)
    INTO v_late, rows, ids, froms
    FROM unnest(rows, ids, froms) WITH ORDINALITY AS u (ctid, id, k, n)
    JOIN jobq.job j ON j.ctid = u.ctid
    CROSS JOIN LATERAL (
        SELECT (j.expires_at <= statement_timestamp()) IS TRUE AS late) AS o;
    IF v_late IS NULL THEN RETURN; END IF;
    v_late := ARRAY(
        SELECT j.id FROM jobq.job j
        WHERE j.id = ANY (v_late || p_others) AND j.state = 'r'
          AND j.expires_at <= statement_timestamp()
        ORDER BY j.id FOR UPDATE SKIP LOCKED);
    ended := ARRAY(
        SELECT v.number
        FROM (SELECT j.queue_id, j.kind_id, count(*) AS jobs FROM jobq.job j
              WHERE j.id = ANY (v_late) GROUP BY 1, 2) AS g
        CROSS JOIN LATERAL (
            VALUES (1, g.queue_id::bigint), (2, g.kind_id), (3, g.jobs)) AS v (n, number)
        ORDER BY g.queue_id, g.kind_id, v.n);
    PERFORM jobq._commit_waits(true), jobq._wait_briefly();
    PERFORM jobq._finish(v_late, 'c', jsonb_build_object(
        'at', statement_timestamp(), 'error', 'expired: it had not begun in time'));
    IF EXISTS (SELECT FROM jobq.nudge) THEN PERFORM jobq._promote(1000); END IF;
END $$;

-- The claims that are not like most: of a suspect, of lanes in which a job may have a line,
-- and one that has come upon a late job. due_us: 1 if the next claim may find more.
CREATE OR REPLACE FUNCTION jobq._claim_apart(
    p_limit integer, p_queues integer[], p_priorities smallint[], p_stages smallint[],
    p_after_ats timestamptz[], p_after_ids bigint[], p_kinds integer[], p_suspects boolean,
    p_alone boolean, p_lined boolean[], p_quantum integer, p_low_ids bigint[],
    p_until_ats timestamptz[], p_bytes bigint, OUT rows tid[], OUT ids bigint[],
    OUT bytes bigint, OUT walks bigint[], OUT stretches bigint[], OUT ended bigint[],
    OUT due_us bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_suspects THEN
        SELECT s.rows, s.ids, s.ended INTO rows, ids, ended
        FROM jobq._claim_suspect(p_queues, p_priorities, p_stages, p_kinds, p_alone) s;
    ELSE
        SELECT l.rows, l.ids, l.bytes, l.walks, l.stretches, l.ended
        INTO rows, ids, bytes, walks, stretches, ended
        FROM jobq._claim_lines(p_limit, p_queues, p_priorities, p_stages, p_after_ats,
                              p_after_ids, p_kinds, p_lined, p_quantum, p_low_ids,
                              p_until_ats) l;
    END IF;
    IF p_bytes = 0 THEN walks := NULL; END IF; -- it does not take what it names
    due_us := CASE WHEN ended IS NOT NULL THEN 1 END;
END $$;

-- What a claim answers that takes nothing, but says what it would take first.
CREATE OR REPLACE FUNCTION jobq._claim_first(p_id bigint) RETURNS jobq.claimed
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_first jobq.claimed;
BEGIN
    v_first.id := p_id;
    RETURN v_first;
END $$;

-- Takes up to p_limit jobs for one worker. The arrays list the lanes, one element each. Each
-- lane is read from its lower bound (after_at, after_id) on, so a claim skips the dead rows
-- that earlier claims left in the index; until_at is an upper bound (NULL: none), by which a
-- worker looks for jobs that committed late in slices, while an old snapshot pins dead rows.
--   lock   reads the lane index in order and skips rows that others hold. Each lane is read
--          lazily, and no more than p_limit rows are locked. (A row that was claimed after our
--          snapshot is locked in its newer version, then seen to be running, and left. For a
--          moment a completion may find it busy, and we may wait for the end of one.)
--   mark   The rows are locked, so their ctids stay valid. No index mentions a changed column,
--          so the update is HOT.
--          The same statement checks that the worker lives, and writes the claim row, whose
--          primary key makes it impossible to use a number twice. FOR KEY SHARE lets
--          heartbeats pass, and blocks the removal of the worker's row. A rescuer that marks
--          the worker dead meanwhile finds the claim row later. A claim that arrives after its
--          worker's death or removal takes nothing, however long it was under way.
-- p_kinds: only jobs of these kinds (NULL: of all). p_relaxed: the commit need not wait for
-- the disk. (A lost claim leaves the job ready, and the fence covers the rest.) p_suspects:
-- one suspect, instead of other jobs. p_alone: one that must run alone; the worker promises
-- that it holds nothing else until that job has ended. p_bytes: the claim stops before the job
-- that would make its payloads, as stored, larger than this; the first job is always taken. 0:
-- nothing is claimed, and the answer is the id of the first job. p_lined: which of the lanes
-- are of jobs that stand in lines: see claim_walk (NULL: none). p_after_ids of such a lane is
-- the line after which the walk begins, and p_quantum is how many jobs a line may give in one
-- visit, times its weight. p_low_ids: of such a lane only jobs are looked at whose
-- (run_at, id) is (after_at, low_id) or later; a strict line that has one gives its first job
-- all the same. A job that names a line and is due in another lane is moved into its line, and
-- not taken; so a worker that knows of no lines passes no limit. A late job is ended, and not
-- taken; expires_us of another one is the time until it is late.
-- Rows whose id is NULL tell what the claim saw, each column for itself (NULL: nothing).
--   suspect, alone, due_us   with p_look, if it is empty: whether a suspect is ready, and one
--                            that must run alone; microseconds until the lanes' next job
--   ended                    three numbers for each kind of which it has ended late jobs: its
--                            queue, the kind, and how many. Then due_us is 1, also without
--                            p_look: an answer without jobs does not mean that there are none
--   walks                    three numbers for each queue with lines: its id, the line after
--                            which its next walk begins, and the microseconds until the
--                            soonest line that was passed by may be claimed from (NULL: no
--                            clock decides that)
--   stretches                with p_low_ids, seven for each such lane in which it saw a ready
--                            job: queue, priority, stage, whether the walk came round (1, else
--                            0), the line at which it stopped, run_at as microseconds since
--                            1970, and an id. Of the jobs that it looked for in the lines up
--                            to there, no ready one is before these two: a bound for later
--                            claims
CREATE OR REPLACE FUNCTION jobq._claim(
    p_worker bigint, p_number bigint, p_limit integer, p_queues integer[],
    p_priorities smallint[], p_stages smallint[], p_after_ats timestamptz[],
    p_after_ids bigint[], p_kinds integer[], p_suspects boolean, p_alone boolean,
    p_look boolean, p_relaxed boolean, p_bytes bigint DEFAULT NULL, p_lined boolean[]
    DEFAULT NULL, p_quantum integer DEFAULT NULL, p_low_ids bigint[] DEFAULT NULL,
    p_until_ats timestamptz[] DEFAULT NULL) RETURNS SETOF jobq.claimed LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_rows tid[];
    v_ids bigint[];
    v_bytes bigint;
    v_apart bigint := CASE WHEN p_suspects OR p_lined IS NOT NULL THEN 1 ELSE 0 END;
    v_saw jobq.claimed;
BEGIN
    IF p_relaxed THEN PERFORM set_config('synchronous_commit', 'off', true); END IF;
    IF v_apart = 0 THEN
        SELECT array_agg(r.ctid), array_agg(r.id), sum(r.bytes), count(r.odd)
        INTO v_rows, v_ids, v_bytes, v_apart FROM (
            SELECT ready.* FROM unnest(
                p_queues, p_priorities, p_stages, p_after_ats, p_after_ids, p_until_ats)
                AS lane (queue_id, priority, stage, after_at, after_id, until_at)
            CROSS JOIN LATERAL (
                SELECT j.ctid, j.id, coalesce(pg_column_size(j.payload), octet_length(j.bytes))
                       AS bytes, CASE WHEN j.line_name IS NOT NULL OR j.expires_at
                           <= statement_timestamp() THEN 1 END AS odd FROM jobq.job j
                WHERE j.queue_id = lane.queue_id AND j.priority = lane.priority
                  AND j.stage = lane.stage AND j.state = 'r' AND NOT j.suspect
                  AND j.run_at <= least(statement_timestamp(), lane.until_at)
                  AND j.line IS NULL AND (j.run_at, j.id) > (lane.after_at, lane.after_id)
                  AND (p_kinds IS NULL OR j.kind_id = ANY (p_kinds))
                ORDER BY j.run_at, j.id LIMIT p_limit FOR UPDATE SKIP LOCKED) AS ready
            LIMIT p_limit) AS r;
    END IF;
    IF v_apart > 0 THEN
        SELECT a.* INTO v_rows, v_ids, v_bytes, v_saw.walks, v_saw.stretches, v_saw.ended,
                        v_saw.due_us FROM jobq._claim_apart(
            p_limit, p_queues, p_priorities, p_stages, p_after_ats, p_after_ids, p_kinds,
            p_suspects, p_alone, p_lined, p_quantum, p_low_ids, p_until_ats, p_bytes) a;
        IF v_saw.walks <> '{}' OR v_saw.ended <> '{}' THEN RETURN NEXT v_saw; END IF;
    END IF;
    IF p_bytes = 0 AND v_ids IS NOT NULL THEN
        RETURN NEXT jobq._claim_first(v_ids[1]);
        RETURN;
    ELSIF v_bytes > p_bytes THEN
        v_rows := v_rows[: jobq._rows_within(v_rows, p_bytes)];
    END IF;
    IF v_rows IS NOT NULL THEN
        RETURN QUERY WITH claim AS (
            INSERT INTO jobq.claim (worker, number, claimed_at, jobs)
            SELECT w.id, p_number, statement_timestamp(), v_ids[: cardinality(v_rows)]
            FROM jobq.worker w WHERE w.id = p_worker AND w.dead_at IS NULL FOR KEY SHARE
            RETURNING claim.worker)
        UPDATE jobq.job j
        SET state = 'x', attempt = j.attempt + 1, worker = p_worker, claim = p_number,
            claimed_at = statement_timestamp()
        WHERE j.ctid = ANY (v_rows) AND EXISTS (SELECT FROM claim)
        RETURNING j.id, j.run_at, j.enqueued_at, j.timeout_us, j.queue_id, j.kind_id,
                  j.attempt, j.crash, j.snoozes, j.max_attempts, j.priority, j.stage,
                  j.stages, j.suspect, j.alone, j.payload, j.bytes, j.headers, NULL::bigint,
                  j.line, NULL::bigint[], NULL::bigint[], (extract(epoch FROM j.expires_at
                  - statement_timestamp()) * 1000000)::bigint, NULL::bigint[];
        IF FOUND THEN RETURN; END IF;
    END IF;
    PERFORM jobq._refuse_dead(p_worker, v_rows IS NOT NULL);
    IF NOT p_look OR v_saw.due_us > 0 THEN RETURN; END IF;
    RETURN NEXT jobq._claim_look(p_queues, p_priorities, p_stages, p_kinds);
END $$;

-- Settles a claim that was never answered. Either the number is burned here: the claim can
-- then no longer arrive late, because its own insert would collide with this row and roll
-- back. Or the claim did arrive: then the jobs that still have its token go back, and get
-- their attempt back; nothing is sent twice. p_limit jobs a call; the answer says whether
-- there are more.
-- It waits for a claim that is just inserting its row, but only so long that the worker's
-- other statements are not held up. Then it fails with 55P03, and the worker asks again.
CREATE OR REPLACE FUNCTION jobq._recover(p_worker bigint, p_number bigint, p_limit integer)
RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
SET lock_timeout = '500ms' AS $$
DECLARE
    v_jobs bigint[];
    v_held bigint[];
BEGIN
    INSERT INTO jobq.claim (worker, number, claimed_at, jobs)
    VALUES (p_worker, p_number, statement_timestamp(), '{}')
    ON CONFLICT (worker, number) DO NOTHING;
    IF FOUND THEN RETURN false; END IF;
    v_jobs := (SELECT c.jobs FROM jobq.claim c
               WHERE c.worker = p_worker AND c.number = p_number);
    v_held := ARRAY(
        SELECT j.id FROM jobq.job j
        WHERE j.id = ANY (v_jobs) AND j.worker = p_worker AND j.claim = p_number
        ORDER BY j.id LIMIT p_limit FOR UPDATE SKIP LOCKED);
    UPDATE jobq.job j
    SET state = 'r', worker = NULL, claim = NULL, attempt = greatest(j.attempt - 1, 0),
        run_at = CASE WHEN j.cancel_requested_at IS NULL THEN statement_timestamp()
                 ELSE j.run_at END
    WHERE j.id = ANY (v_held);
    PERFORM jobq._finish(ARRAY(
        SELECT j.id FROM jobq.job j
        WHERE j.id = ANY (v_held) AND j.cancel_requested_at IS NOT NULL), 'c', NULL);
    IF EXISTS (SELECT FROM jobq.job j
               WHERE j.id = ANY (v_jobs) AND j.worker = p_worker AND j.claim = p_number) THEN
        RETURN true;
    END IF;
    UPDATE jobq.claim c SET jobs = '{}' WHERE c.worker = p_worker AND c.number = p_number;
    RETURN false;
END $$;

-- For a ready job whose claim failed again and again, while a claim without payloads worked.
-- Moves it to failed and answers true. It stays when it can be claimed after all: when the
-- server can mark it and print it, and it is not larger than p_bytes. A job that cannot even
-- be moved, because its payload is damaged, is parked where it is.
CREATE OR REPLACE FUNCTION jobq._set_aside(p_id bigint, p_bytes bigint, p_reason text)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_stage smallint;
    v_attempt integer;
    v_fits boolean;
    v_reason text := p_reason;
BEGIN
    SELECT j.stage, j.attempt INTO v_stage, v_attempt FROM jobq.job j
    WHERE j.id = p_id AND j.state = 'r' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN false; END IF;
    BEGIN -- does what a claim does, and undoes it
        UPDATE jobq.job j SET state = 'x', attempt = j.attempt + 1, worker = 1, claim = 1
        WHERE j.id = p_id;
        v_fits := (SELECT coalesce(octet_length(j.payload::text), octet_length(j.bytes), 0)
                          + coalesce(octet_length(j.headers::text), 0) <= p_bytes
                   FROM jobq.job j WHERE j.id = p_id);
        RAISE EXCEPTION USING ERRCODE = 'JQ000';
    EXCEPTION
        WHEN SQLSTATE 'JQ000' THEN
            IF v_fits THEN RETURN false; END IF;
        WHEN OTHERS THEN
            IF SQLSTATE ~ '^(40|53[13]|55|57)' THEN RAISE; END IF; -- the server's state
            v_reason := SQLERRM;
    END;
    BEGIN
        PERFORM jobq._finish(ARRAY[p_id], 'f', jsonb_build_object(
            'at', statement_timestamp(), 'stage', v_stage, 'attempt', v_attempt,
            'error', 'cannot be read: ' || v_reason));
    EXCEPTION WHEN OTHERS THEN
        IF SQLSTATE ~ '^(40|53|55|57)' THEN RAISE; END IF;
        UPDATE jobq.job j SET run_at = 'infinity', line = NULL WHERE j.id = p_id;
    END;
    RETURN true;
END $$;
