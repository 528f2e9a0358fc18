-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: the outbox. Messages are written in the caller's transaction, once, and
-- deleted once. They get their numbers, 1, 2, 3 … per partition, when they are read, and so
-- after they were committed. They are delivered in that order.
--
--     enqueue        read: number and hand out        acknowledge: delete, and read on
--     -> message ->  the partition's row names them -> the row moves on
--
-- In message a row exists until it is acknowledged. So the messages of a transaction that
-- commits late are numbered late and never skipped, and nothing depends on transaction ids,
-- which do not outlive a dump, an upgrade or a failover. Only the holder of a partition's
-- lease writes the partition's row. The row lists the ids of the messages that were numbered
-- last: the number of ids[i] is base + i. So a second read finds the same messages under the
-- same numbers, even after a crash.
--
-- A partition's id is computed, not looked up: queue id * 32768 + number.
--
-- A partition's row gets a new version with every batch. While someone holds a snapshot, none
-- of the old versions can be removed, and a look-up through the index would walk them all. So
-- these rows are always read backwards (id >= x AND id <= x ORDER BY id DESC LIMIT 1). The
-- index orders versions by their place, the newest last, and the walk ends at the first
-- version that is visible.

-- ---- queues with partitions ----------------------------------------------------------------

-- Gives a queue its partitions: a power of two, numbered from 0. 0 makes a topic: nobody reads
-- it, and its messages go to its subscriptions. A second call with the same number changes
-- nothing. A call with another number changes nothing either; the answer says how many
-- partitions there are.
-- Errors: 22023.
--     select * from jobq.outbox_register('orders', 4);
CREATE OR REPLACE FUNCTION jobq.outbox_register(
    p_queue text, p_partitions integer, OUT queue_id integer, OUT partitions integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v_topic boolean;
BEGIN
    IF p_partitions <> 0 IS NOT FALSE THEN
        PERFORM jobq._check_partitions(p_partitions);
    END IF;
    queue_id := jobq._queue_id(p_queue);
    SELECT q.partitions, q.topic INTO partitions, v_topic
    FROM jobq.queue q WHERE q.id = queue_id;
    IF partitions > 0 OR v_topic THEN RETURN; END IF;
    SELECT q.partitions, q.topic INTO partitions, v_topic
    FROM jobq.queue q WHERE q.id = queue_id FOR UPDATE;
    IF partitions > 0 OR v_topic THEN RETURN; END IF;
    UPDATE jobq.queue q SET topic = true WHERE q.id = queue_id AND p_partitions = 0;
    PERFORM jobq._outbox_widen(queue_id, 0, p_partitions) WHERE p_partitions > 0;
    partitions := p_partitions;
END $$;

CREATE OR REPLACE FUNCTION jobq._check_partitions(p_count integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (p_count BETWEEN 1 AND 16384 AND p_count & (p_count - 1) = 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'partition count must be a power of 2, 1 to 16384: %', p_count
            USING ERRCODE = '22023', COLUMN = 'partitions';
    END IF;
END $$;

-- Writes the rows of partitions p_from to p_to - 1.
CREATE OR REPLACE FUNCTION jobq._outbox_widen(p_queue integer, p_from integer, p_to integer)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO jobq.partition (id, queue_id, number)
    SELECT p_queue::bigint * 32768 + n, p_queue, n FROM generate_series(p_from, p_to - 1) n;
    UPDATE jobq.queue q SET partitions = p_to WHERE q.id = p_queue;
END $$;

-- A function that looks again under a lock must see what was committed before it got the lock.
CREATE OR REPLACE FUNCTION jobq._need_read_committed() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        RAISE EXCEPTION 'not in a transaction that is %',
            current_setting('transaction_isolation') USING ERRCODE = '25001',
            HINT = 'Begin a transaction that is READ COMMITTED.';
    END IF;
END $$;

-- Gives a queue more partitions. Keys then map to other partitions, so the order of a key's
-- messages is kept only if the queue is empty. Without p_anyway the call is refused while
-- messages are under way, with their number.
-- The table lock, which every enqueue takes before it reads the number of partitions, keeps
-- producers out until the end of this transaction. While it waits for a producer's open
-- transaction, all enqueues and acknowledgements of all queues wait too. So it waits for one
-- second at most (55P03); then call it again.
-- Errors: 22023; 55006 messages are under way; 55P03 try again.
--     select jobq.outbox_grow('orders', 8);
CREATE OR REPLACE FUNCTION jobq.outbox_grow(
    p_queue text, p_partitions integer, p_anyway boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s'
SET jit = off AS $$
DECLARE
    v_queue jobq.queue;
    v_left bigint;
BEGIN
    PERFORM jobq._check_partitions(p_partitions);
    PERFORM jobq._need_read_committed();
    LOCK TABLE jobq.message IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO v_queue FROM jobq.queue q WHERE q.name = p_queue COLLATE "C" FOR UPDATE;
    IF NOT FOUND OR v_queue.partitions = 0 THEN
        RAISE EXCEPTION 'queue ''%'' is not registered', p_queue
            USING ERRCODE = '22023', COLUMN = 'queue';
    END IF;
    IF p_partitions < v_queue.partitions THEN
        RAISE EXCEPTION 'queue ''%'' has % partitions and can''t shrink to %', p_queue,
            v_queue.partitions, p_partitions
            USING ERRCODE = '22023', COLUMN = 'partitions';
    END IF;
    SELECT coalesce(sum(o.lag), 0) INTO v_left FROM jobq.outbox o
    WHERE o.queue = p_queue COLLATE "C";
    IF v_left > 0 AND NOT p_anyway THEN
        RAISE EXCEPTION 'queue ''%'' has % messages under way', p_queue, v_left
            USING ERRCODE = '55006', HINT = 'Let them be delivered first, or, if the order '
                'of a key''s messages does not matter, grow it anyway.';
    END IF;
    PERFORM jobq._outbox_widen(v_queue.id, v_queue.partitions, p_partitions);
    PERFORM jobq._operated('outbox_grow', jsonb_build_object(
        'queue', p_queue, 'partitions', p_partitions), NULL)
    WHERE p_partitions > v_queue.partitions;
END $$;

-- The partitions of these queues.
CREATE OR REPLACE FUNCTION jobq._outbox_partitions(p_queues integer[])
RETURNS TABLE (partition_id bigint, queue_id integer, number smallint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY SELECT p.id, p.queue_id, p.number FROM jobq.partition p
                 WHERE p.queue_id = ANY (p_queues) ORDER BY p.id;
END $$;

-- ---- enqueue -------------------------------------------------------------------------------

-- The number that chooses an order key's partition: the first two bytes of the key's SHA-256.
-- The partition is its low bits. jobq.h computes the same, with test vectors.
CREATE OR REPLACE FUNCTION jobq._outbox_hash(p_key text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ('x' || encode(substr(sha256(convert_to(p_key, 'UTF8')), 1, 2), 'hex'))::bit(16)
           ::integer;
END $$;

-- What an enqueue must know, and why it is refused; code is the SQLSTATE for that.
-- The lock is one that writing takes anyway. Taken before the number of partitions is read, it
-- lets outbox_grow change that number with no enqueue in between. A transaction whose snapshot
-- is older than such a change must fail (40001): it fails at the lock on the queue's row. That
-- lock is released at once; if it were held to the end, pause and queue_set would wait for
-- every such transaction. The same two locks make the seam of a subscription exact: see
-- topics.sql. The transaction gets its id before message ids are drawn: see outbox_number.
CREATE OR REPLACE FUNCTION jobq._outbox_queue(
    p_queue text, p_lowest bigint, p_highest bigint, p_size bigint, OUT id integer,
    OUT partitions integer, OUT refused text, OUT code text, OUT readers integer,
    OUT topic boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v_max integer;
BEGIN
    LOCK TABLE jobq.message IN ROW EXCLUSIVE MODE;
    PERFORM pg_current_xact_id();
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        BEGIN
            PERFORM FROM jobq.queue q WHERE q.name = p_queue COLLATE "C" FOR SHARE;
            PERFORM FROM jobq.queue q JOIN jobq.subscription s ON s.source_id = q.id
            JOIN jobq.queue r ON r.id = s.queue_id AND s.kind_id IS NULL
            WHERE q.name = p_queue COLLATE "C" FOR SHARE OF r;
            RAISE EXCEPTION USING ERRCODE = 'JQ000';
        EXCEPTION WHEN SQLSTATE 'JQ000' THEN NULL; -- the lock is gone with the subtransaction
        END;
    END IF;
    SELECT q.id, q.partitions, q.message_max, q.readers, q.topic
    INTO id, partitions, v_max, readers, topic
    FROM jobq.queue q WHERE q.name = p_queue COLLATE "C";
    code := '22023';
    IF EXISTS (SELECT FROM jobq.tenant) AND NOT jobq._tenant_writes(p_queue) THEN
        refused := format('role %s may not write messages into queue ''%s'': it is a '
                          'tenant''s, and grant_enqueue gave it no such outbox', session_user,
                          p_queue);
        code := '42501';
    ELSIF id IS NULL OR (partitions = 0 AND NOT topic) THEN
        refused := format('queue ''%s'' is not registered', p_queue);
        code := 'JQ003';
    ELSIF p_highest >= greatest(partitions, 1) OR p_lowest < 0 THEN
        refused := format('partition %s is out of range for queue ''%s'' (max %s)',
                          CASE WHEN p_lowest < 0 THEN p_lowest ELSE p_highest END, p_queue,
                          greatest(partitions, 1));
    ELSIF p_size > v_max THEN
        refused := format('payload size %s exceeds maximum %s', p_size, v_max);
    ELSE
        code := NULL;
    END IF;
END $$;

-- Writes many messages of one queue in one statement, all or none. Element i of every array
-- belongs to message i. An array may be NULL, and so may its elements. The partition is
-- p_partitions[i], or is chosen by p_hashes[i] (outbox_hash of the order key), which wins;
-- p_order_keys[i] is that key, for copies that are jobs. ids are drawn first and carried
-- through, so within a partition the messages have the order of the arrays. existed[i]: the
-- queue knows this key, and nothing was written. refused: why nothing was written at all. No
-- error is raised, so the caller's transaction continues.
CREATE OR REPLACE FUNCTION jobq._outbox_enqueue_many(
    p_queue text, p_partitions integer[], p_hashes integer[], p_types text[],
    p_payloads jsonb[], p_bytes bytea[], p_headers jsonb[], p_keys text[], p_count integer,
    p_notify boolean, p_order_keys text[] DEFAULT NULL, OUT ids bigint[],
    OUT existed boolean[], OUT refused text, OUT code text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE v_queue record;
BEGIN
    SELECT q.* INTO v_queue FROM jobq._outbox_queue(
        p_queue, (SELECT min(n) FROM unnest(p_partitions) n),
        (SELECT max(n) FROM unnest(p_partitions) n),
        (SELECT max(coalesce(octet_length(u.bytes), octet_length(u.payload::text), 0)::bigint
                    + coalesce(octet_length(u.headers::text), 0))
         FROM unnest(p_payloads, p_bytes, p_headers) AS u (payload, bytes, headers))) q;
    refused := v_queue.refused;
    code := v_queue.code;
    IF refused IS NOT NULL THEN RETURN; END IF;
    ids := ARRAY(SELECT nextval('jobq.message_id') FROM generate_series(1, p_count));
    IF p_keys IS NOT NULL THEN
        SELECT k.ids, k.existed INTO ids, existed
        FROM jobq._keep_keys(v_queue.id, p_keys, ids, statement_timestamp()) k;
    END IF;
    INSERT INTO jobq.message (partition_id, id, type, payload, bytes, headers)
    SELECT v_queue.id::bigint * 32768 + coalesce(u.hash & (v_queue.partitions - 1),
                                                 u.partition, 0),
           u.id, u.type, u.payload, u.bytes, u.headers
    FROM (SELECT unnest(ids) AS id, unnest(existed) AS existed,
                 unnest(p_partitions) AS partition, unnest(p_hashes) AS hash,
                 unnest(p_types) AS type, unnest(p_payloads) AS payload,
                 unnest(p_bytes) AS bytes, unnest(p_headers) AS headers) AS u
    WHERE u.existed IS NOT TRUE AND NOT v_queue.topic;
    IF v_queue.readers > 0 THEN
        PERFORM jobq._outbox_copy(v_queue.id, ids, existed, p_partitions, p_hashes,
                                 p_order_keys, p_types, p_payloads, p_bytes, p_headers,
                                 p_notify);
    END IF;
    IF p_notify THEN PERFORM jobq._wake(v_queue.id, 1); END IF;
END $$;

-- Writes one message, with as little as possible. A worker that sleeps is told which partition
-- it is in, so that it can read without a look before.
CREATE OR REPLACE FUNCTION jobq._outbox_enqueue_one(
    p_queue text, p_partition integer, p_hash integer, p_type text, p_payload jsonb,
    p_bytes bytea, p_headers jsonb, p_key text, p_notify boolean,
    p_order_key text DEFAULT NULL, OUT id bigint, OUT existed boolean, OUT refused text,
    OUT code text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_queue record;
    v_partition bigint;
BEGIN
    existed := false;
    SELECT q.* INTO v_queue
    FROM jobq._outbox_queue(p_queue, p_partition, p_partition,
                           coalesce(octet_length(p_bytes), octet_length(p_payload::text),
                                    0)::bigint
                           + coalesce(octet_length(p_headers::text), 0)) q;
    refused := v_queue.refused;
    code := v_queue.code;
    IF refused IS NOT NULL THEN RETURN; END IF;
    id := nextval('jobq.message_id');
    IF p_key IS NOT NULL THEN
        SELECT k.ids[1], k.existed[1] INTO id, existed FROM jobq._keep_keys(
            v_queue.id, ARRAY[p_key], ARRAY[id], statement_timestamp()) k;
        IF existed THEN RETURN; END IF;
    END IF;
    IF v_queue.readers > 0 THEN
        PERFORM jobq._outbox_copy(
            v_queue.id, ARRAY[id], NULL, ARRAY[p_partition], ARRAY[p_hash],
            ARRAY[p_order_key], ARRAY[p_type], ARRAY[p_payload], ARRAY[p_bytes],
            ARRAY[p_headers], p_notify);
    END IF;
    IF v_queue.topic THEN RETURN; END IF;
    v_partition := v_queue.id::bigint * 32768
                   + coalesce(p_hash & (v_queue.partitions - 1), p_partition, 0);
    INSERT INTO jobq.message (partition_id, id, type, payload, bytes, headers)
    VALUES (v_partition, id, p_type, p_payload, p_bytes, p_headers);
    IF p_notify THEN
        PERFORM jobq._notify(s.worker, v_partition::text)
        FROM jobq.sleeper s WHERE s.queue_id = v_queue.id LIMIT 1;
    END IF;
END $$;

-- Writes one message, in the caller's transaction, and a copy for each subscription.
-- With a key, a repeated call finds the first message.
--   partition  from 0; or order_key: messages with the same one stay in their order
--   type       for the receiver, which may choose by it
--   bytes      instead of payload; headers: tags, trace context, content-type
--   notify     wakes a relay that is asleep
-- Answers the message's id, which all copies have. It is not its seq: that comes when it is
-- read.
-- Errors: 22023; 40001 try again; JQ003 the queue is not registered for messages; 42501 it is
-- no outbox of this tenant.
--     select jobq.outbox_enqueue('orders', '{"total": 5}', order_key => 'customer-7');
CREATE OR REPLACE FUNCTION jobq.outbox_enqueue(
    queue text, payload jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    order_key text DEFAULT NULL, type text DEFAULT NULL, bytes bytea DEFAULT NULL,
    headers jsonb DEFAULT NULL, key text DEFAULT NULL, notify boolean DEFAULT true)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v record;
BEGIN
    IF type COLLATE "C" !~ '^[ -~]+$' OR length(type) > 1024 THEN
        RAISE EXCEPTION 'invalid payload type: ''%''', type
            USING ERRCODE = '22023', COLUMN = 'type';
    ELSIF num_nonnulls(payload, bytes) = 2 THEN
        PERFORM jobq._refuse('bytes', 'not allowed with payload');
    ELSIF jsonb_typeof(headers) <> 'object' THEN
        PERFORM jobq._refuse('headers', 'not a JSON object');
    ELSIF octet_length(key) NOT BETWEEN 1 AND 1024 THEN
        PERFORM jobq._refuse('key', 'must be 1 to 1024 bytes');
    ELSIF num_nonnulls(partition, order_key) = 2 THEN
        PERFORM jobq._refuse('partition', 'not allowed with order_key, which chooses it');
    END IF;
    SELECT e.* INTO v FROM jobq._outbox_enqueue_one(
        queue, partition, jobq._outbox_hash(order_key), type, payload, bytes, headers, key,
        notify, order_key) e;
    IF v.refused IS NOT NULL THEN -- its first word is the argument
        RAISE EXCEPTION '%', v.refused
            USING ERRCODE = v.code, COLUMN = split_part(v.refused, ' ', 1);
    END IF;
    RETURN v.id;
END $$;

-- Whether the caller may write a message by a plain INSERT, which is cheaper than the
-- function. The library asks once for each connection.
CREATE OR REPLACE FUNCTION jobq._outbox_direct() RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN has_table_privilege('jobq.message', 'INSERT')
           AND has_column_privilege('jobq.message', 'id', 'SELECT')
           AND has_table_privilege('jobq.queue', 'SELECT')
           AND has_table_privilege('jobq.sleeper', 'SELECT')
           AND has_sequence_privilege('jobq.message_id', 'USAGE')
           AND has_function_privilege('jobq._notify(bigint, text)', 'EXECUTE')
           AND to_regclass('jobq.original') IS NULL;
END $$;

-- ---- numbering -----------------------------------------------------------------------------

-- How many transactions older than this one are still open.
CREATE OR REPLACE FUNCTION jobq._open_before(p_xid xid8) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT count(*) FROM pg_snapshot_xip(pg_current_snapshot()) x WHERE x < p_xid);
END $$;

-- Numbers the next messages of a partition, at most p_most. Their ids are in p.ids, which is
-- NULL when there are none. The caller holds the lock on the partition's row, everything that
-- was numbered before is acknowledged and deleted, and the caller stores the answer. So
-- numbers are contiguous, and a rollback leaves no hole.
--
-- How much of the index is read. Deleted rows stay in it until they are vacuumed, which cannot
-- happen while someone holds a snapshot. So a look begins after a bound, below which no new
-- message can appear:
--   mark      the last id drawn at some moment, and mark_xid, a transaction id assigned after
--             that moment. Every enqueue has a transaction id before it draws message ids. So
--             every transaction that can still write an id up to mark is older than mark_xid.
--   settled   an old mark all of whose older transactions have ended, as far as a later look
--             has numbered what there was. It is exact: no transaction is skipped, however
--             long it takes.
--   swept     while a writing transaction keeps the mark from settling for more than a second,
--             looks start here. They start from settled once a second, and whenever one of the
--             swept_open transactions has ended that could still write an id up to swept
--             (those older than swept_xid; there are no new ones). So what its session commits
--             next is numbered after it. A message without such a successor may be numbered
--             one second later, but no more.
-- p_mark was drawn before this transaction had p_mark_xid; NULL: this transaction draws none.
-- p_sweep: read from the beginning, whatever the bounds say.
CREATE OR REPLACE FUNCTION jobq._outbox_number(
    p jobq.partition, p_most integer, p_sweep boolean, p_mark bigint, p_mark_xid xid8)
RETURNS jobq.partition
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_over boolean := p.mark_xid < pg_snapshot_xmin(pg_current_snapshot());
    v_long boolean := clock_timestamp() NOT BETWEEN p.mark_at
                      AND p.mark_at + interval '1 second';
    v_open integer := CASE WHEN p.swept > p.settled THEN p.swept_open ELSE 0 END;
    v_whole boolean := v_over OR v_long
                       OR v_open > 0 AND jobq._open_before(p.swept_xid) < v_open;
    v_low bigint := CASE WHEN p_sweep THEN 0 ELSE p.settled END;
    v_bound bigint := CASE WHEN v_whole OR p_sweep THEN v_low
                      ELSE greatest(p.settled, p.swept) END;
    v_swept_open integer := CASE WHEN v_whole AND NOT v_over
                            THEN jobq._open_before(p.mark_xid) ELSE 0 END;
    v_upto bigint := 9223372036854775807;
BEGIN
    -- One may have ended since v_whole was computed: this statement's snapshot decides.
    SELECT array_agg(m.id) INTO p.ids
    FROM (SELECT m.id FROM jobq.message m
          WHERE m.partition_id = p.id AND m.id > CASE
                WHEN v_open > 0 AND jobq._open_before(p.swept_xid) < v_open THEN v_low
                ELSE v_bound END
          ORDER BY m.id LIMIT p_most) AS m;
    p.base := p.acked;
    p.numbered := p.acked + coalesce(cardinality(p.ids), 0);
    p.reached := greatest(p.reached, p.ids[cardinality(p.ids)]);
    IF p.numbered - p.base = p_most THEN v_upto := p.ids[p_most]; END IF;
    IF p_sweep THEN
        p.settled := least(p.settled, p.ids[1] - 1);
        p.swept := least(p.swept, p.ids[1] - 1);
    END IF;
    IF v_over THEN p.settled := greatest(p.settled, least(p.mark, v_upto)); END IF;
    IF v_whole THEN
        p.swept := least(p.mark, v_upto);
        p.swept_xid := p.mark_xid;
        p.swept_open := v_swept_open;
    END IF;
    IF (v_over OR v_long) AND p_mark_xid IS NOT NULL AND v_upto >= p.mark THEN
        p.mark := p_mark;
        p.mark_xid := p_mark_xid;
        p.mark_at := statement_timestamp();
    END IF;
    RETURN p;
END $$;

-- Whether a read of this partition would have something to do: messages, or bounds that would
-- make every later look pass many dead rows again.
CREATE OR REPLACE FUNCTION jobq._outbox_waits(p jobq.partition, p_sweep boolean)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_bound bigint := CASE WHEN p_sweep THEN 0
        WHEN clock_timestamp() NOT BETWEEN p.mark_at AND p.mark_at + interval '1 second'
        THEN p.settled
        ELSE greatest(p.settled, p.swept) END;
BEGIN
    RETURN p.numbered > p.acked
        OR p.mark_xid < pg_snapshot_xmin(pg_current_snapshot())
           AND least(p.mark, p.reached) - p.settled >= 5000
        OR EXISTS (SELECT FROM jobq.message m WHERE m.partition_id = p.id AND m.id > v_bound);
END $$;

-- Lists partitions with messages to read, by id, the first p_limit after p_after: how many
-- messages wait at least, when they are due (0: now), and the token, beat and lease of a
-- holder. Writes nothing. Where several partitions have work and no holder, other workers that
-- sleep are woken. p_sweep: also finds messages below the bounds, and says in below that only
-- a sweep reads them. Workers sweep after a restart, and once a minute. While an old snapshot
-- pins dead rows they do so in slices, each from p_below_to ids below a bound to p_below_from
-- below it (p_below_to NULL: all ids). Paused queues are left out.
CREATE OR REPLACE FUNCTION jobq._outbox_look(
    p_queues integer[], p_after bigint, p_limit integer, p_sweep boolean,
    p_below_from bigint DEFAULT NULL, p_below_to bigint DEFAULT NULL)
RETURNS TABLE (partition_id bigint, waiting bigint, due_us bigint, worker bigint, claim bigint,
               beat bigint, lease_us bigint, below boolean, acked bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_xmin xid8 := pg_snapshot_xmin(pg_current_snapshot());
    v_now timestamptz := clock_timestamp();
    v_free bigint[];
BEGIN
    FOR partition_id, waiting, due_us, worker, claim, beat, lease_us, below, acked IN
        SELECT part.id, p.numbered - p.acked + (p.numbered = p.acked)::integer,
               CASE WHEN v_now BETWEEN p.beat_at AND p.run_at - interval '1 us'
                    THEN extract(epoch FROM p.run_at - v_now) * 1e6 ELSE 0 END,
               coalesce(p.worker, 0), coalesce(p.claim, 0), p.beat, coalesce(p.lease_us, 0),
               p_sweep AND p.numbered = p.acked AND NOT EXISTS (
                   SELECT FROM jobq.message m
                   WHERE m.partition_id = part.id AND m.id > p.bound), p.acked
        FROM (SELECT q.id::bigint * 32768 AS first, q.partitions FROM jobq.queue q
              WHERE q.id = ANY (p_queues) AND q.paused_at IS NULL
              ORDER BY q.id OFFSET 0) AS q
        CROSS JOIN LATERAL generate_series(greatest(q.first, p_after + 1),
                                           q.first + q.partitions - 1) AS part (id)
        CROSS JOIN LATERAL (
            SELECT p.*, CASE WHEN v_now NOT BETWEEN p.mark_at
                                  AND p.mark_at + interval '1 second' THEN p.settled
                        ELSE greatest(p.settled, p.swept) END AS bound,
                   p.mark_xid < v_xmin
                   AND least(p.mark, p.reached) - p.settled >= 5000 AS behind
            FROM jobq.partition p WHERE p.id >= part.id AND p.id <= part.id
            ORDER BY p.id DESC LIMIT 1) AS p
        WHERE p.numbered > p.acked OR p.behind OR EXISTS (
            SELECT FROM jobq.message m
            WHERE m.partition_id = part.id AND m.id > CASE
                  WHEN p_sweep AND p_below_to IS NULL THEN 0 ELSE p.bound END)
           OR p_sweep AND EXISTS (
            SELECT FROM jobq.message m
            WHERE m.partition_id = part.id AND m.id > p.bound - p_below_to
              AND m.id <= p.bound - p_below_from)
        LIMIT p_limit
    LOOP
        IF worker = 0 AND due_us = 0 THEN v_free := v_free || (partition_id >> 15); END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM jobq._wake(f.id, f.count - 1)
    FROM (SELECT f.id::integer, count(*)::integer FROM unnest(v_free) AS f (id)
          GROUP BY f.id) AS f
    WHERE f.count > 1;
END $$;

-- ---- reading and acknowledging -------------------------------------------------------------

-- Messages of a partition are found by a range of the index. The range may contain others that
-- committed late and have no number yet, so the rows are joined with the ids too, by a hash
-- table. One plan serves all sizes, because a plan for each call cost 60 microseconds.

-- How many of these messages fit into p_bytes; at least one. Sizes are those that a worker
-- receives. The size of a payload that is not compressed is known without reading it. (A role
-- that may INSERT can write larger messages than the queue allows. Then a read fails, and the
-- next one asks for fewer bytes.)
CREATE OR REPLACE FUNCTION jobq._outbox_fit(
    p_partition_id bigint, p_ids bigint[], p_bytes bigint)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (SELECT greatest(count(*) FILTER (WHERE m.upto <= p_bytes), 1) FROM (
        SELECT sum(coalesce(CASE WHEN pg_column_compression(m.payload) IS NULL
                                 THEN pg_column_size(m.payload)
                                 ELSE octet_length(m.payload::text) END,
                            octet_length(m.bytes), 0)
                   + coalesce(CASE WHEN pg_column_compression(m.headers) IS NULL
                                   THEN pg_column_size(m.headers)
                                   ELSE octet_length(m.headers::text) END, 0))
               OVER (ORDER BY m.id) AS upto
        FROM jobq.message m JOIN unnest(p_ids) AS u (id) ON u.id = m.id + 0
        WHERE m.partition_id = p_partition_id
          AND m.id BETWEEN p_ids[1] AND p_ids[cardinality(p_ids)]) AS m);
END $$;

-- These messages of a partition, as arrays in their order. Raises an error if one is missing.
-- The range nearly always contains no others, and then nothing is joined.
CREATE OR REPLACE FUNCTION jobq._outbox_messages(
    p_partition_id bigint, p_ids bigint[], p_first bigint, OUT created_ats timestamptz[],
    OUT types text[], OUT payloads jsonb[], OUT bytes bytea[], OUT headers jsonb[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE v_ids bigint[];
BEGIN
    SELECT array_agg(m.id), array_agg(m.created_at), array_agg(m.type), array_agg(m.payload),
           array_agg(m.bytes), array_agg(m.headers)
    INTO v_ids, created_ats, types, payloads, bytes, headers
    FROM (SELECT * FROM jobq.message m
          WHERE m.partition_id = p_partition_id
            AND m.id BETWEEN p_ids[1] AND p_ids[cardinality(p_ids)]
          ORDER BY m.id LIMIT cardinality(p_ids) + 1) AS m;
    IF v_ids = p_ids THEN RETURN; END IF;
    SELECT array_agg(m.id), array_agg(m.created_at), array_agg(m.type), array_agg(m.payload),
           array_agg(m.bytes), array_agg(m.headers)
    INTO v_ids, created_ats, types, payloads, bytes, headers
    FROM (SELECT m.* FROM jobq.message m JOIN unnest(p_ids) AS u (id) ON u.id = m.id + 0
          WHERE m.partition_id = p_partition_id
            AND m.id BETWEEN p_ids[1] AND p_ids[cardinality(p_ids)]
          ORDER BY m.id) AS m;
    IF v_ids = p_ids THEN RETURN; END IF;
    RAISE EXCEPTION 'messages % to % of partition %: only % found', p_first,
        p_first + cardinality(p_ids) - 1, p_partition_id, coalesce(cardinality(v_ids), 0)
        USING ERRCODE = 'XX001', HINT = 'After a restore: select jobq.renew(home => true).';
END $$;

-- Deletes these messages, which are acknowledged.
CREATE OR REPLACE FUNCTION jobq._outbox_delete(p_partition_id bigint, p_ids bigint[])
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off
SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    DELETE FROM jobq.message m USING unnest(p_ids) AS u (id)
    WHERE m.partition_id = p_partition_id
      AND m.id BETWEEN p_ids[1] AND p_ids[cardinality(p_ids)]
      AND m.id + 0 = u.id;
END $$;

-- Copies messages to dead_letter, all in one statement. Element i of every array is a message.
CREATE OR REPLACE FUNCTION jobq._outbox_bury(
    p_partition_id bigint, p_seqs bigint[], p_ids bigint[], p_errors text[],
    p_attempts integer[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_count integer;
BEGIN
    INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at, attempts,
                                  type, error, payload, bytes, headers)
    SELECT p_partition_id >> 15, p_partition_id, u.seq, m.created_at, statement_timestamp(),
           u.attempts, m.type, u.error, m.payload, m.bytes, m.headers
    FROM unnest(p_seqs, p_ids, p_errors, p_attempts) AS u (seq, id, error, attempts)
    CROSS JOIN LATERAL (
        SELECT * FROM jobq.message m WHERE m.partition_id = p_partition_id AND m.id = u.id
        OFFSET 0) AS m
    ON CONFLICT (partition_id, seq) DO NOTHING;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count < cardinality(p_seqs) AND cardinality(p_seqs) > (
        SELECT count(*) FROM jobq.dead_letter d
        WHERE d.partition_id = p_partition_id AND d.seq = ANY (p_seqs)) THEN
        RAISE EXCEPTION 'messages % of partition % not found', p_seqs, p_partition_id
            USING ERRCODE = 'XX001',
                HINT = 'After a restore: select jobq.renew(home => true).';
    END IF;
END $$;

-- Adds one more delivery, up to p_last, to tried. Acknowledged entries are removed; the new
-- one goes to its place in the descending order. At most 100 deliveries are counted.
CREATE OR REPLACE FUNCTION jobq._outbox_tried(p_tried bigint[], p_acked bigint, p_last bigint)
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_tried = '{}' THEN RETURN ARRAY[p_last]; END IF;
    RETURN (ARRAY(SELECT t FROM unnest(p_tried || p_last) t WHERE t > p_acked
                  ORDER BY t DESC))[1:100];
END $$;

-- How many bytes a message of this partition may have; NULL: its queue is paused.
CREATE OR REPLACE FUNCTION jobq._outbox_limit(p_partition_id bigint) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT q.message_max FROM jobq.queue q
            WHERE q.id = p_partition_id >> 15 AND q.paused_at IS NULL);
END $$;

-- The common part of read and ack: hands out the next messages of a partition whose row p the
-- caller has locked and stores afterwards. Messages that already have numbers come first; when
-- none is left, the next 1000, or p_most if that is more, are numbered. In p, ids is NULL
-- unless they are new, and reading is 0 when nothing was handed out. p_aside: the next message
-- cannot be sent; it becomes a dead letter unread. p_limit: the largest size of a message; if
-- even messages of that size would fit into p_bytes, their sizes are not asked for.
CREATE OR REPLACE FUNCTION jobq._outbox_hand(
    INOUT p jobq.partition, INOUT v jobq.delivery, p_most integer, p_bytes bigint,
    p_limit integer, p_aside boolean, p_sweep boolean, p_mark bigint, p_mark_xid xid8)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
    v_ids bigint[];
    v_count integer := least(p_most, nullif(p.effective, 0));
BEGIN
    v.answer := 'i';
    IF p.acked = p.numbered THEN
        p := jobq._outbox_number(p, greatest(p_most, 1000), p_sweep, p_mark, p_mark_xid);
        v_ids := p.ids[: v_count];
    ELSE
        v_ids := p.ids[p.acked - p.base + 1 : p.acked - p.base + v_count];
        p.ids := NULL;
    END IF;
    p.reading := 0;
    v.last := p.numbered;
    IF p.acked = p.numbered THEN RETURN; END IF;
    IF p_aside THEN
        v.answer := 'a';
        p.acked := p.acked + 1;
        v.acked := p.acked;
        PERFORM jobq._outbox_bury(p.id, ARRAY[p.acked], v_ids[:1], ARRAY[
                'the worker could not receive this message: too large, or the network too '
                'slow'], ARRAY[(
            SELECT count(*) FROM unnest(v.tried) t WHERE t >= p.acked)::integer]);
        PERFORM jobq._outbox_delete(p.id, v_ids[:1]);
        v.tried := ARRAY(SELECT t FROM unnest(v.tried) t WHERE t > p.acked ORDER BY t DESC);
        p.tried := v.tried;
        RETURN;
    END IF;
    v.cut := false;
    v_count := cardinality(v_ids);
    IF p_bytes < v_count * p_limit::bigint THEN
        v_ids := v_ids[: jobq._outbox_fit(p.id, v_ids, p_bytes)];
        v.cut := cardinality(v_ids) < v_count;
    END IF;
    SELECT m.created_ats, m.types, m.payloads, m.bytes, m.headers
    INTO v.created_ats, v.types, v.payloads, v.bytes, v.headers
    FROM jobq._outbox_messages(p.id, v_ids, p.acked + 1) m;
    v.answer := 'h';
    v.worker := p.worker;
    v.claim := p.claim;
    v.beat := p.beat;
    p.reading := p.acked + cardinality(v_ids);
    p.tried := jobq._outbox_tried(v.tried, p.acked, p.reading);
END $$;

-- A mark: see outbox_number. NULL in a transaction that has already written.
CREATE OR REPLACE FUNCTION jobq._outbox_mark(OUT mark bigint, OUT mark_xid xid8)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN RETURN; END IF;
    mark := coalesce(pg_sequence_last_value('jobq.message_id'), 0);
    mark_xid := pg_current_xact_id();
END $$;

-- Deletes the messages of a partition up to p_acked. Those to be given up are copied first.
CREATE OR REPLACE FUNCTION jobq._outbox_done(
    p jobq.partition, p_acked bigint, p_dead_seqs bigint[], p_dead_errors text[],
    p_dead_attempts integer[])
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_dead_seqs <> '{}' THEN
        PERFORM jobq._outbox_bury(p.id, p_dead_seqs, ARRAY(
            SELECT p.ids[u.seq - p.base] FROM unnest(p_dead_seqs) WITH ORDINALITY AS u (seq, n)
            ORDER BY u.n), p_dead_errors, p_dead_attempts);
    END IF;
    IF p_acked > p.acked THEN
        PERFORM jobq._outbox_delete(p.id, p.ids[p.acked - p.base + 1 : p_acked - p.base]);
    END IF;
END $$;

-- Stores a partition's row, which the caller has locked; ids only if they are new. A partition
-- from which nothing is being read is released.
CREATE OR REPLACE FUNCTION jobq._outbox_store(p jobq.partition) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE v_held boolean := p.reading > 0;
BEGIN
    UPDATE jobq.partition r
    SET acked = p.acked, reading = p.reading, beat = p.beat,
        worker = CASE WHEN v_held THEN p.worker END, claim = CASE WHEN v_held THEN p.claim END,
        lease_us = CASE WHEN v_held THEN p.lease_us END,
        lease_until = CASE WHEN v_held THEN statement_timestamp()
                           + p.lease_us * interval '1 microsecond' END,
        beat_at = statement_timestamp(), run_at = p.run_at, failures = p.failures,
        effective = p.effective, successes = p.successes, tried = p.tried, error = p.error,
        base = p.base, numbered = p.numbered, reached = p.reached, settled = p.settled,
        swept = p.swept, swept_xid = p.swept_xid, swept_open = p.swept_open, mark = p.mark,
        mark_xid = p.mark_xid, mark_at = p.mark_at, ids = coalesce(p.ids, r.ids)
    WHERE r.ctid = ANY (ARRAY(
        SELECT n.ctid FROM jobq.partition n WHERE n.id >= p.id AND n.id <= p.id
        ORDER BY n.id DESC LIMIT 1)) AND r.beat < p.beat;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'partition % was written by another transaction', p.id
            USING ERRCODE = '40001';
    END IF;
END $$;

-- What a partition's row alone answers to a read: b, o, w, or h to continue; with the cursor
-- as the next delivery will find it.
CREATE OR REPLACE FUNCTION jobq._outbox_asked(
    p jobq.partition, p_worker bigint, p_claim bigint, p_handed bigint,
    p_watched_worker bigint, p_watched_claim bigint, p_watched_beat bigint)
RETURNS jobq.delivery LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_own boolean := coalesce(p.worker = p_worker, false);
    v_at integer;
    v jobq.delivery;
BEGIN
    v.acked := p.acked;
    v.last := p.numbered;
    v.tried := p.tried;
    v.lost := 0;
    v.failures := p.failures;
    v.effective := p.effective;
    v.successes := p.successes;
    v.error := p.error;
    IF v_own AND p.claim > p_claim THEN
        v.answer := 'b';
    ELSIF p.worker IS NOT NULL AND NOT v_own
          AND (v_now BETWEEN p.beat_at AND p.lease_until
               OR (p.worker, p.claim, p.beat) IS DISTINCT FROM
                  (p_watched_worker, p_watched_claim, p_watched_beat)) THEN
        v.answer := 'o';
        v.worker := p.worker;
        v.claim := p.claim;
        v.beat := p.beat;
        v.wait_us := p.lease_us;
    ELSE
        v.answer := CASE WHEN v_now BETWEEN p.beat_at AND p.run_at - interval '1 us'
                    THEN 'w' ELSE 'h' END;
        v.wait_us := (extract(epoch FROM p.run_at - v_now) * 1e6)::bigint;
        IF v_own AND p.claim <> p_handed THEN
            v_at := coalesce(array_position(v.tried, p.reading), 101);
            v.tried := v.tried[: v_at - 1] || v.tried[v_at + 1 :];
        ELSIF p.reading > 0 THEN
            v.lost := p.reading;
            v.effective := 1;
            v.successes := 0;
        END IF;
    END IF;
    RETURN v;
END $$;

-- Takes a partition, or reads again under the caller's own hold: at most p_most messages and
-- p_bytes.
-- Anyone may take a partition that nobody holds. A held one may be taken by a worker that has
-- watched the holder (p_watched_*: what an earlier answer said) make no move for a whole
-- lease, if the lease has also expired by this database's clock. The delivery is counted here,
-- before any handler runs, so a crash leaves its trace. After a holder died over messages,
-- they are handed out one at a time at first.
-- p_handed: deliveries of the caller's own earlier claims are taken back, because no handler
-- saw them, except that of this claim, which counts. NULL: all of them count. A claim older
-- than the one on the row comes too late.
-- p_aside: the message after this number cannot be sent. If it is still the next one, it
-- becomes a dead letter unread, and the partition is released.
-- A read that finds nothing writes nothing. A row that someone is just writing is not waited
-- for. A paused queue has nothing to read. The commit waits for the disk, because a receiver
-- knows a message by its number, which must not change.
CREATE OR REPLACE FUNCTION jobq._outbox_read(
    p_worker bigint, p_claim bigint, p_lease_us bigint, p_partition_id bigint, p_most integer,
    p_handed bigint DEFAULT NULL, p_watched_worker bigint DEFAULT NULL,
    p_watched_claim bigint DEFAULT NULL, p_watched_beat bigint DEFAULT NULL,
    p_bytes bigint DEFAULT NULL, p_aside bigint DEFAULT NULL,
    p_sweep boolean DEFAULT false)
RETURNS jobq.delivery LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    v_limit integer := jobq._outbox_limit(p_partition_id);
    v_beat bigint;
    v_mark bigint;
    v_mark_xid xid8;
    v_row jobq.partition;
    v_handed record;
    v jobq.delivery;
BEGIN
    SELECT p.* INTO v_row FROM jobq.partition p
    WHERE p.id >= p_partition_id AND p.id <= p_partition_id ORDER BY p.id DESC LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'partition % does not exist', p_partition_id USING ERRCODE = '22023';
    END IF;
    v_beat := v_row.beat;
    v_row.ids := NULL;
    v := jobq._outbox_asked(v_row, p_worker, p_claim, p_handed, p_watched_worker,
                           p_watched_claim, p_watched_beat);
    IF v.answer IN ('b', 'o') THEN RETURN v; END IF;
    IF p_aside <> v_row.acked THEN
        v.answer := 'i';
        v.lost := 0;
        RETURN v;
    ELSIF v.answer = 'h' AND (v_limit IS NULL OR NOT jobq._outbox_waits(v_row, p_sweep)) THEN
        v.answer := 'i';
    END IF;
    IF v.answer <> 'h' AND v_row.worker IS NULL THEN RETURN v; END IF;
    IF p_aside IS NOT NULL THEN PERFORM jobq._wait_briefly(); END IF; -- as in outbox_ack
    SELECT m.mark, m.mark_xid INTO v_mark, v_mark_xid FROM jobq._outbox_mark() m;
    PERFORM jobq._commit_waits(true);
    SELECT p.* INTO v_row FROM jobq.partition p
    WHERE p.id >= p_partition_id AND p.id <= p_partition_id ORDER BY p.id DESC LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND OR v_row.beat <> v_beat THEN
        v.answer := 'b';
        v.lost := 0;
        RETURN v;
    END IF;
    v_row.beat := v_beat + 1;
    v_row.worker := p_worker;
    v_row.claim := p_claim;
    v_row.lease_us := p_lease_us;
    v_row.tried := v.tried;
    v_row.effective := v.effective;
    v_row.successes := v.successes;
    v_row.reading := 0;
    IF v.answer <> 'h' OR v_row.acked = v_row.numbered THEN
        v_row.ids := NULL;
    END IF;
    IF v.answer = 'h' THEN
        v_row.run_at := NULL;
        v_handed := jobq._outbox_hand(v_row, v, p_most, p_bytes, v_limit, p_aside IS NOT NULL,
                                     p_sweep, v_mark, v_mark_xid);
        v_row := v_handed.p;
        v := v_handed.v;
    END IF;
    PERFORM jobq._outbox_store(v_row);
    RETURN v;
END $$;

-- Acknowledges as jobq.h planned, under the fence, and reads on. acked (from p_before), tried,
-- PartitionMode and error are set to what is given. The messages are deleted; those to be
-- given up (element i of p_dead_*) are copied to dead_letter first. p_most > 0: the next
-- messages follow, under the same lease, renewed. If there are none, or p_most is 0, the
-- partition is released; with p_delay_us > 0 no messages are handed out before that time has
-- passed.
-- If the lease is lost, or this acknowledgement was written before, nothing is written and the
-- answer is l. In the transaction of a handler (p_raise) an error is raised instead, so its
-- COMMIT cannot succeed. There it does not read on, which would hand messages out before the
-- COMMIT.
-- p_relaxed: the commit need not wait for the disk. After a crash the server may then find the
-- partition as it was, under the same hold, and the messages come again. Nobody else gets them
-- sooner, because taking a partition does wait. A commit that gives numbers always waits;
-- otherwise they would be given to other messages after a crash.
-- The row is locked by a statement of its own. An UPDATE by ctid that has waited for another
-- writer (a renewal) finds the old place, and minor releases since November 2025 then skip the
-- row.
-- A person may have the messages locked, by erase or outbox_grow: see wait_briefly.
CREATE OR REPLACE FUNCTION jobq._outbox_ack(
    p_worker bigint, p_claim bigint, p_lease_us bigint, p_partition_id bigint, p_before bigint,
    p_acked bigint, p_tried bigint[], p_failures bigint, p_effective bigint,
    p_successes bigint, p_error text, p_delay_us bigint, p_dead_seqs bigint[],
    p_dead_errors text[], p_dead_attempts integer[], p_most integer, p_raise boolean,
    p_relaxed boolean DEFAULT false, p_bytes bigint DEFAULT NULL,
    p_sweep boolean DEFAULT false)
RETURNS jobq.delivery LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    v_limit integer := jobq._outbox_limit(p_partition_id);
    v_on boolean := p_most > 0 AND p_delay_us <= 0 AND NOT p_raise AND v_limit IS NOT NULL;
    v_mark bigint;
    v_mark_xid xid8;
    v_row jobq.partition;
    v_handed record;
    v jobq.delivery;
BEGIN
    IF NOT p_raise THEN PERFORM jobq._wait_briefly(); END IF;
    IF v_on THEN
        SELECT m.mark, m.mark_xid INTO v_mark, v_mark_xid FROM jobq._outbox_mark() m;
    END IF;
    SELECT r.* INTO v_row FROM jobq.partition r
    WHERE r.id >= p_partition_id AND r.id <= p_partition_id
    ORDER BY r.id DESC LIMIT 1 FOR NO KEY UPDATE;
    IF (v_row.worker, v_row.claim, v_row.acked) IS DISTINCT FROM (p_worker, p_claim, p_before)
       OR p_acked NOT BETWEEN p_before AND v_row.reading THEN
        IF p_raise THEN
            RAISE EXCEPTION 'lease lost on partition %', p_partition_id USING
                ERRCODE = 'JQ001',
                HINT = 'Another worker has, or had, this partition: roll back.';
        END IF;
        v.answer := 'l';
        RETURN v;
    END IF;
    PERFORM jobq._outbox_done(v_row, p_acked, p_dead_seqs, p_dead_errors, p_dead_attempts);
    v_row.acked := p_acked;
    v_row.beat := v_row.beat + 1;
    v_row.reading := 0;
    v_row.lease_us := p_lease_us;
    v_row.run_at := CASE WHEN p_delay_us > 0 THEN statement_timestamp()
                         + p_delay_us * interval '1 microsecond' END;
    v_row.failures := p_failures;
    v_row.effective := p_effective;
    v_row.successes := p_successes;
    v_row.error := p_error;
    v_row.tried := p_tried;
    v := ROW('i', p_acked, v_row.numbered, p_tried, 0, NULL, NULL, NULL, NULL, p_failures,
             p_effective, p_successes, p_error, NULL, NULL, NULL, NULL, NULL,
             false)::jobq.delivery;
    IF NOT v_on OR p_acked = v_row.numbered THEN
        v_row.ids := NULL;
    END IF;
    IF v_on THEN
        v_handed := jobq._outbox_hand(v_row, v, p_most, p_bytes, v_limit, false, p_sweep,
                                     v_mark, v_mark_xid);
        v_row := v_handed.p;
        v := v_handed.v;
    END IF;
    PERFORM jobq._commit_waits(NOT p_relaxed OR v_row.ids IS NOT NULL);
    PERFORM jobq._outbox_store(v_row);
    RETURN v;
END $$;

-- Renews the hold on partitions, in the order of their ids, and answers with those that were
-- lost. The row is locked first: see outbox_ack.
CREATE OR REPLACE FUNCTION jobq._outbox_renew(
    p_worker bigint, p_lease_us bigint, p_partition_ids bigint[], p_claims bigint[])
RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_lost bigint[] := '{}';
    v record;
BEGIN
    FOR v IN SELECT * FROM unnest(p_partition_ids, p_claims) AS u (partition_id, claim)
             ORDER BY u.partition_id LOOP
        PERFORM FROM jobq.partition r
        WHERE r.id >= v.partition_id AND r.id <= v.partition_id
        ORDER BY r.id DESC LIMIT 1 FOR NO KEY UPDATE;
        UPDATE jobq.partition p
        SET beat = p.beat + 1, beat_at = statement_timestamp(),
            lease_until = statement_timestamp() + p_lease_us * interval '1 microsecond'
        WHERE p.ctid = ANY (ARRAY(
            SELECT r.ctid FROM jobq.partition r
            WHERE r.id >= v.partition_id AND r.id <= v.partition_id
            ORDER BY r.id DESC LIMIT 1))
          AND p.worker = p_worker AND p.claim = v.claim;
        IF NOT FOUND THEN v_lost := v_lost || v.partition_id; END IF;
    END LOOP;
    RETURN v_lost;
END $$;

-- For renew. Message ids continue beyond all that were drawn (a program made up the larger
-- ones). A partition forgets the numbers of messages that no longer exist, because no read
-- could pass them; later messages move up.
CREATE OR REPLACE FUNCTION jobq._outbox_restored() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_drawn bigint := 4611686018427387904;
BEGIN
    PERFORM setval('jobq.message_id', 1000000 + greatest(
        (SELECT s.last_value FROM jobq.message_id s WHERE s.last_value < v_drawn),
        (SELECT max(m.id) FROM jobq.message m WHERE m.id < v_drawn),
        (SELECT max(greatest(p.mark, p.settled)) FROM jobq.partition p)));
    UPDATE jobq.partition p
    SET base = p.acked, numbered = p.acked + cardinality(kept.ids), ids = kept.ids,
        tried = '{}', beat = p.beat + 1, reading = 0, worker = NULL, claim = NULL,
        lease_us = NULL, lease_until = NULL
    FROM jobq.partition r CROSS JOIN LATERAL (SELECT ARRAY(
        SELECT m.id FROM jobq.message m
        WHERE m.partition_id = r.id AND m.id = ANY (r.ids[r.acked - r.base + 1 :])
        ORDER BY m.id) AS ids) AS kept
    WHERE p.id = r.id AND r.numbered > r.acked
      AND cardinality(kept.ids) < r.numbered - r.acked;
END $$;

-- ---- dead letters --------------------------------------------------------------------------
--
--     pending -> reprocessing -> resolved
--        |  ^________|  (reject, or a new replay after the deadline)
--        `-> discarded
--
-- Arguments that filter: NULL means all. A replay has a deadline and works under a token that
-- its caller made up at random. resolve and reject touch only what that token holds, so a call
-- after the deadline, when another replay has taken over, changes nothing.

-- Refuses what no dead letter can match.
CREATE OR REPLACE FUNCTION jobq._check_letters(
    p_queue text, p_partition integer, p_type text, p_at_most integer) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_partitions integer := 16384;
BEGIN
    PERFORM jobq._check_at_most(p_at_most);
    IF p_queue IS NOT NULL THEN
        SELECT q.partitions INTO v_partitions FROM jobq.queue q
        WHERE q.id = jobq._known_queue(p_queue);
    END IF;
    IF v_partitions = 0 THEN
        PERFORM jobq._refuse('queue', 'not registered for messages', p_value => p_queue);
    ELSIF p_partition NOT BETWEEN 0 AND v_partitions - 1 THEN
        PERFORM jobq._refuse('partition', format('must be 0 to %s', v_partitions - 1),
                             p_value => p_partition::text);
    ELSIF p_type COLLATE "C" !~ '^[ -~]+$' OR length(p_type) > 1024 THEN
        PERFORM jobq._refuse('type', 'must be 1 to 1024 printable ASCII characters');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION jobq._check_token(p_token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (p_token <> 0) IS NOT TRUE THEN
        PERFORM jobq._refuse('token', 'must be a random number, not 0');
    END IF;
END $$;

-- Dead letters: messages that nobody could deliver, and that stand in nobody's way now.
--   partition  from 0; NULL: all; so do queue and type
--   status     pending, reprocessing, resolved, discarded; NULL: all
-- Answers rows of the table dead_letter, newest first, at most at_most. Errors: 22023.
--     select id, seq, type, error from jobq.dead_letter_list('orders');
CREATE OR REPLACE FUNCTION jobq.dead_letter_list(
    queue text DEFAULT NULL, partition integer DEFAULT NULL, type text DEFAULT NULL,
    status text DEFAULT 'pending', at_most integer DEFAULT 100)
RETURNS SETOF jobq.dead_letter LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
BEGIN
    PERFORM jobq._check_letters(queue, partition, type, at_most);
    IF status NOT IN ('pending', 'reprocessing', 'resolved', 'discarded') THEN
        PERFORM jobq._refuse('status', 'must be pending, reprocessing, resolved or discarded');
    END IF;
    RETURN QUERY
    SELECT d.* FROM jobq.dead_letter d JOIN jobq.queue q ON q.id = d.queue_id
    WHERE (queue IS NULL OR q.name = queue COLLATE "C")
      AND (partition IS NULL OR d.partition_id & 32767 = partition)
      AND (type IS NULL OR d.type = type COLLATE "C")
      AND (status IS NULL OR d.status = status COLLATE "C")
    ORDER BY d.failed_at DESC, d.id DESC LIMIT at_most;
END $$;

-- How many dead letters there are.
-- Arguments and errors are those of dead_letter_list.
--     select jobq.dead_letter_count('orders');
CREATE OR REPLACE FUNCTION jobq.dead_letter_count(
    queue text DEFAULT NULL, partition integer DEFAULT NULL, type text DEFAULT NULL,
    status text DEFAULT 'pending') RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
BEGIN
    RETURN (SELECT count(*)
            FROM jobq.dead_letter_list(queue, partition, type, status, NULL));
END $$;

-- Takes dead letters to work on them: pending ones, and those of a replay whose deadline has
-- passed, which counts as an attempt.
--   token       a random number, by which the following calls know them
--   timeout_us  microseconds until others may take them
--   id          only this one
-- Answers with them as they are now. Send each again with outbox_enqueue and call
-- dead_letter_resolve in one transaction. Errors: 22023.
--     select id, seq, payload, bytes from jobq.dead_letter_replay(7, 60000000, 'orders');
CREATE OR REPLACE FUNCTION jobq.dead_letter_replay(
    token bigint, timeout_us bigint, queue text DEFAULT NULL,
    partition integer DEFAULT NULL, type text DEFAULT NULL, at_most integer DEFAULT 100,
    id bigint DEFAULT NULL)
RETURNS SETOF jobq.dead_letter LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
BEGIN
    PERFORM jobq._check_letters(queue, partition, type, at_most);
    PERFORM jobq._check_token(token);
    IF (timeout_us BETWEEN 1000 AND 31557600000000000) IS NOT TRUE THEN
        PERFORM jobq._refuse('timeout_us',
                             'must be a millisecond to 1000 years, in microseconds');
    END IF;
    RETURN QUERY
    UPDATE jobq.dead_letter d
    SET status = 'reprocessing', token = token, taken_at = statement_timestamp(),
        deadline = statement_timestamp() + timeout_us * interval '1 microsecond',
        attempts = d.attempts + (d.status = 'reprocessing')::integer
    WHERE d.id = ANY (ARRAY(
        SELECT o.id FROM jobq.dead_letter o
        WHERE o.status IN ('pending', 'reprocessing') AND (id IS NULL OR o.id = id)
          AND (o.status = 'pending'
               OR clock_timestamp() NOT BETWEEN o.taken_at AND o.deadline)
          AND (queue IS NULL
               OR o.queue_id = (SELECT q.id FROM jobq.queue q
                                WHERE q.name = queue COLLATE "C"))
          AND (partition IS NULL OR o.partition_id & 32767 = partition)
          AND (type IS NULL OR o.type = type COLLATE "C")
        ORDER BY o.deadline NULLS FIRST, o.id LIMIT at_most FOR UPDATE SKIP LOCKED))
    RETURNING d.*;
END $$;

-- Ends the replay of these dead letters. Answers how many it still held.
-- token: that of dead_letter_replay. Errors: 22023.
--     select jobq.dead_letter_resolve(7, array[42]);
CREATE OR REPLACE FUNCTION jobq.dead_letter_resolve(token bigint, ids bigint[])
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE v_count integer;
BEGIN
    PERFORM jobq._check_token(token);
    PERFORM jobq._check_ids('ids', ids);
    UPDATE jobq.dead_letter d
    SET status = 'resolved', completed_at = statement_timestamp(), token = NULL,
        taken_at = NULL, deadline = NULL
    WHERE d.id = ANY (ARRAY(
        SELECT o.id FROM jobq.dead_letter o
        WHERE o.id = ANY (ids) AND o.status = 'reprocessing' AND o.token = token
        ORDER BY o.id FOR UPDATE)) AND d.token = token;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN jobq._operated('dead_letter_resolve', jsonb_build_object('queue', (
        SELECT string_agg(DISTINCT q.name, ', ') FROM jobq.dead_letter d
        JOIN jobq.queue q ON q.id = d.queue_id WHERE d.id = ANY (ids))), v_count);
END $$;

-- The replay of these failed again: they are pending, with one more attempt and a new reason.
-- token: that of dead_letter_replay. Answers how many it still held. Errors: 22023.
--     select jobq.dead_letter_reject(7, array[42], 'no such address');
CREATE OR REPLACE FUNCTION jobq.dead_letter_reject(
    token bigint, ids bigint[], error text)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE v_count integer;
BEGIN
    PERFORM jobq._check_token(token);
    PERFORM jobq._check_ids('ids', ids);
    UPDATE jobq.dead_letter d
    SET status = 'pending', attempts = d.attempts + 1, error = error,
        failed_at = statement_timestamp(), token = NULL, taken_at = NULL, deadline = NULL
    WHERE d.id = ANY (ARRAY(
        SELECT o.id FROM jobq.dead_letter o
        WHERE o.id = ANY (ids) AND o.status = 'reprocessing' AND o.token = token
        ORDER BY o.id FOR UPDATE)) AND d.token = token;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Gives pending dead letters up for good. They stay until cleanup.
-- id: only this one, of all that match. NULL: all. Answers how many. Errors: 22023.
--     select jobq.dead_letter_discard('orders', type => 'placed');
CREATE OR REPLACE FUNCTION jobq.dead_letter_discard(
    queue text DEFAULT NULL, partition integer DEFAULT NULL, type text DEFAULT NULL,
    at_most integer DEFAULT NULL, id bigint DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE v_count integer;
BEGIN
    PERFORM jobq._check_letters(queue, partition, type, at_most);
    UPDATE jobq.dead_letter d SET status = 'discarded', completed_at = statement_timestamp()
    WHERE d.id = ANY (ARRAY(
        SELECT o.id FROM jobq.dead_letter o
        WHERE o.id IN (SELECT l.id FROM jobq.dead_letter_list(
                           queue, partition, type, 'pending',
                           CASE WHEN id IS NULL THEN at_most END) l)
          AND o.status = 'pending' AND (id IS NULL OR o.id = id)
        ORDER BY o.id FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN jobq._operated('dead_letter_discard', jsonb_strip_nulls(jsonb_build_object(
        'queue', queue, 'partition', partition, 'type', type, 'id', id)), v_count);
END $$;

-- Deletes resolved and discarded dead letters, and answers how many.
-- NULL: all. Errors: 22023.
--     select jobq.dead_letter_cleanup('orders');
CREATE OR REPLACE FUNCTION jobq.dead_letter_cleanup(
    queue text DEFAULT NULL, partition integer DEFAULT NULL, type text DEFAULT NULL,
    at_most integer DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
#variable_conflict use_variable
DECLARE v_count integer;
BEGIN
    PERFORM jobq._check_letters(queue, partition, type, at_most);
    DELETE FROM jobq.dead_letter d WHERE d.id IN (
        SELECT o.id FROM jobq.dead_letter o JOIN jobq.queue q ON q.id = o.queue_id
        WHERE o.status IN ('resolved', 'discarded')
          AND (queue IS NULL OR q.name = queue COLLATE "C")
          AND (partition IS NULL OR o.partition_id & 32767 = partition)
          AND (type IS NULL OR o.type = type COLLATE "C")
        ORDER BY o.id LIMIT at_most FOR UPDATE OF o SKIP LOCKED);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN jobq._operated('dead_letter_cleanup', jsonb_build_object(
        'queue', queue, 'partition', partition, 'type', type), v_count);
END $$;

-- Whether any job of these queues has not ended, or any message of those queues is not
-- acknowledged, whoever holds it. A worker that ends when all work has ended asks this. The
-- table job holds nothing that has ended, so the first row of a queue is enough. The two lane
-- indexes together contain all jobs.
CREATE OR REPLACE FUNCTION jobq._remains(p_queues integer[], p_message_queues integer[])
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM unnest(p_queues) AS q (id)
        CROSS JOIN LATERAL (
            SELECT FROM jobq.job j WHERE j.queue_id = q.id
            AND NOT j.suspect AND j.line IS NULL LIMIT 1) AS one)
    OR EXISTS (
        SELECT FROM unnest(p_queues) AS q (id)
        CROSS JOIN LATERAL (
            SELECT FROM jobq.job j WHERE j.queue_id = q.id
            AND NOT j.suspect AND j.line IS NOT NULL LIMIT 1) AS one)
    OR EXISTS (
        SELECT FROM jobq.job j WHERE j.queue_id = ANY (p_queues) AND j.suspect)
    OR EXISTS (
        SELECT FROM unnest(p_message_queues) AS q (id)
        CROSS JOIN LATERAL (
            SELECT FROM jobq.message m
            WHERE m.partition_id BETWEEN q.id::bigint * 32768 AND q.id::bigint * 32768 + 32767
            LIMIT 1) AS one);
END $$;

-- ---- views for people ----------------------------------------------------------------------

-- Every partition: how far behind it is, who holds it, how it fares. lag: messages committed
-- and not acknowledged, counted up to 10,000; exact: there are no more. age and attempts: of
-- the next message.
CREATE OR REPLACE VIEW jobq.outbox AS
SELECT q.name AS queue, p.number::integer AS partition, m.lag, m.lag < 10000 AS exact, p.acked,
       CASE WHEN isfinite(m.oldest_at) THEN now() - m.oldest_at END AS age,
       (SELECT count(*) FROM unnest(p.tried) t WHERE t > p.acked)::integer AS attempts,
       CASE WHEN p.effective = 0 THEN 'normal' ELSE 'degraded' END AS mode,
       nullif(p.effective, 0) AS batch, p.failures, p.worker::text AS holder, p.lease_until,
       p.run_at, p.error, d.pending AS dead_letters, p.id, p.queue_id, p.worker
FROM jobq.partition p
JOIN jobq.queue q ON q.id = p.queue_id
CROSS JOIN LATERAL (
    SELECT count(*) AS lag, (array_agg(n.created_at))[1] AS oldest_at
    FROM (SELECT n.created_at FROM jobq.message n
          WHERE n.partition_id = p.id AND n.id > CASE WHEN p.numbered = p.acked THEN p.settled
                ELSE least(p.settled, p.ids[p.acked - p.base + 1] - 1) END
          ORDER BY n.id LIMIT 10000) AS n) AS m
CROSS JOIN LATERAL (
    SELECT count(*) AS pending FROM jobq.dead_letter l
    WHERE l.partition_id = p.id AND l.status = 'pending') AS d;

-- Dead letters with their queue's name and their partition's number.
CREATE OR REPLACE VIEW jobq.dead_letters AS
SELECT d.id, q.name AS queue, (d.partition_id & 32767)::integer AS partition, d.seq, d.status,
       d.attempts, d.error, d.type, d.created_at, d.failed_at, d.completed_at, d.deadline,
       d.payload, d.bytes, d.headers, d.partition_id, d.queue_id
FROM jobq.dead_letter d JOIN jobq.queue q ON q.id = d.queue_id;
