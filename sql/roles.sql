-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: roles. The last file, because it secures the functions of all others.

-- Who may do what. Every function runs as the schema's owner, with a fixed search_path, and
-- nobody else may call it until it is granted. So a role needs no right on any table and
-- reaches the rows only through these functions. The grant functions must not lend the owner's
-- rights, and a procedure that commits, wait, cannot. What doctor tells of other sessions is
-- what the caller may see of them. Expressions (LANGUAGE sql) are parts of their callers and
-- granted to nobody.
CREATE OR REPLACE FUNCTION jobq._secure() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_function record;
BEGIN
    FOR v_function IN
        SELECT p.oid::regprocedure AS name,
               p.proname !~ '^(_outbox_direct|_secure|revoke|_?grant.*|doctor|_lockers|'
                   '_snapshots|_doctor_(locks|snapshot))$'
               AND p.prokind = 'f' AND l.lanname <> 'sql' AS door
        FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
        WHERE p.pronamespace = 'jobq'::regnamespace AND p.prokind IN ('f', 'p')
    LOOP
        EXECUTE format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', v_function.name);
        IF v_function.door THEN
            EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER', v_function.name);
        END IF;
    END LOOP;
END $$;

-- The functions of each right, as a pattern of their names, with or without the underscore
-- that begins the names of those that only the library calls. jobq._grant_added knows a role
-- that has a right by one function that no other right includes.
CREATE OR REPLACE FUNCTION jobq._doors(p_right text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE p_right
        WHEN 'enqueue' THEN 'enqueue|enqueue_(or_get|one|many|known|linked)|flow|flow_close|'
            'batch|signal|outbox_enqueue|'
            'outbox_enqueue_one|outbox_enqueue_many|outbox_hash|outbox_direct|digest|'
            'citus_apart'
        WHEN 'fast' THEN 'bulk|notify|wake|outbox_queue'
        WHEN 'work' THEN 'register|policies|heartbeat|claim|recover|complete|complete_with|'
            'set_aside|settle|settle_here|rescue|rescue_jobs|sleep|wake|unpark|prune|turn|'
            'deregister|remains|kinds_of|citus_apart|'
            'work_(join|take|done|fail|heartbeat|rescue|recover|leave)|'
            'tick|schedules_set|subscriptions_set|hold|(hold|progress|step|signal)_of_claim|'
            '(step_done|wait|settle_all)_here|parent_jobs|'
            'outbox_(register|grow|partitions|hash|queue|direct|enqueue.*)|'
            'outbox_(look|read|ack|renew)|dead_letter_(replay|resolve|reject|list|count)'
        WHEN 'read' THEN 'running|queue_counts|queue_rates|last_hour|standing|audit|'
            'kind_lives|schedule_preview|explain_job|row_holders|known_lines|line_waiting|'
            'line_rooms|jobs_of_key|rate_text|shown|flow_graph|job_ties|citus_apart|'
            'citus_doubts|metrics|tally_sums|times_quantile|times_bounds|'
            'doctor|doctor_.*|lockers|ending|snapshots|known_(queue|kind)'
        WHEN 'payloads' THEN 'peek|wait|await|unawait|'
            'dead_letter_(list|count)|parents|parent_jobs'
        WHEN 'operate' THEN 'cancel|revive|delete|reschedule|prioritize|move|pause|resume|'
            'queue_set|retention_set|line_set|hold|outbox_grow|dead_letter_.*|erase|'
            'outbox_enqueue|' -- a replay sends dead letters again
            'export_(set|next|done)|subscribe|unsubscribe|'
            'schedule|schedule_(pause|resume|run|drop)|flow_(cancel|revive|close)' END;
END $$;

CREATE OR REPLACE FUNCTION jobq._check_role(p_role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = p_role) THEN
        PERFORM jobq._refuse('role', 'not a role', p_value => p_role::text);
    END IF;
END $$;

-- Grants the functions whose names match a pattern, or revokes them.
CREATE OR REPLACE FUNCTION jobq._grant_functions(
    p_role regrole, p_pattern text, p_grant boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_function regprocedure;
    v_format text := CASE WHEN p_grant THEN 'GRANT EXECUTE ON ROUTINE %s TO %s'
                     ELSE 'REVOKE EXECUTE ON ROUTINE %s FROM %s' END;
BEGIN
    PERFORM jobq._check_role(p_role);
    EXECUTE format('GRANT USAGE ON SCHEMA jobq TO %s', p_role);
    EXECUTE format('GRANT SELECT ON jobq.meta TO %s', p_role);
    FOR v_function IN
        SELECT p.oid FROM pg_proc p
        WHERE p.pronamespace = 'jobq'::regnamespace
          AND p.proname ~ format('^_?(%s)$', p_pattern) COLLATE "C"
    LOOP
        EXECUTE format(v_format, v_function, p_role);
    END LOOP;
END $$;

-- Revokes functions from a role that now gets less than an earlier call gave it. A worker's
-- role keeps those that grant_work also gives.
CREATE OR REPLACE FUNCTION jobq._grant_less(p_role regrole, p_pattern text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_works boolean := EXISTS (
        SELECT FROM pg_proc p CROSS JOIN aclexplode(p.proacl) a
        WHERE p.pronamespace = 'jobq'::regnamespace AND p.proname = '_claim'
          AND a.grantee = p_role);
BEGIN
    PERFORM jobq._grant_functions(p_role, p_pattern, false);
    IF v_works THEN PERFORM jobq.grant_work(p_role); END IF;
END $$;

-- The functions of enqueue that a tenant does not get: they reach beyond a line.
CREATE OR REPLACE FUNCTION jobq._doors_beyond() RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN 'enqueue_linked|flow|flow_close|batch|signal';
END $$;

-- The role may write jobs and messages, and read nothing. With on_known it may also change or
-- cancel a job whose key it knows. fast: it may also COPY, and write one job by a plain
-- INSERT, which is cheaper than the function. It can then write any column of the two tables,
-- and read only ids and queues. Without fast, the fast rights of an earlier call are revoked.
-- A tenant's role is refused (55000), because it would lose its limits: revoke it first.
-- Errors: 42704 no such role; 42501 for all but the owner.
--     select jobq.grant_enqueue('web_app');
CREATE OR REPLACE FUNCTION jobq.grant_enqueue(role regrole, fast boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM jobq.tenant t WHERE t.role = grant_enqueue.role) THEN
        RAISE EXCEPTION 'role % is a tenant''s: this would end its limits', role
            USING ERRCODE = '55000', HINT = format('Name its queues again, or first: select '
                'jobq.revoke(%L)', role::text);
    END IF;
    PERFORM jobq._grant_functions(role, jobq._doors('enqueue'));
    IF NOT fast THEN
        PERFORM jobq._grant_less(role, jobq._doors('fast'));
        EXECUTE format('REVOKE INSERT, SELECT (id, queue_id) ON jobq.job FROM %s', role);
        EXECUTE format('REVOKE INSERT, SELECT (id) ON jobq.message FROM %s', role);
        EXECUTE format('REVOKE SELECT ON jobq.queue, jobq.kind, jobq.sleeper FROM %s', role);
        EXECUTE format('REVOKE USAGE ON SEQUENCE jobq.job_id, jobq.message_id FROM %s', role);
        RETURN;
    END IF;
    PERFORM jobq._grant_functions(role, jobq._doors('fast'));
    EXECUTE format('GRANT INSERT, SELECT (id, queue_id) ON jobq.job TO %s', role);
    EXECUTE format('GRANT INSERT, SELECT (id) ON jobq.message TO %s', role);
    EXECUTE format('GRANT SELECT ON jobq.queue, jobq.kind, jobq.sleeper TO %s', role);
    EXECUTE format('GRANT USAGE ON SEQUENCE jobq.job_id, jobq.message_id TO %s', role);
END $$;

-- The role is a tenant's: it may write jobs into these queues only, and cannot use fast or
-- flows. outboxes: queues that it may write messages into, whose keys it shares with all who
-- write there; NULL: none. With lines, it may write only jobs whose line is like that pattern
-- of LIKE, and does not learn of others' keys, because its own are kept apart; without lines
-- it shares the keys of its queues with all others who write there. The limit holds for every
-- role that is a member of this one and is no superuser, also after SET ROLE. A role that also
-- works or reads sees everything.
-- Errors: 22023; 42704 no such role; 42501 for all but the owner.
--     select jobq.grant_enqueue('tenant_7', queues => '{mail}', lines => 'tenant-7-%');
CREATE OR REPLACE FUNCTION jobq.grant_enqueue(
    role regrole, queues text[], lines text DEFAULT NULL, outboxes text[] DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF cardinality(queues) > 0 IS NOT TRUE THEN
        PERFORM jobq._refuse('queues', 'must be an array of names');
    END IF;
    PERFORM jobq._check_name('queues', u.name) FROM unnest(queues) AS u (name);
    PERFORM jobq._check_name('outboxes', u.name) FROM unnest(outboxes) AS u (name);
    DELETE FROM jobq.tenant t WHERE t.role = grant_enqueue.role;
    PERFORM jobq.grant_enqueue(role, false);
    PERFORM jobq._grant_less(role, jobq._doors_beyond());
    INSERT INTO jobq.tenant (role, queues, lines, outboxes)
    VALUES (role, queues, lines, outboxes);
END $$;

-- The role may run workers: register, claim, complete, rescue, housekeeping, the outbox. It
-- may declare schedules and subscriptions, and so have jobs and messages written to any queue.
-- To vacuum the table of jobs it needs Postgres 17 or must be the owner; otherwise that is
-- left to autovacuum.
-- Errors: 42704 no such role; 42501 for all but the owner.
--     select jobq.grant_work('worker_app');
CREATE OR REPLACE FUNCTION jobq.grant_work(role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._grant_functions(role, jobq._doors('work'));
    IF current_setting('server_version_num')::integer >= 170000 THEN
        EXECUTE format('GRANT MAINTAIN ON jobq.job, jobq.message, jobq.partition TO %s', role);
    END IF;
END $$;

-- The role may look, and wait for jobs: the views, peek, wait, metrics and audit. With
-- payloads => false the columns payload, bytes, headers, log and those of results are closed
-- (name the other columns instead of *), and so are peek and wait, even if an earlier call or
-- grant_operate opened them. Errors, with what failed attempts have logged, are open.
-- Errors: 42704 no such role; 42501 for all but the owner.
--     select jobq.grant_read('dashboard');
CREATE OR REPLACE FUNCTION jobq.grant_read(role regrole, payloads boolean DEFAULT true)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_view record;
BEGIN
    PERFORM jobq._grant_functions(role, jobq._doors('read'));
    IF payloads THEN
        PERFORM jobq._grant_functions(role, jobq._doors('payloads'));
    ELSE
        PERFORM jobq._grant_less(role, jobq._doors('payloads'));
    END IF;
    FOR v_view IN
        SELECT c.oid::regclass AS name, v.closed,
               string_agg(quote_ident(a.attname), ', ') AS columns
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
        CROSS JOIN LATERAL (SELECT NOT payloads AND a.attname IN (
            'payload', 'bytes', 'headers', 'result', 'result_bytes', 'log') AS closed) v
        WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind = 'v'
        GROUP BY c.oid, v.closed
    LOOP
        EXECUTE format(CASE WHEN v_view.closed THEN 'REVOKE SELECT (%s) ON %s FROM %s'
                       ELSE 'GRANT SELECT (%s) ON %s TO %s' END,
                       v_view.columns, v_view.name, role);
    END LOOP;
END $$;

-- The role may look, and use every verb of operators.sql. So that it can replay dead letters,
-- it may write messages.
-- Errors: 42704 no such role; 42501 for all but the owner.
--     select jobq.grant_operate('operator_ann');
CREATE OR REPLACE FUNCTION jobq.grant_operate(role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq.grant_read(role);
    PERFORM jobq._grant_functions(role, jobq._doors('operate'));
END $$;

-- Revokes everything.
-- Errors: 42704 no such role; 42501 for all but the owner.
--     select jobq.revoke('operator_ann');
CREATE OR REPLACE FUNCTION jobq.revoke(role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._check_role(role);
    DELETE FROM jobq.tenant t WHERE t.role = revoke.role;
    EXECUTE format('REVOKE ALL ON ALL ROUTINES IN SCHEMA jobq FROM %s', role);
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA jobq FROM %s', role);
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA jobq FROM %s', role);
    EXECUTE format('REVOKE ALL ON SCHEMA jobq FROM %s', role);
END $$;

-- For the installation of a version: gives roles what it adds to the rights that they have.
-- They keep what they had, because functions and views are replaced in place. They do not get
-- back a function that was taken from them alone: p_known is what was there before, see
-- version.sql.
CREATE OR REPLACE FUNCTION jobq._grant_added(p_known text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_grant text;
BEGIN
    FOR v_grant IN
        WITH held AS (
            SELECT d.right_name, a.grantee
            FROM (VALUES ('enqueue', '_enqueue_one'), ('fast', '_bulk'), ('work', '_claim'),
                         ('read', 'audit'), ('payloads', 'peek'), ('operate', 'queue_set'))
                 AS d (right_name, shown_by)
            JOIN pg_proc p ON p.pronamespace = 'jobq'::regnamespace AND p.proname = d.shown_by
            CROSS JOIN aclexplode(p.proacl) a
            WHERE a.grantee NOT IN (0, p.proowner)
        )
        SELECT format('GRANT EXECUTE ON ROUTINE %s TO %s', p.oid::regprocedure,
                      h.grantee::regrole)
        FROM held h JOIN pg_proc p ON p.pronamespace = 'jobq'::regnamespace
             AND p.proname ~ ('^_?(' || jobq._doors(h.right_name) || ')$')
        WHERE p.oid::text <> ALL (p_known COLLATE "C")
          AND NOT (h.right_name = 'enqueue'
                   AND h.grantee IN (SELECT t.role FROM jobq.tenant t))
        UNION ALL
        SELECT format('GRANT SELECT (%I) ON %s TO %s', a.attname, c.oid::regclass,
                      h.grantee::regrole)
        FROM held h, pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
        WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind = 'v'
          AND format('%s.%s', a.attrelid, a.attnum) <> ALL (p_known COLLATE "C")
          AND CASE WHEN a.attname IN ('payload', 'bytes', 'headers', 'result', 'result_bytes',
                                         'log')
              THEN h.right_name = 'payloads' ELSE h.right_name = 'read' END
    LOOP
        EXECUTE v_grant;
    END LOOP;
END $$;

-- For the installation of a version: a migration has dropped functions that this version
-- defines with other arguments. Who could call them may call these. p_granted: who could call
-- what, as the migration has written it down; p_known: what was there after it.
CREATE OR REPLACE FUNCTION jobq._grant_again(p_known text[], p_granted text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_grant text;
BEGIN
    FOR v_grant IN
        SELECT format('GRANT EXECUTE ON ROUTINE %s TO %s', p.oid::regprocedure,
                      a.oid::regrole)
        FROM unnest(string_to_array(p_granted, ',')) AS g (held)
        JOIN pg_proc p ON p.pronamespace = 'jobq'::regnamespace
             AND p.proname = split_part(g.held, ' ', 1)
        JOIN pg_roles a ON a.oid = split_part(g.held, ' ', 2)::oid
        WHERE p.oid::text <> ALL (p_known COLLATE "C")
    LOOP
        EXECUTE v_grant;
    END LOOP;
END $$;

DO $$ BEGIN
    PERFORM jobq._secure();
    UPDATE jobq.meta m SET home = jobq._here() WHERE m.home IS NULL;
    PERFORM jobq._grant_again(string_to_array(current_setting('jobq_install.known'), ' '),
                             nullif(current_setting('jobq_install.granted', true), ''));
    PERFORM jobq._grant_added(string_to_array(current_setting('jobq_install.known'), ' '));
END $$;
