-- jobq, migration 3: the outbox. Messages are written in the caller's transaction, numbered
-- 1, 2, 3 … per partition after it committed, delivered in that order, and given up as whole
-- parts.
--
--     enqueue          number              read, handle, acknowledge        reclaim
--     -> incoming  ->  message (a ring) -> the partition's row moves on  -> TRUNCATE
--
-- incoming is an existence queue: a row is there until it is numbered, so a transaction that
-- commits late is numbered late, never skipped; nothing depends on transaction ids outliving a
-- dump, an upgrade or a failover. Three kinds of row move, each written by one party only:
--     counter     the last number given and how far incoming was looked at (the sequencer)
--     partition   what was acknowledged, tried, by whom (the holder of the lease)
--     message     immutable
--
-- A partition's id is computed, not looked up: queue id * 32768 + number.
--
-- One hot row per partition gets a new version with every batch. Behind a held snapshot none
-- of them can go, and a look-up through the index would walk them all. So counter and
-- partition rows are always sought backwards (id >= x AND id <= x ORDER BY id DESC LIMIT 1):
-- versions lie in the index by their place, the newest last, and the walk ends at the first
-- that is visible.

CREATE SEQUENCE jobq.incoming_id CACHE 1;

-- Written and not yet numbered. Usually nearly empty.
CREATE TABLE jobq.incoming (
    partition bigint NOT NULL,
    id bigint NOT NULL DEFAULT nextval('jobq.incoming_id'),
    created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    type text COLLATE "C",
    payload jsonb,
    bytes bytea,
    headers jsonb,
    PRIMARY KEY (partition, id),
    CHECK (payload IS NULL OR bytes IS NULL)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 50000);

-- The sequencer's row. seq: the last number given. durable: numbers up to this one outlive a
-- crash of the server, see outbox_number. lasts[s + 1]: the last number that lies in part s of
-- the ring. settled, swept*, mark*: how far incoming is known to be empty, see outbox_number.
-- reclaimed: numbers up to this one were deleted in pages.
CREATE TABLE jobq.counter (
    partition bigint PRIMARY KEY,
    seq bigint NOT NULL DEFAULT 0 CHECK (seq >= 0),
    durable bigint NOT NULL DEFAULT 0 CHECK (durable <= seq),
    settled bigint NOT NULL DEFAULT 0,
    swept bigint NOT NULL DEFAULT 0,
    swept_xid xid8 NOT NULL DEFAULT '0',
    swept_open integer NOT NULL DEFAULT 0,
    mark bigint NOT NULL DEFAULT 0,
    mark_xid xid8 NOT NULL DEFAULT '0',
    mark_at timestamptz NOT NULL DEFAULT '-infinity',
    reclaimed bigint NOT NULL DEFAULT 0,
    lasts bigint[] NOT NULL DEFAULT '{0,0,0,0}'
);

-- The holder's row. acked: every number up to this one is done. tried[i]: the highest number
-- beyond acked that was delivered at least i times; it never grows along the array, so the
-- attempts of message s are the number of elements >= s. reading: where the delivery now in
-- flight ends, 0 when none is. (worker, claim) is the lease token; beat counts every write,
-- for whoever watches it stand still. failures, effective, successes: PartitionMode (effective
-- 0: Normal). run_at: nobody is given messages before.
CREATE TABLE jobq.partition (
    id bigint PRIMARY KEY,
    queue_id integer NOT NULL,
    number smallint NOT NULL CHECK (number >= 0),
    acked bigint NOT NULL DEFAULT 0 CHECK (acked >= 0),
    reading bigint NOT NULL DEFAULT 0 CHECK (reading = 0 OR reading > acked),
    beat bigint NOT NULL DEFAULT 0,
    worker bigint,
    claim bigint,
    lease_us bigint,
    lease_until timestamptz,
    run_at timestamptz,
    failures bigint NOT NULL DEFAULT 0 CHECK (failures >= 0),
    effective bigint NOT NULL DEFAULT 0 CHECK (effective >= 0),
    successes bigint NOT NULL DEFAULT 0 CHECK (successes >= 0),
    tried bigint[] NOT NULL DEFAULT '{}',
    error text,
    CHECK (id = queue_id::bigint * 32768 + number),
    CHECK ((worker IS NULL) = (claim IS NULL) AND (worker IS NULL) = (lease_until IS NULL)
           AND (worker IS NULL) = (lease_us IS NULL) AND (worker IS NULL) = (reading = 0))
);

-- Numbered messages, in a ring of four parts. Only the part that meta names is written; it
-- turns when the next one holds nothing unacknowledged any more, and that one is emptied by
-- TRUNCATE. The key's index serves every read: one partition, in order of its numbers.
CREATE TABLE jobq.message (
    partition bigint NOT NULL,
    seq bigint NOT NULL,
    created_at timestamptz NOT NULL,
    slot smallint NOT NULL,
    type text COLLATE "C",
    payload jsonb,
    bytes bytea,
    headers jsonb,
    PRIMARY KEY (partition, seq, slot)
) PARTITION BY LIST (slot);

CREATE TABLE jobq.message_0 PARTITION OF jobq.message FOR VALUES IN (0);

CREATE TABLE jobq.message_1 PARTITION OF jobq.message FOR VALUES IN (1);

CREATE TABLE jobq.message_2 PARTITION OF jobq.message FOR VALUES IN (2);

CREATE TABLE jobq.message_3 PARTITION OF jobq.message FOR VALUES IN (3);

ALTER TABLE jobq.meta
    ADD message_slot smallint NOT NULL DEFAULT 0 CHECK (message_slot BETWEEN 0 AND 3),
    ADD message_slot_since timestamptz NOT NULL DEFAULT now();

-- Messages that were given up, with all they carried. One row per message, whatever happens
-- twice. token and deadline: of the replay that works on it.
CREATE TABLE jobq.dead_letter (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    queue_id integer NOT NULL,
    partition bigint NOT NULL,
    seq bigint NOT NULL,
    created_at timestamptz NOT NULL,
    failed_at timestamptz NOT NULL,
    completed_at timestamptz,
    token bigint,
    deadline timestamptz,
    attempts integer NOT NULL CHECK (attempts >= 0),
    status text NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'reprocessing', 'resolved', 'discarded')),
    type text COLLATE "C",
    error text,
    payload jsonb,
    bytes bytea,
    headers jsonb,
    UNIQUE (partition, seq),
    CHECK ((status = 'reprocessing') = (token IS NOT NULL)
           AND (token IS NULL) = (deadline IS NULL)),
    CHECK ((status IN ('resolved', 'discarded')) = (completed_at IS NOT NULL))
);

-- What replay looks for, in its order.
CREATE INDEX dead_letter_open ON jobq.dead_letter (deadline NULLS FIRST, id)
    WHERE status IN ('pending', 'reprocessing');

-- Lists, newest first, and retention.
CREATE INDEX dead_letter_failed_at ON jobq.dead_letter (status, failed_at);

-- What read and ack answer. answer: h held by the caller: the messages after acked follow; i
-- nothing to read, and not held; o held by another; w due in wait_us; b the row is locked just
-- now; l the lease was lost and nothing was written. tried: before the delivery that follows.
-- lost: where the delivery ended that its holder died over, 0 when none did. last: the highest
-- number given so far. worker, claim, beat: the holder's, what to watch; wait_us is then how
-- long, its lease.
CREATE TYPE jobq.delivery AS (
    answer "char", acked bigint, last bigint, tried bigint[], lost bigint, worker bigint,
    claim bigint, beat bigint, wait_us bigint, failures bigint, effective bigint,
    successes bigint, error text, created_ats timestamptz[], types text[], payloads jsonb[],
    bytes bytea[], headers jsonb[]
);

-- ---- queues with partitions ----------------------------------------------------------------

-- Gives a queue its partitions, a power of two, numbered from 0. Again, with the same number:
-- nothing. With another: the answer says how many there are, and nothing changes.
CREATE FUNCTION jobq.outbox_register(p_queue text, p_partitions integer,
                                     OUT queue_id integer, OUT partitions integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    queue_id := jobq.queue_id(p_queue);
    SELECT q.partitions INTO partitions FROM jobq.queue q WHERE q.id = queue_id;
    IF partitions > 0 THEN RETURN; END IF;
    SELECT q.partitions INTO partitions FROM jobq.queue q WHERE q.id = queue_id FOR UPDATE;
    IF partitions > 0 THEN RETURN; END IF;
    PERFORM jobq.outbox_widen(queue_id, 0, p_partitions);
    partitions := p_partitions;
END $$;

-- The rows of partitions p_from up to, but without, p_to.
CREATE FUNCTION jobq.outbox_widen(p_queue integer, p_from integer, p_to integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_to < 1 OR p_to > 16384 OR p_to & (p_to - 1) <> 0 THEN
        RAISE EXCEPTION 'partition count must be a power of 2, 1 to 16384: %', p_to
            USING ERRCODE = '22023';
    END IF;
    INSERT INTO jobq.partition (id, queue_id, number)
    SELECT p_queue::bigint * 32768 + n, p_queue, n FROM generate_series(p_from, p_to - 1) n;
    INSERT INTO jobq.counter (partition)
    SELECT p_queue::bigint * 32768 + n FROM generate_series(p_from, p_to - 1) n;
    UPDATE jobq.queue q SET partitions = p_to WHERE q.id = p_queue;
END $$;

-- More partitions for a queue. Keys then fall to other partitions, so the order of a key's
-- messages holds only across an empty queue: without p_anyway it refuses, with the number of
-- messages still under way. Producers are held off until the end of this transaction by the
-- lock, which every enqueue takes before it reads the number of partitions.
CREATE FUNCTION jobq.outbox_grow(p_queue text, p_partitions integer,
                                 p_anyway boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_queue jobq.queue;
    v_left bigint;
BEGIN
    PERFORM jobq.need_read_committed();
    LOCK TABLE jobq.incoming IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO v_queue FROM jobq.queue q WHERE q.name = p_queue FOR UPDATE;
    IF NOT FOUND OR v_queue.partitions = 0 THEN
        RAISE EXCEPTION 'queue ''%'' is not registered', p_queue USING ERRCODE = '22023';
    END IF;
    IF p_partitions < v_queue.partitions THEN
        RAISE EXCEPTION 'queue ''%'' has % partitions and can''t shrink to %', p_queue,
            v_queue.partitions, p_partitions USING ERRCODE = '22023';
    END IF;
    SELECT coalesce(sum(o.lag), 0) INTO v_left FROM jobq.outbox o WHERE o.queue = p_queue;
    IF v_left > 0 AND NOT p_anyway THEN
        RAISE EXCEPTION 'queue ''%'' has % messages under way', p_queue, v_left
            USING ERRCODE = '55006', HINT = 'Let them be delivered first, or, if the order '
                'of a key''s messages does not matter, grow it anyway.';
    END IF;
    PERFORM jobq.outbox_widen(v_queue.id, v_queue.partitions, p_partitions);
END $$;

-- The partitions of queues.
CREATE FUNCTION jobq.outbox_partitions(p_queues integer[])
RETURNS TABLE (partition bigint, queue_id integer, number smallint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT p.id, p.queue_id, p.number FROM jobq.partition p
                 WHERE p.queue_id = ANY (p_queues) ORDER BY p.id;
END $$;

-- ---- enqueue -------------------------------------------------------------------------------

-- The number that chooses an order key's partition: the first two bytes of its SHA-256, of
-- which the partition is the low bits. jobq.h has the same, with test vectors.
CREATE FUNCTION jobq.outbox_hash(p_key text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN ('x' || encode(substr(sha256(convert_to(p_key, 'UTF8')), 1, 2), 'hex'))::bit(16)
           ::integer;
END $$;

-- What an enqueue needs to know, and why it is refused. The lock is the one that writing takes
-- anyway; taken before the number of partitions is read, it lets outbox_grow change that
-- number with nobody in between; a transaction whose snapshot is older than that fails
-- (40001). The transaction gets its id before message ids are drawn: see outbox_number.
CREATE FUNCTION jobq.outbox_queue(p_queue text, p_lowest bigint, p_highest bigint,
                                  p_size bigint, OUT id integer, OUT partitions integer,
                                  OUT refused text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_max integer;
BEGIN
    LOCK TABLE jobq.incoming IN ROW EXCLUSIVE MODE;
    PERFORM pg_current_xact_id();
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        PERFORM FROM jobq.queue q WHERE q.name = p_queue FOR SHARE;
    END IF;
    SELECT q.id, q.partitions, q.message_max INTO id, partitions, v_max
    FROM jobq.queue q WHERE q.name = p_queue;
    IF NOT FOUND OR partitions = 0 THEN
        refused := format('queue ''%s'' is not registered', p_queue);
    ELSIF p_highest >= partitions OR p_lowest < 0 THEN
        refused := format('partition %s is out of range for queue ''%s'' (max %s)',
                          CASE WHEN p_lowest < 0 THEN p_lowest ELSE p_highest END, p_queue,
                          partitions);
    ELSIF p_size > v_max THEN
        refused := format('payload size %s exceeds maximum %s', p_size, v_max);
    END IF;
END $$;

-- Many messages of one queue in one statement, all or none. Element i of every array is
-- message i; an array may be NULL and so may its elements. The partition is p_partitions[i],
-- or chosen by p_hashes[i] (outbox_hash of the order key), which wins. ids are drawn first and
-- carried through, so that the order within a partition is that of the arrays. existed[i]: the
-- key was known in this queue, and nothing is written. refused: why nothing at all was; no
-- error is raised, so the caller's transaction goes on.
CREATE FUNCTION jobq.outbox_enqueue_many(
    p_queue text, p_partitions integer[], p_hashes integer[], p_types text[],
        p_payloads jsonb[],
    p_bytes bytea[], p_headers jsonb[], p_keys text[], p_count integer, p_size integer,
    p_notify boolean, OUT ids bigint[], OUT existed boolean[], OUT refused text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE v_queue record;
BEGIN
    SELECT q.id, q.partitions, q.refused INTO v_queue FROM jobq.outbox_queue(
        p_queue, (SELECT min(n) FROM unnest(p_partitions) n),
        (SELECT max(n) FROM unnest(p_partitions) n), p_size) q;
    refused := v_queue.refused;
    IF refused IS NOT NULL THEN RETURN; END IF;
    ids := ARRAY(SELECT nextval('jobq.incoming_id') FROM generate_series(1, p_count));
    IF p_keys IS NOT NULL THEN
        SELECT k.ids, k.existed INTO ids, existed
        FROM jobq.keep_keys(v_queue.id, p_keys, ids, statement_timestamp()) k;
    END IF;
    INSERT INTO jobq.incoming (partition, id, type, payload, bytes, headers)
    SELECT v_queue.id::bigint * 32768 + coalesce(u.hash & (v_queue.partitions - 1),
                                                 u.partition, 0),
           u.id, u.type, u.payload, u.bytes, u.headers
    FROM (SELECT unnest(ids) AS id, unnest(existed) AS existed,
                 unnest(p_partitions) AS partition, unnest(p_hashes) AS hash,
                 unnest(p_types) AS type, unnest(p_payloads) AS payload,
                 unnest(p_bytes) AS bytes, unnest(p_headers) AS headers) AS u
    WHERE u.existed IS NOT TRUE;
    IF p_notify THEN PERFORM jobq.wake(v_queue.id, 1); END IF;
END $$;

-- One message, lean.
CREATE FUNCTION jobq.outbox_enqueue_one(
    p_queue text, p_partition integer, p_hash integer, p_type text, p_payload jsonb,
    p_bytes bytea, p_headers jsonb, p_key text, p_size integer, p_notify boolean,
    OUT id bigint, OUT existed boolean, OUT refused text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE v_queue record;
BEGIN
    existed := false;
    SELECT q.id, q.partitions, q.refused INTO v_queue
    FROM jobq.outbox_queue(p_queue, p_partition, p_partition, p_size) q;
    refused := v_queue.refused;
    IF refused IS NOT NULL THEN RETURN; END IF;
    id := nextval('jobq.incoming_id');
    IF p_key IS NOT NULL THEN
        SELECT k.ids[1], k.existed[1] INTO id, existed FROM jobq.keep_keys(
            v_queue.id, ARRAY[p_key], ARRAY[id], statement_timestamp()) k;
        IF existed THEN RETURN; END IF;
    END IF;
    INSERT INTO jobq.incoming (partition, id, type, payload, bytes, headers)
    VALUES (v_queue.id::bigint * 32768 + coalesce(p_hash & (v_queue.partitions - 1),
                                                  p_partition, 0),
            id, p_type, p_payload, p_bytes, p_headers);
    IF p_notify THEN PERFORM jobq.wake(v_queue.id, 1); END IF;
END $$;

-- The same, as a person types it; refusals are errors. The key makes a repeated call find the
-- first message.
--     select jobq.outbox_enqueue('orders', '{"total": 5}', order_key => 'customer-7');
CREATE FUNCTION jobq.outbox_enqueue(
    queue text, payload jsonb DEFAULT NULL, partition integer DEFAULT NULL,
    order_key text DEFAULT NULL, type text DEFAULT NULL, bytes bytea DEFAULT NULL,
    headers jsonb DEFAULT NULL, key text DEFAULT NULL, notify boolean DEFAULT true)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v record;
BEGIN
    IF type !~ '^[ -~]+$' OR length(type) > 1024 THEN
        RAISE EXCEPTION 'invalid payload type: ''%''', type USING ERRCODE = '22023';
    END IF;
    SELECT e.id, e.refused INTO v FROM jobq.outbox_enqueue_one(
        queue, partition, jobq.outbox_hash(order_key), type, payload, bytes, headers, key,
        coalesce(octet_length(bytes), octet_length(payload::text)), notify) e;
    IF v.refused IS NOT NULL THEN
        RAISE EXCEPTION '%', v.refused USING ERRCODE = '22023';
    END IF;
    RETURN v.id;
END $$;

-- ---- numbering -----------------------------------------------------------------------------

-- How many transactions older than this one are under way.
CREATE FUNCTION jobq.open_before(p_xid xid8) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT count(*) FROM pg_snapshot_xip(pg_current_snapshot()) x WHERE x < p_xid);
END $$;

-- Numbers what has been committed to one queue's incoming, all partitions in one statement, at
-- most p_most messages of each; full: some partition had more. Partitions that another
-- sequencer has locked are left to it. Incoming rows are never skipped (a lock on one is
-- waited for), consumed rows are stored rows (checked), and the partition's counter moves in
-- the transaction that stores them: numbers are contiguous, and a rollback leaves no hole.
--
-- How much of the index is looked at. Numbered rows stay in it as dead ones until vacuumed,
-- for as long as someone holds a snapshot. So a look begins after a bound, below which nothing
-- can come any more:
--   mark      the last id drawn at some moment, and mark_xid, a transaction id assigned after
--             that moment. Whoever enqueues has a transaction id before it draws message ids;
--             so every transaction that can still bring an id up to mark is older than
--             mark_xid.
--   settled   an old mark all of whose older transactions have ended, as far as a later look
--             has numbered what there was. Exact: no transaction, however long, is passed by.
--   swept     while a writing transaction keeps the mark from settling for more than a second,
--             looks start here, and from settled once a second, and when one has ended of the
--             swept_open transactions that could still bring an id up to swept (those older
--             than swept_xid; no new ones come): what its session commits next is numbered
--             after it. Alone, it may be numbered a second later, not more.
-- p_sweep: from the beginning, whatever the bounds say; after a restart, and once a minute or,
-- where it takes seconds, more seldom.
--
-- p_relaxed: the commit need not wait for the disk when no more than so many messages were
-- numbered. A receiver knows a message by its number, which must not change once it was handed
-- out; and it doesn't: whoever takes a partition (outbox_read) waits for its own commit, which
-- lies later in the log, so then every number that it saw is on disk. A crash before that
-- leaves the log as it was sooner, and the messages incoming. Only the holder of a partition
-- reads on without waiting (outbox_ack). Hence durable: the last number given by a commit that
-- waited. Reading on beyond it, the holder's commit waits, too.
-- p_mark, p_mark_xid: the mark that an earlier queue of this transaction drew.
CREATE FUNCTION jobq.outbox_number(
    p_worker bigint, p_queue integer, p_most integer, p_sweep boolean, p_relaxed integer,
    INOUT p_mark bigint, INOUT p_mark_xid xid8,
    OUT partitions bigint[], OUT counts bigint[], OUT more boolean, OUT relaxed boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan SET work_mem = '64MB' AS $$
#variable_conflict use_column
DECLARE
    v_zero bigint := p_queue::bigint * 32768 - 1;
    v_xmin xid8 := pg_snapshot_xmin(pg_current_snapshot());
    v_long timestamptz := statement_timestamp() - interval '1 second';
    v_slot smallint;
    v_row record;
    v_rows tid[];
    v_locked bigint[];
    v_bounds bigint[];
    v_settled bigint[];
    v_open_xids xid8[];
    v_opens integer[];
    v_swept_opens integer[];
    v_over boolean[];
    v_whole boolean[];
    v_renew boolean[];
    v_marks bigint[];
    v_seqs bigint[];
    v_counts bigint[];
    v_upto bigint[];
    v_reached bigint[];
    v_stored bigint;
BEGIN
    more := false;
    -- A look without locks, so that an idle call writes nothing; but where it would pass many
    -- dead rows again each time, once, the bound.
    partitions := ARRAY(
        SELECT part.id
        FROM generate_series(v_zero + 1, v_zero + (
                 SELECT q.partitions FROM jobq.queue q WHERE q.id = p_queue)) AS part (id)
        CROSS JOIN LATERAL (
            SELECT CASE WHEN p_sweep THEN 0 WHEN c.mark_at < v_long THEN c.settled
                   ELSE greatest(c.settled, c.swept) END AS bound,
                   c.mark_xid < v_xmin AND c.mark - c.settled >= 5000 AS behind
            FROM jobq.counter c WHERE c.partition >= part.id AND c.partition <= part.id
            ORDER BY c.partition DESC LIMIT 1) AS c
        WHERE c.behind OR EXISTS (SELECT FROM jobq.incoming i
                                  WHERE i.partition = part.id AND i.id > c.bound));
    IF partitions = '{}' THEN RETURN; END IF;
    -- The sequence's own row may run 32 ahead while it writes its log record.
    IF p_mark_xid IS NULL AND pg_current_xact_id_if_assigned() IS NULL THEN
        p_mark := coalesce(pg_sequence_last_value('jobq.incoming_id'), 0);
        p_mark_xid := pg_current_xact_id();
    END IF;
    FOR v_row IN
        SELECT c.ctid, c.partition, c.partition - v_zero AS n, c.seq, c.settled, c.swept,
               c.mark, c.mark_xid < v_xmin AS over, c.mark_at < v_long AS long,
               c.swept_xid, CASE WHEN c.swept > c.settled THEN c.swept_open ELSE 0 END AS open,
               c.mark_xid,
               c.swept > c.settled AND jobq.open_before(c.swept_xid) < c.swept_open AS ended
        FROM unnest(partitions) AS part (id) CROSS JOIN LATERAL (
            SELECT c.ctid, c.* FROM jobq.counter c
            WHERE c.partition >= part.id AND c.partition <= part.id
            ORDER BY c.partition DESC LIMIT 1 FOR UPDATE SKIP LOCKED) AS c
    LOOP
        v_rows := v_rows || v_row.ctid;
        v_locked := v_locked || v_row.partition;
        v_seqs[v_row.n] := v_row.seq;
        v_counts[v_row.n] := 0;
        v_upto[v_row.n] := 9223372036854775807;
        v_over[v_row.n] := v_row.over;
        v_whole[v_row.n] := v_row.over OR v_row.long OR v_row.ended;
        v_renew[v_row.n] := (v_row.over OR v_row.long) AND p_mark_xid IS NOT NULL;
        v_marks[v_row.n] := v_row.mark;
        v_swept_opens[v_row.n] := CASE WHEN v_whole[v_row.n] AND NOT v_row.over
                                  THEN jobq.open_before(v_row.mark_xid) ELSE 0 END;
        v_settled := v_settled || CASE WHEN p_sweep THEN 0 ELSE v_row.settled END;
        v_bounds := v_bounds || CASE
            WHEN p_sweep THEN 0 WHEN v_whole[v_row.n] THEN v_row.settled
            ELSE greatest(v_row.settled, v_row.swept) END;
        v_open_xids := v_open_xids || v_row.swept_xid;
        v_opens := v_opens || CASE WHEN v_whole[v_row.n] THEN 0 ELSE v_row.open END;
    END LOOP;
    v_slot := (SELECT m.message_slot FROM jobq.meta m);
    WITH taken AS MATERIALIZED (
        -- One may have ended since the look above: by the snapshot of this one, then.
        SELECT next.* FROM (
            SELECT u.id, CASE WHEN u.open > 0 AND jobq.open_before(u.open_xid) < u.open
                         THEN u.settled ELSE u.bound END AS bound
            FROM unnest(v_locked, v_bounds, v_settled, v_open_xids, v_opens)
                 AS u (id, bound, settled, open_xid, open) OFFSET 0) AS part
        CROSS JOIN LATERAL (
            SELECT i.ctid, i.*,
                   v_seqs[part.id - v_zero] + row_number() OVER (ORDER BY i.id) AS seq
            FROM jobq.incoming i WHERE i.partition = part.id AND i.id > part.bound
            ORDER BY i.id LIMIT p_most) AS next
    ), stored AS (
        INSERT INTO jobq.message (partition, seq, created_at, slot, type, payload, bytes,
                                  headers)
        SELECT t.partition, t.seq, t.created_at, v_slot, t.type, t.payload, t.bytes, t.headers
        FROM taken t
        RETURNING 1
    ), gone AS (
        DELETE FROM jobq.incoming i WHERE i.ctid = ANY (ARRAY(SELECT t.ctid FROM taken t))
        RETURNING i.partition, i.id
    )
    SELECT coalesce(array_agg(g.partition), '{}'), array_agg(g.count), array_agg(g.max),
           (SELECT count(*) FROM stored)
    INTO partitions, counts, v_reached, v_stored
    FROM (SELECT g.partition, count(*), max(g.id) FROM gone g GROUP BY g.partition) g;
    IF v_stored <> (SELECT coalesce(sum(n), 0) FROM unnest(counts) n) THEN
        RAISE EXCEPTION 'took % messages and stored %', counts, v_stored;
    END IF;
    relaxed := p_relaxed > 0 AND v_stored <= p_relaxed;
    IF relaxed THEN PERFORM set_config('synchronous_commit', 'off', true);
    ELSIF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    FOR i IN 1 .. cardinality(partitions) LOOP
        v_counts[partitions[i] - v_zero] := counts[i];
        CONTINUE WHEN counts[i] < p_most;
        more := true;
        v_upto[partitions[i] - v_zero] := v_reached[i];
        IF v_reached[i] < v_marks[partitions[i] - v_zero] THEN
            v_renew[partitions[i] - v_zero] := false;
        END IF;
    END LOOP;
    UPDATE jobq.counter c
    SET seq = c.seq + v_counts[c.partition - v_zero],
        durable = CASE WHEN relaxed THEN c.durable
                  ELSE c.seq + v_counts[c.partition - v_zero] END,
        lasts[v_slot + 1] = CASE WHEN v_counts[c.partition - v_zero] > 0
                            THEN c.seq + v_counts[c.partition - v_zero]
                            ELSE c.lasts[v_slot + 1] END,
        settled = CASE WHEN v_over[c.partition - v_zero]
                  THEN greatest(c.settled, least(c.mark, v_upto[c.partition - v_zero]))
                  ELSE c.settled END,
        swept = CASE WHEN v_whole[c.partition - v_zero]
                THEN least(c.mark, v_upto[c.partition - v_zero]) ELSE c.swept END,
        swept_xid = CASE WHEN v_whole[c.partition - v_zero] THEN c.mark_xid
                    ELSE c.swept_xid END,
        swept_open = CASE WHEN v_whole[c.partition - v_zero]
                     THEN v_swept_opens[c.partition - v_zero] ELSE c.swept_open END,
        mark = CASE WHEN v_renew[c.partition - v_zero] THEN p_mark ELSE c.mark END,
        mark_xid = CASE WHEN v_renew[c.partition - v_zero] THEN p_mark_xid
                   ELSE c.mark_xid END,
        mark_at = CASE WHEN v_renew[c.partition - v_zero] THEN statement_timestamp()
                  ELSE c.mark_at END
    WHERE c.ctid = ANY (v_rows);
    PERFORM jobq.wake(p_queue,
                      greatest(cardinality(partitions) - (p_worker <> 0)::integer, 0));
END $$;

-- Numbers what has been committed to these queues, and looks. The first row: how many messages
-- were numbered, in waiting, and in due_us 1 when there are more. Then one row for each
-- partition with messages to read: how many wait, when they are due (0: now), and the token,
-- beat and lease of a holder. Whether the commit is relaxed, the first queue with messages
-- decides for all.
CREATE FUNCTION jobq.outbox_sequence(
    p_worker bigint, p_queues integer[], p_most integer, p_sweep boolean,
    p_relaxed integer DEFAULT 0)
RETURNS TABLE (partition bigint, queue_id integer, waiting bigint, due_us bigint,
               worker bigint, claim bigint, beat bigint, lease_us bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v record;
    v_mark bigint;
    v_mark_xid xid8;
BEGIN
    waiting := 0;
    due_us := 0;
    FOR i IN 1 .. cardinality(p_queues) LOOP
        SELECT * INTO v
        FROM jobq.outbox_number(p_worker, p_queues[i], p_most, p_sweep, p_relaxed, v_mark,
                                v_mark_xid);
        v_mark := v.p_mark;
        v_mark_xid := v.p_mark_xid;
        p_relaxed := CASE WHEN v.relaxed THEN 2147483647 WHEN NOT v.relaxed THEN 0
                     ELSE p_relaxed END;
        waiting := waiting + coalesce((SELECT sum(n) FROM unnest(v.counts) n), 0);
        due_us := greatest(due_us, v.more::integer);
    END LOOP;
    RETURN NEXT;
    RETURN QUERY
    SELECT part.id, q.id, c.seq - p.acked,
           greatest(extract(epoch FROM p.run_at - statement_timestamp()) * 1e6, 0)::bigint,
           coalesce(p.worker, 0), coalesce(p.claim, 0), p.beat, coalesce(p.lease_us, 0)
    FROM jobq.queue q
    CROSS JOIN generate_series(q.id::bigint * 32768, q.id::bigint * 32768 + q.partitions - 1)
         AS part (id)
    CROSS JOIN LATERAL (
        SELECT c.seq FROM jobq.counter c WHERE c.partition >= part.id
            AND c.partition <= part.id
        ORDER BY c.partition DESC LIMIT 1) AS c
    CROSS JOIN LATERAL (
        SELECT p.* FROM jobq.partition p WHERE p.id >= part.id AND p.id <= part.id
        ORDER BY p.id DESC LIMIT 1) AS p
    WHERE q.id = ANY (p_queues) AND c.seq > p.acked;
END $$;

-- ---- reading and acknowledging -------------------------------------------------------------

-- The messages p_first to p_last of a partition, as arrays in their order; all or an error.
-- The parts of the ring that they lie in are known from the counter's lasts, so the others are
-- not touched.
CREATE FUNCTION jobq.outbox_messages(
    p_partition bigint, p_first bigint, p_last bigint, p_lasts bigint[],
    OUT created_ats timestamptz[], OUT types text[], OUT payloads jsonb[], OUT bytes bytea[],
    OUT headers jsonb[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_slots smallint[];
    v_before bigint;
BEGIN
    FOR i IN 1 .. 4 LOOP
        CONTINUE WHEN p_lasts[i] < p_first;
        v_before := (SELECT max(l) FROM unnest(p_lasts) l WHERE l < p_lasts[i]);
        IF coalesce(v_before, 0) < p_last THEN v_slots := v_slots || (i - 1)::smallint; END IF;
    END LOOP;
    SELECT array_agg(m.created_at), array_agg(m.type), array_agg(m.payload),
        array_agg(m.bytes),
           array_agg(m.headers)
    INTO created_ats, types, payloads, bytes, headers
    FROM (SELECT * FROM jobq.message m
          WHERE m.partition = p_partition AND m.seq BETWEEN p_first AND p_last
            AND m.slot = ANY (v_slots)
          ORDER BY m.seq) AS m;
    IF coalesce(cardinality(created_ats), 0) <> p_last - p_first + 1 THEN
        RAISE EXCEPTION 'messages % to % of partition %: only % found', p_first, p_last,
            p_partition, coalesce(cardinality(created_ats), 0) USING ERRCODE = 'XX001';
    END IF;
END $$;

-- tried with one more delivery, up to p_last: entries that are acknowledged drop out, the new
-- one takes its place in the descending order. At most 100 are told apart.
CREATE FUNCTION jobq.outbox_tried(p_tried bigint[], p_acked bigint, p_last bigint)
RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_tried = '{}' THEN RETURN ARRAY[p_last]; END IF;
    RETURN (ARRAY(SELECT t FROM unnest(p_tried || p_last) t WHERE t > p_acked
                  ORDER BY t DESC))[1:100];
END $$;

-- Takes a partition, or reads again under its own hold, at most p_most messages. Who may take
-- it: anyone when nobody holds it; and anyone who has watched the holder (p_watched_*: what an
-- earlier answer said) stand still for its whole lease, when that has expired by this
-- database's clock too. The delivery is counted here, before any handler runs, so that a crash
-- leaves its trace; after a holder that died over messages, one at a time is given at first.
-- p_handed: what the caller's own earlier claims had read is taken back, because no handler
-- had it, unless it was this claim: that one counts. NULL: each counts. An older claim than
-- the one that stands there comes too late. An idle read writes nothing, and a row that
-- someone is just writing is not waited for.
CREATE FUNCTION jobq.outbox_read(
    p_worker bigint, p_claim bigint, p_lease_us bigint, p_partition bigint, p_most integer,
    p_handed bigint DEFAULT NULL, p_watched_worker bigint DEFAULT NULL,
    p_watched_claim bigint DEFAULT NULL, p_watched_beat bigint DEFAULT NULL)
RETURNS jobq.delivery LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    v_now timestamptz := statement_timestamp();
    v_row jobq.partition;
    v_lasts bigint[];
    v_last bigint;
    v_at integer;
    v_keep boolean;
    v_own boolean;
    v jobq.delivery;
BEGIN
    SELECT p.* INTO v_row FROM jobq.partition p
    WHERE p.id >= p_partition AND p.id <= p_partition ORDER BY p.id DESC LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'partition % does not exist', p_partition USING ERRCODE = '22023';
    END IF;
    SELECT c.seq, c.lasts INTO v.last, v_lasts FROM jobq.counter c
    WHERE c.partition >= p_partition AND c.partition <= p_partition
    ORDER BY c.partition DESC LIMIT 1;
    v.acked := v_row.acked;
    v.tried := v_row.tried;
    v.lost := v_row.reading;
    v.failures := v_row.failures;
    v.effective := v_row.effective;
    v.successes := v_row.successes;
    v.error := v_row.error;
    v_own := coalesce(v_row.worker = p_worker, false);
    IF v_own AND v_row.claim > p_claim THEN
        v.answer := 'b';
        v.lost := 0;
        RETURN v;
    END IF;
    IF v_row.worker IS NOT NULL AND NOT v_own
       AND (v_row.lease_until >= v_now
            OR (v_row.worker, v_row.claim, v_row.beat) IS DISTINCT FROM
               (p_watched_worker, p_watched_claim, p_watched_beat)) THEN
        v.answer := 'o';
        v.lost := 0;
        v.worker := v_row.worker;
        v.claim := v_row.claim;
        v.beat := v_row.beat;
        v.wait_us := v_row.lease_us;
        RETURN v;
    END IF;
    IF v_own AND v_row.claim <> p_handed THEN
        v.lost := 0;
        v_at := coalesce(array_position(v.tried, v_row.reading), 101);
        v.tried := v.tried[: v_at - 1] || v.tried[v_at + 1 :];
    ELSIF v.lost > 0 THEN
        v.effective := 1;
        v.successes := 0;
    END IF;
    v_last := least(v.last, v.acked + CASE
        WHEN v.effective > 0 THEN least(v.effective, p_most) ELSE p_most END);
    v.answer := CASE WHEN v_row.run_at > v_now THEN 'w' WHEN v_last = v.acked THEN 'i'
                ELSE 'h' END;
    v.wait_us := (extract(epoch FROM v_row.run_at - v_now) * 1e6)::bigint;
    v_keep := v.answer = 'h';
    IF NOT v_keep AND v_row.worker IS NULL THEN RETURN v; END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    UPDATE jobq.partition p
    SET beat = p.beat + 1, worker = CASE WHEN v_keep THEN p_worker END,
        claim = CASE WHEN v_keep THEN p_claim END,
        lease_us = CASE WHEN v_keep THEN p_lease_us END,
        lease_until = CASE WHEN v_keep THEN v_now + p_lease_us * interval '1 microsecond' END,
        reading = CASE WHEN v_keep THEN v_last ELSE 0 END,
        run_at = CASE WHEN NOT v_keep THEN p.run_at END,
        tried = CASE WHEN v_keep THEN jobq.outbox_tried(v.tried, v.acked, v_last)
                ELSE v.tried END,
        effective = v.effective, successes = v.successes
    WHERE p.ctid = ANY (ARRAY(
        SELECT r.ctid FROM jobq.partition r WHERE r.id >= p_partition AND r.id <= p_partition
        ORDER BY r.id DESC LIMIT 1 FOR UPDATE SKIP LOCKED)) AND p.beat = v_row.beat
    RETURNING p.worker, p.claim, p.beat INTO v.worker, v.claim, v.beat;
    IF NOT FOUND THEN
        v.answer := 'b';
        v.lost := 0;
    ELSIF v_keep THEN
        SELECT m.created_ats, m.types, m.payloads, m.bytes, m.headers
        INTO v.created_ats, v.types, v.payloads, v.bytes, v.headers
        FROM jobq.outbox_messages(p_partition, v.acked + 1, v_last, v_lasts) m;
    END IF;
    RETURN v;
END $$;

-- Acknowledges what jobq.h planned, under the fence, and reads on: one row changes, however
-- many messages it was. acked (from p_before), tried, PartitionMode and error become what is
-- given; messages to be given up are copied to dead_letter (element i of p_dead_*). p_most >
-- 0: the next messages follow, under the same lease renewed; when there are none, or p_most is
-- 0, the partition is released, and p_delay_us > 0: nobody is given messages before. The lease
-- lost, or this acknowledgement written before: nothing is written, answer l; or, in the
-- transaction of a handler (p_raise), an error, so that its COMMIT can't succeed.
-- p_relaxed: this transaction's commit need not wait for the disk. A server that crashes may
-- then find the partition as it was before, under the same hold: the messages come again.
-- Nobody else gets them sooner, since taking a partition does wait. Reading on to messages
-- whose numbers might not be on disk yet waits all the same, see outbox_number.
-- The row is locked by a statement of its own: an UPDATE by ctid that has waited for another
-- writer (a renewal) finds the old place, and minors since November 2025 then let it go.
CREATE FUNCTION jobq.outbox_ack(
    p_worker bigint, p_claim bigint, p_lease_us bigint, p_partition bigint, p_before bigint,
    p_acked bigint, p_tried bigint[], p_failures bigint, p_effective bigint,
    p_successes bigint, p_error text, p_delay_us bigint, p_dead_seqs bigint[],
    p_dead_errors text[], p_dead_attempts integer[], p_most integer, p_raise boolean,
    p_relaxed boolean DEFAULT false)
RETURNS jobq.delivery LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    v_now timestamptz := statement_timestamp();
    v_lasts bigint[];
    v_last bigint := p_acked;
    v_durable bigint;
    v_keep boolean;
    v jobq.delivery;
BEGIN
    SELECT c.seq, c.durable, c.lasts INTO v.last, v_durable, v_lasts FROM jobq.counter c
    WHERE c.partition >= p_partition AND c.partition <= p_partition
    ORDER BY c.partition DESC LIMIT 1;
    IF p_most > 0 AND p_delay_us <= 0 THEN v_last := least(v.last, p_acked + p_most); END IF;
    v_keep := v_last > p_acked;
    IF p_relaxed AND (v_last <= v_durable OR NOT v_keep) THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    ELSIF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM FROM jobq.partition r
    WHERE r.id >= p_partition AND r.id <= p_partition
    ORDER BY r.id DESC LIMIT 1 FOR NO KEY UPDATE;
    UPDATE jobq.partition p
    SET acked = p_acked, beat = p.beat + 1, worker = CASE WHEN v_keep THEN p_worker END,
        claim = CASE WHEN v_keep THEN p_claim END,
        lease_us = CASE WHEN v_keep THEN p_lease_us END,
        lease_until = CASE WHEN v_keep THEN v_now + p_lease_us * interval '1 microsecond' END,
        reading = CASE WHEN v_keep THEN v_last ELSE 0 END,
        run_at = CASE WHEN p_delay_us > 0
                 THEN v_now + p_delay_us * interval '1 microsecond' END,
        tried = CASE WHEN v_keep THEN jobq.outbox_tried(p_tried, p_acked, v_last)
                ELSE p_tried END,
        failures = p_failures, effective = p_effective, successes = p_successes,
        error = p_error
    WHERE p.ctid = ANY (ARRAY(
        SELECT r.ctid FROM jobq.partition r WHERE r.id >= p_partition AND r.id <= p_partition
        ORDER BY r.id DESC LIMIT 1))
      AND p.worker = p_worker AND p.claim = p_claim AND p.acked = p_before
      AND p_acked BETWEEN p_before AND p.reading
    RETURNING p.worker, p.claim, p.beat INTO v.worker, v.claim, v.beat;
    IF NOT FOUND THEN
        IF p_raise THEN
            RAISE EXCEPTION 'lease lost on partition %', p_partition USING ERRCODE = 'JQ001',
                HINT = 'Another worker has, or had, this partition: roll back.';
        END IF;
        v.answer := 'l';
        RETURN v;
    END IF;
    IF p_dead_seqs <> '{}' THEN
        PERFORM jobq.outbox_bury(p_partition, p_dead_seqs, p_dead_errors, p_dead_attempts);
    END IF;
    v.answer := CASE WHEN v_keep THEN 'h' ELSE 'i' END;
    v.acked := p_acked;
    v.tried := p_tried;
    v.lost := 0;
    v.failures := p_failures;
    v.effective := p_effective;
    v.successes := p_successes;
    v.error := p_error;
    IF v_keep THEN
        SELECT m.created_ats, m.types, m.payloads, m.bytes, m.headers
        INTO v.created_ats, v.types, v.payloads, v.bytes, v.headers
        FROM jobq.outbox_messages(p_partition, p_acked + 1, v_last, v_lasts) m;
    END IF;
    RETURN v;
END $$;

-- Copies messages to dead_letter, all in one statement.
CREATE FUNCTION jobq.outbox_bury(p_partition bigint, p_seqs bigint[], p_errors text[],
                                 p_attempts integer[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off AS $$
DECLARE v_count integer;
BEGIN
    INSERT INTO jobq.dead_letter (queue_id, partition, seq, created_at, failed_at, attempts,
                                  type, error, payload, bytes, headers)
    SELECT m.partition >> 15, m.partition, m.seq, m.created_at, statement_timestamp(),
           p_attempts[array_position(p_seqs, m.seq)], m.type,
           p_errors[array_position(p_seqs, m.seq)], m.payload, m.bytes, m.headers
    FROM jobq.message m
    WHERE m.partition = p_partition AND m.seq = ANY (p_seqs)
    ON CONFLICT (partition, seq) DO NOTHING;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count < cardinality(p_seqs) AND cardinality(p_seqs) > (
        SELECT count(*) FROM jobq.dead_letter d
        WHERE d.partition = p_partition AND d.seq = ANY (p_seqs)) THEN
        RAISE EXCEPTION 'messages % of partition % not found', p_seqs, p_partition
            USING ERRCODE = 'XX001';
    END IF;
END $$;

-- Renews the hold on partitions, in the order of their ids; answers those that were lost. The
-- row is locked first, see outbox_ack.
CREATE FUNCTION jobq.outbox_renew(p_worker bigint, p_lease_us bigint, p_partitions bigint[],
                                  p_claims bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_lost bigint[] := '{}';
    v record;
BEGIN
    FOR v IN SELECT * FROM unnest(p_partitions, p_claims) AS u (partition, claim)
             ORDER BY u.partition LOOP
        PERFORM FROM jobq.partition r
        WHERE r.id >= v.partition AND r.id <= v.partition
        ORDER BY r.id DESC LIMIT 1 FOR NO KEY UPDATE;
        UPDATE jobq.partition p
        SET beat = p.beat + 1,
            lease_until = statement_timestamp() + p_lease_us * interval '1 microsecond'
        WHERE p.ctid = ANY (ARRAY(
            SELECT r.ctid FROM jobq.partition r
            WHERE r.id >= v.partition AND r.id <= v.partition ORDER BY r.id DESC LIMIT 1))
          AND p.worker = p_worker AND p.claim = v.claim;
        IF NOT FOUND THEN v_lost := v_lost || v.partition; END IF;
    END LOOP;
    RETURN v_lost;
END $$;

-- ---- reclaim -------------------------------------------------------------------------------

-- What looks again under a lock has to see what was committed before it got it.
CREATE FUNCTION jobq.need_read_committed() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT LIKE 'read %' THEN
        RAISE EXCEPTION 'not in a transaction that is %',
            current_setting('transaction_isolation') USING ERRCODE = '25001',
            HINT = 'Begin one that is READ COMMITTED.';
    END IF;
END $$;

-- Gives back the room of acknowledged messages; true: call again soon. A part of the ring
-- whose messages are all acknowledged is emptied by TRUNCATE, whatever else goes on; if
-- someone reads in it, it is left for the next call after 50 ms. The ring turns when the part
-- now written is 5 s old and the next one is empty. While a partition that does not move on
-- keeps it from turning, the acknowledged messages of the others are deleted, p_most a call.
CREATE FUNCTION jobq.outbox_reclaim(p_most integer) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
SET enable_hashjoin = off SET jit = off AS $$
DECLARE
    v_meta jobq.meta;
    v_next smallint;
    v_more boolean := false;
BEGIN
    PERFORM jobq.need_read_committed();
    SELECT * INTO v_meta FROM jobq.meta m FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN RETURN false; END IF;
    FOR i IN 1 .. 3 LOOP
        PERFORM jobq.outbox_empty(((v_meta.message_slot + i) % 4)::smallint);
    END LOOP;
    v_next := (v_meta.message_slot + 1) % 4;
    IF v_meta.message_slot_since < statement_timestamp() - interval '5 seconds'
       AND EXISTS (SELECT FROM jobq.message m WHERE m.slot = v_meta.message_slot) THEN
        IF NOT EXISTS (SELECT FROM jobq.message m WHERE m.slot = v_next) THEN
            UPDATE jobq.meta
            SET message_slot = v_next, message_slot_since = statement_timestamp();
        ELSE
            v_more := jobq.outbox_delete(p_most) = p_most;
        END IF;
    END IF;
    RETURN v_more;
END $$;

-- Empties one part of the ring if all in it is acknowledged. That is asked again under the
-- lock: a sequencer that had looked up the part before the ring turned may just have written.
CREATE FUNCTION jobq.outbox_empty(p_slot smallint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jobq.outbox_needed(p_slot)
       OR NOT EXISTS (SELECT FROM jobq.message m WHERE m.slot = p_slot) THEN
        RETURN;
    END IF;
    IF p_slot = 0 THEN LOCK TABLE jobq.message_0;
    ELSIF p_slot = 1 THEN LOCK TABLE jobq.message_1;
    ELSIF p_slot = 2 THEN LOCK TABLE jobq.message_2;
    ELSE LOCK TABLE jobq.message_3;
    END IF;
    IF jobq.outbox_needed(p_slot) THEN RETURN; END IF;
    IF p_slot = 0 THEN TRUNCATE jobq.message_0;
    ELSIF p_slot = 1 THEN TRUNCATE jobq.message_1;
    ELSIF p_slot = 2 THEN TRUNCATE jobq.message_2;
    ELSE TRUNCATE jobq.message_3;
    END IF;
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END $$;

-- Whether a part of the ring holds a message that is not acknowledged.
CREATE FUNCTION jobq.outbox_needed(p_slot smallint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (SELECT FROM jobq.counter c JOIN jobq.partition p ON p.id = c.partition
                   WHERE c.lasts[p_slot + 1] > p.acked);
END $$;

-- Deletes acknowledged messages in bounded pages, each partition in its turn; says how many.
CREATE FUNCTION jobq.outbox_delete(p_most integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
    v_part record;
    v_upto bigint;
    v_count integer;
    v_total integer := 0;
BEGIN
    FOR v_part IN
        SELECT c.partition, c.reclaimed, p.acked
        FROM jobq.counter c JOIN jobq.partition p ON p.id = c.partition
        WHERE c.reclaimed < p.acked ORDER BY c.reclaimed - p.acked FOR UPDATE OF c SKIP LOCKED
    LOOP
        v_upto := (SELECT max(page.seq) FROM (
            SELECT m.seq FROM jobq.message m
            WHERE m.partition = v_part.partition AND m.seq > v_part.reclaimed
              AND m.seq <= v_part.acked
            ORDER BY m.seq LIMIT p_most - v_total) AS page);
        DELETE FROM jobq.message m
        WHERE m.partition = v_part.partition AND m.seq > v_part.reclaimed AND m.seq <= v_upto;
        GET DIAGNOSTICS v_count = ROW_COUNT;
        v_total := v_total + v_count;
        UPDATE jobq.counter c SET reclaimed = coalesce(v_upto, v_part.acked)
        WHERE c.partition = v_part.partition;
        EXIT WHEN v_total >= p_most;
    END LOOP;
    RETURN v_total;
END $$;

-- ---- dead letters --------------------------------------------------------------------------
--
--     pending -> reprocessing -> resolved
--        |  ^________|  (reject, or a new replay after the deadline)
--        `-> discarded
--
-- Arguments that choose: a NULL chooses all. A replay works under a token that its caller made
-- up at random and a deadline; resolve and reject touch only what that token holds, so one
-- that comes after the deadline and after another's replay changes nothing.

CREATE FUNCTION jobq.dead_letter_list(
    p_queue text DEFAULT NULL, p_partition integer DEFAULT NULL, p_type text DEFAULT NULL,
    p_status text DEFAULT 'pending', p_limit integer DEFAULT 100)
RETURNS SETOF jobq.dead_letter LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT d.* FROM jobq.dead_letter d JOIN jobq.queue q ON q.id = d.queue_id
    WHERE (p_queue IS NULL OR q.name = p_queue)
      AND (p_partition IS NULL OR d.partition & 32767 = p_partition)
      AND (p_type IS NULL OR d.type = p_type) AND (p_status IS NULL OR d.status = p_status)
    ORDER BY d.failed_at DESC, d.id DESC LIMIT p_limit;
END $$;

CREATE FUNCTION jobq.dead_letter_count(
    p_queue text DEFAULT NULL, p_partition integer DEFAULT NULL, p_type text DEFAULT NULL,
    p_status text DEFAULT 'pending') RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT count(*)
            FROM jobq.dead_letter_list(p_queue, p_partition, p_type, p_status, NULL));
END $$;

-- Takes dead letters to work on them: pending ones, and those of a replay whose deadline has
-- passed, which counts as an attempt. Answers them as they are now.
CREATE FUNCTION jobq.dead_letter_replay(
    p_token bigint, p_timeout_us bigint, p_queue text DEFAULT NULL,
    p_partition integer DEFAULT NULL, p_type text DEFAULT NULL, p_limit integer DEFAULT 100)
RETURNS SETOF jobq.dead_letter LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
    RETURN QUERY
    UPDATE jobq.dead_letter d
    SET status = 'reprocessing', token = p_token,
        deadline = statement_timestamp() + p_timeout_us * interval '1 microsecond',
        attempts = d.attempts + (d.status = 'reprocessing')::integer
    WHERE d.id = ANY (ARRAY(
        SELECT o.id FROM jobq.dead_letter o
        WHERE o.status IN ('pending', 'reprocessing')
          AND (o.status = 'pending' OR o.deadline < statement_timestamp())
          AND (p_queue IS NULL
               OR o.queue_id = (SELECT q.id FROM jobq.queue q WHERE q.name = p_queue))
          AND (p_partition IS NULL OR o.partition & 32767 = p_partition)
          AND (p_type IS NULL OR o.type = p_type)
        ORDER BY o.deadline NULLS FIRST, o.id LIMIT p_limit FOR UPDATE SKIP LOCKED))
    RETURNING d.*;
END $$;

-- Ends the replay of these dead letters; says how many it still held.
CREATE FUNCTION jobq.dead_letter_resolve(p_token bigint, p_ids bigint[]) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_count integer;
BEGIN
    UPDATE jobq.dead_letter d
    SET status = 'resolved', completed_at = statement_timestamp(), token = NULL,
        deadline = NULL
    WHERE d.id = ANY (ARRAY(
        SELECT o.id FROM jobq.dead_letter o
        WHERE o.id = ANY (p_ids) AND o.status = 'reprocessing' AND o.token = p_token
        ORDER BY o.id FOR UPDATE)) AND d.token = p_token;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- The replay of these failed again: pending, with an attempt more and a new reason.
CREATE FUNCTION jobq.dead_letter_reject(p_token bigint, p_ids bigint[], p_error text)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_count integer;
BEGIN
    UPDATE jobq.dead_letter d
    SET status = 'pending', attempts = d.attempts + 1, error = p_error,
        failed_at = statement_timestamp(), token = NULL, deadline = NULL
    WHERE d.id = ANY (ARRAY(
        SELECT o.id FROM jobq.dead_letter o
        WHERE o.id = ANY (p_ids) AND o.status = 'reprocessing' AND o.token = p_token
        ORDER BY o.id FOR UPDATE)) AND d.token = p_token;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Gives pending ones up for good; they stay until cleaned up.
CREATE FUNCTION jobq.dead_letter_discard(
    p_queue text DEFAULT NULL, p_partition integer DEFAULT NULL, p_type text DEFAULT NULL,
    p_limit integer DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_count integer;
BEGIN
    UPDATE jobq.dead_letter d SET status = 'discarded', completed_at = statement_timestamp()
    WHERE d.id = ANY (ARRAY(
        SELECT o.id FROM jobq.dead_letter o
        WHERE o.id IN (SELECT l.id FROM jobq.dead_letter_list(
                           p_queue, p_partition, p_type, 'pending', p_limit) l)
          AND o.status = 'pending'
        ORDER BY o.id FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Deletes resolved and discarded ones; says how many.
CREATE FUNCTION jobq.dead_letter_cleanup(
    p_queue text DEFAULT NULL, p_partition integer DEFAULT NULL, p_type text DEFAULT NULL,
    p_limit integer DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_count integer;
BEGIN
    DELETE FROM jobq.dead_letter d WHERE d.id IN (
        SELECT o.id FROM jobq.dead_letter o JOIN jobq.queue q ON q.id = o.queue_id
        WHERE o.status IN ('resolved', 'discarded') AND (p_queue IS NULL OR q.name = p_queue)
          AND (p_partition IS NULL OR o.partition & 32767 = p_partition)
          AND (p_type IS NULL OR o.type = p_type)
        ORDER BY o.id LIMIT p_limit FOR UPDATE OF o SKIP LOCKED);
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Whether any job of these queues has not ended, or any message of those is not acknowledged,
-- in whosever hands; asked by a worker that is to end when all have. The table of jobs holds
-- nothing that has ended, so the first row of a queue says enough; two lane indexes have all.
CREATE FUNCTION jobq.remains(p_queues integer[], p_message_queues integer[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM unnest(p_queues) AS q (id)
        CROSS JOIN LATERAL (
            SELECT FROM jobq.job j WHERE j.queue_id = q.id AND NOT j.suspect LIMIT 1) AS one)
    OR EXISTS (
        SELECT FROM jobq.job j WHERE j.queue_id = ANY (p_queues) AND j.suspect)
    OR EXISTS (
        SELECT FROM jobq.partition p JOIN jobq.counter c ON c.partition = p.id
        WHERE p.queue_id = ANY (p_message_queues)
          AND (c.seq > p.acked
               OR EXISTS (SELECT FROM jobq.incoming n WHERE n.partition = p.id)));
END $$;

-- ---- views for people ----------------------------------------------------------------------

-- Every partition: how far it is behind, who holds it, how it fares. lag: messages committed
-- and not acknowledged; attempts: of the message that is next.
CREATE VIEW jobq.outbox AS
SELECT q.name AS queue, p.number::integer AS partition,
       i.incoming + c.seq - p.acked AS lag, i.incoming, c.seq AS numbered, p.acked,
       now() - coalesce((SELECT m.created_at FROM jobq.message m
                         WHERE m.partition = p.id AND m.seq = p.acked + 1),
                             i.oldest_at) AS age,
       (SELECT count(*) FROM unnest(p.tried) t WHERE t > p.acked)::integer AS attempts,
       CASE WHEN p.effective = 0 THEN 'normal' ELSE 'degraded' END AS mode,
       nullif(p.effective, 0) AS batch, p.failures, to_hex(p.worker) AS holder, p.lease_until,
       p.run_at, p.error, d.pending AS dead_letters, p.id, p.queue_id, p.worker
FROM jobq.partition p
JOIN jobq.queue q ON q.id = p.queue_id
JOIN jobq.counter c ON c.partition = p.id
CROSS JOIN LATERAL (
    SELECT count(*) AS incoming, min(n.created_at) AS oldest_at FROM jobq.incoming n
    WHERE n.partition = p.id) AS i
CROSS JOIN LATERAL (
    SELECT count(*) AS pending FROM jobq.dead_letter l
    WHERE l.partition = p.id AND l.status = 'pending') AS d;

-- Dead letters with their queue's name and their partition's number.
CREATE VIEW jobq.dead_letters AS
SELECT d.id, q.name AS queue, (d.partition & 32767)::integer AS partition, d.seq, d.status,
       d.attempts, d.error, d.type, d.created_at, d.failed_at, d.completed_at, d.deadline,
       d.payload, d.bytes, d.headers, d.partition AS partition_id, d.queue_id
FROM jobq.dead_letter d JOIN jobq.queue q ON q.id = d.queue_id;

UPDATE jobq.meta SET version = 3;
