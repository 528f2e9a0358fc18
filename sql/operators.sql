-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: what a person does, from psql or through the library: cancel,
-- revive, delete, reschedule, prioritize, move. Pauses and policies: policy.sql.
--
-- Each verb comes in two forms under one name:
--     select jobq.cancel(42);                                       one job
--     select jobq.cancel('mail', kind => 'welcome', at_most => 500);      what matches
-- The first form answers with what it did (cancelled, revived, deleted ...), or with the state
-- that prevents it (running, succeeded ...; gone, none: see standing). The second form works
-- in bounded steps and answers how many jobs it changed: call it again until it answers 0. It
-- takes jobs that match every argument that is given: kind, older (enqueued, or ended, longer
-- ago than this), tags (contained in headers).
--
-- Both are safe on a live system. The second form skips rows that others hold and never waits,
-- so it neither blocks a worker nor deadlocks. The first form waits for its one row. Rows are
-- found by the lane index. Only ready jobs are changed. A running job belongs to its worker:
-- its cancel can be requested; otherwise the answer is running.
--
-- There is one live job for each queue and key. revive and move answer exists, and change
-- nothing, where another job has the key by the rule of enqueue (it lives, or ended within its
-- queue's key_keep). The second form leaves such jobs out, so it can answer 0 while some are
-- left; the first form tells for each job whether that is why.

-- ---- helpers -----------------------------------------------------------------------------

-- The id of a queue that must exist: a misspelt name must not create a queue.
CREATE OR REPLACE FUNCTION jobq._known_queue(p_name text, p_field text DEFAULT 'queue')
RETURNS integer LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_id integer;
BEGIN
    SELECT q.id INTO v_id FROM jobq.queue q WHERE q.name = p_name COLLATE "C";
    IF v_id IS NULL THEN
        RAISE EXCEPTION 'no queue is called %', quote_nullable(p_name)
            USING ERRCODE = '22023', COLUMN = p_field,
                DATATYPE = coalesce(left(p_name, 63), ''),
                HINT = 'select queue from jobq.queues lists them; queue_set creates one.';
    END IF;
    RETURN v_id;
END $$;

-- The same for a kind of that queue. NULL means any kind.
CREATE OR REPLACE FUNCTION jobq._known_kind(p_queue integer, p_name text) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_id integer;
BEGIN
    IF p_name IS NULL THEN RETURN NULL; END IF;
    SELECT k.id INTO v_id FROM jobq.kind k
    WHERE k.queue_id = p_queue AND k.name = p_name COLLATE "C";
    IF v_id IS NULL THEN
        RAISE EXCEPTION 'no kind of this queue is called ''%''', p_name
            USING ERRCODE = '22023', COLUMN = 'kind', DATATYPE = left(p_name, 63),
                HINT = 'explain_job tells the kind of a job; the view live_jobs lists them.';
    END IF;
    RETURN v_id;
END $$;

-- Whether another job has this key in this queue, by the rule of keep_keys.
CREATE OR REPLACE FUNCTION jobq._key_taken(p_queue integer, p_key text, p_id bigint)
RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM jobq.idempotency k JOIN jobq.queue q ON q.id = k.queue_id
        WHERE k.queue_id = p_queue AND k.key = p_key COLLATE "C" AND k.job_id <> p_id
          AND (k.ended_at >= statement_timestamp() - q.key_keep) IS NOT FALSE);
END $$;

-- Gives a key to a job that becomes live in this queue. false: another job has it. The look
-- comes first because the INSERT would lock the other job's key, and its worker would then
-- wait for the end of the caller's transaction.
CREATE OR REPLACE FUNCTION jobq._take_key(p_queue integer, p_key text, p_id bigint)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_keep interval := (SELECT q.key_keep FROM jobq.queue q WHERE q.id = p_queue);
BEGIN
    IF jobq._key_taken(p_queue, p_key, p_id) THEN RETURN false; END IF;
    INSERT INTO jobq.idempotency AS k (queue_id, key, job_id) VALUES (p_queue, p_key, p_id)
    ON CONFLICT (queue_id, key) DO UPDATE SET job_id = excluded.job_id, ended_at = NULL
    WHERE k.job_id = excluded.job_id OR k.ended_at < statement_timestamp() - v_keep;
    RETURN FOUND;
END $$;

-- Locks ready jobs of a queue that match, at most p_at_most, lane by lane, suspects last.
-- p_priority, p_run_at: only jobs that this would change; p_target: only jobs whose key is
-- free there. So a verb that is called again and again comes to an end.
CREATE OR REPLACE FUNCTION jobq._pick(
    p_queue integer, p_kind text, p_older interval, p_tags jsonb, p_at_most integer,
    p_priority integer DEFAULT NULL, p_run_at timestamptz DEFAULT NULL,
    p_target integer DEFAULT NULL) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
    v_now timestamptz := statement_timestamp();
    v_kind integer := jobq._known_kind(p_queue, p_kind);
    v_ids bigint[];
BEGIN
    p_at_most := coalesce(p_at_most, 2147483647);
    v_ids := ARRAY(
        SELECT picked.id
        FROM generate_series((SELECT q.priority_min FROM jobq.queue q
                              WHERE q.id = p_queue), 9) AS p (priority)
        CROSS JOIN generate_series(0, (SELECT q.stages_max - 1 FROM jobq.queue q
                                       WHERE q.id = p_queue)) AS s (stage)
        CROSS JOIN LATERAL (
            SELECT j.id FROM jobq.job j
            WHERE j.queue_id = p_queue AND j.priority = p.priority AND j.stage = s.stage
              AND NOT j.suspect AND j.line IS NULL
              AND j.state = 'r' AND (v_kind IS NULL OR j.kind_id = v_kind)
              AND (p_older IS NULL OR j.enqueued_at < v_now - p_older)
              AND (p_tags IS NULL OR j.headers @> p_tags)
              AND (p_run_at IS NULL OR CASE WHEN p_run_at <= v_now THEN j.run_at > v_now
                                            ELSE j.run_at <> p_run_at END)
              AND (p_target IS NULL OR j.key IS NULL
                   OR NOT jobq._key_taken(p_target, j.key, j.id))
            ORDER BY j.run_at, j.id LIMIT p_at_most FOR UPDATE SKIP LOCKED) AS picked
        WHERE p_priority IS NULL OR p.priority <> p_priority
        LIMIT p_at_most);
    IF cardinality(v_ids) < p_at_most THEN
        v_ids := v_ids || jobq._pick_lined(
            p_queue, v_kind, p_older, p_tags, p_at_most - cardinality(v_ids), p_priority,
            p_run_at, p_target);
    END IF;
    IF cardinality(v_ids) >= p_at_most THEN RETURN v_ids; END IF;
    RETURN v_ids || ARRAY(
        SELECT j.id FROM jobq.job j
        WHERE j.queue_id = p_queue AND j.suspect AND j.state = 'r'
          AND (v_kind IS NULL OR j.kind_id = v_kind)
          AND (p_older IS NULL OR j.enqueued_at < v_now - p_older)
          AND (p_tags IS NULL OR j.headers @> p_tags)
          AND (p_priority IS NULL OR j.priority <> p_priority)
          AND (p_run_at IS NULL OR CASE WHEN p_run_at <= v_now THEN j.run_at > v_now
                                        ELSE j.run_at <> p_run_at END)
          AND (p_target IS NULL OR j.key IS NULL
               OR NOT jobq._key_taken(p_target, j.key, j.id))
        LIMIT p_at_most - cardinality(v_ids) FOR UPDATE SKIP LOCKED);
END $$;

-- A part of pick, and under its settings: the jobs that stand in lines.
CREATE OR REPLACE FUNCTION jobq._pick_lined(
    p_queue integer, p_kind integer, p_older interval, p_tags jsonb, p_at_most integer,
    p_priority integer, p_run_at timestamptz, p_target integer) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_now timestamptz := statement_timestamp();
BEGIN
    RETURN ARRAY(
        SELECT picked.id
        FROM generate_series((SELECT q.priority_min FROM jobq.queue q
                              WHERE q.id = p_queue), 9) AS p (priority)
        CROSS JOIN generate_series(0, (SELECT q.stages_max - 1 FROM jobq.queue q
                                       WHERE q.id = p_queue)) AS s (stage)
        CROSS JOIN LATERAL (
            SELECT j.id FROM jobq.job j
            WHERE j.queue_id = p_queue AND j.priority = p.priority AND j.stage = s.stage
              AND NOT j.suspect AND j.line IS NOT NULL
              AND j.state = 'r' AND (p_kind IS NULL OR j.kind_id = p_kind)
              AND (p_older IS NULL OR j.enqueued_at < v_now - p_older)
              AND (p_tags IS NULL OR j.headers @> p_tags)
              AND (p_run_at IS NULL OR p_run_at > v_now)
              AND (p_target IS NULL OR j.key IS NULL
                   OR NOT jobq._key_taken(p_target, j.key, j.id))
            ORDER BY j.line DESC, j.run_at, j.id
            LIMIT p_at_most FOR UPDATE SKIP LOCKED) AS picked
        WHERE p_priority IS NULL OR p.priority <> p_priority
        LIMIT p_at_most);
END $$;

-- Locks a flow, some of whose jobs are to be revived. False: somebody else has it locked.
CREATE OR REPLACE FUNCTION jobq._flow_free(p_flow bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM jobq.flow f WHERE f.id = p_flow FOR NO KEY UPDATE SKIP LOCKED;
    RETURN FOUND OR NOT EXISTS (SELECT FROM jobq.flow f WHERE f.id = p_flow);
END $$;

-- Locks failed jobs that match, the oldest first. p_free: only jobs that can be revived, whose
-- key is free, and their flows before them.
CREATE OR REPLACE FUNCTION jobq._pick_failed(
    p_queue integer, p_kind text, p_older interval, p_tags jsonb, p_at_most integer,
    p_free boolean) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE v_kind integer := jobq._known_kind(p_queue, p_kind);
BEGIN
    RETURN ARRAY(
        SELECT f.id FROM jobq.failed f
        WHERE f.queue_id = p_queue AND (v_kind IS NULL OR f.kind_id = v_kind)
          AND (p_older IS NULL OR f.finished_at < statement_timestamp() - p_older)
          AND (p_tags IS NULL OR f.headers @> p_tags)
          AND NOT (p_free AND jobq._is_erased(f.payload, f.headers))
          AND NOT (p_free AND f.key IS NOT NULL AND jobq._key_taken(p_queue, f.key, f.id))
          AND NOT (p_free AND f.flow_id > 0 AND NOT jobq._flow_free(f.flow_id))
        ORDER BY f.queue_id, f.finished_at LIMIT p_at_most FOR UPDATE SKIP LOCKED);
END $$;

-- Asks the living workers of a queue to send their heartbeat now, because it brings the news.
CREATE OR REPLACE FUNCTION jobq._tell(p_queue integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._notify(w.id, 'cancel') FROM jobq.worker w
    WHERE p_queue = ANY (w.queues) AND w.dead_at IS NULL;
END $$;

-- ---- the log of operators ----------------------------------------------------------------

-- Notes how many jobs or dead letters a verb changed; NULL: settings. A call that changed
-- nothing is not noted. Answers the count. The calls of one statement for one job each, as
-- from unnest, are one row, of up to 1,000 ids: the transaction remembers which.
-- The steps of one operation of a program are one row without ids: in the transaction of each
-- step it sets jobq_log.bulk to what the row should say, and jobq_log.operation to the value
-- that this had at the end of the step before.
CREATE OR REPLACE FUNCTION jobq._operated(p_verb text, p_arguments jsonb, p_jobs integer)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_bulk jsonb := nullif(current_setting('jobq_log.bulk', true), '');
    v_id bigint := nullif(current_setting('jobq_log.operation', true), '');
    v_arguments jsonb := jsonb_strip_nulls(p_arguments);
BEGIN
    IF p_jobs = 0 THEN RETURN 0; END IF;
    IF v_bulk IS NOT NULL THEN
        v_arguments := v_arguments - 'id' || v_bulk;
        UPDATE jobq.operation o SET jobs = o.jobs + p_jobs
        WHERE o.id = v_id AND o.verb = p_verb COLLATE "C" AND o.arguments = v_arguments
          AND o.role = session_user AND o.application = current_setting('application_name');
    ELSIF p_arguments ? 'id' THEN
        UPDATE jobq.operation o
        SET jobs = o.jobs + p_jobs, arguments = o.arguments - 'id' || jsonb_build_object('ids',
                coalesce(o.arguments -> 'ids', jsonb_build_array(o.arguments -> 'id'))
                || (v_arguments -> 'id'))
        WHERE o.id = v_id AND o.at = statement_timestamp() AND o.jobs < 1000
          AND o.verb = p_verb COLLATE "C"
          AND o.arguments - '{id,ids}'::text[] = v_arguments - 'id';
    END IF;
    IF FOUND THEN RETURN p_jobs; END IF;
    INSERT INTO jobq.operation (at, role, application, verb, arguments, jobs)
    VALUES (statement_timestamp(), session_user, current_setting('application_name'), p_verb,
            v_arguments, p_jobs)
    RETURNING id INTO v_id;
    PERFORM set_config('jobq_log.operation', v_id::text, true);
    RETURN p_jobs;
END $$;

-- Notes what a verb changed in a row: the new values. p_names: whose row it is. Payloads are
-- not for the log.
CREATE OR REPLACE FUNCTION jobq._operated_row(
    p_verb text, p_names jsonb, p_before jsonb, p_after jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_changes jsonb := (
        SELECT jsonb_object_agg(e.key, CASE WHEN e.key IN ('payload', 'bytes', 'headers')
                                       THEN '"changed"' ELSE e.value END)
        FROM jsonb_each(p_after) e WHERE e.value IS DISTINCT FROM p_before -> e.key);
BEGIN
    IF v_changes IS NULL THEN RETURN; END IF;
    INSERT INTO jobq.operation (at, role, application, verb, arguments)
    VALUES (statement_timestamp(), session_user, current_setting('application_name'), p_verb,
            jsonb_strip_nulls(p_names) || v_changes);
END $$;

-- The same for one job, if the verb's answer is one of p_done. Answers the answer.
CREATE OR REPLACE FUNCTION jobq._operated_one(
    p_verb text, p_arguments jsonb, p_answer text, p_done text[]) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._operated(p_verb, p_arguments, (p_answer = ANY (p_done))::integer);
    RETURN p_answer;
END $$;

-- A part of prune.
CREATE OR REPLACE FUNCTION jobq._prune_operations(p_limit integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM jobq.operation o WHERE o.ctid = ANY (ARRAY(
        SELECT old.ctid FROM jobq.operation old
        WHERE old.id <= (SELECT max(newest.id) FROM jobq.operation newest) - 10000
        ORDER BY old.id LIMIT p_limit FOR UPDATE SKIP LOCKED));
END $$;

-- What operators did: the newest 10,000 calls that changed something.
CREATE OR REPLACE VIEW jobq.operator_log AS
SELECT o.id, o.at, o.role, o.application, o.verb, o.arguments, o.jobs FROM jobq.operation o;

-- ---- cancel ------------------------------------------------------------------------------

-- A ready job is cancelled at once. For a running job the cancel is requested: its worker
-- learns of it with the next heartbeat, or at once if it listens, and tells the handler.
CREATE OR REPLACE FUNCTION jobq._cancel_one(p_id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_id bigint := p_id;
    v_job jobq.job;
BEGIN
    SELECT * INTO v_job FROM jobq.job j WHERE j.id = v_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN regexp_replace(jobq.standing(v_id), '^cancelled$', 'cancelled before');
    END IF;
    IF v_job.state <> 'x' THEN
        PERFORM jobq._finish(ARRAY[v_id], 'c', NULL);
        IF v_job.state = 'w' THEN PERFORM jobq._return_key(v_job); END IF;
        IF v_job.flow_id IS NOT NULL THEN PERFORM jobq._promote(1000, true); END IF;
        RETURN 'cancelled';
    END IF;
    PERFORM FROM jobq.claim c WHERE c.worker = v_job.worker AND c.number = v_job.claim
    FOR UPDATE;
    PERFORM jobq._request(v_id, v_job.worker, v_job.claim);
    RETURN 'requested';
END $$;

-- Cancels a job that has not ended.
-- id: of the job. Answers cancelled; requested: it runs, and its handler is asked to stop; or
-- the state that prevents it: succeeded, failed, cancelled, gone, none.
-- Errors: 40001, try again.
--     select jobq.cancel(1);
CREATE OR REPLACE FUNCTION jobq.cancel(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jobq._operated_one('cancel', jsonb_build_object('id', id), jobq._cancel_one(id),
                             '{cancelled, requested}');
END $$;

-- A job was cancelled while it waited: the one that it waited for gets the key back. Otherwise
-- the next job with that key would run at once, beside it.
CREATE OR REPLACE FUNCTION jobq._return_key(p_job jobq.job) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE v_id bigint;
BEGIN
    SELECT j.id INTO v_id FROM jobq.edge e JOIN jobq.job j ON j.id = e.parent
    WHERE e.child = p_job.id AND j.queue_id = p_job.queue_id AND j.key = p_job.key
    FOR UPDATE OF j;
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE jobq.idempotency k SET job_id = v_id, ended_at = NULL
    WHERE k.queue_id = p_job.queue_id AND k.key = p_job.key AND k.job_id = p_job.id;
END $$;

-- The request itself. The job and its claim row are locked.
CREATE OR REPLACE FUNCTION jobq._request(p_id bigint, p_worker bigint, p_claim bigint)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    UPDATE jobq.job j SET cancel_requested_at = statement_timestamp()
    WHERE j.id = p_id AND j.cancel_requested_at IS NULL;
    UPDATE jobq.claim c SET cancel = array_append(array_remove(c.cancel, p_id), p_id)
    WHERE c.worker = p_worker AND c.number = p_claim;
    PERFORM jobq._notify(p_worker, 'cancel');
END $$;

-- Where a function's name is also one that takes an id, queue is a varchar: some databases
-- cast numbers to text implicitly, and there cancel(1) could mean either.

-- Cancels the jobs of a queue that match all that is given.
-- state: ready, running, or NULL for both. Running ones count once, when they are first asked.
-- Answers how many were cancelled, and how many were asked. Errors: 22023.
--     select * from jobq.cancel('mail', kind => 'welcome', older => '1 day');
CREATE OR REPLACE FUNCTION jobq.cancel(
    queue varchar, kind text DEFAULT NULL, state text DEFAULT NULL,
    older interval DEFAULT NULL, tags jsonb DEFAULT NULL, at_most integer DEFAULT 1000,
    OUT cancelled integer, OUT requested integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_queue integer;
    v_ids bigint[] := '{}';
BEGIN
    PERFORM jobq._check_filter(older, tags, at_most);
    v_queue := jobq._known_queue(queue);
    IF state NOT IN ('ready', 'running') THEN
        PERFORM jobq._refuse('state', 'must be ready or running', p_value => state);
    END IF;
    at_most := coalesce(at_most, 2147483647);
    IF state IS DISTINCT FROM 'running' THEN
        v_ids := jobq._pick(v_queue, kind, older, tags, at_most);
        PERFORM jobq._finish(v_ids, 'c', NULL);
        PERFORM jobq._promote(1000, true);
    END IF;
    cancelled := cardinality(v_ids);
    requested := 0;
    IF state IS DISTINCT FROM 'ready' AND cancelled < at_most THEN
        requested := jobq._request_many(v_queue, kind, older, tags, at_most - cancelled);
    END IF;
    PERFORM jobq._operated('cancel', jsonb_build_object(
        'queue', queue, 'kind', kind, 'state', state, 'older', older, 'tags', tags),
        cancelled + requested);
END $$;

-- Requests the cancel of running jobs that match and have no request yet. Locks the claim row
-- first, then the job, and skips what others hold.
CREATE OR REPLACE FUNCTION jobq._request_many(
    p_queue integer, p_kind text, p_older interval, p_tags jsonb, p_at_most integer)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_kind integer := jobq._known_kind(p_queue, p_kind);
    v_job record;
    v_count integer := 0;
BEGIN
    FOR v_job IN
        SELECT j.id, j.worker, j.claim FROM jobq._running() r
        CROSS JOIN LATERAL (SELECT * FROM jobq.job o WHERE o.id = r.id OFFSET 0) AS j
        WHERE j.queue_id = p_queue AND j.state = 'x' AND j.cancel_requested_at IS NULL
          AND (v_kind IS NULL OR j.kind_id = v_kind)
          AND (p_older IS NULL OR j.enqueued_at < statement_timestamp() - p_older)
          AND (p_tags IS NULL OR j.headers @> p_tags)
        LIMIT p_at_most
    LOOP
        PERFORM FROM jobq.claim c WHERE c.worker = v_job.worker AND c.number = v_job.claim
        FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        PERFORM FROM jobq.job j
        WHERE j.id = v_job.id AND j.worker = v_job.worker AND j.claim = v_job.claim
        FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        PERFORM jobq._request(v_job.id, v_job.worker, v_job.claim);
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;

-- ---- revive ------------------------------------------------------------------------------

-- Runs failed jobs again, from the stage in which they failed, with attempt and crash 0. They
-- keep their errors, and their flow, which is locked, unless prune has forgotten it meanwhile.
-- Keys are taken in the order in which an enqueue takes them.
CREATE OR REPLACE FUNCTION jobq._revive_all(p_ids bigint[]) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_ids bigint[] := p_ids;
    v_job record;
    v_count integer;
    v_queues integer[];
    v_linked bigint[];
    v_flows bigint[];
BEGIN
    FOR v_job IN
        SELECT f.id, f.queue_id, f.key FROM jobq.failed f
        WHERE f.id = ANY (p_ids) AND f.key IS NOT NULL ORDER BY f.key, f.id FOR UPDATE
    LOOP
        CONTINUE WHEN jobq._take_key(v_job.queue_id, v_job.key, v_job.id);
        v_ids := array_remove(v_ids, v_job.id);
    END LOOP;
    WITH back AS (
        DELETE FROM jobq.failed f WHERE f.id = ANY (v_ids) RETURNING f.*
    ), live AS (
        INSERT INTO jobq.job (id, run_at, enqueued_at, timeout_us, queue_id, kind_id,
                              max_attempts, priority, stage, stages, flow_id, key, line,
                              line_name, payload, bytes, headers, errors, steps)
        SELECT b.id, statement_timestamp(), b.enqueued_at, b.timeout_us, b.queue_id, b.kind_id,
               b.max_attempts, b.priority, b.stage, b.stages, CASE
                   WHEN b.flow_id > 0 AND NOT EXISTS (
                       SELECT FROM jobq.flow f WHERE f.id = b.flow_id) THEN 0
                   ELSE b.flow_id END, b.key,
               jobq._line_no(b.line_name), b.line_name, b.payload, b.bytes, b.headers,
               b.errors, b.steps
        FROM back b ORDER BY b.id
        RETURNING id, queue_id, flow_id
    )
    SELECT count(*), array_agg(l.queue_id),
           array_agg(l.id) FILTER (WHERE l.flow_id IS NOT NULL),
           array_agg(l.flow_id) FILTER (WHERE l.flow_id IS NOT NULL)
    INTO v_count, v_queues, v_linked, v_flows FROM live l;
    IF v_linked IS NOT NULL THEN PERFORM jobq._edges_revive(v_linked, v_flows); END IF;
    PERFORM jobq._wake(q.id, q.jobs::integer)
    FROM (SELECT u.id, count(*) AS jobs FROM unnest(v_queues) AS u (id) GROUP BY u.id) AS q;
    RETURN v_count;
END $$;

-- A part of revive. NULL: no such job has failed, or somebody holds its row, and it has done
-- nothing.
CREATE OR REPLACE FUNCTION jobq._revive_free(p_id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE v_erased boolean;
BEGIN
    PERFORM FROM jobq.flow o JOIN jobq.failed f ON f.flow_id = o.id WHERE f.id = p_id
    FOR NO KEY UPDATE OF o;
    SELECT jobq._is_erased(f.payload, f.headers) INTO v_erased
    FROM jobq.failed f WHERE f.id = p_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'JQ000'; -- the lock of the flow is released with it
    END IF;
    RETURN CASE WHEN v_erased THEN 'erased'
                WHEN jobq._revive_all(ARRAY[p_id]) = 1 THEN 'revived' ELSE 'exists' END;
EXCEPTION WHEN SQLSTATE 'JQ000' THEN RETURN NULL;
END $$;

-- Lets a job that failed run again, with fresh attempts.
-- It waits for whoever has locked the job. erased: nothing of it is left to run, see erase.
-- Answers revived, the state that prevents it, erased, or exists: another job has its key.
-- Errors: 40001, try again.
--     select jobq.revive(1);
CREATE OR REPLACE FUNCTION jobq.revive(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_standing text := 'failed';
    v_answer text;
BEGIN
    -- It waits for the row without the lock of its flow, because whoever has enqueued a job
    -- that waits for it may name the flow afterwards. A job that fails meanwhile is looked at
    -- again.
    WHILE v_standing = 'failed' LOOP
        v_answer := jobq._revive_free(id);
        IF v_answer IS NOT NULL THEN
            RETURN jobq._operated_one('revive', jsonb_build_object('id', id), v_answer,
                                     '{revived}');
        END IF;
        PERFORM jobq._revive_wait(id, NULL);
        v_standing := jobq.standing(id);
    END LOOP;
    RETURN v_standing;
END $$;

-- Revives the failed jobs of a queue that match all that is given.
-- older: failed longer ago than this. Answers how many were revived. Errors: 22023.
--     select jobq.revive('mail', kind => 'welcome');
CREATE OR REPLACE FUNCTION jobq.revive(
    queue varchar, kind text DEFAULT NULL, older interval DEFAULT NULL,
    tags jsonb DEFAULT NULL, at_most integer DEFAULT 1000)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM jobq._check_filter(older, tags, at_most);
    RETURN jobq._operated('revive', jsonb_build_object(
        'queue', queue, 'kind', kind, 'older', older, 'tags', tags),
        jobq._revive_all(
            jobq._pick_failed(jobq._known_queue(queue), kind, older, tags, at_most, true)));
END $$;

-- ---- delete ------------------------------------------------------------------------------

-- Removes jobs in one state without a trace: neither history nor the idempotency key stays.
-- The rows are locked, or the caller waits for them.
CREATE OR REPLACE FUNCTION jobq._delete_all(p_ids bigint[], p_state text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_job record;
    v_count integer := 0;
BEGIN
    FOR v_job IN
        WITH live AS (
            DELETE FROM jobq.job j
            WHERE p_state = 'ready' AND j.id = ANY (p_ids) AND j.state = 'r'
            RETURNING j.id, j.queue_id, j.key, j.flow_id
        ), failed AS (
            DELETE FROM jobq.failed f WHERE p_state = 'failed' AND f.id = ANY (p_ids)
            RETURNING f.id, f.queue_id, f.key, f.flow_id
        ), history AS (
            DELETE FROM jobq.history h
            WHERE p_state IN ('succeeded', 'cancelled') AND h.id = ANY (p_ids)
            RETURNING h.id, h.queue_id, h.key, NULL::bigint
        )
        SELECT * FROM live UNION ALL SELECT * FROM failed UNION ALL SELECT * FROM history
        ORDER BY key, id
    LOOP
        v_count := v_count + 1;
        DELETE FROM jobq.idempotency k
        WHERE k.queue_id = v_job.queue_id AND k.key = v_job.key AND k.job_id = v_job.id;
        IF v_job.flow_id IS NOT NULL AND p_state = 'failed' THEN
            PERFORM jobq._edges_forget(ARRAY[v_job.id]);
        ELSIF v_job.flow_id IS NOT NULL THEN
            PERFORM jobq._ended(ARRAY[v_job.id], ARRAY[v_job.flow_id], 'c');
        END IF;
    END LOOP;
    PERFORM jobq._promote(1000, true);
    PERFORM jobq._tell_waiters(p_ids);
    RETURN v_count;
END $$;

-- Deletes a job, live or ended, unless it runs.
-- Answers deleted, or running: a worker has it; gone or none. Errors: 40001, try again.
--     select jobq.delete(1);
CREATE OR REPLACE FUNCTION jobq.delete(id bigint) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v_state text := jobq.standing(id);
BEGIN
    IF v_state = 'ready' THEN
        PERFORM FROM jobq.job j WHERE j.id = delete.id FOR UPDATE;
    END IF;
    RETURN CASE jobq._operated('delete', jsonb_build_object('id', id),
                              jobq._delete_all(ARRAY[id], v_state))
           WHEN 1 THEN 'deleted' ELSE jobq.standing(id) END;
END $$;

-- Deletes the jobs of a queue that match all that is given.
-- state has to be named: ready, failed, succeeded or cancelled. The latter two read all of
-- history, which forgets by itself.
-- Answers how many were deleted. Errors: 22023.
--     select jobq.delete('mail', 'failed', older => '30 days');
CREATE OR REPLACE FUNCTION jobq.delete(
    queue varchar, state text, kind text DEFAULT NULL, older interval DEFAULT NULL,
    tags jsonb DEFAULT NULL, at_most integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v_queue integer;
    v_kind integer;
BEGIN
    PERFORM jobq._check_filter(older, tags, at_most);
    v_queue := jobq._known_queue(queue);
    v_kind := jobq._known_kind(v_queue, kind);
    IF state IS NULL OR state NOT IN ('ready', 'failed', 'succeeded', 'cancelled') THEN
        PERFORM jobq._refuse('state', 'must be ready, failed, succeeded or cancelled',
                             'A running job can be asked to cancel.', state);
    END IF;
    RETURN jobq._operated('delete', jsonb_build_object(
        'queue', queue, 'state', state, 'kind', kind, 'older', older, 'tags', tags),
        jobq._delete_all(CASE state
        WHEN 'ready' THEN jobq._pick(v_queue, kind, older, tags, at_most)
        WHEN 'failed' THEN jobq._pick_failed(v_queue, kind, older, tags, at_most, false)
        ELSE ARRAY(
            SELECT h.id FROM jobq.history h
            WHERE h.queue_id = v_queue AND (v_kind IS NULL OR h.kind_id = v_kind)
              AND h.state = CASE state WHEN 'succeeded' THEN 's' ELSE 'c' END::"char"
              AND (older IS NULL OR h.finished_at < statement_timestamp() - older)
              AND (tags IS NULL OR h.headers @> tags)
            LIMIT at_most FOR UPDATE SKIP LOCKED) END, state));
END $$;

-- ---- reschedule, prioritize, move --------------------------------------------------------

-- Moves the keys of ready jobs, which are locked, to another queue, in the order in which an
-- enqueue takes keys. Answers with the ids, without those whose key another job there has.
CREATE OR REPLACE FUNCTION jobq._move_keys(p_ids bigint[], p_target integer) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_ids bigint[] := p_ids;
    v_job record;
BEGIN
    FOR v_job IN
        SELECT j.id, j.queue_id, j.key FROM jobq.job j
        WHERE j.id = ANY (p_ids) AND j.queue_id <> p_target AND j.key IS NOT NULL
        ORDER BY j.key, j.id
    LOOP
        IF jobq._take_key(p_target, v_job.key, v_job.id) THEN
            DELETE FROM jobq.idempotency k
            WHERE k.queue_id = v_job.queue_id AND k.key = v_job.key AND k.job_id = v_job.id;
        ELSE
            v_ids := array_remove(v_ids, v_job.id);
        END IF;
    END LOOP;
    RETURN v_ids;
END $$;

-- The only place that changes ready jobs, which are locked: their time (an instant in the past
-- becomes now, because a worker's lower bound would hide the job), priority, queue. A job that
-- changes its lane enters the new one as due now at the earliest. One that names a line stands
-- in it if it is due, else not. A job whose key another job of the target queue has stays
-- where it is. One that is to run when it would be late no longer expires.
CREATE OR REPLACE FUNCTION jobq._change(
    p_ids bigint[], p_run_at timestamptz, p_priority integer, p_target integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_now timestamptz := statement_timestamp();
    v_ids bigint[] := p_ids;
    v_count integer;
    v_queue integer;
    v_stages smallint;
    v_priority smallint;
BEGIN
    IF p_target IS NOT NULL THEN
        v_ids := ARRAY(
            SELECT j.id FROM jobq.job j
            WHERE j.id = ANY (p_ids) AND (j.key IS NULL OR j.queue_id = p_target
                                          OR NOT jobq._key_taken(p_target, j.key, j.id)));
        PERFORM jobq._kind_ids(p_target, array_agg(k.name)) FROM (
            SELECT DISTINCT j.kind_id FROM jobq.job j WHERE j.id = ANY (v_ids)) j
        JOIN jobq.kind k ON k.id = j.kind_id;
        v_ids := jobq._move_keys(v_ids, p_target);
    END IF;
    SELECT max(j.queue_id), max(j.stages), min(coalesce(p_priority, j.priority))
    INTO v_queue, v_stages, v_priority
    FROM jobq.job j WHERE j.id = ANY (v_ids);
    v_queue := coalesce(p_target, v_queue);
    PERFORM jobq._widen(v_queue, v_priority, v_stages);
    PERFORM jobq._has_lines(v_queue) FROM jobq.job j
    WHERE p_target IS NOT NULL AND j.id = ANY (v_ids) AND j.line_name IS NOT NULL LIMIT 1;
    WITH new AS (
        SELECT j.id, greatest(v_now, coalesce(p_run_at, CASE
                   WHEN isfinite(j.run_at) OR p_target IS NULL
                   THEN j.run_at ELSE v_now END)) AS run_at
        FROM jobq.job j WHERE j.id = ANY (v_ids)
    )
    UPDATE jobq.job j
    SET priority = coalesce(p_priority, j.priority), run_at = n.run_at, queue_id = v_queue,
        line = jobq._line_at(j.line_name, n.run_at),
        expires_at = CASE WHEN p_run_at IS NULL OR n.run_at < j.expires_at
                          THEN j.expires_at END,
        kind_id = CASE WHEN p_target IS NULL THEN j.kind_id ELSE (
            SELECT t.id FROM jobq.kind k JOIN jobq.kind t
                ON t.queue_id = p_target AND t.name = k.name WHERE k.id = j.kind_id) END
    FROM new n WHERE j.id = n.id AND j.state = 'r';
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF p_target IS NOT NULL THEN PERFORM jobq._line_suspects(p_target, v_ids); END IF;
    IF v_count > 0 THEN PERFORM jobq._wake(v_queue, v_count); END IF;
    RETURN v_count;
END $$;

-- The same for one job: answers p_done, or the state that prevents it.
CREATE OR REPLACE FUNCTION jobq._change_one(
    p_id bigint, p_run_at timestamptz, p_priority integer, p_target integer, p_done text)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM jobq.job j WHERE j.id = p_id AND j.state = 'r' FOR UPDATE;
    IF NOT FOUND THEN RETURN jobq.standing(p_id); END IF;
    IF jobq._change(ARRAY[p_id], p_run_at, p_priority, p_target) = 1 THEN
        RETURN p_done;
    END IF;
    RETURN 'exists';
END $$;

CREATE OR REPLACE FUNCTION jobq._check_run_at(p_run_at timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT isfinite(p_run_at) THEN
        PERFORM jobq._refuse('run_at', 'must be a finite instant');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION jobq._check_priority(p_priority integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (p_priority BETWEEN -9 AND 9) IS NOT TRUE THEN
        PERFORM jobq._refuse('priority', 'must be -9 to 9', p_value => p_priority::text);
    END IF;
END $$;

-- Moves the time of a ready job.
-- Not before this instant; past or NULL: now. A job that would be late then no longer expires.
-- For many jobs, give an instant that stays the same from call to call.
-- Answers rescheduled, or the state that prevents it. Errors: 22023.
--     select jobq.reschedule(1, now() + interval '1 hour');
CREATE OR REPLACE FUNCTION jobq.reschedule(id bigint, run_at timestamptz DEFAULT NULL)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM jobq._check_run_at(run_at);
    RETURN jobq._operated_one(
        'reschedule', jsonb_build_object('id', id, 'run_at', run_at),
        jobq._change_one(id, coalesce(run_at, statement_timestamp()), NULL, NULL,
                        'rescheduled'), '{rescheduled}');
END $$;

-- Moves the time of the ready jobs of a queue that match all that is given.
-- Answers how many were changed. Errors: 22023.
--     select jobq.reschedule('mail', kind => 'welcome');
CREATE OR REPLACE FUNCTION jobq.reschedule(
    queue varchar, run_at timestamptz DEFAULT NULL, kind text DEFAULT NULL,
    older interval DEFAULT NULL, tags jsonb DEFAULT NULL, at_most integer DEFAULT 1000)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v_run_at timestamptz := coalesce(run_at, statement_timestamp());
BEGIN
    PERFORM jobq._check_filter(older, tags, at_most);
    PERFORM jobq._check_run_at(run_at);
    RETURN jobq._operated('reschedule', jsonb_build_object(
        'queue', queue, 'run_at', run_at, 'kind', kind, 'older', older, 'tags', tags),
        jobq._change(jobq._pick(jobq._known_queue(queue), kind, older, tags, at_most, NULL,
                              v_run_at), v_run_at, NULL, NULL));
END $$;

-- Gives a ready job another priority.
-- -9 runs first, 9 last.
-- Answers prioritized, or the state that prevents it. Errors: 22023.
--     select jobq.prioritize(1, -5);
CREATE OR REPLACE FUNCTION jobq.prioritize(id bigint, priority integer) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM jobq._check_priority(priority);
    RETURN jobq._operated_one(
        'prioritize', jsonb_build_object('id', id, 'priority', priority),
        jobq._change_one(id, NULL, priority, NULL, 'prioritized'), '{prioritized}');
END $$;

-- Gives the ready jobs of a queue that match all that is given another priority.
-- Answers how many were changed. Errors: 22023.
--     select jobq.prioritize('mail', 5, kind => 'welcome');
CREATE OR REPLACE FUNCTION jobq.prioritize(
    queue varchar, priority integer, kind text DEFAULT NULL, older interval DEFAULT NULL,
    tags jsonb DEFAULT NULL, at_most integer DEFAULT 1000)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM jobq._check_filter(older, tags, at_most);
    PERFORM jobq._check_priority(priority);
    RETURN jobq._operated('prioritize', jsonb_build_object(
        'queue', queue, 'priority', priority, 'kind', kind, 'older', older, 'tags', tags),
        jobq._change(
            jobq._pick(jobq._known_queue(queue), kind, older, tags, at_most, priority),
            NULL, priority, NULL));
END $$;

-- Moves a job to another queue, which must exist. Its kind is created there if needed, and its
-- key moves along (exists: another job there has the key).
-- Answers moved, or the state that prevents it. Errors: 22023, also for an unknown target.
--     select jobq.move(1, 'reports');
CREATE OR REPLACE FUNCTION jobq.move(id bigint, target text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jobq._operated_one(
        'move', jsonb_build_object('id', id, 'target', target),
        jobq._change_one(id, NULL, NULL, jobq._known_queue(target, 'target'), 'moved'),
        '{moved}');
END $$;

-- Moves the ready jobs of a queue that match all that is given to another queue.
-- Answers how many were moved. Errors: 22023, also for an unknown queue.
--     select jobq.move('mail', 'reports', older => '1 day');
CREATE OR REPLACE FUNCTION jobq.move(
    queue varchar, target text, kind text DEFAULT NULL, older interval DEFAULT NULL,
    tags jsonb DEFAULT NULL, at_most integer DEFAULT 1000)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v_target integer;
BEGIN
    PERFORM jobq._check_filter(older, tags, at_most);
    v_target := jobq._known_queue(target, 'target');
    IF queue = target COLLATE "C" THEN
        PERFORM jobq._refuse('target', 'must be another queue', p_value => target);
    END IF;
    RETURN jobq._operated('move', jsonb_build_object(
        'queue', queue, 'target', target, 'kind', kind, 'older', older, 'tags', tags),
        jobq._change(jobq._pick(jobq._known_queue(queue), kind, older, tags, at_most,
                              p_target => v_target), NULL, NULL, v_target));
END $$;
