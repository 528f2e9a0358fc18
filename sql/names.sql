-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- jobq, current text: names; and what all chapters have in common. A statement that the
-- library sends is a call of one function, so that psql, any language and any pooler can send
-- it too.
--
-- Three sorts of functions: those for people, and work_* for workers in other languages, have
-- plain names; those that the library sends, and those that only functions call, begin with an
-- underscore. `\df jobq.[a-z]*` lists the first.
--
-- Why plpgsql functions with SET clauses. The hot statements must read their lanes by the lane
-- index in order, whatever the statistics say. A plan that was cached on an empty table took
-- 1,495 ms instead of 2, and a table that was never analysed sorted the whole lane. So
-- sequential scans, bitmap scans, sorts, hash and merge joins and JIT are off inside these
-- functions, and only there. claim and complete also use generic plans: planned again at each
-- call, the two cost 0.317 ms for one job instead of 0.146.
-- search_path is fixed, so nothing in another schema is called by mistake.
-- statement_timestamp() is used, not now(), because a caller's transaction may be old.
--
-- Most decisions come from jobq.h as parameters. Those about rows that C has not read are made
-- here: claim (which jobs may be taken), rescue (crash and suspect), cancel, revive, enqueue
-- (defaults). These rules stand in both places, and a test holds each pair together. Those
-- that jobq.h does not need are in tests/model/ (model_...):
--     rule                          here                       in C               test_pg_...
--     what an event makes of a job  _work_decide, _rescue      jobq_job_decide    differential
--     backoff                       _work_backoff              jobq_backoff_delay differential
--     who may rescue whom           work_rescue, _rescue       jobq__victim       leases
--     a key that is known           _known_decide              model_known_decide unique
--     whether an end serves         _edges_end                 jobq__end_serves   conform
--     a share of a quota            _permit_fair, _permit_share model_permit_...   permits
--     tokens of a rate              _tokens_move, _rate_chunk  model_tokens_...   permits
--     the room of a line            _line_rooms                jobq__line_room    conform
--     a cron expression             _cron_parse                jobq_cron_parse    calendar
--     the times of one              _cron_next                 model_cron_next    calendar
--
-- State letters: r ready, x running, s succeeded, f failed, c cancelled, w waits.
-- Answers about a claimed job: l lost (the row no longer has the token), b busy (the row is
-- locked; send again).
--
-- SQLSTATEs of jobq's own; jobq_pg.h knows them in jobq_pg__classes:
--     JQ000  rolls back what a function has only tried; it never leaves the function
--     JQ001  the lease is lost: another worker has, or had, this job or partition
--     JQ002  the worker is dead: it must register again
--     JQ003  the queue is not registered for messages
--     JQ004  the worker may not register: this database is a copy of another one, or a queue
--            has a limit that a worker in SQL does not keep
--     JQ005  too many jobs wait in this line
--     JQ006  a job or flow that is waited for is gone
--     JQ007  another job has the key
-- Those of Postgres where they fit: 22023 an argument is refused, 40001 try again, 25001 wrong
-- kind of transaction, 55000 and 55006 not now, XX001 the tables contradict each other.

-- Refuses an argument, with the same words and field name as the C library: p_why says what
-- it must be, or what it is not. p_value: what was given, which the C library finds in
-- DATATYPE.
CREATE OR REPLACE FUNCTION jobq._refuse(
    p_field text, p_why text, p_hint text DEFAULT '', p_value text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_value text := left(p_value, 63);
    v_text text := concat('invalid ', p_field, ': ', p_why, ' (it is ''' || v_value || ''')');
BEGIN
    IF p_hint = '' THEN -- psql would print a hint without a text
        RAISE EXCEPTION '%', v_text
            USING ERRCODE = '22023', COLUMN = p_field, DATATYPE = coalesce(v_value, '');
    END IF;
    RAISE EXCEPTION '%', v_text USING ERRCODE = '22023', COLUMN = p_field,
        DATATYPE = coalesce(v_value, ''), HINT = p_hint;
END $$;

-- Refuses ids that are not there; p_field is the argument that has them.
CREATE OR REPLACE FUNCTION jobq._check_ids(p_field text, p_ids bigint[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_ids IS NULL OR EXISTS (SELECT FROM unnest(p_ids) AS u (id) WHERE u.id IS NULL) THEN
        PERFORM jobq._refuse(p_field, 'must be an array of ids, without NULL');
    END IF;
END $$;

-- Refuses a page of housekeeping; NULL: as many rows as there are.
CREATE OR REPLACE FUNCTION jobq._check_limit(p_limit integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_limit < 0 THEN PERFORM jobq._refuse('limit', 'must be 0 or more'); END IF;
END $$;

-- How many rows a call takes at most; NULL: any number.
CREATE OR REPLACE FUNCTION jobq._check_at_most(p_at_most integer) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_at_most < 1 THEN PERFORM jobq._refuse('at_most', 'must be 1 or more'); END IF;
END $$;

-- Refuses a filter of the verbs that change jobs if nothing, or everything, would match it.
CREATE OR REPLACE FUNCTION jobq._check_filter(
    p_older interval, p_tags jsonb, p_at_most integer)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_older NOT BETWEEN '0' AND '1000 years' THEN
        PERFORM jobq._refuse('older', 'must be 0 to 1000 years');
    ELSIF jsonb_typeof(p_tags) <> 'object' THEN
        PERFORM jobq._refuse('tags', 'not a JSON object');
    END IF;
    PERFORM jobq._check_at_most(p_at_most);
END $$;

CREATE OR REPLACE FUNCTION jobq._check_name(p_field text, p_name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_name COLLATE "C" ~ '^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$'
       AND length(p_name) <= 1024 THEN
        RETURN;
    END IF;
    PERFORM jobq._refuse(
        p_field, 'must be 1 to 1024 of [A-Za-z0-9._-], alphanumeric at both ends',
        p_value => p_name);
END $$;

-- A queue is created on its first use. Of two first uses at the same time the second waits for
-- the first.
CREATE OR REPLACE FUNCTION jobq._queue_id(p_name text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE v_id integer;
BEGIN
    LOOP
        SELECT q.id INTO v_id FROM jobq.queue q WHERE q.name = p_name COLLATE "C";
        IF FOUND THEN RETURN v_id; END IF;
        PERFORM jobq._check_name('queue', p_name);
        INSERT INTO jobq.queue (name) VALUES (p_name) ON CONFLICT (name) DO NOTHING;
    END LOOP;
END $$;

-- A kind is created on its first use. FOR KEY SHARE waits for a transaction that is changing
-- what the kind's row copies from the queue's row.
CREATE OR REPLACE FUNCTION jobq._kind_id(p_queue integer, p_name text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_id integer;
    v_queue jobq.queue;
BEGIN
    LOOP
        SELECT k.id INTO v_id FROM jobq.kind k
        WHERE k.queue_id = p_queue AND k.name = p_name COLLATE "C";
        IF FOUND THEN RETURN v_id; END IF;
        PERFORM jobq._check_name('kind', p_name);
        SELECT q.* INTO v_queue FROM jobq.queue q WHERE q.id = p_queue FOR KEY SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the queue was deleted; enqueue again' USING ERRCODE = '55000';
        END IF;
        INSERT INTO jobq.kind (queue_id, queue, payload_max, name)
        VALUES (p_queue, v_queue.name, v_queue.payload_max, p_name)
        ON CONFLICT DO NOTHING; -- on either of its two unique constraints
    END LOOP;
END $$;

-- The ids of several kinds. They are created in the order of their names, so that two sessions
-- that create some of the same do not wait for each other; and before their queue's row is
-- changed, for the same reason.
CREATE OR REPLACE FUNCTION jobq._kind_ids(p_queue integer, p_names text[]) RETURNS integer[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_ids integer[] := '{}';
    i integer;
BEGIN
    IF cardinality(p_names) = 1 THEN RETURN ARRAY[jobq._kind_id(p_queue, p_names[1])]; END IF;
    FOR i IN SELECT u.n FROM unnest(p_names) WITH ORDINALITY AS u (name, n)
             ORDER BY u.name COLLATE "C" LOOP
        v_ids[i] := jobq._kind_id(p_queue, p_names[i]);
    END LOOP;
    RETURN v_ids;
END $$;
