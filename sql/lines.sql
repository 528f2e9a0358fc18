-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: lines. A job may name its line, such as a tenant, and workers take turns
-- at the lines of a queue. See the table line.
--
-- How a limit holds. A claim that takes from a line with a limit first locks the line's row,
-- or leaves the line alone if another claim has it locked. Then, in a statement of its own and
-- so with a new snapshot, it looks which of the jobs in line.jobs still hold the line: those
-- that run, and suspects. A completion that commits in between can only make that number
-- smaller. No other claim can take from the line before this one's commit. So a completion, a
-- failure or a rescue writes nothing for a limit.

-- The number of a line: claims walk through lines in the order of their numbers. 0 stands for
-- no line, and a walk begins after the smallest number.
CREATE OR REPLACE FUNCTION jobq._line_no(p_name text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN greatest(coalesce(nullif(hashtextextended(p_name, 0), 0), 1),
                    -9223372036854775807);
END $$;

-- ---- enqueue -------------------------------------------------------------------------------

-- The line in which a ready job stands that may run from this instant on.
CREATE OR REPLACE FUNCTION jobq._line_at(p_name text, p_run_at timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN p_run_at <= statement_timestamp() THEN jobq._line_no(p_name) END;
END $$;

-- Called for new jobs with lines only. Refuses names of lines, and jobs that are due now and
-- would make a line longer than its queue's line_waiting_max. Workers look at the lines of a
-- queue as soon as they know of them, so its first line is told to them. Element i of the
-- arrays belongs to job i; p_existed: it is not new.
CREATE OR REPLACE FUNCTION jobq._check_lines(
    p_queue integer, p_lines text[], p_run_ats timestamptz[], p_delays_us bigint[],
    p_existed boolean[] DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_queue jobq.queue;
    v_line record;
BEGIN
    PERFORM jobq._refuse('line', 'must be 1 to 1024 bytes', p_value => u.name)
    FROM unnest(p_lines) AS u (name) WHERE octet_length(u.name) NOT BETWEEN 1 AND 1024;
    SELECT q.* INTO v_queue FROM jobq.queue q WHERE q.id = p_queue;
    IF NOT v_queue.lines AND (false = ANY (p_existed)) IS NOT FALSE THEN
        PERFORM jobq._has_lines(p_queue);
    END IF;
    IF v_queue.line_waiting_max IS NULL THEN RETURN; END IF;
    FOR v_line IN
        SELECT u.name, count(*) AS jobs
        FROM ROWS FROM (unnest(p_lines), unnest(p_run_ats), unnest(p_delays_us),
                        unnest(p_existed)) AS u (name, run_at, delay_us, existed)
        WHERE u.name IS NOT NULL AND u.existed IS NOT TRUE
          AND coalesce(u.run_at <= statement_timestamp(), coalesce(u.delay_us, 0) <= 0)
        GROUP BY u.name
    LOOP
        CONTINUE WHEN v_line.jobs + jobq._line_waiting(v_queue, v_line.name,
                                                      v_queue.line_waiting_max)
                      <= v_queue.line_waiting_max;
        RAISE EXCEPTION 'line % of queue % is full: % jobs wait in it', v_line.name,
            v_queue.name, v_queue.line_waiting_max
            USING ERRCODE = 'JQ005', HINT = 'Enqueue again when some of them have run.';
    END LOOP;
END $$;

-- Marks a queue as one with lines.
CREATE OR REPLACE FUNCTION jobq._has_lines(p_queue integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE jobq.queue q SET lines = true WHERE q.id = p_queue AND NOT q.lines;
    IF FOUND THEN PERFORM jobq._tell(p_queue); END IF;
END $$;

-- How many jobs wait in a line, counted up to p_most. Most of those that wait became due
-- after those that have ended, which stay in the index while a snapshot is held. So from
-- 100,000 dead rows on it looks at what became due in the last second, in the three before, in
-- the twelve before those and so on, and begins no new look after 5 ms.
CREATE OR REPLACE FUNCTION jobq._line_waiting(p_queue jobq.queue, p_line text, p_most integer)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_no bigint := jobq._line_no(p_line);
    v_until timestamptz := clock_timestamp() + interval '5 ms';
    v_all boolean := pg_stat_get_dead_tuples('jobq.job'::regclass) < 100000;
    v_from timestamptz := 'infinity';
    v_to timestamptz;
    v_span interval := '1 second';
    v_jobs bigint := 0;
BEGIN
    LOOP
        v_to := v_from;
        v_from := CASE WHEN v_all THEN '-infinity' ELSE statement_timestamp() - v_span END;
        v_span := 4 * v_span;
        v_jobs := v_jobs + (
            SELECT count(*) FROM (
                SELECT FROM generate_series(p_queue.priority_min, 9) AS p (priority)
                CROSS JOIN generate_series(0, p_queue.stages_max - 1) AS s (stage)
                CROSS JOIN LATERAL (
                    SELECT FROM jobq.job j
                    WHERE j.queue_id = p_queue.id AND j.priority = p.priority
                      AND j.stage = s.stage AND j.line = v_no AND NOT j.suspect
                      AND j.run_at > v_from AND j.run_at <= v_to AND j.state = 'r'
                    LIMIT p_most - v_jobs) AS lane
                LIMIT p_most - v_jobs) AS counted);
        EXIT WHEN v_all OR v_jobs >= p_most OR v_span > '100 days'
                  OR clock_timestamp() > v_until;
    END LOOP;
    RETURN v_jobs;
END $$;

-- ---- claim ---------------------------------------------------------------------------------
--
-- These functions are parts of claim, and run under its settings. OFFSET and LIMIT prevent
-- joins: a join that was planned while the table line was empty read all lines of the queue.

-- Moves those of the jobs p_ids that name a line from their lanes into their lines; they
-- become due now. Also a page at the front of each of these lanes, so that many are moved at
-- once. Answers with the queues of what it has moved. A queue without lines becomes one with
-- lines first; while an operator has its row locked, its jobs stay.
CREATE OR REPLACE FUNCTION jobq._line_up(
    p_ids bigint[], p_queues integer[], p_priorities smallint[], p_stages smallint[])
RETURNS integer[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_queues integer[];
BEGIN
    PERFORM jobq._has_lines(q.id) FROM (
        SELECT o.id FROM jobq.queue o
        WHERE NOT o.lines AND o.id IN (
            SELECT j.queue_id FROM jobq.job j WHERE j.id = ANY (p_ids) AND j.line_name <> '')
        FOR NO KEY UPDATE SKIP LOCKED) AS q;
    WITH moved AS (
        UPDATE jobq.job j
        SET line = jobq._line_no(j.line_name), run_at = statement_timestamp()
        WHERE j.ctid = ANY (ARRAY(
            SELECT held.ctid FROM jobq.job held
            WHERE held.id = ANY (p_ids || ARRAY(
                SELECT front.id
                FROM unnest(p_queues, p_priorities, p_stages)
                     AS lane (queue_id, priority, stage)
                CROSS JOIN LATERAL (
                    SELECT f.id, f.line_name FROM jobq.job f
                    WHERE f.queue_id = lane.queue_id AND f.priority = lane.priority
                      AND f.stage = lane.stage AND NOT f.suspect AND f.line IS NULL
                      AND f.state = 'r' AND f.run_at <= statement_timestamp()
                    ORDER BY f.run_at, f.id LIMIT 1000) AS front
                WHERE front.line_name IS NOT NULL))
              AND held.state = 'r' AND held.line IS NULL AND held.line_name IS NOT NULL
              AND NOT held.suspect AND held.run_at <= statement_timestamp()
              AND EXISTS (SELECT FROM jobq.queue q WHERE q.id = held.queue_id AND q.lines)
            FOR UPDATE SKIP LOCKED))
        RETURNING j.queue_id
    )
    SELECT array_agg(DISTINCT m.queue_id) INTO v_queues FROM moved m;
    RETURN v_queues;
END $$;

-- The late jobs at the front of these lanes, up to 250 of them, so that a claim of few jobs
-- ends many. Only what a claim would take is looked at.
CREATE OR REPLACE FUNCTION jobq._late_front(
    p_queues integer[], p_priorities smallint[], p_stages smallint[], p_kinds integer[])
RETURNS bigint[] LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(
        SELECT front.id
        FROM unnest(p_queues, p_priorities, p_stages) AS lane (queue_id, priority, stage)
        CROSS JOIN LATERAL (
            SELECT f.id, f.expires_at FROM jobq.job f
            WHERE f.queue_id = lane.queue_id AND f.priority = lane.priority
              AND f.stage = lane.stage AND NOT f.suspect AND f.line IS NULL
              AND f.state = 'r' AND f.run_at <= statement_timestamp()
              AND (p_kinds IS NULL OR f.kind_id = ANY (p_kinds))
            ORDER BY f.run_at, f.id LIMIT 250) AS front
        WHERE front.expires_at <= statement_timestamp() LIMIT 250);
END $$;

-- A claim came upon jobs in their lanes that are late, or name lines: ends the former, and
-- others with them, moves the latter, and answers with the rest of those that it has locked.
CREATE OR REPLACE FUNCTION jobq._claim_sift(
    p_rows tid[], p_ids bigint[], p_queues integer[], p_priorities smallint[],
    p_stages smallint[], p_kinds integer[], OUT rows tid[], OUT ids bigint[],
    OUT queues integer[], OUT ended bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT f.rows, f.ids, f.ended INTO rows, ids, ended
    FROM jobq._claim_fresh(p_rows, p_ids, NULL, CASE WHEN EXISTS (
        SELECT FROM jobq.job j
        WHERE j.id = ANY (p_ids) AND j.expires_at <= statement_timestamp()) THEN
        jobq._late_front(p_queues, p_priorities, p_stages, p_kinds) END) f;
    IF NOT EXISTS (SELECT FROM jobq.job j WHERE j.id = ANY (ids) AND j.line_name <> '') THEN
        RETURN;
    END IF;
    queues := jobq._line_up(ids, p_queues, p_priorities, p_stages);
    SELECT array_agg(j.ctid ORDER BY u.n), array_agg(j.id ORDER BY u.n) INTO rows, ids
    FROM unnest(rows, ids) WITH ORDINALITY AS u (ctid, id, n)
    JOIN jobq.job j ON j.ctid = u.ctid WHERE j.id = u.id AND j.line_name IS NULL;
END $$;

-- Locks jobs of those lanes of a claim that p_run has the numbers of. They have no lines.
CREATE OR REPLACE FUNCTION jobq._claim_lanes(
    p_walk jobq.walk, p_run integer[], p_queues integer[], p_priorities smallint[],
    p_stages smallint[], p_after_ats timestamptz[], p_after_ids bigint[],
    p_until_ats timestamptz[]) RETURNS jobq.walk
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    w jobq.walk := p_walk;
    v_rows tid[];
    v_ids bigint[];
    v_bytes bigint;
    v_odd bigint;
    v_moved integer[];
    v_ended bigint[];
BEGIN
    FOR i IN 1 .. 4 LOOP
        SELECT array_agg(r.ctid), array_agg(r.id), sum(r.bytes), count(r.odd)
        INTO v_rows, v_ids, v_bytes, v_odd FROM (
            SELECT ready.ctid, ready.id, ready.bytes, ready.odd
            FROM unnest(p_run) AS lane (n)
            CROSS JOIN LATERAL (
                SELECT j.ctid, j.id, coalesce(pg_column_size(j.payload), octet_length(j.bytes))
                           AS bytes, CASE WHEN j.line_name IS NOT NULL OR j.expires_at
                               <= statement_timestamp() THEN 1 END AS odd
                FROM jobq.job j
                WHERE j.queue_id = p_queues[lane.n] AND j.priority = p_priorities[lane.n]
                  AND j.stage = p_stages[lane.n] AND j.state = 'r' AND NOT j.suspect
                  AND j.run_at <= least(statement_timestamp(), p_until_ats[lane.n])
                  AND j.line IS NULL
                  AND (j.run_at, j.id) > (p_after_ats[lane.n], p_after_ids[lane.n])
                  AND (w.kinds IS NULL OR j.kind_id = ANY (w.kinds))
                ORDER BY j.run_at, j.id
                LIMIT w.most FOR UPDATE SKIP LOCKED) AS ready
            LIMIT w.most) AS r;
        EXIT WHEN v_odd = 0;
        SELECT s.rows, s.ids, s.queues, s.ended INTO v_rows, v_ids, v_moved, v_ended
        FROM jobq._claim_sift(v_rows, v_ids, p_queues, p_priorities, p_stages, w.kinds) s;
        w.moved := w.moved || v_moved;
        w.ended := w.ended || v_ended;
        EXIT WHEN v_rows IS NOT NULL;
    END LOOP;
    w.rows := w.rows || v_rows;
    w.ids := w.ids || v_ids;
    w.bytes := w.bytes + coalesce(v_bytes, 0);
    w.most := w.most - coalesce(cardinality(v_rows), 0);
    RETURN w;
END $$;

-- The instant from which the tokens of a line count: no more than burst_us of them are kept.
-- An instant that has not come was written before the database's clock ran back.
CREATE OR REPLACE FUNCTION jobq._line_free(
    p_free_at timestamptz, p_now timestamptz, p_burst_us bigint) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN greatest(CASE WHEN p_free_at <= p_now + interval '1 minute' THEN p_free_at END,
                    p_now - p_burst_us * interval '1 microsecond');
END $$;

-- What each of these lines may give in one visit. p_taken: jobs that this claim has locked to
-- take them; those that are in line.jobs count as running. p_guess: answers 0 for a line that
-- is full, and may answer too much for others; it looks at few jobs. p_suspects: they count.
CREATE OR REPLACE FUNCTION jobq._line_rooms(
    p_queue jobq.queue, p_nos bigint[], p_quantum integer, p_taken bigint[],
    p_guess boolean DEFAULT false, p_suspects boolean DEFAULT true)
RETURNS SETOF jobq.room
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v_now timestamptz := statement_timestamp();
BEGIN
    RETURN QUERY
    SELECT u.no,
           CASE WHEN l.paused_at IS NOT NULL OR h.wait_us > 0 THEN 0
           ELSE greatest(least(
               p_quantum * coalesce(l.weight, 1), r.most - cardinality(h.jobs), t.tokens),
               0) END::integer,
           r.most, r.most IS NOT NULL OR r.token_us IS NOT NULL, r.strict, r.token_us,
           r.token_us * r.burst, h.jobs,
           CASE WHEN l.paused_at IS NOT NULL THEN NULL
                WHEN h.wait_us > 0 THEN h.wait_us
                WHEN r.most <= cardinality(h.jobs) THEN 60000000
                WHEN t.tokens < 1 THEN r.token_us - t.elapsed_us END
    FROM unnest(p_nos) AS u (no)
    LEFT JOIN LATERAL (
        SELECT o.* FROM jobq.line o
        WHERE o.queue_id = p_queue.id AND o.no >= u.no AND o.no <= u.no
        ORDER BY o.no DESC LIMIT 1) AS l ON true
    CROSS JOIN LATERAL (
        SELECT coalesce(l.strict, p_queue.line_strict) AS strict,
               CASE WHEN coalesce(l.strict, p_queue.line_strict) THEN 1
                    ELSE nullif(coalesce(l.running_max, p_queue.line_running_max), 0) END
               AS most,
               CASE WHEN l.rate_count IS NULL
                    THEN (p_queue.line_rate_us + p_queue.line_rate_count - 1)
                         / p_queue.line_rate_count
                    ELSE (l.rate_us + l.rate_count - 1) / nullif(l.rate_count, 0) END
               AS token_us,
               coalesce(l.rate_burst, p_queue.line_rate_burst, 1) AS burst) AS r
    CROSS JOIN LATERAL (
        SELECT CASE
               WHEN r.most IS NULL OR p_guess AND cardinality(l.jobs) < r.most THEN '{}'
               WHEN p_guess AND EXISTS (
                   SELECT FROM unnest(l.jobs) AS k (id) WHERE NOT EXISTS (
                       SELECT FROM jobq.job j
                       WHERE j.id = k.id
                         AND (j.state = 'x' OR j.suspect OR j.id = ANY (p_taken)) OFFSET 0))
               THEN '{}'
               ELSE ARRAY(
                   SELECT j.id FROM jobq.job j
                   WHERE j.id = ANY (l.jobs)
                     AND (j.state = 'x' OR j.suspect AND p_suspects
                          OR j.id = ANY (p_taken))) END AS jobs,
               CASE WHEN clock_timestamp() BETWEEN l.held_at AND l.hold_until THEN
                   (extract(epoch FROM l.hold_until - v_now) * 1000000)::bigint END AS wait_us
        OFFSET 0) AS h -- once, although it is used thrice
    CROSS JOIN LATERAL (
        SELECT e.elapsed_us, e.elapsed_us / r.token_us AS tokens
        FROM (SELECT CASE WHEN r.token_us IS NOT NULL THEN
                  (extract(epoch FROM v_now - jobq._line_free(
                      l.free_at, v_now, r.token_us * r.burst)) * 1000000)::bigint END
              AS elapsed_us) AS e) AS t;
END $$;

-- What the line of a suspect leaves for it: as for other jobs, but suspects do not count,
-- because two of them would wait for each other.
CREATE OR REPLACE FUNCTION jobq._suspect_room(p_queue integer, p_line text) RETURNS jobq.room
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT r FROM jobq.queue q CROSS JOIN LATERAL jobq._line_rooms(
            q, ARRAY[jobq._line_no(p_line)], 1, '{}', p_suspects => false) r
        WHERE q.id = p_queue);
END $$;

-- Whether its line would let a suspect run.
CREATE OR REPLACE FUNCTION jobq._suspect_goes(p_queue integer, p_line text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN p_line IS NULL OR (jobq._suspect_room(p_queue, p_line)).room > 0;
END $$;

-- Whether a suspect, which the claim has locked, may run by the limits of its line. It counts
-- for them from now on; it may have come into the line by move, or by an enqueue with its key.
CREATE OR REPLACE FUNCTION jobq._suspect_admitted(p_queue integer, p_line text, p_id bigint)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE r jobq.room := jobq._suspect_room(p_queue, p_line);
BEGIN
    IF r.room > 0 AND NOT r.limited THEN RETURN true; END IF;
    IF NOT EXISTS (SELECT FROM jobq.line l WHERE l.queue_id = p_queue AND l.no = r.no)
       AND pg_try_advisory_xact_lock_shared(hashtext('jobq.line'), p_queue) THEN
        INSERT INTO jobq.line (queue_id, no, name) VALUES (p_queue, r.no, p_line)
        ON CONFLICT DO NOTHING;
    END IF;
    PERFORM FROM jobq.line l WHERE l.queue_id = p_queue AND l.no = r.no
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN false; END IF;
    r := jobq._suspect_room(p_queue, p_line);
    IF r.room = 0 THEN RETURN false; END IF;
    UPDATE jobq.line l
    SET used_at = statement_timestamp(), jobs = array_remove(l.jobs, p_id) || p_id,
        free_at = CASE WHEN r.token_us IS NULL THEN l.free_at
                  ELSE jobq._line_free(l.free_at, statement_timestamp(), r.burst_us)
                       + r.token_us * interval '1 microsecond' END
    WHERE l.queue_id = p_queue AND l.no = r.no;
    RETURN true;
END $$;

-- The next lines of a lane in which any job stands, up to p_most, with numbers above p_from
-- and up to p_to. Jumps from line to line in the index.
CREATE OR REPLACE FUNCTION jobq._next_lines(
    p_queue integer, p_priority smallint, p_stage smallint, p_from bigint, p_to bigint,
    p_most integer) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(
        WITH RECURSIVE step AS (
            SELECT p_from AS no, 0 AS n
            UNION ALL
            SELECT next.no, s.n + 1 FROM step s
            CROSS JOIN LATERAL (
                SELECT j.line AS no FROM jobq.job j
                WHERE j.queue_id = p_queue AND j.priority = p_priority
                  AND j.stage = p_stage AND NOT j.suspect AND j.line IS NOT NULL
                  AND j.line > s.no AND j.line <= p_to
                ORDER BY j.line LIMIT 1) AS next
            WHERE s.n < p_most
        )
        SELECT s.no FROM step s WHERE s.n > 0);
END $$;

-- The same of the lines in which a job is ready, and with p_first of each of them its first
-- ready job at or after (after_at, after_id) of the walk: visits begin there. While anybody
-- has an old snapshot, the entries of jobs that have ended stay in the index. They are the
-- oldest ones of a line. So the jump meets its newest job first, and the bound skips most of
-- the rest.
CREATE OR REPLACE FUNCTION jobq._line_fronts(
    p_walk jobq.walk, p_from bigint, p_to bigint, p_most integer, p_first boolean,
    OUT nos bigint[], OUT ats timestamptz[], OUT ids bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    WITH RECURSIVE step AS (
        SELECT p_from AS no, NULL::timestamptz AS at, NULL::bigint AS id, 0 AS n
        UNION ALL
        SELECT next.no, front.at, front.id, s.n + 1 FROM step s
        CROSS JOIN LATERAL (
            SELECT j.line AS no FROM jobq.job j
            WHERE j.queue_id = p_walk.queue_id AND j.priority = p_walk.priority
              AND j.stage = p_walk.stage AND NOT j.suspect AND j.line IS NOT NULL
              AND j.line > s.no AND j.line <= p_to AND j.state = 'r'
              AND (j.run_at, j.id) >= (p_walk.after_at, p_walk.after_id)
              AND j.run_at <= statement_timestamp()
            ORDER BY j.line, j.run_at DESC, j.id DESC LIMIT 1) AS next
        LEFT JOIN LATERAL (
            SELECT j.run_at AS at, j.id FROM jobq.job j
            WHERE p_first AND j.queue_id = p_walk.queue_id AND j.priority = p_walk.priority
              AND j.stage = p_walk.stage AND NOT j.suspect AND j.line = next.no
              AND j.state = 'r' AND (j.run_at, j.id) >= (p_walk.after_at, p_walk.after_id)
              AND j.run_at <= statement_timestamp()
            ORDER BY j.run_at, j.id LIMIT 1) AS front ON true
        WHERE s.n < p_most
    )
    SELECT coalesce(array_agg(s.no), '{}'), array_agg(s.at), array_agg(s.id)
    INTO nos, ats, ids FROM step s WHERE s.n > 0;
END $$;

-- Locks the rows of these lines, and answers which it has got; one that is locked just now is
-- left out. Rows that do not exist yet are made first: in the order of their numbers, in one
-- lane of a claim, so that claims that wait for each other's new rows do not deadlock; and not
-- while line_set makes one, in a transaction that may last long.
CREATE OR REPLACE FUNCTION jobq._lock_lines(
    p_walk jobq.walk, p_nos bigint[], OUT made bigint, OUT nos bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_missing bigint[] := ARRAY(
        SELECT u.no FROM unnest(p_nos) AS u (no)
        WHERE (u.no > p_walk.made) IS NOT FALSE AND NOT EXISTS (
            SELECT FROM jobq.line l
            WHERE l.queue_id = p_walk.queue_id AND l.no >= u.no AND l.no <= u.no
            ORDER BY l.no DESC OFFSET 0));
BEGIN
    made := p_walk.made;
    IF v_missing <> '{}' AND pg_try_advisory_xact_lock_shared(
            hashtext('jobq.line'), p_walk.queue_id) THEN
        made := v_missing[cardinality(v_missing)]; -- the highest: p_nos is in order
        INSERT INTO jobq.line (queue_id, no, name)
        SELECT p_walk.queue_id, u.no, one.line_name FROM unnest(v_missing) AS u (no)
        CROSS JOIN LATERAL (
            SELECT j.line_name FROM jobq.job j
            WHERE j.queue_id = p_walk.queue_id AND j.priority = p_walk.priority
              AND j.stage = p_walk.stage AND NOT j.suspect AND j.line = u.no
              AND j.line_name IS NOT NULL LIMIT 1) AS one
        ORDER BY u.no ON CONFLICT DO NOTHING;
    END IF;
    nos := ARRAY(
        SELECT locked.no FROM unnest(p_nos) AS u (no) CROSS JOIN LATERAL (
            SELECT l.no FROM jobq.line l
            WHERE l.queue_id = p_walk.queue_id AND l.no >= u.no AND l.no <= u.no
            ORDER BY l.no DESC LIMIT 1 FOR UPDATE SKIP LOCKED) AS locked);
END $$;

-- The job that a strict line, whose row is locked, gives: the one that holds it, if that one
-- is ready in this lane; if none holds it, the first. A job that has failed and was revived no
-- longer holds it, and has no claimed_at. The first is chosen without a lock. Who asked for
-- the first one that is not locked would get the second one.
CREATE OR REPLACE FUNCTION jobq._strict_job(p_walk jobq.walk, p_no bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_line jobq.line;
    v_held bigint[];
BEGIN
    SELECT l.* INTO v_line FROM jobq.line l WHERE l.queue_id = p_walk.queue_id AND l.no = p_no;
    v_held := ARRAY(
        SELECT j.id FROM jobq.job j
        WHERE j.id = ANY (v_line.jobs) AND j.queue_id = p_walk.queue_id
          AND j.line_name = v_line.name AND j.claimed_at IS NOT NULL);
    IF v_held <> '{}' THEN
        RETURN (
            SELECT j.id FROM jobq.job j
            WHERE j.id = ANY (v_held) AND j.priority = p_walk.priority
              AND j.stage = p_walk.stage AND j.line = p_no AND j.state = 'r'
            ORDER BY j.run_at, j.id LIMIT 1);
    END IF;
    RETURN (
        SELECT j.id FROM jobq.job j
        WHERE j.queue_id = p_walk.queue_id AND j.priority = p_walk.priority
          AND j.stage = p_walk.stage AND NOT j.suspect AND j.line = p_no
        ORDER BY j.run_at, j.id LIMIT 1);
END $$;

-- Locks jobs of lines, as many as each of them may give and the walk still wants. Line by
-- line: were strict lines asked last, the others would leave nothing for them. p_ats, p_ids:
-- their first ready jobs, or NULL. A strict line is searched from its start, because an
-- earlier job may have been committed since. Late ones are ended here, before anything is
-- charged to their lines; the next claim goes on.
CREATE OR REPLACE FUNCTION jobq._take_lines(
    p_walk jobq.walk, p_rooms jobq.room[], p_ats timestamptz[], p_ids bigint[])
RETURNS jobq.walk LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    w jobq.walk := p_walk;
    v_rows tid[];
    v_ids bigint[];
    v_bytes bigint;
    v_at timestamptz;
    v_id bigint;
    v_expires timestamptz;
    v_ended bigint[];
BEGIN
    SELECT array_agg(t.ctid), array_agg(t.id), sum(t.bytes), array_agg(t.k), min(t.run_at),
           min(t.id), min(t.expires_at)
    INTO v_rows, v_ids, v_bytes, w.froms, v_at, v_id, v_expires FROM (
        SELECT coalesce(one.ctid, ready.ctid) AS ctid, coalesce(one.id, ready.id) AS id,
               coalesce(one.bytes, ready.bytes) AS bytes, u.k, ready.run_at,
               coalesce(one.expires_at, ready.expires_at) AS expires_at
        FROM unnest(p_rooms) WITH ORDINALITY AS u (no, room, most, limited, strict, token_us,
                                                   burst_us, jobs, due_us, k)
        CROSS JOIN LATERAL (
            SELECT CASE WHEN u.strict AND u.room > 0 THEN jobq._strict_job(w, u.no) END AS id
            OFFSET 0) AS first
        LEFT JOIN LATERAL (
            SELECT j.ctid, j.id, coalesce(pg_column_size(j.payload), octet_length(j.bytes))
                                 AS bytes, j.run_at, j.expires_at
            FROM jobq.job j
            WHERE NOT u.strict AND j.queue_id = w.queue_id AND j.priority = w.priority
              AND j.stage = w.stage AND NOT j.suspect AND j.line = u.no
              AND (j.run_at, j.id) >= (coalesce(p_ats[u.k], w.after_at),
                                       coalesce(p_ids[u.k], w.after_id))
              AND j.state = 'r' AND j.run_at <= statement_timestamp()
              AND (w.kinds IS NULL OR j.kind_id = ANY (w.kinds))
            ORDER BY j.run_at, j.id
            LIMIT u.room FOR UPDATE SKIP LOCKED) AS ready ON true
        LEFT JOIN LATERAL (
            SELECT j.ctid, j.id, coalesce(pg_column_size(j.payload), octet_length(j.bytes))
                                 AS bytes, j.expires_at
            FROM jobq.job j
            WHERE u.strict AND j.id = first.id AND j.queue_id = w.queue_id
              AND j.priority = w.priority AND j.stage = w.stage AND NOT j.suspect
              AND j.line = u.no AND j.state = 'r' AND j.run_at <= statement_timestamp()
              AND (w.kinds IS NULL OR j.kind_id = ANY (w.kinds))
            LIMIT 1 FOR UPDATE SKIP LOCKED) AS one ON true
        WHERE u.room > 0 AND (ready.id IS NOT NULL OR one.id IS NOT NULL)
        LIMIT w.most) AS t;
    IF v_expires <= statement_timestamp() THEN
        SELECT f.* INTO v_rows, v_ids, w.froms, v_ended
        FROM jobq._claim_fresh(v_rows, v_ids, w.froms, NULL) f;
        w.ended := w.ended || v_ended;
        w.due_us := 1;
    END IF;
    w.rows := w.rows || v_rows;
    w.ids := w.ids || v_ids;
    w.bytes := w.bytes + coalesce(v_bytes, 0);
    w.most := w.most - coalesce(cardinality(v_ids), 0);
    w.low_at := least(w.low_at, v_at);
    w.low_id := least(w.low_id, v_id);
    RETURN w;
END $$;

-- Those of these lines that have a limit, may give jobs, and in which a job is ready of the
-- kinds that the claim takes. The others are not worth the lock of their rows. p_ats, p_ids:
-- their first ready jobs.
CREATE OR REPLACE FUNCTION jobq._lines_ready(
    p_walk jobq.walk, p_rooms jobq.room[], p_ats timestamptz[], p_ids bigint[])
RETURNS bigint[] LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(
        SELECT u.no
        FROM unnest(p_rooms) WITH ORDINALITY AS u (no, room, most, limited, strict, token_us,
                                                   burst_us, jobs, due_us, k)
        WHERE u.limited AND u.room > 0 AND (p_walk.kinds IS NULL OR EXISTS (
            SELECT FROM jobq.job j
            WHERE j.queue_id = p_walk.queue_id AND j.priority = p_walk.priority
              AND j.stage = p_walk.stage AND NOT j.suspect AND j.line = u.no
              AND (j.run_at, j.id) >= (p_ats[u.k], p_ids[u.k])
              AND j.state = 'r' AND j.run_at <= statement_timestamp()
              AND j.kind_id = ANY (p_walk.kinds) OFFSET 0)));
END $$;

-- Where a walk stands after these visits: at the last line that gave a job. If the claim is
-- full before that line has given all of its share, because it has a weight, the next walk may
-- begin with it. Chance decides, because nothing is kept about it: on average it gets its
-- share.
CREATE OR REPLACE FUNCTION jobq._walk_stop(p_walk jobq.walk, p_rooms jobq.room[])
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_k integer := p_walk.froms[cardinality(p_walk.froms)];
    v_gave integer := cardinality(array_positions(p_walk.froms, v_k));
    v_last jobq.room := p_rooms[v_k];
BEGIN
    RETURN v_last.no - (p_walk.most = 0 AND v_last.room > p_walk.quantum
                        AND random() * v_last.room < v_last.room - v_gave)::integer;
END $$;

-- Writes what the visited lines that have limits have given. What each gave stands together at
-- the end of p_walk.ids.
CREATE OR REPLACE FUNCTION jobq._lines_used(p_walk jobq.walk, p_rooms jobq.room[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_before integer := cardinality(p_walk.ids) - cardinality(p_walk.froms);
BEGIN
    UPDATE jobq.line l
    SET used_at = statement_timestamp(),
        jobs = CASE WHEN (g.room).most IS NULL THEN '{}'
               ELSE (g.room).jobs || p_walk.ids[g.first : g.first + g.count - 1] END,
        free_at = CASE WHEN (g.room).token_us IS NULL THEN l.free_at
                  ELSE jobq._line_free(l.free_at, statement_timestamp(), (g.room).burst_us)
                       + g.count * (g.room).token_us * interval '1 microsecond' END
    FROM (SELECT v_before + min(u.n) AS first, count(*) AS count, p_rooms[u.k] AS room
          FROM unnest(p_walk.froms) WITH ORDINALITY AS u (k, n) GROUP BY u.k) AS g
    CROSS JOIN LATERAL (
        SELECT o.ctid FROM jobq.line o
        WHERE o.queue_id = p_walk.queue_id AND o.no >= (g.room).no AND o.no <= (g.room).no
        ORDER BY o.no DESC LIMIT 1) AS o
    WHERE l.ctid = o.ctid AND (g.room).limited;
END $$;

-- Visits these lines of a lane, which follow each other. p_ats, p_ids: their first ready jobs.
CREATE OR REPLACE FUNCTION jobq._claim_visit(
    p_walk jobq.walk, p_queue jobq.queue, p_ruled boolean, p_nos bigint[],
    p_ats timestamptz[], p_ids bigint[]) RETURNS jobq.walk
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    w jobq.walk := p_walk;
    v_rooms jobq.room[];
    v_limited bigint[];
    v_locked bigint[] := '{}';
    v_ats timestamptz[] := p_ats;
    v_ids bigint[] := p_ids;
BEGIN
    IF p_ruled THEN
        v_rooms := ARRAY(SELECT r FROM jobq._line_rooms(p_queue, p_nos, w.quantum,
                                                       w.ids, true) AS r);
    ELSE
        v_rooms := ARRAY(SELECT ROW(u.no, w.quantum, NULL, false, false, NULL, NULL,
                                    '{}', NULL)::jobq.room FROM unnest(p_nos) AS u (no));
    END IF;
    IF p_ruled THEN
        w.due_us := least(w.due_us, (SELECT min(r.due_us) FROM unnest(v_rooms) r));
        v_limited := jobq._lines_ready(w, v_rooms, p_ats, p_ids);
        IF v_limited <> '{}' THEN
            SELECT l.made, l.nos INTO w.made, v_locked FROM jobq._lock_lines(w, v_limited) l;
            IF cardinality(v_locked) < cardinality(v_limited) THEN
                w.due_us := least(w.due_us, 1000);
            END IF;
        END IF;
        -- Again, in a statement that sees what has happened before the locks were got.
        v_rooms := ARRAY(
            SELECT r FROM jobq._line_rooms(p_queue, v_locked || ARRAY(
                SELECT u.no FROM unnest(v_rooms) AS u WHERE NOT u.limited AND u.room > 0),
                w.quantum, w.ids) AS r
            WHERE NOT r.limited OR r.no = ANY (v_locked) ORDER BY r.no);
        SELECT array_agg(p_ats[f.k]), array_agg(p_ids[f.k]) INTO v_ats, v_ids FROM (
            SELECT array_position(p_nos, r.no) AS k FROM unnest(v_rooms) r) AS f;
        w.due_us := least(w.due_us, (SELECT min(r.due_us) FROM unnest(v_rooms) r));
    END IF;
    IF NOT EXISTS (SELECT FROM unnest(v_rooms) r WHERE r.room > 0) THEN RETURN w; END IF;
    w := jobq._take_lines(w, v_rooms, v_ats, v_ids);
    IF w.froms IS NULL THEN RETURN w; END IF;
    w.gave := jobq._walk_stop(w, v_rooms);
    w.more := w.more IS TRUE OR EXISTS (
        SELECT FROM (SELECT u.k, count(*) AS jobs FROM unnest(w.froms) AS u (k)
                     GROUP BY 1) AS g
        CROSS JOIN LATERAL (SELECT v_rooms[g.k] AS room OFFSET 0) AS r
        WHERE (r.room).room = g.jobs AND (r.room).token_us IS NULL
          AND (g.jobs < (r.room).most - cardinality((r.room).jobs)) IS NOT FALSE);
    IF v_locked <> '{}' THEN PERFORM jobq._lines_used(w, v_rooms); END IF;
    RETURN w;
END $$;

-- How many jobs a line may give: if the lines of a lane are so few, less than a page, that
-- they could not fill the claim, more than p_walk.quantum. p_lines: lines after p_walk.last.
CREATE OR REPLACE FUNCTION jobq._walk_quantum(
    p_walk jobq.walk, p_page integer, p_lines integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_lines integer := p_lines;
BEGIN
    IF v_lines < p_page THEN
        v_lines := v_lines + (SELECT cardinality(f.nos) FROM jobq._line_fronts(
            p_walk, -9223372036854775808, p_walk.last, p_page - v_lines, false) f);
    END IF;
    IF v_lines = 0 OR v_lines = p_page THEN RETURN p_walk.quantum; END IF;
    RETURN greatest(p_walk.quantum, (p_walk.most - 1) / v_lines + 1);
END $$;

-- Walks once round the lines of a lane, from the line after `last` on, until it has all that
-- it wants, or has visited 500 lines more than it has got jobs. `last` becomes where it
-- stopped. After a whole round that is the last line that gave a job; it stays if none did.
-- The lines are read in pages: as many as would fill the claim if they gave on average what
-- the lines before them gave. Where every line gives what it has, its first ready job is the
-- first that it gives, and is not looked for before.
CREATE OR REPLACE FUNCTION jobq._claim_walk(p_walk jobq.walk) RETURNS jobq.walk
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    w jobq.walk := p_walk;
    v_queue jobq.queue;
    v_ruled boolean;
    v_nos bigint[];
    v_ats timestamptz[];
    v_ids bigint[];
    v_at bigint := p_walk.last;
    v_end bigint := 9223372036854775807;
    v_page integer := least(200, (w.most + w.quantum - 1) / w.quantum);
    v_visited integer := 0;
    v_got integer;
    v_firsts boolean;
BEGIN
    SELECT q.* INTO v_queue FROM jobq.queue q WHERE q.id = w.queue_id;
    IF NOT FOUND THEN RETURN w; END IF;
    v_ruled := v_queue.line_strict
        OR num_nonnulls(v_queue.line_running_max, v_queue.line_rate_count) > 0
        OR EXISTS (SELECT FROM jobq.line l WHERE l.queue_id = w.queue_id);
    v_firsts := v_ruled OR w.kinds IS NOT NULL;
    LOOP
        SELECT f.nos, f.ats, f.ids INTO v_nos, v_ats, v_ids
        FROM jobq._line_fronts(w, v_at, v_end, v_page, v_firsts) f;
        IF v_visited = 0 AND v_end <> w.last THEN
            w.quantum := jobq._walk_quantum(w, v_page, cardinality(v_nos));
        END IF;
        IF v_nos <> '{}' THEN
            w.low_at := least(w.low_at, (SELECT min(u) FROM unnest(v_ats) u));
            w.low_id := least(w.low_id, (SELECT min(u) FROM unnest(v_ids) u));
            w := jobq._claim_visit(w, v_queue, v_ruled, v_nos, v_ats, v_ids);
            EXIT WHEN w.most = 0;
        END IF;
        v_visited := v_visited + cardinality(v_nos);
        v_got := p_walk.most - w.most;
        IF v_visited >= 500 + v_got THEN
            w.gave := v_nos[cardinality(v_nos)];
            w.more := true;
            EXIT;
        ELSIF cardinality(v_nos) = v_page THEN
            v_at := v_nos[v_page];
        ELSIF v_end = 9223372036854775807 THEN
            v_at := -9223372036854775808;
            v_end := p_walk.last;
        ELSE
            w.whole := true;
            EXIT;
        END IF;
        v_page := least(200, 500 + v_got - v_visited, CASE
            WHEN v_got = 0 THEN 2 * v_page ELSE w.most::bigint * v_visited / v_got + 1 END);
    END LOOP;
    IF w.most > 0 AND w.more THEN w.due_us := 1; END IF; -- the next claim goes on
    IF w.made IS NOT NULL THEN w.made := 9223372036854775807; END IF;
    w.last := coalesce(w.gave, w.last);
    w.quantum := p_walk.quantum;
    RETURN w;
END $$;

-- What a claim answers about the lines of a lane that it has walked: see claim.
CREATE OR REPLACE FUNCTION jobq._claim_stretch(p_walk jobq.walk) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_low bigint := -9223372036854775808; -- stands for -infinity
BEGIN
    IF isfinite(p_walk.low_at) THEN
        v_low := extract(epoch FROM p_walk.low_at) * 1000000;
    END IF;
    RETURN ARRAY[p_walk.queue_id, p_walk.priority, p_walk.stage, p_walk.whole::integer,
                 p_walk.last, v_low, p_walk.low_id];
END $$;

-- Which lanes of a claim are worth a look: those of lines only if a job of them is ready. Most
-- have none, and a walk costs far more than this.
CREATE OR REPLACE FUNCTION jobq._lanes_filled(
    p_queues integer[], p_priorities smallint[], p_stages smallint[],
    p_after_ats timestamptz[], p_lined boolean[], p_low_ids bigint[]) RETURNS boolean[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(
        SELECT u.lined IS NOT TRUE OR ready.id IS NOT NULL
        FROM unnest(p_queues, p_priorities, p_stages, p_after_ats, p_lined, p_low_ids)
             AS u (queue_id, priority, stage, after_at, lined, low_id)
        LEFT JOIN LATERAL (
            SELECT j.id FROM jobq.job j
            WHERE u.lined AND j.queue_id = u.queue_id AND j.priority = u.priority
              AND j.stage = u.stage AND NOT j.suspect AND j.line IS NOT NULL
              AND j.state = 'r' AND (j.run_at, j.id) >= (u.after_at, coalesce(u.low_id, 1))
              AND j.run_at <= statement_timestamp()
            ORDER BY j.line, j.run_at DESC, j.id DESC LIMIT 1) AS ready ON true);
END $$;

-- The lanes of a claim in their order, some of which have lines. walks, stretches: see claim.
CREATE OR REPLACE FUNCTION jobq._claim_lines(
    p_limit integer, p_queues integer[], p_priorities smallint[], p_stages smallint[],
    p_after_ats timestamptz[], p_after_ids bigint[], p_kinds integer[], p_lined boolean[],
    p_quantum integer, p_low_ids bigint[], p_until_ats timestamptz[], OUT rows tid[],
    OUT ids bigint[], OUT bytes bigint, OUT walks bigint[], OUT stretches bigint[],
    OUT ended bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    w jobq.walk;
    v_filled boolean[] := jobq._lanes_filled(p_queues, p_priorities, p_stages, p_after_ats,
                                            p_lined, p_low_ids);
    v_queues integer[] := '{}';
    v_lasts bigint[];
    v_dues bigint[];
    v_run integer[] := '{}'; -- lanes without lines, to be claimed from in one go
    v_n integer;
BEGIN
    w.most := p_limit;
    w.quantum := greatest(p_quantum, 1);
    w.kinds := p_kinds;
    w.bytes := 0;
    FOR v_at IN 1 .. cardinality(p_queues) + 1 LOOP
        IF v_filled[v_at] AND p_lined[v_at] IS NOT TRUE THEN
            v_run := v_run || v_at;
        ELSIF v_run <> '{}' AND v_filled[v_at] IS NOT false THEN
            w := jobq._claim_lanes(w, v_run, p_queues, p_priorities, p_stages, p_after_ats,
                                  p_after_ids, p_until_ats);
            v_run := '{}';
        END IF;
        EXIT WHEN w.most = 0;
        CONTINUE WHEN p_lined[v_at] IS NOT TRUE;
        v_n := coalesce(array_position(v_queues, p_queues[v_at]), cardinality(v_queues) + 1);
        v_queues[v_n] := p_queues[v_at];
        v_lasts[v_n] := coalesce(v_lasts[v_n], p_after_ids[v_at]);
        CONTINUE WHEN NOT v_filled[v_at];
        w.queue_id := p_queues[v_at];
        w.priority := p_priorities[v_at];
        w.stage := p_stages[v_at];
        w.last := v_lasts[v_n];
        w.due_us := v_dues[v_n];
        w.after_at := p_after_ats[v_at];
        w.after_id := coalesce(p_low_ids[v_at], 1);
        w.gave := NULL;
        w.more := NULL;
        w.whole := false;
        w.low_at := NULL;
        w.low_id := NULL;
        w := jobq._claim_walk(w);
        v_lasts[v_n] := w.last;
        v_dues[v_n] := w.due_us;
        IF p_low_ids IS NOT NULL AND w.low_at IS NOT NULL THEN
            stretches := stretches || jobq._claim_stretch(w);
        END IF;
    END LOOP;
    FOR i IN 1 .. cardinality(v_queues) LOOP
        IF w.most > 0 AND v_queues[i] = ANY (w.moved) THEN
            v_dues[i] := 1; -- they may be in a lane that this claim has passed already
        END IF;
        walks := walks || ARRAY[v_queues[i], v_lasts[i], v_dues[i]];
    END LOOP;
    rows := w.rows;
    ids := w.ids;
    bytes := w.bytes;
    ended := w.ended;
END $$;

-- ---- looking -------------------------------------------------------------------------------

-- The jobs that hold a strict line: no other one of it runs before they have ended. As
-- strict_job has it.
CREATE OR REPLACE FUNCTION jobq._strict_holders(p_queue integer, p_line text) RETURNS bigint[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    RETURN ARRAY(
        SELECT u.id FROM jobq.line l JOIN jobq.queue q ON q.id = l.queue_id
        CROSS JOIN unnest(l.jobs) AS u (id)
        WHERE l.queue_id = p_queue AND l.no = jobq._line_no(p_line)
          AND l.name = p_line COLLATE "C"
          AND coalesce(l.strict, q.line_strict) AND EXISTS ( -- OFFSET: see heartbeat
              SELECT FROM jobq.job j
              WHERE j.id = u.id AND j.queue_id = l.queue_id AND j.line_name = l.name
                AND j.claimed_at IS NOT NULL OFFSET 0));
END $$;

-- For each of these jobs that is in a strict line, the jobs that hold the line. A negative id
-- is a flow: then one of its jobs in each line.
CREATE OR REPLACE FUNCTION jobq._line_waits(p_ids bigint[])
RETURNS TABLE (child bigint, parent bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT s.id, h.id
    FROM (SELECT j.id, j.queue_id, j.line_name FROM jobq.job j
          WHERE j.id = ANY (p_ids) AND j.state <> 'x' AND j.line_name IS NOT NULL
          UNION ALL
          SELECT min(j.id), j.queue_id, j.line_name FROM unnest(p_ids) AS u (id)
          JOIN jobq.job j ON j.flow_id = -u.id AND j.flow_id > 0
          WHERE j.state <> 'x' AND j.line_name IS NOT NULL
            AND EXISTS (SELECT FROM jobq.queue q WHERE q.lines)
          GROUP BY j.queue_id, j.line_name) AS s
    CROSS JOIN LATERAL (
        SELECT jobq._strict_holders(s.queue_id, s.line_name) AS ids OFFSET 0) AS l
    CROSS JOIN LATERAL unnest(l.ids) AS h (id)
    WHERE s.id <> ALL (l.ids);
END $$;

-- An instant as people read it, in the session's zone, and a duration without days: whatever
-- DateStyle and IntervalStyle are.
CREATE OR REPLACE FUNCTION jobq._shown(p_at timestamptz) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN to_char(p_at, 'YYYY-MM-DD HH24:MI:SSOF');
END $$;

CREATE OR REPLACE FUNCTION jobq._shown(p_time interval) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN rtrim(rtrim(to_char(p_time, 'HH24:MI:SS.US'), '0'), '.');
END $$;

-- A rate as a person writes it.
CREATE OR REPLACE FUNCTION jobq._rate_text(p_count integer, p_us bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN p_count > 0 THEN format('%s/%s', p_count, CASE p_us
        WHEN 1000000 THEN 's' WHEN 60000000 THEN 'min' WHEN 3600000000 THEN 'h'
        WHEN 86400000000 THEN 'day' ELSE jobq._shown(p_us * interval '1 microsecond') END) END;
END $$;

-- The lines of a queue that have a row or in which any job stands.
CREATE OR REPLACE FUNCTION jobq._known_lines(p_queue jobq.queue)
RETURNS TABLE (no bigint, name text)
LANGUAGE plpgsql STABLE ROWS 100 SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT l.no, l.name FROM jobq.line l WHERE l.queue_id = p_queue.id;
    IF NOT p_queue.lines THEN RETURN; END IF;
    RETURN QUERY
    SELECT DISTINCT ON (u.no) u.no, one.line_name
    FROM generate_series(p_queue.priority_min, 9) AS p (priority)
    CROSS JOIN generate_series(0, p_queue.stages_max - 1) AS s (stage)
    CROSS JOIN LATERAL unnest(jobq._next_lines(
        p_queue.id, p.priority::smallint, s.stage::smallint, -9223372036854775808,
        9223372036854775807, 2147483647)) AS u (no)
    CROSS JOIN LATERAL (
        SELECT j.line_name FROM jobq.job j
        WHERE j.queue_id = p_queue.id AND j.priority = p.priority AND j.stage = s.stage
          AND NOT j.suspect AND j.line = u.no LIMIT 1) AS one
    WHERE NOT EXISTS (SELECT FROM jobq.line l WHERE l.queue_id = p_queue.id AND l.no = u.no);
END $$;

-- A part of peek, and under its settings: what lines would give next, as in a claim of
-- p_at_most that begins with the first line. Of each lane as many lines are looked at.
CREATE OR REPLACE FUNCTION jobq._peek_lines(
    p_queue jobq.queue, p_at_most integer, p_exclude bigint[]) RETURNS SETOF jobq.job
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT p_queue.lines THEN RETURN; END IF;
    RETURN QUERY
    SELECT j.* FROM generate_series(p_queue.priority_min, 9) AS p (priority)
    CROSS JOIN generate_series(p_queue.stages_max - 1, 0, -1) AS s (stage)
    CROSS JOIN LATERAL jobq._line_rooms(p_queue, jobq._next_lines(
        p_queue.id, p.priority::smallint, s.stage::smallint, -9223372036854775808,
        9223372036854775807, p_at_most), p_at_most, '{}') AS l
    CROSS JOIN LATERAL (
        SELECT n.* FROM jobq.job n
        WHERE n.queue_id = p_queue.id AND n.priority = p.priority AND n.stage = s.stage
          AND NOT n.suspect AND n.line = l.no AND n.state = 'r'
          AND n.run_at <= statement_timestamp() AND n.id <> ALL (p_exclude)
          AND (n.expires_at <= statement_timestamp()) IS NOT TRUE
          AND n.kind_id NOT IN (SELECT h.id FROM jobq.kind h
                                WHERE h.queue_id = p_queue.id AND h.paused_at IS NOT NULL)
        ORDER BY n.run_at, n.id LIMIT least(l.room, p_at_most)) AS j
    WHERE l.room > 0;
END $$;

-- How many jobs run in a line beyond its limit, and do not hold it: they passed it. 0.
CREATE OR REPLACE FUNCTION jobq._audit_lines() RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT coalesce(sum(least(r.unheld, r.jobs - m.most)), 0)
        FROM (SELECT j.queue_id, jobq._line_no(j.line_name) AS no, count(*) AS jobs,
                     count(*) FILTER (WHERE l.no IS NULL OR j.id <> ALL (l.jobs)) AS unheld
              FROM jobq.job j LEFT JOIN jobq.line l
                  ON l.queue_id = j.queue_id AND l.no = jobq._line_no(j.line_name)
              WHERE j.state = 'x' AND j.line_name IS NOT NULL GROUP BY 1, 2) AS r
        JOIN jobq.queue q ON q.id = r.queue_id
        CROSS JOIN LATERAL jobq._line_rooms(q, ARRAY[r.no], 1, '{}') AS m
        WHERE r.jobs > m.most AND r.unheld > 0);
END $$;

-- How many jobs stand in lines where no claim looks for them: under another number than that
-- of the line's name, before their time, while they wait for another job, or in a queue that
-- workers take for one without lines. And how many rows of lines have a wrong number. 0.
CREATE OR REPLACE FUNCTION jobq._audit_places() RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT count(*) FROM jobq.job j JOIN jobq.queue q ON q.id = j.queue_id
        WHERE j.line IS NOT NULL AND (
            j.line IS DISTINCT FROM jobq._line_no(j.line_name) OR j.state = 'w' OR NOT q.lines
            OR j.run_at > clock_timestamp() + interval '1 minute'))
        + (SELECT count(*) FROM jobq.line l WHERE l.no <> jobq._line_no(l.name));
END $$;

-- ---- settings ------------------------------------------------------------------------------

-- The jobs of a queue that hold their lines if those have limits: they run, or are suspects.
CREATE OR REPLACE FUNCTION jobq._line_holders(p_queue integer)
RETURNS TABLE (id bigint, line_name text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT j.id, j.line_name FROM jobq._running() r
    CROSS JOIN LATERAL (SELECT * FROM jobq.job o WHERE o.id = r.id OFFSET 0) AS j
    WHERE j.queue_id = p_queue AND j.line_name IS NOT NULL
    UNION
    SELECT j.id, j.line_name FROM jobq.job j
    WHERE j.queue_id = p_queue AND j.suspect AND j.line_name IS NOT NULL;
END $$;

-- Makes sure that a line has a row, and answers its number. Claims wait for no transaction
-- that makes one: see lock_lines. Its jobs that run, and suspects, hold the line from now on.
CREATE OR REPLACE FUNCTION jobq._line_row(p_queue integer, p_line text) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_no bigint := jobq._line_no(p_line);
BEGIN
    IF (octet_length(p_line) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        PERFORM jobq._refuse('line', 'must be 1 to 1024 bytes', p_value => p_line);
    END IF;
    PERFORM jobq._need_read_committed(); -- jobs that run since count
    PERFORM FROM jobq.line l WHERE l.queue_id = p_queue AND l.no = v_no FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM pg_advisory_xact_lock(hashtext('jobq.line'), p_queue);
        INSERT INTO jobq.line (queue_id, no, name) VALUES (p_queue, v_no, p_line)
        ON CONFLICT DO NOTHING;
        PERFORM FROM jobq.line l WHERE l.queue_id = p_queue AND l.no = v_no FOR UPDATE;
    END IF;
    UPDATE jobq.line l SET used_at = statement_timestamp(), jobs = l.jobs || h.ids
    FROM (SELECT array_agg(r.id) AS ids FROM jobq._line_holders(p_queue) r
          WHERE r.line_name = p_line COLLATE "C") AS h
    WHERE l.queue_id = p_queue AND l.no = v_no AND NOT h.ids <@ l.jobs;
    RETURN v_no;
END $$;

-- Suspects among these jobs have come into other lines, or into this queue, not by a claim.
-- From now on they hold their lines, if those have limits.
CREATE OR REPLACE FUNCTION jobq._line_suspects(p_queue integer, p_ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._line_row(p_queue, s.line_name) FROM (
        SELECT DISTINCT j.line_name FROM jobq.job j
        WHERE j.id = ANY (p_ids) AND j.suspect AND j.line_name IS NOT NULL ORDER BY 1) AS s
    WHERE EXISTS (SELECT FROM jobq.queue q WHERE q.id = p_queue
                  AND (q.line_strict OR q.line_running_max IS NOT NULL))
       OR EXISTS (SELECT FROM jobq.line l
                  WHERE l.queue_id = p_queue AND l.no = jobq._line_no(s.line_name));
END $$;

-- Sets what a line has of its own; NULL leaves a part as it is. Claims that follow obey it.
--   running_max  jobs of it that may run at once. 0: any number, whatever the queue has
--   strict       one job after the other, in their order: the next one begins when the last
--                one has ended for good. So that one may wait for others, but not of its line.
--   rate         how many may begin in a time: '10/s', '100/min', '5/h', '1000/day', '10/5 s';
--                '0': any number. rate_burst: how many may begin at once after a pause
--                (default 1, at most 1,000,000).
--   weight       1 to 100: how many jobs it gives while another line gives one
--   paused       nothing of it is claimed
--   hold         nothing of it is claimed for this time; '0' ends the hold
--   reset        first drops all that the line has of its own
-- A queue that does not exist is created, as queue_set does it. Errors: 22023.
--     select jobq.line_set('mail', 'tenant-7', running_max => 3, rate => '100/min');
CREATE OR REPLACE FUNCTION jobq.line_set(
    queue text, line text, running_max integer DEFAULT NULL, weight integer DEFAULT NULL,
    strict boolean DEFAULT NULL, rate text DEFAULT NULL, rate_burst integer DEFAULT NULL,
    paused boolean DEFAULT NULL, hold interval DEFAULT NULL, reset boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_queue integer := jobq._queue_id(queue);
    v_no bigint;
    v_rate record;
    v_before jsonb;
BEGIN
    IF running_max < 0 THEN
        PERFORM jobq._refuse('running_max', 'must be 0 (no limit) or more');
    END IF;
    IF weight NOT BETWEEN 1 AND 100 THEN
        PERFORM jobq._refuse('weight', 'must be 1 to 100');
    END IF;
    IF rate_burst NOT BETWEEN 1 AND 1000000 THEN
        PERFORM jobq._refuse('rate_burst', 'must be 1 to 1,000,000');
    END IF;
    IF hold NOT BETWEEN '0' AND '1000 years' THEN
        PERFORM jobq._refuse('hold', 'must be 0 to 1000 years');
    END IF;
    SELECT p.count, p.us INTO v_rate FROM jobq._rate_parse(rate, 'rate') p;
    v_no := jobq._line_row(v_queue, line);
    SELECT to_jsonb(l) INTO v_before FROM jobq.line l
    WHERE l.queue_id = v_queue AND l.no = v_no;
    IF reset THEN
        UPDATE jobq.line l
        SET running_max = NULL, weight = 1, strict = NULL, rate_us = NULL, rate_count = NULL,
            rate_burst = NULL, paused_at = NULL, hold_until = NULL,
            held_at = '-infinity', hold_why = NULL
        WHERE l.queue_id = v_queue AND l.no = v_no;
    END IF;
    UPDATE jobq.line l
    SET running_max = coalesce(running_max, l.running_max),
        weight = coalesce(weight, l.weight), strict = coalesce(strict, l.strict),
        rate_us = coalesce(v_rate.us, l.rate_us),
        rate_count = coalesce(v_rate.count, l.rate_count),
        rate_burst = coalesce(rate_burst, l.rate_burst),
        paused_at = CASE WHEN paused IS NULL THEN l.paused_at
                         WHEN paused THEN coalesce(l.paused_at, statement_timestamp()) END,
        hold_until = CASE WHEN hold IS NULL THEN l.hold_until
                          WHEN hold > '0' THEN statement_timestamp() + hold END,
        held_at = CASE WHEN hold IS NULL THEN l.held_at ELSE '-infinity' END,
        hold_why = CASE WHEN hold IS NULL THEN l.hold_why END
    WHERE l.queue_id = v_queue AND l.no = v_no;
    PERFORM jobq._operated_row('line_set', jsonb_build_object('queue', queue, 'line', line),
                               v_before, to_jsonb(l)) FROM jobq.line l
    WHERE l.queue_id = v_queue AND l.no = v_no;
    PERFORM jobq._wake(v_queue, 1000);
END $$;

-- Nothing of a line, or of the whole queue (line NULL), is claimed before this instant, say
-- because a server that all its jobs need asked for a pause. NULL: it is no longer held. Jobs
-- that run go on. Workers learn of a queue's hold at once if they listen, otherwise with the
-- next heartbeat.
-- why: for people. Errors: 22023, also for a queue that does not exist.
--     select jobq.hold('mail', 'tenant-7', now() + interval '1 minute', 'it answered 429');
--     select jobq.hold('mail', 'tenant-7', NULL);
CREATE OR REPLACE FUNCTION jobq.hold(
    queue text, line text, until timestamptz, why text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    IF until IS NULL AND why IS NOT NULL THEN
        PERFORM jobq._refuse('why', 'needs until');
    END IF;
    PERFORM jobq._hold_from(queue, line, '-infinity', until, why);
END $$;

-- The same, as a handler sets it, at p_from: see the tables' instants.
CREATE OR REPLACE FUNCTION jobq._hold_from(
    queue text, line text, p_from timestamptz, until timestamptz, why text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_queue integer := jobq._known_queue(queue);
    v_no bigint;
BEGIN
    IF NOT isfinite(until) THEN
        PERFORM jobq._refuse('until', 'must be a finite instant');
    END IF;
    IF line IS NULL THEN
        UPDATE jobq.queue q
        SET hold_until = until, held_at = p_from, hold_why = left(why, 1024)
        WHERE q.id = v_queue;
        PERFORM jobq._tell(v_queue);
    ELSE
        v_no := jobq._line_row(v_queue, line);
        UPDATE jobq.line l
        SET hold_until = until, held_at = p_from, hold_why = left(why, 1024)
        WHERE l.queue_id = v_queue AND l.no = v_no;
    END IF;
    PERFORM jobq._wake(v_queue, 1000);
END $$;

-- A part of queue_set: what the lines of a queue have by default, and its ageing.
CREATE OR REPLACE FUNCTION jobq._queue_lines_set(
    p_queue integer, p_kind text, p_running_max integer, p_strict boolean, p_rate text,
    p_rate_burst integer, p_waiting_max integer, p_ageing boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_rate record;
BEGIN
    IF num_nonnulls(p_running_max, p_strict, p_rate, p_rate_burst, p_waiting_max,
                    p_ageing) = 0 THEN
        RETURN;
    END IF;
    PERFORM jobq._refuse(u.field, CASE WHEN p_kind IS NULL THEN 'must be 0 or more'
                                 ELSE 'is set for the queue, not for a kind' END)
    FROM (VALUES ('line_running_max', p_running_max), ('line_strict', p_strict::integer),
                 ('line_rate', CASE WHEN p_rate IS NOT NULL THEN 1 END),
                 ('line_rate_burst', p_rate_burst), ('line_waiting_max', p_waiting_max),
                 ('ageing', p_ageing::integer)) AS u (field, given)
    WHERE u.given < 0 OR (p_kind IS NOT NULL AND u.given IS NOT NULL);
    IF p_rate_burst > 1000000 THEN
        PERFORM jobq._refuse('line_rate_burst', 'must be 0 to 1,000,000');
    END IF;
    IF p_running_max > 0 OR p_strict THEN
        PERFORM jobq._need_read_committed(); -- as in line_row, also of lines without a row
    END IF;
    SELECT r.count, r.us INTO v_rate FROM jobq._rate_parse(p_rate, 'line_rate') r;
    UPDATE jobq.queue q
    SET line_running_max = nullif(coalesce(p_running_max, q.line_running_max), 0),
        line_strict = coalesce(p_strict, q.line_strict),
        line_rate_count = nullif(coalesce(v_rate.count, q.line_rate_count), 0),
        line_rate_us = nullif(coalesce(v_rate.us, q.line_rate_us), 0),
        line_rate_burst = nullif(coalesce(p_rate_burst, q.line_rate_burst), 0),
        line_waiting_max = nullif(coalesce(p_waiting_max, q.line_waiting_max), 0),
        ageing = coalesce(p_ageing, q.ageing)
    WHERE q.id = p_queue;
    IF p_running_max > 0 OR p_strict THEN
        PERFORM jobq._line_row(p_queue, u.line_name) FROM (
            SELECT DISTINCT h.line_name FROM jobq._line_holders(p_queue) h ORDER BY 1) AS u;
    END IF;
END $$;

-- ---- housekeeping --------------------------------------------------------------------------

-- Deletes rows of lines that nobody misses: without settings, not used for a day, no job holds
-- them, all their tokens are there; and those of queues that were deleted.
CREATE OR REPLACE FUNCTION jobq._prune_lines(p_limit integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM jobq.line l WHERE l.ctid = ANY (ARRAY(
        SELECT o.ctid FROM jobq.line o LEFT JOIN jobq.queue q ON q.id = o.queue_id
        WHERE q.id IS NULL
           OR (o.used_at < statement_timestamp() - interval '1 day' AND o.weight = 1
               AND num_nonnulls(o.running_max, o.strict, o.rate_count, o.rate_burst,
                                o.paused_at) = 0
               AND (clock_timestamp() BETWEEN o.held_at AND o.hold_until) IS NOT TRUE
               AND o.free_at < statement_timestamp() - coalesce(
                   q.line_rate_us * coalesce(q.line_rate_burst, 1), 0)
                   * interval '1 microsecond'
               AND NOT EXISTS (SELECT FROM jobq.job j
                               WHERE j.id = ANY (o.jobs) AND (
                                   q.line_strict OR j.state = 'x' OR j.suspect)))
        LIMIT p_limit FOR UPDATE OF o SKIP LOCKED));
END $$;

-- A part of renew. The hash may be another one on this server. Tokens are counted from now on:
-- the copy may lack claims that the original has made.
CREATE OR REPLACE FUNCTION jobq._lines_restored() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE jobq.job j SET line = jobq._line_no(j.line_name)
    WHERE j.line IS NOT NULL AND j.line <> jobq._line_no(j.line_name);
    DELETE FROM jobq.line l
    WHERE l.no <> jobq._line_no(l.name) AND EXISTS (
        SELECT FROM jobq.line o
        WHERE o.queue_id = l.queue_id AND o.no = jobq._line_no(l.name) AND o.name = l.name);
    UPDATE jobq.line l SET no = jobq._line_no(l.name) WHERE l.no <> jobq._line_no(l.name);
    UPDATE jobq.line l SET free_at = statement_timestamp() WHERE isfinite(l.free_at);
END $$;
