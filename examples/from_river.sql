-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- from_river.sql -- moves the jobs that wait in River's table river_job into jobq, in one
-- transaction: each is in one of the two afterwards.
--
--     psql -X -f examples/from_river.sql "dbname=app"
--
-- with -v river=SCHEMA and -v schema=NAME, if they are not public and jobq. First let
-- producers enqueue in jobq. River's clients may go on: jobs that they run are left to them.
-- Run it again until it says that nothing is left. The table is that of River's migrations 4
-- to 6, which is today's.
--
-- Moved   jobs that are available, scheduled, retryable or pending. In river_job they become
--         cancelled, with "jobq_id" in their metadata, and River deletes them a day later.
-- Left    running jobs; and history: completed, cancelled and discarded jobs.
--
--   queue, kind           the same. Names consist of letters, digits, and . _ - between them;
--                         if yours have others, nothing is moved: then replace these below
--   args, scheduled_at    payload, run_at
--   priority              1 to 4 become 0 to 3
--   attempt, max_attempts as many attempts as are left, but at least one
--   id, tags, metadata    headers: {"river_id": 7, "tags": ["a"], "metadata": {"b": 1}}
--   errors                stay in river_job
--   unique_key            is River's own. In jobq a producer names the key that it means, so
--                         what was moved does not keep it from enqueueing the same once more
--
-- Periodic jobs are in the configuration of River's client: make each a schedule.

\set ON_ERROR_STOP on
\set QUIET on
\if :{?river} \else \set river public \endif
\if :{?schema} \else \set schema jobq \endif

BEGIN;
SET LOCAL lock_timeout = '1min';
LOCK TABLE :"river".river_job IN SHARE ROW EXCLUSIVE MODE;

WITH made AS (
    SELECT r.id, e.id AS job_id
    FROM (SELECT * FROM :"river".river_job
          WHERE state IN ('available', 'scheduled', 'retryable', 'pending')
          ORDER BY priority, scheduled_at, id) r
    CROSS JOIN LATERAL :"schema".enqueue_or_get(
        r.queue, r.kind, r.args, run_at => r.scheduled_at, priority => r.priority - 1,
        max_attempts => greatest(r.max_attempts - r.attempt, 1),
        key => 'river-' || r.id, headers => jsonb_strip_nulls(jsonb_build_object(
            'river_id', r.id, 'tags', nullif(to_jsonb(r.tags), '[]'),
            'metadata', nullif(r.metadata, '{}')))) e
), moved AS (
    UPDATE :"river".river_job r
    SET state = 'cancelled', finalized_at = now(),
        metadata = r.metadata || jsonb_build_object('jobq_id', made.job_id)
    FROM made WHERE r.id = made.id RETURNING r.id
)
SELECT (SELECT count(*) FROM moved) AS moved,
       (SELECT count(*) FROM :"river".river_job WHERE state = 'running') AS left \gset
COMMIT;

\echo moved :moved, left :left
