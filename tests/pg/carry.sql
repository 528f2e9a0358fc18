-- SPDX-License-Identifier: MIT-0 OR Unlicense
-- carry.sql -- fills a schema of version 11, by its own functions, with work of every kind:
-- what examples/carry.sql must carry. test_pg_carry runs it, with -v role=ROLE.
--
-- A job says by its kind what it is an example of.

\set ON_ERROR_STOP on
\set QUIET on
\o /dev/null
SET client_min_messages = warning;

-- ---- help ----------------------------------------------------------------------------------

-- For the tests: all rows of a schema, where its sequences are, columns, constraints, indexes,
-- functions, and grants, as one sum.
CREATE FUNCTION public.sum_of(p_schema name) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_schema regnamespace := p_schema::text::regnamespace;
    v_table regclass;
    v_rows text;
    v_all text := '';
BEGIN
    FOR v_table IN SELECT c.oid FROM pg_class c
                   WHERE c.relnamespace = v_schema AND c.relkind IN ('r', 'S') ORDER BY c.oid
    LOOP
        EXECUTE format('SELECT string_agg(t::text, '','' ORDER BY t::text) '
                       'FROM (SELECT * FROM %s) t', v_table) INTO v_rows;
        v_all := concat_ws(';', v_all, v_table, v_rows);
    END LOOP;
    RETURN md5(concat_ws(';', v_all, (
        SELECT string_agg(concat_ws(' ', p.oid::regprocedure, p.prosrc, p.prosecdef,
                                    p.proconfig, p.proacl), ',' ORDER BY p.oid)
        FROM pg_proc p WHERE p.pronamespace = v_schema), (
        SELECT string_agg(concat_ws(' ', c.oid::regclass, c.relkind, c.relacl, a.attname,
                                    a.atttypid, a.attnotnull, a.attacl, CASE c.relkind
                                    WHEN 'i' THEN pg_get_indexdef(c.oid) END), ','
                          ORDER BY c.oid, a.attnum)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
        WHERE c.relnamespace = v_schema), (
        SELECT string_agg(concat_ws(' ', k.conrelid::regclass, pg_get_constraintdef(k.oid)),
                          ',' ORDER BY k.oid)
        FROM pg_constraint k WHERE k.connamespace = v_schema)));
END $$;

-- A worker of this queue and kind takes the only job that is ready there. Answers the job's
-- token: work_join's worker, and claim 1.
CREATE FUNCTION pg_temp.take(p_queue text, p_kind text, OUT worker bigint, OUT id bigint)
LANGUAGE plpgsql AS $$
BEGIN
    worker := (SELECT j.worker FROM jobq.work_join(
        jsonb_build_object(p_queue, jsonb_build_array(p_kind)), name => p_kind) j);
    id := (SELECT t.id FROM jobq.work_take(worker, 1) t);
    IF id IS NULL THEN RAISE EXCEPTION 'no job of kind % was taken', p_kind; END IF;
END $$;

-- The worker's lease has ended, and nobody has rescued its jobs.
CREATE FUNCTION pg_temp.die(p_worker bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE jobq.worker SET expires_at = now() - interval '1 second' WHERE id = p_worker;
$$;

-- A worker takes the job, dies, and its job is rescued, so many times.
CREATE FUNCTION pg_temp.suspect(p_kind text, p_times integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_worker bigint;
BEGIN
    FOR i IN 1 .. p_times LOOP
        v_worker := (SELECT t.worker FROM pg_temp.take('x', p_kind) t);
        PERFORM pg_temp.die(v_worker);
        PERFORM jobq.rescue(v_worker, 0, 10);
    END LOOP;
END $$;

-- A worker takes the job, and dies.
CREATE FUNCTION pg_temp.leave_running(p_queue text, p_kind text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE v record;
BEGIN
    v := pg_temp.take(p_queue, p_kind);
    PERFORM pg_temp.die(v.worker);
    RETURN v.id;
END $$;

-- ---- queues and their limits ---------------------------------------------------------------

SELECT jobq.retention_set('short', '2 hours'), jobq.export_set('medium', '3 hours'),
       jobq.queue_set('q', max_attempts => 7, backoff => 'linear', backoff_base => '1 ms',
                      backoff_cap => '5 ms', key_keep => '3 days', failed_keep => '40 days',
                      timeout => '1 minute', payload_max => 5000, ageing => true,
                      kinds => '{ready, brief}'),
       jobq.queue_set('q', kind => 'brief', max_attempts => 3, retention => 'short'),
       jobq.queue_set('x', max_crashes => 2, kinds => '{running}'),
       jobq.queue_set('limited', running_max => 1, rate => '1000/s', kinds => '{few}'),
       jobq.queue_set('limited', kind => 'few', running_max => 1),
       jobq.queue_set('l', line_running_max => 1, kinds => '{lined, waits}'),
       jobq.line_set('l', 'b', weight => 5, running_max => 2, strict => true),
       jobq.queue_set('stopped', kinds => '{idle}'), jobq.pause('stopped');
SELECT jobq.hold('l', 'later', '2100-01-01', 'closed for the winter');
SELECT jobq.grant_enqueue(:'role', '{q}', 'tenant-%');

-- ---- jobs ----------------------------------------------------------------------------------

SELECT jobq.enqueue('q', 'ready', '{"n": 1}', priority => -3, timeout => '5 s',
                    max_attempts => 4, headers => '{"tag": "a"}', key => 'known'),
       jobq.enqueue('q', 'ready', bytes => '\x00ff', stages => 3),
       jobq.enqueue('q', 'later', run_at => '2100-01-01'),
       jobq.enqueue('limited', 'few'), jobq.enqueue('limited', 'few'),
       jobq.enqueue('limited', 'few'), jobq.enqueue('stopped', 'idle');

-- No worker has a handler for it: what a worker in C does then.
SELECT jobq.enqueue('q', 'parked') AS parked \gset
UPDATE jobq.job SET run_at = 'infinity' WHERE id = :parked;
UPDATE jobq.kind SET parked_at = now() WHERE name = 'parked';

-- The first attempt failed; the second stage begins; a step is done.
SELECT jobq.enqueue('q', 'again', max_attempts => 5), jobq.enqueue('q', 'staged', stages => 2),
       jobq.enqueue('q', 'stepped');
SELECT worker, id FROM pg_temp.take('q', 'again') \gset
SELECT jobq.work_fail(:worker, 1, :id, 'try again', delay => '1 ms'), jobq.work_leave(:worker);
SELECT worker, id FROM pg_temp.take('q', 'staged') \gset
SELECT jobq.work_done(:worker, 1, :id, '{"from": "stage 0"}'), jobq.work_leave(:worker);
SELECT worker, id FROM pg_temp.take('q', 'stepped') \gset
SELECT jobq.step_done_here(:worker, 1, :id, 'first', '[1]'),
       jobq.work_fail(:worker, 1, :id, outcome => 'release'), jobq.work_leave(:worker);

-- Of workers that died: rescued once, twice; not yet rescued.
SELECT jobq.enqueue('x', 'suspect');
SELECT pg_temp.suspect('suspect', 1);
SELECT jobq.enqueue('x', 'alone');
SELECT pg_temp.suspect('alone', 2);
SELECT jobq.enqueue('x', 'running', payload => '{"was": "running"}');
SELECT pg_temp.leave_running('x', 'running');
SELECT jobq.enqueue('x', 'running_suspect');
SELECT pg_temp.suspect('running_suspect', 1);
SELECT pg_temp.leave_running('x', 'running_suspect');
SELECT jobq.enqueue('x', 'running_alone');
SELECT pg_temp.suspect('running_alone', 2);
SELECT pg_temp.leave_running('x', 'running_alone');
SELECT jobq.enqueue('x', 'running_last');
SELECT pg_temp.suspect('running_last', 3);
SELECT pg_temp.leave_running('x', 'running_last');
SELECT jobq.enqueue('x', 'cancelled');
SELECT jobq.cancel(pg_temp.leave_running('x', 'cancelled'));

-- Lines: the first job of one runs, so the others wait for it.
SELECT jobq.enqueue('l', 'lined', '"a"', line => 'a');
SELECT pg_temp.leave_running('l', 'lined');
SELECT jobq.enqueue('l', 'lined', to_jsonb(l.name), line => l.name)
FROM (VALUES ('a'), ('a'), ('b'), ('b'), ('b'), ('c')) AS l (name);
SELECT jobq.enqueue('l', 'waits', line => 'later');

-- Failed ones, and keys of jobs that live, failed and are done.
SELECT jobq.enqueue('q', 'failed', '{"n": 2}', key => 'failed', line => 'f') AS id \gset
SELECT worker FROM pg_temp.take('q', 'failed') \gset
SELECT jobq.work_fail(:worker, 1, :id, 'for good', 'discard'), jobq.work_leave(:worker);
SELECT jobq.enqueue('q', 'brief', key => 'done');
SELECT worker, id FROM pg_temp.take('q', 'brief') \gset
SELECT jobq.work_done(:worker, 1, :id, '"a result"'), jobq.work_leave(:worker);

-- ---- flows, signals ------------------------------------------------------------------------

-- The first of three has ended.
SELECT jobq.flow('three', 'cancel') AS flow \gset
SELECT jobq.enqueue('q', 'one', flow => :flow, name => 'one'),
       jobq.enqueue('q', 'two', flow => :flow, name => 'two', after_names => '{one}'),
       jobq.enqueue('q', 'three', flow => :flow, name => 'three', after_names => '{two}'),
       jobq.enqueue('q', 'both', after => ARRAY[:parked], after_flow => :flow);
SELECT worker, id FROM pg_temp.take('q', 'one') \gset
SELECT jobq.work_done(:worker, 1, :id), jobq.work_leave(:worker);

-- One that writes a message at its end, one that is open, and one that has ended.
SELECT jobq.outbox_register('ends', 1);
SELECT jobq.batch('q', 'part', '{1, 2}', done_outbox => 'ends', done_payload => '"all parts"'),
       jobq.flow('open', open => true), jobq.flow_cancel(jobq.flow('over', open => true));

-- A signal that came too early, and a job that waits for another one.
SELECT jobq.signal('early', '{"n": 3}'), jobq.enqueue('q', 'listens');
SELECT worker, id FROM pg_temp.take('q', 'listens') \gset
SELECT jobq.signal_here(:worker, 1, :id, 'late', 3600000000);
SELECT jobq.work_fail(:worker, 1, :id, outcome => 'snooze', delay => '1 hour'),
       jobq.work_leave(:worker);

-- ---- schedules -----------------------------------------------------------------------------

SELECT jobq.schedule('often', 'q', 'tick', '{"n": 4}', every => '1 second'),
       jobq.schedule('nightly', 'q', 'tick', cron => '30 2 * * 1-5', zone => 'Europe/Berlin',
                     missed => 'all', spread => '1 minute'),
       jobq.schedule('message', 'ends', cron => '0 0 1 1 *', partition => 0, type => 'year'),
       jobq.schedule('resting', 'q', 'tick', every => '1 second');
SELECT jobq.schedule_pause('resting');
SELECT jobq.schedules_set('program', 3, '{owned}', '{q}', '{tick}', '{@daily}', '{}', '{}',
                          '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}',
                          '{}', '{}', '{}');

-- ---- messages ------------------------------------------------------------------------------

-- Partition 0: ten, of which four are acknowledged, two of them as dead letters. The next
-- three were being delivered when the worker died. Partition 1: three that nobody has seen.
SELECT (jobq.outbox_register('o', 2)).queue_id AS box \gset
SELECT jobq.outbox_enqueue('o', to_jsonb(n), partition => 0, type => 'numbered',
                           headers => '{"h": 1}', key => 'message ' || n)
FROM generate_series(1, 10) AS n;
SELECT id AS partition FROM jobq.partition WHERE queue_id = :box AND number = 0 \gset
SELECT jobq.outbox_read(1, 1, 60000000, :partition, 4);
SELECT jobq.outbox_ack(1, 1, 60000000, :partition, 0, 4, '{}', 0, 0, 0, NULL, 0, '{2,3}',
                       '{bad,worse}', '{1,2}', 0, false);
SELECT jobq.outbox_read(1, 2, 60000000, :partition, 3);
SELECT jobq.outbox_enqueue('o', to_jsonb(n), partition => 1) FROM generate_series(1, 3) AS n;
SELECT jobq.dead_letter_replay(77, 60000000, at_most => 1);

-- ---- the end -------------------------------------------------------------------------------

-- A job waits, what it waited for has ended, and nobody has looked at it since.
SELECT jobq.enqueue('q', 'parent') AS id \gset
SELECT jobq.enqueue('q', 'child', after => ARRAY[:id], on_end => 'any');
SELECT jobq.finish(ARRAY[:id], 'c', NULL);

-- The highest id is only in history.
SELECT jobq.enqueue('q', 'last');
SELECT worker, id FROM pg_temp.take('q', 'last') \gset
SELECT jobq.work_done(:worker, 1, :id), jobq.work_leave(:worker);

-- This database is the copy of another one.
UPDATE jobq.meta SET home = 'elsewhere';
