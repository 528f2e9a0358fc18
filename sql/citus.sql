-- jobq, current text: on Citus. Elsewhere these functions do nothing.
--
-- The schema is an ordinary one of the server that it was installed on: the installation
-- switches off citus.enable_ddl_propagation, which would copy types and functions to all
-- nodes. What that leaves is here: transactions that also write distributed tables.

-- Whether such a transaction may be committed on one server and lost on the other, when one of
-- them crashes. There are distributed tables, and Citus, which counts only tables in its own
-- metadata, does not know of any here: it commits in one phase.
CREATE OR REPLACE FUNCTION jobq.citus_apart() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_apart boolean;
BEGIN
    IF to_regclass('pg_catalog.pg_dist_partition') IS NULL THEN RETURN false; END IF;
    EXECUTE $q$
        SELECT bool_or(p.partmethod <> 'n' OR p.repmodel = 't' OR p.colocationid <> 0)
               AND NOT bool_or(p.logicalrelid = 'jobq.job'::regclass)
               AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgname = 'joint'
                               AND t.tgrelid = 'jobq.job'::regclass)
        FROM pg_dist_partition p $q$ INTO v_apart;
    RETURN coalesce(v_apart, false);
END $$;

-- What the triggers of citus_join do. It writes no row, and Citus takes part in the commit.
CREATE OR REPLACE FUNCTION jobq.citus_joins() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE jobq_citus.joint SET n = n WHERE n = 0;
    RETURN NULL;
END $$;

-- Makes Citus commit in two phases what writes here and in distributed tables: an empty table
-- goes into its metadata, and each statement that writes jobs, messages or what was
-- acknowledged also updates it. All schemas share that table. It has a schema of its own,
-- because Citus makes, and drops, that schema on all nodes, where this one may be another.
-- Answers whether such transactions are safe now. Only at the coordinator, which must be in
-- the metadata (citus_set_coordinator_host). The installation calls it; call it when your
-- first distributed table comes later.
CREATE OR REPLACE FUNCTION jobq.citus_join() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_may boolean;
    v_table text;
BEGIN
    IF NOT jobq.citus_apart() THEN RETURN true; END IF;
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
                       'FOR EACH STATEMENT EXECUTE FUNCTION jobq.citus_joins()', v_table);
    END LOOP;
    RETURN true;
EXCEPTION WHEN insufficient_privilege THEN
    RETURN false;
END $$;

DO $$ BEGIN
    PERFORM jobq.citus_join();
END $$;
