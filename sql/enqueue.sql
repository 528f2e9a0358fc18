-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: enqueue.

-- Makes sure that claims list the lanes of this priority and of these stages. Workers list the
-- lanes of negative priorities as soon as they know of them.
CREATE OR REPLACE FUNCTION jobq._widen(p_queue integer, p_priority integer, p_stages integer)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_min smallint;
BEGIN
    SELECT q.priority_min INTO v_min FROM jobq.queue q
    WHERE q.id = p_queue AND (q.priority_min > p_priority OR q.stages_max < p_stages);
    IF NOT FOUND THEN RETURN; END IF;
    UPDATE jobq.queue q
    SET priority_min = least(q.priority_min, p_priority),
        stages_max = greatest(q.stages_max, p_stages)
    WHERE q.id = p_queue;
    IF v_min > p_priority THEN PERFORM jobq._tell(p_queue); END IF;
END $$;

-- Notifies who listens on this channel: a worker, by its id, or who waits for jobs. Only this
-- function does. A notification saves time and nothing else, so it must not cost the
-- transaction that it rides on: COMMIT fails once the server's queue of notifications is full,
-- so none is sent while that is half full. PREPARE TRANSACTION fails after any: whoever needs
-- it says SET LOCAL jobq_settings.notify = off before, and workers look a little later.
CREATE OR REPLACE FUNCTION jobq._notify(p_channel bigint, p_text text) RETURNS void
LANGUAGE plpgsql STRICT SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    IF pg_notification_queue_usage() < 0.5
       AND current_setting('jobq_settings.notify', true) IS DISTINCT FROM 'off' THEN
        PERFORM pg_notify('jobq_' || to_hex(p_channel), p_text);
    END IF;
END $$;

-- Wakes sleeping workers of a queue: at most one for each job of the batch. NOTIFY takes a
-- global lock at commit, so it is sent only when a worker sleeps. Each worker listens on a
-- channel of its own.
CREATE OR REPLACE FUNCTION jobq._wake(p_queue integer, p_most integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
BEGIN
    PERFORM jobq._notify(s.worker, '')
    FROM (SELECT worker FROM jobq.sleeper WHERE queue_id = p_queue LIMIT p_most) s;
END $$;

-- Refuses a job for the first thing that is wrong with it. It is called only when something is
-- wrong, so a good job costs no call. Sizes are those of the text that Postgres hands to a
-- worker.
CREATE OR REPLACE FUNCTION jobq._check_job(
    p_queue integer, p_payload jsonb, p_bytes bytea, p_headers jsonb, p_run_at timestamptz,
    p_priority smallint, p_stages smallint, p_max_attempts integer, p_timeout_us bigint,
    p_key text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_queue jobq.queue;
    v_size integer := greatest(octet_length(p_payload::text), octet_length(p_bytes));
    v_hint text;
BEGIN
    SELECT q.* INTO v_queue FROM jobq.queue q WHERE q.id = p_queue;
    v_hint := format('Keep large data elsewhere and enqueue a reference to it, or raise the '
                     'limit: select jobq.queue_set(%L, payload_max => ...)', v_queue.name);
    IF v_size > v_queue.payload_max THEN
        PERFORM jobq._refuse('payload', format(
            'too large: size %s exceeds maximum %s', v_size, v_queue.payload_max), v_hint);
    ELSIF octet_length(p_headers::text) > v_queue.payload_max THEN
        PERFORM jobq._refuse('headers', format(
            'too large: size %s exceeds maximum %s', octet_length(p_headers::text),
            v_queue.payload_max), v_hint);
    ELSIF jsonb_typeof(p_headers) <> 'object' THEN
        PERFORM jobq._refuse('headers', 'not a JSON object');
    ELSIF p_payload IS NOT NULL AND p_bytes IS NOT NULL THEN
        PERFORM jobq._refuse('payload', 'not allowed with bytes');
    ELSIF NOT isfinite(p_run_at) THEN
        PERFORM jobq._refuse('run_at', 'must be a finite instant');
    ELSIF p_priority NOT BETWEEN -9 AND 9 THEN
        PERFORM jobq._refuse('priority', 'must be -9 to 9', p_value => p_priority::text);
    ELSIF p_stages NOT BETWEEN 1 AND 16 THEN
        PERFORM jobq._refuse('stages', 'must be 1 to 16', p_value => p_stages::text);
    ELSIF p_max_attempts < 1 THEN
        PERFORM jobq._refuse('max_attempts',
                             'must be 1 or more', p_value => p_max_attempts::text);
    ELSIF p_timeout_us < 1000 THEN
        PERFORM jobq._refuse('timeout', 'must be at least a millisecond');
    ELSIF octet_length(p_key) NOT BETWEEN 1 AND 1024 THEN
        PERFORM jobq._refuse('key', 'must be 1 to 1024 bytes', p_value => p_key);
    END IF;
END $$;

-- Refuses what a tenant's role may not enqueue; see grant_enqueue. NULL: the role is no
-- tenant's. Otherwise what its keys begin with. Roles count that logged in, because inside
-- these functions the current one is the owner.
CREATE OR REPLACE FUNCTION jobq._tenant_may(p_queue text, p_lines text[], p_count integer)
RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_tenant jobq.tenant;
    v_owner oid := (SELECT n.nspowner FROM pg_namespace n
                        WHERE n.oid = 'jobq'::regnamespace);
    v_allowed text;
BEGIN
    FOR v_tenant IN
        SELECT t.* FROM jobq.tenant t JOIN pg_roles r ON r.rolname = session_user
        WHERE NOT r.rolsuper AND r.oid IS DISTINCT FROM v_owner
          AND pg_has_role(r.oid, t.role, 'MEMBER')
        ORDER BY t.role
    LOOP
        IF p_queue COLLATE "C" = ANY (v_tenant.queues) AND (v_tenant.lines IS NULL OR (
                cardinality(p_lines) >= p_count AND NOT EXISTS (
                    SELECT FROM unnest(p_lines) AS l (name)
                    WHERE (l.name COLLATE "C" LIKE v_tenant.lines) IS NOT TRUE))) THEN
            -- Its length comes first, so that one tenant's keys never begin like another's.
            RETURN coalesce(octet_length(v_tenant.lines)::text || ':' || v_tenant.lines::text
                            || '/', '');
        END IF;
        v_allowed := concat_ws('; ', v_allowed, format('%s, %s',
            array_to_string(v_tenant.queues, ' or '), coalesce(
                'and a line that is LIKE ' || quote_literal(v_tenant.lines), 'any line')));
    END LOOP;
    IF NOT FOUND THEN RETURN NULL; END IF;
    RAISE EXCEPTION 'role % may not enqueue this into queue %', session_user, p_queue
        USING ERRCODE = '42501', HINT = 'It is a tenant''s, and may use queue ' || v_allowed
            || '.';
END $$;

-- The same of one job. Answers its key, which is kept apart from others' keys.
CREATE OR REPLACE FUNCTION jobq._tenant_key(p_queue text, p_line text, p_key text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_begin text := jobq._tenant_may(p_queue, ARRAY[p_line], 1);
BEGIN
    RETURN CASE WHEN starts_with(p_key, v_begin) THEN p_key
           ELSE coalesce(v_begin, '') || p_key END;
END $$;

-- The same of many jobs and their keys. p_flow: it must name none.
CREATE OR REPLACE FUNCTION jobq._tenant_keys(
    p_queue text, p_lines text[], p_count integer, p_keys text[], p_flow bigint) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_begin text := jobq._tenant_may(p_queue, p_lines, p_count);
BEGIN
    IF v_begin IS NULL OR (p_flow IS NULL AND p_keys IS NULL) THEN RETURN p_keys; END IF;
    IF p_flow IS NOT NULL THEN PERFORM jobq._tenant_refuse(p_queue, p_lines); END IF;
    RETURN (SELECT array_agg(CASE WHEN starts_with(k.name, v_begin) THEN k.name
                             ELSE v_begin || k.name END ORDER BY k.n)
            FROM unnest(p_keys) WITH ORDINALITY AS k (name, n));
END $$;

-- Whether the caller may write messages into this queue: it is no tenant's role, or one that
-- was given this outbox.
CREATE OR REPLACE FUNCTION jobq._tenant_writes(p_queue text) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
        SELECT coalesce(bool_or(t.outboxes IS NOT NULL
                                AND p_queue COLLATE "C" = ANY (t.outboxes)), true)
        FROM jobq.tenant t JOIN pg_roles r ON r.rolname = session_user
        WHERE NOT r.rolsuper AND pg_has_role(r.oid, t.role, 'MEMBER')
          AND r.oid <> (SELECT n.nspowner FROM pg_namespace n
                        WHERE n.oid = 'jobq'::regnamespace));
END $$;

-- Refuses to a tenant what reaches beyond its lines.
CREATE OR REPLACE FUNCTION jobq._tenant_refuse(p_queue text, p_lines text[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jobq._tenant_may(p_queue, p_lines, 1) IS NOT NULL THEN
        RAISE EXCEPTION 'role % may not use flows', session_user USING ERRCODE = '42501';
    END IF;
END $$;

-- The same of many jobs: looks at the arrays as a whole, and then for the job that is refused.
-- Printing a payload to learn its size costs 0.5 of 6 microseconds, so short ones are not
-- printed. Only numbers print much longer than they are stored: a number of more than 320
-- characters takes 16 bytes or more, and none has more than 147,457 characters.
CREATE OR REPLACE FUNCTION jobq._check_jobs(
    p_queue integer, p_max integer, p_payloads jsonb[], p_bytes bytea[], p_headers jsonb[],
    p_run_ats timestamptz[], p_priorities smallint[], p_stages smallint[],
    p_max_attempts integer[], p_timeouts_us bigint[], p_keys text[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_short integer := p_max / 148000 * 16; -- bytes of jsonb that print at most p_max
BEGIN
    IF EXISTS (SELECT FROM unnest(p_payloads) u
               WHERE pg_column_size(u) > v_short AND octet_length(u::text) > p_max)
       OR (p_bytes IS NOT NULL AND EXISTS (
           SELECT FROM unnest(p_bytes, p_payloads) AS u (bytes, payload)
           WHERE octet_length(u.bytes) > p_max OR (u.bytes, u.payload) IS NOT NULL))
       OR EXISTS (SELECT FROM unnest(p_headers) u
                  WHERE octet_length(u::text) > p_max OR jsonb_typeof(u) <> 'object')
       OR EXISTS (SELECT FROM unnest(p_keys) u WHERE octet_length(u) NOT BETWEEN 1 AND 1024)
       OR 'infinity' = ANY (p_run_ats) OR '-infinity' = ANY (p_run_ats)
       OR -9 > ANY (p_priorities) OR 9 < ANY (p_priorities) OR 1 > ANY (p_stages)
       OR 16 < ANY (p_stages) OR 1 > ANY (p_max_attempts)
       OR 1000 > ANY (p_timeouts_us) THEN
        PERFORM jobq._check_job(p_queue, u.payload, u.bytes, u.headers, u.run_at, u.priority,
                               u.stages, u.max_attempts, u.timeout_us, u.key)
        FROM ROWS FROM (
                 unnest(p_payloads), unnest(p_bytes), unnest(p_headers), unnest(p_run_ats),
                 unnest(p_priorities), unnest(p_stages), unnest(p_max_attempts),
                 unnest(p_timeouts_us), unnest(p_keys))
             AS u (payload, bytes, headers, run_at, priority, stages, max_attempts, timeout_us,
                   key);
    END IF;
END $$;

-- When jobs expire that are enqueued with these times, an element of each array for each job:
-- at an instant or, if it has none, some time after they may run. NULL: never. An instant that
-- has passed is no error, because a program's clock, or the network, may be late: such a job
-- ends when a claim finds it.
CREATE OR REPLACE FUNCTION jobq._expiries(
    p_run_ats timestamptz[], p_delays_us bigint[], p_expires_us bigint[],
    p_expires_ats timestamptz[]) RETURNS timestamptz[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_now timestamptz := statement_timestamp();
BEGIN
    IF 1000 > ANY (p_expires_us) THEN
        PERFORM jobq._refuse('expires', 'must be at least a millisecond');
    END IF;
    PERFORM jobq._refuse('expires', CASE WHEN isfinite(u.expires_at)
                         THEN 'must be after run_at' ELSE 'must be a finite instant' END)
    FROM unnest(p_run_ats, p_expires_ats) AS u (run_at, expires_at)
    WHERE u.expires_at <= u.run_at OR NOT isfinite(u.expires_at);
    RETURN ARRAY(
        SELECT coalesce(u.expires_at, greatest(v_now, coalesce(
                   u.run_at, v_now + u.delay_us * interval '1 microsecond'))
                   + u.expires_us * interval '1 microsecond')
        FROM unnest(p_run_ats, p_delays_us, p_expires_us, p_expires_ats) WITH ORDINALITY
             AS u (run_at, delay_us, expires_us, expires_at, n)
        ORDER BY u.n);
END $$;

-- Writes many jobs of one queue in one statement. Element i of every array belongs to job i.
-- An array may be NULL (all defaults), and so may its elements. p_kinds holds the distinct
-- kinds; p_kind holds 1-based indexes into it (NULL: the first). p_run_ats wins over
-- p_delays_us. An instant in the past becomes now, because a worker's lower bound would hide
-- the job. ids come back in the order of the arrays: they are drawn first and carried through.
-- existed[i]: the key was known, and ids[i] is the job that has it. p_expires_us, counted from
-- run_at, p_expires_ats: see _expiries.
CREATE OR REPLACE FUNCTION jobq._enqueue_many(
    p_queue text, p_kinds text[], p_kind integer[], p_payloads jsonb[],
    p_bytes bytea[] DEFAULT NULL, p_headers jsonb[] DEFAULT NULL,
    p_run_ats timestamptz[] DEFAULT NULL, p_delays_us bigint[] DEFAULT NULL,
    p_priorities smallint[] DEFAULT NULL, p_stages smallint[] DEFAULT NULL,
    p_max_attempts integer[] DEFAULT NULL, p_timeouts_us bigint[] DEFAULT NULL,
    p_keys text[] DEFAULT NULL, p_count integer DEFAULT NULL, p_notify boolean DEFAULT true,
    p_lines text[] DEFAULT NULL, p_flow bigint DEFAULT NULL,
    p_expires_us bigint[] DEFAULT NULL, p_expires_ats timestamptz[] DEFAULT NULL,
    OUT ids bigint[], OUT existed boolean[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_queue integer := jobq._queue_id(p_queue);
    v_kinds integer[];
    v_now timestamptz := statement_timestamp();
    v_count integer := coalesce(p_count, cardinality(p_payloads), cardinality(p_bytes), 1);
    v_max integer;
    v_stages smallint := (SELECT max(s) FROM unnest(p_stages) s);
    v_tenants boolean;
    v_expiries timestamptz[];
BEGIN
    SELECT q.payload_max, EXISTS (SELECT FROM jobq.tenant) INTO v_max, v_tenants
    FROM jobq.queue q WHERE q.id = v_queue;
    IF v_tenants THEN
        p_keys := jobq._tenant_keys(p_queue, p_lines, v_count, p_keys, p_flow);
    END IF;
    PERFORM jobq._check_jobs(v_queue, v_max, p_payloads, p_bytes, p_headers, p_run_ats,
                            p_priorities, p_stages, p_max_attempts, p_timeouts_us, p_keys);
    IF num_nonnulls(p_expires_us, p_expires_ats) > 0 THEN
        v_expiries := jobq._expiries(p_run_ats, p_delays_us, p_expires_us, p_expires_ats);
    END IF;
    IF p_flow IS NOT NULL THEN PERFORM jobq._flow_add(p_flow, v_count); END IF;
    v_kinds := jobq._kind_ids(v_queue, p_kinds);
    ids := ARRAY(SELECT nextval('jobq.job_id') FROM generate_series(1, v_count));
    IF p_keys IS NOT NULL THEN
        SELECT k.ids, k.existed INTO ids, existed FROM jobq._keep_keys(v_queue, p_keys, ids) k;
    END IF;
    IF (v_stages > 1 OR 0 > ANY (p_priorities)) AND (false = ANY (existed)) IS NOT FALSE THEN
        PERFORM jobq._widen(v_queue, (SELECT min(p) FROM unnest(p_priorities) p), v_stages);
    END IF;
    IF p_lines IS NOT NULL THEN
        PERFORM jobq._check_lines(v_queue, p_lines, p_run_ats, p_delays_us, existed);
    END IF;
    INSERT INTO jobq.job (id, queue_id, kind_id, enqueued_at, run_at, priority, stages, line,
                          max_attempts, timeout_us, flow_id, key, line_name, payload, bytes,
                          headers, expires_at)
    SELECT u.id, v_queue, v_kinds[coalesce(u.kind, 1)], v_now,
           greatest(coalesce(u.run_at, v_now + u.delay_us * interval '1 microsecond'), v_now),
           coalesce(u.priority, 0), coalesce(u.stages, 1), CASE WHEN u.line IS NOT NULL THEN
               jobq._line_at(u.line, coalesce(u.run_at, v_now + coalesce(u.delay_us, 0)
                                             * interval '1 microsecond')) END,
           u.max_attempts, u.timeout_us, p_flow, u.key, u.line, u.payload, u.bytes, u.headers,
           u.expires_at
    FROM (SELECT unnest(ids) AS id, unnest(existed) AS existed, unnest(p_kind) AS kind,
                 unnest(p_payloads) AS payload, unnest(p_bytes) AS bytes,
                 unnest(p_headers) AS headers, unnest(p_run_ats) AS run_at,
                 unnest(p_delays_us) AS delay_us, unnest(p_priorities) AS priority,
                 unnest(p_stages) AS stages, unnest(p_max_attempts) AS max_attempts,
                 unnest(p_timeouts_us) AS timeout_us, unnest(p_keys) AS key,
                 unnest(p_lines) AS line, unnest(v_expiries) AS expires_at) AS u
    WHERE u.id IS NOT NULL AND u.existed IS NOT TRUE;
    IF p_notify THEN PERFORM jobq._wake(v_queue, v_count); END IF;
END $$;

-- Idempotency. The key's row is inserted first, with ON CONFLICT DO NOTHING. A second
-- statement, with a new snapshot, reads which job has the key. Both are repeated when the
-- other transaction rolled back in between. p_ended_at is for messages, whose keys are kept
-- for a day from the start.
CREATE OR REPLACE FUNCTION jobq._keep_keys(
    p_queue integer, p_keys text[], p_ids bigint[], p_ended_at timestamptz DEFAULT NULL,
    OUT ids bigint[], OUT existed boolean[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    i integer;
    v_id bigint;
    v_keep interval := (SELECT q.key_keep FROM jobq.queue q WHERE q.id = p_queue);
BEGIN
    ids := p_ids;
    existed := array_fill(false, ARRAY[cardinality(p_ids)]);
    FOR i IN SELECT u.n FROM unnest(p_keys) WITH ORDINALITY AS u (key, n)
             WHERE u.key IS NOT NULL ORDER BY u.key COLLATE "C", u.n LOOP
        LOOP
            INSERT INTO jobq.idempotency (queue_id, key, job_id, ended_at)
            VALUES (p_queue, p_keys[i], p_ids[i], p_ended_at)
            ON CONFLICT (queue_id, key) DO NOTHING;
            EXIT WHEN FOUND;
            DELETE FROM jobq.idempotency k
            WHERE k.queue_id = p_queue AND k.key = p_keys[i] COLLATE "C"
              AND k.ended_at < statement_timestamp() - v_keep;
            CONTINUE WHEN FOUND;
            SELECT k.job_id INTO v_id FROM jobq.idempotency k
            WHERE k.queue_id = p_queue AND k.key = p_keys[i] COLLATE "C";
            IF FOUND THEN
                ids[i] := v_id;
                existed[i] := true;
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
END $$;

-- What a program must know before it COPYs into the table job: ids, this database's clock,
-- payload_max (which the program must respect). It also makes sure that the queue's lanes
-- reach far enough: p_stages is the most that a job has, p_priority the smallest. p_lines:
-- some of the jobs name lines, in line_name. After the COPY call wake.
CREATE OR REPLACE FUNCTION jobq._bulk(
    p_queue text, p_kinds text[], p_stages smallint, p_priority smallint DEFAULT 0,
    p_lines boolean DEFAULT false, OUT queue integer, OUT kinds integer[],
    OUT now_at timestamptz, OUT payload_max integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    queue := jobq._queue_id(p_queue);
    kinds := jobq._kind_ids(queue, p_kinds);
    PERFORM jobq._widen(queue, p_priority, p_stages);
    IF p_lines THEN PERFORM jobq._has_lines(queue); END IF;
    payload_max := (SELECT q.payload_max FROM jobq.queue q WHERE q.id = queue);
    now_at := statement_timestamp();
END $$;

-- Writes one job, with as little as possible: two look-ups, one insert, a look at the
-- sleepers. The rare cases (first use of a name, stages, a key, a negative priority, a job
-- that expires) go through enqueue_many.
CREATE OR REPLACE FUNCTION jobq._enqueue_one(
    p_queue text, p_kind text, p_payload jsonb, p_bytes bytea, p_headers jsonb,
    p_run_at timestamptz, p_delay_us bigint, p_priority smallint, p_stages smallint,
    p_max_attempts integer, p_timeout_us bigint, p_key text, p_notify boolean,
    p_line text DEFAULT NULL, p_expires_us bigint DEFAULT NULL,
    p_expires_at timestamptz DEFAULT NULL, OUT id bigint, OUT existed boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_queue integer;
    v_kind integer;
    v_max integer;
    v_line bigint;
    v_tenants boolean;
    v_now timestamptz := statement_timestamp();
BEGIN
    existed := false;
    SELECT k.queue_id, k.id, k.payload_max, EXISTS (SELECT FROM jobq.tenant)
    INTO v_queue, v_kind, v_max, v_tenants
    FROM jobq.kind k WHERE k.queue = p_queue COLLATE "C" AND k.name = p_kind COLLATE "C";
    IF v_tenants THEN p_key := jobq._tenant_key(p_queue, p_line, p_key); END IF;
    IF v_kind IS NULL OR p_stages > 1 OR p_priority < 0
       OR num_nonnulls(p_key, p_expires_us, p_expires_at) > 0 THEN
        SELECT e.ids[1], coalesce(e.existed[1], false) INTO id, existed
        FROM jobq._enqueue_many(
            p_queue, ARRAY[p_kind], NULL, ARRAY[p_payload], ARRAY[p_bytes], ARRAY[p_headers],
            ARRAY[p_run_at], ARRAY[p_delay_us], ARRAY[p_priority], ARRAY[p_stages],
            ARRAY[p_max_attempts], ARRAY[p_timeout_us],
            CASE WHEN p_key IS NOT NULL THEN ARRAY[p_key] END, 1, p_notify,
            CASE WHEN p_line IS NOT NULL THEN ARRAY[p_line] END, NULL,
            CASE WHEN p_expires_us IS NOT NULL THEN ARRAY[p_expires_us] END,
            CASE WHEN p_expires_at IS NOT NULL THEN ARRAY[p_expires_at] END) e;
        RETURN;
    END IF;
    IF greatest(octet_length(p_payload::text), octet_length(p_bytes),
                octet_length(p_headers::text)) > v_max
       OR jsonb_typeof(p_headers) <> 'object' OR NOT isfinite(p_run_at)
       OR p_priority NOT BETWEEN -9 AND 9 OR p_stages < 1 OR p_max_attempts < 1
       OR p_timeout_us < 1000 OR (p_payload IS NOT NULL AND p_bytes IS NOT NULL) THEN
        PERFORM jobq._check_job(v_queue, p_payload, p_bytes, p_headers, p_run_at, p_priority,
                               p_stages, p_max_attempts, p_timeout_us, p_key);
    END IF;
    IF p_line IS NOT NULL THEN
        PERFORM jobq._check_lines(v_queue, ARRAY[p_line], ARRAY[p_run_at], ARRAY[p_delay_us]);
        v_line := jobq._line_at(p_line, coalesce(p_run_at, v_now + coalesce(p_delay_us, 0)
                                                * interval '1 microsecond'));
    END IF;
    INSERT INTO jobq.job (queue_id, kind_id, enqueued_at, run_at, priority, line, max_attempts,
                          timeout_us, line_name, payload, bytes, headers)
    VALUES (v_queue, v_kind, v_now,
            greatest(v_now, coalesce(p_run_at, v_now + p_delay_us * interval '1 microsecond')),
            coalesce(p_priority, 0), v_line, p_max_attempts, p_timeout_us, p_line, p_payload,
            p_bytes, p_headers)
    RETURNING job.id INTO id;
    IF p_notify THEN
        PERFORM jobq._notify(s.worker, '')
        FROM jobq.sleeper s WHERE s.queue_id = v_queue LIMIT 1;
    END IF;
END $$;

-- ---- unique jobs -------------------------------------------------------------------------

-- What to do with an enqueue whose key another job has, as model_known_decide in C says:
-- leave it, reject; new: the new job takes the key; replace, merge, bump: change the job that
-- has it; follow: the new job takes the key and waits for the other one to end; cancel: the
-- same, and the other one is cancelled. p_state: r or w, not begun; x: begun, also if it waits
-- for jobs that it spawned; e: ended.
CREATE OR REPLACE FUNCTION jobq._known_decide(p_on_known text, p_unique text, p_state "char")
RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_unique text := coalesce(p_unique, CASE WHEN p_on_known IN ('leave', 'reject')
                                            THEN 'period' ELSE 'live' END);
BEGIN
    RETURN CASE
        WHEN p_state = 'e' AND v_unique <> 'period' THEN 'new'
        WHEN p_state = 'x' AND v_unique = 'ready' THEN 'new'
        WHEN p_on_known IN ('leave', 'reject') THEN p_on_known
        WHEN p_state = 'e' THEN 'leave'
        WHEN p_state = 'x' AND p_on_known = 'bump' THEN 'leave'
        WHEN p_state = 'x' AND p_on_known <> 'cancel' THEN 'follow'
        WHEN p_state = 'w' AND p_on_known = 'cancel' THEN 'replace'
        ELSE p_on_known END;
END $$;

-- Changes a job that has not begun, whose row is locked, as a new enqueue with its key says.
-- p_latest: how long after the first enqueue it may run at the latest.
CREATE OR REPLACE FUNCTION jobq._known_change(
    p_what text, p_job jobq.job, p_new jobq.job, p_latest interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_run_at timestamptz := greatest( -- below a worker's bound it would be hidden
        least(p_new.run_at, p_job.enqueued_at + p_latest), statement_timestamp());
    v_merged jsonb := p_job.payload || p_new.payload;
BEGIN
    IF p_what = 'bump' THEN
        UPDATE jobq.job j
        SET run_at = v_run_at, line = jobq._line_at(j.line_name, v_run_at)
        WHERE j.id = p_job.id AND j.state = 'r' AND j.run_at > v_run_at;
    ELSIF p_what = 'replace' THEN
        UPDATE jobq.job j
        SET payload = p_new.payload, bytes = p_new.bytes, headers = p_new.headers,
            priority = p_new.priority, attempt = 0, steps = NULL, line_name = p_new.line_name,
            expires_at = p_new.expires_at,
            line = CASE WHEN j.state = 'r' THEN jobq._line_at(p_new.line_name, v_run_at) END,
            run_at = CASE WHEN j.state = 'w' THEN j.run_at ELSE v_run_at END
        WHERE j.id = p_job.id;
        IF p_job.suspect THEN
            PERFORM jobq._line_suspects(p_job.queue_id, ARRAY[p_job.id]);
        END IF;
    ELSE
        IF jsonb_typeof(p_job.payload) NOT IN ('array', 'object')
           OR jsonb_typeof(p_job.payload) IS DISTINCT FROM jsonb_typeof(p_new.payload) THEN
            PERFORM jobq._refuse('payload', 'must be two arrays or two objects, to be merged');
        END IF;
        PERFORM jobq._check_job(p_job.queue_id, v_merged, NULL, NULL, NULL, NULL, NULL, NULL,
                               NULL, NULL);
        UPDATE jobq.job j SET payload = v_merged WHERE j.id = p_job.id;
    END IF;
    IF p_what <> 'merge' THEN PERFORM jobq._wake(p_job.queue_id, 1); END IF;
END $$;

-- Inserts a job under a key that another job has, or had. false: the key has moved meanwhile.
-- p_waits: the new job waits for that one, whose row is locked, to end.
CREATE OR REPLACE FUNCTION jobq._known_succeed(p_old bigint, p_new jobq.job, p_waits boolean)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    UPDATE jobq.idempotency k SET job_id = p_new.id, ended_at = NULL
    WHERE k.queue_id = p_new.queue_id AND k.key = p_new.key AND k.job_id = p_old;
    IF NOT FOUND THEN RETURN false; END IF;
    INSERT INTO jobq.job (id, queue_id, kind_id, enqueued_at, run_at, priority, stages, state,
                          line, max_attempts, timeout_us, key, line_name, payload, bytes,
                          headers, expires_at)
    VALUES (p_new.id, p_new.queue_id, p_new.kind_id, p_new.enqueued_at,
            CASE WHEN p_waits THEN 'infinity' ELSE p_new.run_at END, p_new.priority,
            p_new.stages, CASE WHEN p_waits THEN 'w' ELSE 'r' END::"char",
            CASE WHEN NOT p_waits THEN jobq._line_at(p_new.line_name, p_new.run_at) END,
            p_new.max_attempts, p_new.timeout_us, p_new.key, p_new.line_name, p_new.payload,
            p_new.bytes, p_new.headers, p_new.expires_at);
    IF p_waits THEN
        PERFORM jobq._follow(p_old, p_new.id);
    ELSE
        PERFORM jobq._wake(p_new.queue_id, 1);
    END IF;
    RETURN true;
END $$;

-- Locks the key of a job. False: it is another job's now, or, if the caller has not locked the
-- job because it was not live, that one was revived meanwhile. Then the key is not locked: the
-- caller looks again, and would wait for the job while its worker waits for the key.
CREATE OR REPLACE FUNCTION jobq._known_lock(
    p_queue integer, p_key text, p_id bigint, p_live boolean) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    PERFORM FROM jobq.idempotency k
    WHERE k.queue_id = p_queue AND k.key = p_key COLLATE "C" AND k.job_id = p_id
    FOR UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    IF NOT p_live AND EXISTS (
            SELECT FROM jobq.job j
            WHERE j.id = p_id AND j.queue_id = p_queue
            AND j.key = p_key COLLATE "C") THEN
        RAISE EXCEPTION USING ERRCODE = 'JQ000';
    END IF;
    RETURN true;
EXCEPTION WHEN SQLSTATE 'JQ000' THEN RETURN false;
END $$;

-- Writes one job; p_on_known says what happens if another job has its key. id: of the job that
-- this payload went into. existed: the other one was left, and id is that one's. The job is
-- locked before its key, as where a job ends. A key may also be a message's, whose number may
-- be a job's, too.
CREATE OR REPLACE FUNCTION jobq._enqueue_known(
    p_queue text, p_kind text, p_payload jsonb, p_bytes bytea, p_headers jsonb,
    p_run_at timestamptz, p_delay_us bigint, p_priority smallint, p_stages smallint,
    p_max_attempts integer, p_timeout_us bigint, p_key text, p_notify boolean,
    p_on_known text, p_unique text, p_latest_us bigint, p_line text DEFAULT NULL,
    p_expires_us bigint DEFAULT NULL, p_expires_at timestamptz DEFAULT NULL, OUT id bigint,
    OUT existed boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_new jobq.job;
    v_old jobq.job;
    v_what text;
BEGIN
    IF EXISTS (SELECT FROM jobq.tenant) THEN
        p_key := jobq._tenant_key(p_queue, p_line, p_key);
    END IF;
    PERFORM jobq._check_known(p_key, p_on_known, p_unique, p_latest_us);
    LOOP
        SELECT e.id, e.existed INTO v_old.id, existed FROM jobq._enqueue_one(
            p_queue, p_kind, p_payload, p_bytes, p_headers, p_run_at, p_delay_us, p_priority,
            p_stages, p_max_attempts, p_timeout_us, p_key, p_notify, p_line, p_expires_us,
            p_expires_at) e;
        id := v_old.id;
        IF NOT existed THEN RETURN; END IF;
        v_new.queue_id := jobq._queue_id(p_queue);
        SELECT j.* INTO v_old FROM jobq.job j
        WHERE j.id = v_old.id AND j.queue_id = v_new.queue_id
        AND j.key = p_key COLLATE "C" FOR UPDATE;
        v_what := jobq._known_decide(coalesce(p_on_known, 'leave'), p_unique, CASE
            WHEN NOT FOUND THEN 'e' WHEN v_old.stage > 0 THEN 'x'
            WHEN v_old.state = 'w' AND v_old.claimed_at IS NOT NULL THEN 'x'
            ELSE v_old.state END);
        IF v_what IN ('leave', 'reject') THEN RETURN; END IF;
        CONTINUE WHEN NOT jobq._known_lock(v_new.queue_id, p_key, id, v_old.id IS NOT NULL);
        PERFORM jobq._widen(v_new.queue_id, p_priority, p_stages);
        IF p_line IS NOT NULL THEN PERFORM jobq._has_lines(v_new.queue_id); END IF;
        v_new.kind_id := jobq._kind_id(v_new.queue_id, p_kind);
        v_new.enqueued_at := statement_timestamp();
        v_new.run_at := greatest(v_new.enqueued_at, coalesce(
            p_run_at, v_new.enqueued_at + p_delay_us * interval '1 microsecond'));
        v_new.priority := coalesce(p_priority, 0);
        v_new.stages := coalesce(p_stages, 1);
        v_new.max_attempts := p_max_attempts;
        v_new.timeout_us := p_timeout_us;
        v_new.expires_at := (jobq._expiries(ARRAY[p_run_at], ARRAY[p_delay_us],
                                            ARRAY[p_expires_us], ARRAY[p_expires_at]))[1];
        v_new.key := p_key;
        v_new.line_name := p_line;
        v_new.payload := p_payload;
        v_new.bytes := p_bytes;
        v_new.headers := p_headers;
        IF v_what IN ('replace', 'merge', 'bump') THEN
            IF v_old.kind_id <> v_new.kind_id AND v_what <> 'bump' THEN
                PERFORM jobq._refuse('kind', format(
                    'must be that of job %s, which has the key', id), p_value => p_kind);
            END IF;
            PERFORM jobq._known_change(v_what, v_old, v_new,
                                      p_latest_us * interval '1 microsecond');
            existed := false;
            RETURN;
        END IF;
        existed := false;
        v_new.id := nextval('jobq.job_id');
        EXIT WHEN jobq._known_succeed(id, v_new, CASE v_what WHEN 'cancel'
            THEN jobq._cancel_one(id) = 'requested' ELSE v_what = 'follow' END);
    END LOOP;
    id := v_new.id;
END $$;

-- Refuses what is wrong with the words of an enqueue whose key may be known.
CREATE OR REPLACE FUNCTION jobq._check_known(
    p_key text, p_on_known text, p_unique text, p_latest_us bigint) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_key IS NULL THEN
        PERFORM jobq._refuse('key', 'must be given with on_known, unique_for and at_latest');
    ELSIF p_on_known NOT IN ('leave', 'replace', 'merge', 'bump', 'cancel', 'reject') THEN
        PERFORM jobq._refuse(
            'on_known', 'must be leave, replace, merge, bump, cancel or reject',
            p_value => p_on_known);
    ELSIF p_unique NOT IN ('period', 'live', 'ready') THEN
        PERFORM jobq._refuse('unique_for', 'must be period, live or ready',
                             p_value => p_unique);
    ELSIF p_latest_us < 0 THEN
        PERFORM jobq._refuse('at_latest', 'must be positive');
    ELSIF p_latest_us IS NOT NULL AND (p_on_known IN ('replace', 'bump')) IS NOT TRUE THEN
        PERFORM jobq._refuse('at_latest', 'needs on_known replace or bump');
    END IF;
END $$;

-- One job, as a person types it. existed: another job has the key and was left; id is that
-- one's.
--   delay       not before now plus this; or run_at, not before that instant
--   expires     no attempt begins this long after it may run, or later: then it is cancelled
--               by the next claim that finds it, with "expired" in its errors
--   on_known    what to do then: leave it (default); replace its payload, headers, priority,
--               run_at and expires; merge the payloads (arrays are appended, objects joined);
--               bump: let it run earlier; cancel it; reject: an error. replace and merge are
--               refused if it has another kind. If it has begun, they write a new job that
--               waits for its end, and so does cancel: there is at most one that runs and one
--               that waits, with the newest payload.
--   unique_for  how long a key counts as known: period, until its queue's key_keep after its
--               job's end (default of leave and reject); live, until its job ends (default of
--               the others); ready, until its job begins. With ready, a job that begins gives
--               its key away: if it is retried, it may run beside a newer one, or after it.
--   at_latest   with delay and replace (debounce): a job runs this long after its first
--               enqueue at the latest.
--   line        the job's line, such as its tenant: see lines.sql.
--   flow, name  the flow that it belongs to, and what it is called there: see flows.sql.
--   after       the jobs that it waits for, by id; after_names: by their names in the flow;
--               after_flow: a flow, for the end of all its jobs. on_end: it runs if they
--               succeed, if they do not (failure), or at any end. It waits for all of them.
-- Answers id and existed. NULL in an argument with a default means its default.
-- Errors: 22023; 40001 try again; JQ005 too many wait in its line; JQ006 a job or flow that it
-- waits for is gone; JQ007 the key is known, and on_known is reject; 55000 the flow has ended;
-- 42501 it is not this tenant's queue or line.
--     select * from jobq.enqueue_or_get('mail', 'welcome', key => 'order-7');
CREATE OR REPLACE FUNCTION jobq.enqueue_or_get(
    queue text, kind text, payload jsonb DEFAULT NULL, delay interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, priority integer DEFAULT 0, stages integer DEFAULT 1,
    max_attempts integer DEFAULT NULL, timeout interval DEFAULT NULL, key text DEFAULT NULL,
    bytes bytea DEFAULT NULL, headers jsonb DEFAULT NULL, notify boolean DEFAULT true,
    on_known text DEFAULT NULL, unique_for text DEFAULT NULL, at_latest interval DEFAULT NULL,
    line text DEFAULT NULL, flow bigint DEFAULT NULL, name text DEFAULT NULL,
    after bigint[] DEFAULT NULL, after_names text[] DEFAULT NULL,
    after_flow bigint DEFAULT NULL, on_end text DEFAULT 'success',
    expires interval DEFAULT NULL, OUT id bigint, OUT existed boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v_run_at timestamptz;
BEGIN
    IF delay NOT BETWEEN '0' AND '1000 years' THEN
        PERFORM jobq._refuse('delay', 'must be 0 to 1000 years');
    END IF;
    v_run_at := coalesce(run_at, statement_timestamp() + delay);
    IF num_nonnulls(delay, run_at) = 2 THEN
        PERFORM jobq._refuse('delay', 'not allowed with run_at');
    END IF;
    IF NOT isfinite(timeout) THEN
        PERFORM jobq._refuse('timeout', 'must be a finite interval');
    END IF;
    IF expires NOT BETWEEN '1 millisecond' AND '1000 years' THEN
        PERFORM jobq._refuse('expires', 'must be 1 ms to 1000 years');
    END IF;
    IF priority NOT BETWEEN -9 AND 9 THEN
        PERFORM jobq._refuse('priority', 'must be -9 to 9', p_value => priority::text);
    END IF;
    IF stages NOT BETWEEN 1 AND 16 THEN
        PERFORM jobq._refuse('stages', 'must be 1 to 16', p_value => stages::text);
    END IF;
    IF on_end <> 'success' AND num_nonnulls(after, after_names, after_flow) = 0 THEN
        PERFORM jobq._refuse('on_end', 'needs after, after_names or after_flow');
    END IF;
    IF num_nonnulls(flow, name, after, after_names, after_flow) > 0 THEN
        PERFORM jobq._refuse(u.field, 'not allowed with flow or after') FROM (VALUES
            ('on_known', on_known), ('unique_for', unique_for),
            ('at_latest', CASE WHEN at_latest IS NOT NULL THEN '' END)) AS u (field, given)
        WHERE u.given IS NOT NULL;
        id := jobq._enqueue_after(
            queue, kind, payload, bytes, headers, v_run_at, priority::smallint,
            stages::smallint, max_attempts, jobq._us(timeout), key, notify, line, flow, name,
            after, after_names, after_flow, on_end, jobq._us(expires));
        existed := false;
        RETURN;
    END IF;
    IF num_nonnulls(on_known, unique_for, at_latest) > 0 THEN
        SELECT e.id, e.existed INTO id, existed FROM jobq._enqueue_known(
            queue, kind, payload, bytes, headers, v_run_at, NULL, priority::smallint,
            stages::smallint, max_attempts, jobq._us(timeout), key, notify, on_known,
            unique_for, jobq._us(at_latest), line, jobq._us(expires)) e;
        IF existed AND on_known = 'reject' THEN
            RAISE EXCEPTION 'job % has the key %', id, key USING ERRCODE = 'JQ007';
        END IF;
        RETURN;
    END IF;
    SELECT e.id, e.existed INTO id, existed FROM jobq._enqueue_one(
        queue, kind, payload, bytes, headers, v_run_at, NULL, priority::smallint,
        stages::smallint, max_attempts, jobq._us(timeout), key, notify, line,
        jobq._us(expires)) e;
END $$;

-- Enqueues one job. It is there when your transaction commits.
-- Answers the job's id, with a known key that of the other job. Arguments and errors are those
-- of enqueue_or_get.
--     select jobq.enqueue('mail', 'welcome', '{"to": "ann"}', delay => '1 hour');
CREATE OR REPLACE FUNCTION jobq.enqueue(
    queue text, kind text, payload jsonb DEFAULT NULL, delay interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, priority integer DEFAULT 0, stages integer DEFAULT 1,
    max_attempts integer DEFAULT NULL, timeout interval DEFAULT NULL, key text DEFAULT NULL,
    bytes bytea DEFAULT NULL, headers jsonb DEFAULT NULL, notify boolean DEFAULT true,
    on_known text DEFAULT NULL, unique_for text DEFAULT NULL, at_latest interval DEFAULT NULL,
    line text DEFAULT NULL, flow bigint DEFAULT NULL, name text DEFAULT NULL,
    after bigint[] DEFAULT NULL, after_names text[] DEFAULT NULL,
    after_flow bigint DEFAULT NULL, on_end text DEFAULT 'success',
    expires interval DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN (SELECT e.id FROM jobq.enqueue_or_get(
        queue, kind, payload, delay, run_at, priority, stages, max_attempts, timeout, key,
        bytes, headers, notify, on_known, unique_for, at_latest, line, flow, name, after,
        after_names, after_flow, on_end, expires) e);
END $$;

-- A key made of named fields of a payload, as 32 hexadecimal digits: the first half of the
-- SHA-256 of an object of these fields, as Postgres prints jsonb. A field that the payload
-- lacks counts as null. every: the period of `at` is part of the key, so that it is another
-- one in each ten minutes, say. The periods are counted from 1970-01-01 00:00 UTC; the text
-- then ends with the period's length in microseconds and its number, each after a blank.
-- Errors: 22023.
--     select jobq.enqueue('mail', 'welcome', p, key => jobq.digest(p, '{to}', '10 minutes'))
--     from (values ('{"to": "ann"}'::jsonb)) as v (p);
CREATE OR REPLACE FUNCTION jobq.digest(
    payload jsonb, fields text[], every interval DEFAULT NULL,
    at timestamptz DEFAULT statement_timestamp()) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_every bigint;
    v_text text;
BEGIN
    IF (cardinality(fields) > 0) IS NOT TRUE THEN
        PERFORM jobq._refuse('fields', 'must have a name');
    END IF;
    IF (jsonb_typeof(payload) = 'object' AND payload ?| fields) IS NOT TRUE THEN
        PERFORM jobq._refuse('payload', 'must be an object with one of the fields');
    END IF;
    IF NOT isfinite(every) OR every < '1 microsecond' THEN
        PERFORM jobq._refuse('every', 'must be positive');
    END IF;
    IF every IS NULL AND at <> statement_timestamp() THEN
        PERFORM jobq._refuse('at', 'needs every');
    END IF;
    v_every := extract(epoch FROM every) * 1000000;
    IF NOT isfinite(at) THEN PERFORM jobq._refuse('at', 'must be a finite instant'); END IF;
    SELECT jsonb_object_agg(f.name, payload -> f.name)::text INTO v_text
    FROM unnest(fields) AS f (name) WHERE f.name IS NOT NULL;
    IF v_every IS NOT NULL THEN
        v_text := format('%s %s %s', v_text, v_every,
            floor(extract(epoch FROM coalesce(at, statement_timestamp())) * 1000000
                  / v_every)::bigint);
    END IF;
    RETURN left(encode(sha256(convert_to(v_text, 'UTF8')), 'hex'), 32);
END $$;
