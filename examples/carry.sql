-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- carry.sql -- carries the work of a schema of version 11, which cannot be upgraded, or of one
-- of version 12 that is not as it was installed, into a fresh one in the same database.
--
--     psql -X -v ON_ERROR_STOP=1 -v from=jobq_old -v schema=jobq \
--         -c 'ALTER SCHEMA jobq RENAME TO jobq_old' \
--         -f sql/install.sql -f examples/carry.sql "dbname=app"
--
-- Run it as the owner of the schema, with all workers and producers stopped. Ended jobs stay
-- behind: if you need them, first write them to a file with the old program, `jobq export`.
-- install.sql knows only the name jobq. For a schema mail: rename it, install the new one by
-- `jobq --schema mail migrate`, and run this file alone with from=mail_old and schema=mail.
--
-- What happens:
--   1. The old schema gets another name, so a program that was forgotten fails.
--   2. The new schema is installed under the old name.
--   3. In one transaction, this file: checks both schemas, locks their tables against writers,
--      copies rows, moves the sequences on, so that no id is given out twice, and prints how
--      many rows it carried. A fresh schema has no rows, so a second run is refused.
--
-- Carried: queues, kinds, limits of queues, kinds and lines, jobs that have not ended, failed
-- jobs, keys, messages, partitions with their numbers, dead letters, schedules, flows,
-- subscriptions, signals, limits of roles, how long history is kept, and whether this database is a copy.
-- Changed on the way:
--   running jobs   Their workers are gone, so the new schema rescues them: they are ready,
--                  have their attempt back, and are suspects. One that already was a suspect
--                  must run alone now. One that ran alone keeps its attempt, and has crashed
--                  once more; at its limit it fails. One that was to be cancelled is.
--   partitions     Nobody holds them. Messages that were being delivered are delivered again,
--                  one at a time at first.
--   dead letters   A replay under way is over, and they are pending.
-- Not carried: history, workers, claims, counts, shares of limits, waiters, and
-- the operators' log. Nor are grants: call the functions grant_* again. The limit of a role
-- gives it no right by itself. Views of yours that read the old schema go on doing so.
--
-- If it fails, nothing was carried. Repair what it names and run this file alone. To go back:
-- DROP SCHEMA jobq CASCADE; ALTER SCHEMA jobq_old RENAME TO jobq. Drop jobq_old when you are
-- sure.

\set ON_ERROR_STOP on
\set QUIET on
\o /dev/null
\if :{?schema} \set named :{?from} \else \set named 0 \endif
\if :named \else
DO $$ BEGIN RAISE EXCEPTION 'give -v from=OLD and -v schema=NEW: see carry.sql'; END $$;
\endif

BEGIN ISOLATION LEVEL READ COMMITTED; -- so that it sees what it has waited for

-- Somebody whose transaction stays open for longer must end it first.
SET LOCAL lock_timeout = '1min';
SET LOCAL search_path = pg_catalog, pg_temp;
SELECT set_config('carry.from', quote_ident(:'from'), false),
       set_config('carry.into', quote_ident(:'schema'), false);

-- The two schemas are what they must be.
DO $$
DECLARE
    v_from text := current_setting('carry.from');
    v_into text := current_setting('carry.into');
    v_schema text;
    v_version integer;
    v_far boolean := false;
BEGIN
    FOREACH v_schema IN ARRAY ARRAY[v_from, v_into] LOOP
        IF to_regclass(v_schema || '.meta') IS NULL THEN
            RAISE EXCEPTION 'schema % is not there, or is not one of jobq', v_schema;
        END IF;
        IF to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL THEN
            EXECUTE format('SELECT EXISTS (SELECT FROM pg_dist_partition p WHERE '
                           'p.colocationid > 0 AND p.logicalrelid = %L::regclass)',
                           v_schema || '.job') INTO v_far;
        END IF;
        IF v_far THEN
            RAISE EXCEPTION 'schema % is distributed by Citus', v_schema
                USING HINT = 'Under its old name call its function citus_undistribute(), and '
                    'begin again. The new schema can be distributed afterwards.';
        END IF;
    END LOOP;
    EXECUTE format('SELECT version FROM %s.meta', v_from) INTO v_version;
    IF (v_version IN (11, 12)) IS NOT TRUE THEN
        RAISE EXCEPTION 'schema % is at version %, and only 11 and 12 are carried', v_from,
            v_version USING HINT = CASE WHEN v_version < 11 THEN format('Bring it to version '
                '11 with the program jobq of commit 25920cd: jobq --schema %s migrate', v_from)
                ELSE 'from: the old schema; schema: the new one.' END;
    END IF;
    EXECUTE format('SELECT version FROM %s.meta', v_into) INTO v_version;
    IF (v_version >= 12) IS NOT TRUE THEN
        RAISE EXCEPTION 'schema % is at version %, and nothing is carried into that', v_into,
            v_version USING HINT = 'Install a new one: psql -f sql/install.sql.';
    END IF;
END $$;

-- Nobody writes to them any more, nobody has worked in the new one, and in the old one nobody
-- works.
DO $$
DECLARE
    v_table record;
    v_rows boolean;
    v_worker record;
BEGIN
    FOR v_table IN
        SELECT c.oid::regclass AS name, c.relnamespace::regnamespace::text AS schema,
               c.relispartition OR c.relname IN ('meta', 'ring') AS left_out
        FROM pg_class c
        WHERE c.relkind IN ('r', 'p') AND c.relnamespace = ANY (ARRAY[
            current_setting('carry.from'), current_setting('carry.into')]::regnamespace[])
        ORDER BY c.oid
    LOOP
        EXECUTE format('LOCK TABLE ONLY %s IN SHARE ROW EXCLUSIVE MODE', v_table.name);
        CONTINUE WHEN v_table.left_out OR v_table.schema = current_setting('carry.from');
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', v_table.name) INTO v_rows;
        IF v_rows THEN
            RAISE EXCEPTION 'schema % is not fresh: % has rows', v_table.schema, v_table.name
                USING HINT = 'Was everything carried before? Otherwise drop it, if nothing in '
                    'it is needed, and install it again.';
        END IF;
    END LOOP;
    EXECUTE format('SELECT w.name, w.expires_at FROM %s.worker w WHERE w.dead_at IS NULL AND '
                   'clock_timestamp() BETWEEN w.beat_at AND w.expires_at '
                   'ORDER BY w.expires_at DESC LIMIT 1',
                   current_setting('carry.from')) INTO v_worker;
    IF v_worker.name IS NOT NULL THEN
        RAISE EXCEPTION 'worker % of schema % is alive', v_worker.name,
            current_setting('carry.from')
            USING HINT = format('Stop it. If it was killed, wait: its lease ends at %s.',
                                v_worker.expires_at);
    END IF;
END $$;

-- The rows, in an order that foreign keys allow: all columns that both tables have, of which a
-- few change on the way. Identity columns keep their ids.
DO $$
DECLARE
    v_from text := current_setting('carry.from');
    v_into text := current_setting('carry.into');
    v_table text;
    v_columns text;
    v_values text;
    v_count bigint;
    v_counts text := '';
BEGIN
    FOREACH v_table IN ARRAY '{queue, kind, quota, line, job, failed, idempotency, message,
        partition, dead_letter, schedule_owner, schedule, subscription, flow, flow_part,
        flow_job, edge, nudge, signal, signal_wait, tenant}'::text[]
    LOOP
        CONTINUE WHEN to_regclass(format('%s.%I', v_from, v_table)) IS NULL; -- version 11
        SELECT string_agg(quote_ident(i.attname), ', '),
               string_agg(coalesce(c.value, 'o.' || quote_ident(i.attname)), ', ')
        INTO v_columns, v_values
        FROM pg_attribute i
        JOIN pg_attribute o ON o.attname = i.attname AND o.attnum > 0 AND NOT o.attisdropped
            AND o.attrelid = format('%s.%I', v_from, v_table)::regclass
        LEFT JOIN (VALUES
            ('partition.worker', 'NULL'), ('partition.claim', 'NULL'),
            ('partition.lease_us', 'NULL'), ('partition.lease_until', 'NULL'),
            ('partition.reading', '0'),
            ('partition.effective', 'CASE WHEN o.reading > 0 THEN 1 ELSE o.effective END'),
            ('partition.successes', 'CASE WHEN o.reading > 0 THEN 0 ELSE o.successes END'),
            ('dead_letter.token', 'NULL'), ('dead_letter.taken_at', 'NULL'),
            ('dead_letter.deadline', 'NULL'),
            ('dead_letter.status', 'CASE o.status WHEN ''reprocessing'' THEN ''pending'' '
                                   'ELSE o.status END'),
            -- each schema has a row type of its own
            ('schedule.parsed', format('o.parsed::text::%s.cron', v_into))
        ) AS c (name, value) ON c.name = v_table || '.' || i.attname
        WHERE i.attnum > 0 AND NOT i.attisdropped
          AND i.attrelid = format('%s.%I', v_into, v_table)::regclass;
        EXECUTE format('INSERT INTO %s.%I (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %s.%I o',
                       v_into, v_table, v_columns, v_values, v_from, v_table);
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_counts := v_counts || format('%s %s,', v_table, v_count);
    END LOOP;
    PERFORM set_config('carry.counts', v_counts, false);
END $$;

UPDATE :"schema".ring i SET keep = o.keep, export_wait = o.export_wait, varies = o.varies
FROM :"from".ring o WHERE o.retention = i.retention;

-- In the copy of a database nothing runs until somebody calls renew, neither before nor now.
UPDATE :"schema".meta i SET home = coalesce(o.home, i.home) FROM :"from".meta o;

-- A worker whose row is not there counts as dead. Its jobs are found by their claims.
INSERT INTO :"schema".claim (worker, number, claimed_at, jobs)
SELECT j.worker, j.claim, statement_timestamp(), array_agg(j.id)
FROM :"schema".job j WHERE j.state = 'x' GROUP BY j.worker, j.claim;
SELECT coalesce(sum(r.rescued), 0) AS rescued, coalesce(sum(r.failed), 0) AS failed
FROM (SELECT DISTINCT c.worker FROM :"schema".claim c) w
CROSS JOIN LATERAL :"schema"._rescue(w.worker, 0, 2147483647) r \gset

-- Sequences go on where they were. What was drawn may be known outside, or to history only.
SELECT setval(i.oid::regclass, greatest(pg_sequence_last_value(o.oid::regclass),
                                        pg_sequence_last_value(i.oid::regclass)))
FROM pg_class i JOIN pg_class o ON o.relname = i.relname AND o.relkind = 'S'
WHERE i.relkind = 'S'
  AND i.relnamespace = current_setting('carry.into')::regnamespace
  AND o.relnamespace = current_setting('carry.from')::regnamespace;

COMMIT;

\o
\pset footer off
SELECT split_part(c, ' ', 1) AS "carried", split_part(c, ' ', 2)::bigint AS "rows"
FROM regexp_split_to_table(rtrim(current_setting('carry.counts'), ','), ',') AS c;
\echo running jobs that were put back: :rescued; that failed at their limit: :failed
\echo now grant roles their rights again, start the new programs, and later drop schema :from
