-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- What tests/pg/test_pg_locks.c plays: a queue with everything in it, and each verb of a person, who
-- keeps its transaction open. The word jobq is the program's schema, as in sql/.

-- The id of the job of a queue whose payload has this name.
CREATE FUNCTION jobq.named(p_queue text, p_name text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT j.id FROM jobq.jobs j
            WHERE j.queue = p_queue AND j.payload ->> 'n' = p_name);
END $$;

CREATE FUNCTION jobq.put(
    p_queue text, p_kind text, p_name text, p_key text DEFAULT NULL, p_delay interval DEFAULT NULL,
    p_line text DEFAULT NULL, p_flow bigint DEFAULT NULL, p_after bigint[] DEFAULT NULL,
    p_on_end text DEFAULT 'success') RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN jobq.enqueue(p_queue, p_kind, jsonb_build_object('n', p_name), key => p_key,
                        delay => p_delay, line => p_line, flow => p_flow, after => p_after,
                        on_end => p_on_end, headers => jsonb_build_object('who', p_queue));
END $$;

-- A job that has failed for good.
CREATE FUNCTION jobq.put_failed(
    p_queue text, p_name text, p_key text DEFAULT NULL, p_flow bigint DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_id bigint := jobq.put(p_queue, 'quick', p_name, p_key, '1 hour', NULL, p_flow);
BEGIN
    PERFORM jobq._finish(ARRAY[v_id], 'f', NULL);
    RETURN v_id;
END $$;

-- The kinds: quick jobs end at once; ends: when the test says so, while the verbs' locks are held;
-- long: after those are gone; stray: no worker has it; parked: a worker has it again. p_limits:
-- the queue, and kind quick, have limits over all workers.
CREATE FUNCTION jobq.lock_scene(p_queue text, p_limits boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_queue integer;
    v_flow bigint;
    v_id bigint;
BEGIN
    PERFORM jobq.queue_set(p_queue, kinds => '{long,ends,quick,stray,parked}', max_attempts => 5,
                           backoff_base => '10 ms', backoff_cap => '10 ms');
    IF p_limits THEN
        PERFORM jobq.queue_set(p_queue, running_max => 50, rate => '1000/s', rate_burst => 100);
        PERFORM jobq.queue_set(p_queue, kind => 'quick', running_max => 40);
    END IF;
    PERFORM jobq.line_set(p_queue, 'line', running_max => 5);
    v_queue := (SELECT r.queue_id FROM jobq.outbox_register(p_queue, 1) r);
    PERFORM jobq.put(p_queue, 'long', 'long', 'long', NULL, 'line');
    PERFORM jobq.put(p_queue, 'ends', 'ends', 'ends', NULL, 'line');
    PERFORM jobq.put(p_queue, 'quick', 'later', 'later', '1 hour', 'line');
    PERFORM jobq.put(p_queue, 'quick', 'plain later', NULL, '1 hour');
    PERFORM jobq.put(p_queue, 'stray', 'stray');
    v_id := jobq.put(p_queue, 'parked', 'parked');
    UPDATE jobq.job SET run_at = 'infinity' WHERE id = v_id;
    UPDATE jobq.kind SET parked_at = now() WHERE queue_id = v_queue AND name = 'parked';
    PERFORM jobq.put_failed(p_queue, 'failed', 'failed');
    -- Its children: one that runs whatever its end was, and one that it holds up.
    v_id := jobq.put(p_queue, 'quick', 'parent', NULL, '1 hour');
    PERFORM jobq.put(p_queue, 'ends', 'child', NULL, NULL, NULL, NULL, ARRAY[v_id], 'any');
    PERFORM jobq.put(p_queue, 'quick', 'held child', NULL, NULL, NULL, NULL, ARRAY[v_id]);
    PERFORM jobq._finish(ARRAY[v_id], 'f', NULL);
    v_flow := jobq.flow(p_queue);
    PERFORM jobq.put_failed(p_queue, 'failed of a flow', NULL, v_flow);
    PERFORM jobq.put(p_queue, 'ends', 'ends of a flow', NULL, NULL, NULL, v_flow);
    PERFORM jobq.put(p_queue, 'quick', 'later of a flow', NULL, '1 hour', NULL, v_flow);
    PERFORM jobq.batch(p_queue, 'ends', ARRAY[jsonb_build_object('n', 'ends of a batch')],
                       done_outbox => p_queue, name => 'batch of ' || p_queue);
    v_id := jobq.put(p_queue, 'quick', 'waits for a signal', NULL, '1 hour');
    UPDATE jobq.job SET flow_id = 0 WHERE id = v_id;
    INSERT INTO jobq.signal_wait VALUES (v_id, p_queue || '/signal', now() + interval '1 hour');
    PERFORM jobq._finish(ARRAY[jobq.put(p_queue, 'quick', 'cancelled', 'cancelled', '1 hour')],
                        'c', NULL);
    PERFORM jobq.schedule('jobs-' || p_queue, p_queue, 'quick', every => '2 s', overlap => 'wait');
    PERFORM jobq.schedule('messages-' || p_queue, p_queue, every => '2 s', partition => 0);
    PERFORM jobq.outbox_enqueue(p_queue, '{"n": "message"}',
                                headers => jsonb_build_object('who', p_queue));
    INSERT INTO jobq.dead_letter (queue_id, partition_id, seq, created_at, failed_at, attempts,
                                  status, token, taken_at, deadline)
    VALUES (v_queue, v_queue * 32768, 1001, now(), now(), 1, 'pending', NULL, NULL, NULL),
           (v_queue, v_queue * 32768, 1002, now(), now(), 1, 'reprocessing', v_queue, now(),
            now() + interval '1 hour');
END $$;

-- The long job runs: another one waits for its end.
CREATE FUNCTION jobq.lock_follower(p_queue text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM jobq.enqueue(p_queue, 'long', '{"n": "follower"}', key => 'long',
                         on_known => 'replace');
END $$;

-- What comes while the locks are held: jobs in a line, in none, of a kind that nobody has.
CREATE FUNCTION jobq.lock_meanwhile(p_queue text, p_messages boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM jobq.put(p_queue, 'quick', 'meanwhile'),
            jobq.put(p_queue, 'quick', 'meanwhile', NULL, NULL, 'line'),
            jobq.put(p_queue, 'stray', 'stray meanwhile');
    IF p_messages THEN PERFORM jobq.outbox_enqueue(p_queue, '{"n": "meanwhile"}'); END IF;
END $$;

-- Worker 7 has a job of each queue, and permits. Its lease ends when the test says so.
CREATE FUNCTION jobq.lock_victim() RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_ids bigint[];
BEGIN
    INSERT INTO jobq.worker (id, name, lease_us, expires_at, queues, kinds, library)
    SELECT 7, 'victim', 100000, now() + interval '1 hour', array_agg(q.id), '{}', 1
    FROM jobq.queue q;
    INSERT INTO jobq.permit (quota_id, worker, number, held, wanted)
    SELECT u.id, 7, 1, 1, 1 FROM jobq.quota u;
    INSERT INTO jobq.claim (worker, number, claimed_at, jobs)
    SELECT 7, q.id, now(), ARRAY[jobq.put(q.name, 'quick', 'rescued')] FROM jobq.queue q;
    UPDATE jobq.job j SET state = 'x', worker = 7, claim = j.queue_id, claimed_at = now(),
                          attempt = 1
    WHERE j.payload ->> 'n' = 'rescued';
END $$;

-- A row for each case, with a queue of its own, for which @ stands. verbs: those of which it
-- takes all locks. last: its lock holds up all messages.
CREATE TABLE jobq.lock_case (
    queue text NOT NULL GENERATED ALWAYS AS ('q' || place::text) STORED,
    place integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    verbs text[] NOT NULL,
    statement text NOT NULL,
    last boolean NOT NULL DEFAULT false
);

INSERT INTO jobq.lock_case (verbs, statement) VALUES
('{cancel(bigint)}', $$jobq.cancel(jobq.named('@', 'long')), jobq.cancel(jobq.named('@', 'ends')),
    jobq.cancel(jobq.named('@', 'later')), jobq.cancel(jobq.named('@', 'follower')),
    jobq.cancel(jobq.named('@', 'child')), jobq.cancel(jobq.named('@', 'held child'))$$),
('{cancel(character varying)}', $$jobq.cancel('@')$$),
('{revive(bigint)}', $$jobq.revive(jobq.named('@', 'failed')),
    jobq.revive(jobq.named('@', 'failed of a flow')), jobq.revive(jobq.named('@', 'parent'))$$),
('{revive(character varying)}', $$jobq.revive('@')$$),
('{delete(bigint)}', $$jobq.delete(jobq.named('@', 'parent')),
    jobq.delete(jobq.named('@', 'failed')), jobq.delete(jobq.named('@', 'later')),
    jobq.delete(jobq.named('@', 'later of a flow')), jobq.delete(jobq.named('@', 'cancelled'))$$),
('{delete(character varying)}', $$jobq.delete('@', 'ready'), jobq.delete('@', 'failed'),
    jobq.delete('@', 'cancelled')$$),
('{reschedule(bigint)}', $$jobq.reschedule(jobq.named('@', 'later'))$$),
('{reschedule(character varying)}', $$jobq.reschedule('@', now() + interval '2 h')$$),
('{prioritize(bigint)}', $$jobq.prioritize(jobq.named('@', 'later'), -5)$$),
('{prioritize(character varying)}', $$jobq.prioritize('@', -5)$$),
('{move(bigint)}', $$jobq.move(jobq.named('@', 'later'), 'target')$$),
('{move(character varying)}', $$jobq.move('@', 'target')$$),
('{pause(text)}', $$jobq.pause('@')$$),
('{pause(text)}', $$jobq.pause('@', 'stray'), jobq.pause('@', 'parked'),
    jobq.pause('@', 'quick')$$),
('{resume(text)}', $$jobq.pause('@'), jobq.resume('@'), jobq.pause('@', 'quick'),
    jobq.resume('@', 'quick')$$),
('{queue_set(text)}', $$jobq.queue_set('@', max_attempts => 7, kinds => '{new}')$$),
('{queue_set(text)}', $$jobq.queue_set('@', payload_max => 500000)$$),
('{queue_set(text)}', $$jobq.queue_set('@', running_max => 30, rate => '500/s')$$),
('{queue_set(text)}', $$jobq.queue_set('@', running_max => 0, rate => '0')$$),
('{queue_set(text)}', $$jobq.queue_set('@', kind => 'ends', running_max => 3)$$),
('{queue_set(text)}', $$jobq.queue_set('@', kind => 'quick', rate => '1000/s', reset => true)$$),
('{queue_set(text)}', $$jobq.queue_set('@', kind => 'stray', max_attempts => 3),
    jobq.queue_set('@', kind => 'parked', timeout => '1 h')$$),
('{queue_set(text)}', $$jobq.queue_set('@', retention => 'long', history => true,
    line_running_max => 4, line_rate => '1000/s', ageing => true)$$),
('{retention_set(text)}', $$jobq.retention_set('medium', '2 days')$$),
('{line_set(text)}', $$jobq.line_set('@', 'line', running_max => 6),
    jobq.line_set('@', 'new line', running_max => 6)$$),
('{hold(text)}', $$jobq.hold('@', NULL, now() + interval '1 ms'),
    jobq.hold('@', 'line', now() + interval '1 ms'),
    jobq.hold('@', 'other line', now() + interval '1 ms')$$),
('{dead_letter_replay(bigint),dead_letter_resolve(bigint)}', $$jobq.dead_letter_resolve(5,
    ARRAY(SELECT id FROM jobq.dead_letter_replay(5, 60000000, '@')))$$),
('{dead_letter_reject(bigint)}', $$jobq.dead_letter_reject(
    (SELECT id FROM jobq.queue WHERE name = '@'), ARRAY(SELECT d.id FROM jobq.dead_letters d
     WHERE d.queue = '@'), 'e')$$),
('{dead_letter_discard(text),dead_letter_cleanup(text)}', $$jobq.dead_letter_discard('@'),
    jobq.dead_letter_cleanup('@')$$),
('{dead_letter_list(text),dead_letter_count(text)}', $$jobq.dead_letter_count('@')$$),
('{erase(jsonb)}', $$jobq.erase('{"who": "@"}', dry => false, live => 'cancel')$$),
('{export_set(text)}', $$jobq.export_set('short', '1 day')$$),
('{export_next(),export_done(text)}', $$jobq.export_next(), jobq.export_done('long', 1)$$),
('{schedule(text)}', $$jobq.schedule('jobs-@', '@', 'quick', every => '2 s', overlap => 'cancel'),
    jobq.schedule('new-@', '@', 'quick', every => '1 h', priority => -9)$$),
('{schedule_pause(text)}', $$jobq.schedule_pause('jobs-@'), jobq.schedule_pause('messages-@')$$),
('{schedule_resume(text)}', $$jobq.schedule_resume('jobs-@')$$),
('{schedule_run(text)}', $$jobq.schedule_run('jobs-@'), jobq.schedule_run('messages-@')$$),
('{schedule_drop(text)}', $$jobq.schedule_drop('jobs-@')$$),
('{flow_cancel(bigint)}', $$jobq.flow_cancel(f.id) FROM jobq.flow f WHERE f.name LIKE '%@'$$),
('{flow_revive(bigint)}', $$jobq.flow_revive(f.id) FROM jobq.flow f WHERE f.name LIKE '%@'$$),
('{flow_close(bigint)}', $$jobq.flow_close(f.id) FROM jobq.flow f WHERE f.name LIKE '%@'$$),
('{enqueue(text),enqueue_or_get(text),_enqueue_one(text),_enqueue_many(text)}',
    $$jobq.enqueue('@', 'first', key => 'new', line => 'a line', priority => -1, stages => 3)$$),
('{_enqueue_known(text)}', $$jobq.enqueue('@', 'long', key => 'long', on_known => 'cancel'),
    jobq.enqueue('@', 'quick', key => 'later', on_known => 'bump', delay => '1 min'),
    jobq.enqueue('@', 'ends', key => 'ends', on_known => 'replace'),
    jobq.enqueue('@', 'quick', key => 'failed', on_known => 'replace', unique_for => 'live')$$),
('{_enqueue_linked(text),flow(text),batch(text)}', $$jobq.enqueue('@', 'quick', after => ARRAY[
    jobq.named('@', 'long'), jobq.named('@', 'ends'), jobq.named('@', 'parent')], after_flow => (
    SELECT f.id FROM jobq.flow f WHERE f.name = '@'), flow => jobq.flow('new of @')),
    jobq.enqueue('@', 'quick', flow => (SELECT f.id FROM jobq.flow f WHERE f.name = '@'))$$),
('{signal(text)}', $$jobq.signal('@/signal')$$),
('{outbox_enqueue(text),_outbox_enqueue_one(text),_outbox_enqueue_many(text)}',
    $$jobq.outbox_enqueue('@', '{}', key => 'new')$$);

INSERT INTO jobq.lock_case (verbs, statement, last) VALUES
('{outbox_grow(text),subscribe(text),unsubscribe(text)}', $$jobq.outbox_grow('@', 2, true),
    jobq.subscribe('new-@', '@', '@', 'quick'), jobq.subscribe('old-@', '@', '@', 'ends'),
    jobq.unsubscribe('old-@', drop => true)$$, true);

-- The verbs of operators and producers, by name and first argument, that have no case. Those left
-- out lock nothing.
CREATE VIEW jobq.lock_lacks AS
SELECT v.verb FROM (
    SELECT format('%s(%s)', p.proname, p.proargtypes[0]::regtype) AS verb
    FROM pg_proc p
    WHERE p.pronamespace = 'jobq'::regnamespace AND p.proname ~ format(
        '^_?(%s|%s)$', jobq._doors('operate'), jobq._doors('enqueue'))
      AND p.proname NOT IN ('digest', '_outbox_hash', '_outbox_direct', '_citus_apart')) AS v
WHERE NOT EXISTS (SELECT FROM jobq.lock_case c WHERE v.verb = ANY (c.verbs));
