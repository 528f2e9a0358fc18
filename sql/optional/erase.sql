-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: erasure, of what is known of a person, say.

-- The errors of an erased job: when they were, and nothing else. What is no array of objects
-- was not written by add_error, and goes.
CREATE OR REPLACE FUNCTION jobq._erased_errors(p_errors jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
                'at', e.item -> 'at', 'stage', e.item -> 'stage', 'attempt',
                e.item -> 'attempt', 'dropped', e.item -> 'dropped', 'error',
                CASE WHEN NOT e.item ? 'dropped' THEN 'erased' END)) ORDER BY e.n)
            FROM jsonb_array_elements(CASE jsonb_typeof(p_errors) WHEN 'array' THEN p_errors
                                      END) WITH ORDINALITY AS e (item, n)
            WHERE jsonb_typeof(e.item) = 'object');
END $$;

-- What is left of the headers, which no longer have the tags.
CREATE OR REPLACE FUNCTION jobq._erased_mark() RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jsonb_build_object('erased', statement_timestamp());
END $$;

-- Whether this is what erase has left.
CREATE OR REPLACE FUNCTION jobq._is_erased(p_payload jsonb, p_headers jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(p_headers ? 'erased' AND p_headers - 'erased' = '{}'
                    AND p_payload = '{"erased": true}', false);
END $$;

-- Erases these jobs of a place, by id; the numbers of dead letters and operations. Known keys
-- go too: they may be names, and then the same key enqueues again. Rows are locked before
-- their keys, as by other verbs. Nobody can revive or replay what is erased: what waits for
-- such a job waits as for one that was cancelled, and open dead letters are discarded. One
-- that a replay works on stays until that has ended.
CREATE OR REPLACE FUNCTION jobq._erase_rows(p_place text, p_ids bigint[], p_tags jsonb)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
DECLARE v_linked bigint[];
BEGIN
    CASE p_place
    WHEN 'failed jobs' THEN
        PERFORM FROM jobq.failed f WHERE f.id = ANY (p_ids) ORDER BY f.id FOR UPDATE;
        PERFORM FROM jobq.idempotency k JOIN jobq.failed f
            ON k.queue_id = f.queue_id AND k.key = f.key AND k.job_id = f.id
        WHERE f.id = ANY (p_ids) ORDER BY k.key FOR UPDATE OF k;
        DELETE FROM jobq.idempotency k USING jobq.failed f
        WHERE f.id = ANY (p_ids) AND k.queue_id = f.queue_id AND k.key = f.key
          AND k.job_id = f.id;
        WITH erased AS (
            UPDATE jobq.failed f
            SET payload = '{"erased": true}', bytes = NULL, headers = jobq._erased_mark(),
                errors = jobq._erased_errors(f.errors), steps = NULL, key = NULL
            WHERE f.id = ANY (p_ids)
            RETURNING f.id, f.flow_id
        )
        SELECT array_agg(e.id) FILTER (WHERE e.flow_id IS NOT NULL) INTO v_linked
        FROM erased e;
        PERFORM jobq._edges_forget(v_linked);
    WHEN 'history' THEN
        PERFORM FROM jobq.history h WHERE h.id = ANY (p_ids) ORDER BY h.id FOR UPDATE;
        PERFORM FROM jobq.idempotency k JOIN jobq.history h
            ON k.queue_id = h.queue_id AND k.key = h.key AND k.job_id = h.id
        WHERE h.id = ANY (p_ids) ORDER BY k.key FOR UPDATE OF k;
        DELETE FROM jobq.idempotency k USING jobq.history h
        WHERE h.id = ANY (p_ids) AND k.queue_id = h.queue_id AND k.key = h.key
          AND k.job_id = h.id;
        UPDATE jobq.history h
        SET payload = '{"erased": true}', bytes = NULL, headers = jobq._erased_mark(),
            errors = jobq._erased_errors(h.errors), result = NULL, result_bytes = NULL,
            log = NULL, key = NULL
        WHERE h.id = ANY (p_ids) AND h.headers @> p_tags;
    WHEN 'dead letters' THEN
        UPDATE jobq.dead_letter d
        SET payload = '{"erased": true}', bytes = NULL, headers = jobq._erased_mark(),
            error = 'erased', token = NULL, taken_at = NULL, deadline = NULL,
            completed_at = coalesce(d.completed_at, statement_timestamp()),
            status = CASE d.status WHEN 'resolved' THEN 'resolved' ELSE 'discarded' END
        WHERE d.id = ANY (p_ids)
          AND (d.status <> 'reprocessing'
               OR clock_timestamp() NOT BETWEEN d.taken_at AND d.deadline);
    WHEN 'operations' THEN
        UPDATE jobq.operation o
        SET arguments = o.arguments || jsonb_build_object('tags', jobq._erased_mark())
        WHERE o.id = ANY (p_ids);
    END CASE;
END $$;

-- A page of a place: up to p_most rows after p_after, in the order of their ids. matched: the
-- ids of the rows with the tags. last: the page's last id, or NULL if there are no more rows.
-- One snapshot shows both live and failed jobs, because a revive moves a job between them.
CREATE OR REPLACE FUNCTION jobq._erase_page(
    p_place text, p_tags jsonb, p_after bigint, p_most bigint, OUT looked bigint,
    OUT matched bigint[], OUT last bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    EXECUTE format(
        'SELECT count(*), coalesce(array_agg(DISTINCT p.id) FILTER (WHERE p.tags @> $1),'
        ' ''{}''), max(p.id) FROM (SELECT t.id, t.tags FROM (%s) t WHERE t.id > $2'
        ' ORDER BY t.id FETCH FIRST $3 ROWS WITH TIES) p', CASE p_place
        WHEN 'jobs' THEN 'SELECT id, headers AS tags FROM jobq.job'
            ' UNION ALL SELECT id, headers FROM jobq.failed'
        WHEN 'history' THEN 'SELECT id, headers AS tags FROM jobq.history'
        WHEN 'dead letters' THEN 'SELECT id, headers AS tags FROM jobq.dead_letter'
        WHEN 'operations' THEN 'SELECT id, arguments -> ''tags'' AS tags FROM jobq.operation'
        END)
    INTO looked, matched, last USING p_tags, p_after, p_most;
    IF looked < p_most THEN last := NULL; END IF;
END $$;

-- The same of messages, whose order is (partition_id, id). They are erased as they come,
-- also those that nobody has read yet: each keeps its number, and its receiver gets
-- {"erased": true}. p_live false: those are only counted. The keys of messages count from when
-- these were written; so they differ from keys of jobs, which may have the same ids. The key
-- of a copy is its source's.
CREATE OR REPLACE FUNCTION jobq._erase_messages(
    p_tags jsonb, p_part bigint, p_after bigint, p_most bigint, p_dry boolean, p_live boolean,
    OUT looked bigint, OUT matched bigint, OUT live bigint, OUT last_part bigint,
    OUT last bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_parts bigint[];
    v_ids bigint[];
    v_last bigint[];
BEGIN
    SELECT count(*), array_agg(p.partition_id) FILTER (WHERE p.headers @> p_tags),
           array_agg(p.id) FILTER (WHERE p.headers @> p_tags),
           count(*) FILTER (WHERE p.headers @> p_tags), max(ARRAY[p.partition_id, p.id])
    INTO looked, v_parts, v_ids, matched, v_last
    FROM (SELECT m.partition_id, m.id, m.headers FROM jobq.message m
          WHERE (m.partition_id, m.id) > (p_part, p_after)
          ORDER BY m.partition_id, m.id LIMIT p_most) p;
    IF looked >= p_most THEN
        last_part := v_last[1];
        last := v_last[2];
    END IF;
    live := CASE WHEN p_live THEN 0 ELSE matched END;
    IF p_dry OR NOT p_live THEN RETURN; END IF;
    WITH erased AS (
        UPDATE jobq.message m
        SET payload = '{"erased": true}', bytes = NULL, headers = jobq._erased_mark()
        FROM unnest(v_parts, v_ids) AS u (part, id)
        WHERE m.partition_id = u.part AND m.id = u.id
        RETURNING m.partition_id >> 15 AS queue_id, m.id, m.created_at
    )
    DELETE FROM jobq.idempotency k USING erased e
    WHERE k.ended_at = e.created_at AND k.job_id = e.id AND k.queue_id IN (
        SELECT e.queue_id UNION ALL
        SELECT s.source_id FROM jobq.subscription s WHERE s.queue_id = e.queue_id);
END $$;

-- A part of erase: jobs, live and failed. They are locked before any keys.
CREATE OR REPLACE FUNCTION jobq._erase_jobs(
    p_ids bigint[], p_tags jsonb, p_cancel boolean, OUT erased bigint, OUT live bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM FROM jobq.job j WHERE j.id = ANY (p_ids) AND p_cancel ORDER BY j.id FOR UPDATE;
    PERFORM jobq._erase_rows('failed jobs', p_ids, p_tags);
    erased := (SELECT count(*) FROM jobq.failed f
               WHERE f.id = ANY (p_ids) AND jobq._is_erased(f.payload, f.headers));
    live := jobq._erase_live(p_ids, p_cancel);
END $$;

-- Erases what jobs and messages with these tags, members of their headers, carried: payload,
-- headers, results, logs, errors, steps, keys. Rows, states, times and numbers stay. What has
-- failed cannot be revived or replayed afterwards.
--   live     what to do with jobs that have not ended, and messages that are not read yet.
--            leave: they are counted as live. cancel: such jobs are cancelled, and such
--            messages erased. A running job stays live until its worker ends it, and a dead
--            letter that is replayed until that has ended.
--   at_most  how many rows a call looks at; no index leads to tags.
--   after    where to begin: next of the last row of the previous answer, until that is NULL.
--            Without it a call begins again.
-- Repeat the whole until it finds nothing (matched is 0 in each row): something may have gone
-- meanwhile to a place where it had looked before. Each place is a row; jobs are those that
-- live and those that failed. Then follow the places that it cannot reach, with what to do
-- about them.
-- Errors: 22023.
--     select * from jobq.erase('{"person": "4711"}'); -- shows what it would do
--     select * from jobq.erase('{"person": "4711"}', dry => false);
CREATE OR REPLACE FUNCTION jobq.erase(
    tags jsonb, dry boolean DEFAULT true, live text DEFAULT 'leave',
    at_most integer DEFAULT 100000, after jsonb DEFAULT NULL)
RETURNS TABLE (place text, looked bigint, matched bigint, erased bigint, still_live bigint,
               note text, next jsonb)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_places text[] := '{jobs,history,operations,messages,dead letters}';
    v_at integer := jobq._erase_from(after, 'place', 1);
    v_part bigint := jobq._erase_from(after, 'part', 0);
    v_after bigint := jobq._erase_from(after, 'id', -9223372036854775808);
    v_left bigint := at_most;
    v_page record;
    v_found boolean := after IS NOT NULL; -- by an earlier call, perhaps
BEGIN
    PERFORM jobq._check_erase(tags, dry, live, at_most);
    IF NOT dry THEN PERFORM jobq._need_read_committed(); END IF;
    WHILE v_at <= cardinality(v_places) AND v_left > 0 LOOP
        place := v_places[v_at];
        erased := 0;
        still_live := 0;
        IF place = 'messages' THEN
            SELECT m.* INTO v_page FROM jobq._erase_messages(
                tags, v_part, v_after, v_left, dry, erase.live = 'cancel') m;
            matched := v_page.matched;
            still_live := v_page.live;
            v_part := v_page.last_part;
        ELSE
            SELECT p.* INTO v_page FROM jobq._erase_page(place, tags, v_after, v_left) p;
            matched := cardinality(v_page.matched);
            IF place = 'jobs' AND dry THEN
                still_live := (SELECT count(*) FROM jobq.job j
                               WHERE j.id = ANY (v_page.matched));
            ELSIF place = 'jobs' THEN
                SELECT e.erased, e.live INTO erased, still_live
                FROM jobq._erase_jobs(v_page.matched, tags, erase.live = 'cancel') e;
            ELSIF NOT dry AND matched > 0 THEN
                PERFORM jobq._erase_rows(place, v_page.matched, tags);
            END IF;
            IF place = 'dead letters' THEN
                still_live := (SELECT count(*) FROM jobq.dead_letter d
                               WHERE d.id = ANY (v_page.matched) AND CASE WHEN dry THEN
                                   d.status = 'reprocessing'
                                   AND clock_timestamp() BETWEEN d.taken_at AND d.deadline
                                   ELSE NOT jobq._is_erased(d.payload, d.headers) END);
            END IF;
        END IF;
        looked := v_page.looked;
        v_found := v_found OR matched > 0;
        IF NOT dry AND place <> 'jobs' THEN erased := matched - still_live; END IF;
        v_left := v_left - looked;
        v_after := v_page.last;
        IF v_after IS NULL THEN
            v_at := v_at + 1;
            v_part := 0;
            v_after := -9223372036854775808;
        END IF;
        next := CASE WHEN v_at <= cardinality(v_places) THEN jsonb_build_object(
            'place', v_at, 'part', v_part, 'id', v_after) END;
        RETURN NEXT;
    END LOOP;
    IF NOT dry THEN
        PERFORM jobq._operated('erase', jsonb_build_object('tags', jobq._erased_mark()), NULL);
    END IF;
    IF next IS NOT NULL THEN RETURN; END IF;
    IF NOT v_found THEN RETURN QUERY SELECT * FROM jobq._erase_otherwise(tags); END IF;
    RETURN QUERY SELECT * FROM jobq._erase_unreached(tags);
END $$;

-- Nothing has these tags. A hint, if they have numbers, or strings that look like one.
CREATE OR REPLACE FUNCTION jobq._erase_otherwise(p_tags jsonb)
RETURNS TABLE (place text, looked bigint, matched bigint, erased bigint, still_live bigint,
               note text, next jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_other jsonb := (
        SELECT jsonb_object_agg(t.key, CASE
                   WHEN jsonb_typeof(t.value) = 'number' THEN to_jsonb(t.value #>> '{}')
                   WHEN jsonb_typeof(t.value) = 'string'
                        AND t.value #>> '{}' ~ '^-?(0|[1-9][0-9]{0,30})([.][0-9]{1,30})?$'
                   THEN (t.value #>> '{}')::jsonb ELSE t.value END)
        FROM jsonb_each(p_tags) t);
BEGIN
    RETURN QUERY
    SELECT 'tags', NULL::bigint, 0::bigint, NULL::bigint, NULL::bigint, format(
               'a number is not a string: try %s, too', v_other), NULL::jsonb
    WHERE v_other <> p_tags;
END $$;

CREATE OR REPLACE FUNCTION jobq._erase_from(p_after jsonb, p_part text, p_first bigint)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_after IS NULL THEN RETURN p_first; END IF;
    IF jsonb_typeof(p_after -> p_part) IS DISTINCT FROM 'number' THEN
        PERFORM jobq._refuse('after', 'must be what next has answered');
    END IF;
    RETURN p_after -> p_part;
END $$;

CREATE OR REPLACE FUNCTION jobq._check_erase(
    p_tags jsonb, p_dry boolean, p_live text, p_most integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (jsonb_typeof(p_tags) = 'object' AND p_tags <> '{}') IS NOT TRUE THEN
        PERFORM jobq._refuse('tags', 'must be a JSON object with at least one member');
    ELSIF p_dry IS NULL THEN
        PERFORM jobq._refuse('dry', 'must be true or false');
    ELSIF (p_live IN ('leave', 'cancel')) IS NOT TRUE THEN
        PERFORM jobq._refuse('live', 'must be leave or cancel');
    END IF;
    PERFORM jobq._check_at_most(coalesce(p_most, 0));
END $$;

-- Cancels these jobs, if asked to, and forgets their keys: where no history is kept nothing
-- would lead to them any more. How many live, or have just failed.
CREATE OR REPLACE FUNCTION jobq._erase_live(p_ids bigint[], p_cancel boolean) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_id bigint;
    v_job jobq.job;
BEGIN
    FOREACH v_id IN ARRAY CASE WHEN p_cancel THEN p_ids ELSE '{}' END LOOP
        SELECT j.* INTO v_job FROM jobq.job j WHERE j.id = v_id FOR UPDATE;
        CONTINUE WHEN jobq._cancel_one(v_id) <> 'cancelled';
        DELETE FROM jobq.idempotency k
        WHERE k.queue_id = v_job.queue_id AND k.key = v_job.key AND k.job_id = v_id;
    END LOOP;
    RETURN (SELECT count(*) FROM jobq.job j WHERE j.id = ANY (p_ids))
        + (SELECT count(*) FROM jobq.failed f
           WHERE f.id = ANY (p_ids) AND NOT jobq._is_erased(f.payload, f.headers));
END $$;

-- What erase cannot reach.
CREATE OR REPLACE FUNCTION jobq._erase_unreached(p_tags jsonb)
RETURNS TABLE (place text, looked bigint, matched bigint, erased bigint, still_live bigint,
               note text, next jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT u.place, NULL::bigint, u.matched, NULL::bigint, NULL::bigint, u.note,
                        NULL::jsonb
    FROM (VALUES
        ('schedules', (SELECT count(*) FROM jobq.schedule s WHERE s.headers @> p_tags),
         'change them in the program that declares them, or drop them'),
        ('names', NULL, 'of lines, flows, signals, schedules and workers, payloads of '
         'signals, messages of flows, reasons of holds, notes of progress and '
         'partition.error have no tags'),
        ('keys', NULL, 'of dead letters, and of messages and jobs that are no longer kept, '
         'stay for the key_keep of their queue'),
        ('dead rows', NULL, 'old versions of rows stay in the files until VACUUM'),
        ('WAL, replicas', NULL, 'WAL archives keep what was written; replicas follow'),
        ('backups', NULL, 'let them expire; after a restore erase again'),
        ('exports', NULL, 'files that were written before')) AS u (place, matched, note);
END $$;
