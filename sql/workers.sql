-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: workers, and kinds without a handler.

-- Which database this is. A promoted standby is the same one. A database that was restored
-- from a dump, replicated logically or upgraded by pg_upgrade is another one. NULL: this
-- server does not let the schema's owner know.
CREATE OR REPLACE FUNCTION jobq._here() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT has_function_privilege('pg_control_system()', 'EXECUTE') THEN RETURN NULL; END IF;
    RETURN (SELECT format('%s/%s', c.system_identifier, d.oid)
            FROM pg_control_system() c, pg_database d WHERE d.datname = current_database());
END $$;

-- Whether this is a copy that nobody has called its home. It claims and fires nothing, because
-- the original does; otherwise mail would be sent twice from a developer's copy.
CREATE OR REPLACE FUNCTION jobq._is_copy() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce((SELECT m.home <> jobq._here() FROM jobq.meta m), false);
END $$;

-- Whether a limit over all workers is set for one of these queues, or for a kind of theirs.
CREATE OR REPLACE FUNCTION jobq._limited(p_queues integer[]) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM jobq.quota u WHERE u.queue_id = ANY (p_queues));
END $$;

-- Registers a worker under a new random id. Its queues and kinds are created where they do not
-- exist, in the order of their names, as by kind_ids. Kinds are pairs: element i of
-- p_kind_queues (an index into p_queues) and of p_kinds. Ids come back in the order of the
-- arrays. p_library: see the table worker. p_host and p_pid: its process, for people.
CREATE OR REPLACE FUNCTION jobq._register(
    p_worker bigint, p_name text, p_lease_us bigint, p_queues text[], p_kind_queues integer[],
    p_kinds text[], p_library integer DEFAULT 0, p_host text DEFAULT NULL,
    p_pid integer DEFAULT NULL, OUT queue_ids integer[], OUT kind_ids integer[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE i integer;
BEGIN
    queue_ids := '{}';
    kind_ids := '{}';
    IF jobq._is_copy() THEN
        RAISE EXCEPTION 'this database is a copy of another one, so nothing is claimed here'
            USING ERRCODE = 'JQ004', HINT = 'If its jobs and schedules are to run here, and '
                'no longer there: select jobq.renew(home => true).';
    END IF;
    FOR i IN SELECT u.n FROM unnest(p_queues) WITH ORDINALITY AS u (name, n)
             ORDER BY u.name COLLATE "C" LOOP
        queue_ids[i] := jobq._queue_id(p_queues[i]);
    END LOOP;
    FOR i IN SELECT u.n FROM unnest(p_kinds) WITH ORDINALITY AS u (name, n)
             ORDER BY queue_ids[p_kind_queues[u.n]], u.name COLLATE "C" LOOP
        kind_ids[i] := jobq._kind_id(queue_ids[p_kind_queues[i]], p_kinds[i]);
    END LOOP;
    IF p_library = 0 AND jobq._limited(queue_ids) THEN
        RAISE EXCEPTION 'a queue of this worker has a limit over all workers, which a worker '
            'in SQL does not keep'
            USING ERRCODE = 'JQ004', HINT = 'Use a limit of lines, or a worker in C.';
    END IF;
    INSERT INTO jobq.worker (id, name, host, pid, lease_us, beat_at, expires_at, queues, kinds,
                             library)
    VALUES (p_worker, p_name, p_host, p_pid, p_lease_us, statement_timestamp(),
            statement_timestamp() + p_lease_us * interval '1 microsecond', queue_ids,
            kind_ids, p_library);
END $$;

-- The policies of these queues, in the order of the array; then those of this worker's kinds
-- that differ from their queue's, as they are with what the queue adds. kind_id: NULL for a
-- queue. hold_us: how long nothing of the queue is to be claimed; 0: it is not held.
CREATE OR REPLACE FUNCTION jobq._policies(p_queues integer[], p_worker bigint DEFAULT NULL)
RETURNS TABLE (id integer, max_attempts integer, max_crashes integer, snoozes_max integer,
               backoff_curve text, backoff_base_us bigint, backoff_cap_us bigint,
               backoff_floor_us bigint, backoff_jitter_permille integer, timeout_us bigint,
               stages_max smallint, attempts_span_stages boolean, paused boolean,
               priority_min smallint, kind_id integer, lines boolean, ageing boolean,
               hold_us bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT q.id, coalesce(k.max_attempts, q.max_attempts), q.max_crashes,
           coalesce(k.snoozes_max, q.snoozes_max, 0),
           coalesce(k.backoff_curve, q.backoff_curve),
           coalesce(k.backoff_base_us, q.backoff_base_us),
           coalesce(k.backoff_cap_us, q.backoff_cap_us),
           coalesce(k.backoff_floor_us, q.backoff_floor_us),
           coalesce(k.backoff_jitter_permille, q.backoff_jitter_permille),
           coalesce(k.timeout_us, q.timeout_us, 0::bigint), q.stages_max,
           q.attempts_span_stages, q.paused_at IS NOT NULL, q.priority_min, k.id, q.lines,
           q.ageing, CASE WHEN clock_timestamp() BETWEEN q.held_at AND q.hold_until
               THEN greatest((extract(epoch FROM q.hold_until - statement_timestamp())
                              * 1000000)::bigint, 0) ELSE 0 END
    FROM unnest(p_queues) WITH ORDINALITY AS u (id, n) JOIN jobq.queue q ON q.id = u.id
    CROSS JOIN LATERAL (
        SELECT (NULL::jobq.kind).*
        UNION ALL
        SELECT o.* FROM jobq.worker w JOIN jobq.kind o ON o.id = ANY (w.kinds)
        WHERE w.id = p_worker AND o.queue_id = q.id
          AND num_nonnulls(o.max_attempts, o.snoozes_max, o.backoff_base_us, o.timeout_us)
              > 0) AS k
    ORDER BY k.id IS NOT NULL, u.n;
END $$;

-- A part of heartbeat, and under its settings: the late workers that it answers.
CREATE OR REPLACE FUNCTION jobq._late_workers(
    p_worker bigint, OUT late bigint[], OUT late_beats bigint[], OUT late_leases_us bigint[],
    OUT overdue integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT coalesce(array_agg(l.id), '{}'), coalesce(array_agg(l.beat), '{}'),
           coalesce(array_agg(l.lease_us), '{}'), count(*) FILTER (WHERE l.expired AND EXISTS (
               SELECT FROM jobq.claim c WHERE c.worker = l.id AND c.jobs <> '{}'))
    INTO late, late_beats, late_leases_us, overdue
    FROM (SELECT w.id, CASE WHEN w.dead_at IS NULL THEN w.beat ELSE -1 END AS beat, w.lease_us,
                 w.dead_at IS NOT NULL
                 OR clock_timestamp() NOT BETWEEN w.beat_at AND w.expires_at AS expired
          FROM jobq.worker w
          WHERE w.id <> p_worker
            AND CASE WHEN w.dead_at IS NULL
                THEN clock_timestamp() NOT BETWEEN w.beat_at AND w.expires_at
                     - w.lease_us * 6 / 10 * interval '1 microsecond'
                ELSE EXISTS (SELECT FROM jobq.claim c WHERE c.worker = w.id AND c.jobs <> '{}')
                END
          ORDER BY row_number() OVER (PARTITION BY w.dead_at IS NULL ORDER BY
              CASE WHEN w.dead_at IS NULL THEN w.expires_at END, random()) LIMIT 32) l;
END $$;

-- Whether another worker holds jobs, or messages of these queues.
CREATE OR REPLACE FUNCTION jobq._others_hold(p_worker bigint, p_queues integer[])
RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM jobq.claim c WHERE c.worker <> p_worker AND c.jobs <> '{}')
        OR EXISTS (SELECT FROM jobq.partition p
                   WHERE p.worker <> p_worker AND p.queue_id = ANY (p_queues)
                     AND clock_timestamp() BETWEEN p.beat_at AND p.lease_until);
END $$;

-- The part of a heartbeat's answer that is about policies and kinds: see heartbeat.
CREATE OR REPLACE FUNCTION jobq._heartbeat_kinds(
    p_queues integer[], p_kinds integer[], p_beat bigint, OUT policy bigint,
    OUT every_kind boolean, OUT kinds integer[], OUT parked integer[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    policy := (SELECT sum(hash_record_extended(q, 0) >> 8) FROM jobq.queue q
               WHERE q.id = ANY (p_queues));
    SELECT coalesce(array_agg(k.id) FILTER (WHERE k.paused_at IS NULL), '{}'),
           coalesce(array_agg(k.id) FILTER (WHERE k.parked_at IS NOT NULL), '{}'),
           count(k.paused_at) = 0,
           policy + coalesce(sum(hashtextextended(ROW(
               k.id, k.max_attempts, k.snoozes_max, k.backoff_curve, k.backoff_base_us,
               k.backoff_cap_us, k.backoff_floor_us, k.backoff_jitter_permille,
               k.timeout_us)::text, 0) >> 16)
           FILTER (WHERE num_nonnulls(k.max_attempts, k.snoozes_max, k.backoff_base_us,
                                      k.timeout_us) > 0), 0)
    INTO kinds, parked, every_kind, policy
    FROM jobq.kind k WHERE k.id = ANY (p_kinds);
    every_kind := every_kind AND NOT EXISTS (
        SELECT FROM jobq.kind k
        WHERE k.queue_id = ANY (p_queues) AND k.id <> ALL (p_kinds));
    IF NOT every_kind THEN
        kinds := kinds || jobq._strays(p_queues, p_kinds, p_beat
                                      % ((SELECT max(k.id) FROM jobq.kind k) / 256 + 1));
    END IF;
END $$;

-- The part of a heartbeat's answer that is about suspects. p_kinds: those that the worker may
-- claim; NULL: all.
CREATE OR REPLACE FUNCTION jobq._heartbeat_suspects(
    p_queues integer[], p_kinds integer[], OUT suspects boolean, OUT alone_queues integer[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    suspects := EXISTS (
        SELECT FROM jobq.job j WHERE j.suspect AND NOT j.alone AND j.state = 'r'
          AND j.queue_id = ANY (p_queues) AND j.run_at <= statement_timestamp()
          AND (p_kinds IS NULL OR j.kind_id = ANY (p_kinds))
          AND jobq._suspect_goes(j.queue_id, j.line_name));
    alone_queues := ARRAY(
        SELECT DISTINCT j.queue_id FROM jobq.job j
        WHERE j.suspect AND j.alone AND j.state = 'r' AND j.queue_id = ANY (p_queues)
          AND j.run_at <= statement_timestamp()
          AND (p_kinds IS NULL OR j.kind_id = ANY (p_kinds))
          AND jobq._suspect_goes(j.queue_id, j.line_name));
END $$;

-- Renews the lease and answers with the news, in one statement:
--   alive     false: this worker was declared dead, and nothing was renewed: register again.
--             Also false when one of its queues was deleted: registering finds the new id;
--             in a copy of its database; and for a worker in SQL that has slept while a limit
--             was set: registering tells it so.
--   cancel    running jobs of this worker whose cancel was requested
--   policy    a number that changes when a policy, a pause or the range of lanes changes
--   suspects  a suspect that this worker may claim is ready, and may run beside other work
--   alone_queues  queues with a suspect that this worker may claim and that must run alone
--   overdue   how many of the late workers have an expired lease and still hold jobs
--   every_kind  claims may take jobs of every kind: this worker has all kinds of its queues,
--             and none of them is paused
--   kinds     what claims may take otherwise: this worker's kinds that are not paused, and
--             some strays
--   parked    kinds of this worker with parked jobs
--   now_at    this database's clock
--   others    another worker holds jobs or messages; only told to one that rests
--   tick_us   microseconds until a schedule of this worker's queues fires; NULL: none will
--   late_*    workers whose lease runs out soon, to be watched (a dead worker that still has
--             claims: beat -1). If there are too many, half of the places are for dead ones,
--             chosen at random, because the claims of some may stay locked.
--   written   false: some progress was not written, see progress_write
--   quotas ... waits_us  see permit_exchange; NULL if no limit of its queues or kinds is set
-- p_settled: numbers of claims whose jobs are all settled; their rows are removed. p_number
-- to p_needed: see permit_exchange; NULL from a worker that knows of no limit. p_tally to
-- p_totals: see tally_take; NULL if nothing was counted since the latest one.
-- p_progress_claims and what follows: see progress_write; NULL if nothing changed. p_rest_us:
-- an idle worker may send its next heartbeat as much later, so its lease is as much longer.
-- The lease counts from the moment of the UPDATE. A heartbeat that waited for a lock may
-- arrive after a later one, and must not shorten the lease that the later one renewed.
-- Jobs are looked up one by one by their ids; OFFSET prevents a join. While a held snapshot
-- pins dead rows, Postgres knows of few live ones in a large index, and expects a look-up in
-- it to be expensive. A join then read the whole index: 2 s for 20 million rows, with every
-- heartbeat.
CREATE OR REPLACE FUNCTION jobq._heartbeat(
    p_worker bigint, p_lease_us bigint, p_settled bigint[], p_number bigint DEFAULT NULL,
    p_quotas integer[] DEFAULT NULL, p_running integer[] DEFAULT NULL,
    p_wanted integer[] DEFAULT NULL, p_tokens integer[] DEFAULT NULL,
    p_returned integer[] DEFAULT NULL, p_needed integer[] DEFAULT NULL,
    p_tally bigint DEFAULT NULL, p_tally_queues integer[] DEFAULT NULL,
    p_tally_kinds integer[] DEFAULT NULL, p_totals bigint[] DEFAULT NULL,
    p_progress_claims bigint[] DEFAULT NULL, p_progress_jobs bigint[] DEFAULT NULL,
    p_permilles integer[] DEFAULT NULL, p_notes text[] DEFAULT NULL,
    p_rest_us bigint DEFAULT 0, OUT alive boolean,
    OUT now_at timestamptz, OUT cancel bigint[], OUT policy bigint, OUT suspects boolean,
    OUT every_kind boolean, OUT kinds integer[], OUT parked integer[], OUT late bigint[],
    OUT late_beats bigint[], OUT late_leases_us bigint[], OUT alone_queues integer[],
    OUT overdue integer, OUT tick_us bigint, OUT quotas integer[], OUT quota_queues integer[],
    OUT quota_kinds integer[], OUT maxima integer[], OUT held integer[], OUT chunks integer[],
    OUT tokens integer[], OUT waits_us bigint[], OUT written boolean, OUT others boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_worker jobq.worker;
BEGIN
    UPDATE jobq.worker w
    SET beat = w.beat + 1, beat_at = statement_timestamp(), lease_us = p_lease_us,
        expires_at = clock_timestamp() + (p_lease_us + p_rest_us) * interval '1 microsecond'
    WHERE w.id = p_worker AND w.dead_at IS NULL
    RETURNING w.* INTO v_worker;
    alive := FOUND;
    now_at := statement_timestamp();
    IF jobq._is_copy() OR v_worker.library = 0 AND jobq._limited(v_worker.queues) OR EXISTS (
            SELECT FROM unnest(v_worker.queues) AS u (id)
            WHERE NOT EXISTS (SELECT FROM jobq.queue q WHERE q.id = u.id)) THEN
        UPDATE jobq.worker w SET dead_at = statement_timestamp() WHERE w.id = p_worker;
        PERFORM jobq._permits_free(p_worker);
        PERFORM jobq._tally_fold(ARRAY[p_worker]);
        alive := false;
    END IF;
    IF NOT alive THEN RETURN; END IF;
    IF p_tally IS NOT NULL THEN
        PERFORM jobq._tally_take(p_worker, p_tally, p_tally_queues, p_tally_kinds, p_totals);
    END IF;
    -- Whoever cancels many jobs may hold one. It stays then until the worker leaves.
    DELETE FROM jobq.claim c WHERE c.ctid = ANY (ARRAY(
        SELECT o.ctid FROM jobq.claim o
        WHERE o.worker = p_worker AND o.number = ANY (p_settled) FOR UPDATE SKIP LOCKED));
    written := p_progress_jobs IS NULL OR jobq._progress_write(
        p_worker, p_progress_claims, p_progress_jobs, p_permilles, p_notes);
    cancel := ARRAY(
        SELECT asked.id FROM jobq.claim c, unnest(c.cancel) AS asked (id)
        WHERE c.worker = p_worker AND c.cancel IS NOT NULL AND EXISTS (
            SELECT FROM jobq.job j
            WHERE j.id = asked.id AND j.worker = c.worker AND j.claim = c.number OFFSET 0));
    SELECT n.* INTO policy, every_kind, kinds, parked
    FROM jobq._heartbeat_kinds(v_worker.queues, v_worker.kinds, v_worker.beat) n;
    SELECT n.* INTO suspects, alone_queues
    FROM jobq._heartbeat_suspects(v_worker.queues, CASE WHEN NOT every_kind THEN kinds END) n;
    tick_us := jobq._next_tick(v_worker.queues);
    PERFORM jobq._promote_late(1000);
    SELECT l.* INTO late, late_beats, late_leases_us, overdue
    FROM jobq._late_workers(p_worker) l;
    others := p_rest_us > 0 AND jobq._others_hold(p_worker, v_worker.queues);
    IF EXISTS (SELECT FROM jobq.quota q WHERE q.queue_id = ANY (v_worker.queues)) THEN
        SELECT x.* INTO quotas, quota_queues, quota_kinds, maxima, held, chunks, tokens,
                        waits_us
        FROM jobq._permit_exchange(
            p_worker, p_number, v_worker.queues, v_worker.kinds, p_quotas, p_running, p_wanted,
            p_tokens, p_returned, p_needed) x;
    END IF;
END $$;

-- A worker that stops calls this: it no longer sleeps, serves no kind, and needs no rescue. If
-- it still holds jobs, which it should not, they are left for a rescuer; otherwise its row is
-- removed. If it has burned numbers, they stay until prune, and so does the worker's row,
-- marked dead. p_tally and what follows: as in heartbeat.
CREATE OR REPLACE FUNCTION jobq._deregister(
    p_worker bigint, p_tally bigint DEFAULT NULL, p_tally_queues integer[] DEFAULT NULL,
    p_tally_kinds integer[] DEFAULT NULL, p_totals bigint[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM jobq._need_read_committed();
    -- First, as in rescue: it waits for a claim under way, whose row the next statements see.
    PERFORM FROM jobq.worker w WHERE w.id = p_worker FOR UPDATE;
    PERFORM jobq._tally_take(w.id, p_tally, p_tally_queues, p_tally_kinds, p_totals)
    FROM jobq.worker w WHERE w.id = p_worker AND w.dead_at IS NULL AND p_tally IS NOT NULL;
    DELETE FROM jobq.sleeper s WHERE s.worker = p_worker;
    DELETE FROM jobq.claim c WHERE c.worker = p_worker AND c.jobs <> '{}' AND NOT EXISTS (
        SELECT FROM jobq.job j
        WHERE j.id = ANY (c.jobs) AND j.worker = c.worker AND j.claim = c.number);
    PERFORM jobq._permits_free(p_worker);
    DELETE FROM jobq.worker w WHERE w.id = p_worker AND NOT EXISTS (
        SELECT FROM jobq.claim c WHERE c.worker = p_worker);
    UPDATE jobq.worker w SET dead_at = statement_timestamp()
    WHERE w.id = p_worker AND w.dead_at IS NULL;
    PERFORM jobq._tally_fold(ARRAY[p_worker]);
END $$;

-- Announces that a worker sleeps in these queues, or withdraws that. The last call wins.
CREATE OR REPLACE FUNCTION jobq._sleep(p_worker bigint, p_queues integer[], p_asleep boolean)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    IF p_asleep THEN
        PERFORM FROM jobq.worker w WHERE w.id = p_worker AND w.dead_at IS NULL FOR SHARE;
        IF NOT FOUND THEN RETURN; END IF;
        INSERT INTO jobq.sleeper (queue_id, worker)
        SELECT q, p_worker FROM unnest(p_queues) q ORDER BY q ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM jobq.sleeper s WHERE s.queue_id = ANY (p_queues) AND s.worker = p_worker;
    END IF;
END $$;

-- A part of rescue: handles the jobs of a dead worker's claim that ran alone or whose cancel
-- was requested. queues: of the jobs that are ready again.
CREATE OR REPLACE FUNCTION jobq._rescue_singly(
    p_claim jobq.claim, OUT rescued integer, OUT failed integer, OUT queues integer[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_job record;
BEGIN
    rescued := 0;
    failed := 0;
    queues := '{}';
    FOR v_job IN
        SELECT j.id, j.queue_id, j.stage, least(j.crash, 2147483646) + 1 AS crashes,
               j.attempt, j.cancel_requested_at, q.max_crashes,
               coalesce(j.max_attempts, k.max_attempts, q.max_attempts) AS attempts
        FROM jobq.job j JOIN jobq.queue q ON q.id = j.queue_id
        JOIN jobq.kind k ON k.id = j.kind_id
        WHERE j.id = ANY (p_claim.jobs) AND j.worker = p_claim.worker
          AND j.claim = p_claim.number AND (j.alone OR j.cancel_requested_at IS NOT NULL)
        FOR UPDATE OF j SKIP LOCKED LOOP
        IF v_job.cancel_requested_at IS NOT NULL THEN
            PERFORM jobq._finish(ARRAY[v_job.id], 'c', NULL);
        ELSE
            UPDATE jobq.job j SET crash = v_job.crashes WHERE j.id = v_job.id;
            IF v_job.crashes >= v_job.max_crashes OR v_job.attempt >= v_job.attempts THEN
                failed := failed + 1;
                PERFORM jobq._finish(ARRAY[v_job.id], 'f', jsonb_build_object(
                    'at', statement_timestamp(), 'stage', v_job.stage,
                    'attempt', v_job.attempt, 'error',
                    CASE WHEN v_job.crashes >= v_job.max_crashes
                         THEN format('Max crashes (%s) exceeded: worker died',
                                     v_job.max_crashes)
                         ELSE format('Max retries (%s) exceeded: worker died',
                                     v_job.attempts) END));
            ELSE
                UPDATE jobq.job j
                SET state = 'r', worker = NULL, claim = NULL,
                    run_at = statement_timestamp()
                WHERE j.id = v_job.id;
                rescued := rescued + 1;
                queues := queues || v_job.queue_id;
            END IF;
        END IF;
    END LOOP;
END $$;

-- Takes the jobs of a dead worker, after its rescuer has watched it: jobq__victim in jobq.h
-- and work_rescue decide that. Death is an event on the worker's row: the row is marked if
-- its lease has expired and its beat is still the one that the rescuer saw (checked again
-- under the row lock), and the jobs are taken in the same transaction. Locked jobs are skipped
-- and taken by a later call. p_limit claims a call. A dead worker may have held many
-- healthy jobs: law (6) of jobq.h.
--   cancel requested    cancelled
--   no suspect          ready, its attempt given back, and now a suspect: it will run in a
--                       claim of its own
--   suspect             ready, its attempt given back, and now it must run alone
--   ran alone           the attempt stays and its crash count rises; at a limit it is failed
CREATE OR REPLACE FUNCTION jobq._rescue(
    p_victim bigint, p_beat bigint, p_limit integer, OUT dead boolean, OUT rescued integer,
    OUT failed integer, OUT more boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_claim jobq.claim;
    v_count integer;
    v_queues integer[] := '{}';
BEGIN
    rescued := 0;
    failed := 0;
    UPDATE jobq.worker w SET dead_at = statement_timestamp()
    WHERE w.id = p_victim AND w.dead_at IS NULL AND w.beat = p_beat
      AND clock_timestamp() NOT BETWEEN w.beat_at AND w.expires_at;
    PERFORM FROM jobq.worker w WHERE w.id = p_victim AND w.dead_at IS NULL;
    dead := NOT FOUND;
    more := false;
    IF NOT dead THEN RETURN; END IF;
    DELETE FROM jobq.sleeper s WHERE s.worker = p_victim;
    FOR v_claim IN SELECT * FROM jobq.claim c WHERE c.worker = p_victim AND c.jobs <> '{}'
                   ORDER BY c.number LIMIT p_limit FOR UPDATE SKIP LOCKED LOOP
        SELECT rescued + r.back, failed + r.lost, v_queues || r.queues
        INTO rescued, failed, v_queues
        FROM jobq._rescue_singly(v_claim) AS r (back, lost, queues);
        WITH back AS (
            UPDATE jobq.job j
            SET state = 'r', worker = NULL, claim = NULL, suspect = true, alone = j.suspect,
                attempt = greatest(j.attempt - 1, 0), run_at = statement_timestamp()
            WHERE j.ctid = ANY (ARRAY(
                SELECT held.ctid FROM jobq.job held
                WHERE held.id = ANY (v_claim.jobs) AND held.worker = p_victim
                  AND held.claim = v_claim.number AND NOT held.alone
                  AND held.cancel_requested_at IS NULL FOR UPDATE SKIP LOCKED))
            RETURNING j.queue_id
        )
        SELECT count(*), v_queues || array_agg(DISTINCT b.queue_id)
        INTO v_count, v_queues FROM back b;
        rescued := rescued + v_count;
        DELETE FROM jobq.claim c WHERE c.worker = p_victim AND c.number = v_claim.number
           AND NOT EXISTS (SELECT FROM jobq.job j WHERE j.id = ANY (v_claim.jobs)
                           AND j.worker = p_victim AND j.claim = v_claim.number);
    END LOOP;
    more := EXISTS (SELECT FROM jobq.claim c WHERE c.worker = p_victim AND c.jobs <> '{}');
    PERFORM jobq._permits_free(p_victim);
    PERFORM jobq._tally_fold(ARRAY[p_victim]);
    PERFORM jobq._wake(q.id, rescued) FROM (SELECT DISTINCT unnest(v_queues) AS id) q
    WHERE q.id IS NOT NULL;
END $$;

-- What a worker calls: rescue, and the jobs that it failed, for hooks. A row each; one with a
-- NULL id if there are none. Payloads are left out, because one that cannot be sent must not
-- keep its job from being rescued.
CREATE OR REPLACE FUNCTION jobq._rescue_jobs(p_victim bigint, p_beat bigint, p_limit integer)
RETURNS TABLE (dead boolean, rescued integer, more boolean, id bigint, queue text, kind text,
               attempt integer, crash integer, stage smallint, error text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE v_failed integer;
BEGIN
    SELECT r.dead, r.rescued, r.more, r.failed INTO dead, rescued, more, v_failed
    FROM jobq._rescue(p_victim, p_beat, p_limit) r;
    IF v_failed > 0 THEN
        RETURN QUERY
        SELECT dead, rescued, more, f.id, q.name, k.name, f.attempt, f.crash, f.stage,
               f.errors -> -1 ->> 'error'
        FROM jobq.queue q
        JOIN jobq.failed f ON f.queue_id = q.id AND f.finished_at = statement_timestamp()
        JOIN jobq.kind k ON k.id = f.kind_id
        WHERE f.worker = p_victim;
        IF FOUND THEN RETURN; END IF;
    END IF;
    RETURN NEXT;
END $$;

-- ---- kinds without a handler -------------------------------------------------------------

-- Whether a living worker has a handler for this kind. Uses the index on workers' kinds. A
-- lease from before the clock ran back counts until its worker beats, or is declared dead.
CREATE OR REPLACE FUNCTION jobq._kind_lives(p_kind integer) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_indexscan = off SET jit = off AS $$
BEGIN
    RETURN EXISTS (SELECT FROM jobq.worker w
                   WHERE w.kinds @> ARRAY[p_kind] AND w.dead_at IS NULL
                     AND w.expires_at BETWEEN statement_timestamp() AND 'infinity');
END $$;

-- The kinds of a queue, for a program that has one handler for all of them.
CREATE OR REPLACE FUNCTION jobq._kinds_of(p_queue text) RETURNS SETOF text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY SELECT k.name FROM jobq.kind k
    WHERE k.queue = p_queue COLLATE "C" ORDER BY k.name;
END $$;

-- Strays: kinds of these queues, not paused, that no living worker has. A worker may claim
-- their jobs in order to park them. A page is 256 ids, and each heartbeat looks at the next
-- page. So the cost does not grow with the number of kinds, and every kind gets its turn.
CREATE OR REPLACE FUNCTION jobq._strays(p_queues integer[], p_kinds integer[], p_page bigint)
RETURNS integer[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_indexscan = off SET jit = off AS $$
BEGIN
    RETURN ARRAY(
        SELECT k.id FROM jobq.kind k
        WHERE k.id BETWEEN p_page * 256 AND p_page * 256 + 255 AND k.paused_at IS NULL
          AND p_queues @> ARRAY[k.queue_id] AND k.id <> ALL (p_kinds)
          AND NOT EXISTS ( -- as in kind_lives; OFFSET prevents a join
              SELECT FROM jobq.worker w
              WHERE w.kinds @> ARRAY[k.id] AND w.dead_at IS NULL
                AND w.expires_at BETWEEN statement_timestamp() AND 'infinity' OFFSET 0));
END $$;

-- Returns parked jobs of a kind to their lanes, a bounded number a call, and answers how many.
-- When none is left the kind is no longer marked. The mark stays, so that a heartbeat asks
-- again, if somebody has locked a job, or the kind: an operator, or a worker that is just
-- parking jobs of it.
CREATE OR REPLACE FUNCTION jobq._unpark(p_kind integer, p_limit integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_free boolean;
    v_ids bigint[];
    v_count integer;
BEGIN
    v_free := EXISTS (SELECT FROM jobq.kind k WHERE k.id = p_kind FOR UPDATE SKIP LOCKED);
    v_ids := ARRAY(
        SELECT parked.id
        FROM jobq.kind k JOIN jobq.queue q ON q.id = k.queue_id
        CROSS JOIN generate_series(q.priority_min, 9) AS lane (priority)
        CROSS JOIN generate_series(0, 15) AS s (stage)
        CROSS JOIN LATERAL (
            SELECT p.id FROM jobq.job p
            WHERE p.queue_id = q.id AND p.priority = lane.priority AND p.stage = s.stage
              AND NOT p.suspect AND p.line IS NULL
              AND p.run_at = 'infinity' AND p.kind_id = p_kind
              AND p.state = 'r'
            LIMIT p_limit) AS parked
        WHERE k.id = p_kind AND s.stage < q.stages_max
        LIMIT p_limit)
    || ARRAY(
        SELECT p.id FROM jobq.job p
        WHERE p.suspect AND p.kind_id = p_kind AND p.state = 'r' AND p.run_at = 'infinity'
          AND p.queue_id = (SELECT k.queue_id FROM jobq.kind k WHERE k.id = p_kind));
    UPDATE jobq.job j SET run_at = statement_timestamp()
    WHERE j.ctid = ANY (ARRAY(
        SELECT p.ctid FROM jobq.job p
        WHERE p.id = ANY (v_ids) AND p.state = 'r' AND p.run_at = 'infinity'
        FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_free AND v_count = cardinality(v_ids) AND v_count < p_limit THEN
        UPDATE jobq.kind k SET parked_at = NULL WHERE k.id = p_kind;
    END IF;
    RETURN v_count;
END $$;
