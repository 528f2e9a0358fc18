-- jobq, current text: enqueue, claim, and the end of a job. A statement that the library sends
-- is a call of one function, so that psql, any language and any pooler can send it too.
--
-- Why plpgsql functions with SET clauses. The hot statements must read their lanes by the lane
-- index in order, whatever the statistics say. A plan that was cached on an empty table took
-- 1,495 ms instead of 2, and a table that was never analysed sorted the whole lane. So
-- sequential scans, bitmap scans, sorts, hash and merge joins and JIT are off inside these
-- functions, and only there. claim and complete also use generic plans: planned again at each
-- call, the two cost 0.317 ms for one job instead of 0.146.
-- search_path is fixed, so nothing in another schema is called by mistake.
-- statement_timestamp() is used, not now(), because a caller's transaction may be old.
--
-- Most decisions come from jobq.h as parameters. Those about rows that C has not read are made
-- here: claim (which jobs may be taken), rescue (crash and suspect), cancel, revive, enqueue
-- (defaults). These rules stand in both places, and a test holds each pair together:
--     rule                          here                       jobq.h             test_pg_...
--     what an event makes of a job  work_decide, rescue_jobs   jobq_job_decide    differential
--     backoff                       work_backoff               jobq_backoff_delay differential
--     a key that is known           known_decide               jobq_known_decide  unique
--     whether an end serves         edges_end                  jobq_end_serves    conform
--     a share of a quota            permit_fair, permit_share  the same names     permits
--     tokens of a rate              tokens_move, rate_chunk    the same names     permits
--     the room of a line            line_rooms                 jobq_line_room     conform
--     cron expressions              cron_parse, cron_next      the same names     calendar
--
-- State letters: r ready, x running, s succeeded, f failed, c cancelled, w waits.
-- Answers about a claimed job: l lost (the row no longer has the token), b busy (the row is
-- locked; send again).
--
-- SQLSTATEs of jobq's own; jobq_pg.h knows them in jobq_pg__classes:
--     JQ000  rolls back what a function has only tried; it never leaves the function
--     JQ001  the lease is lost: another worker has, or had, this job or partition
--     JQ002  the worker is dead: it must register again
--     JQ003  the queue is not registered for messages
--     JQ004  the worker may not register: this database is a copy of another one, or a queue
--            has a limit that a worker in SQL does not keep
--     JQ005  too many jobs wait in this line
--     JQ006  a job or flow that is waited for is gone
--     JQ007  another job has the key
-- Those of Postgres where they fit: 22023 an argument is refused, 40001 try again, 25001 wrong
-- kind of transaction, 55000 and 55006 not now, XX001 the tables contradict each other.

-- ---- names ---------------------------------------------------------------------------------

-- Refuses an argument, with the same words and field name as the C library.
CREATE OR REPLACE FUNCTION jobq._refuse(p_field text, p_why text, p_hint text DEFAULT '')
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_hint = '' THEN -- psql would print a hint without a text
        RAISE EXCEPTION 'invalid %: %', p_field, p_why
            USING ERRCODE = '22023', COLUMN = p_field;
    END IF;
    RAISE EXCEPTION 'invalid %: %', p_field, p_why
        USING ERRCODE = '22023', COLUMN = p_field, HINT = p_hint;
END $$;

CREATE OR REPLACE FUNCTION jobq._check_name(p_field text, p_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_name COLLATE "C" ~ '^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$'
       AND length(p_name) <= 1024 THEN
        RETURN;
    END IF;
    PERFORM jobq._refuse(p_field, '1 to 1024 of [A-Za-z0-9._-], alphanumeric at both ends');
END $$;

-- A queue is created on its first use. Of two first uses at the same time the second waits for
-- the first.
CREATE OR REPLACE FUNCTION jobq._queue_id(p_name text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_id integer;
BEGIN
    LOOP
        SELECT q.id INTO v_id FROM jobq.queue q WHERE q.name = p_name COLLATE "C";
        IF FOUND THEN RETURN v_id; END IF;
        PERFORM jobq._check_name('queue', p_name);
        INSERT INTO jobq.queue (name) VALUES (p_name) ON CONFLICT (name) DO NOTHING;
    END LOOP;
END $$;

-- A kind is created on its first use. FOR KEY SHARE waits for a transaction that is changing
-- what the kind's row copies from the queue's row.
CREATE OR REPLACE FUNCTION jobq._kind_id(p_queue integer, p_name text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_id integer;
    v_queue jobq.queue;
BEGIN
    LOOP
        SELECT k.id INTO v_id FROM jobq.kind k
        WHERE k.queue_id = p_queue AND k.name = p_name COLLATE "C";
        IF FOUND THEN RETURN v_id; END IF;
        PERFORM jobq._check_name('kind', p_name);
        SELECT q.* INTO v_queue FROM jobq.queue q WHERE q.id = p_queue FOR KEY SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the queue was deleted; enqueue again' USING ERRCODE = '55000';
        END IF;
        INSERT INTO jobq.kind (queue_id, queue, payload_max, name)
        VALUES (p_queue, v_queue.name, v_queue.payload_max, p_name)
        ON CONFLICT DO NOTHING; -- on either of its two unique constraints
    END LOOP;
END $$;

-- The ids of several kinds. They are created in the order of their names, so that two sessions
-- that create some of the same do not wait for each other; and before their queue's row is
-- changed, for the same reason.
CREATE OR REPLACE FUNCTION jobq._kind_ids(p_queue integer, p_names text[]) RETURNS integer[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_ids integer[] := '{}';
    i integer;
BEGIN
    IF cardinality(p_names) = 1 THEN RETURN ARRAY[jobq._kind_id(p_queue, p_names[1])]; END IF;
    FOR i IN SELECT u.n FROM unnest(p_names) WITH ORDINALITY AS u (name, n)
             ORDER BY u.name COLLATE "C" LOOP
        v_ids[i] := jobq._kind_id(p_queue, p_names[i]);
    END LOOP;
    RETURN v_ids;
END $$;

-- ---- enqueue -------------------------------------------------------------------------------

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
        PERFORM jobq._refuse('payload', format('size %s exceeds maximum %s', v_size,
                                              v_queue.payload_max), v_hint);
    ELSIF octet_length(p_headers::text) > v_queue.payload_max THEN
        PERFORM jobq._refuse('headers', format(
            'size %s exceeds maximum %s', octet_length(p_headers::text), v_queue.payload_max),
            v_hint);
    ELSIF jsonb_typeof(p_headers) <> 'object' THEN
        PERFORM jobq._refuse('headers', 'not a JSON object');
    ELSIF p_payload IS NOT NULL AND p_bytes IS NOT NULL THEN
        PERFORM jobq._refuse('payload', 'only one of payload and bytes may be given');
    ELSIF NOT isfinite(p_run_at) THEN
        PERFORM jobq._refuse('run_at', 'a finite instant');
    ELSIF p_priority NOT BETWEEN -9 AND 9 THEN
        PERFORM jobq._refuse('priority', '-9 to 9');
    ELSIF p_stages NOT BETWEEN 1 AND 16 THEN
        PERFORM jobq._refuse('stages', '1 to 16');
    ELSIF p_max_attempts < 1 THEN
        PERFORM jobq._refuse('max_attempts', '1 or more');
    ELSIF p_timeout_us < 1000 THEN
        PERFORM jobq._refuse('timeout', 'at least a millisecond');
    ELSIF octet_length(p_key) NOT BETWEEN 1 AND 1024 THEN
        PERFORM jobq._refuse('key', '1 to 1024 bytes');
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

-- Writes many jobs of one queue in one statement. Element i of every array belongs to job i.
-- An array may be NULL (all defaults), and so may its elements. p_kinds holds the distinct
-- kinds; p_kind holds 1-based indexes into it (NULL: the first). p_run_ats wins over
-- p_delays_us. An instant in the past becomes now, because a worker's lower bound would hide
-- the job. ids come back in the order of the arrays: they are drawn first and carried through.
-- existed[i]: the key was known, and ids[i] is the job that has it.
CREATE OR REPLACE FUNCTION jobq._enqueue_many(
    p_queue text, p_kinds text[], p_kind integer[], p_payloads jsonb[],
    p_bytes bytea[] DEFAULT NULL, p_headers jsonb[] DEFAULT NULL,
    p_run_ats timestamptz[] DEFAULT NULL, p_delays_us bigint[] DEFAULT NULL,
    p_priorities smallint[] DEFAULT NULL, p_stages smallint[] DEFAULT NULL,
    p_max_attempts integer[] DEFAULT NULL, p_timeouts_us bigint[] DEFAULT NULL,
    p_keys text[] DEFAULT NULL, p_count integer DEFAULT NULL, p_notify boolean DEFAULT true,
    p_lines text[] DEFAULT NULL, p_flow bigint DEFAULT NULL, OUT ids bigint[],
    OUT existed boolean[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_queue integer := jobq._queue_id(p_queue);
    v_kinds integer[];
    v_now timestamptz := statement_timestamp();
    v_count integer := coalesce(p_count, cardinality(p_payloads), cardinality(p_bytes), 1);
    v_max integer;
    v_stages smallint := (SELECT max(s) FROM unnest(p_stages) s);
    v_tenants boolean;
BEGIN
    SELECT q.payload_max, EXISTS (SELECT FROM jobq.tenant) INTO v_max, v_tenants
    FROM jobq.queue q WHERE q.id = v_queue;
    IF v_tenants THEN
        p_keys := jobq._tenant_keys(p_queue, p_lines, v_count, p_keys, p_flow);
    END IF;
    PERFORM jobq._check_jobs(v_queue, v_max, p_payloads, p_bytes, p_headers, p_run_ats,
                            p_priorities, p_stages, p_max_attempts, p_timeouts_us, p_keys);
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
                          headers)
    SELECT u.id, v_queue, v_kinds[coalesce(u.kind, 1)], v_now,
           greatest(coalesce(u.run_at, v_now + u.delay_us * interval '1 microsecond'), v_now),
           coalesce(u.priority, 0), coalesce(u.stages, 1), CASE WHEN u.line IS NOT NULL THEN
               jobq._line_at(u.line, coalesce(u.run_at, v_now + coalesce(u.delay_us, 0)
                                             * interval '1 microsecond')) END,
           u.max_attempts, u.timeout_us, p_flow, u.key, u.line, u.payload, u.bytes, u.headers
    FROM (SELECT unnest(ids) AS id, unnest(existed) AS existed, unnest(p_kind) AS kind,
                 unnest(p_payloads) AS payload, unnest(p_bytes) AS bytes,
                 unnest(p_headers) AS headers, unnest(p_run_ats) AS run_at,
                 unnest(p_delays_us) AS delay_us, unnest(p_priorities) AS priority,
                 unnest(p_stages) AS stages, unnest(p_max_attempts) AS max_attempts,
                 unnest(p_timeouts_us) AS timeout_us, unnest(p_keys) AS key,
                 unnest(p_lines) AS line) AS u
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
-- sleepers. The rare cases (first use of a name, stages, a key, a negative priority) go
-- through enqueue_many.
CREATE OR REPLACE FUNCTION jobq._enqueue_one(
    p_queue text, p_kind text, p_payload jsonb, p_bytes bytea, p_headers jsonb,
    p_run_at timestamptz, p_delay_us bigint, p_priority smallint, p_stages smallint,
    p_max_attempts integer, p_timeout_us bigint, p_key text, p_notify boolean,
    p_line text DEFAULT NULL, OUT id bigint, OUT existed boolean)
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
    IF v_kind IS NULL OR p_stages > 1 OR p_priority < 0 OR p_key IS NOT NULL THEN
        SELECT e.ids[1], coalesce(e.existed[1], false) INTO id, existed
        FROM jobq._enqueue_many(
            p_queue, ARRAY[p_kind], NULL, ARRAY[p_payload], ARRAY[p_bytes], ARRAY[p_headers],
            ARRAY[p_run_at], ARRAY[p_delay_us], ARRAY[p_priority], ARRAY[p_stages],
            ARRAY[p_max_attempts], ARRAY[p_timeout_us],
            CASE WHEN p_key IS NOT NULL THEN ARRAY[p_key] END, 1, p_notify,
            CASE WHEN p_line IS NOT NULL THEN ARRAY[p_line] END) e;
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

-- ---- unique jobs ---------------------------------------------------------------------------

-- What to do with an enqueue whose key another job has, as jobq_known_decide in jobq.h says:
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
            line = CASE WHEN j.state = 'r' THEN jobq._line_at(p_new.line_name, v_run_at) END,
            run_at = CASE WHEN j.state = 'w' THEN j.run_at ELSE v_run_at END
        WHERE j.id = p_job.id;
        IF p_job.suspect THEN
            PERFORM jobq._line_suspects(p_job.queue_id, ARRAY[p_job.id]);
        END IF;
    ELSE
        IF jsonb_typeof(p_job.payload) NOT IN ('array', 'object')
           OR jsonb_typeof(p_job.payload) IS DISTINCT FROM jsonb_typeof(p_new.payload) THEN
            PERFORM jobq._refuse('payload', 'merge needs two arrays or two objects');
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
                          headers)
    VALUES (p_new.id, p_new.queue_id, p_new.kind_id, p_new.enqueued_at,
            CASE WHEN p_waits THEN 'infinity' ELSE p_new.run_at END, p_new.priority,
            p_new.stages, CASE WHEN p_waits THEN 'w' ELSE 'r' END::"char",
            CASE WHEN NOT p_waits THEN jobq._line_at(p_new.line_name, p_new.run_at) END,
            p_new.max_attempts, p_new.timeout_us, p_new.key, p_new.line_name, p_new.payload,
            p_new.bytes, p_new.headers);
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
    OUT id bigint, OUT existed boolean)
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
            p_stages, p_max_attempts, p_timeout_us, p_key, p_notify, p_line) e;
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
        v_new.key := p_key;
        v_new.line_name := p_line;
        v_new.payload := p_payload;
        v_new.bytes := p_bytes;
        v_new.headers := p_headers;
        IF v_what IN ('replace', 'merge', 'bump') THEN
            IF v_old.kind_id <> v_new.kind_id AND v_what <> 'bump' THEN
                PERFORM jobq._refuse('kind',
                                     format('job %s has the key and another kind', id));
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
        PERFORM jobq._refuse('key', 'on_known, unique_for and at_latest need one');
    ELSIF p_on_known NOT IN ('leave', 'replace', 'merge', 'bump', 'cancel', 'reject') THEN
        PERFORM jobq._refuse('on_known', 'leave, replace, merge, bump, cancel or reject');
    ELSIF p_unique NOT IN ('period', 'live', 'ready') THEN
        PERFORM jobq._refuse('unique_for', 'period, live or ready');
    ELSIF p_latest_us < 0 THEN
        PERFORM jobq._refuse('at_latest', 'positive');
    ELSIF p_latest_us IS NOT NULL AND (p_on_known IN ('replace', 'bump')) IS NOT TRUE THEN
        PERFORM jobq._refuse('at_latest', 'with on_known replace or bump only');
    END IF;
END $$;

-- One job, as a person types it. existed: another job has the key and was left; id is that
-- one's.
--     select * from jobq.enqueue_or_get('mail', 'welcome', key => 'order-7');
--   delay       not before now plus this; or run_at, not before that instant
--   on_known    what to do then: leave it (default); replace its payload, headers, priority
--               and run_at; merge the payloads (arrays are appended, objects joined); bump:
--               let it run earlier; cancel it; reject: an error. replace and merge are
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
CREATE OR REPLACE FUNCTION jobq.enqueue_or_get(
    queue text, kind text, payload jsonb DEFAULT NULL, delay interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, priority integer DEFAULT 0, stages integer DEFAULT 1,
    max_attempts integer DEFAULT NULL, timeout interval DEFAULT NULL, key text DEFAULT NULL,
    bytes bytea DEFAULT NULL, headers jsonb DEFAULT NULL, notify boolean DEFAULT true,
    on_known text DEFAULT NULL, unique_for text DEFAULT NULL, at_latest interval DEFAULT NULL,
    line text DEFAULT NULL, flow bigint DEFAULT NULL, name text DEFAULT NULL,
    after bigint[] DEFAULT NULL, after_names text[] DEFAULT NULL,
    after_flow bigint DEFAULT NULL, on_end text DEFAULT 'success', OUT id bigint,
    OUT existed boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v_run_at timestamptz := coalesce(run_at, statement_timestamp() + delay);
BEGIN
    IF NOT isfinite(delay) THEN PERFORM jobq._refuse('delay', 'a finite interval'); END IF;
    IF num_nonnulls(delay, run_at) = 2 THEN
        PERFORM jobq._refuse('delay', 'not with run_at');
    END IF;
    IF NOT isfinite(timeout) THEN PERFORM jobq._refuse('timeout', 'a finite interval'); END IF;
    IF priority NOT BETWEEN -9 AND 9 THEN
        PERFORM jobq._refuse('priority', '-9 to 9');
    END IF;
    IF stages NOT BETWEEN 1 AND 16 THEN PERFORM jobq._refuse('stages', '1 to 16'); END IF;
    IF on_end <> 'success' AND num_nonnulls(after, after_names, after_flow) = 0 THEN
        PERFORM jobq._refuse('on_end', 'with after, after_names or after_flow only');
    END IF;
    IF num_nonnulls(flow, name, after, after_names, after_flow) > 0 THEN
        PERFORM jobq._refuse(u.field, 'not with flow or after') FROM (VALUES
            ('on_known', on_known), ('unique_for', unique_for),
            ('at_latest', CASE WHEN at_latest IS NOT NULL THEN '' END)) AS u (field, given)
        WHERE u.given IS NOT NULL;
        id := jobq._enqueue_after(
            queue, kind, payload, bytes, headers, v_run_at, priority::smallint,
            stages::smallint, max_attempts, jobq._us(timeout), key, notify, line, flow, name,
            after, after_names, after_flow, on_end);
        existed := false;
        RETURN;
    END IF;
    IF num_nonnulls(on_known, unique_for, at_latest) > 0 THEN
        SELECT e.id, e.existed INTO id, existed FROM jobq._enqueue_known(
            queue, kind, payload, bytes, headers, v_run_at, NULL, priority::smallint,
            stages::smallint, max_attempts, jobq._us(timeout), key, notify, on_known,
            unique_for, jobq._us(at_latest), line) e;
        IF existed AND on_known = 'reject' THEN
            RAISE EXCEPTION 'job % has the key %', id, key USING ERRCODE = 'JQ007';
        END IF;
        RETURN;
    END IF;
    SELECT e.id, e.existed INTO id, existed FROM jobq._enqueue_one(
        queue, kind, payload, bytes, headers, v_run_at, NULL, priority::smallint,
        stages::smallint, max_attempts, jobq._us(timeout), key, notify, line) e;
END $$;

-- The same, with the id as its value:
--     select jobq.enqueue('mail', 'welcome', '{"to": "ann"}', delay => '1 hour');
CREATE OR REPLACE FUNCTION jobq.enqueue(
    queue text, kind text, payload jsonb DEFAULT NULL, delay interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, priority integer DEFAULT 0, stages integer DEFAULT 1,
    max_attempts integer DEFAULT NULL, timeout interval DEFAULT NULL, key text DEFAULT NULL,
    bytes bytea DEFAULT NULL, headers jsonb DEFAULT NULL, notify boolean DEFAULT true,
    on_known text DEFAULT NULL, unique_for text DEFAULT NULL, at_latest interval DEFAULT NULL,
    line text DEFAULT NULL, flow bigint DEFAULT NULL, name text DEFAULT NULL,
    after bigint[] DEFAULT NULL, after_names text[] DEFAULT NULL,
    after_flow bigint DEFAULT NULL, on_end text DEFAULT 'success')
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN (SELECT e.id FROM jobq.enqueue_or_get(
        queue, kind, payload, delay, run_at, priority, stages, max_attempts, timeout, key,
        bytes, headers, notify, on_known, unique_for, at_latest, line, flow, name, after,
        after_names, after_flow, on_end) e);
END $$;

-- A key made of named fields of a payload, as 32 hexadecimal digits: the first half of the
-- SHA-256 of an object of these fields, as Postgres prints jsonb. A field that the payload
-- lacks counts as null. every: the period of `at` is part of the key, so that it is another
-- one in each ten minutes, say. The periods are counted from 1970-01-01 00:00 UTC; the text
-- then ends with the period's length in microseconds and its number, each after a blank.
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
    IF (jsonb_typeof(payload) = 'object' AND payload ?| fields) IS NOT TRUE THEN
        PERFORM jobq._refuse('payload', 'an object with one of the fields');
    END IF;
    IF NOT isfinite(every) OR every < '1 microsecond' THEN
        PERFORM jobq._refuse('every', 'positive');
    END IF;
    IF every IS NULL AND at <> statement_timestamp() THEN
        PERFORM jobq._refuse('at', 'with every only');
    END IF;
    v_every := extract(epoch FROM every) * 1000000;
    IF NOT isfinite(at) THEN PERFORM jobq._refuse('at', 'a finite instant'); END IF;
    SELECT jsonb_object_agg(f.name, payload -> f.name)::text INTO v_text
    FROM unnest(fields) AS f (name) WHERE f.name IS NOT NULL;
    IF v_every IS NOT NULL THEN
        v_text := format('%s %s %s', v_text, v_every,
            floor(extract(epoch FROM coalesce(at, statement_timestamp())) * 1000000
                  / v_every)::bigint);
    END IF;
    RETURN left(encode(sha256(convert_to(v_text, 'UTF8')), 'hex'), 32);
END $$;

-- ---- claim ---------------------------------------------------------------------------------

-- How many of these locked jobs fit into p_bytes, by the stored size of their payloads. At
-- least one.
CREATE OR REPLACE FUNCTION jobq._rows_within(p_rows tid[], p_bytes bigint) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_bytes bigint := 0;
BEGIN
    FOR i IN 1 .. cardinality(p_rows) LOOP
        SELECT v_bytes + coalesce(pg_column_size(j.payload), octet_length(j.bytes), 0)
        INTO v_bytes FROM jobq.job j WHERE j.ctid = p_rows[i];
        IF v_bytes > p_bytes THEN RETURN greatest(i - 1, 1); END IF;
    END LOOP;
    RETURN cardinality(p_rows);
END $$;

-- Refuses the claim of a dead worker. p_sure: its claim row could not be written, so it is
-- dead.
CREATE OR REPLACE FUNCTION jobq._refuse_dead(p_worker bigint, p_sure boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM FROM jobq.worker w WHERE w.id = p_worker AND w.dead_at IS NULL;
    IF p_sure OR NOT FOUND THEN
        RAISE EXCEPTION 'worker % is dead', p_worker
            USING ERRCODE = 'JQ002', HINT = 'Register again, with a new worker id.';
    END IF;
END $$;

-- Locks one suspect for a claim, if its line lets it run. This function and claim_look run
-- under the settings of claim.
CREATE OR REPLACE FUNCTION jobq._claim_suspect(
    p_queues integer[], p_priorities smallint[], p_stages smallint[], p_kinds integer[],
    p_alone boolean, OUT rows tid[], OUT ids bigint[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_queue integer;
    v_line text;
BEGIN
    SELECT ARRAY[ready.ctid], ARRAY[ready.id], ready.queue_id, ready.line_name
    INTO rows, ids, v_queue, v_line
    FROM unnest(p_queues, p_priorities, p_stages) AS lane (queue_id, priority, stage)
    CROSS JOIN LATERAL (
        SELECT j.ctid, j.id, j.queue_id, j.line_name FROM jobq.job j
        WHERE j.queue_id = lane.queue_id AND j.priority = lane.priority
          AND j.stage = lane.stage AND j.suspect AND j.state = 'r'
          AND j.alone = p_alone AND j.run_at <= statement_timestamp()
          AND (p_kinds IS NULL OR j.kind_id = ANY (p_kinds))
          AND jobq._suspect_goes(j.queue_id, j.line_name)
        ORDER BY j.run_at, j.id
        LIMIT 1 FOR UPDATE SKIP LOCKED) AS ready
    LIMIT 1;
    IF v_line IS NOT NULL AND NOT jobq._suspect_admitted(v_queue, v_line, ids[1]) THEN
        rows := NULL;
        ids := NULL;
    END IF;
END $$;

-- What a claim that found nothing answers about its lanes: see claim.
CREATE OR REPLACE FUNCTION jobq._claim_look(
    p_queues integer[], p_priorities smallint[], p_stages smallint[], p_kinds integer[])
RETURNS jobq.claimed LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_look jobq.claimed;
BEGIN
    v_look.suspect := EXISTS (
        SELECT FROM jobq.job j
        WHERE j.suspect AND NOT j.alone AND j.state = 'r' AND j.queue_id = ANY (p_queues)
          AND j.run_at <= statement_timestamp()
          AND (p_kinds IS NULL OR j.kind_id = ANY (p_kinds))
          AND jobq._suspect_goes(j.queue_id, j.line_name));
    v_look.alone := EXISTS (
        SELECT FROM jobq.job j
        WHERE j.suspect AND j.alone AND j.state = 'r' AND j.queue_id = ANY (p_queues)
          AND j.run_at <= statement_timestamp()
          AND (p_kinds IS NULL OR j.kind_id = ANY (p_kinds))
          AND jobq._suspect_goes(j.queue_id, j.line_name));
    v_look.due_us := (
        SELECT (extract(epoch FROM min(next.run_at) - statement_timestamp()) * 1e6)::bigint
        FROM unnest(p_queues, p_priorities, p_stages) AS lane (queue_id, priority, stage)
        CROSS JOIN LATERAL (
            SELECT j.run_at FROM jobq.job j
            WHERE j.queue_id = lane.queue_id AND j.priority = lane.priority
              AND j.stage = lane.stage AND NOT j.suspect AND j.line IS NULL AND j.state = 'r'
              AND j.run_at > statement_timestamp() AND j.run_at < 'infinity'
              AND (p_kinds IS NULL OR j.kind_id = ANY (p_kinds))
            ORDER BY j.run_at, j.id LIMIT 1) AS next);
    IF EXISTS (SELECT FROM jobq.nudge) AND jobq._promote(1000) > 0 THEN
        v_look.due_us := 1;
    END IF;
    RETURN v_look;
END $$;

-- The claims that are not like most: of a suspect, and of lanes in which a job may have a
-- line.
CREATE OR REPLACE FUNCTION jobq._claim_apart(
    p_limit integer, p_queues integer[], p_priorities smallint[], p_stages smallint[],
    p_after_ats timestamptz[], p_after_ids bigint[], p_kinds integer[], p_suspects boolean,
    p_alone boolean, p_lined boolean[], p_quantum integer, p_low_ids bigint[],
    p_until_ats timestamptz[], OUT rows tid[], OUT ids bigint[], OUT bytes bigint,
    OUT walks jobq.claimed[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_suspects THEN
        SELECT s.rows, s.ids INTO rows, ids
        FROM jobq._claim_suspect(p_queues, p_priorities, p_stages, p_kinds, p_alone) s;
    ELSE
        SELECT l.rows, l.ids, l.bytes, l.walks INTO rows, ids, bytes, walks
        FROM jobq._claim_lines(p_limit, p_queues, p_priorities, p_stages, p_after_ats,
                              p_after_ids, p_kinds, p_lined, p_quantum, p_low_ids,
                              p_until_ats) l;
    END IF;
END $$;

-- What a claim answers that takes nothing, but says what it would take first.
CREATE OR REPLACE FUNCTION jobq._claim_first(p_id bigint) RETURNS jobq.claimed
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_first jobq.claimed;
BEGIN
    v_first.id := p_id;
    RETURN v_first;
END $$;

-- Takes up to p_limit jobs for one worker. The arrays list the lanes, one element each. Each
-- lane is read from its lower bound (after_at, after_id) on, so a claim skips the dead rows
-- that earlier claims left in the index; until_at is an upper bound (NULL: none), by which a
-- worker looks for jobs that committed late in slices, while an old snapshot pins dead rows.
--   lock   reads the lane index in order and skips rows that others hold. Each lane is read
--          lazily, and no more than p_limit rows are locked. (A row that was claimed after our
--          snapshot is locked in its newer version, then seen to be running, and left. For a
--          moment a completion may find it busy, and we may wait for the end of one.)
--   mark   The rows are locked, so their ctids stay valid. No index mentions a changed column,
--          so the update is HOT.
--          The same statement checks that the worker lives, and writes the claim row, whose
--          primary key makes it impossible to use a number twice. FOR KEY SHARE lets
--          heartbeats pass, and blocks the removal of the worker's row. A rescuer that marks
--          the worker dead meanwhile finds the claim row later. A claim that arrives after its
--          worker's death or removal takes nothing, however long it was under way.
-- p_kinds: only jobs of these kinds (NULL: of all). p_relaxed: the commit need not wait for
-- the disk. (A lost claim leaves the job ready, and the fence covers the rest.) p_suspects:
-- one suspect, instead of other jobs. p_alone: one that must run alone; the worker promises
-- that it holds nothing else until that job has ended. An empty answer is one row whose id is
-- NULL. With p_look it says in due_us how many microseconds remain until the lanes' next job
-- (NULL: there is none), and whether a suspect is ready, and one that must run alone. p_bytes:
-- the claim stops before the job that would make its payloads, as stored, larger than this;
-- the first job is always taken. 0: nothing is claimed, and the answer is the id of the first
-- job. p_lined: which of the lanes are of jobs that stand in lines: see claim_walk.
-- p_after_ids of such a lane is the line after which the walk begins, and p_quantum is how
-- many jobs a line may give in one visit, times its weight. For each queue with such a lane
-- there is one more row, whose id is NULL: line is where its next walk begins, and due_us the
-- time until the soonest line that was passed by may be claimed from (NULL: no clock decides
-- that). NULL: none of the lanes are. p_low_ids: of such a lane only jobs are looked at whose
-- (run_at, id) is (after_at, low_id) or later; a strict line that has one gives its first job
-- all the same. If it is not NULL there is also a row for each such lane in which it saw a
-- ready job. Its id is NULL, too; line is where the walk through this lane stopped, and alone
-- says whether it came round. Of the jobs that it looked for in the lines up to there, no
-- ready one is before (run_at, timeout_us): a bound for later claims. A job that names a line
-- and is due in another lane is moved into its line, and not taken; so a worker that knows of
-- no lines passes no limit.
CREATE OR REPLACE FUNCTION jobq._claim(
    p_worker bigint, p_number bigint, p_limit integer, p_queues integer[],
    p_priorities smallint[], p_stages smallint[], p_after_ats timestamptz[],
    p_after_ids bigint[], p_kinds integer[], p_suspects boolean, p_alone boolean,
    p_look boolean, p_relaxed boolean, p_bytes bigint DEFAULT NULL, p_lined boolean[]
    DEFAULT NULL, p_quantum integer DEFAULT NULL, p_low_ids bigint[] DEFAULT NULL,
    p_until_ats timestamptz[] DEFAULT NULL) RETURNS SETOF jobq.claimed LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_rows tid[];
    v_ids bigint[];
    v_bytes bigint;
    v_apart bigint := CASE WHEN p_suspects OR p_lined IS NOT NULL THEN 1 ELSE 0 END;
    v_walks jobq.claimed[];
BEGIN
    IF p_relaxed THEN PERFORM set_config('synchronous_commit', 'off', true); END IF;
    IF v_apart = 0 THEN
        SELECT array_agg(r.ctid), array_agg(r.id), sum(r.bytes), count(r.line_name)
        INTO v_rows, v_ids, v_bytes, v_apart FROM (
            SELECT ready.* FROM unnest(
                p_queues, p_priorities, p_stages, p_after_ats, p_after_ids, p_until_ats)
                AS lane (queue_id, priority, stage, after_at, after_id, until_at)
            CROSS JOIN LATERAL (
                SELECT j.ctid, j.id, j.line_name,
                       coalesce(pg_column_size(j.payload), octet_length(j.bytes)) AS bytes
                FROM jobq.job j
                WHERE j.queue_id = lane.queue_id AND j.priority = lane.priority
                  AND j.stage = lane.stage AND j.state = 'r' AND NOT j.suspect
                  AND j.run_at <= least(statement_timestamp(), lane.until_at)
                  AND j.line IS NULL AND (j.run_at, j.id) > (lane.after_at, lane.after_id)
                  AND (p_kinds IS NULL OR j.kind_id = ANY (p_kinds))
                ORDER BY j.run_at, j.id LIMIT p_limit FOR UPDATE SKIP LOCKED) AS ready
            LIMIT p_limit) AS r;
    END IF;
    IF v_apart > 0 THEN
        SELECT a.* INTO v_rows, v_ids, v_bytes, v_walks FROM jobq._claim_apart(
            p_limit, p_queues, p_priorities, p_stages, p_after_ats, p_after_ids, p_kinds,
            p_suspects, p_alone, p_lined, p_quantum, p_low_ids, p_until_ats) a;
        RETURN QUERY SELECT * FROM unnest(v_walks) WHERE p_bytes IS DISTINCT FROM 0;
    END IF;
    IF p_bytes = 0 AND v_ids IS NOT NULL THEN
        RETURN NEXT jobq._claim_first(v_ids[1]);
        RETURN;
    ELSIF v_bytes > p_bytes THEN
        v_rows := v_rows[: jobq._rows_within(v_rows, p_bytes)];
        v_ids := v_ids[: cardinality(v_rows)];
    END IF;
    IF v_rows IS NOT NULL THEN
        RETURN QUERY
        WITH claim AS (
            INSERT INTO jobq.claim (worker, number, claimed_at, jobs)
            SELECT w.id, p_number, statement_timestamp(), v_ids
            FROM jobq.worker w WHERE w.id = p_worker AND w.dead_at IS NULL FOR KEY SHARE
            RETURNING claim.worker
        )
        UPDATE jobq.job j
        SET state = 'x', attempt = j.attempt + 1, worker = p_worker, claim = p_number,
            claimed_at = statement_timestamp()
        WHERE j.ctid = ANY (v_rows) AND EXISTS (SELECT FROM claim)
        RETURNING j.id, j.run_at, j.enqueued_at, j.timeout_us, j.queue_id, j.kind_id,
                  j.attempt, j.crash, j.max_attempts, j.priority, j.stage, j.stages,
                  j.suspect, j.alone, j.payload, j.bytes, j.headers, NULL::bigint, j.line;
        IF FOUND THEN RETURN; END IF;
    END IF;
    PERFORM jobq._refuse_dead(p_worker, v_rows IS NOT NULL);
    IF NOT p_look THEN RETURN; END IF;
    RETURN NEXT jobq._claim_look(p_queues, p_priorities, p_stages, p_kinds);
END $$;

-- Settles a claim that was never answered. Either the number is burned here: the claim can
-- then no longer arrive late, because its own insert would collide with this row and roll
-- back. Or the claim did arrive: then the jobs that still have its token go back, and get
-- their attempt back; nothing is sent twice. p_limit jobs a call; the answer says whether
-- there are more.
-- It waits for a claim that is just inserting its row, but only so long that the worker's
-- other statements are not held up. Then it fails with 55P03, and the worker asks again.
CREATE OR REPLACE FUNCTION jobq._recover(p_worker bigint, p_number bigint, p_limit integer)
RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
SET lock_timeout = '500ms' AS $$
DECLARE
    v_jobs bigint[];
    v_held bigint[];
BEGIN
    INSERT INTO jobq.claim (worker, number, claimed_at, jobs)
    VALUES (p_worker, p_number, statement_timestamp(), '{}')
    ON CONFLICT (worker, number) DO NOTHING;
    IF FOUND THEN RETURN false; END IF;
    v_jobs := (SELECT c.jobs FROM jobq.claim c
               WHERE c.worker = p_worker AND c.number = p_number);
    v_held := ARRAY(
        SELECT j.id FROM jobq.job j
        WHERE j.id = ANY (v_jobs) AND j.worker = p_worker AND j.claim = p_number
        ORDER BY j.id LIMIT p_limit FOR UPDATE SKIP LOCKED);
    UPDATE jobq.job j
    SET state = 'r', worker = NULL, claim = NULL, attempt = greatest(j.attempt - 1, 0),
        run_at = CASE WHEN j.cancel_requested_at IS NULL THEN statement_timestamp()
                 ELSE j.run_at END
    WHERE j.id = ANY (v_held);
    PERFORM jobq._finish(ARRAY(
        SELECT j.id FROM jobq.job j
        WHERE j.id = ANY (v_held) AND j.cancel_requested_at IS NOT NULL), 'c', NULL);
    IF EXISTS (SELECT FROM jobq.job j
               WHERE j.id = ANY (v_jobs) AND j.worker = p_worker AND j.claim = p_number) THEN
        RETURN true;
    END IF;
    UPDATE jobq.claim c SET jobs = '{}' WHERE c.worker = p_worker AND c.number = p_number;
    RETURN false;
END $$;

-- For a ready job whose claim failed again and again, while a claim without payloads worked.
-- Moves it to failed and answers true. It stays when it can be claimed after all: when the
-- server can mark it and print it, and it is not larger than p_bytes. A job that cannot even
-- be moved, because its payload is damaged, is parked where it is.
CREATE OR REPLACE FUNCTION jobq._set_aside(p_id bigint, p_bytes bigint, p_reason text)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET jit = off AS $$
DECLARE
    v_stage smallint;
    v_attempt integer;
    v_fits boolean;
    v_reason text := p_reason;
BEGIN
    SELECT j.stage, j.attempt INTO v_stage, v_attempt FROM jobq.job j
    WHERE j.id = p_id AND j.state = 'r' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN false; END IF;
    BEGIN -- does what a claim does, and undoes it
        UPDATE jobq.job j SET state = 'x', attempt = j.attempt + 1, worker = 1, claim = 1
        WHERE j.id = p_id;
        v_fits := (SELECT coalesce(octet_length(j.payload::text), octet_length(j.bytes), 0)
                          + coalesce(octet_length(j.headers::text), 0) <= p_bytes
                   FROM jobq.job j WHERE j.id = p_id);
        RAISE EXCEPTION USING ERRCODE = 'JQ000';
    EXCEPTION
        WHEN SQLSTATE 'JQ000' THEN
            IF v_fits THEN RETURN false; END IF;
        WHEN OTHERS THEN
            IF SQLSTATE ~ '^(40|53[13]|55|57)' THEN RAISE; END IF; -- the server's state
            v_reason := SQLERRM;
    END;
    BEGIN
        PERFORM jobq._finish(ARRAY[p_id], 'f', jsonb_build_object(
            'at', statement_timestamp(), 'stage', v_stage, 'attempt', v_attempt,
            'error', 'cannot be read: ' || v_reason));
    EXCEPTION WHEN OTHERS THEN
        IF SQLSTATE ~ '^(40|53|55|57)' THEN RAISE; END IF;
        UPDATE jobq.job j SET run_at = 'infinity', line = NULL WHERE j.id = p_id;
    END;
    RETURN true;
END $$;

-- ---- the end of a job ----------------------------------------------------------------------

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
-- ending. Only this function ends single jobs, except those that leave a result.
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
            kind_id, attempt, crash, max_attempts, priority, stage, stages, key, line_name,
            payload, bytes, headers, errors, flow_id, steps)
        SELECT g.id, g.run_at, g.enqueued_at, g.claimed_at, statement_timestamp(), g.worker,
               g.timeout_us, g.queue_id, g.kind_id, g.attempt, g.crash, g.max_attempts,
               g.priority, g.stage, g.stages, g.key, g.line_name, g.payload, g.bytes,
               g.headers, jobq._add_error(g.errors, p_entry), g.flow_id, g.steps
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

-- Sets whether this transaction's commit waits for the disk, whatever the session's default.
CREATE OR REPLACE FUNCTION jobq._commit_waits(p_waits boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT p_waits THEN PERFORM set_config('synchronous_commit', 'off', true);
    ELSIF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- From now on this transaction gives up soon (55P03) when it waits for a lock, because a
-- person may hold that. The worker's heartbeats wait behind it; the worker sends it again.
CREATE OR REPLACE FUNCTION jobq._wait_briefly() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('lock_timeout', '50ms', true);
END $$;

-- Where successful jobs go. silent: queues without history. slot: the part of the history that
-- is written of medium, found by its number, because that needs no index. odd: kinds whose
-- history is kept although their queue's is not, or the other way round; kinds: those with
-- another retention than medium, and slots the parts where their jobs go. These three are
-- usually NULL, which costs nothing. awaited: somebody may wait for the ends of jobs.
CREATE OR REPLACE FUNCTION jobq._kept(
    OUT silent integer[], OUT slot smallint, OUT odd integer[], OUT kinds integer[],
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
    INTO odd, kinds, slots
    FROM jobq.kind k JOIN jobq.queue q ON q.id = k.queue_id
        JOIN jobq.ring r ON r.retention = coalesce(k.retention, q.retention);
END $$;

-- What follows for the jobs that waited for these, which have ended well: r, as complete
-- answers it, if some are ready now.
CREATE OR REPLACE FUNCTION jobq._succeeded(p_ids bigint[], p_flows bigint[])
RETURNS TABLE (id bigint, worker bigint, claim bigint, answer "char")
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._ended(p_ids, p_flows, 's');
    RETURN QUERY SELECT 0::bigint, 0::bigint, 0::bigint, 'r'::"char"
    WHERE jobq._promote(1000) > 0;
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
        v_done := CASE WHEN v_kept.silent <> '{}' OR v_kept.odd IS NOT NULL THEN
            jobq._complete_unkept(v_ids, p_workers[i], p_claims[i], v_kept.silent,
                                 v_kept.odd) END;
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
            WHERE (g.queue_id = ANY (v_kept.silent)) = ((g.kind_id = ANY (v_kept.odd)) IS TRUE)
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
    p_logs jsonb[] DEFAULT NULL)
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
        WHERE (g.queue_id = ANY (v_kept.silent)) = ((g.kind_id = ANY (v_kept.odd)) IS TRUE)
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
        RETURN QUERY SELECT a.* FROM jobq._succeeded(v_linked, v_flows) a;
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

-- The part of settle that ends a job, which it has locked.
CREATE OR REPLACE FUNCTION jobq._settle_end(
    p_id bigint, p_worker bigint, p_claim bigint, p_state "char", p_attempt integer,
    p_crash integer, p_entry jsonb, p_result jsonb, p_bytes bytea, p_log jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE jobq.job j SET attempt = p_attempt, crash = p_crash
    WHERE j.id = p_id AND (j.attempt, j.crash) <> (p_attempt, p_crash);
    IF p_state = 's' AND num_nonnulls(p_result, p_bytes, p_log) > 0 THEN
        PERFORM jobq._complete_with(ARRAY[p_worker], ARRAY[p_claim], ARRAY[p_id],
                                   ARRAY[p_result], ARRAY[p_bytes], ARRAY[p_log]);
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
-- a caller's own transaction, instead of answering busy. The commit waits for the disk, as
-- that of complete does.
CREATE OR REPLACE FUNCTION jobq._settle(
    p_workers bigint[], p_claims bigint[], p_ids bigint[], p_states "char"[],
    p_stages smallint[], p_attempts integer[], p_crashes integer[], p_suspects boolean[],
    p_delays_us bigint[], p_errors text[], p_payloads jsonb[], p_bytes bytea[],
    p_wait boolean DEFAULT false, p_logs jsonb[] DEFAULT NULL)
RETURNS TABLE (id bigint, worker bigint, claim bigint, answer "char")
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
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
                                    p_bytes[i], p_logs[i]);
        ELSE
            v_run_at := CASE WHEN p_delays_us[i] < 0 THEN jobq._park(v_job.kind_id)
                ELSE statement_timestamp() + p_delays_us[i] * interval '1 microsecond' END;
            UPDATE jobq.job j
            SET state = p_states[i], worker = NULL, claim = NULL, stage = p_stages[i],
                attempt = p_attempts[i], crash = p_crashes[i], suspect = p_suspects[i],
                alone = j.alone AND p_suspects[i], run_at = v_run_at,
                line = CASE WHEN p_states[i] = 'r' AND p_delays_us[i] = 0 THEN j.line END,
                payload = CASE WHEN p_bytes[i] IS NULL
                               THEN coalesce(p_payloads[i], j.payload) END,
                bytes = CASE WHEN p_payloads[i] IS NULL THEN coalesce(p_bytes[i], j.bytes) END,
                errors = jobq._add_error(j.errors, v_entry)
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
        WHERE jobq._promote(1000) > 0;
    END IF;
END $$;

-- The same for one job, inside the handler's own transaction. It raises an error when the
-- lease is lost, so the handler's COMMIT cannot succeed. Exactly-once effects depend on this.
CREATE OR REPLACE FUNCTION jobq._settle_here(
    p_worker bigint, p_claim bigint, p_id bigint, p_state "char", p_stage smallint,
    p_attempt integer, p_crash integer, p_suspect boolean, p_delay_us bigint, p_error text,
    p_payload jsonb, p_bytes bytea, p_log jsonb DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    PERFORM FROM jobq._settle(
        ARRAY[p_worker], ARRAY[p_claim], ARRAY[p_id], ARRAY[p_state], ARRAY[p_stage],
        ARRAY[p_attempt], ARRAY[p_crash], ARRAY[p_suspect], ARRAY[p_delay_us], ARRAY[p_error],
        ARRAY[p_payload], ARRAY[p_bytes], true, ARRAY[p_log]) AS s WHERE s.answer <> 'r';
    IF FOUND THEN
        RAISE EXCEPTION 'lease lost on job %', p_id USING ERRCODE = 'JQ001',
            HINT = 'Another worker has, or had, this job: roll back.';
    END IF;
END $$;

-- What a handler's jobq_call_hold does: see hold. Only the worker that has the job may do it.
-- p_queue: its queue is held, not its line.
CREATE OR REPLACE FUNCTION jobq._hold_here(
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
        PERFORM jobq._refuse('line', 'the job has none');
    END IF;
    PERFORM jobq._hold_from(v_queue, CASE WHEN NOT p_queue THEN v_line END,
                           statement_timestamp(), statement_timestamp()
                           + p_delay_us * interval '1 microsecond', p_why);
END $$;
