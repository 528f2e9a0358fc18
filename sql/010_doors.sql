-- jobq, version 10: export of history, limits of roles.

-- The parts of a ring are numbered as they are written: turns is the number of the one that is
-- written now, and the parts turns - 7 to turns - 1 are finished.
--   exported     the highest number that was exported, or was empty
--   export_wait  how long a turn waits until the part that it would empty is exported; NULL:
--                it does not wait
ALTER TABLE jobq.ring
    ADD turns bigint NOT NULL DEFAULT 8,
    ADD exported bigint NOT NULL DEFAULT 0,
    ADD export_wait interval CHECK (export_wait > '0');

-- Roles that may enqueue only for somebody: into these queues, and only jobs whose line is
-- like lines (NULL: of any line, or none).
CREATE TABLE jobq.tenant (
    role regrole PRIMARY KEY,
    queues text[] NOT NULL,
    lines text
);
