-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- move.sql -- moves a schema of jobq to another server while programs use it. Nothing is lost.
--
--     psql -X -v schema=mail -v to="host=b dbname=app" -f examples/move.sql "host=a dbname=app"
--
-- The second server must not have a schema of that name. A job and the data that its handlers
-- change belong on one server, so your data moves too: name your schemas or tables in "also",
-- such as -v also="-n mail_data", as pg_dump wants it. Those tables are not locked.
--
-- With -v from="host=a dbname=app", by which the second server reaches the first, the schema is
-- copied by logical replication. Producers then wait for the last moment only, and not for the
-- whole copy. The first server needs wal_level = logical.
--
-- What happens:
--   1. All queues are paused. Jobs that run have ten seconds to end. (by replication: and copied)
--   2. All tables are locked against writers, and then copied; or the replica catches up.
--   3. In the same transaction the schema here is renamed to mail_moved. So a program that
--      waited for a lock gets an error (3F000), and nothing is written that was not copied.
--   4. On the second server renew makes it the home of its jobs, and the queues are resumed.
--
-- Programs get errors until they use the second server. There they enqueue again what was
-- refused; a job with a key is not enqueued twice. Restart workers with the new list of servers.
--
-- If the copy fails, nothing was moved, and the queues are resumed. Drop mail_moved when you are
-- sure.

\set ON_ERROR_STOP on
\set QUIET on
\o /dev/null
\if :{?schema} \set named :{?to} \else \set named 0 \endif
\if :named \else
DO $$ BEGIN RAISE EXCEPTION 'give -v schema=NAME and -v to=CONNINFO: see the top of move.sql'; END $$;
\endif
\if :{?also} \else \set also '' \endif
\if :{?from} \set by replication \else \set by dump \endif
SELECT :'schema' || '_moved' AS moved, '"' || :'schema' || '"' AS pattern,
       'move_' || :'schema' AS publication, :'by' = 'dump' AS by_dump,
       format('-h %s -p %s -U %s -d %s', :'HOST', :'PORT', :'USER', :'DBNAME') AS here \gset
SELECT set_config('move.schema', quote_ident(:'schema'), false),
       set_config('move.by', :'publication', false);

-- 1. Nothing is claimed any more.
SELECT coalesce(array_agg(name), '{}') AS queues
FROM :"schema".queue WHERE paused_at IS NULL \gset
SELECT :"schema".pause(name) FROM unnest(:'queues'::text[]) AS name;
DO $$
DECLARE n bigint := 1;
BEGIN
    FOR i IN 1 .. 100 LOOP
        EXECUTE format('SELECT count(*) FROM %s.job WHERE state = ''x''',
                       current_setting('move.schema')) INTO n;
        EXIT WHEN n = 0;
        PERFORM pg_sleep(0.1);
    END LOOP;
END $$;

-- By replication: all tables are copied, while producers go on.
\if :by_dump
\set ready 1
\else
SELECT format('CREATE PUBLICATION %I FOR TABLE %s', :'publication',
              string_agg(c.oid::regclass::text, ', '))
FROM pg_class c WHERE c.relnamespace = current_setting('move.schema')::regnamespace
    AND c.relkind = 'r' \gexec
SELECT format('CREATE SUBSCRIPTION %I CONNECTION %L PUBLICATION %I', :'publication', :'from',
              :'publication') AS subscribe,
       format('DROP SUBSCRIPTION %I', :'publication') AS unsubscribe,
       'SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> ''r''' AS left \gset
\set ready `{ pg_dump -s --no-publications -n :'pattern' :here || echo it failed; } | psql -Xq1 -v ON_ERROR_STOP=1 :'to' >/dev/null && psql -Xqc :'subscribe' :'to' && until [ "$(psql -XqAtc :'left' :'to')" = 0 ]; do sleep 0.2; done && echo 1 || echo 0`
\endif

-- 2. A worker may hold a lock and wait for another, so the attempt is repeated.
BEGIN;
SET LOCAL lock_timeout = '500ms';
DO $$
DECLARE t text;
BEGIN
    LOOP BEGIN
        FOR t IN SELECT c.oid::regclass FROM pg_class c
            WHERE c.relnamespace = current_setting('move.schema')::regnamespace
                AND c.relkind IN ('r', 'p') ORDER BY c.oid
        LOOP EXECUTE format('LOCK TABLE ONLY %s IN EXCLUSIVE MODE', t); END LOOP;
        EXIT;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN PERFORM pg_sleep(0.1);
    END; END LOOP;
END $$;
\if :by_dump
\set copied `{ pg_dump -n :'pattern' :also :here || echo it failed; } | psql -Xq1 -v ON_ERROR_STOP=1 :'to' >/dev/null && echo 1 || echo 0`
\elif :ready
DO $$
DECLARE v_end pg_lsn := pg_current_wal_insert_lsn();
BEGIN
    WHILE NOT EXISTS (SELECT FROM pg_stat_replication r WHERE r.replay_lsn >= v_end
        AND r.application_name = current_setting('move.by')) LOOP PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
\set copied `psql -Xqc :'unsubscribe' :'to' >&2 && echo 1 || echo 0`
DROP PUBLICATION :"publication";
\else
\set copied 0
\endif

-- 3.
\if :copied
ALTER SCHEMA :"schema" RENAME TO :"moved";
COMMIT;
\else
ROLLBACK;
SELECT :"schema".resume(name) FROM unnest(:'queues'::text[]) AS name;
DO $$ BEGIN RAISE EXCEPTION 'the copy failed, and nothing was moved'; END $$;
\endif

-- 4.
\connect -reuse-previous=off :to
SELECT :"schema".renew(home => true);
SELECT :"schema".resume(name) FROM unnest(:'queues'::text[]) AS name;
\echo schema :schema works on the second server now; on the first one it is :moved
