-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: topics. One message, several readers: a copy for each.
--
-- A subscription leads from a queue, or from a topic, to another queue: to its messages or,
-- with a kind, to its jobs. The enqueue of a message writes the copies, in the producer's
-- transaction. A copy is an ordinary message or job: what comes after knows nothing of topics,
-- and a reader that is slow, paused or dead delays no other. A copy is not copied again.
--
-- The seam is exact. Every enqueue locks the table message in ROW EXCLUSIVE mode, before it
-- reads the queue's row, until its transaction ends. A change of subscriptions locks the table
-- against that, and then writes the row of the source. So each transaction of a producer is
-- wholly before or wholly after the change, and one whose snapshot is older fails with 40001:
-- see outbox_queue.

-- ---- copies --------------------------------------------------------------------------------

-- Whether a subscription to these types takes this one.
CREATE OR REPLACE FUNCTION jobq._takes(p_types text[], p_type text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN p_types IS NULL OR EXISTS (
        SELECT FROM unnest(p_types) AS t (name)
        WHERE p_type COLLATE "C" = t.name
           OR (right(t.name, 1) = '*' AND starts_with(p_type, left(t.name, -1))));
END $$;

-- Writes the copies of messages, with their ids. Element i of every array belongs to message
-- i, as in outbox_enqueue_many. existed[i]: it has been copied before. A copy's partition is
-- chosen by the same hash or number, among those of its queue. A job has the message's id and
-- type in its headers and, if the message has an order key, is in the line of that name. What
-- is sealed with the name of the source is opened by that name: seal_from. One statement
-- writes the copies of all readers: one for each reader took three times as long.
CREATE OR REPLACE FUNCTION jobq._outbox_copy(
    p_source integer, p_ids bigint[], p_existed boolean[], p_partitions integer[],
    p_hashes integer[], p_order_keys text[], p_types text[], p_payloads jsonb[],
    p_bytes bytea[], p_headers jsonb[], p_notify boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_seal jsonb;
    v_jobs boolean;
BEGIN
    SELECT jsonb_build_object('seal_from', q.name), EXISTS (
        SELECT FROM jobq.subscription s WHERE s.source_id = q.id AND s.kind_id IS NOT NULL)
    INTO v_seal, v_jobs FROM jobq.queue q WHERE q.id = p_source;
    INSERT INTO jobq.message (partition_id, id, type, payload, bytes, headers)
    SELECT r.id::bigint * 32768 + (coalesce(u.hash, u.partition, 0) & (r.partitions - 1)),
           u.id, u.type, u.payload, u.bytes,
           CASE WHEN u.headers ? 'seal' THEN v_seal || u.headers ELSE u.headers END
    FROM jobq.subscription s JOIN jobq.queue r ON r.id = s.queue_id CROSS JOIN (
        SELECT unnest(p_ids) AS id, unnest(p_existed) AS existed,
               unnest(p_partitions) AS partition, unnest(p_hashes) AS hash,
               unnest(p_types) AS type, unnest(p_payloads) AS payload,
               unnest(p_bytes) AS bytes, unnest(p_headers) AS headers) AS u
    WHERE s.source_id = p_source AND s.kind_id IS NULL AND u.existed IS NOT TRUE
      AND (s.types IS NULL OR jobq._takes(s.types, u.type));
    IF v_jobs THEN
        INSERT INTO jobq.job (queue_id, kind_id, line, line_name, payload, bytes, headers)
        SELECT s.queue_id, s.kind_id, jobq._line_no(l.name), l.name, u.payload, u.bytes,
               CASE WHEN u.headers ? 'seal' THEN v_seal ELSE '{}' END
               || coalesce(u.headers, '{}') || jsonb_strip_nulls(jsonb_build_object(
                   'message', u.id, 'type', u.type))
        FROM jobq.subscription s CROSS JOIN (
            SELECT unnest(p_ids) AS id, unnest(p_existed) AS existed,
                   unnest(p_order_keys) AS order_key, unnest(p_types) AS type,
                   unnest(p_payloads) AS payload, unnest(p_bytes) AS bytes,
                   unnest(p_headers) AS headers) AS u
        CROSS JOIN LATERAL (
            SELECT CASE WHEN octet_length(u.order_key) BETWEEN 1 AND 1024 THEN u.order_key
                   ELSE encode(sha256(convert_to(u.order_key, 'UTF8')), 'hex') END) AS l (name)
        WHERE s.source_id = p_source AND s.kind_id IS NOT NULL AND u.existed IS NOT TRUE
          AND (s.types IS NULL OR jobq._takes(s.types, u.type))
        ORDER BY s.id, u.id; -- ids of jobs are drawn in that order
    END IF;
    IF p_notify AND EXISTS (SELECT FROM jobq.sleeper) THEN
        PERFORM jobq._notify(o.worker, CASE WHEN cardinality(p_ids) > 1 OR s.kind_id > 0
                THEN '' ELSE (r.id::bigint * 32768 + (coalesce(p_hashes[1], p_partitions[1], 0)
                                                     & (r.partitions - 1)))::text END)
        FROM jobq.subscription s JOIN jobq.queue r ON r.id = s.queue_id CROSS JOIN LATERAL (
            SELECT w.worker FROM jobq.sleeper w WHERE w.queue_id = r.id
            LIMIT CASE WHEN s.kind_id > 0 THEN cardinality(p_ids) ELSE 1 END) AS o
        WHERE s.source_id = p_source AND (s.types IS NULL OR EXISTS (
            SELECT FROM unnest(p_types) AS t (name) WHERE jobq._takes(s.types, t.name)));
    END IF;
END $$;

-- ---- subscriptions -------------------------------------------------------------------------

-- A subscription with its ids. Refuses what cannot be one. A queue of jobs, and its kind, are
-- created on their first use, as by an enqueue.
CREATE OR REPLACE FUNCTION jobq._subscription_of(
    p_name text, p_source text, p_queue text, p_kind text, p_types text[], p_owner text)
RETURNS jobq.subscription
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v jobq.subscription;
BEGIN
    PERFORM jobq._check_name('name', p_name);
    PERFORM jobq._refuse('types', 'must be printable ASCII, with * only at the end',
                         p_value => t.name)
    FROM unnest(p_types) AS t (name)
    WHERE (t.name COLLATE "C" ~ '^[ -~]+$' AND length(t.name) <= 1024
           AND left(t.name, -1) !~ '[*]') IS NOT TRUE;
    v.name := p_name;
    v.owner := p_owner;
    v.types := nullif(p_types, '{}');
    v.source_id := jobq._known_queue(p_source, 'source');
    IF p_kind IS NOT NULL THEN
        v.queue_id := jobq._queue_id(p_queue);
        v.kind_id := jobq._kind_id(v.queue_id, p_kind);
    ELSE
        v.queue_id := jobq._known_queue(p_queue);
    END IF;
    PERFORM jobq._refuse(u.field, 'not registered for messages', u.hint, u.name)
    FROM (VALUES ('source', p_source, v.source_id, ''),
                 ('queue', p_queue, CASE WHEN p_kind IS NULL THEN v.queue_id END,
                  'A queue of jobs needs a kind, and a topic has no readers but these.'))
         AS u (field, name, id, hint)
    JOIN jobq.queue q ON q.id = u.id
    WHERE q.partitions = 0 AND NOT (q.topic AND u.field = 'source');
    IF v.source_id = v.queue_id AND p_kind IS NULL THEN
        PERFORM jobq._refuse('queue', 'must not be the source', p_value => p_queue);
    END IF;
    RETURN v;
END $$;

-- Refuses limits of sizes by which a reader could not take what its source takes.
CREATE OR REPLACE FUNCTION jobq._check_readers() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._refuse(n.limit, format('must be at least %s for queue %s, because of '
                         'subscription %s and message_max of queue %s', q.message_max,
                         r.name, s.name, q.name), p_value => n.bytes::text)
    FROM jobq.subscription s JOIN jobq.queue q ON q.id = s.source_id
    JOIN jobq.queue r ON r.id = s.queue_id
    CROSS JOIN LATERAL (SELECT 'message_max', r.message_max WHERE s.kind_id IS NULL
                        UNION ALL SELECT 'payload_max', r.payload_max
                        WHERE s.kind_id IS NOT NULL) AS n ("limit", bytes)
    WHERE n.bytes < q.message_max;
END $$;

-- A part of the changes: keeps producers out, and drops subscriptions, of any sources.
CREATE OR REPLACE FUNCTION jobq._subscriptions_drop(p_ids integer[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM jobq._need_read_committed();
    LOCK TABLE jobq.message IN SHARE ROW EXCLUSIVE MODE;
    WITH gone AS (
        DELETE FROM jobq.subscription s WHERE s.id = ANY (p_ids) RETURNING s.source_id
    )
    UPDATE jobq.queue q SET readers = q.readers - g.count
    FROM (SELECT o.source_id, count(*) FROM gone o GROUP BY o.source_id) AS g
    WHERE q.id = g.source_id;
END $$;

-- Makes a subscription, or changes the one of this name. A message whose enqueue begins after
-- the commit has its copy; one that was committed before has none.
--   source  a queue of messages, or a topic
--   queue   another queue of messages, which keeps the order of each order_key; or, with kind,
--           a queue of jobs: each message becomes a job of this kind, in the line of its
--           order_key, with "message", its id, and "type" in its headers
--   types   the types that it takes; 'order.*' takes all that begin like this. NULL: all, and
--           messages without a type
--   owner   the program that declares it: see subscriptions_set in jobq_pg.h
-- Until its commit it keeps producers of messages out, and so it waits for their open
-- transactions for one second at most (55P03); then call it again.
-- Errors: 22023; 25001 not in this kind of transaction; 55000 it is a program's; 55P03.
--     select * from jobq.outbox_register('billing', 1);
--     select jobq.subscribe('billing', 'orders', 'billing', types => '{order.*}');
--     select jobq.subscribe('receipts', 'orders', 'mail', 'receipt');
CREATE OR REPLACE FUNCTION jobq.subscribe(
    name text, source text, queue text, kind text DEFAULT NULL, types text[] DEFAULT NULL,
    owner text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s'
SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    v jobq.subscription := jobq._subscription_of(name, source, queue, kind, types, owner);
    v_old jobq.subscription;
BEGIN
    SELECT s.* INTO v_old FROM jobq.subscription s WHERE s.name = name COLLATE "C";
    IF (v_old.source_id, v_old.queue_id, v_old.kind_id, v_old.types, v_old.owner)
       IS NOT DISTINCT FROM (v.source_id, v.queue_id, v.kind_id, v.types, v.owner) THEN
        RETURN;
    END IF;
    PERFORM jobq._subscriptions_drop('{}');
    SELECT s.* INTO v_old FROM jobq.subscription s WHERE s.name = name COLLATE "C";
    IF FOUND AND v_old.owner IS DISTINCT FROM owner THEN
        RAISE EXCEPTION 'subscription % belongs to %', name,
            coalesce('the program ' || v_old.owner::text, 'no program')
            USING ERRCODE = '55000', HINT = 'Choose another name, or drop it first: '
                'select jobq.unsubscribe(...)';
    END IF;
    PERFORM jobq._subscriptions_drop(ARRAY[v_old.id]) WHERE FOUND;
    PERFORM jobq._refuse('queue', format('must be one to which subscription %s does not lead',
                                         s.name), p_value => queue)
    FROM jobq.subscription s WHERE s.source_id = v.source_id AND s.queue_id = v.queue_id
      AND s.kind_id IS NOT DISTINCT FROM v.kind_id;
    INSERT INTO jobq.subscription (source_id, queue_id, kind_id, name, owner, types)
    VALUES (v.source_id, v.queue_id, v.kind_id, v.name, v.owner, v.types);
    UPDATE jobq.queue q SET readers = q.readers + 1 WHERE q.id = v.source_id;
    PERFORM jobq._has_lines(v.queue_id) WHERE v.kind_id IS NOT NULL;
    PERFORM jobq._check_readers();
    PERFORM jobq._operated('subscribe', jsonb_build_object(
        'name', name, 'source', source, 'queue', queue, 'kind', kind, 'types', types), NULL)
    WHERE owner IS NULL; -- a program declares those that it owns at each start
END $$;

-- Deletes what a reader has not read. The rows of its partitions are locked first, so nobody
-- reads meanwhile. What was numbered counts as acknowledged, because a number is given once.
CREATE OR REPLACE FUNCTION jobq._reader_empty(p jobq.subscription) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p.kind_id IS NOT NULL THEN
        PERFORM jobq._delete_all(ARRAY(
            SELECT j.id FROM jobq.job j
            WHERE j.queue_id = p.queue_id AND j.kind_id = p.kind_id AND j.state = 'r'
              AND j.headers ? 'message' FOR UPDATE SKIP LOCKED), 'ready');
        RETURN;
    END IF;
    UPDATE jobq.partition r
    SET acked = r.numbered, base = r.numbered, ids = '{}', tried = '{}', beat = r.beat + 1,
        reading = 0, worker = NULL, claim = NULL, lease_us = NULL, lease_until = NULL,
        failures = 0, effective = 0, successes = 0, run_at = NULL, error = NULL
    WHERE r.queue_id = p.queue_id;
    DELETE FROM jobq.message m
    WHERE m.partition_id BETWEEN p.queue_id::bigint * 32768
                         AND p.queue_id::bigint * 32768 + 32767;
END $$;

-- Ends a subscription. What was copied is still delivered.
-- drop: no, it is deleted: all messages of its queue that are not acknowledged, or its ready
-- jobs that were messages. Refused (55006) while another subscription leads there.
-- It keeps producers out as subscribe does. Answers whether there was one.
-- Errors: 25001 not in this kind of transaction; 55006; 55P03 try again.
--     select jobq.unsubscribe('billing');
CREATE OR REPLACE FUNCTION jobq.unsubscribe(name text, drop boolean DEFAULT false)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s' SET jit = off AS $$
#variable_conflict use_variable
DECLARE v jobq.subscription;
BEGIN
    SELECT s.* INTO v FROM jobq.subscription s WHERE s.name = name COLLATE "C";
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM jobq._reader_empty(v) WHERE drop; -- most of it, while producers go on
    PERFORM jobq._subscriptions_drop(ARRAY[v.id]);
    IF drop THEN
        IF EXISTS (SELECT FROM jobq.subscription s WHERE s.queue_id = v.queue_id
                   AND s.kind_id IS NOT DISTINCT FROM v.kind_id) THEN
            RAISE EXCEPTION 'another subscription leads to queue %, too',
                (SELECT q.name FROM jobq.queue q WHERE q.id = v.queue_id)
                USING ERRCODE = '55006', HINT = 'Its copies would be deleted with these.';
        END IF;
        PERFORM jobq._reader_empty(v);
    END IF;
    PERFORM jobq._operated('unsubscribe', jsonb_build_object('name', name, 'drop', drop),
                           NULL);
    RETURN true;
END $$;

-- The whole set of a program's subscriptions: element i of every array belongs to subscription
-- i; see subscribe. p_types[i]: separated by commas. Those that it declared before and no
-- longer names are dropped. false: a program with a higher revision has declared its set, and
-- nothing changes. If nothing is new, no producer waits.
CREATE OR REPLACE FUNCTION jobq._subscriptions_set(
    p_owner text, p_revision bigint, p_names text[], p_sources text[], p_queues text[],
    p_kinds text[], p_types text[])
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET lock_timeout = '1s' SET jit = off AS $$
DECLARE
    v_gone integer[];
BEGIN
    PERFORM jobq._check_name('owner', p_owner);
    INSERT INTO jobq.schedule_owner AS o (name, revision) VALUES (p_owner, p_revision)
    ON CONFLICT (name) DO UPDATE SET revision = excluded.revision, declared_at = now()
    WHERE o.revision <= excluded.revision;
    IF NOT FOUND THEN RETURN false; END IF;
    SELECT array_agg(s.id) INTO v_gone FROM jobq.subscription s
    WHERE s.owner = p_owner COLLATE "C" AND s.name <> ALL (p_names COLLATE "C");
    PERFORM jobq._subscriptions_drop(v_gone) WHERE v_gone IS NOT NULL;
    FOR i IN 1 .. coalesce(cardinality(p_names), 0) LOOP
        PERFORM jobq.subscribe(p_names[i], p_sources[i], p_queues[i], p_kinds[i],
                               regexp_split_to_array(nullif(btrim(p_types[i]), ''), ' *, *'),
                               p_owner);
    END LOOP;
    RETURN true;
END $$;

-- Every subscription. waiting: copies that its reader has not ended, counted up to 10,000 of
-- each partition, or of its kind.
CREATE OR REPLACE VIEW jobq.subscriptions AS
SELECT s.name, q.name AS source, r.name AS queue, k.name AS kind, s.types,
       CASE WHEN s.kind_id IS NULL THEN (
           SELECT sum(o.lag) FROM jobq.outbox o WHERE o.queue_id = s.queue_id)
       ELSE (SELECT count(*) FROM (
           SELECT FROM jobq.job j WHERE j.queue_id = s.queue_id AND j.kind_id = s.kind_id
           LIMIT 10000) AS n) END AS waiting,
       s.owner, s.created_at
FROM jobq.subscription s JOIN jobq.queue q ON q.id = s.source_id
JOIN jobq.queue r ON r.id = s.queue_id LEFT JOIN jobq.kind k ON k.id = s.kind_id;
