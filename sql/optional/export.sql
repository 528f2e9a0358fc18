-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: export of history. The program jobq writes each finished part of a ring
-- to a file: see jobq help export.

-- Ended jobs, each with the part of history that it is in, which is a number that grows.
CREATE OR REPLACE VIEW jobq.ended AS
SELECT h.id, q.name AS queue, k.name AS kind,
       CASE h.state WHEN 's' THEN 'succeeded' ELSE 'cancelled' END AS state, h.priority,
       h.stage, h.stages, h.attempt, h.crash, h.enqueued_at, h.run_at, h.claimed_at,
       h.finished_at, h.worker, h.key, h.payload, h.bytes, h.headers, h.errors,
       h.line_name AS line, h.result, h.result_bytes, h.log, h.slot
FROM jobq.history h
JOIN jobq.queue q ON q.id = h.queue_id JOIN jobq.kind k ON k.id = h.kind_id;

-- How long a ring's next part is kept beyond its time if it was not exported: a turn waits so
-- long for the export, and then goes on without it. NULL, the default: it does not wait.
-- retention: short, medium or long. Errors: 22023.
--     select jobq.export_set('medium', '2 days');
CREATE OR REPLACE FUNCTION jobq.export_set(retention text, wait interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    IF wait < '1 millisecond' OR NOT isfinite(wait) THEN
        PERFORM jobq._refuse('wait',
                             'must be a finite interval, at least a millisecond, or NULL');
    END IF;
    UPDATE jobq.ring r
    SET export_wait = CASE WHEN wait IS NOT NULL THEN least(wait, interval '1000 years') END
    WHERE r.retention = export_set.retention COLLATE "C";
    IF NOT FOUND THEN
        PERFORM jobq._refuse('retention', 'must be short, medium or long');
    END IF;
    PERFORM jobq._operated('export_set', jsonb_build_object('retention', retention, 'wait',
                                                           wait), NULL);
END $$;

-- The slot that has, or had, the part with a number.
CREATE OR REPLACE FUNCTION jobq._ring_slot(p_ring jobq.ring, p_part bigint) RETURNS smallint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN p_ring.first + (p_ring.slot - p_ring.first + 8 - (p_ring.turns - p_part)) % 8;
END $$;

-- The next finished part that was not exported, or no row. It stays locked until the
-- transaction ends: nobody writes or empties it, and a second export takes another one. Parts
-- that are left for later: one that somebody has locked, that was written less than a minute
-- ago, or that an operator has detached. Empty ones are passed over.
-- Answers the class of retention, the part's number, and the table history_<slot> that has it.
-- Errors: none.
--     select * from jobq.export_next();
CREATE OR REPLACE FUNCTION jobq.export_next(
    OUT retention text, OUT part bigint, OUT slot smallint) RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
SET jit = off AS $$
DECLARE
    v_ring jobq.ring;
    v_table regclass;
    v_any boolean;
BEGIN
    -- A minute, because a statement that began before the turn may still write to the part.
    PERFORM jobq._need_read_committed(); -- all that was written is to be seen
    FOR v_ring IN SELECT r.* FROM jobq.ring r ORDER BY r.retention LOOP
        FOR v_part IN greatest(v_ring.exported + 1, v_ring.turns - 7) .. v_ring.turns - 1 LOOP
            EXIT WHEN v_part = v_ring.turns - 1
                  AND v_ring.since > statement_timestamp() - interval '1 minute';
            slot := jobq._ring_slot(v_ring, v_part);
            v_table := jobq._part(slot);
            EXIT WHEN v_table IS NULL;
            BEGIN
                EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', v_table);
            EXCEPTION WHEN lock_not_available OR undefined_table THEN
                EXIT;
            END;
            EXIT WHEN jobq._part(slot) IS DISTINCT FROM v_table; -- it was detached meanwhile
            EXECUTE format('SELECT EXISTS (SELECT FROM %s)', v_table) INTO v_any;
            IF v_any THEN
                retention := v_ring.retention;
                part := v_part;
                RETURN NEXT;
                RETURN;
            END IF;
            PERFORM jobq.export_done(v_ring.retention, v_part);
        END LOOP;
    END LOOP;
END $$;

-- A part is exported: its file is complete. A second call changes nothing.
-- retention, part: as export_next has answered. Errors: 22023.
--     select jobq.export_done('medium', 0);
CREATE OR REPLACE FUNCTION jobq.export_done(retention text, part bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    UPDATE jobq.ring r SET exported = greatest(r.exported, part)
    WHERE r.retention = export_done.retention COLLATE "C" AND part < r.turns;
    IF FOUND THEN RETURN; END IF;
    PERFORM FROM jobq.ring r WHERE r.retention = export_done.retention COLLATE "C";
    IF NOT FOUND THEN
        PERFORM jobq._refuse('retention', 'must be short, medium or long');
    END IF;
    PERFORM jobq._refuse('part', 'not a finished part', p_value => part::text);
END $$;
