-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: housekeeping.

-- Repairs running jobs that no rescuer would find, because their claim's row or their worker's
-- row is gone. The functions here never cause that; a row deleted by hand or lost in a partial
-- restore does. Both rows are written again, the worker's as that of a dead worker, whose jobs
-- others then take.
-- p_limit: how many lines are looked at, from a random one on.
-- Workers call it. Answers nothing. Errors: 22023.
--     select jobq.mend(100);
CREATE OR REPLACE FUNCTION jobq.mend(p_limit integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
BEGIN
    PERFORM jobq._check_limit(p_limit);
    -- Only the front of each lane is read, because an old running job is soon there.
    INSERT INTO jobq.claim AS c (worker, number, claimed_at, jobs)
    SELECT j.worker, j.claim, min(j.claimed_at), array_agg(j.id)
    FROM jobq.queue q
    CROSS JOIN generate_series(q.priority_min, 9) AS lane (priority)
    CROSS JOIN generate_series(0, q.stages_max - 1) AS s (stage)
    CROSS JOIN LATERAL (
        (SELECT o.* FROM jobq.job o
         WHERE o.queue_id = q.id AND o.priority = lane.priority AND o.stage = s.stage
           AND NOT o.suspect AND o.line IS NULL ORDER BY o.run_at, o.id LIMIT p_limit)
        UNION ALL
        (SELECT o.* FROM unnest(jobq._next_lines(
             q.id, lane.priority::smallint, s.stage::smallint,
             (random() * 1.8e19 - 9e18)::bigint, 9223372036854775807, p_limit)) AS l (no)
         CROSS JOIN LATERAL (
             SELECT f.* FROM jobq.job f
             WHERE f.queue_id = q.id AND f.priority = lane.priority AND f.stage = s.stage
               AND NOT f.suspect AND f.line = l.no ORDER BY f.run_at, f.id LIMIT 10) AS o
         WHERE q.lines)
        UNION ALL
        (SELECT o.* FROM jobq.job o
         WHERE o.queue_id = q.id AND o.priority = lane.priority AND o.stage = s.stage
           AND o.suspect ORDER BY o.run_at, o.id LIMIT p_limit)) AS j
    WHERE j.state = 'x' AND NOT EXISTS (
        SELECT FROM jobq.claim known
        WHERE known.worker = j.worker AND known.number = j.claim AND j.id = ANY (known.jobs))
    GROUP BY j.worker, j.claim
    ON CONFLICT (worker, number) DO UPDATE SET jobs = c.jobs || excluded.jobs;
    INSERT INTO jobq.worker (id, name, lease_us, beat_at, expires_at, dead_at, queues, kinds)
    SELECT DISTINCT c.worker, 'unknown', 1, statement_timestamp(), statement_timestamp(),
           statement_timestamp(), '{}'::integer[], '{}'::integer[]
    FROM jobq.claim c
    WHERE c.jobs <> '{}' AND NOT EXISTS (SELECT FROM jobq.worker w WHERE w.id = c.worker)
    ON CONFLICT (id) DO NOTHING;
END $$;

-- Housekeeping that one worker does now and then, in bounded pages. It deletes old failed
-- jobs, forgotten keys, old dead letters (except those being replayed), unused lines, workers
-- that have been dead for a day, and what they have left. Safe to run anywhere, at any time,
-- and twice.
-- Workers call it. p_limit: rows of a page. Answers how many rows it deleted. Errors: 22023.
--     select jobq.prune(1000);
CREATE OR REPLACE FUNCTION jobq.prune(p_limit integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_count integer;
    v_total integer;
    v_linked bigint[];
BEGIN
    PERFORM jobq._check_limit(p_limit);
    -- While a worker lives its burned claim numbers must stay, because a claim that it gave up
    -- must not arrive, however late. No index leads to old dead letters: one look for all
    -- queues.
    WITH gone AS (
        DELETE FROM jobq.failed f WHERE f.ctid = ANY (ARRAY(
            SELECT old.ctid FROM jobq.queue q CROSS JOIN LATERAL (
                SELECT o.ctid FROM jobq.failed o
                WHERE o.queue_id = q.id
                  AND o.finished_at < statement_timestamp() - q.failed_keep
                ORDER BY o.finished_at LIMIT p_limit FOR UPDATE SKIP LOCKED) AS old
            LIMIT p_limit))
        RETURNING f.id, f.flow_id
    )
    SELECT count(*), array_agg(g.id) FILTER (WHERE g.flow_id IS NOT NULL)
    INTO v_total, v_linked FROM gone g;
    IF v_linked IS NOT NULL THEN PERFORM jobq._edges_forget(v_linked); END IF;
    DELETE FROM jobq.idempotency k WHERE k.ctid = ANY (ARRAY(
        SELECT old.ctid FROM jobq.queue q CROSS JOIN LATERAL (
            SELECT o.ctid FROM jobq.idempotency o
            WHERE o.queue_id = q.id AND o.ended_at < statement_timestamp() - q.key_keep
            ORDER BY o.ended_at LIMIT p_limit FOR UPDATE SKIP LOCKED) AS old
        LIMIT p_limit));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_total := v_total + v_count;
    DELETE FROM jobq.dead_letter d WHERE d.ctid = ANY (ARRAY(
        SELECT o.ctid FROM jobq.dead_letter o JOIN jobq.queue q ON q.id = o.queue_id
        WHERE o.failed_at < statement_timestamp() - q.failed_keep
          AND (o.status <> 'reprocessing'
               OR clock_timestamp() NOT BETWEEN o.taken_at AND o.deadline)
        LIMIT p_limit FOR UPDATE OF o SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_total := v_total + v_count;
    -- It walks all dead rows. A held snapshot had pinned 34 million, and it took 8 s.
    IF pg_stat_get_dead_tuples('jobq.job'::regclass) < 1000000 THEN
        PERFORM jobq.mend(p_limit);
    END IF;
    PERFORM jobq._prune_lines(p_limit);
    DELETE FROM jobq.worker w WHERE w.id = ANY (ARRAY(
        SELECT old.id FROM jobq.worker old
        WHERE old.dead_at < statement_timestamp() - interval '1 day'
          AND NOT EXISTS (SELECT FROM jobq.claim c WHERE c.worker = old.id AND c.jobs <> '{}')
        FOR UPDATE SKIP LOCKED));
    DELETE FROM jobq.claim c
    WHERE c.jobs = '{}' AND c.claimed_at < statement_timestamp() - interval '1 day'
      AND NOT EXISTS (SELECT FROM jobq.worker w WHERE w.id = c.worker);
    PERFORM jobq._permits_prune();
    PERFORM jobq._prune_waiters();
    PERFORM jobq._prune_flows(p_limit);
    PERFORM jobq._prune_signals(p_limit);
    PERFORM jobq._tally_prune();
    PERFORM jobq._prune_operations(p_limit);
    PERFORM jobq._analyze_small();
    RETURN v_total;
END $$;

-- A part of prune. Tables of a few rows that seldom change never come to what autovacuum looks
-- for, 50 changes. Without statistics the planner expects a queue to have hardly any jobs, and
-- then reads all of a table and sorts it. They are analysed when they have rows, and again
-- when they have changed as much as they have rows. So is failed, for autovacuum may be late.
CREATE OR REPLACE FUNCTION jobq._analyze_small() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms' AS $$
DECLARE v_table regclass;
BEGIN
    FOR v_table IN
        SELECT c.oid FROM pg_class c
        WHERE c.oid IN ('jobq.queue'::regclass, 'jobq.kind'::regclass, 'jobq.quota'::regclass,
                        'jobq.schedule'::regclass, 'jobq.failed'::regclass)
          AND pg_relation_size(c.oid) > 0
          AND (c.reltuples < 0 OR pg_stat_get_mod_since_analyze(c.oid) > c.reltuples)
    LOOP
        BEGIN
            EXECUTE format('ANALYZE %s', v_table);
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
    END LOOP;
END $$;

-- A part of the history. NULL: an operator has detached it, so it belongs to the history no
-- more. On the node of a distributed schema its number is not the end of its name.
CREATE OR REPLACE FUNCTION jobq._part(p_slot integer) RETURNS regclass
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT i.inhrelid FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'jobq.history'::regclass AND NOT i.inhdetachpending
              AND c.relname ~ format('^history_%s(_[0-9]+)?$', p_slot));
END $$;

-- Turns each ring whose written part is old enough: its oldest part is emptied and becomes the
-- one that is written. If someone is reading that part, turn leaves this ring after 50 ms and
-- is called again soon. A part that an operator has detached is not emptied and could take no
-- rows: its ring waits until it, or another part in its place, is attached. So does a ring
-- that waits for the export of that part: see export_set.
-- Workers call it. Answers whether it turned one. Errors: none.
--     select jobq.turn();
CREATE OR REPLACE FUNCTION jobq.turn() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
SET jit = off AS $$
DECLARE
    v_ring record;
    v_part regclass;
    v_turned boolean := false;
BEGIN
    FOR v_ring IN
        SELECT r.retention, r.first + (r.slot - r.first + 1) % 8 AS slot,
               r.exported < r.turns - 7
               AND r.since > statement_timestamp() - r.keep / 7 - r.export_wait AS waits
        FROM jobq.ring r
        WHERE r.since < statement_timestamp() - r.keep / 7
        FOR UPDATE SKIP LOCKED
    LOOP
        v_part := jobq._part(v_ring.slot);
        CONTINUE WHEN v_part IS NULL;
        IF v_ring.waits THEN -- an empty part has nothing to export
            EXECUTE format('SELECT EXISTS (SELECT FROM %s)', v_part) INTO v_ring.waits;
            CONTINUE WHEN v_ring.waits;
        END IF;
        BEGIN
            EXECUTE format('TRUNCATE %s', v_part);
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
        UPDATE jobq.ring r
        SET slot = v_ring.slot, since = statement_timestamp(), turns = r.turns + 1
        WHERE r.retention = v_ring.retention;
        v_turned := true;
    END LOOP;
    RETURN v_turned;
END $$;

-- An id plus a million, within the range of a sequence.
CREATE OR REPLACE FUNCTION jobq._id_beyond(p_id bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN least(p_id, 9223372036854775807 - 1000000) + 1000000;
END $$;

-- A part of renew: moves the sequence of a table's ids up to the highest one, p_id. It never
-- moves back: jobs and history may still have the id of a queue or kind that was deleted.
CREATE OR REPLACE FUNCTION jobq._sequence_restored(p_table text, p_id bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_sequence regclass := pg_get_serial_sequence(p_table, 'id');
BEGIN
    PERFORM setval(v_sequence, greatest(pg_sequence_last_value(v_sequence), p_id));
END $$;

-- A DBA calls this once on a server that continues from a copy of another server's tables (a
-- restored dump or backup, a logical replica, a standby that may lack the last commits),
-- before clients connect. An unnecessary call repeats work and harms nothing.
--   running jobs    become ready again and get their attempt back; those that somebody asked
--                   to cancel are cancelled. A worker that still lives may have finished them
--                   on the other server, and would never look at them again. A worker that
--                   still runs one is told that its lease is lost.
--   sequences       move a million beyond every id in the tables, because ids that were drawn
--                   after the copy may be known outside. Logical replication does not copy
--                   sequences. Ids above 2^62 do not count: no sequence comes that far, so a
--                   program chose them itself, and they must not use the range up. At its end
--                   an enqueue would fail with 2200H.
--   epoch           changes, so that programs can see what happened. It is the answer.
--   home            true: this database is where jobs and schedules run from now on; without
--                   it a copy claims nothing, see is_copy. Call it where the original no
--                   longer runs.
-- Errors: 42501 for all but the owner.
--     select jobq.renew(home => true);
CREATE OR REPLACE FUNCTION jobq.renew(home boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_epoch bigint;
BEGIN
    PERFORM jobq._need_read_committed();
    UPDATE jobq.job j
    SET state = 'r', worker = NULL, claim = NULL, attempt = greatest(j.attempt - 1, 0),
        run_at = statement_timestamp()
    WHERE j.state = 'x';
    PERFORM jobq._finish(ARRAY(
        SELECT j.id FROM jobq.job j
        WHERE j.state = 'r' AND j.cancel_requested_at IS NOT NULL), 'c', NULL);
    -- A claim that was made after that UPDATE keeps its row, because its jobs are running.
    DELETE FROM jobq.claim c WHERE c.jobs <> '{}' AND NOT EXISTS (
        SELECT FROM jobq.job j
        WHERE j.id = ANY (c.jobs) AND j.worker = c.worker AND j.claim = c.number);
    PERFORM jobq._permits_prune();
    PERFORM jobq._permits_restored();
    PERFORM setval('jobq.job_id', jobq._id_beyond(greatest(
        (SELECT s.last_value FROM jobq.job_id s),
        (SELECT max(j.id) FROM jobq.job j WHERE j.id <= 1::bigint << 62),
        (SELECT max(f.id) FROM jobq.failed f WHERE f.id <= 1::bigint << 62),
        (SELECT max(h.id) FROM jobq.history h WHERE h.id <= 1::bigint << 62),
        (SELECT max(k.job_id) FROM jobq.idempotency k WHERE k.job_id <= 1::bigint << 62))));
    PERFORM jobq._outbox_restored();
    PERFORM jobq._lines_restored();
    PERFORM jobq._flows_restored();
    PERFORM jobq._sequence_restored('jobq.queue', max(q.id)) FROM jobq.queue q;
    PERFORM jobq._sequence_restored('jobq.operation', max(o.id)) FROM jobq.operation o;
    PERFORM jobq._sequence_restored('jobq.quota', max(q.id)) FROM jobq.quota q;
    PERFORM jobq._sequence_restored('jobq.kind', max(k.id)) FROM jobq.kind k;
    PERFORM jobq._sequence_restored('jobq.schedule', max(s.id)) FROM jobq.schedule s;
    PERFORM jobq._sequence_restored('jobq.subscription', max(s.id)) FROM jobq.subscription s;
    PERFORM setval(pg_get_serial_sequence('jobq.dead_letter', 'id'), jobq._id_beyond(greatest(
        pg_sequence_last_value(pg_get_serial_sequence('jobq.dead_letter', 'id')::regclass),
        (SELECT max(d.id) FROM jobq.dead_letter d WHERE d.id <= 1::bigint << 62), 0)));
    UPDATE jobq.meta
    SET epoch = ('x' || left(md5(gen_random_uuid()::text), 16))::bit(64)::bigint
    RETURNING epoch INTO v_epoch;
    IF renew.home THEN UPDATE jobq.meta m SET home = jobq._here(); END IF;
    PERFORM jobq._operated('renew', jsonb_build_object('home', home), NULL);
    RETURN v_epoch;
END $$;

-- How many running jobs no rescuer would find, because they have no claim row or their worker
-- has no row; how many run in a line beyond its limit without holding it (after a limit was
-- lowered more jobs may hold a line than that); and what audit_places, audit_permits and
-- audit_flows count. It must be 0. A slow check for operators and tests.
-- Errors: 55000 where the tables cannot be read together.
--     select jobq.audit();
CREATE OR REPLACE FUNCTION jobq.audit() RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN (SELECT count(*) FROM jobq.job j WHERE j.state = 'x' AND NOT EXISTS (
        SELECT FROM jobq.claim c JOIN jobq.worker w ON w.id = c.worker
        WHERE c.worker = j.worker AND c.number = j.claim AND j.id = ANY (c.jobs)))
        + jobq._audit_lines() + jobq._audit_places() + jobq._audit_permits()
        + jobq._audit_flows();
END $$;
