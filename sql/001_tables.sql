-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, the first migration: all tables, sequences, indexes and row types, by subject.
--
-- There is one hot table that stays small (job), three rings of history parts that are only
-- appended to and emptied by TRUNCATE, a small table of failed jobs, and small tables around
-- them. Nothing refers to another schema, there are no triggers, and every table has a primary
-- key, so a schema can be placed on one node of a cluster.

-- Instants are of this database's clock, which may run back. A lease, or what else a program
-- has set for some time, lasts only while the clock is BETWEEN the instant at which it was
-- written and its end: a clock that shows less than the former has run back. Otherwise a dead
-- worker's jobs would be held for as long as the clock ran back. Here is every column that is
-- an instant. tests/tools/instants.awk checks that, and that nothing compares an end alone.
--   lasts from ... to  worker.beat_at worker.expires_at,
--                      partition.beat_at partition.lease_until, partition.run_at,
--                      dead_letter.taken_at dead_letter.deadline,
--                      queue.held_at queue.hold_until, line.held_at line.hold_until
--   now at the latest  partition.mark_at, and rates: quota.free_at, line.free_at
--   as was wanted      by a person or a program; it waits until the clock is there:
--                      job.run_at, job.expires_at, failed.run_at, history.run_at,
--                      signal_wait.until, schedule.next_at, schedule.tick_at,
--                      schedule.starts_at, schedule.ends_at
--   age                what it tells of is kept longer, by as much as the clock ran back:
--                      worker.dead_at, claim.claimed_at, failed.finished_at,
--                      idempotency.ended_at, ring.since, line.used_at, waiter.since,
--                      flow.ended_at, signal.at, dead_letter.failed_at
--   record             for people, or only whether it is there: queue.paused_at,
--                      queue.created_at, kind.parked_at, kind.paused_at,
--                      worker.registered_at, job.enqueued_at, job.claimed_at,
--                      job.cancel_requested_at, failed.enqueued_at, failed.claimed_at,
--                      history.enqueued_at, history.claimed_at, history.finished_at,
--                      line.paused_at, flow.created_at, flow.cancelled_at,
--                      schedule_owner.declared_at, schedule.last_at, schedule.skipped_at,
--                      schedule.paused_at, subscription.created_at, message.created_at,
--                      dead_letter.created_at, dead_letter.completed_at, operation.at

-- The order of locks. Whoever waits for several rows takes them in this order, so that no two
-- calls wait for each other:
--   1  programs that declare schedules or subscriptions, schedules by name
--   2  flows, by id
--   3  jobs, live and failed, by id; then the row of a running job's claim
--   4  kinds that are created, by name
--   5  keys, by key
--   6  queues, by name; whoever changes payload_max, which the kinds copy, takes the queue's
--      row first of all
--   7  rings
--   8  lines
--   9  the advisory lock of a queue's quotas, quotas, permits
--  10  kinds that are changed
-- All other rows come last. In a transaction of several calls that order is the caller's: name
-- the jobs that others wait for first, and then enqueue with keys. Where two such transactions
-- wait for each other Postgres ends one (40P01); try that one again.
-- A person may keep a transaction open, and a worker's statements go over one connection, one
-- after the other, the heartbeat among them. So these wait for no lock that a verb of
-- operators.sql, or an enqueue, may hold: they leave out what is locked (SKIP LOCKED), or give
-- up after 50 ms, and look again later. test_pg_locks has every verb.

-- A role that may not create schemas can own one that was created for it.
DO $$ BEGIN
    IF to_regnamespace('jobq') IS NULL THEN CREATE SCHEMA jobq; END IF;
END $$;

-- What the schema is: one row.
--   version      of the schema, see version.sql
--   library_min  the version of the oldest library that may still work on it
--   epoch        random, renewed after a restore
--   home         the database whose jobs and schedules run: see jobq._here
CREATE TABLE jobq.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,
    library_min integer NOT NULL,
    epoch bigint NOT NULL,
    home text
);

-- Versions below 12 were never released. migrate refuses them, and so does install.sql.
INSERT INTO jobq.meta (version, library_min, epoch)
VALUES (12, 12, ('x' || left(md5(gen_random_uuid()::text), 16))::bit(64)::bigint);

-- ---- queues, kinds and their limits --------------------------------------------------------

-- The queues. The policy is stored here, so every process, every rescuer and SQL see the
-- same. Times are in microseconds.
--   stages_max    the largest number of stages that any of its jobs was given, and
--   priority_min  the smallest priority, if below 0: they bound the lanes that claims list
--   retention     the class of history that its ended jobs go to, if history is true
--   failed_keep   how long failed jobs stay; key_keep: keys, after the end of their jobs
--   payload_max   bytes of a job's payload, and of its headers
--   partitions    of its outbox, 0: it has none; message_max: bytes of a message
--   topic         it has no partitions and takes messages: only copies are written
--   readers       subscriptions that lead from it, or more: only 0 is exact
--   paused_at     nothing of it is claimed
--   hold_until    nothing of it is claimed before this instant; held_at: since when, if a
--                 handler holds it, not a person; hold_why: the reason, for people
--   ageing        every 16th claim lists its lanes by age: no priority starves
--   lines         some of its jobs have had one
--   line_*        what its lines have by default; NULL: no limit. line_waiting_max: an enqueue
--                 into a line in which this many jobs stand is refused
--   awaited       somebody has waited for one of its jobs, so their ends look for waiters
CREATE TABLE jobq.queue (
    id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
        CHECK (length(name) <= 1024 AND name ~ '^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$'),
    max_attempts integer NOT NULL DEFAULT 20 CHECK (max_attempts >= 1),
    max_crashes integer NOT NULL DEFAULT 3 CHECK (max_crashes >= 1),
    snoozes_max integer CHECK (snoozes_max >= 1),
    backoff_curve text NOT NULL DEFAULT 'exponential'
        CHECK (backoff_curve IN ('exponential', 'linear', 'quartic', 'constant')),
    backoff_base_us bigint NOT NULL DEFAULT 5000000 CHECK (backoff_base_us >= 1),
    backoff_cap_us bigint NOT NULL DEFAULT 3600000000
        CHECK (backoff_cap_us >= backoff_base_us),
    backoff_floor_us bigint NOT NULL DEFAULT 0
        CHECK (backoff_floor_us BETWEEN 0 AND backoff_cap_us),
    backoff_jitter_permille integer NOT NULL DEFAULT 250
        CHECK (backoff_jitter_permille BETWEEN 0 AND 1000),
    timeout_us bigint CHECK (timeout_us > 0),
    stages_max smallint NOT NULL DEFAULT 1 CHECK (stages_max BETWEEN 1 AND 16),
    priority_min smallint NOT NULL DEFAULT 0 CHECK (priority_min BETWEEN -9 AND 0),
    attempts_span_stages boolean NOT NULL DEFAULT false,
    history boolean NOT NULL DEFAULT true,
    retention text NOT NULL DEFAULT 'medium'
        CHECK (retention IN ('short', 'medium', 'long')),
    failed_keep interval NOT NULL DEFAULT '30 days' CHECK (failed_keep > '0'),
    key_keep interval NOT NULL DEFAULT '1 day' CHECK (key_keep >= '0'),
    payload_max integer NOT NULL DEFAULT 1048576 CHECK (payload_max >= 0),
    partitions smallint NOT NULL DEFAULT 0 CHECK (partitions >= 0),
    topic boolean NOT NULL DEFAULT false,
    readers integer NOT NULL DEFAULT 0,
    message_max integer NOT NULL DEFAULT 65536 CHECK (message_max >= 0),
    paused_at timestamptz,
    hold_until timestamptz,
    held_at timestamptz NOT NULL DEFAULT '-infinity',
    hold_why text,
    ageing boolean NOT NULL DEFAULT false,
    lines boolean NOT NULL DEFAULT false,
    line_running_max integer CHECK (line_running_max >= 1),
    line_strict boolean NOT NULL DEFAULT false,
    line_rate_count integer CHECK (line_rate_count >= 1),
    line_rate_us bigint CHECK (line_rate_us >= 1),
    line_rate_burst integer CHECK (line_rate_burst >= 1),
    line_waiting_max integer CHECK (line_waiting_max >= 1),
    awaited boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (id, name, payload_max) -- for jobq.kind's foreign key
);

-- A kind names the handler; kinds belong to a queue. parked_at: some of its jobs wait, with
-- run_at infinity, for a worker that has a handler for it. paused_at: nobody claims its jobs.
-- max_attempts to retention: where its policy differs from its queue's; NULL: as the queue.
-- timeout_us and snoozes_max 0: none, whatever the queue has.
-- queue and payload_max are copies of the queue's columns, which the foreign key keeps up to
-- date, so an enqueue finds all that it needs in one row. Reading two tables cost 8 % of an
-- enqueue.
CREATE TABLE jobq.kind (
    id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    queue_id integer NOT NULL,
    queue text COLLATE "C" NOT NULL,
    payload_max integer NOT NULL,
    name text COLLATE "C" NOT NULL
        CHECK (length(name) <= 1024 AND name ~ '^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$'),
    parked_at timestamptz,
    paused_at timestamptz,
    max_attempts integer CHECK (max_attempts >= 1),
    snoozes_max integer CHECK (snoozes_max >= 0),
    backoff_curve text
        CHECK (backoff_curve IN ('exponential', 'linear', 'quartic', 'constant')),
    backoff_base_us bigint CHECK (backoff_base_us >= 1),
    backoff_cap_us bigint CHECK (backoff_cap_us >= backoff_base_us),
    backoff_floor_us bigint CHECK (backoff_floor_us BETWEEN 0 AND backoff_cap_us),
    backoff_jitter_permille integer CHECK (backoff_jitter_permille BETWEEN 0 AND 1000),
    timeout_us bigint CHECK (timeout_us >= 0),
    history boolean,
    retention text CHECK (retention IN ('short', 'medium', 'long')),
    CHECK (num_nulls(backoff_curve, backoff_base_us, backoff_cap_us, backoff_floor_us,
                     backoff_jitter_permille) IN (0, 5)),
    UNIQUE (queue_id, name),
    UNIQUE (queue, name),
    FOREIGN KEY (queue_id, queue, payload_max) REFERENCES jobq.queue (id, name, payload_max)
        ON UPDATE CASCADE ON DELETE CASCADE
);

-- A limit of a whole queue, or of a kind, over all workers. Workers exchange shares of it with
-- their heartbeats, so it costs no job anything.
--   running_max  jobs that may run at once
--   rate_*       as in the table line
--   free_at      of the rate: see jobq.tokens
CREATE TABLE jobq.quota (
    id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    queue_id integer NOT NULL REFERENCES jobq.queue ON DELETE CASCADE,
    kind_id integer REFERENCES jobq.kind ON DELETE CASCADE,
    free_at timestamptz NOT NULL DEFAULT '-infinity',
    rate_us bigint CHECK (rate_us >= 1),
    rate_count integer CHECK (rate_count >= 1),
    rate_burst integer CHECK (rate_burst >= 1),
    running_max integer CHECK (running_max >= 1)
) WITH (fillfactor = 50);

-- One limit for a queue, and one for each of its kinds.
CREATE UNIQUE INDEX quota_of ON jobq.quota (queue_id, coalesce(kind_id, 0));

-- The share of a quota that a worker has. A dead worker's row goes when its last job has been
-- given back.
--   number  of the worker's latest exchange, by its own count: one that arrives late changes
--           nothing. 0: it served the queue before there was the quota, and has not yet told
--           how many jobs it runs
--   held    how many of its jobs may run at once
--   wanted  how many it could run
--   tokens  that it has got and not spent, as far as it has told
CREATE TABLE jobq.permit (
    quota_id integer NOT NULL REFERENCES jobq.quota ON DELETE CASCADE,
    worker bigint NOT NULL,
    number bigint NOT NULL DEFAULT 0,
    held integer NOT NULL DEFAULT 0 CHECK (held >= 0),
    wanted integer NOT NULL DEFAULT 0 CHECK (wanted >= 0),
    tokens integer NOT NULL DEFAULT 0 CHECK (tokens >= 0),
    PRIMARY KEY (quota_id, worker)
) WITH (fillfactor = 50);

-- ---- workers -------------------------------------------------------------------------------

-- A registered process. Its lease ends at expires_at by this database's clock. beat counts
-- heartbeats, so that a rescuer can see by a clock of its own that they have stopped. library:
-- the version of the schema that the worker's library was written for; 0: it is a worker in
-- SQL. The row of a dead worker stays for a day.
CREATE TABLE jobq.worker (
    id bigint PRIMARY KEY CHECK (id <> 0),
    name text NOT NULL,
    host text,
    pid integer,
    beat bigint NOT NULL DEFAULT 0,
    lease_us bigint NOT NULL CHECK (lease_us > 0),
    registered_at timestamptz NOT NULL DEFAULT now(),
    beat_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    expires_at timestamptz NOT NULL,
    dead_at timestamptz,
    queues integer[] NOT NULL,
    kinds integer[] NOT NULL,
    library integer NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Which workers have a kind. A heartbeat changes none of its columns, so it stays HOT.
CREATE INDEX worker_kinds ON jobq.worker USING gin (kinds) WITH (fastupdate = off)
    WHERE dead_at IS NULL;

-- One row for each batch that a worker claimed, written by the claiming statement. The jobs of
-- a dead worker are found here, without an index on the job's state. A claim whose answer was
-- lost is read again here. cancel: jobs of this claim whose cancel was requested. progress:
-- how far its running jobs are, as an object by job id, of arrays [permille, note, time]; the
-- worker's heartbeat writes it, and what it says of jobs that have ended counts no more. The
-- row is removed some time after all its jobs have settled.
CREATE TABLE jobq.claim (
    worker bigint NOT NULL,
    number bigint NOT NULL CHECK (number > 0),
    claimed_at timestamptz NOT NULL,
    jobs bigint[] NOT NULL,
    cancel bigint[],
    progress jsonb,
    PRIMARY KEY (worker, number)
);

-- Do not try to compress ids: it never helps, and it cost 2.7 % of drain speed.
ALTER TABLE jobq.claim ALTER COLUMN jobs SET STORAGE EXTERNAL;

-- Workers that are asleep, by queue: the ones that an enqueue must wake. Usually empty or
-- tiny.
CREATE TABLE jobq.sleeper (
    queue_id integer NOT NULL,
    worker bigint NOT NULL,
    PRIMARY KEY (queue_id, worker)
);

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

-- ---- jobs ----------------------------------------------------------------------------------

-- CACHE 1, so that ids are given out in the order in which jobs are enqueued.
CREATE SEQUENCE jobq.job_id CACHE 1;

-- The hot table: jobs that are ready or running. Columns that are never NULL come first, 48
-- bytes of them, and wide ones before narrow ones, so no row is padded. Postgres finds a
-- column after a NULL only by walking the row, and a claim compares all indexed columns of the
-- old and the new row version: after the nullable ones, claim and complete cost 5 % more.
--   (worker, claim)  the lease token. The row has it exactly while the job runs: law (2) of
--                    jobq.h
--   expires_at       no attempt begins at or after it; NULL: never, as for most jobs. A claim
--                    that comes upon a late job ends it: see _claim_fresh
--   flow_id          0: no flow, but edges. NULL, as for most jobs: neither. So the end of a
--                    job shows whether there is more to do
--   line_name        the name of its line. A job may name one, such as a tenant, an account or
--                    a device, and workers take turns at the lines of a queue
--   line             the line's number, see jobq._line_no, while the job stands in its line,
--                    else NULL. A job whose time has not come stands in its lane, and so does
--                    one that was written by COPY. The claim that comes upon it there moves it
--                    into its line
--   run_at           not before; infinity: parked until a worker has its kind
--   attempt, crash   attempts in this stage, with the one that runs; deaths of workers that
--                    ran nothing else
--   snoozes          in this stage; NULL: none. That is most jobs, which pay nothing for it
--   max_attempts, timeout_us   its own limits; NULL: those of its kind or queue
--   stage, stages    the one it is in, from 0; how many it has
--   state            r ready, x running, w waiting for others. It ends in another table
--   suspect          it ran when its worker died; alone: and again, as a suspect
--   payload, bytes   JSON or bytes: one of them, or neither
--   errors           an array of failed attempts, see add_error
--   steps            what its handler need not do again: an object that has the value of each
--                    step that is done, by its name
-- fillfactor 45: the new row version that a claim writes is 24 bytes longer, for the
-- token, and fits on its own page, so it stays HOT. (At 50, 5 % did not.) That works because
-- job_lane contains no column that a claim changes.
-- Only two laws are checked here: a job outside the lanes would never be claimed, and the
-- token is the fence. Checks are parsed again for each statement: nine of them cost a single
-- enqueue 9 of its 77 microseconds. Two instead of one raised the memory of a single enqueue
-- above 128 KB, and the C library returned and fetched a page each time: 140 microseconds
-- instead of 105. The functions check the rest, and C does before a COPY.
CREATE TABLE jobq.job (
    id bigint NOT NULL DEFAULT nextval('jobq.job_id') PRIMARY KEY,
    run_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    enqueued_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    queue_id integer NOT NULL,
    kind_id integer NOT NULL,
    attempt integer NOT NULL DEFAULT 0,
    crash integer NOT NULL DEFAULT 0,
    priority smallint NOT NULL DEFAULT 0,
    stage smallint NOT NULL DEFAULT 0,
    stages smallint NOT NULL DEFAULT 1,
    state "char" NOT NULL DEFAULT 'r',
    suspect boolean NOT NULL DEFAULT false,
    worker bigint,
    claim bigint,
    claimed_at timestamptz,
    timeout_us bigint,
    cancel_requested_at timestamptz,
    line bigint,
    flow_id bigint,
    expires_at timestamptz,
    max_attempts integer,
    snoozes integer,
    alone boolean NOT NULL DEFAULT false,
    key text COLLATE "C",
    line_name text COLLATE "C",
    payload jsonb,
    bytes bytea,
    headers jsonb,
    errors jsonb,
    steps jsonb,
    CONSTRAINT job_law CHECK (
        priority BETWEEN -9 AND 9 AND stage >= 0 AND stage < stages
        AND (state = 'x') = (worker IS NOT NULL) AND (worker IS NULL) = (claim IS NULL)
    )
) WITH (fillfactor = 45, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 50000);

-- The lane index. A claim fixes queue, priority and stage by equality and reads one lane in
-- the order of (run_at, id), so it never sorts and never walks jobs that are not due. Running
-- jobs stay in it, and are few; state is left out on purpose, see above. Later stages run
-- first, so that started work is finished first. Jobs that stand in a line are not in it, so
-- whoever uses no lines pays nothing for them, and a million jobs of one line are never in
-- another one's way.
CREATE INDEX job_lane ON jobq.job (queue_id, priority, stage, run_at, id)
    WHERE NOT suspect AND line IS NULL;

-- The lines of a lane, one after the other, each with its newest job first, see line_fronts.
-- No claim changes one of these columns.
CREATE INDEX job_line ON jobq.job (queue_id, priority, stage, line, run_at DESC, id DESC)
    WHERE NOT suspect AND line IS NOT NULL;

-- Suspects have lanes of their own. A worker runs one suspect at a time, in a claim of its
-- own; it runs one that is marked alone only while it holds nothing else.
CREATE INDEX job_suspect ON jobq.job (queue_id, priority, stage, run_at, id) WHERE suspect;

-- The jobs of a flow, so that it can be cancelled, revived and shown.
CREATE INDEX job_flow ON jobq.job (flow_id) WHERE flow_id > 0;

-- What a claim answers about a job or, without an id, what it saw: see the function claim.
CREATE TYPE jobq.claimed AS (
    id bigint, run_at timestamptz, enqueued_at timestamptz, timeout_us bigint,
    queue_id integer, kind_id integer, attempt integer, crash integer, snoozes integer,
    max_attempts integer, priority smallint, stage smallint, stages smallint,
    suspect boolean, alone boolean, payload jsonb, bytes bytea, headers jsonb, due_us bigint,
    line bigint, walks bigint[], stretches bigint[], expires_us bigint, ended bigint[]
);

-- Jobs that failed for good, with their payload and their steps, until they are revived,
-- deleted or older than their queue's failed_keep.
CREATE TABLE jobq.failed (
    id bigint PRIMARY KEY,
    run_at timestamptz NOT NULL,
    enqueued_at timestamptz NOT NULL,
    claimed_at timestamptz,
    finished_at timestamptz NOT NULL,
    worker bigint,
    timeout_us bigint,
    queue_id integer NOT NULL,
    kind_id integer NOT NULL,
    attempt integer NOT NULL,
    crash integer NOT NULL,
    snoozes integer,
    max_attempts integer,
    priority smallint NOT NULL,
    stage smallint NOT NULL,
    stages smallint NOT NULL,
    key text COLLATE "C",
    payload jsonb,
    bytes bytea,
    headers jsonb,
    errors jsonb,
    line_name text COLLATE "C",
    flow_id bigint,
    steps jsonb
);

-- For retention, counts and the operators' verbs, queue by queue.
CREATE INDEX failed_finished_at ON jobq.failed (queue_id, finished_at);

-- For pages of the failed jobs of a queue or of a kind, the newest first.
CREATE INDEX failed_queue ON jobq.failed (queue_id, id);

CREATE INDEX failed_kind ON jobq.failed (kind_id, id);

-- The failed jobs of a flow, for its revive and its graph.
CREATE INDEX failed_flow ON jobq.failed (flow_id) WHERE flow_id > 0;

-- An idempotency key outlives its job by its queue's key_keep: an enqueue repeated with the
-- same key finds the first job.
CREATE TABLE jobq.idempotency (
    queue_id integer NOT NULL,
    key text COLLATE "C" NOT NULL,
    job_id bigint NOT NULL,
    ended_at timestamptz,
    PRIMARY KEY (queue_id, key)
);

-- For prune.
CREATE INDEX idempotency_ended_at ON jobq.idempotency (queue_id, ended_at)
    WHERE ended_at IS NOT NULL;

-- ---- history -------------------------------------------------------------------------------

-- The history has a ring of eight parts for each class of retention. When a ring turns, its
-- oldest part is emptied by TRUNCATE under a short lock_timeout. Deleting rows would cost as
-- much as writing them; dropping a part would wait for every reader, and make writers wait.
--   first        the number of its first part
--   slot         the part that is being written, since when
--   keep         how long a job stays at least
--   varies       used in the row of medium, which completions read: queue_set has given a
--                queue or kind another class, or a kind a history of its own, so they look at
--                the kinds
--   turns        parts are numbered as they are written: this is the number of the one that is
--                written now, and the parts turns - 7 to turns - 1 are finished
--   exported     the highest number that was exported, or was empty
--   export_wait  how long a turn waits until the part that it would empty is exported; NULL:
--                it does not wait
CREATE TABLE jobq.ring (
    retention text PRIMARY KEY CHECK (retention IN ('short', 'medium', 'long')),
    first smallint NOT NULL,
    slot smallint NOT NULL CHECK (slot BETWEEN first AND first + 7),
    since timestamptz NOT NULL DEFAULT now(),
    keep interval NOT NULL CHECK (keep > '0'),
    varies boolean NOT NULL DEFAULT false,
    turns bigint NOT NULL DEFAULT 8,
    exported bigint NOT NULL DEFAULT 0,
    export_wait interval CHECK (export_wait > '0')
);

INSERT INTO jobq.ring (retention, first, slot, keep)
VALUES ('short', 0, 0, '1 hour'), ('medium', 8, 8, '1 day'), ('long', 16, 16, '30 days');

-- Succeeded and cancelled jobs.
--   result, result_bytes  what the handler of a job that succeeded left behind: JSON or bytes,
--                         or neither. A job that has a result is kept even if its queue keeps
--                         no history
--   log                   what that handler has logged: an array of [time, level, text]. The
--                         lines of any other attempt are in its entry of errors, as "log"
CREATE TABLE jobq.history (
    slot smallint NOT NULL,
    id bigint NOT NULL,
    run_at timestamptz NOT NULL,
    enqueued_at timestamptz NOT NULL,
    claimed_at timestamptz,
    finished_at timestamptz NOT NULL,
    worker bigint,
    queue_id integer NOT NULL,
    kind_id integer NOT NULL,
    attempt integer NOT NULL,
    crash integer NOT NULL,
    priority smallint NOT NULL,
    stage smallint NOT NULL,
    stages smallint NOT NULL,
    state "char" NOT NULL CHECK (state IN ('s', 'c')),
    key text COLLATE "C",
    payload jsonb,
    bytes bytea,
    headers jsonb,
    errors jsonb,
    line_name text COLLATE "C",
    result jsonb,
    result_bytes bytea,
    log jsonb,
    flow_id bigint,
    PRIMARY KEY (id, slot)
) PARTITION BY LIST (slot);

DO $$ BEGIN
    FOR i IN 0 .. 23 LOOP
        EXECUTE format('CREATE TABLE jobq.history_%s PARTITION OF jobq.history '
                       'FOR VALUES IN (%s)', i, i);
    END LOOP;
END $$;

-- ---- lines ---------------------------------------------------------------------------------

-- What a line remembers. A claim writes the row of a line that has a limit; enqueue writes
-- none, so no producer waits for a limit. A line without limits needs no row.
--   jobs         those that hold the line: the ones that were claimed from it. One that has
--                ended, or is ready again, no longer counts, so there is nothing to give back
--                and nothing to lose. A suspect counts until it has ended.
--   free_at      its tokens: (now - free_at) / (rate_us / rate_count), at most rate_burst of
--                them. A claim moves it on.
--   hold_until, held_at   as in the table queue
--   running_max, strict, rate_count, rate_us, rate_burst   where they differ from the defaults
--                of its queue; NULL: as the queue. 0: no limit
CREATE TABLE jobq.line (
    queue_id integer NOT NULL,
    no bigint NOT NULL,
    used_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    free_at timestamptz NOT NULL DEFAULT '-infinity',
    hold_until timestamptz,
    held_at timestamptz NOT NULL DEFAULT '-infinity',
    paused_at timestamptz,
    rate_us bigint CHECK (rate_us >= 0),
    rate_count integer CHECK (rate_count >= 0),
    rate_burst integer CHECK (rate_burst >= 1),
    running_max integer CHECK (running_max >= 0),
    weight smallint NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 100),
    strict boolean,
    name text COLLATE "C" NOT NULL,
    hold_why text,
    jobs bigint[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (queue_id, no)
) WITH (fillfactor = 50);

-- For the count of lines that are held now. No claim writes hold_until.
CREATE INDEX line_held ON jobq.line (queue_id, hold_until) WHERE hold_until IS NOT NULL;

-- What a line may give in one visit.
--   room                how many jobs; 0: it is passed by
--   most                jobs that may run at once
--   limited             it gives only under the lock of its row
--   token_us, burst_us  of its rate: the time that one token takes, and a full bucket
--   jobs                those that were claimed from it and count
--   due_us              if room is 0 and the line is not paused: time until it may be claimed
--                       from. A full one says a minute, because it opens when one of its jobs
--                       ends
CREATE TYPE jobq.room AS (
    no bigint, room integer, most integer, limited boolean, strict boolean, token_us bigint,
    burst_us bigint, jobs bigint[], due_us bigint
);

-- Where a claim stands on its walk through the lines of a lane.
--   most               how many jobs it may still take
--   last               the line that the next walk begins after
--   due_us             time until the soonest line that was passed by may be claimed from
--   made               up to this number the claim makes no more rows of the table line; NULL:
--                      it has made none
--   gave               the last line that gave a job
--   more               lines may have more jobs
--   moved              queues of jobs that the claim has moved into their lines
--   rows, ids, bytes   the jobs that it has locked
--   froms              of the latest of them, the rooms by their places in the array
--   after_at, after_id it looks at no job before this one
--   low_at, low_id     no ready job of the lines that it has read is before this one
--   whole              it came round
--   ended              late jobs that it has ended: see claim
CREATE TYPE jobq.walk AS (
    queue_id integer, priority smallint, stage smallint, most integer, quantum integer,
    kinds integer[], last bigint, due_us bigint, made bigint, gave bigint, more boolean,
    moved integer[], rows tid[], ids bigint[], bytes bigint, froms integer[],
    after_at timestamptz, after_id bigint, low_at timestamptz, low_id bigint, whole boolean,
    ended bigint[]
);

-- ---- waits for the end of a job ------------------------------------------------------------

-- Who waits for the end of a job, so that whoever ends it can wake them: channel is where they
-- LISTEN. A waiter writes and removes its own rows; nobody waits for a lock here. Rows that a
-- process left behind are pruned.
CREATE TABLE jobq.waiter (
    job_id bigint NOT NULL,
    channel bigint NOT NULL,
    since timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (job_id, channel)
);

-- ---- flows, signals ------------------------------------------------------------------------

-- A flow: jobs that belong together, some of which wait for others.
--   name           for people
--   on_failure     what becomes of a job if one that it waits for fails or is cancelled:
--                  h held (it goes on waiting, so that a revive continues the flow),
--                  c cancelled, r it runs
--   open           more jobs may come even if all of today's have ended
--   message        what to write to an outbox at its first end: see batch
--   cancelled_at   its jobs are being cancelled; it takes no more
--   ended_at       all its jobs have ended; NULL again after a revive
CREATE TABLE jobq.flow (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    on_failure "char" NOT NULL CHECK (on_failure IN ('h', 'c', 'r')),
    open boolean NOT NULL,
    message jsonb,
    created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    cancelled_at timestamptz,
    ended_at timestamptz
);

-- For prune.
CREATE INDEX flow_ended_at ON jobq.flow (ended_at) WHERE ended_at IS NOT NULL;

-- How many jobs a flow has, and how many have ended. It is counted in parts, one for each
-- server process, so that two transactions never wait for each other. The sums count.
CREATE TABLE jobq.flow_part (
    flow_id bigint NOT NULL,
    part integer NOT NULL,
    jobs bigint NOT NULL DEFAULT 0,
    succeeded bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (flow_id, part)
) WITH (fillfactor = 50);

-- The jobs of a flow that have a name in it.
CREATE TABLE jobq.flow_job (
    flow_id bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    job_id bigint NOT NULL,
    PRIMARY KEY (flow_id, name)
);

-- The name of a job, when it ends or is shown.
CREATE INDEX flow_job_id ON jobq.flow_job (job_id);

-- The job child waits (state w) for the job parent; parent < 0: for the end of a flow. The row
-- is written while parent is locked, so parent's end sees it.
--   wanted   which end of the parent lets the child run: s success, f that it fails or is
--            cancelled, e any
--   cascade  another end cancels the child; otherwise it goes on waiting
--   came     the parent's end: s, f, c; NULL while it lives
--   holds    the child cannot run because of this edge
--   flow_id  of the child, or 0; the edges of a flow stay as long as the flow
CREATE TABLE jobq.edge (
    parent bigint NOT NULL,
    child bigint NOT NULL,
    wanted "char" NOT NULL DEFAULT 'e',
    cascade boolean NOT NULL DEFAULT false,
    came "char",
    holds boolean NOT NULL DEFAULT true,
    flow_id bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (parent, child)
);

-- What a child still waits for.
CREATE INDEX edge_child ON jobq.edge (child, holds);

-- What waits without end, unless somebody revives the parent or cancels the child.
CREATE INDEX edge_held ON jobq.edge (flow_id, child)
    WHERE holds AND came IS NOT NULL AND NOT cascade;

-- The edges of a flow, which go with it.
CREATE INDEX edge_flow ON jobq.edge (flow_id) WHERE flow_id > 0;

-- Waiting jobs to look at: one of those that they wait for has ended. job_id < 0: a flow, some
-- of whose jobs have ended. The end of a job only adds rows here, so it waits for nobody; the
-- look comes afterwards, with a snapshot of its own. by: the transaction that wrote the row.
-- It does not see what others that run beside it have ended, so it leaves the row to a later
-- one. cancel: the job cannot run any more. signal: job_id is 0, and the jobs to look at are
-- those that wait for this signal.
CREATE TABLE jobq.nudge (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id bigint NOT NULL,
    by xid8 NOT NULL DEFAULT pg_current_xact_id(),
    cancel boolean NOT NULL DEFAULT false,
    signal text
);

-- Signals that were sent. The first with its name counts. A week later it is forgotten,
-- unless a job still waits for it.
CREATE TABLE jobq.signal (
    name text COLLATE "C" PRIMARY KEY,
    payload jsonb,
    at timestamptz NOT NULL
);

-- For prune.
CREATE INDEX signal_at ON jobq.signal (at);

-- Jobs that wait for a signal, until a time. Such a job is ready, but not due before that
-- time; the signal makes it due.
CREATE TABLE jobq.signal_wait (
    job_id bigint PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    until timestamptz NOT NULL
);

-- Who waits for a signal that was sent.
CREATE INDEX signal_wait_name ON jobq.signal_wait (name);

-- ---- schedules -----------------------------------------------------------------------------

-- When a periodic job runs, as sets of bits: bit n of minutes is minute n. days: bits 1 to 31,
-- and bit 0 for the last day of the month. months: bits 1 to 12. weekdays: bits 0 (Sunday) to
-- 6. flags: 1 the minute or the hour begins with `*`, so that the schedule follows elapsed
-- time when the clocks change; 2 the day, or 4 the weekday, begins with `*`, so that a date
-- must match both fields, and not only one of them. jobq_cron in jobq.h holds the same bits.
CREATE TYPE jobq.cron AS (
    seconds bigint, minutes bigint, hours integer, days bigint, months integer,
    weekdays integer, flags integer
);

-- Programs that declare schedules or subscriptions. A lower revision than the one here changes
-- nothing, so in a rolling deploy the newer program wins, whichever starts last.
CREATE TABLE jobq.schedule_owner (
    name text COLLATE "C" PRIMARY KEY,
    revision bigint NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT now()
);

-- One row for each schedule. A tick is an instant at which it is to fire; a fire writes a job
-- or a message.
--   cron, every_us  one of the two; parsed: cron as bit sets.
--   tick_at         the next tick; NULL: there is none. It is both plan and proof: whoever
--                   fires holds the row's lock, and moves tick_at in the transaction that
--                   writes the job.
--   next_at         when to fire it: tick_at plus offset_us, which spreads many schedules with
--                   one calendar; later after a fire that failed.
--   missed_us       a tick that is later than this is not fired; NULL: it always is.
--   last_at         the last tick that fired. last_id: the job or message that it wrote.
--   partition       set: it writes messages, into this partition of the queue's outbox, and
--                   kind_id is NULL.
--   expires_us      its jobs end unrun if they have not begun this long after their tick
--   skipped_at      the last tick that overlap, or expires_us, left out. error: why the last
--                   fire failed.
CREATE TABLE jobq.schedule (
    id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    queue_id integer NOT NULL REFERENCES jobq.queue ON DELETE CASCADE,
    kind_id integer REFERENCES jobq.kind ON DELETE CASCADE,
    next_at timestamptz,
    tick_at timestamptz,
    every_us bigint CHECK (every_us >= 1000000),
    offset_us bigint NOT NULL DEFAULT 0 CHECK (offset_us >= 0),
    missed_us bigint CHECK (missed_us >= 0),
    timeout_us bigint CHECK (timeout_us > 0),
    expires_us bigint CHECK (expires_us > 0),
    last_at timestamptz,
    last_id bigint,
    skipped_at timestamptz,
    paused_at timestamptz,
    starts_at timestamptz,
    ends_at timestamptz,
    max_attempts integer CHECK (max_attempts >= 1),
    priority smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN -9 AND 9),
    partition smallint,
    name text COLLATE "C" NOT NULL UNIQUE,
    owner text COLLATE "C",
    zone text NOT NULL DEFAULT 'UTC',
    missed text NOT NULL DEFAULT 'last' CHECK (missed IN ('last', 'skip', 'all')),
    overlap text NOT NULL DEFAULT 'allow'
        CHECK (overlap IN ('allow', 'skip', 'wait', 'cancel')),
    cron text,
    parsed jobq.cron,
    type text,
    error text,
    payload jsonb,
    bytes bytea,
    headers jsonb,
    CHECK (num_nonnulls(cron, every_us) = 1 AND (cron IS NULL) = (parsed IS NULL)),
    CHECK (num_nonnulls(kind_id, partition) = 1),
    CHECK ((tick_at IS NULL) = (next_at IS NULL))
) WITH (fillfactor = 70);

-- What is due, and when the next one is. A worker looks only at its queues.
CREATE INDEX schedule_next ON jobq.schedule (queue_id, next_at)
    WHERE next_at IS NOT NULL AND paused_at IS NULL;

-- ---- the outbox ----------------------------------------------------------------------------

CREATE SEQUENCE jobq.message_id CACHE 1;

-- Messages that are committed and not acknowledged. Usually nearly empty. Looks begin at id 0,
-- so a role that inserts by itself must not write a smaller id.
CREATE TABLE jobq.message (
    partition_id bigint NOT NULL,
    id bigint NOT NULL DEFAULT nextval('jobq.message_id'),
    created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    type text COLLATE "C",
    payload jsonb,
    bytes bytea,
    headers jsonb,
    PRIMARY KEY (partition_id, id),
    CONSTRAINT message_law CHECK (id > 0 AND (payload IS NULL OR bytes IS NULL))
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 50000);

-- The row that the holder of a partition writes.
--   acked       every number up to this one is done.
--   tried[i]    the highest number above acked that was delivered at least i times. It never
--               grows along the array, so the attempts of message s are the number of elements
--               >= s.
--   reading     where the delivery now in flight ends, 0 when there is none.
--   (worker, claim) is the lease token. beat counts every write, for workers that watch
--               whether the holder still moves. beat_at: when it last did.
--   failures, effective, successes: PartitionMode (effective 0: Normal).
--   run_at      no messages are handed out before this time.
--   numbered    the last number given. ids, ascending, are the messages with the numbers
--               base + 1 to numbered.
--   reached     the highest id that was ever numbered.
--   settled, swept*, mark*: up to which id message is known to hold nothing without a number,
--               see outbox_number.
--
-- Checks are parsed anew for each statement. Everything that could be checked here cost a
-- read, and an acknowledgement, 40 microseconds each. Only the checks that keep messages from
-- being lost, or read by two workers, are left.
CREATE TABLE jobq.partition (
    id bigint PRIMARY KEY,
    queue_id integer NOT NULL,
    number smallint NOT NULL,
    acked bigint NOT NULL DEFAULT 0,
    reading bigint NOT NULL DEFAULT 0,
    beat bigint NOT NULL DEFAULT 0,
    worker bigint,
    claim bigint,
    lease_us bigint,
    lease_until timestamptz,
    beat_at timestamptz NOT NULL DEFAULT '-infinity',
    run_at timestamptz,
    failures bigint NOT NULL DEFAULT 0,
    effective bigint NOT NULL DEFAULT 0,
    successes bigint NOT NULL DEFAULT 0,
    base bigint NOT NULL DEFAULT 0,
    numbered bigint NOT NULL DEFAULT 0,
    reached bigint NOT NULL DEFAULT 0,
    settled bigint NOT NULL DEFAULT 0,
    swept bigint NOT NULL DEFAULT 0,
    swept_xid xid8 NOT NULL DEFAULT '0',
    swept_open integer NOT NULL DEFAULT 0,
    mark bigint NOT NULL DEFAULT 0,
    mark_xid xid8 NOT NULL DEFAULT '0',
    mark_at timestamptz NOT NULL DEFAULT '-infinity',
    tried bigint[] NOT NULL DEFAULT '{}',
    ids bigint[] NOT NULL DEFAULT '{}',
    error text,
    CONSTRAINT partition_law CHECK (
        acked BETWEEN base AND numbered AND (worker IS NULL) = (reading = 0)
    )
);

-- Ids do not compress. A write that keeps them leaves them where they are.
ALTER TABLE jobq.partition ALTER ids SET STORAGE EXTERNAL;

-- Messages that were given up, with all that they carried. There is one row for each message,
-- even if its burial is repeated. token, taken_at and deadline: of the replay that works on
-- it.
CREATE TABLE jobq.dead_letter (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    queue_id integer NOT NULL,
    partition_id bigint NOT NULL,
    seq bigint NOT NULL,
    created_at timestamptz NOT NULL,
    failed_at timestamptz NOT NULL,
    completed_at timestamptz,
    token bigint,
    taken_at timestamptz,
    deadline timestamptz,
    attempts integer NOT NULL CHECK (attempts >= 0),
    status text NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'reprocessing', 'resolved', 'discarded')),
    type text COLLATE "C",
    error text,
    payload jsonb,
    bytes bytea,
    headers jsonb,
    UNIQUE (partition_id, seq),
    CHECK ((status = 'reprocessing') = (token IS NOT NULL)
           AND (token IS NULL) = (deadline IS NULL)
           AND (token IS NULL) = (taken_at IS NULL)),
    CHECK ((status IN ('resolved', 'discarded')) = (completed_at IS NOT NULL))
);

-- What replay looks for, in its order.
CREATE INDEX dead_letter_open ON jobq.dead_letter (deadline NULLS FIRST, id)
    WHERE status IN ('pending', 'reprocessing');

-- For lists, newest first, and for retention.
CREATE INDEX dead_letter_failed_at ON jobq.dead_letter (status, failed_at);

-- Where messages of a queue or topic are copied to: the messages of another queue or, with a
-- kind, its jobs. There is one copy of a message in a queue, so copies keep the message's id.
--   source_id  the queue or topic that it reads
--   types      the types that it takes; one that ends with * takes all that begin like it.
--              NULL: all, and messages without a type
--   owner      the program that declares it: see schedule_owner
CREATE TABLE jobq.subscription (
    id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    source_id integer NOT NULL REFERENCES jobq.queue ON DELETE CASCADE,
    queue_id integer NOT NULL REFERENCES jobq.queue ON DELETE CASCADE,
    kind_id integer REFERENCES jobq.kind ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    name text COLLATE "C" NOT NULL UNIQUE,
    owner text COLLATE "C",
    types text[]
);

-- For the copies, in the order in which all producers write them.
CREATE UNIQUE INDEX subscription_of
    ON jobq.subscription (source_id, queue_id, coalesce(kind_id, 0));

-- What read and ack answer. answer: h: held by the caller, and the messages after acked
-- follow; i: nothing to read, and not held; o: held by another worker; w: due in wait_us; b:
-- the row is locked just now; l: the lease was lost and nothing was written; a: the next
-- message was set aside, and the partition is not held.
-- tried: before the delivery that follows. lost: where the delivery ended during which its
-- holder died, 0 when none did. last: the highest number given so far. worker, claim, beat:
-- the holder's, to be watched; wait_us is then how long to watch, its lease. cut: there are
-- more messages, but these already have as many bytes as were asked for.
CREATE TYPE jobq.delivery AS (
    answer "char", acked bigint, last bigint, tried bigint[], lost bigint, worker bigint,
    claim bigint, beat bigint, wait_us bigint, failures bigint, effective bigint,
    successes bigint, error text, created_ats timestamptz[], types text[], payloads jsonb[],
    bytes bytea[], headers jsonb[], cut boolean
);

-- ---- operators and roles -------------------------------------------------------------------

-- A row for each call of an operator's verb that changed something. Rows are only added, and
-- prune removes all but the newest 10,000.
--
-- at           when
-- role         who had logged in, whatever SET ROLE said since
-- application  from where: application_name
-- verb         SQL's function
-- arguments    those that were given; for settings, the new values. ids: one call each
-- jobs         how many it changed, or dead letters; NULL: it changed settings
CREATE TABLE jobq.operation (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    role text NOT NULL,
    application text NOT NULL,
    verb text NOT NULL,
    arguments jsonb NOT NULL,
    jobs integer
);

-- Roles that may enqueue only for somebody: into these queues, and only jobs whose line is
-- like lines (NULL: of any line, or none). outboxes: queues of messages, NULL: none.
CREATE TABLE jobq.tenant (
    role regrole PRIMARY KEY,
    queues text[] NOT NULL,
    lines text,
    outboxes text[]
);
