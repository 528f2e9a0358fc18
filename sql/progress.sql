-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: how far running jobs are.

-- A part of heartbeat: writes the progress of running jobs into the rows of their claims.
-- Element i of the arrays is a job; without a note its element is NULL.
-- It must not wait, because the worker's lease depends on it: a row that somebody has locked
-- is left out. False: some were, so the worker sends the same again.
CREATE OR REPLACE FUNCTION jobq._progress_write(
    p_worker bigint, p_claims bigint[], p_jobs bigint[], p_permilles integer[], p_notes text[])
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE v_count integer;
BEGIN
    UPDATE jobq.claim c SET progress = coalesce(c.progress, '{}') || n.progress
    FROM (SELECT u.claim, jsonb_object_agg(u.job, jsonb_build_array(
                     u.permille, u.note, statement_timestamp())) AS progress
          FROM unnest(p_claims, p_jobs, p_permilles, p_notes) AS u (claim, job, permille, note)
          GROUP BY u.claim) AS n
    WHERE c.number = n.claim AND c.ctid = ANY (ARRAY(
        SELECT o.ctid FROM jobq.claim o
        WHERE o.worker = p_worker AND o.number = ANY (p_claims)
        FOR NO KEY UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count = (SELECT count(*) FROM jobq.claim c
                      WHERE c.worker = p_worker AND c.number = ANY (p_claims));
END $$;

-- What a handler's jobq_call_progress does. Only the worker that has the job may do it.
CREATE OR REPLACE FUNCTION jobq._progress_of_claim(
    p_worker bigint, p_claim bigint, p_id bigint, p_permille integer, p_note text)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    UPDATE jobq.claim c
    SET progress = coalesce(c.progress, '{}') || jsonb_build_object(p_id, jsonb_build_array(
            p_permille, p_note, statement_timestamp()))
    WHERE c.worker = p_worker AND c.number = p_claim AND EXISTS (
        SELECT FROM jobq.job j
        WHERE j.id = p_id AND j.worker = p_worker AND j.claim = p_claim);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease lost on job %', p_id USING ERRCODE = 'JQ001',
            HINT = 'Another worker has, or had, this job.';
    END IF;
END $$;

-- Jobs that workers have, and how far they are. They are found as by the function running.
CREATE OR REPLACE VIEW jobq.running AS
SELECT r.id, q.name AS queue, k.name AS kind, w.name AS worker, r.attempt,
       r.claimed_at AS since, round((r.progress ->> 0)::integer / 10.0, 1) AS percent,
       r.progress ->> 1 AS note, (r.progress ->> 2)::timestamptz AS progress_at
FROM (SELECT j.id, j.queue_id, j.kind_id, j.worker, j.attempt, j.claimed_at,
             c.progress -> j.id::text AS progress
      FROM jobq.claim c CROSS JOIN unnest(c.jobs) AS held (id) CROSS JOIN LATERAL (
          SELECT one.* FROM jobq.job one
          WHERE one.id = held.id AND one.worker = c.worker AND one.claim = c.number
          LIMIT 1) AS j) AS r
JOIN jobq.queue q ON q.id = r.queue_id JOIN jobq.kind k ON k.id = r.kind_id
LEFT JOIN jobq.worker w ON w.id = r.worker;
