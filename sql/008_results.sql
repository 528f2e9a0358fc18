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
