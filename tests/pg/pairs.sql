-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- What tests/pg/test_pg_pairs.c plays: operations, the scenes in which they meet, and the laws that
-- judge what they left. The word jobq is the program's schema, as in sql/.

-- Where the instrumented functions call in. A session with pairs.stop set reports each point, and
-- at point number pairs.stop waits for the lock that the controlling session holds.
CREATE FUNCTION jobq.point(p_function text, p_number integer) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = 0 AS $$
DECLARE
    v_at integer := current_setting('pairs.at')::integer + 1;
BEGIN
    PERFORM set_config('pairs.at', v_at::text, false);
    RAISE NOTICE 'point % %', p_function, p_number;
    IF v_at = current_setting('pairs.stop')::integer THEN
        PERFORM pg_advisory_lock(current_setting('pairs.lock')::bigint);
        PERFORM pg_advisory_unlock(current_setting('pairs.lock')::bigint);
    END IF;
    RETURN true;
END $$;

-- It gives up a wait after half a second. Here a wait is part of the case, and a busy machine may
-- take longer than that to notice it.
ALTER FUNCTION jobq._recover(bigint, bigint, integer) SET lock_timeout = '20s';

-- The same of acknowledgements.
CREATE OR REPLACE FUNCTION jobq._wait_briefly() RETURNS text LANGUAGE sql AS 'SELECT NULL::text';

-- An operation is one session's statements, a transaction each. Each statement answers rows: a name
-- (a job's, or another word) and what it says about it. In the text @ is the session, a or b; #
-- is a claim number of its own, and ~ the other session's. A verb that was refused says nothing.
-- leaves: done by worker 1, whose process may lose this session, and go; goes: after these
-- operations.
CREATE TABLE jobq.pair_operation (
    place integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    scenes text NOT NULL,
    leaves boolean NOT NULL DEFAULT false,
    goes boolean GENERATED ALWAYS AS (
        name IN ('nothing', 'rescue', 'take-over', 'prune', 'cancel of many', 'deregister')) STORED,
    statements text[] NOT NULL
);

INSERT INTO jobq.pair_operation (name, scenes, leaves, statements) VALUES
('claim', 'held idle late', true, ARRAY[$$
    SELECT coalesce(payload ->> 'n', id::text), 'claimed' FROM jobq._claim(1, #, 2,
        '{1,1}', '{0,0}', '{1,0}', '{-infinity,-infinity}', '{0,0}', NULL, false, false, true,
        false)
    WHERE id IS NOT NULL$$]),
('claim by another', 'held idle late', false, ARRAY[$$
    SELECT coalesce(payload ->> 'n', id::text), 'claimed' FROM jobq._claim(2, #, 2,
        '{1,2}', '{0,0}', '{0,0}', '{-infinity,-infinity}', '{0,0}', NULL, false, false, true,
        true)
    WHERE id IS NOT NULL$$]),
('claim of a suspect', 'held idle late', true, ARRAY[$$
    SELECT id::text, 'claimed' FROM jobq._claim(1, #, 1,
        '{1,1}', '{0,0}', '{1,0}', '{-infinity,-infinity}', '{0,0}', NULL, true, false, false,
        false)
    WHERE id IS NOT NULL$$]),
('suspect by another', 'held idle', false, ARRAY[$$
    SELECT id::text, 'claimed' FROM jobq._claim(2, #, 1,
        '{1,1}', '{0,0}', '{1,0}', '{-infinity,-infinity}', '{0,0}', NULL, true, false, false,
        false)
    WHERE id IS NOT NULL$$]),
('recover what the other claims', 'held idle late', true, ARRAY[$$
    SELECT 'worker 1', '' FROM (SELECT jobq._recover(1, ~, 100) OFFSET 0) r$$]),
('recover', 'held', true, ARRAY[$$
    SELECT 'worker 1', '' FROM (SELECT jobq._recover(1, 1, 100) OFFSET 0) r$$]),
('set aside', 'held idle', false, ARRAY[$$
    SELECT '1', v::text FROM jobq._set_aside(1, -1, 'too large') v WHERE v$$]),
('complete', 'held', true, ARRAY[$$
    SELECT u.id::text, coalesce(c.answer::text, 'done')
    FROM unnest('{5,6,13,8}'::bigint[]) u (id)
    LEFT JOIN jobq._complete('{1,1}', '{1,2}', '{3,1}', '{5,6,13,8}') c ON c.id = u.id$$]),
('settle: retry', 'held', true, ARRAY[$$
    SELECT u.id::text, coalesce(s.answer::text, 'settled')
    FROM unnest('{5,6,7}'::bigint[]) u (id)
    LEFT JOIN jobq._settle('{1,1,1}', '{1,1,1}', '{5,6,7}', '{r,r,r}', '{0,0,0}', '{1,1,1}',
        '{0,0,0}', '{f,f,f}', '{0,60000000,0}', '{e,e,e}', NULL, NULL) s ON s.id = u.id$$]),
('settle: fail', 'held', true, ARRAY[$$
    SELECT u.id::text, coalesce(s.answer::text, 'settled')
    FROM unnest('{6,7}'::bigint[]) u (id)
    LEFT JOIN jobq._settle('{1,1}', '{1,1}', '{6,7}', '{f,f}', '{0,0}', '{1,1}',
        '{0,0}', '{f,f}', '{0,0}', '{e,e}', NULL, NULL) s ON s.id = u.id$$]),
('settle: park', 'held', true, ARRAY[$$
    SELECT u.id::text, coalesce(s.answer::text, 'settled')
    FROM unnest('{5,6}'::bigint[]) u (id)
    LEFT JOIN jobq._settle('{1,1}', '{1,1}', '{5,6}', '{r,r}', '{0,0}', '{0,0}',
        '{0,0}', '{f,f}', '{-1,-1}', NULL, NULL, NULL) s ON s.id = u.id$$]),
('settle: next stage', 'held', true, ARRAY[$$
    SELECT u.id::text, coalesce(s.answer::text, 'settled')
    FROM unnest('{6}'::bigint[]) u (id)
    LEFT JOIN jobq._settle('{1}', '{1}', '{6}', '{r}', '{1}', '{0}', '{0}', '{f}', '{0}', NULL,
        '{"2"}', NULL) s ON s.id = u.id$$]),
('settle: a suspect retries', 'held', true, ARRAY[$$
    SELECT u.id::text, coalesce(s.answer::text, 'settled')
    FROM unnest('{8}'::bigint[]) u (id)
    LEFT JOIN jobq._settle('{1}', '{2}', '{8}', '{r}', '{0}', '{2}', '{1}', '{f}', '{0}', NULL,
        NULL, NULL) s ON s.id = u.id$$]),
('settle here', 'held', true, ARRAY[$$
    SELECT '6', 'done' FROM (SELECT jobq._settle_here(1, 1, 6, 's', 0::smallint, 1, 0, false, 0,
        NULL, NULL, NULL) OFFSET 0) s$$]),
('settle all here', 'held', true, ARRAY[$$
    SELECT u.id::text, 'done' FROM unnest('{5,6}'::bigint[]) u (id), (
        SELECT jobq._settle_all_here('{1,1}', '{1,1}', '{6,5}', '{s,s}', '{0,0}', '{1,1}', '{0,0}',
            '{f,f}', '{0,0}', NULL, NULL, NULL) OFFSET 0) s$$]),
('settle all here: next stage', 'held', true, ARRAY[$$
    SELECT '6', 'settled' FROM (SELECT jobq._settle_all_here('{1}', '{1}', '{6}', '{r}', '{1}',
        '{0}', '{0}', '{f}', '{0}', NULL, '{"2"}', NULL) OFFSET 0) s$$]),
('heartbeat', 'held idle', true, ARRAY[$$
    SELECT 'worker 1', 'lives: ' || alive FROM jobq._heartbeat(1, 60000000, '{3}')$$]),
('heartbeat of another', 'held idle', false, ARRAY[$$
    SELECT 'worker 2', 'lives: ' || alive FROM jobq._heartbeat(2, 60000000, '{}')$$]),
('rescue', 'held', false, ARRAY[$$
    SELECT 'worker 1', 'dead: ' || dead FROM jobq._rescue(1, 5, 100)$$]),
('rescue of one claim', 'held', false, ARRAY[$$
    SELECT 'worker 1', 'dead: ' || dead FROM jobq._rescue(1, 5, 1)$$]),
('deregister', 'held idle', true, ARRAY[$$
    SELECT 'worker 1', 'gone' FROM (SELECT jobq._deregister(1) OFFSET 0) d$$]),
('recover, deregister', 'held idle', true, ARRAY[$$
    SELECT 'worker 1', '' FROM (SELECT jobq._recover(1, ~, 100) OFFSET 0) r$$, $$
    SELECT 'worker 1', 'gone' FROM (SELECT jobq._deregister(1) OFFSET 0) d$$]),
('register', 'held idle', false, ARRAY[$$
    SELECT 'register', cardinality(kind_ids)::text
    FROM jobq._register(hashtext('@'), 'new', 60000000, '{q,new}', '{1,2,2}', '{k,k,new}')$$]),
('take', 'held idle late', false, ARRAY[$$
    SELECT id::text, 'claimed'
    FROM jobq._register(hashtext('@'), 'sql', 60000000, '{q}', '{1}', '{k}') r
    CROSS JOIN LATERAL jobq.work_take(hashtext('@'), cardinality(r.kind_ids), 2)$$]),
('register in two orders', 'held idle', false, ARRAY[$$
    SELECT 'register', cardinality(kind_ids)::text
    FROM jobq._register(hashtext('@'), 'new', 60000000, '{q}', '{1,1}', ARRAY(
        SELECT k FROM unnest('{m,n}'::text[]) k ORDER BY CASE '@' WHEN 'a' THEN k END, k DESC))$$]),
('sleep', 'held idle', true, ARRAY[$$
    SELECT 'sleep', '' FROM (SELECT jobq._sleep(1, '{1,2}', true) OFFSET 0) s$$]),
('wake up', 'held idle', true, ARRAY[$$
    SELECT 'sleep', '' FROM (SELECT jobq._sleep(2, '{1,2}', false) OFFSET 0) s$$]),
('unpark', 'held idle', false, ARRAY[$$
    SELECT 'unpark', '' FROM (SELECT jobq._unpark(3, 100) OFFSET 0) u$$]),
('prune', 'held idle box', false, ARRAY[$$
    SELECT 'prune', '' FROM (SELECT jobq.prune(100) OFFSET 0) p$$]),
('turn', 'held', false, ARRAY[$$
    SELECT 'turn', '' FROM (SELECT jobq.turn() OFFSET 0) t$$]),
('cancel', 'held idle late', false, ARRAY[$$
    SELECT '1', v FROM jobq.cancel(1) v WHERE v = 'cancelled'$$]),
('cancel of a running one', 'held', false, ARRAY[$$
    SELECT '6', v FROM jobq.cancel(6) v WHERE v = 'requested'$$]),
('cancel of many', 'held', false, ARRAY[$$
    SELECT 'cancel', '' FROM (SELECT jobq.cancel('q', state => 'ready') OFFSET 0) c$$]),
('cancel of running ones', 'held', false, ARRAY[$$
    SELECT 'cancel', '' FROM (SELECT jobq.cancel('q', state => 'running') OFFSET 0) c$$]),
('revive', 'held idle flow late', false, ARRAY[$$
    SELECT '9', v FROM jobq.revive(9) v WHERE v = 'revived'$$]),
('revive of one that fails', 'held', false, ARRAY[$$
    SELECT '6', v FROM jobq.revive(6) v WHERE v IN ('revived', 'exists')$$]),
('revive of many', 'held flow', false, ARRAY[$$
    SELECT 'revive', '' FROM (SELECT jobq.revive('q') OFFSET 0) r$$]),
('delete', 'held idle late', false, ARRAY[$$
    SELECT '3', v FROM jobq.delete(3) v WHERE v = 'deleted'$$]),
('delete of a failed one', 'held idle flow', false, ARRAY[$$
    SELECT '9', v FROM jobq.delete(9) v WHERE v = 'deleted'$$]),
('delete of many', 'held', false, ARRAY[$$
    SELECT 'delete', '' FROM (SELECT jobq.delete('q', 'ready') OFFSET 0) d$$]),
('move', 'held idle late', false, ARRAY[$$
    SELECT '3', v FROM jobq.move(3, 'p') v WHERE v = 'moved'$$]),
('move of many', 'held', false, ARRAY[$$
    SELECT 'move', '' FROM (SELECT jobq.move('q', 'p') OFFSET 0) m$$]),
('reschedule', 'held', false, ARRAY[$$
    SELECT '1', v FROM jobq.reschedule(1, now() + '1 hour') v WHERE v = 'rescheduled'$$]),
('prioritize many', 'held', false, ARRAY[$$
    SELECT 'prioritize', '' FROM (SELECT jobq.prioritize('q', 1) OFFSET 0) p$$]),
('pause', 'held idle box', false, ARRAY[$$
    SELECT 'pause', '' FROM (SELECT jobq.pause('q') OFFSET 0) p$$]),
('pause of a kind', 'held', false, ARRAY[$$
    SELECT 'pause', '' FROM (SELECT jobq.pause('q', 'k') OFFSET 0) p$$]),
('enqueue', 'held idle', false, ARRAY[$$
    SELECT '@', 'new' FROM jobq._enqueue_one('q', 'k', '{"n": "@"}', NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, true)$$]),
('enqueue with a key', 'held idle', false, ARRAY[$$
    SELECT 'key new', CASE WHEN existed[1] THEN 'existed' ELSE 'new' END
    FROM jobq._enqueue_many('q', '{k}', NULL, '{"{\"n\": \"@\"}"}', p_keys => '{new}')$$]),
('enqueue with a known key', 'held idle late', false, ARRAY[$$
    SELECT 'key x', CASE WHEN existed[1] THEN jobq.called(ids[1]) ELSE 'new' END
    FROM jobq._enqueue_many('q', '{k}', NULL, '{"{\"n\": \"@\"}"}', p_keys => '{x}')$$]),
('enqueue with a running key', 'held', false, ARRAY[$$
    SELECT 'key y', CASE WHEN existed[1] THEN jobq.called(ids[1]) ELSE 'new' END
    FROM jobq._enqueue_many('q', '{k}', NULL, '{"{\"n\": \"@\"}"}', p_keys => '{y}')$$]),
('enqueue with an old key', 'held idle', false, ARRAY[$$
    SELECT 'key z', CASE WHEN existed[1] THEN 'existed' ELSE 'new' END
    FROM jobq._enqueue_many('q', '{k}', NULL, '{"{\"n\": \"@\"}"}', p_keys => '{z}')$$]),
('enqueue for a failed one', 'idle', false, ARRAY[$$
    SELECT 'key v', CASE WHEN existed THEN jobq.called(id) ELSE 'new' END
    FROM jobq._enqueue_known('q', 'k', '{"n": "@"}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        'v', true, 'replace', NULL, NULL)$$]),
('erase', 'held idle', false, ARRAY[$$
    SELECT 'erase', '' FROM (SELECT jobq._erase_rows('failed jobs', '{9,14}', '{}') OFFSET 0) e$$]),
('revive of a recent one', 'idle', false, ARRAY[$$
    SELECT '14', v FROM jobq.revive(14) v WHERE v = 'revived'$$]),
('enqueue in its place', 'idle late', false, ARRAY[$$
    SELECT 'key x', CASE WHEN existed THEN jobq.called(id) ELSE 'new' END
    FROM jobq._enqueue_known('q', 'k', '{"n": "@"}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        'x', true, 'cancel', NULL, NULL)$$]),
('enqueue of a new kind in stages', 'held', false, ARRAY[$$
    SELECT '@', 'new' FROM jobq._enqueue_many('q', '{new}', NULL, '{"{\"n\": \"@\"}"}',
        p_stages => '{4}')$$]),
('enqueue in stages', 'held', false, ARRAY[$$
    SELECT '@', 'new' FROM jobq._enqueue_many('q', '{k}', NULL, '{"{\"n\": \"@\"}"}',
        p_stages => '{4}')$$]),
('enqueue of a new kind', 'held', false, ARRAY[$$
    SELECT '@', 'new' FROM jobq._enqueue_many('q', '{new}', NULL, '{"{\"n\": \"@\"}"}')$$]),
('queue_set', 'held', false, ARRAY[$$
    SELECT 'set', '' FROM (SELECT jobq.queue_set('q', max_attempts => 7, kinds => '{new}')
                           OFFSET 0) s$$]),
('queue_set of limits', 'idle', false, ARRAY[$$
    SELECT 'set', '' FROM (SELECT jobq.queue_set('q', max_attempts => 7, running_max => 9)
                           OFFSET 0) s$$]),
('queue_set of lines', 'idle', false, ARRAY[$$
    SELECT 'set', '' FROM (SELECT jobq.queue_set('q', line_running_max => 9, rate => '9/s',
                                                 retention => 'long') OFFSET 0) s$$]),
('queue_set of payloads', 'idle', false, ARRAY[$$
    SELECT 'set', '' FROM (SELECT jobq.queue_set('q', payload_max => 900, kinds => '{new}')
                           OFFSET 0) s$$]),
('prioritize', 'idle late', false, ARRAY[$$
    SELECT '3', v FROM jobq.prioritize(3, -2) v WHERE v = 'prioritized'$$]),
('enqueue in its place, in stages', 'idle', false, ARRAY[$$
    SELECT 'key x', CASE WHEN existed THEN jobq.called(id) ELSE 'new' END
    FROM jobq._enqueue_known('q', 'k', '{"n": "@"}', NULL, NULL, NULL, NULL, -1::smallint,
        3::smallint, NULL, NULL, 'x', true, 'replace', NULL, NULL)$$]),
('enqueue with an old key, after its job', 'idle', false, ARRAY[$$
    SELECT 'key z', 'new' FROM (SELECT jobq.enqueue('q', 'k', '{"n": "@"}', key => 'z',
        after => '{9}', on_end => 'any') OFFSET 0) e$$]),
('renew', 'held box', false, ARRAY[$$
    SELECT 'renew', '' FROM (SELECT jobq.renew() OFFSET 0) r$$]),
('nothing', 'held idle box', false, '{}'),
('take-over', 'held', false, ARRAY[$$
    SELECT 'worker 1', 'dead: ' || dead FROM jobq._rescue(1, 5, 100)$$, $$
    SELECT id::text, 'claimed' FROM jobq._claim(2, #, 1, '{1,1}', '{0,0}', '{1,0}',
        '{-infinity,-infinity}', '{0,0}', NULL, true, false, false,
        false) WHERE id IS NOT NULL$$]),
('delete, enqueue again', 'held idle', false, ARRAY[$$
    SELECT '3', v FROM jobq.delete(3) v WHERE v = 'deleted'$$, $$
    SELECT 'key x', CASE WHEN existed[1] THEN jobq.called(ids[1]) ELSE 'new' END
    FROM jobq._enqueue_many('q', '{k}', NULL, '{"{\"n\": \"@\"}"}', p_keys => '{x}')$$]);

-- Flow 1, in which job 1 is ready, 2 runs under (1, 1), and 9 has failed.
INSERT INTO jobq.pair_operation (name, scenes, leaves, statements) VALUES
('revive of a flow', 'flow', false, ARRAY[$$
    SELECT 'flow', '' FROM (SELECT jobq.flow_revive(1) OFFSET 0) f$$]),
('cancel of a flow', 'flow', false, ARRAY[$$
    SELECT 'flow', CASE WHEN f.n > 0 THEN 'b' ELSE '' END -- again, until it answers 0
    FROM (SELECT jobq.flow_cancel(1) AS n OFFSET 0) f$$]),
('enqueue, then name others', 'flow', false, ARRAY[$$
    SELECT '@', 'new' FROM (SELECT jobq.enqueue_two('@', 1, NULL, 1, '{1,9}') OFFSET 0) e$$]),
('name others, then enqueue', 'flow', false, ARRAY[$$
    SELECT '@', 'new' FROM (SELECT jobq.enqueue_two('@', NULL, '{1,9}', 1, NULL) OFFSET 0) e$$]),
('enqueue after a flow', 'flow', false, ARRAY[$$
    SELECT '@', 'new' FROM (SELECT jobq.enqueue('q', 'k', '{"n": "@"}', after_flow => 1,
                                                on_end => 'any') OFFSET 0) e$$]),
('wait for others', 'flow', false, ARRAY[$$
    SELECT '2', 'waits' FROM (SELECT jobq._wait_here(1, 1, 2, 0::smallint, 0, 0, false, NULL,
        '{1,9}', '{NULL,NULL}', '{NULL,NULL}', '{any,any}') OFFSET 0) w$$]),
('do a step, then enqueue', 'flow', false, ARRAY[$$
    SELECT '@', 'new' FROM (SELECT jobq.step_and_enqueue('@') OFFSET 0) e$$]),
('end it, then enqueue', 'flow', false, ARRAY[$$
    SELECT '@', 'new' FROM (SELECT jobq.end_and_enqueue('@') OFFSET 0) e$$]),
('complete one of a flow', 'flow', false, ARRAY[$$
    SELECT '2', coalesce(c.answer::text, 'done')
    FROM (SELECT) u LEFT JOIN jobq._complete('{1}', '{1}', '{1}', '{2}') c ON c.id = 2$$]),
('promote', 'flow', false, ARRAY[$$
    SELECT 'promote', '' FROM (SELECT jobq._promote(100) OFFSET 0) p$$]);

-- Two enqueues of one transaction, of which one may be into a flow, and may name jobs.
CREATE FUNCTION jobq.enqueue_two(
    p_name text, p_flow bigint, p_after bigint[], p_next_flow bigint, p_next_after bigint[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM jobq.enqueue('q', 'k', jsonb_build_object('n', p_name), flow => p_flow,
                         after => p_after, on_end => 'any');
    PERFORM jobq.enqueue('q', 'k', jsonb_build_object('n', p_name || 2), flow => p_next_flow,
                         after => p_next_after, on_end => 'any');
END $$;

-- What a handler of the flow may do in its own transaction.
CREATE FUNCTION jobq.step_and_enqueue(p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM jobq._step_done_here(1, 1, 2, 's', NULL);
    PERFORM jobq.enqueue('q', 'k', jsonb_build_object('n', p_name), flow => 1);
END $$;

CREATE FUNCTION jobq.end_and_enqueue(p_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM jobq.work_done(1, 1, 2);
    PERFORM jobq.enqueue('q', 'k', jsonb_build_object('n', p_name), flow => 1);
END $$;

-- The outbox: partition 32768 is held by worker 1, 32769 by nobody.
INSERT INTO jobq.pair_operation (name, scenes, leaves, statements) VALUES
('read: take over', 'box', false, ARRAY[$$
    SELECT u.p ->> 'n', 'got as ' || d.acked + u.i
    FROM jobq._outbox_read(2, #, 60000000, 32768, 2, NULL, 1, 1, 7) d,
         unnest(d.payloads) WITH ORDINALITY u (p, i)$$]),
('read: again', 'box', false, ARRAY[$$
    SELECT u.p ->> 'n', 'got as ' || d.acked + u.i
    FROM jobq._outbox_read(1, #, 60000000, 32768, 3, 1) d,
         unnest(d.payloads) WITH ORDINALITY u (p, i)$$]),
('read: set one aside', 'box', false, ARRAY[$$
    SELECT 'm1', 'aside' FROM jobq._outbox_read(1, #, 60000000, 32768, 3, 1, p_aside => 0) d
    WHERE d.answer = 'a'$$]),
('read of a free one', 'box', false, ARRAY[$$
    SELECT u.p ->> 'n', 'got as ' || d.acked + u.i
    FROM jobq._outbox_read(1, #, 60000000, 32769, 5) d,
         unnest(d.payloads) WITH ORDINALITY u (p, i)$$]),
('read by another', 'box', false, ARRAY[$$
    SELECT u.p ->> 'n', 'got as ' || d.acked + u.i
    FROM jobq._outbox_read(2, #, 60000000, 32769, 1) d,
         unnest(d.payloads) WITH ORDINALITY u (p, i)$$]),
('read with a sweep', 'box', false, ARRAY[$$
    SELECT u.p ->> 'n', 'got as ' || d.acked + u.i
    FROM jobq._outbox_read(2, #, 60000000, 32769, 5, p_sweep => true) d,
         unnest(d.payloads) WITH ORDINALITY u (p, i)$$]),
('ack', 'box', false, ARRAY[$$
    WITH d AS MATERIALIZED (SELECT * FROM jobq._outbox_ack(1, 1, 60000000, 32768, 0, 2, '{}', 0, 0,
        0, NULL, 0, '{}', '{}', '{}', 2, false))
    SELECT 'm' || m, 'acked' FROM d, generate_series(1, 2) m WHERE d.answer <> 'l'
    UNION ALL SELECT u.p ->> 'n', 'got as ' || d.acked + u.i
    FROM d, unnest(d.payloads) WITH ORDINALITY u (p, i)$$]),
('ack: all that is numbered', 'box', false, ARRAY[$$
    WITH d AS MATERIALIZED (SELECT * FROM jobq._outbox_ack(1, 1, 60000000, 32768, 0, 2, '{}', 0, 0,
        0, NULL, 0, '{}', '{}', '{}', 2, false) OFFSET 0), e AS MATERIALIZED (
        SELECT e.* FROM d, jobq._outbox_ack(1, 1, 60000000, 32768, d.acked, 3, '{}', 0, 0, 0, NULL,
            0, '{}', '{}', '{}', 2, false) e WHERE d.answer = 'h')
    SELECT 'm' || m, 'acked' FROM d, generate_series(1, 2) m WHERE d.answer <> 'l'
    UNION ALL SELECT 'm3', 'acked' FROM e WHERE e.answer <> 'l'
    UNION ALL SELECT u.p ->> 'n', 'got as ' || e.acked + u.i
    FROM e, unnest(e.payloads) WITH ORDINALITY u (p, i)$$]),
('ack: one is given up', 'box', false, ARRAY[$$
    SELECT 'm' || m, CASE m WHEN 1 THEN 'acked' ELSE 'given up' END
    FROM jobq._outbox_ack(1, 1, 60000000, 32768, 0, 2, '{}', 0, 0, 0, NULL, 0, '{2}', '{e}', '{1}',
        0, false) d, generate_series(1, 2) m WHERE d.answer <> 'l'$$]),
('ack: in part, later', 'box', false, ARRAY[$$
    SELECT 'm1', 'acked' FROM jobq._outbox_ack(1, 1, 60000000, 32768, 0, 1, '{2}', 1, 1, 0, 'e',
        60000000, '{}', '{}', '{}', 0, false) d WHERE d.answer <> 'l'$$]),
('ack here', 'box', false, ARRAY[$$
    SELECT 'm' || m, 'acked' FROM jobq._outbox_ack(1, 1, 60000000, 32768, 0, 2, '{}', 0, 0, 0, NULL,
        0, '{}', '{}', '{}', 2, true) d, generate_series(1, 2) m$$]),
('renewal', 'box', false, ARRAY[$$
    SELECT 'renewal', CASE r WHEN '{}' THEN 'held' ELSE 'lost' END
    FROM jobq._outbox_renew(1, 60000000, '{32768}', '{1}') r$$]),
('look', 'box', false, ARRAY[$$
    SELECT 'look', '' FROM (SELECT count(*) FROM jobq._outbox_look('{1}', 0, 100, false)) l$$]),
('send', 'box', false, ARRAY[$$
    SELECT 'sent', '' FROM jobq._outbox_enqueue_one('q', 0, NULL, NULL, '{"n": "@"}', NULL, NULL,
        NULL, true)$$]),
('send to both', 'box', false, ARRAY[$$
    SELECT 'sent', '' FROM jobq._outbox_enqueue_many('q', '{0,1}', NULL, NULL,
        '{"{\"n\": \"@0\"}", "{\"n\": \"@1\"}"}', NULL, NULL, NULL, 2, true)$$]),
('send two to a topic', 'box', false, ARRAY[$$
    SELECT 'sent', '' FROM jobq._outbox_enqueue_one('t', 0, NULL, NULL, '{"n": "t1"}', NULL, NULL,
        't1', true) o, jobq._outbox_enqueue_one('t', sign(o.id - o.id)::integer, NULL, NULL,
        '{"n": "t2"}', NULL, NULL, 't2', true)$$]),
('send with a key', 'box', false, ARRAY[$$
    SELECT 'key m', CASE WHEN existed THEN 'existed' ELSE 'new' END
    FROM jobq._outbox_enqueue_one('q', 0, NULL, NULL, '{"n": "@"}', NULL, NULL, 'm', true)$$]),
('grow', 'box', false, ARRAY[$$
    SELECT 'grow', '' FROM (SELECT jobq.outbox_grow('q', 4, true) OFFSET 0) g$$]),
('subscribe', 'box', false, ARRAY[$$
    SELECT 'subscribe', '' FROM (SELECT jobq.subscribe('new', 'q', 'n'),
                                        jobq.subscribe('of-t', 't', 'm') OFFSET 0) s$$]),
('unsubscribe', 'box', false, ARRAY[$$
    SELECT 'unsubscribe', '' FROM (SELECT jobq.unsubscribe('old') OFFSET 0) s$$]),
('unsubscribe and drop', 'box', false, ARRAY[$$
    SELECT 'unsubscribe', '' FROM (SELECT jobq.unsubscribe('old', true) OFFSET 0) s$$]),
('replay', 'box', false, ARRAY[$$
    SELECT payload ->> 'n', 'replayed' FROM jobq.dead_letter_replay(#, 60000000)$$]),
('resolve', 'box', false, ARRAY[$$
    SELECT 'd1', 'resolved' FROM jobq.dead_letter_resolve(5, '{1}') n WHERE n = 1$$]),
('reject', 'box', false, ARRAY[$$
    SELECT 'd1', 'rejected' FROM jobq.dead_letter_reject(5, '{1}', 'e') n WHERE n = 1$$]),
('discard', 'box', false, ARRAY[$$
    SELECT 'discard', '' FROM (SELECT jobq.dead_letter_discard() OFFSET 0) d$$]),
('clean up', 'box', false, ARRAY[$$
    SELECT 'clean up', '' FROM (SELECT jobq.dead_letter_cleanup() OFFSET 0) d$$]),
('take over, acknowledge', 'box', false, ARRAY[$$
    SELECT u.p ->> 'n', 'got as ' || d.acked + u.i
    FROM jobq._outbox_read(2, #, 60000000, 32768, 2, NULL, 1, 1, 7) d,
         unnest(d.payloads) WITH ORDINALITY u (p, i)$$, $$
    SELECT 'm1', 'acked' FROM jobq._outbox_ack(2, #, 60000000, 32768, 0, 1, '{}', 0, 0, 0, NULL, 0,
        '{}', '{}', '{}', 0, false) d WHERE d.answer <> 'l'$$]),
('send twice', 'box', false, ARRAY[$$
    SELECT 'sent', '' FROM jobq._outbox_enqueue_one('q', 1, NULL, NULL, '{"n": "@1"}', NULL, NULL,
        NULL, true)$$, $$
    SELECT 'sent', '' FROM jobq._outbox_enqueue_one('q', 1, NULL, NULL, '{"n": "@2"}', NULL, NULL,
        NULL, true)$$]);

-- What the drain was given: messages, their numbers and how often each had been tried.
CREATE TABLE jobq.delivered (partition_id bigint, n text, seq bigint, attempt bigint);

-- Of each ring two parts: the one that is written and the next one. Sessions are short here, and
-- to plan with 24 parts would take two thirds of their time.
DO $$ BEGIN
    FOR n IN 0 .. 23 LOOP
        IF n % 8 > 1 THEN EXECUTE format('DROP TABLE jobq.history_%s', n); END IF;
    END LOOP;
END $$;

-- The world before. held: worker 1 is late and holds 5, 6, 7, 13 and the suspect 8. idle: it lives
-- and holds nothing. Worker 2 lives and sleeps, 3 died long ago. 3, 6, 9 and 14 have keys; 4 is
-- parked, 9, 10 and 14 failed, 11 is a suspect, 12 has succeeded. Queue p keeps no history. late:
-- idle, but 1, 3 and 11 are late, and 15 waits for 3 not to succeed. box and flow: see box_scene
-- and flow_scene.
CREATE FUNCTION jobq.scene(p_scene text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := statement_timestamp();
    v_held boolean := p_scene = 'held';
BEGIN
    DELETE FROM jobq.job;
    DELETE FROM jobq.failed;
    DELETE FROM jobq.history;
    DELETE FROM jobq.claim;
    DELETE FROM jobq.worker;
    DELETE FROM jobq.sleeper;
    DELETE FROM jobq.idempotency;
    DELETE FROM jobq.kind;
    DELETE FROM jobq.queue;
    DELETE FROM jobq.subscription;
    DELETE FROM jobq.line;
    DELETE FROM jobq.message;
    DELETE FROM jobq.partition;
    DELETE FROM jobq.dead_letter;
    DELETE FROM jobq.delivered;
    DELETE FROM jobq.flow;
    DELETE FROM jobq.flow_part;
    DELETE FROM jobq.edge;
    DELETE FROM jobq.nudge;
    IF p_scene = 'box' THEN
        PERFORM jobq.box_scene();
        RETURN;
    ELSIF p_scene = 'flow' THEN
        PERFORM jobq.flow_scene();
        RETURN;
    END IF;
    PERFORM setval('jobq.job_id', 100), setval(pg_get_serial_sequence('jobq.queue', 'id'), 100),
            setval(pg_get_serial_sequence('jobq.kind', 'id'), 100);
    UPDATE jobq.ring SET slot = first, since = v_now - interval '1 day';
    INSERT INTO jobq.queue (id, name, stages_max, history) VALUES (1, 'q', 2, true),
                                                                  (2, 'p', 1, false);
    INSERT INTO jobq.kind (id, queue_id, queue, payload_max, name, parked_at) VALUES
        (1, 1, 'q', 1048576, 'k', NULL), (2, 2, 'p', 1048576, 'k', NULL),
        (3, 1, 'q', 1048576, 'l', v_now);
    INSERT INTO jobq.worker (id, name, beat, lease_us, expires_at, dead_at, queues, kinds) VALUES
        (1, 'one', 5, 60000000, CASE WHEN v_held THEN v_now - interval '1 second'
                                ELSE v_now + interval '1 hour' END, NULL, '{1,2}', '{1,2,3}'),
        (2, 'two', 5, 60000000, v_now + interval '1 hour', NULL, '{1,2}', '{1,2}'),
        (3, 'three', 5, 60000000, v_now - interval '2 days', v_now - interval '2 days', '{1,2}',
         '{1,2}');
    UPDATE jobq.worker SET library = 1; -- they keep limits
    INSERT INTO jobq.claim (worker, number, claimed_at, jobs, cancel)
    SELECT 1, 1, v_now, '{5,6,7,13}'::bigint[], '{7}'::bigint[] WHERE v_held
    UNION ALL SELECT 1, 2, v_now, '{8}', NULL WHERE v_held
    UNION ALL SELECT 1, 3, v_now, '{12}', NULL WHERE v_held
    UNION ALL SELECT 3, 1, v_now - interval '2 days', '{}', NULL;
    INSERT INTO jobq.sleeper VALUES (1, 2), (2, 2);
    INSERT INTO jobq.job (id, queue_id, kind_id, run_at, stages, key, state, worker, claim,
                          attempt, crash, suspect, cancel_requested_at)
    SELECT j.id, j.queue, j.kind, coalesce(j.run_at, v_now - interval '1 minute'), j.stages,
           j.key, CASE WHEN j.claim IS NULL OR NOT v_held THEN 'r' ELSE 'x' END::"char",
           CASE WHEN v_held AND j.claim IS NOT NULL THEN 1 END,
           CASE WHEN v_held THEN j.claim END,
           CASE WHEN v_held AND j.claim IS NOT NULL THEN j.attempt ELSE 0 END, j.crash, j.suspect,
           CASE WHEN v_held AND j.id = 7 THEN v_now END
    FROM (VALUES (1, 1, 1, NULL::timestamptz, 1, NULL, NULL::bigint, 0, 0, false),
                 (2, 1, 1, NULL, 1, NULL, NULL, 0, 0, false),
                 (3, 1, 1, NULL, 2, 'x', NULL, 0, 0, false),
                 (4, 1, 3, 'infinity', 1, NULL, NULL, 0, 0, false),
                 (5, 1, 3, NULL, 1, NULL, 1, 1, 0, false),
                 (6, 1, 1, NULL, 2, 'y', 1, 1, 0, false),
                 (7, 1, 1, NULL, 1, NULL, 1, 1, 0, false),
                 (8, 1, 1, NULL, 1, NULL, 2, 2, 1, true),
                 (11, 1, 1, NULL, 1, NULL, NULL, 0, 0, true),
                 (13, 2, 2, NULL, 1, NULL, 1, 1, 0, false))
         AS j (id, queue, kind, run_at, stages, key, claim, attempt, crash, suspect);
    INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt,
                             crash, priority, stage, stages, key)
    VALUES (9, v_now, v_now, v_now - interval '2 days', 1, 1, 3, 0, 0, 0, 1, 'z'),
           (10, v_now, v_now, v_now - interval '60 days', 1, 1, 3, 0, 0, 0, 1, NULL),
           (14, v_now, v_now, v_now - interval '1 minute', 1, 1, 3, 0, 0, 0, 1, 'v');
    INSERT INTO jobq.history (slot, id, run_at, enqueued_at, finished_at, worker, queue_id,
                              kind_id, attempt, crash, priority, stage, stages, state)
    VALUES (0, 12, v_now, v_now, v_now, 1, 1, 1, 1, 0, 0, 0, 1, 's');
    IF p_scene = 'late' THEN
        INSERT INTO jobq.job (id, queue_id, kind_id, run_at, flow_id, state)
        VALUES (15, 1, 1, v_now, 0, 'w');
        INSERT INTO jobq.edge (parent, child, wanted) VALUES (3, 15, 'f');
        UPDATE jobq.job SET expires_at = v_now - interval '1 second',
                            flow_id = CASE WHEN id = 3 THEN 0 END
        WHERE id IN (1, 3, 11);
    END IF;
    INSERT INTO jobq.idempotency (queue_id, key, job_id, ended_at)
    VALUES (1, 'x', 3, NULL), (1, 'y', 6, NULL), (1, 'z', 9, v_now - interval '2 days'),
           (1, 'v', 14, v_now - interval '1 minute');
END $$;

-- Worker 1 is late. It was given m1 and m2 of the first partition; m3 is numbered, m4 is not. m5
-- and m6 lie in the other one, where d1 (its replay is late) and d2 were given up. Queue r reads
-- queue q, and c1 of its copies is numbered; queue n may read it, too, and queue m the topic t.
CREATE FUNCTION jobq.box_scene() RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := statement_timestamp();
BEGIN
    PERFORM setval('jobq.message_id', 100),
            setval(pg_get_serial_sequence('jobq.dead_letter', 'id'), 100);
    INSERT INTO jobq.queue (id, name, partitions, readers, topic) VALUES
        (1, 'q', 2, 1, false), (2, 'r', 1, 0, false), (3, 'n', 1, 0, false),
        (4, 't', 0, 0, true), (5, 'm', 1, 0, false);
    INSERT INTO jobq.subscription (id, source_id, queue_id, name) VALUES (1, 1, 2, 'old');
    INSERT INTO jobq.worker (id, name, beat, lease_us, expires_at, queues, kinds) VALUES
        (1, 'one', 5, 60000000, v_now - interval '1 second', '{1}', '{}'),
        (2, 'two', 5, 60000000, v_now + interval '1 hour', '{1}', '{}');
    INSERT INTO jobq.sleeper VALUES (1, 2);
    INSERT INTO jobq.message (partition_id, id, payload)
    SELECT CASE WHEN m < 5 THEN 32768 ELSE 32769 END, m, jsonb_build_object('n', 'm' || m)
    FROM generate_series(1, 6) m
    UNION ALL SELECT 65536, 7, '{"n": "c1"}' UNION ALL SELECT 65536, 8, '{"n": "c2"}';
    INSERT INTO jobq.partition (id, queue_id, number, acked, reading, beat, worker, claim, lease_us,
                                lease_until, base, numbered, reached, tried, ids) VALUES
        (32768, 1, 0, 0, 2, 7, 1, 1, 60000000, v_now - interval '1 second', 0, 3, 3, '{2}',
         '{1,2,3}'),
        (32769, 1, 1, 2, 0, 3, NULL, NULL, NULL, NULL, 2, 2, 0, '{}', '{}'),
        (65536, 2, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 0, 1, 7, '{}', '{7}'),
        (98304, 3, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 0, 0, 0, '{}', '{}'),
        (163840, 5, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 0, 0, 0, '{}', '{}');
    INSERT INTO jobq.dead_letter (id, queue_id, partition_id, seq, created_at, failed_at, attempts,
                                  status, token, taken_at, deadline, payload) VALUES
        (1, 1, 32769, 1, v_now, v_now, 1, 'reprocessing', 5, v_now - interval '1 minute',
         v_now - interval '1 second', '{"n": "d1"}'),
        (2, 1, 32769, 2, v_now, v_now, 1, 'pending', NULL, NULL, NULL, '{"n": "d2"}');
END $$;

-- Worker 1 lives.
CREATE FUNCTION jobq.flow_scene() RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz := statement_timestamp();
BEGIN
    PERFORM setval('jobq.job_id', 100);
    INSERT INTO jobq.queue (id, name) VALUES (1, 'q');
    INSERT INTO jobq.kind (id, queue_id, queue, payload_max, name) VALUES (1, 1, 'q', 1048576, 'k');
    INSERT INTO jobq.worker (id, name, beat, lease_us, expires_at, queues, kinds)
    VALUES (1, 'one', 5, 60000000, v_now + interval '1 hour', '{1}', '{1}');
    INSERT INTO jobq.claim (worker, number, claimed_at, jobs) VALUES (1, 1, v_now, '{2}');
    INSERT INTO jobq.flow (id, name, on_failure, open) VALUES (1, 'f', 'h', false);
    INSERT INTO jobq.flow_part (flow_id, part, jobs, failed) VALUES (1, 0, 3, 1);
    INSERT INTO jobq.job (id, queue_id, kind_id, run_at, flow_id, state, worker, claim, attempt)
    VALUES (1, 1, 1, v_now - interval '1 minute', 1, 'r', NULL, NULL, 0),
           (2, 1, 1, v_now - interval '1 minute', 1, 'x', 1, 1, 1);
    INSERT INTO jobq.failed (id, run_at, enqueued_at, finished_at, queue_id, kind_id, attempt,
                             crash, priority, stage, stages, flow_id)
    VALUES (9, v_now, v_now, v_now, 1, 1, 3, 0, 0, 0, 1, 1);
END $$;

-- A new job's name is in its payload. Volatile: what the statement that asks has written counts.
CREATE FUNCTION jobq.called(p_id bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF p_id <= 100 THEN RETURN p_id; END IF;
    RETURN (SELECT coalesce(j.payload ->> 'n', 'new') FROM jobq.job j WHERE j.id = p_id
            UNION ALL SELECT m.payload ->> 'n' FROM jobq.message m WHERE m.id = p_id
            UNION ALL SELECT f.payload ->> 'n' FROM jobq.failed f WHERE f.id = p_id
            UNION ALL SELECT h.payload ->> 'n' FROM jobq.history h WHERE h.id = p_id LIMIT 1);
END $$;

-- Jobs that have ended, and how.
CREATE FUNCTION jobq._ended() RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT format('%s: failed, queue %s stage %s attempt %s crash %s errors %s',
                  jobq.called(f.id), f.queue_id, f.stage, f.attempt, f.crash,
                  coalesce(jsonb_array_length(f.errors), 0))
    FROM jobq.failed f
    UNION ALL
    SELECT format('%s: %s by %s, queue %s priority %s stage %s attempt %s crash %s errors %s',
                  jobq.called(h.id), CASE h.state WHEN 's' THEN 'succeeded' ELSE 'cancelled' END,
                  h.worker, h.queue_id, h.priority, h.stage, h.attempt, h.crash,
                  coalesce(jsonb_array_length(h.errors), 0))
    FROM jobq.history h
    UNION ALL
    SELECT format('%s: delivered from partition %s as %s, tried %s times', d.n, d.partition_id,
                  d.seq, d.attempt)
    FROM jobq.delivered d
    UNION ALL
    SELECT format('%s: dead letter %s of partition %s as %s, %s attempts', l.payload ->> 'n',
                  l.status, l.partition_id, l.seq, l.attempts)
    FROM jobq.dead_letter l;
END $$;

-- The world as a person reads it, without ids and instants that differ from run to run: worlds
-- that read the same end the same.
CREATE FUNCTION jobq.story() RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT format('job %s: %s%s, queue %s kind %s priority %s stage %s/%s attempt %s crash %s'
                  ' errors %s%s%s', jobq.called(j.id), CASE j.state WHEN 'x' THEN
                  format('running under (%s, %s)', j.worker, j.claim)
                  WHEN 'w' THEN 'waiting' ELSE 'ready' END,
                  CASE WHEN j.suspect THEN ', suspect' END, j.queue_id,
                  (SELECT k.name FROM jobq.kind k WHERE k.id = j.kind_id), j.priority, j.stage,
                  j.stages, j.attempt, j.crash, coalesce(jsonb_array_length(j.errors), 0),
                  ' key ' || j.key, concat(CASE WHEN j.run_at = 'infinity' THEN ' parked'
                  WHEN j.run_at > statement_timestamp() THEN ' later' END,
                  CASE WHEN j.cancel_requested_at IS NOT NULL THEN ' asked to cancel' END))
    FROM jobq.job j
    UNION ALL SELECT 'job ' || e FROM jobq._ended() e
    UNION ALL SELECT format('claim (%s, %s): %s%s', c.worker, c.number, ARRAY(
                         SELECT jobq.called(u) FROM unnest(c.jobs) u), ' cancel ' || c.cancel::text)
              FROM jobq.claim c
    UNION ALL SELECT format('worker %s: %s', w.id, CASE WHEN w.dead_at IS NOT NULL THEN 'dead'
                            WHEN w.expires_at < statement_timestamp() THEN 'late' ELSE 'lives' END)
              FROM jobq.worker w
    UNION ALL SELECT format('asleep: %s, queue %s', s.worker, s.queue_id) FROM jobq.sleeper s
    UNION ALL SELECT format('key %s of queue %s: job %s%s', k.key, k.queue_id,
                            jobq.called(k.job_id), CASE WHEN k.ended_at IS NULL THEN ', lives'
                            WHEN k.ended_at < statement_timestamp() - interval '1 day'
                            THEN ', over' END)
              FROM jobq.idempotency k
    UNION ALL SELECT format('kind %s of queue %s%s%s', k.name, k.queue_id,
                            CASE WHEN k.parked_at IS NOT NULL THEN ' parked' END,
                            CASE WHEN k.paused_at IS NOT NULL THEN ' paused' END)
              FROM jobq.kind k
    UNION ALL SELECT format('edge from %s to %s: %s%s', jobq.called(e.parent), jobq.called(e.child),
                            e.came, CASE WHEN e.holds THEN ' holds' END)
              FROM jobq.edge e
    UNION ALL SELECT format('nudge for %s', jobq.called(n.job_id)) FROM jobq.nudge n
    UNION ALL SELECT format('flow %s: %s, %s succeeded, %s failed, %s cancelled, %s', f.id, f.jobs,
                            f.succeeded, f.failed, f.cancelled, f.state)
              FROM jobq.flows f
    UNION ALL SELECT format('queue %s: %s attempts, %s stages%s', q.name, q.max_attempts,
                            q.stages_max, CASE WHEN q.paused_at IS NOT NULL THEN ' paused' END)
              FROM jobq.queue q
    UNION ALL SELECT format('subscription %s from queue %s to queue %s', s.name, s.source_id,
                            s.queue_id)
              FROM jobq.subscription s
    UNION ALL SELECT format('message %s: partition %s, after %s others%s', m.payload ->> 'n',
                            m.partition_id, (SELECT count(*) FROM jobq.message o
                             WHERE o.partition_id = m.partition_id AND o.id < m.id),
                            CASE WHEN m.id <= p.settled AND m.id <> ALL (p.ids)
                            THEN ', where no look finds it' END)
              FROM jobq.message m JOIN jobq.partition p ON p.id = m.partition_id
    UNION ALL SELECT format('partition %s: acked %s numbered %s %s reading %s tried %s'
                            ' worker %s %s%s%s', p.id, p.acked, p.numbered, ARRAY(
                            SELECT jobq.called(u) FROM unnest(p.ids[p.acked - p.base + 1 :]) u),
                            p.reading, p.tried, p.worker, p.claim,
                            CASE WHEN p.lease_until < statement_timestamp() THEN ' late' END,
                            CASE WHEN p.run_at IS NOT NULL THEN ' later' END)
              FROM jobq.partition p
    ORDER BY 1;
END $$;

-- Laws that hold whenever nobody is in the middle of something.
CREATE FUNCTION jobq.laws() RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT format('job %s is in two tables', u.id)
    FROM (SELECT id FROM jobq.job UNION ALL SELECT id FROM jobq.failed
          UNION ALL SELECT id FROM jobq.history) u GROUP BY u.id HAVING count(*) > 1
    UNION ALL
    SELECT format('job %s runs and no claim row has it', j.id) FROM jobq.job j
    WHERE j.state = 'x' AND NOT EXISTS (
        SELECT FROM jobq.claim c
        WHERE c.worker = j.worker AND c.number = j.claim AND j.id = ANY (c.jobs))
    UNION ALL
    SELECT format('job %s was asked to cancel, and its claim row does not say so', j.id)
    FROM jobq.job j JOIN jobq.claim c ON c.worker = j.worker AND c.number = j.claim
    WHERE j.cancel_requested_at IS NOT NULL AND j.id <> ALL (coalesce(c.cancel, '{}'))
    UNION ALL
    SELECT format('worker %s sleeps and does not live', s.worker) FROM jobq.sleeper s
    WHERE NOT EXISTS (SELECT FROM jobq.worker w WHERE w.id = s.worker AND w.dead_at IS NULL)
    UNION ALL
    SELECT format('job %s is parked and its kind is not marked', j.id)
    FROM jobq.job j JOIN jobq.kind k ON k.id = j.kind_id
    WHERE j.run_at = 'infinity' AND k.parked_at IS NULL
    UNION ALL
    SELECT format('job %s has more stages than its queue says', j.id)
    FROM jobq.job j JOIN jobq.queue q ON q.id = j.queue_id WHERE j.stages > q.stages_max
    UNION ALL
    SELECT format('job %s is of a kind of another queue', j.id)
    FROM jobq.job j LEFT JOIN jobq.kind k ON k.id = j.kind_id AND k.queue_id = j.queue_id
    WHERE k.id IS NULL
    UNION ALL
    SELECT format('job %s lives and does not have its key %s', j.id, j.key) FROM jobq.job j
    WHERE j.key IS NOT NULL AND NOT EXISTS (
        SELECT FROM jobq.idempotency k
        WHERE k.queue_id = j.queue_id AND k.key = j.key AND k.ended_at IS NULL
          AND (k.job_id = j.id OR EXISTS (
              SELECT FROM jobq.edge e WHERE e.parent = j.id AND e.child = k.job_id)))
    UNION ALL
    SELECT format('%s jobs wait for nothing, or edges for nobody', a) FROM jobq._audit_flows() a
    WHERE a > 0
    UNION ALL
    SELECT format('partition %s: %s ids for the numbers %s to %s', p.id, cardinality(p.ids),
                  p.base + 1, p.numbered)
    FROM jobq.partition p WHERE cardinality(p.ids) <> p.numbered - p.base
    UNION ALL
    SELECT format('message %s is numbered and gone', p.acked + u.n)
    FROM jobq.partition p, unnest(p.ids[p.acked - p.base + 1 :]) WITH ORDINALITY AS u (id, n)
    WHERE NOT EXISTS (SELECT FROM jobq.message m WHERE m.partition_id = p.id AND m.id = u.id)
    UNION ALL
    SELECT format('message %s is acknowledged and there', m.payload ->> 'n')
    FROM jobq.message m JOIN jobq.partition p ON p.id = m.partition_id
    WHERE m.id = ANY (p.ids[: p.acked - p.base])
    UNION ALL
    SELECT format('message %s has two numbers', d.n) FROM jobq.delivered d
    GROUP BY d.partition_id, d.n HAVING count(*) > 1
    UNION ALL
    SELECT format('key %s is kept for job %s, which does not live', k.key, k.job_id)
    FROM jobq.idempotency k
    WHERE k.ended_at IS NULL AND NOT EXISTS (
        SELECT FROM jobq.job j WHERE j.id = k.job_id AND j.queue_id = k.queue_id);
END $$;

-- Everybody's lease ends, and worker 9 does what is left, by what its heartbeat tells it. Each
-- queue keeps history then, so that a lost job differs from a completed one.
CREATE FUNCTION jobq.drain() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_queues integer[] := ARRAY(SELECT q.id FROM jobq.queue q ORDER BY q.id);
    v_news record;
    v_number bigint := 0;
    v_ids bigint[];
BEGIN
    UPDATE jobq.queue SET paused_at = NULL, history = true;
    DELETE FROM jobq.quota; -- worker 9 keeps none
    UPDATE jobq.kind SET paused_at = NULL WHERE paused_at IS NOT NULL;
    PERFORM jobq._register(9, 'nine', 3600000000,
        ARRAY(SELECT q.name FROM jobq.queue q ORDER BY q.id),
        ARRAY(SELECT array_position(v_queues, k.queue_id) FROM jobq.kind k ORDER BY k.id),
        ARRAY(SELECT k.name FROM jobq.kind k ORDER BY k.id));
    FOR round IN 1 .. 5 LOOP
        UPDATE jobq.worker w SET expires_at = statement_timestamp() - interval '1 second'
        WHERE w.id <> 9 AND w.dead_at IS NULL;
        SELECT * INTO v_news FROM jobq._heartbeat(9, 3600000000, '{}');
        PERFORM jobq._rescue(l.id, l.beat, 100)
        FROM unnest(v_news.late, v_news.late_beats) AS l (id, beat);
        PERFORM jobq._unpark(k, 100) FROM unnest(v_news.parked) k;
        UPDATE jobq.job j SET run_at = statement_timestamp()
        WHERE j.state = 'r' AND isfinite(j.run_at) AND j.run_at > statement_timestamp();
        -- The others in one claim, then suspects one by one, then those that run alone.
        FOR i IN 0 .. 20 LOOP
            EXIT WHEN NOT EXISTS (SELECT FROM jobq.job j WHERE j.state = 'r');
            v_number := v_number + 1;
            v_ids := ARRAY(SELECT c.id FROM (
                SELECT array_agg(q) AS queues, array_agg(p::smallint) AS priorities,
                       array_agg(s::smallint) AS stages
                FROM unnest(v_queues) q, generate_series(-2, 1) p, generate_series(3, 0, -1) s) l,
                jobq._claim(9, v_number, 100, l.queues, l.priorities, l.stages,
                    array_fill('-infinity'::timestamptz, ARRAY[cardinality(l.queues)]),
                    array_fill(0::bigint, ARRAY[cardinality(l.queues)]), NULL, i > 0, i > 10,
                    false, false) c);
            CONTINUE WHEN v_ids = '{}';
            PERFORM jobq._complete('{9}', ARRAY[v_number], ARRAY[cardinality(v_ids)], v_ids);
        END LOOP;
        PERFORM jobq._promote_late(100);
        EXIT WHEN NOT EXISTS (SELECT FROM jobq.job);
    END LOOP;
END $$;

-- The same for messages.
CREATE FUNCTION jobq.box_drain() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_part record;
    v_read jobq.delivery;
    v_claim bigint := 0;
BEGIN
    UPDATE jobq.queue SET paused_at = NULL WHERE paused_at IS NOT NULL;
    FOR round IN 1 .. 30 LOOP
        UPDATE jobq.partition SET run_at = NULL, mark_at = '-infinity',
            lease_until = lease_until - interval '1 hour';
        FOR v_part IN SELECT * FROM jobq._outbox_look(ARRAY(SELECT q.id FROM jobq.queue q), 0, 100,
                                                     false) LOOP
            v_claim := v_claim + 1;
            v_read := jobq._outbox_read(9, v_claim, 60000000, v_part.partition_id, 100, NULL,
                                       v_part.worker, v_part.claim, v_part.beat);
            CONTINUE WHEN v_read.answer <> 'h';
            INSERT INTO jobq.delivered
            SELECT v_part.partition_id, u.p ->> 'n', v_read.acked + u.i,
                   (SELECT count(*) FROM unnest(v_read.tried) t WHERE t >= v_read.acked + u.i)
            FROM unnest(v_read.payloads) WITH ORDINALITY AS u (p, i);
            PERFORM jobq._outbox_ack(9, v_claim, 60000000, v_part.partition_id, v_read.acked,
                v_read.acked + cardinality(v_read.payloads), '{}', 0, 0, 0, NULL, 0, '{}', '{}',
                '{}', 0, false);
        END LOOP;
        EXIT WHEN NOT FOUND;
    END LOOP;
END $$;

-- What becomes of each job and message; before that, each broken law.
CREATE FUNCTION jobq.judge() RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT '! ' || l FROM jobq.laws() l;
    IF EXISTS (SELECT FROM jobq.partition) THEN PERFORM jobq.box_drain();
    ELSE PERFORM jobq.drain();
    END IF;
    RETURN QUERY SELECT '! when all was done: ' || l FROM jobq.laws() l;
    RETURN QUERY SELECT format('! job %s never ended', j.id) FROM jobq.job j
        UNION ALL SELECT format('! message %s never came', m.payload ->> 'n') FROM jobq.message m
        UNION ALL SELECT format('! flow %s never ended', f.id) FROM jobq.flow f
                  WHERE f.ended_at IS NULL;
    RETURN QUERY SELECT * FROM jobq._ended();
END $$;
