-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- from_table.sql -- moves the work of a table of your own, with a column for its status, into
-- jobq. An example to copy: change the names of the columns, and what their values mean.
--
--     psql -X -v table=task -f examples/from_table.sql "dbname=app"
--
-- Here it is task (id, kind, args jsonb, status, due_at, tries), and a loop in a program of
-- yours takes what is 'pending'. Afterwards each such row is 'moved', and its job is in the
-- queue named like the table, or nothing has happened. That loop may run meanwhile: it waits
-- for the end of the transaction, and then finds nothing. What it is at, 'running', is left to
-- it; run the file again until it says that nothing is left.
--
-- Give -v schema=NAME for a schema of jobq that is not called jobq.

\set ON_ERROR_STOP on
\set QUIET on
\if :{?schema} \else \set schema jobq \endif

BEGIN;
SET LOCAL lock_timeout = '1min';
LOCK TABLE :"table" IN SHARE ROW EXCLUSIVE MODE;

-- The key makes it impossible that a row becomes two jobs, even if its status is set back.
WITH made AS (
    SELECT t.id, e.id AS job_id
    FROM (SELECT * FROM :"table" WHERE status = 'pending' ORDER BY due_at, id) t
    CROSS JOIN LATERAL :"schema".enqueue_or_get(
        :'table', t.kind, t.args, run_at => t.due_at,
        max_attempts => greatest(20 - t.tries, 1), key => 'row-' || t.id) e
), moved AS (
    UPDATE :"table" t SET status = 'moved' FROM made WHERE t.id = made.id RETURNING t.id
)
SELECT (SELECT count(*) FROM moved) AS moved,
       (SELECT count(*) FROM :"table" WHERE status = 'running') AS left \gset
COMMIT;

\echo moved :moved, left :left
