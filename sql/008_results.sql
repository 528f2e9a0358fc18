-- jobq, version 8: results of jobs, waiting for them, progress, logs, metrics.

-- What the handler of a job that succeeded left behind: JSON or bytes, or neither. A job that
-- has a result is kept even if its queue keeps no history.
ALTER TABLE jobq.history ADD result jsonb, ADD result_bytes bytea;

-- Who waits for the end of a job, so that whoever ends it can wake them: channel is where they
-- LISTEN. A waiter writes and removes its own rows; nobody waits for a lock here. Rows that a
-- process left behind are pruned.
CREATE TABLE jobq.waiter (
    job_id bigint NOT NULL,
    channel bigint NOT NULL,
    since timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (job_id, channel)
);

-- awaited: somebody has waited for a job of this queue, so the end of its jobs looks for
-- waiters.
ALTER TABLE jobq.queue ADD awaited boolean NOT NULL DEFAULT false;

-- How far the running jobs of a claim are: an object by job id, of arrays [permille, note,
-- time]. The worker's heartbeat writes it. What it says of jobs that have ended counts no
-- more; it goes with the claim's row.
ALTER TABLE jobq.claim ADD progress jsonb;

-- What workers have counted of a kind, in the order of JOBQ_TALLIES in jobq.h: totals. A
-- worker that lives has rows of its own, and waits for no lock when it writes them. When it is
-- dead or gone they are added to those of worker 0.
--   kind_id  0: the rest of its queue
--   number   of the worker's latest delivery, by its own count: one that arrives late changes
--            nothing
CREATE TABLE jobq.tally (
    worker bigint NOT NULL,
    queue_id integer NOT NULL,
    kind_id integer NOT NULL,
    number bigint NOT NULL DEFAULT 0,
    counts bigint[] NOT NULL,
    PRIMARY KEY (worker, queue_id, kind_id)
) WITH (fillfactor = 50);

-- As in version 7: the text that follows defines these with more arguments.
DO $$ BEGIN
    PERFORM set_config('jobq_install.granted', concat_ws(',',
        nullif(current_setting('jobq_install.granted', true), ''), (
        SELECT string_agg(format('%s %s', p.proname, a.grantee), ',')
        FROM pg_proc p CROSS JOIN aclexplode(p.proacl) a
        WHERE p.pronamespace = 'jobq'::regnamespace AND a.grantee NOT IN (0, p.proowner))),
        true);
END $$;

DROP FUNCTION IF EXISTS jobq.heartbeat(
    bigint, bigint, bigint[], bigint, integer[], integer[], integer[], integer[], integer[],
    integer[]);

DROP FUNCTION IF EXISTS jobq.deregister(bigint);
