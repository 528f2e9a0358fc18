-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq: installs the schema jobq, or brings it up to date, by psql:
--
--     psql -f sql/install.sql "dbname=app"
--
-- Run it as the owner of the schema, as often as you like. It is one transaction, so it leaves
-- all of this version or nothing. jobq_pg_migrate does the same for a schema of any name: in
-- these files the word jobq on its own is the schema's name.
--
-- Tables change, functions are replaced. NNN_*.sql are migrations: each is applied once and is
-- never edited after its release. The other files are the current text of all functions and
-- views, and each version installs them whole. CREATE OR REPLACE keeps the grants and comments
-- of what it replaces, and no session has to stop.
--
-- Until 1.0 is released, tables are changed where they are, in 001_tables.sql, and the version
-- stays 12. From then on, to change a table, an index, a sequence or a row type (CREATE TYPE):
--   1. Raise the version in version.sql, say to 13, if the one there has been released.
--   2. Write 013_what.sql and enter it below. It only adds, because older programs work on.
--   3. A new column has a DEFAULT or may be NULL, because older programs do not name it.
--   4. Call no function of jobq there: the text installed then may be older or newer.
--   5. Remove what older programs still use only when library_min has passed them.
--
-- To change a function or a view:
--   1. Edit it where it is. Raise the version in version.sql if that one has been released.
--   2. Keep the names, types and order of its arguments, and its result columns. A view may
--      get more columns at its end. (After 1.0.)
--   3. For another signature or result write a new function. The old one moves to version.sql,
--      "for older libraries", until library_min has passed the last one that calls it.
--   4. Name the columns that you SELECT and INSERT, since a later migration may add some.
--   5. Run `make embed`, `make fingerprint`, `make verify`, and the test programs deploy and
--      pairs.

\set ON_ERROR_STOP on
\set QUIET on

-- Whatever the database's defaults are. What is set is the same as in jobq_pg_migrate.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;

SET LOCAL client_min_messages = warning;
SET LOCAL standard_conforming_strings = on;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL quote_all_identifiers = off; -- else the functions' own settings have quotes
SET LOCAL jit = off;
SET LOCAL citus.enable_ddl_propagation = off; -- elsewhere a name without a meaning

-- jobq_pg_migrate takes the same lock for a schema of this name.
SELECT pg_advisory_xact_lock(29958816140483506) AS lock \gset

-- On Citus. In a distributed schema this would replace the functions of the coordinator only,
-- so it is refused, as by jobq_pg_migrate.
SELECT to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL AS citus \gset
\if :citus
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_dist_partition p WHERE p.colocationid > 0
               AND p.logicalrelid = to_regclass('jobq.job')) THEN
        RAISE EXCEPTION 'schema jobq is distributed by Citus' USING ERRCODE = '55000',
            HINT = 'Call jobq.citus_undistribute(), install, and distribute it again.';
    END IF;
END $$;
\endif

SELECT to_regclass('jobq.meta') IS NULL AS new \gset
\if :new
\ir 001_tables.sql
\endif

DO $$ BEGIN
    IF (SELECT m.version FROM jobq.meta m) < 12 THEN
        RAISE EXCEPTION 'schema jobq is at version %, which was never released: it cannot be '
            'upgraded', (SELECT m.version FROM jobq.meta m)
            USING ERRCODE = '55000', HINT = 'Carry its work into a new schema: see '
                'examples/carry.sql.';
    END IF;
END $$;

-- The next migration goes here:
-- SELECT version < 13 AS lacks_13 FROM jobq.meta \gset
-- \if :lacks_13
-- \ir 013_what.sql
-- \endif

-- In the order of a job's life. What not everybody needs is in optional/, and installed, too.
\ir version.sql
\ir names.sql
\ir enqueue.sql
\ir claim.sql
\ir end.sql
\ir lines.sql
\ir permits.sql
\ir workers.sql
\ir house.sql
\ir outbox.sql
\ir topics.sql
\ir flows.sql
\ir steps.sql
\ir waits.sql
\ir progress.sql
\ir calendar.sql
\ir schedules.sql
\ir views.sql
\ir counts.sql
\ir explain.sql
\ir doctor.sql
\ir operators.sql
\ir policy.sql
\ir optional/protocol.sql
\ir optional/metrics.sql
\ir optional/export.sql
\ir optional/erase.sql
\ir optional/citus.sql
-- The last ones, because they secure and describe all before them.
\ir roles.sql
\ir reference.sql
\ir comments.sql

COMMIT;
