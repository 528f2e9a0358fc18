-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: waiting for jobs to end, and their results.
--
-- A waiter looks at its jobs; then it writes where it listens, one row for each job, and looks
-- again now and then. Whoever ends a job notifies its waiters in the same transaction. A job
-- may end between a waiter's two looks and before its row was seen, so a notification can be
-- missed: that costs time until the next look, and nothing else.

-- The state of a job. gone: no table has it, but its id was given out. So the job has ended
-- and is no longer kept, it was deleted, or the transaction that enqueued it was rolled back
-- or has not committed. none: its id was never given out.
-- Answers ready, running, waiting, succeeded, failed, cancelled, gone or none. Errors: none.
--     select jobq.standing(1);
CREATE OR REPLACE FUNCTION jobq.standing(p_id bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    -- A sequence can only be read by a sequential scan. Where those are off, its cost looks so
    -- high that Postgres would compile the statement (JIT), which takes seconds.
    RETURN coalesce((SELECT j.state FROM jobq.jobs j WHERE j.id = p_id),
                    (SELECT 'gone' FROM jobq.job_id s
                     WHERE s.is_called AND p_id BETWEEN 1 AND s.last_value), 'none');
END $$;

-- Notifies those who wait for these jobs. The payload of a notification has at most 8000
-- bytes: 400 ids. A row that its waiter is removing is left to it.
CREATE OR REPLACE FUNCTION jobq._tell_waiters(p_ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_note record;
BEGIN
    FOR v_note IN
        WITH told AS (
            DELETE FROM jobq.waiter w WHERE w.ctid = ANY (ARRAY(
                SELECT o.ctid FROM jobq.waiter o
                WHERE o.job_id = ANY (p_ids) FOR UPDATE SKIP LOCKED))
            RETURNING w.job_id, w.channel
        )
        SELECT t.channel, string_agg(to_hex(t.job_id), ' ') AS ids
        FROM (SELECT o.channel, o.job_id,
                     row_number() OVER (PARTITION BY o.channel) / 400 AS part
              FROM told o) AS t
        GROUP BY t.channel, t.part
    LOOP
        PERFORM jobq._notify(v_note.channel, format('ended %s', v_note.ids));
    END LOOP;
END $$;

-- The rows of these jobs, in the order of the array, as the view jobs shows them. state none,
-- and the others empty: it is not there. p_channel: if some have not ended, their ends are
-- notified there; if none has, there are no rows.
CREATE OR REPLACE FUNCTION jobq._await(p_ids bigint[], p_channel bigint DEFAULT NULL)
RETURNS TABLE (id bigint, queue text, kind text, state text, priority smallint,
               stage smallint, stages smallint, attempt integer, crash integer,
               snoozes integer, suspect boolean, alone boolean, enqueued_at timestamptz,
               run_at timestamptz, claimed_at timestamptz, finished_at timestamptz,
               worker bigint, claim bigint,
               cancel_requested_at timestamptz, key text, errors jsonb, queue_id integer,
               kind_id integer, own_max_attempts integer, timeout_us bigint, line text,
               result jsonb, result_bytes bytea, expires_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    IF p_channel IS NOT NULL THEN
        PERFORM set_config('synchronous_commit', 'off', true);
        WITH live AS (
            SELECT j.id, j.queue_id FROM jobq.job j WHERE j.id = ANY (p_ids)
        ), written AS (
            INSERT INTO jobq.waiter (job_id, channel)
            SELECT l.id, p_channel FROM live l ORDER BY l.id ON CONFLICT DO NOTHING
        )
        UPDATE jobq.queue q SET awaited = true WHERE q.id = ANY (ARRAY(
            SELECT o.id FROM jobq.queue o
            WHERE NOT o.awaited AND o.id IN (SELECT l.queue_id FROM live l)
            FOR NO KEY UPDATE SKIP LOCKED));
        IF (SELECT count(*) FROM jobq.job j WHERE j.id = ANY (p_ids)) = cardinality(p_ids) THEN
            RETURN; -- the view takes ten times as long
        END IF;
    END IF;
    RETURN QUERY
    SELECT u.id, coalesce(j.queue, ''), coalesce(j.kind, ''), coalesce(j.state, 'none'),
           coalesce(j.priority, 0::smallint), coalesce(j.stage, 0::smallint),
           coalesce(j.stages, 0::smallint), coalesce(j.attempt, 0), coalesce(j.crash, 0),
           j.snoozes, coalesce(j.suspect, false), coalesce(j.alone, false),
           coalesce(j.enqueued_at, 'epoch'), coalesce(j.run_at, 'epoch'), j.claimed_at,
           j.finished_at, j.worker, j.claim, j.cancel_requested_at, j.key, j.errors,
           coalesce(j.queue_id, 0), coalesce(j.kind_id, 0), j.own_max_attempts, j.timeout_us,
           j.line, j.result, j.result_bytes, j.expires_at
    FROM unnest(p_ids) WITH ORDINALITY AS u (id, n)
    LEFT JOIN LATERAL (SELECT o.* FROM jobq.jobs o WHERE o.id = u.id LIMIT 1) AS j ON true
    ORDER BY u.n;
END $$;

-- The jobs that a job has waited for, as await has them: for its handler.
CREATE OR REPLACE FUNCTION jobq._parent_jobs(p_id bigint)
RETURNS TABLE (id bigint, queue text, kind text, state text, priority smallint,
               stage smallint, stages smallint, attempt integer, crash integer,
               snoozes integer, suspect boolean, alone boolean, enqueued_at timestamptz,
               run_at timestamptz, claimed_at timestamptz, finished_at timestamptz,
               worker bigint, claim bigint,
               cancel_requested_at timestamptz, key text, errors jsonb, queue_id integer,
               kind_id integer, own_max_attempts integer, timeout_us bigint, line text,
               result jsonb, result_bytes bytea, expires_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    RETURN QUERY SELECT a.* FROM jobq._await(ARRAY(
        SELECT e.parent FROM jobq.edge e WHERE e.child = p_id AND e.parent > 0
        ORDER BY e.parent)) a;
END $$;

-- Withdraws what await has written.
CREATE OR REPLACE FUNCTION jobq._unawait(p_ids bigint[], p_channel bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    DELETE FROM jobq.waiter w WHERE w.ctid = ANY (ARRAY(
        SELECT o.ctid FROM jobq.waiter o
        WHERE o.job_id = ANY (p_ids) AND o.channel = p_channel FOR UPDATE SKIP LOCKED));
END $$;

-- Waiters whose process is gone. One that has waited for a day looks every second.
CREATE OR REPLACE FUNCTION jobq._prune_waiters() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM jobq.waiter w WHERE w.ctid = ANY (ARRAY(
        SELECT o.ctid FROM jobq.waiter o
        WHERE o.since < statement_timestamp() - interval '1 day' FOR UPDATE SKIP LOCKED));
END $$;

-- Waits until a job has ended, for psql and programs without the library.
-- Answers its state, and its result if that is jsonb. state: ready, running or waiting if the
-- time is up; gone or none if there is no such job. It looks after 1, 2, 4 ... 250 ms, and it
-- commits before each look. So in a transaction block it fails: no worker would see a job that
-- was enqueued there.
-- Errors: 2D000 it was called in a transaction block.
--     call jobq.wait(1, '0.1 s');
CREATE OR REPLACE PROCEDURE jobq.wait(
    IN id bigint, IN timeout interval DEFAULT '1 min', INOUT state text DEFAULT NULL,
    INOUT result jsonb DEFAULT NULL)
LANGUAGE plpgsql AS $$
DECLARE
    v_end pg_catalog.timestamptz :=
        pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) timeout;
    v_nap pg_catalog.float8 := 0.001;
BEGIN
    -- A procedure that commits can have no SET clause, so all names and operators are written
    -- with their schema.
    LOOP
        COMMIT;
        SELECT a.state, a.result INTO state, result
        FROM jobq._await(ARRAY[id]) a;
        EXIT WHEN state OPERATOR(pg_catalog.<>) ALL ('{ready,running,waiting}')
            OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>=) v_end;
        PERFORM pg_catalog.pg_sleep(v_nap);
        v_nap := LEAST(0.25, v_nap OPERATOR(pg_catalog.*) 2);
    END LOOP;
    IF state OPERATOR(pg_catalog.=) 'none' THEN state := jobq.standing(id); END IF;
END $$;
