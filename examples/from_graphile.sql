-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- from_graphile.sql -- moves the jobs that wait in graphile-worker's tables into jobq, in one
-- transaction: each is in one of the two afterwards.
--
--     psql -X -v queue=mail -f examples/from_graphile.sql "dbname=app"
--
-- with -v graphile=SCHEMA and -v schema=NAME, if they are not graphile_worker and jobq. First
-- let producers enqueue in jobq. The workers may go on: jobs that they have locked are left to
-- them, so run this again until it says that nothing is left. The tables are those of 0.16 and
-- later. Run it as their owner: they have row level security.
--
-- Moved   jobs that have attempts left, unless a worker has locked them, or their queue_name.
--         After 4 hours graphile-worker itself gives up on a lock. Their rows are deleted.
-- Left    locked jobs; jobs that have failed for good; and a job whose key a job of jobq has.
--
--   (nothing)             queue: the one that you name. graphile-worker has no such queues
--   task                  kind. Its name consists of letters, digits, and . _ - between them;
--                         if yours have others, nothing is moved: then replace these below
--   queue_name            line, of which one job runs at a time
--   payload, run_at, key  the same; without a key it is graphile-7, after the job's id
--   priority              the same, but at least -9 and at most 9
--   attempts, max_attempts  as many attempts as are left
--   id, flags, last_error headers: {"graphile_id": 7, "flags": {"a": true}, "last_error": ""}
--
-- The crontab stays where it is: make each of its lines a schedule.

\set ON_ERROR_STOP on
\set QUIET on
\if :{?graphile} \else \set graphile graphile_worker \endif
\if :{?schema} \else \set schema jobq \endif

BEGIN;
SET LOCAL lock_timeout = '1min';
LOCK TABLE :"graphile"._private_jobs IN SHARE ROW EXCLUSIVE MODE;

WITH made AS (
    SELECT j.id, j.line, e.existed
    FROM (SELECT j.*, t.identifier AS kind, q.queue_name AS line
          FROM :"graphile"._private_jobs j
          JOIN :"graphile"._private_tasks t ON t.id = j.task_id
          LEFT JOIN :"graphile"._private_job_queues q ON q.id = j.job_queue_id
          WHERE j.attempts < j.max_attempts
            AND (j.locked_at < now() - interval '4 hours') IS NOT FALSE
            AND (q.locked_at < now() - interval '4 hours') IS NOT FALSE
          ORDER BY j.priority, j.run_at, j.id) j
    CROSS JOIN LATERAL :"schema".enqueue_or_get(
        :'queue', j.kind, j.payload::jsonb, run_at => j.run_at, line => j.line,
        priority => greatest(least(j.priority, 9), -9),
        max_attempts => j.max_attempts - j.attempts,
        key => coalesce(j.key, 'graphile-' || j.id),
        headers => jsonb_strip_nulls(jsonb_build_object(
            'graphile_id', j.id, 'flags', j.flags, 'last_error', j.last_error))) e
), moved AS (
    DELETE FROM :"graphile"._private_jobs j USING made
    WHERE j.id = made.id AND NOT made.existed RETURNING j.id
), lines AS (
    SELECT l.line, :"schema".line_set(:'queue', l.line, running_max => 1)
    FROM (SELECT DISTINCT line FROM made WHERE line IS NOT NULL) l
)
SELECT (SELECT count(*) FROM moved) AS moved,
       (SELECT count(*) FROM made WHERE existed) AS known,
       (SELECT count(*) FROM lines) AS lines,
       (SELECT count(*) FROM :"graphile"._private_jobs
        WHERE locked_at >= now() - interval '4 hours') AS left \gset
COMMIT;

\echo moved :moved, left :left, with a key that is known :known
