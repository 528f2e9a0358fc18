-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- peers.sql -- tables of other queues, with the columns that these have, and work in them:
-- what examples/from_*.sql must move. test_pg_peers runs it, with -v peer=SCHEMA.
--
-- A job says by its kind what it is an example of.

\set ON_ERROR_STOP on
\set QUIET on
SET client_min_messages = warning;
CREATE SCHEMA :"peer";
SET search_path = :"peer";

-- ---- a table of one's own ------------------------------------------------------------------

CREATE TABLE task (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL,
    args jsonb NOT NULL DEFAULT '{}',
    status text NOT NULL DEFAULT 'pending',
    due_at timestamptz NOT NULL DEFAULT now(),
    tries integer NOT NULL DEFAULT 0
);

INSERT INTO task (kind, args, status, due_at, tries) VALUES
    ('new', '{"n": 1}', 'pending', '2026-01-01 00:00Z', 0),
    ('tried', '{"n": 2}', 'pending', '2026-01-02 00:00Z', 3),
    ('worn', '{"n": 3}', 'pending', '2026-01-03 00:00Z', 30),
    ('later', '{"n": 4}', 'pending', '2100-01-01 00:00Z', 0),
    ('running', '{}', 'running', '2026-01-01 00:00Z', 1),
    ('done', '{}', 'done', '2026-01-01 00:00Z', 1);

-- ---- River, whose migrations 2 to 6 make this of it ----------------------------------------

CREATE TYPE river_job_state AS ENUM ('available', 'cancelled', 'completed', 'discarded', 'pending',
                                     'retryable', 'running', 'scheduled');

CREATE TABLE river_job (
    id bigserial PRIMARY KEY,
    state river_job_state NOT NULL DEFAULT 'available',
    attempt smallint NOT NULL DEFAULT 0,
    max_attempts smallint NOT NULL CHECK (max_attempts > 0),
    attempted_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    finalized_at timestamptz,
    scheduled_at timestamptz NOT NULL DEFAULT now(),
    priority smallint NOT NULL DEFAULT 1 CHECK (priority BETWEEN 1 AND 4),
    args jsonb NOT NULL DEFAULT '{}',
    attempted_by text[],
    errors jsonb[],
    kind text NOT NULL CHECK (char_length(kind) BETWEEN 1 AND 127),
    metadata jsonb NOT NULL DEFAULT '{}',
    queue text NOT NULL DEFAULT 'default' CHECK (char_length(queue) BETWEEN 1 AND 127),
    tags varchar(255)[] NOT NULL DEFAULT '{}',
    unique_key bytea,
    unique_states bit(8),
    CHECK ((finalized_at IS NOT NULL) = (state IN ('cancelled', 'completed', 'discarded')))
);

INSERT INTO river_job (kind, state, attempt, max_attempts, scheduled_at, finalized_at, priority,
                       args, metadata, queue, tags, errors, unique_key, unique_states) VALUES
    ('new', 'available', 0, 25, '2026-01-01 00:00Z', NULL, 1, '{"n": 1}', '{}', 'default', '{}',
     NULL, NULL, NULL),
    ('retried', 'retryable', 3, 25, '2026-01-02 00:00Z', NULL, 4, '{"n": 2}', '{"a": "b"}', 'mail',
     '{x,y}', ARRAY['{"error": "no host"}'::jsonb], NULL, NULL),
    ('later', 'scheduled', 0, 25, '2100-01-01 00:00Z', NULL, 2, '{"n": 3}', '{}', 'default', '{}',
     NULL, '\x0102', B'11110101'),
    ('held', 'pending', 0, 25, '2026-01-04 00:00Z', NULL, 1, '{"n": 4}', '{}', 'default', '{}',
     NULL, NULL, NULL),
    ('worn', 'retryable', 25, 25, '2026-01-05 00:00Z', NULL, 1, '{"n": 5}', '{}', 'default', '{}',
     NULL, NULL, NULL),
    ('running', 'running', 1, 25, '2026-01-01 00:00Z', NULL, 1, '{"n": 6}', '{}', 'default', '{}',
     NULL, NULL, NULL),
    ('done', 'completed', 1, 25, '2026-01-01 00:00Z', now(), 1, '{}', '{}', 'default', '{}',
     NULL, NULL, NULL),
    ('failed', 'discarded', 25, 25, '2026-01-01 00:00Z', now(), 1, '{}', '{}', 'default', '{}',
     NULL, NULL, NULL),
    ('given_up', 'cancelled', 1, 25, '2026-01-01 00:00Z', now(), 1, '{}', '{}', 'default', '{}',
     NULL, NULL, NULL);

-- ---- graphile-worker, as of its migration 11 and later -------------------------------------

CREATE TABLE _private_job_queues (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_name text NOT NULL UNIQUE CHECK (length(queue_name) <= 128),
    locked_at timestamptz,
    locked_by text,
    is_available boolean GENERATED ALWAYS AS (locked_at IS NULL) STORED NOT NULL
);

CREATE TABLE _private_tasks (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    identifier text NOT NULL UNIQUE CHECK (length(identifier) <= 128)
);

CREATE TABLE _private_jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_queue_id integer,
    task_id integer NOT NULL,
    payload json NOT NULL DEFAULT '{}',
    priority smallint NOT NULL DEFAULT 0,
    run_at timestamptz NOT NULL DEFAULT now(),
    attempts smallint NOT NULL DEFAULT 0,
    max_attempts smallint NOT NULL DEFAULT 25 CHECK (max_attempts >= 1),
    last_error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    key text UNIQUE CHECK (length(key) BETWEEN 1 AND 512),
    locked_at timestamptz,
    locked_by text,
    revision integer NOT NULL DEFAULT 0,
    flags jsonb,
    is_available boolean GENERATED ALWAYS AS (locked_at IS NULL AND attempts < max_attempts)
        STORED NOT NULL
);

ALTER TABLE _private_job_queues ENABLE ROW LEVEL SECURITY;
ALTER TABLE _private_tasks ENABLE ROW LEVEL SECURITY;
ALTER TABLE _private_jobs ENABLE ROW LEVEL SECURITY;

INSERT INTO _private_job_queues (queue_name, locked_at, locked_by)
VALUES ('account 7', NULL, NULL), ('account 8', now(), 'worker-1');
INSERT INTO _private_tasks (identifier)
VALUES ('new'), ('tried'), ('keyed'), ('serial'), ('urgent'), ('abandoned'), ('locked'), ('failed');

INSERT INTO _private_jobs (task_id, job_queue_id, payload, priority, run_at, attempts, last_error,
                           key, locked_at, locked_by, flags)
SELECT t.id, q.id, v.payload, v.priority, v.run_at, v.attempts, v.last_error, v.key, v.locked_at,
       CASE WHEN v.locked_at IS NOT NULL THEN 'worker-1' END, v.flags
FROM (VALUES
    (1, 'new', NULL, '{"n": 1}'::json, 0, '2026-01-01 00:00Z'::timestamptz, 0, NULL, NULL,
     NULL::timestamptz, NULL::jsonb),
    (2, 'tried', NULL, '{"n": 2}', 0, '2026-01-02 00:00Z', 4, 'no host', NULL, NULL, '{"a": true}'),
    (3, 'keyed', NULL, '{"n": 3}', 5, '2100-01-01 00:00Z', 0, NULL, 'mail to ann', NULL, NULL),
    (4, 'serial', 'account 7', '[4]', 0, '2026-01-04 00:00Z', 0, NULL, NULL, NULL, NULL),
    (5, 'serial', 'account 7', '[5]', 0, '2026-01-05 00:00Z', 0, NULL, NULL, NULL, NULL),
    (6, 'serial', 'account 8', '[8]', 0, '2026-01-05 00:00Z', 1, NULL, NULL, now(), NULL),
    (7, 'serial', 'account 8', '[9]', 0, '2026-01-05 00:00Z', 0, NULL, NULL, NULL, NULL),
    (8, 'urgent', NULL, '{"n": 6}', -100, '2026-01-06 00:00Z', 0, NULL, NULL, NULL, NULL),
    (9, 'abandoned', NULL, '{"n": 7}', 0, '2026-01-07 00:00Z', 1, NULL, NULL,
     now() - interval '5 hours', NULL),
    (10, 'locked', NULL, '{"n": 8}', 0, '2026-01-08 00:00Z', 1, NULL, NULL, now(), NULL),
    (11, 'failed', NULL, '{}', 0, '2026-01-09 00:00Z', 25, 'no', NULL, NULL, NULL)
) AS v (n, task, queue, payload, priority, run_at, attempts, last_error, key, locked_at, flags)
JOIN _private_tasks t ON t.identifier = v.task
LEFT JOIN _private_job_queues q ON q.queue_name = v.queue
ORDER BY v.n;
