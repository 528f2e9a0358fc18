-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: the end of a job. Which function writes it:
--     succeeded, a batch of jobs            _complete           job -> history
--     ... with a result or a log            _complete_with      job -> history
--     ... of a kind that keeps none         _complete_unkept    job is deleted
--     failed for good, cancelled            _settle, _finish    job -> failed, history
--     tried again, put back, next stage     _settle             the row of job stays
-- What comes with an end: keys (_end_keys), waiters (_tell_waiters), and the jobs and flows
-- that wait for it (_ended in flows.sql).

-- A job's errors with one more. The first 10 and the last 40 are kept; an entry between them
-- says how many were dropped. A text longer than 4 KiB is cut. The last 10 entries keep their
-- logs; older ones lose them, and then one without an error goes. A log of more than 16 KiB is
-- not jobq_call_log's, and is left out.
CREATE OR REPLACE FUNCTION jobq._add_error(p_errors jsonb, p_entry jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_errors jsonb := p_errors;
    v_entry jsonb := p_entry;
    v_count integer := 0;
    v_dropped bigint;
BEGIN
    IF p_entry IS NULL THEN RETURN p_errors; END IF;
    IF octet_length(p_entry ->> 'error') > 4096 THEN
        v_entry := p_entry || jsonb_build_object('error', left(p_entry ->> 'error', 1024));
    END IF;
    IF octet_length(p_entry ->> 'log') > 16384 THEN v_entry := v_entry - 'log'; END IF;
    IF jsonb_typeof(p_errors) = 'array' THEN v_count := jsonb_array_length(p_errors); END IF;
    IF v_count >= 10 AND p_errors -> (v_count - 10) ? 'log' THEN
        IF p_errors -> (v_count - 10) ? 'error' THEN
            v_errors := p_errors #- ARRAY[(v_count - 10)::text, 'log'];
        ELSE
            v_errors := p_errors - (v_count - 10);
            v_count := v_count - 1;
        END IF;
    END IF;
    IF v_count < 50 THEN RETURN coalesce(v_errors, '[]') || v_entry; END IF;
    v_dropped := coalesce((v_errors -> 10 ->> 'dropped')::bigint - 1, 0) + v_count - 49;
    RETURN (
        SELECT jsonb_agg(e.item ORDER BY e.n) FROM (
            SELECT o.item, o.n
            FROM jsonb_array_elements(v_errors) WITH ORDINALITY AS o (item, n)
            WHERE o.n <= 10 OR o.n > v_count - 39
            UNION ALL SELECT jsonb_build_object('dropped', v_dropped), 11
            UNION ALL SELECT v_entry, v_count + 1) AS e);
END $$;

-- For a transaction that keeps one snapshot: fails (40001) if a ring has turned since, because
-- the part that is written in its snapshot may have been exported. The lock is released at
-- once, with the subtransaction.
CREATE OR REPLACE FUNCTION jobq._rings_unturned() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM jobq.ring r FOR SHARE;
    RAISE EXCEPTION USING ERRCODE = 'JQ000';
EXCEPTION WHEN SQLSTATE 'JQ000' THEN NULL;
END $$;

-- Moves locked jobs out of the table job: failed ones to failed, others to history if their
-- kind, or else the queue, keeps it. p_entry, if given, is appended to the errors. An id that
-- is already there (a copied table, a sequence that was set back) does not stop the job from
-- ending. Jobs that succeed in a batch, or leave a result or a log, do not come here.
CREATE OR REPLACE FUNCTION jobq._finish(p_ids bigint[], p_state "char", p_entry jsonb)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids bigint[];
    v_queues integer[];
    v_keys text[];
    v_linked bigint[];
    v_flows bigint[];
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM jobq._rings_unturned();
    END IF;
    WITH gone AS (
        DELETE FROM jobq.job j WHERE j.id = ANY (p_ids) RETURNING j.*
    ), failed AS (
        INSERT INTO jobq.failed (
            id, run_at, enqueued_at, claimed_at, finished_at, worker, timeout_us, queue_id,
            kind_id, attempt, crash, snoozes, max_attempts, priority, stage, stages, key,
            line_name, payload, bytes, headers, errors, flow_id, steps)
        SELECT g.id, g.run_at, g.enqueued_at, g.claimed_at, statement_timestamp(), g.worker,
               g.timeout_us, g.queue_id, g.kind_id, g.attempt, g.crash, g.snoozes,
               g.max_attempts, g.priority, g.stage, g.stages, g.key, g.line_name, g.payload,
               g.bytes, g.headers, jobq._add_error(g.errors, p_entry), g.flow_id, g.steps
        FROM gone g WHERE p_state = 'f'
        ON CONFLICT DO NOTHING
    ), history AS (
        INSERT INTO jobq.history (
            slot, id, run_at, enqueued_at, claimed_at, finished_at, worker, queue_id, kind_id,
            attempt, crash, priority, stage, stages, state, key, line_name, payload, bytes,
            headers, errors, flow_id)
        SELECT r.slot, g.id, g.run_at, g.enqueued_at, g.claimed_at, statement_timestamp(),
               g.worker, g.queue_id, g.kind_id, g.attempt, g.crash, g.priority, g.stage,
               g.stages, p_state, g.key, g.line_name, g.payload, g.bytes, g.headers,
               jobq._add_error(g.errors, p_entry), g.flow_id
        FROM gone g JOIN jobq.queue q ON q.id = g.queue_id JOIN jobq.kind k ON k.id = g.kind_id
            JOIN jobq.ring r ON r.retention = coalesce(k.retention, q.retention)
        WHERE p_state <> 'f' AND coalesce(k.history, q.history)
        ON CONFLICT DO NOTHING
    )
    SELECT array_agg(g.id) FILTER (WHERE g.key IS NOT NULL),
           array_agg(g.queue_id) FILTER (WHERE g.key IS NOT NULL),
           array_agg(g.key) FILTER (WHERE g.key IS NOT NULL),
           array_agg(g.id) FILTER (WHERE g.flow_id IS NOT NULL),
           array_agg(g.flow_id) FILTER (WHERE g.flow_id IS NOT NULL)
    INTO v_ids, v_queues, v_keys, v_linked, v_flows
    FROM gone g;
    IF v_keys IS NOT NULL THEN PERFORM jobq._end_keys(v_ids, v_queues, v_keys); END IF;
    IF v_linked IS NOT NULL THEN PERFORM jobq._ended(v_linked, v_flows, p_state); END IF;
    PERFORM jobq._tell_waiters(p_ids);
END $$;

-- The window of an idempotency key starts when its job ends.
CREATE OR REPLACE FUNCTION jobq._end_keys(p_ids bigint[], p_queues integer[], p_keys text[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE jobq.idempotency k SET ended_at = statement_timestamp()
    FROM unnest(p_ids, p_queues, p_keys) AS u (id, queue_id, key)
    WHERE k.queue_id = u.queue_id AND k.key = u.key COLLATE "C" AND k.job_id = u.id;
END $$;

-- Why a claimed job could not be locked: b for busy, l for lost.
CREATE OR REPLACE FUNCTION jobq._busy_or_lost(p_id bigint, p_worker bigint, p_claim bigint)
RETURNS "char" LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN EXISTS (
        SELECT FROM jobq.job j
        WHERE j.id = p_id AND j.worker = p_worker AND j.claim = p_claim)
        THEN 'b' ELSE 'l' END;
END $$;

-- These two are expressions without settings or an owner's rights of their own, so Postgres
-- puts them in their callers' place. That saves 7 us in an acknowledgement, which has both.

-- Sets whether this transaction's commit waits for the disk, whatever the session's default.
CREATE OR REPLACE FUNCTION jobq._commit_waits(p_waits boolean) RETURNS text
LANGUAGE sql AS $$
    SELECT CASE
        WHEN NOT p_waits THEN pg_catalog.set_config('synchronous_commit', 'off', true)
        WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off'
        THEN pg_catalog.set_config('synchronous_commit', 'on', true) END
$$;

-- From now on this transaction gives up soon (55P03) when it waits for a lock, because a
-- person may hold that. The worker's heartbeats wait behind it; the worker sends it again.
CREATE OR REPLACE FUNCTION jobq._wait_briefly() RETURNS text
LANGUAGE sql AS $$ SELECT pg_catalog.set_config('lock_timeout', '50ms', true) $$;

-- Where successful jobs go. silent: queues without history. slot: the part of the history that
-- is written of medium, found by its number, because that needs no index. unlike: kinds whose
-- history is kept although their queue's is not, or the other way round; kinds: those with
-- another retention than medium, and slots the parts where their jobs go. These three are
-- usually NULL, which costs nothing. awaited: somebody may wait for the ends of jobs.
CREATE OR REPLACE FUNCTION jobq._kept(
    OUT silent integer[], OUT slot smallint, OUT unlike integer[], OUT kinds integer[],
    OUT slots smallint[], OUT awaited boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_varies boolean;
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM jobq._rings_unturned();
    END IF;
    SELECT r.slot, r.varies, ARRAY(SELECT q.id FROM jobq.queue q WHERE NOT q.history),
           (SELECT bool_or(q.awaited) FROM jobq.queue q)
    INTO slot, v_varies, silent, awaited FROM jobq.ring r WHERE r.first = 8;
    IF NOT v_varies THEN RETURN; END IF;
    SELECT array_agg(k.id) FILTER (WHERE k.history <> q.history),
           array_agg(k.id) FILTER (WHERE r.retention <> 'medium'),
           array_agg(r.slot) FILTER (WHERE r.retention <> 'medium')
    INTO unlike, kinds, slots
    FROM jobq.kind k JOIN jobq.queue q ON q.id = k.queue_id
        JOIN jobq.ring r ON r.retention = coalesce(k.retention, q.retention);
END $$;

-- What follows for the jobs that waited for these, which have ended well: r, as complete
-- answers it, if some are ready now. p_here: see promote.
CREATE OR REPLACE FUNCTION jobq._succeeded(
    p_ids bigint[], p_flows bigint[], p_here boolean DEFAULT false)
RETURNS TABLE (id bigint, worker bigint, claim bigint, answer "char")
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._ended(p_ids, p_flows, 's');
    RETURN QUERY SELECT 0::bigint, 0::bigint, 0::bigint, 'r'::"char"
    WHERE jobq._promote(1000, p_here) > 0;
END $$;

-- The part of complete that ends jobs without history, key and flow_id. They go first,
-- because their rows need not be read whole: 1.7 ms for 1000 instead of 2.2.
CREATE OR REPLACE FUNCTION jobq._complete_unkept(
    p_ids bigint[], p_worker bigint, p_claim bigint, p_silent integer[], p_odd integer[])
RETURNS bigint[] LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_done bigint[];
BEGIN
    WITH gone AS (
        DELETE FROM jobq.job j
        WHERE j.ctid = ANY (ARRAY(
            SELECT held.ctid FROM jobq.job held
            WHERE held.id = ANY (p_ids) AND held.worker = p_worker AND held.claim = p_claim
              AND held.key IS NULL AND held.flow_id IS NULL
              AND (held.queue_id = ANY (p_silent)) <> ((held.kind_id = ANY (p_odd)) IS TRUE)
            FOR UPDATE SKIP LOCKED))
        RETURNING j.id
    )
    SELECT array_agg(g.id) INTO v_done FROM gone g;
    RETURN v_done;
END $$;

-- Ends many successful jobs at once, the hot path: out of job, into history. Jobs are grouped
-- by claim: element i of p_workers and p_claims is the token of the next p_counts[i] ids. Only
-- exceptions are answered, and r if jobs that waited for these are ready now. A row that
-- someone else has locked is left and answered as busy, so a batch never waits and never
-- deadlocks. v_kept: see jobq.kept.
-- The commit waits for the disk, whatever the session's default. A worker that got the answer
-- forgets the job, so nobody would look for a job that a crash of the server brought back.
CREATE OR REPLACE FUNCTION jobq._complete(
    p_workers bigint[], p_claims bigint[], p_counts integer[], p_ids bigint[])
RETURNS TABLE (id bigint, worker bigint, claim bigint, answer "char") LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_ids bigint[];
    v_done bigint[];
    v_linked bigint[];
    v_flows bigint[];
    v_from integer := 1;
    v_kept record;
    v_gone record;
BEGIN
    PERFORM jobq._commit_waits(true);
    SELECT k.* INTO v_kept FROM jobq._kept() k;
    FOR i IN 1 .. cardinality(p_claims) LOOP
        v_ids := p_ids[v_from : v_from + p_counts[i] - 1];
        v_from := v_from + p_counts[i];
        v_done := CASE WHEN v_kept.silent <> '{}' OR v_kept.unlike IS NOT NULL THEN
            jobq._complete_unkept(v_ids, p_workers[i], p_claims[i], v_kept.silent,
                                 v_kept.unlike) END;
        CONTINUE WHEN cardinality(v_done) = cardinality(v_ids);
        WITH gone AS (
            DELETE FROM jobq.job j
            WHERE j.ctid = ANY (ARRAY(
                SELECT held.ctid FROM jobq.job held WHERE held.id = ANY (v_ids)
                  AND held.worker = p_workers[i] AND held.claim = p_claims[i]
                FOR UPDATE SKIP LOCKED))
            RETURNING j.id, j.run_at, j.enqueued_at, j.claimed_at, j.worker, j.queue_id,
                      j.kind_id, j.attempt, j.crash, j.priority, j.stage, j.stages, j.flow_id,
                      j.key, j.line_name, j.payload, j.bytes, j.headers, j.errors
        ), history AS (
            INSERT INTO jobq.history (
                slot, id, run_at, enqueued_at, claimed_at, finished_at, worker, queue_id,
                kind_id, attempt, crash, priority, stage, stages, state, key, line_name,
                payload, bytes, headers, errors, flow_id)
            SELECT coalesce(v_kept.slots[array_position(v_kept.kinds, g.kind_id)],
                            v_kept.slot), g.id, g.run_at, g.enqueued_at, g.claimed_at,
                   statement_timestamp(), g.worker, g.queue_id, g.kind_id, g.attempt, g.crash,
                   g.priority, g.stage, g.stages, 's', g.key, g.line_name, g.payload, g.bytes,
                   g.headers, g.errors, g.flow_id
            FROM gone g
            WHERE (g.queue_id = ANY (v_kept.silent))
                = ((g.kind_id = ANY (v_kept.unlike)) IS TRUE)
        )
        SELECT v_done || array_agg(g.id) AS done,
               array_agg(g.id) FILTER (WHERE g.key IS NOT NULL) AS keyed,
               array_agg(g.queue_id) FILTER (WHERE g.key IS NOT NULL) AS queues,
               array_agg(g.key) FILTER (WHERE g.key IS NOT NULL) AS keys,
               array_agg(g.id) FILTER (WHERE g.flow_id IS NOT NULL) AS linked,
               array_agg(g.flow_id) FILTER (WHERE g.flow_id IS NOT NULL) AS flows
        INTO v_gone FROM gone g;
        IF v_gone.keys IS NOT NULL THEN
            PERFORM jobq._end_keys(v_gone.keyed, v_gone.queues, v_gone.keys);
        END IF;
        v_linked := v_linked || v_gone.linked;
        v_flows := v_flows || v_gone.flows;
        CONTINUE WHEN cardinality(v_gone.done) = cardinality(v_ids);
        RETURN QUERY SELECT u.id, p_workers[i], p_claims[i],
                            jobq._busy_or_lost(u.id, p_workers[i], p_claims[i])
        FROM unnest(v_ids) AS u (id) WHERE v_gone.done IS NULL OR u.id <> ALL (v_gone.done);
    END LOOP;
    IF v_linked IS NOT NULL THEN
        RETURN QUERY SELECT a.* FROM jobq._succeeded(v_linked, v_flows) a;
    END IF;
    IF v_kept.awaited THEN PERFORM jobq._tell_waiters(p_ids); END IF;
END $$;

-- The same for jobs of which some have a result or a log, an element of each array for each
-- job. A job with a result goes into history even if its queue or kind keeps none; one that
-- has only a log does not. The jobs are found one by one, so that each keeps the place of its
-- result.
CREATE OR REPLACE FUNCTION jobq._complete_with(
    p_workers bigint[], p_claims bigint[], p_ids bigint[], p_results jsonb[], p_bytes bytea[],
    p_logs jsonb[] DEFAULT NULL, p_here boolean DEFAULT false)
RETURNS TABLE (id bigint, worker bigint, claim bigint, answer "char") LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_done bigint[];
    v_keyed bigint[];
    v_queues integer[];
    v_keys text[];
    v_linked bigint[];
    v_flows bigint[];
    v_kept record;
BEGIN
    PERFORM jobq._commit_waits(true);
    SELECT k.* INTO v_kept FROM jobq._kept() k;
    WITH gone AS (
        DELETE FROM jobq.job j USING (
            SELECT o.at, u.result, u.bytes, u.log
            FROM unnest(p_workers, p_claims, p_ids, p_results, p_bytes, p_logs)
                 AS u (worker, claim, id, result, bytes, log)
            CROSS JOIN LATERAL (
                SELECT l.ctid AS at FROM jobq.job l
                WHERE l.id = u.id AND l.worker = u.worker AND l.claim = u.claim
                FOR UPDATE SKIP LOCKED) AS o) AS held
        WHERE j.ctid = held.at
        RETURNING j.id, j.run_at, j.enqueued_at, j.claimed_at, j.worker, j.queue_id, j.kind_id,
                  j.attempt, j.crash, j.priority, j.stage, j.stages, j.flow_id, j.key,
                  j.line_name, j.payload, j.bytes, j.headers, j.errors, held.result,
                  held.bytes AS result_bytes, held.log
    ), history AS (
        INSERT INTO jobq.history (
            slot, id, run_at, enqueued_at, claimed_at, finished_at, worker, queue_id, kind_id,
            attempt, crash, priority, stage, stages, state, key, line_name, payload, bytes,
            headers, errors, result, result_bytes, log, flow_id)
        SELECT coalesce(v_kept.slots[array_position(v_kept.kinds, g.kind_id)], v_kept.slot),
               g.id, g.run_at, g.enqueued_at, g.claimed_at, statement_timestamp(), g.worker,
               g.queue_id, g.kind_id, g.attempt, g.crash, g.priority, g.stage, g.stages, 's',
               g.key, g.line_name, g.payload, g.bytes, g.headers, g.errors, g.result,
               g.result_bytes, g.log, g.flow_id
        FROM gone g
        WHERE (g.queue_id = ANY (v_kept.silent)) = ((g.kind_id = ANY (v_kept.unlike)) IS TRUE)
           OR num_nonnulls(g.result, g.result_bytes) > 0
    )
    SELECT array_agg(g.id), array_agg(g.id) FILTER (WHERE g.key IS NOT NULL),
           array_agg(g.queue_id) FILTER (WHERE g.key IS NOT NULL),
           array_agg(g.key) FILTER (WHERE g.key IS NOT NULL),
           array_agg(g.id) FILTER (WHERE g.flow_id IS NOT NULL),
           array_agg(g.flow_id) FILTER (WHERE g.flow_id IS NOT NULL)
    INTO v_done, v_keyed, v_queues, v_keys, v_linked, v_flows FROM gone g;
    IF v_keys IS NOT NULL THEN PERFORM jobq._end_keys(v_keyed, v_queues, v_keys); END IF;
    IF v_linked IS NOT NULL THEN
        RETURN QUERY SELECT a.* FROM jobq._succeeded(v_linked, v_flows, p_here) a;
    END IF;
    IF v_kept.awaited THEN PERFORM jobq._tell_waiters(p_ids); END IF;
    IF cardinality(v_done) = cardinality(p_ids) THEN RETURN; END IF;
    RETURN QUERY SELECT u.id, u.worker, u.claim, jobq._busy_or_lost(u.id, u.worker, u.claim)
    FROM unnest(p_workers, p_claims, p_ids) AS u (worker, claim, id)
    WHERE v_done IS NULL OR u.id <> ALL (v_done);
END $$;

-- Locks the kinds of the jobs that are to be parked, before anything else, for the whole
-- transaction: until it ends, unpark leaves the mark of the kind. Answers those that it has
-- got. Another worker may be parking jobs of the others, or an operator may have locked them.
CREATE OR REPLACE FUNCTION jobq._lock_kinds(p_ids bigint[], p_delays_us bigint[])
RETURNS integer[] LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(
        SELECT k.id FROM jobq.kind k
        WHERE k.id = ANY (ARRAY(
            SELECT j.kind_id FROM unnest(p_ids, p_delays_us) AS u (id, delay_us)
            CROSS JOIN LATERAL ( -- OFFSET: see heartbeat
                SELECT o.kind_id FROM jobq.job o WHERE o.id = u.id OFFSET 0) AS j
            WHERE u.delay_us < 0))
        ORDER BY k.id FOR NO KEY UPDATE SKIP LOCKED);
END $$;

-- Marks a kind as parked, once in a statement. Answers when its job may run: never, until a
-- worker with that kind registers; or at once, if one lives.
CREATE OR REPLACE FUNCTION jobq._park(p_kind integer) RETURNS timestamptz
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE jobq.kind k SET parked_at = statement_timestamp()
    WHERE k.id = p_kind AND k.parked_at IS DISTINCT FROM statement_timestamp();
    RETURN CASE WHEN jobq._kind_lives(p_kind) THEN statement_timestamp() ELSE 'infinity' END;
END $$;

-- The part of settle that ends a job, which it has locked. p_here: see promote.
CREATE OR REPLACE FUNCTION jobq._settle_end(
    p_id bigint, p_worker bigint, p_claim bigint, p_state "char", p_attempt integer,
    p_crash integer, p_entry jsonb, p_result jsonb, p_bytes bytea, p_log jsonb, p_here boolean)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE jobq.job j SET attempt = p_attempt, crash = p_crash
    WHERE j.id = p_id AND (j.attempt, j.crash) <> (p_attempt, p_crash);
    IF p_state = 's' AND num_nonnulls(p_result, p_bytes, p_log) > 0 THEN
        PERFORM jobq._complete_with(ARRAY[p_worker], ARRAY[p_claim], ARRAY[p_id],
                                   ARRAY[p_result], ARRAY[p_bytes], ARRAY[p_log], p_here);
    ELSE
        PERFORM jobq._finish(ARRAY[p_id], p_state, p_entry);
    END IF;
END $$;

-- Any other decision about claimed jobs, one element each: the state, stage, attempt, crash
-- and suspect flag that jobq.h decided, the delay until the job may run (-1: parked until a
-- worker has its kind), the error to append, the next stage's payload or, if it succeeded, its
-- result, and what the attempt has logged: an attempt that logged has an entry in errors, or
-- if the job succeeded its log in history. A job whose cancel was requested does not become
-- ready; it is cancelled. State w: it waits, see wait_here. p_wait: wait for a locked row, in
-- a caller's own transaction, instead of answering busy. p_snoozes: NULL is 0. The commit
-- waits for the disk, as that of complete does. A job that expires meanwhile does not sleep
-- longer than that, so that those who wait for it hear of it then.
CREATE OR REPLACE FUNCTION jobq._settle(
    p_workers bigint[], p_claims bigint[], p_ids bigint[], p_states "char"[],
    p_stages smallint[], p_attempts integer[], p_crashes integer[], p_suspects boolean[],
    p_delays_us bigint[], p_errors text[], p_payloads jsonb[], p_bytes bytea[],
    p_wait boolean DEFAULT false, p_logs jsonb[] DEFAULT NULL,
    p_snoozes integer[] DEFAULT NULL)
RETURNS TABLE (id bigint, worker bigint, claim bigint, answer "char")
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_job jobq.job;
    v_entry jsonb;
    v_run_at timestamptz;
    v_linked boolean := false;
    v_kinds integer[];
BEGIN
    PERFORM jobq._commit_waits(true);
    IF 0 > ANY (p_delays_us) THEN v_kinds := jobq._lock_kinds(p_ids, p_delays_us); END IF;
    FOR i IN 1 .. cardinality(p_ids) LOOP
        IF p_wait THEN
            SELECT j.* INTO v_job FROM jobq.job j
            WHERE j.id = p_ids[i] AND j.worker = p_workers[i] AND j.claim = p_claims[i]
            FOR UPDATE;
        ELSE
            SELECT j.* INTO v_job FROM jobq.job j
            WHERE j.id = p_ids[i] AND j.worker = p_workers[i] AND j.claim = p_claims[i]
            FOR UPDATE SKIP LOCKED;
        END IF;
        IF NOT FOUND OR p_delays_us[i] < 0 AND v_job.kind_id <> ALL (v_kinds) THEN
            RETURN QUERY SELECT p_ids[i], p_workers[i], p_claims[i],
                                jobq._busy_or_lost(p_ids[i], p_workers[i], p_claims[i]);
            CONTINUE;
        END IF;
        v_entry := CASE WHEN num_nonnulls(p_errors[i], p_logs[i]) > 0 THEN
            jsonb_strip_nulls(jsonb_build_object(
                'at', statement_timestamp(), 'stage', v_job.stage, 'attempt', v_job.attempt,
                'error', p_errors[i], 'log', p_logs[i])) END;
        IF p_states[i] IN ('r', 'w') AND v_job.cancel_requested_at IS NOT NULL THEN
            PERFORM jobq._finish(p_ids[i:i], 'c', v_entry);
        ELSIF p_states[i] NOT IN ('r', 'w') THEN
            PERFORM jobq._settle_end(v_job.id, v_job.worker, v_job.claim, p_states[i],
                                    p_attempts[i], p_crashes[i], v_entry, p_payloads[i],
                                    p_bytes[i], p_logs[i], p_wait);
        ELSE
            v_run_at := CASE WHEN p_delays_us[i] < 0 THEN jobq._park(v_job.kind_id) ELSE
                greatest(statement_timestamp(), least(v_job.expires_at, statement_timestamp()
                         + p_delays_us[i] * interval '1 microsecond')) END;
            UPDATE jobq.job j
            SET state = p_states[i], worker = NULL, claim = NULL, run_at = v_run_at,
                stage = p_stages[i], attempt = p_attempts[i], crash = p_crashes[i],
                suspect = p_suspects[i], alone = j.alone AND p_suspects[i],
                snoozes = nullif(p_snoozes[i], 0), errors = jobq._add_error(j.errors, v_entry),
                line = CASE WHEN p_states[i] = 'r' AND p_delays_us[i] = 0 THEN j.line END,
                payload = CASE WHEN p_bytes[i] IS NULL
                               THEN coalesce(p_payloads[i], j.payload) END,
                bytes = CASE WHEN p_payloads[i] IS NULL THEN coalesce(p_bytes[i], j.bytes) END
            WHERE j.id = p_ids[i];
            IF p_delays_us[i] = 0 AND p_stages[i] > v_job.stage THEN
                PERFORM jobq._wake(v_job.queue_id, 1);
            END IF;
            IF v_job.flow_id IS NOT NULL THEN PERFORM jobq._signal_look(p_ids[i]); END IF;
        END IF;
        v_linked := v_linked OR v_job.flow_id IS NOT NULL;
    END LOOP;
    IF v_linked THEN
        RETURN QUERY SELECT 0::bigint, 0::bigint, 0::bigint, 'r'::"char"
        WHERE jobq._promote(1000, p_wait) > 0;
    END IF;
END $$;

-- The same for one job, inside the handler's own transaction. It raises an error when the
-- lease is lost, so the handler's COMMIT cannot succeed. Exactly-once effects depend on this.
-- (The names *_here are of what may be part of a handler's transaction; *_of_claim of what is
-- about a claimed job, too, but in a transaction of its own.)
CREATE OR REPLACE FUNCTION jobq._settle_here(
    p_worker bigint, p_claim bigint, p_id bigint, p_state "char", p_stage smallint,
    p_attempt integer, p_crash integer, p_suspect boolean, p_delay_us bigint, p_error text,
    p_payload jsonb, p_bytes bytea, p_log jsonb DEFAULT NULL, p_snoozes integer DEFAULT 0)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM FROM jobq._settle(
        ARRAY[p_worker], ARRAY[p_claim], ARRAY[p_id], ARRAY[p_state], ARRAY[p_stage],
        ARRAY[p_attempt], ARRAY[p_crash], ARRAY[p_suspect], ARRAY[p_delay_us], ARRAY[p_error],
        ARRAY[p_payload], ARRAY[p_bytes], true, ARRAY[p_log], ARRAY[p_snoozes]) AS s
    WHERE s.answer <> 'r';
    IF FOUND THEN
        RAISE EXCEPTION 'lease lost on job %', p_id USING ERRCODE = 'JQ001',
            HINT = 'Another worker has, or had, this job: roll back.';
    END IF;
END $$;

-- The same for jobs of a batch, all or none. They are locked in the order of their ids, so
-- that two such transactions do not deadlock. Those in their last stage end together.
CREATE OR REPLACE FUNCTION jobq._settle_all_here(
    p_workers bigint[], p_claims bigint[], p_ids bigint[], p_states "char"[],
    p_stages smallint[], p_attempts integer[], p_crashes integer[], p_suspects boolean[],
    p_delays_us bigint[], p_errors text[], p_payloads jsonb[], p_bytes bytea[],
    p_logs jsonb[] DEFAULT NULL, p_snoozes integer[] DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE v_lost bigint;
BEGIN
    PERFORM FROM jobq.job j WHERE j.id = ANY (p_ids) ORDER BY j.id FOR UPDATE;
    IF 's' = ALL (p_states) THEN
        SELECT s.id INTO v_lost
        FROM jobq._complete_with(p_workers, p_claims, p_ids, p_payloads, p_bytes, p_logs,
                                 true) s
        WHERE s.answer <> 'r' LIMIT 1;
    ELSE
        SELECT s.id INTO v_lost
        FROM jobq._settle(p_workers, p_claims, p_ids, p_states, p_stages, p_attempts,
                          p_crashes, p_suspects, p_delays_us, p_errors, p_payloads, p_bytes,
                          true, p_logs, p_snoozes) s
        WHERE s.answer <> 'r' LIMIT 1;
    END IF;
    IF FOUND THEN
        RAISE EXCEPTION 'lease lost on job %', v_lost USING ERRCODE = 'JQ001',
            HINT = 'Another worker has, or had, this job: roll back.';
    END IF;
END $$;

-- What a handler's jobq_call_hold does: see hold. Only the worker that has the job may do it.
-- p_queue: its queue is held, not its line.
CREATE OR REPLACE FUNCTION jobq._hold_of_claim(
    p_worker bigint, p_claim bigint, p_id bigint, p_queue boolean, p_delay_us bigint,
    p_why text)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_queue text;
    v_line text;
BEGIN
    SELECT q.name, j.line_name INTO v_queue, v_line
    FROM jobq.job j JOIN jobq.queue q ON q.id = j.queue_id
    WHERE j.id = p_id AND j.worker = p_worker AND j.claim = p_claim;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease lost on job %', p_id USING ERRCODE = 'JQ001',
            HINT = 'Another worker has, or had, this job.';
    END IF;
    IF NOT p_queue AND v_line IS NULL THEN
        PERFORM jobq._refuse('line', 'not allowed: the job has none');
    END IF;
    PERFORM jobq._hold_from(v_queue, CASE WHEN NOT p_queue THEN v_line END,
                           statement_timestamp(), statement_timestamp()
                           + p_delay_us * interval '1 microsecond', p_why);
END $$;
