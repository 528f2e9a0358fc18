-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: steps of jobs, and signals.
--
-- A step is what a handler does once, however often the job is run: its value is kept in the
-- job's own row, and only the worker that has the job may write it.
--
-- A signal is sent once, by its name, from any transaction. A job that waits for one is ready
-- but not due before its time limit, and has a row of signal_wait. Both sides write first and
-- look afterwards: signal looks for jobs that wait, and the end of an attempt (settle) looks
-- for the signal. If their transactions overlap, neither sees the other, and so each leaves a
-- nudge, at which a later transaction looks: see flows.sql.

-- ---- steps ---------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION jobq._lease_lost(p_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'lease lost on job %', p_id USING ERRCODE = 'JQ001',
        HINT = 'Another worker has, or had, this job.';
END $$;

-- Raises an error unless this worker has the job. Locks its row, but does not wait long: it
-- may be the handler's own transaction that has locked it.
CREATE OR REPLACE FUNCTION jobq._lock_claimed(p_worker bigint, p_claim bigint, p_id bigint)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET lock_timeout = '3s' AS $$
BEGIN
    PERFORM FROM jobq.job j
    WHERE j.id = p_id AND j.worker = p_worker AND j.claim = p_claim FOR NO KEY UPDATE;
    IF NOT FOUND THEN PERFORM jobq._lease_lost(p_id); END IF;
END $$;

-- What a handler's jobq_call_step does. value: as step_done_here has written it.
CREATE OR REPLACE FUNCTION jobq._step_of_claim(
    p_worker bigint, p_claim bigint, p_id bigint, p_name text, OUT done boolean,
    OUT value text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    SELECT coalesce(j.steps ? p_name, false), nullif(j.steps -> p_name, 'null')::text
    INTO done, value FROM jobq.job j
    WHERE j.id = p_id AND j.worker = p_worker AND j.claim = p_claim;
    IF done IS NULL THEN PERFORM jobq._lease_lost(p_id); END IF;
END $$;

-- What a handler's jobq_call_step_done does. p_value: NULL if the step has none.
CREATE OR REPLACE FUNCTION jobq._step_done_here(
    p_worker bigint, p_claim bigint, p_id bigint, p_name text, p_value jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE v_size integer;
BEGIN
    PERFORM jobq._lock_claimed(p_worker, p_claim, p_id);
    UPDATE jobq.job j
    SET steps = coalesce(j.steps, '{}') || jsonb_build_object(p_name, p_value)
    WHERE j.id = p_id RETURNING octet_length(j.steps::text) INTO v_size;
    IF v_size > 1048576 THEN
        PERFORM jobq._refuse('steps', 'too large: those of a job have at most 1 MiB');
    END IF;
END $$;

-- ---- signals -------------------------------------------------------------------------------

-- Sends a signal. Jobs that wait for it, now or later, run with its payload. Answers whether
-- it is the first with this name: only that one counts. Another that is sent at the same time
-- waits for the end of this transaction.
-- Errors: 22023; 40001 try again.
--     select jobq.signal('order-7/paid', '{"cents": 900}');
CREATE OR REPLACE FUNCTION jobq.signal(name text, payload jsonb DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    IF (octet_length(name) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        PERFORM jobq._refuse('name', 'must be 1 to 1024 bytes');
    END IF;
    INSERT INTO jobq.signal (name, payload, at)
    VALUES (signal.name, signal.payload, statement_timestamp()) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN false; END IF;
    INSERT INTO jobq.nudge (job_id, signal) VALUES (0, signal.name);
    PERFORM jobq._promote(1000, true);
    RETURN true;
END $$;

-- What a handler's jobq_call_signal does: answers the signal if it came; else the job waits
-- for it, once its attempt has ended. delay_us: until then, at most; 0: that time has passed.
CREATE OR REPLACE FUNCTION jobq._signal_of_claim(
    p_worker bigint, p_claim bigint, p_id bigint, p_name text, p_delay_us bigint,
    OUT came boolean, OUT payload text, OUT delay_us bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE v_until timestamptz;
BEGIN
    PERFORM jobq._lock_claimed(p_worker, p_claim, p_id);
    SELECT true, s.payload::text INTO came, payload FROM jobq.signal s
    WHERE s.name = p_name COLLATE "C";
    IF came THEN
        DELETE FROM jobq.signal_wait w WHERE w.job_id = p_id;
        RETURN;
    END IF;
    UPDATE jobq.job j SET flow_id = 0 WHERE j.id = p_id AND j.flow_id IS NULL;
    INSERT INTO jobq.signal_wait AS w (job_id, name, until)
    VALUES (p_id, p_name, statement_timestamp() + p_delay_us * interval '1 microsecond')
    ON CONFLICT (job_id) DO UPDATE SET name = excluded.name,
        until = CASE WHEN w.name = excluded.name THEN w.until ELSE excluded.until END
    RETURNING w.until INTO v_until;
    came := false;
    delay_us := greatest(0, extract(epoch FROM v_until - statement_timestamp()) * 1000000);
END $$;

-- The attempt of a job has ended, and it may wait for a signal: a look is due.
CREATE OR REPLACE FUNCTION jobq._signal_look(p_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO jobq.nudge (job_id, signal)
    SELECT 0, w.name FROM jobq.signal_wait w WHERE w.job_id = p_id;
END $$;

-- A part of promote: makes the jobs due that wait for these signals, if the signal came.
-- Of others than p_own it makes none due. skipped: 0 if it left one, or somebody holds the row
-- of one; otherwise none.
CREATE OR REPLACE FUNCTION jobq._look_signals(
    p_signals text[], p_own text[], OUT skipped bigint[], OUT decided integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_jobs bigint[];
    v_mine bigint[];
    v_held bigint[];
BEGIN
    SELECT array_agg(w.job_id), array_agg(w.job_id) FILTER (
               WHERE w.name = ANY (p_own COLLATE "C"))
    INTO v_jobs, v_mine FROM jobq.signal s JOIN jobq.signal_wait w ON w.name = s.name
    WHERE s.name = ANY (p_signals COLLATE "C") AND EXISTS ( -- OFFSET: see heartbeat
        SELECT FROM jobq.job j
        WHERE j.id = w.job_id AND j.state = 'r' AND j.run_at > statement_timestamp()
        OFFSET 0);
    v_held := ARRAY(
        SELECT j.id FROM jobq.job j WHERE j.id = ANY (v_mine) AND j.state = 'r'
        FOR UPDATE SKIP LOCKED);
    IF cardinality(v_held) < cardinality(v_jobs) THEN skipped := ARRAY[0::bigint]; END IF;
    IF v_held <> '{}' THEN PERFORM jobq._make_ready(v_held); END IF;
    decided := cardinality(v_held);
END $$;

-- Forgets signals that are a week old and that no job waits for.
CREATE OR REPLACE FUNCTION jobq._prune_signals(p_limit integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    DELETE FROM jobq.signal s WHERE s.name = ANY (ARRAY(
        SELECT o.name FROM jobq.signal o
        WHERE o.at < statement_timestamp() - interval '7 days'
          AND NOT EXISTS (SELECT FROM jobq.signal_wait w WHERE w.name = o.name)
        ORDER BY o.at LIMIT p_limit FOR UPDATE SKIP LOCKED));
END $$;
