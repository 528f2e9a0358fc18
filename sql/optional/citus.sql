-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: on Citus. Elsewhere these functions do nothing, or fail.
--
-- The schema is an ordinary one of the server that it was installed on: the installation
-- switches off citus.enable_ddl_propagation, which would copy types and functions to all
-- nodes. What that leaves is here: transactions that also write distributed tables.

-- Whether such a transaction may be committed on one server and lost on the other, when one
-- of them crashes. There are distributed tables, and Citus, which counts only tables in its
-- own metadata, does not know of any here: it commits in one phase.
CREATE OR REPLACE FUNCTION jobq._citus_apart() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v_apart boolean;
BEGIN
    IF to_regclass('pg_catalog.pg_dist_partition') IS NULL THEN RETURN false; END IF;
    EXECUTE $q$
        SELECT bool_or(p.partmethod <> 'n' OR p.repmodel = 't' OR p.colocationid <> 0)
               AND NOT bool_or(p.logicalrelid = to_regclass('jobq.' || 'job'))
               AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgname = 'joint'
                               AND t.tgrelid = 'jobq.job'::regclass)
        FROM pg_dist_partition p $q$ INTO v_apart;
    RETURN coalesce(v_apart, false);
END $$;

-- Transactions in doubt: a server was lost between their two phases, and they hold rows of
-- any table. Citus ends them; ends_in: at the latest; NULL: it does not.
-- Answers no row without Citus. Errors: none.
--     select * from jobq.citus_doubts();
CREATE OR REPLACE FUNCTION jobq.citus_doubts()
RETURNS TABLE (node text, gid text, since timestamptz, ends_in interval)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    IF to_regclass('pg_catalog.pg_dist_partition') IS NULL THEN RETURN; END IF;
    RETURN QUERY EXECUTE $q$
        SELECT format('%s:%s', n.nodename, n.nodeport), d.gid, d.since,
               CASE WHEN i.ms > 0 THEN i.ms * interval '1 ms' END
        FROM run_command_on_all_nodes($c$
                SELECT jsonb_agg(jsonb_build_object('gid', gid, 'since', prepared))
                FROM pg_prepared_xacts WHERE starts_with(gid, 'citus_')
                AND database = current_database()
                AND prepared < clock_timestamp() - interval '5 seconds' $c$) r
            JOIN pg_dist_node n ON n.nodeid = r.nodeid
            CROSS JOIN LATERAL jsonb_to_recordset(nullif(r.result, '')::jsonb)
                               AS d (gid text, since timestamptz)
            CROSS JOIN (SELECT setting::bigint AS ms FROM pg_settings
                        WHERE name = 'citus.recover_2pc_interval') i
        WHERE r.success $q$;
END $$;

-- What the triggers of citus_join do. It writes no row, and Citus takes part in the commit.
CREATE OR REPLACE FUNCTION jobq._citus_joins() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE jobq_citus.joint SET n = n WHERE n = 0;
    RETURN NULL;
END $$;

-- Makes Citus commit in two phases what writes here and in distributed tables: an empty table
-- goes into its metadata, and each statement that writes jobs, messages or what was
-- acknowledged also updates it. All schemas share that table, which is in the schema
-- jobq_citus.
-- Answers whether such transactions are safe now. Only at the coordinator, which must be in
-- the metadata (citus_set_coordinator_host). The installation calls it; call it when your
-- first distributed table comes later.
-- Without Citus it answers true. Errors: those of Citus.
--     select jobq.citus_join();
CREATE OR REPLACE FUNCTION jobq.citus_join() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_may boolean;
    v_table text;
BEGIN
    -- The table has a schema of its own, because Citus makes, and drops, that schema on all
    -- nodes, where this one may be another.
    IF NOT jobq._citus_apart() THEN RETURN true; END IF;
    EXECUTE 'SELECT l.groupid = 0 AND EXISTS (SELECT FROM pg_dist_node d '
            'WHERE d.groupid = 0) FROM pg_dist_local_group l' INTO v_may;
    IF v_may IS NOT TRUE THEN RETURN false; END IF;
    PERFORM pg_advisory_xact_lock(29958816140483507);
    IF to_regclass('jobq_citus.joint') IS NULL THEN
        PERFORM set_config('citus.enable_schema_based_sharding', 'off', true);
        PERFORM set_config('citus.enable_ddl_propagation', 'on', true);
        CREATE SCHEMA jobq_citus;
        CREATE TABLE jobq_citus.joint (n integer PRIMARY KEY);
        EXECUTE 'SELECT citus_add_local_table_to_metadata(''jobq_citus.joint'')';
        GRANT USAGE ON SCHEMA jobq_citus TO PUBLIC;
        GRANT SELECT, UPDATE ON jobq_citus.joint TO PUBLIC;
        PERFORM set_config('citus.enable_ddl_propagation', 'off', true);
    END IF;
    FOREACH v_table IN ARRAY ARRAY['job', 'message', 'partition'] LOOP
        EXECUTE format('CREATE TRIGGER joint AFTER INSERT OR UPDATE OR DELETE ON jobq.%I '
                       'FOR EACH STATEMENT EXECUTE FUNCTION jobq._citus_joins()', v_table);
    END LOOP;
    RETURN true;
EXCEPTION WHEN insufficient_privilege THEN
    RETURN false;
END $$;

-- ---- a distributed schema ------------------------------------------------------------------

-- Citus keeps all tables of a distributed schema on one node, as shards: ordinary tables
-- whose names end in a number, jobq.job_102008 say. It refuses many statements on the
-- distributed tables, and plans each one anew. So the functions run on that node. Only the
-- names of tables differ there, and Postgres plans them as everywhere. At the coordinator a
-- function of the same name sends its call there. Views need no change: Citus sends them
-- whole.
--
--     select jobq.citus_distribute();  -- once, at the coordinator
--     select jobq.citus_place();       -- after that, and after each move of the shards
--     select jobq.citus_close();       -- before a move
--
-- Between citus_close, or citus_distribute, and citus_place every call is refused. So nothing
-- is written while the shards, the functions or the numbers that sequences give are on their
-- way, whatever fails or is repeated meanwhile.
--
-- Transactions, ids and the clock are those of that one node, whoever calls. So the outbox
-- numbers its messages there as it does on any other server. The other nodes do not have the
-- functions and refuse the call. Workers connected to the coordinator are notified of new
-- jobs; they learn of everything else when they poll. To upgrade, call citus_close and
-- citus_undistribute, install the new version, and distribute the schema again.

-- What replaces pg_notify on the node. Nobody listens there, and a transaction that has
-- notified cannot be prepared.
CREATE OR REPLACE FUNCTION jobq._citus_mute(p_channel text, p_payload text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
END $$;

-- Wakes sleeping workers at the coordinator. They are read first, because Citus would send
-- pg_notify to the node with the rest of the statement.
CREATE OR REPLACE FUNCTION jobq._citus_wake() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_workers bigint[];
BEGIN
    SELECT array_agg(s.worker) INTO v_workers FROM jobq.sleeper s;
    PERFORM jobq._notify(u.worker, '') FROM unnest(v_workers) AS u (worker);
END $$;

-- What a function at the node asks of the session at the coordinator: 1 the role that logged
-- in, 2 the application, 3 the roles of which it is a member, as an array of their oids here.
-- The owner's answer to 3 is empty, and that of a superuser: the limits of tenants do not
-- hold for them.
CREATE OR REPLACE FUNCTION jobq._citus_calls() RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY[session_user, current_setting('application_name'), ARRAY(
        SELECT t.oid FROM pg_roles r JOIN pg_roles t ON pg_has_role(r.oid, t.oid, 'MEMBER')
        WHERE r.rolname = session_user AND NOT r.rolsuper
          AND r.rolname <> current_user)::text];
END $$;

-- The node keeps that for the rest of the transaction: with the first argument of a call, and
-- so before the call.
CREATE OR REPLACE FUNCTION jobq._citus_called(p_one boolean, p_caller text[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN set_config('jobq_citus.caller', p_caller::text, true) IS NOT NULL;
END $$;

CREATE OR REPLACE FUNCTION jobq._citus_caller(p_what integer) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(
        (nullif(current_setting('jobq_citus.caller', true), '')::text[])[p_what],
        CASE WHEN p_what < 3 THEN current_user END);
END $$;

-- Runs statements.
CREATE OR REPLACE FUNCTION jobq._citus_run(p_texts text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_text text;
BEGIN
    FOREACH v_text IN ARRAY p_texts LOOP
        EXECUTE v_text;
    END LOOP;
END $$;

-- The tables, with the names of their shards at the node.
CREATE OR REPLACE FUNCTION jobq._citus_shards() RETURNS TABLE (id oid, name text, stored text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT c.oid, c.relname::text, format('%s_%s', c.relname, s.shardid)
    FROM pg_dist_shard s JOIN pg_class c ON c.oid = s.logicalrelid
    WHERE c.relnamespace = 'jobq'::regnamespace;
END $$;

-- The node that has the shards.
CREATE OR REPLACE FUNCTION jobq._citus_home(OUT name text, OUT port integer)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT n.nodename, n.nodeport INTO name, port
    FROM pg_dist_placement p JOIN pg_dist_shard s ON s.shardid = p.shardid
        JOIN pg_dist_node n ON n.groupid = p.groupid AND n.noderole = 'primary'
    WHERE s.logicalrelid = 'jobq.job'::regclass AND n.groupid <> 0;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a schema that Citus distributes needs a node beside the coordinator'
            USING ERRCODE = '0A000';
    END IF;
END $$;

-- Definitions in which the tables are named as their shards are. The functions use upper case
-- for key words, so a name in lower case after a table is its alias.
CREATE OR REPLACE FUNCTION jobq._citus_texts(p_texts text[]) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on AS $$
DECLARE
    v_texts text[] := p_texts;
    v_schema text := (SELECT regexp_replace(n.nspname, '(\W)', '\\\1', 'g')
                      FROM pg_namespace n WHERE n.oid = 'jobq'::regnamespace);
    v_name text := '"?' || v_schema || '"?\.';
    v_before text := '((?:\m(?:FROM|JOIN|INTO|UPDATE|USING|ONLY)\s+|,\s*)\(*)' || v_name;
    v record;
BEGIN
    FOR v IN
        SELECT s.name, 'jobq.' || s.stored::text AS stored FROM jobq._citus_shards() s
    LOOP
        SELECT array_agg(
            regexp_replace(regexp_replace(regexp_replace(regexp_replace(u.text,
                v_before || v.name || '(\s+(?:AS )?[a-z])', format('\1%s\2', v.stored), 'g'),
                v_before || v.name || '\M(?![.(])',
                format('\1%s AS %s', v.stored, v.name), 'g'),
                '(\mTABLE )' || v_name || v.name || '\M', format('\1%s', v.stored), 'g'),
                '(?<!sequence\()''' || v_name || v.name || '''', quote_literal(v.stored), 'g')
            ORDER BY u.n)
        INTO v_texts FROM unnest(v_texts) WITH ORDINALITY AS u (text, n);
    END LOOP;
    FOR v IN SELECT * FROM (VALUES
        ('\n SET search_path TO', ' SET citus.enable_manual_changes_to_shards TO on\&'),
        (' pg_notify\(', ' jobq._citus_mute('),
        ('pg_roles r ON .*MEMBER''\)', 'unnest(jobq._citus_caller(3)::oid[]) r ON r = t.role'),
        ('session_user', 'jobq._citus_caller(1)'),
        ('current_setting\(''application_name''\)', 'jobq._citus_caller(2)')) AS r (old, new)
    LOOP
        v_texts := ARRAY(SELECT regexp_replace(u.text, v.old, v.new, 'g')
                         FROM unnest(v_texts) WITH ORDINALITY AS u (text, n) ORDER BY u.n);
    END LOOP;
    RETURN v_texts;
END $$;

-- The definition of the function that sends its call to the node. A call that may write is
-- part of an UPDATE, which finds no row: so Citus begins a transaction there, or joins the
-- caller's, commits it with what else the caller writes, and the shards cannot move
-- meanwhile. bulk and outbox_queue answer NULL: a COPY cannot be sent, so the library sends
-- arrays.
CREATE OR REPLACE FUNCTION jobq._citus_sender(p_function oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v pg_proc := (SELECT p FROM pg_proc p WHERE p.oid = p_function);
    v_outs text := (SELECT string_agg(format('%I', o.name), ', ' ORDER BY o.n)
                    FROM unnest(v.proargnames, v.proargmodes) WITH ORDINALITY
                         AS o (name, mode, n)
                    WHERE o.mode IN ('o', 'b'));
    v_asks boolean := v.pronargs > 0 AND v.provolatile = 'v'
        AND v.proname ~ format('^_?(%s|%s)$', jobq._doors('enqueue'), jobq._doors('operate'));
    v_call text := format('jobq.%I(%s)', v.proname, (
        SELECT string_agg(CASE WHEN v_asks AND i = 1 THEN 'CASE WHEN s.s THEN $1 END'
                          ELSE format('$%s', i) END, ', ' ORDER BY i)
        FROM generate_series(1, v.pronargs) i));
    v_with text := CASE v.provolatile WHEN 'v' THEN
        'WITH writes AS (UPDATE jobq.meta SET one = one WHERE NOT one) ' ELSE '' END;
    v_from text := ' FROM jobq.meta m CROSS JOIN LATERAL ' || CASE WHEN v_asks THEN
        'jobq._citus_called(m.one, v_caller) s CROSS JOIN LATERAL ' ELSE '' END || v_call
        || ' f';
    v_type text := format_type(v.prorettype, NULL);
    v_row boolean := (SELECT t.typtype = 'c' FROM pg_type t WHERE t.oid = v.prorettype);
    v_notify text := '$' || coalesce(array_position(v.proargnames, 'notify'),
                                     array_position(v.proargnames, 'p_notify'))::text;
    v_wake text := CASE WHEN v.proname ~ '(enqueue|wake)' AND v.provolatile = 'v' THEN
        format('IF %s THEN PERFORM jobq._citus_wake(); END IF; ', coalesce(v_notify, 'true'))
        ELSE '' END;
BEGIN
    RETURN format(
        'CREATE OR REPLACE FUNCTION jobq.%I(%s) RETURNS %s LANGUAGE plpgsql %s SET '
        'search_path = pg_catalog, pg_temp AS $send$ #variable_conflict use_column %s '
        'BEGIN %s; %s %s END $send$', v.proname, pg_get_function_arguments(v.oid),
        pg_get_function_result(v.oid), CASE v.provolatile WHEN 's' THEN 'STABLE' ELSE '' END
            || CASE WHEN v.prosecdef THEN ' SECURITY DEFINER' ELSE '' END,
        CASE WHEN v_asks THEN 'DECLARE v_caller text[] := jobq._citus_calls(); ' ELSE '' END
            || CASE WHEN v.proretset OR v_outs IS NOT NULL THEN '' WHEN v_type = 'void'
               THEN 'DECLARE r integer;' ELSE format('DECLARE r %s;', v_type) END,
        CASE WHEN v.proname IN ('_bulk', '_outbox_queue') THEN 'NULL'
             WHEN v.proretset THEN 'RETURN QUERY ' || v_with || 'SELECT f.*' || v_from
             WHEN v_type = 'void' THEN v_with || 'SELECT 1 INTO r' || v_from
             WHEN v_outs IS NOT NULL THEN v_with || 'SELECT f.* INTO ' || v_outs || v_from
             WHEN v_row THEN v_with || 'SELECT f.* INTO r' || v_from
             ELSE v_with || 'SELECT f INTO r' || v_from END, v_wake,
        CASE WHEN v.proretset OR v_outs IS NOT NULL OR v_type = 'void' THEN ''
             ELSE 'RETURN r;' END);
END $$;

-- Who may call a function here needs no right at the node, because its owner calls it there.
-- But there the tables of a view are read as the caller. So who may read all columns of a
-- view gets those columns of its tables at the node, and what functions it calls. A view with
-- a column that the role may not read is closed to it.
CREATE OR REPLACE FUNCTION jobq._citus_readers(p_role regrole) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_done integer;
    v_texts text[] := ARRAY(
        SELECT format(t.text, p_role) FROM (VALUES
            ('SET LOCAL citus.enable_ddl_propagation = off'),
            ('REVOKE ALL ON ALL TABLES IN SCHEMA jobq FROM %s'),
            ('REVOKE ALL ON ALL ROUTINES IN SCHEMA jobq FROM %s')) AS t (text));
BEGIN
    v_texts := v_texts || ARRAY(
        WITH RECURSIVE used AS (
            SELECT d.refclassid, d.refobjid, d.refobjsubid
            FROM pg_class c JOIN pg_rewrite r ON r.ev_class = c.oid
                JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
            WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind = 'v' AND NOT EXISTS (
                SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
                AND NOT has_column_privilege(p_role, c.oid, a.attnum, 'SELECT'))
            UNION
            SELECT d.refclassid, d.refobjid, d.refobjsubid
            FROM used u JOIN pg_rewrite r ON u.refclassid = 'pg_class'::regclass
                     AND r.ev_class = u.refobjid
                JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
        )
        SELECT format('GRANT SELECT (%s) ON jobq.%I TO %s', string_agg(DISTINCT
                          quote_ident(a.attname), ', '), s.stored, p_role)
        FROM jobq._citus_shards() s JOIN pg_attribute a ON a.attrelid = s.id
        WHERE EXISTS (SELECT FROM used u WHERE u.refclassid = 'pg_class'::regclass
                      AND u.refobjid = s.id AND u.refobjsubid = a.attnum)
           OR s.name = 'meta' AND a.attnum > 0
              AND has_table_privilege(p_role, s.id, 'SELECT')
        GROUP BY s.stored
        UNION ALL
        SELECT DISTINCT format('GRANT EXECUTE ON ROUTINE %s TO %s', p.oid::regprocedure,
                               p_role)
        FROM used u JOIN pg_proc p ON u.refclassid = 'pg_proc'::regclass AND u.refobjid = p.oid
        WHERE p.pronamespace = 'jobq'::regnamespace);
    WITH writes AS (UPDATE jobq.meta SET one = one WHERE NOT one)
    SELECT 1 INTO v_done FROM jobq.meta m CROSS JOIN LATERAL jobq._citus_run(v_texts) f;
END $$;

-- Drops the views, because Citus does not take tables that views depend on. Answers the
-- statements that make them again, with the grants on them. It is refused while others depend
-- on them, because it could not make those again.
CREATE OR REPLACE FUNCTION jobq._citus_drop_views() RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET client_min_messages = error AS $$
DECLARE
    v_detail text;
    v_texts text[] := ARRAY(
        SELECT t.text FROM pg_class c CROSS JOIN LATERAL (
            SELECT 0, format('CREATE OR REPLACE VIEW jobq.%I AS %s', c.relname,
                             pg_get_viewdef(c.oid))
            UNION ALL
            SELECT 1, format('GRANT %s%s ON jobq.%I TO %s', g.privilege_type,
                             ' (' || quote_ident(a.name) || ')', c.relname,
                             coalesce(nullif(g.grantee, 0)::regrole::text, 'PUBLIC'))
            FROM (SELECT NULL, c.relacl UNION ALL
                  SELECT a.attname, a.attacl FROM pg_attribute a WHERE a.attrelid = c.oid)
                 AS a (name, acl) CROSS JOIN LATERAL aclexplode(a.acl) g) AS t (n, text)
        WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind = 'v' ORDER BY c.oid, t.n);
BEGIN
    EXECUTE (SELECT format('DROP VIEW %s', string_agg(c.oid::regclass::text, ', '))
             FROM pg_class c WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind = 'v');
    RETURN v_texts;
EXCEPTION WHEN dependent_objects_still_exist THEN
    GET STACKED DIAGNOSTICS v_detail := PG_EXCEPTION_DETAIL;
    RAISE EXCEPTION 'views or functions of yours depend on views of this schema'
        USING ERRCODE = '2BP01', DETAIL = v_detail,
            HINT = 'Drop them first, and make them again afterwards.';
END $$;

-- Gives identity columns a default in place of their identity, or the identity back, because
-- Citus does not undistribute a table with one. p_columns: of each, its table and how it is
-- generated.
CREATE OR REPLACE FUNCTION jobq._citus_identities(p_columns jsonb, p_back boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v record;
    v_name text;
    v_last bigint;
BEGIN
    FOR v IN SELECT c.key AS name, c.value AS generated FROM jsonb_each_text(p_columns) c LOOP
        v_name := pg_get_serial_sequence('jobq.' || v.name, 'id');
        v_last := pg_sequence_last_value(v_name::regclass);
        IF p_back THEN
            EXECUTE format('ALTER TABLE jobq.%I ALTER id DROP DEFAULT; DROP SEQUENCE %s; '
                           'ALTER TABLE jobq.%1$I ALTER id ADD GENERATED %3$s AS IDENTITY',
                           v.name, v_name, v.generated);
        ELSE
            EXECUTE format('ALTER TABLE jobq.%I ALTER id DROP IDENTITY', v.name);
            EXECUTE format('CREATE SEQUENCE %s AS %s OWNED BY jobq.%I.id', v_name, (
                SELECT format_type(a.atttypid, NULL) FROM pg_attribute a
                WHERE a.attrelid = to_regclass('jobq.' || v.name) AND a.attname = 'id'),
                v.name);
            EXECUTE format('ALTER TABLE jobq.%I ALTER id SET DEFAULT nextval(%L)', v.name,
                           v_name);
        END IF;
        PERFORM setval(v_name, v_last) WHERE v_last IS NOT NULL;
    END LOOP;
END $$;

-- The functions whose calls are sent to the node. outbox_direct asks about the caller.
CREATE OR REPLACE FUNCTION jobq._citus_sent() RETURNS SETOF oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT p.oid FROM pg_proc p
    WHERE p.pronamespace = 'jobq'::regnamespace AND p.prokind = 'f' AND p.provolatile <> 'i'
      AND p.proname !~ '^_?(outbox_direct|citus_|grant|revoke|secure)';
END $$;

-- Whether every call is refused.
CREATE OR REPLACE FUNCTION jobq._citus_closed() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = 'jobq'::regnamespace
                   AND p.proname = 'enqueue' AND p.prosrc ~ 'citus_place');
END $$;

-- Refuses every call, from its commit until citus_place. 57P03, cannot connect now: programs
-- try again later. Nobody draws an id here: that is for the node to do.
-- Errors: 55000 the schema is not distributed.
--     select jobq.citus_close();
CREATE OR REPLACE FUNCTION jobq.citus_close() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF to_regclass('jobq.original') IS NULL THEN
        RAISE EXCEPTION 'the schema is not distributed' USING ERRCODE = '55000';
    END IF;
    PERFORM set_config('citus.enable_ddl_propagation', 'off', true);
    PERFORM jobq._citus_run(ARRAY(
        SELECT format(
            'CREATE OR REPLACE FUNCTION jobq.%I(%s) RETURNS %s LANGUAGE plpgsql %s SET '
            'search_path = pg_catalog, pg_temp AS %L', p.proname,
            pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
            CASE p.provolatile WHEN 's' THEN 'STABLE' ELSE '' END
            || CASE WHEN p.prosecdef THEN ' SECURITY DEFINER' ELSE '' END,
            'BEGIN RAISE EXCEPTION ''the schema is being moved: calls are refused until '
            'jobq.citus_place() has succeeded'' USING ERRCODE = ''57P03''; END')
        FROM jobq._citus_sent() s JOIN pg_proc p ON p.oid = s));
    -- pg_sequence says what held when this statement began; Citus may have lowered it since.
    PERFORM setval(q.seqrelid, least(q.seqmax, p.maximum_value))
    FROM jobq.original o JOIN pg_sequence q ON q.seqrelid = to_regclass('jobq.' || o.name)
    CROSS JOIN LATERAL pg_sequence_parameters(q.seqrelid) p
    WHERE o.what = 'sequence';
END $$;

-- What follows a move, or what comes before undistribution, must not meet calls.
CREATE OR REPLACE FUNCTION jobq._citus_must_be_closed() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT jobq._citus_closed() THEN
        RAISE EXCEPTION 'the schema takes calls'
            USING ERRCODE = '55000', HINT = 'Call jobq.citus_close() first, and commit it.';
    END IF;
END $$;

-- Distributes the schema, and closes it. Its functions, views and sequences are kept as rows
-- of the table original, for citus_place. Stop all workers first.
-- Errors: 42883 without Citus; 55000 it is distributed already; 55006 a worker lives.
--     select jobq.citus_distribute();
CREATE OR REPLACE FUNCTION jobq.citus_distribute() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_views text[];
    v_workers text;
BEGIN
    -- A worker that lives would go on with the functions of an ordinary schema, which end the
    -- server on distributed tables.
    IF to_regclass('jobq.original') IS NOT NULL THEN
        RAISE EXCEPTION 'the schema is distributed already' USING ERRCODE = '55000';
    END IF;
    PERFORM jobq._citus_run(ARRAY( -- nobody registers, or draws an id, from here on
        SELECT format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', c.oid::regclass)
        FROM pg_class c WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind = 'r'
        ORDER BY c.oid));
    SELECT string_agg(w.name, ', ' ORDER BY w.name) INTO v_workers FROM jobq.worker w
    WHERE w.dead_at IS NULL AND clock_timestamp() BETWEEN w.beat_at AND w.expires_at;
    IF v_workers IS NOT NULL THEN
        RAISE EXCEPTION 'workers run: %', v_workers
            USING ERRCODE = '55006', HINT = 'Stop them, and producers, until citus_place.';
    END IF;
    v_views := jobq._citus_drop_views();
    PERFORM set_config('client_min_messages', 'error', true);
    PERFORM set_config('check_function_bodies', 'off', true);
    CREATE TABLE jobq.original (n integer PRIMARY KEY, what text, name text, text text);
    INSERT INTO jobq.original
    SELECT row_number() OVER (ORDER BY o.what, o.oid), o.what, o.name, o.text FROM (
        SELECT 'function', p.oid, p.proname, pg_get_functiondef(p.oid) FROM pg_proc p
        WHERE p.pronamespace = 'jobq'::regnamespace AND p.prokind = 'f'
          AND (p.proname !~ '^_?citus_'
               OR p.proname ~ '^_?citus_(mute|run|calle[dr]|apart|doubts)$')
        UNION ALL
        SELECT 'view', v.n::oid, '', v.text FROM unnest(v_views) WITH ORDINALITY AS v (text, n)
        WHERE v.text ~ '^CREATE'
        UNION ALL
        SELECT 'sequence', c.oid, c.relname, pg_sequence_last_value(c.oid)::text
        FROM pg_class c WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind = 'S'
    ) AS o (what, oid, name, text);
    INSERT INTO jobq.original
    SELECT 0, 'identities', '', jsonb_object_agg(c.relname, CASE a.attidentity
        WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind = 'r' AND a.attidentity <> '';
    PERFORM jobq._citus_identities(
        (SELECT o.text::jsonb FROM jobq.original o WHERE o.what = 'identities'), false);
    PERFORM jobq._citus_run(ARRAY(
        SELECT format('DROP TRIGGER joint ON %s', c.oid::regclass)
        FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE t.tgname = 'joint' AND c.relnamespace = 'jobq'::regnamespace));
    ALTER TABLE jobq.tenant ALTER role TYPE oid; -- a role has another oid at the node
    PERFORM set_config('citus.enable_ddl_propagation', 'on', true);
    EXECUTE 'SELECT citus_schema_distribute(''jobq'')';
    PERFORM set_config('citus.enable_ddl_propagation', 'off', true);
    PERFORM jobq._citus_run(v_views);
    PERFORM jobq.citus_close();
END $$;

-- What makes a sequence at the node go on after p_last, the last number that was given
-- elsewhere, and after those that it has given itself. From the first ALTER on nobody draws
-- one until this is committed. What Citus made it with does not count: a range for each node,
-- or, of integers, the end.
CREATE OR REPLACE FUNCTION jobq._citus_sequence(p_name text, p_last bigint) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN format($q$DO $s$ DECLARE v_last bigint; BEGIN
        ALTER SEQUENCE jobq.%1$I CACHE 1;
        SELECT greatest(%2$s, CASE WHEN q.seqmin = 1 AND s.last_value < %3$s
                              THEN s.last_value - (NOT s.is_called)::integer END)
        INTO v_last FROM pg_sequence q, jobq.%1$I s WHERE q.seqrelid = 'jobq.%1$I'::regclass;
        EXECUTE 'ALTER SEQUENCE jobq.%1$I START 1 MINVALUE 1 MAXVALUE %3$s RESTART '
                || (v_last + 1)::text;
        PERFORM setval('jobq.%1$I', v_last) WHERE v_last > 0;
    END $s$ $q$, p_name, p_last, q.seqmax)
    FROM pg_sequence q WHERE q.seqrelid = to_regclass('jobq.' || p_name);
END $$;

-- What the node that holds the shards runs to have all the rest. Ids of jobs are drawn there.
-- p_last: of each sequence, the last number that was given anywhere. At its end the node is
-- the schema's home, if it was not: the outbox goes on by the numbers of its transactions.
CREATE OR REPLACE FUNCTION jobq._citus_node_texts(p_last jsonb) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ARRAY(
        SELECT format('CREATE TYPE jobq.%I AS (%s)', c.relname, (
            SELECT string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)),
                              ', ' ORDER BY a.attnum)
            FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped))
        FROM pg_class c WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind = 'c'
        ORDER BY c.oid)
    || ARRAY(
        SELECT format('CREATE CAST (jobq.%I AS jobq.%I) WITH INOUT AS IMPLICIT',
                      s.stored, s.name) FROM jobq._citus_shards() s)
    || ARRAY(SELECT jobq._citus_sequence(s.key, s.value::bigint)
             FROM jsonb_each_text(p_last) s)
    || ARRAY(
        SELECT format('ALTER TABLE jobq.%I ALTER %I SET DEFAULT nextval(%L)',
                      s.stored, 'id', i.sequence)
        FROM jobq._citus_shards() s CROSS JOIN LATERAL (
            SELECT CASE WHEN s.name IN ('job', 'message') THEN 'jobq.' || s.name || '_id'
                   ELSE pg_get_serial_sequence('jobq.' || s.name, a.attname) END AS sequence
            FROM pg_attribute a WHERE a.attrelid = s.id AND a.attname = 'id') i
        WHERE i.sequence IS NOT NULL)
    || jobq._citus_texts(ARRAY(
        SELECT o.text FROM jobq.original o WHERE o.what IN ('function', 'view')
        ORDER BY o.what, o.n))
    || jobq._citus_texts(ARRAY[
        'SELECT jobq._secure()',
        'SELECT jobq.renew(home => true) FROM jobq.meta m '
        'WHERE m.home IS DISTINCT FROM jobq._here() OR m.home IS NULL']);
END $$;

-- Runs a statement at a node, in a transaction of its own, and answers its value.
CREATE OR REPLACE FUNCTION jobq._citus_at(p_name text, p_port integer, p_statement text)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_success boolean;
    v_result text;
BEGIN
    EXECUTE 'SELECT r.success, r.result FROM master_run_on_worker($1, $2, $3, false) r'
    INTO v_success, v_result USING ARRAY[p_name], ARRAY[p_port], ARRAY[p_statement];
    IF NOT v_success THEN RAISE EXCEPTION 'node %: %', p_name, v_result; END IF;
    RETURN nullif(v_result, '');
END $$;

-- One statement that runs these. What there is already stays.
CREATE OR REPLACE FUNCTION jobq._citus_script(p_texts text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN format($q$DO $node$ DECLARE v_text text; BEGIN
        PERFORM set_config('citus.enable_ddl_propagation', 'off', true);
        PERFORM set_config('client_min_messages', 'error', true);
        PERFORM set_config('check_function_bodies', 'off', true);
        FOREACH v_text IN ARRAY %L::text[] LOOP
            BEGIN
                EXECUTE v_text;
            EXCEPTION WHEN duplicate_object THEN NULL;
            END;
        END LOOP;
    END $node$ $q$, p_texts);
END $$;

-- Installs the functions and views on the node that has the shards, and sends all calls there
-- from its commit on. The schema must be closed. If it fails, call it again. The sequences of
-- a node that had the shards before give nothing any more, in case the shards come back.
-- Errors: 42P01 without Citus; 55000 the schema is not closed.
--     select jobq.citus_place();
CREATE OR REPLACE FUNCTION jobq.citus_place() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on AS $$
DECLARE
    v record;
    v_home record;
    v_last jsonb := (SELECT jsonb_object_agg(o.name, coalesce(o.text, '0'))
                     FROM jobq.original o WHERE o.what = 'sequence');
    v_given jsonb;
    v_grants text[] := ARRAY(
        SELECT regexp_replace(
            CASE o.name WHEN 'grant_enqueue' THEN o.text ELSE regexp_replace(o.text,
                'END\s*(\$\w*\$\s*)$', 'PERFORM jobq._citus_readers(role); END \1') END,
            'DELETE (.* = )(\w+\.role);', 'EXECUTE ''DELETE \1'' || \2::oid;')
        FROM jobq.original o
        WHERE o.what = 'function' AND o.name IN ('grant_enqueue', 'grant_read', 'revoke'));
    v_readers regrole[] := ARRAY(
        SELECT DISTINCT g.grantee
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
            CROSS JOIN LATERAL aclexplode(a.attacl) g
        WHERE c.relnamespace = 'jobq'::regnamespace AND c.relkind = 'v');
BEGIN
    PERFORM jobq._citus_must_be_closed();
    PERFORM set_config('citus.enable_ddl_propagation', 'off', true);
    PERFORM set_config('check_function_bodies', 'off', true);
    SELECT h.* INTO v_home FROM jobq._citus_home() h;
    FOR v IN SELECT n.nodename AS name, n.nodeport AS port FROM pg_dist_node n
             WHERE n.groupid <> 0 AND n.noderole = 'primary' LOOP
        v_given := jobq._citus_at(v.name, v.port, $q$
            SELECT jsonb_object_agg(c.relname, pg_sequence_last_value(s.seqrelid))
            FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
            WHERE c.relnamespace = 'jobq'::regnamespace
              AND pg_sequence_last_value(s.seqrelid) IS NOT NULL
              AND (SELECT o.seqmin = 1 FROM pg_sequence o
                   WHERE o.seqrelid = 'jobq.job_id'::regclass)$q$);
        CONTINUE WHEN v_given IS NULL;
        SELECT jsonb_object_agg(l.key, greatest(l.value::bigint, (v_given ->> l.key)::bigint))
        INTO v_last FROM jsonb_each_text(v_last) l;
        IF v <> v_home THEN
            PERFORM jobq._citus_at(v.name, v.port, jobq._citus_script(ARRAY(
                SELECT format('ALTER SEQUENCE jobq.%1$I START 1 MAXVALUE %2$s; '
                              'SELECT setval(''jobq.%1$I'', %2$s)', g.key,
                              greatest(g.value::bigint, 2))
                FROM jsonb_each_text(v_given) g
                UNION ALL
                SELECT format('REVOKE ALL ON ALL %s IN SCHEMA jobq FROM %s', w.what, u.role)
                FROM unnest(v_readers) AS u (role), unnest('{TABLES,ROUTINES}'::text[])
                     AS w (what))));
        END IF;
    END LOOP;
    PERFORM jobq._citus_at(v_home.name, v_home.port,
                          jobq._citus_script(jobq._citus_node_texts(v_last)));
    PERFORM jobq._citus_run(ARRAY(SELECT jobq._citus_sender(s) FROM jobq._citus_sent() s));
    PERFORM jobq._citus_run(v_grants);
    PERFORM jobq._citus_readers(u.role) FROM unnest(v_readers) AS u (role);
END $$;

-- Makes the schema an ordinary one of the coordinator again, which is its home then. It must
-- be closed.
-- Errors: 42P01 without Citus; 55000 the schema is not closed.
--     select jobq.citus_undistribute();
CREATE OR REPLACE FUNCTION jobq.citus_undistribute() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_texts text[];
    v_views text[];
    v_last jsonb;
    v_identities jsonb := (SELECT o.text FROM jobq.original o WHERE o.what = 'identities');
BEGIN
    PERFORM jobq._citus_must_be_closed();
    v_texts := ARRAY(SELECT o.text FROM jobq.original o WHERE o.what = 'function');
    SELECT jobq._citus_at(h.name, h.port, $q$
        SELECT jsonb_object_agg(c.relname, coalesce(pg_sequence_last_value(s.seqrelid), 1))
        FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
        WHERE c.relnamespace = 'jobq'::regnamespace $q$) INTO v_last
    FROM jobq._citus_home() h;
    PERFORM set_config('client_min_messages', 'error', true);
    PERFORM set_config('check_function_bodies', 'off', true);
    v_views := jobq._citus_drop_views();
    EXECUTE 'SELECT citus_schema_undistribute(''jobq'')';
    PERFORM set_config('citus.enable_ddl_propagation', 'off', true);
    DROP TABLE jobq.original;
    PERFORM jobq._citus_identities(v_identities, true);
    ALTER TABLE jobq.tenant ALTER role TYPE regrole;
    PERFORM jobq._citus_run(v_texts || v_views);
    PERFORM setval('jobq.' || s.key, s.value::bigint) FROM jsonb_each_text(v_last) s;
    PERFORM jobq.renew(home => true);
END $$;

DO $$ BEGIN
    PERFORM jobq.citus_join();
END $$;
